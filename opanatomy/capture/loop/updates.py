"""Find the steps of a training from outside: each is a cycle of its optimizers' updates, from end to end.

An update is a call of an optimizer's `step`, or of a gradient scaler's `step`, which may skip it. Accumulated batches
share one update; a GAN has two per step, or six if its critic is trained five times as often.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from opanatomy.capture.loop.phases import replaced, unseen_by_warnings

if TYPE_CHECKING:
    import torch

#: Maximum number of updates in a cycle.
_MAX_CYCLE: Final = 64
#: An optimizer that has not stepped yet is waited for during this many updates of others; one that has, for as many as
#: preceded it.
_WAITED_UPDATES: Final = 8
#: The order of updates may change this often; later irregular updates are only counted.
_MAX_CHANGES: Final = 3


class Cycle:
    """Learn the cycle in a sequence of keys, and decide which keys end a cycle.

    A key that stays away for long is dropped from the cycle; when it reappears the cycle is learned anew.
    """

    def __init__(self) -> None:
        self._keys: deque[int] = deque(maxlen=2 * _MAX_CYCLE)
        #: By key: the number of its last update, and the distance from the one before it.
        self._last: dict[int, tuple[int, int]] = {}
        self._count = self._changes = self._unknown = 0
        #: The keys of one cycle, once known.
        self.keys: tuple[int, ...] = ()
        self._index = 0
        #: Number of keys that came out of order.
        self.others = 0

    def ends_with(self, key: int, known: int) -> bool | None:
        """Return whether this key ends a cycle; `None` while none is known. `known` keys may still come."""
        self._count += 1
        last = self._last.get(key, (0, 0))[0]
        self._last[key] = (self._count, self._count - last)
        self._keys.append(key)
        if self.keys and key != self.keys[self._index]:
            self.others += 1
            if self._changes < _MAX_CHANGES:
                self._changes += 1
                self._unknown, self.keys = 0, ()
        if not self.keys:
            self._learn(known)
            if not self.keys:
                return None
        self._index = (self._index + 1) % len(self.keys)
        return self._index == 0

    def _learn(self, known: int) -> None:
        keys, self._unknown = list(self._keys), self._unknown + 1
        if self._count == 1 and known <= 1:
            self.keys = (keys[0],)
        if self._count <= _WAITED_UPDATES and len(self._last) < known:
            return
        waited = {
            key
            for key, (last, gap) in self._last.items()
            if self._count - last <= (gap if _WAITED_UPDATES < gap <= _MAX_CYCLE else _WAITED_UPDATES)
        }
        for length in range(len(waited), len(keys) // 2 + 1):
            cycle = keys[-length:]
            if cycle == keys[-2 * length : -length] and waited <= set(cycle):
                begin = next(index for index in range(len(keys)) if _repeats(keys[index:], length))
                self.keys = tuple(keys[begin : begin + length])
                self._index = (len(keys) - 1 - begin) % length
                return
        if self._unknown >= 2 * _MAX_CYCLE:  # no order at all: each update is a step
            self.keys, self._index, self._changes = (keys[-1],), 0, _MAX_CHANGES


def _repeats(keys: list[int], length: int) -> bool:
    return all(key == other for key, other in zip(keys, keys[length:], strict=False))


class Updates:
    """Call `ended` after each update that ends a step, on the updating thread.

    `changed` is called when an update shows earlier steps to be wrong, `made` when an optimizer is created.
    """

    def __init__(
        self,
        ended: Callable[[], None],
        changed: Callable[[], None] = lambda: None,
        made: Callable[[], None] = lambda: None,
    ) -> None:
        self._ended, self._changed, self._made = ended, changed, made
        self._names: dict[int, str] = {}
        #: What made the last update: an optimizer's class and its tensors.
        self.last = ""
        #: The same of the step that ends now.
        self.of_step: set[str] = set()
        self._cycle = Cycle()
        self._alive: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._stepped: set[int] = set()
        self._depth = 0
        self._thread: int | None = None
        self.is_over = False
        #: Number of updates seen, of those skipped by a scaler, and of those inside a backward.
        self.count = self.skipped = self.inside_backward = 0
        #: Whether an optimizer was made.
        self.were_made = False
        #: Total time of the updates so far.
        self.update_ns = 0
        self._begun_ns = 0
        self._ran = False
        #: Returns the number of the backward that this thread is in, or -1.
        self._backward_now: Callable[[], int] = lambda: -1

    @property
    def length(self) -> int:
        """Return the number of updates per step; 0 if unknown."""
        return len(self._cycle.keys)

    @property
    def irregular(self) -> int:
        """Return the number of updates out of the order of the steps."""
        return self._cycle.others

    def install(self, stack: ExitStack) -> None:
        """Follow all optimizers that are made from now on, until the stack is closed."""
        import torch

        self._backward_now = torch._C._current_graph_task_id
        optimizer = torch.optim.Optimizer
        stack.callback(self._stop)
        replaced(stack, optimizer, "__init__", self._wrap_init)
        replaced(stack, optimizer, "profile_hook_step", self._wrap_profile_hook_step)
        replaced(stack, torch.amp.GradScaler, "step", self._wrap_scaler_step)
        stack.callback(_unwrap, optimizer)

    def _stop(self) -> None:
        self.is_over = True

    def _wrap_init(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            if not self.is_over:
                self._alive.add(optimizer)
                self.were_made = True
                self._made()

        return __init__

    def _wrap_profile_hook_step(self, original: Any) -> Any:
        """Wrap torch's hooking of each class's `step`, which happens at its first optimizer."""

        def profile_hook_step(function: Callable[..., Any]) -> Callable[..., Any]:
            inner = original.__func__(function)
            inner.hooked = True

            @functools.wraps(inner)
            def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
                import torch

                if self.is_over or torch.compiler.is_compiling():
                    return inner(optimizer, *args, **kwargs)
                begin, end = self._outside_dynamo()
                is_followed = begin()
                self._ran = True
                try:
                    return inner(optimizer, *args, **kwargs)
                finally:
                    if is_followed:
                        end(optimizer)

            setattr(step, _OURS, True)
            unseen_by_warnings(step)
            return step

        return staticmethod(profile_hook_step)

    def _wrap_scaler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self.is_over:
                return original(scaler, optimizer, *args, **kwargs)
            self._ran = False
            is_followed = self._begin_update()
            try:
                return original(scaler, optimizer, *args, **kwargs)
            finally:
                self.skipped += not self._ran
                if is_followed:
                    self._end_update(optimizer)

        return step

    def _outside_dynamo(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return the functions that begin and end an update, hidden from Dynamo where `torch.compile` runs the step."""
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is None or _evaluated_frames()() is None:
            return self._begin_update, self._end_update
        return dynamo.disable(self._begin_update), dynamo.disable(self._end_update)

    def _begin_update(self) -> bool:
        """Begin an update, or a part of a container's or a scaler's; return whether this thread is followed."""
        here = threading.get_ident()
        self._thread = self._thread or here
        if here != self._thread:
            return False
        if not self._depth:
            self._begun_ns = time.perf_counter_ns()
        self._depth += 1
        return True

    def _named(self, optimizer: Any) -> str:
        tensors = sum(len(group["params"]) for group in optimizer.param_groups)
        same = f"{type(optimizer).__name__} ({tensors} tensors)"
        others = sum(name.startswith(same) for name in self._names.values())
        return self._names.setdefault(id(optimizer), f"{same}, number {others + 1}" if others else same)

    def _end_update(self, optimizer: Any) -> None:
        self._depth -= 1
        if self._depth:
            return
        self.update_ns += time.perf_counter_ns() - self._begun_ns
        if self._backward_now() != -1:
            self.inside_backward += 1
            return
        self.count += 1
        self.last = self._names.get(id(optimizer)) or self._named(optimizer)
        self.of_step.add(self.last)
        known, was_known = 0, bool(self._cycle.keys)
        if not was_known:
            self._stepped.add(id(optimizer))
            known = len(self._stepped | {id(other) for other in self._alive})
        ended = self._cycle.ends_with(id(optimizer), known)
        if was_known and ended is None:
            self._changed()
        if ended:
            self._ended()
            self.of_step = set()


@functools.cache
def _evaluated_frames() -> Callable[[], Any]:
    """Return the getter of Dynamo's frame evaluation callback, which is `None` outside compiled code."""
    from torch._C._dynamo import eval_frame

    # A torch without this says nothing: as if inside.
    return getattr(eval_frame, "get_eval_frame_callback", lambda: True)


_OURS: Final = "_opanatomy_follows"


def _unwrap(optimizer: Any) -> None:
    """Restore each class's own `step`, unless other code has replaced it."""
    for kind in optimizer.__subclasses__():
        step = vars(kind).get("step")
        if getattr(step, _OURS, False) and hasattr(step, "__wrapped__"):
            kind.step = step.__wrapped__
        _unwrap(kind)
