"""Report what costs most, first for a reader: findings, the largest share of the step first, and the headline."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.analysis.costs import Costs, costs_of, input_of_run, loading, steps_of, steps_of_window
from opanatomy.memory.theory import nearly_full
from opanatomy.options import PROFILE, RUN, TECHNIQUES, Kind, Option
from opanatomy.records.anatomy import AboveCeiling, Anatomy, Step
from opanatomy.records.memory import MemoryComponent
from opanatomy.records.taxonomy import IdleCause, OperatorClass, Phase
from opanatomy.report.section import (
    Bytes,
    Count,
    Name,
    Note,
    NoteKind,
    Page,
    Phrase,
    Section,
    Share,
    Time,
    joined,
    phrase,
    whole_of,
)
from opanatomy.report.sections.classes import above_ceiling, reason_above
from opanatomy.report.sections.operators import grouped, short_name
from opanatomy.report.sections.ranks import how_late, name_of
from opanatomy.report.sections.step import idle_description
from opanatomy.report.totals import Total, total

# Next step for a finding: a command for a section of the report, or an experiment with the model.
#
# Without a name of the trace for a command (it came through a pipe, its path is left out, it is gone), the options of
# the section stand alone: a made-up name is no file.


#: Sources of a model's name that a command can use.
_NAMED_MODELS: Final = ("catalog", "hub")


class NextCommand(Struct, frozen=True, kw_only=True):
    """Place with more on a finding: a section of the report, with `options` for it; or techniques tried on the model,
    if a command can name it."""

    section: str
    options: str = ""
    experiment: bool = False


class Next(Struct, frozen=True, kw_only=True):
    """The next thing to type: `text` is a `whole` command, or only the options to make the report with."""

    text: str
    whole: bool = True

    @property
    def note(self) -> Note:
        """Return it as a line of the page."""
        return Note(text=self.text, kind=NoteKind.COMMAND if self.whole else NoteKind.OPTIONS)


def next_of(wanted: Sequence[NextCommand], anatomy: Anatomy, source: str | None) -> tuple[Next, ...]:
    """Return one command for all these sections of the report; `source` is the trace's name in a command."""
    experiment = experiment_of(anatomy)
    tried = [Next(text=experiment) for further in wanted if further.experiment and experiment is not None]
    looked = [further for further in wanted if not further.experiment or experiment is None]
    if looked and (source is not None or anatomy.provenance.trace is not None):
        tried.insert(0 if looked[0] is wanted[0] else len(tried), section_command(looked, source))
    return tuple(dict.fromkeys(tried))


def section_command(looked: Iterable[NextCommand], source: str | None) -> Next:
    """Return the command that shows the sections of the report on the trace `source`."""
    looked = tuple(looked)
    names = ",".join(dict.fromkeys(further.section for further in looked))
    options = "".join(f" {text}" for text in dict.fromkeys(further.options for further in looked) if text)
    shown = f"--section {names}{options}"
    return Next(text=shown, whole=False) if source is None else Next(text=f"opanatomy analyze {source} {shown}")


def experiment_of(anatomy: Anatomy) -> str | None:
    """Return the command that tries techniques on the model; `None` if no command can name it as it was run."""
    work, run = anatomy.workload, _run_of(anatomy)
    if run is None or work.inference or work.world_size is not None or anatomy.texts is not None:
        return None
    return f"opanatomy techniques {run}"


def is_run_of_profile(anatomy: Anatomy) -> bool:
    """Return whether the trace was made by a `profile` command, whose options can change the step."""
    return (anatomy.provenance.command or "").startswith("opanatomy profile ")


def compared_run(anatomy: Anatomy, option: str) -> str | None:
    """Return the command that runs the model unchanged and with an option, interleaved; `None` as above."""
    if not is_run_of_profile(anatomy) or anatomy.workload.world_size is not None:
        return None
    run = _with_options(shlex.split(anatomy.provenance.command or "")[2:], RUN)
    return f"opanatomy compare --run {shlex.quote(f'profile {run}')} --run {shlex.quote(f'profile {run} {option}')}"


