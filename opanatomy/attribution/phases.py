"""Find the phase and module of each host event, from a capture's ranges or from autograd and optimizers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.attribution.nesting import HostRows, contains, last_started, latest, nearest_above
from opanatomy.errors import UsageError
from opanatomy.options import as_asked
from opanatomy.records.anatomy import Check, Difference
from opanatomy.records.columns import (
    BEFORE_ALL,
    NO_FLOWS,
    Bool,
    Categorical,
    Flows,
    Int64,
    isin,
    rows_by_value,
    rows_named,
    take,
    unique,
)
from opanatomy.records.patterns import regex
from opanatomy.records.taxonomy import (
    BACKWARD,
    FORWARD,
    FORWARDS,
    OPTIMIZER,
    OTHER,
    PHASE_CODE,
    PHASES,
    RECOMPUTE,
    Phase,
)
from opanatomy.records.workload import LOOP_RANGE, MODULE_RANGE, PHASE_RANGE, MarkedCall, flattened, loop_spans

# Classify the names of a trace for phases, each name once.


# ----- `--phase forward=REGEX`: the user's phases for a trace's own annotations


class PhaseRule(Struct, frozen=True):
    """A pattern for the names of a trace's own annotations, and the phase of what runs inside them."""

    phase: Phase
    pattern: re.Pattern[str]


def phase_rules(options: Iterable[str]) -> tuple[PhaseRule, ...]:
    """Parse `PHASE=REGEX` texts into rules, in their order; raise `UsageError` for an invalid one."""
    rules = []
    for option in options:
        phase, equals, pattern = option.partition("=")
        if not equals:
            raise UsageError(f"--phase {option!r}: no '=' in it - write PHASE=REGEX, such as --phase 'forward=(F)$'")
        rules.append(_rule("--phase ", phase.strip(), pattern))
    return tuple(rules)


def phase_rules_of(phases: object) -> tuple[PhaseRule, ...]:
    """Build rules from a mapping of phases to one or several regular expressions."""
    if not isinstance(phases, Mapping):
        raise UsageError("analyze: phases is not a dictionary - pass {'forward': REGEX, ...}")
    rules = []
    for phase, patterns in phases.items():
        for pattern in patterns if isinstance(patterns, (list, tuple)) else (patterns,):
            rules.append(_rule("analyze: phases ", str(phase), pattern))
    return tuple(rules)


def _rule(where: str, phase: str, pattern: object) -> PhaseRule:
    text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    if phase not in set(Phase):
        raise UsageError(f"{where}{phase}={text}: no phase {phase!r} - use one of {', '.join(Phase)}")
    if not isinstance(text, str) or not text:
        raise UsageError(f"{where}{phase}={text}: not a regular expression - pass one that matches annotation names")
    try:
        return PhaseRule(Phase(phase), re.compile(text))
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"{where}{phase}={text}: not a regular expression: {error} - escape literal text") from error


_EVALUATION = "autograd::engine::evaluate_function: "
#: Autograd's engine and nodes; until late 2021 the engine left no events, only nodes such as `AddmmBackward`.
_NODE = regex(r"^autograd::engine::evaluate_function: |^torch::autograd::|^\w+Backward\d*$")
#: Nodes of torch's built-in formulas: their names end in a number, Python functions' do not.
_DERIVATIVE = regex(r"^\w+Backward\d+$")
#: Operators that compute a gradient: `aten::convolution_backward`, `aten::_softmax_backward_data`.
_GRADIENT = regex(r"^(?!FSDP::)\w+::\w*_backward(?:_data)?$")
#: Nodes of Python functions, except checkpointing's, which torch, DeepSpeed and Megatron name alike.
_FUNCTION = regex(r"^(?!\w*[Cc]heckpoint)(\w+)Backward$")
_OPTIMIZER = regex(
    r"^Optimizer\.step#|^aten::_amp_|^## ?optimizer ?##$|optimizer_step|^OptimizerStep"
    r"|^aten::_fused_(?:adam|adamw|sgd|adagrad)_$"
)
_OTHER = regex(r"^Optimizer\.zero_grad#|^enumerate\(DataLoader\)|^## ?zero_grad ?##$|optimizer_zero_grad")
#: Work of DDP and FSDP when a gradient is ready and at the end of backward, on any thread. Compiled autograd runs no
#: nodes but one region, whose number has a mark.
_BACKWARD = regex(
    r"^FSDP::(?:root_)?(?:pre|post)_backward|^FSDP::backward_prefetch|^FullyShardedDataParallel\._(?:pre|post)_backward"
    r"|^torch[.:]+distributed[.:]+(?:ddp\.)?reducer::(?:copy_|mul_out|copy_bucket_to_grad)"
    r"|^Torch-Compiled Region: !"
)
#: Work of FSDP before and after the forward of a module, without sequence numbers.
_SHARDED = regex(
    r"^FSDP::(?:(?:root_)?(?:pre|post)_forward|forward_prefetch|cast_forward_|inputs_to_device)"
    r"|^FullyShardedDataParallel\._(?:root_)?(?:pre|post)_forward|^FullyShardedDataParallel\.(?:forward|_to_kwargs)"
)
#: Collectives and their annotations; in backward they sometimes have sequence numbers.
_COMMUNICATION = regex(
    r"^_?c10d(?:_functional)?::|^_?dtensor::|^fsdp::|^symm_mem::|^(?:nccl|gloo|ucc|mpi|xccl|hccl|rccl):"
    r"|^record_param_comms$|^torch_ccl::|^deep_ep\b|^horovod"
)
#: Between pipeline stages a send belongs to the pass before it, a receive to the pass after it.
_SENDS = regex(r"^(?:c10d::|nccl:|gloo:|_c10d_functional::)i?send")
_RECEIVES = regex(r"^(?:c10d::|nccl:|gloo:|_c10d_functional::)i?recv")
#: Annotations of a communication backend on its own threads.
_BACKEND = regex(r"^(?:nccl|gloo|ucc|mpi|xccl|hccl|rccl):")
#: Annotations that frameworks leave inside and around operators; they name no part of a training loop.
_MACHINERY = regex(
    r"^Torch-Compiled Region|^## Call CompiledFxGraph|^CompiledFxGraph|^TorchDynamo|^AOTDispatcher|^Pregraph"
    r"|^FSDP::|^FullyShardedDataParallel|^DistributedDataParallel\.|^DataParallel\.|^(?:nccl|gloo|ucc|mpi|xccl):"
)
_STEP = regex(r"^ProfilerStep#?(\d{1,18})$")


class NameKinds(Struct, frozen=True):
    """The meaning of each name for phases, one entry per name.

    `phase` is the phase from a capture's range, `mapped` from a user's rule, `known` from a framework's range: indices
    into `PHASES` or -1. `same_node` is the name of the node that an evaluation runs, `function` the name of a node's
    Python function: -1 for other nodes, -2 if the trace has no event of that name.
    """

    phase: Int64
    mapped: Int64
    known: Int64
    module: list[str | None]
    node: Bool
    derivative: Bool
    gradient: Bool
    same_node: Int64
    function: Int64
    communication: Bool
    sends: Bool
    receives: Bool
    backend: Bool
    machinery: Bool
    sharded: Bool
    #: Operators that the dispatcher calls; Python functions have numbers whether gradients are recorded or not.
    dispatched: Bool
    ones: Bool
    detach: Bool
    #: Ranges of a capture, and those around calls in a user's own loop.
    captured: Bool
    in_loop: Bool
    step: list[int | None]


