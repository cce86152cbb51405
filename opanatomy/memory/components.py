"""Name the components of an observed step, in the order in which they are stacked and listed."""

from __future__ import annotations

from typing import Final

WEIGHTS: Final = "weights"
BUFFERS: Final = "buffers"
INPUTS: Final = "inputs"
GRADIENTS: Final = "gradients"
DDP_BUCKETS: Final = "ddp_buckets"
OPTIMIZER_STATE: Final = "optimizer_state"
STEP_COUNTERS: Final = "optimizer_step_counters"
ACTIVATIONS: Final = "forward_activations"
WEIGHT_CASTS: Final = "autocast_weight_casts"
RNG_STATES: Final = "rng_states"
CHECKPOINT_ARGUMENTS: Final = "checkpoint_arguments"
RECOMPUTED: Final = "recomputed_activations"
KEY_VALUE_CACHE: Final = "key_value_cache"
BEAM_COPIES: Final = "beam_copies"
OUTPUTS: Final = "outputs"
HELD_BY_MODEL: Final = "held_by_model"
WORKSPACE: Final = "blas_workspace"
HELD_BEFORE: Final = "held_before"
ROUNDING: Final = "allocator_rounding"
PENDING_FREE: Final = "pending_free"
TEMPORARY: Final = "temporary_buffers"
#: Together they are all allocated bytes.
COMPONENTS: Final = (
    WEIGHTS, BUFFERS, INPUTS, GRADIENTS, DDP_BUCKETS, OPTIMIZER_STATE, STEP_COUNTERS, ACTIVATIONS, WEIGHT_CASTS,
    RNG_STATES, CHECKPOINT_ARGUMENTS, RECOMPUTED, KEY_VALUE_CACHE, BEAM_COPIES, OUTPUTS, HELD_BY_MODEL, WORKSPACE,
    HELD_BEFORE, ROUNDING, TEMPORARY,
)  # fmt: skip
#: Components that are complete at the end of forward, and freed from then on.
OF_FORWARD: Final = (ACTIVATIONS, WEIGHT_CASTS, RNG_STATES, CHECKPOINT_ARGUMENTS, HELD_BY_MODEL)
