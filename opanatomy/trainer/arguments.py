"""What `TrainerCallback` is given, checked before anything runs: which steps, and where the results go."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from opanatomy.arguments import Name, kind_of, path_of
from opanatomy.errors import OutputError, UsageError
from opanatomy.files.addresses import check_no_address
from opanatomy.report import format_named, format_names, format_of

#: A trace of more steps than this is more than anybody reads, and than memory holds.
MANY_STEPS: Final = 1000
_EXAMPLE: Final = "give a range such as range(3, 6)"


def checked_steps(steps: object) -> range:
    """The steps of the training that are profiled, in one stretch; `UsageError` for what is none."""
    if isinstance(steps, (str, bytes)) or not isinstance(steps, Iterable):
        raise UsageError(f"TrainerCallback: steps is {kind_of(steps)} - {_EXAMPLE}")
    numbers = [_number(step) for step in islice(steps, MANY_STEPS + 1)]
    if not numbers:
        raise UsageError(f"TrainerCallback: steps={steps!r} has no step in it - {_EXAMPLE}")
    if len(numbers) > MANY_STEPS:
        raise UsageError(f"TrainerCallback: steps has more than {MANY_STEPS} steps - a few are enough: {_EXAMPLE}")
    for before, after in pairwise(numbers):
        if after != before + 1:
            raise UsageError(
                f"TrainerCallback: step {after} does not follow step {before}, and one trace is of steps in a row -"
                f" {_EXAMPLE}"
            )
    return range(numbers[0], numbers[-1] + 1)


def _number(step: Any) -> int:
    try:
        number = operator.index(step)
    except TypeError:
        number = None
    if number is None or isinstance(step, bool):
        raise UsageError(f"TrainerCallback: steps has {step!r} in it, which is not a whole number - {_EXAMPLE}")
    if number < 1:
        raise UsageError(f"TrainerCallback: steps has {number} in it, and a training begins with step 1 - {_EXAMPLE}")
    return number


class Output(Struct, frozen=True, kw_only=True):
    """Where the results go: the report, its format, and the trace next to it; `numbered` names count up."""

    report: Path
    trace: Path
    format: str
    numbered: bool


def check_output(output: Name | None) -> None:
    """Raise `UsageError` for an output that neither names a report nor a folder."""
    if output is None:
        return
    path = path_of("TrainerCallback: output", output)
    check_no_address("TrainerCallback: output", os.fspath(output))
    if not _is_folder(output):
        _format_of(path)


def output_of(output: Name | None, stem: str) -> Output:
    """The files of an output that was checked; a folder is made, and has names in it that begin with `stem`."""
    if output is None or _is_folder(output):
        folder = Path() if output is None else Path(output)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"cannot make the folder {folder}: {error.strerror or error} - choose another one"
            ) from error
        return Output(
            report=folder / f"{stem}.report.txt", trace=folder / f"{stem}.trace.json.gz", format="terminal",
            numbered=True,
        )  # fmt: skip
    report = Path(output)
    name = _format_of(report)
    stem = report.name[: -len(format_named(name).ending)]
    return Output(report=report, trace=report.with_name(f"{stem}.trace.json.gz"), format=name, numbered=False)


def _is_folder(output: Name) -> bool:
    return os.path.isdir(output) or os.fspath(output).endswith(("/", os.sep))


def _format_of(path: Path) -> str:
    try:
        name = format_of(path)
    except UsageError:
        name = None
    if name is None:
        endings = ", ".join(format_named(known).ending for known in format_names())
        raise UsageError(
            f"TrainerCallback: output {path}: no report ends like that - end the name in one of {endings}, or give a"
            " folder; the trace goes next to the report"
        )
    return name
