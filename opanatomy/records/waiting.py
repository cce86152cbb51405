"""Where the steps of several ranks went once waiting is separated from transfer, and who was waited for."""

from __future__ import annotations

from opanatomy.records.record import Record


class ClockSetting(Record, frozen=True, kw_only=True):
    """How the clocks of the ranks were brought together.

    `was_set` is false where the clocks of the traces agree as they are. On the clocks that were taken the ends of short
    collectives lie within `within_ns` of their middle, nine in ten; where clocks were set, of those that they were not
    set by, `None` where there are too few to tell. `ended_too_early` counts collectives that end on one rank before
    they have begun on another, which none can, `ended_too_early_before` the same on the clocks as the traces have them.
    """

    was_set: bool
    collectives: int
    within_ns: int | None
    ended_too_early_before: int
    ended_too_early: int


class StepParts(Record, frozen=True, kw_only=True):
    """A step of a rank: wall = other_work + transfer + waiting + unmatched + idle, exactly, which a check
    holds: idle is what the union of all work leaves of the step, whatever the work was taken for.

    `other_work_ns` is the union of the window's work that is no communication; the next three are the times in which
    only communication of the window ran: in which data of some collective could flow, in which all of them waited for
    another rank, and in which those ran that are not matched with those of the other ranks. `outside_ns` is the time
    in which only work launched before (or after) the window ran, no part of `wall_ns`. On the CPU idle time is the
    framework's too.
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
    """One rank: its steps, and their collectives whether hidden or not.

    `clock_offset_ns` is how far its clock is ahead. `transferring_ns` and `waiting_ns` are sums over its matched
    collectives. `charged_ns` is how long the others waited for it: of each collective for the rank that came last.
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

    `duration_ns = transferring_ns + waiting_ns`. `bytes` is the size of the messages as nccl-tests counts it, of the
    calls that have one, and the rates are what that puts on the links in the whole duration, and while data could flow.
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

    `charged_ns` of all waiting `waiting_ns` was for it, in `last` of the collectives; its lead there, how much later it
    began than the rank before it, has the median `lead_ns`, weighted by the waiting. Of `charged_ns` it was late
    `before_ns` when its step began, by the host's record of the step; the rest it lost since, within the step. `None`
    where the traces do not say when steps began or when collectives were launched. In its steps it computed
    `computing_longer_ns` and was idle `idle_longer_ns` longer than the median of the others, by the unions of its
    computing and of all its work; 0 where that is no more than 1 %, or than the clocks are known to.
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

    `is_lower_bound` where not all ranks of the run were given: another one may have come later still, and no straggler
    is named. `by_number`, `by_order` and `by_time` are collectives by how they were matched, of the steps alone, as all
    sums are. `no_straggler` says why none is named.
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
