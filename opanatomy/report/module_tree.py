"""Rows of modules -> a tree in which modules that are alike are one: `layer.0-23` for 24 layers of a kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct

from opanatomy.records.anatomy import ModuleRow
from opanatomy.records.ranks import numbers_in_short
from opanatomy.records.taxonomy import Phase


class Amount(Struct, kw_only=True):
    """Time and FLOPs; `flops` is `None` where none is known, `costed_ns` the time of what they are known of."""

    time_ns: int = 0
    flops: int | None = None
    costed_ns: int = 0

    def add(self, other: Amount | ModuleRow) -> None:
        """Sum up."""
        self.time_ns += other.time_ns
        if other.flops is not None:
            self.flops = (self.flops or 0) + other.flops
            self.costed_ns += other.costed_ns if isinstance(other, Amount) else other.time_ns


class Node(Struct, kw_only=True):
    """A module with all that lies in it, or so many that are alike; `name` is its own part of the path."""

    name: str
    kind: str | None = None
    members: int = 1
    whole: Amount
    phases: dict[Phase, Amount]
    children: list[Node]


def module_tree(rows: Iterable[ModuleRow]) -> Node:
    """The tree of the modules that did any work, its root the model; children in the order of their time."""
    by_path: dict[tuple[str, ...], list[ModuleRow]] = defaultdict(list)
    for row in rows:
        by_path[tuple(row.module.split(".")) if row.module else ()].append(row)
    below: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
    for path in list(by_path):
        for depth in range(len(path)):
            below[path[:depth]].add(path[: depth + 1])
    return _node((), by_path, below)


def _node(
    path: tuple[str, ...],
    rows: dict[tuple[str, ...], list[ModuleRow]],
    below: dict[tuple[str, ...], set[tuple[str, ...]]],
) -> Node:
    children = [_node(child, rows, below) for child in sorted(below.get(path, ()))]
    own = rows.get(path, [])
    node = Node(
        name=path[-1] if path else "", kind=next((row.kind for row in own if row.kind), None), whole=Amount(),
        phases={}, children=_alike_together(children),
    )  # fmt: skip
    for row in own:
        node.whole.add(row)
        node.phases.setdefault(row.phase, Amount()).add(row)
    for child in children:
        _add(node, child)
    return _without_shells(node) if path else node


def _without_shells(node: Node) -> Node:
    """The only module in one that does nothing itself, under both names: `layer.0-23`."""
    if len(node.children) != 1 or node.children[0].whole.time_ns != node.whole.time_ns:
        return node
    only = node.children[0]
    only.name = f"{node.name}.{only.name}"
    return only


def _add(node: Node, other: Node) -> None:
    node.whole.add(other.whole)
    for phase, amount in other.phases.items():
        node.phases.setdefault(phase, Amount()).add(amount)


def _alike_together(children: Sequence[Node]) -> list[Node]:
    """Numbered children of one kind and of like parts as one node each, all in the order of their time."""
    groups: dict[object, list[Node]] = {}
    for child in children:
        groups.setdefault(_likeness(child) if child.name.isdecimal() else child.name, []).append(child)
    nodes = [_merged(group) for group in groups.values()]
    return sorted(nodes, key=lambda node: -node.whole.time_ns)


def _likeness(node: Node) -> tuple[object, ...]:
    """What is the same of two modules that do the same: kinds and names of all that is in them."""
    parts = sorted((child.name, _likeness(child)) for child in node.children)
    return (node.kind or "", node.members, tuple(parts))


def _merged(group: Sequence[Node]) -> Node:
    """Like nodes as one, their parts one by one too."""
    first = group[0]
    if len(group) == 1:
        return first
    numbers = [int(node.name) for node in group if node.name.isdecimal()]
    name = ", ".join(numbers_in_short(numbers)) if numbers else first.name
    merged = Node(
        name=name, kind=first.kind, members=sum(node.members for node in group),
        whole=Amount(), phases={}, children=[],
    )  # fmt: skip
    parts: dict[str, list[Node]] = {}
    for node in group:
        _add(merged, node)
        for child in node.children:
            parts.setdefault(child.name, []).append(child)
    merged.children = sorted(map(_merged_parts, parts.values()), key=lambda node: -node.whole.time_ns)
    return merged


def _merged_parts(group: list[Node]) -> Node:
    """The same part of like modules as one: it has their name, which is one."""
    merged = _merged(group)
    merged.name = group[0].name
    return merged
