"""What no trace of a profiler has, and columns without it: the sums of later stages must hold in int64."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from msgspec.structs import replace

from opanatomy.errors import TraceError
from opanatomy.records.columns import DeviceWork, HostEvents, Int64, Launches, is_among
from opanatomy.records.memory_observations import MemoryObservations, StepObservations
from opanatomy.records.workload import Capture, Environment, Workload

#: A profiler writes 200 to 3000 bytes an event; below this, from some thousands on, a file is made to fill memory.
MIN_EVENT_BYTES: Final = 64
_MANY_EVENTS: Final = 150_000
#: Nanoseconds that durations may add up to: half of what int64 holds, 146 years.
_MAX_NS: Final = 2**62
#: No bytes, parameters or nanoseconds of a step are more than this; JSON readers hold it exactly.
_MAX_COUNTED: Final = 2**53

Part = TypeVar("Part", Environment, Workload, MemoryObservations)
Columns = TypeVar("Columns", HostEvents, Launches, DeviceWork)


def check_density(path: Path, events: int, text_bytes: int) -> None:
    """Raise `TraceError` where there are more events in the text than any profiler writes."""
    if events > max(_MANY_EVENTS, text_bytes // MIN_EVENT_BYTES):
        raise TraceError(
            f"cannot read {path}: {events:,} events in {text_bytes / 1e6:.1f} MB, less than {MIN_EVENT_BYTES} bytes"
            " each - is this a trace?"
        )


def without_negative(columns: Columns, warnings: list[str]) -> Columns:
    """The columns with durations of at least 0; `TraceError` where they add up to more than int64 holds."""
    negative = int((columns.duration_ns < 0).sum())
    if negative:
        warnings.append(f"{_events(negative)} a negative duration, which is read as 0")
        columns = replace(columns, duration_ns=np.maximum(columns.duration_ns, 0))
    if float(columns.duration_ns.astype(np.float64).sum()) > _MAX_NS:
        raise TraceError("cannot read the trace: its durations add up to more than 146 years - is this a trace?")
    return columns


def told_share(cut_off: bool, launches: Int64, work: Int64, caveats: list[str]) -> None:
    """Say of a trace that is cut off how many launches (correlation ids) have their work (likewise) before the cut."""
    known = launches[launches > 0]
    if cut_off and len(known) and len(work):
        recorded = int(is_among(known, work).sum())
        caveats.append(f"{recorded:,} of {len(known):,} launches have their device work before the cut")


def check_content(path: Path, host: HostEvents, launches: Launches, work: DeviceWork, warnings: list[str]) -> None:
    """Raise `TraceError` where there is nothing to analyze: neither an operator nor a launch nor device work."""
    annotations = int((host.annotation != 0).sum())
    if len(host.name) > annotations or len(launches.name) or len(work.name):
        return
    why = next((f" ({warning})" for warning in warnings if warning.isprintable()), "")
    raise TraceError(
        f"{path} has no operator and no device work that opanatomy knows{why} - give a torch.profiler trace"
    )


def with_possible_numbers(capture: Capture, name: str, warnings: list[str]) -> Capture:
    """What a capture wrote into the trace under `name`, without the counts, sizes and times that cannot be."""
    wrong: list[str] = []
    parts: dict[str, Any] = {
        "environment": _possible(capture.environment, wrong),
        "workload": _possible(capture.workload, wrong),
        "memory": _possible_memory(capture.memory, wrong),
    }
    for key in ("unprofiled_step_ns", "profiled_step_ns"):
        parts[key] = tuple(value for value in getattr(capture, key) if 0 < value <= _MAX_COUNTED)
        if len(parts[key]) < len(getattr(capture, key)):
            wrong.append(key)
    if not wrong:
        return capture
    warnings.append(
        f"the trace's own metadata ({name}) have numbers that cannot be, which are left out: {', '.join(wrong)}"
    )
    return replace(capture, **parts)


def _possible_memory(memory: MemoryObservations, wrong: list[str]) -> MemoryObservations:
    """The observations without numbers, and without rows and parts, that cannot be."""
    changed: dict[str, Any] = {
        "storage_bytes": {name: size for name, size in memory.storage_bytes.items() if 0 <= size <= _MAX_COUNTED},
        "snapshots": tuple(snapshot for snapshot in memory.snapshots if _all_possible(snapshot)),
    }
    wrong.extend(f"memory.{name}" for name, rows in changed.items() if len(rows) < len(getattr(memory, name)))
    parts = {"shape": memory.shape, "failure": memory.failure}
    impossible = {name for name, part in parts.items() if part is not None and not _all_possible(part)}
    if memory.shape is not None and min(memory.shape.layers, memory.shape.hidden, memory.shape.heads) < 1:
        impossible.add("shape")
    if memory.step is not None and not _step_is_possible(memory.step):
        impossible.add("step")
    wrong.extend(f"memory.{name}" for name in sorted(impossible))
    changed |= dict.fromkeys(impossible)
    return replace(_possible(memory, wrong), **changed)


def _step_is_possible(step: StepObservations) -> bool:
    """Whether the plain numbers of a memory step can be; its columns are looked at where they are unpacked."""
    allocator = step.allocator
    workspaces = all(0 <= size <= _MAX_COUNTED for size in allocator.workspace_bytes)
    spans = all(0 <= span.begin_ns <= span.end_ns <= _MAX_NS for span in step.phases)
    return workspaces and spans and _all_possible(allocator) and _all_possible(step)


def _all_possible(part: Any) -> bool:
    values = [getattr(part, name) for name in part.__struct_fields__]
    numbers = [number for value in values for number in (value.values() if isinstance(value, dict) else (value,))]
    return all(0 <= number <= _MAX_COUNTED for number in numbers if type(number) is int)


def _possible(part: Part, wrong: list[str]) -> Part:
    """The part with `None` for each number below 0 or beyond all that is counted; `wrong` grows by their names."""
    bad = [
        name
        for name in part.__struct_fields__
        if type(value := getattr(part, name)) is int and not 0 <= value <= _MAX_COUNTED and name != "seed"
    ]
    wrong.extend(bad)
    nothing: dict[str, Any] = dict.fromkeys(bad)
    return replace(part, **nothing)


def _events(count: int) -> str:
    return "1 event has" if count == 1 else f"{count:,} events have"
