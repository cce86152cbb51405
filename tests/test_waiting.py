"""Waiting separated from transfer: made ranks whose clocks, lateness and transfers are chosen, then real ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from opanatomy.analysis.checks import check_parts
from opanatomy.analysis.waiting import RankTables, by_number_and_order, by_time, calls_of_ranks, clocks_of, waiting_of
from opanatomy.pipeline import analyze_traces
from opanatomy.records.anatomy import Anatomy, CollectiveCalls, Spans, StepSpans
from opanatomy.records.columns import Categorical, Int64
from opanatomy.records.communication import Rank, Straggler, Waiting
from opanatomy.report import terminal_report
from opanatomy.report.formats import format_named
from opanatomy.report.section import Page
from tests import anatomies
from tests.handmade import HandMade

SHARED = Path(__file__).parents[2] / "shared"
BASE = 1_700_000_000_000_000_000
STEP = 10_000_000


def texts(values: Sequence[str | None]) -> Categorical[str]:
    known = tuple(dict.fromkeys(value for value in values if value is not None))
    return Categorical(np.array([-1 if value is None else known.index(value) for value in values], np.int64), known)


def numbers(values: Sequence[int]) -> Int64:
    return np.array(values, dtype=np.int64)


def table(
    starts: Sequence[int], ends: Sequence[int], names: Sequence[str], *, named: bool = True, group: str | None = None,
    size: int = -1, sequence: Sequence[int] | None = None, bytes: int = 4_000, launched: Sequence[int] | None = None,
    synchronized: Sequence[int] | None = None,
) -> CollectiveCalls:  # fmt: skip
    count = len(starts)
    unknown = [-1] * count
    return CollectiveCalls(
        collective=texts(names), named=np.full(count, named), group=texts([group] * count),
        group_size=numbers([size] * count), sequence=numbers([-1] * count if sequence is None else sequence),
        dtype=texts(["float32"] * count), sent_bytes=numbers([bytes] * count), received_bytes=numbers([bytes] * count),
        launched_ns=numbers(launched or unknown), launching_ns=numbers(unknown),
        synchronized_ns=numbers(synchronized or unknown), start_ns=numbers(starts), end_ns=numbers(ends),
        inside=np.ones(count, dtype=bool), phase=texts(["backward"] * count), module=texts([None] * count),
    )  # fmt: skip


def rank_row(number: int, world: int | None) -> Rank:
    return Rank(
        rank=number, world_size=world, trace=f"rank{number}.json", trace_sha256=None, device=None, steps=1,
        wall_ns=None, window_ns=0, busy_ns=0, idle_ns=0, kernel_time_ns=0, communication_ns=None,
        exposed_communication_ns=None, exposed_memcpy_ns=None,
    )  # fmt: skip


def made(
    late: Sequence[Sequence[int]], *, transfer: int = 50_000, clocks: Sequence[int] | None = None,
    world: int | None = None, steps: int = 6, names: Sequence[str] = ("all_reduce", "all_gather"),
    entered: Sequence[int] | None = None, computing: Sequence[int] | None = None, **options: Any,
) -> list[RankTables]:  # fmt: skip
    """Ranks whose collectives begin `late[rank][place]` after the others', once a step, and end `transfer` after the
    last has begun; their clocks are ahead by `clocks`. The ends differ by some hundred nanoseconds, as real ones do.

    Each rank enters its steps `entered` after the first, and computes `computing` at the end of each."""
    ranks, per_step = len(late), len(names)
    clocks, entered, computing = (given or [0] * ranks for given in (clocks, entered, computing))
    made = []
    for rank in range(ranks):
        starts, ends = [], []
        for step in range(steps):
            for place in range(per_step):
                begin = BASE + step * STEP + place * STEP // per_step + (step * step * 7919) % 90_000
                last = max(begin + late[other][place] for other in range(ranks))
                starts.append(begin + late[rank][place] + clocks[rank])
                ends.append(last + transfer + clocks[rank] + (rank * 37 + step * 11) % 300)
        whole = numbers([BASE + step * STEP + clocks[rank] for step in range(steps)])
        begins = whole + entered[rank]
        spans = StepSpans(
            number=numbers(range(steps)), began_ns=begins, start_ns=begins, end_ns=whole + STEP,
            computing_ns=numbers([computing[rank]] * steps), outside_ns=numbers([0] * steps),
            busy_ns=numbers([computing[rank]] * steps),
        )  # fmt: skip
        hiding = Spans(start_ns=numbers([]), end_ns=numbers([]))
        launched = [start - 10_000 for start in starts]
        calls = table(starts, ends, list(names) * steps, **{"launched": launched, **options})
        made.append(RankTables(rank=rank_row(rank, world or ranks), calls=calls, hiding=hiding, steps=spans))
    return made


def with_busy_steps(rank: RankTables) -> RankTables:
    """The rank with steps that are busy while anything runs, moment by moment of those at which something changes,
    and as long as they compute besides."""
    calls, hiding, steps = rank.calls, rank.hiding, rank.steps
    begins, ends = (
        np.concatenate(sides) for sides in ((calls.start_ns, hiding.start_ns), (calls.end_ns, hiding.end_ns))
    )
    moments = np.unique(np.concatenate((begins, ends, steps.start_ns, steps.end_ns)))
    busy = steps.busy_ns.copy()
    for begin, end in zip(moments[:-1].tolist(), moments[1:].tolist(), strict=True):
        if ((begins <= begin) & (ends >= end)).any():
            busy += np.where((steps.start_ns <= begin) & (steps.end_ns >= end), end - begin, 0)
    return replace(rank, steps=replace(steps, busy_ns=busy))


def waiting(each: list[RankTables]) -> Waiting:
    found = waiting_of([with_busy_steps(rank) for rank in each])
    assert found is not None
    (check,) = check_parts(found)
    assert check.equal == check.compared == sum(len(rank.steps) for rank in found.each) > 0
    return found


def cut(rank: RankTables, begin: int, end: int | None = None) -> RankTables:
    """A rank whose record lacks collectives at its ends."""
    calls = rank.calls
    columns = {}
    for name in CollectiveCalls.__struct_fields__:
        column = getattr(calls, name)
        if isinstance(column, Categorical):
            columns[name] = Categorical(column.codes[begin:end], column.values)
        else:
            columns[name] = column[begin:end]
    return replace(rank, calls=CollectiveCalls(**columns))


# -------------------------------------------------------------------------------------------------------- the figures

LATE = [(0, 0), (100_000, 20_000), (800_000, 10_000), (40_000, 900)]


def test_waiting_and_transfer_are_those_that_were_made() -> None:
    found = waiting(made(LATE))
    assert (found.by_order, found.by_number, found.by_time) == (12, 0, 0)
    assert [rank.waiting_ns for rank in found.each] == [6 * 820_000, 6 * 700_000, 6 * 10_000, 6 * 779_100]
    for rank in found.each:
        assert rank.transferring_ns == pytest.approx(12 * 50_000, abs=12 * 300)
    (step, *_) = found.each[0].steps
    assert step.waiting_ns == 820_000
    assert found.straggler is not None
    assert (found.straggler.rank, found.straggler.last) == (2, 6)
    assert found.straggler.charged_ns == 6 * (800_000 + 700_000 + 760_000)
    assert found.straggler.lead_ns == 700_000


def test_bandwidth_of_the_transfer_is_not_that_of_the_duration() -> None:
    found = waiting(made(LATE, bytes=1_000_000, size=4, group="0 [0, 1, 2, 3]"))
    reduce = next(row for row in found.collectives if row.collective == "all_reduce")
    assert reduce.bytes == 24 * 1_000_000
    assert reduce.duration_ns == reduce.transferring_ns + reduce.waiting_ns
    assert reduce.transfer_bus_bytes_per_second == pytest.approx(2 * 3 / 4 * 1_000_000 / 50e-6, rel=0.01)
    assert reduce.bus_bytes_per_second == pytest.approx(1.5 * 24e6 * 1e9 / reduce.duration_ns)


@pytest.mark.parametrize(
    "clocks", [[0, 3_000_000, -2_000_000, 500], [10**15, 0, -(10**14), 7 * 10**12]], ids=["milliseconds", "days"]
)
def test_clocks_are_set_by_the_ends(clocks: list[int]) -> None:
    straight, found = waiting(made(LATE)), waiting(made(LATE, clocks=clocks))
    assert found.clocks.was_set
    assert found.clocks.ended_too_early == 0
    assert found.clocks.within_ns is not None
    assert found.clocks.within_ns < 1_000
    set_to = [rank.clock_offset_ns for rank in found.each]
    for one, (offset, clock) in enumerate(zip(set_to, clocks, strict=True)):
        assert offset - set_to[0] == pytest.approx(clock - clocks[0], abs=400), one
    for rank, same in zip(found.each, straight.each, strict=True):
        assert rank.waiting_ns == pytest.approx(same.waiting_ns, abs=12 * 500)
    assert found.straggler is not None
    assert found.straggler.rank == 2


def test_clocks_that_agree_are_left_alone() -> None:
    found = waiting(made(LATE))
    assert not found.clocks.was_set
    assert {rank.clock_offset_ns for rank in found.each} == {0}


def test_no_collective_ends_before_it_has_begun_everywhere() -> None:
    """Ends that differ by more than the transfer lasts would set the clocks wrong: causality moves them."""
    each = made([(0,), (30_000,), (60_000,)], transfer=2_000, clocks=[0, 40_000, -40_000], names=("all_reduce",))
    found = waiting(each)
    assert found.clocks.ended_too_early_before > 0
    assert found.clocks.ended_too_early == 0


def test_a_lead_within_the_clocks_names_nobody() -> None:
    each = made([(0,), (150,)], transfer=1_000, names=("all_reduce",), steps=20)
    noisy = [
        replace(rank, calls=replace(rank.calls, end_ns=rank.calls.end_ns + place * numbers(range(0, 20_000, 1_000))))
        for place, rank in enumerate(each)
    ]
    found = waiting(noisy)
    assert found.straggler is None
    assert found.no_straggler is not None


def test_few_of_many_ranks_give_a_lower_bound_and_name_nobody() -> None:
    found = waiting(made(LATE[:3], world=128))
    assert found.is_lower_bound
    assert found.straggler is None
    assert found.no_straggler is not None
    assert "not all ranks were given" in found.no_straggler
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
)  # fmt: skip
def test_when_the_straggler_lost_its_time(
    entered: tuple[int, ...], computing: tuple[int, ...], before: int, computes: int, idle: int, clocks: tuple[int, ...]
) -> None:
    """Rank 1 begins the collective of each of 6 steps 2 ms after the two others, which wait 24 ms for it in all."""
    each = made(
        [(1_000_000,), (3_000_000,), (1_000_000,)], names=("all_reduce",), entered=entered, computing=computing,
        clocks=list(clocks),
    )  # fmt: skip
    found = waiting(each)
    straggler = found.straggler
    assert straggler is not None
    assert found.clocks.was_set is any(clocks)
    near = 12 * 400 if any(clocks) else 0
    assert (straggler.rank, straggler.charged_ns) == (1, pytest.approx(24_000_000, abs=near))
    assert straggler.before_ns == pytest.approx(before, abs=near)
    assert straggler.computing_longer_ns == computes
    assert straggler.idle_longer_ns == pytest.approx(idle, abs=6 * 300)


def test_a_lead_that_hosts_lost_waiting_for_a_collective_is_no_lateness_from_before() -> None:
    """Rank 1 enters its steps 2 ms late, and is 1 ms late again at the second collective: its own, where the others
    waited for the first one on their hosts; still that from before where they ran on."""
    ran_on = made([(20_000, 20_000), (2_020_000, 1_020_000)], entered=(0, 2_000_000))
    first_ends = ran_on[0].calls.end_ns[0::2] + 20_000
    waited = numbers([moment for end in first_ends for moment in (-1, end)])
    held = [replace(rank, calls=replace(rank.calls, synchronized_ns=waited)) for rank in ran_on]
    for each, before in ((ran_on, 6 * 3_000_000), (held, 6 * 2_000_000)):
        straggler = waiting(each).straggler
        assert straggler is not None
        assert straggler.charged_ns == 6 * 3_000_000
        assert straggler.before_ns == before


def test_a_collective_that_the_queue_of_the_device_holds_up_is_not_late_on_the_host() -> None:
    """Hosts run 5 ms ahead, that of rank 1 only 1 ms: it is late because its device is, which began with the others."""
    each = made([(0,), (2_000_000,)], names=("all_reduce",))
    behind = [
        replace(
            rank,
            calls=replace(rank.calls, launched_ns=rank.calls.start_ns - ahead),
            steps=replace(rank.steps, began_ns=rank.steps.start_ns - ahead),
        )
        for rank, ahead in zip(each, (5_000_000, 1_000_000), strict=True)
    ]
    straggler = waiting(behind).straggler
    assert straggler is not None
    assert (straggler.charged_ns, straggler.before_ns) == (12_000_000, 0)


@pytest.mark.parametrize("missing", ["launches", "steps"])
def test_when_it_was_late_is_unknown_without_launches_or_steps(missing: str) -> None:
    each = made([(0,), (2_000_000,)], names=("all_reduce",), entered=(0, 2_000_000))
    none = numbers([-1] * 6)
    if missing == "launches":
        each = [replace(rank, calls=replace(rank.calls, launched_ns=none)) for rank in each]
    else:
        each = [replace(rank, steps=replace(rank.steps, began_ns=none)) for rank in each]
    straggler = waiting(each).straggler
    assert straggler is not None
    assert straggler.before_ns is None


def test_collectives_outside_the_steps_that_count_are_in_no_sum() -> None:
    """The last two steps of six do not count: what runs in them is charged to nobody, and still sets the clocks."""
    each = made(LATE, clocks=[0, 3_000_000, 0, 0])
    few = [
        replace(rank, steps=StepSpans(**{name: getattr(rank.steps, name)[:4] for name in StepSpans.__struct_fields__}))
        for rank in each
    ]
    found = waiting(few)
    assert (found.by_order, found.clocks.collectives) == (8, 12)
    assert [rank.matched for rank in found.each] == [8] * 4
    assert found.straggler is not None
    assert found.straggler.charged_ns == pytest.approx(4 * (800_000 + 700_000 + 760_000), abs=4 * 3 * 400)


def test_work_of_before_the_window_is_a_part_of_its_own() -> None:
    """It is no other work, no transfer and no waiting, and the parts still are the step."""
    each = [with_busy_steps(rank) for rank in made([(0,), (1_000_000,)], names=("all_reduce",), steps=4)]
    steps = each[0].steps
    outside = numbers([700_000, 0, 0, 0])
    first = replace(each[0], steps=replace(steps, outside_ns=outside, busy_ns=steps.busy_ns + outside))
    found = waiting_of([first, each[1]])
    assert found is not None
    parts = found.each[0].steps[0]
    assert (parts.outside_ns, parts.other_work_ns, parts.waiting_ns) == (700_000, 0, 1_000_000)
    (check,) = check_parts(found)
    assert check.equal == check.compared == 8


@pytest.mark.parametrize(
    ("before_ns", "computing_ns", "idle_ns", "words"),
    [
        (None, 0, 1_390_000, "; in its steps it is idle 1.39 ms longer than the others in all"),
        (7_000_000, 2_000_000, 500_000, "; 50.7 % of all waiting was there when its steps began, 47.5 % came within"
                                        " them; in its steps it computes 2.00 ms longer than the others in all"),
        (13_560_000, 2_000_000, 0, "; 98.3 % of all waiting was there when its steps began, 0.0 % came within them"),
        (0, 0, 0, ""),  # what was there when its steps began is hardly anything
    ],
)  # fmt: skip
def test_how_late_the_straggler_is_has_the_same_words_everywhere(
    before_ns: int | None, computing_ns: int, idle_ns: int, words: str
) -> None:
    found = waiting(made([(0, 0), (0, 0), (4_000_000, 0), (0, 0)]))
    straggler = Straggler(
        rank=2, trace=None, charged_ns=13_560_000, waiting_ns=13_799_000, last=6, lead_ns=505_000, before_ns=before_ns,
        computing_longer_ns=computing_ns, idle_longer_ns=idle_ns,
    )  # fmt: skip
    anatomy = anatomies.llama_on_gpu()
    timeline = replace(anatomy.timeline, exposed_communication_ns=anatomy.timeline.busy_ns // 2)
    anatomy = replace(anatomy, timeline=timeline, waiting=replace(found, straggler=straggler))
    wanted = f"it begins 6 of 12 collectives last, a median of 505 us after the rank before it{words}"
    texts = {
        "page": terminal_report(anatomy, width=200, sections=("waiting",)),
        "digest": format_named("digest").write(anatomy, Page()),
    }
    assert {name: wanted in " ".join(text.split()) for name, text in texts.items()} == dict.fromkeys(texts, True)
    for part in ("was there when", "longer than"):
        assert all((part in text) is (part in words) for text in texts.values()), part


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def ranks_in(folder: Path, *, before: int = 0, late: int = 0, slow: int = 0, idle: int = 0) -> Anatomy:
    """Three ranks with a step of 1,000 us: a product of 200 us, an all-reduce that all of them end at 700 us.

    Of the middle one `before` is how long work of the step before runs on in its step, `late` how much later it begins
    the step, `slow` how much longer its product takes, `idle` how much later it launches the all-reduce (us).
    """
    for rank in range(3):
        own = rank == 1
        begins, computes = 100 + own * late, 200 + own * slow
        trace = HandMade()
        trace.metadata["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
        trace.metadata["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 3}
        if own and before:
            trace.launch(50, 1)
            trace.kernel("void at::native::vectorized_elementwise_kernel<4>", 60, 40 + before, 1, stream=9)
        trace.annotation("ProfilerStep#1", begins, 1_100 - begins)
        trace.launch(begins + 10, 2)
        trace.kernel("ampere_sgemm_128x64_nn", begins + 15, computes, 2)
        reduces = begins + 20 + computes + own * idle
        trace.launch(reduces - 3, 3)
        trace.kernel(NCCL, reduces, 800 - reduces, 3, stream=20)
        trace.write(folder / f"rank{rank}.json")
    return analyze_traces([folder])


@pytest.mark.parametrize(
    ("how", "waited_us", "before_us", "does"),
    [
        ({"late": 200}, 400, 400, None),
        ({"slow": 200}, 400, 0, "computes 200 us longer"),
        ({"idle": 200}, 400, 0, "is idle 200 us longer"),
        ({"late": 150, "idle": 50}, 400, 300, "is idle 50.0 us longer"),
        ({"slow": 1, "idle": 199}, 400, 0, "is idle 199 us longer"),
    ],
)
def test_traces_of_a_late_rank(
    how: dict[str, int], waited_us: int, before_us: int, does: str | None, tmp_path: Path
) -> None:
    """Rank 1 is 200 us late for a collective: since before its step, by computing, or by an idle host."""
    found = ranks_in(tmp_path, **how)
    straggler = held(found).straggler
    assert straggler is not None
    assert straggler.rank == 1
    assert (straggler.charged_ns, straggler.before_ns) == (1_000 * waited_us, 1_000 * before_us)
    text = " ".join(terminal_report(found, width=200, sections=("waiting",)).split())
    assert f"{straggler.before_ns / straggler.waiting_ns:.1%} of all".replace("%", " %") in text
    assert ("longer than the others" in text) is (does is not None)
    assert does is None or f"in its step it {does} than the others" in text


@pytest.mark.parametrize("before", [0, 150])
def test_traces_with_work_of_the_step_before(before: int, tmp_path: Path) -> None:
    """It runs alone for 15 us of the step, then hides nothing of its product and is none of its work."""
    found = ranks_in(tmp_path, before=before, idle=100)
    (step,) = held(found).each[1].steps
    outside = 15_000 if before else 0
    assert (step.wall_ns, step.other_work_ns, step.outside_ns) == (1_000_000 - outside, 200_000, outside)


# ------------------------------------------------------------------------------------------------------------ matching


def test_the_number_in_the_group_matches_whatever_the_order() -> None:
    each = made(LATE, group="1 [0, 1, 2, 3]", size=4, sequence=range(12))
    late = cut(each[1], 2)
    found = waiting([each[0], late, *each[2:]])
    assert found.by_number == 10
    assert found.by_order == 0
    assert [rank.matched for rank in found.each] == [10] * 4


def test_a_window_that_begins_a_step_later_is_shifted() -> None:
    each = made(LATE)
    found = waiting([cut(each[0], 2), each[1], cut(each[2], 0, 10), cut(each[3], 1)])
    assert found.by_order == 8
    assert found.straggler is not None
    assert found.straggler.rank == 2


def test_equal_windows_a_step_apart_are_told_by_their_times() -> None:
    """Both have as many calls of the same names: only the times say that the second begins a step later."""
    each = made([(0,), (600_000,)], names=("all_reduce",), steps=8)
    found = waiting([cut(each[0], 0, 7), cut(each[1], 1)])
    assert found.by_order == 6
    assert found.clocks.ended_too_early == 0
    assert not found.clocks.was_set


def test_the_same_with_clocks_of_different_machines() -> None:
    """Days apart: the spread of the ends says which shift is meant."""
    each = made([(0,), (600_000,)], names=("all_reduce",), steps=8, clocks=[0, 86_400 * 10**9])
    found = waiting([cut(each[0], 0, 7), cut(each[1], 1)])
    assert found.by_order == 6
    assert found.each[1].clock_offset_ns - found.each[0].clock_offset_ns == pytest.approx(86_400 * 10**9, abs=400)


def test_other_names_are_never_one_collective() -> None:
    each = made(LATE[:2])
    other = replace(each[1], calls=replace(each[1].calls, collective=texts(["all_to_all", "broadcast"] * 6)))
    assert waiting_of([each[0], other]) is None


def test_even_messages_of_other_sizes_are_never_one_collective() -> None:
    each = made(LATE[:2], names=("all_reduce",))
    other = replace(each[1], calls=replace(each[1].calls, sent_bytes=each[1].calls.sent_bytes + 4))
    assert waiting_of([each[0], other]) is None


def test_without_records_of_the_host_time_matches() -> None:
    each = made(LATE, named=False)
    found = waiting(each)
    assert (found.by_time, found.by_order) == (12, 0)
    assert found.straggler is not None
    assert found.straggler.rank == 2


def test_calls_between_two_ranks_are_left_unmatched() -> None:
    each = made([(0,), (1_000,), (5_000,)], names=("send",), group="pipeline", size=2)
    assert waiting_of(each) is None


def test_groups_of_some_ranks_are_matched_within_them() -> None:
    """Ranks 0 and 1 are one group, 2 and 3 another: the lateness of rank 1 is nothing to ranks 2 and 3."""
    pair = made([(0,), (500_000,)], names=("all_reduce",), group="0 [0, 1]", size=2, world=4)
    other = made([(0,), (0,)], names=("all_reduce",), group="0 [2, 3]", size=2, world=4)
    other = [replace(rank, rank=rank_row(place + 2, 4)) for place, rank in enumerate(other)]
    found = waiting([*pair, *other])
    assert found.by_order == 12
    assert [rank.waiting_ns for rank in found.each] == [6 * 500_000, 0, 0, 0]


def test_a_rank_without_collectives_leaves_the_others_unmatched() -> None:
    each = made(LATE)
    assert waiting_of([*each[:3], cut(each[3], 12)]) is None


def test_a_group_whose_size_is_known_lacks_the_rank_that_has_no_call_of_it() -> None:
    """Rank 3 is at hand and recorded nothing: the wait of the others for it cannot be known."""
    each = made(LATE, group="0 [0, 1, 2, 3]", size=4)
    assert waiting_of([*each[:3], cut(each[3], 12)]) is None


def test_a_group_larger_than_what_is_at_hand_gives_a_lower_bound() -> None:
    """The traces do not say how many ranks the run has, but that the group has eight."""
    each = [replace(rank, rank=replace(rank.rank, world_size=None)) for rank in made(LATE, group="0", size=8)]
    found = waiting(each)
    assert (found.world_size, found.is_lower_bound, found.straggler) == (8, True, None)
    assert sum(rank.waiting_ns for rank in found.each) > 0


def test_parts_that_are_not_the_step_are_an_error() -> None:
    """What is taken for computing in a collective's time while no device event says so."""
    each = [with_busy_steps(rank) for rank in made(LATE)]
    wrong = replace(each[0], steps=replace(each[0].steps, computing_ns=each[0].steps.computing_ns + 5))
    found = waiting_of([wrong, *each[1:]])
    assert found is not None
    (check,) = check_parts(found)
    assert check.compared - check.equal == len(check.unexplained) == 6
    assert {difference.evidence for difference in check.differences} == {f"step {step} of rank 0" for step in range(6)}


