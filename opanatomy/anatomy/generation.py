"""The figures of a step that is a generation."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from msgspec.structs import replace

from opanatomy.records.anatomy import ClassRow
from opanatomy.records.generation import Generation
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import Capture


def generation_of(capture: Capture | None, classes: Iterable[ClassRow], steps: int) -> Generation | None:
    """What a capture's generations took; `None` where its steps are none."""
    workload = None if capture is None else capture.workload
    if capture is None or workload is None or workload.generate is None:
        return None
    decoded = workload.generate - 1
    generation = Generation(new_tokens=workload.generate, beams=workload.beams or 1, decoded_tokens=decoded)
    generation = _timed(generation, capture)
    if not decoded:
        return generation
    rows = [row for row in classes if row.phase is Phase.DECODING]
    return replace(
        generation,
        token_flops=_each(rows, "flops", steps * decoded),
        token_read_bytes=_each(rows, "read_bytes", steps * decoded),
        token_written_bytes=_each(rows, "written_bytes", steps * decoded),
        uncosted_ns=sum(row.uncosted_ns for row in rows),
    )


def _timed(generation: Generation, capture: Capture) -> Generation:
    """The generation with the medians over the plain runs; decoding is each run less its prefill."""
    walls, firsts = capture.unprofiled_step_ns, capture.unprofiled_first_token_ns
    if not firsts or len(firsts) != len(walls):
        return generation
    generation = replace(generation, first_token_ns=int(median(firsts)))
    decoding_ns = int(median(wall - first for wall, first in zip(walls, firsts, strict=True)))
    if not generation.decoded_tokens or decoding_ns <= 0:
        return generation
    batch, tokens = capture.workload.batch, generation.decoded_tokens
    return replace(
        generation,
        decoding_ns=decoding_ns,
        token_ns=decoding_ns / tokens,
        tokens_per_second=None if batch is None else batch * tokens * 1e9 / decoding_ns,
    )


def _each(rows: Iterable[ClassRow], name: str, tokens: int) -> float | None:
    """The known sum of a column over that many tokens; `None` where nothing is known."""
    known = [value for row in rows if (value := getattr(row, name)) is not None]
    return sum(known) / tokens if known else None
