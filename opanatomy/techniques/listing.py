"""The techniques as a list: what each does, what switches it on, and why it cannot run here."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Final

from opanatomy.run_options import RunOptions
from opanatomy.techniques import jobs
from opanatomy.techniques.entries import TECHNIQUE, Situation
from opanatomy.techniques.variants import variants_of
from opanatomy.techniques.workers import run_job

#: Cells of the longest name.
_NAME_WIDTH: Final = max(map(len, TECHNIQUE))


def listing_of(options: RunOptions, width: int, *, only: Sequence[str] = (), skip: Sequence[str] = ()) -> str:
    """Of each technique its name and option, and below what it does, in lines of at most `width` cells."""
    blocks = []
    for variant in variants_of(situation_of(options), only=only, skip=skip)[1:]:
        does = f"cannot run here: {variant.impossible}" if variant.impossible else variant.what
        name = f"{variant.name:<{_NAME_WIDTH}} {variant.option}".rstrip()
        lines = [name] if len(name) <= width else [variant.name, *wrap(variant.option, width, initial_indent="  ")]
        blocks.append("\n".join([*lines, *wrap(does, width, initial_indent="  ", subsequent_indent="  ")]) + "\n")
    return "".join(blocks)


def situation_of(options: RunOptions) -> Situation:
    """What techniques are switched on in; `JobFailed` where the model cannot be."""
    planned = run_job(jobs.planned, options)
    return Situation(
        options=options, batch=planned.batch, layers=planned.layers,
        freezable_layers=planned.freezable_layers, attention=planned.attention, on_cpu=planned.device == "cpu",
    )  # fmt: skip
