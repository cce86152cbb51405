"""The tables of a trace -> `Anatomy`; the sums that must hold are checked here."""

from __future__ import annotations

from msgspec import Struct

from opanatomy.anatomy.breakdown import breakdown_of
from opanatomy.anatomy.generation import generation_of
from opanatomy.anatomy.launched_work import LaunchedWork
from opanatomy.anatomy.occupancy import device_figures_of
from opanatomy.anatomy.ratios import Theory, ratios_of
from opanatomy.anatomy.rows import class_rows, kernel_rows, module_rows, operator_rows
from opanatomy.anatomy.theory import all_need_both, backward_over_forward
from opanatomy.anatomy.timeline import DeviceTime, StepWindow, step_of, timeline_of
from opanatomy.records.anatomy import Anatomy, Provenance
from opanatomy.records.columns import CallTable, KernelTable
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


class AnatomyInputs(Struct, frozen=True, kw_only=True):
    """What the stages before hand over; `kernels` is `None` on the CPU, where calls are the device work."""

    provenance: Provenance
    environment: Environment
    capture: Capture | None
    calls: CallTable
    kernels: KernelTable | None
    #: The device events with their launches; `None` on the CPU.
    launched: LaunchedWork | None = None
    step_window: StepWindow
    linked: LinkedTime
    #: The steps of a rank that communicates, and what its collectives cost.
    spans: StepSpans | None = None
    communication: Communication | None = None
    warnings: tuple[str, ...]


def build_anatomy(inputs: AnatomyInputs) -> Anatomy:
    """The report of one trace."""
    calls, kernels, launched, capture = inputs.calls, inputs.kernels, inputs.launched, inputs.capture
    workload = capture.workload if capture else Workload()
    classes = class_rows(calls)
    time = None if launched is None or kernels is None else DeviceTime(inputs.step_window, launched, kernels)
    step = step_of(inputs.step_window, calls, time, capture, _spans(inputs))
    steps_ns = sum(row.wall_ns for row in step.steps)
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
        timeline=timeline_of(inputs.step_window, calls, time, _spans(inputs), inputs.communication),
        communication=inputs.communication,
        breakdown=breakdown_of(step.steps, inputs.step_window, calls, kernels, time),
        device=_device_figures(launched, kernels, steps_ns),
        ledger=_ledger(calls, inputs.linked),
        conventions=CONVENTIONS,
        generation=generation_of(capture, classes, step.count),
        warnings=inputs.warnings,
    )
    check_conservation(anatomy)
    return anatomy


def _spans(inputs: AnatomyInputs) -> StepSpans | None:
    """The steps of a rank on the CPU with collectives, which run alongside its operators."""
    return inputs.spans if inputs.kernels is None and inputs.communication is not None else None


def _theory(calls: CallTable, capture: Capture | None) -> Theory | None:
    """What theory says of this step; `None` where the capture did not see what needs gradients."""
    gradients = capture.gradients if capture else {}
    if not gradients:
        return None
    if capture is not None and capture.workload.fused_loss:
        # The products of the head's backward run in its forward, chunk by chunk.
        return Theory(contraction_flops=None, all_need_both=False)
    return Theory(contraction_flops=backward_over_forward(calls, gradients), all_need_both=all_need_both(gradients))


def _device_figures(launched: LaunchedWork | None, kernels: KernelTable | None, steps_ns: int) -> DeviceFigures:
    if launched is None or kernels is None:
        return DeviceFigures()
    return device_figures_of(DeviceFigures(), launched, kernels, steps_ns)


def _ledger(calls: CallTable, linked: LinkedTime) -> Ledger:
    unknown = int(calls.time_ns[calls.operator_class.equals(OperatorClass.UNKNOWN)].sum())
    inside = linked.linked_ns + linked.graph_launched_ns + linked.no_launch_record_ns
    return Ledger(
        device_work_ns=inside + linked.outside_window_ns,
        linked_ns=linked.linked_ns,
        graph_launched_ns=linked.graph_launched_ns,
        no_launch_record_ns=linked.no_launch_record_ns,
        outside_window_ns=linked.outside_window_ns,
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
