"""Check calls, FLOPs, times, memory and communication against second sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from opanatomy.analysis.costs import nothing_recorded
from opanatomy.attribution.calls import TraceCalls, has_descendant
from opanatomy.attribution.collectives import BACKENDS
from opanatomy.attribution.nesting import nearest_above
from opanatomy.classification.operators import classify_operator
from opanatomy.errors import GateError
from opanatomy.memory.allocations import CPU
from opanatomy.options import as_asked
from opanatomy.records.anatomy import Anatomy, Check, Difference
from opanatomy.records.columns import Bool, CallTable, mask_of, rows_named, unique
from opanatomy.records.communication import Communication, Waiting
from opanatomy.records.memory import AllocatorFigures, Memory, MemoryDevice
from opanatomy.records.patterns import regex
from opanatomy.records.taxonomy import CLASS_CODE, OperatorClass, Phase
from opanatomy.records.workload import Capture, ObservedCount

# ----- calls of a trace as a dispatch mode below autograd sees them


#: Operators that do the work of another in a trace -> the operator that was called.
WORKERS = {"aten::_index_put_impl_": "aten::index_put_"}


class Dispatched(Struct):
    """The calls of one operator in one phase over all steps of the window."""

    calls: int = 0
    #: FLOPs of the contractions among the calls; `None` if any cost is unknown.
    contraction_flops: int | None = 0
    contracts: bool = False
    #: Time of the calls including all their parts.
    time_ns: int = 0
    #: Copies and fills inside the event of an observed operator, which may hide them from a mode.
    enclosed_copies: int = 0
    #: The operators that did the work, by their names in the report.
    operators: Counter[str] = field(default_factory=Counter)


def in_place(name: str) -> str:
    """Return the name that an operator shares with its in-place form: autograd sums with `add` or `add_`."""
    name = WORKERS.get(name, name)
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


#: Ranges in which `torch.compile` traces and compiles, calling operators with tensors without data.
_COMPILING: Final = regex(
    r"\(dynamo_timed\)$|compile_inner|call_user_compiler|create_aot_dispatcher_function|compile_fx"
)


def without_data(calls: TraceCalls) -> Bool:
    """Return which rows lie in a compilation and started no device work: operators on tensors without data."""
    host = calls.host
    compiles = rows_named(_COMPILING, calls.names, host.name)
    rows: Bool = nearest_above(compiles, host.parent) >= 0
    if not calls.on_device or not rows.any():
        return rows
    return rows & ~calls.starts_work & ~has_descendant(calls.starts_work, host.parent)


def dispatched(calls: TraceCalls, table: CallTable, observed: Collection[str]) -> dict[tuple[str, Phase], Dispatched]:
    """Count the calls of `table` by dispatched operator and phase.

    A backend uses other names below the operator that autograd knows (`aten::mkldnn_convolution` below
    `aten::convolution`): a call counts under the outermost delegating operator around it whose name is in `observed`,
    once for all calls that it delegated to.
    """
    rows = np.flatnonzero((table.host_row >= 0) & ~table.inner)
    rows = rows[~without_data(calls)[table.host_row[rows]]]
    called = np.flatnonzero(table.host_row >= 0)
    call_ns = np.zeros(len(calls.host.name), dtype=np.int64)
    np.add.at(call_ns, calls.owner[table.host_row[called]], table.time_ns[called])

    # The outermost observed operator around each host row that delegates (computes only if nothing below it does),
    # else the row itself.
    operators, parents = calls.operators, calls.host.parent
    is_observed = np.array([name in observed for name in calls.names], dtype=bool)[calls.host.name]
    delegating = (operators.delegates | operators.composite) & operators.computes
    nearest = np.append(nearest_above(is_observed & delegating[calls.host.name], parents), -1)
    enclosing = nearest[parents]  # row -1 has none
    outermost = np.arange(len(parents), dtype=np.int64)
    while (further := enclosing >= 0).any():
        outermost = np.where(further, enclosing, outermost)
        enclosing = np.where(further, nearest[parents[np.maximum(enclosing, 0)]], -1)
    host_rows = outermost[table.host_row[rows]]
    around = nearest_above(is_observed, parents)
    enclosed = ((parents >= 0) & (around[parents] >= 0))[host_rows]

    counts: dict[tuple[str, Phase], Dispatched] = {}
    seen: set[int] = set()
    for row, host_row, inside in zip(rows.tolist(), host_rows.tolist(), enclosed.tolist(), strict=True):
        name = calls.names[int(calls.host.name[host_row])]
        counted = counts.setdefault((in_place(name), table.phase.at(row) or Phase.OTHER), Dispatched())
        delegated = host_row != int(table.host_row[row])
        counted.calls += not (delegated and host_row in seen)
        seen.add(host_row)
        counted.operators[str(table.operator.at(row))] += 1
        kind = table.operator_class.at(row)
        counted.time_ns += int(call_ns[table.host_row[row]])
        counted.enclosed_copies += inside and kind is OperatorClass.DATA_MOVEMENT
        if kind is OperatorClass.TENSOR_CONTRACTION:
            counted.contracts = True
            flops, total = int(table.flops[row]), counted.contraction_flops
            counted.contraction_flops = None if total is None or flops < 0 else total + flops
    return counts


def inner_copies(calls: TraceCalls, table: CallTable) -> Counter[tuple[str, Phase]]:
    """Count the copies and fills inside another operator's call, by operator and phase."""
    copies: Counter[tuple[str, Phase]] = Counter()
    rows = np.flatnonzero((table.host_row >= 0) & table.inner)
    classes = calls.operators.operator_class[calls.host.name[table.host_row[rows]]]
    for row in rows[classes == CLASS_CODE[OperatorClass.DATA_MOVEMENT]].tolist():
        copies[in_place(str(table.operator.at(row))), table.phase.at(row) or Phase.OTHER] += 1
    return copies


