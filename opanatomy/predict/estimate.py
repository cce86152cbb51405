"""Estimate a step on a device that is not here: the calls that it would make, their time, its memory."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.analysis.roofline import with_roofline
from opanatomy.classification.operators import classify_operator
from opanatomy.cost.registry import cost
from opanatomy.devices.match import ceilings_of, sheets_named
from opanatomy.devices.sheets import SHEETS, Sheet
from opanatomy.errors import EstimateError, UsageError
from opanatomy.io.redact import Texts, redacted
from opanatomy.memory.observed import memory_of_observations
from opanatomy.options import RunOptions
from opanatomy.predict.fit import CPU, assumptions, gpu_of, limit_of_sheet, occupied_of, with_optimizer
from opanatomy.predict.workers import followed_apart
from opanatomy.records.anatomy import Anatomy, Ceilings, DeviceFigures, Ledger, Provenance, Step, Timeline
from opanatomy.records.estimate import DeviceEstimate, Estimated
from opanatomy.records.experiment import Limit, SimulatedCall, SimulatedStep
from opanatomy.records.signature import Cost, text_of
from opanatomy.records.table import table_of_columns
from opanatomy.records.taxonomy import FLOAT32, TF32, OperatorClass, Phase
from opanatomy.records.work import FIGURES, KEYS
from opanatomy.records.workload import Environment
from opanatomy.report.units import noun
from opanatomy.version import __version__

_NS: Final = 10**9


class Efficiency(Struct, frozen=True, kw_only=True):
    """The share of the sheet's peak that calls of eager mode reach: products, fused attention, convolutions."""

    products: float
    attention: float
    convolutions: float


#: By the major compute capability, of products in half precision. Fitted on the 46 runs of MPT decoders of 125 M to 7 B
#: on 8 GPUs in bfloat16 that mosaicml/llm-foundry publishes (commit 8c8dd48): A100 18 and 18 runs, H100 10; the spread
#: about them is 5 %. Those of the H100, 0.50 and 0.20, are of 2023; bfloat16 products in traces of today reach 0.73, so
#: the middle is taken. Others take those of their neighbour: nothing was fitted there. The shares of convolutions are
#: assumed, chosen with Lambda's runs of ResNet-50 in view: these judge nothing.
_AMPERE: Final = Efficiency(products=0.68, attention=0.40, convolutions=0.30)
_HOPPER: Final = Efficiency(products=0.57, attention=0.25, convolutions=0.25)
_HALVES: Final = {7: _AMPERE, 8: _AMPERE, 9: _HOPPER, 10: _HOPPER, 12: _AMPERE}
#: Of float32 and float64 without tensor cores: 0.72 in the recording of BERT-large on an H100, 0.81 on an A100.
_WIDE: Final = Efficiency(products=0.75, attention=0.50, convolutions=0.60)
_WIDE_TYPES: Final = (FLOAT32, "float64")
_FITTED: Final = (8, 9)
#: The share of the memory's bandwidth that calls of a class reach: the medians of 3,740 operators of 60 GPU traces, of
#: those that take 0.1 ms and more.
_BANDWIDTH: Final = {
    OperatorClass.TENSOR_CONTRACTION: 0.80, OperatorClass.ELEMENTWISE: 0.85,
    OperatorClass.STATISTICAL_NORMALIZATION: 0.60, OperatorClass.DATA_MOVEMENT: 0.60,
}  # fmt: skip
_OTHER_BANDWIDTH: Final = 0.60
#: The shortest time of a kernel.
_KERNEL_NS: Final = 3_000
#: What the host needs for a call that launches work, by phase, and for any other. Forward has Python's modules beside
#: it, recomputation also the states of the random generators, and cuDNN looks for an algorithm. Fitted on three of the
#: twelve steps recorded on an H200 that were bound by the host: BERT-large with and without checkpointing and
#: ResNet-50, all under autocast, 107, 49 and 29 ms.
_LAUNCH_NS: Final = {Phase.FORWARD: 28_000, Phase.BACKWARD: 18_000, Phase.RECOMPUTE: 65_000, Phase.OPTIMIZER: 18_000}
_CONVOLUTION_NS: Final = 150_000
_CALL_NS: Final = 1_200
#: The share of the bandwidth that the fastest streams reach.
_STREAMS: Final = 0.92
#: How far from "as is" the ends of the range are: all of the runs it was fitted on are inside.
_RANGE: Final = 1.26
#: What the operators of a fused attention and of a convolution, forward or backward, have in their names.
_ATTENTION: Final = "_attention"
_CONVOLUTION: Final = "convolution"


