"""A generation: the time to its first token, and what each token after that takes."""

from __future__ import annotations

from opanatomy.records.record import Record


class Generation(Record, frozen=True, kw_only=True):
    """One step of `new_tokens` for each sample by a search with `beams` (1: greedy).

    Times are of generations without the profiler, medians; `None` where none was timed. `first_token_ns` is the
    prefill, `decoding_ns` what follows it. `decoded_tokens` of each sample are made there, one in each forward:
    `token_ns` is the time from one to the next, `tokens_per_second` counts those of all samples, of each sample the
    one that is kept of its beams. `token_flops` and the bytes are those of one forward and what chooses its tokens,
    the mean over the decoding of the profiled steps; they leave out what took `uncosted_ns` there.
    """

    new_tokens: int
    beams: int
    decoded_tokens: int
    first_token_ns: int | None = None
    decoding_ns: int | None = None
    token_ns: float | None = None
    tokens_per_second: float | None = None
    token_flops: float | None = None
    token_read_bytes: float | None = None
    token_written_bytes: float | None = None
    uncosted_ns: int = 0
