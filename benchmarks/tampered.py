"""Damage traces and print what the report says of it: a figure that changes by 1 % must come with a check that notices.

    python benchmarks/tampered.py TRACE...

Two correlation ids are swapped (ten random pairs, half of them of long kernels), a stream is moved by 1 ms either way,
1 % of the kernels are dropped, ten are there twice. Of each the table has the figure that changed most (classes,
phases, busy and idle time; of a class or phase as a part of all work) and what is noticed.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import opanatomy
from opanatomy.records.anatomy import Anatomy

Event = dict[str, Any]
PAIRS, TWICE = 10, 10


def main() -> None:
    """Print the table of each trace; exit 1 where a change goes unnoticed."""
    unnoticed = 0
    for name in sys.argv[1:]:
        path = Path(name)
        document = json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_text())
        whole = _figures(opanatomy.analyze(path))
        print(f"{path.name}\n{'damage':44} {'changes':>8}  {'figure':16} noticed")
        for kind, events in _damaged(document):
            anatomy = _analyzed(document, events)
            figure, change = max(
                ((key, abs(value - whole.get(key, 0))) for key, value in _figures(anatomy).items()),
                key=lambda item: item[1],
            )
            noticed = _noticed(anatomy)
            missed = change >= 0.01 and not noticed
            unnoticed += missed
            print(f"{kind:44} {change:8.2%}  {figure:16} {noticed or ('MISSED' if missed else '-')}")
    sys.exit(bool(unnoticed))


def _analyzed(document: Any, events: list[Event]) -> Anatomy:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tampered.json"
        path.write_text(json.dumps(events if isinstance(document, list) else {**document, "traceEvents": events}))
        return opanatomy.analyze(path)


def _figures(anatomy: Anatomy) -> dict[str, float]:
    """Times of classes and phases as parts of all work, busy and idle time as parts of the window."""
    work, window = sum(row.time_ns for row in anatomy.classes), anatomy.timeline.window_ns
    figures: dict[str, float] = {}
    for row in anatomy.classes:
        for key in (str(row.operator_class)[:16], str(row.phase)):
            figures[key] = figures.get(key, 0) + row.time_ns / work
    return figures | {"busy": anatomy.timeline.busy_ns / window, "idle": anatomy.timeline.idle_ns / window}


def _noticed(anatomy: Anatomy) -> str:
    alarms = anatomy.alarms
    said = [
        f"{'alarm' if check in alarms else 'ledger'}: {check.quantity}" for check in anatomy.checks if check.unexplained
    ]
    return "; ".join(said)


def _damaged(document: Any) -> Iterator[tuple[str, list[Event]]]:
    events: list[Event] = document if isinstance(document, list) else document["traceEvents"]
    chance = random.Random(23)
    kernels = [at for at, event in enumerate(events) if str(event.get("cat")).lower() == "kernel" and event.get("args")]
    known = [at for at in kernels if events[at]["args"].get("correlation")]
    long = sorted(known, key=lambda at: -events[at]["dur"])[: max(len(known) // 50, 10)]
    for number in range(PAIRS):
        first = chance.choice(long if number % 2 else known)
        second = chance.choice([at for at in known if events[at]["name"] != events[first]["name"]])
        pair = {first: events[second], second: events[first]}
        swapped = [_with_ids(event, pair[at]) if at in pair else event for at, event in enumerate(events)]
        yield f"swapped {' and '.join(_short(events[at]) for at in pair)}", swapped
    streams = {(event["args"].get("device"), event["args"]["stream"]): None for event in events if _on_stream(event)}
    for device, stream in streams:
        for by in (1000, -1000):
            moved = [
                {**event, "ts": float(event["ts"]) + by}
                if _on_stream(event) and (event["args"].get("device"), event["args"]["stream"]) == (device, stream)
                else event
                for event in events
            ]
            yield f"stream {stream} moved by {by / 1000:+.0f} ms", moved
    dropped = set(chance.sample(kernels, max(len(kernels) // 100, 1)))
    yield (
        f"{len(dropped)} of {len(kernels)} kernels dropped",
        [event for at, event in enumerate(events) if at not in dropped],
    )
    twice = [copy.deepcopy(events[at]) for at in chance.sample(kernels, min(TWICE, len(kernels)))]
    yield f"{len(twice)} kernels twice", [*events, *twice]


def _on_stream(event: Event) -> bool:
    category = str(event.get("cat")).lower()
    return category in ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset") and "stream" in event.get("args", {})


def _with_ids(event: Event, other: Event) -> Event:
    ids = {key: other["args"][key] for key in ("correlation", "External id", "external id") if key in other["args"]}
    return {**event, "args": {**event["args"], **ids}}


def _short(event: Event) -> str:
    return str(event["name"]).removeprefix("void ").partition("<")[0].partition("(")[0].rpartition("::")[2][:16]


if __name__ == "__main__":
    main()
