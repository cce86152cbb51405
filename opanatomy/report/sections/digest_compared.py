"""The few figures of a comparison that a machine asks for first: one fact a line, and its findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from opanatomy.records.compared import Cause, Comparison, FigureRow, Side
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report.section import Change, Count, Name, Phrase, Section, Time, TimeChange, facts_of, joined, phrase
from opanatomy.report.sections.causes import Group, groups_of, sentence_of
from opanatomy.report.sections.commands import Further, Next, looked_at
from opanatomy.report.sections.compared import headline
from opanatomy.report.sections.compared_figures import shown_figures, with_bound
from opanatomy.report.sections.verdict import Finding

#: How many causes are named.
_CAUSES: Final = 12
#: The rows of a table that is to have what changed among them.
_TOP: Final = "--top 30"
_BY_CALLS: Final = f"--sort calls {_TOP}"
#: Where a report says more of work that changed for this cause: kernels where they are what is other.
_OF_WORK: Final = {
    Cause.SAME_CALLS: Further(section="kernels", options=_TOP),
    Cause.ANOTHER_KERNEL: Further(section="kernels", options=_TOP),
    Cause.MORE_CALLS: Further(section="operators", options=_BY_CALLS),
    Cause.FEWER_CALLS: Further(section="operators", options=_BY_CALLS),
}  # fmt: skip
_OPERATORS: Final = Further(section="operators", options=_TOP)
#: The same of what is no work.
_OF_TIME: Final = {
    Cause.FRAMEWORK: Further(section="operators", options=_BY_CALLS), Cause.OUTSIDE: Further(section="step"),
}  # fmt: skip
_IDLE: Final = Further(section="idle")


def digest_of_comparison(comparison: Comparison) -> tuple[Section, ...]:
    """What was compared, where the difference comes from, the figures, gates and warnings."""
    parts = comparison.decomposition
    groups = [] if parts is None else [group for group in groups_of(parts.parts) if group.change_ns]
    causes = [
        (group.name, phrase("{} ({} before, {} after)", TimeChange(group.change_ns), Time(group.before_ns),
                            Time(group.after_ns)))
        for group in groups[:_CAUSES]
    ]  # fmt: skip
    if more := groups[_CAUSES:]:
        left = phrase("{} causes: {}", Count(len(more)), TimeChange(sum(group.change_ns for group in more)))
        causes.append(("and", left))
    step = [] if parts is None else [("step", headline(comparison, parts))]
    figures = [(row.name, _values(row, comparison)) for row in shown_figures(comparison)]
    sides = [(f"side {place}", _side(side)) for place, side in enumerate(comparison.sides, 1)]
    gates = [("gate", gate.line) for gate in comparison.gates]
    warnings = [("warning", text) for text in comparison.warnings]
    reasons = [("not comparable", why) for why in comparison.not_comparable]
    if comparison.no_claim is not None and not reasons:
        warnings.insert(0, ("nothing is called significant", comparison.no_claim))
    blocks = (
        ("run", "What is compared", [*reasons, *sides, *step]), ("causes", "Where the difference comes from", causes),
        ("figures", "Figures of one step, side by side", figures), ("gates", "Gates", gates),
        ("warnings", "Warnings", warnings),
    )  # fmt: skip
    return tuple(Section(name=name, title=title, facts=facts_of(*facts)) for name, title, facts in blocks)


def _values(row: FigureRow, comparison: Comparison) -> Phrase:
    """A figure on every side, and what the last one is more or less than the first, where these are of the same."""
    if comparison.not_comparable:
        return joined((with_bound(row, place) for place in range(len(row.values))), " against ") or phrase("")
    values = joined((with_bound(row, place) for place in range(len(row.values))), " -> ") or ""
    return phrase("{} ({})", values, Change(row.values[-1], row.values[0]))


def _side(side: Side) -> Phrase | None:
    counts = (Count(side.ranks, "rank"), Count(side.runs, "run"))
    several = (phrase("{}", each) for each, number in zip(counts, (side.ranks, side.runs), strict=True) if number > 1)
    return joined((phrase("{}", Name(side.name)), side.model, side.device, *several))


def findings_of_comparison(comparison: Comparison, sides: Sequence[str | None] = ()) -> tuple[Finding, ...]:
    """The largest causes of the difference, each with its share of the step before.

    The command shows what is most of the cause on the side that has more of it; it calls that as in `sides`.
    """
    parts = comparison.decomposition
    if parts is None:
        return ()
    return tuple(
        Finding(
            name=group.name, text=sentence_of(group),
            evidence=phrase("{} before, {} after, {} of the step before", Time(group.before_ns), Time(group.after_ns),
                            Change(parts.before_ns + group.change_ns, parts.before_ns)),
            next=_next(group, comparison, sides),
        )
        for group in groups_of(parts.parts) if group.change_ns
    )  # fmt: skip


def _next(group: Group, comparison: Comparison, sides: Sequence[str | None]) -> Next:
    """The sections that say more of a cause, of the side on which it takes longer; an overlap is negative time."""
    before, after = abs(group.before_ns), abs(group.after_ns)
    place = 0 if before > after else 1
    side = sides[place] if place < len(sides) else None
    several = comparison.sides[place].ranks > 1
    return looked_at(further_of(group, several=several), side)


def further_of(group: Group, *, several: bool) -> tuple[Further, ...]:
    """Where a report says more of a cause; of `several` ranks also who waits for whom."""
    if group.cause is Cause.OVERLAP:
        pair = group.parts[0].pair or ()
        return (_IDLE, Further(section="communication")) if "communication" in pair else (_IDLE,)
    if not group.cause.is_work:
        return (_OF_TIME.get(group.cause, _IDLE),)
    if group.operator_class is OperatorClass.COMMUNICATION:
        sections = ("communication", "waiting") if several else ("communication",)
        return tuple(Further(section=section) for section in sections)
    return (_OF_WORK.get(group.cause, _OPERATORS),)
