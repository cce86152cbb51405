"""Find what fills the memory of a CUDA memory snapshot: by component, line, module, operator and phase, at one moment.

The peak counts whole blocks, like `torch.cuda.max_memory_allocated`. Components count requested bytes; the allocator's
rounding is a component too, so that all of them sum to the moment's total.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.errors import UsageError
from opanatomy.memory.allocations import UNKNOWN, Blocks, agreement, alike, blocks_of, groups_at
from opanatomy.memory.caching_allocator import Given, blocks_given, max_split_bytes
from opanatomy.memory.components import PENDING_FREE, ROUNDING
from opanatomy.memory.curve import ComponentBytes, Curve, curve_of, points_of, states_shown
from opanatomy.memory.inferred import (
    RULING,
    WEIGHTS,
    BlockLabels,
    Rule,
    inferences_at,
    row_of,
    rules_of,
)
from opanatomy.memory.passes import ALLOCATES, PhaseIntervals, unbroken
from opanatomy.records.columns import Bool, Categorical, Int64, MemoryEvents, categorical_of
from opanatomy.records.memory import (
    MATH_ATTENTION,
    Memory,
    MemoryBlocks,
    MemoryComponent,
    MemoryDevice,
    MemoryFailure,
    MemoryPart,
    MemoryPoint,
    MemoryPool,
    MemorySpan,
)
from opanatomy.records.patterns import regex
from opanatomy.records.snapshot import (
    ALLOC,
    ALLOCATED,
    FREE_COMPLETED,
    FREE_REQUESTED,
    INACTIVE,
    MODULE_METADATA,
    OOM,
    PENDING,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Frame,
    History,
    Snapshot,
)
from opanatomy.records.taxonomy import BACKWARD, FORWARD, OPTIMIZER, OTHER, PHASES, RECOMPUTE, Phase

# --- stacks: where the program was, and in which phase


#: A frame of a library that is installed, or of Python itself.
_OURS: Final = r"[\\/]opanatomy[\\/](?:capture|predict|cli|api\.py|trainer\.py)"
_INSTALLED: Final = regex(
    rf"[\\/](?:site|dist)-packages[\\/]|[\\/]lib[\\/]python\d|^<frozen |^<string>$|^<__array|{_OURS}"
)
_OF_TORCH: Final = regex(rf"[\\/](?:torch|einops|functorch|triton)[\\/]|{_OURS}")
_OF_PYTHON: Final = regex(r"\.py$|^<")
_MODULE_CALL: Final = regex(r"[\\/]torch[\\/]nn[\\/]modules[\\/]module\.py$")
_OPERATOR: Final = regex(r"^at::_ops::(\w+)::(?:call|redispatch)\b")
_ENGINE: Final = regex(r"^torch::autograd::(?:Engine::|python::PythonEngine::|Node::operator\(\))")
_HANDLE: Final = regex(r"setWorkspaceForHandle|getCUDABlasLtWorkspace|getCurrentCUDABlasHandle|getWorkspace")
_EXCHANGE: Final = regex(r"^c10d::|ncclMem|NCCLSymmetricMemory")
_OF_EXCHANGE: Final = regex(r"[\\/]torch[\\/]distributed[\\/]")
_OPTIMIZERS: Final = regex(r"[\\/]torch[\\/]optim[\\/]")
_CHECKPOINT: Final = regex(r"[\\/]torch[\\/]utils[\\/]checkpoint\.py$")
_STEP: Final = "Optimizer.step#"
_CASTS: Final = "at::autocast::cached_cast"
#: Softmax as a torch operator and as a Python function, but not log-softmax.
_SOFTMAX: Final = regex(r"^(?:_|_safe_|_masked_)?softmax(?:_int|_out)?$")
_SOFTMAX_IN_PYTHON: Final = regex(r"^(?!log_)\w*softmax$")
_PRODUCTS: Final = frozenset({"bmm", "bmm_out", "baddbmm", "baddbmm_", "baddbmm_out"})
#: The outermost frames of threads that the program began.
_OUTERMOST: Final = frozenset({"<module>", "_bootstrap", "_run_code", "_bootstrap_inner"})
_NO_PHASE: Final = -1


class Place(Struct, frozen=True, kw_only=True):
    """What a stack says: line and function of the program, calls of modules, the innermost operator, the phase."""

    line: str | None = None
    function: str | None = None
    module: str | None = None
    operator: str | None = None
    phase: int = _NO_PHASE
    #: The rule determined by the stack alone, regardless of the block's lifetime.
    rule: int = -1
    moves_module: bool = False
    casts: bool = False
    #: The function that calls torch, and the calls around it; whether it multiplies matrices or takes a softmax.
    caller: tuple[object, ...] | None = None
    multiplies: bool = False
    takes_softmax: bool = False
    in_math_attention: bool = False


def place_of(stack: Sequence[Frame], named: Callable[[str], str]) -> Place:
    """Parse a stack, innermost frame first; `named` returns the operator of `index_Tensor`."""
    python = [frame for frame in stack if _OF_PYTHON.search(frame.filename)]
    calls = [
        index
        for index, frame in enumerate(python)
        if frame.name == "_call_impl" and _MODULE_CALL.search(frame.filename)
    ]
    operators = [found[1] for frame in stack if (found := _OPERATOR.match(frame.name))]
    before_python = stack[: stack.index(python[0])] if python else stack
    rule = -1
    if any(_HANDLE.search(frame.name) for frame in before_python):
        rule = Rule.BLAS
    elif any(_EXCHANGE.search(frame.name) for frame in before_python) or (
        python and _OF_EXCHANGE.search(next((frame for frame in python if not _is_std(frame)), python[0]).filename)
    ):
        rule = Rule.EXCHANGED
    frame = _line(python, calls)
    # The function that calls torch.
    inside = next(
        (
            index
            for index, frame in enumerate(python)
            if not _OF_TORCH.search(frame.filename) and not _is_std(frame) and not _SOFTMAX_IN_PYTHON.match(frame.name)
        ),
        None,
    )
    # The innermost operator that does more than allocate, else the outermost one.
    known = [named(name) for name in operators]
    operator = next((name for name in known if name not in ALLOCATES), known[-1] if known else None)
    return Place(
        line=None if frame is None else f"{_name(frame.filename)}:{frame.line} {frame.name}",
        function=None if frame is None else frame.name,
        module=_modules(python, calls),
        operator=operator,
        phase=_phase(stack, python, calls),
        rule=rule,
        moves_module=any(_MODULE_CALL.search(frame.filename) and frame.name == "_apply" for frame in python)
        or any(frame.name == "__init__" and "torch/nn/" in frame.filename for frame in python),
        casts=any(_CASTS in frame.name for frame in before_python),
        caller=None if inside is None else (python[inside].filename, python[inside].name, *python[inside + 1 :]),
        multiplies=not _PRODUCTS.isdisjoint(operators),
        takes_softmax=any(map(_SOFTMAX.match, operators))
        or any(_SOFTMAX_IN_PYTHON.match(frame.name) for frame in python[:inside]),
        in_math_attention=MATH_ATTENTION in operators,
    )


def _is_std(frame: Frame) -> bool:
    return bool(_INSTALLED.search(frame.filename)) and not re.search(r"(?:site|dist)-packages", frame.filename)


def _line(python: Sequence[Frame], calls: Sequence[int]) -> Frame | None:
    """Return the innermost line of the user's program inside a module, else of a library's model, else of any."""
    if not python:
        return None
    inside = python[: calls[-1]] if calls else python
    for frames, skipped in ((inside, _INSTALLED), (inside, _OF_TORCH), (python, _INSTALLED), (python, _OF_TORCH)):
        for frame in frames:
            if not skipped.search(frame.filename) and not _is_std(frame):
                return frame
    return python[0]


def _name(path: str) -> str:
    """Return a file's name, with its folder if the name is uninformative."""
    parts = re.split(r"[\\/]", path)
    return "/".join(parts[-2:]) if parts[-1] == "__init__.py" else parts[-1]


