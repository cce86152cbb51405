"""Follow the phase of a loop: the outermost calls of modules, backward and optimizers, each in its range."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING, Any

from opanatomy.capture.loop.batch import StepCalls
from opanatomy.capture.memory.storages import tensors_in
from opanatomy.capture.step.stepper import StepObserver
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import LOOP_RANGE, PHASE_RANGE, between

if TYPE_CHECKING:
    import torch

#: Calls directly inside these phases, and the work between them, have phases of their own.
_OPEN = (None, Phase.OPTIMIZER)


@dataclass(slots=True, eq=False)
class _Call:
    """A running call: its caller, and the last call directly inside it (`None`: the step has just begun)."""

    phase: Phase | None
    owner: object = None
    range: Any = None
    before: Phase | None = None
    #: Whether this is the first forward since the last backward or update.
    is_first: bool = False
    #: How often the module called itself again.
    depth: int = 0


def _nodes_made() -> int:
    """Return the number of autograd nodes created on this thread."""
    import torch

    autograd: Any = torch._C._autograd
    return int(autograd._get_sequence_nr())


@dataclass(slots=True, kw_only=True)
class LoopPhases:
    """The calls of one thread, reported to `watch`; `decide` gets the phase of the work between two of them.

    `log` has the outermost actions of the step in order; two steps with the same `way` are alike.
    """

    watch: StepObserver = field(default_factory=StepObserver)
    decide: Callable[[Phase], None] = lambda phase: None
    log: list[str] = field(default_factory=list)
    calls: StepCalls = field(default_factory=StepCalls)
    #: A hash of all called modules and their input shapes.
    _called: int = 0
    _first_node: int = field(default_factory=_nodes_made)
    #: Whether the engine keeps gradient mode on in the running backward (`create_graph`).
    creates_graph: bool = False
    _calls: list[_Call] = field(default_factory=lambda: [_Call(None)])
    _thread: int = field(default_factory=threading.get_ident)
    _engine_ran: bool = False
    _made_graph: bool = False

    def phase(self) -> Phase | None:
        """Return the phase now; `None` while only a later call can decide it."""
        phase = self._calls[-1].phase
        return None if phase in _OPEN else phase

    @property
    def is_here(self) -> bool:
        """Return whether this is the followed thread."""
        return threading.get_ident() == self._thread

    @property
    def is_outside(self) -> bool:
        """Return whether a call now is an outermost one."""
        return self.is_here and self._calls[-1].phase in _OPEN

    @property
    def in_forward(self) -> bool:
        """Return whether autograd's saves now are kept for a later backward."""
        return all(call.phase is not Phase.BACKWARD for call in self._calls)

    @property
    def _in_optimizer(self) -> bool:
        """Return whether an optimizer evaluates the loss itself, which accumulates nothing."""
        return any(call.phase is Phase.OPTIMIZER for call in self._calls)

    def new_step(self) -> None:
        """Begin a step: close everything still open from the previous one."""
        self._close_above(1)
        self.decide(Phase.OTHER)
        self._calls = [_Call(None)]
        self.log = []
        self.calls = StepCalls()
        self._called, self._first_node = 0, _nodes_made()

    @property
    def way(self) -> list[str]:
        """Return the step's control flow: its actions, a hash of the called modules, and the number of autograd nodes.

        Different branches differ in these, even branches that the observed steps happen to take alike.
        """
        return [*self.log, f"modules {self._called}", f"nodes {_nodes_made() - self._first_node}"]

    # ---------------------------------------------------------------------------------------------------- modules

    def enter_module(self, module: torch.nn.Module) -> bool:
        """Enter a module; return whether it is an outermost call."""
        import torch

        if not self.is_outside:
            if self.is_here and self._calls[-1].owner == id(module):
                self._calls[-1].depth += 1
            return False
        self._begin(Phase.FORWARD, owner=id(module), decides=torch.is_grad_enabled())
        return True

    def note_call(self, path: str, arguments: tuple[Any, ...]) -> None:
        """Record a module call, by path and shape of the first argument."""
        import torch

        shape = getattr(arguments[0], "shape", None) if arguments and not torch._C._is_tracing() else None
        self._called = hash((self._called, path, shape))

    def leave_module(self, module: torch.nn.Module, arguments: Any) -> bool:
        """Leave a module; return whether it was the outermost call, which had these arguments."""
        import torch

        call = self._calls[-1]
        if not self.is_here or call.phase is not Phase.FORWARD or call.owner != id(module):
            return False
        if call.depth:
            call.depth -= 1
            return False
        self._end()
        tensors = tensors_in(arguments)
        # While a module is traced, reading a shape becomes part of its graph.
        shapes = [] if torch._C._is_tracing() else [tuple(tensor.shape) for tensor in tensors]
        self.log.append(f"forward {shapes}")
        if call.is_first:
            self.watch.inputs(tensors)
        return True

    # --------------------------------------------------------------------------------------------------- backward

    @contextmanager
    def backward(self, tensors: Any, *, is_engine: bool = False, create_graph: bool = False) -> Iterator[None]:
        """Mark a call of backward from `tensors`, and inside it autograd's engine."""
        inside = not self.in_forward
        if not self.is_here or (inside and not is_engine):
            yield
            return
        if inside:
            with self._engine(create_graph):
                yield
            return
        outermost = self._calls[-1].phase in _OPEN
        if outermost:
            self.watch.after_forward(tuple(tensors_in(tensors)))
        self._engine_ran = self._made_graph = False
        call = self._begin(Phase.BACKWARD, owner="backward")
        try:
            if is_engine:
                with self._engine(create_graph):
                    yield
            else:
                yield
        finally:
            self._end_of(call)
        if outermost and self._engine_ran:
            self.log.append("backward")
            # A graph of gradients is for another backward; an optimizer evaluates the loss again and again.
            if not self._made_graph and not self._in_optimizer:
                self.calls.backward()
            self.watch.after_backward()

    @contextmanager
    def _engine(self, create_graph: bool) -> Iterator[None]:
        """Mark a run of the engine; one inside another belongs to a recomputation."""
        before = self.creates_graph
        self._engine_ran = True
        self._made_graph |= create_graph
        self.creates_graph = create_graph
        try:
            yield
        finally:
            self.creates_graph = before

    # -------------------------------------------------------------------------------------------------- optimizers

    def enter_optimizer(self, optimizer: object) -> None:
        """Begin an optimizer step."""
        if self.is_here:
            self._begin(Phase.OPTIMIZER, owner=id(optimizer))

    def leave_optimizer(self, optimizer: object) -> None:
        """End an optimizer step."""
        call = next((call for call in reversed(self._calls) if call.owner == id(optimizer)), None)
        if not self.is_here or call is None or call.phase is not Phase.OPTIMIZER:
            return
        self._end_of(call)
        self.log.append("optimizer")
        self.calls.update(id(optimizer))
        self.watch.after_optimizer()

    @contextmanager
    def within(self, phase: Phase) -> Iterator[None]:
        """Mark a call that belongs to a phase as a whole: of a gradient scaler, of a data loader."""
        if not self.is_outside:
            yield
            return
        call = self._begin(phase, owner="call", decides=phase is not Phase.OTHER)
        try:
            yield
        finally:
            self._end_of(call)

    # ------------------------------------------------------------------------------------------------------- calls

    def _begin(self, phase: Phase, *, owner: object, decides: bool = True) -> _Call:
        from torch._C._profiler import _RecordFunctionFast

        above = self._calls[-1]
        decides = decides and above.phase in _OPEN
        call = _Call(phase, owner, before=phase, is_first=above.before is not Phase.FORWARD)
        if decides:
            of_gap = between(above.before, phase)
            if of_gap is not None:
                self.decide(above.phase or Phase.OTHER if of_gap is Phase.OTHER else of_gap)
            above.before = phase
        call.range = _RecordFunctionFast((LOOP_RANGE if decides else PHASE_RANGE) + phase)
        call.range.__enter__()
        self._calls.append(call)
        return call

    def _end_of(self, call: _Call) -> None:
        """End a call, and any left open inside it by an error."""
        if call in self._calls:
            self._close_above(self._calls.index(call))

    def _close_above(self, index: int) -> None:
        while len(self._calls) > index:
            self._end()
        if not self._calls:
            self._calls = [_Call(None)]

    def _end(self) -> None:
        call = self._calls.pop()
        if call.phase is Phase.OPTIMIZER:
            self.decide(Phase.OPTIMIZER)
        if call.range is not None:
            call.range.__exit__(None, None, None)


