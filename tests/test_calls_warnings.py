"""What the calls of a trace warn of: graphs that hide phases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opanatomy.pipeline import analyze_trace
from opanatomy.records.anatomy import Anatomy
from tests.handmade import HandMade, training_step


def analyzed(trace: HandMade, folder: Path) -> Anatomy:
    return analyze_trace(trace.write(folder / "trace.json"))


def event(trace: HandMade, name: str) -> dict[str, Any]:
    return next(each for each in trace.events if name in each["name"])


def warned(trace: HandMade, folder: Path, words: str) -> list[str]:
    return [warning for warning in analyzed(trace, folder).warnings if words in warning]


@pytest.mark.parametrize(("launch", "said"), [("cudaGraphLaunch", True), ("cudaLaunchKernel", False)])
def test_a_graph_of_a_whole_step_does_not_tell_its_phases(launch: str, said: bool, tmp_path: Path) -> None:
    trace = training_step()
    event(trace, "sgemm_128x64_nn")["name"] = "layer_norm_backward_kernel"
    event(trace, "cudaLaunchKernel")["name"] = launch
    warnings = warned(trace, tmp_path, "graphs ran")
    assert bool(warnings) is said
    if said:
        assert warnings[0].startswith("graphs ran 0.010 ms of kernels that by their names are of a backward")
