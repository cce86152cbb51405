"""Estimate a step on an absent device: its calls, their time, its memory."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.analysis.communication import bus_factor
from opanatomy.analysis.roofline import with_roofline
from opanatomy.attribution.collectives import OTHER, named
from opanatomy.capture.device.environment import environment_of
from opanatomy.classification.operators import classify_operator
from opanatomy.cost.conventions import conventions_of
from opanatomy.cost.registry import cost
from opanatomy.devices.ceilings import ceilings_for
from opanatomy.devices.match import called, ceilings_of, fastest, near_devices
from opanatomy.devices.overrides import parse_bandwidth
from opanatomy.devices.sheets import SHEETS
from opanatomy.errors import EstimateError, UsageError
from opanatomy.io.redact import Redactor, redacted
from opanatomy.memory.observed import memory_of_observations
from opanatomy.options import TP, RunOptions, as_asked
from opanatomy.predict.fit import CPU, assumptions, gpu_of, limit_of, limit_of_sheet, occupied_of, with_optimizer
from opanatomy.predict.workers import simulate_in_process
from opanatomy.records.anatomy import Anatomy, Ceilings, DeviceFigures, Ledger, Provenance, Step, Timeline
from opanatomy.records.communication import Collective
from opanatomy.records.estimate import DeviceEstimate, Estimated, FlopConvention, Tried
from opanatomy.records.experiment import Limit, SimulatedCall, SimulatedStep
from opanatomy.records.signature import Cost, text_of
from opanatomy.records.table import table_of_columns
from opanatomy.records.taxonomy import FLOAT32, TF32, OperatorClass, Phase
from opanatomy.records.work import FIGURES, KEYS, LikeStep, StepKind
from opanatomy.records.workload import Environment
from opanatomy.report.units import noun, size
from opanatomy.version import __version__

_NS: Final = 10**9


class Efficiency(Struct, frozen=True, kw_only=True):
    """Fractions of the data sheet's peak attained in eager mode: contractions, fused attention, convolutions."""

    products: float
    attention: float
    convolutions: float


#: For half precision contractions, by major compute capability. Fitted on the 46 runs of MPT decoders of 125 M to 7 B
#: on 8 GPUs in bfloat16 published by mosaicml/llm-foundry (commit 8c8dd48): A100 18 and 18 runs, H100 10; the spread is
#: 5 %. The H100's fitted values, 0.50 and 0.20, are of 2023; bfloat16 contractions in current traces reach 0.73, so the
#: middle is used. Other devices use their neighbour's values, unfitted. The convolution fractions are assumed, chosen
#: knowing Lambda's runs of ResNet-50, which therefore validate nothing.
_AMPERE: Final = Efficiency(products=0.68, attention=0.40, convolutions=0.30)
_HOPPER: Final = Efficiency(products=0.57, attention=0.25, convolutions=0.25)
_HALVES: Final = {7: _AMPERE, 8: _AMPERE, 9: _HOPPER, 10: _HOPPER, 12: _AMPERE}
#: Of a GeForce: products between Lambda's BERT on an RTX 3090 and 4090 (0.73 to 0.78) and timm's transformers on a 3090
#: (0.66 to 0.94), convolutions of timm's networks there (0.56 and 0.66, fitted on halves of 24 runs).
_GEFORCE: Final = Efficiency(products=0.75, attention=0.40, convolutions=0.60)
#: Of float32 and float64 without tensor cores: 0.72 in the recording of BERT-large on an H100, 0.81 on an A100.
_WIDE_EFFICIENCY: Final = Efficiency(products=0.75, attention=0.50, convolutions=0.60)
#: Of convolutions with few channels a group: fitted on halves of timm's 24 networks on an RTX 3090 (grouped 0.23 and
#: 0.31, depthwise 0.006 and 0.008; for grouped ones alone none holds).
_GROUPED, _DEPTHWISE = 0.27, 0.007
_WIDE_TYPES: Final = (FLOAT32, "float64")
_FITTED: Final = (8, 9)
#: Fraction of memory bandwidth attained by calls of a class: medians over 3,740 operators of 60 GPU traces that take at
#: least 0.1 ms.
_BANDWIDTH: Final = {
    OperatorClass.TENSOR_CONTRACTION: 0.80,
    OperatorClass.ELEMENTWISE: 0.85,
    OperatorClass.STATISTICAL_NORMALIZATION: 0.60,
    OperatorClass.DATA_MOVEMENT: 0.60,
}
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
#: Fraction of non-contraction bytes remaining after fusion by torch.compile: 0.51, 0.52 and 0.59 by Inductor's own
#: count (torch 2.13) in steps of GPT-2, a Llama and BERT. The fraction of host time is assumed.
_FUSED: Final = 0.54
_LAUNCHED: Final = 0.3
_COMPILED: Final = (
    "with torch.compile, 54 % of eager mode's bytes outside matmuls, 30 % of its host time, and the same memory"
)
#: How far from "as is" the ends of the range are: all of the runs it was fitted on are inside.
_RANGE: Final = 1.26
#: Parts of operator names that identify fused attention and convolution, forward or backward.
_ATTENTION: Final = "_attention"
_CONVOLUTION: Final = "convolution"


