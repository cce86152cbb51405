"""Where each nanosecond of device work went, what of it no rule or formula knows, and what second sources confirm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from opanatomy.records.anatomy import Anatomy, KernelRow, OperatorRow
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report.scope import all_steps
from opanatomy.report.section import Count, Name, Phrase, Section, Share, Time, facts_of, joined, phrase
from opanatomy.report.sections.checks import check_facts

#: How many names a list of names has.
_LISTED: Final = 5


def ledger(anatomy: Anatomy, *, explained: bool = False) -> Section:
    """The terms of the device work, its classed, costed and unknown parts, and the checks; where asked for also the
    differences of a known cause."""
    return Section(
        name="ledger", title="The ledger of device work", scope=all_steps(anatomy),
        facts=facts_of(*_work(anatomy), *check_facts(anatomy, explained=explained)),
    )  # fmt: skip


def _work(anatomy: Anatomy) -> list[tuple[str, str | Phrase | None]]:
    account = anatomy.ledger
    if not account.device_work_ns:
        return []
    parts = (
        ("linked to operators", account.linked_ns),
        ("launched by graphs", account.graph_launched_ns),
        ("without launch record", account.no_launch_record_ns),
        ("outside the window", account.outside_window_ns),
    )
    inside_ns = account.device_work_ns - account.outside_window_ns
    work = joined((phrase("{} {}", Time(ns), name) for name, ns in parts if ns), by=" + ")
    known = (("classed", account.classed_ns), ("costed", account.costed_ns), ("unknown", account.unknown_ns))
    return [
        ("work", phrase("device work {} = {}", Time(account.device_work_ns), work or "")),
        ("", joined(phrase("{} {}", name, Share(ns, inside_ns)) for name, ns in known)),
        ("unknown", _names(unclassified(anatomy), inside_ns)),
        ("no formula", _names(uncosted(anatomy), inside_ns)),
        ("counting", "; ".join(f"{name.replace('_', '-')}: {value}" for name, value in anatomy.conventions.items())),
    ]


def unclassified(anatomy: Anatomy) -> Counter[str]:
    """Time by name of what no rule knows."""
    return _times(
        (row for row in anatomy.operators if row.operator_class is OperatorClass.UNKNOWN),
        (row for row in anatomy.kernels if row.operator_class is OperatorClass.UNKNOWN),
    )


def uncosted(anatomy: Anatomy) -> Counter[str]:
    """Time by name of the work whose class is known and whose FLOPs are not.

    Kernels that operators launched at other times have no name of their own here: they are work without an operator.
    """
    times = _times(
        (row for row in anatomy.operators if row.operator_class is not OperatorClass.UNKNOWN and row.flops is None),
        (row for row in anatomy.kernels if row.operator_class is not OperatorClass.UNKNOWN),
    )
    account = anatomy.ledger
    inside_ns = account.device_work_ns - account.outside_window_ns
    left = inside_ns - account.costed_ns - account.unknown_ns - sum(times.values())
    if left > 0:
        times["without an operator"] += left
    return times


def _times(operators: Iterable[OperatorRow], kernels: Iterable[KernelRow]) -> Counter[str]:
    """Time by name of operators, and of the kernels among these that no operator launched."""
    times: Counter[str] = Counter()
    for row in operators:
        times[row.operator] += row.time_ns
    for kernel in kernels:
        if not kernel.operators:
            times[kernel.kernel] += kernel.time_ns
    return times


def _names(times: Counter[str], whole_ns: int) -> Phrase | None:
    """The names that take most, each with its share of the time."""
    more = len(times) - _LISTED
    listed = [phrase("{} {}", Name(name), Share(ns, whole_ns)) for name, ns in times.most_common(_LISTED)]
    return joined((*listed, phrase("{} more", Count(more)) if more > 0 else None))
