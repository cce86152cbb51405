"""A training with a profiler of its own."""

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

torch.manual_seed(0)
model = nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def ready(profiler):
    """Print how many kinds of operators were seen."""
    print("operators", len(profiler.key_averages()))


with profile(
    activities=[ProfilerActivity.CPU], schedule=schedule(wait=10, warmup=1, active=2, repeat=1), on_trace_ready=ready
) as profiler:
    for step in range(40):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        profiler.step()
        print(step, loss.item().hex())
