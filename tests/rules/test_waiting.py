"""Waiting separated from transfer: made ranks whose clocks, lateness and transfers are chosen, then real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import opanatomy
from opanatomy.records.communication import Waiting
from tests.support.made_trace import GEMM, MAP, NCCL, on_gpu, page
from tests.support.paths import SHARED

#: Of the clocks of the ranks, in ns; a step is 10 ms, times of the made ranks are in ns.
BASE, STEP, US = 1_700_000_000_000_000_000, 10_000_000, 1000
LATE = [(0, 0), (100_000, 20_000), (800_000, 10_000), (40_000, 900)]


def ranks(
    folder: Path,
    late: Sequence[Sequence[int]],
    *,
    transfer: int = 50_000,
    clocks: Sequence[int] | None = None,
    world: int | None = None,
    steps: int = 6,
    names: Sequence[str] = ("allreduce", "_allgather_base"),
    entered: Sequence[int] | None = None,
    computing: Sequence[int] | None = None,
    group: str | None = None,
    size: int | None = None,
    numbered: bool = False,
    elements: int = 1000,
    recorded: bool = True,
    annotated: bool = True,
    parts: Mapping[int, tuple[int, int]] | None = None,
    ahead: Sequence[int] | None = None,
    waits: bool = False,
    hiding: int = 0,
    held: Mapping[tuple[int, int], int] | None = None,
) -> opanatomy.Anatomy:
    """Ranks whose collectives begin `late[rank][place]` after the others', once a step, and end `transfer` after the
    last has begun; their clocks are ahead by `clocks`. The ends differ by some hundred nanoseconds, as real ones do.

    Each rank enters its steps `entered` after the first, and computes `computing` at the end of each. Of those in
    `parts` the trace has these collectives alone. Hosts are `ahead` of their devices; in those that wait the host waits
    for the first collective of each step. `hiding` is how long rank 0 computes from the begin of each on,
    and `held` by how much a rank's collectives of a step end after the others'."""
    count, a_step = len(late), len(names)
    clocks, entered, computing, ahead = (
        given or [value] * count for given, value in ((clocks, 0), (entered, 0), (computing, 0), (ahead, 10_000))
    )
    for rank in range(count):
        trace = on_gpu()
        trace.metadata["baseTimeNanoseconds"] = BASE + clocks[rank]
        trace.metadata["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world or count}
        if world == 0:
            del trace.metadata["distributedInfo"]["world_size"]
        low, high = (parts or {}).get(rank, (0, steps * a_step))
        for step in range(steps):
            whole = (step + 1) * STEP
            if annotated:
                early = ahead[rank] if ahead[rank] > 10_000 else 0
                trace.step((whole + entered[rank] - early) / US, (STEP - entered[rank]) / US, step)
            for index in range(a_step):
                begin = whole + 50_000 + index * STEP // a_step + (step * step * 7919) % 90_000
                start = begin + late[rank][index]
                end = max(begin + each[index] for each in late) + transfer + (rank * 37 + step * 11) % 300
                end += (held or {}).get((rank, step), 0)
                if not low <= step * a_step + index < high:
                    continue
                said: dict[str, Any] = {
                    "Collective name": names[index],
                    "In msg nelems": elements,
                    "Out msg nelems": elements,
                    "dtype": "Float",
                }
                said |= {"Process Group Name": group.split(" ", 1)[0]} if group else {}
                said |= {"Process Group Ranks": group.split(" ", 1)[1]} if group and " " in group else {}
                said |= {"Group size": size} if size else {}
                said |= {"Seq": step * a_step + index} if numbered else {}
                launch = (start - ahead[rank]) / US
                if recorded:
                    trace.host("record_param_comms", launch - 1, 4)
                    trace.events[-1]["args"] |= said
                trace.run(
                    NCCL if recorded else NCCL.partition("(")[0], launch, start / US, (end - start) / US, stream=20
                )
                if hiding and rank == 0:
                    trace.run(MAP, launch + 6, start / US, hiding / US, stream=7)
                if waits and not index:
                    trace.launch(end / US - 60, 0, name="cudaStreamSynchronize", duration=80)
            if computing[rank]:
                begin = whole + STEP - computing[rank]
                trace.run(GEMM, (begin - ahead[rank]) / US, begin / US, computing[rank] / US)
        trace.write(folder / f"rank{rank}.json")
    return opanatomy.analyze(folder)


def waiting(anatomy: opanatomy.Anatomy) -> Waiting:
    """The waiting, whose parts add up to the step on each rank, as a check says too."""
    found = anatomy.waiting
    assert found is not None
    for rank, row in zip(found.each, anatomy.ranks, strict=True):
        assert rank.rank == row.rank
        for step in rank.steps:
            parts = (step.other_work_ns, step.transfer_ns, step.waiting_ns, step.unmatched_ns, step.idle_ns)
            assert min(parts) >= 0
            assert sum(parts) == step.wall_ns > 0
        assert sum(step.idle_ns for step in rank.steps) <= row.idle_ns
    (check,) = (check for check in anatomy.checks if check.quantity == "parts of steps")
    assert check.equal == check.compared == sum(len(rank.steps) for rank in found.each)
    return found


# -------------------------------------------------------------------------------------------------------- the figures


def test_waiting_and_transfer_are_those_that_were_made(tmp_path: Path) -> None:
    """The others wait for rank 2 for 800, 700 and 760 us a step, for rank 1 at the second collective."""
    found = waiting(ranks(tmp_path, LATE, size=4, elements=250_000))
    assert (found.by_order, found.by_number, found.by_time, found.is_lower_bound) == (12, 0, 0, False)
    assert [rank.waiting_ns for rank in found.each] == [6 * 820_000, 6 * 700_000, 6 * 10_000, 6 * 779_100]
    for rank in found.each:
        assert rank.transferring_ns == pytest.approx(12 * 50_000, abs=12 * 300)
    assert (found.clocks.was_set, {rank.clock_offset_ns for rank in found.each}) == (False, {0})
    assert found.straggler is not None
    assert (found.straggler.rank, found.straggler.last, found.straggler.lead_ns) == (2, 6, 700_000)
    assert found.straggler.charged_ns == 6 * (800_000 + 700_000 + 760_000)
    # The bandwidth of the transfer is not that of the duration: 1 MB in 50 us, with 2 * 3 / 4 of it on the bus.
    reduce = next(row for row in found.collectives if row.collective == "all_reduce")
    assert reduce.bytes == 24 * 1_000_000
    assert reduce.duration_ns == reduce.transferring_ns + reduce.waiting_ns
    assert reduce.transfer_bus_bytes_per_second == pytest.approx(1.5 * 1_000_000 / 50e-6, rel=0.01)
    assert reduce.bus_bytes_per_second == pytest.approx(1.5 * 24e6 * 1e9 / reduce.duration_ns)


@pytest.mark.parametrize("clocks", [[0, 3_000_000, -2_000_000, 500], [10**10, 0, -(10**9), 7 * 10**9]])
def test_clocks_are_set_by_the_ends(clocks: list[int], tmp_path: Path) -> None:
    found = waiting(ranks(tmp_path, LATE, clocks=clocks))
    assert (found.clocks.was_set, found.clocks.ended_too_early) == (True, 0)
    assert found.clocks.within_ns is not None
    assert found.clocks.within_ns < 1_000
    for rank, clock in zip(found.each, clocks, strict=True):
        assert rank.clock_offset_ns - found.each[0].clock_offset_ns == pytest.approx(clock - clocks[0], abs=400)
    for rank, ns in zip(found.each, (820_000, 700_000, 10_000, 779_100), strict=True):
        assert rank.waiting_ns == pytest.approx(6 * ns, abs=12 * 500)
    assert found.straggler is not None
    assert found.straggler.rank == 2


def test_clocks_are_set_by_most_ends(tmp_path: Path) -> None:
    """Of six steps two in the middle, in which the collectives of rank 1 end 40 us after the others', set none."""
    clocks = [0, 3_000_000, -2_000_000, 500]
    found = waiting(ranks(tmp_path, LATE, clocks=clocks, held={(1, 2): 40_000, (1, 3): 40_000}))
    offsets = [rank.clock_offset_ns - found.each[0].clock_offset_ns for rank in found.each]
    assert offsets == pytest.approx(clocks, abs=400)


