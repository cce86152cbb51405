"""The anatomy as text for a terminal or a pipe: what ran, where the time went, and one sentence at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Final

from rich.console import Console
from rich.text import Text

from opanatomy.records.anatomy import COVERED_LEAST, Anatomy, KernelRow, OperatorRow, Step
from opanatomy.records.device import DeviceFigures
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.records.timeline import Timeline
from opanatomy.report import tables, units
from opanatomy.report.checks import check_facts, disagreement_table
from opanatomy.report.memory import memory_tables
from opanatomy.report.ranks import collective_table, rank_table
from opanatomy.report.roofline import roofline_table
from opanatomy.report.table import PAGE, cut, prose
from opanatomy.report.verdict import verdict

_LABEL_WIDTH: Final = 11
#: How many names a list of names has, and how long each may be.
_LISTED, _NAME_WIDTH = 5, 56

Fact = tuple[str, str]


def terminal_report(anatomy: Anatomy, *, width: int = 80, color: bool = False, top: int = 8) -> str:
    """The report as lines of at most `width` cells, with ANSI colours if `color`, and the `top` operators."""
    sections: list[Sequence[Text] | None] = [
        _title(anatomy, width),
        disagreement_table(anatomy, width),
        _facts(_what_ran(anatomy), width),
        _facts(_step(anatomy), width),
        tables.class_table(anatomy, width, color),
        tables.phase_table(anatomy, width, color),
        tables.ratio_table(anatomy, width, color),
        tables.paper_table(anatomy, width, color),
        tables.operator_table(anatomy, width, color, top),
        roofline_table(anatomy, width, color, top),
        collective_table(anatomy, width, color),
        rank_table(anatomy, width),
        memory_tables(anatomy, width),
        _facts((*_ledger(anatomy), *check_facts(anatomy)), width),
        _facts([("warning", warning) for warning in anatomy.warnings], width, style="yellow"),
        prose(verdict(anatomy), width, style="bold"),
    ]
    texts = [_rendered(section, width, color) for section in sections if section]
    return texts[0] + "\n".join(texts[1:])


def _title(anatomy: Anatomy, width: int) -> list[Text]:
    name = anatomy.workload.model or anatomy.workload.architecture or anatomy.provenance.trace or "a training step"
    return [*prose(f"The anatomy of {name}", width, style="bold"), Text("─" * min(width, PAGE), style="dim")]


def _facts(facts: Iterable[Fact], width: int, style: str = "") -> list[Text]:
    """A label and what it is on each line; a fact that is empty is left out."""
    lines = []
    for label, value in facts:
        for index, line in enumerate(prose(value, width - _LABEL_WIDTH, style=style) if value else ()):
            lines.append(Text.assemble((("" if index else label).ljust(_LABEL_WIDTH), "dim"), line))
    return lines


def _rendered(lines: Iterable[Text], width: int, color: bool) -> str:
    file = StringIO()
    console = Console(
        file=file, width=width, color_system="256" if color else None, force_terminal=color, no_color=not color,
        highlight=False, markup=False, emoji=False, legacy_windows=False,
    )  # fmt: skip
    for line in lines:
        console.print(line, soft_wrap=True)
    return file.getvalue()


def _what_ran(anatomy: Anatomy) -> list[Fact]:
    environment, workload = anatomy.environment, anatomy.workload
    options = (
        workload.dtype,
        workload.amp and f"autocast {workload.amp}",
        f"loss scale {workload.loss_scale:,g}" if workload.loss_scale else None,
        workload.attention and f"{workload.attention} attention",
        workload.checkpointing and f"checkpointing {workload.checkpointing}",
        "compiled" if workload.compiled else None,
        "inference" if workload.inference else None,
        workload.optimizer and f"optimizer {workload.optimizer}",
    )
    libraries = (("torch", environment.torch), ("CUDA", environment.cuda), ("driver", environment.driver),
                 ("transformers", environment.transformers), ("opanatomy", anatomy.provenance.opanatomy))  # fmt: skip
    return [
        ("model", _list((workload.architecture, _parameters(anatomy)))),
        ("workload", _list((workload.task, _batch(anatomy), *options))),
        ("backward", f"from {workload.backward_from}" if workload.backward_from else ""),
        ("changed", _list(workload.changes)),
        ("device", _device(anatomy)),
        ("software", _list(f"{name} {version}" for name, version in libraries if version)),
        ("trace", anatomy.provenance.trace or ""),
        ("rank", _rank(anatomy)),
    ]


def _rank(anatomy: Anatomy) -> str:
    """Which rank a trace is of; of several there is a table."""
    if len(anatomy.ranks) != 1 or anatomy.ranks[0].rank is None:
        return ""
    rank, world = anatomy.ranks[0].rank, anatomy.ranks[0].world_size
    return f"{rank} of {world}" if world else str(rank)


def _parameters(anatomy: Anatomy) -> str | None:
    parameters, trainable = anatomy.workload.parameters, anatomy.workload.trainable_parameters
    if parameters is None:
        return None
    text = f"{units.count(parameters)} parameters"
    return text if trainable in (None, parameters) else f"{text} ({units.count(trainable)} trained)"


def _batch(anatomy: Anatomy) -> str | None:
    batch, length = anatomy.workload.batch, anatomy.workload.sequence_length
    if batch is None:
        return None if length is None else f"length {units.count(length)}"
    return f"batch {units.count(batch)}" + ("" if length is None else f", length {units.count(length)}")


def _device(anatomy: Anatomy) -> str:
    environment = anatomy.environment
    if environment.device_kind == "cpu" and environment.processor is None and environment.device_count:
        return "the host only; the trace has no event of its GPU"
    if environment.device_kind == "cpu":
        threads = None if environment.host_threads is None else f"{environment.host_threads} threads"
        about = _list((environment.processor, threads))
        return f"the CPU{about and f' ({about})'}; no GPU took part"
    if environment.device is None:
        return environment.device_kind or "not named in the trace"
    memory = None if environment.device_memory_bytes is None else units.size(environment.device_memory_bytes)
    many = f"{environment.device_count} in the machine" if (environment.device_count or 1) > 1 else None
    return _list((environment.device, memory, many))


def _step(anatomy: Anatomy) -> list[Fact]:
    step, timeline, device = anatomy.step, anatomy.timeline, anatomy.device
    phases = (("forward", step.forward_ns), ("backward", step.backward_ns), ("optimizer", step.optimizer_ns))
    hidden = (("communication", timeline.communication_ns), ("of it exposed", timeline.exposed_communication_ns),
              ("exposed memcpy", timeline.exposed_memcpy_ns))  # fmt: skip
    return [
        ("step", _list((_wall(anatomy), _rate(anatomy)))),
        ("steps", _spread(anatomy)),
        ("phases", _list(f"{name} {_part(ns, step.wall_ns)}" for name, ns in phases if ns is not None)),
        ("framework", _framework(step)),
        ("profiler", _profiler(step)),
        ("device", _busy(anatomy)),
        ("overlap", _list(f"{name} {_part(ns, timeline.window_ns)}" for name, ns in hidden if ns)),
        ("idle", _idle(timeline)),
        ("launches", _launches(timeline)),
        ("estimates", _estimates(anatomy)),
        ("ceilings", _ceilings(anatomy)),
        ("reached", _reached(device)),
    ]


def _reached(device: DeviceFigures) -> str:
    """The shares of the peak that contractions reach over the step, of which peak, and how much of them it covers."""
    covered = device.mfu_covered
    if device.mfu is None:
        known = covered is not None and covered < COVERED_LEAST and bool(device.peak_flops_per_second)
        return f"no MFU: FLOPs are known of {units.share(covered, 1)} of the contractions' time" if known else ""
    least = "" if covered in (None, 1) else "≥ "
    reached = (("MFU", device.mfu), ("HFU", device.hfu))
    shares = _list(f"{name} {least}{units.share(part, 1)}" for name, part in reached if part is not None)
    peak = f" of the {device.mfu_dtype} peak" if device.mfu_dtype else ""
    return f"{shares}{peak}" + (f", over {units.share(covered, 1)} of the contractions' time" if least else "")


def _ceilings(anatomy: Anatomy) -> str:
    """The peaks that the trace's work is held against, and where they are from."""
    device, bandwidth = anatomy.device, anatomy.device.bandwidth_bytes_per_second
    if device.source is None:
        return (device.no_ceilings or "").removeprefix("no ceilings: ")
    contractions = [row for row in anatomy.operators if row.operator_class is OperatorClass.TENSOR_CONTRACTION]
    types = {(row.compute_type or "").removeprefix("3 x ") for row in contractions}
    unsure = units.duration(device.unsure_ns) if device.unsure_ns else None
    peaks = [
        f"{units.flop_rate(peak)} {name}"
        for name, peak in device.peak_flops_per_second.items()
        if name in (device.mfu_dtype, *types) or any(f"{name}[" in row.signature for row in contractions)
    ]
    others = device.vector_flops_per_second.get("float32")
    return _list(
        (
            *peaks,
            None if others is None else f"{units.flop_rate(others)} vector float32",
            None if bandwidth is None else units.byte_rate(bandwidth),
            f"by {device.source}",
            unsure and f"{unsure} of products may be float32 or tf32 and have no bound",
        )
    )


