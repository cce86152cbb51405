"""Select the figures of a report needed first, for machines or a quick look: one fact per line."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.analysis.costs import (
    are_by_updates,
    costs_of,
    is_whole_trace,
    nothing_recorded,
    steps_of,
    steps_of_window,
)
from opanatomy.records.anatomy import Anatomy, Gap, Span, Step
from opanatomy.records.communication import Collective
from opanatomy.records.comparison import Cause, Comparison, FigureRow, Side, figures_of, within_noise
from opanatomy.records.experiment import StepFigures, TechniqueRow, Techniques
from opanatomy.records.signature import Argument, Signature, SignatureText
from opanatomy.records.taxonomy import PHASES, OperatorClass, Phase
from opanatomy.report.names import cut, cut_apart
from opanatomy.report.section import (
    ByteRate,
    Bytes,
    Change,
    Count,
    Name,
    Phrase,
    Rate,
    Section,
    Share,
    Time,
    TimeChange,
    calls_of,
    facts_of,
    joined,
    phrase,
    said,
    work_of,
)
from opanatomy.report.sections.checks import alarm_texts, exceeded_texts
from opanatomy.report.sections.classes import by_class
from opanatomy.report.sections.comparison import Group, groups_of, headline, said_of, shown_figures, with_bound
from opanatomy.report.sections.estimate import estimate
from opanatomy.report.sections.operators import grouped
from opanatomy.report.sections.step import label_of, label_of_cause, left_out, remarks_on_mfu, within_windows
from opanatomy.report.sections.techniques import fits
from opanatomy.report.sections.verdict import Finding, Next, NextCommand, section_command
from opanatomy.report.totals import Total, amounts, total
from opanatomy.report.units import noun

Facts = Iterable[tuple[str, str | Phrase | None]]
#: How many memory components of an experiment, and warnings, are named.
_COMPONENTS, _WARNINGS = 8, 5
#: Cells of a name in a line with enough room.
NAME_WIDTH: Final = 64
#: Single events below this share of the step are omitted.
_MIN_EVENT_SHARE: Final = 0.01


class Room(Struct, frozen=True, kw_only=True):
    """Number of lines of each kind in a digest; with `every_fact` also facts that do not affect the others."""

    operators: int
    kernels: int
    modules: int
    gaps: int
    spans: int
    components: int
    warnings: int
    causes: int
    tries: int
    every_fact: bool


def _room(operators: int, kernels: int, modules: int, spans: int, rest: int, tries: int, *, every: bool) -> Room:
    return Room(
        operators=operators,
        kernels=kernels,
        modules=modules,
        gaps=min((spans + 1) // 2, 3),
        spans=spans,
        components=rest,
        warnings=min(rest, 5),
        causes=min(rest, 4),
        tries=tries,
        every_fact=every,
    )


#: From most to fewest lines: a digest uses the first that fits.
ROOMS: Final = (
    _room(8, 5, 5, 8, 8, 3, every=True), _room(6, 3, 3, 8, 8, 2, every=True), _room(6, 2, 2, 7, 8, 1, every=True),
    _room(5, 1, 1, 7, 6, 1, every=False), _room(4, 0, 0, 6, 5, 1, every=False), _room(3, 0, 0, 5, 4, 1, every=False),
    _room(2, 0, 0, 4, 3, 1, every=False), _room(1, 0, 0, 3, 2, 1, every=False), _room(0, 0, 0, 2, 1, 1, every=False),
)  # fmt: skip


def digest_of(anatomy: Anatomy, room: Room = ROOMS[0]) -> tuple[Section, ...]:
    """Return what ran, the step, where the time of a mean step went, the longest gaps and events, memory, and warnings.

    The findings are apart.
    """
    parts: tuple[tuple[str, str, Callable[[Anatomy, Room], Facts]], ...] = (
        ("run", "What ran", _run),
        ("step", "The step", _step),
        ("time", "Where the time went", _time_by_part),
        ("spans", "Longest gaps and events", _spans),
        ("memory", "Memory", _memory),
        ("warnings", "Warnings", _warnings),
    )
    if anatomy.memory.is_snapshot and not anatomy.classes:  # of a memory snapshot no time is known
        parts = tuple(part for part in parts if part[0] not in ("step", "time", "spans"))
    return tuple(Section(name=name, title=title, facts=facts_of(*facts(anatomy, room))) for name, title, facts in parts)


def _run(anatomy: Anatomy, room: Room) -> Facts:
    environment, workload = anatomy.environment, anatomy.workload
    yield from (("before you read on", text) for text in anatomy.caveats)
    yield "all numbers", _basis(anatomy)
    yield "device", _name(environment.device or environment.processor)
    if environment.host_only or room.every_fact:
        yield "kind of device", "not recorded: host times only" if environment.host_only else environment.device_kind
    yield "ranks", _count(len(anatomy.ranks) if len(anatomy.ranks) > 1 else None)
    yield "rank", _rank(anatomy)
    yield "model", _name(workload.model)
    if room.every_fact:
        yield "architecture", _name(workload.architecture)
    yield "parameters", _count(workload.parameters)
    if workload.trainable_parameters != workload.parameters or room.every_fact:
        yield "trained parameters", _count(workload.trainable_parameters)
    if room.every_fact:
        yield "task", workload.task
    yield "batch", _count(workload.batch)
    yield "sequence length", _count(workload.sequence_length)
    for label, value in (
        ("data type", workload.dtype),
        ("autocast", workload.amp),
        ("attention", workload.attention),
        ("checkpointing", workload.checkpointing),
        ("optimizer", workload.optimizer),
    ):
        yield label, value
    for label, flag in (
        ("compiled", workload.compiled),
        ("inference", workload.inference),
        ("generation", workload.generate),
    ):
        yield label, "yes" if flag else None
    if room.every_fact:
        yield "torch", environment.torch
        yield "opanatomy", anatomy.provenance.opanatomy
    yield "trace", _name(anatomy.provenance.trace)


def _basis(anatomy: Anatomy) -> str | None:
    """Return what times, calls, FLOPs and bytes are of."""
    if not anatomy.classes:
        return None
    if is_whole_trace(anatomy):
        return "for the whole trace, as no step is annotated"
    steps, several = steps_of(anatomy), len(anatomy.ranks) > 1
    whose = "one step of one rank" if several else "one step"
    return f"for {whose}" if steps == 1 else f"for {whose}, averaged over {steps:,}"


def _rank(anatomy: Anatomy) -> Phrase | None:
    """Return the trace's rank and world size, and what its communication includes."""
    if len(anatomy.ranks) != 1 or anatomy.ranks[0].rank is None:
        return None
    rank = anatomy.ranks[0]
    known = phrase("{}", Count(rank.rank))
    if rank.world_size is not None:
        known = phrase("{} of {}", Count(rank.rank), Count(rank.world_size))
    includes = "communication includes waiting for other ranks" if anatomy.communication is not None else None
    return joined((known, includes), by=": ")


