"""Build the module of a configuration: on the meta device for inspection, or with weights on the device of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from opanatomy.capture.device.accelerators import same_device
from opanatomy.capture.device.start import device_text
from opanatomy.capture.model.configuration import hub_answers
from opanatomy.capture.model.parts import Stack, embeddings_of, head_of, is_bias, stacks_of
from opanatomy.capture.silence import one_line, quiet_libraries
from opanatomy.errors import CaptureError, ModelError, OutOfMemory, UsageError
from opanatomy.options import CHECKPOINT_EVERY, CHECKPOINT_LAYERS, FREEZE, LORA, RunOptions, as_asked, as_flag
from opanatomy.records.memory import is_out_of_memory

if TYPE_CHECKING:
    import torch

#: Data types that a narrower one can replace.
_WIDE_DTYPES = ("float32", "float64")


def build_on_meta(config: Any, auto_class: str, attention: str | None, trust_remote_code: bool) -> torch.nn.Module:
    """Return the module without memory for its weights, in a few hundredths of a second; `config` stays unchanged."""
    import torch

    def build() -> torch.nn.Module:
        return _from_config(deepcopy(config), auto_class, "float32", attention, trust_remote_code)

    with quiet_libraries():
        try:
            with torch.device("meta"):
                return build()
        except (RuntimeError, NotImplementedError) as error:
            if "meta" not in str(error):
                raise
            # A constructor that reads values of its tensors cannot run there.
            return build()


def build_module(
    config: Any,
    auto_class: str,
    *,
    dtype: str,
    device: str,
    attention: str | None,
    pretrained: str | None,
    trust_remote_code: bool,
) -> torch.nn.Module:
    """Return the module on `device`, its weights made there in `dtype`: random, or those saved at `pretrained`."""
    import torch

    with quiet_libraries():
        try:
            if pretrained is None:
                with torch.device(device):
                    module = _from_config(config, auto_class, dtype, attention, trust_remote_code)
            else:
                from transformers.utils import is_accelerate_available

                options = _options(dtype, attention, trust_remote_code)
                if device != "cpu" and is_accelerate_available():
                    # accelerate reads the weights onto the device one by one: the host need not have room for all.
                    options["device_map"] = {"": device}
                module = _from_pretrained(pretrained, config, auto_class, attention, options)
            # Leave a module that is already there as it is: fake tensors cannot be moved in place.
            tensors = (*module.parameters(), *module.buffers())
            return module if all(same_device(str(tensor.device), device) for tensor in tensors) else module.to(device)
        except Exception as error:  # the readers of weights have errors of their own
            if is_out_of_memory(error):
                smaller = "use fewer --layers" + (" or use --dtype bfloat16" if dtype in _WIDE_DTYPES else "")
                which = "" if device == "cpu" else f" ({device_text(device)})"
                raise OutOfMemory(
                    f"out of memory: the {dtype} weights do not fit in the memory of {device}{which} - {smaller}"
                ) from error
            raise


def _from_config(
    config: Any, auto_class: str, dtype: str, attention: str | None, trust_remote_code: bool
) -> torch.nn.Module:
    import transformers

    options = _options(dtype, attention, trust_remote_code)
    config.dtype = options["dtype"]  # transformers 4 builds the inner model of some classes by the configuration's
    with _attention_errors(config, attention):
        module: torch.nn.Module = getattr(transformers, auto_class).from_config(config, **options)
    return module


def _from_pretrained(
    location: str, config: Any, auto_class: str, attention: str | None, options: dict[str, Any]
) -> torch.nn.Module:
    import transformers

    local = Path(location).is_dir()
    online = not local and hub_answers()
    try:
        with _attention_errors(config, attention):
            module: torch.nn.Module = getattr(transformers, auto_class).from_pretrained(
                location, config=config, local_files_only=not online, **options
            )
    except (MemoryError, ModelError, UsageError):
        raise
    except Exception as error:  # Each format of weights has errors of its own.
        if is_out_of_memory(error):
            raise
        where = "the folder" if local else "the Hub" if online else "the cache (the Hub does not respond)"
        raise ModelError(
            f"cannot load the weights of {location} from {where}: {one_line(error)} - leave --weights out to use"
            " random weights"
        ) from error
    return module


def _options(dtype: str, attention: str | None, trust_remote_code: bool) -> dict[str, Any]:
    import torch

    options: dict[str, Any] = {"dtype": getattr(torch, dtype)}
    if attention is not None:
        options["attn_implementation"] = attention
    if trust_remote_code:
        options["trust_remote_code"] = True
    return options


@contextmanager
def _attention_errors(config: Any, attention: str | None) -> Iterator[None]:
    """Turn transformers' error about an unavailable attention implementation into one line."""
    try:
        yield
    except (ValueError, ImportError) as error:
        about_attention = any(word in str(error).lower() for word in ("attention", "attn", "kernels"))
        if attention is None or not about_attention:
            raise
        raise UsageError(
            f"--attention {attention}: {config.model_type} cannot run it here ({one_line(error, 160)}) -"
            " leave it out, or use sdpa or eager"
        ) from error


