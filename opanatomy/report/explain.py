"""What a report knows of a name: an operator, a kernel, a module, a collective, a term of its memory, a technique."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from msgspec import Struct

from opanatomy.records.anatomy import Anatomy, KernelRow, ModuleRow, OperatorRow
from opanatomy.records.communication import Rank
from opanatomy.records.comparison import Comparison, Part, Side, figures_of
from opanatomy.records.experiment import GuideRow, TechniqueRow, Techniques
from opanatomy.records.memory import MemoryBlocks
from opanatomy.records.reports import Report
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report.section import (
    LABEL,
    ByteRate,
    Bytes,
    Cell,
    Column,
    Count,
    Fact,
    Flops,
    Holds,
    Name,
    Note,
    Phrase,
    Row,
    Section,
    Share,
    Time,
    TimeChange,
    Tone,
    calls_a_step,
    facts_of,
    joined,
    phrase,
    steps_of,
    total,
)
from opanatomy.report.sections import sections_of
from opanatomy.report.sections.checks import unclassified, uncosted
from opanatomy.report.sections.comparison import bare, groups_of, name_of_part
from opanatomy.report.sections.modules import Node, module_tree
from opanatomy.report.sections.operators import operators_of, short_name
from opanatomy.report.terms import Chapter, Term, is_named

# A name of a report, how the page may spell it, and what is known of it.


_NAMESPACES: Final = re.compile(r"^(?:void )?(?:(?!aten::)\w+::|\(anonymous namespace\)::)*")
_ARGUMENTS: Final = re.compile(r"[<(].*", re.DOTALL)
#: What has a name of C++, which tables shorten.
_OF_CODE: Final = ("operator", "kernel", "work")
#: Names that are listed of one thing.
_NAMES: Final = 3


class Known(Struct, frozen=True):
    """A name of a report as it stands there, what it is the name of, and what the report knows of it."""

    name: str
    kind: str
    facts: Callable[[], tuple[Fact, ...]]
    #: What the page calls it, where that is less.
    short: str = ""
    #: What the page calls it together with others.
    together: tuple[str, ...] = ()

    @property
    def spellings(self) -> tuple[str, ...]:
        """The name, without C++'s namespaces and return type, and without template arguments and parameters too."""
        plain = _NAMESPACES.sub("", self.name)
        own = _ARGUMENTS.sub("", plain)
        printed = (bare(self.name), short_name(self.name)) if self.kind in _OF_CODE else ()
        every = (self.name, self.short, *printed, plain, own, *self.together)
        return tuple(dict.fromkeys(text for text in every if text))


def listed(label: str, texts: Iterable[Phrase]) -> Iterator[Fact]:
    """A line with the first of some texts and how many more there are; none where there are none."""
    every = list(texts)
    more = phrase("{} more", Count(len(every) - _NAMES)) if len(every) > _NAMES else None
    if text := joined((*every[:_NAMES], more), by="; "):
        yield Fact(label=label, text=text)


# The names of a comparison: work as its tables call it, operators, kernels, modules, causes, sides.


def names_of_comparison(report: Comparison) -> Iterator[Known]:
    """Work as the page names it, and each operator, kernel and module of it; the sides."""
    parts = () if report.decomposition is None else report.decomposition.parts
    groups: dict[tuple[str, str], list[Part]] = {}
    for part in parts:
        if part.cause.is_work:
            groups.setdefault((name_of_part(part), "work"), []).append(part)
        for key in dict.fromkeys(_names_of_part(part)):
            groups.setdefault(key, []).append(part)
    for group in groups_of(parts):
        yield Known(group.name, "cause", lambda group=group: _changed(group.parts))  # type: ignore[misc]
    code = {bare(name) for name, kind in groups if kind != "work"}
    for (name, kind), members in groups.items():
        if kind != "work" or name not in code:
            yield Known(name, kind, lambda members=members: _changed(members))  # type: ignore[misc]
    for place, side in enumerate(report.sides, 1):
        facts = lambda side=side: _side(side)  # noqa: E731
        yield Known(side.name, "side", facts, together=(f"{place} {side.name}",))


