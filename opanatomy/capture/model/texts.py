"""Make the batches of a run on texts: token ids, attention masks and labels, without padding in the loss."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from math import exp
from pathlib import Path
from random import Random
from statistics import NormalDist, median_low
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.capture.batches import Shape, class_labels, takes_text
from opanatomy.capture.model.tokenizing import OfModel, Tokenized, tokenized
from opanatomy.capture.silence import one_line
from opanatomy.errors import UsageError
from opanatomy.io.files import check_no_address
from opanatomy.options import SAMPLE, TEXTS, RunOptions
from opanatomy.records.workload import TextBatch, TextObservations

if TYPE_CHECKING:
    import torch

# Group texts into batches and choose their length: all padded to one length, to the longest of each batch, by length.


#: The number of batches that are run, evenly spread over all.
RUN_BATCHES: Final = 8


class Batches(Struct, frozen=True, kw_only=True):
    """All batches as numbers of texts, the length of each, and which of them are run."""

    texts: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]
    run: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Return the tokens of all batches, padding included."""
        return sum(len(texts) * length for texts, length in zip(self.texts, self.lengths, strict=True))

    @property
    def longest(self) -> int:
        """Return the number of the batch that is padded to most."""
        return max(range(len(self.lengths)), key=self.lengths.__getitem__)

    @property
    def profiled(self) -> int:
        """Return the number of the run batch in the middle by length, the shorter of two."""
        ordered = sorted(self.run, key=self.lengths.__getitem__)
        return ordered[(len(ordered) - 1) // 2]


def batches_of(lengths: Sequence[int], size: int, padding: str, maximum: int, seed: int) -> Batches:
    """Return the full batches of `size` texts with these lengths; a remainder is dropped."""
    draw = Random(seed)
    draws = [draw.random() for _ in lengths]
    order = sorted(range(len(lengths)), key=draws.__getitem__)
    if padding == "grouped":
        order = _grouped(lengths, size, seed, order)
    elif padding == "sorted":
        order = sorted(order, key=lengths.__getitem__)[len(order) % size :]  # keep the longest
    texts = tuple(tuple(order[start : start + size]) for start in range(0, len(order) - size + 1, size))
    padded = tuple(maximum if padding == "max-length" else max(lengths[text] for text in batch) for batch in texts)
    # The batches to run are evenly spread over all by length, so that their mean step is that of all.
    by_length = sorted(range(len(padded)), key=padded.__getitem__)
    count = min(RUN_BATCHES, len(padded))
    run = sorted(by_length[(2 * index + 1) * len(padded) // (2 * count)] for index in range(count))
    return Batches(texts=texts, lengths=padded, run=tuple(run))


def _grouped(lengths: Sequence[int], size: int, seed: int, order: list[int]) -> list[int]:
    """Return the order of transformers' own sampler, or of its description if this release has moved it."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    try:
        from transformers.trainer_pt_utils import LengthGroupedSampler
    except ImportError:
        # A random order, sorted within runs of 50 batches (fewer if there would not be four), longest first.
        megabatch = size * max(min(len(lengths) // (size * 4), 50), 1)
        groups = [order[start : start + megabatch] for start in range(0, len(order), megabatch)]
        groups = [sorted(group, key=lengths.__getitem__, reverse=True) for group in groups]
        index = max(range(len(groups)), key=lambda number: lengths[groups[number][0]])
        groups[0][0], groups[index][0] = groups[index][0], groups[0][0]
        return list(chain.from_iterable(groups))
    with _disable_current_modes():  # it reads values, which fake tensors do not have
        generator = torch.Generator().manual_seed(seed)
        return list(LengthGroupedSampler(size, lengths=list(lengths), generator=generator))


# The texts that come with the project: original comments of one to some hundred words, always the same ones.
#
# Their lengths are lognormal, like those of comments and reviews: most are short, a few are long, and padding all to
# the longest computes mostly padding.


COUNT: Final = 1024
#: Words of the middle text, and the deviation of the logarithm.
_MEDIAN_WORDS: Final = 8.5
_DEVIATION: Final = 1.15
_SEED: Final = 20_261_122
#: A longer sentence ends before its next part.
_SENTENCE_WORDS: Final = 14

_ONE_WORD: Final = ("Thanks!", "Agreed.", "Why?", "Lovely.", "Sold.", "Nope.", "Again?", "Perfect!")
_OPENERS: Final = (
    "We arrived late", "Nobody answered the door", "It rained all week", "The kitchen was tiny", "I fixed it myself",
    "My sister disagrees", "They moved the stop", "The second edition is better", "You can skip the museum",
    "Our train broke down", "The battery lasts two days", "Someone left a note", "Prices doubled since spring",
    "The choir sang outside", "I returned it twice", "Her answer was short", "The garden is open", "This recipe works",
    "He painted the fence", "Few people noticed",
)  # fmt: skip
_PARTS: Final = (
    "near the old harbour", "although the map said otherwise", "with three suitcases and a cello",
    "because the bridge was closed", "before breakfast", "for less than a bus ticket", "and the neighbours laughed",
    "while the soup went cold", "on the way to the lighthouse", "as far as I remember", "under a leaking roof",
    "without a single complaint", "after the long winter", "so we stayed another night", "between two noisy markets",
    "just as the manual promised", "to everyone's surprise", "until the lamp flickered", "in a borrowed raincoat",
    "which explains the smell", "at half the advertised speed", "but the tea was excellent", "since last September",
    "despite the blue paint", "like a clock without hands", "from the seventh floor", "where the orchard used to be",
    "and nobody asked for a receipt", "over a cup of weak coffee", "if the weather holds", "past the empty bakery",
    "along the northern river path",
)  # fmt: skip
_ADVERBS: Final = ("quietly", "usually", "almost", "barely", "twice", "together", "finally", "perhaps")


def sample() -> tuple[str, ...]:
    """Return the texts, in an order unrelated to their lengths."""
    draw = Random(_SEED)
    normal = NormalDist()
    indices = sorted(range(COUNT), key=lambda _: draw.random())
    words = [_MEDIAN_WORDS * exp(_DEVIATION * normal.inv_cdf((index + 0.5) / COUNT)) for index in indices]
    return tuple(_text(draw, max(round(count), 1)) for count in words)


def _text(draw: Random, words: int) -> str:
    """Return a text of about that many words."""
    if words <= 1:
        return _one_of(draw, _ONE_WORD)
    sentences: list[str] = []
    written = 0
    while written < words:
        # A sentence is an opener and as many parts as fit the remaining words.
        parts = [_one_of(draw, _OPENERS)]
        length = len(parts[0].split())
        while length < min(words - written, _SENTENCE_WORDS):
            part = _one_of(draw, _PARTS)
            if draw.random() < 0.2:
                part = f"{_one_of(draw, _ADVERBS)} {part}"
            parts.append(part)
            length += len(part.split())
        comma = ", " if draw.random() < 0.3 else " "
        sentences.append(comma.join(parts) + ("!" if draw.random() < 0.1 else "."))
        written += length
    return " ".join(sentences)


def _one_of(draw: Random, choices: Sequence[str]) -> str:
    return choices[int(draw.random() * len(choices))]


# The texts of a file: its lines, or a column of JSON Lines, CSV or Parquet.


#: At most this many texts are read: a run needs a few batches and the distribution of lengths.
MAX_TEXTS: Final = 4096
#: Names for a column of texts, used if a table has several columns of words.
_USUAL_COLUMNS: Final = (
    "text",
    "sentence",
    "content",
    "comment",
    "review",
    "body",
    "document",
    "message",
    "question",
    "prompt",
    "article",
)
_JSON_LINES: Final = (".jsonl", ".ndjson", ".json")
_TABLES: Final = (".csv", ".tsv")
_PARQUET: Final = (".parquet", ".pq")

Row: TypeAlias = "dict[str, Any]"


class TextDataset(Struct, frozen=True, kw_only=True):
    """Non-empty texts; `more` if not all were read."""

    file: str | None = None
    column: str | None = None
    texts: tuple[str, ...]
    more: bool = False


class _Source(Struct, frozen=True, kw_only=True):
    """A file as it was given; errors about it are a `UsageError` that begins with the option."""

    path: Path
    column: str | None

    @property
    def form(self) -> str:
        """Return the extension that gives its format, without the compression's."""
        return Path(self.path.name.removesuffix(".gz")).suffix.lower()

    def wrong(self, what: str) -> UsageError:
        """Return the error to raise for this file."""
        return UsageError(f"{TEXTS.flags[-1]} {self.path}: {what}")


def read_texts(asked: str) -> TextDataset:
    """Return the texts for `--texts`: the embedded sample, or those of `FILE` or `FILE:COLUMN`."""
    if asked == SAMPLE:
        return TextDataset(texts=sample())
    source = _source_of(asked)
    try:
        column, texts = _texts_in(source)
        kept = tuple(islice((text for text in texts if text.strip()), MAX_TEXTS + 1))
    except UnicodeDecodeError as error:
        raise source.wrong("it is not UTF-8 text - use UTF-8 lines, JSON Lines, CSV or Parquet") from error
    except (OSError, EOFError, zlib.error) as error:
        raise source.wrong(f"cannot be read: {one_line(error)} - check the file") from error
    if not kept:
        raise source.wrong("it contains no text - use a file with one text per line")
    if any("\0" in text for text in kept):
        raise source.wrong("it is binary, not text - use plain text, JSON Lines, CSV or Parquet")
    return TextDataset(file=source.path.name, column=column, texts=kept[:MAX_TEXTS], more=len(kept) > MAX_TEXTS)


def _source_of(asked: str) -> _Source:
    """Return the file, and the column after the last colon if the text before it is a file."""
    check_no_address(TEXTS.flags[-1], asked)
    if Path(asked).expanduser().is_file():
        return _Source(path=Path(asked).expanduser(), column=None)
    name, colon, column = asked.rpartition(":")
    path = Path(name).expanduser()
    if colon and column and path.is_file():
        return _Source(path=path, column=column)
    wrong = "it is a folder" if Path(asked).expanduser().is_dir() else "no such file"
    raise UsageError(f"{TEXTS.flags[-1]} {asked}: {wrong} - pass a file, FILE:COLUMN, or {SAMPLE}")


def _texts_in(source: _Source) -> tuple[str | None, Iterator[str]]:
    """Return the text column, and the texts."""
    if source.form in _PARQUET:
        return _parquet(source)
    if source.form in _JSON_LINES:
        return _texts_in_rows(source, lambda: _json_rows(source))
    if source.form in _TABLES:
        return _texts_in_rows(source, lambda: _csv_rows(source))
    if source.column is not None:
        raise source.wrong(f"a plain text file has no column {source.column!r} - leave :{source.column} out")
    return None, _lines(source)


def _lines(source: _Source) -> Iterator[str]:
    with _opened(source) as file:
        for line in file:
            yield line.rstrip("\r\n")


def _opened(source: _Source) -> IO[str]:
    if source.path.name.endswith(".gz"):
        return gzip.open(source.path, "rt", encoding="utf-8-sig", newline="")
    return open(source.path, encoding="utf-8-sig", newline="")


def _texts_in_rows(source: _Source, rows: Callable[[], Iterable[Row]]) -> tuple[str, Iterator[str]]:
    """Return the texts in a column of rows; the first rows determine the column."""
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
    """Return the given column, the only one with words, or one with a common name."""
    listed = ", ".join(columns)
    if source.column is not None:
        if source.column not in columns:
            raise source.wrong(f"it has no column {source.column!r} - its columns are {listed}")
        if not columns[source.column]:
            raise source.wrong(f"its column {source.column!r} contains no text - its columns are {listed}")
        return source.column
    words = [name for name, holds_words in columns.items() if holds_words]
    usual = [name for wanted in _USUAL_COLUMNS for name in words if name.lower() == wanted]
    if len(words) == 1 or usual:
        return usual[0] if usual else words[0]
    what = "no text column" if not words else "several text columns"
    raise source.wrong(f"it has {what} - use {source.path}:COLUMN with one of its columns, {listed}")


def _json_rows(source: _Source) -> Iterator[Row]:
    for number, line in enumerate(_lines(source), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise source.wrong(
                f"line {number} is not JSON ({one_line(error, 80)}) - write one object per line"
            ) from error
        if not isinstance(value, dict):
            raise source.wrong(f"line {number} is not a JSON object - write one object per line")
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
            "Parquet needs pyarrow, which is not installed - pip install pyarrow, or use plain text, JSON Lines or CSV"
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


#: The label that the loss ignores, torch's own default.
IGNORED: Final = -100
#: The part of the tokens that a masked language model is trained on.
_MASKED: Final = 0.15
#: The default padding of all texts.
_PADDING: Final = "max-length"
_OF_TEXT: Final = ("sequence-classification", "token-classification", "causal-lm", "seq2seq-lm", "masked-lm", "base")


@dataclass(slots=True, kw_only=True)
class TextInputs:
    """The batches of a run, on the host: keyword arguments of the model; `longest` may not be among those run.

    `observed` describes the texts.
    """

    batches: tuple[dict[str, Any], ...]
    longest: dict[str, Any]
    observed: TextObservations

    @property
    def profiled(self) -> dict[str, Any]:
        """Return the batch of the middle length."""
        return self.batches[self.observed.profiled]

    def with_times(self, times: Sequence[Sequence[int]]) -> TextObservations:
        """Return the observations, with the wall times of the steps on each batch."""
        pairs = zip(self.observed.batches, times, strict=True)
        return replace(self.observed, batches=tuple(replace(batch, step_ns=tuple(each)) for batch, each in pairs))


@dataclass(slots=True, kw_only=True)
class TextPlan:
    """The texts of a run as batches of token ids; no tensors yet. `ids` are `tokens` cut at `maximum`."""

    read: TextDataset
    tokens: Tokenized
    ids: tuple[tuple[int, ...], ...]
    maximum: int
    padding: str
    batches: Batches
    shape: Shape
    seed: int
    config: Any

    @property
    def profiled_length(self) -> int:
        """Return the length of the profiled batch."""
        return self.batches.lengths[self.batches.profiled]

    def inputs(self) -> TextInputs:
        """Return the batches' tensors; real ones even under a fake tensor mode."""
        from torch.utils._python_dispatch import _disable_current_modes

        run, made = self.batches.run, dict[int, dict[str, Any]]()
        with _disable_current_modes():
            for number in {*run, self.batches.longest}:
                texts, length = self.batches.texts[number], self.batches.lengths[number]
                rows = [self.ids[text] for text in texts]
                ids = _padded(rows, length, self.tokens.pad)
                mask = _padded([(1,) * len(row) for row in rows], length, 0)
                made[number] = {"input_ids": ids, "attention_mask": mask, **self._targets(texts, length, ids)}
        return TextInputs(
            batches=tuple(made[number] for number in run), longest=made[self.batches.longest], observed=self.observed()
        )

    def observed(self) -> TextObservations:
        """Return the description of the texts in the batches."""
        lengths, batches = [len(of_text) for of_text in self.ids], self.batches
        return TextObservations(
            file=self.read.file,
            column=self.read.column,
            padding=self.padding,
            count=len(lengths),
            more=self.read.more,
            cut=sum(len(of_text) > self.maximum for of_text in self.tokens.ids),
            maximum=self.maximum,
            shortest=min(lengths),
            median=median_low(lengths),
            all_batches=len(batches.texts),
            all_tokens=batches.tokens,
            all_useful_tokens=sum(lengths[text] for texts in batches.texts for text in texts),
            batches=tuple(self._batch(number) for number in batches.run),
            profiled=batches.run.index(batches.profiled),
            longest=self._batch(batches.longest),
            tokenizers=self.tokens.tokenizers,
        )

    def _batch(self, number: int) -> TextBatch:
        texts = self.batches.texts[number]
        return TextBatch(lengths=tuple(len(self.ids[text]) for text in texts), length=self.batches.lengths[number])

    def _targets(self, texts: Sequence[int], length: int, ids: torch.Tensor) -> dict[str, Any]:
        """Return the labels for the loss; a text has the same labels in every batch."""
        import torch

        task, rows = self.shape.task, [self.ids[text] for text in texts]
        if self.shape.inference or task == "base":
            return {"decoder_input_ids": ids} if getattr(self.config, "is_encoder_decoder", False) else {}
        if task == "sequence-classification":
            generator = torch.Generator().manual_seed(self.seed)
            return {"labels": class_labels(self.config, len(self.ids), generator)[list(texts)]}
        if task == "token-classification":
            drawn = []
            for text in texts:
                draw = Random(f"{self.seed} {text}")
                drawn.append([int(draw.random() * self.config.num_labels) for _ in self.ids[text]])
            return {"labels": _padded(drawn, length, IGNORED)}
        if task == "masked-lm":
            return self._masked(texts, length)
        return {"labels": _padded(rows, length, IGNORED)}

    def _masked(self, texts: Sequence[int], length: int) -> dict[str, Any]:
        """Return tokens to guess, masked in the input if the tokenizer has a mask token; only they are in the loss."""
        inputs, labels, mask = [], [], self.tokens.mask
        for text in texts:
            draw, ids = Random(f"{self.seed} {text}"), self.ids[text]
            indices = [at for at, token in enumerate(ids) if token not in self.tokens.special] or list(range(len(ids)))
            draws = {at: draw.random() for at in indices}
            # One at least is guessed.
            chosen = {at for at in indices if draws[at] < _MASKED} or {min(indices, key=draws.__getitem__)}
            inputs.append([mask if at in chosen and mask is not None else token for at, token in enumerate(ids)])
            labels.append([token if at in chosen else IGNORED for at, token in enumerate(ids)])
        return {"input_ids": _padded(inputs, length, self.tokens.pad), "labels": _padded(labels, length, IGNORED)}


def plan_texts(model: OfModel, shape: Shape, options: RunOptions) -> TextPlan | None:
    """Return the requested texts, `None` without a request; `UsageError` if the model takes no text."""
    if options.texts is None:
        return None
    asked, maximum = f"{TEXTS.flags[-1]} {options.texts}", shape.sequence_length
    if shape.task not in _OF_TEXT or maximum is None or not takes_text(model.module):
        raise UsageError(
            f"{asked}: {model.config.model_type} ({shape.task}) takes inputs other than text - leave it out"
        )
    read = read_texts(options.texts)
    tokens = tokenized(model, read.texts, options.tokenizer)
    # A text that is cut keeps the tokenizer's id at its end.
    ids = tuple(
        of_text if len(of_text) <= maximum else (*of_text[: maximum - 1], of_text[-1]) for of_text in tokens.ids
    )
    if len(ids) < shape.batch:
        few = f"too few texts ({len(ids)}) for a batch of {shape.batch}"
        raise UsageError(f"{asked}: {few} - use --batch {len(ids)} or less")
    padding = options.padding or _PADDING
    return TextPlan(
        read=read,
        tokens=tokens,
        ids=ids,
        maximum=maximum,
        padding=padding,
        shape=shape,
        seed=options.seed,
        batches=batches_of([len(of_text) for of_text in ids], shape.batch, padding, maximum, options.seed),
        config=model.config,
    )


def _padded(rows: Iterable[Sequence[int]], length: int, value: int) -> torch.Tensor:
    import torch

    return torch.tensor([[*row, *[value] * (length - len(row))] for row in rows])
