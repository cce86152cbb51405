"""Describe a report's charts with altair, for the page, still images, files and notebooks.

A chart shows the report's figures and computes none: its data are raw values in base units with their texts as
formatted in the text report. A report without the data for a chart raises `NoChart` with the reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import cycle
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import Struct

from opanatomy.analysis.costs import costs_of, nothing_recorded, steps_of, steps_of_window
from opanatomy.analysis.lanes import fewer
from opanatomy.errors import OpanatomyError, UsageError
from opanatomy.io.files import cache_folder, replacing
from opanatomy.options import instead_of
from opanatomy.records import lanes
from opanatomy.records.anatomy import FIRST, Anatomy, StepRow
from opanatomy.records.comparison import Comparison
from opanatomy.records.experiment import StepFigures, Techniques
from opanatomy.records.lanes import Lanes
from opanatomy.records.memory import MemoryPoint
from opanatomy.records.patterns import regex
from opanatomy.records.reports import Report
from opanatomy.records.taxonomy import PHASES, IdleCause, OperatorClass, Phase
from opanatomy.report import units
from opanatomy.report.names import cut, printable
from opanatomy.report.section import COLOUR, LABEL
from opanatomy.report.sections.advice import gain_together
from opanatomy.report.sections.advice import label_of as word_of
from opanatomy.report.sections.classes import by_class
from opanatomy.report.sections.comparison import groups_of
from opanatomy.report.sections.modules import PHASES_OF, Amount, Node, line_tree, module_tree
from opanatomy.report.sections.operators import grouped, key_of
from opanatomy.report.sections.ranks import name_of
from opanatomy.report.sections.step import label_of, label_of_cause, multiplied
from opanatomy.report.totals import total

if TYPE_CHECKING:
    import altair

Datum: TypeAlias = dict[str, Any]
Chart: TypeAlias = "altair.TopLevelMixin"


class NoChart(OpanatomyError):
    """A report has no data for a picture."""


def chart_of(report: Report, name: str, *, still: bool = False) -> Chart:
    """Return the chart with this name; raise `UsageError` for an unknown name, `NoChart` if the report lacks its data.

    A `still` chart on a page has fewer marks, if it has many.
    """
    charts = CHARTS[kind_of(report)]
    if name not in charts:
        raise UsageError(f"chart {name}: this kind of report has no such chart - {instead_of(name, tuple(charts))}")
    picture = charts[name]
    made = picture.still(report) if still and picture.still is not None else picture.make(report)
    return _finished(made, report, name, picture.title)


def asked_for(report: Report, name: str | None) -> Chart:
    """Return the chart for an image file: the report's first if none was named."""
    return chart_of(report, next(iter(CHARTS[kind_of(report)])) if name is None else name)


def kind_of(report: Report) -> type[Report]:
    """Return the kind of report, also for a subclass."""
    return next(kind for kind in CHARTS if isinstance(report, kind))


# ----- how all of them look


#: Width of charts; a page scales them to its width.
_WIDTH: Final = 1000
_BACKGROUND: Final = "transparent"
_INK: Final = "currentColor"
_GREY: Final = "#8a8a8a"
#: Colours in one chart differ by 10 or more (CIEDE2000), including the classes' colours.
_OF_CAUSE: Final = {
    IdleCause.PROFILER: "#333333", IdleCause.COMPILATION: "#4b2991", IdleCause.INPUT: "#6b3f2a",
    IdleCause.ALLOCATOR: "#7a7a1f", IdleCause.SLOW_LAUNCH: "#f4a582", IdleCause.SYNCHRONIZATION: "#a31621",
    IdleCause.COLLECTIVE: "#7a2d5d", IdleCause.OPERATORS: "#d9c58f", IdleCause.PYTHON: "#b3a2dc",
    IdleCause.STREAM: "#1f5f66", IdleCause.DEVICE: "#b9c0c7", IdleCause.UNKNOWN: "#eef0f3",
}  # fmt: skip
_OF_WAITING: Final = "#f6cfe3"
_OF_UNRECORDED: Final = "#f5f0b0"
_OF_FRAMEWORK: Final = "#a08d78"
_OF_PHASE: Final = {
    Phase.FORWARD: "#3fb0b0",
    Phase.BACKWARD: "#7b6bb5",
    Phase.RECOMPUTE: "#aa4499",
    Phase.OPTIMIZER: "#b8a13e",
    Phase.PREFILL: "#3fb0b0",
    Phase.DECODING: "#7b6bb5",
    Phase.OTHER: "#6a6a6a",
}
_PHASES: Final = frozenset(phase.value for phase in PHASES)
_SHAPES: Final = {
    OperatorClass.TENSOR_CONTRACTION: "circle",
    OperatorClass.STATISTICAL_NORMALIZATION: "triangle-up",
    OperatorClass.ELEMENTWISE: "square",
    OperatorClass.DATA_MOVEMENT: "cross",
    OperatorClass.COMMUNICATION: "diamond",
    OperatorClass.OTHER: "triangle-down",
    OperatorClass.UNKNOWN: "stroke",
}
#: The colours of Okabe and Ito, then tints and shades of them: parts without a colour of their own.
_PART_COLOURS: Final = (
    "#0072b2", "#e69f00", "#009e73", "#56b4e9", "#cc79a7", "#d55e00", "#f0e442", "#a9a294", "#3d2f86", "#8c6d4b",
    "#9ad0b8", "#b8433c", "#f2cd80", "#b3cbe6", "#eacbdc", "#003355", "#7a5300", "#00563e", "#3a3a3a", "#c9c9c9",
)  # fmt: skip
_LONGEST_NAME: Final = 60


def _finished(chart: Any, report: Report, name: str, title: str) -> Chart:
    """Return the chart in the common style, with title, subject and an alternative text.

    The chart's own explanation goes below its title.
    """
    from altair import Undefined

    about = [subject_of(report), *((chart.title,) if isinstance(chart.title, str) and chart.title else ())]
    lines = [line for text in about for line in wrap(printable(text), _TITLE_WIDTH)]
    made: Chart = chart.configure(
        background=_BACKGROUND,
        font="system-ui, sans-serif",
        view={"stroke": None},
        axis={
            "labelColor": _INK,
            "titleColor": _INK,
            "gridColor": _INK,
            "gridOpacity": 0.12,
            "domainColor": _INK,
            "domainOpacity": 0.4,
            "tickColor": _INK,
            "tickOpacity": 0.4,
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "labelLimit": 320,
        },
        legend={
            "labelColor": _INK,
            "titleColor": _INK,
            "labelFontSize": 12,
            "titleFontSize": 12,
            "labelLimit": 320,
            "titleFontWeight": "normal",
        },
        header={"labelColor": _INK, "titleColor": _INK, "labelFontSize": 12},
        title={
            "color": _INK,
            "fontSize": 12,
            "fontWeight": "normal",
            "anchor": "start",
            "subtitleColor": _INK,
            "subtitleFontSize": 11,
            "subtitlePadding": 4,
        },
        text={"color": _INK},
    ).properties(
        title={"text": title, "subtitle": lines, "fontSize": 14, "fontWeight": "bold", "offset": 12},
        description=title if chart.description is Undefined else chart.description,
        usermeta={"name": name},
    )
    return made


#: Characters per line below a chart's title.
_TITLE_WIDTH: Final = 150


def subject_of(report: Report) -> str:
    """Return a report's subject and device."""
    if isinstance(report, Comparison):
        devices = {side.device for side in report.sides if side.device}
        return ", ".join((" against ".join(side.name for side in report.sides), *sorted(devices)))
    workload = report.workload
    trace = report.provenance.trace if isinstance(report, Anatomy) else None
    known = [workload.model or workload.architecture or trace or "a training step"]
    if workload.batch is not None:
        known.append(f"batch {workload.batch}")
    if isinstance(report, Anatomy) and report.estimated is not None:
        known.append("estimated")
    return ", ".join((*known, *((report.environment.device,) if report.environment.device else ())))


def _values(rows: Iterable[Datum]) -> Any:
    """Return rows as chart data, with visible characters only."""
    from altair import Data

    shown = [{key: printable(value) if isinstance(value, str) else value for key, value in row.items()} for row in rows]
    return Data(values=shown)


def _time_axis(title: str | None, longest_ns: float) -> dict[str, Any]:
    """Return the axis of times in nanoseconds, labelled in one unit."""
    divisor, unit = next(
        ((size, name) for size, name in ((1e9, "s"), (1e6, "ms"), (1e3, "us")) if longest_ns >= size), (1.0, "ns")
    )
    return {"title": title, "labelExpr": f"format(datum.value / {divisor}, '~g') + ' {unit}'", "tickCount": 8}


def _bytes_axis(title: str | None) -> dict[str, Any]:
    return {"title": title, "labelExpr": _si("B"), "tickCount": 6}


def _si(unit: str) -> str:
    """Return the expression of a label with a prefix of its unit: `12 GB`."""
    text = "replace(format(datum.value, '~s'), regexp('([a-zA-Z]?)$'), ' $1')"
    return f"datum.value == 0 ? '0' : {text} + '{unit}'"


def _coloured(field: str, looks: Mapping[str, str], **legend: Any) -> Any:
    """Return a colour encoding for a field's values, in order, with its legend below."""
    from altair import Color, Legend, Scale

    below = Legend(title=None, orient="bottom", **legend)
    return Color(
        f"{field}:N", sort=list(looks), scale=Scale(domain=list(looks), range=list(looks.values())), legend=below
    )


def _by_phase(phases: Sequence[Phase]) -> Any:
    return _coloured("phase", {phase.value: _OF_PHASE.get(phase, _GREY) for phase in phases})


def _ink_on(colour: str) -> str:
    """Return black or white, whichever contrasts with this colour (by WCAG's relative luminance)."""
    channels = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    red, green, blue = (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels)
    return "black" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "white"


# ----- the step as one bar


