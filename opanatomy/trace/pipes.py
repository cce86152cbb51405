"""A trace that comes through a pipe -> a file of it: it can be read once only, an analysis reads twice."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO, Final

from opanatomy.errors import OpanatomyError, TraceError
from opanatomy.files.outputs import temporary
from opanatomy.files.remote import Address

STDIN: Final = "-"
_CHUNK: Final = 1 << 20
_EXAMPLE: Final = "pipe one into it: zcat trace.json.gz | opanatomy analyze -"
#: What a trace begins with: an object, an array, gzip, zip; white space and a byte order mark may stand before.
_BEGINNINGS: Final = (b"{", b"[", b"\x1f\x8b", b"PK")


@contextmanager
def spooled(paths: Sequence[Path | Address]) -> Iterator[list[Path | Address]]:
    """The paths, pipes and `-` (stdin) among them as files of what came through, which are gone afterwards.

    Raises `TraceError` where nothing comes, or what is no trace, or where it is a device.
    """
    with ExitStack() as stack:
        files: list[Path | Address] = []
        for number, path in enumerate(paths, 1):
            if isinstance(path, Address) or not is_stream(path):
                files.append(path)
            else:
                files.append(stack.enter_context(_spooled(path, number)))
        yield files


@contextmanager
def _spooled(path: Path, number: int) -> Iterator[Path]:
    name = "stdin" if str(path) in (STDIN, "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0") else str(path)
    called = "stdin" if name == "stdin" else path.name if path.suffix else f"pipe {number}"
    with temporary(called, "the trace that comes through a pipe") as file, _opened(path, name) as source:
        _check_kind(name, os.fstat(source.fileno()), source.isatty())
        _copy(source, file, name)
        try:
            yield file
        except OpanatomyError as error:  # the user knows no such file
            text = str(error).replace(f"opanatomy analyze {file}", f"opanatomy analyze {path}").replace(str(file), name)
            if text == str(error):
                raise
            raise type(error)(text) from error


def _opened(path: Path, name: str) -> nullcontext[BinaryIO] | BinaryIO:
    if str(path) == STDIN:
        buffer = getattr(sys.stdin, "buffer", None)
        if buffer is None:
            raise TraceError(f"cannot read {name}: it is closed - give a trace, or {_EXAMPLE}")
        return nullcontext(buffer)
    try:
        return path.open("rb")
    except OSError as error:
        raise TraceError(f"cannot read {name}: {error.strerror or error} - {_EXAMPLE}") from error


def _check_kind(name: str, status: os.stat_result, terminal: bool) -> None:
    if terminal:
        raise TraceError(f"cannot read a trace from {name}: it is a terminal - {_EXAMPLE}")
    nothing = os.path.samestat(status, os.stat(os.devnull))
    if stat.S_ISBLK(status.st_mode) or (stat.S_ISCHR(status.st_mode) and not nothing):
        raise TraceError(f"cannot read a trace from {name}: it is a device - {_EXAMPLE}")


def _copy(source: BinaryIO, file: Path, name: str) -> None:
    limit = shutil.disk_usage(file.parent).free // 2
    size = 0
    with file.open("wb") as target:
        while chunk := _read(source, name):
            if not size and not chunk.removeprefix(b"\xef\xbb\xbf").lstrip()[:2].startswith(_BEGINNINGS):
                raise TraceError(f"{name} is not a trace: it starts with {chunk[:8]!r}, not with '{{' or '['")
            size += len(chunk)
            if size > limit:
                raise TraceError(
                    f"cannot keep {name}: more than {limit / 1e6:.0f} MB came through, half of what is free in"
                    f" {file.parent.parent} - free some space, set TMPDIR or give a file"
                )
            target.write(chunk)
    if not size:
        raise TraceError(f"cannot read a trace from {name}: it is empty - {_EXAMPLE}")


def _read(source: BinaryIO, name: str) -> bytes:
    try:
        return source.read(_CHUNK)
    except OSError as error:
        raise TraceError(f"cannot read {name}: {error.strerror or error}") from error


def is_stream(path: Path) -> bool:
    """Whether it is stdin, or a pipe, socket or device."""
    if str(path) == STDIN:
        return not os.path.exists(path)
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
