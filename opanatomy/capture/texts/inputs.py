"""The batches of a run on texts: token ids, attention masks and labels, padding out of the loss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median_low
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from opanatomy.capture.model.batches import Shape, class_labels, takes_text
from opanatomy.capture.texts.batching import Batches, batches_of
from opanatomy.capture.texts.reading import Texts, read_texts
from opanatomy.capture.texts.tokenizing import OfModel, Tokenized, tokenized
from opanatomy.errors import UsageError
from opanatomy.options import TEXTS
from opanatomy.records.texts import TextBatch, TextObservations
from opanatomy.run_options import RunOptions

if TYPE_CHECKING:
    import torch

#: What the loss leaves out, by torch's own default.
IGNORED: Final = -100
#: The part of the tokens that a masked language model is trained on.
_MASKED: Final = 0.15
#: How all texts are padded where nothing is said.
_PADDING: Final = "max-length"
_OF_TEXT: Final = ("sequence-classification", "token-classification", "causal-lm", "seq2seq-lm", "masked-lm", "base")


@dataclass(slots=True, kw_only=True)
class TextInputs:
    """The batches of a run, on the host: keyword arguments of the model. `longest` may be none of those that are run.

    `observed` says what they are of.
    """

    batches: tuple[dict[str, Any], ...]
    longest: dict[str, Any]
    observed: TextObservations

    @property
    def profiled(self) -> dict[str, Any]:
        """The batch of the middle length."""
        return self.batches[self.observed.profiled]

    def with_times(self, times: Sequence[Sequence[int]]) -> TextObservations:
        """What was observed, with the wall times of the steps on each batch."""
        pairs = zip(self.observed.batches, times, strict=True)
        return replace(self.observed, batches=tuple(replace(batch, step_ns=tuple(each)) for batch, each in pairs))


@dataclass(slots=True, kw_only=True)
class TextPlan:
    """The texts of a run as batches of token ids; no tensors yet. `ids` are `tokens` cut at `maximum`."""

    read: Texts
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
        """The length of the profiled batch."""
        return self.batches.lengths[self.batches.profiled]

    def inputs(self) -> TextInputs:
        """The tensors of the batches; real ones, also where tensors without values are made."""
        from torch.utils._python_dispatch import _disable_current_modes

        run = self.batches.run
        with _disable_current_modes():
            made = {number: self._inputs(number) for number in {*run, self.batches.longest}}
        return TextInputs(
            batches=tuple(made[number] for number in run), longest=made[self.batches.longest], observed=self.observed()
        )

    def observed(self) -> TextObservations:
        """What the batches are of."""
        lengths, batches = [len(of_text) for of_text in self.ids], self.batches
        return TextObservations(
            file=self.read.file, column=self.read.column, padding=self.padding, count=len(lengths),
            more=self.read.more, cut=sum(len(of_text) > self.maximum for of_text in self.tokens.ids),
            maximum=self.maximum, shortest=min(lengths), median=median_low(lengths), all_batches=len(batches.texts),
            all_tokens=batches.tokens,
            all_useful_tokens=sum(lengths[text] for texts in batches.texts for text in texts),
            batches=tuple(self._batch(number) for number in batches.run),
            profiled=batches.run.index(batches.profiled), longest=self._batch(batches.longest),
            tokenizers=self.tokens.tokenizers,
        )  # fmt: skip

    def _batch(self, number: int) -> TextBatch:
        texts = self.batches.texts[number]
        return TextBatch(lengths=tuple(len(self.ids[text]) for text in texts), length=self.batches.lengths[number])

    def _inputs(self, number: int) -> dict[str, Any]:
        """Keyword arguments of the model for a batch."""
        texts, length = self.batches.texts[number], self.batches.lengths[number]
        rows = [self.ids[text] for text in texts]
        inputs = {
            "input_ids": _padded(rows, length, self.tokens.pad),
            "attention_mask": _padded([(1,) * len(row) for row in rows], length, 0),
        }
        return {**inputs, **self._targets(texts, length, inputs["input_ids"])}

    def _targets(self, texts: Sequence[int], length: int, ids: torch.Tensor) -> dict[str, Any]:
        """What the loss needs: the same for a text in whatever batch it is."""
        task, rows = self.shape.task, [self.ids[text] for text in texts]
        if self.shape.inference or task == "base":
            return {"decoder_input_ids": ids} if getattr(self.config, "is_encoder_decoder", False) else {}
        if task == "sequence-classification":
            return {"labels": self._classes(texts)}
        if task == "token-classification":
            drawn = [self._drawn(text, self.config.num_labels) for text in texts]
            return {"labels": _padded(drawn, length, IGNORED)}
        if task == "masked-lm":
            return self._masked(texts, length)
        return {"labels": _padded(rows, length, IGNORED)}

    def _classes(self, texts: Sequence[int]) -> torch.Tensor:
        import torch

        generator = torch.Generator().manual_seed(self.seed)
        return class_labels(self.config, len(self.ids), generator)[list(texts)]

    def _draw(self, text: int) -> Random:
        return Random(f"{self.seed} {text}")

    def _drawn(self, text: int, labels: int) -> list[int]:
        draw = self._draw(text)
        return [int(draw.random() * labels) for _ in self.ids[text]]

    def _masked(self, texts: Sequence[int], length: int) -> dict[str, Any]:
        """Tokens to guess, masked in the input where the tokenizer has a token for that; the loss is of them alone."""
        inputs, labels = [], []
        for text in texts:
            ids, chosen = self.ids[text], self._guessed(text)
            mask = self.tokens.mask
            inputs.append([mask if at in chosen and mask is not None else token for at, token in enumerate(ids)])
            labels.append([token if at in chosen else IGNORED for at, token in enumerate(ids)])
        return {
            "input_ids": _padded(inputs, length, self.tokens.pad), "labels": _padded(labels, length, IGNORED),
        }  # fmt: skip

    def _guessed(self, text: int) -> frozenset[int]:
        """The places of a text that are to be guessed, one at least."""
        draw, ids = self._draw(text), self.ids[text]
        places = [at for at, token in enumerate(ids) if token not in self.tokens.special] or list(range(len(ids)))
        draws = {at: draw.random() for at in places}
        return frozenset(at for at in places if draws[at] < _MASKED) or frozenset([min(places, key=draws.__getitem__)])


def plan_texts(model: OfModel, shape: Shape, options: RunOptions) -> TextPlan | None:
    """The requested texts, `None` where none are; `UsageError` where the model takes no text."""
    if options.texts is None:
        return None
    asked, maximum = f"{TEXTS.flags[-1]} {options.texts}", shape.sequence_length
    if shape.task not in _OF_TEXT or maximum is None or not takes_text(model.module):
        raise UsageError(
            f"{asked}: {model.config.model_type} ({shape.task}) takes more than text, or no text - leave it out"
        )
    read = read_texts(options.texts)
    tokens = tokenized(model, read.texts, options.tokenizer)
    ids = tuple(_cut(of_text, maximum) for of_text in tokens.ids)
    if len(ids) < shape.batch:
        raise UsageError(f"{asked}: {len(ids)} texts make no batch of {shape.batch} - give --batch {len(ids)} or less")
    padding = options.padding or _PADDING
    return TextPlan(
        read=read, tokens=tokens, ids=ids, maximum=maximum, padding=padding, shape=shape, seed=options.seed,
        batches=batches_of([len(of_text) for of_text in ids], shape.batch, padding, maximum, options.seed),
        config=model.config,
    )  # fmt: skip


def _cut(ids: tuple[int, ...], maximum: int) -> tuple[int, ...]:
    """The ids of a text cut to a length; what a tokenizer puts at the end stays."""
    return ids if len(ids) <= maximum else (*ids[: maximum - 1], ids[-1])


def _padded(rows: Iterable[Sequence[int]], length: int, value: int) -> torch.Tensor:
    import torch

    return torch.tensor([[*row, *[value] * (length - len(row))] for row in rows])
