"""Errors that a user can fix: their messages say what failed, which value caused it and what to do next.

Each has an exit code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Final

_PACKAGE: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")


class OpanatomyError(Exception):
    """An error that you can fix: its message says what failed, which value caused it and what to do next."""

    exit_code = 1


class UsageError(OpanatomyError):
    """An invalid argument."""

    exit_code = 2


class ModelError(OpanatomyError):
    """A model that cannot be found, read, built, observed or called."""


class CaptureError(OpanatomyError):
    """A step that cannot be run or recorded."""


class OutOfMemory(CaptureError):
    """A step that does not fit into the device's memory."""


class EstimateError(OpanatomyError):
    """A step that cannot be predicted without running it."""


class SaidByRank(CaptureError):
    """The end of a run on several processes after one of them failed; without a message if that one has said why."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class TraceError(OpanatomyError):
    """A trace file that cannot be read."""


class OutputError(OpanatomyError):
    """A result that cannot be written."""


class GateError(OpanatomyError):
    """A failed check, a `fail_if` condition that was true or unknown, or a step that does not fit into `--for`.

    `reasons` has one line for each.
    """

    exit_code = 3

    def __init__(self, *reasons: str) -> None:
        super().__init__("\n".join(reasons))
        self.reasons = reasons


def failed_import(error: BaseException) -> str | None:
    """Return a line on a library that this package cannot import; `None` for any other error."""
    while isinstance(error, ImportError) and error.__cause__ is not None:  # of a module that imports lazily
        error = error.__cause__
    library = None
    for frame, _ in walk_tb(error.__traceback__):
        if os.path.abspath(frame.f_code.co_filename).startswith(_PACKAGE):
            library = None
        elif frame.f_code.co_name == "<module>":
            library = str(frame.f_globals.get("__name__")).partition(".")[0]
    what = f"{type(error).__name__}: {error}"
    return library and f"{library} cannot be imported: {what} - check it with python -c 'import {library}'"


@contextmanager
def harmless(report: Callable[[str], object]) -> Iterator[None]:
    """Have an error inside end what is done beside a user's program, not the program; `report` gets the reason."""
    try:
        yield
    except Exception as error:
        report(str(error) if isinstance(error, OpanatomyError) else f"{type(error).__name__}: {error}")