def _run_of(anatomy: Anatomy) -> str | None:
    work = anatomy.workload
    if work.model is None or work.model_source not in _NAMED_MODELS:
        return None
    if is_run_of_profile(anatomy):
        return _with_options(shlex.split(anatomy.provenance.command or "")[2:], _OF_EXPERIMENT)
    if work.changes:
        return None
    batch = "" if work.batch is None else f" --batch {work.batch}"
    length = "" if work.sequence_length in (None, 512) else f" --seq {work.sequence_length}"
    return f"{shlex.quote(work.model)}{batch}{length}"


#: Step options that an experiment has too.
_OF_EXPERIMENT: Final = tuple(option for option in RUN if option in TECHNIQUES)


def _with_options(words: Sequence[str], kept: Collection[Option]) -> str:
    """Return a `profile` command's arguments restricted to these options and positional arguments."""
    known = {flag: option for option in PROFILE for flag in option.flags}
    names = {option.name for option in kept}
    wanted: list[str] = []
    option: Option | None = None  # whose value may follow
    for word in words:
        flag = word.partition("=")[0]
        if word.startswith("-") and flag in known:
            option = known[flag]
            wanted += [word] * (option.name in names)
            if option.kind is Kind.SWITCH or "=" in word:
                option = None
        else:
            wanted += [word] * (option is None or option.name in names)
            option = None
    return shlex.join(wanted)


def pattern_of(names: Sequence[str]) -> str:
    """Return a pattern for the shell that matches all names."""
    begin, end = ends_of(names)
    return f"{shlex.quote(begin) if begin else ''}*{shlex.quote(end) if end else ''}"


def ends_of(names: Sequence[str]) -> tuple[str, str]:
    """Return the common prefix of all names, and the common suffix of the remainders."""
    begin = _shared(names)
    return begin, _shared([name[len(begin) :][::-1] for name in names])[::-1]


def _shared(names: Sequence[str]) -> str:
    """Return the common beginning of all names."""
    return "".join(
        letters[0] for letters in takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    )


