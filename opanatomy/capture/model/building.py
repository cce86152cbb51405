"""The module of a configuration: on the meta device to look at, or with weights on the device of the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opanatomy.capture.device.start import device_text
from opanatomy.capture.memory.storages import same_device
from opanatomy.capture.model.hub import hub_answers
from opanatomy.capture.model.quiet import one_line, quiet_libraries
from opanatomy.errors import ModelError, OutOfMemory, UsageError
from opanatomy.records.out_of_memory import is_out_of_memory

if TYPE_CHECKING:
    import torch

#: Data types that a narrower one can take the place of.
_WIDE = ("float32", "float64")


def build_on_meta(config: Any, auto_class: str, attention: str | None, trust_remote_code: bool) -> torch.nn.Module:
    """The module without memory for its weights, in a few hundredths of a second; `config` is left as it is."""
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
    """The module on `device`, its weights made there in `dtype`: random, or those saved at `pretrained`."""
    import torch

    with quiet_libraries():
        try:
            if pretrained is not None:
                options = {**_options(dtype, attention, trust_remote_code), **_placement(device)}
                return _moved(_from_pretrained(pretrained, config, auto_class, attention, options), device)
            with torch.device(device):
                module = _from_config(config, auto_class, dtype, attention, trust_remote_code)
            return _moved(module, device)
        except Exception as error:  # the readers of weights have errors of their own
            if is_out_of_memory(error):
                smaller = "keep fewer --layers" + (" or use --dtype bfloat16" if dtype in _WIDE else "")
                which = "" if device == "cpu" else f" ({device_text(device)})"
                raise OutOfMemory(
                    f"out of memory: the weights in {dtype} do not fit the memory of {device}{which} - {smaller}"
                ) from error
            raise


def _moved(module: torch.nn.Module, device: str) -> torch.nn.Module:
    """The module on the device; one that is there already as it is, for fake tensors cannot be moved in place."""
    tensors = (*module.parameters(), *module.buffers())
    return module if all(same_device(str(tensor.device), device) for tensor in tensors) else module.to(device)


def _from_config(
    config: Any, auto_class: str, dtype: str, attention: str | None, trust_remote_code: bool
) -> torch.nn.Module:
    import transformers

    options = _options(dtype, attention, trust_remote_code)
    config.dtype = options["dtype"]  # transformers 4 builds the inner model of some classes by the configuration's
    with _attention_errors(config, attention):
        module: torch.nn.Module = getattr(transformers, auto_class).from_config(config, **options)
    return module


def _placement(device: str) -> dict[str, Any]:
    """Have the weights read onto the device one by one: the host need not hold what only the device has room for.

    transformers does that with accelerate; without it they are read on the host and moved.
    """
    from transformers.utils import is_accelerate_available

    return {"device_map": {"": device}} if device != "cpu" and is_accelerate_available() else {}


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
        where = "the folder" if local else "the Hub" if online else "the cache (the Hub does not answer)"
        raise ModelError(
            f"cannot load weights of {location} from {where}: {one_line(error)} - leave --weights out for random ones"
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
    """Turn what transformers says of an attention implementation that cannot be had into one line."""
    try:
        yield
    except (ValueError, ImportError) as error:
        if attention is None or not _is_about_attention(str(error)):
            raise
        raise UsageError(
            f"--attention {attention}: {config.model_type} cannot run it here ({one_line(error, 160)}) - "
            "leave it out, or give sdpa or eager"
        ) from error


def _is_about_attention(message: str) -> bool:
    return any(word in message.lower() for word in ("attention", "attn", "kernels"))


def enable_checkpointing(module: torch.nn.Module, kind: str) -> None:
    """Have `module` run its layers again in the backward pass; `kind` is `non-reentrant` or `reentrant`."""
    model: Any = module
    options = {"use_reentrant": kind == "reentrant"}
    name = type(module).__name__
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise UsageError(f"--checkpointing {kind}: {name} has no activation checkpointing - leave it out")
    try:
        with quiet_libraries():
            if hasattr(model, "activation_checkpointing_enable"):
                model.activation_checkpointing_enable(options)
            else:
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    except ValueError as error:
        raise UsageError(f"--checkpointing {kind}: {name}: {one_line(error)} - leave it out") from error
