"""What the calls of a trace warn of: work that is there twice, clocks that differ, graphs that hide phases."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from opanatomy.attribution.nesting import SLACK_NS
from opanatomy.pipeline import analyze_trace
from opanatomy.records.anatomy import Anatomy
from tests.handmade import HandMade, training_step


def analyzed(trace: HandMade, folder: Path) -> Anatomy:
    return analyze_trace(trace.write(folder / "trace.json"))


def event(trace: HandMade, name: str) -> dict[str, Any]:
    return next(each for each in trace.events if name in each["name"])


def warned(trace: HandMade, folder: Path, words: str) -> list[str]:
    return [warning for warning in analyzed(trace, folder).warnings if words in warning]


def test_a_kernel_that_is_there_twice_is_said(tmp_path: Path) -> None:
    once = training_step()
    assert warned(once, tmp_path, "more than once") == []
    twice = training_step()
    twice.events.append(deepcopy(event(twice, "sgemm_128x64_nt")))
    [warning] = warned(twice, tmp_path, "more than once")
    assert warning.startswith("1 device event in the trace more than once, equal in all")


def test_kernels_that_begin_together_are_no_copies(tmp_path: Path) -> None:
    trace = training_step()
    other = deepcopy(event(trace, "sgemm_128x64_nt"))
    other["tid"] = other["args"]["stream"] = 8
    trace.events.append(other)
    assert warned(trace, tmp_path, "more than once") == []


@pytest.mark.parametrize(("early_ns", "said"), [(SLACK_NS, False), (SLACK_NS + 1000, True)])
def test_work_before_its_launch_is_said_beyond_what_rounding_makes(early_ns: int, said: bool, tmp_path: Path) -> None:
    trace = training_step()
    for each in trace.events:
        if each["cat"] == "kernel":
            launch = next(
                row for row in trace.events
                if row["cat"] == "cuda_runtime" and row["args"]["correlation"] == each["args"]["correlation"]
            )  # fmt: skip
            each["ts"] = launch["ts"] - early_ns / 1000
    assert bool(warned(trace, tmp_path, "clocks of host and device differ")) is said


@pytest.mark.parametrize(("launch", "said"), [("cudaGraphLaunch", True), ("cudaLaunchKernel", False)])
def test_a_graph_of_a_whole_step_does_not_tell_its_phases(launch: str, said: bool, tmp_path: Path) -> None:
    trace = training_step()
    event(trace, "sgemm_128x64_nn")["name"] = "layer_norm_backward_kernel"
    event(trace, "cudaLaunchKernel")["name"] = launch
    warnings = warned(trace, tmp_path, "graphs ran")
    assert bool(warnings) is said
    if said:
        assert warnings[0].startswith("graphs ran 0.010 ms of kernels that by their names are of a backward")
