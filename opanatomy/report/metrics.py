"""Return every headline figure of an anatomy as one flat dictionary, for loggers, gates and benchmarks.

Figures are per step in base units: means over the counted steps, with a record's sums divided by their number (the mean
step of a rank). Unknown figures are omitted. `Metric.lower_bound` marks lower bounds: `mfu` and `hfu` if `mfu_covered`
is below 1, `waiting_ns` if ranks are missing, busy and idle time if part of the window is unrecorded, and all counts of
device work if the trace lacks the work of some launches. Figures that missing work could change in either direction (a
share of recorded work, communication that it may hide) are then unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import chain
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.analysis.costs import costs_of, nothing_recorded
from opanatomy.errors import UsageError
from opanatomy.records.anatomy import Anatomy, Better, Metric
from opanatomy.records.comparison import Comparison
from opanatomy.records.patterns import regex
from opanatomy.records.taxonomy import STEP_PHASES, OperatorClass, Phase
from opanatomy.records.work import ClassRow
from opanatomy.report.totals import total

# The figures that `metrics_of` gives, each declared once: name, unit, which direction is good, and its meaning.
#
# A part in braces stands for a class, a phase, a component of memory or a figure of ranks. docs/metrics.md has this
# table.


_COUNTED: Final = ("bytes", "token_read_bytes", "token_written_bytes")
_PLACEHOLDER: Final = regex(r"\\\{(\w+)\\\}")


class Definition(Struct, frozen=True, kw_only=True):
    """One metric, or one per class, phase, component or rank figure if the name has a placeholder in braces.

    `meaning` gives its source in the JSON report; "per step" means divided by the number of steps.
    """

    name: str
    unit: str
    better: Better | None
    meaning: str

    @property
    def exact(self) -> bool:
        """Return whether it counts FLOPs, or the bytes that calls must move."""
        return self.unit == "flop" or self.name in _COUNTED or self.name.endswith((".flops", ".bytes"))


def _defined(name: str, unit: str, better: Better | None, meaning: str) -> Definition:
    return Definition(name=name, unit=unit, better=better, meaning=meaning)


#: In the order of the report.
DEFINITIONS: Final = (
    _defined("step_time_ns", "ns", "lower", "`step_unprofiled_ns` where it was measured, else `step_profiled_ns`"),
    _defined("step_unprofiled_ns", "ns", "lower", "mean time of unprofiled steps, excluding steps with a pause"),
    _defined("step_profiled_ns", "ns", "lower", "mean time of profiled steps, without excluded ones"),
    _defined("steps", "steps", None, "number of profiled steps, without excluded ones, summed over all ranks"),
    _defined("samples_per_second", "samples/s", "higher", "samples in a step divided by the mean time of"
        " unprofiled steps if there are any, else of profiled steps"),
    _defined("joules_per_step", "J", "lower", "energy per step from the device's counter, averaged over the"
        " unprofiled steps if they take at least a second in total, else over the entire run"),
    _defined("joules_per_sample", "J", "lower", "`joules_per_step` divided by the samples in a step"),
    _defined("clock_mhz", "MHz", "higher", "SM clock while steps were recorded (median of the readings)"),
    _defined("clock_share", "fraction", "higher", "`clock_mhz` divided by the device's maximum clock"),
    _defined("power_w", "W", "lower", "power while steps were recorded (mean of the readings)"),
    _defined("temperature_c", "degrees", "lower", "highest temperature while steps were recorded"),
    _defined("run.step_ns", "ns", "lower", "mean time of the run's unrecorded steps except the first, including"
        " evaluations and checkpoints"),
    _defined("run.samples_per_second", "samples/s", "higher", "samples per second over the entire run"),
    _defined("run.input_share", "fraction", "lower", "share of the unrecorded steps' time in which the loop waits for"
        " input"),
    _defined("run.evaluation_share", "fraction", "lower", "share of the unrecorded steps' time spent in evaluations"),
    _defined("run.checkpoint_share", "fraction", "lower", "share of the unrecorded steps' time spent saving"
        " checkpoints"),
    _defined("run.drift", "fraction", "lower", "relative change of the median step time from the first to the last"
        " tenth of the run, if the run drifts"),
    *(
        _defined(f"{phase}_time_ns", "ns", "lower", "time of the phase per step: wall time on the CPU, busy time on an"
            " accelerator")
        for phase in STEP_PHASES
    ),
    _defined("framework_ns", "ns", "lower", "CPU: wall time per step that no operator accounts for"),
    _defined("framework_share", "fraction", "lower", "`framework_ns` / `step_profiled_ns`"),
    _defined("profiler_ns", "ns", None, "CPU: estimated time per step that the profiler adds"),
    _defined("window_ns", "ns", "lower", "accelerator: the window's wall time per step, `busy_ns` + `outside_ns` +"
        " `unrecorded_ns` + `idle_ns`"),
    _defined("busy_ns", "ns", None, "accelerator: time per step in which the window's work runs; CPU: time per step"
        " in operators"),
    _defined("outside_ns", "ns", None, "accelerator: time per step in which only other steps' work runs"),
    _defined("unrecorded_ns", "ns", None, "accelerator: time per step in which unrecorded work runs or may run"),
    _defined("idle_ns", "ns", "lower", "accelerator: idle time per step, `host_idle_ns` + `stream_idle_ns` +"
        " `other_idle_ns`"),
    _defined("host_idle_ns", "ns", "lower", "idle time per step before work that the host launched only after the"
        " device became idle"),
    _defined("stream_idle_ns", "ns", "lower", "idle time per step in which the next work, already launched, waits for"
        " another stream"),
    _defined("other_idle_ns", "ns", "lower", "idle time per step of any other cause"),
    _defined("idle_share", "fraction", "lower", "`idle_ns` / (`window_ns` - `outside_ns`)"),
    _defined("computation_ns", "ns", "lower", "time per step in which work other than communication and copies"
        " runs"),
    _defined("communication_ns", "ns", "lower", "time per step in which collectives run"),
    _defined("exposed_communication_ns", "ns", "lower", "time per step in which collectives run and no other"
        " work does"),
    _defined("exposed_communication_share", "fraction", "lower", "`exposed_communication_ns` / (`window_ns` -"
        " `outside_ns`)"),
    _defined("memcpy_ns", "ns", "lower", "time per step in which copies run"),
    _defined("exposed_memcpy_ns", "ns", "lower", "time per step in which copies run and no other work does"),
    _defined("kernel_time_ns", "ns", "lower", "sum per step of the durations of the window's device work; on the CPU,"
        " of the operators' self times"),
    _defined("launches", "launches", "lower", "calls per step that launch kernels or graphs"),
    _defined("launch_time_ns", "ns", "lower", "host time per step in launch calls"),
    _defined("launch_delay_ns", "ns", None, "mean time from a launch call to its first kernel"),
    _defined("synchronizing_ns", "ns", "lower", "host time per step in calls that wait for the device"),
    _defined("kernels", "kernels", "lower", "kernels per step, excluding copies and fills"),
    _defined("tiny_kernels", "kernels", "lower", "kernels per step that are shorter than 10 us"),
    _defined("flops", "flop", "lower", "FLOPs per step of the calls that have a formula"),
    _defined("bytes", "bytes", "lower", "minimum bytes per step read and written by the calls that have a"
        " formula"),
    _defined("class.{class}.time_ns", "ns", "lower", "time per step of the class's device work in all phases; on the"
        " CPU, self time"),
    _defined("class.{class}.time_share", "fraction", None, "the class's share of the time of all device work"),
    _defined("class.{class}.flops", "flop", "lower", "FLOPs per step of the class's calls that have a formula"),
    _defined("class.{class}.bytes", "bytes", "lower", "minimum bytes per step of the class's calls that have a"
        " formula"),
    _defined("class.{class}.headroom_ns", "ns", "lower", "time per step that the class's calls take beyond their"
        " bound"),
    _defined("phase.{phase}.time_ns", "ns", "lower", "time per step of the phase's device work in all classes; on the"
        " CPU, self time"),
    _defined("phase.{phase}.flops", "flop", "lower", "FLOPs per step of the phase's calls that have a formula"),
    _defined("phase.{phase}.bytes", "bytes", "lower", "minimum bytes per step of the phase's calls that have a"
        " formula"),
    _defined("ratio.{class}.time", "ratio", None, "backward/forward ratio of the class's time"),
    _defined("ratio.{class}.flops", "ratio", None, "backward/forward ratio of the class's FLOPs"),
    _defined("ratio.{class}.bytes", "ratio", None, "backward/forward ratio of the class's bytes"),
    _defined("mfu", "fraction", "higher", "model FLOPs utilization: contraction FLOPs, excluding recomputation,"
        " divided by the FLOPs that the peak allows in the step's time"),
    _defined("hfu", "fraction", "higher", "hardware FLOPs utilization: like MFU, but including recomputation"),
    _defined("mfu_covered", "fraction", "higher", "share of the contractions' time that is in calls whose FLOPs are"
        " known; below 1, MFU and HFU are lower bounds"),
    _defined("headroom_ns", "ns", "lower", "time per step that calls take beyond their bound"),
    _defined("bound_share", "fraction", "higher", "bound divided by time, for the calls whose bound is known"),
    _defined("utilization", "fraction", "higher", "share of the steps' time in which any kernel runs"),
    _defined("sm_efficiency", "fraction", "higher", "Kineto's estimate of SM efficiency, averaged over the steps'"
        " time"),
    _defined("occupancy", "fraction", "higher", "Kineto's estimate of occupancy, averaged over kernels, weighted"
        " by duration"),
    _defined("tensor_core_ns", "ns", None, "time per step of kernels whose names show that they use tensor cores"),
    _defined("tensor_core_unknown_ns", "ns", None, "time per step of matmuls and unclassified kernels whose names"
        " do not show whether they use tensor cores"),
    _defined("peak_memory_bytes", "bytes", "lower", "peak memory of the step: `allocator_peak_bytes` if known, else"
        " `process_peak_bytes`"),
    _defined("allocator_peak_bytes", "bytes", "lower", "most memory that the allocator had allocated at one time"),
    _defined("process_peak_bytes", "bytes", "lower", "CPU: largest resident set size (RSS) of the process, including"
        " Python"),
    _defined("reserved_memory_bytes", "bytes", "lower", "most device memory that the allocator had reserved at one"
        " time"),
    _defined("needed_memory_bytes", "bytes", "lower", "memory that the step needs in theory, excluding temporary"
        " buffers"),
    _defined("memory.{component}_bytes", "bytes", "lower", "size of the component, measured or inferred"),
    _defined("memory.at_peak.{component}_bytes", "bytes", "lower", "the component's bytes that are live at the peak"),
    _defined("first_token_ns", "ns", "lower", "mean time to the first token, in unprofiled generations"),
    _defined("token_ns", "ns", "lower", "mean time from one token to the next"),
    _defined("tokens_per_second", "tokens/s", "higher", "tokens generated per second during decoding, over all"
        " samples"),
    _defined("token_flops", "flop", "lower", "mean FLOPs of one forward pass during decoding"),
    _defined("token_read_bytes", "bytes", "lower", "mean bytes read by one forward pass during decoding"),
    _defined("token_written_bytes", "bytes", "lower", "mean bytes written by one forward pass during decoding"),
    _defined("texts.step_ns", "ns", "lower", "mean step time of each batch of texts, averaged over the batches"),
    _defined("texts.samples_per_second", "samples/s", "higher", "samples per second over all batches of texts"),
    _defined("texts.tokens_per_second", "tokens/s", "higher", "tokens per second over all batches of texts, including"
        " padding"),
    _defined("texts.useful_tokens_per_second", "tokens/s", "higher", "tokens per second over all batches of texts,"
        " excluding padding"),
    _defined("texts.useful_share", "fraction", "higher", "share of all tokens, including padding, that belong to"
        " texts"),
    _defined("texts.padding_flops", "flop", "lower", "contraction FLOPs spent on padding, in the profiled batch"),
    _defined("ranks", "ranks", None, "number of ranks in the report"),
    _defined("ranks.{figure}_min_ns", "ns", "lower", "FIGURE's time per step (see `spread`), minimum over the ranks"),
    _defined("ranks.{figure}_median_ns", "ns", "lower", "FIGURE's time per step, median over the ranks"),
    _defined("ranks.{figure}_max_ns", "ns", "lower", "FIGURE's time per step, maximum over the ranks"),
    _defined("waiting_ns", "ns", "lower", "time in which only communication runs, waiting for another rank (mean over"
        " ranks and steps)"),
    _defined("transfer_ns", "ns", "lower", "time in which only communication runs and data can flow (mean over ranks"
        " and steps)"),
    _defined("unmatched_ns", "ns", None, "time in which only unmatched communication runs (mean over ranks and steps)"),
    _defined("straggler_charged_ns", "ns", "lower", "time in which a rank waits for the straggler (mean over ranks and"
        " steps)"),
    _defined("straggler_share", "fraction", "lower", "share of all ranks' waiting time that the straggler causes"),
    _defined("straggler_lead_ns", "ns", "lower", "how much later the straggler enters a collective than the"
        " next-to-last rank (median weighted by the waiting time)"),
    _defined("straggler_rank", "rank", None, "the straggler's rank"),
    _defined("advice.{advice}.gain_ns", "ns", "lower", "the most time per step that a single piece of this advice could"
        " save"),
    _defined("advice.{advice}.gain_bytes", "bytes", "lower", "the most peak memory that a single piece of this"
        " advice could save"),
    _defined("ledger.linked_share", "fraction", None, "share of all device work that is linked to the operator call"
        " that launched it"),
    _defined("ledger.graph_launched_share", "fraction", None, "share of all device work that was launched by graphs"),
    _defined("ledger.no_launch_record_share", "fraction", "lower", "share of all device work without a launch record"),
    _defined("ledger.outside_window_share", "fraction", None, "share of all device work that was launched outside the"
        " window"),
    _defined("ledger.costed_share", "fraction", "higher", "share of the window's device work whose FLOPs and bytes"
        " are known"),
    _defined("ledger.unknown_share", "fraction", "lower", "share of the window's device work that no rule classifies"),
    _defined("checks.unexplained", "differences", "lower", "number of differences from second sources that have no"
        " known cause"),
)  # fmt: skip

#: Short names, for gates and for hurried people. A name without its unit (`step_time`, `memory.weights`) works too.
ALIASES: Final = {
    "time": "step_time_ns",
    "step": "step_time_ns",
    "plain": "step_unprofiled_ns",
    "profiled": "step_profiled_ns",
    "throughput": "samples_per_second",
    "samples": "samples_per_second",
    **{phase.value: f"{phase}_time_ns" for phase in STEP_PHASES},
    "exposed": "exposed_communication_ns",
    "memory": "peak_memory_bytes",
    "peak": "peak_memory_bytes",
    "reserved": "reserved_memory_bytes",
    "waiting": "waiting_ns",
    "straggler": "straggler_charged_ns",
    "costed": "ledger.costed_share",
    "unknown": "ledger.unknown_share",
}
#: The report's word for a class, where it differs from the name.
_CLASSES: Final = {
    "contraction": OperatorClass.TENSOR_CONTRACTION,
    "normalization": OperatorClass.STATISTICAL_NORMALIZATION,
    "element_wise": OperatorClass.ELEMENTWISE,
}
_SUFFIXES: Final = ("", "_ns", "_time_ns", "_bytes", "_share", ".time_ns")
_OF: Final = {"class": tuple(OperatorClass), "phase": tuple(Phase)}


def _pattern(name: str) -> re.Pattern[str]:
    """Return the pattern of the names covered by a declared one."""

    def alternatives(place: re.Match[str]) -> str:
        values = _OF.get(place[1])
        return r"\w+" if values is None else f"(?:{'|'.join(values)})"

    return re.compile(_PLACEHOLDER.sub(alternatives, re.escape(name)))


_PATTERNS: Final = tuple((_pattern(definition.name), definition) for definition in DEFINITIONS)


def definition_of(name: str) -> Definition | None:
    """Return the definition of a metric; `None` for an unknown name."""
    return next((definition for pattern, definition in _PATTERNS if pattern.fullmatch(name)), None)


def metric_named(name: str) -> str:
    """Return the metric that `name` denotes: by its full name, a short one, or one without unit.

    Case, blanks and `-` for `_` do not matter. The metric may still be unknown in an anatomy. Raises `UsageError`, with
    near names, for an unknown name.
    """
    plain = re.sub(r"[\s-]+", "_", name.strip().lower())
    plain = ALIASES.get(plain, plain)
    first, dot, rest = plain.partition(".")
    middle, point, last = rest.partition(".")
    if first in ("class", "ratio") and middle in _CLASSES:
        plain = f"{first}{dot}{_CLASSES[middle]}{point}{last}"
    for suffix in _SUFFIXES:
        if definition_of(plain + suffix) is not None:
            return plain + suffix
    names = [*ALIASES, *(name for definition in DEFINITIONS for name in _expanded(definition.name))]
    near = get_close_matches(plain, names, n=3, cutoff=0.5)
    instead = "docs/metrics.md lists all metrics, such as time, memory, flops, mfu"
    if near:
        instead = f"did you mean {', '.join(near)}? {instead}"
    raise UsageError(f"metric {name!r}: unknown - {instead}")


def _expanded(name: str) -> Iterable[str]:
    """Return the names covered by a declared one, as far as enumerable."""
    for place, values in _OF.items():
        if f"{{{place}}}" in name:
            return [name.replace(f"{{{place}}}", value) for value in values]
    return [] if "{" in name else [name]


def metric_table() -> str:
    """Return the table of all figures for docs/metrics.md."""
    rows = ["| metric | short | unit | better | meaning |", "|---|---|---|---|---|"]
    for item in DEFINITIONS:
        name = re.sub(r"\{(\w+)\}", lambda place: place[1].upper(), item.name)
        short = ", ".join(f"`{alias}`" for alias, known in ALIASES.items() if known == item.name)
        rows.append(f"| `{name}` | {short} | {item.unit} | {item.better or ''} | {item.meaning} |")
    return "\n".join(rows)


Number: TypeAlias = "int | float"
#: A name and its value, `None` if that is unknown.
Named: TypeAlias = "tuple[str, Number | None]"


def metrics_of(anatomy: Anatomy) -> dict[str, Metric]:
    """Return the figures of an anatomy by name (docs/metrics.md), without unknown ones."""
    parts = (
        _step(anatomy),
        _window(anatomy),
        _work(anatomy),
        _memory(anatomy),
        _generation(anatomy),
        _ranks(anatomy),
        _advice(anatomy),
        _ledger(anatomy),
    )
    lacks_work = anatomy.timeline.lacks_work
    metrics: dict[str, Metric] = {}
    for name, value in chain(*parts):
        if value is None or (lacks_work and _NO_BOUND.fullmatch(name)):
            continue
        definition = definition_of(name)
        if definition is None:
            raise ValueError(f"no metric is called {name}")
        metrics[name] = Metric(value=value, unit=definition.unit, better=definition.better, exact=definition.exact)
    return metrics | dict(_bounded(anatomy, metrics))


#: Figures with an upper bound given by unrecorded time, and figures of device work that lost launches would increase.
_BUSY_AND_IDLE: Final = ("busy_ns", "idle_ns", "host_idle_ns", "stream_idle_ns", "other_idle_ns")
_OF_WORK: Final = regex(
    r"mfu|hfu|flops|bytes|(?:tiny_)?kernels|(?:kernel_time|busy|computation|communication|memcpy|headroom)_ns"
    rf"|(?:{'|'.join(STEP_PHASES)})_time_ns|tensor_core_(?:unknown_)?ns|utilization|sm_efficiency"
    r"|(?:class|phase)\.\w+\.(?:time_ns|flops|bytes|headroom_ns)"
)
#: What lost launches may make larger or smaller.
_NO_BOUND: Final = regex(r"exposed_\w+|bound_share|occupancy|class\.\w+\.time_share|ratio\.\w+\.(?:time|flops|bytes)")


def _bounded(anatomy: Anatomy, metrics: dict[str, Metric]) -> Iterator[tuple[str, Metric]]:
    """Yield the figures whose true value may be larger, with the upper bound if known."""
    timeline, covered, waiting = anatomy.timeline, anatomy.device.mfu_covered, anatomy.waiting
    for name, metric in metrics.items():
        if (
            (timeline.lacks_work and _OF_WORK.fullmatch(name))
            or (name in ("mfu", "hfu") and covered is not None and covered < 1)
            or (name == "waiting_ns" and waiting is not None and waiting.is_lower_bound)
        ):
            yield name, replace(metric, lower_bound=True)
    if timeline.unrecorded_ns and (unrecorded := metrics.get("unrecorded_ns")):
        for name in metrics.keys() & _BUSY_AND_IDLE:
            yield name, replace(metrics[name], lower_bound=True, at_most=metrics[name].value + unrecorded.value)
        if share := metrics.get("idle_share"):
            unknown = timeline.unrecorded_ns / costs_of(anatomy).whole_ns
            yield "idle_share", replace(share, lower_bound=True, at_most=share.value + unknown)


def _per(amount: Number | None, count: Number | None) -> Number | None:
    """Return `amount` / `count`, as integer if exact; `None` if either is unknown or `count` is 0."""
    if amount is None or not count:
        return None
    if isinstance(amount, int) and isinstance(count, int) and amount % count == 0:
        return amount // count
    return amount / count


def _step(anatomy: Anatomy) -> Iterator[Named]:
    """Yield the step, the driver's readings during recorded steps, the whole run, and the phases."""
    step, run, trends, state = anatomy.step, anatomy.run, anatomy.trends, anatomy.device_state
    plain = step.unprofiled_wall_ns
    yield "step_time_ns", step.wall_ns if plain is None else plain
    yield "step_unprofiled_ns", plain
    yield "step_profiled_ns", step.wall_ns
    yield "steps", step.count
    yield "samples_per_second", step.samples_per_second

    # The energy also over the whole run.
    joules = None if state is None else state.joules_per_step
    if joules is None and run is not None and run.device is not None:
        joules = run.device.joules_per_step
    yield "joules_per_step", joules
    yield "joules_per_sample", None if joules is None else _per(joules, anatomy.workload.batch)
    if state is not None:
        yield "clock_mhz", state.clock_mhz
        yield "clock_share", state.clock_share
        yield "power_w", state.power_w
        yield "temperature_c", state.temperature_c

    if run is not None:
        yield "run.step_ns", _per(run.wall_ns, run.steps)
        yield "run.samples_per_second", None if trends is None else trends.samples_per_second
        yield "run.input_share", _per(run.input_ns, run.wall_ns)
        yield "run.evaluation_share", _per(run.evaluating_ns, run.wall_ns)
        yield "run.checkpoint_share", _per(run.checkpointing_ns, run.wall_ns)
        if trends is not None and trends.drift is not None:
            yield "run.drift", trends.drift.last_ns / trends.drift.first_ns - 1

    for phase in STEP_PHASES:
        yield f"{phase}_time_ns", step.phase_ns.get(phase)
    yield "framework_ns", step.framework_ns
    yield "framework_share", _per(step.framework_ns, step.wall_ns)
    yield "profiler_ns", step.profiler_ns if step.framework_ns is not None else None


