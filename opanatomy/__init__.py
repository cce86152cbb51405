"""See where a training step's time, arithmetic, data movement and memory go.

    capture         a model and a batch -> one profiled step -> one trace file; the only stage that imports torch
    trace           the file -> columns of host events, launches, device events, memory events
    attribution     device event -> launch -> operator call -> phase -> module
    classification  the operator class of each distinct name; cost: FLOPs and bytes of each distinct signature
    calls           where these meet: one row a call, one row a kernel
    anatomy         totals by class, phase and module; timeline, idle time, roofline, ratios, collectives, ranks
    memory          memory events -> blocks, curve, components, theory
    report          what a report says, as sections; a file for each format lays them out

Everything after the capture reads a Kineto Chrome trace and nothing else; `pipeline` knows the order. Names are loaded
when they are used: importing `opanatomy` imports no torch.
"""

from __future__ import annotations

from opanatomy.version import __version__

TYPE_CHECKING = False  # `typing` itself takes milliseconds in which an interrupt is a traceback
if TYPE_CHECKING:
    from typing import Any

    from opanatomy.api import analyze, profile
    from opanatomy.cost import formula
    from opanatomy.errors import OpanatomyError
    from opanatomy.recording import record
    from opanatomy.records.anatomy import Anatomy
    from opanatomy.trainer.callback import TrainerCallback

__all__ = ["Anatomy", "OpanatomyError", "TrainerCallback", "__version__", "analyze", "formula", "profile", "record"]

_HOMES = {
    "analyze": "opanatomy.api",
    "profile": "opanatomy.api",
    "record": "opanatomy.recording",
    "TrainerCallback": "opanatomy.trainer.callback",
    "formula": "opanatomy.cost",
    "OpanatomyError": "opanatomy.errors",
    "Anatomy": "opanatomy.records.anatomy",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'opanatomy' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
