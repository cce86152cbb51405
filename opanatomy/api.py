"""The Python entry points: a module or a trace -> `Anatomy`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from msgspec.structs import replace

from opanatomy.arguments import Name, check_module, check_no_profiler, check_switch, kind_of, path_of, trace_target
from opanatomy.attribution import phase_rules_of
from opanatomy.cluster.run import ClusterSettings
from opanatomy.errors import OpanatomyError, TraceError, UsageError
from opanatomy.files.addresses import local_name, scheme_of
from opanatomy.files.outputs import claimed, name_of_rank, temporary
from opanatomy.files.remote import Address
from opanatomy.option_checks import check_several
from opanatomy.option_values import as_argument, checked
from opanatomy.options import JOBS, PROCESSES
from opanatomy.pipeline import analyze_traces
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.compared import Comparison
from opanatomy.report.given import document_in
from opanatomy.run_options import RunOptions

if TYPE_CHECKING:
    import torch

    from opanatomy.capture.step.subject import Subject

Inputs: TypeAlias = "dict[str, Any] | tuple[Any, ...]"


def analyze(
    trace: Name | Iterable[Name],
    *,
    phases: Mapping[str, str | Sequence[str]] | None = None,
    redact: bool = False,
    summaries: str | os.PathLike[str] | None = None,
    dask: str | None = None,
    jobs: int | None = None,
) -> Anatomy:
    """The anatomy of a torch.profiler trace (`.json` or `.json.gz`), or of the ranks of one run together.

    Ranks are several files, a folder or a zip, here or at an address (`s3://...`); they are read by `jobs` processes
    (by default one a core), or by the workers of the Dask scheduler at the address `dask`, which may be "local" (in a
    script under `if __name__ == "__main__":`). With pyarrow the summary of each is kept in the folder `summaries`, by
    default in the user's cache folder, and a trace that has not changed is not read again. `phases` maps a phase
    ("forward", "backward", "recompute", "optimizer", "other") to a regular expression, or several, that is searched for
    in the names of the trace's own ranges: what runs in them is of that phase, whatever is inferred. With
    `redact` paths, arguments, hosts and users are left out, secrets always. Raises `TraceError` where nothing can be
    read and `UsageError` for an unknown phase or an invalid regular expression.
    """
    rules = phase_rules_of({} if phases is None else phases)
    names = [trace] if isinstance(trace, (str, bytes, os.PathLike)) else trace
    if not isinstance(names, Iterable):
        raise UsageError(f"analyze: a trace is a path, not {kind_of(trace)} - give the name of a file or folder")
    paths = [_trace(name) for name in names]
    if not paths:
        raise UsageError("analyze: no trace is given - give the name of a file or folder")
    check_switch("redact", redact)
    settings = _cluster_settings(summaries, dask, jobs)
    try:
        return analyze_traces(paths, phases=rules, redact=redact, cluster=settings)
    except TraceError as error:
        document = document_in(paths[0]) if len(paths) == 1 and isinstance(paths[0], Path) else None
        if document is not None:
            what = "a saved comparison" if isinstance(document, Comparison) else "a report"
            raise UsageError(f"analyze: {paths[0]} is {what}, not a trace - read it with opanatomy.read") from error
        raise


def read(report: Name) -> Anatomy | Comparison:
    """The `Anatomy` or the `Comparison` in a JSON report, equal to the one that was written.

    Reports are what `to_json` of either, `opanatomy ... -f json` and `-o FILE.json` write.

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
    return document


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
    steps: int = 1,
    warmup: int | None = None,
    processes: int | None = None,
    parallel: str | None = None,
    bucket_mb: float | None = None,
    bucket_view: bool = False,
    memory: bool = False,
    check: bool = False,
    redact: bool = False,
) -> Anatomy:
    """The anatomy of one forward and backward pass of `module` on `inputs` (a tensor, a tuple or a dictionary).

    The module runs where its parameters are, in the mode it is in. Its output's `loss` starts the backward; without
    one, the only single number that requires a gradient; without that, every output that does, with a gradient of
    ones (`workload.backward_from` says which). `amp` is `bf16` or `fp16`; `trace` keeps the Chrome trace in a new file
    of that name; `force` overwrites an old one. `steps` are profiled, after `warmup` ones that are not.
    `optimizer` ("adamw", "sgd", ...) is made by opanatomy, `compile` compiles the module, and with `inference` the
    step is a forward alone. With `accumulate` the batch, the first dimension of each input,
    is cut into that many micro-batches, whose gradients one update takes together; `clip` is the norm that they are
    scaled down to before it. With `generate` the step is `module.generate(**inputs)` with that many new tokens for each
    sample, by beam search with `beams` above 1. `memory` traces the memory of one more step, block by block.
    Every run is counted a second time (`Anatomy.checks`); with `check` a count that does not agree raises `GateError`.
    With `redact` paths, arguments, hosts and users are left out of the report and the trace, secrets always.

    With `processes` the module is trained on that many processes, forks of this one started by Accelerate's
    `notebook_launcher`; `parallel` (`ddp`, `fsdp2`, `fsdp2+checkpointing`, `hsdp`, `tp`), `bucket_mb` and `bucket_view`
    say how. Each has its copy of the module and of these inputs, which are those of one rank; what it changes stays
    there, weights too, and it computes on one thread. `trace` becomes a file for each rank (`step.rank0.json.gz`).
    A module that its ranks share already (in DDP, sharded) is profiled on all of them by a call on each, which gives
    the anatomy of that rank.

    The module is left as it was: modes, buffers, gradients, flags, and with them the inputs, their gradients and the
    random states. Its weights change only with `optimizer`, which updates them in every step that is run.
    Raises `UsageError`, `ModelError`, `CaptureError`, `OutOfMemory` and `OutputError`, each an `OpanatomyError`.
    """
    from opanatomy.redaction.values import of_process

    of_process()  # the module's own code may take a secret out of the environment
    check_module("profile", module)
    arguments = _arguments(inputs)
    target = None if trace is None else _of_rank(trace_target("profile", trace), module)
    options = RunOptions(
        amp=amp, optimizer=optimizer, accumulate=accumulate, clip=clip, inference=inference, generate=generate,
        beams=beams, compile=compile, steps=steps, warmup=warmup, memory=memory, check=check, redact=redact,
        parallel=parallel, bucket_mb=bucket_mb, bucket_view=bucket_view,
    )  # fmt: skip
    check_switch("force", force)
    count = checked(PROCESSES, processes, as_argument) or 1
    check_several(options, count, as_argument)
    check_no_profiler("profile")
    subject = _subject(module, arguments, options)
    if count > 1:
        from opanatomy.processes import profiled_on

        anatomy = profiled_on(count, subject, options, target, force=force)
    else:
        with _recorded(subject, options, target, force) as path:
            anatomy = analyze_traces([path], redact=options.redact)
    if target is None:
        anatomy = replace(anatomy, provenance=replace(anatomy.provenance, trace=None))
    if options.check:
        from opanatomy.checks import require_agreement

        require_agreement(anatomy)
    return anatomy


