"""Add the ceilings of its device to an anatomy: bounds, efficiency, headroom, utilization.

The bound of a call is the longer of FLOPs / peak and bytes / bandwidth (Williams, Waterman and Patterson, "Roofline",
2009). Peaks go by class and data type: contractions are compared with the matrix units, all other arithmetic with the
vector units.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.records.anatomy import (
    BANDWIDTH,
    MIN_COVERED,
    VECTOR,
    AboveCeiling,
    Anatomy,
    Ceilings,
    Check,
    DeviceFigures,
    Difference,
    ExceededCeiling,
    GivenCeiling,
    vector_name,
)
from opanatomy.records.patterns import regex
from opanatomy.records.signature import Tensor
from opanatomy.records.taxonomy import FLOAT32, OF_GENERATION, TF32, ExcessCause, OperatorClass, Phase
from opanatomy.records.work import COMPUTE, MEMORY, ClassRow, OperatorRow, with_bounds
from opanatomy.records.workload import Environment

# ----- the peak of a product: by its data type, for float32 by what it was computed in
#
# The names of a product's kernels tell, else the settings of the capture. If neither does, no peak is taken.


#: Name used when one of two different peaks applies and it is unknown which; no peak is used then.
UNSURE: Final = "float32 or tf32"
_CONVOLUTION: Final = regex(r"convolution|conv(?:_transpose)?[123]d|cudnn_conv|miopen_conv", re.IGNORECASE)


def peak_name(
    row_type: str | None, operator: str, dtype: str | None, ceilings: Ceilings, environment: Environment
) -> str | None:
    """Return the name of a product's peak: its data type, for float32 what it was computed in, or `UNSURE`."""
    if dtype != FLOAT32 or TF32 not in ceilings.matrix_flops_per_second:
        return dtype
    if row_type is not None:
        return row_type
    convolution = _CONVOLUTION.search(operator) is not None
    setting = environment.convolution_float32 if convolution else environment.matmul_float32
    if environment.device_kind == "rocm":
        return TF32 if setting == TF32 and not convolution else FLOAT32
    if setting is None:
        return dtype if environment.device_kind == "cpu" else UNSURE
    return TF32 if setting == TF32 else FLOAT32


# ----- classes and operators above their ceiling, with the number that explains it, or none
#
# A bound counts every operand as moved to or from memory once, and all of the products. It is too high if
# - a causal mask leaves out a part of the products (`causal_flops`), or one that is not recorded (flex attention),
# - a fused kernel touches a part of its tensors only: a loop of N places reads at least N elements of each, not all,
# - a look-up reads each distinct row once, and which rows repeat is in its data,
# - the last cache holds what was written before: as many of a call's bytes as it has need not come from memory, and any
#   number if its size is unknown,
# - a convolution by Winograd's algorithm needs a part of the products only,
# - the ceiling was measured while something else was busy on the device.
# Anything still above is an error: a peak, a cost or a time is wrong. Work above only a ceiling that the user gave is
# reported separately, and the check is against what is known of the device, if that is more.


QUANTITY: Final = "ceiling"
#: A bound is exceeded from this margin on: clocks pass the data sheet's by a few percent.
MARGIN: Final = 0.05
_SOURCE: Final = "the device's peaks"
_LOOK_UP: Final = regex(r"(?:^aten::|_)(?:embedding|index|gather|index_select|take)(?:_\d+$|_|$)")
_FUSED: Final = regex(r"triton_(?:poi|red|per|unk)_")
_UNRECORDED_MASK: Final = regex(r"triton_tem_fused_\w*flex_attention")
_MIB: Final = 1 << 20
#: Multiplications of a 3 x 3 convolution over those of Winograd's algorithm with 4 x 4 tiles (Lavin and Gray, "Fast
#: Algorithms for Convolutional Neural Networks", 2016).
_WINOGRAD: Final = 4

Group = tuple[OperatorClass, Phase, str]
#: A class, a phase and an operator; `None` is all of them.
Work = tuple[OperatorClass | None, Phase | None, str | None]


