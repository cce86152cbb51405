"""timm's ladder of batches on an RTX 3090 next to our verdicts and times, by family of models.

    python benchmarks/estimate_timm.py TIMM.tsv [--rows 60] [--seed 39] [MODEL ...]

Needs `pip install timm`, which brings torchvision; the names of the table are those of timm 0.6.13. A row of TIMM.tsv
is a training step under float16 autocast at the largest batch of the ladder 512, 384, 256, 192, ... that ran: it must
fit there and not on the rung above (nothing is known above 512). The rows are channels last (nhwc). Our options have no
such layout and they are run contiguous: that hardly changes the memory, but the published times are of other kernels.
Prints each row and each family, and all of it as JSON at the end.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import sys
import tempfile
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from opanatomy.classification.operators import classify_operator
from opanatomy.cost.registry import cost
from opanatomy.options import RunOptions
from opanatomy.predict.estimate import estimated_on, sheet_limit
from opanatomy.predict.fit import gpu_of
from opanatomy.predict.workers import simulate_in_process
from opanatomy.records.experiment import SimulatedStep
from opanatomy.records.taxonomy import OperatorClass

DEVICE = "GeForce RTX 3090"
RUNGS = sorted({2**power for power in range(10)} | {3 * 2**power for power in range(8)})
#: The model and images of a row, and timm's loss inside of autocast.
MODEL = """
import timm
import torch

class Trained(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images):
        made = self.model(images)
        made = made[0] if isinstance(made, tuple) else made
        labels = torch.zeros(len(made), dtype=torch.long, device=made.device)
        return torch.nn.functional.cross_entropy(made, labels)

def made(batch):
    return Trained(timm.create_model({name!r}, drop_rate=0.0)), torch.randn(batch, 3, {size}, {size})

def published():
    return made({batch})

def above():
    return made({above})
"""


def family_of(step: SimulatedStep) -> str:
    """Return the kind of a model by the shares of its products' FLOPs."""
    flops: Counter[str] = Counter()
    for call in step.calls:
        known, costs = classify_operator(call.operator), cost(call.operator, call.signature)
        if costs is None or known is None or known.operator_class is not OperatorClass.TENSOR_CONTRACTION:
            continue
        kind = "products"
        if "convolution" in call.operator:
            start = 1 if "backward" in call.operator else 0  # the gradient comes first
            channels, of_group = (call.signature.tensor(start + index).shape[1] for index in (0, 1))
            kind = "dense" if channels == of_group else "depthwise" if of_group == 1 else "grouped"
        flops[kind] += costs.flops * call.calls
    share = {kind: count / flops.total() for kind, count in flops.items()}
    if share.get("grouped", 0) > 0.05:
        return "grouped convolutions"
    if share.get("depthwise", 0) > 0.02:
        return "depthwise convolutions" if share.get("products", 0) < 0.3 else "depthwise and products"
    if share.get("dense", 0) > 0.9:
        return "dense convolutions"
    return "transformers and MLPs" if share.get("dense", 0) < 0.15 else "convolutions and products"


def judged(row: dict[str, str], folder: Path) -> dict[str, Any]:
    """Return our verdicts and time of a row, or why there are none."""
    batch, limit = int(row["train_batch_size"]), sheet_limit(DEVICE)
    above = next((rung for rung in RUNGS if rung > batch), None)
    source, size = folder / f"of_{row['model']}.py", int(row["train_img_size"])
    source.write_text(MODEL.format(name=row["model"], size=size, batch=batch, above=above))
    names = ["published"] + ["above"] * (above is not None)
    runs = [RunOptions(model=f"{source}:{name}", amp="fp16", optimizer="sgd", device="cpu") for name in names]
    steps = [followed.step for followed in simulate_in_process(runs, "none", gpu=gpu_of(limit))]
    made: dict[str, Any] = {"model": row["model"], "layout": row["layout"], "batch": batch}
    for name, step in zip(names, steps, strict=True):
        if isinstance(step, str):
            return {**made, "error": f"{name}: {step}"}
        made[name] = estimated_on(step, limit).occupied.fits.value
    ours, step_ns = estimated_on(steps[0], limit), float(row["train_step_time_ms"]) * 1e6
    inside = ours.low_ns <= step_ns <= ours.high_ns
    return {**made, "family": family_of(steps[0]), "ratio": round(ours.as_is_ns / step_ns, 3), "inside": inside}


def summary(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the errors of the rows of a family."""
    return {
        "family": name,
        "rows": len(rows),
        "published": dict(Counter(row["published"] for row in rows)),
        "above": dict(Counter(row["above"] for row in rows if "above" in row)),
        "inside": sum(row["inside"] for row in rows),
        "median_off": round(median(abs(row["ratio"] - 1) for row in rows), 3),
        "median_ratio": round(median(row["ratio"] for row in rows), 3),
    }


def main() -> None:
    """Judge a sample of the rows, and print them by family."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", type=Path, metavar="TIMM.tsv")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="these alone, not a sample")
    parser.add_argument("--rows", type=int, default=60)
    parser.add_argument("--seed", type=int, default=39)
    arguments = parser.parse_args()
    if missing := [name for name in ("timm", "torchvision") if find_spec(name) is None]:
        sys.exit(f"{' and '.join(missing)} not found: the models are timm's - pip install timm")
    with arguments.table.open(newline="") as file:
        table = list(csv.DictReader(file, delimiter="\t"))
    sample = random.Random(arguments.seed).sample(table, min(arguments.rows, len(table)))
    rows = [row for row in table if row["model"] in arguments.models] if arguments.models else sample
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            begun = time.monotonic()
            results.append(judged(row, Path(folder)))
            print(*results[-1].values(), f"{time.monotonic() - begun:.0f} s", flush=True)
    done = [result for result in results if "error" not in result]
    names = sorted({result["family"] for result in done})
    made = [summary(name, [result for result in done if result["family"] == name]) for name in names]
    for each in made:
        print(*(f"{name} {value}" for name, value in each.items()))
    print(json.dumps({"rows": results, "families": made}, indent=1))


if __name__ == "__main__":
    main()
