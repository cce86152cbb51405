"""Memory by theory: terms of the activations, a published run next to ours, what a step that does not fit needs."""

from __future__ import annotations

from opanatomy.records.anatomy import Anatomy
from opanatomy.report.section import Bytes, Column, Figure, Holds, Note, Row, Section, Tone


def terms(anatomy: Anatomy) -> Section | None:
    """The closed formula of the activations, term by term."""
    if not anatomy.memory.terms:
        return None
    columns = (
        Column(header="activations by theory", holds=Holds.NAMES),
        Column(header="formula", holds=Holds.FORMULAS, expendable=1),
        Column(header="bytes"),
    )
    rows = [Row(cells=(term.term, term.formula, Bytes(term.bytes))) for term in anatomy.memory.terms]
    whole = sum(term.bytes for term in anatomy.memory.terms)
    rows.append(Row(cells=("sum", None, Bytes(whole)), summary=True))
    return Section(name="activation-terms", title="Activations by theory", columns=columns, rows=tuple(rows))


def published(anatomy: Anatomy) -> Section | None:
    """The figures of a published run next to ours."""
    figures = anatomy.memory.published
    if not figures:
        return None
    columns = (
        Column(header="the classic run", holds=Holds.NAMES),
        Column(header=figures[0].published_device),
        Column(header="ours"),
        Column(header="difference", expendable=1),
    )
    rows = []
    for item in figures:
        difference = None if item.measured is None else item.measured - item.published
        cells = (
            Figure(item.published, item.unit),
            Figure(item.measured, item.unit),
            Figure(difference, item.unit, difference=True),
        )
        rows.append(Row(cells=(item.figure, *cells)))
    return Section(name="published", title="The classic run", columns=columns, rows=tuple(rows))


def failure(anatomy: Anatomy) -> Section | None:
    """Where it broke: the request, what was allocated, what theory says is needed."""
    memory, event = anatomy.memory, anatomy.memory.failure
    if event is None:
        return None
    sizes = (
        ("the request that failed", event.requested_bytes),
        ("allocated when it broke", event.allocated_bytes),
        ("needed by theory, buffers apart", memory.needed_bytes),
    )
    columns = (Column(header=f"out of memory in {event.phase.value}", holds=Holds.NAMES), Column(header="bytes"))
    text = event.message if event.seen else f"{event.message} - not seen again in a second step"
    return Section(
        name="out-of-memory",
        title="Out of memory",
        columns=columns,
        rows=tuple(Row(cells=(name, Bytes(size))) for name, size in sizes),
        notes=(Note(text=text, tone=Tone.REMARK),),
    )


def savings(anatomy: Anatomy) -> Section | None:
    """What would lower the need, where the step did not fit."""
    memory = anatomy.memory
    if memory.failure is None or not memory.savings:
        return None
    columns = (
        Column(header="would save", holds=Holds.NAMES),
        Column(header="option", holds=Holds.NAMES, expendable=2),
        Column(header="bytes"),
        Column(header="then needed", expendable=1),
        Column(header="fits"),
    )
    fits = {True: "yes", False: "no", None: "perhaps"}
    rows = tuple(
        Row(
            cells=(
                saving.technique, saving.option, Bytes(saving.saved_bytes), Bytes(saving.needed_bytes),
                fits[saving.fits],
            )
        )
        for saving in memory.savings
    )  # fmt: skip
    return Section(name="savings", title="What would save memory", columns=columns, rows=rows)
