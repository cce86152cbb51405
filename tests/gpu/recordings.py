"""What the tests keep of devices, made anew on this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec.structs import asdict, replace

from opanatomy.cli.main import main
from tests.allocator import FOLDER as ALLOCATOR

_ROOT: Final = Path(__file__).parent.parent.parent
#: Recording -> what `PYTORCH_ALLOC_CONF` (`PYTORCH_CUDA_ALLOC_CONF` before torch 2.9) says for it.
_BACKENDS: Final = {
    "native": "", "expandable": "expandable_segments:True", "cuda_malloc_async": "backend:cudaMallocAsync",
}  # fmt: skip
#: A kept trace is no larger.
_LARGEST: Final = 1_000_000


def renew(runs: Path, folder: Path) -> Iterator[str]:
    """Renew the allocator's recordings and the small redacted traces below `folder`; a line for each."""
    for name, settings in _names().items():
        yield _recorded(name, settings, folder / "allocator")
    for name in ("plain", "non-reentrant", "amp-bf16"):
        yield _kept_trace(runs / f"{name}.trace.json.gz", folder / "traces" / f"gpu_bert_{name}.json.gz")
    yield _answers(folder / "gpu" / "answers.json")


def _names() -> dict[str, str]:
    import torch

    return {"hip": ""} if torch.version.hip else _BACKENDS


def _recorded(name: str, settings: str, folder: Path) -> str:
    """One recording, in a process of its own: the allocator's backend is chosen when torch is loaded."""
    environment = {**os.environ, "PYTORCH_ALLOC_CONF": settings, "PYTORCH_CUDA_ALLOC_CONF": settings}
    command = [sys.executable, "-m", "tests.allocator.record", name]
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False)
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


def _answers(kept: Path) -> str:
    """What `torch.cuda` and NVML answer of the device, to hold the fixtures of `tests/fake_cuda.py` against."""
    import torch

    from opanatomy.capture.device import nvml

    properties = torch.cuda.get_device_properties(0)
    answer = nvml.answer(0)
    device = None if answer.device is None else asdict(replace(answer.device, processes=(), uuid="<uuid>"))
    found = {
        "torch": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip,
        "architectures": torch.cuda.get_arch_list(), "name": properties.name,
        "total_memory": properties.total_memory, "multi_processor_count": properties.multi_processor_count,
        "capability": list(torch.cuda.get_device_capability(0)), "nvml": device, "why_not": answer.why_not,
    }  # fmt: skip
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(found, indent=1) + "\n")
    return f"renewed {kept}"