def _modules(python: Sequence[Frame], calls: Sequence[int]) -> str | None:
    """Return the lines that call one module inside another, outermost first; the first call is the model's."""
    sites = []
    for call in calls:
        frames = python[call + 1 :]
        site = next((one for one in frames if not _OF_TORCH.search(one.filename)), None)
        if site is not None:
            sites.append(f"{_name(site.filename)}:{site.line}")
    return " > ".join(reversed(sites[:-1])) or None if sites else None


def _phase(stack: Sequence[Frame], python: Sequence[Frame], calls: Sequence[int]) -> int:
    """Return the phase of a stack; autograd threads have engine frames, or no outermost program frame."""
    in_engine = any(_ENGINE.match(frame.name) for frame in stack)
    if not in_engine and python and len(python) == len(stack):
        in_engine = not any(frame.name in _OUTERMOST for frame in python)
    if in_engine:
        again = bool(calls) or any(_CHECKPOINT.search(frame.filename) for frame in python)
        return RECOMPUTE if again else BACKWARD
    if any(_OPTIMIZERS.search(frame.filename) and frame.name != "zero_grad" for frame in python):
        return OPTIMIZER
    return FORWARD if calls else _NO_PHASE


# --- the history of one device: its blocks, each in one phase and component


#: Workspace sizes of cuBLAS on NVIDIA devices from Hopper on and before, of hipBLASLt and rocBLAS
#: (`parseChosenWorkspaceSize`, aten/src/ATen/cuda/CublasHandlePool.cpp): a handle has one or two per stream.
_WORKSPACES: Final = (32 << 20, 2 * (4 << 20) + 8 * (16 << 10), 76 << 20, 128 << 20)
_OF_A_STREAM: Final = 2


class _Stacks(Struct, frozen=True, kw_only=True):
    """The parsed stacks of a snapshot, as columns; the last row is for no stack."""

    line: Categorical[str]
    #: The function of each line.
    functions: dict[str, str]
    module: Categorical[str]
    operator: Categorical[str]
    phase: Int64
    rule: Int64
    moves_module: Bool
    casts: Bool
    #: A number for each caller of torch, -1 for none.
    caller: Int64
    multiplies: Bool
    takes_softmax: Bool
    in_math_attention: Bool
    #: Whether stacks are Python only, so that autograd threads have none.
    of_python: bool


def _stacks(snapshot: Snapshot, named: Callable[[str], str]) -> _Stacks:
    places = [place_of([snapshot.frames[one] for one in stack], named) for stack in snapshot.stacks] + [Place()]

    def column(values: Iterable[str | None]) -> Categorical[str]:
        listed = list(values)
        known = list(dict.fromkeys(value for value in listed if value is not None))
        index = {value: number for number, value in enumerate(known)}
        return Categorical(np.array([-1 if v is None else index[v] for v in listed], dtype=np.int64), known)

    def mask(name: str) -> Bool:
        return np.array([getattr(place, name) for place in places], dtype=bool)

    callers = {place.caller: number for number, place in enumerate(places) if place.caller is not None}
    return _Stacks(
        line=column(place.line for place in places),
        functions={place.line: place.function for place in places if place.line and place.function},
        module=column(place.module for place in places),
        operator=column(place.operator for place in places),
        phase=np.array([place.phase for place in places], dtype=np.int64),
        rule=np.array([place.rule for place in places], dtype=np.int64),
        moves_module=mask("moves_module"),
        casts=mask("casts"),
        caller=np.array([-1 if place.caller is None else callers[place.caller] for place in places], dtype=np.int64),
        multiplies=mask("multiplies"),
        takes_softmax=mask("takes_softmax"),
        in_math_attention=mask("in_math_attention"),
        of_python=all(_OF_PYTHON.search(frame.filename) for frame in snapshot.frames),
    )


class _Device(Struct, frozen=True, kw_only=True):
    """The memory of one device of a snapshot."""

    name: str
    number: int
    snapshot: Snapshot
    row: MemoryDevice
    history: History | None
    blocks: Blocks
    #: What the allocator gave for each block.
    whole: Int64
    curve: Curve
    #: The state that is shown, its name and phase.
    state: int
    moment: str
    phase: Phase | None
    placing: BlockLabels
    #: Whether a backward or an optimizer ran, and which blocks are of attention's scores.
    trains: bool | None
    scores: Bool
    #: The stack of each block, and its module.
    stack: Int64
    module: Categorical[str]
    stream: Int64
    #: The compiled region of each block.
    compiled: Categorical[str]
    passes: PhaseIntervals
    reserved: Int64
    notes: tuple[str, ...]
    failure: MemoryFailure | None
    pools: tuple[MemoryPool, ...]

    @property
    def live(self) -> Int64:
        """Return the blocks that live at the moment shown."""
        return self.blocks.live_after(self.state)

    @property
    def shown_bytes(self) -> int:
        """Return what is allocated at the moment shown."""
        return int(self.curve.allocated[self.state])


#: A moment of a snapshot: its peak, its end, where memory ran out, or a time after its first event.
PEAK, END, FAILURE = "peak", "end", "oom"


