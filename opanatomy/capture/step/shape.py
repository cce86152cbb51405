"""Read the numbers in a model's configuration for closed formulas: of its memory, of a token's FLOPs."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from opanatomy.capture.device.accelerators import is_cuda
from opanatomy.capture.model.parts import first_integer, layer_windows
from opanatomy.capture.step.generation import Generator
from opanatomy.records.estimate import DecoderShape
from opanatomy.records.memory import CacheShape, ModelShape

if TYPE_CHECKING:
    import torch

#: Model type of a configuration -> its closed formula.
_KINDS: Final = {"bert": "bert", "roberta": "bert", "gpt2": "gpt2", "llama": "llama"}


def shape_of(module: torch.nn.Module, device: str) -> ModelShape | None:
    """Return the shape of a transformer that has a closed formula, else `None`."""
    config: Any = getattr(module, "config", None)
    kind = _KINDS.get(getattr(config, "model_type", ""))
    if kind is None:
        return None
    hidden, heads = config.hidden_size, config.num_attention_heads
    inner = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * hidden
    name = type(module).__name__
    head = "classification" if name.endswith("ForSequenceClassification") else "none"
    if name.endswith(("ForMaskedLM", "ForCausalLM", "LMHeadModel")):
        head = "language_model"
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
        head=head,
        mask_bytes=1 if is_cuda(device) else None,
        dropout=float(_named(config, "hidden_dropout_prob", "resid_pdrop") or 0.0),
        attention_dropout=float(
            _named(config, "attention_probs_dropout_prob", "attn_pdrop", "attention_dropout") or 0.0
        ),
        activation=str(_named(config, "hidden_act", "activation_function") or "gelu"),
    )


def decoder_of(module: torch.nn.Module) -> DecoderShape | None:
    """Return the sizes of a text decoder; `None` for another model, or if its configuration lacks them."""
    import torch

    model: Any = module
    config: Any = getattr(model, "config", None)
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    decodes = type(module).__name__.endswith(("ForCausalLM", "LMHeadModel"))
    if head is None or not decodes or getattr(config, "is_encoder_decoder", True):
        return None
    layers = _named(config, "num_hidden_layers", "n_layer", "n_layers")
    width = _named(config, "hidden_size", "n_embd", "d_model")
    heads = _named(config, "num_attention_heads", "n_head", "n_heads")
    if not layers or not width or not heads:
        return None
    sizes = {id(weight): weight.numel() for weight in module.parameters()}
    tables = [child for child in module.modules() if isinstance(child, torch.nn.Embedding)]
    words = getattr(model.get_input_embeddings(), "weight", None)
    experts, used = (
        _named(config, "num_experts", "num_local_experts", "n_routed_experts"),
        _named(config, "num_experts_per_tok", "moe_topk"),
    )
    inner, idle = _inner_weights(module, experts, used)
    return DecoderShape(
        layers=layers,
        hidden=width,
        heads=heads,
        vocabulary=head.weight.shape[0],
        key_value_heads=_named(config, "num_key_value_heads", "num_kv_heads") or heads,
        head_size=_named(config, "head_dim") or width // heads,
        parameters=sum(sizes.values()),
        embeddings=sum({id(table.weight): table.weight.numel() for table in tables}.values()),
        positions=sum(table.weight.numel() for table in tables if table.weight is not words),
        tied=head.weight is words,
        inner_weights=inner,
        idle=idle,
    )


#: Names of feed-forward modules, and of routers in them.
_INNER: Final = ("mlp", "ffn", "feed_forward", "moe")
_ROUTERS: Final = ("gate", "router")


def _inner_weights(module: torch.nn.Module, experts: int | None, used: int | None) -> tuple[int, int]:
    """Return the feed-forward weights used per token, and the weights of unused experts."""
    inner = idle = 0
    for name, weight in module.named_parameters():
        parts = name.split(".")
        inside = any(word in part for part in parts[:-1] for word in _INNER)
        if weight.dim() < 2 or not inside or parts[-2].endswith(_ROUTERS):
            continue
        routed = "experts" in parts and bool(experts and used)
        mine = weight.numel() * (used or 1) // (experts or 1) if routed else weight.numel()
        inner += mine
        idle += weight.numel() - mine
    return inner, idle


def _named(config: Any, *names: str) -> Any:
    return next((getattr(config, name) for name in names if getattr(config, name, None) is not None), None)


# Read the numbers in a model's configuration that determine the key-value cache of its generations.


#: Configurations with one of these do not cache keys and values of equal size in each layer.
_OTHERWISE: Final = (
    "kv_lora_rank", "v_head_dim", "kv_sharing_modes", "num_kv_shared_layers", "multi_query", "num_kv_heads",
    "new_decoder_architecture", "cross_attention_layers", "state_size",
)  # fmt: skip
#: Names of a prompt input; other inputs are also repeated for each beam.
_PROMPTS: Final = ("input_ids", "inputs", "input_features")


def cache_shape_of(generator: Generator) -> CacheShape | None:
    """Return the numbers that determine the cache of these generations; `None` if they are unknown."""
    config: Any = getattr(generator.module, "config", None)
    if not hasattr(config, "get_text_config"):
        return None
    # The configuration of a decoder in an encoder-decoder has its own numbers next to those of its encoder.
    text = config if config.is_encoder_decoder else config.get_text_config(decoder=True)
    cached = getattr(generator.module.generation_config, "use_cache", None) is not False
    if not cached or any(getattr(text, name, None) for name in _OTHERWISE):
        return None
    layers = first_integer(text, "num_decoder_layers", "decoder_layers", "num_hidden_layers")
    attention_heads = first_integer(text, "decoder_attention_heads", "num_attention_heads")
    heads = first_integer(text, "num_key_value_heads") or attention_heads
    windows = layer_windows(text, layers)
    size = first_integer(text, "head_dim", "d_kv") or (text.hidden_size // (attention_heads or 1))
    if not layers or not heads or windows is None or not size:
        return None
    # The tokens of a prompt of text.
    arguments = generator.arguments
    sizes: list[tuple[int, ...]] = [getattr(arguments.get(name), "shape", ()) for name in _PROMPTS]
    length = next((int(shape[1]) for shape in sizes if len(shape) == 2), None)
    shape = CacheShape(
        windows=windows,
        key_value_heads=heads,
        head_size=size,
        prompt=1,
        prompt_copies=1 if set(arguments) <= set(_PROMPTS) else None,
    )
    if config.is_encoder_decoder:
        # The encoder's part of the cache has as many tokens of text, or half of Whisper's audio frames.
        if length is None and "input_features" in arguments:
            length = getattr(config, "max_source_positions", None)
        if length is None or "decoder_input_ids" in arguments:
            return None
        return replace(shape, cross_length=length, encoder_hidden=config.hidden_size)
    if length is None:
        return None
    # Beams copy the positions of a prompt of a decoder alone if its forward takes them.
    positions = "position_ids" in inspect.signature(generator.module.forward).parameters
    copies = shape.prompt_copies and shape.prompt_copies + positions
    return replace(shape, prompt=length, prompt_copies=copies)
