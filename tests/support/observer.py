"""A dispatch-mode observer: every operator below autograd with its signature and the bytes of its real tensors.

It knows no formula. It looks at the tensors that went in and came out: an argument that was passed twice is read once,
a dimension of stride 0 counts once, what is written in place or returned in new memory is written. Where an operator
moves less than whole tensors, `UNREAD` and `PARTS` say which argument, and the count comes from the real data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from msgspec import Struct
from torch.utils._python_dispatch import TorchDispatchMode

from opanatomy.records.signature import Argument, Cost, Signature, Tensor

Named: TypeAlias = Mapping[str, Any]

_FILLS = (
    "fill_", "zero_", "_foreach_zero_", "bernoulli_", "normal_", "uniform_", "random_", "exponential_", "log_normal_",
    "cauchy_", "geometric_", "copy_", "_foreach_copy_",
)  # fmt: skip
_LIKE = (
    "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "rand_like", "randn_like",
    "randint_like", "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "avg_pool2d_backward",
    "avg_pool3d_backward", "adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward",
    "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "nll_loss_backward",
    "nll_loss2d_backward", "reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward",
    "replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward",
)  # fmt: skip

#: Operator -> the argument that is not read: a destination that is overwritten, or one that gives shape and type only.
UNREAD = {f"aten::{name}": "self" for name in (*_FILLS, *_LIKE)}

#: Operators without a cost, and why: the data decide how large the result is.
BY_VALUES = {
    **dict.fromkeys(
        ("aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_consecutive", "aten::unique_dim"),
        "how large the result is depends on the values",
    ),
    "aten::_ctc_loss": "the longest target is data; a trace has the inner call",
    "aten::repeat_interleave": "the sum of the repeats is data",
}
#: And those of which only a boolean mask leaves the size open: how many elements it keeps.
BY_MASK = ("aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_")
#: oneDNN's workspace is not counted: its size is the library's own.
WITH_WORKSPACE = ("aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward")


def depends_on_values(operator: str, signature: str) -> bool:
    """Whether no shape tells what a call costs."""
    return operator in BY_VALUES or (operator in BY_MASK and "bool[" in signature)


class Call(Struct, frozen=True):
    """One operator call: `read_bytes` and `written_bytes` are those of its tensors, 0 for views and allocations.

    `repeated_bytes` are those of a tensor that was passed a second time (x * x, keys as values): no signature shows it.
    """

    operator: str
    signature: Signature
    read_bytes: int
    written_bytes: int
    repeated_bytes: int = 0

    def equals(self, cost: Cost | None) -> bool:
        """Whether a cost has the bytes seen."""
        return cost is not None and (cost.read_bytes, cost.written_bytes) == (self.read_bytes, self.written_bytes)

    def equals_as_signed(self, cost: Cost) -> bool:
        """Whether a cost has the bytes of tensors that are all different, as the signature has them."""
        return (cost.read_bytes, cost.written_bytes) == (self.read_bytes + self.repeated_bytes, self.written_bytes)

    def __str__(self) -> str:
        return f"{self.operator}({self.signature}) reads {self.read_bytes} writes {self.written_bytes}"


class Observer(TorchDispatchMode):
    """Collects the `Call` of every operator that runs inside the `with`."""

    def __init__(self) -> None:
        """An observer that has seen nothing."""
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operator and notes it."""
        kwargs = kwargs or {}
        arguments = list(_arguments(func, args, kwargs))
        name = func._schema.name
        signature = Signature(tuple(convert(value) for _, value in arguments))
        inputs = [tensor for _, value in arguments for tensor in tensors(value)]
        named = {schema.name: value for schema, value in arguments}
        before = _run_before(name, named)
        unread = UNREAD.get(name)
        read = [value for schema, value in arguments if not schema.is_out and schema.name != unread]
        whole = distinct_bytes(read)
        repeated = sum(map(stored_bytes, tensors(read))) - whole
        output = func(*args, **kwargs)
        written = [value for schema, value in arguments if schema.alias_info is not None and schema.alias_info.is_write]
        held = {t.untyped_storage()._cdata for t in inputs}
        fresh = [t for t in tensors(output) if t.untyped_storage()._cdata not in held]
        if _moves_nothing(name, fresh, written, output):
            self.calls.append(Call(name, signature, 0, 0))
            return output
        moved = Moved(read=whole, written=distinct_bytes(written) + sum(map(stored_bytes, fresh)))
        if name in PARTS:
            moved = PARTS[name](named, output, moved, before)
        self.calls.append(Call(name, signature, moved.read, moved.written, repeated))
        return output


