"""Memory snapshots: real ones beside torch's own figures, hand-made ones to the byte, damaged and hostile ones."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import opanatomy
from opanatomy.__main__ import main
from opanatomy.capture.memory import history
from opanatomy.errors import UsageError
from opanatomy.memory.snapshots import memory_of_snapshot
from opanatomy.records.memory import Memory
from opanatomy.report import terminal_report
from opanatomy.trace.snapshot import is_pickle, read_snapshot
from tests.snapshots.decoder import SMALL, decoder
from tests.support.made_snapshot import (
    BACKWARD,
    BESIDE,
    CURRENT,
    LIBRARY,
    MIB,
    MODEL,
    WITH_SHARED,
    SnapshotBuilder,
    StandIn,
    a_step,
    forward_stack,
    frame,
)
from tests.support.paths import ROOT, SNAPSHOTS, TRACES
from tests.support.trainings import trainer

NO_HISTORY = "no_history"
NAMES = sorted({path.name.removesuffix(".pickle.gz") for path in SNAPSHOTS.glob("*.pickle.gz")} - {NO_HISTORY})
ACTIVATIONS, WEIGHTS, STATE, GRADIENTS = "forward_activations", "weights", "optimizer_state", "gradients"
CASTS, ROUNDING, PENDING = "autocast_weight_casts", "allocator_rounding", "pending_free"


@cache
def facts(name: str) -> dict[str, Any]:
    """What torch said of the run of a kept snapshot."""
    read: dict[str, Any] = json.loads((SNAPSHOTS / f"{name}.json").read_text())
    return read


@cache
def analyzed(path: Path, at: str | None = None) -> Memory:
    return opanatomy.analyze(path, at=at).memory


def kept(name: str, at: str | None = None) -> Memory:
    return analyzed(SNAPSHOTS / f"{name}.pickle.gz", at)


def by_component(memory: Memory) -> dict[str, int]:
    """What the moment shown is made of: blocks that are freed and wait are not allocated."""
    return {part.component: part.shown_bytes or 0 for part in memory.components if part.component != PENDING}


# ------------------------------------------------------------------------------------------ beside torch's own figures


@pytest.mark.parametrize("name", NAMES)
def test_the_peak_is_torchs_and_every_sum_is_that_of_the_segments(name: str) -> None:
    """The peak is `max_memory_allocated` to the byte, and what was asked for the allocator's own figure too."""
    memory, stats = kept(name), facts(name)["stats"]
    end = kept(name, "end")
    assert memory.peak_bytes == stats["allocated_bytes.all.peak"]
    assert memory.requested_peak_bytes == stats["requested_bytes.all.peak"]
    assert [device.peak_open_bytes for device in memory.devices] == [0]
    pools = memory.pools
    assert end.shown_bytes == sum(pool.requested_bytes + pool.rounding_bytes for pool in pools)
    assert by_component(end)[ROUNDING] == sum(pool.rounding_bytes for pool in pools)
    assert sum(pool.reserved_bytes for pool in pools) == sum(span.bytes for span in end.spans) == end.held_bytes
    assert sum(span.bytes for span in memory.spans) == memory.held_bytes == memory.devices[0].reserved_at_peak_bytes
    for shown in (memory, end):
        used = sum(span.bytes for span in shown.spans if span.component not in ("free", PENDING))
        assert used == shown.shown_bytes
        for one, other in pairwise(shown.spans):
            assert one.segment != other.segment or one.offset_bytes + one.bytes == other.offset_bytes
    for pool in pools:
        used = pool.requested_bytes + pool.rounding_bytes + pool.pending_bytes
        assert used + pool.free_bytes == pool.reserved_bytes
    if "error" not in facts(name):
        assert sum(pool.reserved_bytes for pool in pools) == stats["reserved_bytes.all.current"]
        active = sum(pool.requested_bytes + pool.rounding_bytes + pool.pending_bytes for pool in pools)
        assert active == stats["active_bytes.all.current"]
    assert not any("gap" in note for note in memory.notes)


def the_moment_shown_is_never_called_the_peak(path: Path) -> None:
    """Whatever the moment: one peak, sums to the byte of both, and a name for the moment in the headline."""
    read = [("s", read_snapshot(path))]
    peak = memory_of_snapshot(read, str, str, "peak")
    length = peak.timeline[-1].time_ns
    for at in (None, "peak", "end", f"{length // 4 / 1e3}us", f"{length // 2 / 1e3}us"):
        memory = memory_of_snapshot(read, str, str, at)
        assert (memory.peak_bytes, memory.peak_at) == (peak.shown_bytes, peak.shown_at)
        assert memory.peak_bytes == max(point.allocated_bytes for point in memory.timeline)
        assert (memory.moment == "peak") == memory.is_at_peak
        assert sum(by_component(memory).values()) == memory.shown_bytes <= memory.peak_bytes
        assert sum(part.at_peak_bytes or 0 for part in memory.components) == memory.peak_bytes
        for of in ("line", "module", "operator_class", "phase", "stream"):
            assert sum(part.bytes for part in memory.parts if part.of == of) == memory.shown_bytes
        in_attention = [part.bytes for part in memory.parts if part.of == "attention"]
        assert not in_attention or sum(in_attention) == memory.shown_bytes
        assert sum(item.bytes for item in memory.inferences) == memory.shown_bytes
        assert sum(part.bytes for part in memory.blocks) + memory.unlisted_bytes == memory.shown_bytes


