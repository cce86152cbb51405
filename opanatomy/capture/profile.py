"""A model's name and options -> a trace file: the capture stage from end to end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from opanatomy.capture.environment import choose_device, processor_name
from opanatomy.capture.memory import available_bytes
from opanatomy.capture.recorder import Options, Progress, Subject, is_out_of_memory, record_step
from opanatomy.capture.workload import Prepared, Request, describe, prepare
from opanatomy.errors import OutOfMemory
from opanatomy.model import ITEM_SIZE, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Everything a user can ask of a capture; the defaults are those of the command line."""

    model: str
    batch: int = 8
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
    steps: int = 1
    warmup: int | None = None
    command: str = ""

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
            checkpointing=self.checkpointing, steps=self.steps, warmup=self.warmup, command=self.command,
        )  # fmt: skip


def capture_model(wanted: Wanted, trace: Path, progress: Progress, note: Callable[[str], None]) -> None:
    """Build the model, run its step and write the trace; raises an `OpanatomyError` that says what to do."""
    device = choose_device(wanted.device)
    if device == "cpu":
        note(f"no GPU in use: the CPU is the device ({processor_name()})")
    request = wanted.request(device)
    _check_it_can_fit(wanted, request)
    progress.stage(f"building {wanted.model}")
    try:
        prepared = prepare(request)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(
            f"out of memory while {wanted.model} was being built - keep fewer --layers or use --dtype bfloat16"
        ) from error
    subject = Subject(module=prepared.module, inputs=prepared.inputs, workload=_workload(wanted, prepared))
    record_step(subject, wanted.options(device), trace, progress)


def _check_it_can_fit(wanted: Wanted, request: Request) -> None:
    """Refuse at once what cannot fit the host: weights, and gradients and optimizer state in training."""
    if request.device != "cpu":
        return
    described = describe(request)
    if described.parameters is None:
        return
    available = available_bytes()
    size = ITEM_SIZE.get(request.dtype, 4)
    copies = 1 if wanted.inference else 2 + (2 if (wanted.optimizer or "").startswith("adam") else 0)
    needed = described.parameters * size * copies
    if available is not None and needed > available:
        raise OutOfMemory(
            f"{wanted.model} cannot fit: its {described.parameters / 1e9:.2f} billion parameters need at least"
            f" {needed / 1e9:.1f} GB (weights{'' if wanted.inference else ', gradients and optimizer state'}),"
            f" {available / 1e9:.1f} GB are available - keep fewer --layers or use --dtype bfloat16"
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
        inputs=_input_texts(prepared),
        dtype=str(parameters[0].dtype).removeprefix("torch.") if parameters else wanted.dtype,
        amp=wanted.amp,
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


def _input_texts(prepared: Prepared) -> tuple[str, ...]:
    inputs = prepared.inputs
    pairs = inputs.items() if isinstance(inputs, dict) else ((str(index), item) for index, item in enumerate(inputs))
    return tuple(
        f"{name} {str(item.dtype).removeprefix('torch.')}[{','.join(map(str, item.shape))}]"
        for name, item in pairs
        if hasattr(item, "dtype") and hasattr(item, "shape")
    )
