"""The machine and the libraries of a run."""

from __future__ import annotations

import platform
from contextlib import suppress
from pathlib import Path

from opanatomy.capture import accelerators
from opanatomy.errors import CaptureError
from opanatomy.model import Environment


def choose_device(wanted: str) -> str:
    """The device to run on: `auto` is CUDA (or ROCm) where there is one, else the CPU; others where they are named."""
    import torch

    if wanted == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    if wanted == "cpu":
        return "cpu"
    if wanted == "cuda" or wanted.startswith("cuda:"):
        if not torch.cuda.is_available():
            raise CaptureError(f"--device {wanted}: this torch ({torch.__version__}) sees no GPU - use --device cpu")
        number = wanted.partition(":")[2] or "0"
        if not number.isdigit() or int(number) >= torch.cuda.device_count():
            raise CaptureError(f"--device {wanted}: there are {torch.cuda.device_count()} GPUs, counted from cuda:0")
        return f"cuda:{number}"
    return accelerators.check_device(wanted)


def environment_of(device: str) -> Environment:
    """What the report says about where the step ran."""
    import torch
    import transformers

    on_cuda, on_host = accelerators.is_cuda(device), not accelerators.is_accelerator(device)
    processor = processor_name()
    return Environment(
        device=processor if on_host else accelerators.device_name(device),
        device_kind=accelerators.reported_kind(device),
        device_count=accelerators.device_count(device),
        device_memory_bytes=None if on_host else accelerators.total_memory_bytes(device),
        torch=str(torch.__version__),
        cuda=(torch.version.hip or torch.version.cuda) if on_cuda else None,
        driver=_driver() if on_cuda else None,
        transformers=str(transformers.__version__),
        python=platform.python_version(),
        host_threads=torch.get_num_threads(),
        processor=processor,
    )


def processor_name() -> str:
    """The processor's own name where the system tells it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _driver() -> str | None:
    """The driver's version from NVML; `None` where there is no NVML (another vendor, no driver)."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None
    return version.decode() if isinstance(version, bytes) else str(version)
