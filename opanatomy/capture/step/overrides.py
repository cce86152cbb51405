"""Full state for the embeddings of an 8-bit optimizer of bitsandbytes, and of no other optimizer of the process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def keep_embeddings_in_32_bits(optimizer: torch.optim.Optimizer, module: torch.nn.Module) -> None:
    """Have `optimizer`, which has not stepped yet, keep the state of every look-up of `module` in 32 bits.

    bitsandbytes asks a `GlobalOptimManager`, one for the whole process, whose overrides are by the place of a parameter
    in its group: the next optimizer would take them for its own. This optimizer gets a manager of its own, which also
    knows nothing of what others have registered.
    """
    import torch
    from bitsandbytes.optim import GlobalOptimManager

    manager: Any = GlobalOptimManager.__new__(GlobalOptimManager)
    manager.initialize()
    for part in module.modules():
        if isinstance(part, torch.nn.Embedding):
            manager.register_module_override(part, "weight", {"optim_bits": 32})
    owner: Any = optimizer
    owner.mng = manager