def test_a_snapshot_of_a_device_without_a_history_has_no_peak() -> None:
    """Torch's own peak of the run was higher than what lives at the end, which is all that the snapshot knows."""
    memory, stats = kept(NO_HISTORY), facts(NO_HISTORY)["stats"]
    assert (memory.peak_bytes, memory.requested_peak_bytes) == (None, None)
    assert memory.shown_bytes == stats["allocated_bytes.all.current"] < stats["allocated_bytes.all.peak"]
    assert sum(by_component(memory).values()) == memory.shown_bytes


@pytest.mark.parametrize("name", NAMES)
def test_the_moment_shown_is_never_called_the_peak(name: str) -> None:
    the_moment_shown_is_never_called_the_peak(SNAPSHOTS / f"{name}.pickle.gz")


@WITH_SHARED
@pytest.mark.parametrize("name", ["medium_128_training", "medium_512_inference", "medium_512_training"])
def test_nor_in_a_strangers_snapshot(name: str) -> None:
    the_moment_shown_is_never_called_the_peak(BESIDE / f"{name}.pickle.gz")


@pytest.mark.parametrize(
    "name",
    ["training_amp", "training_warm", "training_accumulating", "python_stacks", "expandable", "cut_off", "streams"],
)
def test_components_are_those_that_torch_knows(name: str) -> None:
    """At the end weights, moments and gradients; where forward ended what autograd's hooks saw it keep."""
    known = facts(name)
    end = by_component(kept(name, "end"))
    for component in ("weights", "optimizer", "gradients"):
        if component not in known:
            continue
        found = end.get({"optimizer": STATE}.get(component, component), 0)
        # A module's buffers are moved with it, and tell themselves apart by nothing; so may two batches of tokens.
        assert 0 <= found - known[component] <= known["buffers"] + 4_096, component
    if "forward_ended" not in known:
        return
    snapshot = read_snapshot(SNAPSHOTS / f"{name}.pickle.gz")
    (device,) = snapshot.histories
    begin = int(device.time_us[device.action == 0][0])
    first = min(begin, int(device.time_us[device.action == 2][0]))
    forward = by_component(kept(name, f"{known['forward_ended'] - first}us"))
    casts = forward.get(CASTS, 0)  # autograd keeps those too
    assert (casts > 0) == (name == "training_amp")
    assert forward[ACTIVATIONS] + casts == pytest.approx(known["saved"], abs=8_192)  # less the tokens, which are inputs


def test_what_memory_ran_out_on_is_told() -> None:
    """The request, by which line, what was held, and that it would have had room: torch's own words are the second."""
    memory, known = kept("out_of_memory"), facts("out_of_memory")
    failure = memory.failure
    assert failure is not None
    assert failure.line == "decoder.py:76 cross_entropy"
    assert failure.phase == "forward"
    assert failure.requested_bytes == 30_720_000
    _, requested, _, free = known["observed"]
    assert 0 <= requested - 30_720_000 < 2 << 20  # the allocator rounds it to 2 MiB
    assert failure.device_free_bytes == free
    assert f"{(failure.reserved_bytes - failure.unused_bytes) / (1 << 20):.2f} MiB is allocated" in known["error"]
    assert f"{failure.unused_bytes / (1 << 20):.2f} MiB is reserved by PyTorch but unallocated" in known["error"]
    assert (memory.shown_bytes, memory.moment) == (failure.allocated_bytes, "oom")
    said = " ".join(
        terminal_report(opanatomy.analyze(SNAPSHOTS / "out_of_memory.pickle.gz", at="peak"), brief=True).split()
    )
    assert "At the peak, 307 MB is allocated. Forward activations take 31.3 % of it" in said
    found = by_component(memory)
    assert found[STATE] == known["optimizer"]
    assert found[ACTIVATIONS] > 80_000_000
    advice = {one.id: one for one in opanatomy.analyze(SNAPSHOTS / "out_of_memory.pickle.gz").advice}
    assert advice["fragmentation"].gain_bytes == failure.unused_bytes
    assert "expandable_segments:True" in " ".join(advice["fragmentation"].tries)


def test_a_graph_has_memory_of_its_own_and_segments_that_expand_are_named() -> None:
    pools = {pool.pool for pool in kept("graphed").pools}
    assert {"large", "small", "private 1:0 large"} <= pools
    assert {pool.expandable for pool in kept("expandable").pools} == {True}
    assert {pool.expandable for pool in kept("graphed").pools} == {False}


def test_recomputation_is_told_from_backward() -> None:
    """Checkpointed layers run again in autograd's thread, with modules in their stacks."""
    memory = kept("llama_checkpointing", "peak")
    assert {point.phase for point in memory.timeline} >= {"forward", "backward", "recompute", "optimizer"}


@WITH_SHARED
def test_a_strangers_step_is_taken_apart() -> None:
    """The figures that a prototype found, which counted requests and the rounding of what lives at the end."""
    memory = analyzed(BESIDE / "medium_512_training.pickle.gz")
    (device,) = memory.devices
    at_end = sum(pool.rounding_bytes for pool in memory.pools)
    assert round((memory.requested_peak_bytes + at_end) / 1e9, 3) == 12.435
    assert memory.peak_bytes == memory.requested_peak_bytes + by_component(memory)[ROUNDING]
    assert abs(memory.peak_bytes - device.before_window_bytes - 7.331e9) < at_end
    found = by_component(memory)
    assert found[WEIGHTS] == 423_183_360 * 4  # float32
    assert found[STATE] == 2 * found[WEIGHTS]
    # Autocast's copies, in 16 bits: four matrices of attention and three of the feed-forward a layer, and the head.
    assert found[CASTS] == 2 * (24 * (4 * 1024**2 + 3 * 1024 * 4096) + 10_000 * 1024)
    lines: dict[str, int] = {}
    for part in memory.parts:
        if part.of == "line" and part.name:
            lines[part.name] = lines.get(part.name, 0) + part.bytes
    assert round(lines["nn_utils.py:6 softmax"] / 1e9, 3) == 1.611
    assert round(lines["model.py:532 silu"] / 1e9, 3) == 0.805
    in_order = [round(size / 1e9, 3) for size in sorted(lines.values(), reverse=True)]
    assert {0.411, 0.403, 0.201} <= set(in_order)


