"""The ledger and the checks of a report worked."""

from __future__ import annotations

from collections.abc import Iterator

from opanatomy.records.anatomy import Anatomy
from opanatomy.report.glossary.figures_step import nanoseconds, quotient
from opanatomy.report.section import Count, Exact, Phrase, phrase


def balance(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Device work as the sum of its terms, to the nanosecond."""
    account = anatomy.ledger
    if account.device_work_ns:
        yield phrase(
            "linked {} + launched by graphs {} + without launch record {} + outside the window {} = {}",
            *map(nanoseconds, (account.linked_ns, account.graph_launched_ns, account.no_launch_record_ns,
                               account.outside_window_ns, account.device_work_ns)),
        )  # fmt: skip


def part(anatomy: Anatomy, name: str) -> Iterator[Phrase | None]:
    """One of the parts of the device work inside the window."""
    account = anatomy.ledger
    inside = account.device_work_ns - account.outside_window_ns
    yield quotient(name, getattr(account, f"{name}_ns"), "device work inside the window", inside)


def linked(anatomy: Anatomy, name: str) -> Iterator[Phrase | None]:
    """One of the terms that the device work is the sum of."""
    account = anatomy.ledger
    yield quotient(name.removesuffix("_ns").replace("_", " "), getattr(account, name), "device work",
                   account.device_work_ns)  # fmt: skip


def check(anatomy: Anatomy, quantity: str) -> Iterator[Phrase | None]:
    """What came of one check."""
    for row in anatomy.checks:
        if row.quantity != quantity:
            continue
        if row.compared:
            yield phrase("{} of {} confirmed by {}", Count(row.equal), Count(row.compared), row.source)
        for item in row.differences:
            figures = (Exact(item.ours, row.unit), Exact(item.other, row.unit))
            yield phrase(
                "{}: here {}, there {}: {}", item.operator, *figures, item.cause or "no known cause explains it"
            )
        if row.not_checked:
            yield phrase("not checked: {}", row.not_checked)


def confirmed(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """How many figures each check confirmed."""
    for row in anatomy.checks:
        if row.compared:
            yield phrase("{}: {} of {}, by {}", row.quantity, Count(row.equal), Count(row.compared), row.source)
