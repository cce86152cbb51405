"""What tensors and weights in a form of their own keep: sparse matrices, packed weights of quantized layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: What packed weights of a convolution have besides the weight, in the order in which the formula reads them.
_GEOMETRY = ("stride", "padding", "output_padding", "dilation", "groups", "transpose")


def is_sparse(value: torch.Tensor) -> bool:
    """Whether a tensor is stored by its elements and their indices."""
    import torch

    layouts = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
    return value.layout in layouts


def stored_parts(value: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]] | None:
    """The values and the indices of a sparse tensor; `None` for another layout (oneDNN's)."""
    import torch

    if value.is_sparse:
        return value._values(), (value._indices(),)
    if value.layout in (torch.sparse_csr, torch.sparse_bsr):
        return value.values(), (value.crow_indices(), value.col_indices())
    if value.layout in (torch.sparse_csc, torch.sparse_bsc):
        return value.values(), (value.ccol_indices(), value.row_indices())
    return None


def packed_weights(value: torch.ScriptObject) -> list[Any] | None:
    """[weight, bias] of packed parameters, of a convolution with [stride, padding, ...] after; `None` if unknown."""
    import torch

    packed: Any = value
    try:
        unpacked = packed.unpack()
        weight, bias = (unpacked, None) if isinstance(unpacked, torch.Tensor) else unpacked
        contents: list[Any] = [_described(weight), _described(bias)]
        if hasattr(packed, "stride"):
            contents.append([_plain(getattr(packed, name)()) for name in _GEOMETRY])
    except (RuntimeError, AttributeError, TypeError, ValueError):
        return None
    return contents


def _described(tensor: torch.Tensor | None) -> dict[str, Any] | None:
    if tensor is None:
        return None
    return {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch."), "strides": None}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, (list, tuple)) else value
