"""Capture the output of Kineto, the library under torch's profiler, at its start and stop on an accelerator.

It writes to file descriptor 2, past `sys.stderr`, and reports only there that CUPTI does not work. Its level is read
from `KINETO_LOG_LEVEL` once per process, when the first profiler starts (`libkineto_init` in kineto's `init.cpp`;
levels in its `ILoggerObserver.h`), so the lines are kept for the process.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

from msgspec import Struct

from opanatomy.capture.device import accelerators
from opanatomy.errors import CaptureError
from opanatomy.records.patterns import regex

#: From this level on CUPTI's failures are printed: they are warnings.
_WARNING: Final = 2
#: Format of kineto's `Logger::Logger`: level, time, process and thread, source location.
_LINE: Final = regex(
    rb"^(?:VERBOSE|INFO|WARNING|STAGE|USDT|ERROR):\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \d+:\d+ [\w.]+:\d+\] (.*)$"
)
_FAILED: Final = regex(r"CUPTI_|CUPTI |ROCM|roctracer|rocprof|XPUPTI|Exceeded max GPU buffer|Dropped", re.IGNORECASE)

_heard: list[str] = []


def heard() -> tuple[str, ...]:
    """Return the lines so far that report a device tracing failure, without their time and location."""
    return tuple(dict.fromkeys(line for line in _heard if _FAILED.search(line)))


@contextmanager
def listening(device: str) -> Iterator[None]:
    """Keep Kineto's lines inside the block and print the rest at its end; change nothing on the CPU.

    Use it only around the start or stop of a profiler: it delays the output of others by that much.
    """
    if not accelerators.kineto_records(device):
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
    """Pause or resume the recording of a running CPU profiler, without torch's warning of GPUs."""
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
    """Yield a file to replace stderr; `None` without stderr or a temporary file."""
    with ExitStack() as stack:
        file = None
        if stderr is not None:
            with suppress(OSError):
                file = stack.enter_context(tempfile.TemporaryFile())
        yield file


@contextmanager
def _second_stderr() -> Iterator[int | None]:
    """Yield a second descriptor of stderr; `None` if stderr is closed."""
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
    """Make Kineto print at least its warnings."""
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


# Check whether the profiler recorded the work of the device; if not, explain why and what to do.
#
# Without this check a trace of a GPU that CUPTI could not record is read as one of the CPU: host time under the
# device's name. The result codes are those of NVIDIA's CUPTI reference ("CUPTI Result Codes").


class _Cause(Struct, frozen=True):
    """The meaning of a `pattern` in Kineto's lines, and the remedy."""

    pattern: str
    what: str
    do: str


_PRIVILEGES: Final = (
    "load the driver with NVreg_RestrictProfilingToAdminUsers=0 (in a file in /etc/modprobe.d, then reboot), or run as"
    " an administrator; a container needs --cap-add=SYS_ADMIN"
)
_WSL: Final = (
    "on Windows, allow all users access to the GPU performance counters (NVIDIA Control Panel, developer settings)"
    " and use the latest Windows driver, or run on native Linux"
)
_CAUSES: Final = (
    _Cause("CUPTI_ERROR_VIRTUALIZED_DEVICE", "the hypervisor does not allow tracing this virtual GPU",
           "enable profiling for the virtual machine"),
    _Cause("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES", "the driver allows only administrators to trace", _PRIVILEGES),
    _Cause("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS", "another profiler is attached to this process",
           "run without nsys, ncu or a second profiler"),
    _Cause("CUPTI_ERROR_CONFIDENTIAL_COMPUTING", "confidential computing forbids tracing",
           "turn that GPU mode off"),
    _Cause("CUPTI_ERROR_WSL_DEVICE", "CUPTI does not support the device under WSL", _WSL),
    _Cause("CUPTI_ERROR_MIG_DEVICE", "CUPTI does not support this MIG instance", "run on a full GPU"),
    _Cause("CUPTI_ERROR_(CMP|SLI)_DEVICE", "CUPTI does not support this device", "run on another GPU"),
    _Cause("CUPTI_ERROR_OUT_OF_MEMORY", "CUPTI ran out of memory for its buffers", "use a smaller model or batch"),
    _Cause("CUPTI_ERROR_(NOT_COMPATIBLE|LEGACY_PROFILER|OLD_PROFILER|CUDA_COMPILER)",
           "the loaded CUPTI does not match the driver", "update the driver"),
    _Cause("Exceeded max GPU buffer count", "the step launches more work than the profiler's buffers can hold",
           "profile fewer steps, or a smaller model"),
)  # fmt: skip


def has_device_events(profiler: Any) -> bool:
    """Return whether the profiler recorded kernels, copies or fills of a device."""
    from torch._C._autograd import DeviceType

    return any(
        event.device_type() != DeviceType.CPU
        and event.name() != "[memory]"
        and not getattr(event, "is_user_annotation", bool)()
        for event in profiler.profiler.kineto_results.events()
    )


def require_device_events(profiler: Any, device: str) -> None:
    """Raise `CaptureError` if Kineto can record `device` but recorded nothing there."""
    if not accelerators.kineto_records(device) or has_device_events(profiler):
        return
    lines = heard()
    what, do = _cause(lines)
    said = f" (Kineto: {lines[0][:200]})" if lines else ""
    raise CaptureError(f"the profiler recorded no work on {device}: {what} - {do}{said}")


def _cause(lines: tuple[str, ...]) -> tuple[str, str]:
    """Return the cause and the remedy, from Kineto's lines, then from the surroundings."""
    text = "\n".join(lines)
    for cause in _CAUSES:
        if re.search(cause.pattern, text):
            return cause.what, cause.do
    # The variables by which NVIDIA's and AMD's tools load themselves into a process.
    for name in ("NSYS_PROFILING_SESSION_ID", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "ROCP_TOOL_LIBRARIES"):
        if os.environ.get(name):
            return f"another profiler is attached to this process ({name})", "run without it"
    if not _can_trace():
        return "this torch was built without CUPTI in its profiler", "install a build whose profiler supports CUDA"
    if "microsoft" in _text("/proc/version").lower():
        return "CUPTI does not work under WSL on this machine", _WSL
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder and any(Path(folder).glob("libcupti.so*")):
            return (
                f"CUPTI failed, and LD_LIBRARY_PATH contains a CUPTI other than torch's ({Path(folder)})",
                "remove that folder",
            )
    if "CUPTI_ERROR" in text or "CUPTI init" in text:
        return "CUPTI could not be started", f"update the driver; if that does not help, {_PRIVILEGES}"
    return (
        "the cause is unknown",
        "run a small torch.profiler example with KINETO_LOG_LEVEL=0 and read what it prints about the device",
    )


def _can_trace() -> bool:
    """Return whether this build of torch can trace devices."""
    from torch._C._autograd import _supported_activities

    return any(activity.name != "CPU" for activity in _supported_activities())


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
