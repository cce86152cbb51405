"""Gather and scatter: only gathered or touched elements and the indices count; a scatter's adds count as FLOPs.

An element may be gathered several times, so at most the entire table is counted as read. Which elements a scatter
touches more than once depends on data, so it counts every index.
"""

from __future__ import annotations

from math import prod

from opanatomy.cost.operands import (
    Shape,
    Unknown,
    axis,
    broadcast,
    flag,
    fresh,
    integer,
    item,
    moved,
    optional,
    read,
    sizes,
)
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Argument, Cost, Signature, Tensor


def _gathered(table: Tensor, elements: int) -> int:
    """Return the bytes of `elements` read from a table."""
    return min(elements, table.stored) * item(table.dtype)


def _dimension(signature: Signature, x: Tensor) -> int:
    """Return the dimension argument at 1; a vector has only one."""
    return 0 if len(x.shape) == 1 else axis(integer(signature.get(1)), len(x.shape))


# -------------------------------------------------------------------------------------------------------------- gather


@formula("aten::embedding")
def embedding(signature: Signature) -> Cost:
    """0 FLOPs; reads one row per index and the indices, writes the rows. Arguments: (table (v, d), indices)."""
    table, index = signature.tensor(0), signature.tensor(1)
    shape = (*index.shape, *table.shape[1:])
    return moved(_gathered(table, prod(shape)) + read(index), fresh(shape, table.dtype))


@formula("aten::index_select")
def index_select(signature: Signature) -> Cost:
    """0 FLOPs; reads the selected slices and the indices, writes the slices. Arguments: (x, dim, indices)."""
    x, index = signature.tensor(0), signature.tensor(2)
    dim = _dimension(signature, x)
    elements = prod(x.shape[:dim]) * prod(x.shape[dim + 1 :]) * index.numel
    return moved(_gathered(x, elements) + read(index), fresh((elements,), x.dtype))


@formula("aten::gather")
def gather(signature: Signature) -> Cost:
    """0 FLOPs; reads one element per index and the indices, writes the elements. Arguments: (x, dim, indices)."""
    x, index = signature.tensor(0), signature.tensor(2)
    return moved(_gathered(x, index.numel) + read(index), fresh(index.shape, x.dtype))


@formula("aten::take")
def take(signature: Signature) -> Cost:
    """0 FLOPs; reads one element per index and the indices, writes the elements. Arguments: (x, indices)."""
    x, index = signature.tensor(0), signature.tensor(1)
    return moved(_gathered(x, index.numel) + read(index), fresh(index.shape, x.dtype))


def indexed(x: Tensor, indices: Argument) -> tuple[int, tuple[Tensor, ...]]:
    """Return how many elements `x[indices]` has, and the index tensors; raise `Unknown` for a mask, which is data."""
    if not isinstance(indices, tuple) or len(indices) > len(x.shape):
        raise Unknown("the indices")
    given = tuple(value for value in indices if isinstance(value, Tensor))
    if not given or not all(value.dtype in ("int64", "int32") for value in given):
        raise Unknown("the indices")
    whole: Shape = tuple(n for n, value in zip(x.shape, indices, strict=False) if value is None)
    rest = x.shape[len(indices) :]
    return prod(broadcast(*(value.shape for value in given))) * prod(whole) * prod(rest), given


@formula("aten::index", "aten::_unsafe_index")
def index(signature: Signature) -> Cost:
    """0 FLOPs; reads the selected elements and the indices, writes the elements. Arguments: (x, indices).

    Boolean masks have no cost.
    """
    x = signature.tensor(0)
    elements, given = indexed(x, signature.get(1))
    return moved(_gathered(x, elements) + read(*given), fresh((elements,), x.dtype))


# ------------------------------------------------------------------------------------------------------------- scatter


def _put(x: Tensor, indices: Argument, values: Tensor) -> tuple[int, tuple[Tensor, ...]]:
    """Return the same as `indexed`; for a boolean mask, count the elements by the values, unless they broadcast."""
    mask = indices[0] if isinstance(indices, tuple) and len(indices) == 1 else None
    if isinstance(mask, Tensor) and mask.dtype == "bool":
        rest = x.shape[len(mask.shape) :]
        if values.shape[1:] == rest and len(values.shape) == 1 + len(rest) and values.shape[0] != 1:
            return values.numel, (mask,)
    return indexed(x, indices)


