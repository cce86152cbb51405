"""Whether a trace is still what it was, without reading it.

A local file is the same while its size, its inode, and its times of modification and of change (which no program can
set) are; an object of a store by the identity or the time that the store gives it. A time says nothing of a file that
was read within moments of it: then the digest of the content decides, as it does where a stamp is another one.
"""

from __future__ import annotations

import os
import time
from typing import Final

from msgspec import Struct

from opanatomy.files.remote import Address, identity_of
from opanatomy.trace.hashing import sha256_of
from opanatomy.trace.sources import Source

#: Clocks of file systems tick, and differ from the machine's own, by less.
_MOMENT_NS: Final = 10 * 10**9


class Stamp(Struct, frozen=True):
    """What a trace was like at one time; only a `settled` one tells that nothing was changed since."""

    identity: str
    settled: bool

    def vouches_for(self, other: Stamp) -> bool:
        """Whether a trace with the stamp `other` is the one that had this stamp."""
        return self.settled and self.identity == other.identity


def stamp_of(source: Source) -> Stamp | None:
    """The stamp of a trace as it is now; `None` where it cannot be looked at."""
    now = time.time_ns()
    if isinstance(source.path, Address):
        return _of_address(source.path, now)
    try:
        status = os.stat(source.path)
    except OSError:
        return None
    changed = max(status.st_mtime_ns, status.st_ctime_ns)
    identity = (status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
    return Stamp("-".join(map(str, identity)), now - changed > _MOMENT_NS)


def _of_address(address: Address, now: int) -> Stamp | None:
    identity = identity_of(address)
    if identity is None:
        return None
    changed = identity.changed_ns
    return Stamp(identity.text, identity.by_content or (changed is not None and now - changed > _MOMENT_NS))


def digest_of(source: Source) -> str:
    """The SHA-256 of the trace as an analysis reads it."""
    with source.opened() as path:
        return sha256_of(path)