def _window(anatomy: Anatomy) -> Iterator[Named]:
    """Yield busy and idle time, and launches."""
    timeline, ranks, costs = anatomy.timeline, max(len(anatomy.ranks), 1), costs_of(anatomy)
    on_accelerator, unknown = timeline.outside_ns is not None, nothing_recorded(anatomy)
    launching, steps = timeline.launching, anatomy.step.count

    def each(ns: int | None) -> Number | None:
        # For several ranks the record has the mean over them of their whole windows.
        return None if ns is None or (unknown and not ns) else _per(ns * ranks, steps)

    if on_accelerator:
        yield "window_ns", each(timeline.window_ns)
        yield "idle_ns", each(timeline.idle_ns)
        yield "idle_share", None if unknown else _per(costs.idle_ns, costs.whole_ns)
    yield "busy_ns", each(timeline.busy_ns) if on_accelerator else anatomy.step.busy_ns
    for name in (
        "outside",
        "unrecorded",
        "host_idle",
        "stream_idle",
        "other_idle",
        "computation",
        "communication",
        "exposed_communication",
        "memcpy",
        "exposed_memcpy",
    ):
        yield f"{name}_ns", each(getattr(timeline, f"{name}_ns"))
    exposed = None if unknown else _per(timeline.exposed_communication_ns, costs.whole_ns)
    yield "exposed_communication_share", exposed
    if launching is not None:
        yield "launches", _per(launching.calls, steps)
        yield "launch_time_ns", _per(launching.call_ns, steps)
        yield "launch_delay_ns", _per(launching.delay_ns, launching.delayed)
        yield "synchronizing_ns", _per(launching.synchronizing_ns, steps)
        if not unknown:
            yield "kernels", _per(launching.kernels, steps)
            yield "tiny_kernels", _per(launching.tiny_kernels, steps)