def memory_of_snapshot(
    snapshots: Sequence[tuple[str, Snapshot]],
    named: Callable[[str], str],
    classed: Callable[[str], str],
    at: str | None = None,
    categories: Sequence[Category] = (),
) -> Memory:
    """Return the memory of one run's snapshots, by file name, the fullest device in detail.

    `at` is the moment whose blocks are shown; by default where memory ran out, else the peak. `classed` returns an
    operator's class. Blocks with a frame that matches one of the `categories` get that component, whatever is inferred.
    """
    devices: list[tuple[_Device, _Stacks]] = []
    for name, snapshot in snapshots:
        stacks = _stacks(snapshot, named)
        numbers = sorted({*(one.device for one in snapshot.histories), *np.unique(snapshot.segments.device).tolist()})
        for number in numbers:
            label = f"cuda:{number}" if len(snapshots) == 1 else f"{name} cuda:{number}"
            devices.append((_device(snapshot, number, label, stacks, at, categories), stacks))
    if not devices:
        return Memory()
    if at is not None and at.casefold() not in (PEAK, END) and all(device.history is None for device, _ in devices):
        raise UsageError(f"--at {at}: no history was recorded, so only the state at the end is known - leave out --at")
    devices.sort(key=lambda pair: (pair[0].failure is None, -max(pair[0].row.peak_bytes or 0, pair[0].shown_bytes)))
    main, stacks = devices[0]
    blocks, unlisted = groups_at(
        main.blocks,
        main.state,
        stacks.operator.take(main.stack),
        main.module,
        main.placing.phase,
        main.placing.rule,
        main.placing.ruling.rules,
    )
    rounding = next((row for row in main.row.inferences if row.component == ROUNDING), None)
    if rounding is not None:
        row = MemoryBlocks(
            operator=None,
            module=None,
            phase=Phase.OTHER,
            component=ROUNDING,
            blocks=rounding.blocks,
            bytes=rounding.bytes,
            largest_bytes=int((main.whole - main.blocks.bytes)[main.live].max()),
            rule=rounding.rule,
        )
        blocks = tuple(sorted((*blocks, row), key=lambda row: -row.bytes))
    unknown = [device for device, _ in devices[1:] if device.row.peak_bytes is None]
    unknown_peaks = (
        f"{device.name}: no history was recorded, so its peak is unknown, as is the device with the highest peak"
        for device in unknown
    )
    first = len(RULING.rules)
    unfitting = (
        f"category {category.name}: {category.pattern.pattern!r} matches no frame of any block"
        for index, category in enumerate(categories)
        if not any((device.placing.rule == first + index).any() for device, _ in devices)
    )
    return Memory(
        peak_bytes=None if unknown else main.row.peak_bytes,
        allocator_peak_bytes=main.row.peak_bytes,
        peak_at=main.row.peak_at,
        requested_peak_bytes=main.row.requested_peak_bytes,
        moment=main.moment,
        shown_bytes=main.shown_bytes,
        shown_at=main.phase,
        measured_by=f"memory snapshot of {main.name}, with blocks as rounded by the allocator",
        components=main.row.components,
        inferences=main.row.inferences,
        timeline=tuple(_with_lines(main, stacks)) if main.history is not None else (),
        blocks=blocks,
        unlisted_bytes=unlisted,
        devices=tuple(device.row for device, _ in devices),
        parts=tuple(_parts(main, stacks, classed)),
        pools=tuple(pool for device, _ in devices for pool in device.pools),
        spans=tuple(_spans(main)),
        held_bytes=sum(segment.end - segment.begin for segment in _segments_at(main)),
        notes=(*main.notes, *unknown_peaks, *unfitting),
        failure=main.failure,
        trains=main.trains,
    )


class Category(NamedTuple):
    """A component of the user's own: blocks allocated below a frame `file.py:31 function` that the pattern fits."""

    name: str
    pattern: re.Pattern[str]


def categories_of(where: str, given: Iterable[tuple[str, str]]) -> tuple[Category, ...]:
    """Return the categories of names and regular expressions; raise `UsageError`, which begins with `where`."""
    made = []
    for name, text in given:
        if not re.fullmatch(r"[A-Za-z][\w ]*", name):
            raise UsageError(
                f"{where}{name!r}: the name must start with a letter and contain only letters, digits, _ and"
                " spaces - write NAME=REGEX"
            )
        if not text:
            raise UsageError(f"{where}{name!r}: the regular expression is missing - write NAME=REGEX")
        try:
            made.append(Category(name.replace(" ", "_"), re.compile(text)))
        except (re.error, RecursionError, OverflowError) as error:
            raise UsageError(
                f"{where}{name}={text}: not a regular expression: {error} - escape literal characters"
            ) from error
    return tuple(made)


def _with_own(placing: BlockLabels, stack: Int64, snapshot: Snapshot, categories: Sequence[Category]) -> BlockLabels:
    """Return the placing with the user's own categories, the first that fits a block's stack."""
    ruling = placing.ruling.with_own([category.name for category in categories])
    frames = [f"{frame.filename}:{frame.line} {frame.name}" for frame in snapshot.frames]
    rule = placing.rule.copy()
    for index in range(len(categories) - 1, -1, -1):
        fits = {number for number, frame in enumerate(frames) if categories[index].pattern.search(frame)}
        stacks = np.array([not fits.isdisjoint(one) for one in snapshot.stacks] + [False], dtype=bool)
        rule[stacks[stack]] = len(placing.ruling.rules) + index
    return replace(placing, rule=rule, ruling=ruling)


