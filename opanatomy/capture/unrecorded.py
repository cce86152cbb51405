"""The arguments that Kineto does not record - indices of `aten::index`, strings - observed in a step of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opanatomy.model import ObservedCall

if TYPE_CHECKING:
    import torch

#: Argument types, as a schema prints them, of which a trace has nothing.
_DROPPED = ("List[Optional[Tensor]]", "str", "Optional[str]")


@contextmanager
def observed_calls() -> Iterator[list[ObservedCall]]:
    """The calls while inside, in order, of operators of which Kineto drops an argument."""
    from torch.utils._python_dispatch import TorchDispatchMode

    calls: list[ObservedCall] = []
    incomplete: dict[Any, bool] = {}

    class Observer(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves the base untyped
        supports_higher_order_operators = True

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            """Compiled code stays compiled under it."""
            return True

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            known = incomplete.get(function)
            if known is None:
                known = incomplete[function] = _is_incomplete(function)
            if known:
                arguments = json.dumps(_arguments(function, args, kwargs or {}), separators=(",", ":"))
                calls.append(ObservedCall(operator=function._schema.name, arguments=arguments))
            return function(*args, **(kwargs or {}))

    make: Any = Observer
    with make():
        yield calls


def _is_incomplete(function: Any) -> bool:
    schema = getattr(function, "_schema", None)  # a higher-order operator has none
    return schema is not None and any(str(argument.type) in _DROPPED for argument in schema.arguments)


def _arguments(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments in the order of the schema, defaults filled in."""
    found = []
    for place, argument in enumerate(function._schema.arguments):
        if place < len(args):
            found.append(_plain(args[place]))
        elif argument.name in kwargs:
            found.append(_plain(kwargs[argument.name]))
        else:
            found.append(_plain(argument.default_value))
    return found


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
