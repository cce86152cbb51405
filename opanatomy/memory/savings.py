"""What each technique takes from the need of a step that does not fit, and whether it fits then."""

from __future__ import annotations

from functools import partial
from typing import Final

from msgspec.structs import replace

from opanatomy.memory.theory import needed_bytes, state_theory
from opanatomy.records.memory import CacheShape, Memory, MemorySaving, ModelShape
from opanatomy.records.optimizers import BY_NAME
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import Workload

#: Those whose state is less than AdamW's, the nearest to it first.
_OPTIMIZERS: Final = ("adamw8bit", "adafactor", "sgd")
#: What a technique is called for a module of the caller's own: by Python, where there is no option.
_IN_PYTHON: Final = {
    "--checkpointing": "gradient_checkpointing_enable()", "--amp bf16": 'amp="bf16"',
    "--dtype bfloat16": "module.to(torch.bfloat16)", "--optimizer adamw8bit": 'optimizer="adamw8bit"',
    "--optimizer adafactor": 'optimizer="adafactor"', "--optimizer sgd": 'optimizer="sgd"', "--beams 1": "beams=1",
}  # fmt: skip


def savings_of(
    shape: ModelShape | None, workload: Workload, memory: Memory, cache: CacheShape | None = None
) -> tuple[MemorySaving, ...]:
    """The techniques that lower the need, most first, and whether the step then fits what the failure showed to be
    there: at least what was allocated, less than that and the request that failed. In the optimizer phase the
    activations are freed: only what lowers weights, gradients and state helps there."""
    need = _state_bytes if _in_optimizer(memory) else partial(needed_bytes, shape, cache=cache)
    needed = need(workload)
    if needed is None:
        return ()
    rows = []
    for technique, option, changed in _techniques(workload):
        after = need(changed)
        if after is not None and after < needed:
            row = MemorySaving(
                technique=technique, option=_as_called(option, workload), saved_bytes=needed - after,
                needed_bytes=after, fits=_fits(after, memory),
            )  # fmt: skip
            rows.append(row)
    return tuple(sorted(rows, key=lambda row: -row.saved_bytes))


def _in_optimizer(memory: Memory) -> bool:
    return memory.failure is not None and memory.failure.phase is Phase.OPTIMIZER


def _state_bytes(workload: Workload) -> int | None:
    """Weights, gradients and optimizer state; `None` where the parameters or their type are not known."""
    state = state_theory(workload)
    return sum(component.theory_bytes or 0 for component in state) if state else None


def _as_called(option: str, workload: Workload) -> str:
    """The option; by Python where the module is the caller's, without flags that a function does not take."""
    of_batch = option.removeprefix("--batch ")
    if of_batch != option and workload.model_source in ("object", "function"):
        return f"inputs of batch {of_batch}"
    return _IN_PYTHON.get(option, option) if workload.model_source == "object" else option


def _techniques(workload: Workload) -> list[tuple[str, str, Workload]]:
    """(technique, its option, the workload with it)."""
    techniques = []
    if not workload.checkpointing and not workload.inference:
        changed = replace(workload, checkpointing="non-reentrant")
        techniques.append(("activation checkpointing", "--checkpointing", changed))
    if workload.amp is None and workload.dtype == "float32":
        techniques.append(("mixed precision", "--amp bf16", replace(workload, amp="bf16")))
        techniques.append(("weights in bfloat16", "--dtype bfloat16", replace(workload, dtype="bfloat16")))
    if workload.optimizer is not None:
        for name in _OPTIMIZERS:
            techniques.append((BY_NAME[name].label, f"--optimizer {name}", replace(workload, optimizer=name)))
    if (workload.beams or 1) > 1:
        techniques.append(("greedy search", "--beams 1", replace(workload, beams=1)))
    if workload.batch is not None and workload.batch > 1:
        half = workload.batch // 2
        techniques.append(("half the batch, accumulated", f"--batch {half}", replace(workload, batch=half)))
    return techniques


def _fits(needed: int, memory: Memory) -> bool | None:
    failure = memory.failure
    if failure is None or failure.allocated_bytes is None:
        return None
    if needed <= failure.allocated_bytes:
        return True
    return False if needed > failure.allocated_bytes + (failure.requested_bytes or 0) else None