#: A finding takes at least this share of the step; the second one enters the headline from this share on.
LEAST: Final = 0.02
SECOND: Final = 0.15
#: The most lines of the headline on a first screen.
_MAX_HEADLINE_LINES: Final = 3
#: From this share on something is "most" of a whole.
_MOST_SHARE: Final = 0.5
#: From this share on something is "all" of a whole.
_ALL_SHARE: Final = 0.99
#: From this many steps on a run says more than fewer recorded ones: its first steps are cold.
_MIN_RUN_STEPS: Final = 5
#: A class's largest item is named from this share of the class on.
_MIN_ITEM_SHARE: Final = 0.3
#: Rows of a table that is on the first screen already.
_LONG_TABLE_ROWS: Final = 30
#: If a step is this much longer than without the profiler, idle time may be the profiler's.
_SLOWED: Final = 1.1


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that costs time or memory.

    `text` is a sentence; `evidence` supports it, as text after a colon; `next` is the follow-up command, made from
    `further`, `None` if there is none. `share` is its share of the step, `None` if it takes no time.
    """

    name: str
    text: Phrase
    evidence: Phrase | None = None
    next: Next | None = None
    further: NextCommand | None = None
    share: float | None = None


def findings(anatomy: Anatomy, *, source: str | None = None) -> tuple[Finding, ...]:
    """Return what costs most, largest share of the step first; `source` is the trace's name in a command.

    A step that did not run has no findings: its times assume usual efficiencies.
    """
    if anatomy.estimated is not None:
        return ()
    if ending := _without_work(anatomy):
        return (ending,)
    costs = costs_of(anatomy)
    known = sorted(_time_findings(anatomy, costs), key=lambda finding: -(finding.share or 0))
    kept = [finding for finding in known if (finding.share or 0) >= LEAST] or known[:1]
    if full := _memory(anatomy):
        kept.insert(1, full)
    return tuple(_with_next(finding, anatomy, source) for finding in kept)


def _with_next(finding: Finding, anatomy: Anatomy, source: str | None) -> Finding:
    wanted = () if finding.further is None else (finding.further,)
    return replace(finding, next=next(iter(next_of(wanted, anatomy, source)), None))


def headline(anatomy: Anatomy, *, source: str | None = None) -> tuple[Phrase, tuple[Next, ...]]:
    """Return what costs most in one or two sentences, and a follow-up command for each."""
    first, *others = findings(anatomy, source=source)
    second = next((item for item in others[:1] if item.share is None or item.share >= SECOND), None)
    text = first.text if second is None else phrase("{} {}", first.text, second.text)
    wanted = [item.further for item in (first, second) if item is not None and item.further is not None]
    return text, next_of(wanted, anatomy, source)


def conclusion(anatomy: Anatomy, page: Page) -> Section:
    """Return the headline as a section of the report."""
    text, following = headline(anatomy, source=page.source)
    # Advice has commands of its own.
    said = Note(text=text, kind=NoteKind.CONCLUSION, most_lines=_MAX_HEADLINE_LINES if page.brief else None)
    notes = [said, *(each.note for each in following if not anatomy.advice)]
    return Section(title="What costs most", notes=tuple(notes))


# ---------------------------------------------------------------------------------------------------- nothing to share


def _without_work(anatomy: Anatomy) -> Finding | None:
    if anatomy.environment.host_only:
        return _host_finding(anatomy)
    if any(row.time_ns for row in anatomy.classes):
        return None
    failure = anatomy.memory.failure
    if anatomy.memory.is_snapshot:
        return _snapshot_finding(anatomy)
    if failure is None:
        text = phrase("There is no device work in this trace{}.", "" if anatomy.caveats else ": nothing to explain")
        return Finding(name="nothing", text=text, evidence=joined((*anatomy.caveats, *anatomy.warnings)[:1]))
    text = phrase("The step does not fit into memory.")
    asked = None if failure.requested_bytes is None else Bytes(failure.requested_bytes)
    evidence = None if asked is None else phrase("{} more was requested in {}", asked, failure.phase.value)
    return Finding(name="out-of-memory", text=text, evidence=evidence)


def _snapshot_finding(anatomy: Anatomy) -> Finding:
    """Return what fills the memory of a snapshot: its largest component, and the line of the program behind it."""
    memory, failure = anatomy.memory, anatomy.memory.failure
    most = max(memory.components, key=_shown, default=MemoryComponent(component="other"))
    lines = [part for part in memory.parts if part.of == "line" and part.component == most.component]
    by = phrase(", {} allocated by {}", Bytes(lines[0].bytes), lines[0].name) if lines and lines[0].name else ""
    share = Share(_shown(most), memory.allocated_then)
    name = most.component.replace("_", " ").capitalize().replace("Blas ", "BLAS ")
    peak_bytes = memory.devices[0].peak_bytes if memory.devices else memory.peak_bytes
    other_moment = bool(failure or not memory.is_at_peak) and memory.moment not in (None, "oom" if failure else None)
    whole = "it" if other_moment or (failure is None and peak_bytes is not None) else "the allocated memory"
    fills = phrase("{} {} {} of {}{}.", name, "take" if name.endswith("s") else "takes", share, whole, by)
    if most.component == "before_window":
        fills = phrase("{} of {} was allocated before recording began.", share, whole)
    if memory.moment is not None and peak_bytes is None and failure is None:
        text = phrase(
            "No history was recorded, so the peak is unknown; at the end, {} is live and {} is reserved."
            " To record a history, call torch.cuda.memory._record_memory_history(max_entries=500_000).{}",
            Bytes(memory.shown_bytes),
            Bytes(sum(pool.reserved_bytes for pool in memory.pools if pool.device == memory.devices[0].device)),
            phrase(" {}", fills) if lines else "",
        )
        return Finding(name="no-history", text=text)
    if other_moment:
        then = memory.then.capitalize()
        fills = phrase("{}, {} is allocated. {}", then, Bytes(memory.allocated_then), fills)
        if not memory.allocated_then:
            fills = phrase("{}, nothing is allocated.", then)
    peak, phase = Bytes(peak_bytes), memory.peak_at or "?"
    is_least = any(device.peak_open_bytes != 0 for device in memory.devices[:1])
    if failure is None:
        said = "Peak memory is {}{}, in {}. {}"
        return Finding(name="memory-peak", text=phrase(said, "at least " if is_least else "", peak, phase, fills))
    was_peak = phrase(" The peak was {}{}, in {}.", "at least " if is_least else "", peak, phase)
    if peak_bytes is None:
        was_peak = phrase(" No history was recorded, so the peak is unknown.")
    elif peak_bytes == failure.allocated_bytes:
        was_peak = phrase(" That was the peak.")
    text = phrase(
        "Memory ran out in {}: {} requested {} more when {} of the reserved {} was allocated. {}{}",
        failure.phase.value,
        "the program" if failure.line is None else failure.line,
        Bytes(failure.requested_bytes),
        Bytes(failure.allocated_bytes),
        Bytes(failure.reserved_bytes),
        fills,
        "" if memory.moment is None else was_peak,  # older reports call this moment the peak
    )
    return Finding(name="out-of-memory", text=text)


def _shown(part: MemoryComponent) -> int:
    """Return a component's bytes at the moment shown of a snapshot; older reports store them as the peak."""
    return (part.at_peak_bytes if part.shown_bytes is None else part.shown_bytes) or 0