def _work(anatomy: Anatomy) -> Iterator[Named]:
    """Yield the device work in all, by class and by phase, and how far it reaches the limits of the device."""
    rows, steps, device = anatomy.classes, anatomy.step.count, anatomy.device
    if rows:
        whole = total(rows)
        yield "kernel_time_ns", None if anatomy.environment.host_only else _per(whole.time_ns, steps)
        yield "flops", _per(whole.flops, steps)
        yield "bytes", _per(whole.bytes, steps)
        for operator_class in OperatorClass:
            members = [row for row in rows if row.operator_class is operator_class]
            yield from _part(f"class.{operator_class}", members, steps)
            if members:
                yield f"class.{operator_class}.time_share", _per(total(members).time_ns, whole.time_ns)
                yield f"class.{operator_class}.headroom_ns", _per(_headroom(members), steps)
        for phase in Phase:
            yield from _part(f"phase.{phase}", [row for row in rows if row.phase is phase], steps)
        yield "headroom_ns", _per(_headroom(rows), steps)
        yield "bound_share", whole.reached
    for row in anatomy.ratios:
        for figure in ("time", "flops", "bytes"):
            yield f"ratio.{row.operator_class}.{figure}", getattr(row, figure)
    if device.mfu is not None:
        yield "mfu_covered", device.mfu_covered
    for name in ("mfu", "hfu", "utilization", "sm_efficiency", "occupancy"):
        yield name, getattr(device, name)
    for name in ("tensor_core_ns", "tensor_core_unknown_ns"):
        yield name, _per(getattr(device, name), steps)


