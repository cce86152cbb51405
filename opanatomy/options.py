"""Declare every option once: for the command line, its checks, `opanatomy.profile`, and the fields of a report.

An option of a run is one `Option` here, its field in `RunOptions`, and a keyword of the functions in `python`; a test
checks that they agree, and that each kind of run reads each of its options. Process settings are applied in
`capture.run.restore.step_settings`, step options in `capture.run.step_runner`.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Any, Final, TypeAlias

from msgspec import Struct, structs

from opanatomy.errors import UsageError
from opanatomy.records.taxonomy import DATA_TYPES, OPTIMIZERS, Phase

# One option as it is declared, and its possible values: by name, by text of the command line, or by Python.
#
# Choices are forgiving: case, `-` and `_` do not matter, and the names of torch, the Hub and the Trainer are accepted
# too.


class Kind(Enum):
    """The type of an option's value."""

    TEXT = "text"
    NUMBER = "a whole number"
    #: A number above 0.
    AMOUNT = "a number"
    SWITCH = "True or False"
    #: `KEY=VALUE`, repeatable: pairs in a tuple.
    PAIRS = "pairs"
    #: A text, repeatable.
    TEXTS = "texts"


class Choice(Struct, frozen=True):
    """A value of an option, and its other names."""

    name: str
    aliases: tuple[str, ...] = ()


class Option(Struct, frozen=True, kw_only=True):
    """An option by its name in Python; on the command line it is `--name` unless `flag` says otherwise.

    In `help`, `{choices}`, `{default}` and, by the parser, `{formats}` are filled in. With `is_open` values other than
    the `choices` are accepted unchanged. `bare` is the value of a flag given without one. `recorded` is the field of
    `Workload` with a run's value.
    """

    name: str
    help: str
    kind: Kind = Kind.TEXT
    default: Any = None
    choices: tuple[Choice, ...] = ()
    is_open: bool = False
    bare: str | None = None
    minimum: int = 0
    maximum: int = 2**31 - 1
    metavar: str | None = None
    flag: str = ""
    short_flag: str = ""
    #: A heading of the help; empty for options before all headings.
    group: str = ""
    #: The number of values of an argument without a flag, as `argparse` writes it; empty for a flag.
    positional: str = ""
    #: Functions of `opanatomy` with this keyword.
    python: tuple[str, ...] = ()
    recorded: str = ""
    #: Normalizes a text; its `ValueError` explains what is wrong.
    canonical: Callable[[str], str] | None = None

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the command line names, the long one last."""
        long = self.flag or "--" + self.name.replace("_", "-")
        return (self.short_flag, long) if self.short_flag else (long,)

    @property
    def description(self) -> str:
        """Return the help, filled in."""
        choices = ", ".join(choice.name for choice in self.choices)
        return self.help.replace("{choices}", choices).replace("{default}", str(self.default))


#: Writes an option and its value in a message.
Spelling: TypeAlias = Callable[[Option, object], str]


def as_flag(option: Option, value: object) -> str:
    """Return `--batch 0`, the spelling of the command line."""
    flag = option.flags[-1]
    return flag if value is True else f"{flag} {value}"


def as_argument(option: Option, value: object) -> str:
    """Return `batch=0`, the spelling of Python."""
    text = repr(value)
    is_short = len(text) <= _MAX_VALUE and "\n" not in text
    return f"{option.name}={text if is_short else f'<{type(value).__name__}>'}"


#: Maximum length of a value in a message; of a longer one the type is named.
_MAX_VALUE: Final = 200
_ON_COMMAND_LINE: ContextVar[bool] = ContextVar("on_command_line", default=False)


@contextmanager
def on_command_line() -> Iterator[None]:
    """Have messages inside name flags; elsewhere they name Python's arguments."""
    token = _ON_COMMAND_LINE.set(True)
    try:
        yield
    finally:
        _ON_COMMAND_LINE.reset(token)


def as_asked(of_command_line: str, of_python: str) -> str:
    """Return the wording for how this is run: with flags on the command line, or with Python's arguments."""
    return of_command_line if _ON_COMMAND_LINE.get() else of_python


def spelled(option: Option, value: object) -> str:
    """Return an option and its value as the user writes them: on the command line or in Python."""
    return as_flag(option, value) if _ON_COMMAND_LINE.get() else as_argument(option, value)


def from_text(option: Option, text: str) -> Any:
    """Parse an option's value from the command line; raise `UsageError` that names the flag."""
    if option.kind is Kind.PAIRS:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"{as_flag(option, text)}: must have the form key=value")
        return key, value
    if option.kind is Kind.NUMBER:
        try:
            return checked(option, int(text), as_flag)
        except ValueError:
            raise UsageError(f"{as_flag(option, text)}: must be a whole number") from None
    if option.kind is Kind.AMOUNT:
        try:
            return checked(option, float(text), as_flag)
        except ValueError:
            raise UsageError(f"{as_flag(option, text)}: must be a number") from None
    return checked(option, text, as_flag)


def checked(option: Option, value: Any, spelled: Spelling) -> Any:
    """Return an option's validated value, a choice by its canonical name; raise `UsageError` if invalid."""
    if value is None and option.default is None:
        return None
    if option.kind is Kind.NUMBER:
        try:
            number = operator.index(value)
        except TypeError:
            number = None
        if number is None or isinstance(value, bool):
            raise UsageError(f"{spelled(option, value)}: must be a whole number")
        if number < option.minimum:
            raise UsageError(f"{spelled(option, value)}: must be at least {option.minimum}")
        if number > option.maximum:
            raise UsageError(f"{spelled(option, value)}: must be at most {option.maximum}")
        return number
    if option.kind is Kind.AMOUNT:
        try:
            amount = None if isinstance(value, (bool, str)) else float(value)
        except (TypeError, ValueError):
            amount = None
        if amount is None:
            raise UsageError(f"{spelled(option, value)}: must be a number")
        if not 0 < amount < math.inf:
            raise UsageError(f"{spelled(option, value)}: must be positive and finite")
        return amount
    if option.kind is Kind.PAIRS:
        try:
            return tuple((str(key), str(text)) for key, text in value)
        except (TypeError, ValueError):
            raise UsageError(f"{spelled(option, value)}: must be pairs of a name and a value") from None
    if option.kind is Kind.SWITCH and not (isinstance(value, int) and value in (0, 1)):
        raise UsageError(f"{spelled(option, value)}: must be {option.kind.value}")
    if option.canonical is not None:
        try:
            return option.canonical(str(value))
        except ValueError as error:
            raise UsageError(f"{spelled(option, value)}: {error}") from None
    if option.choices:
        names = [choice.name for choice in option.choices]
        name = choice_of(value, option.choices)
        if name is None and not option.is_open:
            raise UsageError(f"{spelled(option, value)}: unknown - {instead_of(value, names)}")
        return value if name is None else name
    if option.kind is Kind.TEXT and not isinstance(value, (str, os.PathLike)):
        raise UsageError(f"{spelled(option, value)}: must be text")
    return bool(value) if option.kind is Kind.SWITCH else value