class Bounding(Struct, frozen=True, kw_only=True):
    """Bounds of rows: ceilings, the bound in ns of (row, FLOPs, bytes) or `None`, and the name of a product's peak."""

    ceilings: Ceilings
    bound_ns: Callable[[OperatorRow, int, int], int | None]
    peak_name: Callable[[OperatorRow], str | None]


class _Without(Struct, frozen=True, kw_only=True):
    """Parts to leave out of a bound; `cache` in bytes, `None` for one of unknown size."""

    causal: bool = False
    unrecorded: bool = False
    fused: bool = False
    looked_up: bool = False
    convolved: bool = False
    cache: int | None = 0


#: Without everything that a bound may overcount, except the cache, which the ceilings have.
_WITHOUT_ALL: Final = _Without(causal=True, unrecorded=True, fused=True, looked_up=True, convolved=True)


class _Explanation(Struct, frozen=True, kw_only=True):
    """Why some rows can exceed their bound: the cause, the bound without it, and its numbers."""

    cause: ExcessCause
    bound_ns: int
    text: str


def check_ceilings(operators: Iterable[OperatorRow], by: Bounding) -> Check:
    """Check that operators (per phase, with their parts) and classes are not faster than their bounds."""
    groups = _groups(operators)
    classes: dict[Group, list[OperatorRow]] = {}
    for (operator_class, phase, _), rows in groups.items():
        classes.setdefault((operator_class, phase, f"class {operator_class}"), []).extend(rows)
    every = [*classes.items(), *groups.items()]
    above = [_difference(key, rows, by) for key, rows in every]
    differences = tuple(difference for difference in above if difference is not None)
    return Check(
        quantity=QUANTITY,
        source=_SOURCE,
        unit="ns",
        compared=len(every),
        equal=len(every) - len(differences),
        differences=differences,
        not_checked=None if every else "no bound is known",
    )


def exceeded_ceilings(operators: Iterable[OperatorRow], by: Bounding, check: Check) -> tuple[ExceededCeiling, ...]:
    """Return the user's ceilings that operators exceed, furthest first, each with the operator that exceeds it most.

    `check` is the check of the same operators, which reports what exceeds every known limit of the device.
    """
    unexplained = {(difference.operator, difference.phase) for difference in check.unexplained}
    furthest: dict[str, ExceededCeiling] = {}
    for (_, phase, operator), rows in _groups(operators).items():
        time_ns = _time(rows)
        given = _given(rows, by) if _above(_bound_ns(rows), time_ns) else None
        if given is None or (operator, phase) in unexplained or _explained(rows, time_ns, by):
            continue
        set_by_it = [row for row in rows if _ceiling_name(row, by) == given.name]
        least_ns, _ = _bound_without(set_by_it, replace(_WITHOUT_ALL, cache=by.ceilings.cache_bytes), by)
        exceeded = ExceededCeiling(
            ceiling=given.name,
            option=given.option,
            given_per_second=given.per_second,
            reached_per_second=given.per_second * least_ns / max(time_ns, 1),
            known_per_second=given.known_per_second,
            operator=operator,
            phase=phase,
        )
        before = furthest.get(given.name)
        if before is None or exceeded.reached_per_second > before.reached_per_second:
            furthest[given.name] = exceeded
    return tuple(sorted(furthest.values(), key=lambda one: -one.reached_per_second / one.given_per_second))


def _groups(operators: Iterable[OperatorRow]) -> dict[Group, list[OperatorRow]]:
    """Group the rows with a bound by class, phase and operator, parts with their enclosing operator."""
    groups: dict[Group, list[OperatorRow]] = {}
    for row in operators:
        if row.bound_ns is not None:
            groups.setdefault((row.operator_class, row.phase, row.part_of or row.operator), []).append(row)
    return groups


def _time(rows: Sequence[OperatorRow]) -> int:
    return sum(row.bounded_ns for row in rows)


def _bound_ns(rows: Sequence[OperatorRow]) -> int:
    return sum(row.bound_ns or 0 for row in rows)


