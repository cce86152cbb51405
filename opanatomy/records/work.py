"""The work of the steps as one table, and the tables that are derived from it.

A row of the work is an operator with a signature, in a module, phase and class, run by a kernel, in steps of one kind.
Its numbers are sums, so that every derived table has the same totals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import numpy as np
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from opanatomy.records.codec import Record
from opanatomy.records.columns import Categorical, Int64
from opanatomy.records.lanes import SPAN_COLUMNS, SpanTable
from opanatomy.records.signature import NO_SIGNATURE, SignatureText
from opanatomy.records.table import NOT_KNOWN, Column, Table, concatenated, empty, table_of, table_of_columns
from opanatomy.records.taxonomy import CLASS_CODE, PHASE_CODE, OperatorClass, Phase

# ----- the columns of the work


def _key(
    name: str, meaning: str, text: str = "own", values: Callable[[Any], Any] = str, known_with: tuple[str, ...] = ()
) -> Column:
    return Column(name=name, meaning=meaning, text=text, values=values, known_with=known_with)


def _figure(name: str, unit: str, meaning: str, *known_with: str) -> Column:
    return Column(name=name, unit=unit, meaning=meaning, known_with=known_with)


#: Columns of the work. Figures cover the counted steps, `like_...` cover like steps, some of which may not count; in a
#: row outside either, its figures are unknown.
COLUMNS: Final = (
    _key("operator", "the operator that launched the work; none if unknown", "name"),
    _key("signature", "shapes and data types of the operator's arguments, as text", "arguments", SignatureText),
    _key("phase", "the phase of the step", values=Phase, known_with=("calls", "like_events")),
    _key(
        "operator_class",
        "the class of the call, or of the kernel if the call is unknown",
        values=OperatorClass,
        known_with=("phase",),
    ),
    _key("rule", "the classification rule that determined the class"),
    _key("part_of", "the enclosing operator, which accounts for this call's FLOPs and bytes", "name"),
    _key(
        "compute_type",
        "the type in which float32 operands were computed, from the longest-running kernel whose name shows it",
    ),
    _key("crosses_host_link", "whether the call copies between host and device", values=bool),
    _key("bound_by", "what determines the bound: compute or memory"),
    _key("module", "the path of the module, without submodules; empty for the root", "module"),
    _key("module_kind", "the name of the module's class", "name"),
    _key("kernel", "the kernel, copy or fill; none on the CPU or if the call launched nothing itself", "name"),
    _key("kernel_class", "the class according to the kernel's name only", values=OperatorClass, known_with=("kernel",)),
    _key("kernel_rule", "the rule that determined the kernel's class"),
    _key("stack", "the lines of user code that the work comes from, outermost first", "name"),
    _key("step_kind", "the index of the step's kind in `step_kinds`", values=int),
    _key("only", "the only table that includes the row; set in reports read from schema 1 or 2"),
    _figure("calls", "calls", "calls of the operator, parts of calls included, in the row of each call's first kernel"),
    _figure("events", "events", "kernels, copies and fills", "calls"),
    _figure("time_ns", "ns", "time of device work; on the CPU self time", "calls"),
    _figure("uncosted_ns", "ns", "the part of `time_ns` in calls whose cost is unknown", "calls"),
    _figure("flops", "flop", "FLOPs of calls whose cost is known, in the row of each call's first kernel"),
    _figure("read_bytes", "bytes", "minimum bytes read by calls whose cost is known"),
    _figure("written_bytes", "bytes", "minimum bytes written by calls whose cost is known"),
    _figure("causal_flops", "flop", "FLOPs of causal attention, excluding the masked part"),
    _figure("normalization_flops", "flop", "FLOPs of the softmax in fused attention"),
    _figure("bound_ns", "ns", "minimum time of the calls at the device's peaks"),
    _figure("dimensioned_ns", "ns", "time of kernels whose block counts are recorded"),
    _figure(
        "milliblock_ns",
        "ns",
        "1000 x blocks per multiprocessor x time, for kernels whose block counts are recorded",
        "dimensioned_ns",
    ),
    _figure("like_calls", "calls", "calls that launched the row's work in similar steps", "like_ns"),
    _figure("like_events", "events", "device events in similar steps", "like_calls", "like_ns"),
    _figure("like_ns", "ns", "time in similar steps, each event clipped to its step", "like_events"),
)
KEYS: Final[Mapping[str, Column]] = {column.name: column for column in COLUMNS if not column.unit}
FIGURES: Final = tuple(column.name for column in COLUMNS if column.unit)
NO_WORK: Final = empty(Table, COLUMNS)
#: The columns of each kind of table in a report.
COLUMNS_OF: Final[Mapping[type[Table], tuple[Column, ...]]] = {Table: COLUMNS, SpanTable: SPAN_COLUMNS}


def plain(value: object) -> Any:
    """Return the plain form of a value unknown to `msgspec`: a table, a signature text."""
    return value.plain() if isinstance(value, Table) else str(value)


def typed(kind: Any, value: Any) -> Any:
    """Convert a plain form to this type; raise `ValueError` or `TypeError` if it does not match.

    Columns added by other versions are dropped, and missing ones are none or unknown. Rows that were read from schema 1
    or 2 have only the columns of their table.
    """
    if kind not in COLUMNS_OF:
        return kind(value)
    columns = COLUMNS_OF[kind]
    read = table_of(value, {column.name: column.values for column in columns if not column.unit})
    table = concatenated((empty(kind, columns), read))
    keys = {column.name: table.keys[column.name] for column in columns if not column.unit}
    table = kind(keys, {column.name: table.figures[column.name] for column in columns if column.unit})
    whole = keys["only"].codes < 0 if "only" in keys else True
    for column in columns:
        for other in column.known_with:
            rows = np.flatnonzero(table.known(other) & ~table.known(column.name) & whole)
            if len(rows):
                raise ValueError(f"row {rows[0]} has {other} but no {column.name}")
    return table


# ----- the rows of the tables that are made of it


#: Values of `bound_by` of an operator.
COMPUTE, MEMORY = "compute", "memory"
#: Phases of a backward, including recomputation.
BACKWARD: Final = (Phase.BACKWARD, Phase.RECOMPUTE)


class ClassRow(Record, frozen=True, kw_only=True):
    """One operator class in one phase, over all counted steps; FLOPs and bytes cover the calls whose cost is known.

    `uncosted_ns` is the time of the calls without a formula; `flops` is `None` if no call has one. If the device's
    peaks are known, `bound_ns` is the least time that the calls need, `bounded_ns` the measured time of the calls with
    a known bound, `headroom_ns` the sum over operators of the measured time beyond the bound, and `memory_bound_ns` the
    part of `bound_ns` determined by the bandwidth.

    operator_class: `tensor_contraction`, `statistical_normalization`, `elementwise`, `data_movement`, `communication`,
        `other` or `unknown`.
    phase: `forward`, `backward`, `recompute`, `optimizer`, `prefill`, `decoding` or `other`.
    calls: the number of operator calls.
    kernels: the number of kernels, copies and fills that they launched.
    time_ns: the time of their device work; on the CPU their self time.
    read_bytes: minimum bytes read, each distinct input once; `written_bytes` each output once.
    """

    operator_class: OperatorClass
    phase: Phase
    calls: int
    kernels: int
    time_ns: int
    flops: int | None
    read_bytes: int | None
    written_bytes: int | None
    uncosted_ns: int = 0
    bound_ns: int | None = None
    bounded_ns: int = 0
    headroom_ns: int | None = None
    memory_bound_ns: int | None = None


class Ratio(Record, frozen=True, kw_only=True):
    """Backward (recompute included) over forward of one class.

    A ratio is `None` if a part of either is unknown, or the forward is less than 1 % of the backward. `theory_*` is the
    ratio expected for the kinds of operators in the class, `None` if theory gives no single number.

    operator_class: the class.
    time: ratio of time; `flops` and `bytes` are ratios of FLOPs and minimum bytes, `theory_flops` and `theory_bytes`
        the theoretical ones.
    """

    operator_class: OperatorClass
    time: float | None
    flops: float | None
    bytes: float | None
    theory_flops: float | None = None
    theory_bytes: float | None = None


class TheoryRow(Record, frozen=True, kw_only=True):
    """The theoretical ratio of backward to forward for one class, in FLOPs and bytes; `None` if not a single number."""

    operator_class: OperatorClass
    flops: float | None = None
    bytes: float | None = None


class OperatorRow(Record, frozen=True, kw_only=True):
    """One operator with one signature in one phase, over all counted steps.

    `uncosted_ns` is the time of the calls whose cost is unknown; FLOPs, bytes and the bound cover the other calls.

    operator: the operator's name.
    signature: shapes and data types of its arguments, as text.
    operator_class: the class, determined by `rule`, a classification rule.
    calls: the number of calls.
    time_ns: the time of the device work of these calls; on the CPU their self time.
    flops: FLOPs of the calls whose cost is known; `read_bytes`, `written_bytes` are the minimum that they move.
    causal_flops: FLOPs of causal attention, excluding the masked part.
    normalization_flops: FLOPs of the softmax in fused attention.
    part_of: the enclosing operator, which accounts for this call's FLOPs and bytes.
    bound_ns: the minimum time of these calls at the device's peaks, and `bound_by` what determines it ("compute",
        "memory").
    compute_type: the type in which float32 operands were computed, from the longest-running kernel whose name shows it:
        "float32", "tf32", "3 x tf32".
    crosses_host_link: true if the call copies between host and device; the device's bandwidth does not bound it then.
    """

    operator: str
    signature: SignatureText
    phase: Phase
    operator_class: OperatorClass
    rule: str
    calls: int
    time_ns: int
    flops: int | None
    read_bytes: int | None
    written_bytes: int | None
    causal_flops: int | None = None
    normalization_flops: int | None = None
    part_of: str | None = None
    bound_ns: int | None = None
    bound_by: str | None = None
    uncosted_ns: int = 0
    compute_type: str | None = None
    crosses_host_link: bool = False

    @property
    def bounded_ns(self) -> int:
        """Return the time of the calls that `bound_ns` bounds."""
        return 0 if self.bound_ns is None else self.time_ns - self.uncosted_ns


class KernelRow(Record, frozen=True, kw_only=True):
    """One kernel name: how often it ran, its total time, and the operators that launched it.

    kernel: the name.
    operator_class: the class according to its name only, and the `rule` that determined it.
    count: how often it ran.
    time_ns: its total time.
    operators: the operators that launched it.
    blocks_per_sm: its blocks per multiprocessor, the mean weighted by time; `None` if they are not recorded.
    """

    kernel: str
    operator_class: OperatorClass
    rule: str
    count: int
    time_ns: int
    operators: tuple[str, ...]
    blocks_per_sm: float | None = None


class ModuleRow(Record, frozen=True, kw_only=True):
    """Work of one module (without submodules) in one phase and class; `module` is `""` for the root.

    module: the path of the module.
    kind: the name of the module's class.
    phase: the phase, and `operator_class` the operator class.
    time_ns: the time of device work; on the CPU self time.
    flops: FLOPs of the calls whose cost is known; `read_bytes`, `written_bytes` are the minimum that they move;
        `uncosted_ns` is the time of the other calls.
    """

    module: str
    kind: str | None
    phase: Phase
    operator_class: OperatorClass
    time_ns: int
    flops: int | None
    read_bytes: int | None
    written_bytes: int | None
    uncosted_ns: int = 0


class LineRow(Record, frozen=True, kw_only=True):
    """Work that comes from one stack of user code lines, in one phase and class.

    stack: the lines, outermost first: `train.py:31 main;model.py:12 forward`; a backward has the line of its forward.
        It is `""` for work whose line is unknown.
    phase: the phase, and `operator_class` the operator class.
    calls: the number of operator calls, parts of calls included; `kernels` is the number of kernels, copies and fills.
    time_ns: the time of device work; on the CPU self time.
    flops: FLOPs of the calls whose cost is known; `read_bytes`, `written_bytes` are the minimum that they move;
        `uncosted_ns` is the time of the other calls.
    """

    stack: str
    phase: Phase
    operator_class: OperatorClass
    calls: int
    kernels: int
    time_ns: int
    flops: int | None
    read_bytes: int | None
    written_bytes: int | None
    uncosted_ns: int = 0


# The breakdown of like steps, from which two runs are compared.
#
# Names of operators, signatures, modules and kernels are indices into the lists of the `Breakdown`; -1 is "none".


class WorkRow(Struct, frozen=True, array_like=True):
    """Work of one operator with one signature in one module and phase, by one kernel, over the counted steps.

    `time_ns` is the sum of its device events, each clipped to its step; on the CPU the self time of its calls. `calls`
    counts calls of the operator if it is known, else device events; `events` counts device events.
    """

    operator: int
    signature: int
    module: int
    phase: Phase
    operator_class: OperatorClass
    kernel: int
    calls: int
    events: int
    time_ns: int


class Overlap(Record, frozen=True, kw_only=True):
    """Time in which two kinds of work ("compute", "communication", "copy") ran at once, counted twice in their sum.

    If several run at once, each one after the first counts as one overlap.
    """

    first: str
    second: str
    time_ns: int


class LikeStep(Record, frozen=True, kw_only=True):
    """One step of one device (on the CPU, of the process).

    `set_aside` says why the step is excluded from the similar steps, `left_out` why it is excluded from the report's
    numbers. `phase_ns` is that of `StepRow`.
    """

    number: int | None
    wall_ns: int
    idle_ns: int
    exposed_communication_ns: int | None = None
    phase_ns: dict[Phase, int] = field(default_factory=dict)
    device: int | None = None
    rank: int | None = None
    #: Index of the run among several that are compared together.
    run: int | None = None
    set_aside: str | None = None
    left_out: str | None = None


class StepKind(Record, frozen=True, kw_only=True):
    """Steps that made the same calls. All times are sums over the `count` of them that are not set aside.

    On an accelerator wall = outside + unrecorded + idle (host, stream, other) + the rows' times - overlaps, on the CPU
    wall = framework + the rows' times - overlaps (of threads), both exactly.
    """

    steps: Annotated[tuple[LikeStep, ...], Meta(min_length=1)]
    count: int
    wall_ns: int
    overlaps: tuple[Overlap, ...] = ()
    outside_ns: int = 0
    unrecorded_ns: int = 0
    host_idle_ns: int = 0
    stream_idle_ns: int = 0
    other_idle_ns: int = 0
    framework_ns: int = 0

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return the distinct step numbers, excluding unnumbered steps."""
        return _numbers(self.steps)

    @property
    def counted(self) -> tuple[int, ...]:
        """Return the numbers of the steps that are not set aside on any device, rank or run."""
        return _numbers(tuple(step for step in self.steps if step.set_aside is None))


