"""The techniques as a list: what each does, what switches it on, and why it cannot run here."""

from __future__ import annotations

from collections.abc import Sequence

from opanatomy.options import RunOptions
from opanatomy.report.section import Column, Holds, Row, Section
from opanatomy.techniques import jobs
from opanatomy.techniques.entries import Situation
from opanatomy.techniques.variants import variants_of
from opanatomy.techniques.workers import run_job


def listing_of(options: RunOptions, *, only: Sequence[str] = (), skip: Sequence[str] = ()) -> Section:
    """One row a technique."""
    situation = situation_of(options)
    columns = (
        Column(header="technique", holds=Holds.NAMES),
        Column(header="option", holds=Holds.NAMES),
        Column(header="what it does", holds=Holds.NAMES),
    )
    rows = tuple(
        Row(
            cells=(
                variant.name,
                variant.option or "-",
                f"cannot run here: {variant.impossible}" if variant.impossible else variant.what,
            )
        )
        for variant in variants_of(situation, only=only, skip=skip)[1:]
    )
    return Section(name="techniques", title="Techniques", columns=columns, rows=rows)


def situation_of(options: RunOptions) -> Situation:
    """What techniques are switched on in; `JobFailed` where the model cannot be."""
    planned = run_job(jobs.planned, options)
    return Situation(
        options=options, batch=planned.batch, layers=planned.layers, attention=planned.attention,
        on_cpu=planned.device == "cpu",
    )  # fmt: skip
