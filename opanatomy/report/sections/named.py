"""What a report knows of a name: an operator, a kernel, a module, a collective, a term of its memory, a technique."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

from opanatomy.records.anatomy import Anatomy, KernelRow, ModuleRow, OperatorRow
from opanatomy.records.compared import Comparison
from opanatomy.records.memory import MemoryBlocks
from opanatomy.records.ranks import Rank
from opanatomy.records.reports import Report
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.records.techniques import Techniques
from opanatomy.report.module_tree import Node, module_tree
from opanatomy.report.scope import calls_a_step, steps_of
from opanatomy.report.section import (
    ByteRate,
    Bytes,
    Count,
    Fact,
    Flops,
    Name,
    Phrase,
    Share,
    Time,
    joined,
    phrase,
)
from opanatomy.report.sections.kernels import operators_of, short_name
from opanatomy.report.sections.known import Known, listed
from opanatomy.report.sections.named_compared import names_of_comparison
from opanatomy.report.sections.named_techniques import names_of_techniques
from opanatomy.report.totals import total

#: Rows of one kind that are listed of one thing.
_ROWS: Final = 6
#: Numbers of modules as the tree has them.
_SPANS: Final = re.compile(r"\d+(?:-\d+)?(?:, \d+(?:-\d+)?)*")
Timed = TypeVar("Timed", OperatorRow, KernelRow)
#: What modules are called: one, and several that are alike.
ALIKE: Final = "modules"
MODULES: Final = ("module", ALIKE)
_NO_RULE: Final = "none: no rule knows this name, so that it is in the class unknown"


def known_names(report: Report) -> Iterator[Known]:
    """Every name of a report, one that is of two things twice."""
    if isinstance(report, Techniques):
        return names_of_techniques(report)
    return names_of_comparison(report) if isinstance(report, Comparison) else _of_anatomy(report)


def _of_anatomy(anatomy: Anatomy) -> Iterator[Known]:
    others: dict[str, dict[str, None]] = {}
    for kernel in anatomy.kernels:
        if len(kernel.operators) > 1:
            text = operators_of(kernel.operators)
            others.setdefault(kernel.operators[0], {}).update(dict.fromkeys((text, text.removeprefix("aten::"))))
    launching = (name for kernel in anatomy.kernels for name in kernel.operators)
    for name in dict.fromkeys((*(row.operator for row in anatomy.operators), *launching)):
        together = tuple(others.get(name, ()))
        yield Known(name, "operator", lambda name=name: _operator(name, anatomy), together=together)  # type: ignore[misc]
    yield from _ranks(anatomy)
    for kernel in anatomy.kernels:
        facts = lambda kernel=kernel: _kernel(kernel, anatomy)  # noqa: E731
        yield Known(kernel.kernel, "kernel", facts, short_name(kernel.kernel))
    yield from _modules(anatomy)
    for module in dict.fromkeys(row.module for row in anatomy.memory.activations if row.module):
        yield Known(module, ALIKE, lambda module=module: _saved(module, anatomy))  # type: ignore[misc]
    for name in dict.fromkeys(row.collective.replace("_", " ") for row in anatomy.collectives):
        yield Known(name, "collective", lambda name=name: _collective(name, anatomy))  # type: ignore[misc]
    for term in anatomy.memory.terms:
        fact = Fact(label="formula", text=phrase("{} = {} B", term.formula, Count(term.bytes)))
        yield Known(term.term, "term of the activations", lambda fact=fact: (fact,))  # type: ignore[misc]
    for row in anatomy.memory.published:
        fact = Fact(label="report", text=f"published {row.published:g} {row.unit}, {_ours(row.measured, row.unit)}")
        yield Known(row.figure, "figure of the classic run", lambda fact=fact: (fact,))  # type: ignore[misc]


def _ranks(anatomy: Anatomy) -> Iterator[Known]:
    """The ranks of a run of several."""
    for rank in anatomy.ranks if len(anatomy.ranks) > 1 else ():
        name = rank.trace or "?" if rank.rank is None else f"rank {rank.rank}"
        yield Known(name, "rank", lambda rank=rank: _rank(rank, anatomy), name.removeprefix("rank "))  # type: ignore[misc]


def _rank(rank: Rank, anatomy: Anatomy) -> tuple[Fact, ...]:
    """The step of a rank and its parts, and how long the others wait for it."""
    parts = (("busy", "busy"), ("idle", "idle"), ("kernels", "kernel_time"), ("communication", "communication"),
             ("exposed", "exposed_communication"))  # fmt: skip
    times = (phrase("{} {}", label, Time(ns)) for label, field in parts if (ns := rank.a_step(field)) is not None)
    step = phrase("step {}, the mean of {}", Time(rank.wall_ns), Count(rank.steps, "step"))
    facts = [Fact(label="report", text=step), Fact(label="", text=joined(times) or "")]
    for row in anatomy.waiting.each if anatomy.waiting is not None else ():
        if (row.rank, row.trace) == (rank.rank, rank.trace):
            waited = (Time(ns / max(len(row.steps), 1)) for ns in (row.waiting_ns, row.charged_ns))
            facts.append(Fact(label="", text=phrase("a step it waits {}, and is waited for {}", *waited)))
    return tuple(facts)


def _modules(anatomy: Anatomy) -> Iterator[Known]:
    """The modules by their paths, and as the table of modules has them: alike ones as one."""
    paths = dict.fromkeys(_paths(row.module for row in anatomy.modules))
    root = module_tree(anatomy.modules)
    nodes = dict(_nodes(root, ""))
    if paths and (name := root.kind or anatomy.workload.architecture):
        yield Known(name, "model", lambda: _module("", anatomy))
    for path in paths:
        short = nodes[path].name if path in nodes else ""
        yield Known(path, "module", lambda path=path: _module(path, anatomy), short)  # type: ignore[misc]
    for path, node in nodes.items():
        if path not in paths:
            yield Known(path, ALIKE, lambda path=path: _module(path, anatomy), node.name)  # type: ignore[misc]


def _nodes(node: Node, path: str) -> Iterator[tuple[str, Node]]:
    """Each node of the tree with its path."""
    for child in node.children:
        below = f"{path}.{child.name}" if path else child.name
        yield below, child
        yield from _nodes(child, below)


def _ours(measured: float | None, unit: str) -> str:
    return "not measured here" if measured is None else f"here {measured:g} {unit}"


def _paths(modules: Iterable[str]) -> Iterator[str]:
    """The path of each module and of those around it."""
    for module in modules:
        parts = module.split(".") if module else []
        yield from (".".join(parts[: end + 1]) for end in range(len(parts)))


def _took(time_ns: int, anatomy: Anatomy) -> Phrase:
    """`15.7 ms a step, 47.0 ms in all 3, 5.1 % of the time`."""
    steps, share = steps_of(anatomy), Share(time_ns, total(anatomy.classes).time_ns)
    if steps == 1:
        return phrase("{}, {} of the time", Time(time_ns), share)
    return phrase("{} a step, {} in all {}, {} of the time", Time(time_ns / steps), Time(time_ns), Count(steps), share)


def _classed(rows: Iterable[OperatorRow | KernelRow]) -> Iterator[Fact]:
    """The class of a name in the report and the rule that decided; of several those of its kernels, with their time."""
    times: Counter[tuple[OperatorClass, str]] = Counter()
    for row in rows:
        times[row.operator_class, row.rule] += row.time_ns
    for (item, rule), time_ns in times.most_common():
        took = phrase("{}, {}", item, Time(time_ns)) if len(times) > 1 else phrase("{}", item)
        yield Fact(label="class", text=took)
        yield Fact(label="rule", text=_NO_RULE if item is OperatorClass.UNKNOWN else rule)


def _operator(name: str, anatomy: Anatomy) -> tuple[Fact, ...]:
    """Class, time by phase, the calls that it is a part of, the kernels that it launched, what it allocated."""
    own = [row for row in anatomy.operators if row.operator == name]
    parts = [row for row in anatomy.operators if row.part_of == name]
    facts = [*_classed(own)]
    if own or parts:
        facts.append(Fact(label="report", text=_time_of(own, parts, anatomy)))
    for phase, part_of in dict.fromkeys((row.phase, row.part_of) for row in own):
        members = [row for row in own if (row.phase, row.part_of) == (phase, part_of)]
        below = [row for row in parts if row.phase is phase] if part_of is None else []
        inside = "" if part_of is None else phrase(", as a part of {}", Name(part_of))
        took = _part_of_time(members, below, steps_of(anatomy))
        facts.append(Fact(label="", text=phrase("{}: {}{}", phase.value, took, inside)))
        facts += _by_class(phase.value, (*members, *below), steps_of(anatomy))
    facts += listed("parts", (phrase("{} {}", Name(row.operator), Time(row.time_ns)) for row in _longest(parts)))
    launched = [row for row in anatomy.kernels if name in row.operators]
    facts += listed("kernels", (_launched(row) for row in _longest(launched)))
    facts += listed("memory", (_block(row) for row in anatomy.memory.blocks if row.operator == name))
    return (*facts, *_differences(name, anatomy))


def _by_class(phase: str, rows: Sequence[OperatorRow], steps: int) -> Iterator[Fact]:
    """What of the time in a phase is of each class, where there are several: each has a row of the page."""
    times: Counter[OperatorClass] = Counter()
    for row in rows:
        times[row.operator_class] += row.time_ns
    for item, ns in times.most_common() if len(times) > 1 else ():
        yield Fact(label="", text=phrase("{}, {}: {}", phase, item, Time(ns / steps)))


def _time_of(own: Sequence[OperatorRow], parts: Sequence[OperatorRow], anatomy: Anatomy) -> Phrase:
    """The time of an operator and of its parts, and its calls."""
    took = _took(sum(row.time_ns for row in (*own, *parts)), anatomy)
    return phrase("{}, in {}", took, Count(sum(row.calls for row in own), "call"))


def _part_of_time(own: Sequence[OperatorRow], parts: Sequence[OperatorRow], steps: int) -> Phrase:
    """`4.30 s in 24 calls, 4.29 s of it in its parts`, of one step."""
    below = sum(row.time_ns for row in parts)
    time = Time((below + sum(row.time_ns for row in own)) / steps)
    inside = phrase(", {} of it in its parts", Time(below / steps)) if below else ""
    a_step = " a step" if steps > 1 else ""
    calls = phrase("{} calls", calls_a_step(sum(row.calls for row in own), steps))
    return phrase("{} in {}{}{}", time, calls, a_step, inside)


def _longest(rows: Iterable[Timed]) -> list[Timed]:
    return sorted(rows, key=lambda row: -row.time_ns)


def _launched(row: KernelRow) -> Phrase:
    shared = ", others' launches of it included" if len(row.operators) > 1 else ""
    return phrase("{} {}{}", Name(row.kernel), Time(row.time_ns), shared)


def _block(row: MemoryBlocks) -> Phrase:
    where = f", in {row.module}" if row.module else ""
    return phrase("{} of {} at the peak{}", Bytes(row.bytes), row.component.replace("_", " "), where)


def _differences(name: str, anatomy: Anatomy) -> Iterator[Fact]:
    for check in anatomy.checks:
        for row in check.differences[:_ROWS]:
            if row.operator == name:
                why = row.cause or "no known cause explains it"
                yield Fact(label="check", text=f"{check.quantity} differ from {check.source}: {why}")


def _kernel(kernel: KernelRow, anatomy: Anatomy) -> tuple[Fact, ...]:
    """Class, time, and the operators that launched it."""
    text = phrase("{}, in {}", _took(kernel.time_ns, anatomy), Count(kernel.count, "launch"))
    by = list(listed("operators", (phrase("{}", Name(name)) for name in kernel.operators)))
    nobody = Fact(label="operators", text="none: a graph launched it, or the trace has no record of its launch")
    return (*_classed([kernel]), Fact(label="report", text=text), *(by or [nobody]))


def _module(path: str, anatomy: Anatomy) -> tuple[Fact, ...]:
    """Time and FLOPs of a module, or of those that are alike, with their submodules, by phase and by class."""
    parts = [_numbers(part) for part in path.split(".")] if path else []
    rows = [row for row in anatomy.modules if _is_within(row.module.split("."), parts)]
    own = [row for row in rows if len(row.module.split(".")) == len(parts)]
    kinds = dict.fromkeys(row.kind for row in own if row.kind)
    alike = len({row.module for row in own})
    facts = [Fact(label="module", text=f"{kind}, {alike} of them" if alike > 1 else kind) for kind in kinds]
    time, own_ns, steps = sum(row.time_ns for row in rows), sum(row.time_ns for row in own), steps_of(anatomy)
    inside = phrase(", {} of it outside its submodules", Time(own_ns / steps)) if 0 < own_ns != time else ""
    facts.append(Fact(label="report", text=phrase("{}{}", _took(time, anatomy), inside)))
    facts += _sums(((row.phase.value, row) for row in rows), steps)
    facts += _sums(((row.operator_class, row) for row in rows), steps)
    return tuple(facts)


def _numbers(part: str) -> set[str]:
    """The names that a part of a path stands for: `0-2, 5` for 0, 1, 2 and 5."""
    if not _SPANS.fullmatch(part):
        return {part}
    spans = ([int(number) for number in span.split("-")] for span in part.split(", "))
    return {str(number) for span in spans for number in range(span[0], span[-1] + 1)}


def _is_within(path: list[str], parts: list[set[str]]) -> bool:
    """Whether a module is one of those, or lies in one."""
    return len(path) >= len(parts) and all(name in names for name, names in zip(path, parts, strict=False))


def _sums(rows: Iterable[tuple[str | OperatorClass, ModuleRow]], steps: int) -> Iterator[Fact]:
    """A line for each key with the time and the FLOPs of its rows, of one step."""
    groups: dict[str | OperatorClass, list[ModuleRow]] = {}
    for key, row in rows:
        groups.setdefault(key, []).append(row)
    for key, members in sorted(groups.items(), key=lambda group: -sum(row.time_ns for row in group[1])):
        known = [row.flops for row in members if row.flops is not None]
        flops = Flops(sum(known) / steps if known else None, at_least=0 < len(known) < len(members))
        time = Time(sum(row.time_ns for row in members) / steps)
        yield Fact(label="", text=phrase("{}: {}, {}", key, time, flops))


def _saved(module: str, anatomy: Anatomy) -> tuple[Fact, ...]:
    """What forward saved for backward in like modules."""
    rows = [row for row in anatomy.memory.activations if row.module == module]
    saved = Fact(label="saved", text=phrase("{} for backward", Bytes(sum(row.bytes for row in rows))))
    each = (
        phrase("{} x {} of {}[{}] by {}", Count(row.blocks), Bytes(row.bytes // max(row.blocks, 1)), row.dtype,
               ",".join(map(str, row.shape)), Name(row.operator or "what is not known"))
        for row in rows[:_ROWS]
    )  # fmt: skip
    return (saved, *(Fact(label="", text=text) for text in each))


def _collective(name: str, anatomy: Anatomy) -> tuple[Fact, ...]:
    rows = [row for row in anatomy.collectives if row.collective.replace("_", " ") == name]
    steps = steps_of(anatomy)
    a_step = " a step" if steps > 1 else ""
    texts = (
        phrase("{} among {}: {} in {} calls{}, {}, bus {}", row.dtype or "a type that is not known",
               Count(row.group_size, "rank"), Time(row.time_ns / steps), calls_a_step(row.calls, steps), a_step,
               Bytes(None if row.bytes is None else row.bytes / steps), ByteRate(row.bus_bytes_per_second))
        for row in rows[:_ROWS]
    )  # fmt: skip
    return tuple(Fact(label="" if place else "report", text=text) for place, text in enumerate(texts))
