"""The Python entry points: a module or a trace -> `Anatomy`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opanatomy.model import Anatomy, Workload
from opanatomy.pipeline import analyze_trace

if TYPE_CHECKING:
    import torch


def analyze(trace: str | Path) -> Anatomy:
    """The anatomy of a torch.profiler trace (`.json` or `.json.gz`); raises `TraceError` where it cannot be read."""
    return analyze_trace(Path(trace))


def profile(
    module: torch.nn.Module,
    inputs: Any,
    *,
    trace: str | Path | None = None,
    amp: str | None = None,
    optimizer: str | None = None,
    inference: bool = False,
    compile: bool = False,
    steps: int = 1,
    warmup: int | None = None,
) -> Anatomy:
    """The anatomy of one forward and backward pass of `module` on `inputs` (a tensor, a tuple or a dictionary).

    The module runs where its parameters are, in the mode it is in. Its output's `loss` starts the backward; without
    one, every output that requires a gradient does, with a gradient of ones. `trace` keeps the Chrome trace.
    Gradients of the module are overwritten. Raises `CaptureError` and `OutOfMemory`.
    """
    import torch

    from opanatomy.capture.recorder import Options, Subject, record_step

    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    inputs = inputs if isinstance(inputs, dict) else tuple(inputs)
    parameters = list(module.parameters())
    first = next((value for value in [*parameters, *_values(inputs)] if isinstance(value, torch.Tensor)), None)
    device = str(first.device) if first is not None else "cpu"
    workload = Workload(
        model=type(module).__name__, architecture=type(module).__name__, model_source="object",
        parameters=sum(parameter.numel() for parameter in parameters),
        trainable_parameters=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        dtype=str(first.dtype).removeprefix("torch.") if first is not None else None,
        amp=amp, compiled=compile, optimizer=optimizer, inference=inference, steps=steps, warmup=warmup,
    )  # fmt: skip
    options = Options(
        device=device, amp=amp, optimizer=optimizer, inference=inference, compiled=compile, steps=steps,
        warmup=warmup, command="opanatomy.profile(...)",
    )  # fmt: skip
    subject = Subject(module=module, inputs=inputs, workload=workload)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(trace) if trace is not None else Path(folder) / "step.trace.json.gz"
        record_step(subject, options, path)
        return analyze_trace(path)


def _values(inputs: dict[str, Any] | tuple[Any, ...]) -> list[Any]:
    return list(inputs.values() if isinstance(inputs, dict) else inputs)
