"""The Trainer that calls a callback: found by its frame, to log through it and to learn of its errors.

transformers gives a callback the state and the control of a training, not the Trainer; only that has `log()`, which
reaches the loggers and the history alike, and no event reports an error.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any, Final

import transformers

#: What runs an epoch, in transformers 5. Before there was no such method; these run what takes time in a step.
_EPOCH: Final = "_run_epoch"
_IN_STEP: Final = ("training_step", "_maybe_log_save_evaluate")


def calling_trainer(callback: object) -> Any:
    """The Trainer that has called this callback; `None` where something else has."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, transformers.Trainer):
            return owner if any(other is callback for other in owner.callback_handler.callbacks) else None
        frame = frame.f_back
    return None


class Guard:
    """Reports an error that ends a training, before the caller of the training sees it."""

    def __init__(self, trainer: Any, failed: Callable[[BaseException], None]) -> None:
        self._trainer, self._failed = trainer, failed
        self._stack = ExitStack()
        self._has_epochs = hasattr(trainer, _EPOCH)

    def epoch_begins(self) -> None:
        """The Trainer is about to run an epoch: the method that does is another one until it is called."""
        if self._has_epochs:
            self._wrap(_EPOCH, once=True)

    def step_begins(self) -> None:
        """A step that is recorded begins."""
        if not self._has_epochs:
            self.release()
            for name in _IN_STEP:
                self._wrap(name, once=False)

    def release(self) -> None:
        """Put the Trainer's methods back."""
        self._stack.close()

    def _wrap(self, name: str, *, once: bool) -> None:
        trainer, original = self._trainer, getattr(self._trainer, name, None)
        if original is None:
            return
        before = vars(trainer).get(name)

        @functools.wraps(original)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if once:
                put_back()
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                self._failed(error)
                raise

        def put_back() -> None:
            if vars(trainer).get(name) is not guarded:
                return
            if before is None:
                delattr(trainer, name)
            else:
                setattr(trainer, name, before)

        setattr(trainer, name, guarded)
        self._stack.callback(put_back)