def kinds_of(names: Sequence[str], rules: Sequence[PhaseRule] = ()) -> NameKinds:
    """Classify each name."""
    numbers = {name: number for number, name in enumerate(names)}
    phase, mapped, known = (np.full(len(names), -1, dtype=np.int64) for _ in range(3))
    for number, name in enumerate(names):
        range_of = name.removeprefix(LOOP_RANGE).removeprefix(PHASE_RANGE)
        if name.startswith(PHASE_RANGE) and range_of in set(Phase):
            phase[number] = PHASE_CODE[Phase(range_of)]
        mapped[number] = next((PHASE_CODE[rule.phase] for rule in rules if rule.pattern.search(name)), -1)
        if _OTHER.search(name):
            known[number] = OTHER
        elif _OPTIMIZER.search(name):
            known[number] = OPTIMIZER
        elif _BACKWARD.match(name):
            known[number] = BACKWARD
    return NameKinds(
        phase=phase,
        mapped=mapped,
        known=known,
        module=[name.removeprefix(MODULE_RANGE) if name.startswith(MODULE_RANGE) else None for name in names],
        node=are_nodes(names),
        derivative=_flags(_DERIVATIVE.match(name) for name in names),
        gradient=_flags(_GRADIENT.match(name) for name in names),
        same_node=np.array(
            [numbers.get(name.removeprefix(_EVALUATION), -1) if name.startswith(_EVALUATION) else -1 for name in names],
            dtype=np.int64,
        ),
        function=np.array(
            [numbers.get(match[1], -2) if (match := _FUNCTION.match(name)) else -1 for name in names], dtype=np.int64
        ),
        communication=_flags(_COMMUNICATION.match(name) for name in names),
        sends=_flags(_SENDS.match(name) for name in names),
        receives=_flags(_RECEIVES.match(name) for name in names),
        backend=_flags(_BACKEND.match(name) for name in names),
        machinery=_flags(_MACHINERY.match(name) for name in names),
        sharded=_flags(_SHARDED.match(name) for name in names),
        dispatched=_flags("::" in name for name in names),
        ones=_flags(name == "aten::ones_like" for name in names),
        detach=_flags(name == "aten::detach" for name in names),
        captured=_flags(name.startswith((PHASE_RANGE, MODULE_RANGE)) for name in names),
        in_loop=_flags(name.startswith(LOOP_RANGE) for name in names),
        step=[int(match[1]) if (match := _STEP.match(name)) else None for name in names],
    )


def are_nodes(names: Sequence[str]) -> Bool:
    """Return which names are of autograd's engine and nodes."""
    return _flags(_NODE.match(name) for name in names)


def own_ranges(rows: HostRows, kinds: NameKinds) -> Bool:
    """Return which events are annotations of the traced program; in 2021 they were written like operators."""
    annotated = ~rows.is_operator
    if not annotated.any():
        annotated = ~kinds.dispatched[rows.name] & ~kinds.node[rows.name] & (rows.sequence < 0)
    is_step = np.array([number is not None for number in kinds.step], dtype=bool)
    # Some releases write compiled regions as operators.
    annotated |= kinds.machinery[rows.name] & (rows.sequence < 0)
    ranges: Bool = annotated & ~(is_step | kinds.captured)[rows.name]
    return ranges


def _flags(values: Iterable[object]) -> Bool:
    return np.array([bool(value) for value in values], dtype=bool)


# Find autograd nodes, the operators that they differentiate, and what is recomputed inside them.


# ----- forward operators of nodes


#: Events that may start in the same nanosecond: an operator and its parts.
_NESTED = 16
#: The most forward threads of a program; a trace with more is damaged.
MAX_THREADS = 1000


def forward_of(rows: HostRows, is_node: Bool, same_node: Int64, flows: Flows) -> Int64:
    """Return for each node the row of the operator that it differentiates; -1 for other rows and if unknown.

    The profiler links them by `fwdbwd` flows. Sequence numbers are the second source: they are counted per thread, and
    the last operator with a node's number on the thread that made the node matches. Operators in the same place as the
    node are tried first: outside all nodes, or in the node where checkpointing differentiates what it recomputed. So a
    number that recomputation reused on the device thread is not mistaken for one of the forward.
    """
    forward = np.full(len(rows.name), -1, dtype=np.int64)
    node = _starting(rows, flows.backward_thread, flows.backward_ns, is_node, None)
    number = take(rows.sequence, node)
    operator = _starting(rows, flows.forward_thread, flows.forward_ns, ~is_node, np.where(number >= 0, number, -2))
    known = (node >= 0) & (operator >= 0)
    forward[node[known]] = operator[known]

    # The innermost node around each row (for a node, around its evaluation); -1 outside all nodes.
    outer = take(nearest_above(is_node, rows.parent), rows.parent)
    evaluated = is_node & (take(same_node, outer) == rows.name) & (outer >= 0)
    inside = np.where(evaluated, take(outer, outer), outer)
    _by_numbers(rows, is_node, inside, forward)
    _by_numbers(rows, is_node, np.full(len(inside), -1, dtype=np.int64), forward)

    # An evaluation and the node that it runs have the same forward operator.
    nodes = np.flatnonzero(is_node & (rows.parent >= 0))
    outer = nearest_above(is_node, rows.parent)[rows.parent[nodes]]
    same = (outer >= 0) & (take(same_node, outer) == rows.name[nodes])
    inner, outer = nodes[same], outer[same]
    either = np.maximum(forward[inner], forward[outer])
    forward[inner] = np.where(forward[inner] < 0, either, forward[inner])
    forward[outer] = np.where(forward[outer] < 0, either, forward[outer])
    return forward


def _starting(rows: HostRows, thread: Int64, time_ns: Int64, wanted: Bool, sequence: Int64 | None) -> Int64:
    """Return the innermost wanted row (with this sequence number) that starts at each time on each thread, else -1."""
    row = last_started(rows.thread, rows.start_ns, (thread, time_ns))
    for _ in range(_NESTED):
        here = (row >= 0) & (take(rows.start_ns, row) == time_ns) & (take(rows.thread, row) == thread)
        row = np.where(here, row, -1)
        fits = (row >= 0) & wanted[row] if len(wanted) else row >= 0
        if sequence is not None:
            fits &= take(rows.sequence, row) == sequence
        if (fits | (row < 0)).all():
            break
        row = np.where(fits | (row < 0), row, row - 1)
    return np.where(fits, row, -1) if len(row) else row


def _by_numbers(rows: HostRows, is_node: Bool, inside: Int64, forward: Int64) -> None:
    """Pair nodes that have no operator yet with operators of the same number and place (`inside`)."""
    nodes = np.flatnonzero(is_node & (rows.sequence >= 0))
    operators = np.flatnonzero(~is_node & (rows.sequence >= 0))
    operators = operators[isin(rows.sequence[operators], rows.sequence[nodes])]
    numbers = unique(rows.sequence)
    key = numbers.inverse + len(numbers.values) * (inside + 1)  # one for each pair of number and place
    by_thread = {thread: operators[indices] for thread, indices in rows_by_value(rows.thread[operators])}
    made = {number: nodes[indices] for number, indices in rows_by_value(rows.forward_thread[nodes])}
    for made_on, thread in _threads(rows, key, made, operators, forward).items():
        among = operators if thread is None else by_thread.get(thread, operators[:0])
        left = made[made_on][forward[made[made_on]] < 0]
        last = latest(rows, key, among)
        if len(last) and len(left):
            index = np.minimum(np.searchsorted(key[last], key[left]), len(last) - 1)
            known = (key[last[index]] == key[left]) & (rows.start_ns[last[index]] < rows.start_ns[left])
            forward[left[known]] = last[index[known]]


def _threads(
    rows: HostRows, key: Int64, made: dict[int, Int64], operators: Int64, forward: Int64
) -> dict[int, int | None]:
    """Map each forward thread number to the thread of its operators; `None` if the trace does not number threads.

    Flows decide, else the thread with most of the nodes' numbers; numbers with most nodes choose first.
    """
    # One operator for each key and thread, sorted by key.
    order = operators[np.lexsort((rows.thread[operators], key[operators]))]
    threads, keys = rows.thread[order], key[order]
    first = np.append(True, (threads[1:] != threads[:-1]) | (keys[1:] != keys[:-1]))[: len(order)]
    threads, keys = threads[first], keys[first]
    free = np.ones(int(threads.max(initial=-1)) + 1, dtype=bool)
    chosen: dict[int, int | None] = {}
    for number in sorted(made, key=lambda number: (-len(made[number]), number))[:MAX_THREADS]:
        if number <= 0:
            chosen[number] = None
            continue
        paired = forward[made[number]][forward[made[number]] >= 0]
        votes = rows.thread[paired]
        if not len(paired):
            # The places of the nodes' keys in `keys`, which are sorted.
            wanted = unique(key[made[number]]).values
            low, high = np.searchsorted(keys, wanted), np.searchsorted(keys, wanted, side="right")
            counts = high - low
            indices = np.arange(int(counts.sum())) + np.repeat(low - (np.cumsum(counts) - counts), counts)
            votes = threads[indices]
            votes = votes[free[votes]]
        if len(votes):
            thread = int(np.bincount(votes).argmax())
            chosen[number] = thread
            free[thread : thread + 1] = False
    return chosen


