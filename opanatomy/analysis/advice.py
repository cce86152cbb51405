"""Find what to change in a step: each rule looks for one cost, bounds what changing it could gain, or stays silent.

Rules read the finished figures of a report, so that ranks, old reports and traces of any writer get the same advice. A
gain is the most that a change could save of the mean step: what is left of it afterwards is known only by trying. Each
nanosecond is promised once: idle time is divided among rules by what filled it, an operator that one rule covers is
left out of the next, and together the gains take no more than the idle time and the busy time in which work was queued.
Cures are chosen by what the trace shows (`Situation`), never by a name alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import auto
from math import prod
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.analysis.aggregate import is_fusible
from opanatomy.analysis.costs import Costs, costs_of, input_of_run, loading, steps_of, steps_of_window
from opanatomy.analysis.evidence import CASTS, SOFTMAX_OF_SDPA, casts, largest_shape, score_shapes, situation_of
from opanatomy.analysis.idle import SHORT_GAP_NS
from opanatomy.levers import LEVER, Context
from opanatomy.records.anatomy import (
    OUT_OF_MEMORY,
    PYTHON_STACK,
    WORTH,
    Advice,
    Anatomy,
    Evidence,
    Gap,
    IdleRow,
    Situation,
)
from opanatomy.records.memory import MATH_ATTENTION
from opanatomy.records.patterns import regex
from opanatomy.records.run import RunClock
from opanatomy.records.runtime_calls import FREES
from opanatomy.records.signature import Tensor
from opanatomy.records.taxonomy import FLOAT32, ITEM_SIZE, TF32, IdleCause, OperatorClass, Phase, StrEnum
from opanatomy.records.work import COMPUTE, OperatorRow
from opanatomy.records.workload import Workload

CLASS: Final = OperatorClass
_NS: Final = 1e9


class View(Struct, frozen=True, kw_only=True):
    """An anatomy, the parts of its time, and what rules share."""

    anatomy: Anatomy
    costs: Costs
    situation: Situation
    #: Rows of operators that a rule before covers.
    covered: frozenset[int] = frozenset()

    @property
    def step_ns(self) -> int:
        """Return the mean step without other steps' work."""
        return round(self.costs.whole_ns / steps_of_window(self.anatomy))

    def lever(self, name: str | None) -> dict[str, Any]:
        """Return `option` and `technique` of advice for this lever; empty for `None`."""
        if name is None:
            return {}
        workload = self.anatomy.workload
        return {"option": LEVER[name].option(Context(run=workload, batch=workload.batch or 1)), "technique": name}

    def idle(self, *causes: IdleCause) -> tuple[int, list[IdleRow]]:
        """Return the idle time of these causes in a mean step, and their rows, the longest first."""
        rows = [row for row in self.costs.causes if row.cause in causes]
        return self.window_ns_per_step(sum(row.time_ns for row in rows)), rows

    def short_idle(self, cause: IdleCause, *, drained: bool) -> int:
        """Return the idle time of a cause in short gaps of a mean step: those behind a wait, or all others.

        Reports without these parts count all of it as not behind a wait.
        """
        row = next((row for row in self.costs.causes if row.cause is cause), None)
        if row is None:
            return 0
        behind = row.drained_ns or 0
        short = row.time_ns if row.short_ns is None else row.short_ns
        return self.window_ns_per_step(behind if drained else short - behind)

    def window_ns_per_step(self, ns: float) -> int:
        """Scale a time over the window to a mean step."""
        return round(ns / steps_of_window(self.anatomy))

    def per_step(self, ns: float) -> int:
        """Scale a sum over all steps to a mean step."""
        return round(ns / steps_of(self.anatomy))

    def host_bound(self, gain: int) -> int:
        """Cap a gain in host time at the unprofiled step's idle time, since the profiler slows the host."""
        plain = self.anatomy.step.unprofiled_wall_ns
        return min(gain, max(plain - self.window_ns_per_step(self.anatomy.timeline.busy_ns), 0)) if plain else gain

    @property
    def on_cpu(self) -> bool:
        """Return whether the operators ran on the CPU."""
        return self.anatomy.environment.device_kind == "cpu"


class Takes(StrEnum):
    """What a rule's gain is taken from: idle time, busy time, or busy time that faster kernels can shorten."""

    IDLE = auto()
    BUSY = auto()
    KERNELS = auto()


class Rule(Struct, frozen=True, kw_only=True):
    """A rule: its stable `id`, what it looks for, how its gain is bounded, when it stays silent, how it is found.

    `takes` is `None` if the gain can come from both idle and busy time.

    If its advice is worth following, the rule covers rows of operators, which later rules skip.
    """

    id: str
    title: str
    looks_for: str
    bound: str
    silent: str
    find: Callable[[View], Iterable[Advice]]
    takes: Takes | Callable[[View], Takes | None] = Takes.BUSY
    covers: Callable[[View], Iterable[int]] = lambda view: ()


def with_advice(anatomy: Anatomy) -> Anatomy:
    """Return the anatomy with its advice and the given further advice, largest gain first."""
    worked = any(row.time_ns for row in anatomy.classes)
    if anatomy.environment.host_only or not (worked or anatomy.memory.is_snapshot):
        return anatomy
    situation = anatomy.situation or situation_of(anatomy)
    view = View(anatomy=anatomy, costs=costs_of(anatomy), situation=situation)
    found: list[tuple[Takes | None, Advice]] = []
    starved = False
    for rule in RULES:
        of_run: list[Advice] = []
        of_step: list[Advice] = []
        for each in rule.find(view):
            if view.costs.of_trace:  # which has no steps
                each = replace(each, why=each.why.replace(" a step", ""))
            (of_step if each.step_ns is None else of_run).append(replace(each, id=rule.id))
        worth = ordered(replace(each, step_ns=view.step_ns) for each in of_step)
        takes = rule.takes if isinstance(rule.takes, Takes) else rule.takes(view)
        if starved and takes in (Takes.BUSY, Takes.KERNELS):  # a device that is faster waits longer for the loader
            worth = tuple(replace(each, why=f"{each.why}; this helps only once the loader keeps up") for each in worth)
        starved |= rule.id == "input" and situation.loader == "workers" and bool(worth)
        found += [(None, each) for each in ordered(of_run)] + [(takes, each) for each in worth]
        if worth:
            view = replace(view, covered=view.covered | {*rule.covers(view)})
    others = [advice for advice in anatomy.advice if advice.id not in {rule.id for rule in RULES}]
    return replace(
        anatomy, situation=situation if worked else None, advice=ordered((*others, *_promised_once(found, view)))
    )


