"""Damage to a trace: the calls of an operator dropped, doubled, moved to another phase, or off by one.

Events are moved so that every other one keeps its place in the nesting, as if the operator had run so.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def planted(source: Path, target: Path, damage: Callable[[list[Event]], None]) -> Path:
    """The trace in `source` with its events damaged, in `target`."""
    document = json.loads(source.read_text())
    damage(document["traceEvents"])
    target.write_text(json.dumps(document))
    return target


def dropped(name: str) -> Callable[[list[Event]], None]:
    """The first call of the operator, and all that ran below it, did not happen."""

    def damage(events: list[Event]) -> None:
        _cut(events, _first(events, name))

    return damage


def doubled(name: str) -> Callable[[list[Event]], None]:
    """The first call of the operator runs once more right after itself."""

    def damage(events: list[Event]) -> None:
        event = _first(events, name)
        pasted = [copy.deepcopy(one) for one in _below(events, event)]
        _paste(events, pasted, _end(event), event["tid"])

    return damage


def moved(name: str, into: str) -> Callable[[list[Event]], None]:
    """The first call of the operator runs in the phase range `into` instead."""

    def damage(events: list[Event]) -> None:
        event = _first(events, name)
        cut = _cut(events, event)
        phase = _first(events, f"opanatomy.phase/{into}")
        _paste(events, cut, _end(phase) - 1e-3, event["tid"])

    return damage


def off_by_one(name: str) -> Callable[[list[Event]], None]:
    """The first call of the operator, and what does its work below it, was given one row (or sample) more."""

    def damage(events: list[Event]) -> None:
        for event in _below(events, _first(events, name)):
            dims = [dim for dim in event.get("args", {}).get("Input Dims", []) if dim and isinstance(dim[0], int)]
            rows = next((dim[0] for dim in dims if len(dim) > 1), None)
            for dim in dims:
                if len(dim) > 1 and dim[0] == rows:
                    dim[0] += 1

    return damage


def _first(events: list[Event], name: str) -> Event:
    return min((event for event in events if event.get("name") == name and event["ph"] == "X"), key=lambda e: e["ts"])


def _end(event: Event) -> float:
    return float(event["ts"]) + float(event["dur"])


def _below(events: list[Event], event: Event) -> list[Event]:
    """The event and those on its thread inside of it."""
    return [
        one
        for one in events
        if one["ph"] == "X" and one.get("tid") == event["tid"] and event["ts"] <= one["ts"] and _end(one) <= _end(event)
    ]


def _cut(events: list[Event], event: Event) -> list[Event]:
    cut = _below(events, event)
    for one in cut:
        events.remove(one)
    return cut


def _paste(events: list[Event], pasted: list[Event], at: float, thread: int) -> None:
    """Put the events at a time, what was later being later by their length, and what was open then longer."""
    begin = min(one["ts"] for one in pasted)
    length = max(map(_end, pasted)) - begin + 2e-3
    for event in events:
        if event["ph"] != "X":
            continue
        if event["ts"] >= at:
            event["ts"] += length
        elif _end(event) > at:
            event["dur"] += length
    for one in pasted:
        one["ts"] += at + 1e-3 - begin
    events.extend(pasted)
