"""What a collective's event records of its message, from the raw texts of its arguments."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from opanatomy.records.columns import CollectiveArguments
from opanatomy.trace.decoding import NOT_DECODABLE
from opanatomy.trace.schema import Args

#: Raw JSON of "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "Process Group Name",
#: "Process Group Ranks", "Seq".
RawCollective: TypeAlias = "tuple[bytes, ...]"


class Collectives:
    """The arguments of a trace's collectives, those that are alike kept once."""

    def __init__(self) -> None:
        self._known: dict[RawCollective, CollectiveArguments | None] = {}

    def of(self, args: Args) -> CollectiveArguments | None:
        """The collective of an event; `None` where its arguments name none."""
        raw = (
            bytes(args.collective), bytes(args.in_elements), bytes(args.out_elements), bytes(args.group_size),
            bytes(args.collective_dtype), bytes(args.group_name), bytes(args.group_ranks), bytes(args.group_sequence),
        )  # fmt: skip
        if raw not in self._known:
            self._known[raw] = _decoded(raw)
        return self._known[raw]


def _decoded(raw: RawCollective) -> CollectiveArguments | None:
    collective, sent, got, size, dtype, name, ranks, sequence = map(_decode, raw)
    if not isinstance(collective, str) or not collective:
        return None
    return CollectiveArguments(
        collective=collective, in_elements=_count(sent), out_elements=_count(got), group_size=_count(size) or None,
        dtype=dtype if isinstance(dtype, str) else None, group=_group(name, ranks), sequence=_count(sequence),
    )  # fmt: skip


def _group(name: object, ranks: object) -> str | None:
    """A process group by its name and its ranks, as far as they are said: names alone are used again on other ranks."""
    texts = [str(text) for text in (name, ranks) if isinstance(text, (str, int)) and str(text)]
    return " ".join(texts) or None


def _decode(raw: bytes) -> object:
    try:
        return msgspec.json.decode(raw) if raw else None
    except NOT_DECODABLE:
        return None


def _count(value: object) -> int | None:
    """A count that can be one: a trace says -1 where it does not know."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62 else None
