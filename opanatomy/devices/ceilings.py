"""Find the ceilings of a report's device: given by the user, measured on that device, or from its data sheet."""

from __future__ import annotations

import hashlib
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from opanatomy.devices.match import ceilings_of, match
from opanatomy.devices.overrides import Overrides
from opanatomy.io import files
from opanatomy.records.anatomy import BANDWIDTH, MEASURED_SCHEMA, VECTOR, Ceilings, Machine, Measured
from opanatomy.records.workload import Environment

# --- measured ceilings in the user's cache folder: one file for each device, driver, torch and number of threads ---


#: A cache file is a few kilobytes; a larger one is not ours.
_MAX_FILE_BYTES: Final = 1 << 20


def measured_ceilings(measured: Measured, sheet: Ceilings | None = None) -> Ceilings:
    """Return the measured rates as ceilings, filled up from the data sheet.

    A CPU uses the same vector units for contractions and element-wise work.
    """
    machine = measured.machine
    rates = {name: rate.per_second for name, rate in measured.peaks.items()}
    others = {name: peak for name, peak in sheet.matrix_flops_per_second.items() if name not in rates} if sheet else {}
    vector = dict(sheet.vector_flops_per_second) if sheet else {}
    if machine.kind == "cpu":
        vector = {name: rates[name] for name in ("float64", "float32") if name in rates}
    conditions = [f"torch {machine.torch}"] if machine.torch else []
    conditions += [f"driver {machine.driver}"] if machine.driver else []
    conditions += [f"{machine.threads} threads"] if machine.threads else []
    if measured.state is not None and measured.state.clock_mhz is not None:
        conditions.append(f"at {measured.state.clock_mhz:,} MHz")
    best = measured.bandwidth
    disturbed = [name for name, rate in measured.peaks.items() if rate.disturbed]
    disturbed += [BANDWIDTH] if best and best.disturbed else []
    vectors = [f"{VECTOR}{name}" for name in disturbed if name in vector] if machine.kind == "cpu" else []
    conditions += [f"{' and '.join(disturbed)} while other work was running"] if disturbed else []
    return Ceilings(
        device=machine.device,
        source=", ".join((f"measured {measured.date}", *conditions))
        + (f"; otherwise {sheet.source}" if sheet and others else ""),
        matrix_flops_per_second={**rates, **others},
        vector_flops_per_second=vector,
        attained_share={name: sheet.attained_share.get(name, 1.0) for name in others} if sheet else {},
        bandwidth_bytes_per_second=best.per_second if best else None,
        memory_bytes=machine.memory_bytes,
        cache_bytes=(sheet.cache_bytes if sheet else None) or measured.cache_bytes,
        disturbed=(*disturbed, *vectors),
    )


def machine_of(environment: Environment) -> Machine | None:
    """Return the machine of a report; `None` if the report lacks the data to look up its measurement."""
    kind = environment.device_kind
    if environment.device is None or kind is None or environment.torch is None:
        return None
    on_cpu = kind == "cpu"
    if on_cpu and environment.host_threads is None:
        return None
    return Machine(
        device=environment.device,
        kind=kind,
        memory_bytes=environment.device_memory_bytes,
        driver=environment.driver,
        torch=environment.torch,
        threads=environment.host_threads if on_cpu else None,
    )


def cache_folder() -> Path | None:
    """Return the folder of stored measurements; `None` for a user without a home."""
    return files.cache_folder("ceilings")


def cache_file(folder: Path, machine: Machine) -> Path:
    """Return the file of `machine`: a readable name with a digest of all that distinguishes machines."""
    digest = hashlib.sha256(msgspec.json.encode(machine)).hexdigest()[:12]
    name = re.sub(r"[^a-z0-9]+", "-", machine.device.lower()).strip("-")[:48]
    return folder / f"{name or 'device'}-{digest}.json"


def load(machine: Machine, folder: Path | None = None) -> Measured | None:
    """Load the measurement of `machine`; return `None` if there is none, or its file cannot be used."""
    folder = cache_folder() if folder is None else folder
    if folder is None:
        return None
    path = cache_file(folder, machine)
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            return None
        measured = msgspec.json.decode(path.read_bytes(), type=Measured)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    rates = (*measured.peaks.values(), *measured.bandwidths.values())
    sane = all(0 < rate.per_second < 1e18 for rate in rates)
    usable = measured.schema == MEASURED_SCHEMA and measured.machine == machine and sane
    return measured if usable else None


def store(measured: Measured, folder: Path | None = None) -> Path:
    """Write the file of the machine atomically; raise `OSError` if that fails."""
    folder = cache_folder() if folder is None else folder
    if folder is None:
        raise OSError("there is no home folder")
    folder.mkdir(parents=True, exist_ok=True)
    path = cache_file(folder, measured.machine)
    with files.replacing(path) as partial:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(measured), indent=2) + b"\n")
    return path


def age(measured: str) -> str:
    """Return the age of a measurement in words: `today`, `1 day`, `40 days`."""
    try:
        days = (datetime.now(timezone.utc) - datetime.fromisoformat(measured)).days
    except (ValueError, TypeError):
        return "of unknown date"
    return "today" if days < 1 else f"{days} day{'s' if days > 1 else ''}"


_BY_OPTIONS: Final = "use --peak and --bandwidth"


def _how_to_get_them(machine: Machine | None) -> str:
    """Return what to do about unknown peaks: only those of a known machine can be measured."""
    if machine is None:
        return _BY_OPTIONS
    command = f"OMP_NUM_THREADS={machine.threads} opanatomy peaks" if machine.threads else "opanatomy peaks"
    return f"run `{command}` on the device and analyze the trace there, or {_BY_OPTIONS}"


class KnownCeilings(Struct, frozen=True):
    """The ceilings, or a line explaining why there are none and how to get them."""

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
    """Return the ceilings of a report's device, or why there are none.

    `multiprocessors` is `numSms` of the trace's device; if `None` the capture's own record is used. It distinguishes a
    whole device from a part, and AMD devices without a name. Measurements take precedence over the data sheet if
    device, driver, torch and threads match. `folder` has the measurements, the user's cache folder if `None`.
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
        missing = ["the processor"] if None in (environment.device, environment.device_kind) else []
        missing += ["the torch version"] if environment.torch is None else []
        missing += ["the number of threads"] if environment.host_threads is None else []
        listed = " or ".join(filter(None, (", ".join(missing[:-1]), *missing[-1:])))
        return KnownCeilings(None, f"the trace does not record {listed} - {_how_to_get_them(None)}")
    measured = load(machine, folder)
    if measured is None:
        threads = f"{machine.threads} thread{'' if machine.threads == 1 else 's'}"
        conditions = f"{threads} and torch {machine.torch}"
        return KnownCeilings(
            None, f"{machine.device} with {conditions} has not been measured - {_how_to_get_them(machine)}"
        )
    return KnownCeilings(measured_ceilings(measured))


def _on_accelerator(environment: Environment, multiprocessors: int | None, folder: Path | None) -> KnownCeilings:
    matched = match(environment.device, environment.device_memory_bytes, multiprocessors)
    sheet = ceilings_of(matched.sheet, by=matched.by) if matched.sheet else None
    machine = machine_of(environment)
    measured = load(machine, folder) if machine else None
    if measured is not None and measured.peaks and measured.bandwidths:
        return KnownCeilings(measured_ceilings(measured, sheet))
    return KnownCeilings(sheet, None if sheet else f"{matched.why} - {_how_to_get_them(machine)}")
