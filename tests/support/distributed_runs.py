"""Runs on several gloo ranks, whose traces stay in a folder: forks that a launcher could have started, in seconds.

A launcher starts each rank from nothing, which takes ten seconds a rank; `test_launchers.py` has one run of each
launcher. What ranks do is the same here: the process group is made of the environment that torchrun sets.
"""

from __future__ import annotations

import fcntl
import json
import pickle
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from opanatomy.records.anatomy import Anatomy
from opanatomy.report import read_anatomy
from tests.support.command import Fork
from tests.support.tiny import BERT, tiny

GPT2: Final = "openai-community/gpt2"
#: A module that sleeps in forward on rank 1, and one that fails there, as a user may have them.
SLEEP_SECONDS: Final = 1.0
UNLIKE_RANKS: Final = f"""
import os, time
import torch

class Unlike(torch.nn.Module):
    def __init__(self, what):
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)
        self.what, self.calls = what, 0

    def forward(self, x):
        self.calls += 1
        if int(os.environ["RANK"]) == 1:
            self.what(self.calls)
        return self.second(self.first(x).relu()).square().mean()

def fail(calls):
    if calls > 3:
        raise ValueError("this rank is broken")

def slow():
    return Unlike(lambda calls: time.sleep({SLEEP_SECONDS})), torch.ones(4, 16)

def broken():
    return Unlike(fail), torch.ones(4, 16)
"""


class Run(Struct, frozen=True, kw_only=True):
    """What ranks did: each as a process, the report of the first, and the traces in the order of the ranks."""

    ranks: tuple[subprocess.CompletedProcess[str], ...]
    anatomy: Anatomy
    folder: Path
    traces: tuple[Path, ...]

    def metadata(self, rank: int) -> dict[str, Any]:
        """What a rank's capture wrote into its trace."""
        return contents(self.traces[rank])["opanatomy"]

    def events(self, rank: int, text: str) -> list[dict[str, Any]]:
        """The events of a rank's trace whose names have this text, in the order in which they began."""
        events = [event for event in contents(self.traces[rank])["traceEvents"] if text in event.get("name", "")]
        return sorted(events, key=lambda event: event["ts"])


def contents(trace: Path) -> dict[str, Any]:
    """A trace as it is in its file."""
    from isal import igzip

    return json.loads(igzip.decompress(trace.read_bytes()))


def environment_of(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun tells a rank."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }


def start_ranks(
    ranks: int, *arguments: str, cwd: Path, code: str | None = None, environment: Mapping[str, str] | None = None
) -> list[Fork]:
    """`opanatomy` with these arguments, or some code, on each of so many ranks."""
    port = free_port()
    return [
        Fork(*arguments, cwd=cwd, code=code, environment={**environment_of(rank, ranks, port), **(environment or {})})
        for rank in range(ranks)
    ]


def profile_ranks(ranks: int, *arguments: str, folder: Path) -> Run:
    """What `opanatomy profile` of these arguments did on so many ranks; its traces are in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "unlike.py").write_text(UNLIKE_RANKS)
    forks = start_ranks(
        ranks, "profile", *arguments, "--trace", f"{folder}/", "-o", "report.json", "--suggest", "0", cwd=folder
    )
    ended = tuple(fork.wait() for fork in forks)
    assert [rank.returncode for rank in ended] == [0] * ranks, [rank.stderr for rank in ended]
    traces = sorted(
        folder.glob("*.rank*.trace.json.gz"), key=lambda path: int(path.name.split(".rank")[1].split(".")[0])
    )
    anatomy = read_anatomy((folder / "report.json").read_text())
    return Run(ranks=ended, anatomy=anatomy, folder=folder, traces=tuple(traces))


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


#: Name -> ranks and arguments of `opanatomy profile`.
RUNS: Final[Mapping[str, tuple[int, tuple[str, ...]]]] = {
    "ddp": (2, tiny(BERT, "--optimizer", "adamw", "--bucket-mb", "0.03")),
    "ddp4": (4, tiny(GPT2)),
    "fsdp2": (2, tiny(BERT, "--parallel", "fsdp2", "--optimizer", "adamw")),
    "accumulate": (2, tiny(BERT, "--accumulate", "2")),
    "views": (2, tiny(BERT, "--bucket-view")),
    "slow": (2, ("unlike.py:slow", "--device", "cpu")),
}


class Runs:
    """The runs of `RUNS`, each made when a worker of the tests first asks for it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, dict[str, Run]()
        folder.mkdir(exist_ok=True)

    def __getitem__(self, name: str) -> Run:
        if name not in self._made:
            kept = self._folder / f"{name}.pickle"
            with (self._folder / f"{name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not kept.exists():
                    ranks, arguments = RUNS[name]
                    run = profile_ranks(ranks, *arguments, folder=self._folder / name)
                    kept.write_bytes(pickle.dumps(run))
            self._made[name] = pickle.loads(kept.read_bytes())
        return self._made[name]