@formula("aten::index_put_", "aten::_index_put_impl_")
def index_put_(signature: Signature) -> Cost:
    """0 FLOPs, or 1 add per touched element if `accumulate` is true.

    Reads values and indices, writes (or adds to) the touched elements.
    """
    x, values, accumulate = signature.tensor(0), signature.tensor(2), flag(signature.get(3))
    elements, given = _put(x, signature.get(1), values)
    touched = _gathered(x, elements)
    return moved(read(values, *given) + touched * accumulate, touched, flops=elements * accumulate)


@formula("aten::index_put", "aten::_unsafe_index_put")
def index_put(signature: Signature) -> Cost:
    """Same as index_put_, but on a copy: reads and writes the entire tensor."""
    x, values, accumulate = signature.tensor(0), signature.tensor(2), flag(signature.get(3))
    indices = signature.get(1)
    if not isinstance(indices, tuple):
        raise Unknown("the indices")
    flops = _put(x, indices, values)[0] if accumulate else 0
    return moved(read(x, values, indices), fresh(x.shape, x.dtype), flops=flops)


@formula("aten::index_add_")
def index_add_(signature: Signature) -> Cost:
    """1 add per source element; an `alpha` other than 1 adds 1 FLOP. Arguments: (x, dim, indices, source, alpha).

    Reads and writes the touched elements.
    """
    x, given, source = signature.tensor(0), signature.tensor(2), signature.tensor(3)
    touched = _gathered(x, source.numel)
    flops = source.numel * (2 if signature.get(4, 1) != 1 else 1)
    return moved(read(given, source) + touched, touched, flops=flops)


@formula("aten::index_add")
def index_add(signature: Signature) -> Cost:
    """Same as index_add_, but on a copy: reads and writes the entire tensor."""
    x, given, source = signature.tensor(0), signature.tensor(2), signature.tensor(3)
    flops = source.numel * (2 if signature.get(4, 1) != 1 else 1)
    return moved(read(x, given, source), fresh(x.shape, x.dtype), flops=flops)


@formula("aten::index_copy_", "aten::index_fill_")
def index_copy_(signature: Signature) -> Cost:
    """0 FLOPs; reads indices and source, writes the touched elements. Arguments: (x, dim, indices, source or value)."""
    x, given, source = signature.tensor(0), signature.tensor(2), optional(signature, 3)
    dim = _dimension(signature, x)
    slices = prod(x.shape[:dim]) * prod(x.shape[dim + 1 :]) * given.numel
    return moved(read(given, source), _gathered(x, slices))


@formula("aten::index_copy", "aten::index_fill")
def index_copy(signature: Signature) -> Cost:
    """0 FLOPs; same as index_copy_, but on a copy: reads and writes the entire tensor."""
    x, given, source = signature.tensor(0), signature.tensor(2), optional(signature, 3)
    return moved(read(x, given, source), fresh(x.shape, x.dtype))


def _scattered(signature: Signature) -> tuple[Tensor, Tensor, int, int]:
    """Return the target, the indices, the source's bytes (an element an index) and whether a reduction is asked for."""
    x, given, source = signature.tensor(0), signature.tensor(2), optional(signature, 3)
    source_bytes = 0 if source is None else _gathered(source, given.numel)
    # a trace drops the reduction, a string, but shows its place
    reduced = len(signature.arguments) > 4 and not isinstance(signature.arguments[4], Tensor)
    return x, given, source_bytes, int(reduced)


@formula("aten::scatter_")
def scatter_(signature: Signature) -> Cost:
    """0 FLOPs (1 per index with `reduce`); writes one element per index.

    Arguments: (x, dim, indices, source or value).
    """
    x, given, source_bytes, reduced = _scattered(signature)
    touched = _gathered(x, given.numel)
    return moved(read(given) + source_bytes + touched * reduced, touched, flops=given.numel * reduced)


@formula("aten::scatter")
def scatter(signature: Signature) -> Cost:
    """0 FLOPs (1 per index with `reduce`); same as scatter_, but on a copy: reads and writes the entire tensor."""
    x, given, source_bytes, reduced = _scattered(signature)
    return moved(read(x, given) + source_bytes, fresh(x.shape, x.dtype), flops=given.numel * reduced)


