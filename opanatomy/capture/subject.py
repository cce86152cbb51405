"""Describe the recording's subject: a module and the arguments of its forward."""

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
    """The module to record and the arguments of its forward."""

    module: torch.nn.Module
    inputs: dict[str, Any] | tuple[Any, ...]
    workload: Workload
    #: The trace's record of its origin.
    command: str = ""
    #: The snapshots from before the module was made, if they were taken.
    snapshots: Snapshots | None = None
    #: Whether the module is the caller's, and must not be changed afterwards.
    borrowed: bool = False
    #: How its steps are trained; ranks that share them have prepared model and optimizer for it.
    training: Training = msgspec.field(default_factory=Training)
    #: The other batches of the run's texts.
    texts: TextInputs | None = None
