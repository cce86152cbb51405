"""Run `opanatomy analyze TRACE...`: the report of a trace, or of the ranks of one run."""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from opanatomy.errors import UsageError
from opanatomy.options import ANALYZE

if TYPE_CHECKING:
    from opanatomy.attribution.phases import PhaseRule
    from opanatomy.cli.output import Destination
    from opanatomy.cli.saved import SavedReport
    from opanatomy.devices.overrides import Overrides
    from opanatomy.io.files import Address, OutputFile
    from opanatomy.records.anatomy import Anatomy
    from opanatomy.records.reports import Report
    from opanatomy.report.gates import Gate

#: Maximum compression ratio of JSON.
_PACKED: Final = 40
DESCRIPTION: Final = (
    "Report where time, FLOPs, memory traffic and memory go in a torch.profiler trace (.json or .json.gz), in the ranks"
    " of one run (several traces, a folder or a zip), or in a CUDA memory snapshot. Also displays a saved JSON report."
    "\n\n"
    "To get a snapshot of an out-of-memory error: opanatomy profile MODEL --oom-report; in your own loop,"
    " opanatomy.record(..., oom='report'); without opanatomy, torch.cuda.memory._record_memory_history() before the"
    " loop and torch.cuda.memory._dump_snapshot('oom.pickle') where you catch the error."
)
OPTIONS: Final = ANALYZE
#: The options that help shows first, by name.
MOST_USED: Final = ("output", "full", "check", "fail_if", "what_if", "at", "jobs", "annotated")
EXAMPLES: Final = (
    ("a torch.profiler trace", "opanatomy analyze trace.json.gz"),
    ("the ranks of one run, as JSON", "opanatomy analyze ranks/ -o run.json"),
    ("what filled the memory when it ran out", "opanatomy analyze oom.pickle"),
    (
        "a copy of the trace with operator classes, phases, FLOP/s and GB/s added",
        "opanatomy analyze trace.json.gz --trace annotated.json.gz",
    ),
)


def run(arguments: argparse.Namespace) -> None:
    """Read the traces, write the annotated one if it is wanted, show the anatomy."""
    with _without_collector():
        report = _run(arguments)
    if arguments.check or arguments.fail_if:
        from opanatomy.cli.gates import enforce_gates

        enforce_gates(report, arguments)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Turn the garbage collector off: an analysis makes objects by the hundred thousand and no cycles among them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _run(arguments: argparse.Namespace) -> Report:
    from opanatomy.cli.limits import keep_to_limits

    keep_to_limits()  # before numpy is imported, which ends the process if it gets no memory
    from opanatomy.cli.gates import check_gates, gates_on_report
    from opanatomy.cli.saved import saved_report_among
    from opanatomy.io.files import Address, local_name
    from opanatomy.io.sources import STDIN, spooled

    check_gates(arguments)
    names = [local_name(name) for name in arguments.trace]
    if "" in names:
        raise UsageError("analyze: the name of a trace is empty - pass the name of a file or folder")
    if names.count(STDIN) > 1:
        raise UsageError("analyze - -: stdin can be read only once - use only one -")
    given = [Address.of(name, f"cannot read {name}") or Path(name) for name in names]
    with spooled(given) as paths:
        report = saved_report_among(paths, names, arguments)
        if report is not None:
            return _shown_again(report, arguments)
        return _reported(paths, arguments, gates_on_report(arguments), piped=paths != given)


def _shown_again(report: SavedReport, arguments: argparse.Namespace) -> Report:
    from opanatomy.cli.gates import gates_on_report, with_gates
    from opanatomy.cli.output import destination, note, show, stem_of
    from opanatomy.cli.saved import as_shown, source_line
    from opanatomy.devices.overrides import parse_overrides
    from opanatomy.records.anatomy import Anatomy
    from opanatomy.records.comparison import Comparison

    gates = gates_on_report(arguments) if isinstance(report.report, Anatomy) else ()
    stem = stem_of(report.path.name).removesuffix(".report") or "trace"
    with destination(arguments, stem=stem, traces=[report.path], read="report to show", gates=gates) as where:
        shown = as_shown(report, parse_overrides(arguments.peak, arguments.bandwidth), redact=arguments.redact)
        if isinstance(shown, Comparison):
            shown = with_gates(shown, arguments)
        show(shown, where)
    note(source_line(report))
    return shown


