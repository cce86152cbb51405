"""What no trace of a profiler has, and columns without it: the sums of the stages behind must hold in int64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from opanatomy.errors import TraceError
from opanatomy.tables import DeviceWork, HostEvents, Int64, Launches

#: A profiler writes 200 to 3000 bytes an event; below this, from some thousands on, a file is made to fill memory.
_LEAST_EVENT_BYTES: Final = 64
_MANY_EVENTS: Final = 150_000
#: Nanoseconds that durations may add up to: half of what int64 holds, 146 years.
_MOST_NS: Final = 2**62

Columns = TypeVar("Columns", HostEvents, Launches, DeviceWork)


def check_density(path: Path, events: int, text_bytes: int) -> None:
    """Raise `TraceError` where there are more events in the text than any profiler writes."""
    if events > max(_MANY_EVENTS, text_bytes // _LEAST_EVENT_BYTES):
        raise TraceError(
            f"cannot read {path}: {events:,} events in {text_bytes / 1e6:.1f} MB, less than {_LEAST_EVENT_BYTES} bytes"
            " each - is this a trace?"
        )


def without_negative(columns: Columns, warnings: list[str]) -> Columns:
    """The columns with durations of at least 0; `TraceError` where they add up to more than int64 holds."""
    negative = int((columns.duration_ns < 0).sum())
    if negative:
        warnings.append(f"{_events(negative)} a negative duration, which is read as 0")
        columns = replace(columns, duration_ns=np.maximum(columns.duration_ns, 0))
    if float(columns.duration_ns.astype(np.float64).sum()) > _MOST_NS:
        raise TraceError("cannot read the trace: its durations add up to more than 146 years - is this a trace?")
    return columns


def told_share(cut_off: bool, launches: Int64, work: Int64, warnings: list[str]) -> None:
    """Say of a trace that is cut off how many launches (correlation ids) have their work (likewise) before the cut."""
    known = launches[launches > 0]
    if cut_off and len(known) and len(work):
        found = int(np.isin(known, work).sum())
        warnings.append(f"{found:,} of {len(known):,} launches have their device work before the cut")


def _events(count: int) -> str:
    return "1 event has" if count == 1 else f"{count:,} events have"
