"""Read a CUDA memory snapshot (`torch.cuda.memory._dump_snapshot`), of any torch since 2.1 and any pickle protocol.

A pickle is a program. It runs in a separate process with a memory limit, in an unpickler that admits no classes, so
that it can only create lists, dictionaries, texts and numbers.
"""

from __future__ import annotations

import gzip
import os
import pickle
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec
import numpy as np
from msgspec import Struct

from opanatomy.errors import TraceError
from opanatomy.io.process import started
from opanatomy.records.columns import Int64
from opanatomy.records.snapshot import (
    ACTIONS,
    ALLOCATED,
    STATES,
    Annotation,
    Frame,
    History,
    SegmentBlocks,
    Segments,
    Snapshot,
)

_GZIP: Final = b"\x1f\x8b"
#: Packed better than this, beyond the first megabytes, a file is a bomb.
_PACKED_MOST: Final = 200
_PACKED_FROM: Final = 16 << 20
_HEAD: Final = 1 << 12
_CHUNK: Final = 1 << 20
#: Maximum size of the objects relative to their pickle, and the base memory.
_OBJECTS: Final = 5
#: Events that become columns at once; then they go.
_EVENTS_AT_ONCE: Final = 100_000
_BESIDES: Final = 256 << 20
_PROGRESS: Final = b"%"
_TELLS = True
#: The first bytes of a pickle: protocol 2 and later name themselves; of 0 and 1 the dictionary or list of a snapshot.
_HEADS: Final = (*(bytes((0x80, protocol)) for protocol in range(2, 6)), b"(dp", b"(lp", b"}q", b"]q", b"(d", b"(l")


def is_pickle(path: Path) -> bool:
    """Return whether a file, packed or not, begins as a pickle does."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
        if head.startswith(_GZIP):
            head = zlib.decompressobj(31).decompress(head, 16)
    except (OSError, zlib.error):
        return False
    return head.startswith(_HEADS)


def read_snapshot(path: Path, advance: Callable[[float], None] = lambda share: None) -> Snapshot:
    """Return the snapshot in a file; `advance` gets the share of it that is read.

    Raises `TraceError` with one line for a file that is no snapshot, is damaged, would call something or needs more
    memory than its size allows.
    """
    with started(__name__, os.fspath(path), stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            while (line := process.stdout.readline()).startswith(_PROGRESS):
                advance(float(line[1:]))
            sent = process.stdout.read()
        except BaseException:
            process.kill()
            raise
    if process.returncode or not sent:
        raise TraceError(f"cannot read the snapshot {path}: the process reading it ended ({process.returncode})")
    made = msgspec.msgpack.decode(sent, type=Sent)
    if made.error is not None or made.snapshot is None:
        raise TraceError(f"cannot read the snapshot {path}: {made.error}")
    snapshot = received(made.snapshot)
    if not snapshot.histories and not len(snapshot.segments.device):
        raise TraceError(
            f"cannot read the snapshot {path}: it contains neither segments nor a device history - was CUDA used?"
        )
    return snapshot


# ----- in the process of its own


class _Refused(Exception):  # told as a line, never raised to a user
    """Why the pickle is rejected, in words."""


class _Plain(pickle.Unpickler):
    """An unpickler of lists, dictionaries, texts and numbers."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise _Refused(
            f"not a memory snapshot: this pickle refers to {module}.{name}, and a snapshot refers to no class"
        )

    def persistent_load(self, pid: object) -> NoReturn:
        raise _Refused("not a memory snapshot: its pickle refers to objects outside it")


class _ProgressFile:
    """A file that reports reading progress."""

    def __init__(self, file: Any, size: int) -> None:
        self.file, self.size, self.at, self.told = file, max(size, 1), 0, 0.0

    def read(self, size: int = -1) -> bytes:
        return self._noted(self.file.read(size))

    def readline(self) -> bytes:
        return self._noted(self.file.readline())

    def readinto(self, buffer: Any) -> int:
        count: int = self.file.readinto(buffer)
        self._noted(b"", count)
        return count

    def _noted(self, data: bytes, count: int = 0) -> bytes:
        self.at += len(data) + count
        if _TELLS and (share := self.at / self.size) > self.told + 0.02:
            self.told = share
            sys.stdout.write(f"%{min(share, 1):.2f}\n")
            sys.stdout.flush()
        return data


class Sent(Struct):
    """The process's message: the snapshot with its columns as bytes, or the error."""

    snapshot: dict[str, Any] | None = None
    error: str | None = None


def main() -> None:
    """Read the file that the command line names, and write it as columns to stdout."""
    import gc

    gc.disable()  # nothing here is freed before the end
    sent = sent_of(Path(sys.argv[1]))
    sys.stdout.write("\n")
    sys.stdout.flush()
    sys.stdout.buffer.write(sent)
    sys.stdout.buffer.flush()
    os._exit(0)  # taking the objects apart takes as long as making them


