"""Work inside CUDA graphs: module and phase of its nodes by torch's annotations, however they come into the trace."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import opanatomy
from opanatomy.capture.run.export import annotated_nodes
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.workload import METADATA_KEY, Capture, Environment, GraphNode, Workload
from tests.support.graphs import BACKWARD, FUSED, GRAPH, LAYER, by_profiler, with_ids, written
from tests.support.made_trace import GEMM, US, device_times, on_gpu


def by_torch(trace: dict[str, Any], known: dict[int, dict[str, str]], folder: Path) -> Path:
    """As torch's own script writes it: the nodes on stream 7, or 8 where they overlap, with texts as arguments."""
    raw, told, target = written(trace, folder / "raw.json.gz"), folder / "told.pkl", folder / "annotated.json.gz"
    told.write_bytes(pickle.dumps({node: [said] for node, said in known.items()}))
    script = "torch.cuda._annotate_cuda_graph_trace"
    done = subprocess.run(
        [sys.executable, "-m", script, str(raw), "-a", str(told), "-o", str(target)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "No module named" in done.stderr:
        pytest.skip("this torch has no script that annotates traces")
    assert done.returncode == 0, done.stderr
    return target


def by_capture(trace: dict[str, Any], known: dict[int, dict[str, str]], folder: Path) -> Path:
    """As our own capture writes it: what torch knows, in the metadata."""
    nodes = {}
    for node, said in known.items():
        nodes[str(node)] = GraphNode(scope=said["module_fqn"], of_backward="autograd_phase" in said)
    capture = Capture(
        version="0",
        command="",
        created="",
        environment=Environment(device_kind="cuda"),
        workload=Workload(),
        graph_nodes=nodes,
    )
    trace[METADATA_KEY] = msgspec.to_builtins(capture)
    return written(trace, folder / "captured.json.gz")


def expected(trace: dict[str, Any], known: dict[int, dict[str, str]]) -> Counter[tuple[str, str]]:
    """The time of each module and phase by the events alone, in ns."""
    names = {LAYER: LAYER, FUSED: "layers.1", BACKWARD: BACKWARD}
    times: Counter[tuple[str, str]] = Counter()
    for event in trace["traceEvents"]:
        said = known.get(event.get("args", {}).get("graph node id", 0)) if event.get("cat") == "kernel" else None
        if said:
            phase = "backward" if "autograd_phase" in said else "forward"
            times[names[said["module_fqn"]], phase] += round(1000 * event["dur"])
    return times


def whole(anatomy: Anatomy) -> tuple[Any, ...]:
    """What an annotation changes nothing of."""
    classes = Counter({row.operator_class: 0 for row in anatomy.classes})
    for row in anatomy.classes:
        classes[row.operator_class] += row.time_ns
    kernels = [(row.kernel, row.count, row.time_ns) for row in anatomy.kernels]
    return anatomy.step.count, classes, kernels


@pytest.mark.parametrize("form", [by_torch, by_profiler, by_capture])
def test_the_nodes_of_a_graph_have_their_modules_and_phases(form: Any, tmp_path: Path) -> None:
    trace, known = with_ids()
    plain = opanatomy.analyze(written(trace, tmp_path / "plain.json.gz"))
    wanted = expected(trace, known)
    assert not [row for row in plain.modules if row.module in {module for module, _ in wanted}]
    anatomy = opanatomy.analyze(form(trace, known, tmp_path))
    assert whole(anatomy) == whole(plain)
    times: Counter[tuple[str, str]] = Counter()
    for row in anatomy.modules:
        times[row.module, row.phase.value] += row.time_ns
    assert {key: times[key] for key in wanted} == dict(wanted)
    walls = anatomy.step.wall_ns or 0, plain.step.wall_ns or 0
    assert walls[0] == pytest.approx(walls[1], abs=1000)  # the script moves a start by up to 1 us


def test_the_nodes_of_a_graph_keep_their_phases_where_the_traces_ranges_are_taken(tmp_path: Path) -> None:
    """A graph launched in the forward: of its four kernels of 1 us the last two are of autograd's backward."""
    trace = on_gpu()
    trace.annotation("Forward", 0, 60)
    trace.host("aten::mm", 10, 20, sequence=1)
    trace.run(GEMM, 15, 100, 40)
    trace.launch(50, 99, name="cudaGraphLaunch")
    for number in range(4):
        said = {"module_fqn": "layer", **({"autograd_phase": "backward"} if number > 1 else {})}
        trace.kernel(GEMM, 150 + 2 * number, 1, 99, **{"graph id": GRAPH, "graph node id": number, **said})
    trace.annotation("loss.backward()", 100, 200)
    trace.host("MmBackward0", 110, 50, sequence=1, forward_thread=1)
    trace.host("aten::mm", 120, 20)
    trace.run(GEMM, 125, 200, 40)
    trace.host("aten::addmm", 200, 20)
    trace.run(GEMM, 205, 250, 40)
    anatomy = trace.analyze(tmp_path)
    (check,) = [check for check in anatomy.checks if check.quantity == "annotated phases"]
    assert "are taken from the trace's annotations" in (check.not_checked or "")
    assert device_times(anatomy) == {"forward": 42 * US, "backward": 82 * US}


def test_what_torch_knows_of_a_graph_is_taken_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the forms of torch 2.13 (a text is `str`) and of later ones (a `name`); the innermost scope wins."""
    told = {
        (3 << 32) | 1: [{"str": "loss"}],
        (3 << 32) | 2: [{"name": "outer"}, {"module_fqn": "layers.0"}],
        (3 << 32) | 3: [{"name": "loss", "autograd_phase": "backward"}],
        (3 << 32) | 4: ["marked"],
    }
    stand_in = SimpleNamespace(get_kernel_annotations=lambda: told)
    monkeypatch.setitem(sys.modules, "torch.cuda.graph_annotations", stand_in)  # type: ignore[arg-type]
    assert annotated_nodes() == {
        str((3 << 32) | 1): GraphNode(scope="loss"),
        str((3 << 32) | 2): GraphNode(scope="layers.0"),
        str((3 << 32) | 3): GraphNode(scope="loss", of_backward=True),
        str((3 << 32) | 4): GraphNode(scope="marked"),
    }
