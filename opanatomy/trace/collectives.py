"""What a collective's event records of its message, from the raw texts of its arguments."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from opanatomy.records.columns import CollectiveArguments
from opanatomy.trace.decoding import NOT_DECODABLE
from opanatomy.trace.schema import Args

#: Raw JSON of "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype".
RawCollective: TypeAlias = "tuple[bytes, bytes, bytes, bytes, bytes]"


class Collectives:
    """The arguments of a trace's collectives, those that are alike kept once."""

    def __init__(self) -> None:
        self._known: dict[RawCollective, CollectiveArguments | None] = {}

    def of(self, args: Args) -> CollectiveArguments | None:
        """The collective of an event; `None` where its arguments name none."""
        raw = (
            bytes(args.collective), bytes(args.in_elements), bytes(args.out_elements), bytes(args.group_size),
            bytes(args.collective_dtype),
        )  # fmt: skip
        if raw not in self._known:
            self._known[raw] = _decoded(raw)
        return self._known[raw]


def _decoded(raw: RawCollective) -> CollectiveArguments | None:
    collective, sent, got, group, dtype = map(_decode, raw)
    if not isinstance(collective, str) or not collective:
        return None
    return CollectiveArguments(
        collective=collective, in_elements=_count(sent), out_elements=_count(got), group_size=_count(group) or None,
        dtype=dtype if isinstance(dtype, str) else None,
    )  # fmt: skip


def _decode(raw: bytes) -> object:
    try:
        return msgspec.json.decode(raw) if raw else None
    except NOT_DECODABLE:
        return None


def _count(value: object) -> int | None:
    """A count that can be one: a trace says -1 where it does not know."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62 else None
