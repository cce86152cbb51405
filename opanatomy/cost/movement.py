"""Copies, concatenation, padding: bytes and no arithmetic; views and allocations: nothing at all."""

from __future__ import annotations

from math import prod

from opanatomy.cost.operands import (
    Unknown,
    axis,
    fresh,
    integer,
    integers,
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
from opanatomy.records.signature import Cost, Signature

#: Operators that return the same memory in another shape, or none at all, or none of it written.
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
    """0: a view or an allocation moves nothing."""
    return moved(0, 0)


# -------------------------------------------------------------------------------------------------------------- copies


@formula("aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize")
def copy_(signature: Signature) -> Cost:
    """0; (destination, source): reads the source, writes the destination, each in its own data type."""
    target, source = signature.tensor(0), signature.tensor(1)
    return moved(read(source), read(target))


@formula(
    "aten::clone", "aten::contiguous", "aten::_reshape_copy", "aten::view_copy", "aten::permute_copy",
    "aten::transpose_copy", "aten::t_copy", "aten::unsqueeze_copy", "aten::squeeze_copy", "aten::detach_copy",
    "aten::alias_copy", "aten::lift_fresh_copy", "aten::roll", "aten::flip", "aten::pixel_shuffle",
    "aten::pixel_unshuffle", "aten::channel_shuffle", "aten::native_channel_shuffle", "aten::rot90", "aten::tril",
    "aten::triu", "aten::_pin_memory", "aten::pin_memory",
)  # fmt: skip
def clone(signature: Signature) -> Cost:
    """0; reads the tensor, writes as many elements."""
    x = signature.tensor(0)
    return moved(read(x), fresh(x.shape, x.dtype))


@formula("aten::tril_", "aten::triu_")
def triangle_(signature: Signature) -> Cost:
    """0; reads and writes the tensor."""
    x = signature.tensor(0)
    return moved(read(x), read(x))


@formula("aten::_to_copy")
def to_copy(signature: Signature) -> Cost:
    """0; (x, dtype, ...): reads the tensor, writes it in the new data type."""
    x = signature.tensor(0)
    return moved(read(x), fresh(x.shape, scalar_type(signature.get(1)) or x.dtype))


@formula("aten::expand_copy")
def expand_copy(signature: Signature) -> Cost:
    """0; (x, size): reads the tensor, writes the larger one."""
    x = signature.tensor(0)
    asked = sizes(signature.get(1), len(x.shape))
    kept = (None,) * (len(asked) - len(x.shape)) + x.shape
    shape = tuple(old if new == -1 and old is not None else new for old, new in zip(kept, asked, strict=True))
    return moved(read(x), fresh(shape, x.dtype))


@formula("aten::cat", "aten::concat", "aten::stack", "aten::hstack", "aten::vstack", "aten::_cat")
def cat(signature: Signature) -> Cost:
    """0; reads all tensors, writes them one after another in the type they promote to."""
    parts = tensors(signature.get(0))
    size = (sum(x.numel for x in parts),)
    return moved(read(parts), result(optional(signature, 2), size, promote(*parts)))


@formula("aten::_chunk_cat")
def chunk_cat(signature: Signature) -> Cost:
    """0; (tensors, dim, chunks, out): reads all tensors, writes the padded result, known by its `out` tensor."""
    return moved(read(tensors(signature.get(0))), read(signature.tensor(3)))


@formula("aten::split_with_sizes_copy", "aten::split_copy", "aten::unbind_copy")
def split_copy(signature: Signature) -> Cost:
    """0; reads the tensor, writes all of it in pieces."""
    x = signature.tensor(0)
    return moved(read(x), fresh(x.shape, x.dtype))


@formula("aten::repeat", "aten::tile")
def repeat(signature: Signature) -> Cost:
    """0; (x, repeats): reads the tensor, writes every repetition."""
    x = signature.tensor(0)
    return moved(read(x), fresh((x.numel, *sizes(signature.get(1), len(x.shape))), x.dtype))


@formula("aten::_local_scalar_dense", "aten::item")
def item_read(signature: Signature) -> Cost:
    """0; reads the one element (and makes the host wait for it)."""
    return moved(read(signature.tensor(0)), 0)


@formula("aten::constant_pad_nd")
def constant_pad(signature: Signature) -> Cost:
    """0; (x, pad): reads the tensor without what a negative padding cuts off, writes the padded one."""
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
    """0; (x, pad): reads the tensor, writes the padded one."""
    return constant_pad(Signature(signature.arguments[:2]))


@formula(*(f"aten::{kind}_pad{dims}d_backward" for kind in ("reflection", "replication") for dims in (1, 2, 3)))
def edge_pad_backward(signature: Signature) -> Cost:
    """1 add per element of the gradient; writes the gradient of the input."""
    grad, x = signature.tensor(0), signature.tensor(1)
    return moved(read(grad), fresh(x.shape, x.dtype), flops=grad.numel)


@formula("aten::select_backward", "aten::slice_backward", "aten::diagonal_backward", "aten::unfold_backward")
def view_backward(signature: Signature) -> Cost:
    """0; (grad, input size, ...): reads the gradient, writes the whole tensor, 0 elsewhere."""
    grad = signature.tensor(0)
    return moved(read(grad), fresh(sizes(signature.get(1)), grad.dtype))


@formula("aten::select_scatter", "aten::slice_scatter", "aten::diagonal_scatter", "aten::as_strided_scatter")
def view_scatter(signature: Signature) -> Cost:
    """0; (x, part, ...): reads the part and what it does not replace, writes a new tensor."""
    x, part = signature.tensor(0), signature.tensor(1)
    kept = max(read(x) - fresh(part.shape, x.dtype), 0)
    return moved(kept + read(part), fresh(x.shape, x.dtype))


@formula("aten::im2col")
def im2col(signature: Signature) -> Cost:
    """0; (x, kernel, dilation, padding, stride): reads the image, writes a column for each place of the kernel."""
    x = signature.tensor(0)
    kernel, dilation, padding, stride = (integers(signature.get(index), 2) for index in range(1, 5))
    rows = zip(x.shape[-2:], kernel, dilation, padding, stride, strict=True)
    places = prod((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, d, p, s in rows)
    return moved(read(x), fresh((*x.shape[:-2], prod(kernel), places), x.dtype))


@formula("aten::col2im")
def col2im(signature: Signature) -> Cost:
    """1 add per input element; (x, output size, kernel, ...): reads the columns, writes the image."""
    x, size, kernel = signature.tensor(0), sizes(signature.get(1), 2), sizes(signature.get(2), 2)
    channels = x.shape[-2] // prod(kernel)
    return moved(read(x), fresh((*x.shape[:-2], channels, *size), x.dtype), flops=x.numel)


@formula("aten::repeat_interleave")
def repeat_interleave(signature: Signature) -> Cost:
    """0; (x, repeats as a number, dim): reads the tensor, writes it `repeats` times; other forms are data."""
    x, times = signature.tensor(0), integer(signature.get(1))
    dim = signature.get(2)
    if dim is not None:
        axis(integer(dim), len(x.shape))
    return moved(read(x), fresh((x.numel, times), x.dtype))


@formula("aten::diag_embed")
def diag_embed(signature: Signature) -> Cost:
    """0; (x, offset, ...): reads the diagonal, writes the matrices."""
    x = signature.tensor(0)
    side = x.shape[-1] + abs(integer(signature.get(1, 0)))
    return moved(read(x), fresh((*x.shape[:-1], side, side), x.dtype))


@formula("aten::block_diag")
def block_diag(signature: Signature) -> Cost:
    """0; reads all blocks, writes one matrix of all their rows and columns."""
    parts = tensors(signature.get(0))
    padded = [(1, 1, *x.shape)[-2:] for x in parts]
    shape = (sum(rows for rows, _ in padded), sum(columns for _, columns in padded))
    dtypes = {x.dtype for x in parts}
    if len(dtypes) != 1:
        raise Unknown("the type of the matrix")
    return moved(read(parts), fresh(shape, dtypes.pop()))
