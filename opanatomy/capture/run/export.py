"""Describe a profile, and write its trace: the description as its first key, no secrets, no name of the host."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Final, cast

import msgspec
from msgspec.structs import replace

from opanatomy.capture.device.accelerators import is_accelerator
from opanatomy.capture.device.environment import environment_of
from opanatomy.capture.run.observer import Observation
from opanatomy.errors import CaptureError, OutputError
from opanatomy.options import as_asked
from opanatomy.records.workload import METADATA_KEY, Capture, MachineLoad, RunClock
from opanatomy.trace.redact_trace import NOT_DECODABLE, Redaction

_END_BYTES: Final = 256
#: Read this much text at once.
_CHUNK: Final = 1 << 20
#: Kineto writes its own keys, and those of `add_metadata`, before the events.
_LONGEST_HEAD: Final = 64 << 20
_EVENTS: Final = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
#: Kineto's separator of two events; no string of JSON has a line end in it.
_BETWEEN: Final = b"\n  },\n  {"
_END: Final = b"\n  }"
#: Kineto writes names unescaped, even quotes and backslashes; nothing else in an event is a user's own text.
_NAMES: Final = tuple(
    re.compile(rb'^(.*?"name": ")(.*)(' + end + rb")$", re.MULTILINE) for end in (rb'",', rb'", "p(?:id|h)": .*')
)
_END_OF_ALL: Final = re.compile(rb"(?<=\n  \})\s*\]")

NO_NAMES: Final[Mapping[bytes, bytes]] = MappingProxyType({})
_texts: Final = msgspec.json.Decoder(list[msgspec.Raw])


def export_trace(
    profiler: Any, capture: Capture, path: Path, *, everything: bool = False, renamed: Mapping[bytes, bytes] = NO_NAMES
) -> None:
    """Write the trace of `profiler` and the metadata of `capture` to `path`; gzip if the name ends in `.gz`.

    `add_metadata_json` takes effect only while the profiler runs, and part of the metadata is known only after. With
    `everything` paths, arguments, hosts and users are left out too. `renamed` maps our own names, in quotes, to their
    replacements.
    """
    with tempfile.TemporaryDirectory(prefix=".opanatomy-", dir=path.absolute().parent) as folder:
        plain = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(plain))
        if not plain.exists():  # Kineto fails silently
            free = shutil.disk_usage(folder).free
            raise OutputError(
                f"the profiler could not write its trace of this step: {free / 1e6:.1f} MB are free - free some space"
                f" or choose another folder, with {as_asked('--trace', 'trace=')} or TMPDIR"
            )
        _check_end(plain)
        with plain.open("rb") as source, _opened(path) as target:
            copy_redacted(source, target, capture, everything=everything, renamed=renamed)


def with_run(path: Path, run: RunClock, *, everything: bool = False) -> None:
    """Put the clock of the whole run into a trace that `export_trace` has written, in whose first line it belongs.

    The file is replaced as a whole: who reads it finds the old one or the new one.
    """
    with tempfile.TemporaryDirectory(prefix=".opanatomy-", dir=path.absolute().parent) as folder:
        partial = Path(folder) / path.name
        with _read(path) as source, _opened(partial) as target:
            first = source.readline()
            capture = msgspec.json.decode(first.strip()[:-1] + b"}")[METADATA_KEY]
            metadata = {METADATA_KEY: {**capture, "run": msgspec.to_builtins(run)}}
            kept = Redaction(metadata, everything=everything).metadata()[METADATA_KEY]
            target.write(b'{"' + METADATA_KEY.encode() + b'":' + msgspec.json.encode(kept) + b",\n")
            shutil.copyfileobj(source, target, _CHUNK)
        partial.replace(path)


def _read(path: Path) -> BinaryIO:
    if not path.name.endswith(".gz"):
        return path.open("rb")
    from isal import igzip

    return cast("BinaryIO", igzip.open(path, "rb"))


def copy_redacted(
    source: BinaryIO, target: BinaryIO, capture: Capture, *, everything: bool = False,
    renamed: Mapping[bytes, bytes] = NO_NAMES,
) -> None:  # fmt: skip
    """Copy the trace in `source`, as Kineto writes it, with `capture` before it and without secrets.

    An event without a secret keeps its text; memory does not grow with the trace.
    """
    head, rest = _head(source)
    metadata = {METADATA_KEY: msgspec.to_builtins(capture), **head}
    redaction = Redaction(metadata, everything=everything)
    target.write(b"{")
    for key, value in redaction.metadata().items():
        target.write(msgspec.json.encode(key) + b":" + msgspec.json.encode(value) + b",\n")
    target.write(b'"traceEvents":[')
    for chunk, is_last in _chunks(source, rest):
        for name, other in renamed.items():
            chunk = chunk.replace(name, other)
        target.write(_last(chunk, redaction) if is_last else _cleaned(chunk, redaction, b","))


def _head(source: BinaryIO) -> tuple[dict[str, object], bytes]:
    """Return the metadata before the events, and the part of the events read so far."""
    text = b""
    while len(text) < _LONGEST_HEAD and (more := source.read(_CHUNK)):
        text += more
        begin = _EVENTS.search(text)
        if begin:
            return _metadata(text[: begin.start()]), text[begin.end() :]
    raise CaptureError(f"the profiler wrote a trace without events, which starts with {text[:20]!r} - report it")


def _metadata(text: bytes) -> dict[str, object]:
    """Return the keys other than the events; invalid JSON (an `add_metadata` text with a quote) costs its line."""
    for tried in (text, b"\n".join(line for line in text.split(b"\n") if _is_sound(line))):
        try:
            return msgspec.json.decode(tried.rstrip(b", \t\r\n") + b"}", type=dict[str, object])
        except NOT_DECODABLE:
            continue
    return {}


def _is_sound(line: bytes) -> bool:
    """Return whether a line can be read, or is not a key with a text."""
    pair = re.match(rb'\s*"[^"]*":\s*(".*")\s*,?\s*$', line)
    try:
        return pair is None or msgspec.json.decode(pair[1]) is not None
    except NOT_DECODABLE:
        return False


def _chunks(source: BinaryIO, text: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield whole events, and whether they are the last, with the text after them."""
    while more := source.read(_CHUNK):
        text += more
        end = text.rfind(_BETWEEN)
        if end >= 0:
            yield text[: end + len(_END)], False
            text = text[end + len(_END) + 1 :]
    yield text, True


