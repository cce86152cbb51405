"""Attribute work to lines of user code in one more step: a range per line, nested like the calls.

`opanatomy line #N` encloses the work of a line; N identifies a whole stack of user code. Library frames (torch,
installed packages, the standard library, generated code) open no range. The host overhead is one microsecond per line
of user code and a fifth of that per call of a library function.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from traceback import walk_stack
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from opanatomy.records.patterns import regex
from opanatomy.records.workload import LINE_RANGE, LineFrame

if TYPE_CHECKING:
    import torch

#: After this many line events a function's ranges name only the function; after twice as many its caller's line takes
#: its place.
MOST_EVENTS: Final = 20_000
_RESUMABLE: Final = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
#: Code that somebody typed: in a terminal, in a cell of a notebook.
_TYPED_IN: Final = ("<stdin>", "<ipython-input-", "<python-input-")
#: What Dynamo makes of the rest of a function after a graph break.
_RESUMED: Final = regex(r"torch_dynamo_resume_in_(\w+)_at_\d+")

_Tracer: TypeAlias = "Callable[[FrameType, str, Any], Any]"
#: File, line (0: unknown line), function, and the caller's stack (-1: none).
_Stack: TypeAlias = "tuple[str, int, str, int]"


def files_of(module: torch.nn.Module) -> set[str]:
    """Return the files of a model's classes that are not torch's: its code, wherever it is installed."""
    import inspect

    files = set()
    for kind in {type(part) for part in module.modules()}:
        with suppress(TypeError, OSError):  # a class of a notebook, or of a compiled extension
            if not kind.__module__.startswith("torch."):
                files.add(inspect.getfile(kind))
    return files


@contextmanager
def line_ranges(device: str, own: Collection[str] = (), most: int = MOST_EVENTS) -> Iterator[list[LineFrame]]:
    """Open a range for each line of the user's code inside the block; the profiler must run all the while.

    At the end the list has the stacks by number. `own` are installed files that count as user code. Under a debugger or
    coverage tool, which uses Python tracing itself, no range is opened and the list stays empty.
    """
    frames: list[LineFrame] = []
    if sys.gettrace() is not None:
        yield frames
        return
    if "torch._dynamo" in sys.modules:  # a compiled region would have Dynamo compile the tracer
        sys.modules["torch._dynamo"].trace_rules.add(__name__)
    lines = _Lines(own, most)
    main = _Thread(lines, None)
    for frame, _ in reversed(list(walk_stack(sys._getframe(1)))):
        if lines.is_own(frame.f_code):
            frame.f_trace = main.enter(frame, resumed=True)
    _in_autograd(device, lambda: sys.settrace(_Thread(lines, main).trace))
    _stops_in_forks()
    _TRACING.append(lines)
    sys.settrace(main.trace)
    try:
        yield frames
    finally:
        _TRACING.remove(lines)
        if sys.gettrace() == main.trace:  # else the program has set one of its own
            sys.settrace(None)
        main.close()
        _in_autograd(device, lambda: sys.settrace(None))
        frames += lines.frames()


#: What runs line by line in this process.
_TRACING: Final[list[_Lines]] = []


@cache
def _stops_in_forks() -> None:
    """Stop in processes that are forked in the step, such as a loader's workers."""
    os.register_at_fork(after_in_child=lambda: sys.settrace(None) if _TRACING else None)


def _in_autograd(device: str, act: Callable[[], None]) -> None:
    """Call `act` on the thread that runs a device's backward; the CPU's backward runs on the caller's thread."""
    import torch

    if torch.device(device).type == "cpu":
        return
    with torch.enable_grad():
        passed: Any = torch.ones((), device=device, requires_grad=True).clone()
        passed.register_hook(lambda _: act())
        passed.backward()


