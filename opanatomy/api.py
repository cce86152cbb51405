"""Analyze a trace or profile a module and get an `Anatomy`: the Python entry points."""

from __future__ import annotations

import atexit
import os
import re
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast, overload

from msgspec import structs
from msgspec.structs import replace

from opanatomy.analysis.compare import RunInput, SideInput, compared
from opanatomy.analysis.replay import changes_of
from opanatomy.attribution.phases import PhaseRule, phase_rules_of
from opanatomy.capture.distributed.launched import launched
from opanatomy.errors import CaptureError, OpanatomyError, OutputError, TraceError, UsageError
from opanatomy.io.files import (
    Address,
    OutputFile,
    check_no_address,
    folder_of_traces,
    local_name,
    name_of_rank,
    output_file,
    scheme_of,
    temporary,
)
from opanatomy.io.redact import Texts, redacted
from opanatomy.io.sources import STDIN, is_stream, spooled
from opanatomy.memory.snapshots import categories_of
from opanatomy.options import (
    ESTIMATE,
    JOBS,
    OF_RANKS,
    PROCESSES,
    RunOptions,
    as_argument,
    check_estimate,
    check_several,
    checked,
    instead_of,
)
from opanatomy.parallel import ClusterSettings
from opanatomy.pipeline import analyze_traces, anatomy_of_ranks, packed_summary_of, replayed
from opanatomy.records.anatomy import Anatomy as AnatomyRecord
from opanatomy.records.anatomy import Replay
from opanatomy.records.comparison import Comparison as ComparisonRecord
from opanatomy.records.experiment import Techniques as TechniquesRecord
from opanatomy.records.reports import Report
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report import units
from opanatomy.report.formats.json import json_report, report_as_dict
from opanatomy.report.formats.terminal import sentence
from opanatomy.report.frames import pandas_frame, polars_frame
from opanatomy.report.load import document_in, kind_in_words, report_in
from opanatomy.report.metrics import metrics_of, metrics_of_comparison
from opanatomy.report.section import LABEL, cut, printable
from opanatomy.report.sections.verdict import headline

if TYPE_CHECKING:
    import torch

    from opanatomy.capture.loop.clock import Clock
    from opanatomy.capture.loop.numbered_steps import NumberedSteps, StepPlan
    from opanatomy.capture.loop.recording import LoopRecording, Recorded
    from opanatomy.capture.run.export import TraceWriter
    from opanatomy.capture.subject import Subject

Inputs: TypeAlias = "dict[str, Any] | tuple[Any, ...]"


def analyze(
    trace: Name | Iterable[Name],
    *,
    phases: Mapping[str, str | Sequence[str]] | None = None,
    redact: bool = False,
    summaries: str | os.PathLike[str] | None = None,
    dask: str | None = None,
    jobs: int | None = None,
    at: str | None = None,
    what_if: Sequence[str] | None = None,
    timeline: str | None = None,
    categories: Mapping[str, str] | None = None,
) -> Anatomy:
    """Return the anatomy of a torch.profiler trace (`.json` or `.json.gz`), or of the ranks of one run together.

    Of a CUDA memory snapshot (`.pickle`) it is what fills the memory, `at` "peak", "end", a time like "120ms", by
    default where memory ran out, else the peak; `categories` maps components of your own to regular expressions: a
    block allocated below a frame `attention.py:31 forward` in which one is found is of that. `what_if` are changes
    like "aten::mm x0.5" or "synchronization 0": the steps of a trace of a GPU are timed again with each of them, and
    with all (`anatomy.replay.answers`). With `timeline` "full" `anatomy.lanes` has every event of its step, however
    many.

    Ranks are several files, a folder or a zip, here or at an address (`s3://...`); they are read by `jobs` processes
    (by default one a core), or by the workers of the Dask scheduler at the address `dask`, which may be "local" (in a
    script under `if __name__ == "__main__":`). The summary of each is kept in the folder `summaries`, by default in the
    user's cache folder, and a trace that has not changed is not read again. `phases` maps a phase ("forward",
    "backward", "recompute", "optimizer", "other") to a regular expression, or several, searched for in the names of the
    trace's own ranges: what runs in them belongs to that phase, whatever is inferred. With `redact` paths, arguments,
    hosts and users are left out; secrets always are. Raises `TraceError` if nothing can be read and `UsageError` for an
    unknown phase or an invalid regular expression.
    """
    rules = phase_rules_of({} if phases is None else phases)
    changes = changes_of(_texts_of("analyze: what_if", what_if or ()))
    names = [trace] if isinstance(trace, (str, bytes, os.PathLike)) else trace
    if not isinstance(names, Iterable):
        raise UsageError(f"analyze: a trace is a path, not {kind_of(trace)} - give the name of a file or folder")
    paths = [_trace(name) for name in names]
    if not paths:
        raise UsageError("analyze: no trace is given - give the name of a file or folder")
    check_switch("redact", redact)
    settings = _cluster_settings(summaries, dask, jobs)
    try:
        anatomy = analyze_traces(
            paths,
            phases=rules,
            redact=redact,
            cluster=settings,
            at=at,
            what_if=changes,
            timeline=timeline,
            categories=categories_of("analyze: categories ", (categories or {}).items()),
        )
        return _located(anatomy, paths, rules)
    except TraceError as error:
        document = document_in(paths[0]) if len(paths) == 1 and isinstance(paths[0], Path) else None
        if document is not None:
            what = kind_in_words(document)
            raise UsageError(f"analyze: {paths[0]} is {what}, not a trace - read it with opanatomy.read") from error
        raise


def _located(anatomy: AnatomyRecord, paths: Sequence[Path | Address], phases: Sequence[PhaseRule] = ()) -> Anatomy:
    """Return the anatomy with the places of its traces, for `what_if`; a pipe cannot be read again."""
    made = held(anatomy)
    if not any(isinstance(path, Path) and is_stream(path) for path in paths):
        vars(made)[_TRACES] = paths, phases
    return made


#: What an anatomy has besides its fields, and no copy or file of it: its traces, and the rules of their phases.
_TRACES: Final = "_traces"


def _texts_of(what: str, given: object) -> list[str]:
    """Return the texts that are given; raise `UsageError` that begins with `what` for anything else."""
    several = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    texts = [text for text in several if isinstance(text, str)]
    if len(texts) < len(several):
        raise UsageError(f"{what}: not all are texts - give changes such as 'aten::mm x0.5'")
    return texts


