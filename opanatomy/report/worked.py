"""A formula of the glossary evaluated on a report: each key with its figure, and what comes out of them.

A formula is evaluated where it is one of keys alone: `(sum of classes[].time_ns) / step.count`. `a[].b` is a figure of
each row of a table, `sum of a[].b` that of all of them; `.b` after `a.c` is `a.b`; several formulas are divided by
commas. What has other words in it is for a reader, and says nothing here.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from opanatomy.records.anatomy import Anatomy, ClassRow
from opanatomy.records.comparison import figures_of, memory_error, time_error
from opanatomy.records.experiment import StepFigures, Techniques
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report.section import (
    ByteRate,
    Bytes,
    Change,
    Count,
    Exact,
    FlopRate,
    Flops,
    Name,
    Phrase,
    Quantity,
    Rate,
    Ratio,
    Share,
    Time,
    Total,
    amounts,
    calls_a_step,
    joined,
    known_flops,
    phrase,
    steps_of,
    steps_of_window,
    total,
    without_operator_ns,
)
from opanatomy.report.section import Ratio as Quotient
from opanatomy.report.sections.modules import Amount
from opanatomy.report.sections.step import costs_of
from opanatomy.report.straggler import how_late, name_of

#: Rows of a table that are worked, one by one.
_SHOWN: Final = 4
#: From here on a number has no fraction that counts.
_WHOLE: Final = 1e6
_KEY: Final = r"\.?[a-z][a-z0-9_]*(?:\[-?\d*\])?(?:\.[a-z][a-z0-9_]*(?:\[-?\d*\])?)*"
_TOKEN: Final = re.compile(rf"\s*(?:(?P<sum>sum of )?(?P<key>(?!x\b){_KEY})|(?P<nano>10\^9)|(?P<mark>[-+/x()]|\d+))")
_PART: Final = re.compile(r"([a-z0-9_]+)(?:\[(-?\d*)\])?")
#: The unit of a key by how it ends; what theory gives are ratios.
_UNITS: Final = (
    (r"theory_\w+", ()), (r"flops_per_second", (("FLOP", 1), ("s", -1))), (r"bytes_per_second", (("B", 1), ("s", -1))),
    (r"bytes", (("B", 1),)), (r"_ns", (("ns", 1),)), (r"flops", (("FLOP", 1),)),
)  # fmt: skip
#: Keys that are called otherwise on the page.
_WORDS: Final = {"step.count": "steps"}
#: The operators of a formula by those of Python.
_OPERATORS: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
#: What a row of a table is called by, the first of these that it has.
_LABELS: Final = (
    "name", "kernel", "operator", "module", "collective", "component", "operator_class", "figure", "phase", "option",
)  # fmt: skip


class _Amount(Struct, frozen=True):
    """A number of some unit: "ns", "B", "FLOP" or none; over and under the line as exponents."""

    number: float
    units: tuple[tuple[str, int], ...] = ()

    def __add__(self, other: _Amount) -> _Amount:
        return _Amount(self.number + other.number, self.units or other.units)

    def __sub__(self, other: _Amount) -> _Amount:
        return _Amount(self.number - other.number, self.units or other.units)

    def __mul__(self, other: _Amount) -> _Amount:
        return _Amount(self.number * other.number, _together(self.units, other.units, 1))

    def __truediv__(self, other: _Amount) -> _Amount:
        return _Amount(self.number / other.number, _together(self.units, other.units, -1))


def _together(
    one: Iterable[tuple[str, int]], other: Iterable[tuple[str, int]], sign: int
) -> tuple[tuple[str, int], ...]:
    powers = dict(one)
    for unit, power in other:
        powers[unit] = powers.get(unit, 0) + sign * power
    return tuple(sorted((unit, power) for unit, power in powers.items() if power))


def evaluated(formula: str, report: Anatomy | Techniques) -> Iterator[Phrase]:
    """A line for each formula of keys that the report has figures of, of a table one for each of its first rows."""
    last = ""
    for clause in re.split(r"[,;] ", formula):
        tokens, last = _tokens(clause.rpartition(" = ")[2], last)
        if tokens:
            yield from _lines(tokens, report)


# -------------------------------------------------------------------------------------------------------------- reading


class _Key(Struct, frozen=True):
    """A key as the formula has it, in full, and whether it is summed over its rows."""

    path: str
    summed: bool


def _tokens(text: str, last: str) -> tuple[list[_Key | str], str]:
    """The keys and the marks between them, none where there is any other word; and the last key in full."""
    tokens: list[_Key | str] = []
    place = 0
    while place < len(text.rstrip()):
        match = _TOKEN.match(text, place)
        if match is None:
            return [], last
        if key := match["key"]:
            last = last.rpartition(".")[0] + key if key.startswith(".") else key
            tokens.append(_Key(last, match["sum"] is not None))
        else:
            tokens.append("10^9" if match["nano"] else match["mark"])
        place = match.end()
    return (tokens if any(isinstance(token, _Key) for token in tokens) else []), last


# ----------------------------------------------------------------------------------------------------------- evaluating


def _lines(tokens: list[_Key | str], report: Anatomy | Techniques) -> Iterator[Phrase]:
    tables = {token.path.rpartition("]")[0] for token in tokens if isinstance(token, _Key) and _is_of_rows(token)}
    if not tables:
        line = _line(tokens, report, None)
        if line is not None:
            yield line
        return
    if len(tables) > 1:
        return
    if len(tokens) == 1:
        return  # the page has these
    table = tables.pop() + "]"
    rows = _found(report, table)
    lines = [(row, line) for row in rows if (line := _line(tokens, report, (table, row))) is not None]
    yield from (phrase("{}: {}", _label(row), line) for row, line in lines[:_SHOWN])
    if len(lines) > _SHOWN:
        yield phrase("and {} more", Count(len(lines) - _SHOWN))


def _is_of_rows(key: _Key) -> bool:
    return "[]" in key.path and not key.summed


def _line(tokens: list[_Key | str], report: Anatomy | Techniques, row: tuple[str, Any] | None) -> Phrase | None:
    """The formula with its figures, of one row of its table; `None` where one of them is not known."""
    said: list[Phrase | str] = []
    amounts: list[_Amount] = []
    code = ""
    for token in tokens:
        if isinstance(token, str):
            said.append(token)
            code += {"x": "*", "10^9": "n"}.get(token, token)
            continue
        amount = _amount(token, report, row)
        if amount is None:
            return None
        code += f"v[{len(amounts)}]"
        amounts.append(amount)
        said.append(phrase("{} {}", f"sum of {_name(token)}" if token.summed else _name(token), _exact(amount)))
    try:
        result = _value(ast.parse(code, mode="eval").body, amounts)
    except (SyntaxError, ZeroDivisionError):
        return None
    text = phrase(_spaced(said), *(part for part in said if isinstance(part, Phrase)))
    if len(tokens) == 1 and not result.units:
        return text
    of_a_whole = "/" in tokens and not any(isinstance(token, _Key) and _counts_steps(token) for token in tokens)
    return phrase("{} = {}", text, _rounded(result, of_a_whole=of_a_whole))


def _counts_steps(key: _Key) -> bool:
    return key.path == "step.count" or key.path.endswith(".steps")


def _name(key: _Key) -> str:
    return _WORDS.get(key.path) or re.sub(r"_(?:ns|bytes)$", "", key.path.rpartition(".")[2]).replace("_", " ")


def _spaced(said: list[Phrase | str]) -> str:
    text = " ".join("{}" if isinstance(part, Phrase) else part for part in said)
    return text.replace("( ", "(").replace(" )", ")")


def _value(node: ast.AST, amounts: list[_Amount]) -> _Amount:
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left, amounts), _value(node.right, amounts))  # type: ignore[no-any-return]
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return amounts[int(node.slice.value)]  # type: ignore[arg-type]
    if isinstance(node, ast.Constant):
        return _Amount(float(node.value))  # type: ignore[arg-type]
    if isinstance(node, ast.Name):  # nanoseconds a second
        return _Amount(1e9, (("ns", 1), ("s", -1)))
    raise SyntaxError("no formula")


def _amount(key: _Key, report: Anatomy | Techniques, row: tuple[str, Any] | None) -> _Amount | None:
    if row is not None and _is_of_rows(key):
        values = _found(row[1], key.path.removeprefix(f"{row[0]}."))
    else:
        values = _found(report, key.path)
    known = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if not known or (len(known) > 1 and not key.summed):
        return None
    units = next((units for ending, units in _UNITS if re.search(rf"{ending}$", key.path)), ())
    return _Amount(sum(known), units)


def _found(record: Any, path: str) -> list[Any]:
    """What stands under a path, of each row of the tables on it."""
    values = [record]
    for part in path.split("."):
        match = _PART.fullmatch(part)
        if match is None:
            return []
        values = [getattr(value, match[1], None) for value in values]
        if match[2] == "":
            values = [item for value in values for item in value or ()]
        elif match[2] is not None:
            values = [value[int(match[2])] for value in values if value and -len(value) <= int(match[2]) < len(value)]
    return [value for value in values if value is not None]


# -------------------------------------------------------------------------------------------------------------- writing


def _label(row: Any) -> Name | str:
    """What a row is called by."""
    rank = getattr(row, "rank", None)
    if rank is not None:
        return f"rank {rank}"
    named = (getattr(row, name, None) for name in _LABELS)
    return next((Name(str(name)) for name in named if name), "a row")


def _exact(amount: _Amount) -> str:
    """The amount with every digit."""
    unit = "/".join(unit for unit, _ in amount.units)
    whole = isinstance(amount.number, int) or abs(amount.number) >= _WHOLE
    number = f"{round(amount.number):,}" if whole else f"{amount.number:,.6g}"
    return f"{number} {unit}".rstrip()


def _rounded(amount: _Amount, *, of_a_whole: bool) -> str | Quantity:
    """The amount as the page has it; a number without a unit may be a share `of_a_whole`."""
    number, units = amount.number, dict(amount.units)
    if units == {"ns": 1}:
        return Time(number)
    if units == {"B": 1}:
        return Bytes(number)
    if units == {"FLOP": 1}:
        return Flops(number)
    if units == {"B": 1, "s": -1}:
        return ByteRate(number)
    if units == {"FLOP": 1, "s": -1}:
        return FlopRate(number)
    if units == {"s": -1}:
        return Rate(number, "")
    return Share(number, 1) if not units and of_a_whole else f"{number:,.6g}"


# The figures of one step worked: each as a quotient or a sum of what the JSON report has, every digit of it.


def quotient(what: str, part: float | None, name: str, whole: float | None) -> Phrase | None:
    """`idle 12 ns / window 40 ns = 30.0 %`; `None` where one is not known or the whole is nothing."""
    if part is None or not whole:
        return None
    return phrase("{} {} / {} {} = {}", what, nanoseconds(part), name, nanoseconds(whole), Share(part, whole))


def a_step(amount: Phrase, steps: float, result: Quantity) -> Phrase:
    """`12 ns / 3 steps = 4 ns`: a sum over all steps as the page has it, of one step."""
    many = f"{steps:,.6g}"
    return phrase("{} = {}", amount, result) if steps == 1 else phrase("{} / {} steps = {}", amount, many, result)


def nanoseconds(ns: float) -> Phrase:
    """A time with every digit."""
    return phrase("{} ns", Count(round(ns)))


def step_step(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The step with and without the profiler, and the samples a second."""
    step = anatomy.step
    wall, plain = step.wall_ns, step.unprofiled_wall_ns
    if plain is not None:
        yield phrase("plain {} = {}, the mean of {}", nanoseconds(plain), Time(plain),
                     Count(step.unprofiled_count, "step"))  # fmt: skip
    if wall is not None:
        yield phrase("profiled {} = {}, of {}", nanoseconds(wall), Time(wall), Count(step.count, "step"))
    if wall is not None and plain:
        yield phrase("profiled over plain: {}", Change(wall, plain))
    if step.samples_per_second is not None and anatomy.workload.batch and (plain or wall):
        together = anatomy.workload.samples_together or anatomy.workload.batch
        yield phrase("{} / {} = {}", Count(together, "sample"), nanoseconds(plain or wall or 0),
                     Rate(step.samples_per_second, "samples"))  # fmt: skip


