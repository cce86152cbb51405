"""What is compared: sides, and the runs of each."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.metric import Metric


class RunInput(Struct, frozen=True, kw_only=True):
    """One run: its anatomy, its figures by name, and what the run is called among those of its side."""

    anatomy: Anatomy
    metrics: Mapping[str, Metric]
    name: str


class SideInput(Struct, frozen=True, kw_only=True):
    """One side by what the user called it: its runs, one at least."""

    name: str
    runs: tuple[RunInput, ...]

    def called(self, run: RunInput) -> str:
        """What a message calls one of its runs; the only one as the side."""
        return self.name if len(self.runs) == 1 else f"{run.name} of {self.name}"