def _step(anatomy: Anatomy, room: Room) -> Facts:
    if (made := estimate(anatomy)) is not None:
        yield from ((fact.label, fact.text) for fact in made.facts)
        return
    step, wall_ns = anatomy.step, anatomy.step.wall_ns
    ends = ": not annotated, so each is assumed to end with Optimizer.step" if are_by_updates(anatomy) else ""
    yield "profiled steps", phrase("{}{}", Count(step.count), ends)
    yield "excluded steps", joined(left_out(anatomy, ""))
    yield "step, profiled" if not is_whole_trace(anatomy) else "whole trace, counted as one step", _time(wall_ns)
    yield "step, without the profiler", _time(step.unprofiled_wall_ns)
    yield "samples", None if step.samples_per_second is None else phrase("{}", Rate(step.samples_per_second, "samples"))
    yield from _phases(step, "" if anatomy.environment.device_kind == "cpu" else "device work in ")
    if anatomy.environment.device_kind == "cpu":
        yield "framework", _part(step.framework_ns, wall_ns)
    elif not is_whole_trace(anatomy) and not nothing_recorded(anatomy):
        yield "kernel time", _time(step.kernel_time_ns)
    if anatomy.generation is not None:
        yield "first token", _time(anatomy.generation.first_token_ns)
        yield "next token", _time(anatomy.generation.token_ns)
    if anatomy.device.mfu is not None:
        at_least = anatomy.device.mfu_covered not in (None, 1) or anatomy.timeline.lacks_work
        mfu = phrase("{}", Share(anatomy.device.mfu, 1, at_least=at_least))
        yield "MFU", joined((mfu, *remarks_on_mfu(anatomy)), by="; ")
    yield "attention", within_windows(anatomy)