def enable_checkpointing(module: torch.nn.Module, kind: str) -> None:
    """Make `module` run its layers again in the backward pass; `kind` is `non-reentrant` or `reentrant`."""
    model: Any = module
    options = {"use_reentrant": kind == "reentrant"}
    name = type(module).__name__
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise UsageError(f"--checkpointing {kind}: {name} does not support activation checkpointing - leave it out")
    try:
        with quiet_libraries():
            if hasattr(model, "activation_checkpointing_enable"):
                model.activation_checkpointing_enable(options)
            else:
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    except ValueError as error:
        raise UsageError(f"--checkpointing {kind}: {name}: {one_line(error)} - leave it out") from error


# `--lora RANK`: low-rank adapters of peft in a model whose own weights are frozen.


def check_peft(rank: int | None) -> None:
    """Refuse adapters if peft is not installed, before anything is built."""
    if rank is not None and find_spec("peft") is None:
        raise CaptureError(f"{as_flag(LORA, rank)} needs peft, which is not installed - pip install 'opanatomy[peft]'")


def add_adapters(module: torch.nn.Module, rank: int | None) -> None:
    """Insert adapters of this rank into `module` in place, keeping the paths of its own modules.

    They go to peft's default layers for this model type, else to all linear layers except the head's. Everything else
    is frozen except a classifier's head, which is new for its task and trained as peft does.
    """
    if rank is None:
        return
    check_peft(rank)
    import torch
    from peft import LoraConfig, inject_adapter_in_model
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as BY_TYPE

    # The weights of an output layer for words are already trained; another head is new.
    model: Any = module
    words = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    head = head_of(module) if words is None else {}
    targets = list(BY_TYPE.get(getattr(getattr(module, "config", None), "model_type", ""), ()))
    if not targets:
        left_out = set(map(id, [*head.values(), *(words.parameters() if words else ())]))
        targets = [
            path
            for path, child in module.named_modules()
            if isinstance(child, torch.nn.Linear) and path and id(child.weight) not in left_out
        ]
    if not targets:
        raise UsageError(f"{as_flag(LORA, rank)}: {type(module).__name__} has no linear layer - leave it out")
    try:
        with quiet_libraries():
            inject_adapter_in_model(LoraConfig(r=rank, target_modules=targets), module)
    except ValueError as error:
        raise UsageError(f"{as_flag(LORA, rank)}: {type(module).__name__}: {one_line(error)} - leave it out") from error
    for parameter in head.values():
        parameter.requires_grad_(True)


# `--freeze`: parts of a model whose weights are not trained.


