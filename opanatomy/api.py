"""The Python entry points: a module or a trace -> `Anatomy`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec.structs import replace

from opanatomy.attribution import phase_rules_of
from opanatomy.errors import CaptureError, UsageError
from opanatomy.files.addresses import check_no_address, check_no_trace_address, local_name
from opanatomy.files.outputs import claimed, temporary
from opanatomy.fleet import analyze_traces
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.workload import Workload

if TYPE_CHECKING:
    import torch

    from opanatomy.capture.step.recorder import Options, Subject

Name: TypeAlias = "str | os.PathLike[str]"
Inputs: TypeAlias = "dict[str, Any] | tuple[Any, ...]"


def analyze(
    trace: Name | Iterable[Name],
    *,
    phases: Mapping[str, str | Sequence[str]] | None = None,
    redact: bool = False,
) -> Anatomy:
    """The anatomy of a torch.profiler trace (`.json` or `.json.gz`), or of the ranks of one run together.

    Ranks are several files, a folder or a zip. `phases` maps a phase ("forward", "backward", "recompute", "optimizer",
    "other") to a regular expression, or several, that is searched for in the names of the trace's own ranges: what runs
    in them is of that phase, whatever else speaks for another. With `redact` paths, arguments, hosts and users are left
    out, secrets always. Raises `TraceError` where nothing can be read and
    `UsageError` for what is no phase or no regular expression.
    """
    rules = phase_rules_of({} if phases is None else phases)
    names = [trace] if isinstance(trace, (str, bytes, os.PathLike)) else trace
    if not isinstance(names, Iterable):
        raise UsageError(f"analyze: a trace is a path, not {_kind(trace)} - give the name of a file or folder")
    paths = [_trace(name) for name in names]
    if not paths:
        raise UsageError("analyze: no trace is given - give the name of a file or folder")
    return analyze_traces(paths, phases=rules, redact=redact)


def profile(
    module: torch.nn.Module,
    inputs: Any,
    *,
    trace: Name | None = None,
    force: bool = False,
    amp: str | None = None,
    optimizer: str | None = None,
    inference: bool = False,
    compile: bool = False,
    steps: int = 1,
    warmup: int | None = None,
    memory: bool = False,
    check: bool = False,
    redact: bool = False,
) -> Anatomy:
    """The anatomy of one forward and backward pass of `module` on `inputs` (a tensor, a tuple or a dictionary).

    The module runs where its parameters are, in the mode it is in. Its output's `loss` starts the backward; without
    one, the only single number that requires a gradient; without that, every output that does, with a gradient of
    ones (`workload.backward_from` says which). `amp` is `bf16` or `fp16`; `trace` keeps the Chrome trace in a new file
    of that name, with `force` in place of an old one. `memory` follows the memory of one more step, block by block.
    Every run is counted a second time (`Anatomy.checks`); with `check` a count that does not agree raises `GateError`.
    With `redact` paths, arguments, hosts and users are left out of the report and the trace, secrets always.

    The module is left as it was: modes, buffers, gradients, flags, and with them the inputs, their gradients and the
    random states. Its weights change only with `optimizer`, which updates them in every step that is run.
    Raises `UsageError`, `ModelError`, `CaptureError`, `OutOfMemory` and `OutputError`, each an `OpanatomyError`.
    """
    from opanatomy.capture.model.user_function import check_module
    from opanatomy.capture.step.recorder import Options, Subject
    from opanatomy.redaction.values import of_process

    of_process()  # the module's own code may take a secret out of the environment
    _check_kind(module)
    check_module(type(module).__name__, module)
    arguments = _arguments(inputs)
    target = None if trace is None else _target(trace)
    options = Options(
        device=_device(module, arguments), amp=amp, optimizer=optimizer, inference=inference, compiled=compile,
        steps=steps, warmup=warmup, memory=memory, command="opanatomy.profile(...)",
        redact=redact,
    )  # fmt: skip
    _check_options(options)
    _check_no_profiler()
    subject = Subject(module=module, inputs=arguments, workload=_workload(module, arguments, options), borrowed=True)
    with _recorded(subject, options, target, force) as path:
        anatomy = analyze_traces([path], redact=redact)
    if target is None:
        anatomy = replace(anatomy, provenance=replace(anatomy.provenance, trace=None))
    if check:
        from opanatomy.checks import require_agreement

        require_agreement(anatomy)
    return anatomy


@contextmanager
def _recorded(subject: Subject, options: Options, target: Path | None, force: bool) -> Iterator[Path]:
    """The trace of the step: in `target`, whole or not at all, or in a file that is gone afterwards."""
    from opanatomy.capture.step.recorder import record_step

    if target is None:
        with temporary("step.trace.json.gz", "the trace") as path:
            record_step(subject, options, path)
            yield path
        return
    with claimed(target, force=force, forced_by="give force=True") as claim:
        with claim.written() as partial:
            record_step(subject, options, partial)
        yield claim.target


def _workload(module: torch.nn.Module, inputs: Inputs, options: Options) -> Workload:
    from opanatomy.capture.model.batches import sizes
    from opanatomy.capture.step.profile import input_texts

    parameters = list(module.parameters())
    first = next(iter(_tensors(module, inputs)), None)
    batch, length = sizes(inputs)
    name = type(getattr(module, "_orig_mod", module)).__name__  # of a compiled module the one that was compiled
    return Workload(
        model=name, architecture=name, model_source="object",
        parameters=sum(parameter.numel() for parameter in parameters),
        trainable_parameters=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        batch=batch, sequence_length=length, inputs=input_texts(inputs),
        dtype=str(first.dtype).removeprefix("torch.") if first is not None else None,
        amp=options.amp, compiled=options.compiled, optimizer=options.optimizer, inference=options.inference,
        steps=options.steps, warmup=options.warmup,
    )  # fmt: skip


def _device(module: torch.nn.Module, inputs: Inputs) -> str:
    """The first accelerator that a tensor is on: a part of the module on the host does not make it a run of the CPU."""
    from opanatomy.capture.device.accelerators import check_device

    found = [str(tensor.device) for tensor in _tensors(module, inputs)]
    work = [device for device in found if device.partition(":")[0] not in ("cpu", "meta")]
    return check_device((work or found or ["cpu"])[0])


def _tensors(module: torch.nn.Module, inputs: Inputs) -> list[torch.Tensor]:
    """The parameters, then the inputs."""
    import torch

    values = inputs.values() if isinstance(inputs, dict) else inputs
    return [value for value in (*module.parameters(), *values) if isinstance(value, torch.Tensor)]


# ------------------------------------------------------------------------------------------------------------- checks


def _check_kind(module: object) -> None:
    import torch

    if not isinstance(module, torch.nn.Module):
        made = " - call it first" if isinstance(module, type) and issubclass(module, torch.nn.Module) else ""
        raise UsageError(f"profile: the module is {_kind(module)}{made or ' - give a torch.nn.Module'}")


def _arguments(inputs: object) -> Inputs:
    """What the module is called with: by name or by place."""
    import torch

    if isinstance(inputs, torch.Tensor):
        return (inputs,)
    if isinstance(inputs, Mapping):
        return {str(key): value for key, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs)
    raise UsageError(f"profile: the inputs are {_kind(inputs)} - give a tensor, a tuple of arguments or a dictionary")


def _check_options(options: Options) -> None:
    from opanatomy.capture.step.stepper import AMP_DTYPES
    from opanatomy.records.optimizers import BY_NAME as OPTIMIZERS

    for name, number, least in (("steps", options.steps, 1), ("warmup", options.warmup, 0)):
        if number is None and name == "warmup":
            continue
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise UsageError(f"profile: {name}={number!r} - give a whole number of at least {least}")
    for name, chosen, known in (("amp", options.amp, AMP_DTYPES), ("optimizer", options.optimizer, OPTIMIZERS)):
        if chosen is not None and chosen not in known:
            raise UsageError(f"profile: {name}={chosen!r} is not known - give {', '.join(known)} or None")
    if options.inference and options.optimizer is not None:
        raise UsageError(f"profile: inference=True has no backward for optimizer={options.optimizer!r} - leave one out")


def _check_no_profiler() -> None:
    """Two profilers would stop each other."""
    from torch._C._autograd import _profiler_enabled

    if _profiler_enabled():
        raise CaptureError(
            "profile: a torch profiler is running already, and torch takes one at a time - call opanatomy.profile"
            " outside of it, or export its trace and give that to opanatomy.analyze"
        )


def _target(trace: Name) -> Path:
    """The file for the trace, checked before the step is run."""
    path = _path("profile: trace", trace)
    if not path.name.endswith((".json", ".json.gz")):
        raise UsageError(f"profile: trace {path}: the name must end in .json or .json.gz")
    check_no_address("profile: trace", os.fspath(trace))
    return path


def _trace(name: object) -> Path:
    """The path of a trace to read."""
    text = str(_path("analyze", name))
    if isinstance(name, str):
        check_no_trace_address(local_name(name))
        text = local_name(name)
    return Path(text)


def _path(what: str, name: object) -> Path:
    if not isinstance(name, (str, os.PathLike)) or not isinstance(os.fspath(name), str):
        raise UsageError(f"{what}: a path is text, not {_kind(name)} - give the name of a file")
    if not os.fspath(name):
        raise UsageError(f"{what}: the name is empty - give the name of a file")
    if "\0" in os.fspath(name):
        raise UsageError(f"{what}: {os.fspath(name)!r} has a zero byte, which no file has - give the name of a file")
    return Path(name)


def _kind(value: object) -> str:
    """What a value is, in a word or two."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"of type {type(value).__name__}"
