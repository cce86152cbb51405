"""Turn the options of a run into a module with weights and a batch for it, on the device."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from opanatomy.capture.batches import (
    Shape,
    check_divides,
    choose_shape,
    input_texts,
    make_batch,
    move,
    sizes,
    tensors_of,
)
from opanatomy.capture.model.building import apply_techniques, build_module, build_on_meta
from opanatomy.capture.model.configuration import (
    Configuration,
    apply_settings,
    check_fit,
    choose_task,
    find_configuration,
    make_config,
)
from opanatomy.capture.model.parts import check_generates, stacks_of, trained_tables, windows_of
from opanatomy.capture.model.texts import TextInputs, TextPlan, plan_texts
from opanatomy.capture.model.tokenizing import OfModel
from opanatomy.capture.model.user_function import call_function, is_function
from opanatomy.capture.silence import one_line
from opanatomy.errors import ModelError, OpanatomyError, OutOfMemory, UsageError
from opanatomy.levers import is_wide
from opanatomy.options import DTYPE, GENERATE, RUN, RunOptions, as_flag, recorded
from opanatomy.records.memory import is_out_of_memory
from opanatomy.records.taxonomy import SMALL
from opanatomy.records.workload import Workload

if TYPE_CHECKING:
    import torch

#: Samples in a batch by default.
BATCH: Final = 8
#: Options that do not apply if a function creates the model.
_OF_THE_MODEL: Final = frozenset(
    {"seq", "layers", "settings", "task", "attention", "weights", "hub", "texts", "padding", "tokenizer"}
)


@dataclass(slots=True, kw_only=True)
class Prepared:
    """A module and its inputs (a dict of keyword arguments or a tuple), both on the device, ready for a step.

    `changes` lists the effects of settings, such as `layers 24 -> 2`; `attention` is the implementation in use, `None`
    for a model without attention; `seed` is set if weights and batch were created here.
    """

    module: torch.nn.Module
    inputs: dict[str, Any] | tuple[Any, ...]
    name: str
    architecture: str
    source: str
    batch: int
    sequence_length: int | None
    dtype: str | None
    task: str | None = None
    attention: str | None = None
    seed: int | None = None
    changes: tuple[str, ...] = ()
    #: The batches of the run's texts; `inputs` is one of them.
    texts: TextInputs | None = None


@dataclass(slots=True, kw_only=True)
class Plan:
    """The model of a run, without weights."""

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
    #: The attention implementation in use.
    attention: str | None
    #: The number of layers in each stack of like layers.
    stacks: tuple[int, ...] = ()
    texts: TextPlan | None = None


def plan_of(options: RunOptions) -> Plan | None:
    """Return the plan of `prepare`, without weights; `None` for a function, which makes its own model.

    Raises `ModelError` or `UsageError` with one line for an impossible run.
    """
    if is_function(options.model):
        return None
    configuration = find_configuration(options.model, hub=options.hub, trust_remote_code=options.trust_remote_code)
    with _readable(configuration.name, options):
        return _planned(configuration, options)


def prepare(options: RunOptions, plan: Plan | None = None) -> Prepared:
    """Return the module and the batch of a run on `options.device`, by its plan if that is made already."""
    plan = plan or plan_of(options)
    return _prepare_function(options) if plan is None else _prepare_plan(plan, options)


def given(module: torch.nn.Module, inputs: dict[str, Any] | tuple[Any, ...]) -> Prepared:
    """Return the caller's own module and its inputs, unchanged."""
    first = next(iter(tensors_of(module, inputs)), None)
    batch, length = sizes(inputs)
    name = type(getattr(module, "_orig_mod", module)).__name__  # the original of a compiled module
    return Prepared(
        module=module,
        inputs=inputs,
        name=name,
        architecture=name,
        source="object",
        batch=batch,
        sequence_length=length,
        dtype=None if first is None else data_type_name(first.dtype),
    )


