"""The tables of a trace -> `Anatomy`; the sums that must hold are checked here."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.anatomy.breakdown import breakdown_of, step_kinds
from opanatomy.anatomy.generation import generation_of
from opanatomy.anatomy.launched_work import LaunchedWork
from opanatomy.anatomy.occupancy import device_figures_of
from opanatomy.anatomy.ratios import Theory, ratios_of
from opanatomy.anatomy.rows import class_rows, kernel_rows, module_rows, operator_rows
from opanatomy.anatomy.steps import OTHER_RANKS, step_of_rows, why_set_aside
from opanatomy.anatomy.theory import all_need_both, backward_over_forward
from opanatomy.anatomy.timeline import (
    DeviceTime,
    StepWindow,
    device_step_rows,
    device_steps,
    host_step_rows,
    timeline_of,
)
from opanatomy.records.anatomy import Anatomy, Provenance, StepRow
from opanatomy.records.breakdown import Breakdown
from opanatomy.records.columns import Bool, CallTable, KernelTable
from opanatomy.records.communication import Communication
from opanatomy.records.device import DeviceFigures
from opanatomy.records.memory import Memory
from opanatomy.records.rank_summary import StepSpans
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.records.timeline import Ledger, LinkedTime
from opanatomy.records.workload import Capture, Environment, Workload

#: In alphabetical order, as a report that is read back has them.
CONVENTIONS: dict[str, str | int] = {
    "backward": "recompute included in the ratios",
    "bytes": "each distinct input read once, each output written once",
    "causal": "full",
    "multiply_add": 2,
}


class MeasuredSteps(Struct, frozen=True, kw_only=True):
    """All steps of a trace: how long each was and why it does not count, and what they are made of."""

    window: StepWindow
    rows: tuple[StepRow, ...]
    breakdown: Breakdown
    #: The work of the steps that count, which a device did; `None` on the CPU.
    time: DeviceTime | None

    @property
    def counted(self) -> Bool:
        """Which steps count."""
        return np.array([row.set_aside is None for row in self.rows], dtype=bool)


def measured_steps(
    step_window: StepWindow,
    calls: CallTable,
    kernels: KernelTable | None,
    launched: LaunchedWork | None,
    spans: StepSpans | None = None,
    numbers: Collection[int] | None = None,
) -> MeasuredSteps:
    """Measure all steps and say which count; with `numbers` no others do.

    The tables are of all steps; without `kernels` and `launched` the steps are those of the CPU.
    """
    time = None
    if kernels is not None and launched is not None:
        time = DeviceTime(device_steps(step_window, launched), launched, kernels)
    rows = host_step_rows(step_window, calls, spans) if time is None else device_step_rows(step_window, time)
    kinds = step_kinds(step_window, calls, time)
    reasons = why_set_aside(rows, kinds)
    if numbers is not None:
        reasons = [
            reason or (None if row.number in numbers else OTHER_RANKS)
            for row, reason in zip(rows, reasons, strict=True)
        ]
    rows = tuple(replace(row, set_aside=reason) for row, reason in zip(rows, reasons, strict=True))
    breakdown = breakdown_of(rows, kinds, step_window, calls, time)
    counted = np.array([reason is None for reason in reasons], dtype=bool)
    return MeasuredSteps(
        window=step_window, rows=rows, breakdown=breakdown,
        time=time if time is None or counted.all() else time.only(counted),
    )  # fmt: skip


class AnatomyInputs(Struct, frozen=True, kw_only=True):
    """What the stages before hand over, of the steps that count alone; `kernels` is `None` on the CPU, where calls are
    the device work."""

    provenance: Provenance
    environment: Environment
    capture: Capture | None
    calls: CallTable
    kernels: KernelTable | None
    steps: MeasuredSteps
    linked: LinkedTime
    #: The steps of a rank on the CPU with collectives, which run alongside its operators; what collectives cost.
    spans: StepSpans | None = None
    communication: Communication | None = None
    caveats: tuple[str, ...] = ()
    warnings: tuple[str, ...]


def build_anatomy(inputs: AnatomyInputs) -> Anatomy:
    """The report of one trace."""
    calls, kernels, steps, capture = inputs.calls, inputs.kernels, inputs.steps, inputs.capture
    workload = capture.workload if capture else Workload()
    classes = class_rows(calls)
    step = step_of_rows(steps.rows, capture, recording_outside=steps.window.recording_outside)
    timeline = timeline_of(steps.rows, steps.window, steps.time, inputs.spans, inputs.communication)
    anatomy = Anatomy(
        provenance=inputs.provenance,
        environment=inputs.environment,
        workload=workload,
        step=step,
        classes=classes,
        ratios=ratios_of(classes, workload, _theory(calls, capture)),
        operators=operator_rows(calls),
        kernels=() if kernels is None else kernel_rows(kernels),
        modules=module_rows(calls, capture.modules if capture else {}),
        memory=Memory(),
        timeline=timeline,
        communication=inputs.communication,
        breakdown=steps.breakdown,
        device=_device_figures(steps.time, timeline.window_ns - (timeline.outside_ns or 0)),
        ledger=_ledger(calls, inputs.linked),
        conventions=CONVENTIONS,
        generation=generation_of(capture, classes, step.count),
        caveats=inputs.caveats,
        warnings=inputs.warnings,
    )
    check_conservation(anatomy)
    return anatomy


def _theory(calls: CallTable, capture: Capture | None) -> Theory | None:
    """What theory says of this step; `None` where the capture did not see what needs gradients."""
    gradients = capture.gradients if capture else {}
    if not gradients:
        return None
    if capture is not None and capture.workload.fused_loss:
        # The products of the head's backward run in its forward, chunk by chunk.
        return Theory(contraction_flops=None, all_need_both=False)
    return Theory(contraction_flops=backward_over_forward(calls, gradients), all_need_both=all_need_both(gradients))


def _device_figures(time: DeviceTime | None, steps_ns: int) -> DeviceFigures:
    return DeviceFigures() if time is None else device_figures_of(DeviceFigures(), time.launched, time.work, steps_ns)


def _ledger(calls: CallTable, linked: LinkedTime) -> Ledger:
    unknown = int(calls.time_ns[calls.operator_class.equals(OperatorClass.UNKNOWN)].sum())
    inside = linked.linked_ns + linked.graph_launched_ns + linked.no_launch_record_ns
    return Ledger(
        device_work_ns=inside + linked.outside_window_ns,
        linked_ns=linked.linked_ns,
        graph_launched_ns=linked.graph_launched_ns,
        no_launch_record_ns=linked.no_launch_record_ns,
        outside_window_ns=linked.outside_window_ns,
        set_aside_ns=linked.set_aside_ns,
        classed_ns=int(calls.time_ns.sum()) - unknown,
        costed_ns=int(calls.time_ns[calls.costed].sum()),
        unknown_ns=unknown,
    )


def check_conservation(anatomy: Anatomy) -> None:
    """Raise `AssertionError` unless every nanosecond of device work is in exactly one class."""
    ledger = anatomy.ledger
    inside = ledger.device_work_ns - ledger.outside_window_ns
    parts = ledger.linked_ns + ledger.graph_launched_ns + ledger.no_launch_record_ns
    classed = sum(row.time_ns for row in anatomy.classes)
    if not inside == parts == classed == ledger.classed_ns + ledger.unknown_ns:
        raise AssertionError(f"the ledger does not balance: {ledger}, classes sum to {classed} ns")