def named(value: object, names: Iterable[str], spelled: str) -> str:
    """Return the one of `names` that `value` means; raise `UsageError` that begins with `spelled` if there is none."""
    choices = [Choice(name) for name in names]
    name = choice_of(value, choices)
    if name is None:
        raise UsageError(f"{spelled}: unknown - {instead_of(value, [choice.name for choice in choices])}")
    return name


def choice_of(value: object, choices: Iterable[Choice]) -> str | None:
    """Return the name of the choice that `value` means (`torch.bfloat16` is `bfloat16`), `None` if there is none."""
    wanted = _plain(str(value))
    return next(
        (choice.name for choice in choices if wanted in map(_plain, (choice.name, *choice.aliases))),
        None,
    )


def instead_of(value: object, names: Iterable[str]) -> str:
    """Suggest replacements for `value`: the nearest name, and all of them."""
    from difflib import get_close_matches

    plain = {_plain(name): name for name in names}
    near = get_close_matches(_plain(str(value)), plain, n=1, cutoff=0.6)
    return (f"did you mean {plain[near[0]]}? Use " if near else "use ") + f"one of {', '.join(plain.values())}"


def _plain(name: str) -> str:
    return name.strip().lower().removeprefix("torch.").replace("-", "").replace("_", "")


def _data_type(torch_name: str, name: str | None = None) -> Choice:
    """Return a data type as a choice, by torch's name or another of its own."""
    return next(Choice(name or kind.name, (kind.name, *kind.short)) for kind in DATA_TYPES if kind.name == torch_name)


# --------------------------------------------------------------------------------------------------------- declarations

_BATCH: Final = "the batch"
_MODEL: Final = "the model"
_STEP: Final = "the step"
_REPORT: Final = "the report"
_CEILINGS: Final = "the device's peaks"
_RANKS: Final = "the ranks"
_FITS: Final = "will it fit"

TASK: Final = Option(
    name="task",
    group=_BATCH,
    metavar="TASK",
    help="task, which sets the model's head: {choices}, or the Hub's name for the task (default: the configuration's)",
    choices=(
        Choice(
            "sequence-classification",
            ("text-classification", "sentiment-analysis", "audio-classification", "zero-shot-classification"),
        ),
        Choice("token-classification", ("ner",)),
        Choice("causal-lm", ("text-generation",)),
        Choice("speech", ("automatic-speech-recognition",)),
        Choice("seq2seq-lm", ("text2text-generation", "translation", "summarization")),
        Choice("masked-lm", ("fill-mask",)),
        Choice("image-classification"),
        Choice("contrastive", ("zero-shot-image-classification",)),
        Choice("base", ("feature-extraction", "image-feature-extraction")),
    ),
)
DTYPE: Final = Option(
    name="dtype",
    group=_MODEL,
    metavar="TYPE",
    default="float32",
    help="data type of the weights: {choices} (default: {default})",
    choices=tuple(_data_type(name) for name in ("float32", "bfloat16", "float16", "float64")),
)
ATTENTION: Final = Option(
    name="attention",
    group=_MODEL,
    metavar="NAME",
    is_open=True,
    help="attention implementation: {choices}, ... (default: the model's own)",
    choices=(Choice("eager"), Choice("sdpa"), Choice("flash_attention_2"), Choice("flex_attention")),
)
AMP: Final = Option(
    name="amp",
    group=_STEP,
    help="automatic mixed precision with this data type",
    python=("profile",),
    recorded="amp",
    choices=(_data_type("bfloat16", "bf16"), _data_type("float16", "fp16")),
)
CHECKPOINTING: Final = Option(
    name="checkpointing",
    group=_STEP,
    metavar="KIND",
    bare="non-reentrant",
    recorded="checkpointing",
    help="recompute activations in backward instead of keeping them; KIND is non-reentrant (default) or reentrant",
    choices=(Choice("non-reentrant"), Choice("reentrant")),
)
CHECKPOINT_EVERY: Final = Option(
    name="checkpoint_every",
    group=_STEP,
    kind=Kind.NUMBER,
    minimum=1,
    metavar="N",
    recorded="checkpoint_every",
    help="checkpoint in segments of N layers, and keep only the input of each segment's first layer",
)
CHECKPOINT_LAYERS: Final = Option(
    name="checkpoint_layers",
    group=_STEP,
    kind=Kind.NUMBER,
    minimum=1,
    metavar="N",
    recorded="checkpoint_layers",
    help="checkpoint only the first N layers of each stack",
)
COMPILE: Final = Option(
    name="compile",
    group=_STEP,
    kind=Kind.SWITCH,
    default=False,
    python=("profile",),
    recorded="compiled",
    help="compile the model with torch.compile",
)
COMPILE_MODE: Final = Option(
    name="compile_mode",
    group=_STEP,
    metavar="MODE",
    python=("profile",),
    help="torch.compile mode: {choices}; with CUDA graphs, kernels can be assigned to modules only if torch annotates"
    " the graph",
    choices=tuple(Choice(name) for name in ("reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")),
)
OPTIMIZER: Final = Option(
    name="optimizer",
    group=_STEP,
    metavar="NAME",
    help="also run a step of this optimizer: {choices} (default: none; adamw in estimate, in techniques and with"
    " --for)",
    python=("profile",),
    recorded="optimizer",
    choices=tuple(Choice(optimizer.name, optimizer.aliases) for optimizer in OPTIMIZERS),
)
INFERENCE: Final = Option(
    name="inference",
    group=_STEP,
    kind=Kind.SWITCH,
    default=False,
    python=("profile",),
    recorded="inference",
    help="run forward only, in eval mode without gradients",
)
#: The texts that opanatomy brings.
SAMPLE: Final = "sample"
TEXTS: Final = Option(
    name="texts",
    group=_BATCH,
    metavar="FILE",
    bare=SAMPLE,
    help="use real texts instead of random tokens: FILE with one text per line, or FILE:COLUMN of JSON Lines, CSV or"
    " Parquet; without FILE, the sample texts that opanatomy includes (same as 'sample')",
)
PADDING: Final = Option(
    name="padding",
    group=_BATCH,
    metavar="KIND",
    help="how to pad texts: max-length (to --seq, the default), longest (to the longest in each batch), sorted (like"
    " longest, with texts sorted by length), grouped (by length, as the Trainer does)",
    choices=(
        Choice("max-length"),
        Choice("longest", ("dynamic",)),
        Choice("sorted", ("uniform", "uniform-dynamic")),
        Choice("grouped", ("group-by-length",)),
    ),
)
TOKENIZER: Final = Option(
    name="tokenizer",
    group=_BATCH,
    metavar="KIND",
    choices=(Choice("fast"), Choice("slow", ("python",))),
    help="fast, the Rust tokenizer (default if the model has one), or slow, the Python tokenizer",
)
#: Options on batching texts, without effect if there are no texts.
OF_TEXTS: Final = (PADDING, TOKENIZER)
ACCUMULATE: Final = Option(
    name="accumulate",
    group=_STEP,
    kind=Kind.NUMBER,
    default=1,
    minimum=1,
    metavar="N",
    python=("profile",),
    recorded="accumulate",
    help="gradient accumulation: split the batch into N micro-batches per update (default: {default})",
)
CLIP: Final = Option(
    name="clip",
    group=_STEP,
    kind=Kind.AMOUNT,
    metavar="NORM",
    python=("profile",),
    recorded="clip",
    help="clip gradients to this norm before the update",
)
#: Parts that can be frozen; `layers` with how many.
FROZEN_PARTS: Final = ("embeddings", "layers", "all-but-biases", "all-but-head")


