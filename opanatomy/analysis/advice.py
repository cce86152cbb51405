"""Find what to change in a step: each rule looks for one cost, bounds what changing it could gain, or stays silent.

Rules read the finished figures of a report, so that ranks, old reports and traces of any writer get the same advice. A
gain is the most that a change could save of the mean step: what is left of it afterwards is known only by trying. Gains
of several rules may overlap: the same idle time can end with fewer launches or with fewer waits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.analysis.aggregate import is_fusible
from opanatomy.analysis.costs import Costs, costs_of, input_of_run, loading, steps_of, steps_of_window
from opanatomy.records.anatomy import (
    OUT_OF_MEMORY,
    PYTHON_STACK,
    WORTH,
    Advice,
    Anatomy,
    Evidence,
    IdleRow,
    OperatorRow,
)
from opanatomy.records.signature import Tensor
from opanatomy.records.taxonomy import FLOAT32, ITEM_SIZE, TF32, IdleCause, OperatorClass, Phase
from opanatomy.records.workload import RunClock, Workload

CLASS: Final = OperatorClass
_NS: Final = 1e9


class View(Struct, frozen=True, kw_only=True):
    """An anatomy, the parts of its time, and what rules share."""

    anatomy: Anatomy
    costs: Costs
    #: Operators of attention that is written out, which have a rule of their own.
    attention: frozenset[int]

    @property
    def step_ns(self) -> int:
        """Return the mean step without other steps' work."""
        return round(self.costs.whole_ns / steps_of_window(self.anatomy))

    def idle(self, *causes: IdleCause) -> tuple[int, list[IdleRow]]:
        """Return the idle time of these causes in a mean step, and their rows, the longest first."""
        rows = [row for row in self.costs.causes if row.cause in causes]
        return round(sum(row.time_ns for row in rows) / steps_of_window(self.anatomy)), rows

    def per_step(self, ns: float) -> int:
        """Return a sum over all steps as that of a mean step."""
        return round(ns / steps_of(self.anatomy))

    @property
    def on_cpu(self) -> bool:
        """Return whether the operators ran on the CPU."""
        return self.anatomy.environment.device_kind == "cpu"

    @property
    def has_backward(self) -> bool:
        """Return whether the step trains."""
        return any(row.phase is Phase.BACKWARD for row in self.anatomy.classes)


class Rule(Struct, frozen=True, kw_only=True):
    """A rule: its stable `id`, what it looks for, how its gain is bounded, when it stays silent, how it is found."""

    id: str
    title: str
    looks_for: str
    bound: str
    silent: str
    find: Callable[[View], Iterable[Advice]]


def with_advice(anatomy: Anatomy) -> Anatomy:
    """Return the anatomy with what its figures advise, and advice of other rooms that it has, largest gain first."""
    worked = any(row.time_ns for row in anatomy.classes)
    if anatomy.environment.host_only or not (worked or anatomy.memory.is_snapshot):
        return anatomy
    costs = costs_of(anatomy)
    view = View(anatomy=anatomy, costs=costs, attention=frozenset(_scores(anatomy.operators)))
    found = [
        replace(advice, id=rule.id, step_ns=advice.step_ns or view.step_ns)
        for rule in RULES for advice in rule.find(view)
    ]  # fmt: skip
    others = [advice for advice in anatomy.advice if advice.id not in {rule.id for rule in RULES}]
    return replace(anatomy, advice=ordered((*others, *found)))


def ordered(advice: Iterable[Advice]) -> tuple[Advice, ...]:
    """Return the advice worth following, in order: what makes a step fit, then time by its gain, then memory."""
    worth = [each for each in advice if each.gain_ns is None or each.gain_ns >= WORTH * (each.step_ns or 1)]
    return tuple(sorted(worth, key=_rank))


def _rank(advice: Advice) -> tuple[Any, ...]:
    saved = -(advice.gain_bytes or 0)
    if advice.id == OUT_OF_MEMORY:
        return 0, advice.fits is False, saved
    if advice.gain_ns is not None:  # what only the measurement takes comes after what the step does
        return 1 + (advice.id == "profiler"), -advice.gain_ns, advice.id, advice.subject or ""
    return 3, saved, advice.subject or ""


def ns(value: float) -> Evidence:
    """Return a duration."""
    return Evidence(value=round(value), unit="ns")


def part(value: float) -> Evidence:
    """Return a share."""
    return Evidence(value=value, unit="fraction")


def count(value: float, noun: str) -> Evidence:
    """Return a number of things."""
    return Evidence(value=round(value), unit=noun)


def name(text: str) -> Evidence:
    """Return a name, or words."""
    return Evidence(text=text)


# ----- time in which the device has nothing to do


_GRAPHS: Final = 'torch.compile(model, mode="reduce-overhead"), which launches CUDA graphs'
_FUSES: Final = "torch.compile(model), which launches fewer kernels"
#: The gain is that of the step as it is; by sample a larger batch also divides what each operator costs in itself.
_LARGER: Final = "a larger batch, which may gain more than that for each sample"
_IN_PYTHON: Final = "less Python between operators: loops over tensors, logging, metrics"


def _launches(view: View) -> Iterator[Advice]:
    gain, rows = view.idle(IdleCause.OPERATORS, IdleCause.PYTHON)
    launching = view.anatomy.timeline.launching
    if not gain or launching is None or not launching.calls or not launching.kernels:
        return
    plain = view.anatomy.step.unprofiled_wall_ns
    if plain:  # the profiler slows the host: no more than the plain step has beyond its busy time
        gain = min(gain, max(plain - round(view.anatomy.timeline.busy_ns / steps_of_window(view.anatomy)), 0))
    calls = view.per_step(launching.calls)
    compiled = bool(view.anatomy.workload.compiled)
    python = 2 * rows[0].time_ns >= sum(row.time_ns for row in rows) and rows[0].cause is IdleCause.PYTHON
    tries = (*((_IN_PYTHON,) if python else ()), _GRAPHS, *(() if compiled else (_FUSES,)), _LARGER)
    yield Advice(
        id="", gain_ns=gain,
        why="the host makes {calls} a step, {each} of idle time for each; {tiny_share} of the kernels are shorter than"
        " {tiny}",
        figures={
            "calls": count(calls, "launch"), "each": ns(gain / max(calls, 1)),
            "tiny_share": part(launching.tiny_kernels / launching.kernels), "tiny": ns(launching.tiny_below_ns),
        },
        tries=tries, option=None if compiled else "--compile", technique=None if compiled else "compile",
        section="host",
    )  # fmt: skip


