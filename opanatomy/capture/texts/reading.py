"""The texts of a file: its lines, or a column of JSON Lines, CSV or Parquet."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

from msgspec import Struct

from opanatomy.capture.model.quiet import one_line
from opanatomy.capture.texts.sample import sample
from opanatomy.errors import UsageError
from opanatomy.files.addresses import check_no_address
from opanatomy.options import SAMPLE, TEXTS

#: No more texts are read than that: a run needs a few batches and how long texts are.
MAX_TEXTS: Final = 4096
#: What a column of texts is called, where a table has several columns of words.
_USUAL: Final = (
    "text", "sentence", "content", "comment", "review", "body", "document", "message", "question", "prompt", "article",
)  # fmt: skip
_JSON_LINES: Final = (".jsonl", ".ndjson", ".json")
_TABLES: Final = (".csv", ".tsv")
_PARQUET: Final = (".parquet", ".pq")

Row: TypeAlias = "dict[str, Any]"


class Texts(Struct, frozen=True, kw_only=True):
    """Texts that are not empty; `more` where there are more of them than were read."""

    file: str | None = None
    column: str | None = None
    texts: tuple[str, ...]
    more: bool = False


class _Source(Struct, frozen=True, kw_only=True):
    """A file as it was given; what is wrong with it is a `UsageError` that begins with the option."""

    path: Path
    column: str | None

    @property
    def form(self) -> str:
        """The ending that says what is in it, without that of compression."""
        return Path(self.path.name.removesuffix(".gz")).suffix.lower()

    def wrong(self, what: str) -> UsageError:
        """The error to raise for this file."""
        return UsageError(f"{TEXTS.flags[-1]} {self.path}: {what}")


def read_texts(asked: str) -> Texts:
    """The texts that `--texts` asks for: the embedded sample, or those of `FILE` or `FILE:COLUMN`."""
    if asked == SAMPLE:
        return Texts(texts=sample())
    source = _source_of(asked)
    try:
        column, texts = _texts_in(source)
        kept = tuple(islice((text for text in texts if text.strip()), MAX_TEXTS + 1))
    except UnicodeDecodeError as error:
        raise source.wrong("it is not UTF-8 text - give lines, JSON Lines, CSV or Parquet") from error
    except (OSError, EOFError, zlib.error) as error:
        raise source.wrong(f"cannot be read: {one_line(error)} - check the file") from error
    if not kept:
        raise source.wrong("it has no text in it - give a file with a text on each line")
    if any("\0" in text for text in kept):
        raise source.wrong("it is not text but binary - give lines, JSON Lines, CSV or Parquet")
    return Texts(file=source.path.name, column=column, texts=kept[:MAX_TEXTS], more=len(kept) > MAX_TEXTS)


def _source_of(asked: str) -> _Source:
    """The file, and the column after the last colon where what stands before it is a file."""
    check_no_address(TEXTS.flags[-1], asked)
    if Path(asked).expanduser().is_file():
        return _Source(path=Path(asked).expanduser(), column=None)
    name, colon, column = asked.rpartition(":")
    path = Path(name).expanduser()
    if colon and column and path.is_file():
        return _Source(path=path, column=column)
    wrong = "it is a folder" if Path(asked).expanduser().is_dir() else "no such file"
    raise UsageError(f"{TEXTS.flags[-1]} {asked}: {wrong} - give a file, FILE:COLUMN, or {SAMPLE}")


def _texts_in(source: _Source) -> tuple[str | None, Iterator[str]]:
    """The column that the texts are of, and the texts one after the other."""
    if source.form in _PARQUET:
        return _parquet(source)
    if source.form in _JSON_LINES:
        return _of_rows(source, lambda: _json_rows(source))
    if source.form in _TABLES:
        return _of_rows(source, lambda: _csv_rows(source))
    if source.column is not None:
        raise source.wrong(f"a file of lines has no column {source.column!r} - leave :{source.column} out")
    return None, _lines(source)


def _lines(source: _Source) -> Iterator[str]:
    with _opened(source) as file:
        for line in file:
            yield line.rstrip("\r\n")


def _opened(source: _Source) -> IO[str]:
    if source.path.name.endswith(".gz"):
        return gzip.open(source.path, "rt", encoding="utf-8-sig", newline="")
    return open(source.path, encoding="utf-8-sig", newline="")


def _of_rows(source: _Source, rows: Callable[[], Iterable[Row]]) -> tuple[str, Iterator[str]]:
    """The texts in a column of rows, the column chosen by the first of them."""
    first = list(islice(rows(), 100))
    columns: dict[str, bool] = {}
    for row in first:
        for name, value in row.items():
            columns[name] = columns.get(name, False) or (isinstance(value, str) and not _is_number(value))
    column = _column(source, columns) if first else ""
    return column, (value for row in rows() if isinstance(value := row.get(column), str))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _column(source: _Source, columns: dict[str, bool]) -> str:
    """The column that was given, the only one of words, or one with a usual name."""
    listed = ", ".join(columns)
    if source.column is not None:
        if source.column not in columns:
            raise source.wrong(f"it has no column {source.column!r} - it has {listed}")
        if not columns[source.column]:
            raise source.wrong(f"its column {source.column!r} holds no texts - it has {listed}")
        return source.column
    words = [name for name, holds_words in columns.items() if holds_words]
    usual = [name for wanted in _USUAL for name in words if name.lower() == wanted]
    if len(words) == 1 or usual:
        return usual[0] if usual else words[0]
    what = "no column of texts" if not words else "several columns of texts"
    raise source.wrong(f"it has {what} - give {source.path}:COLUMN, one of {listed}")


def _json_rows(source: _Source) -> Iterator[Row]:
    for number, line in enumerate(_lines(source), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise source.wrong(f"line {number} is not JSON ({one_line(error, 80)}) - give one object a line") from error
        if not isinstance(value, dict):
            raise source.wrong(f"line {number} is not a JSON object - give one object a line")
        yield value


def _csv_rows(source: _Source) -> Iterator[Row]:
    with _opened(source) as file:
        header = file.readline()
        file.seek(0)
        delimiter = max("\t;,", key=header.count)
        try:
            yield from (
                {str(key): value for key, value in row.items()} for row in csv.DictReader(file, delimiter=delimiter)
            )
        except csv.Error as error:
            raise source.wrong(f"it is not CSV ({one_line(error, 80)}) - check the file") from error


def _parquet(source: _Source) -> tuple[str, Iterator[str]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise source.wrong(
            "Parquet needs pyarrow, which is not installed - pip install pyarrow, or give lines, JSON Lines or CSV"
        ) from error
    try:
        file = pyarrow.parquet.ParquetFile(source.path)
        types = pyarrow.types
        columns = {
            field.name: bool(types.is_string(field.type) or types.is_large_string(field.type))
            for field in file.schema_arrow
        }
    except pyarrow.ArrowException as error:
        raise source.wrong(f"it is not Parquet ({one_line(error, 80)}) - check the file") from error
    column = _column(source, columns)
    batches = file.iter_batches(columns=[column], batch_size=1024)
    return column, (text for batch in batches for text in batch.column(0).to_pylist() if text is not None)
