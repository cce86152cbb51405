"""Errors that a user can act on: what failed, which value, what to do next. Each carries its exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class OpanatomyError(Exception):
    """A run that failed; the message is one line for the user."""

    exit_code = 1


class UsageError(OpanatomyError):
    """An invalid argument."""

    exit_code = 2


class ModelError(OpanatomyError):
    """A model that cannot be found, read, built or fed."""


class CaptureError(OpanatomyError):
    """A step that could not be run or recorded."""


class OutOfMemory(CaptureError):
    """A step that does not fit the device's memory."""


class EstimateError(OpanatomyError):
    """A step that could not be followed without running it."""


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
    """A check failed, a `--fail-if` condition was true, or `--for` does not fit; `reasons` has a line for each."""

    exit_code = 3

    def __init__(self, *reasons: str) -> None:
        super().__init__("\n".join(reasons))
        self.reasons = reasons


@contextmanager
def harmless(report: Callable[[str], object]) -> Iterator[None]:
    """Have an error inside end what is done beside a user's program, not the program; `report` gets the reason."""
    try:
        yield
    except Exception as error:
        report(str(error) if isinstance(error, OpanatomyError) else f"{type(error).__name__}: {error}")
