"""`opanatomy.profile` leaves the caller's process as it was: torch's settings, variables, warnings, loggers, hooks."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor
import transformers.utils
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import opanatomy
from opanatomy.errors import CaptureError

X = torch.ones(2, 8)


class Model(torch.nn.Module):
    """A model that notes what is set while it runs, and fails where it is asked to."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)
        self.fails = fails
        self.named_kernels: set[bool] = set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.named_kernels.add(inductor.cpp.enable_kernel_profile)
        if self.fails:
            raise ValueError("no")
        return self.layer(x)


def state() -> dict[str, Any]:
    """What a profile could leave behind."""
    loggers = [logging.getLogger(), *logging.root.manager.loggerDict.values()]
    backends = torch.backends
    return {
        "variables": dict(os.environ),
        "warnings": (list(warnings.filters), warnings.showwarning),
        "loggers": {
            one.name: (one.level, one.propagate, one.disabled, list(one.handlers))
            for one in loggers
            if isinstance(one, logging.Logger) and (one.level or one.handlers or one.disabled)
        },
        "bars": transformers.utils.logging.is_progress_bar_enabled(),
        "streams": (sys.stdout, sys.stderr, sys.excepthook, sys.unraisablehook, sys.getrecursionlimit()),
        "tracing": sys.gettrace(),
        "path": list(sys.path),
        "folder": Path.cwd(),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
        "collector": (gc.isenabled(), gc.get_threshold(), list(gc.callbacks)),
        "threads": (torch.get_num_threads(), {thread.name for thread in threading.enumerate()}),
        "defaults": (torch.get_default_dtype(), torch.get_default_device(), torch.get_float32_matmul_precision()),
        "modes": (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_anomaly_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.is_autocast_cache_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            list(_get_current_dispatch_mode_stack()),
            torch._C._autograd._profiler_enabled(),
        ),
        "backends": (
            backends.mkldnn.enabled,
            backends.cudnn.benchmark,
            backends.cudnn.deterministic,
            backends.cudnn.allow_tf32,
            backends.cuda.matmul.allow_tf32,
            backends.cuda.flash_sdp_enabled(),
        ),
        "inductor": inductor.get_config_copy(),
        "hooks": [
            dict(table)
            for table in (
                hooks._global_forward_hooks,
                hooks._global_forward_pre_hooks,
                hooks._global_backward_hooks,
                hooks._global_backward_pre_hooks,
            )
        ],
        "random": torch.get_rng_state().tolist(),
    }


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"memory": True, "optimizer": "adamw", "amp": "bf16"},
        {"amp": "fp16", "steps": 2},
        {"inference": True, "redact": True},
        {"compile": True},
        {"compile": True, "compile_mode": "reduce-overhead"},
        {"lines": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("fails", [False, True])
def test_the_process_is_as_it_was(options: dict[str, Any], fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    monkeypatch.setattr(torch, "compile", lambda module, mode: module)  # what it compiles with is set all the same
    opanatomy.profile(torch.nn.Linear(8, 4), X)  # the first of a process imports modules with loggers of their own
    model, before = Model(fails=fails), state()
    if fails:
        with pytest.raises(CaptureError, match="ValueError"):
            opanatomy.profile(model, X, **options)
    else:
        opanatomy.profile(model, X, **options)
    assert model.named_kernels == {"compile" in options}
    after = state()
    for name, value in before.items():
        assert after[name] == value, name
