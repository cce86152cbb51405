"""The published run that everyone compares with, next to ours: BERT-large, batch 4 x 512, fp32, AdamW, one V100."""

from __future__ import annotations

from typing import Final

from opanatomy.records.memory import Memory, PublishedFigure
from opanatomy.records.optimizers import OPTIMIZERS
from opanatomy.records.workload import Workload

#: huggingface.co/docs/transformers, "Model training anatomy": figures of NVML in MB (10^6), and samples a second.
_CONTEXT: Final = 1343
_WITH_WEIGHTS: Final = 2631
_TRAINING: Final = 14949
_SAMPLES_PER_SECOND: Final = 8.86
_DEVICE: Final = "Tesla V100 16 GB"
_MB: Final = 1e6
#: AdamW with a whole state, however it is run.
_OPTIMIZERS: Final = frozenset(optimizer.name for optimizer in OPTIMIZERS if optimizer.torch_class == "AdamW")


def is_published(workload: Workload) -> bool:
    """Whether the workload is exactly that of the published figures."""
    return (
        (workload.model or "").rsplit("/", 1)[-1] == "bert-large-uncased"
        and not workload.changes
        and workload.micro_batch == workload.batch
        and (workload.batch, workload.sequence_length) == (4, 512)
        and (workload.dtype, workload.amp) == ("float32", None)
        and workload.optimizer in _OPTIMIZERS
        and not (workload.frozen or workload.lora or workload.fused_loss)
        and not (workload.checkpointing or workload.compiled or workload.inference)
    )


def published_run(
    memory: Memory, workload: Workload, samples_per_second: float | None, *, on_cpu: bool
) -> tuple[PublishedFigure, ...]:
    """The published figures next to ours, empty for any other workload; `None` for what this device does not tell.

    The published ones are what NVML saw of the whole device, so their differences are set next to our components.
    """
    if not is_published(workload):
        return ()
    measured = {component.component: component.measured_bytes for component in memory.components}
    context, weights = measured.get("device_context"), measured.get("weights")
    # The allocator's cache is the device's: the CPU has none, and where a device's is not known its sums are not.
    cache = measured.get("allocator_cache", 0 if on_cpu else None)
    held = _sum(memory.peak_bytes, cache)
    rest = None if held is None or weights is None else held - weights
    whole = _sum(held, context)
    return (
        _row("device context and kernels", _CONTEXT, _mb(context)),
        _row("weights", _WITH_WEIGHTS - _CONTEXT, _mb(weights)),
        _row("gradients, optimizer state, activations, buffers, cache", _TRAINING - _WITH_WEIGHTS, _mb(rest)),
        _row("training, all of the device", _TRAINING, _mb(whole)),
        _row("samples per second", _SAMPLES_PER_SECOND, samples_per_second, unit="1/s"),
    )


def _sum(*sizes: int | None) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _mb(size: int | None) -> float | None:
    return None if size is None else size / _MB


def _row(figure: str, published: float, measured: float | None, unit: str = "MB") -> PublishedFigure:
    return PublishedFigure(figure=figure, published=published, measured=measured, unit=unit, published_device=_DEVICE)