def _idle(timeline: Timeline) -> str:
    """What the idle time of the window was spent on."""
    parts = (
        ("host-bound", timeline.host_idle_ns),
        ("stream waits", timeline.stream_idle_ns),
        ("other", timeline.other_idle_ns),
        ("busy with another step's work", timeline.outside_ns),
    )
    return _list(f"{name} {_part(ns, timeline.window_ns)}" for name, ns in parts if ns)


def _launches(timeline: Timeline) -> str:
    """How many kernels the host launched, what that cost it, and how many were hardly worth it."""
    launching = timeline.launching
    if launching is None or not launching.calls:
        return ""
    mean = launching.delay_ns // launching.delayed if launching.delayed else None
    kernels, tiny = launching.kernels, units.duration(launching.tiny_below_ns)
    return _list(
        (
            f"{units.count(launching.calls)} in {units.duration(launching.call_ns)} of the host",
            None if mean is None else f"mean delay {units.duration(mean)}",
            f"{units.share(launching.tiny_kernels, kernels)} of the kernels below {tiny} take"
            f" {units.share(launching.tiny_kernel_ns, launching.kernel_ns)} of their time"
            if kernels
            else None,
        )
    )


def _estimates(anatomy: Anatomy) -> str:
    """Kineto's estimates of how full the device was, and the time on tensor cores by kernel names."""
    device, tensor = anatomy.device, anatomy.device.tensor_core_ns
    kernel_time = anatomy.timeline.launching.kernel_ns if anatomy.timeline.launching else None
    fractions = (("SM efficiency", device.sm_efficiency), ("occupancy", device.occupancy))
    return _list(
        (
            *(f"{name} {units.share(part, 1)}" for name, part in fractions if part is not None),
            f"tensor cores {units.share(tensor, kernel_time)} of kernel time"
            if tensor is not None and kernel_time
            else None,
        )
    )


