"""Merge the anatomies of several ranks into one, with a row per rank and the spread between ranks.

Ranks are added one at a time, in any order, and little is kept of each.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from opanatomy.analysis.aggregate import CommonFields, Order, OrderedUnion, RowSums, merged, sum_of
from opanatomy.analysis.build import check_conservation
from opanatomy.analysis.communication import CommunicationMerger, World, collectives_together
from opanatomy.analysis.evidence import merge_situations, situation_of
from opanatomy.analysis.spans import longest_of_ranks
from opanatomy.analysis.step import mean, mean_causes, mean_phases
from opanatomy.analysis.timeline import longest_gaps
from opanatomy.analysis.work import WorkSums
from opanatomy.errors import UsageError
from opanatomy.options import DATA_PARALLEL, as_asked
from opanatomy.records.anatomy import (
    PARTS_OF_IDLE,
    Anatomy,
    ChainRow,
    Check,
    DeviceFigures,
    Difference,
    HostRow,
    IdleRow,
    Launching,
    Ledger,
    Provenance,
    Situation,
    Span,
    Step,
    Timeline,
)
from opanatomy.records.communication import Collective, Rank, Spread, numbers_in_short, span_in_short
from opanatomy.records.memory import Memory
from opanatomy.records.patterns import regex
from opanatomy.records.run import DeviceState, Growth, RunClock, RunTrends
from opanatomy.records.table import Table
from opanatomy.records.taxonomy import IdleCause, OperatorClass
from opanatomy.records.work import Ratio, TheoryRow
from opanatomy.records.workload import Environment, Workload

# ----- steps, timelines, device figures and their spread over several ranks


#: The figures with a spread over ranks, by `Rank.per_step`.
FIGURES: Final = ("step", "own", "busy", "kernel_time", "communication", "exposed_communication", "idle")


def merge_steps(records: Sequence[Step]) -> Step:
    """Return the mean over the ranks, so that parts add up."""
    rules: dict[Callable[[list[Any]], Any], Sequence[str]] = {
        mean: (
            "wall_ns",
            "unprofiled_wall_ns",
            "unprofiled_count",
            "system_ns",
            "page_faults",
            "busy_ns",
            "kernel_time_ns",
            "framework_ns",
            "profiler_ns",
            "aside_count",
            "aside_wall_ns",
        ),
        _mean_fraction: ("samples_per_second",),
        mean_phases: ("phase_ns",),
        mean_causes: ("aside_idle_ns",),
    }
    step: Step = merged([replace(record, steps=()) for record in records], rules)
    framework = step.framework_ns
    if None not in (framework, step.wall_ns, step.busy_ns):
        framework = (step.wall_ns or 0) - (step.busy_ns or 0) - (step.profiler_ns or 0)
    return replace(
        step,
        count=sum(record.count for record in records),
        framework_ns=framework,
        by_line_ns=_known(max, [record.by_line_ns for record in records]),
        wall_min_ns=_known(min, [record.wall_min_ns for record in records]),
        wall_max_ns=_known(max, [record.wall_max_ns for record in records]),
        unprofiled_wall_min_ns=_known(min, [record.unprofiled_wall_min_ns for record in records]),
        unprofiled_wall_max_ns=_known(max, [record.unprofiled_wall_max_ns for record in records]),
    )


def _known(choose: Callable[[list[int]], int], values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return choose(known) if known else None


def merge_timelines(records: Sequence[Timeline]) -> Timeline:
    """Return the mean timeline over the ranks, whose parts add up: rounding goes to other idle time."""
    bare = [replace(record, launching=None, devices=(), streams=(), causes=(), gaps=()) for record in records]
    means = (
        "window_ns", "busy_ns", "communication_ns", "exposed_communication_ns", "exposed_memcpy_ns", "outside_ns",
        "host_idle_ns", "stream_idle_ns", "other_idle_ns", "unrecorded_ns", "awaited_ns", "drained_ns", "paced_ns",
        "around_ns", "computation_ns", "memcpy_ns",
    )  # fmt: skip
    timeline: Timeline = merged(bare, {_mean: means})
    kinds = (timeline.outside_ns, timeline.host_idle_ns, timeline.stream_idle_ns)
    idle = timeline.window_ns - timeline.busy_ns - (timeline.outside_ns or 0) - (timeline.unrecorded_ns or 0)
    other = None if None in kinds else idle - sum(kind or 0 for kind in kinds[1:])
    return replace(
        timeline,
        idle_ns=idle,
        other_idle_ns=other,
        causes=_causes([record.causes for record in records], idle),
        gaps=longest_gaps(replace(gap, count=gap.count / len(records)) for record in records for gap in record.gaps),
        kernel_time_ns=sum_of([record.kernel_time_ns for record in records]),
        launching=_launching([record.launching for record in records if record.launching]),
    )


def _causes(each: Sequence[Sequence[IdleRow]], idle_ns: int) -> tuple[IdleRow, ...]:
    """Return mean idle time by cause, named as on the rank with most of it; rounding goes to the longest."""
    rows: dict[IdleCause, list[IdleRow]] = {}
    for row in (row for causes in each for row in causes):
        rows.setdefault(row.cause, []).append(row)
    made = []
    for found in rows.values():
        # A part is 0 on the ranks without this cause, and unknown if one of the others does not know it.
        parts = {part: [getattr(row, part) for row in found] for part in PARTS_OF_IDLE}
        made.append(
            replace(
                max(found, key=lambda row: row.time_ns),
                time_ns=sum(row.time_ns for row in found) // len(each),
                **{part: None if None in times else sum(times) // len(each) for part, times in parts.items()},
            )
        )
    made.sort(key=lambda row: (-row.time_ns, row.cause))
    if made:
        made[0] = replace(made[0], time_ns=made[0].time_ns + idle_ns - sum(row.time_ns for row in made))
    return tuple(made)


def _launching(records: list[Launching]) -> Launching | None:
    from statistics import median

    if not records:
        return None
    summed = (
        "calls", "graph_calls", "call_ns", "synchronizing_calls", "synchronizing_ns", "delayed", "delay_ns", "kernels",
        "kernel_ns", "tiny_kernels", "tiny_kernel_ns", "lost_calls",
    )  # fmt: skip
    sums: Launching = merged(records, {sum_of: summed})
    delays = [record.median_delay_ns for record in records if record.median_delay_ns is not None]
    return replace(
        sums,
        median_delay_ns=int(median(delays)) if delays else None,
        longest_queue=max(record.longest_queue for record in records),
        tiny_below_ns=records[0].tiny_below_ns,
    )


def merge_figures(records: Sequence[DeviceFigures], times: Sequence[int]) -> DeviceFigures:
    """Return fractions weighted by step time, and occupancy weighted by the time of kernels with known occupancy."""

    def weighted(values: list[float | None], weights: Sequence[int]) -> float | None:
        known = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
        whole = sum(weight for _, weight in known)
        return sum(value * weight for value, weight in known) / whole if whole else None

    shares = (
        "mfu", "hfu", "mfu_covered", "causal_mfu", "causal_hfu", "own_peaks_mfu", "unmasked_share", "utilization",
        "sm_efficiency",
    )  # fmt: skip
    sums = ("dimensioned_ns", "tensor_core_ns", "tensor_core_unknown_ns", "unsure_ns")
    figures: DeviceFigures = merged(records, {(lambda values: weighted(values, times)): shares, sum_of: sums})
    return replace(
        figures,
        peak_flops_per_second=figures.peak_flops_per_second or {},
        occupancy=weighted(
            [record.occupancy for record in records], [record.dimensioned_ns or 0 for record in records]
        ),
    )


def spread_of(ranks: Sequence[Rank]) -> tuple[Spread, ...]:
    """Return the spread over ranks of each step figure that all ranks have, the step time first."""
    from statistics import median

    spreads = []
    for figure in FIGURES:
        known = [time for rank in ranks if (time := rank.per_step(figure)) is not None]
        if len(known) == len(ranks):
            longest = ranks[known.index(max(known))]
            spreads.append(
                Spread(
                    figure=figure,
                    min_ns=min(known),
                    median_ns=int(median(known)),
                    max_ns=max(known),
                    max_rank=longest.rank,
                    max_trace=longest.trace,
                )
            )
    return tuple(spreads)


def _mean_fraction(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _mean(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) // len(known) if known else None


# ----- checks and warnings of several ranks, and what is odd about the set


class _Group(Struct):
    """The checks of one quantity and source."""

    compared: int = 0
    equal: int = 0
    differences: OrderedUnion[Difference] = field(default_factory=OrderedUnion)
    #: The time of each difference, over the ranks that have it.
    times_ns: dict[Difference, int] = field(default_factory=dict)
    not_checked: OrderedUnion[str] = field(default_factory=OrderedUnion)


class ChecksMerger:
    """Merge the ranks' checks by quantity and source; equal differences of several ranks appear once."""

    def __init__(self) -> None:
        self._kinds: OrderedUnion[tuple[str, str, str]] = OrderedUnion()
        self._groups: dict[tuple[str, str, str], _Group] = {}

    def add(self, checks: Sequence[Check], order: Order) -> None:
        """Add the checks of one rank."""
        self._kinds.add([(check.quantity, check.source, check.unit) for check in checks], order)
        for check in checks:
            group = self._groups.setdefault((check.quantity, check.source, check.unit), _Group())
            group.compared += check.compared
            group.equal += check.equal
            alike = [replace(difference, time_ns=None) for difference in check.differences]
            group.differences.add(alike, order)
            for key, difference in zip(alike, check.differences, strict=True):
                if difference.time_ns is not None:
                    group.times_ns[key] = group.times_ns.get(key, 0) + difference.time_ns
            group.not_checked.add([check.not_checked] if check.not_checked else [], order)

    def checks(self) -> tuple[Check, ...]:
        """Return the checks of all ranks."""
        made = []
        for kind in self._kinds.items():
            (quantity, source, unit), group = kind, self._groups[kind]
            differences = [
                replace(difference, time_ns=group.times_ns.get(difference)) for difference in group.differences.items()
            ]
            made.append(
                Check(
                    quantity=quantity,
                    source=source,
                    unit=unit,
                    compared=group.compared,
                    equal=group.equal,
                    differences=tuple(differences),
                    not_checked="; ".join(group.not_checked.items()) or None,
                )
            )
        return tuple(made)


