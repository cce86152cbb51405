"""Report a comparison: the change in a sentence, what was compared, where the difference comes from, the figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.records.comparison import (
    SIGNIFICANT,
    Cause,
    Comparison,
    Decomposition,
    FigureRow,
    MemoryChange,
    Part,
    Sample,
    Side,
    Work,
)
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report.section import (
    SHORT_LABEL,
    Bytes,
    BytesChange,
    Cell,
    Change,
    Column,
    ColumnKind,
    Columns,
    Count,
    Fact,
    Figure,
    Flops,
    Name,
    Note,
    NoteKind,
    Page,
    Phrase,
    Quantity,
    Row,
    Section,
    Share,
    Time,
    TimeChange,
    cells_of,
    joined,
    phrase,
)
from opanatomy.report.units import duration

# The parts of a difference in words: grouped by cause and class, named, in sentences.


_CAUSE_NAMES: Final = {
    Cause.SAME_CALLS: "the same calls", Cause.MORE_CALLS: "more calls", Cause.FEWER_CALLS: "fewer calls",
    Cause.MOVED: "moved", Cause.ANOTHER_SIGNATURE: "other arguments", Cause.ANOTHER_KERNEL: "another kernel",
    Cause.ANOTHER_OPERATOR: "another operator", Cause.NEW: "new", Cause.GONE: "gone",
    Cause.HOST_IDLE: "idle, host-bound", Cause.STREAM_IDLE: "idle, stream waits", Cause.OTHER_IDLE: "idle, other",
    Cause.OUTSIDE: "work of other steps", Cause.UNRECORDED: "not recorded",
    Cause.FRAMEWORK: "framework", Cause.PROFILER: "profiler",
}  # fmt: skip
#: The host's name for every collective.
_COLLECTIVE: Final = "record_param_comms"
#: A namespace of C++ whose brackets are not parameters.
_ANONYMOUS: Final = "(anonymous namespace)::"
#: A sentence names this many operators of a group.
_MAX_NAMED_OPERATORS: Final = 2


class Group(Struct, frozen=True, kw_only=True):
    """Parts with the same cause and class, largest change first."""

    name: str
    cause: Cause
    operator_class: OperatorClass | None
    parts: tuple[Part, ...]

    @property
    def before_ns(self) -> int:
        """Return their time before."""
        return sum(part.before_ns for part in self.parts)

    @property
    def after_ns(self) -> int:
        """Return their time after."""
        return sum(part.after_ns for part in self.parts)

    @property
    def change_ns(self) -> int:
        """Return their contribution to the difference."""
        return self.after_ns - self.before_ns


def groups_of(parts: Iterable[Part]) -> list[Group]:
    """Group parts by cause and class, moved work also by its origin and target; the largest change first."""
    groups: dict[tuple[Cause, str], list[Part]] = {}
    for part in parts:
        groups.setdefault((part.cause, _name(part)), []).append(part)
    made = [
        Group(name=name, cause=cause, operator_class=members[0].operator_class, parts=tuple(members))
        for (cause, name), members in groups.items()
    ]
    return sorted(made, key=lambda group: (-abs(group.change_ns), group.name))


def named(cause: Cause) -> str:
    """Return a cause in words."""
    return _CAUSE_NAMES[cause]


def _name(part: Part) -> str:
    if part.pair is not None:
        first, second = part.pair
        return f"overlap of {first}" if first == second else f"overlap of {first} and {second}"
    if part.operator_class is None:
        return _CAUSE_NAMES[part.cause]
    what = _CAUSE_NAMES[part.cause]
    if part.cause is Cause.MOVED:
        before, after = (("/".join(side.phases) if side is not None else "?") for side in (part.before, part.after))
        what = f"moved from {before} to {after}"
    return f"{SHORT_LABEL[part.operator_class]}, {what}"


def name_of_part(part: Part) -> str:
    """Return the operator of a part's work, or the kernel if no operator is known."""
    for side in (part.after, part.before):
        if side is not None and (side.operators or side.kernels):
            names = side.operators or side.kernels
            if side.kernels and side.operators == (_COLLECTIVE,):  # the host records all collectives by one name
                names = side.kernels
            first, *others = (short_kernel_name(name) for name in names)
            return first + (f" and {len(others)} more" if others else "")
    return "?"