@pytest.mark.parametrize("name", ["expandable", "graphed", "streams"])
def test_what_is_held_is_what_torchs_own_viewer_prints(name: str) -> None:
    """`segsum` names sizes in MiB with a digit behind the point, and counts the rounding of a block as free."""
    import torch.cuda._memory_viz

    path = SNAPSHOTS / f"{name}.pickle.gz"
    printed = torch.cuda._memory_viz.segsum(pickle.loads(gzip.decompress(path.read_bytes())))
    totals = dict(line.split(": ") for line in printed.splitlines() if line.startswith(("total_", "segments:")))
    pools = kept(name).pools

    def mebibytes(size: int) -> str:
        return f"{size / (1 << 20):.1f}MiB"

    assert totals["total_reserved"] == mebibytes(sum(pool.reserved_bytes for pool in pools))
    assert totals["total_allocated"] == mebibytes(sum(pool.requested_bytes for pool in pools))
    assert totals["total_free"].startswith(mebibytes(sum(pool.free_bytes + pool.rounding_bytes for pool in pools)))
    assert int(totals["segments"]) == sum(pool.segments for pool in pools)


@WITH_SHARED
def test_two_lengths_are_compared_in_parts_that_sum_to_the_difference() -> None:
    sides = [BESIDE / f"medium_{length}_training.pickle.gz" for length in (128, 512)]
    comparison = opanatomy.compare(*map(str, sides))
    peaks = [analyzed(side).peak_bytes or 0 for side in sides]
    assert sum(change.change_bytes for change in comparison.peak_parts) == peaks[1] - peaks[0]
    assert comparison.not_comparable == ()
    assert "older opanatomy" not in " ".join(comparison.warnings)


# ------------------------------------------------------------------------------------- hand-made, in torch's own format


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("packed", [False, True])
def test_a_step_by_hand(protocol: int, packed: bool, tmp_path: Path) -> None:
    path = a_step().written(tmp_path / "snapshot.pickle", protocol)
    if packed:
        path = tmp_path / "snapshot.pickle.gz"
        path.write_bytes(gzip.compress((tmp_path / "snapshot.pickle").read_bytes()))
    assert is_pickle(path)
    memory = opanatomy.analyze(path).memory
    assert memory.peak_bytes == 300 + 40 + 20 + 100
    assert by_component(memory) == {WEIGHTS: 100, STATE: 200, GRADIENTS: 100, ACTIVATIONS: 60}
    lines = {part.name: (part.component, part.bytes) for part in memory.parts if part.of == "line" and part.name}
    assert lines == {"model.py:5 forward": (ACTIVATIONS, 40), "model.py:7 forward": (ACTIVATIONS, 20)}
    assert [point.phase for point in memory.timeline][-1] == "optimizer"
    operators = {(part.operator, part.bytes) for part in memory.blocks if part.component == ACTIVATIONS}
    assert operators == {("aten::mm", 40), ("aten::index", 20)}
    assert (memory.devices[0].before_window_bytes, memory.devices[0].reserved_at_peak_bytes) == (300, 9_216)


def test_moments_of_a_snapshot(tmp_path: Path) -> None:
    """Times are of the recording: the first allocation is at its beginning, the second 10 us later."""
    path = a_step().written(tmp_path / "s.pickle")
    for at, bytes_ in (("0us", 340), ("10us", 350), ("end", 400), ("PEAK", 460), ("0.02ms", 370)):
        memory = opanatomy.analyze(path, at=at).memory
        assert (memory.peak_bytes, memory.shown_bytes) == (460, bytes_), at
    for wrong in ("later", "1s", "oom"):
        with pytest.raises(opanatomy.UsageError, match="--at"):
            opanatomy.analyze(path, at=wrong)


def test_several_devices_and_ranks_together(tmp_path: Path) -> None:
    """The fullest is shown in detail, each has a row; of ranks by the names of their files."""
    made = a_step().alloc(9_000, 5_000, forward_stack(5), device=1)
    made.segment(8_192, 8_192, (9_000, 5_000, "active_allocated"), device=1)
    memory = opanatomy.analyze(made.written(tmp_path / "rank1.pickle")).memory
    assert [(row.device, row.peak_bytes) for row in memory.devices] == [("cuda:1", 5_000), ("cuda:0", 460)]
    a_step().written(tmp_path / "rank0.pickle")
    memory = opanatomy.analyze(tmp_path).memory
    names = [row.device for row in memory.devices]
    assert names == ["rank1.pickle cuda:1", "rank0.pickle cuda:0", "rank1.pickle cuda:0"]


