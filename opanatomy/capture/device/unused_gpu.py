"""Why torch uses no GPU on a machine that has one."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import Final

from msgspec import Struct

from opanatomy.capture.device import nvml

#: "CUDA initialization: The NVIDIA driver on your system is too old ..." (c10/cuda/CUDAFunctions.cpp).
_WARNED: Final = re.compile(r"(?:CUDA|HIP) initialization: (.*)", re.DOTALL)
#: `cudaGetErrorString` after its number, where torch has no sentence of its own.
_ERROR: Final = re.compile(r"Error (\d+): (.+)")
#: `cudaErrorSystemNotReady`, `cudaErrorSystemDriverMismatch`, `cudaErrorCompatNotSupportedOnDevice` of CUDA's runtime.
_ERRORS: Final = {
    "802": "start nvidia-fabricmanager, which GPUs behind an NVSwitch need",
    "803": "restart after an update of the driver",
    "804": "take the folder of CUDA's compatibility libraries out of LD_LIBRARY_PATH",
}
_ORDINAL: Final = re.compile(r"[+-]?\d+")
_GIVE: Final = "and start a container with its GPUs (--gpus all)"
_PROC: Final = Path("/proc/driver/nvidia/gpus")
_KFD: Final = Path("/dev/kfd")


class Unused(Struct, frozen=True):
    """Why the GPU is not used, and what to do."""

    why: str
    do: str


_warning: str | None = None


def sees_gpu() -> bool:
    """Whether torch can use a GPU; what it warns of when it looks, once a process, is kept for `why_unused`."""
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
    """Why there is a GPU and torch does not use it; `None` where none is to be seen."""
    import torch

    if torch.version.hip:
        return _amd_driver()
    driver = nvml.driver()
    gpus = driver.gpus if isinstance(driver, nvml.Driver) else ()
    gpus = gpus or _gpus_of_the_kernel()
    if torch.version.cuda is None:
        return _not_built(gpus)
    if not gpus:
        what, do = _said()
        return Unused(f"CUDA does not start{what}", do) if what else None
    there = _listed(gpus)
    if hidden := _hidden(len(gpus), there):
        return Unused(hidden, "unset it, or number them from 0")
    if not isinstance(driver, nvml.Driver):
        return _no_library(there, driver)
    if too_old := _too_old(driver, torch.version.cuda):
        return Unused(f"{too_old} to use {there}", "update the driver, or install a build of torch for an older CUDA")
    if driver.without_instance == driver.gpus:
        return Unused(f"MIG is on and there is no instance of {there}", "make one (nvidia-smi mig -C -cgi ...)")
    what, do = _said()
    return Unused(f"CUDA does not start on {there}{what}", do)


def _no_library(there: str, why: str) -> Unused:
    """A GPU that only the kernel names: the container was not given it, or library and kernel module differ."""
    if "Not Found" in why or "not installed" in why:
        return Unused(f"the driver's libraries for {there} are missing: {why}", f"install the driver, {_GIVE}")
    return Unused(f"the driver of {there} does not work: {why}", "restart after an update of the driver")


def _said() -> tuple[str, str]:
    """What torch's warning says, and what to do about it."""
    text = re.sub(r" \(Triggered internally at .*", "", _warning or "")
    if error := _ERROR.search(text):
        return f": error {error[1]}, {error[2][:120]}", _ERRORS.get(error[1], "look at nvidia-smi")
    return (f": {text[:160]}" if text else ""), f"look at nvidia-smi, {_GIVE}"


def _not_built(gpus: tuple[str, ...]) -> Unused | None:
    """A torch without CUDA and HIP."""
    import torch

    if gpus:
        there, do = _listed(gpus), "install a build of torch with CUDA"
    elif _KFD.exists():
        there, do = "an AMD GPU", "install a build of torch with ROCm"
    else:
        return None
    return Unused(f"this torch ({torch.__version__}) is a build for the CPU and does not use {there}", do)


def _hidden(count: int, there: str) -> str | None:
    """What `CUDA_VISIBLE_DEVICES` hides: everything from its first entry on that is no device of the `count`."""
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return None
    names = [name.strip() for name in value.split(",")]
    if not names[0]:
        return f"CUDA_VISIBLE_DEVICES is empty and hides {there}"
    if _names_none(names[0], count):
        return f"CUDA_VISIBLE_DEVICES={value} names none of {there}"
    if len(set(names)) < len(names):
        return f"CUDA_VISIBLE_DEVICES={value} names a GPU twice, which hides {there}"
    return None


def _names_none(name: str, count: int) -> bool:
    """Whether an entry is no device: a number is read up to what is no digit (`_parse_visible_devices` of torch.cuda),
    any other word, as Slurm's `NoDevFiles`, hides all."""
    if name.startswith(("GPU-", "MIG-")):
        return nvml.knows(name) is False
    number = _ORDINAL.match(name)
    return number is None or not 0 <= int(number[0]) < count


def _too_old(driver: nvml.Driver, built: str) -> str | None:
    """A driver runs what was built for its own major version of CUDA or an older one (minor version compatibility)."""
    if driver.cuda is None or int(driver.cuda.split(".")[0]) >= int(built.split(".")[0]):
        return None
    version = f"driver {driver.version}" if driver.version else "the driver"
    return f"{version} (CUDA {driver.cuda}) is too old for this torch (CUDA {built})"


def _amd_driver() -> Unused | None:
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        value = os.environ.get(name)
        if value is not None and (not value or value.startswith("-")):
            return Unused(f"{name}={value} hides all AMD GPUs", "unset it")
    if _KFD.exists() and not os.access(_KFD, os.R_OK | os.W_OK):
        return Unused("this user may not open /dev/kfd", "add the user to the groups render and video")
    if _KFD.exists():
        return Unused("HIP finds no device behind /dev/kfd", "look at rocminfo")
    return None


def _gpus_of_the_kernel() -> tuple[str, ...]:
    """The GPUs that the kernel's driver names where NVML does not answer."""
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
