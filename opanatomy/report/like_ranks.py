"""Many ranks -> groups of like ones, so that a report of thousands can be read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Final

import numpy as np
from msgspec import Struct

from opanatomy.records.ranks import Rank, numbers_in_short

#: Figures of like ranks differ by no more than this part of the median step.
LIKE: Final = 0.05
#: So many numbers or spans of numbers are said at most.
_NAMED: Final = 12


class Group(Struct, frozen=True, kw_only=True):
    """Ranks that are alike, in order, and the median of each figure over them."""

    ranks: tuple[Rank, ...]
    medians: tuple[int, ...]

    @property
    def members(self) -> str:
        """Who is in it: `ranks 0-124, 127`."""
        names = _progression(self.ranks) or names_of(self.ranks)
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return f"ranks {', '.join(names[:_NAMED])}{more}"


def names_of(ranks: Sequence[Rank]) -> list[str]:
    """Their numbers in short, the traces of those without one."""
    numbers = numbers_in_short(rank.rank for rank in ranks if rank.rank is not None)
    return [*numbers, *(rank.trace or "?" for rank in ranks if rank.rank is None)]


def _progression(ranks: Sequence[Rank]) -> list[str] | None:
    """The numbers of ranks that are equally far apart, as those of the same place on each node are."""
    numbers = [rank.rank for rank in ranks if rank.rank is not None]
    steps = {after - before for before, after in pairwise(numbers)}
    if len(numbers) < max(len(ranks), 3) or len(steps) != 1 or steps == {1}:
        return None
    return [f"{numbers[0]} to {numbers[-1]} in steps of {steps.pop()}"]


def groups_of(ranks: Sequence[Rank], figures: Sequence[str]) -> list[Group]:
    """The ranks in groups, the largest first.

    The most typical rank, the one nearest to the medians of all figures, has around it all ranks none of whose figures
    (which all ranks have) differs from its own by more than `LIKE` of the median step; of the others the most typical
    one again, and so on.
    """
    values = np.array([[rank.a_step(figure) or 0 for figure in figures] for rank in ranks], dtype=np.float64)
    walls = [wall for rank in ranks if (wall := rank.wall_ns or rank.window_ns)]
    allowed = LIKE * median(walls) if walls else 0.0
    away = np.abs(values - np.median(values, axis=0)).max(axis=1, initial=0.0)
    left = np.argsort(away, kind="stable")
    groups = []
    while len(left):
        like = np.abs(values[left] - values[left[0]]).max(axis=1, initial=0.0) <= allowed
        own = np.sort(left[like])
        medians = tuple(int(value) for value in np.median(values[own], axis=0))
        groups.append(Group(ranks=tuple(ranks[place] for place in own.tolist()), medians=medians))
        left = left[~like]
    return sorted(groups, key=lambda group: -len(group.ranks))
