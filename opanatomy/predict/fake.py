"""Simulate a step of a run on fake tensors: its calls and allocations, without weights or execution."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from unittest.mock import patch

from msgspec.structs import replace

from opanatomy.capture.device.accelerators import kind_of, same_device
from opanatomy.capture.device.environment import choose_device
from opanatomy.capture.memory.events import Context, Mark, Moment, ObservedEvents, events_of
from opanatomy.capture.memory.measurement import Snapshots, element_bytes, workspace_sizes
from opanatomy.capture.memory.observer import (
    Before,
    MemoryObserver,
    StepSettings,
    components_before,
    observations_of,
    rng_bytes,
)
from opanatomy.capture.memory.storages import Storages, address_of, holders_of, storages_of, tensors_in, unpacked
from opanatomy.capture.model.parts import stacks_of
from opanatomy.capture.model.user_function import said_by
from opanatomy.capture.model.workload import prepare, workload_of
from opanatomy.capture.run.observer import checkpointing_of
from opanatomy.capture.run.step_runner import make_stepper, step_environment
from opanatomy.capture.step.ranges import forward_hooks
from opanatomy.capture.step.shape import decoder_of, shape_of
from opanatomy.capture.step.stepper import Stepper
from opanatomy.capture.subject import Subject
from opanatomy.errors import CaptureError, EstimateError, OpanatomyError, failed_import
from opanatomy.options import RunOptions
from opanatomy.predict.absent import Gpu, absent_gpu
from opanatomy.predict.price import CallKey, key_of
from opanatomy.predict.ranks import absent_ranks, on_a_rank
from opanatomy.predict.sampling import Sampling, Template
from opanatomy.records.experiment import SimulatedCall, SimulatedStep
from opanatomy.records.signature import Argument, Signature, Tensor
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import AllocatorObservation, MarkKind, MemoryObservations, PhaseSpan, TensorType

if TYPE_CHECKING:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode


# Tensors with shapes but no values: a step on them makes the same calls as a real one, and allocates nothing.
#
# Values that a program reads are zero or false, except those of constants.


@contextmanager
def fake_tensors(*, full_masks: bool = True) -> Iterator[FakeTensorMode]:
    """Make every tensor inside without values; restore the random states afterwards.

    `full_masks` is the value of `mask.all()`: with texts of several lengths a mask is not full.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from transformers.utils import import_utils

    with (
        torch.random.fork_rng(devices=[]),
        fake_mode(full_masks)(allow_non_fake_inputs=True) as mode,
        patch.object(torch.nn.Module, "_apply", _replaced),
        patch.object(FakeTensor, "__deepcopy__", _copied),
        # Transformers ask our tensors for values, as in a real step, instead of building for any values.
        patch.object(import_utils, "is_fake_tensor", lambda _: False, create=True),
    ):
        yield mode


