"""Four batches an update, with autocast, a scaler that skips the first updates, and clipping."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=200)
loader = DataLoader(TensorDataset(torch.randn(128 * 8, 32), torch.randint(10, (128 * 8,))), batch_size=8, shuffle=True)
accumulate = 4
updates = 0
for number, (inputs, labels) in enumerate(loader, start=1):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(inputs), labels) / accumulate
    scaler.scale(loss).backward()
    if number % accumulate == 0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        updates += 1
        print(updates, loss.item().hex(), scaler.get_scale())
