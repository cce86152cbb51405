"""A training in a thread of its own."""

import threading

import torch
from torch import nn


def train():
    """Train a layer."""
    torch.manual_seed(0)
    model = nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(30):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item().hex())


thread = threading.Thread(target=train)
thread.start()
thread.join()