def test_a_device_whose_peak_is_not_known_leaves_that_of_all_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gate on it is not met; the figures shown are those of the device with a history."""
    made = a_step()
    made.segment(8_192, 8_192, (9_000, 300, "active_allocated"), device=1)
    path = made.written(tmp_path / "s.pickle")
    memory = opanatomy.analyze(path).memory
    assert [(row.device, row.peak_bytes) for row in memory.devices] == [("cuda:0", 460), ("cuda:1", None)]
    assert (memory.peak_bytes, memory.shown_bytes) == (None, 460)
    assert main(["analyze", str(path), "--fail-if", "memory > 1GB"]) == 3
    out, err = capsys.readouterr()
    assert "peak_memory_bytes is unknown" in err
    assert "Peak memory is 460 B, in backward." in out
    assert re.search(r"peak of cuda:0 +460 B\n *peak of cuda:1 +unknown\n", out)
    assert "cuda:1: no history was recorded, so its peak is unknown" in " ".join(out.split())


def test_unlike_moments_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = SnapshotBuilder()
    made.segments = [held((0, 8 * MIB, 8 * MIB, "active_allocated"))]
    sides = [made.written(tmp_path / "a.pickle"), a_step().written(tmp_path / "b.pickle")]
    assert main(["compare", *map(str, sides)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "8.39 MB is allocated before (at the end) and 460 B after (at the peak): these are two different kinds of"
        " moments" in text
    )
    assert "changed at the peak" not in text
    assert "%" not in text


def test_private_pools_expandable_segments_and_pending_blocks_by_hand(tmp_path: Path) -> None:
    made = SnapshotBuilder().alloc(9, 8).free(9, 8).event("segment_map", 0, 64)
    made.alloc(0, 30, forward_stack(1)).event("free_requested", 0, 30)
    made.event("segment_alloc", 1_000, 100).event("segment_free", 2_000, 50)
    made.segment(0, 64, (0, 30, "active_pending_free"), (30, 34, "inactive"), is_expandable=True, stream=7)
    made.segment(1_000, 100, (1_000, 100, "inactive"), segment_pool_id=(3, 0), segment_type="small")
    memory = opanatomy.analyze(made.written(tmp_path / "s.pickle")).memory
    rows = {pool.pool: (pool.reserved_bytes, pool.pending_bytes, pool.free_bytes, pool.stream) for pool in memory.pools}
    assert rows == {"large": (64, 30, 34, 7), "private 3:0 small": (100, 0, 100, 0)}
    assert memory.devices[0].reserved_peak_bytes == 214  # 50 are given back last
    assert (memory.peak_bytes, memory.timeline[-1].allocated_bytes) == (30, 0)
    at_end = opanatomy.analyze(tmp_path / "s.pickle", at="end").memory
    pending = {part.component: part.shown_bytes for part in at_end.components}
    assert (at_end.shown_bytes, pending[PENDING]) == (0, 30)


def test_a_failure_by_hand_says_whether_the_rest_would_have_been_enough(tmp_path: Path) -> None:
    made = a_step().event("oom", 0, 500, device_free=123, frames=forward_stack(77))
    del made.events[0][-1]["addr"]
    anatomy = opanatomy.analyze(made.written(tmp_path / "s.pickle"))
    failure = anatomy.memory.failure
    assert failure is not None
    assert (failure.requested_bytes, failure.device_free_bytes, failure.line) == (500, 123, "model.py:77 forward")
    assert (failure.allocated_bytes, failure.reserved_bytes, failure.unused_bytes) == (400, 9_216, 8_816)
    assert (anatomy.memory.peak_bytes, anatomy.memory.shown_bytes) == (460, 400)
    assert "fragmentation" in {advice.id for advice in anatomy.advice}
    assert opanatomy.analyze(tmp_path / "s.pickle", at="peak").memory.shown_bytes == 460


def test_a_history_that_was_cut_off_and_one_without_stacks(tmp_path: Path) -> None:
    """What is freed without an allocation was there before; without stacks nothing is said of phases."""
    made = SnapshotBuilder().free(1_000, 40).alloc(2_000, 10).segment(0, 4_096, (2_000, 10, "active_allocated"))
    memory = opanatomy.analyze(made.written(tmp_path / "s.pickle")).memory
    assert (memory.peak_bytes, by_component(memory)) == (40, {"before_window": 40})
    assert any("no stacks" in note for note in memory.notes)


def test_a_history_without_requests_to_free_has_nothing_that_waits(tmp_path: Path) -> None:
    """Each block is free when that is written: one from before too."""
    made = SnapshotBuilder().alloc(2_000, 10).event("free_completed", 1_000, 40).alloc(3_000, 20)
    made.segment(0, 4_096, (2_000, 10, "active_allocated"), (3_000, 20, "active_allocated"))
    memory = opanatomy.analyze(made.written(tmp_path / "s.pickle"), at="0us").memory
    assert {part.component: part.shown_bytes for part in memory.components if part.shown_bytes} == {
        "before_window": 40,
        "other": 10,
    }


def held(*blocks: tuple[int, int, int, str], device: int = 0, total: int = 20 * MIB) -> dict[str, Any]:
    """A large segment at 0 of 20 MiB: address, size, request and state of its blocks, and what is free behind them."""
    rows = [{"address": at, "size": size, "requested_size": asked, "state": state} for at, size, asked, state in blocks]
    end = rows[-1]["address"] + rows[-1]["size"] if rows else 0
    rows.append({"address": end, "size": total - end, "requested_size": 0, "state": "inactive"})
    return {"device": device, "address": 0, "total_size": total, "stream": 0, "segment_type": "large", "blocks": rows}


def alloc(size: int, frames: Any = ()) -> dict[str, Any]:
    return SnapshotBuilder().alloc(0, size, frames).events[0][0]


def test_a_history_with_a_gap_gives_no_block_less_than_was_asked_for(tmp_path: Path) -> None:
    """At the end another block is there, whose allocation is not recorded."""
    made = SnapshotBuilder().alloc(0, 1_024).segment(0, 4_096, (0, 512, "active_allocated"))
    memory = opanatomy.analyze(made.written(tmp_path / "s.pickle")).memory
    assert (memory.peak_bytes, by_component(memory)) == (1_024, {"other": 1_024})


def test_a_file_whose_name_is_no_text(tmp_path: Path) -> None:
    made = SnapshotBuilder().alloc(0, 512, [frame("forward", os.fsdecode(b"/home/me/b\xff.py"), 5)])
    made.segment(0, 4_096, (0, 512, "active_allocated"))
    memory = opanatomy.analyze(made.written(tmp_path / "s.pickle")).memory
    assert [part.name for part in memory.parts if part.of == "line"] == ["b?.py:5 forward"]


def test_whole_blocks_by_the_allocators_rules(tmp_path: Path) -> None:
    """A request is rounded up; a rest of at most 1 MiB goes with it; what was there before is known by neighbors."""

    def peak_of(made: SnapshotBuilder, *blocks: tuple[int, int, int, str], **settings: Any) -> Memory:
        made.segments = [held(*blocks)]
        return opanatomy.analyze(made.written(tmp_path / "s.pickle", allocator_settings=settings)).memory

    asked = 19 * MIB + 1
    unsplit = peak_of(SnapshotBuilder().event("segment_alloc", 0, 20 * MIB).alloc(0, asked).free(0, asked))
    assert (unsplit.peak_bytes, unsplit.requested_peak_bytes) == (20 * MIB, asked)
    two = SnapshotBuilder().event("segment_alloc", 0, 20 * MIB).alloc(0, 2 * MIB + 1).alloc(2 * MIB + 512, MIB + 1)
    two.free(0, 2 * MIB + 1)
    live = (2 * MIB + 512, MIB + 512, MIB + 1, "active_allocated")
    rest = (0, 2 * MIB + 512, 0, "inactive")
    assert peak_of(two, rest, live).peak_bytes == 3 * MIB + 1_024
    # Between 2 and 4 MiB in four divisions: 2 MiB and a byte are 2.5 MiB, and 1 MiB and a byte 1.25 MiB.
    powers = {str(1 << power): 4 if power == 1 else 0 for power in range(16)}
    rounded = SnapshotBuilder().event("segment_alloc", 0, 20 * MIB).alloc(0, 2 * MIB + 1).free(0, 2 * MIB + 1)
    assert peak_of(rounded, roundup_power2_divisions=powers).peak_bytes == 2 * MIB + MIB // 2
    whole = SnapshotBuilder().event("segment_alloc", 0, 20 * MIB).alloc(0, 5 * MIB).free(0, 5 * MIB)
    assert peak_of(whole, max_split_size=4 * MIB).peak_bytes == 20 * MIB
    # From before the recording: half a MiB behind it can be no free block, more can.
    live = (3 * MIB, 17 * MIB, 17 * MIB, "active_allocated")
    assert (
        peak_of(
            SnapshotBuilder().free(0, 2 * MIB + MIB // 2).alloc(0, 512),
            (0, 512, 512, "active_allocated"),
            (512, 3 * MIB - 512, 0, "inactive"),
            live,
        ).peak_bytes
        == 20 * MIB
    )
    unknown = peak_of(
        SnapshotBuilder().free(0, MIB + 512).alloc(0, 512),
        (0, 512, 512, "active_allocated"),
        (512, 3 * MIB - 512, 0, "inactive"),
        live,
    )
    assert (unknown.peak_bytes, unknown.devices[0].peak_open_bytes) == (18 * MIB + 512, MIB - 512)
    assert any("at least" in note for note in unknown.notes)


def test_without_a_history_the_peak_is_not_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What lives at the end has no peak, no component by its size alone, and a gate on it is not met."""
    path = tmp_path / "s.pickle"
    made = SnapshotBuilder()
    made.segments = [
        held((0, 8 * MIB + 512, 8 * MIB + 1, "active_allocated"), (9 * MIB, 4 * MIB, 4 * MIB, "active_pending_free"))
    ]
    made.segments[0]["blocks"][0]["size"] = 9 * MIB
    memory = opanatomy.analyze(made.written(path)).memory
    assert (memory.peak_bytes, memory.peak_at, memory.moment, memory.shown_bytes) == (None, None, "end", 9 * MIB)
    assert {part.component: part.shown_bytes for part in memory.components} == {
        "other": 8 * MIB + 1,
        ROUNDING: MIB - 1,
        PENDING: 4 * MIB,
    }
    assert main(["analyze", str(path), "--fail-if", "memory > 1GB"]) == 3
    said = capsys.readouterr()
    assert "No history was recorded, so the peak is unknown; at the end, 9.44 MB is live" in " ".join(said.out.split())
    assert "at most" not in said.out
    assert "peak_memory_bytes is unknown" in said.err
    with pytest.raises(opanatomy.UsageError, match="no history was recorded"):
        opanatomy.analyze(path, at="1us")


