"""What the categories of events are: which of them some stage needs, under their names of all years."""

from __future__ import annotations

from typing import Final

OPERATOR, ANNOTATION, LAUNCH, KERNEL, MEMCPY, MEMSET, HOST_NODE, IGNORED, FOREIGN, PYTHON, OVERHEAD = range(11)

#: Categories by their name in small letters (in 2021 they were capitalized). Of one that is not here, events on a
#: stream are read as kernels.
CATEGORIES: Final = {
    "cpu_op": OPERATOR, "operator": OPERATOR, "user_annotation": ANNOTATION,
    "cuda_runtime": LAUNCH, "cuda_driver": LAUNCH, "runtime": LAUNCH, "hip_runtime": LAUNCH, "driver": LAUNCH,
    "xpu_runtime": LAUNCH, "xpu_driver": LAUNCH, "mtia_runtime": LAUNCH, "privateuse1_runtime": LAUNCH,
    "privateuse1_driver": LAUNCH, "hpu_op": LAUNCH, "glow_runtime": LAUNCH,
    "kernel": KERNEL, "gpu_memcpy": MEMCPY, "memcpy": MEMCPY, "gpu_memset": MEMSET, "memset": MEMSET,
    "concurrent_kernel": KERNEL, "mtia_insight": KERNEL, "mtia_ccp_events": KERNEL, "hpu_kernel": KERNEL,
    # A callback on the host that a graph runs: it has the stream that waits for it (torch 2.15, Cuspy).
    "graph_host_node": HOST_NODE,
    "python_function": PYTHON, "overhead": OVERHEAD, "gpu_user_annotation": IGNORED,
    "cuda_sync": IGNORED, "cuda_event": IGNORED, "xpu_sync": IGNORED, "cuda_profiler_range": IGNORED, "trace": IGNORED,
    "cpu_instant_event": IGNORED, "external_correlation": IGNORED, "collective_comm": IGNORED,
    "gpu_pm_counter": IGNORED, "hardware_counters": IGNORED, "graph_event_node": IGNORED,
    # Flows from a launch to its device work, which correlation ids tell too.
    "ac2g": IGNORED, "async_cpu_to_gpu": IGNORED, "async": IGNORED,
}  # fmt: skip
#: The flows, of today and of 2022, from an operator to its autograd node.
DIFFERENTIATION_FLOWS: Final = frozenset(("fwdbwd", "forward_backward"))

#: The category and the name, which is that of all years, of the instants at which an allocator gave or took memory.
INSTANT: Final = "cpu_instant_event"
MEMORY: Final = "[memory]"


def kind_of(category: str | None) -> int:
    """What the events of a category are."""
    return IGNORED if category is None else CATEGORIES.get(category.lower(), FOREIGN)


class Kinds(dict["str | None", int]):
    """The kind of each category, looked up once."""

    def __missing__(self, category: str | None) -> int:
        self[category] = kind = kind_of(category)
        return kind
