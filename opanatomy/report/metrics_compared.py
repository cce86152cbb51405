"""Every figure of a comparison as one flat dictionary, for loggers: each on every side, and what makes the change.

A figure is called as `Anatomy.metrics()` calls it, with the side behind it: `step_time_ns.before`, `.after` and
`.change` (after over before, less one) of two sides, `step_time_ns.1`, `.2`, ... of more, in their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from opanatomy.records.compared import Comparison, Decomposition
from opanatomy.report.metrics import Metric

_TWO: Final = ("before", "after")


def metrics_of_comparison(comparison: Comparison) -> dict[str, Metric]:
    """The figures by name, those that are not known left out."""
    return dict([*_figures(comparison), *_difference(comparison.decomposition)])


def _figures(comparison: Comparison) -> Iterator[tuple[str, Metric]]:
    two = len(comparison.sides) == len(_TWO)
    for row in comparison.figures:
        for place, value in enumerate(row.values):
            if value is not None:
                side = _TWO[place] if two else str(place + 1)
                bound = bool(row.lower_bounds) and row.lower_bounds[place]
                yield (
                    f"{row.name}.{side}",
                    Metric(value=value, unit=row.unit, better=row.better, lower_bound=bound, exact=row.exact),
                )
        if two and row.change is not None and not comparison.not_comparable:
            yield f"{row.name}.change", Metric(value=row.change, unit="fraction", better=row.better)


def _difference(parts: Decomposition | None) -> Iterator[tuple[str, Metric]]:
    """The mean like step of both sides, its change, and what of that each cause makes: these sum to the change."""
    if parts is None:
        return
    for name in ("before", "after", "change"):
        yield f"like_step_ns.{name}", Metric(value=getattr(parts, f"{name}_ns"), unit="ns", better="lower")
    changes: dict[str, int] = {}
    for part in parts.parts:
        changes[part.cause] = changes.get(part.cause, 0) + part.change_ns
    for cause, change_ns in changes.items():
        yield f"like_step_ns.change.{cause}", Metric(value=change_ns, unit="ns", better="lower")