# Hooks on torch's functions that report the calls of a loop; all are removed afterwards.


#: Methods of a gradient scaler by the phase that they belong to.
_OF_SCALER = {"scale": Phase.BACKWARD, "unscale_": Phase.OPTIMIZER, "step": Phase.OPTIMIZER, "update": Phase.OPTIMIZER}

#: A function of torch -> its replacement.
_Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


@contextmanager
def marked_calls(
    phases: LoopPhases, seen_scaler: Callable[[Any], None], seen_optimizer: Callable[[Any], None]
) -> Iterator[None]:
    """Report to `phases` the calls of backward, optimizers, scalers and data loaders inside the block."""
    import torch
    from torch.utils.data import dataloader

    with ExitStack() as stack:
        replaced(stack, torch.autograd, "backward", functools.partial(_wrap_backward, phases))
        replaced(stack, torch.autograd, "grad", functools.partial(_wrap_backward, phases))
        # Code that imported those by name bypasses the module; both call this.
        replaced(stack, torch.autograd, "_engine_run_backward", functools.partial(_wrap_engine, phases))
        for name, phase in _OF_SCALER.items():
            replaced(stack, torch.amp.GradScaler, name, functools.partial(_wrap_scaler, phases, phase, seen_scaler))
        for owner, name in (
            (torch.optim.Optimizer, "zero_grad"),
            (torch.nn.Module, "zero_grad"),
            (dataloader._BaseDataLoaderIter, "__next__"),
        ):
            replaced(stack, owner, name, functools.partial(_wrap_other, phases))
        _optimizer_hooks(stack, phases, seen_optimizer)
        yield