def _difference(key: Group, rows: Sequence[OperatorRow], by: Bounding) -> Difference | None:
    time, bound = _time(rows), _bound_ns(rows)
    if not _above(bound, time):
        return None
    name, given = _ceiling_of(rows, by), _given(rows, by)
    explained = _explained(rows, time, by)
    cause = None
    if explained is not None:
        cause = explained.text
    elif name in by.ceilings.disturbed:
        of_peak = name if name == BANDWIDTH else f"{name} peak"
        cause = f"the {of_peak} was measured while other work was running - measure the peaks again"
    elif given is not None and given.known_per_second is None:
        cause = f"{given.option} is below the measured throughput, and no other limit of the device is known"
    whole = [row for row in rows if row.part_of is None]
    moved = sum((row.read_bytes or 0) + (row.written_bytes or 0) for row in whole)
    a_call = f"{moved // max(sum(row.calls for row in whole), 1):,} bytes per call"
    times = f"{bound / time:.2f} x" if time else f"{bound:,} ns of work in 0 ns,"
    limit = f"what {by.ceilings.device} can do" if given is None else f"what {given.option} allows"
    size = by.ceilings.cache_bytes
    cache = "of unknown size" if size is None else f"of {size / _MIB:g} MiB"
    return Difference(
        operator=key[2],
        phase=key[1],
        ours=time,
        other=bound,
        cause=cause,
        evidence=f"{times} {limit}; {a_call}, last-level cache {cache}",
        time_ns=time,
    )


def _above(bound_ns: int, time_ns: int) -> bool:
    """Return whether a bound rules the time out, apart from its rounding to whole nanoseconds."""
    return bound_ns - 1 > (1 + MARGIN) * time_ns


def _explained(rows: Sequence[OperatorRow], time_ns: int, by: Bounding) -> _Explanation | None:
    """Return the first of these causes that is enough, or all together, with its numbers."""
    cache = by.ceilings.cache_bytes
    every = (
        (ExcessCause.CAUSAL_MASK, _Without(causal=True)),
        (ExcessCause.UNRECORDED_MASK, _Without(unrecorded=True)),
        (ExcessCause.FUSED, _Without(fused=True)),
        (ExcessCause.LOOK_UPS, _Without(looked_up=True)),
        (ExcessCause.WINOGRAD, _Without(convolved=True)),
        (ExcessCause.CACHE, _Without(cache=cache)),
        (ExcessCause.SEVERAL, replace(_WITHOUT_ALL, cache=cache)),
    )
    whole_ns = _bound_ns(rows)
    for cause, without in every:
        bound_ns, text = _bound_without(rows, without, by)
        if bound_ns < whole_ns and not _above(bound_ns, time_ns):
            return _Explanation(cause=cause, bound_ns=bound_ns, text=text)
    return None


def above_ceilings(operators: Sequence[OperatorRow], by: Bounding) -> tuple[AboveCeiling, ...]:
    """Return what exceeds 100 % of its ceiling for a known cause: all work, classes, operators, prefill, ...

    Unlike the check it allows no margin, because a reader sees the share.
    """
    groups: dict[Work, list[OperatorRow]] = {}
    for (item, of_phase, name), rows in _groups(operators).items():
        keys: list[Work] = [(None, None, None), (item, None, None), (item, of_phase, name)]
        keys += [(None, of_phase, None)] if of_phase in OF_GENERATION else []
        for key in keys:
            groups.setdefault(key, []).extend(rows)
    above = []
    for (operator_class, phase, operator), rows in sorted(groups.items(), key=lambda group: group[0][2] is not None):
        time_ns, bound_ns = _time(rows), _bound_ns(rows)
        explained = _explained(rows, time_ns, by) if bound_ns - 1 > time_ns > 0 else None
        if explained is not None:
            above.append(
                AboveCeiling(
                    operator_class=operator_class,
                    phase=phase,
                    operator=operator,
                    reached=bound_ns / time_ns,
                    cause=explained.cause,
                    reached_without=explained.bound_ns / time_ns,
                )
            )
    return tuple(above)


def _given(rows: Sequence[OperatorRow], by: Bounding) -> GivenCeiling | None:
    """Return the user's ceiling if it sets most of the bound."""
    name = _ceiling_of(rows, by)
    return next((given for given in by.ceilings.given if given.name == name), None)


