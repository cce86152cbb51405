"""Make a batch for a model: random inputs of the right shapes and, in training, labels for its loss.

Text is token ids from 100 to 30000, below the vocabulary, without padding. A sequence has 512 tokens, or the model's
maximum if that is less; for raw audio, samples (10 seconds at 16 kHz); for Whisper, decoder tokens (448; the encoder
always gets 30 seconds of mel frames). Images have the size in the configuration, else 224.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from opanatomy.errors import ModelError, UsageError
from opanatomy.options import ACCUMULATE, Spelling, as_argument, as_flag

if TYPE_CHECKING:
    import torch

FIRST_TOKEN, LAST_TOKEN = 100, 30_000
TEXT_LENGTH = 512
AUDIO_LENGTH = 160_000
IMAGE_SIDE = 224


class Shape(Struct, frozen=True, kw_only=True):
    """The sizes of a batch; `sequence_length` is `None` for images alone."""

    task: str
    batch: int
    sequence_length: int | None
    inference: bool
    #: Number of tokens to generate; this batch contains the prompts.
    new_tokens: int | None = None


def choose_shape(
    module: torch.nn.Module, task: str, batch: int, seq: int | None, inference: bool, new_tokens: int | None = None
) -> Shape:
    """Return the sizes of the batch of `module` (which may be on the meta device), checked against its limits."""
    config: Any = module.config
    kind = _input_kind(module)
    if kind == "pixel_values" and task != "contrastive":
        if seq is not None:
            raise UsageError(
                f"--seq {seq}: {config.model_type} takes images, not tokens - set the image size with --set"
                " image_size=..."
            )
        return Shape(task=task, batch=batch, sequence_length=None, inference=inference)
    if kind == "input_values":
        if not hasattr(config, "conv_kernel"):
            raise ModelError(
                f"cannot make audio inputs for {config.model_type} - pass package.module:function that"
                " returns (module, inputs)"
            )
        samples = AUDIO_LENGTH if seq is None else seq
        masked = getattr(config, "apply_spec_augment", False) and getattr(config, "mask_time_prob", 0)
        minimum = config.mask_time_length + 1 if masked else 1
        frames = audio_frames(config, samples)
        if frames < minimum:
            raise UsageError(
                f"--seq {samples}: this many audio samples yield only {max(frames, 0)} frames, but"
                f" {config.model_type} needs at least {minimum} - use more samples (16000 per second)"
            )
        length: int | None = samples
    elif kind == "input_features" and new_tokens is not None:
        # The prompt is audio of fixed length.
        if seq is not None:
            raise UsageError(
                f"--seq {seq}: the prompt of {config.model_type} is audio of fixed length - leave --seq out"
            )
        _taken_from_prompt(config, config.max_target_positions, new_tokens)
        length = None
    else:
        length = _text_length(module, seq, TEXT_LENGTH if kind == "input_ids" else None, new_tokens)
    return Shape(task=task, batch=batch, sequence_length=length, inference=inference, new_tokens=new_tokens)


def make_batch(module: torch.nn.Module, shape: Shape, seed: int) -> dict[str, Any]:
    """Return keyword arguments of `module`, on the host; the same `seed` gives the same batch."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    config: Any = module.config
    batch, length = shape.batch, shape.sequence_length
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    inputs: dict[str, Any] = {}
    kind = _input_kind(module)
    both = shape.task == "contrastive" or (shape.task == "base" and hasattr(config, "vision_config"))
    if both or kind == "pixel_values":
        part = getattr(config, "vision_config", config)
        side = getattr(part, "image_size", IMAGE_SIDE) or IMAGE_SIDE
        height, width = side if isinstance(side, (list, tuple)) else (side, side)
        shown = (batch, getattr(part, "num_channels", 3), height, width)
        inputs["pixel_values"] = _noise(shown, dtype, generator)
    if kind == "input_values":
        inputs["input_values"] = _noise((batch, length or 0), dtype, generator)
    elif kind == "input_features":
        frames = 2 * config.max_source_positions
        inputs["input_features"] = _noise((batch, config.num_mel_bins, frames), dtype, generator)
    elif kind == "input_ids" or both:
        inputs["input_ids"] = _tokens(config, (batch, length or 0), generator)
    inputs.update(_targets(module, shape, generator))
    return inputs


