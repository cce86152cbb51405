"""Adapters and prompts of peft on a tiny Llama and a tiny BERT, with and without checkpointing."""

from __future__ import annotations

from functools import partial
from typing import Any

import peft
import torch
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

from benchmarks.zoo import Built, Models, tokens


def llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        use_cache=False,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def adapted(config: Any, *, checkpointing: bool | None = None) -> Built:
    """A Llama with what `config` says; `checkpointing` is whether it is reentrant, `None` for none."""
    base = llama()
    if checkpointing is not None:
        base.gradient_checkpointing_enable({"use_reentrant": checkpointing})
        base.enable_input_require_grads()
    model = peft.get_peft_model(base, config)
    ids = tokens()
    return model.train(), {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def adapted_bert() -> Built:
    config = BertConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        num_labels=3,
    )
    model = peft.get_peft_model(
        BertForSequenceClassification(config), peft.LoraConfig(task_type="SEQ_CLS", r=4, lora_dropout=0.1)
    )
    ids = tokens()
    return model.train(), {"input_ids": ids, "labels": torch.tensor([0, 2])}


_LINEAR = ["q_proj", "v_proj", "down_proj"]
_LORA = partial(peft.LoraConfig, task_type="CAUSAL_LM", r=4, target_modules=_LINEAR)


MODELS: Models = {
    "peft LoRA": lambda: adapted(_LORA(lora_dropout=0.1)),
    "peft LoRA all linear": lambda: adapted(_LORA(target_modules="all-linear")),
    "peft LoRA, embedding": lambda: adapted(_LORA(target_modules=["embed_tokens", "q_proj"])),
    "peft LoRA checkpointing": lambda: adapted(_LORA(), checkpointing=False),
    "peft LoRA checkpointing reentrant": lambda: adapted(_LORA(), checkpointing=True),
    "peft DoRA": lambda: adapted(_LORA(use_dora=True)),
    "peft IA3": lambda: adapted(
        peft.IA3Config(task_type="CAUSAL_LM", target_modules=_LINEAR, feedforward_modules=["down_proj"])
    ),
    "peft AdaLoRA": lambda: adapted(
        peft.AdaLoraConfig(task_type="CAUSAL_LM", target_modules=_LINEAR, init_r=4, target_r=2, total_step=10)
    ),
    "peft LoHa": lambda: adapted(peft.LoHaConfig(r=4, target_modules=_LINEAR)),
    "peft LoKr": lambda: adapted(peft.LoKrConfig(r=4, target_modules=_LINEAR)),
    "peft OFT": lambda: adapted(peft.OFTConfig(oft_block_size=8, target_modules=_LINEAR, use_cayley_neumann=False)),
    "peft VeRA": lambda: adapted(peft.VeraConfig(r=4, target_modules=["q_proj"])),
    "peft prefix tuning": lambda: adapted(peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)),
    "peft prompt tuning": lambda: adapted(peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)),
    "peft p-tuning": lambda: adapted(
        peft.PromptEncoderConfig(
            task_type="CAUSAL_LM", num_virtual_tokens=4, encoder_hidden_size=16, encoder_reparameterization_type="LSTM"
        )
    ),
    "peft LayerNorm tuning": lambda: adapted(
        peft.LNTuningConfig(task_type="CAUSAL_LM", target_modules=["input_layernorm", "post_attention_layernorm"])
    ),
    "peft LoRA on BERT": adapted_bert,
}
