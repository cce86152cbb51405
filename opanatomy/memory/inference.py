"""What the blocks of a trace are, by when and in what they were allocated and freed: nothing else says it."""

from __future__ import annotations

from enum import IntEnum, auto
from typing import Final

import numpy as np
from msgspec import Struct

from opanatomy.memory.blocks import Blocks
from opanatomy.memory.enclosing import outermost, wanting
from opanatomy.memory.passes import Passes
from opanatomy.records.columns import Bool, Int64
from opanatomy.records.memory_columns import HostCalls
from opanatomy.records.taxonomy import BACKWARD, FORWARDS, OPTIMIZER, RECOMPUTE
from opanatomy.records.workload import MODULE_RANGE, PHASE_RANGE

BEFORE_WINDOW: Final = "before_window"
OPTIMIZER_STATE: Final = "optimizer_state"
GRADIENTS: Final = "gradients"
FORWARD_ACTIVATIONS: Final = "forward_activations"
TEMPORARY_BUFFERS: Final = "temporary_buffers"
OTHER_BLOCKS: Final = "other"
#: The components in the order in which they are stacked.
COMPONENTS: Final = (
    BEFORE_WINDOW, OPTIMIZER_STATE, GRADIENTS, FORWARD_ACTIVATIONS, TEMPORARY_BUFFERS, OTHER_BLOCKS,
)  # fmt: skip


class Rule(IntEnum):
    """Why a block is what it is taken for; `RULES` says it in words."""

    BEFORE = 0
    RECOMPUTED = auto()
    ONE_OPERATOR = auto()
    FORWARD_ONLY = auto()
    BACKWARD_ONLY = auto()
    OPTIMIZER_ONLY = auto()
    ACTIVATION = auto()
    GRADIENT = auto()
    STATE = auto()
    FORWARD_KEPT = auto()
    OPTIMIZER_KEPT = auto()
    ELSEWHERE = auto()


RULES: Final = {
    Rule.BEFORE: (BEFORE_WINDOW, "allocated before the trace: weights, states and all else cannot be distinguished"),
    Rule.RECOMPUTED: (FORWARD_ACTIVATIONS, "allocated in recomputation, freed after it in the same backward"),
    Rule.ONE_OPERATOR: (TEMPORARY_BUFFERS, "allocated and freed within one operator call"),
    Rule.FORWARD_ONLY: (TEMPORARY_BUFFERS, "allocated and freed in the same forward"),
    Rule.BACKWARD_ONLY: (TEMPORARY_BUFFERS, "allocated and freed in the same backward"),
    Rule.OPTIMIZER_ONLY: (TEMPORARY_BUFFERS, "allocated and freed in the same optimizer step"),
    Rule.ACTIVATION: (FORWARD_ACTIVATIONS, "allocated in forward, freed in backward"),
    Rule.GRADIENT: (GRADIENTS, "allocated in backward, alive after it"),
    Rule.STATE: (OPTIMIZER_STATE, "allocated in the optimizer, never freed"),
    Rule.FORWARD_KEPT: (OTHER_BLOCKS, "allocated in forward, not freed in forward or backward"),
    Rule.OPTIMIZER_KEPT: (OTHER_BLOCKS, "allocated in the optimizer, freed later"),
    Rule.ELSEWHERE: (OTHER_BLOCKS, "allocated outside forward, backward and optimizer"),
}
#: The place in `COMPONENTS` of each rule.
COMPONENT_OF: Final = np.array([COMPONENTS.index(RULES[rule][0]) for rule in Rule], dtype=np.int64)

#: Ranges that some releases write as operators.
_NODES: Final = ("autograd::", "torch::autograd::")
_RANGES: Final = (PHASE_RANGE, MODULE_RANGE, "ProfilerStep", "Optimizer.", "enumerate(DataLoader)", "## ")


class Operators(Struct, frozen=True):
    """Which host calls are operators and autograd nodes, not ranges around them."""

    is_operator: Bool
    #: Operators that the dispatcher called: no autograd nodes, which may hold a whole backward.
    is_call: Bool


def operators_among(calls: HostCalls) -> Operators:
    """The host calls by kind."""
    texts = calls.name.values
    is_range = np.array([name.startswith(_RANGES) for name in texts], dtype=bool)
    is_call = np.array(["::" in name and not name.startswith(_NODES) for name in texts], dtype=bool)
    is_operator = (calls.annotation == 0) & ~is_range[calls.name.codes]
    return Operators(is_operator, is_operator & is_call[calls.name.codes])


class Placing(Struct, frozen=True, kw_only=True):
    """Of each block: the host row of the operator that wanted it (-1 none), the phase of its allocation, its rule."""

    row: Int64
    phase: Int64
    rule: Int64


def place(
    blocks: Blocks, time_ns: Int64, call: Int64, calls: HostCalls, operators: Operators, passes: tuple[Passes, Passes]
) -> Placing:
    """Find what allocated each block and infer what it is; `call` is the row of `calls` around each event, -1 none."""
    inner = call[blocks.alloc]
    inside = np.flatnonzero(inner >= 0)
    inside = inside[operators.is_operator[inner[inside]]]
    row = np.full(len(inner), -1, dtype=np.int64)
    row[inside] = wanting(inner[inside], calls.name, calls.parent, operators.is_operator)
    until = np.full(len(inner), np.iinfo(np.int64).min, dtype=np.int64)
    called = inside[operators.is_call[inner[inside]]]
    until[called] = calls.end_ns[outermost(inner[called], calls.parent, operators.is_call)]
    phase = passes[0].phase_of(passes[0].at(time_ns[blocks.alloc]))
    phase[inside] = calls.phase[inner[inside]]
    return Placing(row=row, phase=phase, rule=_rules(blocks, time_ns, passes, phase, until))


def _rules(blocks: Blocks, time_ns: Int64, passes: tuple[Passes, Passes], phase: Int64, until: Int64) -> Int64:
    """The rule of each block; the first that holds."""
    freed = ~blocks.never_freed
    begin, end = time_ns[blocks.alloc], time_ns[np.minimum(blocks.free, max(blocks.events - 1, 0))]
    whole, parts = passes
    same = freed & (whole.at(begin) == whole.at(end))
    in_forward, in_update = np.isin(phase, FORWARDS), phase == OPTIMIZER
    in_backward = (phase == BACKWARD) | (phase == RECOMPUTE)
    cases = (
        (Rule.RECOMPUTED, (phase == RECOMPUTE) & same & (parts.at(begin) != parts.at(end))),
        (Rule.ONE_OPERATOR, freed & (end <= until)),
        (Rule.FORWARD_ONLY, in_forward & same),
        (Rule.BACKWARD_ONLY, in_backward & same),
        (Rule.OPTIMIZER_ONLY, in_update & same),
        (Rule.ACTIVATION, in_forward & freed & (whole.phase_of(whole.at(end)) == BACKWARD)),
        (Rule.GRADIENT, in_backward),
        (Rule.STATE, in_update & ~freed),
        (Rule.FORWARD_KEPT, in_forward),
        (Rule.OPTIMIZER_KEPT, in_update),
    )
    return np.select([holds for _, holds in cases], [int(rule) for rule, _ in cases], int(Rule.ELSEWHERE))
