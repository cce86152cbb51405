"""Which texts make a batch, and how long it is: all padded to one length, to the longest of each batch, by length."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from random import Random
from typing import Final

from msgspec import Struct

#: This many batches are run, evenly spread over all.
RUN_BATCHES: Final = 8


class Batches(Struct, frozen=True, kw_only=True):
    """All batches as numbers of texts, the length of each, and which of them are run."""

    texts: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]
    run: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Tokens of all batches, padding included."""
        return sum(len(texts) * length for texts, length in zip(self.texts, self.lengths, strict=True))

    @property
    def longest(self) -> int:
        """The number of the batch that is padded to most."""
        return max(range(len(self.lengths)), key=self.lengths.__getitem__)

    @property
    def profiled(self) -> int:
        """The number of the run batch in the middle by length, of two the shorter one."""
        ordered = sorted(self.run, key=self.lengths.__getitem__)
        return ordered[(len(ordered) - 1) // 2]


def batches_of(lengths: Sequence[int], size: int, padding: str, maximum: int, seed: int) -> Batches:
    """The full batches of `size` texts of these lengths; what is left over makes none."""
    order = _order(lengths, size, padding, seed)
    texts = tuple(tuple(order[start : start + size]) for start in range(0, len(order) - size + 1, size))
    padded = tuple(maximum if padding == "max-length" else max(lengths[text] for text in batch) for batch in texts)
    return Batches(texts=texts, lengths=padded, run=_spread(padded))


def _spread(lengths: Sequence[int]) -> tuple[int, ...]:
    """The numbers of the batches to run, in their order: evenly spread over all by length, so that their mean step is
    that of all."""
    by_length = sorted(range(len(lengths)), key=lengths.__getitem__)
    count = min(RUN_BATCHES, len(lengths))
    return tuple(sorted(by_length[(2 * place + 1) * len(lengths) // (2 * count)] for place in range(count)))


def _order(lengths: Sequence[int], size: int, padding: str, seed: int) -> list[int]:
    """The texts in the order in which they are taken: by chance, sorted by length, or grouped as the Trainer does."""
    if padding == "grouped":
        return _grouped(lengths, size, seed)
    order = sorted(range(len(lengths)), key=_draws(len(lengths), seed).__getitem__)
    if padding == "sorted":
        return sorted(order, key=lengths.__getitem__)[len(order) % size :]  # the longest are to be there
    return order


def _draws(count: int, seed: int) -> list[float]:
    draw = Random(seed)
    return [draw.random() for _ in range(count)]


def _grouped(lengths: Sequence[int], size: int, seed: int) -> list[int]:
    """The order of transformers' own sampler, of its description where this release has moved it."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    try:
        from transformers.trainer_pt_utils import LengthGroupedSampler
    except ImportError:
        return _in_megabatches(lengths, size, seed)
    with _disable_current_modes():  # it reads values, which fake tensors do not have
        generator = torch.Generator().manual_seed(seed)
        return list(LengthGroupedSampler(size, lengths=list(lengths), generator=generator))


def _in_megabatches(lengths: Sequence[int], size: int, seed: int) -> list[int]:
    """By chance, then in each run of 50 batches (fewer where there would not be four) by length, the longest first."""
    draws = _draws(len(lengths), seed)
    order = sorted(range(len(lengths)), key=draws.__getitem__)
    megabatch = size * max(min(len(lengths) // (size * 4), 50), 1)
    groups = [order[start : start + megabatch] for start in range(0, len(order), megabatch)]
    groups = [sorted(group, key=lengths.__getitem__, reverse=True) for group in groups]
    place = max(range(len(groups)), key=lambda number: lengths[groups[number][0]])
    groups[0][0], groups[place][0] = groups[place][0], groups[0][0]
    return list(chain.from_iterable(groups))
