"""Parse -> command -> exit code; the one place that turns an error into a line on stderr."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from traceback import extract_tb, format_exception
from types import FrameType, TracebackType

from opanatomy.commands.arguments import make_parser
from opanatomy.errors import OpanatomyError

#: A signal's exit code is this and its number: 130 for Ctrl-C.
SIGNALLED = 128
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
_NO_MEMORY = "not enough memory - make the model or the trace smaller, or give the process more memory"
_WORD = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    _open_closed_streams()
    arguments = make_parser().parse_args(argv)
    with _caught_signals() as caught:
        try:
            import_module(f"opanatomy.commands.{arguments.verb}").run(arguments)
            return 0
        except BaseException as error:
            if getattr(arguments, "debug", False) and not isinstance(error, (KeyboardInterrupt, BrokenPipeError)):
                if argv is None:
                    sys.excepthook = _show_traceback
                raise
            return _told(error, caught.number)
        finally:
            if argv is None:
                gc.freeze()  # The process ends: nothing of it is worth looking for cycles.
            if caught.number is not None and argv is None:
                # Taking down torch lasts a second; a second Ctrl-C in it would end in a traceback.
                caught.before[signal.SIGINT] = signal.SIG_IGN


def _told(error: BaseException, number: int | None) -> int:
    """Say on stderr what happened; the exit code."""
    if isinstance(error, KeyboardInterrupt) or number is not None:
        # A library may have made an error of its own of the KeyboardInterrupt.
        number = number or signal.SIGINT
        about = f"; {str(error) or 'nothing was written'}" if isinstance(error, KeyboardInterrupt) else ""
        _tell(_WORD.get(signal.Signals(number), "hung up") + about)
        return SIGNALLED + number
    if isinstance(error, BrokenPipeError):
        # The reader of our stdout has gone (`| head`); keep Python from complaining when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if isinstance(error, OpanatomyError):
        _tell(str(error))
        return error.exit_code
    if isinstance(error, SystemExit):
        _tell(f"the model's code ended the program (SystemExit {error.code}) - take sys.exit() out of it")
    elif _is_out_of_memory(error):
        _tell(_NO_MEMORY)
    else:
        _tell(f"this is a bug: {type(error).__name__}: {error}{_place(error)} - run again with --debug and report it")
    return OpanatomyError.exit_code


def _show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The traceback that Python would show, without secrets."""
    from opanatomy.privacy.texts import spoken

    with suppress(OSError):
        print(spoken("".join(format_exception(kind, error, trace))), end="", file=sys.stderr, flush=True)


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out; a library that is loaded then, or starts a thread, fails with an error of its own."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    words = ("can't spawn worker thread", "can't start new thread", "failed to map segment", "allocat", "out of memory")
    native = type(error).__name__ == "PanicException" or isinstance(error, (RuntimeError, ImportError))
    return native and any(word in str(error).lower() for word in words)


def _tell(message: str) -> None:
    """One line on stderr, whatever a file name in it is made of."""
    try:
        from opanatomy.privacy.texts import spoken

        message = spoken(message)
    except (MemoryError, ImportError):
        message = _NO_MEMORY
    line = "".join(character if character.isprintable() else " " for character in message)
    with suppress(OSError):
        print(f"opanatomy: {line}", file=sys.stderr, flush=True)


def _place(error: BaseException) -> str:
    """Where in our code `error` was raised; the checkout may lie in a folder of any name."""
    package = os.path.dirname(os.path.abspath(__file__)) + os.sep
    ours = [frame for frame in extract_tb(error.__traceback__) if os.path.abspath(frame.filename).startswith(package)]
    return f" ({os.path.abspath(ours[-1].filename).removeprefix(package)}:{ours[-1].lineno})" if ours else ""


@dataclass(slots=True)
class _Caught:
    """The handlers that signals had before, and the signal that came."""

    before: dict[int, object]
    number: int | None = None

    def stop(self, number: int, _frame: FrameType | None) -> None:
        """Unwind, so that nothing half-written stays behind."""
        self.number = number
        raise KeyboardInterrupt


@contextmanager
def _caught_signals() -> Iterator[_Caught]:
    """Signals that end a process unwind it first; those that are ignored (`nohup`) stay so."""
    caught = _Caught({})
    if threading.current_thread() is threading.main_thread():
        for number in (getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)):
            if signal.getsignal(number) is not signal.SIG_IGN:
                caught.before[number] = signal.signal(number, caught.stop)
    try:
        yield caught
    finally:
        for number, handler in caught.before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # a handler that `signal.signal` gave


def _open_closed_streams() -> None:
    """A stream that the caller closed is `None`, and the next file opened would get its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # until the end


if __name__ == "__main__":
    sys.exit(main())
