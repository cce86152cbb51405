"""Report the steps timed again: what decides their length, and how long they take after changes."""

from __future__ import annotations

from opanatomy.records.anatomy import Anatomy, Replay, WhatIf
from opanatomy.report.section import Change, Fact, Phrase, Section, Share, Time, facts_of, joined, per_step, phrase

#: Parts of the path that take less of the step than this are left out.
_LEAST = 0.01


def replay(anatomy: Anatomy) -> Section | None:
    """Return what decides the step's length, how far a replay of it is right, and the answers that were asked for."""
    made = anatomy.replay
    if made is None:
        return None
    path = [part for part in made.path if part.time_ns >= _LEAST * made.step_ns]
    facts = facts_of(
        ("decided by", joined(phrase("{} {}", part.of.replace("_", " "), _part(part.time_ns, made)) for part in path)),
        ("replay", _trust(made)),
    )
    answers = (_answer(one, made) for one in made.answers)
    scope = f"per step, mean of {made.steps}" if made.steps > 1 else per_step(anatomy)
    return Section(title="The step, replayed", scope=scope, facts=(*facts, *answers))


def _part(ns: int, made: Replay) -> Phrase:
    return phrase("{} ({})", Time(ns), Share(ns, made.step_ns))


def _trust(made: Replay) -> Phrase:
    """Return how far the replay is right, and whose host it has."""
    host = (
        None
        if made.host_factor is None
        else phrase("host time x {}, as without the profiler", Share(made.host_factor, 1, 0))
    )
    off = phrase("off by {} with usual delays", Share(made.error, 1))
    if made.why_not is not None:
        return joined((phrase("not trusted: {}", made.why_not), host), by="; ") or phrase("")
    return joined((off, phrase("no cause recorded for {}", Share(made.unexplained, 1)), host)) or phrase("")


def _answer(answer: WhatIf, made: Replay) -> Fact:
    """Return how long a step takes after a change; a range where the host may be faster than it was recorded."""
    takes = phrase("{} ({})", Time(answer.step_ns), Change(answer.step_ns, made.step_ns))
    if answer.least_ns is not None and made.least_ns:
        fast = phrase("{} ({})", Time(answer.least_ns), Change(answer.least_ns, made.least_ns))
        takes = phrase("{}; with a host that recording does not slow {}", takes, fast)
    return Fact(label="what if", text=phrase("{}: {}", ", ".join(answer.changes), takes))
