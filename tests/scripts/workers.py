"""A loader with worker processes; each row takes a while to make."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    """Rows that take `seconds` each."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 30 * 4

    def __getitem__(self, index):
        """Make a row."""
        time.sleep(self.seconds)
        return torch.full((64,), float(index)).sin()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ms", type=float, default=0)
    parser.add_argument("--lr", type=float, default=0.01)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr)
    loader = DataLoader(Rows(arguments.ms / 1e3), batch_size=4, num_workers=arguments.workers)
    for step, inputs in enumerate(loader):
        loss = nn.functional.mse_loss(model(inputs), inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item().hex())
