"""Report what was computed of a step on devices that are not here: its time as a range, its memory."""

from __future__ import annotations

from typing import Final

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.estimate import DeviceEstimate, Fits, FlopConvention, Tried
from opanatomy.report.section import (
    ByteRate,
    Bytes,
    Column,
    ColumnKind,
    Columns,
    Count,
    FlopRate,
    Flops,
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
_NS: Final = 10**9
FITS: Final = {Fits.FITS: "yes", Fits.AT_THE_EDGE: "at the edge", Fits.DOES_NOT_FIT: "no"}


def estimate(anatomy: Anatomy) -> Section | None:
    """Return the range of the step's time, its ends, its memory next to the device's, and the same of other devices."""
    estimated = anatomy.estimated
    if estimated is None:
        return None
    first, workload = estimated.devices[0], anatomy.workload
    occupied = first.occupied
    memory = phrase(
        "{} to {} of {}: {} reserved ({} allocated), plus the device's context",
        Bytes(occupied.low_bytes),
        Bytes(occupied.high_bytes),
        Bytes(first.usable_bytes),
        Bytes(occupied.reserved_bytes),
        Bytes(occupied.allocated_bytes),
    )
    length = f", length {workload.sequence_length}" if workload.sequence_length else ""
    optimizer = f", {workload.optimizer}" if workload.optimizer else ""
    kind = "inference" if workload.inference else f"training{optimizer}"
    host = None
    if first.host_ns >= first.as_is_ns:
        host = phrase("{} to launch all work, which determines the step time", Time(first.host_ns))
    rows = estimated.devices
    varies = {name for name in ("batch", "sequence_length") if len({getattr(row, name) for row in rows}) > 1}
    batches: Columns[DeviceEstimate] = {Column(header="batch"): lambda row: Count(row.batch or 0)}
    lengths: Columns[DeviceEstimate] = {Column(header="length"): lambda row: Count(row.sequence_length or 0)}
    columns: Columns[DeviceEstimate] = {
        Column(header="on", holds=ColumnKind.NAMES, least=12): lambda row: row.device,
        **(batches if "batch" in varies else {}),
        **(lengths if "sequence_length" in varies else {}),
        Column(header="from"): lambda row: Time(row.low_ns),
        Column(header="to"): lambda row: Time(row.high_ns),
        Column(header="attained", drop_order=3): lambda row: Time(row.attained_ns),
        Column(header="tokens/s" if first.tokens else "samples/s", drop_order=2): _per_second,
        Column(header="takes", drop_order=1): lambda row: Bytes(row.occupied.high_bytes),
        Column(header="fits"): lambda row: FITS[row.occupied.fits],
    }
    others = rows if len(rows) > 1 else ()
    together = None
    if first.ranks > 1 and first.link_bytes_per_second:
        together = phrase(
            "{} devices, {}: collectives, hidden and exposed, take {} over a link of {}",
            str(first.ranks),
            workload.parallel or "",
            Time(first.transfer_ns),
            ByteRate(first.link_bytes_per_second),
        )
    throughput = None
    amount, unit = (first.tokens, "tokens a second") if first.tokens else (first.samples, "samples a second")
    if amount:
        low, high = (round(amount * _NS / ns) for ns in (first.high_ns, first.low_ns))
        of_all = f", over all {first.ranks} devices" if first.ranks > 1 else ""
        throughput = phrase(f"{{}} to {{}} {unit}{of_all}", Count(low), Count(high))
    mfu = None
    if first.mfu is not None:  # that of the step as is, by the ends of the range
        least, most = (first.mfu * first.as_is_ns / ns for ns in (first.high_ns, first.low_ns))
        mfu = phrase("MFU {} to {} of the {} peak", Share(least, 1), Share(most, 1), first.mfu_dtype or "")
    precision = f"autocast to {workload.amp}" if workload.amp else f"{workload.dtype or 'float32'}"
    return Section(
        title="Estimate",
        facts=facts_of(
            ("time", phrase("{} to {} per step", Time(first.low_ns), Time(first.high_ns))),
            (
                "attained",
                phrase("{} at the highest throughputs anyone has measured on this device", Time(first.attained_ns)),
            ),
            ("host", host),
            ("together", together),
            ("throughput", throughput),
            ("share of peak", mfu),
            (occupied.fits.value, memory),
            ("step", f"batch {workload.batch or 'unknown'}{length}, {kind}, {precision}"),
            ("checked on", _tried(estimated.tried, first)),
            ("assumed", "; ".join(estimated.assumed) or None),
        ),
        columns=tuple(columns) if others else (),
        rows=tuple(Row(cells=cells_of(columns, row)) for row in others),
        notes=(Note(text=note("estimate", "time")),),
    )


def conventions(anatomy: Anatomy) -> Section | None:
    """Return FLOPs of a token by each project's formula, with the throughput in FLOPs and the MFU that follow."""
    estimated = anatomy.estimated
    if estimated is None or not estimated.conventions:
        return None
    columns: Columns[FlopConvention] = {
        Column(header="formula", holds=ColumnKind.NAMES, least=12): lambda row: row.name,
        Column(header="FLOP/token"): lambda row: Flops(row.flops),
        Column(header="FLOP/s"): lambda row: FlopRate(row.flops_per_second),
        Column(header="of peak"): lambda row: Share(row.mfu, 1),
        Column(header="counts", drop_order=1): lambda row: row.counts,
        Column(header="leaves out", drop_order=2): lambda row: row.leaves_out,
    }
    given, first = estimated.tokens_per_second, estimated.devices[0]
    at = "the throughput in the middle of the estimated range"
    if given is not None and first.tokens:
        spent = first.tokens / first.ranks * _NS / given
        where = "inside" if first.low_ns <= spent <= first.high_ns else "outside"
        at = f"{given:,g} tokens/s per device, {where} the estimated range"
    return Section(
        title="MFU by formula",
        facts=facts_of(("at", at)),
        columns=tuple(columns),
        rows=tuple(Row(cells=cells_of(columns, row)) for row in estimated.conventions),
        notes=(Note(text=note("estimate", "formula")),),
    )


def _tried(tried: Tried | None, first: DeviceEstimate) -> Phrase | None:
    """Return how estimates of this kind of step compared with published runs."""
    if tried is None or first.capability is None:
        return None
    if not tried.runs or tried.median_off is None:
        return phrase("no published run of this kind ({}): the range may be wrong", tried.kind)
    return phrase(
        "{} of this kind ({}): {} within the range, median error {}",
        Count(tried.runs, "published run"),
        tried.kind,
        Count(tried.inside),
        Share(tried.median_off, 1),
    )


def _per_second(row: DeviceEstimate) -> Count:
    return Count(round((row.tokens or row.samples or 0) * _NS / row.as_is_ns))
