"""Find the steps of a script without torch optimizers: from its backwards, else from calls of its models.

A step then lasts from the end of one backward to the end of the next, or from the end of one call of an outermost
module to the end of the next; of several modules called in a cycle (an encoder and a decoder, a network 50 times and
another once) it comprises the whole cycle.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

from opanatomy.capture.loop.imports import when_imported
from opanatomy.capture.loop.modules import LoopModules, hooked
from opanatomy.capture.loop.phases import replaced, unseen_by_warnings
from opanatomy.capture.loop.updates import Cycle

#: After this many calls the search for outermost modules stops.
_LOOKED_FOR: Final = 64


class Calls:
    """Call `ended` after each backward or call that ends a step, until an optimizer is made.

    `changed` is called when earlier steps turn out to be wrong: another module, the first backward, an optimizer.
    """

    def __init__(self, ended: Callable[[], None], changed: Callable[[], None]) -> None:
        self._ended, self._changed = ended, changed
        self._cycle = Cycle()
        #: Hooks that search for outermost modules, and hooks on the known ones.
        self._looking, self._noticing = ExitStack(), ExitStack()
        self._thread: int | None = None
        self._depth, self._is_inside = 0, False
        self._outer: Any = None
        #: Outermost modules by `id`, as long as they exist in the script.
        self._modules: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._names: dict[int, str] = {}
        self._classes: set[type] = set()
        self._count = self._backwards = 0
        #: Whether `Tensor.backward` is running; whether a backward outside it has ended, and with it the step.
        self._in_backward = self._is_due = False
        self._is_over = self._has_compiled = False
        #: Whether `torch.func` runs backwards, in which no hook watches; whether modes were taken off between calls.
        self.is_transformed = self.lost_modes = False

    def install(self, stack: ExitStack) -> None:
        """Look for modules from now on."""
        import torch

        for own in (self._looking, self._noticing):
            stack.enter_context(own)
        replaced(stack, torch.Tensor, "backward", self._wrap_backward)
        name = "torch._functorch.eager_transforms"
        when_imported(
            stack, name, lambda: replaced(stack, sys.modules[name], "grad_and_value_impl", self._wrap_grad_and_value)
        )
        when_imported(stack, "torch._dynamo.callback", lambda: self._follow_compiler(stack))
        self._looking.enter_context(hooked(LoopModules(), self._enters, self._leaves))

    def stop(self) -> None:
        """Leave the steps to an optimizer that was made now, or that steps now."""
        if not self._is_over or self._backwards:
            self._is_over = True
            self._change()
            self._backwards = 0

    @property
    def what(self) -> str | None:
        """Return what ends a step; `None` if nothing has yet, or optimizers do."""
        if self._backwards:
            return "a backward pass"
        if self._is_over:
            return None
        names = dict.fromkeys(self._names[key] for key in self._cycle.keys)
        return f"a call of {' and of '.join(names)}" if names else None

    def backward(self, *, always: bool) -> None:
        """Record the end of an outermost backward; with `always` it ends a step even if optimizers exist.

        The step ends once its caller has returned: after `Tensor.backward` or the `torch.func` function, else at the
        next call.
        """
        self._is_due = not self._is_over or always
        if self._is_due and not self._in_backward and not self._modules:
            self._end()

    def _end(self) -> None:
        self._is_due = False
        if not self._backwards:
            self._change()
        self._backwards += 1
        self._ended()

    def _wrap_grad_and_value(self, original: Callable[..., Any]) -> Callable[..., Any]:
        followed = self._wrap_backward(original)

        @functools.wraps(original)
        def grad_and_value_impl(*args: Any, **kwargs: Any) -> Any:
            self.is_transformed = True
            return followed(*args, **kwargs)

        return grad_and_value_impl

    def _wrap_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if self._in_backward or self._is_elsewhere:
                return original(*args, **kwargs)
            self._in_backward = True
            try:
                result = original(*args, **kwargs)
            finally:
                self._in_backward = False
            if self._is_due:
                self._end()
            return result

        return backward

    def settle(self) -> None:
        """Look for no more modules: the recorder does so itself."""
        self._looking.close()

    def _change(self) -> None:
        self._looking.close()
        self._outer = None
        if self._is_over:
            self._noticing.close()
        if self._cycle.keys or self._backwards:
            self._changed()

    # ---------------------------------------------------------------------------------------------------- the modules

    @property
    def _is_elsewhere(self) -> bool:
        return self._thread not in (None, threading.get_ident())

    def _follow_compiler(self, stack: ExitStack) -> None:
        handler = getattr(sys.modules["torch._dynamo.callback"], "callback_handler", None)
        if handler is not None:
            handler.register_start_callback(self._compiles)
            stack.callback(handler.remove_start_callback, self._compiles)

    def _enters(self, module: Any) -> None:
        if self._is_elsewhere:
            return
        self._thread = threading.get_ident()
        if not self._depth:
            self._outer = module
        self._depth += 1

    def _leaves(self, module: Any, *_: Any) -> None:
        if not self._is_elsewhere and self._depth:
            self._depth -= 1
            if not self._depth:
                self._outer = None
                self._notice(module)

    def _compiles(self, *_: Any) -> None:
        """Remove all hooks before code is first compiled: calls are then observed from outside compiled code."""
        if self._has_compiled:
            return
        self._has_compiled, outer = True, self._outer if self._depth else None
        self._looking.close()
        self._noticing.close()
        if outer is not None:
            self._notice(outer)

    def _notice(self, module: Any) -> None:
        """Notice the calls of a module from now on."""
        kind = type(module)
        if self._is_over or (id(module) in self._modules and kind in self._classes):
            return
        self._modules[id(module)], self._names[id(module)] = module, kind.__name__
        if kind in self._classes:
            return
        self._classes.add(kind)
        own, before = vars(kind).get("__call__"), kind.__call__

        @functools.wraps(before)
        def __call__(called: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_inside or id(called) not in self._modules or self._is_elsewhere:
                return before(called, *args, **kwargs)
            if self._is_due and not _is_transformed():
                self._end()
            self.lost_modes |= _kept_modes()
            self._is_inside = True
            try:
                output = before(called, *args, **kwargs)
            finally:
                self._is_inside = False
            self._called(called)
            return output

        def restore() -> None:
            self._classes.discard(kind)
            if own is not None:
                kind.__call__ = own
            elif "__call__" in vars(kind):
                del kind.__call__

        unseen_by_warnings(__call__)
        kind.__call__ = __call__
        self._noticing.callback(restore)

    def _called(self, module: Any) -> None:
        import torch

        if torch._C._is_tracing() or self._backwards:
            return
        self._thread = threading.get_ident()
        self._count += 1
        if self._count == _LOOKED_FOR:
            self._looking.close()
        was_known = bool(self._cycle.keys)
        ended = self._cycle.ends_with(id(module), len(self._modules))
        if was_known and ended is None:
            self._changed()
        if ended:
            self._ended()


def _is_transformed() -> bool:
    """Return whether `torch.func` runs the surrounding code, where weights are wrapped tensors."""
    import torch

    level = getattr(torch._C._functorch, "maybe_current_level", None)
    return level is not None and level() is not None


def _kept_modes() -> bool:
    """Enable dispatch modes on the stack to see calls, and return whether they were disabled.

    Leaving an `inference_mode` block entered before them disables them.
    """
    import torch

    core: Any = torch._C
    python = core.DispatchKey.Python
    if not core._len_torch_dispatch_stack() or core._dispatch_tls_is_dispatch_key_included(python):
        return False
    for key in (python, core.DispatchKey.PythonTLSSnapshot):
        core._dispatch_tls_set_dispatch_key_included(key, True)
    return True