def read(report: Name) -> Anatomy | Comparison | Techniques:
    """Return the `Anatomy`, the `Comparison` or the `Techniques` in a JSON report, equal to the one that was written.

    Reports are written by `to_json` of each, `opanatomy ... -f json` and `-o FILE.json`.

    Raises `UsageError` for an invalid file name, `OpanatomyError` for a file that is not a report: a trace is
    analyzed by `opanatomy.analyze`.
    """
    path = path_of("read", report)
    if scheme_of(os.fspath(report)) is not None:
        raise UsageError(f"read: {os.fspath(report)}: it is an address, not a file - copy the report here first")
    _check_readable(path)
    document = document_in(path)
    if document is None:
        raise OpanatomyError(
            f"read: {path} is not a report of opanatomy - give what Anatomy.to_json, Comparison.to_json or `opanatomy`"
            " wrote as JSON, and a trace to opanatomy.analyze"
        )
    return held(document)


def profile(
    module: torch.nn.Module,
    inputs: Any,
    *,
    trace: Name | None = None,
    force: bool = False,
    amp: str | None = None,
    optimizer: str | None = None,
    accumulate: int = 1,
    clip: float | None = None,
    inference: bool = False,
    generate: int | None = None,
    beams: int | None = None,
    compile: bool = False,
    compile_mode: str | None = None,
    steps: int = 1,
    warmup: int | None = None,
    processes: int | None = None,
    parallel: str | None = None,
    bucket_mb: float | None = None,
    bucket_view: bool = False,
    memory: bool = False,
    lines: bool = False,
    check: bool = False,
    redact: bool = False,
    oom: bool | str = False,
) -> Anatomy:
    """Profile one forward and backward pass of `module` on `inputs` (a tensor, a tuple or a dictionary).

    The module runs where its parameters are, in its current mode. Backward starts from its output's `loss`; without
    one, from the only single number that requires a gradient; without that, from every output that does, with a
    gradient of ones (`workload.backward_from` says which). `amp` is `bf16` or `fp16`; `trace` keeps the Chrome trace in
    a new file of that name; `force` overwrites an old one. `steps` are profiled, after `warmup` ones that are not.
    `optimizer` ("adamw", "sgd", ...) is made by opanatomy, `compile` compiles the module (in `compile_mode`, such as
    "reduce-overhead"), and with `inference` the step is a forward alone. With `accumulate` the batch, the first
    dimension of each input, is cut into that many micro-batches, whose gradients go into one update; `clip` is the norm
    to which they are scaled down before it. With `generate` the step is `module.generate(**inputs)` with that many new
    tokens for each sample, by beam search with `beams` above 1. `memory` traces the memory of one more step, block by
    block; `lines` runs one more line by line (`Anatomy.lines`). Every run is counted a second time (`Anatomy.checks`);
    with `check` a count that does not agree raises `GateError`. With `redact` paths, arguments, hosts and users are
    left out of the report and the trace; secrets always are. With `oom="report"` the history of the CUDA allocator is
    recorded; where memory runs out, it is written, with a page of what filled it, and the error goes its way.

    With `processes` the module is trained on that many processes, forks of this one started by Accelerate's
    `notebook_launcher`; `parallel` (`ddp`, `fsdp2`, `fsdp2+checkpointing`, `hsdp`, `tp`), `bucket_mb` and `bucket_view`
    say how. Each has its copy of the module and of these inputs, which are those of one rank; what it changes stays
    there, weights too, and it computes on one thread. `trace` becomes a file for each rank (`step.rank0.json.gz`). To
    profile a module that its ranks share already (in DDP, sharded), make the call on each rank; each returns the
    anatomy of its own rank.

    The module is left as it was: modes, buffers, gradients and flags; so are the inputs, their gradients and the random
    states. Its weights change only with `optimizer`, which updates them in every step.
    Raises `UsageError`, `ModelError`, `CaptureError`, `OutOfMemory` and `OutputError`, each an `OpanatomyError`.
    """
    from opanatomy.io.redact import of_process

    of_process()  # the module's own code may take a secret out of the environment
    check_module("profile", module)
    arguments = _arguments(inputs)
    target = trace_target("profile", trace)
    target = None if target is None else _of_rank(target, module)
    options = RunOptions(
        amp=amp,
        optimizer=optimizer,
        accumulate=accumulate,
        clip=clip,
        inference=inference,
        generate=generate,
        beams=beams,
        compile=compile,
        compile_mode=compile_mode,
        steps=steps,
        warmup=warmup,
        memory=memory,
        lines=lines,
        check=check,
        redact=redact,
        parallel=parallel,
        bucket_mb=bucket_mb,
        bucket_view=bucket_view,
    )
    check_switch("force", force)
    count = checked(PROCESSES, processes, as_argument) or 1
    check_several(options, count, as_argument)
    check_no_profiler("profile")
    subject = _subject(module, arguments, options)
    if count > 1:
        anatomy = profiled_on(count, subject, options, target, force=force)
    else:
        with oom_report("profile", target, oom), _recorded(subject, options, target, force) as path:
            anatomy = _located(analyze_traces([path], redact=options.redact), [path])
    if target is None:
        anatomy = replace(anatomy, provenance=replace(anatomy.provenance, trace=None))
    if options.check:
        from opanatomy.checks.counts import require_agreement

        require_agreement(anatomy)
    return anatomy


def estimate(
    model: str,
    *,
    on: str | Sequence[str],
    devices: int = 1,
    link: str | None = None,
    sweep: str | None = None,
    tf32: bool = False,
    tokens_per_second: float | None = None,
    **options: Any,
) -> Anatomy:
    """Return the anatomy of a step on a device that is not here: `"H100"`, `["A100", "RTX 4090"]`; nothing is run.

    `Anatomy.estimated` has the range of its time in ns and its memory in bytes on each device, all else is of the
    first. `model` is a catalog name, a Hub id, a folder, or `"file.py:function"`; `options` are those of `opanatomy
    estimate` with `_` for `-`: batch, seq, amp, dtype, optimizer, checkpointing, parallel, ... Raises `UsageError` for
    an unknown device or option, `EstimateError` for a step that cannot be followed.
    """
    from opanatomy.predict.estimate import estimate_of

    known = {option.name for option in ESTIMATE} & set(RunOptions.__struct_fields__)
    for name in options.keys() - known:
        raise UsageError(f"estimate: unknown option {name} - {instead_of(name, sorted(known))}")
    run = RunOptions(model=model, **options)
    names = (on,) if isinstance(on, str) else tuple(on)
    asked = {"devices": devices, "link": link, "sweep": sweep, "on": names, "texts": run.texts}
    check_estimate(SimpleNamespace(**asked, **{each.name: getattr(run, each.name) for each in OF_RANKS}), as_argument)
    return held(
        estimate_of(
            run,
            names,
            ranks=devices,
            link=link,
            sweep=sweep,
            tf32=tf32,
            tokens_per_second=tokens_per_second,
            command=f"opanatomy.estimate({model!r}, on={on!r})",
            stage=lambda _: None,
        )
    )


