"""From what the user asked to a module with weights and a batch for it, on the device."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from opanatomy.capture.device import accelerators
from opanatomy.capture.memory.advice import inputs_fit
from opanatomy.capture.model.batches import Shape, choose_shape, make_batch, move, sizes
from opanatomy.capture.model.building import build_module, build_on_meta, enable_checkpointing
from opanatomy.capture.model.catalog import catalog_names
from opanatomy.capture.model.configuration import Configuration, find_configuration, make_config
from opanatomy.capture.model.quiet import one_line
from opanatomy.capture.model.settings import apply_settings, check_fit
from opanatomy.capture.model.tasks import check_task, choose_task
from opanatomy.capture.model.user_function import call_function, is_function
from opanatomy.errors import ModelError, OpanatomyError, UsageError
from opanatomy.records.out_of_memory import is_out_of_memory

if TYPE_CHECKING:
    import torch

__all__ = ["Description", "Prepared", "Request", "catalog_names", "describe", "prepare"]

DTYPES = {
    "float32": "float32", "fp32": "float32", "bfloat16": "bfloat16", "bf16": "bfloat16",
    "float16": "float16", "fp16": "float16", "float64": "float64", "fp64": "float64",
}  # fmt: skip
CHECKPOINTING = ("non-reentrant", "reentrant")
#: Samples in a batch where none are asked for.
BATCH = 8


class Request(Struct, frozen=True, kw_only=True):
    """What the user asked for; `None` leaves the choice to the model.

    `model` is a catalog name, Hub id, local folder, path of a `config.json`, or `package.module:function`. `seq` is in
    tokens, of raw audio in samples. `settings` are pairs of a configuration key (dots reach into parts) and its value.
    """

    model: str
    batch: int | None = None
    seq: int | None = None
    task: str | None = None
    dtype: str = "float32"
    attention: str | None = None
    checkpointing: str | None = None
    layers: int | None = None
    settings: tuple[tuple[str, str], ...] = ()
    hub: bool = False
    pretrained: bool = False
    trust_remote_code: bool = False
    inference: bool = False
    seed: int = 0
    device: str = "cpu"


@dataclass(slots=True, kw_only=True)
class Prepared:
    """A module and its inputs (a dict of keyword arguments or a tuple), both on the device, ready for a step.

    `changes` says what settings changed, such as `layers 24 -> 2`; `attention` is the implementation in force, `None`
    for a model without attention.
    """

    module: torch.nn.Module
    inputs: dict[str, Any] | tuple[Any, ...]
    name: str
    architecture: str
    source: str
    task: str
    batch: int
    sequence_length: int | None
    samples: int
    changes: tuple[str, ...]
    attention: str | None


class Description(Struct, frozen=True, kw_only=True):
    """What `prepare` would make, without its weights; `parameters` is `None` for a function, which is not called."""

    name: str
    source: str
    architecture: str | None = None
    task: str | None = None
    parameters: int | None = None
    sequence_length: int | None = None
    changes: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Plan:
    """A request resolved as far as it goes without weights."""

    name: str
    source: str
    location: str
    config: Any
    task: str
    auto_class: str
    shape: Shape
    architecture: str
    parameters: int
    changes: tuple[str, ...]


def describe(request: Request) -> Description:
    """What `prepare(request)` would make; the same errors, no weights, no forward pass."""
    _check(request)
    if is_function(request.model):
        return Description(name=request.model, source="function")
    plan = _plan(request)
    return Description(
        name=plan.name,
        architecture=plan.architecture,
        source=plan.source,
        task=plan.task,
        parameters=plan.parameters,
        sequence_length=plan.shape.sequence_length,
        changes=plan.changes,
    )


def prepare(request: Request) -> Prepared:
    """The module and the batch of `request`; `ModelError` or `UsageError` says in one line what cannot be."""
    _check(request)
    if is_function(request.model):
        return _prepare_function(request)
    plan = _plan(request)
    _seed(request.seed)
    module = build_module(
        plan.config,
        plan.auto_class,
        dtype=DTYPES[request.dtype],
        device=request.device,
        attention=request.attention,
        pretrained=plan.location if request.pretrained else None,
        trust_remote_code=request.trust_remote_code,
    )
    module.train(not request.inference)
    if request.checkpointing is not None:
        enable_checkpointing(module, request.checkpointing)
    with _readable(plan.name, request), inputs_fit(request.model, plan.shape, DTYPES[request.dtype]):
        inputs = move(make_batch(module, plan.shape, request.seed), request.device)
    _seed(request.seed)
    return Prepared(
        module=module,
        inputs=inputs,
        name=plan.name,
        architecture=type(module).__name__,
        source=plan.source,
        task=plan.task,
        batch=plan.shape.batch,
        sequence_length=plan.shape.sequence_length,
        samples=plan.shape.batch,
        changes=plan.changes,
        attention=_attention(module),
    )


def _check(request: Request) -> None:
    if request.batch is not None and request.batch < 1:
        raise UsageError(f"--batch {request.batch}: a batch has at least one sample - give 1 or more")
    if request.seq is not None and request.seq < 1:
        raise UsageError(f"--seq {request.seq}: a sequence has at least one token - give 1 or more")
    if request.dtype not in DTYPES:
        names = ", ".join(dict.fromkeys(DTYPES.values()))
        raise UsageError(f"--dtype {request.dtype}: no such data type - one of {names}")
    if request.checkpointing not in (None, *CHECKPOINTING):
        raise UsageError(f"--checkpointing {request.checkpointing}: no such kind - one of {', '.join(CHECKPOINTING)}")
    if request.checkpointing and request.inference:
        raise UsageError("--checkpointing has no effect with --inference, which keeps no activations - leave one out")
    check_task(request.task)
    _check_device(request.device)


def _check_device(device: str) -> None:
    import torch

    if accelerators.is_cuda(device) and not torch.cuda.is_available():
        raise UsageError(f"--device {device}: this torch ({torch.__version__}) sees no GPU - give --device cpu")
    accelerators.check_device(device)


def _plan(request: Request) -> _Plan:
    found = find_configuration(request.model, hub=request.hub, trust_remote_code=request.trust_remote_code)
    with _readable(found.name, request):
        return _planned(found, request)


def _planned(found: Configuration, request: Request) -> _Plan:
    trust = request.trust_remote_code
    content = found.content
    dropped: tuple[str, ...] = ()
    if "quantization_config" in content and not request.pretrained:
        content = {key: value for key, value in content.items() if key != "quantization_config"}
        dropped = ("quantization -> none (random weights are not quantized)",)
    config = make_config(found, content, trust_remote_code=trust)
    content, changes = apply_settings(content, config, request.layers, request.settings)
    config = make_config(found, content, trust_remote_code=trust)
    if request.settings:
        check_fit(config)
    _use_cache(config, request.inference)
    task, auto_class = choose_task(config, request.task)
    if task == "sequence-classification" and getattr(config, "pad_token_id", 0) is None:
        config.pad_token_id = 0  # a decoder looks for the last token that is none; ours never are
    module = build_on_meta(config, auto_class, request.attention, trust)
    return _Plan(
        name=found.name,
        source=found.source,
        location=found.location,
        config=config,
        task=task,
        auto_class=auto_class,
        shape=choose_shape(module, task, request.batch or BATCH, request.seq, request.inference),
        architecture=type(module).__name__,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        changes=dropped + changes,
    )


@contextmanager
def _readable(name: str, request: Request) -> Iterator[None]:
    """A configuration can hold anything: whatever it makes fail is said in one line."""
    given = ", ".join(f"{key}={value}" for key, value in request.settings)
    try:
        yield
    except OpanatomyError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        if given:
            raise ModelError(
                f"cannot build {name} with {given}: {one_line(error)} - set values that fit each other"
            ) from error
        raise ModelError(
            f"cannot build {name}: {one_line(error)} - check its config.json, or use a newer transformers"
        ) from error


def _use_cache(config: Any, inference: bool) -> None:
    """Keep no key-value cache in training; inference keeps what the configuration says."""
    parts = [config, *(getattr(config, name, None) for name in ("text_config", "decoder", "encoder"))]
    for part in parts:
        if not inference and hasattr(part, "use_cache"):
            part.use_cache = False


def _attention(module: torch.nn.Module) -> str | None:
    if not any("attention" in type(layer).__name__.lower() for layer in module.modules()):
        return None
    return getattr(getattr(module, "config", None), "_attn_implementation", None)


def _seed(seed: int) -> None:
    """Seed all that weights, dropout and the masks of speech models draw from."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


