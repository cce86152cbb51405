"""Report time, FLOPs and bytes by operator class, and time by class and phase."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from opanatomy.analysis.costs import steps_of
from opanatomy.records.anatomy import AboveCeiling, Anatomy
from opanatomy.records.taxonomy import ExcessCause, OperatorClass, Phase
from opanatomy.records.work import ClassRow
from opanatomy.records.work import Ratio as RatioRow
from opanatomy.report.section import (
    Column,
    ColumnKind,
    Columns,
    Note,
    Page,
    Phrase,
    Ratio,
    Row,
    Section,
    Share,
    Time,
    calls_of,
    cells_of,
    joined,
    phrase,
    shares_of_work,
)
from opanatomy.report.terms import note
from opanatomy.report.totals import Total, amounts, total

#: Work is reported as overlapping if its sum exceeds the busy time by this fraction.
_OVERLAP: Final = 0.005
#: The meaning of a share of a ceiling with another one after it.
PARTLY = note("classes", "(n %)")


class _Line(Struct, frozen=True):
    """A class, or all of them, and its sum in a mean step."""

    operator_class: OperatorClass | None
    part: Total
    phases: dict[Phase, float]


def classes(anatomy: Anatomy) -> Section | None:
    """Return time by operator class and phase, FLOPs and bytes, and how near to the device's ceiling they are."""
    if not anatomy.classes:
        return None
    steps = steps_of(anatomy)
    lacking = anatomy.timeline.lacks_work
    whole = total(anatomy.classes, lacks_work=lacking).per_step(steps)
    phases = [phase for phase in Phase if any(row.phase is phase for row in anatomy.classes)]
    groups: list[tuple[OperatorClass | None, Sequence[ClassRow]]] = [*by_class(anatomy), (None, anatomy.classes)]
    lines = [
        _Line(
            item,
            total(rows, lacks_work=lacking).per_step(steps),
            {phase: sum(row.time_ns for row in rows if row.phase is phase) / steps for phase in phases},
        )
        for item, rows in groups
    ]

    # Of communication alone FLOPs are always known: 0.
    computes = any(
        row.flops is not None and row.operator_class is not OperatorClass.COMMUNICATION for row in anatomy.classes
    )

    def time_in(phase: Phase) -> Callable[[_Line], Time]:
        return lambda line: Time(line.phases[phase] or None)

    columns: Columns[_Line] = {
        Column(header="class", holds=ColumnKind.NAMES, least=13): lambda line: line.operator_class or "total",
        Column(header="calls", drop_order=12): lambda line: calls_of(line.part.calls, at_least=lacking),
        Column(header="time"): lambda line: Time(line.part.time_ns),
        Column(header="share"): lambda line: Share(line.part.time_ns, whole.time_ns),
        **{
            Column(header=phase.value, drop_order=index): time_in(phase)
            for index, phase in enumerate(phases if len(phases) > 1 else (), start=1)
        },
        Column(header="FLOP", unit="FLOP", drop_order=7): lambda line: amounts(line.part)[0] if computes else None,
        Column(header="FLOP share", drop_order=10): lambda line: Share(
            amounts(line.part)[0].flops if computes else None, whole.flops if whole.flops_cover else None
        ),
        Column(header="bytes", drop_order=9): lambda line: amounts(line.part)[1],
        Column(header="FLOP/B", drop_order=11): lambda line: Ratio(line.part.intensity),
        Column(header="of peak", drop_order=8): lambda line: (
            None if whole.bound_ns is None else Share(line.part.reached, 1, covered=line.part.covered)
        ),
    }
    rows = tuple(
        Row(
            cells=cells_of(columns, line),
            operator_class=line.operator_class,
            summary=line.operator_class is None,
            fraction=None
            if line.operator_class is None
            else line.part.time_ns / whole.time_ns
            if whole.time_ns
            else 0.0,
        )
        for line in lines
    )
    busy_ns = anatomy.timeline.busy_ns
    overlaps = anatomy.environment.device_kind != "cpu" and busy_ns > 0
    at_once = overlaps and total(anatomy.classes).time_ns >= (1 + _OVERLAP) * busy_ns
    return Section(
        title="Operator classes",
        scope=shares_of_work(anatomy),
        columns=tuple(columns),
        rows=rows,
        notes=(
            *why_above(anatomy, [(item or "total", (item, None, None)) for item, _ in groups]),
            *(_notes([line.part for line in lines]) if computes else ()),
            *(
                [Note(text="overlapping work is counted in full, so times can add up to more than the busy time")]
                if at_once
                else ()
            ),
        ),
    )


