"""Files that are either whole or not there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from opanatomy.errors import OutputError

#: What a trace of one step takes at most, by far.
NEEDED_BYTES = 64 << 20


def check_writable(path: Path, *, force: bool, needed_bytes: int = NEEDED_BYTES) -> None:
    """Raise `OutputError` if `path` cannot be written later: it exists, its folder is missing, read-only or full."""
    if path.is_dir():
        raise OutputError(f"cannot write {path}: it is a folder - give a file name")
    if path.exists() and not force:
        raise OutputError(f"cannot write {path}: it exists already - add --force or choose another name")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise OutputError(f"cannot write {path}: the folder {folder} does not exist - create it first")
    try:
        handle, probe = tempfile.mkstemp(prefix=".opanatomy-", dir=folder)
        os.close(handle)
        os.unlink(probe)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror} - choose another folder") from error
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise OutputError(
            f"cannot write {path}: {free / 1e6:.1f} MB are free in {folder}, up to {needed_bytes / 1e6:.0f} MB are"
            " needed - free some space or choose another folder"
        )


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` that becomes `path` when the block ends well and vanishes when it does not."""
    suffix = "".join(path.suffixes[-2:]) if path.name.endswith(".gz") else path.suffix
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial{suffix}")
    try:
        yield partial
        os.replace(partial, path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error} - is the disk full?") from error
    finally:
        with suppress(OSError):
            partial.unlink()