def _of_rank(target: Path, module: torch.nn.Module) -> Path:
    """Return the file of a rank if ranks share the module."""
    from opanatomy.capture.distributed.group import parallel_kind, place_in_group

    place = place_in_group() if parallel_kind([module]) else None
    return target if place is None else name_of_rank(target, place.rank)


def _subject(module: torch.nn.Module, inputs: Inputs, options: RunOptions) -> Subject:
    from opanatomy.capture.distributed.sharing import of_a_group
    from opanatomy.capture.model.workload import given, workload_of
    from opanatomy.capture.subject import Subject

    workload = workload_of(given(module, inputs), options)
    subject = Subject(module=module, inputs=inputs, workload=workload, command="opanatomy.profile(...)", borrowed=True)
    return of_a_group(subject)


@contextmanager
def _recorded(subject: Subject, options: RunOptions, target: Path | None, force: bool) -> Iterator[Path]:
    """Give the trace of the step: in `target`, whole or not at all, or in a temporary file."""
    from opanatomy.capture.run.recorder import record_step
    from opanatomy.report.notebook import notebook_progress

    if target is None:
        with temporary("step.trace.json.gz", "the trace") as path:
            with notebook_progress() as progress:
                record_step(subject, options, path, progress)
            yield path
        return
    output = output_file(target, force=force, forced_by="give force=True")
    with output.written() as partial, notebook_progress() as progress:
        record_step(subject, options, partial, progress)
    yield output.target


# ------------------------------------------------------------------------------------------------------------- checks


def _arguments(inputs: object) -> Inputs:
    """Return the arguments to call the module with, by name or by place."""
    import torch

    if isinstance(inputs, torch.Tensor):
        return (inputs,)
    if isinstance(inputs, Mapping):
        return {str(key): value for key, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs)
    raise UsageError(f"profile: the inputs are {kind_of(inputs)} - give a tensor, a tuple of arguments or a dictionary")


def _cluster_settings(summaries: object, dask: object, jobs: int | None) -> ClusterSettings:
    """Return how to read ranks; raise `UsageError` for an invalid folder, address or number."""
    folder = None
    if summaries is not None:
        path_of("analyze: summaries", summaries)
        folder = os.fspath(cast("Name", summaries))
    if dask is not None and not (isinstance(dask, str) and dask):
        raise UsageError(f"dask={dask!r}: must be the address of a Dask scheduler, or 'local'")
    return ClusterSettings(summaries=folder, dask=dask, jobs=checked(JOBS, jobs, as_argument))


def _check_readable(path: Path) -> None:
    """Raise `OpanatomyError` for anything but a readable file; a pipe is not opened."""
    try:
        if path.is_dir():
            raise OpanatomyError(f"read: cannot read {path}: it is a folder - give the name of a report")
        if path.is_file() or not os.path.lexists(path):
            path.open("rb").close()
    except OSError as error:
        raise OpanatomyError(
            f"read: cannot read {path}: {error.strerror or error} - give the name of a report"
        ) from error


def _trace(name: object) -> Path | Address:
    """Return the path of a trace to read, or its address."""
    path = path_of("analyze", name)
    if not isinstance(name, str):
        return Path(path)
    name = local_name(name)
    return Address.of(name, f"cannot read {name}") or Path(name)


# `opanatomy.profile` on several processes: each records its own trace, all of them make one anatomy.


def profiled_on(processes: int, subject: Subject, options: RunOptions, target: Path | None, *, force: bool) -> Anatomy:
    """Return the anatomy over that many ranks that train the subject's module together, each on its own inputs.

    The traces are those of `target`, each with its rank in its name; without it they are temporary.
    """
    from opanatomy.capture.device.accelerators import device_of
    from opanatomy.capture.distributed.notebook import on_processes

    if launched() is not None:
        raise UsageError(
            f"profile: processes={processes}, and this process is one of several already - leave it out, and call this"
            " on each"
        )
    on_host = device_of(subject.module, subject.inputs) == "cpu"
    files: list[tuple[Path, str | None]]
    with ExitStack() as stack:
        if target is None:
            name = stack.enter_context(temporary("step.trace.json.gz", "the traces"))
            files = [(name_of_rank(name, rank), None) for rank in range(processes)]
        else:
            names = [name_of_rank(target, rank) for rank in range(processes)]
            outputs = [output_file(name, force=force, forced_by="give force=True") for name in names]
            files = [(stack.enter_context(output.written()), output.path.name) for output in outputs]
        summaries = on_processes(lambda: _summary(subject, options, files), processes, on_host=on_host)
    return held(anatomy_of_ranks(summaries, redact=options.redact))


def _summary(subject: Subject, options: RunOptions, files: Sequence[tuple[Path, str | None]]) -> bytes:
    """Return the packed summary of this rank's trace."""
    from opanatomy.capture.distributed.ranks import joined
    from opanatomy.capture.distributed.sharing import shared
    from opanatomy.capture.run.recorder import record_step

    place = launched()
    assert place is not None
    path, name = files[place.rank]
    with joined(options, place) as group:
        record_step(shared(subject, None, options, group), options, path)
        return packed_summary_of(path, name=name, redact=options.redact)


# `opanatomy.record`: a training loop of the user's own -> a trace, and its `Anatomy`.


def record(
    trace: Name | None = None,
    *,
    module: torch.nn.Module | Sequence[torch.nn.Module] | Mapping[str, torch.nn.Module] | None = None,
    steps: int = 1,
    warmup: int | None = None,
    memory: bool = False,
    lines: bool = False,
    check: bool = False,
    redact: bool = False,
    force: bool = False,
    oom: bool | str = False,
) -> Recorder:
    """Return a recorder of the training loop inside its `with` block; it writes a trace and has its `anatomy`.

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
    up), with `lines` one more runs line by line, with `memory` one more is traced allocation by allocation, and in one
    more calls are counted again, to know whether the steps are alike. Then the trace is written, and the loop goes on
    undisturbed; if it ends earlier, what was recorded is written. Without a call of `step()` the whole block is one
    step, profiled as it runs: its time without a profiler is unknown, and a warning says if it held several iterations.
    Only the loop's own code is run; its results are those it has without this.

    **Forward** is each outermost call of a module (of those in `module` if some are given), and what runs after it
    until backward begins: the loss, however it is computed; before the first module what autograd differentiates. A
    call without gradients is forward only while it lasts.
    **Backward** is what `torch.autograd` runs and the scaling of the loss before it, **optimizer** each optimizer's
    step and what runs between backward and it: unscaling, clipping. The rest (data loading, `zero_grad`, schedulers,
    metrics after the update) is other. Forward operators that run again inside of backward are recompute.

    `module` also says whose paths the report has; a dictionary names several. Without it they are the modules that the
    loop calls. With `check` a second count that does not agree raises `GateError` at the end of the block. `force`
    overwrites an old file. On several ranks each records itself, in a file that has its rank in its name
    (`step.rank0.json.gz`). `redact` leaves paths, arguments, hosts and users out; without `trace` no file is kept.
    With `oom="report"` the history of the CUDA allocator is recorded; where memory runs out in the block, it is written
    (`step.oom.pickle`), with a page of what filled it (`step.oom.html`), and the error goes its way.
    Raises `UsageError`, `ModelError` and `OutputError` for invalid arguments, `CaptureError` if a profiler or another
    recorder runs already and, at the end, if the loop was too short. An error of the block goes through as it is; then
    no trace is written that was not before.
    """
    from opanatomy.io.redact import of_process

    of_process()  # the loop's own code may take a secret out of the environment
    options = RunOptions(steps=steps, warmup=warmup, memory=memory, lines=lines, check=check, redact=redact)
    check_switch("force", force)
    target = trace_target("record", trace)
    return Recorder(_modules(module), options, target, force=force, oom=oom_report("record", target, oom))


