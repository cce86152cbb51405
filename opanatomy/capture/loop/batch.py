"""Find the batch of a step: the samples of the calls of modules that its updates learn from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

if TYPE_CHECKING:
    import torch


class Batch(Struct, frozen=True, kw_only=True):
    """The samples of a step (`None`: not known) and the micro-batches of an update.

    `unlike` lists the different sample counts of calls, or of updates, in the step.
    """

    samples: int | None = None
    micro_batches: int = 1
    unlike: tuple[int, ...] = ()


class _Call(Struct, frozen=True, kw_only=True):
    """An outermost call of a module with parameters.

    It `learns` if its gradient may be needed; its input is `derived` if computed by a call that learns.
    """

    module: int
    samples: int | None
    learns: bool
    derived: bool


#: Marks a backward between calls.
_BACKWARD: Final = None


@dataclass(slots=True)
class StepCalls:
    """The outermost calls, backwards and updates of a step, in order."""

    #: The calls and backwards since the last update.
    _open: list[_Call | None] = field(default_factory=list)
    #: The calls and backwards of each update, by its optimizer.
    _updates: list[tuple[int, list[_Call | None]]] = field(default_factory=list)
    #: Batch size and length of the first sequences seen by a module inside the current call.
    _sequences: tuple[int, int | None] | None = None

    def inner(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note the end of any call: modules of sequences know which dimension is the batch."""
        if self._sequences is None:
            self._sequences = _sequences_of(module, args, kwargs)

    def outermost(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> bool | None:
        """Note the end of an outermost call; return whether it learns, `None` without parameters or output."""
        import torch

        sequences, self._sequences = self._sequences, None
        parameters = iter(module.parameters())
        first = next(parameters, None)
        if first is None or output is None:  # a loss; a call that failed
            return None
        tensors = list(_tensors((*args, *kwargs.values())))
        learns = torch.is_grad_enabled() and (
            first.requires_grad
            or any(tensor.requires_grad for tensor in tensors)
            or any(parameter.requires_grad for parameter in parameters)
        )
        # While a module is traced, reading a shape becomes part of its graph.
        samples = None if torch._C._is_tracing() else samples_of(tensors, _tensors((output,)), sequences)
        derived = any(tensor.grad_fn is not None for tensor in tensors)
        self._open.append(_Call(module=id(module), samples=samples, learns=learns, derived=derived))
        return learns

    def backward(self) -> None:
        """Note the end of an outermost backward that accumulates gradients."""
        self._open.append(_BACKWARD)

    def update(self, optimizer: int) -> None:
        """Note the end of an optimizer's update."""
        self._updates.append((optimizer, self._open))
        self._open = []

    def batch(self) -> Batch:
        """Return the batch of the step, over all updates of each optimizer.

        Without a backward all calls count.
        """
        updates = [(optimizer, events) for optimizer, events in self._updates if any(events)] or [(0, self._open)]
        learning = any(event is _BACKWARD for _, events in self._updates for event in events) or _BACKWARD in self._open
        totals: dict[int, list[int]] = {}
        most_parts = 1
        for optimizer, events in updates:
            parts = _parts(events) if learning else [_calls_of(events)]
            sizes = [_samples_of_calls(calls) for calls in parts if calls]
            if not sizes or any(len(size) != 1 for size in sizes):
                return Batch(
                    micro_batches=max(len(parts), 1), unlike=tuple(sorted({one for size in sizes for one in size}))
                )
            totals.setdefault(optimizer, []).append(sum(size.pop() for size in sizes))
            most_parts = max(most_parts, len(parts))
        if any(len(each) > 1 for each in totals.values()):
            most_parts = 1
        samples = {sum(each) for each in totals.values()}
        if len(samples) > 1:
            return Batch(micro_batches=most_parts, unlike=tuple(sorted(samples)))
        return Batch(samples=samples.pop(), micro_batches=most_parts)


def batch_of(steps: Sequence[Batch]) -> Batch:
    """Return the batch that most of the steps have; unknown if there is none."""
    if not steps:
        return Batch()
    chosen, count = Counter(steps).most_common(1)[0]
    if 2 * count > len(steps):
        return chosen
    sizes = {step.samples for step in steps} - {None}
    return Batch(
        micro_batches=max(step.micro_batches for step in steps),
        unlike=tuple(sorted({*(size for size in sizes if size), *(one for step in steps for one in step.unlike)})),
    )


def _calls_of(events: Iterable[_Call | None]) -> list[_Call]:
    return [event for event in events if event is not None]


def _parts(events: Sequence[_Call | None]) -> list[list[_Call]]:
    """Return the calls of each micro-batch of an update: those before each backward, or as many for each.

    The backwards may all follow the forwards. A backward without preceding forward repeats that of the same calls.
    """
    parts: list[list[_Call]] = [[]]
    for event in events:
        if event is _BACKWARD:
            parts.append([])
        elif event.learns:
            parts[-1].append(event)
    backwards = len(parts) - 1
    calls = [call for part in parts for call in part]
    if all(parts[:-1]):
        return [part for part in parts[:backwards] if part] if backwards else [calls]
    sources = [call for call in calls if not call.derived] or calls
    count = Counter(call.module for call in sources)
    if backwards > 1 and all(number % backwards == 0 for number in count.values()):
        each = len(sources) // backwards
        return [sources[index : index + each] for index in range(0, len(sources), each)] if each else []
    return [calls]


def _samples_of_calls(calls: Sequence[_Call]) -> set[int]:
    """Return the distinct sample counts of calls whose input is not another call's output."""
    sources = [call for call in calls if not call.derived] or calls
    known = {call.samples for call in sources}
    return {samples for samples in known if samples is not None} if None not in known else set()


# ----- the samples of a call


def samples_of(
    inputs: Sequence[torch.Tensor],
    outputs: Iterable[torch.Tensor],
    sequences: tuple[int, int | None] | None = None,
) -> int | None:
    """Return a call's sample count from the first dimensions of its tensors; `None` if ambiguous.

    `sequences` are batch size and length seen by a module inside the call, which show whether the length comes first.
    Indices, positions and masks have other sizes.
    """
    shapes = [tuple(tensor.shape) for tensor in inputs if tensor.dim()]
    if not shapes or any(type(size) is not int for shape in shapes for size in shape):
        return None
    if sequences is not None:
        batch, length = sequences
        if any(batch in shape[:2] or (batch == 1 and length == shape[0]) for shape in shapes):
            return batch
    several = [shape for shape in shapes if max(shape) > 1] or shapes
    first = {shape[0] for shape in several}
    if len(first) > 1:
        first = first & {tensor.shape[0] for tensor in outputs if tensor.dim()} or first
    if len(first) > 1:
        largest = max(several, key=_elements)
        first = {shape[0] for shape in several if shape[0] not in largest[1:] or shape[0] == largest[0]}
    if len(first) > 1:
        of_values = [tensor for tensor in inputs if tensor.dim() > 1 or tensor.is_floating_point()]
        first = {tensor.shape[0] for tensor in of_values if tensor.dim() and tensor.shape[0] in first}
    return first.pop() if len(first) == 1 else None


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors among arguments or outputs, and those in a dictionary: not in lists, whose length is open."""
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, Mapping):
            yield from (item for item in value.values() if isinstance(item, torch.Tensor))


def _sequences_of(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[int, int | None] | None:
    """Return batch size and length of the sequences passed to a torch sequence module; `None` for other modules."""
    from torch import nn

    known: Any = module
    if not isinstance(known, (nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention, nn.Transformer)):
        return None
    first = next(iter((*args, *kwargs.values())), None)
    if isinstance(first, nn.utils.rnn.PackedSequence):
        return int(first.batch_sizes[0]), len(first.batch_sizes)
    shape = tuple(getattr(first, "shape", ()))
    if isinstance(known, nn.RNNCellBase):
        return (shape[0], None) if len(shape) == 2 else None
    if len(shape) == 2:
        return 1, shape[0]
    if len(shape) != 3:
        return None
    return (shape[0], shape[1]) if known.batch_first else (shape[1], shape[0])