def test_a_gate_is_on_the_peak_whatever_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(a_step().written(tmp_path / "s.pickle"))
    assert main(["analyze", path, "--at", "end", "--fail-if", "memory > 450 B"]) == 3
    said = " ".join(capsys.readouterr().out.split())
    assert "Peak memory is 460 B, in backward. At the end, 400 B is allocated." in said
    assert main(["analyze", path, "--at", "end", "--fail-if", "memory > 470 B"]) == 0


def test_allocations_of_two_scripts_are_the_same_by_function_and_size(tmp_path: Path) -> None:
    """Another file name, and lines that moved, change nothing; what grew in a function stands beside itself."""
    sides = [a_step().written(tmp_path / "a.pickle"), tmp_path / "b.pickle"]
    other = a_step()
    for event in other.events[0]:
        event["frames"] = [
            {**one, "filename": one["filename"].replace("model.py", "net.py"), "line": one["line"] and one["line"] + 9}
            for one in event.get("frames", [])
        ]
    other.written(sides[1])
    same = opanatomy.compare(*map(str, sides))
    assert [change for change in same.peak_parts if change.change_bytes] == []
    assert {(change.line, change.line_after) for change in same.peak_parts if change.line} == {
        ("model.py:5 forward", "net.py:14 forward"),
        ("model.py:7 forward", "net.py:16 forward"),
    }