def short_kernel_name(name: str) -> str:
    """Return a kernel's name without its C++ type and parameters."""
    return name.removeprefix("void ").replace(_ANONYMOUS, "").partition("(")[0] or name


def sentence_of(group: Group) -> Phrase:
    """Return a group with its change, and its main operators."""
    if group.cause is Cause.OVERLAP:
        how = "More" if group.change_ns < 0 else "Less"
        return phrase("{} {}: {}", how, group.name, TimeChange(group.change_ns))
    head = phrase("{}: {}", group.name[:1].upper() + group.name[1:], TimeChange(group.change_ns))
    if not group.cause.is_work:
        return head
    if group.cause is Cause.MOVED:
        calls = round(sum(part.after.calls for part in group.parts if part.after is not None))
        return phrase("{} ({}, {})", head, Count(calls, "call"), Time(group.after_ns))
    changes: dict[str, int] = {}
    for part in group.parts:
        if part.change_ns:
            name = name_of_part(part)
            changes[name] = changes.get(name, 0) + part.change_ns
    operators = sorted(changes.items(), key=lambda item: -abs(item[1]))
    if len(operators) == 1:
        return phrase("{} ({})", head, Name(operators[0][0]))
    most = [(name, change) for name, change in operators if abs(change) * 10 >= abs(group.change_ns)][
        :_MAX_NAMED_OPERATORS
    ]
    largest = joined(phrase("{} {}", Name(name), TimeChange(change)) for name, change in most)
    return phrase("{}, including {}", head, largest) if largest else head


def said_of(group: Group, comparison: Comparison) -> Phrase:
    """Return a group's sentence; the same calls at another clock are not a difference of the kernels."""
    said, change = sentence_of(group), comparison.clock_change
    if change is None or group.cause is not Cause.SAME_CALLS:
        return said
    return phrase(
        "{}; the clocks differ by {}, so this is not reported as a kernel difference", said, Change(1 + change, 1)
    )


# Causes of the difference of two sides, the largest changes, other kernels.


_ELSEWHERE: Final = (
    "calls with 0 ns ran on the device before or after the step (times include only what runs within the step)"
)
#: Causes that change less than this part of the largest change are one row.
_MIN_CAUSE_SHARE: Final = 1e-3


def causes_table(parts: Decomposition, page: Page) -> Section:
    """Return one row per cause and class; rows sum to the difference."""
    groups = groups_of(parts.parts)
    smallest = _MIN_CAUSE_SHARE * max((abs(group.change_ns) for group in groups), default=0)
    columns: Columns[tuple[str | Phrase, int, int]] = {
        Column(header="where the difference is from", holds=ColumnKind.NAMES, least=28): lambda item: item[0],
        Column(header="before", drop_order=2): lambda item: Time(item[1]),
        Column(header="after", drop_order=1): lambda item: Time(item[2]),
        Column(header="change"): lambda item: TimeChange(item[2] - item[1]),
    }
    large = [group for group in groups if group.change_ns and abs(group.change_ns) >= smallest]
    large = large[: page.top] if page.brief else large
    rows = [
        Row(cells=cells_of(columns, (group.name, group.before_ns, group.after_ns)), operator_class=group.operator_class)
        for group in large
    ]
    small = [group for group in groups if group.change_ns and group not in large]
    same = [group for group in groups if not group.change_ns]
    for name, members in ((phrase("and {} smaller", Count(len(small))), small), ("without a difference", same)):
        if members:
            before, after = sum(group.before_ns for group in members), sum(group.after_ns for group in members)
            rows.append(Row(cells=cells_of(columns, (name, before, after))))
    rows.append(Row(cells=cells_of(columns, ("step", parts.before_ns, parts.after_ns)), summary=True))
    annotated = parts.before_steps or parts.after_steps  # else each side is a whole trace
    notes = [Note(text="times are means over the similar steps")] if annotated else []
    if any(part.cause is Cause.OVERLAP for part in parts.parts):
        text = "overlapping work is included in each part, so the overlap rows subtract the excess"
        notes.append(Note(text=text))
    return Section(
        title="Where the difference comes from", columns=tuple(columns), rows=tuple(rows), notes=tuple(notes)
    )


