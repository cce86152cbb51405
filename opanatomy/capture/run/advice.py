"""Advise on lowering memory when it ran out, by options that have an effect in that phase and are not used yet."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from opanatomy.capture.model.workload import batch_and_length, either, fewer_weights, is_wide
from opanatomy.capture.subject import Subject
from opanatomy.options import BEAMS, GENERATE, RunOptions, Spelling, as_argument, as_flag
from opanatomy.records.taxonomy import BY_NAME, ITEM_SIZE, Phase
from opanatomy.records.workload import Workload

if TYPE_CHECKING:
    import torch

#: The optimizers to advise; of two with the same need neither is advised for the other.
_ADVISED: Final = ("adamw", "sgd", "adamw8bit", "adafactor")


def less_memory(phase: Phase, subject: Subject, options: RunOptions, *, recorded: bool = False) -> str:
    """Return ways to save memory in `phase`, as options of the verb, or as Python for the caller's own module.

    In `Phase.OTHER` the step has not begun, or is `recorded` already.
    """
    if subject.borrowed:
        return either([*_of_steps(phase, subject, options, recorded=recorded), *_of_code(phase, subject, options)])
    return either([*_of_steps(phase, subject, options, recorded=recorded), *_of_flags(phase, subject, options)])


def _of_steps(phase: Phase, subject: Subject, options: RunOptions, *, recorded: bool) -> list[str]:
    if phase is not Phase.OTHER or not recorded or options.steps == 1:
        return []
    return [f"record fewer steps={options.steps}" if subject.borrowed else "record fewer --steps"]


def _of_flags(phase: Phase, subject: Subject, options: RunOptions) -> list[str]:
    workload, by_function = subject.workload, subject.workload.model_source == "function"
    parts = []
    if phase in (Phase.PREFILL, Phase.DECODING):
        parts += [] if by_function else batch_and_length(workload.batch, workload.sequence_length)
        parts += _fewer_tokens(phase, options, as_flag)
    if phase in (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE):
        parts += [] if by_function else batch_and_length(workload.batch, workload.sequence_length)
        parts += [f"add --accumulate {more}" for more in _more_parts(workload)]
        if _could_checkpoint(subject.module, options):
            parts.append("add --checkpointing")
        if _could_cast(workload, options):
            parts.append("add --amp bf16")
    if phase is Phase.OPTIMIZER and (smaller := smaller_optimizers(options.optimizer)):
        parts.append(f"use --optimizer {either(smaller)}")
    if by_function:
        parts.append("have it return a smaller module" + ("" if _only_weights(phase) else " or smaller inputs"))
    weights = fewer_weights(workload.dtype)
    parts += weights[1:] if by_function or _layers(subject.module) == 1 else weights
    return parts or ["take a smaller model"]


def _of_code(phase: Phase, subject: Subject, options: RunOptions) -> list[str]:
    parts = []
    if not _only_weights(phase):
        parts.append("give smaller inputs")
        parts += _fewer_tokens(phase, options, as_argument)
        parts += [f"add accumulate={more}" for more in _more_parts(subject.workload)]
        if _could_checkpoint(subject.module, options):
            parts.append("call gradient_checkpointing_enable()")
        if _could_cast(subject.workload, options):
            parts.append('add amp="bf16"')
    if phase is Phase.OPTIMIZER and (smaller := smaller_optimizers(options.optimizer)):
        parts.append("use optimizer=" + either([f'"{name}"' for name in smaller]))
    parts.append("give a smaller module")
    if is_wide(subject.workload.dtype):
        parts.append("make it .to(torch.bfloat16)")
    return parts


def _fewer_tokens(phase: Phase, options: RunOptions, spelled: Spelling) -> list[str]:
    """Return the sizes of a generation that can be lowered."""
    parts = []
    if (options.beams or 1) > 1:
        parts.append(f"search with fewer than {spelled(BEAMS, options.beams)}")
    if phase is Phase.DECODING:
        parts.append(f"make fewer tokens than {spelled(GENERATE, options.generate)}")
    return parts


def _more_parts(workload: Workload) -> list[int]:
    """Return the next number of micro-batches for the batch, if there is a backward to accumulate."""
    batch, now = workload.batch or 1, workload.accumulate or 1
    if workload.inference:
        return []
    return [parts for parts in range(now + 1, batch + 1) if batch % parts == 0][:1]


def smaller_optimizers(chosen: str | None) -> list[str]:
    """Return the installed optimizers that need less than the chosen one."""
    if chosen is None:
        return []
    needed = _update_bytes(chosen)
    smaller = [BY_NAME[name] for name in _ADVISED if _update_bytes(name) < needed]
    return [optimizer.name for optimizer in smaller if optimizer.package is None or find_spec(optimizer.package)]


def _update_bytes(name: str) -> float:
    """Return the bytes that an update needs for each float32 parameter."""
    return BY_NAME[name].update_bytes(ITEM_SIZE["float32"])


def _only_weights(phase: Phase) -> bool:
    """Return whether tensors that depend on the batch are not there yet, or freed by then."""
    return phase in (Phase.OPTIMIZER, Phase.OTHER)


def _could_checkpoint(module: torch.nn.Module, options: RunOptions) -> bool:
    used = getattr(module, "is_activation_checkpointing", None)
    if used is None:  # its older name
        used = getattr(module, "is_gradient_checkpointing", False)
    if options.inference or options.checkpointing or used:
        return False
    return bool(getattr(module, "supports_gradient_checkpointing", False))


def _could_cast(workload: Workload, options: RunOptions) -> bool:
    return options.amp is None and not options.inference and is_wide(workload.dtype)


def _layers(module: torch.nn.Module) -> int:
    count = getattr(getattr(module, "config", None), "num_hidden_layers", None)
    return count if isinstance(count, int) else 2
