"""Whether several traces can be the ranks of one run: what each says of itself, and when it was taken.

Ranks have one world, numbers of their own, and were profiled at the same time. The clocks of two hosts differ: traces
that name their place in one world are taken for ranks while they lie less than a minute apart, others while the gap
between them is no longer than the longest of them (or a second). Windows that overlap, however little, are never
refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Hashable, Sequence
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.option_values import as_asked
from opanatomy.records.anatomy import Anatomy, Provenance
from opanatomy.records.ranks import Rank
from opanatomy.records.taxonomy import OperatorClass

#: What the clocks of two hosts may differ by, and the smallest gap that says anything.
_SKEW_NS: Final = 60 * 10**9
_MIN_GAP_NS: Final = 10**9
_RANK: Final = re.compile(r"rank", re.IGNORECASE)


class Candidate(Struct, frozen=True, kw_only=True):
    """A trace that may be a rank; `stated` where the trace itself says which, not the name of its file.

    `products` are its matrix products with their shapes, `content` a digest of all that its anatomy says of events.
    """

    rank: Rank
    stated: bool
    provenance: Provenance
    device: str | None
    model: str | None
    products: frozenset[tuple[str, str]]
    content: bytes

    @property
    def name(self) -> str:
        """What the report calls the trace."""
        return self.rank.trace or "a trace without a name"


def why_no_ranks(candidates: Sequence[Candidate]) -> str | None:
    """One line that names two traces that cannot be ranks of one run, and why; `None` where all can."""
    for find in (_same_trace, _same_rank, _other_world, _other_time):
        pair = find(candidates)
        if pair is not None:
            first, second, why = pair
            return (
                f"{first.name} and {second.name} are not ranks of one run - {why} - to compare them use"
                f" {as_asked('opanatomy compare', 'opanatomy.compare')}"
            )
    return None


Finding = tuple[Candidate, Candidate, str]


def _same_trace(candidates: Sequence[Candidate]) -> Finding | None:
    """The same file, or one that was packed or named in another way: nothing in the two reports differs."""
    seen: dict[Hashable, list[Candidate]] = {}
    for candidate in candidates:
        seen.setdefault(candidate.provenance.trace_sha256, []).append(candidate)
    for sha256, group in seen.items():
        if sha256 is not None and len(group) > 1:
            return group[0], group[1], f"they are the same file, sha256 {str(sha256)[:16]}"
    begun: dict[Hashable, Candidate] = {}
    for candidate in candidates:
        provenance = candidate.provenance
        first = begun.setdefault((provenance.begin_unix_ns, provenance.end_unix_ns, candidate.content), candidate)
        if first is not candidate:
            return first, candidate, "they are the same trace: every event of one is in the other"
    return None


def _same_rank(candidates: Sequence[Candidate]) -> Finding | None:
    """Two of one rank. A number after `gpu` or `worker` in a file's name may be one of each node: that is no proof."""
    seen: dict[int, Candidate] = {}
    for candidate in candidates:
        if candidate.rank.rank is None or not (candidate.stated or _RANK.search(candidate.name)):
            continue
        first = seen.setdefault(candidate.rank.rank, candidate)
        if first is not candidate:
            world = candidate.rank.world_size or first.rank.world_size
            by_name = "" if candidate.stated and first.stated else ", by the names of their files"
            return first, candidate, f"both are rank {candidate.rank.rank}{f' of {world}' if world else ''}{by_name}"
    return None


def _other_world(candidates: Sequence[Candidate]) -> Finding | None:
    stated = [candidate for candidate in candidates if candidate.rank.world_size is not None]
    for candidate in stated[1:]:
        if candidate.rank.world_size != stated[0].rank.world_size:
            return (
                stated[0],
                candidate,
                f"the first is of a world of {stated[0].rank.world_size}, the second of {candidate.rank.world_size}",
            )
    return None


def _other_time(candidates: Sequence[Candidate]) -> Finding | None:
    """The two that lie furthest apart, where that is further than clocks differ."""
    spans = [
        (candidate.provenance.begin_unix_ns, candidate.provenance.end_unix_ns, candidate) for candidate in candidates
    ]
    timed = [(begin, end, candidate) for begin, end, candidate in spans if begin is not None and end is not None]
    if len(timed) < 2:
        return None
    _, end, first = min(timed, key=lambda span: span[1])
    begin, _, second = max(timed, key=lambda span: span[0])
    longest = max(end - begin for begin, end, _ in timed)
    placed = all(candidate.stated and candidate.rank.world_size is not None for candidate in (first, second))
    allowed = max(longest, _SKEW_NS if placed else _MIN_GAP_NS)
    gap = begin - end
    if gap <= allowed:
        return None
    return (
        first,
        second,
        f"the second begins {gap / 1e9:,.1f} s after the first ended, none lasts {_rounded(longest)} s",
    )


def _rounded(ns: int) -> str:
    """Seconds that are a little more than `ns`."""
    return f"{ns / 1e9 + 0.001:,.3f}"


def unlike_warnings(candidates: Sequence[Candidate]) -> list[str]:
    """What of the traces is of another device or another model."""
    warnings = []
    for what, value in _COMPARED:
        named = [(candidate, value(candidate)) for candidate in candidates]
        first: dict[str, Candidate] = {}
        for candidate, text in named:
            if text is not None:
                first.setdefault(text, candidate)
        if len(first) > 1:
            listed = ", ".join(f"{text} ({candidate.name})" for text, candidate in list(first.items())[:4])
            warnings.append(f"the traces are of unlike {what}, sums mix them: {listed}")
    known = [candidate for candidate in candidates if candidate.products]
    for candidate in known[1:]:
        if not candidate.products & known[0].products:
            warnings.append(
                f"{known[0].name} and {candidate.name} have no product of the same shapes: other models or inputs?"
            )
            break
    return warnings


def model_of(anatomy: Anatomy) -> str | None:
    """What distinguishes models."""
    workload = anatomy.workload
    name = workload.model or workload.architecture
    if name is None or workload.parameters is None:
        return name
    return f"{name} with {workload.parameters:,} parameters"


def products_of(anatomy: Anatomy) -> frozenset[tuple[str, str]]:
    """The matrix products, and the shapes that they are of."""
    return frozenset(
        (row.operator, row.signature)
        for row in anatomy.operators
        if row.operator_class is OperatorClass.TENSOR_CONTRACTION and row.signature
    )


def content_of(anatomy: Anatomy) -> bytes:
    """A digest of the anatomy without what says which file it is of: alike for copies of a trace."""
    ranks = tuple(replace(rank, trace=None, trace_sha256=None) for rank in anatomy.ranks)
    bare = replace(anatomy, provenance=Provenance(opanatomy=""), ranks=ranks)
    return hashlib.sha256(msgspec.msgpack.encode(bare, enc_hook=str)).digest()


_COMPARED: Final[tuple[tuple[str, Callable[[Candidate], str | None]], ...]] = (
    ("devices", lambda candidate: candidate.device),
    ("models", lambda candidate: candidate.model),
)
