"""Predictions of techniques next to what they become: the tables of docs/techniques.md.

    python benchmarks/predictions.py FOLDER [--model NAME ...] [--only TECHNIQUE ...] [--skip TECHNIQUE ...]
        [--repetitions N] [--resume]

Runs an experiment for each of some models that one processor steps in about a second, and prints each prediction with
its error. Times are ratios to the baseline of the same experiment.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from opanatomy.cli.progress import Display
from opanatomy.options import RunOptions
from opanatomy.predict.experiment import Experiment, Settings, Store
from opanatomy.records.comparison import memory_agrees, memory_error, time_agrees, time_error
from opanatomy.records.experiment import TechniqueRow, Techniques
from opanatomy.report.formats.json import json_report

_SMALL = (("hidden_size", "256"), ("num_attention_heads", "4"), ("intermediate_size", "1024"))
_GROUPED = (*_SMALL, ("num_key_value_heads", "2"))
_CODE = Path(__file__).parent / "predicted.py"
#: The BERT of the published comparison (4 layers of 256, batch 8 x 128), and its like of other architectures.
MODELS: dict[str, dict[str, Any]] = {
    "bert": {
        "model": "google-bert/bert-base-uncased", "task": "sequence-classification", "layers": 4, "settings": _SMALL,
        "batch": 8, "seq": 128,
    },
    "gpt2": {
        "model": "openai-community/gpt2", "layers": 4, "settings": (("n_embd", "256"), ("n_head", "4")),
        "batch": 4, "seq": 128,
    },
    "t5": {
        "model": "google-t5/t5-base", "layers": 2, "batch": 4, "seq": 64,
        "settings": (("d_model", "256"), ("d_ff", "1024"), ("num_heads", "4"), ("d_kv", "64")),
    },
    "vit": {
        "model": "google/vit-base-patch16-224", "layers": 4,
        "settings": (("hidden_size", "192"), ("num_attention_heads", "3"), ("intermediate_size", "768")), "batch": 8,
    },
    "llama": {
        "model": "meta-llama/Llama-3.1-8B", "layers": 4, "batch": 4, "seq": 128,
        "settings": (*_GROUPED, ("vocab_size", "32000"), ("head_dim", "64")),
    },
    "qwen3": {
        "model": "Qwen/Qwen3-0.6B", "layers": 4, "batch": 2, "seq": 128,
        "settings": (*_GROUPED, ("vocab_size", "32000"), ("head_dim", "64")),
    },
    "mixtral": {
        "model": "mistralai/Mixtral-8x7B-v0.1", "layers": 2, "batch": 2, "seq": 64,
        "settings": (*_GROUPED, ("num_local_experts", "4"), ("head_dim", "64")),
    },
    "whisper": {
        "model": "openai/whisper-small", "layers": 2, "batch": 1,
        "settings": (
            ("d_model", "256"), ("encoder_attention_heads", "4"), ("decoder_attention_heads", "4"),
            ("encoder_ffn_dim", "1024"), ("decoder_ffn_dim", "1024"),
        ),
    },
    "resnet": {"model": "microsoft/resnet-50", "batch": 4},
    "distilbert": {
        "model": "distilbert/distilbert-base-uncased", "layers": 3, "batch": 8, "seq": 128,
        "settings": (("dim", "256"), ("n_heads", "4"), ("hidden_dim", "1024")),
    },
    "deberta": {
        "model": "microsoft/deberta-v3-base", "layers": 3, "batch": 4, "seq": 128, "settings": _SMALL,
    },
    "encoder": {"model": f"{_CODE}:encoder"},
    "cnn": {"model": f"{_CODE}:cnn"},
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", action="append", choices=tuple(MODELS), default=[])
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--skip", action="append", default=[])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--resume", action="store_true")
    arguments = parser.parse_args()
    reports = {}
    for name in arguments.model or MODELS:
        options = RunOptions(**{"optimizer": "adamw", "device": "cpu", "warmup": 1, **MODELS[name]})
        settings = Settings(
            only=tuple(arguments.only), skip=tuple(arguments.skip), repetitions=arguments.repetitions, loss_steps=2
        )
        store = Store(arguments.folder / name, resume=arguments.resume)
        with Display() as display:
            experiment = Experiment(options, settings, store, display)
            experiment.predict()
            experiment.measure()
        report = reports[name] = experiment.result()
        (arguments.folder / f"{name}.json").write_text(json_report(report))
        # One line a technique, for a page in Markdown.
        print(f"| {name} | peak predicted | measured | off | time predicted | range | measured | off |")
        print("|---|---|---|---|---|---|---|---|")
        for row in report.rows:
            print(_line(row, report.baseline))
        print(flush=True)
    print(_summary(reports))
    return 0


def _megabytes(size: int | None) -> str:
    return "" if size is None else f"{size / 1e6:.1f} MB"


def _line(row: TechniqueRow, baseline: TechniqueRow) -> str:
    if row.predicted is None or row.measured is None:
        why = row.failed or row.not_predicted or ""
        return f"| {row.name} | | | | | | | {why} |"
    begun, theirs = baseline.predicted, baseline.measured
    assert begun is not None
    assert theirs is not None
    memory, time = memory_error(row), time_error(row, baseline)
    wrong = "".join(
        mark for mark, agrees in (("m", memory_agrees(row)), ("t", time_agrees(row, baseline))) if not agrees
    )
    ratios = [
        "" if value is None or not begun.step_ns else f"{value / begun.step_ns:.2f}"
        for value in (row.predicted.step_ns, row.predicted.low_ns, row.predicted.high_ns)
    ]
    measured = (row.measured.step_ns or 0) / (theirs.step_ns or 1)
    cells = (
        row.name, _megabytes(row.predicted.peak_bytes), _megabytes(row.measured.peak_bytes), f"{memory or 0:+.2%}",
        ratios[0], f"{ratios[1]} to {ratios[2]}", f"{measured:.2f}", f"{time or 0:+.0%} {wrong}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _summary(reports: dict[str, Techniques]) -> str:
    """How many predictions hold, and whether they beat that of no change."""
    memory, time, closer = [], [], []
    for report in reports.values():
        for row in report.rows[1:]:
            memory.append(memory_agrees(row))
            time.append(time_agrees(row, report.baseline))
            error = time_error(row, report.baseline)
            if error is not None and row.measured and report.baseline.measured:
                change = (row.measured.step_ns or 1) / (report.baseline.measured.step_ns or 1)
                closer.append((abs(error), abs(1 / change - 1)))
    held = lambda values: f"{sum(v is True for v in values)} of {sum(v is not None for v in values)}"  # noqa: E731
    ours, none = (sum(pair[index] for pair in closer) / max(len(closer), 1) for index in (0, 1))
    return (
        f"memory within 2 %: {held(memory)}; time within the range: {held(time)};"
        f" mean error of the time {ours:.0%}, of predicting no change {none:.0%}"
    )


if __name__ == "__main__":
    sys.exit(main())
