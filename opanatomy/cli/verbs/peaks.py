"""Run `opanatomy peaks`: measure this device's peak rates, cache them, and show them next to its data sheet."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from opanatomy.errors import CaptureError, UsageError
from opanatomy.options import CEILINGS

if TYPE_CHECKING:
    from opanatomy.devices.match import Match
    from opanatomy.devices.overrides import Overrides
    from opanatomy.records.anatomy import Machine, Measured, Rate
    from opanatomy.report.section import ByteRate, Cell, FlopRate, Phrase, Section

DESCRIPTION: Final = (
    "Measure this device's peak FLOP/s (dense) in each data type and its memory bandwidth, save them in the user's"
    " cache folder, and print them next to the data sheet's values."
)
OPTIONS: Final = CEILINGS
EXAMPLES: Final = (
    ("peaks and bandwidth of this device: measured once, then cached", "opanatomy peaks"),
    ("two data types, measured again", "opanatomy peaks --dtype float32,bf16 --refresh"),
    ("for a script", "opanatomy peaks -f json"),
)


def run(arguments: argparse.Namespace) -> None:
    """Measure what is not cached, cache it, print it."""
    from opanatomy.cli.output import note
    from opanatomy.cli.stdout import kept_for_the_report, write_out
    from opanatomy.devices.overrides import data_type, parse_overrides
    from opanatomy.records.taxonomy import PEAK_TYPES

    given = parse_overrides(arguments.peak, arguments.bandwidth)
    words = [word.strip() for word in (arguments.dtype or "").split(",")]
    if arguments.dtype is not None and not any(words):
        raise UsageError("--dtype: the name is empty - use one of " + ", ".join(PEAK_TYPES))
    asked = [data_type(word, f"--dtype {arguments.dtype}") for word in words if word]
    dtypes = asked or list(PEAK_TYPES)
    from opanatomy.capture.device.accelerators import check_measurable
    from opanatomy.capture.device.environment import choose_device, environment_of
    from opanatomy.devices.ceilings import machine_of

    device = choose_device(arguments.device)
    check_measurable(device)
    environment = environment_of(device)
    machine = machine_of(environment)
    if machine is None:
        raise CaptureError(
            f"--device {device}: torch cannot tell which device this is - use --peak and --bandwidth with profile or"
            " analyze"
        )
    with kept_for_the_report():
        measured = _measured(machine, device, dtypes, given, refresh=arguments.refresh)
    shown = [name for name in dtypes if name in measured.peaks or given_peak(given, name) is not None]
    for name in asked:
        if name not in shown:
            note(f"{name}: not supported by {device} or by this version of torch")
    sheet = _match(machine, environment.multiprocessors)
    if arguments.format == "json":
        write_out(as_json(measured, given, shown, sheet), machine_readable=True)
        return
    width = shutil.get_terminal_size((80, 24)).columns
    write_out(as_text(measured, given, shown, sheet, width), machine_readable=False)


def _measured(machine: Machine, device: str, dtypes: Sequence[str], given: Overrides, *, refresh: bool) -> Measured:
    """Return the machine's cached figures, and those that had to be measured now."""
    from opanatomy.capture.ceilings import MOVES, measure
    from opanatomy.cli.output import note
    from opanatomy.cli.progress import Display
    from opanatomy.devices.ceilings import load, store

    kept = load(machine)
    old = None if refresh else kept
    wanted = [name for name in dtypes if given_peak(given, name) is None and (old is None or name not in old.tried)]
    moves = () if given.bandwidth is not None or (old is not None and old.bandwidths) else MOVES
    if old is not None and not wanted and not moves:
        return old
    from opanatomy.capture.device.accelerators import current_device
    from opanatomy.capture.device.start import first_use, run_first_kernel

    with first_use(device):  # else a GPU that is full or busy has no units for any data type
        run_first_kernel(device)
    with Display() as display, current_device(device):
        measured = measure(machine, device, wanted, moves=moves, on_stage=display.stage).over(kept)
    if measured.peaks or measured.bandwidths:
        try:
            note(f"saved: {store(measured)}")
        except OSError as error:
            note(f"not saved for later runs: {error.strerror or error}")
    return measured


