"""`opanatomy analyze TRACE...`: the report of a trace, or of the ranks of one run."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from opanatomy.commands.limits import keep_to_limits
from opanatomy.commands.output import check_writable, same_file, written_whole
from opanatomy.commands.progress import Display
from opanatomy.commands.show import check_output, note, show
from opanatomy.errors import UsageError
from opanatomy.model import Anatomy

if TYPE_CHECKING:
    from opanatomy.attribution import PhaseRule
    from opanatomy.device import Overrides

#: What plain JSON takes of what it takes packed, at most.
_PACKED = 40


def run(arguments: argparse.Namespace) -> None:
    """Read the traces, write the annotated one where it is wanted, show the anatomy."""
    with _without_collector():
        anatomy = _run(arguments)
    if arguments.check:
        from opanatomy.checks import require_agreement

        require_agreement(anatomy)


@contextmanager
def _without_collector() -> Iterator[None]:
    """An analysis makes objects by the hundred thousand and no cycles among them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _run(arguments: argparse.Namespace) -> Anatomy:
    keep_to_limits()
    from opanatomy.trace.sources import sources_of

    if "" in arguments.trace:
        raise UsageError("analyze: the name of a trace is empty - give the name of a file or folder")
    paths = [Path(path) for path in arguments.trace]
    sources = [source.path for source in sources_of(paths)]
    check_output(arguments, sources)
    from opanatomy.device import parse_overrides

    ceilings = parse_overrides(arguments.peak, arguments.bandwidth)
    from opanatomy.attribution import phase_rules

    phases = phase_rules(arguments.phase)
    if arguments.annotated is None:
        anatomy = _analyzed(paths, ceilings, phases, redact=arguments.redact)
        show(anatomy, arguments)
        return anatomy
    target = Path(arguments.annotated)
    _check_target(target, sources, arguments)
    from opanatomy.fleet import analyze_traces
    from opanatomy.trace.writer import Annotated

    with written_whole(target) as partial:
        annotated = Annotated(path=partial, redact=arguments.redact)
        anatomy = analyze_traces(paths, annotated=annotated, ceilings=ceilings, phases=phases, redact=arguments.redact)
    show(anatomy, arguments)
    left_out = "environment, secrets, paths, stacks, hosts and users" if arguments.redact else "environment and secrets"
    note(f"trace: {target}, without {left_out} (open it in ui.perfetto.dev)")
    return anatomy


def _analyzed(paths: list[Path], ceilings: Overrides, phases: tuple[PhaseRule, ...], *, redact: bool) -> Anatomy:
    from opanatomy.fleet import analyze_traces

    if len(paths) == 1 and not paths[0].is_dir():
        return analyze_traces(paths, ceilings=ceilings, phases=phases, redact=redact)
    with Display() as display:
        display.stage("reading the ranks")
        return analyze_traces(paths, ceilings=ceilings, advance=display.advance, phases=phases, redact=redact)


def _check_target(target: Path, sources: list[Path], arguments: argparse.Namespace) -> None:
    """Raise where the annotated trace cannot be written, or would take the place of a source or of the report."""
    if not target.name.endswith((".json", ".json.gz")):
        raise UsageError(f"--trace {target}: the name must end in .json or .json.gz")
    if any(same_file(target, source) for source in sources):
        raise UsageError(f"--trace {target}: that is the trace to read - choose another name")
    if arguments.output not in (None, "-") and Path(arguments.output).absolute() == target.absolute():
        raise UsageError(f"--trace {target}: the report goes there - choose another name for one of them")
    packed = sum(source.stat().st_size for source in sources[:1] if source.is_file())
    unpacks = sources[0].suffix in (".gz", ".zip") and target.suffix != ".gz"
    check_writable(target, force=arguments.force, needed_bytes=max(packed * (_PACKED if unpacks else 2), 1 << 20))