def test_no_collective_ends_before_it_has_begun_everywhere(tmp_path: Path) -> None:
    """Ends that differ by more than the transfer lasts would set the clocks wrong: causality moves them."""
    clocks = ranks(
        tmp_path, [(0,), (30_000,), (60_000,)], transfer=2_000, clocks=[0, 40_000, -40_000], names=("allreduce",)
    )
    found = waiting(clocks).clocks
    assert (found.ended_too_early_before > 0, found.ended_too_early) == (True, 0)


@pytest.mark.parametrize(
    ("late", "options", "why"),
    [
        ([(0,), (150,)], {"transfer": 1_000, "names": ("allreduce",), "clocks": [0, 3_000_000]}, None),
        # within the clocks
        (LATE[:3], {"world": 128}, "some ranks are missing"),
        (LATE, {"world": 0, "group": "0", "size": 8}, "some ranks are missing"),
    ],
)
def test_where_nobody_is_named(
    late: list[tuple[int, ...]], options: dict[str, Any], why: str | None, tmp_path: Path
) -> None:
    """A lead within the accuracy of the clocks; few of many ranks, by the world or by the group, are a lower bound."""
    found = waiting(ranks(tmp_path, late, **options))
    assert found.straggler is None
    assert found.is_lower_bound is bool(why)
    assert (why or "") in (found.no_straggler or "-")
    assert sum(rank.waiting_ns for rank in found.each) > 0


