"""What the options of a run change of a model that is built: what of it is trained, what it keeps for backward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opanatomy.capture.model.building import enable_checkpointing
from opanatomy.capture.model.freezing import freeze
from opanatomy.capture.model.segments import checkpoint_in_segments
from opanatomy.options import RunOptions

if TYPE_CHECKING:
    import torch


def apply_techniques(module: torch.nn.Module, options: RunOptions) -> None:
    """Change `module` as the options say; `UsageError` says why it cannot be."""
    freeze(module, options.freeze)
    if options.checkpointing is not None and options.checkpoint_every is not None:
        checkpoint_in_segments(module, options.checkpointing, options.checkpoint_every)
    elif options.checkpointing is not None:
        enable_checkpointing(module, options.checkpointing)