def estimate_of(options: RunOptions, devices: Sequence[str], *, command: str, stage: Callable[[str], None]) -> Anatomy:
    """Return the anatomy of a step on the first of these devices, with the time and the memory on each; nothing is run.

    Raises `UsageError` for a device without a data sheet, `EstimateError` if the step cannot be followed.
    """
    limits = [sheet_limit(name) for name in devices]
    options, assumed = with_optimizer(options)
    assumed += tuple(f"{name} is {limit.device}" for name, limit in zip(devices, limits, strict=True)
                     if name.casefold() != (limit.device or "").casefold())  # fmt: skip
    made: list[DeviceEstimate] = []
    steps: dict[Any, SimulatedStep] = {}
    for limit in limits:
        stage(f"{limit.device}: on tensors without values")
        if limit.capability not in steps:
            step = next(followed_apart([replace(options, device=CPU)], gpu=gpu_of(limit))).step
            if isinstance(step, str):
                raise EstimateError(step)
            steps[limit.capability] = step
        made.append(estimated_on(steps[limit.capability], limit))
    first, step = limits[0], steps[limits[0].capability]
    workload = step.workload
    tokens = workload.sequence_length and (workload.batch or 1) * workload.sequence_length
    estimated = Estimated(
        devices=tuple(made), tokens=tokens, assumed=(*assumed, *assumptions(first), *_unfitted(limits))
    )
    return redacted(_anatomy(step, _sheet(first), estimated, command), Texts(everything=options.redact))


def sheet_limit(name: str) -> Limit:
    """Return the memory of the device of this name; of several like ones that with the largest peak and memory."""
    plain = _plain(name)
    named = sheets_named(name)
    if not named and plain and not _SIZE.fullmatch(plain):
        named = tuple(sheet for sheet in SHEETS if plain in _plain(sheet.device))
    known = [sheet for sheet in named if sheet.memory_gib and sheet.bandwidth and sheet.matrix]
    if not known:
        raise UsageError(
            f"--on {name}: no device with a data sheet here is called so - name one, such as H100, A100 or RTX 4090"
        )
    # The name itself first: a 3090 is no 3090 Ti, and an H100 no GH100.
    exact = [sheet for sheet in known if plain in map(_plain, _endings(sheet.device))]
    first = exact or [sheet for sheet in known if _plain(sheet.device).startswith(plain)] or known
    sheet = max(first, key=lambda sheet: (max(sheet.matrix.values()), sheet.memory_gib or 0, -len(sheet.device)))
    return limit_of_sheet(sheet)


def _endings(name: str) -> Iterator[str]:
    """Yield a name, and what is left of it without its first words."""
    words = name.split()
    yield from (" ".join(words[place:]) for place in range(len(words)))


def _plain(name: str) -> str:
    """Return a name without its maker and brand, blanks and case."""
    return _BRAND.sub("", re.sub(r"[\s_-]+", "", name.casefold()))


#: A size alone is no name.
_SIZE: Final = re.compile(r"\d+(?:\.\d+)?[kmgt]?i?b")
_BRAND: Final = re.compile("^(?:nvidia|amd)?(?:geforce|tesla|instinct)?")


def _sheet(limit: Limit) -> Sheet:
    return next(sheet for sheet in SHEETS if sheet.device == limit.device)


def _unfitted(limits: Sequence[Limit]) -> Iterator[str]:
    names = [str(limit.device) for limit in limits if limit.capability is None or limit.capability[0] not in _FITTED]
    if names:
        yield f"efficiencies of {', '.join(names)} as on an A100 or H100: none were fitted there"