@pytest.mark.parametrize("clocks", [(0, 0, 0), (0, 3_000_000, -2_000_000)], ids=["one clock", "clocks set"])
@pytest.mark.parametrize(
    ("entered", "computing", "before", "computes", "idle"),
    [
        # 2 ms late when each step begins, and as far from there to the collective as the others.
        ((0, 2_000_000, 0), (3_000_000, 3_000_000, 3_000_000), 24_000_000, 0, 0),
        # 1.5 ms late when they begin, 0.5 ms within, in which it is idle.
        ((0, 1_500_000, 0), (3_000_000, 3_000_000, 3_000_000), 18_000_000, 0, 3_000_000),
        # Late within: 2 ms of the 5 ms that it computes are more than the others.
        ((0, 0, 0), (3_000_000, 5_000_000, 3_000_000), 0, 12_000_000, 0),
        # Late within, and no longer computing than the others by more than 1 %: idle, as long as the others wait.
        ((0, 0, 0), (3_000_000, 3_030_000, 3_000_000), 0, 0, 11_820_000),
        # Early into its step, and late all the same.
        ((500_000, 0, 500_000), (3_000_000, 5_000_000, 3_000_000), 0, 12_000_000, 3_000_000),
    ],
)
def test_when_the_straggler_lost_its_time(
    entered: tuple[int, ...],
    computing: tuple[int, ...],
    before: int,
    computes: int,
    idle: int,
    clocks: tuple[int, ...],
    tmp_path: Path,
) -> None:
    """Rank 1 begins the collective of each of 6 steps 2 ms after the two others, which wait 24 ms for it in all."""
    late = [(1_000_000,), (3_000_000,), (1_000_000,)]
    anatomy = ranks(tmp_path, late, names=("allreduce",), entered=entered, computing=computing, clocks=clocks)
    found, near = waiting(anatomy), 12 * 400 if any(clocks) else 0
    straggler = found.straggler
    assert straggler is not None
    assert found.clocks.was_set is any(clocks)
    assert (straggler.rank, straggler.charged_ns) == (1, pytest.approx(24_000_000, abs=near))
    assert straggler.before_ns == pytest.approx(before, abs=near)
    assert straggler.computing_longer_ns == computes
    assert straggler.idle_longer_ns == pytest.approx(idle, abs=6 * 300)
    text = page(anatomy, "waiting")
    assert "it starts 6 of 6 collectives last, a median of 2.00 ms after the rank before it" in text
    assert ("accrues before its steps start" in text) is (before > 0)
    assert ("in its steps it computes 12.0 ms longer than the median of the others in total" in text) is (computes > 0)


