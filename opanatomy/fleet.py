"""Several traces -> one anatomy: each is analyzed by itself, one at a time, then all are put together."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from opanatomy.anatomy.ranks import over_ranks
from opanatomy.attribution import PhaseRule
from opanatomy.device import Overrides
from opanatomy.errors import TraceError, UsageError
from opanatomy.pipeline import analyze_trace, with_ceilings
from opanatomy.records.anatomy import Anatomy
from opanatomy.redaction.records import redacted
from opanatomy.redaction.texts import Texts
from opanatomy.trace.pipes import spooled
from opanatomy.trace.sources import Source, left_out_of, sources_of

if TYPE_CHECKING:
    from opanatomy.trace.writer import Annotated


def analyze_traces(
    paths: Sequence[Path],
    *,
    annotated: Annotated | None = None,
    ceilings: Overrides | None = None,
    advance: Callable[[float], None] = lambda share: None,
    phases: Sequence[PhaseRule] = (),
    redact: bool = False,
) -> Anatomy:
    """The anatomy of a trace, or of all ranks in several files, a folder or a zip; it has no secrets in it.

    A rank that cannot be read is a warning while another one can; `TraceError` where none can, `UsageError` where two
    cannot be ranks of one run. `advance` is told the share that is done. `annotated` is for one trace. `ceilings` go
    before those known of the device. `phases` say the phases of the traces' own annotations.
    With `redact` paths, arguments, hosts and users are left out as well.
    """
    texts = Texts(everything=redact)
    with spooled(paths) as files:
        anatomy = _anatomy(files, annotated, advance, phases, texts)
        return redacted(with_ceilings(anatomy, ceilings), texts)


def _anatomy(
    paths: Sequence[Path],
    annotated: Annotated | None,
    advance: Callable[[float], None],
    phases: Sequence[PhaseRule],
    texts: Texts,
) -> Anatomy:
    """The anatomy of one trace, or over the ranks."""
    sources, left_out = sources_of(paths), left_out_of(paths)
    if len(sources) == 1:
        anatomy = _analyzed(sources[0], annotated, phases, texts)
        return replace(anatomy, warnings=(*anatomy.warnings, *left_out))
    if annotated is not None:
        raise UsageError(f"--trace: {len(sources)} traces are given, one can be written back - give one TRACE")
    found: list[Anatomy] = []
    lost: list[str] = []
    for place, source in enumerate(sources):
        try:
            found.append(_analyzed(source, None, phases, texts))
        except TraceError as error:
            lost.append(_readable(f"{source.name} is left out: {error}"))
        advance((place + 1) / len(sources))
    if not found:
        raise TraceError(f"none of the {len(sources)} traces can be read; the first: {lost[0]}")
    return over_ranks(found, name=_name_of(paths, len(found)), warnings=[*lost, *left_out])


def _analyzed(source: Source, annotated: Annotated | None, phases: Sequence[PhaseRule], texts: Texts) -> Anatomy:
    with source.opened() as path:
        try:
            return analyze_trace(path, name=source.name, annotated=annotated, phases=phases, texts=texts)
        except TraceError as error:
            if source.member is None:
                raise
            raise TraceError(str(error).replace(str(path), f"{source.member} in {source.path}")) from error


def _name_of(paths: Sequence[Path], count: int) -> str:
    where = paths[0].resolve().name if len(paths) == 1 else ", ".join(path.name for path in paths[:3])
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return _readable(f"{count} ranks: {where}{more}")


def _readable(text: str) -> str:
    """The text, with a mark for each byte of a file's name that is no text."""
    return os.fsencode(text).decode(errors="replace")
