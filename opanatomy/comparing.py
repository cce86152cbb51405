"""What a user gives to compare -> sides: anatomies, their JSON reports, traces, folders of ranks or of runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from opanatomy.arguments import kind_of, path_of
from opanatomy.comparison import RunInput, SideInput, compared
from opanatomy.errors import UsageError
from opanatomy.files.addresses import local_name
from opanatomy.files.remote import Address
from opanatomy.pipeline import analyze_traces
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.compared import Comparison
from opanatomy.redaction.records import redacted
from opanatomy.redaction.texts import Texts
from opanatomy.report.given import report_in
from opanatomy.report.metrics import metrics_of
from opanatomy.trace.pipes import STDIN, spooled

#: An anatomy, or the name of what is one.
Given: TypeAlias = "Anatomy | str | os.PathLike[str]"
_REPORT_ENDINGS: Final = (".json", ".json.gz")


def comparison_of(
    sides: Sequence[Given | Iterable[Given]],
    *,
    redact: bool = False,
    advance: Callable[[float], None] = lambda share: None,
) -> Comparison:
    """The sides next to each other: each an anatomy, the name of a report, a trace or a folder, or several runs of it.

    Raises `UsageError` for fewer than two sides, and what reading raises.
    """
    if len(sides) < 2:
        raise UsageError("compare: two sides at least - give reports, traces or folders: compare A B")
    inputs = []
    for place, side in enumerate(sides, 1):
        inputs.append(replace(_redacted(_side(side, redact=True)), name=f"side {place}") if redact else _side(side))
        advance(place / len(sides))
    return redacted(compared(inputs if redact else _with_own_names(inputs)), Texts(everything=redact))


def compare(*sides: Given | Iterable[Given], fail_if: str | Iterable[str] = (), redact: bool = False) -> Comparison:
    """What changed from one side to the next, and of two sides where the difference of the step comes from.

    A side is an `Anatomy`, the path of a JSON report or of a trace, a folder (the ranks of a run, or the reports of
    several runs), or a list of any of these, which are several runs of it. The parts of `Comparison.decomposition` sum
    to both steps in whole nanoseconds; `figures` has each figure on all sides, with ranges, and with four runs a side
    that took turns the p of a Mann-Whitney test.
    With `fail_if`, a gate such as `"time > +5%"` or several, `GateError` is raised where one is not met. With `redact`
    paths, arguments, hosts and users are left out. Raises `UsageError` for fewer than two sides and for what is no
    gate, and what `analyze` and `read` raise.
    """
    from opanatomy.gates.judging import gates_of, judged, require_met

    gates = gates_of([fail_if] if isinstance(fail_if, str) else list(fail_if))
    comparison = judged(comparison_of(sides, redact=redact), gates)
    require_met(comparison.gates)
    return comparison


def _side(given: Any, *, redact: bool = False) -> SideInput:
    if isinstance(given, (Anatomy, str, os.PathLike)):
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
    """The side without what `redact` leaves out: parts of a difference are texts made of names and arguments."""
    texts = Texts(everything=True)
    runs = (replace(run, anatomy=redacted(run.anatomy, texts)) for run in side.runs)
    return SideInput(name=side.name, runs=tuple(runs))


def _runs(given: Any, *, redact: bool) -> list[RunInput]:
    """The run of a report, a trace or the ranks in a folder; for a folder of reports all of them."""
    if isinstance(given, Anatomy):
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
        return [_run(analyze_traces([path], redact=redact) if report is None else report, _name(given))]


def reports_among(folder: Path) -> Iterator[tuple[Path, Anatomy]]:
    """The JSON reports that lie in a folder, by their names, and the anatomies in them."""
    files = sorted(file for file in folder.iterdir() if file.name.endswith(_REPORT_ENDINGS))
    return ((file, anatomy) for file in files if (anatomy := report_in(file)) is not None)


def _run(anatomy: Anatomy, name: str = "") -> RunInput:
    return RunInput(anatomy=anatomy, metrics=metrics_of(anatomy), name=name)


def _name(given: Any) -> str:
    if given == STDIN:
        return "stdin"
    if isinstance(given, Anatomy):
        return given.provenance.trace or given.workload.model or "anatomy"
    return os.fsencode(os.fspath(given)).decode(errors="replace").rstrip("/")


def _with_own_names(sides: Sequence[SideInput]) -> list[SideInput]:
    """The sides by the ends of their names that tell them apart; alike they are counted."""
    names = [side.name for side in sides]
    parts = [name.split("/") for name in names]
    for count in range(1, max(map(len, parts)) + 1):
        short = ["/".join(part[-count:]) for part in parts]
        if len(set(short)) == len(set(names)):
            break
    if len(set(short)) < len(short):
        short = [f"{name} ({place})" for place, name in enumerate(short, 1)]
    return [SideInput(name=name, runs=side.runs) for name, side in zip(short, sides, strict=True)]
