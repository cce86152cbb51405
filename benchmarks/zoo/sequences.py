"""Transformers of x-transformers, and torch's own recurrent networks, attention and losses."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from x_transformers import Decoder, Encoder, TransformerWrapper, ViTransformerWrapper, XTransformer

from benchmarks.zoo import Built, Loss, Models, image, tokens

_SIZE = {"dim": 32, "depth": 2, "heads": 2, "attn_dim_head": 16}


def decoder(**options: Any) -> Built:
    layers = Decoder(**_SIZE, **options)
    return TransformerWrapper(num_tokens=96, max_seq_len=32, attn_layers=layers), (tokens(),)


def encoder(**options: Any) -> Built:
    layers = Encoder(**_SIZE, **options)
    return TransformerWrapper(num_tokens=96, max_seq_len=32, attn_layers=layers), (tokens(),)


def encoder_decoder() -> Built:
    model = XTransformer(
        dim=32,
        enc_num_tokens=96,
        enc_depth=1,
        enc_heads=2,
        enc_max_seq_len=32,
        dec_num_tokens=96,
        dec_depth=1,
        dec_heads=2,
        dec_max_seq_len=32,
    )
    return model, (tokens(), tokens())


def vision() -> Built:
    layers = Encoder(**_SIZE)
    return ViTransformerWrapper(image_size=32, patch_size=8, num_classes=10, attn_layers=layers), (image(32),)


def recurrent(kind: str, **options: Any) -> Built:
    made: type[nn.Module] = getattr(nn, kind)
    return made(16, 24, num_layers=2, batch_first=True, **options), (torch.randn(3, 7, 16, requires_grad=True),)


def packed() -> Built:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(16, 24, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            row = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([7, 5, 2]), batch_first=True)
            output, _ = self.lstm(row)
            last: torch.Tensor = nn.utils.rnn.pad_packed_sequence(output, batch_first=True)[0]
            return last

    return Packed(), (torch.randn(3, 7, 16),)


def cells() -> Built:
    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.gru, self.rnn = nn.LSTMCell(16, 16), nn.GRUCell(16, 16), nn.RNNCell(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for row in x:
                hidden: torch.Tensor = self.rnn(self.gru(self.lstm(row)[0]))
            return hidden

    return Cells(), (torch.randn(4, 3, 16),)


def ctc() -> Built:
    criterion = nn.CTCLoss()

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        targets = torch.randint(1, 12, (2, 5))
        loss: torch.Tensor = criterion(x.log_softmax(-1), targets, torch.tensor([20, 20]), torch.tensor([5, 4]))
        return loss

    return Loss(nn.Linear(16, 12), loss_of), (torch.randn(20, 2, 16),)


def metric_losses() -> Built:
    """Losses with products of their own: cosine, triplet, pairwise distance."""

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        a, b, c = x.chunk(3)
        near = nn.functional.triplet_margin_loss(a, b, c) + nn.functional.cosine_similarity(a, b).mean()
        return near + torch.cdist(a, b).mean() + nn.functional.gaussian_nll_loss(a, b, c.exp())

    return Loss(nn.Bilinear(16, 16, 8), loss_of), (torch.randn(12, 16), torch.randn(12, 16))


MODELS: Models = {
    "x-transformers decoder": decoder,
    "x-transformers decoder flash rotary": partial(decoder, attn_flash=True, rotary_pos_emb=True),
    "x-transformers decoder one kv head, GLU": partial(decoder, attn_one_kv_head=True, ff_glu=True, ff_swish=True),
    "x-transformers decoder alibi": partial(decoder, alibi_pos_bias=True, alibi_num_heads=1),
    "x-transformers decoder T5 bias, sparse top-k": partial(decoder, rel_pos_bias=True, attn_sparse_topk=4),
    "x-transformers decoder talking heads": partial(decoder, attn_pre_talking_heads=True),
    "x-transformers encoder macaron, memory": partial(encoder, macaron=True, attn_num_mem_kv=4),
    "x-transformers encoder flash": partial(encoder, attn_flash=True, use_rmsnorm=True),
    "x-transformers encoder-decoder": encoder_decoder,
    "x-transformers vision": vision,
    "torch LSTM": partial(recurrent, "LSTM"),
    "torch LSTM bidirectional, projected": partial(recurrent, "LSTM", bidirectional=True, proj_size=8),
    "torch GRU": partial(recurrent, "GRU"),
    "torch RNN": partial(recurrent, "RNN", bidirectional=True),
    "torch LSTM packed": packed,
    "torch recurrent cells": cells,
    "torch Transformer": lambda: (
        nn.Transformer(32, 2, 1, 1, 64, batch_first=True), (torch.randn(2, 6, 32), torch.randn(2, 5, 32))
    ),
    "torch CTCLoss": ctc,
    "torch Bilinear, metric losses": metric_losses,
}  # fmt: skip