def _framework(view: View) -> Iterator[Advice]:
    if not view.costs.framework_ns:
        return
    share = view.costs.framework_ns / view.costs.whole_ns
    gain = round(share * view.step_ns)
    plain = view.anatomy.step.unprofiled_wall_ns
    work = sum(row.time_ns for row in view.anatomy.classes) / steps_of(view.anatomy)
    if plain:
        loading_ns = view.costs.input_ns / steps_of_window(view.anatomy)  # which is another rule's
        gain = min(gain, max(round(plain - work - loading_ns), 0))
    calls = view.per_step(sum(row.calls for row in view.anatomy.operators))
    compiled = bool(view.anatomy.workload.compiled)
    yield Advice(
        id="", gain_ns=gain, why="{calls} of operators a step, of {each} each, and {between} between two of them",
        figures={
            "calls": count(calls, "call"), "each": ns(work / max(calls, 1)), "between": ns(gain / max(calls, 1)),
        },
        tries=(*(() if compiled else ("torch.compile(model), which calls fewer operators",)), _LARGER),
        option=None if compiled else "--compile", technique=None if compiled else "compile", section="host",
    )  # fmt: skip


#: Ranges in which a batch is copied to the device.
_COPIES: Final = re.compile(r"copy|to_(?:gpu|device|cuda)|h2d|htod", re.IGNORECASE)


def _of_run(run: RunClock, value: int) -> int:
    """Return a sum over the run's steps as that of its mean step."""
    return round(value / run.steps)


def _input(view: View) -> Iterator[Advice]:
    gain, rows = view.idle(IdleCause.INPUT)
    call = rows[0].name if rows else None
    for row in loading(view.anatomy)[:1]:  # those below it are parts of it
        gain, call = view.per_step(row.total_ns), row.name
    waits, step_ns = "the device waits {gain} of each step for its input", None
    run, share = view.anatomy.run, input_of_run(view.anatomy)
    if run is not None and share is not None:
        gain, step_ns = _of_run(run, run.input_ns), _of_run(run, run.wall_ns)
        waits = "the step waits {gain} for its input, in the mean of the run's {steps}"
    if not gain:
        return
    figures = {"gain": ns(gain), "call": name(call or "")}
    if run is not None and share is not None:
        figures["steps"] = count(run.steps, "step")
    single = "SingleProcess" in (call or "")
    workers = "DataLoader(num_workers=4, persistent_workers=True)" if single else "more workers of the DataLoader"
    pinned = () if view.on_cpu else ("pin_memory=True",)
    tries = (f"{workers}: batches are made as the device works", *pinned, "less work for a batch")
    if _COPIES.search(call or ""):
        tries = ("pin_memory=True and .to(device, non_blocking=True)", "the next batch copied on a stream of its own")
    yield Advice(
        id="", gain_ns=gain, step_ns=step_ns, subject=call,
        why=waits + (", most of it in {call}" if call else ""),
        figures=figures,
        tries=tries, section="idle" if not view.on_cpu else "host" if share is None else "whole-run",
    )  # fmt: skip


def _synchronizations(view: View) -> Iterator[Advice]:
    waiting = [row for row in view.anatomy.host if row.waits and row.caller is not None]
    callers: dict[str, list[int]] = {}
    for row in waiting:
        sums = callers.setdefault(row.caller or "", [0, 0])
        sums[0], sums[1] = sums[0] + row.calls, sums[1] + row.total_ns
    if not callers:
        return
    drained = round((view.anatomy.timeline.drained_ns or 0) / steps_of_window(view.anatomy))
    gain = max(drained, view.idle(IdleCause.SYNCHRONIZATION)[0])
    caller, (calls, spent) = max(callers.items(), key=lambda item: (item[1][1], item[0]))
    yield Advice(
        id="", gain_ns=gain, subject=caller,
        why="the host waits for the device in {calls} a step, most of it in {caller}, and then has nothing queued",
        figures={
            "calls": count(view.per_step(sum(sums[0] for sums in callers.values())), "call"),
            "caller": name(caller.removeprefix("aten::")), "of_caller": count(view.per_step(calls), "call"),
            "spent": ns(view.per_step(spent)),
        },
        tries=(_INSTEAD.get(caller.removeprefix("aten::"), _KEEP_ON_DEVICE), "fewer prints and logs of values"),
        section="host",
    )  # fmt: skip


_KEEP_ON_DEVICE: Final = "keep the value on the device, and read it once in many steps"
_INSTEAD: Final = {
    "item": "no .item(), float() or if on a tensor inside the step: read values once in many steps",
    "_local_scalar_dense": "no .item(), float() or if on a tensor inside the step: read values once in many steps",
    "is_nonzero": "no if on a tensor inside the step: torch.where keeps it on the device",
    "nonzero": "masks instead of indices: torch.where(mask, a, b) for x[mask]",
    "index": "masks instead of indices: torch.where(mask, a, b) for x[mask]",
    "masked_select": "masks instead of indices: torch.where(mask, a, b) for x[mask]",
    "copy_": "copies with non_blocking=True, from pinned memory",
    "to": "copies with non_blocking=True, from pinned memory",
    "_to_copy": "copies with non_blocking=True, from pinned memory",
}


#: A step that frees memory of the driver so often has no cache.
_UNCACHED: Final = 100
_EXPANDABLE: Final = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_CACHING: Final = "PYTORCH_NO_CUDA_MEMORY_CACHING (or _HIP_) unset, if it is set, so that torch keeps its memory"


