"""Read reports given in place of a trace, recognized by content under any name."""

from __future__ import annotations

import gzip
import os
import re
import shlex
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from opanatomy.errors import OpanatomyError
from opanatomy.io.redact import Redactor, redacted
from opanatomy.options import as_asked
from opanatomy.records.anatomy import Anatomy, Measured
from opanatomy.records.comparison import Comparison
from opanatomy.records.experiment import Techniques
from opanatomy.records.patterns import regex
from opanatomy.records.reports import Report
from opanatomy.report.formats.json import read_report

#: The keys of the document are searched for in this much text at its beginning.
_HEAD_BYTES: Final = 1 << 16
#: The chunk to unpack at once; it is lost if it turns out to be damaged.
_PACKED_CHUNK: Final = 1 << 9
#: As in a trace: text packed better than this, beyond the first megabytes, is a bomb.
_PACKED_MOST: Final = 200
_PACKED_FROM: Final = 16 << 20
_GZIP: Final = b"\x1f\x8b"
_UTF8_MARK: Final = b"\xef\xbb\xbf"
#: Written by Windows' shells.
_UTF16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
_TOKEN: Final = regex(rb'("(?:[^"\\]|\\.)*(?:"|\Z))(\s*:)?|[{}\[\]]', re.DOTALL)

_EVENTS: Final = "traceEvents"


class _Kind(Struct, frozen=True):
    """A kind of our documents: its keys, the mandatory ones, and why it cannot be shown if it is not a report."""

    keys: frozenset[str]
    sure: tuple[str, ...]
    is_report: bool = False
    refusal: str = ""


#: Tables in reports of schema 1 and 2.
_OLDER: Final = ("classes", "ratios", "operators", "kernels", "modules", "breakdown")
_KINDS: Final = (
    _Kind(frozenset((*Anatomy.__struct_fields__, *_OLDER, "kind")), ("schema", "provenance"), is_report=True),
    _Kind(frozenset((*Comparison.__struct_fields__, "comparison_schema", "kind")), ("sides",), is_report=True),
    _Kind(frozenset((*Techniques.__struct_fields__, "kind")), ("schema", "rows"), is_report=True),
    # Printed by `peaks -f json`, and kept for later runs.
    _Kind(
        frozenset(
            (
                "device",
                "device_kind",
                "device_memory_bytes",
                "driver",
                "host_threads",
                "bandwidth",
                "data_sheet",
                *Measured.__struct_fields__,
            )
        ),
        ("schema", "peaks"),
        refusal="this file has measured peaks, not a report - pass a file written by `opanatomy profile ... -f json`",
    ),
)


def report_in(path: Path) -> Anatomy | None:
    """Read the report of one run like `document_in`; raise `OpanatomyError` for a report of several."""
    document = document_in(path)
    if document is None or isinstance(document, Anatomy):
        return document
    again = as_asked(f"opanatomy analyze {shlex.quote(str(path))}", "opanatomy.read")
    of_one = "the report or trace of one run"
    if isinstance(document, Techniques):
        of_one = "the report of one run, NAME.report.json in the folder of the experiment"
    raise OpanatomyError(
        f"{path}: this is {kind_in_words(document)} and covers several runs - pass {of_one}; to show it again, use"
        f" {again}"
    )


def kind_in_words(document: Report) -> str:
    """Return the kind of saved report in words."""
    if isinstance(document, Anatomy):
        return "a report"
    return "a saved comparison" if isinstance(document, Comparison) else "a report of techniques"


def document_in(path: Path) -> Report | None:
    """Read our JSON report of a run, a comparison or techniques, compressed or not; return `None` for other files.

    A trace is recognized by its first bytes and not read further. Also returns `None` for a folder, a pipe or an
    unreadable file, which the trace reader reports. Raises `OpanatomyError` for a damaged report, another schema, and
    measured peaks.
    """
    try:
        if not os.path.isfile(path):
            return None
        kind = _kind_of(_keys(_head(path)))
        if kind is None:
            return None
        text = _text(path)
    except (OSError, ValueError) as error:
        if isinstance(error, gzip.BadGzipFile):
            raise _damaged(path, str(error)) from error
        return None
    except (EOFError, zlib.error) as error:
        raise _damaged(path, str(error)) from error
    return _read(path, text, kind, certain=kind.sure[-1] in _keys(text[:_HEAD_BYTES]))


def _read(path: Path, text: bytes, kind: _Kind, *, certain: bool) -> Report | None:
    """Return the document; `certain` if its beginning contains the kind's key."""
    try:
        keys = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if certain:
            raise _damaged(path, str(error)) from error
        return None
    if _EVENTS in keys or not keys.keys() >= set(kind.sure):
        return None
    if not kind.is_report:
        raise OpanatomyError(f"{path}: {kind.refusal}")
    try:
        return redacted(read_report(text), Redactor())
    except OpanatomyError as error:
        raise OpanatomyError(f"{path}: {error}") from error


def _damaged(path: Path, what: str) -> OpanatomyError:
    return OpanatomyError(f"cannot read the report {path}: it is truncated or damaged ({what}) - create it again")


def _kind_of(keys: list[str]) -> _Kind | None:
    """Return the kind of document with most of these keys; `None` for unknown keys, or a trace's."""
    if not keys or _EVENTS in keys:
        return None
    kind = max(_KINDS, key=lambda kind: len(kind.keys.intersection(keys)))
    return kind if 2 * len(kind.keys.intersection(keys)) > len(keys) else None


def _keys(text: bytes) -> list[str]:
    """Return the keys of the outermost object in the beginning of a JSON text, up to the events of a trace."""
    if not text.lstrip().startswith(b"{"):
        return []
    keys, depth = [], 0
    for match in _TOKEN.finditer(text):
        token = match[0][:1]
        if token in b"{[":
            depth += 1
        elif token in b"}]":
            depth -= 1
        elif depth == 1 and match[2]:
            keys.append(match[1][1:-1].decode(errors="replace"))
            if keys[-1] == _EVENTS:
                break
    return keys


def _head(path: Path) -> bytes:
    """Return the beginning of a file's text, as far as it can be decompressed."""
    with path.open("rb") as file:
        raw = file.read(_HEAD_BYTES)
    if not raw.startswith(_GZIP):
        return _as_utf8(raw)
    unpacker, text = zlib.decompressobj(31), b""
    with suppress(zlib.error):
        for begin in range(0, len(raw), _PACKED_CHUNK):
            text += unpacker.decompress(unpacker.unconsumed_tail + raw[begin : begin + _PACKED_CHUNK], _HEAD_BYTES)
            if len(text) >= _HEAD_BYTES:
                break
    return _as_utf8(text)


def _text(path: Path) -> bytes:
    """Return all text of a file."""
    with path.open("rb") as file:
        if file.read(len(_GZIP)) != _GZIP:
            file.seek(0)
            return _as_utf8(file.read())
    packed = path.stat().st_size
    most = max(_PACKED_FROM, _PACKED_MOST * packed)
    with gzip.open(path) as unpacked:
        text = unpacked.read(most + 1)
    if len(text) > most:
        raise OpanatomyError(
            f"cannot read {path}: its {packed / 1e6:.2f} MB unpack to over {most / 1e6:.0f} MB, too much for a report"
            " - is it a gzip bomb?"
        )
    return _as_utf8(text)


def _as_utf8(text: bytes) -> bytes:
    """Return the text without its byte order mark, in UTF-8."""
    if text.startswith(_UTF16_MARKS):
        return text.decode("utf-16", "replace").encode()
    return text.removeprefix(_UTF8_MARK)
