"""Tests of a checkout in forks of this process, which has imported what they import, but nothing of the project.

What a file of tests reaches is learned by `reach_of`; a chosen row of tests is run to the first failure by
`first_failure`.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import multiprocessing
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import msgspec
import pytest
from msgspec import Struct
from msgspec.structs import replace

#: Stands for any line of a file in `Reach.lines`.
ANY_LINE = 0
_PROJECT = ("opanatomy", "tests", "benchmarks", "cli")
_SERVER = "tests/support/command.py"
#: The plugins were imported by the process that forks; what a fork leaves open is no fault.
_OPTIONS = (
    "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:unraisableexception", "--tb=no",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip
#: Beside a test's own time: on a busy machine the first that asks for one waits half a minute for the server of forks.
_PATIENCE_S = 180
#: More than any test needs, less than what would hurt others.
_MAX_BYTES = 12 << 30


class Reach(Struct, frozen=True, kw_only=True):
    """A test, how long it took, the lines looked for that it ran, by file, whether it started a process, or failed."""

    test: str
    seconds: float
    lines: Mapping[str, Sequence[int]]
    starts_process: bool
    failed: bool


class FileReach(Struct, frozen=True, kw_only=True):
    """A file of tests: what each reached, why there are none, the modules of others that it imported."""

    tests: Sequence[Reach]
    failure: str | None
    imported: Sequence[str]


def preload(modules: Sequence[str]) -> None:
    """Import what is no part of the project, so that no fork has to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in modules:
            try:
                importlib.import_module(name)
            except Exception:
                continue


def end_with_parent() -> None:
    """End this process where its parent ends, so that no test goes on after the driver (on Linux alone)."""
    if sys.platform == "linux":
        import ctypes

        die_with_parent = 1
        ctypes.CDLL(None).prctl(die_with_parent, signal.SIGKILL)


def reach_of(file: str, lines: Mapping[str, Sequence[int]], checkout: Path, limit: float) -> FileReach:
    """What the tests of a file reach of these lines."""
    answer = _in_a_fork(lambda: _collect(file, lines, checkout), checkout, limit)
    if not isinstance(answer, dict):
        return FileReach(tests=(), failure=f"{file}: {answer}", imported=())
    reach = msgspec.convert(answer, FileReach)
    # Once more, alone: on a busy machine one that minds the time may fail. Which lines it runs is then not known.
    doubtful = {test.test: test.seconds for test in reach.tests if test.failed}
    failing = failing_of(doubtful, checkout) if doubtful else ()
    tests = [
        replace(test, failed=False, starts_process=True) if test.failed and test.test not in failing else test
        for test in reach.tests
    ]
    return replace(reach, tests=tests)


def failing_of(tests: Mapping[str, float], checkout: Path) -> Sequence[str]:
    """Those of these tests (with their seconds) that fail, each where one ends the process or none answers in time."""
    answer = _in_a_fork(lambda: _run(tests, every=True), checkout, 2 * _PATIENCE_S + 10 * sum(tests.values()))
    return answer if isinstance(answer, list) else list(tests)


def first_failure(tests: Mapping[str, float], checkout: Path) -> str | None:
    """The first of these tests (with their seconds) that fails or takes many times as long; `None` where all pass."""
    limit = 2 * _PATIENCE_S + 10 * sum(tests.values())
    answer = _in_a_fork(lambda: _run(tests), checkout, limit)
    return str(answer) if answer is not None else None


# ----------------------------------------------------------------------------------------------------------- the fork


def _in_a_fork(call: Callable[[], Any], checkout: Path, limit: float) -> Any:
    """What the call returns in a child in the checkout, by way of JSON, or one line that says how it ended."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        _be_the_child(call, checkout, write)
    os.close(write)
    try:
        answer = _received(read, time.monotonic() + limit)
    finally:
        os.close(read)
        _killed(child)
    return answer


def _killed(child: int) -> None:
    """End the child and what it started."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _received(read: int, end: float) -> Any:
    text = b""
    while select.select([read], [], [], max(0.0, end - time.monotonic()))[0]:
        if chunk := os.read(read, 1 << 16):
            text += chunk
        elif text:
            return json.loads(text)
        else:
            return "ended without an answer"
    return "the time limit"


def _be_the_child(call: Callable[[], Any], checkout: Path, write: int) -> None:
    try:
        import resource

        os.setpgid(0, 0)
        end_with_parent()
        os.set_inheritable(write, False)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        resource.setrlimit(resource.RLIMIT_DATA, (_MAX_BYTES, _MAX_BYTES))
        # A pool's worker may begin no process, and those that it begins import its main program first.
        multiprocessing.current_process().daemon = False
        sys.modules["__main__"] = ModuleType("__main__")
        os.chdir(checkout)
        os.environ["PYTHONPATH"] = str(checkout)
        here = str(Path(__file__).parent)
        _let_hypothesis_repeat_itself()
        sys.path[:] = [str(checkout), *(place for place in sys.path if place not in (here, str(checkout), ""))]
        try:
            answer = call()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        with os.fdopen(write, "wb") as pipe:
            pipe.write(json.dumps(answer).encode())
    finally:
        os._exit(0)


def _let_hypothesis_repeat_itself() -> None:
    """The same examples each time, as slow as the machine is; the first that fails is enough."""
    from hypothesis import HealthCheck, Phase, settings

    settings.register_profile(
        "forked",
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate),
    )
    settings.load_profile("forked")


# ----------------------------------------------------------------------------------------------------- a row of tests


