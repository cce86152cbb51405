"""A loop as torch's tutorials write it."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)
for step in range(30):
    inputs = torch.randn(32, 64)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), inputs)
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(step, loss.item().hex())
