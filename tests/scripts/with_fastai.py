"""A Learner of fastai, with its own optimizer or with one of torch."""

import sys
from functools import partial

import fastai.callback.progress  # noqa: F401 - gives a Learner no_bar
import torch
from fastai.callback.core import Callback
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from fastai.optimizer import Adam, OptimWrapper
from torch import nn


class Print(Callback):
    """Print each loss."""

    def after_loss(self):
        """Print it to the last bit."""
        print(self.iter, self.loss.item().hex())


torch.manual_seed(0)
rows = [(torch.randn(32), torch.randint(10, ())) for _ in range(240)]
loaders = DataLoaders(DataLoader(rows, bs=8, num_workers=0), DataLoader(rows[:8], bs=8, num_workers=0))
model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 10))
kind = partial(OptimWrapper, opt=torch.optim.AdamW) if "torch" in sys.argv else Adam
learner = Learner(loaders, model, loss_func=nn.CrossEntropyLoss(), opt_func=kind, cbs=[Print()])
with learner.no_bar(), learner.no_logging():
    learner.fit(1, lr=1e-3)
