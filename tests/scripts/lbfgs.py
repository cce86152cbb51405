"""An optimizer that calls the loss itself, several times a step."""

import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(256, 8)
targets = inputs.sin().sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
# A short history, so that each step makes the same calls.
optimizer = torch.optim.LBFGS(
    model.parameters(), lr=0.5, max_iter=4, history_size=2, tolerance_grad=0, tolerance_change=0
)


def closure():
    """Return the loss, with its gradients."""
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    return loss


for step in range(24):
    loss = optimizer.step(closure)
    print(step, loss.item().hex())
