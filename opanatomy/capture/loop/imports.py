"""Act on a module as soon as a script imports it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


def when_imported(stack: ExitStack, name: str, done: Callable[[], None]) -> None:
    """Call `done` now if the module is imported already, else once it is, before its importer goes on.

    Closing the stack ends the wait. Whoever only asks whether there is such a module changes nothing.
    """
    if name in sys.modules:
        done()
        return

    class Finder:
        is_asking = False

        def find_spec(self, wanted: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
            if wanted != name or self.is_asking:
                return None
            self.is_asking = True
            try:
                spec = importlib.util.find_spec(name)
            finally:
                self.is_asking = False
            if spec is not None and spec.loader is not None:
                run: Any = spec.loader.exec_module

                def exec_module(module: Any) -> None:
                    stop()
                    run(module)
                    done()

                spec.loader.exec_module = exec_module  # type: ignore[method-assign]
            return spec

    finder: Any = Finder()

    def stop() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)

    sys.meta_path.insert(0, finder)
    stack.callback(stop)