def test_snapshots_are_compared_by_their_peaks(tmp_path: Path) -> None:
    """Of one in which memory ran out too, whose own moment is another."""
    failed = a_step().event("oom", 0, 500, device_free=123, frames=forward_stack(77)).written(tmp_path / "a.pickle")
    comparison = opanatomy.compare(str(failed), str(a_step().written(tmp_path / "b.pickle")))
    assert {figure.name: figure.values for figure in comparison.figures}["peak_memory_bytes"] == (460, 460)
    assert (sum(change.before_bytes for change in comparison.peak_parts), comparison.peak_moments) == (460, ())


def test_a_module_that_was_noted_beside_an_allocation_is_its_module(tmp_path: Path) -> None:
    made = SnapshotBuilder().alloc(1_000, 40, forward_stack(5), user_metadata="opanatomy.module/layers.3.attn")
    made.alloc(2_000, 20, forward_stack(6), user_metadata="someone else's")
    # Of one without a note the stack says which line calls its module.
    made.alloc(3_000, 10, forward_stack(5)[:-1] + forward_stack(7)[2:]).segment(0, 4_096)
    memory = opanatomy.analyze(made.written(tmp_path / "s.pickle")).memory
    modules = {part.name: part.bytes for part in memory.parts if part.of == "module"}
    assert modules == {"layers.*.attn": 40, None: 20, "model.py:7": 10}


# ------------------------------------------------------------------------------------------------ damaged and hostile


class Calls:
    """Would leave a file if it were called."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("option", [["--what-if", "host 0"], ["--phase", "forward=x"], ["--timeline", "full"]])
def test_options_of_traces_are_refused(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(SNAPSHOTS / "out_of_memory.pickle.gz"), *option]) == 2
    assert f"{option[0]} applies only to traces, and this is a memory snapshot" in capsys.readouterr().err


def refused(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a file is refused with."""
    assert main(["analyze", str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert str(path) in line
    return line


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_that_would_call_something_calls_nothing(
    protocol: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    witness = tmp_path / "called"
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [Calls(witness)]}, protocol))
    assert "refers to posix.system" in refused(path, capsys)
    assert not witness.exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (pickle.dumps({"a": 1}), "not a memory snapshot"),
        (pickle.dumps([1, 2]), "damaged"),
        (pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc"}]]}), "damaged"),
        (pickle.dumps({"segments": [{"address": 1 << 80}]}), "damaged"),
        (pickle.dumps({"segments": [held((0, -512, 0, "inactive"))]}), "0 bytes were requested from a block of -512"),
        (
            pickle.dumps({"segments": [held((0, 512, 513, "active_allocated"))]}),
            "513 bytes were requested from a block of 512",
        ),
        (pickle.dumps({"segments": [held()], "device_traces": [[alloc(-512)]]}), "in it is impossible"),
        (pickle.dumps({"segments": [], "device_traces": [[alloc(1, [frame("f", line=1 << 80)])]]}), "damaged"),
        (b"\x80\x04r\xff\xff\xff\x0f", "damaged or truncated"),  # eight bytes that ask for a memo of 2 GB
        (b"\x80\x04" + b"]q\x00." * 3, "neither segments nor a device history"),
        (gzip.compress(pickle.dumps({"segments": []}))[:-9], "truncated or damaged"),
        (gzip.compress(pickle.dumps({"segments": []}) + b"\0" * (40 << 20)), "gzip bomb"),
        (pickle.dumps(torch.ones(2)), "refers to torch"),
    ],
    ids=map(str, range(13)),
)
def test_what_is_no_snapshot_is_refused_in_a_line(
    content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.pickle"
    path.write_bytes(content)
    assert said in refused(path, capsys)


def test_of_500_damaged_ones_each_is_read_or_refused() -> None:
    """In one process of its own, under a limit of memory; half have other bytes, half other values."""
    command = [sys.executable, "-m", "tests.snapshots.damaged", "7", "500"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=250)
    outcomes = done.stdout.splitlines()
    assert (done.returncode, len(outcomes)) == (0, 500), done.stderr[-500:]
    assert [line for line in outcomes if not line.startswith(("refused: ", "read"))] == []
    assert outcomes.count("read") > 50


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("t.pftrace", b"\x0a\x05abc", "Perfetto"),
        ("t.nsys-rep", b"xx", "Nsight Systems"),
        ("t.ncu-rep", b"xx", "Nsight Compute"),
        ("t.sqlite", b"SQLite format 3\0", "SQLite"),
        ("t.xplane.pb", b"\x0a", "JAX or TensorFlow"),
    ],
)
def test_files_of_other_tools_are_named(
    name: str, content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert said in refused(path, capsys)
    assert main(["analyze", str(tmp_path)]) == 1
    assert said in capsys.readouterr().err


def test_weights_are_named_and_a_trace_beside_a_snapshot_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "m.pt")
    assert "torch.save" in refused(tmp_path / "m.pt", capsys)
    a_step().written(tmp_path / "s.pickle")
    trace = TRACES / "gpu_a100_alexnet.json.gz"
    assert main(["analyze", str(tmp_path / "s.pickle"), str(trace)]) == 2
    assert "analyze them separately" in capsys.readouterr().err
    assert main(["analyze", str(trace), "--at", "peak"]) == 2
    assert "and this is a trace" in capsys.readouterr().err
    assert main(["analyze", str(tmp_path / "s.pickle"), "--trace", str(tmp_path / "t.json")]) == 2


