"""An accelerator without hardware: torch's private device over fake tensors, which have shapes and no values.

Real are the errors where devices are mixed, autograd's device thread, on which backward runs, and with that the
threads and sequence numbers of a trace. There are no data pointers, no kernels and no times of a device. What a program
reads of a tensor's values is zero or false, but of constants.

The private device is of a process: torch takes its name once and gives it back never. Tests run it in processes of
their own (`tests/fake_captures.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "fake"
DEVICE = f"{NAME}:0"

aten = torch.ops.aten


class DeviceModule:
    """`torch.fake`: what a backend's module must have, after torch's own notes on `rename_privateuse1_backend`."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def synchronize(self, device: Any = None) -> None:
        return None

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        return None

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def get_device_name(self, device: Any = None) -> str:
        return "Fake accelerator"


class FakeDeviceMode(FakeTensorMode):
    """Fake tensors that never start a device, and whose values may be asked for."""

    @property
    def avoid_device_init(self) -> bool:
        return True

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten._local_scalar_dense.default and args[0].constant is None:
            return _zero(args[0].dtype)
        if func is aten.equal.default:
            return False
        return super().dispatch(func, types, args, kwargs or {})


def _zero(dtype: torch.dtype) -> bool | int | float:
    if dtype is torch.bool:
        return False
    return 0.0 if dtype.is_floating_point else 0


@contextmanager
def fake_device() -> Iterator[FakeDeviceMode]:
    """The device `fake:0` exists, and every tensor made inside has no values."""
    _register()
    mode = FakeDeviceMode(allow_non_fake_inputs=True)
    apply = torch.nn.Module._apply
    torch.nn.Module._apply = _moved  # type: ignore[method-assign, assignment]
    try:
        with mode:
            yield mode
    finally:
        torch.nn.Module._apply = apply  # type: ignore[method-assign]


_registered: list[str] = []


def _register() -> None:
    if not _registered:
        _setup_privateuseone_for_python_backend(NAME, backend_module=DeviceModule())
        _registered.append(NAME)


def _moved(module: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
    """`Module._apply`, which swaps the tensors of a parameter: one of a fake tensor has weak references, and cannot."""
    made: dict[int, torch.nn.Parameter] = {}
    for one in module.modules() if recurse else (module,):
        for name, parameter in one._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in made:
                with torch.no_grad():
                    tensor = fn(parameter)
                same = tensor is parameter
                made[id(parameter)] = parameter if same else torch.nn.Parameter(tensor, parameter.requires_grad)
            one._parameters[name] = made[id(parameter)]
        for name, buffer in one._buffers.items():
            if buffer is not None:
                one._buffers[name] = fn(buffer)
    return module
