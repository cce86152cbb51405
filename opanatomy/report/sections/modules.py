"""Show the modules of the model as a tree: time and FLOPs of each with all inside it, forward and backward."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct

from opanatomy.analysis.costs import steps_of
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.communication import numbers_in_short
from opanatomy.records.taxonomy import STEP_PHASES, Phase
from opanatomy.records.work import LineRow, ModuleRow
from opanatomy.report.section import (
    Cell,
    Column,
    ColumnKind,
    Columns,
    Flops,
    Note,
    Page,
    Row,
    Section,
    Share,
    Time,
    cells_of,
    shares_of_work,
)
from opanatomy.report.totals import known_flops, total

# Rows of modules -> a tree with like modules merged: `layer.0-23` for 24 layers of a kind.


class Amount(Struct, kw_only=True):
    """Time and FLOPs; `flops` is `None` if unknown, `costed_ns` is the time of the work with known FLOPs."""

    time_ns: int = 0
    flops: int | None = None
    costed_ns: int = 0

    def add(self, other: Amount | ModuleRow | LineRow) -> None:
        """Sum up."""
        self.time_ns += other.time_ns
        if other.flops is not None:
            self.flops = (self.flops or 0) + other.flops
            costed_ns = other.costed_ns if isinstance(other, Amount) else other.time_ns - other.uncosted_ns
            self.costed_ns += costed_ns


class Node(Struct, kw_only=True):
    """A module with its descendants, or several merged like ones; `name` is its own path component."""

    name: str
    kind: str | None = None
    members: int = 1
    whole: Amount
    phases: dict[Phase, Amount]
    children: list[Node]

    def sum(self, phases: Iterable[Phase]) -> Amount:
        """Return the sum of some phases."""
        amount = Amount()
        for phase in phases:
            if phase in self.phases:
                amount.add(self.phases[phase])
        return amount


def module_tree(rows: Iterable[ModuleRow]) -> Node:
    """Return the tree of the modules that did work, with the model as root; children sorted by time."""
    return _tree((tuple(row.module.split(".")) if row.module else (), row) for row in rows)


def line_tree(rows: Iterable[LineRow]) -> Node:
    """Return the call tree of user code lines, with the step as root."""
    return _tree(((tuple(row.stack.split(";")) if row.stack else (), row) for row in rows), merges=False)


def _tree(rows: Iterable[tuple[tuple[str, ...], ModuleRow | LineRow]], *, merges: bool = True) -> Node:
    by_path: dict[tuple[str, ...], list[ModuleRow | LineRow]] = defaultdict(list)
    for path, row in rows:
        by_path[path].append(row)
    below: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
    for path in list(by_path):
        for depth in range(len(path)):
            below[path[:depth]].add(path[: depth + 1])
    return _node((), by_path, below, merges)


def _node(
    path: tuple[str, ...],
    rows: dict[tuple[str, ...], list[ModuleRow | LineRow]],
    below: dict[tuple[str, ...], set[tuple[str, ...]]],
    merges: bool,
) -> Node:
    children = [_node(child, rows, below, merges) for child in sorted(below.get(path, ()))]
    own = rows.get(path, [])
    kinds = (row.kind for row in own if isinstance(row, ModuleRow) and row.kind)
    together = _alike_together(children) if merges else sorted(children, key=lambda child: -child.whole.time_ns)
    node = Node(name=path[-1] if path else "", kind=next(kinds, None), whole=Amount(), phases={}, children=together)
    for row in own:
        node.whole.add(row)
        node.phases.setdefault(row.phase, Amount()).add(row)
    for child in children:
        _add(node, child)
    if not (path and merges) or len(together) != 1 or together[0].whole.time_ns != node.whole.time_ns:
        return node
    # A module that does nothing itself and its only child are one, under both names: `layer.0-23`.
    only = together[0]
    only.name = f"{node.name}.{only.name}"
    return only


def _add(node: Node, other: Node) -> None:
    node.whole.add(other.whole)
    for phase, amount in other.phases.items():
        node.phases.setdefault(phase, Amount()).add(amount)


def _alike_together(children: Sequence[Node]) -> list[Node]:
    """Merge numbered children with the same kind and like parts into one node each, sorted by time."""
    groups: dict[object, list[Node]] = {}
    for child in children:
        groups.setdefault(_likeness(child) if child.name.isdecimal() else child.name, []).append(child)
    nodes = [_merged(group) for group in groups.values()]
    return sorted(nodes, key=lambda node: -node.whole.time_ns)


def _likeness(node: Node) -> tuple[object, ...]:
    """Return the structural identity of a module: kinds and names of everything inside it."""
    parts = sorted((child.name, _likeness(child)) for child in node.children)
    return (node.kind or "", node.members, tuple(parts))


def _merged(group: Sequence[Node]) -> Node:
    """Merge like nodes into one, and their corresponding children too."""
    first = group[0]
    if len(group) == 1:
        return first
    numbers = [int(node.name) for node in group if node.name.isdecimal()]
    name = ", ".join(numbers_in_short(numbers)) if numbers else first.name
    merged = Node(
        name=name, kind=first.kind, members=sum(node.members for node in group), whole=Amount(), phases={}, children=[]
    )
    parts: dict[str, list[Node]] = {}
    for node in group:
        _add(merged, node)
        for child in node.children:
            parts.setdefault(child.name, []).append(child)
    merged.children = sorted(map(_merged_parts, parts.values()), key=lambda node: -node.whole.time_ns)
    return merged


def _merged_parts(group: list[Node]) -> Node:
    """Merge the corresponding children of like modules, which have the same name."""
    merged = _merged(group)
    merged.name = group[0].name
    return merged


#: Maximum tree rows per listed operator; a module below this share of time is not expanded.
_ROWS_PER_OPERATOR: Final = 2
_MIN_OPENED_SHARE: Final = 0.005
#: Time columns with the phases each sums up; those with a FLOPs column, and its short header.
PHASES_OF: Final[dict[str, tuple[Phase, ...]]] = {
    phase.value: (phase, Phase.RECOMPUTE) if phase is Phase.BACKWARD else (phase,) for phase in STEP_PHASES
}
_SHORT_PHASES: Final = {"forward": "fwd", "backward": "bwd", "prefill": "prefill", "decoding": "decode"}


def modules(anatomy: Anatomy, page: Page) -> Section | None:
    """Return the tree to a depth allowed by the number of rows, expanding the modules with most time first."""
    if page.top < 1 or not any(row.module for row in anatomy.modules):
        return None
    root, steps = module_tree(anatomy.modules), steps_of(anatomy)
    whole = total(anatomy.classes).time_ns
    phases = [name for name, members in PHASES_OF.items() if any(root.phases.get(phase) for phase in members)]

    def time_in(name: str) -> Callable[[Node], Cell]:
        return lambda node: Time(node.sum(PHASES_OF[name]).time_ns / steps or None)

    def flops_in(name: str) -> Callable[[Node], Cell]:
        return lambda node: known_of(node.sum(PHASES_OF[name]), steps)

    columns: Columns[Node] = {
        Column(header="time"): lambda node: Time(node.whole.time_ns / steps),
        Column(header="share", drop_order=9): lambda node: Share(node.whole.time_ns, whole),
        **{Column(header=name, drop_order=index): time_in(name) for index, name in enumerate(phases, start=1)},
        **{
            Column(header=f"{short} FLOP", unit="FLOP", drop_order=10 + index): flops_in(name)
            for index, (name, short) in enumerate(
                (name, _SHORT_PHASES[name]) for name in phases if name in _SHORT_PHASES
            )
        },
    }
    # The whole model has its kind for a name.
    model = root.kind or anatomy.workload.architecture or "the model"
    rows = [
        Row(
            cells={"module": f"{'  ' * depth}{node.name}" if depth else model} | cells_of(columns, node),
            summary=depth == 0,
        )
        for node, depth in _listed(root, _opened(root, _ROWS_PER_OPERATOR * page.top, whole), 0)
    ]
    if (left := whole - root.whole.time_ns) > 0:
        rows.append(Row(cells={"module": "outside modules", "time": Time(left / steps), "share": Share(left, whole)}))
    notes = [
        Note(text="a module includes its submodules"),
        Note(text="only the most expensive modules are expanded (use -f json for all)"),
    ]
    if Phase.RECOMPUTE in root.phases:
        notes.append(Note(text="backward includes recompute", column="backward"))
    return Section(
        title="Time and FLOPs by module",
        scope=shares_of_work(anatomy),
        rows=tuple(rows),
        notes=tuple(notes),
        columns=(Column(header="module", holds=ColumnKind.NAMES, least=20), *columns),
    )


def _opened(root: Node, most: int, whole: float) -> set[int]:
    """Return the nodes (by identity) whose children are listed: the most expensive first, while there are rows left."""
    opened: set[int] = set()
    rows, closed = 1, [root]
    while closed:
        node = max(closed, key=lambda item: item.whole.time_ns)
        closed.remove(node)
        if rows + len(node.children) > most or node.whole.time_ns < _MIN_OPENED_SHARE * whole:
            continue
        opened.add(id(node))
        rows += len(node.children)
        closed += [child for child in node.children if child.children]
    return opened


def _listed(node: Node, opened: set[int], depth: int) -> list[tuple[Node, int]]:
    rows = [(node, depth)]
    if id(node) in opened:
        for child in node.children:
            rows += _listed(child, opened, depth + 1)
    return rows


def known_of(amount: Amount, steps: int) -> Flops:
    """Return the FLOPs of a step, and whether they cover only part of its time."""
    flops = None if amount.flops is None else amount.flops / steps
    return known_flops(flops, amount.costed_ns, amount.time_ns)
