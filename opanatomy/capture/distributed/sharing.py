"""A subject of one process -> that of a rank: its own samples, its model and optimizer prepared by Accelerate."""

from __future__ import annotations

from msgspec.structs import replace

from opanatomy.capture.device.devices import device_of
from opanatomy.capture.distributed.group import parallel_kind, place_in_group
from opanatomy.capture.distributed.ranks import Joined, ranks_of_group
from opanatomy.capture.distributed.samples import deal
from opanatomy.capture.distributed.training import RankTraining, SharedTraining
from opanatomy.capture.model.batches import move
from opanatomy.capture.model.workload import Plan
from opanatomy.capture.step.subject import Subject
from opanatomy.options import CHECKPOINTED, CHECKPOINTING, DDP, TP
from opanatomy.records.workload import Workload
from opanatomy.run_options import RunOptions


def shared(subject: Subject, plan: Plan | None, options: RunOptions, joined: Joined) -> Subject:
    """The subject as this rank runs it; without a `plan` its inputs are those that it has."""
    ranks = joined.ranks
    if plan is not None and plan.texts is None:
        dealt = deal(subject.module, plan.shape, options.seed, joined)
        subject = replace(subject, inputs=move(dealt.inputs, options.device))
        samples = len({number for part in ranks.all_gathered(dealt.samples) for number in part})
    else:
        together = sum(ranks.all_gathered(subject.workload.batch or 0))
        samples = together // (ranks.world_size if joined.parallel == TP else 1)
    return replace(
        subject, training=SharedTraining(joined, subject.module, options),
        workload=_workload(subject.workload, options, joined, samples),
    )  # fmt: skip


def of_a_group(subject: Subject) -> Subject:
    """The subject; of a module that ranks share already as one of them runs it, by a call on each."""
    kind, place = parallel_kind([subject.module]), place_in_group()
    if kind is None or place is None:
        return subject
    ranks = ranks_of_group(device_of(subject.module, subject.inputs))
    workload = replace(subject.workload, parallel=kind, world_size=place.world_size)
    return replace(subject, training=RankTraining(ranks), workload=workload)


def _workload(workload: Workload, options: RunOptions, joined: Joined, samples: int) -> Workload:
    with_buckets = joined.parallel == DDP
    return replace(
        workload, parallel=joined.parallel, world_size=joined.ranks.world_size, samples_together=samples,
        bucket_mb=options.bucket_mb if with_buckets else None,
        bucket_view=options.bucket_view if with_buckets else None,
        checkpointing=CHECKPOINTING.bare if joined.parallel == CHECKPOINTED else workload.checkpointing,
    )  # fmt: skip
