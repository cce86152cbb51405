"""The techniques whose predictions were compared with measurements, and how far they were off.

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


RECORDED: Final[dict[str, Recorded]] = {
    "accumulation": Recorded(runs=4, memory=0.0000, time=0.08),
    "checkpointing": Recorded(runs=4, memory=0.0001, time=0.13),
    "checkpointing-reentrant": Recorded(runs=4, memory=0.0001, time=0.13),
    "checkpointing-segments": Recorded(runs=3, memory=0.0001, time=0.13),
    "amp": Recorded(runs=4, memory=0.0074, time=0.36),
    "eager": Recorded(runs=4, memory=0.0000, time=0.08),
    "freeze-embeddings": Recorded(runs=4, memory=0.0000, time=0.06),
    "freeze-lower": Recorded(runs=4, memory=0.0000, time=0.20),
    "freeze-all-but-biases": Recorded(runs=3, memory=0.0000, time=0.21),
    "freeze-all-but-head": Recorded(runs=2, memory=0.0000, time=0.16),
    "lora": Recorded(runs=4, memory=0.0000, time=0.07),
    "lora-checkpointing": Recorded(runs=4, memory=0.0002, time=0.15),
    "adamw-foreach": Recorded(runs=4, memory=0.0000, time=0.24),
    "adamw-loop": Recorded(runs=4, memory=0.0000, time=0.24),
    "sgd": Recorded(runs=4, memory=0.0000, time=0.11),
    "adafactor": Recorded(runs=4, memory=0.0000, time=0.20),
    "fused-loss": Recorded(runs=2, memory=0.0000, time=0.76),
}