# ----- known causes of differences between a profiled step and what a dispatch mode saw
#
# Anything else stays a difference. Torch's own other path explains a contraction only if all contractions of the phase
# together are equal, a forward outside all modules only if none is missing.


Key = tuple[str, Phase]

FIRST_STEP: Final = "created once, in the first step, which is the observed one"
KEPT_COPY: Final = "autograd keeps a copy of what an operator overwrites, within that operator's own event"
ENCLOSED: Final = "copies and fills within another operator's event, where the dispatch mode does not see them"
NO_IN_PLACE: Final = "autograd does not work in place while a dispatch mode is active, so it creates zeros differently"
COPIED_GRADIENT: Final = (
    "autograd keeps a gradient without copying it if nothing else holds it, but a dispatch mode holds it"
)
FAST_PATH: Final = "torch.nn skips its fast path while a dispatch mode is active: the same matmuls, fused differently"
OUTSIDE_MODULES: Final = (
    "ran before the first module call: assigned to forward by their autograd nodes, which a dispatch mode does not see"
)
SCRIPTED: Final = "TorchScript first runs a graph as written, later with constants folded and calls fused"
FORWARD_AD: Final = "forward-mode differentiation, which runs differently under a dispatch mode"

#: Operators that make tensors which a first step keeps for later ones: masks, tables, the weights of lazy modules; an
#: optimizer's state is also copied.
_MAKES = ("zeros", "ones", "full", "fill", "zero", "arange", "new_zeros", "new_ones", "new_full", "eye", "tril", "triu")
_RANDOM = ("uniform", "normal")
_COPIES = ("copy", "clone")
#: Operators that create zeros; `FunctionsManual.cpp` uses another one if a tensor may be a subclass (or a mode is
#: active).
_ZEROS = ("aten::zeros", "aten::zero", "aten::new_zeros", "aten::zeros_like")
#: Operators that copy a gradient when it is first accumulated, and helpers: for a sparse one, a dense one.
_GRADIENT_COPIES = ("aten::clone", "aten::copy")
_ACCUMULATED = frozenset({"aten::_indices", "aten::new_empty_strided"})
_FAST_PATHS = frozenset({"aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention"})
#: Operators that only forward-mode differentiation runs.
_DUAL = ("aten::_make_dual", "aten::_efficientzerotensor", "prims::")