def _cleaned(chunk: bytes, redaction: Redaction, then: bytes = b"") -> bytes:
    """Return the redacted events of a chunk, which ends with one, and their separator; unchanged without secrets."""
    is_sound = _are_events(chunk)
    if is_sound and not redaction.touches(chunk):
        return chunk + then
    whole = [event if event.endswith(_END) else event + _END for event in chunk.split(_END + b",\n")]
    kept = redaction.events(whole if is_sound else [_escaped(event) for event in whole])
    return kept + then if kept else b""


def _are_events(text: bytes) -> bool:
    """Return whether the text is JSON: otherwise the begin of a string is unknown."""
    try:
        return bool(_texts.decode(b"[" + text + b"]")) and (text.isascii() or bool(text.decode()))
    except NOT_DECODABLE:
        return False


def _escaped(event: bytes) -> bytes:
    """Return the event with its name escaped, if that makes it valid JSON; else unchanged."""
    if _are_events(event):
        return event
    for name in _NAMES:
        named = name.sub(lambda line: line[1] + _as_json(line[2]) + line[3], event, count=1)
        if _are_events(named):
            return named
    return event


def _as_json(text: bytes) -> bytes:
    return msgspec.json.encode(text.decode(errors="replace"))[1:-1]


def _last(text: bytes, redaction: Redaction) -> bytes:
    """Return the last events and the keys after them, one of them the name of Kineto's file."""
    end = _END_OF_ALL.search(text)
    if end is None:
        if text.lstrip().startswith(b"]"):
            return b"]}\n"
        raise OutputError("the profiler's trace of this step ends early - free some space in the folder of the trace")
    trailing = redaction.metadata(_metadata(b"{" + text[end.end() :].strip(b", \t\r\n").removesuffix(b"}")))
    pairs = (msgspec.json.encode(key) + b":" + msgspec.json.encode(value) for key, value in trailing.items())
    return _cleaned(text[: end.start()], redaction) + b"\n]" + b"".join(b",\n" + pair for pair in pairs) + b"}\n"


