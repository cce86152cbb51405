"""The reports whose pages are looked at in a browser, by name: each makes the report anew."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

import torch
from msgspec.structs import replace

import opanatomy
from opanatomy.explanation import read_report
from opanatomy.records.memory import MemoryFailure
from opanatomy.records.reports import Report
from opanatomy.records.taxonomy import Phase
from tests.support.anatomies import nothing
from tests.support.graphs import by_profiler, with_ids
from tests.support.made_steps import many_kernels
from tests.support.made_trace import GEMM, MAP, on_gpu
from tests.support.paths import ROOT, SHARED, SNAPSHOTS, TRACES

COMPARED: Final = SHARED / "more_traces" / "compare"


def _failed() -> Report:
    """A step that ran out of memory before any work was recorded."""
    failure = MemoryFailure(phase=Phase.BACKWARD, message="out of memory", requested_bytes=8 * 10**9)
    anatomy = nothing()
    return replace(anatomy, memory=replace(anatomy.memory, failure=failure))


def _damaged(folder: Path) -> Report:
    """The first half of a trace."""
    text = gzip.decompress((TRACES / "gpu_v100_dlrm_rank0of8.json.gz").read_bytes())
    (folder / "damaged.json").write_bytes(text[: len(text) // 2])
    return opanatomy.analyze(folder / "damaged.json")


def _by_line(folder: Path) -> Report:
    """A recorded loop with the lines of its code, and what lives at its peak by line."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))

    def loss(x: torch.Tensor) -> torch.Tensor:
        return model(x).square().sum()

    with opanatomy.record(folder / "lines.json.gz", lines=True, memory=True, force=True) as recorder:
        for _ in range(14):
            loss(torch.randn(16, 64)).backward()
            recorder.step()
    return recorder.anatomy


def _graphed(folder: Path) -> Report:
    """Graphs whose kernels have modules by torch's annotations."""
    return opanatomy.analyze(by_profiler(*with_ids(), folder))


def _unequal(folder: Path) -> Report:
    """Five steps, one of which is far longer and one of which makes other calls."""
    trace, at = on_gpu(), 0
    for number, kernels in enumerate((3, 3, 9, 3, 2)):
        trace.step(at, 20 * kernels + 10, number)
        for index in range(kernels):
            trace.host("aten::mm", at + 20 * index + 2, 6)
            trace.run((GEMM, MAP)[index % 2], at + 20 * index + 4, at + 20 * index + 8, 12)
        at += 20 * kernels + 30
    return trace.analyze(folder)


#: Those that the project's own files make.
OWN: Final[dict[str, Callable[[Path], Report]]] = {
    "bert_cpu": lambda _: opanatomy.analyze(TRACES / "bert_cpu.json.gz"),
    "two_ranks": lambda _: opanatomy.analyze(sorted(TRACES.glob("gpu_v100_dlrm_rank*"))),
    "memory": lambda _: opanatomy.read(ROOT / "reports" / "bert-memory.json"),
    "techniques": lambda _: read_report(ROOT / "reports" / "techniques" / "bert-large-uncased.json"),
    "schema_2021": lambda _: opanatomy.analyze(TRACES / "gpu_v100_resnet_2021.json.gz"),
    "snapshot": lambda _: opanatomy.analyze(SNAPSHOTS / "training_warm.pickle.gz"),
    "failed": lambda _: _failed(),
    "damaged": _damaged,
    "lines": _by_line,
    "graphed": _graphed,
    "unequal": _unequal,
    "many_kernels": lambda folder: many_kernels().analyze(folder),
}
#: Those of shared traces.
OTHERS: Final[dict[str, Callable[[Path], Report]]] = {
    "compiled_gpt": lambda _: opanatomy.analyze(COMPARED / "train_h100_compile_gpt_rank0of8_after.json.gz"),
    "vllm_graph": lambda _: opanatomy.analyze(SHARED / "traces" / "infer_vllm_decode_graph.json.gz"),
    "dlrm": lambda _: opanatomy.analyze(SHARED / "more_traces" / "dlrm_v100"),
    "mi300": lambda _: opanatomy.analyze(SHARED / "traces" / "train_mi300_resnet18.json.gz"),
    "snapshot_512": lambda _: opanatomy.analyze(SHARED / "snapshots" / "medium_512_training.pickle.gz"),
    "compare_snapshots": lambda _: opanatomy.compare(
        *(str(SHARED / "snapshots" / f"medium_{length}_training.pickle.gz") for length in (128, 512))
    ),
    "compare_gpt": lambda _: opanatomy.compare(
        *(COMPARED / f"train_h100_compile_gpt_rank0of8_{side}.json.gz" for side in ("before", "after"))
    ),
    "compare_v100": lambda _: opanatomy.compare(
        COMPARED / "train_v100_a2a_plain", COMPARED / "train_v100_a2a_quantized"
    ),
}
#: Those of continuous integration.
FEW: Final = ("bert_cpu", "two_ranks", "memory")


@cache
def report_of(name: str, folder: Path) -> Report:
    """The report of this name."""
    return {**OWN, **OTHERS}[name](folder)
