"""A trace repeated N times on end: times, ids and step numbers go on, all else stays as it is in the text.

    python benchmarks/repeat.py TRACE N OUTPUT.json.gz

The metadata is not repeated: what a capture told about tensor lists holds for the first copy only.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

#: What changes from copy to copy: the whole microseconds of a time, an id, the number of a step.
_TIME = r'"ts":\s*"?(?=\d)'
_ID = r'"(?:[Ee]xternal id|correlation|Seq(?:uence)? number|Ev Idx|Ev Parent Idx|id)":\s*"?(?=\d)'
_STEP = r'"ProfilerStep#(?=\d)'
_NUMBER = re.compile(rf"(?:({_TIME})|({_ID})|({_STEP}))(\d+)")
_GAP_US = 1000
_IDS = ("External id", "external id", "correlation", "Sequence number", "Seq number", "Ev Idx")


class Shift(Struct, frozen=True, kw_only=True):
    """What a copy adds to the one before."""

    time: int
    id: int
    step: int


def repeat(source: Path, times: int, target: Path) -> None:
    """Write `times` copies of the events of `source` to `target`; compressed as fast as can be."""
    raw = source.read_bytes()
    text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode(errors="replace")
    begin = text.index("[", text.index('"traceEvents"')) if text.lstrip().startswith("{") else text.index("[")
    events, end = json.JSONDecoder(strict=False).raw_decode(text, begin)
    shift = shift_of(events)
    del events
    body = text[begin + 1 : end - 1].strip()
    with gzip.open(target, "wt", compresslevel=1, encoding="utf-8") as out:
        out.write(text[: begin + 1] + "\n  ")
        for number, copy in enumerate(copies(body, times, shift)):
            out.write((",\n  " if number else "") + copy)
        out.write("\n  " + text[end - 1 :])


def shift_of(events: Sequence[dict[str, Any]]) -> Shift:
    """As much as keeps the copies apart."""
    timed = [event for event in events if event.get("ph") == "X" and "ts" in event]
    first = min(float(event["ts"]) for event in timed)
    last = max(float(event["ts"]) + float(event.get("dur") or 0) for event in timed)
    ids = ((event.get("args") or {}).get(key) for event in timed for key in _IDS)
    flows = (event.get("id") for event in events)
    names = (re.fullmatch(r"ProfilerStep#(\d+)", str(event.get("name"))) for event in timed)
    steps = [int(match[1]) for match in names if match]
    return Shift(
        time=int(last - first) + _GAP_US,
        id=max((int(number) for number in (*ids, *flows) if isinstance(number, int)), default=0) + 1,
        step=max(steps) - min(steps) + 1 if steps else 0,
    )


def copies(body: str, times: int, shift: Shift) -> Iterator[str]:
    """The text of each copy; the first is `body` itself."""
    literals: list[str] = []
    numbers: list[tuple[int, int]] = []
    at = 0
    for match in _NUMBER.finditer(body):
        is_time, is_id = match[1] is not None, match[2] is not None
        literals.append(body[at : match.start(4)])
        numbers.append((int(match[4]), shift.time if is_time else shift.id if is_id else shift.step))
        at = match.end()
    for copy in range(times):
        words: list[str] = []
        for literal, (number, step) in zip(literals, numbers, strict=True):
            words += (literal, str(number + copy * step))
        yield "".join((*words, body[at:]))


def main() -> None:
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    repeat(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))


if __name__ == "__main__":
    main()
