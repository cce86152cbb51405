"""What a report adds to an explanation: a formula worked on its calls, and what nobody could class or count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from opanatomy.records.anatomy import Anatomy, OperatorRow
from opanatomy.report.section import Column, Count, Fact, Holds, Note, Phrase, Row, Section, Share, Time, Tone, phrase
from opanatomy.report.sections.ledger import unclassified, uncosted

#: Signatures of an operator that are worked one by one.
_EXAMPLES: Final = 2


def examples(name: str, anatomy: Anatomy) -> tuple[Fact, ...]:
    """The calls of an operator that take most of a report's time: arguments, FLOPs and bytes of one, rates reached."""
    rows = [row for row in anatomy.operators if row.operator == name]
    if not rows:
        of_trace = f" of {anatomy.provenance.trace}" if anatomy.provenance.trace else ""
        return (Fact(label="example", text=f"none: the report{of_trace} does not have it"),)
    facts = []
    for row in rows[:_EXAMPLES]:
        has_parts = any(part.part_of == name and part.phase is row.phase for part in anatomy.operators)
        facts.append(Fact(label="example", text=f"{row.operator}({row.signature})"))
        facts += [Fact(label="", text=text) for text in _worked(row, has_parts=has_parts)]
    if others := rows[_EXAMPLES:]:
        time = Time(sum(row.time_ns for row in others))
        facts.append(Fact(label="", text=phrase("and {}, {} in all", Count(len(others), "more signature"), time)))
    return tuple(facts)


def _worked(row: OperatorRow, *, has_parts: bool) -> Iterator[str | Phrase]:
    """Calls, cost and bound of a row; where it `has_parts` no time of a signature with these is known."""
    without = ", its parts apart" if has_parts else ""
    yield phrase("{} in {}, {} in all{}", Count(row.calls, "call"), row.phase.value, Time(row.time_ns), without)
    if row.part_of is not None:
        yield f"a part of {row.part_of}: its FLOPs and bytes are counted there"
        return
    if row.flops is None or row.read_bytes is None or row.written_bytes is None:
        yield "not counted: these arguments do not say what its formula needs"
        return
    flops, read, written = (Count(value // row.calls) for value in (row.flops, row.read_bytes, row.written_bytes))
    yield phrase("one call: {} FLOP, {} bytes read, {} bytes written", flops, read, written)
    if row.causal_flops is not None:
        yield phrase("{} FLOP of them under the causal mask", Count(row.causal_flops // row.calls))
    if row.normalization_flops:
        inside = Count(row.normalization_flops // row.calls)
        yield phrase("{} FLOP more of the normalization inside, not part of these", inside)
    if row.bound_ns is not None and row.bound_by is not None and row.bounded_ns:
        reached = "" if has_parts else phrase(", {} reached", Share(row.bound_ns, row.bounded_ns))
        yield phrase("bound by {}: {} at least{}", row.bound_by, Time(row.bound_ns), reached)


def unexplained(anatomy: Anatomy) -> tuple[Section, ...]:
    """The names of a report that no rule knows, and those that no formula counts, each with its share of the time."""
    whole_ns = anatomy.ledger.device_work_ns - anatomy.ledger.outside_window_ns
    return (
        _named("unclassified", "no rule knows", unclassified(anatomy), whole_ns),
        _named("uncosted", "no formula counts, or its arguments are not in the trace", uncosted(anatomy), whole_ns),
    )


def _named(name: str, title: str, times: Counter[str], whole_ns: int) -> Section:
    share = Share(sum(times.values()), whole_ns)
    head = phrase("{}: {}, {} of the time", title, Count(len(times), "name"), share) if times else f"{title}: nothing"
    return Section(
        name=name,
        title=title,
        columns=(Column(header="share"), Column(header="name", holds=Holds.FORMULAS)),
        rows=tuple(Row(cells=(Share(ns, whole_ns), operator)) for operator, ns in times.most_common()),
        notes=(Note(text=head, tone=Tone.PLAIN),),
    )