def _allocator(view: View) -> Iterator[Advice]:
    gain, rows = view.idle(IdleCause.ALLOCATOR)
    step, like = view.anatomy.step, steps_of_window(view.anatomy)
    # Steps that are set aside may be so because of it: then the mean over all steps is the figure.
    aside_ns = step.aside_idle_ns.get(IdleCause.ALLOCATOR, 0)
    every = round((gain * like + aside_ns * step.aside_count) / (like + step.aside_count))
    if step.aside_count and every > gain:
        whole = round((view.step_ns * like + (step.aside_wall_ns or 0) * step.aside_count) / (like + step.aside_count))
        yield Advice(
            id="", gain_ns=every, step_ns=whole,
            why="{steps} of {all}, which the other figures leave out, spend {aside} on calls of the allocator to the"
            " driver; the mean of all is {whole}",
            figures={
                "aside": ns(aside_ns), "steps": count(step.aside_count, "step"), "whole": ns(whole),
                "all": Evidence(value=round(like + step.aside_count), unit=""),
            },
            tries=(_EXPANDABLE, "a smaller batch, if memory runs out and the cache is given back"), section="step",
        )  # fmt: skip
        return
    if not gain:
        return
    row = rows[0]
    frees = "Free" in (row.name or "")
    calls = (row.events or 0) / like
    cached = "no torch.cuda.empty_cache() in the loop" if frees else "one step before measuring, to reserve the memory"
    yield Advice(
        id="", gain_ns=gain, subject=row.name,
        why="the allocator asks the driver {calls} a step ({call}): {gain} of idle time",
        figures={"calls": count(calls, "time"), "call": name(row.name or "?"), "gain": ns(gain)},
        tries=(_CACHING if frees and calls >= _UNCACHED else _EXPANDABLE, cached), section="idle",
    )  # fmt: skip


def _cold_start(view: View) -> Iterator[Advice]:
    gain, rows = view.idle(IdleCause.SLOW_LAUNCH)
    if not gain:
        return
    row = rows[0]
    yield Advice(
        id="", gain_ns=gain, subject=row.name,
        why="slow calls that load or first launch kernels take {gain} of the step"
        + (", most of it {call}" if row.name else ""),
        figures={"gain": ns(gain), "call": name(row.name or "")},
        tries=("steps before the recorded ones: schedule(wait=1, warmup=3, active=3)",), section="idle",
    )  # fmt: skip


def _compilation(view: View) -> Iterator[Advice]:
    run = view.anatomy.run
    if run is not None and run.recompilations:
        most = run.recompilations[0]
        gain = _of_run(run, run.compiling_ns)
        yield Advice(
            id="", gain_ns=gain, step_ns=_of_run(run, run.wall_ns), subject=most.place,
            why="code is compiled for {gain} of the mean of the run's {steps}, {times} because of {reason} at {place}",
            figures={
                "gain": ns(gain), "steps": count(run.steps, "step"), "times": count(most.count, "time"),
                "reason": name(most.reason), "place": name(most.place),
            },
            tries=("torch.compile(dynamic=True) where sizes vary", "inputs of few sizes, padded to them"),
            section="whole-run",
        )  # fmt: skip
        return
    gain, rows = view.idle(IdleCause.COMPILATION)
    if not gain:
        return
    yield Advice(
        id="", gain_ns=gain, subject=rows[0].name, why="code is compiled for {gain} of the step",
        figures={"gain": ns(gain)},
        tries=(
            "steps before the recorded ones, until nothing compiles", "TORCH_LOGS=recompiles says what compiles again",
            "torch.compile(dynamic=True) where sizes vary",
        ),
        section="idle",
    )  # fmt: skip


def _profiler(view: View) -> Iterator[Advice]:
    gain, rows = view.idle(IdleCause.PROFILER)
    if not gain:
        return
    stack = any(row.name == PYTHON_STACK for row in rows)
    of_stack = "for {gain} the device waits for Python, slowed by recording its stack: how much is not known"
    why = of_stack if stack else "for {gain} the device waits for the profiler's records"
    yield Advice(
        id="", gain_ns=gain,
        why=why,
        figures={"gain": ns(gain)},
        tries=("with_stack=False, with_modules=False" if stack else "fewer recorded steps",), section="idle",
    )  # fmt: skip


# ----- communication


_OVERLAP: Final = {
    "all_reduce": ("DDP(bucket_cap_mb=...): smaller buckets begin earlier, larger ones transfer faster",
                   "DDP(gradient_as_bucket_view=True, static_graph=True)"),
    "all_gather": ("FSDP prefetch: set_modules_to_forward_prefetch, set_modules_to_backward_prefetch",
                   "reshard_after_forward=False where memory is free"),
    "reduce_scatter": ("larger or fewer FSDP groups, so that each hides behind the next one's backward",),
    "all_to_all": ("work that does not need the result between the start of the all-to-all and its wait",),
}  # fmt: skip


def _exposed(view: View) -> Iterator[Advice]:
    waiting = view.costs.waiting_ns or 0
    gain = round(max(view.costs.exposed_ns - waiting, 0) / steps_of_window(view.anatomy))
    communication = view.anatomy.communication
    if not gain or communication is None or not communication.phases:
        return
    phase = max(communication.phases, key=lambda row: row.exposed_ns)
    rows = [row for row in communication.modules if row.phase is phase.phase]
    longest = max(rows, key=lambda row: row.exposed_ns, default=None)
    collective = None if longest is None else longest.collective
    tries = _OVERLAP.get(collective or "", ("other work between the start of the collective and its wait",))
    if phase.phase is Phase.OPTIMIZER:  # what is gathered or reduced there is needed by the next step at the earliest
        tries = ("async_op=True, and a wait where the result is first used",)
    yield Advice(
        id="", gain_ns=gain, subject=collective,
        why=("besides waiting for other ranks, " if waiting else "")
        + "nothing else runs for {gain} of the collectives, the largest part launched in {phase}"
        + (" ({collective})" if collective else ""),
        figures={
            "gain": ns(gain), "phase": name(phase.phase.value),
            "collective": name(collective or ""),
            "running": ns(communication.running_ns / steps_of(view.anatomy)),
        },
        tries=tries, section="communication",
    )  # fmt: skip