class WarningsMerger:
    """The warnings of the ranks, each once."""

    def __init__(self) -> None:
        self._texts: OrderedUnion[str] = OrderedUnion()
        self._who: dict[str, list[tuple[Order, Rank]]] = {}

    def add(self, warnings: Sequence[str], rank: Rank, order: Order) -> None:
        """Add the warnings of one rank."""
        self._texts.add(warnings, order)
        for text in warnings:
            self._who.setdefault(text, []).append((order, rank))

    def lines(self, count: int) -> list[str]:
        """Return each warning with its ranks, out of `count` ranks."""
        lines = []
        for text in self._texts.items():
            ranks = [rank for _, rank in sorted(self._who[text], key=lambda one: one[0])]
            names = numbers_in_short([rank.rank for rank in ranks if rank.rank is not None])
            names += [str(rank.trace) for rank in ranks if rank.rank is None]
            some = f"{'ranks' if len(ranks) > 1 else 'rank'} {', '.join(names)}"
            lines.append(f"{'all ranks' if len(ranks) == count else some}: {text}")
        return lines


def warnings_of_the_set(ranks: Sequence[Rank]) -> list[str]:
    """Return what is odd about the set of ranks."""
    files: dict[int, list[str]] = {}
    for rank in ranks:
        if rank.rank is not None:
            files.setdefault(rank.rank, []).append(rank.trace or "?")
    warnings = [
        f"rank {rank} has {len(names)} files, and the sums include all of them: {', '.join(names)}"
        for rank, names in files.items()
        if len(names) > 1
    ]
    steps = {rank.steps for rank in ranks}
    if len(steps) > 1:
        warnings.append(
            f"the ranks have {min(steps)} to {max(steps)} steps: sums give more weight to ranks with more steps"
        )
    return warnings