def _part(name: str, rows: list[ClassRow], steps: int) -> Iterator[Named]:
    if rows:
        part = total(rows)
        yield f"{name}.time_ns", _per(part.time_ns, steps)
        yield f"{name}.flops", _per(part.flops, steps)
        yield f"{name}.bytes", _per(part.bytes, steps)


def _headroom(rows: Iterable[ClassRow]) -> int | None:
    known = [row.headroom_ns for row in rows if row.headroom_ns is not None]
    return sum(known) if known else None


def _memory(anatomy: Anatomy) -> Iterator[Named]:
    memory = anatomy.memory
    yield "peak_memory_bytes", memory.peak_bytes
    yield "allocator_peak_bytes", memory.allocator_peak_bytes
    yield "process_peak_bytes", memory.process_peak_bytes
    from_allocator = None if memory.allocator is None else memory.allocator.reserved_peak_bytes
    from_events = memory.devices[0].reserved_peak_bytes if memory.devices else None
    yield "reserved_memory_bytes", from_events if from_allocator is None else from_allocator
    yield "needed_memory_bytes", memory.needed_bytes
    for part in memory.components:
        name = re.sub(r"\W+", "_", part.component)
        yield f"memory.{name}_bytes", part.measured_bytes
        yield f"memory.at_peak.{name}_bytes", part.at_peak_bytes