def test_what_hides_a_collective_is_no_part_of_the_step_twice() -> None:
    each = made([(0,), (1_000_000,)], names=("all_reduce",), steps=4)
    half = Spans(start_ns=each[0].calls.start_ns, end_ns=each[0].calls.start_ns + 400_000)
    first = replace(each[0], hiding=half, steps=replace(each[0].steps, computing_ns=numbers([400_000] * 4)))
    step = waiting([first, each[1]]).each[0].steps[0]
    assert (step.other_work_ns, step.waiting_ns) == (400_000, 600_000)


def test_matching_does_not_depend_on_the_order_of_the_ranks() -> None:
    each = made(LATE, clocks=[0, 3_000_000, -2_000_000, 500])
    forth = calls_of_ranks([rank.calls for rank in each])
    back = calls_of_ranks([rank.calls for rank in each[::-1]])
    ahead = clocks_of(forth, by_number_and_order(forth)).offset_ns
    behind = clocks_of(back, by_number_and_order(back)).offset_ns
    assert ahead.tolist() == behind.tolist()[::-1]


def test_time_matches_nothing_that_does_not_overlap() -> None:
    each = made([(0,), (0,)], names=("all_reduce",), named=False)
    apart = replace(
        each[1],
        calls=replace(each[1].calls, start_ns=each[1].calls.start_ns + 60_000, end_ns=each[1].calls.end_ns + 90_000),
    )
    calls = calls_of_ranks([each[0].calls, apart.calls])
    assert (by_time(calls, np.full(12, -1), numbers([0, 0])) == -1).all()


