"""What is recorded, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import force_setattr

from opanatomy.capture.memory.snapshots import Snapshots
from opanatomy.capture.step.stepper import amp_name
from opanatomy.records.workload import Workload

if TYPE_CHECKING:
    import torch


class Options(Struct, frozen=True, kw_only=True):
    """How to run and record the step."""

    device: str = "cpu"
    amp: str | None = None
    optimizer: str | None = None
    inference: bool = False
    compiled: bool = False
    checkpointing: str | None = None
    #: Whether to look at the memory of one more step, allocation by allocation.
    memory: bool = False
    steps: int = 1
    #: `None`: one step on the CPU, three on an accelerator (five when compiled there).
    warmup: int | None = None
    command: str = ""
    #: Whether paths, arguments, hosts and users are left out of the trace too.
    redact: bool = False

    def __post_init__(self) -> None:
        # However it was spelled: whoever asks later compares one name.
        force_setattr(self, "amp", amp_name(self.amp))


class Subject(Struct, frozen=True, kw_only=True):
    """What is recorded: a module and the arguments of its forward."""

    module: torch.nn.Module
    inputs: dict[str, Any] | tuple[Any, ...]
    workload: Workload
    #: The snapshots from before the module was made, where its maker took them.
    snapshots: Snapshots | None = None
    #: Whether the module is the caller's, and nothing of it may be another afterwards.
    borrowed: bool = False