def missing_ranks(ranks: Sequence[Rank]) -> list[str]:
    """Name the ranks of the world without a trace, if all given traces say which they are."""
    worlds, numbers = {rank.world_size for rank in ranks}, {rank.rank for rank in ranks}
    world = worlds.pop() if len(worlds) == 1 else None
    if world is None or None in numbers or len(numbers) >= world:
        return []
    known = sorted(number for number in numbers if number is not None)
    missing: list[str] = []  # as short spans: a trace may claim a large world
    for before, after in zip((-1, *known), (*known, world), strict=True):
        missing += span_in_short(before + 1, after - 1)
    one = world - len(numbers) == 1
    return [
        f"{len(numbers)} of {world} ranks {'is' if len(numbers) == 1 else 'are'} present:"
        f" {'rank' if one else 'ranks'} {', '.join(missing)} {'is' if one else 'are'} missing"
    ]


# ----- whether several traces can be the ranks of one run
#
# Ranks have one world, different numbers, and were profiled at the same time. The clocks of two hosts differ: traces
# that name their place in one world may lie up to a minute apart, others as far apart as the longest of them lasts (or
# a second). Windows that overlap, however little, are never refused.


#: Maximum clock difference between two hosts, and the smallest gap that counts as evidence.
_SKEW_NS: Final = 60 * 10**9
_MIN_GAP_NS: Final = 10**9
_RANK: Final = regex(r"rank", re.IGNORECASE)


