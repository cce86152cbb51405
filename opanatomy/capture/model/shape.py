"""The numbers of a model's configuration that the closed formulas of its memory take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from opanatomy.capture.device.accelerators import is_cuda
from opanatomy.records.memory import ModelShape

if TYPE_CHECKING:
    import torch

#: Model type of a configuration -> the closed formula that is its own.
_KINDS: Final = {"bert": "bert", "roberta": "bert", "gpt2": "gpt2", "llama": "llama"}


def shape_of(module: torch.nn.Module, device: str) -> ModelShape | None:
    """The shape of a transformer that a closed formula knows, else `None`."""
    config: Any = getattr(module, "config", None)
    kind = _KINDS.get(getattr(config, "model_type", ""))
    if kind is None:
        return None
    hidden, heads = config.hidden_size, config.num_attention_heads
    inner = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * hidden
    return ModelShape(
        kind=kind,
        layers=config.num_hidden_layers,
        hidden=hidden,
        heads=heads,
        intermediate=inner,
        vocabulary=config.vocab_size,
        key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_size=getattr(config, "head_dim", None) or hidden // heads,
        labels=getattr(config, "num_labels", 0),
        head=_head(type(module).__name__),
        mask_bytes=1 if is_cuda(device) else None,
        dropout=_first(config, "hidden_dropout_prob", "resid_pdrop"),
        attention_dropout=_first(config, "attention_probs_dropout_prob", "attn_pdrop", "attention_dropout"),
        activation=str(_named(config, "hidden_act", "activation_function") or "gelu"),
    )


def _head(name: str) -> str:
    if name.endswith(("ForMaskedLM", "ForCausalLM", "LMHeadModel")):
        return "language_model"
    return "classification" if name.endswith("ForSequenceClassification") else "none"


def _first(config: Any, *names: str) -> float:
    return float(_named(config, *names) or 0.0)


def _named(config: Any, *names: str) -> Any:
    return next((getattr(config, name) for name in names if getattr(config, name, None) is not None), None)
