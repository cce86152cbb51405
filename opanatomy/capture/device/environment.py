"""The machine and the libraries of a run."""

from __future__ import annotations

import os
import platform
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from opanatomy.capture.device import accelerators, nvml
from opanatomy.capture.device.start import architecture_of
from opanatomy.capture.device.unused_gpu import sees_gpu, why_unused
from opanatomy.errors import CaptureError
from opanatomy.records.workload import Environment


def choose_device(wanted: str) -> str:
    """The device to run on: `auto` is CUDA (or ROCm) where there is one, else the CPU; others where they are named."""
    import torch

    if wanted == "auto":
        return "cuda:0" if sees_gpu() else "cpu"
    if wanted == "cpu":
        return "cpu"
    if wanted == "cuda" or wanted.startswith("cuda:"):
        if not sees_gpu():
            unused = why_unused()
            why = unused.why if unused else f"this torch ({torch.__version__}) sees no GPU"
            do = f"{unused.do}, or use" if unused else "use"
            raise CaptureError(f"--device {wanted}: {why} - {do} --device cpu")
        number, count = wanted.partition(":")[2] or "0", torch.cuda.device_count()
        if not number.isdecimal() or int(number) >= count:
            there = "there is 1 GPU" if count == 1 else f"there are {count} GPUs"
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            shown = f" (CUDA_VISIBLE_DEVICES={visible})" if visible else ""
            raise CaptureError(f"--device {wanted}: {there}{shown} - count from cuda:0")
        return f"cuda:{int(number)}"
    return accelerators.check_device(wanted)


def no_gpu_note(wanted: str) -> str:
    """What to say of a run on the CPU: where that was not requested, why a GPU that is there is not used."""
    unused = why_unused() if wanted == "auto" else None
    why, do = (f", {unused.why}", f" - {unused.do}") if unused else ("", "")
    return f"no GPU in use{why}: the CPU is the device ({processor_name()}){do}"


def environment_of(device: str) -> Environment:
    """What the report says about where the step ran."""
    import torch

    on_cuda, on_host = accelerators.is_cuda(device), not accelerators.is_accelerator(device)
    gpu = nvml.device(torch.device(device).index or 0) if on_cuda else None
    driver = nvml.driver() if on_cuda else None
    processor = processor_name()
    return Environment(
        device=processor if on_host else accelerators.device_name(device),
        device_kind=accelerators.reported_kind(device),
        device_count=accelerators.device_count(device),
        device_memory_bytes=None if on_host else accelerators.total_memory_bytes(device),
        torch=str(torch.__version__),
        cuda=(torch.version.hip or torch.version.cuda) if on_cuda else None,
        multiprocessors=None if on_host else accelerators.multiprocessors(device),
        architecture=architecture_of(device) if on_cuda else None,
        mig=gpu.mig if gpu else None,
        driver=driver.version if isinstance(driver, nvml.Driver) else None,
        transformers=_version_of("transformers"),
        python=platform.python_version(),
        host_threads=torch.get_num_threads(),
        processor=processor,
        matmul_float32=_float32(torch.backends.cuda.matmul) if on_cuda else None,
        convolution_float32=_float32(getattr(torch.backends.cudnn, "conv", None)) if on_cuda else None,
    )


def _version_of(package: str) -> str | None:
    """The version of a package, which a loop that does not use it need not import for that."""
    loaded = getattr(sys.modules.get(package), "__version__", None)
    if loaded is not None:
        return str(loaded)
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _float32(settings: object) -> str | None:
    """What torch may compute float32 products of a kind in, "tf32" or "ieee"; `None` before torch 2.9.

    `NVIDIA_TF32_OVERRIDE=0` turns tf32 off in NVIDIA's libraries, whatever torch asks of them.
    """
    if os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
        return "ieee"
    precision = getattr(settings, "fp32_precision", None)
    return "ieee" if precision == "none" else precision


def processor_name() -> str:
    """The processor's own name where the system says it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
