"""The figures of `make gpu-check` hold of a report that is right, and none of them of one that is not."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from msgspec.structs import replace

from opanatomy.records.anatomy import Anatomy, Check
from opanatomy.records.memory import AllocatorFigures, MemoryComponent, MemoryFailure
from opanatomy.records.taxonomy import OperatorClass, Phase
from tests.gpu import figures
from tests.gpu.figures import Figure
from tests.support import anatomies
from tests.support.command import run_code
from tests.support.made_trace import training_step

H100 = "NVIDIA H100 80GB HBM3"


@cache
def right() -> Anatomy:
    """The report of a trace of an H100, with the memory that a device would tell."""
    with TemporaryDirectory() as folder:
        anatomy = training_step().analyze(Path(folder))
    memory = replace(
        anatomy.memory,
        peak_bytes=10_000,
        allocator=AllocatorFigures(device="cuda:0", backend="native", peak_bytes=10_000),
        components=(MemoryComponent(component="device_context", measured_bytes=500_000_000),),
        failure=MemoryFailure(phase=Phase.FORWARD, message="out of memory", requested_bytes=512, seen=True),
    )
    names = ("call counts", "contraction FLOPs", "operator times")
    checks = tuple(Check(quantity=name, source="a test", unit="calls", compared=3, equal=3) for name in names)
    # The tiny model's products are bound by memory; those of a model are not.
    rows = tuple(
        replace(row, bound_by="compute", bound_ns=row.bound_ns or 1)
        if row.operator_class is OperatorClass.TENSOR_CONTRACTION
        else row
        for row in anatomy.operators
    )
    return anatomies.with_tables(replace(anatomy, memory=memory, checks=checks, warnings=()), operators=rows)


def _with_ledger(anatomy: Anatomy, **changes: int) -> Anatomy:
    return replace(anatomy, ledger=replace(anatomy.ledger, **changes))


def _memory(anatomy: Anatomy, **changes: object) -> Anatomy:
    return replace(anatomy, memory=replace(anatomy.memory, **changes))  # type: ignore[arg-type]  # fields of a test


def _moved(anatomy: Anatomy) -> Anatomy:
    """The FLOPs of one backward module in its neighbour."""
    rows = list(anatomy.modules)
    place = next(
        at
        for at, row in enumerate(rows)
        if (row.phase, row.operator_class) == (Phase.BACKWARD, OperatorClass.TENSOR_CONTRACTION)
    )
    rows[place] = replace(rows[place], module="elsewhere")
    return anatomies.with_tables(anatomy, modules=tuple(rows))


PLANTS: dict[str, tuple[Callable[[Anatomy], Figure], Callable[[Anatomy], Anatomy]]] = {
    "no kernel": (figures.kernels_recorded, lambda one: anatomies.with_tables(one, kernels=())),
    "unknown kernels": (
        figures.work_is_classed,
        lambda one: _with_ledger(
            one, classed_ns=one.ledger.classed_ns * 9 // 10, unknown_ns=one.ledger.classed_ns // 10
        ),
    ),
    "no count at all": (figures.second_sources_agree, lambda one: replace(one, checks=())),
    "another device": (
        lambda one: figures.device_is_named(one, H100),
        lambda one: replace(one, environment=replace(one.environment, device="NVIDIA T4")),
    ),
    "faster than the peak": (
        lambda one: figures.product_type(one, "float32"),
        lambda one: replace(one, device=replace(one.device, mfu=1.5)),
    ),
    "no context": (figures.context_is_plausible, lambda one: _memory(one, components=())),
    "a peak 512 B too high": (figures.peak_is_the_allocators, lambda one: _memory(one, peak_bytes=10_512)),
    "a backward module elsewhere": (lambda one: figures.same_backward_modules(right(), one, "x"), _moved),
    "no report of a failure": (
        lambda one: figures.failure_is_reported(one, Phase.FORWARD),
        lambda one: _memory(one, failure=None),
    ),
}


@pytest.mark.parametrize("name", PLANTS)
def test_a_figure_that_is_wrong_does_not_hold(name: str) -> None:
    figure, plant = PLANTS[name]
    assert figure(right()).holds, figure(right())
    wrong = figure(plant(right()))
    assert not wrong.holds
    assert wrong.found


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: the checks run")
def test_without_a_gpu_it_says_so() -> None:
    done = run_code("import runpy; runpy.run_module('tests.gpu', run_name='__main__', alter_sys=True)")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (f"gpu-check: this torch ({torch.__version__}) sees no GPU - run it where there is one\n")
