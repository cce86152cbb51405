"""Define the records of collectives: cost by phase and module, waiting between ranks, numbers of each rank."""

from __future__ import annotations

from collections.abc import Iterable

from opanatomy.records.codec import Name, Record
from opanatomy.records.taxonomy import Phase


class CommunicationPhase(Record, frozen=True, kw_only=True):
    """The collectives that one phase launched, over all steps.

    `launching_ns` is host time in the calls that launched them, `running_ns` the union of the times in which any of
    them ran, including waits for other ranks, `exposed_ns` the part of `running_ns` in which the rank did nothing else.
    Phases may overlap: each phase has the full time of its own collectives. `bytes` is the message size as nccl-tests
    counts it, for the `sized` calls whose size is known.
    """

    phase: Phase
    calls: int
    sized: int
    bytes: int
    launching_ns: int
    running_ns: int
    exposed_ns: int


class ModuleCommunication(Record, frozen=True, kw_only=True):
    """The calls of one collective for one module in one phase, over all steps; times as in `CommunicationPhase`.

    `module` is empty for the model itself: calls outside its submodules, and calls outside any module's range.
    """

    module: str
    collective: str
    phase: Phase
    calls: int
    sized: int
    bytes: int
    running_ns: int
    exposed_ns: int


class ExpectedCommunication(Record, frozen=True, kw_only=True):
    """What one step must communicate in theory, for one collective of one module, next to the actual messages.

    `wire_bytes` is what each of n ranks sends over its links for that: 2 (n - 1) / n of the message for an all-reduce,
    (n - 1) / n for a gather or a reduce-scatter.
    """

    module: str
    collective: str
    ranks: int
    expected_bytes: int
    measured_bytes: int | None
    wire_bytes: int


class Communication(Record, frozen=True, kw_only=True):
    """The communication of the steps; with several ranks, all numbers are sums.

    `running_ns` is the union of all collectives, `exposed_ns` the part not hidden by other work.
    """

    running_ns: int
    exposed_ns: int
    phases: tuple[CommunicationPhase, ...]
    modules: tuple[ModuleCommunication, ...]
    expected: tuple[ExpectedCommunication, ...] = ()


# --- waiting between ranks ---


class ClockSetting(Record, frozen=True, kw_only=True):
    """How the clocks of the ranks were aligned.

    `was_set` is false if the clocks of the traces agree as recorded. `within_ns` is the accuracy: on the clocks used,
    nine in ten ends of short collectives lie within this distance of the middle of their ends. If clocks were set, only
    collectives not used to set them count; `None` if these are too few. `ended_too_early` counts collectives that end
    on one rank before they begin on another, which is impossible; `ended_too_early_before` counts them on the recorded
    clocks.
    """

    was_set: bool
    collectives: int
    within_ns: int | None
    ended_too_early_before: int
    ended_too_early: int


class StepParts(Record, frozen=True, kw_only=True):
    """A step of a rank: wall = other_work + transfer + waiting + unmatched + idle, exactly.

    A check verifies this: idle is the part of the step outside the union of all work, however the work is classified.
    `other_work_ns` is the union of the window's work except communication. The next three are the times in which only
    communication of the window ran: data of some collective could flow (transfer), all collectives waited for another
    rank (waiting), or the collectives are not matched with those of other ranks (unmatched). `outside_ns`, which is not
    part of `wall_ns`, is the time in which only work launched before (or after) the window ran. On the CPU idle time
    includes framework time.
    """

    number: int
    wall_ns: int
    other_work_ns: int
    transfer_ns: int
    waiting_ns: int
    unmatched_ns: int
    idle_ns: int
    outside_ns: int = 0


class RankWaiting(Record, frozen=True, kw_only=True):
    """One rank: its steps, and their collectives, hidden or exposed.

    `clock_offset_ns` is how far its clock is ahead. `transferring_ns` and `waiting_ns` are sums over its matched
    collectives. `charged_ns` is how long the others waited for it: the waiting for each collective is charged to the
    rank that came last.
    """

    rank: int | None
    trace: str | None
    clock_offset_ns: int
    calls: int
    matched: int
    transferring_ns: int
    waiting_ns: int
    charged_ns: int
    steps: tuple[StepParts, ...]


class MatchedCollective(Record, frozen=True, kw_only=True):
    """Matched calls of one collective with one data type and group size, over all ranks.

    `duration_ns = transferring_ns + waiting_ns`. `bytes` is the message size as nccl-tests counts it, for the calls
    with a known size. The rates are the resulting traffic on the links divided by the entire duration, and by the time
    in which data could flow.
    """

    collective: str
    dtype: str | None
    group_size: int | None
    collectives: int
    calls: int
    duration_ns: int
    transferring_ns: int
    waiting_ns: int
    bytes: int | None
    bus_bytes_per_second: float | None
    transfer_bus_bytes_per_second: float | None