@pytest.mark.parametrize(("waits", "before"), [(False, 6 * 3_000_000), (True, 6 * 2_000_000)])
def test_a_lead_that_hosts_lost_waiting_for_a_collective_is_no_lateness_from_before(
    waits: bool, before: int, tmp_path: Path
) -> None:
    """Rank 1 enters its steps 2 ms late, and is 1 ms late again at the second collective: its own, where the others
    waited for the first one on their hosts; still that from before where they ran on."""
    late = [(20_000, 20_000), (2_020_000, 1_020_000)]
    straggler = waiting(ranks(tmp_path, late, entered=(0, 2_000_000), waits=waits)).straggler
    assert straggler is not None
    assert (straggler.charged_ns, straggler.before_ns) == (6 * 3_000_000, before)


def test_a_collective_that_the_queue_of_the_device_holds_up_is_not_late_on_the_host(tmp_path: Path) -> None:
    """Hosts run 5 ms ahead, that of rank 1 only 1 ms: it is late because its device is, which began with the others,
    but for the first step, before which the devices do nothing."""
    late: dict[str, Any] = {"names": ("allreduce",), "ahead": (5_000_000, 1_000_000), "computing": (7_000_000,) * 2}
    straggler = waiting(ranks(tmp_path, [(0,), (2_000_000,)], **late)).straggler
    assert straggler is not None
    assert (straggler.charged_ns, straggler.before_ns) == (12_000_000, 2_000_000)


def test_when_it_was_late_is_unknown_without_steps(tmp_path: Path) -> None:
    straggler = waiting(ranks(tmp_path, [(0,), (2_000_000,)], names=("allreduce",), annotated=False)).straggler
    assert straggler is not None
    assert straggler.before_ns is None


def test_a_few_long_leads_count_more_than_many_short_ones(tmp_path: Path) -> None:
    """Rank 1 is last by 100 ns in most collectives and by 2 ms in some: what is charged is those."""
    late = [(0, 0, 0, 0), (2_000_000, 100, 100, 100)]
    straggler = waiting(ranks(tmp_path, late, names=("allreduce",) * 4)).straggler
    assert straggler is not None
    assert (straggler.last, straggler.lead_ns) == (24, 2_000_000)


def test_what_hides_a_collective_is_no_part_of_the_step_twice(tmp_path: Path) -> None:
    found = waiting(ranks(tmp_path, [(0,), (1_000_000,)], names=("allreduce",), steps=4, hiding=400_000))
    step = found.each[0].steps[0]
    assert (step.other_work_ns, step.waiting_ns) == (400_000, 600_000)


