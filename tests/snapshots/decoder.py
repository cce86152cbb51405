"""A decoder written out in plain torch: RMSNorm, rotary embedding, einsum attention, SwiGLU (the shape of a course's).

`tests/snapshots/decoder.py:medium` profiles it; the recordings of a device run its training step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

VOCABULARY = 10_000
#: Layers, width, feed-forward width, heads.
MEDIUM = (24, 1_024, 4_096, 16)
SMALL = (3, 256, 1_024, 4)


class Linear(nn.Module):
    """A linear layer without a bias, by einsum."""

    def __init__(self, width: int, to: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(to, width) * math.sqrt(2 / (width + to)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("...i,oi->...o", x, self.weight)


class Embedding(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(VOCABULARY, width))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.weight[tokens]


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        given = x.dtype
        x = x.to(torch.float32)
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        x = x * scale
        return (self.weight * x).to(given)


class Rotary(nn.Module):
    def __init__(self, length: int, head: int, theta: float = 10_000.0) -> None:
        super().__init__()
        rates = theta ** -(torch.arange(0, head, 2) / head)
        angles = torch.outer(torch.arange(length), rates)
        self.register_buffer("cache", torch.stack((angles.cos(), angles.sin())), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        cos, sin = self.cache[:, : x.shape[-2]]
        even, odd = x[..., 0::2], x[..., 1::2]
        turned_even = cos * even - sin * odd
        turned_odd = sin * even + cos * odd
        return torch.stack((turned_even, turned_odd), dim=-1).flatten(-2)


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Softmax by its parts."""
    shifted = x - x.max(dim=dim, keepdim=True)[0]
    powers = torch.exp(shifted)
    return powers / powers.sum(dim=dim, keepdim=True)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean negative log-likelihood, by its parts."""
    shifted = logits - logits.max(dim=-1, keepdim=True)[0]
    logs = shifted - torch.log(torch.sum(torch.exp(shifted), dim=-1, keepdim=True))
    return -logs.gather(-1, targets.unsqueeze(-1)).mean()


def attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Scaled dot-product attention by einsum."""
    scores = torch.einsum("...qd,...kd->...qk", queries, keys) / math.sqrt(keys.shape[-1])
    scores = torch.where(mask, scores, float("-inf"))
    weights = softmax(scores, dim=-1)
    return torch.einsum("...qk,...kd->...qd", weights, values)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, rotary: Rotary) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj = (Linear(width, width) for _ in range(3))
        self.output_proj = Linear(width, width)
        self.rotary = rotary

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        queries, keys, values = (
            one(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for one in (self.q_proj, self.k_proj, self.v_proj)
        )
        queries, keys = self.rotary(queries), self.rotary(keys)
        at = torch.arange(length, device=x.device)
        mask = at[:, None] >= at[None, :]
        found = attention(queries, keys, values, mask)
        return self.output_proj(found.transpose(1, 2).contiguous().view(batch, length, width))


def silu(x: Tensor) -> Tensor:
    """Sigmoid-weighted linear unit."""
    return x * torch.sigmoid(x)


class SwiGLU(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = Linear(width, inner), Linear(inner, width), Linear(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, width: int, inner: int, heads: int, rotary: Rotary) -> None:
        super().__init__()
        self.ln1, self.ln2 = RMSNorm(width), RMSNorm(width)
        self.attn = Attention(width, heads, rotary)
        self.ffn = SwiGLU(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.ffn(self.ln2(x))


class Decoder(nn.Module):
    """Tokens and targets to the loss; without targets to the logits."""

    def __init__(self, layers: int, width: int, inner: int, heads: int, length: int) -> None:
        super().__init__()
        self.token_embeddings = Embedding(width)
        rotary = Rotary(length, width // heads)
        self.layers = nn.ModuleList(Block(width, inner, heads, rotary) for _ in range(layers))
        self.ln_final = RMSNorm(width)
        self.lm_head = Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        x = self.token_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        logits = self.lm_head(self.ln_final(x))
        return logits if targets is None else cross_entropy(logits, targets)


class AdamW(torch.optim.Optimizer):
    """AdamW a parameter at a time, each term a tensor of its own."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = 1e-3) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                steps = state.get("steps", 0) + 1
                first = state.get("first", torch.zeros_like(parameter))
                second = state.get("second", torch.zeros_like(parameter))
                first = 0.9 * first + 0.1 * parameter.grad
                second = 0.95 * second + 0.05 * parameter.grad * parameter.grad
                rate = group["lr"] * math.sqrt(1 - 0.95**steps) / (1 - 0.9**steps)
                parameter -= rate * first / (torch.sqrt(second) + 1e-8)
                parameter -= group["lr"] * 0.01 * parameter
                state["steps"], state["first"], state["second"] = steps, first, second


def decoder(shape: tuple[int, int, int, int], batch: int, length: int) -> tuple[Decoder, tuple[Tensor, Tensor]]:
    """A decoder and what it takes: tokens and targets, each batch x length."""
    torch.manual_seed(0)
    tokens, targets = torch.randint(0, VOCABULARY, (2, batch, length))
    return Decoder(*shape, length), (tokens, targets)


def medium() -> tuple[Decoder, tuple[Tensor, Tensor]]:
    """24 layers, width 1,024, batch 4, length 512."""
    return decoder(MEDIUM, 4, 512)


def medium_128() -> tuple[Decoder, tuple[Tensor, Tensor]]:
    """24 layers, width 1,024, batch 4, length 128."""
    return decoder(MEDIUM, 4, 128)
