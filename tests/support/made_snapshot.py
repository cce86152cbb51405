"""Memory snapshots made by hand, in torch's own format, and an allocator that refuses with one."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from tests.support.paths import SHARED

#: Snapshots of others, beside the checkout.
BESIDE: Final = SHARED / "snapshots"
WITH_SHARED: Final = pytest.mark.skipif(
    not BESIDE.exists(), reason="the folder of shared snapshots is not next to the checkout"
)
MIB = 1 << 20
MODEL, LIBRARY = "/home/me/model.py", "/env/lib/python3.12/site-packages/torch"


def frame(name: str, filename: str = "??", line: int = 0) -> dict[str, Any]:
    return {"name": name, "filename": filename, "line": line}


def forward_stack(line: int, operator: str = "mm", function: str = "forward") -> list[dict[str, Any]]:
    """An operator called by a line of a module's forward."""
    return [
        frame("c10::cuda::CUDACachingAllocator::Native::malloc(int)"),
        frame(f"at::_ops::{operator}::call(at::Tensor)"),
        frame(function, MODEL, line),
        frame("_call_impl", f"{LIBRARY}/nn/modules/module.py", 1_790),
        frame("<module>", "/home/me/train.py", 9),
    ]


BACKWARD = [
    frame("at::_ops::mm::call(at::Tensor)"),
    frame("torch::autograd::Engine::evaluate_function(std::shared_ptr)"),
]
OPTIMIZER = [frame("step", f"{LIBRARY}/optim/adamw.py", 7), frame("<module>", "/home/me/train.py", 11)]


class SnapshotBuilder:
    """A snapshot in the making: events of one device after the other."""

    def __init__(self) -> None:
        self.events: dict[int, list[dict[str, Any]]] = {}
        self.segments: list[dict[str, Any]] = []
        self.time = 1_000

    def event(self, action: str, address: int, size: int, device: int = 0, **more: Any) -> SnapshotBuilder:
        self.time += 10
        row = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": self.time, **more}
        self.events.setdefault(device, []).append(row)
        return self

    def alloc(self, address: int, size: int, frames: Any = None, **more: Any) -> SnapshotBuilder:
        return self.event("alloc", address, size, **({} if frames is None else {"frames": frames}), **more)

    def free(self, address: int, size: int, frames: Any = None, **more: Any) -> SnapshotBuilder:
        given = {} if frames is None else {"frames": frames}
        self.event("free_requested", address, size, **given, **more)
        return self.event("free_completed", address, size, **given, **more)

    def segment(self, address: int, total: int, *blocks: tuple[int, int, str], **more: Any) -> SnapshotBuilder:
        rows = [{"address": at, "size": size, "requested_size": size, "state": state} for at, size, state in blocks]
        self.segments.append(
            {
                "device": 0,
                "address": address,
                "total_size": total,
                "stream": 0,
                "segment_type": "large",
                "segment_pool_id": (0, 0),
                "is_expandable": False,
                "blocks": rows,
                **more,
            }
        )
        return self

    def written(self, path: Path, protocol: int = 4, **more: Any) -> Path:
        devices = range(max(self.events, default=-1) + 1)
        traces = [self.events.get(device, []) for device in devices]
        path.write_bytes(pickle.dumps({"segments": self.segments, "device_traces": traces, **more}, protocol))
        return path


def a_step() -> SnapshotBuilder:
    """A step by hand: 100 of weights and 200 of moments from before; 40 + 20 kept, 10 for a while, 100 of gradients."""
    return (
        SnapshotBuilder()
        .alloc(1_000, 40, forward_stack(5))
        .alloc(2_000, 10, forward_stack(6, "exp"))
        .alloc(3_000, 20, forward_stack(7, "index_Tensor"))
        .free(2_000, 10, forward_stack(8))
        .alloc(4_000, 100, BACKWARD)
        .free(3_000, 20, BACKWARD)
        .free(1_000, 40, BACKWARD)
        .alloc(5_000, 7, OPTIMIZER)
        .free(5_000, 7, OPTIMIZER)
        .segment(
            100_000,
            1_024,
            (100_000, 100, "active_allocated"),
            (100_100, 100, "active_allocated"),
            (100_200, 100, "active_allocated"),
            (100_300, 724, "inactive"),
        )
        .segment(0, 8_192, (0, 4_000, "inactive"), (4_000, 100, "active_allocated"), (4_100, 4_092, "inactive"))
    )


class StandIn:
    """An allocator that refuses: torch's functions for its history, without a device."""

    def __init__(self) -> None:
        self.observer: Any = None
        self.calls: list[Any] = []
        self.metadata: list[str] = []

    def record(self, enabled: Any = "all", **options: Any) -> None:
        self.calls.append((enabled, options))

    def attach(self, observer: Any) -> None:
        self.observer = observer

    def snapshot(self) -> dict[str, Any]:
        made = a_step().event("oom", 0, 500, device_free=123, frames=forward_stack(77))
        return {"segments": made.segments, "device_traces": [made.events[0]]}

    def refuse(self) -> None:
        """Run out of memory as torch does: the observer first, then the error."""
        self.observer(0, 500, 1_000, 123)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 500 bytes.")


#: The stand-in that a user's file reaches.
CURRENT: list[StandIn] = []