def _waiting(view: View) -> Iterator[Advice]:
    waiting = view.anatomy.waiting
    straggler = None if waiting is None else waiting.straggler
    if waiting is None or straggler is None or not view.costs.waiting_ns:
        return
    share = straggler.charged_ns / max(straggler.waiting_ns, 1)
    who = f"rank {straggler.rank}" if straggler.rank is not None else straggler.trace or "?"
    before = straggler.before_ns or 0
    early = 2 * before >= straggler.charged_ns
    reached = before / max(straggler.waiting_ns, 1) if early else share
    gain = round(min(reached, 1.0) * view.costs.waiting_ns / steps_of_window(view.anatomy))
    computes = straggler.computing_longer_ns >= straggler.idle_longer_ns
    if early:
        why, tries = (
            "; {early} of that was there when its step began",
            ("what this rank does between steps: input, logging, checkpoints",),
        )
    elif computes and straggler.computing_longer_ns:
        why, tries = (
            "; it computes longer than the others",
            ("even shares of the work: lengths of samples, tables, experts",),
        )
    else:
        why, tries = "", ("what this rank's host does while the others wait: opanatomy analyze on its trace",)
    yield Advice(
        id="", gain_ns=gain, subject=who, why="{share} of all waiting is for {who}" + why,
        figures={
            "share": part(share), "who": name(who), "early": part(before / max(straggler.charged_ns, 1)),
        },
        tries=tries, section="waiting",
    )  # fmt: skip


# ----- copies from the host


def _pinning(view: View) -> Iterator[Advice]:
    rows = [row for row in view.anatomy.kernels if "HtoD" in row.kernel and "Pageable" in row.kernel]
    spent = view.per_step(sum(row.time_ns for row in rows))
    exposed = round((view.anatomy.timeline.exposed_memcpy_ns or 0) / steps_of_window(view.anatomy))
    gain = min(spent, exposed)
    if not gain:
        return
    yield Advice(
        id="", gain_ns=gain, why="{copies} a step are from pageable memory, {exposed} of it with nothing else running",
        figures={"copies": count(view.per_step(sum(row.count for row in rows)), "transfer"), "exposed": ns(gain)},
        tries=("DataLoader(pin_memory=True) and .to(device, non_blocking=True)",), section="kernels",
    )  # fmt: skip


# ----- work that takes longer than it must


def _time_beyond(rows: Sequence[OperatorRow]) -> int:
    """Return the time beyond the bounds; of an operator whose parts have rows of their own it may be in these."""
    if any(row.part_of for row in rows):
        return max(sum(row.bounded_ns - (row.bound_ns or 0) for row in rows), 0)
    return sum(max(row.bounded_ns - row.bound_ns, 0) for row in rows if row.bound_ns is not None)


def _far_from_bound(view: View) -> Iterator[Advice]:
    groups: dict[tuple[str, Phase], list[OperatorRow]] = {}
    chained = {row.phase for row in view.anatomy.chains if view.per_step(row.time_ns) >= WORTH * view.step_ns}
    for place, row in enumerate(view.anatomy.operators):
        if row.bound_ns is None or place in view.attention or row.operator_class is CLASS.COMMUNICATION:
            continue
        if row.phase not in chained or not is_fusible(row.operator_class, row.operator):
            groups.setdefault((row.part_of or row.operator, row.phase), []).append(row)
    for (operator, phase), rows in groups.items():
        gain = view.per_step(_time_beyond(rows))
        bounded, bound = sum(row.bounded_ns for row in rows), sum(row.bound_ns or 0 for row in rows)
        if gain < WORTH * view.step_ns or not bounded:
            continue
        where = "" if phase is Phase.OTHER else f" in {phase.value}"
        yield Advice(
            id="", gain_ns=gain, subject=f"{operator}{where}",
            why=f"{{operator}}{where} takes {{time}}, {{bound}} at the device's ceilings ({{reached}} of them)",
            figures={
                "operator": name(operator.removeprefix("aten::")), "time": ns(view.per_step(bounded)),
                "bound": ns(view.per_step(bound)), "reached": part(bound / bounded),
            },
            tries=tuple(_nearer(view, rows)), section="roofline",
        )  # fmt: skip


def _nearer(view: View, rows: Sequence[OperatorRow]) -> Iterator[str]:
    """Yield what may bring an operator nearer to its bound, by what is known of its largest calls."""
    largest = max(rows, key=lambda row: _time_beyond([row]))
    tensors = [tensor for tensor in largest.signature.record.tensors() if tensor.dtype is not None]
    if largest.operator_class is not CLASS.TENSOR_CONTRACTION:
        compiled = view.anatomy.workload.compiled or largest.operator.startswith("triton")
        yield _TUNED if compiled else "torch.compile(model), which fuses it with its neighbours"
        return
    odd = _misaligned(tensors)
    if odd is not None and not view.on_cpu:
        size, to = odd
        yield f"rows padded to a multiple of {to}: they have {size} elements"
    if "conv" in largest.operator and not view.on_cpu:
        yield "model.to(memory_format=torch.channels_last)"
    if (largest.bound_ns or 0) / max(largest.calls, 1) < _SHORT_NS and not view.on_cpu:
        yield "a larger batch: its calls are too small to fill the device"
    yield _OTHER_ATTENTION if "attention" in largest.operator else _TUNED


_TUNED: Final = 'another kernel: torch.compile(model, mode="max-autotune")'
_OTHER_ATTENTION: Final = 'another kernel of attention: attn_implementation="flash_attention_2" or "flex_attention"'
#: A bound of a call below this is that of one too small for a GPU.
_SHORT_NS: Final = 10_000


def _misaligned(tensors: Sequence[Tensor]) -> tuple[int, int] | None:
    """Return a length of the rows of a matrix that tensor cores cannot take whole, and the multiple that they can.

    Rows of 16 bytes begin at aligned addresses if their length is a multiple of 16 bytes; how many there are does not
    matter.
    """
    for tensor in tensors:
        multiple = 16 // (ITEM_SIZE.get(tensor.dtype or "") or 16)
        if len(tensor.shape) >= 2 and multiple > 1 and tensor.shape[-1] > multiple and tensor.shape[-1] % multiple:
            return tensor.shape[-1], multiple
    return None