def phases(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Each phase over the step."""
    step = anatomy.step
    for name in ("forward", "backward", "optimizer", "prefill", "decoding"):
        yield quotient(name, getattr(step, f"{name}_ns"), "step", step.wall_ns)


def framework(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """On the CPU what operators and profiler leave of the step."""
    step = anatomy.step
    if step.framework_ns is None or step.wall_ns is None:
        return
    profiler = step.profiler_ns or 0
    if step.busy_ns is not None and step.busy_ns + step.framework_ns + profiler == step.wall_ns:
        less = phrase(" - profiler {}", nanoseconds(profiler)) if profiler else ""
        yield phrase("step {} - operators {}{} = {}", nanoseconds(step.wall_ns), nanoseconds(step.busy_ns), less,
                     nanoseconds(step.framework_ns))  # fmt: skip
    yield quotient("framework", step.framework_ns, "step", step.wall_ns)


def profiler(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The profiler's share of the step."""
    if anatomy.step.framework_ns is not None:
        yield quotient("profiler", anatomy.step.profiler_ns, "step", anatomy.step.wall_ns)


def window(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The window over its steps."""
    if ns := anatomy.timeline.window_ns:
        yield a_step(nanoseconds(ns), steps_of_window(anatomy), Time(ns / steps_of_window(anatomy)))


def of_step(what: str, ns: float | None, anatomy: Anatomy) -> Phrase | None:
    """A part of the time that shares of the step are of."""
    if anatomy.environment.device_kind == "cpu":
        return None
    return quotient(what, ns, _whole_of(anatomy), costs_of(anatomy).whole_ns)


def _whole_of(anatomy: Anatomy) -> str:
    if costs_of(anatomy).of_trace:
        return "first to last device work"
    return "window without other steps' work" if anatomy.timeline.outside_ns else "window"


def own_time(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The window without the work of other steps, or without what lies before and after all work."""
    timeline = anatomy.timeline
    if anatomy.environment.device_kind == "cpu" or not timeline.window_ns:
        return
    whole = nanoseconds(costs_of(anatomy).whole_ns)
    yield phrase("window {} - other steps' work {} = {}", nanoseconds(timeline.window_ns),
                 nanoseconds(timeline.outside_ns or 0), whole)  # fmt: skip


def busy(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Busy over the step."""
    yield of_step("busy", anatomy.timeline.busy_ns, anatomy)


def idle(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Idle over the step, and by cause."""
    timeline, costs = anatomy.timeline, costs_of(anatomy)
    if anatomy.environment.device_kind == "cpu":
        return
    yield of_step("idle", costs.idle_ns, anatomy)
    causes = (("host-bound", timeline.host_idle_ns), ("stream waits", timeline.stream_idle_ns),
              ("other", timeline.other_idle_ns))  # fmt: skip
    parts = joined((phrase("{} {}", cause, nanoseconds(ns)) for cause, ns in causes if ns is not None), by=" + ")
    if parts is not None and timeline.idle_ns == costs.idle_ns:
        yield phrase("the {} are {}", nanoseconds(timeline.idle_ns), parts)


def host_bound(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Host-bound idle time over the step."""
    yield of_step("host-bound", anatomy.timeline.host_idle_ns, anatomy)


def stream_waits(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Stream waits over the step."""
    yield of_step("stream waits", anatomy.timeline.stream_idle_ns, anatomy)


def other_idle(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Other idle time over the step."""
    yield of_step("other", anatomy.timeline.other_idle_ns, anatomy)


def outside(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """What the device did of other steps' work alone, over the window."""
    yield quotient("other steps' work", anatomy.timeline.outside_ns, "window", anatomy.timeline.window_ns)


def computing(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """What of the step the device computes or copies: busy without exposed communication."""
    timeline = anatomy.timeline
    yield of_step("busy without exposed", timeline.busy_ns - (timeline.exposed_communication_ns or 0), anatomy)


def step_exposed(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Exposed communication over the step."""
    yield of_step("exposed", anatomy.timeline.exposed_communication_ns, anatomy)


def waiting_of_step(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """What of the step waits for other ranks, by the steps in which that is known."""
    yield of_step("waiting", costs_of(anatomy).waiting_ns, anatomy)


def communication(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Communication over the step."""
    yield of_step("communication", anatomy.timeline.communication_ns, anatomy)


def exposed_memcpy(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Exposed copies over the step."""
    yield of_step("exposed memcpy", anatomy.timeline.exposed_memcpy_ns, anatomy)


def kernel_time(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The sum of the device work of a step."""
    if anatomy.step.kernel_time_ns is not None:
        yield phrase("{} = {} a step", nanoseconds(anatomy.step.kernel_time_ns), Time(anatomy.step.kernel_time_ns))


def launches(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The launches of a step and what they take of the host, the mean delay, and the tiny kernels."""
    launching, steps = anatomy.timeline.launching, steps_of(anatomy)
    if launching is None:
        return
    if launching.calls:
        number = phrase("launches: {}", Count(launching.calls))
        yield number if steps == 1 else a_step(number, steps, calls_a_step(launching.calls, steps))
        yield a_step(phrase("on the host: {}", nanoseconds(launching.call_ns)), steps, Time(launching.call_ns / steps))
    if launching.delayed:
        yield phrase("mean delay: {} / {} = {}", nanoseconds(launching.delay_ns), Count(launching.delayed, "launch"),
                     Time(launching.delay_ns // launching.delayed))  # fmt: skip
    if launching.kernels:
        yield phrase("tiny: {} of {} = {}", Count(launching.tiny_kernels), Count(launching.kernels, "kernel"),
                     Share(launching.tiny_kernels, launching.kernels))  # fmt: skip
    yield quotient("their time", launching.tiny_kernel_ns, "kernels", launching.kernel_ns)


def tensor_cores(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The time on tensor cores over the time of kernels."""
    launching = anatomy.timeline.launching
    if launching is not None:
        yield quotient("tensor cores", anatomy.device.tensor_core_ns, "kernels", launching.kernel_ns)
        if anatomy.device.tensor_core_ns is not None and anatomy.device.tensor_core_unknown_ns:
            yield quotient("not known", anatomy.device.tensor_core_unknown_ns, "kernels", launching.kernel_ns)


def estimates(anatomy: Anatomy, name: str) -> Iterator[Phrase | None]:
    """An estimate of Kineto's as a fraction with all its digits."""
    value: float | None = getattr(anatomy.device, name)
    if value is not None:
        yield phrase("device.{} {} = {}", name, f"{value:.6g}", Share(value, 1))


def mfu(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """MFU as FLOPs over what the peak could do in the steps."""
    yield _utilization(anatomy, recompute=False)


def hfu(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """HFU as FLOPs over what the peak could do in the steps."""
    yield _utilization(anatomy, recompute=True)


def _utilization(anatomy: Anatomy, *, recompute: bool) -> Phrase | None:
    device, step = anatomy.device, anatomy.step
    share = device.hfu if recompute else device.mfu
    wall, peak = step.unprofiled_wall_ns or step.wall_ns, device.peak_flops_per_second.get(_peak_type(anatomy) or "")
    if share is None or not wall:
        return None
    if peak is None:
        return phrase("{} of the {} peak", Share(share, 1), device.mfu_dtype or "device's")
    flops = sum(
        row.flops or 0
        for row in anatomy.operators
        if row.operator_class is OperatorClass.TENSOR_CONTRACTION and (recompute or row.phase is not Phase.RECOMPUTE)
    )
    devices = max(len([row for row in anatomy.timeline.devices if row.kernel_time_ns]), 1)
    third = " / 3" if device.mfu_dtype == "3 x tf32" else ""
    many = phrase(" x {}", Count(devices, "device")) if devices > 1 else ""
    return phrase(
        "{} FLOP of contractions{} / ({} x {} {} x {} FLOP/s{} of {}{}) = {}",
        Count(flops), "" if recompute else " without recompute", Count(step.count, "step"), nanoseconds(wall),
        "plain" if step.unprofiled_wall_ns else "profiled", f"{peak:,.0f}", third, device.mfu_dtype or "", many,
        Share(share, 1),
    )  # fmt: skip


def _peak_type(anatomy: Anatomy) -> str | None:
    """The name in the table of peaks of the data type that MFU is a share of."""
    name = anatomy.device.mfu_dtype
    return "tf32" if name == "3 x tf32" else name


def ceilings(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Every ceiling in full, and where it is from."""
    device = anatomy.device
    if device.source is None:
        yield phrase("none: {}", device.why_no_ceilings or "the report does not say why")
        return
    for name, peak in device.peak_flops_per_second.items():
        yield phrase("products of {}: {} FLOP/s", name, f"{peak:,.0f}")
    for name, peak in device.vector_flops_per_second.items():
        yield phrase("all other arithmetic of {}: {} FLOP/s", name, f"{peak:,.0f}")
    if device.bandwidth_bytes_per_second is not None:
        yield phrase("bandwidth: {} B/s", f"{device.bandwidth_bytes_per_second:,.0f}")
    yield phrase("by {}", device.source)


# Shares, intensities, bounds and ratios of a report worked, class by class.


_BACKWARD = (Phase.BACKWARD, Phase.RECOMPUTE)


def _parts(anatomy: Anatomy) -> Iterator[tuple[OperatorClass | str, tuple[ClassRow, ...]]]:
    """The class rows of each class that there is, and all of them as the total."""
    for item in OperatorClass:
        if rows := tuple(row for row in anatomy.classes if row.operator_class is item):
            yield item, rows
    if anatomy.classes:
        yield "total", anatomy.classes


def _each(anatomy: Anatomy, line: Callable[[Total], Phrase | None]) -> Iterator[Phrase | None]:
    """`contraction: LINE` for each class whose line is known, and for the total."""
    for name, rows in _parts(anatomy):
        text = line(total(rows))
        if text is not None:
            yield phrase("{}: {}", name, text)


def time(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The time of each class, of one step."""
    steps = steps_of(anatomy)
    return _each(anatomy, lambda part: a_step(nanoseconds(part.time_ns), steps, Time(part.time_ns / steps)))


def share(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The share of each class of the time."""
    whole = total(anatomy.classes)
    return _each(anatomy, lambda part: quotient("time", part.time_ns, "total", whole.time_ns))


def share_of_flops(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The share of each class of the FLOPs, where these cover half of the time."""
    whole = total(anatomy.classes)

    def line(part: Total) -> Phrase | None:
        if part.flops is None or not part.flops_cover or not whole.flops or not whole.flops_cover:
            return None
        share = Share(part.flops, whole.flops)
        return phrase("{} FLOP / total {} FLOP = {}", _whole(part.flops), _whole(whole.flops), share)

    return _each(anatomy, line)


def flops(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The FLOPs of each class, of one step."""
    steps = steps_of(anatomy)

    def line(part: Total) -> Phrase | None:
        result = amounts(part.a_step(steps))[0]
        if part.flops is None or result.flops is None:
            return None
        return a_step(phrase("{} FLOP", _whole(part.flops)), steps, result)

    return _each(anatomy, line)


def moved_bytes(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The bytes of each class, read and written, of one step."""
    steps = steps_of(anatomy)
    for name, rows in _parts(anatomy):
        part = total(rows)
        result = amounts(part.a_step(steps))[1]
        if result.bytes is None:
            continue
        counted = [row for row in rows if row.read_bytes is not None and row.written_bytes is not None]
        read, written = (sum(getattr(row, f"{way}_bytes") for row in counted) for way in ("read", "written"))
        amount = phrase("(read {} B + written {} B)", Count(read), Count(written))
        yield phrase("{}: {}", name, a_step(amount, steps, result))


def _whole(number: float) -> Count:
    return Count(round(number))


def intensity(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """FLOPs a byte of each class."""
    return _each(
        anatomy,
        lambda part: (
            None
            if part.intensity is None or part.flops is None or not part.bytes or not part.flops_cover
            else phrase("{} FLOP / {} B = {}", _whole(part.flops), _whole(part.bytes), Quotient(part.intensity))
        ),
    )


def reached(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """bound / time of each class where its bound is known of half of the time at least."""
    return _each(
        anatomy,
        lambda part: None
        if part.reached is None
        else phrase("bound {} / time {}{} = {}", nanoseconds(part.bound_ns or 0), nanoseconds(part.bounded_ns),
                    _covered(part), Share(part.reached, 1)),
    )  # fmt: skip


def _covered(part: Total) -> Phrase | str:
    if part.covered in (None, 1):
        return ""
    return phrase(" (of {}: {})", nanoseconds(part.time_ns), Share(part.covered, 1, decimals=0))


def headroom(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """time - bound of each class, summed over its operators and phases, of one step."""
    steps = steps_of(anatomy)
    for name, rows in _parts(anatomy):
        known = [row for row in rows if row.headroom_ns is not None]
        if not known:
            continue
        part, spare = total(rows), sum(row.headroom_ns or 0 for row in known)
        faster = round(spare - (part.bounded_ns - (part.bound_ns or 0)))
        beyond = phrase(" + {} of operators above their bound", nanoseconds(faster)) if faster else ""
        amount = phrase("(time {} - bound {}{})", nanoseconds(part.bounded_ns), nanoseconds(part.bound_ns or 0), beyond)
        yield phrase("{}: {}", name, a_step(amount, steps, Time(spare / steps)))


def bound(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The least time of each class, of one step."""
    steps = steps_of(anatomy)
    return _each(
        anatomy,
        lambda part: (
            None if part.bound_ns is None else a_step(nanoseconds(part.bound_ns), steps, Time(part.bound_ns / steps))
        ),
    )


def bound_by(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The share of the bound of each class that the bandwidth sets."""
    for name, rows in _parts(anatomy):
        whole = sum(row.bound_ns or 0 for row in rows)
        memory = sum(row.memory_bound_ns or 0 for row in rows)
        if line := quotient("by memory", memory, "bound", whole):
            yield phrase("{}: {}", name, line)


def flop_rate(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """FLOPs a second of each class, over the time whose FLOPs are known."""
    return _each(
        anatomy,
        lambda part: None
        if part.flops is None or not part.costed_ns
        else phrase("{} FLOP / {} = {}", _whole(part.flops), nanoseconds(part.costed_ns),
                    FlopRate(part.flops * 1e9 / part.costed_ns)),
    )  # fmt: skip


def byte_rate(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Bytes a second of each class, over the time whose bytes are known."""
    return _each(
        anatomy,
        lambda part: None
        if part.bytes is None or not part.costed_ns
        else phrase("{} B / {} = {}", _whole(part.bytes), nanoseconds(part.costed_ns),
                    ByteRate(part.bytes * 1e9 / part.costed_ns)),
    )  # fmt: skip


def calls(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The calls of each class, of one step."""
    steps = steps_of(anatomy)
    return _each(
        anatomy, lambda part: a_step(phrase("{}", Count(part.calls, "call")), steps, calls_a_step(part.calls, steps))
    )


def of_class(anatomy: Anatomy, item: OperatorClass) -> Iterator[Phrase | None]:
    """What one class took, by phase."""
    rows, whole = [row for row in anatomy.classes if row.operator_class is item], total(anatomy.classes)
    if rows:
        yield quotient("time", total(rows).time_ns, "total", whole.time_ns)
        yield from (_row(row.phase.value, row, steps_of(anatomy)) for row in rows)


def of_phase(anatomy: Anatomy, item: Phase) -> Iterator[Phrase | None]:
    """What one phase took, by class, and its part of the step."""
    rows, whole = [row for row in anatomy.classes if row.phase is item], total(anatomy.classes)
    if rows:
        yield quotient("device work", total(rows).time_ns, "total", whole.time_ns)
        yield from (_row(row.operator_class, row, steps_of(anatomy)) for row in rows)
    wall = getattr(anatomy.step, f"{item}_ns", None)
    yield quotient(f"of the step: {item}", wall, "step", anatomy.step.wall_ns)


def _row(name: OperatorClass | str, row: ClassRow, steps: int) -> Phrase:
    many = f" of {steps:,} steps" if steps > 1 else ""
    return phrase("{}: {} in {}" + many, name, nanoseconds(row.time_ns), Count(row.calls, "call"))


def ratios(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Backward over forward of the time, the FLOPs and the bytes of each class."""
    for row in anatomy.ratios:
        members = [item for item in anatomy.classes if item.operator_class is row.operator_class]
        backward = [item for item in members if item.phase in _BACKWARD]
        ahead = [item for item in members if item.phase is Phase.FORWARD]
        for what, unit, known in (("time", "ns", row.time), ("FLOP", "FLOP", row.flops), ("bytes", "B", row.bytes)):
            if known is not None:
                yield phrase(f"{{}}, {what}: {{}} {unit} / {{}} {unit} = {{}}", row.operator_class,
                             Count(_class_amount(backward, what)), Count(_class_amount(ahead, what)), Quotient(known))  # fmt: skip


def _class_amount(rows: Iterable[ClassRow], what: str) -> int:
    if what == "time":
        return sum(row.time_ns for row in rows)
    if what == "FLOP":
        return sum(row.flops or 0 for row in rows)
    return sum((row.read_bytes or 0) + (row.written_bytes or 0) for row in rows)


def by_graphs(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The work of graphs that is no operator's, of one step."""
    steps, ns = steps_of(anatomy), without_operator_ns(anatomy)[0]
    if ns:
        yield a_step(nanoseconds(ns), steps, Time(ns / steps))


def without_operator(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The work that is neither an operator's nor a graph's, of one step."""
    steps, (graphs, ns) = steps_of(anatomy), without_operator_ns(anatomy)
    known = sum(row.time_ns for row in anatomy.operators)
    if ns:
        amount = phrase("(time {} - of operators {} - of graphs {})", nanoseconds(total(anatomy.classes).time_ns),
                        nanoseconds(known), nanoseconds(graphs))  # fmt: skip
        yield a_step(amount, steps, Time(ns / steps))


def of_modules(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The FLOPs of all modules by phase, of one step."""
    steps = steps_of(anatomy)
    groups = (("forward", (Phase.FORWARD,)), ("backward", _BACKWARD), ("prefill", (Phase.PREFILL,)),
              ("decoding", (Phase.DECODING,)))  # fmt: skip
    for name, phases in groups:
        amount = Amount()
        for row in anatomy.modules:
            if row.phase in phases:
                amount.add(row)
        known = amount.flops or 0
        result = known_flops(None if amount.flops is None else known / steps, amount.costed_ns, amount.time_ns)
        if result.flops is not None:
            yield phrase("{}: {}", name, a_step(phrase("{} FLOP", _whole(known)), steps, result))


def of_paper(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The FLOPs and the time of each class of the paper, over those of the three, optimizer left out."""
    classes = (OperatorClass.TENSOR_CONTRACTION, OperatorClass.STATISTICAL_NORMALIZATION, OperatorClass.ELEMENTWISE)
    members = [
        row for row in anatomy.classes if row.operator_class in classes and row.phase is not Phase.OPTIMIZER
    ]  # fmt: skip
    whole = total(members)
    for item in classes:
        part = total(row for row in members if row.operator_class is item)
        if part.flops is not None and whole.flops and whole.time_ns:
            yield phrase("{}: {} FLOP / {} FLOP = {}, {}", item, _whole(part.flops), _whole(whole.flops),
                         Share(part.flops, whole.flops, decimals=2),
                         quotient("time", part.time_ns, "time", whole.time_ns) or "")  # fmt: skip


# Figures of communication and of ranks worked.


_FIGURES_COMMUNICATION_SHOWN = 4


def hidden(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """What other work hides of the communication of each phase, and of all of it."""
    known = anatomy.communication
    if known is None:
        return
    rows = [(str(row.phase), row.running_ns, row.exposed_ns) for row in known.phases]
    for name, running, exposed in (*rows, ("together", known.running_ns, known.exposed_ns)):
        if running:
            yield phrase("{}: (time {} - exposed {}) / time = {}", name, nanoseconds(running), nanoseconds(exposed),
                         Share(running - exposed, running))  # fmt: skip


def exposed(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """What nothing hides of the communication of each phase, and of all of it."""
    known = anatomy.communication
    if known is None:
        return
    steps = steps_of(anatomy)
    rows = [(str(row.phase), row.exposed_ns) for row in known.phases]
    for name, ns in (*rows, ("together", known.exposed_ns)):
        yield phrase("{}: {}", name, a_step(nanoseconds(ns), steps, Time(ns / steps)))


def bus(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The bus bandwidth of each collective."""
    for row in anatomy.collectives[:_FIGURES_COMMUNICATION_SHOWN]:
        if row.bus_bytes_per_second is None or not row.bytes or not row.sized_ns:
            continue
        factor = row.bus_bytes_per_second * row.sized_ns / (row.bytes * 1e9)
        ranks = "" if row.group_size is None else phrase(", {}", Count(row.group_size, "rank"))
        yield phrase("{}{}: {} x {} B / {} = {}", row.collective.replace("_", " "), ranks, f"{factor:.6g}",
                     Count(row.bytes), nanoseconds(row.sized_ns), ByteRate(row.bus_bytes_per_second))  # fmt: skip


def own(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The step less exposed communication of the first ranks."""
    if len(anatomy.ranks) < 2:
        return
    for rank in anatomy.ranks[:_FIGURES_COMMUNICATION_SHOWN]:
        wall, exposed = rank.wall_ns, rank.a_step("exposed_communication")
        if wall is None or exposed is None:
            continue
        name = rank.trace or "?" if rank.rank is None else f"rank {rank.rank}"
        yield phrase("{}: step {} - exposed {} = {}", name, nanoseconds(wall), nanoseconds(exposed),
                     Time(max(wall - exposed, 0)))  # fmt: skip


def waiting(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """A step of the first ranks in its parts: they sum to it."""
    if anatomy.waiting is None:
        return
    for rank in anatomy.waiting.each[:_FIGURES_COMMUNICATION_SHOWN]:
        name = rank.trace or "?" if rank.rank is None else f"rank {rank.rank}"
        for row in rank.steps[:1]:
            yield phrase(
                "{}: {} of its first step are other work {} + transfer {} + waiting {} + unmatched {}"
                " + idle {}", name,
                *map(nanoseconds, (row.wall_ns, row.other_work_ns, row.transfer_ns, row.waiting_ns, row.unmatched_ns,
                                   row.idle_ns)),
            )  # fmt: skip


def straggler(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """What of all waiting is charged to the straggler, or why none is named."""
    waits = anatomy.waiting
    if waits is None:
        return
    if waits.straggler is None:
        yield phrase("none is named: {}", waits.no_straggler or "no rank is waited for more than the others")
        return
    row = waits.straggler
    yield quotient(f"{name_of(row)}: charged", row.charged_ns, "all waiting", row.waiting_ns)
    yield how_late(row, waits)


# Figures of suggestions and of an experiment with techniques worked, row by row.


def suggested(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """What each suggestion is predicted to change."""
    for row in anatomy.suggestions.best if anatomy.suggestions else ():
        time = "" if row.time_ratio is None else phrase(", step {}", Change(row.time_ratio, 1.0))
        yield phrase("{}: peak {} B against {} B = {}{}", row.option, Count(row.peak_bytes), Count(row.now_bytes),
                     Change(row.peak_bytes, row.now_bytes), time)  # fmt: skip


def _rows(report: Techniques) -> Iterator[tuple[str, StepFigures, StepFigures]]:
    """The name and figures of each technique, with those of the baseline."""
    base = figures_of(report.baseline)
    for row in report.rows[1:]:
        figures = figures_of(row)
        if figures is not None and base is not None:
            yield row.name, figures, base


def peak(report: Techniques) -> Iterator[Phrase | None]:
    """The peak of each next to the baseline's."""
    for name, ours, base in _rows(report):
        if ours.peak_bytes is not None and base.peak_bytes:
            yield phrase("{}: {} B against {} B = {}", name, Count(ours.peak_bytes), Count(base.peak_bytes),
                         Change(ours.peak_bytes, base.peak_bytes))  # fmt: skip


def step(report: Techniques) -> Iterator[Phrase | None]:
    """The step of each next to the baseline's."""
    for name, ours, base in _rows(report):
        if ours.step_ns is not None and base.step_ns:
            yield phrase("{}: {} ns against {} ns = {}", name, Count(round(ours.step_ns)), Count(round(base.step_ns)),
                         Change(ours.step_ns, base.step_ns))  # fmt: skip


def backward_ratio(report: Techniques) -> Iterator[Phrase | None]:
    """FLOPs of backward over those of forward, of the baseline and of each."""
    for row in report.rows:
        figures = figures_of(row)
        if figures is not None and figures.backward_ratio is not None:
            backward = figures.flops.get(Phase.BACKWARD, 0) + figures.flops.get(Phase.RECOMPUTE, 0)
            yield phrase("{}: {} / {} = {}", row.name, Count(backward), Count(figures.flops[Phase.FORWARD]),
                         Ratio(figures.backward_ratio))  # fmt: skip


def experiment_flops(report: Techniques) -> Iterator[Phrase | None]:
    """FLOPs of contractions of each over the baseline's."""
    for name, ours, base in _rows(report):
        if ours.all_flops is not None and base.all_flops:
            yield phrase("{}: {} / {} = {}", name, Count(ours.all_flops), Count(base.all_flops),
                         Ratio(ours.all_flops / base.all_flops))  # fmt: skip


def off_by(report: Techniques) -> Iterator[Phrase | None]:
    """How far the predictions of each are off."""
    for row in report.rows:
        memory, time = memory_error(row), time_error(row, report.baseline)
        if memory is not None and row.predicted is not None and row.measured is not None:
            yield phrase("{}, peak: {} B / {} B - 1 = {}", row.name, Count(row.predicted.peak_bytes),
                         Count(row.measured.peak_bytes), Change(1 + memory, 1))  # fmt: skip
        if time is not None:
            yield phrase("{}, step: {}", row.name, Change(1 + time, 1))


def losses_apart(report: Techniques) -> Iterator[Phrase | None]:
    """The step at which the losses of each are farthest from the baseline's."""
    for row in report.rows:
        if row.losses is None:
            continue
        pairs = [(ours, theirs) for ours, theirs in zip(row.losses.losses, row.losses.baseline, strict=True) if theirs]
        if pairs:
            ours, theirs = max(pairs, key=lambda pair: abs(pair[0] - pair[1]) / abs(pair[1]))
            yield phrase("{}: |{} - {}| / {} = {}", row.name, f"{ours:.6g}", f"{theirs:.6g}", f"{abs(theirs):.6g}",
                         Share(abs(ours - theirs), abs(theirs)))  # fmt: skip


# The ledger and the checks of a report worked.


def balance(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Device work as the sum of its terms, to the nanosecond."""
    account = anatomy.ledger
    if account.device_work_ns:
        yield phrase(
            "linked {} + launched by graphs {} + without launch record {} + outside the window {} = {}",
            *map(nanoseconds, (account.linked_ns, account.graph_launched_ns, account.no_launch_record_ns,
                               account.outside_window_ns, account.device_work_ns)),
        )  # fmt: skip


def part(anatomy: Anatomy, name: str) -> Iterator[Phrase | None]:
    """One of the parts of the device work inside the window."""
    account = anatomy.ledger
    inside = account.device_work_ns - account.outside_window_ns
    yield quotient(name, getattr(account, f"{name}_ns"), "device work inside the window", inside)


def linked(anatomy: Anatomy, name: str) -> Iterator[Phrase | None]:
    """One of the terms that the device work is the sum of."""
    account = anatomy.ledger
    yield quotient(name.removesuffix("_ns").replace("_", " "), getattr(account, name), "device work",
                   account.device_work_ns)  # fmt: skip


def check(anatomy: Anatomy, quantity: str) -> Iterator[Phrase | None]:
    """What came of one check."""
    for row in anatomy.checks:
        if row.quantity != quantity:
            continue
        if row.compared:
            yield phrase("{} of {} confirmed by {}", Count(row.equal), Count(row.compared), row.source)
        for item in row.differences:
            figures = (Exact(item.ours, row.unit), Exact(item.other, row.unit))
            yield phrase(
                "{}: here {}, there {}: {}", item.operator, *figures, item.cause or "no known cause explains it"
            )
        if row.not_checked:
            yield phrase("not checked: {}", row.not_checked)


def confirmed(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """How many figures each check confirmed."""
    for row in anatomy.checks:
        if row.compared:
            yield phrase("{}: {} of {}, by {}", row.quantity, Count(row.equal), Count(row.compared), row.source)


# Figures of memory worked: the components next to the peak, theory next to what was measured.


def component(anatomy: Anatomy, name: str) -> Iterator[Phrase | None]:
    """One component: measured, at the peak, by theory."""
    memory = anatomy.memory
    for part in memory.components:
        if part.component != name:
            continue
        if part.measured_bytes is not None:
            yield phrase("measured {} B = {}", Count(part.measured_bytes), Bytes(part.measured_bytes))
        if part.at_peak_bytes is not None and memory.peak_bytes:
            yield phrase("at the peak {} B of {} B = {}", Count(part.at_peak_bytes), Count(memory.peak_bytes),
                         Share(part.at_peak_bytes, memory.peak_bytes))  # fmt: skip
        if part.theory_bytes is not None:
            yield _theory(part.theory_bytes, part.measured_bytes, part.formula)
            yield _letters(anatomy, part.formula)
    for item in memory.inferences:
        if item.component == name:
            yield phrase("{} in {}: {}", Bytes(item.bytes), Count(item.blocks, "block"), item.rule)


def _theory(theory: int, measured: int | None, formula: str | None) -> Phrase:
    made = f"{formula} = " if formula else ""
    off = phrase(", measured {}", Change(measured, theory)) if measured is not None else ""
    return phrase("theory {}{} B{}", made, Count(theory), off)


def _letters(anatomy: Anatomy, formula: str | None) -> Phrase | None:
    """The numbers behind the words and letters of a formula."""
    workload, shape = anatomy.workload, anatomy.memory.shape
    if formula is None:
        return None
    known: list[tuple[str, int | None]] = []
    if "parameters" in formula:
        known += [("parameters", workload.parameters), ("trainable parameters", workload.trainable_parameters)]
    elif shape is not None:
        known += [("b", workload.micro_batch), ("s", workload.sequence_length), ("L", shape.layers),
                  ("h", shape.hidden), ("a", shape.heads), ("i", shape.intermediate),
                  ("V", shape.vocabulary)]  # fmt: skip
    return joined(phrase("{} {}", name, Count(number)) for name, number in known if number is not None)


def theory(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """Each component that theory has, next to what was measured."""
    for part in anatomy.memory.components:
        if part.theory_bytes is not None:
            words = part.component.replace("_", " ")
            yield phrase("{}: {}", words, _theory(part.theory_bytes, part.measured_bytes, part.formula))
            yield _letters(anatomy, part.formula)


def off(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """What was measured of each component less its theory, of theory."""
    for part in anatomy.memory.components:
        if part.theory_bytes and part.measured_bytes is not None:
            yield phrase("{}: ({} B - {} B) / {} B = {}", part.component.replace("_", " "), Count(part.measured_bytes),
                         Count(part.theory_bytes), Count(part.theory_bytes),
                         Change(part.measured_bytes, part.theory_bytes))  # fmt: skip


def memory_peak(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The peak, and the components that sum to it where they do."""
    memory = anatomy.memory
    if memory.peak_bytes is None:
        return
    yield phrase(
        "{} B = {}, by {}", Count(memory.peak_bytes), Bytes(memory.peak_bytes), memory.measured_by or "the trace"
    )
    for sizes in ([(part.component, part.at_peak_bytes) for part in memory.components],
                  [(part.component, part.measured_bytes) for part in memory.components]):  # fmt: skip
        known = [(name, size) for name, size in sizes if size is not None]
        if known and sum(size for _, size in known) == memory.peak_bytes:
            parts = joined(
                (phrase("{} {} B", name.replace("_", " "), Count(size)) for name, size in known if size), " + "
            )
            yield phrase("{} = {} B", parts or "", Count(memory.peak_bytes))
            return


def terms(anatomy: Anatomy) -> Iterator[Phrase | None]:
    """The terms of the closed formula of the activations."""
    for item in anatomy.memory.terms:
        yield phrase("{}: {} = {} B", item.term, item.formula, Count(item.bytes))
    if anatomy.memory.terms:
        yield _letters(anatomy, anatomy.memory.terms[0].formula)
        yield phrase("sum: {} B", Count(sum(item.bytes for item in anatomy.memory.terms)))
