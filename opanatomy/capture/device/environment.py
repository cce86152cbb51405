"""Describe the machine and the libraries of a run."""

from __future__ import annotations

import os
import platform
import re
import sys
import warnings
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Final

from msgspec import Struct

from opanatomy.capture.device import accelerators, nvml
from opanatomy.capture.device.start import architecture_of
from opanatomy.errors import CaptureError
from opanatomy.records.patterns import regex
from opanatomy.records.workload import Environment

# Explain why torch uses no GPU on a machine that has one.


#: "CUDA initialization: The NVIDIA driver on your system is too old ..." (c10/cuda/CUDAFunctions.cpp).
_WARNED: Final = regex(r"(?:CUDA|HIP) initialization: (.*)", re.DOTALL)
#: `cudaGetErrorString` after its number, used if torch has no sentence for it.
_ERROR: Final = regex(r"Error (\d+): (.+)")
#: `cudaErrorSystemNotReady`, `cudaErrorSystemDriverMismatch`, `cudaErrorCompatNotSupportedOnDevice` of CUDA's runtime.
_ERRORS: Final = {
    "802": "start nvidia-fabricmanager, which GPUs behind an NVSwitch need",
    "803": "reboot after a driver update",
    "804": "remove the folder with CUDA's compatibility libraries from LD_LIBRARY_PATH",
}
_ORDINAL: Final = regex(r"[+-]?\d+")
_GIVE: Final = "and start containers with GPU access (--gpus all)"
_PROC: Final = Path("/proc/driver/nvidia/gpus")
_KFD: Final = Path("/dev/kfd")


class Unused(Struct, frozen=True):
    """The reason why the GPU is not used, and the remedy."""

    why: str
    do: str


_warning: str | None = None


def sees_gpu() -> bool:
    """Return whether torch can use a GPU; keep its warning, given once per process, for `why_unused`."""
    import torch

    global _warning
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    for warning in caught:
        if said := _WARNED.match(str(warning.message)):
            _warning = " ".join(said[1].split())
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return available


def why_unused() -> Unused | None:
    """Return why torch does not use the GPU of this machine; `None` if no GPU is visible."""
    import torch

    if torch.version.hip:
        return _amd_driver()
    driver = nvml.driver()
    gpus = driver.gpus if isinstance(driver, nvml.Driver) else ()
    gpus = gpus or _gpus_of_the_kernel()
    if torch.version.cuda is None:
        if gpus:
            there, do = _listed(gpus), "install a CUDA build of torch"
        elif _KFD.exists():
            there, do = "an AMD GPU", "install a ROCm build of torch"
        else:
            return None
        return Unused(f"this torch ({torch.__version__}) is a CPU build and cannot use {there}", do)
    if not gpus:
        what, do = _said()
        return Unused(f"CUDA fails to initialize{what}", do) if what else None
    there = _listed(gpus)
    if hidden := _hidden(len(gpus), there):
        return Unused(hidden, "unset it, or number the GPUs from 0")
    if not isinstance(driver, nvml.Driver):
        # Only the kernel names the GPU: the container lacks the library, or library and kernel module differ.
        if "Not Found" in driver or "not installed" in driver:
            return Unused(f"the driver's libraries for {there} are missing: {driver}", f"install the driver, {_GIVE}")
        return Unused(f"the driver for {there} does not work: {driver}", "reboot after a driver update")
    # A driver runs builds for its own major version of CUDA or an older one (minor version compatibility).
    if driver.cuda is not None and int(driver.cuda.split(".")[0]) < int(torch.version.cuda.split(".")[0]):
        version = f"driver {driver.version}" if driver.version else "the driver"
        return Unused(
            f"{version} (CUDA {driver.cuda}) is too old for this torch (CUDA {torch.version.cuda}) to use {there}",
            "update the driver, or install a torch build for an older CUDA",
        )
    if driver.without_instance == driver.gpus:
        return Unused(f"MIG is on, but {there} has no instance", "create one (nvidia-smi mig -C -cgi ...)")
    what, do = _said()
    return Unused(f"CUDA fails to initialize on {there}{what}", do)


