"""Files that are either whole or not there."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from opanatomy.errors import OutputError

#: What a trace of one step takes at most, by far.
NEEDED_BYTES = 64 << 20
#: How the names of what is being made begin.
_HIDDEN = ".opanatomy-"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_writable(path: Path, *, force: bool, needed_bytes: int = NEEDED_BYTES) -> None:
    """Raise `OutputError` if `path` cannot be written later: it exists, its folder is missing, read-only or full."""
    try:
        if path.is_dir():
            raise OutputError(f"cannot write {path}: it is a folder - give a file name")
        if _is_stream(path):
            return
        if path.exists() and not force:
            raise OutputError(f"cannot write {path}: it exists already - add --force or choose another name")
        partial = _partial(path)
        folder = partial.parent
        if not folder.is_dir():
            raise OutputError(f"cannot write {path}: the folder {folder} does not exist - create it first")
        partial.touch()
        partial.unlink()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        other = "name" if error.errno == errno.ENAMETOOLONG else "folder"
        raise OutputError(f"cannot write {path}: {error.strerror} - choose another {other}") from error
    if free < needed_bytes:
        raise OutputError(
            f"cannot write {path}: {free / 1e6:.1f} MB are free in {folder}, up to {needed_bytes / 1e6:.0f} MB are"
            " needed - free some space or choose another folder"
        )


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` that becomes `path` when the block ends well and vanishes when it does not.

    A link stays a link to the file that is written; a device or a pipe is written as it is.
    """
    if _is_stream(path):
        yield path
        return
    partial = _partial(path)
    try:
        yield partial
        os.replace(partial, os.path.realpath(path))
    except OSError as error:
        if not _is_about(error, partial):
            raise
        todo = "free some space or choose another folder" if error.errno in _FULL else "choose another folder"
        raise OutputError(f"cannot write {path}: {error.strerror or error} - {todo}") from error
    finally:
        with suppress(OSError):
            partial.unlink()


def same_file(one: Path, other: Path) -> bool:
    """Whether two names, of which none need exist, are of one regular file."""
    return os.path.realpath(one) == os.path.realpath(other) and not _is_stream(one)


def _is_stream(path: Path) -> bool:
    """Whether it is a device, pipe or socket, such as /dev/null or /dev/stdout."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _partial(path: Path) -> Path:
    target = Path(os.path.realpath(path))
    suffix = "".join(target.suffixes[-2:]) if target.name.endswith(".gz") else target.suffix
    return target.with_name(f"{_HIDDEN}{secrets.token_hex(4)}.partial{suffix}")


def _is_about(error: OSError, partial: Path) -> bool:
    """Whether `error` is of writing the file, and not of anything else that was done to make it."""
    if error.filename is None:
        return error.errno in (*_FULL, errno.EIO, errno.EROFS)
    name = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else ""
    return name.startswith(str(partial.parent / _HIDDEN)) or error.errno in _FULL
