"""Everything found about a trace -> `Anatomy`; the sums that must hold are checked here."""

from __future__ import annotations

from msgspec import Struct

from opanatomy.anatomy.launched_work import LaunchedWork
from opanatomy.anatomy.occupancy import device_figures_of
from opanatomy.anatomy.ratios import Theory, ratios_of
from opanatomy.anatomy.rows import class_rows, kernel_rows, module_rows, operator_rows
from opanatomy.anatomy.theory import all_need_both, backward_over_forward
from opanatomy.anatomy.timeline import DeviceTime, StepWindow, step_of, timeline_of
from opanatomy.records.anatomy import Anatomy, Provenance
from opanatomy.records.columns import CallTable, KernelTable
from opanatomy.records.device import DeviceFigures
from opanatomy.records.memory import Memory
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.records.timeline import Ledger
from opanatomy.records.workload import Capture, Environment, Workload

#: In alphabetical order, as a report that is read back has them.
CONVENTIONS: dict[str, str | int] = {
    "backward": "recompute included in the ratios",
    "bytes": "each distinct input read once, each output written once",
    "causal": "full",
    "multiply_add": 2,
}


class AnatomyInputs(Struct, frozen=True, kw_only=True):
    """What the stages before found. `work` is `None` on the CPU, where calls are the device work."""

    provenance: Provenance
    environment: Environment
    capture: Capture | None
    calls: CallTable
    work: KernelTable | None
    #: The device work as the trace has it, `work` and that of other steps; `None` on the CPU.
    launched: LaunchedWork | None = None
    step_window: StepWindow
    #: Device work by link: linked, graph_launched, no_launch_record, outside_window.
    links: dict[str, int]
    warnings: tuple[str, ...]


def build_anatomy(found: AnatomyInputs) -> Anatomy:
    """The report of one trace."""
    workload = found.capture.workload if found.capture else Workload()
    classes = class_rows(found.calls)
    ledger = _ledger(found)
    time = (
        None
        if found.launched is None or found.work is None
        else DeviceTime(found.step_window, found.launched, found.work)
    )
    step = step_of(found.step_window, found.calls, time, found.capture)
    anatomy = Anatomy(
        provenance=found.provenance,
        environment=found.environment,
        workload=workload,
        step=step,
        classes=classes,
        ratios=ratios_of(classes, workload, _theory(found)),
        operators=operator_rows(found.calls),
        kernels=kernel_rows(found.work) if found.work is not None else (),
        modules=module_rows(found.calls, found.capture.modules if found.capture else {}),
        memory=Memory(),
        timeline=timeline_of(found.step_window, found.calls, time),
        device=_device_figures(found.launched, sum(row.wall_ns for row in step.steps)),
        ledger=ledger,
        conventions=CONVENTIONS,
        warnings=found.warnings,
    )
    check_conservation(anatomy)
    return anatomy


def _theory(found: AnatomyInputs) -> Theory | None:
    """What theory says of this step; `None` where the capture did not see what needs gradients."""
    gradients = found.capture.gradients if found.capture else {}
    if not gradients:
        return None
    return Theory(
        contraction_flops=backward_over_forward(found.calls, gradients), all_need_both=all_need_both(gradients)
    )


def _device_figures(launched: LaunchedWork | None, steps_ns: int) -> DeviceFigures:
    return DeviceFigures() if launched is None else device_figures_of(DeviceFigures(), launched, steps_ns)


def _ledger(found: AnatomyInputs) -> Ledger:
    calls = found.calls
    unknown = int(calls.time_ns[calls.operator_class.equals(OperatorClass.UNKNOWN)].sum())
    total = int(calls.time_ns.sum())
    return Ledger(
        device_work_ns=sum(found.links.values()),
        linked_ns=found.links["linked"],
        graph_launched_ns=found.links["graph_launched"],
        no_launch_record_ns=found.links["no_launch_record"],
        outside_window_ns=found.links["outside_window"],
        classed_ns=total - unknown,
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
