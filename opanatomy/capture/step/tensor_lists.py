"""The tensor lists of a profile: Kineto drops their data types, and the shapes of long ones."""

from __future__ import annotations

from typing import Any


def tensor_lists(profiler: Any) -> tuple[tuple[str, ...], dict[str, tuple[int, ...]]]:
    """The distinct tensor lists as text, and External id -> the lists of that call, from the profiler's own tree."""
    from torch._C._profiler import _EventType

    texts: dict[str, int] = {}
    lists_of_call: dict[str, tuple[int, ...]] = {}
    waiting = list(profiler.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        if event.tag != _EventType.TorchOp:
            continue
        lists = [value for value in event.extra_fields.inputs if isinstance(value, list)]
        numbers = tuple(texts.setdefault(_list_text(value), len(texts)) for value in lists)
        if any(_list_text(value) for value in lists):
            lists_of_call[str(event.correlation_id)] = numbers
    return tuple(texts), lists_of_call


def _list_text(values: list[Any]) -> str:
    return ";".join(
        f"{str(value.dtype).removeprefix('torch.')}[{','.join(map(str, value.sizes))}]"
        for value in values
        if hasattr(value, "sizes")
    )
