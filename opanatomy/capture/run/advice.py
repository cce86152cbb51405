"""Advise on lowering memory when it ran out, by options that have an effect in that phase and are not used yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from opanatomy.capture.model.workload import batch_and_length, either, fewer_weights
from opanatomy.capture.subject import Subject
from opanatomy.levers import Context, Lever, Relief, reliefs
from opanatomy.options import GENERATE, RunOptions, as_argument, as_flag
from opanatomy.records.taxonomy import Phase

if TYPE_CHECKING:
    import torch


def less_memory(phase: Phase, subject: Subject, options: RunOptions, *, recorded: bool = False) -> str:
    """Return ways to save memory in `phase`, as options of the verb, or as Python for the caller's own module.

    In `Phase.OTHER` the step has not begun, or is `recorded` already.
    """
    workload, in_code = subject.workload, subject.borrowed
    by_function = workload.model_source == "function"
    #: Tensors that depend on the batch are not there yet, or freed by then.
    only_weights = phase in (Phase.OPTIMIZER, Phase.OTHER)
    run = replace(workload, amp=options.amp, checkpointing=options.checkpointing, optimizer=options.optimizer)
    context = Context(run=run, batch=workload.batch or 1, can_checkpoint=_can_checkpoint(subject.module))

    parts = []
    if phase is Phase.OTHER and recorded and options.steps != 1:
        parts.append(f"record fewer steps={options.steps}" if in_code else "record fewer --steps")
    if not only_weights:
        if in_code:
            parts.append("give smaller inputs")
        elif not by_function:
            parts += batch_and_length(workload.batch, workload.sequence_length)
        if phase is Phase.DECODING:
            spelled = as_argument if in_code else as_flag
            parts.append(f"make fewer tokens than {spelled(GENERATE, options.generate)}")
        parts += _pulled(reliefs(context, Relief.ACTIVATIONS), context, in_code=in_code)
    elif phase is Phase.OPTIMIZER:
        smaller = [lever for lever in reliefs(context, Relief.STATE) if lever.is_installed]
        parts += _pulled(smaller, context, in_code=in_code)
    if in_code:
        parts.append("give a smaller module")
    elif by_function:
        parts.append("have it return a smaller module" + ("" if only_weights else " or smaller inputs"))
    elif getattr(getattr(subject.module, "config", None), "num_hidden_layers", None) != 1:
        parts += fewer_weights(None)
    parts += _pulled(reliefs(context, Relief.WEIGHTS), context, in_code=in_code)
    return either(parts or ["take a smaller model"])


def _pulled(levers: list[Lever], context: Context, *, in_code: bool) -> list[str]:
    """Return how levers are pulled; several values of one option are a choice."""
    texts: dict[str, list[str]] = {}
    for lever in levers:
        text = lever.as_keyword(context) if in_code else lever.option(context)
        name, _, value = text.partition("=" if in_code else " ")
        verb = "call" if text.endswith(")") else "use" if name.strip("-") in ("dtype", "optimizer", "beams") else "add"
        if text.endswith(")"):
            name, value = text, ""
        texts.setdefault(f"{verb} {name}", []).append(value and f"{'=' if in_code else ' '}{value}")
    return [first + either([values[0], *(value[1:] for value in values[1:])]) for first, values in texts.items()]


def _can_checkpoint(module: torch.nn.Module) -> bool:
    used = getattr(module, "is_activation_checkpointing", None)
    if used is None:  # its older name
        used = getattr(module, "is_gradient_checkpointing", False)
    return not used and bool(getattr(module, "supports_gradient_checkpointing", False))
