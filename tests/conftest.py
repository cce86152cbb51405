"""What every test may use."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import GOLDEN

#: Tests run side by side, one a core: the threads of one would only wait for those of the others.
os.environ.setdefault("OMP_NUM_THREADS", "1")
#: How many modules were imported when the garbage collector was last told to leave out what is there.
_frozen_modules = 0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update-golden` and `--exhaustive`."""
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/ with what the tests get")
    parser.addoption("--exhaustive", action="store_true", help="run what takes many minutes too")


def pytest_configure(config: pytest.Config) -> None:
    """Let children be interrupted: what a shell starts in its background ignores interrupts, and so do its children.

    What runs keep in the user's cache folder goes into one of these tests' own.
    """
    cache = tempfile.TemporaryDirectory(prefix="opanatomy-tests-")
    config.add_cleanup(cache.cleanup)
    os.environ["XDG_CACHE_HOME"] = cache.name
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked `exhaustive` unless asked for it; skip what is marked `gpu` where there is none.

    torch is imported only if such a test is collected. What is slow comes first: it is begun before the processes of
    pytest-xdist take tests from each other at the end, and a capture that a file's tests share is not made in both.
    """
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if not config.getoption("--exhaustive"):
        left_out = [item for item in items if item.get_closest_marker("exhaustive")]
        items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]
        config.hook.pytest_deselected(items=left_out)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


def pytest_collection_finish() -> None:
    """Leave what was imported out of each garbage collection: torch and its like are half a million objects."""
    global _frozen_modules
    gc.freeze()
    _frozen_modules = len(sys.modules)
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(autouse=True)
def imports_are_no_garbage() -> None:
    """Leave out too what tests have imported since, which each capture of memory would look through."""
    global _frozen_modules
    if len(sys.modules) > _frozen_modules + 50:
        gc.collect()
        gc.freeze()
        _frozen_modules = len(sys.modules)


@pytest.fixture(autouse=True, scope="session")
def jobs_begin_with_models() -> Iterator[None]:
    """The processes of an experiment are forked with the models that most tests build: they need not be imported.

    Of the session, not of the tests that ask for it: Python has one server of forks for a process, and who begins it
    first decides what all its forks have. Those of `tests.support.command` are made by it too.
    """
    from opanatomy.predict import workers
    from tests.support.command import begun

    context = workers._context
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "_PRELOAD", "tests.support.preload")
        patch.setattr(workers, "_context", cache(lambda: begun(context())))
        yield


@pytest.fixture(autouse=True)
def no_secrets_of_others() -> None:
    """A process knows its secrets to its end; what one test plants is no secret of the next."""
    values = sys.modules.get("opanatomy.io.redact")
    if values is not None:
        values._seen.clear()


@pytest.fixture(scope="session")
def distributed_runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs on several ranks by name (`tests.support.distributed_runs.Runs`), each made when it is first asked for."""
    from tests.support.distributed_runs import Runs

    if "PYTEST_XDIST_WORKER" not in os.environ:
        return Runs(tmp_path_factory.mktemp("ranks"))
    return Runs(tmp_path_factory.getbasetemp().parent / "ranks")  # of all workers


@pytest.fixture
def one_timed_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captures time one unprofiled step instead of five: for tests that ask nothing of times."""
    from opanatomy.capture.run import step_runner

    monkeypatch.setattr(step_runner, "_TIMED_STEPS", 1)


@pytest.fixture
def quick_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ceilings are measured in a second: the effort is no option, and the real one takes a minute."""
    from opanatomy.capture.ceilings import Effort

    effort = Effort(
        min_s=0.02,
        max_s=0.05,
        patience_s=0.01,
        turn_s=0.001,
        shapes=((32, 32, 32), (64, 64, 64)),
        array_bytes=1 << 20,
        chunk_bytes=1 << 18,
    )
    monkeypatch.setattr("opanatomy.capture.ceilings.default_effort", lambda device: effort)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory of 80 columns, without the Hub."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return folder


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """A check that a text is that of the file of this name in tests/golden; `--update-golden` writes the file."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(text.encode())
        assert path.exists(), f"no golden file {name}: run pytest --update-golden and read what it wrote"
        assert path.read_bytes().decode() == text

    return check