def _names_of_part(part: Part) -> Iterator[tuple[str, str]]:
    """Each name of the work of a part, with what it is the name of."""
    for side in (part.before, part.after):
        if side is not None:
            yield from ((name, "operator") for name in side.operators)
            yield from ((name, "kernel") for name in side.kernels)
            yield from ((name, "module") for name in side.modules if name)


def _changed(parts: Sequence[Part]) -> tuple[Fact, ...]:
    """What some work took on both sides, and by cause."""
    facts = [Fact(label="report", text=_before_and_after(parts))]
    groups = groups_of(parts)
    facts += [Fact(label="", text=phrase("{}: {}", group.name, _before_and_after(group.parts))) for group in groups]
    kernels = dict.fromkeys(
        bare(name) for part in parts for side in (part.before, part.after) if side is not None for name in side.kernels
    )
    return (*facts, *listed("kernels", (phrase("{}", Name(name)) for name in kernels)))


def _before_and_after(parts: Sequence[Part]) -> Phrase:
    before, after = sum(part.before_ns for part in parts), sum(part.after_ns for part in parts)
    return phrase("{} before, {} after, {}, of the mean step", Time(before), Time(after), TimeChange(after - before))


def _side(side: Side) -> tuple[Fact, ...]:
    """What one side ran on, and its like steps."""
    what = joined((side.model, side.device, side.software, phrase("{}", Count(side.runs, "run")),
                   phrase("{}", Count(side.ranks, "rank"))))  # fmt: skip
    steps = (
        phrase("{} {}{}", step.label, Time(step.value), f", set aside: {step.set_aside}" if step.set_aside else "")
        for step in side.steps
    )
    return (Fact(label="side", text=what or ""), *listed("steps", steps))


# The names of an experiment: its techniques, claims of guides, weights.


def names_of_techniques(report: Techniques) -> Iterator[Known]:
    """The techniques of an experiment, what guides claim of them, and the weights that the page names."""
    for row in report.rows:
        yield Known(row.name, "technique", lambda row=row: _technique(row, report))  # type: ignore[misc]
    for guide in report.guides:
        yield Known(guide.claim.claim, "claim of a guide", lambda guide=guide: _claim(guide))  # type: ignore[misc]
    for name in dict.fromkeys(_worst(row) for row in report.rows):
        if name is not None:
            yield Known(name, "weight", lambda name=name: _farthest(name, report))  # type: ignore[misc]


def _claim(row: GuideRow) -> tuple[Fact, ...]:
    """What a guide says, where, and what was measured of it."""
    claim, measurement = row.claim, row.measurement
    upto = "" if claim.figure_to is None else f" to {claim.figure_to:g}"
    measured = f"{measurement.measured:.3g} {claim.unit}, of {measurement.technique}"
    texts = (("guide", f"{claim.figure:g}{upto} {claim.unit}"), ("measured", measured), ("why", measurement.reason),
             ("says", claim.quote), ("source", claim.source))  # fmt: skip
    return facts_of(*texts)


def _worst(row: TechniqueRow) -> str | None:
    worst = None if row.sameness is None else row.sameness.worst_gradient
    return None if worst is None else worst.name


def _farthest(name: str, report: Techniques) -> tuple[Fact, ...]:
    """The techniques whose gradient of this weight is the one that is farthest from the baseline's."""
    texts = (
        phrase("{}: its gradient is the farthest apart, by {} units of rounding", row.name, f"{worst.units:.3g}")
        for row in report.rows
        if row.sameness is not None and (worst := row.sameness.worst_gradient) is not None and worst.name == name
    )
    return tuple(Fact(label="" if place else "report", text=text) for place, text in enumerate(texts))