def _float32(view: View) -> Iterator[Advice]:
    peaks, bandwidth = view.anatomy.device.peak_flops_per_second, view.anatomy.device.bandwidth_bytes_per_second
    half = next((kind for kind in ("bfloat16", "float16") if peaks.get(kind)), None)
    if half is None or not bandwidth or view.anatomy.workload.amp:
        return
    spent = gain = 0.0
    kinds: dict[str, int] = {}
    for row, kind in _float32_products(view):
        kinds[kind] = kinds.get(kind, 0) + row.time_ns
        faster = 1 - min(peaks.get(kind, peaks[half]) / peaks[half], 1.0)
        if row.bound_ns:
            moved = ((row.read_bytes or 0) + (row.written_bytes or 0)) / 2
            least = max((row.flops or 0) / peaks[half], moved / bandwidth) * _NS
            faster = 1 - min(least / row.bound_ns, 1.0)
        spent, gain = spent + row.time_ns, gain + row.time_ns * faster
    if not gain:
        return
    tries = [
        f'torch.autocast("{"cpu" if view.on_cpu else "cuda"}", torch.{half})'
        + (", with a GradScaler" if half == "float16" and view.has_backward else "")
    ]
    if peaks.get(TF32) and FLOAT32 in kinds:
        tries.append('torch.set_float32_matmul_precision("high"), which multiplies in tf32')
    most = max(kinds, key=lambda kind: kinds[kind])
    others = "" if len(kinds) == 1 else ", most of it in {most}"
    yield Advice(
        id="", gain_ns=view.per_step(gain),
        why=f"products in {{kinds}} take {{time}}{others}; the peak of {{half}} is {{peak}}, that of {{most}} {{now}}",
        figures={
            "kinds": name(" and ".join(sorted(kinds))), "time": ns(view.per_step(spent)), "half": name(half),
            "peak": Evidence(value=peaks[half], unit="flop/s"), "most": name(most),
            "now": Evidence(value=peaks.get(most, 0.0), unit="flop/s"),
        },
        tries=tuple(tries), option=f"--amp {'bf16' if half == 'bfloat16' else 'fp16'}",
        technique="amp" if half == "bfloat16" else "amp-fp16", section="roofline",
    )  # fmt: skip


def _float32_products(view: View) -> Iterator[tuple[OperatorRow, str]]:
    """Yield the products of float32 operands, each with the type that they were computed in.

    Kernels' names say it; in a trace without shapes and without names that say it, the device's tensor cores rest.
    """
    device, launching = view.anatomy.device, view.anatomy.timeline.launching
    products = [row for row in view.anatomy.operators if row.operator_class is CLASS.TENSOR_CONTRACTION]
    resting = device.tensor_core_ns == 0 and not device.tensor_core_unknown_ns and launching is not None
    for row in products:
        dtype = row.signature.record.compute_dtype
        if row.compute_type in (FLOAT32, TF32) or (dtype == FLOAT32 and (view.on_cpu or row.bound_ns is not None)):
            yield row, TF32 if row.compute_type == TF32 else FLOAT32
        elif dtype is None and resting:
            yield row, FLOAT32


_SOFTMAX: Final = re.compile(r"softmax")


def _scores(operators: Sequence[OperatorRow]) -> Iterator[int]:
    """Yield the rows of attention that is written out: all but products on a matrix of scores, that of a softmax.

    Scores have a row of queries and one of keys for each head: four sizes, or three of a batch of heads, of which the
    softmax is over the last.
    """
    shapes = {
        _largest(row)
        for row in operators
        if _SOFTMAX.search(row.operator) and "log_softmax" not in row.operator and not row.operator.startswith("triton")
    }
    shapes = {shape for shape in shapes if len(shape) in (3, 4) and shape[-2] > 1 and shape[-1] > 1}
    multiplied = {
        (tensor.shape[-2], tensor.shape[-1])
        for row in operators if row.operator in ("aten::bmm", "aten::baddbmm")
        for tensor in row.signature.record.tensors() if len(tensor.shape) == 3
    }  # fmt: skip
    shapes = {shape for shape in shapes if shape[-2:] in multiplied}
    for place, row in enumerate(operators):
        if row.operator_class is not CLASS.TENSOR_CONTRACTION and _largest(row) in shapes:
            yield place


def _largest(row: OperatorRow) -> tuple[int, ...]:
    tensors = [tensor for tensor in row.signature.record.tensors() if tensor.numel is not None]
    return max((tensor.shape for tensor in tensors), key=_elements, default=())


def _elements(shape: tuple[int, ...]) -> int:
    whole = 1
    for size in shape:
        whole *= size
    return whole


#: The field of a configuration with the dropout of attention's probabilities, by how the class of a model begins.
_DROPOUTS: Final = (
    (
        ("Bert", "Roberta", "Electra", "ViT", "DeiT", "Albert", "Camembert", "XLMRoberta"),
        "attention_probs_dropout_prob",
    ),
    (("GPT2",), "attn_pdrop"),
    (("Llama", "DistilBert", "Bart", "Whisper", "OPT", "Qwen", "Mistral", "Mixtral"), "attention_dropout"),
    (("T5", "MT5"), "dropout_rate"),
)


def _attention(view: View) -> Iterator[Advice]:
    rows = [view.anatomy.operators[place] for place in sorted(view.attention)]
    gain = view.per_step(sum(row.time_ns for row in rows))
    if not gain:
        return
    workload = view.anatomy.workload
    draws = [row for row in rows if "bernoulli" in row.operator or "dropout" in row.operator]
    dropped = view.per_step(sum(row.time_ns for row in draws))
    option, technique = None, None
    how = "runs unfused" if workload.attention == "sdpa" else "is written out"
    dropout_time = ", {dropped} of it dropout" if draws else ""
    if workload.attention is not None and workload.attention != "sdpa":
        tries: tuple[str, ...] = ('attn_implementation="sdpa": one kernel without the matrix of scores',)
        option, technique = "--attention sdpa", "sdpa"
    elif draws:
        dropout = _dropout_of(workload)
        named = "" if dropout else " (dropout_p=0)"
        tries = (f"no dropout of attention's probabilities{named}, so that a fused kernel can run",)
        option = f"--set {dropout}=0" if dropout else None
    else:
        tries = ("torch.nn.functional.scaled_dot_product_attention, with is_causal=True instead of a causal mask",)
    yield Advice(
        id="", gain_ns=gain,
        why=f"attention {how}: {{gain}} on matrices of scores ({{shape}}){dropout_time}",
        figures={
            "gain": ns(gain), "shape": name(" x ".join(map(str, _largest(rows[0])))), "dropped": ns(dropped),
        },
        tries=tries, option=option, technique=technique, section="operators",
    )  # fmt: skip