# ----- the time of a call


class _Timed(Struct, frozen=True):
    """One call on a device: its time as is, and at what is attained; whether it launches work there."""

    as_is_ns: float
    attained_ns: float
    launches: bool
    #: Of a contraction: its FLOPs in the full convention, and the data type that it is computed in.
    flops: int = 0
    dtype: str = ""


def estimated_on(step: SimulatedStep, limit: Limit) -> DeviceEstimate:
    """Return the time and the memory of a step on a device."""
    ceilings, efficiency = ceilings_of(_sheet(limit)), _efficiency_of(limit.capability)
    device = attained = host = 0.0
    flops: Counter[str] = Counter()
    for call in step.calls:
        timed = _timed(call, ceilings, efficiency)
        device += timed.as_is_ns * call.calls
        attained += timed.attained_ns * call.calls
        host += _host_ns(call, timed) * call.calls
        flops[timed.dtype] += timed.flops * call.calls if call.phase is not Phase.RECOMPUTE else 0
    as_is = max(device, host)
    dtype = max(flops, key=lambda name: flops[name], default="")
    peak = ceilings.matrix_peak(dtype) if flops[dtype] else None
    return DeviceEstimate(
        device=limit.device or limit.name, capability=limit.capability, usable_bytes=limit.usable_bytes or limit.bytes,
        occupied=occupied_of(step, limit), attained_ns=round(attained), as_is_ns=round(as_is), host_ns=round(host),
        low_ns=round(max(as_is / _RANGE, attained)), high_ns=round(max(as_is * _RANGE, attained)),
        mfu=None if not peak or not as_is else flops.total() / peak / as_is * _NS, mfu_dtype=dtype or None,
    )  # fmt: skip


def _host_ns(call: SimulatedCall, timed: _Timed) -> int:
    """Return what the host needs for a call."""
    if not timed.launches:
        return _CALL_NS
    known = _LAUNCH_NS.get(call.phase, _LAUNCH_NS[Phase.FORWARD])
    return max(known, _CONVOLUTION_NS) if _CONVOLUTION in call.operator else known


def _efficiency_of(capability: tuple[int, int] | None) -> Efficiency:
    return _HALVES.get(capability[0] if capability else 9, _HALVES[8])


def _timed(call: SimulatedCall, ceilings: Ceilings, efficiency: Efficiency) -> _Timed:
    known = classify_operator(call.operator)
    if known is None or known.operator_class is None:
        return _Timed(0.0, 0.0, False)
    costs = cost(call.operator, call.signature)
    if costs is None:
        return _Timed(_KERNEL_NS, 0.0, True)
    moved = (costs.read_bytes + costs.written_bytes) / (ceilings.bandwidth_bytes_per_second or 1)
    compute, share, attained = 0.0, 1.0, 1.0
    if known.operator_class is OperatorClass.TENSOR_CONTRACTION:
        dtype = call.signature.compute_dtype or FLOAT32
        convolves = _CONVOLUTION in call.operator
        if convolves and dtype == FLOAT32 and TF32 in ceilings.matrix_flops_per_second:
            dtype = TF32  # cuDNN's default
        peak = ceilings.matrix_peak(dtype)
        if not peak:
            raise EstimateError(f"how fast {ceilings.device} multiplies {dtype} is not known - give another data type")
        compute = _flops(costs) / peak
        efficiency = _WIDE if dtype in _WIDE_TYPES else efficiency
        share = efficiency.products
        if _ATTENTION in call.operator:
            share = efficiency.attention
        elif convolves:
            share = efficiency.convolutions
        attained = ceilings.attained_share.get(dtype, 1.0)
        flops, of_type = costs.flops, dtype
    else:
        peak = ceilings.vector_peak(call.signature.compute_dtype)
        compute, flops, of_type = costs.flops / peak if peak else 0.0, 0, ""
    bandwidth = _BANDWIDTH.get(known.operator_class, _OTHER_BANDWIDTH)
    return _Timed(
        _NS * max(compute / share, moved / bandwidth) + _KERNEL_NS, _NS * max(compute / attained, moved / _STREAMS),
        True, flops, of_type,
    )  # fmt: skip


