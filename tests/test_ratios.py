"""Backward over forward: none where a part is unknown, or where there is next to no forward to compare with."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from opanatomy.analysis.build import ratios_of
from opanatomy.records.anatomy import ClassRow, Ratio
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.workload import Workload
from opanatomy.report import terminal_report
from tests import anatomies

MM, MAP = OperatorClass.TENSOR_CONTRACTION, OperatorClass.ELEMENTWISE


def row(
    phase: Phase, time_ns: int, flops: int | None, moved: int | None = 0, *, uncosted_ns: int = 0,
    item: OperatorClass = MM,
) -> ClassRow:  # fmt: skip
    return ClassRow(
        operator_class=item, phase=phase, calls=1, kernels=1, time_ns=time_ns, flops=flops, read_bytes=moved,
        written_bytes=None if moved is None else 0, uncosted_ns=uncosted_ns,
    )  # fmt: skip


def ratio(*rows: ClassRow) -> Ratio:
    (found,) = ratios_of(rows, Workload())
    return found


def test_all_of_it_known() -> None:
    found = ratio(row(Phase.FORWARD, 10, 100, 40), row(Phase.BACKWARD, 25, 200, 100), row(Phase.RECOMPUTE, 10, 100, 20))
    assert (found.time, found.flops, found.bytes) == (3.5, 3.0, 3.0)


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE])
@pytest.mark.parametrize("flops", [None, 100])
def test_a_part_without_a_cost_leaves_no_ratio(phase: Phase, flops: int | None) -> None:
    """2.00 stood over a ResNet of whose contractions 99.9 % of the time had no FLOPs: it was that of the last layer."""
    rows = [row(one, 10, 100, 40) for one in (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE)]
    rows = [row(phase, 10, flops, flops, uncosted_ns=1) if one.phase is phase else one for one in rows]
    found = ratio(*rows)
    assert (found.time, found.flops, found.bytes) == (2.0, None, None)


def test_what_is_not_known_of_another_class_or_phase_is_no_part_of_it() -> None:
    found = ratios_of(
        (
            row(Phase.FORWARD, 10, 100), row(Phase.BACKWARD, 10, 200), row(Phase.OPTIMIZER, 5, None, uncosted_ns=5),
            row(Phase.FORWARD, 10, None, uncosted_ns=10, item=MAP), row(Phase.BACKWARD, 10, 3, item=MAP),
        ),
        Workload(),
    )  # fmt: skip
    assert [(one.operator_class, one.flops) for one in found] == [(MM, 2.0), (MAP, None)]


@pytest.mark.parametrize(
    ("forward", "backward", "expected"),
    [
        (1, 2_106_704_465, None),
        (1, 4_146_709_049, None),
        (1, 101, None),
        (1, 100, 100.0),
        (0, 5, None),
        (1000, 1, 0.001),
    ],
)
def test_a_forward_of_next_to_nothing_has_no_ratio(forward: int, backward: int, expected: float | None) -> None:
    """2,106,704,465 was printed of one trace, whose forward was one addition."""
    found = ratio(row(Phase.FORWARD, 10, forward, forward), row(Phase.BACKWARD, 10, backward, backward))
    assert (found.time, found.flops, found.bytes) == (1.0, expected, expected)
    assert ratio(row(Phase.FORWARD, forward, 1), row(Phase.BACKWARD, backward, 1)).time == expected


def test_the_report_says_why_there_is_none() -> None:
    known = Ratio(operator_class=MM, time=2.0, flops=2.0, bytes=2.0)
    anatomy = replace(anatomies.nothing(), ratios=(known,))
    why = "-: a part without formula, or a forward of less than 1 % of the backward"
    assert why not in terminal_report(anatomy, width=80)
    told = terminal_report(replace(anatomy, ratios=(replace(known, flops=None),)), width=80)
    assert why in told
    assert max(map(len, told.splitlines())) <= 80