def freeze(module: torch.nn.Module, parts: str | None) -> None:
    """Make the weights of `parts` (as in `--freeze`) require no gradient; weights frozen before stay frozen.

    Raises `UsageError` naming the parts of the model if it has no such part, or if nothing would be left to train.
    """
    if parts is None:
        return
    for part in parts.split(","):
        name, _, number = part.partition(":")
        for parameter in _FROZEN[name](module, number, as_flag(FREEZE, parts)):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise UsageError(f"{as_flag(FREEZE, parts)}: no weights are left to train - freeze fewer parts")


def _embeddings(module: torch.nn.Module, _number: str, asked: str) -> list[torch.nn.Parameter]:
    embeddings = embeddings_of(module)
    if not embeddings:
        raise UsageError(f"{asked}: {type(module).__name__} has no embeddings - {_what_there_is(module)}")
    return [parameter for part in embeddings.values() for parameter in part.parameters()]


def _layers(module: torch.nn.Module, number: str, asked: str) -> list[torch.nn.Parameter]:
    """Return the weights of the lowest layers, counted across encoder and decoder but in each of several towers."""
    stacks, lowest = [stack.layers for stack in stacks_of(module)], int(number)
    if getattr(getattr(module, "config", None), "is_encoder_decoder", False):
        stacks = [tuple(layer for layers in stacks for layer in layers)]
    fewest = min((len(layers) for layers in stacks), default=0)
    if lowest > fewest:
        raise UsageError(
            f"{asked}: {type(module).__name__} has only {fewest}"
            f" layers{' in its smallest stack' if len(stacks) > 1 else ''} - {_what_there_is(module)}"
        )
    return [parameter for layers in stacks for layer in layers[:lowest] for parameter in layer.parameters()]


def _all_but_biases(module: torch.nn.Module, _number: str, asked: str) -> list[torch.nn.Parameter]:
    named = dict(module.named_parameters())
    if not any(map(is_bias, named)):
        raise UsageError(f"{asked}: {type(module).__name__} has no biases - {_what_there_is(module)}")
    return [parameter for name, parameter in named.items() if not is_bias(name)]


def _all_but_head(module: torch.nn.Module, _number: str, asked: str) -> list[torch.nn.Parameter]:
    head = head_of(module)
    if not head:
        raise UsageError(
            f"{asked}: {type(module).__name__} has no weights outside its base model - {_what_there_is(module)}"
        )
    return [parameter for name, parameter in module.named_parameters() if name not in head]


#: Part -> its weights; called with a model, the number after the colon, and the option for messages.
_FROZEN: Final[dict[str, Callable[[Any, str, str], list[Any]]]] = {
    "embeddings": _embeddings,
    "layers": _layers,
    "all-but-biases": _all_but_biases,
    "all-but-head": _all_but_head,
}


def checkpointing_warnings(module: torch.nn.Module) -> list[str]:
    """Warn if the output of frozen embeddings is made to require a gradient, as transformers does for checkpointing.

    Backward then runs through frozen layers that it could otherwise skip.
    """
    if not getattr(module, "_require_grads_hooks", None):
        return []
    if any(map(_is_trained, embeddings_of(module).values())):
        return []
    lowest = sum(
        len(list(takewhile(lambda layer: not _is_trained(layer), stack.layers))) for stack in stacks_of(module)
    )
    if not lowest:
        return []
    layers = "the lowest layer, in which" if lowest == 1 else f"the {lowest} lowest layers, in which"
    return [
        "checkpointing undoes freezing: to checkpoint, transformers makes the embedding output require a gradient, so"
        f" backward recomputes {layers} nothing is trained, and computes gradients that nothing uses -"
        f" {as_asked('use --checkpoint-every, or ', '')}checkpoint only the layers above in the model's own code"
    ]


