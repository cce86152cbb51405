"""What ranks exchange against what they share: messages of DDP and FSDP2 by theory, on real gloo ranks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from opanatomy.analysis.checks import check_communication
from opanatomy.capture.distributed.training import bucket_bytes
from opanatomy.pipeline import analyze_trace
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.communication import Communication, ExpectedCommunication
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.workload import PHASE_RANGE
from tests.distributed_runs import SLEEP_SECONDS, Run, Runs

BYTES = "communicated bytes"


def communication(anatomy: Anatomy) -> Communication:
    assert anatomy.communication is not None
    return anatomy.communication


def expected(run: Run) -> tuple[ExpectedCommunication, ...]:
    """What is expected of a step, which the messages of each rank agree with."""
    (check,) = (check for check in run.anatomy.checks if check.quantity == BYTES)
    rows = communication(run.anatomy).expected
    assert (check.compared, check.equal, check.differences) == (len(run.traces) * len(rows),) * 2 + ((),)
    return rows


def gradient_bytes(run: Run) -> int:
    return 4 * (run.anatomy.workload.parameters or 0)


@pytest.mark.parametrize(("name", "ranks"), [("ddp", 2), ("ddp4", 4), ("accumulate", 2)])
def test_ddp_reduces_each_gradient_once(distributed_runs: Runs, name: str, ranks: int) -> None:
    (row,) = expected(distributed_runs[name])
    assert (row.collective, row.module, row.ranks) == ("all_reduce", "", ranks)
    assert row.expected_bytes == row.measured_bytes == gradient_bytes(distributed_runs[name])
    assert row.wire_bytes == 2 * (ranks - 1) * row.expected_bytes // ranks


def test_accumulation_reduces_in_the_last_micro_step_alone(distributed_runs: Runs) -> None:
    run = distributed_runs["accumulate"]
    for rank, trace in enumerate(run.traces):
        last = max(event["ts"] for event in run.events(rank, f"{PHASE_RANGE}{Phase.BACKWARD}"))
        reduced = [event["ts"] for event in run.events(rank, "c10d::allreduce_")]
        assert reduced
        assert min(reduced) > last
        (phase,) = (row for row in communication(analyze_trace(trace)).phases if row.phase is Phase.BACKWARD)
        assert phase.calls == len(reduced)


def test_fsdp2_gathers_and_scatters_each_module(distributed_runs: Runs) -> None:
    rows = expected(distributed_runs["fsdp2"])
    modules = {row.module for row in rows}
    assert {"bert.encoder.layer.0", "bert.encoder.layer.1"} <= modules
    for module in modules:
        gather, scatter = (
            next(row for row in rows if (row.module, row.collective) == (module, name))
            for name in ("all_gather", "reduce_scatter")
        )
        assert gather.expected_bytes == gather.measured_bytes
        assert gather.expected_bytes in (scatter.expected_bytes, 2 * scatter.expected_bytes)
    scattered = sum(row.expected_bytes for row in rows if row.collective == "reduce_scatter")
    assert gradient_bytes(distributed_runs["fsdp2"]) <= scattered <= 1.05 * gradient_bytes(distributed_runs["fsdp2"])


def sizes(run: Run) -> dict[str, tuple[int | None, int | None]]:
    """What each component of the first rank measures, and is by theory."""
    components = analyze_trace(run.traces[0]).memory.components
    return {row.component: (row.measured_bytes, row.theory_bytes) for row in components}


def test_a_rank_keeps_its_part_of_what_fsdp2_shards(distributed_runs: Runs) -> None:
    """Two ranks have half of weights, gradients and state each."""
    of_rank, half = sizes(distributed_runs["fsdp2"]), gradient_bytes(distributed_runs["fsdp2"]) // 2
    assert of_rank["weights"] == of_rank["gradients"] == (half, half)
    assert of_rank["optimizer_state"] == (2 * half, 2 * half)
    assert "ddp_buckets" not in of_rank


@pytest.mark.parametrize(("name", "copies"), [("ddp", 1), ("ddp4", 1), ("views", 0)])
def test_buckets_are_a_copy_of_the_gradients_or_none(distributed_runs: Runs, name: str, copies: int) -> None:
    of_rank, whole = sizes(distributed_runs[name]), gradient_bytes(distributed_runs[name])
    assert of_rank["gradients"] == (whole, whole)
    assert of_rank["ddp_buckets"] == (copies * whole, copies * whole)


def on_its_own(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of these events inside of which no other of them ran on their thread."""
    return [
        event
        for event in events
        if not any(
            other is not event
            and other["tid"] == event["tid"]
            and event["ts"] <= other["ts"]
            and other["ts"] + other["dur"] <= event["ts"] + event["dur"]
            for other in events
        )
    ]


