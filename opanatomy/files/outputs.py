"""Files that are claimed at the start and published at the end: whole or not there, and never in place of another's.

A claim is a lock on a hidden file next to the target. The kernel lets go of it when the process ends, however it ends,
so the claim of a killed run holds nothing up; what such a run left in its folder is removed by the next claim there.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from opanatomy.errors import OutputError
from opanatomy.files.locks import Lock, Locked, sweep, work_folder

#: What a trace of one step takes at most, by far.
NEEDED_BYTES: Final = 64 << 20
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: What `link` fails with on a file system that has no hard links.
_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EACCES, errno.EXDEV)
#: The end of a name, after which a number goes.
_ENDING: Final = re.compile(
    r"((?:\.rank\d+)?(?:\.(?:trace|report|annotated))?(?:\.(?:json|csv|txt))?(?:\.gz)?|\.[^.]+)$"
)
#: Another run that cleans up holds a claim for an instant.
_TRIES, _PAUSE_SECONDS = 5, 0.05


class Claim(Struct, kw_only=True):
    """The sole right to write a file; `partial` is where it is made.

    `path` is the name as the user knows it, `target` the file: absolute, links followed. `numbered` names count up
    where they are taken.
    """

    path: Path
    target: Path
    partial: Path
    force: bool
    numbered: bool
    lock: Lock | None

    @property
    def alone(self) -> bool:
        """Whether another run that wants the same name learns of it at its start: not where there are no locks."""
        return self.lock is None or self.lock.held

    @contextmanager
    def written(self) -> Iterator[Path]:
        """The name to write to; when the block ends well that file is published, and `path` is what it is called."""
        try:
            yield self.partial
            self._publish()
        except OSError as error:
            if not self._is_about(error):
                raise
            raise _cannot_write(self.path, error) from error

    def release(self) -> None:
        """Release the name, and what was not published; a forked child leaves both to its parent."""
        if self.lock is not None and self.lock.is_ours():
            shutil.rmtree(self.partial.parent, ignore_errors=True)
            self.lock.release()

    def _publish(self) -> None:
        if self.lock is None or not self.lock.is_ours():
            return
        _flush_to_device(self.partial)
        if self.force:
            os.replace(self.partial, self.target)
            return
        wanted, number = self.path, 1
        while True:
            try:
                _move_exclusively(self.partial, self.target)
                break
            except FileExistsError:
                number += 1
                self.path = numbered_name(wanted, number)
                self.target = self.target.with_name(self.path.name)
        if number > 1 and not self.numbered:
            raise OutputError(
                f"cannot write {wanted}: it was made by something else during this run - what was to be written there"
                f" is in {self.target}"
            )

    def _is_about(self, error: OSError) -> bool:
        """Whether `error` is of writing the file, and not of anything else that was done to make it."""
        if error.filename is None:
            return error.errno in (*_FULL, errno.EIO, errno.EROFS)
        name = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else ""
        own = self.partial if self.lock is None else self.partial.parent
        return name.startswith((str(own), str(self.target))) or error.errno in _FULL


@contextmanager
def claimed(
    path: Path,
    *,
    force: bool = False,
    numbered: bool = False,
    needed_bytes: int = NEEDED_BYTES,
    forced_by: str = "add --force",
) -> Iterator[Claim]:
    """The claim of `path`, released at the end of the block; `OutputError` where it is taken or cannot be written.

    Taken is a name that exists, which `force` allows (`forced_by` says how to), or that a live run has claimed, which
    nothing does. A `numbered` name counts up to the next that is free. A device or a pipe is written as it is.
    """
    try:
        claim = _claim(path, force=force, numbered=numbered, needed_bytes=needed_bytes, forced_by=forced_by)
    except OSError as error:
        other = "name" if error.errno == errno.ENAMETOOLONG else "folder"
        raise OutputError(f"cannot write {path}: {error.strerror or error} - choose another {other}") from error
    try:
        yield claim
    finally:
        claim.release()


def numbered_name(path: Path, number: int) -> Path:
    """The `number`-th name like `path`: `gpt2.trace.json.gz`, `gpt2-2.trace.json.gz`."""
    if number == 1:
        return path
    ending = _ENDING.search(path.name)
    at = ending.start() if ending else len(path.name)
    return path.with_name(f"{path.name[:at]}-{number}{path.name[at:]}")


def name_of_rank(path: Path, rank: int) -> Path:
    """The name of a rank's own file, where each has one: `step.rank3.json.gz` for `step.json.gz`."""
    ending = _ENDING.search(path.name)
    at = ending.start() if ending else len(path.name)
    rest = re.sub(r"^\.rank\d+", "", path.name[at:])
    return path.with_name(f"{path.name[:at]}.rank{rank}{rest}")