def _phases(step: Step, of: str) -> Facts:
    for phase in PHASES:
        yield f"{of}{phase.value}", _part(step.phase_ns.get(phase), step.wall_ns)


def _time_by_part(anatomy: Anatomy, room: Room) -> Iterator[tuple[str, str | Phrase | None]]:
    """Yield times of a mean step: sums over the steps that count, of all ranks, divided by their number."""
    timeline, steps = anatomy.timeline, steps_of(anatomy)
    work_ns = total(anatomy.classes).time_ns / steps
    if anatomy.environment.device_kind != "cpu" and anatomy.estimated is None:
        in_window, costs, unknown = steps_of_window(anatomy), costs_of(anatomy), nothing_recorded(anatomy)
        whole_ns = costs.whole_ns / in_window
        yield "mean step" if not costs.of_trace else "from the first to the last device work", _time(whole_ns)
        yield "excluded work of other steps", _time((timeline.outside_ns or 0) / in_window or None)
        for label, part_ns in (
            ("device busy", None if unknown else timeline.busy_ns),
            ("device idle", None if unknown else costs.idle_ns),
            *((f"idle, {label_of(row)}", row.time_ns) for row in costs.causes[: room.causes]),
            ("not recorded", costs.unrecorded_ns or None),
            ("communication", timeline.communication_ns or None),
            ("exposed communication", timeline.exposed_communication_ns if timeline.communication_ns else None),
        ):
            yield label, None if part_ns is None else _part(part_ns / in_window, whole_ns)
    of_work = work_of(anatomy) if anatomy.environment.host_only else "device work"
    yield of_work, None if nothing_recorded(anatomy) and not work_ns else _time(work_ns)
    for operator_class, rows in by_class(anatomy):
        yield "class", _class(operator_class, total(rows, lacks_work=timeline.lacks_work).per_step(steps), work_ns)
    for row in anatomy.collectives[: room.causes]:
        yield "collective", _collective(row, steps, work_ns)
    if others := anatomy.collectives[room.causes :]:
        rest = _part(sum(row.time_ns for row in others) / steps, work_ns)
        yield "collective", phrase("and {} more: {} (table collectives)", Count(len(others)), rest or "")
    yield "copies between host and device", _copies(anatomy, work_ns)
    times: tuple[tuple[str, list[tuple[Name | Phrase, int]], int], ...] = (
        ("operator", _operators(anatomy), room.operators),
        ("kernel", [(Name(row.kernel), row.time_ns) for row in anatomy.kernels], room.kernels),
        ("module", _modules(anatomy), room.modules),
    )
    for label, rows_by_name, most in times:
        if not most and label == "kernel":  # operators have their time
            continue
        yield from _most(label, [(name, ns / steps) for name, ns in rows_by_name], work_ns, most)


def _collective(row: Collective, steps: int, work_ns: float) -> Phrase | None:
    """Return the calls, the time, the bytes and the rate of a collective."""
    what = joined(
        (row.collective.replace("_", " "), row.dtype, noun(row.group_size, "rank") if row.group_size else None), by=", "
    )
    figures = (
        phrase("{} {}", calls_of(row.calls / steps), "call" if row.calls == steps else "calls"),
        _part(row.time_ns / steps, work_ns),
        None if row.bytes is None else phrase("{}", Bytes(row.bytes / steps)),
        None if row.bus_bytes_per_second is None else phrase("bus {}", ByteRate(row.bus_bytes_per_second)),
    )
    return phrase("{}: {}", what or "", joined(figures) or "")


