"""A second count of a step: what a dispatch mode sees run, operator by operator, below autograd and autocast.

It knows nothing of the trace, of its attribution or of the formulas in `opanatomy.cost`: that is its worth.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opanatomy.capture.step.dropped_arguments import arguments_text, is_incomplete
from opanatomy.capture.step.second_count import SecondCount, flops_of, second_count_of
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import ObservedCall, ObservedCount

_PHASES = tuple(Phase)
_BACKWARD, _RECOMPUTE = _PHASES.index(Phase.BACKWARD), _PHASES.index(Phase.RECOMPUTE)
#: What a backward starts from where it is given no gradient.
_SEED = "aten::ones_like"
#: The place of what runs while its phase is not known yet.
_UNDECIDED = len(_PHASES)


@dataclass(slots=True)
class _Operator:
    """What is to be done with the calls of one operator, looked up once, and how many there were in each phase."""

    name: str
    #: Whether Kineto drops some of its arguments.
    is_incomplete: bool
    #: Whether it is made of other operators, which are what runs.
    is_composite: bool
    second_count: SecondCount | None
    #: Its function where `torch.library.custom_op` made it: the operators that it calls are what runs.
    written_in_python: Callable[..., Any] | None = None
    calls: list[int] = field(default_factory=lambda: [0] * (len(_PHASES) + 1))
    #: For each phase the calls by what their FLOPs are a function of.
    contractions: list[Counter[Any]] = field(default_factory=lambda: [Counter() for _ in (*_PHASES, None)])

    def add(self, place: int, operands: Any) -> None:
        """Count one call."""
        self.calls[place] += 1
        if self.second_count is not None:
            self.contractions[place][operands] += 1

    def decide(self, place: int) -> None:
        """Give what was not decided to a phase."""
        if self.calls[_UNDECIDED]:
            self.calls[place] += self.calls[_UNDECIDED]
            self.contractions[place].update(self.contractions[_UNDECIDED])
            self.calls[_UNDECIDED] = 0
            self.contractions[_UNDECIDED].clear()

    def count(self, place: int) -> ObservedCount:
        """All calls in one phase, and their FLOPs where each has a second formula."""
        flops = None
        if self.second_count is not None:
            counted = self.contractions[place].items()
            each = [(flops_of(self.second_count, operands), calls) for operands, calls in counted]
            known = [flops * calls for flops, calls in each if flops is not None]
            flops = sum(known) if len(known) == len(each) else None
        return ObservedCount(
            operator=self.name, phase=_PHASES[place], calls=self.calls[place], flops=flops,
            source=None if flops is None or self.second_count is None else self.second_count.source,
        )  # fmt: skip


@dataclass(slots=True)
class Observation:
    """What ran while an `observing` was open."""

    #: In order, the calls of operators of which Kineto drops an argument.
    incomplete: list[ObservedCall] = field(default_factory=list)
    #: The higher-order operators that ran what the mode did not see.
    unseen: set[str] = field(default_factory=set)
    #: By the identity of the overload, which torch keeps.
    operators: dict[int, _Operator] = field(default_factory=dict)
    #: The calls of the autograd node that runs, and how many of them are recomputation: up to the last one known to be,
    #: the part of the forward before it that ran without gradients too.
    _pending: list[tuple[_Operator, Any]] = field(default_factory=list)
    _recomputed: int = 0
    _node: Any = None

    def add_backward(self, operator: _Operator, operands: Any, node: Any, *, recomputes: bool) -> None:
        """Count a call that autograd's engine makes; `operands` is what its FLOPs are a function of."""
        if node is not self._node:
            self._settle()
            self._node = node
        self._pending.append((operator, operands))
        if recomputes:
            self._recomputed = len(self._pending)

    def _settle(self) -> None:
        """Count the calls of a node; one that ends in a seed of ones differentiates a scalar of its own."""
        if self._pending and self._pending[-1][0].name == _SEED:
            self._recomputed = 0
        for number, (operator, operands) in enumerate(self._pending):
            operator.add(_RECOMPUTE if number < self._recomputed else _BACKWARD, operands)
        self._pending.clear()
        self._recomputed = 0

    def decide(self, phase: Phase) -> None:
        """Give what ran while no phase was known to this one."""
        place = _PHASES.index(phase)
        for operator in self.operators.values():
            operator.decide(place)

    def close(self) -> None:
        """Count what is pending, and release the node, which holds a graph."""
        self._settle()
        self.decide(Phase.OTHER)
        self._node = None

    def counts(self) -> tuple[ObservedCount, ...]:
        """Calls by operator, overload and phase, and the FLOPs of those that have a second formula."""
        counts = [
            operator.count(place)
            for operator in self.operators.values()
            for place, calls in enumerate(operator.calls[:_UNDECIDED])
            if calls
        ]
        return tuple(sorted(counts, key=lambda count: (count.operator, _PHASES.index(count.phase), count.calls)))


