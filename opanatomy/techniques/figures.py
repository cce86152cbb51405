"""The figures of a step: those of a capture, and those that are predicted of a step that was not run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from msgspec.structs import replace

from opanatomy.cost import cost
from opanatomy.estimate.price import Rates, predicted_time
from opanatomy.estimate.rates import work_of
from opanatomy.memory import memory_of_observations
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.comparison import peaks_differ
from opanatomy.records.memory import Memory
from opanatomy.records.predicted import PredictedTime
from opanatomy.records.simulated import SimulatedStep
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.techniques import OperatorError, StepFigures
from opanatomy.report.units import size

#: Of the operators that made a prediction wrong, this many are named.
_NAMED = 3


def measured_figures(anatomy: Anatomy) -> StepFigures:
    """The figures of a capture that followed its memory."""
    memory, steps = anatomy.memory, max(anatomy.step.count, 1)
    class_ns: dict[str, float] = defaultdict(float)
    phase_ns: dict[str, float] = defaultdict(float)
    for row in anatomy.classes:
        class_ns[row.operator_class] += row.time_ns / steps
        phase_ns[row.phase] += row.time_ns / steps
    workload, texts = anatomy.workload, anatomy.texts
    wall = anatomy.step.unprofiled_wall_ns if texts is None else texts.mean_step_ns
    return StepFigures(
        peak_bytes=memory.peak_bytes, components=_components(memory), at_peak=_at_peak(memory),
        step_ns=wall, low_ns=None if texts else anatomy.step.unprofiled_wall_min_ns,
        high_ns=None if texts else anatomy.step.unprofiled_wall_max_ns, samples=workload.batch,
        class_ns=dict(class_ns), phase_ns=dict(phase_ns), flops=_measured_flops(anatomy),
        parameters=workload.parameters,
        trainable_parameters=workload.trainable_parameters, tokens=None if texts is None else texts.all_tokens,
    )  # fmt: skip


def predicted_figures(
    step: SimulatedStep, rates: Rates | None, unseen: Mapping[str, int], unseen_peak: int
) -> StepFigures:
    """The figures that the step would have; `unseen` are bytes of each component of the baseline that fake tensors do
    not show, `unseen_peak` those at its peak. Without `rates`, or a peak for its data type, its time is not known."""
    memory = memory_of_observations(step.memory)
    components = _components(memory)
    for name, more in unseen.items():
        if name in components:
            components[name] = max(components[name] + more, 0)
    workload = step.workload
    figures = StepFigures(
        peak_bytes=None if memory.peak_bytes is None else memory.peak_bytes + unseen_peak,
        components=components, at_peak=_at_peak(memory), samples=workload.batch, flops=contraction_flops(step),
        parameters=workload.parameters, trainable_parameters=workload.trainable_parameters,
    )  # fmt: skip
    time = None if rates is None else predicted_time(step, rates)
    return figures if time is None or time.lacks_peak else _with_time(figures, time)


def _measured_flops(anatomy: Anatomy) -> dict[str, int]:
    """FLOPs of the tensor contractions of a step by phase; none where a part of them has no formula."""
    rows = [row for row in anatomy.classes if row.operator_class is OperatorClass.TENSOR_CONTRACTION]
    if any(row.uncosted_ns or row.flops is None for row in rows):
        return {}
    steps = max(anatomy.step.count, 1)
    return {row.phase: (row.flops or 0) // steps for row in rows}


def contraction_flops(step: SimulatedStep) -> dict[str, int]:
    """FLOPs of the tensor contractions of a step by phase; none where one of them has no formula."""
    flops: dict[str, int] = defaultdict(int)
    for call in step.calls:
        if work_of(call.operator, call.signature).operator_class is OperatorClass.TENSOR_CONTRACTION:
            known = cost(call.operator, call.signature)
            if known is None:
                return {}
            flops[call.phase] += known.flops * call.calls
    return dict(flops)


def _with_time(figures: StepFigures, time: PredictedTime) -> StepFigures:
    class_ns: dict[str, float] = defaultdict(float)
    phase_ns: dict[str, float] = defaultdict(float)
    for row in time.rows:
        class_ns[row.operator_class] += row.time_ns
        phase_ns[row.phase] += row.time_ns
    return replace(
        figures, step_ns=time.time_ns, low_ns=time.low_ns, high_ns=time.high_ns, class_ns=dict(class_ns),
        phase_ns=dict(phase_ns),
    )  # fmt: skip


def unseen_memory(measured: Memory, step: SimulatedStep) -> tuple[dict[str, int], int]:
    """What fake tensors do not show of the baseline's memory: by component, and at the peak."""
    predicted = memory_of_observations(step.memory)
    ours, theirs = _components(predicted), _components(measured)
    unseen = {name: held - ours[name] for name, held in theirs.items() if name in ours and held != ours[name]}
    known = measured.peak_bytes is not None and predicted.peak_bytes is not None
    return unseen, (measured.peak_bytes or 0) - (predicted.peak_bytes or 0) if known else 0


def offenders(predicted: PredictedTime, measured: Mapping[tuple[str, Phase], float]) -> tuple[OperatorError, ...]:
    """The operators whose predicted and measured times, with all that they call, are furthest apart."""
    expected: dict[tuple[str, Phase], float] = defaultdict(float)
    for predicted_row in predicted.rows:
        expected[predicted_row.operator, predicted_row.phase] += predicted_row.time_ns
    rows = [
        OperatorError(operator=key[0], phase=key[1], predicted_ns=expected[key], measured_ns=measured[key])
        for key in expected.keys() & measured.keys()
    ]
    rows.sort(key=lambda row: -abs(row.predicted_ns - row.measured_ns))
    return tuple(rows[:_NAMED])


def why_peaks_differ(step: SimulatedStep, measured: Memory) -> str | None:
    """The operator whose blocks at the measured peak are furthest from those at the predicted one; `None` where the
    peaks agree."""
    predicted = memory_of_observations(step.memory)
    if not peaks_differ(predicted.peak_bytes, measured.peak_bytes):
        return None
    ours, theirs = _blocks(predicted), _blocks(measured)
    differences = {key: theirs.get(key, 0) - ours.get(key, 0) for key in ours.keys() | theirs.keys()}
    if not differences:
        return None
    (operator, phase), difference = max(differences.items(), key=lambda item: (abs(item[1]), item[0]))
    return (
        f"the peak is not as predicted: {operator} ({phase}) holds {size(abs(difference))}"
        f" {'more' if difference > 0 else 'less'} there than on fake tensors, which do not show what a kernel allocates"
    )


def _blocks(memory: Memory) -> dict[tuple[str, Phase], int]:
    """Bytes at the peak by the operator that allocated them, and its phase."""
    held: dict[tuple[str, Phase], int] = defaultdict(int)
    for block in memory.blocks:
        held[block.operator or "no operator", block.phase] += block.bytes
    return held


def _components(memory: Memory) -> dict[str, int]:
    return {row.component: row.measured_bytes for row in memory.components if row.measured_bytes is not None}


def _at_peak(memory: Memory) -> dict[str, int]:
    return {row.component: row.at_peak_bytes for row in memory.components if row.at_peak_bytes}
