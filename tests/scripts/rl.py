"""A policy gradient: each iteration plays games without gradients, then updates three times."""

import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
value = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=1e-3)
for iteration in range(12):
    states, actions, rewards = [], [], []
    state = torch.randn(16, 4)
    with torch.no_grad():
        for _ in range(8):
            action = torch.distributions.Categorical(logits=policy(state)).sample()
            states.append(state)
            actions.append(action)
            state = 0.9 * state + 0.1 * (2 * action - 1).unsqueeze(1) + 0.05 * torch.randn(16, 4)
            rewards.append(-state.square().sum(1))
        returns = torch.stack(rewards).flip(0).cumsum(0).flip(0).reshape(-1)
        seen, taken = torch.cat(states), torch.cat(actions)
        old = torch.distributions.Categorical(logits=policy(seen)).log_prob(taken)
    for _ in range(3):
        expected = value(seen).squeeze(1)
        ratio = (torch.distributions.Categorical(logits=policy(seen)).log_prob(taken) - old).exp()
        advantage = (returns - expected).detach()
        clipped = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        loss = -clipped.mean() + 0.5 * (returns - expected).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(iteration, loss.item().hex())
