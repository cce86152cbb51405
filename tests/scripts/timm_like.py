"""A loop like timm's: its model, optimizer and scheduler, and an average of the weights."""

import timm
import torch
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3
from torch import nn

torch.manual_seed(0)
model = timm.create_model("test_vit", pretrained=False, num_classes=10, img_size=32)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
scheduler = CosineLRScheduler(optimizer, t_initial=24)
average = ModelEmaV3(model, decay=0.99)
model.train()
for update in range(24):
    images, labels = torch.randn(4, 3, 32, 32), torch.randint(10, (4,))
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    average.update(model, step=update)
    scheduler.step_update(update)
    print(update, loss.item().hex())