def _targets(module: torch.nn.Module, shape: Shape, generator: torch.Generator) -> dict[str, Any]:
    """Return the labels for the loss; without a loss, the inputs that a decoder needs to run at all."""
    config: Any = module.config
    batch, length = shape.batch, shape.sequence_length or 0
    if shape.inference or shape.task == "base":
        decodes = getattr(config, "is_encoder_decoder", False) and shape.new_tokens is None
        return {"decoder_input_ids": _tokens(config, (batch, length), generator)} if decodes else {}
    if shape.task == "contrastive":
        return {"return_loss": True}
    if shape.task in ("sequence-classification", "image-classification"):
        return {"labels": class_labels(config, batch, generator)}
    if shape.task == "token-classification":
        return {"labels": _integers(0, config.num_labels, (batch, length), generator)}
    if _input_kind(module) == "input_values":
        # Text is spoken at about 14 characters a second, audio gives 50 frames: a label per four frames.
        count = max(1, audio_frames(config, length) // 4)
        return {"labels": _integers(1, config.vocab_size, (batch, count), generator)}
    return {"labels": _tokens(config, (batch, length), generator)}


def class_labels(config: Any, batch: int, generator: torch.Generator) -> torch.Tensor:
    """Return a label for each sample, in the form of the configuration's loss."""
    if config.problem_type == "multi_label_classification":
        return _integers(0, 2, (batch, config.num_labels), generator).float()
    if config.num_labels == 1 or config.problem_type == "regression":
        shape = (batch,) if config.num_labels == 1 else (batch, config.num_labels)
        return _noise(shape, None, generator)
    return _integers(0, config.num_labels, (batch,), generator)


def takes_text(module: torch.nn.Module) -> bool:
    """Return whether the model takes only text."""
    return _input_kind(module) == "input_ids" and not hasattr(module.config, "vision_config")


def _input_kind(module: torch.nn.Module) -> str:
    kind = getattr(module, "main_input_name", "input_ids")
    config: Any = module.config
    if kind == "input_features" and not (hasattr(config, "num_mel_bins") and hasattr(config, "max_source_positions")):
        kind = "input_features of unknown shape"
    if kind == "pixel_values" and hasattr(config, "num_frames"):
        kind = "pixel_values of a video"
    if kind not in ("input_ids", "pixel_values", "input_values", "input_features"):
        raise ModelError(
            f"cannot make a batch for {type(module).__name__}, which takes {kind} - pass package.module:function that"
            " returns (module, inputs)"
        )
    return str(kind)


# --------------------------------------------------------------------------------------------------------------- sizes


def _text_length(module: torch.nn.Module, seq: int | None, usual: int | None, new_tokens: int | None) -> int:
    config: Any = module.config
    part = getattr(config, "text_config", config)
    key = "max_position_embeddings" if usual else "max_target_positions"
    table: int | None = getattr(part, key, None)
    reserved = _reserved_positions(module, table)
    limit = None if table is None or table < 1 else table - reserved
    if new_tokens is not None and limit is not None:
        taken = _taken_from_prompt(config, limit, new_tokens)
        limit, reserved = limit - taken, reserved + taken
    if seq is None:
        usual = usual or limit or TEXT_LENGTH
        return usual if limit is None else min(usual, limit)
    if limit is not None and seq > limit:
        what = "reserved or needed for new tokens" if new_tokens else "reserved"
        why = f"{limit} tokens ({table} positions, {reserved} of them {what})" if reserved else f"{limit} tokens"
        where = key if part is config else f"text_config.{key}"
        raise UsageError(
            f"--seq {seq}: {config.model_type} takes at most {why} - use a smaller --seq, or --set"
            f" {where}={seq + reserved}"
        )
    return seq


def _taken_from_prompt(config: Any, limit: int, new_tokens: int) -> int:
    """Return how many of the `limit` positions new tokens take from the prompt; `UsageError` if there are too many.

    Nothing follows the last new token; a separate decoder begins with a token of its own.
    """
    room = limit - 1 if config.is_encoder_decoder else limit
    if new_tokens > room:
        raise UsageError(
            f"--generate {new_tokens}: {config.model_type} has room for only {room} new tokens - use a smaller"
            " --generate"
        )
    return 0 if config.is_encoder_decoder else new_tokens - 1


def _reserved_positions(module: torch.nn.Module, table: int | None) -> int:
    """Return the number of positions reserved by models like RoBERTa, whose positions start after the padding index."""
    for name, layer in module.named_modules():
        if name.endswith("position_embeddings") and getattr(layer, "num_embeddings", None) == table:
            padding = getattr(layer, "padding_idx", None)
            return 0 if padding is None else int(padding) + 1
    return 0


def audio_frames(config: Any, samples: int) -> int:
    """Return the number of frames that the convolutions of a wav2vec2-like model make of `samples`."""
    for kernel, stride in zip(config.conv_kernel, config.conv_stride, strict=True):
        samples = (samples - kernel) // stride + 1
    return samples


# -------------------------------------------------------------------------------------------------------------- values


def _tokens(config: Any, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    vocabulary = getattr(getattr(config, "text_config", config), "vocab_size", None)
    if not isinstance(vocabulary, int):
        raise ModelError(
            f"the {config.model_type} configuration has no vocab_size - pass package.module:function"
            " that returns (module, inputs)"
        )
    last = min(LAST_TOKEN, vocabulary)
    return _integers(FIRST_TOKEN if last > FIRST_TOKEN else last // 2, last, shape, generator)


def _integers(first: int, end: int, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    import torch

    return torch.randint(first, max(end, first + 1), shape, generator=generator)


def _noise(shape: tuple[int, ...], dtype: torch.dtype | None, generator: torch.Generator) -> torch.Tensor:
    import torch

    return torch.randn(shape, generator=generator).to(dtype or torch.float32)


# ------------------------------------------------------------------------------------------------------ given inputs


def move(value: Any, device: str, dtype: torch.dtype | None = None) -> Any:
    """Return `value` with every tensor in it on `device`, floating-point ones in `dtype` if given."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.to(device, dtype) if dtype is not None and value.is_floating_point() else value.to(device)
    if isinstance(value, Mapping):
        return {key: move(item, device, dtype) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(move(item, device, dtype) for item in value)
    return value


def sizes(inputs: dict[str, Any] | tuple[Any, ...]) -> tuple[int, int | None]:
    """Return the batch (the first dimension of the first tensor) and, for token ids, the length."""
    import torch

    named = inputs if isinstance(inputs, dict) else {}
    values = named.values() if named else inputs
    tensors = [value for value in values if isinstance(value, torch.Tensor) and value.dim()]
    if not tensors:
        return 1, None
    ids = named.get("input_ids")
    length = ids.shape[1] if isinstance(ids, torch.Tensor) and ids.dim() == 2 else None
    return tensors[0].shape[0], length


def tensors_of(module: torch.nn.Module, inputs: dict[str, Any] | tuple[Any, ...]) -> list[torch.Tensor]:
    """Return the parameters of a module, then its inputs."""
    import torch

    values = inputs.values() if isinstance(inputs, dict) else inputs
    return [value for value in (*module.parameters(), *values) if isinstance(value, torch.Tensor)]


def input_texts(inputs: dict[str, Any] | tuple[Any, ...]) -> tuple[str, ...]:
    """Return how the report describes each tensor among the inputs."""
    pairs = inputs.items() if isinstance(inputs, dict) else ((str(index), item) for index, item in enumerate(inputs))
    return tuple(
        f"{name} {str(item.dtype).removeprefix('torch.')}[{','.join(map(str, item.shape))}]"
        for name, item in pairs
        if hasattr(item, "dtype") and hasattr(item, "shape")
    )


# Cut a batch into equal micro-batches for gradient accumulation.


Inputs = dict[str, Any] | tuple[Any, ...]


def check_divides(batch: int, parts: int, spelled: Spelling = as_flag) -> None:
    """Refuse to cut a batch into unequal parts."""
    if batch % parts:
        divisors = ", ".join(str(number) for number in range(1, batch + 1) if batch % number == 0)
        raise UsageError(
            f"{spelled(ACCUMULATE, parts)}: a batch of {batch} cannot be split into {parts} equal micro-batches - use"
            f" one of its divisors: {divisors}"
        )


def micro_batches(inputs: Inputs, parts: int, *, borrowed: bool = False) -> tuple[Inputs, ...]:
    """Return the arguments of each forward: `inputs` cut along the batch, the first dimension of its tensors.

    Numbers and tensors without a dimension go into every forward. Nothing is copied. A tensor with another first
    dimension is a `UsageError`, since its samples are unknown. `borrowed` inputs are called arguments.
    """
    if parts == 1:
        return (inputs,)
    spelled = as_argument if borrowed else as_flag
    batch, _ = sizes(inputs)
    check_divides(batch, parts, spelled)
    size = batch // parts
    return tuple(_part(inputs, number * size, size, batch, spelled(ACCUMULATE, parts)) for number in range(parts))


def _part(value: Any, start: int, size: int, batch: int, asked: str, name: str = "") -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        if not value.dim():
            return value
        if value.shape[0] != batch:
            raise UsageError(
                f"{asked}: input {name} of shape {tuple(value.shape)} cannot be split along a batch of {batch} - pass"
                " inputs whose first dimension is the batch"
            )
        return value.narrow(0, start, size)
    if isinstance(value, Mapping):
        return {key: _part(item, start, size, batch, asked, str(key)) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(
            _part(item, start, size, batch, asked, name or str(index)) for index, item in enumerate(value)
        )
    return value