def _generation(anatomy: Anatomy) -> Iterator[Named]:
    """Yield figures of a generation's tokens, and of texts of varying length."""
    for name in (
        "first_token_ns",
        "token_ns",
        "tokens_per_second",
        "token_flops",
        "token_read_bytes",
        "token_written_bytes",
    ):
        yield name, getattr(anatomy.generation, name, None)
    texts = anatomy.texts
    if texts is not None:
        yield "texts.step_ns", texts.mean_step_ns
        for name in ("samples_per_second", "tokens_per_second", "useful_tokens_per_second"):
            yield f"texts.{name}", getattr(texts, name)
        yield "texts.useful_share", _per(texts.all_useful_tokens, texts.all_tokens)
        yield "texts.padding_flops", None if texts.padding_flops is None else texts.padding_flops.padding_flops


def _ranks(anatomy: Anatomy) -> Iterator[Named]:
    """Yield the spread over ranks, the total waiting in their steps, and the rank waited for."""
    yield "ranks", len(anatomy.ranks) or None
    for spread in anatomy.spread:
        figure = re.sub(r"\W+", "_", spread.figure)
        for kind in ("min", "median", "max"):
            yield f"ranks.{figure}_{kind}_ns", getattr(spread, f"{kind}_ns")
    if anatomy.waiting is None:
        return
    steps = [step for rank in anatomy.waiting.each for step in rank.steps]
    for name in ("waiting", "transfer", "unmatched"):
        yield f"{name}_ns", _per(sum(getattr(step, f"{name}_ns") for step in steps), len(steps))
    straggler = anatomy.waiting.straggler
    if straggler is not None:
        yield "straggler_charged_ns", _per(straggler.charged_ns, len(steps))
        yield "straggler_share", _per(straggler.charged_ns, straggler.waiting_ns)
        yield "straggler_lead_ns", straggler.lead_ns
        yield "straggler_rank", straggler.rank