def _step(anatomy: Anatomy) -> Any:
    """Return a bar of the mean step's parts, which sum to the step."""
    import altair as alt

    parts = list(parts_of_step(anatomy))
    whole = sum(part["ns"] for part in parts)
    if not whole:
        raise NoChart("no work has a known time")
    at = 0.0
    for part in parts:
        part |= {
            "from": at,
            "to": at + part["ns"],
            "text": units.duration(part["ns"]),
            "share": units.share(part["ns"], whole),
        }
        part["label"] = f"{part['part']} {part['share']}"
        part["ink"] = _ink_on(part["colour"])
        at += part["ns"]
    base = alt.Chart(_values(parts))
    tip = [
        alt.Tooltip("part:N", title="part"),
        alt.Tooltip("text:N", title="time"),
        alt.Tooltip("share:N", title="of the step"),
    ]
    bars = base.mark_bar(height=34, stroke=_INK, strokeOpacity=0.35, strokeWidth=0.5).encode(
        x=alt.X("from:Q", axis=alt.Axis(**_time_axis(None, whole)), scale=alt.Scale(domain=[0, whole], nice=False)),
        x2="to:Q",
        color=_coloured("part", {part["part"]: part["colour"] for part in parts}, columns=4, symbolType="square"),
        tooltip=tip,
        description="part:N",
    )
    labels = (
        base.mark_text(fontSize=11, fontWeight="bold")
        .encode(
            x=alt.X("middle:Q"),
            text="fits:N",
            fill=alt.Fill("ink:N", scale=None, legend=None),
            tooltip=tip,
        )
        .transform_calculate(
            middle="(datum.from + datum.to) / 2",
            room=f"(datum.to - datum.from) / {whole} * width / 7.5",
            fits="datum.room >= length(datum.label) ? datum.label"
            " : datum.room >= length(datum.share) ? datum.share : ''",
        )
    )
    return (bars + labels).properties(width=_WIDTH, height=44, title=f"{units.duration(whole)} in total")


def parts_of_step(anatomy: Anatomy) -> Iterator[Datum]:
    """Yield the mean step's parts that take time; they sum to the step without other steps' work.

    Classes of work, exposed communication including waiting, idle time by cause, unrecorded time, and on the CPU
    loaders, framework and profiler.
    """
    costs, steps = costs_of(anatomy), steps_of_window(anatomy)
    communication = COLOUR[OperatorClass.COMMUNICATION]
    for item, ns in costs.classes.items() if not nothing_recorded(anatomy) else ():  # else it is the host's work
        yield {"part": LABEL[item], "ns": ns / steps, "colour": COLOUR[item]}
    waiting = costs.waiting_ns or 0
    for name, ns, colour in (
        ("exposed communication", costs.exposed_ns - waiting, communication),
        ("waiting for other ranks", waiting, _OF_WAITING),
    ):
        if ns:
            yield {"part": name, "ns": ns / steps, "colour": colour}
    if costs.idle_ns:
        for row in costs.causes:
            colour = _OF_CAUSE.get(row.cause, _GREY)
            yield {"part": f"idle: {label_of(row)}", "ns": row.time_ns / steps, "colour": colour}
    if costs.unrecorded_ns:
        yield {"part": "not recorded", "ns": costs.unrecorded_ns / steps, "colour": _OF_UNRECORDED}
    if costs.input_ns:
        yield {"part": "waiting for input", "ns": costs.input_ns / steps, "colour": _OF_CAUSE[IdleCause.INPUT]}
    if costs.framework_ns:  # and what rounding the mean step leaves
        others = sum(costs.classes.values()) + costs.exposed_ns + costs.profiler_ns + costs.input_ns
        yield {"part": "framework", "ns": (costs.whole_ns - others) / steps, "colour": _OF_FRAMEWORK}
    if costs.profiler_ns:
        yield {"part": "profiler", "ns": costs.profiler_ns / steps, "colour": _OF_CAUSE[IdleCause.PROFILER]}


# ----- the step after each change


_TITLE_OF_ADVICE: Final = "The step now, after each of the top changes, and after all of them together"
#: Labels of bars; if a gain is only bounded, the minimum time is drawn as an open bar that still reacts to the pointer.
_NOW, _REPLAYED, _RANGE, _BOUND = (
    "now",
    "after the change, by replaying the trace",
    "up to here for a host not slowed by recording",
    "after the change, at least",
)
_OF_AFTER: Final = {_NOW: _GREY, _REPLAYED: "#0072b2", _RANGE: "#a8c8e0", _BOUND: "rgba(138, 138, 138, 0.1)"}


def _advice(anatomy: Anatomy) -> Any:
    """Return how long the step takes now, after each of the first pieces of advice, and after all of them together."""
    import altair as alt

    first = anatomy.advice[:FIRST]
    timed = [each for each in first if each.gain_ns is not None and each.step_ns]
    if not timed:
        raise NoChart("no advice has an estimated time saving")
    now = max(each.step_ns or 0 for each in timed)
    gains = [(word_of(each), each.replayed_ns, each.gain_ns or 0, each.step_ns or 0) for each in timed]
    if (together := gain_together(first, anatomy.replay)) is not None:
        gains.append(("together", *together))
    whole = " or ".join(dict.fromkeys(units.duration(each.step_ns or 0) for each in timed))
    rows: list[Datum] = [{"step": "now", "kind": _NOW, "from": 0, "to": now, "text": whole, "label": whole}]
    times: Counter[str] = Counter()
    for word, replayed, most, step in gains:
        times[word] += 1  # two pieces of advice may be by one rule
        name = word if times[word] == 1 else f"{word} ({times[word]})"
        least, longest = step - most, step - (most if replayed is None else replayed)
        text = f"{units.duration(least)} ({units.change(least, step)})"
        if replayed is None:
            text = f"at least {text}"
        elif units.duration(longest) != units.duration(least):
            text += f" to {units.duration(longest)} ({units.change(longest, step)})"
        if step != now:  # that of another rank, or without the profiler
            text += f" of {units.duration(step)}"
        kind = _BOUND if replayed is None else _REPLAYED
        low, high = (round(one * now / step) for one in (least, longest))
        rows.append({"step": name, "kind": kind, "from": 0, "to": low, "text": text, "label": text})
        if high > low:  # the text is behind the last bar
            rows[-1]["label"] = ""
            rows.append({"step": name, "kind": _RANGE, "from": low, "to": high, "text": text, "label": text})
    names = list(dict.fromkeys(row["step"] for row in rows))
    looks = {kind: colour for kind, colour in _OF_AFTER.items() if any(row["kind"] == kind for row in rows)}
    base = alt.Chart(_values(rows)).encode(
        y=alt.Y("step:N", sort=names, title=None, scale=alt.Scale(domain=names, paddingInner=0.25)),
        tooltip=[alt.Tooltip("step:N", title="after"), alt.Tooltip("text:N", title="the step takes"), "kind:N"],
    )
    bars = base.mark_bar(stroke=_INK, strokeOpacity=0.6, strokeWidth=0.8).encode(
        x=alt.X(
            "from:Q",
            scale=alt.Scale(domain=[0, now], nice=False),
            axis=alt.Axis(
                title="share of the step",
                values=[now * part / 5 for part in range(6)],
                labelExpr=f"format(datum.value / {now}, '.0%')",
            ),
        ),
        x2="to:Q",
        color=_coloured("kind", looks, symbolType="square"),
        description="text:N",
    )
    labels = base.mark_text(align="left", dx=4, fontSize=11).encode(x="to:Q", text="label:N")
    said = "; ".join(dict.fromkeys(f"{row['step']} {row['text']}" for row in rows))
    return (bars + labels).properties(
        width=_WIDTH - 340, height=26 * len(names), description=printable(f"{_TITLE_OF_ADVICE}: {said}")
    )


# ----- all steps of the recording


#: Maximum number of steps drawn, from the first.
_MOST_STEPS_DRAWN: Final = 60
_BAR: Final = 20


def _steps(anatomy: Anatomy) -> Any:
    """Return every step in the parts of the bar, those that are set aside hatched, with the reason."""
    import altair as alt

    steps = anatomy.step.steps
    if len(anatomy.ranks) > 1:
        raise NoChart("steps of several ranks are in the chart of ranks")
    if len(steps) < 2:
        raise NoChart("only one step was recorded" if steps else "the times of individual steps are unknown")
    rows: list[Datum] = []
    lines: list[Datum] = []
    longest = max(step.wall_ns for step in steps)
    for index, step in enumerate(steps[:_MOST_STEPS_DRAWN]):
        at, top = 0, index * _BAR
        for part in parts_of_row(step):
            rows.append(
                {
                    **part,
                    "from": at,
                    "to": at + part["ns"],
                    "top": top + 2,
                    "bottom": top + _BAR - 2,
                    "step": str(step.number),
                    "text": units.duration(part["ns"]),
                    "share": units.share(part["ns"], step.wall_ns),
                }
            )
            at += part["ns"]
        if step.set_aside is not None:
            slant = longest / 120
            lines += [
                {"from": begin, "to": min(begin + slant, step.wall_ns), "top": top + _BAR - 2, "bottom": top + 2}
                for begin in (slant * number for number in range(int(step.wall_ns / slant) + 1))
            ]
    labels = [
        {
            "label": "the trace" if step.number is None else f"step {step.number}",
            "end": step.wall_ns,
            "middle": (index + 0.5) * _BAR,
            "says": units.duration(step.wall_ns) + (f", excluded: {step.set_aside}" if step.set_aside else ""),
        }
        for index, step in enumerate(steps[:_MOST_STEPS_DRAWN])
    ]
    high = _BAR * len(labels)
    down = {"scale": alt.Scale(domain=[0, high], reverse=True, nice=False), "axis": None}
    x = alt.X("from:Q", axis=alt.Axis(**_time_axis(None, longest)), scale=alt.Scale(domain=[0, longest], nice=False))
    looks = {row["part"]: row["colour"] for row in rows}
    bars = (
        alt.Chart(_values(rows))
        .mark_rect(stroke=_INK, strokeOpacity=0.25, strokeWidth=0.4)
        .encode(
            x=x,
            x2="to:Q",
            y=alt.Y("top:Q", **down),
            y2="bottom:Q",
            color=_coloured("part", looks, columns=4, symbolType="square"),
            tooltip=[
                "step:N",
                "part:N",
                alt.Tooltip("text:N", title="time"),
                alt.Tooltip("share:N", title="of the step"),
            ],
            description="part:N",
        )
    )
    hatch = (
        alt.Chart(_values(lines))
        .mark_rule(
            color="white",
            opacity=0.75,
            strokeWidth=1.5,
            clip=True,
            aria=False,
        )
        .encode(x=x, x2="to:Q", y=alt.Y("top:Q", **down), y2="bottom:Q")
    )
    base = alt.Chart(_values(labels))
    names = base.mark_text(align="right", dx=-8, fontSize=11).encode(
        x=alt.value(0), y=alt.Y("middle:Q", **down), text="label:N"
    )
    ends = base.mark_text(align="left", dx=5, fontSize=10.5, limit=300).encode(
        x="end:Q", y=alt.Y("middle:Q", **down), text="says:N", tooltip=["label:N", "says:N"]
    )
    counted = sum(step.set_aside is None for step in steps)
    said = f"the means include {counted} of {len(steps)} steps" + (" (hatched ones are excluded)" if lines else "")
    said += f"; only the first {_MOST_STEPS_DRAWN} are drawn" if len(steps) > _MOST_STEPS_DRAWN else ""
    return (bars + hatch + names + ends).properties(width=_WIDTH - 400, height=high, title=said)