def _match(machine: Machine, multiprocessors: int | None) -> Match:
    from opanatomy.devices.match import Match, match

    if machine.kind == "cpu":
        return Match(why="opanatomy has no data sheets for processors")
    return match(machine.device, machine.memory_bytes, multiprocessors)


# The measured ceilings of a device next to its data sheet, as text and as JSON.


#: A name, the user's figure, the measured one, the data sheet's and its unit.
_Figure: TypeAlias = "tuple[str, float | None, Rate | None, float | None, float]"


def given_peak(given: Overrides, dtype: str) -> float | None:
    """Return the user-given peak of a data type."""
    return given.peaks.get(dtype, given.peaks.get("any"))


def as_json(measured: Measured, given: Overrides, shown: Sequence[str], matched: Match) -> str:
    """Return the figures for a machine, in base units."""
    from msgspec import to_builtins

    from opanatomy.devices.match import ceilings_of

    sheet = ceilings_of(matched.sheet, by=matched.by) if matched.sheet else None
    peaks = {}
    for name in shown:
        rate, own = measured.peaks.get(name), given_peak(given, name)
        peaks[name] = {
            "flops_per_second": own if own is not None else rate.per_second if rate else None,
            **_origin(None if own is not None else rate),
            "data_sheet_flops_per_second": sheet.matrix_flops_per_second.get(name) if sheet else None,
        }
    best = measured.bandwidth
    machine = measured.machine
    document = {
        "schema": 1,
        "device": machine.device,
        "device_kind": machine.kind,
        "device_memory_bytes": machine.memory_bytes,
        "driver": machine.driver,
        "torch": machine.torch,
        "host_threads": machine.threads,
        "load": measured.load and {"before": measured.load.before, "after": measured.load.after},
        "device_state": measured.state and to_builtins(measured.state),
        "peaks": peaks,
        "bandwidth": {
            "bytes_per_second": best.per_second if given.bandwidth is None and best else given.bandwidth,
            **_origin(best if given.bandwidth is None else None),
            "data_sheet_bytes_per_second": sheet.bandwidth_bytes_per_second if sheet else None,
            "ways": {
                name: {"bytes_per_second": rate.per_second, **_origin(rate)}
                for name, rate in measured.bandwidths.items()
            },
        },
        "data_sheet": {"device": sheet.device, "source": sheet.source} if sheet else None,
        "why_no_data_sheet": matched.why,
    }
    return json.dumps(document, indent=2) + "\n"


def _origin(rate: Rate | None) -> dict[str, object]:
    """Return how a figure was measured; an unmeasured one was given by the user."""
    if rate is None:
        return {"source": "given"}
    return {
        "source": "measured",
        "by": rate.by,
        "spread": rate.spread,
        "bursts": rate.bursts,
        "measured": rate.measured,
    }


def as_text(measured: Measured, given: Overrides, shown: Sequence[str], matched: Match, width: int) -> str:
    """Return the figures for people: peaks, bandwidth, and remarks on them."""
    from opanatomy.report.formats.terminal import section_text

    sections = _sections(measured, given, shown, matched)
    return "\n".join(section_text(section, width) for section in sections if not section.empty)