def _ceiling_of(rows: Sequence[OperatorRow], by: Bounding) -> str | None:
    """Return the ceiling that sets most of the bound of the rows; `None` if none does."""
    bounds: Counter[str] = Counter()
    for row in rows:
        bounds[_ceiling_name(row, by)] += row.bound_ns or 0
    name, most = max(bounds.items(), key=lambda item: item[1])
    return name if 2 * most > bounds.total() else None


def _ceiling_name(row: OperatorRow, by: Bounding) -> str:
    """Return the name of the ceiling that sets the bound of a row."""
    if row.bound_by == MEMORY:
        return BANDWIDTH
    if row.operator_class is OperatorClass.TENSOR_CONTRACTION:
        return by.ceilings.matrix_name(by.peak_name(row)) or ""
    return VECTOR + vector_name(row.signature.record.compute_dtype)


def _bound_without(rows: Sequence[OperatorRow], without: _Without, by: Bounding) -> tuple[int, str]:
    """Return the bound of the rows without these parts, and a text that names them."""
    bound_ns = masked = unrecorded = sure = counted = cached = spared = 0
    for row in rows:
        if row.bound_ns is None or row.part_of is not None:
            continue
        flops, moved = row.flops or 0, (row.read_bytes or 0) + (row.written_bytes or 0)
        if without.causal and row.causal_flops is not None:
            masked += flops - row.causal_flops
            flops = row.causal_flops
        if without.unrecorded and _UNRECORDED_MASK.match(row.operator):
            unrecorded += flops
            flops = 0
        if without.convolved and _may_be_winograd(row):
            spared += flops - flops // _WINOGRAD
            flops //= _WINOGRAD
        touched = _touched(row, without)
        if touched is not None and touched < moved:
            counted, sure = counted + moved, sure + touched
            moved = touched
        held = moved if without.cache is None else min(without.cache * row.calls, moved)
        cached += held
        bound_ns += by.bound_ns(row, flops, moved - held) or 0
    named = [name for name, left_out in (("fused kernels", without.fused), ("look-ups", without.looked_up)) if left_out]
    words = [f"a causal mask leaves out {masked:,} FLOPs"] if masked else []
    words += [f"an unrecorded mask leaves out up to {unrecorded:,} FLOPs"] if unrecorded else []
    words += [f"{' and '.join(named)} need at least {sure:,} of {counted:,} bytes"] if sure < counted else []
    words += [f"Winograd's algorithm may save {spared:,} convolution FLOPs"] if spared else []
    size = "unknown size" if without.cache is None else f"{without.cache:,} bytes"
    words += [f"a cache of {size} can serve {cached:,} of the bytes"] if cached else []
    return bound_ns, f"{', '.join(words)}: at least {bound_ns:,} ns"


def _may_be_winograd(row: OperatorRow) -> bool:
    """Return whether a row is a convolution with a kernel larger than one element or of unknown size."""
    if "conv" not in row.operator or row.operator_class is not OperatorClass.TENSOR_CONTRACTION:
        return False
    weight = row.signature.record.get(2 if "backward" in row.operator else 1)
    return not isinstance(weight, Tensor) or prod(weight.shape[2:]) > 1


def _touched(row: OperatorRow, without: _Without) -> int | None:
    """Return the bytes that all calls need at least; `None` if that is all of them.

    A loop needs as many elements of each tensor as it has places, 0 for tensors of a look-up. The launch ends with the
    sizes of the loop; the product of the last one, two or three is the size of a tensor.
    """
    looks_up = without.looked_up and _LOOK_UP.search(row.operator) is not None
    if not _FUSED.match(row.operator):
        return row.written_bytes if looks_up else None
    if not (without.fused or looks_up):
        return None
    arguments = row.signature.record
    tensors = [(tensor.numel, tensor.item_bytes) for tensor in arguments.tensors() if tensor.dtype is not None]
    sizes = [size for size in arguments.arguments if type(size) is int and size >= 0]
    counts = {count for count, _ in tensors}
    places = [prod(sizes[-length:]) for length in range(1, min(3, len(sizes)) + 1)]
    fitting = [count for count in places if count in counts]
    if not fitting:
        return None
    loop = max(fitting)
    return row.calls * sum(
        (0 if looks_up and count > loop else min(count, loop)) * (size or 0) for count, size in tensors
    )


