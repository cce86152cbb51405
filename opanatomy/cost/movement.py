"""Copies, concatenation and padding: only bytes, no arithmetic; views and allocations move nothing."""

from __future__ import annotations

from math import ceil, prod

from opanatomy.cost.operands import (
    Unknown,
    axis,
    fresh,
    integer,
    integers,
    item,
    moved,
    optional,
    promote,
    read,
    result,
    scalar_type,
    sizes,
    tensors,
)
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Argument, Cost, Signature, Tensor

#: Operators that return the same memory in another shape, allocate without writing, or return no tensor.
NOTHING = (
    # views
    "view", "_unsafe_view", "_reshape_alias", "expand", "expand_as", "t", "transpose", "permute", "slice", "select",
    "unsqueeze", "squeeze", "split", "split_with_sizes", "chunk", "unbind", "narrow", "as_strided", "alias", "detach",
    "diagonal", "unfold", "movedim", "swapaxes", "swapdims", "view_as", "view_as_real", "view_as_complex", "real",
    "imag", "numpy_T", "mT", "adjoint", "lift_fresh", "lift", "resolve_conj", "resolve_neg", "_conj", "_neg_view",
    "unflatten", "flatten", "T", "t_", "transpose_", "squeeze_", "unsqueeze_", "detach_", "as_strided_", "unsafe_split",
    "unsafe_split_with_sizes", "unsafe_chunk", "values", "indices", "_values", "_indices", "tensor_split", "hsplit",
    "broadcast_to", "set_", "set_data", "requires_grad_", "rename",
    # allocations
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_", "resize_as_",
    "_efficientzerotensor",
    # neither
    "_fused_sdp_choice", "_has_compatible_shallow_copy_type", "record_stream", "is_pinned", "_nnpack_available",
    "_use_cudnn_ctc_loss", "_use_cudnn_rnn_flatten_weight",
)  # fmt: skip


@formula(*(f"aten::{name}" for name in NOTHING))
def nothing(signature: Signature) -> Cost:
    """0 FLOPs and 0 bytes: a view, an allocation, or a call that touches no data."""
    return moved(0, 0)


# -------------------------------------------------------------------------------------------------------------- copies


@formula("aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize")
def copy_(signature: Signature) -> Cost:
    """0 FLOPs; reads the source, writes the destination, each in its own data type.

    Arguments: (destination, source).
    """
    target, source = signature.tensor(0), signature.tensor(1)
    return moved(read(source), read(target))


@formula(
    "aten::clone",
    "aten::contiguous",
    "aten::_reshape_copy",
    "aten::view_copy",
    "aten::permute_copy",
    "aten::transpose_copy",
    "aten::t_copy",
    "aten::unsqueeze_copy",
    "aten::squeeze_copy",
    "aten::detach_copy",
    "aten::alias_copy",
    "aten::lift_fresh_copy",
    "aten::roll",
    "aten::flip",
    "aten::pixel_shuffle",
    "aten::pixel_unshuffle",
    "aten::channel_shuffle",
    "aten::native_channel_shuffle",
    "aten::rot90",
    "aten::tril",
    "aten::triu",
    "aten::_pin_memory",
    "aten::pin_memory",
)
def clone(signature: Signature) -> Cost:
    """0 FLOPs; reads the tensor, writes its copy."""
    x = signature.tensor(0)
    return moved(read(x), fresh(x.shape, x.dtype))


@formula("aten::tril_", "aten::triu_")
def triangle_(signature: Signature) -> Cost:
    """0 FLOPs; reads and writes the tensor."""
    x = signature.tensor(0)
    return moved(read(x), read(x))


@formula("aten::_to_copy")
def to_copy(signature: Signature) -> Cost:
    """0 FLOPs; reads the tensor, writes it in the new data type. Arguments: (x, dtype, ...)."""
    x = signature.tensor(0)
    return moved(read(x), fresh(x.shape, scalar_type(signature.get(1)) or x.dtype))


@formula("aten::expand_copy")
def expand_copy(signature: Signature) -> Cost:
    """0 FLOPs; reads the tensor, writes the expanded one. Arguments: (x, size)."""
    x = signature.tensor(0)
    asked = sizes(signature.get(1), len(x.shape))
    kept = (None,) * (len(asked) - len(x.shape)) + x.shape
    shape = tuple(old if new == -1 and old is not None else new for old, new in zip(kept, asked, strict=True))
    return moved(read(x), fresh(shape, x.dtype))