def _notes(parts: list[Total]) -> tuple[Note, ...]:
    notes = []
    covered = [part for part in parts if part.flops_cover]
    if parts[-1].lacks_work:
        notes.append(Note(text="≥ lower bound, since the trace lacks some device work", column="time"))
    elif any(not part.flops_are_all or part.costed_ns < part.time_ns for part in covered if part.bytes_cover):
        notes.append(Note(text=note("classes", "≥"), column="FLOP"))
    if covered and any(part.flops is not None and not part.flops_cover for part in parts):
        notes.append(Note(text="- unknown, since work without a cost formula takes most of the time", column="FLOP"))
    if any(part.reached is not None and part.covered != 1 for part in parts):
        notes.append(Note(text=PARTLY, column="of peak"))
    return tuple(notes)


#: Why a share of a ceiling is above 100 %; under a causal mask the share is known too.
_WHY: Final = {
    ExcessCause.CAUSAL_MASK: "under the causal mask",
    ExcessCause.UNRECORDED_MASK: "flex attention's mask is not recorded, so its FLOPs are an upper bound",
    ExcessCause.FUSED: "fused kernels may touch only part of their tensors",
    ExcessCause.LOOK_UPS: "look-ups may read fewer distinct rows than assumed",
    ExcessCause.WINOGRAD: "Winograd's algorithm needs fewer multiplications",
    ExcessCause.CACHE: "tensors may be read from the cache",
    ExcessCause.SEVERAL: "several reasons, see --section ledger",
}
#: Class, phase and operator of work; `None` matches all.
Work: TypeAlias = tuple[OperatorClass | None, Phase | None, str | None]


def reason_above(one: AboveCeiling) -> Phrase:
    """Return why work is above 100 % of its ceiling, or the share under the mask that explains it."""
    if one.cause is ExcessCause.CAUSAL_MASK:
        return phrase("{} {}", Share(one.reached_without, 1), _WHY[one.cause])
    return phrase(_WHY[one.cause])


def above_ceiling(anatomy: Anatomy, work: Work) -> AboveCeiling | None:
    """Return the explanation if work exceeds 100 % of its ceiling."""
    every = {(one.operator_class, one.phase, one.operator): one for one in anatomy.device.above}
    return every.get(work)


def why_above(anatomy: Anatomy, lines: Iterable[tuple[OperatorClass | Phrase | str, Work]]) -> tuple[Note, ...]:
    """Return a note on the column `ceiling` per cause of shares above 100 %, with the affected lines."""
    causes: dict[ExcessCause, list[Phrase]] = {}
    for name, work in lines:
        one = above_ceiling(anatomy, work)
        if one is not None:
            share = (Share(one.reached_without, 1),) if one.cause is ExcessCause.CAUSAL_MASK else ()
            causes.setdefault(one.cause, []).append(phrase("{} {}" if share else "{}", name, *share))
    return tuple(
        Note(
            text=phrase(
                "{}: {}" if cause is ExcessCause.CAUSAL_MASK else "above 100 % ({}): {}",
                _WHY[cause],
                joined(names) or "",
            ),
            column="of peak",
        )
        for cause, names in causes.items()
    )


def by_class(anatomy: Anatomy) -> list[tuple[OperatorClass, list[ClassRow]]]:
    """Group rows by class, in class order."""
    groups = [(item, [row for row in anatomy.classes if row.operator_class is item]) for item in OperatorClass]
    return [(item, rows) for item, rows in groups if rows]


# Backward over forward next to theory, and the classes of the paper next to its measurements.


