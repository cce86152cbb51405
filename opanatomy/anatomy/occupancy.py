"""How full the device was while it worked: utilization, SM efficiency, occupancy, tensor cores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from opanatomy.anatomy.intervals import covered
from opanatomy.anatomy.queue import Queue
from opanatomy.anatomy.tensor_cores import uses_tensor_cores
from opanatomy.model import DeviceFigures
from opanatomy.tables import Bool


def device_figures_of(ceilings: DeviceFigures, queue: Queue, steps_ns: int) -> DeviceFigures:
    """`ceilings` with what the kernels of the steps reached; `steps_ns` is the total time of the steps."""
    kernels = queue.kernels()
    if not kernels.any():
        return ceilings
    efficiency, dimensioned = _sm_efficiency_ns(queue, kernels)
    available = steps_ns * len(queue.computing_devices())
    busy = sum(_busy_ns(queue, kernels & (queue.work.device == device)) for device in queue.computing_devices())
    return replace(
        ceilings,
        utilization=busy / available if available else None,
        sm_efficiency=efficiency / available if available and efficiency is not None else None,
        occupancy=_occupancy(queue, kernels),
        dimensioned_ns=dimensioned,
        tensor_core_ns=_tensor_core_ns(queue, kernels),
    )


def _busy_ns(queue: Queue, mine: Bool) -> int:
    return covered(queue.work.start_ns[mine], queue.work.duration_ns[mine])


def _sm_efficiency_ns(queue: Queue, kernels: Bool) -> tuple[float | None, int]:
    """(time weighted by the share of multiprocessors that have a block, time of kernels that record their blocks)."""
    blocks = queue.work.blocks_per_sm
    known = kernels & ~np.isnan(blocks)
    if not known.any():
        return None, 0
    duration = queue.work.duration_ns[known]
    return float((np.clip(blocks[known], 0, 1) * duration).sum()), int(duration.sum())


def _occupancy(queue: Queue, kernels: Bool) -> float | None:
    """The mean estimated occupancy as a fraction, weighted by duration."""
    percent = queue.work.occupancy
    known = kernels & ~np.isnan(percent)
    duration = queue.work.duration_ns[known]
    if not duration.sum():
        return None
    return float((np.clip(percent[known], 0, 100) * duration).sum() / duration.sum() / 100)


def _tensor_core_ns(queue: Queue, kernels: Bool) -> int:
    numbers, inverse = np.unique(queue.work.name[kernels], return_inverse=True)
    uses = np.array([uses_tensor_cores(queue.names[number]) for number in numbers.tolist()], dtype=bool)
    return int(queue.work.duration_ns[kernels][uses[inverse]].sum())
