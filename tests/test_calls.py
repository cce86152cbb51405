"""The tables of calls: costs that do not depend on the order of the events, traces that stay as they were read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from opanatomy.attribution.attribute import attribute
from opanatomy.attribution.calls import TOO_COSTLY, TraceCalls, trace_calls_of
from opanatomy.pipeline import analyze_trace
from opanatomy.records.columns import categorical_of as column_of
from opanatomy.records.columns import joined, unique
from opanatomy.trace.read import Trace, read_trace
from tests.handmade import HandMade

#: Sizes of products: of 2 ** 61 FLOPs, a little more, and 2,000. The first two together are more than can be.
LARGE, LARGER, SMALL = (1 << 20, 1 << 20, 1 << 20), (1 << 20, 1 << 20, (1 << 20) + 1), (10, 10, 10)


def products(path: Path, sizes: Sequence[tuple[int, int, int]]) -> Path:
    made = HandMade()
    for place, (m, k, n) in enumerate(sizes):
        made.host("aten::mm", 100 * place, 50, shapes=[[m, k], [k, n]], types=["float", "float"])
    return made.write(path)


def calls_of(trace: Trace) -> tuple[TraceCalls, tuple[str, ...]]:
    return trace_calls_of(trace, attribute(trace.names, trace.host, trace.launches, trace.work, trace.flows))


@pytest.mark.parametrize("order", [(SMALL, LARGE, LARGER), (LARGER, LARGE, SMALL), (LARGE, SMALL, LARGER)])
def test_the_largest_costs_are_impossible_whatever_the_order(
    order: tuple[tuple[int, int, int], ...], tmp_path: Path
) -> None:
    trace = read_trace(products(tmp_path / "t.json", order))
    calls, warnings = calls_of(trace)
    flops = {size: calls.costs.flops_at(row) for row, size in enumerate(order)}
    assert flops == {SMALL: 2000, LARGE: 1 << 61, LARGER: None}
    assert warnings == (TOO_COSTLY,)


def test_calls_of_one_signature_count_together(tmp_path: Path) -> None:
    """Two products of 2 ** 61 FLOPs are as much as can be; with a third none of them is."""
    for count, flops in ((2, 1 << 61), (3, None)):
        calls, warnings = calls_of(read_trace(products(tmp_path / f"{count}.json", [LARGE] * count)))
        assert [calls.costs.flops_at(row) for row in range(count)] == [flops] * count
        assert bool(warnings) is (flops is None)


def test_the_warning_is_in_the_report_once(tmp_path: Path) -> None:
    anatomy = analyze_trace(products(tmp_path / "t.json", (LARGE, LARGER, LARGER)))
    assert anatomy.warnings.count(TOO_COSTLY) == 1


def test_a_trace_stays_as_it_was_read(tmp_path: Path) -> None:
    """A stack of arguments (`torch.func`) and impossible costs: both were noted in the trace itself."""
    made = HandMade()
    shapes, types = [[2, 3], [3, 4]], ["float", "float"]
    made.host("aten::mm", 0, 100, shapes=shapes, types=types)
    made.host("aten::mm", 10, 80, shapes=shapes * 2, types=types * 2)
    made.host("aten::mm", 20, 60, shapes=shapes * 2, types=types * 2)
    made.host("aten::mm", 200, 60, shapes=[[1 << 24, 1 << 24], [1 << 24, 1 << 24]], types=types)
    trace = read_trace(made.write(tmp_path / "t.json"))
    before = list(trace.signatures), list(trace.warnings), trace.host.signature.copy()
    calls, warnings = calls_of(trace)
    assert (list(trace.signatures), list(trace.warnings)) == before[:2]
    assert np.array_equal(trace.host.signature, before[2])
    assert warnings
    assert len(calls.signatures) == len(before[0]) + 1
    assert str(calls.signatures[calls.signature[2]]) == "float32[2,3], float32[3,4]"


def test_columns_of_values() -> None:
    first, second = column_of(["b", "a", "b"], np.array([0, 2, -1])), column_of(["a", "c"], np.array([1, 0]))
    assert first.decoded() == ["b", "b", None]
    assert joined(first, second).decoded() == ["b", "b", None, "c", "a"]
    assert joined(first, second).take(np.array([3, -1, 0])).decoded() == ["c", None, "b"]
    assert joined(first, second).equals("b").tolist() == [True, True, False, False, False]
    assert not first.equals("z").any()
    known = unique(np.array([5, 3, 5, 4]))
    assert (known.values.tolist(), known.first.tolist(), known.inverse.tolist()) == ([3, 4, 5], [1, 3, 0], [2, 0, 2, 1])
    assert unique(np.zeros(0, dtype=np.int64)).values.tolist() == []
