"""`python -m tests.gpu.clock [SECONDS] [FOLDER]`: the readings of a GPU's clocks beside nvidia-smi and its counters.

Large products run for SECONDS (60) without a pause, then as long with pauses; `nvidia-smi` reads the same clocks, power
and reasons meanwhile, and the counter of energy is read before and after. Then steps of a small model are timed with
and without the readings, in turns. One line each, and all of it as JSON in FOLDER.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any, Final

from msgspec import to_builtins

from opanatomy.capture.device.state import watching

QUERY: Final = "clocks.sm,power.draw,temperature.gpu,clocks_event_reasons.active"


def beside_nvidia_smi(work: Callable[[], object], seconds: float, *, pause: float = 0.0) -> dict[str, Any]:
    """What the watch and what nvidia-smi say of `work` that runs so long, with pauses of that many seconds."""
    reader = None
    if shutil.which("nvidia-smi"):
        words = ["nvidia-smi", "-i", "0", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits", "-lms", "500"]
        reader = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    with watching("cuda:0") as watch:
        assert watch is not None
        before = joules()
        until, calls = time.monotonic() + seconds, 0
        with watch.around(reads=True):
            while time.monotonic() < until:
                burst = time.monotonic() + 1.0
                while time.monotonic() < min(burst, until):
                    work()
                    calls += 1
                time.sleep(pause)
        used = joules() - before
        state = watch.over(watch.spans, steps=calls, energy=watch.spans[0])
    rows = []
    if reader is not None:
        reader.terminate()
        rows = [line.split(", ") for line in reader.communicate()[0].splitlines() if line.count(",") == 3]
    return {
        "state": to_builtins(state),
        "calls": calls,
        "counter_joules": used,
        "smi_clock_mhz": median(float(row[0]) for row in rows) if rows else None,
        "smi_power_w": sum(float(row[1]) for row in rows) / len(rows) if rows else None,
        "smi_temperature_c": max(int(row[2]) for row in rows) if rows else None,
        "smi_reasons": sorted({row[3] for row in rows}),
    }


def joules() -> float:
    """The energy that the first device has used since its driver was loaded."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000


def with_and_without(step: Callable[[], object], turns: int) -> float:
    """The time of a step while the watch reads, over that without: the median of turns."""
    ratios = []
    for _ in range(turns):
        times = []
        for reads in (False, True):
            with watching("cuda:0") if reads else nullcontext():
                begun = time.perf_counter()
                step()
                times.append(time.perf_counter() - begun)
        ratios.append(times[1] / times[0])
    return median(ratios)


def main(seconds: float = 60.0, folder: Path = Path()) -> None:
    """Run all, print a line each and write the JSON."""
    import torch

    left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def products(count: int = 20) -> None:
        for _ in range(count):
            torch.mm(left, right)
        torch.cuda.synchronize()

    found = {
        "back to back": beside_nvidia_smi(products, seconds),
        "with pauses": beside_nvidia_smi(products, seconds, pause=1.0),
        "step with readings over without": with_and_without(lambda: products(200), 9),
    }
    for name, each in found.items():
        print(f"{name}: {json.dumps(each)}", flush=True)
    (folder / "clock.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(*(float(word) for word in sys.argv[1:2]), *map(Path, sys.argv[2:3]))
