"""The verdict: one sentence, the most disturbing finding first."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from opanatomy.records.anatomy import Anatomy, ClassRow, Step
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.timeline import Timeline
from opanatomy.records.workload import Environment
from opanatomy.report.formats.terminal import sentence
from opanatomy.report.sections.verdict import verdict
from tests import anatomies

CONTRACTION, ELEMENTWISE = OperatorClass.TENSOR_CONTRACTION, OperatorClass.ELEMENTWISE


def row(
    operator_class: OperatorClass,
    time_ns: int,
    flops: int | None,
    phase: Phase = Phase.FORWARD,
    bound: int | None = None,
) -> ClassRow:
    return ClassRow(
        operator_class=operator_class, phase=phase, calls=1, kernels=1, time_ns=time_ns, flops=flops, read_bytes=1,
        written_bytes=1, uncosted_ns=time_ns if flops is None else 0, bound_ns=bound,
        bounded_ns=0 if bound is None else time_ns,
    )  # fmt: skip


def anatomy(*rows: ClassRow) -> Anatomy:
    """An anatomy of these classes, whose ledger knows what is unknown."""
    empty = anatomies.nothing()
    time_ns = sum(item.time_ns for item in rows)
    unknown_ns = sum(item.time_ns for item in rows if item.operator_class is OperatorClass.UNKNOWN)
    ledger = replace(empty.ledger, device_work_ns=time_ns, linked_ns=time_ns, unknown_ns=unknown_ns)
    return replace(empty, classes=rows, ledger=ledger)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ((), "There is no device work in this trace: nothing to explain."),
        (
            (row(CONTRACTION, 62, 998), row(ELEMENTWISE, 30, 1), row(OperatorClass.STATISTICAL_NORMALIZATION, 8, 1)),
            "0.2 % of the arithmetic takes 38.0 % of the time, most of it element-wise.",
        ),
        (
            (row(CONTRACTION, 60, 998), row(ELEMENTWISE, 20, 1), row(OperatorClass.STATISTICAL_NORMALIZATION, 20, 1)),
            "0.2 % of the arithmetic takes 40.0 % of the time.",
        ),
        (
            (row(CONTRACTION, 60, 998), row(ELEMENTWISE, 30, 2), row(OperatorClass.OTHER, 10, None)),
            "0.2 % of the counted arithmetic takes 40.0 % of the time, most of it element-wise.",
        ),
        (
            (row(CONTRACTION, 90, 998, bound=45), row(ELEMENTWISE, 10, 2)),
            "Tensor contraction takes 90.0 % of the time for 99.8 % of the arithmetic, "
            "at 50.0 % of what the device could do.",
        ),
        ((row(CONTRACTION, 90, None),), "Tensor contraction takes 100.0 % of the time."),
        (
            (row(CONTRACTION, 60, 10), row(OperatorClass.DATA_MOVEMENT, 40, 0)),
            "60.0 % of the time is tensor contraction.",
        ),
        ((row(ELEMENTWISE, 7, 1), row(OperatorClass.OTHER, 3, None)), "70.0 % of the time is element-wise."),
        (
            (row(CONTRACTION, 70, 1), row(OperatorClass.UNKNOWN, 30, None)),
            "No rule knows 30.0 % of the device work: the figures say little yet.",
        ),
        (
            (row(CONTRACTION, 60, 9), row(ELEMENTWISE, 40, 1, Phase.OPTIMIZER)),
            "The optimizer takes 40.0 % of the device time.",
        ),
        (
            (row(CONTRACTION, 70, 9), row(CONTRACTION, 30, 1, Phase.RECOMPUTE)),
            "Computing activations again takes 30.0 % of the device time.",
        ),
    ],
)
def test_what_it_says(rows: tuple[ClassRow, ...], words: str) -> None:
    assert sentence(verdict(anatomy(*rows))) == words


def test_a_device_that_waits() -> None:
    waiting = replace(
        anatomy(row(CONTRACTION, 38, 1)),
        environment=Environment(device_kind="cuda"),
        timeline=Timeline(window_ns=100, busy_ns=38, idle_ns=62),
    )
    assert sentence(verdict(waiting)) == "The device waits for the host 62.0 % of the step."


def test_a_step_that_is_framework() -> None:
    busy = replace(
        anatomy(row(CONTRACTION, 40, 1)),
        environment=Environment(device_kind="cpu"),
        step=Step(wall_ns=100, framework_ns=60),
        timeline=Timeline(window_ns=100, busy_ns=40, idle_ns=60),
    )
    assert sentence(verdict(busy)) == "60.0 % of the step is framework (dispatch, autograd, Python), not operators."


def test_communication_that_nothing_hides() -> None:
    timeline = Timeline(window_ns=100, busy_ns=90, idle_ns=10, communication_ns=50, exposed_communication_ns=30)
    exposed = replace(anatomy(row(CONTRACTION, 90, 1)), timeline=timeline)
    assert sentence(verdict(exposed)) == "Communication that no computation hides takes 30.0 % of the time."


def test_the_hand_made_anatomies() -> None:
    bert, llama = (sentence(verdict(anatomy)) for anatomy in (anatomies.bert_on_cpu(), anatomies.llama_on_gpu()))
    assert bert.startswith("Tensor contraction takes 90.3 % of the time for 99.7 %")
    assert llama.startswith("0.1 % of the counted arithmetic takes 30.5 % of the time")
