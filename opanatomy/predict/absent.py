"""Let torch run fake tensors on an absent GPU, so that a step makes the calls of that GPU.

Autocast's lists, dropout's mask, the implementation of attention and the optimizers' defaults follow the device of a
tensor. A fake tensor may be of any device, but three questions go past it to the CUDA runtime: autograd asks for the
device's guard and stream, and whether a context is there. A torch without CUDA refuses to answer (a CUDA build without
a GPU answers the first two); here they are answered, as torch's own `_ensureCUDADeviceGuardSet` does for tests without
a GPU. That holds until the process ends: use a fresh one.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from msgspec import Struct

from opanatomy.errors import EstimateError

if TYPE_CHECKING:
    import torch


class Gpu(Struct, frozen=True, kw_only=True):
    """A CUDA device: its name, its compute capability, its memory in bytes; how many of them train together."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int
    ranks: int = 1


@contextmanager
def absent_gpu(gpu: Gpu) -> Iterator[None]:
    """Make torch treat `cuda:0` as if it were this GPU.

    Raises `EstimateError` if this torch cannot do that.
    """
    import torch
    from torch._subclasses import fake_tensor

    _answer_autograd()
    properties = SimpleNamespace(
        name=gpu.name,
        major=gpu.capability[0],
        minor=gpu.capability[1],
        total_memory=gpu.memory_bytes,
        multi_processor_count=_MULTIPROCESSORS,
        warp_size=32,
        gcnArchName="",
    )
    state = torch.zeros(_RANDOM_STATE, dtype=torch.uint8)
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda _: None,
        "get_device_name": lambda *_: gpu.name,
        "get_device_capability": lambda *_: gpu.capability,
        "get_device_properties": lambda *_: properties,
        "get_arch_list": lambda: [f"sm_{gpu.capability[0]}{gpu.capability[1]}"],
        "is_bf16_supported": lambda *_, **__: gpu.capability >= _BFLOAT16,
        "synchronize": lambda *_: None,
        "empty_cache": lambda: None,
        "device": lambda _: ExitStack(),
        "is_current_stream_capturing": lambda: False,
        "get_rng_state": lambda *_: state.clone(),
        "set_rng_state": lambda *_: None,
        "memory_allocated": lambda *_: 0,
        "memory_reserved": lambda *_: 0,
        "mem_get_info": lambda *_: (gpu.memory_bytes, gpu.memory_bytes),
        "reset_peak_memory_stats": lambda *_: None,
    }
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(patch.object(torch.cuda, name, answer))
        # bitsandbytes takes it when it is imported.
        stack.enter_context(patch.object(torch._C, "_cuda_getCurrentRawStream", lambda _: 0, create=True))
        # Backward stays in this thread, whose modes see its calls.
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(patch.object(fake_tensor, "init_gpu_context", lambda *_: None))
        stack.enter_context(_attention_of(gpu))
        stack.enter_context(_whole_operators())
        # What is computed on the host and moved gets no values on the way.
        avoids = property(lambda _: True)
        stack.enter_context(patch.object(fake_tensor.FakeTensorMode, "avoid_device_init", avoids))
        yield


#: The bytes of the state of CUDA's generator, and the first capability with units for bfloat16.
_RANDOM_STATE: Final = 16
_BFLOAT16: Final = (8, 0)
#: Read by kernels that choose their grids, none of which runs.
_MULTIPROCESSORS: Final = 108


# ----- what autograd asks the CUDA runtime

#: Symbol of the array of device guards by kind of device, and CUDA's index in it (c10::DeviceType).
_GUARDS: Final = "_ZN3c104impl26device_guard_impl_registryE"
_CUDA: Final = 1
#: Returns the object that answers questions about CUDA (ATen/detail/CUDAHooksInterface.h).
_HOOKS: Final = "_ZN2at6detail12getCUDAHooksEv"
#: Number of virtual functions of the hooks searched: those of `AcceleratorHooksInterface` come first, after two words
#: that are not functions.
_FUNCTIONS, _HEADER = 60, 2
_POINTER: Final = ctypes.sizeof(ctypes.c_void_p)
#: What the runtime calls from here on must stay in memory.
_kept: list[Any] = []