def _device(
    snapshot: Snapshot, number: int, label: str, stacks: _Stacks, at: str | None, categories: Sequence[Category]
) -> _Device:
    history = recorded = next((one for one in snapshot.histories if one.device == number), None)
    segments = snapshot.segments
    of_device = segments.device[snapshot.blocks.segment] == number if len(segments.device) else np.zeros(0, dtype=bool)
    if (
        history is not None
        and len(_counted_rows(history)) < _LEAST_HISTORY
        and ((of_device & (snapshot.blocks.state == ALLOCATED)).sum() > len(_counted_rows(history)))
    ):  # with enabled="state" torch keeps the last event alone
        history = None
    given = None if history is None else blocks_given(snapshot, number, history)
    events, whole, stack_of_event, stream_of_event, began = _events(snapshot, history, given, of_device)
    blocks = blocks_of(events)
    whole, stack, stream = whole[blocks.alloc], stack_of_event[blocks.alloc], stream_of_event[blocks.alloc]
    module = _noted_modules(snapshot, history, blocks, began, stacks.module.take(stack))
    phases = _phases(events, stack_of_event, began, snapshot, number, stacks)
    order = np.arange(len(events.bytes))
    unused = _unused(blocks, phases, stack_of_event, began, stacks)
    placing = _placed(blocks, order, phases, stack, stream, stacks, began, unused, is_recorded=history is not None)
    if categories:
        placing = _with_own(placing, stack, snapshot, categories)
    window = (int(events.time_ns[began]), int(events.time_ns[-1])) if len(events.bytes) > began else (0, 0)
    every = np.arange(len(blocks.alloc))
    shares = ComponentBytes(
        components=placing.ruling.components,
        block=np.concatenate((every, every)),
        component=np.concatenate((placing.component, np.full(len(every), placing.ruling.components.index(ROUNDING)))),
        bytes=np.concatenate((blocks.bytes, whole - blocks.bytes)),
    )
    curve = curve_of(blocks, shares, events.time_ns, window)
    curve = replace(curve, first=min(began, curve.last))
    curve = replace(curve, peak=curve.first + int(curve.allocated[curve.first : curve.last + 1].argmax()))
    failure_at, failure = _failure(recorded, snapshot, began, curve, phases, stacks)
    if history is None:
        state, moment = curve.last, END if failure is None else FAILURE
        failure_at = None if failure is None else state
    else:
        state, moment = _moment(at, curve, events, window, failure_at)
    passes = PhaseIntervals(
        start_ns=events.time_ns[phases.start_ns] if len(phases.start_ns) else phases.start_ns, phase=phases.phase
    )
    reserved, most = _reserved(history, int(segments.total[segments.device == number].sum()), began)
    inferences, pools = inferences_at(state, blocks, placing, curve), tuple(_pools(snapshot, number, label))

    def phase_at(state: int) -> Phase:
        return PHASES[int(phases.phase_at(np.array([state - 1]))[0])]

    pending = _pending_after(state - began, history, given, snapshot, of_device)
    at_peak, shown = (curve.by_component[:, of].tolist() for of in (curve.peak, state))
    components = tuple(
        MemoryComponent(
            component=component,
            shown_bytes=now,
            measured_bytes=None if history is None else most_,
            at_peak_bytes=None if history is None else most_,
        )
        for component, most_, now in zip(placing.ruling.components, at_peak, shown, strict=True)
        if most_ or now
    )
    if pending:
        components = (*components, MemoryComponent(component=PENDING_FREE, shown_bytes=pending))
    agreed = agreement(events.total_allocated, np.zeros(len(order), dtype=np.int64))
    row = row_of(label, blocks, curve, agreed, passes)
    row = replace(
        row,
        peak_at=phase_at(curve.peak),
        events=0 if history is None else len(history.action),
        before_window_bytes=int(curve.allocated[curve.first]),
        inferences=inferences,
        components=components,
        reserved_peak_bytes=most or None,
        shown_bytes=int(curve.allocated[state]),
        reserved_at_peak_bytes=int(reserved[curve.peak - 1]) if 0 < curve.peak <= len(reserved) else None,
    )
    if given is None:
        row = replace(
            row, peak_bytes=None, peak_ns=None, peak_at=None, reserved_peak_bytes=None, reserved_at_peak_bytes=None
        )
    else:
        # Blocks from before, the only ones that may have more, are told by their address.
        slack = np.array([given.open_before.get(address, 0) for address in blocks.address.tolist()], dtype=np.int64)
        slack[(blocks.alloc >= began) | blocks.never_freed] = 0
        most_then = curve.allocated + blocks.changes(every, slack).cumsum()
        above = int(most_then[curve.first : curve.last + 1].max()) - int(curve.allocated[curve.peak])
        row = replace(
            row,
            requested_peak_bytes=int((curve.allocated - curve.of(ROUNDING))[curve.first : curve.last + 1].max()),
            peak_open_bytes=above if given.follows_rules else None,
        )
    if failure is not None and failure_at is not None:
        allocated, held = int(curve.allocated[failure_at]), int(reserved[max(failure_at, 1) - 1])
        waits = _pending_after(failure_at - began, history, given, snapshot, of_device)
        limit = max_split_bytes(snapshot.settings)
        failure = replace(
            failure,
            allocated_bytes=allocated,
            reserved_bytes=held,
            unused_bytes=max(held - allocated - waits, 0),
            max_split_bytes=limit,
            expandable=snapshot.settings.get("expandable_segments") == "True",
        )
    return _Device(
        name=label,
        number=number,
        snapshot=snapshot,
        row=row,
        history=history,
        module=module,
        blocks=blocks,
        whole=whole,
        curve=curve,
        state=state,
        moment=moment,
        phase=None if history is None else phase_at(state),
        placing=placing,
        trains=unused.trains,
        scores=_scores(blocks, placing, stack, stacks),
        stack=stack,
        stream=stream,
        compiled=_compiled(snapshot, history, blocks, began),
        passes=passes,
        reserved=reserved,
        failure=failure,
        pools=pools,
        notes=tuple(_notes(snapshot, history, row, blocks, of_device, stacks, label)),
    )


#: With fewer events, if more blocks are alive, only the end is known.
_LEAST_HISTORY: Final = 2


def _pending_after(
    count: int, history: History | None, given: Given | None, snapshot: Snapshot, of_device: Bool
) -> int:
    """Return the bytes of freed blocks that wait for another stream after so many counted events, else at the end."""
    if history is None or given is None:
        return int(snapshot.blocks.size[of_device & (snapshot.blocks.state == PENDING)].sum())
    rows = _counted_rows(history)
    return int(given.pending[rows[count] if count < len(rows) else len(history.action)])


def _events(
    snapshot: Snapshot, history: History | None, given: Given | None, of_device: Bool
) -> tuple[MemoryEvents, Int64, Int64, Int64, int]:
    """Return allocations and frees with whole block, stack and stream, and the number of those before the recording.

    Blocks are older than the recording if they exist at the end, or are freed, without an allocation in it.
    """
    none = np.zeros(0, dtype=np.int64)
    if history is None or given is None:
        address, size, stack, stream, time, whole = none, none, none, none, none, none
    else:
        rows = _counted_rows(history)
        gives = history.action[rows] == ALLOC
        address, stack, stream = history.address[rows], history.stack[rows], history.stream[rows]
        size, time = np.where(gives, history.size[rows], -history.size[rows]), history.time_us[rows] * 1000
        whole = np.maximum(given.whole[rows], size)  # less in a history with a gap
    live = np.flatnonzero(of_device & (snapshot.blocks.state == ALLOCATED))
    last = dict(zip(address.tolist(), size.tolist(), strict=True))
    old = [row for row in live.tolist() if last.get(int(snapshot.blocks.address[row]), -1) < 0]
    first: dict[int, int] = {}
    for where, change in zip(address.tolist(), size.tolist(), strict=True):
        first.setdefault(where, change)
    freed = [(where, -change) for where, change in first.items() if change < 0]
    before = {} if given is None else given.before
    held = len(old) + len(freed)
    begin = int(time[0]) if len(time) else 0
    begin_held = np.full(held, begin - 1, dtype=np.int64)
    address_held = np.array([*snapshot.blocks.address[old].tolist(), *(where for where, _ in freed)], dtype=np.int64)
    size_held = np.array([*snapshot.blocks.requested[old].tolist(), *(one for _, one in freed)], dtype=np.int64)
    whole_held = [*snapshot.blocks.size[old].tolist(), *(max(before.get(where, one), one) for where, one in freed)]
    unknown = np.full(held + len(size), UNKNOWN, dtype=np.int64)
    events = MemoryEvents(
        time_ns=np.concatenate((begin_held, time)),
        thread=unknown,
        bytes=np.concatenate((size_held, size)),
        address=np.concatenate((address_held, address)),
        total_allocated=unknown,
        total_reserved=unknown,
        device_type=unknown,
        device=unknown,
    )
    stacks = np.concatenate((snapshot.blocks.stack[old], np.full(len(freed), -1, dtype=np.int64), stack))
    streams = np.concatenate(
        (
            snapshot.segments.stream[snapshot.blocks.segment[old]] if len(old) else none,
            np.full(len(freed), 0, dtype=np.int64),
            stream,
        )
    )
    return events, np.concatenate((np.array(whole_held, dtype=np.int64), whole)), stacks, streams, held


def _noted_modules(
    snapshot: Snapshot, history: History | None, blocks: Blocks, began: int, by_stack: Categorical[str]
) -> Categorical[str]:
    """Return each block's module: recorded with its allocation, else from its stack."""
    noted = [
        text.removeprefix(MODULE_METADATA) if text.startswith(MODULE_METADATA) else None for text in snapshot.metadata
    ]
    if history is None or not any(path is not None for path in noted):
        return by_stack
    before = np.full(began, -1, dtype=np.int64)
    index = np.concatenate((before, history.metadata[_counted_rows(history)]))[blocks.alloc]
    told = np.array([*(path is not None for path in noted), False])[index]
    values = (*by_stack.values, *(path or "the model" for path in noted))
    return categorical_of(values, np.where(told, index + len(by_stack.values), by_stack.codes))


