"""What the options of a run change of a model that is built: what of it is trained, what it keeps for backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opanatomy.capture.model.adapters import add_adapters
from opanatomy.capture.model.building import enable_checkpointing
from opanatomy.capture.model.freezing import freeze
from opanatomy.capture.model.fused_loss import fuse_loss
from opanatomy.capture.model.parts import embeddings_of
from opanatomy.capture.model.segments import checkpoint_in_segments
from opanatomy.errors import UsageError
from opanatomy.run_options import RunOptions

if TYPE_CHECKING:
    import torch


def apply_techniques(module: torch.nn.Module, options: RunOptions) -> None:
    """Change `module` as the options say; `UsageError` says why it cannot be."""
    if options.fused_loss:
        fuse_loss(module)
    add_adapters(module, options.lora)
    freeze(module, options.freeze)
    if options.checkpointing is None:
        return
    if options.checkpoint_every is not None:
        checkpoint_in_segments(module, options.checkpointing, options.checkpoint_every)
    else:
        enable_checkpointing(module, options.checkpointing)
    if options.checkpointing == "reentrant":
        _require_gradients_of_inputs(module)


def _require_gradients_of_inputs(module: torch.nn.Module) -> None:
    """Have the output of frozen embeddings require a gradient: without one the reentrant kind gives the layers none.

    transformers does that itself where the inputs are token ids.
    """
    model: Any = module
    embeddings = embeddings_of(module).values()
    trained = any(parameter.requires_grad for part in embeddings for parameter in part.parameters())
    if not embeddings or trained or getattr(model, "_require_grads_hooks", None):
        return
    if hasattr(model, "enable_input_require_grads"):
        model.enable_input_require_grads()
    if not getattr(model, "_require_grads_hooks", None):
        raise UsageError(
            f"--checkpointing reentrant: {type(module).__name__} is frozen below its layers, which would get no"
            " gradients - use --checkpointing non-reentrant"
        )