class Candidate(Struct, frozen=True, kw_only=True):
    """A trace that may be a rank; `stated` if the trace itself states its rank, not only its file name.

    `products` are its matrix products with their shapes, `content` is a digest of its anatomy's events.
    """

    rank: Rank
    stated: bool
    provenance: Provenance
    device: str | None
    model: str | None
    products: frozenset[tuple[str, str]]
    content: bytes

    @property
    def name(self) -> str:
        """Return the name of the trace in the report."""
        return self.rank.trace or "an unnamed trace"

    @property
    def called(self) -> str:
        """Return its number in words, or the name of its trace."""
        return self.name if self.rank.rank is None else f"rank {self.rank.rank}"


def why_no_ranks(candidates: Sequence[Candidate]) -> str | None:
    """Return a line that names two traces that cannot be ranks of one run, and why; `None` if all can."""
    for find in (_same_trace, _same_rank, _other_world, _other_time):
        pair = find(candidates)
        if pair is not None:
            first, second, why = pair
            compare = f"to compare them, use {as_asked('opanatomy compare', 'opanatomy.compare')}"
            todo = "leave one of them out" if find is _same_trace else compare
            return f"{first.name} and {second.name} are not ranks of one run - {why} - {todo}"
    return None


Finding = tuple[Candidate, Candidate, str]


def _same_trace(candidates: Sequence[Candidate]) -> Finding | None:
    """Find a file given twice, possibly under another name or compression: the two reports are identical."""
    seen: dict[Hashable, list[Candidate]] = {}
    for candidate in candidates:
        seen.setdefault(candidate.provenance.trace_sha256, []).append(candidate)
    for sha256, group in seen.items():
        if sha256 is not None and len(group) > 1:
            return group[0], group[1], f"they are the same file, sha256 {str(sha256)[:16]}"
    begun: dict[Hashable, Candidate] = {}
    for candidate in candidates:
        provenance = candidate.provenance
        first = begun.setdefault((provenance.begin_unix_ns, provenance.end_unix_ns, candidate.content), candidate)
        if first is not candidate:
            return first, candidate, "they are the same trace: every event of one is in the other"
    return None


