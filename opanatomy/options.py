"""Every option, declared once: the command line, its checks, those of `opanatomy.profile`, and what a report records.

An option of a run is one `Option` here, its field of `run_options.RunOptions`, and where Python takes it a keyword of
`opanatomy.profile`; a test holds the three equal.
"""

from __future__ import annotations

from typing import Final

from opanatomy.option_values import Choice, Kind, Option, choice_of, instead_of
from opanatomy.records.data_types import DATA_TYPES
from opanatomy.records.optimizers import OPTIMIZERS


def _data_type(torch_name: str, name: str | None = None) -> Choice:
    """A data type as a choice, by torch's name or another of its own."""
    return next(Choice(name or kind.name, (kind.name, *kind.short)) for kind in DATA_TYPES if kind.name == torch_name)


# --------------------------------------------------------------------------------------------------------- declarations

_BATCH: Final = "the batch"
_MODEL: Final = "the model"
_STEP: Final = "the step"
_REPORT: Final = "the report"
_CEILINGS: Final = "the device's ceilings"
_RANKS: Final = "the ranks"

TASK: Final = Option(
    name="task", group=_BATCH, metavar="TASK",
    help="task head, instead of the configuration's architecture: {choices}, or the Hub's name for it",
    choices=(
        Choice("sequence-classification", ("text-classification", "sentiment-analysis", "audio-classification",
                                           "zero-shot-classification")),
        Choice("token-classification", ("ner",)),
        Choice("causal-lm", ("text-generation",)),
        Choice("speech", ("automatic-speech-recognition",)),
        Choice("seq2seq-lm", ("text2text-generation", "translation", "summarization")),
        Choice("masked-lm", ("fill-mask",)),
        Choice("image-classification"),
        Choice("contrastive", ("zero-shot-image-classification",)),
        Choice("base", ("feature-extraction", "image-feature-extraction")),
    ),
)  # fmt: skip
DTYPE: Final = Option(
    name="dtype", group=_MODEL, metavar="TYPE", default="float32",
    help="data type of the weights: {choices} (default: {default})",
    choices=tuple(_data_type(name) for name in ("float32", "bfloat16", "float16", "float64")),
)  # fmt: skip
ATTENTION: Final = Option(
    name="attention", group=_MODEL, metavar="NAME", is_open=True,
    help="implementation of attention: {choices}, ... (default: the model's own)",
    choices=(Choice("eager"), Choice("sdpa"), Choice("flash_attention_2"), Choice("flex_attention")),
)  # fmt: skip
AMP: Final = Option(
    name="amp", group=_STEP, help="automatic mixed precision in this data type", python=("profile",), recorded="amp",
    choices=(_data_type("bfloat16", "bf16"), _data_type("float16", "fp16")),
)  # fmt: skip
CHECKPOINTING: Final = Option(
    name="checkpointing", group=_STEP, metavar="KIND", bare="non-reentrant", recorded="checkpointing",
    help="recompute activations in backward; KIND is non-reentrant (the default) or reentrant",
    choices=(Choice("non-reentrant"), Choice("reentrant")),
)  # fmt: skip
CHECKPOINT_EVERY: Final = Option(
    name="checkpoint_every", group=_STEP, kind=Kind.NUMBER, minimum=1, metavar="N", recorded="checkpoint_every",
    help="recompute N layers at a time, of which only the first one's input is kept",
)  # fmt: skip
COMPILE: Final = Option(
    name="compile", group=_STEP, kind=Kind.SWITCH, default=False, python=("profile",), recorded="compiled",
    help="torch.compile the model",
)  # fmt: skip
OPTIMIZER: Final = Option(
    name="optimizer", group=_STEP, metavar="NAME", help="also step an optimizer: {choices}",
    python=("profile",), recorded="optimizer",
    choices=tuple(Choice(optimizer.name, optimizer.aliases) for optimizer in OPTIMIZERS),
)  # fmt: skip
INFERENCE: Final = Option(
    name="inference", group=_STEP, kind=Kind.SWITCH, default=False, python=("profile",), recorded="inference",
    help="forward only, in eval mode without gradients",
)  # fmt: skip
#: The texts that opanatomy brings.
SAMPLE: Final = "sample"
TEXTS: Final = Option(
    name="texts", group=_BATCH, metavar="FILE", bare=SAMPLE,
    help="run on real texts, not random tokens: FILE of lines, or FILE:COLUMN of JSON Lines, CSV or Parquet; without"
    " FILE the sample that comes with opanatomy (sample)",
)  # fmt: skip
PADDING: Final = Option(
    name="padding", group=_BATCH, metavar="KIND",
    help="how texts are padded: max-length (to --seq, the default), longest (to the longest of each batch), sorted"
    " (that, texts sorted by length), grouped (by length, as the Trainer does)",
    choices=(
        Choice("max-length"), Choice("longest", ("dynamic",)), Choice("sorted", ("uniform", "uniform-dynamic")),
        Choice("grouped", ("group-by-length",)),
    ),
)  # fmt: skip
TOKENIZER: Final = Option(
    name="tokenizer", group=_BATCH, metavar="KIND", choices=(Choice("fast"), Choice("slow", ("python",))),
    help="fast: the tokenizer in Rust, the default where there is one; slow: the one in Python",
)  # fmt: skip
#: What says how texts become batches, and nothing without any.
OF_TEXTS: Final = (PADDING, TOKENIZER)
ACCUMULATE: Final = Option(
    name="accumulate", group=_STEP, kind=Kind.NUMBER, default=1, minimum=1, metavar="N", python=("profile",),
    recorded="accumulate", help="gradient accumulation: the batch in N micro-batches, one update (default: {default})",
)  # fmt: skip
CLIP: Final = Option(
    name="clip", group=_STEP, kind=Kind.AMOUNT, metavar="NORM", python=("profile",), recorded="clip",
    help="scale gradients down to this norm, before the update",
)  # fmt: skip
#: What can be frozen; `layers` with how many.
FROZEN_PARTS: Final = ("embeddings", "layers", "all-but-biases", "all-but-head")


