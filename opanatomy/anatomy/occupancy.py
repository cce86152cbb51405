"""How full the device was while it worked: utilization, SM efficiency, occupancy, tensor cores."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from opanatomy.anatomy.intervals import covered
from opanatomy.anatomy.launched_work import LaunchedWork
from opanatomy.records.columns import NO_UNITS, Bool, Float64, Int64, KernelTable, rows_by_value
from opanatomy.records.device import DeviceFigures
from opanatomy.records.taxonomy import OperatorClass


def device_figures_of(
    ceilings: DeviceFigures, launched: LaunchedWork, table: KernelTable, steps_ns: int
) -> DeviceFigures:
    """`ceilings` with what the kernels of the steps reached; `steps_ns` is the total time of the steps."""
    kernels = launched.kernels()
    if not kernels.any():
        return ceilings
    efficiency, dimensioned = _sm_efficiency_ns(launched, kernels)
    available = steps_ns * len(launched.computing_devices())
    busy = sum(
        covered(launched.work.start_ns[rows], launched.work.duration_ns[rows]) for rows in _by_device(launched, kernels)
    )
    tensor_core_ns, unknown_ns = _tensor_core_ns(kernels, table)
    return replace(
        ceilings,
        utilization=busy / available if available else None,
        sm_efficiency=efficiency / available if available and efficiency is not None else None,
        occupancy=_occupancy(launched, kernels),
        dimensioned_ns=dimensioned,
        tensor_core_ns=tensor_core_ns,
        tensor_core_unknown_ns=unknown_ns,
    )


def _by_device(launched: LaunchedWork, marked: Bool) -> Iterator[Int64]:
    """The marked rows of each device."""
    rows = np.flatnonzero(marked)
    return (rows[places] for _, places in rows_by_value(launched.work.device[rows]))


def _tensor_core_ns(kernels: Bool, table: KernelTable) -> tuple[int | None, int | None]:
    """(time of kernels on tensor cores, time of those of which that is not known), `None` where there is none to say.

    There is none where no device has such cores, and no share of what is known where no product's name tells.
    """
    uses = table.tensor_cores[kernels]
    if (uses == NO_UNITS).all():
        return None, None
    product = table.kernel_class.equals(OperatorClass.TENSOR_CONTRACTION)[kernels]
    unknown = (uses == -1) & (product | table.kernel_class.equals(OperatorClass.UNKNOWN)[kernels])
    duration = table.duration_ns[kernels]
    told = (uses == 1) | (product & (uses == 0))
    known = int(duration[uses == 1].sum()) if told.any() or not unknown.any() else None
    return known, int(duration[unknown].sum())


def _sm_efficiency_ns(launched: LaunchedWork, kernels: Bool) -> tuple[float | None, int]:
    """(time weighted by the share of multiprocessors that have a block, time of kernels that record their blocks)."""
    blocks = launched.work.blocks_per_sm
    known = kernels & ~np.isnan(blocks)
    if not known.any():
        return None, 0
    work, share = launched.work, np.clip(np.nan_to_num(blocks), 0, 1)
    filled = 0.0
    for rows in _by_device(launched, known):
        filled += _filled_ns(work.start_ns[rows], work.duration_ns[rows], share[rows])
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


def _occupancy(launched: LaunchedWork, kernels: Bool) -> float | None:
    """The mean estimated occupancy as a fraction, weighted by duration."""
    percent = launched.work.occupancy
    known = kernels & ~np.isnan(percent)
    duration = launched.work.duration_ns[known]
    if not duration.sum():
        return None
    return float((np.clip(percent[known], 0, 100) * duration).sum() / duration.sum() / 100)
