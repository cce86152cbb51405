"""The walks of docs/architecture.md: each behaviour enters no more files than the page says, its functions in order."""

from __future__ import annotations

import gc
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

import opanatomy
from opanatomy.analysis.compare import RunInput, SideInput, compared
from opanatomy.analysis.step import step_of_rows
from opanatomy.analysis.work import JoinedWork, work_table
from opanatomy.attribution.attribute import attribute
from opanatomy.attribution.calls import kernel_names, operator_names, trace_calls_of
from opanatomy.attribution.table import call_table, kernel_table
from opanatomy.capture.batches import make_batch, micro_batches
from opanatomy.capture.memory.saved import ForwardSaves
from opanatomy.capture.model.workload import plan_of, prepare
from opanatomy.classification import kernels, operators
from opanatomy.cli.parser import make_parser
from opanatomy.cli.verbs.profile import run_options
from opanatomy.memory.observed import memory_of_observations
from opanatomy.pipeline import summary_of_trace
from opanatomy.records.table import Table
from opanatomy.records.work import kernel_rows
from opanatomy.report.formats.terminal import section_text
from opanatomy.report.metrics import metrics_of
from opanatomy.report.section import Page
from opanatomy.report.sections.comparison import changes_table
from opanatomy.report.sections.memory import components
from opanatomy.report.sections.operators import kernels as kernels_section
from opanatomy.report.sections.step import one_step
from opanatomy.trace.read import read_trace
from tests.support.paths import ROOT, TRACES

PACKAGE = str(Path(opanatomy.__file__).parent)
PAGE = ROOT / "docs" / "architecture.md"
Leg = Callable[[], object]


def entered(*legs: Leg) -> list[tuple[str, str]]:
    """The (file, function) of ours that each leg calls, in order."""
    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PACKAGE):
            calls.append((name[len(PACKAGE) + 1 :], frame.f_code.co_name))

    for leg in legs:
        gc.disable()  # a test before may have left a callback of its own on the collector
        sys.setprofile(note)
        try:
            leg()
        finally:
            sys.setprofile(None)
            gc.enable()
    return calls


def walks() -> dict[str, tuple[int, list[tuple[str, str]]]]:
    """The walks of the page: how many files each enters at most, and its functions as (file, function) in order."""
    pages = re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    known = {}
    for page in pages:
        most = re.search(r"At most (\d+) files", page)
        if most:
            steps = re.findall(r"^\d+\. `([\w/]+\.py)`: ((?:`\w+`(?:, )?)+)", page, flags=re.MULTILINE)
            functions = [(file, name) for file, names in steps for name in re.findall(r"`(\w+)`", names)]
            known[page.splitlines()[0]] = (int(most[1]), functions)
    return known


def step_line(folder: Path) -> Iterator[Leg]:
    path = TRACES / "gpu_v100_resnet_2021.json.gz"
    anatomy = summary_of_trace(path).anatomy
    section = one_step(anatomy, Page())
    assert section is not None
    section_text(section, 80)  # expressions compile when they are first used
    yield lambda: step_of_rows(anatomy.step.steps, None)
    yield lambda: one_step(anatomy, Page())
    yield lambda: section_text(section, 80)


def class_and_phase(folder: Path) -> Iterator[Leg]:
    trace = read_trace(TRACES / "gpu_v100_resnet_2021.json.gz")
    for module in (operators, kernels):
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()
    yield lambda: attribute(trace.names, trace.host, trace.launches, trace.work, trace.flows, ())
    yield lambda: operator_names(trace.names, trace.host.name, on_device=True)
    yield lambda: kernel_names(trace.names, trace.work.name)
    attribution = attribute(trace.names, trace.host, trace.launches, trace.work, trace.flows, ())
    calls, _ = trace_calls_of(trace, attribution)
    yield lambda: kernel_table(calls, trace.devices)


def kernel_row(folder: Path) -> Iterator[Leg]:
    path = TRACES / "gpu_v100_resnet_2021.json.gz"
    trace = read_trace(path)
    attribution = attribute(trace.names, trace.host, trace.launches, trace.work, trace.flows, ())
    calls, _ = trace_calls_of(trace, attribution)
    kernels = kernel_table(calls, trace.devices)
    table = call_table(trace, calls, kernels)
    joined = JoinedWork(table, kernels)

    def work() -> Table:
        return work_table(joined.keys({}), joined.figures(None), np.full(len(joined.call), -1))

    yield lambda: read_trace(path)
    yield lambda: kernel_table(calls, trace.devices)
    yield lambda: call_table(trace, calls, kernels)
    yield work
    made, anatomy = work(), summary_of_trace(path).anatomy
    assert [(row.kernel, row.time_ns) for row in kernel_rows(made)] == [
        (row.kernel, row.time_ns) for row in anatomy.kernels
    ]
    yield lambda: kernel_rows(made)
    yield lambda: kernels_section(anatomy, Page())