def _answer_autograd() -> None:
    """Answer what autograd asks about a CUDA device if nothing in this process does.

    CUDA's hooks then report that CUDA is built in and has a context. Which two virtual functions are queried differs
    between releases: they are found by trying which one changes the answer.
    """
    if _runs_backward():
        return
    try:
        folder = Path(sys.modules["torch"].__file__ or "").parent / "lib"
        suffix = ".dylib" if sys.platform == "darwin" else ".so"
        core, library = (ctypes.CDLL(str(folder / f"lib{name}{suffix}")) for name in ("c10", "torch_cpu"))
        _set_guard((ctypes.c_void_p * (_CUDA + 1)).in_dll(core, _GUARDS))
        hooks_of: Any = getattr(library, _HOOKS)
    except (OSError, AttributeError, ValueError, KeyError) as error:
        raise EstimateError(f"{_NOT_ANSWERED} ({error})") from error
    hooks_of.restype = ctypes.c_void_p
    table = ctypes.c_void_p.from_address(hooks_of())
    original = (ctypes.c_void_p * (_FUNCTIONS + _HEADER)).from_address((table.value or 0) - _HEADER * _POINTER)
    copy = (ctypes.c_void_p * (_FUNCTIONS + _HEADER))(*original)
    yes = ctypes.CFUNCTYPE(ctypes.c_bool)(lambda: True)
    _kept.extend((copy, yes))
    table.value = ctypes.addressof(copy) + _HEADER * _POINTER
    for answered in (_is_accelerator, _runs_backward):
        for index in range(_HEADER, len(copy)):
            if answered():
                break
            before, copy[index] = copy[index], _address(yes)
            if not answered():
                copy[index] = before
        else:
            raise EstimateError(_NOT_ANSWERED)


_NOT_ANSWERED: Final = (
    "this torch cannot simulate a step for a GPU that is not present - use torch 2.6 or later on Linux or macOS, a"
    " machine with a GPU, or cpu instead of the GPU"
)


def _set_guard(guards: Any) -> None:
    """Make torch install its no-op CUDA guard, which it does if the current one counts no devices."""
    import torch

    if guards[_CUDA]:
        torch._C._ensureCUDADeviceGuardSet()
        return
    none = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)
    functions = (ctypes.c_void_p * _FUNCTIONS)(*[_address(none)] * _FUNCTIONS)
    guard = ctypes.c_void_p(ctypes.addressof(functions))
    guards[_CUDA] = ctypes.addressof(guard)
    torch._C._ensureCUDADeviceGuardSet()
    if guards[_CUDA] == ctypes.addressof(guard):
        guards[_CUDA] = None
        raise EstimateError(_NOT_ANSWERED)


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value


def _is_accelerator() -> bool:
    """Return whether torch takes CUDA for its accelerator."""
    import torch

    ask: Any = getattr(torch._C, "_accelerator_getAccelerator", lambda: None)
    return str(ask()) == "cuda"


def _runs_backward() -> bool:
    """Return whether a backward of fake CUDA tensors runs."""
    import torch
    from torch._subclasses import fake_tensor

    if not _is_accelerator():
        return False
    try:
        with (
            fake_tensor.FakeTensorMode(),
            torch.autograd.set_multithreading_enabled(False),
            patch.object(fake_tensor, "init_gpu_context", lambda *_: None),
        ):
            leaf = torch.empty(1, device="cuda", requires_grad=True)
            leaf.exp().sum().backward()  # type: ignore[no-untyped-call]
    except RuntimeError:
        return False
    return True


# ----- attention, whose implementation torch chooses in code of CUDA builds