def frozen_parts(text: str) -> str:
    """Return the parts of `--freeze` in one spelling: `embeddings,layers:3`; raise `ValueError` for an unknown one."""
    parts = []
    for word in filter(None, text.split(",")):
        part, colon, number = word.partition(":")
        name = choice_of(part, map(Choice, FROZEN_PARTS))
        if name is None:
            meant = tuple(each + (colon + number) * (each == "layers") for each in FROZEN_PARTS)
            raise ValueError(f"{word.strip()!r} is not a part of the model - {instead_of(word.strip(), meant)}")
        if (name == "layers") is not bool(colon) or (colon and not number.strip().isdecimal()):
            raise ValueError(
                f"{word.strip()!r} is not valid - write {name}{':N for the lowest N' if name == 'layers' else ''}"
            )
        if colon and not int(number):
            raise ValueError(f"{word.strip()!r} freezes nothing - use 1 or more")
        parts.append(f"{name}:{int(number)}" if colon else name)
    if not parts:
        raise ValueError(f"empty - use one of {', '.join(FROZEN_PARTS)}")
    if {"all-but-biases", "all-but-head"} <= set(parts):
        raise ValueError("all-but-biases and all-but-head are mutually exclusive - leave one out")
    return ",".join(dict.fromkeys(parts))


FREEZE: Final = Option(
    name="freeze",
    group=_STEP,
    metavar="PARTS",
    recorded="frozen",
    canonical=frozen_parts,
    help="parts to freeze, separated by commas: embeddings, layers:N (the lowest N), all-but-biases, all-but-head",
)
LORA: Final = Option(
    name="lora",
    group=_STEP,
    kind=Kind.NUMBER,
    minimum=1,
    metavar="RANK",
    recorded="lora",
    help="train only low-rank adapters of this rank (needs peft)",
)
FUSED_LOSS: Final = Option(
    name="fused_loss",
    group=_STEP,
    kind=Kind.SWITCH,
    default=False,
    recorded="fused_loss",
    help="compute a language model's head and cross entropy together, in chunks (needs torch 2.13 or later)",
)
GENERATE: Final = Option(
    name="generate",
    group=_STEP,
    kind=Kind.NUMBER,
    minimum=1,
    metavar="N",
    python=("profile",),
    recorded="generate",
    help="generate N new tokens per sample in each step, with prefill and decoding as phases",
)
BEAMS: Final = Option(
    name="beams",
    group=_STEP,
    kind=Kind.NUMBER,
    minimum=1,
    metavar="N",
    python=("profile",),
    recorded="beams",
    help="with --generate: beam search with N beams (default: 1, greedy)",
)
DEVICE: Final = Option(
    name="device",
    group=_STEP,
    default="auto",
    metavar="DEVICE",
    help="device to run on: auto, cpu, cuda or cuda:N (default: {default})",
)
REDACT: Final = Option(
    name="redact",
    group=_REPORT,
    kind=Kind.SWITCH,
    default=False,
    python=("profile", "analyze", "record", "TrainerCallback"),
    help="also strip paths, call stacks, argument strings, host names and user names from the report and the trace"
    " (secrets are always stripped)",
)
DEBUG: Final = Option(
    name="debug", group=_REPORT, kind=Kind.SWITCH, default=False, help="show the traceback of an error"
)
TRACE: Final = Option(
    name="trace",
    group="the trace",
    metavar="FILE",
    python=("profile", "record"),
    help="file or folder for the Chrome trace (default: MODEL.trace.json.gz; numbered if it exists)",
)
NO_TRACE: Final = Option(
    name="no_trace", group="the trace", kind=Kind.SWITCH, default=False, help="write no trace, only the report"
)
SUGGEST: Final = Option(
    name="suggest",
    group=_REPORT,
    kind=Kind.NUMBER,
    minimum=0,
    metavar="SECONDS",
    help="time budget for predicting which techniques would save most; 0 skips the predictions (default: a tenth of the"
    " run's time, at least 10 s)",
)

