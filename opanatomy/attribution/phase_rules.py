"""`forward=REGEX`: which of a trace's own annotations are of which phase, as a user says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from opanatomy.errors import UsageError
from opanatomy.records.taxonomy import Phase


class PhaseRule(Struct, frozen=True):
    """A pattern for the names of a trace's own annotations, and the phase of what runs in those it is found in."""

    phase: Phase
    pattern: re.Pattern[str]


def phase_rules(options: Iterable[str]) -> tuple[PhaseRule, ...]:
    """The rules of `PHASE=REGEX` texts, in their order; `UsageError` where one is none."""
    rules = []
    for option in options:
        phase, equals, pattern = option.partition("=")
        if not equals:
            raise UsageError(f"--phase {option!r}: no '=' in it - give PHASE=REGEX, such as --phase 'forward=(F)$'")
        rules.append(_rule("--phase ", phase.strip(), pattern))
    return tuple(rules)


def phase_rules_of(phases: object) -> tuple[PhaseRule, ...]:
    """The rules of a mapping from a phase to a regular expression or several."""
    if not isinstance(phases, Mapping):
        raise UsageError("analyze: phases is not a dictionary - give {'forward': REGEX, ...}")
    rules = []
    for phase, patterns in phases.items():
        for pattern in patterns if isinstance(patterns, (list, tuple)) else (patterns,):
            rules.append(_rule("analyze: phases ", str(phase), pattern))
    return tuple(rules)


def _rule(where: str, phase: str, pattern: object) -> PhaseRule:
    text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    if phase not in set(Phase):
        raise UsageError(f"{where}{phase}={text}: no phase {phase!r} - one of {', '.join(Phase)}")
    if not isinstance(text, str) or not text:
        raise UsageError(
            f"{where}{phase}={text}: not a regular expression - give one that is found in annotations' names"
        )
    try:
        return PhaseRule(Phase(phase), re.compile(text))
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"{where}{phase}={text}: not a regular expression: {error} - escape what is text") from error
