"""Batch norm over several devices: the parts of `SyncBatchNorm` around its exchange, and batch norm's statistics."""

from __future__ import annotations

from opanatomy.cost.normalization import statistics_type
from opanatomy.cost.operands import flag, fresh, moved, optional, read
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Cost, Signature


@formula("aten::batch_norm_gather_stats", "aten::batch_norm_gather_stats_with_counts")
def gather_statistics(signature: Signature) -> Cost:
    """9 per mean gathered: those of all devices are weighed and joined; reads and writes the running ones.

    (x, means (devices, c), deviations, running mean, running variance, ...): x gives a data type only.
    """
    means, deviations = signature.tensor(1), signature.tensor(2)
    running = (optional(signature, 3), optional(signature, 4))
    counts = optional(signature, 7)
    written = 2 * fresh((means.shape[-1],), means.dtype) + read(*running)
    return moved(read(means, deviations, *running, counts), written, flops=9 * means.numel)


@formula("aten::batch_norm_backward_reduce")
def reduce_gradients(signature: Signature) -> Cost:
    """4 per element: two sums, x - mean and * grad; (grad, x, mean, deviation, weight, asked, asked, asked)."""
    grad, x, mean, deviation = (signature.tensor(place) for place in range(4))
    weight = optional(signature, 4)
    channels = (x.shape[1],)
    sums = 2 * fresh(channels, mean.dtype) if flag(signature.get(5)) else 0
    kept = weight.dtype if weight else statistics_type(x.dtype)
    asked = flag(signature.get(6)) + flag(signature.get(7))
    return moved(read(grad, x, mean, deviation), sums + asked * fresh(channels, kept), flops=4 * x.numel)


@formula("aten::batch_norm_backward_elemt")
def apply_gradients(signature: Signature) -> Cost:
    """5 per element: grad - mean of it - (x - mean) * c, * scale; (grad, x, mean, deviation, weight, sums, count)."""
    grad, x = signature.tensor(0), signature.tensor(1)
    moved_in = read(*signature.arguments[:8])
    return moved(moved_in, fresh(x.shape, grad.dtype), flops=5 * x.numel)
