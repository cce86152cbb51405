"""One headline figure of an anatomy."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Better: TypeAlias = Literal["lower", "higher"]


class Metric(Struct, frozen=True, kw_only=True):
    """One figure in its unit (ns, bytes, flop, fraction, ...), and which direction is good; `None` where neither is."""

    value: int | float
    unit: str
    better: Better | None