def _copied(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """Return a copy of a fake tensor, or the one that `memo` has.

    It is a clone: torch's own copies the storage, and views of such a copy lie in yet another one.
    """
    import torch

    if id(tensor) not in memo:
        copy = tensor.detach().clone()
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        memo[id(tensor)] = (
            torch.nn.Parameter(copy, tensor.requires_grad)
            if is_parameter
            else copy.requires_grad_(tensor.requires_grad)
        )
    made: torch.Tensor = memo[id(tensor)]
    return made


def _replaced(module: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
    """Make `Module.to` and similar replace parameters: fake tensors have weak references, which prevents swapping."""
    import torch

    made: dict[int, torch.nn.Parameter] = {}
    for child in module.modules() if recurse else (module,):
        for name, parameter in child._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in made:
                with torch.no_grad():
                    tensor = fn(parameter)
                same = tensor is parameter
                made[id(parameter)] = parameter if same else torch.nn.Parameter(tensor, parameter.requires_grad)
            child._parameters[name] = made[id(parameter)]
        for name, buffer in child._buffers.items():
            if buffer is not None:
                child._buffers[name] = fn(buffer)
    return module


@cache
def fake_mode(full_masks: bool) -> type[FakeTensorMode]:
    """Return a `FakeTensorMode` subclass whose tensors also answer value-dependent queries."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    aten = torch.ops.aten
    # Each value is zero or false, and every mask full; the others are rules that torch lacks.
    answers: dict[Any, Callable[..., Any]] = {
        aten._local_scalar_dense.default: _item,
        aten.equal.default: lambda *_: False,
        aten.all.default: lambda tensor: _truth(tensor, full_masks),
        aten.nonzero.default: _nonzero,
        aten.masked_select.default: _masked_select,
        aten._ctc_loss.Tensor: _ctc_loss,
        aten._ctc_loss_backward.Tensor: lambda grad, log_probs, *_: torch.empty_like(log_probs),
        aten._grouped_mm.default: _grouped_mm,
    }

    class AnsweringFakeTensorMode(FakeTensorMode):
        """Fake tensors whose values may be read."""

        def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            """Return the operator's result."""
            answer = answers.get(func)
            if answer is not None and not isinstance(getattr(args[0], "constant", None), torch.Tensor):
                with self:
                    return answer(*args, **(kwargs or {}))
            return super().dispatch(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]

    return AnsweringFakeTensorMode


def _truth(tensor: Any, value: bool) -> Any:
    """Return a boolean tensor whose value `_item` knows."""
    import torch

    made = tensor.new_empty((), dtype=torch.bool)
    made.known_truth = value
    return made


def _item(tensor: Any) -> bool | int | float:
    import torch

    if tensor.dtype is torch.bool:
        return bool(getattr(tensor, "known_truth", False))
    return 0.0 if tensor.dtype.is_floating_point else 0


def _nonzero(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.new_empty((tensor.numel(), tensor.dim()), dtype=torch.int64)


def _masked_select(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    import torch

    broadcast: Any = torch.broadcast_shapes  # untyped in torch
    return tensor.new_empty((broadcast(tensor.shape, mask.shape).numel(),))


def _grouped_mm(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None = None, *_: Any) -> torch.Tensor:
    """Return the result for any data type, as on the CPU; torch's own shape rule takes only bfloat16."""
    if a.dim() == b.dim() == 2:
        assert offs is not None
        return a.new_empty((len(offs), a.shape[0], b.shape[1]))
    return a.new_empty((*(b.shape[:1] if a.dim() == b.dim() else ()), a.shape[-2], b.shape[-1]))


def _ctc_loss(log_probs: torch.Tensor, targets: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    time, batch = log_probs.shape[0], log_probs.shape[1]
    states = 2 * (targets.numel() // batch) + 1
    return log_probs.new_empty((batch,)), log_probs.new_empty((batch, time, states))


# Sums of gradients in place: autograd's engine adds into a gradient that nothing else holds, but not under a mode.
#
# A tensor that two operators take gets the sum of two gradients. In a real step the engine adds one into the other if
# it holds the last reference; under a dispatch mode it always makes a third tensor, as large as a table of words.


#: Reference counts of a tensor and its storage.
Held: TypeAlias = tuple[int, int]


def summed_in_place(function: Any, args: tuple[Any, ...], sole: Held | None) -> torch.Tensor | None:
    """Add two gradients, in place if a real step would do that; return `None` for other calls.

    A real step adds into the first if only the engine references it: `sole` is its reference count then
    (`engine_alone`).
    """
    import torch

    aten: Any = torch.ops.aten
    if function is not aten.add.Tensor or torch.is_grad_enabled() or torch._C._current_autograd_node() is None:
        return None
    first, second = args[:2]
    if not isinstance(second, torch.Tensor) or (first.shape, first.dtype) != (second.shape, second.dtype):
        return None
    if sole is None or _held(first) != sole:
        return None
    result: torch.Tensor = aten.add_.Tensor(first, second)
    return result


def _held(tensor: torch.Tensor) -> Held | None:
    """Return the reference counts of a tensor and its storage; `None` if this torch does not expose them."""
    import torch

    count: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)
    if count is None or not hasattr(tensor, "_use_count"):
        return None
    return tensor._use_count(), count(tensor.untyped_storage()._cdata)


@cache
def engine_alone() -> Held | None:
    """Return the reference counts of a gradient and its storage if only autograd's engine and a mode reference it.

    Call it outside of a mode's own calls, where autograd is off.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[Held | None] = []

    class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves the base untyped
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.ops.aten.add.Tensor and not torch.is_grad_enabled():
                seen.append(_held(args[0]))
            return function(*args, **(kwargs or {}))

    with Counter(), torch.enable_grad():  # type: ignore[no-untyped-call]
        leaf = torch.ones(2, requires_grad=True)
        (leaf.exp() * leaf.sin()).sum().backward()  # type: ignore[no-untyped-call]
    return seen[0] if seen else None


# The calls and the storages of a step, as a dispatch mode sees them come and go.


_NONE: Final = -1
#: Address of a workspace, distinct from any storage's.
_WORKSPACE: Final = -2
#: The operators of cuBLAS. Its handle is a thread's own, and so is the work space that it gets at the first call.
_OF_BLAS: Final = frozenset({
    "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::addmv", "aten::dot", "aten::addbmm",
    "aten::_scaled_mm", "aten::_int_mm",
})  # fmt: skip
#: Address of a kernel's scratch memory.
_SCRATCH: Final = -3
#: Namespaces of operators that only ask for a tensor's properties, or are ranges.
_QUESTIONS: Final = frozenset({"prim", "profiler"})
#: CUDA's allocator rounds the size of a block up to a multiple of this.
_CUDA_BLOCK: Final = 512


@dataclass(slots=True)
class Recording:
    """The events of a step, numbered by `now`; nothing is noted before `started`.

    A storage is identified by the address of its storage object, which is unique while that is alive.
    """

    device: str
    phase_of: Callable[[], Phase]
    weights: frozenset[int] = frozenset()
    now: int = 0
    started: bool = False
    #: Whether the running code is ours and not the step's.
    paused: bool = False
    allocated: int = 0
    #: What was allocated at the start.
    before: int = 0
    live: dict[int, int] = field(default_factory=dict)
    #: Storages whose memory is freed while they are alive.
    emptied: set[int] = field(default_factory=set)
    moments: list[Moment] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    contexts: dict[Context, int] = field(default_factory=dict)
    calls: Counter[tuple[str, Signature, Phase, str | None]] = field(default_factory=Counter)
    #: How to make each distinct call again, and after which moments it ended.
    templates: dict[CallKey, Template | None] = field(default_factory=dict)
    ends: dict[CallKey, list[tuple[int, Context]]] = field(default_factory=dict)
    spans: list[PhaseSpan] = field(default_factory=list)
    #: The open modules, and where each opened or left module begins among autograd's sequence numbers.
    open_modules: list[str] = field(default_factory=list)
    sequence_begins: list[int] = field(default_factory=list)
    sequence_module: list[str | None] = field(default_factory=list)
    #: Module ranges inside backward: the number of the open one, and where each ended.
    recomputations: list[int] = field(default_factory=list)
    #: What an allocator is asked for: an address with its bytes, 0 bytes to free it.
    requests: list[tuple[int, int]] = field(default_factory=list)
    #: Bytes of cuBLAS's workspace, 0 if unknown; which handles have one: forward's, backward's.
    blas_bytes: int = 0
    blas_handles: set[bool] = field(default_factory=set)

    def start(self, weights: frozenset[int]) -> None:
        """Note from here on; everything alive now was there before."""
        self.weights, self.started, self.before = weights, True, self.allocated

    # ------------------------------------------------------------------------------------------------------- storages

    def hold(self, tensor: torch.Tensor, context: Context | None = None) -> None:
        """Note each new storage under a tensor, and when it is freed."""
        for part in unpacked((tensor,)):
            if not same_device(str(part.device), self.device):
                continue
            self._came(part.untyped_storage(), context)

    def _came(self, storage: torch.UntypedStorage, context: Context | None) -> None:
        address, size = address_of(storage), self._rounded(storage.nbytes())
        if size and address not in self.live:
            self.live[address] = size
            self.requests.append((address, storage.nbytes()))
            self._change(size, address, context)
            if address not in self.emptied:
                weakref.finalize(storage, self._gone, address).atexit = False

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Record a storage's new size: sharded weights are freed and reallocated this way."""
        address = address_of(storage)
        if address in self.live or address in self.emptied:
            known = address in self.emptied
            self._gone(address)
            if known or not storage.nbytes():
                self.emptied.add(address)
            self._came(storage, None)

    def _rounded(self, size: int) -> int:
        return size if self.device == "cpu" else -(-size // _CUDA_BLOCK) * _CUDA_BLOCK

    def _gone(self, address: int) -> None:
        self.emptied.discard(address)
        size = self.live.pop(address, 0)
        if size:
            self.requests.append((address, 0))
            self._change(-size, address, None)

    def _change(self, size: int, address: int, context: Context | None) -> None:
        self.allocated += size
        if self.started:
            number = self.contexts.setdefault(context or self.context(), len(self.contexts))
            self.moments.append(Moment(self._tick(), size, address, self.allocated, _NONE, number))

    def mark(self, mark: Mark) -> None:
        """Note the kind of some storages, or a place of the step."""
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
        """Return the current context."""
        import torch

        module = self.open_modules[-1] if self.open_modules else None
        node = None
        if self.phase_of() is Phase.BACKWARD and module is None:
            node = torch._C._current_autograd_node()
        sequence = None if node is None else node._sequence_nr()
        recomputes = self.open_modules and self.recomputations and self.recomputations[-1] == _NONE
        until = len(self.recomputations) - 1 if recomputes else _NONE
        return Context(operator, _NONE, module, sequence, casts_weight, until)

    # ---------------------------------------------------------------------------------------------------------- calls

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Record one call and the storages it created."""
        import torch

        name = function._schema.name
        if function.namespace in _QUESTIONS:
            return
        casts = name == "aten::_to_copy" and address_of(args[0].untyped_storage()) in self.weights
        context = self.context(name, casts_weight=casts)
        if name in _OF_BLAS and self.blas_bytes:
            # The handle of this thread gets its work space; a device's backward runs in a thread of its own.
            in_backward = torch._C._current_autograd_node() is not None
            if in_backward not in self.blas_handles:
                self.blas_handles.add(in_backward)
                self.requests.append((-1 - in_backward, self.blas_bytes))
        for tensor in tensors_in(result):
            self.hold(tensor, context)
        if self.started and not self.paused:
            signature = signature_of(function, args, kwargs)
            module = context.module
            if module is None and context.sequence is not None:
                module = self._module_of(context.sequence)
            phase = self.phase_of()
            if phase is Phase.BACKWARD and torch.is_grad_enabled():
                # Checkpointing recomputes in an autograd node, with gradient mode on.
                node = torch._C._current_autograd_node()
                if node is not None and checkpointing_of(node) is not None:
                    phase = Phase.RECOMPUTE
            self.calls[name, signature, phase, module] += 1
            key = key_of(name, signature)
            if key not in self.templates:
                self.templates[key] = Template.of(function, args, kwargs)
            self.ends.setdefault(key, []).append((len(self.moments), context))
        if (scratch := _scratch_bytes(name, args)) and self.blas_bytes:
            self.requests += [(_SCRATCH, scratch), (_SCRATCH, 0)]

    def add_workspaces(self, sizes: Mapping[CallKey, int]) -> None:
        """Record the temporary memory of each call's kernel, allocated and freed besides its results."""
        more = [
            (index, self._rounded(size), context)
            for key, size in sizes.items()
            if size
            for index, context in self.ends.get(key, ())
        ]
        moments, done = [], 0
        for index, size, context in sorted(more, key=lambda each: each[0]):
            moments += self.moments[done:index]
            done = index
            now, held = (moments[-1].time_ns, moments[-1].total_allocated) if moments else (0, self.before)
            number = self.contexts.setdefault(context, len(self.contexts))
            moments.append(Moment(now, size, _WORKSPACE, held + size, _NONE, number))
            moments.append(Moment(now, -size, _WORKSPACE, held, _NONE, number))
        self.moments = [*moments, *self.moments[done:]]

    def simulated_calls(self) -> tuple[SimulatedCall, ...]:
        """Return the calls, merging equal ones, in order of first occurrence."""
        return tuple(
            SimulatedCall(operator=name, signature=signature, phase=phase, calls=calls, module=module)
            for (name, signature, phase, module), calls in self.calls.items()
        )

    # -------------------------------------------------------------------------------------------------------- modules

    def enter(self, module: str) -> None:
        """Note the begin of a module's forward."""
        if not self.open_modules and self.phase_of() is Phase.BACKWARD:
            self.recomputations.append(_NONE)
        self.open_modules.append(module)
        self._sequence(module)

    def leave(self, module: str) -> None:
        """Note the end of a module's forward."""
        if self.open_modules and self.open_modules[-1] == module:
            self.open_modules.pop()
        self._sequence(self.open_modules[-1] if self.open_modules else None)
        if not self.open_modules and self.recomputations and self.recomputations[-1] == _NONE:
            self.recomputations[-1] = self.now

    def _sequence(self, module: str | None) -> None:
        """Record that autograd nodes from this number on belong to operators called by `module`."""
        import torch

        autograd: Any = torch._C._autograd
        self.sequence_begins.append(autograd._get_sequence_nr())
        self.sequence_module.append(module)

    def _module_of(self, sequence: int) -> str | None:
        index = bisect_right(self.sequence_begins, sequence) - 1
        return self.sequence_module[index] if index >= 0 else None

    # -------------------------------------------------------------------------------------------------------- columns

    def events(self) -> ObservedEvents:
        """Return the events as columns."""
        ends = [end if end != _NONE else self.now for end in self.recomputations]
        contexts = [
            context
            if context.recomputed_until == _NONE
            else context._replace(recomputed_until=ends[context.recomputed_until])
            for context in self.contexts
        ]
        return events_of(self.moments, contexts, self._module_of, self.marks, self.spans)


def _scratch_bytes(name: str, args: tuple[Any, ...]) -> int:
    """Return the temporary bytes of an attention backward kernel, by torch's code; 0 for other calls.

    The query gradient is summed in float32; flash attention sums in blocks of 128 rows, and a key-value head shared by
    several query heads has one gradient per query head.
    """
    if name == "aten::_scaled_dot_product_flash_attention_backward":
        query, key = args[1], args[2]
        batch, heads, length, size = query.shape
        rows, columns = -(-length // 128) * 128, -(-size // 32) * 32
        shared = 0 if key.shape[1] == heads else 2 * batch * key.shape[2] * heads * size * query.element_size()
        return int(batch * heads * rows * (columns + 1) * 4 + shared)
    if name == "aten::_scaled_dot_product_efficient_attention_backward":
        batch, heads, length, size = args[1].shape
        return int(batch * heads * (length * (size + 1) * 4 + 128))
    return 0


@contextmanager
def recording(module: torch.nn.Module, device: str, phase_of: Callable[[], Phase]) -> Iterator[Recording]:
    """Record what runs inside the block; module paths are relative to `module`.

    Dispatch modes do not see the host generator states saved by checkpointing, nor storage resizing, which is not an
    operator.
    """
    import torch

    record = Recording(device, phase_of)
    paths = {id(child): path for path, child in module.named_modules()}
    storages: Any = torch.UntypedStorage
    original_state, original_resize = torch.get_rng_state, storages.resize_

    def enter(child: torch.nn.Module, _inputs: object) -> None:
        if id(child) in paths:
            record.enter(paths[id(child)])

    def leave(child: torch.nn.Module, _inputs: object, _output: object) -> None:
        if id(child) in paths:
            record.leave(paths[id(child)])

    def get_rng_state() -> torch.Tensor:
        state = original_state()
        record.hold(state)
        return state

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        made = original_resize(storage, size)
        record.resized(storage)
        return made

    with (
        forward_hooks(module, enter, leave, always=True),
        patch.object(torch, "get_rng_state", get_rng_state),
        patch.object(storages, "resize_", resize_),
        _mode(record),
    ):
        yield record


def _mode(record: Recording) -> Any:
    """Return the dispatch mode that notes every call."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    sole, kind = engine_alone(), kind_of(record.device)
    wrapper: Any = getattr(torch.distributed, "tensor", None) and torch.distributed.tensor.DTensor

    class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves the base untyped
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if any(type_ is wrapper for type_ in types):
                return NotImplemented  # its parts come by themselves
            arguments = {} if kwargs is None else kwargs
            body = _body(function, kind)
            if body is not None:
                with self:  # its calls are noted, as the profiler sees them
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
def _body(function: Any, kind: str) -> Callable[..., Any] | None:
    """Return the body of an operator that only calls others on this kind of device; `None` for any other.

    With autograd off a mode gets it as a whole, and if torch writes it in Python the rule for fake tensors only gives
    the result. Some operators with a body have a kernel too (`silu_backward`), which then runs.
    """
    import torch
    from torch._library.custom_ops import OPDEFS

    if function.namespace in _QUESTIONS:
        return None
    if function.namespace == "torch_nn":
        body: Callable[..., Any] | None = getattr(OPDEFS.get(function._schema.name), "_init_fn", None)
        return body
    if function.namespace == "fsdp":
        from torch.distributed.fsdp._fully_shard import _fsdp_collectives

        name = function._schema.name.partition("::")[2]
        bodies = (getattr(_fsdp_collectives, body, None) for body in (f"{name}_cuda", f"_{name}_default", name))
        return next(filter(None, bodies), None)
    keys = torch._C.DispatchKey
    # A torch without CUDA lists none of its kernels; what has one of the CPU has one of CUDA.
    built = kind != "cuda" or torch.version.cuda is not None or torch.version.hip is not None
    own = getattr(keys, kind.upper(), None) if built else keys.CPU
    composite = function.has_kernel_for_dispatch_key(keys.CompositeImplicitAutograd)
    has_kernel = own is not None and function.has_kernel_for_dispatch_key(own)
    return function.decompose if composite and not has_kernel else None


def signature_of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
    """Return the arguments of a call in the order of its schema, with defaults filled in."""
    values: list[Argument] = []
    for index, argument in enumerate(function._schema.arguments):
        if index < len(args):
            values.append(_argument(args[index]))
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
    """Return the tensor's shape, data type and strides."""
    import torch

    strides = tuple(value.stride()) if value.layout is torch.strided else None
    return Tensor(tuple(map(int, value.shape)), str(value.dtype).removeprefix("torch."), strides)


#: The name of the allocator in the observations.
ALLOCATOR: Final = "fake tensors"


def simulate(options: RunOptions, sampling: Sampling | None = None, gpu: Gpu | None = None) -> SimulatedStep:
    """Simulate the second step of the run on fake tensors; the first creates persistent state (the optimizer's).

    With a `gpu` the step makes the calls of that GPU, which may be absent: only in a process that then ends. With
    `sampling` its distinct calls are executed on real tensors, so that memory includes kernel workspaces. Raises
    `EstimateError`, with the reason, if the step cannot run without values.
    """
    if options.compile:
        raise EstimateError("the calls and memory of compiled code are known only after compilation - measure the step")
    if options.generate is not None:
        raise EstimateError(
            "the values of the tokens, which decide when generation ends, are unknown - measure the step"
        )
    try:
        with ExitStack() as stack:
            mesh = None
            if gpu is not None:
                stack.enter_context(absent_gpu(gpu))
                mesh = stack.enter_context(absent_ranks(gpu.ranks)) if gpu.ranks > 1 else None
            options = replace(options, device=choose_device(options.device if gpu is None else "cuda"))
            with fake_tensors(full_masks=options.texts is None), step_environment(options):
                return _simulated(options, sampling, gpu, mesh)
    except OpanatomyError:
        raise
    except Exception as error:
        if broken := failed_import(error):
            raise CaptureError(broken) from error
        # torch tries an operator without a kernel for fake tensors on real ones too: the first error names it.
        first = error.__context__ if isinstance(error.__context__, NotImplementedError) else error
        raise EstimateError(
            f"the step cannot run on fake tensors: {said_by(first)} - use --debug for the traceback"
        ) from error


def _simulated(options: RunOptions, sampling: Sampling | None, gpu: Gpu | None, mesh: Any) -> SimulatedStep:
    prepared = prepare(options)
    module = prepared.module
    subject = Subject(module=module, inputs=prepared.inputs, workload=workload_of(prepared, options))
    decoder, layers = decoder_of(module), max((len(stack.layers) for stack in stacks_of(module)), default=0)
    if mesh is not None:
        subject = on_a_rank(subject, options, mesh)
    stepper = make_stepper(subject, options)
    with recording(module, options.device, lambda: stepper.phase) as record:
        record.blas_bytes = 0 if gpu is None else max(workspace_sizes(gpu.capability[0], {}))
        for tensors in components_before(holders_of(stepper, module)).values():
            for tensor in tensors:
                record.hold(tensor)
        stepper.run()
        stepper.free_gradients()
        if prepared.texts is not None:
            stepper.take(prepared.texts.longest)
        memory = _second_step(stepper, module, record, options, sampling)
        calls = record.simulated_calls()
        batches: list[tuple[SimulatedCall, ...]] = []
        if prepared.texts is not None:
            for batch in prepared.texts.batches:
                stepper.take(batch)
                record.calls = Counter()
                stepper.run()
                batches.append(record.simulated_calls())
            if sampling is not None:
                sampling.take(record.templates)
            calls = batches[prepared.texts.observed.profiled]
    return SimulatedStep(
        workload=subject.workload,
        device=options.device,
        calls=calls,
        memory=memory,
        batches=tuple(batches),
        requests=() if gpu is None else tuple(record.requests),
        decoder=decoder,
        layers=layers,
    )


def _second_step(
    stepper: Stepper, module: torch.nn.Module, record: Recording, options: RunOptions, sampling: Sampling | None
) -> MemoryObservations:
    """Run the step and record its memory in the form of a real step's observations."""
    tensors = components_before(holders_of(stepper, module))
    earlier = Before(storages={name: storages_of(some, options.device) for name, some in tensors.items()})
    observer = SimulatedObserver(
        lambda: holders_of(stepper, module),
        options.device,
        Snapshots(options.device),
        hooked=not options.inference,
        record=record,
    )
    stepper.watch = observer
    record.start(frozenset(earlier.storages["weights"]))
    stepper.run()
    observer.end()
    if sampling is not None:
        sampling.take(record.templates)
        record.add_workspaces(sampling.workspaces)
    settings = StepSettings(
        autocast=options.amp is not None,
        checkpointing=bool(options.checkpointing),
        rng_bytes=rng_bytes(options.device) if options.checkpointing else None,
    )
    allocator = AllocatorObservation(name=ALLOCATOR)
    parameters = list(module.parameters())
    return MemoryObservations(
        device=options.device,
        parameter_bytes=element_bytes(parameters),
        trainable_bytes=element_bytes(parameter for parameter in parameters if parameter.requires_grad),
        shape=shape_of(module, options.device),
        step=observations_of(record.events(), earlier, settings, options.device, allocator),
    )


class SimulatedObserver(MemoryObserver):
    """Notes its marks in a recording, not in a profile."""

    def __init__(self, *args: Any, record: Recording, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.record = record

    def saved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Record what autograd saves, except for our own queries."""
        self.record.paused = True
        try:
            return super().saved(tensor)
        finally:
            self.record.paused = False

    def _mark(self, kind: MarkKind, storages: Storages | None = None, tensor: TensorType | None = None) -> None:
        self.record.mark(Mark(kind=kind, storages=storages or {}, tensor=tensor))