def _reported(
    paths: list[Path | Address], arguments: argparse.Namespace, gates: tuple[Gate, ...], *, piped: bool
) -> Anatomy:
    from opanatomy.attribution.phases import phase_rules
    from opanatomy.cli.output import destination, show, stem_of
    from opanatomy.devices.overrides import parse_overrides
    from opanatomy.io.sources import sources_of

    sources = [source.path for source in sources_of(paths) if isinstance(source.path, Path)]
    with destination(arguments, stem=stem_of(paths[0].name) or "trace", traces=sources, gates=gates) as where:
        ceilings = parse_overrides(arguments.peak, arguments.bandwidth)
        phases = phase_rules(arguments.phases)
        if arguments.annotated is not None:
            return _annotated(paths, sources, arguments, where, ceilings, phases)
        anatomy = _analyzed(paths, ceilings, phases, arguments, piped=piped)
        show(anatomy, where)
        return anatomy


def _annotated(
    paths: list[Path | Address],
    sources: list[Path],
    arguments: argparse.Namespace,
    where: Destination,
    ceilings: Overrides,
    phases: tuple[PhaseRule, ...],
) -> Anatomy:
    """Write the trace back with the anatomy, which is returned."""
    from opanatomy.analysis.replay import changes_of
    from opanatomy.cli.output import note, show
    from opanatomy.pipeline import analyze_traces
    from opanatomy.trace.write import Annotated

    with _target(sources, arguments, where) as output:
        with output.written() as partial:
            annotated = Annotated(path=partial, redact=arguments.redact)
            anatomy = analyze_traces(
                paths,
                annotated=annotated,
                ceilings=ceilings,
                phases=phases,
                redact=arguments.redact,
                what_if=changes_of(arguments.what_if),
                timeline=arguments.timeline,
            )
        try:
            show(anatomy, where)
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt("the trace was written, but the report was not") from error
        left_out = (
            "environment, secrets, paths, stacks, host names and user names"
            if arguments.redact
            else "environment and secrets"
        )
        note(f"trace: {output.path}, without {left_out} (open it in ui.perfetto.dev)")
    return anatomy


def _analyzed(
    paths: list[Path | Address],
    ceilings: Overrides,
    phases: tuple[PhaseRule, ...],
    arguments: argparse.Namespace,
    *,
    piped: bool,
) -> Anatomy:
    from opanatomy.analysis.replay import changes_of
    from opanatomy.cli.output import note
    from opanatomy.cli.progress import Display
    from opanatomy.memory.snapshots import categories_of
    from opanatomy.parallel import ClusterSettings
    from opanatomy.pipeline import analyze_traces
    from opanatomy.trace.snapshot import is_pickle

    given = [(name, pattern) for name, _, pattern in (text.partition("=") for text in arguments.categories)]
    categories = categories_of("--category ", given)
    # A trace that came through a pipe is in a temporary file that is gone afterwards.
    summaries = None if piped else arguments.summaries
    settings = ClusterSettings(summaries=summaries, dask=arguments.dask, jobs=arguments.jobs, keep=not piped)
    one = paths[0] if len(paths) == 1 else None
    snapshot = isinstance(one, Path) and is_pickle(one)
    read = partial(
        analyze_traces,
        paths,
        ceilings=ceilings,
        phases=phases,
        redact=arguments.redact,
        cluster=settings,
        note=note,
        at=arguments.at,
        what_if=changes_of(arguments.what_if),
        timeline=arguments.timeline,
        categories=categories,
    )
    if isinstance(one, Path) and not os.path.isdir(one) and not snapshot:
        return read()
    with Display() as display:
        display.stage("reading the snapshot" if snapshot else "reading the ranks")
        return read(advance=display.advance)


@contextmanager
def _target(sources: list[Path], arguments: argparse.Namespace, where: Destination) -> Iterator[OutputFile]:
    """Give the file of the annotated trace; raise if it would overwrite a source or the report."""
    from opanatomy.cli.output import in_folder, stem_of
    from opanatomy.io.files import check_no_address, output_file, same_file

    if not arguments.annotated:
        raise UsageError("--trace: the name is empty - pass a file name")
    check_no_address("--trace", arguments.annotated)
    stem = (stem_of(sources[0].name) if sources else "") or "trace"
    with in_folder(arguments.annotated, f"{stem}.annotated.json.gz") as (target, numbered):
        if not target.name.endswith((".json", ".json.gz")):
            raise UsageError(f"--trace {target}: the name must end in .json or .json.gz")
        if any(same_file(target, source) for source in sources):
            raise UsageError(f"--trace {target}: this is the trace to read - choose another name")
        if where.file is not None and same_file(target, where.file.target):
            raise UsageError(
                f"--trace {target}: the report is also written there - choose another name for one of them"
            )
        packed = sum(source.stat().st_size for source in sources[:1] if os.path.isfile(source))
        unpacks = bool(sources) and sources[0].suffix in (".gz", ".zip") and target.suffix != ".gz"
        needed = max(packed * (_PACKED if unpacks else 2), 1 << 20)
        yield output_file(target, force=arguments.force, numbered=numbered, needed_bytes=needed)
