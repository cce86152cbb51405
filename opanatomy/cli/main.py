"""Parse the arguments, run the command, return the exit code; the one place that prints errors as a line on stderr."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from traceback import extract_tb, format_exception
from types import FrameType, TracebackType
from typing import Final

from msgspec import Struct, field

from opanatomy.capture.distributed.launched import launched
from opanatomy.cli.parser import ParserExit, make_parser
from opanatomy.cli.stdout import point_at_stderr, say
from opanatomy.cli.verbs import VERBS, verb_named
from opanatomy.errors import CaptureError, GateError, OpanatomyError, failed_import
from opanatomy.options import on_command_line


def attributed(message: str) -> str:
    """Return the message, with the number of the rank if it is not the first of several."""
    place = launched()
    return message if place is None or place.is_first else f"rank {place.rank}: {message}"


#: Added to the signal number for the exit code: 130 for Ctrl-C.
SIGNALLED = 128
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
_NO_MEMORY = "not enough memory - make the model or the trace smaller, or give the process more memory"
_WORD = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code. Without `argv` the process ends with it."""
    ends = argv is None
    # Streams that the caller closed are `None`, and the next file opened would get their number.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # until the end
    with _caught_signals() as caught:
        if ends:
            atexit.register(caught.leave)
        code = _run(argv, caught)
        if ends:
            gc.freeze()  # a search for cycles at exit would only take time
            caught.code = code
            caught.code = code = _close_stdout(code)
            # Torch takes a second to exit, and all output is written: an interrupt only hurries it.
            caught.before[signal.SIGINT] = lambda *_: os._exit(code)
    return code


def _run(argv: Sequence[str] | None, caught: _Caught) -> int:
    debug = False
    try:
        words = sys.argv[1:] if argv is None else argv
        # No words, and `help`, ask for the help.
        if not words:
            words = ["--help"]
        elif words[0] == "help":
            words = [*words[1:2], "--help"]
        # All verbs are needed for completion, and to complain of an unknown one; none for the help of the program.
        verb = words[0] if words[0] in VERBS else None
        if words[0] in ("--help", "-h", "--version"):
            verb = ""
        arguments = make_parser(verb).parse_args(words)
        debug = getattr(arguments, "debug", False)
        if getattr(arguments, "model", True):  # `techniques --list` alone runs nothing
            _require_libraries(arguments.verb)
        with on_command_line():
            verb_named(arguments.verb).run(arguments)
        caught.over = True
        return 0
    except ParserExit as error:
        if argv is not None:
            raise
        return error.code
    except BaseException as error:
        if debug and not isinstance(error, (KeyboardInterrupt, BrokenPipeError)):
            if argv is None:
                sys.excepthook = _show_traceback
            raise
        if isinstance(error, SystemExit) and caught.process != os.getpid():  # a child that the model's code forked
            return error.code if isinstance(error.code, int) else int(error.code is not None)
        return _report(error, caught.number)


#: Libraries that verbs need to run a model or to measure: those of the extra `capture`.
_NEEDED: Final = {
    **dict.fromkeys(("profile", "techniques", "estimate"), ("torch", "transformers")),
    "peaks": ("torch",),
}


def _require_libraries(verb: str) -> None:
    """Raise `CaptureError` if a library that the verb needs is not installed; reading reports needs none of them."""
    missing = [name for name in _NEEDED.get(verb, ()) if find_spec(name) is None]
    if missing:
        raise CaptureError(
            f"{verb} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed - pip"
            " install 'opanatomy[capture]' (analyze, compare and explain work without this extra)"
        )