class Observed(Struct):
    """The observed calls of an operator in a phase; `flops` is `None` if a call has no second formula."""

    calls: int = 0
    flops: int | None = 0
    sources: tuple[str, ...] = ()


class Counts(Struct, frozen=True, kw_only=True):
    """Both counts of a run; `traced` and `watched` are the names of all operators in the trace and in the observation.

    `inner_copies` are copies and fills that are part of another call.
    """

    ours: Mapping[Key, Dispatched]
    observed: Mapping[Key, Observed]
    inner_copies: Mapping[Key, int] = field(default_factory=dict)
    #: Whether the watched step was the first one.
    of_first_step: bool = False
    traced: frozenset[str] = frozenset()
    watched: frozenset[str] = frozenset()

    def calls(self, key: Key) -> tuple[int, int]:
        """Return the calls of an operator in a phase, counted here and observed."""
        return (
            self.ours[key].calls if key in self.ours else 0,
            self.observed[key].calls if key in self.observed else 0,
        )

    def flops(self, key: Key) -> tuple[int | None, int | None]:
        """Return the contraction FLOPs of an operator in a phase, counted here and observed."""
        return (
            self.ours[key].contraction_flops if key in self.ours else 0,
            self.observed[key].flops if key in self.observed else 0,
        )

    def time_of_calls(self, key: Key) -> int | None:
        """Return the time of as many calls of an operator in a phase as are missing or too many here."""
        ours, observed = self.calls(key)
        alike = [count for other, count in self.ours.items() if other == key or (not ours and other[0] == key[0])]
        calls = sum(count.calls for count in alike)
        return abs(ours - observed) * sum(count.time_ns for count in alike) // calls if calls else None

    def time_of_flops(self, key: Key) -> int | None:
        """Return the time of an operator in a phase: it is unknown which of its calls have other FLOPs."""
        return self.ours[key].time_ns if key in self.ours else self.time_of_calls(key)

    def took_fast_path(self, phase: Phase) -> bool:
        """Return whether the trace has an unobserved fast path, and all contractions of the phase cost the same."""
        if not (_FAST_PATHS & self.traced) - self.watched:
            return False
        ours = [counted.contraction_flops for (_, at), counted in self.ours.items() if at is phase]
        observed = [count.flops for (_, at), count in self.observed.items() if at is phase and count.sources]
        return None not in ours and None not in observed and sum(filter(None, ours)) == sum(filter(None, observed))


def cause_of_calls(key: Key, counts: Counts) -> str | None:
    """Return why an operator's call counts differ in a phase; `None` if nothing known explains it."""
    name, phase = key
    ours, watched = counts.calls(key)
    if counts.took_fast_path(phase):
        return FAST_PATH
    if _is_outside_modules(key, counts.calls):
        return OUTSIDE_MODULES
    zeros = [counts.calls((zero, phase)) for zero in _ZEROS]
    zeros_are_equal = sum(counted for counted, _ in zeros) == sum(observed for _, observed in zeros)
    if name in _ZEROS and phase is not Phase.FORWARD and zeros_are_equal:
        return NO_IN_PLACE
    base = name.partition("::")[2].removeprefix("_foreach_")
    kept = (*_MAKES, *_RANDOM, *(_COPIES if phase is Phase.OPTIMIZER else ()))
    if counts.of_first_step and ours < watched and base.startswith(kept):
        return FIRST_STEP
    if 0 < watched - ours <= counts.inner_copies.get(key, 0):
        return KEPT_COPY
    if name in _GRADIENT_COPIES and phase is Phase.BACKWARD and ours < watched and _ACCUMULATED & counts.watched:
        return COPIED_GRADIENT
    if 0 < ours - watched <= counts.ours[key].enclosed_copies:
        return ENCLOSED
    # TorchScript's fuser names its kernels without a namespace.
    fuses_scripts = any(name.startswith("fused_") for name in counts.traced)
    return SCRIPTED if ours < watched and fuses_scripts else None