def _is_trained(module: torch.nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _what_there_is(module: torch.nn.Module) -> str:
    """Return the parts of the model that can be frozen, in words."""
    stacks = stacks_of(module)
    parts = ["embeddings"] if embeddings_of(module) else []
    lists = " and ".join(f"{len(stack.layers)} {stack.kind} in {stack.path}" for stack in stacks)
    parts += [f"layers:N ({lists})"] if stacks else []
    parts += ["all-but-biases"] if any(is_bias(name) for name, _ in module.named_parameters()) else []
    parts += ["all-but-head"] if head_of(module) else []
    return f"choose from {', '.join(parts)}" if parts else "leave it out"


# `--fused-loss`: head and cross entropy of a language model in one function of torch, in chunks of the tokens.
#
# The head is called as usual and gives logits that are not computed. A model may give them another shape or type on the
# way to its loss; the cross entropy takes the tensors they would be made of. Anything else needs missing values and is
# refused.


def fuse_loss(module: torch.nn.Module) -> None:
    """Make the head of `module` return lazy logits, whose cross entropy is computed in chunks."""
    import torch

    model: Any = module
    if not hasattr(torch.nn.functional, "linear_cross_entropy"):
        raise CaptureError(
            f"--fused-loss needs torch.nn.functional.linear_cross_entropy, which torch {torch.__version__} lacks -"
            " use torch 2.13 or later"
        )
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if not isinstance(head, torch.nn.Linear):
        raise UsageError(
            f"--fused-loss: {type(module).__name__} has no linear head that predicts tokens - leave it out"
        )

    def forward(states: torch.Tensor) -> Any:
        if not head.training:
            return torch.nn.functional.linear(states, head.weight, head.bias)
        return Logits(states, head.weight, head.bias, (*states.shape[:-1], head.out_features))

    replaced: Any = head
    replaced.forward = forward


class Logits:
    """The logits of a head for hidden states: they have a shape and a type, and no values."""

    def __init__(
        self, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: tuple[int, ...]
    ) -> None:
        self.states, self.weight, self.bias = states, weight, bias
        self.shape, self.device, self.dtype = shape, states.device, states.dtype

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the cross entropy of the logits and labels; refuse any other function."""
        import torch

        if function is not torch.nn.functional.cross_entropy:
            raise _refused(getattr(function, "__name__", str(function)))
        return cls._cross_entropy(*args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        import torch

        if hasattr(torch.Tensor, name) and not name.startswith("__"):
            raise _refused(name)
        raise AttributeError(name)

    def size(self, dimension: int) -> int:
        """Return the size of a dimension."""
        return self.shape[dimension]

    def dim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    def float(self) -> Logits:
        """Return the logits unchanged: the function computes with the precision that it needs."""
        return self

    def contiguous(self) -> Logits:
        """Return the logits unchanged."""
        return self

    def to(self, *_: Any, **__: Any) -> Logits:
        """Return the logits unchanged, as with `float`."""
        return self

    def view(self, *shape: int) -> Logits:
        """Return the logits as a matrix with one row per token."""
        if len(shape) != 2 or shape[-1] not in (-1, self.shape[-1]):
            raise _refused(f"view{shape}")
        rows = self.states.reshape(-1, self.states.shape[-1])
        return Logits(rows, self.weight, self.bias, (rows.shape[0], self.shape[-1]))

    reshape = view

    def __getitem__(self, key: Any) -> Logits:
        """Return the logits of some tokens, over the whole vocabulary."""
        indices = key if isinstance(key, tuple) else (key,)
        every = slice(None)
        words = indices[-1] if Ellipsis in indices or len(indices) == self.dim() else every
        if words != every or any(not isinstance(index, slice) and index is not Ellipsis for index in indices):
            raise _refused(f"[{key}]")
        states = self.states[key]
        return Logits(states, self.weight, self.bias, (*states.shape[:-1], self.shape[-1]))

    def _cross_entropy(
        self,
        target: torch.Tensor,
        weight: Any = None,
        size_average: Any = None,
        ignore_index: int = -100,
        reduce: Any = None,
        reduction: str = "mean",
        label_smoothing: Any = 0.0,
    ) -> Any:
        import torch

        if len(self.shape) != 2 or size_average is not None or reduce is not None:
            raise _refused("an unsupported cross_entropy (not over rows of tokens)")
        fused: Callable[..., Any] = torch.nn.functional.linear_cross_entropy
        states, words, bias = self.states, self.weight, self.bias
        kind = states.device.type
        if torch.is_autocast_enabled(kind):
            # A linear layer under autocast casts the same way; the function is on none of autocast's lists.
            dtype = torch.get_autocast_dtype(kind)
            states, words, bias = states.to(dtype), words.to(dtype), None if bias is None else bias.to(dtype)
        return fused(
            states,
            words,
            target,
            linear_bias=bias,
            weight=weight,
            reduction=reduction,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            options=torch.nn.LinearCrossEntropyOptions(),
        )


def _refused(what: str) -> UsageError:
    return UsageError(
        f"--fused-loss: the model computes {what} on its logits, which a fused loss never holds in full - leave it out"
    )


def _no_values(name: str) -> Callable[..., Any]:
    def refused(*_: object) -> Any:
        raise _refused(name)

    return refused


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "neg", "matmul"):
    setattr(Logits, f"__{_name}__", _no_values(_name))


# `--checkpoint-every N`: the layers of a model recomputed in segments of N, keeping only the input of each.
#
# transformers checkpoints layer by layer. Here the model's loop over its layers stays as it is: its call of the first
# layer of a segment runs all its layers under one `torch.utils.checkpoint`, its calls of the others return their input.
# That is the same only if every layer gets the same arguments besides the hidden states and returns nothing else: a
# layer that does not (T5 hands its relative positions from layer to layer) is refused, not computed wrong.


def checkpoint_in_segments(module: torch.nn.Module, kind: str, every: int | None, first: int | None) -> None:
    """Checkpoint every stack of `module` in segments of `every` (1) layers; the last may be shorter.

    With `first` only the first so many layers of each stack.
    """
    stacks, name = stacks_of(module), type(module).__name__
    asked = as_flag(CHECKPOINT_EVERY, every) if first is None else as_flag(CHECKPOINT_LAYERS, first)
    if not stacks:
        raise UsageError(f"{asked}: {name} has no stack of similar layers - leave it out")
    longest = max(len(stack.layers) for stack in stacks)
    if max(every or 1, first or 1) > longest:
        raise UsageError(f"{asked}: {name} has {longest} layers - use 1 to {longest}")
    for stack in stacks:
        again = stack.layers[:first]
        for begin in range(0, len(again), every or 1):
            _Segment(stack=stack, layers=again[begin : begin + (every or 1)], kind=kind, asked=asked).take_over()


@dataclass(kw_only=True, slots=True)
class _Segment:
    """Consecutive layers that are recomputed together."""

    stack: Stack
    layers: tuple[torch.nn.Module, ...]
    kind: str
    asked: str
    #: The layers' own forwards, in their order.
    forwards: list[Callable[..., Any]] = field(default_factory=list)
    #: Whether the segment runs the layers, in forward or in backward; else the model calls them.
    running: bool = False
    #: The first layer's arguments besides the hidden states, and its result, for the model's calls of the others.
    arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    result: Any = None

    def take_over(self) -> None:
        """Replace the forwards of the layers by the segment."""
        for index, layer in enumerate(self.layers):
            self.forwards.append(layer.forward)
            layer.forward = self._forward_of(index)

    def _forward_of(self, index: int) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if self.running or not self.layers[0].training:
                return self.forwards[index](*args, **kwargs)
            if args:
                hidden, others, named = args[0], args[1:], kwargs
            else:
                hidden, others = kwargs["hidden_states"], ()
                named = {key: value for key, value in kwargs.items() if key != "hidden_states"}
            if index == 0:
                self.arguments, self.result = (others, named), self._run(hidden, others, named)
            else:
                self._check(index, hidden, others, named)
            result = self.result
            if index == len(self.layers) - 1:
                self.arguments = self.result = None
            return result

        return forward

    def _run(self, hidden: torch.Tensor, others: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Run all layers under one checkpoint with tensors as its arguments: the reentrant kind ignores others."""
        from torch.utils._pytree import tree_flatten, tree_unflatten
        from torch.utils.checkpoint import checkpoint

        values, form = tree_flatten((others, named))

        def run(states: torch.Tensor, *values: Any) -> Any:
            others, named = tree_unflatten(list(values), form)
            before, self.running = self.running, True
            try:
                output: Any = None
                for layer in self.layers:
                    output = layer(states, *others, **named)
                    states = self._states(output)
                return output
            finally:
                self.running = before

        return checkpoint(run, hidden, *values, use_reentrant=self.kind == "reentrant")

    def _states(self, output: Any) -> Any:
        """Return the hidden states in a layer's output, the only part passed to the next layer."""
        if not isinstance(output, (tuple, list)):
            return output
        if any(value is not None for value in output[1:]):
            raise self._refused("returns values besides the hidden states, which other layers may use")
        return output[0]

    def _check(self, index: int, hidden: Any, others: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Raise an error if a call of a later layer does not match the segment's precomputed result."""
        if self.arguments is None or hidden is not self._states(self.result):
            raise self._refused("does not get the hidden states of the previous layer unchanged")
        first, first_named = self.arguments
        same = len(first) == len(others) and first_named.keys() == named.keys()
        if not same or not all(map(_is_same, first, others)):
            raise self._refused("gets different arguments than the previous layer")
        different = [key for key, value in named.items() if not _is_same(value, first_named[key])]
        if different:
            raise self._refused(f"gets a different {different[0]} than the previous layer")

    def _refused(self, why: str) -> UsageError:
        return UsageError(
            f"{self.asked}: a {self.stack.kind} in {self.stack.path} {why}, so layers cannot be recomputed together"
            " - leave it out and use only --checkpointing"
        )


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two arguments are the same; tensors must be identical or equal views of the same memory."""
    import torch

    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one is other or (
            one.data_ptr() == other.data_ptr()
            and one.shape == other.shape
            and one.stride() == other.stride()
            and one.grad_fn is other.grad_fn
        )
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return one is other or bool(type(one) is type(other) and one == other)


# The options that change a built model: which parts are trained, and which tensors it keeps for backward.


def apply_techniques(module: torch.nn.Module, options: RunOptions) -> None:
    """Change `module` by the options; raises `UsageError` with the reason if this is impossible."""
    if options.fused_loss:
        fuse_loss(module)
    add_adapters(module, options.lora)
    freeze(module, options.freeze)
    if options.checkpointing is not None:
        if options.checkpoint_every is not None or options.checkpoint_layers is not None:
            checkpoint_in_segments(module, options.checkpointing, options.checkpoint_every, options.checkpoint_layers)
        else:
            enable_checkpointing(module, options.checkpointing)
    if options.checkpointing == "reentrant":
        _require_gradients_of_inputs(module)


def _require_gradients_of_inputs(module: torch.nn.Module) -> None:
    """Make the output of frozen embeddings require a gradient: otherwise the reentrant kind gives the layers none.

    transformers does that itself if the inputs are token ids.
    """
    model: Any = module
    embeddings = embeddings_of(module).values()
    if not embeddings or any(map(_is_trained, embeddings)) or getattr(model, "_require_grads_hooks", None):
        return
    if hasattr(model, "enable_input_require_grads"):
        model.enable_input_require_grads()
    if not getattr(model, "_require_grads_hooks", None):
        raise UsageError(
            f"--checkpointing reentrant: {type(module).__name__} is frozen below its layers, so they would get no"
            " gradients - use --checkpointing non-reentrant"
        )
