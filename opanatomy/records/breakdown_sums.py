"""The breakdowns of several ranks or runs, taken one at a time -> that of their steps together."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from opanatomy.records.breakdown import Breakdown, LikeStep, Overlap, StepKind, WorkRow

_SUMS: Final = (
    "count", "wall_ns", "outside_ns", "unrecorded_ns", "host_idle_ns", "stream_idle_ns", "other_idle_ns",
    "framework_ns",
)  # fmt: skip


class _Kind(Struct):
    """The sums of the steps of one kind; work by the texts of its names."""

    steps: list[LikeStep] = field(default_factory=list)
    sums: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_SUMS, 0))
    overlaps: dict[tuple[str, str], int] = field(default_factory=dict)
    work: dict[tuple[Any, ...], list[int]] = field(default_factory=dict)


class BreakdownSums:
    """Steps are of one kind where they have the same numbers in all that are added."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[int, ...], _Kind] = {}

    def add(self, breakdown: Breakdown | None, *, rank: int | None = None, run: int | None = None) -> None:
        """Take one more; its steps are those of this rank or run."""
        if breakdown is None:
            return
        for kind in breakdown.kinds:
            known = self._kinds.setdefault(kind.numbers, _Kind())
            known.steps += [
                replace(step, rank=step.rank if rank is None else rank, run=step.run if run is None else run)
                for step in kind.steps
            ]
            for name in _SUMS:
                known.sums[name] += getattr(kind, name)
            for overlap in kind.overlaps:
                pair = overlap.first, overlap.second
                known.overlaps[pair] = known.overlaps.get(pair, 0) + overlap.time_ns
            _add_rows(known.work, breakdown, kind)

    def breakdown(self) -> Breakdown | None:
        """The sums, whatever the order in which they came; `None` where nothing was added."""
        if not self._kinds:
            return None
        names: tuple[dict[Any, int], ...] = ({}, {}, {}, {})
        kinds = [
            StepKind(
                steps=tuple(sorted(kind.steps, key=_place)), **kind.sums, rows=_rows(kind, names),
                overlaps=tuple(
                    Overlap(first=first, second=second, time_ns=time)
                    for (first, second), time in sorted(kind.overlaps.items())
                ),
            )
            for _, kind in sorted(self._kinds.items())
        ]  # fmt: skip
        operators, signatures, modules, kernels = map(tuple, names)
        return Breakdown(
            operators=operators, signatures=signatures, modules=modules, kernels=kernels,
            kinds=tuple(sorted(kinds, key=lambda kind: (-kind.count, -kind.wall_ns))),
        )  # fmt: skip


def _add_rows(work: dict[tuple[Any, ...], list[int]], breakdown: Breakdown, kind: StepKind) -> None:
    texts = (breakdown.operators, breakdown.signatures, breakdown.modules, breakdown.kernels)
    for row in kind.rows:
        named = (
            None if number < 0 else text[number]
            for text, number in zip(texts, (row.operator, row.signature, row.module, row.kernel), strict=True)
        )
        sums = work.setdefault((*named, row.phase, row.operator_class), [0, 0, 0])
        for place, value in enumerate((row.calls, row.events, row.time_ns)):
            sums[place] += value


def _rows(kind: _Kind, names: tuple[dict[Any, int], ...]) -> tuple[WorkRow, ...]:
    rows = []
    ordered = sorted(kind.work.items(), key=lambda item: (-item[1][2], *(str(part) for part in item[0])))
    for (*texts, phase, operator_class), sums in ordered:
        operator, signature, module, kernel = (
            -1 if text is None else known.setdefault(text, len(known)) for known, text in zip(names, texts, strict=True)
        )
        rows.append(WorkRow(operator, signature, module, phase, operator_class, kernel, *sums))
    return tuple(rows)


def _place(step: LikeStep) -> tuple[int, ...]:
    return tuple(-1 if part is None else part for part in (step.run, step.rank, step.device, step.number))
