"""Show the lines of the user's code: the time, FLOPs and bytes of the work that comes from each."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, field

from opanatomy.analysis.costs import steps_of
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import Phase
from opanatomy.records.work import LineRow
from opanatomy.report.section import (
    Bytes,
    Cell,
    Column,
    ColumnKind,
    Columns,
    Note,
    Page,
    Row,
    Section,
    Share,
    Time,
    cells_of,
    phrase,
    shares_of_work,
)
from opanatomy.report.sections.modules import PHASES_OF, Amount, known_of
from opanatomy.report.totals import total


class OfLine(Struct, kw_only=True):
    """Work of one line itself, by phase, and of everything it calls."""

    phases: dict[Phase, Amount] = field(default_factory=dict)
    bytes: int | None = None
    whole_ns: int = 0

    @property
    def own(self) -> Amount:
        """Return the work of the line itself."""
        amount = Amount()
        for part in self.phases.values():
            amount.add(part)
        return amount

    def in_phases(self, phases: tuple[Phase, ...]) -> int:
        """Return the time in some phases."""
        return sum(self.phases[phase].time_ns for phase in phases if phase in self.phases)

    def add(self, row: LineRow) -> None:
        """Add work of the line itself."""
        self.phases.setdefault(row.phase, Amount()).add(row)
        moved = [size for size in (row.read_bytes, row.written_bytes) if size is not None]
        if moved:
            self.bytes = (self.bytes or 0) + sum(moved)


def by_line(anatomy: Anatomy) -> dict[str, OfLine]:
    """Return the work of each line by name and function, most time first; without work of unknown lines."""
    lines: dict[str, OfLine] = {}
    for row in anatomy.lines:
        if not row.stack:
            continue
        frames = row.stack.split(";")
        for frame in dict.fromkeys(frames):  # a line that calls itself counts once
            lines.setdefault(frame, OfLine()).whole_ns += row.time_ns
        lines[frames[-1]].add(row)
    return dict(sorted(lines.items(), key=lambda item: (-item[1].own.time_ns, -item[1].whole_ns, item[0])))


def lines(anatomy: Anatomy, page: Page) -> Section | None:
    """Return the lines with most time."""
    if not anatomy.lines:
        return None
    steps, whole = steps_of(anatomy), total(anatomy.classes).time_ns
    found = by_line(anatomy)
    working = {name: line for name, line in found.items() if line.own.time_ns}
    phases = [name for name, members in PHASES_OF.items() if any(line.in_phases(members) for line in working.values())]

    def time_in(name: str) -> Callable[[OfLine], Cell]:
        return lambda line: Time(line.in_phases(PHASES_OF[name]) / steps or None)

    columns: Columns[OfLine] = {
        Column(header="time"): lambda line: Time(line.own.time_ns / steps),
        Column(header="share"): lambda line: Share(line.own.time_ns, whole),
        Column(header="with calls", drop_order=5): lambda line: Time(line.whole_ns / steps),
        **{Column(header=name, drop_order=index): time_in(name) for index, name in enumerate(phases, start=1)},
        Column(header="FLOP", unit="FLOP", drop_order=7): lambda line: known_of(line.own, steps),
        Column(header="bytes", drop_order=8): lambda line: _moved(line, steps),
    }
    rows = []
    shown = list(working.items())[: page.top]
    for name, line in shown:
        place, _, function = name.partition(" ")
        rows.append(Row(key=f"line/{name}", cells={"line": place, "function": function} | cells_of(columns, line)))
    known = sum(line.own.time_ns for line in working.values())
    rest = known - sum(line.own.time_ns for _, line in shown)
    for text, ns in ((f"and {len(working) - len(shown):,} more", rest), ("no line known", whole - known)):
        if ns > 0:
            rows.append(Row(cells={"line": text, "time": Time(ns / steps), "share": Share(ns, whole)}))
    notes = [
        Note(text="backward counts toward the line of its forward, a library function toward the line that calls it")
    ]
    if anatomy.step.by_line_ns is not None and anatomy.step.wall_ns is not None:
        words = "the step traced line by line took {}, an untraced step {} (tracing only assigns work to lines)"
        notes.append(Note(text=phrase(words, Time(anatomy.step.by_line_ns), Time(anatomy.step.wall_ns))))
    else:
        notes.append(
            Note(text="lines come from the recorded Python stack, which has only the first line of each function")
        )
    return Section(
        title="Time by line",
        scope=shares_of_work(anatomy),
        rows=tuple(rows),
        notes=tuple(notes),
        columns=(
            Column(header="line", holds=ColumnKind.NAMES, least=14),
            Column(header="function", holds=ColumnKind.NAMES, drop_order=6),
            *columns,
        ),
    )


def _moved(line: OfLine, steps: int) -> Bytes:
    """Return a step's bytes, known for as much of its time as the FLOPs."""
    flops = known_of(line.own, steps)
    return Bytes(None if flops.flops is None or line.bytes is None else line.bytes / steps, at_least=flops.at_least)