def _same_rank(candidates: Sequence[Candidate]) -> Finding | None:
    """Find two traces of the same rank; a number after `gpu` or `worker` in a file name may repeat across nodes."""
    seen: dict[int, Candidate] = {}
    for candidate in candidates:
        if candidate.rank.rank is None or not (candidate.stated or _RANK.search(candidate.name)):
            continue
        first = seen.setdefault(candidate.rank.rank, candidate)
        if first is not candidate:
            world = candidate.rank.world_size or first.rank.world_size
            by_name = "" if candidate.stated and first.stated else ", judging by their file names"
            return first, candidate, f"both are rank {candidate.rank.rank}{f' of {world}' if world else ''}{by_name}"
    return None


def _other_world(candidates: Sequence[Candidate]) -> Finding | None:
    stated = [candidate for candidate in candidates if candidate.rank.world_size is not None]
    for candidate in stated[1:]:
        if candidate.rank.world_size != stated[0].rank.world_size:
            return (
                stated[0],
                candidate,
                f"the world size is {stated[0].rank.world_size} in the first, {candidate.rank.world_size} in the"
                " second",
            )
    return None


def _other_time(candidates: Sequence[Candidate]) -> Finding | None:
    """Find the two traces furthest apart in time, if further than clocks can differ."""
    spans = [
        (candidate.provenance.begin_unix_ns, candidate.provenance.end_unix_ns, candidate) for candidate in candidates
    ]
    timed = [(begin, end, candidate) for begin, end, candidate in spans if begin is not None and end is not None]
    if len(timed) < 2:
        return None
    _, end, first = min(timed, key=lambda span: span[1])
    begin, _, second = max(timed, key=lambda span: span[0])
    longest = max(end - begin for begin, end, _ in timed)
    placed = all(candidate.stated and candidate.rank.world_size is not None for candidate in (first, second))
    allowed = max(longest, _SKEW_NS if placed else _MIN_GAP_NS)
    gap = begin - end
    if gap <= allowed:
        return None
    return (
        first,
        second,
        # A little above the longest.
        f"the second started {gap / 1e9:,.1f} s after the first ended, but no trace lasts longer than"
        f" {longest / 1e9 + 0.001:,.3f} s",
    )


def unlike_warnings(candidates: Sequence[Candidate]) -> list[str]:
    """Return warnings about traces of another device or another model."""
    warnings = []
    for what, value in _COMPARED:
        named = [(candidate, value(candidate)) for candidate in candidates]
        first: dict[str, Candidate] = {}
        for candidate, text in named:
            if text is not None:
                first.setdefault(text, candidate)
        if len(first) > 1:
            listed = ", ".join(f"{text} ({candidate.name})" for text, candidate in list(first.items())[:4])
            warnings.append(f"the traces differ in {what}, so the sums mix {listed}")
    known = [candidate for candidate in candidates if candidate.products]
    for candidate in known[1:]:
        if not candidate.products & known[0].products:
            warnings.append(
                f"{known[0].name} and {candidate.name} share no matmul of the same shapes: different models or inputs?"
            )
            break
    return warnings


def model_of(anatomy: Anatomy) -> str | None:
    """Return what identifies the model."""
    workload = anatomy.workload
    name = workload.model or workload.architecture
    if name is None or workload.parameters is None:
        return name
    return f"{name} with {workload.parameters:,} parameters"


def products_of(anatomy: Anatomy) -> frozenset[tuple[str, str]]:
    """Return the matrix products with their shapes."""
    return frozenset(
        (row.operator, row.signature)
        for row in anatomy.operators
        if row.operator_class is OperatorClass.TENSOR_CONTRACTION and row.signature
    )


def content_of(anatomy: Anatomy) -> bytes:
    """Return a digest of the anatomy without the names of its file, so that copies of a trace have the same."""
    ranks = tuple(replace(rank, trace=None, trace_sha256=None) for rank in anatomy.ranks)
    bare = replace(anatomy, provenance=Provenance(opanatomy=""), ranks=ranks)
    return hashlib.sha256(msgspec.msgpack.encode(bare, enc_hook=_columns_of)).digest()