#: Percent of FLOPs and of time, Ivanov et al., arXiv 2007.00072, table 1: a BERT-large encoder layer on a V100.
_PAPER: Final = {
    OperatorClass.TENSOR_CONTRACTION: (99.80, 61.0),
    OperatorClass.STATISTICAL_NORMALIZATION: (0.17, 25.5),
    OperatorClass.ELEMENTWISE: (0.03, 13.5),
}
#: A class below this share of time has no meaningful ratios.
_MIN_RATIO_SHARE: Final = 0.01
_NO_RATIO: Final = note("ratios", "-")
_PAPER_IS: Final = note("paper", "paper")


def ratios(anatomy: Anatomy) -> Section | None:
    """Return backward over forward by class, next to theory."""
    whole = anatomy.work_ns
    times = {
        row.operator_class: total(part for part in anatomy.classes if part.operator_class is row.operator_class)
        for row in anatomy.ratios
    }
    with_ratio = [row for row in anatomy.ratios if (row.time, row.flops, row.bytes) != (None, None, None)]
    known = [row for row in with_ratio if times[row.operator_class].time_ns >= _MIN_RATIO_SHARE * whole]
    if not known:
        return None
    columns: Columns[RatioRow] = {
        Column(header="backward / forward", holds=ColumnKind.NAMES, least=13): lambda row: row.operator_class,
        Column(header="time"): lambda row: Ratio(row.time),
        Column(header="FLOP", drop_order=1): lambda row: Ratio(row.flops),
        Column(header="FLOP theory", drop_order=3): lambda row: (
            Ratio(row.theory_flops) if any(item.theory_flops is not None for item in known) else None
        ),
        Column(header="bytes", drop_order=2): lambda row: Ratio(row.bytes),
        Column(header="bytes theory", drop_order=4): lambda row: (
            Ratio(row.theory_bytes) if any(item.theory_bytes is not None for item in known) else None
        ),
    }
    rows = tuple(Row(cells=cells_of(columns, row), operator_class=row.operator_class) for row in known)
    left_out = any(None in (row.time, row.bytes, row.flops if row.operator_class in _PAPER else 0) for row in known)
    notes = [Note(text=_NO_RATIO)] if left_out else []
    if len(known) < len(with_ratio):
        notes.append(Note(text=phrase("classes below {} of the time are omitted", Share(_MIN_RATIO_SHARE, 1, 0))))
    return Section(title="Backward over forward", columns=tuple(columns), rows=rows, notes=tuple(notes))


#: Names of the architectures of transformer encoders.
_ENCODERS: Final = ("Bert", "Roberta", "Electra", "Deberta", "Ernie", "Camembert", "MPNet", "FNet", "ViT", "Deit")


def paper(anatomy: Anatomy, page: Page) -> Section | None:
    """Return the paper's three classes among themselves, without the optimizer, next to the paper's figures.

    By default it is only shown for a transformer encoder, like the paper's model. Also `None` if FLOPs of a class are
    known for less than half of its time, as there are no shares then.
    """
    shape, architecture = anatomy.memory.shape, (anatomy.workload.architecture or "").lower()
    named = any(name.lower() in architecture for name in _ENCODERS)
    if not page.sections and not (named if shape is None else shape.kind == "bert"):
        return None
    members = [row for row in anatomy.classes if row.operator_class in _PAPER and row.phase is not Phase.OPTIMIZER]
    parts = {item: total(row for row in members if row.operator_class is item) for item in _PAPER}
    whole = total(members)
    if not all(part.time_ns and part.flops and part.flops_cover for part in parts.values()):
        return None
    columns: Columns[OperatorClass] = {
        Column(header="the paper's classes", holds=ColumnKind.NAMES, least=13): lambda item: item,
        Column(header="FLOP"): lambda item: Share(parts[item].flops, whole.flops, decimals=2),
        Column(header="FLOP paper", drop_order=1): lambda item: Share(_PAPER[item][0], 100, decimals=2),
        Column(header="time"): lambda item: Share(parts[item].time_ns, whole.time_ns),
        Column(header="time paper", drop_order=1): lambda item: Share(_PAPER[item][1], 100),
    }
    rows = tuple(Row(cells=cells_of(columns, item), operator_class=item) for item in parts)
    return Section(title="The paper's classes", columns=tuple(columns), rows=rows, notes=(Note(text=_PAPER_IS),))
