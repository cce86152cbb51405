"""The machine and the libraries of a run."""

from __future__ import annotations

import platform
from contextlib import suppress
from pathlib import Path

from opanatomy.errors import CaptureError, UsageError
from opanatomy.model import Environment


def choose_device(wanted: str) -> str:
    """The device to run on: `auto` is CUDA (or ROCm) where there is one, else the CPU."""
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
    raise UsageError(f"--device {wanted}: not supported - use auto, cpu, cuda or cuda:N")


def environment_of(device: str) -> Environment:
    """What the report says about where the step ran."""
    import torch
    import transformers

    on_cuda = device.startswith("cuda")
    properties = torch.cuda.get_device_properties(device) if on_cuda else None
    processor = processor_name()
    return Environment(
        device=properties.name if properties else processor,
        device_kind=("rocm" if torch.version.hip else "cuda") if on_cuda else "cpu",
        device_count=torch.cuda.device_count() if on_cuda else 1,
        device_memory_bytes=properties.total_memory if properties else None,
        torch=str(torch.__version__),
        cuda=(torch.version.hip or torch.version.cuda) if on_cuda else None,
        driver=_driver() if on_cuda else None,
        transformers=str(transformers.__version__),
        python=platform.python_version(),
        host_threads=torch.get_num_threads(),
        processor=processor,
        matmul_float32=_float32(torch.backends.cuda.matmul) if on_cuda else None,
        convolution_float32=_float32(getattr(torch.backends.cudnn, "conv", None)) if on_cuda else None,
    )


def _float32(settings: object) -> str | None:
    """What torch may compute float32 products of a kind in, "tf32" or "ieee"; `None` before torch 2.9."""
    told = getattr(settings, "fp32_precision", None)
    return "ieee" if told == "none" else told


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