_NS = 1_000_000_000


class Bound(Struct, frozen=True):
    """The least time, and what sets it."""

    ns: int
    by: str


def with_roofline(anatomy: Anatomy, ceilings: Ceilings) -> Anatomy:
    """Return the anatomy with a bound for each operator and class, and the utilization of the step.

    Work without a peak, and work that crosses a link, has no bound. An operator that runs as a part of another one has
    a bound of 0: its work is counted there.
    """
    named = _Peaks(ceilings, anatomy.environment)
    operators = named.bounded(anatomy.operators)
    # A ceiling that the user sets lower than what is known confirms and contradicts nothing.
    reference = _Peaks(ceilings.reference, anatomy.environment)
    compared = operators if reference.ceilings is ceilings else reference.bounded(anatomy.operators)
    check = check_ceilings(compared, reference.bounding)
    exceeded = exceeded_ceilings(operators, named.bounding, check) if ceilings.given else ()
    others = tuple(other for other in anatomy.checks if other.quantity != QUANTITY)
    return replace(
        anatomy,
        work=with_bounds(anatomy.work, operators),
        checks=(*others, check),
        device=replace(_figures(anatomy, named), exceeded=exceeded, above=above_ceilings(operators, named.bounding)),
    )


class _Peaks(Struct, frozen=True):
    """The ceilings, and the environment that decides which of them a row is compared with."""

    ceilings: Ceilings
    environment: Environment

    def name(self, row: OperatorRow) -> str | None:
        """Return the data type of the row's peak; float32 products go by what they were computed in."""
        dtype = row.signature.record.compute_dtype
        if row.operator_class is not OperatorClass.TENSOR_CONTRACTION:
            return dtype
        return peak_name(row.compute_type, row.part_of or row.operator, dtype, self.ceilings, self.environment)

    def bounded(self, operators: Iterable[OperatorRow]) -> tuple[OperatorRow, ...]:
        """Return the rows with their bounds by these ceilings, 0 for parts of an operator with a known bound."""
        rows = []
        for row in operators:
            bound = None
            if not (row.crosses_host_link or row.flops is None or row.read_bytes is None or row.written_bytes is None):
                moved_bytes = row.read_bytes + row.written_bytes
                bound = bound_of(row.flops, moved_bytes, row.operator_class, self.name(row), self.ceilings)
            rows.append(replace(row, bound_ns=bound.ns if bound else None, bound_by=bound.by if bound else None))
        whole = {(row.operator, row.phase) for row in rows if row.part_of is None and row.bound_ns is not None}
        return tuple(
            row
            if row.part_of is None
            else replace(row, bound_ns=0 if (row.part_of, row.phase) in whole else None, bound_by=None)
            for row in rows
        )

    @property
    def bounding(self) -> Bounding:
        """Return the `Bounding` of rows by these ceilings."""
        return Bounding(ceilings=self.ceilings, bound_ns=self._bound_ns, peak_name=self.name)

    def _bound_ns(self, row: OperatorRow, flops: int, moved_bytes: int) -> int | None:
        bound = bound_of(flops, moved_bytes, row.operator_class, self.name(row), self.ceilings)
        return bound.ns if bound else None


def bound_of(
    flops: int, moved_bytes: int, operator_class: OperatorClass, dtype: str | None, ceilings: Ceilings
) -> Bound | None:
    """Return the bound of work of this class and data type (a name of a peak); `None` if the ceiling is unknown."""
    if operator_class is OperatorClass.COMMUNICATION or ceilings.bandwidth_bytes_per_second is None:
        return None
    by_memory = moved_bytes / ceilings.bandwidth_bytes_per_second
    is_contraction = operator_class is OperatorClass.TENSOR_CONTRACTION
    peak = ceilings.matrix_peak(dtype) if is_contraction else ceilings.vector_peak(dtype)
    if flops and not peak:
        return None
    by_compute = flops / peak if peak else 0.0
    return Bound(round(_NS * max(by_memory, by_compute)), COMPUTE if by_compute > by_memory else MEMORY)


