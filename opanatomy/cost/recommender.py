"""Pooled lookups: torch's embedding bag, FBGEMM's fused tables, and layout changes around them.

The backward of FBGEMM's lookup (`torch::autograd::CppNode<SplitLookupFunction_...>`) also updates the tables; a trace
shows only its output gradient, not the indices, so it has no cost.
"""

from __future__ import annotations

from math import prod

from opanatomy.cost.operands import Unknown, fresh, integer, item, moved, optional, read
from opanatomy.cost.registry import formula, pattern
from opanatomy.records.signature import Cost, Signature


@formula("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def embedding_bag(signature: Signature) -> Cost:
    """1 add per looked-up element (0 for the maximum), 1 multiply with weights; the mean divides each result element.

    Arguments: (table (v, d), indices, offsets, scale, mode, sparse, weights, include last, padding). Reads one row per
    index, at most the entire table; writes one row per bag. Outputs kept for the backward are not counted.
    """
    table, index, offsets, weights = (*map(signature.tensor, range(3)), optional(signature, 6))
    mode, d = integer(signature.get(4)), table.shape[1]
    bags = index.shape[0] if len(index.shape) == 2 else offsets.numel - bool(signature.get(7))
    elements = index.numel * d
    flops = elements * ((mode != 2) + (weights is not None)) + bags * d * (mode == 1)
    rows = min(elements, table.stored) * item(table.dtype)
    return moved(rows + read(index, offsets, weights), fresh((bags, d), table.dtype), flops=flops)


@formula("aten::_embedding_bag_dense_backward")
def embedding_bag_backward(signature: Signature) -> Cost:
    """1 add per scattered element, 1 multiply for weights or the mean.

    Arguments: (grad, indices, bags, sizes, maxima, rows).
    """
    grad, index = signature.tensor(0), signature.tensor(1)
    rows, mode, weights = integer(signature.get(5)), integer(signature.get(7)), optional(signature, 8)
    d = grad.shape[-1]
    flops = index.numel * d * (1 + (mode == 1) + (weights is not None))
    moved_in = read(*signature.arguments[:5], weights)
    return moved(moved_in, fresh((rows, d), grad.dtype), flops=flops)


@formula("aten::_embedding_bag_backward")
def bag_backward(signature: Signature) -> Cost:
    """Same as _embedding_bag_dense_backward for a dense gradient.

    A sparse gradient has one row per index and takes 1 FLOP per element for the mean or weights, else 0. Arguments:
    (grad, indices, offsets, bags, sizes, maxima, rows, by frequency, mode, sparse, weights, padding).
    """
    grad, index, mode = signature.tensor(0), signature.tensor(1), integer(signature.get(8))
    if signature.get(9) is True:
        weights = optional(signature, 10)
        elements = index.numel * grad.shape[-1]
        flops = elements * ((mode == 1) + (weights is not None))
        parts = read(grad, index, signature.tensor(3), weights)
        return moved(parts, fresh((elements,), grad.dtype), flops=flops)
    dense = (0, 1, 3, 4, 5, 6, 7, 8, 10)
    padded = (*signature.arguments, *(None,) * 12)
    return embedding_bag_backward(Signature(tuple(padded[index] for index in dense)))


@formula("aten::_embedding_bag_per_sample_weights_backward")
def bag_weights_backward(signature: Signature) -> Cost:
    """`2 * d` FLOPs per index for the dot product of its row and its bag's gradient.

    Arguments: (grad, table, indices, ..., bags, mode).
    """
    grad, table, index, bags = (signature.tensor(index) for index in (0, 1, 2, 4))
    d = table.shape[-1]
    rows = min(index.numel * d, table.stored) * item(table.dtype)
    return moved(read(grad, index, bags) + rows, fresh((index.numel,), grad.dtype), flops=2 * index.numel * d)


@formula("aten::embedding_sparse_backward")
def sparse_embedding_backward(signature: Signature) -> Cost:
    """0 FLOPs: the gradient itself becomes the values of a sparse gradient.

    With a padding index there is no cost, because the size depends on data.
    """
    if integer(signature.get(3)) != -1:
        raise Unknown("how many rows are not padding")
    return moved(0, 0)


# -------------------------------------------------------------------------------------------------------------- FBGEMM


@pattern(r"fbgemm::split_embedding_codegen_lookup_\w+_function")
def split_lookup(name: str, signature: Signature) -> Cost:
    """1 FLOP per looked-up element (an add), 2 with weights; writes one row of `max_D` values per bag.

    Has a cost only if all tables have the same width, because how many indices go to which table depends on data.
    Arguments: device weights (1), D_offsets (6), total_D, max_D, indices (11), offsets, pooling, weights (14). Reads
    one row per index, at most the entire tables; writes float32.
    """
    tables, index, offsets = (signature.tensor(index) for index in (1, 11, 12))
    weights = optional(signature, 14)
    count, total, widest = signature.tensor(6).numel - 1, integer(signature.get(7)), integer(signature.get(8))
    if count < 1 or count * widest != total or (offsets.numel - 1) % count:
        raise Unknown("which table an index goes to")
    elements = index.numel * widest
    pooled = prod((offsets.numel - 1, widest))
    # rows that are not on the device are in host memory or a cache
    rows = min(elements, tables.stored or elements) * item(tables.dtype)
    flops = elements * (1 + (weights is not None))
    return moved(rows + read(index, offsets, weights), fresh((pooled,), "float32"), flops=flops)


@formula(
    "fbgemm::permute_pooled_embs_auto_grad",
    "fbgemm::permute_pooled_embs",
    "fbgemm::permute_duplicate_pooled_embs",
    "fbgemm::recat_embedding_grad_output_mixed_D_batch",
    "fbgemm::recat_embedding_grad_output_mixed_D",
    "fbgemm::recat_embedding_grad_output",
)
def permute_pooled(signature: Signature) -> Cost:
    """0 FLOPs; reads the pooled rows and the small index tensors, writes the rows in another order."""
    x = signature.tensor(0)
    return moved(read(*signature.arguments), fresh(x.shape, x.dtype))


@pattern(r"torch::autograd::CppNode<fbgemm_gpu::Permute\w*PooledEmbsFunction\b.*>")
def permute_pooled_backward(name: str, signature: Signature) -> Cost:
    """0 FLOPs; reads the gradient, writes it in the original order."""
    x = signature.tensor(0)
    return moved(read(x), fresh(x.shape, x.dtype))


@formula("fbgemm::bounds_check_indices")
def bounds_check(signature: Signature) -> Cost:
    """0 FLOPs (comparisons only); reads rows, indices and offsets; writes nothing if all are in bounds."""
    return moved(read(*map(signature.tensor, range(3))), 0)


@formula("fbgemm::asynchronous_complete_cumsum")
def complete_cumsum(signature: Signature) -> Cost:
    """1 add per element; writes one more element per row than it reads."""
    x = signature.tensor(0)
    shape = (*x.shape[:-1], x.shape[-1] + 1)
    return moved(read(x), fresh(shape, x.dtype), flops=x.numel)
