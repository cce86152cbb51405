"""What a capture costs: a training step plain, with the phase and module ranges, under the profiler, and under both.

    python benchmarks/capture_overhead.py [--repetitions N] [--model NAME --batch N --seq N --set KEY=VALUE ...]

The steps run in turns in one process, on one thread of the CPU. The cost of one range is also measured by itself, on a
module that does nothing, since the difference of two steps is smaller than their scatter.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

from measure import (
    Sample,
    Samples,
    cpus,
    pin_to_one_core,
    print_table,
    ratio,
    run_call,
    spread_of,
    take_turns,
    walls,
)
from msgspec import Struct

PLAIN, RANGES, PROFILED, BOTH = "plain step", "ranges", "profiler", "profiler and ranges"
RANGE_CALLS = 20_000


class Subject(Struct, frozen=True, kw_only=True):
    """A model of the catalog, cut down so that a step takes about a second."""

    title: str
    model: str
    batch: int
    seq: int
    settings: tuple[tuple[str, str], ...]


SUBJECTS = (
    Subject(
        title="small",
        model="google-bert/bert-base-uncased",
        batch=8,
        seq=128,
        settings=(
            ("num_hidden_layers", "2"),
            ("hidden_size", "256"),
            ("num_attention_heads", "4"),
            ("intermediate_size", "1024"),
            ("vocab_size", "8000"),
        ),
    ),
    Subject(
        title="medium",
        model="Qwen/Qwen3-0.6B",
        batch=4,
        seq=64,
        settings=(
            ("num_hidden_layers", "12"),
            ("hidden_size", "256"),
            ("num_attention_heads", "8"),
            ("num_key_value_heads", "4"),
            ("head_dim", "32"),
            ("intermediate_size", "1024"),
            ("vocab_size", "8000"),
        ),
    ),
)


class Bench:
    """One prepared model and its step with or without ranges and profiler."""

    def __init__(self, subject: Subject) -> None:
        from opanatomy.capture.model.workload import prepare
        from opanatomy.options import RunOptions

        request = RunOptions(
            device="cpu", model=subject.model, batch=subject.batch, seq=subject.seq, settings=subject.settings
        )
        self.prepared = prepare(request)

    def step(self, *, ranges: bool) -> None:
        """Forward and backward."""
        from opanatomy.capture.step.ranges import phase_range
        from opanatomy.records.taxonomy import Phase

        inputs: Any = self.prepared.inputs
        for parameter in self.prepared.module.parameters():
            parameter.grad = None
        with phase_range(Phase.FORWARD) if ranges else nullcontext():
            loss = self.prepared.module(**inputs).loss
        with phase_range(Phase.BACKWARD) if ranges else nullcontext():
            loss.backward()

    def sample(self, *, ranges: bool, profiled: bool) -> Sample:
        """One step; hooks and profiler are set up before the clock starts."""
        with profiler() if profiled else nullcontext(), self.hooks(ranges):
            return run_call(lambda: self.step(ranges=ranges))

    def hooks(self, ranges: bool) -> AbstractContextManager[object]:
        from opanatomy.capture.step.ranges import module_ranges

        return module_ranges(self.prepared.module) if ranges else nullcontext()

    def ranges_in_step(self) -> int:
        """The phase and module ranges in the trace of one step."""
        from opanatomy.records.workload import MODULE_RANGE, PHASE_RANGE
        from opanatomy.trace.read import read_trace

        with profiler() as recorded, self.hooks(True):
            self.step(ranges=True)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "step.json"
            recorded.export_chrome_trace(str(path))
            trace = read_trace(path)
        ours = [name.startswith((PHASE_RANGE, MODULE_RANGE)) for name in trace.names]
        return sum(ours[name] for name in trace.host.name.tolist())


@contextmanager
def profiler() -> Iterator[Any]:
    """torch.profiler as a capture uses it."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        yield recorded


