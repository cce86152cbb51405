"""What costing adds to reading a trace of many operator calls: classes, formulas and their sums.

    python benchmarks/costing.py [--calls N] [--rounds N] [TRACE]

Without a trace it makes one: a million calls of a training step's operators in 24 layers that differ in size, so that
about five hundred names and signatures are distinct. Prints as JSON the seconds of processor time to read the trace,
of the formulas (each distinct name and signature once), of a lookup for every call in plain Python, and of the columns
of costs as an analysis makes them, the latter three as shares of reading too. The target is a share below 10 %.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

TARGET = 0.10
#: Operator and shapes of its arguments by batch * length `n` and width `h`; constants where a formula needs them.
STEP: tuple[tuple[str, Callable[[int, int], list[list[int]]], tuple[str, ...]], ...] = (
    ("aten::addmm", lambda n, h: [[h], [n, h], [h, h], [], []], ("", "", "", "1", "1")),
    ("aten::mm", lambda n, h: [[h, n], [n, h]], ("", "")),
    ("aten::bmm", lambda n, h: [[16, n, 64], [16, 64, n]], ("", "")),
    ("aten::add", lambda n, h: [[n, h], [n, h], []], ("", "", "1")),
    ("aten::mul", lambda n, h: [[n, h], [n, h]], ("", "")),
    ("aten::gelu", lambda n, h: [[n, 4 * h], []], ("", "")),
    ("aten::gelu_backward", lambda n, h: [[n, 4 * h], [n, 4 * h], []], ("", "", "")),
    ("aten::_softmax", lambda n, h: [[16, n, n], [], []], ("", "-1", "False")),
    ("aten::_softmax_backward_data", lambda n, h: [[16, n, n], [16, n, n], [], []], ("", "", "-1", "6")),
    ("aten::native_layer_norm", lambda n, h: [[n, h], [], [h], [h], []], ("", "[768]", "", "", "1e-12")),
    ("aten::native_dropout", lambda n, h: [[n, h], [], []], ("", "0.1", "True")),
    ("aten::copy_", lambda n, h: [[n, h], [n, h], []], ("", "", "False")),
    ("aten::sum", lambda n, h: [[n, h], [], [], []], ("", "[0]", "True", "")),
    ("aten::transpose", lambda n, h: [[n, h], [], []], ("", "0", "1")),
    ("aten::view", lambda n, h: [[n, h], []], ("", "[-1]")),
    ("aten::empty", lambda n, h: [[], [], [], [], [], []], ("[4, 4]", "6", "0", "", "False", "")),
    ("aten::div", lambda n, h: [[16, n, n], []], ("", "")),
    ("aten::as_strided", lambda n, h: [[n, h], [], [], []], ("", "[4, 4]", "[4, 1]", "")),
    ("aten::threshold_backward", lambda n, h: [[n, h], [n, h], []], ("", "", "0")),
    ("aten::addcmul_", lambda n, h: [[h, h], [h, h], [h, h], []], ("", "", "", "0.001")),
)
LAYERS = 24


def made(calls: int, path: Path) -> None:
    """Writes a trace of `calls` operator calls on the CPU, nested in layers as a profiler has them."""
    with gzip.open(path, "wt", compresslevel=1) as out:
        out.write('{"schemaVersion": 1, "traceEvents": [\n')
        for index, event in enumerate(events(calls)):
            out.write((",\n" if index else "") + json.dumps(event))
        out.write("\n]}\n")


def events(calls: int) -> Iterator[dict[str, Any]]:
    at = 100.0
    for number in range(1, calls + 1):
        name, shapes, constants = STEP[number % len(STEP)]
        layer = (number // len(STEP)) % LAYERS
        dims = shapes(512, 64 * (layer + 1))
        types = ["float" if constant == "" and dim else "Scalar" for dim, constant in zip(dims, constants, strict=True)]
        args = {
            "External id": number,
            "Ev Idx": number,
            "Input Dims": dims,
            "Input type": types,
            "Input Strides": [[1] * len(dim) for dim in dims],
            "Concrete Inputs": list(constants),
        }
        yield {"ph": "X", "cat": "cpu_op", "name": name, "pid": 7, "tid": 7, "ts": at, "dur": 3.5, "args": args}
        at += 4.0


def measured(path: Path) -> dict[str, float]:
    """Processor seconds to read a trace, to cost its calls one by one, and to do it as an analysis does."""
    from opanatomy.attribution.attribute import attribute
    from opanatomy.attribution.calls import costs_of as costs_in_analysis
    from opanatomy.attribution.calls import trace_calls_of
    from opanatomy.trace.read import read_trace

    trace, read = timed(lambda: read_trace(path))
    (known, costed), looked_up = timed(lambda: costs_of(trace))
    attribution = attribute(trace.names, trace.host, trace.launches, trace.work)
    (calls, _), join = timed(lambda: trace_calls_of(trace, attribution))
    none = calls.signature * 0 - 1
    columns = calls.host.name, calls.signature, none
    _, costs = timed(lambda: costs_in_analysis(trace.names, calls.signatures, columns, "cpu"))
    return {
        "calls": len(trace.host.name),
        "distinct": known,
        "costed": costed,
        "read_s": read,
        "formulas_s": formulas_alone(trace),
        "cost_every_call_s": looked_up,
        "cost_in_the_analysis_s": costs,
        "calls_in_the_analysis_s": join,
    }


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    result = work()
    return result, time.process_time() - start


def costs_of(trace: Any) -> tuple[int, int]:
    """How many names and signatures are distinct, and how many calls have a cost; each formula is called once."""
    from opanatomy.cost.registry import cost

    known: dict[tuple[int, int], Any] = {}
    costed = 0
    for key in zip(trace.host.name.tolist(), trace.host.signature.tolist(), strict=True):
        if key not in known:
            signature = trace.signatures[key[1]] if key[1] >= 0 else None
            known[key] = None if signature is None else cost(trace.names[key[0]], signature)
        costed += known[key] is not None
    return len(known), costed


def formulas_alone(trace: Any) -> float:
    """Processor seconds of the formulas of the distinct names and signatures."""
    from opanatomy.cost.registry import cost

    pairs = set(zip(trace.host.name.tolist(), trace.host.signature.tolist(), strict=True))
    calls = [(trace.names[name], trace.signatures[number]) for name, number in pairs if number >= 0]
    _, taken = timed(lambda: [cost(name, signature) for name, signature in calls if signature is not None])
    return float(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, nargs="?", help="a trace in place of the one made here")
    parser.add_argument("--calls", type=int, default=1_000_000, help="of the trace made here (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="the median of that many (default: %(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.trace or Path(folder) / "million.json.gz"
        if arguments.trace is None:
            made(arguments.calls, path)
        rounds = [measured(path) for _ in range(arguments.rounds)]
    medians = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    medians["microseconds_a_formula"] = 1e6 * medians["formulas_s"] / medians["distinct"]
    for name in ("formulas_s", "cost_every_call_s", "cost_in_the_analysis_s"):
        medians[name.removesuffix("_s") + "_share_of_reading"] = medians[name] / medians["read_s"]
    print(json.dumps({name: round(value, 5) for name, value in medians.items()} | {"target": TARGET}, indent=1))


if __name__ == "__main__":
    main()