class _Lines:
    """The stacks of the user's code by number, and which code is the user's."""

    def __init__(self, own: Collection[str], most: int) -> None:
        import torch

        paths = sysconfig.get_paths()
        here = os.path.dirname(os.path.dirname(__file__))
        libraries = (paths["stdlib"], paths["platstdlib"], os.path.dirname(torch.__file__), here)
        self.most = most
        #: Line events by the identity of a code object, which `_codes` keeps alive.
        self.seen: dict[int, int] = {}
        self._libraries = tuple(os.path.realpath(path) + os.sep for path in libraries)
        self._own = {os.path.realpath(file) for file in own}
        self._of_file: dict[str, bool] = {}
        self._codes: list[CodeType] = []
        self._stacks: dict[_Stack, int] = {}

    def is_own(self, code: CodeType) -> bool:
        """Return whether code is the user's."""
        known = self._of_file.get(code.co_filename)
        if known is None:
            file = code.co_filename
            path = os.path.realpath(file)
            installed = {"site-packages", "dist-packages"} & set(path.split(os.sep)) or path.startswith(self._libraries)
            generated = "/torchinductor_" in path or (file.startswith("<") and not file.startswith(_TYPED_IN))
            known = self._of_file[file] = path in self._own or not (installed or generated)
        return known

    def number(self, code: CodeType, line: int, parent: int) -> int:
        """Return the number of the stack of a line with this parent stack."""
        function = getattr(code, "co_qualname", code.co_name)  # Python 3.10 has no qualified one
        stack = os.path.abspath(code.co_filename), line, function, parent
        if stack not in self._stacks:
            self._codes.append(code)
        return self._stacks.setdefault(stack, len(self._stacks))

    def frames(self) -> list[LineFrame]:
        """Return the stacks, each file as the shortest unambiguous path ending."""
        short = _short({file for file, *_ in self._stacks})
        made: list[LineFrame] = []
        for file, line, function, parent in self._stacks:
            name = _RESUMED.sub(r"\1", function)
            if name != function and parent >= 0:  # in place of the frame that it goes on with
                parent = made[parent].parent
            name = name.replace("<locals>.", "")
            made.append(LineFrame(line=f"{short[file]}:{line}" if line else short[file], function=name, parent=parent))
        return made


def _short(files: Collection[str]) -> dict[str, str]:
    """Return the shortest unique ending of each path."""
    made = {}
    for file in files:
        parts = file.split(os.sep)
        for count in range(1, len(parts) + 1):
            end = "/".join(parts[-count:])
            if sum(other == file or other.endswith(os.sep + end) for other in files) == 1:
                break
        made[file] = end
    return made


class _Frame:
    """A frame that runs, and its open range."""

    __slots__ = ("frame", "line", "parent", "range", "stack")

    def __init__(self, frame: FrameType, parent: int) -> None:
        self.frame, self.parent, self.stack, self.line = frame, parent, parent, -1
        self.range: Any = None


class _Thread:
    """The ranges of one thread; `waiting` is the thread that waits for this one."""

    def __init__(self, lines: _Lines, waiting: _Thread | None) -> None:
        from torch._C._profiler import _RecordFunctionFast

        self.lines, self._waiting, self._range = lines, waiting, _RecordFunctionFast
        self._running: list[_Frame] = []
        #: Stack number and range by code, line and caller; each is open at most once.
        self._ranges: dict[tuple[int, int, int], tuple[int, Any]] = {}

    def trace(self, frame: FrameType, _event: str, _: Any) -> _Tracer | None:
        """Begin to trace a frame of the user's code."""
        code = frame.f_code
        if not self.lines.is_own(code) or self.lines.seen.get(id(code), 0) > 2 * self.lines.most:
            return None
        return self.enter(frame, resumed=bool(code.co_flags & _RESUMABLE))

    def enter(self, frame: FrameType, *, resumed: bool) -> _Tracer:
        """Record that a frame runs; a `resumed` frame gets no event for the rest of its current line."""
        outer = next((thread._running[-1] for thread in (self, self._waiting) if thread and thread._running), None)
        top = _Frame(frame, -1 if outer is None else outer.stack)
        self._running.append(top)
        key = id(frame.f_code)
        if self.lines.seen.setdefault(key, 0) > self.lines.most:
            self.lines.seen[key] += 1
            frame.f_trace_lines = False
            self._move(top, 0)
        elif resumed:
            self._move(top, frame.f_lineno)
        return self._local

    def _local(self, frame: FrameType, event: str, _: Any) -> _Tracer:
        if event == "line":
            if not self._running or self._running[-1].frame is not frame:  # thrown into through `yield from`
                self.enter(frame, resumed=True)
            top, line = self._running[-1], frame.f_lineno
            if line != top.line:
                self.lines.seen[id(frame.f_code)] += 1
                if self.lines.seen[id(frame.f_code)] > self.lines.most:
                    frame.f_trace_lines, line = False, 0
                self._move(top, line)
        elif event == "return" and self._running and self._running[-1].frame is frame:
            self._leave(self._running.pop())
        return self._local

    def _move(self, top: _Frame, line: int) -> None:
        self._leave(top)
        code = top.frame.f_code
        known = self._ranges.get((id(code), line, top.parent))
        if known is None:
            number = self.lines.number(code, line, top.parent)
            known = self._ranges[id(code), line, top.parent] = number, self._range(f"{LINE_RANGE}{number}")
        top.line = line
        top.stack, top.range = known
        top.range.__enter__()

    @staticmethod
    def _leave(top: _Frame) -> None:
        if top.range is not None:
            top.range.__exit__(None, None, None)
            top.range = None

    def close(self) -> None:
        """Close open ranges."""
        while self._running:
            top = self._running.pop()
            top.frame.f_trace, top.frame.f_trace_lines = None, True
            self._leave(top)