def changes_table(parts: Decomposition, top: int) -> Section:
    """Return the largest changes by name, merging an operator's changes of one kind and phase over modules."""
    groups: dict[tuple[Cell, ...], list[Part]] = {}
    for part in parts.parts:
        if part.change_ns and part.cause.is_work:
            groups.setdefault((name_of_part(part), part.cause, _what(part), _phases(part)), []).append(part)
    columns: Columns[Sequence[Part]] = {
        Column(header="work", holds=ColumnKind.NAMES, least=14): lambda group: Name(name_of_part(group[0])),
        Column(header="what changed", holds=ColumnKind.NAMES, least=14): lambda group: _what(group[0]),
        Column(header="phase", holds=ColumnKind.NAMES, least=9, drop_order=2): lambda group: _phases(group[0]),
        Column(header="calls", holds=ColumnKind.NAMES, drop_order=3): _calls,
        Column(header="before", drop_order=5): lambda group: Time(sum(part.before_ns for part in group)),
        Column(header="after", drop_order=4): lambda group: Time(sum(part.after_ns for part in group)),
        Column(header="change"): lambda group: TimeChange(_change(group)),
    }
    changed = sorted(groups.values(), key=lambda group: -abs(_change(group)))
    rows = [Row(cells=cells_of(columns, group), operator_class=group[0].operator_class) for group in changed[:top]]
    if others := changed[top:]:
        more = phrase("and {} more", Count(len(others)))
        rows.append(Row(cells={"work": more, "change": TimeChange(sum(map(_change, others)))}))
    shown = [part for group in changed[:top] for part in group]
    sides = [(part.before, part.before_ns) for part in shown] + [(part.after, part.after_ns) for part in shown]
    elsewhere = any(work is not None and work.calls and not spent_ns for work, spent_ns in sides)
    return Section(
        title="What changed most",
        columns=tuple(columns),
        rows=tuple(rows),
        notes=(Note(text=_ELSEWHERE),) if elsewhere else (),
    )


def _change(group: Sequence[Part]) -> int:
    return sum(part.change_ns for part in group)


def _what(part: Part) -> str:
    before, after = part.before, part.after
    if part.cause is Cause.ANOTHER_SIGNATURE and before is not None and after is not None:
        if before.flops and after.flops and before.flops != after.flops:
            return f"{after.flops / before.flops:.3g} x the FLOPs"
        if before.bytes and after.bytes and before.bytes != after.bytes:
            return f"{after.bytes / before.bytes:.3g} x the bytes"
    if part.cause is Cause.MOVED and before is not None:
        return f"moved from {'/'.join(before.phases)}"
    return named(part.cause)


def _phases(part: Part) -> str:
    """Return the phase of the work after, or before if the work is gone."""
    side = part.after if part.after is not None else part.before
    return "" if side is None else "/".join(side.phases)


def _calls(group: Sequence[Part]) -> str:
    sides = [sum(side.calls for part in group if (side := getattr(part, name))) for name in ("before", "after")]
    return " to ".join(dict.fromkeys(f"{calls:.3g}" for calls in sides))


