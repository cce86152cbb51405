"""Contractions counted a second time by torch's own counter, beside ours."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from opanatomy.model import CheckRow, OperatorClass, OperatorRow

#: Backends compute `aten::convolution` under names of their own; the counter sees the operator that was dispatched.
_CONVOLUTION = re.compile(r"^(?:aten|mkldnn)::_?(?:\w+_)?conv(?:olution|_?(?:transpose)?_?\d?d?)\w*$")


def check_rows(operators: Iterable[OperatorRow], counted: Mapping[str, int], steps: int) -> tuple[CheckRow, ...]:
    """One row an operator, the most FLOPs first: ours of one step beside those of `counted`, the counter's of one step.

    An operator that the counter has no formula for is 0 there.
    """
    ours: Counter[str] = Counter()
    for row in operators:
        if row.operator_class is OperatorClass.TENSOR_CONTRACTION and row.part_of is None:
            ours[_dispatched(row.operator)] += row.flops or 0
    rows = [
        CheckRow(operator=name, flops=ours[name] // max(steps, 1), counted_flops=counted.get(name, 0))
        for name in {*ours, *counted}
    ]
    return tuple(sorted(rows, key=lambda row: (-max(row.flops, row.counted_flops), row.operator)))


def _dispatched(name: str) -> str:
    if not _CONVOLUTION.match(name):
        return name
    return "aten::convolution_backward" if "backward" in name else "aten::convolution"
