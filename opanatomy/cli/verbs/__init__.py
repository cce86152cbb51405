"""List the verbs, one file and one line of `VERBS` each.

A verb's file has `DESCRIPTION`, `OPTIONS` and `EXAMPLES` for the parser, and `run`; one with many options also has
`MOST_USED`, the names of those that help shows first.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Final

#: Summary of each verb in help order: the most usual first steps, then by name.
VERBS: Final[Mapping[str, str]] = {
    "profile": "run one forward and backward pass of a model and report",
    "run": "run a training script as it is, and report some of its steps",
    "analyze": "report on torch.profiler traces",
    "compare": "say what changed between runs, and where the difference comes from",
    "techniques": "say what each training technique would change, then measure it",
    "estimate": "say how long a step takes, and whether it fits, on a device that is not here",
    "catalog": "list the built-in models",
    "ceilings": "measure this device's peak matrix rates and bandwidth",
    "mcp": "answer an agent's questions about reports (Model Context Protocol)",
    "explain": "say what a line of the report means, how an operator or kernel is classed and counted",
}


def verb_named(name: str) -> ModuleType:
    """Import the file of a verb."""
    return import_module(f"{__name__}.{name}")