def replaced(stack: ExitStack, owner: Any, name: str, wrap: _Wrap) -> None:
    """Wrap a function until the stack is closed; replacements by other code in the meantime stay."""
    original = vars(owner).get(name)
    if original is None:
        return
    replacement = wrap(original)
    unseen_by_warnings(getattr(replacement, "__func__", replacement))
    setattr(owner, name, replacement)

    def restore() -> None:
        if vars(owner).get(name) is replacement:
            setattr(owner, name, original)

    stack.callback(restore)


def unseen_by_warnings(function: Any) -> None:
    """Hide a wrapper's frame from `warnings.warn(..., stacklevel=2)` in what it calls."""
    function.__code__ = unseen(function.__code__)


def unseen(code: CodeType) -> CodeType:
    """Return code whose frames `warnings` skips like the import system's, recognized by words in the file name."""
    return code.replace(co_filename=f"{code.co_filename} (not counted, as importlib._bootstrap)")


def _optimizer_hooks(stack: ExitStack, phases: LoopPhases, seen_optimizer: Callable[[Any], None]) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    def enter(optimizer: Any, *_: object) -> None:
        seen_optimizer(optimizer)
        phases.enter_optimizer(optimizer)

    def leave(optimizer: Any, *_: object) -> None:
        phases.leave_optimizer(optimizer)

    stack.callback(register_optimizer_step_pre_hook(enter).remove)
    stack.callback(register_optimizer_step_post_hook(leave).remove)


def _wrap_backward(phases: LoopPhases, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        roots = args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))
        with phases.backward(roots):
            return original(*args, **kwargs)

    return backward


def _wrap_engine(phases: LoopPhases, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def engine(roots: Any, gradients: Any, keep_graph: bool, create_graph: bool, *args: Any, **kwargs: Any) -> Any:
        with phases.backward(roots, is_engine=True, create_graph=create_graph):
            return original(roots, gradients, keep_graph, create_graph, *args, **kwargs)

    return engine


def _wrap_scaler(
    phases: LoopPhases, phase: Phase, seen: Callable[[Any], None], original: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(scaler: Any, *args: Any, **kwargs: Any) -> Any:
        seen(scaler)
        with phases.within(phase):
            return original(scaler, *args, **kwargs)

    return method


def _wrap_other(phases: LoopPhases, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        with phases.within(Phase.OTHER):
            return original(self, *args, **kwargs)

    return method