def estimate_of(
    options: RunOptions,
    devices: Sequence[str],
    *,
    ranks: int = 1,
    link: str | None = None,
    sweep: str | None = None,
    tf32: bool = False,
    tokens_per_second: float | None = None,
    command: str,
    stage: Callable[[str], None],
) -> Anatomy:
    """Return the anatomy of a step on the first of these devices, with time and memory on each; nothing is run.

    With `ranks` this many devices train together over a `link`; `sweep` has the sizes, one row each. MFUs by formula
    are computed from the estimate, or from measured `tokens_per_second`. Raises `UsageError` for a device without a
    data sheet, `EstimateError` if the step cannot be simulated.
    """
    devices = list(dict.fromkeys(devices))
    limits = [sheet_limit(name) for name in devices]
    rates = [_rates_of(limit, compiled=options.compile, tf32=tf32) for limit in limits]
    links = [link_of(link, limit) if ranks > 1 else None for limit in limits]
    options, assumed = with_optimizer(options)
    assumed += tuple(
        f"{name} is {each.ceilings.device}"
        for name, each in zip(devices, rates, strict=True)
        if name.casefold() != (each.ceilings.device or "").casefold()
    )
    made: list[DeviceEstimate] = []
    steps: dict[Any, SimulatedStep] = {}
    sizes = (options,) if sweep is None else tuple(_swept(options, sweep))
    swept = (sweep or "").partition("=")[0].strip()
    for limit, rate, joined in zip(limits, rates, links, strict=True):
        gpu = None if limit.name == CPU else replace(gpu_of(limit), ranks=ranks)
        kind = gpu and gpu.capability
        missing = [each for each in sizes if (kind, each) not in steps]
        followed = simulate_in_process([replace(each, device=CPU, compile=False) for each in missing], gpu=gpu)
        for each in missing:
            said = f", {_SWEPT[swept]} {getattr(each, swept)}" if swept else ""
            stage(f"{rate.ceilings.device}{said}: simulating on fake tensors")
            step = next(followed).step
            if isinstance(step, str):
                raise EstimateError(step)
            steps[kind, each] = replace(step, workload=replace(step.workload, compiled=options.compile))
        made += (
            estimated_on(steps[kind, each], limit, link=joined, compiled=options.compile, tf32=tf32) for each in sizes
        )
    step = next(iter(steps.values()))
    conventions = tuple(_conventions(step, made[0], rates[0].ceilings, tokens_per_second))
    if tokens_per_second is not None and not conventions:
        raise UsageError(
            f"{as_asked('--tokens-per-second', 'tokens_per_second')} applies only to the training of text decoders -"
            " leave it out"
        )

    assumed += () if limits[0].name == CPU else tuple(assumptions(limits[0], ranks))
    assumed += tuple(
        f"{ranks} {limit.device} connected at {size(int(joined))}/s in each direction"
        for limit, joined in zip(limits, links, strict=True)
        if joined
    )
    unfitted = [
        limit.device or "the CPU" for limit in limits if limit.capability is None or limit.capability[0] not in _FITTED
    ]
    if unfitted:
        assumed += (f"the efficiencies of an A100 or H100 for {', '.join(unfitted)}, for which none were fitted",)
    assumed += (_COMPILED,) if options.compile else ()
    estimated = Estimated(
        devices=tuple(made),
        tokens_per_second=tokens_per_second,
        tried=tried_of(step, options),
        conventions=conventions,
        assumed=assumed,
    )
    return redacted(_anatomy(step, rates[0], estimated, command), Redactor(everything=options.redact))


