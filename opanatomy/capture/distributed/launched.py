"""Find this process's rank as set by a launcher: torchrun, accelerate launch, mpirun, srun."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

#: The names in torchrun and Accelerate, then those in the launchers of MPI.
_RANK: Final = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")


_WORLD: Final = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


_LOCAL_RANK: Final = ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK")


_LOCAL_WORLD: Final = ("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE")


class Launched(Struct, frozen=True, kw_only=True):
    """One of `world_size` processes; `local_rank` is its index on this machine."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int

    @property
    def is_first(self) -> bool:
        """Return whether this process reports for all."""
        return self.rank == 0


def launched(environment: Mapping[str, str] | None = None) -> Launched | None:
    """Return this process's place among its launcher's processes; `None` if it is the only one."""
    environment = os.environ if environment is None else environment
    rank, world = (_first(environment, names) for names in (_RANK, _WORLD))
    if rank is None or world is None or world < 2:
        return None
    local_rank, local_world = (_first(environment, names) for names in (_LOCAL_RANK, _LOCAL_WORLD))
    return Launched(
        rank=rank,
        world_size=world,
        local_rank=rank if local_rank is None else local_rank,
        local_world_size=world if local_world is None else local_world,
    )


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    """Return the first of the variables that is a number."""
    values = (environment.get(name, "") for name in names)
    return next((int(value) for value in values if value.isdecimal()), None)
