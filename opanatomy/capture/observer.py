"""A second count of a step: what a dispatch mode sees run, operator by operator, below autograd and autocast.

It knows nothing of the trace, of its attribution or of the formulas in `opanatomy.cost`: that is its worth.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opanatomy.capture.second_count import SecondCount, flops_of, second_count_of
from opanatomy.model import ObservedCall, ObservedCount, Phase

if TYPE_CHECKING:
    import torch

#: Argument types, as a schema prints them, of which a trace has nothing.
_DROPPED = ("List[Optional[Tensor]]", "str", "Optional[str]")


@dataclass(frozen=True, slots=True)
class _Operator:
    """What is to be done with the calls of one operator, looked up once."""

    name: str
    #: Whether Kineto drops some of its arguments.
    is_incomplete: bool
    #: Whether it is made of other operators, which are what runs.
    is_composite: bool
    second_count: SecondCount | None


@dataclass(slots=True)
class Observation:
    """What ran while an `observing` was open."""

    #: In order, the calls of operators of which Kineto drops an argument.
    incomplete: list[ObservedCall] = field(default_factory=list)
    _calls: Counter[tuple[str, Phase]] = field(default_factory=Counter)
    #: Calls of contractions by operator, phase and what their FLOPs are a function of.
    _contractions: Counter[tuple[_Operator, Phase, Any]] = field(default_factory=Counter)

    def counts(self) -> tuple[ObservedCount, ...]:
        """Calls by operator and phase, and the FLOPs of those that have a second formula."""
        flops: Counter[tuple[str, Phase]] = Counter()
        sources: dict[tuple[str, Phase], str] = {}
        unknown: set[tuple[str, Phase]] = set()
        for (operator, phase, arguments), calls in self._contractions.items():
            key = (operator.name, phase)
            assert operator.second_count is not None
            found = flops_of(operator.second_count, arguments)
            if found is None:
                unknown.add(key)
            else:
                flops[key] += found * calls
                sources[key] = operator.second_count.source
        return tuple(
            ObservedCount(
                operator=name, phase=phase, calls=calls,
                flops=flops[key] if key in sources and key not in unknown else None,
                source=sources.get(key) if key not in unknown else None,
            )
            for key, calls in sorted(self._calls.items())
            for name, phase in [key]
        )  # fmt: skip


@contextmanager
def observing(phase_of: Callable[[], Phase]) -> Iterator[Observation]:
    """Count every operator that runs while inside; `phase_of` says which phase of the step it is then.

    What autograd's engine runs with gradient mode on is recomputation: the engine turns it off.
    """
    import torch
    from torch._ops import HigherOrderOperator
    from torch.utils._python_dispatch import TorchDispatchMode

    observation = Observation()
    operators: dict[Any, _Operator] = {}
    calls, contractions, incomplete = observation._calls, observation._contractions, observation.incomplete
    is_grad_enabled, graph_task = torch.is_grad_enabled, torch._C._current_graph_task_id

    class Observer(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves the base untyped
        supports_higher_order_operators = True

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if isinstance(function, HigherOrderOperator):
                return _run_inside(self, function, args, kwargs)
            operator = operators.get(function)
            if operator is None:
                operator = operators[function] = _looked_up(function)
            if operator.is_composite:
                with self:
                    result = function.decompose(*args, **kwargs)
                if result is not NotImplemented:
                    return result
            arguments = _arguments_text(function, args, kwargs) if operator.is_incomplete else None
            result = function(*args, **kwargs)
            phase = phase_of()
            if phase is Phase.BACKWARD and is_grad_enabled() and graph_task() != -1:
                phase = Phase.RECOMPUTE
            calls[operator.name, phase] += 1
            if operator.second_count is not None:
                contractions[operator, phase, operator.second_count.arguments(args, kwargs, result)] += 1
            if arguments is not None:
                incomplete.append(ObservedCall(operator=operator.name, arguments=arguments))
            return result

    make: Any = Observer
    with make():
        yield observation


def _run_inside(mode: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a higher-order operator (`torch.cond`, flex attention) as eager does, the operators in it seen by `mode`."""
    import torch

    eager = function.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
    if eager is None:
        return function(*args, **kwargs)
    with mode:
        return eager(*args, **kwargs)


def _is_composite(function: Any) -> bool:
    """Whether all devices run the operator by its decomposition; some of those with one have kernels of their own."""
    from torch._C import DispatchKey

    own = (DispatchKey.CPU, DispatchKey.CUDA, DispatchKey.CompositeExplicitAutograd)
    has_kernel = function.has_kernel_for_dispatch_key
    return bool(has_kernel(DispatchKey.CompositeImplicitAutograd)) and not any(has_kernel(key) for key in own)


def _looked_up(function: Any) -> _Operator:
    return _Operator(
        name=function._schema.name,
        is_incomplete=any(str(argument.type) in _DROPPED for argument in function._schema.arguments),
        is_composite=_is_composite(function),
        second_count=second_count_of(function),
    )


def _arguments_text(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The arguments in the order of the schema, defaults filled in, as JSON."""
    found = []
    for place, argument in enumerate(function._schema.arguments):
        if place < len(args):
            found.append(_plain(args[place]))
        elif argument.name in kwargs:
            found.append(_plain(kwargs[argument.name]))
        else:
            found.append(_plain(argument.default_value))
    return json.dumps(found, separators=(",", ":"))


def _plain(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return {"shape": list(value.shape), "dtype": dtype, "strides": _strides(value)}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (bool, int, float, str)) else None


def _strides(tensor: torch.Tensor) -> list[int] | None:
    import torch

    return list(tensor.stride()) if tensor.layout is torch.strided else None
