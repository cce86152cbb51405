"""List the techniques: for each its switch (options of a run), what it does, and why it cannot run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from textwrap import wrap
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from opanatomy.errors import UsageError
from opanatomy.options import RUN, RunOptions, instead_of
from opanatomy.predict import workers
from opanatomy.predict.workers import run_job
from opanatomy.records.taxonomy import BY_NAME, ITEM_SIZE

Switch = Callable[["Situation"], Mapping[str, Any]]
#: The name of the baseline in tables and files.
BASELINE: Final = "baseline"
#: Layers of a segment. Not sqrt(n): a layer of BERT keeps 23 times its input, all that a segment keeps, one of GPT-2 35
#: times, a thin one 8 times (docs/techniques.md); of several layers two need least up to 6 times as many layers.
_SEGMENT: Final = 2


class Situation(Struct, frozen=True, kw_only=True):
    """What a technique applies to: the options of the baseline, and what its capture says of the model."""

    options: RunOptions
    batch: int
    #: The layers of the longest stack of like layers, and those that freezing counts (of an encoder and a decoder all).
    layers: int | None
    freezable_layers: int | None = None
    #: The implementation of attention in use.
    attention: str | None
    on_cpu: bool


class Technique(Struct, frozen=True, kw_only=True):
    """One technique: `switch` returns the options that it changes, `impossible` why it cannot run here."""

    name: str
    title: str
    what: str
    switch: Switch
    impossible: Callable[[Situation], str | None] = lambda situation: None
    #: Why it is left out unless named.
    unless_named: Callable[[Situation], str | None] = lambda situation: None
    #: Whether the training must stay the same, up to rounding.
    keeps_result: bool = False


def _sets(**changes: Any) -> Switch:
    return lambda situation: changes


def _needs(package: str, extra: str | None = None) -> Callable[[Situation], str | None]:
    def impossible(situation: Situation) -> str | None:
        if find_spec(package) is None:
            return f"needs {package}, which is not installed - pip install 'opanatomy[{extra or package}]'"
        return None

    return impossible


def _first(*reasons: Callable[[Situation], str | None]) -> Callable[[Situation], str | None]:
    return lambda situation: next((text for reason in reasons if (text := reason(situation))), None)


def _trains(situation: Situation) -> str | None:
    return "the baseline is inference: there is no backward" if situation.options.inference else None


def _splits(situation: Situation) -> str | None:
    if situation.batch < 2:
        return "a batch of 1 cannot be split: give --batch 2 or more"
    return _trains(situation)


def _micro_batches(situation: Situation) -> Mapping[str, Any]:
    return {"accumulate": next(parts for parts in (4, 3, 2, situation.batch) if situation.batch % parts == 0)}


def _lower_layers(situation: Situation) -> Mapping[str, Any]:
    return {"freeze": f"embeddings,layers:{max((situation.freezable_layers or situation.layers or 1) * 3 // 4, 1)}"}


def _has_layers(situation: Situation) -> str | None:
    return None if situation.layers else "no stack of like layers is known of the model"


def _has_two_layers(situation: Situation) -> str | None:
    return "a model of one layer has no segment of several" if situation.layers == 1 else _has_layers(situation)


def _compiles(situation: Situation) -> str | None:
    return "torch.compile has no compiler on this system" if sys.platform == "win32" else None


def _has_wide_weights(situation: Situation) -> str | None:
    return (
        None if ITEM_SIZE[situation.options.dtype] > ITEM_SIZE["bfloat16"] else "the baseline's take two bytes already"
    )


def _attention(name: str, title: str, what: str) -> Technique:
    def impossible(situation: Situation) -> str | None:
        if situation.attention is None:
            return "the model has no attention of the library's"
        return "the baseline has it" if situation.attention == name else None

    return Technique(
        name=name, title=title, what=what, switch=_sets(attention=name), impossible=impossible, keeps_result=True
    )


def _has_texts(situation: Situation) -> str | None:
    return None if situation.options.texts else "needs texts: give --texts FILE, or --texts for the sample"


def _padding(name: str, padding: str, what: str) -> Technique:
    def impossible(situation: Situation) -> str | None:
        return "the baseline has it" if situation.options.padding == padding else _has_texts(situation)

    return Technique(
        name=name, title=f"padding {padding}", what=what, switch=_sets(padding=padding), impossible=impossible
    )


def _left_to_a_gpu(situation: Situation) -> str | None:
    if situation.on_cpu:
        return "left to a GPU: without float16 arithmetic a step takes many times as long - name it to run it"
    return None


def _optimizer(name: str, *, keeps_result: bool = False, what: str) -> Technique:
    optimizer = BY_NAME[name]
    reasons = [_trains, *([_needs(optimizer.package)] if optimizer.package else [])]
    return Technique(
        name=name,
        title=optimizer.label,
        what=what,
        switch=_sets(optimizer=name),
        impossible=_first(*reasons),
        keeps_result=keeps_result,
    )


TECHNIQUES: Final[tuple[Technique, ...]] = (
    Technique(
        name="accumulation", title="gradient accumulation", switch=_micro_batches, impossible=_splits,
        keeps_result=True, what="the batch in parts, one update: activations of one part at a time",
    ),
    Technique(
        name="checkpointing", title="activation checkpointing", switch=_sets(checkpointing="non-reentrant"),
        impossible=_trains, keeps_result=True, what="keeps the input of each layer and runs it again in backward",
    ),
    Technique(
        name="checkpointing-reentrant", title="checkpointing, reentrant", switch=_sets(checkpointing="reentrant"),
        impossible=_trains, keeps_result=True, what="the older kind, which runs the layer inside an autograd function",
    ),
    Technique(
        name="checkpointing-segments", title="checkpointing by segments",
        switch=_sets(checkpointing="non-reentrant", checkpoint_every=_SEGMENT),
        impossible=_first(_trains, _has_two_layers), keeps_result=True,
        what="keeps the input of every second layer only and runs two again at once: less memory in deep models",
    ),
    Technique(
        name="amp", title="mixed precision, bf16", switch=_sets(amp="bf16"),
        what="products in bfloat16 by autocast, weights and optimizer in float32",
    ),
    Technique(
        name="amp-fp16", title="mixed precision, fp16", switch=_sets(amp="fp16"), unless_named=_left_to_a_gpu,
        what="products in float16, the loss scaled so that small gradients survive",
    ),
    Technique(
        name="bf16-weights", title="weights in bfloat16", switch=_sets(dtype="bfloat16"),
        impossible=_has_wide_weights, what="weights, gradients and state in bfloat16: half of all, and fewer digits",
    ),
    _attention(
        "sdpa", "fused attention",
        "torch's scaled_dot_product_attention: no matrix of probabilities where its kernel is fused",
    ),
    _attention(
        "eager", "attention written out", "attention as products and a softmax: the matrix of probabilities is kept"
    ),
    Technique(
        name="fused-loss", title="fused loss", switch=_sets(fused_loss=True), impossible=_trains, keeps_result=True,
        what="head and cross entropy in chunks: the logits are never whole",
    ),
    Technique(
        name="freeze-embeddings", title="embeddings frozen", switch=_sets(freeze="embeddings"), impossible=_trains,
        what="no gradients and no state of the embeddings",
    ),
    Technique(
        name="freeze-lower", title="lower layers frozen", switch=_lower_layers,
        impossible=_first(_trains, _has_layers), what="embeddings and three quarters of the layers are not trained",
    ),
    Technique(
        name="freeze-all-but-biases", title="biases only", switch=_sets(freeze="all-but-biases"), impossible=_trains,
        what="trains the biases alone (BitFit)",
    ),
    Technique(
        name="freeze-all-but-head", title="head only", switch=_sets(freeze="all-but-head"), impossible=_trains,
        what="trains what stands on top of the base model",
    ),
    Technique(
        name="lora", title="low-rank adapters", switch=_sets(lora=8), impossible=_first(_trains, _needs("peft")),
        what="trains two thin matrices next to each attention projection",
    ),
    Technique(
        name="lora-checkpointing", title="adapters and checkpointing",
        switch=_sets(lora=8, checkpointing="non-reentrant"), impossible=_first(_trains, _needs("peft")),
        what="adapters whose layers run again in backward",
    ),
    _optimizer("adamw", keeps_result=True, what="all of an update in one kernel for each list of tensors"),
    _optimizer("adamw-foreach", keeps_result=True, what="one call of each operation for the list of all tensors"),
    _optimizer("adamw-loop", keeps_result=True, what="a loop over the tensors in Python"),
    _optimizer("adamw8bit", what="both moments in 8 bits by blocks (bitsandbytes)"),
    _optimizer("adamw8bit-embeddings32", what="8 bits but for the embeddings, which bitsandbytes advises"),
    _optimizer("adamw8bit-torchao", what="both moments in 8 bits by blocks (torchao)"),
    _optimizer("sgd", what="one moment: half the state of AdamW"),
    _optimizer("adafactor", what="the second moment as a row and a column of each matrix"),
    _padding("dynamic-padding", "longest", "pads each batch to its longest text"),
    _padding("sorted-padding", "sorted", "the same, the texts sorted by length: uniform dynamic padding"),
    _padding("grouped-padding", "grouped", "the same, texts of like length grouped as the Trainer does"),
    Technique(
        name="slow-tokenizer", title="tokenizer in Python", switch=_sets(tokenizer="slow"), impossible=_has_texts,
        keeps_result=True, what="the tokenizer in Python instead of that in Rust",
    ),
    Technique(
        name="compile", title="torch.compile", switch=_sets(compile=True), impossible=_compiles, keeps_result=True,
        what="element-wise work fused into few kernels",
    ),
)  # fmt: skip

TECHNIQUE: Final[dict[str, Technique]] = {technique.name: technique for technique in TECHNIQUES}


def option_text(changes: Mapping[str, Any]) -> str:
    """Return the changes as they are typed after `opanatomy profile MODEL`."""
    options = {option.name: option for option in RUN}
    words = []
    for name, value in changes.items():
        flag = options[name].flags[-1]
        words.append(flag if value is True or value == options[name].bare else f"{flag} {value}")
    return " ".join(words)


# The runs of an experiment: the baseline and each requested technique, with its options.


#: Joins the techniques of a combination.
AND = "+"


class Variant(Struct, frozen=True, kw_only=True):
    """One run: its options, or why it cannot run (`impossible`)."""

    name: str
    title: str
    what: str
    options: RunOptions
    changes: dict[str, Any] = field(default_factory=dict)
    keeps_result: bool = True
    impossible: str | None = None

    @property
    def option(self) -> str:
        """Return the option to type for it."""
        return option_text(self.changes)


def variants_of(
    situation: Situation, *, only: Sequence[str] = (), skip: Sequence[str] = (), combine: Sequence[str] = ()
) -> tuple[Variant, ...]:
    """Return the baseline, then the techniques; raise `UsageError` for unknown names.

    A technique that the baseline already has, or that is meant for another device, is left out unless named.
    """
    chosen = _techniques(only, "--only") or list(TECHNIQUES)
    skipped = _techniques(skip, "--skip")
    baseline = Variant(name=BASELINE, title="as it is", what="the run that was given", options=situation.options)
    singles = [
        _variant(technique.name, (technique,), situation, named=bool(only))
        for technique in chosen
        if technique not in skipped
    ]
    kept = [variant for variant in singles if only or variant.impossible or variant.options != situation.options]
    for text in combine:
        _check_combination(text, situation)
    combined = [
        _variant(text, tuple(_technique(name, "--combine") for name in text.split(AND)), situation) for text in combine
    ]
    return (baseline, *kept, *combined)


def _techniques(texts: Sequence[str], flag: str) -> list[Technique]:
    """Return the techniques that an option names; each text may have several with commas between."""
    return [_technique(name, flag) for text in texts for name in text.split(",")]


def _technique(name: str, flag: str) -> Technique:
    known = TECHNIQUE.get(name.strip().lower())
    if known is None:
        raise UsageError(f"{flag} {name}: no technique - {instead_of(name, TECHNIQUE)}")
    return known


def _check_combination(text: str, situation: Situation) -> None:
    """Raise `UsageError` if two techniques of a combination set one option to different values."""
    values: dict[str, Any] = {}
    for technique in (_technique(name, "--combine") for name in text.split(AND)):
        for option, value in technique.switch(situation).items():
            if values.setdefault(option, value) != value:
                wanted = f"{option_text({option: values[option]})} and {option_text({option: value})}"
                raise UsageError(f"--combine {text}: {wanted} exclude each other - leave one of them out")


def _variant(name: str, techniques: Sequence[Technique], situation: Situation, *, named: bool = True) -> Variant:
    """Return the run with all of these switched on; `named` if the user named them."""
    impossible = next((reason for technique in techniques if (reason := technique.impossible(situation))), None)
    if impossible is None and not named:
        impossible = next((reason for technique in techniques if (reason := technique.unless_named(situation))), None)
    changes: dict[str, Any] = {}
    options = situation.options
    if impossible is None:
        for technique in techniques:
            changes |= technique.switch(situation)
        try:
            options = replace(options, **changes)
        except UsageError as error:
            impossible = str(error)
    return Variant(
        name=name,
        title=" and ".join(technique.title for technique in techniques),
        what="; ".join(technique.what for technique in techniques),
        options=options,
        changes=changes,
        keeps_result=all(technique.keeps_result for technique in techniques),
        impossible=impossible,
    )


# The list of techniques: what each does, its option, and why it cannot run here.


#: Cells of the longest name.
_NAME_WIDTH: Final = max(map(len, TECHNIQUE))


def listing_of(options: RunOptions, width: int, *, only: Sequence[str] = (), skip: Sequence[str] = ()) -> str:
    """Return each technique's name and option, then what it does, in lines of at most `width` cells."""
    blocks = []
    for variant in variants_of(situation_of(options), only=only, skip=skip)[1:]:
        does = f"cannot run here: {variant.impossible}" if variant.impossible else variant.what
        name = f"{variant.name:<{_NAME_WIDTH}} {variant.option}".rstrip()
        lines = [name] if len(name) <= width else [variant.name, *wrap(variant.option, width, initial_indent="  ")]
        blocks.append("\n".join([*lines, *wrap(does, width, initial_indent="  ", subsequent_indent="  ")]) + "\n")
    return "".join(blocks)


def situation_of(options: RunOptions) -> Situation:
    """Return what techniques apply to; raise `JobFailed` if the model cannot be made."""
    planned = run_job(workers.planned, options)
    return Situation(
        options=options,
        batch=planned.batch,
        layers=planned.layers,
        freezable_layers=planned.freezable_layers,
        attention=planned.attention,
        on_cpu=planned.device == "cpu",
    )
