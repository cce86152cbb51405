"""Five pieces of advice carried out on the CPU: what was said to be gained at most, and what is.

    python benchmarks/advised.py [CASE ...]

Each case is profiled, its advice taken from the report, then run again as the advice says; the two take turns, five
runs each, and the difference of the medians of the steps stands beside the gain.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

#: Runs of each side.
_RUNS = 5
_SMALL_BERT = (
    "google-bert/bert-base-uncased", "--layers", "4", "--set", "hidden_size=256", "--set", "num_attention_heads=4",
    "--set", "intermediate_size=1024", "--device", "cpu",
)  # fmt: skip
_THIN_GPT = (
    "openai-community/gpt2", "--layers", "12", "--set", "n_embd=64", "--set", "n_head=2", "--set", "vocab_size=1000",
    "--seq", "32", "--device", "cpu",
)  # fmt: skip
#: A loader of 30 ms for each batch beside a step of some tens, recorded by torch.profiler as users do.
LOADER = """
import sys, time, torch
from torch.profiler import profile, schedule
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 512
    def __getitem__(self, index):
        time.sleep(0.0075)
        return torch.randn(256)
def main(workers, trace):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)], torch.nn.Linear(256, 4096),
                                torch.nn.Linear(4096, 4096), torch.nn.Linear(4096, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(Slow(), batch_size=4, num_workers=workers)
    times, begun = [], time.perf_counter_ns()
    with profile(schedule=schedule(wait=4, warmup=2, active=8, repeat=1), record_shapes=True,
                 on_trace_ready=lambda made: made.export_chrome_trace(trace)) as profiler:
        for number, batch in enumerate(loader):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            profiler.step()
            times.append(time.perf_counter_ns() - begun)
            begun = time.perf_counter_ns()
            if number == 40:
                break
    print(sorted(times[16:])[len(times[16:]) // 2])
if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
"""

#: A run of one side: its step in ns, for so many samples; and the report of the first side.
Run = Callable[[Path], "tuple[float, dict[str, Any] | None]"]


def profile(*words: str, texts: bool = False) -> Run:
    """A run of `opanatomy profile` with these words."""

    def run(folder: Path) -> tuple[float, dict[str, Any] | None]:
        command = [sys.executable, "-m", "opanatomy", "profile", *words, "--suggest", "0", "--no-trace", "-f", "json"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        report: dict[str, Any] = json.loads(done.stdout)
        step = report["texts"]["mean_step_ns"] if texts else report["step"]["unprofiled_wall_ns"]
        return step / report["workload"]["batch"], report

    return run


def loader(workers: int) -> Run:
    """A run of the script whose loader is slow."""

    def run(folder: Path) -> tuple[float, dict[str, Any] | None]:
        (folder / "train.py").write_text(LOADER)
        done = subprocess.run(
            [sys.executable, "train.py", str(workers), "step.json"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        made = subprocess.run(
            [sys.executable, "-m", "opanatomy", "analyze", "step.json", "-f", "json"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        return float(done.stdout.split()[-1]), json.loads(made.stdout)

    return run


#: The advice, its two sides, and by how many samples its gain is divided: sides are compared for each sample.
CASES: dict[str, tuple[str, Run, Run, int]] = {
    "fused optimizer": (
        "optimizer",
        profile(*_SMALL_BERT, "--batch", "2", "--seq", "64", "--optimizer", "adamw-loop"),
        profile(*_SMALL_BERT, "--batch", "2", "--seq", "64", "--optimizer", "adamw"),
        2,
    ),
    "attention fused": (
        "attention",
        profile(*_SMALL_BERT, "--batch", "2", "--seq", "512"),
        profile(*_SMALL_BERT, "--batch", "2", "--seq", "512", "--set", "attention_probs_dropout_prob=0"),
        2,
    ),
    "workers of a loader": ("input", loader(0), loader(2), 1),
    "larger batch": (
        "framework",
        profile(*_THIN_GPT, "--batch", "1"),
        profile(*_THIN_GPT, "--batch", "8"),
        1,
    ),
    "padding": (
        "padding",
        profile(*_SMALL_BERT, "--texts", "--batch", "16", "--seq", "128", texts=True),
        profile(*_SMALL_BERT, "--texts", "--batch", "16", "--seq", "128", "--padding", "longest", texts=True),
        16,
    ),
}


def main(words: Sequence[str]) -> None:
    """Print a line of each case."""
    print("| advice | said, at most | gained | step before | after | gained of said |")
    print("|---|---|---|---|---|---|")
    for case in words or CASES:
        rule, first, second, samples = CASES[case]
        times: dict[Run, list[float]] = {first: [], second: []}
        said: list[float] = []
        with tempfile.TemporaryDirectory() as name:
            for turn in range(_RUNS):
                for run in (first, second) if turn % 2 else (second, first):
                    step, report = run(Path(name))
                    times[run].append(step)
                    if run is first and report is not None:
                        said += [each["gain_ns"] / samples for each in report["advice"] if each["id"] == rule]
        before, after = (statistics.median(times[run]) for run in (first, second))
        gain = statistics.median(said) if said else float("nan")
        print(
            f"| {case} | {gain / 1e6:.2f} ms ({len(said)} of {_RUNS} runs) | {(before - after) / 1e6:.2f} ms |"
            f" {before / 1e6:.2f} ms | {after / 1e6:.2f} ms | {(before - after) / gain:.2f} | load"
            f" {os.getloadavg()[0]:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