@contextmanager
def observing(
    phase_of: Callable[[], Phase | None], differentiates_again: Callable[[], bool] = lambda: False
) -> Iterator[Observation]:
    """Count every operator that runs while inside; `phase_of` says which phase of the step it is then.

    `None` is a phase that `Observation.decide` gets later. What an autograd node runs with gradient mode on, or
    torch's checkpointing in it, is recomputation, for the engine turns that mode off, and so is what it ran before; but
    not where the engine leaves it on, which `differentiates_again` says (`create_graph`).
    """
    observation = Observation()
    try:
        with _mode(observation, phase_of, differentiates_again):
            yield observation
    finally:
        observation.close()


@dataclass(slots=True)
class _CallCounter:
    """Runs and counts the calls that the dispatch mode is given; each is kept to a few microseconds."""

    observation: Observation
    phase_of: Callable[[], Phase | None]
    differentiates_again: Callable[[], bool]
    higher_order: type
    strided: Any
    is_grad_enabled: Callable[[], bool]
    current_node: Callable[[], Any]
    #: By the identity of the phase, which is faster than its hash.
    places: dict[int, int] = field(
        default_factory=lambda: {id(phase): place for place, phase in enumerate((*_PHASES, None))}
    )

    def call(self, mode: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What `function` gives for the arguments; `mode` sees the operators that a composite one is made of."""
        operators = self.observation.operators
        operator = operators.get(id(function))
        if operator is None:
            if isinstance(function, self.higher_order):
                return _run_inside(self.observation, mode, function, args, kwargs)
            operator = operators[id(function)] = _looked_up(function)
        if operator.written_in_python is not None:
            with mode:
                return operator.written_in_python(*args, **kwargs)
        if operator.is_composite:
            with mode:
                result = function.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        text = arguments_text(function, args, kwargs) if operator.is_incomplete or self._is_sparse(args) else None
        result = function(*args, **kwargs)
        self._count(operator, args, kwargs, result)
        if text is not None:
            self.observation.incomplete.append(ObservedCall(operator=operator.name, arguments=text))
        return result

    def _is_sparse(self, args: tuple[Any, ...]) -> bool:
        """Whether an argument has another layout than strides: looked up faster than a type, and a loop than `any`."""
        strided = self.strided
        for argument in args:  # noqa: SIM110
            if getattr(argument, "layout", strided) is not strided:
                return True
        return False

    def _count(self, operator: _Operator, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        second = operator.second_count
        operands = None if second is None else second.arguments(args, kwargs, result)
        place = self.places[id(self.phase_of())]
        node = self.current_node() if place == _BACKWARD else None
        if node is not None:
            recomputes = (self.is_grad_enabled() or _is_checkpointed(node)) and not self.differentiates_again()
            self.observation.add_backward(operator, operands, node, recomputes=recomputes)
        elif second is None:
            operator.calls[place] += 1
        else:
            operator.add(place, operands)


def _is_checkpointed(node: Any) -> bool:
    """Whether what runs in a node is run again by checkpointing: a Python function has no gradient mode in it."""
    import torch

    top: Callable[..., Any] | None = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    hooks = top(False) if top is not None else None
    again = hooks is not None and getattr(hooks[0], "__qualname__", "").startswith("_recomputation_hook")
    return again or bool(node.name() == "CheckpointFunctionBackward")


def _mode(
    observation: Observation, phase_of: Callable[[], Phase | None], differentiates_again: Callable[[], bool]
) -> Any:
    """The dispatch mode that counts into `observation`."""
    import torch
    from torch._ops import HigherOrderOperator
    from torch.utils._python_dispatch import TorchDispatchMode

    calls = _CallCounter(
        observation, phase_of, differentiates_again, HigherOrderOperator, torch.strided, torch.is_grad_enabled,
        torch._C._current_autograd_node,
    )  # fmt: skip
    # Keeping dynamo from compiling the mode itself costs as much as the mode, and imports dynamo.
    dynamo_may_run = "torch._dynamo" in sys.modules

    class Observer(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves the base untyped
        supports_higher_order_operators = True

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return dynamo_may_run

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if types and any(map(_is_fake, types)):
                return function(*args, **({} if kwargs is None else kwargs))  # DTensor looks for a shape: nothing runs
            if types and any(map(_answers, types)):
                return NotImplemented  # the subclass runs it on what it is made of, which is what is counted
            return calls.call(self, function, args, {} if kwargs is None else kwargs)

    make: Any = Observer
    return make()


def _is_fake(kind: type) -> bool:
    return kind.__name__ == "FakeTensor"


def _answers(kind: type) -> bool:
    """Whether tensors of a subclass answer calls in Python: DTensor, ragged and quantized ones."""
    import torch

    plain: Any = torch.Tensor  # torch does not declare the method
    answer: Any = kind
    return bool(answer.__torch_dispatch__ is not plain.__torch_dispatch__)


def _run_inside(observation: Observation, mode: Any, function: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """Run a higher-order operator as eager does; `mode` sees the operators in those that let it, the others are kept.

    `torch.cond` runs the branch that is taken; flex attention runs by its composition of plain operators.
    """
    import torch

    name = function.name()
    if name == "cond":
        predicate, taken, other, operands = args
        with mode:
            return (taken if bool(predicate) else other)(*operands)
    eager = function.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
    if name == "flex_attention" and eager is not None:
        with mode:
            return eager(*args, **kwargs)
    observation.unseen.add(name)
    return function(*args, **kwargs)


def _is_composite(function: Any) -> bool:
    """Whether all devices run the operator by its decomposition; some of those with one have kernels of their own."""
    from torch._C import DispatchKey

    own = (DispatchKey.CPU, DispatchKey.CUDA, DispatchKey.CompositeExplicitAutograd)
    has_kernel = function.has_kernel_for_dispatch_key
    return bool(has_kernel(DispatchKey.CompositeImplicitAutograd)) and not any(has_kernel(key) for key in own)


def _looked_up(function: Any) -> _Operator:
    return _Operator(
        name=function._schema.name,
        is_incomplete=is_incomplete(function),
        is_composite=_is_composite(function),
        second_count=second_count_of(function),
        written_in_python=_written_in_python(function),
    )


def _written_in_python(function: Any) -> Callable[..., Any] | None:
    """The Python function of a custom operator that has one for all devices; torch's own `prims` are counted."""
    try:
        from torch._library.custom_ops import OPDEFS
    except ImportError:
        return None
    name: str = function._schema.name
    custom: Any = None if name.startswith("prims::") else OPDEFS.get(name)
    if custom is None or set(getattr(custom, "_backend_fns", ("unknown",))) - {None}:
        return None
    written: Callable[..., Any] = custom._init_fn
    return written