def _figures(anatomy: Anatomy, named: _Peaks) -> DeviceFigures:
    ceilings = named.ceilings
    unsure = [row for row in anatomy.operators if named.name(row) == UNSURE]
    figures = replace(
        anatomy.device,
        no_ceilings=None,
        peak_flops_per_second=ceilings.matrix_flops_per_second,
        vector_flops_per_second=ceilings.vector_flops_per_second,
        attained_share=ceilings.attained_share,
        bandwidth_bytes_per_second=ceilings.bandwidth_bytes_per_second,
        source=ceilings.source,
        mfu=None,
        hfu=None,
        mfu_dtype=None,
        causal_mfu=None,
        causal_hfu=None,
        own_peaks_mfu=None,
        unmasked_share=None,
        mfu_covered=_covered(anatomy.classes),
        unsure_ns=sum(row.time_ns for row in unsure),
    )
    contractions = [row for row in anatomy.operators if row.operator_class is OperatorClass.TENSOR_CONTRACTION]
    rows = [row for row in contractions if row.flops is not None]
    wall = anatomy.step.unprofiled_wall_ns or anatomy.step.wall_ns
    done: Counter[str] = Counter()
    for row in rows:
        name = named.name(row)
        if name is not None and row.flops:
            done["float8" if name.startswith("float8") else name] += row.flops
    # The data type in which most FLOPs of the contractions were done.
    dtype = max(done, key=lambda name: (done[name], name), default=None)
    peak = ceilings.matrix_peak(dtype)
    devices = [device for device in anatomy.timeline.devices if device.kernel_time_ns]
    # The peak is that of one kind of device: for several kinds together it is unknown.
    unlike = len({device.name for device in devices}) > 1
    if not peak or not wall or unlike or figures.mfu_covered is None or figures.mfu_covered < MIN_COVERED:
        return figures
    attainable = peak * max(len(devices), 1) * anatomy.step.count * wall / _NS
    model = [row for row in rows if row.phase is not Phase.RECOMPUTE]

    def share_of_peak(rows: Iterable[OperatorRow], *, causal: bool = False) -> float:
        flops = ((row.causal_flops if causal else None, row.flops or 0) for row in rows)
        return sum(every if masked is None else masked for masked, every in flops) / attainable

    is_causal = any(row.causal_flops is not None and row.causal_flops != row.flops for row in rows)
    unmasked = share_of_peak(row for row in rows if _UNRECORDED_MASK.match(row.operator))
    hfu = share_of_peak(rows)
    return replace(
        figures,
        mfu=share_of_peak(model),
        hfu=hfu,
        mfu_dtype=dtype,
        causal_mfu=share_of_peak(model, causal=True) if is_causal else None,
        causal_hfu=share_of_peak(rows, causal=True) if is_causal else None,
        own_peaks_mfu=_against_own_peaks(model, attainable / peak, named),
        unmasked_share=unmasked / hfu if unmasked else None,
    )


def _against_own_peaks(rows: Iterable[OperatorRow], seconds: float, named: _Peaks) -> float | None:
    """Return the fraction of the time that the FLOPs take at the peaks of their own data types.

    `None` if all have the same peak, or one is unknown.
    """
    at_peak: dict[float, float] = {}
    for row in rows:
        if row.flops:
            peak = named.ceilings.matrix_peak(named.name(row))
            if not peak:
                return None
            at_peak[peak] = at_peak.get(peak, 0) + row.flops / peak
    return sum(at_peak.values()) / seconds if len(at_peak) > 1 else None


def _covered(classes: Iterable[ClassRow]) -> float | None:
    """Return the fraction of contraction time with known FLOPs; work without a rule counts as contraction.

    It uses classes, not operators, because a kernel launched by a CUDA graph has no operator.
    """
    rows = tuple(classes)
    contractions = [row for row in rows if row.operator_class is OperatorClass.TENSOR_CONTRACTION]
    time = sum(row.time_ns for row in contractions)
    costed = sum(row.time_ns - row.uncosted_ns for row in contractions if row.flops is not None)
    unknown = sum(row.time_ns for row in rows if row.operator_class is OperatorClass.UNKNOWN)
    return costed / (time + unknown) if time else None
