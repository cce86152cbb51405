"""Analyze a trace or profile a module and get an `Anatomy`: the Python entry points."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from msgspec.structs import replace

from opanatomy.analysis.compare import RunInput, SideInput, compared
from opanatomy.analysis.replay import changes_of
from opanatomy.arguments import Name, check_module, check_switch, kind_of, path_of, trace_target
from opanatomy.attribution.phases import phase_rules_of
from opanatomy.capture.distributed.launched import launched
from opanatomy.errors import OpanatomyError, OutputError, TraceError, UsageError
from opanatomy.io.files import Address, local_name, name_of_rank, output_file, scheme_of, temporary
from opanatomy.io.redact import Redactor, redacted
from opanatomy.io.sources import STDIN, spooled
from opanatomy.memory.snapshots import categories_of
from opanatomy.options import (
    ALLOW_TF32,
    DEVICES,
    ESTIMATE,
    JOBS,
    LINK,
    OF_RANKS,
    PROCESSES,
    RATE,
    SWEEP,
    TIMELINE,
    RunOptions,
    as_argument,
    check_estimate,
    check_several,
    checked,
    instead_of,
)
from opanatomy.parallel import ClusterSettings
from opanatomy.pipeline import analyze_traces, anatomy_of_ranks, packed_summary_of
from opanatomy.recorder import Recorder, check_no_profiler, oom_report
from opanatomy.records.anatomy import Anatomy as AnatomyRecord
from opanatomy.records.comparison import Comparison as ComparisonRecord
from opanatomy.report.load import document_in, kind_in_words, report_in
from opanatomy.report.metrics import metrics_of
from opanatomy.results import Anatomy, Comparison, Techniques, as_public, located, texts_of

if TYPE_CHECKING:
    import torch

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
    """Return the anatomy of a torch.profiler trace (`.json` or `.json.gz`), or of all ranks of one run.

    For a CUDA memory snapshot (`.pickle`), the anatomy shows what fills the memory at the time `at`: "peak", "end" or
    a time like "120ms"; by default the moment memory ran out, else the peak. `categories` maps your own component names
    to regular expressions: a block belongs to a component whose expression matches one of the frames that allocated
    the block (`attention.py:31 forward`). `what_if` takes changes like "aten::mm x0.5" or "synchronization 0": the
    steps of a GPU trace are timed again with each change and with all of them (`anatomy.replay.answers`). With
    `timeline` "full", `anatomy.lanes` has every event of its step, however many there are.

    Pass the ranks of a run as several files, a folder or a zip, local or at an address (`s3://...`). They are read by
    `jobs` processes (by default one per core), or by the workers of the Dask scheduler at the address `dask`, which
    may be "local" (in a script under `if __name__ == "__main__":`). The summary of each rank is cached in the folder
    `summaries`, by default in the user's cache folder, so that an unchanged trace is not read again. `phases` maps a
    phase ("forward", "backward", "recompute", "optimizer", "other") to one or several regular expressions that are
    searched for in the names of the trace's own ranges: work inside a matching range is assigned to that phase,
    regardless of what is inferred. With `redact`, paths, arguments, host names and user names are left out; secrets
    always are. Raises `TraceError` if nothing can be read, and `UsageError` for an unknown phase or an invalid regular
    expression.
    """
    rules = phase_rules_of({} if phases is None else phases)
    categories = {} if categories is None else categories
    if not isinstance(categories, Mapping) or not all(isinstance(text, str) for text in categories.values()):
        raise UsageError("analyze: categories is not a dictionary of texts - pass {'name': REGEX, ...}")
    changes = changes_of(texts_of("analyze: what_if", what_if or ()))
    names = [trace] if isinstance(trace, (str, bytes, os.PathLike)) else trace
    if not isinstance(names, Iterable):
        raise UsageError(f"analyze: a trace is a path, not {kind_of(trace)} - pass the path of a file or folder")
    paths = [_trace(name) for name in names]
    if not paths:
        raise UsageError("analyze: the list of traces is empty - pass the path of a file or folder")
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
            timeline=checked(TIMELINE, timeline, as_argument),
            categories=categories_of("analyze: categories ", categories.items()),
        )
        return located(anatomy, paths, rules)
    except TraceError as error:
        document = document_in(paths[0]) if len(paths) == 1 and isinstance(paths[0], Path) else None
        if document is not None:
            what = kind_in_words(document)
            raise UsageError(f"analyze: {paths[0]} is {what}, not a trace - read it with opanatomy.read") from error
        raise


def read(report: Name) -> Anatomy | Comparison | Techniques:
    """Read the `Anatomy`, `Comparison` or `Techniques` from a JSON report; it is equal to the one that was written.

    Reports are written by the `to_json` methods, `opanatomy ... -f json` and `-o FILE.json`.

    Raises `UsageError` for an invalid file name, and `OpanatomyError` for a file that is not a report. To analyze a
    trace, use `opanatomy.analyze`.
    """
    path = path_of("read", report)
    if scheme_of(os.fspath(report)) is not None:
        raise UsageError(f"read: {os.fspath(report)}: this is a URL, not a file - copy the report here first")
    _check_readable(path)
    document = document_in(path)
    if document is None:
        raise OpanatomyError(
            f"read: {path} is not an opanatomy report - pass a JSON file written by Anatomy.to_json,"
            " Comparison.to_json or `opanatomy`, and pass traces to opanatomy.analyze"
        )
    return as_public(document)


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

    The module runs on the device of its parameters, in its current mode. Backward starts from the output's `loss`;
    without a loss, from the only scalar that requires a gradient; else from every output that requires one, with a
    gradient of ones (`workload.backward_from` names the start). `amp` is `bf16` or `fp16`. `trace` keeps the Chrome
    trace in a new file with that name; `force` overwrites an existing one. `warmup` steps run first, then `steps`
    steps are profiled. `optimizer` ("adamw", "sgd", ...) is created by opanatomy; `compile` compiles the module (in
    `compile_mode`, such as "reduce-overhead"); with `inference` the step is only a forward pass. `accumulate` splits
    the batch (the first dimension of each input) into that many micro-batches, whose gradients go into one update;
    `clip` is the gradient norm above which gradients are scaled down before the update. With `generate` the step is
    `module.generate(**inputs)` with that many new tokens per sample, by beam search if `beams` is above 1. `memory`
    traces the memory of one more step, block by block; `lines` runs one more step line by line (`Anatomy.lines`).
    Calls are always counted a second time (`Anatomy.checks`); with `check`, counts that do not agree raise
    `GateError`. With `redact`, paths, arguments, host names and user names are left out of the report and the trace;
    secrets always are. `oom="report"` records the history of the CUDA allocator: if memory runs out, the history is
    written with a page that shows what filled the memory, and the error is raised as usual.

    With `processes`, the module is trained in that many processes, which Accelerate's `notebook_launcher` forks from
    this one; `parallel` (`ddp`, `fsdp2`, `fsdp2+checkpointing`, `hsdp`, `tp`), `bucket_mb` and `bucket_view` select
    how they train together. Each process has its own copy of the module and of these inputs, which are the inputs of
    one rank; changes stay in the process, including those of weights. Each process computes on one thread. `trace`
    becomes one file per rank (`step.rank0.json.gz`). To profile a module that ranks already share (in DDP, or
    sharded), call this on each rank; each call returns the anatomy of its own rank.

    The module's modes, buffers, gradients and flags are restored afterwards, as are the inputs, their gradients and
    the random states. Weights change only with `optimizer`, which updates them in every step.
    Raises `UsageError`, `ModelError`, `CaptureError`, `OutOfMemory` and `OutputError`, each an `OpanatomyError`.
    """
    from opanatomy.io.redact import remember_environment_secrets

    remember_environment_secrets()  # the module's own code may take a secret out of the environment
    check_module("profile", module)
    arguments = _arguments(inputs)
    target = trace_target("profile", trace)
    target = None if target is None else _file_of_rank(target, module)
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
            anatomy = located(analyze_traces([path], redact=options.redact), [path])
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
    """Predict a step on a device that you do not have: `"H100"`, `["A100", "RTX 4090"]`. Nothing is run.

    `Anatomy.estimated` has the range of the step time in ns and the memory in bytes on each device; everything else in
    the anatomy refers to the first device. `model` is a catalog name, a Hub id, a folder, or `"file.py:function"`;
    `options` are those of `opanatomy estimate` with `_` for `-`: batch, seq, amp, dtype, optimizer, checkpointing,
    parallel, ... Raises `UsageError` for an unknown device or option, and `EstimateError` for a step that cannot be
    traced.
    """
    from opanatomy.predict.estimate import estimate_of

    known = {option.name for option in ESTIMATE} & set(RunOptions.__struct_fields__)
    for name in options.keys() - known:
        raise UsageError(f"estimate: unknown option {name} - {instead_of(name, sorted(known))}")
    if not isinstance(model, str):
        raise UsageError(f"estimate: the model is {kind_of(model)} - pass its name, a folder or 'file.py:function'")
    run = RunOptions(model=model, **options)
    names = [on] if isinstance(on, str) else list(on) if isinstance(on, Iterable) else [None]
    if not names or not all(isinstance(name, str) for name in names):
        raise UsageError(f"estimate: on={on!r} - pass the name of a device, or several, such as 'H100'")
    given = {DEVICES: devices, LINK: link, SWEEP: sweep, ALLOW_TF32: tf32, RATE: tokens_per_second}
    for option, value in given.items():
        checked(option, value, as_argument)
    asked = {name: getattr(run, name) for name in ("texts", "batch", "seq")}
    asked |= {"devices": devices, "link": link, "sweep": sweep, "on": names}
    check_estimate(SimpleNamespace(**asked, **{each.name: getattr(run, each.name) for each in OF_RANKS}), as_argument)
    return as_public(
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


def _file_of_rank(target: Path, module: torch.nn.Module) -> Path:
    """Return the file of a rank if ranks share the module."""
    from opanatomy.capture.distributed.group import parallel_kind, place_in_group

    place = place_in_group() if parallel_kind([module]) else None
    return target if place is None else name_of_rank(target, place.rank)


def _subject(module: torch.nn.Module, inputs: Inputs, options: RunOptions) -> Subject:
    from opanatomy.capture.distributed.sharing import for_rank
    from opanatomy.capture.model.workload import given, workload_of
    from opanatomy.capture.subject import Subject

    workload = workload_of(given(module, inputs), options)
    subject = Subject(module=module, inputs=inputs, workload=workload, command="opanatomy.profile(...)", borrowed=True)
    return for_rank(subject)


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
    output = output_file(target, force=force, forced_by="pass force=True")
    with output.written() as partial, notebook_progress() as progress:
        record_step(subject, options, partial, progress)
    yield output.target


# ------------------------------------------------------------------------------------------------------------- checks


def _arguments(inputs: object) -> Inputs:
    """Return the arguments for the module, as keywords or positional."""
    import torch

    if isinstance(inputs, torch.Tensor):
        return (inputs,)
    if isinstance(inputs, Mapping):
        return {str(key): value for key, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs)
    raise UsageError(f"profile: the inputs are {kind_of(inputs)} - pass a tensor, a tuple of arguments or a dictionary")


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
            raise OpanatomyError(f"read: cannot read {path}: it is a folder - pass the path of a report")
        if path.is_file() or not os.path.lexists(path):
            path.open("rb").close()
    except OSError as error:
        raise OpanatomyError(
            f"read: cannot read {path}: {error.strerror or error} - pass the path of a report"
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

    Each rank writes `target` with the rank in its name; without `target` the traces are temporary.
    """
    from opanatomy.capture.device.accelerators import device_of
    from opanatomy.capture.distributed.notebook import on_processes

    if launched() is not None:
        raise UsageError(
            f"profile: processes={processes}, but this process is already one of several - leave processes out, and"
            " call profile in each process"
        )
    on_host = device_of(subject.module, subject.inputs) == "cpu"
    files: list[tuple[Path, str | None]]
    with ExitStack() as stack:
        if target is None:
            name = stack.enter_context(temporary("step.trace.json.gz", "the traces"))
            files = [(name_of_rank(name, rank), None) for rank in range(processes)]
        else:
            names = [name_of_rank(target, rank) for rank in range(processes)]
            outputs = [output_file(name, force=force, forced_by="pass force=True") for name in names]
            files = [(stack.enter_context(output.written()), output.path.name) for output in outputs]
        summaries = on_processes(lambda: _summary(subject, options, files), processes, on_host=on_host)
    return as_public(anatomy_of_ranks(summaries, redact=options.redact))


def _summary(subject: Subject, options: RunOptions, files: Sequence[tuple[Path, str | None]]) -> bytes:
    """Return the packed summary of this rank's trace."""
    from opanatomy.capture.distributed.ranks import rank_group
    from opanatomy.capture.distributed.sharing import shared
    from opanatomy.capture.run.recorder import record_step

    place = launched()
    assert place is not None
    path, name = files[place.rank]
    with rank_group(options, place) as group:
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
    """Return a recorder for the training loop in its `with` block: it writes a trace and provides the `anatomy`.

        with opanatomy.record("step.json.gz") as recorder:
            for batch, labels in loader:
                loss = criterion(model(batch), labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                recorder.step()
        print(recorder.anatomy.classes)

    `step()` ends an iteration. The first `warmup` iterations are not profiled (5 by default: a cold one, one that
    counts calls a second time, and timed ones). The next `steps` iterations are profiled, on an accelerator after one
    in which the profiler warms up. With `lines` one more iteration runs line by line, and with `memory` one more is
    traced allocation by allocation. A last one counts calls again, to check that the steps are alike. Then the trace
    is written, and the loop continues undisturbed; if the loop ends earlier, what was recorded is written. Without any
    call of `step()`, the entire block is one step that is profiled as it runs: its unprofiled time is unknown, and a
    warning is given if it contains several iterations. Only the loop's own code runs; its results are the same as
    without the recorder.

    **Forward** is each outermost call of a module (of those in `module`, if given) and the work after it until
    backward starts, such as the loss, however it is computed; before the first module, it is what autograd
    differentiates. A call without gradients is forward only while it lasts.
    **Backward** is what `torch.autograd` runs, and the scaling of the loss before it. **Optimizer** is each
    optimizer's step and the work between backward and that step: unscaling, clipping. Everything else (data loading,
    `zero_grad`, schedulers, metrics after the update) is other. Forward operators that run again during backward are
    recompute.

    `module` also selects the modules whose paths the report shows; pass a dictionary to name several. Without it, they
    are the modules that the loop calls. With `check`, a second count that does not agree raises `GateError` at the end
    of the block. `force` overwrites an existing file. With several ranks, each rank records itself, in a file with the
    rank in its name (`step.rank0.json.gz`). `redact` leaves out paths, arguments, host names and user names; without
    `trace` no file is kept. `oom="report"` records the history of the CUDA allocator: if memory runs out in the block,
    the history is written (`step.oom.pickle`) with a page that shows what filled the memory (`step.oom.html`), and the
    error is raised as usual.
    Raises `UsageError`, `ModelError` and `OutputError` for invalid arguments, and `CaptureError` if a profiler or
    another recorder is already running or, at the end, if the loop was too short. Errors in the block propagate
    unchanged; no further trace is written then.
    """
    from opanatomy.io.redact import remember_environment_secrets

    remember_environment_secrets()  # the loop's own code may take a secret out of the environment
    options = RunOptions(steps=steps, warmup=warmup, memory=memory, lines=lines, check=check, redact=redact)
    check_switch("force", force)
    target = trace_target("record", trace)
    return Recorder(_modules(module), options, target, force=force, oom=oom_report("record", target, oom))


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

    The file has the format of `torch.cuda.memory._dump_snapshot`, with Python and C++ stacks. With `module`, each
    allocation also records the path of the module whose forward is running, if torch supports it (2.10 or later). If
    the block fails, even for lack of memory, the file is still written, and the error is raised as usual. `force`
    overwrites an existing file. Raises `UsageError` and `OutputError` for the file name, and `CaptureError` if torch
    sees no CUDA device.
    """
    from opanatomy.capture.memory.history import AllocatorHistory, modules_noted

    modules = _modules(module)
    check_switch("force", force)
    output = output_file(path_of("snapshot: path", path), force=force, forced_by="pass force=True")
    history = AllocatorHistory(output.target)
    history.start()
    try:
        with modules_noted(modules):
            yield
    finally:
        history.ends()
        history.stop()
    if not history.is_written:
        raise OutputError(f"snapshot: {output.path} could not be written - does its folder exist, and is there space?")


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
        raise UsageError("record: module is empty - leave it out, or pass at least one module")
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
        raise UsageError("compare: at least two sides are needed - pass reports, traces or folders")
    inputs = []
    for index, side in enumerate(sides, 1):
        inputs.append(replace(_redacted(_side(side, redact=True)), name=f"side {index}") if redact else _side(side))
        advance(index / len(sides))
    return redacted(compared(inputs if redact else _named(inputs, names)), Redactor(everything=redact))


def compare(*sides: Given | Iterable[Given], fail_if: str | Iterable[str] = (), redact: bool = False) -> Comparison:
    """Return what changed from one side to the next and, for two sides, what causes the difference in step time.

    A side is an `Anatomy`, the path of a JSON report or a trace, a folder (the ranks of a run, or the reports of
    several runs), or a list of these, which counts as several runs of that side. The parts of
    `Comparison.decomposition` sum exactly to both step times, in integer nanoseconds; `figures` has each number on all
    sides, with ranges and, with five interleaved runs per side, the p-value of a Mann-Whitney test.
    With `fail_if`, one or several gates such as `"time > +5%"`, raises `GateError` if any of them is true. With
    `redact`, paths, arguments, host names and user names are left out. Raises `UsageError` for fewer than two sides
    and for an invalid gate, and the errors of `analyze` and `read`.
    """
    from opanatomy.report.gates import gates_of, judged, require_met

    conditions = [fail_if] if isinstance(fail_if, str) else list(fail_if) if isinstance(fail_if, Iterable) else [None]
    if not all(isinstance(condition, str) for condition in conditions):
        raise UsageError(f"compare: fail_if={fail_if!r}: pass a condition such as 'time > +5%', or several")
    gates = gates_of(conditions)
    comparison = judged(comparison_of(sides, redact=redact), gates)
    require_met(comparison.gates)
    return as_public(comparison)


def _side(given: Any, *, redact: bool = False) -> SideInput:
    if isinstance(given, (AnatomyRecord, str, os.PathLike)):
        runs = _runs(given, redact=redact)
        name = _name(given)
    else:
        if isinstance(given, Comparison):
            raise UsageError("compare: a side is already a Comparison - pass the runs that it compares")
        if not isinstance(given, Iterable) or isinstance(given, bytes):
            raise UsageError(f"compare: a side must be an Anatomy, a path or a list of them, not {kind_of(given)}")
        several = list(given)
        if not several:
            raise UsageError("compare: a side has no runs - pass at least one anatomy")
        runs = [run for each in several for run in _runs(each, redact=redact)]
        name = _name(several[0])
    named = (run if run.name and not redact else replace(run, name=f"run {index}") for index, run in enumerate(runs, 1))
    return SideInput(name=name, runs=tuple(named))


def _redacted(side: SideInput) -> SideInput:
    """Redact the side: parts of a difference are texts made of names and arguments."""
    redactor = Redactor(everything=True)
    runs = (replace(run, anatomy=redacted(run.anatomy, redactor)) for run in side.runs)
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
    """Yield the JSON reports in a folder, by name, with their anatomies."""
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
    """Name the sides: given names, else the shortest unique path endings; equal names are numbered."""
    short = list(given)
    if not given:
        names = [side.name for side in sides]
        parts = [name.split("/") for name in names]
        for count in range(1, max(map(len, parts)) + 1):
            short = ["/".join(part[-count:]) for part in parts]
            if len(set(short)) == len(set(names)):
                break
    if len(set(short)) < len(short):
        short = [f"{name} ({index})" for index, name in enumerate(short, 1)]
    return [SideInput(name=name, runs=side.runs) for name, side in zip(short, sides, strict=True)]