# ----------------------------------------------------------------------------------------- where a device runs out


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """torch's history of allocations by a stand-in, in a process that has not been observed: there is no GPU."""
    stand_in = StandIn()
    monkeypatch.setattr(history, "is_recordable", lambda: True)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", stand_in.record)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", stand_in.snapshot)
    monkeypatch.setattr(torch.cuda.memory, "_set_memory_metadata", stand_in.metadata.append, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", stand_in.attach, raising=False)
    monkeypatch.setattr(history.AllocatorHistory, "_is_observed", False)
    yield stand_in
    assert stand_in.calls[-1][0] is None  # nothing is recorded any more
    assert history.AllocatorHistory._running is None


def told(folder: Path, err: str, stem: str) -> None:
    """Both files are there, and a line says what filled the memory."""
    assert "Memory ran out in forward: model.py:77 forward requested 500 B more" in err
    assert opanatomy.analyze(folder / f"{stem}.oom.pickle").memory.failure is not None
    assert "Memory ran out" in (folder / f"{stem}.oom.html").read_text()


def test_record_reports_where_memory_runs_out_and_the_error_goes_on(
    allocator: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory\. Tried to allocate 500 bytes\.$"),
        opanatomy.record(tmp_path / "step.json.gz", oom="report"),
    ):
        allocator.refuse()
    told(tmp_path, capsys.readouterr().err, "step")
    with pytest.raises(ValueError, match="mine"), opanatomy.record(tmp_path / "step.json.gz", oom="report"):
        raise ValueError("mine")
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".html", ".pickle"]  # of the first failure alone
    with pytest.raises(opanatomy.UsageError, match="oom='no'"), opanatomy.record(oom="no"):
        pass


