"""Run `opanatomy techniques MODEL`: what each training technique changes, predicted, then measured."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

from opanatomy.errors import UsageError
from opanatomy.options import RUN, TECHNIQUES, RunOptions, as_flag, check_together

if TYPE_CHECKING:
    from opanatomy.cli.progress import Display
    from opanatomy.predict.experiment import Experiment, Settings

DESCRIPTION: Final = (
    "Run a model's training step once, predict what each technique would save of its time and memory, then measure it."
)
OPTIONS: Final = TECHNIQUES
#: The options that help shows first, by name.
MOST_USED: Final = (
    *("list", "only", "combine", "predict_only", "batch", "seq", "optimizer", "amp", "device"),
    *("folder", "resume", "output"),
)
EXAMPLES: Final = (
    ("what each technique would save, predicted, then measured", "opanatomy techniques gpt2 --batch 4"),
    (
        "two of them, and both together",
        "opanatomy techniques gpt2 --only amp,checkpointing --combine amp+checkpointing",
    ),
    ("all techniques and what they do; nothing is run", "opanatomy techniques --list"),
)


def run(arguments: argparse.Namespace) -> None:
    """Predict, measure, show; finished results are shown even if the run is interrupted."""
    from opanatomy.cli.output import destination, note, show, stem_of_model
    from opanatomy.cli.progress import Display
    from opanatomy.cli.stdout import kept_for_the_report
    from opanatomy.io.files import check_no_address
    from opanatomy.predict.experiment import Experiment, Store, folder_for
    from opanatomy.report.units import duration

    check_together(arguments, as_flag)
    if not arguments.model and not arguments.list:
        raise UsageError("techniques: no model - pass MODEL, or use --list to see all techniques")
    options, settings = run_options(arguments), _settings(arguments)
    check_no_address("MODEL", options.model)
    if arguments.list:
        _show_list(options if options.model else None, settings)
        return
    stem = stem_of_model(arguments.model)
    with kept_for_the_report() as stream, destination(arguments, stem=stem, stream=stream) as where:
        folder = folder_for(arguments.folder, stem, resume=arguments.resume)
        store = Store(folder, resume=arguments.resume)
        experiment = Experiment(options, settings, store, progress := Display())
        with store.open(), progress:
            experiment.predict()
        if not settings.predict_only:
            note(
                f"measuring takes about {duration(experiment.budget_ns())} (Ctrl-C ends it and keeps the results so"
                " far; --resume continues)"
            )
            _measure(experiment, progress)
        show(experiment.result(), where)
        note(f"traces and reports: {folder}")
        if experiment.interrupted:
            raise KeyboardInterrupt(f"the report covers what was measured - continue with --folder {folder} --resume")


def run_options(arguments: argparse.Namespace) -> RunOptions:
    """Return the options of the baseline from all parsed arguments; it trains with AdamW by default."""
    values = {option.name: getattr(arguments, option.name) for option in RUN if hasattr(arguments, option.name)}
    if values["optimizer"] is None and not values["inference"] and values["generate"] is None:
        values["optimizer"] = "adamw"
    return RunOptions(**{**values, "settings": tuple(arguments.settings)})


def _settings(arguments: argparse.Namespace) -> Settings:
    from opanatomy.cli.output import typed_command
    from opanatomy.predict.experiment import Settings

    return Settings(
        only=tuple(arguments.only),
        skip=tuple(arguments.skip),
        combine=tuple(arguments.combine),
        predict_only=arguments.predict_only,
        repetitions=arguments.repetitions,
        loss_steps=arguments.loss_steps,
        command=typed_command(),
    )


def _measure(experiment: Experiment, progress: Display) -> None:
    """Measure until it is done, or interrupted."""
    try:
        with progress:
            experiment.measure()
    except KeyboardInterrupt:
        experiment.interrupted = True


def _show_list(options: RunOptions | None, settings: Settings) -> None:
    from opanatomy.cli.stdout import columns_of, write_out
    from opanatomy.predict.techniques import listing_of

    width = columns_of(sys.stdout)
    text = listing_of(options, width, only=settings.only, skip=settings.skip)
    write_out(text, machine_readable=False)