@contextmanager
def oom_report(function: str, target: Path | None, oom: str | bool) -> Iterator[None]:
    """Write what filled a GPU's memory if it runs out inside: the allocator's history and a page; the error goes on.

    The files are called after the trace `target` (`step.oom.pickle`, `step.oom.html`), numbered where they exist. Where
    torch sees no CUDA device, there is a warning and nothing to write.
    """
    from opanatomy.capture.memory.history import AllocatorHistory, is_recordable
    from opanatomy.records.memory import is_out_of_memory

    if oom not in (False, True, "report"):
        raise UsageError(f"{function}: oom={oom!r}: not known - give 'report', or leave it out")
    if not oom:
        yield
        return
    if not is_recordable():
        warnings.warn(f"{function}: oom='report' needs a CUDA device, and this torch sees none", stacklevel=3)
        yield
        return
    stem = "opanatomy" if target is None else re.sub(r"(\.trace)?\.json(\.gz)?$", "", target.name)
    folder = Path() if target is None else target.parent
    place = output_file(folder / f"{stem}.oom.pickle", force=False, numbered=True)
    history = AllocatorHistory(place.target)
    history.start()
    try:
        yield
    except BaseException as error:
        history.stop()
        if is_out_of_memory(error):
            history.ends()
            if history.is_written:
                _tell_what_filled(place.target)
        raise
    finally:
        history.stop()


def _tell_what_filled(snapshot_: Path) -> None:
    """Write the page of a snapshot, and say in a line where memory ran out; what goes wrong here is a line too."""
    page = snapshot_.with_suffix(".html")
    try:
        anatomy = held(analyze_traces([snapshot_]))
        anatomy.to_html(page, force=True)
        text = f"{sentence(headline(anatomy)[0])} {page} shows it, {snapshot_} is the snapshot"
    except Exception as error:  # the error of the program goes on, whatever happens here
        text = f"memory ran out: {snapshot_} (no page of it: {error})"
    print(f"opanatomy: {text}", file=sys.stderr, flush=True)


@contextmanager
def snapshot(
    path: Name,
    *,
    module: torch.nn.Module | Sequence[torch.nn.Module] | Mapping[str, torch.nn.Module] | None = None,
    force: bool = False,
) -> Iterator[None]:
    """Record what torch's CUDA allocator does in the `with` block, and write it as a memory snapshot.

        with opanatomy.snapshot("step.pickle", module=model):
            model(batch).loss.backward()
        print(opanatomy.analyze("step.pickle").memory.components)

    It is the file of `torch.cuda.memory._dump_snapshot`, with Python and C++ stacks. With `module` the path of the
    module whose forward runs stands beside each allocation, where torch has a place for it (from 2.10 on). Where the
    block fails, an error of memory too, the file is written, and the error goes on. `force` overwrites an old one.
    Raises `UsageError` and `OutputError` for the name, `CaptureError` where torch sees no CUDA device.
    """
    from opanatomy.capture.memory.history import AllocatorHistory, modules_noted

    modules = _modules(module)
    check_switch("force", force)
    output = output_file(path_of("snapshot: path", path), force=force, forced_by="give force=True")
    history = AllocatorHistory(output.target)
    history.start()
    try:
        with modules_noted(modules):
            yield
    finally:
        history.ends()
        history.stop()
    if not history.is_written:
        raise OutputError(f"snapshot: {output.path} could not be written - is its folder there, and has it room?")