def _columns_of(value: object) -> Any:
    """Return a table's columns as bytes and their values; signatures as text."""
    if not isinstance(value, Table):
        return str(value)
    keys = [(name, key.values, key.codes.tobytes()) for name, key in value.keys.items()]
    return keys, [(name, figure.tobytes()) for name, figure in value.figures.items()]


_COMPARED: Final[tuple[tuple[str, Callable[[Candidate], str | None]], ...]] = (
    ("devices", lambda candidate: candidate.device),
    ("models", lambda candidate: candidate.model),
)


_NUMBERED: Final = regex(r"(?:rank|worker|gpu)[-_. ]?(\d+)", re.IGNORECASE)


# ----- one rank


def world_of(metadata: Mapping[str, object]) -> World:
    """Return the ranks that a trace's `distributedInfo` describes."""
    distributed = metadata.get("distributedInfo")
    size = _number(distributed, "world_size")
    return World(size if size else None, _number(distributed, "pg_count") == 1)


def with_rank(anatomy: Anatomy, metadata: Mapping[str, object]) -> Anatomy:
    """Return the anatomy of one trace with its rank, if the trace says which it is."""
    rank = _number(metadata.get("distributedInfo"), "rank")
    if rank is None:
        return anatomy
    return replace(anatomy, ranks=(_row(anatomy, rank, world_of(metadata).size),))


def _number(distributed: object, key: str) -> int | None:
    value = distributed.get(key) if isinstance(distributed, dict) else None
    if isinstance(value, str) and value.isdecimal() and len(value) < 14:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40 else None


def _row(anatomy: Anatomy, rank: int | None, world: int | None) -> Rank:
    step, timeline = anatomy.step, anatomy.timeline
    return Rank(
        rank=rank,
        world_size=world,
        trace=anatomy.provenance.trace,
        trace_sha256=anatomy.provenance.trace_sha256,
        device=anatomy.environment.device,
        steps=step.count,
        wall_ns=step.wall_ns,
        window_ns=timeline.window_ns,
        busy_ns=timeline.busy_ns,
        idle_ns=timeline.idle_ns,
        kernel_time_ns=anatomy.work_ns,
        communication_ns=timeline.communication_ns,
        exposed_communication_ns=timeline.exposed_communication_ns,
        exposed_memcpy_ns=timeline.exposed_memcpy_ns,
        host_bytes=_host_bytes(anatomy),
    )


def _host_bytes(anatomy: Anatomy) -> int | None:
    series = anatomy.run.series if anatomy.run is not None else None
    return (max(series.host_bytes, default=0) or None) if series is not None else None


# ----- all ranks together


class _Kept(Struct, frozen=True, kw_only=True):
    """Data kept of a rank, and the index of its trace as given."""

    order: Order
    candidate: Candidate
    step: Step
    timeline: Timeline
    device: DeviceFigures
    run: RunClock | None = None
    trends: RunTrends | None = None
    device_state: DeviceState | None = None
    spans: tuple[Span, ...] = ()


def _merge_trends(kept: Sequence[_Kept], waits: _Kept | None) -> RunTrends | None:
    """Return the trends of the shown rank, with the memory trend of the rank that grows most."""
    if waits is None or waits.trends is None:
        return None
    growth: dict[str, Growth] = {}
    for grown in (grown for one in kept if one.trends is not None for grown in one.trends.growth):
        if grown.kind not in growth or grown.bytes_per_step > growth[grown.kind].bytes_per_step:
            growth[grown.kind] = grown
    return replace(waits.trends, growth=tuple(growth.values()), samples_per_second=None)


class _Best(Struct):
    """The memory of the rank with the highest peak, the first of equals."""

    memory: Memory | None = None
    order: Order | None = None

    def add(self, memory: Memory, order: Order) -> None:
        best = 0 if self.memory is None else self.memory.peak_bytes or 0
        peak = memory.peak_bytes or 0
        if self.order is None or peak > best or (peak == best and order < self.order):
            self.memory, self.order = memory, order