#: The forward thread of non-node events; nodes have the thread that created them.
_FORWARD_THREAD = 0


class Nodes(Struct, frozen=True):
    """Autograd nodes, the innermost node and module range around each host row, and each node's forward operator.

    A node encloses itself; -1 is none.
    """

    is_node: Bool
    enclosing: Int64
    module: Int64
    forward: Int64


def nodes_of(rows: HostRows, kinds: NameKinds, flows: Flows) -> Nodes:
    """Return the autograd nodes of a trace."""
    is_node = kinds.node[rows.name] & rows.is_operator
    is_module = np.array([path is not None for path in kinds.module], dtype=bool)[rows.name]
    return Nodes(
        is_node=is_node,
        enclosing=nearest_above(is_node, rows.parent),
        module=nearest_above(is_module, rows.parent),
        forward=forward_of(rows, is_node, kinds.same_node[rows.name], flows),
    )


def recomputed(rows: HostRows, kinds: NameKinds, nodes: Nodes) -> Bool:
    """Return which events run forward operators again inside an autograd node.

    Backward runs without gradient mode, so an operator below a node that was dispatched with its own sequence number is
    a recomputed forward. Everything between the node's start and the last such operator is recomputation too (a
    `torch.no_grad` part of the forward has no numbers), and so is a module range inside a node. Collectives have
    numbers without being forward, and so does everything in a backward that runs in gradient mode (`create_graph`,
    `torch.func.grad`) or differentiates its own scalar. A Python function's own backward may call a module: only what
    comes before it applies the function is run again, as checkpointing without reentry does where the node unpacks.
    """
    node = nodes.enclosing
    function = take(kinds.function, np.where(node >= 0, rows.name[node], -1))
    applied = (node >= 0) & (function == rows.name)
    applied_ns = np.full(len(node), BEFORE_ALL, dtype=np.int64)
    np.maximum.at(applied_ns, node[applied], rows.end_ns[applied])
    below = (node >= 0) & (node != np.arange(len(node))) & ((function == -1) | (rows.end_ns <= applied_ns[node]))
    runs_forward = (nodes.module > node) | kinds.sharded[rows.name] | _own_numbers(rows, kinds, nodes)
    forward = below & ~nodes.is_node & runs_forward
    last_forward = np.full(len(node), BEFORE_ALL, dtype=np.int64)
    np.maximum.at(last_forward, node[forward], rows.end_ns[forward])
    again: Bool = forward | (below & (rows.end_ns <= last_forward[node]))
    # Sharded weights are gathered for the backward where a node begins, before its forward is run again.
    gathers = kinds.known[rows.name] == BACKWARD
    return again & (nearest_above(gathers, rows.parent) <= node) if gathers.any() else again


def _own_numbers(rows: HostRows, kinds: NameKinds, nodes: Nodes) -> Bool:
    """Return whether the number of an operator below a node marks it as forward.

    A Python function has a number whether gradients are recorded or not. It is forward if an operator in it is, if a
    node inside the same node differentiates it, or if checkpointing keeps what it saves.
    """
    numbered = (rows.sequence >= 0) & (rows.forward_thread == _FORWARD_THREAD) & (nodes.enclosing >= 0) & ~nodes.is_node
    numbered &= ~kinds.communication[rows.name]

    # A node that starts a backward from ones differentiates a scalar that it computes for it. A forward that is run
    # again to be differentiated gets the incoming gradient instead.
    ones = np.flatnonzero(kinds.ones[rows.name] & (nodes.enclosing >= 0))
    following = np.minimum(rows.last[ones] + 1, len(rows.name) - 1)
    ones = ones[nodes.is_node[following] & (rows.parent[following] == rows.parent[ones])]
    differentiates_own_scalar = np.zeros(len(rows.name), dtype=bool)
    differentiates_own_scalar[nodes.enclosing[ones]] = True
    numbered &= ~(_with_gradients(rows, kinds, nodes) | differentiates_own_scalar)[nodes.enclosing]
    operators = numbered & kinds.dispatched[rows.name]

    # Checkpointing without reentry detaches what a function saves, at its end and only when it runs again.
    last = np.full(len(rows.name), -1, dtype=np.int64)
    below = np.flatnonzero(rows.parent >= 0)
    last[rows.parent[below]] = below
    detaches = (last >= 0) & kinds.detach[rows.name[last]]
    forward = take(nodes.forward, nodes.enclosing)
    applied = (forward >= 0) & (take(rows.name, forward) == rows.name) & ~kinds.dispatched[rows.name]

    functions = contains(rows, operators) | (applied & detaches & ~detaches[forward])
    nested = nodes.is_node & (rows.parent >= 0) & (nodes.enclosing[rows.parent] >= 0)
    functions[nodes.forward[nested & (nodes.forward >= 0)]] = True
    of_forward: Bool = operators | (numbered & functions)
    return of_forward


def _with_gradients(rows: HostRows, kinds: NameKinds, nodes: Nodes) -> Bool:
    """Return which nodes ran in gradient mode: the last operator that a node of torch's own calls has a number.

    What a node runs again comes before its derivative, which has no number. Python functions say nothing and follow the
    node before (else after) them in their pass: nodes on one level of nesting with no numbered operator in between.
    """
    count = len(rows.name)
    called = np.flatnonzero((rows.parent >= 0) & kinds.dispatched[rows.name] & ~nodes.is_node)
    called = called[kinds.derivative[rows.name[rows.parent[called]]] & nodes.is_node[rows.parent[called]]]
    last = np.full(count, -1, dtype=np.int64)
    last[rows.parent[called]] = called  # in nesting order: the last one stays
    # The evaluation that runs each node, or the node itself; -1 for other rows.
    outer = np.where(rows.parent >= 0, nodes.enclosing[rows.parent], -1)
    same = (outer >= 0) & (take(kinds.same_node, take(rows.name, outer)) == rows.name)
    root = np.where(nodes.is_node, np.where(same, outer, np.arange(count)), -1)
    known = np.flatnonzero(last >= 0)
    mode = np.full(count, -1, dtype=np.int64)
    mode[root[known]] = rows.sequence[last[known]] >= 0
    if not (mode > 0).any():
        return np.zeros(count, dtype=bool)
    level = take(root, outer)
    order = np.lexsort((rows.start_ns, level))
    begins = (~nodes.is_node & (rows.sequence >= 0))[order] | np.append(True, np.diff(level[order]) != 0)
    passes, mode = np.cumsum(begins), mode[order]
    index = np.arange(count)
    before = np.maximum.accumulate(np.where(mode >= 0, index, -1))
    after = np.minimum.accumulate(np.where(mode >= 0, index, count - 1)[::-1])[::-1]
    in_pass = (before >= 0) & (passes[before] == passes)
    nearest = np.where(in_pass, mode[before], np.where(passes[after] == passes, mode[after], 0))
    with_gradients = np.empty(count, dtype=bool)
    with_gradients[order] = nearest > 0
    of_nodes: Bool = nodes.is_node & with_gradients[np.maximum(root, 0)]
    return of_nodes