def _numbers(steps: tuple[LikeStep, ...]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(step.number for step in steps if step.number is not None))


#: What is no work in the time of the steps of a kind.
_BESIDE_WORK: Final = (
    "outside_ns",
    "unrecorded_ns",
    "host_idle_ns",
    "stream_idle_ns",
    "other_idle_ns",
    "framework_ns",
)


class StepWork(StepKind, frozen=True, kw_only=True):
    """Steps that made the same calls, with the work of those that are not set aside."""

    rows: tuple[WorkRow, ...]

    @property
    def kind(self) -> StepKind:
        """Return the steps without the work."""
        return StepKind(**{name: getattr(self, name) for name in StepKind.__struct_fields__})


class Breakdown(Record, frozen=True, kw_only=True):
    """The steps of a run by kind, the kind with the most counted steps first."""

    operators: tuple[str, ...]
    signatures: tuple[SignatureText, ...]
    modules: tuple[str, ...]
    kernels: tuple[str, ...]
    kinds: tuple[StepWork, ...]


# ----- questions to the work


def _rows_in(work: Table, table: str) -> Int64:
    """Return the rows of the counted steps that this table derives from."""
    only = work.keys["only"]
    rows: Int64 = np.flatnonzero((work.figures["calls"] != NOT_KNOWN) & ((only.codes < 0) | only.equals(table)))
    return rows


