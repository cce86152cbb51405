"""Convert a one-process subject to a rank's: its samples, and model and optimizer prepared by Accelerate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.capture.batches import Shape, make_batch, move
from opanatomy.capture.device.accelerators import device_of
from opanatomy.capture.distributed.group import parallel_kind, place_in_group
from opanatomy.capture.distributed.ranks import RankGroup, ranks_of_group
from opanatomy.capture.distributed.training import RankTraining, SharedTraining
from opanatomy.capture.model.workload import Plan
from opanatomy.capture.subject import Subject
from opanatomy.options import CHECKPOINTED, CHECKPOINTING, DDP, TP, RunOptions

if TYPE_CHECKING:
    import torch


# Deal each rank its own samples, as Accelerate's data loader does.


class Dealt(Struct, frozen=True, kw_only=True):
    """The batch of one rank, and the numbers of its samples in the data set."""

    inputs: dict[str, Any]
    samples: tuple[int, ...]


class Samples:
    """A data set with one batch per rank; each is created when one of its samples is requested."""

    def __init__(self, module: torch.nn.Module, shape: Shape, seed: int, batches: int) -> None:
        self._module, self._shape, self._seed, self._count = module, shape, seed, batches * shape.batch
        self._made: dict[int, dict[str, Any]] = {}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, sample: int) -> tuple[int, dict[str, Any]]:
        """Return a sample's number, and its slice of each input."""
        number, index = divmod(sample, self._shape.batch)
        if number not in self._made:
            self._made[number] = make_batch(self._module, self._shape, self._seed + number)
        made = self._made[number].items()
        return sample, {name: value[index] if getattr(value, "ndim", 0) else value for name, value in made}


def deal(module: torch.nn.Module, shape: Shape, seed: int, group: RankGroup) -> Dealt:
    """Return this rank's first batch from a loader that Accelerate has prepared."""
    from torch.utils.data import DataLoader

    samples: Any = Samples(module, shape, seed, group.ranks.world_size)
    loader: Any = DataLoader(samples, batch_size=shape.batch, collate_fn=_together)
    batches: list[Dealt] = list(group.accelerator.prepare(loader))  # to its end, since Accelerate tracks it
    return batches[0]


def _together(samples: list[tuple[int, dict[str, Any]]]) -> Dealt:
    """Collate samples into a batch; values other than tensors are the same for all."""
    import torch

    rows = [inputs for _, inputs in samples]
    inputs = {
        name: torch.stack([row[name] for row in rows]) if isinstance(value, torch.Tensor) else value
        for name, value in rows[0].items()
    }
    return Dealt(inputs=inputs, samples=tuple(number for number, _ in samples))


def shared(subject: Subject, plan: Plan | None, options: RunOptions, group: RankGroup) -> Subject:
    """Return the subject as this rank runs it; without a `plan` it keeps its own inputs."""
    ranks = group.ranks
    if plan is not None and plan.texts is None:
        dealt = deal(subject.module, plan.shape, options.seed, group)
        subject = replace(subject, inputs=move(dealt.inputs, options.device))
        samples = len({number for part in ranks.all_gathered(dealt.samples) for number in part})
    else:
        together = sum(ranks.all_gathered(subject.workload.batch or 0))
        samples = together // (ranks.world_size if group.parallel == TP else 1)
    with_buckets = group.parallel == DDP
    workload = replace(
        subject.workload,
        parallel=group.parallel,
        world_size=ranks.world_size,
        samples_together=samples,
        bucket_mb=options.bucket_mb if with_buckets else None,
        bucket_view=options.bucket_view if with_buckets else None,
        checkpointing=CHECKPOINTING.bare if group.parallel == CHECKPOINTED else subject.workload.checkpointing,
    )
    return replace(subject, training=SharedTraining(group, subject.module, options), workload=workload)


def for_rank(subject: Subject) -> Subject:
    """Return the subject; if its module is already distributed, as a rank runs it when called on each."""
    kind, place = parallel_kind([subject.module]), place_in_group()
    if kind is None or place is None:
        return subject
    ranks = ranks_of_group(device_of(subject.module, subject.inputs))
    workload = replace(subject.workload, parallel=kind, world_size=place.world_size)
    return replace(subject, training=RankTraining(ranks), workload=workload)
