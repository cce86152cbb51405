"""What costs most, as a reader is told first: findings, the largest share of the step first, and the headline."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

from msgspec import Struct

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report.scope import is_whole_trace, steps_of
from opanatomy.report.section import (
    Bytes,
    Count,
    Name,
    Note,
    Phrase,
    Section,
    Share,
    Time,
    Tone,
    joined,
    phrase,
)
from opanatomy.report.sections.costs import Costs, costs_of
from opanatomy.report.sections.kernels import short_name
from opanatomy.report.sections.operators import grouped
from opanatomy.report.totals import Total, total

#: A finding is one from this part of the step on; the second one stands in the headline from there on.
LEAST: Final = 0.02
SECOND: Final = 0.15
#: The part of a device's memory from which a step is near its limit.
NEARLY_FULL: Final = 0.9
#: The part of a whole from which something is most of it.
_MOST: Final = 0.5
#: The part of a class from which the largest of it is named.
_MUCH: Final = 0.3
#: So much longer than without the profiler, that idle time may be the profiler's.
_SLOWED: Final = 1.1
#: What a model is called by, so that a command can name it.
_NAMED_MODELS: Final = ("catalog", "hub")


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that costs time or memory.

    `text` is a sentence; `evidence` what shows it, words that follow a colon; `next_command` what to type to see more
    of it, `None` where nothing does. `share` is the part of the step that it takes, `None` of what takes no time.
    """

    name: str
    text: Phrase
    evidence: Phrase | None = None
    next_command: str | None = None
    share: float | None = None


def findings(anatomy: Anatomy, *, source: str | None = None) -> tuple[Finding, ...]:
    """What costs most, the largest share of the step first; `source` is what a command calls the trace by."""
    ask = _Ask(anatomy=anatomy, source=source)
    if ending := _without_work(ask):
        return (ending,)
    costs = costs_of(anatomy)
    known = sorted(_of_time(ask, costs), key=lambda finding: -(finding.share or 0))
    kept = [finding for finding in known if (finding.share or 0) >= LEAST] or known[:1]
    if full := _memory(ask):
        kept.insert(1, full)
    return tuple(kept)


def headline(anatomy: Anatomy, *, source: str | None = None) -> tuple[Phrase, str | None]:
    """What costs most in one or two sentences, and the command that says more."""
    first, *others = findings(anatomy, source=source)
    second = next((item for item in others[:1] if item.share is None or item.share >= SECOND), None)
    text = first.text if second is None else phrase("{} {}", first.text, second.text)
    return text, first.next_command


def conclusion(anatomy: Anatomy, *, source: str | None = None) -> Section:
    """The headline as the part of the report that it is."""
    text, command = headline(anatomy, source=source)
    notes = [Note(text=text, tone=Tone.CONCLUSION)]
    if command:
        notes.append(Note(text=f"next: {command}", tone=Tone.PLAIN))
    return Section(name="headline", title="What costs most", notes=tuple(notes))


# ----------------------------------------------------------------------------------------------------------- commands


class _Ask(Struct, frozen=True, kw_only=True):
    """The anatomy, and how a command calls its trace."""

    anatomy: Anatomy
    source: str | None

    def section(self, name: str) -> str | None:
        """The command that shows this section."""
        traces = self.source or _traces(self.anatomy)
        return None if traces is None else f"opanatomy analyze {traces} --section {name}"

    def experiment(self, otherwise: str) -> str | None:
        """The command that tries techniques on the model, where one can name it; else that of a section."""
        work = self.anatomy.workload
        named = work.model is not None and work.model_source in _NAMED_MODELS and not work.changes
        if not named or work.inference or work.world_size is not None or self.anatomy.texts is not None:
            return self.section(otherwise)
        batch = "" if work.batch is None else f" --batch {work.batch}"
        length = "" if work.sequence_length in (None, 512) else f" --seq {work.sequence_length}"
        return f"opanatomy techniques {shlex.quote(work.model or '')}{batch}{length}"


def _traces(anatomy: Anatomy) -> str | None:
    """The files of the report: of several ranks a pattern that fits their names."""
    names = [rank.trace for rank in anatomy.ranks if rank.trace]
    if len(names) < 2:
        return None if anatomy.provenance.trace is None else shlex.quote(anatomy.provenance.trace)
    return pattern_of(names)