def frozen_parts(text: str) -> str:
    """The parts of `--freeze` in one spelling: `embeddings,layers:3`; `ValueError` where one is none."""
    parts = []
    for word in filter(None, text.split(",")):
        part, colon, number = word.partition(":")
        name = choice_of(part, map(Choice, FROZEN_PARTS))
        if name is None:
            raise ValueError(f"{word.strip()!r} is not a part - {instead_of(part, FROZEN_PARTS)}")
        if (name == "layers") is not bool(colon) or (colon and not number.strip().isdecimal()):
            raise ValueError(f"{word.strip()!r} is not a part - {name}{':N, the lowest N' if name == 'layers' else ''}")
        if colon and not int(number):
            raise ValueError(f"{word.strip()!r} freezes nothing - give 1 or more")
        parts.append(f"{name}:{int(number)}" if colon else name)
    if not parts:
        raise ValueError(f"no part is named - one of {', '.join(FROZEN_PARTS)}")
    if {"all-but-biases", "all-but-head"} <= set(parts):
        raise ValueError("all-but-biases and all-but-head exclude each other - leave one out")
    return ",".join(dict.fromkeys(parts))


FREEZE: Final = Option(
    name="freeze", group=_STEP, metavar="PARTS", recorded="frozen", canonical=frozen_parts,
    help="train only a part: freeze these, with commas between them, of embeddings, layers:N (the lowest N),"
    " all-but-biases, all-but-head",
)  # fmt: skip
LORA: Final = Option(
    name="lora", group=_STEP, kind=Kind.NUMBER, minimum=1, metavar="RANK", recorded="lora",
    help="train low-rank adapters alone (peft)",
)  # fmt: skip
FUSED_LOSS: Final = Option(
    name="fused_loss", group=_STEP, kind=Kind.SWITCH, default=False, recorded="fused_loss",
    help="compute head and cross entropy of a language model together, in chunks (torch 2.13)",
)  # fmt: skip
GENERATE: Final = Option(
    name="generate", group=_STEP, kind=Kind.NUMBER, minimum=1, metavar="N", python=("profile",), recorded="generate",
    help="the step is a generation of N new tokens for each sample, with prefill and decoding as phases",
)  # fmt: skip
BEAMS: Final = Option(
    name="beams", group=_STEP, kind=Kind.NUMBER, minimum=1, metavar="N", python=("profile",), recorded="beams",
    help="with --generate: beam search with N beams (default: 1, greedy)",
)  # fmt: skip
DEVICE: Final = Option(
    name="device", group=_STEP, default="auto", metavar="DEVICE", help="auto, cpu, cuda or cuda:N (default: {default})",
)  # fmt: skip
REDACT: Final = Option(
    name="redact", group=_REPORT, kind=Kind.SWITCH, default=False, python=("profile", "analyze", "record"),
    help="leave paths, call stacks, argument strings, hosts and users out of the report and the trace",
)  # fmt: skip
DEBUG: Final = Option(
    name="debug", group=_REPORT, kind=Kind.SWITCH, default=False, help="show the traceback of an error",
)  # fmt: skip
TRACE: Final = Option(
    name="trace", group="the trace", metavar="FILE", python=("profile", "record"),
    help="file or folder for the Chrome trace (default: MODEL.trace.json.gz, counting up)",
)  # fmt: skip
NO_TRACE: Final = Option(
    name="no_trace", group="the trace", kind=Kind.SWITCH, default=False, help="keep no trace, only the report",
)  # fmt: skip
SUGGEST: Final = Option(
    name="suggest", group=_REPORT, kind=Kind.NUMBER, default=10, minimum=0, metavar="SECONDS",
    help="time to predict which techniques would save most; 0 for none (default: {default})",
)  # fmt: skip

