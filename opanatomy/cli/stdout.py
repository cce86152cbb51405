"""Reserve stdout for the report: output of a model, a library or a child process goes to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Final, TextIO

from opanatomy.errors import OutputError

_OUT, _ERR = 1, 2


#: Replacements of the report's marks if the terminal's encoding lacks them.
_PLAIN = str.maketrans("─━█▏▎▍▌▋▊▉■…≥", "--#.......#~>")


#: Descriptors of the real stdout; in a forked child, which may outlive the run, they lead nowhere.
_KEPT: Final[set[int]] = set()


@contextmanager
def kept_for_the_report() -> Iterator[TextIO]:
    """Give the real stdout; meanwhile `sys.stdout` and file descriptor 1, which children inherit, lead to stderr.

    Streams that the code in between closes or replaces (`sys.stdout` and `sys.stderr`) are restored afterwards.
    """
    errors = sys.stderr
    with _printed_to_stderr() as out:
        try:
            with _second_stream(errors) as printed, redirect_stdout(printed):
                yield out
        finally:
            sys.stderr = errors
            _mend_stderr()


@contextmanager
def _second_stream(stream: TextIO) -> Iterator[TextIO]:
    """Give a stream to where `stream` leads; closing it closes no more than that."""
    try:
        second = open(  # noqa: SIM115  # the model's code may close it too
            stream.fileno(), "w", buffering=1, encoding=stream.encoding, errors=stream.errors, closefd=False
        )
    except (OSError, ValueError, AttributeError):  # not a file
        yield stream
        return
    try:
        yield second
    finally:
        with suppress(OSError, ValueError):
            second.close()


def say(text: str) -> None:
    """Write a line on stderr, whatever a model did to `sys.stderr`; nothing if nobody reads it."""
    _mend_stderr()
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def _mend_stderr() -> None:
    if getattr(sys.stderr, "closed", sys.stderr is None):
        with suppress(OSError):
            sys.stderr = open(_ERR, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


@contextmanager
def _printed_to_stderr() -> Iterator[TextIO]:
    stream = sys.stdout
    _flush(stream)
    try:
        saved = os.dup(_OUT)
    except OSError:  # there is no descriptor to redirect
        yield stream
        return
    own = False
    with suppress(OSError, ValueError, AttributeError):
        own = stream.fileno() == _OUT
    out = _copy_of(stream, os.dup(saved)) if own else stream
    kept = {saved, out.fileno()} if own else {saved}
    _KEPT.update(kept)
    try:
        point_at_stderr()
        yield out
    finally:
        _flush(stream, sys.__stdout__)
        import ctypes

        with suppress(OSError, AttributeError, TypeError):
            ctypes.CDLL(None).fflush(None)  # C libraries have buffers for stdout too
        with suppress(OSError, ValueError):
            # A reader that has gone was reported on writing to it; flushing the rest must not fail again.
            out.close() if own else out.flush()
        _KEPT.difference_update(kept)
        os.dup2(saved, _OUT)
        os.close(saved)


def _let_go() -> None:
    """Close the real stdout in a forked child: its reader waits until the last process that can write to it ends."""
    if _KEPT:
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for number in _KEPT:
                os.dup2(nowhere, number, inheritable=False)
            os.close(nowhere)


def point_at_stderr() -> None:
    """Point descriptor 1 to stderr, or to nowhere if there is none."""
    try:
        os.dup2(_ERR, _OUT)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, _OUT)
        os.close(nowhere)


def _flush(*streams: TextIO | None) -> None:
    for stream in streams:
        with suppress(OSError, ValueError):
            if stream is not None:
                stream.flush()


def check_open(stream: TextIO) -> None:
    """Raise if the caller closed stdout, which leads nowhere now."""
    if getattr(stream, "name", None) == os.devnull:
        raise OutputError("cannot write the report to stdout: it is closed - leave it open or use -o FILE")


def write_out(text: str | bytes, *, machine_readable: bool, stream: TextIO | None = None) -> None:
    """Write `text` on stdout: UTF-8 for machines, the terminal's encoding for people; bytes unchanged."""
    out = sys.stdout if stream is None else stream
    check_open(out)
    if isinstance(text, str):
        text = _encodable(text, out, machine_readable=machine_readable)
    elif out.isatty():
        raise OutputError("a terminal cannot show a PNG picture - use -o FILE.png")
    try:
        if isinstance(text, bytes):
            out.buffer.write(text)
        else:
            out.write(text)
        out.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # The rest of the buffer must not fail a second time when Python flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        raise OutputError(
            f"cannot write the report to stdout: {error.strerror} - free some space or use -o FILE"
        ) from error


def _encodable(text: str, out: TextIO, *, machine_readable: bool) -> str:
    """Return the text with characters that the stream can encode; for machines, switch the stream to encode all."""
    reconfigure = getattr(out, "reconfigure", None)
    encoding = out.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        if machine_readable and reconfigure is not None:
            reconfigure(encoding="utf-8", errors="backslashreplace")
        else:
            return text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
    return text


def columns_of(stream: TextIO) -> int:
    """Return the width of the terminal that `stream` is, `COLUMNS` first; else 80."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return 80


def _copy_of(stream: TextIO, descriptor: int) -> TextIO:
    """Return a stream to `descriptor` with the encoding and name of `stream`."""
    name = getattr(stream, "name", None)
    if name == os.devnull:  # the caller closed it, and the replacement is known by its name
        os.close(descriptor)
        return open(os.devnull, "w", encoding="utf-8")
    return open(descriptor, "w", encoding=stream.encoding, errors=stream.errors)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
