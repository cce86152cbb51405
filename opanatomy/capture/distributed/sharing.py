"""A subject of one process -> that of a rank: its own samples, its model and optimizer prepared by Accelerate."""

from __future__ import annotations

from msgspec.structs import replace

from opanatomy.capture.distributed.ranks import Joined
from opanatomy.capture.distributed.samples import deal
from opanatomy.capture.distributed.training import SharedTraining
from opanatomy.capture.model.batches import move
from opanatomy.capture.model.workload import Plan
from opanatomy.capture.step.subject import Subject
from opanatomy.options import CHECKPOINTED, CHECKPOINTING, DDP, TP, RunOptions
from opanatomy.records.workload import Workload


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


def _workload(workload: Workload, options: RunOptions, joined: Joined, samples: int) -> Workload:
    with_buckets = joined.parallel == DDP
    return replace(
        workload, parallel=joined.parallel, world_size=joined.ranks.world_size, samples_together=samples,
        bucket_mb=options.bucket_mb if with_buckets else None,
        bucket_view=options.bucket_view if with_buckets else None,
        checkpointing=CHECKPOINTING.bare if joined.parallel == CHECKPOINTED else workload.checkpointing,
    )  # fmt: skip