def modules_of(rows: HostRows, kinds: NameKinds, nodes: Nodes) -> Categorical[str]:
    """Return module paths: the innermost range, in backward the forward operator's (itself maybe in a node)."""
    module, node = nodes.module, nodes.enclosing
    paths = tuple(path for path in kinds.module if path is not None)
    if not (module >= 0).any():
        return Categorical(np.full(len(module), -1, dtype=np.int64), paths)
    inside = np.flatnonzero((node >= 0) & (module <= node))
    current = np.full(len(module), -1, dtype=np.int64)
    # A node without a number (one that accumulates a gradient) follows the one before it on its thread.
    numbered = np.where(rows.sequence[node[inside]] >= 0, np.arange(len(inside)), -1)
    before = np.maximum.accumulate(numbered)
    same_thread = (before >= 0) & (rows.thread[inside[before]] == rows.thread[inside]) if len(inside) else before >= 0
    current[inside] = np.where(same_thread, node[inside[before]], -1) if len(inside) else -1
    innermost = np.where(module > node, module, -1)
    wanted, of_node = inside, current[inside]
    while len(wanted):
        forward = take(nodes.forward, of_node)
        within = take(current, forward)
        innermost[wanted] = np.where(within < 0, take(innermost, forward), -1)
        # The forward ran before its node; in a damaged trace where it did not, the loop would not end.
        deeper = (within >= 0) & (take(rows.start_ns, within) < take(rows.start_ns, of_node))
        wanted, of_node = wanted[deeper], within[deeper]
    index = np.cumsum([path is not None for path in kinds.module]) - 1
    return Categorical(take(index[rows.name], innermost), paths)


# ----- begin and end of forward, backward and update, on any thread


class Spans(Struct, frozen=True):
    """Intervals in the order of their starts, not nested."""

    start_ns: Int64
    end_ns: Int64

    def at(self, time_ns: Int64) -> Int64:
        """Return the interval around each time, -1 if none."""
        if not len(self.start_ns):
            return np.full(len(time_ns), -1, dtype=np.int64)
        index = np.searchsorted(self.start_ns, time_ns, side="right") - 1
        return np.where((index >= 0) & (time_ns < self.end_ns[np.maximum(index, 0)]), index, -1)


class Moments(Struct, frozen=True):
    """The training loop as a trace shows it; times are sorted."""

    #: Starts of nodes; starts of nodes and optimizer ranges, where a forward ends.
    nodes: Int64
    breaks: Int64
    steps: Int64
    #: The time from a backward to the update that follows it.
    updates: Spans
    #: Optimizer steps that run the forward themselves, each until its last backward ends.
    closures: Spans
    #: By thread the starts of differentiated operators, and the latest end so far.
    forward: dict[int, tuple[Int64, Int64]]
    #: Threads that only run autograd nodes.
    autograd: Int64
    #: Starts and phases of nodes, optimizer ranges and differentiated operators, on all threads.
    marks: tuple[Int64, Int64]
    #: Threads that run a backward; on the CPU the loop's thread.
    backward: Int64


def moments_of(rows: HostRows, kinds: NameKinds, nodes: Nodes, known: Int64, differentiated: Bool) -> Moments:
    """Return the moments; `known` is the phase of a framework's range, `differentiated` marks forward operators."""
    optimizer, backward = known == OPTIMIZER, nodes.is_node | (known == BACKWARD)
    is_step = np.array([number is not None for number in kinds.step], dtype=bool)[rows.name]
    marks = np.flatnonzero(backward | optimizer | differentiated)
    marks = marks[np.argsort(rows.start_ns[marks], kind="stable")]
    phase = np.select([backward[marks], optimizer[marks]], [BACKWARD, OPTIMIZER], FORWARD)
    forward = {}
    operators = np.flatnonzero(differentiated)
    for thread, indices in rows_by_value(rows.thread[operators]):
        on_thread = operators[indices]
        forward[thread] = (rows.start_ns[on_thread], np.maximum.accumulate(rows.end_ns[on_thread]))

    # Threads with nodes and nothing of the training loop: no forward operator, step or range around nodes. The loop
    # runs somewhere: there are none if no other thread has an operator.
    ranges = ~rows.is_operator & ~kinds.machinery[rows.name] & contains(rows, nodes.is_node)
    of_loop = differentiated | is_step | ranges | ((known >= 0) & (known != BACKWARD))
    threads = unique(rows.thread[nodes.is_node]).values
    autograd = threads[~isin(threads, rows.thread[(nodes.enclosing < 0) & of_loop])]
    if isin(rows.thread[rows.is_operator], autograd).all():
        autograd = autograd[:0]

    # The outermost of an optimizer's ranges.
    order = np.flatnonzero(optimizer & ~kinds.dispatched[rows.name])
    order = order[np.argsort(rows.start_ns[order], kind="stable")]
    start, end = rows.start_ns[order], np.maximum.accumulate(rows.end_ns[order]) if len(order) else order
    outer = np.flatnonzero(np.append(True, start[1:] >= end[:-1])[: len(order)])
    steps = Spans(start[outer], end[np.append(outer[1:], len(order)) - 1] if len(order) else end)

    # Those in which forward operators run, until the last node (or operator) in them ends.
    end = np.full(len(steps.start_ns), -1, dtype=np.int64)
    for marked in (differentiated, nodes.is_node):
        index = steps.at(rows.start_ns[marked])
        inside = index >= 0
        last = np.full(len(end), -1, dtype=np.int64)
        np.maximum.at(last, index[inside], rows.end_ns[marked][inside])
        end = np.where((end >= 0) | (marked is differentiated), np.maximum(end, last), end)
    closures = Spans(steps.start_ns[end >= 0], end[end >= 0])

    return Moments(
        nodes=np.sort(rows.start_ns[nodes.is_node]),
        breaks=np.sort(rows.start_ns[nodes.is_node | optimizer]),
        steps=np.sort(rows.start_ns[is_step]),
        updates=_updates(rows, kinds, backward, optimizer, differentiated, steps),
        closures=closures,
        forward=forward,
        autograd=autograd,
        marks=(rows.start_ns[marks], phase),
        backward=unique(rows.thread[backward]).values,
    )


def _updates(
    rows: HostRows, kinds: NameKinds, backward: Bool, optimizer: Bool, differentiated: Bool, steps: Spans
) -> Spans:
    """Return spans from the last node or forward operator to the optimizer, which include clipping and unscaling.

    A node that ran inside an optimizer's step begins none: what follows belongs to the next step.
    """
    order = np.flatnonzero(optimizer)
    order = order[np.argsort(rows.start_ns[order], kind="stable")]
    start = rows.start_ns[order]
    node_ends, forward_ends = np.sort(rows.end_ns[backward]), np.sort(rows.end_ns[differentiated])
    begin = _last_before(node_ends, start)
    usable = (begin >= 0) & (steps.at(begin - 1) < 0) if len(begin) else np.zeros(0, dtype=bool)
    begin = np.maximum(begin, _last_before(forward_ends, start))
    # After an operator that is part of an update (unscaling) more of it follows; after a whole step nothing does.
    goes_on = np.append(True, kinds.dispatched[rows.name[order[:-1]]]) if len(order) else usable
    again = np.append(False, begin[1:] == begin[:-1]) if len(order) else usable
    usable &= ~again | goes_on
    begin = np.where(again, np.append(start[:1], start[:-1]), begin)
    return Spans(begin[usable], start[usable])


def _last_before(times: Int64, limit: Int64) -> Int64:
    """Return the last of the sorted times up to each limit; -1 if none."""
    index = np.searchsorted(times, limit, side="right") - 1
    return np.where(index >= 0, times[np.maximum(index, 0)], -1) if len(times) else np.full(len(limit), -1)


# ----- phases inferred from autograd nodes, optimizer ranges and differentiated operators


class Inference(Struct, frozen=True):
    """The phase of each host row, inferred without a capture's ranges."""

    phase: Int64
    #: Return the last of the sorted times not after each limit; -1 if none.
    wraps: Bool
    moments: Moments
    #: The phase of each host row, inferred without a capture's ranges.
    differentiates: bool

    def at(self, thread: Int64, time_ns: Int64) -> Int64:
        """Return the phase of what begins at a time on a thread outside all marked events."""
        phase = _by_time(self.moments, thread, time_ns)
        return np.where(phase >= 0, phase, OTHER if self.differentiates else FORWARD)