def cause_of_flops(key: Key, counts: Counts) -> str | None:
    """Return why an operator's contraction FLOPs differ in a phase; `None` if nothing known explains it."""
    if _is_outside_modules(key, counts.flops):
        return OUTSIDE_MODULES
    return FAST_PATH if counts.took_fast_path(key[1]) else None


def _is_outside_modules(key: Key, figures: Callable[[Key], tuple[int | None, int | None]]) -> bool:
    """Return whether forward here has exactly what the mode counted outside all passes."""
    (forward, seen_forward), (other, seen_other) = (figures((key[0], phase)) for phase in (Phase.FORWARD, Phase.OTHER))
    if key[1] not in (Phase.FORWARD, Phase.OTHER) or None in (forward, seen_forward, other, seen_other):
        return False
    moved = (forward or 0) - (seen_forward or 0)
    return moved > 0 and moved == (seen_other or 0) - (other or 0)


VARYING: Final = "steps vary: the profiled steps do not all make the same calls"
OBSERVER = "a dispatch mode in the warm-up"
#: Prefixes of the names that a dispatch mode does not see.
_UNSEEN: Final = ("graph_", "triton_", "cpp_", *BACKENDS, "_c10d_functional::_wrap_tensor_autograd")


def check_counts(
    calls: TraceCalls, table: CallTable, capture: Capture | None, steps: int, *, steps_vary: bool = False
) -> tuple[Check, ...]:
    """Return both comparisons of a capture; none for traces of other origin.

    `table` has the calls of the `steps` counted steps. If recorded steps vary, the observed ones may have taken another
    branch.
    """
    if capture is None:
        return ()
    if not capture.observed_counts:
        reason = capture.not_observed or "the capture did not observe a step"
        return (
            Check(quantity="call counts", source=OBSERVER, unit="calls", not_checked=reason),
            Check(quantity="contraction FLOPs", source=OBSERVER, unit="FLOPs", not_checked=reason),
        )
    watched = frozenset(row.operator for row in capture.observed_counts)
    # No mode sees work of generated code or of a backend's threads, or above autograd.
    ours = {
        key: count
        for key, count in dispatched(calls, table, watched).items()
        if not all(name.startswith(_UNSEEN) for name in count.operators)
    }
    counts = Counts(
        ours=ours,
        observed=_computing(capture.observed_counts, steps),
        inner_copies=inner_copies(calls, table),
        of_first_step=capture.observed_step == 1,
        traced=frozenset(calls.names),
        watched=watched,
    )

    keys = sorted({*counts.ours, *counts.observed})
    differences = _differences(keys, counts.calls, lambda key: cause_of_calls(key, counts), counts.time_of_calls)
    of_calls = Check(
        quantity="call counts",
        source=OBSERVER,
        unit="calls",
        compared=len(keys),
        equal=len(keys) - len(differences),
        differences=differences,
    )

    checks = of_calls, _check_flops(counts)
    unseen = capture.not_observed or (VARYING if steps_vary else None)
    if any(name.startswith(_DUAL) for name in counts.watched | counts.traced):
        unseen = FORWARD_AD
    if not unseen:
        return checks
    # It cannot be known which of the differences are mistakes.
    dropped = {"compared": 0, "equal": 0, "differences": (), "not_checked": unseen}
    return tuple(replace(check, **dropped) if check.unexplained else check for check in checks)


def _computing(counts: Iterable[ObservedCount], steps: int) -> dict[Key, Observed]:
    """Return the observed calls of computing operators, multiplied by the number of steps in the trace."""
    observed: dict[Key, Observed] = {}
    for count in counts:
        known = classify_operator(count.operator)
        if known is not None and known.operator_class is None:
            continue  # a view, an allocation
        operator = observed.setdefault((in_place(count.operator), count.phase), Observed())
        operator.calls += count.calls * steps
        operator.flops = None if operator.flops is None or count.flops is None else operator.flops + count.flops * steps
        operator.sources = tuple(sorted({*operator.sources, *((count.source,) if count.source else ())}))
    return observed


