"""The names of a comparison: work as its tables call it, operators, kernels, modules, causes, sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from opanatomy.records.compared import Comparison, Part, Side
from opanatomy.report.section import Count, Fact, Name, Phrase, Time, TimeChange, joined, phrase
from opanatomy.report.sections.causes import bare, groups_of, name_of_part
from opanatomy.report.sections.known import Known, listed


def names_of_comparison(report: Comparison) -> Iterator[Known]:
    """Work as the page names it, and each operator, kernel and module of it; the sides."""
    parts = () if report.decomposition is None else report.decomposition.parts
    groups: dict[tuple[str, str], list[Part]] = {}
    for part in parts:
        if part.cause.is_work:
            groups.setdefault((name_of_part(part), "work"), []).append(part)
        for key in dict.fromkeys(_names_of_part(part)):
            groups.setdefault(key, []).append(part)
    for group in groups_of(parts):
        yield Known(group.name, "cause", lambda group=group: _changed(group.parts))  # type: ignore[misc]
    code = {bare(name) for name, kind in groups if kind != "work"}
    for (name, kind), members in groups.items():
        if kind != "work" or name not in code:
            yield Known(name, kind, lambda members=members: _changed(members))  # type: ignore[misc]
    for place, side in enumerate(report.sides, 1):
        facts = lambda side=side: _side(side)  # noqa: E731
        yield Known(side.name, "side", facts, together=(f"{place} {side.name}",))


def _names_of_part(part: Part) -> Iterator[tuple[str, str]]:
    """Each name of the work of a part, with what it is the name of."""
    for side in (part.before, part.after):
        if side is not None:
            yield from ((name, "operator") for name in side.operators)
            yield from ((name, "kernel") for name in side.kernels)
            yield from ((name, "module") for name in side.modules if name)


def _changed(parts: Sequence[Part]) -> tuple[Fact, ...]:
    """What some work took on both sides, and by cause."""
    facts = [Fact(label="report", text=_before_and_after(parts))]
    groups = groups_of(parts)
    facts += [Fact(label="", text=phrase("{}: {}", group.name, _before_and_after(group.parts))) for group in groups]
    kernels = dict.fromkeys(
        bare(name) for part in parts for side in (part.before, part.after) if side is not None for name in side.kernels
    )
    return (*facts, *listed("kernels", (phrase("{}", Name(name)) for name in kernels)))


def _before_and_after(parts: Sequence[Part]) -> Phrase:
    before, after = sum(part.before_ns for part in parts), sum(part.after_ns for part in parts)
    return phrase("{} before, {} after, {}, of the mean step", Time(before), Time(after), TimeChange(after - before))


def _side(side: Side) -> tuple[Fact, ...]:
    """What one side ran on, and its like steps."""
    what = joined((side.model, side.device, side.software, phrase("{}", Count(side.runs, "run")),
                   phrase("{}", Count(side.ranks, "rank"))))  # fmt: skip
    steps = (
        phrase("{} {}{}", step.label, Time(step.value), f", set aside: {step.set_aside}" if step.set_aside else "")
        for step in side.steps
    )
    return (Fact(label="side", text=what or ""), *listed("steps", steps))