def infer(rows: HostRows, kinds: NameKinds, nodes: Nodes) -> Inference:
    """Infer the phases of all host rows; the innermost node, optimizer range or differentiated operator wins.

    A trace without a backward is inference: everything is forward unless a range says otherwise, or an operator
    computes a gradient judging by its name. Such an operator is forward only where its result is differentiated.
    """
    known = kinds.known[rows.name]
    differentiated = differentiated_operators(nodes)
    moments = moments_of(rows, kinds, nodes, known, differentiated)
    code = np.where(nodes.is_node, BACKWARD, known)
    code[differentiated] = FORWARD
    # Events around forward operators in which no backward and no update begins; steps do not count.
    is_step = np.array([number is not None for number in kinds.step], dtype=bool)[rows.name]
    enclosing = np.flatnonzero((code < 0) & contains(rows, differentiated) & ~is_step)
    begun, ended = (np.searchsorted(moments.breaks, times[enclosing]) for times in (rows.start_ns, rows.end_ns))
    code[enclosing[begun == ended]] = FORWARD

    marker = nearest_above(code >= 0, rows.parent)
    phase = take(code, marker)
    in_closure = (phase == OPTIMIZER) & (moments.closures.at(rows.start_ns) >= 0)
    indices = np.flatnonzero((phase < 0) | in_closure)
    if differentiated.any():
        inferred = _unmarked(rows, kinds, nodes, differentiated, moments, indices, in_closure[indices])
    else:
        inferred = _by_time(moments, rows.thread[indices], rows.start_ns[indices])
        inferred = np.where(inferred >= 0, inferred, FORWARD)
    phase[indices] = np.where(inferred >= 0, inferred, phase[indices])
    phase[_seeds(rows, kinds, moments) & (nodes.enclosing < 0)] = BACKWARD
    gradients = within(rows, kinds.gradient[rows.name] & ~differentiated & (nodes.enclosing < 0))
    phase[gradients & isin(phase, np.array([FORWARD, OTHER]))] = BACKWARD

    # The annotations on a backend's own threads take the phase of the collective last started before each.
    helpers = np.flatnonzero((marker < 0) & kinds.backend[rows.name] & (rows.parent < 0))
    launches = np.flatnonzero(kinds.communication[rows.name] & ~kinds.backend[rows.name])
    launches = launches[np.argsort(rows.start_ns[launches], kind="stable")]
    last = np.searchsorted(rows.start_ns[launches], rows.start_ns[helpers], side="right") - 1
    phase[helpers[last >= 0]] = phase[launches[last[last >= 0]]]

    wraps = (marker < 0) & contains(rows, code >= 0)
    return Inference(phase, wraps, moments, bool(differentiated.any()))


def differentiated_operators(nodes: Nodes) -> Bool:
    """Return operators outside all nodes whose result a node differentiates."""
    operators = np.zeros(len(nodes.forward), dtype=bool)
    operators[nodes.forward[nodes.forward >= 0]] = True
    return operators & (nodes.enclosing < 0)


def _by_time(moments: Moments, thread: Int64, time_ns: Int64) -> Int64:
    """Return the phase of times outside marked events, -1 if unknown.

    It is backward on autograd's threads, optimizer before an update, forward between two operators of one forward.
    """
    on_autograd = isin(thread, moments.autograd)
    updating = moments.updates.at(time_ns) >= 0
    before, after = _between_forward(moments, thread, time_ns)
    return np.select([on_autograd, updating, before & after], [BACKWARD, OPTIMIZER, FORWARD], -1)


def _between_forward(moments: Moments, thread: Int64, time_ns: Int64) -> tuple[Bool, Bool]:
    """Return whether a forward operator comes before, and after, on the thread with no backward or update between."""
    before, after = np.zeros(len(time_ns), dtype=bool), np.zeros(len(time_ns), dtype=bool)
    breaks = np.searchsorted(moments.breaks, time_ns, side="right")
    for here, start, end in _forward_on(moments, thread):
        index = np.searchsorted(start, time_ns[here], side="right")
        last, following = np.maximum(index - 1, 0), np.minimum(index, len(start) - 1)
        before[here] = (index > 0) & (np.searchsorted(moments.breaks, end[last]) == breaks[here])
        after[here] = (index < len(start)) & (np.searchsorted(moments.breaks, start[following]) == breaks[here])
    return before, after


def _unmarked(
    rows: HostRows, kinds: NameKinds, nodes: Nodes, differentiated: Bool, moments: Moments, indices: Int64, inside: Bool
) -> Int64:
    """Return the phases of rows in no marked event; -1 for those `inside` an optimizer that belong to it."""
    thread, start = rows.thread[indices], rows.start_ns[indices]
    by_time = _by_time(moments, thread, start)
    before, after = _between_forward(moments, thread, start)
    next_forward = start.copy()
    for here, begins, _ in _forward_on(moments, thread):
        index = np.searchsorted(begins, start[here], side="right")
        next_forward[here] = np.where(index < len(begins), begins[np.minimum(index, len(begins) - 1)], start[here])
    same_step = np.searchsorted(moments.steps, start, side="right") == np.searchsorted(
        moments.steps, next_forward, side="right"
    )
    numbered = within(rows, (rows.sequence >= 0) | kinds.sharded[rows.name])[indices]

    # Ranges of the loop without differentiated operators: loading, metrics.
    is_step = np.array([number is not None for number in kinds.step], dtype=bool)[rows.name]
    operator = nearest_above((rows.sequence >= 0) & rows.is_operator, rows.parent)
    ranges = ~rows.is_operator & ~is_step & ~kinds.machinery[rows.name] & ~kinds.backend[rows.name]
    ranges &= (operator < 0) & (nodes.module != np.arange(len(rows.name)))
    aside = within(rows, ranges & ~contains(rows, differentiated))[indices] & ~inside

    # What began last before each row, and what begins next.
    mark_ns, mark_phase = moments.marks
    mark = np.searchsorted(mark_ns, start, side="right")
    padded = np.concatenate(([OTHER], mark_phase, [OTHER]))
    last_mark, next_mark = padded[mark], padded[mark + 1]
    sends, receives = (within(rows, kind[rows.name])[indices] for kind in (kinds.sends, kinds.receives))
    passes = np.array([FORWARD, BACKWARD])
    # Without a known forward, what lies between two nodes on the loop's thread may be one.
    within_backward = (last_mark == BACKWARD) & (next_mark == BACKWARD) & isin(thread, moments.backward)
    within_backward &= differentiated.any() | isin(thread, moments.autograd)
    # An optimizer's own work follows a node, not a forward or another optimizer.
    last_break = np.searchsorted(moments.breaks, start, side="right") - 1
    if len(moments.breaks):
        last_break = np.where(last_break >= 0, moments.breaks[np.maximum(last_break, 0)], -1)
    updated = ~before & isin(last_break, moments.nodes)

    return np.select(
        [
            sends & isin(last_mark, passes),
            receives & isin(next_mark, passes),
            (by_time == BACKWARD) | ((by_time == OPTIMIZER) & ~inside),
            aside,
            by_time == FORWARD,
            numbered & (before | (after & same_step)),
            within_backward & ~inside,
            inside & updated,
        ],
        [last_mark, next_mark, by_time, OTHER, FORWARD, FORWARD, BACKWARD, -1],
        OTHER,
    )


def _forward_on(moments: Moments, thread: Int64) -> Iterator[tuple[Int64, Int64, Int64]]:
    """Yield for each thread with a forward its indices in `thread`, and the starts and latest ends of its operators."""
    for number, indices in rows_by_value(thread):
        if number in moments.forward:
            yield indices, *moments.forward[number]


def within(rows: HostRows, marked: Bool) -> Bool:
    """Return whether a row is marked or inside a marked one."""
    inside: Bool = nearest_above(marked, rows.parent) >= 0
    return inside


