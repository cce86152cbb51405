"""`opanatomy ceilings`: what this device does at most, measured, kept, and next to its data sheet."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from opanatomy.console.parser import add_options
from opanatomy.errors import CaptureError
from opanatomy.options import CEILINGS

if TYPE_CHECKING:
    from opanatomy.device.match import Match
    from opanatomy.device.overrides import Overrides
    from opanatomy.records.device import Machine, Measured

SUMMARY: Final = "measure this device's peak matrix rates and bandwidth"
EXAMPLES: Final = (
    ("this device's peaks and bandwidth: measured once, then kept", "opanatomy ceilings"),
    ("two data types, measured again", "opanatomy ceilings --dtype float32,bf16 --refresh"),
    ("for a script", "opanatomy ceilings -f json"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the verb takes."""
    parser.description = (
        "Measure the dense peak FLOP/s of each data type and the bandwidth of this device, keep them in the user's"
        " cache folder, and print them next to the data sheet's."
    )
    add_options(parser, CEILINGS)


def run(arguments: argparse.Namespace) -> None:
    """Measure what is not known yet, keep it, print it."""
    from opanatomy.console.ceilings import as_json, as_text, given_peak
    from opanatomy.console.destination import note
    from opanatomy.console.stdout import kept_for_the_report, write_out
    from opanatomy.device.overrides import data_type, parse_overrides
    from opanatomy.records.data_types import PEAK_TYPES

    given = parse_overrides(arguments.peak, arguments.bandwidth)
    words = [word.strip() for word in (arguments.dtype or "").split(",")]
    asked = [data_type(word, f"--dtype {arguments.dtype}") for word in words if word]
    dtypes = asked or list(PEAK_TYPES)
    from opanatomy.capture.device.accelerators import check_measurable
    from opanatomy.capture.device.environment import choose_device, environment_of
    from opanatomy.device.cache import machine_of

    device = choose_device(arguments.device)
    check_measurable(device)
    environment = environment_of(device)
    machine = machine_of(environment)
    if machine is None:
        raise CaptureError(f"--device {device}: torch does not say what it is - give --peak and --bandwidth instead")
    with kept_for_the_report():
        measured = _measured(machine, device, dtypes, given, refresh=arguments.refresh)
    shown = [name for name in dtypes if name in measured.peaks or given_peak(given, name) is not None]
    for name in asked:
        if name not in shown:
            note(f"{name}: {device} has no units for it, or this torch no product")
    sheet = _match(machine, environment.multiprocessors)
    if arguments.format == "json":
        write_out(as_json(measured, given, shown, sheet), machine_readable=True)
        return
    width = shutil.get_terminal_size((80, 24)).columns
    write_out(as_text(measured, given, shown, sheet, width), machine_readable=False)


def _measured(machine: Machine, device: str, dtypes: Sequence[str], given: Overrides, *, refresh: bool) -> Measured:
    """What is kept of the machine, and what had to be measured for it."""
    from opanatomy.capture.ceilings import MOVES, measure
    from opanatomy.console.ceilings import given_peak
    from opanatomy.console.destination import note
    from opanatomy.console.progress import Display
    from opanatomy.device.cache import load, store

    kept = load(machine)
    old = None if refresh else kept
    wanted = [name for name in dtypes if given_peak(given, name) is None and (old is None or name not in old.tried)]
    moves = () if given.bandwidth is not None or (old is not None and old.bandwidths) else MOVES
    if old is not None and not wanted and not moves:
        return old
    from opanatomy.capture.device.devices import current_device
    from opanatomy.capture.device.start import first_use, run_first_kernel

    with first_use(device):  # else a GPU that is full or busy has no units for any data type
        run_first_kernel(device)
    with Display() as display, current_device(device):
        measured = measure(machine, device, wanted, moves=moves, on_stage=display.stage).over(kept)
    if measured.peaks or measured.bandwidths:
        try:
            note(f"kept: {store(measured)}")
        except OSError as error:
            note(f"not kept for later runs: {error.strerror or error}")
    return measured


def _match(machine: Machine, multiprocessors: int | None) -> Match:
    from opanatomy.device.match import Match, match

    if machine.kind == "cpu":
        return Match(why="processors have no data sheets here")
    return match(machine.device, machine.memory_bytes, multiprocessors)