def _wall(anatomy: Anatomy) -> str | None:
    """The step with and without the profiler, and the difference where it is one of the profiler."""
    step = anatomy.step
    if step.wall_ns is None or step.unprofiled_wall_ns is None:
        known = step.wall_ns if step.unprofiled_wall_ns is None else step.unprofiled_wall_ns
        name = "profiled" if step.unprofiled_wall_ns is None else "plain"
        return None if known is None else f"{units.duration(known)} {name}"
    both = f"{units.duration(step.unprofiled_wall_ns)} plain, {units.duration(step.wall_ns)} profiled"
    if step.profiler_ns is None:
        one = step.unprofiled_count in (None, 1)
        why = "one plain step cannot tell the difference" if one else "no difference that can be told from noise"
        return f"{both} ({why})"
    return f"{both} ({units.change(step.wall_ns, step.unprofiled_wall_ns)})"


def _framework(step: Step) -> str:
    """On the CPU what is left of the step beside operators and, where that could be told, the profiler."""
    if step.framework_ns is None:
        return ""
    what = "dispatch, autograd, Python"
    if step.profiler_ns is None:
        what += " and what the profiler itself costs"
    return f"{_part(step.framework_ns, step.wall_ns)}: {what}"


def _profiler(step: Step) -> str:
    """What is taken for the profiler's own time on the CPU."""
    if step.framework_ns is None or step.profiler_ns is None:
        return ""
    return f"{_part(step.profiler_ns, step.wall_ns)}: an estimate of its own time outside operators, not in framework"


def _rate(anatomy: Anatomy) -> str | None:
    rate = anatomy.step.samples_per_second
    return None if rate is None else units.rate(rate, "samples")