def _rows_of(work: Table, table: str, *keys: str) -> Iterator[dict[str, Any]]:
    """Yield the sums by these keys of the rows that this table is made of."""
    return work.where(_rows_in(work, table)).by(*keys).rows()


def _record(record: type[Record], row: Mapping[str, Any], **others: Any) -> Any:
    """Build a record from the matching values of a row, and these further values."""
    return record(**{name: row[name] for name in record.__struct_fields__ if name in row} | others)


#: Keys of an operator row, which has one bound.
_OF_OPERATORS: Final = (
    "operator",
    "signature",
    "phase",
    "operator_class",
    "rule",
    "part_of",
    "compute_type",
    "crosses_host_link",
)


def operator_rows(work: Table) -> tuple[OperatorRow, ...]:
    """Return one row per operator, signature and phase, longest first; work without an operator has none."""
    rows = [
        _record(OperatorRow, row, signature=row["signature"] or NO_SIGNATURE, rule=row["rule"] or "")
        for row in _rows_of(work, "operators", *_OF_OPERATORS, "bound_by")
        if row["operator"] is not None
    ]

    def order(row: OperatorRow) -> tuple[Any, ...]:
        parts = row.part_of or "", row.compute_type or ""
        return -row.time_ns, row.operator, row.signature, row.phase, row.rule, row.crosses_host_link, *parts

    return tuple(sorted(rows, key=order))


