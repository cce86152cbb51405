"""Locks on names, held by a process while it lives: hidden files `.opanatomy-NAME.claim` with `flock` on them."""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct, field

#: How the names of what is being made begin.
_HIDDEN: Final = ".opanatomy-"
#: `.opanatomy-NAME.claim` and `.opanatomy-NAME-HOST-RANDOM.partial`.
_OURS: Final = re.compile(r"\.opanatomy-([0-9a-f]{16})(?:\.claim|-([0-9a-f]{8})-\w+\.partial)")
_BUSY: Final = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
#: The open locks of this process; a forked child closes its copies, for a lock lives as long as any of them.
_OPEN: Final[set[int]] = set()


class Locked(Exception):
    """Another run that is alive has the lock."""


class Lock(Struct):
    """A lock on a name; not `held` where the file system knows no locks."""

    file: Path
    descriptor: int
    process: int = field(default_factory=os.getpid)

    @classmethod
    def of(cls, target: Path) -> Lock:
        """The lock on the name `target`; raises `Locked`, or `OSError` where its folder cannot be written."""
        file = _claim_file(target.parent, _digest(target.name))
        return cls(file, _locked(file))

    @property
    def held(self) -> bool:
        """Whether there is a lock at all."""
        return self.descriptor >= 0

    def is_ours(self) -> bool:
        """Whether this process took the lock, and not the one that it was forked from."""
        return self.process == os.getpid()

    def release(self) -> None:
        """Remove the file while it is locked, then release it."""
        if self.held:
            with suppress(OSError):
                self.file.unlink()
            _close(self.descriptor)
            self.descriptor = -1


def work_folder(target: Path) -> Path:
    """A fresh hidden folder next to `target`, to make it in."""
    prefix = f"{_HIDDEN}{_digest(target.name)}-{_host()}-"
    return Path(tempfile.mkdtemp(prefix=prefix, suffix=".partial", dir=target.parent))


def sweep(folder: Path, own: Lock) -> None:
    """Remove what killed runs of this host left in `folder`; nothing where no locks show which runs are alive.

    It comes before the work folder of `own` is made.
    """
    if not own.held:
        return
    left: dict[str, list[Path]] = {}
    with suppress(OSError):
        for entry in os.scandir(folder):
            if match := _OURS.fullmatch(entry.name):
                left.setdefault(match[1], []).extend([Path(entry.path)] if match[2] == _host() else [])
    for digest, partials in left.items():
        file = _claim_file(folder, digest)
        with suppress(OSError, Locked):
            lock = own if file == own.file else Lock(file, _locked(file))
            for partial in partials:
                shutil.rmtree(partial, ignore_errors=True)
            if lock is not own:
                lock.release()


def _locked(file: Path) -> int:
    """A descriptor of `file` with the lock on it, -1 where there are no locks; `Locked` where another has it."""
    while True:
        descriptor = _opened(file)
        try:
            held = _flock(descriptor)
        except OSError as error:
            if error.errno in _BUSY:
                os.close(descriptor)
                raise Locked from error
            held = False
        if not held:
            os.close(descriptor)
            with suppress(OSError):
                file.unlink()
            return -1
        if _is_still(file, descriptor):
            _OPEN.add(descriptor)
            return descriptor
        os.close(descriptor)


def _flock(descriptor: int) -> bool:
    """Lock without waiting; false on a system without such locks, `OSError` where it is locked or cannot be."""
    try:
        import fcntl
    except ImportError:  # Windows
        return False
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return True


def _opened(file: Path) -> int:
    """A descriptor of `file`, which any user of its folder may lock, whatever the umask of its owner."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:  # another user's, which can be locked all the same
        try:
            return os.open(file, os.O_RDONLY)
        except FileNotFoundError:
            pass
        raise
    with suppress(OSError, AttributeError):
        os.fchmod(descriptor, 0o644)
    return descriptor


def _is_still(file: Path, descriptor: int) -> bool:
    """Whether `file` is the one that was opened: who had it locked may have removed it since."""
    try:
        return os.path.samestat(os.stat(file), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _claim_file(folder: Path, digest: str) -> Path:
    return folder / f"{_HIDDEN}{digest}.claim"


def _digest(name: str) -> str:
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:16]


def _host() -> str:
    """What distinguishes this machine from others that share the folder."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def _close(descriptor: int) -> None:
    _OPEN.discard(descriptor)
    with suppress(OSError):
        os.close(descriptor)


def _close_all() -> None:
    for descriptor in list(_OPEN):
        _close(descriptor)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_all)