def _said() -> tuple[str, str]:
    """Return the text of torch's warning, and the remedy."""
    text = re.sub(r" \(Triggered internally at .*", "", _warning or "")
    if error := _ERROR.search(text):
        return f": error {error[1]}, {error[2][:120]}", _ERRORS.get(error[1], "check nvidia-smi")
    return (f": {text[:160]}" if text else ""), f"check nvidia-smi, {_GIVE}"


def _hidden(count: int, there: str) -> str | None:
    """Explain `CUDA_VISIBLE_DEVICES`: everything from the first invalid entry on is hidden."""
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return None
    names = [name.strip() for name in value.split(",")]
    if not names[0]:
        return f"CUDA_VISIBLE_DEVICES is empty and hides {there}"
    # A number is read up to the first character that is no digit (`_parse_visible_devices` of torch.cuda); any other
    # word, such as Slurm's `NoDevFiles`, hides all.
    number = _ORDINAL.match(names[0])
    names_none = number is None or not 0 <= int(number[0]) < count
    if names[0].startswith(("GPU-", "MIG-")):
        names_none = nvml.knows(names[0]) is False
    if names_none:
        return f"the first entry of CUDA_VISIBLE_DEVICES={value} is no existing GPU, which hides {there}"
    if len(set(names)) < len(names):
        return f"CUDA_VISIBLE_DEVICES={value} lists a GPU twice, which hides {there}"
    return None


def _amd_driver() -> Unused | None:
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        value = os.environ.get(name)
        if value is not None and (not value or value.startswith("-")):
            return Unused(f"{name}={value} hides all AMD GPUs", "unset it")
    if _KFD.exists() and not os.access(_KFD, os.R_OK | os.W_OK):
        return Unused("this user has no access to /dev/kfd", "add the user to the render and video groups")
    if _KFD.exists():
        return Unused("HIP finds no device behind /dev/kfd", "check rocminfo")
    return None


def _gpus_of_the_kernel() -> tuple[str, ...]:
    """Return the GPUs that the kernel's driver names, for use if NVML does not answer."""
    names = []
    for path in sorted(_PROC.glob("*/information")):
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        names += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return tuple(names)


def _listed(gpus: tuple[str, ...]) -> str:
    if len(gpus) == 1:
        return f"the GPU ({gpus[0]})"
    return f"the {len(gpus)} GPUs ({', '.join(dict.fromkeys(gpus))})"


def choose_device(wanted: str) -> str:
    """Return the device to run on: `auto` is CUDA (or ROCm) if available, else the CPU; others must be named."""
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
            raise CaptureError(f"--device {wanted}: {there}{shown} - numbering starts at cuda:0")
        return f"cuda:{int(number)}"
    return accelerators.check_device(wanted)


def no_gpu_note(wanted: str) -> str:
    """Return the note for a CPU run; unless requested, it explains why an existing GPU is not used."""
    unused = why_unused() if wanted == "auto" else None
    why, do = (f" because {unused.why}", f" - {unused.do}") if unused else ("", "")
    return f"no GPU in use{why}: running on the CPU ({processor_name()}){do}"


def environment_of(device: str) -> Environment:
    """Return the environment that the report describes."""
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
        host_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        processor=processor,
        matmul_float32=_float32(torch.backends.cuda.matmul) if on_cuda else None,
        convolution_float32=_float32(getattr(torch.backends.cudnn, "conv", None)) if on_cuda else None,
    )


def _version_of(package: str) -> str | None:
    """Return the version of a package without importing it for a loop that does not use it."""
    loaded = getattr(sys.modules.get(package), "__version__", None)
    if loaded is not None:
        return str(loaded)
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _float32(settings: object) -> str | None:
    """Return the precision of float32 products of a kind, "tf32" or "ieee"; `None` before torch 2.9.

    `NVIDIA_TF32_OVERRIDE=0` turns tf32 off in NVIDIA's libraries, whatever torch asks of them.
    """
    if os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
        return "ieee"
    precision = getattr(settings, "fp32_precision", None)
    return "ieee" if precision == "none" else precision


def processor_name() -> str:
    """Return the processor's name if the system reports it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
