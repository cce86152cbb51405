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
    "profile": "run a model's training step and report where its time and memory go",
    "run": "profile an unmodified training script",
    "analyze": "report on profiler traces and memory snapshots (after an OOM)",
    "compare": "show what changed between runs, and where the difference comes from",
    "techniques": "predict, then measure, what bf16, checkpointing, LoRA, ... would save",
    "estimate": "predict step time and memory on a GPU you don't have",
    "catalog": "list the built-in models",
    "peaks": "measure this device's peak FLOP/s and memory bandwidth",
    "mcp": "serve reports to a coding agent (Model Context Protocol)",
    "explain": "explain a line of the report, an operator, a kernel or a device",
}


def verb_named(name: str) -> ModuleType:
    """Import the file of a verb."""
    return import_module(f"{__name__}.{name}")
