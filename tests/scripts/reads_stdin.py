"""Arguments by argparse, data by stdin, a state told by the exit code."""

import argparse
import sys

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("files", nargs="*")
arguments = parser.parse_args()
print(sys.argv, __name__, __file__)
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=arguments.lr)
for line in sys.stdin:
    inputs = torch.tensor([[float(word) for word in line.split()]])
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
sys.exit(3)