def _copies(anatomy: Anatomy, work_ns: float) -> Phrase | None:
    """Return number, time and bytes of copies over the host link, and their rate if all sizes are known."""
    rows = [row for row in anatomy.kernels if row.kernel.startswith(("Memcpy HtoD", "Memcpy DtoH"))]
    called = [row for row in anatomy.operators if row.crosses_host_link]
    if not rows or not called:
        return None
    steps, sized = steps_of(anatomy), [row for row in called if row.written_bytes is not None and not row.uncosted_ns]
    moved, time_ns = sum(row.written_bytes or 0 for row in sized), sum(row.time_ns for row in rows)
    figures = (
        phrase("{}", Count(sum(row.count for row in rows) / steps, "copy")),
        _part(time_ns / steps, work_ns),
        phrase("{}", Bytes(moved / steps, at_least=len(sized) < len(called))) if sized else None,
        phrase("{}", ByteRate(moved * 1e9 / time_ns)) if moved and time_ns and len(sized) == len(called) else None,
    )
    return joined(figures)


def _spans(anatomy: Anatomy, room: Room) -> Facts:
    """Yield the longest gaps and single events of at least a hundredth of the step, the longest first."""
    step_ns, steps = anatomy.step.wall_ns or 0, None if is_whole_trace(anatomy) else steps_of(anatomy)
    gaps = [gap for gap in anatomy.timeline.gaps if gap.time_ns * gap.count >= _MIN_EVENT_SHARE * step_ns]
    yield from (("gap", _gap(gap, steps)) for gap in gaps[: room.gaps])
    if gaps[room.gaps :]:
        yield "gap", phrase("and {} more (table timeline.gaps, or --section idle)", Count(len(gaps) - room.gaps))
    spans = sorted(anatomy.spans, key=lambda span: -span.spent_ns)
    long = [span for span in spans if span.spent_ns and span.spent_ns >= _MIN_EVENT_SHARE * step_ns]
    names = cut_apart([span.name for span in long], NAME_WIDTH)
    for span in long[: room.spans]:
        yield f"single {span.what}", _span(span, names[span.name], steps)
    if long[room.spans :]:
        yield "single events", phrase("and {} more (table spans)", Count(len(long) - room.spans))


def _gap(gap: Gap, steps: int | None) -> Phrase:
    """Return a gap's duration, count, host activity, and the work that follows."""
    often = None if steps is None and gap.count == 1 else phrase("{} times", calls_of(gap.count))
    said = (
        phrase("{} idle", Time(gap.time_ns)),
        often if steps is None else phrase("{} per step", calls_of(gap.count)),
        _on_host(gap),
        "starts while the host waits for the device" if gap.drained else None,
        None if gap.before is None else phrase("before {}", Name(cut(gap.before, NAME_WIDTH))),
        None if gap.launch_ns is None else phrase("whose launch takes {}", Time(gap.launch_ns)),
        joined((None if gap.step is None else f"step {gap.step}", phrase("at {}", Time(gap.begin_ns))), by=" "),
    )
    return joined(said) or phrase("")


def _on_host(gap: Gap) -> Phrase | str:
    """Return the host activity in a gap: a call inside an operator or range, either alone, else the gap's cause."""
    if gap.name is not None and gap.call is not None:
        return phrase("in {} inside {}", Name(gap.call), said(gap.name))
    name = gap.name or gap.call
    return label_of_cause(gap.cause) if name is None else phrase("in {}", said(name))


def _span(span: Span, name: str, steps: int | None) -> Phrase:
    """Return an event's duration, enclosing operator, arguments, rate, and the median of its name."""
    own = (
        None
        if span.own_ns is None or span.own_ns > 0.99 * span.duration_ns
        else phrase("{} self time", Time(span.own_ns))
    )
    rate = None if span.bytes_per_second is None else phrase("at {}", ByteRate(span.bytes_per_second))
    others = None
    if span.count is not None and span.count > 1:
        often = "{} events" if steps is None else "{} per step"
        others = phrase("median {} (" + often + ")", Time(span.median_ns), calls_of(span.count / (steps or 1)))
    place = (
        None if span.rank is None else f"rank {span.rank}",
        None if span.step is None else f"step {span.step}",
        phrase("at {}", Time(span.begin_ns)),
    )
    said = (
        phrase("{}", Time(span.duration_ns)), own,
        None if span.operator in (None, span.name) else phrase("inside {}", Name(span.operator or "")),
        None if span.phase in (None, Phase.OTHER) else span.phase,
        phrase("{}", Name(short_signature(span.signature))) if span.signature else None,
        joined((None if span.bytes is None else phrase("{}", Bytes(span.bytes)), rate), by=" "),
        others, joined(place, by=" "),
    )  # fmt: skip
    return phrase("{}: {}", Name(name), joined(said) or "")


