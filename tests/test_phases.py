"""Phases against ground truth: annotations around the model call, the backward, its recomputation, the optimizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from msgspec import Struct, field
from msgspec.structs import replace
from torch.profiler import record_function

from opanatomy.attribution.attribute import Attribution, attribute
from opanatomy.capture.model.building import enable_checkpointing
from opanatomy.capture.model.workload import prepare
from opanatomy.capture.run.recorder import record_step
from opanatomy.capture.step.stepper import Stepper
from opanatomy.capture.subject import Subject
from opanatomy.options import RunOptions
from opanatomy.records.taxonomy import PHASES, Phase
from opanatomy.records.workload import Workload
from opanatomy.trace.read import Trace, read_trace
from tests.tiny import TINY, on_cpu

BERT = "google-bert/bert-base-uncased"
pytestmark = pytest.mark.usefixtures("one_timed_step")


class Variant(Struct, frozen=True):
    request: RunOptions = field(default_factory=lambda: on_cpu(model=BERT, batch=2, seq=16, settings=TINY[BERT]))
    options: RunOptions = field(default_factory=lambda: RunOptions(warmup=0, optimizer="adamw"))
    prepare: Callable[[torch.nn.Module], None] = lambda module: None


def freeze_embeddings_and_first_layer(module: torch.nn.Module) -> None:
    for parameter in [*module.bert.embeddings.parameters(), *module.bert.encoder.layer[0].parameters()]:
        parameter.requires_grad_(False)


def biases_only(module: torch.nn.Module) -> None:
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))


def with_options(**changes: Any) -> Variant:
    return Variant(options=replace(Variant().options, **changes))


def with_request(**changes: Any) -> Variant:
    options = replace(Variant().options, checkpointing=changes.get("checkpointing"))
    return Variant(request=replace(Variant().request, **changes), options=options)


VARIANTS = {
    "sdpa": with_request(attention="sdpa"),
    "eager": with_request(attention="eager"),
    "checkpointing": with_request(checkpointing="non-reentrant"),
    "reentrant checkpointing": with_request(checkpointing="reentrant"),
    "amp bf16": with_options(amp="bf16"),
    "amp fp16": with_options(amp="fp16"),
    "compile": with_options(compile=True, warmup=1),
    "frozen layers": Variant(prepare=freeze_embeddings_and_first_layer),
    "biases only": Variant(prepare=biases_only),
    "tied weights": Variant(request=on_cpu(model="gpt2", batch=2, seq=16, settings=TINY["openai-community/gpt2"])),
    "two steps": with_options(steps=2),
    "inference": Variant(
        request=replace(Variant().request, inference=True), options=RunOptions(inference=True, warmup=0)
    ),
}


def annotated(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **named: Any) -> Any:
        with record_function(name):
            return function(*arguments, **named)

    return wrapped


def annotate_recomputation(module: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of a layer, whenever they run while a backward does (the library checkpoints a layer's `forward`)."""
    layers = [layer for layer in module.modules() if type(layer).__name__ == "BertLayer"]
    machinery = torch.utils.checkpoint
    monkeypatch.setattr(machinery, "detach_variable", annotated("truth/recompute", machinery.detach_variable))
    for part in [part for layer in layers for part in layer.children()]:
        forward = part.forward

        def recomputing(*arguments: Any, forward: Any = forward, **named: Any) -> Any:
            if torch._C._current_graph_task_id() == -1:
                return forward(*arguments, **named)
            with record_function("truth/recompute"):
                return forward(*arguments, **named)

        part.forward = recomputing


def capture(variant: Variant, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare(replace(variant.request, checkpointing=None))
    variant.prepare(prepared.module)
    if variant.options.checkpointing:
        annotate_recomputation(prepared.module, monkeypatch)
        enable_checkpointing(prepared.module, variant.options.checkpointing)
    monkeypatch.setattr(Stepper, "_call", annotated("truth/forward", Stepper._call))
    monkeypatch.setattr(Stepper, "_update", annotated("truth/optimizer", Stepper._update))
    monkeypatch.setattr(torch.autograd, "backward", annotated("truth/backward", torch.autograd.backward))
    record_step(Subject(module=prepared.module, inputs=prepared.inputs, workload=Workload()), variant.options, path)


def attributed(path: Path) -> tuple[Trace, Attribution]:
    trace = read_trace(path)
    return trace, attribute(trace.names, trace.host, trace.launches, trace.work)


def truths(trace: Trace, found: Attribution) -> list[str | None]:
    """The innermost `truth/...` annotation around each host event."""
    named: list[str | None] = []
    for row, parent in enumerate(found.host.parent.tolist()):
        name = trace.names[int(found.host.name[row])]
        above = named[parent] if parent >= 0 else None
        named.append(name.removeprefix("truth/") if name.startswith("truth/") else above)
    return named


def agreement(path: Path) -> tuple[float, dict[str, int], set[str]]:
    """(share of operator self time whose phase is the truth, time by phase, operators that disagree)."""
    trace, found = attributed(path)
    right = whole = 0
    times: dict[str, int] = {}
    wrong: set[str] = set()
    for row, truth in enumerate(truths(trace, found)):
        name = trace.names[int(found.host.name[row])]
        if truth is None or not name.startswith(("aten::", "graph_")):
            continue
        spent = int(found.host.self_ns[row])
        whole += spent
        times[truth] = times.get(truth, 0) + spent
        if PHASES[found.host.phase[row]] == truth:
            right += spent
        else:
            wrong.add(name)
    return right / whole, times, wrong


@pytest.mark.parametrize("name", VARIANTS)
def test_phases_are_the_truth(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variant = VARIANTS[name]
    path = tmp_path / "step.json"
    capture(variant, path, monkeypatch)
    share, times, wrong = agreement(path)
    assert (share, wrong) == (1.0, set())
    expected = {"forward"} if variant.options.inference else {"forward", "backward", "optimizer"}
    expected |= {"recompute"} if variant.options.checkpointing else set()
    assert set(times) == expected


@pytest.mark.parametrize("name", VARIANTS)
def test_phases_without_ranges_are_inferred(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same trace with the ranges of the capture taken out: what a trace from anywhere looks like."""
    path = tmp_path / "step.json"
    capture(VARIANTS[name], path, monkeypatch)
    document = json.loads(path.read_text())
    document["traceEvents"] = [event for event in document["traceEvents"] if not event["name"].startswith("opanatomy.")]
    del document["opanatomy"]
    path.write_text(json.dumps(document))
    share, _, wrong = agreement(path)
    assert share > 0.98, wrong


@pytest.mark.parametrize("checkpointing", ["non-reentrant", "reentrant"])
def test_recomputation_repeats_the_layers(checkpointing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "step.json"
    capture(with_request(checkpointing=checkpointing), path, monkeypatch)
    trace, found = attributed(path)
    products = [
        PHASES[found.host.phase[row]]
        for row in range(len(found.host.name))
        if trace.names[int(found.host.name[row])] == "aten::addmm"
        and str(found.host.module.at(row)).startswith("bert.encoder.layer.")
    ]
    in_layers = 2 * 6
    assert products.count(Phase.FORWARD) == in_layers
    # A layer ends in a norm, whose statistics are the last that is saved: recomputation stops after every product.
    assert products.count(Phase.RECOMPUTE) == in_layers
