"""The bytes of a trace file, unpacked where it is gzip."""

from __future__ import annotations

from typing import Any, Final, Protocol

from opanatomy.trace.hashing import HashedFile

#: The damage that leaves what comes before it whole.
ENDS_EARLY: Final = "it ends early"
_MAGIC = b"\x1f\x8b"
#: What is unpacked at once is lost where it turns out to be damaged, so it is little.
_PACKED_CHUNK = 1 << 14


class Decompressor(Protocol):
    """A file object to read decompressed bytes from."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, none at the end."""
        ...


class Gunzip:
    """Decompressed bytes of a gzip file; what comes before damage is given before the damage is raised."""

    def __init__(self, raw: Decompressor) -> None:
        self._raw = raw
        self._member = _new_member()
        self._damage: EOFError | None = None

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, none at the end; `EOFError` where the file is cut off or damaged."""
        chunks: list[bytes] = []
        missing = size
        while missing > 0 and self._damage is None:
            try:
                text = self._next(missing)
            except EOFError as error:
                self._damage = error
                break
            if text is None:
                break
            chunks.append(text)
            missing -= len(text)
        if self._damage and missing == size:
            raise self._damage
        return b"".join(chunks)

    def _next(self, size: int) -> bytes | None:
        """Some text, maybe none yet; `None` at the end of the last member."""
        packed = self._member.unconsumed_tail
        if self._member.eof:
            packed = self._member.unused_data
            if len(packed) < len(_MAGIC):
                packed += self._raw.read(_PACKED_CHUNK)
            if packed[:2] != _MAGIC:
                return None
            self._member = _new_member()
        elif not packed:
            packed = self._raw.read(_PACKED_CHUNK)
            if not packed:
                raise EOFError(ENDS_EARLY)
        return self._decompress(packed, size)

    def _decompress(self, packed: bytes, size: int) -> bytes:
        from isal import isal_zlib

        try:
            text: bytes = self._member.decompress(packed, size)
        except isal_zlib.error as error:  # type: ignore[misc]  # the stub calls it a value
            raise EOFError(str(error)) from error
        return text


def _new_member() -> Any:
    from isal import isal_zlib

    return isal_zlib.decompressobj(31)


def open_text(raw: HashedFile) -> Decompressor:
    """A reader of the text in `raw`, gzip or plain."""
    return Gunzip(raw) if raw.peek(len(_MAGIC)) == _MAGIC else raw
