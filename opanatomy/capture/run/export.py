"""Describe a profile, and write its trace: the description as its first key, no secrets, no name of the host."""

from __future__ import annotations

import math
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Final, cast

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from opanatomy.capture.device.accelerators import is_accelerator
from opanatomy.capture.device.environment import environment_of
from opanatomy.capture.run.observer import Observation
from opanatomy.errors import CaptureError, OutputError
from opanatomy.io.files import OutputFile, replacing
from opanatomy.io.redact import NOT_DECODABLE, Redaction, know_secrets, remember_environment_secrets
from opanatomy.options import as_asked
from opanatomy.records.patterns import regex
from opanatomy.records.run import RunClock
from opanatomy.records.workload import LINES_STEP, METADATA_KEY, Capture, GraphNode, MachineLoad

_END_BYTES: Final = 256
#: Read this much text at once.
_CHUNK: Final = 1 << 20
#: Kineto writes its own keys, and those of `add_metadata`, before the events.
_LONGEST_HEAD: Final = 64 << 20
_EVENTS: Final = regex(rb'(?<!\\)"traceEvents"\s*:\s*\[')
#: Kineto's separator of two events; JSON strings contain no line ends.
_BETWEEN: Final = b"\n  },\n  {"
_END: Final = b"\n  }"
#: Kineto writes names unescaped, even quotes and backslashes; nothing else in an event is a user's own text.
_NAMES: Final = tuple(
    regex(rb'^(.*?"name": ")(.*)(' + end + rb")$", re.MULTILINE) for end in (rb'",', rb'", "p(?:id|h)": .*')
)
_END_OF_ALL: Final = regex(rb"(?<=\n  \})\s*\]")

#: The nodes of autograd's graph.
_NODE: Final = regex(r"\w+Backward\d*|torch::autograd::\w+")

NO_NAMES: Final[Mapping[bytes, bytes]] = MappingProxyType({})
_texts: Final = msgspec.json.Decoder(list[msgspec.Raw])


def export_trace(
    profiler: Any, capture: Capture, path: Path, *, everything: bool = False, renamed: Mapping[bytes, bytes] = NO_NAMES
) -> None:
    """Write the trace of `profiler` and the metadata of `capture` to `path`; gzip if the name ends in `.gz`.

    `add_metadata_json` only takes effect while the profiler runs, but part of the metadata is known only afterwards.
    With `everything` paths, arguments, hosts and users are removed too. `renamed` maps our own names, in quotes, to
    their replacements.
    """
    with _exported(profiler, path) as source, _opened(path) as target:
        copy_redacted(source, target, capture, everything=everything, renamed=renamed)


@contextmanager
def _exported(profiler: Any, path: Path) -> Iterator[BinaryIO]:
    """Give the trace as Kineto writes it, secrets and all, in a private folder next to `path` that is then removed."""
    with tempfile.TemporaryDirectory(prefix=".opanatomy-", dir=path.absolute().parent) as folder:
        plain = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(plain))
        if not plain.exists():  # Kineto fails silently
            free = shutil.disk_usage(folder).free
            raise OutputError(
                f"the profiler could not write its trace of this step: only {free / 1e6:.1f} MB are free - free"
                f" some space or choose another folder with {as_asked('--trace', 'trace=')} or TMPDIR"
            )
        _check_end(plain)
        with plain.open("rb") as source:
            yield source


#: A trace of at least this size is redacted and packed by a process of its own: it takes a tenth of a second and more.
HANDED_OVER_BYTES: Final = 16 << 20


class _Job(Struct, frozen=True, kw_only=True):
    """Input of the process that writes a trace, including secrets no longer in its environment."""

    target: str
    #: How the target is published; `None` for a temporary file, which is written as it is.
    output: tuple[str, bool, bool] | None
    capture: Capture
    everything: bool
    renamed: tuple[tuple[str, str], ...]
    secrets: tuple[str, ...]


class _Done(Struct, frozen=True, kw_only=True):
    """Result: the trace's name as the user knows it and its actual path, or the error."""

    path: str = ""
    target: str = ""
    error: str | None = None


