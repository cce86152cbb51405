"""Report advice: at most three pieces on the first screen, the others in a section of their own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from opanatomy.analysis.costs import costs_of
from opanatomy.records.anatomy import FIRST, PLACE, WORTH, Advice, Anatomy, Evidence, Replay
from opanatomy.report.names import printable
from opanatomy.report.section import (
    ByteRate,
    Bytes,
    Count,
    Fact,
    FlopRate,
    Name,
    Note,
    Page,
    Phrase,
    Quantity,
    Ratio,
    Section,
    Share,
    Time,
    joined,
    phrase,
    said,
    whole_of,
)
from opanatomy.report.sections.verdict import (
    Next,
    NextCommand,
    compared_run,
    experiment_of,
    is_run_of_profile,
    section_command,
)

#: Advice on a first screen has one remedy and this many lines of explanation.
_MAX_REASON_LINES: Final = 2
#: Both ends of a replayed gain are shown as one figure if their ratio is above this.
_SAME_GAIN_RATIO: Final = 0.9
#: Number of commands below the advice.
_MAX_COMMANDS: Final = 1


def first_advice(anatomy: Anatomy, page: Page) -> Section | None:
    """Return the main advice, its combined gain, and the commands that apply or check it."""
    first = anatomy.advice[: min(FIRST, page.advice)]
    if not first:
        return _no_advice(anatomy)
    notes = [following.note for following in commands_of(first, anatomy, page.source)[:_MAX_COMMANDS]]
    of_profile, brief = is_run_of_profile(anatomy), page.brief and not page.sections
    facts = [fact_of(advice, of_profile=of_profile, brief=brief) for advice in first]
    if (gain := gain_together(first, anatomy.replay)) is not None:
        replayed, most, whole = gain
        together = phrase("at most {} ({})", Time(most), Share(most, whole))
        if replayed is not None:
            together = _time_gain(replayed, most, whole)
        facts.append(Fact(label="together", text=together))
    profiled, unprofiled = anatomy.step.wall_ns, anatomy.step.unprofiled_wall_ns
    of_it = unprofiled is not None and all(advice.step_ns in (None, profiled) for advice in first)
    scope = "shares of the profiled step" if of_it else ""
    return Section(title="What to try", scope=scope, facts=tuple(facts), notes=tuple(notes))


def _no_advice(anatomy: Anatomy) -> Section | None:
    """Return a statement that no change is worthwhile, and how much work has no bound to judge by."""
    ledger = anatomy.ledger
    inside = ledger.device_work_ns - ledger.outside_window_ns
    if anatomy.advice or anatomy.environment.host_only or not inside:
        return None
    whole = whole_of(costs_of(anatomy))
    text = phrase("No change found that could save {} or more of {}.", Share(WORTH, 1, decimals=0), whole)
    if inside - ledger.costed_ns > WORTH * inside:
        uncosted = phrase("{} of the", Share(inside - ledger.costed_ns, inside)) if ledger.costed_ns else "all"
        text = phrase("{} FLOPs and bytes are unknown for {} device work.", text, uncosted)
    return Section(title="What to try", notes=(Note(text=text),))


def more_advice(anatomy: Anatomy, page: Page) -> Section | None:
    """Return all advice beyond the first screen's."""
    more = anatomy.advice[FIRST:]
    if not more:
        return None
    notes = [Note(text="each gain assumes that only this change is made")]
    facts = tuple(fact_of(advice, of_profile=is_run_of_profile(anatomy)) for advice in more)
    return Section(title="What else to try", facts=facts, notes=tuple(notes))


def gain_together(advice: Iterable[Advice], replay: Replay | None = None) -> tuple[int | None, int, int] | None:
    """Return the combined gain of advice in the form of one piece's `replayed_ns`, `gain_ns` and `step_ns`; `None`
    unless several save time.

    It comes from a replay if that covers all of them, else it is bounded by the sum of their shares of the step, which
    may be profiled or not, or one rank's.
    """
    timed = [each for each in advice if each.gain_ns is not None and each.step_ns]
    if len(timed) < 2:
        return None
    whole = max(each.step_ns or 0 for each in timed)
    limit = sum(round((each.gain_ns or 0) * whole / (each.step_ns or whole)) for each in timed)
    made = replay.together if replay is not None else None
    if replay is not None and made is not None and len(made.changes) == sum(len(each.changes) for each in timed):
        parts = [1 - made.step_ns / max(replay.step_ns, 1)]
        if made.least_ns is not None and replay.least_ns is not None:
            parts.append(1 - made.least_ns / max(replay.least_ns, 1))
        is_bound = any(each.is_bound for each in timed)
        least, most = (min(max(round(part * whole), 0), limit) for part in (min(parts), max(parts)))
        return None if is_bound else least, most, whole
    return None, min(limit, whole), whole


