"""A step on the CPU whose allocations are a device's: rounded and counted as c10 does, in a snapshot, told by
`torch.cuda` and by the profiler's event tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._profiler import _EventType

from opanatomy.capture.memory import observer, storages
from opanatomy.capture.memory.events import Mark, ObservedEvents, observed_events

DEVICE = "cuda:0"
#: A workspace of cuBLAS, at an address that the CPU never gives.
WORKSPACE = (512, 8_519_680)
_BLOCK = 512


@dataclass(slots=True)
class Standin:
    """`tensors` gives what is there before the step. Of the device's events those of `lost` numbers are left out."""

    tensors: Callable[[], Iterable[torch.Tensor]]
    kind: str = "cuda"
    lost: frozenset[int] = frozenset()
    total: int = 0
    peak: int = 0
    sizes: dict[int, int] = field(default_factory=dict)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Let this device be `cuda:0`."""
        answers = {
            "memory_snapshot": self._snapshot, "memory_allocated": lambda device: self.total,
            "max_memory_allocated": lambda device: self.peak, "reset_peak_memory_stats": lambda device: None,
            "get_allocator_backend": lambda: "native", "synchronize": lambda device: None,
            "get_device_properties": lambda index: SimpleNamespace(major=8),
        }  # fmt: skip
        for name, answer in answers.items():
            patch.setattr(torch.cuda, name, answer)
        patch.setattr(torch.backends.cuda, "cublas_workspace_size", lambda: WORKSPACE[1], raising=False)
        patch.setattr(storages, "same_device", lambda one, other: {one, other} <= {"cpu", DEVICE})
        patch.setattr(observer, "observed_events", self._observed)

    def _snapshot(self) -> list[dict[str, Any]]:
        storages = {one.untyped_storage() for one in self.tensors()}
        asked = {one.data_ptr(): one.nbytes() for one in storages if one.nbytes()} | dict([WORKSPACE])
        self.sizes = {pointer: _rounded(size) for pointer, size in asked.items()}
        self.total = self.peak = sum(self.sizes.values())
        blocks = [
            {"address": pointer, "size": size, "requested_size": asked[pointer], "state": "active_allocated"}
            for pointer, size in self.sizes.items()
        ]
        return [{"device": 0, "address": block["address"], "blocks": [block]} for block in blocks]

    def _observed(self, roots: Any, device: str, weights: frozenset[int], marks: Sequence[Mark]) -> ObservedEvents:
        copies = [_copy(root) for root in roots]
        allocations = sorted(_allocations(copies), key=lambda pair: pair[1].start_time_ns)
        for number, (siblings, event) in enumerate(allocations):
            self._count(event.extra_fields)
            if number in self.lost:
                siblings.remove(event)
        return observed_events(copies, device, weights, marks)

    def _count(self, fields: SimpleNamespace) -> None:
        """The event as the device's allocator would have told it."""
        size = _rounded(fields.alloc_size) if fields.alloc_size > 0 else -self.sizes.pop(fields.ptr)
        if size > 0:
            # The CPU's allocator does not tell of frees of what it gave before it was profiled.
            self.total -= self.sizes.pop(fields.ptr, 0)
            self.sizes[fields.ptr] = size
        self.total += size
        self.peak = max(self.peak, self.total)
        fields.alloc_size, fields.total_allocated, fields.total_reserved = size, self.total, self.total
        fields.device = SimpleNamespace(type=self.kind, index=0)


def _rounded(size: int) -> int:
    return max(-(-size // _BLOCK) * _BLOCK, _BLOCK)


def _copy(event: Any) -> SimpleNamespace:
    fields = event.extra_fields
    if event.tag == _EventType.Allocation:
        fields = SimpleNamespace(ptr=fields.ptr, alloc_size=fields.alloc_size)
    return SimpleNamespace(
        name=event.name, tag=event.tag, start_time_ns=event.start_time_ns, end_time_ns=event.end_time_ns,
        children=[_copy(child) for child in event.children], extra_fields=fields,
    )  # fmt: skip


def _allocations(events: list[SimpleNamespace]) -> list[tuple[list[SimpleNamespace], SimpleNamespace]]:
    found = [(events, one) for one in events if one.tag == _EventType.Allocation]
    return [*found, *(pair for one in events for pair in _allocations(one.children))]
