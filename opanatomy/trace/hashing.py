"""The SHA-256 of a file, taken while it is read."""

from __future__ import annotations

import hashlib
from io import BufferedReader
from pathlib import Path
from typing import Final

_CHUNK: Final = 1 << 20


class HashedFile:
    """A file that is read once from its beginning to its end; what is read is hashed."""

    def __init__(self, raw: BufferedReader) -> None:
        self._raw = raw
        self._hash = hashlib.sha256()

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, none at the end."""
        chunk = self._raw.read(size)
        self._hash.update(chunk)
        return chunk

    def peek(self, size: int) -> bytes:
        """The next bytes, `size` of them where the file has that many; they are read again."""
        return self._raw.peek(size)[:size]

    def tell(self) -> int:
        """How many bytes are read."""
        return self._raw.tell()

    def hexdigest(self) -> str:
        """The SHA-256 of the whole file; what was not read yet is read now."""
        while self.read(_CHUNK):
            pass
        return self._hash.hexdigest()


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as raw:
        return HashedFile(raw).hexdigest()