@formula("aten::cat", "aten::concat", "aten::stack", "aten::hstack", "aten::vstack", "aten::_cat")
def cat(signature: Signature) -> Cost:
    """0 FLOPs; reads all tensors, writes their concatenation in the promoted data type."""
    parts = tensors(signature.get(0))
    size = (sum(x.numel for x in parts),)
    return moved(read(parts), result(optional(signature, 2), size, promote(*parts)))


@formula("aten::_chunk_cat")
def chunk_cat(signature: Signature) -> Cost:
    """0 FLOPs; reads all tensors, writes the padded result. Arguments: (tensors, dim, chunks, out).

    The result's size is known only from the `out` tensor.
    """
    return moved(read(tensors(signature.get(0))), read(signature.tensor(3)))


@formula("aten::split_with_sizes_copy", "aten::split_copy", "aten::unbind_copy")
def split_copy(signature: Signature) -> Cost:
    """0 FLOPs; reads the tensor, writes all of it in pieces."""
    x = signature.tensor(0)
    return moved(read(x), fresh(x.shape, x.dtype))


@formula("aten::repeat", "aten::tile")
def repeat(signature: Signature) -> Cost:
    """0 FLOPs; reads the tensor, writes every copy. Arguments: (x, repeats)."""
    x = signature.tensor(0)
    return moved(read(x), fresh((x.numel, *sizes(signature.get(1), len(x.shape))), x.dtype))


@formula("aten::_local_scalar_dense", "aten::item")
def item_read(signature: Signature) -> Cost:
    """0 FLOPs; reads one element (and makes the host wait for it)."""
    return moved(read(signature.tensor(0)), 0)