def _seeds(rows: HostRows, kinds: NameKinds, moments: Moments) -> Bool:
    """Return the gradients of ones that start a backward, made right before its first node."""
    ones = np.flatnonzero(kinds.ones[rows.name] & (rows.sequence < 0))
    following = rows.last[ones] + 1
    next_row = np.minimum(following, len(rows.name) - 1)
    there = (following < len(rows.name)) & (rows.thread[next_row] == rows.thread[ones])
    index = np.searchsorted(moments.nodes, rows.end_ns[ones])
    node = moments.nodes[np.minimum(index, len(moments.nodes) - 1)] if len(moments.nodes) else rows.end_ns[ones]
    starts = (index < len(moments.nodes)) & (~there | (rows.start_ns[next_row] >= node))
    marked = np.zeros(len(rows.name), dtype=bool)
    marked[ones[starts]] = True
    return within(rows, marked)


class Step(Struct, frozen=True):
    """One step on the host clock."""

    number: int
    start_ns: int
    end_ns: int


class Placed(Struct, frozen=True, kw_only=True):
    """The phase (an index into `PHASES`) and module path of each host event; none outside all modules."""

    phase: Int64
    module: Categorical[str]
    #: The phase ranges of a capture: (start, end, phase), in order.
    spans: tuple[tuple[int, int, Phase], ...]
    nodes: Nodes
    #: The inferred phases; `None` if a capture's ranges say them.
    inference: Inference | None
    #: Rows in annotations that the user mapped to a phase.
    mapped: Bool

    def phases_of_launches(self, enclosing: Int64, thread: Int64, time_ns: Int64) -> Int64:
        """Return the phase of what is launched at each time on each thread, in the host row around it; -1 if unknown.

        A range around a whole part of the loop, such as a step, does not determine the phase of direct launches in it.
        """
        phases = take(self.phase, enclosing)
        phases[enclosing < 0] = OTHER
        if self.inference is None:
            # Between two calls of a loop only a step may enclose a launch.
            indices = np.flatnonzero((phases == OTHER) & ~((enclosing >= 0) & self.mapped[enclosing]))
            at_that_time = phases_at(list(self.spans), time_ns[indices])
            phases[indices] = np.where(at_that_time < 0, OTHER, at_that_time)
            return phases
        if not self.inference.differentiates:
            return phases
        wraps = self.inference.wraps & ~self.mapped
        indices = np.flatnonzero(np.where(enclosing >= 0, wraps[enclosing], thread >= 0))
        phases[indices] = self.inference.at(thread[indices], time_ns[indices])
        return phases


def place(rows: HostRows, kinds: NameKinds, flows: Flows = NO_FLOWS) -> Placed:
    """Return the phase and module of every host event."""
    nodes = nodes_of(rows, kinds, flows)
    # In a user's own loop the ranges are those of its calls and of the time between them.
    calls = [
        MarkedCall(
            int(rows.start_ns[row]),
            int(rows.end_ns[row]),
            PHASES[kinds.phase[rows.name[row]]],
            bool(kinds.in_loop[rows.name[row]]),
        )
        for row in np.flatnonzero(kinds.phase[rows.name] >= 0).tolist()
    ]
    if any(call.decides for call in calls):
        spans = list(loop_spans(calls, [step.start_ns for step in steps_of(rows, kinds)]))
    else:
        spans = sorted(call[:3] for call in calls)

    inference = None if spans else infer(rows, kinds, nodes)
    if inference is None:
        at_that_time = phases_at(spans, rows.start_ns)
        phase = np.where(at_that_time < 0, OTHER, at_that_time)
        # Differentiated operators are forward even outside all module calls.
        phase[(at_that_time < 0) & within(rows, differentiated_operators(nodes))] = FORWARD
    else:
        phase = inference.phase.copy()
    mapped = _mapped(rows, kinds, nodes, inference)
    phase = np.where(mapped >= 0, mapped, phase)
    again = recomputed(rows, kinds, nodes)
    phase[(phase == BACKWARD) & again] = RECOMPUTE
    return Placed(
        phase=phase,
        module=modules_of(rows, kinds, nodes),
        spans=tuple(spans),
        nodes=nodes,
        inference=inference,
        mapped=mapped >= 0,
    )


def _mapped(rows: HostRows, kinds: NameKinds, nodes: Nodes, inference: Inference | None) -> Int64:
    """Return the phase that the user's rules give each event, from the innermost annotation around it; -1 if none.

    What runs on autograd's threads takes the annotation at that time.
    """
    is_range = (kinds.mapped[rows.name] >= 0) & own_ranges(rows, kinds)
    if not is_range.any():
        return np.full(len(rows.name), -1, dtype=np.int64)
    phase = take(kinds.mapped[rows.name], nearest_above(is_range, rows.parent))
    spans = [
        (int(rows.start_ns[row]), int(rows.end_ns[row]), PHASES[kinds.mapped[rows.name[row]]])
        for row in np.flatnonzero(is_range).tolist()
    ]
    elsewhere = nodes.enclosing >= 0
    if inference is not None:
        elsewhere |= isin(rows.thread, inference.moments.autograd)
    at_that_time = phases_at(spans, rows.start_ns)
    return np.where((phase < 0) & elsewhere, at_that_time, phase)


def phases_at(spans: list[tuple[int, int, Phase]], times_ns: Int64) -> Int64:
    """Return the phase (an index into `PHASES`, -1 if none) at each host time, whatever the thread.

    Ranges lie on one thread, the backward of CUDA runs on another.
    """
    starts, phases = flattened(spans)
    codes = [-1 if phase is None else PHASE_CODE[phase] for phase in phases]
    interval = np.searchsorted(np.array(starts, dtype=np.int64), times_ns, side="right") - 1
    return np.array([-1, *codes], dtype=np.int64)[interval + 1]


def steps_of(rows: HostRows, kinds: NameKinds) -> tuple[Step, ...]:
    """Return the annotated steps in the order of time; empty if the trace has no `ProfilerStep#N`.

    Overlapping annotations of one step (of the processes of a merged trace, of two profilers) are one step.
    """
    is_step = np.array([number is not None for number in kinds.step], dtype=bool)
    steps: list[Step] = []
    for number, start, end in sorted(
        (number, int(rows.start_ns[row]), int(rows.end_ns[row]))
        for row in np.flatnonzero(is_step[rows.name]).tolist()
        if (number := kinds.step[rows.name[row]]) is not None
    ):
        last = steps[-1] if steps else None
        if last is not None and last.number == number and start < max(last.end_ns, last.start_ns + 1):
            steps[-1] = Step(number, last.start_ns, max(last.end_ns, end))
        else:
            steps.append(Step(number, start, end))
    return tuple(sorted(steps, key=lambda step: step.start_ns))


#: torch's range around each optimizer step, and the node that finishes a parameter's gradient.
_UPDATE = regex(r"^Optimizer\.step#")
_ACCUMULATES = regex(r"AccumulateGrad$")


def steps_by_updates(names: Sequence[str], rows: HostRows, nodes: Nodes) -> tuple[Step, ...]:
    """Return steps delimited by optimizer updates; empty if there are fewer than two, or their order is irregular.

    Optimizers that alternate (a GAN) share a step, as in `opanatomy run`. Each step begins where the previous one
    ended, the first with the first event of the thread, so it may be incomplete. Events after the last update belong to
    no step. Updates inside an autograd node, one per parameter, do not end a step.
    """
    marked = rows_named(_UPDATE, names, rows.name) & (nodes.enclosing < 0)
    updates = np.flatnonzero(marked & (take(nearest_above(marked, rows.parent), rows.parent) < 0))
    if len(unique(rows.thread[updates]).values) != 1:
        return ()
    ends, optimizers = rows.end_ns[updates], rows.name[updates].tolist()
    # Two optimizers may have one name, but their backwards differ. If no two are alike, only gradients are counted.
    for of_backward in (nodes.is_node, rows_named(_ACCUMULATES, names, rows.name)):
        backward = np.diff(np.searchsorted(np.sort(rows.start_ns[of_backward]), ends), prepend=0)
        if length := _turns(optimizers, backward.tolist()):
            break
    else:
        return ()
    edges = [int(rows.start_ns[rows.thread == rows.thread[updates[0]]].min()), *ends[length - 1 :: length].tolist()]
    return tuple(Step(number, *edge) for number, edge in enumerate(pairwise(edges), 1))