def test_a_few_long_leads_count_more_than_many_short_ones() -> None:
    """Rank 1 is last by 100 ns in most collectives and by 2 ms in some: what is charged is those."""
    each = made([(0, 0, 0, 0), (2_000_000, 100, 100, 100)], names=("all_reduce",) * 4)
    found = waiting(each).straggler
    assert found is not None
    assert (found.last, found.lead_ns) == (24, 2_000_000)


# ---------------------------------------------------------------------------------------------------------- real ranks


def shared(*names: str) -> Anatomy:
    paths = [SHARED.joinpath(name) for name in names]
    if not all(path.exists() for path in paths):
        pytest.skip("the shared traces are not here")
    return analyze_traces(paths)


def held(anatomy: Anatomy) -> Waiting:
    """The waiting of an anatomy whose parts add up, on every rank and step, to what its steps say themselves."""
    found = anatomy.waiting
    assert found is not None
    for rank, row in zip(found.each, anatomy.ranks, strict=True):
        assert rank.rank == row.rank
        assert sum(step.wall_ns for step in rank.steps) > 0
        for step in rank.steps:
            names = ("other_work", "transfer", "waiting", "unmatched", "idle")
            parts = [getattr(step, f"{name}_ns") for name in names]
            assert min(parts) >= 0
            assert sum(parts) == step.wall_ns
        assert sum(step.idle_ns for step in rank.steps) <= row.idle_ns
    (check,) = (check for check in anatomy.checks if check.quantity == "parts of steps")
    assert check.equal == check.compared == sum(len(rank.steps) for rank in found.each)
    return found