class _Chosen:
    """A plugin: these tests alone, in this order, none much longer than before, and the first that fails."""

    def __init__(self, tests: Mapping[str, float]) -> None:
        self.tests = tests
        self.failure: str | None = None
        self.failures: list[str] = []

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        by_id = {item.nodeid: item for item in items}
        items[:] = [by_id[test] for test in self.tests if test in by_id]
        for item in items:
            item.add_marker(pytest.mark.timeout(_PATIENCE_S + 10 * self.tests[item.nodeid]))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failure = self.failure or report.nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failure = self.failure or report.nodeid
            self.failures.append(report.nodeid)


def _run(tests: Mapping[str, float], *, every: bool = False) -> str | list[str] | None:
    chosen = _Chosen(tests)
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    code = pytest.main([*_OPTIONS, *([] if every else ["-x"]), *files], plugins=[chosen])
    if every and code in (0, 1):
        return chosen.failures
    return chosen.failure or (None if code == 0 else f"exit code {int(code)}")


# ---------------------------------------------------------------------------------------------------------- the lines


class _Lines:
    """A plugin that notes which of the statements looked for each test runs, its fixtures among it.

    The modules that hold them are compiled with a note in front of each. What only the first test of several would run,
    because a function or a fixture keeps its result, counts for all of them: what functions keep is dropped before each
    test, what a fixture of a module ran belongs to all that use it.
    """

    def __init__(self, lines: Mapping[str, Sequence[int]], checkout: Path) -> None:
        self.wanted = {str(checkout / file): (file, frozenset(places)) for file, places in lines.items()}
        self.wanted[str(checkout / _SERVER)] = (_SERVER, frozenset(_lines_of(checkout / _SERVER, "def ask")))
        self.tests: list[Reach] = []
        self.failure: str | None = None
        self._failed = False
        self._reached: set[tuple[str, int]] = set()
        self._of_fixtures: dict[str, set[tuple[str, int]]] = {}
        self._started = False

    def watch(self) -> None:
        """Compile what is imported from now on with notes."""
        setattr(builtins, _NOTE, self._reached.add)
        as_it_is = SourceFileLoader.get_code

        def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
            path = loader.get_filename(name)
            if path not in self.wanted:
                return as_it_is(loader, name)
            tree = ast.parse(Path(path).read_bytes(), path)
            _note(tree, *self.wanted[path])
            return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

        SourceFileLoader.get_code = get_code  # type: ignore[method-assign]

    def audit(self, event: str, arguments: object) -> None:
        if event in ("subprocess.Popen", "os.fork", "os.posix_spawn"):
            self._started = True

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        before = set(self._reached)
        self._reached.clear()
        try:
            return (yield)
        finally:
            self._of_fixtures.setdefault(fixturedef.argname, set()).update(self._reached)
            self._reached.update(before)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: object) -> Iterator[None]:
        _drop_what_functions_keep()
        self._reached.clear()
        self._started = self._failed = False
        start = time.perf_counter()
        try:
            return (yield)
        finally:
            seconds = time.perf_counter() - start
            reached = self._reached.union(*(self._of_fixtures.get(name, ()) for name in _fixtures_of(item)))
            self._keep(item.nodeid, seconds, reached)

    def _keep(self, test: str, seconds: float, reached: set[tuple[str, int]]) -> None:
        lines: dict[str, list[int]] = {}
        for file, line in sorted(reached):
            lines.setdefault(file, []).append(line)
        started = lines.pop(_SERVER, None) is not None or self._started
        self.tests.append(Reach(test=test, seconds=seconds, lines=lines, starts_process=started, failed=self._failed))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failure = self.failure or report.nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.failed


#: The name of the function that notes a statement.
_NOTE = "__note_of_a_statement__"


def _note(tree: ast.AST, file: str, places: frozenset[int], *, in_function: bool = False) -> None:
    """Put a note in front of each statement of a function that begins on one of these lines."""
    begins = isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef)
    in_function = (in_function or begins) and not isinstance(tree, ast.ClassDef)
    for name, value in ast.iter_fields(tree):
        if isinstance(value, ast.AST):
            _note(value, file, places, in_function=in_function)
        if not isinstance(value, list):
            continue
        rows: list[Any] = []
        for child in value:
            if isinstance(child, ast.stmt) and in_function and child.lineno in places:
                rows.append(_noting(file, child.lineno, child))
            rows.append(child)
            if isinstance(child, ast.AST):
                _note(child, file, places, in_function=in_function)
        if begins and name == "body" and ANY_LINE in places:
            documented = ast.get_docstring(tree, clean=False) is not None
            rows.insert(int(documented), _noting(file, ANY_LINE, value[0]))
        value[:] = rows


def _noting(file: str, line: int, place: ast.stmt) -> ast.stmt:
    note = ast.Call(ast.Name(_NOTE, ast.Load()), [ast.Constant((file, line))], [])
    return ast.copy_location(ast.Expr(note), place)


def _fixtures_of(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())


def _lines_of(path: Path, head: str) -> range:
    """The lines of a function of a few lines."""
    first = next(
        number for number, line in enumerate(path.read_text().splitlines(), 1) if line.strip().startswith(head)
    )
    return range(first, first + 10)


def _drop_what_functions_keep() -> None:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("opanatomy", "tests") and name != "tests.support.command":
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def _collect(file: str, lines: Mapping[str, Sequence[int]], checkout: Path) -> dict[str, Any]:
    plugin = _Lines(lines, checkout)
    sys.addaudithook(plugin.audit)
    plugin.watch()
    # The file has a limit, a test has none.
    code = pytest.main([*_OPTIONS, "--timeout", "0", file], plugins=[plugin])
    failure = plugin.failure or (None if code in (0, 1, 5) else f"{file}: exit code {int(code)}")
    imported = [name for name in list(sys.modules) if name.partition(".")[0] not in _PROJECT]
    answer = FileReach(tests=plugin.tests, failure=failure, imported=imported)
    return dict(msgspec.to_builtins(answer))