class Recorder:
    """Record a loop, as a context manager, or with `start()` and `stop()` if a `with` block does not fit."""

    def __init__(
        self,
        modules: Mapping[str, torch.nn.Module],
        options: RunOptions,
        target: Path | None,
        *,
        force: bool,
        numbered: bool = False,
        oom: AbstractContextManager[None] | None = None,
    ) -> None:
        self._modules, self._options, self._target, self._force = modules, options, target, force
        self._numbered = numbered
        #: What writes a report where memory runs out; it lasts as long as the block.
        self._oom = ExitStack()
        self._oom_report = nullcontext() if oom is None else oom
        self._recording: LoopRecording | None = None
        self._is_over = False
        self._steps = 0
        self._output: OutputFile | None = None
        self._writer: TraceWriter | None = None
        #: How long the loop stood still for the end of the profile: Kineto's own work, and its export.
        self.held_ns = 0
        self._anatomy: Anatomy | None = None
        #: The clock of the whole loop, and what takes it off again.
        self._clock: Clock | None = None
        self._clock_taken_off = ExitStack()

    def __enter__(self) -> Recorder:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
            return
        atexit.unregister(self._stop_at_exit)
        self._oom.__exit__(kind, error, traceback)
        hint = None if self._recording is None else self._recording.blames(error)
        self._abort()
        self.stop_clock()
        if hint is not None:
            warnings.warn(hint, stacklevel=2)

    def start(self) -> Recorder:
        """Begin the first iteration, and return this recorder; it ends with `stop()`, or with the program."""
        if self._recording is not None or self._is_over:
            raise CaptureError("record: this recorder was started already - make another one")
        if running:
            raise CaptureError(
                "record: a recorder is running already, and torch takes one profiler at a time - end its block, or call"
                " its stop()"
            )
        check_no_profiler("record")
        try:
            self._take_file()
            self._oom.enter_context(self._oom_report)
            self._recording = self._new_recording()
            running.append(self)
            self.start_clock()
            self._recording.start()
        except BaseException:
            self._abort()
            self.stop_clock()
            raise
        atexit.register(self._stop_at_exit)
        return self

    def _stop_at_exit(self) -> None:
        """End a loop that nobody has ended; what goes wrong then is a line."""
        if self._is_over and self._clock is None:
            return
        try:
            self.stop()
        except Exception as error:
            print(f"opanatomy: {error}", file=sys.stderr, flush=True)

    def step(self) -> None:
        """End an iteration of the loop."""
        recording = self._recording
        self._steps += 1
        if self._clock is not None:
            self._clock.step_ended(self._steps, counted=recording is None or recording.is_plain)
        if self._is_over:
            return
        recording = self._started()
        try:
            recording.step()
        except BaseException:
            self._abort()
            self.stop_clock()
            raise
        if recording.done:
            self._abort()
        if self._clock is not None:
            self._clock.goes_on()

    def stop(self) -> None:
        """End the loop; write the trace if that has not been done."""
        atexit.unregister(self._stop_at_exit)
        if not self._is_over:
            recording = self._started()
            try:
                recording.stop()
            finally:
                self._abort()
        self._oom.close()
        try:
            self._written()
        finally:
            self.stop_clock()
        if self._options.check:
            from opanatomy.checks.counts import require_agreement

            require_agreement(self.anatomy)

    @property
    def anatomy(self) -> Anatomy:
        """Return the anatomy of the recorded steps; raise `CaptureError` before it is complete."""
        if self._anatomy is None:
            trace = self._written()
            if trace is None:
                raise CaptureError("record: nothing is recorded yet - ask for the anatomy after the block")
            anatomy = _located(analyze_traces([trace], redact=self._options.redact), [trace])
            if self._target is None:
                anatomy = replace(anatomy, provenance=replace(anatomy.provenance, trace=None))
            self._anatomy = anatomy
        return self._anatomy

    def _new_recording(self) -> LoopRecording:
        from opanatomy.capture.loop.recording import LoopRecording

        return LoopRecording(self._modules, self._options, self._write)

    def start_clock(self) -> None:
        """Begin the clock of the whole loop."""
        from opanatomy.capture.loop.clock import Clock

        self._clock = Clock()
        self._clock.install(self._clock_taken_off)

    def stop_clock(self) -> None:
        """Take the clock off, and put what it measured into the trace, whose anatomy has it from now on."""
        run = None if self._clock is None else self._clock.read()
        self._clock = None
        self._clock_taken_off.close()
        try:
            trace = self._written()
        except OutputError as error:  # an error of the loop goes on
            warnings.warn(f"record: {error}", stacklevel=3)
            return
        if run is not None and trace is not None:
            from opanatomy.capture.run.export import with_run

            try:
                with_run(trace, run, everything=self._options.redact)
                self._anatomy = None
            except OSError as error:  # the trace is there without it, and an error of the loop goes on
                warnings.warn(f"record: the clock of the whole loop is not in {trace}: {error}", stacklevel=3)

    def _started(self) -> LoopRecording:
        if self._recording is None:
            raise CaptureError("record: the recorder was not started - use it in a with statement")
        return self._recording

    def _take_file(self) -> None:
        """Open the trace's file, on each rank its own; a temporary one lives as long as the recorder does."""
        from opanatomy.capture.distributed.group import place_in_group

        if self._target is not None:
            place = place_in_group()
            target = self._target if place is None else name_of_rank(self._target, place.rank)
            self._output = output_file(target, force=self._force, numbered=self._numbered, forced_by="give force=True")
            return
        folder = ExitStack()
        self._unkept = folder.enter_context(temporary("step.trace.json.gz", "the trace"))
        weakref.finalize(self, folder.close)

    def _write(self, recorded: Recorded) -> None:
        from opanatomy.capture.run.export import TraceWriter

        self._writer = TraceWriter(
            recorded.profiler,
            recorded.capture,
            self._output or self._unkept,
            everything=self._options.redact,
            renamed=recorded.renamed,
        )

    def _written(self) -> Path | None:
        """Wait for the trace to be written, and return it; `None` if nothing is recorded."""
        if self._writer is None:
            return None
        self._writer.wait()
        return self._unkept if self._output is None else self._output.target

    def _abort(self) -> None:
        """Release everything, the models too; files already written stay."""
        if self in running:
            running.remove(self)
        if self._recording is not None:
            self._recording.abort()
            self.held_ns = self._recording.held_ns
            self._recording, self._is_over = None, True
        self._modules = {}

    def __repr__(self) -> str:
        state = "not started" if self._recording is None else "recording"
        state = "recorded" if self._writer is not None else "ended" if self._is_over else state
        return f"<opanatomy.Recorder, {state}>"


