"""Record a model and a batch as one trace file with its description, and restore the model, even after an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from opanatomy.capture.device import accelerators
from opanatomy.capture.device.accelerators import device_of
from opanatomy.capture.device.environment import environment_of
from opanatomy.capture.device.start import missing_kernels
from opanatomy.capture.memory.failure import StepOutOfMemory, observations_of_failure
from opanatomy.capture.memory.measurement import PeakMeter, Snapshots
from opanatomy.capture.model.user_function import said_by
from opanatomy.capture.run.advice import less_memory
from opanatomy.capture.run.progress import NullProgress, Progress
from opanatomy.capture.run.restore import SavedState, process_as_it_was
from opanatomy.capture.run.step_runner import StepRunner, make_stepper, step_environment
from opanatomy.capture.silence import first_line, one_line
from opanatomy.capture.step.shape import cache_shape_of, shape_of
from opanatomy.capture.step.stepper import Stepper
from opanatomy.capture.subject import Subject
from opanatomy.errors import CaptureError, OpanatomyError
from opanatomy.options import DEVICE, RunOptions, as_asked
from opanatomy.records.memory import WEIGHTS, is_out_of_memory
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import MemoryObservations


def record_step(subject: Subject, options: RunOptions, trace: Path, progress: Progress | None = None) -> None:
    """Run the step and write its trace to `trace` (`.json` or `.json.gz`).

    It runs on `options.device`; "auto" is the device of the module and its inputs. Afterwards, even after an error or
    an interrupt, the module's modes, buffers, gradients and, without an optimizer, weights are restored, as are the
    process's random states and settings. Raises `OutOfMemory` if the step does not fit, `CaptureError` if it cannot
    run.
    """
    if options.device == DEVICE.default:
        options = replace(options, device=device_of(subject.module, subject.inputs))
    if options.memory:
        accelerators.check_memory_in_depth(options.device)
    points = subject.snapshots or Snapshots(options.device)
    points.take(WEIGHTS)
    stepper: Stepper | None = None
    with process_as_it_was(), _kept(subject, options) as kept:
        meter = PeakMeter(options.device)
        try:
            with step_environment(options):
                stepper = make_stepper(subject, options)
                with _untracked_leaves(stepper):
                    StepRunner(
                        subject=subject,
                        options=options,
                        stepper=stepper,
                        meter=meter,
                        points=points,
                        kept=kept,
                        progress=progress or NullProgress(),
                    ).record(trace)
        except OpanatomyError:
            raise
        except Exception as error:
            phase = stepper.phase if stepper else Phase.OTHER
            if is_out_of_memory(error):
                line = _out_of_memory_line(error, stepper, meter.peak(), subject, options)
                memory, unread = None, ""
                if stepper is not None:
                    memory, unread = _memory_at_failure(error, stepper, subject, options, points)
                environment = environment_of(options.device)
                raise StepOutOfMemory(line + unread, memory, subject.workload, environment) from error
            if missing := missing_kernels(error, options.device):
                raise CaptureError(missing) from error
            if phase is Phase.OTHER:
                raise
            raise CaptureError(
                f"the model failed in the {phase} phase: {said_by(error)} -"
                f" {as_asked('use --debug for the traceback', 'see the original error')}"
            ) from error


@contextmanager
def _kept(subject: Subject, options: RunOptions) -> Iterator[SavedState]:
    """Save the state that the steps change, restored at the end; for our own module only for the first step."""
    # With an optimizer weights may change, and their values are needed only for a second try.
    weights = subject.borrowed or options.optimizer is not None
    kept = SavedState.of(subject.module, subject.inputs, options.device, weights=weights)
    try:
        yield kept
    finally:
        if subject.borrowed:
            if options.optimizer is not None:
                kept.release_weights()
            kept.restore_all()


@contextmanager
def _untracked_leaves(stepper: Stepper) -> Iterator[None]:
    try:
        yield
    finally:
        stepper.give_back_untracked_leaves()


def _memory_at_failure(
    error: Exception, stepper: Stepper, subject: Subject, options: RunOptions, points: Snapshots
) -> tuple[MemoryObservations | None, str]:
    """Return the memory when the step broke, observed in a second try under the same limit; or why it is unknown.

    Whatever breaks there, memory ran out before, and that is the error.
    """
    if subject.training.is_shared:
        return None, "; what filled the memory is unknown, because the other ranks do not repeat the step"
    try:
        with step_environment(options):
            observations = observations_of_failure(
                error,
                stepper,
                subject.module,
                points,
                compiled=options.compile,
                checkpointing=bool(options.checkpointing),
            )
        cache = None if stepper.generator is None else cache_shape_of(stepper.generator)
        return replace(observations, shape=shape_of(subject.module, options.device), cache=cache), ""
    except Exception as second:
        return None, f"; cannot tell what filled the memory: {type(second).__name__}: {one_line(second, 100)}"


def _out_of_memory_line(
    error: BaseException, stepper: Stepper | None, peak: int | None, subject: Subject, options: RunOptions
) -> str:
    phase = stepper.phase if stepper else Phase.OTHER
    recorded = stepper is not None and stepper.steps > 0
    where = f"in the {phase} phase"
    if phase is Phase.OTHER:
        where = "outside any step" if recorded else "while preparing the model"
    reached = f"; peak memory use was {peak / 1e9:.2f} GB" if peak else ""
    first = first_line(error, 160, silent="memory error")
    return f"out of memory {where}{reached} - {less_memory(phase, subject, options, recorded=recorded)} ({first})"