def _technique(row: TechniqueRow, report: Techniques) -> tuple[Fact, ...]:
    """What the option is, what was measured and predicted, or why not."""
    facts = [Fact(label="technique", text=row.title)]
    if row.option:
        facts.append(Fact(label="option", text=row.option))
    for label, figures in (("measured", row.measured), ("predicted", row.predicted)):
        if figures is not None:
            text = phrase("peak {}, step {}", Bytes(figures.peak_bytes), Time(figures.step_ns))
            facts.append(Fact(label=label, text=text))
    for label, why in (("not run", row.failed), ("not predicted", row.not_predicted)):
        if why:
            facts.append(Fact(label=label, text=why))
    base, ours = figures_of(report.baseline), figures_of(row)
    if row.name != report.baseline.name and base is not None and ours is not None:
        baseline = phrase("baseline: peak {}, step {}", Bytes(base.peak_bytes), Time(base.step_ns))
        facts.append(Fact(label="", text=baseline))
    return tuple(facts)


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


# Where the page has a term of the glossary, and what it says there.


#: Lines of the page that are shown for one term.
_SHOWN: Final = 10


def printed(chapter: Chapter, term: Term, report: Report) -> tuple[Fact, ...]:
    """The lines and cells of the page that a term is the name of, with the title of their section."""
    lines = [line for section in sections_of(report) if _stands_in(chapter, section) for line in _in(section, term)]
    facts = [Fact(label="" if place else "printed", text=line) for place, line in enumerate(lines[:_SHOWN])]
    if len(lines) > _SHOWN:
        facts.append(Fact(label="", text=f"and {len(lines) - _SHOWN} more lines"))
    return tuple(facts)


def _stands_in(chapter: Chapter, section: Section) -> bool:
    return not chapter.sections or section.name in chapter.sections


def _in(section: Section, term: Term) -> Iterator[Phrase]:
    for fact in section.facts:
        if is_named(term, fact.label):
            yield phrase("{}: {}", fact.label, fact.text if isinstance(fact.text, Phrase) else Phrase((fact.text,)))
        elif isinstance(fact.text, Phrase):
            yield from (phrase("{}: {}", fact.label or "ledger", clause) for clause in _clauses(fact.text, term))
    for row in section.rows:
        yield from _cells(section, row, term)


def _clauses(text: Phrase, term: Term) -> Iterator[Phrase]:
    """The parts of a sentence, between commas, in which the term stands as a word."""
    words = re.compile("|".join(rf"(?<![\w-]){re.escape(name)}(?![\w-])" for name in term.names if "{}" not in name))
    clause: list[Cell] = []
    for part in (*text.parts, ", "):
        parts = re.split(r"(, | \+ | = |; )", part) if isinstance(part, str) else [part]
        for word in parts:
            if isinstance(word, str) and word in (", ", " + ", " = ", "; "):
                if any(isinstance(item, str) and words.search(item) for item in clause):
                    yield Phrase(tuple(item for item in clause if item))  # type: ignore[misc]
                clause = []
            else:
                clause.append(word)


def _cells(section: Section, row: Row, term: Term) -> Iterator[Phrase]:
    """The cells of a row below a header that is the term; of a row that is called so, all of them."""
    first = row.cells[0]
    if is_named(term, _label(first)):
        rest = [(column.header, cell) for column, cell in zip(section.columns[1:], row.cells[1:], strict=True)]
        texts = [_said(header, cell) for header, cell in rest if cell is not None]
        if texts:
            yield phrase(f"{section.title}, {{}}: " + ", ".join("{}" for _ in texts), _name(first), *texts)
        return
    for column, cell in zip(section.columns[1:], row.cells[1:], strict=True):
        if is_named(term, column.header) and cell is not None:
            yield phrase("{}, {}: {}", section.title, _name(first), cell)


def _said(header: str, cell: Cell) -> Phrase:
    return phrase("{} {}", header, cell or "")


