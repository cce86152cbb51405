"""Write an annotated trace, with tracks of operator classes and phases and with rates, in bounded memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from heapq import heappop, heappush
from io import BufferedWriter
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.io.redact import Redaction
from opanatomy.records.columns import Float64, Int64, Overlay
from opanatomy.records.patterns import regex
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.trace.salvage import NOT_DECODABLE, Buffer, EventDecoder, listed, mend
from opanatomy.trace.stream import EventStream

# Turn an overlay into events: a track of classes and one of phases for each stream, and counters.


#: The category of all added events, so that they are recognized when the trace is annotated again.
CATEGORY: Final = "opanatomy"
#: Maximum number of points of a counter, including its end.
POINTS: Final = 2000
_SHORTEST_BIN_NS: Final = 1000

#: Names that Chrome's and Perfetto's colour schemes reserve.
CLASS_COLOURS: Final = {
    OperatorClass.TENSOR_CONTRACTION: "thread_state_running",
    OperatorClass.STATISTICAL_NORMALIZATION: "rail_response",
    OperatorClass.ELEMENTWISE: "yellow",
    OperatorClass.DATA_MOVEMENT: "thread_state_iowait",
    OperatorClass.COMMUNICATION: "rail_animation",
    OperatorClass.OTHER: "grey",
    OperatorClass.UNKNOWN: "terrible",
}
PHASE_COLOURS: Final = {
    Phase.FORWARD: "good",
    Phase.BACKWARD: "rail_load",
    Phase.RECOMPUTE: "bad",
    Phase.OPTIMIZER: "vsync_highlight_color",
    Phase.PREFILL: "good",
    Phase.DECODING: "rail_load",
    Phase.OTHER: "grey",
}


def overlay_events(overlay: Overlay, process: int) -> Iterator[str]:
    """Yield the events, as JSON, of a process with this number."""
    if not len(overlay.track):
        return
    yield _name("process_name", process, process, {"name": CATEGORY})
    yield _name("process_labels", process, process, {"labels": "operator classes, phases, rates"})
    yield _name("process_sort_index", process, process, {"sort_index": -1})
    thread = process
    order = np.lexsort((overlay.start_ns, overlay.track))
    for rows in np.split(order, np.flatnonzero(np.diff(overlay.track[order])) + 1):
        label = overlay.tracks[int(overlay.track[rows[0]])]
        thread += 1
        yield from _thread(process, thread, f"{label}: phases")
        yield from _phases(overlay, rows, process, thread)
        for number, lane in enumerate(lanes(overlay.start_ns[rows], overlay.duration_ns[rows])):
            thread += 1
            yield from _thread(process, thread, f"{label}: classes" + (f" ({number + 1})" if number else ""))
            yield from _classes(overlay, rows[lane], process, thread)
    yield from _counters(overlay, process)


def lanes(start_ns: Int64, duration_ns: Int64) -> list[Int64]:
    """Split rows (sorted by start) into lanes without overlap: a viewer takes overlap for nesting."""
    end = start_ns + duration_ns
    if not (start_ns[1:] < np.maximum.accumulate(end)[:-1]).any():
        return [np.arange(len(start_ns))]
    free: list[tuple[int, int]] = []
    rows_of_lanes: list[list[int]] = []
    for row, (begins, ends) in enumerate(zip(start_ns.tolist(), end.tolist(), strict=True)):
        if free and free[0][0] <= begins:
            lane = heappop(free)[1]
        else:
            lane = len(rows_of_lanes)
            rows_of_lanes.append([])
        rows_of_lanes[lane].append(row)
        heappush(free, (ends, lane))
    return [np.array(rows, dtype=np.int64) for rows in rows_of_lanes]


def _classes(overlay: Overlay, rows: Int64, process: int, thread: int) -> Iterator[str]:
    heads = [_head(str(one), CLASS_COLOURS[one], process, thread) for one in OperatorClass]
    phases = [json.dumps(str(phase)) for phase in Phase]
    operators = [json.dumps(name) for name in overlay.operators]
    modules = [json.dumps(name) for name in overlay.modules]
    columns = (
        overlay.start_ns,
        overlay.duration_ns,
        overlay.operator_class,
        overlay.operator,
        overlay.phase,
        overlay.module,
        overlay.flops,
        overlay.bytes,
        overlay.inside,
    )
    for start, duration, kind, operator, phase, module, flops, size, inside in zip(
        *(column[rows].tolist() for column in columns), strict=True
    ):
        arguments = [f'"phase":{phases[phase]}' if inside else '"phase":"outside the window"']
        if operator >= 0:
            arguments.append(f'"operator":{operators[operator]}')
        if module >= 0:
            arguments.append(f'"module":{modules[module]}')
        if flops >= 0:
            arguments.append(f'"FLOPs":{flops}')
        if size >= 0:
            arguments.append(f'"bytes":{size}')
        yield f'{heads[kind]},"ts":{_us(start)},"dur":{_us(duration)},"args":{{{",".join(arguments)}}}}}'


def _phases(overlay: Overlay, rows: Int64, process: int, thread: int) -> Iterator[str]:
    """Yield one event per run of work in the same phase, cut where the next one begins."""
    rows = rows[overlay.inside[rows]]
    if not len(rows):
        return
    phase, start = overlay.phase[rows], overlay.start_ns[rows]
    end = start + overlay.duration_ns[rows]
    first = np.flatnonzero(np.concatenate(([True], phase[1:] != phase[:-1])))
    ends = np.maximum.reduceat(end, first)
    ends[:-1] = np.minimum(ends[:-1], start[first[1:]])
    counts = np.diff(np.append(first, len(rows)))
    heads = [_head(str(one), PHASE_COLOURS.get(one, "grey"), process, thread) for one in Phase]
    for kind, begins, stops, count in zip(
        phase[first].tolist(), start[first].tolist(), ends.tolist(), counts.tolist(), strict=True
    ):
        yield f'{heads[kind]},"ts":{_us(begins)},"dur":{_us(stops - begins)},"args":{{"pieces":{count}}}}}'


def _counters(overlay: Overlay, process: int) -> Iterator[str]:
    for name, amounts, unit in (("FLOP/s", overlay.flops, 1e9), ("GB/s", overlay.bytes, 1.0)):
        known = np.flatnonzero((amounts > 0) & (overlay.duration_ns > 0))
        if not len(known):
            continue
        edges, rates = rate_over_time(overlay.start_ns[known], overlay.duration_ns[known], amounts[known])
        last = None
        for at, rate in zip(edges.tolist(), [*rates.tolist(), 0.0], strict=True):
            value = float(f"{rate * unit:.6g}")
            if value != last:
                yield (
                    f'{{"ph":"C","cat":"{CATEGORY}","name":"{name}","pid":{process},"tid":{process},'
                    f'"ts":{_us(at)},"args":{{"{name}":{value}}}}}'
                )
            last = value


def rate_over_time(start_ns: Int64, duration_ns: Int64, amount: Int64) -> tuple[Int64, Float64]:
    """Return (edges of equal bins, amount a nanosecond in each); each amount is spread evenly over its interval."""
    origin, end = int(start_ns.min()), int((start_ns + duration_ns).max())
    width = max(-(-(end - origin) // (POINTS - 1)), _SHORTEST_BIN_NS)
    bins = -(-(end - origin) // width)
    begins = start_ns - origin
    ends = begins + duration_ns
    first, last = begins // width, (ends - 1) // width
    rate = amount / duration_ns
    one = first == last
    many = ~one
    amounts = np.zeros(bins)
    np.add.at(amounts, first[one], amount[one])
    np.add.at(amounts, first[many], ((first + 1) * width - begins)[many] * rate[many])
    np.add.at(amounts, last[many], (ends - last * width)[many] * rate[many])
    inner, running = np.zeros(bins + 1), np.zeros(bins + 1, dtype=np.int64)
    for indices, sign in ((first[many] + 1, 1), (last[many], -1)):
        np.add.at(inner, indices, sign * rate[many])
        np.add.at(running, indices, sign)
    # A sum of floats that should be 0 is not quite; the number of pieces is exact.
    amounts += np.where(np.cumsum(running) > 0, np.cumsum(inner), 0.0)[:bins] * width
    return origin + np.arange(bins + 1) * width, amounts / width


def _thread(process: int, thread: int, label: str) -> Iterator[str]:
    yield _name("thread_name", process, thread, {"name": label})
    yield _name("thread_sort_index", process, thread, {"sort_index": thread})


def _name(kind: str, process: int, thread: int, arguments: dict[str, object]) -> str:
    event = {"ph": "M", "cat": CATEGORY, "name": kind, "pid": process, "tid": thread, "ts": 0, "args": arguments}
    return json.dumps(event, separators=(",", ":"))


def _head(name: str, colour: str, process: int, thread: int) -> str:
    text = name.replace("_", " ")
    return f'{{"ph":"X","cat":"{CATEGORY}","name":"{text}","cname":"{colour}","pid":{process},"tid":{thread}'


def _us(ns: int) -> str:
    """Return nanoseconds as microseconds, with every digit."""
    whole, rest = divmod(abs(ns), 1000)
    sign = "-" if ns < 0 else ""
    return f"{sign}{whole}.{rest:03d}" if rest else f"{sign}{whole}"


_PROCESS: Final = regex(rb'"pid"\s*:\s*"?(\d{1,18})')
#: The first process number to try: no operating system and no profiler gives one so large.
FIRST_PROCESS: Final = 1_000_000_000
#: Common leading digits of this number and the next ones: a text without them contains none of the numbers.
_PREFIX: Final = b"1000000"
_BATCH: Final = 4096
_PACKED_AT_ONCE: Final = 1 << 20
_BRACE: Final = ord("{")


class Annotated(Struct, frozen=True, kw_only=True):
    """The annotated trace to write: its path, and whether to leave out paths, stacks and names too."""

    path: Path
    redact: bool = False


def write_trace(source: Path, wanted: Annotated, overlay: Overlay, metadata: Mapping[str, object]) -> int:
    """Write the trace in `source` and its overlay to `wanted.path`; return how many values were redacted.

    The text of an event is kept unless redaction changes it; events that are not valid JSON are left out.
    """
    redaction = Redaction(metadata, everything=wanted.redact)
    processes: set[int] = set()
    with _opened(wanted.path) as target:
        target.write(b"{")
        for key, value in redaction.metadata().items():
            target.write(msgspec.json.encode(key) + b":" + msgspec.json.encode(value) + b",\n")
        target.write(b'"traceEvents":[')
        separator = b"\n"
        for events in raw_events(source):
            text = redaction.events(events)
            if _PREFIX in text:
                processes.update(map(int, _PROCESS.findall(text)))
            if text:
                target.write(separator + text)
                separator = b",\n"
        process = FIRST_PROCESS
        while process in processes:
            process += 1
        overlay = replace(
            overlay,
            tracks=tuple(map(redaction.redactor.text, overlay.tracks)),
            operators=tuple(map(redaction.redactor.text, overlay.operators)),
            modules=tuple(map(redaction.redactor.module, overlay.modules)),
        )
        own_events = overlay_events(overlay, process)
        while batch := list(islice(own_events, _BATCH)):
            target.write(separator + ",\n".join(batch).encode())
            separator = b",\n"
        target.write(b"\n]}\n")
    return redaction.changes


class _TextDecoder(EventDecoder):
    """Checks events and keeps their text."""

    _texts: Final = msgspec.json.Decoder(list[msgspec.Raw])

    def many(self, text: Buffer) -> list[Any] | None:
        """Return the text of each event; `None` if they are not JSON objects with commas between."""
        array = listed(text)
        for mended in (False, True):
            try:
                whole = mend(array) if mended else array
                if not whole.isascii():
                    whole.decode()  # all of it must be UTF-8; the decoder does not check what it skips
                texts = self._texts.decode(whole)
            except NOT_DECODABLE:
                continue
            return texts if all(memoryview(raw)[0] == _BRACE for raw in texts) else None
        return None

    def one(self, text: bytes) -> Any:
        """Return the text of one event; `None` if it is not a JSON object."""
        texts = self.many(text)
        return texts[0] if texts is not None and len(texts) == 1 else None


class _Texts(EventStream):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._decoder = _TextDecoder()


def raw_events(source: Path) -> Iterator[list[msgspec.Raw]]:
    """Yield the events of a trace as checked JSON text, about a megabyte at a time."""
    for texts in _Texts(source):
        yield cast("list[msgspec.Raw]", texts)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    with path.open("wb") as file:
        if not path.name.endswith(".gz"):
            yield file
            return
        from isal import igzip

        # Without file name and time the same input gives the same bytes. Small writes pack badly.
        packed = igzip.IGzipFile(filename="", fileobj=file, mode="wb", compresslevel=2, mtime=0)
        with packed, BufferedWriter(packed, _PACKED_AT_ONCE) as buffered:
            yield buffered
