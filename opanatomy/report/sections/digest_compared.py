"""The few figures of a comparison that a machine asks for first: one fact a line, and its findings."""

from __future__ import annotations

import shlex
from typing import Final

from opanatomy.records.compared import Comparison, FigureRow, Side
from opanatomy.report.section import Change, Count, Name, Phrase, Section, Time, TimeChange, facts_of, joined, phrase
from opanatomy.report.sections.causes import groups_of, sentence_of
from opanatomy.report.sections.compared import headline
from opanatomy.report.sections.compared_figures import quantity, shown_figures
from opanatomy.report.sections.verdict import Finding

#: How many causes are named.
_CAUSES: Final = 12


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
    figures = [(row.name, _values(row)) for row in shown_figures(comparison)]
    sides = [(f"side {place}", _side(side)) for place, side in enumerate(comparison.sides, 1)]
    gates = [("gate", f"{'met' if gate.met else 'not met'}: {gate.gate}: {gate.reason}") for gate in comparison.gates]
    warnings = [("warning", text) for text in comparison.warnings]
    if comparison.no_claim is not None:
        warnings.insert(0, ("nothing is called significant", comparison.no_claim))
    blocks = (
        ("run", "What is compared", [*sides, *step]), ("causes", "Where the difference comes from", causes),
        ("figures", "Figures of one step, side by side", figures), ("gates", "Gates", gates),
        ("warnings", "Warnings", warnings),
    )  # fmt: skip
    return tuple(Section(name=name, title=title, facts=facts_of(*facts)) for name, title, facts in blocks)


def _values(row: FigureRow) -> Phrase:
    """A figure on every side, and what the last one is more or less than the first."""
    values = ("-" if value is None else phrase("{}", quantity(row.unit, value)) for value in row.values)
    return phrase("{} ({})", joined(values, " -> ") or "", Change(row.values[-1], row.values[0]))


def _side(side: Side) -> Phrase | None:
    return joined(
        (phrase("{}", Name(side.name)), side.model, side.device, phrase("{}", Count(side.ranks, "rank")),
         phrase("{}", Count(side.runs, "run")))
    )  # fmt: skip


def findings_of_comparison(comparison: Comparison, *, source: str | None = None) -> tuple[Finding, ...]:
    """The largest causes of the difference, each with its share of the step before.

    `source` is the sides as typed, or the name of the saved comparison.
    The command shows the parts with their operators, signatures and kernels.
    """
    parts = comparison.decomposition
    if parts is None:
        return ()
    verb = "compare" if source is None or len(shlex.split(source)) > 1 else "analyze"
    return tuple(
        Finding(
            name=group.name, text=sentence_of(group),
            evidence=phrase("{} before, {} after, {} of the step before", Time(group.before_ns), Time(group.after_ns),
                            Change(parts.before_ns + group.change_ns, parts.before_ns)),
            next_command=None if source is None else f"opanatomy {verb} {source} -f json",
        )
        for group in groups_of(parts.parts) if group.change_ns
    )  # fmt: skip
