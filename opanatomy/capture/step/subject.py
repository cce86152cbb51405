"""What is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from opanatomy.capture.memory.snapshots import Snapshots
from opanatomy.capture.step.training import Training
from opanatomy.capture.texts.inputs import TextInputs
from opanatomy.records.workload import Workload

if TYPE_CHECKING:
    import torch


class Subject(Struct, frozen=True, kw_only=True):
    """What is recorded: a module and the arguments of its forward."""

    module: torch.nn.Module
    inputs: dict[str, Any] | tuple[Any, ...]
    workload: Workload
    #: What the trace says it was made by.
    command: str = ""
    #: The snapshots from before the module was made, where its maker took them.
    snapshots: Snapshots | None = None
    #: Whether the module is the caller's, and nothing of it may be another afterwards.
    borrowed: bool = False
    #: How its steps train; ranks that share them have made their model and optimizer ready for that.
    training: Training = field(default_factory=Training)
    #: The other batches of the texts of the run.
    texts: TextInputs | None = None