def _check_flops(counts: Counts) -> Check:
    contractions = {key for key, count in counts.ours.items() if count.contracts}
    keys = sorted(contractions | {key for key, count in counts.observed.items() if count.sources})
    uncounted = [key for key in keys if key in counts.observed and counts.observed[key].flops is None]
    compared = [key for key in keys if key not in uncounted]
    differences = _differences(compared, counts.flops, lambda key: cause_of_flops(key, counts), counts.time_of_flops)
    names = ", ".join(sorted({name for name, _ in uncounted}))
    sources = sorted({source for count in counts.observed.values() for source in count.sources})
    return Check(
        quantity="contraction FLOPs",
        source=" and ".join(sources) or OBSERVER,
        unit="FLOPs",
        compared=len(compared),
        equal=len(compared) - len(differences),
        differences=differences,
        not_checked=f"no second formula for {names}" if names else None,
    )


def _differences(
    keys: Iterable[Key],
    figures: Callable[[Key], tuple[int | None, int | None]],
    cause: Callable[[Key], str | None],
    time_of: Callable[[Key], int | None],
) -> tuple[Difference, ...]:
    """Return a difference for each operator and phase whose two figures differ."""
    differences = []
    for key in keys:
        ours, other = figures(key)
        if ours != other:
            evidence = "one of its calls has no formula" if ours is None else None
            differences.append(
                Difference(
                    operator=key[0],
                    phase=key[1],
                    ours=ours,
                    other=other,
                    cause=cause(key),
                    evidence=evidence,
                    time_ns=time_of(key),
                )
            )
    return tuple(differences)


# ----- time by operator against the profiler's own tree of events, as the run summed it up


PROFILER = "the profiler's event tree"
_OPERATOR = regex(r"aten::\w+")


def check_times(calls: TraceCalls, table: CallTable, capture: Capture | None) -> Check | None:
    """Compare the time of each operator with the profiler's own; return `None` for a trace from elsewhere.

    An operator that also merely dispatches (it delegates, or calls another overload of its name) has time that belongs
    to no call: there the self times of all its events are compared.
    """
    if capture is None:
        return None
    if not capture.profiler_times_ns:
        return Check(
            quantity="operator times",
            source=PROFILER,
            unit="ns",
            not_checked="the capture did not save the profiler's sums",
        )
    called = table.host_row >= 0
    host, names = calls.host, calls.names
    in_table = np.zeros(len(host.name), dtype=np.int64)
    in_table[table.host_row[called]] = table.time_ns[called]
    dispatches = mask_of(host.name[(calls.owner < 0) & calls.operators.computes[host.name]], len(names))
    time = np.where(dispatches[host.name], calls.time_ns, in_table)
    computes = calls.operators.computes[host.name]
    sums = np.zeros(len(names), dtype=np.int64)
    np.add.at(sums, host.name[computes], time[computes])
    ours: Counter[str] = Counter()
    for number in unique(host.name[computes]).values.tolist():
        if not names[number].startswith(BACKENDS):  # an annotation, which the profiler does not sum up
            ours[names[number]] = int(sums[number])

    theirs = capture.profiler_times_ns
    keys = sorted({*ours, *(name for name in theirs if _computes(name))})
    differences = tuple(
        Difference(
            operator=name, ours=ours[name], other=theirs.get(name, 0), time_ns=abs(ours[name] - theirs.get(name, 0))
        )
        for name in keys
        if ours[name] != theirs.get(name, 0)
    )
    return Check(
        quantity="operator times",
        source=PROFILER,
        unit="ns",
        compared=len(keys),
        equal=len(keys) - len(differences),
        differences=differences,
    )


def _computes(name: str) -> bool:
    """Return whether a row of the profiler is an operator that computes, not a kernel, and so must be in the report."""
    known = classify_operator(name) if _OPERATOR.fullmatch(name) else None
    return known is not None and known.operator_class is not None


