"""Real inputs of a run: what a capture observed of its texts, their tokenizers and batches, and the figures of them."""

from __future__ import annotations

from opanatomy.records.record import Record


class TextBatch(Record, frozen=True, kw_only=True):
    """One batch: the tokens of each of its texts, the length that they are padded to, the wall times of its steps.

    A model that decodes has the texts twice, as input and as labels.
    """

    lengths: tuple[int, ...]
    length: int
    step_ns: tuple[int, ...] = ()

    @property
    def useful_tokens(self) -> int:
        """Tokens that are of a text."""
        return sum(self.lengths)

    @property
    def tokens(self) -> int:
        """Tokens with the padding."""
        return len(self.lengths) * self.length


class ObservedTokenizer(Record, frozen=True, kw_only=True):
    """A tokenizer: its class, whether it is a Python one (`slow`), and how long it took for that many tokens.

    `same_ids` says whether it gives the ids of the one that was used. `trained_because` is why it is not the model's
    own but one trained on the texts; `None` for the model's own.
    """

    name: str
    slow: bool
    used: bool
    tokens: int
    duration_ns: int
    same_ids: bool
    trained_because: str | None = None


class TextObservations(Record, frozen=True, kw_only=True):
    """What a capture observed of the texts that it ran on.

    `file` is the name of their file, `None` for the embedded sample; `column` that of a table. `count` texts (with
    `more` the first of more), `cut` of them cut at `maximum` tokens, make `all_batches` batches of `all_tokens` tokens
    with padding, `all_useful_tokens` without; `batches` are those of them that were run, evenly spread by length, of
    which `profiled` is the number of the profiled one. `longest` is the batch that the memory is of.
    """

    file: str | None = None
    column: str | None = None
    padding: str
    count: int
    more: bool
    cut: int
    maximum: int
    shortest: int
    median: int
    all_batches: int
    all_tokens: int
    all_useful_tokens: int
    batches: tuple[TextBatch, ...]
    profiled: int
    longest: TextBatch
    tokenizers: tuple[ObservedTokenizer, ...]


class PaddingFlops(Record, frozen=True, kw_only=True):
    """FLOPs of the contractions of one profiled step: all, those whose shapes tell their tokens, and of these those on
    padding."""

    flops: int
    assigned_flops: int
    padding_flops: int


class TextBatchRow(Record, frozen=True, kw_only=True):
    """One batch that was run: texts, padded length, tokens, and the mean wall time of plain steps without pauses."""

    texts: int
    length: int
    tokens: int
    useful_tokens: int
    step_ns: int | None
    profiled: bool


class TokenizerRow(Record, frozen=True, kw_only=True):
    """One tokenizer compared with the step: `holds_back` where it makes fewer tokens a second than the steps take."""

    name: str
    slow: bool
    used: bool
    trained_because: str | None
    same_ids: bool
    tokens_per_second: float | None
    holds_back: bool | None


class TextFigures(Record, frozen=True, kw_only=True):
    """Real inputs in figures: of all batches that the texts make (`all_*`), and of those that were run.

    `mean_step_ns` is the mean over the run batches of their mean steps, which is that of all batches as the run ones
    are spread over them; tokens and samples a second go by it. `padding_flops` are of the profiled batch.
    `memory_length` is the length of the longest batch, which the memory is of.
    """

    file: str | None
    column: str | None
    padding: str
    count: int
    more: bool
    cut: int
    maximum: int
    shortest: int
    median: int
    all_batches: int
    all_tokens: int
    all_useful_tokens: int
    memory_length: int
    mean_step_ns: int | None
    samples_per_second: float | None
    tokens_per_second: float | None
    useful_tokens_per_second: float | None
    padding_flops: PaddingFlops | None
    batches: tuple[TextBatchRow, ...]
    tokenizers: tuple[TokenizerRow, ...]