def parts_of_row(step: StepRow) -> Iterator[Datum]:
    """Yield one step's parts, like those of the mean step; they sum to it."""
    exposed = step.exposed_communication_ns or 0
    classes = [item for item in OperatorClass if item is not OperatorClass.COMMUNICATION and item in step.class_ns]
    work, computing = sum(step.class_ns[item] for item in classes), max((step.busy_ns or 0) - exposed, 0)
    for item in classes if computing else ():
        yield {"part": LABEL[item], "ns": computing * step.class_ns[item] / work, "colour": COLOUR[item]}
    if computing and not work:
        yield {"part": "computing", "ns": computing, "colour": _WORDS[lanes.COMPUTING][1]}
    parts = [("exposed communication", exposed, COLOUR[OperatorClass.COMMUNICATION])]
    parts += [
        (f"idle: {label_of_cause(cause)}", ns, _OF_CAUSE.get(cause, _GREY)) for cause, ns in step.idle_causes.items()
    ]
    loading = step.loading_ns or 0
    parts += [
        ("not recorded", step.unrecorded_ns or 0, _OF_UNRECORDED),
        (_WORDS[lanes.OUTSIDE_WORK][0], step.outside_ns or 0, _WORDS[lanes.OUTSIDE_WORK][1]),
        ("waiting for input", loading, _OF_CAUSE[IdleCause.INPUT]),
        ("framework", (step.framework_ns or 0) - loading, _OF_FRAMEWORK),
    ]
    yield from ({"part": name, "ns": ns, "colour": colour} for name, ns, colour in parts if ns > 0)


# ----- the run over its length


#: Parts of a run's steps, with fields and colours; the rest is the usual step.
_OF_RUN: Final = (
    ("waiting for input", "input_ns", _OF_CAUSE[IdleCause.INPUT]),
    ("evaluation", "evaluating_ns", "#0072b2"),
    ("checkpoints", "checkpointing_ns", "#e69f00"),
    ("compiling", "compiling_ns", _OF_CAUSE[IdleCause.COMPILATION]),
    ("garbage collection", "collecting_ns", "#cc79a7"),
)
_OF_MEMORY: Final = (
    ("peak", "peak_bytes", "#d55e00"),
    ("reserved", "reserved_bytes", "#b8a13e"),
    ("allocated", "allocated_bytes", "#0072b2"),
    ("host", "host_bytes", "#6a6a6a"),
)


def _run(anatomy: Anatomy) -> Any:
    """Return the run's steps in order: the usual duration, what adds to it, and the memory."""
    import altair as alt

    series = None if anatomy.run is None else anatomy.run.series
    if series is None or len(series.first) < 2:
        raise NoChart("steps outside the recording were not timed" if series is None else "only one step was timed")
    last = series.first[-1] + series.steps[-1]
    x = {"scale": alt.Scale(domain=[series.first[0], last], nice=False), "axis": alt.Axis(title=None, tickCount=8)}
    steps: list[Datum] = []
    parts: list[Datum] = []
    sizes: list[Datum] = []
    for index, (first, count) in enumerate(zip(series.first, series.steps, strict=True)):
        name = f"step {first}" if count == 1 else f"steps {first} to {first + count - 1}"
        row: Datum = {"steps": name, "from": first, "to": first + count}
        usual, longest = series.usual_ns[index], series.longest_ns[index]
        steps.append(
            {**row, "usual": usual, "longest": longest, "text": units.duration(usual), "most": units.duration(longest)}
        )
        at = 0.0
        for part, field, _ in _OF_RUN:
            if ns := getattr(series, field)[index] / count:
                parts.append({**row, "part": part, "low": at, "high": at + ns, "text": units.duration(ns)})
                at += ns
        for kind, field, _ in _OF_MEMORY:
            if size := getattr(series, field)[index]:
                sizes.append({**row, "kind": kind, "bytes": size, "text": units.size(size)})
    top = max(row["usual"] for row in steps)
    bars = (
        alt.Chart(_values(steps))
        .mark_rect(color=_OF_PHASE[Phase.FORWARD])
        .encode(
            x=alt.X("from:Q", **x),
            x2="to:Q",
            y2=alt.datum(0),
            y=alt.Y("usual:Q", axis=alt.Axis(**_time_axis("median step", top)), scale=alt.Scale(domain=[0, top])),
            tooltip=[
                "steps:N",
                alt.Tooltip("text:N", title="median step"),
                alt.Tooltip("most:N", title="longest step"),
            ],
            description="steps:N",
        )
        .properties(width=_WIDTH - 200, height=140)
    )
    panels = [bars]
    if parts:
        most = max(row["high"] for row in parts)
        looks = {name: colour for name, _, colour in _OF_RUN if any(row["part"] == name for row in parts)}
        panels.append(
            alt.Chart(_values(parts))
            .mark_rect()
            .encode(
                x=alt.X("from:Q", **x),
                x2="to:Q",
                y2="high:Q",
                y=alt.Y("low:Q", axis=alt.Axis(**_time_axis("mean per step", most)), scale=alt.Scale(domain=[0, most])),
                color=_coloured("part", looks, symbolType="square"),
                tooltip=["steps:N", "part:N", alt.Tooltip("text:N", title="per step")],
                description="part:N",
            )
            .properties(width=_WIDTH - 200, height=110)
        )
    if sizes:
        looks = {name: colour for name, _, colour in _OF_MEMORY if any(row["kind"] == name for row in sizes)}
        panels.append(
            alt.Chart(_values(sizes))
            .mark_line(interpolate="step-after")
            .encode(
                x=alt.X("from:Q", **x),
                y=alt.Y("bytes:Q", axis=alt.Axis(**_bytes_axis("memory"))),
                color=_coloured("kind", looks, symbolType="stroke"),
                tooltip=["steps:N", "kind:N", alt.Tooltip("text:N", title="size")],
                description="kind:N",
            )
            .properties(width=_WIDTH - 200, height=90)
        )
    said = f"{sum(series.steps):,} steps outside the recording"
    said += ": median time above, mean time per step in each known part below" if parts else ""
    return alt.vconcat(*panels, spacing=14).resolve_scale(color="independent").properties(title=said)


# ----- one step over time


#: Lane contents besides classes, phases and idle causes: their words and colours.
_WORDS: Final = {
    lanes.COMPUTING: ("computing", "#2c4052"), lanes.EXPOSED: ("exposed communication", "#cc79a7"),
    lanes.WAITING_FOR_RANKS: ("waiting for other ranks", _OF_WAITING), lanes.COPIES: ("exposed copies", "#b5e0b0"),
    lanes.INPUT: ("waiting for input", _OF_CAUSE[IdleCause.INPUT]),
    lanes.OUTSIDE_WORK: ("work of other steps", "#f0e442"),
    lanes.UNRECORDED: ("not recorded", _OF_UNRECORDED), lanes.OPERATORS: ("operators", "#7f9f6e"),
    lanes.LAUNCHING: ("launching", "#9a5a20"), lanes.WAITING: ("waiting for the device", "#e0503c"),
    lanes.RUNTIME: ("other runtime calls", "#ecd3ba"), lanes.PYTHON: ("Python", _OF_CAUSE[IdleCause.PYTHON]),
    lanes.FRAMEWORK: ("framework", _OF_FRAMEWORK),
}  # fmt: skip
#: Maximum number of rectangles of the chart, and of a still one on a page.
_MOST_DRAWN: Final = 2400
_MOST_STILL: Final = 500


