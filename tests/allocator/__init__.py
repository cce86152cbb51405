"""What a caching allocator reports of one step, in torch's own formats; `record.py` renews it where a device is.

Each recording is a file `NAME.json`: `before` is `torch.cuda.memory_allocated`, `memory_reserved` and the segments of
`torch.cuda.memory_snapshot()` (torch/csrc/cuda/Module.cpp; `null` where the backend refuses), `events` the allocations
in the profiler's event tree (`extra_fields`: torch/_C/_profiler.pyi), `storages` the addresses and bytes of what is
there before the step, `done` the allocator's figures behind it. `hand_made` recordings were written after c10's source:

- `alloc_found_block` reports the whole block (rounded to 512 B, with a remainder that is not split off) and the total
  after it, `free` takes the block from the total at once, also where it waits for a stream (`active_pending_free`);
- with expandable segments one segment is one mapped range, and only less than 512 B are not split off;
- ROCm's allocator calls its device `hip`, torch calls it `cuda`;
- `cudaMallocAsync` refuses `snapshot`, and reports nothing to the profiler (c10/cuda/CUDAMallocAsyncAllocator.cpp).
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec import Struct
from torch._C._profiler import _EventType

from opanatomy.records.workload import PHASE_RANGE

FOLDER = Path(__file__).parent
#: Those whose allocator tells its blocks.
TELLING = ("native", "expandable", "hip")


class Recording(Struct, frozen=True):
    """One file. `events` can be damaged before the tree is made of them."""

    content: dict[str, Any]
    events: list[dict[str, Any]]

    @property
    def device(self) -> str:
        return str(self.content["device"])

    @property
    def storages(self) -> dict[str, dict[int, int]]:
        return {component: dict(rows) for component, rows in self.content["storages"].items()}

    @property
    def done(self) -> dict[str, int]:
        return dict(self.content["done"])

    def installed(self, patch: pytest.MonkeyPatch) -> Recording:
        """Let `torch.cuda` answer as it did there."""
        before, done = self.content["before"], self.done
        architecture = self.content["architecture"]
        on_rocm = isinstance(architecture, str)
        properties = SimpleNamespace(gcnArchName=architecture) if on_rocm else SimpleNamespace(major=architecture)
        answers = {
            "memory_snapshot": lambda: _segments(before["segments"]),
            "memory_allocated": lambda device: before["memory_allocated"],
            "memory_reserved": lambda device: before["memory_reserved"],
            "max_memory_allocated": lambda device: done["max_memory_allocated"],
            "max_memory_reserved": lambda device: done["max_memory_reserved"],
            "reset_peak_memory_stats": lambda device: None,
            "get_allocator_backend": lambda: self.content["backend"],
            "get_device_properties": lambda index: properties,
        }
        for name, answer in answers.items():
            patch.setattr(torch.cuda, name, answer)
        patch.setattr(torch.version, "hip", "6.4" if on_rocm else None)
        # A CPU build has no answer; where torch has one it is asked.
        patch.setattr(torch.backends.cuda, "cublas_workspace_size", _no_answer, raising=False)
        patch.setattr(torch.backends.cuda, "cublaslt_workspace_size", _no_answer, raising=False)
        return self

    def roots(self) -> list[SimpleNamespace]:
        """The profiler's event tree: phases, the operators in them, the allocations in those."""
        ranges = [range_of(PHASE_RANGE + name, begin, end) for name, begin, end in self.content["phases"]]
        roots = list(ranges)
        for event in self.events:
            at = event["start_time_ns"]
            parent = next((one for one in ranges if one.start_time_ns <= at < one.end_time_ns), None)
            found = allocation(event)
            if event["operator"]:
                operator = range_of(event["operator"], at, at + 1)
                operator.children.append(found)
                found = operator
            (roots if parent is None else parent.children).append(found)
        return roots


def load(name: str) -> Recording:
    """The recording of that name."""
    content = json.loads((FOLDER / f"{name}.json").read_text())
    return Recording(content, content["events"])


def _segments(segments: Any) -> Any:
    if segments is None:
        raise RuntimeError("Calling snapshot with backend:cudaMallocAsync is not meaningful.")
    return segments


def _no_answer() -> int:
    raise AttributeError("module 'torch._C' has no attribute '_cuda_getCublasWorkspaceSize'")


def range_of(name: str, begin: int, end: int) -> SimpleNamespace:
    """An operator or a range of the event tree."""
    return SimpleNamespace(
        name=name,
        tag=_EventType.TorchOp,
        start_time_ns=begin,
        end_time_ns=end,
        children=[],
        extra_fields=SimpleNamespace(sequence_number=-1, inputs=()),
    )


def allocation(event: dict[str, Any]) -> SimpleNamespace:
    """An allocation or a free of the event tree."""
    fields = {key: event[key] for key in ("ptr", "alloc_size", "total_allocated", "total_reserved")}
    index = None if event["device_index"] < 0 else event["device_index"]
    device = SimpleNamespace(type=event["device_type"], index=index)
    return SimpleNamespace(
        name="[memory]",
        tag=_EventType.Allocation,
        start_time_ns=event["start_time_ns"],
        end_time_ns=event["start_time_ns"],
        children=[],
        extra_fields=SimpleNamespace(device=device, **fields),
    )