SUMMARIES: Final = Option(
    name="summaries",
    group=_RANKS,
    metavar="DIR",
    python=("analyze",),
    help="folder or URL (s3://...) for summaries of the ranks, so that unchanged traces are not read again (default:"
    " the user's cache folder)",
)
DASK: Final = Option(
    name="dask",
    group=_RANKS,
    metavar="ADDRESS",
    python=("analyze",),
    help="read the ranks on the workers of this Dask scheduler (tcp://host:8786), or on local ones (local)",
)
JOBS: Final = Option(
    name="jobs",
    group=_RANKS,
    kind=Kind.NUMBER,
    minimum=1,
    metavar="N",
    python=("analyze",),
    help="number of processes that read the ranks (default: one per core, fewer for small traces)",
)
PROCESSES: Final = Option(
    name="processes",
    group=_RANKS,
    kind=Kind.NUMBER,
    minimum=1,
    metavar="N",
    python=("profile",),
    help="run N processes, started by Accelerate's launcher; torchrun and accelerate launch work too",
)
DDP, FSDP2, CHECKPOINTED, HSDP, TP = "ddp", "fsdp2", "fsdp2+checkpointing", "hsdp", "tp"
#: Kinds of parallelism in which each rank has its own samples.
DATA_PARALLEL: Final = (DDP, FSDP2, CHECKPOINTED, HSDP)
PARALLEL: Final = Option(
    name="parallel",
    group=_RANKS,
    metavar="KIND",
    python=("profile",),
    help="how the processes train together: {choices} (default: ddp); tp needs a model with a tensor-parallel plan",
    choices=(
        Choice(DDP),
        Choice(FSDP2, ("fsdp",)),
        Choice(CHECKPOINTED, ("fsdp+checkpointing",)),
        Choice(HSDP),
        Choice(TP),
    ),
)
BUCKET_MB: Final = Option(
    name="bucket_mb",
    group=_RANKS,
    kind=Kind.AMOUNT,
    metavar="SIZE",
    python=("profile",),
    help="size of DDP's gradient buckets, in MiB (default: torch's 25)",
)
BUCKET_VIEW: Final = Option(
    name="bucket_view",
    group=_RANKS,
    kind=Kind.SWITCH,
    default=False,
    python=("profile",),
    help="make gradients views of DDP's buckets instead of copies",
)
#: Options of how ranks train together, without effect on one process.
OF_RANKS: Final = (PARALLEL, BUCKET_MB, BUCKET_VIEW)

#: Options that change backward or the update, without effect if a run has neither.
OF_BACKWARD: Final = (
    OPTIMIZER,
    CHECKPOINTING,
    CHECKPOINT_EVERY,
    CHECKPOINT_LAYERS,
    ACCUMULATE,
    CLIP,
    FREEZE,
    LORA,
    FUSED_LOSS,
)

#: Options of a run, one per field of `RunOptions`.
RUN: Final = (
    Option(name="model", positional="1", metavar="MODEL", default="",
           help="catalog name, Hub id, local folder, config.json, file.py:function or package.module:function"),
    Option(name="batch", group=_BATCH, kind=Kind.NUMBER, minimum=1, metavar="N",
           help="batch size in samples (default: 8)"),
    Option(name="seq", group=_BATCH, kind=Kind.NUMBER, minimum=1, metavar="N",
           help="sequence length in tokens, or in samples for raw audio (default: 512, or the model's own)"),
    TASK,
    Option(name="seed", group=_BATCH, kind=Kind.NUMBER, default=0, maximum=2**32 - 1, metavar="N",
           help="random seed for weights and batch (default: {default})"),
    TEXTS,
    PADDING,
    TOKENIZER,
    Option(name="layers", group=_MODEL, kind=Kind.NUMBER, minimum=1, metavar="N",
           help="keep only N layers of each stack"),
    Option(name="settings", flag="--set", group=_MODEL, kind=Kind.PAIRS, default=(), metavar="KEY=VALUE",
           help="set a field of the model's configuration; repeatable"),
    DTYPE,
    ATTENTION,
    Option(name="weights", group=_MODEL, default="random", metavar="KIND",
           help="random, or pretrained from the Hub or the model's folder (default: {default})",
           choices=(Choice("random"), Choice("pretrained"))),
    Option(name="hub", group=_MODEL, kind=Kind.SWITCH, default=False,
           help="get the model from the Hub even if its name is in the catalog"),
    Option(name="trust_remote_code", group=_MODEL, kind=Kind.SWITCH, default=False,
           help="run code from the model's repository"),
    DEVICE,
    AMP,
    CHECKPOINTING,
    CHECKPOINT_EVERY,
    CHECKPOINT_LAYERS,
    COMPILE,
    COMPILE_MODE,
    OPTIMIZER,
    ACCUMULATE,
    CLIP,
    FREEZE,
    LORA,
    FUSED_LOSS,
    INFERENCE,
    GENERATE,
    BEAMS,
    Option(name="memory", group=_STEP, kind=Kind.SWITCH, default=False, python=("profile", "record", "TrainerCallback"),
           help="record every allocation and free in one extra step"),
    Option(name="lines", group=_STEP, kind=Kind.SWITCH, default=False, python=("profile", "record", "TrainerCallback"),
           help="measure one extra step line by line: time, FLOPs and bytes of each line of code"),
    Option(name="check", group=_STEP, kind=Kind.SWITCH, default=False, python=("profile", "record", "TrainerCallback"),
           help="exit 3 if a check fails, that is, if an independent source disagrees with the report"),
    Option(name="steps", group=_STEP, kind=Kind.NUMBER, default=1, minimum=1, metavar="N", python=("profile", "record"),
           recorded="steps", help="steps to profile (default: {default})"),
    Option(name="warmup", group=_STEP, kind=Kind.NUMBER, metavar="N", python=("profile", "record"), recorded="warmup",
           help="unprofiled steps to run first (default: 1 on a CPU, 3 on a GPU)"),
    PARALLEL,
    BUCKET_MB,
    BUCKET_VIEW,
    REDACT,
)  # fmt: skip

