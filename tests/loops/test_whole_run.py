"""The clock of the run around the recorded steps: input, slow steps, collections, what torch.compile did and why."""

from __future__ import annotations

import gc
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.utils.data import DataLoader, Dataset

import opanatomy
from opanatomy.__main__ import main
from opanatomy.analysis.advice import with_advice
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.run import RunClock
from tests.support.command import run_code

MS = 1_000_000
WIDTH = 192


class Rows(Dataset[torch.Tensor]):
    """Rows that take a while each; the time is noted where they are made."""

    def __init__(self, count: int, seconds: float) -> None:
        self.count, self.seconds = count, seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.full((WIDTH,), float(index))


def noted(loader: DataLoader[torch.Tensor], waits: list[float]) -> Iterator[torch.Tensor]:
    """The batches, and how long the loop waited for each, by a clock of the test's own."""
    iterator = iter(loader)
    while True:
        begun = time.perf_counter()
        try:
            batch = next(iterator)
        except StopIteration:
            return
        waits.append(time.perf_counter() - begun)
        yield batch


def trained(
    loader: DataLoader[torch.Tensor], trace: Path, *, layers: int = 1, **options: Any
) -> tuple[Anatomy, list[float]]:
    """A loop over the loader under `record`: its anatomy, and the wait for each batch."""
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    waits: list[float] = []
    with opanatomy.record(trace=trace, **options) as recorder:
        for batch in noted(loader, waits):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            recorder.step()
    return recorder.anatomy, waits


def words(text: object) -> str:
    """A sentence of the report as one line."""
    return " ".join(str(text).split())


