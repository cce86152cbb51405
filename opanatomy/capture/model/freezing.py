"""`--freeze`: parts of a model whose weights are not trained."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from opanatomy.capture.model.parts import embeddings_of, head_of, is_bias, stacks_of
from opanatomy.errors import UsageError
from opanatomy.option_values import as_flag
from opanatomy.options import FREEZE

if TYPE_CHECKING:
    import torch


def freeze(module: torch.nn.Module, parts: str | None) -> None:
    """Have the weights of `parts` (as `--freeze` has them) require no gradient; what was frozen before stays so.

    `UsageError` says what the model has where it has no such part, or where nothing would be left to train.
    """
    if parts is None:
        return
    for part in parts.split(","):
        name, _, number = part.partition(":")
        for parameter in _FROZEN[name](module, number, as_flag(FREEZE, parts)):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise UsageError(f"{as_flag(FREEZE, parts)}: nothing is left to train - freeze less")


def _embeddings(module: torch.nn.Module, _number: str, asked: str) -> list[torch.nn.Parameter]:
    embeddings = embeddings_of(module)
    if not embeddings:
        raise UsageError(f"{asked}: {type(module).__name__} has no embeddings - {_what_there_is(module)}")
    return [parameter for part in embeddings.values() for parameter in part.parameters()]


def _layers(module: torch.nn.Module, number: str, asked: str) -> list[torch.nn.Parameter]:
    """The weights of the lowest layers: of an encoder and a decoder counted through both, of several towers in each."""
    stacks, lowest = [stack.layers for stack in stacks_of(module)], int(number)
    if getattr(getattr(module, "config", None), "is_encoder_decoder", False):
        stacks = [tuple(layer for layers in stacks for layer in layers)]
    fewest = min((len(layers) for layers in stacks), default=0)
    if lowest > fewest:
        raise UsageError(
            f"{asked}: {type(module).__name__} has {fewest} layers"
            f"{' in a stack' if len(stacks) > 1 else ''} - {_what_there_is(module)}"
        )
    return [parameter for layers in stacks for layer in layers[:lowest] for parameter in layer.parameters()]


def _all_but_biases(module: torch.nn.Module, _number: str, asked: str) -> list[torch.nn.Parameter]:
    named = dict(module.named_parameters())
    if not any(map(is_bias, named)):
        raise UsageError(f"{asked}: {type(module).__name__} has no biases - {_what_there_is(module)}")
    return [parameter for name, parameter in named.items() if not is_bias(name)]


def _all_but_head(module: torch.nn.Module, _number: str, asked: str) -> list[torch.nn.Parameter]:
    head = head_of(module)
    if not head:
        raise UsageError(
            f"{asked}: {type(module).__name__} has no weights outside of its base model - {_what_there_is(module)}"
        )
    return [parameter for name, parameter in module.named_parameters() if name not in head]


#: Part -> its weights, of a model, the number after the colon, and the option as it is spoken of.
_FROZEN: Final[dict[str, Callable[[Any, str, str], list[Any]]]] = {
    "embeddings": _embeddings, "layers": _layers, "all-but-biases": _all_but_biases, "all-but-head": _all_but_head,
}  # fmt: skip


def undone_by_checkpointing(module: torch.nn.Module) -> list[str]:
    """The warning where the output of frozen embeddings is made to require a gradient, as transformers does it for
    checkpointing: backward then goes down through frozen layers that it could leave out."""
    if not getattr(module, "_require_grads_hooks", None):
        return []
    if any(_is_trained(part) for part in embeddings_of(module).values()):
        return []
    lowest = sum(
        len(list(takewhile(lambda layer: not _is_trained(layer), stack.layers))) for stack in stacks_of(module)
    )
    if not lowest:
        return []
    layers = "the lowest layer, in which" if lowest == 1 else f"the {lowest} lowest layers, in which"
    return [
        f"checkpointing undoes freezing: for it transformers has the output of the embeddings require a gradient, so"
        f" {layers} nothing is trained, are recomputed and pass on gradients that nothing uses"
        " - checkpoint the layers above them alone, or use --checkpoint-every"
    ]


def _is_trained(module: torch.nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _what_there_is(module: torch.nn.Module) -> str:
    """What of the model can be frozen."""
    stacks = stacks_of(module)
    parts = ["embeddings"] if embeddings_of(module) else []
    lists = " and ".join(f"{len(stack.layers)} {stack.kind} in {stack.path}" for stack in stacks)
    parts += [f"layers:N ({lists})"] if stacks else []
    parts += ["all-but-biases"] if any(is_bias(name) for name, _ in module.named_parameters()) else []
    parts += ["all-but-head"] if head_of(module) else []
    return f"it has {', '.join(parts)}" if parts else "leave it out"