@contextmanager
def _attention_of(gpu: Gpu) -> Iterator[None]:
    """Make `scaled_dot_product_attention` call this GPU's implementation, by the rules in torch's sdp_utils.cpp."""
    import torch

    made_by: Any = torch.library
    library = made_by.Library("aten", "IMPL")

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        aten: Any = torch.ops.aten
        tensors = query, key, value
        mask = attn_mask
        if mask is not None and mask.dtype is torch.bool:
            mask = torch.where(mask, 0.0, torch.scalar_tensor(-torch.inf, dtype=query.dtype, device=query.device))
        grouped = key.shape[-3:-2] != query.shape[-3:-2]
        if mask is None and _flash_fits(gpu, *tensors, is_causal=is_causal):
            size = query.shape[-1]
            scale = size**-0.5 if scale is None else scale
            padded = [
                torch.nn.functional.pad(each, (0, -size % _FLASH_STEP)) if size % _FLASH_STEP else each
                for each in tensors
            ]
            made: torch.Tensor = aten._scaled_dot_product_flash_attention(
                *padded, dropout_p, is_causal, False, scale=scale
            )[0]
            return made if made.shape[-1] == size else made[..., :size]
        if not grouped and _efficient_fits(gpu, *tensors):
            if mask is not None:
                length = mask.shape[-1]
                if length % _MASK_STEP:
                    mask = torch.nn.functional.pad(mask, (0, -length % _MASK_STEP))[..., :length]
                mask = mask.expand(*query.shape[:-1], key.shape[-2])
            keeps = torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
            made = aten._scaled_dot_product_efficient_attention(
                *tensors, mask, keeps, dropout_p, is_causal, scale=scale
            )[0]
            return made
        made = aten._scaled_dot_product_attention_math(
            *tensors, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]
        return made

    try:
        library.impl("scaled_dot_product_attention", attention, "AutogradCUDA")
        yield
    finally:
        library._destroy()


#: Head sizes of flash attention: padded to a multiple of the first, at most the second.
_FLASH_STEP, _FLASH_MOST = 8, 256
#: Mask rows are padded to a multiple of this many elements.
_MASK_STEP: Final = 16


def _flash_fits(gpu: Gpu, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, is_causal: bool) -> bool:
    import torch

    allowed: Any = torch.backends.cuda
    halves = query.dtype in (torch.float16, torch.bfloat16) and gpu.capability >= _BFLOAT16
    shaped = query.dim() == 4 and key.shape[-1] == value.shape[-1] == query.shape[-1] <= _FLASH_MOST
    square = not is_causal or query.shape[-2] == key.shape[-2]
    return bool(allowed.flash_sdp_enabled()) and halves and shaped and square


def _efficient_fits(gpu: Gpu, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    import torch

    allowed: Any = torch.backends.cuda
    halves = query.dtype in (torch.float16, torch.bfloat16)
    step = (8 if gpu.capability >= (7, 5) else 4) if halves else (4 if gpu.capability >= _BFLOAT16 else 1)
    aligned = query.dim() == 4 and query.shape[-1] % step == value.shape[-1] % step == 0
    computes = query.dtype in (torch.float32, torch.float16) or gpu.capability >= _BFLOAT16
    return bool(allowed.mem_efficient_sdp_enabled()) and computes and aligned


# ----- operators that torch makes of others where a device has no kernel of them

#: Operators composed of others that have kernels on the CPU and on CUDA.
_WHOLE: Final = ("silu_backward", "mish_backward")


@contextmanager
def _whole_operators() -> Iterator[None]:
    """Let a torch without CUDA take these operators as a whole: without a kernel autograd runs their bodies."""
    import torch

    made_by: Any = torch.library
    library = made_by.Library("aten", "IMPL")

    def has_no_values(*_: object) -> None:
        raise AssertionError("a kernel of a GPU that is not present")

    try:
        if torch.version.cuda is None and torch.version.hip is None:
            for name in _WHOLE:
                library.impl(name, has_no_values, "CUDA")
        yield
    finally:
        library._destroy()
