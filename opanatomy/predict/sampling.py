"""Run the calls of a simulated step in isolation: their time here, and their kernels' temporary memory.

A step on fake tensors shows which calls a technique makes, but not their cost. Each distinct call is repeated with real
tensors of the same shapes, strides and data types and arbitrary values.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opanatomy.capture.ceilings import last_cache_bytes, load_of
from opanatomy.capture.memory.measurement import available_bytes, limited_to_available
from opanatomy.capture.run.restore import quiet_kineto
from opanatomy.predict.price import CallKey, call_times

if TYPE_CHECKING:
    import torch

#: Marks the call of a template in the profile: `<prefix><number>`.
_RANGE: Final = "opanatomy.sample/"
#: Repeat a call for this long, once at least and at most so often.
_REPEAT_S: Final = 0.05
_MAX_REPEATS: Final = 10
#: Number of known calls sampled again as controls: if they are slower now, new ones are scaled accordingly.
_CONTROLS: Final = 5
#: Maximum fraction of free memory for a call's arguments.
_MAX_MEMORY_SHARE: Final = 0.5
#: Namespaces of operators that only allocate their results, apart from library kernels' workspaces.
_OF_TORCH: Final = frozenset({"aten", "prims"})
#: Library namespaces whose integer arguments are optimizer state, not indices.
_KNOWN: Final = frozenset({"bitsandbytes", "torchao"})
#: Calls that touch more bytes find them outside the caches, whose size is assumed if the system does not report it.
_COLD: Final = 4 << 20
_CACHE: Final = 64 << 20
#: Calls that read their random state on the host (aten/src/ATen/native/transformers/cuda/attention_backward.cu): fake
#: tensors have it on the device, where reading it ends the process.
_SEED_ON_HOST: Final = frozenset(
    {"aten::_scaled_dot_product_efficient_attention_backward", "aten::_efficient_attention_backward"}
)
#: As many random numbers are made once and repeated.
_TILE: Final = 1 << 20


class TensorSpec(NamedTuple):
    """A tensor without values."""

    shape: tuple[int, ...]
    #: `None` of a sparse tensor.
    strides: tuple[int, ...] | None
    dtype: torch.dtype
    device: torch.device

    @property
    def elements(self) -> int:
        """Return the elements of its storage."""
        if self.strides is None or 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))


class Template(NamedTuple):
    """A call of an operator: its arguments, with a `TensorSpec` for each tensor."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def of(cls, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Template | None:
        """Return the template of a call; `None` if it cannot be repeated with arbitrary values.

        Values of sparse tensors include indices. So may integer tensors of operators outside torch, which may not
        validate them.
        """
        import torch

        made = list(map(_blanked, args))
        if function._schema.name in _SEED_ON_HOST:
            for index, argument in enumerate(function._schema.arguments[: len(made)]):
                if argument.name.startswith("philox_"):
                    made[index] = made[index]._replace(device=torch.device("cpu"))
        template = cls(function, tuple(made), {name: _blanked(each) for name, each in kwargs.items()})
        blanks = list(_tensor_specs((template.args, tuple(template.kwargs.values()))))
        if any(blank.strides is None for blank in blanks):
            return None
        checked = function.namespace in _OF_TORCH or function.namespace in _KNOWN
        return template if checked or all(blank.dtype.is_floating_point for blank in blanks) else None