def idle_of_steps(name: str) -> dict[int | None, int]:
    """The idle time of each step that counts by a trace's own report: what neither its work nor that of other steps
    fills."""
    path = SHARED / name
    if not path.exists():
        pytest.skip("the shared traces are not here")
    steps = [step for step in analyze_traces([path]).step.steps if step.set_aside is None]
    return {step.number: step.wall_ns - (step.busy_ns or 0) - (step.outside_ns or 0) for step in steps}


def test_eight_ranks_of_dlrm() -> None:
    found = held(shared("more_traces/dlrm_v100"))
    assert (found.ranks, found.by_order, found.is_lower_bound) == (8, 8, False)
    assert found.clocks.ended_too_early == 0
    assert found.clocks.within_ns is not None
    assert found.clocks.within_ns <= 8_000
    transfers = [rank.transferring_ns for rank in found.each]
    assert max(transfers) <= 1.08 * min(transfers)
    durations = [rank.transferring_ns + rank.waiting_ns for rank in found.each]
    assert max(durations) > 6 * min(durations)
    assert found.straggler is not None
    assert found.straggler.rank == 7
    # 46.843 ms are waited in all, 26.435 ms of them in the first collective. Rank 7 gets there 3.21 ms after its step
    # began, the others after 3.00 to 3.91 ms, and it began later than each of them.
    assert found.straggler.charged_ns / found.straggler.waiting_ns == pytest.approx(0.759, abs=0.001)
    assert found.straggler.before_ns == 26_435_000
    assert found.straggler.waiting_ns == 46_843_000
    assert found.straggler.computing_longer_ns == 0
    # Ranks 1 and 3 end the step before in this one; all compute 1.05 to 1.15 ms of their own.
    assert [step.outside_ns for rank in found.each for step in rank.steps] == [0, 203_000, 0, 176_000, 0, 0, 0, 0]
    for rank in found.each:
        assert {step.number: step.idle_ns for step in rank.steps} == idle_of_steps(
            f"more_traces/dlrm_v100/rank-{rank.rank}.json.gz"
        )