def _advice(anatomy: Anatomy) -> Iterator[Named]:
    """Yield the largest gain of each id."""
    for field in ("gain_ns", "gain_bytes"):
        gains: dict[str, int] = {}
        for advice in anatomy.advice:
            if (gain := getattr(advice, field)) is not None:
                gains[advice.id] = max(gains.get(advice.id, 0), gain)
        yield from ((f"advice.{name}.{field}", gain) for name, gain in sorted(gains.items()))


def _ledger(anatomy: Anatomy) -> Iterator[Named]:
    """Yield how much device work is attributed and costed, and what the checks leave unexplained."""
    ledger = anatomy.ledger
    for name in ("linked", "graph_launched", "no_launch_record", "outside_window"):
        yield f"ledger.{name}_share", _per(getattr(ledger, f"{name}_ns"), ledger.device_work_ns)
    for name in ("costed", "unknown"):
        inside = ledger.device_work_ns - ledger.outside_window_ns
        yield f"ledger.{name}_share", _per(getattr(ledger, f"{name}_ns"), inside)
    if any(check.compared for check in anatomy.checks):
        yield "checks.unexplained", sum(len(check.unexplained) for check in anatomy.checks)


# Every figure of a comparison as one flat dictionary, for loggers: each on every side, and the causes of the change.
#
# A figure is called as `Anatomy.metrics()` calls it, with the side behind it: `step_time_ns.before`, `.after` and
# `.change` (after over before, less one) of two sides, `step_time_ns.1`, `.2`, ... of more, in their order.