def _sections(measured: Measured, given: Overrides, shown: Sequence[str], matched: Match) -> list[Section]:
    """Return the sections on the machine, the peaks and the bandwidths, and the remarks."""
    from opanatomy.report.section import ByteRate, FlopRate

    sheet = matched.sheet
    peaks: list[_Figure] = [
        (name, given_peak(given, name), measured.peaks.get(name), sheet.matrix.get(name) if sheet else None, 1e12)
        for name in shown
    ]
    best = measured.bandwidth
    moved = sorted(measured.bandwidths.items(), key=lambda item: -item[1].per_second)
    moves: list[_Figure] = [
        (name, None, rate, sheet.bandwidth if sheet and rate is best else None, 1e9) for name, rate in moved
    ]
    if given.bandwidth is not None:
        moves = [("as given", given.bandwidth, None, sheet.bandwidth if sheet else None, 1e9)]
    return [
        _machine(measured),
        _table(("matrix product", "FLOP/s", "best product"), FlopRate, peaks),
        _table(("memory", "B/s", "arrays"), ByteRate, moves),
        _noted("remarks", _remarks(measured, matched, bool(moves))),
    ]


def _machine(measured: Measured) -> Section:
    """Return the device, its clocks, and the software for which its figures hold."""
    from opanatomy.report.sections.step import device_state

    machine, state = measured.machine, device_state(measured.state)
    facts = [machine.torch and f"torch {machine.torch}", machine.driver and f"driver {machine.driver}"]
    facts.append(f"{machine.threads} thread{'' if machine.threads == 1 else 's'}" if machine.threads else None)
    texts = [f"Peaks of {machine.device}", ", ".join(fact for fact in facts if fact)]
    return _noted("machine", [*texts, *([] if state is None else [state])])


def _noted(name: str, texts: Sequence[str | Phrase]) -> Section:
    from opanatomy.report.section import Note, NoteKind, Section

    notes = tuple(Note(text=text, kind=NoteKind.PLAIN) for text in texts)
    return Section(name=name, title=name.capitalize(), notes=notes)


def _table(headers: tuple[str, str, str], rate_of: type[FlopRate | ByteRate], figures: Sequence[_Figure]) -> Section:
    """Return a row for each figure: its name, the data sheet's value, how it was measured."""
    from opanatomy.devices.ceilings import age
    from opanatomy.report.section import Column, ColumnKind, Row, Section, Share

    title, unit, how = headers
    columns = (
        Column(header=title, holds=ColumnKind.NAMES),
        Column(header=unit, unit=unit),
        Column(header="sheet", unit=unit, drop_order=1),
        Column(header="of it", drop_order=1),
        Column(header="spread", drop_order=2),
        Column(header="age", drop_order=2),
        Column(header=how, holds=ColumnKind.NAMES, drop_order=3),
    )
    rows = []
    for name, own, rate, sheet, scale in figures:
        value = own if own is not None else rate.per_second if rate else None
        cells: dict[str, Cell] = {title: name, unit: rate_of(value), "age": "given"}
        if sheet:
            cells |= {"sheet": rate_of(sheet * scale), "of it": Share(value, sheet * scale)}
        if rate and own is None:
            cells |= {"spread": Share(rate.spread, 1), "age": age(rate.measured), how: rate.operands or rate.by}
        rows.append(Row(cells=cells))
    return Section(name=title, title=title.capitalize(), columns=columns, rows=tuple(rows))


def _remarks(measured: Measured, matched: Match, moved: bool) -> list[str]:
    remarks = []
    if matched.sheet:
        remarks.append(f"sheet: dense peaks of {matched.sheet.device}, {matched.sheet.source}")
        remarks += [f"note: {matched.sheet.note}"] if matched.sheet.note else []
        remarks += [f"part: scaled to {matched.sheet.scaled}"] if matched.sheet.scaled else []
    elif measured.machine.kind != "cpu":
        remarks.append(f"sheet: {matched.why}")
    if moved:
        remarks.append(
            "memory: bytes read and written per second by copy (a = b), triad (a = b + s * c) and read (sum of a), the"
            " highest of which is the peak"
        )
    remarks.append("spread: how much slower the median burst was than the best burst, whose rate is shown")
    rates = [*measured.peaks.values(), *measured.bandwidths.values()]
    busy = measured.load is not None and measured.load.busy
    if busy or any(rate.disturbed for rate in rates):
        remarks.append("note: other work was running on the device - run again with --refresh when it is idle")
    return remarks
