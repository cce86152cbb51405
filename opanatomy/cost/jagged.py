"""Ragged batches: between rows one after another and a padded batch. Rows of the padding are neither read nor kept."""

from __future__ import annotations

from math import prod

from opanatomy.cost.operands import Unknown, fresh, integer, item, moved, read, sizes, tensors
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Argument, Cost, Signature, Tensor


def _padded(values: Tensor, offsets: Argument, lengths: Argument) -> tuple[int, ...]:
    """The shape of the padded batch: one offset a ragged dimension, the first of the batch."""
    longest, given = sizes(lengths), tensors(offsets)
    if len(given) != len(longest):
        raise Unknown(f"{offsets} and {lengths}")
    return (given[0].numel - 1, *longest, *values.shape[1:])


@formula("aten::_jagged_to_padded_dense_forward", "fbgemm::jagged_to_padded_dense",
         "fbgemm::jagged_to_padded_dense_forward")  # fmt: skip
def to_padded(signature: Signature) -> Cost:
    """0; (rows, offsets, longest, padding): reads the rows and offsets, writes the padded batch."""
    values, offsets = signature.tensor(0), signature.get(1)
    shape = _padded(values, offsets, signature.get(2))
    bounds = sum(tensor.numel * item(tensor.dtype or "int64") for tensor in tensors(offsets))
    return moved(read(values) + bounds, fresh(shape, values.dtype))


@formula("aten::_padded_dense_to_jagged_forward", "fbgemm::dense_to_jagged_forward")
def from_padded(signature: Signature) -> Cost:
    """0; (padded, offsets, rows): reads and writes the rows; without their number it is data."""
    dense, bounds = signature.tensor(0), tensors(signature.get(1))
    rows = integer(signature.get(2))
    moved_rows = fresh((rows, *dense.shape[1 + len(bounds) :]), dense.dtype)
    return moved(moved_rows + sum(tensor.numel * item(tensor.dtype or "int64") for tensor in bounds), moved_rows)


@formula("aten::_nested_from_padded_tensor")
def nested_from_padded(signature: Signature) -> Cost:
    """0; (padded, offsets, dummy, ragged dimension, shortest, longest, rows): reads and writes the rows."""
    dense, offsets, rows = signature.tensor(0), signature.tensor(1), integer(signature.get(6))
    if signature.get(3, 1) != 1:
        raise Unknown("another ragged dimension")
    moved_rows = fresh((rows, *dense.shape[2:]), dense.dtype)
    return moved(moved_rows + read(offsets), moved_rows)


@formula("aten::_transform_bias_rescale_qkv")
def bias_and_scale(signature: Signature) -> Cost:
    """4 per element of one of three: the bias of query, key and value, the scale of the query; (qkv, bias, heads)."""
    x, bias = signature.tensor(0), signature.tensor(1)
    if x.shape[-1] != bias.numel or x.shape[-1] % 3:
        raise Unknown(f"{x} and {bias}")
    return moved(read(x, bias), fresh(x.shape, x.dtype), flops=x.numel + prod(x.shape) // 3)
