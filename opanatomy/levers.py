"""List what may reduce a step's time or memory: the option, its wording, and why it is not possible here.

Experiments, `--for`, suggestions, the savings of theory, out-of-memory messages and advice all use this list.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, Final

from msgspec import Struct

from opanatomy.options import RUN, RunOptions
from opanatomy.records.taxonomy import BY_NAME, ITEM_SIZE, StrEnum
from opanatomy.records.workload import Workload

#: Layers per segment. Not sqrt(n): a layer of BERT keeps 23 times its input, which is all that a segment keeps, one of
#: GPT-2 35 times, a thin one 8 times (docs/techniques.md); of several layers two need least up to 6 times as many
#: layers.
_SEGMENT: Final = 2


class Relief(StrEnum):
    """The memory that a lever lowers when a step does not fit."""

    ACTIVATIONS = "activations"
    WEIGHTS = "weights"
    STATE = "optimizer state"


class Context(Struct, frozen=True, kw_only=True):
    """The run that a lever changes, and what is known of its model.

    Attributes:
        run: its options, or what a trace says of them.
        layers: layers of the longest stack of like layers, `None` if no stack is known; `freezable_layers` those that
            freezing counts: of an encoder and a decoder all, of several towers those of the shortest.
        attention: the implementation of attention in use.
        can_checkpoint: whether the model has a switch for checkpointing that is off.
    """

    run: RunOptions | Workload
    batch: int
    layers: int | None = None
    freezable_layers: int | None = None
    attention: str | None = None
    can_checkpoint: bool = True
    on_cpu: bool = False


def _always(context: Context) -> bool:
    return True


def _never(context: Context) -> None:
    return None


class Lever(Struct, frozen=True, kw_only=True):
    """One thing to try.

    Attributes:
        name: what the user types after `--only`; `title` and `what` describe it.
        changes: the options that it changes, and their values.
        python: how it is called where the module is the caller's own; by default the keyword of `opanatomy.profile`.
        loop: how it is called in a loop of the caller's own, if that is not as in `python`.
        blocked_because: why it cannot run here; `package` is what it needs installed, an extra of ours.
        skipped_by_default: why an experiment skips it unless named; without `in_experiments` it is in none.
        keeps_result: whether the training must stay the same, up to rounding.
        relieves: the memory that it lowers, where `relieves_here`.
        fits, suggested: its place among those that `--for` tries (what keeps the training as it is first), and that
            suggestions look at (what most often saves most first, most calls last).
    """

    name: str
    title: str
    what: str
    changes: Callable[[Context], Mapping[str, Any]]
    python: str | None = None
    loop: Callable[[Context], str] | None = None
    blocked_because: Callable[[Context], str | None] = _never
    package: str | None = None
    skipped_by_default: Callable[[Context], str | None] = _never
    in_experiments: bool = True
    keeps_result: bool = False
    relieves: Relief | None = None
    relieves_here: Callable[[Context], bool] = _always
    fits: int | None = None
    suggested: int | None = None

    @property
    def is_installed(self) -> bool:
        """Return whether the package that it needs is installed."""
        return self.package is None or find_spec(self.package) is not None

    def option(self, context: Context) -> str:
        """Return what to type for it after `opanatomy profile MODEL`."""
        return option_text(self.changes(context))

    def why_not(self, context: Context) -> str | None:
        """Return why it cannot run here."""
        reason = self.blocked_because(context)
        if reason is None and not self.is_installed:
            return f"needs {self.package}, which is not installed - pip install 'opanatomy[{self.package}]'"
        return reason

    def as_keyword(self, context: Context) -> str:
        """Return how it is called in Python, where the module is the caller's own."""
        if self.python is not None:
            return self.python
        return ", ".join(
            f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}"
            for name, value in self.changes(context).items()
        )


