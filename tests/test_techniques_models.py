"""Each technique on a small BERT, GPT-2, T5 and ViT: what is predicted of it next to what it becomes, or why it cannot
run. `torch.compile` is not here: what it keeps is decided when it compiles, so that nothing is predicted of it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from opanatomy.predict.experiment import predicted_figures, unseen_memory, why_peaks_differ
from opanatomy.predict.techniques import BASELINE
from opanatomy.records.experiment import StepFigures
from opanatomy.records.taxonomy import Phase
from tests.technique_pairs import MODELS, Pair, pair_of, variants

#: Why a technique cannot be on a model, by the prediction and by the run.
CANNOT = {
    ("gpt2", "freeze-all-but-head"): "GPT2LMHeadModel has no weights outside of its base model",
    ("t5", "freeze-all-but-head"): "T5ForConditionalGeneration has no weights outside of its base model",
    ("t5", "freeze-all-but-biases"): "T5ForConditionalGeneration has no biases",
    ("t5", "checkpointing-segments"): "T5Block of encoder.block gives the model more than hidden states",
    ("vit", "fused-loss"): "ViTForImageClassification has no linear head that gives words",
}
#: Of bfloat16 operands oneDNN's convolution keeps copies inside, which is much of the memory of a tiny ViT.
COPIES_INSIDE = {("vit", "amp")}
#: Forward and backward take the FLOPs of the baseline, whatever runs a second time.
SAME_FLOPS = frozenset({
    "accumulation", "checkpointing", "checkpointing-reentrant", "checkpointing-segments", "amp", "adamw-foreach",
    "adamw-loop", "sgd", "adafactor",
})  # fmt: skip
#: As much as their like does to each of the others, which is there.
ON_BERT_ALONE = ("adamw-loop", "checkpointing-reentrant")
#: BERT and GPT-2 have every technique. On T5 and ViT those whose path the model changes: two stacks of layers, layers
#: that hand values on, no biases, weights kept in float32; a convolution, a head without words.
ON_OTHERS = {
    "t5": (
        "baseline", "checkpointing", "checkpointing-segments", "amp", "fused-loss", "freeze-lower",
        "freeze-all-but-head", "freeze-all-but-biases", "lora",
    ),
    "vit": ("baseline", "checkpointing", "amp", "fused-loss", "freeze-embeddings", "freeze-all-but-head"),
}  # fmt: skip
NOT_HERE = ("compile", "adamw8bit", "adamw8bit-embeddings32", "adamw8bit-torchao")


def pairs() -> list[tuple[str, str]]:
    """The techniques that can be on each model as far as is known beforehand."""
    return [
        (model, name)
        for model in MODELS
        for name, variant in variants(model).items()
        if name not in NOT_HERE
        and (model == "bert" or name not in ON_BERT_ALONE)
        and name in ON_OTHERS.get(model, (name,))
        and (variant.impossible is None or "peft" in variant.impossible)
    ]


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory()


@cache
def baseline(model: str) -> Pair:
    """The baseline of a model, what its step makes kept beside."""
    return pair_of(model, BASELINE, kept(model))


def kept(model: str) -> Path:
    """Where the result of the baseline is."""
    return Path(_folder().name) / model


def backward_flops(figures: StepFigures) -> int:
    """Those of backward, without what is run again."""
    return figures.flops.get(Phase.BACKWARD, 0)


@pytest.mark.parametrize(
    ("model", "name"),
    [pytest.param(*pair, marks=pytest.mark.exhaustive if pair[0] in ON_OTHERS else ()) for pair in pairs()],
)
def test_a_technique_does_to_a_model_what_is_predicted(model: str, name: str) -> None:
    if "lora" in name:
        pytest.importorskip("peft")
    base = baseline(model)
    pair = base if name == BASELINE else pair_of(model, name, kept(model))
    if (model, name) in CANNOT:
        assert CANNOT[model, name] in (pair.not_followed or "")
        assert pair.failed == pair.not_followed
        return
    assert (pair.not_followed, pair.failed) == (None, None)
    assert pair.followed is not None
    assert pair.measured is not None
    assert base.followed is not None
    assert base.memory is not None
    assert base.measured is not None
    predicted = predicted_figures(pair.followed, None, *unseen_memory(base.memory, base.followed))
    holds_memory(predicted, pair.measured, copies_inside=(model, name) in COPIES_INSIDE)
    assert pair.memory is not None
    reason = why_peaks_differ(pair.followed, pair.memory)
    assert ("convolution" in (reason or "")) if (model, name) in COPIES_INSIDE else reason is None
    assert predicted.flops == pair.measured.flops
    holds_flops(name, pair.measured, base.measured)
    if pair.sameness is not None:
        assert pair.sameness.same


def holds_memory(predicted: StepFigures, measured: StepFigures, *, copies_inside: bool) -> None:
    """The peak within 2 %, and each component at its fullest; what is there between steps to the byte."""
    assert predicted.peak_bytes is not None
    if copies_inside:
        assert predicted.peak_bytes < (measured.peak_bytes or 0)
    else:
        assert predicted.peak_bytes == pytest.approx(measured.peak_bytes, rel=0.02)
    for component in ("weights", "gradients", "optimizer_state", "buffers", "inputs", "held_by_model"):
        assert predicted.components.get(component) == measured.components.get(component), component
    of_predicted, of_measured = (each.components["forward_activations"] for each in (predicted, measured))
    assert of_predicted == pytest.approx(of_measured, rel=0.02)


def holds_flops(name: str, measured: StepFigures, base: StepFigures) -> None:
    """What is known of the FLOPs of a technique next to those of the baseline, and of its state."""
    forward, whole = measured.flops[Phase.FORWARD], base.flops[Phase.FORWARD]
    again = measured.flops.get(Phase.RECOMPUTE, 0)
    assert (again > 0) == ("checkpointing" in name)
    assert again <= forward
    if name in SAME_FLOPS:
        assert (forward, backward_flops(measured)) == (whole, backward_flops(base))
    if name.startswith("freeze"):
        assert (forward, backward_flops(measured) < backward_flops(base)) == (whole, True)
    if name.startswith(("lora", "freeze-all-but-biases")):
        assert 0.9 < backward_flops(measured) / forward < 1.1
    if name in ("accumulation", "checkpointing", "checkpointing-segments", "checkpointing-reentrant"):
        assert measured.components["forward_activations"] < 0.6 * base.components["forward_activations"]
    state = measured.components["optimizer_state"]
    if name == "adafactor":
        assert state < 0.1 * base.components["optimizer_state"]
    else:
        assert state == (4 if name == "sgd" else 8) * (measured.trainable_parameters or 0)
