"""See where a training step's time, FLOPs, memory traffic and memory go.

    anatomy = opanatomy.profile(model, inputs)            # forward and backward of any nn.Module
    anatomy = opanatomy.analyze("trace.json.gz")          # any torch.profiler trace, or those of all ranks of a run
    with opanatomy.record("step.json.gz") as recorder:    # your own training loop, with `recorder.step()` in it
        ...
    trainer.add_callback(opanatomy.TrainerCallback())     # the same for transformers' Trainer
    profile(on_trace_ready=opanatomy.trace_handler("runs/"))  # for a loop that already uses torch.profiler.profile
    anatomy = opanatomy.read("report.json")               # a report saved as JSON
    opanatomy.estimate("gpt2-xl", on="H100")              # a step on a device that you do not have
    opanatomy.compare(before, after)                      # what changed, and where the difference comes from

    anatomy                                               # one line; in a notebook the first screen of the report
    anatomy.step, anatomy.operators, anatomy.memory       # records, one per table row: help(opanatomy.Anatomy)
    anatomy.metrics()                                     # the headline numbers as one flat dictionary
    anatomy.to_pandas("operators"), anatomy.to_polars("modules"), anatomy.to_dict(), anatomy.to_json("report.json")
    anatomy.to_html("report.html"), anatomy.chart("roofline")   # the interactive page, a single chart

Times are integers in nanoseconds, sizes are in bytes, and each name includes its unit; `None` means unknown. All errors
that you can fix are subclasses of `OpanatomyError`: `UsageError` (an invalid argument), `TraceError` (a trace that
cannot be read), `ModelError` (a module that cannot be observed or called), `CaptureError` (a step that cannot be run or
recorded; `OutOfMemory` if it does not fit), `EstimateError` (a step that cannot be predicted without running it),
`OutputError` (a file that cannot be written), `GateError` (a check failed, or a `fail_if` condition was true or could
not be checked). `formula` declares the FLOPs and bytes of an operator.

A report contains records of the types `Step`, `StepRow`, `ClassRow`, `OperatorRow`, `KernelRow`, `ModuleRow`, `Memory`,
`Workload`, `Environment`, `Advice` and `Check`. `Cost`, `Signature` and `Tensor` are for your own formulas, `Format`
and `Page` for your own formats. These names are public; all modules inside `opanatomy` are private and may change.
Before a name is removed, it issues a `DeprecationWarning` for one minor version.

The stages of the pipeline:

    capture         a model and a batch -> profiled steps -> one trace file; the later stages import no torch
    trace           the file -> columns of host events, launches, device work, memory events
    attribution     device work -> launch -> operator call -> phase -> module -> step
    classification  the operator class of each distinct name
    cost            the FLOPs and bytes of each distinct signature
    analysis        the work of the steps as one table; steps, idle time, rooflines, ranks, comparisons, advice
    memory          allocations -> blocks, components, curve, theory
    checks          numbers of the report against independent sources
    report          records -> sections and charts; one file per format lays them out

The stages after the capture read only a Kineto Chrome trace; the module `pipeline` runs them in order. Names are loaded
when they are first used: importing `opanatomy` does not import torch.
"""

from __future__ import annotations

from opanatomy.version import __version__

TYPE_CHECKING = False  # `typing` itself takes milliseconds in which an interrupt is a traceback
if TYPE_CHECKING:
    from typing import Any

    from opanatomy.api import analyze, compare, estimate, profile, read, record, snapshot
    from opanatomy.cost.registry import formula
    from opanatomy.errors import (
        CaptureError,
        EstimateError,
        GateError,
        ModelError,
        OpanatomyError,
        OutOfMemory,
        OutputError,
        TraceError,
        UsageError,
    )
    from opanatomy.handler import trace_handler
    from opanatomy.records.anatomy import Advice, Check, Step, StepRow
    from opanatomy.records.memory import Memory
    from opanatomy.records.signature import Cost, Signature, Tensor
    from opanatomy.records.work import ClassRow, KernelRow, ModuleRow, OperatorRow
    from opanatomy.records.workload import Environment, Workload
    from opanatomy.report.section import Format, Page
    from opanatomy.results import Anatomy, Comparison, Techniques
    from opanatomy.trainer import TrainerCallback

__all__ = [
    "analyze", "profile", "estimate", "record", "snapshot", "trace_handler", "read", "compare", "TrainerCallback",
    "Anatomy", "Comparison", "Techniques", "Step", "StepRow", "ClassRow", "OperatorRow", "KernelRow", "ModuleRow",
    "Memory", "Workload", "Environment", "Advice", "Check", "formula", "Cost", "Signature", "Tensor", "Format",
    "Page", "OpanatomyError", "UsageError", "TraceError", "ModelError",
    "CaptureError", "EstimateError", "OutOfMemory", "OutputError", "GateError", "__version__",
]  # fmt: skip

_HOMES = {
    "analyze": "opanatomy.api",
    "profile": "opanatomy.api",
    "estimate": "opanatomy.api",
    "read": "opanatomy.api",
    "compare": "opanatomy.api",
    "record": "opanatomy.api",
    "snapshot": "opanatomy.api",
    "trace_handler": "opanatomy.handler",
    "TrainerCallback": "opanatomy.trainer",
    "formula": "opanatomy.cost",
    **dict.fromkeys(("Cost", "Signature", "Tensor"), "opanatomy.records.signature"),
    **dict.fromkeys(("Format", "Page"), "opanatomy.report.section"),
    **dict.fromkeys(("Step", "StepRow", "Advice", "Check"), "opanatomy.records.anatomy"),
    **dict.fromkeys(("ClassRow", "OperatorRow", "KernelRow", "ModuleRow"), "opanatomy.records.work"),
    **dict.fromkeys(("Workload", "Environment"), "opanatomy.records.workload"),
    "Memory": "opanatomy.records.memory",
    **dict.fromkeys(
        ("OpanatomyError", "UsageError", "TraceError", "ModelError", "CaptureError", "EstimateError", "OutOfMemory",
         "OutputError", "GateError"),
        "opanatomy.errors",
    ),
    "Anatomy": "opanatomy.results",
    "Comparison": "opanatomy.results",
    "Techniques": "opanatomy.results",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'opanatomy' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
