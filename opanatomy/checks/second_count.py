"""Calls by operator and phase, and FLOPs of contractions, against what a dispatch mode saw in the warm-up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from opanatomy.calls import Calls
from opanatomy.checks.causes import Key, cause_of
from opanatomy.checks.dispatched import Dispatched, dispatched, in_place, inner_copies
from opanatomy.classification import classify_operator
from opanatomy.model import Capture, Check, Difference, ObservedCount
from opanatomy.tables import CallTable

OBSERVER = "a dispatch mode in the warm-up"


@dataclass(slots=True)
class _Observed:
    """What one step made of an operator in a phase. `flops` is `None` where a call has no second formula."""

    calls: int = 0
    flops: int | None = 0
    sources: tuple[str, ...] = ()


def check_counts(calls: Calls, table: CallTable, capture: Capture | None, steps: int) -> tuple[Check, ...]:
    """Both comparisons of a capture; none for a trace from elsewhere.

    `table` has the calls of all `steps` steps of the window.
    """
    if capture is None:
        return ()
    if not capture.observed_counts:
        reason = capture.not_observed or "the capture did not watch a step"
        return (
            Check(quantity="call counts", source=OBSERVER, unit="calls", not_checked=reason),
            Check(quantity="contraction FLOPs", source=OBSERVER, unit="FLOPs", not_checked=reason),
        )
    seen = {row.operator for row in capture.observed_counts}
    ours = {key: one for key, one in dispatched(calls, table, seen).items() if not _is_compiled(one)}
    observed = _computing(capture.observed_counts, steps)
    return _check_calls(ours, observed, inner_copies(calls, table)), _check_flops(ours, observed)


def _is_compiled(one: Dispatched) -> bool:
    """Whether the work is that of generated code, which no mode sees."""
    return all(name.startswith(("graph_", "triton_", "cpp_")) for name in one.operators)


def _computing(counts: Iterable[ObservedCount], steps: int) -> dict[Key, _Observed]:
    """What was observed of the operators that compute, as often as the trace has steps."""
    found: dict[Key, _Observed] = {}
    for count in counts:
        known = classify_operator(count.operator)
        if known is not None and known.operator_class is None:
            continue  # a view, an allocation
        one = found.setdefault((in_place(count.operator), count.phase), _Observed())
        one.calls += count.calls * steps
        one.flops = None if one.flops is None or count.flops is None else one.flops + count.flops * steps
        one.sources = tuple(sorted({*one.sources, *((count.source,) if count.source else ())}))
    return found


# ------------------------------------------------------------------------------------------------------------- calls


def _check_calls(ours: Mapping[Key, Dispatched], observed: Mapping[Key, _Observed], inner: Mapping[Key, int]) -> Check:
    differences = []
    mine = {key: one.calls for key, one in ours.items()}
    seen = {key: one.calls for key, one in observed.items()}
    enclosed = {key: one.enclosed_copies for key, one in ours.items()}
    keys = sorted({*mine, *seen})
    for key in keys:
        if mine.get(key, 0) != seen.get(key, 0):
            differences.append(
                Difference(
                    operator=key[0], phase=key[1], ours=mine.get(key, 0), other=seen.get(key, 0),
                    cause=cause_of(key, mine, seen, inner, enclosed),
                )
            )  # fmt: skip
    return Check(
        quantity="call counts", source=OBSERVER, unit="calls",
        compared=len(keys), equal=len(keys) - len(differences), differences=tuple(differences),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- FLOPs


def _check_flops(ours: Mapping[Key, Dispatched], observed: Mapping[Key, _Observed]) -> Check:
    keys = sorted(
        {*(key for key, one in ours.items() if one.contracts), *(k for k, one in observed.items() if one.sources)}
    )
    differences, uncounted = [], set()
    for key in keys:
        mine = ours[key].contraction_flops if key in ours else 0
        seen = observed[key].flops if key in observed else 0
        if seen is None:
            uncounted.add(key[0])
        elif mine != seen:
            evidence = None if mine is not None else "a call of it has no cost here"
            differences.append(Difference(operator=key[0], phase=key[1], ours=mine, other=seen, evidence=evidence))
    compared = sum(1 for key in keys if key not in observed or observed[key].flops is not None)
    return Check(
        quantity="contraction FLOPs", source=_sources(observed), unit="FLOPs",
        compared=compared, equal=compared - len(differences), differences=tuple(differences),
        not_checked=f"no second formula: {', '.join(sorted(uncounted))}" if uncounted else None,
    )  # fmt: skip


def _sources(observed: Mapping[Key, _Observed]) -> str:
    return " and ".join(sorted({source for one in observed.values() for source in one.sources})) or OBSERVER