SUMMARIES: Final = Option(
    name="summaries", group=_RANKS, metavar="DIR", python=("analyze",),
    help="folder or address that keeps a summary of each rank, so that unchanged traces are not read again"
    " (default: the user's cache folder)",
)  # fmt: skip
DASK: Final = Option(
    name="dask", group=_RANKS, metavar="ADDRESS", python=("analyze",),
    help="let the workers of this Dask scheduler (tcp://host:8786) read the ranks, or local ones",
)  # fmt: skip
JOBS: Final = Option(
    name="jobs", group=_RANKS, kind=Kind.NUMBER, minimum=1, metavar="N", python=("analyze",),
    help="processes that read the ranks (default: one a core, none where there is little to read)",
)  # fmt: skip
PROCESSES: Final = Option(
    name="processes", group=_RANKS, kind=Kind.NUMBER, minimum=1, metavar="N", python=("profile",),
    help="run on N processes, started by Accelerate's launcher; torchrun and accelerate launch start them too",
)  # fmt: skip
DDP, FSDP2, CHECKPOINTED, HSDP, TP = "ddp", "fsdp2", "fsdp2+checkpointing", "hsdp", "tp"
PARALLEL: Final = Option(
    name="parallel", group=_RANKS, metavar="KIND", python=("profile",),
    help="how several processes share the training: {choices} (default: ddp); tp needs a model with a plan for it",
    choices=(
        Choice(DDP), Choice(FSDP2, ("fsdp",)), Choice(CHECKPOINTED, ("fsdp+checkpointing",)), Choice(HSDP),
        Choice(TP),
    ),
)  # fmt: skip
BUCKET_MB: Final = Option(
    name="bucket_mb", group=_RANKS, kind=Kind.AMOUNT, metavar="SIZE", python=("profile",),
    help="gradients that DDP reduces together, in MiB (default: torch's 25)",
)  # fmt: skip
BUCKET_VIEW: Final = Option(
    name="bucket_view", group=_RANKS, kind=Kind.SWITCH, default=False, python=("profile",),
    help="gradients are views of DDP's buckets, not copies",
)  # fmt: skip
#: What says how ranks train together, and nothing of one process.
OF_RANKS: Final = (PARALLEL, BUCKET_MB, BUCKET_VIEW)