def kernels_table(parts: Decomposition, top: int) -> Section:
    """Return the contractions for which the library chose another kernel."""
    columns: Columns[tuple[Part, Work, Work]] = {
        Column(header="another kernel", holds=ColumnKind.NAMES): lambda item: Name(name_of_part(item[0])),
        Column(header="signature", holds=ColumnKind.NAMES, drop_order=1): lambda item: (
            Name(item[2].signatures[0]) if item[2].signatures else None
        ),
        Column(header="before", holds=ColumnKind.NAMES): lambda item: Name(short_kernel_name(item[1].kernels[0])),
        Column(header="after", holds=ColumnKind.NAMES): lambda item: Name(short_kernel_name(item[2].kernels[0])),
        Column(header="change"): lambda item: TimeChange(item[0].change_ns),
    }
    rows = [
        Row(cells=cells_of(columns, (part, before, after)), operator_class=part.operator_class)
        for part in parts.parts
        if part.operator_class is OperatorClass.TENSOR_CONTRACTION
        and (before := part.before) is not None
        and (after := part.after) is not None
        and before.kernels
        and after.kernels
        and before.kernels[0] != after.kernels[0]
    ]
    return Section(
        title="Other kernels",
        columns=tuple(columns),
        rows=tuple(rows[:top]),
        notes=_more_rows(len(rows) - top),
    )


def _more_rows(count: int) -> tuple[Note, ...]:
    """Return a note on the number of omitted rows."""
    text = phrase("and {} more in the JSON report", Count(count))
    return (Note(text=text, kind=NoteKind.REMARK),) if count > 0 else ()


#: Marks a difference of figures without a claim.
_NOT_CLAIMED: Final = "~"
#: Remark on a figure that like steps lack.
_ALL_STEPS: Final = "of all steps"
#: Maximum number of steps with a row.
_MAX_STEP_ROWS: Final = 24
#: Figures for more than two sides, with column headers; more are in the JSON report.
_OF_MANY: Final = {
    "step_time_ns": "step", "samples_per_second": "samples", "idle_ns": "idle", "framework_ns": "framework",
    "exposed_communication_ns": "exposed", "flops": "FLOP", "bytes": "bytes", "mfu": "MFU", "peak_memory_bytes": "peak",
}  # fmt: skip
#: Figures on the page, in this order; all figures are in the JSON report.
_SHOWN_FIGURES: Final = (
    "step_time_ns", "step_profiled_ns", "samples_per_second", "forward_time_ns", "backward_time_ns",
    "optimizer_time_ns", "busy_ns", "idle_ns", "host_idle_ns", "framework_ns", "exposed_communication_ns",
    "exposed_memcpy_ns", "kernel_time_ns", "flops", "bytes", "mfu", "hfu", "peak_memory_bytes",
)  # fmt: skip
_FAMILIES: Final = (("class.", ".time_ns"), ("class.", ".flops"), ("class.", ".bytes"), ("memory.", "_bytes"))


def steps_table(comparison: Comparison) -> Section | None:
    """Return every like step of two sides if there are few; for many, the figures give the range."""
    if len(comparison.sides) > 2:
        return None
    columns: Columns[tuple[Side, Sample]] = {
        Column(header="side", holds=ColumnKind.NAMES, least=8): lambda item: Name(item[0].name),
        Column(header="step", holds=ColumnKind.NAMES): lambda item: item[1].label,
        Column(header="time"): lambda item: Time(item[1].value),
        Column(header="", holds=ColumnKind.NAMES, drop_order=1): lambda item: (
            item[1].set_aside and f"excluded: {item[1].set_aside}"
        ),
    }
    rows = tuple(Row(cells=cells_of(columns, (side, step))) for side in comparison.sides for step in side.steps)
    return Section(
        title="Similar steps",
        columns=tuple(columns),
        rows=rows[:_MAX_STEP_ROWS],
        notes=_more_rows(len(rows) - _MAX_STEP_ROWS),
    )


def figures_table(comparison: Comparison) -> Section:
    """Return the figures of one step that differ, and how many do not; for more than two sides all main ones."""
    if len(comparison.sides) > 2:
        return _figures_of_many(comparison)
    section = _table(comparison, shown_figures(comparison), "Numbers per step", least=16)
    note = Note(text="per step, under the names that --fail-if accepts; the JSON report has all numbers")
    return replace(section, notes=(*section.notes, note))