#: In-place forms that change the shape and move nothing.
_RESHAPED = tuple(
    f"aten::{name}_"
    for name in ("as_strided", "t", "transpose", "squeeze", "unsqueeze", "detach", "resize", "set", "swapdims")
)


def _moves_nothing(name: str, fresh: list[torch.Tensor], written: list[Any], output: Any) -> bool:
    """A view, which returns the memory it got, or an allocation, which writes none."""
    view = not fresh and not written and bool(tensors(output))
    return view or name in _RESHAPED or name.startswith(("aten::empty", "aten::new_empty", "aten::detach"))


# -------------------------------------------------------------------------------------------- parts of tensors


class Moved(Struct, frozen=True):
    """Bytes of one call."""

    read: int
    written: int


def _gathers(argument: str) -> Callable[[Named, Any, Moved, int], Moved]:
    """As many elements of `argument` are read as come out, the whole of it at most."""

    def rule(named: Named, output: Any, moved: Moved, _: int) -> Moved:
        table = named[argument]
        chosen = min(output.numel() * table.element_size(), stored_bytes(table))
        return Moved(moved.read - stored_bytes(table) + chosen, moved.written)

    return rule


def _run_before(name: str, named: Named) -> int:
    """Elements of `self` that an in-place scatter touches, counted with the indices before they may change."""
    if name == "aten::index_put_":
        return int(torch.empty(named["self"].shape, device="meta").numel() and _chosen(named["self"], named["indices"]))
    return 0


def _chosen(x: torch.Tensor, indices: list[torch.Tensor | None]) -> int:
    """How many elements `x[indices]` has."""
    places = tuple(slice(None) if index is None else index for index in indices)
    return torch.empty(1).expand(x.shape)[places].numel()


def _puts(named: Named, _: Any, moved: Moved, count: int) -> Moved:
    """Touches as many elements as the indices choose, and reads them where it accumulates."""
    x = named["self"]
    touched = min(count * x.element_size(), stored_bytes(x))
    return Moved(moved.read - stored_bytes(x) + touched * bool(named["accumulate"]), touched)


def _touches(count: Callable[[Named], int], accumulates: bool) -> Callable[[Named, Any, Moved, int], Moved]:
    """Touches `count` elements of `self`, and reads them where it accumulates; a source gives as many."""

    def rule(named: Named, _: Any, moved: Moved, __: int) -> Moved:
        x = named["self"]
        touched = min(count(named) * x.element_size(), stored_bytes(x))
        read = moved.read - stored_bytes(x) + touched * (accumulates or named.get("reduce") is not None)
        source = named.get("src")
        if isinstance(source, torch.Tensor):
            given = min(named["index"].numel() * source.element_size(), stored_bytes(source))
            read += given - stored_bytes(source)
        return Moved(read, touched)

    return rule


def _scatters(named: Named, _: Any, moved: Moved, __: int) -> Moved:
    """Into a copy: as many elements of the source as there are indices."""
    source = named.get("src")
    if not isinstance(source, torch.Tensor):
        return moved
    given = min(named["index"].numel() * source.element_size(), stored_bytes(source))
    return Moved(moved.read + given - stored_bytes(source), moved.written)


def _part_put(name: str) -> Callable[[Named, Any, Moved, int], Moved]:
    """Into a copy: what the part takes the place of is not read, counted by a part of ones in zeros."""
    view = getattr(torch, name)

    def rule(named: Named, _: Any, moved: Moved, __: int) -> Moved:
        x, arguments = named["self"], {key: value for key, value in named.items() if key not in ("self", "src")}
        taken = view(torch.zeros(x.shape), torch.ones(named["src"].shape), **arguments).count_nonzero()
        return Moved(moved.read - int(taken) * x.element_size(), moved.written)

    return rule