def report(subject: Subject, bench: Bench, samples: Samples, each_us: dict[str, float]) -> None:
    """Ratios to the plain step, and what the ranges add by their own cost."""
    plain, profiled = samples[PLAIN], samples[PROFILED]
    rows = []
    for name, taken in samples.items():
        profiled_ratio = str(ratio(cpus(taken), cpus(profiled))) if name in (PROFILED, BOTH) else ""
        middle = (f"{spread_of(times(taken)).middle * 1e3:.1f}" for times in (walls, cpus))
        rows.append(
            (name, *middle, *(str(ratio(times(taken), times(plain))) for times in (walls, cpus)), profiled_ratio)
        )
    count = bench.ranges_in_step()
    parameters = sum(parameter.numel() for parameter in bench.prepared.module.parameters())
    shape = f"batch {subject.batch} x {subject.seq}, {parameters / 1e6:.1f} M parameters"
    print(f"{subject.title}: {subject.model}, {shape}, {count} ranges a step")
    header = ("", "wall ms", "CPU ms", "wall x plain [quarters]", "CPU x plain [quarters]", "CPU x profiler alone")
    print_table(header, rows)
    for title, other in (("without the profiler", plain), ("under the profiler", profiled)):
        added = each_us[title] * count / 1e6
        share = 100 * added / median(cpus(other))
        print(f"{count} ranges x {each_us[title]:.2f} us {title}: {added * 1e3:.2f} ms, {share:.2f} % of the step")
    print()


def cost_of_a_range(rounds: int = 5) -> dict[str, float]:
    """Microseconds of one module range: calls of a module that does nothing, with ranges and without, in turns."""
    import torch

    from opanatomy.capture.step.ranges import module_ranges

    module = torch.nn.Identity()

    def calls() -> None:
        for _ in range(RANGE_CALLS):
            module(None)

    costs: dict[str, float] = {}
    for title, around in (("without the profiler", nullcontext), ("under the profiler", profiler)):
        samples = take_turns(
            {PLAIN: _timed(calls, around, nullcontext), RANGES: _timed(calls, around, lambda: module_ranges(module))},
            rounds,
        )
        with_ranges, without = (median(cpus(samples[name])) for name in (RANGES, PLAIN))
        costs[title] = (with_ranges - without) / RANGE_CALLS * 1e6
    return costs


def _timed(
    calls: Callable[[], None],
    around: Callable[[], AbstractContextManager[Any]],
    hooks: Callable[[], AbstractContextManager[Any]],
) -> Callable[[], Sample]:
    def timed() -> Sample:
        with around(), hooks():
            return run_call(calls)

    return timed


def subjects_of(arguments: argparse.Namespace) -> tuple[Subject, ...]:
    """The model asked for, else the two of the file."""
    if not arguments.model:
        return SUBJECTS
    settings = tuple((key, value) for key, _, value in (text.partition("=") for text in arguments.set))
    return (
        Subject(title="asked for", model=arguments.model, batch=arguments.batch, seq=arguments.seq, settings=settings),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=11, metavar="N", help="rounds (default: 11)")
    parser.add_argument("--model", metavar="NAME", help="a name of the catalog (default: a small and a medium one)")
    parser.add_argument("--batch", type=int, default=4, metavar="N", help="(default: 4)")
    parser.add_argument("--seq", type=int, default=128, metavar="N", help="(default: 128)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as in opanatomy profile")
    arguments = parser.parse_args()
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    print(pin_to_one_core() + "\n")
    import torch

    from opanatomy.capture.silence import quiet_libraries

    torch.set_num_threads(1)
    with quiet_libraries():
        each_us = cost_of_a_range()
        for subject in subjects_of(arguments):
            bench = Bench(subject)
            kinds: dict[str, Callable[[], Sample]] = {
                PLAIN: lambda bench=bench: bench.sample(ranges=False, profiled=False),
                RANGES: lambda bench=bench: bench.sample(ranges=True, profiled=False),
                PROFILED: lambda bench=bench: bench.sample(ranges=False, profiled=True),
                BOTH: lambda bench=bench: bench.sample(ranges=True, profiled=True),
            }
            report(subject, bench, take_turns(kinds, arguments.repetitions, warm_up=2), each_us)


if __name__ == "__main__":
    main()