def shown_figures(comparison: Comparison) -> list[FigureRow]:
    """Return the figures of the page, in its order."""
    known = {row.name: row for row in comparison.figures}
    return [known[name] for name in _SHOWN_FIGURES if name in known]


def families_table(comparison: Comparison) -> Section | None:
    """Return time, FLOPs and bytes of two sides by class, memory by component."""
    if len(comparison.sides) > 2:
        return None
    rows = [
        row
        for begin, end in _FAMILIES
        for row in comparison.figures
        if row.name.startswith(begin) and row.name.endswith(end) and any(row.values)
    ]
    return _table(comparison, rows, "By class and component", least=13)


def _figures_of_many(comparison: Comparison) -> Section:
    """Return a row per side with its main figures; if the page is narrow, the rightmost are dropped first."""
    known = {row.name: row for row in comparison.figures}
    shown = {header: known[name] for name, header in _OF_MANY.items() if name in known}
    rows = tuple(
        Row(
            cells={"side": phrase("{} {}", Count(index + 1), Name(side.name))}
            | {header: _cell(row, index) for header, row in shown.items()}
        )
        for index, side in enumerate(comparison.sides)
    )
    return Section(
        title="Numbers per step",
        rows=rows,
        columns=(
            Column(header="side", holds=ColumnKind.NAMES, least=16),
            *(Column(header=header, drop_order=index) for index, header in enumerate(shown)),
        ),
        notes=(Note(text="per step; the JSON report has all numbers"),),
    )


def _cell(row: FigureRow, index: int) -> Cell:
    value = row.values[index]
    return None if value is None else with_bound(row, index)


def with_bound(row: FigureRow, index: int) -> Phrase:
    """Return a figure of one side, with `≥` before a lower bound."""
    value = row.values[index]
    if value is None:
        return phrase("-")
    figure = quantity(row.unit, value)
    if not row.lower_bounds or not row.lower_bounds[index]:
        return phrase("{}", figure)
    if isinstance(figure, Share):
        return phrase("{}", replace(figure, at_least=True))
    return phrase("≥ {}", figure)


def _table(comparison: Comparison, rows: Sequence[FigureRow], title: str, *, least: int) -> Section:
    """Return the figures that differ between two sides, with their changes if these are comparable."""
    change: Columns[FigureRow] = {
        Column(header="change"): lambda row: Change(row.values[1], row.values[0]),
        Column(header="ranges", holds=ColumnKind.NAMES, drop_order=2): _ranges,
    }
    columns: Columns[FigureRow] = {
        Column(header="figure", holds=ColumnKind.NAMES, least=least): lambda row: row.name,
        Column(header="before", drop_order=1): lambda row: _cell(row, 0),
        Column(header="after"): lambda row: _cell(row, 1),
        **({} if comparison.not_comparable else change),
    }
    changed = [row for row in rows if len(set(row.values)) > 1]
    notes = []
    if any(row.all_steps for row in changed):
        notes.append(
            Note(text=f"{_ALL_STEPS}: includes dissimilar steps, since there is no value for the similar ones alone")
        )
    if any(row.p is not None and row.p >= SIGNIFICANT for row in changed):
        notes.append(Note(text=f"{_NOT_CLAIMED}: no difference beyond chance (p >= {SIGNIFICANT})"))
    if same := len(rows) - len(changed):
        notes.append(Note(text=phrase("{} not shown (equal on both sides)", Count(same, "number"))))
    cells = tuple(Row(cells=cells_of(columns, row)) for row in changed)
    return Section(title=title, columns=tuple(columns), rows=cells, notes=tuple(notes))


def _ranges(row: FigureRow) -> str | None:
    """Return the evidence of the difference: for runs the test, for like steps whether their ranges overlap."""
    if row.all_steps:
        return _ALL_STEPS
    if row.p is None:
        return row.ranges
    return f"{_NOT_CLAIMED} p={row.p:.2g}" if row.p >= SIGNIFICANT else f"p={row.p:.2g}"


