"""Modules that benchmarks/predictions.py predicts besides the catalog's."""

from __future__ import annotations

import torch
from torch import nn

Built = tuple[nn.Module, tuple[torch.Tensor, ...]]


def encoder() -> Built:
    """Return torch's own encoder, 4 layers of 256, and 8 x 128 of its inputs."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    return nn.TransformerEncoder(layer, 4), (torch.randn(8, 128, 256, requires_grad=True),)


def cnn() -> Built:
    """Return a plain convolutional network of six layers, and 16 images of 64 x 64."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        layers += [nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 64, 100)), (torch.randn(16, 3, 64, 64),)