def option_text(changes: Mapping[str, Any]) -> str:
    """Return changes as they are typed after `opanatomy profile MODEL`."""
    options = {option.name: option for option in RUN}
    words = []
    for name, value in changes.items():
        flag = options[name].flags[-1]
        words.append(flag if value is True or value == options[name].bare else f"{flag} {value}")
    return " ".join(words)


# --- why a lever cannot be pulled here, and what it lowers ---


def _sets(**changes: Any) -> Callable[[Context], Mapping[str, Any]]:
    return lambda context: changes


def _first(*reasons: Callable[[Context], str | None]) -> Callable[[Context], str | None]:
    return lambda context: next((text for reason in reasons if (text := reason(context))), None)


def _trains(context: Context) -> str | None:
    return "the baseline runs inference, which has no backward" if context.run.inference else None


def _splits(context: Context) -> str | None:
    return "a batch of 1 cannot be split: use --batch 2 or more" if context.batch < 2 else _trains(context)


def _has_layers(context: Context) -> str | None:
    return None if context.layers else "no stack of equal layers was found in the model"


def _has_two_layers(context: Context) -> str | None:
    return (
        "the model has only one layer, so no segment can hold several" if context.layers == 1 else _has_layers(context)
    )


def _compiles(context: Context) -> str | None:
    return "torch.compile has no compiler on this system" if sys.platform == "win32" else None


def is_wide(dtype: str | None) -> bool:
    """Return whether an element of this data type is larger than one of bfloat16."""
    return ITEM_SIZE.get(dtype or "", 0) > ITEM_SIZE["bfloat16"]


def _has_wide_weights(context: Context) -> str | None:
    return None if is_wide(context.run.dtype) else "the baseline's weights already take two bytes each or less"


def _casts_help(context: Context) -> bool:
    run = context.run
    return run.amp is None and not run.inference and is_wide(run.dtype)


def _has_texts(context: Context) -> str | None:
    texts = getattr(context.run, "texts", None)
    return None if texts else "needs texts: use --texts FILE, or --texts for the sample texts"


def _left_to_a_gpu(context: Context) -> str | None:
    if context.on_cpu:
        return "skipped on the CPU: without float16 arithmetic a step takes many times as long - use --only to run it"
    return None


def _micro_batches(context: Context) -> Mapping[str, Any]:
    """Cut the batch into four equal parts if possible, else three, two or the next divisor; further if already cut."""
    now, batch = context.run.accumulate or 1, context.batch
    more = [parts for parts in range(now + 1, batch + 1) if batch % parts == 0]
    return {"accumulate": next((parts for parts in (4, 3, 2) if parts in more), more[0])} if more else {}


def _lower_layers(context: Context) -> Mapping[str, Any]:
    layers = context.freezable_layers or context.layers
    return {"freeze": f"embeddings,layers:{max(layers * 3 // 4, 1) if layers else 'N'}"}


def _attention(name: str, title: str, what: str, **more: Any) -> Lever:
    def blocked_because(context: Context) -> str | None:
        if context.attention is None:
            return "the model does not use the attention interface of Transformers"
        return "the baseline already uses it" if context.attention == name else None

    return Lever(
        name=name,
        title=title,
        what=what,
        changes=_sets(attention=name),
        python=f'attn_implementation="{name}"',
        blocked_because=blocked_because,
        keeps_result=True,
        **more,
    )


def _padding(name: str, padding: str, what: str) -> Lever:
    def blocked_because(context: Context) -> str | None:
        is_so = getattr(context.run, "padding", None) == padding
        return "the baseline already uses it" if is_so else _has_texts(context)

    return Lever(
        name=name,
        title=f"padding {padding}",
        what=what,
        changes=_sets(padding=padding),
        blocked_because=blocked_because,
    )