def sent_of(path: Path) -> bytes:
    """Return `Sent` as bytes: the columns of the snapshot in a file, or what is wrong with it in words."""
    error = ""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP
        size = _unpacked_bytes(path) if packed else path.stat().st_size
        _limit_memory(_OBJECTS * size + _BESIDES)
        with path.open("rb") as file, gzip.open(file) if packed else nullcontext(file) as plain:
            snapshot = _Plain(_ProgressFile(plain, size)).load()
        return msgspec.msgpack.encode(Sent(snapshot=_columns(snapshot)))
    except _Refused as refused:
        error = str(refused)
    except MemoryError:
        error = f"loading it needs more memory than {_OBJECTS} times the file's (unpacked) size - is it a snapshot?"
    except OSError as failed:
        error = failed.strerror or str(failed)
    except Exception as damage:  # of unpickling what is damaged there are as many kinds as there are opcodes
        error = f"it is damaged or truncated ({' '.join(str(damage).split())[:200] or type(damage).__name__})"
    return msgspec.msgpack.encode(Sent(error=_encodable(error)))


def _unpacked_bytes(path: Path) -> int:
    """Return the size of a packed file, without keeping it."""
    size, most = 0, max(_PACKED_FROM, _PACKED_MOST * path.stat().st_size)
    try:
        with gzip.open(path) as plain:
            while chunk := plain.read(_CHUNK):
                size += len(chunk)
                if size > most:
                    raise _Refused(f"it unpacks to more than {_PACKED_MOST} times its size - is it a gzip bomb?")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _Refused(f"it is truncated or damaged ({error}) - copy it again") from error
    return size


def _limit_memory(more: int) -> None:
    """Limit this process to this much more memory, where the system supports that."""
    if sys.platform == "linux":
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        with suppress(ValueError, OSError):
            hard = resource.getrlimit(resource.RLIMIT_AS)[1]
            wanted = used + more
            resource.setrlimit(
                resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
            )


def _columns(snapshot: Any) -> dict[str, Any]:
    """Return the snapshot as columns, each as bytes."""
    if isinstance(snapshot, list):  # `torch.cuda.memory_snapshot()`, which has no history
        snapshot = {"segments": snapshot, "device_traces": []}
    if not isinstance(snapshot, dict) or not isinstance(snapshot.get("segments"), list):
        raise _Refused(
            "it is a pickle, but not a memory snapshot - pass the file that torch.cuda.memory._dump_snapshot wrote"
        )
    tables = _Tables()
    traces = snapshot.get("device_traces") or []
    histories = [tables.history(device, trace) for device, trace in enumerate(traces) if trace]
    segments, blocks = tables.segments(snapshot["segments"])
    # The ranges that the allocator was told of, from their beginnings and ends.
    annotations = []
    begun: dict[tuple[str, int], list[int]] = {}
    for row in snapshot.get("external_annotations") or []:
        key = _encodable(row["name"]), int(row.get("device", 0))
        if row.get("stage") == "START":
            begun.setdefault(key, []).append(int(row["time_us"]))
        elif begun.get(key):
            annotations.append((*key, begun[key].pop(), int(row["time_us"])))
    settings = snapshot.get("allocator_settings") or {}
    return {
        "histories": histories,
        "segments": segments,
        "blocks": blocks,
        "frames": tables.frames(),
        "stacks": list(tables.stack_of),
        "metadata": list(tables.metadata),
        "pools": list(tables.pools),
        "annotations": annotations,
        "settings": {_encodable(key): _encodable(value) for key, value in settings.items()},
        "unknown_actions": list(tables.unknown),
    }