def _check_end(plain: Path) -> None:
    """Raise an error if the device filled up in the last write, which nothing else reports."""
    with plain.open("rb") as file:
        file.seek(-min(_END_BYTES, plain.stat().st_size), 2)
        if not file.read().rstrip().endswith(b"}"):
            raise OutputError("the profiler could not write its trace of this step to the end - free some space")


def _opened(path: Path) -> BinaryIO:
    if not path.name.endswith(".gz"):
        return path.open("wb")
    from isal import igzip

    return cast("BinaryIO", igzip.open(path, "wb", compresslevel=2))


# The description of a profile: what torch does not write, and two facts only the profiler has.


def capture_of(
    profiler: Any,
    device: str,
    *,
    observation: Observation | None,
    unlike: str | None = None,
    not_observed: str,
    observed_step: int,
    load: MachineLoad | None,
    **facts: Any,
) -> Capture:
    """Return the description of a profile: `facts` are fields of `Capture`, the rest is asked of torch.

    `observation` is the second count of the step number `observed_step`; how profiled steps may be `unlike` it is why
    a difference is no mistake. `not_observed` says why there is none. `load` is that of the machine.
    """
    from opanatomy.version import __version__

    lists, arguments = tensor_lists(profiler)
    unseen = sorted(observation.unseen) if observation else ()
    if observation is not None:
        not_observed = f"what {', '.join(unseen)} runs inside is not seen by a dispatch mode" if unseen else ""
    return Capture(
        version=__version__,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        environment=replace(environment_of(device), load=load),
        lists=lists,
        list_arguments=arguments,
        observed=tuple(observation.incomplete) if observation else (),
        observed_counts=observation.counts() if observation else (),
        observed_step=observed_step if observation else None,
        not_observed=unlike or not_observed or None,
        profiler_times_ns=profiler_times_ns(profiler, on_device=is_accelerator(device)),
        **facts,
    )


def tensor_lists(profiler: Any) -> tuple[tuple[str, ...], dict[str, tuple[int, ...]]]:
    """Return the distinct tensor lists as text, and External id -> the lists of that call, from the profiler's tree."""
    from torch._C._profiler import _EventType

    texts: dict[str, int] = {}
    lists_of_call: dict[str, tuple[int, ...]] = {}
    waiting = list(profiler.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        if event.tag != _EventType.TorchOp:
            continue
        lists = [value for value in event.extra_fields.inputs if isinstance(value, list)]
        numbers = tuple(texts.setdefault(_list_text(value), len(texts)) for value in lists)
        if any(_list_text(value) for value in lists):
            lists_of_call[str(event.correlation_id)] = numbers
    return tuple(texts), lists_of_call


def _list_text(values: list[Any]) -> str:
    return ";".join(
        f"{str(value.dtype).removeprefix('torch.')}[{','.join(map(str, value.sizes))}]"
        for value in values
        if hasattr(value, "sizes")
    )


def profiler_times_ns(profiler: Any, *, on_device: bool) -> dict[str, int]:
    """Return the time of each operator by its name from `key_averages`: device time, on the CPU self time."""
    figure = "self_device_time_total" if on_device else "self_cpu_time_total"
    times_ns: dict[str, int] = {}
    for row in profiler.key_averages():
        times_ns[row.key] = times_ns.get(row.key, 0) + round(
            getattr(row, figure) * 1000
        )  # microseconds, with fractions
    return {name: time for name, time in times_ns.items() if time}