def _compiled(snapshot: Snapshot, history: History | None, blocks: Blocks, began: int) -> Categorical[str]:
    """Return the compiled region that each block was allocated in, where that was recorded."""
    index = np.full(max(began, blocks.events), -1, dtype=np.int64)
    if history is not None:
        index[began:] = history.compiled[_counted_rows(history)]
    return Categorical(index[blocks.alloc], snapshot.metadata)


def _counted_rows(history: History) -> Int64:
    """Return the allocations and frees of a history; a free counts when it is requested, as torch counts it."""
    frees = FREE_REQUESTED if (history.action == FREE_REQUESTED).any() else FREE_COMPLETED
    return np.flatnonzero(((history.action == ALLOC) | (history.action == frees)) & (history.size > 0))


def _phases(
    events: MemoryEvents, stack: Int64, began: int, snapshot: Snapshot, number: int, stacks: _Stacks
) -> PhaseIntervals:
    """Return the passes by the number of the event: by stacks, and by the ranges of optimizers."""
    phase = stacks.phase[stack].copy()
    if stacks.of_python and len(snapshot.stacks):  # a thread of autograd's has no Python of its own
        phase[(stack < 0) & (events.bytes > 0)] = BACKWARD
    for range_ in snapshot.annotations:
        if range_.device == number and range_.name.startswith(_STEP):
            inside = (events.time_ns >= range_.begin_us * 1000) & (events.time_ns < range_.end_us * 1000)
            phase[inside] = OPTIMIZER
    phase[:began] = _NO_PHASE
    known = np.flatnonzero(phase != _NO_PHASE)
    # Nothing is known between two phases: a loss that is computed outside of modules is forward.
    codes = phase[known]
    start, code = [], []
    for index, (event, now) in enumerate(zip(known.tolist(), codes.tolist(), strict=True)):
        before = codes[index - 1] if index else OTHER
        if index and known[index - 1] + 1 < event and before != now and not (before == FORWARD and now == BACKWARD):
            start.append(int(known[index - 1]) + 1)
            code.append(OTHER)
        start.append(event)
        code.append(now)
    if len(known) and known[-1] + 1 < len(phase):
        start.append(int(known[-1]) + 1)
        code.append(OTHER)
    return unbroken(np.array(start, dtype=np.int64), np.array(code, dtype=np.int64))


def _placed(
    blocks: Blocks,
    order: Int64,
    parts: PhaseIntervals,
    stack: Int64,
    stream: Int64,
    stacks: _Stacks,
    began: int,
    unused: _Unused,
    *,
    is_recorded: bool,
) -> BlockLabels:
    """Return phase and rule of each block: stack first, then its life, then its size."""
    whole = parts.with_recompute_in_backward()
    phase = parts.phase_at(blocks.alloc)
    rule = rules_of(blocks, order, (whole, parts), phase, np.full(len(blocks.alloc), -1, dtype=np.int64))
    freed = ~blocks.never_freed
    ends_in = whole.phase_at(blocks.free)
    kept = (rule == Rule.OPTIMIZER_KEPT) & (ends_in == OPTIMIZER)
    rule[kept] = Rule.STATE_REPLACED
    before = blocks.alloc < began
    rule[(stack < 0) & ~before & (rule == Rule.ELSEWHERE)] = Rule.NO_STACK
    of_stack = stacks.rule[stack]
    rule = np.where(of_stack >= 0, of_stack, rule)
    moved = (rule == Rule.ELSEWHERE) & stacks.moves_module[stack] & ~freed
    rule[moved] = Rule.MOVED_MODULE
    if not is_recorded:  # a size alone tells nothing
        by_stack = np.where(stacks.moves_module[stack], Rule.MOVED_MODULE, Rule.NO_HISTORY)
        rule = np.where(of_stack >= 0, of_stack, by_stack)
        return BlockLabels(row=np.full(len(rule), -1, dtype=np.int64), phase=phase, rule=rule)
    rule[before & (of_stack < 0)] = Rule.BEFORE
    rule[before & freed & (ends_in == OPTIMIZER)] = Rule.STATE_BEFORE
    _workspaces(blocks, rule, stream)
    _by_size(blocks, rule, before, freed, ends_in)
    backwards = int((whole.phase == BACKWARD).sum())
    if backwards and not (rule == Rule.GRADIENT).any():
        _by_number(blocks, rule, backwards)
    _broken_off(blocks, rule, whole, stack, order)
    casts = stacks.casts[stack]
    if unused.results:
        rule[rule == Rule.BROKEN_OFF] = Rule.FORWARD_KEPT
    if unused.trains is False:
        rule[unused.blocks & ~casts & np.isin(rule, (Rule.FORWARD_ONLY, Rule.FORWARD_KEPT))] = Rule.DROPPED
    _casts(blocks, rule, unused, casts)
    return BlockLabels(row=np.full(len(rule), -1, dtype=np.int64), phase=phase, rule=rule)


#: The minimum share of forward's allocations that outlives it if autograd is active: 0.4 to 0.7 were measured.
_KEPT_OF_FORWARD: Final = 0.25
#: Maximum number of forward results that outlive it without autograd.
_RESULTS: Final = 8


class _Unused(Struct, frozen=True, kw_only=True):
    """In a recording without backward and optimizer, what calls of modules allocated and code outside of them freed.

    `trains` is `False` if it is so much that autograd must have kept it, `True` if a backward or an optimizer ran. If
    forward ran more than once and kept too little for that, there are only `results`: outputs, caches.
    """

    blocks: Bool
    #: The number of the forward of each block.
    forward: Int64
    trains: bool | None
    results: bool = False


def _unused(blocks: Blocks, parts: PhaseIntervals, stack_of_event: Int64, began: int, stacks: _Stacks) -> _Unused:
    whole = parts.with_recompute_in_backward()
    unused = np.zeros(len(blocks.alloc), dtype=bool)
    if np.isin(parts.phase, (BACKWARD, RECOMPUTE, OPTIMIZER)).any():
        return _Unused(blocks=unused, forward=whole.at(blocks.alloc), trains=True)
    phase = stacks.phase[stack_of_event]
    outside = (phase == _NO_PHASE) & (stack_of_event >= 0)
    outside[:began] = False
    made = phase[blocks.alloc] == FORWARD
    freed = np.flatnonzero(made & ~blocks.never_freed)
    unused[freed[outside[blocks.free[freed]]]] = True
    forward = (outside & np.append(~outside[1:], False)).cumsum()[blocks.alloc]
    made &= ~stacks.casts[stack_of_event[blocks.alloc]]
    several = len(np.unique(forward[made])) > 1
    # What the last of several forwards keeps may be alive.
    complete = made & (forward < forward[made].max()) if several else made
    freed_outside, alive = int((complete & unused).sum()), int((made & blocks.never_freed).sum())
    keeps = freed_outside > max(_RESULTS, _KEPT_OF_FORWARD * complete.sum())
    results = several and freed_outside + alive <= max(_RESULTS, _KEPT_OF_FORWARD * made.sum())
    return _Unused(blocks=unused, forward=forward, trains=False if keeps else None, results=results)


