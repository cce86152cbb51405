"""The checks and warnings of several ranks -> those of all of them together, and what is odd about the set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from opanatomy.anatomy.row_sums import Firsts, Order
from opanatomy.records.checks import Check, Difference
from opanatomy.records.ranks import Rank, numbers_in_short, span_in_short


class _Group(Struct):
    """The checks of one quantity and source."""

    compared: int = 0
    equal: int = 0
    differences: Firsts[Difference] = field(default_factory=Firsts)
    #: The time of each difference, over the ranks that have it.
    times_ns: dict[Difference, int] = field(default_factory=dict)
    not_checked: Firsts[str] = field(default_factory=Firsts)


class ChecksOver:
    """The checks of the ranks, those of one quantity and source as one; like differences of several ranks once each."""

    def __init__(self) -> None:
        self._kinds: Firsts[tuple[str, str, str]] = Firsts()
        self._groups: dict[tuple[str, str, str], _Group] = {}

    def add(self, checks: Sequence[Check], order: Order) -> None:
        """Add the checks of one rank."""
        self._kinds.add([(check.quantity, check.source, check.unit) for check in checks], order)
        for check in checks:
            group = self._groups.setdefault((check.quantity, check.source, check.unit), _Group())
            group.compared += check.compared
            group.equal += check.equal
            alike = [replace(difference, time_ns=None) for difference in check.differences]
            group.differences.add(alike, order)
            for key, difference in zip(alike, check.differences, strict=True):
                if difference.time_ns is not None:
                    group.times_ns[key] = group.times_ns.get(key, 0) + difference.time_ns
            group.not_checked.add([check.not_checked] if check.not_checked else [], order)

    def checks(self) -> tuple[Check, ...]:
        """The checks of all ranks."""
        return tuple(_check(kind, self._groups[kind]) for kind in self._kinds.items())


def _check(kind: tuple[str, str, str], group: _Group) -> Check:
    quantity, source, unit = kind
    return Check(
        quantity=quantity, source=source, unit=unit, compared=group.compared, equal=group.equal,
        differences=tuple(
            replace(difference, time_ns=group.times_ns.get(difference)) for difference in group.differences.items()
        ),
        not_checked="; ".join(group.not_checked.items()) or None,
    )  # fmt: skip


class WarningsOver:
    """The warnings of the ranks, one that several have once."""

    def __init__(self) -> None:
        self._texts: Firsts[str] = Firsts()
        self._who: dict[str, list[tuple[Order, Rank]]] = {}

    def add(self, warnings: Sequence[str], rank: Rank, order: Order) -> None:
        """Add the warnings of one rank."""
        self._texts.add(warnings, order)
        for text in warnings:
            self._who.setdefault(text, []).append((order, rank))

    def lines(self, count: int) -> list[str]:
        """Each with the ranks that it is of, of `count` ranks."""
        return [f"{_whose(self._who[text], count)}: {text}" for text in self._texts.items()]


def _whose(who: Iterable[tuple[Order, Rank]], count: int) -> str:
    ranks = [rank for _, rank in sorted(who, key=lambda one: one[0])]
    if len(ranks) == count:
        return "all ranks"
    names = numbers_in_short([rank.rank for rank in ranks if rank.rank is not None])
    names += [str(rank.trace) for rank in ranks if rank.rank is None]
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {', '.join(names)}"


def warnings_of_the_set(ranks: Sequence[Rank]) -> list[str]:
    """What is odd about the set of ranks."""
    files: dict[int, list[str]] = {}
    for rank in ranks:
        if rank.rank is not None:
            files.setdefault(rank.rank, []).append(rank.trace or "?")
    warnings = [f"rank {rank} is in {len(names)} files, all are counted: {', '.join(names)}"
                for rank, names in files.items() if len(names) > 1]  # fmt: skip
    steps = {rank.steps for rank in ranks}
    if len(steps) > 1:
        warnings.append(f"the ranks have {min(steps)} to {max(steps)} steps: sums weigh those with more steps more")
    return warnings


def missing_ranks(ranks: Sequence[Rank]) -> list[str]:
    """The ranks of the world of which there is no trace, where all that are here say which they are."""
    worlds, numbers = {rank.world_size for rank in ranks}, {rank.rank for rank in ranks}
    world = worlds.pop() if len(worlds) == 1 else None
    if world is None or None in numbers or len(numbers) >= world:
        return []
    missing = _gaps(sorted(number for number in numbers if number is not None), world)
    one = world - len(numbers) == 1
    return [f"{len(numbers)} of {world} ranks are here: {'rank' if one else 'ranks'} {', '.join(missing)}"
            f" {'is' if one else 'are'} missing"]  # fmt: skip


def _gaps(numbers: Sequence[int], world: int) -> list[str]:
    """The numbers below `world` that are missing, in short: a world may be large, whatever a trace says it is."""
    gaps: list[str] = []
    for before, after in zip((-1, *numbers), (*numbers, world), strict=True):
        gaps += span_in_short(before + 1, after - 1)
    return gaps
