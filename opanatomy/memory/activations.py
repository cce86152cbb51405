"""What forward keeps for backward, by like modules, operator and shape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from opanatomy.memory import components as named
from opanatomy.memory.components import COMPONENTS
from opanatomy.memory.groups import LISTED, alike
from opanatomy.memory.measured import MeasuredStep
from opanatomy.records.memory import SavedActivations
from opanatomy.records.memory_observations import TensorType

_KEPT = tuple(COMPONENTS.index(name) for name in (named.ACTIVATIONS, named.WEIGHT_CASTS))
_UNKNOWN = TensorType(dtype="", shape=())


def activations_of(measured: MeasuredStep, tensors: Sequence[TensorType]) -> tuple[SavedActivations, ...]:
    """What lives after forward for backward, largest first."""
    after = measured.after_forward
    if after is None:
        return ()
    groups: dict[tuple[str, str | None, TensorType], list[int]] = defaultdict(list)
    for block in measured.blocks.live_after(after + 1).tolist():
        if measured.component[block] in _KEPT:
            tensor = int(measured.labels.tensor[block])
            module = alike(measured.module.at(block) or "")
            groups[module, measured.operator.at(block), tensors[tensor] if tensor >= 0 else _UNKNOWN].append(block)
    own = measured.own_bytes
    rows = [
        SavedActivations(
            module=module, operator=operator, shape=tensor.shape, dtype=tensor.dtype, blocks=len(blocks),
            bytes=int(own[blocks].sum()), saved_by=_savers(measured, blocks),
        )
        for (module, operator, tensor), blocks in groups.items()
    ]  # fmt: skip
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.module))[:LISTED])


def _savers(measured: MeasuredStep, blocks: Sequence[int]) -> tuple[str, ...]:
    """The operators whose backward needs what is in these blocks."""
    return tuple(sorted({name for block in blocks for name in measured.labels.saved_by[block] if name}))
