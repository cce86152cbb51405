"""Real inputs: what the texts are, how much of the batches is padding, what a step on each takes, the tokenizers."""

from __future__ import annotations

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.texts import PaddingFlops, TextBatchRow, TextFigures, TokenizerRow
from opanatomy.report.section import (
    Column,
    Count,
    Fact,
    Flops,
    Holds,
    Phrase,
    Rate,
    Row,
    Section,
    Share,
    Time,
    facts_of,
    joined,
    phrase,
)

_PADDED: dict[str, str] = {
    "max-length": "all to one length",
    "longest": "each batch to its longest text",
    "sorted": "each batch to its longest text, the texts sorted by length",
    "grouped": "each batch to its longest text, the texts grouped by length",
}


def texts(anatomy: Anatomy) -> Section | None:
    """What the texts of the run are, and what padding and tokenizing cost."""
    figures = anatomy.texts
    if figures is None:
        return None
    facts = facts_of(
        ("texts", _texts(figures)),
        ("padding", phrase("{}: {} of the tokens are of texts, in {}", _PADDED.get(figures.padding, figures.padding),
                           Share(figures.all_useful_tokens, figures.all_tokens),
                           Count(figures.all_batches, "batch"))),
        ("wasted", _wasted(figures.padding_flops)),
        ("steps", _steps(figures)),
        ("memory", phrase("of the longest batch, {}", Count(figures.memory_length, "token"))),
    )  # fmt: skip
    tokenizers = tuple(
        Fact(label="tokenizer", text=_tokenizer(row), warning=bool(row.used and row.holds_back))
        for row in figures.tokenizers
    )
    return Section(name="texts", title="Real inputs", facts=(*facts, *tokenizers))


def batches(anatomy: Anatomy) -> Section | None:
    """The batches that were run, in their order."""
    figures = anatomy.texts
    if figures is None:
        return None
    columns = (
        Column(header="batch", holds=Holds.NAMES), Column(header="texts", expendable=3), Column(header="length"),
        Column(header="tokens", expendable=2), Column(header="useful"), Column(header="step"),
        Column(header="useful tokens", expendable=1),
    )  # fmt: skip
    rows = tuple(_row(number, row) for number, row in enumerate(figures.batches, start=1))
    return Section(name="batches", title="Steps by batch", columns=columns, rows=rows)


def _row(number: int, row: TextBatchRow) -> Row:
    rate = None if not row.step_ns else Rate(row.useful_tokens * 1e9 / row.step_ns, "tokens")
    name = f"{number}, profiled" if row.profiled else str(number)
    useful = Share(row.useful_tokens, row.tokens)
    step = None if row.step_ns is None else Time(row.step_ns)
    return Row(cells=(name, Count(row.texts), Count(row.length), Count(row.tokens), useful, step, rate))


def _texts(figures: TextFigures) -> Phrase | None:
    """How many texts of which lengths there are, and where they are from."""
    source = "the sample texts of opanatomy" if figures.file is None else figures.file
    column = f" (column {figures.column})" if figures.column else ""
    count = phrase("{} of {} tokens and more, the middle one {}", Count(figures.count, "text"),
                   Count(figures.shortest), Count(figures.median))  # fmt: skip
    cut = phrase("{} cut at {}", Count(figures.cut), Count(figures.maximum)) if figures.cut else None
    return joined((f"{source}{column}", "the first" if figures.more else None, count, cut))


def _wasted(padding: PaddingFlops | None) -> Phrase | None:
    """The FLOPs of contractions on padding."""
    if padding is None or not padding.flops:
        return None
    known = phrase("; {} have shapes that do not say", Flops(padding.flops - padding.assigned_flops))
    return phrase(
        "{} of the contractions ({}) are on padding, in the profiled batch{}",
        Flops(padding.padding_flops),
        Share(padding.padding_flops, padding.flops),
        known if padding.assigned_flops < padding.flops else "",
    )


def _steps(figures: TextFigures) -> Phrase | None:
    """The mean step of the run batches, from the shortest to the longest, and what goes through it a second."""
    times = [row.step_ns for row in figures.batches if row.step_ns is not None]
    samples, useful = figures.samples_per_second, figures.useful_tokens_per_second
    if not times or samples is None or useful is None:
        return None
    spread = phrase("{} to {} over {}", Time(min(times)), Time(max(times)), Count(len(times), "batch"))
    return joined(
        (
            phrase("mean {} ({})", Time(figures.mean_step_ns), spread),
            phrase("{}", Rate(samples, "samples")),
            phrase("{} of texts", Rate(useful, "tokens")),
        )
    )


def _tokenizer(row: TokenizerRow) -> Phrase | str:
    """How fast a tokenizer is, and whether the steps would wait for it."""
    kind = f"{'slow, in Python' if row.slow else 'fast'} ({row.name})" + (", used" if row.used else "")
    trained = f"trained on the texts: {row.trained_because}" if row.trained_because and row.used else None
    rate = None if row.tokens_per_second is None else phrase("{}", Rate(row.tokens_per_second, "tokens"))
    held = {True: "it would hold the device back", False: "faster than the steps", None: None}[row.holds_back]
    other = None if row.same_ids else "other ids than the one used"
    return joined((kind, rate, held, other, trained)) or kind
