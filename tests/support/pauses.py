"""Time put into a kept trace of a device."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

from tests.support.paths import TRACES

DLRM: Final = TRACES / "gpu_v100_dlrm_rank0of8.json.gz"
Events: TypeAlias = "list[dict[str, Any]]"


def events_of(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return document


def on_the_device(events: Events) -> Events:
    work = (event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"))
    return sorted(work, key=lambda event: event["ts"])


def pause(events: Events, at: int, length: int) -> None:
    """Time inserted into all clocks at a moment (us): what runs then lasts longer, what comes later is later."""
    for event in events:
        if "ts" not in event:
            continue
        if event["ts"] > at:
            event["ts"] += length
        elif event.get("ph") == "X" and event["ts"] + event.get("dur", 0) > at:
            event["dur"] += length


def running(events: Events, at: float) -> Events:
    return [event for event in on_the_device(events) if event["ts"] <= at < event["ts"] + event["dur"]]


def moment(events: Events, wanted: Callable[[Events], bool]) -> int:
    """The middle of the longest time in which what runs on the device is as wanted."""
    bounds = sorted({time for event in on_the_device(events) for time in (event["ts"], event["ts"] + event["dur"])})
    length, begin = max(
        (end - begin, begin) for begin, end in pairwise(bounds) if end - begin > 1 and wanted(running(events, begin))
    )
    return int(begin + length // 2)
