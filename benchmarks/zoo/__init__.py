"""Models of other libraries, tiny and with random weights: a file for each kind, a function for each model.

Each function of `MODELS` in such a file takes nothing and returns (module, inputs), as `opanatomy.profile` takes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from opanatomy.records.taxonomy import Phase

Built: TypeAlias = "tuple[torch.nn.Module, Any]"
Models: TypeAlias = "dict[str, Callable[[], Built]]"

#: The files of this folder, in the order of the table.
KINDS = (
    "convnets", "detection", "transformers_of_timm", "diffusion", "adapters", "graphs", "sequences", "others",
    "programs", "layers",
)  # fmt: skip
#: FLOPs by phase, worked out by hand, where a dispatch mode does not see the whole step: it is of one thread.
BY_HAND: dict[str, dict[Phase, int]] = {
    "strange code: threads": {Phase.FORWARD: 3_840, Phase.BACKWARD: 4_608},
}


class Loss(torch.nn.Module):
    """A model with the loss on its outputs: `loss_of` takes what the model returns."""

    def __init__(self, model: torch.nn.Module, loss_of: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        self.model = model
        self.loss_of = loss_of

    def forward(self, *inputs: Any, **named: Any) -> dict[str, torch.Tensor]:
        return {"loss": self.loss_of(self.model(*inputs, **named))}


def image(size: int = 64, batch: int = 2, channels: int = 3) -> torch.Tensor:
    """Random pixels, square."""
    return torch.randn(batch, channels, size, size)


def tokens(batch: int = 2, length: int = 16, vocabulary: int = 96) -> torch.Tensor:
    """Token numbers, those of padding and the like left out."""
    return torch.randint(5, vocabulary, (batch, length))
