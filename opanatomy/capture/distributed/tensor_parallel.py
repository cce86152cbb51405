"""A model whose layers are cut over the ranks, by the plan that transformers has for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opanatomy.capture.model.quiet import one_line
from opanatomy.capture.model.wrappers import class_name
from opanatomy.errors import UsageError
from opanatomy.option_values import spelled
from opanatomy.options import DDP, FSDP2, PARALLEL, TP

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator


def cut(module: torch.nn.Module, accelerator: Accelerator) -> None:
    """Cut the weights of `module`, which all ranks have alike, in place; `UsageError` for one without a plan."""
    asked = spelled(PARALLEL, TP)
    try:
        from transformers.distributed import DistributedConfig
        from transformers.distributed.tensor_parallel import apply_tensor_parallelism
    except ImportError as error:
        raise UsageError(f"{asked} needs transformers 5.18 or later - update it") from error
    model: Any = module
    state: Any = accelerator.state
    if not getattr(model, "supports_tp_plan", False):
        raise UsageError(
            f"{asked}: {class_name(module)} has no plan of how to cut it - use {spelled(PARALLEL, DDP)} or"
            f" {spelled(PARALLEL, FSDP2)}"
        )
    ranks = accelerator.num_processes
    try:
        plan = model._resolve_parallel_plans(DistributedConfig(tp_size=ranks))[0]
        tied = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        tied -= {name for name, _ in model.named_parameters()}
        plan = {name: style for name, style in plan.items() if name not in tied}
        apply_tensor_parallelism(model, state.device_mesh[TP], plan)
        if tied:
            model.tie_weights()
    except (ValueError, RuntimeError) as error:
        raise UsageError(
            f"{asked}: {class_name(module)} cannot be cut over {ranks} ranks: {one_line(error)}"
        ) from error
    model._tp_size = ranks
