"""The ranks of a distributed run, and their collectives."""

from __future__ import annotations

from collections.abc import Iterable

from opanatomy.records.record import Record


class Collective(Record, frozen=True, kw_only=True):
    """The calls of one collective with one data type among one number of ranks, over all steps of the window.

    `time_ns` is the time of its device work, on the CPU that of the backend's annotations; waiting for the slowest rank
    is part of it. `bytes` is the size of the messages as nccl-tests counts it
    (what a rank sends in an all-reduce, what it has in the end of an all-gather) and `bus_bytes_per_second` what that
    puts on the links, over `sized_ns`, the time of the calls whose size the trace has.

    collective: `all_reduce`, `all_gather`, ...
    dtype: the data type of its messages, and `group_size` how many ranks take part.
    group_assumed: whether the trace names no group, so that all ranks are taken for it.
    calls: calls, and the `kernels` of them.
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
    bus_bytes_per_second: float | None


class Rank(Record, frozen=True, kw_only=True):
    """One rank of a distributed run; `rank` is `None` where neither the trace nor its file's name says which.

    `wall_ns` is the mean step. The other times are sums over the rank's `steps` steps.

    rank: its number, of `world_size`.
    trace: its file, and `trace_sha256` the digest of that.
    device: what it ran on.
    window_ns: the window: busy, outside and idle time.
    busy_ns: the union of its device work; `idle_ns` the time without any.
    kernel_time_ns: the sum of its device work.
    communication_ns: the union of its collectives; `exposed_communication_ns` where no other work runs.
    exposed_memcpy_ns: copies while no other work runs.
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

    def a_step(self, figure: str) -> int | None:
        """One of these figures of a step, sums divided by the number of steps.

        `step` is the mean step, `own` the step less exposed communication: what the rank does of its own while
        others may be waiting for it.
        """
        if figure == "step":
            return self.wall_ns
        if figure == "own":
            exposed = self.a_step("exposed_communication")
            return None if exposed is None or self.wall_ns is None else max(self.wall_ns - exposed, 0)
        total: int | None = getattr(self, f"{figure}_ns")
        return None if total is None else total // max(self.steps, 1)


class Spread(Record, frozen=True, kw_only=True):
    """One figure of a step (`Rank.a_step`) over the ranks: its minimum, median and maximum, and whose the maximum is.

    figure: `step`, `own`, `busy`, `kernel_time`, `communication`, `exposed_communication` or `idle`.
    min_ns: the minimum; `median_ns`, `max_ns`.
    max_rank: the rank with the maximum, and `max_trace` its file.
    """

    figure: str
    min_ns: int
    median_ns: int
    max_ns: int
    max_rank: int | None
    max_trace: str | None


def numbers_in_short(numbers: Iterable[int]) -> list[str]:
    """Numbers of ranks in order, three and more in a row as one: `0-127`, `130`."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return [name for first, last in spans for name in span_in_short(first, last)]


def span_in_short(first: int, last: int) -> list[str]:
    """The numbers from `first` to `last`, both included."""
    return [f"{first}-{last}"] if last - first > 1 else [str(number) for number in range(first, last + 1)]