def _blanked(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        strides = tuple(value.stride()) if value.layout is torch.strided else None
        return TensorSpec(tuple(value.shape), strides, value.dtype, value.device)
    return [_blanked(item) for item in value] if isinstance(value, (list, tuple)) else value


class Sampling:
    """Samples of calls on one device, each taken once, until `deadline`.

    Not `whole`, it only takes operators of other libraries, which may call any others inside.
    """

    def __init__(
        self,
        device: str,
        *,
        whole: bool = True,
        deadline: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.device, self.whole, self.deadline, self.clock = device, whole, deadline, clock
        #: Minimum time of each call, in nanoseconds, comparable to a call in a trace.
        self.times: dict[CallKey, float] = {}
        #: Bytes that a call allocates beyond its results and frees before it returns.
        self.workspaces: dict[CallKey, int] = {}
        #: Maximum share of the device taken by other work meanwhile.
        self.load = 0.0
        self._tried: dict[CallKey, Template] = {}

    def take(self, templates: Mapping[CallKey, Template | None]) -> None:
        """Sample the calls not sampled yet; a call that needs real values gets no sample."""
        import torch
        from torch.utils._python_dispatch import _disable_current_modes

        new = {
            key: template
            for key, template in templates.items()
            if template is not None
            and key not in self._tried
            and (self.whole or template.function.namespace not in _OF_TORCH)
        }
        controls = sorted(self.times, key=lambda key: -self.times[key])[:_CONTROLS] if new else []
        self._tried |= new
        with (
            _disable_current_modes(),
            torch.random.fork_rng(devices=[]),
            torch.no_grad(),
            limited_to_available(),
            warnings.catch_warnings(),
            quiet_kineto(),
        ):
            warnings.simplefilter("ignore")
            lasting = {
                key: lasted for key in (*new, *controls) if (lasted := self._first(self._tried[key])) is not None
            }
            if lasting:
                before = load_of(self.device) or 0.0
                times = self._profile(lasting)
                # New times are kept as they would be if the controls took as long as at first.
                slower = [times[key] / self.times[key] for key in controls if key in times]
                drift = median(slower) if slower else 1.0
                self.times |= {key: times[key] / drift for key in times.keys() - self.times.keys()}
                self.load = max(self.load, before, load_of(self.device) or 0.0)

    def _late(self) -> bool:
        return self.deadline is not None and self.clock() > self.deadline

    def _first(self, template: Template) -> float | None:
        """Return the seconds of a first call; `None` if it cannot run."""
        if self._late():
            return None
        try:
            arguments = _filled(template)
            begun = time.perf_counter()
            template.function(*arguments[0], **arguments[1])
            self._synchronize()
            return time.perf_counter() - begun
        except Exception:  # of an operator that needs true values, more memory, or that refuses what fake tensors take
            return None

    def _synchronize(self) -> None:
        import torch

        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)

    def _profile(self, lasting: Mapping[CallKey, float]) -> dict[CallKey, float]:
        """Return the shortest time of each call, repeated in turns under the profiler, which reports memory too."""
        import torch
        from torch.profiler import ProfilerActivity, profile, record_function

        activities = [ProfilerActivity.CPU]
        if self.device.startswith("cuda"):
            activities.append(ProfilerActivity.CUDA)
        repeats = {key: min(max(round(_REPEAT_S / lasted), 1), _MAX_REPEATS) for key, lasted in lasting.items()}
        keys = list(lasting)
        # What was just written is in the cache, but a step comes back to its weights when all others were used.
        flush = torch.empty(2 * (last_cache_bytes() or _CACHE), dtype=torch.int8, device=self.device)
        with profile(activities=activities, record_shapes=True, profile_memory=True) as profiler:
            for turn in range(_MAX_REPEATS):
                for number, key in enumerate(keys):
                    if turn < repeats[key] and not (turn and self._late()):
                        with suppress(Exception):  # it ran before: memory is short now
                            template = self._tried[key]
                            arguments = _filled(template)
                            if _bytes_of(template) > _COLD:
                                flush.fill_(turn)
                            with record_function(f"{_RANGE}{number}"):
                                result = template.function(*arguments[0], **arguments[1])
                            del result
            self._synchronize()
        roots = profiler.profiler.kineto_results.experimental_event_tree()
        times: dict[CallKey, float] = {}
        for number, workspace, duration_ns in _calls_in(roots, torch.device(self.device)):
            key = keys[number]
            self.workspaces[key] = max(self.workspaces.get(key, 0), workspace)
            times[key] = min(times.get(key, duration_ns), duration_ns)
        if self.device == "cpu":
            return times
        with TemporaryDirectory() as folder:  # the time of an accelerator is that of its kernels
            path = Path(folder) / "sample.json"
            profiler.export_chrome_trace(str(path))
            known = call_times(path, of=min).exact
        return {key: known[key].time_ns for key in keys if key in known and known[key].time_ns}


def _filled(template: Template) -> tuple[Any, Any]:
    """Return the arguments with tensors for blanks; raise `MemoryError` if they would take most of what is free."""
    blanks = list(_tensor_specs((template.args, tuple(template.kwargs.values()))))
    needed = sum(blank.elements * blank.dtype.itemsize for blank in blanks if blank.device.type == "cpu")
    if needed > _MAX_MEMORY_SHARE * (available_bytes() or 1 << 62):
        raise MemoryError
    sizes = [size for blank in blanks if blank.dtype.is_floating_point for size in blank.shape]
    bound = min(sizes, default=1) or 1
    arguments = [_made(value, bound) for value in template.args]
    return arguments, {name: _made(value, bound) for name, value in template.kwargs.items()}


def _bytes_of(template: Template) -> int:
    """Return the bytes of a call's tensor arguments."""
    blanks = _tensor_specs((template.args, tuple(template.kwargs.values())))
    return sum(blank.elements * blank.dtype.itemsize for blank in blanks)


def _tensor_specs(value: Any) -> Iterator[TensorSpec]:
    if isinstance(value, TensorSpec):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensor_specs(item)


def _made(value: Any, bound: int) -> Any:
    """Return the value with a tensor for each blank; whole numbers rise below `bound`, as indices and offsets do."""
    import torch

    if isinstance(value, TensorSpec):
        base = torch.empty(value.elements, dtype=value.dtype, device=value.device)
        if value.dtype.is_floating_point or value.dtype.is_complex:
            tile = _random(value.dtype, value.device)
            for begin in range(0, len(base), len(tile)):
                base[begin : begin + len(tile)] = tile[: len(base) - begin]
        elif value.dtype is torch.bool:
            base.fill_(True)  # every mask is full, as on fake tensors
        else:
            base.copy_(torch.arange(len(base), device=value.device) * bound // max(len(base), 1))
        return base.as_strided(value.shape, value.strides or ())
    return [_made(item, bound) for item in value] if isinstance(value, (list, tuple)) else value


@cache
def _random(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return numbers from 0 to 1: kernels that compare them (pooling, sorting) take other times for equal ones."""
    import torch

    return torch.rand(_TILE, device=device).to(dtype)


def _calls_in(roots: Sequence[Any], device: torch.device) -> Iterator[tuple[int, int, int]]:
    """Yield each sampled call: its number, its peak memory beyond its results, and its operators' time."""
    from torch._C._profiler import _EventType

    for root in roots:
        if not root.name.startswith(_RANGE):
            continue
        changes = []
        waiting = list(root.children)
        duration_ns = sum(event.duration_time_ns for event in waiting if event.tag == _EventType.TorchOp)
        while waiting:
            event = waiting.pop()
            waiting += event.children
            if event.tag == _EventType.Allocation and event.extra_fields.device.type == device.type:
                changes.append((event.start_time_ns, event.extra_fields.alloc_size))
        held = most = 0
        for _, size in sorted(changes, key=lambda change: change[0]):
            held += size
            most = max(most, held)
        yield int(root.name.removeprefix(_RANGE)), most - max(held, 0), duration_ns
