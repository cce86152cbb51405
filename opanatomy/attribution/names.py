"""Classify the names of a trace for phases, each name once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec import Struct

from opanatomy.attribution.nesting import HostRows
from opanatomy.errors import UsageError
from opanatomy.records.columns import Bool, Int64
from opanatomy.records.taxonomy import BACKWARD, OPTIMIZER, OTHER, PHASE_CODE, Phase
from opanatomy.records.workload import LOOP_RANGE, MODULE_RANGE, PHASE_RANGE

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
            raise UsageError(f"--phase {option!r}: no '=' in it - give PHASE=REGEX, such as --phase 'forward=(F)$'")
        rules.append(_rule("--phase ", phase.strip(), pattern))
    return tuple(rules)


def phase_rules_of(phases: object) -> tuple[PhaseRule, ...]:
    """Build rules from a mapping of phases to one or several regular expressions."""
    if not isinstance(phases, Mapping):
        raise UsageError("analyze: phases is not a dictionary - give {'forward': REGEX, ...}")
    rules = []
    for phase, patterns in phases.items():
        for pattern in patterns if isinstance(patterns, (list, tuple)) else (patterns,):
            rules.append(_rule("analyze: phases ", str(phase), pattern))
    return tuple(rules)


def _rule(where: str, phase: str, pattern: object) -> PhaseRule:
    text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    if phase not in set(Phase):
        raise UsageError(f"{where}{phase}={text}: no phase {phase!r} - one of {', '.join(Phase)}")
    if not isinstance(text, str) or not text:
        raise UsageError(
            f"{where}{phase}={text}: not a regular expression - give one that is found in annotations' names"
        )
    try:
        return PhaseRule(Phase(phase), re.compile(text))
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"{where}{phase}={text}: not a regular expression: {error} - escape what is text") from error


_EVALUATION = "autograd::engine::evaluate_function: "
#: Autograd's engine and nodes; until late 2021 the engine left no events, only nodes such as `AddmmBackward`.
_NODE = re.compile(r"^autograd::engine::evaluate_function: |^torch::autograd::|^\w+Backward\d*$")
#: Nodes of torch's own formulas: their names end in a number, those of Python functions do not.
_DERIVATIVE = re.compile(r"^\w+Backward\d+$")
_OPTIMIZER = re.compile(
    r"^Optimizer\.step#|^aten::_amp_|^## ?optimizer ?##$|optimizer_step|^OptimizerStep"
    r"|^aten::_fused_(?:adam|adamw|sgd|adagrad)_$"
)
_OTHER = re.compile(r"^Optimizer\.zero_grad#|^enumerate\(DataLoader\)|^## ?zero_grad ?##$|optimizer_zero_grad")
#: Work of DDP and FSDP when a gradient is ready and at the end of backward, on any thread. Compiled autograd runs no
#: nodes but one region, whose number has a mark.
_BACKWARD = re.compile(
    r"^FSDP::(?:root_)?(?:pre|post)_backward|^FSDP::backward_prefetch|^FullyShardedDataParallel\._(?:pre|post)_backward"
    r"|^torch[.:]+distributed[.:]+(?:ddp\.)?reducer::(?:copy_|mul_out|copy_bucket_to_grad)"
    r"|^Torch-Compiled Region: !"
)
#: Work of FSDP before and after the forward of a module, without sequence numbers.
_SHARDED = re.compile(
    r"^FSDP::(?:(?:root_)?(?:pre|post)_forward|forward_prefetch|cast_forward_|inputs_to_device)"
    r"|^FullyShardedDataParallel\._(?:root_)?(?:pre|post)_forward|^FullyShardedDataParallel\.(?:forward|_to_kwargs)"
)
#: Collectives and their annotations; in backward they sometimes have sequence numbers.
_COMMUNICATION = re.compile(
    r"^_?c10d(?:_functional)?::|^_?dtensor::|^fsdp::|^symm_mem::|^(?:nccl|gloo|ucc|mpi|xccl|hccl|rccl):"
    r"|^record_param_comms$|^torch_ccl::|^deep_ep\b|^horovod"
)
#: Between pipeline stages a send belongs to the pass before it, a receive to the pass after it.
_SENDS = re.compile(r"^(?:c10d::|nccl:|gloo:|_c10d_functional::)i?send")
_RECEIVES = re.compile(r"^(?:c10d::|nccl:|gloo:|_c10d_functional::)i?recv")
#: The annotations that a communication backend leaves on its own threads.
_BACKEND = re.compile(r"^(?:nccl|gloo|ucc|mpi|xccl|hccl|rccl):")
#: Annotations that frameworks leave inside and around operators; they name no part of a training loop.
_MACHINERY = re.compile(
    r"^Torch-Compiled Region|^## Call CompiledFxGraph|^CompiledFxGraph|^TorchDynamo|^AOTDispatcher|^Pregraph"
    r"|^FSDP::|^FullyShardedDataParallel|^DistributedDataParallel\.|^DataParallel\.|^(?:nccl|gloo|ucc|mpi|xccl):"
)
_STEP = re.compile(r"^ProfilerStep#?(\d{1,18})$")


class NameKinds(Struct, frozen=True):
    """The meaning of each name for phases, one entry per name.

    `phase` is the phase of a capture's range, `mapped` that of a user's rule, `known` that of a framework's range:
    places in `PHASES` or -1. `same_node` is the name of the node that an evaluation runs.
    """

    phase: Int64
    mapped: Int64
    known: Int64
    module: list[str | None]
    node: Bool
    derivative: Bool
    same_node: Int64
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
    return NameKinds(
        phase=np.array([_phase_place(name) for name in names], dtype=np.int64),
        mapped=np.array([_mapped_place(name, rules) for name in names], dtype=np.int64),
        known=np.array([_known_place(name) for name in names], dtype=np.int64),
        module=[name.removeprefix(MODULE_RANGE) if name.startswith(MODULE_RANGE) else None for name in names],
        node=are_nodes(names),
        derivative=_flags(_DERIVATIVE.match(name) for name in names),
        same_node=np.array(
            [numbers.get(name.removeprefix(_EVALUATION), -1) if name.startswith(_EVALUATION) else -1 for name in names],
            dtype=np.int64,
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
    annotated = rows.annotation != 0
    if not annotated.any():
        annotated = ~kinds.dispatched[rows.name] & ~kinds.node[rows.name] & (rows.sequence < 0)
    is_step = np.array([number is not None for number in kinds.step], dtype=bool)
    # Some releases write compiled regions as operators.
    annotated |= kinds.machinery[rows.name] & (rows.sequence < 0)
    ranges: Bool = annotated & ~(is_step | kinds.captured)[rows.name]
    return ranges


def _flags(values: Iterable[object]) -> Bool:
    return np.array([bool(value) for value in values], dtype=bool)


def _phase_place(name: str) -> int:
    phase = name.removeprefix(LOOP_RANGE).removeprefix(PHASE_RANGE)
    return PHASE_CODE[Phase(phase)] if name.startswith(PHASE_RANGE) and phase in set(Phase) else -1


def _mapped_place(name: str, rules: Sequence[PhaseRule]) -> int:
    return next((PHASE_CODE[rule.phase] for rule in rules if rule.pattern.search(name)), -1)


def _known_place(name: str) -> int:
    if _OTHER.search(name):
        return OTHER
    if _OPTIMIZER.search(name):
        return OPTIMIZER
    return BACKWARD if _BACKWARD.match(name) else -1