#: Maximum characters of a signature in a line, and maximum run of equal items written out.
_SIGNATURE, _ITEMS = 120, 4


def short_signature(signature: SignatureText) -> str:
    """Return a call's arguments: like list items as counts, surplus ones as a count too, none truncated."""
    texts = [_argument(value) for value in signature.record.arguments]
    kept = len(texts)
    while kept > 1 and len(", ".join(texts[:kept])) > _SIGNATURE:
        kept -= 1
    more = [f"{len(texts) - kept} more"] if kept < len(texts) else []
    return ", ".join([*texts[:kept], *more])


def _argument(value: Argument) -> str:
    if not isinstance(value, tuple):
        return str(Signature((value,)))
    runs = [(len(list(alike)), text) for text, alike in groupby(map(_argument, value))]
    items = [text if number == 1 else f"{number} x {text}" for number, text in runs[:_ITEMS]]
    more = sum(number for number, _ in runs[_ITEMS:])
    return f"[{', '.join([*items, *([f'{more} more'] if more else [])])}]"


def _class(operator_class: OperatorClass, part: Total, work_ns: float) -> Phrase:
    flops, moved = amounts(part)
    known = [phrase("{}", flops)] if flops.flops is not None else []
    known += [phrase("{}", moved)] if moved.bytes is not None else []
    figures = joined((_part(part.time_ns, work_ns), *known))
    return phrase("{}: {}", operator_class, figures or "")


def _operators(anatomy: Anatomy) -> list[tuple[Name | Phrase, int]]:
    return [
        (phrase("{} {}", Name(name), phase.value), sum(row.time_ns for row in rows))
        for (_, name, phase), rows in grouped(anatomy.operators).items()
    ]


def _modules(anatomy: Anatomy) -> list[tuple[Name | Phrase, int]]:
    times: dict[str, int] = {}
    for row in anatomy.modules:
        times[row.module] = times.get(row.module, 0) + row.time_ns
    return [(Name(module or "(root)"), time_ns) for module, time_ns in times.items()]


def _most(
    label: str, times: Iterable[tuple[Name | Phrase, float]], work_ns: float, most: int
) -> Iterator[tuple[str, Phrase | None]]:
    """Return the longest times by name, ties in the order of the anatomy, and how many more there are."""
    ranked = sorted(times, key=lambda row: -row[1])
    names = cut_apart([name.name for name, _ in ranked[:most] if isinstance(name, Name)], NAME_WIDTH)
    for whole, time_ns in ranked[:most]:
        name = Name(names[whole.name]) if isinstance(whole, Name) else whole
        yield label, phrase("{}: {}", name, _part(time_ns, work_ns) or "")
    if ranked[most:]:
        others_ns = sum(time_ns for _, time_ns in ranked[most:])
        more = phrase("{}{} more: {}", "and " * bool(most), Count(len(ranked) - most), _part(others_ns, work_ns) or "")
        yield label, phrase("{} (table {}s, or --section {}s)", more, label, label)


def _memory(anatomy: Anatomy, room: Room) -> Facts:
    memory = anatomy.memory
    yield "peak", None if memory.peak_bytes is None else phrase("{}", Bytes(memory.peak_bytes))
    if not memory.is_at_peak and memory.shown_bytes is not None:
        yield f"allocated {memory.then}", phrase("{}", Bytes(memory.shown_bytes))
    for part in memory.components[: room.components]:
        size = part.measured_bytes if part.shown_bytes is None else part.shown_bytes
        if size is not None:
            yield part.component.replace("_", " "), phrase("{}", Bytes(size))
    lines = [part for part in memory.parts if part.of == "line" and part.name]
    for line in lines[: room.components]:
        yield "line", phrase("{}: {}, {}", Name(line.name or ""), Bytes(line.bytes), line.component.replace("_", " "))