def same_file(first: Path, second: Path) -> bool:
    """Whether two names, of which none need exist, are of one regular file; not where the current folder is gone."""
    try:
        return os.path.realpath(first) == os.path.realpath(second) and not _is_stream(first)
    except OSError:
        return False


@contextmanager
def temporary(name: str, what: str) -> Iterator[Path]:
    """A name in a folder of the system's temporary one that is gone afterwards; `what` is what the file is for."""
    process = os.getpid()
    try:
        folder = tempfile.mkdtemp(prefix="opanatomy-")
    except OSError as error:
        raise OutputError(
            f"no temporary folder for {what}: {error.strerror or error} - set TMPDIR to one that can be written"
        ) from error
    try:
        yield Path(folder) / name
    except OSError as error:
        inside = isinstance(error.filename, str) and error.filename.startswith(folder)
        if not inside and not (error.filename is None and is_full(error)):
            raise
        raise OutputError(
            f"cannot write {what} into the temporary folder {Path(folder).parent}: {error.strerror or error} -"
            " free some space or set TMPDIR to another folder"
        ) from error
    finally:
        if os.getpid() == process:  # a forked child that ends leaves it to its parent
            shutil.rmtree(folder, ignore_errors=True)


def is_full(error: BaseException) -> bool:
    """Whether it says that there is no room: on the device, within a quota, or within a limit on files."""
    return isinstance(error, OSError) and error.errno in _FULL


def _claim(path: Path, *, force: bool, numbered: bool, needed_bytes: int, forced_by: str) -> Claim:
    if os.path.isdir(path):
        raise OutputError(f"cannot write {path}: it is a folder - give a file name")
    with suppress(FileNotFoundError):
        os.lstat(path)  # fails where no file can have such a name
    wanted = path
    target = Path(os.path.realpath(path))
    if _is_stream(path):
        return Claim(
            path=path, target=target, partial=Path(os.path.abspath(path)), force=force, numbered=False, lock=None
        )
    folder = target.parent
    if not folder.is_dir():
        raise OutputError(f"cannot write {path}: the folder {folder} does not exist - create it first")
    number = 1
    while (lock := _lock(path, target, force=force, numbered=numbered, forced_by=forced_by)) is None:
        number, force = number + 1, False  # of numbered names only the first is one to overwrite
        path = numbered_name(wanted, number)
        with suppress(FileNotFoundError):
            os.lstat(path)
        target = Path(os.path.realpath(path))
    try:
        _check_room(path, folder, needed_bytes)
        sweep(folder, lock)
        partial = work_folder(target) / target.name
    except BaseException:
        lock.release()
        raise
    return Claim(path=path, target=target, partial=partial, force=force, numbered=numbered, lock=lock)


def _lock(path: Path, target: Path, *, force: bool, numbered: bool, forced_by: str) -> Lock | None:
    """The lock on `target`; `None` for a `numbered` name that is taken, `OutputError` for another one."""
    lock = None
    for _ in range(1 if numbered else _TRIES):
        try:
            lock = Lock.of(target)
            break
        except Locked:
            time.sleep(0 if numbered else _PAUSE_SECONDS)
    if lock is None:
        if numbered:
            return None
        raise OutputError(f"cannot write {path}: another run is writing it - wait for that or choose another name")
    if force or not os.path.lexists(target):
        return lock
    lock.release()
    if numbered:
        return None
    raise OutputError(f"cannot write {path}: it exists already - {forced_by} or choose another name")


def _check_room(path: Path, folder: Path, needed_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise OutputError(
            f"cannot write {path}: {free / 1e6:.1f} MB are free in {folder}, up to {needed_bytes / 1e6:.0f} MB are"
            " needed - free some space or choose another folder"
        )


def _cannot_write(path: Path, error: OSError) -> OutputError:
    todo = "free some space or choose another folder" if error.errno in _FULL else "choose another folder"
    return OutputError(f"cannot write {path}: {error.strerror or error} - {todo}")


def _flush_to_device(path: Path) -> None:
    """A network file system or a quota may say only now that there is no room."""
    file = os.open(path, os.O_RDWR)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _move_exclusively(source: Path, target: Path) -> None:
    """Give `source` the name `target`, at once and whole; `FileExistsError` where that is taken."""
    try:
        os.link(source, target)
        with suppress(OSError):
            os.unlink(source)
        return
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        os.replace(source, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(target)
        raise


def _is_stream(path: Path) -> bool:
    """Whether it is a device, pipe or socket, such as /dev/null or /dev/stdout."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
