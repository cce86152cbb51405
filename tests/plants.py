"""Real traces, damaged one event at a time: what the checks of a trace must find."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from opanatomy.analysis.self_checks import Contractions, graph_of, self_checks
from opanatomy.attribution.attribute import attribute
from opanatomy.attribution.calls import TraceCalls, trace_calls_of
from opanatomy.records.anatomy import Check, Difference
from opanatomy.trace.read import read_trace

Event: TypeAlias = "dict[str, Any]"
#: Tensor arguments whose sizes the FLOPs are made of, or that must fit them.
OPERANDS = {
    "mm": 2, "bmm": 2, "addmm": 3, "baddbmm": 3, "convolution_backward": 3, "mkldnn_convolution": 3, "_convolution": 3,
    "miopen_convolution": 2, "_scaled_dot_product_flash_attention_for_cpu": 3,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 4, "mkldnn_rnn_layer": 7, "mkldnn_rnn_layer_backward": 7,
}  # fmt: skip


def captured(function: Callable[[], Any], path: Path, steps: int = 1) -> Path:
    """The trace of `steps` runs after a warm-up, as any user of torch.profiler writes it."""
    function()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(steps):
            function()
    profiler.export_chrome_trace(str(path))
    return path


def families() -> dict[str, Callable[[], Any]]:
    """One training step of each kind of contraction."""
    torch.manual_seed(0)
    linear = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    grouped = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 4, 3, groups=2))
    transposed = nn.Sequential(nn.ConvTranspose2d(3, 8, 3), nn.ConvTranspose2d(8, 8, 3, groups=2))
    query, key, value = (torch.randn(2, 4, 6, 8, requires_grad=True) for _ in range(3))
    attention = nn.functional.scaled_dot_product_attention
    recurrent = nn.LSTM(6, 7, num_layers=2)
    rows, image, sequence = torch.randn(5, 8), torch.randn(2, 3, 8, 8), torch.randn(5, 3, 6)
    return {
        "mm": lambda: linear(rows).sum().backward(),
        "bmm": lambda: (query @ key.transpose(2, 3) @ value).sum().backward(),
        "grouped convolution": lambda: grouped(image).sum().backward(),
        "transposed convolution": lambda: transposed(image).sum().backward(),
        "attention": lambda: attention(query, key, value).sum().backward(),
        "recurrent": lambda: recurrent(sequence)[0].sum().backward(),
    }


def calls_of(path: Path) -> TraceCalls:
    trace = read_trace(path)
    return trace_calls_of(trace, attribute(trace.names, trace.host, trace.launches, trace.work))[0]


def checks_of(path: Path) -> dict[str, Check]:
    return {check.quantity: check for check in self_checks(calls_of(path))}


def unexplained(path: Path) -> list[Difference]:
    return [one for check in checks_of(path).values() for one in check.unexplained]


def read(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    document: dict[str, Any] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return document


def contractions(path: Path) -> list[tuple[int, bool]]:
    """(Kineto's number, whether it is a gradient) of each contraction that is counted."""
    calls = calls_of(path)
    found = Contractions(calls, graph_of(calls.names, calls.host))
    known = found.is_gradient.tolist()
    return [(int(calls.host.external_id[row]), one) for row, one in zip(found.rows.tolist(), known, strict=True)]


def plants(document: dict[str, Any], number: int, gradient: bool) -> Iterator[tuple[str, list[Event]]]:
    """(kind, damaged events) for the contraction with this number of Kineto's."""
    events: list[Event] = document["traceEvents"]
    at = next(place for place, event in enumerate(events) if _number(event) == number)
    event = events[at]
    yield "dropped", events[:at] + events[at + 1 :]
    yield "doubled as it is", [*events, copy.deepcopy(event)]
    yield "doubled under another number", [*events, _changed(event, {"External id": 10**9})]
    beside = _changed(event, {"External id": 10**9}, ts=event["ts"] + event["dur"] + 0.02, dur=0.002)
    yield "doubled beside itself", [*events, beside]
    for target in _other_phase(events, event, gradient):
        place = {"ts": target["ts"] + target["dur"] - 0.006, "dur": 0.002, "tid": target["tid"]}
        yield f"moved into {target['name']}", [*events[:at], _changed(event, {}, **place), *events[at + 1 :]]
    for operand, shape in enumerate(event["args"]["Input Dims"][: OPERANDS[event["name"].removeprefix("aten::")]]):
        for dimension in range(len(shape)):
            dims = copy.deepcopy(event["args"]["Input Dims"])
            dims[operand][dimension] += 1
            changed = _changed(event, {"Input Dims": dims})
            yield f"argument {operand} one more at {dimension}", [*events[:at], changed, *events[at + 1 :]]


def _number(event: Event) -> int | None:
    host = event.get("cat") in ("cpu_op", "operator") and event.get("ph") == "X"
    return event.get("args", {}).get("External id") if host else None


def _changed(event: Event, args: dict[str, Any], **fields: Any) -> Event:
    return {**event, **fields, "args": {**event["args"], **args}}


def _other_phase(events: list[Event], event: Event, gradient: bool) -> list[Event]:
    """Events of the other side of the step to put this one into: the first, and the last that begins after it."""
    wanted = [one for one in events if one.get("cat") == "cpu_op" and _is_node(one) is not gradient]
    aside = [one for one in wanted if one["name"].startswith("aten::") or _is_node(one)]
    far = [one for one in aside if one["dur"] > 0.02 and not _encloses(one, event)]
    if gradient:
        first_node = min(one["ts"] for one in events if one.get("cat") == "cpu_op" and _is_node(one))
        far = [one for one in far if one["ts"] + one["dur"] < first_node]
    return far[:1] + far[-1:]


def _is_node(event: Event) -> bool:
    return event["name"].endswith("Backward0") and not event["name"].startswith("autograd")


def _encloses(outer: Event, inner: Event) -> bool:
    return bool(outer["ts"] <= inner["ts"] and outer["ts"] + outer["dur"] >= inner["ts"] + inner["dur"])
