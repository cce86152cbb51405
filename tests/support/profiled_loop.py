"""A training loop under a profiler of the user's own."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule


def train(handler: Any, steps: int, slow: int | None = None, usual_s: float = 0.0, **plan: int) -> None:
    """A loop under a profiler that is the user's."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile(
        activities=[ProfilerActivity.CPU], schedule=schedule(**plan), on_trace_ready=handler, record_shapes=True
    ) as profiler:
        for step in range(steps):
            model(torch.ones(32, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(2.0 if step == slow else usual_s)
            profiler.step()
