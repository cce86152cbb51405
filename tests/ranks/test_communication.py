"""What ranks exchange against what they share: messages of DDP and FSDP2 by theory, on real gloo ranks."""

from __future__ import annotations

import pytest

import opanatomy
from opanatomy.checks.counts import check_communication
from opanatomy.records.communication import Communication, ExpectedCommunication
from tests.support.distributed_runs import SLEEP_SECONDS, Run, Runs


def expected(run: Run) -> tuple[ExpectedCommunication, ...]:
    """What is expected of a step, which the messages of each rank agree with."""
    (check,) = (check for check in run.anatomy.checks if check.quantity == "communicated bytes")
    assert run.anatomy.communication is not None
    rows = run.anatomy.communication.expected
    assert (check.compared, check.equal, check.differences) == (len(run.traces) * len(rows),) * 2 + ((),)
    return rows


def gradient_bytes(run: Run) -> int:
    return 4 * (run.anatomy.workload.parameters or 0)


@pytest.mark.parametrize(("name", "ranks"), [("ddp", 2), ("ddp4", 4), ("accumulate", 2)])
def test_ddp_reduces_each_gradient_once(distributed_runs: Runs, name: str, ranks: int) -> None:
    run = distributed_runs[name]
    (row,) = expected(run)
    assert (row.collective, row.module, row.ranks) == ("all_reduce", "", ranks)
    assert row.expected_bytes == row.measured_bytes == gradient_bytes(run)
    assert row.wire_bytes == 2 * (ranks - 1) * row.expected_bytes // ranks
    if name == "accumulate":  # in the last micro-step alone
        last = max(event["ts"] for event in run.events(0, "opanatomy.phase/backward"))
        assert min(event["ts"] for event in run.events(0, "c10d::allreduce_")) > last


def test_fsdp2_gathers_and_scatters_each_module(distributed_runs: Runs) -> None:
    rows = {(row.module, row.collective): row for row in expected(distributed_runs["fsdp2"])}
    modules = {module for module, _ in rows}
    assert {"bert.encoder.layer.0", "bert.encoder.layer.1"} <= modules
    for module in modules:
        gather, scatter = rows[module, "all_gather"], rows[module, "reduce_scatter"]
        assert gather.expected_bytes == gather.measured_bytes
        assert gather.expected_bytes in (scatter.expected_bytes, 2 * scatter.expected_bytes)
    scattered = sum(row.expected_bytes for row in rows.values() if row.collective == "reduce_scatter")
    assert gradient_bytes(distributed_runs["fsdp2"]) <= scattered <= 1.05 * gradient_bytes(distributed_runs["fsdp2"])


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("fsdp2", {"weights": 0.5, "gradients": 0.5, "optimizer_state": 1}),  # of two ranks half each
        ("ddp", {"gradients": 1, "ddp_buckets": 1}),
        ("ddp4", {"gradients": 1, "ddp_buckets": 1}),
        ("views", {"gradients": 1, "ddp_buckets": 0}),  # gradients are views of the buckets
    ],
)
def test_what_a_rank_keeps(distributed_runs: Runs, name: str, parts: dict[str, float]) -> None:
    run = distributed_runs[name]
    sizes = {row.component: row for row in opanatomy.analyze(run.traces[0]).memory.components}
    assert ("ddp_buckets" in sizes) is ("ddp_buckets" in parts)
    for component, share in parts.items():
        row = sizes[component]
        assert row.measured_bytes == row.theory_bytes == share * gradient_bytes(run)


def test_the_slow_rank_is_named_and_the_others_wait_for_it(distributed_runs: Runs) -> None:
    waiting = distributed_runs["slow"].anatomy.waiting
    assert waiting is not None
    assert waiting.straggler is not None
    assert waiting.straggler.rank == 1
    (step,) = waiting.each[0].steps
    assert step.waiting_ns == pytest.approx(1e9 * SLEEP_SECONDS, rel=0.1)


@pytest.mark.parametrize(
    ("measured", "micro_batches", "causes"),
    [
        (4_000, 1, []),
        (8_000, 1, [None]),
        (12_000, 2, [None]),
        (8_000, 2, ["reduced in each of 2 micro-batches: the loop does not use no_sync()"]),
    ],
)
def test_a_loop_that_reduces_in_each_micro_batch(measured: int, micro_batches: int, causes: list[str | None]) -> None:
    """A message that is as many times as long as there are micro-batches has that for a cause, another one has none."""
    row = ExpectedCommunication(
        module="", collective="all_reduce", ranks=2, expected_bytes=4_000, measured_bytes=measured, wire_bytes=4_000
    )
    told = Communication(running_ns=1, exposed_ns=1, phases=(), modules=(), expected=(row,))
    (check,) = check_communication(told, micro_batches)
    assert [difference.cause for difference in check.differences] == causes
