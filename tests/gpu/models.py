"""Models that the checks on a device profile next to those of the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def float32_products() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Large products in float32."""
    return _products("highest")


def tf32_products() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """The same products, rounded to tf32."""
    return _products("high")


def _products(precision: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    import torch

    torch.set_float32_matmul_precision(precision)
    width = 4096
    module = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.Linear(width, width))
    return module, (torch.randn(width, width),)


def too_large() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """More activations than any device holds: 4096 layers' worth of half a gigabyte each."""
    import torch

    layer = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.GELU())
    return torch.nn.Sequential(*[layer] * 4096), (torch.randn(1 << 17, 1024),)
