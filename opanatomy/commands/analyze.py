"""`opanatomy analyze TRACE...`: the report of a trace, or of the ranks of one run."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from opanatomy.commands.output import NEEDED_BYTES, check_writable, written_whole
from opanatomy.commands.progress import Display
from opanatomy.commands.show import check_output, note, show
from opanatomy.errors import UsageError
from opanatomy.model import Anatomy

#: What plain JSON takes of what it takes packed, at most.
_PACKED = 40


def run(arguments: argparse.Namespace) -> None:
    """Read the traces, write the annotated one where it is wanted, show the anatomy."""
    check_output(arguments)
    paths = [Path(path) for path in arguments.trace]
    if arguments.annotated is None:
        if arguments.redact:
            raise UsageError("--redact: it is about the trace that --trace writes - add --trace FILE")
        show(_analyzed(paths), arguments)
        return
    target = Path(arguments.annotated)
    _check_target(target, paths, arguments)
    from opanatomy.fleet import analyze_traces
    from opanatomy.trace.writer import Annotated

    with written_whole(target) as partial:
        anatomy = analyze_traces(paths, annotated=Annotated(path=partial, redact=arguments.redact))
    show(anatomy, arguments)
    left_out = "environment, tokens, paths, stacks, hosts and users" if arguments.redact else "environment and tokens"
    note(f"trace: {target}, without {left_out} (open it in ui.perfetto.dev)")


def _analyzed(paths: list[Path]) -> Anatomy:
    from opanatomy.fleet import analyze_traces

    if len(paths) == 1 and not paths[0].is_dir():
        return analyze_traces(paths)
    with Display() as display:
        display.stage("reading the ranks")
        return analyze_traces(paths, advance=display.advance)


def _check_target(target: Path, paths: list[Path], arguments: argparse.Namespace) -> None:
    """Raise where the annotated trace cannot be written, or would take the place of its source or of the report."""
    from opanatomy.trace.sources import sources_of

    if not target.name.endswith((".json", ".json.gz")):
        raise UsageError(f"--trace {target}: the name must end in .json or .json.gz")
    for source in sources_of(paths):
        if target.exists() and source.path.exists() and os.path.samefile(target, source.path):
            raise UsageError(f"--trace {target}: that is the trace to read - choose another name")
    if arguments.output not in (None, "-") and Path(arguments.output).absolute() == target.absolute():
        raise UsageError(f"--trace {target}: the report goes there - choose another name for one of them")
    packed = sum(path.stat().st_size for path in paths if path.is_file())
    unpacked = _PACKED if paths[0].name.endswith(".gz") and not target.name.endswith(".gz") else 2
    check_writable(target, force=arguments.force, needed_bytes=max(packed * unpacked, min(NEEDED_BYTES, 1 << 20)))