class RankMerger:
    """Merge the anatomies of several ranks, added one at a time in any order.

    Classes, operators, kernels, modules and the ledger are sums over the ranks and balance as for one rank; the step
    and the timeline are means over the ranks.
    """

    def __init__(self) -> None:
        self._kept: list[_Kept] = []
        self._products: dict[frozenset[tuple[str, str]], frozenset[tuple[str, str]]] = {}
        self._environment: CommonFields[Environment] = CommonFields()
        self._workload: CommonFields[Workload] = CommonFields()
        self._batches: list[int | None] = []
        self._work = WorkSums()
        self._host = RowSums(HostRow, "kind", "name", "caller", "waits")
        self._chains = RowSums(ChainRow, "phase", "operator")
        self._theory: dict[OperatorClass, CommonFields[Ratio]] = {}
        self._ledger: Ledger | None = None
        self._memory = _Best()
        keys = ("collective", "dtype", "group_size", "group_assumed")
        self._collectives = RowSums(Collective, *keys, derived=("bus_bytes_per_second",))
        self._communication = CommunicationMerger()
        self._checks, self._caveats, self._warnings = ChecksMerger(), WarningsMerger(), WarningsMerger()
        self._conventions: dict[str, str | int] = {}
        self._situations: list[Situation] = []

    def indices(self) -> list[int]:
        """Return the indices of the added traces, in the order of the ranks."""
        return [kept.order[-1] for kept in sorted(self._kept, key=lambda kept: kept.order)]

    def add(self, anatomy: Anatomy, index: int) -> Rank:
        """Add one rank, whose trace is the `index`-th of those given, and return its row."""
        # If the trace does not say its rank, its file's name may.
        numbers = _NUMBERED.findall(anatomy.provenance.trace or "")
        if anatomy.ranks:
            rank = replace(anatomy.ranks[0], host_bytes=_host_bytes(anatomy))
        else:
            rank = _row(anatomy, int(numbers[-1]) if numbers else None, None)
        products = products_of(anatomy)
        candidate = Candidate(
            rank=rank,
            stated=bool(anatomy.ranks),
            provenance=anatomy.provenance,
            device=anatomy.environment.device,
            model=model_of(anatomy),
            products=self._products.setdefault(products, products),
            content=content_of(anatomy),
        )
        order = (rank.rank is None, rank.rank or 0, rank.trace or "", index)
        self._kept.append(
            _Kept(
                order=order,
                candidate=candidate,
                step=replace(anatomy.step, steps=()),
                timeline=replace(anatomy.timeline, devices=(), streams=()),
                device=anatomy.device,
                run=anatomy.run,
                trends=anatomy.trends,
                device_state=anatomy.device_state,
                spans=tuple(replace(span, rank=rank.rank) for span in anatomy.spans),
            )
        )
        self._host.add(anatomy.host, order)
        self._chains.add(anatomy.chains, order)
        self._communication.add(anatomy.communication, order)
        self._collectives.add(anatomy.collectives, order)
        ledgers = [ledger for ledger in (self._ledger, anatomy.ledger) if ledger is not None]
        self._ledger = merged(ledgers, {sum_of: Ledger.__struct_fields__})
        self._work.add(anatomy.work, anatomy.step_kinds, order, rank=rank.rank)
        self._environment.add(anatomy.environment)
        self._workload.add(anatomy.workload)
        self._batches.append(anatomy.workload.batch)
        for ratio in anatomy.ratios:
            self._theory.setdefault(ratio.operator_class, CommonFields()).add(ratio)
        self._memory.add(anatomy.memory, order)
        self._checks.add(anatomy.checks, order)
        self._caveats.add(anatomy.caveats, rank, order)
        self._warnings.add(anatomy.warnings, rank, order)
        self._conventions = self._conventions or anatomy.conventions
        self._situations.append(anatomy.situation or situation_of(anatomy))
        return rank

    def anatomy(self, *, name: str, warnings: Iterable[str] = (), caveats: Iterable[str] = ()) -> Anatomy:
        """Return the anatomy over all ranks, called `name`; raise `UsageError` if two cannot be ranks of one run."""
        if self._ledger is None or self._memory.memory is None:
            raise ValueError("no rank was added")
        given = [kept.candidate for kept in sorted(self._kept, key=lambda kept: kept.order[-1])]
        if (refusal := why_no_ranks(given)) is not None:
            raise UsageError(refusal)
        kept = sorted(self._kept, key=lambda kept: kept.order)
        candidates = [one.candidate for one in kept]
        ranks = tuple(candidate.rank for candidate in candidates)
        first = candidates[0].provenance
        workload = self._with_samples(self._workload.record())
        sizes = sorted({batch for batch in self._batches if batch is not None})
        work, kinds = self._work.sums()
        clocked = [one for one in kept if one.run is not None]
        waits = max(clocked, key=lambda one: 0.0 if one.run is None else one.run.input_share, default=None)
        together = Anatomy(
            provenance=Provenance(opanatomy=first.opanatomy, command=first.command, trace=name),
            environment=self._environment.record(),
            workload=workload,
            step=self._with_rate(merge_steps([one.step for one in kept]), workload),
            work=work,
            theory=tuple(  # as far as it is the same on all
                TheoryRow(operator_class=name, flops=each.value("theory_flops"), bytes=each.value("theory_bytes"))
                for name, each in self._theory.items()
            ),
            step_kinds=kinds,
            host=tuple(sorted(self._host.rows(), key=lambda row: (row.kind == "others", -row.self_ns, row.name))),
            chains=self._chains.rows(),
            situation=merge_situations(self._situations),
            spans=longest_of_ranks(span for one in kept for span in one.spans),
            memory=self._memory.memory,
            run=None if waits is None else waits.run,
            trends=_merge_trends(kept, waits),
            device_state=min(  # the lowest clock holds the others up
                (one.device_state for one in kept if one.device_state is not None),
                key=lambda state: state.clock_share or 1.0,
                default=None,
            ),
            timeline=merge_timelines([one.timeline for one in kept]),
            device=merge_figures(
                [one.device for one in kept], [(one.step.wall_ns or 0) * one.step.count for one in kept]
            ),
            ledger=self._ledger,
            conventions=self._conventions,
            collectives=collectives_together(self._collectives.rows()),
            communication=self._communication.communication(),
            ranks=ranks,
            spread=spread_of(ranks),
            checks=self._checks.checks(),
            caveats=(*caveats, *missing_ranks(ranks), *self._caveats.lines(len(ranks))),
            warnings=(
                *warnings,
                *unlike_warnings(candidates),
                *([f"batch sizes differ between ranks: {sizes[0]} to {sizes[-1]} samples"] if len(sizes) > 1 else ()),
                *warnings_of_the_set(ranks),
                *self._warnings.lines(len(ranks)),
            ),
        )
        check_conservation(together)
        return together

    def _with_samples(self, workload: Workload) -> Workload:
        """Return the workload with the samples of all ranks, if each has its own and all are here."""
        whole = len(self._batches) == workload.world_size and workload.parallel in DATA_PARALLEL
        if workload.samples_together is not None or not whole or None in self._batches:
            return workload
        return replace(workload, samples_together=sum(batch or 0 for batch in self._batches))

    def _with_rate(self, step: Step, workload: Workload) -> Step:
        """Return the step with the samples of all ranks a second; batches that differ have no mean."""
        wall_ns, samples = step.unprofiled_wall_ns or step.wall_ns, workload.samples_together
        if samples is not None and wall_ns:
            return replace(step, samples_per_second=samples * 1e9 / wall_ns)
        return step if len(set(self._batches)) == 1 else replace(step, samples_per_second=None)