def workload_of(prepared: Prepared, options: RunOptions) -> Workload:
    """Return the capture's record of the model, its batch and the options."""
    parameters = list(prepared.module.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    small = [parameter for parameter in trained if parameter.numel() < SMALL]
    return Workload(
        model=prepared.name,
        architecture=prepared.architecture,
        model_source=prepared.source,
        parameters=_elements(parameters),
        trainable_parameters=_elements(trained),
        small_parameters=_elements(small),
        embedding_parameters=_elements(table for table in trained_tables(prepared.module) if table.numel() >= SMALL),
        task=prepared.task,
        batch=prepared.batch,
        sequence_length=prepared.sequence_length,
        inputs=input_texts(prepared.inputs),
        dtype=prepared.dtype,
        attention=prepared.attention,
        windows=windows_of(prepared.module),
        seed=prepared.seed,
        changes=prepared.changes,
        **recorded(options),
    )


def _elements(parameters: Iterable[torch.Tensor]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _prepare_plan(plan: Plan, options: RunOptions) -> Prepared:
    _seed(options.seed)
    module = build_module(
        plan.config,
        plan.auto_class,
        dtype=options.dtype,
        device=options.device,
        attention=options.attention,
        pretrained=plan.location if options.weights == "pretrained" else None,
        trust_remote_code=options.trust_remote_code,
    )
    module.train(not options.inference)
    apply_techniques(module, options)
    with _readable(plan.name, options), inputs_fit(options.model, plan.shape, options.dtype):
        texts = None if plan.texts is None else plan.texts.inputs()
        made = make_batch(module, plan.shape, options.seed) if texts is None else texts.profiled
        inputs = move(made, options.device)
    _seed(options.seed)
    return Prepared(
        module=module,
        inputs=inputs,
        name=plan.name,
        architecture=type(module).__name__,
        source=plan.source,
        task=plan.task,
        batch=plan.shape.batch,
        sequence_length=plan.shape.sequence_length if plan.texts is None else plan.texts.profiled_length,
        texts=texts,
        dtype=_weights_dtype(module, options),
        changes=plan.changes,
        attention=attention_of(module),
        seed=options.seed,
    )


def _weights_dtype(module: torch.nn.Module, options: RunOptions) -> str:
    first = next(module.parameters(), None)
    return options.dtype if first is None else data_type_name(first.dtype)


def data_type_name(dtype: torch.dtype) -> str:
    """Return the name of a data type in reports."""
    return str(dtype).removeprefix("torch.")


def _planned(configuration: Configuration, options: RunOptions) -> Plan:
    trust = options.trust_remote_code
    content = configuration.content
    dropped: tuple[str, ...] = ()
    if "quantization_config" in content and options.weights == "random":
        content = {key: value for key, value in content.items() if key != "quantization_config"}
        dropped = ("quantization -> none (random weights are not quantized)",)
    config = make_config(configuration, content, trust_remote_code=trust)
    content, changes = apply_settings(content, config, options.layers, options.settings)
    config = make_config(configuration, content, trust_remote_code=trust)
    if options.settings:
        check_fit(config)
    # Training keeps no key-value cache; inference keeps the configuration's setting.
    if not options.inference:
        for part in (config, *(getattr(config, name, None) for name in ("text_config", "decoder", "encoder"))):
            if hasattr(part, "use_cache"):
                part.use_cache = False
    task, auto_class = choose_task(config, options.task)
    if task == "sequence-classification" and getattr(config, "pad_token_id", 0) is None:
        config.pad_token_id = 0  # a decoder looks for the last token that is not padding; ours never is padding
    module = build_on_meta(config, auto_class, options.attention, trust)
    if options.generate is not None:
        check_generates(module, as_flag(GENERATE, options.generate))
    batch = options.batch or BATCH
    check_divides(batch, options.accumulate)
    shape = choose_shape(module, task, batch, options.seq, options.inference, options.generate)
    of_model = OfModel(module=module, location=configuration.location, hub=options.hub, trust_remote_code=trust)
    return Plan(
        name=configuration.name,
        source=configuration.source,
        location=configuration.location,
        config=config,
        task=task,
        auto_class=auto_class,
        shape=shape,
        architecture=type(module).__name__,
        parameters=_elements(module.parameters()),
        changes=dropped + changes,
        attention=attention_of(module),
        stacks=tuple(len(stack.layers) for stack in stacks_of(module)),
        texts=plan_texts(of_model, shape, options),
    )


@contextmanager
def _readable(name: str, options: RunOptions) -> Iterator[None]:
    """Convert any failure caused by a configuration, which can contain anything, to a one-line error."""
    given = ", ".join(f"{key}={value}" for key, value in options.settings)
    try:
        yield
    except OpanatomyError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        if given:
            raise ModelError(
                f"cannot build {name} with {given}: {one_line(error)} - use values that fit together"
            ) from error
        raise ModelError(
            f"cannot build {name}: {one_line(error)} - check its config.json, or use a newer transformers"
        ) from error


def attention_of(module: torch.nn.Module) -> str | None:
    """Return the attention implementation in use; `None` for a model without attention, or without that setting."""
    if not any("attention" in type(layer).__name__.lower() for layer in module.modules()):
        return None
    return getattr(getattr(module, "config", None), "_attn_implementation", None)


def _seed(seed: int) -> None:
    """Seed all generators for weights, dropout and the masks of speech models."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


# ----------------------------------------------------------------------------------------------------------- functions


def _prepare_function(options: RunOptions) -> Prepared:
    """Return the module and inputs of a function, changed only by the requested device, data type and inference."""
    import torch

    for option in RUN:
        if option.name in _OF_THE_MODEL and getattr(options, option.name) != option.default:
            raise UsageError(
                f"{option.flags[-1]} does not apply to {options.model}, which creates its own model - leave it out"
            )
    _seed(options.seed)
    module, inputs = call_function(options.model, options.batch)
    dtype = None if options.dtype == DTYPE.default else getattr(torch, options.dtype)
    module = module.to(options.device) if dtype is None else module.to(options.device, dtype)
    if options.inference:
        module.eval()
    apply_techniques(module, options)
    inputs = move(inputs, options.device, dtype)
    batch, length = sizes(inputs)
    _seed(options.seed)
    # A frozen normalization is in evaluation mode, or all of the model.
    modules = list(module.modules())
    changes: tuple[str, ...] = ()
    evaluating = sum(not inner.training for inner in modules)
    if evaluating and not options.inference:
        changes = (f"{evaluating} of {len(modules)} modules are in evaluation mode, as the function left them",)
    return Prepared(
        module=module,
        inputs=inputs,
        name=options.model,
        architecture=type(module).__name__,
        source="function",
        task="function",
        batch=batch,
        sequence_length=length,
        dtype=_weights_dtype(module, options),
        changes=changes,
        attention=attention_of(module),
        seed=options.seed,
    )


def either(parts: list[str]) -> str:
    """Return the parts as a choice: "a, b or c"."""
    return listed(parts, "or")


def listed(parts: list[str], last: str) -> str:
    """Join the parts with commas, and `last` before the last: "a, b and c"."""
    return f" {last} ".join([*([", ".join(parts[:-1])] if parts[:-1] else []), parts[-1]])


def batch_and_length(batch: int | None, length: int | None) -> list[str]:
    """Return the batch sizes that can be reduced: known and above 1."""
    names = [name for name, size in (("--batch", batch), ("--seq", length)) if size is not None and size > 1]
    return [f"lower {either(names)}"] if names else []


@contextmanager
def inputs_fit(name: str, shape: Shape, dtype: str) -> Iterator[None]:
    """Raise `OutOfMemory` with ways to save memory if the inputs do not fit next to the weights."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        smaller = either([*batch_and_length(shape.batch, shape.sequence_length), *fewer_weights(dtype)])
        raise OutOfMemory(f"out of memory while building {name} and its inputs - {smaller}") from error


def fewer_weights(dtype: str | None) -> list[str]:
    """Return ways to make the weights of a model from a configuration smaller."""
    return ["use fewer --layers", *(["use --dtype bfloat16"] if is_wide(dtype) else [])]
