"""What checkpointing makes of the activations' memory over the layers and the segment length, and the fits to it.

    python benchmarks/checkpointing.py [--model NAME ...] [--layers N ...] [--predict-only] [--csv FILE]

Of each number of layers n a step without checkpointing, and some with segments of k layers (`--checkpoint-every k`).
*Activations* are here what of the allocated bytes is neither weights, buffers, inputs nor gradients (there is no
optimizer): what forward keeps, what is recomputed, random states, outputs and temporary buffers; the most of their sum
at any moment of the step, which need not be that of the step's peak. They are predicted (the step on fake tensors) and
measured (the step that `profile --memory` follows, in a fresh process).

The textbook keeps n/k inputs of segments and recomputes k layers at once. So with `input` bytes that a segment and
`inside` bytes that a layer keeps it is bytes = outside + input n/k + inside k, least at k = sqrt(n input / inside),
with bytes = outside + 2 sqrt(n input inside). The textbook's k = sqrt(n) is that of layers that keep their input alone.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from math import isqrt, sqrt
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from opanatomy.memory import components
from opanatomy.memory.curve import curve_of
from opanatomy.memory.observed import measured_step, preexisting_blocks, table_of
from opanatomy.options import RunOptions
from opanatomy.predict import workers
from opanatomy.predict.experiment import predicted_figures
from opanatomy.predict.workers import run_job, run_jobs
from opanatomy.records.experiment import SimulatedStep
from opanatomy.records.workload import StepObservations

#: Components that are no activations.
STATIC: Final = (
    components.WEIGHTS,
    components.BUFFERS,
    components.INPUTS,
    components.GRADIENTS,
    components.OPTIMIZER_STATE,
    components.STEP_COUNTERS,
    components.HELD_BEFORE,
)
#: More than this between measured and predicted, or measured and fitted, is named.
TOLERANCE: Final = 0.02
LAYERS: Final = (4, 9, 16, 25, 36, 64)

_BERT: Final = {
    "hidden_size": 64,
    "num_attention_heads": 2,
    "intermediate_size": 256,
    "vocab_size": 512,
    "max_position_embeddings": 64,
}
_GPT2: Final = {"n_embd": 64, "n_head": 2, "vocab_size": 512, "n_positions": 64, "bos_token_id": 1, "eos_token_id": 1}


class Model(NamedTuple):
    """A model of the sweep: its name, the setting that is its number of layers, its other settings."""

    name: str
    layers: str
    settings: dict[str, Any]
    task: str | None = None


#: Heads times length over hidden size is 2 as of BERT-base at length 128. The thin one keeps less inside a layer.
MODELS: Final = {
    "bert": Model("google-bert/bert-base-uncased", "num_hidden_layers", _BERT, "sequence-classification"),
    "gpt2": Model("openai-community/gpt2", "n_layer", _GPT2),
    "thin": Model(
        "google-bert/bert-base-uncased",
        "num_hidden_layers",
        {
            **_BERT,
            "num_attention_heads": 1,
            "intermediate_size": 16,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
        "sequence-classification",
    ),
}


class Run(NamedTuple):
    """One step: its layers and the layers of a segment (0 without checkpointing), its activations, its FLOPs of
    backward (recomputation included) over those of forward, as predicted."""

    layers: int
    every: int
    predicted_bytes: int
    flop_ratio: float | None
    measured_bytes: int | None = None

    @property
    def bytes(self) -> int:
        """As measured, else as predicted."""
        return self.predicted_bytes if self.measured_bytes is None else self.measured_bytes


# ----------------------------------------------------------------------------------------------------------- the sweep


def options_of(model: Model, layers: int, every: int) -> RunOptions:
    settings = tuple((key, str(value)) for key, value in {**model.settings, model.layers: layers}.items())
    return RunOptions(
        model=model.name,
        task=model.task,
        settings=settings,
        batch=8,
        seq=64,
        device="cpu",
        warmup=1,
        memory=True,
        checkpoint_every=every or None,
    )


def segment_lengths(layers: int) -> list[int]:
    """0 for a step without checkpointing, then the lengths that are tried."""
    return [0, *sorted({every for every in (1, 2, 3, 4, isqrt(layers)) if every <= layers})]


def activation_bytes(step: StepObservations) -> int:
    """The most that the activations, by the definition above, are at any moment of the step."""
    table, held = table_of(step), preexisting_blocks(step)
    measured = measured_step(step, table, held)
    times = table.events.time_ns
    curve = curve_of(measured.blocks, measured.shares(), times, (int(times[0]), int(times[-1])))
    return int((curve.allocated - sum(curve.of(name) for name in STATIC)).max())


def sweep(model: Model, counts: Sequence[int], *, measure: bool) -> Iterator[Run]:
    """The runs of a model."""
    places = [(layers, every) for layers in counts for every in segment_lengths(layers)]
    options = [options_of(model, *place) for place in places]
    for (layers, every), asked, step in zip(places, options, run_jobs(workers.followed, options), strict=True):
        run = predicted_run(layers, every, step)
        yield run._replace(measured_bytes=run_job(memory_step, asked)) if measure else run


def predicted_run(layers: int, every: int, step: SimulatedStep | str) -> Run:
    """The run as it was followed on fake tensors; `SystemExit` where it could not be."""
    if isinstance(step, str):
        raise SystemExit(f"n {layers}, k {every or 'none'}: {step}")
    assert step.memory.step is not None
    ratio = predicted_figures(step, None, {}, 0).backward_ratio
    return Run(layers, every, activation_bytes(step.memory.step), ratio)


def memory_step(options: RunOptions) -> int:
    """The activations of the second step, followed as `profile --memory` does."""
    from opanatomy.capture.memory.measurement import Snapshots
    from opanatomy.capture.memory.observer import observe_step
    from opanatomy.capture.run.unprofiled import ready_to_step

    os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # of this process alone: the profiler says when it starts and stops
    with ready_to_step(options) as (prepared, stepper):
        stepper.run()
        checkpointing = options.checkpointing is not None
        observed = observe_step(stepper, prepared.module, Snapshots(options.device), checkpointing=checkpointing)
    if observed.error is not None:
        raise observed.error
    return activation_bytes(observed.observations)


# ------------------------------------------------------------------------------------------------------------ the fits


class Fit(NamedTuple):
    """The coefficients of a least-squares fit, the largest residual as a share, and R^2."""

    coefficients: tuple[float, ...]
    largest: float
    r_squared: float

    def __str__(self) -> str:
        return f"R^2 {self.r_squared:.5f}, largest residual {self.largest:.2%}"


def fitted(columns: Sequence[Sequence[float]], values: Sequence[float]) -> Fit:
    """`values` as a sum of the columns."""
    matrix, target = np.array(columns, dtype=float).T, np.array(values, dtype=float)
    coefficients = np.linalg.lstsq(matrix, target, rcond=None)[0]
    residuals = target - matrix @ coefficients
    spread = float(((target - target.mean()) ** 2).sum())
    return Fit(
        tuple(map(float, coefficients)),
        float((abs(residuals) / target).max()),
        1 - float((residuals**2).sum()) / spread if spread else 1.0,
    )


def segments_fit(runs: Iterable[Run]) -> Fit:
    """(outside, input, inside) of runs with checkpointing.

    Where the last segment is shorter, most is allocated while the last but one runs again: that many whole ones count.
    """
    chosen = [run for run in runs if run.every]
    columns = [[1.0] * len(chosen), [run.layers // run.every for run in chosen], [run.every for run in chosen]]
    return fitted(columns, [run.bytes for run in chosen])


def line_fit(runs: Sequence[Run], of_layers: Callable[[int], float]) -> Fit:
    """(a, b) of bytes = a + b f(n)."""
    return fitted([[1.0] * len(runs), [of_layers(run.layers) for run in runs]], [run.bytes for run in runs])


def exponent_fit(runs: Sequence[Run], outside: float) -> Fit:
    """(log b, p) of bytes - outside = b n^p."""
    logs = [float(np.log(max(run.bytes - outside, 1.0))) for run in runs]
    return fitted([[1.0] * len(runs), [float(np.log(run.layers)) for run in runs]], logs)


def best_of(runs: Sequence[Run]) -> list[Run]:
    """Of each number of layers the run with checkpointing that needs least."""
    return [min(group, key=lambda run: run.bytes) for group in by_layers(run for run in runs if run.every)]


def by_layers(runs: Iterable[Run]) -> list[list[Run]]:
    return [list(group) for _, group in groupby(runs, key=lambda run: run.layers)]


def best_length(layers: int, fit: Fit) -> float:
    """Where outside + input n/k + inside k is least over k."""
    _, kept, inside = fit.coefficients
    return sqrt(layers * kept / inside)


# --------------------------------------------------------------------------------------------------------- the output


def table(runs: Sequence[Run]) -> str:
    """One line for each number of layers, as Markdown."""
    lines = [
        "| n | without | k = 1 | k = isqrt(n) | best k | with it | sqrt(n input/inside) | sqrt(n) | backward/forward |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for group in by_layers(runs):
        layers, length = group[0].layers, {run.every: run for run in group}
        best = best_of(group)[0]
        place = f"{best_length(layers, segments_fit(group)):.2f}" if len(group) > 4 else ""
        ratios = sorted({f"{run.flop_ratio or 0:.2f}" for run in group if run.every})
        cells = (
            layers, megabytes(length[0]), megabytes(length[1]), megabytes(length[isqrt(layers)]), best.every,
            megabytes(best), place, f"{sqrt(layers):.2f}", f"{length[0].flop_ratio or 0:.2f}, {' to '.join(ratios)}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def megabytes(run: Run) -> str:
    return f"{run.bytes / 1e6:.2f} MB"


def fit_lines(runs: Sequence[Run]) -> list[str]:
    """What each fit says."""
    plain, best, every = [run for run in runs if not run.every], best_of(runs), segments_fit(runs)
    outside, kept, inside = every.coefficients
    lines = [
        f"over n and k: {outside / 1e6:.2f} MB + {kept / 1e6:.4f} MB n/k + {inside / 1e6:.4f} MB k; {every}",
        f"a layer keeps {inside / kept:.1f} times what a segment keeps: k = 2 is better than 1 from n ="
        f" {2 * inside / kept:.0f} on, k = sqrt(n {kept / inside:.3f})",
    ]
    for title, chosen in (("without", plain), ("best k", best)):
        for form, of_layers in (("n", float), ("sqrt(n)", sqrt)):
            fit = line_fit(chosen, of_layers)
            a, b = fit.coefficients
            lines.append(f"{title}: {a / 1e6:.2f} MB + {b / 1e6:.3f} MB {form}; {fit}")
    lines.append(exponent_line("without", plain, intercept(plain)))
    lines.append(exponent_line("best k", best, outside))
    lines.append(exponent_line(f"best k, n above {2 * inside / kept:.0f}", beyond(best, 2 * inside / kept), outside))
    return lines


def beyond(runs: Sequence[Run], layers: float) -> list[Run]:
    return [run for run in runs if run.layers > layers]


def intercept(runs: Sequence[Run]) -> float:
    """What no layers need, by the two smallest numbers of them: the others may depart from their line."""
    first, second = runs[:2]
    slope = (second.bytes - first.bytes) / (second.layers - first.layers)
    return first.bytes - slope * first.layers


def exponent_line(title: str, runs: Sequence[Run], outside: float) -> str:
    if len(runs) < 2:
        return f"{title}: no exponent of {len(runs)} runs"
    fit = exponent_fit(runs, outside)
    return f"{title}: bytes - {outside / 1e6:.2f} MB as n^{fit.coefficients[1]:.3f} (log-log), R^2 {fit.r_squared:.5f}"


def departures(runs: Sequence[Run]) -> list[str]:
    """Measurements that a prediction or the fit over n and k misses by more than is tolerated."""
    outside, kept, inside = segments_fit(runs).coefficients
    lines = []
    for run in runs:
        expected = {"the prediction": float(run.predicted_bytes)}
        if run.every:
            expected["the fit"] = outside + kept * (run.layers // run.every) + inside * run.every
        for name, value in expected.items():
            if abs(run.bytes / value - 1) > TOLERANCE:
                lines.append(f"n {run.layers}, k {run.every or 'none'}: {run.bytes / value - 1:+.2%} of {name}")
    return lines or [f"nothing departs from prediction or fit by more than {TOLERANCE:.0%}"]


def main() -> int:
    arguments = _arguments()
    kept: list[tuple[str, Run]] = []
    for name in arguments.model or MODELS:
        runs = []
        for run in sweep(MODELS[name], sorted(arguments.layers), measure=not arguments.predict_only):
            print(name, *run, sep="\t", file=sys.stderr)
            runs.append(run)
        kept += [(name, run) for run in runs]
        print(f"\n{name}\n\n{table(runs)}\n", *fit_lines(runs), *departures(runs), sep="\n", flush=True)
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("model", *Run._fields))
            writer.writerows((name, *run) for name, run in kept)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=tuple(MODELS), default=[])
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS, metavar="N")
    parser.add_argument("--predict-only", action="store_true", help="measure nothing")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the runs there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
