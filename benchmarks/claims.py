"""What `compare --run` claims of two models whose step differs by a tenth in one operator, and of two that are alike.

    python benchmarks/claims.py [TRIALS] [CASE ...]

The cases: `differ` and `same`; `differ-busy` and `same-busy`, next to a process that eats a core. Each trial is one
comparison of five runs a side. Claimed is the time of the step, and any figure of a time for `same`, where each is
false; `busy` counts the trials whose comparison says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opanatomy.records.comparison import SIGNIFICANT

#: A layer whose products are nearly all of a step of about 0.1 s.
MODELS = """
import torch

def made(wide):
    torch.manual_seed(0)
    layers = torch.nn.Linear(1024, wide), torch.nn.ReLU(), torch.nn.Linear(wide, 8)
    return torch.nn.Sequential(*layers), torch.ones(1024, 1024)

def plain():
    return made(4096)

def wider():
    return made(4506)
"""
CASES = {"differ": ("plain", "wider"), "same": ("plain", "plain")}


@contextmanager
def eaten_core(*, eaten: bool) -> Iterator[None]:
    """Meanwhile a process eats a core."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if eaten else None
    try:
        yield
    finally:
        if other is not None:
            other.kill()


def trial(folder: Path, case: str, seed: int) -> dict[str, Any]:
    """One comparison, as its JSON report."""
    first, second = CASES[case.removesuffix("-busy")]
    command = [
        sys.executable,
        "-m",
        "opanatomy",
        "compare",
        "--run",
        f"profile models.py:{first}",
        "--run",
        f"profile models.py:{second}",
        "--seed",
        str(seed),
        "-f",
        "json",
    ]
    with eaten_core(eaten=case.endswith("-busy")):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def counted(report: dict[str, Any]) -> Counter[str]:
    """What one comparison says."""
    rows = {row["name"]: row for row in report["figures"]}
    claimed = {name for name, row in rows.items() if row["p"] is not None and row["p"] < SIGNIFICANT}
    return Counter(
        {
            "step claimed": int("step_time_ns" in claimed),
            "another figure claimed": int(bool(claimed - {"step_time_ns"})),
            "busy": int(any("the machine was busy" in text for text in report["warnings"])),
            "nothing claimed": int(not claimed),
        }
    )


def main(words: Sequence[str]) -> None:
    """Print a line a trial, and the counts of each case."""
    trials, cases = int(words[0]) if words else 20, words[1:] or [*CASES, *(f"{case}-busy" for case in CASES)]
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "models.py").write_text(MODELS)
        for case in cases:
            counts: Counter[str] = Counter()
            for seed in range(trials):
                load = os.getloadavg()[0]
                report = trial(Path(name), case, seed)
                (step,) = (row for row in report["figures"] if row["name"] == "step_time_ns")
                counts += counted(report)
                before, after = (value / 1e6 for value in step["values"])
                print(f"  {case} {seed}: {before:.1f} ms, {after:.1f} ms, p {step['p']}, load {load:.1f}", flush=True)
            print(f"{case}: {trials} trials, {', '.join(f'{count} {what}' for what, count in counts.items())}")


if __name__ == "__main__":
    main(sys.argv[1:])
