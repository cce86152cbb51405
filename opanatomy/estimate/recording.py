"""The calls and the storages of a step, as a dispatch mode sees them come and go."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from opanatomy.capture.memory.events import Context, Mark, Moment, ObservedEvents, events_of
from opanatomy.capture.memory.storages import address_of, same_device, tensors_in, unpacked
from opanatomy.capture.step.ranges import forward_hooks
from opanatomy.estimate.sums import engine_alone, summed_in_place
from opanatomy.records.memory_observations import PhaseSpan
from opanatomy.records.signature import Argument, Signature, Tensor
from opanatomy.records.simulated import SimulatedCall
from opanatomy.records.taxonomy import Phase

if TYPE_CHECKING:
    import torch

_NONE: Final = -1
#: Questions after a tensor's properties, and ranges, come to a dispatch mode as operators.
_QUESTIONS: Final = frozenset({"prim", "profiler"})
#: What CUDA's allocator rounds the size of a block up to.
_CUDA_BLOCK: Final = 512


@dataclass(slots=True)
class Recording:
    """What happened, moment by moment: `now` counts them. Nothing is noted before `started`.

    A storage is known by the address of its record, which is its own until it is gone.
    """

    device: str
    phase_of: Callable[[], Phase]
    weights: frozenset[int] = frozenset()
    now: int = 0
    started: bool = False
    #: Whether what runs is ours and none of the step.
    paused: bool = False
    allocated: int = 0
    live: dict[int, int] = field(default_factory=dict)
    moments: list[Moment] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    contexts: dict[Context, int] = field(default_factory=dict)
    calls: Counter[tuple[str, Signature, Phase]] = field(default_factory=Counter)
    spans: list[PhaseSpan] = field(default_factory=list)
    #: The modules that are open, and where each that is opened or left begins among autograd's sequence numbers.
    open_modules: list[str] = field(default_factory=list)
    sequence_begins: list[int] = field(default_factory=list)
    sequence_module: list[str | None] = field(default_factory=list)
    #: Module ranges inside backward: the number of the one that is open, and where each ended.
    recomputations: list[int] = field(default_factory=list)

    def start(self, weights: frozenset[int]) -> None:
        """Note from here on; what lives now was there before."""
        self.weights, self.started = weights, True

    # ------------------------------------------------------------------------------------------------------- storages

    def hold(self, tensor: torch.Tensor, context: Context | None = None) -> None:
        """Note the storages under a tensor that are new, and when each of them is gone."""
        for part in unpacked((tensor,)):
            if not same_device(str(part.device), self.device):
                continue
            storage = part.untyped_storage()
            address, size = address_of(storage), self._rounded(storage.nbytes())
            if size and address not in self.live:
                self.live[address] = size
                self._change(size, address, context)
                weakref.finalize(storage, self._gone, address).atexit = False

    def _rounded(self, size: int) -> int:
        return size if self.device == "cpu" else -(-size // _CUDA_BLOCK) * _CUDA_BLOCK

    def _gone(self, address: int) -> None:
        size = self.live.pop(address, 0)
        if size:
            self._change(-size, address, None)

    def _change(self, size: int, address: int, context: Context | None) -> None:
        self.allocated += size
        if self.started:
            number = self.contexts.setdefault(context or self.context(), len(self.contexts))
            self.moments.append(Moment(self._tick(), size, address, self.allocated, _NONE, number))

    def mark(self, mark: Mark) -> None:
        """Note what storages are, or a place of the step."""
        number = self.contexts.setdefault(self.context(), len(self.contexts))
        self.moments.append(Moment(self._tick(), 0, _NONE, self.allocated, _NONE, number, len(self.marks)))
        self.marks.append(mark)

    def _tick(self) -> int:
        self.now += 1
        phase = self.phase_of()
        if self.spans and self.spans[-1].phase is phase:
            self.spans[-1] = replace(self.spans[-1], end_ns=self.now)
        elif phase is not Phase.OTHER:
            self.spans.append(PhaseSpan(phase=phase, begin_ns=self.now, end_ns=self.now))
        return self.now

    def context(self, operator: str | None = None, *, casts_weight: bool = False) -> Context:
        """What is open now."""
        import torch

        module = self.open_modules[-1] if self.open_modules else None
        node = None
        if self.phase_of() is Phase.BACKWARD and module is None:
            node = torch._C._current_autograd_node()
        sequence = None if node is None else node._sequence_nr()
        until = len(self.recomputations) - 1 if self._recomputes() else _NONE
        return Context(operator, _NONE, module, sequence, casts_weight, until)

    # ---------------------------------------------------------------------------------------------------------- calls

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Note one call and the storages that it made."""
        name = function._schema.name
        if function.namespace in _QUESTIONS:
            return
        casts = name == "aten::_to_copy" and address_of(args[0].untyped_storage()) in self.weights
        context = self.context(name, casts_weight=casts)
        for tensor in tensors_in(result):
            self.hold(tensor, context)
        if self.started and not self.paused:
            self.calls[name, signature_of(function, args, kwargs), self._phase()] += 1

    def _phase(self) -> Phase:
        """The phase of a call: what an autograd node runs with gradient mode on is recomputation."""
        import torch

        phase = self.phase_of()
        recomputes = (
            phase is Phase.BACKWARD and torch.is_grad_enabled() and torch._C._current_autograd_node() is not None
        )
        return Phase.RECOMPUTE if recomputes else phase

    def start_calls(self) -> None:
        """Forget the calls so far."""
        self.calls = Counter()

    def simulated_calls(self) -> tuple[SimulatedCall, ...]:
        """The calls, like ones together, in the order of their first."""
        return tuple(
            SimulatedCall(operator=name, signature=signature, phase=phase, calls=calls)
            for (name, signature, phase), calls in self.calls.items()
        )

    # -------------------------------------------------------------------------------------------------------- modules

    def enter(self, module: str) -> None:
        """A module's forward begins."""
        if not self.open_modules and self.phase_of() is Phase.BACKWARD:
            self.recomputations.append(_NONE)
        self.open_modules.append(module)
        self._sequence(module)

    def leave(self, module: str) -> None:
        """A module's forward ends."""
        if self.open_modules and self.open_modules[-1] == module:
            self.open_modules.pop()
        self._sequence(self.open_modules[-1] if self.open_modules else None)
        if not self.open_modules and self.recomputations and self.recomputations[-1] == _NONE:
            self.recomputations[-1] = self.now

    def _recomputes(self) -> bool:
        return bool(self.open_modules and self.recomputations and self.recomputations[-1] == _NONE)

    def _sequence(self, module: str | None) -> None:
        """From this number on autograd's nodes are of operators that `module` calls."""
        import torch

        autograd: Any = torch._C._autograd
        self.sequence_begins.append(autograd._get_sequence_nr())
        self.sequence_module.append(module)

    def _module_of(self, sequence: int) -> str | None:
        place = bisect_right(self.sequence_begins, sequence) - 1
        return self.sequence_module[place] if place >= 0 else None

    # -------------------------------------------------------------------------------------------------------- columns

    def events(self) -> ObservedEvents:
        """The moments as columns."""
        ends = [end if end != _NONE else self.now for end in self.recomputations]
        contexts = [
            context if context.recomputed_until == _NONE
            else context._replace(recomputed_until=ends[context.recomputed_until])
            for context in self.contexts
        ]  # fmt: skip
        return events_of(self.moments, contexts, self._module_of, self.marks, self.spans)