def _spread(anatomy: Anatomy) -> str:
    step = anatomy.step
    if step.count < 2 and (step.unprofiled_count or 0) < 2:
        return ""
    spans = (("plain", step.unprofiled_wall_min_ns, step.unprofiled_wall_max_ns),
             ("profiled", step.wall_min_ns, step.wall_max_ns))  # fmt: skip
    ranges = (
        f"{name} {units.duration(low)} to {units.duration(high)}"
        for name, low, high in spans
        if None not in (low, high) and low != high
    )
    many = f"{units.count(step.count)} profiled, figures are of the middle one" if step.count > 1 else "1 profiled"
    plain = f"{units.count(step.unprofiled_count)} plain" if (step.unprofiled_count or 0) > 1 else None
    return _list((plain, many, *ranges))


def _busy(anatomy: Anatomy) -> str:
    """Busy and idle time of an accelerator in a step, or in the whole window where no step is known."""
    step, timeline = anatomy.step, anatomy.timeline
    busy, wall = (step.busy_ns, step.wall_ns) if step.wall_ns else (timeline.busy_ns, timeline.window_ns)
    if anatomy.environment.device_kind == "cpu" or busy is None or not wall:
        return ""
    kernels = None if step.kernel_time_ns is None else f"kernel time {units.duration(step.kernel_time_ns)}"
    return _list((f"busy {_part(busy, wall)}", f"idle {_part(wall - busy, wall)}", kernels))


def _ledger(anatomy: Anatomy) -> list[Fact]:
    ledger = anatomy.ledger
    if not ledger.device_work_ns:
        return []
    parts = (
        ("linked to operators", ledger.linked_ns),
        ("launched by graphs", ledger.graph_launched_ns),
        ("without launch record", ledger.no_launch_record_ns),
        ("outside the window", ledger.outside_window_ns),
    )
    inside = ledger.device_work_ns - ledger.outside_window_ns
    work = " + ".join(f"{units.duration(ns)} {name}" for name, ns in parts if ns)
    known = (("classed", ledger.classed_ns), ("costed", ledger.costed_ns), ("unknown", ledger.unknown_ns))
    return [
        ("ledger", f"device work {units.duration(ledger.device_work_ns)} = {work}"),
        ("", _list(f"{name} {units.share(ns, inside)}" for name, ns in known)),
        ("unknown", _names(_unknown(anatomy), inside)),
        ("no formula", _names(_uncosted(anatomy), inside)),
        ("counting", "; ".join(f"{name.replace('_', '-')}: {value}" for name, value in anatomy.conventions.items())),
    ]


def _unknown(anatomy: Anatomy) -> dict[str, int]:
    """Time by name of what no rule knows."""
    return _times(
        (row for row in anatomy.operators if row.operator_class is OperatorClass.UNKNOWN),
        (row for row in anatomy.kernels if row.operator_class is OperatorClass.UNKNOWN),
    )


def _uncosted(anatomy: Anatomy) -> dict[str, int]:
    """Time by name of the work whose class is known and whose FLOPs are not."""
    return _times(
        (row for row in anatomy.operators if row.operator_class is not OperatorClass.UNKNOWN and row.flops is None),
        (row for row in anatomy.kernels if row.operator_class is not OperatorClass.UNKNOWN),
    )


def _times(operators: Iterable[OperatorRow], kernels: Iterable[KernelRow]) -> dict[str, int]:
    """Time by name of operators, and of the kernels among these that no operator launched."""
    times: Counter[str] = Counter()
    for row in operators:
        times[row.operator] += row.time_ns
    for kernel in kernels:
        if not kernel.operators:
            times[kernel.kernel] += kernel.time_ns
    return times


def _names(times: dict[str, int], whole_ns: int) -> str:
    """The names that take most, each with its share of the time."""
    first = sorted(times, key=lambda name: -times[name])
    more = len(first) - _LISTED
    listed = [f"{cut(name, _NAME_WIDTH)} {units.share(times[name], whole_ns)}" for name in first[:_LISTED]]
    return _list((*listed, f"{more} more" if more > 0 else None))


def _part(ns: int, whole_ns: int | None) -> str:
    return f"{units.duration(ns)} ({units.share(ns, whole_ns)})" if whole_ns else units.duration(ns)


def _list(parts: Iterable[str | None]) -> str:
    return ", ".join(part for part in parts if part)