def batch(folder: Path) -> Iterator[Leg]:
    from opanatomy.capture.batches import choose_shape
    from tests.support.tiny import BERT, tiny_request

    words = ["profile", "google-bert/bert-base-uncased", "--batch", "2", "--accumulate", "2"]
    arguments = make_parser("profile").parse_args(words)
    yield lambda: make_parser("profile").parse_args(words)
    yield lambda: run_options(arguments)
    module, plan = prepare(tiny_request(BERT, batch=2)).module, plan_of(tiny_request(BERT, batch=2))
    assert plan is not None
    yield lambda: choose_shape(module, plan.task, 2, 8, inference=False)
    yield lambda: make_batch(module, plan.shape, seed=0)
    made = make_batch(module, plan.shape, seed=0)
    yield lambda: micro_batches(made, 2)


def activation_bytes(folder: Path) -> Iterator[Leg]:
    from opanatomy.capture.memory.measurement import Snapshots

    module, x = torch.nn.Linear(8, 8), torch.ones(4, 8)
    saves = ForwardSaves(list(module.parameters()), Snapshots(device="cpu"))

    def forward() -> None:
        with saves.forward():
            module(x).relu().sum()

    yield forward
    assert saves.bytes
    path = folder / "memory.json.gz"
    anatomy = opanatomy.profile(module, x, trace=path, memory=True, warmup=1)
    capture = read_trace(path).capture
    assert capture is not None
    observed = capture.memory
    assert observed.step is not None
    yield lambda: memory_of_observations(observed)
    section = components(anatomy)
    assert section is not None
    yield lambda: components(anatomy)
    yield lambda: section_text(section, 80)


def compare_part(folder: Path) -> Iterator[Leg]:
    sides = []
    for name in ("bert_cpu", "bert_checkpointing_amp_cpu"):
        anatomy = summary_of_trace(TRACES / f"{name}.json.gz").anatomy
        run = RunInput(anatomy=anatomy, metrics=metrics_of(anatomy), name=name)
        sides.append(SideInput(name=name, runs=(run,)))
    comparison = compared(sides)
    parts = comparison.decomposition
    assert parts is not None
    section = changes_table(parts, 10)
    yield lambda: compared(sides)
    yield lambda: changes_table(parts, 10)
    yield lambda: section_text(section, 100)


WALKS = {
    "The line `step` of the first screen": step_line,
    "Class and phase of a kernel": class_and_phase,
    "A kernel, from the file to its row": kernel_row,
    "`--batch` to the model": batch,
    "Bytes of an activation to the memory table": activation_bytes,
    "Name of a part of a comparison": compare_part,
}


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_enters_no_more_files_than_the_page_says(name: str, tmp_path: Path) -> None:
    most, functions = walks()[name]
    calls = [call for leg in WALKS[name](tmp_path) for call in entered(leg)]
    files = dict.fromkeys(file for file, _ in calls)
    assert len(files) <= most, list(files)
    assert len(functions) > 4
    rest = iter(calls)
    for wanted in functions:
        assert wanted in rest, f"{wanted} is not called, or not after those before it"


def test_the_page_has_these_walks_and_no_others() -> None:
    assert list(walks()) == list(WALKS)


def test_a_term_is_explained_by_few_files() -> None:
    from opanatomy.explanation import explain

    files = {file for file, _ in entered(lambda: explain(["MFU"]))}
    assert len(files) <= 15, sorted(files)


def test_regular_expressions_compile() -> None:
    """They do so when they are first used: an error in one would show then."""
    written, of_module = 0, re.compile(r"^[A-Z_]\w*(?:: Final)? = (regex\((?:.|\n)*?\)$)", re.MULTILINE)
    for path in sorted((ROOT / "opanatomy").rglob("*.py")):
        for expression in of_module.findall(path.read_text(encoding="utf-8")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            made = eval(expression, vars(importlib.import_module(name)))
            assert isinstance(made.pattern, (str, bytes))
            written += 1
    assert written > 100