def _flops(costs: Cost) -> int:
    """Return what a kernel computes: a fused attention leaves out what a causal mask hides."""
    return costs.flops if costs.causal_flops is None else costs.causal_flops


# ----- the report


def _anatomy(step: SimulatedStep, sheet: Sheet, estimated: Estimated, command: str) -> Anatomy:
    """Return the report of a step: its calls as the work, with their times as is."""
    ceilings, first = ceilings_of(sheet), estimated.devices[0]
    efficiency = _efficiency_of(first.capability)
    rows = list(_rows(step, ceilings, efficiency))
    work = table_of_columns(
        {name: [row.get(name) for row in rows] for name in KEYS},
        {name: [row.get(name) for row in rows] for name in FIGURES},
    )
    device_ns = sum(row["time_ns"] for row in rows)
    unknown_ns = sum(row["uncosted_ns"] for row in rows)
    memory = memory_of_observations(step.memory)
    caveat = f"estimated for {sheet.device}, not run: times are those of usual efficiencies"
    anatomy = Anatomy(
        provenance=Provenance(
            opanatomy=__version__, command=command, created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ),
        environment=Environment(
            device=sheet.device, device_kind="cuda", device_memory_bytes=ceilings.memory_bytes, matmul_float32="ieee",
            convolution_float32="tf32",
        ),
        workload=step.workload, step=Step(kernel_time_ns=device_ns), work=work,
        memory=replace(memory, measured_by="tensors without values, computed"),
        timeline=Timeline(window_ns=device_ns, busy_ns=device_ns, idle_ns=0),
        device=DeviceFigures(),
        ledger=Ledger(
            device_work_ns=device_ns, linked_ns=device_ns, graph_launched_ns=0, no_launch_record_ns=0,
            outside_window_ns=0, classed_ns=device_ns, costed_ns=device_ns - unknown_ns, unknown_ns=0,
        ),
        estimated=estimated, caveats=(caveat,),
    )  # fmt: skip
    return with_roofline(replace(anatomy, warnings=tuple(_uncounted(step))), ceilings)


def _uncounted(step: SimulatedStep) -> Iterator[str]:
    """Yield a warning if operators have no cost: only their launches are in the time."""
    calls: Counter[str] = Counter()
    for call in step.calls:
        known = classify_operator(call.operator)
        is_view = known is not None and known.operator_class is None
        if not is_view and (known is None or cost(call.operator, call.signature) is None):
            calls[call.operator] += call.calls
    if calls:
        names = ", ".join(name for name, _ in calls.most_common(_NAMED))
        yield (
            f"the time lacks the work of {noun(calls.total(), 'call')} of operators without a formula ({names}): it may"
            " be longer than the range"
        )


#: So many operators without a cost are named.
_NAMED: Final = 3


def _rows(step: SimulatedStep, ceilings: Ceilings, efficiency: Efficiency) -> Iterator[dict[str, Any]]:
    for call in step.calls:
        known = classify_operator(call.operator)
        if known is None or known.operator_class is None:
            continue
        timed, costs = _timed(call, ceilings, efficiency), cost(call.operator, call.signature)
        spent = round(timed.as_is_ns * call.calls)
        figures: dict[str, Any] = {"uncosted_ns": spent}
        if costs is not None:
            of_call = {
                "flops": costs.flops, "read_bytes": costs.read_bytes, "written_bytes": costs.written_bytes,
                "causal_flops": costs.causal_flops, "normalization_flops": costs.normalization_flops or None,
            }  # fmt: skip
            figures = {name: None if value is None else value * call.calls for name, value in of_call.items()}
            figures["uncosted_ns"] = 0
        yield figures | {
            "operator": call.operator, "signature": text_of(call.signature), "phase": call.phase,
            "operator_class": known.operator_class, "rule": known.rule, "module": call.module, "calls": call.calls,
            "events": call.calls, "time_ns": spent, "crosses_host_link": False,
        }  # fmt: skip
