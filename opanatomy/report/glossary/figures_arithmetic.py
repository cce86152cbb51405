"""Shares, intensities, bounds and ratios of a report worked, class by class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from opanatomy.records.anatomy import Anatomy, ClassRow
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report.glossary.figures_step import nanoseconds, quotient
from opanatomy.report.section import (
    ByteRate,
    Bytes,
    Count,
    FlopRate,
    Flops,
    Phrase,
    Share,
    Time,
    phrase,
)
from opanatomy.report.section import Ratio as Quotient
from opanatomy.report.totals import Total, total

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
    """The time of each class."""
    return _each(anatomy, lambda part: phrase("{} = {}", nanoseconds(part.time_ns), Time(part.time_ns)))


def share(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The share of each class of the time, and of the FLOPs where these cover half of the time."""
    whole = total(anatomy.classes)
    yield from _each(anatomy, lambda part: quotient("time", part.time_ns, "total", whole.time_ns))
    if whole.flops_cover:
        yield from _each(
            anatomy,
            lambda part: None
            if part.flops is None or not whole.flops
            else phrase("{} FLOP / total {} FLOP = {}", Count(part.flops), Count(whole.flops),
                        Share(part.flops, whole.flops)),
        )  # fmt: skip


def flops(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The FLOPs of each class."""
    return _each(
        anatomy,
        lambda part: (
            None
            if part.flops is None
            else phrase("{} FLOP = {}", Count(part.flops), Flops(part.flops, at_least=not part.flops_are_all))
        ),
    )


def moved_bytes(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The bytes of each class, read and written."""
    for name, rows in _parts(anatomy):
        part = total(rows)
        if part.bytes is not None:
            counted = [row for row in rows if row.read_bytes is not None and row.written_bytes is not None]
            yield phrase(
                "{}: read {} B + written {} B = {}", name, Count(sum(row.read_bytes or 0 for row in counted)),
                Count(sum(row.written_bytes or 0 for row in counted)),
                Bytes(part.bytes, at_least=not part.flops_are_all),
            )  # fmt: skip


def intensity(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """FLOPs a byte of each class."""
    return _each(
        anatomy,
        lambda part: (
            None
            if part.intensity is None or part.flops is None or not part.bytes
            else phrase("{} FLOP / {} B = {}", Count(part.flops), Count(part.bytes), Quotient(part.intensity))
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
    """time - bound of each class, summed over its operators and phases."""
    for name, rows in _parts(anatomy):
        known = [row for row in rows if row.headroom_ns is not None]
        if not known:
            continue
        part, spare = total(rows), sum(row.headroom_ns or 0 for row in known)
        faster = spare - (part.bounded_ns - (part.bound_ns or 0))
        beyond = phrase(" + {} of operators above their bound", nanoseconds(faster)) if faster else ""
        yield phrase("{}: time {} - bound {}{} = {} = {}", name, nanoseconds(part.bounded_ns),
                     nanoseconds(part.bound_ns or 0), beyond, nanoseconds(spare), Time(spare))  # fmt: skip


def bound(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The least time of each class."""
    return _each(
        anatomy,
        lambda part: (
            None if part.bound_ns is None else phrase("{} = {}", nanoseconds(part.bound_ns), Time(part.bound_ns))
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
        else phrase("{} FLOP / {} = {}", Count(part.flops), nanoseconds(part.costed_ns),
                    FlopRate(part.flops * 1e9 / part.costed_ns)),
    )  # fmt: skip


def byte_rate(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Bytes a second of each class, over the time whose bytes are known."""
    return _each(
        anatomy,
        lambda part: None
        if part.bytes is None or not part.costed_ns
        else phrase("{} B / {} = {}", Count(part.bytes), nanoseconds(part.costed_ns),
                    ByteRate(part.bytes * 1e9 / part.costed_ns)),
    )  # fmt: skip


def calls(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The calls of each class."""
    return _each(anatomy, lambda part: phrase("{}", Count(part.calls, "call")))


def of_class(anatomy: Anatomy, item: OperatorClass) -> Iterator[Phrase | None]:
    """What one class took, by phase."""
    rows, whole = [row for row in anatomy.classes if row.operator_class is item], total(anatomy.classes)
    if rows:
        part = total(rows)
        yield quotient("time", part.time_ns, "total", whole.time_ns)
        yield from (
            phrase("{}: {} in {}", row.phase.value, Time(row.time_ns), Count(row.calls, "call")) for row in rows
        )


def of_phase(anatomy: Anatomy, item: Phase) -> Iterator[Phrase | None]:
    """What one phase took, by class; on the CPU and on an accelerator also its part of the step."""
    rows, whole = [row for row in anatomy.classes if row.phase is item], total(anatomy.classes)
    if rows:
        yield quotient("device work", total(rows).time_ns, "total", whole.time_ns)
        yield from (
            phrase("{}: {} in {}", row.operator_class, Time(row.time_ns), Count(row.calls, "call")) for row in rows
        )
    wall = getattr(anatomy.step, f"{item}_ns", None)
    yield quotient(f"of the step: {item}", wall, "step", anatomy.step.wall_ns)


def ratios(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Backward over forward of the time, the FLOPs and the bytes of each class."""
    for row in anatomy.ratios:
        members = [item for item in anatomy.classes if item.operator_class is row.operator_class]
        behind = [item for item in members if item.phase in _BACKWARD]
        ahead = [item for item in members if item.phase is Phase.FORWARD]
        for what, unit, known in (("time", "ns", row.time), ("FLOP", "FLOP", row.flops), ("bytes", "B", row.bytes)):
            if known is not None:
                yield phrase(f"{{}}, {what}: {{}} {unit} / {{}} {unit} = {{}}", row.operator_class,
                             Count(_amount(behind, what)), Count(_amount(ahead, what)), Quotient(known))  # fmt: skip


def _amount(rows: Iterable[ClassRow], what: str) -> int:
    if what == "time":
        return sum(row.time_ns for row in rows)
    if what == "FLOP":
        return sum(row.flops or 0 for row in rows)
    return sum((row.read_bytes or 0) + (row.written_bytes or 0) for row in rows)