def _dropout_of(workload: Workload) -> str | None:
    """Return the field of the configuration with the dropout of attention's probabilities, if it is known."""
    kind = workload.architecture or ""
    return next((field for begins, field in _DROPOUTS if kind.startswith(begins)), None)


def _chains(view: View) -> Iterator[Advice]:
    rows = [row for row in view.anatomy.chains if row.moved_bytes]
    if not rows:
        return
    # Written out, attention's scores are in chains too.
    attention = sum(view.anatomy.operators[place].time_ns for place in view.attention)
    saved = sum(row.time_ns * row.saved_bytes / row.moved_bytes for row in rows)
    spent = sum(row.time_ns for row in rows)
    gain = view.per_step(saved * max(1 - attention / spent, 0)) if spent else 0
    if not gain:
        return
    longest = max(rows, key=lambda row: row.time_ns)
    compiled = bool(view.anatomy.workload.compiled)
    layers = "fused layers: torch.nn.functional.rms_norm and layer_norm, fused SwiGLU and rotary kernels"
    yield Advice(
        id="", gain_ns=gain, subject=longest.operator,
        why="{calls} of element-wise operators, normalizations and copies, each on what the one before wrote (in"
        " {chains}), take {time}, {share} of it to move {saved} from one to the next",
        figures={
            "calls": count(view.per_step(sum(row.calls for row in rows)), "call"),
            "chains": count(view.per_step(sum(row.chains for row in rows)), "chain"),
            "time": ns(view.per_step(spent)), "share": part(saved / spent),
            "saved": Evidence(value=view.per_step(sum(row.saved_bytes for row in rows)), unit="bytes"),
            "operator": name(longest.operator),
        },
        tries=(layers,) if compiled else ("torch.compile(model), which makes one kernel of each chain", layers),
        option=None if compiled else "--compile", technique=None if compiled else "compile", section="operators",
    )  # fmt: skip


_FUSED_OPTIMIZER: Final = re.compile(
    r"_fused_|^triton|optimizer_update|FusedAdam|fused_adam|multi_tensor_adam", re.IGNORECASE
)


def _optimizer(view: View) -> Iterator[Advice]:
    rows = [
        row for row in view.anatomy.operators
        if row.phase is Phase.OPTIMIZER and row.operator_class is not CLASS.COMMUNICATION
    ]  # fmt: skip
    kernels = {row.kernel for row in view.anatomy.kernels}
    if (
        not rows
        or any(_FUSED_OPTIMIZER.search(row.operator) for row in rows)
        or any(map(_FUSED_OPTIMIZER.search, kernels))
    ):
        return
    if any(row.operator.startswith("triton") for row in rows):
        return
    work = sum(row.time_ns for row in rows)
    spent = view.per_step(work)
    if view.on_cpu:
        spent = max(spent, view.anatomy.step.phase_ns.get(Phase.OPTIMIZER) or 0)
    calls = view.per_step(sum(row.calls for row in rows))
    listed = any("_foreach_" in row.operator for row in rows)
    tries = _kernels_of(view.anatomy.workload.optimizer, listed=listed)
    how = "one for each operation" if listed else "a loop over the tensors"
    least = _update_ns(view, rows)
    gain = spent - least
    if gain <= 0 or not tries:
        return
    technique = "adamw" if (view.anatomy.workload.optimizer or "").startswith("adamw-") else None
    yield Advice(
        id="", gain_ns=gain,
        why=f"the optimizer takes {{spent}} in {{calls}} of operators, {how}",
        figures={"spent": ns(spent), "calls": count(calls, "call"), "least": ns(least)},
        tries=tries,
        option="--optimizer adamw" if technique else None, technique=technique, section="classes",
    )  # fmt: skip


#: torch's optimizers that have a fused kernel, and those that have only operators over lists of tensors.
_FUSED: Final = {"sgd", "adam", "adamw", "adagrad"}
_LISTED: Final = {"adadelta", "adafactor", "adamax", "asgd", "nadam", "radam", "rmsprop", "rprop"}


def _kernels_of(optimizers: str | None, *, listed: bool) -> tuple[str, ...]:
    """Return the faster kernels that a loop's optimizers have, as far as these are known."""
    names = {word.strip().partition("-")[0].lower() for word in (optimizers or "adamw").split(",")}
    fused = ("fused=True",) if names & _FUSED else ()
    return fused if listed else fused + (("foreach=True",) if names & (_FUSED | _LISTED) else ())


def _update_ns(view: View, rows: Sequence[OperatorRow]) -> int:
    """Return the least time of one kernel for the update: each tensor that the operators write, read and written once.

    A fused kernel reads weights, gradients and moments once and writes all but the gradients.
    """
    bandwidth, parameters = view.anatomy.device.bandwidth_bytes_per_second, view.anatomy.workload.trainable_parameters
    if not bandwidth or not parameters:
        return 0
    item = ITEM_SIZE.get(view.anatomy.workload.dtype or FLOAT32) or 4
    return round(7 * item * parameters / bandwidth * _NS)


_LAYOUTS: Final = re.compile(r"nchwToNhwc|nhwcToNchw|NCHW_?to_?NHWC|transpose_nchw|batched_transpose", re.IGNORECASE)


def _layout(view: View) -> Iterator[Advice]:
    rows = [row for row in view.anatomy.kernels if _LAYOUTS.search(row.kernel)]
    gain = view.per_step(sum(row.time_ns for row in rows))
    if not gain:
        return
    yield Advice(
        id="", gain_ns=gain, why="{kernels} a step only change the layout of images for a convolution",
        figures={"kernels": count(view.per_step(sum(row.count for row in rows)), "kernel"), "gain": ns(gain)},
        tries=("model and inputs .to(memory_format=torch.channels_last)",), section="kernels",
    )  # fmt: skip


