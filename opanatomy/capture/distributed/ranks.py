"""The ranks of a run: joined in one process group by Accelerate, and what they exchange outside of steps."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from opanatomy.capture.distributed.launcher import check_devices
from opanatomy.capture.distributed.plugins import handlers_of, mesh_of, parallel_of, sharding_of
from opanatomy.capture.model.quiet import quiet_libraries
from opanatomy.errors import CaptureError, UsageError
from opanatomy.launched import Launched
from opanatomy.run_options import RunOptions

if TYPE_CHECKING:
    from accelerate import Accelerator

#: A rank whose step failed waits this long for the others to say that theirs did too; then its error is its own.
_FAILED_TOO_SECONDS: Final = 20.0
_FAILED, _DONE = b"failed", b"done"


class Ranks(Struct, kw_only=True):
    """This process among the ranks of its process group."""

    rank: int
    world_size: int
    #: The device of this rank.
    device: str
    #: How many steps were tried together.
    tries: int = 0

    def longest(self, number: int) -> int:
        """The largest of the numbers that the ranks bring."""
        import torch
        from torch import distributed

        largest = torch.tensor(number, dtype=torch.int64, device=self.device)
        distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
        return int(largest.item())

    def gathered(self, part: bytes) -> Sequence[bytes]:
        """What each rank brings, in their order, on the first of them; nothing on the others."""
        from torch import distributed

        parts: list[Any] | None = [None] * self.world_size if self.rank == 0 else None
        distributed.gather_object(part, parts)
        return parts or ()

    def all_gathered(self, part: Any) -> list[Any]:
        """What each rank brings, in their order."""
        from torch import distributed

        parts: list[Any] = [None] * self.world_size
        distributed.all_gather_object(parts, part)
        return parts

    def all_failed(self, *, failed: bool) -> bool:
        """Whether a try failed on every rank; `CaptureError` where it did on others only.

        It goes past collectives, in which those for which it went well may still wait for this one.
        """
        self.tries += 1
        names = [f"opanatomy/try-{self.tries}/{rank}" for rank in range(self.world_size)]
        store = _store()
        store.set(names[self.rank], _FAILED if failed else _DONE)
        if failed and not _are_there(store, names):
            return False
        failures = [rank for rank, name in enumerate(names) if store.get(name) == _FAILED]
        if failed:
            return len(failures) == self.world_size
        if failures:
            which = f"rank {failures[0]}" if len(failures) == 1 else f"ranks {', '.join(map(str, failures))}"
            raise CaptureError(f"the step failed on {which} only, which cannot take it again alone - see there")
        return False


class Joined(Struct, frozen=True, kw_only=True):
    """This process among the ranks of a launch, and what trains on them."""

    ranks: Ranks
    accelerator: Accelerator
    #: As `--parallel` has it.
    parallel: str


def ranks_of_group(device: str) -> Ranks:
    """The ranks of the process group that there is."""
    from torch import distributed

    return Ranks(rank=distributed.get_rank(), world_size=distributed.get_world_size(), device=device)


@contextmanager
def joined(options: RunOptions, place: Launched) -> Iterator[Joined]:
    """The ranks of this launch, in a process group that is left at the end."""
    from torch import distributed

    with quiet_libraries():
        group = _join(options, place)
    yield group
    # After an error the others stay connected until this rank has said what it was.
    distributed.barrier()
    with suppress(Exception):
        distributed.destroy_process_group()


def _join(options: RunOptions, place: Launched) -> Joined:
    """The ranks of this launch, when all of them are there; `UsageError` for what cannot be run on them."""
    try:
        from accelerate import Accelerator
        from accelerate.utils import GradientAccumulationPlugin
    except ImportError as error:
        raise CaptureError(
            f"{place.world_size} processes train together by accelerate, which is not installed - pip install"
            " accelerate"
        ) from error
    if options.device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"--device {options.device} is one for all ranks: leave it out, each takes its own")
    parallel = parallel_of(options)
    _check(options, place)
    mesh, sharding = mesh_of(parallel, place.world_size), sharding_of(options, parallel)
    os.environ.pop("ACCELERATE_USE_FSDP", None)  # set by the launcher: the requested plugins are passed instead
    accumulation = GradientAccumulationPlugin(num_steps=options.accumulate, sync_with_dataloader=False)
    accelerator = Accelerator(
        cpu=_on_the_cpu(options), mixed_precision="no", dynamo_backend="no",
        gradient_accumulation_plugin=accumulation, kwargs_handlers=handlers_of(options, parallel),
    )  # fmt: skip
    _set_up(accelerator, sharding, mesh)
    device = "cpu" if accelerator.device.type == "cpu" else str(accelerator.device)
    return Joined(ranks=ranks_of_group(device), accelerator=accelerator, parallel=parallel)


def _check(options: RunOptions, place: Launched) -> None:
    if not _on_the_cpu(options):
        check_devices(place.local_world_size)
    if options.texts is not None:
        raise UsageError("--texts are read by one process: leave it out, or run on one")


def _on_the_cpu(options: RunOptions) -> bool:
    from opanatomy.capture.device.environment import choose_device

    return choose_device(options.device) == "cpu"


def _set_up(accelerator: Accelerator, sharding: Any, mesh: Any) -> None:
    """Give Accelerate the plugins; its constructor silently ignores them on the CPU."""
    from accelerate.utils import DistributedType

    state: Any = accelerator.state
    if mesh is not None:
        state.parallelism_config = mesh
        state.device_mesh = mesh.get_device_mesh(accelerator.device.type)
    if sharding is not None:
        state.distributed_type = DistributedType.FSDP
        state.fsdp_plugin = sharding


def _store() -> Any:
    """The store of the process group, which works while collectives wait."""
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def _are_there(store: Any, names: Sequence[str]) -> bool:
    """Whether all keys come to be in time."""
    from datetime import timedelta

    try:
        store.wait(list(names), timedelta(seconds=_FAILED_TOO_SECONDS))
    except Exception:
        return False
    return True
