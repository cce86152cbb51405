"""Trainings of a small BERT by transformers' Trainer, and what they logged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments

LENGTH, BATCH, MAX_STEPS = 16, 2, 8


class Texts(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Random tokens, the same ones each time."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = torch.randint(0, 160, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words}


def bert() -> BertForMaskedLM:
    torch.manual_seed(0)
    return BertForMaskedLM(
        BertConfig(
            num_hidden_layers=2,
            hidden_size=32,
            num_attention_heads=2,
            intermediate_size=64,
            vocab_size=160,
            max_position_embeddings=LENGTH,
        )
    )


def trainer(*callbacks: Any, folder: Path, kind: type[Trainer] = Trainer, **settings: Any) -> Trainer:
    arguments = TrainingArguments(
        output_dir=str(folder / "training"),
        **{
            "per_device_train_batch_size": BATCH,
            "per_device_eval_batch_size": 8,
            "max_steps": MAX_STEPS,
            "logging_steps": 1,
            "report_to": [],
            "save_strategy": "no",
            "use_cpu": True,
            "disable_tqdm": True,
            **settings,
        },
    )
    evaluated = torch.utils.data.Subset(Texts(), range(8))
    return kind(model=bert(), args=arguments, train_dataset=Texts(), eval_dataset=evaluated, callbacks=list(callbacks))


def losses(training: Trainer) -> list[tuple[float, float]]:
    """Loss and norm of the gradients of each step, and the loss of each evaluation."""
    return [
        (entry["loss"], entry["grad_norm"]) if "loss" in entry else (entry["eval_loss"], 0.0)
        for entry in training.state.log_history
        if "loss" in entry or "eval_loss" in entry
    ]


def figures(training: Trainer) -> list[dict[str, Any]]:
    """The log entries with our figures."""
    return [entry for entry in training.state.log_history if any("opanatomy/" in name for name in entry)]