@contextmanager
def recording(module: torch.nn.Module, device: str, phase_of: Callable[[], Phase]) -> Iterator[Recording]:
    """Note what runs while inside; the paths of modules are those of `module`."""
    record = Recording(device, phase_of)
    paths = {id(child): path for path, child in module.named_modules()}

    def enter(child: torch.nn.Module, _inputs: object) -> None:
        if id(child) in paths:
            record.enter(paths[id(child)])

    def leave(child: torch.nn.Module, _inputs: object, _output: object) -> None:
        if id(child) in paths:
            record.leave(paths[id(child)])

    with ExitStack() as stack:
        stack.enter_context(forward_hooks(module, enter, leave, always=True))
        stack.enter_context(_random_states(record))
        stack.enter_context(_mode(record))
        yield record


@contextmanager
def _random_states(record: Recording) -> Iterator[None]:
    """Checkpointing keeps states of the host's generator, which no dispatch mode sees being made."""
    import torch

    original = torch.get_rng_state

    def get_rng_state() -> torch.Tensor:
        state = original()
        record.hold(state)
        return state

    torch.get_rng_state = get_rng_state
    try:
        yield
    finally:
        torch.get_rng_state = original


def _mode(record: Recording) -> Any:
    """The dispatch mode that notes every call."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    sole = engine_alone()

    class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves the base untyped
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            arguments = {} if kwargs is None else kwargs
            body = _body(function)
            if body is not None:
                with self:  # what it calls is noted, as the profiler sees it
                    return body(*args, **arguments)
            result = summed_in_place(function, args, sole)
            if result is not None:
                function = torch.ops.aten.add_.Tensor
            else:
                result = function(*args, **arguments)
            record.call(function, args, arguments, result)
            return result

    make: Any = Recorder
    return make()


@cache
def _body(function: Any) -> Callable[..., Any] | None:
    """What an operator does that only calls others: where autograd is off it comes to a mode as a whole, and for one
    that torch writes in Python the rule for fake tensors gives no more than what comes out."""
    import torch
    from torch._library.custom_ops import OPDEFS

    if function.namespace in _QUESTIONS:
        return None
    if function.namespace == "torch_nn":
        body: Callable[..., Any] | None = getattr(OPDEFS.get(function._schema.name), "_init_fn", None)
        return body
    composite = function.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
    return function.decompose if composite else None


def signature_of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
    """The arguments of a call in the order of its schema, defaults filled in."""
    values: list[Argument] = []
    for place, argument in enumerate(function._schema.arguments):
        if place < len(args):
            values.append(_argument(args[place]))
        else:
            values.append(_argument(kwargs.get(argument.name, argument.default_value)))
    return Signature(tuple(values))


def _argument(value: Any) -> Argument:
    import torch

    if isinstance(value, torch.Tensor):
        return tensor_of(value)
    if isinstance(value, (list, tuple)):
        return tuple(map(_argument, value))
    return value if isinstance(value, (bool, int, float, str)) else None


def tensor_of(value: torch.Tensor) -> Tensor:
    """The tensor's shape, data type and strides."""
    import torch

    strides = tuple(value.stride()) if value.layout is torch.strided else None
    return Tensor(tuple(map(int, value.shape)), str(value.dtype).removeprefix("torch."), strides)