def _turns(optimizers: list[int], backward: list[int]) -> int:
    """Return after how many updates the optimizers, and how much ran backward, repeat; 0 if they never do.

    With more than two updates the trace may begin within the first step, so its amount of backward is ignored.
    """
    backward = backward[1:] if len(backward) > 2 else backward
    for length in range(1, len(optimizers) // 2 + 1):
        if optimizers[length:] == optimizers[:-length] and backward[length:] == backward[:-length]:
            return length
    return 0


# ----- a trace's own annotations of phases, such as `## forward ##` or `mlp(B)`
#
# They check what was inferred, and replace it where both disagree and autograd does not contradict them.


_BEFORE = (
    r"(?:model|module|net|loss|self|trainer|accelerator|scaler|fabric|train(?:ing)?|step|\w*(?:engine|strategy|plugin))"
)
_BEHIND = (
    r"(?:[ _.-]?(?:pass|step|steps|propagation|prop|update|call|compute|(?:compute[ _-])?chunk|(?:inner_)?microstep))?"
    r"(?:\(\))?(?:[ _:#-]*\d{1,9})?"
)
#: The spellings of phases, without decoration and case; `forward_head` and `forward_backward` do not match.
_SPELLINGS = {
    FORWARD: regex(rf"(?:{_BEFORE}[ _./:-]{{1,2}})?(?:forward|fwd){_BEHIND}"),
    BACKWARD: regex(
        rf"(?:{_BEFORE}[ _./:-]{{1,2}})?(?:(?:backward|backwards|bwd|backprop){_BEHIND}|bwd_allreduce_microstep"
        r"|weight_chunk|[dw]grad|weight[ _-]?grad(?:s|ients?)?)"
    ),
    OPTIMIZER: regex(
        rf"(?:{_BEFORE}[ _./:-]{{1,2}})?(?:optimizer|optimiser|optim|opt){_BEHIND}|step_microstep|\w*engine\.step"
    ),
}
#: The prefix of Lightning's method names; its `training_step` ends with the loss.
_LIGHTNING = regex(r"\[pl\]\[profile\](?:\[\w+\]\w+\.)?")
#: Pipeline schedules: `attn(F)`, `PP:0F3`, `F`, `B`, gradients of inputs (`I`) and of weights (`W`).
_LETTER = regex(r".*\(([FBW])\)(?:[ _#-]*\d{1,9})?|(?:PP:\d+)?([FBW])\d{0,9}|PP:\d+(I)\d{0,9}")
#: Phases as users annotate them: recomputation is part of backward, and generation is forward.
_AS_ANNOTATED = np.array(
    [BACKWARD if code == RECOMPUTE else FORWARD if code in FORWARDS else code for code in range(len(PHASES))]
)
_DECORATION = "#*=-_<>[]|~ \t"
#: A phase agrees if at most this part of its annotated time lies elsewhere: a loss's `sum` in a range of backward.
_MAX_ELSEWHERE = 0.005
#: Ranges are taken if at least this part of the time of forward and backward lies in them, and autograd contradicts at
#: most this part of a phase's: a loss in a range of backward.
_COVERED, _CONTRADICTED = 0.9, 0.1
DIFFERENTIATED = (
    "autograd recorded these operators to differentiate them, so they are forward work inside a backward annotation"
)
#: The most operators, and ranges of a phase, that are named as evidence.
_MAX_EVIDENCE = 3


class Timed(Struct, frozen=True):
    """Events that take time: the host row (-1 if none), nanoseconds and phase of each."""

    row: Int64
    duration_ns: Int64
    phase: Int64


def phase_of_annotation(name: str) -> int:
    """Return the phase (an index into `PHASES`) that an annotation's name says; -1 if none."""
    letter = _LETTER.fullmatch(name)
    if letter is not None:
        return FORWARD if "F" in letter.groups() else BACKWARD
    text = name.lower()
    method = _LIGHTNING.sub("", text)
    if method != text and method == "training_step":
        return FORWARD
    text = method.strip(_DECORATION)
    return next((phase for phase, spelling in _SPELLINGS.items() if spelling.fullmatch(text)), -1)


def annotated_phases(
    names: Sequence[str], rows: HostRows, kinds: NameKinds, placed: Placed, timed: Timed
) -> tuple[Check | None, Placed | None]:
    """Compare the time in each annotated phase with the assigned phase; return the check and the phases to use instead.

    `compared` counts phases. A difference has the annotated time of a phase (`other`) and the part assigned to that
    phase (`ours`). The ranges are taken if nothing explains the difference, autograd does not contradict them, and they
    hold nearly all of a forward and a backward; `not_checked` then says so. Else the phases are `None`. The check is
    `None` if no range says a phase.
    """
    ranges = _Ranges(names, rows, kinds, placed)
    if not ranges.there.any():
        return None, None
    compared = _compared(rows, placed, timed, ranges)
    check = _check(names, rows, timed, compared, ranges)
    may_be_taken = placed.inference is not None and not (kinds.mapped >= 0).any()
    stated = ranges.inside(kinds.known[rows.name] >= 0)
    # Rows that run a forward again, to differentiate it, in a range of a backward: the first run is in a range of a
    # forward, with no fewer operators of that name that nothing differentiates.
    differentiated = differentiated_operators(placed.nodes)
    operator = nearest_above(differentiated, rows.parent)
    width = int(rows.name.max(initial=0)) + 1
    first_runs, next_runs = (
        np.bincount(rows.name[there], minlength=width)
        for there in ((stated == FORWARD) & (operator < 0), (stated == BACKWARD) & differentiated)
    )
    again = (stated == BACKWARD) & (operator >= 0) & (first_runs >= next_runs)[take(rows.name, operator)]
    if not check.unexplained or not may_be_taken or not _states(placed, timed, compared, again):
        return check, None
    # Inside them autograd still decides: recomputation, a loss in a backward, a gradient in a forward.
    stays = (stated == BACKWARD) & ((placed.phase == RECOMPUTE) | compared.differentiated)
    stays |= (stated == FORWARD) & (placed.nodes.enclosing >= 0)
    phase = np.where(again, RECOMPUTE, np.where((stated >= 0) & ~stays, stated, placed.phase))
    said = "; ".join(f"{PHASES[code]} in {ranges.named(code)}" for code in compared.phases)
    elsewhere = sum((difference.other or 0) - (difference.ours or 0) for difference in check.differences)
    reason = (
        f"the phases are taken from the trace's annotations: {said} - without them, {elsewhere:,} ns would be in other"
        " phases"
    )
    taken = replace(check, compared=0, equal=0, differences=(), not_checked=reason)
    return taken, replace(placed, phase=phase, mapped=stated >= 0)


class _Ranges:
    """The ranges of a trace whose names say a phase."""

    def __init__(self, names: Sequence[str], rows: HostRows, kinds: NameKinds, placed: Placed) -> None:
        self._names, self._rows = names, rows
        says = np.array([phase_of_annotation(name) for name in names], dtype=np.int64)
        own = own_ranges(rows, kinds) & (says[rows.name] >= 0)
        letters = np.array([_LETTER.fullmatch(name) is not None for name in names], dtype=bool)
        schedule = unique(says[rows.name[own & letters[rows.name]]]).values
        if not isin(np.array([FORWARD, BACKWARD]), schedule).all():
            says[letters] = -1  # one letter alone names anything
        self.phase = says[rows.name]
        own &= self.phase >= 0
        whole = _enclose_both(rows, own & (self.phase != BACKWARD), placed)
        whole |= own & (self.phase == OPTIMIZER) & contains(rows, placed.nodes.is_node)
        for code in (FORWARD, BACKWARD):
            whole |= own & (self.phase == code) & contains(rows, own & (self.phase != code))
        self.there = own & ~isin(rows.name, rows.name[whole])

    def inside(self, others: Bool) -> Int64:
        """Return the phase of the innermost range around each row on its thread, -1 if that is one of the `others`."""
        innermost = nearest_above(self.there | others, self._rows.parent)
        return np.where((innermost >= 0) & self.there[innermost], take(self.phase, innermost), -1)

    def spans(self, ranges: Bool) -> list[tuple[int, int, Phase]]:
        """Return (start, end, phase) of some of the ranges."""
        rows = self._rows
        return [
            (int(rows.start_ns[row]), int(rows.end_ns[row]), PHASES[self.phase[row]])
            for row in np.flatnonzero(ranges).tolist()
        ]

    def _range_names(self, phase: int) -> list[str]:
        numbers = unique(self._rows.name[self.there & (self.phase == phase)]).values
        return [self._names[number] for number in numbers.tolist()]

    def named(self, phase: int) -> str:
        """Return the names of the first few ranges of a phase."""
        some = self._range_names(phase)
        return ", ".join(some[:_MAX_EVIDENCE]) + (
            f" and {len(some) - _MAX_EVIDENCE} more" if len(some) > _MAX_EVIDENCE else ""
        )

    def option(self, phase: int) -> str:
        """Return the option with which the ranges of a phase are taken."""
        escaped = (re.sub(r"[][.^$*+?{}|()\\]", r"\\\g<0>", name) for name in self._range_names(phase))
        patterns = list(dict.fromkeys(re.sub(r"\d+", r"\\d+", name) for name in escaped))
        pattern = patterns[0] if len(patterns) == 1 else f"({'|'.join(patterns)})"
        return as_asked(
            "--phase " + shlex.quote(f"{PHASES[phase]}=^{pattern}$"),
            f"phases={ {str(PHASES[phase]): f'^{pattern}$'} }",
        )


def _enclose_both(rows: HostRows, ranges: Bool, placed: Placed) -> Bool:
    """Return which ranges enclose operators on their thread and the nodes that differentiate them."""
    nodes = placed.nodes
    pairs = np.flatnonzero(nodes.is_node & (nodes.forward >= 0))
    both = np.zeros(len(rows.name), dtype=bool)
    for thread, indices in rows_by_value(rows.thread[nodes.forward[pairs]]):
        operator, node = rows.start_ns[nodes.forward[pairs[indices]]], rows.start_ns[pairs[indices]]
        order = np.argsort(operator, kind="stable")
        first_node = np.append(np.minimum.accumulate(node[order][::-1])[::-1], np.iinfo(np.int64).max)
        here = np.flatnonzero(ranges & (rows.thread == thread))
        both[here] = first_node[np.searchsorted(operator[order], rows.start_ns[here])] < rows.end_ns[here]
    return both


class _Compared(Struct, frozen=True, kw_only=True):
    """Timed events inside annotations: their indices in `Timed`, the annotated phase and the assigned one."""

    index: Int64
    expected: Int64
    placed: Int64
    #: Whether each host row is inside a differentiated operator: forward, regardless of annotations.
    differentiated: Bool
    #: The annotated phases with nonzero time.
    phases: list[int]


def _compared(rows: HostRows, placed: Placed, timed: Timed, ranges: _Ranges) -> _Compared:
    """Compare the events inside each range on its thread; nodes on threads without ranges use the range at that time.

    A forward on another thread may go on meanwhile, so that backward ranges go first.
    """
    known = np.flatnonzero(timed.row >= 0)
    row = timed.row[known]
    expected = np.full(len(row), -1, dtype=np.int64)
    for thread in unique(rows.thread[ranges.there]).values.tolist():
        here = rows.thread[row] == thread
        spans = ranges.spans(ranges.there & (rows.thread == thread))
        expected[here] = phases_at(spans, rows.start_ns[row[here]])
    elsewhere = (placed.nodes.enclosing[row] >= 0) & ~isin(rows.thread[row], rows.thread[ranges.there])
    for of_backward in (True, False):
        spans = ranges.spans(ranges.there & ((ranges.phase == BACKWARD) == of_backward))
        at_that_time = phases_at(spans, rows.start_ns[row])
        expected = np.where(elsewhere & (expected < 0), at_that_time, expected)
    known, row, expected = (column[expected >= 0] for column in (known, row, expected))
    return _Compared(
        index=known,
        expected=expected,
        placed=_AS_ANNOTATED[timed.phase[known]],
        differentiated=within(rows, differentiated_operators(placed.nodes)),
        phases=[
            phase for phase in (FORWARD, BACKWARD, OPTIMIZER) if timed.duration_ns[known[expected == phase]].sum() > 0
        ],
    )


def _states(placed: Placed, timed: Timed, compared: _Compared, again: Bool) -> bool:
    """Return whether the ranges hold nearly all of a forward and a backward, and autograd hardly contradicts them."""
    if not {FORWARD, BACKWARD} <= set(compared.phases):
        return False
    passes = isin(_AS_ANNOTATED[timed.phase], np.array([FORWARD, BACKWARD]))
    covered = timed.duration_ns[compared.index[passes[compared.index]]].sum()
    if covered < _COVERED * timed.duration_ns[passes].sum():
        return False
    row, duration = timed.row[compared.index], timed.duration_ns[compared.index]
    in_nodes, differentiated = placed.nodes.enclosing[row] >= 0, (compared.differentiated & ~again)[row]
    for phase in compared.phases:
        here = compared.expected == phase
        otherwise = here & (in_nodes if phase == FORWARD else differentiated)
        if duration[otherwise].sum() > _CONTRADICTED * duration[here].sum():
            return False
    return True


def _check(names: Sequence[str], rows: HostRows, timed: Timed, compared: _Compared, ranges: _Ranges) -> Check:
    differences = []
    for phase in compared.phases:
        expected = compared.expected == phase
        annotated = int(timed.duration_ns[compared.index[expected]].sum())
        wrong = expected & (compared.placed != phase)
        row, duration, indices = (
            timed.row[compared.index[wrong]],
            timed.duration_ns[compared.index[wrong]],
            compared.placed[wrong],
        )
        missing = int(duration.sum())
        if missing <= _MAX_ELSEWHERE * annotated:
            continue
        # Autograd explains it if everything assigned elsewhere has numbers like a forward, and most is differentiated.
        forward = (rows.sequence[row] >= 0) & (indices == FORWARD)
        differentiated = duration[forward & compared.differentiated[row]].sum()
        is_forward = duration[~forward].sum() <= _MAX_ELSEWHERE * annotated and 2 * differentiated > missing
        explained = phase == BACKWARD and is_forward

        spent: dict[tuple[int, int], int] = {}
        for key in zip(rows.name[row].tolist(), indices.tolist(), duration.tolist(), strict=True):
            spent[key[:2]] = spent.get(key[:2], 0) + key[2]
        longest = sorted(spent.items(), key=lambda item: (-item[1], item[0]))
        listed = [
            f"{names[number]} in {PHASES[index]} ({time:,} ns)" for (number, index), time in longest[:_MAX_EVIDENCE]
        ]
        evidence = ", ".join(listed) + (
            f", {len(longest) - _MAX_EVIDENCE} more" if len(longest) > _MAX_EVIDENCE else ""
        )
        option = f"use {ranges.option(phase)} to follow the annotation"
        differences.append(
            Difference(
                operator=f"annotated as {PHASES[phase]}",
                phase=PHASES[phase],
                ours=annotated - missing,
                other=annotated,
                cause=f"{DIFFERENTIATED} - {option}" if explained else None,
                evidence=evidence if explained else f"{evidence} - {option}",
                time_ns=missing,
            )
        )
    return Check(
        quantity="annotated phases",
        source="the trace's own annotations",
        unit="ns",
        compared=len(compared.phases),
        equal=len(compared.phases) - len(differences),
        differences=tuple(differences),
        not_checked=None if compared.phases else "no work was launched in the annotated ranges",
    )