SECTION: Final = Option(
    name="section",
    group=_REPORT,
    kind=Kind.TEXTS,
    metavar="NAME",
    help="show only the section with this heading in the terminal report; separate several with commas; repeatable",
)
SORT: Final = Option(
    name="sort",
    group=_REPORT,
    metavar="BY",
    default="time",
    help="sort operators by: {choices} (default: {default})",
    choices=tuple(map(Choice, ("time", "flops", "bytes", "calls", "headroom", "name"))),
)
FULL: Final = Option(
    name="full", group=_REPORT, kind=Kind.SWITCH, default=False, help="show everything (default for pipes and files)"
)
#: The parts of a report that a reader wants to see.
TOP: Final = Option(
    name="top",
    group=_REPORT,
    kind=Kind.NUMBER,
    default=8,
    minimum=1,
    metavar="N",
    help="rows to show per table (default: {default})",
)
PAGE: Final = (
    Option(
        name="brief",
        group=_REPORT,
        kind=Kind.SWITCH,
        default=False,
        help="show the first screen only (default in a terminal)",
    ),
    FULL,
    SECTION,
    TOP,
    SORT,
)

#: Options on the report's destination, and the device's limits.
REPORT: Final = (
    Option(name="output", short_flag="-o", group=_REPORT, metavar="FILE",
           help="report file; its extension sets the format (.html: interactive page, .md: for an issue or pull"
           " request, .digest.md: for agents, at most 4 kB); or a folder; - is stdout"),
    Option(name="format", short_flag="-f", group=_REPORT, metavar="FORMAT",
           help="report format: {formats} (default: from the extension of -o, else terminal)"),
    Option(name="chart", group=_REPORT, metavar="NAME",
           help="chart to draw with -o FILE.svg or FILE.png: step, advice, lanes, steps, run, classes, roofline,"
           " modules, lines, memory, segments, components, ranks; compare draws only difference, and techniques"
           " only techniques"),
    Option(name="tables", group=_REPORT, metavar="DIR",
           help="also write every table of the report to this folder, as CSV and, with pyarrow, as Parquet"),
    Option(name="force", group=_REPORT, kind=Kind.SWITCH, default=False,
           python=("profile", "record", "TrainerCallback"),
           help="overwrite existing files (otherwise naming an existing file is an error, and a default name gets a"
           " number)"),
    DEBUG,
    Option(name="peak", group=_CEILINGS, metavar="RATE",
           help="peak FLOP/s to use instead of the known peak: 312T, or bf16=312T,fp32=19.5T"),
    Option(name="bandwidth", group=_CEILINGS, metavar="RATE",
           help="memory bandwidth in bytes/s to use instead of the known bandwidth: 2.04T, 900G"),
)  # fmt: skip

LIMIT: Final = Option(
    name="limit",
    flag="--for",
    group=_FITS,
    metavar="MEMORY",
    help="don't run; predict peak memory and whether it fits in a size (80GB, 24GiB), on a GPU (H100, 4090) or on this"
    " machine (cpu); the prediction includes weights in --dtype, gradients, activations, the state of --optimizer"
    " (default: adamw), the allocator's rounding and the CUDA context; if it does not fit, suggest what would make it"
    " fit and exit 3",
)
OOM: Final = Option(
    name="oom",
    flag="--oom-report",
    group=_STEP,
    kind=Kind.SWITCH,
    default=False,
    python=("profile", "record", "TrainerCallback"),
    help="record the allocator's history; if a GPU runs out of memory, write a snapshot and a page that shows what"
    " filled its memory",
)
FIND: Final = Option(
    name="find",
    group=_FITS,
    metavar="WHAT",
    choices=(Choice("batch"), Choice("seq", ("length",)), Choice("checkpointing")),
    help="with --for: find what fits even at the upper end of the prediction: the largest batch or seq, or with"
    " checkpointing the fewest recomputed layers",
)

FAIL_IF: Final = Option(
    name="fail_if",
    group=_REPORT,
    kind=Kind.TEXTS,
    metavar="GATE",
    help="exit 3 if this condition is true, such as 'memory > 16 GB' or 'idle_share > 40%%'; repeatable",
)

#: How `run` follows a script; step options are the same as for `profile`.
SCRIPT: Final = (
    Option(name="script", positional="...", metavar="SCRIPT",
           help="the script and its arguments, or, with -m, a module and its arguments, as for python"),
    Option(name="module", flag="-m", kind=Kind.SWITCH, default=False,
           help="run SCRIPT as a module, like python -m"),
    Option(name="steps", group=_STEP, kind=Kind.NUMBER, default=3, minimum=1, maximum=1000, metavar="N",
           help="steps to record (default: {default})"),
    Option(name="after", group=_STEP, kind=Kind.NUMBER, minimum=1, metavar="N",
           help="skip the first N steps (default: 4 to 15, until the step time is steady, then 4 or 5 to prepare; 5"
           " with several ranks)"),
    Option(name="stop", group=_STEP, kind=Kind.SWITCH, default=False,
           help="end the script when its steps are recorded (exit code 0)"),
    Option(name="memory", group=_STEP, kind=Kind.SWITCH, default=False,
           help="record every allocation in one extra step, to show memory over time and what is live at its peak"),
    Option(name="lines", group=_STEP, kind=Kind.SWITCH, default=False,
           help="measure one extra step line by line: time, FLOPs and bytes of each line of code"),
    Option(name="no_check", group=_STEP, kind=Kind.SWITCH, default=False,
           help="skip the two extra steps that verify call counts"),
    Option(name="trace", group="the trace", metavar="FILE",
           help="file or folder for the Chrome trace (default: SCRIPT.trace.json.gz; numbered if it exists)"),
    REDACT,
    *REPORT,
    *PAGE,
)  # fmt: skip

PROFILE: Final = (*RUN, *REPORT, *PAGE, FAIL_IF, PROCESSES, SUGGEST, OOM, TRACE, NO_TRACE, LIMIT, FIND)
#: Options of what a run measures, without effect if nothing is run.
OF_A_RUN: Final = (
    *(option for option in RUN if option.name in ("steps", "warmup", "memory", "lines", "check")),
    *(FAIL_IF, PROCESSES, SUGGEST, OOM, TRACE, NO_TRACE),
)