def class_rows(work: Table, operators: Sequence[OperatorRow]) -> tuple[ClassRow, ...]:
    """Return one row per class and phase, in the order of the enumerations, with the bounds of the operators in it."""
    # A part of a call is no call of its own.
    is_call = (work.keys["part_of"].codes < 0) | (work.figures["calls"] == NOT_KNOWN)
    work = work.with_columns({}, {"calls": np.where(is_call, work.figures["calls"], 0)})
    bounded: dict[tuple[OperatorClass, Phase], list[OperatorRow]] = {}
    for operator in operators:
        if operator.bound_ns is not None:
            bounded.setdefault((operator.operator_class, operator.phase), []).append(operator)
    rows = []
    for sums in _rows_of(work, "classes", "operator_class", "phase"):
        row = _record(ClassRow, sums, kernels=sums["events"], bound_ns=None)
        own = bounded.get((row.operator_class, row.phase), ())
        if own:
            row = replace(
                row,
                bound_ns=sum(operator.bound_ns or 0 for operator in own),
                bounded_ns=sum(operator.bounded_ns for operator in own),
                headroom_ns=headroom_ns(own),
                memory_bound_ns=sum(operator.bound_ns or 0 for operator in own if operator.bound_by == MEMORY),
            )
        rows.append(row)
    return tuple(sorted(rows, key=lambda row: (CLASS_CODE[row.operator_class], PHASE_CODE[row.phase])))


