"""Report what was computed of a step on devices that are not here: its time as a range, its memory."""

from __future__ import annotations

from typing import Final

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.estimate import DeviceEstimate, Fits
from opanatomy.report.section import (
    Bytes,
    Column,
    ColumnKind,
    Columns,
    Count,
    Note,
    Phrase,
    Row,
    Section,
    Share,
    Time,
    cells_of,
    facts_of,
    phrase,
)
from opanatomy.report.terms import note

#: How a table says whether a step fits.
FITS: Final = {Fits.FITS: "yes", Fits.AT_THE_EDGE: "at the edge", Fits.DOES_NOT_FIT: "no"}


def estimate(anatomy: Anatomy) -> Section | None:
    """Return the range of the step's time, its ends, its memory next to the device's, and the same of other devices."""
    estimated = anatomy.estimated
    if estimated is None:
        return None
    first, workload = estimated.devices[0], anatomy.workload
    occupied = first.occupied
    memory = phrase(
        "{} to {} of {}: {} allocated, {} reserved, the rest is the device's context", Bytes(occupied.low_bytes),
        Bytes(occupied.high_bytes), Bytes(first.usable_bytes), Bytes(occupied.allocated_bytes),
        Bytes(occupied.reserved_bytes),
    )  # fmt: skip
    length = f", length {workload.sequence_length}" if workload.sequence_length else ""
    optimizer = f", {workload.optimizer}" if workload.optimizer else ""
    kind = "inference" if workload.inference else f"training{optimizer}"
    host = None
    if first.host_ns >= first.as_is_ns:
        host = phrase("{} to launch all of its work: the step is as long as that", Time(first.host_ns))
    columns: Columns[DeviceEstimate] = {
        Column(header="on", holds=ColumnKind.NAMES, least=12): lambda row: row.device,
        Column(header="from"): lambda row: Time(row.low_ns),
        Column(header="to"): lambda row: Time(row.high_ns),
        Column(header="attained", drop_order=2): lambda row: Time(row.attained_ns),
        Column(header="takes", drop_order=1): lambda row: Bytes(row.occupied.high_bytes),
        Column(header="fits"): lambda row: FITS[row.occupied.fits],
    }
    others = estimated.devices if len(estimated.devices) > 1 else ()
    return Section(
        title="Estimate",
        facts=facts_of(
            ("time", phrase("{} to {} a step", Time(first.low_ns), Time(first.high_ns))),
            ("attained", phrase("{}: at the fastest rates that anyone measured there", Time(first.attained_ns))),
            ("host", host), ("throughput", _throughput(anatomy, first)), ("share of peak", _mfu(first)),
            (occupied.fits.value, memory),
            ("step", f"batch {workload.batch or 'unknown'}{length}, {kind}, {_precision(anatomy)}"),
            ("assumed", "; ".join(estimated.assumed) or None),
        ),
        columns=tuple(columns) if others else (),
        rows=tuple(Row(cells=cells_of(columns, row)) for row in others),
        notes=(Note(text=note("estimate", "time")),),
    )  # fmt: skip


def _throughput(anatomy: Anatomy, first: DeviceEstimate) -> Phrase | None:
    estimated, batch = anatomy.estimated, anatomy.workload.batch
    tokens = estimated.tokens if estimated is not None else None
    amount, unit = (tokens, "tokens a second") if tokens else (batch, "samples a second")
    if not amount:
        return None
    low, high = (round(amount * 1e9 / ns) for ns in (first.high_ns, first.low_ns))
    return phrase(f"{{}} to {{}} {unit}", Count(low), Count(high))


def _mfu(first: DeviceEstimate) -> Phrase | None:
    """Return the range of the MFU: that of the step as is, by the ends of the range."""
    if first.mfu is None:
        return None
    low, high = (first.mfu * first.as_is_ns / ns for ns in (first.high_ns, first.low_ns))
    return phrase(f"MFU {{}} to {{}} of {first.mfu_dtype}", Share(low, 1), Share(high, 1))


def _precision(anatomy: Anatomy) -> str:
    workload = anatomy.workload
    return f"autocast to {workload.amp}" if workload.amp else f"{workload.dtype or 'float32'}"
