"""What of a process a recording changes while it runs."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.data import dataloader

#: The mark of a function that follows updates.
OURS = "_opanatomy_follows"


def process() -> dict[str, Any]:
    """What a recording puts in place of torch's own, or hangs into it."""
    module_hooks = {name: dict(value) for name, value in vars(hooks).items() if name.startswith("_global") and value}
    return {
        **{f"autograd.{name}": value for name, value in vars(torch.autograd).items() if callable(value)},
        **{f"scaler.{name}": value for name, value in vars(torch.amp.GradScaler).items()},
        "zero_grad": (torch.optim.Optimizer.zero_grad, nn.Module.zero_grad),
        "loader": (dataloader._BaseDataLoaderIter.__next__, dataloader.DataLoader.__iter__),
        **{f"optimizer.{name}": value for name, value in vars(torch.optim.Optimizer).items()},
        # torch puts its own function in their place when the first optimizer of a class is made.
        "steps": [kind for kind in torch.optim.Optimizer.__subclasses__() if hasattr(vars(kind)["step"], OURS)],
        "profilers": (torch.autograd.profiler.profile.__init__, torch.profiler.profiler._KinetoProfile.__init__),
        "graphs": torch.cuda.CUDAGraph.replay,
        "of the clock": (nn.Module.eval, nn.Module.train, torch.save, torch.serialization.save, torch.compile),
        "backward": torch.Tensor.backward,
        "processes": (os.execv, os.execve),
        "collector": list(gc.callbacks),
        "finders": list(sys.meta_path),
        "modules": module_hooks,
        "of compiling": getattr(hooks, "_has_any_global_hook", None),
        "optimizers": (dict(optimizers._global_optimizer_pre_hooks), dict(optimizers._global_optimizer_post_hooks)),
        "modes": list(_get_current_dispatch_mode_stack()),
        "saved": torch._C._autograd._top_saved_tensors_default_hooks(True),
        "profiler": torch._C._autograd._profiler_enabled(),
        "variables": dict(os.environ),
    }


def without_clock(state: dict[str, Any]) -> dict[str, Any]:
    """Without what the clock of a whole loop is in."""
    of_clock = ("loader", "collector", "of the clock", "autograd._engine_run_backward", "finders")
    return {name: value for name, value in state.items() if name not in of_clock}
