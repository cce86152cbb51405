"""Report second-source checks: disagreements before everything else, agreement in one line.

A ceiling of the user's own is not a second source: if the trace is above one, the option that gave it is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from opanatomy.analysis.costs import costs_of, steps_of, steps_of_window
from opanatomy.records.anatomy import (
    BANDWIDTH,
    CLASSES,
    CLOCKS,
    EVENTS,
    LAUNCHES,
    ORDER,
    WAITS,
    Anatomy,
    Check,
    Difference,
    ExceededCeiling,
)
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.records.work import KernelRow, OperatorRow
from opanatomy.report.section import (
    ByteRate,
    Bytes,
    Count,
    Exact,
    FlopRate,
    Flops,
    Name,
    Note,
    NoteKind,
    Page,
    Phrase,
    Quantity,
    Section,
    Share,
    Time,
    facts_of,
    is_known,
    joined,
    phrase,
    scope_all_steps,
    whole_of,
    work_of,
)
from opanatomy.report.totals import moved, total
from opanatomy.report.units import text_of

#: Sentences on possible errors of the page, and differences of a check in the ledger.
_MAX_SENTENCES, _MAX_DIFFERENCES = 2, 12
#: Maximum number of causes of differences, and of operators per cause.
_MAX_CAUSES, _MAX_OPERATORS = 6, 3
#: The figure that a check covers, by its quantity.
_FIGURE: Final[Mapping[str, str]] = {
    "call counts": "The number of calls of {}",
    "contraction FLOPs": "FLOPs of {}",
    "operator times": "The time of {}",
    "annotated phases": "The time {}",
    "ceiling": "The time, FLOPs or bytes of {}",
    CLASSES: "The operator class of {}",
    ORDER: "The operators and phases of {}",
    CLOCKS: "The start and end times of {}, the idle time and its causes",
    LAUNCHES: "The time of {}",
    WAITS: "The busy time of the device",
    EVENTS: "The time of {}",
}
#: Checks whose evidence is the message itself.
_TEXTUAL: Final = (CLASSES, ORDER, CLOCKS, LAUNCHES, WAITS, EVENTS)
_QUANTITY: Final[Mapping[str, Callable[[int | None], Quantity]]] = {"FLOPs": Flops, "B": Bytes, "ns": Time}


def caveats(anatomy: Anatomy) -> Section | None:
    """Return caveats that affect every figure."""
    notes = tuple(Note(text=text, kind=NoteKind.WARNING) for text in anatomy.caveats if text)
    return Section(title="Before you read on", notes=notes) if notes else None


def given_ceilings(anatomy: Anatomy) -> Section | None:
    """Return the user's ceilings that the trace exceeds: a sentence for each option."""
    exceeded = anatomy.device.exceeded
    if not exceeded:
        return None
    options: dict[str, list[ExceededCeiling]] = {}
    for one in exceeded:
        options.setdefault(one.option, []).append(one)
    notes = []
    for option, ceilings in options.items():
        of_products = any(one.ceiling != BANDWIDTH for one in ceilings)
        text = phrase(
            "A throughput measured in this trace exceeds {}: {}. The given value is most likely too low, which"
            " makes bounds, shares of peak{} and headroom wrong.",
            option,
            joined((_reached(one) for one in ceilings), "; ") or "",
            ", MFU" if of_products else "",
        )
        notes.append(Note(text=text, kind=NoteKind.WARNING))
    return Section(title="Given peaks", notes=tuple(notes))


def exceeded_texts(anatomy: Anatomy) -> Iterator[Phrase]:
    """Yield a sentence for each of the user's ceilings that the trace exceeds, the furthest first."""
    for one in anatomy.device.exceeded:
        yield phrase("A measured throughput exceeds {}: {}.", one.option, _reached(one))


def _reached(one: ExceededCeiling) -> Phrase:
    """Return the rate an operator reached, and the device's known value without the option."""
    rate = ByteRate if one.ceiling == BANDWIDTH else FlopRate
    of = "" if one.ceiling == BANDWIDTH else f" in {one.ceiling}"
    known: Phrase | str = ""
    if one.known_per_second is not None:
        known = phrase(" (peak without the option: {})", rate(one.known_per_second))
    name = Name(one.operator.removeprefix("aten::"))
    return phrase("{} in {} reaches at least {}{}{}", name, one.phase.value, rate(one.reached_per_second), of, known)


