"""Use a GPU for the first time; a failure is reported in one line, with the GPU's description and its users.

The messages come from CUDA's and HIP's `cudaGetErrorString`, passed on by torch.
"""

from __future__ import annotations

import os
import platform
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from opanatomy.capture.device import nvml
from opanatomy.capture.device.accelerators import is_cuda
from opanatomy.capture.silence import first_line
from opanatomy.errors import CaptureError, OpanatomyError, OutOfMemory
from opanatomy.options import as_asked
from opanatomy.records.memory import is_out_of_memory
from opanatomy.records.patterns import regex

_NO_KERNELS: Final = regex(
    r"no kernel image is available|invalid device function|unsupported gpu architecture|unsupported toolchain"
    r"|device kernel image is invalid",
    re.IGNORECASE,
)
_BUSY: Final = regex(r"busy or unavailable|device is already in use", re.IGNORECASE)
_ARCHITECTURE: Final = regex(r"(sm|compute)_(\d+)([af]?)")
#: The architectures of Jetson and DRIVE.
_INTEGRATED: Final = frozenset({53, 62, 72, 87, 101})
#: The most processes named in a line.
_MAX_NAMED_PROCESSES: Final = 3


@contextmanager
def first_use(device: str) -> Iterator[None]:
    """Run the body, which touches `device` first, and turn CUDA's error for an unusable device into one line.

    torch's own eight-line warning of an architecture without kernels is not shown: the first kernel decides
    (`run_first_kernel`).
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\.cuda")
            yield
    except OpanatomyError:
        raise
    except Exception as error:  # torch.AcceleratorError, OutOfMemoryError, DeferredCudaCallError, AssertionError
        if not is_cuda(device):
            raise
        if line := missing_kernels(error, device):
            raise CaptureError(line) from error
        if is_out_of_memory(error):
            raise OutOfMemory(
                f"{device} was already full: {device_text(device)} - free some of its memory, or choose"
                f" another{as_asked(' with --device', '')} ({first_line(error, 160)})"
            ) from error
        if _BUSY.search(str(error)):
            raise CaptureError(
                f"{device} is busy: {device_text(device)}{_mode(device)} ({first_line(error, 160)})"
            ) from error
        raise CaptureError(
            f"{device} cannot be used: {device_text(device)} - check nvidia-smi, or {_on_cpu()}"
            f" ({type(error).__name__}: {first_line(error, 160)})"
        ) from error


def run_first_kernel(device: str) -> None:
    """Run one small kernel on `device` and give its memory back; raises CUDA's error if it fails."""
    import torch

    if is_cuda(device):
        torch.zeros(1, device=device).add_(1)
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


def missing_kernels(error: BaseException, device: str) -> str | None:
    """Return the line of an error that reports missing kernels for the GPU; `None` for any other error."""
    if not is_cuda(device) or not _NO_KERNELS.search(str(error)):
        return None
    import torch

    built, name = torch.cuda.get_arch_list(), _name(device) or "the GPU"
    architecture = architecture_of(device) or "an unknown architecture"
    if any(runs_on(architecture, code) for code in built):
        return (
            f"{device} cannot run a kernel from an extension (a package with its own GPU code): {name} is"
            f" {architecture}, which torch {torch.__version__} has kernels for but the extension does not - install"
            f" or build it for {architecture}, or leave it out"
        )
    version = f"torch {torch.__version__}" + (f" (CUDA {torch.version.cuda})" if torch.version.cuda else "")
    kernels = f"has kernels for {', '.join(built)}" if built else "lists none"
    # The build of the same torch with kernels for the GPU, from torch's own table if this release has one.
    build = f"a torch build with kernels for {architecture}"
    releases: Any = getattr(torch.cuda, "PYTORCH_RELEASES_CODE_CC", {})
    host = "aarch64" if platform.machine().lower() == "aarch64" else "x86_64"
    fitting = [
        cuda
        for cuda, hosts in releases.items()
        if any(runs_on(architecture, f"sm_{code}") for code in hosts.get(host, ()))
    ]
    if fitting:
        build = f"its build for CUDA {' or '.join(fitting)}, which has kernels for {architecture}"
    return (
        f"{device} cannot run this torch's kernels: {name} is {architecture}, and {version} {kernels} - install"
        f" {build}, or {_on_cpu()}"
    )


