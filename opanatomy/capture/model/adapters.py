"""`--lora RANK`: low-rank adapters of peft in a model whose own weights are frozen."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from opanatomy.capture.model.parts import head_of
from opanatomy.capture.model.quiet import one_line, quiet_libraries
from opanatomy.errors import CaptureError, UsageError
from opanatomy.option_values import as_flag
from opanatomy.options import LORA

if TYPE_CHECKING:
    import torch


def check_peft(rank: int | None) -> None:
    """Refuse adapters where peft is not installed, before anything is built."""
    if rank is not None and find_spec("peft") is None:
        raise CaptureError(f"{as_flag(LORA, rank)} needs peft, which is not installed - pip install 'opanatomy[peft]'")


def add_adapters(module: torch.nn.Module, rank: int | None) -> None:
    """Put adapters of that rank into `module`, in place: the paths of its own modules stay as they are.

    They are at the layers that peft takes for this type of model, where it knows it, else at all linear layers but
    those of the head. All else is frozen, but the head of a classifier, which is new for its task and is trained as
    peft does it.
    """
    if rank is None:
        return
    check_peft(rank)
    from peft import LoraConfig, inject_adapter_in_model

    words = _output_layer(module)
    head = head_of(module) if words is None else {}
    targets = _known_targets(module) or _linear_layers(module, [*head.values(), *(words.parameters() if words else ())])
    if not targets:
        raise UsageError(f"{as_flag(LORA, rank)}: {type(module).__name__} has no linear layer - leave it out")
    try:
        with quiet_libraries():
            inject_adapter_in_model(LoraConfig(r=rank, target_modules=targets), module)
    except ValueError as error:
        raise UsageError(f"{as_flag(LORA, rank)}: {type(module).__name__}: {one_line(error)} - leave it out") from error
    for parameter in head.values():
        parameter.requires_grad_(True)


def _output_layer(module: torch.nn.Module) -> torch.nn.Module | None:
    """The layer that gives words, whose weights are trained already; `None` for another head."""
    model: Any = module
    layer: torch.nn.Module | None = None
    if hasattr(model, "get_output_embeddings"):
        layer = model.get_output_embeddings()
    return layer


def _known_targets(module: torch.nn.Module) -> list[str]:
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as BY_TYPE

    return list(BY_TYPE.get(getattr(getattr(module, "config", None), "model_type", ""), ()))


def _linear_layers(module: torch.nn.Module, head: list[torch.nn.Parameter]) -> list[str]:
    import torch

    left_out = set(map(id, head))
    return [
        path
        for path, child in module.named_modules()
        if isinstance(child, torch.nn.Linear) and path and id(child.weight) not in left_out
    ]
