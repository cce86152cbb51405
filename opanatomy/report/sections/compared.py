"""A comparison: what changed in a sentence, what was compared, where the difference comes from, the figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from opanatomy.records.compared import SIGNIFICANT, Comparison, Decomposition, FigureRow, Side
from opanatomy.report.section import (
    Change,
    Count,
    Fact,
    Name,
    Note,
    Phrase,
    Section,
    Time,
    Tone,
    joined,
    phrase,
)
from opanatomy.report.sections.causes import groups_of, sentence_of
from opanatomy.report.sections.compared_figures import (
    families_table,
    figures_of_many,
    figures_table,
    steps_table,
)
from opanatomy.report.sections.compared_parts import causes_table, changes_table, kernels_table
from opanatomy.report.units import duration

#: What sides that are not comparable lack.
_WITHHELD: Final = "The figures stand side by side, without changes and causes; a gate on a change is unknown."
#: How many causes have a sentence.
IN_SENTENCES: Final = 3


def sections_of_comparison(comparison: Comparison, top: int) -> tuple[Section, ...]:
    """The sections of a comparison, in the order of the page."""
    parts = comparison.decomposition
    if len(comparison.sides) > 2:
        tables = [figures_of_many(comparison)]
    else:
        causes = [] if parts is None else [causes_table(parts), changes_table(parts, top), kernels_table(parts)]
        tables = [*causes, steps_table(comparison), figures_table(comparison), families_table(comparison)]
    sections = (
        _title(comparison), _what_changed(comparison), _gates(comparison), _sides(comparison), *tables,
        _warnings(comparison),
    )  # fmt: skip
    return tuple(section for section in sections if not section.empty)


def _title(comparison: Comparison) -> Section:
    names = [Name(side.name) for side in comparison.sides]
    text = phrase(" against ".join("{}" for _ in names), *names)
    return Section(name="title", title="Comparison", notes=(Note(text=text, tone=Tone.TITLE),))


def _what_changed(comparison: Comparison) -> Section:
    """The difference of the step in a sentence, the largest causes in one each."""
    parts = comparison.decomposition
    if comparison.not_comparable:
        reasons = [Note(text=f"Not comparable: {why}.", tone=Tone.CONCLUSION) for why in comparison.not_comparable]
        return Section(name="changed", title="What changed", notes=(*reasons, Note(text=_WITHHELD, tone=Tone.REMARK)))
    if parts is None:
        return Section(name="changed", title="What changed", notes=_extremes(comparison))
    sentences = [
        phrase("{}.", sentence_of(group)) for group in groups_of(parts.parts)[:IN_SENTENCES] if group.change_ns
    ]
    notes = [Note(text=headline(comparison, parts), tone=Tone.CONCLUSION)]
    notes += [Note(text=text, tone=Tone.PLAIN) for text in sentences]
    if comparison.no_claim is not None and parts.change_ns:
        notes.append(Note(text=f"Nothing is called significant: {comparison.no_claim}.", tone=Tone.REMARK))
    return Section(name="changed", title="What changed", notes=tuple(notes))


def _extremes(comparison: Comparison) -> tuple[Note, ...]:
    """Of more than two sides those with the shortest step and those with the longest; equal is what is shown equal."""
    row = next((row for row in comparison.figures if row.name == "step_time_ns"), None)
    values = [] if row is None else list(zip(row.values, comparison.sides, strict=True))
    known = [(value, side.name) for value, side in values if value is not None]
    if len(known) < 2:
        return ()
    if len(comparison.sides) == 2:
        (before, _), (after, _) = known
        text = phrase("The step takes {} before and {} after ({}).", Time(before), Time(after), Change(after, before))
        return (Note(text=text, tone=Tone.CONCLUSION),)
    least, most = min(known)[0], max(known)[0]
    shortest, longest = ([name for value, name in known if duration(value) == duration(end)] for end in (least, most))
    if len(shortest) == len(known):
        which = "" if len(known) == len(comparison.sides) else " that have its time"
        text = phrase("The step takes {} on all {} sides{}.", Time(least), Count(len(known)), which)
    else:
        text = phrase("The step is shortest on {}, {}, and longest on {}, {}.", _all_named(shortest), Time(least),
                      _all_named(longest), Time(most))  # fmt: skip
    return (Note(text=text, tone=Tone.CONCLUSION),)


def _all_named(sides: Sequence[str]) -> Phrase:
    """The sides by their names, of many how many more there are."""
    shown = [phrase("{}", Name(side)) for side in sides[:IN_SENTENCES]]
    if more := len(sides) - len(shown):
        return phrase("{} and {} more", joined(shown) or "", Count(more))
    *others, last = shown
    return phrase("{} and {}", joined(others) or "", last) if others else last


def headline(comparison: Comparison, parts: Decomposition) -> Phrase:
    """The difference of the step, without the profiler where both sides were timed so, and of the one that has parts.

    Where the profiler adds more to one side than to the other they may go opposite ways.
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
            Time(abs(after - before)), how, Change(after, before), Time(before), Time(after), _tested(plain),
        )  # fmt: skip
    unlike = (after - before) * parts.change_ns < 0
    word = "But the profiled step, whose parts follow," if unlike else "The profiled step, whose parts follow,"
    return phrase("{}. {}.", first, _profiled(word, parts, profiled))