def late_rank(folder: Path, *, before: int = 0, late: int = 0, slow: int = 0, idle: int = 0) -> opanatomy.Anatomy:
    """Three ranks with a step of 1,000 us: a product of 200 us, an all-reduce that all of them end at 700 us.

    Of the middle one `before` is how long work of the step before runs on in its step, `late` how much later it begins
    the step, `slow` how much longer its product takes, `idle` how much later it launches the all-reduce (us).
    """
    for rank in range(3):
        own = rank == 1
        begins, computes = 100 + own * late, 200 + own * slow
        trace = on_gpu()
        trace.metadata["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 3}
        if own and before:
            trace.run(MAP, 50, 60, 40 + before, stream=9)
        trace.step(begins, 1_100 - begins)
        trace.run(GEMM, begins + 10, begins + 15, computes)
        reduces = begins + 20 + computes + own * idle
        trace.run(NCCL, reduces - 3, reduces, 800 - reduces, stream=20)
        trace.write(folder / f"rank{rank}.json")
    return opanatomy.analyze(folder)


@pytest.mark.parametrize(
    ("how", "before_us", "does"),
    [
        ({"late": 200}, 400, None),
        ({"slow": 200}, 0, "computes 200 us longer"),
        ({"idle": 200}, 0, "is idle 200 us longer"),
        ({"late": 150, "idle": 50}, 300, "is idle 50.0 us longer"),
        ({"slow": 1, "idle": 199}, 0, "is idle 199 us longer"),
    ],
)
def test_a_late_rank(how: dict[str, int], before_us: int, does: str | None, tmp_path: Path) -> None:
    """Rank 1 is 200 us late for a collective: since before its step, by computing, or by an idle host."""
    anatomy = late_rank(tmp_path, **how)
    straggler = waiting(anatomy).straggler
    assert straggler is not None
    assert (straggler.rank, straggler.charged_ns, straggler.before_ns) == (1, 400_000, 1_000 * before_us)
    text = page(anatomy, "waiting")
    assert f"{before_us / 4:.1f} % of all" in text
    assert ("longer than the median of the others" in text) is (does is not None)
    assert does is None or f"in its step it {does} than the median of the others" in text


@pytest.mark.parametrize("before", [0, 150])
def test_work_of_the_step_before_is_a_part_of_its_own(before: int, tmp_path: Path) -> None:
    """It runs alone for 15 us of the step, then hides nothing of its product and is none of its work."""
    (step,) = waiting(late_rank(tmp_path, before=before, idle=100)).each[1].steps
    outside = 15_000 if before else 0
    assert (step.wall_ns, step.other_work_ns, step.outside_ns) == (1_000_000 - outside, 200_000, outside)


# ------------------------------------------------------------------------------------------------------------ matching

#: What the traces have, and how many of twelve collectives are matched by order, by number, by time.
MATCHED: dict[str, tuple[list[tuple[int, ...]], dict[str, Any], tuple[int, int, int]]] = {
    "number whatever the order": (
        LATE,
        {"group": "1 [0, 1, 2, 3]", "size": 4, "numbered": True, "parts": {1: (2, 12)}},
        (0, 10, 0),
    ),
    "windows that begin and end elsewhere": (
        LATE,
        {"parts": {0: (2, 12), 2: (0, 10), 3: (1, 12)}},
        (8, 0, 0),
    ),
    "no record of the host": (LATE, {"recorded": False}, (0, 0, 12)),
    # As many calls of one name: only the times say that the second begins one later.
    "equal windows apart": (
        [(0,), (600_000,)],
        {"names": ("allreduce",), "steps": 8, "parts": {0: (0, 7), 1: (1, 8)}},
        (6, 0, 0),
    ),
    # 40 s apart: the spread of the ends says which shift is meant.
    "the same, of other machines": (
        [(0,), (600_000,)],
        {"names": ("allreduce",), "steps": 8, "parts": {0: (0, 7), 1: (1, 8)}, "clocks": [0, 40 * 10**9]},
        (6, 0, 0),
    ),
}


@pytest.mark.parametrize("name", MATCHED)
def test_calls_are_matched(name: str, tmp_path: Path) -> None:
    late, options, expected = MATCHED[name]
    found = waiting(ranks(tmp_path, late, annotated=False, **options))
    assert (found.by_order, found.by_number, found.by_time) == expected
    assert found.clocks.ended_too_early == 0
    assert [rank.matched for rank in found.each] == [sum(expected)] * len(late)
    assert found.straggler is not None
    assert found.straggler.rank == (2 if len(late) == 4 else 1)


@pytest.mark.parametrize(
    "options",
    [
        {"late": [(0,), (1_000,), (5_000,)], "names": ("send",), "group": "pipeline", "size": 2},  # between two ranks
        {"late": LATE[:2], "parts": {1: (12, 12)}},  # one of two has no collectives
    ],
)
def test_what_is_left_unmatched(options: dict[str, Any], tmp_path: Path) -> None:
    assert ranks(tmp_path, options.pop("late", LATE), **options).waiting is None


@pytest.mark.parametrize("options", [{}, {"group": "0 [0, 1, 2, 3]", "size": 4}])
def test_a_rank_without_collectives_is_missed(options: dict[str, Any], tmp_path: Path) -> None:
    """It is at hand and recorded nothing: the wait of the others for it cannot be known."""
    found = ranks(tmp_path, LATE, parts={3: (12, 12)}, **options).waiting
    assert found is not None
    assert (found.ranks, found.world_size, found.is_lower_bound, found.straggler) == (3, 4, True, None)


@pytest.mark.parametrize("other", [{"names": ("all_to_all", "broadcast")}, {"elements": 1001}])
def test_other_names_and_other_sizes_are_never_one_collective(other: dict[str, Any], tmp_path: Path) -> None:
    ranks(tmp_path, LATE[:2])
    (tmp_path / "other").mkdir()
    ranks(tmp_path / "other", LATE[:2], **other)
    (tmp_path / "other" / "rank1.json").replace(tmp_path / "rank1.json")
    (tmp_path / "other" / "rank0.json").unlink()
    assert opanatomy.analyze(tmp_path).waiting is None


def test_groups_of_some_ranks_are_matched_within_them(tmp_path: Path) -> None:
    """Ranks 0 and 1 are one group, 2 and 3 another: the lateness of rank 1 is nothing to ranks 2 and 3."""
    for folder, late, group in (("a", 500_000, "0 [0, 1]"), ("b", 0, "0 [2, 3]")):
        (tmp_path / folder).mkdir()
        ranks(tmp_path / folder, [(0,), (late,)], names=("allreduce",), group=group, size=2, world=4)
    for rank in (2, 3):
        text = (tmp_path / "b" / f"rank{rank - 2}.json").read_text()
        (tmp_path / "a" / f"rank{rank}.json").write_text(text.replace(f'"rank": {rank - 2}', f'"rank": {rank}'))
    found = waiting(opanatomy.analyze(tmp_path / "a"))
    assert found.by_order == 12
    assert [rank.waiting_ns for rank in found.each] == [6 * 500_000, 0, 0, 0]


# ---------------------------------------------------------------------------------------------------------- real ranks


def shared(name: str) -> opanatomy.Anatomy:
    if not (SHARED / name).exists():
        pytest.skip("the shared traces are not here")
    return opanatomy.analyze(SHARED / name)


def test_eight_ranks_of_dlrm() -> None:
    """46.843 ms are waited in all, 26.435 ms of them in the first collective. Rank 7 gets there 3.21 ms after its step
    began, the others after 3.00 to 3.91 ms, and it began later than each of them."""
    found = waiting(shared("more_traces/dlrm_v100"))
    assert (found.ranks, found.by_order, found.is_lower_bound, found.clocks.ended_too_early) == (8, 8, False, 0)
    assert (found.clocks.within_ns or 0) <= 8_000
    transfers = [rank.transferring_ns for rank in found.each]
    durations = [rank.transferring_ns + rank.waiting_ns for rank in found.each]
    assert max(transfers) <= 1.08 * min(transfers)
    assert max(durations) > 6 * min(durations)
    straggler = found.straggler
    assert straggler is not None
    assert (straggler.rank, straggler.waiting_ns, straggler.before_ns) == (7, 46_843_000, 26_435_000)
    assert straggler.charged_ns / straggler.waiting_ns == pytest.approx(0.759, abs=0.001)
    assert straggler.computing_longer_ns == 0
    # Ranks 1 and 3 end the step before in this one; all compute 1.05 to 1.15 ms of their own.
    assert [step.outside_ns for rank in found.each for step in rank.steps] == [0, 203_000, 0, 176_000, 0, 0, 0, 0]


@pytest.mark.parametrize(("kind", "counted", "apart"), [("plain", [5, 6], 1.06), ("quantized", [6], 1.04)])
def test_four_ranks_with_an_all_to_all(kind: str, counted: list[int], apart: float) -> None:
    """The first step of three has the work of the one before in it, the second of the quantized run a pause. The last
    all-to-all of the plain run's step 5 ends 4 ms earlier on rank 0 than on the others: 18 of 70 ms for 22."""
    found = waiting(shared(f"more_traces/compare/train_v100_a2a_{kind}"))
    transfers = [rank.transferring_ns for rank in found.each]
    assert max(transfers) <= apart * min(transfers)
    straggler = found.straggler
    assert straggler is not None
    assert straggler.rank == 2
    assert straggler.charged_ns >= 0.85 * straggler.waiting_ns
    # The unions of its own work are those of the others, to 1 %: between two collectives they are not.
    assert (straggler.computing_longer_ns, straggler.idle_longer_ns > 0) == (0, True)
    assert [[step.number for step in rank.steps] for rank in found.each] == [counted] * 4


def test_two_of_many_ranks() -> None:
    found = waiting(shared("traces/multirank"))
    assert (found.ranks, found.world_size, found.is_lower_bound, found.straggler) == (2, 128, True, None)