@formula("aten::constant_pad_nd")
def constant_pad(signature: Signature) -> Cost:
    """0 FLOPs; reads the tensor, except what negative padding cuts off; writes the padded tensor.

    Arguments: (x, pad).
    """
    x, pad = signature.tensor(0), sizes(signature.get(1), 2)
    shape, kept = list(x.shape), list(x.shape)
    if len(pad) % 2 or len(pad) > 2 * len(shape):
        raise Unknown(f"padding {pad} of {x}")
    for step in range(len(pad) // 2):
        # the last dimension comes first
        shape[-1 - step] += pad[2 * step] + pad[2 * step + 1]
        kept[-1 - step] += min(pad[2 * step], 0) + min(pad[2 * step + 1], 0)
    return moved(min(read(x), fresh(kept, x.dtype)), fresh(shape, x.dtype))


@formula(*(f"aten::{kind}_pad{dims}d" for kind in ("reflection", "replication") for dims in (1, 2, 3)))
def edge_pad(signature: Signature) -> Cost:
    """0 FLOPs; reads the tensor, writes the padded one. Arguments: (x, pad)."""
    return constant_pad(Signature(signature.arguments[:2]))


@formula(*(f"aten::{kind}_pad{dims}d_backward" for kind in ("reflection", "replication") for dims in (1, 2, 3)))
def edge_pad_backward(signature: Signature) -> Cost:
    """1 add per element of the gradient; writes the gradient of the input."""
    grad, x = signature.tensor(0), signature.tensor(1)
    return moved(read(grad), fresh(x.shape, x.dtype), flops=grad.numel)


@formula("aten::select_backward", "aten::slice_backward", "aten::diagonal_backward", "aten::unfold_backward")
def view_backward(signature: Signature) -> Cost:
    """0 FLOPs; reads the gradient, writes one of the input's size, which is 0 outside the view.

    Arguments: (grad, input size, ...).
    """
    grad = signature.tensor(0)
    return moved(read(grad), fresh(sizes(signature.get(1)), grad.dtype))


@formula("aten::select_scatter", "aten::slice_scatter", "aten::diagonal_scatter", "aten::as_strided_scatter")
def view_scatter(signature: Signature) -> Cost:
    """0 FLOPs; reads the part and the rest of x, writes a new tensor. Arguments: (x, part, ...)."""
    x, part = signature.tensor(0), signature.tensor(1)
    kept = max(read(x) - fresh(part.shape, x.dtype), 0)
    return moved(kept + read(part), fresh(x.shape, x.dtype))


@formula("aten::im2col")
def im2col(signature: Signature) -> Cost:
    """0 FLOPs; reads the image, writes one column per kernel position.

    Arguments: (x, kernel, dilation, padding, stride).
    """
    x = signature.tensor(0)
    kernel, dilation, padding, stride = (integers(signature.get(index), 2) for index in range(1, 5))
    rows = zip(x.shape[-2:], kernel, dilation, padding, stride, strict=True)
    places = prod((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, d, p, s in rows)
    return moved(read(x), fresh((*x.shape[:-2], prod(kernel), places), x.dtype))


@formula("aten::col2im")
def col2im(signature: Signature) -> Cost:
    """1 add per input element; reads the columns, writes the image. Arguments: (x, output size, kernel, ...)."""
    x, size, kernel = signature.tensor(0), sizes(signature.get(1), 2), sizes(signature.get(2), 2)
    channels = x.shape[-2] // prod(kernel)
    return moved(read(x), fresh((*x.shape[:-2], channels, *size), x.dtype), flops=x.numel)


@formula("aten::repeat_interleave")
def repeat_interleave(signature: Signature) -> Cost:
    """0 FLOPs; reads the tensor, writes it `repeats` times. Arguments: (x, repeats as a number, dim).

    Other forms have no cost, because their size depends on data.
    """
    x, times = signature.tensor(0), integer(signature.get(1))
    dim = signature.get(2)
    if dim is not None:
        axis(integer(dim), len(x.shape))
    return moved(read(x), fresh((x.numel, times), x.dtype))


@formula("aten::diag_embed")
def diag_embed(signature: Signature) -> Cost:
    """0 FLOPs; reads the diagonal, writes the matrices. Arguments: (x, offset, ...)."""
    x = signature.tensor(0)
    side = x.shape[-1] + abs(integer(signature.get(1, 0)))
    return moved(read(x), fresh((*x.shape[:-1], side, side), x.dtype))


@formula("aten::block_diag")
def block_diag(signature: Signature) -> Cost:
    """0 FLOPs; reads all blocks, writes the block-diagonal matrix."""
    parts = tensors(signature.get(0))
    padded = [(1, 1, *x.shape)[-2:] for x in parts]
    shape = (sum(rows for rows, _ in padded), sum(columns for _, columns in padded))
    dtypes = {x.dtype for x in parts}
    if len(dtypes) != 1:
        raise Unknown("the type of the matrix")
    return moved(read(parts), fresh(shape, dtypes.pop()))


# New tensors and fills, random or not: what they write, and no arithmetic.


@formula("aten::fill_")
def fill_(signature: Signature) -> Cost:
    """0 FLOPs; writes the tensor, reads the value if it is a tensor."""
    return moved(read(signature.get(1)), read(signature.tensor(0)))


@formula(
    "aten::zero_",
    "aten::normal_",
    "aten::uniform_",
    "aten::random_",
    "aten::exponential_",
    "aten::log_normal_",
    "aten::cauchy_",
    "aten::geometric_",
)
def overwrite_(signature: Signature) -> Cost:
    """0 FLOPs, even for random numbers; writes the tensor."""
    return moved(0, read(signature.tensor(0)))


@formula("aten::bernoulli_")
def bernoulli_(signature: Signature) -> Cost:
    """0 FLOPs (random draw); writes the tensor, reads the probabilities if they are a tensor."""
    return moved(read(signature.get(1)), read(signature.tensor(0)))


@formula("aten::bernoulli", "aten::poisson")
def bernoulli(signature: Signature) -> Cost:
    """0 FLOPs (random draw); reads the parameters, writes one value for each."""
    x = signature.tensor(0)
    return moved(read(x), fresh(x.shape, x.dtype))


def _new_size(signature: Signature, at: int) -> tuple[int, ...]:
    """Return the size of a new tensor; an empty one only if the trace recorded any constant."""
    size = integers(signature.get(at))
    recorded = any(not isinstance(value, Tensor) and value not in (None, ()) for value in signature.arguments)
    if not size and not recorded:
        raise Unknown("the size")
    return size


def _number_type(value: Argument) -> str:
    if isinstance(value, bool):
        return "bool"
    return "int64" if isinstance(value, int) else "float32"


@formula("aten::zeros", "aten::ones", "aten::rand", "aten::randn")
def new(signature: Signature) -> Cost:
    """0 FLOPs; writes the tensor, in float32 unless another data type is given. Arguments: (size, dtype, ...)."""
    out = signature.arguments[-1]
    if isinstance(out, Tensor):
        return moved(0, fresh(_new_size(signature, 0), out.dtype))
    with_generator = len(signature.arguments) == 6
    dtype = scalar_type(signature.get(2 if with_generator else 1)) or "float32"
    return moved(0, fresh(_new_size(signature, 0), dtype))


@formula("aten::full")
def full(signature: Signature) -> Cost:
    """0 FLOPs; writes the tensor, in the value's data type unless another is given.

    Arguments: (size, value, dtype, ...).
    """
    value = signature.get(1)
    if value is None:
        raise Unknown("the value")
    return moved(0, fresh(_new_size(signature, 0), scalar_type(signature.get(2)) or _number_type(value)))


@formula("aten::zeros_like", "aten::ones_like", "aten::rand_like", "aten::randn_like")
def like(signature: Signature) -> Cost:
    """0 FLOPs; writes a tensor of x's shape, reads nothing. Arguments: (x, dtype, ...)."""
    x = signature.tensor(0)
    return moved(0, fresh(x.shape, scalar_type(signature.get(1)) or x.dtype))


@formula("aten::full_like")
def full_like(signature: Signature) -> Cost:
    """0 FLOPs; writes a tensor of x's shape, reads nothing. Arguments: (x, value, dtype, ...)."""
    x = signature.tensor(0)
    return moved(0, fresh(x.shape, scalar_type(signature.get(2)) or x.dtype))


@formula("aten::randint_like")
def randint_like(signature: Signature) -> Cost:
    """0 FLOPs (random draw); writes a tensor of x's shape. Arguments: (x, [low,] high, dtype, ...)."""
    x = signature.tensor(0)
    at = 3 if len(signature.arguments) == 8 else 2
    return moved(0, fresh(x.shape, scalar_type(signature.get(at)) or x.dtype))


@formula("aten::new_zeros", "aten::new_ones")
def new_like(signature: Signature) -> Cost:
    """0 FLOPs; writes a tensor, reads nothing. Arguments: (x, size, dtype, ...)."""
    dtype = scalar_type(signature.get(2)) or signature.tensor(0).dtype
    return moved(0, fresh(_new_size(signature, 1), dtype))


@formula("aten::new_full")
def new_full(signature: Signature) -> Cost:
    """0 FLOPs; writes a tensor, reads nothing. Arguments: (x, size, value, dtype, ...)."""
    dtype = scalar_type(signature.get(3)) or signature.tensor(0).dtype
    return moved(0, fresh(_new_size(signature, 1), dtype))


@formula("aten::scalar_tensor")
def scalar_tensor(signature: Signature) -> Cost:
    """0 FLOPs; writes one element."""
    return moved(0, fresh((), scalar_type(signature.get(1)) or "float32"))


@formula("aten::arange")
def arange(signature: Signature) -> Cost:
    """0 FLOPs; writes the result.

    Arguments: (end), (start, end) or (start, end, step), then dtype, layout, device, pin_memory or an `out` tensor.
    """
    *numbers, last = signature.arguments
    if isinstance(last, Tensor):
        bounds, dtype = numbers, last.dtype
    else:
        bounds, dtype = list(signature.arguments[:-4]), scalar_type(signature.arguments[-4])
    if not 1 <= len(bounds) <= 3 or not all(isinstance(value, int | float) for value in bounds):
        raise Unknown(f"range {bounds}")
    values = [value for value in bounds if isinstance(value, int | float)]
    start, end, step = (0, values[0], 1) if len(values) == 1 else (*values, 1)[:3]
    if dtype is None:
        dtype = "float32" if any(isinstance(value, float) for value in values) else "int64"
    return moved(0, fresh((max(0, ceil((end - start) / step)),), dtype))


@formula("aten::linspace", "aten::logspace")
def linspace(signature: Signature) -> Cost:
    """0 FLOPs; writes `steps` elements. Arguments: (start, end, steps, ...)."""
    out = signature.get(3)
    if isinstance(out, Tensor):
        return moved(0, fresh((integer(signature.get(2)),), out.dtype))
    at = 4 if len(signature.arguments) == 8 else 3
    return moved(0, fresh((integer(signature.get(2)),), scalar_type(signature.get(at)) or "float32"))


@formula("aten::eye")
def eye(signature: Signature) -> Cost:
    """0 FLOPs; writes the matrix. Arguments: (n, ...) or (n, m, ...)."""
    wide = len(signature.arguments) == 6
    n = integer(signature.get(0))
    m = integer(signature.get(1)) if wide else n
    return moved(0, fresh((n, m), scalar_type(signature.get(2 if wide else 1)) or "float32"))


@formula("aten::randint")
def randint(signature: Signature) -> Cost:
    """0 FLOPs (random draw). Arguments: ([low,] high, size, ...) -> int64 unless another data type is given."""
    at = 1 if isinstance(signature.get(1), tuple) else 2
    dtype = scalar_type(signature.get(at + 1)) or "int64"
    return moved(0, fresh(_new_size(signature, at), dtype))


@formula("aten::randperm")
def randperm(signature: Signature) -> Cost:
    """0 FLOPs (random draw). Arguments: (n, ...) -> int64."""
    return moved(0, fresh((integer(signature.get(0)),), "int64"))


@formula("aten::tril_indices", "aten::triu_indices")
def triangle_indices(signature: Signature) -> Cost:
    """0 FLOPs; writes two int64 indices per element of the triangle. Arguments: (rows, columns, offset).

    Only the full triangle of a square matrix is counted; other forms have no cost.
    """
    rows, columns = integers(signature.get(0))[0], integer(signature.get(1))
    if rows != columns or integer(signature.get(2, 0)) != 0:
        raise Unknown("a part of a rectangle")
    return moved(0, fresh((2, rows * (rows + 1) // 2), "int64"))


@formula("aten::normal")
def normal(signature: Signature) -> Cost:
    """2 FLOPs per element (* standard deviation, + mean); the random draw counts 0.

    Arguments: (mean, deviation). Has a cost only if one of them is a tensor, which shows the size of the result.
    """
    given = [value for value in signature.arguments[:2] if isinstance(value, Tensor)]
    if not given or any(value.shape != given[0].shape for value in given):
        raise Unknown("the size drawn")
    return moved(read(*given), fresh(given[0].shape, given[0].dtype), flops=2 * given[0].numel)


@formula("aten::_standard_gamma", "aten::_sample_dirichlet", "aten::binomial")
def drawn(signature: Signature) -> Cost:
    """0 FLOPs (random draw); reads the distribution's parameters, writes the numbers drawn."""
    x = signature.tensor(0)
    return moved(read(x, optional(signature, 1)), fresh(x.shape, x.dtype))


# Ragged batches: between rows one after another and a padded batch. Rows of the padding are neither read nor kept.


@formula(
    "aten::_jagged_to_padded_dense_forward", "fbgemm::jagged_to_padded_dense", "fbgemm::jagged_to_padded_dense_forward"
)
def to_padded(signature: Signature) -> Cost:
    """0 FLOPs; reads the rows and offsets, writes the padded batch. Arguments: (rows, offsets, length, padding)."""
    values, offsets = signature.tensor(0), signature.get(1)
    # One offset a ragged dimension, the first of the batch.
    longest, given = sizes(signature.get(2)), tensors(offsets)
    if len(given) != len(longest):
        raise Unknown(f"{offsets} and {signature.get(2)}")
    shape = (given[0].numel - 1, *longest, *values.shape[1:])
    bounds = sum(tensor.numel * item(tensor.dtype or "int64") for tensor in given)
    return moved(read(values) + bounds, fresh(shape, values.dtype))


@formula("aten::_padded_dense_to_jagged_forward", "fbgemm::dense_to_jagged_forward")
def from_padded(signature: Signature) -> Cost:
    """0 FLOPs; reads and writes the rows. Has a cost only if their number is an argument; else it depends on data.

    Arguments: (padded, offsets, rows).
    """
    dense, bounds = signature.tensor(0), tensors(signature.get(1))
    rows = integer(signature.get(2))
    moved_rows = fresh((rows, *dense.shape[1 + len(bounds) :]), dense.dtype)
    return moved(moved_rows + sum(tensor.numel * item(tensor.dtype or "int64") for tensor in bounds), moved_rows)


@formula("aten::_nested_from_padded_tensor")
def nested_from_padded(signature: Signature) -> Cost:
    """0 FLOPs; reads and writes the rows.

    Arguments: (padded, offsets, dummy, ragged dimension, minimum length, maximum length, rows).
    """
    dense, offsets, rows = signature.tensor(0), signature.tensor(1), integer(signature.get(6))
    if signature.get(3, 1) != 1:
        raise Unknown("another ragged dimension")
    moved_rows = fresh((rows, *dense.shape[2:]), dense.dtype)
    return moved(moved_rows + read(offsets), moved_rows)


@formula("aten::_transform_bias_rescale_qkv")
def bias_and_scale(signature: Signature) -> Cost:
    """4 FLOPs per element of q: a bias add for each of q, k and v, and the scaling of q.

    Arguments: (qkv, bias, heads).
    """
    x, bias = signature.tensor(0), signature.tensor(1)
    if x.shape[-1] != bias.numel or x.shape[-1] % 3:
        raise Unknown(f"{x} and {bias}")
    return moved(read(x, bias), fresh(x.shape, x.dtype), flops=x.numel + prod(x.shape) // 3)