def _padding(view: View) -> Iterator[Advice]:
    texts = view.anatomy.texts
    if texts is None or not texts.all_tokens:
        return
    padded = 1 - texts.all_useful_tokens / texts.all_tokens
    gain = round(padded * view.step_ns)
    if not gain:
        return
    kind = "longest" if texts.padding == "max_length" else "sorted"
    if texts.padding == kind:
        return
    by_length = "batches of texts of like length", "sorted-padding"
    how, technique = ('padding="longest" of the collator', "dynamic-padding") if kind == "longest" else by_length
    yield Advice(
        id="", gain_ns=gain, why="{padded} of all tokens are padding (padded to {kind})",
        figures={"padded": part(padded), "kind": name(texts.padding)},
        tries=(how,), option=f"--padding {kind}", technique=technique, section="texts",
    )  # fmt: skip


#: Below this part of the device's memory, recomputing saves what is not short.
_FREE: Final = 0.4


def _recomputation(view: View) -> Iterator[Advice]:
    peak, limit = view.anatomy.memory.peak_bytes, view.anatomy.environment.device_memory_bytes
    gain = view.per_step(sum(row.time_ns for row in view.anatomy.classes if row.phase is Phase.RECOMPUTE))
    if not gain or not peak or not limit or view.on_cpu or peak > _FREE * limit:
        return
    yield Advice(
        id="", gain_ns=gain,
        why="activations are computed again for {gain} of the step, with a peak of {peak} on a device of {limit}",
        figures={
            "gain": ns(gain), "peak": Evidence(value=peak, unit="bytes"), "limit": Evidence(value=limit, unit="bytes"),
        },
        tries=("no checkpointing, or of every second layer only",), section="memory",
    )  # fmt: skip


_REGION: Final = re.compile(r"^Torch-Compiled Region")


def _collections(view: View) -> Iterator[Advice]:
    run = view.anatomy.run
    if run is None or not run.collecting_ns:
        return
    gain = _of_run(run, run.collecting_ns)
    yield Advice(
        id="", gain_ns=gain, step_ns=_of_run(run, run.wall_ns),
        why="Python collects garbage {times} in the run's {steps}, {gain} of the mean step",
        figures={"times": count(run.collections, "time"), "steps": count(run.steps, "step"), "gain": ns(gain)},
        tries=(
            "gc.freeze() before the loop, so that what is there is not looked at again",
            "gc.disable(), and gc.collect() every so many steps",
        ),
        section="whole-run",
    )  # fmt: skip


def _graph_breaks(view: View) -> Iterator[Advice]:
    run = view.anatomy.run
    if run is not None and run.graph_breaks:
        most, *others = run.graph_breaks
        gain, _ = view.idle(IdleCause.PYTHON)
        yield Advice(
            id="", gain_ns=gain or None, subject=most.place,
            why="torch.compile breaks its graph in {places}, at {place}: {reason}",
            figures={
                "places": count(1 + len(others), "place"), "place": name(most.place), "reason": name(most.reason),
            },
            tries=("no such code in what is compiled", "torch.compile(fullgraph=True), which refuses to break"),
            section="whole-run",
        )  # fmt: skip
        return
    regions = [row for row in view.anatomy.host if _REGION.match(row.name)]
    calls = view.per_step(sum(row.calls for row in regions))
    gain, _ = view.idle(IdleCause.PYTHON)
    if calls < 2 or not gain or len({row.name for row in regions}) < 2:
        return
    yield Advice(
        id="", gain_ns=gain, why="a step runs {regions} of compiled code, with {gain} of Python between operators",
        figures={"regions": count(calls, "region"), "gain": ns(gain)},
        tries=("TORCH_LOGS=graph_breaks says what breaks the graph", "torch.compile(fullgraph=True)"), section="host",
    )  # fmt: skip


def _fragmentation(view: View) -> Iterator[Advice]:
    """Look at a snapshot's failure: what the allocator held without using it, and whether it was enough."""
    failure = view.anatomy.memory.failure
    if failure is None or failure.unused_bytes is None:
        return
    unused, asked = failure.unused_bytes, failure.requested_bytes or 0
    if unused < asked or any(pool.expandable for pool in view.anatomy.memory.pools):
        return
    yield Advice(
        id="", gain_bytes=unused, peak_bytes=failure.reserved_bytes,
        why="{asked} were asked for while {unused} were held without being used, in pieces too small",
        figures={
            "asked": Evidence(value=asked, unit="bytes"), "unused": Evidence(value=unused, unit="bytes"),
        },
        tries=(_EXPANDABLE,), section="memory",
    )  # fmt: skip


#: A component of a snapshot below this part of the peak is not worth a change.
_LEAST_COMPONENT: Final = 0.1
#: What lowers a component: the part of it that goes at most, and the change.
_LOWERED_BY: Final = {
    "forward_activations": (1.0, "torch.utils.checkpoint around each layer, which keeps their inputs alone"),
    "optimizer_state": (0.75, "an optimizer whose states have 8 bits (bitsandbytes' AdamW8bit, torchao's AdamW8bit)"),
    "gradients": (1.0, "optimizer.zero_grad(set_to_none=True) before forward, not before backward"),
    "weights": (0.5, "weights in bfloat16, or sharded over ranks (torch.distributed.fsdp)"),
}


def _what_fills(view: View) -> Iterator[Advice]:
    """Look at a snapshot where memory ran out, or at its peak: the components that a change lowers."""
    memory = view.anatomy.memory
    if not memory.parts or not memory.peak_bytes:
        return
    at_failure = memory.moment == "oom"
    whole, phase = (memory.shown_bytes or 0, memory.shown_at) if at_failure else (memory.peak_bytes, memory.peak_at)
    in_forward = any(part.of == "phase" and part.name == Phase.BACKWARD for part in memory.parts)
    for part in memory.components:
        share, change = _LOWERED_BY.get(part.component, (0.0, ""))
        size = (part.shown_bytes if at_failure else part.at_peak_bytes) or 0
        if not share or size < _LEAST_COMPONENT * whole:
            continue
        if part.component == "gradients" and not (in_forward and phase == Phase.FORWARD):
            continue
        yield Advice(
            id="", subject=part.component.replace("_", " "), gain_bytes=round(share * size),
            peak_bytes=whole, why="{size} of {peak} are {component}",
            figures={
                "size": Evidence(value=size, unit="bytes"), "peak": Evidence(value=whole, unit="bytes"),
                "component": name(part.component.replace("_", " ")),
            },
            tries=(change,), section="memory",
        )  # fmt: skip


