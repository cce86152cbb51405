"""What each technique takes from the need of a step that does not fit, and whether it fits then."""

from __future__ import annotations

from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.memory.theory import needed_bytes, state_theory
from opanatomy.records.memory import CacheShape, Memory, MemorySaving, ModelShape
from opanatomy.records.optimizers import BY_NAME
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import Workload

#: Those whose state is less than AdamW's, the nearest to it first.
_OPTIMIZERS: Final = ("adamw8bit", "adafactor", "sgd")


class _Technique(Struct, frozen=True, kw_only=True):
    """A technique, and the workload with it.

    `option` is its option, `in_python` how for a module of the caller's own, `in_loop` (where it is something
    else) in the caller's own loop.
    """

    name: str
    option: str
    in_python: str
    in_loop: str | None = None
    changed: Workload


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
    for technique in _techniques(workload):
        after = need(technique.changed)
        if after is not None and after < needed:
            row = MemorySaving(
                technique=technique.name, option=_as_called(technique, workload), saved_bytes=needed - after,
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


def _as_called(technique: _Technique, workload: Workload) -> str:
    """The option; by Python where the module is the caller's."""
    if workload.model_source == "loop":
        return technique.in_loop or technique.in_python
    return technique.in_python if workload.model_source == "object" else technique.option


def _techniques(workload: Workload) -> list[_Technique]:
    techniques = []
    if not workload.checkpointing and not workload.inference:
        techniques.append(_Technique(
            name="activation checkpointing", option="--checkpointing", in_python="gradient_checkpointing_enable()",
            changed=replace(workload, checkpointing="non-reentrant"),
        ))  # fmt: skip
    if workload.amp is None and workload.dtype == "float32":
        techniques.append(_Technique(
            name="mixed precision", option="--amp bf16", in_python='amp="bf16"',
            in_loop="torch.autocast(..., torch.bfloat16)", changed=replace(workload, amp="bf16"),
        ))  # fmt: skip
        techniques.append(_Technique(
            name="weights in bfloat16", option="--dtype bfloat16", in_python="module.to(torch.bfloat16)",
            changed=replace(workload, dtype="bfloat16"),
        ))  # fmt: skip
    if workload.optimizer is not None:
        techniques += [_with_optimizer(workload, name) for name in _OPTIMIZERS]
    if (workload.beams or 1) > 1:
        techniques.append(_Technique(
            name="greedy search", option="--beams 1", in_python="beams=1", changed=replace(workload, beams=1),
        ))  # fmt: skip
    if workload.batch is not None and workload.batch > 1:
        techniques += _smaller_batch(workload, workload.batch)
    return techniques


def _smaller_batch(workload: Workload, batch: int) -> list[_Technique]:
    """The batch in more micro-batches, as long as it can be cut and there is a backward to accumulate."""
    now = workload.accumulate or 1
    more = [parts for parts in range(now + 1, batch + 1) if batch % parts == 0 and not workload.inference]
    return [
        _Technique(
            name=f"the batch in {parts} parts, accumulated", option=f"--accumulate {parts}",
            in_python=f"accumulate={parts}", in_loop=f"{parts} micro-batches of {batch // parts}",
            changed=replace(workload, accumulate=parts),
        )
        for parts in more[:1]
    ]  # fmt: skip


def _with_optimizer(workload: Workload, name: str) -> _Technique:
    optimizer = BY_NAME[name]
    return _Technique(
        name=optimizer.label, option=f"--optimizer {name}", in_python=f'optimizer="{name}"',
        in_loop=f"{optimizer.package or 'torch'}.optim.{optimizer.torch_class}",
        changed=replace(workload, optimizer=name),
    )  # fmt: skip


def _fits(needed: int, memory: Memory) -> bool | None:
    failure = memory.failure
    if failure is None or failure.allocated_bytes is None:
        return None
    if needed <= failure.allocated_bytes:
        return True
    return False if needed > failure.allocated_bytes + (failure.requested_bytes or 0) else None
