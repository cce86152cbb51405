"""Two optimizers a step: a discriminator and a generator."""

import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 16))
discriminator = nn.Sequential(nn.Linear(16, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
of_discriminator = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
real, fake = torch.ones(32, 1), torch.zeros(32, 1)
for step in range(40):
    samples = torch.randn(32, 16)
    of_discriminator.zero_grad()
    made = generator(torch.randn(32, 8))
    loss_d = criterion(discriminator(samples), real) + criterion(discriminator(made.detach()), fake)
    loss_d.backward()
    of_discriminator.step()
    of_generator.zero_grad()
    loss_g = criterion(discriminator(made), real)
    loss_g.backward()
    of_generator.step()
    print(step, loss_d.item().hex(), loss_g.item().hex())
