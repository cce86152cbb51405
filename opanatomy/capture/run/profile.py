"""Turn the options of a run into a trace file: the capture stage from end to end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from msgspec.structs import replace

from opanatomy.capture.device.accelerators import current_device
from opanatomy.capture.device.environment import choose_device, no_gpu_note
from opanatomy.capture.device.start import device_text, first_use, run_first_kernel
from opanatomy.capture.distributed.launched import launched
from opanatomy.capture.distributed.ranks import RankGroup, is_sharded
from opanatomy.capture.distributed.sharing import shared
from opanatomy.capture.memory.measurement import Snapshots, available_bytes, limited_to_available
from opanatomy.capture.model.building import check_peft
from opanatomy.capture.model.user_function import is_function
from opanatomy.capture.model.workload import (
    Plan,
    Prepared,
    either,
    fewer_weights,
    listed,
    plan_of,
    prepare,
    workload_of,
)
from opanatomy.capture.run.progress import Progress
from opanatomy.capture.run.recorder import record_step
from opanatomy.capture.step.stepper import check_installed
from opanatomy.capture.subject import Subject
from opanatomy.errors import OpanatomyError, OutOfMemory
from opanatomy.options import RunOptions
from opanatomy.records.memory import is_out_of_memory
from opanatomy.records.taxonomy import BY_NAME, ITEM_SIZE


def capture_model(
    options: RunOptions,
    trace: Path,
    progress: Progress,
    note: Callable[[str], None],
    *,
    command: str = "",
    group: RankGroup | None = None,
) -> None:
    """Build the model, run its step and write the trace; raise an `OpanatomyError` with a remedy on failure.

    `command` is the trace's record of its origin. With a `group` the step is shared by all its ranks, and the trace
    is that of this one.
    """
    check_installed(options.optimizer)
    check_peft(options.lora)
    progress.stage(f"building {options.model}")
    device = choose_device(options.device) if group is None else group.ranks.device
    if device == "cpu":
        note(no_gpu_note(options.device))
    points = Snapshots(device)
    with first_use(device):
        points.start()
        run_first_kernel(device)
    options = replace(options, device=device)
    with current_device(device):
        plan, prepared = _prepared(options)
        subject = Subject(
            module=prepared.module,
            inputs=prepared.inputs,
            workload=workload_of(prepared, options),
            command=command,
            snapshots=points,
            texts=prepared.texts,
        )
        if group is not None:
            subject = shared(subject, plan, options, group)
        record_step(subject, options, trace, progress)


def _prepared(options: RunOptions) -> tuple[Plan | None, Prepared]:
    """Return (the plan of the model, `None` for a function's; the module and batch), within the CPU's free memory."""
    on_host = options.device == "cpu"
    guard: AbstractContextManager[None] = limited_to_available() if on_host else nullcontext()
    try:
        with guard:
            plan = plan_of(options)
            if plan is not None and on_host:
                _check_it_can_fit(plan, options)
            return plan, prepare(options, plan)
    except OpanatomyError:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        if is_function(options.model):
            what, smaller = f"{options.model} and its inputs were", "have it return a smaller module or smaller inputs"
        else:
            what, smaller = f"{options.model} was", either(fewer_weights(options.dtype))
        where = "" if on_host else f" on {options.device} ({device_text(options.device)})"
        raise OutOfMemory(f"out of memory while {what} being built{where} - {smaller}") from error


def _check_it_can_fit(plan: Plan, options: RunOptions) -> None:
    """Refuse at once a model too large for the host: weights, and gradients and optimizer state if all is trained."""
    available = available_bytes()
    trains_all = not (options.inference or options.freeze or options.lora)
    optimizer = BY_NAME.get(options.optimizer or "") if trains_all else None
    states = optimizer.state_copies if optimizer else 0
    parts = ["weights", *(["gradients"] if trains_all else []), *(["optimizer state"] if states else [])]
    place = launched()
    if available is not None and place is not None:
        available //= place.local_world_size
    if is_sharded(options.parallel or ""):  # weights are whole only until they are sharded
        trains_all, states, parts = False, 0, ["weights"]
    needed = plan.parameters * ITEM_SIZE[options.dtype] * ((2 if trains_all else 1) + states)
    if available is not None and needed > available:
        raise OutOfMemory(
            f"{options.model} cannot fit: its {plan.parameters / 1e9:.3g} billion parameters need at least"
            f" {needed / 1e9:.3g} GB ({listed(parts, 'and')}), but only {available / 1e9:.3g} GB are available - use"
            f" fewer --layers{' or use --dtype bfloat16' if ITEM_SIZE[options.dtype] > 2 else ''}"
        )