def pattern_of(names: Sequence[str]) -> str:
    """A pattern for the shell that all names fit."""
    begin = _shared(names)
    end = _shared([name[len(begin) :][::-1] for name in names])[::-1]
    return f"{shlex.quote(begin) if begin else ''}*{shlex.quote(end) if end else ''}"


def _shared(names: Sequence[str]) -> str:
    """What all names begin with."""
    return "".join(
        letters[0] for letters in takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    )


# ---------------------------------------------------------------------------------------------------- nothing to share


def _without_work(ask: _Ask) -> Finding | None:
    anatomy = ask.anatomy
    if any(row.time_ns for row in anatomy.classes):
        return None
    failure = anatomy.memory.failure
    if failure is None:
        text = phrase("There is no device work in this trace: nothing to explain.")
        return Finding(name="nothing", text=text, evidence=joined(anatomy.warnings[:1]))
    fitting = next((saving.option for saving in anatomy.memory.savings if saving.fits is not False), None)
    text = phrase("The step does not fit: try {}.", fitting) if fitting else phrase("The step does not fit.")
    asked = None if failure.requested_bytes is None else Bytes(failure.requested_bytes)
    evidence = None if asked is None else phrase("{} more were asked for in {}", asked, failure.phase.value)
    return Finding(name="out-of-memory", text=text, evidence=evidence)


def _memory(ask: _Ask) -> Finding | None:
    """Memory near the device's limit."""
    memory, environment = ask.anatomy.memory, ask.anatomy.environment
    most = max((device.reserved_peak_bytes or 0 for device in memory.devices), default=0)
    peak, limit = max(memory.peak_bytes or 0, most), environment.device_memory_bytes
    if not limit or environment.device_kind == "cpu" or peak < NEARLY_FULL * limit:
        return None
    return Finding(
        name="memory",
        text=phrase("Memory is nearly full: {} of the device's {}.", Bytes(peak), Bytes(limit)),
        evidence=phrase("the peak is {} of it", Share(peak, limit)),
        next_command=ask.section("memory"),
    )


# ---------------------------------------------------------------------------------------------------- parts of the time


def _of_time(ask: _Ask, costs: Costs) -> Iterator[Finding]:
    """Every part of the step's time that is more than nothing."""
    yield from _idle(ask, costs)
    yield from _framework(ask, costs)
    yield from _communication(ask, costs)
    for item, ns in costs.classes.items():
        yield _class(ask, costs, item, ns)
    yield from _phases(ask, costs)


def _whole(ask: _Ask) -> str:
    """What the shares are of."""
    if is_whole_trace(ask.anatomy) and ask.anatomy.environment.device_kind != "cpu":
        return "the time from the first to the last device work"
    return "the step"


def _idle(ask: _Ask, costs: Costs) -> Iterator[Finding]:
    if not costs.idle_ns:
        return
    reasons = {
        "before its first or after its last work": costs.edge_ns,
        "because the host had not launched the next work yet": costs.host_ns,
        "because another stream was waited for": costs.stream_ns,
        "between two kernels of one stream": costs.other_ns,
    }
    reason = max(reasons, key=lambda name: reasons[name])
    mostly: Phrase | str = ""
    if reasons[reason] >= _MOST * costs.idle_ns:
        mostly = f", {'' if reasons[reason] >= 0.99 * costs.idle_ns else 'mostly '}{reason}"
    share = costs.idle_ns / costs.whole_ns
    yield Finding(
        name="idle", text=phrase("The device is idle {} of {}{}.", Share(share, 1), _whole(ask), mostly),
        evidence=_too_slow(ask.anatomy), next_command=ask.section("idle"), share=share,
    )  # fmt: skip