def _close_stdout(code: int) -> int:
    """Return the exit code; later output, by handlers at exit and C libraries, is not in the report."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _let_go_of_stdout()
    except ValueError:  # the model's code closed it, and the report was written elsewhere
        point_at_stderr()
    except OSError as error:
        _let_go_of_stdout()
        _say_line(f"cannot write to stdout: {error.strerror} - free some space")
        code = code or OpanatomyError.exit_code
    with suppress(OSError, ValueError):
        if sys.stdout.fileno() == 1:
            point_at_stderr()
    return code


def _let_go_of_stdout() -> None:
    """Drop the buffer of stdout, which must not fail a second time when Python flushes at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(error: BaseException, number: int | None) -> int:
    """Report the error on stderr; return the exit code."""
    if isinstance(error, KeyboardInterrupt) or number is not None:
        # A library may have made an error of its own from the KeyboardInterrupt.
        number = number or signal.SIGINT
        place = launched()
        if place is not None and (not place.is_first or number != signal.SIGINT):
            return SIGNALLED + number  # its launcher sent the signal, or the first rank reports it
        about = f"; {str(error) or 'nothing was written'}" if isinstance(error, KeyboardInterrupt) else ""
        _say_line(_WORD.get(signal.Signals(number), "hung up") + about)
        return SIGNALLED + number
    if isinstance(error, BrokenPipeError):
        _let_go_of_stdout()  # the reader has gone (`| head`)
        return 0
    if isinstance(error, OpanatomyError):
        for reason in error.reasons if isinstance(error, GateError) else (str(error),):
            _say_line(attributed(reason))
        return error.exit_code
    if isinstance(error, SystemExit):
        _say_line(f"the model's code ended the program (SystemExit {error.code}) - remove its sys.exit()")
    elif _is_out_of_memory(error):
        _say_line(_NO_MEMORY)
    else:
        # The place in our code; the checkout may lie in a folder of any name.
        package = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
        frames = [(_absolute(frame.filename), frame.lineno) for frame in extract_tb(error.__traceback__)]
        ours = [(name.removeprefix(package), line) for name, line in frames if name.startswith(package)]
        where = f" ({ours[-1][0]}:{ours[-1][1]})" if ours else ""
        what = f"{type(error).__name__}: {error}{where}"
        bug = f"this is a bug: {what} - run again with --debug and report it"
        _say_line(attributed(failed_import(error) or bug))
    return OpanatomyError.exit_code


def _show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback that Python would print, without secrets."""
    from opanatomy.io.redact import mask_secrets

    with suppress(OSError):
        print(mask_secrets("".join(format_exception(kind, error, trace))), end="", file=sys.stderr, flush=True)


def _is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out; assume so if there is none left to check."""
    if isinstance(error, MemoryError):
        return True
    try:
        from opanatomy.records.memory import is_starved
    except (MemoryError, ImportError):
        return True
    return is_starved(error)


def _say_line(message: str) -> None:
    """Print one line on stderr, whatever characters a file name in it contains."""
    try:
        from opanatomy.io.redact import mask_secrets

        message = mask_secrets(message)
    except (MemoryError, ImportError):
        message = _NO_MEMORY
    line = "".join(character if character.isprintable() else " " for character in message)
    say(f"opanatomy: {line}")


def _absolute(name: str) -> str:
    """Return the absolute name, or the name unchanged if the current folder is gone."""
    try:
        return os.path.abspath(name)
    except OSError:
        return name


class _Caught(Struct):
    """The previous signal handlers, and the signal received."""

    before: dict[int, object]
    number: int | None = None
    #: Whether all work and output is done.
    over: bool = False
    code: int | None = None
    process: int = field(default_factory=os.getpid)

    def stop(self, number: int, _frame: FrameType | None) -> None:
        """Raise in the main thread to unwind, so that no half-written file remains."""
        if not self.over:
            self.number = number
            raise KeyboardInterrupt

    def leave(self) -> None:
        """Preserve the exit code in the last exit handler, whatever an interrupted Python makes of it.

        Without torch the process ends at once: finalizing the interpreter takes as long as importing numpy. So does a
        rank: gloo threads that still reference tensors abort an interpreter during finalization.
        """
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        if self.number is not None or (
            self.code is not None and ("torch" not in sys.modules or launched() is not None)
        ):
            os._exit(SIGNALLED + (self.number or 0) if self.code is None else self.code)
        if "triton._C.libtriton" in sys.modules:
            # Its nanobind takes what `gc.freeze` keeps for leaks, and lists them.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


#: Instances with handlers installed.
_PRESENT: Final[list[_Caught]] = []


def _as_any_process() -> None:
    """Restore default signals in a forked child (a pool's or data loader's worker), so that its parent can end it."""
    for number in {number for caught in _PRESENT for number in caught.before}:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_as_any_process)


@contextmanager
def _caught_signals() -> Iterator[_Caught]:
    """Make terminating signals unwind the process first; ignored signals (`nohup`) stay ignored."""
    caught = _Caught({})
    _PRESENT.append(caught)
    if threading.current_thread() is threading.main_thread():
        for number in (getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)):
            if signal.getsignal(number) is not signal.SIG_IGN:
                caught.before[number] = signal.signal(number, caught.stop)
    try:
        yield caught
    finally:
        _PRESENT.remove(caught)
        for number, handler in caught.before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # a handler that `signal.signal` gave


if __name__ == "__main__":
    sys.exit(main())
