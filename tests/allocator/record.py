"""Renews the recordings on a device: `python -m tests.allocator.record NAME [cuda:0]` writes `NAME.json`.

The step is that of the hand-made ones: a linear layer with its bias, a buffer that it replaces, an output of the step
before that it lets go of. The backend is what torch's own variables say: `PYTORCH_CUDA_ALLOC_CONF` with
`expandable_segments:True`, with `backend:cudaMallocAsync`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

from opanatomy.capture.memory.measurement import DeviceAllocator
from opanatomy.capture.memory.storages import optimizer_tensors, storages_of, tensors_in
from opanatomy.capture.step.ranges import phase_range
from opanatomy.capture.step.stepper import make_optimizer
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import PHASE_RANGE
from tests.allocator import FOLDER


class Keeps(torch.nn.Module):
    """A layer that keeps what it computed last, in a buffer and as an output."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1_500, 2_000)
        self.register_buffer("last", torch.zeros(500))
        self.kept: torch.Tensor | None = None

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.kept = None
        output = torch.nn.functional.dropout(self.linear(values), 0.1)
        self.last = output.detach().flatten()[:500].clone()
        self.kept = output.detach().clone()
        return output.mean()


def recorded(device: str) -> dict[str, Any]:
    """One step on the device after a first one, in the form of the recordings."""
    module = Keeps().to(device)
    optimizer = make_optimizer("adamw", module)
    values = torch.ones(375, 1_500, device=device)
    _step(module, optimizer, values)
    optimizer.zero_grad(set_to_none=True)
    allocator = DeviceAllocator(device)
    torch.cuda.synchronize(device)
    before = {
        "memory_allocated": allocator.allocated_bytes(),
        "memory_reserved": allocator.reserved_bytes(),
        "segments": None if allocator.blocks() is None else _plain(torch.cuda.memory_snapshot()),
    }
    state, counters = optimizer_tensors(optimizer)
    tensors = {
        "weights": list(module.parameters()),
        "buffers": list(module.buffers()),
        "inputs": tensors_in((values,)),
        "optimizer_state": state,
        "optimizer_step_counters": counters,
    }
    storages = {name: [[*pair] for pair in storages_of(some, device).items()] for name, some in tensors.items()}
    allocator.reset_peak()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        _step(module, optimizer, values)
    roots = profiler.profiler.kineto_results.experimental_event_tree()
    return {
        "hand_made": False,
        "after": torch.cuda.get_device_name(device),
        "torch": str(torch.__version__),
        "device": device,
        "backend": allocator.backend,
        "architecture": allocator.architecture(),
        "storages": storages,
        "phases": [
            [event.name.removeprefix(PHASE_RANGE), event.start_time_ns, event.end_time_ns]
            for event, _ in _walk(roots)
            if event.name.startswith(PHASE_RANGE)
        ],
        "done": {
            "memory_allocated": allocator.allocated_bytes(),
            "max_memory_allocated": allocator.peak_bytes(),
            "max_memory_reserved": allocator.reserved_peak_bytes(),
        },
        "before": before,
        "events": _events(roots),
    }


def _step(module: Keeps, optimizer: torch.optim.Optimizer, values: torch.Tensor) -> None:
    with phase_range(Phase.FORWARD):
        loss = module(values)
    with phase_range(Phase.BACKWARD):
        loss.backward()
    del loss
    with phase_range(Phase.OPTIMIZER):
        optimizer.step()


def _plain(segments: Any) -> list[dict[str, Any]]:
    """The segments without stack frames."""
    return [
        {
            **{key: value for key, value in segment.items() if key not in ("frames", "blocks")},
            "blocks": [{key: value for key, value in block.items() if key != "frames"} for block in segment["blocks"]],
        }
        for segment in segments
    ]


def _walk(events: Any, operator: str | None = None) -> Iterator[tuple[Any, str | None]]:
    for event in events:
        yield event, operator
        yield from _walk(event.children, event.name if "::" in event.name else operator)


def _events(roots: Any) -> list[dict[str, Any]]:
    found = []
    for event, operator in _walk(roots):
        if event.tag == _EventType.Allocation:
            fields = event.extra_fields
            index = fields.device.index
            found.append(
                {
                    "start_time_ns": event.start_time_ns,
                    "device_type": fields.device.type,
                    "device_index": -1 if index is None else index,
                    "ptr": fields.ptr,
                    "alloc_size": fields.alloc_size,
                    "total_allocated": fields.total_allocated,
                    "total_reserved": fields.total_reserved,
                    "operator": operator,
                }
            )
    return sorted(found, key=lambda event: event["start_time_ns"])


if __name__ == "__main__":
    name, device = sys.argv[1], (sys.argv[2:] or ["cuda:0"])[0]
    (FOLDER / f"{name}.json").write_text(json.dumps(recorded(device), indent=1) + "\n")
