"""What Kineto, the library under torch's profiler, prints while a profiler starts or stops on an accelerator.

It writes to file descriptor 2, past `sys.stderr`, and says only there that CUPTI does not work. Its level is read from
`KINETO_LOG_LEVEL` once a process, when the first profiler starts (`libkineto_init` in kineto's `init.cpp`; levels in
its `ILoggerObserver.h`): what was heard is kept for the process.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Any, Final

from opanatomy.capture.device import devices

#: From here on CUPTI's failures are printed: they are warnings.
_WARNING: Final = 2
#: `Logger::Logger` of kineto: the level, the time, the process and thread, the place in its source.
_LINE: Final = re.compile(
    rb"^(?:VERBOSE|INFO|WARNING|STAGE|USDT|ERROR):\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \d+:\d+ [\w.]+:\d+\] (.*)$"
)
_FAILED: Final = re.compile(
    r"CUPTI_|CUPTI |ROCM|roctracer|rocprof|XPUPTI|Exceeded max GPU buffer|Dropped", re.IGNORECASE
)

_heard: list[str] = []


def heard() -> tuple[str, ...]:
    """The lines so far that speak of a failure to trace a device, without their time and place."""
    return tuple(dict.fromkeys(line for line in _heard if _FAILED.search(line)))


@contextmanager
def listening(device: str) -> Iterator[None]:
    """Keep Kineto's lines while inside and print the rest when it is over; on the CPU nothing is changed.

    Only for the moments in which a profiler starts or stops: what others write meanwhile is late by that much.
    """
    if not devices.kineto_records(device):
        yield
        return
    with _level_of_warnings(), _second_stderr() as stderr, _place(stderr) as file:
        if stderr is None or file is None:
            yield
            return
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            _flush()
            os.dup2(stderr, 2)
            file.seek(0)
            _pass_on(file.read())


def toggled(profiler: Any, enable: bool) -> None:
    """Have a running profiler of the CPU record nothing for a while, or again, without torch's warning of GPUs."""
    from torch.profiler import ProfilerActivity

    with _second_stderr() as stderr, _place(stderr) as file:
        if stderr is not None and file is not None:
            os.dup2(file.fileno(), 2)
        try:
            profiler.toggle_collection_dynamic(enable, [ProfilerActivity.CPU])
        finally:
            if stderr is not None and file is not None:
                os.dup2(stderr, 2)
                file.seek(0)
                _pass_on(b"".join(line for line in file if b"Toggling CPU activity" not in line))


@contextmanager
def _place(stderr: int | None) -> Iterator[IO[bytes] | None]:
    """A file for what would go to stderr; `None` without it, and where no temporary file can be made."""
    with ExitStack() as stack:
        file = None
        if stderr is not None:
            with suppress(OSError):
                file = stack.enter_context(tempfile.TemporaryFile())
        yield file


@contextmanager
def _second_stderr() -> Iterator[int | None]:
    """A second descriptor of stderr; `None` where it is closed."""
    _flush()
    try:
        stderr = os.dup(2)
    except OSError:
        yield None
        return
    try:
        yield stderr
    finally:
        os.close(stderr)


def _flush() -> None:
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()


def _pass_on(text: bytes) -> None:
    for line in text.splitlines(keepends=True):
        if entry := _LINE.match(line.rstrip(b"\r\n")):
            _heard.append(entry[1].decode(errors="replace"))
        else:
            with suppress(OSError):
                os.write(2, line)


@contextmanager
def _level_of_warnings() -> Iterator[None]:
    """Have Kineto print its warnings, or more where the user wants more."""
    before = os.environ.get("KINETO_LOG_LEVEL")
    wanted = int(before) if before is not None and before.isdigit() else _WARNING
    os.environ["KINETO_LOG_LEVEL"] = str(min(wanted, _WARNING))
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("KINETO_LOG_LEVEL", None)
        else:
            os.environ["KINETO_LOG_LEVEL"] = before
