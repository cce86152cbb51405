"""Backward on a thread of its own with real values: the structure of an accelerator's trace, on the CPU."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

import opanatomy
from opanatomy.capture.model.workload import prepare
from opanatomy.capture.silence import quiet_libraries
from opanatomy.capture.step.ranges import module_ranges
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.results import Anatomy
from tests.support.tiny import BERT, tiny_request

KINDS = ("eager", "non-reentrant", "reentrant")
#: The products of the layers, and of the head a dense layer and its decoder.
LAYERS = 2 * (2 * (4 * 32 * 32 + 2 * 32 * 64 + 2 * 16 * 32) * 2 * 16)
HEAD = 2 * 32 * 32 * 32 + 2 * 32 * 32 * 160


def on_a_worker(loss: torch.Tensor) -> None:
    """Run backward as autograd's device thread does: on a thread whose sequence numbers begin with 0."""
    in_new_thread(loss.backward)


def in_new_thread(run: Callable[[], Any]) -> None:
    """Run it in a thread, which counts sequence numbers of its own from 0."""
    failed: list[BaseException] = []

    def body() -> None:
        try:
            run()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def foreign_step(kind: str, path: Path, backward: Callable[[torch.Tensor], None]) -> None:
    """Write the trace of a first step without ranges of phases, as another program's."""
    prepared: Any = prepare(tiny_request(BERT, attention="eager", checkpointing=None if kind == "eager" else kind))
    config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with (
        profile(activities=[ProfilerActivity.CPU], record_shapes=True, experimental_config=config) as profiler,
        module_ranges(prepared.module),
        record_function("ProfilerStep#0"),
    ):
        backward(prepared.module(**prepared.inputs)["loss"])
    profiler.export_chrome_trace(str(path))


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("worker")
    with quiet_libraries():
        for kind in KINDS:
            for backward in (torch.Tensor.backward, on_a_worker):
                path = folder / f"{kind}-{backward.__name__}.json"
                in_new_thread(lambda kind=kind, path=path, backward=backward: foreign_step(kind, path, backward))
    return folder


def without_flows(event: dict[str, Any]) -> bool:
    return event.get("ph") not in ("s", "t", "f")


def without_threads(event: dict[str, Any]) -> bool:
    """Neither arrows nor the thread that made a node: numbers alone."""
    if "Fwd thread id" in event.get("args", {}):
        event["args"]["Fwd thread id"] = 0
    return without_flows(event)


def operators(anatomy: Anatomy) -> Counter[Any]:
    calls: Counter[Any] = Counter()
    for row in anatomy.operators:
        calls[row.operator, row.phase, row.signature] += row.calls
    return calls


def products(anatomy: Anatomy) -> dict[tuple[Phase, str], int | None]:
    """The FLOPs of the products of each module."""
    rows = [row for row in anatomy.modules if row.operator_class is OperatorClass.TENSOR_CONTRACTION]
    return {(row.phase, row.module): row.flops for row in rows}


@pytest.mark.parametrize("change", [lambda _: True, without_flows, without_threads], ids=["whole", "flows", "threads"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_backward_elsewhere_is_the_same_backward(
    kind: str, change: Callable[[dict[str, Any]], bool], traces: Path, tmp_path: Path
) -> None:
    """With checkpointing of both kinds too, whose recomputation takes the numbers of the forward again."""
    trace = json.loads((traces / f"{kind}-on_a_worker.json").read_text())
    calls = [event for event in trace["traceEvents"] if event.get("cat") == "cpu_op"]
    numbers: dict[int, set[int]] = {event["tid"]: set() for event in calls}
    for event in calls:
        if event["args"].get("Fwd thread id") == 0 and "Sequence number" in event["args"]:
            numbers[event["tid"]].add(event["args"]["Sequence number"])
    (one, other) = numbers.values()
    assert (len(one & other) > 0) == (kind != "eager")  # else nothing is tried
    trace["traceEvents"] = [event for event in trace["traceEvents"] if change(event)]
    (tmp_path / "worker.json").write_text(json.dumps(trace))
    plain, worker = opanatomy.analyze(traces / f"{kind}-backward.json"), opanatomy.analyze(tmp_path / "worker.json")
    assert operators(worker) == operators(plain)
    assert products(worker) == products(plain)
    eager = products(opanatomy.analyze(traces / "eager-backward.json"))
    backward = {module: flops for (phase, module), flops in products(worker).items() if phase is Phase.BACKWARD}
    assert backward == {module: flops for (phase, module), flops in eager.items() if phase is Phase.BACKWARD}
    assert sum(flops or 0 for flops in backward.values()) == 2 * (LAYERS + HEAD)
