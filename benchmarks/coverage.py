"""What each trace could be explained: one line of a Markdown table for each; docs/traces.md sums it up.

python benchmarks/coverage.py TRACE-OR-FOLDER...
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from opanatomy.pipeline import summary_of_trace
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report import units

HEAD = (
    "| trace | device | steps | device work | linked | classed | costed | backward | names agree |\n"
    "|---|---|---:|---:|---:|---:|---:|---:|---:|"
)


def traces(places: Sequence[str]) -> Iterator[Path]:
    """The files among the places, and those in the folders among them."""
    for place in map(Path, places):
        yield from sorted(place.rglob("*.json*")) if place.is_dir() else [place]


def agreement(anatomy: Anatomy) -> tuple[int, int]:
    """(time of the kernels whose class by name is that of an operator that launched them, time of those known)."""
    classes: dict[str, set[OperatorClass]] = {}
    for row in anatomy.operators:
        classes.setdefault(row.operator, set()).add(row.operator_class)
    agreed = known = 0
    for kernel in anatomy.kernels:
        expected = {item for name in kernel.operators for item in classes.get(name, ())} - {OperatorClass.UNKNOWN}
        if expected:
            known += kernel.time_ns
            agreed += kernel.time_ns if kernel.operator_class in expected else 0
    return agreed, known


def line(anatomy: Anatomy, name: str) -> str:
    """The line of one trace; shares are of the device work in the window."""
    ledger = anatomy.ledger
    inside = ledger.device_work_ns - ledger.outside_window_ns
    backward = sum(row.time_ns for row in anatomy.classes if row.phase is Phase.BACKWARD)
    parts = (ledger.linked_ns, ledger.classed_ns, ledger.costed_ns, backward)
    cells = (
        name,
        anatomy.environment.device or anatomy.environment.device_kind or "not named",
        str(anatomy.step.count),
        units.duration(ledger.device_work_ns),
        *(units.share(part, inside, decimals=2) for part in parts),
        units.share(*agreement(anatomy), decimals=1),
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table, and in the end the agreement over all traces together."""
    print(HEAD)
    agreed = known = 0
    for path in traces(sys.argv[1:]):
        anatomy = summary_of_trace(path).anatomy
        print(line(anatomy, path.name.removesuffix(".gz").removesuffix(".json")), flush=True)
        more = agreement(anatomy)
        agreed, known = agreed + more[0], known + more[1]
    print(f"\nnames agree with operators in {units.share(agreed, known, decimals=2)} of the time, together")


if __name__ == "__main__":
    main()
