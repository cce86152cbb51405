"""What a run shows over its length: made runs with a known drift, creep or evaluation, and steady ones with nothing.

The clock runs on a made time, so that a run of a thousand steps takes no longer than its arithmetic. Steps have noise
that lasts, as on a machine with neighbours, and now and then a pause.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from opanatomy.analysis.run import caveats_of, trends_of
from opanatomy.capture.loop import clock as clocks
from opanatomy.capture.loop.clock import Clock
from opanatomy.records.run import RunClock, RunTrends

MS, MIB = 1_000_000, 1 << 20
STEP = 20 * MS


class MadeTime:
    """A time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 1_000_000_000

    def perf_counter_ns(self) -> int:
        return self.now

    def sleep(self, ns: float) -> None:
        self.now += round(ns)


class MadeRun:
    """A loop on made time: `step` does what the run does in step `number`, which takes the time that it returns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int = 0, noise: float = 0.05) -> None:
        self.time, self.random, self.noise = MadeTime(), random.Random(seed), noise
        self.pauses = 0.005 if noise > 0.01 else 0.0
        self.memory: Callable[[int], tuple[int, int, int, int]] = lambda number: (0, 0, 0, 300 * MIB)
        self.number = 0
        monkeypatch.setattr(clocks, "time", self.time)
        monkeypatch.setattr(clocks, "_memory_now", lambda: self.memory(self.number))
        self.model = torch.nn.Linear(4, 4)
        self.loader = DataLoader(TensorDataset(torch.ones(4, 4)), batch_size=2)

    def evaluates(self, ns: float) -> None:
        """Evaluate as people do."""
        self.model.eval()
        with torch.no_grad():
            for _ in self.loader:
                self.time.sleep(ns / 2)
        self.model.train()

    def saves(self, ns: float) -> None:
        """Save a checkpoint, which takes that long."""

        class File:
            def write(self, data: bytes) -> int:
                return len(data)

            def flush(self) -> None:
                made.sleep(ns)

        made = self.time
        torch.save({"weight": self.model.weight}, File())  # type: ignore[arg-type]  # as much of a file as it takes

    @contextmanager
    def clocked(self) -> Iterator[Clock]:
        clock = Clock()
        with ExitStack() as stack:
            clock.install(stack)
            yield clock

    def run(self, steps: int, step: Callable[[int], float] = lambda number: STEP) -> RunClock:
        """The clock of a run of so many steps."""
        with self.clocked() as clock:
            lasting = 0.0
            for self.number in range(1, steps + 1):
                lasting = 0.9 * lasting + self.random.gauss(0, self.noise * 0.4)
                pause = 3.0 if self.random.random() < self.pauses else 1.0
                self.time.sleep(step(self.number) * pause * (1 + lasting + self.random.gauss(0, self.noise * 0.5)))
                clock.step_ended(self.number, counted=True)
            run = clock.read()
        assert run is not None
        return run


def trends(run: RunClock, recorded: int = STEP) -> RunTrends:
    found = trends_of(run, (recorded, recorded, recorded), (2 * recorded,), 8)
    assert found is not None
    return found


def is_quiet(found: RunTrends) -> bool:
    return found.drift is None and not found.growth and found.peak is None and not found.left_out


#: Of twenty runs each, all at once: what is told wrongly is counted.
SEEDS = range(20)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("steps", [150, 1000])
def test_a_steady_run_names_nothing(steps: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeRun(monkeypatch, seed)
    run = made.run(steps)
    assert is_quiet(trends(run))
    assert (run.evaluations, run.checkpoints) == (0, 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_drift_of_ten_percent(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the middle of the first tenth to that of the last it is nine tenths of it."""
    made = MadeRun(monkeypatch, seed, noise=0.02)
    found = trends(made.run(1000, lambda number: STEP * (1 + 0.1 * number / 1000)))
    assert found.drift is not None
    assert found.drift.last_ns / found.drift.first_ns - 1 == pytest.approx(0.09, abs=0.04)
    assert found.drift.parts["rest"] == found.drift.last_ns - found.drift.first_ns
    assert not found.growth


