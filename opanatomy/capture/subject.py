"""What is recorded: a module and the arguments of its forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from opanatomy.capture.memory.measurement import Snapshots
from opanatomy.capture.model.texts import TextInputs
from opanatomy.capture.step.stepper import Training
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
    training: Training = msgspec.field(default_factory=Training)
    #: The other batches of the texts of the run.
    texts: TextInputs | None = None