#: What changes backward or the update, and nothing without them.
OF_BACKWARD: Final = (OPTIMIZER, CHECKPOINTING, CHECKPOINT_EVERY, ACCUMULATE, CLIP, FREEZE, LORA, FUSED_LOSS)

#: What a run is made of, field by field that of `RunOptions`.
RUN: Final = (
    Option(name="model", positional="1", metavar="MODEL", default="",
           help="catalog name, Hub id, local folder, config.json, file.py:function or package.module:function"),
    Option(name="batch", group=_BATCH, kind=Kind.NUMBER, minimum=1, metavar="N",
           help="samples in the batch (default: 8)"),
    Option(name="seq", group=_BATCH, kind=Kind.NUMBER, minimum=1, metavar="N",
           help="sequence length (default: 512, or the model's own)"),
    TASK,
    Option(name="seed", group=_BATCH, kind=Kind.NUMBER, default=0, maximum=2**32 - 1, metavar="N",
           help="seed of weights and batch (default: {default})"),
    TEXTS,
    PADDING,
    TOKENIZER,
    Option(name="layers", group=_MODEL, kind=Kind.NUMBER, minimum=1, metavar="N",
           help="keep N layers of each stack"),
    Option(name="settings", flag="--set", group=_MODEL, kind=Kind.PAIRS, default=(), metavar="KEY=VALUE",
           help="change a configuration field (repeatable)"),
    DTYPE,
    ATTENTION,
    Option(name="weights", group=_MODEL, default="random", metavar="KIND",
           help="random, or pretrained: those on the Hub or in the folder (default: {default})",
           choices=(Choice("random"), Choice("pretrained"))),
    Option(name="hub", group=_MODEL, kind=Kind.SWITCH, default=False,
           help="ask the Hub even for a name in the catalog"),
    Option(name="trust_remote_code", group=_MODEL, kind=Kind.SWITCH, default=False,
           help="run code from the model's repository"),
    DEVICE,
    AMP,
    CHECKPOINTING,
    CHECKPOINT_EVERY,
    COMPILE,
    OPTIMIZER,
    ACCUMULATE,
    CLIP,
    FREEZE,
    LORA,
    FUSED_LOSS,
    INFERENCE,
    GENERATE,
    BEAMS,
    Option(name="memory", group=_STEP, kind=Kind.SWITCH, default=False, python=("profile", "record"),
           help="trace every allocation and free of one more step"),
    Option(name="check", group=_STEP, kind=Kind.SWITCH, default=False, python=("profile", "record"),
           help="exit 3 if a second source disagrees"),
    Option(name="steps", group=_STEP, kind=Kind.NUMBER, default=1, minimum=1, metavar="N", python=("profile", "record"),
           recorded="steps", help="profiled steps (default: {default})"),
    Option(name="warmup", group=_STEP, kind=Kind.NUMBER, metavar="N", python=("profile", "record"), recorded="warmup",
           help="unprofiled steps before them (default: 1 on the CPU, 3 on a GPU)"),
    PARALLEL,
    BUCKET_MB,
    BUCKET_VIEW,
    REDACT,
)  # fmt: skip

