"""The catalog on an accelerator without hardware, next to the CPU: the same phases, modules, classes and FLOPs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from opanatomy.attribution.attribute import Attribution, attribute
from opanatomy.attribution.calls import trace_calls_of
from opanatomy.attribution.table import call_table, kernel_table
from opanatomy.capture.silence import quiet_libraries
from opanatomy.records.columns import NO_FLOWS
from opanatomy.records.taxonomy import PHASES
from opanatomy.trace.read import Trace, read_trace
from tests.command import run_code
from tests.fake_captures import NAMES, VARIANTS, capture, numbers_of
from tests.fake_device import DEVICE

pytestmark = pytest.mark.slow  # the fixture is

#: Every variant once, and every kind of architecture.
CASES = [
    *(f"bert-base-uncased/{variant}" for variant in VARIANTS),
    "Llama-3.1-8B/sdpa", "resnet-50/eager", "Mixtral-8x7B-v0.1/eager",
]  # fmt: skip
#: ResNet has no checkpointing; DeBERTa's fails with reentry on the CPU too: its layers share a tensor that is freed.
NONE = {"resnet-50/non-reentrant", "resnet-50/reentrant", "deberta-v3-base/reentrant"}
EVERY = [case for name in NAMES for variant in VARIANTS if (case := f"{name}/{variant}") not in NONE]

#: Why operators differ by device, and those that only the CPU and only the device runs there. Nothing else may.
_DIFFER = {
    "gradients are added up in place in plain tensors alone (ATen's areAnyTensorSubclassLike)": (
        "add_ scatter_ scatter_add_ _index_put_impl_ zeros", "add scatter scatter_add index_put new_zeros",
    ),
    "the backward of silu is written out but for plain tensors": ("", "sigmoid fill_ mul sub_ add"),
    "a reshape of a plain tensor is an alias": ("_reshape_alias reshape view as_strided", "view reshape"),
    "values are read, masks are filled and numbers are made on the host": (
        "_local_scalar_dense item any eq lift_fresh fill_ zero_ copy_ index to as_strided new_zeros reshape view",
        "_to_copy to expand scalar_tensor",
    ),
    "native_dropout is called by dropout": ("", "dropout"),
}  # fmt: skip
#: Autocast has a list of operators for each kind of device, and calls each of them a second time.
_AUTOCAST = ("to _to_copy copy_ cross_entropy_loss", "to _to_copy softmax log_softmax layer_norm nll_loss group_norm")
#: Operators whose FLOPs follow from values, by model: whether labels are padded, and how long they are.
_BY_VALUES = {"deberta": "any", "wav2vec2": "sum _ctc_loss _ctc_loss_backward"}


def aten(*names: str) -> set[str]:
    return {f"aten::{name}" for text in names for name in text.split()}


def run_fake(folder: Path, cases: list[str]) -> None:
    """Captures in a process of their own: the private device is for a whole process."""
    code = "import runpy; runpy.run_module('tests.fake_captures', run_name='__main__', alter_sys=True)"
    ran = run_code(code, str(folder), *cases, timeout=900)
    assert ran.returncode == 0, ran.stderr[-3000:]


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fake")
    run_fake(folder, CASES)
    return folder


def attributed(path: Path, change: Callable[[Trace], Trace] = lambda trace: trace) -> tuple[Trace, Attribution]:
    trace = change(read_trace(path))
    return trace, attribute(trace.names, trace.host, trace.launches, trace.work, trace.flows)


def operators(trace: Trace, found: Attribution, leaves: set[str]) -> Counter[tuple[str, str, str | None]]:
    """The operators by name, phase and module, without what the operators `leaves` call."""
    host = found.host
    names = [trace.names[number] for number in host.name.tolist()]
    is_operator = [name.startswith("aten::") for name in names]
    below: set[int] = set()
    counted: Counter[tuple[str, str, str | None]] = Counter()
    for row, parent in enumerate(host.parent.tolist()):
        if parent >= 0 and (parent in below or names[parent] in leaves):
            below.add(row)
        elif is_operator[row] and names[row] not in _MADE:
            counted[names[row], str(PHASES[host.phase[row]]), host.module.at(row)] += 1
    return counted


#: What makes tensors without values: fake tensors are made of such.
_MADE = aten("empty new_empty empty_like empty_strided set_ detach")


def leaves_of(trace: Trace, found: Attribution) -> set[str]:
    """The operators that call no other: on a device those with a kernel."""
    host = found.host
    outer = set(host.parent.tolist())
    names = {trace.names[number] for row, number in enumerate(host.name.tolist()) if row not in outer}
    return {name for name in names if name.startswith("aten::")} - aten("to reshape contiguous dropout")


def flops(trace: Trace, found: Attribution, left_out: set[str]) -> dict[str, Counter[tuple[str, str | None]]]:
    """By class the FLOPs of each phase and module."""
    calls, _ = trace_calls_of(trace, found)
    table = call_table(trace, calls, kernel_table(calls) if trace.on_device else None)
    counted: dict[str, Counter[tuple[str, str | None]]] = {}
    for row, count in enumerate(table.flops.tolist()):
        if count > 0 and table.part_of.at(row) is None and table.operator.at(row) not in left_out:
            kind = counted.setdefault(str(table.operator_class.at(row)), Counter())
            kind[str(table.phase.at(row)), table.module.at(row)] += count
    return counted


def check_the_same(case: str, fake: Path, plain: Path) -> None:
    device, host = attributed(fake), attributed(plain)
    leaves = leaves_of(*device)
    on_device, on_host = operators(*device, leaves), operators(*host, leaves)
    pairs = [*_DIFFER.values(), *([_AUTOCAST] if "/amp" in case else [])]
    for found, other, names in (
        (on_host, on_device, [one for one, _ in pairs]), (on_device, on_host, [one for _, one in pairs])
    ):  # fmt: skip
        differing = {name for name, *_ in found - other}
        assert differing <= aten(*names), f"{case}: {sorted(differing - aten(*names))}"
    values = aten(*(names for model, names in _BY_VALUES.items() if model in case))
    ours, theirs = flops(*device, values), flops(*host, values)
    for kind in ours | theirs:
        one, other = ours.get(kind, Counter()), theirs.get(kind, Counter())
        assert one == other, f"{case}: {kind} {dict((one - other) + (other - one))}"


@pytest.mark.parametrize("case", CASES)
def test_the_device_does_as_the_cpu(case: str, fake: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.json"
    with quiet_libraries():
        capture(case, "cpu", plain)
    check_the_same(case, fake / f"{case.replace('/', '-')}.json", plain)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMES)
def test_the_whole_catalog_does_as_the_cpu(name: str, tmp_path: Path) -> None:
    """20 models in 9 variants: minutes, for every operator passes Python."""
    cases = [case for case in EVERY if case.startswith(f"{name}/")]
    run_fake(tmp_path, cases)
    for case in cases:
        plain = tmp_path / "plain.json"
        with quiet_libraries():
            capture(case, "cpu", plain)
        check_the_same(case, tmp_path / f"{case.replace('/', '-')}.json", plain)


def test_the_stand_in_is_an_accelerator(fake: Path) -> None:
    facts = json.loads((fake / "facts.json").read_text())
    assert "Expected all tensors to be on the same device" in facts["mismatch"]
    assert facts["own_thread"] is True
    assert facts["gradient_on"] == DEVICE


def test_it_is_not_called_the_cpu(fake: Path) -> None:
    recorded = read_trace(fake / "bert-base-uncased-eager.json").capture
    assert recorded is not None
    assert (recorded.environment.device, recorded.environment.device_kind) == ("Fake accelerator", "fake")
    # Neither a peak of the device nor one of the host in its place.
    assert (recorded.memory.peak_bytes, recorded.memory.measured_by) == (None, None)


# ------------------------------------------------------------------------------ numbers that two threads have in common


def without_flows(trace: Trace) -> Trace:
    return replace(trace, flows=NO_FLOWS)


def without_threads(trace: Trace) -> Trace:
    """Neither arrows nor the thread that made a node: numbers alone."""
    host = replace(trace.host, forward_thread=np.zeros_like(trace.host.forward_thread))
    return replace(trace, flows=NO_FLOWS, host=host)


def backward_modules(path: Path, change: Callable[[Trace], Trace]) -> Counter[tuple[str, str | None]]:
    trace, found = attributed(path, change)
    counted = operators(trace, found, set())
    return Counter({(name, module): n for (name, phase, module), n in counted.items() if phase == "backward"})


@pytest.mark.parametrize("change", [lambda trace: trace, without_flows, without_threads])
@pytest.mark.parametrize("kind", ["non-reentrant", "reentrant", "whole"])
def test_backward_modules_are_those_without_checkpointing(
    kind: str, change: Callable[[Trace], Trace], fake: Path
) -> None:
    """Recomputation on the device thread takes the numbers of the forward again. Of 283 backward operators 129, 243
    and 133 had their module where a trace has numbers alone."""
    path = fake / f"thread-{kind}.json"
    recomputing, forward = numbers_of(path)
    assert len(recomputing & forward) >= 22, "no number is of both threads: nothing is tried"
    plain = backward_modules(fake / "thread-eager.json", lambda trace: trace)
    assert plain.total() == 283
    assert sum(n for (_, module), n in plain.items() if module is None) == 1
    assert (backward_modules(path, change) & plain).total() == 283
