"""Build the `Anatomy` of a trace from its tables, and check the sums that must hold."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.analysis.aggregate import chain_rows
from opanatomy.analysis.breakdown import LikeSteps, like_steps, step_kinds
from opanatomy.analysis.intervals import LaunchedWork
from opanatomy.analysis.run import caveats_of, trends_of
from opanatomy.analysis.step import OTHER_RANKS, mean, step_at, step_of_rows, why_set_aside, without_pauses
from opanatomy.analysis.timeline import (
    DeviceTime,
    StepWindow,
    device_figures_of,
    device_step_rows,
    device_steps,
    host_step_rows,
    timeline_of,
)
from opanatomy.analysis.work import JoinedWork, work_table
from opanatomy.cost.attention import Mask, seen_pairs
from opanatomy.records.anatomy import (
    Anatomy,
    DeviceFigures,
    Generation,
    HostRow,
    Ledger,
    LinkedTime,
    Provenance,
    StepRow,
    StepSpans,
    Timeline,
)
from opanatomy.records.columns import Bool, CallTable, Int64, KernelTable, take
from opanatomy.records.communication import Communication
from opanatomy.records.memory import Memory
from opanatomy.records.patterns import regex
from opanatomy.records.table import Table, concatenated
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.work import KEYS, ClassRow, TheoryRow
from opanatomy.records.workload import (
    Capture,
    Environment,
    PaddingFlops,
    TextBatchRow,
    TextFigures,
    TextObservations,
    TokenizerRow,
    Workload,
)

# ----- steps that are generations


def generation_of(capture: Capture | None, classes: Iterable[ClassRow], steps: int) -> Generation | None:
    """Return a capture's generation figures; `None` if its steps generate no tokens."""
    workload = None if capture is None else capture.workload
    if capture is None or workload is None or workload.generate is None:
        return None
    decoded = workload.generate - 1
    generation = Generation(new_tokens=workload.generate, beams=workload.beams or 1, decoded_tokens=decoded)
    generation = _timed(generation, capture)
    if not decoded:
        return generation
    rows = [row for row in classes if row.phase is Phase.DECODING]
    return replace(
        generation,
        token_flops=_each(rows, "flops", steps * decoded),
        token_read_bytes=_each(rows, "read_bytes", steps * decoded),
        token_written_bytes=_each(rows, "written_bytes", steps * decoded),
        uncosted_ns=sum(row.uncosted_ns for row in rows),
    )


