"""Report the replay: the critical path of the steps, and their time after changes."""

from __future__ import annotations

from opanatomy.records.anatomy import Anatomy
from opanatomy.report.section import Change, Fact, Section, Share, Time, facts_of, joined, phrase, scope_per_step

#: Path parts below this share of the step are omitted.
_MIN_PATH_SHARE = 0.01


def replay(anatomy: Anatomy) -> Section | None:
    """Return the critical path, the replay's accuracy, and the requested answers."""
    made = anatomy.replay
    if made is None:
        return None
    path = [
        phrase("{} {} ({})", part.of.replace("_", " "), Time(part.time_ns), Share(part.time_ns, made.step_ns))
        for part in made.path
        if part.time_ns >= _MIN_PATH_SHARE * made.step_ns
    ]

    # How far the replay is right, and whose host it has.
    host = None
    if made.host_factor is not None:
        host = phrase("host time scaled to {} to match the unprofiled step", Share(made.host_factor, 1, 0))
    if made.why_not is not None:
        trust = joined((phrase("not trusted: {}", made.why_not), host), by="; ")
    else:
        off = phrase("step time off by {} when replayed with typical delays", Share(made.error, 1))
        trust = joined((off, phrase("no recorded cause for {} of the step", Share(made.unexplained, 1)), host))
    facts = [*facts_of(("decided by", joined(path)), ("replay", trust))]
    for answer in made.answers:
        takes = phrase("{} ({})", Time(answer.step_ns), Change(answer.step_ns, made.step_ns))
        # A range where the host may be faster than it was recorded.
        if answer.least_ns is not None and made.least_ns:
            fast = phrase("{} ({})", Time(answer.least_ns), Change(answer.least_ns, made.least_ns))
            takes = phrase("{}, or {} for a host not slowed down by recording", takes, fast)
        facts.append(Fact(label="what if", text=phrase("{}: {}", ", ".join(answer.changes), takes)))
    scope = f"per step, mean of {made.steps}" if made.steps > 1 else scope_per_step(anatomy)
    return Section(title="The step, replayed", scope=scope, facts=tuple(facts))