def _warnings(anatomy: Anatomy, room: Room) -> Facts:
    texts: list[str | Phrase] = [*exceeded_texts(anatomy), *alarm_texts(anatomy)]
    most = len(texts) + room.warnings
    texts += anatomy.warnings
    yield from (("warning", text) for text in texts[:most])
    if texts[most:]:
        yield "warning", phrase("and {} more (--section warnings)", Count(len(texts) - most))


def _name(name: str | None) -> Phrase | None:
    return phrase("{}", Name(name)) if name else None


def _count(number: int | None) -> Phrase | None:
    return None if number is None else phrase("{}", Count(number))


def _time(ns: float | None) -> Phrase | None:
    return None if ns is None else phrase("{}", Time(ns))


def _part(ns: float | None, whole_ns: float | None) -> Phrase | None:
    """Return a time and its share of a whole."""
    if ns is None:
        return None
    return phrase("{} ({})", Time(ns), Share(ns, whole_ns)) if whole_ns else _time(ns)


# The few figures of a comparison that a machine needs first: one fact a line, and its findings.


#: How many causes are named.
_COMPARED_CAUSES: Final = 12
#: Rows of a table long enough to include the changes.
_LONG_TABLE: Final = "--top 30"
_BY_CALLS: Final = f"--sort calls {_LONG_TABLE}"
#: Sections with more on work that changed for this cause: kernels if they are what differs.
_OF_WORK: Final = {
    Cause.SAME_CALLS: NextCommand(section="kernels", options=_LONG_TABLE),
    Cause.ANOTHER_KERNEL: NextCommand(section="kernels", options=_LONG_TABLE),
    Cause.MORE_CALLS: NextCommand(section="operators", options=_BY_CALLS),
    Cause.FEWER_CALLS: NextCommand(section="operators", options=_BY_CALLS),
}
_MORE_OPERATORS: Final = NextCommand(section="operators", options=_LONG_TABLE)
#: The same for time other than work.
_OF_TIME: Final = {
    Cause.FRAMEWORK: NextCommand(section="operators", options=_BY_CALLS),
    Cause.OUTSIDE: NextCommand(section="step"),
}
_IDLE: Final = NextCommand(section="idle")


def digest_of_comparison(comparison: Comparison) -> tuple[Section, ...]:
    """Return what was compared, where the difference comes from, figures, gates and warnings."""
    parts = comparison.decomposition
    groups = [] if parts is None else [group for group in groups_of(parts.parts) if group.change_ns]
    causes = [
        (
            group.name,
            phrase(
                "{} ({} before, {} after)", TimeChange(group.change_ns), Time(group.before_ns), Time(group.after_ns)
            ),
        )
        for group in groups[:_COMPARED_CAUSES]
    ]
    if more := groups[_COMPARED_CAUSES:]:
        left = phrase(
            "{}, {} in total", Count(len(more), "more cause"), TimeChange(sum(group.change_ns for group in more))
        )
        causes.append(("and", left))
    step = [] if parts is None else [("step", headline(comparison, parts))]
    figures = [(row.name, _values(row, comparison)) for row in shown_figures(comparison)]
    sides = [(f"side {index}", _side(side)) for index, side in enumerate(comparison.sides, 1)]
    gates = [("gate", gate.line) for gate in comparison.gates]
    warnings = [("warning", text) for text in comparison.warnings]
    reasons = [("not comparable", why) for why in comparison.not_comparable]
    if comparison.no_claim is not None and not reasons:
        warnings.insert(0, ("not tested for significance", comparison.no_claim))
    blocks = (
        ("run", "What is compared", [*reasons, *sides, *step]),
        ("causes", "Where the difference comes from", causes),
        ("figures", "Numbers per step, side by side", figures),
        ("gates", "Gates", gates),
        ("warnings", "Warnings", warnings),
    )
    return tuple(Section(name=name, title=title, facts=facts_of(*facts)) for name, title, facts in blocks)


