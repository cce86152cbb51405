"""Make the runs of an experiment: the baseline and each requested lever, with its options, or why it cannot run."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from opanatomy.errors import UsageError
from opanatomy.levers import LEVERS, Context, Lever, option_text
from opanatomy.options import RunOptions, instead_of
from opanatomy.predict import workers
from opanatomy.predict.workers import run_job

#: The name of the baseline in tables and files.
BASELINE: Final = "baseline"
#: Levers that an experiment may pull.
TECHNIQUE: Final[dict[str, Lever]] = {lever.name: lever for lever in LEVERS if lever.in_experiments}
#: Joins the techniques of a combination.
AND = "+"


class Variant(Struct, frozen=True, kw_only=True):
    """One run: its options, or why it cannot run (`blocked_because`)."""

    name: str
    title: str
    what: str
    options: RunOptions
    changes: dict[str, Any] = field(default_factory=dict)
    keeps_result: bool = True
    blocked_because: str | None = None

    @property
    def option(self) -> str:
        """Return the option to type for it."""
        return option_text(self.changes)


def variants_of(
    context: Context, *, only: Sequence[str] = (), skip: Sequence[str] = (), combine: Sequence[str] = ()
) -> tuple[Variant, ...]:
    """Return the baseline, then the techniques; raise `UsageError` for unknown names, or for none left.

    A technique that the baseline already has, or that is meant for another device, is left out unless named.
    """
    chosen = _techniques(only, "--only") or list(TECHNIQUE.values())
    skipped = _techniques(skip, "--skip")
    baseline = baseline_of(context)
    singles = [
        _variant(technique.name, (technique,), context, baseline, named=bool(only))
        for technique in chosen
        if technique not in skipped
    ]
    if not singles and not combine:
        raise UsageError("--skip leaves out every technique to try - skip fewer, or select others with --only")
    kept = [variant for variant in singles if only or variant.blocked_because or variant.options != baseline.options]
    return (baseline, *kept, *(combination_of(text, context) for text in combine))


def baseline_of(context: Context) -> Variant:
    """Return the run that was given."""
    assert isinstance(context.run, RunOptions)
    return Variant(name=BASELINE, title="unchanged", what="the run as specified", options=context.run)


def combination_of(text: str, context: Context) -> Variant:
    """Return techniques together, `sdpa+amp-bf16`; raise `UsageError` for one that is unknown, or two that disagree."""
    _check_combination(text, context)
    techniques = tuple(_technique(name, "--combine") for name in text.split(AND))
    return _variant(text, techniques, context, baseline_of(context))


def _techniques(texts: Sequence[str], flag: str) -> list[Lever]:
    """Return the techniques named by an option; each text may contain several, separated by commas."""
    return [_technique(name, flag) for text in texts for name in text.split(",")]


def _technique(name: str, flag: str) -> Lever:
    known = TECHNIQUE.get(name.strip().lower())
    if known is None:
        raise UsageError(f"{flag} {name}: not a technique - {instead_of(name, TECHNIQUE)}")
    return known


def _check_combination(text: str, context: Context) -> None:
    """Raise `UsageError` unless two or more techniques are combined, none of which contradicts another."""
    values: dict[str, Any] = {}
    techniques = [_technique(name, "--combine") for name in text.split(AND)]
    if len({technique.name for technique in techniques}) < 2:
        raise UsageError(f"--combine {text}: needs two or more techniques - join them with {AND}")
    for technique in techniques:
        for option, value in technique.changes(context).items():
            if values.setdefault(option, value) != value:
                wanted = f"{option_text({option: values[option]})} and {option_text({option: value})}"
                raise UsageError(f"--combine {text}: {wanted} are mutually exclusive - leave one of them out")


def _variant(
    name: str, techniques: Sequence[Lever], context: Context, baseline: Variant, *, named: bool = True
) -> Variant:
    """Return the run with all of these switched on; `named` if the user named them."""
    reasons = [technique.why_not(context) for technique in techniques]
    if not any(reasons) and not named:
        reasons = [technique.skipped_by_default(context) for technique in techniques]
    blocked_because = next(filter(None, reasons), None)
    changes: dict[str, Any] = {}
    options = baseline.options
    if blocked_because is None:
        for technique in techniques:
            changes |= technique.changes(context)
        try:
            options = replace(options, **changes)
        except UsageError as error:
            blocked_because = str(error)
    return Variant(
        name=name,
        title=" and ".join(technique.title for technique in techniques),
        what="; ".join(technique.what for technique in techniques),
        options=options,
        changes=changes,
        keeps_result=all(technique.keeps_result for technique in techniques),
        blocked_because=blocked_because,
    )


# The list of techniques: what each does, its option, and why it cannot run here.


#: Cells of the longest name.
_NAME_WIDTH: Final = max(map(len, TECHNIQUE))
#: What options are spelled for where no model is given.
_ANY_MODEL: Final = Context(run=RunOptions(), batch=8)


def listing_of(options: RunOptions | None, width: int, *, only: Sequence[str] = (), skip: Sequence[str] = ()) -> str:
    """Return each technique's name and option, then what it does, in lines of at most `width` cells.

    With `options` it says why a technique cannot run for their model; without them no model is made.
    """
    if options is None:
        skipped = _techniques(skip, "--skip")
        techniques = [each for each in _techniques(only, "--only") or TECHNIQUE.values() if each not in skipped]
        return "".join(_listed(each.name, each.option(_ANY_MODEL), each.what, width) for each in techniques)
    blocks = []
    for variant in variants_of(lever_context(options), only=only, skip=skip)[1:]:
        does = f"cannot run here: {variant.blocked_because}" if variant.blocked_because else variant.what
        blocks.append(_listed(variant.name, variant.option, does, width))
    return "".join(blocks)


def _listed(name: str, option: str, does: str, width: int) -> str:
    title = f"{name:<{_NAME_WIDTH}} {option}".rstrip()
    lines = [title] if len(title) <= width else [name, *wrap(option, width, initial_indent="  ")]
    return "\n".join([*lines, *wrap(does, width, initial_indent="  ", subsequent_indent="  ")]) + "\n"


def lever_context(options: RunOptions) -> Context:
    """Return what techniques apply to, found in a process; raise `JobFailed` if the model cannot be made."""
    return run_job(workers.lever_context, options)
