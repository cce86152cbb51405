"""Describe the ranks of a user's own training: its process group, and how its modules share the work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from opanatomy.capture.distributed.launched import launched
from opanatomy.options import CHECKPOINTED, DDP, FSDP2, HSDP, TP

if TYPE_CHECKING:
    import torch


class Place(Struct, frozen=True):
    """A rank and the number of ranks."""

    rank: int
    world_size: int


def place_in_group() -> Place | None:
    """Return this process's place in its process group, or before that in its launch; `None` if it is alone."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        place = Place(distributed.get_rank(), distributed.get_world_size())
    else:
        started = launched()
        if started is None:
            return None
        place = Place(started.rank, started.world_size)
    return place if place.world_size > 1 else None


def parallel_kind(modules: Iterable[torch.nn.Module]) -> str | None:
    """Return how modules share the training, as a value of `--parallel`; `None` without a sign that they do."""
    kinds = {_kind_of(part) for module in modules for part in module.modules()} - {None}
    for kind in (HSDP, FSDP2, DDP):
        if kind in kinds:
            return CHECKPOINTED if kind == FSDP2 and CHECKPOINTED in kinds else kind
    return TP if TP in kinds else None


def _kind_of(part: Any) -> str | None:
    names = {kind.__name__ for kind in type(part).__mro__}
    if "DistributedDataParallel" in names:
        return DDP
    if "CheckpointWrapper" in names:
        return CHECKPOINTED
    mesh = next((value.device_mesh for value in part._parameters.values() if hasattr(value, "device_mesh")), None)
    if "FSDPModule" in names:
        return HSDP if mesh is not None and mesh.ndim > 1 else FSDP2
    return None if mesh is None else TP