class TraceWriter:
    """A trace being written to its file, atomically, while training continues.

    Only Kineto's own export blocks. A detached process redacts and compresses a large trace at low priority: it
    finishes even if the training is killed, and is independent of the script's signals, children and `os.wait()`.
    Kineto's file is unlinked by then, so that nothing of it stays on disk in any case. A small trace is written at
    once, as is any trace if the process cannot be started.
    """

    def __init__(
        self,
        profiler: Any,
        capture: Capture,
        output: OutputFile | Path,
        *,
        everything: bool,
        renamed: Mapping[bytes, bytes] = NO_NAMES,
    ) -> None:
        self._output = output
        self._source: BinaryIO | None = None
        self._said: BinaryIO | None = None
        self._error: OutputError | None = None
        path = output if isinstance(output, Path) else output.target
        self._job = _Job(
            target=str(path.absolute()),
            output=None if isinstance(output, Path) else (str(output.path), output.force, output.numbered),
            capture=capture,
            everything=everything,
            renamed=tuple((old.decode(), new.decode()) for old, new in renamed.items()),
            secrets=tuple(remember_environment_secrets()),
        )
        is_file = isinstance(output, Path) or not output.is_stream
        with _exported(profiler, path) as source:
            #: The size of the trace as Kineto writes it.
            self.size = os.fstat(source.fileno()).st_size
            if is_file and os.name == "posix" and sys.executable and self.size >= HANDED_OVER_BYTES:
                with suppress(OSError):
                    self._said = _handed_over(source, self._job)
            if self._said is None:
                _write(source, output, self._job)
            else:
                self._source = os.fdopen(os.dup(source.fileno()), "rb")

    def is_done(self) -> bool:
        """Return whether `wait` returns at once."""
        if self._said is None:
            return True
        poll = select.poll()
        poll.register(self._said.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def wait(self) -> None:
        """Wait until the trace is there; raise `OutputError` if it cannot be written."""
        said, source, self._said, self._source = self._said, self._source, None, None
        if said is not None and source is not None:
            with said, source:
                self._error = self._ended(said.read(), source)
        if self._error is not None:
            raise self._error

    def _ended(self, text: bytes, source: BinaryIO) -> OutputError | None:
        try:
            done = msgspec.json.decode(text, type=_Done)
        except msgspec.DecodeError:  # the process was killed, or is not the one that it should be
            try:
                source.seek(0)
                _write(source, self._output, self._job)
            except OutputError as error:
                return error
            return None
        if done.error is not None:
            return OutputError(done.error)
        if not isinstance(self._output, Path):
            self._output.path, self._output.target = Path(done.path), Path(done.target)
        return None


def _write(source: BinaryIO, output: OutputFile | Path, job: _Job) -> None:
    """Write the final trace from Kineto's in `source`."""
    renamed = {old.encode(): new.encode() for old, new in job.renamed}
    with ExitStack() as stack:
        path = output if isinstance(output, Path) else stack.enter_context(output.written())
        with _opened(path) as target:
            copy_redacted(source, target, job.capture, everything=job.everything, renamed=renamed)


def _handed_over(source: BinaryIO, job: _Job) -> BinaryIO:
    """Start a detached process for the job, and return the pipe on which it reports its result."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    code = f"import sys; sys.path[:] = [{root!r}, *sys.path, *sys.argv[4:]]; from {__name__} import main; main()"
    reads, writes = os.pipe()
    with ExitStack() as stack:
        answer = stack.enter_context(os.fdopen(reads, "rb"))
        says = stack.enter_context(os.fdopen(writes, "wb"))
        given = stack.enter_context(tempfile.TemporaryFile())
        given.write(msgspec.json.encode(job))
        given.flush()
        files = (source.fileno(), given.fileno(), says.fileno())
        words = [sys.executable, "-I", "-c", code, *map(str, files), *filter(None, sys.path)]
        subprocess.run(
            ["/bin/sh", "-c", '"$@" &', "sh", *words],
            pass_fds=files,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return os.fdopen(os.dup(answer.fileno()), "rb")


def main() -> None:
    """Redact and compress a trace in a separate process."""
    with suppress(OSError):
        os.setsid()
        os.nice(10)
    source, given, says = map(int, sys.argv[1:4])
    with os.fdopen(given, "rb") as file:
        file.seek(0)
        job = msgspec.json.decode(file.read(), type=_Job)
    know_secrets(job.secrets)
    target = Path(job.target)
    output: OutputFile | Path = target
    if job.output is not None:
        name, force, numbered = job.output
        output = OutputFile(path=Path(name), target=target, force=force, numbered=numbered, is_stream=False)
    try:
        with os.fdopen(source, "rb") as plain:
            _write(plain, output, job)
        names = (output, output) if isinstance(output, Path) else (output.path, output.target)
        done = _Done(path=str(names[0]), target=str(names[1]))
    except OutputError as error:
        done = _Done(error=str(error))
    os.write(says, msgspec.json.encode(done))


def with_run(path: Path, run: RunClock, *, everything: bool = False) -> None:
    """Add the run's clock to the metadata line of a written trace.

    The file is replaced atomically.
    """
    with replacing(path) as partial, _read(path) as source, _opened(partial) as target:
        first = source.readline()
        capture = msgspec.json.decode(first.strip()[:-1] + b"}")[METADATA_KEY]
        metadata = {METADATA_KEY: {**capture, "run": msgspec.to_builtins(run)}}
        kept = Redaction(metadata, everything=everything).metadata()[METADATA_KEY]
        target.write(b'{"' + METADATA_KEY.encode() + b'":' + msgspec.json.encode(kept) + b",\n")
        shutil.copyfileobj(source, target, _CHUNK)


def _read(path: Path) -> BinaryIO:
    if not path.name.endswith(".gz"):
        return path.open("rb")
    from isal import igzip

    return cast("BinaryIO", igzip.open(path, "rb"))


def copy_redacted(
    source: BinaryIO,
    target: BinaryIO,
    capture: Capture,
    *,
    everything: bool = False,
    renamed: Mapping[bytes, bytes] = NO_NAMES,
) -> None:
    """Copy the trace in `source`, as Kineto writes it, with `capture` before it and without secrets.

    Events without secrets keep their text; memory use is independent of the trace's size.
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
    raise CaptureError(f"the profiler wrote a trace without events, which starts with {text[:20]!r} - please report it")


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
    """Yield chunks of whole events, whether it is the last, and the text after it."""
    while more := source.read(_CHUNK):
        text += more
        end = text.rfind(_BETWEEN)
        if end >= 0:
            yield text[: end + len(_END)], False
            text = text[end + len(_END) + 1 :]
    yield text, True


def _cleaned(chunk: bytes, redaction: Redaction, then: bytes = b"") -> bytes:
    """Return the redacted events of a chunk ending at an event, and their separator; unchanged without secrets."""
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
    """Return the redacted last events and the keys after them, including the name of Kineto's file."""
    end = _END_OF_ALL.search(text)
    if end is None:
        if text.lstrip().startswith(b"]"):
            return b"]}\n"
        raise OutputError("the profiler's trace of this step is truncated - free some space in its folder")
    trailing = redaction.metadata(_metadata(b"{" + text[end.end() :].strip(b", \t\r\n").removesuffix(b"}")))
    pairs = (msgspec.json.encode(key) + b":" + msgspec.json.encode(value) for key, value in trailing.items())
    return _cleaned(text[: end.start()], redaction) + b"\n]" + b"".join(b",\n" + pair for pair in pairs) + b"}\n"


def _check_end(plain: Path) -> None:
    """Raise an error if the device filled up in the last write, which nothing else reports."""
    with plain.open("rb") as file:
        file.seek(-min(_END_BYTES, plain.stat().st_size), 2)
        if not file.read().rstrip().endswith(b"}"):
            raise OutputError("the profiler could not finish writing its trace of this step - free some space")


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

    `observation` is the second count, of step number `observed_step`; `unlike` says why profiled steps may legitimately
    differ from it. `not_observed` says why there is none. `load` is the machine's load.
    """
    from opanatomy.version import __version__

    events = _recorded_events(profiler, on_device=is_accelerator(device))
    unseen = sorted(observation.unseen) if observation else ()
    if observation is not None:
        not_observed = f"a dispatch mode does not see the calls inside {', '.join(unseen)}" if unseen else ""
    return Capture(
        version=__version__,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        environment=replace(environment_of(device), load=load),
        lists=tuple(events.lists),
        list_arguments=events.list_arguments,
        observed=tuple(observation.incomplete) if observation else (),
        observed_counts=observation.counts() if observation else (),
        observed_step=observed_step if observation else None,
        not_observed=unlike or not_observed or None,
        profiler_times_ns=events.times_ns,
        graph_nodes=annotated_nodes(),
        **facts,
    )


def annotated_nodes() -> dict[str, GraphNode]:
    """Return torch's annotations of CUDA graph nodes, which are in no trace (torch 2.12 and later).

    A program annotates its graphs itself, `torch.cuda.graph(..., enable_annotations=True)` and `mark_kernels`.
    """
    names = ("torch.cuda.graph_annotations", "torch.cuda._graph_annotations")
    known = next((sys.modules[name] for name in names if name in sys.modules), None)
    told: dict[int, list[dict[str, Any]]] = known.get_kernel_annotations() if known is not None else {}
    made = {}
    for node, scopes in told.items():
        said: dict[str, Any] = {}
        for scope in scopes:
            said |= scope if isinstance(scope, dict) else {"name": str(scope)}
        text = next((said[key] for key in _SCOPES if said.get(key)), "")
        made[str(node)] = GraphNode(scope=str(text), of_backward=said.get("autograd_phase") == "backward")
    return made


#: The keys of an annotation that name a module or what the program marked, the first that is there.
_SCOPES: Final = ("module_fqn", "module_name", "name", "str")


class _RecordedEvents(Struct):
    """What only the profiler's own events have: the distinct tensor lists as text, External id -> the lists of that
    call, and the time of each operator by its name (device work that it launched, on the CPU its self time).
    """

    lists: dict[str, int] = field(default_factory=dict)
    list_arguments: dict[str, tuple[int, ...]] = field(default_factory=dict)
    times_ns: dict[str, int] = field(default_factory=dict)


def _recorded_events(profiler: Any, *, on_device: bool) -> _RecordedEvents:
    """Walk torch's event tree of a profile once: one or two microseconds per event.

    Training waits meanwhile, so each event is queried as little as possible: `key_averages`, which gives the same sums,
    takes fifty times as long.
    """
    from torch._C._profiler import _EventType

    found = _RecordedEvents()
    launched_ns = _launched_ns(profiler) if on_device else None
    #: Of each name the time, and whether its calls may have lists.
    rows: dict[str, tuple[list[int], bool]] = {}
    waiting = list(profiler.profiler.kineto_results.experimental_event_tree())
    end = _end_of_steps(waiting)
    waiting = [event for event in waiting if event.start_time_ns < end]
    outer_ns = [[0]] * len(waiting)  # no pairs: each would be one more object for the garbage collector
    while waiting:
        event, outer = waiting.pop(), outer_ns.pop()
        name = event.name
        row = rows.get(name)
        if row is None:
            row = rows[name] = ([0], _may_take_lists(name))
        time_ns, takes_lists = row
        if launched_ns is None:
            duration_ns = event.duration_time_ns
            time_ns[0] += duration_ns
            outer[0] -= duration_ns
        elif (launched := launched_ns.get(event.correlation_id)) is not None and event.tag == _EventType.TorchOp:
            time_ns[0] += launched
        if children := event.children:
            waiting += children
            outer_ns += [time_ns] * len(children)
        if takes_lists:
            _note_lists(event, found)
    found.times_ns = {name: time_ns[0] for name, (time_ns, _) in rows.items() if time_ns[0]}
    return found


def _end_of_steps(roots: Sequence[Any]) -> float:
    """Return when the step traced line by line begins, which is not one of the profiled steps."""
    begins: list[int] = [event.start_time_ns for event in roots if event.name == LINES_STEP]
    return begins[0] if begins else math.inf


def _launched_ns(profiler: Any) -> Counter[int]:
    """Return the device time that each operator call launched, by its External id."""
    from torch._C._autograd import DeviceType

    launched: Counter[int] = Counter()
    for event in profiler.profiler.kineto_results.events():
        if event.device_type() != DeviceType.CPU and (call := event.linked_correlation_id()) > 0:
            launched[call] += event.duration_ns()
    return launched


def _may_take_lists(name: str) -> bool:
    """Return whether a call with this name may have a tensor list; autograd nodes only have tensors."""
    import torch

    if name.startswith("autograd::engine::") or _NODE.fullmatch(name):
        return False
    schemas = torch._C._jit_get_schemas_for_operator(name) if "::" in name else ()
    kinds = [str(argument.type) for schema in schemas for argument in schema.arguments]
    return not schemas or any("List[" in kind and "Tensor" in kind for kind in kinds)


def _note_lists(event: Any, found: _RecordedEvents) -> None:
    from torch._C._profiler import _EventType

    if event.tag != _EventType.TorchOp:
        return
    texts = [_list_text(value) for value in event.extra_fields.inputs if isinstance(value, list)]
    if any(texts):
        numbers = tuple(found.lists.setdefault(text, len(found.lists)) for text in texts)
        found.list_arguments[str(event.correlation_id)] = numbers


def _list_text(values: list[Any]) -> str:
    return ";".join(
        f"{str(value.dtype).removeprefix('torch.')}[{','.join(map(str, value.sizes))}]"
        for value in values
        if hasattr(value, "sizes")
    )