def said(anatomy: Anatomy, capsys: pytest.CaptureFixture[str], folder: Path, *options: str) -> str:
    """What `analyze` prints of the report."""
    anatomy.to_json(folder / "report.json", force=True)
    assert main(["analyze", str(folder / "report.json"), *options]) == 0
    return words(capsys.readouterr().out)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_slow_loader_is_the_first_cause(workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two rows of 15 ms a batch: the wait is what a clock in the loop says, and comes first."""
    loader = DataLoader(Rows(32, 0.015), batch_size=2, num_workers=workers)
    anatomy, waits = trained(loader, tmp_path / "step.json.gz", steps=4)
    run = anatomy.run
    assert run is not None
    # Of 16 iterations the first is cold, the second watched, four profiled, the one after them counted again.
    assert run.steps == 16 - 1 - 1 - 4 - 1
    theirs = (*waits[2:5], *waits[10:])
    assert run.input_ns == pytest.approx(1e9 * sum(theirs), rel=0.02, abs=2 * MS)
    assert run.input_ns / run.wall_ns > 0.5
    assert anatomy.advice[0].id == "input"
    text = said(anatomy, capsys, tmp_path)
    assert (
        f"Waiting for input takes {100 * run.input_ns / run.wall_ns:.1f} % of the step, averaged over the entire run"
        in text
    )
    assert "DataLoader(num_workers=" in text if not workers else "more workers" in text

    alone = replace(anatomy, run=None)
    profiled = waits[5:9]
    waited = sum(step.loading_ns or 0 for step in alone.step.steps)
    assert waited == pytest.approx(1e9 * sum(profiled), rel=0.1, abs=2 * MS)


def test_the_trace_alone_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A trace without the clock of a run: the range that torch's loader records is the first cause."""
    trace = tmp_path / "step.json"
    loader = DataLoader(Rows(24, 0.015), batch_size=2)
    _, waits = trained(loader, trace, steps=4)
    content = json.loads(trace.read_text())
    del content["opanatomy"]["run"]
    (tmp_path / "alone.json").write_text(json.dumps(content))
    anatomy = opanatomy.analyze(tmp_path / "alone.json")
    assert anatomy.run is None
    assert anatomy.advice[0].id == "input"
    assert anatomy.advice[0].gain_ns == pytest.approx(1e9 * sum(waits[5:9]) / 4, rel=0.1)
    text = said(anatomy, capsys, tmp_path)
    share = re.search(r"Waiting for input takes (\d+\.\d) % of the step\.", text)
    assert share is not None
    walls = sum(step.wall_ns for step in anatomy.step.steps)  # how busy the machine is is in both
    assert float(share[1]) == pytest.approx(100 * 1e9 * sum(waits[5:9]) / walls, rel=0.05)
    assert "is waiting for input" in text


@pytest.mark.parametrize(("share", "named"), [(0.019, False), (0.021, True)])
def test_a_fast_loader_is_not_named(
    share: float, named: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    anatomy, _ = trained(DataLoader(Rows(24, 0), batch_size=2), tmp_path / "step.json.gz")
    assert anatomy.run is not None
    wall_ns = anatomy.run.steps * 100 * MS  # 2.1 ms a batch take longer to make than to send
    run = replace(anatomy.run, wall_ns=wall_ns, input_ns=round(share * wall_ns), slow_steps=0, slow=())
    anatomy = with_advice(replace(anatomy, run=run))
    assert ("input" in {advice.id for advice in anatomy.advice}) is named
    assert ("waiting for input takes" in said(anatomy, capsys, tmp_path)) is named


def looped(step: Callable[[int], object], count: int, trace: Path | None = None) -> RunClock:
    """The clock of a loop of so many steps."""
    with opanatomy.record(trace=trace) as recorder:
        for number in range(1, count + 1):
            step(number)
            recorder.step()
    assert recorder.anatomy.run is not None
    return recorder.anatomy.run


def test_a_slow_step_and_what_was_different() -> None:
    """Of twenty steps one collects garbage, one waits for nothing that is measured: both are told apart."""
    model = nn.Linear(8, 8)
    heap = [[] for _ in range(1_500_000)]  # something to look at

    def step(number: int) -> None:
        model(torch.ones(4, 8)).sum().backward()
        time.sleep(0.25 if number == 18 else 0.005)
        if number == 15:
            gc.collect()

    gc.collect()
    gc.disable()
    try:
        run = looped(step, 20)
    finally:
        gc.enable()
    assert len(heap)
    by_number = {slow.number: slow for slow in run.slow}
    assert {15, 18} <= set(by_number)
    assert run.collections == 1
    assert run.collecting_ns == by_number[15].collecting_ns > 5 * MS
    assert by_number[18].wall_ns > 250 * MS
    assert by_number[18].collecting_ns == by_number[18].input_ns == 0


COMPILED = """
import torch, opanatomy

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        y = self.layer(x)
        torch._dynamo.graph_break()
        return y.relu()

model = torch.compile(Model(), backend="eager", dynamic=False)
with opanatomy.record(trace="step.json") as recorder:
    for number in range(14):
        model(torch.ones(4 if number < 10 else 6, 8)).sum().backward()
        recorder.step()
recorder.anatomy.to_json("report.json")
"""


def test_a_graph_break_and_a_recompilation_have_their_line_and_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(COMPILED)
    done = run_code("import runpy; runpy.run_path('train.py')", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    anatomy = opanatomy.read(tmp_path / "report.json")
    run = anatomy.run
    assert run is not None
    lines = COMPILED.splitlines()
    broken = 1 + next(index for index, line in enumerate(lines) if "graph_break" in line)
    begins = 1 + next(index for index, line in enumerate(lines) if "def forward" in line)
    (event,) = run.graph_breaks
    assert event.place.endswith(f"train.py:{broken} forward")
    assert "graph_break" in event.reason
    compiled = {event.place.rpartition("/")[2]: event for event in run.recompilations}
    again = compiled[f"train.py:{begins} forward"]
    assert again.count == 1
    assert again.reason == "tensor 'x' size mismatch at index 0. expected 4, actual 6"
    (slow,) = [slow for slow in run.slow if slow.number == 11]
    assert run.compiling_ns == slow.compiling_ns > slow.wall_ns / 2
    assert main(["analyze", str(tmp_path / "report.json"), "--section", "whole-run,advice"]) == 0
    text = words(capsys.readouterr().out)
    for part in (f"train.py:{broken} forward", again.reason, "step 11", "compiling"):
        assert part in text
    assert {"graph_breaks", "compilation"} <= {advice.id for advice in anatomy.advice}


def test_of_ranks_the_one_that_waits_most(tmp_path: Path) -> None:
    from opanatomy.analysis.ranks import RankMerger

    run = RunClock(steps=4, wall_ns=400, median_ns=100, input_ns=0, collections=0, collecting_ns=0, compiling_ns=0)
    anatomy, _ = trained(DataLoader(Rows(14, 0), batch_size=2), tmp_path / "step.json.gz")
    together = RankMerger()
    for rank, waited in enumerate((10, 200, 40)):
        provenance = replace(anatomy.provenance, trace_sha256=str(rank), trace=f"{rank}.json")
        together.add(replace(anatomy, provenance=provenance, run=replace(run, input_ns=waited)), rank)
    assert together.anatomy(name="three").run == replace(run, input_ns=200)


SLOW = {"number": 3, "wall_ns": -1, "input_ns": 0, "collecting_ns": 0, "compiling_ns": 0}


@pytest.mark.parametrize("wrong", [{"slow": [SLOW]}, {"steps": 0}, {"input_ns": 10**15}, {"wall_ns": -5}])
def test_impossible_numbers_are_left_out(wrong: dict[str, Any], tmp_path: Path) -> None:
    trace = tmp_path / "step.json"
    anatomy, _ = trained(DataLoader(Rows(14, 0), batch_size=2), trace)
    assert anatomy.run is not None
    content = json.loads(trace.read_text())
    content["opanatomy"]["run"] |= wrong
    content["opanatomy"]["compilation"] = {"compiling_ns": 1, "compiled_step_ns": [], "uncompiled_step_ns": [3]}
    (tmp_path / "wrong.json").write_text(json.dumps(content))
    read = opanatomy.analyze(tmp_path / "wrong.json")
    assert read.run is read.compilation is None
    assert any("impossible numbers" in text and "run, compilation" in text for text in read.warnings)


def test_a_clock_that_cannot_be_written_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trace is there without it, and an error of the loop is not another one."""

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    # The disk is full when the clock is written, not before.
    monkeypatch.setattr("opanatomy.capture.run.export.with_run", full)
    with pytest.warns(UserWarning, match=r"lacks the timing of the entire loop: no space left"):
        anatomy, _ = trained(DataLoader(Rows(14, 0), batch_size=2), tmp_path / "step.json")
    assert anatomy.run is None
    assert anatomy.step.count == 1