def _masked_puts(named: Named, output: Any, moved: Moved, _: int) -> Moved:
    """Each element of the result is one of `self` where the mask is off, of the source in order where it is on."""
    mask = named["mask"].expand(output.shape)
    off, on = int((~mask).sum()), int(mask.sum())
    return Moved(stored_bytes(named["mask"]) + off * output.element_size() + on * output.element_size(), moved.written)


def _mask_taken(named: Named, _: Any, moved: Moved, __: int) -> Moved:
    """Only where the mask is on."""
    grad, mask = named["grad_output"], named["mask"]
    on = int(mask.expand(grad.shape).sum())
    return Moved(moved.read - stored_bytes(grad) + on * grad.element_size(), moved.written)


def _uncut(named: Named, _: Any, moved: Moved, __: int) -> Moved:
    """Without what a negative padding cuts off."""
    x, cut = named["self"], [min(amount, 0) for amount in named["pad"]]
    kept = torch.nn.functional.pad(torch.empty(x.shape), cut).numel()
    return Moved(moved.read - stored_bytes(x) + kept * x.element_size(), moved.written)


def _slices(named: Named) -> int:
    x, dim = named["self"], named["dim"]
    return named["index"].numel() * (x.numel() // x.shape[dim] if x.dim() else 1)


def _target_log_probabilities(named: Named, _: Any, moved: Moved, __: int) -> Moved:
    """One log-probability a target."""
    x, target = named["self"], named["target"]
    return Moved(moved.read - stored_bytes(x) + target.numel() * x.element_size(), moved.written)


def _asked_gradients(named: Named, _: Any, moved: Moved, __: int) -> Moved:
    """The weight is read for the input's gradient, the input for the weight's."""
    for_input, for_weight, _bias = named["output_mask"]
    unread = stored_bytes(named["weight"]) * (not for_input) + stored_bytes(named["input"]) * (not for_weight)
    return Moved(moved.read - unread, moved.written)


def _without_added(named: Named, _: Any, moved: Moved, __: int) -> Moved:
    """With `beta` 0 the added tensor is ignored."""
    return Moved(moved.read - stored_bytes(named["self"]) * (named["beta"] == 0), moved.written)


def _running_statistics(named: Named, _: Any, moved: Moved, __: int) -> Moved:
    """Training updates the running statistics in place, which the schema does not say."""
    kept = [named["running_mean"], named["running_var"]]
    return Moved(moved.read, moved.written + distinct_bytes(kept) * bool(named["training"]))


def _scaled_gradients(named: Named, _: Any, moved: Moved, __: int) -> Moved:
    """Gradients are written only where they are unscaled."""
    return Moved(moved.read, moved.written - distinct_bytes([named["grads"]]) * (named["grad_scale"] is None))


def _first_momentum(named: Named, output: Any, moved: Moved, __: int) -> Moved:
    """The first step fills the momentum buffers without reading them."""
    moved = _scaled_gradients(named, output, moved, 0)
    return Moved(moved.read - distinct_bytes([named["momentum_buffer_list"]]) * named["is_first_step"], moved.written)


#: Operator -> what it moves of tensors that it does not read or write whole: (arguments, result, whole bytes, count).
PARTS: dict[str, Callable[[Named, Any, Moved, int], Moved]] = {
    "aten::embedding": _gathers("weight"),
    **dict.fromkeys(
        ("aten::index", "aten::_unsafe_index", "aten::index_select", "aten::gather", "aten::take"), _gathers("self")
    ),
    "aten::index_put_": _puts,
    "aten::index_add_": _touches(lambda named: named["source"].numel(), True),
    "aten::index_copy_": _touches(lambda named: named["source"].numel(), False),
    "aten::index_fill_": _touches(_slices, False),
    "aten::scatter_": _touches(lambda named: named["index"].numel(), False),
    "aten::scatter_add_": _touches(lambda named: named["index"].numel(), True),
    "aten::scatter_reduce_": _touches(lambda named: named["index"].numel(), True),
    **dict.fromkeys(("aten::scatter", "aten::scatter_add", "aten::scatter_reduce"), _scatters),
    "aten::select_scatter": _part_put("select_scatter"),
    "aten::slice_scatter": _part_put("slice_scatter"),
    "aten::masked_scatter": _masked_puts,
    "aten::masked_scatter_backward": _mask_taken,
    "aten::constant_pad_nd": _uncut,
    **dict.fromkeys(("aten::upsample_nearest1d", "aten::upsample_nearest2d"), _gathers("self")),
    "aten::nll_loss_forward": _target_log_probabilities,
    "aten::nll_loss2d_forward": _target_log_probabilities,
    "aten::convolution_backward": _asked_gradients,
    "aten::baddbmm": _without_added,
    "aten::addmm": _without_added,
    "aten::native_batch_norm": _running_statistics,
    "aten::_fused_adamw_": _scaled_gradients,
    "aten::_fused_adam_": _scaled_gradients,
    "aten::_fused_sgd_": _first_momentum,
}


# ------------------------------------------------------------------------------------------------------- values


def _arguments(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """Schema arguments with their values, defaults filled in."""
    for index, schema in enumerate(func._schema.arguments):
        if index < len(args):
            yield schema, args[index]
        elif schema.name in kwargs:
            yield schema, kwargs[schema.name]
        else:
            yield schema, schema.default_value if schema.has_default_value() else None


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of a value, those in lists included."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for item in value for t in tensors(item)] if isinstance(value, list | tuple) else []


def stored_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the distinct elements of a tensor: a dimension of stride 0 counts once."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride else min(size, 1)
    return count * tensor.element_size()


def distinct_bytes(values: Iterable[Any]) -> int:
    """Bytes of all tensors among `values`, the same memory in the same shape once."""
    found = {}
    for tensor in tensors(list(values)):
        key = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        found[key] = stored_bytes(tensor)
    return sum(found.values())


def convert(value: Any) -> Argument:
    """A value as `Signature` holds it."""
    if isinstance(value, torch.Tensor):
        return Tensor(tuple(value.shape), str(value.dtype).removeprefix("torch."), tuple(value.stride()))
    if isinstance(value, list | tuple):
        return tuple(convert(item) for item in value)
    if isinstance(value, torch.dtype):
        return str(value)
    return value if isinstance(value, bool | int | float | str) else None


# ------------------------------------------------------------------------------------------------------- the check


@dataclass(slots=True)
class Tally:
    """How many calls have the bytes seen, and the names of those that have not."""

    calls: int = 0
    equal: int = 0
    #: Calls with one tensor passed twice that are equal but for its second reading, and calls that values decide.
    twice: int = 0
    by_values: int = 0
    #: Operators whose cost has other bytes, with a call of each; and those without a cost.
    other: Counter[str] = field(default_factory=Counter)
    without: Counter[str] = field(default_factory=Counter)
    samples: dict[str, str] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Calls that are equal, of all."""
        return self.equal / self.calls if self.calls else 1.0

    def __iadd__(self, more: Tally) -> Tally:
        self.calls += more.calls
        self.equal += more.equal
        self.twice += more.twice
        self.by_values += more.by_values
        self.other += more.other
        self.without += more.without
        self.samples = more.samples | self.samples
        return self


def compare(calls: Iterable[Call], cost: Callable[[str, Signature], Cost | None]) -> Tally:
    """The bytes of each call next to those of its cost."""
    tally = Tally()
    for call in calls:
        if call.operator.startswith(("profiler::", "prim::")):
            continue
        predicted = cost(call.operator, call.signature)
        tally.calls += 1
        if call.equals(predicted):
            tally.equal += 1
        elif predicted is None and depends_on_values(call.operator, str(call.signature)):
            tally.by_values += 1
        elif predicted is not None and call.equals_as_signed(predicted):
            tally.twice += 1
        elif predicted is None or call.operator not in WITH_WORKSPACE:
            (tally.without if predicted is None else tally.other)[call.operator] += 1
            tally.samples.setdefault(call.operator, f"{call}; cost {predicted}")
    return tally