class Straggler(Record, frozen=True, kw_only=True):
    """The rank that the others wait for.

    Of all waiting (`waiting_ns`), `charged_ns` was for this rank, which came last in `last` of the collectives.
    `lead_ns` is how much later than the second-to-last rank it began these: the median, weighted by the waiting. It was
    late by `before_ns` of `charged_ns` when its step began, according to the host's record of the step, and lost the
    rest within the step; `None` if the traces do not say when steps began or when collectives were launched. In its
    steps it computed `computing_longer_ns` longer and was idle `idle_longer_ns` longer than the median of the others,
    by the unions of its computing and of all its work; 0 if that is at most 1 %, or within the accuracy of the clocks.
    """

    rank: int | None
    trace: str | None
    charged_ns: int
    waiting_ns: int
    last: int
    lead_ns: int
    before_ns: int | None = None
    computing_longer_ns: int
    idle_longer_ns: int


class Waiting(Record, frozen=True, kw_only=True):
    """Waiting separated from transfer, over ranks whose collectives were matched.

    `is_lower_bound` is true if not all ranks of the run were given: a missing one may have come even later, so no
    straggler is named. `by_number`, `by_order` and `by_time` count collectives by how they were matched; like all sums,
    they cover only the steps. `no_straggler` says why no straggler is named.
    """

    ranks: int
    world_size: int | None
    is_lower_bound: bool
    by_number: int
    by_order: int
    by_time: int
    clocks: ClockSetting
    each: tuple[RankWaiting, ...]
    collectives: tuple[MatchedCollective, ...]
    straggler: Straggler | None = None
    no_straggler: str | None = None


# --- ranks of a distributed run, and their collectives ---


class Collective(Record, frozen=True, kw_only=True):
    """The calls of one collective with one data type among one number of ranks, over all steps of the window.

    `time_ns` is the time of its device work, on the CPU that of the backend's annotations, and includes waiting for the
    slowest rank. `bytes` is the message size as nccl-tests counts it (sent by a rank in an all-reduce, held at the end
    of an all-gather), `bus_bytes_per_second` the resulting traffic on the links over `sized_ns`, the time of the calls
    whose size is in the trace.

    collective: `all_reduce`, `all_gather`, ...
    dtype: the data type of its messages; `group_size` is the number of ranks that take part.
    group_assumed: true if the trace names no group, so that a group of all ranks is assumed.
    calls: the number of calls; `kernels` is the number of their kernels.
    """

    collective: str
    dtype: str | None
    group_size: int | None
    group_assumed: bool
    calls: int
    kernels: int
    time_ns: int
    sized_ns: int
    bytes: int | None
    bus_bytes_per_second: float | None = None


class Rank(Record, frozen=True, kw_only=True):
    """One rank of a distributed run; `rank` is `None` if neither the trace nor its file name has the rank.

    `wall_ns` is the mean step time. The other times are sums over the rank's `steps` steps.

    rank: the number of the rank; `world_size` is the number of all ranks of the run.
    trace: the file of its trace; `trace_sha256` is the SHA-256 digest of the file.
    device: the name of its device.
    window_ns: the length of the window, which is busy, outside and idle time.
    busy_ns: the union of its device work; `idle_ns` is the time without device work.
    kernel_time_ns: the sum of its device work.
    communication_ns: the union of its collectives; `exposed_communication_ns` is the part in which no other work runs.
    exposed_memcpy_ns: the time in which copies and no other work run.
    host_bytes: its process's maximum private memory during the run, if a loop was recorded.
    """

    rank: int | None
    world_size: int | None
    trace: str | None
    trace_sha256: str | None
    device: str | None
    steps: int
    wall_ns: int | None
    window_ns: int
    busy_ns: int
    idle_ns: int
    kernel_time_ns: int
    communication_ns: int | None
    exposed_communication_ns: int | None
    exposed_memcpy_ns: int | None
    host_bytes: int | None = None

    def per_step(self, figure: str) -> int | None:
        """Return one quantity of the mean step; sums are divided by the number of steps.

        `step` is the mean step, `own` the step minus exposed communication: the rank's own part, during which others
        may be waiting for it.
        """
        if figure == "step":
            return self.wall_ns
        if figure == "own":
            exposed = self.per_step("exposed_communication")
            return None if exposed is None or self.wall_ns is None else max(self.wall_ns - exposed, 0)
        total: int | None = getattr(self, f"{figure}_ns")
        return None if total is None else total // max(self.steps, 1)


class Spread(Record, frozen=True, kw_only=True):
    """One quantity of a step (`Rank.per_step`) over the ranks: minimum, median, maximum, and the rank with the maximum.

    figure: `step`, `own`, `busy`, `kernel_time`, `communication`, `exposed_communication` or `idle`.
    min_ns: the minimum; `median_ns` is the median, `max_ns` the maximum.
    max_rank: the rank with the maximum; `max_trace` is the file of its trace.
    """

    figure: Name
    min_ns: int
    median_ns: int
    max_ns: int
    max_rank: int | None
    max_trace: str | None


def numbers_in_short(numbers: Iterable[int]) -> list[str]:
    """Format numbers of ranks in order, three or more in a row as a range: `0-127`, `130`."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return [name for first, last in spans for name in span_in_short(first, last)]


def span_in_short(first: int, last: int) -> list[str]:
    """Format the numbers from `first` to `last`, both included."""
    return [f"{first}-{last}"] if last - first > 1 else [str(number) for number in range(first, last + 1)]
