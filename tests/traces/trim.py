"""Renews the GPU traces next to this file: one step of a published trace, without what the tests do not need, redacted.

    python -m tests.traces.trim FOLDER

takes the sources named in `SOURCES` from FOLDER (the shared traces). What is left out: the steps before and after,
Python frames, counters. What is kept is untouched: events, times, names, arguments, arrows.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from opanatomy.io.redact import Redaction
from tests.support.paths import TRACES

Event: TypeAlias = "dict[str, Any]"
#: Kept trace -> its source, and the annotation of the step that is kept; `None` keeps all of them.
SOURCES: Final[Mapping[str, tuple[str, str | None]]] = {
    "gpu_a100_alexnet": ("traces/infer_a100_alexnet_cudasync", None),
    "gpu_a100_triton_kernel": ("traces/edge_triton_single_kernel_a100", None),
    "gpu_h100_bert_inference_memory": ("traces/infer_h100_bert_small", None),
    "gpu_mi210_device_only": ("traces/edge_mi210_gpu_only", None),
    "gpu_mi250_training": ("traces/train_mi250_mini", None),
    "gpu_mi300_compiled": ("traces/infer_mi300_torch_compile", None),
    "gpu_mi300_graph": ("traces/infer_vllm_decode_graph", None),
    "gpu_v100_dlrm_rank0of8": ("more_traces/dlrm_v100/rank-0", None),
    "gpu_v100_dlrm_rank1of8": ("more_traces/dlrm_v100/rank-1", None),
    "gpu_v100_resnet_2021": ("traces/train_v100_resnet50_schema2021", "ProfilerStep#6"),
}
#: Categories of events on the device, in today's traces and those of 2021.
_ON_DEVICE: Final = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}
_LEFT_OUT: Final = {"python_function", "gpu_user_annotation", "Trace"}


def trimmed(document: dict[str, Any], step: str | None) -> dict[str, Any]:
    """The trace with the events of one step."""
    events: list[Event] = [event for event in document["traceEvents"] if event.get("cat") not in _LEFT_OUT]
    if step is not None:
        events = list(_of_step(events, step))
    redaction = Redaction({key: value for key, value in document.items() if key != "traceEvents"}, everything=True)
    kept = redaction.events([msgspec.json.encode(event) for event in events])
    return {**redaction.metadata(), "traceEvents": json.loads(b"[" + kept + b"]")}


def _of_step(events: Iterable[Event], step: str) -> Iterable[Event]:
    """The events of the host in the step, and those on the device that it launched."""
    events = list(events)
    (annotation,) = (event for event in events if event.get("name") == step and event.get("ph") == "X")
    begin, end = float(annotation["ts"]), float(annotation["ts"]) + float(annotation["dur"])

    def inside(event: Event) -> bool:
        return begin <= float(event["ts"]) <= end

    launched = {
        event["args"]["correlation"]
        for event in events
        if event.get("cat") not in _ON_DEVICE and "correlation" in event.get("args", {}) and inside(event)
    }
    arrows = _arrows(events, inside)
    for event in events:
        if event.get("ph") == "M":
            yield event
        elif event.get("ph") in ("s", "f", "t"):
            if _arrow(event) in arrows:
                yield event
        elif event.get("cat") in _ON_DEVICE:
            if event["args"].get("correlation") in launched:
                yield event
        elif inside(event):
            yield event


def _arrow(event: Event) -> tuple[str, str]:
    return str(event.get("cat")), str(event.get("id"))


def _arrows(events: Iterable[Event], inside: Callable[[Event], bool]) -> set[tuple[str, str]]:
    """The arrows that begin in the step."""
    return {_arrow(event) for event in events if event.get("ph") == "s" and inside(event)}


def write(source: Path, step: str | None, target: Path) -> None:
    """Write the trimmed trace, the same bytes every time."""
    document = json.loads(gzip.decompress(source.read_bytes()))
    text = json.dumps(trimmed(document, step), separators=(",", ":"))
    target.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def main(folder: Path) -> None:
    """Write every kept trace."""
    for name, (source, step) in SOURCES.items():
        target = TRACES / f"{name}.json.gz"
        write(folder / f"{source}.json.gz", step, target)
        print(f"{target.name}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
