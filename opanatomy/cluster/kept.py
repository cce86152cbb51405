"""Summaries that are kept: one Parquet file a trace, in a folder or at an address, whole or not at all."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.cluster.parquet import Kept, from_parquet, to_parquet
from opanatomy.cluster.stamps import Stamp, digest_of, stamp_of
from opanatomy.errors import TraceError, UsageError
from opanatomy.files.cache import cache_folder
from opanatomy.files.remote import Address, read_bytes, write_bytes
from opanatomy.option_values import as_asked
from opanatomy.records.rank_summary import RankSummary
from opanatomy.trace.sources import Source

#: What keeping summaries takes, and how to get it.
EXTRA: Final = "pip install 'opanatomy[cluster]'"


class KeptSummaries(Struct, frozen=True):
    """A folder (or address) of summaries, made by the code and the rules that `key` is a digest of."""

    folder: Path | Address
    key: str

    def stamp_of(self, source: Source) -> Stamp | None:
        """What the trace is like now; `None` where it cannot be known later whether it has changed."""
        return stamp_of(source)

    def load(self, source: Source) -> Kept | None:
        """The summary of a trace that has not changed since; `None` where there is none, or none that can be used."""
        now = stamp_of(source)
        kept = None if now is None else self._read(source)
        if now is None or kept is None or kept.key != self.key:
            return None
        if Stamp(kept.identity, kept.settled).vouches_for(now):
            return kept
        with suppress(OSError, TraceError):
            if kept.sha256 == digest_of(source) and stamp_of(source) == now:
                self._write(source, replace(kept, identity=now.identity, settled=now.settled))
                return kept
        return None

    def save(self, source: Source, summary: RankSummary, names: frozenset[str], before: Stamp) -> str | None:
        """Keep a summary; why that was not possible. One of a trace that is not as it was `before` is not kept."""
        after = stamp_of(source)
        sha256 = summary.anatomy.provenance.trace_sha256
        if after is None or after.identity != before.identity or sha256 is None:
            return None
        kept = Kept(
            key=self.key, identity=before.identity, settled=before.settled, sha256=sha256, names=names, summary=summary
        )
        return self._write(source, kept)

    def _read(self, source: Source) -> Kept | None:
        """What is in the file of a trace; one that is damaged, or of another program, counts as none."""
        try:
            data = read_bytes(self._file(source))
            return None if data is None else from_parquet(data)
        except Exception:  # of pyarrow, of a store, of whatever wrote such a file: the summary is made again
            return None

    def _write(self, source: Source, kept: Kept) -> str | None:
        try:
            data = to_parquet(kept)
            file = self._file(source)
            if isinstance(file, Address):
                write_bytes(file, data)
            else:
                _written(file, data)
        except Exception as error:  # of a store: keeping is for the next run, this one goes on
            return f"{getattr(error, 'strerror', None) or error} ({self.folder})"
        return None

    def _file(self, source: Source) -> Path | Address:
        """The file of a trace: its name for people, a digest of where it is and what it is called."""
        place = source.path.text if isinstance(source.path, Address) else os.path.abspath(source.path)
        identity = "\0".join((place, source.member or "", source.name))
        digest = hashlib.sha256(os.fsencode(identity)).hexdigest()[:20]
        name = re.sub(r"[^a-z0-9]+", "-", source.name.lower()).strip("-")[-48:]
        return self.folder / f"{name or 'trace'}-{digest}.parquet"


def _written(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        partial.write_bytes(data)
        os.replace(partial, file)
    finally:
        with suppress(OSError):
            partial.unlink()


def kept_summaries(folder: str | None, key: str) -> KeptSummaries | None:
    """The summaries in `folder`, without one those in the user's cache folder; `None` where none can be kept.

    `UsageError` where a folder is given and there is no pyarrow, or it cannot be one.
    """
    if not can_keep():
        if folder is None:
            return None
        raise UsageError(f"{_asked(folder)}: that needs pyarrow - {EXTRA}")
    if folder is None:
        cache = cache_folder("summaries")
        return None if cache is None else KeptSummaries(cache, key)
    if (address := Address.of(folder, f"{_asked(folder)}")) is not None:
        return KeptSummaries(address, key)
    path = Path(folder).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{_asked(folder)}: {error.strerror or error} - give a folder") from error
    return KeptSummaries(path, key)


def _asked(folder: str) -> str:
    return as_asked(f"--summaries {folder}", f"summaries={folder!r}")


def can_keep() -> bool:
    """Whether there is a pyarrow."""
    try:
        return find_spec("pyarrow") is not None
    except (ImportError, ValueError):
        return False