def fact_of(advice: Advice, *, of_profile: bool, brief: bool = False) -> Fact:
    """Return a piece of advice as a line of a page: `brief` has one cure, and ends at a clause after a few lines.

    With `of_profile` options of `profile` can be added to the run.
    """
    what = joined((advice.technique if advice.id == "technique" else None, gain_of(advice), why_of(advice)), by=": ")
    tries = tries_of(advice, 1 if brief else None, of_profile=of_profile and not (brief and advice.tries))
    if brief and of_profile and advice.option and advice.tries:
        # The option stays where the rest ends at a clause.
        tries = phrase("{}: {}", f"`{advice.option}`", tries)
    cure = tries if tries.parts else None
    text = phrase("{}.", what or "")
    return Fact(label=label_of(advice), text=text, cure=cure, most_lines=_MAX_REASON_LINES if brief else None)


def label_of(advice: Advice) -> str:
    """Return the label of a piece of advice, as known to `explain`: its rule, or what fills the memory."""
    subject = advice.subject if advice.id == "what_fills" else None
    return printable(subject or advice.id.replace("_", " "))


def gain_of(advice: Advice) -> Phrase | None:
    """Return the gain: time of a mean step (the maximum, or from a replay), or memory; `None` if unknown."""
    parts = []
    if advice.gain_ns is not None:
        parts.append(_time_gain(advice.replayed_ns, advice.gain_ns, advice.step_ns))
    if advice.gain_bytes is not None:
        parts.append(
            phrase("{} less memory ({})", Bytes(advice.gain_bytes), Share(advice.gain_bytes, advice.peak_bytes))
        )
    fits = {True: "then it fits", False: "still does not fit", None: None}[advice.fits]
    return joined((*parts, fits))


def _time_gain(replayed_ns: int | None, most_ns: int, step_ns: int | None) -> Phrase:
    """Return a gain of time: from a replay, between the recorded host and one not slowed by recording."""
    share = Share(most_ns, step_ns)
    if replayed_ns is None:
        return phrase("up to {} ({})", Time(most_ns), share)
    if replayed_ns < _SAME_GAIN_RATIO * most_ns:
        return phrase("{} to {} ({}, replayed)", Time(replayed_ns), Time(most_ns), share)
    return phrase("about {} ({}, replayed)", Time(most_ns), share)


def why_of(advice: Advice) -> Phrase:
    """Return the observation behind the advice, with its figures."""
    parts = PLACE.split(advice.why)  # words and names of figures, in turn
    parts[1::2] = [quantity_of(advice.figures[name]) for name in parts[1::2]]
    return Phrase(tuple(part for part in parts if part != ""))


def tries_of(advice: Advice, most: int | None = None, *, of_profile: bool) -> Phrase:
    """Return what to try as sentences, most promising first; for a run of `profile` with the option."""
    option = f"`{advice.option}`" if advice.option and of_profile else None
    first, *others = advice.tries[:most] or ("",)
    first = first if first.endswith(".") or not first else f"Try {first}."  # an option or a call
    if option is not None:
        first = f"{first.removesuffix('.')} ({option})." if first else f"Try {option}."
    return joined((first or None, *others), " ") or phrase("")


def quantity_of(evidence: Evidence) -> Quantity | Name:
    """Return a figure of advice in its unit."""
    value = evidence.value
    if evidence.text is not None:
        return said(evidence.text)
    known = {"ns": Time, "bytes": Bytes, "ratio": Ratio, "flop/s": FlopRate, "byte/s": ByteRate}.get(evidence.unit)
    if known is not None:
        made: Quantity = known(value)
        return made
    return Share(value, 1) if evidence.unit == "fraction" else Count(value, evidence.unit)


def commands_of(advice: Iterable[Advice], anatomy: Anatomy, source: str | None) -> tuple[Next, ...]:
    """Return what carries the advice out or checks it: an experiment, a comparison of two runs, else a section."""
    techniques, sections, others = [], [], []
    for each in advice:
        if each.technique is not None and experiment_of(anatomy) is not None:
            techniques.append(each.technique)
        elif each.option is not None and (line := compared_run(anatomy, each.option)) is not None:
            others.append(Next(text=line))
        elif each.section is not None:
            sections.append(NextCommand(section=each.section))
    made = []
    if techniques:
        made.append(Next(text=f"{experiment_of(anatomy)} --only {','.join(dict.fromkeys(techniques))}"))
    made += others
    if sections and (source is not None or anatomy.provenance.trace is not None):
        made.append(section_command(sections, source))
    return tuple(dict.fromkeys(made))
