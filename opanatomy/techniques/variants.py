"""Which runs an experiment is made of: the baseline and each requested technique, with its options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from opanatomy.errors import UsageError
from opanatomy.option_values import instead_of
from opanatomy.run_options import RunOptions
from opanatomy.techniques.entries import BASELINE, TECHNIQUE, TECHNIQUES, Situation, Technique, option_text

#: What joins the techniques of a combination.
AND = "+"


class Variant(Struct, frozen=True, kw_only=True):
    """One run: its options, or why it cannot be (`impossible`)."""

    name: str
    title: str
    what: str
    options: RunOptions
    changes: dict[str, Any] = field(default_factory=dict)
    keeps_result: bool = True
    impossible: str | None = None

    @property
    def option(self) -> str:
        """What is typed to have it."""
        return option_text(self.changes)


def variants_of(
    situation: Situation, *, only: Sequence[str] = (), skip: Sequence[str] = (), combine: Sequence[str] = ()
) -> tuple[Variant, ...]:
    """The baseline, then the techniques; `UsageError` for names that are none.

    A technique that the baseline has already, or that is left to another device, is left out unless it was
    named.
    """
    chosen = _techniques(only, "--only") or list(TECHNIQUES)
    skipped = _techniques(skip, "--skip")
    baseline = Variant(name=BASELINE, title="as it is", what="the run that was given", options=situation.options)
    singles = [
        _variant(technique.name, (technique,), situation, named=bool(only))
        for technique in chosen
        if technique not in skipped
    ]
    kept = [variant for variant in singles if only or variant.impossible or variant.options != situation.options]
    for text in combine:
        _check_combination(text, situation)
    combined = [
        _variant(text, tuple(_technique(name, "--combine") for name in text.split(AND)), situation)
        for text in combine
    ]  # fmt: skip
    return (baseline, *kept, *combined)


def _techniques(texts: Sequence[str], flag: str) -> list[Technique]:
    """The techniques that an option names, each time one or several with commas between."""
    return [_technique(name, flag) for text in texts for name in text.split(",")]


def _technique(name: str, flag: str) -> Technique:
    known = TECHNIQUE.get(name.strip().lower())
    if known is None:
        raise UsageError(f"{flag} {name}: no technique - {instead_of(name, TECHNIQUE)}")
    return known


def _check_combination(text: str, situation: Situation) -> None:
    """Raise `UsageError` where two techniques of a combination set one option to different values."""
    values: dict[str, Any] = {}
    for technique in (_technique(name, "--combine") for name in text.split(AND)):
        for option, value in technique.switch(situation).items():
            if values.setdefault(option, value) != value:
                wanted = f"{option_text({option: values[option]})} and {option_text({option: value})}"
                raise UsageError(f"--combine {text}: {wanted} exclude each other - leave one of them out")


def _variant(name: str, techniques: Sequence[Technique], situation: Situation, *, named: bool = True) -> Variant:
    """The run with all of these switched on; `named` where the user named them."""
    impossible = next((reason for technique in techniques if (reason := technique.impossible(situation))), None)
    if impossible is None and not named:
        impossible = next((reason for technique in techniques if (reason := technique.unless_named(situation))), None)
    changes: dict[str, Any] = {}
    options = situation.options
    if impossible is None:
        for technique in techniques:
            changes |= technique.switch(situation)
        try:
            options = replace(options, **changes)
        except UsageError as error:
            impossible = str(error)
    return Variant(
        name=name, title=" and ".join(technique.title for technique in techniques),
        what="; ".join(technique.what for technique in techniques), options=options, changes=changes,
        keeps_result=all(technique.keeps_result for technique in techniques), impossible=impossible,
    )  # fmt: skip
