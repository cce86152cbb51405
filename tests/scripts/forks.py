"""A training that forks in the middle: the child does some work of its own."""

import os

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    loss = model(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item().hex(), flush=True)
    if step in (5, 12, 30):
        child = os.fork()
        if not child:
            for _ in range(4):
                optimizer.step()
            os._exit(7)
        print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