TIMELINE: Final = Option(
    name="timeline",
    choices=(Choice("full"),),
    python=("analyze",),
    help="keep every event of the step in the page, however many (default: at most 100,000 kernels and 30,000 other"
    " events; above that, events are summed over intervals)",
)
ANALYZE: Final = (
    Option(name="trace", positional="+", metavar="TRACE",
           help="a torch.profiler trace, a CUDA memory snapshot or a saved JSON report; - is stdin; several traces, a"
           " folder or a zip: one trace per rank"),
    Option(name="phases", flag="--phase", kind=Kind.TEXTS, metavar="PHASE=REGEX", python=("analyze",),
           help="assign work inside ranges whose name matches REGEX to PHASE"
           f" ({', '.join(Phase)}); the innermost range counts; repeatable"),
    Option(name="at", metavar="MOMENT", python=("analyze",),
           help="moment of a memory snapshot to show: peak, end, or a time like 120ms (default: where memory ran out,"
           " else the peak)"),
    Option(name="categories", flag="--category", kind=Kind.TEXTS, metavar="NAME=REGEX", python=("analyze",),
           help="define your own component NAME of a memory snapshot: blocks allocated under a stack frame (such as"
           " 'attention.py:31 forward') that REGEX matches; repeatable"),
    Option(name="what_if", kind=Kind.TEXTS, metavar="CHANGE", python=("analyze",),
           help="predict, by replaying the trace, the step time after a change such as 'aten::mm x0.5', 'elementwise"
           " x0.8', 'synchronization 0' (no waits for the device) or 'host 0' (an infinitely fast host); repeatable:"
           " several changes are also predicted together"),
    TIMELINE,
    Option(name="check", kind=Kind.SWITCH, default=False, help="exit 3 if a check fails, that is, if an independent"
           " source disagrees with the report"),
    FAIL_IF,
    SUMMARIES,
    DASK,
    JOBS,
    REDACT,
    *REPORT,
    *PAGE,
    Option(name="annotated", flag="--trace", group="the annotated trace", metavar="FILE",
           help="file or folder for a copy of the trace with classes, phases, FLOP/s and bytes/s added"),
)  # fmt: skip

_RUNS: Final = "interleaved runs"
TIMES: Final = Option(
    name="times",
    group=_RUNS,
    kind=Kind.NUMBER,
    default=5,
    minimum=1,
    metavar="N",
    help="how many times to run each side (default: {default})",
)
TURNS_SEED: Final = Option(
    name="seed",
    group=_RUNS,
    kind=Kind.NUMBER,
    default=0,
    maximum=2**32 - 1,
    metavar="N",
    help="random seed for the order of the runs (default: {default})",
)
RUNS_FOLDER: Final = Option(name="folder", group=_RUNS, metavar="DIR", help="keep the runs' reports in this new folder")
COMPARE: Final = (
    Option(name="sides", positional="*", metavar="SIDE",
           help="a JSON report, a trace or a memory snapshot (- is stdin), or a folder with the ranks of one run or the"
           " reports of several runs"),
    Option(name="run", group=_RUNS, kind=Kind.TEXTS, metavar="CMD",
           help="run a side instead of reading it: 'profile MODEL ...', or a script that records its steps, '--"
           " [NAME=VALUE ...] python train.py ...'; runs of the sides are interleaved, each in a fresh process;"
           " repeatable"),
    TIMES,
    TURNS_SEED,
    RUNS_FOLDER,
    Option(name=FAIL_IF.name, kind=Kind.TEXTS, metavar=FAIL_IF.metavar,
           help="exit 3 if this condition is true, such as 'time > +5%%' or 'memory > 16 GB'; repeatable"),
    REDACT,
    *(option for option in REPORT if option.group != _CEILINGS),
    FULL,
    TOP,
)  # fmt: skip

_EXPERIMENT: Final = "the experiment"
_NO_SWITCH_OF_ONE = frozenset({"memory", "lines", "check", "redact", "steps", *(option.name for option in OF_RANKS)})

#: Options of an experiment with techniques: its baseline's, and its own.
TECHNIQUES: Final = (
    *(structs.replace(option, positional="?") if option.name == "model" else option
      for option in RUN if option.name not in _NO_SWITCH_OF_ONE),
    Option(name="list", group=_EXPERIMENT, kind=Kind.SWITCH, default=False,
           help="list the techniques, their options and what they do, and with MODEL which ones cannot run and why;"
           " measures nothing"),
    Option(name="only", group=_EXPERIMENT, kind=Kind.TEXTS, metavar="TECHNIQUE",
           help="try only this technique; separate several with commas; repeatable"),
    Option(name="skip", group=_EXPERIMENT, kind=Kind.TEXTS, metavar="TECHNIQUE",
           help="leave out this technique; separate several with commas; repeatable"),
    Option(name="combine", group=_EXPERIMENT, kind=Kind.TEXTS, metavar="A+B",
           help="also try these techniques together, such as amp+checkpointing; repeatable"),
    Option(name="predict_only", group=_EXPERIMENT, kind=Kind.SWITCH, default=False,
           help="run only the baseline, and rank the techniques by predicted savings"),
    Option(name="repetitions", group=_EXPERIMENT, kind=Kind.NUMBER, minimum=1, metavar="N",
           help="how many times to time each technique, interleaved (default: 3; up to 10 for steps below 0.3 s)"),
    Option(name="loss_steps", group=_EXPERIMENT, kind=Kind.NUMBER, default=8, minimum=1, metavar="N",
           help="number of training steps whose losses are compared, for techniques that change the training (default:"
           " {default})"),
    Option(name="folder", group=_EXPERIMENT, metavar="DIR",
           help="folder for the traces and reports of all runs (default: MODEL.techniques; numbered if it exists)"),
    Option(name="resume", group=_EXPERIMENT, kind=Kind.SWITCH, default=False,
           help="continue in --folder: finished runs are not repeated"),
    *(option for option in REPORT if option.group != _CEILINGS),
    FULL,
)  # fmt: skip

