"""Suggest memory savings after an out-of-memory error: unused options that help in that phase."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
            parts.append("pass smaller inputs")
        elif not by_function:
            parts += batch_and_length(workload.batch, workload.sequence_length)
        if phase is Phase.DECODING:
            spelled = as_argument if in_code else as_flag
            parts.append(f"generate fewer tokens than {spelled(GENERATE, options.generate)}")
        parts += _pulled(reliefs(context, Relief.ACTIVATIONS), context, in_code=in_code)
    elif phase is Phase.OPTIMIZER:
        smaller = [lever for lever in reliefs(context, Relief.STATE) if lever.is_installed]
        parts += _pulled(smaller, context, in_code=in_code)
    if in_code:
        parts.append("pass a smaller module")
    elif by_function:
        parts.append("have it return a smaller module" + ("" if only_weights else " or smaller inputs"))
    elif getattr(getattr(subject.module, "config", None), "num_hidden_layers", None) != 1:
        parts += fewer_weights(None)
    parts += _pulled(reliefs(context, Relief.WEIGHTS), context, in_code=in_code)
    return either(parts or ["use a smaller model"])


#: Options that always have a value, which a technique would replace.
_REPLACED: Final = ("dtype", "optimizer", "beams")


def _pulled(levers: list[Lever], context: Context, *, in_code: bool) -> list[str]:
    """Return how to apply levers, each by the one option it changes; several values of an option are alternatives."""
    ways: dict[str, list[str]] = {}
    for lever in levers:
        ((name, value),) = lever.changes(context).items()
        if name in ways:
            ways[name].append(f'"{value}"' if in_code else str(value))
        elif in_code and lever.python is not None:
            ways[name] = [f"call {lever.python}"]
        else:
            how = lever.as_keyword(context) if in_code else lever.option(context)
            ways[name] = [f"{'use' if name in _REPLACED else 'add'} {how}"]
    return [either(values) for values in ways.values()]


def _can_checkpoint(module: torch.nn.Module) -> bool:
    used = getattr(module, "is_activation_checkpointing", None)
    if used is None:  # its older name
        used = getattr(module, "is_gradient_checkpointing", False)
    return not used and bool(getattr(module, "supports_gradient_checkpointing", False))
