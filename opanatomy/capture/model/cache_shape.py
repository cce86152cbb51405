"""The numbers of a model's configuration that the key-value cache of its generations is a function of."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from opanatomy.records.memory import CacheShape

if TYPE_CHECKING:
    import torch

#: The kinds of layers that keep keys and values of all tokens, and of those in a window.
_FULL: Final = frozenset({"full_attention"})
_SLIDING: Final = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
#: Configurations with one of these keep something else than the keys and values of each layer.
_OTHERWISE: Final = ("kv_lora_rank", "kv_sharing_modes", "num_kv_shared_layers", "state_size", "ssm_cfg", "n_kv_shared")


def cache_shape_of(module: torch.nn.Module, inputs: Any) -> CacheShape | None:
    """What the cache of a generation from these inputs is a function of; `None` where that is not known."""
    config: Any = getattr(module, "config", None)
    if config is None or not isinstance(inputs, dict):
        return None
    # That of a decoder in an encoder-decoder says its own numbers beside those of its encoder.
    text = config if config.is_encoder_decoder else config.get_text_config(decoder=True)
    if getattr(config, "use_cache", True) is False or any(getattr(text, name, None) for name in _OTHERWISE):
        return None
    layers, heads = _first(text, "num_decoder_layers", "decoder_layers", "num_hidden_layers"), _heads(text)
    windows = _windows(text, layers)
    size = _first(text, "head_dim", "d_kv") or (text.hidden_size // (_attention_heads(text) or 1))
    if not layers or not heads or windows is None or not size:
        return None
    shape = CacheShape(windows=windows, key_value_heads=heads, head_size=size, prompt=1)
    return _encoded(shape, config, inputs) if config.is_encoder_decoder else _prompted(shape, module, inputs)


def _prompted(shape: CacheShape, module: torch.nn.Module, inputs: dict[str, Any]) -> CacheShape | None:
    """With the prompt of a decoder alone; its positions are copied for the beams where its forward takes them."""
    length = _length(inputs, "input_ids")
    if length is None:
        return None
    copies = 1 + ("position_ids" in inspect.signature(module.forward).parameters)
    return CacheShape(
        windows=shape.windows, key_value_heads=shape.key_value_heads, head_size=shape.head_size, prompt=length,
        prompt_copies=copies,
    )  # fmt: skip


def _encoded(shape: CacheShape, config: Any, inputs: dict[str, Any]) -> CacheShape | None:
    """With what the decoder keeps of its encoder: of text as many tokens, of Whisper's audio half as many frames."""
    length = _length(inputs, "input_ids")
    if length is None and "input_features" in inputs:
        length = getattr(config, "max_source_positions", None)
    if length is None:
        return None
    return CacheShape(
        windows=shape.windows, key_value_heads=shape.key_value_heads, head_size=shape.head_size, prompt=1,
        cross_length=length, encoder_hidden=config.hidden_size,
    )  # fmt: skip


def _length(inputs: dict[str, Any], name: str) -> int | None:
    shape: tuple[int, ...] = getattr(inputs.get(name), "shape", ())
    return int(shape[1]) if len(shape) == 2 else None


def _windows(text: Any, layers: int | None) -> tuple[int, ...] | None:
    """The window of each layer, 0 where there is none; `None` where a layer is of another kind."""
    if layers is None:
        return None
    kinds = getattr(text, "layer_types", None)
    if kinds is None:
        window = getattr(text, "sliding_window", None) or getattr(text, "attention_chunk_size", None) or 0
        return (window,) * layers
    if len(kinds) != layers or not set(kinds) <= _FULL | set(_SLIDING):
        return None
    return tuple(getattr(text, _SLIDING[kind]) if kind in _SLIDING else 0 for kind in kinds)


def _heads(text: Any) -> int | None:
    return _first(text, "num_key_value_heads") or _attention_heads(text)


def _attention_heads(text: Any) -> int | None:
    return _first(text, "decoder_attention_heads", "num_attention_heads")


def _first(config: Any, *names: str) -> int | None:
    values = (getattr(config, name, None) for name in names)
    return next((value for value in values if isinstance(value, int) and not isinstance(value, bool)), None)
