"""`opanatomy.record`: a training loop of the user's own -> a trace, and its `Anatomy`."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from opanatomy.arguments import Name, check_module, check_no_profiler, check_switch, trace_target
from opanatomy.errors import CaptureError, UsageError
from opanatomy.files.outputs import Claim, claimed, name_of_rank, temporary
from opanatomy.pipeline import analyze_traces
from opanatomy.records.anatomy import Anatomy
from opanatomy.run_options import RunOptions

if TYPE_CHECKING:
    import torch

    from opanatomy.capture.loop.recording import LoopRecording, Recorded


def record(
    trace: Name | None = None,
    *,
    module: torch.nn.Module | Sequence[torch.nn.Module] | Mapping[str, torch.nn.Module] | None = None,
    steps: int = 1,
    warmup: int | None = None,
    memory: bool = False,
    check: bool = False,
    redact: bool = False,
    force: bool = False,
) -> Recorder:
    """A recorder of the training loop inside its `with` block; it writes a trace and has its `anatomy`.

        with opanatomy.record("step.json.gz") as recorder:
            for batch, labels in loader:
                loss = criterion(model(batch), labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                recorder.step()
        print(recorder.anatomy.classes)

    `step()` ends an iteration. The first `warmup` are not profiled (5: one cold, one in which calls are counted a
    second time, the rest on the clock), the next `steps` are (on an accelerator after one in which the profiler warms
    up), with `memory` one more is traced allocation by allocation, and in one more calls are counted again, to know
    whether the steps are alike. Then the trace is written, and the loop goes on as if nothing were there; where it ends
    before, what was recorded is written. Without a call of `step()` the whole block is one step, profiled as it runs:
    nothing is known of its time without a profiler, and a warning says where it held several iterations. Only the
    loop's own code is run; its results are those it has without this.

    **Forward** is each outermost call of a module (of those in `module` where some are given), and what runs after it
    until backward begins: the loss, however it is computed; before the first module what autograd differentiates. A
    call without gradients is forward only while it lasts.
    **Backward** is what `torch.autograd` runs and the scaling of the loss before it, **optimizer** each optimizer's
    step and what runs between backward and it: unscaling, clipping. The rest (data loading, `zero_grad`, schedulers,
    metrics after the update) is other. Forward operators that run again inside of backward are recompute.

    `module` also says whose paths the report has; a dictionary names several. Without it they are the modules that the
    loop calls. With `check` a second count that does not agree raises `GateError` at the end of the block. `force`
    writes in place of an old file. On several ranks each records itself, in a file that has its rank in its name
    (`step.rank0.json.gz`). `redact` leaves paths, arguments, hosts and users out; without `trace` no file is
    kept.
    Raises `UsageError`, `ModelError` and `OutputError` for what it is given, `CaptureError` where a profiler or
    another recorder runs already and, at the end, where the loop was too short. An error of the block goes through as
    it is; then no trace is written that was not before.
    """
    from opanatomy.redaction.values import of_process

    of_process()  # the loop's own code may take a secret out of the environment
    options = RunOptions(steps=steps, warmup=warmup, memory=memory, check=check, redact=redact)
    check_switch("force", force)
    target = None if trace is None else trace_target("record", trace)
    return Recorder(_modules(module), options, target, force=force)


class Recorder:
    """Records a loop: a context manager, or `start()` and `stop()` where a `with` block does not fit."""

    def __init__(
        self,
        modules: Mapping[str, torch.nn.Module],
        options: RunOptions,
        target: Path | None,
        *,
        force: bool,
        numbered: bool = False,
    ) -> None:
        self._modules, self._options, self._target, self._force = modules, options, target, force
        self._numbered = numbered
        self._recording: LoopRecording | None = None
        self._is_over = False
        self._claim: Claim | None = None
        self._files = ExitStack()
        self._trace: Path | None = None
        self._anatomy: Anatomy | None = None

    def __enter__(self) -> Recorder:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
            return
        hint = None if self._recording is None else self._recording.blames(error)
        self._abort()
        if hint is not None:
            warnings.warn(hint, stacklevel=2)

    def start(self) -> None:
        """The first iteration begins."""
        if self._recording is not None or self._is_over:
            raise CaptureError("record: this recorder was started already - make another one")
        if running:
            raise CaptureError(
                "record: a recorder is running already, and torch takes one profiler at a time - end its block, or call"
                " its stop()"
            )
        check_no_profiler("record")
        try:
            self._claim_trace()
            self._recording = self._new_recording()
            running.append(self)
            self._recording.start()
        except BaseException:
            self._abort()
            raise

    def step(self) -> None:
        """An iteration of the loop is done."""
        if self._is_over:
            return
        recording = self._started()
        try:
            recording.step()
        except BaseException:
            self._abort()
            raise
        if recording.done:
            self._abort()

    def stop(self) -> None:
        """The loop is done; writes the trace where that has not been done."""
        if not self._is_over:
            recording = self._started()
            try:
                recording.stop()
            finally:
                self._abort()
        if self._options.check:
            from opanatomy.checks import require_agreement

            require_agreement(self.anatomy)

    @property
    def anatomy(self) -> Anatomy:
        """The anatomy of what was recorded; `CaptureError` before all of it is."""
        if self._anatomy is None:
            if self._trace is None:
                raise CaptureError("record: nothing is recorded yet - ask for the anatomy after the block")
            anatomy = analyze_traces([self._trace], redact=self._options.redact)
            if self._target is None:
                anatomy = replace(anatomy, provenance=replace(anatomy.provenance, trace=None))
            self._anatomy = anatomy
        return self._anatomy

    def _new_recording(self) -> LoopRecording:
        from opanatomy.capture.loop.recording import LoopRecording

        return LoopRecording(self._modules, self._options, self._write)

    def _started(self) -> LoopRecording:
        if self._recording is None:
            raise CaptureError("record: the recorder was not started - use it in a with statement")
        return self._recording

    def _claim_trace(self) -> None:
        """Claim the trace's file, a rank its own; a temporary one lives as long as the recorder does."""
        from opanatomy.capture.distributed.group import place_in_group

        if self._target is not None:
            place = place_in_group()
            target = self._target if place is None else name_of_rank(self._target, place.rank)
            self._claim = self._files.enter_context(
                claimed(target, force=self._force, numbered=self._numbered, forced_by="give force=True")
            )
            return
        folder = ExitStack()
        self._unkept = folder.enter_context(temporary("step.trace.json.gz", "the trace"))
        weakref.finalize(self, folder.close)

    def _write(self, recorded: Recorded) -> None:
        from opanatomy.capture.step.export import export_trace

        def export(path: Path) -> None:
            export_trace(
                recorded.profiler, recorded.capture, path, everything=self._options.redact, renamed=recorded.renamed
            )

        if self._claim is None:
            export(self._unkept)
            self._trace = self._unkept
            return
        with self._claim.written() as partial:
            export(partial)
        self._trace = self._claim.target
        self._files.close()

    def _abort(self) -> None:
        """Release everything, the models too; what is written stays."""
        if self in running:
            running.remove(self)
        if self._recording is not None:
            self._recording.abort()
            self._recording, self._is_over = None, True
        self._modules = {}
        self._files.close()

    def __repr__(self) -> str:
        state = "not started" if self._recording is None else "recording"
        state = "recorded" if self._trace is not None else "ended" if self._is_over else state
        return f"<opanatomy.Recorder, {state}>"


#: The recorder that runs now.
running: list[Recorder] = []


def _modules(module: Any) -> dict[str, torch.nn.Module]:
    """The modules by the names that begin their paths; one has none."""
    import torch

    if module is None:
        return {}
    named: dict[str, Any] = {}
    if isinstance(module, torch.nn.Module) or not isinstance(module, (Mapping, Sequence)) or isinstance(module, str):
        check_module("record", module)
        named[""] = module
        return named
    if not module:
        raise UsageError("record: module has no module in it - leave it out, or give some")
    from opanatomy.capture.loop.modules import by_class

    if isinstance(module, Mapping):
        named.update((str(name), part) for name, part in module.items())
    for part in named.values() or module:
        check_module("record", part)
    return named or by_class(list(module))