_QUANTITIES: Final[dict[str, Callable[[float], Quantity]]] = {
    "ns": Time,
    "bytes": Bytes,
    "flop": Flops,
    "fraction": lambda value: Share(value, 1),
}


def quantity(unit: str, value: float) -> Quantity:
    """Return a figure in its unit."""
    made = _QUANTITIES.get(unit)
    return Figure(value, unit) if made is None else made(value)


#: The remark for sides that are not comparable.
_WITHHELD: Final = (
    "Numbers are only shown side by side: changes and their causes are not computed, so gates on changes cannot be"
    " checked."
)
#: The most lines of a cause's sentence on a first screen.
_MAX_CAUSE_LINES: Final = 2
#: Number of causes with a sentence.
IN_SENTENCES: Final = 3


def title(comparison: Comparison) -> Section:
    """Return the title: the sides by name."""
    names = [Name(side.name) for side in comparison.sides]
    text = phrase(" vs. ".join("{}" for _ in names), *names)
    return Section(title="Comparison", notes=(Note(text=text, kind=NoteKind.TITLE),))


def what_changed(comparison: Comparison, page: Page) -> Section:
    """Return the difference of the step in a sentence, the largest causes in one each."""
    lines = _MAX_CAUSE_LINES if page.brief else None
    parts = comparison.decomposition
    if comparison.not_comparable:
        reasons = [Note(text=f"Not comparable: {why}.", kind=NoteKind.CONCLUSION) for why in comparison.not_comparable]
        withheld = Note(text=_WITHHELD, kind=NoteKind.REMARK)
        return Section(title="What changed", notes=(*reasons, withheld))
    if comparison.peak_parts:
        return Section(title="What changed", notes=(Note(text=_memory_change(comparison), kind=NoteKind.CONCLUSION),))
    if parts is None:
        return Section(title="What changed", notes=_extremes(comparison))
    sentences = [
        phrase("{}.", said_of(group, comparison)) for group in groups_of(parts.parts)[:IN_SENTENCES] if group.change_ns
    ]
    notes = [Note(text=headline(comparison, parts), kind=NoteKind.CONCLUSION)]
    notes += [Note(text=text, kind=NoteKind.PLAIN, most_lines=lines) for text in sentences]
    if comparison.no_claim is not None and parts.change_ns:
        notes.append(Note(text=f"Not tested for significance: {comparison.no_claim}.", kind=NoteKind.REMARK))
    return Section(title="What changed", notes=tuple(notes))


def _memory_change(comparison: Comparison) -> Phrase:
    """Return the difference of two snapshots' peaks, and the components that changed most."""
    before = sum(change.before_bytes for change in comparison.peak_parts)
    after = sum(change.after_bytes for change in comparison.peak_parts)
    sums: dict[str, int] = {}
    for change in comparison.peak_parts:
        sums[change.component] = sums.get(change.component, 0) + change.change_bytes
    most = sorted(sums, key=lambda name: -abs(sums[name]))[:IN_SENTENCES]
    parts = [phrase("{} {}", name.replace("_", " "), BytesChange(sums[name])) for name in most if sums[name]]
    said = phrase("The peak is {} before and {} after", Bytes(before), Bytes(after))
    if comparison.peak_moments:
        first, second = comparison.peak_moments
        said = phrase("{} is allocated before ({}) and {} after ({})", Bytes(before), first, Bytes(after), second)
        if first != second:
            return phrase(
                "{}: these are two different kinds of moments, so a difference between them does not mean that"
                " anything changed.",
                said,
            )
    return phrase("{} ({}): {}.", said, Change(after, before), joined(parts) or "nothing changed")


