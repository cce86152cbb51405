"""What does not agree, collapsed: like differences are one row with the number of calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable

from msgspec import Struct, field
from msgspec.structs import replace

from opanatomy.records.checks import Check, Difference
from opanatomy.records.taxonomy import Phase

#: Rows of a check at most; the others are one row.
MAX_ROWS = 20


class Finding(Struct, frozen=True, kw_only=True):
    """One call that a second source does not confirm; `cause` as in `Difference`."""

    operator: str
    phase: Phase
    ours: int | None = None
    other: int | None = None
    cause: str | None = None
    evidence: str = ""


class Verdict(Struct, frozen=True, kw_only=True):
    """What looking at one pair says: figures compared, those equal, those not, and why others could not be."""

    compared: int = 0
    equal: int = 0
    findings: tuple[Finding, ...] = ()
    not_checked: tuple[str, ...] = ()

    def explained(self, cause: str) -> Verdict:
        """The same, its findings having this cause."""
        return replace(self, findings=tuple(replace(finding, cause=cause) for finding in self.findings))

    def unjudged(self, reason: str) -> Verdict:
        """The same, its findings without a cause not checked for this reason."""
        kept = tuple(finding for finding in self.findings if finding.cause is not None)
        left = len(self.findings) - len(kept)
        return Verdict(
            compared=self.compared - left, equal=self.equal, findings=kept,
            not_checked=(*self.not_checked, *(reason,) * left),
        )  # fmt: skip


class Tally(Struct):
    """Verdicts summed; `time_of` tells the time of the calls at some rows."""

    time_of: Callable[[Iterable[int]], int | None]
    compared: int = 0
    equal: int = 0
    findings: Counter[Finding] = field(default_factory=Counter)
    times_ns: dict[Finding, int | None] = field(default_factory=dict)
    where: dict[Finding, str] = field(default_factory=dict)
    not_checked: Counter[str] = field(default_factory=Counter)

    def add(self, verdict: Verdict, rows: Collection[int], where: str | None = None) -> None:
        """Count a verdict on the calls at these rows; `where` is the module it was met in."""
        self.compared += verdict.compared
        self.equal += verdict.equal
        time_ns = self.time_of(rows) if verdict.findings else None
        for finding in verdict.findings:
            self.findings[finding] += 1
            known = self.times_ns.get(finding, 0)
            part_ns = None if time_ns is None else time_ns // len(verdict.findings)
            self.times_ns[finding] = None if known is None or part_ns is None else known + part_ns
            if where:
                self.where.setdefault(finding, where)
        for reason in verdict.not_checked:
            self.not_checked[reason] += 1

    def check(self, quantity: str, source: str, unit: str) -> Check:
        """The check, the unexplained, longest and most frequent differences first."""
        ranked = sorted(
            self.findings.items(),
            key=lambda item: (item[0].cause is not None, -(self.times_ns[item[0]] or 0), -item[1]),
        )
        rows = [self._row(finding, calls) for finding, calls in ranked[:MAX_ROWS]]
        rows += self._rest(ranked[MAX_ROWS:])
        why = "; ".join(f"{calls:,} {reason}" for reason, calls in self.not_checked.most_common())
        return Check(
            quantity=quantity, source=source, unit=unit, compared=self.compared, equal=self.equal,
            differences=tuple(rows), not_checked=why or None,
        )  # fmt: skip

    def _row(self, finding: Finding, calls: int) -> Difference:
        module = self.where.get(finding)
        parts = [f"{calls:,} call{'s' if calls > 1 else ''}", finding.evidence, f"first in {module}" if module else ""]
        return Difference(
            operator=finding.operator, phase=finding.phase, ours=finding.ours, other=finding.other,
            cause=finding.cause, evidence=": ".join(part for part in parts if part), time_ns=self.times_ns[finding],
        )  # fmt: skip

    def _rest(self, ranked: list[tuple[Finding, int]]) -> list[Difference]:
        """Return what is beyond the rows: one row of the unexplained, one of the explained."""
        rows = []
        for explained in (False, True):
            some = [(finding, calls) for finding, calls in ranked if (finding.cause is not None) is explained]
            if some:
                rows.append(
                    Difference(
                        operator="others",
                        ours=_sum((finding.ours, calls) for finding, calls in some),
                        other=_sum((finding.other, calls) for finding, calls in some),
                        cause="causes named above" if explained else None,
                        evidence=f"{sum(calls for _, calls in some):,} calls of {len(some):,} kinds",
                        time_ns=_sum((self.times_ns[finding], 1) for finding, _ in some),
                    )
                )
        return rows


def _sum(figures: Iterable[tuple[int | None, int]]) -> int | None:
    total = 0
    for figure, calls in figures:
        if figure is None:
            return None
        total += figure * calls
    return total