def test_profile_reports_where_memory_runs_out(
    allocator: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Refuses(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            allocator.refuse()
            return x

    with pytest.raises(opanatomy.OutOfMemory):
        opanatomy.profile(Refuses(), torch.ones(2), trace=tmp_path / "step.json", oom="report")
    told(tmp_path, capsys.readouterr().err, "step")
    (tmp_path / "models.py").write_text(
        "import torch\nfrom tests.support.made_snapshot import CURRENT\n\n\nclass R(torch.nn.Module):\n"
        "    def forward(self, x):\n        CURRENT[0].refuse()\n\n\ndef make():\n    return R(), (torch.ones(2),)\n"
    )
    monkeypatch.chdir(tmp_path)
    CURRENT[:] = [allocator]
    assert main(["profile", "models.py:make", "--device", "cpu", "--oom-report", "--trace", "cli.json"]) == 1
    told(tmp_path, capsys.readouterr().err, "cli")


def test_a_script_ends_with_its_own_error_and_exit_code(tmp_path: Path) -> None:
    """In a process of its own, where what refuses is torch's own function."""
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch, opanatomy\nfrom opanatomy.capture.memory import history\n"
        "from tests.support.made_snapshot import StandIn\nstand_in = StandIn()\nhistory.is_recordable = lambda: True\n"
        "torch.cuda.memory._record_memory_history = stand_in.record\ntorch.cuda.memory._snapshot = stand_in.snapshot\n"
        "torch._C._cuda_attach_out_of_memory_observer = stand_in.attach\n"
        "try:\n    with opanatomy.record('s.json', oom='report'):\n        stand_in.refuse()\n"
        "except torch.OutOfMemoryError as error:\n    print(error)\n    sys.exit(42)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (42, "CUDA out of memory. Tried to allocate 500 bytes.\n")
    told(tmp_path, done.stderr, "s")


def test_a_snapshot_is_recorded_with_the_modules_that_run(allocator: StandIn, tmp_path: Path) -> None:
    module, inputs = decoder((1, *SMALL[1:]), 1, 8)
    with opanatomy.snapshot(tmp_path / "s.pickle", module=module):
        module(*inputs)
    assert opanatomy.analyze(tmp_path / "s.pickle").memory.peak_bytes == 460
    noted = allocator.metadata
    assert (noted[0], noted[-1]) == ("opanatomy.module/", "")
    assert "opanatomy.module/layers.0.attn.q_proj" in noted
    with pytest.raises(opanatomy.OutputError, match="already exists"), opanatomy.snapshot(tmp_path / "s.pickle"):
        pass
    assert not module._forward_hooks
    allocator.record(enabled=None)


def test_without_a_device_a_history_is_not_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a device")
    recorder = opanatomy.record(oom="report")
    with pytest.warns(UserWarning, match="sees none"):
        recorder.start()
    torch.ones(2).sum()
    recorder.stop()
    with pytest.raises(opanatomy.CaptureError, match="no CUDA device"), opanatomy.snapshot(tmp_path / "s.pickle"):
        pass


def test_lines_of_the_curve_are_those_that_live_then() -> None:
    """Each point's largest lines by a sum over all blocks, written here."""
    path = SNAPSHOTS / "training_warm.pickle.gz"
    memory = memory_of_snapshot([("s", read_snapshot(path))], str, str)
    peak = max(memory.timeline, key=lambda point: point.allocated_bytes)
    sums: dict[str, int] = {}
    for part in memory.parts:
        if part.of == "line" and part.name:
            sums[part.name] = sums.get(part.name, 0) + part.bytes
    assert peak.lines == dict(sorted(sums.items(), key=lambda item: -item[1])[: len(peak.lines)])
    assert sum(peak.components.values()) == peak.allocated_bytes == memory.peak_bytes


@pytest.mark.parametrize("step", [1, 6])
def test_the_callback_reports_where_memory_runs_out_in_a_training(
    step: int, allocator: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the recorded steps and after them; the training ends with its own error."""

    class Refuses(transformers.TrainerCallback):  # type: ignore[misc]  # transformers has no types
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == step:
                allocator.refuse()

    callback = opanatomy.TrainerCallback(steps=range(3, 4), output=tmp_path / "step.json", oom="report")
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 500 bytes"):
        trainer(callback, Refuses(), folder=tmp_path / "out", max_steps=8).train()
    told(tmp_path, capsys.readouterr().err, "step")


# ------------------------------------------------------------------------------------------ components of one's own


def test_a_category_takes_the_blocks_below_its_frames() -> None:
    """Its bytes are those of the lines of the file that it names, and the sums stay those of the peak."""
    path = SNAPSHOTS / "training_warm.pickle.gz"
    plain = opanatomy.analyze(path).memory
    own = opanatomy.analyze(path, categories={"the model": r"decoder\.py:\d+ "}).memory
    assert own.peak_bytes == plain.peak_bytes
    assert sum(by_component(own).values()) == sum(by_component(plain).values()) == plain.peak_bytes
    lines = [part for part in plain.parts if part.of == "line" and part.component != ROUNDING and part.name]
    model = sum(part.bytes for part in lines if (part.name or "").startswith("decoder.py"))
    assert 0 < by_component(own)["the_model"] <= model
    assert {part.component for part in own.parts} >= {"the_model"}
    with pytest.raises(UsageError, match=r"categories 'a-b': the name must start with a letter"):
        opanatomy.analyze(path, categories={"a-b": "x"})
    with pytest.raises(UsageError, match=r"not a regular expression: .*escape"):
        opanatomy.analyze(path, categories={"a": "("})
    (note,) = [note for note in opanatomy.analyze(path, categories={"a": "nowhere"}).memory.notes if "category" in note]
    assert note == "category a: 'nowhere' matches no frame of any block"


BUILT = f"{LIBRARY}/nn/modules/linear.py"
MODULE = f"{LIBRARY}/nn/modules/module.py"


@pytest.mark.parametrize(
    ("function", "file", "component"),
    [
        ("__init__", BUILT, WEIGHTS),
        ("_apply", MODULE, WEIGHTS),
        # Neither is a module built or moved by another function of torch, or one of that name in another file.
        ("reset_parameters", BUILT, "other"),
        ("load_state_dict", MODULE, "other"),
        ("__init__", MODEL, "other"),
        ("_apply", MODEL, "other"),
    ],
)
def test_weights_are_what_building_or_moving_a_module_allocates(
    function: str, file: str, component: str, tmp_path: Path
) -> None:
    stack = [frame("at::_ops::empty_strided::call(at::Tensor)"), frame(function, file, 9), frame("<module>", MODEL, 3)]
    made = SnapshotBuilder().alloc(1_000, 40, stack).alloc(2_000, 10, forward_stack(5)).free(2_000, 10, BACKWARD)
    made.segment(0, 4_096, (1_000, 40, "active_allocated"))
    held = by_component(opanatomy.analyze(made.written(tmp_path / "s.pickle"), at="end").memory)
    assert {name: size for name, size in held.items() if size} == {component: 40}


def test_blocks_of_compiled_code_are_told_apart(tmp_path: Path) -> None:
    """The region that torch writes beside an allocation, `compile_context`: its bytes are those of its blocks."""

    def event(action: str, address: int, size: int, region: str) -> dict[str, Any]:
        return {
            "action": action,
            "addr": address,
            "size": size,
            "stream": 0,
            "time_us": address,
            "frames": [],
            "compile_context": region,
        }

    region = "Torch-Compiled Region: 0/0"
    sizes = {512: region, 1024: region, 2048: "N/A"}
    trace, at, blocks = [], 4096, []
    trace.append({"action": "segment_alloc", "addr": at, "size": 2 << 20, "stream": 0, "time_us": 0, "frames": []})
    for size, where in sizes.items():
        trace.append(event("alloc", at, size, where))
        blocks.append({"address": at, "size": size, "requested_size": size, "state": "active_allocated", "frames": []})
        at += size
    rest = (2 << 20) + 4096 - at
    blocks.append({"address": at, "size": rest, "requested_size": 0, "state": "inactive", "frames": []})
    segment = {
        "device": 0,
        "address": 4096,
        "total_size": 2 << 20,
        "stream": 0,
        "segment_type": "small",
        "blocks": blocks,
    }
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [trace]}))
    memory = opanatomy.analyze(path).memory
    found = {part.name: part.bytes for part in memory.parts if part.of == "compiled"}
    assert found == {region: 1536, None: 2048}
    assert "compiled region" in terminal_report(opanatomy.analyze(path), width=100)
