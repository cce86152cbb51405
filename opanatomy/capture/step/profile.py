"""A model's name and options -> a trace file: the capture stage from end to end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from msgspec import Struct

from opanatomy.capture.device.devices import current_device
from opanatomy.capture.device.environment import choose_device, no_gpu_note
from opanatomy.capture.device.start import device_text, first_use, run_first_kernel
from opanatomy.capture.memory.advice import either, fewer_weights, listed
from opanatomy.capture.memory.measurement import available_bytes, limited_to_available
from opanatomy.capture.memory.snapshots import Snapshots
from opanatomy.capture.model.user_function import is_function
from opanatomy.capture.model.workload import DTYPES, Prepared, Request, describe, prepare
from opanatomy.capture.step.recorder import Options, Progress, Subject, record_step
from opanatomy.capture.step.stepper import amp_name
from opanatomy.errors import OpanatomyError, OutOfMemory
from opanatomy.records.data_types import ITEM_SIZE
from opanatomy.records.optimizers import BY_NAME
from opanatomy.records.out_of_memory import is_out_of_memory
from opanatomy.records.workload import Workload


class Wanted(Struct, frozen=True, kw_only=True):
    """Everything a user can ask of a capture; the defaults are those of the command line."""

    model: str
    batch: int | None = None
    seq: int | None = None
    task: str | None = None
    seed: int = 0
    layers: int | None = None
    settings: tuple[tuple[str, str], ...] = ()
    dtype: str = "float32"
    attention: str | None = None
    pretrained: bool = False
    hub: bool = False
    trust_remote_code: bool = False
    device: str = "auto"
    amp: str | None = None
    checkpointing: str | None = None
    compiled: bool = False
    optimizer: str | None = None
    inference: bool = False
    memory: bool = False
    steps: int = 1
    warmup: int | None = None
    command: str = ""
    redact: bool = False

    def request(self, device: str) -> Request:
        """The part that makes the module and its batch."""
        return Request(
            model=self.model, batch=self.batch, seq=self.seq, task=self.task, dtype=self.dtype,
            attention=self.attention, checkpointing=self.checkpointing, layers=self.layers, settings=self.settings,
            hub=self.hub, pretrained=self.pretrained, trust_remote_code=self.trust_remote_code,
            inference=self.inference, seed=self.seed, device=device,
        )  # fmt: skip

    def options(self, device: str) -> Options:
        """The part that runs the step."""
        return Options(
            device=device, amp=self.amp, optimizer=self.optimizer, inference=self.inference, compiled=self.compiled,
            checkpointing=self.checkpointing, memory=self.memory, steps=self.steps,
            warmup=self.warmup, command=self.command, redact=self.redact,
        )  # fmt: skip


def capture_model(wanted: Wanted, trace: Path, progress: Progress, note: Callable[[str], None]) -> None:
    """Build the model, run its step and write the trace; raises an `OpanatomyError` that says what to do."""
    progress.stage(f"building {wanted.model}")
    device = choose_device(wanted.device)
    if device == "cpu":
        note(no_gpu_note(wanted.device))
    points = Snapshots(device)
    with first_use(device):
        points.start()
        run_first_kernel(device)
    with current_device(device):
        prepared = _prepared(wanted, wanted.request(device))
        subject = Subject(
            module=prepared.module, inputs=prepared.inputs, workload=_workload(wanted, prepared), snapshots=points
        )
        record_step(subject, wanted.options(device), trace, progress)


def _prepared(wanted: Wanted, request: Request) -> Prepared:
    """The module and its batch; on the CPU within the memory that there is."""
    on_host = request.device == "cpu"
    guard: AbstractContextManager[None] = limited_to_available() if on_host else nullcontext()
    try:
        with guard:
            _check_it_can_fit(wanted, request)
            return prepare(request)
    except OpanatomyError:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        if is_function(wanted.model):
            what, smaller = f"{wanted.model} and its inputs were", "have it return a smaller module or smaller inputs"
        else:
            what, smaller = f"{wanted.model} was", either(fewer_weights(DTYPES[request.dtype]))
        where = "" if request.device == "cpu" else f" on {request.device} ({device_text(request.device)})"
        raise OutOfMemory(f"out of memory while {what} being built{where} - {smaller}") from error


def _check_it_can_fit(wanted: Wanted, request: Request) -> None:
    """Refuse at once what cannot fit the host: weights, and gradients and optimizer state in training."""
    if request.device != "cpu":
        return
    described = describe(request)
    if described.parameters is None:
        return
    available = available_bytes()
    dtype = DTYPES[request.dtype]
    optimizer = None if wanted.inference else BY_NAME.get(wanted.optimizer or "")
    states = optimizer.state_copies if optimizer else 0
    parts = ["weights", *([] if wanted.inference else ["gradients"]), *(["optimizer state"] if states else [])]
    needed = described.parameters * ITEM_SIZE[dtype] * ((1 if wanted.inference else 2) + states)
    if available is not None and needed > available:
        raise OutOfMemory(
            f"{wanted.model} cannot fit: its {described.parameters / 1e9:.3g} billion parameters need at least"
            f" {needed / 1e9:.3g} GB ({listed(parts, 'and')}), {available / 1e9:.3g} GB are available"
            f" - keep fewer --layers{' or use --dtype bfloat16' if ITEM_SIZE[dtype] > 2 else ''}"
        )


def _workload(wanted: Wanted, prepared: Prepared) -> Workload:
    parameters = list(prepared.module.parameters())
    return Workload(
        model=prepared.name,
        architecture=prepared.architecture,
        model_source=prepared.source,
        parameters=sum(parameter.numel() for parameter in parameters),
        trainable_parameters=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        task=prepared.task,
        batch=prepared.samples,
        sequence_length=prepared.sequence_length,
        inputs=input_texts(prepared.inputs),
        dtype=str(parameters[0].dtype).removeprefix("torch.") if parameters else wanted.dtype,
        amp=amp_name(wanted.amp),
        attention=prepared.attention,
        checkpointing=wanted.checkpointing,
        compiled=wanted.compiled,
        optimizer=wanted.optimizer,
        inference=wanted.inference,
        steps=wanted.steps,
        warmup=wanted.warmup,
        seed=wanted.seed,
        changes=prepared.changes,
    )


def input_texts(inputs: dict[str, Any] | tuple[Any, ...]) -> tuple[str, ...]:
    """What the report says of each tensor among the inputs."""
    pairs = inputs.items() if isinstance(inputs, dict) else ((str(index), item) for index, item in enumerate(inputs))
    return tuple(
        f"{name} {str(item.dtype).removeprefix('torch.')}[{','.join(map(str, item.shape))}]"
        for name, item in pairs
        if hasattr(item, "dtype") and hasattr(item, "shape")
    )