def _host_finding(anatomy: Anatomy) -> Finding:
    """Return the finding if the device's work was not recorded."""
    step_ns, ns = anatomy.step.wall_ns or 0, total(anatomy.classes).time_ns / steps_of(anatomy)
    text = phrase(
        "Device activity is unknown. The host spends {} of the step's {} in operators, launches and waits.",
        Time(ns),
        Time(step_ns),
    )
    return Finding(name="host-only", text=text)


def _memory(anatomy: Anatomy) -> Finding | None:
    """Return the finding that memory is near the device's limit."""
    memory, environment = anatomy.memory, anatomy.environment
    most = max((device.reserved_peak_bytes or 0 for device in memory.devices), default=0)
    peak, limit = max(memory.peak_bytes or 0, most), environment.device_memory_bytes
    if not limit or not nearly_full(memory, environment):
        return None
    return Finding(
        name="memory",
        text=phrase("Memory is nearly full: {} of the device's {}.", Bytes(peak), Bytes(limit)),
        evidence=phrase("the peak is {} of the device memory", Share(peak, limit)),
        further=NextCommand(section="memory"),
    )


# ---------------------------------------------------------------------------------------------------- parts of the time


def _time_findings(anatomy: Anatomy, costs: Costs) -> Iterator[Finding]:
    """Yield every nonzero part of the step's time."""
    yield from _idle(anatomy, costs)
    yield from _unrecorded(anatomy, costs)
    yield from _input(anatomy, costs)
    yield from _framework(anatomy, costs)
    yield from _communication(anatomy, costs)
    for item, ns in costs.classes.items():
        yield _class(anatomy, costs, item, ns)
    yield from _phases(anatomy, costs)


def _idle(anatomy: Anatomy, costs: Costs) -> Iterator[Finding]:
    if not costs.idle_ns:
        return
    share, slowed = costs.idle_ns / costs.whole_ns, _profilers_idle(anatomy, costs)
    text = phrase("The device is idle for {} of {}{}", Share(share, 1), whole_of(costs), _mostly(anatomy, costs))
    ends = phrase(", up to {} because of the profiler.", Share(slowed * share, 1)) if slowed >= _MIN_ITEM_SHARE else "."
    yield Finding(
        name="idle",
        text=phrase("{}{}", text, ends),
        evidence=_too_slow(anatomy, costs),
        further=NextCommand(section="idle"),
        share=share * (1 - slowed),
    )


def _unrecorded(anatomy: Anatomy, costs: Costs) -> Iterator[Finding]:
    """Yield the time in which the device worked, or may have, without a record of it."""
    if not costs.unrecorded_ns:
        return
    share = costs.unrecorded_ns / costs.whole_ns
    lost = 0 if anatomy.timeline.launching is None else anatomy.timeline.launching.lost_calls
    lacking = phrase("the work of {}", Count(lost, "launch")) if lost else "work that the host waited for"
    text = phrase(
        "Device activity is unknown for {} of {}: the trace lacks {}.", Share(share, 1), whole_of(costs), lacking
    )
    yield Finding(name="not-recorded", text=text, further=NextCommand(section="idle"), share=share)


def _profilers_idle(anatomy: Anatomy, costs: Costs) -> float:
    """Return the part of the idle time due to the profiler, which an unprofiled step need not have."""
    step, idle_ns = anatomy.step, costs.idle_ns / steps_of_window(anatomy)
    if not step.wall_ns or not step.unprofiled_wall_ns:
        return 0.0
    return min(max(step.wall_ns - step.unprofiled_wall_ns, 0) / idle_ns, 1.0)