def _timed(generation: Generation, capture: Capture) -> Generation:
    """Add mean prefill and decode times over unprofiled runs without pauses."""
    walls, firsts = capture.unprofiled_step_ns, capture.unprofiled_first_token_ns
    if not firsts or len(firsts) != len(walls):
        return generation
    counted = set(without_pauses(walls))
    pairs = [(wall, first) for wall, first in zip(walls, firsts, strict=True) if wall in counted]
    generation = replace(generation, first_token_ns=sum(first for _, first in pairs) // len(pairs))
    decoding_ns = sum(wall - first for wall, first in pairs) // len(pairs)
    if not generation.decoded_tokens or decoding_ns <= 0:
        return generation
    batch, tokens = capture.workload.batch, generation.decoded_tokens
    return replace(
        generation,
        decoding_ns=decoding_ns,
        token_ns=decoding_ns / tokens,
        tokens_per_second=None if batch is None else batch * tokens * 1e9 / decoding_ns,
    )


def _each(rows: Iterable[ClassRow], name: str, tokens: int) -> float | None:
    """Return the known sum of a column per token; `None` if nothing is known."""
    known = [value for row in rows if (value := getattr(row, name)) is not None]
    return sum(known) / tokens if known else None


# ----- theory of the backward, from forward products and the gradients needed
#
# Y = X W has two products in its backward, dX = dY W' and dW = X' dY, each with the FLOPs of the forward. A product
# whose result nobody needs is not computed: the input gradient of a first layer, the weight gradient of a frozen one.
# Fused attention computes five products for the two of its forward, as it computes the scores again. The measured
# backward is not looked at.


_PRODUCTS: Final = {"weight": 1, "input": 1, "both": 2, "none": 0}
_ATTENTION: Final = regex(r"scaled_dot_product|(?:flash|efficient|cudnn)_attn|(?:flash|efficient|cudnn)_attention")
_OF_ACTIVATIONS: Final = regex(r"^aten::(?:bmm|baddbmm)")
#: Operators whose call contains several kinds of products: with the input and with the previous time step's output.
_RECURRENT: Final = regex(r"rnn|lstm|gru", re.IGNORECASE)


def backward_over_forward(calls: CallTable, gradients: Mapping[str, str]) -> float | None:
    """Return the theoretical ratio of backward to forward contraction FLOPs, without recomputation.

    `gradients` gives for each module which gradients its contractions need. Return `None` if a forward contraction has
    no cost or no module known to `gradients`, or if there is none.
    """
    contraction = calls.operator_class.equals(OperatorClass.TENSOR_CONTRACTION)
    rows = np.flatnonzero(contraction & calls.phase.equals(Phase.FORWARD) & ~calls.inner)
    forward = 0
    backward = Fraction()
    for row in rows.tolist():
        flops, operator, module = int(calls.flops[row]), calls.operator.at(row), calls.module.at(row)
        factor = None if operator is None or module is None else _factor(operator, gradients.get(module))
        if flops < 0 or factor is None:
            return None
        forward += flops
        backward += flops * factor
    return float(backward / forward) if forward else None


def _factor(operator: str, needs: str | None) -> Fraction | None:
    """Return the number of backward contractions per forward contraction of a call; `None` if unknown."""
    if needs is None or needs not in _PRODUCTS:
        return None
    if needs == "none":
        return Fraction(0)
    if _ATTENTION.search(operator):
        return Fraction(5, 2)
    if _OF_ACTIVATIONS.match(operator):
        return Fraction(2)
    if _RECURRENT.search(operator) and needs != "both":
        return None
    return Fraction(_PRODUCTS[needs])


def all_need_both(gradients: Mapping[str, str]) -> bool:
    """Return whether every contraction of the model needs the gradients of both operands."""
    return set(gradients.values()) <= {"both"}


# ----- theory of backward over forward, per class


#: A contraction Y = X W has two in its backward (dX = dY W', dW = X' dY), each with the FLOPs of the forward and over
#: the same three matrices. A map reads 1 and writes 1, its backward reads the gradient and a saved tensor and writes 1;
#: softmax and layer norm move the same.
_FLOPS = {OperatorClass.TENSOR_CONTRACTION: 2.0}
_BYTES = {
    OperatorClass.TENSOR_CONTRACTION: 2.0,
    OperatorClass.STATISTICAL_NORMALIZATION: 1.5,
    OperatorClass.ELEMENTWISE: 1.5,
}


class Theory(Struct, frozen=True, kw_only=True):
    """Theory of one step: backward over forward contraction FLOPs, without recomputation."""

    contraction_flops: float | None
    all_need_both: bool


def theory_rows(workload: Workload, theory: Theory | None = None) -> tuple[TheoryRow, ...]:
    """Return the theoretical expectation for each class, counting recomputation as backward.

    `theory` belongs to this step. Without it, full training is assumed if the workload says that all weights train;
    otherwise the result is empty.
    """
    rows = []
    for name in OperatorClass:
        flops, moved = _all_trained(_FLOPS.get(name), workload), _all_trained(_BYTES.get(name), workload)
        if theory is not None and name is OperatorClass.TENSOR_CONTRACTION:
            flops = _with_recompute(theory.contraction_flops, workload)
        if theory is not None and not theory.all_need_both:
            moved = None
        if flops is not None or moved is not None:
            rows.append(TheoryRow(operator_class=name, flops=flops, bytes=moved))
    return tuple(rows)


def _all_trained(plain: float | None, workload: Workload) -> float | None:
    """Return the ratio for a step that trains every weight; `None` if it does not or that is unknown."""
    trained = workload.parameters is not None and workload.parameters == workload.trainable_parameters
    return _with_recompute(plain, workload) if trained else None


def _with_recompute(plain: float | None, workload: Workload) -> float | None:
    """Add 1 for recomputing the whole forward; `None` for a partly frozen model, which recomputes an unknown part."""
    if plain is None or not workload.checkpointing:
        return plain
    return None if workload.frozen else plain + 1


#: In alphabetical order, as in a report that is read back.
CONVENTIONS: dict[str, str | int] = {
    "backward": "the ratios include recomputation",
    "bytes": "each distinct input is read once, each output written once",
    "causal": "attention FLOPs include masked positions, except in calls with a sliding window",
    "multiply_add": 2,
}
#: Added if the steps of a trace are not annotated.
STEPS_BY_UPDATES: Final[dict[str, str | int]] = {"steps": "not annotated: each is assumed to end with Optimizer.step"}


class MeasuredSteps(Struct, frozen=True, kw_only=True):
    """All steps of a trace: times, reasons for exclusion, and breakdown."""

    window: StepWindow
    rows: tuple[StepRow, ...]
    like: LikeSteps
    #: The device work of the steps that count; `None` on the CPU.
    time: DeviceTime | None
    #: The step of each device event of the trace, whether it counts or not; -1 if none.
    of_event: Int64 | None

    @property
    def counted(self) -> Bool:
        """Return which steps count."""
        return np.array([row.set_aside is None for row in self.rows], dtype=bool)


def measured_steps(
    step_window: StepWindow,
    calls: CallTable,
    kernels: KernelTable | None,
    launched: LaunchedWork | None,
    spans: StepSpans | None = None,
    numbers: Collection[int] | None = None,
    modules: Mapping[str, str] | None = None,
) -> MeasuredSteps:
    """Measure all steps and decide which count; `numbers` restricts them to these. `modules` gives each module's class.

    The tables cover all steps; without `kernels` and `launched` the steps ran on the CPU.
    """
    time = None
    if kernels is not None and launched is not None:
        time = DeviceTime(device_steps(step_window, launched), launched, kernels)
    rows = host_step_rows(step_window, calls, spans) if time is None else device_step_rows(step_window, time)
    kinds = step_kinds(step_window, calls, time)
    reasons = why_set_aside(rows, kinds, may_begin_within=step_window.by_updates)
    if numbers is not None:
        reasons = [
            reason or (None if row.number in numbers else OTHER_RANKS)
            for row, reason in zip(rows, reasons, strict=True)
        ]
    rows = tuple(replace(row, set_aside=reason) for row, reason in zip(rows, reasons, strict=True))
    like = like_steps(rows, kinds, step_window, JoinedWork(calls, kernels), calls, time, modules or {})
    counted = np.array([reason is None for reason in reasons], dtype=bool)
    return MeasuredSteps(
        window=step_window,
        rows=rows,
        like=like,
        time=time if time is None or counted.all() else time.only(counted),
        of_event=None if time is None else time.steps.step,
    )


class AnatomyInputs(Struct, frozen=True, kw_only=True):
    """The results of earlier stages, for the steps that count; on the CPU calls are work, `kernels` is `None`."""

    provenance: Provenance
    environment: Environment
    capture: Capture | None
    calls: CallTable
    kernels: KernelTable | None
    steps: MeasuredSteps
    linked: LinkedTime
    #: CPU steps of a rank whose collectives overlap its operators, and the cost of the collectives.
    spans: StepSpans | None = None
    communication: Communication | None = None
    host: tuple[HostRow, ...] = ()
    caveats: tuple[str, ...] = ()
    warnings: tuple[str, ...]


def build_anatomy(inputs: AnatomyInputs) -> Anatomy:
    """Build the report of one trace."""
    calls, steps, capture = inputs.calls, inputs.steps, inputs.capture
    workload = capture.workload if capture else Workload()
    workload = replace(workload, within_windows=_within_windows(workload))
    step = step_of_rows(steps.rows, capture, recording_outside=steps.window.recording_outside)
    timeline = timeline_of(steps.rows, steps.window, steps.time, inputs.spans, inputs.communication)
    if inputs.environment.host_only:  # the times of operators are those of launching: the device's are unknown
        window = timeline.window_ns
        timeline = Timeline(window_ns=window, busy_ns=0, idle_ns=0, unrecorded_ns=window)
        step = replace(step, busy_ns=None, kernel_time_ns=None, framework_ns=None, profiler_ns=None)
    trends = None
    if capture:  # what the run shows over its length, beside the recorded steps
        batch = capture.workload.samples_together or capture.workload.batch
        trends = trends_of(capture.run, capture.unprofiled_step_ns, capture.profiled_step_ns, batch)
    device, time = DeviceFigures(), steps.time
    if time is not None:
        steps_ns = timeline.window_ns - (timeline.outside_ns or 0)
        device = device_figures_of(device, time.launched, time.work, steps_ns)
    warnings = [*inputs.warnings]
    if timeline.lacks_work and timeline.busy_ns:  # if the trace lacks all of it, a caveat says so
        launching, lacks = timeline.launching, "work that the host waited for"
        if launching is not None and launching.lost_calls:
            lacks = f"the work of {launching.lost_calls:,} of {launching.calls:,} launches"
        warnings.append(
            f"the trace lacks {lacks}: calls, FLOPs, bytes, MFU and times of device work are lower bounds, and"
            " shares refer to the recorded work only"
        )
    anatomy = Anatomy(
        provenance=inputs.provenance,
        environment=inputs.environment,
        workload=workload,
        step=step,
        work=_work(inputs),
        theory=theory_rows(workload, _theory(calls, capture)),
        step_kinds=steps.like.kinds,
        chains=chain_rows(calls),
        host=inputs.host,
        memory=Memory(),
        timeline=timeline,
        communication=inputs.communication,
        device=device,
        ledger=_ledger(calls, inputs.linked),
        conventions=CONVENTIONS | STEPS_BY_UPDATES if steps.window.by_updates else CONVENTIONS,
        run=capture.run if capture else None,
        trends=trends,
        device_state=capture.device_state if capture else None,
        compilation=capture.compilation if capture else None,
        caveats=(*inputs.caveats, *caveats_of(trends)),
        warnings=tuple(warnings),
    )
    check_conservation(anatomy)
    return replace(anatomy, generation=generation_of(capture, anatomy.classes, step.count))


def _work(inputs: AnatomyInputs) -> Table:
    """Return the work of the counted steps, together with the work of like steps."""
    calls, steps = inputs.calls, inputs.steps
    joined = JoinedWork(calls, inputs.kernels)
    step = step_at(*steps.window.bounds, calls.start_ns)[joined.call]
    blocks = None
    if steps.of_event is not None and steps.time is not None:
        step = np.where(joined.event >= 0, take(steps.of_event, joined.event), step)
        blocks = steps.time.launched.work.blocks_per_sm
    keys = joined.keys(inputs.capture.modules if inputs.capture else {})
    counted = work_table(keys, joined.figures(blocks), take(steps.like.of_step, step))
    return concatenated((counted, steps.like.work)).by(*KEYS).compact()


#: Attention implementations that multiply all queries with all keys, whatever the mask.
_MULTIPLY_ALL: Final = ("eager", "sdpa")


def _within_windows(workload: Workload) -> float | None:
    """Return the part of the scores within window and causal mask, in layers whose window is shorter than the input."""
    length = workload.sequence_length
    if length is None or workload.attention not in _MULTIPLY_ALL or workload.generate is not None:
        return None
    windows = [window for window in workload.windows if 0 < window < length]
    within = sum(seen_pairs(length, length, Mask(causal=True, left=window - 1)) or 0 for window in windows)
    return within / (len(windows) * length**2) if windows else None


def _theory(calls: CallTable, capture: Capture | None) -> Theory | None:
    """Return the theory of this step; `None` if the capture did not see which gradients are needed."""
    gradients = capture.gradients if capture else {}
    if not gradients:
        return None
    if capture is not None and capture.workload.fused_loss:
        # The products of the head's backward run in its forward, chunk by chunk.
        return Theory(contraction_flops=None, all_need_both=False)
    return Theory(contraction_flops=backward_over_forward(calls, gradients), all_need_both=all_need_both(gradients))


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
    classed = anatomy.work_ns
    if not inside == parts == classed == ledger.classed_ns + ledger.unknown_ns:
        raise AssertionError(f"the ledger does not balance: {ledger}, classes sum to {classed} ns")


# ----- figures of the texts that a capture observed


def text_figures(observed: TextObservations, padding: PaddingFlops | None) -> TextFigures:
    """Return the text figures of a run; `padding` contributes the padding FLOPs of the profiled batch."""
    batches = tuple(
        TextBatchRow(
            texts=len(batch.lengths),
            length=batch.length,
            tokens=batch.tokens,
            useful_tokens=batch.useful_tokens,
            step_ns=mean(without_pauses(batch.step_ns)),
            profiled=index == observed.profiled,
        )
        for index, batch in enumerate(observed.batches)
    )
    timed_ns = sum(row.step_ns or 0 for row in batches) if all(row.step_ns for row in batches) else 0
    useful = _per_second(sum(row.useful_tokens for row in batches), timed_ns)
    tokenizers = []
    for tokenizer in observed.tokenizers:  # compared with the tokens a second that the steps take
        rate = _per_second(tokenizer.tokens, tokenizer.duration_ns)
        tokenizers.append(
            TokenizerRow(
                name=tokenizer.name,
                slow=tokenizer.slow,
                used=tokenizer.used,
                trained_because=tokenizer.trained_because,
                same_ids=tokenizer.same_ids,
                tokens_per_second=rate,
                holds_back=None if rate is None or useful is None else rate < useful,
            )
        )
    return TextFigures(
        file=observed.file,
        column=observed.column,
        padding=observed.padding,
        count=observed.count,
        more=observed.more,
        cut=observed.cut,
        maximum=observed.maximum,
        shortest=observed.shortest,
        median=observed.median,
        all_batches=observed.all_batches,
        all_tokens=observed.all_tokens,
        all_useful_tokens=observed.all_useful_tokens,
        memory_length=observed.longest.length,
        mean_step_ns=round(timed_ns / len(batches)) if timed_ns else None,
        samples_per_second=_per_second(sum(row.texts for row in batches), timed_ns),
        tokens_per_second=_per_second(sum(row.tokens for row in batches), timed_ns),
        useful_tokens_per_second=useful,
        padding_flops=padding,
        batches=batches,
        tokenizers=tuple(tokenizers),
    )


def _per_second(number: int, duration_ns: int) -> float | None:
    return number * 1e9 / duration_ns if duration_ns > 0 else None