def _promised_once(found: Sequence[tuple[Takes | None, Advice]], view: View) -> Iterator[Advice]:
    """Yield the advice, largest gain first, with gains capped so that no time is promised twice.

    Gains relative to another step (the run's mean, all steps including excluded ones) only reduce the whole step.
    """
    costs, paced_ns, whole = view.costs, view.anatomy.timeline.paced_ns, view.step_ns
    idle = view.window_ns_per_step(
        costs.framework_ns + costs.input_ns + costs.profiler_ns if view.on_cpu else costs.idle_ns
    )
    busy = max(whole - idle - view.window_ns_per_step(costs.unrecorded_ns), 0)
    kernels = busy if paced_ns is None else min(view.window_ns_per_step(paced_ns), busy)
    left = {None: whole, Takes.IDLE: idle, Takes.BUSY: busy, Takes.KERNELS: kernels}
    for takes, advice in sorted(found, key=lambda pair: _rank(pair[1])):
        if advice.gain_ns is None or not advice.step_ns:
            yield advice
            continue
        spends = {None, takes} | ({Takes.BUSY} if takes is Takes.KERNELS else set())
        limit = min(left[kind] for kind in spends)
        gain = min(advice.gain_ns, limit * advice.step_ns // whole)
        for kind in spends:
            left[kind] -= -(-gain * whole // advice.step_ns)
        yield replace(advice, gain_ns=gain)


def ordered(advice: Iterable[Advice]) -> tuple[Advice, ...]:
    """Return the advice worth following: first what makes a step fit, then time by gain, then memory."""
    worth = [each for each in advice if each.gain_ns is None or each.gain_ns >= WORTH * (each.step_ns or 1)]
    return tuple(sorted(worth, key=_rank))


#: A trace that is so many times as long as what the device does in it is first of all the wrong recording.
_MOSTLY_OUTSIDE: Final = 10


def _rank(advice: Advice) -> tuple[Any, ...]:
    saved = -(advice.gain_bytes or 0)
    around = advice.figures.get("around")
    if around is not None and (around.value or 0) > _MOSTLY_OUTSIDE * (advice.step_ns or 0):
        return 0, 0, saved
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
    """Return a figure that is a name or text."""
    return Evidence(text=text)


# ----- time in which the device has nothing to do


#: The gain applies to this step; per sample, a larger batch also amortizes the fixed cost of each operator.
_LARGER: Final = "Use a larger batch, which spreads this overhead over more samples."
_GRAPHS: Final = 'Use CUDA graphs: torch.compile(model, mode="reduce-overhead").'
_COMPILE: Final = LEVER["compile"].python
_FUSES: Final = f"Launch fewer kernels: {_COMPILE}."
_INDUCTOR: Final = (
    'Compile with backend="inductor", which fuses operators: the trace has compiled code but no Inductor kernels.'
)
_IN_PYTHON: Final = "Do less in Python between operators: fewer loops over tensors, less logging, fewer metrics."
#: Launch-bound: the mean kernel is shorter than this, and the step has more launches than a handful.
_SMALL_KERNEL_NS: Final = 100_000
_SEVERAL_LAUNCHES: Final = 5


def _launches(view: View) -> Iterator[Advice]:
    launching = view.anatomy.timeline.launching
    if launching is None or not launching.calls or not launching.kernels:
        return
    operators, python = (view.short_idle(cause, drained=False) for cause in (IdleCause.OPERATORS, IdleCause.PYTHON))
    python -= _between_regions(view)
    others = _idle_of_update(view) + _idle_of_exchanges(view, IdleCause.OPERATORS, IdleCause.PYTHON)
    python, operators = max(python - max(others - operators, 0), 0), max(operators - others, 0)
    gain, calls = view.host_bound(operators + python), view.per_step(launching.calls)
    every, _ = view.idle(IdleCause.OPERATORS, IdleCause.PYTHON, IdleCause.UNKNOWN)
    if 2 * (operators + python) < every - others or calls < _SEVERAL_LAUNCHES:
        return
    if launching.kernel_ns / launching.kernels >= _SMALL_KERNEL_NS:
        return
    compiled = view.situation.compiled
    # A graph cannot wait, as the host does in such a step.
    waits = view.per_step(sum(row.calls for row in view.anatomy.host if row.waits and row.caller is not None))
    graphs = () if view.situation.cuda_graphs or waits >= _SEVERAL_LAUNCHES else (_GRAPHS,)
    tries = (
        *((_IN_PYTHON,) if python > operators else ()),
        *((_LARGER,) if waits >= _SEVERAL_LAUNCHES else ()),
        *graphs,
        *(() if compiled else (_FUSES,)),
        *(() if waits >= _SEVERAL_LAUNCHES else (_LARGER,)),
    )
    if compiled and not view.situation.inductor:
        tries = (_INDUCTOR, *tries)
    yield Advice(
        id="",
        gain_ns=gain,
        changes=("host x0",),
        is_bound=True,
        why="the device idles for {each} per launch ({calls} a step); {tiny_share} of the kernels are shorter than"
        " {tiny}",
        figures={
            "calls": count(calls, "launch"),
            "each": ns(gain / max(calls, 1)),
            "tiny_share": part(launching.tiny_kernels / launching.kernels),
            "tiny": ns(launching.tiny_below_ns),
        },
        tries=tries,
        **view.lever(None if compiled else "compile"),
        section="host",
    )


#: Causes of a long gap that no other rule charges.
_OF_GAPS: Final = (IdleCause.OPERATORS, IdleCause.PYTHON, IdleCause.UNKNOWN)
#: Parts of a kernel's name besides its function: return type, namespaces, template arguments.
_TEMPLATE: Final = regex(r"^void |(?<!^)[<(](?!anonymous).*$")
#: Operators that make a tensor, which may run where the tensor is needed.
_MAKES: Final = regex(r"^aten::(?:normal_|uniform_|random_|bernoulli_|randn|rand|randint|randperm|fill_|zero_|arange)")
#: A trace without steps whose device is busy for less than this fraction is not a recording of a step.
_RECORDED: Final = 0.01


def _gap(view: View) -> Iterator[Advice]:
    timeline = view.anatomy.timeline
    updating, one_by_one = _idle_of_update(view), _is_one_by_one(view)
    unmarked = view.costs.of_trace and timeline.busy_ns < _RECORDED * timeline.window_ns
    groups: dict[str | None, list[Gap]] = {}
    for gap in timeline.gaps:
        if gap.time_ns < SHORT_GAP_NS or gap.cause not in _OF_GAPS or not gap.launch_known:
            continue
        if (unmarked and gap.cause is IdleCause.UNKNOWN) or (updating and _UPDATES.match(gap.name or "")):
            continue
        exchanges = any(_COLLECTIVE.match(name or "") for name in (gap.before, gap.after))
        if not (exchanges and one_by_one) and gap is not _straggling(view):
            groups.setdefault(gap.name, []).append(gap)
    for gaps in groups.values():
        longest = max(gaps, key=lambda gap: gap.time_ns)
        number = sum(gap.count for gap in gaps)
        gain = view.host_bound(round(sum(gap.cause_ns * gap.count for gap in gaps)))
        if _PREPARES.search(longest.name or ""):  # the one that prepares in parallel takes as long for each step
            gain = min(gain, view.step_ns - round(sum(gap.time_ns * gap.count for gap in gaps)))
        where = ", while the host is in {name}" if longest.name else ""
        idles = f"the device idles for {{each}} {_often(view, number)}{where}"
        if len(gaps) > 1:
            idles = f"the device idles for {{all}} a step in {{gaps}} of up to {{each}}{where}"
        before = ", before {before}" if longest.before and len(gaps) == 1 else ""
        if longest.name is None and longest.cause is IdleCause.UNKNOWN:
            behind = ", after copies to the host" if _behind_copies(gaps) else ""
            before += f"{behind}; the trace shows no host event in that time"
        yield Advice(
            id="",
            gain_ns=gain,
            subject=longest.name or _own_name(longest.before) or None,
            why=idles + before,
            changes=tuple(dict.fromkeys(f"gap before {_own_name(gap.before)} x0" for gap in gaps if gap.before)),
            figures={
                "each": ns(longest.time_ns),
                "all": ns(sum(gap.time_ns * gap.count for gap in gaps)),
                "gaps": count(number, "gap"),
                "times": count(number, "time"),
                "steps": count(1 / number, "step"),
                "ranks": count(view.situation.ranks, "rank"),
                "name": name((longest.name or "").removeprefix("aten::")),
                "before": name(_own_name(longest.before)),
            },
            tries=tuple(_shorter(gaps)),
            section="idle",
        )


def _often(view: View, number: float) -> str:
    """Return in words how often something with `number` occurrences per mean step happens."""
    if view.costs.of_trace:
        return "once" if number < 1.5 else "{times}"
    if number < 0.75:
        return "once a step on one of {ranks}" if view.situation.ranks > 1 else "once every {steps}"
    return "once a step" if number < 1.5 else "{times} a step"


def _own_name(work: str | None) -> str:
    """Return the name of a kernel without its template."""
    return _TEMPLATE.sub("", work) if work and not work.startswith("Mem") else work or ""


def _behind_copies(gaps: Sequence[Gap]) -> bool:
    """Return whether most of the time of gaps follows copies to the host."""
    copied = sum(gap.time_ns * gap.count for gap in gaps if (gap.after or "").startswith("Memcpy DtoH"))
    return 2 * copied > sum(gap.time_ns * gap.count for gap in gaps)


def _straggling(view: View) -> Gap | None:
    """Return the straggler's gap, which is part of the other ranks' waiting."""
    waiting, ranks = view.anatomy.waiting, view.situation.ranks
    if waiting is None or waiting.straggler is None or not view.costs.waiting_ns:
        return None
    gaps = [gap for gap in view.anatomy.timeline.gaps if gap.cause in _OF_GAPS and gap.time_ns >= SHORT_GAP_NS]
    own = [gap for gap in gaps if 0.5 < gap.count * ranks < 1.5]  # of one rank
    longest = max(own, key=lambda gap: gap.time_ns, default=None)
    explains = longest is not None and 2 * longest.time_ns * steps_of(view.anatomy) >= waiting.straggler.idle_longer_ns
    return longest if explains else None


#: Functions, ranges and operators that prepare input.
_PREPARES: Final = regex(
    r"pre_?process|tokeniz|collat|__getitem__|read_|decode_|load_|\baugment|\btransforms?\b|resize|\bimread",
    re.IGNORECASE,
)


def _shorter(gaps: Sequence[Gap]) -> Iterator[str]:
    """Yield what may shorten long gaps with this name."""
    gap = max(gaps, key=lambda gap: gap.time_ns)
    if _makes_on_host(gap):
        yield 'Create the tensor on the device: pass device="cuda" to the call.'
        yield "Or create it ahead of time, in a DataLoader worker."
    elif _PREPARES.search(gap.name or ""):
        yield "Prepare the next input while the device is busy, in a DataLoader worker or a thread."
    elif gap.cause is IdleCause.UNKNOWN and gap.name is None:
        if _behind_copies(gaps):
            yield "Process the results on the device, or in a separate thread, so that the device need not wait."
        yield (
            "Find what the host does in this time (annotate it with torch.profiler.record_function), and shorten it or"
            " move it to a thread."
        )
    elif gap.count >= _SEVERAL_LAUNCHES:
        yield "Reduce the host work before each of these launches: checks, autotuning, Python around the call."
    else:
        yield "Reduce the host work at this point, or move it to a thread."


def _makes_on_host(gap: Gap) -> bool:
    """Return whether the host makes a tensor in a gap and copies it then."""
    return bool(gap.name and _MAKES.match(gap.name) and "HtoD" in (gap.before or ""))


def _framework(view: View) -> Iterator[Advice]:
    if not view.costs.framework_ns:
        return
    share = view.costs.framework_ns / view.costs.whole_ns
    gain = round(share * view.step_ns)
    plain = view.anatomy.step.unprofiled_wall_ns
    work = view.anatomy.work_ns / steps_of(view.anatomy)
    if plain:
        loading_ns = view.window_ns_per_step(view.costs.input_ns)  # which is another rule's
        gain = min(gain, max(round(plain - work - loading_ns), 0))
    calls = view.per_step(sum(row.calls for row in view.anatomy.operators))
    # Tensors are freed between operators: what the system may have taken for that is not of calling them.
    gain = max(gain - _given_pages_ns(view), min(gain, calls * _CALLING_NS))
    compiled = view.situation.compiled
    yield Advice(
        id="",
        gain_ns=gain,
        why="{calls} a step take {each} each, with {between} between calls",
        figures={
            "calls": count(calls, "operator call"),
            "each": ns(work / max(calls, 1)),
            "between": ns(gain / max(calls, 1)),
        },
        tries=(*(() if compiled else (f"Call fewer operators: {_COMPILE}.",)), _LARGER),
        **view.lever(None if compiled else "compile"),
        section="host",
    )


#: Calling an operator from Python takes up to about this.
_CALLING_NS: Final = 20_000
#: The system time of one page fault, approximately (1.6 us measured, 4 kB zeroed).
_PAGE_NS: Final = 2_000


def _given_pages_ns(view: View) -> int:
    """Return the system CPU time per step that page faults explain; 0 if unknown."""
    step = view.anatomy.step
    return min(step.system_ns or 0, _PAGE_NS * (step.page_faults or 0)) if view.on_cpu else 0


def _pages(view: View) -> Iterator[Advice]:
    step, spent = view.anatomy.step, _given_pages_ns(view)
    plain = step.unprofiled_wall_ns
    if not spent or not plain:
        return
    yield Advice(
        id="",
        gain_ns=min(spent, plain),
        step_ns=plain,
        is_bound=True,
        why="each step requests {pages} of memory from the operating system again, which takes {time} of CPU time"
        " across all threads",
        figures={"pages": count(step.page_faults or 0, "page"), "time": ns(spent)},
        tries=(
            "Set MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184 before Python starts, so that glibc keeps"
            " freed memory, or preload jemalloc or tcmalloc.",
        ),
        section="host",
    )


#: Ranges in which a batch is copied to the device, and calls that copy.
_COPIES: Final = regex(r"copy|to_(?:gpu|device|cuda)|h2d|htod", re.IGNORECASE)
#: Sending a batch from a worker costs about this much (tensors of 16 kB between two processes of one machine).
_SENDING_NS: Final = 1_000_000
_ON_A_STREAM: Final = "Copy the next batch on a separate stream."
_PINNED: Final = "Pin the batch and copy it without blocking: pin_memory=True, .to(device, non_blocking=True)."


def _in_mean_step(run: RunClock, value: int) -> int:
    """Return a sum over the run's steps per step."""
    return round(value / run.steps)


def _faster(view: View, rows: Iterable[tuple[OperatorRow, float]]) -> tuple[str, ...]:
    """Return the changes (`operator xFACTOR`) equivalent to saving these nanoseconds of each row."""
    saved: dict[str, float] = {}
    for row, ns in rows:
        saved[row.operator] = saved.get(row.operator, 0.0) + ns
    whole = dict.fromkeys(saved, 0)
    for row in view.anatomy.operators:
        if row.operator in whole:
            whole[row.operator] += row.time_ns
    return tuple(
        f"{operator} x{max(1 - ns / whole[operator], 0):.3f}" for operator, ns in saved.items() if whole[operator]
    )


def _input(view: View) -> Iterator[Advice]:
    gain, rows = view.idle(IdleCause.INPUT)
    call = rows[0].name if rows else None
    for row in loading(view.anatomy)[:1]:  # those below it are parts of it
        gain, call = view.per_step(row.total_ns), row.name
    waits, step_ns = "the device waits {gain} a step for its input", None
    run, share = view.anatomy.run, input_of_run(view.anatomy)
    if run is not None and share is not None:
        step_ns = _in_mean_step(run, run.wall_ns)
        gain = round(share * step_ns)
        waits = "waiting for input takes {gain} a step, averaged over {steps}"
    tries = tuple(_faster_input(view, call or "", gain))
    if not gain or not tries:
        return
    figures = {"gain": ns(gain), "call": name(call or "")}
    if run is not None and share is not None:
        figures["steps"] = count(run.steps, "step")
    yield Advice(
        id="",
        gain_ns=gain,
        step_ns=step_ns,
        subject=call,
        why=waits + (", mostly in {call}" if call else ""),
        figures=figures,
        changes=(f"input x{1 / workers:.3g}",) if (workers := _workers(tries[0])) else (),
        tries=tries,
        section="idle" if not view.on_cpu else "host" if share is None else "whole-run",
    )


def _workers(cure: str) -> int:
    """Return how many workers a remedy adds; 0 for any other remedy."""
    workers = re.search(r"num_workers=(\d+)", cure)
    return int(workers[1]) if workers else 0


def _faster_input(view: View, call: str, gain: int) -> Iterator[str]:
    """Yield remedies for the wait on input: for the copy or the loader, whichever takes most of it."""
    situation, cores = view.situation, view.anatomy.environment.host_cores
    if _COPIES.search(call):
        if situation.pageable_copies:
            yield _PINNED
        yield _ON_A_STREAM
        return
    if situation.loader == "single process" or "SingleProcess" in call:
        workers = min(4, cores or 4)
        if gain >= _SENDING_NS and workers > 1:  # else a worker's batch takes longer to send than to make
            yield f"Load in worker processes: DataLoader(num_workers={workers}, persistent_workers=True)."
    elif "MultiProcessing" in call or situation.loader == "workers":
        most = f" ({cores})." if cores else "."
        small = "Compare with num_workers=0: sending a small batch from a worker may take longer than preparing it."
        yield small if gain < _SENDING_NS else f"Use more workers in the DataLoader, up to the number of cores{most}"
    else:
        yield "Prepare the next batch in a thread or a DataLoader worker."
    if gain >= _SENDING_NS:
        yield "Do less work to prepare each batch."


def _synchronizations(view: View) -> Iterator[Advice]:
    timeline, waiting = (
        view.anatomy.timeline,
        [row for row in view.anatomy.host if row.waits and row.caller is not None],
    )
    callers: dict[str, list[int]] = {}
    for row in waiting:
        sums = callers.setdefault(row.caller or "", [0, 0])
        sums[0], sums[1] = sums[0] + row.calls, sums[1] + row.total_ns
    if not callers:
        return
    inside, _ = view.idle(IdleCause.SYNCHRONIZATION)
    gain = inside + view.short_idle(IdleCause.OPERATORS, drained=True)
    # Without waits host and device work at once: no more is gained than the shorter of them takes.
    spent_waiting = 0 if timeline.launching is None else view.per_step(timeline.launching.synchronizing_ns)
    gain = min(gain, view.window_ns_per_step(timeline.busy_ns), max(view.step_ns - spent_waiting, 0))
    caller, (calls, spent) = max(callers.items(), key=lambda item: (item[1][1], item[0]))
    yield Advice(
        id="",
        gain_ns=gain,
        subject=caller,
        changes=(f"{IdleCause.SYNCHRONIZATION} x0",),
        why="the host waits for the device {calls} a step, mostly in {caller}; each wait leaves the device's queue"
        " empty",
        figures={
            "calls": count(view.per_step(sum(sums[0] for sums in callers.values())), "time"),
            "caller": name(caller.removeprefix("aten::")),
            "of_caller": count(view.per_step(calls), "call"),
            "spent": ns(view.per_step(spent)),
        },
        tries=(_INSTEAD.get(caller.removeprefix("aten::"), _KEEP_ON_DEVICE), "Print and log fewer values."),
        section="host",
    )


_KEEP_ON_DEVICE: Final = "Keep the value on the device; read it only every N steps."
_NO_ITEM: Final = (
    "Keep values on the device (no .item(), no float(), no `if` on a tensor); read them only every N steps."
)
_NO_INDICES: Final = "Use masks instead of indices: torch.where(mask, a, b) instead of x[mask]."
_NON_BLOCKING: Final = "Copy with non_blocking=True and pinned host memory."
_INSTEAD: Final = {
    "item": _NO_ITEM, "_local_scalar_dense": _NO_ITEM,
    "is_nonzero": "Replace `if` on a tensor with torch.where, which stays on the device.",
    "nonzero": _NO_INDICES, "index": _NO_INDICES, "masked_select": _NO_INDICES,
    "copy_": _NON_BLOCKING, "to": _NON_BLOCKING, "_to_copy": _NON_BLOCKING,
}  # fmt: skip


#: A step that frees device memory this often does not reuse cached memory.
_UNCACHED: Final = 100
#: A step is stalled by the allocator if its stall is at least this fraction of the worst step's.
_BURST: Final = 0.2
_EXPANDABLE: Final = "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
_CACHING: Final = (
    "Unset PYTORCH_NO_CUDA_MEMORY_CACHING (ROCm: PYTORCH_NO_HIP_MEMORY_CACHING) if it is set, so that torch caches"
    " memory."
)


def _allocator(view: View) -> Iterator[Advice]:
    gain, rows = view.idle(IdleCause.ALLOCATOR)
    step, like = view.anatomy.step, steps_of_window(view.anatomy)
    # Steps that are set aside may be so because of it: then the mean over all steps is the figure.
    aside_ns = step.aside_idle_ns.get(IdleCause.ALLOCATOR, 0)
    every = round((gain * like + aside_ns * step.aside_count) / (like + step.aside_count))
    if step.aside_count and every > gain:
        whole = round((view.step_ns * like + (step.aside_wall_ns or 0) * step.aside_count) / (like + step.aside_count))
        yield Advice(
            id="",
            gain_ns=every,
            step_ns=whole,
            why="in {steps} of {all} (excluded from the other numbers), the allocator's driver calls leave the device"
            " idle for {aside} a step; the mean step time over all steps is {whole}",
            figures={
                "aside": ns(aside_ns),
                "steps": count(step.aside_count, "step"),
                "whole": ns(whole),
                "all": Evidence(value=round(like + step.aside_count), unit=""),
            },
            tries=(_EXPANDABLE, "If torch empties its cache because memory runs out, use a smaller batch."),
            section="step",
        )
        return
    if not gain:
        return
    row = rows[0]
    frees = "Free" in (row.name or "")
    calls = (row.events or 0) / like
    cached = (
        "Remove torch.cuda.empty_cache() from the loop."
        if frees
        else "Run a warm-up step first: it reserves the memory."
    )
    # Frees in operators come from an allocator that had no room left: it gives its cache back and asks again.
    callers: dict[str | None, int] = {}
    for freed in view.anatomy.host:
        if FREES.match(freed.name):
            callers[freed.caller] = callers.get(freed.caller, 0) + freed.total_ns
    caller = max(callers, key=lambda name: callers[name], default=None)
    tries: tuple[str, ...] = cached, _EXPANDABLE
    if frees:
        tries = _CACHING if calls >= _UNCACHED else _EXPANDABLE, cached
    if frees and caller and "::" in caller:
        full = "Device memory fills up: use a smaller batch, or lower the peak in another way."
        tries = (_CACHING,) if calls >= _UNCACHED else (_EXPANDABLE, full)
    spent = [each.idle_causes.get(IdleCause.ALLOCATOR, 0) for each in step.steps if each.set_aside is None]
    much = sum(ns >= _BURST * max(spent) for ns in spent)
    in_steps = " in {steps}" if much == len(spent) else " in {much} of {steps}"
    yield Advice(
        id="",
        gain_ns=gain,
        subject=row.name,
        changes=(f"{IdleCause.ALLOCATOR} x0",),
        why=f"the allocator calls the driver {{every}}{'' if like == 1 else in_steps} ({{call}}"
        + (" in {caller}" if frees and caller else "")
        + "), which leaves the device idle for {gain} a step",
        figures={
            "calls": count(calls, "time"),
            "every": count(row.events or 0, "time"),
            "steps": count(like, "step"),
            "much": Evidence(value=much, unit=""),
            "call": name(row.name or "?"),
            "caller": name((caller or "").removeprefix("aten::")),
            "gain": ns(gain),
        },
        tries=tries,
        section="idle",
    )


def _cold_start(view: View) -> Iterator[Advice]:
    gain, rows = view.idle(IdleCause.SLOW_LAUNCH)
    if not gain:
        return
    row = rows[0]
    yield Advice(
        id="",
        gain_ns=gain,
        subject=row.name,
        changes=(f"{IdleCause.SLOW_LAUNCH} x0",),
        why="loading kernels, launching them for the first time and initializing libraries take {gain} a step"
        + (", mostly in {call}" if row.name else "")
        + "; later steps do not spend this time",
        figures={"gain": ns(gain), "call": name(row.name or "")},
        tries=("Record later steps: schedule(wait=1, warmup=3, active=3).",),
        section="idle",
    )


def _compilation(view: View) -> Iterator[Advice]:
    run = view.anatomy.run
    if run is not None and run.recompilations:
        most = run.recompilations[0]
        gain = _in_mean_step(run, run.compiling_ns)
        yield Advice(
            id="",
            gain_ns=gain,
            step_ns=_in_mean_step(run, run.wall_ns),
            subject=most.place,
            why="compiling takes {gain} a step, averaged over {steps}; the code at {place} was recompiled {times}:"
            " {reason}",
            figures={
                "gain": ns(gain),
                "steps": count(run.steps, "step"),
                "times": count(most.count, "time"),
                "reason": name(most.reason),
                "place": name(most.place),
            },
            tries=("Treat varying sizes as dynamic: torch.compile(dynamic=True).", "Pad inputs to a few fixed sizes."),
            section="whole-run",
        )
        return
    gain, rows = view.idle(IdleCause.COMPILATION)
    if not gain:
        return
    yield Advice(
        id="",
        gain_ns=gain,
        subject=rows[0].name,
        why="compiling takes {gain} of the step",
        figures={"gain": ns(gain)},
        tries=(
            "Record later steps, in which nothing is compiled.",
            "Set TORCH_LOGS=recompiles to see what is recompiled.",
            "Treat varying sizes as dynamic: torch.compile(dynamic=True).",
        ),
        section="idle",
    )


def _profiler(view: View) -> Iterator[Advice]:
    gain, rows = view.idle(IdleCause.PROFILER)
    if not gain:
        return
    stack = any(row.name == PYTHON_STACK for row in rows)
    of_stack = "recording Python stacks leaves the device idle for up to {gain} a step"
    why = of_stack if stack else "the device is idle for {gain} a step while the profiler writes its records"
    yield Advice(
        id="",
        gain_ns=gain,
        why=why,
        figures={"gain": ns(gain)},
        tries=("Record without stacks: with_stack=False, with_modules=False." if stack else "Record fewer steps.",),
        section="idle",
    )


# ----- communication


_OVERLAP: Final = {
    "all_to_all": "Between launching the all-to-all and waiting for it, start work that does not need its result.",
    "broadcast": "Broadcast once, before the loop.",
}
_ALL_RANKS: Final = "Analyze the traces of all ranks, to tell waiting from transfer: opanatomy analyze FOLDER."
#: A twentieth of the slowest link between devices in use (PCIe 3.0 x16, 15.75 GB/s): below it a collective waits.
_WAITS_BELOW: Final = 15.75e9 / 20
#: Collectives with this share of a phase's exposed time get remedies too.
_MIN_EXPOSED_SHARE: Final = 0.2
#: This many all-reduces per step mean that gradients are reduced one by one.
_ONE_BY_ONE: Final = 20


def _exposed(view: View) -> Iterator[Advice]:
    waiting = view.costs.waiting_ns or 0
    gain = view.window_ns_per_step(max(view.costs.exposed_ns - waiting, 0))
    communication = view.anatomy.communication
    if not gain or communication is None or not communication.phases:
        return
    phase = max(communication.phases, key=lambda row: row.exposed_ns)
    rows = [row for row in communication.modules if row.phase is phase.phase]
    longest = max(rows, key=lambda row: row.exposed_ns, default=None)
    collective = None if longest is None else longest.collective
    situation = view.situation
    # With one rank of several, what waits is unknown apart; a rate far below any link's says that most of it does.
    alone = view.anatomy.waiting is None and situation.world_size != 1
    rate = _bus_rate(view, collective)
    one_by_one = _one_by_one(view, collective, phase.phase)
    mostly_waits = alone and rate is not None and rate < _WAITS_BELOW and not one_by_one
    calls = view.per_step(sum(row.calls for row in view.anatomy.collectives if row.collective == collective))
    idle = _idle_of_exchanges(view, *_OF_EXCHANGES)
    where = phase.phase.value if 2 * phase.exposed_ns > sum(row.exposed_ns for row in communication.phases) else ""
    where = "" if phase.phase is Phase.OTHER else where
    launched = ", most of it launched in {phase}" if where else ", most of it in {collective}" if collective else ""
    if where and longest is not None and 2 * longest.exposed_ns > phase.exposed_ns:
        launched += " ({collective})"
    asks = (_ALL_RANKS,) if alone else ()
    exposed: dict[str, int] = {}
    for row in rows:
        exposed[row.collective] = exposed.get(row.collective, 0) + row.exposed_ns
    ranked = sorted(exposed, key=lambda each: -exposed[each])
    some = [each for each in ranked if exposed[each] >= _MIN_EXPOSED_SHARE * sum(exposed.values())]
    tries = () if mostly_waits else tuple(cure for each in some for cure in _hides(view, each, phase.phase, gain))
    if not asks and not tries:
        tries = ("Start other work between launching the collective and waiting for it.",)
    yield Advice(
        id="",
        gain_ns=gain + idle,
        subject=collective,
        changes=() if one_by_one else ("communication x0",),
        is_bound=True,
        why=(
            "gradients are reduced one by one: {calls} a step take {gain}, and the device idles for {idle} around them"
            if one_by_one
            else "{gain} of communication is exposed" + launched
        )
        + (
            "; this includes waiting for other ranks"
            if alone
            else ", excluding waits for other ranks"
            if waiting
            else ""
        )
        + (", as does the bus bandwidth of {rate}" if alone and rate is not None else ""),
        figures={
            "gain": ns(gain),
            "phase": name(phase.phase.value),
            "calls": count(calls, collective or "collective"),
            "idle": ns(idle),
            "collective": name(collective or ""),
            "rate": Evidence(value=rate, unit="byte/s"),
            "running": ns(communication.running_ns / steps_of(view.anatomy)),
        },
        tries=(*asks, *tries) if rate is None and not one_by_one else (*tries, *asks),
        section="communication",
    )


#: Causes of idle time around collectives that are called one by one.
_OF_EXCHANGES: Final = (IdleCause.COLLECTIVE, IdleCause.OPERATORS, IdleCause.PYTHON, IdleCause.STREAM)
_COLLECTIVE: Final = regex(r"^(?:nccl|rccl|msccl|oneccl)", re.IGNORECASE)


def _is_one_by_one(view: View) -> bool:
    """Return whether gradients are reduced tensor by tensor in backward."""
    communication = view.anatomy.communication
    phases = () if communication is None else communication.phases
    longest = max(phases, key=lambda row: row.exposed_ns, default=None)
    return longest is not None and _one_by_one(view, "all_reduce", longest.phase)


def _idle_of_exchanges(view: View, *causes: IdleCause) -> int:
    """Return the idle time adjacent to collectives that reduce gradients one by one; bucketing would remove it."""
    if not _is_one_by_one(view):
        return 0
    return view.window_ns_per_step(sum(row.exchanging_ns or 0 for row in view.costs.causes if row.cause in causes))


def _bus_rate(view: View, collective: str | None) -> float | None:
    """Return the bus bandwidth of a collective's calls; `None` if sizes or groups are unknown."""
    rows = [
        row
        for row in view.anatomy.collectives
        if row.collective == collective and row.bus_bytes_per_second is not None and row.sized_ns
    ]
    spent = sum(row.sized_ns for row in rows)
    return sum((row.bus_bytes_per_second or 0) * row.sized_ns for row in rows) / spent if spent else None


def _one_by_one(view: View, collective: str | None, phase: Phase) -> bool:
    """Return whether gradients are reduced tensor by tensor: many calls in backward, by nobody's buckets."""
    calls = sum(row.calls for row in view.anatomy.collectives if row.collective == collective)
    situation = view.situation
    bucketed = situation.ddp or situation.fsdp or situation.tensor_parallel
    many = calls >= _ONE_BY_ONE * steps_of(view.anatomy)
    return collective == "all_reduce" and phase is Phase.BACKWARD and many and not bucketed


def _hides(view: View, collective: str | None, phase: Phase, gain: int) -> Iterator[str]:
    """Yield what overlaps a collective with compute, given the parallelism of the ranks."""
    situation = view.situation
    if _one_by_one(view, collective, phase):
        yield "Reduce gradients together: use DistributedDataParallel, or all-reduce one flat buffer."
    elif collective == "all_reduce" and situation.tensor_parallel and phase is not Phase.OPTIMIZER:
        yield "Use sequence parallelism, which splits the all-reduce, or async tensor parallelism, which overlaps it."
    elif collective == "all_reduce" and situation.ddp and situation.backward:
        yield "Tune DDP(bucket_cap_mb=...): smaller buckets start earlier, larger ones transfer faster."
        yield "Pass gradient_as_bucket_view=True and static_graph=True to DDP."
    elif collective == "broadcast" and situation.ddp:
        yield (
            "Pass broadcast_buffers=False to DDP, if ranks need not have equal buffers (such as batch norm statistics)."
        )
    elif collective in ("all_gather", "reduce_scatter") and situation.fsdp:
        yield from _fsdp_remedies(view, collective, gain)
    elif collective == "reduce_scatter" and phase is Phase.OPTIMIZER:
        yield "Start each reduce-scatter in backward, as soon as its gradients are ready."
    elif collective and phase is Phase.OPTIMIZER:  # what is gathered there is needed by the next step at the earliest
        yield f"Pass async_op=True, and wait for the {collective.replace('_', '-')} where its result is first used."
    elif collective in _OVERLAP:
        yield _OVERLAP[collective]


def _fsdp_remedies(view: View, collective: str, gain: int) -> Iterator[str]:
    rows = [row for row in view.anatomy.collectives if row.collective == collective]
    one = sum(row.time_ns for row in rows) / max(sum(row.calls for row in rows), 1)
    if collective == "reduce_scatter":
        if view.situation.backward:
            yield "Use fewer, larger FSDP groups, so that the next group's backward hides each reduce-scatter."
    elif gain <= 1.25 * one:  # one call alone: the first of a step, which nothing runs beside
        yield "Call model.unshard(async_op=True) before the step: nothing overlaps the first all-gather."
    else:
        yield "Prefetch with FSDP's set_modules_to_forward_prefetch and set_modules_to_backward_prefetch."
        if view.situation.backward:
            yield "If memory allows, pass reshard_after_forward=False, which keeps the gathered weights."


def _outside(view: View) -> Iterator[Advice]:
    around = view.anatomy.timeline.around_ns or 0
    if not view.costs.of_trace or around <= view.costs.whole_ns:
        return
    loader = {"workers": "DataLoader (workers)", "single process": "DataLoader (single process)"}
    seen = loader.get(view.situation.loader or "")
    yield Advice(
        id="",
        why="{around} of the trace lies before the first or after the last device work, and no other number includes it"
        + ("; the trace shows a {loader}" if seen else ""),
        figures={"around": ns(around), "loader": name(seen or "")},
        tries=("Record complete steps: schedule(wait=1, warmup=1, active=3), with profiler.step() in the loop.",),
        section="step",
    )


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
    gap = None if early else _straggling(view)
    tries: tuple[str, ...]
    gain += 0 if gap is None else round(gap.cause_ns * gap.count)
    computes = straggler.computing_longer_ns >= straggler.idle_longer_ns
    if early:
        alone = steps_of(view.anatomy) <= view.situation.ranks
        again = ("Record several steps: ranks start recording at different times.",) if alone else ()
        why = ", mostly because it starts its step late"
        tries = f"Look at what {who} does between steps: input, logging, checkpoints.", *again
    elif gap is not None:
        why = ": its device idles for {idle} a step" + (" while its host is in {where}" if gap.name else "")
        tries = (f"Look at what the host of {who} does then: add torch.profiler.record_function, or record stacks.",)
    elif computes and straggler.computing_longer_ns:
        why, tries = (
            "; it computes longer than the other ranks",
            ("Balance the work across ranks: sample lengths, embedding tables, experts.",),
        )
    else:
        why, tries = "", (f"Look at what {who} does while the other ranks wait: run opanatomy analyze on its trace.",)
    yield Advice(
        id="",
        gain_ns=gain,
        subject=who,
        why="{who} causes {share} of the waiting" + why,
        figures={
            "share": part(share),
            "who": name(who),
            "early": part(before / max(straggler.charged_ns, 1)),
            "idle": ns(gap.time_ns if gap else 0),
            "where": name((gap.name if gap else None) or ""),
        },
        tries=tries,
        section="waiting",
    )


# ----- copies from the host


def _pinning(view: View) -> Iterator[Advice]:
    rows = [row for row in view.anatomy.kernels if "HtoD" in row.kernel and "Pageable" in row.kernel]
    back = [row for row in view.anatomy.kernels if "DtoH" in row.kernel and "Pageable" in row.kernel]
    way = "from"
    if sum(row.time_ns for row in back) > sum(row.time_ns for row in rows):
        rows, way = back, "to"
    spent = view.per_step(sum(row.time_ns for row in rows))
    exposed = view.window_ns_per_step(view.anatomy.timeline.exposed_memcpy_ns or 0)
    gain, copies = min(spent, exposed), round(view.per_step(sum(row.count for row in rows)))
    # What is made on the device is not copied.
    if not gain or any(map(_makes_on_host, view.anatomy.timeline.gaps)):
        return
    yield Advice(
        id="",
        gain_ns=gain,
        why=f"{{copies}} a step {'is' if copies == 1 else 'are'} {way} pageable host memory; up to"
        f" {{exposed}} of {'its' if copies == 1 else 'their'} time overlaps no other work",
        figures={"copies": count(copies, "copy"), "exposed": ns(gain)},
        tries=(_PIN_BATCH if way == "from" else _NON_BLOCKING,),
        section="kernels",
    )


_PIN_BATCH: Final = (
    "Pin the batch and copy it without blocking: DataLoader(pin_memory=True), .to(device, non_blocking=True)."
)


#: Calls that move this many bytes do not fit into the cache of a small device.
_UNCACHED_BYTES: Final = 1 << 23
#: A device's memory is far faster than this, the host's across a link is not: a tenth of the bandwidth, at most so many
#: bytes a second.
_SPILLED_SHARE, _OF_A_LINK = 0.1, 16e9


def _spilled_rows(view: View) -> list[int]:
    """Return the rows of large maps and normalizations that run at link speed, if these are the majority."""
    bandwidth = view.anatomy.device.bandwidth_bytes_per_second
    if view.on_cpu or not bandwidth:
        return []
    limit = min(_SPILLED_SHARE * bandwidth, _OF_A_LINK)
    large, slow, of_slow = 0, 0, []
    for index, row in enumerate(view.anatomy.operators):
        if row.operator_class not in (CLASS.ELEMENTWISE, CLASS.STATISTICAL_NORMALIZATION) or row.uncosted_ns:
            continue
        moved = _moved(row)
        if not row.crosses_host_link and moved >= _UNCACHED_BYTES * max(row.calls, 1):
            large += row.time_ns
            if moved * _NS < limit * row.time_ns:
                slow += row.time_ns
                of_slow.append(index)
    return of_slow if 2 * slow > large else []


def _moved(row: OperatorRow) -> int:
    return (row.read_bytes or 0) + (row.written_bytes or 0)


def _spilled(view: View) -> Iterator[Advice]:
    rows = [view.anatomy.operators[index] for index in _spilled_rows(view)]
    bandwidth = view.anatomy.device.bandwidth_bytes_per_second
    if not rows or not bandwidth:
        return
    spent, moved = sum(row.time_ns for row in rows), sum(map(_moved, rows))
    saved = spent - moved / bandwidth * _NS
    longest = max(rows, key=lambda row: row.time_ns)
    yield Advice(
        id="",
        gain_ns=view.per_step(saved),
        subject=longest.operator,
        is_bound=True,
        changes=_faster(view, ((row, row.time_ns * saved / spent) for row in rows)),
        why="large element-wise operators and normalizations take {time} and reach only {rate}, as if memory had"
        " spilled to the host",
        figures={
            "time": ns(view.per_step(spent)),
            "rate": Evidence(value=moved / spent * _NS, unit="byte/s"),
            "operator": name(longest.operator),
        },
        tries=(
            "Use less memory: a smaller batch, or checkpointing.",
            "On Windows, turn off CUDA's fallback to system memory, so that allocations that do not fit fail.",
        ),
        section="roofline",
    )


# ----- work that takes longer than it must


def _attained_share(view: View, row: OperatorRow) -> float:
    """Return the part of the peak that the fastest products of a row's type attain."""
    dtype = row.signature.record.compute_dtype or ""
    kind = row.compute_type or ("float8" if dtype.startswith("float8") else dtype)
    return view.anatomy.device.attained_share.get(kind, 1.0)


def _least_ns(view: View, row: OperatorRow) -> float:
    """Return the minimum time of a row's calls: its bound, for contractions at the attainable fraction of peak."""
    bound = row.bound_ns or 0
    attains = row.operator_class is CLASS.TENSOR_CONTRACTION and row.bound_by == COMPUTE
    return bound / (_attained_share(view, row) * _clock_share(view)) if attains else bound


def _clock_share(view: View) -> float:
    """Return the fraction of the maximum clock left by throttling or a setting; 1 if the device is not held down."""
    state = view.anatomy.device_state
    return (state.clock_share or 1.0) if state is not None and state.held_by is not None else 1.0


#: What restores the clock, by the reason for throttling.
_RELEASED: Final = {
    "heat": "Cool the device: check its fans, the intake air and the devices beside it.",
    "hardware slowdown": "Check the device's power cables and cooling (nvidia-smi -q -d PERFORMANCE).",
    "power brake": "Check the machine's power supply: it triggers the device's power brake.",
    "set clocks": "Release locked clocks (nvidia-smi --reset-gpu-clocks), or set higher ones (--applications-clocks).",
}


def _clock(view: View) -> Iterator[Advice]:
    state, share = view.anatomy.device_state, _clock_share(view)
    if state is None or state.held_by is None or share == 1.0:
        return
    rows = [row for row in view.anatomy.operators if row.bound_by == COMPUTE]
    gain = view.per_step(round((1 - share) * sum(row.bounded_ns for row in rows)))
    yield Advice(
        id="",
        gain_ns=gain,
        changes=_faster(view, ((row, (1 - share) * row.bounded_ns) for row in rows)),
        why="the clock is held at {clock} (maximum: {limit}) by {reason} in {held} of the driver's readings;"
        " compute-bound operators take {time} a step",
        figures={
            "reason": name(state.held_by),
            "clock": name(f"{state.clock_mhz:,} MHz"),
            "limit": name(f"{state.clock_limit_mhz:,} MHz"),
            "held": part(state.reasons[state.held_by] / state.readings),
            "time": ns(view.per_step(sum(row.bounded_ns for row in rows))),
        },
        tries=(_RELEASED[state.held_by],),
        section="step",
    )


def _time_beyond(view: View, rows: Sequence[OperatorRow]) -> int:
    """Return the time beyond the bounds; an operator whose parts have rows of their own may spend it in those."""
    if any(row.part_of for row in rows):
        return max(round(sum(row.bounded_ns - _least_ns(view, row) for row in rows)), 0)
    return round(sum(max(row.bounded_ns - _least_ns(view, row), 0) for row in rows if row.bound_ns is not None))


def _far_from_bound(view: View) -> Iterator[Advice]:
    for (operator, phase), rows in _far(view).items():
        gain = view.per_step(_time_beyond(view, rows))
        bounded, bound = sum(row.bounded_ns for row in rows), sum(row.bound_ns or 0 for row in rows)
        where = "" if phase is Phase.OTHER else f" in {phase.value}"
        yield Advice(
            id="",
            gain_ns=gain,
            subject=f"{operator}{where}",
            changes=_faster(view, ((row, _time_beyond(view, [row])) for row in rows)),
            why=f"{{operator}}{where} takes {{time}} ({{reached}} of peak); {{least}} is attainable"
            f"{_at_this_clock(view)}",
            figures={
                "operator": name(operator.removeprefix("aten::")),
                "time": ns(view.per_step(bounded)),
                "bound": ns(view.per_step(bound)),
                "least": ns(view.per_step(bounded) - gain),
                "reached": part(bound / bounded),
            },
            tries=tuple(_nearer(view, rows)),
            section="roofline",
        )


def _at_this_clock(view: View) -> str:
    return " at this clock" if _clock_share(view) < 1 else ""


def _far(view: View) -> dict[tuple[str, Phase], list[OperatorRow]]:
    """Return the rows of each operator and phase far enough from the bound to matter and with a known remedy."""
    groups: dict[tuple[str, Phase], list[OperatorRow]] = {}
    for index, row in enumerate(view.anatomy.operators):
        if row.bound_ns is not None and index not in view.covered and row.operator_class is not CLASS.COMMUNICATION:
            groups.setdefault((row.part_of or row.operator, row.phase), []).append(row)
    return {
        key: rows
        for key, rows in groups.items()
        if view.per_step(_time_beyond(view, rows)) >= WORTH * view.step_ns and any(_nearer(view, rows))
    }


def _in_chains(view: View) -> Iterator[int]:
    """Yield the rows that could be fused with their neighbours, in phases where this is worth it."""
    phases = {row.phase for row in view.anatomy.chains if view.per_step(row.time_ns) >= WORTH * view.step_ns}
    for index, row in enumerate(view.anatomy.operators):
        if row.phase in phases and is_fusible(row.operator_class, row.operator):
            yield index


def _nearer(view: View, rows: Sequence[OperatorRow]) -> Iterator[str]:
    """Yield what may bring an operator closer to its bound, judged by its largest calls."""
    largest = max(rows, key=lambda row: _time_beyond(view, [row]))
    tensors = [tensor for tensor in largest.signature.record.tensors() if tensor.dtype is not None]
    compiled = view.situation.compiled or largest.operator.startswith("triton")
    if largest.operator_class is not CLASS.TENSOR_CONTRACTION:
        if not compiled and not any(True for _ in _in_chains(view)):  # which have the same cure
            yield f"Fuse the operator with its neighbors: {_COMPILE}."
        return
    narrow = min((size for tensor in tensors if len(tensor.shape) == 3 for size in tensor.shape[1:]), default=_TILE)
    if "bmm" in largest.operator and narrow < _TILE and not view.on_cpu:
        yield f"Pad the dimension of size {narrow} to {_TILE}: it is too narrow for tensor cores."
        return
    odd = _misaligned(tensors)
    if odd is not None and not view.on_cpu:
        size, to = odd
        yield f"Pad rows of {size} elements to a multiple of {to}."
    if "conv" in largest.operator and not view.on_cpu:
        yield _CHANNELS_LAST
    if view.on_cpu and "_slow_conv" in largest.operator:
        yield "Let oneDNN run the convolution: leave torch.backends.mkldnn enabled, and use float32 or bfloat16."
    blocks = _blocks_per_sm(view, largest)
    small = (largest.bound_ns or 0) / max(largest.calls, 1) < _SHORT_NS if blocks is None else blocks < _FILLED
    if small and not view.on_cpu:
        yield "Use a larger batch: the calls are too small to fill the device."
    if "attention" in largest.operator:
        fused = "flash" in largest.operator or any(_FLASH.search(kernel.kernel) for kernel in view.anatomy.kernels)
        if "cudnn" in largest.operator:
            return
        if not fused:
            yield 'Try another attention kernel: attn_implementation="flash_attention_2" or "flex_attention".'
        elif re.search(r"\bG?[HB][123]00", view.anatomy.environment.device or ""):
            yield "Try a newer kernel than FlashAttention-2: cuDNN's (SDPBackend.CUDNN_ATTENTION) or FlashAttention-3."
    elif not compiled:
        yield 'Try other kernels: torch.compile(model, mode="max-autotune").'


def _blocks_per_sm(view: View, row: OperatorRow) -> float | None:
    """Return the thread blocks per multiprocessor of an operator's kernels; `None` if not recorded."""
    rows = [
        kernel
        for kernel in view.anatomy.kernels
        if kernel.blocks_per_sm is not None and {row.operator, row.part_of} & {*kernel.operators}
    ]
    spent = sum(kernel.time_ns for kernel in rows)
    return sum((kernel.blocks_per_sm or 0) * kernel.time_ns for kernel in rows) / spent if spent else None


_CHANNELS_LAST: Final = "Keep images channels-last: .to(memory_format=torch.channels_last) on model and inputs."
#: Side of the smallest tensor core tile.
_TILE: Final = 16
#: Kernels of FlashAttention-2.
_FLASH: Final = regex(r"pytorch_flash|flash_(?:fwd|bwd)_")
#: Kernels with fewer blocks per multiprocessor leave much of the device idle; persistent kernels have about one.
_FILLED: Final = 0.5
#: A call with a bound below this is too small for a GPU.
_SHORT_NS: Final = 10_000


def _misaligned(tensors: Sequence[Tensor]) -> tuple[int, int] | None:
    """Return a row length that is not aligned for tensor cores, and the multiple that would be.

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
    spent = 0.0
    saved: list[tuple[OperatorRow, float]] = []
    kinds: dict[str, int] = {}
    for index, kind in _float32_products(view):
        row = view.anatomy.operators[index]
        kinds[kind] = kinds.get(kind, 0) + row.time_ns
        faster = 1 - min(peaks.get(kind, peaks[half]) / peaks[half], 1.0)
        if row.bound_ns:
            moved = ((row.read_bytes or 0) + (row.written_bytes or 0)) / 2
            least = max((row.flops or 0) / peaks[half], moved / bandwidth) * _NS
            faster = 1 - min(least / row.bound_ns, 1.0)
        spent += row.time_ns
        saved.append((row, row.time_ns * faster))
    gain = sum(ns for _, ns in saved)
    if not gain:
        return
    scaled = ", with a GradScaler" if half == "float16" and view.situation.backward else ""
    tries = [f'Use {half} matmuls: torch.autocast("{"cpu" if view.on_cpu else "cuda"}", torch.{half}){scaled}.']
    if peaks.get(TF32) and 2 * kinds.get(FLOAT32, 0) >= sum(kinds.values()):
        tries.append('Use TF32 matmuls: torch.set_float32_matmul_precision("high").')
    most = max(kinds, key=lambda kind: kinds[kind])
    others = "" if len(kinds) == 1 else ", mostly {most}"
    yield Advice(
        id="",
        gain_ns=view.per_step(gain),
        changes=_faster(view, saved),
        why=f"{{kinds}} matmuls take {{time}}{others}; {{half}} peaks at {{peak}}, {{most}} at {{now}}",
        figures={
            "kinds": name(" and ".join(sorted(kinds))),
            "time": ns(view.per_step(spent)),
            "half": name(half),
            "peak": Evidence(value=peaks[half], unit="flop/s"),
            "most": name(most),
            "now": Evidence(value=peaks.get(most, 0.0), unit="flop/s"),
        },
        tries=tuple(tries),
        **view.lever("amp" if half == "bfloat16" else "amp-fp16"),
        section="roofline",
    )


def _float32_products(view: View) -> Iterator[tuple[int, str]]:
    """Yield the rows of products of float32 operands, each with the type that they were computed in.

    The type comes from kernel names; in a trace without shapes or such names, tensor cores are taken to be unused.
    """
    device, launching = view.anatomy.device, view.anatomy.timeline.launching
    resting = device.tensor_core_ns == 0 and not device.tensor_core_unknown_ns and launching is not None
    for index, row in enumerate(view.anatomy.operators):
        if row.operator_class is not CLASS.TENSOR_CONTRACTION or index in view.covered:
            continue
        dtype = row.signature.record.compute_dtype
        if row.compute_type in (FLOAT32, TF32) or (dtype == FLOAT32 and (view.on_cpu or row.bound_ns is not None)):
            yield index, TF32 if row.compute_type == TF32 else FLOAT32
        elif dtype is None and resting:
            yield index, FLOAT32


def _scores(view: View) -> Iterator[int]:
    """Yield the rows of unfused attention, except its contractions: work on score matrices."""
    shapes = score_shapes(view.anatomy.operators)
    for index, row in enumerate(view.anatomy.operators):
        if shapes and row.operator_class is not CLASS.TENSOR_CONTRACTION and largest_shape(row) in shapes:
            yield index


def _score_products(view: View) -> Iterator[int]:
    """Yield the rows of the contractions of unfused attention, which produce or consume scores."""
    keys = {shape[-2:] for shape in score_shapes(view.anatomy.operators)}
    for index, row in enumerate(view.anatomy.operators):
        if row.operator in ("aten::bmm", "aten::baddbmm"):
            matrices = [tensor.shape for tensor in row.signature.record.tensors() if len(tensor.shape) == 3]
            if len(matrices) >= 2:
                made = (matrices[-2][-2], matrices[-1][-1])
                if keys & {made, *(shape[-2:] for shape in matrices)}:
                    yield index


#: Contractions in a fused attention kernel reach about this fraction of the peak.
_OF_FUSED_ATTENTION: Final = 0.5


def _fused_products(view: View) -> tuple[float, float]:
    """Return (time of the contractions of unfused attention, their time in a fused kernel)."""
    peaks, spent, least = view.anatomy.device.peak_flops_per_second, 0.0, 0.0
    for index in _score_products(view):
        row = view.anatomy.operators[index]
        dtype = row.compute_type or row.signature.record.compute_dtype or ""
        peak = peaks.get(dtype)
        if peak and row.flops and not row.uncosted_ns:
            spent, least = spent + row.time_ns, least + row.flops / (_OF_FUSED_ATTENTION * peak) * _NS
    return spent, min(least, spent)


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
    rows = [view.anatomy.operators[index] for index in _scores(view)]
    spent = sum(row.time_ns for row in rows)
    if not spent:
        return
    products, fused = _fused_products(view)
    of_products = [view.anatomy.operators[index] for index in _score_products(view)] if products else []
    saved = [(row, float(row.time_ns)) for row in rows]
    saved += [(row, row.time_ns * (1 - fused / products)) for row in of_products]
    workload, situation = view.anatomy.workload, view.situation
    draws = [row for row in rows if "bernoulli" in row.operator or "dropout" in row.operator]
    dropped = view.per_step(sum(row.time_ns for row in draws))
    pulled: dict[str, Any] = {}
    if workload.attention is not None and workload.attention != "sdpa":
        tries: tuple[str, ...] = (f"Use fused attention, which keeps no score matrix: {LEVER['sdpa'].python}.",)
        pulled = view.lever("sdpa")
    elif draws and situation.backward and view.on_cpu:  # GPUs have kernels for it
        dropout = _dropout_of(workload)
        named = "" if dropout else " (dropout_p=0)"
        tries = (f"Turn off attention dropout{named}, so that a fused kernel can run; this changes the training.",)
        pulled = {"option": f"--set {dropout}=0"} if dropout else {}
    elif workload.attention == "sdpa" or any(row.operator in SOFTMAX_OF_SDPA for row in rows):
        tries = (_fuses_attention(MATH_ATTENTION),)
    else:
        masked = ", with is_causal=True if the mask is causal" if situation.score_mask else ""
        tries = (f"Call torch.nn.functional.scaled_dot_product_attention{masked}.",)
    yield Advice(
        id="",
        gain_ns=view.per_step(spent + products - fused),
        changes=_faster(view, saved),
        why="unfused attention spends {scores} on its score matrices ({shape})"
        + (", {dropped} of that on dropout" if draws else "")
        + (", and {products} on its matmuls" if products else ""),
        figures={
            "scores": ns(view.per_step(spent)),
            "shape": name(" x ".join(map(str, largest_shape(rows[0])))),
            "dropped": ns(dropped),
            "products": ns(view.per_step(products)),
        },
        tries=tries,
        section="operators",
        **pulled,
    )


def _casts(view: View) -> Iterator[Advice]:
    if view.situation.compiled:
        return
    rows = casts(view.anatomy.operators)
    gain = view.per_step(sum(row.time_ns for row in rows))
    if not gain:
        return
    keeps = "Keep the weights in half precision: model.to(torch.bfloat16)"
    yield Advice(
        id="",
        gain_ns=gain,
        changes=_faster(view, ((row, row.time_ns) for row in rows)),
        why="casting float32 operands of matmuls to half precision takes {gain} ({calls} a step)",
        figures={"calls": count(view.per_step(sum(row.calls for row in rows)), "copy"), "gain": ns(gain)},
        tries=(f"{keeps}; this changes the training." if view.situation.backward else f"{keeps}.",),
        section="operators",
    )


_LOSS: Final = regex(r"nll_loss|cross_entropy")
_LOG_SOFTMAX: Final = regex(r"log_?softmax")
#: Fewer classes than this are no vocabulary.
_VOCABULARY: Final = 4096


def _logits(row: OperatorRow) -> dict[tuple[int, int], list[Tensor]]:
    """Return the tensors of an operator that may hold logits, by (rows, classes)."""
    held: dict[tuple[int, int], list[Tensor]] = {}
    for tensor in row.signature.record.tensors():
        if len(tensor.shape) > 1 and tensor.shape[-1] >= _VOCABULARY:
            held.setdefault((prod(tensor.shape[:-1]), tensor.shape[-1]), []).append(tensor)
    return held


def _losses(view: View) -> dict[tuple[int, int], list[int]]:
    """Return the rows of each cross entropy over a vocabulary, casts of its logits too, by their (rows, classes).

    Empty where no advice applies: on the CPU, where chunked computation measured slower, and without known bandwidth.
    """
    operators = view.anatomy.operators
    if view.on_cpu or not view.anatomy.device.bandwidth_bytes_per_second:
        return {}
    losses: dict[tuple[int, int], list[int]] = {
        shape: []
        for row in operators
        if _LOG_SOFTMAX.search(row.operator) and row.operator_class is CLASS.STATISTICAL_NORMALIZATION
        for shape in _logits(row)
    }
    for index, row in enumerate(operators) if losses else ():
        for shape, tensors in _logits(row).items():
            casts_them = row.operator in CASTS and len({tensor.dtype for tensor in tensors}) > 1
            if shape in losses and (casts_them or _LOSS.search(row.operator) or _LOG_SOFTMAX.search(row.operator)):
                losses[shape].append(index)
                break
    return {shape: rows for shape, rows in losses.items() if any(_LOSS.search(operators[row].operator) for row in rows)}


def _loss(view: View) -> Iterator[Advice]:
    bandwidth, operators = view.anatomy.device.bandwidth_bytes_per_second, view.anatomy.operators
    losses = {shape: [operators[index] for index in indices] for shape, indices in _losses(view).items()}
    if not losses or not bandwidth:
        return
    spent = {shape: sum(row.time_ns for row in rows) for shape, rows in losses.items()}
    moved = 0
    for (count_, classes), rows in losses.items():
        item = min(ITEM_SIZE.get(t.dtype or FLOAT32) or 4 for row in rows for t in _logits(row)[count_, classes])
        calls = max(row.calls for row in rows if _LOG_SOFTMAX.search(row.operator))
        moved += calls * count_ * classes * item * (3 if view.situation.backward else 1)
    whole = sum(spent.values())
    saved = max(whole - moved / bandwidth * _NS, 0)
    largest = max(spent, key=lambda shape: spent[shape])
    yield Advice(
        id="",
        gain_ns=view.per_step(saved),
        is_bound=True,
        changes=_faster(view, ((row, row.time_ns * saved / whole) for rows in losses.values() for row in rows)),
        why="cross entropy over a vocabulary of {classes} takes {time}; one fused kernel needs {least}",
        figures={
            "classes": name(f"{largest[1]:,}"),
            "time": ns(view.per_step(whole)),
            "least": ns(view.per_step(whole - saved)),
        },
        tries=("Compute the loss and its gradient in one kernel: LigerCrossEntropyLoss of liger-kernel.",),
        section="operators",
    )


def _training_mode(view: View) -> Iterator[Advice]:
    if not view.situation.training_mode or view.situation.backward:
        return
    rows = [row for row in view.anatomy.operators if "dropout" in row.operator or "bernoulli" in row.operator]
    gain = view.per_step(sum(row.time_ns for row in rows))
    yield Advice(
        id="",
        gain_ns=gain if gain >= WORTH * view.step_ns else None,
        why="nothing is trained in these steps, but "
        + ("dropout takes {gain}" if gain else "batch norm computes batch statistics"),
        figures={"gain": ns(gain)},
        tries=("Call model.eval() and run under torch.inference_mode().",),
        section="operators",
    )


def _dropout_of(workload: Workload) -> str | None:
    """Return the configuration field for attention dropout, if known."""
    kind = workload.architecture or ""
    return next((field for begins, field in _DROPOUTS if kind.startswith(begins)), None)


def _chains(view: View) -> Iterator[Advice]:
    rows = [row for row in view.anatomy.chains if row.moved_bytes]
    if not rows:
        return
    # Attention's scores and the loss, where they are written out, are in chains too.
    losses = {index for indices in _losses(view).values() for index in indices}
    others = {*_scores(view), *losses.intersection(_in_chains(view))}
    apart = sum(view.anatomy.operators[index].time_ns for index in others)
    saved = sum(row.time_ns * row.saved_bytes / row.moved_bytes for row in rows)
    spent = sum(row.time_ns for row in rows)
    share = max(1 - apart / spent, 0) if spent else 0
    saved, spent = saved * share, round(spent * share)
    gain = view.per_step(saved)
    if not gain:
        return
    longest = max(rows, key=lambda row: row.time_ns)
    compiled = view.situation.compiled
    kept = {row.phase: share * row.saved_bytes / row.moved_bytes for row in rows}
    chained = ((view.anatomy.operators[index], kept) for index in _in_chains(view))
    yield Advice(
        id="",
        gain_ns=gain,
        subject=longest.operator,
        changes=_faster(view, ((row, row.time_ns * kept.get(row.phase, 0)) for row, kept in chained)),
        why="{calls} ({chains}) take {time}; {share} of this time goes into moving {saved} of intermediates"
        " that a fused kernel would keep in registers",
        figures={
            "calls": count(view.per_step(sum(row.calls for row in rows)), "unfused element-wise call"),
            "chains": count(view.per_step(sum(row.chains for row in rows)), "chain"),
            "time": ns(view.per_step(spent)),
            "share": part(saved / spent),
            "saved": Evidence(value=view.per_step(share * sum(row.saved_bytes for row in rows)), unit="bytes"),
            "operator": name(longest.operator),
        },
        tries=tuple(_fusing(view)),
        **view.lever(None if compiled else "compile"),
        section="operators",
    )


#: Fused layers, by operators that show the layer written out.
_LAYERS: Final = (
    ("torch.nn.functional.rms_norm", {"aten::rsqrt", "aten::mean"}),
    ("a fused SwiGLU", {"aten::silu", "aten::mul"}),
    ("a fused rotary embedding", {"aten::neg", "aten::cat"}),
)


def _fusing(view: View) -> Iterator[str]:
    """Yield what fuses element-wise chains: the compiler, and the layers that the operators show."""
    situation = view.situation
    if not situation.compiled:
        yield f"Fuse each chain into one kernel: {_COMPILE}."
    elif not situation.inductor:
        yield _INDUCTOR
    else:
        yield "Compile this part too: these operators run outside the code that torch.compile fused."
    seen = {view.anatomy.operators[index].operator for index in _in_chains(view)}
    layers = [layer for layer, operators in _LAYERS if operators <= seen]
    if layers:
        yield f"Use fused layers: {', '.join(layers)}."


_ZEROES: Final = regex(r"^Optimizer\.zero_grad#")
_FILLS: Final = ("aten::zero_", "aten::_foreach_zero_", "aten::fill_")


def _zero_grad(view: View) -> Iterator[Advice]:
    ranges = [row for row in view.anatomy.host if _ZEROES.match(row.name)]
    filled = [row for row in view.anatomy.operators if row.operator in _FILLS]
    by_name = {row.name: row.calls for row in view.anatomy.host if row.name in _FILLS}
    added = [row for row in view.anatomy.host if row.name == "torch::autograd::AccumulateGrad"]
    calls = view.per_step(max(by_name.values(), default=sum(row.calls for row in filled)))
    # Gradients that are None are not filled, and nothing is added to them: backward keeps what it has made.
    if view.on_cpu or not ranges or not added or calls < _SEVERAL_LAUNCHES:
        return
    spent, adding = (view.per_step(sum(row.total_ns for row in rows)) for rows in (ranges, added))
    yield Advice(
        id="",
        gain_ns=spent + adding,
        is_bound=True,
        changes=tuple(
            f"{part} x0"
            for part in dict.fromkeys((*(row.name for row in (*ranges, *added)), *(row.operator for row in filled)))
        ),
        why="filling gradients with zeros in zero_grad takes {spent} of host time ({calls} a step), and adding to them"
        " in backward another {adding}",
        figures={"calls": count(calls, "call"), "spent": ns(spent), "adding": ns(adding)},
        tries=("Call zero_grad(set_to_none=True): backward then stores gradients without adding.",),
        section="host",
    )


def _updates(view: View) -> Iterator[int]:
    """Yield the rows of an optimizer that is not one kernel."""
    if view.situation.optimizer in ("foreach", "loop"):
        for index, row in enumerate(view.anatomy.operators):
            if row.phase is Phase.OPTIMIZER and row.operator_class is not CLASS.COMMUNICATION:
                yield index


_UPDATE: Final = regex(r"^Optimizer\.step#")
#: What an update that is launched piece by piece runs.
_UPDATES: Final = regex(r"^Optimizer\.step#|^aten::_foreach_")


def _idle_of_update(view: View) -> int:
    """Return the idle time in which the host launches an update piece by piece, if it is more than the update's work.

    The optimizer rule claims it; the rules for launches and long gaps exclude it.
    """
    if view.situation.optimizer not in ("foreach", "loop") or view.on_cpu:
        return 0
    causes = (IdleCause.OPERATORS, IdleCause.PYTHON)
    idle = view.window_ns_per_step(sum(row.updating_ns or 0 for row in view.costs.causes if row.cause in causes))
    work = view.per_step(sum(view.anatomy.operators[index].time_ns for index in _updates(view)))
    return idle if idle > max(work, WORTH * view.step_ns) and _faster_update(view) else 0


def _faster_update(view: View) -> tuple[str, ...]:
    """Return remedies that launch the update in fewer pieces; one operator over lists is a single pass already."""
    operators = {view.anatomy.operators[index].operator for index in _updates(view)}
    listed = view.situation.optimizer == "foreach"
    if not operators or (listed and len(operators) == 1):
        return ()
    # On the CPU lists are slower than a loop but for the smallest tensors: 1.1 to 1.6 times for ResNet-50 and BERT.
    return _kernels_of(view.anatomy.workload.optimizer, lists=not listed and not view.on_cpu)


def _optimizer(view: View) -> Iterator[Advice]:
    rows = [view.anatomy.operators[index] for index in _updates(view)]
    listed = view.situation.optimizer == "foreach"
    tries = _faster_update(view)
    if not tries:
        return
    step = view.anatomy.step
    spent, when = view.per_step(sum(row.time_ns for row in rows)), ""
    if view.on_cpu:  # with what the host needs between them, in the update and in the plain step
        update = view.per_step(sum(row.total_ns for row in view.anatomy.host if _UPDATE.match(row.name)))
        phase = update or step.phase_ns.get(Phase.OPTIMIZER) or 0
        spent = max(spent, phase)
        if step.unprofiled_wall_ns and step.wall_ns and step.unprofiled_wall_ns < step.wall_ns:
            spent, when = round(spent * step.unprofiled_wall_ns / step.wall_ns), " (unprofiled)"
    calls = view.per_step(sum(row.calls for row in rows))
    least, idle = _update_ns(view, rows), _idle_of_update(view)
    gain = view.host_bound(idle) if idle else spent - least
    if gain <= 0:
        return
    yield Advice(
        id="",
        gain_ns=gain,
        changes=(f"optimizer x{_ONE_PASS}",),
        why=(
            "the device idles for {idle} a step during the update, which makes {calls}"
            if idle
            else f"the optimizer takes {{spent}}{when} in {{calls}}"
        )
        + (", one per operation" if listed else ", tensor by tensor"),
        figures={
            "spent": ns(spent),
            "calls": count(calls, "operator call"),
            "least": ns(least),
            "idle": ns(idle),
        },
        tries=tries,
        **view.lever("adamw" if (view.anatomy.workload.optimizer or "").startswith("adamw-") else None),
        section="classes",
    )


#: What an update in a few calls takes of one in a call for each operation (benchmarks/pairs: 0.1 is within 18 % twice).
_ONE_PASS: Final = 0.1
#: torch optimizers with a fused kernel, and those with only foreach (multi-tensor) operators.
_FUSED: Final = {"sgd", "adam", "adamw", "adagrad"}
_FOREACH_ONLY: Final = {"adadelta", "adafactor", "adamax", "asgd", "nadam", "radam", "rmsprop", "rprop"}


def _kernels_of(optimizers: str | None, *, lists: bool) -> tuple[str, ...]:
    """Return the faster implementations that the loop's optimizers support, with `lists` foreach too."""
    names = {word.strip().partition("-")[0].lower() for word in (optimizers or "adamw").split(",")}
    options = ["fused=True"] if names & _FUSED else []
    options += ["foreach=True"] if names & (_FUSED | _FOREACH_ONLY) and lists else []
    return (f"Pass {' or '.join(options)} to the optimizer.",) if options else ()


def _update_ns(view: View, rows: Sequence[OperatorRow]) -> int:
    """Return the minimum time of a fused update kernel, which reads and writes each tensor once.

    A fused kernel reads weights, gradients and moments once and writes all but the gradients.
    """
    bandwidth, parameters = view.anatomy.device.bandwidth_bytes_per_second, view.anatomy.workload.trainable_parameters
    if not bandwidth or not parameters:
        return 0
    item = ITEM_SIZE.get(view.anatomy.workload.dtype or FLOAT32) or 4
    return round(7 * item * parameters / bandwidth * _NS)


_LAYOUTS: Final = regex(r"nchwToNhwc|nhwcToNchw|NCHW_?to_?NHWC|transpose_nchw|batched_transpose", re.IGNORECASE)


def _layout(view: View) -> Iterator[Advice]:
    rows = [row for row in view.anatomy.kernels if _LAYOUTS.search(row.kernel)]
    gain = view.per_step(sum(row.time_ns for row in rows))
    if not gain:
        return
    yield Advice(
        id="",
        gain_ns=gain,
        why="converting image layouts takes {gain} ({kernels} a step)",
        figures={"kernels": count(view.per_step(sum(row.count for row in rows)), "kernel"), "gain": ns(gain)},
        tries=(_CHANNELS_LAST,),
        section="kernels",
    )


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
    by_length = "Batch texts of similar length.", "sorted-padding"
    to_longest = 'Pad to the longest text of the batch: padding="longest" in the collator.', "dynamic-padding"
    how, technique = to_longest if kind == "longest" else by_length
    yield Advice(
        id="",
        gain_ns=gain,
        why="{padded} of all tokens are padding (padding strategy: {kind})",
        figures={"padded": part(padded), "kind": name(texts.padding)},
        tries=(how,),
        **view.lever(technique),
        section="texts",
    )


#: If memory use is below this fraction of the device's, recomputation saves memory that is not scarce.
_FREE: Final = 0.4


def _recomputation(view: View) -> Iterator[Advice]:
    peak, limit = view.anatomy.memory.peak_bytes, view.anatomy.environment.device_memory_bytes
    gain = view.per_step(sum(row.time_ns for row in view.anatomy.classes if row.phase is Phase.RECOMPUTE))
    if not gain or not peak or not limit or view.on_cpu or peak > _FREE * limit:
        return
    yield Advice(
        id="",
        gain_ns=gain,
        why="recomputing activations takes {gain}, although peak memory is only {peak} of {limit}",
        figures={
            "gain": ns(gain),
            "peak": Evidence(value=peak, unit="bytes"),
            "limit": Evidence(value=limit, unit="bytes"),
        },
        tries=("Turn off checkpointing, or checkpoint only every second layer.",),
        section="memory",
    )


_REGION: Final = regex(r"^Torch-Compiled Region")


def _collections(view: View) -> Iterator[Advice]:
    run = view.anatomy.run
    if run is None or not run.collecting_ns:
        return
    gain = round(run.collecting_share * _in_mean_step(run, run.wall_ns))
    yield Advice(
        id="",
        gain_ns=gain,
        step_ns=_in_mean_step(run, run.wall_ns),
        why="Python's garbage collector runs {times} in {steps}, which takes {gain} a step on average",
        figures={"times": count(run.collections, "time"), "steps": count(run.steps, "step"), "gain": ns(gain)},
        tries=(
            "Call gc.freeze() before the loop: existing objects are then not scanned again.",
            "Or call gc.disable(), and gc.collect() every N steps.",
        ),
        section="whole-run",
    )


def _regions(view: View) -> int:
    """Return how many compiled regions run per step, without the optimizer's; 0 if there is only one."""
    regions = [row for row in view.anatomy.host if _REGION.match(row.name)]
    of_optimizer = view.situation.optimizer == "compiled"
    frames = {row.name.partition("/")[0] for row in regions}  # 0/1 is the code of 0/0, compiled again
    several = len(frames) - of_optimizer > 1
    return view.per_step(sum(row.calls for row in regions)) - of_optimizer if several else 0


def _between_regions(view: View) -> int:
    """Return the idle time in Python that graph breaks explain; the launch rule excludes it."""
    breaks = view.anatomy.run is not None and view.anatomy.run.graph_breaks
    gain = view.short_idle(IdleCause.PYTHON, drained=False) if breaks or _regions(view) > 1 else 0
    return gain if gain >= WORTH * view.step_ns else 0


def _graph_breaks(view: View) -> Iterator[Advice]:
    run, gain = view.anatomy.run, _between_regions(view)
    if run is not None and run.graph_breaks:
        most, *others = run.graph_breaks
        yield Advice(
            id="",
            gain_ns=gain or None,
            subject=most.place,
            why=f"torch.compile breaks its graph in {{places}}, {'most often ' if others else ''}at {{place}}:"
            f" {{reason}}",
            figures={
                "places": count(1 + len(others), "place"),
                "place": name(most.place),
                "reason": name(most.reason),
            },
            tries=("Move that code out of the compiled function.", "Find breaks with torch.compile(fullgraph=True)."),
            section="whole-run",
        )
        return
    if not gain:
        return
    yield Advice(
        id="",
        gain_ns=gain,
        why="each step runs {regions}, and the device idles for {gain} while Python runs between operators",
        figures={"regions": count(_regions(view), "compiled region"), "gain": ns(gain)},
        tries=(
            "Set TORCH_LOGS=graph_breaks to see what breaks the graph.",
            "Find breaks with torch.compile(fullgraph=True).",
        ),
        section="host",
    )


def _fragmentation(view: View) -> Iterator[Advice]:
    """Analyze an out-of-memory snapshot: memory reserved but unused, and whether it would have sufficed."""
    memory, failure = view.anatomy.memory, view.anatomy.memory.failure
    if failure is None or failure.unused_bytes is None or failure.unused_bytes < (failure.requested_bytes or 0):
        return
    unused, asked, limit = failure.unused_bytes, failure.requested_bytes or 0, failure.max_split_bytes
    why, cure = "memory is fragmented", _EXPANDABLE
    if failure.expandable or any(pool.expandable for pool in memory.pools):
        # torch gives no free block of the limit and more to a smaller request, whether segments expand or not.
        if limit is None or not asked < limit <= max(pool.largest_free_bytes for pool in memory.pools):
            return
        why = "max_split_size_mb keeps the request from using blocks of {limit} or more"
        cure = "Remove max_split_size_mb from PYTORCH_CUDA_ALLOC_CONF; keep expandable_segments:True."
    elif limit is not None:
        why = "memory is fragmented, and blocks of {limit} or more are not split"
        cure = "Replace max_split_size_mb with expandable_segments:True in PYTORCH_CUDA_ALLOC_CONF."
    yield Advice(
        id="",
        gain_bytes=unused,
        peak_bytes=failure.reserved_bytes,
        why="{asked} did not fit although {unused} was reserved but unused: " + why,
        figures={"asked": _size(asked), "unused": _size(unused), "limit": _size(limit or 0)},
        tries=(cure,),
        section="memory",
    )


def _size(value: float) -> Evidence:
    """Return a number of bytes."""
    return Evidence(value=round(value), unit="bytes")


#: A change that lowers a snapshot's peak by less than this part of it is not worth it.
_LEAST_OF_PEAK: Final = 0.05
_CHECKPOINTS: Final = "Checkpoint each layer (torch.utils.checkpoint): only its input is kept."
_INFERENCE: Final = "If nothing is trained, run under torch.inference_mode(), which keeps nothing for backward."
_UNCACHED_CASTS: Final = "Pass cache_enabled=False to torch.autocast: it then frees each copy after use."
_SHARDS: Final = "shard them across ranks (torch.distributed.fsdp)."


def _what_fills(view: View) -> Iterator[Advice]:
    """Look at a snapshot where memory ran out, or at its peak: the components that a change lowers.

    Other changes get no credit for attention scores and autocast copies.
    """
    memory = view.anatomy.memory
    if not memory.parts or not memory.peak_bytes:
        return
    at_failure = memory.moment == "oom"
    whole = (memory.shown_bytes or 0) if at_failure else memory.peak_bytes
    sizes = {
        part.component: (part.shown_bytes if at_failure else part.at_peak_bytes) or 0 for part in memory.components
    }
    parts = memory.parts if at_failure or memory.is_at_peak else ()
    scores = [part for part in parts if part.of == "attention" and part.name]
    in_scores = sum(part.bytes for part in scores)
    if in_scores >= _LEAST_OF_PEAK * whole:
        most = max(scores, key=lambda part: part.bytes)
        yield _peak_advice(
            "attention scores",
            in_scores,
            whole,
            "unfused attention holds {size} of the {peak} in use, {most} of that allocated by {line}",
            (_fuses_attention(most.function or ""),),
            size=in_scores,
            most=most.bytes,
            line=most.name or "",
        )
        for part in scores:
            sizes[part.component] -= part.bytes
    else:
        scores = []
    for component, (share, tries) in _lowered_by(view, sizes, at_failure=at_failure).items():
        size, casts = sizes.get(component, 0), sizes.get(_WEIGHT_CASTS, 0) if component == "weights" else 0
        gain = round(share * size) + casts
        if gain < _LEAST_OF_PEAK * whole or not size:
            continue
        lines = [part for part in parts if part.of == "line" and part.name and part.component == component]
        most_of = max(lines, key=lambda part: part.bytes, default=None) if component == _TEMPORARY else None
        beside = any(part.component == component for part in scores)
        yield _peak_advice(
            component.replace("_", " "),
            gain,
            whole,
            "{size} of the {peak} in use holds {component}"
            + (" other than attention scores" if beside else "")
            + (", and {casts} holds autocast's copies of them" if casts else "")
            + ("" if most_of is None else ", {most} of that allocated by {line}"),
            tries,
            size=size,
            casts=casts,
            component=component.replace("_", " "),
            most=0 if most_of is None else most_of.bytes,
            line="" if most_of is None else most_of.name or "",
        )


_WEIGHT_CASTS: Final = "autocast_weight_casts"
_TEMPORARY: Final = "temporary_buffers"


def _lowered_by(view: View, sizes: dict[str, int], *, at_failure: bool) -> dict[str, tuple[float, tuple[str, ...]]]:
    """Return what lowers each component of a snapshot: the largest fraction saved, and changes to try."""
    memory = view.anatomy.memory
    phase = memory.shown_at if at_failure else memory.peak_at
    trains = memory.trains
    if trains is None and any(point.phase in (Phase.BACKWARD, Phase.OPTIMIZER) for point in memory.timeline):
        trains = True  # a report of before this was recorded
    changing = "" if trains is False else " (this changes the training)"
    activations = (_CHECKPOINTS,) if trains else (_INFERENCE,) if trains is False else (_INFERENCE, _CHECKPOINTS)
    if trains is None and at_failure:  # the first forward of a training may be all that ran
        activations = _CHECKPOINTS, _INFERENCE
    weights: tuple[str, ...] = (f"Keep weights in bfloat16{changing}, or {_SHARDS}",)
    if sizes.get(_WEIGHT_CASTS):
        weights = f"Keep weights in bfloat16, so that autocast makes no copies{changing}.", f"Or {_SHARDS}"
    lowered: dict[str, tuple[float, tuple[str, ...]]] = {
        "forward_activations": (1.0, activations),
        "optimizer_state": (0.75, ("Use an optimizer with 8-bit state: AdamW8bit from bitsandbytes or torchao.",)),
        "weights": (0.5, weights),
    }
    of_backward = any(part.of == "phase" and part.name == Phase.BACKWARD for part in memory.parts)
    if of_backward and phase == Phase.FORWARD:
        lowered["gradients"] = 1.0, ("Call optimizer.zero_grad(set_to_none=True) before forward, not before backward.",)
    if not trains:
        lowered[_TEMPORARY] = 0.5, ("Halve the batch, or do the work that allocates these buffers in chunks.",)
        if not sizes.get("weights"):
            uncached = () if trains is False else (_UNCACHED_CASTS,)  # else autograd keeps them, cached or not
            lowered[_WEIGHT_CASTS] = 1.0, ("Convert the model once: model.to(torch.bfloat16).", *uncached)
    return lowered


def _fuses_attention(function: str) -> str:
    """Return what fuses attention, by the function that allocates most of its scores."""
    if function == MATH_ATTENTION:
        return (
            "Force a fused kernel: torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION) warns why it cannot run."
        )
    if function == "eager_attention_forward":  # of transformers
        return f"Use fused attention, which keeps no scores: {LEVER['sdpa'].python}."
    return "Call torch.nn.functional.scaled_dot_product_attention, which keeps no scores when fused."


def _peak_advice(subject: str, gain: int, whole: int, why: str, tries: tuple[str, ...], **figures: int | str) -> Advice:
    """Return advice that lowers a snapshot's peak; figures are bytes and names."""
    return Advice(
        id="",
        subject=subject,
        gain_bytes=gain,
        peak_bytes=whole,
        why=why,
        figures={
            "peak": _size(whole),
            **{key: name(value) if isinstance(value, str) else _size(value) for key, value in figures.items()},
        },
        tries=tries,
        section="memory",
    )


RULES: Final = (
    Rule(
        id="launches", title="launches that keep the device idle", find=_launches, takes=Takes.IDLE,
        looks_for="device idle time in gaps shorter than 1 ms while the host runs operators or Python, in steps"
        " of short kernels",
        bound="that idle time or, if that is less, the unprofiled step time minus the busy time",
        silent="where most idle time lies in longer gaps, where kernels take 100 us or more on average, on the CPU,"
        " and in traces without launches",
    ),
    Rule(
        id="gap", title="single long gaps", find=_gap, takes=Takes.IDLE,
        looks_for="idle gaps of 1 ms or more while the host runs operators, Python or something unrecorded",
        bound="the part of these gaps that this host activity fills",
        silent="about gaps that other rules cover (input, allocator, waits)",
    ),
    Rule(
        id="framework", title="time between operators", find=_framework, takes=Takes.IDLE,
        looks_for="step time on the CPU that no operator explains: dispatch, autograd, Python",
        bound="that time or, if that is less, the unprofiled step time minus the time of operators and data loading",
        silent="on an accelerator, where other rules divide idle time by cause",
    ),
    Rule(
        id="pages", title="memory pages requested again", find=_pages, takes=lambda view: None,
        looks_for="memory pages that the operating system provides again in each step on the CPU, because freed memory"
        " was returned to it",
        bound="the CPU time that unprofiled steps spend in the operating system's kernel, at most 2 us per page",
        silent="where this time was not measured",
    ),
    Rule(
        id="input", title="waiting for input", find=_input, takes=Takes.IDLE,
        looks_for="idle time while the host loads data or copies it to the device; on the CPU, the time that the entire"
        " run waited for its loader or, if that is unknown, the time of the loader's ranges in the recorded steps",
        bound="that time",
        silent="where the trace has no range or call that loads data",
    ),
    Rule(
        id="synchronization", title="calls that wait for the device", find=_synchronizations, takes=Takes.IDLE,
        looks_for="calls that wait for the device inside an operator or a range, and short gaps that start during such"
        " a wait",
        bound="the idle time during these waits plus the time of operators and launches in the short gaps, but no more"
        " than the device's busy time or the host's time outside waits",
        silent="where the host waits only at the end of the step",
    ),
    Rule(
        id="allocator", title="device memory calls", find=_allocator, takes=Takes.IDLE,
        looks_for="idle time while the host allocates or frees device memory",
        bound="that idle time, averaged over all steps if the excluded steps have more of it",
        silent="where the allocator reuses its cached memory",
    ),
    Rule(
        id="cold_start", title="slow first launches and first matmuls", find=_cold_start, takes=Takes.IDLE,
        looks_for="idle time in launches that take many times as long as others, in calls that load kernels, and in"
        " allocator calls inside the first matmul or convolution",
        bound="that idle time, which later steps do not have", silent="where all launches take similar times",
    ),
    Rule(
        id="compilation", title="compilation during the run", find=_compilation, takes=Takes.IDLE,
        looks_for="code that torch.compile recompiled during the run, and idle time while it compiles",
        bound="the compile time per step, averaged over the run, or that idle time if it is unknown",
        silent="where nothing was compiled",
    ),
    Rule(
        id="profiler", title="profiler overhead", find=_profiler, takes=Takes.IDLE,
        looks_for="idle time while the profiler writes its records or records Python stacks",
        bound="that idle time, which an unprofiled step does not have",
        silent="where neither is recorded",
    ),
    Rule(
        id="communication", title="exposed collectives", find=_exposed,
        takes=lambda view: None if _is_one_by_one(view) else Takes.BUSY,
        looks_for="exposed collectives, excluding the time spent waiting for another rank",
        bound="that time, plus the idle time around the calls if gradients are reduced one by one",
        silent="in a run without collectives",
    ),
    Rule(
        id="outside", title="time before and after the device's work", find=_outside,
        looks_for="time before the device's first work and after its last, in a trace without steps",
        bound="unknown: no number includes it",
        silent="where steps are annotated, or where this time is no longer than the rest of the trace",
    ),
    Rule(
        id="waiting", title="waiting for a rank", find=_waiting, takes=lambda view: None,
        looks_for="time in collectives spent waiting for the last rank",
        bound="the waiting that this rank causes, plus its long idle gap if one explains the waiting",
        silent="where no rank stands out or ranks are missing",
    ),
    Rule(
        id="pageable_copies", title="copies from or to pageable host memory", find=_pinning,
        looks_for="copies between pageable host memory and the device",
        bound="their time, but no more than that of all exposed copies", silent="where other work hides them",
    ),
    Rule(
        id="spilled", title="memory overflowing to the host", find=_spilled, takes=Takes.KERNELS, covers=_spilled_rows,
        looks_for="element-wise operators and normalizations that move 8 MiB or more per call, most of them at less"
        " than a tenth of the device's bandwidth and less than 16 GB/s",
        bound="their time minus the time to move their bytes at full bandwidth",
        silent="where bytes or bandwidth are unknown",
    ),
    Rule(
        id="attention", title="unfused attention", find=_attention, takes=Takes.KERNELS,
        covers=lambda view: (*_scores(view), *_score_products(view)),
        looks_for="work on attention's score matrix: softmax, dropout, masks, scaling",
        bound="the time spent on scores, plus the matmuls' time beyond what their FLOPs take at half the peak",
        silent="where a fused kernel runs",
    ),
    Rule(
        id="float32", title="float32 matmuls", find=_float32, takes=Takes.KERNELS,
        covers=lambda view: (index for index, _ in _float32_products(view)),
        looks_for="float32 matmuls on a device with a half-precision peak",
        bound="their time minus the time they would take at the same share of their bound in half precision",
        silent="under autocast, and on a processor whose peak was not measured",
    ),
    Rule(
        id="optimizer", title="unfused optimizer", find=_optimizer,
        takes=lambda view: Takes.IDLE if _idle_of_update(view) else Takes.KERNELS,
        covers=_updates,
        looks_for="an optimizer that updates tensor by tensor, or with one foreach operator per operation",
        bound="its time minus the time to read weights, gradients and moments and to write weights and moments once (if"
        " known), or the idle time during the update if that exceeds its time",
        silent="for fused and compiled optimizers, and where a single foreach operator makes the update",
    ),
    Rule(
        id="zero_grad", title="gradients filled with zeros", find=_zero_grad, takes=lambda view: None,
        looks_for="zero_grad that fills gradients with zeros, and a backward that adds to them",
        bound="the host's time in both; with a replay, only the part that lengthens the step",
        silent="where gradients are set to None, and on the CPU",
    ),
    Rule(
        id="casts", title="casts to half precision", find=_casts, takes=Takes.KERNELS,
        looks_for="float32 operands of matmuls that each step casts to half precision again",
        bound="the time of these casts", silent="in compiled code, which casts as it reads",
    ),
    Rule(
        id="loss", title="cross entropy over a vocabulary", find=_loss, takes=Takes.KERNELS,
        covers=lambda view: (index for indices in _losses(view).values() for index in indices),
        looks_for="a log-softmax and cross entropy over a vocabulary",
        bound="their time minus the time to read the logits twice and write their gradient (without backward, to read"
        " them once)",
        silent="where shapes or bandwidth are unknown, and on the CPU",
    ),
    Rule(
        id="training_mode", title="dropout or batch statistics without a backward", find=_training_mode,
        takes=Takes.KERNELS,
        looks_for="dropout, or batch norm on batch statistics, in a trace without backward or optimizer",
        bound="the time of dropout", silent="in steps that train",
    ),
    Rule(
        id="chains", title="unfused element-wise chains", find=_chains, takes=Takes.KERNELS, covers=_in_chains,
        looks_for="element-wise operators and normalizations that each read the output of the previous one",
        bound="their time, in proportion to the bytes that one kernel per chain would not move",
        silent="where bytes are unknown",
    ),
    Rule(
        id="far_from_bound", title="far below peak", find=_far_from_bound, takes=Takes.KERNELS,
        looks_for="operators whose calls in one phase take longer than both FLOPs / attainable peak and bytes /"
        " bandwidth",
        bound="their time beyond the longer of these two",
        silent="where the bound is unknown, another rule covers the operator, or no remedy is known",
    ),
    Rule(
        id="clock", title="clock held down", find=_clock, takes=Takes.KERNELS,
        looks_for="a clock that heat, a power brake, a hardware slowdown or a setting holds down in most of the"
        " driver's readings",
        bound="the time of compute-bound operators, in proportion to the missing share of the clock rate",
        silent="for a power cap, which is usual, and without driver readings, as in traces that other tools wrote",
    ),
    Rule(
        id="layout", title="kernels that only change image layouts", find=_layout, takes=Takes.KERNELS,
        looks_for="kernels that convert between NCHW and NHWC for a convolution", bound="their time",
        silent="where no such kernel runs",
    ),
    Rule(
        id="padding", title="padding tokens in batches of texts", find=_padding,
        looks_for="tokens that only pad texts to the length of their batch",
        bound="their share of all tokens times the step time",
        silent="for batches of texts of similar length, and in runs without texts",
    ),
    Rule(
        id="recomputation", title="recomputation although memory is free", find=_recomputation, takes=Takes.KERNELS,
        looks_for="activations recomputed in backward although the peak is below 40 % of the device's memory",
        bound="the time of the recomputation", silent="where the peak or the device's memory is unknown",
    ),
    Rule(
        id="garbage_collection", title="Python's garbage collection", find=_collections, takes=Takes.IDLE,
        looks_for="Python garbage collections during the run's steps",
        bound="their mean time per step, part of which a busy device may hide", silent="where no loop was recorded",
    ),
    Rule(
        id="graph_breaks", title="code that torch.compile runs in several parts", find=_graph_breaks, takes=Takes.IDLE,
        looks_for="graph breaks that torch reported in the run, or several compiled regions in a step with Python"
        " between them",
        bound="the idle time in Python (unknown on the CPU)", silent="where there is only one region",
    ),
    Rule(
        id="fragmentation", title="fragmented memory", find=_fragmentation,
        looks_for="a request in a snapshot that failed although at least as much memory was reserved but unused",
        bound="the memory that was reserved but unused",
        silent="where segments are expandable, unless max_split_size_mb keeps a smaller request from using a free"
        " block",
    ),
    Rule(
        id="what_fills", title="largest memory components", find=_what_fills,
        looks_for="components that a change lowers by at least 5 % of a snapshot's peak: attention scores (what one"
        " function allocates from the matmul before a softmax to the next matmul), components of memory, and temporary"
        " buffers if no backward ran",
        bound="all attention scores, other activations, gradients and autocast copies, three quarters of the optimizer"
        " state, and half of the weights and temporary buffers",
        silent="about scores where stacks name no operators, about gradients where the peak is not in forward, and"
        " about temporary buffers where a backward ran",
    ),
)  # fmt: skip
