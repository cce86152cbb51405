"""What fresh processes begin with: a fork of a server that has imported what they need."""

from __future__ import annotations

import sys

from opanatomy.predict.workers import run_job


def imported() -> list[str]:
    """Return the modules that a job finds before it does anything."""
    return list(sys.modules)


def test_fresh_processes_begin_with_torch_and_transformers() -> None:
    there = run_job(imported)
    assert {"torch", "torch._dynamo", "transformers.modeling_utils", "opanatomy.predict.fake"} <= set(there)