def memory_changes(comparison: Comparison, top: int) -> Section | None:
    """Return the lines of user code whose share of the peak changed; the changes sum to that of the peaks."""
    changed = [change for change in comparison.peak_parts if change.change_bytes]
    if not changed or len(set(comparison.peak_moments)) > 1:
        return None
    columns: Columns[MemoryChange] = {
        Column(header="line of code", holds=ColumnKind.NAMES, least=18): lambda change: (
            (change.line or "no stack recorded") + (f" -> {change.line_after}" if change.line_after else "")
        ),
        Column(header="component", holds=ColumnKind.NAMES, least=10): lambda change: change.component.replace("_", " "),
        Column(header="before", drop_order=2): lambda change: Bytes(change.before_bytes),
        Column(header="after", drop_order=1): lambda change: Bytes(change.after_bytes),
        Column(header="change"): lambda change: BytesChange(change.change_bytes),
    }
    rows = [Row(cells=cells_of(columns, change)) for change in changed[:top]]
    if others := changed[top:]:
        rest = BytesChange(sum(change.change_bytes for change in others))
        rows.append(Row(cells={"line of code": phrase("and {} more", Count(len(others))), "change": rest}))
    whole = BytesChange(sum(change.change_bytes for change in changed))
    name = "total allocated" if comparison.peak_moments else "the peak"
    rows.append(Row(cells={"line of code": name, "change": whole}, summary=True))
    return Section(
        title="What changed in memory" if comparison.peak_moments else "What changed at the peak",
        columns=tuple(columns),
        rows=tuple(rows),
    )


def _extremes(comparison: Comparison) -> tuple[Note, ...]:
    """Return for more than two sides those with the shortest and the longest step; equal as shown counts as equal."""
    row = next((row for row in comparison.figures if row.name == "step_time_ns"), None)
    values = [] if row is None else list(zip(row.values, comparison.sides, strict=True))
    known = [(value, side.name) for value, side in values if value is not None]
    if len(known) < 2:
        return ()
    if len(comparison.sides) == 2:
        (before, _), (after, _) = known
        text = phrase("The step takes {} before and {} after ({}).", Time(before), Time(after), Change(after, before))
        return (Note(text=text, kind=NoteKind.CONCLUSION),)
    least, most = min(known)[0], max(known)[0]
    shortest, longest = ([name for value, name in known if duration(value) == duration(end)] for end in (least, most))
    if len(shortest) == len(known):
        which = "" if len(known) == len(comparison.sides) else " whose step time is known"
        text = phrase("The step takes {} on all {} sides{}.", Time(least), Count(len(known)), which)
    else:
        text = phrase(
            "The step is shortest on {}, {}, and longest on {}, {}.",
            _all_named(shortest),
            Time(least),
            _all_named(longest),
            Time(most),
        )
    return (Note(text=text, kind=NoteKind.CONCLUSION),)


def _all_named(sides: Sequence[str]) -> Phrase:
    """Return the names of all sides, for many the number of further ones."""
    shown = [phrase("{}", Name(side)) for side in sides[:IN_SENTENCES]]
    if more := len(sides) - len(shown):
        return phrase("{} and {} more", joined(shown) or "", Count(more))
    *others, last = shown
    return phrase("{} and {}", joined(others) or "", last) if others else last


def headline(comparison: Comparison, parts: Decomposition) -> Phrase:
    """Return the difference of the step: without the profiler if both sides were timed so, and of the step with parts.

    The two may have opposite signs if the profiler overhead is larger on one side.
    """
    rows = {row.name: row for row in comparison.figures}
    plain, profiled = rows.get("step_unprofiled_ns"), rows.get("step_profiled_ns")
    if plain is None or None in plain.values:
        partly = plain is not None and any(value is not None for value in plain.values)
        return phrase("{}.", _profiled("The profiled step" if partly else "The step", parts, profiled))
    before, after = plain.values[0] or 0, plain.values[-1] or 0
    if before == after:
        first = phrase("The step takes {} on both sides without the profiler", Time(before))
    else:
        how = "longer" if after > before else "shorter"
        first = phrase(
            "The step is {} {} ({}) without the profiler: {} before, {} after{}",
            Time(abs(after - before)),
            how,
            Change(after, before),
            Time(before),
            Time(after),
            _tested(plain),
        )
    unlike = (after - before) * parts.change_ns < 0
    word = "But the profiled step, whose parts follow," if unlike else "The profiled step, whose parts follow,"
    return phrase("{}. {}.", first, _profiled(word, parts, profiled))