def _optimizer(name: str, what: str, **more: Any) -> Lever:
    optimizer = BY_NAME[name]

    def is_smaller(context: Context) -> bool:
        now = BY_NAME.get(context.run.optimizer or "")
        parameter = ITEM_SIZE["float32"]
        return now is not None and optimizer.update_bytes(parameter) < now.update_bytes(parameter)

    return Lever(
        name=name,
        title=optimizer.label,
        what=what,
        changes=_sets(optimizer=name),
        loop=lambda context: f"{optimizer.package or 'torch'}.optim.{optimizer.torch_class}",
        blocked_because=_trains,
        package=optimizer.package,
        relieves_here=is_smaller,
        **more,
    )


LEVERS: Final[tuple[Lever, ...]] = (
    Lever(
        name="accumulation",
        title="gradient accumulation",
        what="split the batch and update once: only one micro-batch's activations are alive at a time",
        changes=_micro_batches,
        loop=lambda context: "{accumulate} micro-batches of {size}".format(
            **_micro_batches(context), size=context.batch // _micro_batches(context)["accumulate"]
        ),
        blocked_because=_splits,
        keeps_result=True,
        relieves=Relief.ACTIVATIONS,
        relieves_here=lambda context: bool(_micro_batches(context)),
        fits=2,
        suggested=7,
    ),
    Lever(
        name="checkpointing",
        title="activation checkpointing",
        what="keep only each layer's input and rerun the layer in backward",
        changes=_sets(checkpointing="non-reentrant"),
        python="gradient_checkpointing_enable()",
        blocked_because=_trains,
        keeps_result=True,
        relieves=Relief.ACTIVATIONS,
        relieves_here=lambda context: context.can_checkpoint and not context.run.checkpointing,
        fits=1,
        suggested=3,
    ),
    Lever(
        name="checkpointing-reentrant",
        title="checkpointing, reentrant",
        what="the older kind (use_reentrant=True), which runs the layer inside an autograd function",
        changes=_sets(checkpointing="reentrant"),
        blocked_because=_trains,
        keeps_result=True,
    ),
    Lever(
        name="checkpointing-segments",
        title="checkpointing by segments",
        what="keep every second layer's input and rerun two layers at once: less memory in deep models",
        changes=_sets(checkpointing="non-reentrant", checkpoint_every=_SEGMENT),
        blocked_because=_first(_trains, _has_two_layers),
        keeps_result=True,
        suggested=6,
    ),
    Lever(
        name="amp",
        title="mixed precision, bf16",
        what="matmuls in bfloat16 (autocast), weights and optimizer state in float32",
        changes=_sets(amp="bf16"),
        loop=lambda context: "torch.autocast(..., torch.bfloat16)",
        relieves=Relief.ACTIVATIONS,
        relieves_here=_casts_help,
        fits=5,
        suggested=4,
    ),
    Lever(
        name="amp-fp16",
        title="mixed precision, fp16",
        what="matmuls in float16 (autocast), with the loss scaled so that small gradients survive",
        changes=_sets(amp="fp16"),
        skipped_by_default=_left_to_a_gpu,
    ),
    Lever(
        name="bf16-weights",
        title="weights in bfloat16",
        what="weights, gradients and optimizer state in bfloat16: half the memory, lower precision",
        changes=_sets(dtype="bfloat16"),
        python="module.to(torch.bfloat16)",
        blocked_because=_has_wide_weights,
        relieves=Relief.WEIGHTS,
        fits=8,
    ),
    _attention(
        "sdpa",
        "fused attention",
        "torch's scaled_dot_product_attention: a fused kernel keeps no score matrix",
        fits=3,
        suggested=1,
    ),
    _attention("eager", "unfused attention", "attention as matmuls and a softmax: the score matrix is kept"),
    Lever(
        name="fused-loss",
        title="fused loss",
        what="head and cross entropy in chunks: the full logits are never materialized",
        changes=_sets(fused_loss=True),
        blocked_because=_trains,
        keeps_result=True,
        fits=4,
        suggested=2,
    ),
    Lever(
        name="freeze-embeddings",
        title="embeddings frozen",
        what="do not train the embeddings: they need no gradients or optimizer state",
        changes=_sets(freeze="embeddings"),
        blocked_because=_trains,
    ),
    Lever(
        name="freeze-lower",
        title="lower layers frozen",
        what="train only the upper quarter of the layers and the head",
        changes=_lower_layers,
        blocked_because=_first(_trains, _has_layers),
    ),
    Lever(
        name="freeze-all-but-biases",
        title="biases only",
        what="train only the biases (BitFit)",
        changes=_sets(freeze="all-but-biases"),
        blocked_because=_trains,
    ),
    Lever(
        name="freeze-all-but-head",
        title="head only",
        what="train only the head on top of the base model",
        changes=_sets(freeze="all-but-head"),
        blocked_because=_trains,
    ),
    Lever(
        name="lora",
        title="low-rank adapters",
        what="train two low-rank matrices beside each attention projection",
        changes=_sets(lora=8),
        blocked_because=_trains,
        package="peft",
        fits=9,
    ),
    Lever(
        name="lora-checkpointing",
        title="adapters and checkpointing",
        what="low-rank adapters and activation checkpointing",
        changes=_sets(lora=8, checkpointing="non-reentrant"),
        blocked_because=_trains,
        package="peft",
        fits=10,
    ),
    _optimizer(
        "adamw",
        "one kernel updates an entire list of tensors",
        keeps_result=True,
        relieves=Relief.STATE,
        suggested=5,
    ),
    _optimizer("adamw-foreach", "each operation is called once for the list of all tensors", keeps_result=True),
    _optimizer("adamw-loop", "a Python loop over the tensors", keeps_result=True),
    _optimizer("adamw8bit", "both moments quantized to 8 bits (bitsandbytes)", relieves=Relief.STATE, fits=6),
    _optimizer("adamw8bit-embeddings32", "8 bits except for the embeddings, as bitsandbytes recommends"),
    _optimizer("adamw8bit-torchao", "both moments quantized to 8 bits (torchao)"),
    _optimizer("sgd", "one moment per parameter: half the state of AdamW", relieves=Relief.STATE),
    _optimizer("adafactor", "second moments kept as one row and one column per matrix", relieves=Relief.STATE, fits=7),
    _padding("dynamic-padding", "longest", "pad each batch to its longest text"),
    _padding("sorted-padding", "sorted", "pad each batch to its longest text, with texts sorted by length"),
    _padding(
        "grouped-padding",
        "grouped",
        "pad each batch to its longest text, with texts grouped by length as the Trainer does",
    ),
    Lever(
        name="slow-tokenizer",
        title="tokenizer in Python",
        what="the Python tokenizer instead of the Rust one",
        changes=_sets(tokenizer="slow"),
        blocked_because=_has_texts,
        keeps_result=True,
    ),
    Lever(
        name="compile",
        title="torch.compile",
        what="fuse element-wise operators into few kernels",
        changes=_sets(compile=True),
        python="torch.compile(model)",
        blocked_because=_compiles,
        keeps_result=True,
    ),
    Lever(
        name="greedy-search",
        title="greedy search",
        what="generate one sequence instead of several beams",
        changes=_sets(beams=1),
        in_experiments=False,
        relieves=Relief.ACTIVATIONS,
        relieves_here=lambda context: (context.run.beams or 1) > 1,
    ),
)

LEVER: Final[dict[str, Lever]] = {lever.name: lever for lever in LEVERS}


#: What `--for` tries to make a step fit, and what suggestions try, in order.
FIT_CANDIDATES: Final = tuple(lever.name for lever in sorted(LEVERS, key=lambda lever: lever.fits or 0) if lever.fits)
SUGGESTED: Final = tuple(
    lever.name for lever in sorted(LEVERS, key=lambda lever: lever.suggested or 0) if lever.suggested
)


def reliefs(context: Context, *kinds: Relief) -> list[Lever]:
    """Return the levers that lower memory of these kinds in this run."""
    return [
        lever
        for lever in LEVERS
        if lever.relieves in kinds and lever.blocked_because(context) is None and lever.relieves_here(context)
    ]
