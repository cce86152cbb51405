"""The techniques whose predictions were held against measurements, and how far they were off.

docs/techniques.md has the runs; `benchmarks/predictions.py` makes them again.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class Recorded(Struct, frozen=True, kw_only=True):
    """The largest errors of a technique's predictions over the recorded runs, as shares; `runs` is how many."""

    runs: int
    memory: float
    time: float


RECORDED: Final[dict[str, Recorded]] = {}
