"""What is recorded, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opanatomy.capture.memory_points import CheckPoints
from opanatomy.capture.stepper import amp_name
from opanatomy.model import Workload

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
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
        object.__setattr__(self, "amp", amp_name(self.amp))


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is recorded: a module and the arguments of its forward."""

    module: torch.nn.Module
    inputs: dict[str, Any] | tuple[Any, ...]
    workload: Workload
    #: The check points from before the module was made, where its maker took them.
    check_points: CheckPoints | None = None
    #: Whether the module is the caller's, and nothing of it may be another afterwards.
    borrowed: bool = False