def test_a_drift_says_which_part_of_the_step_it_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeRun(monkeypatch, noise=0.01)
    weight = torch.ones(2, requires_grad=True)

    class Slower(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, tensor: torch.Tensor) -> torch.Tensor:
            return tensor.clone()

        @staticmethod
        def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
            made.time.sleep(5 * MS * (1 + made.number / 400))
            return gradient

    def step(number: int) -> float:
        Slower.apply(weight).sum().backward()
        return STEP

    found = trends(made.run(400, step))
    assert found.drift is not None
    assert found.drift.parts["backward"] == pytest.approx(4.5 * MS, rel=0.1)
    assert abs(found.drift.parts["rest"]) < 0.5 * MS


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["allocated", "host"])
def test_a_creep_of_two_mebibytes_a_step(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeRun(monkeypatch, seed)

    def memory(number: int) -> tuple[int, int, int, int]:
        size = 400 * MIB + 2 * MIB * number + made.random.randrange(30 * MIB)
        return (size, 2048 * MIB, 2048 * MIB, 300 * MIB) if kind == "allocated" else (0, 0, 0, size)

    made.memory = memory
    for steps, confirmed in ((500, False), (1000, True)):
        (grown,) = trends(made.run(steps)).growth
        assert (grown.kind, grown.confirmed) == (kind, confirmed)
        assert grown.bytes_per_step == pytest.approx(2 * MIB, rel=0.05)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("period", [7, 100])
def test_a_sawtooth_is_no_leak(period: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of losses that is emptied each epoch; a cache that fills up and stays."""
    made = MadeRun(monkeypatch, seed)
    made.memory = lambda number: (0, 0, 0, 300 * MIB + 10 * MIB * (number % period))
    assert is_quiet(trends(made.run(1000)))
    made.memory = lambda number: (0, 0, 0, 300 * MIB + min(10 * MIB * number, 2048 * MIB))
    assert is_quiet(trends(made.run(1000)))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_peak_that_varies_with_the_length_is_no_leak(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeRun(monkeypatch, seed)
    lengths = [
        random.Random(seed + number).randrange(64, 512) + (700 if number == 600 else 0) for number in range(1001)
    ]

    def memory(number: int) -> tuple[int, int, int, int]:
        peak = 1000 * MIB + 4 * MIB * max(lengths[: number + 1])
        return 900 * MIB + made.random.randrange(MIB), peak + 100 * MIB, peak, 300 * MIB

    made.memory = memory
    found = trends(made.run(1000))
    assert not found.growth
    assert found.peak is not None
    assert found.peak.last_bytes > found.peak.first_bytes
    assert found.peak.base_bytes < 902 * MIB


@pytest.mark.parametrize(
    ("first", "risen", "said"), [(400, 64, True), (400, 63, False), (1000, 100, True), (1000, 99, False)]
)
def test_a_peak_is_said_to_vary_from_a_tenth_and_64_mebibytes_on(
    first: int, risen: int, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = MadeRun(monkeypatch)
    made.memory = lambda number: (300 * MIB, 2000 * MIB, (first + (risen if number > 100 else 0)) * MIB, 300 * MIB)
    peak = trends(made.run(200)).peak
    assert (peak is not None) is said


@pytest.mark.parametrize("seed", SEEDS)
def test_an_evaluation_every_fifty_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeRun(monkeypatch, seed)

    def step(number: int) -> float:
        if number % 50 == 1 and number > 1:
            made.evaluates(400 * MS)
        return STEP

    run = made.run(400, step)
    assert run.evaluations == 7
    assert run.evaluating_ns == 7 * 400 * MS
    assert run.input_ns == 0
    found = trends(run)
    assert found.drift is None
    assert not found.left_out
    assert found.samples_per_second == pytest.approx(8e9 * run.steps / run.wall_ns)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_checkpoint_of_half_a_second(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeRun(monkeypatch, seed)

    def step(number: int) -> float:
        if number == 100:
            made.saves(500 * MS)
        return STEP

    run = made.run(200, step)
    assert (run.checkpoints, run.checkpointing_ns) == (1, 500 * MS)
    assert is_quiet(trends(run))
    assert not any(slow.number == 100 and slow.wall_ns > 450 * MS for slow in run.slow)


def test_one_step_of_forty_takes_most_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second way: 10 of 400 steps of 3.2 s, the others of 20 ms."""
    made = MadeRun(monkeypatch, noise=0.01)
    run = made.run(400, lambda number: 3200 * MS if number % 40 == 0 else STEP)
    (out,) = trends(run).left_out
    assert (out.steps, out.of_steps) == (10, 399)
    assert out.wall_ns / out.of_ns == pytest.approx(10 * 3200 / (10 * 3200 + 389 * 20), rel=0.05)
    (text,) = caveats_of(trends(run))
    assert text.startswith("10 of the 399 unrecorded steps take 8")
    assert text.endswith(
        "% of the run's time and are more than twice as long as the recorded ones; none of them was recorded"
    )


def test_long_steps_may_be_among_the_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeRun(monkeypatch, noise=0.01)
    run = made.run(400, lambda number: 3200 * MS if number % 40 == 0 else STEP)
    found = trends_of(run, (STEP, STEP, STEP), (2 * STEP, 3200 * MS, 2 * STEP), 8)
    (text,) = caveats_of(found)
    assert text.endswith("; 1 of the 3 recorded steps is like them")


def test_updates_of_a_network_that_none_of_the_recorded_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeRun(monkeypatch)
    with made.clocked() as clock:
        for number in range(1, 401):
            made.time.sleep(STEP)
            clock.step_ended(
                number, counted=True, optimizer="Adam (2 tensors)" if number // 20 % 2 else "SGD (3 tensors)"
            )
        run = clock.read({"SGD (3 tensors)"})
    assert run is not None
    (out,) = trends(run).left_out
    assert (out.optimizer, out.steps) == ("Adam (2 tensors)", 200)
    assert out.wall_ns / out.of_ns == pytest.approx(0.5, abs=0.01)


# ---------------------------------------------------------------------------------------------- kinds of evaluations


def test_evaluations_of_every_style(monkeypatch: pytest.MonkeyPatch) -> None:
    """With eval() or without, under no_grad or inference_mode, ended by train() or by a batch of the training."""
    made = MadeRun(monkeypatch, noise=0)
    loader = iter(DataLoader(TensorDataset(torch.ones(400, 4)), batch_size=2))

    def with_eval() -> None:
        made.evaluates(100 * MS)

    @torch.inference_mode()
    def without_eval() -> None:
        for _ in made.loader:
            made.time.sleep(50 * MS)

    def with_flag() -> None:
        made.model.eval()
        made.time.sleep(100 * MS)
        for module in made.model.modules():
            module.training = True
        next(loader)

    def grad_inside() -> None:
        made.model.eval()
        for _ in made.loader:
            with torch.no_grad():
                made.time.sleep(50 * MS)
        made.model.train()

    for style in (with_eval, without_eval, with_flag, grad_inside):

        def step(number: int, style: Callable[[], None] = style) -> float:
            next(loader)
            if number == 10:
                style()
            made.model(torch.ones(2, 4)).sum().backward()
            return STEP

        run = made.run(20, step)
        assert (run.evaluations, run.evaluating_ns) == (1, 100 * MS), style


def test_what_is_no_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen batch norm in each step, a teacher put to eval once, a batch that is loaded without gradients."""
    made = MadeRun(monkeypatch, noise=0)
    loader = iter(DataLoader(TensorDataset(torch.ones(400, 4)), batch_size=2))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    teacher = torch.nn.Linear(4, 4)

    def frozen_norm(_: int) -> None:
        model.train()
        model[1].eval()
        next(loader)

    def teaches(number: int) -> None:
        if number == 3:
            teacher.eval()
        next(loader)

    def loads(_: int) -> None:
        with torch.no_grad():
            next(loader)

    for style in (frozen_norm, teaches, loads):

        def step(number: int, style: Callable[[int], None] = style) -> float:
            style(number)
            made.time.sleep(5 * MS)
            model(torch.ones(2, 4)).sum().backward()
            return STEP

        run = made.run(40, step)
        assert (run.evaluations, run.evaluating_ns) == (0, 0), style


def test_what_came_first_and_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation before the first step and after the last one are in no step."""
    made = MadeRun(monkeypatch, noise=0)
    with made.clocked() as clock:
        made.evaluates(300 * MS)
        for number in range(1, 11):
            made.time.sleep(STEP)
            clock.step_ended(number, counted=True)
        made.evaluates(200 * MS)
        made.saves(100 * MS)
        run = clock.read()
    assert run is not None
    assert run.start is not None
    assert run.end is not None
    assert (run.start.wall_ns, run.start.evaluating_ns) == (320 * MS, 300 * MS)
    assert (run.end.wall_ns, run.end.evaluating_ns, run.end.checkpointing_ns) == (300 * MS, 200 * MS, 100 * MS)
    assert (run.steps, run.evaluations, run.checkpoints) == (9, 0, 0)


# ------------------------------------------------------------------------------------------------------ very long runs


def test_a_long_run_takes_no_more_memory_than_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old steps get coarser; sums, counts and the longest steps stay exact."""
    # A run of as many steps as really make them coarser would take minutes.
    monkeypatch.setattr(clocks, "_MAX_SERIES_ROWS", 64)
    monkeypatch.setattr(clocks, "_STEPS_AT_ONCE", 7)
    made = MadeRun(monkeypatch, noise=0)
    walls = []
    with made.clocked() as clock:
        for number in range(1, 5001):
            walls.append(round(STEP * (1 + 0.2 * number / 5000)) * (5 if number in (77, 4000) else 1))
            made.time.sleep(walls[-1])
            clock.step_ended(number, counted=True)
        assert len(clock._steps.columns[0]) < 128
        run = clock.read()
    assert run is not None
    assert (run.steps, run.wall_ns) == (4999, sum(walls[1:]))
    assert [slow.number for slow in run.slow] == [77, 4000]
    assert run.slow_steps == 2
    found = trends(run)
    assert found.drift is not None
    assert found.drift.last_ns / found.drift.first_ns == pytest.approx(1.19 / 1.01, rel=0.01)
    assert run.series is not None
    assert sum(run.series.steps) == 4999
    assert sum(run.series.wall_ns) == run.wall_ns