def _scores(blocks: Blocks, placing: BlockLabels, stack: Int64, stacks: _Stacks) -> Bool:
    """Tell the scores of attention that is not fused: from the product before a softmax up to the one after it.

    One function calls all three. Scores have the size of the softmax's result, in some data type; copies do not count.
    """
    scores = np.zeros(len(blocks.alloc), dtype=bool)
    both = set(stacks.caller[stacks.multiplies].tolist()) & set(stacks.caller[stacks.takes_softmax].tolist()) - {-1}
    ours = np.isin(stacks.caller[stack], list(both)) & ~np.isin(placing.phase, (BACKWARD, OPTIMIZER))
    ours &= stacks.rule[stack] < 0
    copies = np.array([*((name or "").endswith("clone") for name in stacks.operator.values), False], dtype=bool)
    ours &= ~copies[stacks.operator.codes[stack]]
    since: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}

    def is_of_scores(block: int, size: int) -> bool:
        return int(blocks.bytes[block]) in (size // 4, size // 2, size, 2 * size, 4 * size)

    for block in np.flatnonzero(ours)[np.argsort(blocks.alloc[ours], kind="stable")].tolist():
        caller = int(stacks.caller[stack[block]])
        if not stacks.multiplies[stack[block]]:
            if caller in since:
                since[caller].append(block)
            continue
        run = since.pop(caller, [])
        size = max((int(blocks.bytes[one]) for one in run if stacks.takes_softmax[stack[one]]), default=0)
        if not size:  # the product before a softmax
            since[caller] = [block]
        elif is_of_scores(run[0], size):
            sizes[caller] = size
            scores[[one for one in run if is_of_scores(one, size)]] = True
    for caller, run in since.items():  # in which memory ran out, or the recording ended
        if caller in sizes and is_of_scores(run[0], sizes[caller]):
            scores[[one for one in run if is_of_scores(one, sizes[caller])]] = True
    return scores


def _casts(blocks: Blocks, rule: Int64, unused: _Unused, casts: Bool) -> None:
    """Separate autocast's weight copies from activations: one per weight and forward, half its size.

    Without a backward, weights cannot be distinguished from other memory older than the recording.
    """
    weights = RULING.component_of[rule] == RULING.components.index(WEIGHTS)
    if not unused.trains:
        weights |= (rule == Rule.BEFORE) & blocks.never_freed
    of_weights = Counter(blocks.bytes[weights].tolist())
    seen: Counter[tuple[int, int]] = Counter()
    kept = np.isin(rule, (Rule.ACTIVATION, Rule.BROKEN_OFF, Rule.FORWARD_KEPT)) | unused.blocks
    for block in np.flatnonzero(casts & kept).tolist():
        size = int(blocks.bytes[block])
        if seen[int(unused.forward[block]), size] < of_weights[2 * size]:
            seen[int(unused.forward[block]), size] += 1
            rule[block] = Rule.WEIGHT_CAST


def _broken_off(blocks: Blocks, rule: Int64, whole: PhaseIntervals, stack: Int64, order: Int64) -> None:
    """Give what lives in a last forward without its backward the rule of earlier blocks of the same stack."""
    if not len(whole.phase):
        return
    last = np.flatnonzero(whole.phase != OTHER)
    if not len(last) or whole.phase[last[-1]] != FORWARD:
        return
    begin = int(whole.start_ns[last[-1]])
    kept = np.flatnonzero((rule == Rule.FORWARD_KEPT) & (blocks.alloc >= begin) & blocks.never_freed)
    earlier: dict[int, set[int]] = {}
    for index in np.flatnonzero(blocks.alloc < begin).tolist():
        if stack[index] >= 0:
            earlier.setdefault(int(stack[index]), set()).add(int(rule[index]))
    for index in kept.tolist():
        rules = earlier.get(int(stack[index]), set())
        rule[index] = rules.pop() if len(rules) == 1 else Rule.BROKEN_OFF


def _workspaces(blocks: Blocks, rule: Int64, stream: Int64) -> None:
    """Identify workspaces by size, where stacks do not."""
    open_ = np.isin(rule, (Rule.BEFORE, Rule.GRADIENT, Rule.FORWARD_KEPT, Rule.ELSEWHERE, Rule.NO_STACK))
    found = open_ & blocks.never_freed & np.isin(blocks.bytes, _WORKSPACES)
    for one in np.unique(stream[found]).tolist():
        for size in _WORKSPACES:
            of_size = np.flatnonzero(found & (stream == one) & (blocks.bytes == size))
            if len(of_size) <= _OF_A_STREAM:
                rule[of_size] = Rule.BLAS_SIZED


#: A weight, its gradient, and up to two moments of its optimizer.
_OF_EACH_SIZE: Final = (2, 3, 4)
#: The minimum share of pre-existing memory that must come in groups, and be more than weights.
_IN_GROUPS: Final = 0.99
_MORE_THAN_WEIGHTS: Final = 0.5


def _by_number(blocks: Blocks, rule: Int64, backwards: int) -> None:
    """Label pre-existing blocks when gradients persist between steps, by how many blocks share a size.

    Each backward then creates a gradient per weight, accumulates it and frees it, so that of each size there are at
    least as many gradients as weights. If there are fewer than pre-existing blocks, these are not only weights; if they
    come in groups of two, three or four of a size, they are weights, gradients and moments: the largest group that fits
    all.
    """
    old = np.flatnonzero(rule == Rule.BEFORE)
    old = old[blocks.never_freed[old]]
    counts = Counter(blocks.bytes[old].tolist())
    made = Counter(blocks.bytes[rule == Rule.BACKWARD_ONLY].tolist())
    whole = sum(size * count for size, count in counts.items())
    more = sum(size * count for size, count in counts.items() if made[size] < count * backwards)
    if not whole or more < _MORE_THAN_WEIGHTS * whole:
        return
    for number in reversed(_OF_EACH_SIZE):
        grouped = {
            size for size, count in counts.items() if count % number == 0 and made[size] * number >= count * backwards
        }
        if sum(size * counts[size] for size in grouped) < _IN_GROUPS * whole:
            continue
        seen: Counter[int] = Counter()
        for block in old.tolist():
            size = int(blocks.bytes[block])
            if size in grouped:
                index = seen[size] * number // counts[size]
                seen[size] += 1
                rule[block] = (Rule.WEIGHT_OF_SOME, Rule.GRADIENT_KEPT)[index] if index < 2 else Rule.STATE_OF_SOME
        return


def _by_size(blocks: Blocks, rule: Int64, before: Bool, freed: Bool, ends_in: Int64) -> None:
    """Distinguish weights, moments and gradients by the sizes of one backward's gradients."""
    gradients = np.flatnonzero(rule == Rule.GRADIENT)
    sizes = Counter(blocks.bytes[gradients].tolist())
    if not sizes:
        return
    # Of several steps' gradients, those of one: the most that live at once.
    live: Counter[int] = Counter()
    most: Counter[int] = Counter()
    edges = sorted(
        (int(edge), step, int(blocks.bytes[block]))
        for block in gradients.tolist()
        for edge, step in ((blocks.alloc[block], 1), (blocks.free[block], -1))
    )
    for _, step, size in edges:
        live[size] += step
        most[size] = max(most[size], live[size])
    old = np.flatnonzero(before & (rule == Rule.BEFORE))
    early = np.flatnonzero(~before & ~freed & (rule == Rule.ELSEWHERE))
    taken: Counter[int] = Counter(blocks.bytes[rule == Rule.MOVED_MODULE].tolist())
    for block in early.tolist():
        size = int(blocks.bytes[block])
        if taken[size] < most[size]:
            taken[size] += 1
            rule[block] = Rule.WEIGHT_SIZED
    seen: Counter[int] = Counter()
    for block in old.tolist():
        size = int(blocks.bytes[block])
        if freed[block]:
            if size in most and ends_in[block] in (OTHER, FORWARD):
                rule[block] = Rule.GRADIENT_BEFORE
            continue
        if size not in most:
            continue
        seen[size] += 1
        if seen[size] <= most[size] - taken[size]:
            rule[block] = Rule.WEIGHTS_BEFORE
        elif seen[size] <= 3 * most[size]:
            rule[block] = Rule.STATE_UPDATED


# --- the moment that is shown, where memory ran out, what the allocator held


def _moment(
    at: str | None, curve: Curve, events: MemoryEvents, window: tuple[int, int], failure_at: int | None
) -> tuple[int, str]:
    """Return the state that is shown, and its name."""
    word = (PEAK if failure_at is None else FAILURE) if at is None else at.casefold()
    states = {PEAK: curve.peak, END: curve.last, FAILURE: failure_at}
    if (state := states.get(word)) is not None:
        return state, word
    found = re.fullmatch(r"([\d.]+)\s*(us|ms|s)?", word)
    if found is None:
        raise UsageError(f"--at {at}: not a time in the snapshot - use peak, end, or a time like 120ms")
    scale = {"us": 1e3, "ms": 1e6, "s": 1e9, None: 1e6}[found[2]]
    ns = window[0] + round(float(found[1]) * scale)
    if ns > window[1]:
        whole = (window[1] - window[0]) / 1e6
        asked = (ns - window[0]) / 1e6
        raise UsageError(f"--at {at}: {asked:.6g} ms is after the end of the recording, which is {whole:.6g} ms long")
    state = max(curve.first, int(np.searchsorted(events.time_ns, ns, side="right")))
    return state, f"{(ns - window[0]) / 1e6:.6g} ms"


def _failure(
    history: History | None, snapshot: Snapshot, began: int, curve: Curve, phases: PhaseIntervals, stacks: _Stacks
) -> tuple[int | None, MemoryFailure | None]:
    """Return the state where memory last ran out, and the failed request."""
    if history is None or not (rows := np.flatnonzero(history.action == OOM)).size:
        return None, None
    row = int(rows[-1])
    state = began + int((_counted_rows(history) < row).sum())
    stack = int(history.stack[row])
    phase = int(stacks.phase[stack])
    if phase == _NO_PHASE:
        phase = int(phases.phase_at(np.array([max(state - 1, 0)]))[0])
    requested = int(history.size[row])
    return state, MemoryFailure(
        phase=PHASES[phase],
        message=f"out of memory: {requested:,} B requested",
        requested_bytes=requested,
        line=stacks.line.at(stack),
        device_free_bytes=int(history.address[row]),
    )


def _reserved(history: History | None, at_end: int, began: int) -> tuple[Int64, int]:
    """Return the reserved bytes after each event, and their peak, from the segments at the end."""
    if history is None:
        return np.full(max(began, 1), at_end, dtype=np.int64), at_end
    grows = np.isin(history.action, (SEGMENT_ALLOC, SEGMENT_MAP))
    shrinks = np.isin(history.action, (SEGMENT_FREE, SEGMENT_UNMAP))
    change = np.where(grows, history.size, np.where(shrinks, -history.size, 0))
    after = at_end - (change.sum() - change.cumsum())
    before = int(after[0] - change[0]) if len(after) else at_end
    rows = _counted_rows(history)
    if not len(rows):  # the first request failed
        return np.full(max(began, 1), at_end, dtype=np.int64), at_end
    held = np.concatenate((np.full(began, before, dtype=np.int64), after[rows]))
    return held, max(before, int(after.max(initial=0)))


def _pools(snapshot: Snapshot, number: int, label: str) -> Iterator[MemoryPool]:
    """Yield what each pool of a device holds at the end."""
    segments, blocks = snapshot.segments, snapshot.blocks
    rows: dict[tuple[str, int, bool], list[int]] = {}
    for row in np.flatnonzero(segments.device == number).tolist():
        key = _pool_name(snapshot, row), int(segments.stream[row]), bool(segments.is_expandable[row])
        rows.setdefault(key, []).append(row)
    for (name, stream, expandable), members in sorted(rows.items()):
        inside = np.isin(blocks.segment, members)
        state, size = blocks.state[inside], blocks.size[inside]
        free = size[state == INACTIVE]
        used = state == ALLOCATED
        yield MemoryPool(
            device=label,
            pool=name,
            stream=stream,
            segments=len(members),
            expandable=expandable,
            reserved_bytes=int(segments.total[members].sum()),
            requested_bytes=int(blocks.requested[inside][used].sum()),
            rounding_bytes=int((size[used] - blocks.requested[inside][used]).sum()),
            pending_bytes=int(size[state == PENDING].sum()),
            free_bytes=int(free.sum()),
            largest_free_bytes=int(free.max(initial=0)),
        )


# --- parts of the moment, and notes


def _parts(device: _Device, stacks: _Stacks, classed: Callable[[str], str]) -> Iterator[MemoryPart]:
    """Yield the parts of the moment by line, module, class, phase and stream; of each they sum to it."""
    live = device.live
    components = device.placing.ruling.components
    component = [components[code] for code in device.placing.component[live].tolist()]
    classes = [None if name is None else classed(name) for name in stacks.operator.take(device.stack[live]).decoded()]
    modules = [None if path is None else alike(path) for path in device.module.take(live).decoded()]
    columns: dict[str, Sequence[str | None]] = {
        "line": stacks.line.take(device.stack[live]).decoded(),
        "module": modules,
        "operator_class": classes,
        "phase": [PHASES[code].value for code in device.placing.phase[live].tolist()],
        "stream": [str(stream) for stream in device.stream[live].tolist()],
    }
    if any(regions := device.compiled.take(live).decoded()):
        columns["compiled"] = regions
    functions = {"line": stacks.functions, "attention": {}}
    if device.scores[live].any():
        columns["attention"] = [
            line if one else None for line, one in zip(columns["line"], device.scores[live].tolist(), strict=True)
        ]
        of_math = device.stack[live][device.scores[live] & stacks.in_math_attention[device.stack[live]]]
        in_math = dict.fromkeys(filter(None, stacks.line.take(of_math).decoded()), MATH_ATTENTION)
        functions["attention"] = stacks.functions | in_math
    size, whole = device.blocks.bytes[live].tolist(), device.whole[live].tolist()
    for of, names in columns.items():
        sums: dict[tuple[str | None, str], list[int]] = {}
        for name, part, one, given in zip(names, component, size, whole, strict=True):
            sums.setdefault((name, part), []).append(one)
            if given > one:
                sums.setdefault((name, ROUNDING), []).append(given - one)
        for (name, part), sizes in sorted(sums.items(), key=lambda item: -sum(item[1])):
            yield MemoryPart(
                of=of,
                name=name,
                component=part,
                blocks=len(sizes),
                bytes=sum(sizes),
                function=functions.get(of, {}).get(name or ""),
            )


#: Lines of user code named per point of the curve, and the name of memory without a stack.
_LINES_OF_A_POINT: Final = 4


def _with_lines(device: _Device, stacks: _Stacks) -> Iterator[MemoryPoint]:
    """Yield the points of the curve with the lines that have most of the memory then."""
    lines = stacks.line.take(device.stack)
    told = np.flatnonzero(lines.codes >= 0)
    points = points_of(device.curve, device.reserved, device.passes)
    for point, state in zip(points, states_shown(device.curve).tolist(), strict=True):
        live = told[(device.blocks.alloc[told] < state) & (state <= device.blocks.free[told])]
        sums = np.bincount(lines.codes[live], weights=device.whole[live], minlength=len(lines.values))
        most = np.argsort(-sums, kind="stable")[:_LINES_OF_A_POINT]
        yield replace(point, lines={lines.values[code]: int(sums[code]) for code in most.tolist() if sums[code]})


FREE: Final = "free"
#: Maximum number of spans of a device: beyond it the smallest segments are omitted.
_MOST_SPANS: Final = 1_500


def _spans(device: _Device) -> Iterator[MemorySpan]:
    """Yield the contents of the segments at the moment shown, largest segment first, up to the maximum."""
    snapshot, live = device.snapshot, device.live
    live = live[np.argsort(device.blocks.address[live], kind="stable")]
    address, size = device.blocks.address[live], device.whole[live]
    components, component = device.placing.ruling.components, device.placing.component[live].tolist()
    # A block that waits for a stream is there at the end alone: when it began to wait is not recorded.
    pending = snapshot.blocks.address[snapshot.blocks.state == PENDING] if device.state == device.blocks.events else ()
    waits = np.isin(address, pending).tolist()
    count = 0
    held = sorted(_segments_at(device), key=lambda segment: segment.begin - segment.end)
    for number, segment in enumerate(held):
        first, last = np.searchsorted(address, (segment.begin, segment.end)).tolist()
        pieces: list[tuple[str, int, int]] = []  # what, from where, to where
        reached = segment.begin
        for row in range(first, last):
            begin, end = max(int(address[row]), reached), min(int(address[row] + size[row]), segment.end)
            if end > begin:
                name = PENDING_FREE if waits[row] else components[component[row]]
                pieces += [(FREE, reached, begin)] * (begin > reached) + [(name, begin, end)]
                reached = end
        pieces += [(FREE, reached, segment.end)] * (segment.end > reached)
        runs = []
        for name, same in groupby(pieces, key=lambda piece: piece[0]):
            own = list(same)
            runs.append(
                MemorySpan(
                    device=device.name,
                    pool=segment.pool,
                    segment=number,
                    offset_bytes=own[0][1] - segment.begin,
                    bytes=own[-1][2] - own[0][1],
                    blocks=len(own),
                    component=name,
                )
            )
        count += len(runs)
        if count > _MOST_SPANS:
            return
        yield from runs


class _Segment(Struct, frozen=True):
    """An address range reserved by the allocator at a moment, and its pool."""

    begin: int
    end: int
    pool: str


#: The allocator's request to the driver for blocks of at most 1 MB.
_SMALL_SEGMENT: Final = 2 << 20


def _segments_at(device: _Device) -> Iterator[_Segment]:
    """Yield the segments at the moment shown: those at the end, with later changes undone."""
    snapshot, history, segments = device.snapshot, device.history, device.snapshot.segments
    ours = np.flatnonzero(segments.device == device.number)
    changes: list[tuple[int, int, bool]] = []  # (begin, end, whether it was held before), the last first
    if history is not None:
        rows, counted = _counted_rows(history), device.state - device.curve.first
        cut = int(rows[counted - 1]) + 1 if counted > 0 else 0
        of_segments = np.isin(history.action, (SEGMENT_ALLOC, SEGMENT_MAP, SEGMENT_FREE, SEGMENT_UNMAP))
        for row in np.flatnonzero(of_segments)[::-1].tolist():
            if row >= cut:
                begin = int(history.address[row])
                was = bool(history.action[row] in (SEGMENT_FREE, SEGMENT_UNMAP))
                changes.append((begin, begin + int(history.size[row]), was))
    at_end = {int(segments.address[row]): row for row in ours.tolist()}
    changes = [(begin, begin + int(segments.total[row]), True) for begin, row in at_end.items()] + changes
    edges = sorted({edge for begin, end, _ in changes for edge in (begin, end)})
    held = np.zeros(len(edges), dtype=bool)
    for begin, end, was in changes:
        held[bisect_left(edges, begin) : bisect_left(edges, end)] = was
    starts = {begin for begin, _, was in changes if was}
    begins = [index for index in range(len(edges)) if held[index] and (edges[index] in starts or not held[index - 1])]
    for index, following in zip(begins, [*begins[1:], len(edges) - 1], strict=False):
        stop = next((one for one in range(index, following) if not held[one]), following)
        row = at_end.get(edges[index])
        kind = "small" if edges[stop] - edges[index] <= _SMALL_SEGMENT else "large"
        yield _Segment(edges[index], edges[stop], kind if row is None else _pool_name(snapshot, row))


def _pool_name(snapshot: Snapshot, segment: int) -> str:
    own = snapshot.pools[int(snapshot.segments.pool[segment])]
    kind = "large" if snapshot.segments.is_large[segment] else "small"
    return kind if own == (0, 0) else f"private {own[0]}:{own[1]} {kind}"


def _notes(
    snapshot: Snapshot,
    history: History | None,
    row: MemoryDevice,
    blocks: Blocks,
    of_device: Bool,
    stacks: _Stacks,
    label: str,
) -> Iterator[str]:
    if history is None or not len(history.action):
        yield (
            f"{label}: no history was recorded, so only blocks live at the end are known, and only their stacks show"
            " what they are"
        )
    elif not len(snapshot.stacks) or not (history.stack >= 0).any():
        yield f"{label}: the history has no stacks (context=None or state), so neither lines nor phases are known"
    elif stacks.of_python:
        yield (
            f"{label}: stacks contain only Python frames, so operators are unknown; blocks without a stack were"
            " allocated by autograd"
        )
    live = blocks.live_after(blocks.events)
    at_end = of_device & (snapshot.blocks.state == ALLOCATED)
    ours, theirs = int(blocks.bytes[live].sum()), int(snapshot.blocks.requested[at_end].sum())
    if ours != theirs:
        yield (
            f"{label}: {ours:,} B are live at the end according to the history, {theirs:,} B according to the"
            " segments: the history has a gap"
        )
    if history is not None and row.peak_open_bytes != 0:
        least = "" if row.peak_open_bytes is None else f", and at most {row.peak_open_bytes:,} B higher"
        yield (
            f"{label}: it is unknown how the allocator rounded freed blocks: the true peak is at least the peak"
            f" shown{least}"
        )
    if snapshot.unknown_actions:
        yield f"{label}: unknown actions in the history: {', '.join(snapshot.unknown_actions)}"
