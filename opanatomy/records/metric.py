"""One headline figure of an anatomy."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Better: TypeAlias = Literal["lower", "higher"]


class Metric(Struct, frozen=True, kw_only=True):
    """One figure in its unit (ns, bytes, flop, fraction, ...), and which direction is good; `None` where neither is.

    The figure is no less than `value` where that is a `lower_bound`. `exact` marks FLOPs and bytes, which are counted:
    they do not vary as what is measured does.
    """

    value: int | float
    unit: str
    better: Better | None
    lower_bound: bool = False
    exact: bool = False