class StepRecorder(Recorder):
    """Record the steps of a training between calls at the begin and end of each; write the trace after the last one.

    Its file is opened before the training begins.
    """

    _recording: NumberedSteps | None

    def __init__(
        self,
        modules: Mapping[str, torch.nn.Module],
        options: RunOptions,
        target: Path,
        *,
        force: bool,
        numbered: bool,
        plan: StepPlan,
        command: str,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        super().__init__(modules, options, target, force=force, numbered=numbered)
        self._plan, self._command, self._optimizer = plan, command, optimizer
        self._take_file()

    @property
    def trace(self) -> Path | None:
        """Return the trace, as its folder was given, once it is written; wait for that if its steps are recorded."""
        return None if self._written() is None or self._output is None else self._output.path

    @property
    def is_recorded(self) -> bool:
        """Return whether all steps are recorded, and their trace is written or being written."""
        return self._writer is not None

    @property
    def being_written(self) -> int | None:
        """Return the size of the trace as Kineto has written it, while it is redacted and packed; else `None`."""
        return None if self._writer is None or self._writer.is_done() else self._writer.size

    def is_over(self) -> bool:
        """Return whether nothing more is recorded."""
        return self._is_over

    @property
    def whole_steps(self) -> int:
        """Return how many profiled steps are done so far."""
        return 0 if self._recording is None else self._recording.whole_steps

    def begin_step(self, number: int, loading_ns: int | None) -> None:
        """Begin the step with this number; the training waited `loading_ns` for its batches before it."""
        if self._is_over or number < self._plan.begin:
            return
        try:
            if self._recording is None:
                self._check_alone()
                self._recording = self._new_recording()
                running.append(self)
                self._recording.start()
            if loading_ns is not None:
                self._recording.loading_ns.append(loading_ns)
            self._recording.begin_step()
        except BaseException:
            self._abort()
            raise

    def end_step(self) -> None:
        """End a step."""
        if self._recording is None:
            return
        try:
            self._recording.end_step()
        except BaseException:
            self._abort()
            raise
        if self._recording.done:
            self._abort()

    @property
    def has_clock(self) -> bool:
        """Return whether the clock of the training runs."""
        return self._clock is not None

    def clock(self, number: int) -> None:
        """End the step with this number on the clock, if that runs; what the recorder does to a step is none of it."""
        if self._clock is not None:
            begun = self._recording is not None or self._writer is not None
            self._clock.step_ended(number, counted=self._is_over or not begun)

    def finish(self) -> None:
        """End the recording with the training: write complete steps, and release the rest."""
        try:
            if self._recording is not None:
                self._recording.stop()
        finally:
            self.drop()

    def drop(self) -> None:
        """Release everything, and write nothing more."""
        self._abort()
        self._is_over = True
        if self._writer is None:
            self._clock = None
            self._clock_taken_off.close()

    def warn(self, text: str) -> None:
        """Have the report warn of this, once."""
        if self._recording is not None and text not in self._recording.session.warnings:
            self._recording.session.warnings.append(text)

    def is_unlike(self, why: str) -> None:
        """Note why the second count of the calls may differ from the profiled steps."""
        if self._recording is not None:
            self._recording.session.unlike = why

    def blames(self, error: BaseException) -> str | None:
        """Return what in the recording may be to blame for an error of the training, and what to do; else `None`."""
        return None if self._recording is None else self._recording.blames(error)

    def _check_alone(self) -> None:
        from torch._C._autograd import _profiler_enabled

        other = "another recorder is running" if running else "a torch profiler is running already"
        if running or _profiler_enabled():
            raise CaptureError(f"{other}, and torch takes one profiler at a time - give each steps of its own")

    def _new_recording(self) -> NumberedSteps:
        from opanatomy.capture.loop.numbered_steps import NumberedSteps

        return NumberedSteps(
            self._modules, self._options, self._write, plan=self._plan, command=self._command, optimizer=self._optimizer
        )


#: The recorder that runs now.
running: list[Recorder] = []


def _modules(module: Any) -> dict[str, torch.nn.Module]:
    """Return the modules by the names that begin their paths; a single module has no name."""
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


# Arguments of a comparison -> sides: anatomies, their JSON reports, traces, folders of ranks or of runs.


#: An anatomy, or the name of a file or folder to read one from.
Given: TypeAlias = "Anatomy | str | os.PathLike[str]"
_REPORT_ENDINGS: Final = (".json", ".json.gz")


def comparison_of(
    sides: Sequence[Given | Iterable[Given]],
    *,
    names: Sequence[str] = (),
    redact: bool = False,
    advance: Callable[[float], None] = lambda share: None,
) -> ComparisonRecord:
    """Compare the sides: each an anatomy, the name of a report, a trace or a folder, or several runs of it.

    They are called by `names`, if given, else by the ends of their own names.
    Raises `UsageError` for fewer than two sides, and the errors of reading them.
    """
    if len(sides) < 2:
        raise UsageError("compare: two sides at least - give reports, traces or folders: compare A B")
    inputs = []
    for place, side in enumerate(sides, 1):
        inputs.append(replace(_redacted(_side(side, redact=True)), name=f"side {place}") if redact else _side(side))
        advance(place / len(sides))
    return redacted(compared(inputs if redact else _named(inputs, names)), Texts(everything=redact))


def compare(*sides: Given | Iterable[Given], fail_if: str | Iterable[str] = (), redact: bool = False) -> Comparison:
    """Return what changed from one side to the next, and for two sides the causes of the difference of the step.

    A side is an `Anatomy`, the path of a JSON report or of a trace, a folder (the ranks of a run, or the reports of
    several runs), or a list of any of these, which are several runs of it. The parts of `Comparison.decomposition` sum
    to both steps in whole nanoseconds; `figures` has each figure on all sides, with ranges, and with five runs a side
    that took turns the p of a Mann-Whitney test.
    With `fail_if`, a gate such as `"time > +5%"` or several, raises `GateError` if one is not met. With `redact` paths,
    arguments, hosts and users are left out. Raises `UsageError` for fewer than two sides and for an invalid gate, and
    the errors of `analyze` and `read`.
    """
    from opanatomy.report.gates import gates_of, judged, require_met

    gates = gates_of([fail_if] if isinstance(fail_if, str) else list(fail_if))
    comparison = judged(comparison_of(sides, redact=redact), gates)
    require_met(comparison.gates)
    return held(comparison)


def _side(given: Any, *, redact: bool = False) -> SideInput:
    if isinstance(given, (AnatomyRecord, str, os.PathLike)):
        runs = _runs(given, redact=redact)
        name = _name(given)
    else:
        if isinstance(given, Comparison):
            raise UsageError("compare: a side is a Comparison already - give the runs that it compares")
        if not isinstance(given, Iterable) or isinstance(given, bytes):
            raise UsageError(f"compare: a side is an Anatomy, a path or a list of them, not {kind_of(given)}")
        several = list(given)
        if not several:
            raise UsageError("compare: a side has no runs - give one anatomy or several")
        runs = [run for each in several for run in _runs(each, redact=redact)]
        name = _name(several[0])
    named = (run if run.name and not redact else replace(run, name=f"run {place}") for place, run in enumerate(runs, 1))
    return SideInput(name=name, runs=tuple(named))


def _redacted(side: SideInput) -> SideInput:
    """Redact the side: parts of a difference are texts made of names and arguments."""
    texts = Texts(everything=True)
    runs = (replace(run, anatomy=redacted(run.anatomy, texts)) for run in side.runs)
    return SideInput(name=side.name, runs=tuple(runs))


def _runs(given: Any, *, redact: bool) -> list[RunInput]:
    """Return the run of a report, a trace or the ranks in a folder; for a folder of reports all of them."""
    if isinstance(given, AnatomyRecord):
        return [_run(given)]
    name = path_of("compare", given)
    if isinstance(given, str):
        given = local_name(given)
        if (address := Address.of(given, f"cannot read {given}")) is not None:
            return [_run(analyze_traces([address], redact=redact), given)]
        name = Path(given)
    if name.is_dir():
        reports = list(reports_among(name))
        if reports:
            return [_run(anatomy, file.name) for file, anatomy in reports]
    with spooled([name]) as (path,):
        report = report_in(Path(str(path)))
        report = analyze_traces([path], redact=redact) if report is None else report
        if report.memory.moment == "oom" and report_in(Path(str(path))) is None:
            report = analyze_traces([path], redact=redact, at="peak")
        return [_run(report, _name(given))]


def reports_among(folder: Path) -> Iterator[tuple[Path, AnatomyRecord]]:
    """Yield the JSON reports in a folder, by their names, and the anatomies in them."""
    files = sorted(file for file in folder.iterdir() if file.name.endswith(_REPORT_ENDINGS))
    return ((file, anatomy) for file in files if (anatomy := report_in(file)) is not None)


def _run(anatomy: AnatomyRecord, name: str = "") -> RunInput:
    return RunInput(anatomy=anatomy, metrics=metrics_of(anatomy), name=name)


def _name(given: Any) -> str:
    if given == STDIN:
        return "stdin"
    if isinstance(given, AnatomyRecord):
        return given.provenance.trace or given.workload.model or "anatomy"
    return os.fsencode(os.fspath(given)).decode(errors="replace").rstrip("/")


def _named(sides: Sequence[SideInput], given: Sequence[str]) -> list[SideInput]:
    """Call the sides by the given names, or by the ends of their own that tell them apart; number equal ones."""
    short = list(given)
    if not given:
        names = [side.name for side in sides]
        parts = [name.split("/") for name in names]
        for count in range(1, max(map(len, parts)) + 1):
            short = ["/".join(part[-count:]) for part in parts]
            if len(set(short)) == len(set(names)):
                break
    if len(set(short)) < len(short):
        short = [f"{name} ({place})" for place, name in enumerate(short, 1)]
    return [SideInput(name=name, runs=side.runs) for name, side in zip(short, sides, strict=True)]


#: Cells of a name.
_NAME_WIDTH: Final = 48
_REPORT_BYTES: Final = 1 << 20


class _Report:
    """Methods of every report that a user holds."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON report as dictionaries, lists, texts and numbers, of one run with the rows of its tables."""
        return report_as_dict(cast("Report", self))

    def to_json(self, path: Name | None = None, *, force: bool = False) -> str:
        """Return the JSON report, which `opanatomy.read` takes back, and write it to the new file `path` if given.

        `force` writes in place of an old file. Raises `OutputError` if it cannot be written.
        """
        text = json_report(cast("Report", self))
        if path is not None:
            target = path_of("to_json: path", path)
            check_no_address("to_json: path", os.fspath(path))
            output = output_file(target, force=force, forced_by="give force=True", needed_bytes=_REPORT_BYTES)
            with output.written() as partial:
                partial.write_text(text, encoding="utf-8")
        return text

    def to_html(self, path: Name, *, force: bool = False) -> None:
        """Write the page of the report to the new file `path`: one file that opens from disk, with all in it.

        `force` writes in place of an old file. Raises `OutputError` if it cannot be written.
        """
        from opanatomy.report.formats.html import html_report
        from opanatomy.report.section import Page

        target = path_of("to_html: path", path)
        check_no_address("to_html: path", os.fspath(path))
        output = output_file(target, force=force, forced_by="give force=True", needed_bytes=_REPORT_BYTES)
        with output.written() as partial:
            partial.write_text(html_report(cast("Report", self), Page()), encoding="utf-8")

    def chart(self, name: str) -> Any:
        """Return a picture of the report as a chart of `altair`, which a notebook shows offline and `save` writes.

        Of an anatomy: step, advice, lanes, steps, classes, roofline, modules, lines, memory, segments, components,
        ranks; of a comparison: difference; of an experiment: techniques.
        Raises `UsageError` for another name, `OpanatomyError` with the reason if the report has no data for it.
        """
        from opanatomy.report.charts import chart_of, for_a_notebook

        return for_a_notebook(chart_of(cast("Report", self), name))

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the first screen of the report, of a comparison and an experiment the page."""
        from opanatomy.report.notebook import notebook_html

        return notebook_html(cast("Report", self))


class Anatomy(_Report, AnatomyRecord, frozen=True, kw_only=True, dict=True):  # noqa: D101  # the record's
    __doc__ = AnatomyRecord.__doc__

    def metrics(self) -> dict[str, int | float]:
        """Return the headline figures as one flat dictionary of numbers, for any logger.

        Times are in nanoseconds, sizes in bytes, shares fractions, all of one step; what is not known is left out.
        docs/metrics.md has each name; `to_pandas("metrics")` has units and which direction is good.
        """
        return {name: metric.value for name, metric in metrics_of(self).items()}

    def to_pandas(self, table: str = "operators") -> Any:
        """Return a table as a `pandas.DataFrame`: a column for each field, in base units, `<NA>` if not known.

        Tables: work, of which the next six are sums, operators, kernels, modules, lines, classes, ratios, steps, memory
        (its components), curve (allocated bytes), blocks (at the peak), activations, snapshots, devices, streams,
        collectives, communication, ranks, spread, waiting, advice, host, chains, lanes, spans, checks, batches,
        tokenizers, metrics; others as the JSON report has them ("memory.terms"). Raises `UsageError` with all names for
        another one, `OpanatomyError` without pandas (the extra `data`).
        """
        return pandas_frame(self, table)

    def to_polars(self, table: str = "operators") -> Any:
        """Return a table as a `polars.DataFrame`, null where not known; tables and errors as of `to_pandas`."""
        return polars_frame(self, table)

    def what_if(self, *changes: str) -> Replay:
        """Return the replay with the step's time after changes like "aten::mm x0.5" or "synchronization 0".

            replay = anatomy.what_if("aten::mm x0.5", "synchronization 0")
            print(replay.step_ns, [answer.step_ns for answer in replay.answers])

        `answers` has each change and, of several, all together. It is for the trace of a GPU that
        `opanatomy.analyze` read, or that `profile` and `record` kept. An anatomy holds no events, which need more
        memory than the file: the first call reads it again, and the events of the trace asked about last stay in
        memory. Raises `UsageError` for what is no change or no part of the step, and without a trace to read.
        """
        asked = changes_of(_texts_of("what_if", changes))
        paths, phases = vars(self).get(_TRACES, ((), ()))
        if self.replay is not None and not paths:
            raise UsageError(
                "what_if: this anatomy is from a report or a copy, or its trace was not kept, and it holds no events -"
                " give the trace to opanatomy.analyze"
            )
        return replayed(self, paths, phases, asked)

    def __repr__(self) -> str:
        """Return one line: model or trace, step time, top operator class, peak memory."""
        figures = self.metrics()
        parts = [f"{len(self.ranks)} ranks"] if len(self.ranks) > 1 else []
        if "step_time_ns" in figures:
            parts.append(f"step {units.duration(figures['step_time_ns'])}")
        shares = {item: figures.get(f"class.{item}.time_share", 0) for item in OperatorClass}
        largest = max(OperatorClass, key=lambda item: shares[item])
        if shares[largest]:
            parts.append(f"{LABEL[largest]} {units.share(shares[largest], 1)}")
        if "peak_memory_bytes" in figures:
            parts.append(f"peak {units.size(figures['peak_memory_bytes'])}")
        name = self.workload.model or self.provenance.trace
        of = "" if name is None else f" of {cut(printable(name), _NAME_WIDTH)}"
        return f"<Anatomy{of}: {', '.join(parts) or 'no device work'}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        names = (("model", self.workload.model), ("trace", self.provenance.trace))
        return [*((label, name) for label, name in names if name is not None), ("metrics", self.metrics())]


class Comparison(_Report, ComparisonRecord, frozen=True, kw_only=True):  # noqa: D101  # the record's
    __doc__ = ComparisonRecord.__doc__

    def metrics(self) -> dict[str, int | float]:
        """Return every figure of every side as one flat dictionary of numbers, for any logger.

        Of two sides each figure of `Anatomy.metrics()` has `.before`, `.after` and `.change` (after over before, less
        one) behind its name, of more the number of the side (`.1`, `.2`, ...). `like_step_ns.change.CAUSE` is what a
        cause adds to the difference, in nanoseconds. What is not known is left out, and so is each change of sides
        that are `not_comparable`. `mfu` and `hfu` of a side are lower bounds where its `mfu_covered` is below 1.
        """
        return {name: metric.value for name, metric in metrics_of_comparison(self).items()}

    def to_pandas(self, table: str | None = None) -> Any:
        """Return a table as a `pandas.DataFrame`: a column for each field, in base units, `<NA>` if not known.

        Tables: parts (of the difference, if it is known: by default), peak_parts (of two memory snapshots), figures (a
        column `values.SIDE` for each side: by default where there are no parts), sides, kinds, gates, metrics. Raises
        `UsageError` with all names for another
        one, `OpanatomyError` without pandas (the extra `data`).
        """
        return pandas_frame(self, table)

    def to_polars(self, table: str | None = None) -> Any:
        """Return a table as a `polars.DataFrame`, null where not known; tables and errors as of `to_pandas`."""
        return polars_frame(self, table)

    def __repr__(self) -> str:
        """Return one line: the sides, the step of each, and the difference of two."""
        names = " against ".join(cut(printable(side.name), _NAME_WIDTH) for side in self.sides)
        parts = self.decomposition
        if parts is None:
            return f"<Comparison of {names}>"
        row = next((row for row in self.figures if row.name == "step_unprofiled_ns"), None)
        plain = [] if row is None else [value for value in row.values if value is not None]
        before, after = plain if len(plain) == 2 else (parts.before_ns, parts.after_ns)
        change = f"{units.duration_change(after - before)} ({units.change(after, before)})"
        return f"<Comparison of {names}: step {units.duration(before)} to {units.duration(after)}, {change}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [*(("side", side.name) for side in self.sides), ("metrics", self.metrics())]


class Techniques(_Report, TechniquesRecord, frozen=True, kw_only=True):  # noqa: D101  # the record's
    __doc__ = TechniquesRecord.__doc__

    def to_pandas(self, table: str = "techniques") -> Any:
        """Return a table as a `pandas.DataFrame`: a column for each field, in base units, `<NA>` if not known.

        Tables: techniques (the baseline and each technique), advice. Raises `UsageError` with all names for another
        one, `OpanatomyError` without pandas (the extra `data`).
        """
        return pandas_frame(self, table)

    def to_polars(self, table: str = "techniques") -> Any:
        """Return a table as a `polars.DataFrame`, null where not known; tables and errors as of `to_pandas`."""
        return polars_frame(self, table)

    def __repr__(self) -> str:
        """Return one line: the model, the techniques, the peak of the baseline and the least one."""
        of = f" of {cut(printable(self.workload.model), _NAME_WIDTH)}" if self.workload.model else ""
        peaks = {row.name: one.peak_bytes for row in self.rows if (one := row.measured or row.predicted) is not None}
        known = {name: size for name, size in peaks.items() if size is not None}
        parts = [f"{len(self.rows) - 1} techniques"]
        if (before := known.get(self.baseline.name)) is not None:
            least = min(known, key=lambda name: known[name])
            parts.append(f"peak {units.size(before)}, least {units.size(known[least])} ({least})")
        return f"<Techniques{of}: {', '.join(parts)}>"


@overload
def held(record: AnatomyRecord) -> Anatomy: ...
@overload
def held(record: ComparisonRecord) -> Comparison: ...
@overload
def held(record: Report) -> Anatomy | Comparison | Techniques: ...
def held(record: Report) -> Anatomy | Comparison | Techniques:
    """Return a report of the stages with the methods that a user calls."""
    if isinstance(record, (Anatomy, Comparison, Techniques)):
        return record
    if isinstance(record, TechniquesRecord):
        return Techniques(**structs.asdict(record))
    kind = Comparison if isinstance(record, ComparisonRecord) else Anatomy
    return kind(**structs.asdict(record))


Name: TypeAlias = "str | os.PathLike[str]"


def check_module(function: str, module: object) -> None:
    """Raise `UsageError` for anything but a module, `ModelError` for one that cannot be watched."""
    import torch

    from opanatomy.capture.model.user_function import check_module

    if not isinstance(module, torch.nn.Module):
        made = " - call it first" if isinstance(module, type) and issubclass(module, torch.nn.Module) else ""
        raise UsageError(f"{function}: the module is {kind_of(module)}{made or ' - give a torch.nn.Module'}")
    check_module(type(module).__name__, module)


def check_no_profiler(function: str) -> None:
    """Raise if a profiler runs already: two would stop each other."""
    from torch._C._autograd import _profiler_enabled

    if _profiler_enabled():
        raise CaptureError(
            f"{function}: a torch profiler is running already, and torch takes one at a time - call"
            f" opanatomy.{function} outside of it, or export its trace and give that to opanatomy.analyze"
        )


def trace_target(function: str, trace: Name | None) -> Path | None:
    """Return the file for the trace, checked before the step is run; `None` if none is kept."""
    if (folder := folder_of_traces()) is not None:
        return folder / "step.trace.json.gz"
    if trace is None:
        return None
    path = path_of(f"{function}: trace", trace)
    if not path.name.endswith((".json", ".json.gz")):
        raise UsageError(f"{function}: trace {path}: the name must end in .json or .json.gz")
    check_no_address(f"{function}: trace", os.fspath(trace))
    return path


def check_switch(name: str, value: object) -> None:
    """Raise `UsageError` for a value that is neither True nor False."""
    if not (isinstance(value, int) and value in (0, 1)):
        raise UsageError(f"{name}={value!r}: must be True or False")


def path_of(what: str, name: object) -> Path:
    """Return the path for a name; raise `UsageError` that begins with `what` for anything else."""
    if not isinstance(name, (str, os.PathLike)) or not isinstance(os.fspath(name), str):
        raise UsageError(f"{what}: a path is text, not {kind_of(name)} - give the name of a file")
    if not os.fspath(name):
        raise UsageError(f"{what}: the name is empty - give the name of a file")
    if "\0" in os.fspath(name):
        raise UsageError(f"{what}: {os.fspath(name)!r} has a zero byte, which no file has - give the name of a file")
    return Path(name)


def kind_of(value: object) -> str:
    """Name the type of a value in a word or two."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"of type {type(value).__name__}"
