"""A generation: the time to its first token, and what each token after it takes."""

from __future__ import annotations

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.generation import Generation
from opanatomy.report.section import Bytes, Count, Flops, Phrase, Rate, Section, Time, facts_of, joined, phrase


def generation(anatomy: Anatomy) -> Section | None:
    """The figures of a step that is a generation."""
    made = anatomy.generation
    if made is None:
        return None
    facts = facts_of(
        ("generation", _what(made, anatomy.workload.batch)),
        ("prefill", None if made.first_token_ns is None else phrase("first token after {}", Time(made.first_token_ns))),
        ("decoding", _pace(made)),
        ("a token", _cost(made, anatomy.workload.batch)),
    )
    return Section(name="generation", title="Generation", facts=facts)


def _what(made: Generation, batch: int | None) -> Phrase | None:
    samples = None if batch is None else phrase("for each of {}", Count(batch, "sample"))
    tokens = joined((phrase("{}", Count(made.new_tokens, "new token")), samples), " ")
    search = "greedy" if made.beams == 1 else phrase("beam search with {}", Count(made.beams, "beam"))
    return joined((tokens, search))


def _pace(made: Generation) -> Phrase | None:
    if made.token_ns is None:
        return None
    rate = None if made.tokens_per_second is None else phrase("{}", Rate(made.tokens_per_second, "tokens"))
    return joined((phrase("{} a token", Time(made.token_ns)), rate))


def _cost(made: Generation, batch: int | None) -> Phrase | None:
    """What one token of every sample moves and computes."""
    if made.token_read_bytes is None and made.token_flops is None:
        return None
    partly = bool(made.uncosted_ns)
    of_all = "" if batch in (None, 1) and made.beams == 1 else ", for one of every sample and beam"
    return phrase(
        "reads {}, writes {}, {}{}",
        Bytes(made.token_read_bytes, at_least=partly),
        Bytes(made.token_written_bytes, at_least=partly),
        Flops(made.token_flops, at_least=partly),
        of_all,
    )