def with_bounds(work: Table, operators: Iterable[OperatorRow]) -> Table:
    """Return the work with its operators' bounds, each divided among the rows with its calls."""
    bounds = {tuple(getattr(row, name) or None for name in _OF_OPERATORS): row for row in operators}
    ns, by = np.full(len(work), NOT_KNOWN), np.full(len(work), -1)
    rows = _rows_in(work, "operators")
    for key, chosen in work.where(rows).parts(*_OF_OPERATORS):
        row = bounds.get(tuple(value or None for value in key))
        if row is not None and row.bound_ns is not None:
            indices = rows[chosen]
            by[indices] = -1 if row.bound_by is None else (COMPUTE, MEMORY).index(row.bound_by)
            done = np.cumsum(work.figures["calls"][indices]).tolist()
            upto = [row.bound_ns * calls // max(done[-1], 1) for calls in done[:-1]] + [row.bound_ns]
            ns[indices] = np.diff(upto, prepend=0)
    return work.with_columns({"bound_by": Categorical(by, (COMPUTE, MEMORY))}, {"bound_ns": ns})


def headroom_ns(rows: Iterable[OperatorRow]) -> int:
    """Return the time above the bounds, summed over operators; `rows` are from one class and phase.

    An operator that caches made faster than its bound counts as 0, not less.
    """
    spare: Counter[str] = Counter()
    for row in rows:
        if row.bound_ns is not None:
            spare[row.part_of or row.operator] += row.bounded_ns - row.bound_ns
    return sum(max(ns, 0) for ns in spare.values())


def module_rows(work: Table) -> tuple[ModuleRow, ...]:
    """Return one row per module, phase and class, in module order.

    Work outside known modules is omitted.
    """
    order = {path: index for index, path in enumerate(work.keys["module"].values)}
    keys = ("module", "module_kind", "phase", "operator_class")
    rows = [
        _record(ModuleRow, row, kind=row["module_kind"])
        for row in _rows_of(work, "modules", *keys)
        if row["module"] is not None
    ]
    return tuple(
        sorted(rows, key=lambda row: (order[row.module], PHASE_CODE[row.phase], CLASS_CODE[row.operator_class]))
    )


def line_rows(work: Table) -> tuple[LineRow, ...]:
    """Return one row per line stack, phase and class, longest first; empty if no line is known."""
    if not work.keys["stack"].values:
        return ()
    rows = [
        _record(LineRow, row, stack=row["stack"] or "", kernels=row["events"])
        for row in _rows_of(work, "lines", "stack", "phase", "operator_class")
    ]
    return tuple(sorted(rows, key=lambda row: (-row.time_ns, row.stack, row.phase, row.operator_class)))


def kernel_rows(work: Table) -> tuple[KernelRow, ...]:
    """Return one row per kernel name and class, longest first."""
    keys = ("kernel", "kernel_class", "kernel_rule")
    operators: dict[tuple[Any, ...], set[str]] = {}
    for row in _rows_of(work, "kernels", *keys, "operator"):
        operators.setdefault(tuple(row[key] for key in keys), set()).update({row["operator"]} - {None})
    rows = []
    for row in _rows_of(work, "kernels", *keys):
        if row["kernel"] is not None:
            made = KernelRow(
                kernel=row["kernel"],
                operator_class=row["kernel_class"],
                rule=row["kernel_rule"] or "",
                count=row["events"],
                time_ns=row["time_ns"],
                operators=tuple(sorted(operators[tuple(row[key] for key in keys)])),
                blocks_per_sm=row["milliblock_ns"] / 1000 / row["dimensioned_ns"] if row["dimensioned_ns"] else None,
            )
            rows.append(made)
    return tuple(sorted(rows, key=lambda row: (-row.time_ns, row.kernel)))


#: A forward below this fraction of its backward is negligible; no ratio exceeds the inverse.
_NEXT_TO_NOTHING: Final = 0.01


def ratios_of(classes: Iterable[ClassRow], theory: Iterable[TheoryRow]) -> tuple[Ratio, ...]:
    """Return one row per class that has work in forward and in backward (recompute counts as backward).

    A ratio covers all work of a class or is unknown: one call without a formula makes the FLOPs and bytes ratios
    `None`. A negligible forward has no ratio: it would only show that the work is in backward, not how the two compare.
    """
    expected = {row.operator_class: row for row in theory}
    rows = tuple(classes)
    ratios = []
    for name in OperatorClass:
        forward = [row for row in rows if row.operator_class is name and row.phase is Phase.FORWARD]
        backward = [row for row in rows if row.operator_class is name and row.phase in BACKWARD]
        if forward and backward:
            known = expected.get(name, TheoryRow(operator_class=name))
            made = Ratio(
                operator_class=name,
                time=_over(sum(row.time_ns for row in backward), sum(row.time_ns for row in forward)),
                flops=_over(_costed(backward, "flops"), _costed(forward, "flops")),
                bytes=_over(_moved(backward), _moved(forward)),
                theory_flops=known.flops,
                theory_bytes=known.bytes,
            )
            ratios.append(made)
    return tuple(ratios)


def _costed(rows: Sequence[ClassRow], name: str) -> int | None:
    """Return the sum of a cost; `None` if part of the time has unknown cost."""
    values = [getattr(row, name) for row in rows]
    return None if None in values or any(row.uncosted_ns for row in rows) else sum(values)


def _moved(rows: Sequence[ClassRow]) -> int | None:
    read, written = _costed(rows, "read_bytes"), _costed(rows, "written_bytes")
    return None if read is None or written is None else read + written


def _over(backward: int | None, forward: int | None) -> float | None:
    if backward is None or not forward or forward < _NEXT_TO_NOTHING * backward:
        return None
    return backward / forward


def breakdown_of(work: Table, kinds: Sequence[StepKind]) -> Breakdown:
    """Return the work of similar steps by operator, with the sums for each kind of steps.

    On the CPU a part of another call has that call's name and class.
    """
    kind, on_device = work.keys["step_kind"], bool(work.keys["kernel"].values)
    liked, part_of = work.figures["like_events"] != NOT_KNOWN, () if on_device else ("part_of",)
    names: tuple[dict[Any, int], ...] = ({}, {}, {}, {})

    def number(known: dict[Any, int], text: Any) -> int:
        return -1 if text is None else known.setdefault(text, len(known))

    made = []
    for index, step_kind in enumerate(kinds):
        rows = []
        keys = ("operator", *part_of, "signature", "module", "kernel", "phase", "operator_class")
        for row in work.where(liked & kind.equals(index)).by(*keys).rows():
            name, owner = row["operator"], row.get("part_of")
            texts = (
                name if owner is None else f"{name} in {owner}",
                row["signature"] or NO_SIGNATURE,
                row["module"],
                row["kernel"],
            )
            operator, signature, module, kernel = (
                number(known, text) for known, text in zip(names, texts, strict=True)
            )
            sums = row["like_calls"], row["like_events"], row["like_ns"]
            rows.append(WorkRow(operator, signature, module, row["phase"], row["operator_class"], kernel, *sums))
        steps = {name: getattr(step_kind, name) for name in step_kind.__struct_fields__}
        made.append(StepWork(**steps, rows=tuple(rows)))
    operators, signatures, modules, kernels = map(tuple, names)
    return Breakdown(operators=operators, signatures=signatures, modules=modules, kernels=kernels, kinds=tuple(made))


def check_steps(work: Table, kinds: Sequence[StepKind]) -> None:
    """Raise `ValueError` unless the time of each kind of steps is the sum of its parts."""
    for index, kind in enumerate(kinds):
        rows = work.known("like_ns") & work.keys["step_kind"].equals(index)
        parts = sum(work.figures["like_ns"][rows].tolist()) - sum(overlap.time_ns for overlap in kind.overlaps)
        parts += sum(getattr(kind, name) for name in _BESIDE_WORK)
        if parts != kind.wall_ns:
            raise ValueError(f"`step_kinds[{index}].wall_ns` is {kind.wall_ns}, but its parts sum to {parts}")


# ----- tables as work: those of reports of schema 1 and 2, which kept each by itself


def work_of_tables(
    *,
    classes: Iterable[ClassRow] = (),
    operators: Iterable[OperatorRow] = (),
    kernels: Iterable[KernelRow] = (),
    modules: Iterable[ModuleRow] = (),
    breakdown: Breakdown | None = None,
) -> Table:
    """Return a work table from which these tables derive, each from rows of its own."""
    rows = [_plain_row(row, "classes") | {"events": row.kernels, "bound_ns": None} for row in classes]
    rows += [_plain_row(row, "operators") for row in operators]
    rows += [_plain_row(row, "modules") | {"module_kind": row.kind, "calls": 0} for row in modules]
    for kernel in kernels:
        known = None if kernel.blocks_per_sm is None else max(kernel.time_ns, 1)
        rest = {
            "only": "kernels",
            "kernel": kernel.kernel,
            "kernel_class": kernel.operator_class,
            "kernel_rule": kernel.rule,
            "calls": 0,
            "events": 0,
            "time_ns": 0,
        }
        first = {
            "events": kernel.count,
            "time_ns": kernel.time_ns,
            "dimensioned_ns": known,
            "milliblock_ns": known and round(1000 * (kernel.blocks_per_sm or 0) * known),
        }
        rows.append(rest | first)
        rows += [rest | {"operator": operator} for operator in kernel.operators]
    if breakdown is not None:
        texts = {
            "operator": breakdown.operators,
            "signature": breakdown.signatures,
            "module": breakdown.modules,
            "kernel": breakdown.kernels,
        }
        for index, kind in enumerate(breakdown.kinds):
            for like in kind.rows:
                indices = {name: getattr(like, name) for name in texts}
                named = {name: texts[name][index] for name, index in indices.items() if index >= 0}
                sums = {
                    "only": "breakdown",
                    "step_kind": index,
                    "phase": like.phase,
                    "operator_class": like.operator_class,
                    "like_calls": like.calls,
                    "like_events": like.events,
                    "like_ns": like.time_ns,
                }
                rows.append(named | sums)
    keys, figures = ({name: [row.get(name) for row in rows] for name in names} for names in (KEYS, FIGURES))
    return table_of_columns(keys, figures)


def _plain_row(row: ClassRow | OperatorRow | ModuleRow, only: str) -> dict[str, Any]:
    names = {*row.__struct_fields__} & {*KEYS, *FIGURES}
    return {name: getattr(row, name) for name in names} | {"only": only}