SWEEP: Final = Option(
    name="sweep",
    group=_FITS,
    metavar="NAME=SIZES",
    help="show one row per batch size or sequence length: batch=1..64 (doubling), batch=8,12,16 or seq=512..8192",
)
DEVICES: Final = Option(
    name="devices",
    group=_RANKS,
    kind=Kind.NUMBER,
    default=1,
    minimum=1,
    metavar="N",
    help="train on N identical devices; --batch is per device (default: {default})",
)
LINK: Final = Option(
    name="link",
    group=_RANKS,
    metavar="LINK",
    help="link between the devices: nvlink, pcie, or bytes/s per device and direction, such as 50G (default: nvlink"
    " if the device has it, else pcie)",
)
RATE: Final = Option(
    name="tokens_per_second",
    group=_REPORT,
    kind=Kind.AMOUNT,
    metavar="N",
    help="measured tokens/s of one device: show the MFU by each formula, and where this throughput lies in the"
    " predicted range",
)
ALLOW_TF32: Final = Option(
    name="tf32", group=_STEP, kind=Kind.SWITCH, default=False, help="use TF32 for float32 matmuls"
)
ESTIMATE: Final = (
    *(option for option in RUN
      if option.name not in _NO_SWITCH_OF_ONE - {each.name for each in OF_RANKS} | {"device", "warmup"}),
    Option(name="on", group=_FITS, kind=Kind.TEXTS, metavar="DEVICE",
           help="device to estimate for: H100, A100, 4090, ...; separate several with commas; repeatable; the report"
           " describes the first"),
    SWEEP,
    DEVICES,
    LINK,
    RATE,
    ALLOW_TF32,
    *(option for option in REPORT if option.group != _CEILINGS),
    *PAGE,
)  # fmt: skip

EXPLAIN: Final = (
    Option(
        name="name",
        positional="*",
        metavar="TERM",
        help="a term of the report (MFU, headroom), an operator, a kernel, a technique or a device (A100, 4090);"
        " names may be shortened",
    ),
    Option(
        name="report",
        metavar="REPORT",
        help="a saved JSON report: show its numbers too; TERM may also be any name in that report",
    ),
    Option(name="unknown", metavar="REPORT", help="list what a saved JSON report could not classify or count"),
    Option(name="debug", kind=Kind.SWITCH, default=False, help=DEBUG.help),
)

MCP: Final = (
    Option(
        name="folder",
        positional="*",
        metavar="FOLDER",
        help="folders whose traces and reports may be read (default: the current one)",
    ),
    Option(
        name="allow_run",
        kind=Kind.SWITCH,
        default=False,
        help="let agents run models (profile MODEL ...) and predict techniques",
    ),
    Option(name="debug", kind=Kind.SWITCH, default=False, help=DEBUG.help),
)

#: Printing of lists that are not reports.
_TABLE_OR_JSON: Final = Option(
    name="format",
    short_flag="-f",
    default="terminal",
    metavar="FORMAT",
    help="output format: terminal or json (default: {default})",
    choices=(Choice("terminal"), Choice("json")),
)

CATALOG: Final = (
    Option(
        name="word",
        positional="*",
        metavar="WORD",
        help="list only models with every WORD in their name, kind, class or task",
    ),
    _TABLE_OR_JSON,
    Option(name="debug", kind=Kind.SWITCH, default=False, help=DEBUG.help),
)

CEILINGS: Final = (
    Option(
        name="device",
        default="auto",
        metavar="DEVICE",
        help="device to measure: auto, cpu, cuda or cuda:N (default: {default})",
    ),
    Option(name="dtype", metavar="TYPES", help="measure only these data types, such as float32,bf16"),
    Option(
        name="peak", metavar="RATE", help="use this peak FLOP/s instead of measuring it: 312T, or bf16=312T,fp32=19.5T"
    ),
    Option(
        name="bandwidth",
        metavar="RATE",
        help="use this memory bandwidth in bytes/s instead of measuring it: 2.04T, 900G",
    ),
    _TABLE_OR_JSON,
    Option(name="refresh", kind=Kind.SWITCH, default=False, help="measure again instead of using stored results"),
    Option(name="debug", kind=Kind.SWITCH, default=False, help=DEBUG.help),
)


# Which options go together: one may leave another without effect, or need it.


def check_together(options: Any, spelled: Spelling) -> None:
    """Raise `UsageError` if one option makes another ineffective."""
    if options.inference or options.generate is not None:
        forward_only = spelled(INFERENCE, True) if options.generate is None else spelled(GENERATE, options.generate)
        for option in OF_BACKWARD:
            value = getattr(options, option.name)
            if value != option.default:
                raise UsageError(f"{forward_only} runs no backward - leave out {spelled(option, value)}")

    texts = getattr(options, TEXTS.name, None)
    if texts is not None and options.generate is not None:
        raise UsageError(
            f"{spelled(GENERATE, options.generate)} needs prompts of equal length - leave out {spelled(TEXTS, texts)}"
        )
    for option in OF_TEXTS:
        value = getattr(options, option.name, None)
        if texts is None and value is not None:
            raise UsageError(f"{spelled(option, value)} needs texts - add {spelled(TEXTS, SAMPLE)}")

    if options.generate is None and options.beams is not None:
        needed = spelled(GENERATE, 32)
        raise UsageError(f"{spelled(BEAMS, options.beams)} works only with generation - add {needed}")
    if options.generate is not None and options.compile:
        raise UsageError(
            f"{spelled(GENERATE, options.generate)} runs the uncompiled model - leave out {spelled(COMPILE, True)}"
        )

    _check_ranks(options, spelled)
    if options.compile_mode is not None and not options.compile:
        raise UsageError(f"{spelled(COMPILE_MODE, options.compile_mode)} needs {spelled(COMPILE, True)} - add it")
    if options.lora is not None and options.freeze is not None:
        raise UsageError(
            f"{spelled(LORA, options.lora)} freezes everything but the adapters - leave out"
            f" {spelled(FREEZE, options.freeze)}"
        )
    if options.clip is not None and options.optimizer is None:
        raise UsageError(
            f"{spelled(CLIP, options.clip)} clips before an optimizer update, and this run has none - add"
            f" {spelled(OPTIMIZER, OPTIMIZERS[0].name)}"
        )
    if getattr(options, NO_TRACE.name, False) and options.trace is not None:
        raise UsageError(
            f"{spelled(NO_TRACE, True)} contradicts {spelled(TRACE, options.trace)} - leave one of them out"
        )


