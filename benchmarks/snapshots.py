"""How long a memory snapshot takes to read and analyze, and how much memory: `snapshots.py [MEGABYTES ...]`.

The snapshots are made of a kept one, whose history is repeated with stacks of their own, as torch writes them. Each is
analyzed in a process of its own; its time stands beside that of `pickle.load` of the same file, which is no reader of
foreign files, in this run.
"""

from __future__ import annotations

import gzip
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
KEPT: Final = ROOT / "tests" / "snapshots" / "training_warm.pickle.gz"
TELLS: Final = "; print(sum(r.getrusage(of).ru_maxrss for of in (r.RUSAGE_SELF, r.RUSAGE_CHILDREN)))"
ANALYZE: Final = f"import resource as r, sys, opanatomy; opanatomy.analyze(sys.argv[1]){TELLS}"
LOAD: Final = f"import resource as r, pickle, sys; kept = pickle.load(open(sys.argv[1], 'rb')){TELLS}"


def made(megabytes: int, path: Path) -> None:
    """Repeat the history until the pickle has about this size; frames are shared between events, stacks are not."""
    snapshot: dict[str, Any] = pickle.loads(gzip.decompress(KEPT.read_bytes()))
    (trace,) = (trace for trace in snapshot["device_traces"] if trace)
    one = len(pickle.dumps([{**event, "frames": list(event["frames"])} for event in trace]))
    times = max(1, megabytes * 1_000_000 // one)
    long = trace[-1]["time_us"] - trace[0]["time_us"] + 1
    snapshot["device_traces"] = [
        [
            {**event, "frames": list(event["frames"]), "time_us": event["time_us"] + turn * long}
            for turn in range(times)
            for event in trace
        ]
    ]
    with path.open("wb") as file:
        pickle.dump(snapshot, file)


def took(code: str, path: Path) -> tuple[float, float]:
    """Seconds, and the memory of the process and of the one that reads for it, as a multiple of the file."""
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, check=True, capture_output=True, text=True)
    return time.monotonic() - begun, int(done.stdout) * 1024 / path.stat().st_size


def main(sizes: list[int]) -> None:
    print("file          events   pickle.load        analyze   ratio")
    for megabytes in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "snapshot.pickle"
            subprocess.run([sys.executable, __file__, "make", str(megabytes), str(path)], check=True)
            load = took(LOAD, path)
            ours = took(ANALYZE, path)
            size = path.stat().st_size
            print(
                f"{size / 1e6:7,.0f} MB  {load[0]:6.1f} s {load[1]:4.1f} x  {ours[0]:6.1f} s {ours[1]:4.1f} x"
                f"  {ours[0] / load[0]:5.2f}"
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["make"]:  # in a process of its own, whose memory is given back
        made(int(sys.argv[2]), Path(sys.argv[3]))
    else:
        main([int(word) for word in sys.argv[1:]] or [10, 100, 1_000])