class _Tables:
    """The distinct texts, frames and stacks of a snapshot, numbered in order of appearance."""

    def __init__(self) -> None:
        self.actions = {name: index for index, name in enumerate(ACTIONS)}
        self.unknown: dict[str, None] = {}
        self.metadata: dict[str, int] = {}
        self.pools: dict[tuple[int, int], int] = {}
        self.stack_of: dict[tuple[int, ...], int] = {}
        #: Frames by object address; the frame is kept alive with it, so that the address is not reused.
        self._places: dict[int, tuple[int, dict[str, Any]]] = {}
        self._frames: dict[tuple[str, str, int], int] = {}
        self._seen: dict[tuple[int, ...], int] = {}

    def history(self, device: int, trace: list[dict[str, Any]]) -> dict[str, Any]:
        """Return one device's history as columns, releasing its events part by part."""
        parts: list[dict[str, bytes]] = []
        for begin in range(0, len(trace), _EVENTS_AT_ONCE):
            part = trace[begin : begin + _EVENTS_AT_ONCE]
            parts.append(
                {
                    "action": _packed([self._action(name) for name in map(itemgetter("action"), part)]),
                    "size": _packed(map(itemgetter("size"), part), 0),
                    "address": _packed(
                        [one["addr"] if "addr" in one else one.get("device_free", 0) for one in part], 0
                    ),
                    "stream": _packed([one.get("stream", 0) for one in part], 0),
                    "time_us": _packed([one.get("time_us", index) for index, one in enumerate(part, begin)]),
                    "stack": _packed([self._stack(one.get("frames")) for one in part]),
                    "metadata": _packed([self._text(one.get("user_metadata")) for one in part]),
                    # N/A outside of a compiled region
                    "compiled": _packed(
                        [
                            -1 if one.get("compile_context") == "N/A" else self._text(one.get("compile_context"))
                            for one in part
                        ]
                    ),
                }
            )
            trace[begin : begin + _EVENTS_AT_ONCE] = [{}] * len(part)
        return {"device": device, **{name: b"".join(part[name] for part in parts) for name in parts[0]}}

    def segments(self, rows: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the columns of the segments, and of their blocks."""
        blocks: list[tuple[int, int, int, int, int, int]] = []
        pools = []
        for number, row in enumerate(rows):
            pool = row.get("segment_pool_id", (0, 0))
            pools.append(self.pools.setdefault((int(pool[0]), int(pool[1])), len(self.pools)))
            address = row["address"]
            for block in row["blocks"]:
                address = block.get("address", address)
                state = STATES.index(block["state"]) if block["state"] in STATES else STATES.index("inactive")
                frames = block.get("frames") or (block["history"][0].get("frames") if block.get("history") else None)
                size = block["size"]
                requested = block.get("requested_size", size)
                if size < 0 or (state == ALLOCATED and not 0 <= requested <= size):
                    raise _Refused(f"it is damaged: {requested} bytes were requested from a block of {size}")
                blocks.append((number, address, size, requested, state, self._stack(frames)))
                address += size
        of_segments = {
            "device": _packed([row.get("device", 0) for row in rows], 0),
            "address": _packed([row["address"] for row in rows], 0),
            "total": _packed([row["total_size"] for row in rows], 0),
            "stream": _packed([row.get("stream", 0) for row in rows], 0),
            "pool": _packed(pools),
            "is_large": _packed([row.get("segment_type") != "small" for row in rows]),
            "is_expandable": _packed([bool(row.get("is_expandable")) for row in rows]),
        }
        names = ("segment", "address", "size", "requested", "state", "stack")
        return of_segments, dict(
            zip(names, map(_packed, zip(*blocks, strict=True) if blocks else [()] * 6), strict=True)
        )

    def frames(self) -> list[tuple[str, str, int]]:
        """Return the distinct frames."""
        return list(self._frames)

    def _action(self, name: str) -> int:
        index = self.actions.get(name)
        if index is None:
            self.unknown[_encodable(name)[:64]] = None
            return -1
        return index

    def _text(self, text: object) -> int:
        return self.metadata.setdefault(_encodable(text), len(self.metadata)) if isinstance(text, str) and text else -1

    def _stack(self, frames: Sequence[dict[str, Any]] | None) -> int:
        """Return a stack's number; frames are shared between stacks, so they are identified by address."""
        if not frames:
            return -1
        ids = tuple(map(id, frames))
        known = self._seen.get(ids)
        if known is None:
            stack = []
            for frame in frames:
                place = self._places.get(id(frame))
                if place is None:
                    name, filename = _encodable(frame.get("name", "")), _encodable(frame.get("filename", ""))
                    key = name, filename, int(frame.get("line") or 0)
                    place = self._places[id(frame)] = self._frames.setdefault(key, len(self._frames)), frame
                stack.append(place[0])
            known = self._seen[ids] = self.stack_of.setdefault(tuple(stack), len(self.stack_of))
        return known


def _encodable(text: object) -> str:
    """Return a text with a mark for what is no Unicode: a name of a file may be any bytes."""
    return str(text).encode(errors="replace").decode()


#: Maximum address, size or time, so that sums stay integers.
_MAX_INTEGER: Final = 1 << 56


def _packed(values: Any, least: int = -1) -> bytes:
    """Return a column of whole numbers, which are at least this, as bytes."""
    column = np.array(values if isinstance(values, (list, tuple)) else list(values))
    if len(column) and (
        column.dtype.kind not in "iub" or int(column.max()) > _MAX_INTEGER or int(column.min()) < least
    ):
        raise _Refused("it is damaged: a size, an address or a time in it is impossible")
    return column.astype(np.int64).tobytes()


# ----- back in the process that asked


def received(sent: dict[str, Any]) -> Snapshot:
    """Return the snapshot that the process sent."""

    def columns(table: dict[str, Any], *masks: str) -> dict[str, Any]:
        return {
            name: value if isinstance(value, int) else _column(value).astype(bool) if name in masks else _column(value)
            for name, value in table.items()
        }

    return Snapshot(
        histories=tuple(History(**columns(table)) for table in sent["histories"]),
        segments=Segments(**columns(sent["segments"], "is_large", "is_expandable")),
        blocks=SegmentBlocks(**columns(sent["blocks"])),
        frames=tuple(Frame(*row) for row in sent["frames"]),
        stacks=tuple(map(tuple, sent["stacks"])),
        metadata=tuple(sent["metadata"]),
        pools=tuple((a, b) for a, b in sent["pools"]),
        annotations=tuple(Annotation(*row) for row in sent["annotations"]),
        settings=sent["settings"],
        unknown_actions=tuple(sent["unknown_actions"]),
    )


def _column(data: bytes) -> Int64:
    return np.frombuffer(data, dtype=np.int64)
