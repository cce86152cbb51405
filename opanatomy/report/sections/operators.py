"""List the operators that take most of the time, all signatures in one phase together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from opanatomy.records.anatomy import MIN_COVERED, Anatomy, OperatorRow
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report import units
from opanatomy.report.section import (
    ByteRate,
    Cell,
    Column,
    ColumnKind,
    Count,
    FlopRate,
    Name,
    Note,
    Row,
    Section,
    Share,
    Time,
    calls_a_step,
    phrase,
    shares_of_work,
    steps_of,
    total,
    without_operator_ns,
)

Group: TypeAlias = tuple[OperatorClass, str, Phase]


def spare_ns(rows: Sequence[OperatorRow]) -> int:
    """Return the time above the bounds of some operator rows; never below 0."""
    return max(sum(row.bounded_ns - row.bound_ns for row in rows if row.bound_ns is not None), 0)


def operators(anatomy: Anatomy, top: int, sort: str = "time") -> Section | None:
    """Return the `top` operators, with their parts, the sum of the others, and the work that has no operator.

    The times sum to that of all classes. `sort` is one of `ORDERS`; the rows after the operators stay where they are.
    """
    groups = grouped(anatomy.operators)
    if not groups or top < 1:
        return None
    steps = steps_of(anatomy)
    whole_ns = total(anatomy.classes).time_ns / steps
    # Ties stay in the order of the anatomy: sorting is stable.
    ranked = sorted(groups.items(), key=lambda group: ORDERS[sort](group[0], group[1]))
    rows = [
        Row(cells=(Name(name), item, phase.value, *_cells(members, whole_ns, steps)), operator_class=item)
        for (item, name, phase), members in ranked[:top]
    ]
    if others := [row for _, members in ranked[top:] for row in members]:
        more = phrase("and {} more", Count(len(ranked) - top))
        rows.append(Row(cells=(more, None, None, *_cells(others, whole_ns, steps))))
    rows += _without_operator(anatomy, whole_ns, steps)
    columns = (
        Column(header="operator", holds=ColumnKind.NAMES),
        Column(header="class", holds=ColumnKind.NAMES, drop_order=4),
        Column(header="phase", holds=ColumnKind.NAMES, drop_order=3),
        Column(header="calls", drop_order=5),
        Column(header="time"),
        Column(header="share"),
        Column(header="FLOP/s", unit="FLOP/s", drop_order=1),
        Column(header="B/s", unit="B/s", drop_order=2),
    )
    order = "" if sort == "time" else f"by {sort}"
    return Section(
        name="operators", title="The operators that take most",
        scope="; ".join(filter(None, (shares_of_work(anatomy), order))), columns=columns, rows=tuple(rows),
    )  # fmt: skip


def _without_operator(anatomy: Anatomy, whole_ns: float, steps: int) -> Iterator[Row]:
    """Yield the device work that no operator call launched: that of graphs, and that without a launch record."""
    graphs, others = without_operator_ns(anatomy)
    for name, ns in (("launched by graphs", graphs), ("without an operator", others)):
        if ns > 0:
            part = ns / steps
            yield Row(cells=(name, None, None, None, Time(part), Share(part, whole_ns), None, None))


def _key(amount: Callable[[list[OperatorRow]], float | None]) -> Callable[[Group, list[OperatorRow]], float]:
    return lambda _, rows: -(amount(rows) or 0)


#: Values of `--sort`: operators in the order of one of their figures, the largest first, or by name.
ORDERS: Final[dict[str, Callable[[Group, list[OperatorRow]], Any]]] = {
    "time": _key(lambda rows: total(rows).time_ns),
    "flops": _key(lambda rows: total(rows).flops),
    "bytes": _key(lambda rows: total(rows).bytes),
    "calls": _key(lambda rows: sum(row.calls for row in rows if row.part_of is None)),
    "headroom": _key(spare_ns),
    "name": lambda group, _: (group[1], group[2].value),
}


def grouped(rows: Iterable[OperatorRow]) -> dict[Group, list[OperatorRow]]:
    """Return the rows of each operator in each phase, parts with the operator that they belong to."""
    groups: dict[Group, list[OperatorRow]] = {}
    for row in rows:
        groups.setdefault((row.operator_class, row.part_of or row.operator, row.phase), []).append(row)
    return groups


def _cells(rows: list[OperatorRow], whole_ns: float, steps: int) -> tuple[Cell, ...]:
    part = total(rows).per_step(steps)
    # The rates of a small part of the time would stand for all of it.
    known = part.costed_ns >= MIN_COVERED * part.time_ns
    return (
        calls_a_step(sum(row.calls for row in rows if row.part_of is None), steps),
        Time(part.time_ns),
        Share(part.time_ns, whole_ns),
        FlopRate(units.per_second(part.flops, part.costed_ns) if known else None),
        ByteRate(units.per_second(part.bytes, part.costed_ns) if known else None),
    )


#: The namespaces of torch's own kernels.
_BEFORE: Final = re.compile(r"\b(at::native::|\(anonymous namespace\)::|at_cuda_detail::)")


def kernels(anatomy: Anatomy, top: int) -> Section | None:
    """Return the `top` kernels by time, the sum of the others, and work other than kernels: all of the time."""
    if not anatomy.kernels or top < 1:
        return None
    steps = steps_of(anatomy)
    whole = total(anatomy.classes).time_ns / steps
    ranked = sorted(anatomy.kernels, key=lambda row: -row.time_ns)
    rows = [
        Row(
            cells=(
                Name(short_name(row.kernel)), row.operator_class, calls_a_step(row.count, steps),
                Time(row.time_ns / steps), Share(row.time_ns / steps, whole), _operators(row.operators),
            ),
            operator_class=row.operator_class,
        )
        for row in ranked[:top]
    ]  # fmt: skip
    if others := ranked[top:]:
        ns = sum(row.time_ns for row in others) / steps
        count = calls_a_step(sum(row.count for row in others), steps)
        more = phrase("and {} more", Count(len(others)))
        rows.append(Row(cells=(more, None, count, Time(ns), Share(ns, whole), None)))
    left = total(anatomy.classes).time_ns - sum(row.time_ns for row in anatomy.kernels)
    if left > 0:
        rows.append(Row(cells=("without a kernel", None, None, Time(left / steps), Share(left / steps, whole), None)))
    columns = (
        Column(header="kernel", holds=ColumnKind.NAMES),
        Column(header="class", holds=ColumnKind.NAMES, drop_order=2),
        Column(header="count", drop_order=1),
        Column(header="time"),
        Column(header="share"),
        Column(header="launched by", holds=ColumnKind.NAMES, drop_order=3),
    )
    notes = (Note(text="whole names: -f json"),)
    return Section(
        name="kernels", title="The kernels that take most", scope=shares_of_work(anatomy), columns=columns,
        rows=tuple(rows), notes=notes,
    )  # fmt: skip


def short_name(kernel: str) -> str:
    """Return a kernel's name without torch's common beginning, so that its distinctive part is not cut."""
    return _BEFORE.sub("", kernel.removeprefix("void "))


def _operators(names: tuple[str, ...]) -> Name | None:
    """Return the operators that launched a kernel; none for a graph's kernels."""
    return Name(operators_of(names)) if names else None


def operators_of(names: tuple[str, ...]) -> str:
    """Return the first of some operators, and how many more there are."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