# ----- memory of a step against the allocators' own peak, and their total at each event


PEAK = "torch.cuda.max_memory_allocated"
BEFORE = "torch.cuda.memory_allocated"
TOTALS = "the allocator's total at each event"
#: The CPU's total lacks frees by unprofiled threads; an address allocated again reveals them.
_FREED_UNPROFILED = "some blocks were freed on an unprofiled thread, which the CPU allocator's total does not include"


def check_memory(memory: Memory) -> tuple[Check, ...]:
    """Return the checks of a step traced by allocation, else of a trace's memory events, else none."""
    if memory.allocator is not None:
        figures = memory.allocator
        return _peak(memory, figures), *_before(figures), _totals(figures)
    rows = [row for row in memory.devices if row.checked_events]
    main = [row for row in rows if row.device != CPU or row is memory.devices[0]]
    if not main:
        return ()
    return (
        Check(
            quantity="allocated bytes",
            source=TOTALS,
            unit="B",
            compared=sum(row.checked_events for row in main),
            equal=sum(row.equal_events for row in main),
            differences=tuple(difference for row in main for difference in _difference(row, None)),
        ),
    )


def _peak(memory: Memory, figures: AllocatorFigures) -> Check:
    if figures.peak_bytes is None or figures.before_blocks_bytes is None:
        why = f"the allocator of {figures.device} ({figures.backend or 'unknown'}) reports no blocks to replay"
        if figures.device == CPU:
            why = "torch's CPU allocator does not track its peak"
        return Check(quantity="memory peak", source=PEAK, unit="B", not_checked=why)
    ours, other = memory.peak_bytes, figures.peak_bytes
    differences = () if ours == other else (Difference(operator=figures.device, ours=ours, other=other),)
    return Check(
        quantity="memory peak", source=PEAK, unit="B", compared=1, equal=1 - len(differences), differences=differences
    )


def _before(figures: AllocatorFigures) -> tuple[Check, ...]:
    """Compare the blocks of the allocator's snapshot before the step; the CPU has no snapshot."""
    ours, other = figures.before_blocks_bytes, figures.before_bytes
    if ours is None or other is None:
        return ()
    differences = () if ours == other else (Difference(operator=figures.device, ours=ours, other=other),)
    return (
        Check(
            quantity="allocated before the step",
            source=BEFORE,
            unit="B",
            compared=1,
            equal=1 - len(differences),
            differences=differences,
        ),
    )


def _totals(figures: AllocatorFigures) -> Check:
    cause = _FREED_UNPROFILED if figures.device == CPU and figures.unseen_frees else None
    if not figures.checked_events:
        why = "no event of the step reports the allocator's total"
        return Check(quantity="allocated bytes", source=TOTALS, unit="B", not_checked=why)
    differences = _difference(figures, cause)
    return Check(
        quantity="allocated bytes",
        source=TOTALS,
        unit="B",
        compared=figures.checked_events,
        equal=figures.equal_events,
        differences=differences,
    )


def _difference(row: AllocatorFigures | MemoryDevice, cause: str | None) -> tuple[Difference, ...]:
    """Return one row for a device: our bytes and the allocator's where they differ most."""
    unequal = row.checked_events - row.equal_events
    if not unequal:
        return ()
    ours, other = row.at_largest_difference or (None, None)
    events = f"differs in {unequal:,} of {row.checked_events:,} events, by up to {row.largest_difference_bytes:,} B"
    return (Difference(operator=row.device, ours=ours, other=other, cause=cause, evidence=f"{row.device} {events}"),)


# ----- communication against what shared weights need; parts of steps against the union of all work


_SOURCE = "the weights that the ranks share"
_REDUCTIONS = ("all_reduce", "reduce_scatter")