def _values(row: FigureRow, comparison: Comparison) -> Phrase:
    """Return a figure on every side, and the change from first to last if these are comparable."""
    if comparison.not_comparable:
        return joined((with_bound(row, index) for index in range(len(row.values))), " vs. ") or phrase("")
    values = joined((with_bound(row, index) for index in range(len(row.values))), " -> ") or ""
    return phrase("{} ({})", values, Change(row.values[-1], row.values[0]))


def _side(side: Side) -> Phrase | None:
    counts = (Count(side.ranks, "rank"), Count(side.runs, "run"))
    several = (phrase("{}", each) for each, number in zip(counts, (side.ranks, side.runs), strict=True) if number > 1)
    return joined((phrase("{}", Name(side.name)), side.model, side.device, *several))


def findings_of_comparison(comparison: Comparison, sides: Sequence[str | None] = ()) -> tuple[Finding, ...]:
    """Return the largest causes of the difference, each with its share of the step before.

    The command shows the cause's main part on the side with more of it, under its name in `sides`.
    """
    parts = comparison.decomposition
    if parts is None:
        return ()
    return tuple(
        Finding(
            name=group.name,
            text=said_of(group, comparison),
            evidence=phrase(
                "{} before, {} after ({} of the step time before)",
                Time(group.before_ns),
                Time(group.after_ns),
                Change(parts.before_ns + group.change_ns, parts.before_ns),
            ),
            next=_next_of_cause(group, comparison, sides),
        )
        for group in groups_of(parts.parts)
        if group.change_ns
    )


def _next_of_cause(group: Group, comparison: Comparison, sides: Sequence[str | None]) -> Next:
    """Return the sections to show next for a cause, from the slower side (overlap counts as negative time)."""
    before, after = abs(group.before_ns), abs(group.after_ns)
    index = 0 if before > after else 1
    side = sides[index] if index < len(sides) else None
    several = comparison.sides[index].ranks > 1
    return section_command(follow_up_sections(group, several=several), side)


def follow_up_sections(group: Group, *, several: bool) -> tuple[NextCommand, ...]:
    """Return where a report has more on a cause; for `several` ranks also who waits for whom."""
    if group.cause is Cause.OVERLAP:
        pair = group.parts[0].pair or ()
        return (_IDLE, NextCommand(section="communication")) if "communication" in pair else (_IDLE,)
    if not group.cause.is_work:
        return (_OF_TIME.get(group.cause, _IDLE),)
    if group.operator_class is OperatorClass.COMMUNICATION:
        sections = ("communication", "waiting") if several else ("communication",)
        return tuple(NextCommand(section=section) for section in sections)
    return (_OF_WORK.get(group.cause, _MORE_OPERATORS),)


# The few figures of an experiment with techniques: the baseline, and the three techniques that save most.


#: A technique that saves less of the peak or of the step than this is not a finding.
_MIN_SAVED_SHARE: Final = 0.01


def digest_of_techniques(report: Techniques) -> tuple[Section, ...]:
    """Return what ran, the baseline's step and memory, and warnings."""
    base, workload = figures_of(report.baseline) or StepFigures(), report.workload
    count = phrase("{}", Count(len(report.rows) - 1))
    run = facts_of(
        ("model", phrase("{}", Name(workload.model)) if workload.model else None),
        ("batch", None if workload.batch is None else phrase("{}", Count(workload.batch))),
        ("device", phrase("{}", Name(report.environment.device)) if report.environment.device else None),
        ("techniques", count),
        ("figures", "predicted, not run" if report.predicted_only else "measured"),
        ("repetitions", None if report.predicted_only else phrase("{}", Count(report.repetitions))),
        ("seed", str(report.seed)),
        ("opanatomy", report.opanatomy),
    )
    components = sorted(base.components.items(), key=lambda part: -part[1])[:_COMPONENTS]
    rate = base.samples_per_second
    fitting = fits(report)
    return (
        Section(name="run", title="What ran", facts=run),
        *(() if fitting is None else (replace(fitting, name="fits", notes=()),)),
        Section(
            name="step",
            title="The step",
            facts=facts_of(
                ("step of the baseline", None if base.step_ns is None else phrase("{}", Time(base.step_ns))),
                ("samples", None if rate is None else phrase("{}", Rate(rate, "samples"))),
            ),
        ),
        Section(
            name="time",
            title="Where the time went",
            facts=facts_of(
                *((f"phase {name}", phrase("{}", Time(time_ns))) for name, time_ns in base.phase_ns.items()),
                *((f"class {name.replace('_', ' ')}", phrase("{}", Time(ns))) for name, ns in base.class_ns.items()),
            ),
        ),
        Section(
            name="memory",
            title="Memory",
            facts=facts_of(
                ("peak of the baseline", None if base.peak_bytes is None else phrase("{}", Bytes(base.peak_bytes))),
                *((name.replace("_", " "), phrase("{}", Bytes(size))) for name, size in components),
            ),
        ),
        Section(name="warnings", title="Warnings", facts=facts_of(*_technique_warnings(report))),
    )


