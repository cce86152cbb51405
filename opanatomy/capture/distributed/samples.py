"""The samples of the ranks: other ones for each, as Accelerate's data loader deals them out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from opanatomy.capture.distributed.ranks import Joined
from opanatomy.capture.model.batches import Shape, make_batch

if TYPE_CHECKING:
    import torch


class Dealt(Struct, frozen=True, kw_only=True):
    """The batch of one rank, and the numbers of its samples among those of the data set."""

    inputs: dict[str, Any]
    samples: tuple[int, ...]


class Samples:
    """A data set of as many batches as there are ranks; each is made when a sample of it is requested."""

    def __init__(self, module: torch.nn.Module, shape: Shape, seed: int, batches: int) -> None:
        self._module, self._shape, self._seed, self._count = module, shape, seed, batches * shape.batch
        self._made: dict[int, dict[str, Any]] = {}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, sample: int) -> tuple[int, dict[str, Any]]:
        """The number of a sample, and its part of each input."""
        number, place = divmod(sample, self._shape.batch)
        if number not in self._made:
            self._made[number] = make_batch(self._module, self._shape, self._seed + number)
        return sample, {name: _row(value, place) for name, value in self._made[number].items()}


def deal(module: torch.nn.Module, shape: Shape, seed: int, joined: Joined) -> Dealt:
    """The first batch that this rank gets of a loader that Accelerate has prepared."""
    from torch.utils.data import DataLoader

    samples: Any = Samples(module, shape, seed, joined.ranks.world_size)
    loader: Any = DataLoader(samples, batch_size=shape.batch, collate_fn=_together)
    batches: list[Dealt] = list(joined.accelerator.prepare(loader))  # to its end: Accelerate keeps note of that
    return batches[0]


def _row(value: Any, place: int) -> Any:
    return value[place] if getattr(value, "ndim", 0) else value


def _together(samples: list[tuple[int, dict[str, Any]]]) -> Dealt:
    """A batch of samples; what is no tensor is the same for all."""
    import torch

    rows = [inputs for _, inputs in samples]
    inputs = {
        name: torch.stack([row[name] for row in rows]) if isinstance(value, torch.Tensor) else value
        for name, value in rows[0].items()
    }
    return Dealt(inputs=inputs, samples=tuple(number for number, _ in samples))
