"""The ceilings of the device of a report: given, measured on that device, or from its data sheet."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec import Struct

from opanatomy.device.cache import load, machine_of, measured_ceilings
from opanatomy.device.match import ceilings_of, match
from opanatomy.device.overrides import Overrides
from opanatomy.records.device import NO_CEILINGS, Ceilings
from opanatomy.records.workload import Environment

HOW_TO_GET_THEM: Final = "run `opanatomy ceilings` on the device, or give --peak and --bandwidth"


class KnownCeilings(Struct, frozen=True):
    """The ceilings, or a line that says why there are none and how to get them."""

    ceilings: Ceilings | None
    why_not: str | None = None


def ceilings_for(
    environment: Environment,
    *,
    multiprocessors: int | None = None,
    on_cpu: bool | None = None,
    overrides: Overrides | None = None,
    folder: Path | None = None,
) -> KnownCeilings:
    """What the device of a report can do at most.

    `multiprocessors` is `numSms` of the trace's device, if `None` what the capture's own record has of it: it
    distinguishes a whole device from a part, and AMD's devices without a name from each other. What was measured goes
    before a data sheet, and only where device, driver, torch and threads are those of the measurement. `folder` is
    where measurements are kept, the user's cache folder if `None`.
    """
    on_cpu = environment.device_kind == "cpu" if on_cpu is None else on_cpu
    units = environment.multiprocessors if multiprocessors is None else multiprocessors
    known = _on_cpu(environment, folder) if on_cpu else _on_accelerator(environment, units, folder)
    if not overrides:
        return known
    device = environment.device or environment.processor or "the device"
    return KnownCeilings(overrides.over(known.ceilings, device))


def _on_cpu(environment: Environment, folder: Path | None) -> KnownCeilings:
    machine = machine_of(environment)
    if machine is None:
        return KnownCeilings(None, f"{NO_CEILINGS}the trace does not say on which processor it ran - {HOW_TO_GET_THEM}")
    measured = load(machine, folder)
    if measured is None:
        threads = f"{machine.threads} thread{'' if machine.threads == 1 else 's'}"
        return KnownCeilings(None, f"{NO_CEILINGS}{machine.device} with {threads} was not measured - {HOW_TO_GET_THEM}")
    return KnownCeilings(measured_ceilings(measured))


def _on_accelerator(environment: Environment, multiprocessors: int | None, folder: Path | None) -> KnownCeilings:
    matched = match(environment.device, environment.device_memory_bytes, multiprocessors)
    sheet = ceilings_of(matched.sheet, by=matched.by) if matched.sheet else None
    machine = machine_of(environment)
    measured = load(machine, folder) if machine else None
    if measured is not None and measured.peaks and measured.bandwidths:
        return KnownCeilings(measured_ceilings(measured, sheet))
    return KnownCeilings(sheet, None if sheet else f"{NO_CEILINGS}{matched.why} - {HOW_TO_GET_THEM}")