def _profiled(subject: str, parts: Decomposition, row: FigureRow | None) -> Phrase:
    """What became of the step that is divided into parts."""
    if not parts.change_ns:
        same = ", and so does each part of it" if not any(part.change_ns for part in parts.parts) else ""
        return phrase(subject + " takes {} on both sides{}", Time(parts.before_ns), same)
    how = "longer" if parts.change_ns > 0 else "shorter"
    said: Phrase | str = "" if row is None else _tested(row)
    if not said and any(len(steps) == 1 for steps in (parts.before_steps, parts.after_steps)):
        said = "; one step cannot distinguish a change from chance"
    return phrase(
        subject + " is {} {} ({}): {} before, {} after{}",
        Time(abs(parts.change_ns)), how, Change(parts.after_ns, parts.before_ns), Time(parts.before_ns),
        Time(parts.after_ns), said,
    )  # fmt: skip


def _tested(row: FigureRow) -> Phrase | str:
    """What can be said of the difference: by the runs, else by the ranges of the like steps."""
    if row.p is not None:
        return f"; over the runs p = {row.p:.2g}{'' if row.p < SIGNIFICANT else ', which may be chance'}"
    return phrase("; the ranges of the like steps are {}", row.ranges) if row.ranges else ""


def _sides(comparison: Comparison) -> Section:
    facts = []
    for place, side in enumerate(comparison.sides):
        label = ("before", "after")[place] if len(comparison.sides) == 2 else f"{place + 1}"
        what = joined(
            (
                phrase("{}", Name(side.name)), side.model, side.device, side.software,
                phrase("{}", Count(side.ranks, "rank")) if side.ranks > 1 else None,
                phrase("{}", Count(side.runs, "run")) if side.runs > 1 else None,
            )
        )  # fmt: skip
        facts.append(Fact(label=label, text=what or ""))
    parts = comparison.decomposition
    if parts is not None:
        facts.append(Fact(label="steps", text=_what_is_compared(comparison, parts)))
    return Section(name="sides", title="What is compared", facts=tuple(facts))


def _what_is_compared(comparison: Comparison, parts: Decomposition) -> Phrase:
    """Which steps the means are of."""
    sides = [
        phrase("{}{}", _numbers(numbers), _aside(side))
        for numbers, side in zip((parts.before_steps, parts.after_steps), comparison.sides, strict=True)
    ]
    others = joined(
        phrase(
            "{} ({}) against {} ({})",
            Time(kind.before_ns),
            _numbers(kind.before_steps),
            Time(kind.after_ns),
            _numbers(kind.after_steps),
        )
        for kind in comparison.other_kinds
    )
    return phrase("{} against {}{}", *sides, phrase("; of another kind: {}", others) if others else "")


def _numbers(steps: Sequence[int]) -> str:
    shown = ", ".join(map(str, steps[:6])) + (f" and {len(steps) - 6} more" if len(steps) > 6 else "")
    if not steps:
        return "the whole trace"
    return f"{'step' if len(steps) == 1 else 'the mean of steps'} {shown}"


def _aside(side: Side) -> str:
    count = sum(step.set_aside is not None for step in side.steps)
    return f" ({count} set aside)" if count else ""


def _gates(comparison: Comparison) -> Section:
    facts = [Fact(label="gate", text=gate.line, warning=not gate.met) for gate in comparison.gates]
    return Section(name="gates", title="Gates", facts=tuple(facts))


def _warnings(comparison: Comparison) -> Section:
    facts = [Fact(label="warning", text=text, warning=True) for text in comparison.warnings]
    return Section(name="warnings", title="Warnings", facts=tuple(facts))
