"""Shares, intensities, bounds and ratios of a report worked, class by class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from opanatomy.records.anatomy import Anatomy, ClassRow
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report.glossary.figures_step import a_step, nanoseconds, quotient
from opanatomy.report.module_tree import Amount
from opanatomy.report.scope import calls_a_step, steps_of
from opanatomy.report.section import (
    ByteRate,
    Count,
    FlopRate,
    Phrase,
    Share,
    Time,
    phrase,
)
from opanatomy.report.section import Ratio as Quotient
from opanatomy.report.totals import Total, amounts, known_flops, total, without_operator_ns

_BACKWARD = (Phase.BACKWARD, Phase.RECOMPUTE)


def _parts(anatomy: Anatomy) -> Iterator[tuple[OperatorClass | str, tuple[ClassRow, ...]]]:
    """The class rows of each class that there is, and all of them as the total."""
    for item in OperatorClass:
        if rows := tuple(row for row in anatomy.classes if row.operator_class is item):
            yield item, rows
    if anatomy.classes:
        yield "total", anatomy.classes


def _each(anatomy: Anatomy, line: Callable[[Total], Phrase | None]) -> Iterator[Phrase | None]:
    """`contraction: LINE` for each class whose line is known, and for the total."""
    for name, rows in _parts(anatomy):
        text = line(total(rows))
        if text is not None:
            yield phrase("{}: {}", name, text)


def time(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The time of each class, of one step."""
    steps = steps_of(anatomy)
    return _each(anatomy, lambda part: a_step(nanoseconds(part.time_ns), steps, Time(part.time_ns / steps)))