RULES: Final = (
    Rule(
        id="launches", title="launch-bound", find=_launches,
        looks_for="idle time of the device while the host ran operators or Python and launched kernels",
        bound="that idle time; where the step without the profiler is known, what that has beyond its busy time",
        silent="on the CPU, and in a trace without launches",
    ),
    Rule(
        id="framework", title="framework-bound", find=_framework,
        looks_for="time of a step on the CPU that no operator explains: dispatch, autograd, Python",
        bound="that time; where the step without the profiler is known, what that has beyond its operators",
        silent="on an accelerator, where idle time has its causes",
    ),
    Rule(
        id="input", title="waiting for input", find=_input,
        looks_for="idle time while the host loaded data or copied it to the device; on the CPU the waits of the whole"
        " run for its loader, else ranges of loaders in the recorded steps",
        bound="that time",
        silent="where no range or call of loading is recorded",
    ),
    Rule(
        id="synchronization", title="synchronizations", find=_synchronizations,
        looks_for="calls in an operator or a range that wait for the device, and gaps that begin while the host waits",
        bound="the idle time in gaps that began while the host waited, or in the waits themselves if that is more",
        silent="where only the end of the step waits",
    ),
    Rule(
        id="allocator", title="allocator calls", find=_allocator,
        looks_for="idle time while the host allocated or freed memory of the device",
        bound="that idle time; of steps set aside for it the mean over all steps",
        silent="where the allocator keeps what it has",
    ),
    Rule(
        id="cold_start", title="cold start", find=_cold_start,
        looks_for="idle time in launches many times as long as others, and in calls that load kernels",
        bound="that idle time, which later steps do not have", silent="where all launches are alike",
    ),
    Rule(
        id="compilation", title="compiling", find=_compilation,
        looks_for="code that torch.compile compiled again in the run, and idle time while it compiled",
        bound="the time of compiling in the mean step of the run, else that idle time",
        silent="where nothing was compiled",
    ),
    Rule(
        id="profiler", title="the profiler's own time", find=_profiler,
        looks_for="idle time while the profiler wrote its records or recorded Python's stack",
        bound="that idle time, which a step without the profiler does not have",
        silent="where neither is recorded",
    ),
    Rule(
        id="communication", title="exposed communication", find=_exposed,
        looks_for="collectives while no other work runs, without what waits for another rank",
        bound="that time", silent="in a run without collectives",
    ),
    Rule(
        id="waiting", title="waiting for a rank", find=_waiting,
        looks_for="waiting in collectives for the rank that comes last",
        bound="the waiting that is charged to that rank",
        silent="where no rank stands out, or ranks are missing",
    ),
    Rule(
        id="pageable_copies", title="copies from pageable memory", find=_pinning,
        looks_for="copies to the device from memory that is not pinned",
        bound="their time, no more than all copies take while nothing else runs", silent="where other work hides them",
    ),
    Rule(
        id="far_from_bound", title="an operator far from its bound", find=_far_from_bound,
        looks_for="an operator in a phase whose calls take longer than FLOPs / peak and bytes / bandwidth",
        bound="its time beyond that bound", silent="where the bound is not known",
    ),
    Rule(
        id="float32", title="products in float32", find=_float32,
        looks_for="matrix products of float32 operands on a device with a peak for half precision",
        bound="their time, less the same share of the ceiling at the peak of half precision",
        silent="under autocast, and on a processor whose peak was not measured",
    ),
    Rule(
        id="attention", title="attention written out", find=_attention,
        looks_for="work on the matrix of attention's scores: softmax, dropout, masks, scales",
        bound="its time without the products: a fused kernel keeps the scores on the chip",
        silent="where a fused kernel runs",
    ),
    Rule(
        id="chains", title="maps one after the other", find=_chains,
        looks_for="element-wise work and normalizations that follow each other and read what the one before wrote",
        bound="their time, in proportion to the bytes that one kernel for each chain would not move",
        silent="where bytes are not known",
    ),
    Rule(
        id="optimizer", title="optimizer in a loop", find=_optimizer,
        looks_for="an optimizer that is not one fused kernel",
        bound="its time, less that of reading and writing weights, gradients and moments once, if these are known",
        silent="for fused and compiled optimizers",
    ),
    Rule(
        id="layout", title="layout of images", find=_layout,
        looks_for="kernels that only change the layout of images for a convolution", bound="their time",
        silent="where none run",
    ),
    Rule(
        id="padding", title="padding", find=_padding,
        looks_for="padding tokens in the batches of a run on texts", bound="their share of the tokens, of the step",
        silent="for batches of texts of like length, and in runs without texts",
    ),
    Rule(
        id="recomputation", title="recomputation where memory is free", find=_recomputation,
        looks_for="activations computed again in backward while the peak is below 40 % of the device's memory",
        bound="the time of the recomputation", silent="where the peak or the device's memory is not known",
    ),
    Rule(
        id="garbage_collection", title="Python's garbage collection", find=_collections,
        looks_for="collections of Python's garbage in the steps of the run",
        bound="their time in the mean step; a device may hide a part of it", silent="where no loop was recorded",
    ),
    Rule(
        id="graph_breaks", title="graph breaks", find=_graph_breaks,
        looks_for="breaks that torch noted in the run; several regions of compiled code in a step with Python between",
        bound="idle time in Python; not known on the CPU", silent="where one region is all",
    ),
    Rule(
        id="fragmentation", title="memory in pieces", find=_fragmentation,
        looks_for="a snapshot's request that failed while as much was held unused", bound="what was held unused",
        silent="where segments are expandable",
    ),
    Rule(
        id="what_fills", title="what fills the memory", find=_what_fills,
        looks_for="components of a memory snapshot that are a tenth of its peak",
        bound="all activations, three quarters of the optimizer's state, half of the weights",
        silent="of gradients where the peak is not in forward",
    ),
)  # fmt: skip