def _of_rank(target: Path, module: torch.nn.Module) -> Path:
    """The file of a rank, where ranks share the module."""
    from opanatomy.capture.distributed.group import parallel_kind, place_in_group

    place = place_in_group() if parallel_kind([module]) else None
    return target if place is None else name_of_rank(target, place.rank)


def _subject(module: torch.nn.Module, inputs: Inputs, options: RunOptions) -> Subject:
    from opanatomy.capture.distributed.sharing import of_a_group
    from opanatomy.capture.model.workload import given, workload_of
    from opanatomy.capture.step.subject import Subject

    workload = workload_of(given(module, inputs), options)
    subject = Subject(module=module, inputs=inputs, workload=workload, command="opanatomy.profile(...)", borrowed=True)
    return of_a_group(subject)


@contextmanager
def _recorded(subject: Subject, options: RunOptions, target: Path | None, force: bool) -> Iterator[Path]:
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


# ------------------------------------------------------------------------------------------------------------- checks


def _arguments(inputs: object) -> Inputs:
    """What the module is called with: by name or by place."""
    import torch

    if isinstance(inputs, torch.Tensor):
        return (inputs,)
    if isinstance(inputs, Mapping):
        return {str(key): value for key, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs)
    raise UsageError(f"profile: the inputs are {kind_of(inputs)} - give a tensor, a tuple of arguments or a dictionary")


def _cluster_settings(summaries: object, dask: object, jobs: int | None) -> ClusterSettings:
    """How ranks are read; `UsageError` for what is no folder, no address, no number."""
    folder = None
    if summaries is not None:
        path_of("analyze: summaries", summaries)
        folder = os.fspath(cast("Name", summaries))
    if dask is not None and not (isinstance(dask, str) and dask):
        raise UsageError(f"dask={dask!r}: must be the address of a Dask scheduler, or 'local'")
    return ClusterSettings(summaries=folder, dask=dask, jobs=checked(JOBS, jobs, as_argument))


def _check_readable(path: Path) -> None:
    """Raise `OpanatomyError` for what is no file that can be read; a pipe is not opened."""
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
    """The path of a trace to read, or its address."""
    path = path_of("analyze", name)
    if not isinstance(name, str):
        return Path(path)
    name = local_name(name)
    return Address.of(name, f"cannot read {name}") or Path(name)
