"""The parts of a difference in words: grouped by cause and class, named, in sentences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from opanatomy.records.compared import Cause, Part, Work
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report.classes import SHORT_LABEL
from opanatomy.report.section import Count, Name, Phrase, Time, TimeChange, joined, phrase

_NAMED: Final = {
    Cause.SAME_CALLS: "the same calls", Cause.MORE_CALLS: "more calls", Cause.FEWER_CALLS: "fewer calls",
    Cause.MOVED: "moved", Cause.ANOTHER_SIGNATURE: "other arguments", Cause.ANOTHER_KERNEL: "another kernel",
    Cause.ANOTHER_OPERATOR: "another operator", Cause.NEW: "new", Cause.GONE: "gone",
    Cause.HOST_IDLE: "idle, host-bound", Cause.STREAM_IDLE: "idle, stream waits", Cause.OTHER_IDLE: "idle, other",
    Cause.OUTSIDE: "work of other steps", Cause.UNRECORDED: "not recorded",
    Cause.FRAMEWORK: "framework", Cause.PROFILER: "profiler",
}  # fmt: skip
#: What the host records a collective as.
_COLLECTIVE: Final = "record_param_comms"
#: A namespace of C++ whose brackets are no parameters.
_ANONYMOUS: Final = "(anonymous namespace)::"
#: Operators of a group that a sentence names.
_OPERATORS: Final = 2


class Group(Struct, frozen=True, kw_only=True):
    """Parts of one cause and class, the largest change first."""

    name: str
    cause: Cause
    operator_class: OperatorClass | None
    parts: tuple[Part, ...]

    @property
    def before_ns(self) -> int:
        """Their time before."""
        return sum(part.before_ns for part in self.parts)

    @property
    def after_ns(self) -> int:
        """Their time after."""
        return sum(part.after_ns for part in self.parts)

    @property
    def change_ns(self) -> int:
        """What they add to the difference."""
        return self.after_ns - self.before_ns


def groups_of(parts: Iterable[Part]) -> list[Group]:
    """Parts by cause and class, and where work moved by from where to where; the largest change first."""
    groups: dict[tuple[Cause, str], list[Part]] = {}
    for part in parts:
        groups.setdefault((part.cause, _name(part)), []).append(part)
    made = [
        Group(name=name, cause=cause, operator_class=members[0].operator_class, parts=tuple(members))
        for (cause, name), members in groups.items()
    ]
    return sorted(made, key=lambda group: (-abs(group.change_ns), group.name))


def named(cause: Cause) -> str:
    """A cause in words."""
    return _NAMED[cause]


def _name(part: Part) -> str:
    if part.pair is not None:
        first, second = part.pair
        return f"overlap of {first}" if first == second else f"overlap of {first} and {second}"
    if part.operator_class is None:
        return _NAMED[part.cause]
    moved = _moved(part) if part.cause is Cause.MOVED else _NAMED[part.cause]
    return f"{SHORT_LABEL[part.operator_class]}, {moved}"


def _moved(part: Part) -> str:
    before, after = (("/".join(side.phases) if side is not None else "?") for side in (part.before, part.after))
    return f"moved from {before} to {after}"


def name_of_part(part: Part) -> str:
    """The operator, or where none is known the kernel, that a part is the work of."""
    for side in (part.after, part.before):
        if side is not None and (side.operators or side.kernels):
            first, *others = (bare(name) for name in _telling(side))
            return first + (f" and {len(others)} more" if others else "")
    return "?"


def bare(name: str) -> str:
    """A kernel's name without its C++ type and parameters."""
    return name.removeprefix("void ").replace(_ANONYMOUS, "").partition("(")[0] or name


def _telling(side: Work) -> tuple[str, ...]:
    """Its operators, of a collective its kernels: the host records all collectives by one name."""
    return side.kernels if side.kernels and side.operators == (_COLLECTIVE,) else side.operators or side.kernels


def sentence_of(group: Group) -> Phrase:
    """A group with its change, and the operators that make most of it."""
    if group.cause is Cause.OVERLAP:
        how = "More" if group.change_ns < 0 else "Less"
        return phrase("{} {}: {}", how, group.name, TimeChange(group.change_ns))
    head = phrase("{}: {}", group.name[:1].upper() + group.name[1:], TimeChange(group.change_ns))
    if not group.cause.is_work:
        return head
    if group.cause is Cause.MOVED:
        calls = round(sum(part.after.calls for part in group.parts if part.after is not None))
        return phrase("{} by {} of {}", head, Count(calls, "call"), Time(group.after_ns))
    operators = _operators(group.parts)
    if len(operators) == 1:
        return phrase("{} ({})", head, Name(operators[0][0]))
    most = [(name, change) for name, change in operators if abs(change) * 10 >= abs(group.change_ns)][:_OPERATORS]
    largest = joined(phrase("{} {}", Name(name), TimeChange(change)) for name, change in most)
    return phrase("{}, of it {}", head, largest) if largest else head


def _operators(parts: Iterable[Part]) -> list[tuple[str, int]]:
    changes: dict[str, int] = {}
    for part in parts:
        if part.change_ns:
            name = name_of_part(part)
            changes[name] = changes.get(name, 0) + part.change_ns
    return sorted(changes.items(), key=lambda item: -abs(item[1]))
