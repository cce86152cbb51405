"""An accelerator without hardware: torch's private device over fake tensors, which have shapes and no values.

Real are the errors where devices are mixed, autograd's device thread, on which backward runs, and with that the
threads and sequence numbers of a trace. There are no data pointers, no kernels and no times of a device. What a program
reads of a tensor's values is zero or false, but of constants.

The private device is of a process: torch takes its name once and gives it back never. Tests run it in processes of
their own (`tests/fake_captures.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from opanatomy.predict.fake import fake_mode, parameters_replaced

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


class FakeDeviceMode(fake_mode()):  # type: ignore[misc]  # the class is made when it is first asked for
    """Fake tensors that never start a device, and whose values may be asked for."""

    @property
    def avoid_device_init(self) -> bool:
        return True


@contextmanager
def fake_device() -> Iterator[FakeDeviceMode]:
    """The device `fake:0` exists, and every tensor made inside has no values."""
    _register()
    mode = FakeDeviceMode(allow_non_fake_inputs=True)
    with mode, parameters_replaced():
        yield mode


#: What keeps the registrations alive.
_registered: list[torch.library.Library] = []

#: Operators that autocast runs in the lower precision and in float32: those of torch's lists that the catalog calls.
_LOWER = "conv1d conv2d conv3d convolution linear matmul mm bmm addmm baddbmm scaled_dot_product_attention"
_FLOAT32 = "layer_norm native_layer_norm group_norm nll_loss nll_loss2d exp rsqrt log softplus ctc_loss.Tensor"
#: Of these autocast sets the data type of the result instead.
_FLOAT32_RESULT = "softmax.int log_softmax.int"


def _register() -> None:
    if _registered:
        return
    _setup_privateuseone_for_python_backend(NAME, backend_module=DeviceModule())
    everything = torch.library.Library("_", "IMPL", _AUTOCAST)
    everything.fallback(torch.library.fallthrough_kernel)
    library = torch.library.Library("aten", "IMPL", _AUTOCAST)
    for names, make in ((_LOWER, _lower), (_FLOAT32, _float32), (_FLOAT32_RESULT, _float32_result)):
        for name in names.split():
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(aten, packet), overload or "default")
            library.impl(name, make(operator))
    _registered.extend((everything, library))


_AUTOCAST = "AutocastPrivateUse1"


def _below_autocast(operator: Any, *args: Any, **kwargs: Any) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)):
        return operator(*args, **kwargs)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    is_wide = isinstance(value, torch.Tensor) and value.is_floating_point() and value.device.type == NAME
    return value.to(dtype) if is_wide and value.dtype != dtype else value


def _lower(operator: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype(NAME)
        return _below_autocast(operator, *(_cast(one, dtype) for one in args), **kwargs)

    return call


def _float32(operator: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return _below_autocast(operator, *(_cast(one, torch.float32) for one in args), **kwargs)

    return call


def _float32_result(operator: Any) -> Any:
    def call(tensor: torch.Tensor, *args: Any, dtype: torch.dtype | None = None) -> Any:
        wide = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else dtype
        return _below_autocast(operator, tensor, *args[:1], dtype=wide if dtype is None else dtype)

    return call