def _lanes(anatomy: Anatomy, most: int = _MOST_DRAWN) -> Any:
    """Return the lanes of one step: phases, devices, streams and threads, with at most this many rectangles.

    The page draws the lanes itself, with every span that the report has: see `timeline_of`.
    """
    import altair as alt

    drawn = _drawn(anatomy)
    drawn = fewer(drawn, most, binned=most // max(len(drawn.lanes), 1))
    rows: list[Datum] = []
    shown: dict[str, str] = {}
    for span in drawn.spans.rows():
        words, colour = _word_of(span["kind"])
        shown.setdefault(words, colour)
        rows.append(
            {
                "lane": span["lane"],
                "from": span["begin_ns"],
                "to": span["begin_ns"] + span["length_ns"],
                "what": words,
                "text": units.duration(span["length_ns"]),
                "at": units.duration(span["begin_ns"]),
            }
        )
    names = [lane.name for lane in drawn.lanes]
    put = [lane for lane in drawn.lanes if lane.bin_ns is not None]
    widest = units.duration(max((lane.bin_ns or 0 for lane in put), default=0))
    binned = (
        ""
        if not put
        else (
            f"; grouped into bins of up to {widest}, in which the order of events is lost:"
            f" {', '.join(lane.name for lane in put)}"
        )
    )
    return (
        alt.Chart(_values(rows), title=f"{title_of_lanes(anatomy)}{binned}")
        .mark_bar(clip=True)
        .encode(
            x=alt.X(
                "from:Q",
                axis=alt.Axis(**_time_axis(None, drawn.wall_ns)),
                scale=alt.Scale(domain=[0, drawn.wall_ns], nice=False),
            ),
            x2="to:Q",
            y=alt.Y(
                "lane:N",
                sort=names,
                title=None,
                scale=alt.Scale(domain=names, paddingInner=0.25),
                axis=alt.Axis(labelLimit=150),
            ),
            color=_coloured("what", shown, columns=5, symbolType="square"),
            tooltip=["lane:N", "what:N", alt.Tooltip("text:N", title="for"), alt.Tooltip("at:N", title="from")],
            description="what:N",
        )
        .properties(width=_WIDTH - 150, height=26 * len(names))
    )


def _drawn(anatomy: Anatomy) -> Lanes:
    if anatomy.lanes is None or not len(anatomy.lanes.spans):
        raise NoChart("the report has no events - analyze the trace again to draw them")
    return anatomy.lanes


def title_of_lanes(anatomy: Anatomy) -> str:
    """Return which step is drawn, its duration relative to the mean, and the clock of rank lanes."""
    drawn = _drawn(anatomy)
    number = "the step" if drawn.step is None else f"step {drawn.step}"
    said = [f"{number}, {units.duration(drawn.wall_ns)}"]
    if anatomy.step.count > 1 and anatomy.step.wall_ns:
        said[0] += f" (mean of {anatomy.step.count} steps: {units.duration(anatomy.step.wall_ns)})"
    clocks = None if anatomy.waiting is None else anatomy.waiting.clocks
    if len(anatomy.ranks) > 1:
        if not drawn.on_one_clock or clocks is None:
            said.append("each rank is drawn from the start of its own step, because no collectives could be matched")
        else:
            how = "aligned by the ends of matched collectives" if clocks.was_set else "as recorded"
            good = "" if clocks.within_ns is None else f", accurate to within {units.duration(clocks.within_ns)}"
            said.append(f"all ranks on one clock, {how}{good}")
    if drawn.hidden:
        said.append(f"not shown: {units.noun(drawn.hidden, 'more lane')}")
    return "; ".join(said)


def timeline_of(anatomy: Anatomy) -> dict[str, Any]:
    """Return the page's data for one step: its lanes, their words and colours, and all spans.

    Raise `NoChart` if the report has no lanes.
    """
    drawn = _drawn(anatomy)
    spans = drawn.spans.plain()
    kinds = [_word_of(kind) for kind in spans["kind"]["values"]]
    lanes_shown, first = [], 0
    for lane in drawn.lanes:
        last = first + int(drawn.spans.keys["lane"].equals(lane.name).sum())
        lanes_shown.append(
            {
                "name": lane.name,
                "of": lane.of.value,
                "bin": lane.bin_ns,
                "count": lane.count,
                "first": first,
                "last": last,
            }
        )
        first = last
    texts = {
        name: [printable(str(value)) for value in column["values"]]
        for name, column in spans.items()
        if isinstance(column, dict)
    }
    columns = {name: column["codes"] if isinstance(column, dict) else column for name, column in spans.items()}
    return {"wall": drawn.wall_ns, "lanes": lanes_shown, "kinds": kinds, "texts": texts, "columns": columns}


def _word_of(kind: str) -> tuple[str, str]:
    """Return a span's label and colour."""
    if kind in _WORDS:
        return _WORDS[kind]
    if kind.startswith(lanes.IDLE):
        cause = IdleCause(kind.removeprefix(lanes.IDLE))
        return f"idle: {label_of_cause(cause)}", _OF_CAUSE.get(cause, _GREY)
    if kind in _PHASES:
        return kind, _OF_PHASE.get(Phase(kind), _GREY)
    return LABEL[OperatorClass(kind)], COLOUR[OperatorClass(kind)]


# ----- classes by phase


#: Figures by which classes are compared, each with its formatter.
_FIGURES: Final = (("time", units.duration), ("FLOPs", units.flops), ("bytes", units.size))


def _classes(anatomy: Anatomy) -> Any:
    """Return time, FLOPs and bytes of each class by phase, side by side, and backward over forward beside theory."""
    import altair as alt

    steps = steps_of(anatomy)
    rows: list[Datum] = []
    for item, members in by_class(anatomy):
        for phase in PHASES:
            part = total(row for row in members if row.phase is phase).per_step(steps)
            for (figure, text), value in zip(_FIGURES, (part.time_ns, part.flops, part.bytes), strict=True):
                if value:
                    rows.append(
                        {
                            "class": LABEL[item],
                            "phase": phase.value,
                            "figure": figure,
                            "value": value,
                            "text": text(value),
                            "order": PHASES.index(phase),
                        }
                    )
    if not rows:
        raise NoChart("no work has a known class")
    classes = [LABEL[item] for item, _ in by_class(anatomy)]
    phases = [phase for phase in PHASES if any(row["phase"] == phase.value for row in rows)]
    colour = _by_phase(phases)
    panels = []
    for index, (figure, _) in enumerate(_FIGURES):
        own = [row for row in rows if row["figure"] == figure]
        if not own:
            continue
        longest = max(sum(row["value"] for row in own if row["class"] == name) for name in classes)
        axis = {
            "time": _time_axis(None, longest),
            "FLOPs": {"title": None, "labelExpr": _si("FLOP")},
            "bytes": _bytes_axis(None),
        }[figure]
        panels.append(
            alt.Chart(_values(own), title=figure)
            .mark_bar()
            .encode(
                y=alt.Y(
                    "class:N",
                    sort=classes,
                    title=None,
                    axis=alt.Axis(labels=index == 0, ticks=index == 0),
                    scale=alt.Scale(domain=classes),
                ),
                x=alt.X("value:Q", axis=alt.Axis(**{**axis, "tickCount": 4})),
                color=colour,
                order="order:Q",
                tooltip=["class:N", "phase:N", alt.Tooltip("text:N", title=figure)],
                description="text:N",
            )
            .properties(width=240, height=26 * len(classes))
        )
    ratios = [
        {
            "class": LABEL[row.operator_class],
            "figure": name,
            "measured": measured,
            "theory": theory,
            "text": units.ratio(measured),
            "expected": units.ratio(theory),
        }
        for row in anatomy.ratios
        for name, measured, theory in (
            ("time", row.time, None),
            ("FLOPs", row.flops, row.theory_flops),
            ("bytes", row.bytes, row.theory_bytes),
        )
        if measured is not None and LABEL[row.operator_class] in classes
    ]
    if ratios:
        y = alt.Y(
            "class:N",
            sort=classes,
            title=None,
            axis=alt.Axis(labels=False, ticks=False),
            scale=alt.Scale(domain=classes),
        )
        tip = [
            "class:N",
            "figure:N",
            alt.Tooltip("text:N", title="backward / forward"),
            alt.Tooltip("expected:N", title="theory"),
        ]
        with_theory = any(ratio["theory"] is not None for ratio in ratios)
        base = alt.Chart(_values(ratios), title=f"backward / forward{'; ticks: theory' if with_theory else ''}")
        points = base.mark_point(filled=True, size=60, color="#0072b2").encode(
            y=y,
            x=alt.X("measured:Q", title=None, scale=alt.Scale(zero=True)),
            shape=alt.Shape("figure:N", legend=alt.Legend(title=None, orient="bottom")),
            tooltip=tip,
            description="text:N",
        )
        if with_theory:
            ticks = base.mark_tick(thickness=2, color="#d55e00", height=18).encode(y=y, x="theory:Q", tooltip=tip)
            points = ticks + points
        panels.append(points.properties(width=220, height=26 * len(classes)))
    return alt.hconcat(*panels, spacing=18).resolve_scale(shape="independent")


# ----- roofline


#: Operators below this share of time get no point, nor do those with fewer FLOPs per byte, which copy.
_LEAST_POINT: Final = 0.001
_LEAST_INTENSITY: Final = 0.01
_MOST_POINTS: Final = 300
#: Points with a name, those with most time.
_MOST_NAMED: Final = 10
_ROOF_HEIGHT: Final = 420


def _roofline(anatomy: Anatomy) -> Any:
    """Return the operators below the device's ceilings, by FLOPs per byte and FLOPs per second, on log scales."""
    import altair as alt

    device, steps = anatomy.device, steps_of(anatomy)
    if device.bandwidth_bytes_per_second is None:
        raise NoChart(device.no_ceilings or "the device's bandwidth is unknown")
    points: list[Datum] = []
    whole = total(anatomy.classes).time_ns
    for group, rows in grouped(anatomy.operators).items():
        part = total(rows)
        rate, intensity = part.rate(part.flops), part.intensity
        if not rate or (intensity or 0) < _LEAST_INTENSITY or part.time_ns < _LEAST_POINT * whole:
            continue
        operator_class, name, phase = group
        points.append(
            {
                "key": key_of(group),
                "operator": cut(name, _LONGEST_NAME),
                "class": LABEL[operator_class],
                "phase": phase.value,
                "intensity": intensity,
                "rate": rate,
                "ns": part.time_ns / steps,
                "text": units.duration(part.time_ns / steps),
                "flops": units.flop_rate(rate),
                "per_byte": units.ratio(intensity),
                "reached": units.UNKNOWN if part.reached is None else units.share(part.reached, 1),
            }
        )
    if not points:
        raise NoChart("no operator has known FLOPs and bytes")
    points = sorted(points, key=lambda point: -point["ns"])[:_MOST_POINTS]
    lines = list(_ceilings(anatomy, [point["intensity"] for point in points]))
    classes = [item for item in OperatorClass if any(point["class"] == LABEL[item] for point in points)]
    names = [LABEL[item] for item in classes]
    lowest = min(point["rate"] for point in points)
    highest = max(line["rate"] for line in lines)
    ends = [lines[0]["least"], lines[0]["most"]]
    highest = max(highest, *(point["rate"] for point in points))
    x = alt.X(
        "intensity:Q",
        scale=alt.Scale(type="log", domain=ends, nice=False),
        axis=alt.Axis(title="FLOP/B", labelExpr="format(datum.value, '~g')", values=_decades(*ends)),
    )
    y = alt.Y(
        "rate:Q",
        scale=alt.Scale(type="log", domain=[lowest / 2, highest * 2], nice=False),
        axis=alt.Axis(title=None, labelExpr=_si("FLOP/s"), values=_decades(lowest / 2, highest * 2)),
    )
    drawn = units.share(sum(point["ns"] for point in points) * steps, whole)
    said = f"the points cover {drawn} of the time; other operators have no formula, few FLOPs per byte, or little time"
    roofs = (
        alt.Chart(_values(lines))
        .mark_line(color=_INK, opacity=0.6, strokeWidth=1.2, clip=True)
        .encode(
            x=x,
            y=y,
            detail="ceiling:N",
            strokeDash=alt.condition("datum.slope", alt.value([1, 0]), alt.value([5, 3])),
            tooltip=["ceiling:N", alt.Tooltip("text:N", title="at most")],
            description="ceiling:N",
        )
    )
    named = (
        alt.Chart(_values(line for line in lines if line["named"]))
        .mark_text(align="right", dy=-6, dx=-2, fontSize=11, limit=400)
        .encode(x=x, y=y, text="label:N")
    )
    picked = alt.param(name="picked", value="")
    dots = (
        alt.Chart(_values(points))
        .mark_point(filled=True, strokeWidth=1.5)
        .encode(
            x=x,
            y=y,
            size=alt.Size("ns:Q", scale=alt.Scale(range=[30, 900]), legend=None),
            color=_coloured("class", {LABEL[item]: COLOUR[item] for item in classes}, columns=4),
            shape=alt.Shape(
                "class:N", sort=names, scale=alt.Scale(domain=names, range=[_SHAPES[item] for item in classes])
            ),
            opacity=alt.condition("picked == '' || picked == datum.key", alt.value(0.85), alt.value(0.15)),
            stroke=alt.condition("picked == datum.key", alt.value(_INK), alt.value(None)),
            tooltip=[
                "operator:N",
                "phase:N",
                "class:N",
                alt.Tooltip("text:N", title="time"),
                alt.Tooltip("flops:N", title="FLOP/s"),
                alt.Tooltip("per_byte:N", title="FLOP/B"),
                alt.Tooltip("reached:N", title="of peak"),
            ],
            order=alt.Order("ns:Q", sort="descending"),
            description="operator:N",
        )
        .add_params(picked)
    )
    marks, listed = _largest_named(points[:_MOST_NAMED], ends, (lowest / 2, highest * 2))
    numbers = (
        alt.Chart(_values(marks))
        .mark_text(align="left", dx=7, dy=-7, fontSize=11, fontWeight="bold")
        .encode(x=x, y=y, text="numbers:N")
    )
    names_of = (
        alt.Chart(_values(listed), name="list")
        .mark_text(align="left", baseline="top", fontSize=11)
        .encode(x=alt.value(8), y=alt.Y("down:Q", scale=None), text="line:N")
    )
    made = alt.layer(roofs + named + dots + numbers, names_of).resolve_scale(y="independent")
    return made.properties(width=_WIDTH, height=_ROOF_HEIGHT, title=said)


def _largest_named(
    points: Sequence[Datum], across: Sequence[float], up: tuple[float, float]
) -> tuple[list[Datum], list[Datum]]:
    """Return the numbers of the largest points, merging those that coincide, and the list of their names.

    `across` and `up` are the ends of the axes.
    """
    placed: list[tuple[float, float, Datum]] = []
    for number, point in enumerate(points, 1):
        place = [
            math.log(point[field] / low) / math.log(high / low) * size
            for field, (low, high), size in (("intensity", across, _WIDTH), ("rate", up, _ROOF_HEIGHT))
        ]
        near = next((one for left, high, one in placed if math.hypot(left - place[0], high - place[1]) < 16), None)
        if near is None:
            placed.append((place[0], place[1], {**point, "numbers": str(number)}))
        else:
            near["numbers"] += f", {number}"
    listed: list[Datum] = [
        {"down": 6 + 14 * index, "line": f"{index + 1}  {point['operator']}, {point['phase']}: {point['text']}"}
        for index, point in enumerate(points)
    ]
    return [datum for *_, datum in placed], listed


def _decades(least: float, most: float) -> list[float]:
    """Return the powers of ten between two numbers."""
    return [10.0**power for power in range(math.ceil(math.log10(least)), math.floor(math.log10(most)) + 1)]


def _ceilings(anatomy: Anatomy, intensities: Sequence[float]) -> Iterator[Datum]:
    """Yield two ends of each ceiling: the flat peaks, from where the bandwidth allows them, and the bandwidth."""
    device = anatomy.device
    bandwidth = device.bandwidth_bytes_per_second or 0
    used = {"float8" if (name or "").startswith("float8") else name for name in multiplied(anatomy)}
    known = [(name, peak) for name, peak in device.peak_flops_per_second.items() if name in used]
    known += [(f"vector {name}", peak) for name, peak in device.vector_flops_per_second.items() if name == "float32"]
    peaks: dict[str, float] = {}
    for peak in sorted({peak for _, peak in known}, reverse=True):
        peaks[f"{' and '.join(name for name, one in known if one == peak)} peak"] = peak
    highest = max(peaks.values(), default=max(intensities) * bandwidth)
    least, most = min(intensities) / 3, max(max(intensities), highest / bandwidth) * 4
    ends = {"least": least, "most": most}
    for name, peak in peaks.items():
        text = units.flop_rate(peak)
        for intensity, named in ((peak / bandwidth, False), (most, True)):
            yield {
                "ceiling": name,
                "intensity": intensity,
                "rate": peak,
                "text": text,
                "slope": False,
                "named": named,
                "label": f"{name}, {text}",
                **ends,
            }
    text = units.byte_rate(bandwidth)
    meet = highest / bandwidth
    for intensity, named in ((least, False), (meet, False), ((least * meet) ** 0.5, True)):
        yield {
            "ceiling": "bandwidth",
            "intensity": intensity,
            "rate": intensity * bandwidth,
            "text": text,
            "slope": True,
            "named": named,
            "label": f"bandwidth, {text}",
            **ends,
        }


# ----- modules as an icicle


#: A module with less of the whole than this is not drawn.
_LEAST_MODULE: Final = 0.001
_MOST_MODULES: Final = 1200
_MAX_MODULE_DEPTH: Final = 12


def _modules(anatomy: Anatomy) -> Any:
    """Return the tree of modules, a row for each depth: width is time, forward on the left, backward on the right."""
    if not any(row.module for row in anatomy.modules):
        raise NoChart("the trace has no modules")
    root = module_tree(anatomy.modules)
    return _icicle(anatomy, root, root.kind or anatomy.workload.architecture or "the model", "module")


def _lines(anatomy: Anatomy) -> Any:
    """Return the call tree of user code lines, with width as time."""
    if not anatomy.lines:
        raise NoChart("no lines of code are known - profile with --lines, or record with with_stack=True")
    return _icicle(anatomy, line_tree(anatomy.lines), "the step", "line")


def _icicle(anatomy: Anatomy, root: Node, name: str, what: str) -> Any:
    """Return a tree as rectangles, a row for each depth, each as wide as its amount, by phase from left to right."""
    import altair as alt

    steps, joint = steps_of(anatomy), "." if what == "module" else " > "
    phases_of = {**PHASES_OF, Phase.OTHER.value: (Phase.OTHER,)}
    rows: list[Datum] = []
    wholes = {"memory": units.size(sum(row.bytes for row in anatomy.memory.activations))}
    amounts: tuple[tuple[str, Callable[[float], str], Callable[[Amount], float]], ...] = (
        ("time", units.duration, lambda amount: amount.time_ns / steps),
        ("FLOPs", units.flops, lambda amount: (amount.flops or 0) / steps),
    )
    for measure, text, value_of in amounts:
        at = 0.0
        whole = sum(value_of(root.sum(phases)) for phases in phases_of.values())
        wholes[measure] = text(whole)
        for phase, phases in phases_of.items():
            wide = _Width(phases, value_of, whole, joint)
            for datum in _rectangles(root, name, "", 0, at, wide):
                share = units.share(datum["value"], whole)
                rows.append(datum | {"phase": phase, "measure": measure, "text": text(datum["value"]), "share": share})
            at += wide.of(root) / whole if whole else 0
    rows += _activations(anatomy) if what == "module" else ()
    if not rows:
        raise NoChart(f"no {what} has a known time")
    rows = [row | {"ink": _ink_on(_OF_PHASE.get(Phase(row["phase"]), _GREY))} for row in _largest(rows)]
    measures = [measure for measure in ("time", "FLOPs", "memory") if any(row["measure"] == measure for row in rows)]
    deepest = max(row["depth"] for row in rows) + 1
    shown = [phase for phase in PHASES if any(row["phase"] == phase.value for row in rows)]
    low, high = alt.param(name="low", value=0), alt.param(name="high", value=1)
    switch = alt.param(name="measure", value="time", bind=alt.binding_radio(options=measures, name="width: "))
    wanted, picked = alt.param(name="wanted", value=""), alt.param(name="picked", value="")
    x = alt.X(
        "from:Q",
        scale=alt.Scale(domainMin=alt.expr("low"), domainMax=alt.expr("high"), nice=False, zero=False),
        axis=None,
    )
    said = f"the full width is {' or '.join(map(wholes.__getitem__, measures))}"
    said += f"; {what}s below {units.share(_LEAST_MODULE, 1)} and unknown FLOPs are not drawn"
    base = alt.Chart(_values(rows)).transform_filter("datum.measure == measure")
    kind = [alt.Tooltip("kind:N", title="kind")] if what == "module" else []
    tip = [
        alt.Tooltip("path:N", title=what),
        *kind,
        "phase:N",
        alt.Tooltip("text:N", title="amount"),
        alt.Tooltip("share:N", title=f"of all {what}s"),
    ]
    found = "wanted == '' || indexof(lower(datum.path), lower(wanted)) >= 0"
    boxes = base.mark_rect(stroke="white", strokeOpacity=0.7, strokeWidth=0.7, clip=True, cursor="pointer").encode(
        x=x,
        x2="to:Q",
        y=alt.Y("depth:Q", scale=alt.Scale(domain=[0, deepest], reverse=True, nice=False), axis=None),
        y2="below:Q",
        color=_by_phase(shown),
        opacity=alt.condition(found, alt.value(1), alt.value(0.25)),
        tooltip=tip,
        description="path:N",
    )
    across = "(datum.to - datum.from) / (high - low) * width"
    cut_off = f"slice(datum.name, 0, floor({across} / 8))"
    if what == "line":  # its number comes last
        place = "split(datum.name, ' ')[0]"
        cut_off = f"slice({place}, max(0, length({place}) - floor({across} / 8)))"
    names = (
        base.transform_calculate(
            middle="(max(datum.from, low) + min(datum.to, high)) / 2",
            row="datum.depth + 0.5",
            label=f"{across} < 34 || datum.to <= low || datum.from >= high ? '' : {across} < 7 * length(datum.name)"
            f" ? {cut_off} : datum.name",
        )
        .mark_text(fontSize=11, clip=True)
        .encode(
            color=alt.condition("datum.ink == 'black'", alt.value("black"), alt.value("white")),
            x=alt.X("middle:Q", scale=alt.Scale(domainMin=alt.expr("low"), domainMax=alt.expr("high"), zero=False)),
            y=alt.Y("row:Q", scale=alt.Scale(domain=[0, deepest], reverse=True)),
            text="label:N",
            tooltip=tip,
        )
    )
    return (
        (boxes + names)
        .add_params(low, high, switch, wanted, picked)
        .properties(width=_WIDTH, height=24 * deepest, title=said)
    )


class _Width(Struct, frozen=True):
    """What a module's width represents: an amount in some phases, as a fraction of the whole."""

    phases: tuple[Phase, ...]
    value_of: Callable[[Amount], float]
    whole: float
    #: What joins the names of a path.
    joint: str

    def of(self, node: Node) -> float:
        return self.value_of(node.sum(self.phases))


def _rectangles(node: Node, name: str, path: str, depth: int, at: float, wide: _Width) -> Iterator[Datum]:
    """Yield a module and its descendants from left to right, as fractions of the whole; its own work stays blank."""
    value = wide.of(node)
    if depth >= _MAX_MODULE_DEPTH or not value or value < _LEAST_MODULE * wide.whole:
        return
    yield {
        "name": cut(name, _LONGEST_NAME),
        "path": path or name,
        "kind": node.kind or "",
        "depth": depth,
        "below": depth + 1,
        "from": at,
        "to": at + value / wide.whole,
        "value": value,
    }
    for child in node.children:
        below = f"{path}{wide.joint}{child.name}" if path else child.name
        yield from _rectangles(child, child.name, below, depth + 1, at, wide)
        at += wide.of(child) / wide.whole


def _activations(anatomy: Anatomy) -> Iterator[Datum]:
    """Yield forward's saved tensors by module as a tree."""
    sizes: dict[tuple[str, ...], int] = {}
    for row in anatomy.memory.activations:
        parts = tuple(row.module.split(".")) if row.module else ()
        for depth in range(len(parts) + 1):
            sizes[parts[:depth]] = sizes.get(parts[:depth], 0) + row.bytes
    whole = sizes.get((), 0)
    if not whole:
        return
    begins: dict[tuple[str, ...], float] = {(): 0.0}
    for parts in sorted(sizes, key=lambda parts: (len(parts), -sizes[parts], parts)):
        parent = parts[:-1]
        if len(parts) >= _MAX_MODULE_DEPTH or sizes[parts] < _LEAST_MODULE * whole or parent not in begins:
            continue
        at = begins[parent] if parts else 0.0
        if parts:
            begins[parent] = at + sizes[parts] / whole
        begins[parts] = at
        yield {
            "name": cut(parts[-1], _LONGEST_NAME) if parts else "saved for backward",
            "path": ".".join(parts) or "all",
            "kind": "",
            "depth": len(parts),
            "below": len(parts) + 1,
            "from": at,
            "to": at + sizes[parts] / whole,
            "value": sizes[parts],
            "phase": Phase.FORWARD.value,
            "measure": "memory",
            "text": units.size(sizes[parts]),
            "share": units.share(sizes[parts], whole),
        }


def _largest(rows: list[Datum]) -> list[Datum]:
    """Return the widest rectangles of each measure, as many as a picture holds; a parent is as wide as its parts."""
    kept: list[Datum] = []
    for measure in dict.fromkeys(row["measure"] for row in rows):
        own = [row for row in rows if row["measure"] == measure]
        kept += sorted(own, key=lambda row: row["from"] - row["to"])[: _MOST_MODULES // 3]
    return kept


# ----- memory


#: Components with less than this part of the largest have no bar.
_LEAST_COMPONENT: Final = 0.002
#: Maximum number of points of the curve: the maximum of each part of the window.
_MOST_POINTS_OF_CURVE: Final = 240
_CURVE_HEIGHT: Final = 320
_OF_SOURCE: Final = {"measured": "#0072b2", "theory": "#e69f00"}


def _looks_of_components(anatomy: Anatomy) -> dict[str, str]:
    """Return the colour of each component with memory at any time, in report order."""
    memory = anatomy.memory
    names = [part.component for part in memory.components]
    names += [name for point in memory.timeline for name, size in point.components.items() if size]
    names += [span.component for span in memory.spans if span.component != "free"]
    return dict(zip(dict.fromkeys(names), cycle(_PART_COLOURS), strict=False))


def _memory(anatomy: Anatomy) -> Any:
    """Return the allocated bytes over the window, stacked by component, below the phases."""
    import altair as alt

    points = thinned(anatomy.memory.timeline, _MOST_POINTS_OF_CURVE)
    if len(points) < 2:
        raise NoChart("allocations were not recorded - profile with --memory, or record with profile_memory=True")
    looks = _looks_of_components(anatomy)
    found = {name for point in points for name, size in point.components.items() if size}
    components = [name for name in looks if name in found]
    shown = {name: name.replace("_", " ") for name in components}
    rows = [
        {"ns": point.time_ns, "component": shown[name], "bytes": point.components.get(name, 0), "order": index}
        for point in points
        for index, name in enumerate(components)
    ]
    lines = [f"line {index}" for index in range(1, max(len(point.lines) for point in points) + 1)]
    moments = [
        {
            "ns": point.time_ns,
            "until": until.time_ns,
            "all": point.allocated_bytes,
            "time": units.duration(point.time_ns),
            "phase": point.phase.value,
            "allocated": units.size(point.allocated_bytes),
            **{shown[name]: units.size(point.components.get(name, 0)) for name in components},
            **dict.fromkeys(lines, ""),
            **{
                f"line {index}": f"{name}: {units.size(size)}"
                for index, (name, size) in enumerate(point.lines.items(), 1)
            },
        }
        for point, until in zip(points, (*points[1:], points[-1]), strict=True)
    ]
    end = points[-1].time_ns
    phases = list(_bands(points))
    known = [phase for phase in PHASES if any(band["phase"] == phase.value for band in phases)]
    x = alt.X(
        "ns:Q", scale=alt.Scale(domain=[points[0].time_ns, end], nice=False), axis=alt.Axis(**_time_axis(None, end))
    )
    held = [{"ns": point.time_ns, "held": point.reserved_bytes} for point in points if point.reserved_bytes]
    highest = max(max(point.allocated_bytes, point.reserved_bytes or 0) for point in points)
    up: dict[str, Any] = {
        "axis": alt.Axis(**_bytes_axis(None)),
        "scale": alt.Scale(domain=[0, highest * 1.1], nice=False),
    }
    y = alt.Y("bytes:Q", stack=True, **up)
    areas = (
        alt.Chart(_values(rows))
        .mark_area(interpolate="step-after", opacity=0.85)
        .encode(
            x=x,
            y=y,
            order="order:Q",
            color=_coloured("component", {shown[name]: looks[name] for name in components}, columns=4),
            description="component:N",
        )
    )
    near = alt.selection_point(name="near", fields=["ns"], on="pointermove", empty=False, clear="pointerout")
    line = (
        alt.Chart(_values(moments))
        .mark_rect(color=_INK)
        .encode(
            x=x,
            x2="until:Q",
            y=alt.value(0),
            y2=alt.value(_CURVE_HEIGHT),
            opacity=alt.condition(near, alt.value(0.2), alt.value(0)),
            tooltip=[
                alt.Tooltip("time:N", title="at"),
                "phase:N",
                "allocated:N",
                *(alt.Tooltip(field=name, type="nominal", title=name) for name in (*shown.values(), *lines)),
            ],
        )
        .add_params(near)
    )
    top = max(points, key=lambda point: point.allocated_bytes)
    late = 2 * (top.time_ns - points[0].time_ns) > end - points[0].time_ns
    peak = (
        alt.Chart(
            _values(
                [
                    {
                        "ns": top.time_ns,
                        "bytes": top.allocated_bytes,
                        "label": f"peak {units.size(top.allocated_bytes)}",
                    }
                ]
            )
        )
        .mark_text(align="right" if late else "left", dy=-6, fontSize=12, fontWeight="bold")
        .encode(x=x, y=alt.Y("bytes:Q", **up), text="label:N")
    )
    band = (
        alt.Chart(_values(phases))
        .mark_rect()
        .encode(
            x=x,
            x2="end:Q",
            y=alt.value(0),
            y2=alt.value(12),
            color=_by_phase(known),
            tooltip=["phase:N", alt.Tooltip("time:N", title="for")],
            description="phase:N",
        )
    )
    every = len(anatomy.memory.timeline)
    said = f"{len(points)} of {every:,} points, the highest of each interval" if len(points) < every else ""
    layers = [areas, peak]
    if held:
        said += f"{'; ' if said else ''}the dashed line is the memory that the allocator has reserved"
        layers.append(
            alt.Chart(_values(held))
            .mark_line(
                color=_INK,
                strokeDash=[4, 3],
                strokeWidth=1,
                opacity=0.7,
                interpolate="step-after",
            )
            .encode(x=x, y=alt.Y("held:Q", **up))
        )
    made = alt.layer(*layers, line, band).resolve_scale(color="independent")
    return made.properties(width=_WIDTH, height=_CURVE_HEIGHT, title=said)


#: Rows of the map of segments.
_MAP_ROWS: Final = 24


def _segments(anatomy: Anatomy) -> Any:
    """Return the allocator's memory at the moment shown as a map: row by row, one span per component."""
    import altair as alt

    spans = anatomy.memory.spans
    if not spans:
        raise NoChart("only a memory snapshot has segments")
    whole = sum(span.bytes for span in spans)
    wide = -(-whole // _MAP_ROWS)
    rows: list[Datum] = []
    at = 0
    for span in spans:
        begin, end = at, at + span.bytes
        while begin < end:
            row = begin // wide
            stop = min(end, (row + 1) * wide)
            rows.append(
                {
                    "row": row,
                    "from": begin - row * wide,
                    "to": stop - row * wide,
                    "what": span.component.replace("_", " "),
                    "text": units.size(span.bytes),
                    "pool": span.pool,
                    "segment": span.segment,
                    "at": units.size(span.offset_bytes),
                    "blocks": span.blocks,
                }
            )
            begin = stop
        at = end
    found = {span.component for span in spans}
    looks = {name: look for name, look in _looks_of_components(anatomy).items() if name in found}
    shown = {name.replace("_", " "): look for name, look in {**looks, "free": "#e2e2e2"}.items()}
    held = anatomy.memory.held_bytes or whole
    moment = {"peak": "at the peak", "end": "at the end", "oom": "where memory ran out"}
    when = moment.get(anatomy.memory.moment or "", f"at {anatomy.memory.moment}")
    said = f"{units.size(whole)} {when}, {units.size(wide)} per row, the largest segments first"
    said += f"; {units.size(held - whole)} in smaller segments are not drawn" if held > whole else ""
    return (
        alt.Chart(_values(rows), title=said)
        .mark_rect(stroke="white", strokeOpacity=0.5, strokeWidth=0.3)
        .encode(
            x=alt.X("from:Q", axis=None, scale=alt.Scale(domain=[0, wide], nice=False)),
            x2="to:Q",
            y=alt.Y("row:O", axis=None),
            color=_coloured("what", shown, columns=4, symbolType="square"),
            tooltip=[
                "what:N",
                alt.Tooltip("text:N", title="bytes"),
                "blocks:Q",
                "pool:N",
                "segment:Q",
                alt.Tooltip("at:N", title="from"),
            ],
            description="what:N",
        )
        .properties(width=_WIDTH, height=12 * _MAP_ROWS)
    )


def thinned(points: Sequence[MemoryPoint], most: int) -> list[MemoryPoint]:
    """Return at most this many points: the first, the last, and the maximum of each equal part of the window."""
    if len(points) <= most:
        return list(points)
    first, span = points[0].time_ns, max(points[-1].time_ns - points[0].time_ns, 1)
    highest: dict[int, MemoryPoint] = {}
    for point in points[1:-1]:
        index = (point.time_ns - first) * (most - 2) // span
        if index not in highest or point.allocated_bytes > highest[index].allocated_bytes:
            highest[index] = point
    return [points[0], *highest.values(), points[-1]]


def _bands(points: Sequence[MemoryPoint]) -> Iterator[Datum]:
    """Yield the spans of the phases, each until the next begins."""
    begin = points[0]
    for point in (*points[1:], None):
        if point is not None and point.phase is begin.phase:
            continue
        end = points[-1].time_ns if point is None else point.time_ns
        yield {"ns": begin.time_ns, "end": end, "phase": begin.phase.value, "time": units.duration(end - begin.time_ns)}
        if point is not None:
            begin = point


def _components(anatomy: Anatomy) -> Any:
    """Return each component of the memory, measured and by theory."""
    import altair as alt

    rows: list[Datum] = [
        {"component": part.component.replace("_", " "), "by": by, "bytes": size, "text": units.size(size)}
        for part in anatomy.memory.components
        for by, size in (("measured", part.measured_bytes), ("theory", part.theory_bytes))
        if size
    ]
    if not rows:
        raise NoChart("no component of the memory has a known size")
    most = max(row["bytes"] for row in rows)
    names = list(dict.fromkeys(row["component"] for row in rows if row["bytes"] >= _LEAST_COMPONENT * most))
    small = len({row["component"] for row in rows}) - len(names)
    rows = [row for row in rows if row["component"] in names]
    hidden = f"{units.noun(small, 'component')} below {units.share(_LEAST_COMPONENT, 1)} of the largest"
    said = f"not drawn: {hidden}" if small else ""
    return (
        alt.Chart(_values(rows), title=said)
        .mark_bar()
        .encode(
            y=alt.Y("component:N", sort=names, title=None),
            yOffset=alt.YOffset("by:N", sort=["measured", "theory"]),
            x=alt.X("bytes:Q", axis=alt.Axis(**_bytes_axis(None))),
            color=_coloured(
                "by", {by: look for by, look in _OF_SOURCE.items() if any(row["by"] == by for row in rows)}
            ),
            tooltip=["component:N", "by:N", alt.Tooltip("text:N", title="bytes")],
            description="text:N",
        )
        .properties(width=_WIDTH - 160, height=34 * len(names))
    )


# ----- ranks


#: Maximum number of ranks and steps in the heat map; beyond it the slowest and evenly sampled others.
_MOST_RANKS: Final = 128
_MOST_STEPS: Final = 60


def _ranks(anatomy: Anatomy) -> Any:
    """Return the time of each rank and step, the part of it spent waiting for another rank, and who is waited for."""
    import altair as alt

    if len(anatomy.ranks) < 2:
        raise NoChart("the report has only one rank")
    rows: list[Datum] = []
    if anatomy.waiting is not None and any(rank.steps for rank in anatomy.waiting.each):
        each = _spread_out(anatomy.waiting.each, _MOST_RANKS, lambda rank: sum(step.wall_ns for step in rank.steps))
        for name, rank in ((name_of(rank), rank) for rank in each):
            for step in rank.steps[:_MOST_STEPS]:
                for figure, ns in (("step", step.wall_ns), ("waiting for other ranks", step.waiting_ns)):
                    rows.append(
                        {
                            "rank": name,
                            "step": str(step.number),
                            "figure": figure,
                            "ns": ns,
                            "text": units.duration(ns),
                            "share": units.share(ns, step.wall_ns),
                        }
                    )
            rows.append(
                {
                    "rank": name,
                    "step": "all",
                    "figure": "waited for by other ranks",
                    "ns": rank.charged_ns,
                    "text": units.duration(rank.charged_ns),
                    "share": "",
                }
            )
    else:
        known = _spread_out(
            [rank for rank in anatomy.ranks if rank.wall_ns], _MOST_RANKS, lambda rank: rank.wall_ns or 0
        )
        rows = [
            {
                "rank": name,
                "step": "mean",
                "figure": "step",
                "ns": rank.wall_ns,
                "text": units.duration(rank.wall_ns),
                "share": "",
            }
            for name, rank in ((name_of(rank), rank) for rank in known)
        ]
    if not rows:
        raise NoChart("no rank has a known step time")
    names = list(dict.fromkeys(row["rank"] for row in rows))
    steps = list(dict.fromkeys(row["step"] for row in rows if row["step"] != "all"))
    said = []
    if len(names) < len(anatomy.ranks):
        said.append(f"{len(names)} of {len(anatomy.ranks):,} ranks: the slowest, and an even sample of the others")
    if anatomy.waiting is not None and any(rank.steps[_MOST_STEPS:] for rank in anatomy.waiting.each):
        said.append(f"the first {_MOST_STEPS} steps")
    panels = []
    for figure, scheme in (
        ("step", "blues"),
        ("waiting for other ranks", "oranges"),
        ("waited for by other ranks", "reds"),
    ):
        own = [row for row in rows if row["figure"] == figure]
        if not own:
            continue
        longest = max(row["ns"] for row in own)
        panels.append(
            alt.Chart(_values(own), title=figure)
            .mark_rect(stroke=_INK, strokeOpacity=0.25, strokeWidth=0.5)
            .encode(
                x=alt.X("step:O", sort=[*steps, "all"], title="step", axis=alt.Axis(labelAngle=0)),
                y=alt.Y("rank:N", sort=names, title=None),
                color=alt.Color(
                    "ns:Q",
                    scale=alt.Scale(scheme=scheme, zero=True),
                    legend=alt.Legend(orient="bottom", **_time_axis(None, longest)),
                ),
                tooltip=[
                    "rank:N",
                    "step:N",
                    alt.Tooltip("text:N", title="time" if figure == "step" else figure),
                    alt.Tooltip("share:N", title="of the step"),
                ],
                description="text:N",
            )
            .properties(width=300, height=max(14 * len(names), 60))
        )
    made = alt.hconcat(*panels, spacing=40).resolve_scale(color="independent")
    return made.properties(title="; ".join(said)) if said else made


def _spread_out(ranks: Sequence[Any], most: int, time_of: Callable[[Any], float]) -> list[Any]:
    """Return at most this many ranks in order: half of them the slowest, the others evenly sampled."""
    if len(ranks) <= most:
        return list(ranks)
    slowest = sorted(range(len(ranks)), key=lambda index: -time_of(ranks[index]))[: most // 2]
    spread = (index * len(ranks) // (most - len(slowest)) for index in range(most - len(slowest)))
    return [ranks[index] for index in sorted({*slowest, *spread})]


# ----- two runs compared


#: Changes below this fraction of the largest one are merged.
_LEAST_CHANGE: Final = 0.01
_MOST_CHANGES: Final = 16


def _difference(comparison: Comparison) -> Any:
    """Return the way from the step before to the step after: a bar for each cause, which sum exactly.

    Of two memory snapshots it is that from peak to peak, by component.
    """
    import altair as alt

    parts, memory = comparison.decomposition, comparison.peak_parts
    text: Callable[[float], str]
    text_of_change: Callable[[float], str]
    if memory:
        before, measure = (
            sum(change.before_bytes for change in memory),
            "allocated" if comparison.peak_moments else "peak",
        )
        sums: dict[str, int] = {}
        for change in memory:
            sums[change.component] = sums.get(change.component, 0) + change.change_bytes
        groups = [(name.replace("_", " "), size) for name, size in sums.items() if size]
        text, text_of_change, axis, less, more = units.size, units.size_change, _bytes_axis, "less", "more"
    elif parts is not None:
        before, measure = parts.before_ns, "step"
        groups = [(group.name, group.change_ns) for group in groups_of(parts.parts) if group.change_ns]
        text, text_of_change, less, more = units.duration, units.duration_change, "shorter", "longer"
        axis = None
    else:
        raise NoChart("this chart needs two sides with similar steps")
    whole = sum(size for _, size in groups)
    groups = sorted(groups, key=lambda group: -abs(group[1]))
    largest = max((abs(size) for _, size in groups), default=0)
    steps = [(name, size) for name, size in groups if abs(size) >= _LEAST_CHANGE * largest][:_MOST_CHANGES]
    if rest := whole - sum(size for _, size in steps):
        steps.append((f"and {len(groups) - len(steps)} smaller", rest))
    claimed = bool(memory) or comparison.no_claim is None
    rows: list[Datum] = [{"what": "before", "from": 0, "to": before, "kind": measure, "text": text(before)}]
    at = before
    for name, size in steps:
        kind = less if size < 0 else more
        rows.append({"what": name, "from": at, "to": at + size, "kind": kind, "text": text_of_change(size)})
        at += size
    rows.append({"what": "after", "from": 0, "to": at, "kind": measure, "text": text(at)})
    names = [row["what"] for row in rows]
    ends = [row["to"] for row in rows]
    least, most = min(ends), max(ends)
    begin = max(0, least - (most - least) // 2) if least > 2 * (most - least) else 0
    said = [f"the axis starts at {text(begin)}"] if begin else []
    said += [] if claimed else [f"not tested for significance: {comparison.no_claim}"]
    base = alt.Chart(_values(rows))
    y = alt.Y("what:N", sort=names, title=None, axis=alt.Axis(labelLimit=360))
    shown = _time_axis(None, most) if axis is None else axis(None)
    x = alt.X("from:Q", axis=alt.Axis(**shown), scale=alt.Scale(domain=[begin, most], nice=False))
    bars = base.mark_bar(
        clip=True, stroke=_INK, strokeOpacity=0.4, strokeWidth=0.5, opacity=0.9 if claimed else 0.55
    ).encode(
        y=y,
        x=x,
        x2="to:Q",
        color=_coloured("kind", {measure: _GREY, less: "#009e73", more: "#d55e00"}),
        tooltip=[alt.Tooltip("what:N", title="part"), alt.Tooltip("text:N", title=measure)],
        description="text:N",
    )
    ends_at = base.transform_calculate(end="max(datum.from, datum.to)")
    labels = ends_at.mark_text(align="left", dx=4, fontSize=11).encode(y=y, x="end:Q", text="text:N")
    return (bars + labels).properties(width=_WIDTH - 300, height=24 * len(rows), title="; ".join(said))


# ----- techniques


def _techniques(report: Techniques) -> Any:
    """Return each technique's peak and time: the baseline's, the prediction with its range, the measurement."""
    import altair as alt

    names = [row.name for row in report.rows]
    panels: list[Any] = []
    for figure, text, axis, value_of in (
        ("peak", units.size, _bytes_axis, lambda figures: figures.peak_bytes),
        ("step time", units.duration, None, lambda figures: figures.step_ns),
    ):
        rows = list(_dumbbells(report, text, value_of, ranged=axis is None))
        if not rows:
            continue
        longest = max(row["value"] for row in rows)
        shown = {**(_time_axis(None, longest) if axis is None else axis(None)), "tickCount": 5}
        y = alt.Y(
            "technique:N",
            sort=names,
            title=None,
            scale=alt.Scale(domain=names),
            axis=alt.Axis(labels=not panels, ticks=not panels),
        )
        base = alt.Chart(_values(rows), title=figure)
        x = alt.X("value:Q", axis=alt.Axis(**shown))
        tip = ["technique:N", alt.Tooltip("by:N", title="as"), alt.Tooltip("text:N", title=figure)]
        dots = base.mark_point(filled=True, opacity=0.9).encode(
            y=y,
            x=x,
            tooltip=tip,
            description="text:N",
            color=_coloured("by", dict(zip(_BY, (_GREY, "#0072b2", "#d55e00"), strict=True))),
            shape=alt.Shape("by:N", sort=_BY, scale=alt.Scale(domain=list(_BY), range=["square", "diamond", "circle"])),
            size=alt.Size("by:N", sort=_BY, scale=alt.Scale(domain=list(_BY), range=[40, 170, 60])),
        )
        way = base.mark_line(color=_INK, opacity=0.5, strokeWidth=1).encode(y=y, x=x, detail="technique:N")
        layers = [way, dots]
        if ranges := [row for row in rows if "low" in row]:
            layers.insert(
                0,
                alt.Chart(_values(ranges))
                .mark_rule(opacity=0.6, strokeWidth=5, color="#56b4e9")
                .encode(y=y, x="low:Q", x2="high:Q", tooltip=[*tip, "range:N"]),
            )
        panels.append(alt.layer(*layers).properties(width=420, height=24 * len(names)))
    if not panels:
        raise NoChart("nothing was predicted or measured")
    return alt.hconcat(*panels, spacing=24)


_BY: Final = ("baseline", "predicted", "measured")


def _dumbbells(
    report: Techniques, text: Callable[[float], str], value_of: Callable[[StepFigures], float | None], *, ranged: bool
) -> Iterator[Datum]:
    """Yield each technique's points: the baseline's best known value, its predicted and its measured one."""
    begins = (value_of(known) for known in (report.baseline.measured, report.baseline.predicted) if known is not None)
    begin = next((value for value in begins if value is not None), None)
    for row in report.rows:
        known = {"predicted": row.predicted, "measured": row.measured}
        values = {by: value_of(figures) for by, figures in known.items() if figures is not None}
        for by, value in {"baseline": begin, **values}.items():
            if value is None:
                continue
            datum = {"technique": row.name, "by": by, "value": value, "text": text(value)}
            if ranged and by == "predicted" and row.predicted is not None and row.predicted.low_ns is not None:
                low, high = row.predicted.low_ns, row.predicted.high_ns or row.predicted.low_ns
                datum |= {"low": low, "high": high, "range": f"{text(low)} to {text(high)}"}
            yield datum


# ----- all of them


class Picture(Struct, frozen=True):
    """A chart of a kind of report: its function, its title, and a smaller variant for still images."""

    make: Callable[[Any], Any]
    title: str
    still: Callable[[Any], Any] | None = None


CHARTS: Final[Mapping[type[Report], Mapping[str, Picture]]] = {
    Anatomy: {
        "step": Picture(_step, "The parts of the step"),
        "advice": Picture(_advice, _TITLE_OF_ADVICE),
        "steps": Picture(_steps, "All recorded steps"),
        "run": Picture(_run, "The run, step by step"),
        "lanes": Picture(_lanes, "One step over time", still=partial(_lanes, most=_MOST_STILL)),
        "classes": Picture(_classes, "Classes by phase: time, FLOPs, bytes, backward/forward ratio"),
        "roofline": Picture(_roofline, "Operators under the roofline of the device"),
        "modules": Picture(_modules, "Modules: forward on the left, backward on the right"),
        "lines": Picture(_lines, "Lines of code by what they call: forward on the left, backward on the right"),
        "memory": Picture(_memory, "Allocated memory over the step, by component"),
        "segments": Picture(_segments, "Memory held by the allocator at the moment shown, by component"),
        "components": Picture(_components, "Memory by component"),
        "ranks": Picture(_ranks, "Time of each rank and step"),
    },
    Comparison: {"difference": Picture(_difference, "What changed from before to after")},
    Techniques: {"techniques": Picture(_techniques, "Peak memory and step time of each technique")},
}


# ----- still pictures, and the library that draws live ones


_IDS: Final = regex(r'(id="|url\(#)([a-z]+_?)(\d+)')


def still_of(chart: Chart, prefix: str = "") -> str:
    """Return a chart as SVG; its ids, which must be unique on a page, begin with `prefix`."""
    svg: str = _drawn_by("svg", chart.to_dict(validate=False))
    # The library numbers the ids of all pictures that a process makes.
    numbers = {found: index for index, found in enumerate(dict.fromkeys(found[1:] for found in _IDS.findall(svg)))}
    return _IDS.sub(lambda found: f"{found[1]}{prefix}{found[2]}{numbers[found[2], found[3]]}", svg)


def for_a_notebook(chart: Chart) -> Chart:
    """Return a chart that a notebook shows as SVG: altair's default loads a script from a CDN."""
    kind: Any = type(chart)
    object.__setattr__(chart, "__class__", _shown_still(kind))
    return chart


@cache
def _shown_still(kind: type[Chart]) -> type[Chart]:
    def shown(chart: Chart, *_: object, **__: object) -> dict[str, str]:
        return {"text/html": still_of(chart), "text/plain": kind.__name__}

    return type(kind.__name__, (kind,), {"__module__": kind.__module__, "_repr_mimebundle_": shown})


def png_of(chart: Chart, scale: float = 2) -> bytes:
    """Return a chart as PNG on white, with `scale` pixels per unit."""
    made: dict[str, Any] = chart.to_dict(validate=False)
    made["config"]["background"] = "white"
    png: bytes = _drawn_by("png", made, scale=scale)
    return png


def _drawn_by(kind: str, made: dict[str, Any], **more: float) -> Any:
    """Return a Vega-Lite chart as `svg` or `png`; raise `OpanatomyError` for a number that JavaScript cannot hold."""
    import vl_convert

    try:
        return getattr(vl_convert, f"vegalite_to_{kind}")(made, vl_version=_version(), **more)
    except ValueError as error:
        raise OpanatomyError(f"a chart cannot be drawn: {error} - use -f text") from error


def _version() -> str:
    """Return the Vega-Lite version that altair targets."""
    from altair import SCHEMA_VERSION

    return ".".join(SCHEMA_VERSION.removeprefix("v").split(".")[:2])


def library() -> str:
    """Return the script that renders charts on a page: Vega, Vega-Lite and Vega-Embed; cached once built."""
    from importlib.metadata import version

    import vl_convert

    folder = cache_folder("charts")
    kept = None if folder is None else folder / f"vega-{version('vl-convert-python')}-{_version()}.js"
    if kept is not None:
        with suppress(OSError):
            return kept.read_text("utf-8")
    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=_version())
    if kept is not None:
        with suppress(OSError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            with replacing(kept) as partial:
                partial.write_text(script, "utf-8")
    return script