def _check_ranks(options: Any, spelled: Spelling) -> None:
    parallel = getattr(options, PARALLEL.name, None)
    if parallel in (None, DDP):
        return
    for option in (BUCKET_MB, BUCKET_VIEW):
        if getattr(options, option.name) != option.default:
            raise UsageError(
                f"{spelled(option, getattr(options, option.name))} works only with DDP - leave out"
                f" {spelled(PARALLEL, parallel)}"
            )
    if options.generate is not None:
        raise UsageError(
            f"{spelled(GENERATE, options.generate)} runs on each rank separately - leave out"
            f" {spelled(PARALLEL, parallel)}"
        )
    if parallel == CHECKPOINTED and options.checkpointing is not None:
        raise UsageError(
            f"{spelled(PARALLEL, parallel)} recomputes activations already - leave out"
            f" {spelled(CHECKPOINTING, options.checkpointing)}"
        )


def check_fit(options: Any, spelled: Spelling) -> None:
    """Raise `UsageError` for an option that needs a run if none is run, and for `--find` without a limit."""
    if options.limit is None:
        if options.find is not None:
            raise UsageError(f"{spelled(FIND, options.find)} needs a limit - add {spelled(LIMIT, '80GB')}")
        return
    for option in OF_A_RUN:
        value = getattr(options, option.name)
        if value and value != option.default:
            given = value[0] if option.kind is Kind.TEXTS else value
            raise UsageError(f"{spelled(LIMIT, options.limit)} runs nothing - leave out {spelled(option, given)}")
    if options.find is not None and options.texts is not None:
        raise UsageError(
            f"{spelled(FIND, options.find)} needs batches of fixed length - leave out {spelled(TEXTS, options.texts)}"
        )


def check_estimate(options: Any, spelled: Spelling) -> None:
    """Raise `UsageError` for an option on several devices if there is one."""
    for option in (*OF_RANKS, LINK):
        value = getattr(options, option.name)
        if value != option.default and options.devices == 1:
            raise UsageError(f"{spelled(option, value)} needs several devices - add {spelled(DEVICES, 8)}")
    if options.parallel == HSDP:
        raise UsageError(f"{spelled(PARALLEL, HSDP)} cannot be estimated - use {spelled(PARALLEL, FSDP2)}")
    on_cpu = any("cpu" in names.casefold().split(",") for names in options.on or ())
    if on_cpu and options.devices > 1:
        raise UsageError(f"{spelled(DEVICES, options.devices)} works only for GPUs - leave it out")
    if options.sweep is not None and options.texts is not None:
        raise UsageError(
            f"{spelled(SWEEP, options.sweep)} needs batches of fixed length - leave out {spelled(TEXTS, options.texts)}"
        )
    swept = (options.sweep or "").partition("=")[0].strip()
    for option in RUN:
        if option.name == swept and getattr(options, swept) is not None:
            raise UsageError(
                f"{spelled(SWEEP, options.sweep)} sets the sizes itself - leave out"
                f" {spelled(option, getattr(options, swept))}"
            )


def check_several(options: Any, processes: int, spelled: Spelling) -> None:
    """Raise `UsageError` for options that need several processes if there is one."""
    for option in OF_RANKS:
        value = getattr(options, option.name)
        if value != option.default and processes == 1:
            raise UsageError(
                f"{spelled(option, value)} needs several processes - add {spelled(PROCESSES, 2)}, or start them with"
                " torchrun or accelerate launch"
            )
    if options.parallel == HSDP and (processes < 4 or processes % 2):
        raise UsageError(
            f"{spelled(PARALLEL, HSDP)} shards within two groups of at least two processes, which is not possible with"
            f" {processes} {'process' if processes == 1 else 'processes'} - start 4, 6, 8, ..."
        )


class RunOptions(Struct, frozen=True, kw_only=True):
    """The options of one run, validated, each choice by its canonical name; `None` lets model and device decide.

    `model` is empty if a module is given. `seq` is in tokens, for raw audio in samples. `settings` are pairs of a
    configuration key (dots reach into parts) and its value. `generate` implies `inference`, and `beams` is 1 unless
    another number is given.
    """

    model: str = ""
    batch: int | None = None
    seq: int | None = None
    task: str | None = None
    seed: int = 0
    texts: str | None = None
    padding: str | None = None
    tokenizer: str | None = None
    layers: int | None = None
    settings: tuple[tuple[str, str], ...] = ()
    dtype: str = "float32"
    attention: str | None = None
    weights: str = "random"
    hub: bool = False
    trust_remote_code: bool = False
    device: str = "auto"
    amp: str | None = None
    checkpointing: str | None = None
    checkpoint_every: int | None = None
    checkpoint_layers: int | None = None
    compile: bool = False
    compile_mode: str | None = None
    optimizer: str | None = None
    accumulate: int = 1
    clip: float | None = None
    freeze: str | None = None
    lora: int | None = None
    fused_loss: bool = False
    inference: bool = False
    generate: int | None = None
    beams: int | None = None
    memory: bool = False
    lines: bool = False
    check: bool = False
    steps: int = 1
    warmup: int | None = None
    parallel: str | None = None
    bucket_mb: float | None = None
    bucket_view: bool = False
    redact: bool = False

    def __post_init__(self) -> None:
        for option in RUN:
            given = getattr(self, option.name)
            value = checked(option, given, as_argument)
            if value is not given:
                structs.force_setattr(self, option.name, value)
        check_together(self, as_argument)
        in_part = self.checkpoint_every is not None or self.checkpoint_layers is not None
        if in_part and self.checkpointing is None:
            structs.force_setattr(self, CHECKPOINTING.name, CHECKPOINTING.bare)
        if self.generate is not None:
            structs.force_setattr(self, INFERENCE.name, True)
            structs.force_setattr(self, BEAMS.name, self.beams or 1)


def recorded(options: RunOptions) -> dict[str, Any]:
    """Return the fields of `Workload` that are options of the run, as they were given."""
    return {option.recorded: getattr(options, option.name) for option in RUN if option.recorded}
