"""Figures of communication and of ranks worked."""

from __future__ import annotations

from collections.abc import Iterator

from opanatomy.records.anatomy import Anatomy
from opanatomy.report.glossary.figures_step import a_step, nanoseconds, quotient
from opanatomy.report.scope import steps_of
from opanatomy.report.section import ByteRate, Count, Phrase, Share, Time, phrase
from opanatomy.report.straggler import how_late, name_of

_SHOWN = 4


def hidden(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """What other work hides of the communication of each phase, and of all of it."""
    known = anatomy.communication
    if known is None:
        return
    rows = [(str(row.phase), row.running_ns, row.exposed_ns) for row in known.phases]
    for name, running, exposed in (*rows, ("together", known.running_ns, known.exposed_ns)):
        if running:
            yield phrase("{}: (time {} - exposed {}) / time = {}", name, nanoseconds(running), nanoseconds(exposed),
                         Share(running - exposed, running))  # fmt: skip


def exposed(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """What nothing hides of the communication of each phase, and of all of it."""
    known = anatomy.communication
    if known is None:
        return
    steps = steps_of(anatomy)
    rows = [(str(row.phase), row.exposed_ns) for row in known.phases]
    for name, ns in (*rows, ("together", known.exposed_ns)):
        yield phrase("{}: {}", name, a_step(nanoseconds(ns), steps, Time(ns / steps)))


def bus(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The bus bandwidth of each collective."""
    for row in anatomy.collectives[:_SHOWN]:
        if row.bus_bytes_per_second is None or not row.bytes or not row.sized_ns:
            continue
        factor = row.bus_bytes_per_second * row.sized_ns / (row.bytes * 1e9)
        ranks = "" if row.group_size is None else phrase(", {}", Count(row.group_size, "rank"))
        yield phrase("{}{}: {} x {} B / {} = {}", row.collective.replace("_", " "), ranks, f"{factor:.6g}",
                     Count(row.bytes), nanoseconds(row.sized_ns), ByteRate(row.bus_bytes_per_second))  # fmt: skip


def own(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The step less exposed communication of the first ranks."""
    if len(anatomy.ranks) < 2:
        return
    for rank in anatomy.ranks[:_SHOWN]:
        wall, exposed = rank.wall_ns, rank.a_step("exposed_communication")
        if wall is None or exposed is None:
            continue
        name = rank.trace or "?" if rank.rank is None else f"rank {rank.rank}"
        yield phrase("{}: step {} - exposed {} = {}", name, nanoseconds(wall), nanoseconds(exposed),
                     Time(max(wall - exposed, 0)))  # fmt: skip


def waiting(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """A step of the first ranks in its parts: they sum to it."""
    if anatomy.waiting is None:
        return
    for rank in anatomy.waiting.each[:_SHOWN]:
        name = rank.trace or "?" if rank.rank is None else f"rank {rank.rank}"
        for row in rank.steps[:1]:
            yield phrase(
                "{}: {} of its first step are other work {} + transfer {} + waiting {} + unmatched {}"
                " + idle {}", name,
                *map(nanoseconds, (row.wall_ns, row.other_work_ns, row.transfer_ns, row.waiting_ns, row.unmatched_ns,
                                   row.idle_ns)),
            )  # fmt: skip


def straggler(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """What of all waiting is charged to the straggler, or why none is named."""
    waits = anatomy.waiting
    if waits is None:
        return
    if waits.straggler is None:
        yield phrase("none is named: {}", waits.no_straggler or "no rank is waited for more than the others")
        return
    row = waits.straggler
    yield quotient(f"{name_of(row)}: charged", row.charged_ns, "all waiting", row.waiting_ns)
    yield how_late(row, waits)