# ----------------------------------------------------------------------------------------------------------- functions


def _prepare_function(request: Request) -> Prepared:
    """The module and inputs of a function, left as they are but for the device, a data type and inference asked for."""
    import torch

    made_by_function = {
        "--batch": request.batch, "--seq": request.seq, "--layers": request.layers, "--set": request.settings,
        "--task": request.task, "--attention": request.attention, "--weights": request.pretrained, "--hub": request.hub,
    }  # fmt: skip
    for option, value in made_by_function.items():
        if value:
            raise UsageError(f"{option} does not apply to {request.model}, which makes its own model - leave it out")
    _seed(request.seed)
    module, inputs = call_function(request.model)
    dtype = None if request.dtype == "float32" else getattr(torch, DTYPES[request.dtype])
    module = module.to(request.device) if dtype is None else module.to(request.device, dtype)
    if request.inference:
        module.eval()
    if request.checkpointing is not None:
        enable_checkpointing(module, request.checkpointing)
    inputs = move(inputs, request.device, dtype)
    batch, length = sizes(inputs)
    _seed(request.seed)
    return Prepared(
        module=module,
        inputs=inputs,
        name=request.model,
        architecture=type(module).__name__,
        source="function",
        task="function",
        batch=batch,
        sequence_length=length,
        samples=batch,
        changes=() if request.inference else _modes(module),
        attention=_attention(module),
    )


def _modes(module: torch.nn.Module) -> tuple[str, ...]:
    """That modules of a function's model do not train, which is left as it is: a frozen normalization, all of it."""
    modules = list(module.modules())
    still = sum(not one.training for one in modules)
    return (f"{still} of {len(modules)} modules are in evaluation mode, as the function left them",) if still else ()