@pytest.mark.parametrize(("kind", "counted", "apart"), [("plain", [5, 6], 1.06), ("quantized", [6], 1.04)])
def test_four_ranks_with_an_all_to_all(kind: str, counted: list[int], apart: float) -> None:
    """The first step of three has the work of the one before in it, the second of the quantized run a pause. The last
    all-to-all of the plain run's step 5 ends 4 ms earlier on rank 0 than on the others: 18 of 70 ms for 22."""
    found = held(shared(f"more_traces/compare/train_v100_a2a_{kind}"))
    assert found.clocks.ended_too_early == 0
    transfers = [rank.transferring_ns for rank in found.each]
    assert max(transfers) <= apart * min(transfers)
    assert found.straggler is not None
    assert found.straggler.rank == 2
    assert found.straggler.charged_ns >= 0.85 * found.straggler.waiting_ns
    # The unions of its own work are those of the others, to 1 %: between two collectives they are not.
    assert (found.straggler.computing_longer_ns, found.straggler.idle_longer_ns > 0) == (0, True)
    for rank in found.each:
        name = f"more_traces/compare/train_v100_a2a_{kind}/rank-{rank.rank}.json.gz"
        assert [step.number for step in rank.steps] == counted
        assert {step.number: step.idle_ns for step in rank.steps} == idle_of_steps(name)


def test_two_of_many_ranks() -> None:
    found = held(shared("traces/multirank"))
    assert (found.ranks, found.world_size, found.is_lower_bound) == (2, 128, True)
    assert found.straggler is None
