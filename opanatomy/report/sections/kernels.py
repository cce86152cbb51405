"""The kernels that take most of the device time, by name, and which operators launched them."""

from __future__ import annotations

import re
from typing import Final

from opanatomy.records.anatomy import Anatomy
from opanatomy.report.scope import calls_a_step, shares_of_work, steps_of
from opanatomy.report.section import Column, Count, Holds, Name, Note, Row, Section, Share, Time, phrase
from opanatomy.report.totals import total

#: The namespaces of torch's own kernels.
_BEFORE: Final = re.compile(r"\b(at::native::|\(anonymous namespace\)::|at_cuda_detail::)")


def kernels(anatomy: Anatomy, top: int) -> Section | None:
    """The `top` kernels by time, what the others take together, and work that is no kernel: all of the time."""
    if not anatomy.kernels or top < 1:
        return None
    steps = steps_of(anatomy)
    whole = total(anatomy.classes).time_ns / steps
    ranked = sorted(anatomy.kernels, key=lambda row: -row.time_ns)
    rows = [
        Row(
            cells=(
                Name(short_name(row.kernel)), row.operator_class, calls_a_step(row.count, steps),
                Time(row.time_ns / steps), Share(row.time_ns / steps, whole), _operators(row.operators),
            ),
            operator_class=row.operator_class,
        )
        for row in ranked[:top]
    ]  # fmt: skip
    if others := ranked[top:]:
        ns = sum(row.time_ns for row in others) / steps
        count = calls_a_step(sum(row.count for row in others), steps)
        more = phrase("and {} more", Count(len(others)))
        rows.append(Row(cells=(more, None, count, Time(ns), Share(ns, whole), None)))
    left = total(anatomy.classes).time_ns - sum(row.time_ns for row in anatomy.kernels)
    if left > 0:
        rows.append(Row(cells=("without a kernel", None, None, Time(left / steps), Share(left / steps, whole), None)))
    columns = (
        Column(header="kernel", holds=Holds.NAMES),
        Column(header="class", holds=Holds.NAMES, expendable=2),
        Column(header="count", expendable=1),
        Column(header="time"),
        Column(header="share"),
        Column(header="launched by", holds=Holds.NAMES, expendable=3),
    )
    notes = (Note(text="whole names: -f json"),)
    return Section(
        name="kernels", title="The kernels that take most", scope=shares_of_work(anatomy), columns=columns,
        rows=tuple(rows), notes=notes,
    )  # fmt: skip


def short_name(kernel: str) -> str:
    """A kernel's name without what all of torch's begin with, so that what distinguishes them is not cut."""
    return _BEFORE.sub("", kernel.removeprefix("void "))


def _operators(names: tuple[str, ...]) -> Name | None:
    """The operators that launched a kernel; none of a graph's kernels."""
    return Name(operators_of(names)) if names else None


def operators_of(names: tuple[str, ...]) -> str:
    """The first of some operators, and how many more there are."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
