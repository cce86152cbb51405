"""The few figures of a comparison: the sides, the step and the memory of each, where the difference comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from opanatomy.records.compared import Comparison, FigureRow
from opanatomy.report.section import (
    Cell,
    Change,
    Count,
    Name,
    Phrase,
    Section,
    Time,
    TimeChange,
    facts_of,
    joined,
    phrase,
)
from opanatomy.report.sections.causes import groups_of, sentence_of
from opanatomy.report.sections.compared import quantity_of
from opanatomy.report.sections.verdict import Finding

Facts = Iterable[tuple[str, str | Phrase | None]]
#: The figures of a step that are named; those of classes and of memory are known by how their names begin and end.
_STEP: Final = (
    "step_time_ns", "step_profiled_ns", "samples_per_second", "forward_time_ns", "backward_time_ns",
    "optimizer_time_ns", "busy_ns", "idle_ns", "framework_ns", "exposed_communication_ns", "kernel_time_ns",
)  # fmt: skip
_CLASS: Final = ("class.", ".time_ns")
_MEMORY, _PEAK = "memory.", "peak_memory_bytes"
#: What shows the parts with their operators, signatures and kernels.
_COMMAND: Final = "opanatomy compare BEFORE AFTER -f json"


def digest_of_comparison(comparison: Comparison) -> tuple[Section, ...]:
    """What was compared, the step and the memory on each side, gates and warnings."""
    figures = comparison.figures
    step = [row for name in _STEP for row in figures if row.name == name]
    classes = [row for row in figures if row.name.startswith(_CLASS[0]) and row.name.endswith(_CLASS[1])]
    memory = [row for row in figures if row.name == _PEAK or row.name.startswith(_MEMORY)]
    parts = (
        ("run", "What ran", _run(comparison)),
        ("step", "The step", [*_difference(comparison), *_figures(step)]),
        ("time", "Where the time went", _figures(classes)),
        ("memory", "Memory", _figures(memory)),
        ("warnings", "Warnings", _warnings(comparison)),
    )
    return tuple(Section(name=name, title=title, facts=facts_of(*facts)) for name, title, facts in parts)


def comparison_findings(comparison: Comparison) -> tuple[Finding, ...]:
    """The causes of the difference, the largest first; of more than two sides there are none."""
    if comparison.decomposition is None:
        return ()
    return tuple(
        Finding(
            name=group.name,
            text=sentence_of(group),
            evidence=phrase("{} before, {} after", Time(group.before_ns), Time(group.after_ns)),
            next_command=_COMMAND,
        )
        for group in groups_of(comparison.decomposition)
        if group.change_ns
    )


def _run(comparison: Comparison) -> Iterator[tuple[str, Phrase | None]]:
    for place, side in enumerate(comparison.sides):
        label = ("before", "after")[place] if len(comparison.sides) == 2 else f"side {place + 1}"
        yield label, joined(
            (
                phrase("{}", Name(side.name)), side.model and phrase("{}", Name(side.model)), side.device,
                phrase("{}", Count(side.ranks, "rank")), phrase("{}", Count(side.runs, "run")),
                phrase("{}", Count(len(side.steps), "like step")),
            )
        )  # fmt: skip


def _difference(comparison: Comparison) -> Facts:
    parts = comparison.decomposition
    if parts is None:
        return
    yield "mean step", phrase("{} -> {} ({}, {})", Time(parts.before_ns), Time(parts.after_ns),
                              TimeChange(parts.change_ns), Change(parts.after_ns, parts.before_ns))  # fmt: skip


def _figures(rows: Sequence[FigureRow]) -> Facts:
    """A figure on all sides, and what the last one is more or less than the first."""
    for row in rows:
        if all(value is None for value in row.values):
            continue
        cells: list[Cell] = [None if value is None else quantity_of(row.unit, value) for value in row.values]
        sides = joined((phrase("{}", cell) if cell is not None else "-" for cell in cells), " -> ")
        yield row.name, phrase("{} ({})", sides or "", Change(row.values[-1], row.values[0]))


def _warnings(comparison: Comparison) -> Facts:
    yield from (("gate", f"{'met' if gate.met else 'not met'}: {gate.reason}") for gate in comparison.gates)
    yield "nothing is called significant", comparison.no_claim
    yield from (("warning", text) for text in comparison.warnings)
