"""How full the device was while it worked: utilization, SM efficiency, occupancy, tensor cores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from opanatomy.anatomy.intervals import covered
from opanatomy.anatomy.queue import Queue
from opanatomy.anatomy.tensor_cores import uses_tensor_cores
from opanatomy.model import DeviceFigures
from opanatomy.tables import Bool, Float64, Int64


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
    work, share = queue.work, np.clip(np.nan_to_num(blocks), 0, 1)
    filled = 0.0
    for device in queue.computing_devices():
        mine = known & (work.device == device)
        filled += _filled_ns(work.start_ns[mine], work.duration_ns[mine], share[mine])
    return filled, int(work.duration_ns[known].sum())


def _filled_ns(start_ns: Int64, duration_ns: Int64, share: Float64) -> float:
    """The shares of the kernels that run at a moment, at most 1 together, over the time.

    Kernels that run at once share the multiprocessors: each alone may fill all of them, together they cannot fill more.
    """
    if not _overlap(start_ns, duration_ns):
        return float((share * duration_ns).sum())
    moments = np.concatenate((start_ns, start_ns + duration_ns))
    order = np.argsort(moments, kind="stable")
    running = np.cumsum(np.concatenate((share, -share))[order])[:-1]
    return float((np.clip(running, 0, 1) * np.diff(moments[order])).sum())


def _overlap(start_ns: Int64, duration_ns: Int64) -> bool:
    order = np.argsort(start_ns, kind="stable")
    ends = np.maximum.accumulate((start_ns + duration_ns)[order])
    return bool((start_ns[order][1:] < ends[:-1]).any())


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