def technique_findings(report: Techniques) -> tuple[Finding, ...]:
    """Return the techniques that save the largest part of the peak or of the step, the largest first."""
    base = figures_of(report.baseline)
    if base is None:
        return ()
    gains = [(max(_saved(row, base)), row) for row in report.rows[1:]]
    ranked = sorted((pair for pair in gains if pair[0] >= _MIN_SAVED_SHARE), key=lambda pair: -pair[0])
    return tuple(_finding(row, base, report) for _, row in ranked)


def _saved(row: TechniqueRow, base: StepFigures) -> tuple[float, float]:
    """Return the parts of the peak and of the step that a technique saves; 0 if unknown, or within the noise."""
    figures = figures_of(row)
    if figures is None:
        return 0.0, 0.0
    peak = 0.0
    if base.peak_bytes and figures.peak_bytes is not None:
        peak = 1 - figures.peak_bytes / base.peak_bytes
    noise = row.measured is not None and within_noise(figures, base)
    step = 0.0 if not base.step_ns or figures.step_ns is None or noise else 1 - figures.step_ns / base.step_ns
    return peak, step


def _finding(row: TechniqueRow, base: StepFigures, report: Techniques) -> Finding:
    figures = figures_of(row)
    assert figures is not None
    noise = row.measured is not None and within_noise(figures, base)
    step: Phrase | str = phrase("{}", Change(figures.step_ns, base.step_ns))
    return Finding(
        name=row.name,
        text=phrase(
            "{}: peak memory {}, step {}",
            row.title,
            Change(figures.peak_bytes, base.peak_bytes),
            "within the noise" if noise else step,
        ),
        evidence=joined(
            (
                "predicted" if row.measured is None else "measured",
                phrase("peak {} instead of {}", Bytes(figures.peak_bytes), Bytes(base.peak_bytes)),
                phrase("step {} instead of {}", Time(figures.step_ns), Time(base.step_ns)),
            )
        ),
        next=_next_of_technique(row, report),
    )


def _next_of_technique(row: TechniqueRow, report: Techniques) -> Next | None:
    """Return what shows the step with the technique: its trace if it ran and is kept, else a new run."""
    if row.measured is not None and row.trace and report.folder:
        return Next(text=f"opanatomy analyze {shlex.quote(f'{report.folder}/{row.trace}')}")
    model = report.workload.model
    return Next(text=f"opanatomy profile {shlex.quote(model)} {row.option}") if model and row.option else None


def _technique_warnings(report: Techniques) -> list[tuple[str, str | Phrase]]:
    failed = [row for row in report.rows if row.failed]
    texts = [*report.warnings, *report.baseline.warnings]
    rows: list[tuple[str, str | Phrase]] = [("not run", f"{row.name}: {row.failed}") for row in failed[:_WARNINGS]]
    if failed[_WARNINGS:]:
        rows.append(("not run", phrase("and {} more", Count(len(failed) - _WARNINGS))))
    rows += [("warning", text) for text in texts[:_WARNINGS]]
    if texts[_WARNINGS:]:
        rows.append(("warning", phrase("and {} more", Count(len(texts) - _WARNINGS))))
    return rows
