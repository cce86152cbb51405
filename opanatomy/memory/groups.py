"""What is live at one moment, by what allocated it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from opanatomy.memory.blocks import Blocks
from opanatomy.records.columns import Categorical, Int64
from opanatomy.records.memory import MemoryBlocks
from opanatomy.records.taxonomy import PHASES

#: How many groups of blocks, and of activations, are listed.
LISTED: Final = 100
_NUMBER: Final = re.compile(r"(?<![^.])\d+(?![^.])")


def alike(path: str) -> str:
    """The path with `*` for each number: that of every like layer."""
    return _NUMBER.sub("*", path)


def groups_at(
    blocks: Blocks, state: int, operator: Categorical[str], module: Categorical[str], phase: Int64, kind: Int64,
    kinds: Sequence[tuple[str, str | None]],
) -> tuple[tuple[MemoryBlocks, ...], int]:  # fmt: skip
    """The blocks that are live after that many events, by what allocated them in like modules, largest sums first; and
    the bytes of those beyond the listed.

    The columns are of the blocks; `kind` is a place in `kinds`: the component, and the rule that says so.
    """
    live = blocks.live_after(state)
    modules = [alike(text) for text in module.values]
    groups: dict[tuple[int, str | None, int, int], list[int]] = {}
    for operator_, module_, phase_, kind_, size in zip(
        operator.codes[live].tolist(), module.codes[live].tolist(), phase[live].tolist(), kind[live].tolist(),
        blocks.bytes[live].tolist(), strict=True,
    ):  # fmt: skip
        key = operator_, modules[module_] if module_ >= 0 else None, phase_, kind_
        groups.setdefault(key, []).append(size)
    rows = sorted(
        (
            MemoryBlocks(
                operator=operator.values[operator_] if operator_ >= 0 else None, module=path, phase=PHASES[phase_],
                component=kinds[kind_][0], blocks=len(sizes), bytes=sum(sizes), largest_bytes=max(sizes),
                rule=kinds[kind_][1],
            )
            for (operator_, path, phase_, kind_), sizes in groups.items()
        ),
        key=lambda row: -row.bytes,
    )  # fmt: skip
    return tuple(rows[:LISTED]), sum(row.bytes for row in rows[LISTED:])