_TWO: Final = ("before", "after")


def metrics_of_comparison(comparison: Comparison) -> dict[str, Metric]:
    """Return the figures by name, without unknown ones."""
    metrics: dict[str, Metric] = {}
    two = len(comparison.sides) == len(_TWO)
    for row in comparison.figures:
        for index, value in enumerate(row.values):
            if value is not None:
                side = _TWO[index] if two else str(index + 1)
                bound = bool(row.lower_bounds) and row.lower_bounds[index]
                metrics[f"{row.name}.{side}"] = Metric(
                    value=value, unit=row.unit, better=row.better, lower_bound=bound, exact=row.exact
                )
        if two and row.change is not None and not comparison.not_comparable:
            metrics[f"{row.name}.change"] = Metric(value=row.change, unit="fraction", better=row.better)

    # The mean like step of both sides, its change, and each cause's part of it: these sum to the change.
    parts = comparison.decomposition
    if parts is not None:
        for name in ("before", "after", "change"):
            metrics[f"like_step_ns.{name}"] = Metric(value=getattr(parts, f"{name}_ns"), unit="ns", better="lower")
        changes: dict[str, int] = {}
        for part in parts.parts:
            changes[part.cause] = changes.get(part.cause, 0) + part.change_ns
        for cause, change_ns in changes.items():
            metrics[f"like_step_ns.change.{cause}"] = Metric(value=change_ns, unit="ns", better="lower")
    return metrics
