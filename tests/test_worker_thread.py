"""Backward on a thread of its own with real values: the structure of an accelerator's trace, on the CPU."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from opanatomy.capture.silence import quiet_libraries
from opanatomy.records.taxonomy import Phase
from tests.fake_captures import foreign_step, in_new_thread, numbers_of, prepared
from tests.test_fake_accelerator import attributed, flops, operators, without_flows, without_threads

MODEL = "bert-base-uncased"


def on_a_worker(loss: torch.Tensor) -> None:
    """Run backward as autograd's device thread does: on a thread whose sequence numbers begin with 0."""
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()


def trace_of(folder: Path, kind: str, backward: Callable[[torch.Tensor], None]) -> Path:
    """The trace of a first step, whose forward has the numbers from 0 on too."""
    path = folder / f"{kind}-{backward.__name__}.json"
    with quiet_libraries():
        in_new_thread(lambda: foreign_step(prepared(MODEL, kind, "cpu"), path, backward))
    return path


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("worker")
    for kind in ("eager", "non-reentrant", "reentrant"):
        for backward in (torch.Tensor.backward, on_a_worker):
            trace_of(folder, kind, backward)
    return folder


@pytest.mark.parametrize("change", [lambda trace: trace, without_flows, without_threads])
@pytest.mark.parametrize("kind", ["eager", "non-reentrant", "reentrant"])
def test_a_backward_elsewhere_is_the_same_backward(kind: str, change: Callable[..., object], traces: Path) -> None:
    plain = attributed(traces / f"{kind}-backward.json")
    worker = attributed(traces / f"{kind}-on_a_worker.json", change)  # type: ignore[arg-type]
    expected = operators(*plain, set())
    assert (operators(*worker, set()) - expected, expected - operators(*worker, set())) == (Counter(), Counter())
    assert flops(*worker, set()) == flops(*plain, set())


@pytest.mark.parametrize("kind", ["eager", "non-reentrant", "reentrant"])
def test_the_worker_has_a_thread_and_numbers_of_its_own(kind: str, traces: Path) -> None:
    path = traces / f"{kind}-on_a_worker.json"
    threads = {event["tid"] for event in json.loads(path.read_text())["traceEvents"] if event.get("cat") == "cpu_op"}
    assert len(threads) == 2
    recomputing, forward = numbers_of(path)
    assert (len(recomputing & forward) > 0) == (kind != "eager")


def test_checkpointing_moves_no_module(traces: Path) -> None:
    """The products of backward, by module: with checkpointing of both kinds, on a worker too."""
    found = {}
    for path in sorted(traces.glob("*.json")):
        counted = flops(*attributed(path), set())["tensor_contraction"]
        found[path.stem] = {module: n for (phase, module), n in counted.items() if phase == Phase.BACKWARD}
    expected = found["eager-backward"]
    assert sum(expected.values()) == 2 * (2 * (2 * (4 * 32 * 32 + 2 * 32 * 64 + 2 * 16 * 32) * 2 * 16) + HEAD)
    assert None not in expected
    assert all(modules == expected for modules in found.values()), found


#: A product of the head's dense layer and one of its decoder.
HEAD = 2 * 32 * 32 * 32 + 2 * 32 * 32 * 160
