"""Real inputs in figures: from what a capture observed of its texts."""

from __future__ import annotations

from opanatomy.anatomy.steps import mean, without_pauses
from opanatomy.records.texts import (
    ObservedTokenizer,
    PaddingFlops,
    TextBatch,
    TextBatchRow,
    TextFigures,
    TextObservations,
    TokenizerRow,
)


def text_figures(observed: TextObservations, padding: PaddingFlops | None) -> TextFigures:
    """The figures of the texts of a run; `padding` are the FLOPs of its profiled batch."""
    batches = tuple(_row(batch, place == observed.profiled) for place, batch in enumerate(observed.batches))
    timed_ns = sum(row.step_ns or 0 for row in batches) if all(row.step_ns for row in batches) else 0
    useful = _per_second(sum(row.useful_tokens for row in batches), timed_ns)
    return TextFigures(
        file=observed.file, column=observed.column, padding=observed.padding, count=observed.count,
        more=observed.more, cut=observed.cut, maximum=observed.maximum, shortest=observed.shortest,
        median=observed.median, all_batches=observed.all_batches, all_tokens=observed.all_tokens,
        all_useful_tokens=observed.all_useful_tokens, memory_length=observed.longest.length,
        mean_step_ns=round(timed_ns / len(batches)) if timed_ns else None,
        samples_per_second=_per_second(sum(row.texts for row in batches), timed_ns),
        tokens_per_second=_per_second(sum(row.tokens for row in batches), timed_ns),
        useful_tokens_per_second=useful, padding_flops=padding, batches=batches,
        tokenizers=tuple(_tokenizer(tokenizer, useful) for tokenizer in observed.tokenizers),
    )  # fmt: skip


def _per_second(number: int, duration_ns: int) -> float | None:
    return number * 1e9 / duration_ns if duration_ns > 0 else None


def _row(batch: TextBatch, profiled: bool) -> TextBatchRow:
    return TextBatchRow(
        texts=len(batch.lengths), length=batch.length, tokens=batch.tokens, useful_tokens=batch.useful_tokens,
        step_ns=mean(without_pauses(batch.step_ns)), profiled=profiled,
    )  # fmt: skip


def _tokenizer(observed: ObservedTokenizer, steps: float | None) -> TokenizerRow:
    """A tokenizer compared with the tokens a second that the steps take."""
    rate = _per_second(observed.tokens, observed.duration_ns)
    return TokenizerRow(
        name=observed.name, slow=observed.slow, used=observed.used, trained_because=observed.trained_because,
        same_ids=observed.same_ids, tokens_per_second=rate,
        holds_back=None if rate is None or steps is None else rate < steps,
    )  # fmt: skip