def _label(cell: Cell) -> str:
    if isinstance(cell, OperatorClass):
        return LABEL[cell]
    return cell if isinstance(cell, str) else ""


def _name(cell: Cell) -> Phrase:
    return cell if isinstance(cell, Phrase) else phrase("{}", cell or "the row")


# What a report adds to an explanation: a formula worked on its calls, and what nobody could class or count.


#: Signatures of an operator that are worked one by one.
_EXAMPLES: Final = 2


def examples(name: str, anatomy: Anatomy) -> tuple[Fact, ...]:
    """The calls of an operator that take most of a report's time: arguments, FLOPs and bytes of one, rates reached."""
    rows = [row for row in anatomy.operators if row.operator == name]
    if not rows:
        of_trace = f" of {anatomy.provenance.trace}" if anatomy.provenance.trace else ""
        return (Fact(label="example", text=f"none: the report{of_trace} does not have it"),)
    facts = []
    for row in rows[:_EXAMPLES]:
        has_parts = any(part.part_of == name and part.phase is row.phase for part in anatomy.operators)
        facts.append(Fact(label="example", text=f"{row.operator}({row.signature})"))
        facts += [Fact(label="", text=text) for text in _worked(row, has_parts=has_parts)]
    if others := rows[_EXAMPLES:]:
        time = Time(sum(row.time_ns for row in others))
        facts.append(Fact(label="", text=phrase("and {}, {} in all", Count(len(others), "more signature"), time)))
    return tuple(facts)


def _worked(row: OperatorRow, *, has_parts: bool) -> Iterator[str | Phrase]:
    """Calls, cost and bound of a row; where it `has_parts` no time of a signature with these is known."""
    without = ", its parts apart" if has_parts else ""
    yield phrase("{} in {}, {} in all{}", Count(row.calls, "call"), row.phase.value, Time(row.time_ns), without)
    if row.part_of is not None:
        yield f"a part of {row.part_of}: its FLOPs and bytes are counted there"
        return
    if row.flops is None or row.read_bytes is None or row.written_bytes is None:
        yield "not counted: these arguments do not say what its formula needs"
        return
    flops, read, written = (Count(value // row.calls) for value in (row.flops, row.read_bytes, row.written_bytes))
    yield phrase("one call: {} FLOP, {} bytes read, {} bytes written", flops, read, written)
    if row.causal_flops is not None:
        yield phrase("{} FLOP of them under the causal mask", Count(row.causal_flops // row.calls))
    if row.normalization_flops:
        inside = Count(row.normalization_flops // row.calls)
        yield phrase("{} FLOP more of the normalization inside, not part of these", inside)
    if row.bound_ns is not None and row.bound_by is not None and row.bounded_ns:
        reached = "" if has_parts else phrase(", {} reached", Share(row.bound_ns, row.bounded_ns))
        yield phrase("bound by {}: {} at least{}", row.bound_by, Time(row.bound_ns), reached)


def unexplained(anatomy: Anatomy) -> tuple[Section, ...]:
    """The names of a report that no rule knows, and those that no formula counts, each with its share of the time."""
    whole_ns = anatomy.ledger.device_work_ns - anatomy.ledger.outside_window_ns
    return (
        _named("unclassified", "no rule knows", unclassified(anatomy), whole_ns),
        _named("uncosted", "no formula counts, or its arguments are not in the trace", uncosted(anatomy), whole_ns),
    )


def _named(name: str, title: str, times: Counter[str], whole_ns: int) -> Section:
    share = Share(sum(times.values()), whole_ns)
    head = phrase("{}: {}, {} of the time", title, Count(len(times), "name"), share) if times else f"{title}: nothing"
    return Section(
        name=name,
        title=title,
        columns=(Column(header="share"), Column(header="name", holds=Holds.FORMULAS)),
        rows=tuple(Row(cells=(Share(ns, whole_ns), operator)) for operator, ns in times.most_common()),
        notes=(Note(text=head, tone=Tone.PLAIN),),
    )