def alarm_texts(anatomy: Anatomy) -> Iterator[Phrase]:
    """Yield a sentence per check that reports a possibly wrong figure, the one affecting most work first."""
    work_ns, costs = total(anatomy.classes).time_ns, costs_of(anatomy)
    of_step = work_ns / steps_of(anatomy) * steps_of_window(anatomy) / costs.whole_ns if costs.whole_ns else 0
    for check in sorted(anatomy.alarms, key=lambda check: -check.share(work_ns)):
        first, *others = sorted(check.unexplained, key=lambda difference: -difference.share(work_ns))
        text = phrase("{}{}", may_be_wrong(check, first), _more(others))
        share = Share(check.share(work_ns), 1)
        if all(difference.time_ns is not None for difference in check.unexplained):
            yield phrase(
                "{}; this affects {} of {}.", text, Share(min(check.share(work_ns) * of_step, 1), 1), whole_of(costs)
            )
        else:
            yield (
                phrase("{}.", text) if check.quantity in _TEXTUAL else phrase("{}; the two differ by {}.", text, share)
            )


def _more(others: Sequence[Difference]) -> Phrase | str:
    return phrase(", and {}", Count(len(others), "more number")) if others else ""


def _extent(differences: Iterable[Difference], share: float) -> Phrase:
    """Return how much the differences matter: the affected part of the work, or of numbers without a time how far."""
    timed = all(difference.time_ns is not None for difference in differences)
    return phrase("this affects {} of the work" if timed else "the two differ by {}", Share(share, 1))


def may_be_wrong(check: Check, difference: Difference) -> Phrase:
    """Return the possibly wrong figure and its error: its value here and by the second source."""
    named = check.quantity == "annotated phases"  # by the operator
    in_phase = "" if difference.phase is None or named else f" in {difference.phase.value}"
    figure = _FIGURE.get(check.quantity, f"{check.quantity} of {{}}")
    subject = phrase(figure, *([Name(difference.operator.removeprefix("aten::"))] if "{}" in figure else ()))
    if check.quantity in _TEXTUAL and difference.evidence:
        by = phrase("{}", difference.evidence)
    else:
        # With all digits if they would be equal when rounded.
        figures: tuple[Quantity, Quantity] = Exact(difference.ours, check.unit), Exact(difference.other, check.unit)
        make = _QUANTITY.get(check.unit)
        if make is not None and text_of(make(difference.ours)) != text_of(make(difference.other)):
            figures = make(difference.ours), make(difference.other)
        ours, other = (quantity if is_known(quantity) else "unknown" for quantity in figures)
        by = phrase("{} here, {} according to {}", ours, other, check.source)
    return phrase("{}{} may be wrong: {}", subject, in_phase, by)


def disagreements(anatomy: Anatomy) -> Section | None:
    """Return possible errors that affect 1 % of the work or more: a sentence for each check, the first two."""
    texts: list[str | Phrase] = list(alarm_texts(anatomy))
    if not texts:
        return None
    if len(texts) > _MAX_SENTENCES:
        more = Count(len(texts) - _MAX_SENTENCES, "more disagreement")
        texts[_MAX_SENTENCES:] = [phrase("{} (see --section ledger)", more)]
    notes = tuple(Note(text=text, kind=NoteKind.WARNING) for text in texts)
    return Section(title="What may be wrong", notes=notes)


def check_facts(anatomy: Anatomy, *, explained: bool) -> Iterator[tuple[str, Phrase | None]]:
    """Yield (label, text): confirmed figures, differences with the share of work affected, and unchecked figures; with
    `explained` also each difference and its cause."""
    compared = [check for check in anatomy.checks if check.compared]
    if compared:
        equal = Count(sum(check.equal for check in compared), "number")
        unequal = joined(
            phrase("{}: only {} of {}", check.quantity, Count(check.equal), Count(check.compared))
            for check in compared
            if check.equal < check.compared
        )
        yield "confirmed", joined((phrase("{} by second sources", equal), unequal), by="; ")
    work_ns, alarms = total(anatomy.classes).time_ns, anatomy.alarms
    for check in anatomy.checks:
        ranked = sorted(check.unexplained, key=lambda difference: -difference.share(work_ns))
        if ranked and check not in alarms:
            extent = _extent(ranked, check.share(work_ns))
            yield "below 1 %", phrase("{}{}; {}", may_be_wrong(check, ranked[0]), _more(ranked[1:]), extent)
        elif explained:
            for difference in ranked[:_MAX_DIFFERENCES]:
                extent = _extent([difference], difference.share(work_ns))
                evidence = (
                    "" if check.quantity in _TEXTUAL else f"; {difference.evidence}" if difference.evidence else ""
                )
                yield "uncertain", phrase("{}; {}{}", may_be_wrong(check, difference), extent, evidence)
            if ranked[_MAX_DIFFERENCES:]:
                yield "uncertain", phrase("{}{}", check.quantity, _more(ranked[_MAX_DIFFERENCES:]))
    yield from _explained(anatomy) if explained else ()
    reasons: dict[str, list[str]] = {}
    for check in anatomy.checks:
        if check.not_checked:
            reasons.setdefault(check.not_checked, []).append(check.quantity)
    for reason, quantities in reasons.items():
        yield "unchecked", phrase("{}: {}", ", ".join(quantities), reason)