def _mostly(anatomy: Anatomy, costs: Costs) -> Phrase | str:
    """Return the cause of most of the idle time, or its two largest causes; small ones are not named."""
    much, steps = (
        [row for row in costs.causes[:2] if row.time_ns >= _MIN_ITEM_SHARE * costs.idle_ns],
        steps_of_window(anatomy),
    )
    if not much:
        return ""
    if much[0].time_ns >= _MOST_SHARE * costs.idle_ns:
        mostly = "" if much[0].time_ns >= _ALL_SHARE * costs.idle_ns else "mostly "
        return phrase(", {}{}", mostly, idle_description(much[0], steps, costs.whole_ns))
    parts = (
        phrase("{} {}", Share(row.time_ns, costs.whole_ns), idle_description(row, steps, costs.whole_ns))
        for row in much
    )
    return phrase(", {}", joined(parts) or "")


def _too_slow(anatomy: Anatomy, costs: Costs) -> Phrase | None:
    """Return what makes the host too slow: many launches of little work if these fill the gaps, waiting for the device,
    the profiler."""
    launching, step, steps = anatomy.timeline.launching, anatomy.step, steps_of(anatomy)
    parts: list[Phrase] = []
    launches = costs.causes and costs.causes[0].cause in (IdleCause.OPERATORS, IdleCause.PYTHON)
    if launching is not None and launching.kernels and launches:
        tiny = Share(launching.tiny_kernels, launching.kernels)
        number = Count(round(launching.calls / steps), "launch")
        parts.append(
            phrase("{} per step, {} of the kernels are shorter than {}", number, tiny, Time(launching.tiny_below_ns))
        )
    drained = anatomy.timeline.drained_ns or 0
    if drained >= _MIN_ITEM_SHARE * costs.idle_ns:
        gaps = "{} of the idle time is in gaps that begin while the host waits for the device"
        parts.append(phrase(gaps, Share(drained, costs.idle_ns)))
    if step.wall_ns and step.unprofiled_wall_ns and step.wall_ns > _SLOWED * step.unprofiled_wall_ns:
        parts.append(
            phrase("without the profiler the step takes {}, not {}", Time(step.unprofiled_wall_ns), Time(step.wall_ns))
        )
    return joined(parts)


def _without_operator(step: Step) -> str:
    """Name the time not explained by operators: as framework only if the profiler's part is known.

    The profiler's part is unknown if its estimate leaves more than a whole step takes without the profiler.
    """
    plain_ns = step.unprofiled_wall_ns
    known = step.profiler_ns is not None and not (plain_ns and (step.framework_ns or 0) > plain_ns)
    if known:
        return "Framework overhead (dispatch, autograd, Python)"
    return "Framework and profiler overhead (not separable)"


def _input(anatomy: Anatomy, costs: Costs) -> Iterator[Finding]:
    """Yield the wait for a loader: over the whole run where enough steps show it, else in the recorded steps."""
    share, over, section = input_of_run(anatomy), ", averaged over the entire run", "whole-run,host"
    if share is None or (anatomy.run is not None and anatomy.run.steps < max(_MIN_RUN_STEPS, anatomy.step.count)):
        loaded = sum(row.total_ns for row in loading(anatomy)[:1])  # those below it are parts of it
        share, over, section = loaded / max(len(anatomy.ranks), 1) / costs.whole_ns, "", "host"
    if share:
        text = phrase("Waiting for input takes {} of the step{}.", Share(share, 1), over)
        yield Finding(name="input", text=text, further=NextCommand(section=section), share=share)


def _framework(anatomy: Anatomy, costs: Costs) -> Iterator[Finding]:
    if not costs.framework_ns or anatomy.environment.host_only:
        return
    share = costs.framework_ns / costs.whole_ns
    calls = round(total(anatomy.operators).calls / steps_of(anatomy))
    yield Finding(
        name="framework",
        text=phrase("{} takes {} of the step.", _without_operator(anatomy.step), Share(share, 1)),
        evidence=phrase("{} per step", Count(calls, "operator call")),
        further=NextCommand(section="operators", options="--sort calls"),
        share=share,
    )