def _profiled(subject: str, parts: Decomposition, row: FigureRow | None) -> Phrase:
    """Return the change of the step that is divided into parts."""
    if not parts.change_ns:
        same = ", and none of its parts differs" if not any(part.change_ns for part in parts.parts) else ""
        return phrase(subject + " takes {} on both sides{}", Time(parts.before_ns), same)
    how = "longer" if parts.change_ns > 0 else "shorter"
    said: Phrase | str = "" if row is None else _tested(row)
    if not said and any(len(steps) == 1 for steps in (parts.before_steps, parts.after_steps)):
        said = "; with only one step on a side, a change cannot be distinguished from chance"
    return phrase(
        subject + " is {} {} ({}): {} before, {} after{}",
        Time(abs(parts.change_ns)),
        how,
        Change(parts.after_ns, parts.before_ns),
        Time(parts.before_ns),
        Time(parts.after_ns),
        said,
    )


def _tested(row: FigureRow) -> Phrase | str:
    """Return the evidence of the difference: by the runs, else by the ranges of the like steps."""
    if row.p is not None:
        chance = "" if row.p < SIGNIFICANT else ", so the difference may be due to chance"
        return f"; p = {row.p:.2g} over the runs{chance}"
    overlap = {"apart": "do not overlap", "overlapping": "overlap"}
    return f"; the ranges of the two sides' step times {overlap[row.ranges]}" if row.ranges else ""


def sides(comparison: Comparison) -> Section:
    """Return what ran on each side, and which steps the means cover."""
    facts = []
    for index, side in enumerate(comparison.sides):
        label = ("before", "after")[index] if len(comparison.sides) == 2 else f"{index + 1}"
        what = joined(
            (
                phrase("{}", Name(side.name)),
                side.model,
                side.device,
                side.software,
                phrase("{}", Count(side.ranks, "rank")) if side.ranks > 1 else None,
                phrase("{}", Count(side.runs, "run")) if side.runs > 1 else None,
            )
        )
        facts.append(Fact(label=label, text=what or ""))
    parts = comparison.decomposition
    if parts is not None:
        means = []
        for numbers, side in zip((parts.before_steps, parts.after_steps), comparison.sides, strict=True):
            count = sum(step.set_aside is not None for step in side.steps)
            means.append(phrase("{}{}", _numbers(numbers), f" ({count} excluded)" if count else ""))
        others = joined(
            phrase(
                "{} ({}) vs. {} ({})",
                Time(kind.before_ns),
                _numbers(kind.before_steps),
                Time(kind.after_ns),
                _numbers(kind.after_steps),
            )
            for kind in comparison.other_kinds
        )
        text = phrase("{} vs. {}{}", *means, phrase("; steps of another kind: {}", others) if others else "")
        facts.append(Fact(label="steps", text=text))
    return Section(title="What is compared", facts=tuple(facts))


def _numbers(steps: Sequence[int]) -> str:
    shown = ", ".join(map(str, steps[:6])) + (f" and {len(steps) - 6} more" if len(steps) > 6 else "")
    if not steps:
        return "the whole trace"
    return f"{'step' if len(steps) == 1 else 'the mean of steps'} {shown}"


def gates(comparison: Comparison) -> Section:
    """Return the gates, and whether they are met."""
    facts = [Fact(label="gate", text=gate.line, warning=not gate.met) for gate in comparison.gates]
    return Section(title="Gates", facts=tuple(facts))


def warnings(comparison: Comparison) -> Section:
    """Return the warnings about both sides."""
    facts = [Fact(label="warning", text=text, warning=True) for text in comparison.warnings]
    return Section(title="Warnings", facts=tuple(facts))
