"""List the operators with most time, merging all signatures in one phase."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

from opanatomy.analysis.costs import steps_of
from opanatomy.records.anatomy import Anatomy, HostRow
from opanatomy.records.patterns import regex
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.work import KernelRow, OperatorRow
from opanatomy.report.section import (
    ByteRate,
    Cell,
    Column,
    ColumnKind,
    Columns,
    Count,
    FlopRate,
    Name,
    Note,
    Page,
    Row,
    Section,
    Share,
    Time,
    calls_of,
    cells_of,
    phrase,
    scope_per_step,
    shares_of_work,
)
from opanatomy.report.terms import note
from opanatomy.report.totals import Total, total, without_operator_ns

Group: TypeAlias = tuple[OperatorClass, str, Phase]


def key_of(group: Group) -> str:
    """Return the key that identifies an operator in one phase across tables and charts."""
    operator_class, name, phase = group
    return f"{operator_class.value}/{phase.value}/{name}"


def spare_ns(rows: Sequence[OperatorRow]) -> int:
    """Return the time above the bounds of some operator rows; never below 0."""
    return max(sum(row.bounded_ns - row.bound_ns for row in rows if row.bound_ns is not None), 0)


def operators(anatomy: Anatomy, page: Page) -> Section | None:
    """Return the `page.top` operators with their parts, the sum of the others, and work without an operator.

    Times sum to the total of all classes. `page.sort` is one of `ORDERS`; rows after the operators keep their position.
    """
    groups = grouped(anatomy.operators)
    if not groups or page.top < 1:
        return None
    steps = steps_of(anatomy)
    whole_ns = total(anatomy.classes).time_ns / steps
    figures: Columns[Total] = {
        Column(header="calls", drop_order=5): lambda part: calls_of(part.calls, at_least=anatomy.timeline.lacks_work),
        Column(header="time"): lambda part: Time(part.time_ns),
        Column(header="share"): lambda part: Share(part.time_ns, whole_ns),
        Column(header="FLOP/s", unit="FLOP/s", drop_order=1): lambda part: FlopRate(part.rate(part.flops)),
        Column(header="B/s", unit="B/s", drop_order=2): lambda part: ByteRate(part.rate(part.bytes)),
    }
    # Ties stay in the order of the anatomy: sorting is stable.
    ranked = sorted(groups.items(), key=lambda group: ORDERS[page.sort](*group))
    rows = []
    for (item, name, phase), members in ranked[: page.top]:
        cells = cells_of(figures, total(members).per_step(steps))
        cells |= {"operator": Name(name), "class": item, "phase": phase.value}
        rows.append(Row(cells=cells, operator_class=item, key=key_of((item, name, phase))))
    if others := [row for _, members in ranked[page.top :] for row in members]:
        more = phrase("and {} more", Count(len(ranked) - page.top))
        rows.append(Row(cells={"operator": more} | cells_of(figures, total(others).per_step(steps))))
    # The device work that no operator call launched.
    graphs, unlaunched = without_operator_ns(anatomy)
    for label, ns in (("launched by graphs", graphs), ("without an operator", unlaunched)):
        if ns > 0:
            rows.append(Row(cells={"operator": label, "time": Time(ns / steps), "share": Share(ns / steps, whole_ns)}))
    order = "" if page.sort == "time" else f"sorted by {page.sort}"
    return Section(
        title="Operators that take the most time",
        scope="; ".join(filter(None, (shares_of_work(anatomy), order))),
        columns=(
            Column(header="operator", holds=ColumnKind.NAMES, least=18),
            Column(header="class", holds=ColumnKind.NAMES, least=13, drop_order=4),
            Column(header="phase", holds=ColumnKind.NAMES, least=9, drop_order=3),
            *figures,
        ),
        rows=tuple(rows),
    )


def _key(amount: Callable[[list[OperatorRow]], float | None]) -> Callable[[Group, list[OperatorRow]], float]:
    return lambda _, rows: -(amount(rows) or 0)


#: Values of `--sort`: operators by one of their figures, largest first, or by name.
ORDERS: Final[dict[str, Callable[[Group, list[OperatorRow]], Any]]] = {
    "time": _key(lambda rows: total(rows).time_ns),
    "flops": _key(lambda rows: total(rows).flops),
    "bytes": _key(lambda rows: total(rows).bytes),
    "calls": _key(lambda rows: total(rows).calls),
    "headroom": _key(spare_ns),
    "name": lambda group, _: (group[1], group[2].value),
}


def grouped(rows: Iterable[OperatorRow]) -> dict[Group, list[OperatorRow]]:
    """Group rows by operator and phase, parts with the operator that they belong to."""
    groups: dict[Group, list[OperatorRow]] = {}
    for row in rows:
        groups.setdefault((row.operator_class, row.part_of or row.operator, row.phase), []).append(row)
    return groups


#: The namespaces of torch's own kernels.
_BEFORE: Final = regex(r"\b(at::native::|\(anonymous namespace\)::|at_cuda_detail::)")


def kernels(anatomy: Anatomy, page: Page) -> Section | None:
    """Return the `page.top` kernels by time, the sum of the others, and work other than kernels: all of the time."""
    if not anatomy.kernels or page.top < 1:
        return None
    steps = steps_of(anatomy)
    whole_ns = total(anatomy.classes).time_ns
    figures: Columns[Sequence[KernelRow]] = {
        Column(header="count", drop_order=1): lambda rows: calls_of(sum(row.count for row in rows) / steps),
        Column(header="time"): lambda rows: Time(sum(row.time_ns for row in rows) / steps),
        Column(header="share"): lambda rows: Share(sum(row.time_ns for row in rows), whole_ns),
    }
    ranked = sorted(anatomy.kernels, key=lambda row: -row.time_ns)
    rows = []
    for row in ranked[: page.top]:
        cells = cells_of(figures, [row])
        cells |= {"kernel": Name(short_name(row.kernel)), "class": row.operator_class}
        if row.operators:  # a graph's kernels have none
            cells["launched by"] = Name(operators_of(row.operators))
        rows.append(Row(cells=cells, operator_class=row.operator_class))
    if others := ranked[page.top :]:
        rows.append(Row(cells={"kernel": phrase("and {} more", Count(len(others)))} | cells_of(figures, others)))
    left = whole_ns - sum(row.time_ns for row in anatomy.kernels)
    if left > 0:
        rows.append(
            Row(cells={"kernel": "without a kernel", "time": Time(left / steps), "share": Share(left, whole_ns)})
        )
    return Section(
        title="Kernels that take the most time",
        scope=shares_of_work(anatomy),
        columns=(
            Column(header="kernel", holds=ColumnKind.NAMES, least=18),
            Column(header="class", holds=ColumnKind.NAMES, least=13, drop_order=2),
            *figures,
            Column(header="launched by", holds=ColumnKind.NAMES, drop_order=3),
        ),
        rows=tuple(rows),
        notes=(Note(text="use -f json for full names"),),
    )


def short_name(kernel: str) -> str:
    """Return a kernel's name without torch's common prefix, so that cutting keeps its distinctive part."""
    return _BEFORE.sub("", kernel.removeprefix("void "))


def operators_of(names: tuple[str, ...]) -> str:
    """Return the first of some operators, and how many more there are."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def host(anatomy: Anatomy, page: Page) -> Section | None:
    """Return host activity of the launching threads, longest first."""
    if not anatomy.host:
        return None
    steps, whole = steps_of(anatomy), sum(row.self_ns for row in anatomy.host)
    columns: Columns[HostRow] = {
        Column(header="on the host", holds=ColumnKind.NAMES, least=16): _host_name,
        Column(header="what", holds=ColumnKind.NAMES, drop_order=2): lambda row: row.kind,
        Column(header="events", drop_order=1): lambda row: calls_of(row.calls / steps) if row.calls else None,
        Column(header="self time"): lambda row: Time(row.self_ns / steps),
        Column(header="share"): lambda row: Share(row.self_ns, whole),
        Column(header="with parts", drop_order=3): (
            lambda row: None if row.kind == "others" else Time(row.total_ns / steps)
        ),
    }
    shown = [row for index, row in enumerate(anatomy.host) if index < 2 * page.top or row.waits or row.kind == "python"]
    rows = [Row(cells=cells_of(columns, row)) for row in shown]
    hidden = [row for row in anatomy.host if row not in shown]
    if hidden:
        more = HostRow(
            kind="others",
            name=f"and {len(hidden)} more",
            calls=sum(row.calls for row in hidden),
            self_ns=sum(row.self_ns for row in hidden),
            total_ns=0,
        )
        rows.append(Row(cells=cells_of(columns, more), summary=True))
    return Section(
        title="The host",
        scope="; ".join(filter(None, (scope_per_step(anatomy), "shares of the launching threads' time"))),
        columns=tuple(columns),
        rows=tuple(rows),
        notes=(Note(text=note("host", "self time", "between recorded events")),),
    )


def _host_name(row: HostRow) -> Cell:
    if row.caller is None:
        return Name(row.name)
    return phrase("{} in {}", Name(row.name), Name(row.caller.removeprefix("aten::")))
