"""The ledger of device work, and what second sources say of the figures."""

from __future__ import annotations

from functools import partial
from typing import Final

from opanatomy.report.glossary import figures_ledger as figures
from opanatomy.report.glossary.term import Chapter, Term, term

LEDGER: Final = Chapter(
    title="The ledger",
    sections=("ledger",),
    terms=(
        term("ledger | work", "where each nanosecond of device work went: the terms sum to it exactly",
             formula="device_work = linked + graph_launched + no_launch_record + outside_window: ledger.*_ns",
             worked=figures.balance),
        term("device work", "the sum of all kernels, copies and fills of the trace; on the CPU the self times of"
             " operators"
             " that compute", formula="ledger.device_work_ns", worked=figures.balance),
        term("linked to operators | linked", "device work whose launch lies inside an operator's call",
             formula="ledger.linked_ns", worked=partial(figures.linked, name="linked_ns")),
        term("launched by graphs", "device work of a CUDA graph: its launch names the graph, not the operators",
             formula="ledger.graph_launched_ns", worked=partial(figures.linked, name="graph_launched_ns")),
        term("without launch record", "device work whose launch the trace does not have",
             formula="ledger.no_launch_record_ns", worked=partial(figures.linked, name="no_launch_record_ns")),
        term("outside the window", "device work that was launched before the first step or after the last",
             formula="ledger.outside_window_ns", worked=partial(figures.linked, name="outside_window_ns")),
        term("classed", "the share of the work inside the window whose class a rule knows",
             formula="ledger.classed_ns / (device_work_ns - outside_window_ns)",
             worked=partial(figures.part, name="classed")),
        term("costed", "the share of the work inside the window whose FLOPs and bytes a formula knows",
             formula="ledger.costed_ns / (device_work_ns - outside_window_ns)",
             worked=partial(figures.part, name="costed")),
        term("unknown", "the share of the work inside the window that no rule knows, and its names",
             "`explain --unknown REPORT` lists all of them.",
             formula="ledger.unknown_ns / (device_work_ns - outside_window_ns)",
             worked=partial(figures.part, name="unknown")),
        term("no formula", "what has a class and no cost: operators, work of graphs by the names of kernels, and work"
             " without an operator, with their shares of the time",
             formula="operators[] where flops is null, kernels[] where operators is empty, and what is left of"
             " device_work - outside_window - costed - unknown"),
        term("counting | conventions", "how the figures are counted", formula="conventions"),
        term("multiply-add", "a multiplication and an addition count as 2 FLOPs", formula="conventions.multiply_add"),
        term("causal", "full: FLOPs of attention are those of the whole matrix, whatever a mask leaves out",
             formula="conventions.causal; operators[].causal_flops has those under the mask"),
    ),
)  # fmt: skip

#: What each check compares, with what.
_OF_CHECK: Final = {
    "call counts": "calls of each operator by phase, against a dispatch mode that watched a step of the warm-up",
    "contraction FLOPs": "FLOPs of contractions, against torch.utils.flop_counter's formulas on the shapes of a watched"
    " step",
    "operator times": "time of each operator, against key_averages of the same profile",
    "composite FLOPs": "FLOPs of a contraction, against those of the operator that calls it, by its own arguments",
    "operator events": "operators of contractions, against Kineto's own numbers of them",
    "device work of contractions": "device work of contractions, against the events of their operators",
    "backward contractions": "FLOPs of a contraction in backward, against the forward of the same autograd node",
    "forward contractions": "contractions in forward, against the backward nodes that ran",
    "phases of contractions": "the phase of a contraction, against the structure of autograd",
    "annotated phases": "phases, against the trace's own annotations of them",
    "classes of kernels": "the class of a kernel by its name, against that of the operator that launched it",
    "order on streams": "the order in which a stream ran its work, against that of the launches",
    "clocks of host and device": "when work ran, against its launch and against calls that waited for it",
    "device work of launches": "launches, against the device work that they start",
    "device events": "device work, against other work that its stream ran at the same time",
    "ceiling": "times, against the least time at the ceilings: what is faster needs a reason",
    "memory peak": "the peak, against the allocator's own figure",
    "allocated before the step": "what is allocated before the step, against the allocator's own figure",
    "allocated bytes": "the sum of the blocks at each event, against the allocator's own total",
    "communicated bytes": "the messages of a step, against what the ranks must exchange by what they share",
    "parts of steps": "the parts of a step of a rank, against the union of all work of the step",
}


def _check_terms() -> tuple[Term, ...]:
    return tuple(
        term(name, f"a check: {meaning}", formula=f'checks[quantity = "{name}"]',
             worked=partial(figures.check, quantity=name))
        for name, meaning in _OF_CHECK.items()
    )  # fmt: skip


CHECKS: Final = Chapter(
    title="Second sources",
    sections=("ledger", "caveats", "disagreements", "given-ceilings"),
    terms=(
        term("caveats", "what changes the reading of every figure: a file that is cut off, records or ranks that are"
             " missing, devices of several kinds", formula="caveats"),
        term("given-ceilings", "ceilings of --peak and --bandwidth that the trace is above",
             "The option is most likely too low. It is no second source: what is known of the device otherwise is what"
             " the check `ceiling` compares with.", formula="device.exceeded"),
        term("may be wrong | disagreements", "figures that a second source does not confirm, and no known cause"
             " explains: of each check the one that touches most, where all of them together touch 1 % of the work or"
             " more", "The share is that of the device work (on the CPU of the operators' time) of the calls that a"
             " difference touches, without a time the part by which the figures differ.",
             formula="checks[].differences where cause is null", worked=figures.confirmed),
        term("below 1 %", "the same of checks whose differences together touch less: the first screen does not say it,"
             " and --check does not fail", formula="checks[].differences where cause is null"),
        term("uncertain", "each difference of a check that touches 1 % or more, and what can be looked up of it",
             formula="checks[].differences[].time_ns, .evidence"),
        term("confirmed", "how many figures second sources confirm; of a check that does not confirm all, how many",
             formula="sum of checks[].equal", worked=figures.confirmed),
        term("explained", "differences of a known cause: the operators and the cause; where the ledger is asked for",
             formula="checks[].differences where cause is not null"),
        term("unchecked", "what no second source covers, and why", formula="checks[].not_checked"),
        *_check_terms(),
    ),
)  # fmt: skip