def spans_of(events: list[dict[str, Any]]) -> list[tuple[float, float]]:
    return [(event["ts"], event["ts"] + event["dur"]) for event in events]


def without(spans: list[tuple[float, float]], others: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The parts of these spans that none of the others covers, each moment once."""
    return [
        (begin, end)
        for begin, end in itertools.pairwise(sorted({time for span in (*spans, *others) for time in span}))
        if any(start <= begin and end <= stop for start, stop in spans)
        and not any(start <= begin and end <= stop for start, stop in others)
    ]


def nanoseconds(spans: list[tuple[float, float]]) -> float:
    return sum(1e3 * (end - begin) for begin, end in spans)


@pytest.mark.parametrize("name", ["ddp", "ddp4", "fsdp2"])
def test_exposed_time_is_that_of_the_intervals(distributed_runs: Runs, name: str) -> None:
    """Of gloo's annotations in the step, up to its end, what no operator that computes covers, by the events.

    An operator that left its work to one below it computed in that one alone: on a machine that is busy with something
    else it may lose milliseconds before. The events do not tell which did, so they give a least and a most.
    """
    run = distributed_runs[name]
    for rank, trace in enumerate(run.traces):
        anatomy = analyze_trace(trace)
        names = {row.operator for row in anatomy.operators if row.operator_class is not OperatorClass.COMMUNICATION}
        (step,) = spans_of(run.events(rank, "ProfilerStep#"))
        backend = run.events(rank, "gloo:")
        gloo = [(start, min(end, step[1])) for start, end in spans_of(backend) if step[0] <= start < step[1]]
        threads = {event["tid"] for event in backend}  # what runs there is part of the collective
        computing = [
            event for event in run.events(rank, "") if event.get("name") in names and event["tid"] not in threads
        ]
        asking = spans_of(run.events(rank, "c10d::"))  # by an operator in which the host asks for the next collective
        assert communication(anatomy).running_ns == pytest.approx(nanoseconds(without(gloo, [])), rel=0.01)
        least, most = (
            nanoseconds(without(gloo, without(spans_of(events), asking)))
            for events in (computing, on_its_own(computing))
        )
        assert 0.95 * least - 2e5 <= communication(anatomy).exposed_ns <= 1.05 * most + 2e5


def test_the_slow_rank_is_named_and_the_others_wait_for_it(distributed_runs: Runs) -> None:
    waiting = distributed_runs["slow"].anatomy.waiting
    assert waiting is not None
    assert waiting.straggler is not None
    assert waiting.straggler.rank == 1
    (step,) = waiting.each[0].steps
    assert step.waiting_ns == pytest.approx(1e9 * SLEEP_SECONDS, rel=0.1)
    for rank in waiting.each:
        for step in rank.steps:
            own = step.other_work_ns + step.transfer_ns + step.waiting_ns + step.unmatched_ns
            assert own + step.outside_ns + step.idle_ns == step.wall_ns


@pytest.mark.parametrize(
    ("measured", "micro_batches", "cause"),
    [
        (4_000, 1, None),
        (8_000, 2, "reduced in each of 2 micro-batches: the loop has no no_sync()"),
        (8_000, 1, None),
        (12_000, 2, None),
    ],
)
def test_a_loop_that_reduces_in_each_micro_batch(measured: int, micro_batches: int, cause: str | None) -> None:
    """A message that is as many times as long as there are micro-batches has that for a cause, another one has none."""
    row = ExpectedCommunication(
        module="", collective="all_reduce", ranks=2, expected_bytes=4_000, measured_bytes=measured, wire_bytes=4_000
    )
    told = Communication(running_ns=1, exposed_ns=1, phases=(), modules=(), expected=(row,))
    (check,) = check_communication(told, micro_batches)
    assert check.equal == (measured == 4_000)
    assert [difference.cause for difference in check.differences] == ([] if measured == 4_000 else [cause])


@pytest.mark.parametrize(
    ("account", "size"),
    [
        ({"bucket_sizes": "16, 4", "rebuilt_bucket_sizes": "12,8,2"}, 22),
        ({"bucket_sizes": "16, 4"}, 20),
        ({"bucket_sizes": "16", "gradient_as_bucket_view": 1}, 0),
        ({}, None),
    ],
)
def test_buckets_without_an_account_are_not_none_of_them(account: dict[str, Any], size: int | None) -> None:
    class DistributedDataParallel(torch.nn.Module):
        def _get_ddp_logging_data(self) -> dict[str, Any]:
            return account

    assert bucket_bytes(DistributedDataParallel()) == size
    assert bucket_bytes(torch.nn.Linear(1, 1)) is None
