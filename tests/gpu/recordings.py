"""What the tests keep of devices, made anew on this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from opanatomy.cli.main import main
from tests.allocator import FOLDER as ALLOCATOR
from tests.support.paths import ROOT

#: Recording -> what `PYTORCH_ALLOC_CONF` (`PYTORCH_CUDA_ALLOC_CONF` before torch 2.9) says for it.
_BACKENDS: Final = {
    "native": "",
    "expandable": "expandable_segments:True",
    "cuda_malloc_async": "backend:cudaMallocAsync",
}
#: A kept trace is no larger.
_LARGEST: Final = 1_000_000


def renew(runs: Path, folder: Path) -> Iterator[str]:
    """Renew the allocator's recordings and the small redacted traces below `folder`; a line for each."""
    for name, settings in _names().items():
        yield _recorded(name, settings, folder / "allocator")
    for name in ("plain", "non-reentrant", "amp-bf16"):
        yield _kept_trace(runs / f"{name}.trace.json.gz", folder / "traces" / f"gpu_bert_{name}.json.gz")


def _names() -> dict[str, str]:
    import torch

    return {"hip": ""} if torch.version.hip else _BACKENDS


def _recorded(name: str, settings: str, folder: Path) -> str:
    """One recording, in a process of its own: the allocator's backend is chosen when torch is loaded."""
    environment = {**os.environ, "PYTORCH_ALLOC_CONF": settings, "PYTORCH_CUDA_ALLOC_CONF": settings}
    command = [sys.executable, "-m", "tests.allocator.record", name]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"NOT renewed: {name}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}"
    made, kept = ALLOCATOR / f"{name}.json", folder / f"{name}.json"
    if kept.resolve() != made.resolve():
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(made.read_bytes())
    return f"renewed {kept}"


def _kept_trace(trace: Path, kept: Path) -> str:
    """The trace without names, paths and stacks."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    if not trace.exists():
        return f"NOT renewed: {kept.name}: its run left no trace"
    report = kept.with_suffix(".report")
    code = main(["analyze", str(trace), "--trace", str(kept), "--redact", "--force", "-o", str(report), "-f", "json"])
    report.unlink(missing_ok=True)
    if code or kept.stat().st_size > _LARGEST:
        kept.unlink(missing_ok=True)
        return f"NOT renewed: {kept.name}: exit {code}, or more than {_LARGEST:,} B"
    return f"renewed {kept}"