def check_communication(communication: Communication | None, micro_batches: int = 1) -> tuple[Check, ...]:
    """Compare the bytes of each module's collectives with what its weights need; none if nothing is expected.

    A loop that accumulates gradients may reduce them in each of its `micro_batches`, where once would do.
    """
    if communication is None or not communication.expected:
        return ()
    known = [row for row in communication.expected if row.measured_bytes is not None]
    differences = []
    for row in known:
        if row.measured_bytes == row.expected_bytes:
            continue
        each_time = row.collective in _REDUCTIONS and micro_batches > 1
        cause = f"reduced in each of {micro_batches} micro-batches: the loop does not use no_sync()"
        differences.append(
            Difference(
                operator=row.collective,
                ours=row.measured_bytes,
                other=row.expected_bytes,
                evidence=row.module or "the entire model",
                cause=cause if each_time and row.measured_bytes == micro_batches * row.expected_bytes else None,
            )
        )
    unknown = len(communication.expected) - len(known)
    return (
        Check(
            quantity="communicated bytes",
            source=_SOURCE,
            unit="B",
            compared=len(known),
            equal=len(known) - len(differences),
            differences=tuple(differences),
            not_checked=f"the trace does not show the size of {unknown} of the expected collectives"
            if unknown
            else None,
        ),
    )


def check_parts(waiting: Waiting | None) -> tuple[Check, ...]:
    """Check that each step's parts sum to the step on several ranks; none if no collective is matched."""
    if waiting is None:
        return ()
    steps = [(rank, step) for rank in waiting.each for step in rank.steps]
    sums = [
        step.other_work_ns + step.transfer_ns + step.waiting_ns + step.unmatched_ns + step.idle_ns for _, step in steps
    ]
    differences = tuple(
        Difference(
            operator="parts of a step",
            ours=whole,
            other=step.wall_ns,
            time_ns=abs(whole - step.wall_ns),
            evidence=f"step {step.number} of {rank.trace if rank.rank is None else f'rank {rank.rank}'}",
        )
        for (rank, step), whole in zip(steps, sums, strict=True)
        if whole != step.wall_ns
    )
    return (
        Check(
            quantity="parts of steps",
            source="the union of all work of the step",
            unit="ns",
            compared=len(steps),
            equal=len(steps) - len(differences),
            differences=differences,
        ),
    )


# ----- the gate of `--check`: unconfirmed figures end in exit code 3


def require_agreement(anatomy: Anatomy) -> None:
    """Raise `GateError` if figures for at least 1 % of the work are unconfirmed for no known cause."""
    if nothing_recorded(anatomy):
        raise GateError("check: no device work was recorded, so nothing on the device can be checked")
    alarms = anatomy.alarms
    if not alarms:
        return
    work_ns = anatomy.work_ns
    count = sum(len(check.unexplained) for check in alarms)
    check = max(alarms, key=lambda check: check.share(work_ns))
    first = max(check.unexplained, key=lambda difference: difference.share(work_ns))
    where = f" in {first.phase}" if first.phase is not None else ""
    figures = (
        f"{'unknown' if value is None else format(value, ',')} {check.unit}" for value in (first.ours, first.other)
    )
    said = f"{' here and '.join(figures)} according to {check.source}"
    if first.ours is None and first.other is None and first.evidence:
        said = first.evidence
    below = below_alarm(anatomy)
    also = f"; {below}" if below else ""
    raise GateError(
        f"check: {count:,} number{'s are' if count > 1 else ' is'} not confirmed, the largest difference being in"
        f" {check.quantity} of {first.operator}{where}, {said}{also} - "
        + as_asked("see the top of the report", "leave out check, and look at Anatomy.checks")
    )


def below_alarm(anatomy: Anatomy) -> str:
    """Return how many unconfirmed figures affect too little to fail; empty if none."""
    alarms = anatomy.alarms
    count = sum(len(check.unexplained) for check in anatomy.checks if check not in alarms)
    if not count:
        return ""
    one = count == 1
    return (
        f"{count:,} {'number that affects' if one else 'numbers that affect'} less than 1 % of the work"
        f" {'is' if one else 'are'} not confirmed"
    )