#: Options that can be swept -> how a row's size is written.
_SWEPT: Final = {"batch": "batch", "seq": "length"}


def _swept(options: RunOptions, sweep: str) -> Iterator[RunOptions]:
    """Yield the options for each size of `batch=1..64` (doubling) or `seq=512,1024`; raise `UsageError`."""
    name, _, text = sweep.partition("=")
    name, ends = name.strip(), text.split("..")
    try:
        sizes = [int(size) for size in (ends if len(ends) == 2 else text.split(","))]
    except ValueError:
        sizes = []
    if name not in _SWEPT or not sizes or min(sizes) < 1 or (len(ends) == 2 and sizes[0] > sizes[1]):
        raise UsageError(f"--sweep {sweep}: not understood - write batch=1..64, batch=8,12,16 or seq=512..8192")
    if len(ends) == 2:
        first, last = sizes
        sizes = [first << index for index in range((last // first).bit_length())]
        sizes += [last] if sizes[-1] != last else []
    yield from (replace(options, **{name: size}) for size in dict.fromkeys(sizes))


def sheet_limit(name: str) -> Limit:
    """Return the memory of the device with this name; of several variants the one with the largest peak and memory."""
    if name.casefold() == CPU:
        return limit_of(CPU)
    sheet = fastest(called(name))
    if sheet is None:
        near = ", ".join(near_devices(name))
        instead = f"did you mean {near}?" if near else "use H100, A100, 4090, cpu, ..."
        raise UsageError(f"--on {name}: opanatomy has no data sheet for this device - {instead}")
    return limit_of_sheet(sheet)


#: NVLink bandwidth per direction by compute capability; and PCIe's, 16 lanes of generation 3, 4 and 5 (NVIDIA's data
#: sheets give both NVLink directions together: 300, 600, 900 and 1,800 GB/s).
_NVLINK: Final = {(7, 0): 150e9, (8, 0): 300e9, (9, 0): 450e9, (10, 0): 900e9}
_PCIE: Final = {7: 16e9, 8: 32e9, 9: 64e9, 10: 64e9, 12: 64e9}
#: The share of a link that messages of NCCL reach: 370 of 450 GB/s in a ring on H100 (NVIDIA/nccl-tests issue 212), 230
#: of 300 on A100.
_OF_LINK: Final = 0.8


def link_of(text: str | None, limit: Limit) -> float:
    """Return the bytes a second that a link between these devices carries in each direction; raise `UsageError`."""
    name = "" if text is None else text.strip().casefold()
    nvlink = None if limit.capability is None else _NVLINK.get(limit.capability)
    pcie = None if limit.capability is None else _PCIE.get(limit.capability[0])
    known = {"": nvlink or pcie, "nvlink": nvlink, "pcie": pcie}
    if name not in known:
        return parse_bandwidth(text or "", "--link")
    rate = known[name]
    if rate is None:
        raise UsageError(
            f"the speed of {limit.device}'s {name or 'link'} is unknown - use its bytes/s in each direction,"
            " such as --link 32G"
        )
    return rate


# ----- the time of a call


class _Rates(Struct, frozen=True, kw_only=True):
    """A device's rates and how calls use them: float32 contractions in TF32, element-wise work fused."""

    ceilings: Ceilings
    efficiency: Efficiency
    tf32: bool = False
    compiled: bool = False


def _rates_of(limit: Limit, *, compiled: bool, tf32: bool) -> _Rates:
    if limit.name == CPU:
        known = ceilings_for(environment_of(CPU))
        if known.ceilings is None:
            raise EstimateError("--on cpu: this processor's peaks have not been measured - run `opanatomy peaks` first")
        return _Rates(ceilings=known.ceilings, efficiency=_WIDE_EFFICIENCY, compiled=compiled)
    ceilings = ceilings_of(next(sheet for sheet in SHEETS if sheet.device == limit.device))
    if tf32 and TF32 not in ceilings.matrix_flops_per_second:
        raise UsageError(f"--tf32: {limit.device} does not support TF32 - leave it out")
    efficiency = _HALVES.get(limit.capability[0] if limit.capability else 9, _HALVES[8])
    if "GeForce" in (limit.device or ""):
        efficiency = _GEFORCE
    return _Rates(ceilings=ceilings, efficiency=efficiency, tf32=tf32, compiled=compiled)


class _Timed(Struct, frozen=True):
    """One call on a device: its estimated and its attained time; whether it launches work there."""

    as_is_ns: float
    attained_ns: float
    launches: bool
    #: Of a contraction: its FLOPs in the full convention, and the data type that it is computed in.
    flops: int = 0
    dtype: str = ""


def estimated_on(
    step: SimulatedStep, limit: Limit, *, link: float | None = None, compiled: bool = False, tf32: bool = False
) -> DeviceEstimate:
    """Return a step's time and memory on a device; on one of several, given the link's bytes per second.

    Collectives may or may not overlap with other work, except those of sharded layers, which block: the estimate is the
    middle of both cases, the range covers both.
    """
    rates = _rates_of(limit, compiled=compiled, tf32=tf32)
    device = attained = host = transfer = 0.0
    flops: Counter[str] = Counter()
    for call in step.calls:
        timed = _timed(call, rates)
        device += timed.as_is_ns * call.calls
        attained += timed.attained_ns * call.calls
        needed = _CALL_NS  # by the host, for a call
        if timed.launches:
            needed = _LAUNCH_NS.get(call.phase, _LAUNCH_NS[Phase.FORWARD])
            if _CONVOLUTION in call.operator:
                needed = max(needed, _CONVOLUTION_NS)
        host += needed * call.calls
        flops[timed.dtype] += timed.flops * call.calls if call.phase is not Phase.RECOMPUTE else 0
    workload, ranks = step.workload, step.workload.world_size or 1
    if limit.name == CPU:
        host = 0.0  # it is the device
    elif rates.compiled:
        host *= _LAUNCHED
    if link:
        transfer = sum(map(_wire_bytes, collectives_of(step))) / link * _NS
    waits = transfer / _OF_LINK if workload.parallel == TP else 0.0
    hidden = max(device + waits, host, transfer / _OF_LINK)
    exposed = max(device + transfer / _OF_LINK, host)
    attained = attained + transfer if waits else max(attained, transfer)
    as_is = (hidden + exposed) / 2
    dtype = max(flops, key=lambda name: flops[name], default="")
    peak = rates.ceilings.matrix_peak(dtype) if flops[dtype] else None
    samples = workload.samples_together or workload.batch
    return DeviceEstimate(
        device=rates.ceilings.device or limit.name,
        capability=limit.capability,
        usable_bytes=limit.room_bytes,
        occupied=occupied_of(step, limit),
        attained_ns=round(attained),
        as_is_ns=round(as_is),
        host_ns=round(host),
        low_ns=round(max(hidden / _RANGE, attained)),
        high_ns=round(max(exposed * _RANGE, attained)),
        mfu=None if not peak or not as_is else flops.total() / peak / as_is * _NS,
        mfu_dtype=dtype or None,
        ranks=ranks,
        link_bytes_per_second=link,
        transfer_ns=round(transfer / _OF_LINK),
        batch=workload.batch,
        sequence_length=workload.sequence_length,
        samples=samples,
        tokens=(samples or 1) * workload.sequence_length if workload.sequence_length else None,
    )


def collectives_of(step: SimulatedStep) -> tuple[Collective, ...]:
    """Return one rank's collectives per step, with sizes as in nccl-tests and without times."""
    found: dict[tuple[str, str | None], list[int]] = {}
    for call in step.calls:
        known = classify_operator(call.operator)
        if known is None or known.operator_class is not OperatorClass.COMMUNICATION or _WAIT in call.operator:
            continue
        name = named(call.operator) or OTHER
        tensors = call.signature.tensors()
        # The larger of what it reads and writes; a functional one makes what it writes.
        size = max((each.known_bytes or 0 for each in tensors), default=0)
        if call.operator.startswith(_FUNCTIONAL) and name == "all_gather":
            size *= step.workload.world_size or 1
        of_kind = found.setdefault((name, tensors[0].dtype if tensors else None), [0, 0])
        of_kind[0] += call.calls
        of_kind[1] += size * call.calls
    ranks = step.workload.world_size
    return tuple(
        Collective(
            collective=name,
            dtype=dtype,
            group_size=ranks,
            group_assumed=False,
            calls=calls,
            kernels=calls,
            time_ns=0,
            sized_ns=0,
            bytes=size,
        )
        for (name, dtype), (calls, size) in found.items()
    )


#: Functional collectives, and the operator that waits for them.
_FUNCTIONAL: Final = "_c10d_functional"
_WAIT: Final = "wait_tensor"


def _wire_bytes(row: Collective) -> float:
    """Return the bytes on the busiest link."""
    return (row.bytes or 0) * (bus_factor(row.collective, row.group_size) or 0.0)


def _conventions(
    step: SimulatedStep, row: DeviceEstimate, ceilings: Ceilings, rate: float | None
) -> Iterator[FlopConvention]:
    """Yield the training FLOPs per token by each formula, and as counted here; with a device's MFUs."""
    if step.decoder is None or not row.tokens or step.workload.inference or row.sequence_length is None:
        return
    counted: Counter[bool] = Counter()
    for call in step.calls:
        costs = cost(call.operator, call.signature)
        if costs is None or call.phase is Phase.RECOMPUTE or _class_of(call) is not OperatorClass.TENSOR_CONTRACTION:
            continue
        counted[False] += costs.flops * call.calls
        counted[True] += _flops(costs) * call.calls
    ranks = row.ranks
    kinds = ((False, "counted, full", "the causal mask"), (True, "counted, causal", "nothing known"))
    exact = [
        FlopConvention(name=name, flops=round(counted[half] * ranks / row.tokens), counts="each call", leaves_out=rest)
        for half, name, rest in kinds
    ]
    peak = ceilings.matrix_peak(row.mfu_dtype) if row.mfu_dtype else None
    each = rate or row.tokens / ranks * _NS / row.as_is_ns
    for made in (*exact, *conventions_of(step.decoder, row.sequence_length)):
        yield replace(made, flops_per_second=made.flops * each, mfu=made.flops * each / peak if peak else None)


#: Tasks of a model that only encodes, as the published runs do.
_OF_ENCODERS: Final = ("masked-lm", "sequence-classification", "token-classification", "image-classification")


def tried_of(step: SimulatedStep, options: RunOptions) -> Tried:
    """Return how estimates of this kind of step came out next to published runs: a row of docs/estimate.md."""
    flops: Counter[bool] = Counter()
    for call in step.calls:
        costs = cost(call.operator, call.signature)
        if costs is not None and _class_of(call) is OperatorClass.TENSOR_CONTRACTION:
            flops[_CONVOLUTION in call.operator] += costs.flops * call.calls
    if options.lora is not None:
        kind = "adapters"
    elif step.decoder is not None:
        kind = "mixture of experts" if step.decoder.idle else "dense decoder"
    else:
        attention = any("attention" in call.operator or call.operator.endswith("::_softmax") for call in step.calls)
        otherwise = "dense encoder" if attention and step.workload.task in _OF_ENCODERS else "other network"
        kind = "convolutional network" if flops[True] > flops[False] else otherwise
    rows = msgspec.json.decode((Path(__file__).parent / "errors.json").read_bytes(), type=list[Tried])
    return next((row for row in rows if row.kind == kind), Tried(kind=kind))


def _class_of(call: SimulatedCall) -> OperatorClass | None:
    known = classify_operator(call.operator)
    return None if known is None else known.operator_class


def _timed(call: SimulatedCall, rates: _Rates) -> _Timed:
    ceilings, efficiency = rates.ceilings, rates.efficiency
    known = classify_operator(call.operator)
    if known is None or known.operator_class is None:
        return _Timed(0.0, 0.0, False)
    costs = cost(call.operator, call.signature)
    if known.operator_class is OperatorClass.COMMUNICATION:
        return _Timed(0.0, 0.0, _WAIT not in call.operator)
    if costs is None:
        return _Timed(_KERNEL_NS, 0.0, True)
    moved = (costs.read_bytes + costs.written_bytes) / (ceilings.bandwidth_bytes_per_second or 1)
    compute, share, attained = 0.0, 1.0, 1.0
    if known.operator_class is OperatorClass.TENSOR_CONTRACTION:
        dtype = call.signature.compute_dtype or FLOAT32
        convolves = _CONVOLUTION in call.operator
        by_tf32 = convolves or (rates.tf32 and _ATTENTION not in call.operator)  # cuDNN's default
        if by_tf32 and dtype == FLOAT32 and TF32 in ceilings.matrix_flops_per_second:
            dtype = TF32
        peak = ceilings.matrix_peak(dtype)
        if not peak:
            raise EstimateError(f"{ceilings.device}'s matmul speed in {dtype} is unknown - use another data type")
        compute = _flops(costs) / peak
        efficiency = _WIDE_EFFICIENCY if dtype in _WIDE_TYPES else efficiency
        share = efficiency.products
        if _ATTENTION in call.operator:
            share = efficiency.attention
        elif convolves:
            share = efficiency.convolutions
            weight, index = (2, 9) if "backward" in call.operator else (1, 8)
            groups = call.signature.get(index)
            if isinstance(groups, int) and groups > 1:  # by the channels of a group
                of_group = _DEPTHWISE if call.signature.tensor(weight).shape[1] == 1 else _GROUPED
                share = min(of_group, share)
        attained = ceilings.attained_share.get(dtype, 1.0)
        flops, of_type = costs.flops, dtype
    else:
        peak = ceilings.vector_peak(call.signature.compute_dtype)
        compute, flops, of_type = costs.flops / peak if peak else 0.0, 0, ""
        moved *= _FUSED if rates.compiled else 1.0
    bandwidth = _BANDWIDTH.get(known.operator_class, _OTHER_BANDWIDTH)
    return _Timed(
        _NS * max(compute / share, moved / bandwidth) + _KERNEL_NS,
        _NS * max(compute / attained, moved / _STREAMS),
        True,
        flops,
        of_type,
    )


def _flops(costs: Cost) -> int:
    """Return a kernel's computed FLOPs: fused attention skips what a causal mask hides."""
    return costs.flops if costs.causal_flops is None else costs.causal_flops


# ----- the report


def _anatomy(step: SimulatedStep, rates: _Rates, estimated: Estimated, command: str) -> Anatomy:
    """Return the report of a step: its calls as the work, with their times as is."""
    ceilings, first = rates.ceilings, estimated.devices[0]
    rows, on_cpu = list(_rows(step, rates)), step.device == CPU
    work = table_of_columns(
        {name: [row.get(name) for row in rows] for name in KEYS},
        {name: [row.get(name) for row in rows] for name in FIGURES},
    )
    device_ns = sum(row["time_ns"] for row in rows)
    unknown_ns = sum(row["uncosted_ns"] for row in rows)
    memory = memory_of_observations(step.memory)

    # For comparisons the step is its middle, of which the host or exposed collectives are what is not work.
    idle = max(first.as_is_ns - device_ns, 0)
    host_idle = idle if first.host_ns >= first.as_is_ns else 0
    middle = StepKind(
        steps=(LikeStep(number=0, wall_ns=device_ns + idle, idle_ns=idle),),
        count=1,
        wall_ns=device_ns + idle,
        host_idle_ns=host_idle,
        stream_idle_ns=idle - host_idle,
    )
    collectives: list[Collective] = []
    if link := first.link_bytes_per_second:
        for each in collectives_of(step):
            spent = round(_wire_bytes(each) / link / _OF_LINK * _NS)
            collectives.append(replace(each, time_ns=spent, sized_ns=spent, bus_bytes_per_second=link * _OF_LINK))

    caveat = f"estimated for {ceilings.device}, not run: times are based on typical efficiencies"
    anatomy = Anatomy(
        provenance=Provenance(
            opanatomy=__version__, command=command, created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ),
        environment=Environment(
            device=ceilings.device,
            device_kind=CPU if on_cpu else "cuda",
            device_memory_bytes=ceilings.memory_bytes,
            matmul_float32="tf32" if rates.tf32 else "ieee",
            convolution_float32="ieee" if on_cpu else "tf32",
        ),
        workload=step.workload,
        step=Step(kernel_time_ns=device_ns),
        work=work,
        step_kinds=(middle,),
        memory=replace(memory, measured_by="computed on fake tensors"),
        timeline=Timeline(window_ns=device_ns, busy_ns=device_ns, idle_ns=0),
        device=DeviceFigures(),
        ledger=Ledger(
            device_work_ns=device_ns,
            linked_ns=device_ns,
            graph_launched_ns=0,
            no_launch_record_ns=0,
            outside_window_ns=0,
            classed_ns=device_ns,
            costed_ns=device_ns - unknown_ns,
            unknown_ns=0,
        ),
        collectives=tuple(collectives),
        estimated=estimated,
        caveats=(caveat,),
    )
    return with_roofline(replace(anatomy, warnings=tuple(_uncounted(step))), ceilings)


def _uncounted(step: SimulatedStep) -> Iterator[str]:
    """Yield a warning if operators have no cost: only their launches are in the time."""
    calls: Counter[str] = Counter()
    for call in step.calls:
        known = classify_operator(call.operator)
        is_known = known is not None and known.operator_class in (None, OperatorClass.COMMUNICATION)
        if not is_known and (known is None or cost(call.operator, call.signature) is None):
            calls[call.operator] += call.calls
    if calls:
        names = ", ".join(name for name, _ in calls.most_common(_MAX_NAMED_OPERATORS))
        yield (
            f"the time excludes {noun(calls.total(), 'call')} of operators without a formula ({names}), so the"
            " true time may exceed the range"
        )


#: So many operators without a cost are named.
_MAX_NAMED_OPERATORS: Final = 3


def _rows(step: SimulatedStep, rates: _Rates) -> Iterator[dict[str, Any]]:
    for call in step.calls:
        known = classify_operator(call.operator)
        if known is None or known.operator_class in (None, OperatorClass.COMMUNICATION):
            continue
        timed, costs = _timed(call, rates), cost(call.operator, call.signature)
        spent = round(timed.as_is_ns * call.calls)
        figures: dict[str, Any] = {"uncosted_ns": spent}
        if costs is not None:
            of_call = {
                "flops": costs.flops,
                "read_bytes": costs.read_bytes,
                "written_bytes": costs.written_bytes,
                "causal_flops": costs.causal_flops,
                "normalization_flops": costs.normalization_flops or None,
            }
            figures = {name: None if value is None else value * call.calls for name, value in of_call.items()}
            figures["uncosted_ns"] = 0
        yield figures | {
            "operator": call.operator,
            "signature": text_of(call.signature),
            "phase": call.phase,
            "operator_class": known.operator_class,
            "rule": known.rule,
            "module": call.module,
            "calls": call.calls,
            "events": call.calls,
            "time_ns": spent,
            "crosses_host_link": False,
            "step_kind": 0,
            "like_calls": call.calls,
            "like_events": call.calls,
            "like_ns": spent,
        }