def _communication(anatomy: Anatomy, costs: Costs) -> Iterator[Finding]:
    """Yield waiting for other ranks if known separately, and all other exposed communication."""
    waiting = costs.waiting_ns or 0
    exposed = costs.exposed_ns - waiting
    if waiting and waiting >= exposed:
        yield _waiting(anatomy, waiting / costs.whole_ns)
    if exposed <= 0:
        return
    communication = anatomy.communication
    what, apart = "Exposed communication" if costs.waiting_ns is None else "Exposed transfer between ranks", []
    if 0 < waiting < exposed:  # one cost, mostly the transfer
        what, exposed = "Exposed communication", costs.exposed_ns
        apart.append(phrase("{} waiting for other ranks", Share(waiting, costs.whole_ns)))
    share, all_ns = exposed / costs.whole_ns, anatomy.timeline.communication_ns or 0
    if all_ns - costs.exposed_ns >= LEAST * costs.whole_ns:
        apart.append(phrase("{} including hidden communication", Share(all_ns, costs.whole_ns)))
    longest = max(communication.phases, key=lambda row: row.exposed_ns, default=None) if communication else None
    evidence = (
        None
        if longest is None
        else phrase(
            "{} of the exposed time is in {}",
            Share(longest.exposed_ns, sum(row.exposed_ns for row in communication.phases)),
            longest.phase.value,
        )
        if communication
        else None
    )
    yield Finding(
        name="communication",
        text=phrase(
            "{} takes {} of {}{}.",
            what,
            Share(share, 1),
            whole_of(costs),
            phrase(" ({})", joined(apart) or "") if apart else "",
        ),
        evidence=evidence,
        further=NextCommand(section="communication"),
        share=share,
    )


def _waiting(anatomy: Anatomy, share: float) -> Finding:
    """Return the finding that ranks wait for each other, and for which most of all."""
    waiting = anatomy.waiting
    straggler = None if waiting is None else waiting.straggler
    for_whom: Phrase | str = "."
    evidence = None
    if waiting is not None and straggler is not None:
        # All waiting, including the part that other work hides.
        share_of = Share(straggler.charged_ns, straggler.waiting_ns)
        early = 2 * (straggler.before_ns or 0) >= straggler.charged_ns
        since = ", mostly because it starts its step late" if early else ""
        for_whom = phrase("; {} causes {} of the waiting{}.", name_of(straggler), share_of, since)
        evidence = how_late(straggler, waiting)
    text = phrase("Waiting for other ranks takes {} of the step on average{}", Share(share, 1), for_whom)
    return Finding(name="waiting", text=text, evidence=evidence, further=NextCommand(section="waiting"), share=share)


def _phases(anatomy: Anatomy, costs: Costs) -> Iterator[Finding]:
    """Yield step phases besides forward and backward, and the phases of a generation."""
    words = {Phase.OPTIMIZER: "The optimizer", Phase.RECOMPUTE: "Recomputing activations (checkpointing)"}
    for phase, what in words.items():
        if ns := costs.phases.get(phase):
            share = ns / costs.whole_ns
            yield Finding(
                name=phase.value,
                text=phrase("{} takes {} of {}.", what, Share(share, 1), whole_of(costs)),
                further=NextCommand(section="classes", experiment=True),
                share=share,
            )
    made, ns = anatomy.generation, costs.phases.get(Phase.DECODING)
    if made is not None and made.token_read_bytes is not None and ns:
        share = ns / costs.whole_ns
        by_memory = " and is memory-bound" if _memory_bound(anatomy) else ""
        text = phrase("Decoding takes {} of {}{}.", Share(share, 1), whole_of(costs), by_memory)
        evidence = phrase("each token reads {}", Bytes(made.token_read_bytes))
        further = NextCommand(section="roofline")
        yield Finding(name="decoding", text=text, evidence=evidence, further=further, share=share)


def _memory_bound(anatomy: Anatomy) -> bool:
    rows = [row for row in anatomy.classes if row.phase is Phase.DECODING]
    bound = sum(row.bound_ns or 0 for row in rows)
    return bound > 0 and sum(row.memory_bound_ns or 0 for row in rows) >= _MOST_SHARE * bound


# ------------------------------------------------------------------------------------------------------------- classes


#: The subject of a sentence on a class, and whether its verb is plural.
_SUBJECT: Final = {
    OperatorClass.TENSOR_CONTRACTION: ("Tensor contractions", True),
    OperatorClass.STATISTICAL_NORMALIZATION: ("Statistical normalizations", True),
    OperatorClass.ELEMENTWISE: ("Element-wise operators", True),
    OperatorClass.DATA_MOVEMENT: ("Data movement", False),
    OperatorClass.OTHER: ("Other operators", True),
}