def share(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The share of each class of the time."""
    whole = total(anatomy.classes)
    return _each(anatomy, lambda part: quotient("time", part.time_ns, "total", whole.time_ns))


def share_of_flops(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The share of each class of the FLOPs, where these cover half of the time."""
    whole = total(anatomy.classes)

    def line(part: Total) -> Phrase | None:
        if part.flops is None or not part.flops_cover or not whole.flops or not whole.flops_cover:
            return None
        share = Share(part.flops, whole.flops)
        return phrase("{} FLOP / total {} FLOP = {}", _whole(part.flops), _whole(whole.flops), share)

    return _each(anatomy, line)


def flops(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The FLOPs of each class, of one step."""
    steps = steps_of(anatomy)

    def line(part: Total) -> Phrase | None:
        result = amounts(part.a_step(steps))[0]
        if part.flops is None or result.flops is None:
            return None
        return a_step(phrase("{} FLOP", _whole(part.flops)), steps, result)

    return _each(anatomy, line)


def moved_bytes(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The bytes of each class, read and written, of one step."""
    steps = steps_of(anatomy)
    for name, rows in _parts(anatomy):
        part = total(rows)
        result = amounts(part.a_step(steps))[1]
        if result.bytes is None:
            continue
        counted = [row for row in rows if row.read_bytes is not None and row.written_bytes is not None]
        read, written = (sum(getattr(row, f"{way}_bytes") for row in counted) for way in ("read", "written"))
        amount = phrase("(read {} B + written {} B)", Count(read), Count(written))
        yield phrase("{}: {}", name, a_step(amount, steps, result))


def _whole(number: float) -> Count:
    return Count(round(number))


def intensity(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """FLOPs a byte of each class."""
    return _each(
        anatomy,
        lambda part: (
            None
            if part.intensity is None or part.flops is None or not part.bytes or not part.flops_cover
            else phrase("{} FLOP / {} B = {}", _whole(part.flops), _whole(part.bytes), Quotient(part.intensity))
        ),
    )


def reached(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """bound / time of each class where its bound is known of half of the time at least."""
    return _each(
        anatomy,
        lambda part: None
        if part.reached is None
        else phrase("bound {} / time {}{} = {}", nanoseconds(part.bound_ns or 0), nanoseconds(part.bounded_ns),
                    _covered(part), Share(part.reached, 1)),
    )  # fmt: skip


def _covered(part: Total) -> Phrase | str:
    if part.covered in (None, 1):
        return ""
    return phrase(" (of {}: {})", nanoseconds(part.time_ns), Share(part.covered, 1, decimals=0))


def headroom(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """time - bound of each class, summed over its operators and phases, of one step."""
    steps = steps_of(anatomy)
    for name, rows in _parts(anatomy):
        known = [row for row in rows if row.headroom_ns is not None]
        if not known:
            continue
        part, spare = total(rows), sum(row.headroom_ns or 0 for row in known)
        faster = round(spare - (part.bounded_ns - (part.bound_ns or 0)))
        beyond = phrase(" + {} of operators above their bound", nanoseconds(faster)) if faster else ""
        amount = phrase("(time {} - bound {}{})", nanoseconds(part.bounded_ns), nanoseconds(part.bound_ns or 0), beyond)
        yield phrase("{}: {}", name, a_step(amount, steps, Time(spare / steps)))


def bound(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The least time of each class, of one step."""
    steps = steps_of(anatomy)
    return _each(
        anatomy,
        lambda part: (
            None if part.bound_ns is None else a_step(nanoseconds(part.bound_ns), steps, Time(part.bound_ns / steps))
        ),
    )


def bound_by(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The share of the bound of each class that the bandwidth sets."""
    for name, rows in _parts(anatomy):
        whole = sum(row.bound_ns or 0 for row in rows)
        memory = sum(row.memory_bound_ns or 0 for row in rows)
        if line := quotient("by memory", memory, "bound", whole):
            yield phrase("{}: {}", name, line)


def flop_rate(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """FLOPs a second of each class, over the time whose FLOPs are known."""
    return _each(
        anatomy,
        lambda part: None
        if part.flops is None or not part.costed_ns
        else phrase("{} FLOP / {} = {}", _whole(part.flops), nanoseconds(part.costed_ns),
                    FlopRate(part.flops * 1e9 / part.costed_ns)),
    )  # fmt: skip


def byte_rate(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Bytes a second of each class, over the time whose bytes are known."""
    return _each(
        anatomy,
        lambda part: None
        if part.bytes is None or not part.costed_ns
        else phrase("{} B / {} = {}", _whole(part.bytes), nanoseconds(part.costed_ns),
                    ByteRate(part.bytes * 1e9 / part.costed_ns)),
    )  # fmt: skip


def calls(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The calls of each class, of one step."""
    steps = steps_of(anatomy)
    return _each(
        anatomy, lambda part: a_step(phrase("{}", Count(part.calls, "call")), steps, calls_a_step(part.calls, steps))
    )


def of_class(anatomy: Anatomy, item: OperatorClass) -> Iterator[Phrase | None]:
    """What one class took, by phase."""
    rows, whole = [row for row in anatomy.classes if row.operator_class is item], total(anatomy.classes)
    if rows:
        yield quotient("time", total(rows).time_ns, "total", whole.time_ns)
        yield from (_row(row.phase.value, row, steps_of(anatomy)) for row in rows)


def of_phase(anatomy: Anatomy, item: Phase) -> Iterator[Phrase | None]:
    """What one phase took, by class, and its part of the step."""
    rows, whole = [row for row in anatomy.classes if row.phase is item], total(anatomy.classes)
    if rows:
        yield quotient("device work", total(rows).time_ns, "total", whole.time_ns)
        yield from (_row(row.operator_class, row, steps_of(anatomy)) for row in rows)
    wall = getattr(anatomy.step, f"{item}_ns", None)
    yield quotient(f"of the step: {item}", wall, "step", anatomy.step.wall_ns)


def _row(name: OperatorClass | str, row: ClassRow, steps: int) -> Phrase:
    many = f" of {steps:,} steps" if steps > 1 else ""
    return phrase("{}: {} in {}" + many, name, nanoseconds(row.time_ns), Count(row.calls, "call"))


def ratios(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Backward over forward of the time, the FLOPs and the bytes of each class."""
    for row in anatomy.ratios:
        members = [item for item in anatomy.classes if item.operator_class is row.operator_class]
        backward = [item for item in members if item.phase in _BACKWARD]
        ahead = [item for item in members if item.phase is Phase.FORWARD]
        for what, unit, known in (("time", "ns", row.time), ("FLOP", "FLOP", row.flops), ("bytes", "B", row.bytes)):
            if known is not None:
                yield phrase(f"{{}}, {what}: {{}} {unit} / {{}} {unit} = {{}}", row.operator_class,
                             Count(_amount(backward, what)), Count(_amount(ahead, what)), Quotient(known))  # fmt: skip


def _amount(rows: Iterable[ClassRow], what: str) -> int:
    if what == "time":
        return sum(row.time_ns for row in rows)
    if what == "FLOP":
        return sum(row.flops or 0 for row in rows)
    return sum((row.read_bytes or 0) + (row.written_bytes or 0) for row in rows)


def by_graphs(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The work of graphs that is no operator's, of one step."""
    steps, ns = steps_of(anatomy), without_operator_ns(anatomy)[0]
    if ns:
        yield a_step(nanoseconds(ns), steps, Time(ns / steps))


def without_operator(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The work that is neither an operator's nor a graph's, of one step."""
    steps, (graphs, ns) = steps_of(anatomy), without_operator_ns(anatomy)
    known = sum(row.time_ns for row in anatomy.operators)
    if ns:
        amount = phrase("(time {} - of operators {} - of graphs {})", nanoseconds(total(anatomy.classes).time_ns),
                        nanoseconds(known), nanoseconds(graphs))  # fmt: skip
        yield a_step(amount, steps, Time(ns / steps))


def of_modules(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The FLOPs of all modules by phase, of one step."""
    steps = steps_of(anatomy)
    groups = (("forward", (Phase.FORWARD,)), ("backward", _BACKWARD), ("prefill", (Phase.PREFILL,)),
              ("decoding", (Phase.DECODING,)))  # fmt: skip
    for name, phases in groups:
        amount = Amount()
        for row in anatomy.modules:
            if row.phase in phases:
                amount.add(row)
        known = amount.flops or 0
        result = known_flops(None if amount.flops is None else known / steps, amount.costed_ns, amount.time_ns)
        if result.flops is not None:
            yield phrase("{}: {}", name, a_step(phrase("{} FLOP", _whole(known)), steps, result))


def of_paper(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The FLOPs and the time of each class of the paper, over those of the three, optimizer left out."""
    classes = (OperatorClass.TENSOR_CONTRACTION, OperatorClass.STATISTICAL_NORMALIZATION, OperatorClass.ELEMENTWISE)
    members = [
        row for row in anatomy.classes if row.operator_class in classes and row.phase is not Phase.OPTIMIZER
    ]  # fmt: skip
    whole = total(members)
    for item in classes:
        part = total(row for row in members if row.operator_class is item)
        if part.flops is not None and whole.flops and whole.time_ns:
            yield phrase("{}: {} FLOP / {} FLOP = {}, {}", item, _whole(part.flops), _whole(whole.flops),
                         Share(part.flops, whole.flops, decimals=2),
                         quotient("time", part.time_ns, "time", whole.time_ns) or "")  # fmt: skip