SECTION: Final = Option(
    name="section", group=_REPORT, kind=Kind.TEXTS, metavar="NAME",
    help="only this section of the terminal report, by its heading, or several with commas; repeatable",
)  # fmt: skip
SORT: Final = Option(
    name="sort", group=_REPORT, metavar="BY", default="time",
    help="order of the operators: {choices} (default: {default})",
    choices=tuple(map(Choice, ("time", "flops", "bytes", "calls", "headroom", "name"))),
)  # fmt: skip
#: What of a report readers want to see.
TOP: Final = Option(
    name="top", group=_REPORT, kind=Kind.NUMBER, default=8, minimum=1, metavar="N",
    help="operators, kernels and other rows that are listed by name (default: {default})",
)  # fmt: skip
PAGE: Final = (
    Option(
        name="brief", group=_REPORT, kind=Kind.SWITCH, default=False,
        help="only the first screen of the report, as a terminal shows it anyway",
    ),
    Option(
        name="full", group=_REPORT, kind=Kind.SWITCH, default=False,
        help="the whole report, as pipes and files have it anyway",
    ),
    SECTION,
    TOP,
    SORT,
)  # fmt: skip

#: Where a report goes, and what it takes for the device's limits.
REPORT: Final = (
    Option(name="output", short_flag="-o", group=_REPORT, metavar="FILE",
           help="report file, format by its ending (.md for an issue or a pull request, .digest.md for agents: at most"
           " 4 kB); or a folder; - is stdout"),
    Option(name="format", short_flag="-f", group=_REPORT, metavar="FORMAT",
           help="report format: {formats} (default: by the ending of -o, else terminal)"),
    Option(name="force", group=_REPORT, kind=Kind.SWITCH, default=False, python=("profile", "record"),
           help="overwrite existing files"),
    DEBUG,
    Option(name="peak", group=_CEILINGS, metavar="RATE",
           help="peak FLOP/s, instead of the known one: 312T, or bf16=312T,fp32=19.5T"),
    Option(name="bandwidth", group=_CEILINGS, metavar="RATE",
           help="bandwidth in bytes/s, instead of the known one: 2.04T, 900G"),
)  # fmt: skip

#: On one report.
FAIL_IF: Final = Option(
    name="fail_if", group=_REPORT, kind=Kind.TEXTS, metavar="GATE",
    help="exit 3 if this holds, such as 'memory > 16 GB' or 'idle_share > 40%%'; repeatable",
)  # fmt: skip

RUNS: Final = Option(
    name="runs", group=_REPORT, kind=Kind.NUMBER, minimum=1, metavar="N",
    help="N runs, each in a fresh process, their JSON reports in the folder of -o (run-1.report.json, counting up);"
    " the report, and what gates judge, is that of the median run, of an even N the slower of the two in the middle",
)  # fmt: skip

PROFILE: Final = (*RUN, *REPORT, *PAGE, FAIL_IF, RUNS, PROCESSES, SUGGEST, TRACE, NO_TRACE)

ANALYZE: Final = (
    Option(name="trace", positional="+", metavar="TRACE",
           help="a trace, - for stdin; several, a folder or a zip: one for each rank"),
    Option(name="phases", flag="--phase", kind=Kind.TEXTS, metavar="PHASE=REGEX", python=("analyze",),
           help="what runs in a range of the trace whose name matches REGEX is of this phase (forward, backward,"
           " recompute, optimizer, prefill, decoding, other); the innermost range counts; repeatable"),
    Option(name="check", kind=Kind.SWITCH, default=False, help="exit 3 if a second source disagrees"),
    FAIL_IF,
    SUMMARIES,
    DASK,
    JOBS,
    REDACT,
    *REPORT,
    *PAGE,
    Option(name="annotated", flag="--trace", group="the annotated trace", metavar="FILE",
           help="file or folder to write the trace back to, with classes, phases and rates in it"),
)  # fmt: skip

#: Sides next to each other.
COMPARE: Final = (
    Option(name="sides", positional="+", metavar="SIDE",
           help="a report (-f json) or a trace, - for stdin; a folder of a run's ranks, or of the reports of several"
           " runs"),
    Option(name=FAIL_IF.name, kind=Kind.TEXTS, metavar=FAIL_IF.metavar,
           help="exit 3 if this holds, such as 'time > +5%%' or 'memory > 16 GB'; repeatable"),
    REDACT,
    *(option for option in REPORT if option.group != _CEILINGS),
    TOP,
)  # fmt: skip