def _class(anatomy: Anatomy, costs: Costs, item: OperatorClass, ns: float) -> Finding:
    """Return a class of work, its largest part, and its share of the device's ceiling."""
    rows = [row for row in anatomy.classes if row.operator_class is item]
    part, share = total(rows), ns / costs.whole_ns
    mainly, parts = _largest(anatomy, item, share)
    if item is OperatorClass.UNKNOWN:
        text = phrase("Unclassified work{} takes {} of {}{}.", mainly, Share(share, 1), whole_of(costs), parts)
        return Finding(name="unknown", text=text, further=NextCommand(section="ledger"), share=share)
    subject, several = _SUBJECT[item]
    takes, runs = ("take", "run") if several else ("takes", "runs")
    text = phrase(
        "{}{} {} {} of {}{}{}.",
        subject,
        mainly,
        takes,
        Share(share, 1),
        whole_of(costs),
        parts,
        _reached(runs, part, above_ceiling(anatomy, (item, None, None))),
    )
    spare, steps = sum(row.headroom_ns or 0 for row in rows), steps_of(anatomy)
    evidence = None
    if part.reached:
        evidence = phrase("headroom {} of {}", Time(spare / steps), Time(part.time_ns / steps))
    return Finding(name=item.value, text=text, evidence=evidence, further=_further(anatomy, item, part), share=share)


def _further(anatomy: Anatomy, item: OperatorClass, part: Total) -> NextCommand:
    """Return the main section for a class: bounds if known, operators if any, kernels; the last two with more rows than
    on the first screen."""
    if part.reached:
        return NextCommand(section="roofline", experiment=True)
    linked = sum(row.time_ns for row in anatomy.operators if row.operator_class is item)
    section = "operators" if linked >= _MOST_SHARE * part.time_ns else "kernels"
    return NextCommand(section=section, options=f"--top {_LONG_TABLE_ROWS}", experiment=True)


def _largest(anatomy: Anatomy, item: OperatorClass, share: float) -> tuple[Phrase | str, Phrase | str]:
    """Return the main operator of a class, or kernel if most work has none, or else the top two with their shares.

    `share` is the class's share of the step.
    """
    whole = sum(row.time_ns for row in anatomy.classes if row.operator_class is item)
    groups = {key: total(rows).time_ns for key, rows in grouped(anatomy.operators).items() if key[0] is item}
    if sum(groups.values()) < _MOST_SHARE * whole:
        rows = [row for row in anatomy.kernels if row.operator_class is item]
        return _most([(phrase("kernel {}", Name(short_name(row.kernel))), row.time_ns) for row in rows], whole, share)
    several = len({row.phase for row in anatomy.classes if row.operator_class is item}) > 1
    named = []
    for (_, name, phase), ns in groups.items():
        where = f" in {phase.value}" if several and phase is not Phase.OTHER else ""
        named.append((phrase("{}" + where, Name(name.removeprefix("aten::"))), ns))
    return _most(named, whole, share)


def _most(named: Sequence[tuple[Phrase, float]], whole: float, share: float) -> tuple[Phrase | str, Phrase | str]:
    """Return a class's main part, or else the step shares of its two largest parts; small ones are not named."""
    much = [part for part in sorted(named, key=lambda part: -part[1])[:2] if part[1] >= _MIN_ITEM_SHARE * whole]
    if not much:
        return "", ""
    name, ns = much[0]
    if ns >= _MOST_SHARE * whole:
        return phrase(" (all {})" if ns >= whole else " (mostly {})", name), ""
    shares = (phrase("{} {}", name, Share(ns / whole * share, 1)) for name, ns in much)
    return "", phrase(" ({})", joined(shares) or "")


def _reached(runs: str, part: Total, above: AboveCeiling | None) -> Phrase | str:
    if not part.reached:
        return ""
    partly = (part.covered or 0) < _ALL_SHARE
    known = phrase("known for {} of that time", Share(part.covered, 1, decimals=0)) if partly else None
    remarks = joined((None if above is None else reason_above(above), known))
    why = "" if remarks is None else phrase(" ({})", remarks)
    return phrase(" and " + runs + " at {} of peak{}", Share(part.reached, 1), why)
