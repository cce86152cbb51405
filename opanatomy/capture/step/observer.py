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


@dataclass(slots=True)
class _Operator:
    """What is to be done with the calls of one operator, looked up once, and how many there were in each phase."""

    name: str
    #: Whether Kineto drops some of its arguments.
    is_incomplete: bool
    #: Whether it is made of other operators, which are what runs.
    is_composite: bool
    second_count: SecondCount | None
    calls: list[int] = field(default_factory=lambda: [0] * len(_PHASES))
    #: For each phase the calls by what their FLOPs are a function of.
    contractions: list[Counter[Any]] = field(default_factory=lambda: [Counter() for _ in _PHASES])

    def add(self, place: int, kept: Any) -> None:
        """Count one call."""
        self.calls[place] += 1
        if self.second_count is not None:
            self.contractions[place][kept] += 1

    def count(self, place: int) -> ObservedCount:
        """All calls in one phase, and their FLOPs where each has a second formula."""
        flops = None
        if self.second_count is not None:
            found = [(flops_of(self.second_count, kept), calls) for kept, calls in self.contractions[place].items()]
            flops = sum(one * calls for one, calls in found if one is not None)
            flops = None if any(one is None for one, _ in found) else flops
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
    #: Calls of backward without gradient mode, and the autograd node that runs: they are backward, or a recomputed part
    #: of the forward without gradients if a call with gradient mode follows in the same node.
    _pending: list[tuple[_Operator, Any]] = field(default_factory=list)
    _node: Any = None

    def add_backward(self, operator: _Operator, kept: Any, node: Any, *, with_gradients: bool) -> None:
        """Count a call that autograd's engine makes; `kept` is what its FLOPs are a function of."""
        if node is not self._node:
            self._settle(_BACKWARD)
            self._node = node
        self._pending.append((operator, kept))
        if with_gradients:
            self._settle(_RECOMPUTE)

    def _settle(self, place: int) -> None:
        for operator, kept in self._pending:
            operator.add(place, kept)
        self._pending.clear()

    def close(self) -> None:
        """Count what is pending, and let go of the node, which holds a graph."""
        self._settle(_BACKWARD)
        self._node = None

    def counts(self) -> tuple[ObservedCount, ...]:
        """Calls by operator, overload and phase, and the FLOPs of those that have a second formula."""
        found = [
            operator.count(place)
            for operator in self.operators.values()
            for place, calls in enumerate(operator.calls)
            if calls
        ]
        return tuple(sorted(found, key=lambda one: (one.operator, _PHASES.index(one.phase), one.calls)))


@contextmanager
def observing(phase_of: Callable[[], Phase]) -> Iterator[Observation]:
    """Count every operator that runs while inside; `phase_of` says which phase of the step it is then.

    What an autograd node runs with gradient mode on is recomputation, for the engine turns it off; and so is what it
    ran before that.
    """
    observation = Observation()
    try:
        with _mode(observation, phase_of):
            yield observation
    finally:
        observation.close()


def _mode(observation: Observation, phase_of: Callable[[], Phase]) -> Any:
    """The dispatch mode that counts into `observation`; what it does at each call is kept to a few microseconds."""
    import torch
    from torch._ops import HigherOrderOperator
    from torch.utils._python_dispatch import TorchDispatchMode

    operators, incomplete = observation.operators, observation.incomplete
    strided = torch.strided
    is_grad_enabled, current_node = torch.is_grad_enabled, torch._C._current_autograd_node
    places = {id(phase): place for place, phase in enumerate(_PHASES)}
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
            if types and any(_answers(one) for one in types):
                return NotImplemented  # the subclass runs it on what it is made of, which is what is counted
            if kwargs is None:
                kwargs = {}
            operator = operators.get(id(function))
            if operator is None:
                if isinstance(function, HigherOrderOperator):
                    return _run_inside(observation, self, function, args, kwargs)
                operator = operators[id(function)] = _looked_up(function)
            if operator.is_composite:
                with self:
                    result = function.decompose(*args, **kwargs)
                if result is not NotImplemented:
                    return result
            text = None
            incomplete_here = operator.is_incomplete
            for one in args:  # a layout is looked up faster than a type, and a loop runs faster than `any`
                if getattr(one, "layout", strided) is not strided:
                    incomplete_here = True
            if incomplete_here:
                text = arguments_text(function, args, kwargs)
            result = function(*args, **kwargs)
            second = operator.second_count
            kept = None if second is None else second.arguments(args, kwargs, result)
            place = places[id(phase_of())]
            node = current_node() if place == _BACKWARD else None
            if node is not None:
                observation.add_backward(operator, kept, node, with_gradients=is_grad_enabled())
            elif second is None:
                operator.calls[place] += 1
            else:
                operator.add(place, kept)
            if text is not None:
                incomplete.append(ObservedCall(operator=operator.name, arguments=text))
            return result

    make: Any = Observer
    return make()


def _answers(kind: type) -> bool:
    """Whether tensors of a subclass answer calls in Python: DTensor, ragged and quantized ones."""
    import torch

    return kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__  # type: ignore[attr-defined]


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
    )