def _too_slow(anatomy: Anatomy) -> Phrase | None:
    """What makes a host too slow: many launches of little work, waiting for the device, the profiler itself."""
    launching, step, steps = anatomy.timeline.launching, anatomy.step, steps_of(anatomy)
    parts: list[Phrase] = []
    if launching is not None and launching.kernels:
        tiny = Share(launching.tiny_kernels, launching.kernels)
        number = Count(round(launching.calls / steps), "launch")
        parts.append(phrase("{} a step, {} of the kernels shorter than {}", number, tiny,
                            Time(launching.tiny_below_ns)))  # fmt: skip
    if launching is not None and launching.synchronizing_calls >= steps:
        number = Count(round(launching.synchronizing_calls / steps), "synchronization")
        parts.append(phrase("{} of {} on the host", number, Time(launching.synchronizing_ns / steps)))
    if step.wall_ns and step.unprofiled_wall_ns and step.wall_ns > _SLOWED * step.unprofiled_wall_ns:
        parts.append(phrase("without the profiler the step takes {}, not {}", Time(step.unprofiled_wall_ns),
                            Time(step.wall_ns)))  # fmt: skip
    return joined(parts)


def _framework(ask: _Ask, costs: Costs) -> Iterator[Finding]:
    if not costs.framework_ns:
        return
    share = costs.framework_ns / costs.whole_ns
    called = sum(row.calls for row in ask.anatomy.operators if row.part_of is None)
    calls = round(called / steps_of(ask.anatomy))
    yield Finding(
        name="framework",
        text=phrase("The framework (dispatch, autograd, Python) takes {} of the step.", Share(share, 1)),
        evidence=phrase("{} of operators a step", Count(calls, "call")),
        next_command=ask.section("operators --sort calls"), share=share,
    )  # fmt: skip


def _communication(ask: _Ask, costs: Costs) -> Iterator[Finding]:
    """Waiting for other ranks where it is known apart, and all other communication that nothing hides."""
    waiting = costs.waiting_ns or 0
    if waiting:
        yield _waiting(ask, waiting / costs.whole_ns)
    exposed = costs.exposed_ns - waiting
    if exposed <= 0:
        return
    share, communication = exposed / costs.whole_ns, ask.anatomy.communication
    what = "Communication" if costs.waiting_ns is None else "Transferring data between ranks"
    longest = max(communication.phases, key=lambda row: row.exposed_ns, default=None) if communication else None
    evidence = None if longest is None else phrase(
        "{} of it in {}", Share(longest.exposed_ns, sum(row.exposed_ns for row in communication.phases)),
        longest.phase.value,
    ) if communication else None  # fmt: skip
    yield Finding(
        name="communication",
        text=phrase("{} that no other work hides takes {} of {}.", what, Share(share, 1), _whole(ask)),
        evidence=evidence, next_command=ask.section("communication"), share=share,
    )  # fmt: skip


def _waiting(ask: _Ask, share: float) -> Finding:
    """Ranks that wait for each other, and for which most of all."""
    straggler = None if ask.anatomy.waiting is None else ask.anatomy.waiting.straggler
    for_whom: Phrase | str = ""
    evidence = None
    if straggler is not None:
        name = straggler.trace or "?" if straggler.rank is None else f"rank {straggler.rank}"
        for_whom = phrase(", {} of that for {}", Share(straggler.charged_ns, straggler.waiting_ns), name)
        did = ("it computes", straggler.computing_longer_ns)
        if straggler.idle_longer_ns > straggler.computing_longer_ns:
            did = ("it does nothing", straggler.idle_longer_ns)
        evidence = phrase("{} {} longer than the others before", did[0], Time(did[1])) if did[1] > 0 else None
    text = phrase("A rank waits for the others {} of the step, on average{}.", Share(share, 1), for_whom)
    return Finding(name="waiting", text=text, evidence=evidence, next_command=ask.section("waiting"), share=share)


def _phases(ask: _Ask, costs: Costs) -> Iterator[Finding]:
    """Phases that a step has beside forward and backward, and those of a generation."""
    words = {Phase.OPTIMIZER: "The optimizer", Phase.RECOMPUTE: "Computing activations again (checkpointing)"}
    for phase, what in words.items():
        if ns := costs.phases.get(phase):
            share = ns / costs.whole_ns
            yield Finding(
                name=phase.value, text=phrase("{} takes {} of {}.", what, Share(share, 1), _whole(ask)),
                next_command=ask.experiment("classes"), share=share,
            )  # fmt: skip
    made, ns = ask.anatomy.generation, costs.phases.get(Phase.DECODING)
    if made is not None and made.token_read_bytes is not None and ns:
        share = ns / costs.whole_ns
        by_memory = ", bound by memory" if _memory_bound(ask.anatomy) else ""
        text = phrase("Decoding takes {} of {}{}.", Share(share, 1), _whole(ask), by_memory)
        evidence = phrase("each token reads {}", Bytes(made.token_read_bytes))
        yield Finding(name="decoding", text=text, evidence=evidence, next_command=ask.section("roofline"), share=share)