_EXPERIMENT: Final = "the experiment"
_NO_SWITCH_OF_ONE = frozenset({"memory", "check", "redact", "steps", *(option.name for option in OF_RANKS)})

#: An experiment with techniques: the options of its baseline, and its own.
TECHNIQUES: Final = (
    *(option for option in RUN if option.name not in _NO_SWITCH_OF_ONE),
    Option(name="list", group=_EXPERIMENT, kind=Kind.SWITCH, default=False,
           help="say what each technique does, which option switches it on, and why it cannot run here; run nothing"),
    Option(name="only", group=_EXPERIMENT, kind=Kind.TEXTS, metavar="TECHNIQUE",
           help="only this technique, or several with commas; repeatable"),
    Option(name="skip", group=_EXPERIMENT, kind=Kind.TEXTS, metavar="TECHNIQUE",
           help="without this technique, or several with commas; repeatable"),
    Option(name="combine", group=_EXPERIMENT, kind=Kind.TEXTS, metavar="A+B",
           help="also these techniques together, such as amp+checkpointing; repeatable"),
    Option(name="predict_only", group=_EXPERIMENT, kind=Kind.SWITCH, default=False,
           help="run only the baseline, and rank the techniques by what they would save"),
    Option(name="repetitions", group=_EXPERIMENT, kind=Kind.NUMBER, default=3, minimum=1, metavar="N",
           help="how many times each is timed, in turn (default: {default})"),
    Option(name="loss_steps", group=_EXPERIMENT, kind=Kind.NUMBER, default=8, minimum=1, metavar="N",
           help="steps over which the losses of techniques that change them are compared (default: {default})"),
    Option(name="folder", group=_EXPERIMENT, metavar="DIR",
           help="folder for traces and reports of all runs (default: MODEL.techniques, counting up)"),
    Option(name="resume", group=_EXPERIMENT, kind=Kind.SWITCH, default=False,
           help="continue in the folder: runs already there are not repeated"),
    *(option for option in REPORT if option.group != _CEILINGS),
)  # fmt: skip

EXPLAIN: Final = (
    Option(name="name", positional="*", metavar="TERM",
           help="a line of the report (MFU, headroom), an operator, a kernel or a device; names may be shortened"),
    Option(name="report", metavar="REPORT", help="a JSON report: work its figures out; TERM may be any name in it"),
    Option(name="unknown", metavar="REPORT", help="list what a JSON report could not classify or count"),
    Option(name="debug", kind=Kind.SWITCH, default=False, help=DEBUG.help),
)  # fmt: skip

#: How what is no report is printed.
_TABLE_OR_JSON: Final = Option(
    name="format", short_flag="-f", default="terminal", metavar="FORMAT", help="terminal or json",
    choices=(Choice("terminal"), Choice("json")),
)  # fmt: skip

CATALOG: Final = (
    Option(name="word", positional="*", metavar="WORD", help="only models with this in their name, kind or task"),
    _TABLE_OR_JSON,
    Option(name="debug", kind=Kind.SWITCH, default=False, help=DEBUG.help),
)  # fmt: skip

CEILINGS: Final = (
    Option(name="device", default="auto", metavar="DEVICE", help=DEVICE.help),
    Option(name="dtype", metavar="TYPES", help="only these data types, such as float32,bf16"),
    Option(name="peak", metavar="RATE", help="use this as the peak: 312T, or bf16=312T,fp32=19.5T"),
    Option(name="bandwidth", metavar="RATE", help="use this as the bandwidth: 2.04T, 900G"),
    _TABLE_OR_JSON,
    Option(name="refresh", kind=Kind.SWITCH, default=False, help="measure again what was kept"),
    Option(name="debug", kind=Kind.SWITCH, default=False, help=DEBUG.help),
)  # fmt: skip
