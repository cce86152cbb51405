"""The modules of the model as a tree: time and FLOPs of each with all that lies in it, forward and backward."""

from __future__ import annotations

from typing import Final

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import Phase
from opanatomy.report.module_tree import Amount, Node, module_tree
from opanatomy.report.scope import shares_of_work, steps_of
from opanatomy.report.section import Cell, Column, Flops, Holds, Note, Row, Section, Share, Time
from opanatomy.report.totals import known_flops, total

#: Rows of the tree for each operator that is listed, at most; what takes less of the time than this is not opened.
_ROWS: Final = 2
_LEAST: Final = 0.005
#: The columns, and the phases that each sums up.
_PHASES: Final[tuple[tuple[str, tuple[Phase, ...]], ...]] = (
    ("forward", (Phase.FORWARD,)), ("backward", (Phase.BACKWARD, Phase.RECOMPUTE)), ("optimizer", (Phase.OPTIMIZER,)),
    ("prefill", (Phase.PREFILL,)), ("decoding", (Phase.DECODING,)),
)  # fmt: skip
_WITH_FLOPS: Final = ("forward", "backward", "prefill", "decoding")
_SHORT: Final = {"forward": "fwd", "backward": "bwd", "prefill": "prefill", "decoding": "decode"}


def modules(anatomy: Anatomy, top: int) -> Section | None:
    """The tree to the depth that some rows allow, the modules that take most opened first."""
    if top < 1 or not any(row.module for row in anatomy.modules):
        return None
    root, steps = module_tree(anatomy.modules), steps_of(anatomy)
    whole = total(anatomy.classes).time_ns
    columns = [item for item in _PHASES if any(root.phases.get(phase) for phase in item[1])]
    opened = _opened(root, _ROWS * top, whole)
    rows = [
        Row(cells=_cells(_indented(node, depth, anatomy), node, columns, whole, steps), summary=depth == 0)
        for node, depth in _listed(root, opened, 0)
    ]
    if (left := whole - root.whole.time_ns) > 0:
        empty: list[Cell] = [None] * (len(columns) + len([name for name, _ in columns if name in _WITH_FLOPS]))
        rows.append(Row(cells=("outside modules", Time(left / steps), Share(left, whole), *empty)))
    notes = [
        Note(text="a module includes its submodules; the most expensive ones are shown in parts, all are in -f json")
    ]
    if Phase.RECOMPUTE in root.phases:
        notes.append(Note(text="backward: recompute included", column="backward"))
    return Section(
        name="modules", title="Time and FLOPs by module", scope=shares_of_work(anatomy), columns=_columns(columns),
        rows=tuple(rows), notes=tuple(notes),
    )  # fmt: skip


def _columns(phases: list[tuple[str, tuple[Phase, ...]]]) -> tuple[Column, ...]:
    counted = [name for name, _ in phases if name in _WITH_FLOPS]
    return (
        Column(header="module", holds=Holds.NAMES),
        Column(header="time"),
        Column(header="share", expendable=9),
        *(Column(header=name, expendable=place) for place, (name, _) in enumerate(phases, start=1)),
        *(
            Column(header=f"{_SHORT[name]} FLOP", unit="FLOP", expendable=10 + place)
            for place, name in enumerate(counted)
        ),
    )


def _opened(root: Node, most: int, whole: float) -> set[int]:
    """The nodes (by identity) whose children are listed: the most expensive first, while there are rows left."""
    opened: set[int] = set()
    rows, closed = 1, [root]
    while closed:
        node = max(closed, key=lambda item: item.whole.time_ns)
        closed.remove(node)
        if rows + len(node.children) > most or node.whole.time_ns < _LEAST * whole:
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


def _indented(node: Node, depth: int, anatomy: Anatomy) -> str:
    """The name at its depth, that of the whole model its kind."""
    if depth == 0:
        return node.kind or anatomy.workload.architecture or "the model"
    return f"{'  ' * depth}{node.name}"


def _cells(
    name: str, node: Node, phases: list[tuple[str, tuple[Phase, ...]]], whole: float, steps: int
) -> tuple[Cell, ...]:
    sums = {title: _sum(node, members) for title, members in phases}
    flops = [_flops(sums[title], steps) for title in sums if title in _WITH_FLOPS]
    return (
        name,
        Time(node.whole.time_ns / steps),
        Share(node.whole.time_ns, whole),
        *(Time(amount.time_ns / steps or None) for amount in sums.values()),
        *flops,
    )


def _sum(node: Node, phases: tuple[Phase, ...]) -> Amount:
    amount = Amount()
    for phase in phases:
        if phase in node.phases:
            amount.add(node.phases[phase])
    return amount


def _flops(amount: Amount, steps: int) -> Flops:
    flops = None if amount.flops is None else amount.flops / steps
    return known_flops(flops, amount.costed_ns, amount.time_ns)