def _memory_bound(anatomy: Anatomy) -> bool:
    rows = [row for row in anatomy.classes if row.phase is Phase.DECODING]
    bound = sum(row.bound_ns or 0 for row in rows)
    return bound > 0 and sum(row.memory_bound_ns or 0 for row in rows) >= _MOST * bound


# ------------------------------------------------------------------------------------------------------------- classes


def _class(ask: _Ask, costs: Costs, item: OperatorClass, ns: float) -> Finding:
    """A class of work, what of it is largest, and how near to the ceiling of the device it is."""
    rows = [row for row in ask.anatomy.classes if row.operator_class is item]
    part, share = total(rows), ns / costs.whole_ns
    if item is OperatorClass.UNKNOWN:
        text = phrase("What takes {} of {} no rule knows{}.", Share(share, 1), _whole(ask), _largest(ask.anatomy, item))
        return Finding(name="unknown", text=text, next_command=ask.section("ledger"), share=share)
    text = phrase(
        "{} takes {} of {}{}{}.", _capital(item), Share(share, 1), _whole(ask), _largest(ask.anatomy, item),
        _reached(part),
    )  # fmt: skip
    spare, steps = sum(row.headroom_ns or 0 for row in rows), steps_of(ask.anatomy)
    evidence = None
    if part.reached:
        evidence = phrase("headroom {} of {}", Time(spare / steps), Time(part.time_ns / steps))
    return Finding(
        name=item.value, text=text, evidence=evidence, next_command=ask.experiment(_section(ask.anatomy, item, part)),
        share=share,
    )  # fmt: skip


def _section(anatomy: Anatomy, item: OperatorClass, part: Total) -> str:
    """The section that says most of a class: bounds where they are known, operators where it has any, kernels."""
    if part.reached:
        return "roofline"
    linked = sum(row.time_ns for row in anatomy.operators if row.operator_class is item)
    return "operators" if linked >= _MOST * part.time_ns else "kernels"


def _capital(item: OperatorClass) -> str:
    from opanatomy.report.classes import LABEL

    return LABEL[item][:1].upper() + LABEL[item][1:] + (" work" if item is OperatorClass.ELEMENTWISE else "")


def _largest(anatomy: Anatomy, item: OperatorClass) -> Phrase | str:
    """The operator, or where most has none the kernel, that takes most of a class."""
    whole = sum(row.time_ns for row in anatomy.classes if row.operator_class is item)
    groups = {key: total(rows).time_ns for key, rows in grouped(anatomy.operators).items() if key[0] is item}
    if sum(groups.values()) >= _MOST * whole:
        largest = max(groups, key=lambda key: groups[key])
        several = len({row.phase for row in anatomy.classes if row.operator_class is item}) > 1
        where = f" in {largest[2].value}" if several and largest[2] is not Phase.OTHER else ""
        return _most(phrase("{}" + where, Name(largest[1].removeprefix("aten::"))), groups[largest], whole)
    kernels = [row for row in anatomy.kernels if row.operator_class is item]
    if not kernels:
        return ""
    kernel = max(kernels, key=lambda row: row.time_ns)
    return _most(phrase("the kernel {}", Name(short_name(kernel.kernel))), kernel.time_ns, whole)


def _most(name: Phrase, ns: float, whole: float) -> Phrase | str:
    """That a part is most of a class, or what share of it; nothing of a small one."""
    if ns < _MUCH * whole:
        return ""
    if ns >= whole:
        return phrase(", all of it {}", name)
    return phrase(", {} of it {}", "most" if ns >= _MOST * whole else Share(ns, whole, decimals=0), name)


def _reached(part: Total) -> Phrase | str:
    if not part.reached:
        return ""
    known = "" if part.covered == 1 else phrase(" (known for {})", Share(part.covered, 1, decimals=0))
    return phrase(", at {} of its ceiling{}", Share(part.reached, 1), known)
