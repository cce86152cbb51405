"""New tensors and fills, random or not: what they write, and no arithmetic."""

from __future__ import annotations

from math import ceil

from opanatomy.cost.operands import Unknown, fresh, integer, integers, moved, optional, read, scalar_type
from opanatomy.cost.registry import formula
from opanatomy.records.signature import Argument, Cost, Signature, Tensor


@formula("aten::fill_")
def fill_(signature: Signature) -> Cost:
    """0; writes the tensor."""
    return moved(read(signature.get(1)), read(signature.tensor(0)))


@formula(
    "aten::zero_", "aten::normal_", "aten::uniform_", "aten::random_", "aten::exponential_", "aten::log_normal_",
    "aten::cauchy_", "aten::geometric_",
)  # fmt: skip
def overwrite_(signature: Signature) -> Cost:
    """0, random or not; writes the tensor."""
    return moved(0, read(signature.tensor(0)))


@formula("aten::bernoulli_")
def bernoulli_(signature: Signature) -> Cost:
    """0: a random draw; writes the tensor, reads the probabilities where they are one."""
    return moved(read(signature.get(1)), read(signature.tensor(0)))


@formula("aten::bernoulli", "aten::poisson")
def bernoulli(signature: Signature) -> Cost:
    """0: a random draw; reads the probabilities, writes as many elements."""
    x = signature.tensor(0)
    return moved(read(x), fresh(x.shape, x.dtype))


def _new_size(signature: Signature, at: int) -> tuple[int, ...]:
    """The size of a new tensor; an empty one only where the trace recorded any constant at all."""
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
    """0; (size, dtype, ...): writes the tensor; float32 where no data type is asked for."""
    out = signature.arguments[-1]
    if isinstance(out, Tensor):
        return moved(0, fresh(_new_size(signature, 0), out.dtype))
    with_generator = len(signature.arguments) == 6
    dtype = scalar_type(signature.get(2 if with_generator else 1)) or "float32"
    return moved(0, fresh(_new_size(signature, 0), dtype))


@formula("aten::full")
def full(signature: Signature) -> Cost:
    """0; (size, value, dtype, ...): writes the tensor, in the data type of the value where none is asked for."""
    value = signature.get(1)
    if value is None:
        raise Unknown("the value")
    return moved(0, fresh(_new_size(signature, 0), scalar_type(signature.get(2)) or _number_type(value)))


@formula("aten::zeros_like", "aten::ones_like", "aten::rand_like", "aten::randn_like")
def like(signature: Signature) -> Cost:
    """0; (x, dtype, ...): writes a tensor of the same shape, reads nothing."""
    x = signature.tensor(0)
    return moved(0, fresh(x.shape, scalar_type(signature.get(1)) or x.dtype))


@formula("aten::full_like")
def full_like(signature: Signature) -> Cost:
    """0; (x, value, dtype, ...): writes a tensor of the same shape, reads nothing."""
    x = signature.tensor(0)
    return moved(0, fresh(x.shape, scalar_type(signature.get(2)) or x.dtype))


@formula("aten::randint_like")
def randint_like(signature: Signature) -> Cost:
    """0: a random draw; (x, [low,] high, dtype, ...): writes a tensor of the same shape."""
    x = signature.tensor(0)
    at = 3 if len(signature.arguments) == 8 else 2
    return moved(0, fresh(x.shape, scalar_type(signature.get(at)) or x.dtype))


@formula("aten::new_zeros", "aten::new_ones")
def new_like(signature: Signature) -> Cost:
    """0; (x, size, dtype, ...): writes a tensor, reads nothing."""
    dtype = scalar_type(signature.get(2)) or signature.tensor(0).dtype
    return moved(0, fresh(_new_size(signature, 1), dtype))


@formula("aten::new_full")
def new_full(signature: Signature) -> Cost:
    """0; (x, size, value, dtype, ...): writes a tensor, reads nothing."""
    dtype = scalar_type(signature.get(3)) or signature.tensor(0).dtype
    return moved(0, fresh(_new_size(signature, 1), dtype))


@formula("aten::scalar_tensor")
def scalar_tensor(signature: Signature) -> Cost:
    """0; writes one element."""
    return moved(0, fresh((), scalar_type(signature.get(1)) or "float32"))


@formula("aten::arange")
def arange(signature: Signature) -> Cost:
    """0; (end), (start, end) or (start, end, step), then dtype, layout, device, pin_memory or an `out` tensor."""
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
    """0; (start, end, steps, ...): writes `steps` elements."""
    out = signature.get(3)
    if isinstance(out, Tensor):
        return moved(0, fresh((integer(signature.get(2)),), out.dtype))
    at = 4 if len(signature.arguments) == 8 else 3
    return moved(0, fresh((integer(signature.get(2)),), scalar_type(signature.get(at)) or "float32"))


@formula("aten::eye")
def eye(signature: Signature) -> Cost:
    """0; (n, ...) or (n, m, ...): writes the matrix."""
    wide = len(signature.arguments) == 6
    n = integer(signature.get(0))
    m = integer(signature.get(1)) if wide else n
    return moved(0, fresh((n, m), scalar_type(signature.get(2 if wide else 1)) or "float32"))


@formula("aten::randint")
def randint(signature: Signature) -> Cost:
    """0: a random draw; ([low,] high, size, ...) -> int64 unless another data type is asked for."""
    at = 1 if isinstance(signature.get(1), tuple) else 2
    dtype = scalar_type(signature.get(at + 1)) or "int64"
    return moved(0, fresh(_new_size(signature, at), dtype))


@formula("aten::randperm")
def randperm(signature: Signature) -> Cost:
    """0: a random draw; (n, ...) -> int64."""
    return moved(0, fresh((integer(signature.get(0)),), "int64"))


@formula("aten::tril_indices", "aten::triu_indices")
def triangle_indices(signature: Signature) -> Cost:
    """0; (rows, columns, offset): writes two int64 places for each element, as many as 2 * rows * columns at most.

    Only the whole triangle of a square is worked out: another has no cost.
    """
    rows, columns = integers(signature.get(0))[0], integer(signature.get(1))
    if rows != columns or integer(signature.get(2, 0)) != 0:
        raise Unknown("a part of a rectangle")
    return moved(0, fresh((2, rows * (rows + 1) // 2), "int64"))


@formula("aten::normal")
def normal(signature: Signature) -> Cost:
    """2 per element: * deviation, + mean, where one is a tensor; drawing is 0."""
    given = [value for value in signature.arguments[:2] if isinstance(value, Tensor)]
    if not given or any(value.shape != given[0].shape for value in given):
        raise Unknown("the size drawn")
    return moved(read(*given), fresh(given[0].shape, given[0].dtype), flops=2 * given[0].numel)


@formula("aten::_standard_gamma", "aten::_sample_dirichlet", "aten::binomial")
def drawn(signature: Signature) -> Cost:
    """0: random numbers; reads their parameters."""
    x = signature.tensor(0)
    return moved(read(x, optional(signature, 1)), fresh(x.shape, x.dtype))
