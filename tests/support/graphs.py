"""A trace of CUDA graphs whose kernels have the modules of their nodes."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tests.support.paths import TRACES

GRAPHED: Final = TRACES / "gpu_h200_graphed.json.gz"
GRAPH: Final = 5
#: The first nodes of the graph are of one module, the next of two that are fused, then backward, the last of nothing.
LAYER, FUSED, BACKWARD = "layers.0.mlp", "L.layers.1.up + L.layers.1.act", "layers.1.down"


def with_ids() -> tuple[dict[str, Any], dict[int, dict[str, str]]]:
    """A trace of graphs whose kernels have the numbers of their nodes, and what is known of these."""
    trace = json.loads(gzip.decompress(GRAPHED.read_bytes()))
    kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    launches = Counter(kernel["args"]["correlation"] for kernel in kernels)
    place: Counter[int] = Counter()
    known: dict[int, dict[str, str]] = {}
    for kernel in sorted(kernels, key=lambda kernel: kernel["ts"]):
        correlation = kernel["args"]["correlation"]
        count, number = launches[correlation], place[correlation]
        place[correlation] += 1
        if count < 4:  # launched one by one
            continue
        node = (GRAPH << 32) | number
        kernel["args"] |= {"graph id": GRAPH, "graph node id": node}
        quarter = 4 * number // count
        known[node] = (
            {"module_fqn": LAYER},
            {"module_fqn": FUSED},
            {"module_fqn": BACKWARD, "autograd_phase": "backward"},
            {},
        )[quarter]
    assert known
    return trace, {node: said for node, said in known.items() if said}


def written(trace: dict[str, Any], path: Path) -> Path:
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    return path


def by_profiler(trace: dict[str, Any], known: dict[int, dict[str, str]], folder: Path) -> Path:
    """As a profiler writes it that knows them: the node without its graph, the annotation among the arguments."""
    for event in trace["traceEvents"]:
        node = event.get("args", {}).get("graph node id") if isinstance(event.get("args"), dict) else None
        if node is not None:
            event["args"] |= {"graph node id": node & 0xFFFFFFFF, **known.get(node, {})}
    return written(trace, folder / "cuspy.json.gz")
