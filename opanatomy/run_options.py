"""The options of one run as its stages have them: checked, and each choice by its own name."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr

from opanatomy.option_checks import check_together
from opanatomy.option_values import as_argument, checked
from opanatomy.options import BEAMS, CHECKPOINTING, INFERENCE, RUN


class RunOptions(Struct, frozen=True, kw_only=True):
    """The options of one run, checked, each choice by its own name; `None` leaves it to the model and the device.

    `model` is empty where a module is given. `seq` is in tokens, of raw audio in samples. `settings` are pairs of a
    configuration key (dots reach into parts) and its value. With `generate` it is `inference`, of 1 of the `beams`
    where no other number is given.
    """

    model: str = ""
    batch: int | None = None
    seq: int | None = None
    task: str | None = None
    seed: int = 0
    texts: str | None = None
    padding: str | None = None
    tokenizer: str | None = None
    layers: int | None = None
    settings: tuple[tuple[str, str], ...] = ()
    dtype: str = "float32"
    attention: str | None = None
    weights: str = "random"
    hub: bool = False
    trust_remote_code: bool = False
    device: str = "auto"
    amp: str | None = None
    checkpointing: str | None = None
    checkpoint_every: int | None = None
    compile: bool = False
    optimizer: str | None = None
    accumulate: int = 1
    clip: float | None = None
    freeze: str | None = None
    lora: int | None = None
    fused_loss: bool = False
    inference: bool = False
    generate: int | None = None
    beams: int | None = None
    memory: bool = False
    check: bool = False
    steps: int = 1
    warmup: int | None = None
    parallel: str | None = None
    bucket_mb: float | None = None
    bucket_view: bool = False
    redact: bool = False

    def __post_init__(self) -> None:
        for option in RUN:
            given = getattr(self, option.name)
            value = checked(option, given, as_argument)
            if value is not given:
                force_setattr(self, option.name, value)
        check_together(self, as_argument)
        if self.checkpoint_every is not None and self.checkpointing is None:
            force_setattr(self, CHECKPOINTING.name, CHECKPOINTING.bare)
        if self.generate is not None:
            force_setattr(self, INFERENCE.name, True)
            force_setattr(self, BEAMS.name, self.beams or 1)


def recorded(options: RunOptions) -> dict[str, Any]:
    """The fields of `Workload` that are options of the run, as they were given."""
    return {option.recorded: getattr(options, option.name) for option in RUN if option.recorded}
