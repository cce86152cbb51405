"""Calls by operator and phase, and FLOPs of contractions, against what a dispatch mode saw in the warm-up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from opanatomy.calls.announced import BACKENDS
from opanatomy.calls.trace_calls import TraceCalls
from opanatomy.checks.causes import FORWARD_AD, Counts, Key, Observed, cause_of_calls, cause_of_flops
from opanatomy.checks.dispatched import Dispatched, dispatched, in_place, inner_copies
from opanatomy.classification import classify_operator
from opanatomy.records.checks import Check, Difference
from opanatomy.records.columns import CallTable
from opanatomy.records.workload import Capture, ObservedCount

OBSERVER = "a dispatch mode in the warm-up"
#: How names begin of what a dispatch mode does not see.
_UNSEEN: Final = ("graph_", "triton_", "cpp_", *BACKENDS, "_c10d_functional::_wrap_tensor_autograd")


def check_counts(calls: TraceCalls, table: CallTable, capture: Capture | None, steps: int) -> tuple[Check, ...]:
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
    watched = frozenset(row.operator for row in capture.observed_counts)
    counts = Counts(
        ours={key: count for key, count in dispatched(calls, table, watched).items() if not _is_unseen(count)},
        observed=_computing(capture.observed_counts, steps),
        inner_copies=inner_copies(calls, table),
        of_first_step=capture.observed_step == 1,
        traced=frozenset(calls.names),
        watched=watched,
    )
    checks = _check_calls(counts), _check_flops(counts)
    unseen = FORWARD_AD if counts.differentiates_forward else capture.not_observed
    return tuple(_not_checked(check, unseen) if unseen and check.unexplained else check for check in checks)


def _not_checked(check: Check, reason: str) -> Check:
    """The check without its differences: which of them are mistakes cannot be known."""
    return replace(check, compared=0, equal=0, differences=(), not_checked=reason)


def _is_unseen(count: Dispatched) -> bool:
    """Whether the work is that of generated code or of a backend's threads, or above autograd: no mode sees these."""
    return all(name.startswith(_UNSEEN) for name in count.operators)


def _computing(counts: Iterable[ObservedCount], steps: int) -> dict[Key, Observed]:
    """What was observed of the operators that compute, as often as the trace has steps."""
    observed: dict[Key, Observed] = {}
    for count in counts:
        known = classify_operator(count.operator)
        if known is not None and known.operator_class is None:
            continue  # a view, an allocation
        operator = observed.setdefault((in_place(count.operator), count.phase), Observed())
        operator.calls += count.calls * steps
        operator.flops = None if operator.flops is None or count.flops is None else operator.flops + count.flops * steps
        operator.sources = tuple(sorted({*operator.sources, *((count.source,) if count.source else ())}))
    return observed


def _check_calls(counts: Counts) -> Check:
    keys = sorted({*counts.ours, *counts.observed})
    differences = _differences(keys, counts.calls, lambda key: cause_of_calls(key, counts), counts.time_of_calls)
    return Check(
        quantity="call counts", source=OBSERVER, unit="calls",
        compared=len(keys), equal=len(keys) - len(differences), differences=differences,
    )  # fmt: skip


def _check_flops(counts: Counts) -> Check:
    contractions = {key for key, count in counts.ours.items() if count.contracts}
    keys = sorted(contractions | {key for key, count in counts.observed.items() if count.sources})
    uncounted = [key for key in keys if key in counts.observed and counts.observed[key].flops is None]
    compared = [key for key in keys if key not in uncounted]
    differences = _differences(compared, counts.flops, lambda key: cause_of_flops(key, counts), counts.time_of_flops)
    names = ", ".join(sorted({name for name, _ in uncounted}))
    return Check(
        quantity="contraction FLOPs", source=_sources(counts.observed), unit="FLOPs",
        compared=len(compared), equal=len(compared) - len(differences), differences=differences,
        not_checked=f"no second formula: {names}" if names else None,
    )  # fmt: skip


def _differences(
    keys: Iterable[Key],
    figures: Callable[[Key], tuple[int | None, int | None]],
    cause: Callable[[Key], str | None],
    time_of: Callable[[Key], int | None],
) -> tuple[Difference, ...]:
    """One for each operator and phase whose two figures are not the same."""
    differences = []
    for key in keys:
        ours, other = figures(key)
        if ours != other:
            evidence = "a call of it has no cost here" if ours is None else None
            differences.append(
                Difference(
                    operator=key[0], phase=key[1], ours=ours, other=other, cause=cause(key), evidence=evidence,
                    time_ns=time_of(key),
                )
            )  # fmt: skip
    return tuple(differences)


def _sources(observed: Mapping[Key, Observed]) -> str:
    return " and ".join(sorted({source for count in observed.values() for source in count.sources})) or OBSERVER
