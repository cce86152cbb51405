"""What a process does before its imports: an analysis without the collector and threads, torch with both."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator

import pytest

from opanatomy import __main__
from opanatomy.cli import main

THREADS = "OPENBLAS_NUM_THREADS"


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(THREADS, "?")
    monkeypatch.delenv(THREADS)
    monkeypatch.setattr(__main__, "_ALLOCATOR_OPTIONS", ())
    handler, enabled = signal.getsignal(signal.SIGINT), gc.isenabled()
    gc.enable()
    yield
    signal.signal(signal.SIGINT, handler)
    (gc.enable if enabled else gc.disable)()


@pytest.mark.parametrize(
    ("arguments", "prepared"),
    [
        (["analyze", "t.json"], True),
        (["profile", "analyze"], False),
        (["ceilings"], False),
        ([], False),
    ],
)
def test_only_verbs_without_torch_do_without_collector_and_threads(
    arguments: list[str], prepared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bool, str | None]] = []

    def run(_argv: object) -> int:
        seen.append((gc.isenabled(), os.environ.get(THREADS)))
        return 0

    monkeypatch.setattr(main, "main", run)
    monkeypatch.setattr(sys, "argv", ["opanatomy", *arguments])
    assert __main__.main() == 0
    assert seen == [(not prepared, "1" if prepared else None)]


def test_a_caller_of_main_keeps_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "main", lambda _argv: 0)
    assert __main__.main(["analyze", "t.json"]) == 0
    assert gc.isenabled()
    assert THREADS not in os.environ