def device_text(device: str) -> str:
    """Return the GPU in words: name, architecture, used memory, and the processes that use it.

    `NVIDIA H100 80GB HBM3 (sm_90), 79.0 of 85.5 GB used, 70.1 GB by python (process 4242)`
    """
    import torch

    gpu = nvml.device(int(device.partition(":")[2] or 0))
    name = f"{_name(device) or (gpu.name if gpu else device)} ({architecture_of(device) or 'unknown architecture'})"
    used, total = (gpu.used_bytes, gpu.total_bytes) if gpu else (None, None)
    if used is None or total is None:
        used, total = None, None
        with suppress(Exception):  # this needs a context, which may fail
            free, total = torch.cuda.mem_get_info(device)
            used = total - free
    memory = f", {used / 1e9:.1f} of {total / 1e9:.1f} GB used" if used is not None and total else ""
    return name + memory + _holders(gpu)


def architecture_of(device: str) -> str | None:
    """Return the architecture of a GPU as compilers call it, `sm_90` or `gfx942`; `None` if torch does not know it."""
    import torch

    with suppress(Exception):  # this starts CUDA, which may fail
        properties: Any = torch.cuda.get_device_properties(device)
        if torch.version.hip:
            return str(properties.gcnArchName).partition(":")[0]
        return f"sm_{properties.major}{properties.minor}"
    return None


# ------------------------------------------------------------------------------------------------------------ failures


def runs_on(architecture: str, code: str) -> bool:
    """Return whether code compiled for `code` (`sm_80`, `sm_90a`, `compute_80`, `gfx90a`) runs on `architecture`.

    Machine code runs within its major version, from its minor version on; intermediate code (`compute_`, PTX) on every
    later architecture; with an `a` only on that very one, with an `f` on its family (CUDA C++ Programming Guide,
    "Binary Compatibility", "PTX Compatibility", "Family-Specific Features"). Integrated GPUs run only code of their own
    (`DEVICE_REQUIREMENT` of torch.cuda).
    """
    device, compiled = _ARCHITECTURE.fullmatch(architecture), _ARCHITECTURE.fullmatch(code)
    if device is None or compiled is None:
        return architecture == code
    have, need = int(device[2]), int(compiled[2])
    if compiled[3] == "a":
        return have == need
    if compiled[1] == "compute" and not compiled[3]:
        return have >= need
    if have != need and _INTEGRATED & {have, need}:
        return {need, have} == {101, 110}  # one architecture, renamed
    return have // 10 == need // 10 and have >= need


def _on_cpu() -> str:
    return as_asked("use --device cpu", "move the module to the CPU")


def _mode(device: str) -> str:
    """Return the remedy for a device that takes no further process."""
    gpu = nvml.device(int(device.partition(":")[2] or 0))
    mode = gpu.compute_mode if gpu else None
    if mode == "prohibited":
        return "; its compute mode is prohibited - set it to default (nvidia-smi -c 0), or choose another GPU"
    if mode is not None and mode.startswith("exclusive"):
        return (
            f"; its compute mode is {mode}, which allows one process - wait for that one to end, choose another"
            f" GPU{as_asked(' with --device', '')}, or set the mode to default (nvidia-smi -c 0)"
        )
    return f" - wait, choose another GPU{as_asked(' with --device', '')}, or check nvidia-smi"


# -------------------------------------------------------------------------------------------------------- description


def _name(device: str) -> str | None:
    import torch

    with suppress(Exception):  # as above
        return str(torch.cuda.get_device_properties(device).name)
    return None


def _holders(gpu: nvml.NvmlDevice | None) -> str:
    """Return the processes that use most memory."""
    if gpu is None:
        return ""
    named = [
        f"{process.used_bytes / 1e9:.1f} GB by {process.name or 'process'} (process {process.pid})"
        if process.used_bytes is not None
        else f"{process.name or 'another process'} (process {process.pid}) is using it"
        for process in gpu.processes
        if gpu.process_bytes is None or process.pid != os.getpid()
    ]
    more = [f"{len(named) - _MAX_NAMED_PROCESSES} more"] if len(named) > _MAX_NAMED_PROCESSES else []
    return "".join(f", {text}" for text in (*named[:_MAX_NAMED_PROCESSES], *more))