def _explained(anatomy: Anatomy) -> Iterator[tuple[str, Phrase | None]]:
    """Yield the operators by the cause of their differences."""
    causes: dict[str, list[str]] = {}
    for check in anatomy.checks:
        for difference in check.differences:
            if difference.cause is not None:
                names = causes.setdefault(difference.cause, [])
                if difference.operator not in names:
                    names.append(difference.operator)
    for cause, names in list(causes.items())[:_MAX_CAUSES]:
        more = phrase(" and {} more", Count(len(names) - _MAX_OPERATORS)) if len(names) > _MAX_OPERATORS else ""
        listed = joined(phrase("{}", Name(name)) for name in names[:_MAX_OPERATORS])
        yield "explained", phrase("{}{}: {}", listed or "", more, cause)
    if len(causes) > _MAX_CAUSES:
        more = phrase("{} (all are in the JSON report)", Count(len(causes) - _MAX_CAUSES, "more cause"))
        yield "explained", more


# The ledger: the classed, costed and unknown parts of the device work, and the confirmation by second sources.


#: The most names in a list of names.
_UNKNOWN_LISTED: Final = 5


def ledger(anatomy: Anatomy, page: Page) -> Section:
    """Return the terms of the device work, its classed, costed and unknown parts, and the checks; if the page asks for
    sections by name also the differences of a known cause."""
    account = anatomy.ledger
    work: list[tuple[str, str | Phrase | None]] = []
    if account.device_work_ns:
        parts = (
            ("linked to operators", account.linked_ns),
            ("launched by graphs", account.graph_launched_ns),
            ("without launch record", account.no_launch_record_ns),
            ("outside the window", account.outside_window_ns),
        )
        inside_ns = account.device_work_ns - account.outside_window_ns
        whole = work_of(anatomy) if anatomy.environment.host_only else "device work"
        linked = joined((phrase("{} {}", Time(ns), name) for name, ns in parts if ns), by=" + ")
        known = (("classified", account.classed_ns), ("costed", account.costed_ns), ("unknown", account.unknown_ns))
        attends = any("attention" in row.operator or "attn" in row.operator for row in anatomy.operators)
        counted = (
            f"{name.replace('_', '-')}: {value}{' FLOPs' * (name == 'multiply_add')}"
            for name, value in anatomy.conventions.items()
            if name != "causal" or attends
        )
        work = [
            ("work", phrase("{} {} = {}", whole, Time(account.device_work_ns), linked or "")),
            ("", joined(phrase("{} {}", name, Share(ns, inside_ns)) for name, ns in known)),
            ("unknown", _names(unclassified(anatomy), inside_ns)),
            ("no formula", _names(uncosted(anatomy), inside_ns)),
            ("counting", "; ".join(counted)),
        ]
    return Section(
        title="Ledger of the device work",
        scope=scope_all_steps(anatomy),
        facts=facts_of(*work, *check_facts(anatomy, explained=bool(page.sections))),
    )


def unclassified(anatomy: Anatomy) -> Counter[str]:
    """Return the time of work without a matching rule, by name."""
    return _times(
        (row for row in anatomy.operators if row.operator_class is OperatorClass.UNKNOWN),
        (row for row in anatomy.kernels if row.operator_class is OperatorClass.UNKNOWN),
    )


def uncosted(anatomy: Anatomy) -> Counter[str]:
    """Return the time of work with a class but no cost, by name.

    Kernels that operators launched at other times have no name of their own here: they are work without an operator.
    """
    times = _times(
        (row for row in anatomy.operators if row.operator_class is not OperatorClass.UNKNOWN and moved(row) is None),
        (row for row in anatomy.kernels if row.operator_class is not OperatorClass.UNKNOWN),
    )
    account = anatomy.ledger
    inside_ns = account.device_work_ns - account.outside_window_ns
    left = inside_ns - account.costed_ns - account.unknown_ns - sum(times.values())
    if left > 0:
        times["without an operator"] += left
    return times


def _times(operators: Iterable[OperatorRow], kernels: Iterable[KernelRow]) -> Counter[str]:
    """Return the time by name of operators, and of the kernels among these that no operator launched."""
    times: Counter[str] = Counter()
    for row in operators:
        times[row.operator] += row.time_ns
    for kernel in kernels:
        if not kernel.operators:
            times[kernel.kernel] += kernel.time_ns
    return times


def _names(times: Counter[str], whole_ns: int) -> Phrase | None:
    """Return the names with most time, each with its share."""
    more = len(times) - _UNKNOWN_LISTED
    listed = [phrase("{} {}", Name(name), Share(ns, whole_ns)) for name, ns in times.most_common(_UNKNOWN_LISTED)]
    return joined((*listed, phrase("{} more", Count(more)) if more > 0 else None))