@formula("aten::scatter_add_", "aten::scatter_reduce_")
def scatter_add_(signature: Signature) -> Cost:
    """1 FLOP per index; reads and writes one element per index. Arguments: (x, dim, indices, source)."""
    x, given, source_bytes, _ = _scattered(signature)
    touched = _gathered(x, given.numel)
    return moved(read(given) + source_bytes + touched, touched, flops=given.numel)


@formula("aten::scatter_add", "aten::scatter_reduce")
def scatter_add(signature: Signature) -> Cost:
    """1 FLOP per index; same as scatter_add_, but on a copy: reads and writes the entire tensor."""
    x, given, source_bytes, _ = _scattered(signature)
    return moved(read(x, given) + source_bytes, fresh(x.shape, x.dtype), flops=given.numel)


@formula("aten::embedding_dense_backward")
def embedding_backward(signature: Signature) -> Cost:
    """1 add per gradient element; writes the gradient of the entire table. Arguments: (grad, indices, rows, ...)."""
    grad, given, rows = signature.tensor(0), signature.tensor(1), integer(signature.get(2))
    return moved(read(grad, given), fresh((rows, grad.shape[-1]), grad.dtype), flops=grad.numel)


@formula("aten::masked_scatter")
def masked_scatter(signature: Signature) -> Cost:
    """0 FLOPs; reads the mask and one source or x element for each element of the new tensor.

    Arguments: (x, mask, source).
    """
    x, where_true, source = signature.tensor(0), signature.tensor(1), signature.tensor(2)
    written = fresh(broadcast(x.shape, where_true.shape), x.dtype)
    return moved(read(where_true) + min(written, read(x, source)), written)


@formula("aten::masked_scatter_")
def masked_scatter_(signature: Signature) -> Cost:
    """No cost: how many elements the mask replaces depends on data."""
    raise Unknown("how many elements the mask keeps")


@formula("aten::masked_scatter_backward")
def masked_scatter_backward(signature: Signature) -> Cost:
    """0 FLOPs; writes the source's gradient. Arguments: (grad, mask, sizes).

    Reads the mask and as many gradient elements as the source has. How much of the source was used depends on data; all
    of it is counted.
    """
    grad, where_true, shape = signature.tensor(0), signature.tensor(1), sizes(signature.get(2))
    written = fresh(shape, grad.dtype)
    return moved(read(where_true) + min(read(grad), written), written)


@formula("aten::put_")
def put_(signature: Signature) -> Cost:
    """0 FLOPs, or 1 add per source element if `accumulate` is true. Arguments: (x, indices, source, accumulate).

    Writes (or adds to) the touched elements.
    """
    x, index, source = (signature.tensor(index) for index in range(3))
    accumulate = signature.get(3, False) is True
    touched = min(index.numel, x.stored) * item(x.dtype)
    return moved(read(index, source) + accumulate * touched, touched, flops=accumulate * index.numel)


@formula("aten::put")
def put(signature: Signature) -> Cost:
    """Same as put_, but on a copy: reads and writes the entire tensor."""
    x, index, source = (signature.tensor(index) for index in range(3))
    accumulate = signature.get(3, False) is True
    return moved(read(x, index, source), fresh(x.shape, x.dtype), flops=accumulate * index.numel)


@formula("aten::index_reduce")
def index_reduce(signature: Signature) -> Cost:
    """1 FLOP per source element; same as index_reduce_, but on a copy: reads and writes the entire tensor.

    Arguments: (x, dim, indices, source, how).
    """
    x, index, source = signature.tensor(0), signature.tensor(2), signature.tensor(3)
    return moved(read(x, index, source), fresh(x.shape, x.dtype), flops=source.numel)


@formula("aten::index_reduce_")
def index_reduce_(signature: Signature) -> Cost:
    """1 FLOP per source element; reads and writes the touched elements.

    Arguments: (x, dim, indices, source, how).
    """
    x, index, source = signature.tensor(0), signature.tensor(2), signature.tensor(3)
    touched = min(source.numel, x.stored) * item(x.dtype)
    return moved(read(index, source) + touched, touched, flops=source.numel)
