"""Layers other than the usual ones: products of every kind, parametrized weights, layouts and data types."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.zoo import Built, Models, tokens
from benchmarks.zoo.programs import called, plain


def flex(model: Any, x: torch.Tensor) -> torch.Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    q = model.first(x).reshape(1, 1, 6, 16)
    return flex_attention(q, q, q)


def condition(model: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 100, model.first, lambda y: model.first(y) * 2, (x,))


def parametrized(of: Callable[[nn.Module], nn.Module]) -> Built:
    return nn.Sequential(of(nn.Linear(16, 16)), nn.ReLU(), nn.Linear(16, 4)), (torch.randn(6, 16),)


def bag(**options: Any) -> Built:
    return nn.Sequential(nn.EmbeddingBag(96, 16, **options), nn.Linear(16, 4)), (tokens(6, 5),)


def encoder_with_padding() -> Built:
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    padding = torch.tensor([[False] * 6, [False] * 3 + [True] * 3])
    model = nn.TransformerEncoder(layer, 2)
    return model, {"src": torch.randn(2, 6, 32), "src_key_padding_mask": padding}


def quantized_dynamically() -> Built:
    from torch.ao.quantization import quantize_dynamic

    body = quantize_dynamic(nn.Sequential(nn.Linear(16, 32), nn.ReLU()), {nn.Linear}, dtype=torch.qint8)
    return nn.Sequential(body, nn.Linear(32, 4)), (torch.randn(6, 16),)


def complex_numbers(model: Any, x: torch.Tensor) -> torch.Tensor:
    spectrum = torch.fft.rfft(model.first(x))
    return torch.view_as_real(spectrum @ model.mixing).square().sum()


def complex_mix() -> Built:
    model, inputs = called(complex_numbers)
    model.mixing = nn.Parameter(torch.randn(9, 9, dtype=torch.complex64))
    return model, inputs


def jagged() -> Built:
    def attend(model: Any, x: torch.Tensor) -> torch.Tensor:
        rows = torch.nested.nested_tensor([x[:2], x[2:]], layout=torch.jagged)
        heads = model.first(rows).unflatten(-1, (2, 8)).transpose(1, 2)
        output: torch.Tensor = functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).values()
        return output

    return called(attend)


def sparse_weight() -> Built:
    matrix = (torch.rand(16, 16) > 0.7).float().to_sparse()

    def forward(model: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.sparse.mm(matrix, model.first(x).T).T

    return called(forward)


def double() -> Built:
    model, (x,) = called(plain)
    return model.double(), (x.double(),)


MODELS: Models = {
    "strange operator: flex_attention": partial(called, flex),
    "strange operator: cond": partial(called, condition),
    "strange operator: einsum": lambda: called(lambda m, x: torch.einsum("bi,oi,bj->oj", x, m.first.weight, x)),
    "strange operator: vectors": lambda: called(lambda m, x: m.first.weight @ x[0] + (x[1] @ m.first.weight[0])),
    "strange operator: multi_dot": lambda: called(lambda m, x: torch.linalg.multi_dot([x, m.first.weight, x.T])),
    "strange operator: outer, kron": lambda: called(lambda m, x: torch.outer(m.first.bias, x[0]) @ torch.kron(
        torch.eye(4), m.second.weight[:, :4])),
    "strange operator: tensordot, addbmm": lambda: called(
        lambda m, x: torch.addbmm(m.first.weight, x[:, :, None], x[:, None, :]) + torch.tensordot(x, x, ([0], [0]))
    ),
    "strange operator: linalg": lambda: called(
        lambda m, x: torch.linalg.solve(m.first.weight, x.T) + torch.linalg.qr(m.first.weight)[0][:, :6]
        + torch.matrix_exp(m.first.weight)[:, :6]
    ),
    "strange operator: grouped attention": lambda: called(
        lambda m, x: functional.scaled_dot_product_attention(
            m.first(x).reshape(1, 4, 6, 4), x[:, :8].reshape(1, 2, 6, 4), x[:, 8:].reshape(1, 2, 6, 4), enable_gqa=True
        )
    ),
    "strange operator: one tensor as q, k, v": lambda: called(
        lambda m, x: functional.multi_head_attention_forward(
            m.first(x), m.first(x), m.first(x), 16, 2, m.all.weight, m.all.bias, None, None, False, 0.0,
            m.first.weight, m.first.bias,
        )[0], all=nn.Linear(16, 48),
    ),
    "strange weight: weight norm": partial(parametrized, nn.utils.parametrizations.weight_norm),
    "strange weight: spectral norm": partial(parametrized, nn.utils.parametrizations.spectral_norm),
    "strange weight: orthogonal": partial(parametrized, nn.utils.parametrizations.orthogonal),
    "strange weight: old weight norm": partial(parametrized, nn.utils.weight_norm),
    "strange embedding: bag": partial(bag, mode="mean"),
    "strange embedding: bag, sparse gradient": partial(bag, sparse=True),
    "strange embedding: sparse gradient": lambda: (
        nn.Sequential(nn.Embedding(96, 16, sparse=True), nn.Linear(16, 4)), (tokens(),)
    ),
    "strange layout: jagged": jagged,
    "strange layout: sparse matrix": sparse_weight,
    "strange layout: channels last": lambda: (
        nn.Conv2d(8, 8, 3, groups=2).to(memory_format=torch.channels_last), (torch.randn(2, 8, 9, 9),)
    ),
    "strange type: double": double,
    "strange type: complex": complex_mix,
    "strange type: quantized": quantized_dynamically,
    "strange attention: padded encoder": encoder_with_padding,
}  # fmt: skip
