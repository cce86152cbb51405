"""List every line and column that the report prints: its meaning and its formula.

It is the single source for `opanatomy explain`, for the lists of terms in docs/, and for the notes below the report's
tables. Anything new on the page needs one entry in the chapter of its section.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from opanatomy.analysis.advice import RULES, Rule
from opanatomy.records.taxonomy import OperatorClass, Phase

# An entry of the glossary: the names of a line or column of the report, its meaning, its formula.


class Term(Struct, frozen=True, kw_only=True):
    """One line or column of the report.

    `names` are its names in the report, the usual one first; `{}` is a placeholder for a varying word. `meaning` is one
    short clause, as in the note below a table, without a full stop; `note` is the whole note if that is not "name:
    meaning". `more` is further text for `opanatomy explain`, `formula` its derivation from keys of the JSON report.
    """

    names: tuple[str, ...]
    meaning: str
    more: str = ""
    formula: str = ""
    paths: tuple[str, ...] = ()
    note: str = ""

    @property
    def title(self) -> str:
        """Return the usual name, with `...` for a word that differs."""
        return self.names[0].replace("{}", "...")


class Chapter(Struct, frozen=True, kw_only=True):
    """The terms of some sections of the report, named in `sections`; terms without sections may occur anywhere.

    `page` is the page of docs/ that lists them.
    """

    title: str
    sections: tuple[str, ...] = ()
    page: str | None = "report.md"
    terms: tuple[Term, ...]


def term(
    names: str,
    meaning: str,
    more: str = "",
    *,
    formula: str = "",
    paths: str = "",
    note: str = "",
) -> Term:
    """Make an entry; `names` are divided by ` | `."""
    return Term(
        names=tuple(names.split(" | ")),
        meaning=meaning,
        more=more,
        formula=formula or paths,
        paths=tuple(paths.split(", ")) if paths else (),
        note=note,
    )


# Time, FLOPs and bytes: columns of many tables, classes and phases, operators, backward over forward, the roofline.


COLUMNS: Final = Chapter(
    title="Columns of many tables",
    terms=(
        term(
            "time",
            "sum of kernels, copies and fills; on the CPU self time of operators that compute",
            "Per step: the sum over the steps that count, on all ranks, divided by their number.",
            formula="sum of classes[].time_ns, operators[].time_ns, kernels[].time_ns, modules[].time_ns",
            paths="classes[].time_ns, operators[].time_ns, kernels[].time_ns, modules[].time_ns",
        ),
        term(
            "share",
            "fraction of the time of all classes",
            formula="time_ns / (sum of classes[].time_ns)",
            paths="classes[].time_ns",
        ),
        term(
            "FLOP share",
            "fraction of the FLOPs of all classes",
            "Shown if FLOPs are known for at least half of the time.",
            formula="flops / (sum of classes[].flops)",
            paths="classes[].flops",
        ),
        term(
            "calls",
            "number of calls of an operator or collective, without calls inside another call",
            formula="classes[].calls, operators[].calls where part_of is null",
            paths="classes[].calls, operators[].calls",
        ),
        term(
            "FLOP | FLOPs | flops",
            "floating-point operations by formula: a multiply-add is 2, masked elements count",
            "`opanatomy explain OPERATOR` shows each formula.",
            formula="sum of classes[].flops",
            paths="classes[].flops",
        ),
        term(
            "bytes",
            "the least data to move: each distinct input read once, each output written once",
            "For a collective, the size of its messages; for memory, the allocated bytes.",
            formula="read_bytes + written_bytes",
            paths="classes[].read_bytes, classes[].written_bytes",
        ),
        term(
            "FLOP/B | intensity | arithmetic intensity",
            "FLOPs over bytes: the arithmetic intensity",
            "Left out if FLOPs are known for less than half of the time.",
            formula="flops / (read_bytes + written_bytes)",
            paths="classes[].flops, classes[].read_bytes, classes[].written_bytes",
        ),
        term(
            "FLOP/s",
            "FLOPs per second, over the time whose FLOPs are known",
            "Omitted for operators if that is less than half of their time.",
            formula="10^9 x flops / (time_ns - uncosted_ns)",
            paths="classes[].flops, classes[].time_ns, classes[].uncosted_ns",
        ),
        term(
            "B/s",
            "bytes per second, over the time whose bytes are known",
            "A lower bound of the traffic, since bytes are the minimum. Omitted for operators if they are known for"
            " less"
            " than half of their time.",
            formula="10^9 x (read_bytes + written_bytes) / (time_ns - uncosted_ns)",
            paths="classes[].read_bytes, classes[].written_bytes, classes[].time_ns, classes[].uncosted_ns",
        ),
        term("phase", "part of the step, see Phases"),
        term(
            "class | operator class",
            "kind of arithmetic, see Operator classes",
            "The first three classes are those of Ivanov et al., arXiv 2007.00072. A rule for the name decides;"
            " `opanatomy explain OPERATOR` shows it.",
        ),
        term("total", "sum of the rows above"),
        term("type", "data type of the elements"),
        term(
            "ranks",
            "number of ranks that take part; ~ if the trace names no group",
            "Without a group, all ranks are assumed.",
        ),
        term(
            "formula",
            "value computed from the sizes of model and batch",
            "In the letters of the literature: b batch, s length, h hidden, a heads, L layers, V vocabulary.",
        ),
        term("and {} more", "sum of the rows not listed; --top lists more, -f json all"),
        term(
            "≥",
            "some of the time has no formula",
            "A lower bound; left out if most of the time has no formula. Where the trace lacks device work, calls,"
            " FLOPs, bytes and MFU are lower bounds too.",
            note="≥ some of the time has no formula",
        ),
        term("-", "unknown, or nothing to compare with"),
        term(
            "(n %)",
            "reached in the n % of the time whose bound is known",
            "`61.2 % (84 %)`: 61.2 % of the peak is reached in 84 % of the time. Omitted below half.",
            formula="(sum of classes[].bounded_ns) / (sum of classes[].time_ns)",
            paths="classes[].bounded_ns, classes[].time_ns",
        ),
        term(
            "per step, mean of {} | per step of a rank, mean of {} | per step",
            "sums over the steps that count, on all ranks, divided by their number",
            "Parts sum to their whole.",
            formula="x / step.count",
            paths="step.count",
        ),
        term("all {} steps together | all steps", "sums over all profiled steps", paths="step.count"),
        term("columns hidden at this width", "those that do not fit the terminal"),
    ),
)

_OF_CLASS: Final = {
    OperatorClass.TENSOR_CONTRACTION: (
        "tensor contraction | contraction",
        "products summed over an index: matrix multiplications, convolutions, attention",
    ),
    OperatorClass.STATISTICAL_NORMALIZATION: (
        "statistical normalization | normalization",
        "reductions and divisions by them: softmax, norms, losses, sums, pooling",
    ),
    OperatorClass.ELEMENTWISE: (
        "element-wise | elementwise",
        "maps: activations, dropout, residuals, biases, the optimizer's update",
    ),
    OperatorClass.DATA_MOVEMENT: ("data movement", "copies, fills, transposes, look-ups: bytes and no arithmetic"),
    OperatorClass.COMMUNICATION: ("communication", "collectives and messages between ranks"),
    OperatorClass.OTHER: ("other", "known, but in no other class: sorting, sampling, scans, decompositions"),
    OperatorClass.UNKNOWN: ("unknown", "names without a rule; `explain --unknown REPORT` lists them"),
}


def _class_terms() -> tuple[Term, ...]:
    return tuple(
        term(
            names,
            meaning,
            formula=f'classes[] where operator_class is "{item}"',
            paths=f"classes[operator_class={item}].time_ns, classes[operator_class={item}].flops",
        )
        for item, (names, meaning) in _OF_CLASS.items()
    )


CLASSES: Final = Chapter(
    title="Operator classes",
    sections=("classes", "ratios", "paper", "operators", "bounds", "kernels", "modules"),
    terms=(*_class_terms(),),
)

_OF_PHASE: Final = {
    Phase.FORWARD: "the model's forward and the loss",
    Phase.BACKWARD: "autograd: gradients of weights and activations",
    Phase.RECOMPUTE: "forward run again inside backward by checkpointing",
    Phase.OPTIMIZER: "the update of the weights, with clipping and unscaling",
    Phase.PREFILL: "of a generation: up to the first new token",
    Phase.DECODING: "of a generation: everything after the first new token",
    Phase.OTHER: "anything else: loading, metrics, evaluation under no_grad",
}

PHASES: Final = Chapter(
    title="Phases",
    sections=(
        "classes",
        "operators",
        "bounds",
        "communication-phases",
        "communication-modules",
        "memory-peak",
        "step",
        "idle",
        "modules",
    ),
    terms=tuple(
        term(
            str(phase),
            meaning,
            formula=f'classes[] where phase is "{phase}"',
            paths=f"classes[phase={phase}].time_ns, classes[phase={phase}].flops",
        )
        for phase, meaning in _OF_PHASE.items()
    ),
)

RATIOS: Final = Chapter(
    title="Backward over forward",
    sections=("ratios", "paper"),
    terms=(
        term(
            "backward / forward | backward over forward",
            "backward time, with recompute, over forward time of a class",
            "There is no ratio of FLOPs or bytes if a call in either phase has no cost, and no ratio at all if forward"
            " takes less than 1 % of backward. Classes of less than 1 % of the time are left out and named"
            " below.",
            formula="(sum over phases backward and recompute) / (sum over phase forward), of classes[].time_ns,"
            " flops, read_bytes + written_bytes",
            paths="classes[].time_ns, classes[].flops, classes[].read_bytes, classes[].written_bytes",
        ),
        term(
            "FLOP theory | bytes theory | theory",
            "ratio that theory predicts for this step",
            "2 for contractions if all weights and inputs need gradients (3 with checkpointing), 1.5 in bytes for"
            " maps and norms. Each forward product counts its backward's, one for the weight and one for the input if"
            " these need a gradient.",
            paths="ratios[].theory_flops, ratios[].theory_bytes",
        ),
        term("-", "part of it has no formula, or forward takes less than 1 % of backward"),
        term(
            "the paper's classes",
            "shares of the first three classes next to the paper's",
            "Shares of the three among themselves, without the optimizer.",
            formula="(sum of flops, of time_ns, of the class) / (sum over the three classes), phase not optimizer",
            paths="classes[].flops, classes[].time_ns",
        ),
        term(
            "FLOP paper | time paper | paper",
            "arXiv 2007.00072, BERT-large encoder layer, V100",
            "Contractions have 99.80 % of the FLOPs, normalizations 0.17 %, element-wise maps 0.03 %; of the time"
            " 61.0 %, 25.5 %, 13.5 %.",
        ),
    ),
)

OPERATORS: Final = Chapter(
    title="Operators, kernels, modules, lines",
    sections=("operators", "kernels", "modules", "lines"),
    terms=(
        term(
            "operator | operators",
            "operators that take the most time, by phase, including their parts",
            "All signatures of a phase together. Of nested operators that compute, the outermost is the call: its"
            " class and cost cover everything that runs below it. A copy inside aten::addmm is part of the addmm."
            " `aten::` is left out if room is short.",
            formula="operators[] by part_of or operator, phase",
            paths="operators[].operator",
        ),
        term(
            "kernel | kernels",
            "device work by name, classified by that name alone",
            formula="kernels[].time_ns, .count, .operators",
            paths="kernels[].time_ns, kernels[].count, kernels[].operators",
        ),
        term(
            "module | modules",
            "work of a module, with its submodules",
            "The JSON report has each module without its submodules.",
            formula="modules[].time_ns, .flops by module, phase and class",
            paths="modules[].time_ns, modules[].flops",
        ),
        term(
            "line | lines",
            "line of your code that work comes from",
            "Backward work counts for the line of its forward, library work for the line that calls it. --lines runs"
            " one extra step for this, line by line; a trace with Python stacks has only the lines where functions"
            " begin.",
            formula="lines[].time_ns by the last line of stack",
            paths="lines[].stack, lines[].time_ns",
        ),
        term("function", "function of the line", paths="lines[].stack"),
        term(
            "with calls",
            "time of the line and everything it calls",
            formula="lines[].time_ns of all stacks that the line is in",
            paths="lines[].stack, lines[].time_ns",
        ),
        term(
            "no line known",
            "work whose line is unknown",
            formula='lines[] where stack is ""',
            paths="lines[].time_ns",
        ),
        term(
            "count",
            "runs of the kernel in a step",
            formula="kernels[].count / step.count",
            paths="kernels[].count, step.count",
        ),
        term("launched by", "operator that launched the kernel; none if a graph did", paths="kernels[].operators"),
        term(
            "launched by graphs",
            "device work of graphs, which no operator launched",
            formula="the lesser of ledger.graph_launched_ns and ((sum of classes[].time_ns) - (sum of"
            " operators[].time_ns) - ledger.no_launch_record_ns), / step.count",
            paths="ledger.graph_launched_ns, classes[].time_ns, operators[].time_ns, ledger.no_launch_record_ns,"
            " step.count",
        ),
        term(
            "without an operator",
            "device work that no operator call launched",
            formula="((sum of classes[].time_ns) - (sum of operators[].time_ns) - what is launched by graphs) /"
            " step.count",
            paths="classes[].time_ns, operators[].time_ns, step.count",
        ),
        term(
            "without a kernel",
            "work that is no device event: collectives on the host's threads",
            formula="((sum of classes[].time_ns) - (sum of kernels[].time_ns)) / step.count",
            paths="classes[].time_ns, kernels[].time_ns, step.count",
        ),
        term(
            "outside modules",
            "work in no module's range: the loss, the optimizer, between steps",
            formula="((sum of classes[].time_ns) - (sum of modules[].time_ns)) / step.count",
            paths="classes[].time_ns, modules[].time_ns, step.count",
        ),
        term(
            "fwd FLOP | bwd FLOP | prefill FLOP | decode FLOP",
            "FLOPs of the module and its submodules in that phase; backward with recompute",
            formula="(sum of modules[].flops by phase) / step.count",
            paths="modules[].flops, step.count",
        ),
        term("signature", "shapes and data types of the arguments", paths="operators[].signature"),
        term("rule", "name rule that classified an operator or kernel", paths="operators[].rule, kernels[].rule"),
    ),
)

ROOFLINE: Final = Chapter(
    title="Roofline",
    sections=("bounds", "classes"),
    terms=(
        term(
            "roofline",
            "each class, then the operators with the most to gain, against the device's peaks",
            "Williams, Waterman and Patterson, 2009. Contractions are compared with the matrix units in the data"
            " type of their operands, everything else with the vector units; communication and copies across the"
            " host's link"
            " have no bound.",
        ),
        term(
            "bound",
            "the longer of FLOP / peak and bytes / bandwidth",
            "The minimum time of a call on this device, given its minimum bytes.",
            formula="max(flops / device.peak_flops_per_second[type], (read_bytes +"
            " written_bytes) / device.bandwidth_bytes_per_second)",
            paths="classes[].flops, device.peak_flops_per_second, classes[].read_bytes,"
            " classes[].written_bytes, device.bandwidth_bytes_per_second",
        ),
        term(
            "bound by",
            "compute, memory, or the share of the bound set by memory",
            formula="(sum of classes[].memory_bound_ns) / (sum of classes[].bound_ns)",
            paths="classes[].memory_bound_ns, classes[].bound_ns",
        ),
        term(
            "memory",
            "bytes / bandwidth is longer",
            formula='operators[].bound_by is "memory"',
            paths="operators[].bound_by",
        ),
        term(
            "compute",
            "FLOP / peak is longer",
            formula='operators[].bound_by is "compute"',
            paths="operators[].bound_by",
        ),
        term(
            "of peak",
            "bound / time; where memory bounds, the paper's MUE",
            "For calls whose bound is known. Only hardware counters could tell needless traffic from"
            " unreached bandwidth. Above 100 % the note says why: the share under a causal mask, tensors that the last"
            " cache may serve, ... Such operators are in `checks` of the JSON report too, quantity `ceiling`.",
            formula="(sum of bound_ns) / (sum of bounded_ns; of operators time_ns - uncosted_ns)",
            paths="classes[].bound_ns, classes[].bounded_ns, classes[].time_ns, classes[].uncosted_ns, device.above",
        ),
        term(
            "headroom",
            "time - bound",
            "By operator and phase, never below 0: fusion or a better kernel could gain it.",
            formula="sum of classes[].headroom_ns",
            paths="classes[].headroom_ns",
        ),
        term(
            "MUE",
            "the paper's memory usage efficiency: the `of peak` column for memory-bound work",
            "(least bytes / bytes moved) x (bandwidth reached / peak): the bytes really moved cancel.",
            formula="least bytes / (time x peak bandwidth)",
            paths="communication.phases[].bytes",
        ),
    ),
)


# Collectives, communication by phase and module, ranks, waiting.


COMMUNICATION: Final = Chapter(
    title="Communication",
    sections=("collectives", "communication-phases", "communication-modules"),
    terms=(
        term(
            "collective",
            "all reduce, all gather, reduce scatter, all to all, ..., by data type and ranks",
            "Their times sum to the class communication exactly. Name, size and group are from `record_param_comms`"
            " and NCCL's kernels (torch 2.2 and later); older traces have shapes and no group. On the CPU each"
            " annotation of gloo is joined to its operator of c10d by order, kind and size: gloo runs a"
            " reduce-scatter as an all-reduce.",
            formula="collectives[]",
            paths="collectives[].collective",
        ),
        term(
            "time",
            "time of the collective's kernels; by phase, their union",
            formula="collectives[].time_ns; communication.phases[].running_ns",
            paths="collectives[].time_ns, communication.phases[].running_ns",
            note="waiting for the slowest rank included",
        ),
        term(
            "bytes",
            "message sizes as nccl-tests counts them",
            "The bytes a rank sends in an all-reduce, ends up with in an all-gather, starts from in a reduce-scatter.",
            paths="collectives[].bytes",
        ),
        term(
            "bus | bus bandwidth",
            "bytes per second on the links",
            "The bus carries 2 (n - 1) / n of the size in an all-reduce, (n - 1) / n in an all-gather,"
            " reduce-scatter and all-to-all, all of it in a broadcast. Waiting is in the time: this bandwidth was"
            " reached; the links may do more.",
            formula="10^9 x factor x bytes / collectives[].sized_ns",
            paths="communication.phases[].bytes, collectives[].sized_ns",
        ),
        term(
            "~", "the trace names no group: all ranks are taken", note="~ the trace names no group: all ranks are taken"
        ),
        term(
            "communication",
            "union of each phase's collectives",
            "Only the steps' own collectives count: other steps' work is in neither number.",
            paths="communication.phases[].running_ns",
        ),
        term(
            "hidden",
            "share of it that overlaps other work of the rank",
            formula="(running_ns - exposed_ns) / running_ns",
            paths="communication.phases[].running_ns, communication.phases[].exposed_ns",
        ),
        term(
            "exposed",
            "nothing else ran at the same time",
            "No work of the rank hides it; waiting for other ranks is included.",
            paths="communication.phases[].exposed_ns, communication.exposed_ns",
        ),
        term(
            "together",
            "all phases; overlapping time counts once",
            paths="communication.running_ns, communication.exposed_ns",
        ),
        term(
            "communicated for",
            "module whose weights are gathered or gradients reduced",
            paths="communication.modules[].module",
        ),
        term("(the model)", "work outside the model's parts, or in no module's range"),
        term(
            "host time of launching | the host took {} to launch them",
            "host time spent launching collectives",
            formula="sum of communication.phases[].launching_ns",
            paths="communication.phases[].launching_ns",
        ),
        term(
            "messages by theory | messages of a step of a rank by theory",
            "bytes that a step must exchange, next to the measured bytes",
            "DDP must reduce each gradient once, in the last micro-step. FSDP2 must gather each module's weights for"
            " forward and, unless it keeps them, for backward, and reduce and scatter their gradients, padded to"
            " equal parts. On the links that is 2 (n - 1) / n and (n - 1) / n of it. The check `communicated bytes`"
            " holds every message against this.",
            formula="communication.expected[].expected_bytes, .measured_bytes, .wire_bytes",
            paths="communication.expected[].expected_bytes, communication.expected[].measured_bytes,"
            " communication.expected[].wire_bytes",
        ),
    ),
)

RANKS: Final = Chapter(
    title="Several ranks",
    sections=("ranks",),
    terms=(
        term(
            "a step of rank",
            "mean step of each rank; with more than 16, of groups of similar ranks",
            "A group is the most typical rank, whose times are nearest to the medians, and all ranks whose times"
            " differ from it by at most 5 % of the median step; the next group is made in the same way from the ranks"
            " left over. A group's times are medians.",
            formula="ranks[].wall_ns; the other times are sums / ranks[].steps",
            paths="ranks[].wall_ns, ranks[].steps",
        ),
        term("step", "mean step of the rank", paths="ranks[].wall_ns"),
        term(
            "own",
            "the step less exposed communication",
            "The rank's own work, while others may be waiting for it.",
            formula="ranks[].wall_ns - (ranks[].exposed_communication_ns / ranks[].steps)",
            paths="ranks[].wall_ns, ranks[].exposed_communication_ns, ranks[].steps",
        ),
        term(
            "busy",
            "union of the rank's device work",
            formula="ranks[].busy_ns / ranks[].steps",
            paths="ranks[].busy_ns, ranks[].steps",
        ),
        term(
            "kernels",
            "sum of the rank's device work",
            formula="ranks[].kernel_time_ns / ranks[].steps",
            paths="ranks[].kernel_time_ns, ranks[].steps",
        ),
        term(
            "comm",
            "union of the rank's communication",
            formula="ranks[].communication_ns / ranks[].steps",
            paths="ranks[].communication_ns, ranks[].steps",
        ),
        term(
            "exposed",
            "communication that nothing hides",
            formula="ranks[].exposed_communication_ns / ranks[].steps",
            paths="ranks[].exposed_communication_ns, ranks[].steps",
        ),
        term(
            "idle",
            "time without device work",
            formula="ranks[].idle_ns / ranks[].steps",
            paths="ranks[].idle_ns, ranks[].steps",
        ),
        term("min", "minimum over the ranks", paths="spread[].min_ns"),
        term("median", "median over the ranks", paths="spread[].median_ns"),
        term("max", "maximum over the ranks", paths="spread[].max_ns"),
        term(
            "longest step | slowest",
            "rank with the longest step",
            "If ranks wait for each other in collectives, their steps are equally long; then the section waiting tells"
            " them apart, or the column own if no collective can be matched.",
            formula="spread[figure = step].max_rank",
        ),
    ),
)

WAITING: Final = Chapter(
    title="Waiting",
    sections=("waiting-steps", "matched"),
    terms=(
        term(
            "a step of rank",
            "mean step of each rank, in parts that sum to it",
            formula="step = other work + transfer + waiting + unmatched + idle: waiting.each[].steps[]",
            paths="waiting.each[].steps[]",
        ),
        term("step", "mean of the rank's steps, without other steps' work", paths="waiting.each[].steps[].wall_ns"),
        term(
            "other work",
            "union of all work except communication",
            formula="other_work_ns",
            paths="waiting.each[].steps[].other_work_ns",
        ),
        term(
            "transfer",
            "exposed communication after the last rank began: data could flow",
            "Of several collectives at once transfer counts first, then waiting. Large uneven all-to-alls end at"
            " different times: their transfer is each rank's own.",
            formula="transfer_ns",
            paths="waiting.each[].steps[].transfer_ns",
        ),
        term(
            "waiting",
            "exposed communication until the last rank began",
            formula="waiting_ns",
            paths="waiting.each[].steps[].waiting_ns",
        ),
        term("transfer and waiting", "not hidden by other work"),
        term(
            "unmatched",
            "communication that is not matched with the other ranks'",
            "Collectives that lack a given rank, and everything sent between two ranks.",
            formula="unmatched_ns",
            paths="waiting.each[].steps[].unmatched_ns",
        ),
        term(
            "idle",
            "time without any work; on the CPU the framework's too",
            formula="idle_ns",
            paths="waiting.each[].steps[].idle_ns",
        ),
        term(
            "waited for",
            "by the other ranks, summed",
            "All waiting in a collective is charged to the rank that came last.",
            formula="waiting.each[].charged_ns / number of steps",
            paths="waiting.each[].charged_ns, waiting.each[].steps[].number",
        ),
        term(
            "straggler",
            "rank that the other ranks wait for",
            "Named if it causes at least a quarter of all waiting and twice as much as the next rank, if waiting is 1 %"
            " of the steps or more, if its lead exceeds the clock error, and if all ranks were given."
            " The waiting splits in two. There when its step began: the waiting less how much longer than the others"
            " it took from the beginning of its step to the launch of the collective. Came within the step: the rest."
            " If that is a tenth or more, the line gives the reason: it computes longer (a slow device, or more work)"
            " or is idle longer (a slow host), each by more than 1 % and by more than the clocks are known to.",
            formula="waiting.straggler.charged_ns / .waiting_ns",
            paths="waiting.straggler.charged_ns, waiting.straggler.waiting_ns",
        ),
        term(
            "lower bound",
            "some ranks were not given, and one of them may have come even later",
            paths="waiting.is_lower_bound",
        ),
        term(
            "collectives matched",
            "how the ranks' calls were matched: by number in the group, by order or by time",
            "By process group and number if the trace has both (`Seq`, NCCL in torch 2.13). Else by order in the"
            " group, at the shift at which all names and all sizes of even messages agree. Kernels launched before"
            " the recording are matched by collective, group, size and overlap in time.",
            formula="waiting.by_number, .by_order, .by_time",
            paths="waiting.by_number, waiting.by_order, waiting.by_time",
        ),
        term(
            "clocks",
            "whether the ranks' clocks agree, or were set by the ends of collectives",
            "Clocks stay if that puts the ends of short collectives as close together as setting them would. To"
            " within: how far nine in ten ends of short collectives are from their middle.",
            formula="waiting.clocks",
        ),
        term(
            "matched",
            "collectives matched over the ranks",
            formula="waiting.collectives[]",
            paths="waiting.collectives[].collective",
        ),
        term("number", "number of collectives", paths="waiting.collectives[].collectives"),
        term(
            "time",
            "transfer and waiting time, summed over all ranks",
            formula="waiting.collectives[].duration_ns = waiting.collectives[].transferring_ns + .waiting_ns",
            paths="waiting.collectives[].duration_ns, waiting.collectives[].transferring_ns,"
            " waiting.collectives[].waiting_ns",
        ),
        term("time and waiting", "sums over all ranks", note="time, waiting and bytes are sums over all ranks"),
        term(
            "bytes",
            "message sizes, summed over all ranks",
            "Counted as in the table of one rank's collectives.",
            paths="waiting.collectives[].bytes",
        ),
        term("bus", "bus bandwidth over the whole duration", paths="waiting.collectives[].bus_bytes_per_second"),
        term(
            "bus in transfer",
            "from the start of the last rank on",
            "The bus bandwidth while data could flow.",
            paths="waiting.collectives[].transfer_bus_bytes_per_second",
        ),
    ),
)


# Advice, the host, and the report of an experiment with techniques.


def _rule(rule: Rule) -> Term:
    """Make the entry of a rule of advice."""
    return term(
        rule.id.replace("_", " "),
        rule.title,
        f"It looks for {rule.looks_for}. Gained at most: {rule.bound}. It stays silent {rule.silent}, and below 2 % of"
        " the step.",
        paths="advice[].id, advice[].gain_ns",
    )


ADVICE: Final = Chapter(
    title="What to try",
    sections=("advice", "more-advice"),
    terms=(
        term(
            "advice | what to try | try",
            "what to change, the largest gain first",
            "Each piece says the most it could save, why, and what to try. It comes from a rule on the report's"
            " numbers."
            " `up to` is the most that a change could save per step, of time that no other rule covers."
            " `replayed` is what a replay of the trace predicts; two values are for the host as recorded, and for a"
            " host"
            " that recording does not slow down. The first screen has three, each with its first cure; the whole"
            " report has"
            " the whole reasons and all cures.",
            formula="advice[]",
            paths="advice[].id, advice[].gain_ns, advice[].replayed_ns, advice[].step_ns",
        ),
        term(
            "situation",
            "how the step is run",
            "What the trace shows about DDP, FSDP, tensor parallelism, a backward, a mask on attention's scores,"
            " compiled"
            " code, graphs, the loader, autocast, the update, copies, a serving engine and the ranks. Cures are chosen"
            " by it.",
            paths="situation.ddp, situation.fsdp, situation.tensor_parallel, situation.backward, situation.score_mask,"
            " situation.compiled, situation.cuda_graphs, situation.loader, situation.autocast, situation.optimizer,"
            " situation.pinned_copies, situation.pageable_copies, situation.serving, situation.training_mode,"
            " situation.ranks, situation.world_size",
        ),
        *map(_rule, RULES),
        term(
            "together",
            "what the first three pieces save together",
            "From a replay if it covers all of them, at most their sum. Otherwise the sum of their gains, at most"
            " the step.",
            paths="replay.together, advice[].gain_ns, advice[].step_ns",
        ),
        term(
            "out of memory",
            "what lowers the memory of a step",
            "Shown if a step ran out of memory or fills nine tenths of the device: from closed formulas for"
            " weights, gradients, state and activations.",
            paths="advice[].gain_bytes, advice[].peak_bytes, advice[].fits",
        ),
        term(
            "technique",
            "a technique, from a prediction",
            "For techniques that leave the training unchanged, or nearly so. The peak is that of all allocations;"
            " the gain"
            " in time is the best end of the predicted range."
            " `--suggest SECONDS` limits the time of the predictions (default: a tenth of the run's, 10 s at least).",
            paths="advice[].technique, advice[].gain_bytes, advice[].gain_ns",
        ),
    ),
)

HOST: Final = Chapter(
    title="The host",
    sections=("host",),
    terms=(
        term(
            "on the host",
            "events of the launching threads",
            "Operators, ranges and runtime calls. On the CPU, of the threads that run operators. A call that waits for"
            " the device is named with the outermost"
            " operator around it.",
            paths="host[].name, host[].caller",
        ),
        term(
            "what",
            "kind of event",
            "Operator, range, runtime call, Python, or others: all names with less than 0.1 % of the time.",
            paths="host[].kind",
        ),
        term("events", "how many, in a step", paths="host[].calls"),
        term(
            "self time",
            "without the events below",
            paths="host[].self_ns",
            note="self time: without the events below",
        ),
        term("with parts", "including the events below", paths="host[].total_ns"),
        term("share", "of these threads' time", formula="self_ns / (sum of host[].self_ns)", paths="host[].self_ns"),
        term(
            "between recorded events",
            "Python: no launching thread has an event",
            paths="host[].self_ns",
            note="between recorded events: Python",
        ),
    ),
)

ESTIMATES: Final = Chapter(
    title="Estimates",
    sections=("estimate",),
    page="estimate.md",
    terms=(
        term("estimate | estimated", "a step on a device that is not present: computed, not run"),
        term(
            "time",
            "the range in which a step in eager mode is expected",
            "Each call takes the longer of its FLOPs at the usual share of the peak and its bytes at the usual share"
            ' of the bandwidth, and 3 us; the host needs 18 to 150 us a launch. The longer sum is "as is"; the'
            " range is a factor of 1.26 around it, and not below what is attained.",
            formula="as_is_ns / 1.26, or attained_ns if that is more, to as_is_ns x 1.26",
            paths="estimated.devices[].low_ns, estimated.devices[].high_ns, estimated.devices[].as_is_ns",
            note="shares of peaks are fitted on published runs of dense decoders: docs/estimate.md has the errors",
        ),
        term(
            "attained",
            "the step at the fastest rates measured on the device by anyone, with free launches",
            paths="estimated.devices[].attained_ns",
        ),
        term("host", "the time the host needs to launch all work of a step", paths="estimated.devices[].host_ns"),
        term(
            "throughput",
            "tokens or samples per second, at both ends of the step's range",
            paths="estimated.devices[].tokens, estimated.devices[].samples",
        ),
        term(
            "share of peak",
            "MFU: FLOPs of contractions, without recomputation, over the peak, at the range's ends",
            paths="estimated.devices[].mfu",
        ),
        term(
            "fits | does not fit | at the edge",
            "whether the process fits into the memory left to it on the device",
            paths="estimated.devices[].occupied.fits",
        ),
        term("step", "the step that was computed", paths="workload.batch"),
        term("assumed", "defaults assumed for values you did not give", paths="estimated.assumed"),
        term(
            "formula",
            "training FLOPs per token, as a project counts them or as counted here",
            "Forward and backward without recomputation. `counted` sums the products of the step's calls, with all of"
            " attention or what a causal mask leaves; a fused attention's backward makes its scores again. The others"
            " are the formulas of nanoGPT, PaLM (appendix B), llm-foundry, torchtitan, Megatron-LM, and the Trainer's"
            " `total_flos`.",
            paths="estimated.conventions[].name, estimated.conventions[].mfu",
            note="compare MFUs from two projects only if both use the same formula",
        ),
        term(
            "at",
            "the rate used for FLOP/s and MFU",
            "In the middle of the estimate, or given by `--tokens-per-second`.",
            paths="estimated.tokens_per_second",
        ),
        term("FLOP/token", "FLOPs per token", paths="estimated.conventions[].flops"),
        term("FLOP/s", "FLOPs per second of a device, at that rate", paths="estimated.conventions[].flops_per_second"),
        term("counts", "what the formula counts", paths="estimated.conventions[].counts"),
        term("leaves out", "what the formula leaves out", paths="estimated.conventions[].leaves_out"),
        term(
            "together",
            "several equal devices, and the time of their collectives",
            "At the lower end of the range all of it is hidden behind other work, at the upper end none;"
            " tensor-parallel"
            " layers wait for each collective.",
            paths="estimated.devices[].ranks, estimated.devices[].transfer_ns",
        ),
        term(
            "checked on",
            "how estimates for this kind of step compare with published runs",
            "Kinds are dense decoders and encoders, mixtures of experts, adapters, convolutional networks. Runs used"
            " to fit the"
            " efficiencies are not among them.",
            paths="estimated.tried.kind, estimated.tried.runs, estimated.tried.inside, estimated.tried.median_off",
        ),
        term("on", "the device", paths="estimated.devices[].device"),
        term("from", "the lower end of the range", paths="estimated.devices[].low_ns"),
        term("to", "its upper end", paths="estimated.devices[].high_ns"),
        term("takes", "the most device memory the process takes", paths="estimated.devices[].occupied.high_bytes"),
    ),
)
TECHNIQUES: Final = Chapter(
    title="Techniques",
    sections=("experiment", "fits", "techniques", "predictions", "technique-memory", "not-run", "offenders", "advice"),
    page="techniques.md",
    terms=(
        term(
            "fits | does not fit | at the edge",
            "whether the process fits into the memory left to it on the named device",
            "The step runs on tensors without values that are said to be on that device: nothing is computed or"
            " allocated. At the edge are steps that fit only with the smallest context, or if the allocator returns"
            " unused memory. On the CPU it is the peak that counts.",
            formula="rows[].predicted.occupied.high_bytes <= limit.usable_bytes",
            paths="limit.usable_bytes, rows[].predicted.occupied.high_bytes, rows[].predicted.occupied.fits",
        ),
        term(
            "memory",
            "what the tensors take, in whole blocks, and what the allocator reserves for them",
            "The requests of the first two steps go through a model of torch's caching allocator: blocks of 512 bytes,"
            " segments of 2 and 20 MiB, work space of cuBLAS included. With"
            " `PYTORCH_ALLOC_CONF=expandable_segments:True` it reserves as those do.",
            paths="rows[].predicted.occupied.allocated_bytes, rows[].predicted.occupied.reserved_bytes",
        ),
        term("takes", "the most device memory the process takes", paths="rows[].predicted.occupied.high_bytes"),
        term("assumed", "defaults assumed for values you did not give", paths="limit.assumed"),
        term(
            "at the peak",
            "the components that are live at the predicted peak, largest first",
            paths="rows[0].predicted.at_peak",
        ),
        term(
            "largest batch",
            "the largest batch that fits even at the upper end of the prediction",
            "For this model and these options;"
            " `--find batch` computes it. A function gets it as its argument `batch`, else the first dimension"
            " of its inputs is changed.",
            paths="limit.found.value, limit.found.peak_bytes",
        ),
        term(
            "longest",
            "the longest samples that fit even at the upper end of the prediction",
            "In tokens, in steps of 64; `--find seq` computes it.",
            paths="limit.found.value, limit.found.peak_bytes",
        ),
        term(
            "recompute",
            "the fewest layers to recompute so that it fits",
            "`--find checkpointing` follows the step with the first 1, 2, 3, ... layers of each stack recomputed, then"
            " with all in segments, until one fits: the peak may rise from one to the next.",
            paths="limit.found.option, limit.found.recomputed, limit.found.tried",
        ),
        term(
            "the device's context",
            "memory that the device holds besides tensors",
            "Memory held by the driver and loaded kernels: on an H100 we measured 0.54 GB at first and 0.78 GB after"
            " a step.",
            note="the device's context is assumed; convolution workspaces come on top",
        ),
        term(
            "technique",
            "its name for `opanatomy techniques --only`; the first row is the baseline",
            paths="rows[].name",
        ),
        term("baseline", "the run as given; all others are compared to it", formula="rows[0]", paths="rows[0].name"),
        term(
            "peak",
            "the most that is allocated in the step, of all allocations",
            formula="rows[].measured.peak_bytes, of what was not run predicted.peak_bytes",
            paths="rows[].measured.peak_bytes",
        ),
        term(
            "d.peak",
            "peak relative to the baseline's",
            formula="(peak_bytes - baseline's) / baseline's",
            paths="rows[].measured.peak_bytes",
        ),
        term("step", "median step without the profiler", paths="rows[].measured.step_ns"),
        term(
            "d.step",
            "step relative to the baseline's; ~ if the repetitions' ranges overlap, or the machine was busy",
            formula="(step_ns - baseline's) / baseline's",
            paths="rows[].measured.step_ns",
        ),
        term(
            "step of the baseline", "median step of the baseline without the profiler", paths="rows[0].measured.step_ns"
        ),
        term(
            "peak of the baseline",
            "the most that is allocated in a step of the baseline",
            paths="rows[0].measured.peak_bytes",
        ),
        term(
            "samples",
            "samples of the baseline a second",
            formula="10^9 x rows[0].measured.samples / rows[0].measured.step_ns",
            paths="rows[0].measured.samples, rows[0].measured.step_ns",
        ),
        term("techniques", "number of techniques tried besides the baseline", formula="rows[1:]", paths="rows[].name"),
        term("figures", "whether figures are measured, or predicted and not run", paths="predicted_only"),
        term("repetitions", "how often each was timed, in random order", paths="repetitions, order"),
        term("seed", "seed of the order and the weights", paths="seed"),
        term("d.", "relative to the baseline"),
        term(
            "samples/s",
            "samples of the batch over the step",
            formula="10^9 x rows[].measured.samples / rows[].measured.step_ns",
            paths="rows[].measured.samples, rows[].measured.step_ns",
        ),
        term(
            "B/F FLOPs",
            "FLOPs of contractions in backward with recompute, over forward",
            formula="(flops.backward + flops.recompute) / flops.forward",
            paths="rows[].measured.flops",
        ),
        term("B/F", "backward with recomputation over forward"),
        term(
            "FLOPs",
            "FLOPs of contractions of the whole step, over the baseline's",
            formula="(sum of flops) / (the baseline's)",
            paths="rows[].measured.flops",
        ),
        term("~", "no difference beyond that of the repetitions"),
        term(
            "!",
            "the prediction does not agree, see the table of predictions",
            "Of memory if it is off by more than 2 %, of time if the measured change is out of its range.",
        ),
        term(
            "prediction of",
            "prediction made before the technique was run",
            formula="rows[].predicted",
            paths="rows[].predicted.step_ns, rows[].predicted.peak_bytes",
        ),
        term(
            "off by",
            "predicted over measured change",
            "Of memory predicted over measured peak, less one; of time the change from the baseline, which leaves"
            " out the machine's drift.",
            formula="(predicted.peak_bytes / measured.peak_bytes) - 1; ((predicted step / baseline's predicted) /"
            " (measured step / baseline's measured)) - 1",
            paths="rows[].predicted.peak_bytes, rows[].measured.peak_bytes, rows[].predicted.step_ns,"
            " rows[].measured.step_ns",
        ),
        term(
            "step of a prediction",
            "at the rates that the calls of the baseline reached",
            note="step: at the rates that the calls of the baseline reached",
        ),
        term("from", "the shortest predicted step", paths="rows[].predicted.low_ns"),
        term("to", "the longest predicted step", paths="rows[].predicted.high_ns"),
        term(
            "memory of",
            "each component at its largest in the step",
            formula="rows[].measured.components",
            paths="rows[].measured.components",
            note="each component at its largest in the step",
        ),
        term(
            "why not",
            "why it did not run, or could not be predicted",
            formula="rows[].failed, .not_predicted",
            paths="rows[].failed, rows[].not_predicted",
        ),
        term(
            "offenders | what made predictions wrong",
            "operators whose predicted and measured times are far apart",
            formula="rows[].offenders[]: measured_ns for predicted_ns",
            paths="rows[].offenders[].operator, rows[].offenders[].measured_ns, rows[].offenders[].predicted_ns",
        ),
        term("advice", "conclusions of the experiment, each with the option to add", paths="advice"),
    ),
)

SAME: Final = Chapter(
    title="The same training?",
    sections=("same-training", "losses"),
    page="techniques.md",
    terms=(
        term(
            "the same training?",
            "differences in units of rounding of float32, of one step without dropout from the same weights and data",
            "same, or DIFFERS with the first operator whose output is not the baseline's.",
            formula="rows[].sameness",
            paths="rows[].sameness.loss_units, rows[].sameness.gradient_units, rows[].sameness.weight_units",
            note="differences in units of rounding of float32, of one step without dropout from the same weights and"
            " data",
        ),
        term("loss", "distance of the losses, in units of rounding", paths="rows[].sameness.loss_units"),
        term("gradients", "distance of the gradients, in units of rounding", paths="rows[].sameness.gradient_units"),
        term("weights", "distance of the updated weights, in units of rounding", paths="rows[].sameness.weight_units"),
        term("worst gradient", "weight whose gradient is farthest apart", paths="rows[].sameness.worst_gradient.name"),
        term(
            "losses of",
            "losses of techniques that change the result, on one batch, without dropout",
            formula="rows[].losses",
        ),
        term("first", "loss of the first step", paths="rows[].losses.losses[0]"),
        term("last", "loss of the last step", formula="rows[].losses.losses[-1]", paths="rows[].losses.losses"),
        term(
            "baseline's",
            "the baseline's loss of the last step",
            formula="rows[].losses.baseline[-1]",
            paths="rows[].losses.baseline",
        ),
        term(
            "apart at most",
            "the largest difference of the two losses of a step, of the baseline's",
            formula="the largest of (|losses - baseline|) / (|baseline|), of rows[].losses",
        ),
    ),
)

UNDERFLOW: Final = Chapter(
    title="Gradients in float16",
    sections=("underflow",),
    page="techniques.md",
    terms=(
        term("gradients of", "gradient elements of a technique that computes in float16, at each scale of the loss"),
        term("loss scale", "factor of the loss; 1 is without scaling", paths="rows[].underflow.scaled.scale"),
        term(
            "zero",
            "elements exactly zero, of those that are not zero in the same step without autocast; without dropout",
            formula="rows[].underflow.scaled.zeros / rows[].underflow.nonzero",
            paths="rows[].underflow.scaled.zeros, rows[].underflow.nonzero",
        ),
        term("elements", "number of elements that become zero", paths="rows[].underflow.scaled.zeros"),
        term(
            "inf or NaN",
            "number of elements that overflow: the update is skipped",
            paths="rows[].underflow.scaled.not_finite",
        ),
    ),
)

COMPARISON: Final = Chapter(
    title="A comparison",
    sections=("changed", "sides", "causes", "changes", "kernels-changed", "steps", "figures", "gates", "classes"),
    page="comparing.md",
    terms=(
        term("before", "the first side's value, for its mean step"),
        term("after", "the second side's value, for its mean step"),
        term(
            "change",
            "after minus before; all parts sum to the step's change, to the nanosecond",
            "With the sides exchanged each part is its negative.",
        ),
        term(
            "steps",
            "the like steps that the means are taken over; the line names those set aside",
            "`opanatomy explain 'set aside'` has the rules.",
        ),
        term(
            "where the difference is from",
            "parts of the difference by cause and class",
            "On an accelerator step = other steps' work + idle time by cause + the time of all device events in the"
            " step - overlaps; on the CPU step = self times + framework + profiler.",
        ),
        term("and {} smaller", "parts that change by less than a thousandth of the largest change"),
        term("without a difference", "parts that take as long on both sides"),
        term("step", "mean like step, the sum of the parts"),
        term(
            "work",
            "operator, kernel or collective that changed",
            "Matched by operator, signature, module, phase and kernel name (aten contractions without it,"
            " Triton kernels without the compiler's number), then by ever fewer of these. Work of different classes is"
            " never matched. If one side alone knows the arguments of an operator, they are not asked for, and a"
            " warning says so.",
        ),
        term("what changed", "kind of change: more calls, moved, another kernel, new, gone, ..."),
        term("another kernel", "contraction for which the library chose another kernel"),
        term("side", "one of the runs"),
        term("time", "time of the like step"),
        term(
            "figure",
            "number for one step, by its name in `Anatomy.metrics()`",
            "≥ marks a lower bound (`lower_bounds`). Counted numbers, FLOPs and bytes, are `exact`:"
            " they are not tested.",
        ),
        term(
            "ranges",
            "whether the ranges of like steps are apart or overlap; from five runs a side on, p",
            "The runs must be interleaved. Numbers are then medians, with a 95 % interval from"
            " order statistics if there are six runs or more.",
        ),
        term(
            "the same calls | {}, the same calls", "the same number of calls of the same work, taking longer or shorter"
        ),
        term("more calls | {}, more calls", "time of calls that the other side lacks"),
        term("fewer calls | {}, fewer calls", "time of calls that are gone"),
        term("moved | moved from {} | {}, moved from {} to {}", "the same work in another phase"),
        term(
            "other arguments | {}, other arguments | {} x the FLOPs | {} x the bytes",
            "the same operator with other shapes or types",
        ),
        term("{}, another kernel", "the same operator, done by another kernel"),
        term(
            "another operator | {}, another operator",
            "the same kernel, launched by an operator of another name",
            "Times in whole microseconds can leave it open which operator was the innermost.",
        ),
        term("new | {}, new", "work that the first side lacks"),
        term("gone | {}, gone", "work that the second side lacks"),
        term("idle, host-bound", "idle time in which the host had not launched the next work yet"),
        term("idle, stream waits", "idle time in which the next work waited for another stream"),
        term("idle, other", "idle time of any other cause"),
        term("work of other steps", "time in which the device only did another step's work"),
        term(
            "framework",
            "on the CPU: wall time that no operator explains",
            "Without the profiler if both sides know its part.",
        ),
        term("profiler", "the profiler's part of the step, if known on both sides"),
        term(
            "of all steps",
            "number for the whole report, including other kinds of steps",
            "It is unknown for like steps alone.",
        ),
        term("signature", "shapes and types of the arguments"),
        term("samples", "samples a second"),
        term("peak", "peak of the step's memory"),
        term("last to first", "last run minus the first, relative to the first"),
        term("~", "no difference beyond chance (p >= 0.01)"),
        term(
            "overlap of {}",
            "time in which two kinds of work run at once, subtracted once",
            "Of compute, communication and copies; where n events run at once there are n - 1 overlaps.",
        ),
        term(
            "gate",
            "result of a --fail-if condition: passed, FAILED or UNKNOWN",
            formula="gates[].met, .unknown, .measured",
            paths="gates[].met, gates[].unknown, gates[].measured",
        ),
        term(
            "Not comparable",
            "the sides did different work, so there are no changes, causes or claims",
            "A side without kernels; a CPU against an accelerator; a whole trace as one step against steps that make"
            " other numbers of calls (1.5 times or more by the weighted median); steps of which one makes 90 % of all"
            " calls a whole number of times as often; other models: less than half of one side's work is on the other"
            " too, and neither the model's name, nor the FLOPs of the contractions (to 1 %), nor half of these where"
            " they are a fifth of the work, agree.",
            paths="not_comparable",
        ),
        term("warning", "remarks on the traces"),
    ),
)


# The ledger of device work, and what second sources say of the figures.


LEDGER: Final = Chapter(
    title="The ledger",
    sections=("ledger",),
    terms=(
        term(
            "ledger | work",
            "account of all device work; its terms sum to the whole exactly",
            formula="device_work = linked + graph_launched + no_launch_record + outside_window: ledger.*_ns",
            paths="ledger.device_work_ns, ledger.linked_ns, ledger.graph_launched_ns, ledger.no_launch_record_ns,"
            " ledger.outside_window_ns",
        ),
        term(
            "device work",
            "all kernels, copies and fills; on the CPU the self times of operators that compute",
            paths="ledger.device_work_ns",
        ),
        term("linked to operators | linked", "work launched inside an operator's call", paths="ledger.linked_ns"),
        term(
            "launched by graphs",
            "work of a CUDA graph, whose launch does not name operators",
            paths="ledger.graph_launched_ns",
        ),
        term("without launch record", "work whose launch the trace lacks", paths="ledger.no_launch_record_ns"),
        term(
            "outside the window",
            "work launched before the first step or after the last",
            paths="ledger.outside_window_ns",
        ),
        term(
            "classified",
            "share of the work in the window whose class is known by a rule",
            formula="ledger.classed_ns / (device_work_ns - outside_window_ns)",
            paths="ledger.classed_ns, ledger.device_work_ns, ledger.outside_window_ns",
        ),
        term(
            "costed",
            "share whose FLOPs and bytes are known by a formula",
            formula="ledger.costed_ns / (device_work_ns - outside_window_ns)",
            paths="ledger.costed_ns, ledger.device_work_ns, ledger.outside_window_ns",
        ),
        term(
            "unknown",
            "share without a rule, with its names",
            "`explain --unknown REPORT` lists all of them.",
            formula="ledger.unknown_ns / (device_work_ns - outside_window_ns)",
            paths="ledger.unknown_ns, ledger.device_work_ns, ledger.outside_window_ns",
        ),
        term(
            "no formula",
            "work with a class but without a cost",
            "Operators, graph work by kernel name, and work without an operator, with their shares of the time.",
            formula="operators[] where read_bytes is null, kernels[] where operators is empty, and what is left of"
            " device_work - outside_window - costed - unknown",
            paths="ledger.unknown_ns, ledger.costed_ns, ledger.device_work_ns, ledger.outside_window_ns",
        ),
        term("counting | conventions", "how numbers are counted", paths="conventions"),
        term("multiply-add", "a multiplication and an addition count as 2 FLOPs", paths="conventions.multiply_add"),
        term(
            "causal",
            "full: attention FLOPs are those of the whole matrix, whatever the mask",
            "Within a window recorded in the call's arguments, those of window and mask.",
            formula="conventions.causal; operators[].causal_flops has those under the mask",
            paths="conventions.causal, operators[].causal_flops",
        ),
    ),
)

#: The two figures compared by each check, and how.
_OF_CHECK: Final = {
    "call counts": ("calls of each operator by phase, against a dispatch mode in a warm-up step", "The mode watches"
        " the second step of the warm-up if there is one, with the random numbers of the profiled steps."),
    "contraction FLOPs": ("FLOPs of contractions, against torch.utils.flop_counter in a watched step", "By hand from"
        " the outputs if torch's registry has no formula or a wrong one: convolution backward, CPU flash attention,"
        " mkldnn_rnn_layer, _grouped_mm, _int_mm, mv, dot, _euclidean_dist, sparse. In a trace from elsewhere, the"
        " FLOPs of an operator against those of the operator that it calls."),
    "operator times": ("time of each operator, against the profiler's own tree of events", "Self time on the CPU,"
        " device time on an accelerator, to the nanosecond."),
    "annotated phases": ("phases, against the trace's own annotations", "Names such as `## forward ##`,"
        " `loss.backward()`, `optimizer.step`. --phase gives a range to a phase."),
    "classes of kernels": ("a kernel's class by name, against its operator's", "Such as a kernel of NCCL in an"
        " operator that computes."),
    "order on streams": ("the order of work on a stream, against that of the launches", ""),
    "clocks of host and device": ("when work ran, against its launch and calls that waited for it", "0.1 ms are the"
        " clocks' own."),
    "device work of launches": ("launches, against the device work that they start", ""),
    "device events": ("device work, against other work on its stream at the same time", ""),
    "ceiling": ("times, against the least time at the device's peaks", "Work that is faster needs a reason."),
    "memory peak": ("the peak, against the allocator's own figure", "torch.cuda.max_memory_allocated of that step; the"
        " CPU's allocator keeps no peak."),
    "allocated before the step": ("bytes allocated before the step, against the allocator's figure", ""),
    "allocated bytes": ("the sum of the blocks at each event, against the allocator's total", ""),
    "communicated bytes": ("messages of a step, against those that the ranks must exchange", ""),
    "parts of steps": ("the parts of a rank's step, against the union of its work", ""),
}  # fmt: skip


def _check_terms() -> tuple[Term, ...]:
    return tuple(
        term(
            name,
            f"a check: {meaning}",
            more,
            formula=f'checks[quantity = "{name}"]',
            paths=f"checks[quantity={name}].compared, checks[quantity={name}].equal",
        )
        for name, (meaning, more) in _OF_CHECK.items()
    )


CHECKS: Final = Chapter(
    title="Second sources",
    sections=("ledger", "caveats", "disagreements", "given-peaks"),
    terms=(
        term(
            "caveats",
            "faults that affect every number",
            "A file that is cut off, missing records or ranks, devices of several kinds, a busy machine.",
            paths="caveats",
        ),
        term(
            "given-peaks",
            "values of --peak and --bandwidth that the trace is above",
            "The option is most likely too low. It is a statement of yours, not a second source: the check `ceiling`"
            " takes the higher of the option and the peak known without it (measured, or the data sheet), so"
            " --check fails only above both. If nothing else is known of the device, the option explains a"
            " difference. A gate on the option is --fail-if 'mfu > 100%'.",
            paths="device.exceeded",
        ),
        term(
            "may be wrong | disagreements",
            "numbers that a second source does not confirm, without a known cause",
            "For each check, the one that affects most, if together they affect 1 % of the work or more; --check"
            " then fails with exit code 3. The share is that of the device work (on the CPU of the operators' time)"
            " of the calls that a difference touches, without a time the part by which the figures differ.",
            formula="checks[].differences where cause is null",
            paths="checks[].differences[].operator, checks[].differences[].ours, checks[].differences[].other",
        ),
        term(
            "below 1 %",
            "the same for checks that affect less: --check does not fail",
            formula="checks[].differences where cause is null",
            paths="checks[].differences[].operator, checks[].differences[].ours, checks[].differences[].other",
        ),
        term(
            "uncertain",
            "each difference in a check that affects 1 % or more, with evidence",
            formula="checks[].differences[].time_ns, .evidence",
            paths="checks[].differences[].time_ns, checks[].differences[].evidence",
        ),
        term(
            "confirmed", "numbers confirmed by second sources", formula="sum of checks[].equal", paths="checks[].equal"
        ),
        term(
            "explained",
            "differences with a known cause, and the operators",
            "Shown with --section ledger.",
            formula="checks[].differences where cause is not null",
            paths="checks[].differences[].operator, checks[].differences[].cause",
        ),
        term("unchecked", "work that no second source covers, and why", paths="checks[].not_checked"),
        *_check_terms(),
    ),
)


# The memory of a step: components, peak, snapshots, activations by theory, what does not fit.


#: The meaning of each component, by its key in the JSON report.
_OF_COMPONENT: Final = {
    "weights": "parameters of the model",
    "buffers": "running statistics, position ids, masks",
    "inputs": "the batch",
    "gradients": "gradients of the weights, live after backward",
    "ddp_buckets": "flat buffers in which DDP reduces gradients, unless these are views of them",
    "optimizer_state": "moments and other state that the optimizer keeps for each weight",
    "optimizer_step_counters": "the optimizer's step counts, one per tensor",
    "forward_activations": "tensors that forward saved for backward",
    "autocast_weight_casts": "autocast's copies of the weights in half precision",
    "rng_states": "random states that checkpointing keeps to repeat the same draws",
    "checkpoint_arguments": "inputs of checkpointed layers",
    "recomputed_activations": "activations made again and freed in the same backward",
    "key_value_cache": "in a generation, keys and values of all tokens so far",
    "beam_copies": "in a generation, copies of the cache and inputs for each beam",
    "outputs": "results of forward",
    "held_by_model": "tensors that the module or the loop holds through backward",
    "blas_workspace": "cuBLAS workspaces",
    "communication_buffers": "buffers of torch.distributed",
    "held_before": "allocated before the step, in no other component",
    "allocator_rounding": "bytes that the allocator gives beyond the request",
    "pending_free": "freed blocks that another stream may still use: neither allocated nor free",
    "temporary_buffers": "tensors that live within one operator or one phase",
    "device_context": "memory of the driver and loaded kernels, outside the allocator",
    "allocator_cache": "device memory that the allocator reserves and nothing uses",
    "before_window": "in a trace, everything allocated before it",
    "other": "in a trace, blocks that no rule assigns",
}


def _component_terms() -> tuple[Term, ...]:
    return tuple(
        term(
            name.replace("_", " ") + (" | activations" if name == "forward_activations" else ""),
            meaning,
            formula=f'memory.components[component = "{name}"]',
            paths=", ".join(
                f"memory.components[component={name}].{key}_bytes" for key in ("at_peak", "measured", "theory")
            ),
        )
        for name, meaning in _OF_COMPONENT.items()
    )


COMPONENTS: Final = Chapter(
    title="Memory by component",
    sections=("components", "memory-curve", "memory-peak", "technique-memory", "memory-notes"),
    terms=(
        term(
            "memory",
            "components during the unprofiled step, next to theory",
            "A trace alone has [memory] events (`profile_memory=True`): components are inferred from the times of"
            " the blocks, and each inference is named.",
            formula="memory.components[]",
            paths="memory.components[].component, memory.components[].at_peak_bytes",
        ),
        term(
            "measured",
            "each component at its largest in the step",
            "Activations when forward is done, temporary buffers at the peak. A trace alone has no such column: its"
            " components are inferred at the peak.",
            paths="memory.components[].measured_bytes",
        ),
        term(
            "at peak",
            "the part that is live at the peak; parts sum to the peak",
            paths="memory.components[].at_peak_bytes",
        ),
        term("theory", "result of the formula in the row", paths="memory.components[].theory_bytes"),
        term(
            "off",
            "measured minus theory, relative to theory",
            formula="(measured_bytes - theory_bytes) / theory_bytes",
            paths="memory.components[].measured_bytes, memory.components[].theory_bytes",
        ),
        term(
            "peak | peak in {} | memory peak",
            "the most memory allocated in the step, with the phase",
            "The note below names its source: an allocator, or the events of a trace.",
            paths="memory.allocator_peak_bytes, memory.peak_at, memory.measured_by",
        ),
        term(
            "peak of the process",
            "the largest resident set of the process, including Python",
            "On the CPU, if the allocations were not followed (--memory).",
            paths="memory.process_peak_bytes",
        ),
        term(
            "inferred | inferred {}",
            "rules that assigned a trace's blocks by when they were allocated and freed",
            paths="memory.inferences[].rule",
        ),
        *_component_terms(),
    ),
)

PEAK: Final = Chapter(
    title="What lives at the peak, what is saved for backward",
    sections=("memory-peak", "saved-activations"),
    terms=(
        term(
            "live at the peak",
            "blocks at the peak, by operator and module",
            formula="memory.blocks[]",
            paths="memory.blocks[].bytes",
        ),
        term("operator", "operator that allocated it"),
        term("module", "module whose work allocated it"),
        term("blocks", "number of blocks of the allocator", paths="memory.blocks[].blocks"),
        term(
            "of peak",
            "share of the peak",
            formula="memory.blocks[].bytes / memory.peak_bytes",
            paths="memory.blocks[].bytes, memory.peak_bytes",
        ),
        term(
            "and more",
            "blocks that are not listed",
            formula="memory.unlisted_bytes + the rows that are not shown",
            paths="memory.unlisted_bytes",
        ),
        term(
            "saved for backward",
            "tensors saved by forward, by like modules, operator and shape",
            "`*` stands for a number in the path of a module.",
            formula="memory.activations[]",
            paths="memory.activations[].bytes",
        ),
        term("made by", "operator whose output it is"),
        term("shape", "data type and sizes of one block"),
        term("each", "number of blocks, and the bytes of one"),
        term("the model", "outside the model's parts"),
    ),
)

SNAPSHOTS: Final = Chapter(
    title="Memory at each stage",
    sections=("snapshots",),
    terms=(
        term(
            "memory at each stage",
            "memory in use at each stage of the run",
            formula="memory.snapshots[]",
            paths="memory.snapshots[].allocated_bytes",
        ),
        term("at the start", "Python and its libraries, before the model"),
        term("allocated", "handed out by the allocator", paths="memory.snapshots[].allocated_bytes"),
        term("reserved", "held by the allocator, free blocks included", paths="memory.snapshots[].reserved_bytes"),
        term(
            "GPU occupied",
            "memory of the whole device in use by all processes, according to NVML",
            paths="memory.snapshots[].nvml_used_bytes",
        ),
        term("process", "resident set on the host", paths="memory.snapshots[].rss_bytes"),
        term("before the device", "nothing is on the device yet"),
        term("context", "the device's context alone"),
        term("weights", "the model is on the device"),
        term("after forward", "forward is done"),
        term("after backward", "backward is done"),
        term("after optimizer", "the weights are updated"),
        term("peak", "the most in the step"),
    ),
)

ACTIVATIONS: Final = Chapter(
    title="Memory by theory",
    sections=("activation-terms", "published"),
    terms=(
        term(
            "activations by theory",
            "closed formula of the saved activations, term by term",
            paths="memory.terms[].formula",
        ),
        term("sum", "all terms", formula="sum of memory.terms[].bytes", paths="memory.terms[].bytes"),
        term(
            "the classic run",
            "a published run of BERT-large, next to this one",
            "By Hugging Face: batch 4 x 512, float32, AdamW, one V100.",
            formula="memory.published[]",
            paths="memory.published[].figure, memory.published[].published",
        ),
        term("ours", "the number in this report", paths="memory.published[].measured"),
        term(
            "difference",
            "ours minus the published number",
            formula="memory.published[].measured - .published",
            paths="memory.published[].measured, memory.published[].published",
        ),
        term("Tesla V100 16 GB", "the published number"),
    ),
)

FAILURE: Final = Chapter(
    title="What does not fit",
    sections=("out-of-memory",),
    terms=(
        term(
            "out of memory in {} | out of memory",
            "phase in which memory ran out",
            formula="memory.failure",
            paths="memory.failure.phase, memory.failure.requested_bytes, memory.failure.allocated_bytes",
        ),
        term("failed request", "bytes requested when memory ran out", paths="memory.failure.requested_bytes"),
        term("allocated then", "bytes allocated when memory ran out", paths="memory.failure.allocated_bytes"),
        term(
            "needed by theory, without buffers",
            "bytes the step needs, without temporary buffers",
            paths="memory.needed_bytes",
        ),
    ),
)

SNAPSHOT: Final = Chapter(
    title="Terms of a memory snapshot",
    page="out-of-memory.md",
    sections=(
        "memory-lines",
        "memory-modules",
        "memory-classes",
        "memory-phases",
        "memory-compiled",
        "memory-pools",
        "memory-changes",
    ),
    terms=(
        term(
            "line of code",
            "what the innermost line of your own code inside a module allocated",
            "Else that of a library's model. Of two snapshots what it has at both peaks.",
            formula="memory.parts[]",
            paths="memory.parts[].name, memory.parts[].component",
        ),
        term(
            "module, by the lines that call it",
            "memory allocated by modules, identified by the lines that call them",
            "With opanatomy.snapshot(module=...) by the paths of modules.",
            paths="memory.parts[].name",
        ),
        term("operator class", "memory allocated by operators of a class", paths="memory.parts[].name"),
        term("compiled region", "the compiled code that allocated it", paths="memory.parts[].name"),
        term("allocated in", "the phase of the allocation", paths="memory.parts[].name"),
        term("component", "what the blocks hold, with the reason in `inferred`", paths="memory.parts[].component"),
        term(
            "of it",
            "share of the memory allocated then",
            formula="memory.parts[].bytes / memory.shown_bytes",
            paths="memory.parts[].bytes, memory.shown_bytes",
        ),
        term(
            "at the end | when memory ran out | at {} ms",
            "memory allocated at the moment shown (--at)",
            "The peak has a column of its own.",
            paths="memory.components[].shown_bytes",
        ),
        term(
            "allocated in {} | allocated",
            "all memory allocated at the moment shown, with the phase",
            formula='sum of memory.components[].shown_bytes, without "pending_free"',
            paths="memory.shown_bytes, memory.shown_at, memory.moment",
        ),
        term(
            "live at the end | live when memory ran out | live at {} ms",
            "blocks at the moment shown",
            formula="memory.blocks[]",
            paths="memory.blocks[].bytes",
        ),
        term(
            "requested at one time",
            "the most that was requested; the peak is of whole blocks",
            "Like torch's requested_bytes, but blocks count until they are freed, not until other streams are done"
            " with them.",
            paths="memory.requested_peak_bytes",
        ),
        term("no stack recorded", "allocated before the recording, or by a thread of autograd's"),
        term(
            "held at the end",
            "the allocator's pools: its own, small and large, and those of CUDA graphs",
            "Expandable segments and streams are named.",
            paths="memory.pools[].pool",
        ),
        term("segments", "pieces of memory that it got from the device", paths="memory.pools[].segments"),
        term("reserved", "bytes of the segments", paths="memory.pools[].reserved_bytes"),
        term("in use", "bytes requested and not freed", paths="memory.pools[].requested_bytes"),
        term("rounding", "bytes that the allocator added", paths="memory.pools[].rounding_bytes"),
        term("free", "bytes held and not in use", paths="memory.pools[].free_bytes"),
        term("largest free", "the largest request that fits", paths="memory.pools[].largest_free_bytes"),
        term("reserved then", "bytes reserved when memory ran out", paths="memory.failure.reserved_bytes"),
        term(
            "of it unused",
            "bytes of these in no block that is in use, at most",
            paths="memory.failure.unused_bytes",
        ),
        term("free on the device then", "bytes that no process used", paths="memory.failure.device_free_bytes"),
        term(
            "the peak | all that is allocated then",
            "the sum of all changes",
            "For two snapshots, at their peaks; at the end if there is no history.",
            paths="peak_parts[].before_bytes, peak_parts[].after_bytes, peak_moments",
        ),
    ),
)


# The run: model, workload, device; generations; real texts.


RUN: Final = Chapter(
    title="What ran",
    sections=("title", "in-short", "headline", "run", "source", "warnings", "memory-notes"),
    terms=(
        term(
            "model",
            "class of the model and its number of parameters",
            "The number of trainable parameters is in parentheses if some are frozen.",
            paths="workload.architecture, workload.parameters, workload.trainable_parameters",
        ),
        term(
            "workload",
            "task, batch, length, data type, attention, options",
            "The batch is that of one update; with accumulation, each forward processes part of it.",
            formula="workload.*",
            paths="workload.architecture, workload.batch, workload.sequence_length, workload.dtype",
        ),
        term(
            "run unfused | (run unfused) | {} attention (run unfused) | unfused attention",
            "torch ran scaled_dot_product_attention as matrix multiplications and a softmax",
            "The matrix of probabilities is kept. No fused kernel supports this case: the CPU has none with dropout."
            " --set attention_probs_dropout_prob=0 (the model's own name for it) has one.",
            paths="workload.attention, operators[].operator",
        ),
        term(
            "training",
            "how ranks train together, with the samples of each and of all",
            formula="workload.parallel, workload.world_size, workload.batch x ranks that have data of their own",
            paths="workload.parallel, workload.world_size, workload.batch",
        ),
        term(
            "backward",
            "output that backward started from",
            "The loss, else the only single number, else all outputs with gradients of one.",
            paths="workload.backward_from",
        ),
        term("changed", "settings changed by --layers and --set", paths="workload.changes"),
        term(
            "device",
            "hardware that ran the step",
            "If a trace has several kinds, the one that ran the most kernels.",
            paths="environment.device, environment.device_memory_bytes, environment.device_count",
        ),
        term(
            "software",
            "versions of torch, CUDA, the driver, transformers and opanatomy",
            formula="environment.*",
            paths="environment.torch, environment.transformers, environment.python",
        ),
        term("trace", "file that all numbers come from", paths="provenance.trace"),
        term("command", "command that made the report", paths="provenance.command"),
        term("opanatomy", "version that made the report", paths="provenance.opanatomy"),
        term(
            "rank",
            "rank of the trace, and how many there are",
            formula="ranks[0].rank, .world_size",
            paths="ranks[0].rank, ranks[0].world_size",
        ),
        term("warning | warnings", "remarks on the trace and how it was recorded", paths="warnings"),
        term(
            "in-short",
            "a step's time, number and device, and its busy share",
            "The shares are those of the step under the profiler; on the CPU those of operators and framework."
            " Samples a second are left out where there is no room.",
            paths="step.wall_ns, step.unprofiled_wall_ns, step.count, timeline.busy_ns, step.samples_per_second",
        ),
        term(
            "headline | what costs most",
            "the largest part of the step, and the next from 15 % on",
            "The parts do not overlap: idle time with its cause, communication that nothing hides (waiting for"
            " another rank apart), on the CPU the framework, and classes, which share the rest by their kernel time."
            " Optimizer, recompute and decoding are cut from the same time by phase. They are ranked by their share"
            " of the wall time of the steps that count, without other steps' work; so is each share in the sentence."
            " `peak` there is the roofline: bound / time. An idle cause is named if it has"
            " half of the idle time, else the two largest from 30 % on. Parts below 2 % are left out; memory that"
            " fills 90 % of the device comes second.",
        ),
    ),
)

GENERATION: Final = Chapter(
    title="Generations",
    sections=("generation",),
    terms=(
        term(
            "generation",
            "new tokens for each sample, greedy or by beam search",
            paths="generation.new_tokens, generation.beams",
        ),
        term(
            "prefill",
            "time to the first new token: the whole prompt at once",
            "For unprofiled generations.",
            paths="generation.first_token_ns",
        ),
        term(
            "decoding",
            "time from one new token to the next, and tokens a second of all samples",
            formula="generation.token_ns = generation.decoding_ns / generation.decoded_tokens",
            paths="generation.token_ns, generation.decoding_ns, generation.decoded_tokens",
        ),
        term(
            "a token",
            "bytes and FLOPs of one forward, with a token for every sample and beam",
            formula="generation.token_read_bytes, .token_written_bytes, .token_flops",
            paths="generation.token_read_bytes, generation.token_written_bytes, generation.token_flops",
        ),
    ),
)

TEXTS: Final = Chapter(
    title="Real texts",
    sections=("texts", "batches"),
    terms=(
        term(
            "texts",
            "source, number and lengths of the texts",
            formula="texts.count, .shortest, .median, .cut",
            paths="texts.count, texts.shortest, texts.median, texts.cut",
        ),
        term(
            "padding",
            "how texts are padded to batches, and the share of their tokens",
            formula="texts.all_useful_tokens / texts.all_tokens",
            paths="texts.all_useful_tokens, texts.all_tokens",
        ),
        term(
            "wasted",
            "FLOPs of contractions on padding, in the profiled batch",
            "By shapes: in a product over all tokens each token has its share, in one of two sequences (scores, and"
            " the sum over values) each pair. Shapes that do not tell (experts, convolutions) are named and not"
            " assigned.",
            formula="texts.padding_flops.padding_flops / texts.padding_flops.flops",
            paths="texts.padding_flops.padding_flops, texts.padding_flops.flops",
        ),
        term(
            "tokenizer",
            "its speed, and whether steps would wait for it",
            "Each is timed on the same texts in one call.",
            formula="texts.tokenizers: tokens_per_second against texts.tokens_per_second",
            paths="texts.tokenizers[].tokens_per_second, texts.tokens_per_second",
        ),
        term(
            "steps",
            "mean step over the batches, samples and tokens a second",
            "From the shortest to the longest batch.",
            formula="texts.mean_step_ns, .samples_per_second, .useful_tokens_per_second",
            paths="texts.mean_step_ns, texts.samples_per_second, texts.useful_tokens_per_second",
        ),
        term("memory", "memory of the longest batch", paths="texts.memory_length"),
        term("batch", "one of the batches, in order"),
        term("length", "tokens that each text is padded to", paths="texts.batches[].length"),
        term("tokens", "texts x length: with padding", paths="texts.batches[].tokens"),
        term(
            "useful",
            "share of the tokens that is text",
            formula="texts.batches[].useful_tokens / .tokens",
            paths="texts.batches[].useful_tokens, texts.batches[].tokens",
        ),
        term("step", "mean step of the batch, without the profiler and pauses", paths="texts.batches[].step_ns"),
        term(
            "useful tokens",
            "text tokens per second",
            formula="10^9 x texts.batches[].useful_tokens / .step_ns",
            paths="texts.batches[].useful_tokens, texts.batches[].step_ns",
        ),
    ),
)


# The run around the recorded steps.


WHOLE_RUN: Final = Chapter(
    title="Terms of the whole run",
    sections=("whole-run", "step"),
    page="script.md",
    terms=(
        term(
            "whole run | other step | other steps",
            "steps of the loop outside the recorded ones",
            "The first step is excluded too. The wait for input is the time in which the loop waits for a DataLoader,"
            " outside of evaluations. With several ranks, it is that of the rank that waits most.",
            formula="run.wall_ns / run.steps, run.median_ns, run.input_ns / run.wall_ns",
            paths="run.wall_ns, run.steps, run.median_ns, run.input_ns",
        ),
        term(
            "evaluation",
            "from `eval()` of a module until it trains again, or while batches load without gradients",
            formula="run.evaluating_ns / run.wall_ns, in run.evaluations stretches",
            paths="run.evaluating_ns, run.wall_ns, run.evaluations",
        ),
        term(
            "checkpoints | saving",
            "time in torch.save, safetensors and torch.distributed.checkpoint.save",
            formula="run.checkpointing_ns / run.wall_ns, in run.checkpoints steps",
            paths="run.checkpointing_ns, run.wall_ns, run.checkpoints",
        ),
        term(
            "over the run",
            "samples per second over the whole run, including evaluations and checkpoints",
            "Shown next to the rate of recorded steps if these leave out a tenth of the run or more.",
            paths="trends.samples_per_second",
        ),
        term(
            "host's time",
            "where the host's time goes in timed steps; everything else is not split further",
            "On an accelerator backward and optimizer are the host's time in them, not the device's; in a loop under"
            " `record` the optimizer is in all else.",
            paths="run.series, run.input_ns, run.evaluating_ns, run.checkpointing_ns, run.compiling_ns",
        ),
        term(
            "first step",
            "from the import of torch, or the recorder's start, to the end of the first step",
            formula="run.start.wall_ns, of it .input_ns, .compiling_ns, ...",
            paths="run.start.wall_ns",
        ),
        term("at the end", "time after the last step", paths="run.end.wall_ns"),
        term(
            "drift",
            "typical step time in the last tenth of the run compared with the first tenth",
            "Named from 5 % and 100 steps on, if the tenths lie on a line (t of 5) or on two levels (t of 7), and the"
            " first three on one side of the last three. Beside evaluations, checkpoints and compiling.",
            formula="trends.drift.last_ns / .first_ns; trends.drift.parts",
            paths="trends.drift.last_ns, trends.drift.first_ns, trends.drift.parts",
        ),
        term(
            "memory",
            "memory that grows steadily over the run, or a peak that rises above what stays",
            "From the second to the last tenth the least of each grows, by 512 MiB or more, and as much in the second"
            " half as a quarter of it. A trend, from 1 GiB on no mere one. A peak that rises by a tenth while what"
            " stays after a step does not is that of other batches.",
            formula="trends.growth[].last_bytes - .first_bytes over .steps; trends.peak",
            paths="trends.growth[].last_bytes, trends.growth[].first_bytes, trends.growth[].steps, trends.peak",
        ),
        term("host memory", "the process's private pages, after the last step and at most", paths="run.series"),
        term(
            "device", "what the driver reported about the device over the whole run, as in `clock`", paths="run.device"
        ),
        term(
            "slow step | slow steps",
            "step more than twice as long as three quarters of all steps",
            "Beside evaluations and checkpoints. The longest five have their parts: waiting for input, compiling,"
            " garbage collection.",
            formula="run.slow_steps, run.slow",
            paths="run.slow_steps",
        ),
        term("graph break | graph breaks", "where torch.compile left its graph, and why", paths="run.graph_breaks"),
        term("recompilation | recompilations | recompiled", "code compiled again, and why", paths="run.recompilations"),
    ),
)


# One step: wall time, phases, busy and idle time, launches, and what of the ceilings it reached.


#: The whole of shares of the step's time.
_OF_STEP: Final = "(timeline.window_ns - .outside_ns)"

STEP: Final = Chapter(
    title="One step",
    sections=("step", "idle", "replay", "peaks"),
    terms=(
        term(
            "step",
            "mean wall time of one step, unprofiled and under the profiler",
            "Short unprofiled steps are repeated up to five times. The difference is shown only if every profiled step"
            " was slower than every one of at least two unprofiled ones. On an accelerator a step lasts from its"
            " annotation (`ProfilerStep#N`), or from the end of the step before if that is later, to the end of the"
            " last device work launched in it. Time in which the device did only other steps' work is not counted.",
            formula="step.unprofiled_wall_ns, step.wall_ns; samples/s = samples of a step / unprofiled step, else"
            " profiled",
            paths="step.unprofiled_wall_ns, step.wall_ns, step.samples_per_second",
        ),
        term(
            "unprofiled",
            "mean step without the profiler",
            "Steps twice as long as the shortest are left out.",
            formula="step.unprofiled_wall_ns, of step.unprofiled_count steps",
            paths="step.unprofiled_wall_ns, step.unprofiled_count",
        ),
        term(
            "profiled",
            "mean step under the profiler, of the steps that count",
            formula="step.wall_ns, of step.count steps",
            paths="step.wall_ns, step.count",
        ),
        term("samples/s", "samples a second, by the unprofiled step if there is one", paths="step.samples_per_second"),
        term(
            "steps",
            "number, shortest and longest; the steps that do not count, with the reason",
            "Figures are means over the steps that count, so that parts sum to their whole. `opanatomy explain 'set"
            " aside'` has the rules.",
            formula="step.count, step.wall_min_ns, step.wall_max_ns, step.unprofiled_wall_min_ns, ...",
            paths="step.count, step.wall_min_ns, step.wall_max_ns, step.unprofiled_wall_min_ns",
        ),
        term(
            "torch.compile",
            "compile time, and alternating steps with and without it",
            "From torch's own record. It pays for itself after as many steps as save that time; the difference is"
            " clear if every step without it is longer than every step with it.",
            formula="compilation.compiling_ns / (median of .uncompiled_step_ns - median of .compiled_step_ns)",
            paths="compilation.compiling_ns, compilation.uncompiled_step_ns, compilation.compiled_step_ns",
        ),
        term(
            "clock",
            "SM clock of the device beside its highest, while steps were recorded",
            "By NVML: median, and the readings in which the driver gave a reason for less: power cap, heat, hardware"
            " slowdown, power brake, set clocks, sync boost. Power is a mean, energy that of the device's counter.",
            formula="device_state.clock_mhz, .clock_limit_mhz, .reasons / .readings, .energy_j / .steps",
            paths="device_state.clock_mhz, device_state.clock_limit_mhz, device_state.reasons, device_state.readings,"
            " device_state.energy_j, device_state.steps",
        ),
        term(
            "phases",
            "wall time of each phase on the CPU, busy time on an accelerator",
            formula="step.phase_ns.forward, .backward, .optimizer, .prefill, .decoding / step.wall_ns",
            paths="step.phase_ns, step.wall_ns",
        ),
        term(
            "framework",
            "on the CPU: wall time that no operator explains - dispatch, autograd, Python",
            "step = operators + framework + profiler, exactly. Framework includes the profiler's part if that"
            " cannot be separated from noise. CPU time that an unprofiled step spent in the kernel (providing memory"
            " and so on) is in step.system_ns, next to the pages it provided.",
            formula="step.framework_ns = step.wall_ns - step.busy_ns - step.profiler_ns",
            paths="step.framework_ns, step.wall_ns, step.busy_ns, step.profiler_ns, step.system_ns, step.page_faults",
        ),
        term(
            "profiler",
            "on the CPU: the estimated time of the profiler itself",
            "Profiled minus unprofiled step, times the fraction of event ends that lie outside operators.",
            formula="step.profiler_ns / step.wall_ns",
            paths="step.profiler_ns, step.wall_ns",
        ),
        term("samples of a step", "batch of all ranks that have data of their own", paths="workload.batch"),
        term(
            "window",
            "from the start of the first step to the end of the last one",
            "Without annotations, each step ends with an optimizer update; if several optimizers alternate, with the"
            " last one's. The first step begins with the trace; what follows the last update belongs to no step. If"
            " updates follow no regular order, the trace is one step. With several devices, times are means over those"
            " that ran kernels.",
            formula="timeline.window_ns / step.count (of several ranks / the steps of one); window = busy + outside +"
            " unrecorded + idle, idle = host-bound + stream waits + other, exactly",
            paths="timeline.window_ns, step.count",
        ),
        term(
            "the step without other steps' work | without it",
            "the window without other steps' work: all shares refer to it",
            formula=_OF_STEP,
            paths="timeline.window_ns, timeline.outside_ns",
        ),
        term(
            "from the first to the last device work",
            "replaces the step if there is none",
            "timeline.around_ns is the time before and after all device work.",
            formula="timeline.window_ns - .outside_ns",
            paths="timeline.window_ns, timeline.outside_ns",
        ),
        term(
            "device",
            "busy and idle shares of the step",
            formula=f"timeline.busy_ns, .idle_ns / {_OF_STEP}",
            paths="timeline.busy_ns, timeline.idle_ns, timeline.window_ns, timeline.outside_ns",
        ),
        term(
            "busy",
            "some kernel, copy or fill of the steps runs",
            "The union of the device work launched in the steps.",
            formula=f"timeline.busy_ns / {_OF_STEP}",
            paths="timeline.busy_ns, timeline.window_ns, timeline.outside_ns",
        ),
        term(
            "compute and copies",
            "the device computes or copies, with or without communication behind it",
            formula=f"(timeline.busy_ns - .exposed_communication_ns) / {_OF_STEP}",
            paths="timeline.busy_ns, timeline.exposed_communication_ns, timeline.window_ns, timeline.outside_ns",
        ),
        term(
            "in it waiting for other ranks",
            "exposed communication while other ranks have not begun the collective",
            formula="(sum of waiting.each[].steps[].waiting_ns) / (sum of waiting.each[].steps[].wall_ns), at most"
            " what is exposed",
            paths="waiting.each[].steps[].waiting_ns, waiting.each[].steps[].wall_ns",
        ),
        term(
            "kernel time",
            "sum of the device work over all streams; it may exceed the step",
            paths="step.kernel_time_ns",
        ),
        term(
            "overlap",
            "communication and copies, and the part that nothing hides",
            formula=f"timeline.communication_ns, .exposed_communication_ns, .exposed_memcpy_ns / {_OF_STEP}",
            paths="timeline.communication_ns, timeline.exposed_communication_ns, timeline.exposed_memcpy_ns,"
            " timeline.window_ns, timeline.outside_ns",
        ),
        term(
            "communication",
            "some collective runs",
            formula=f"timeline.communication_ns / {_OF_STEP}",
            paths="timeline.communication_ns, timeline.window_ns, timeline.outside_ns",
        ),
        term(
            "of it exposed | exposed communication",
            "communication while no other work of the device runs",
            "timeline.computation_ns is the union of all work except communication and copies, so busy -"
            " computation - exposed memcpy is the communication that no computation hides.",
            formula=f"timeline.exposed_communication_ns / {_OF_STEP}",
            paths="timeline.exposed_communication_ns, timeline.window_ns, timeline.outside_ns",
        ),
        term(
            "exposed memcpy",
            "copies while no other work of the device runs",
            formula=f"timeline.exposed_memcpy_ns / {_OF_STEP}",
            paths="timeline.exposed_memcpy_ns, timeline.window_ns, timeline.outside_ns",
        ),
        term(
            "idle",
            "nothing runs on the device; the line names the causes",
            "A gap ends with device work. If that was launched after the device fell idle, the cause is what the"
            " launching thread did in the gap or, while it recorded nothing, what other launching threads did. Of"
            " several causes at once the first counts: profiler's records, compiling, input wait, allocator calls,"
            " slow launches, synchronizations, collective calls, operator calls, Python. If the work was launched"
            " before, the cause is another stream or between kernels; the rest is unknown cause. A cause names the"
            " call, operator or range that is most of it.",
            formula=f"timeline.idle_ns / {_OF_STEP}; idle_ns = host_idle_ns + stream_idle_ns + other_idle_ns",
            paths="timeline.idle_ns, timeline.host_idle_ns, timeline.stream_idle_ns, timeline.other_idle_ns,"
            " timeline.window_ns, timeline.outside_ns",
        ),
        term(
            "profiler's records | recorded Python",
            "idle while the profiler wrote records",
            "Or while it recorded Python's stack.",
        ),
        term("compiling", "idle while dynamo, inductor or Triton compiled"),
        term(
            "input wait",
            "idle while data was loaded or copied from the host",
            "In ranges that load data, and in copies whose calls hold the host up.",
        ),
        term("allocator calls", "idle while device or pinned memory was allocated or freed"),
        term(
            "slow launches",
            "idle in unusually long launches and module loading",
            "A slow launch takes at least 0.2 ms and 20 times as long as the median one.",
        ),
        term("synchronizations", "idle in calls that wait for the device"),
        term("collective calls", "idle while the host called collectives"),
        term("operator calls", "idle while the host ran operators and ordinary launches"),
        term(
            "Python",
            "idle while the host was between operators",
            "In user ranges, or in a silence of up to 1 ms.",
        ),
        term("another stream", "the same as stream waits"),
        term("between kernels", "idle before work launched already, on the stream that worked last"),
        term("unknown cause", "idle, with no record of what the host did"),
        term(
            "drained",
            "the part of idle time that began with a wait for the device",
            "The host waited, so nothing was queued.",
            formula="timeline.drained_ns / timeline.idle_ns",
            paths="timeline.drained_ns, timeline.idle_ns",
        ),
        term(
            "not recorded",
            "the trace lacks device work: neither busy nor idle",
            "From a launch without work to the next work (nodes of a graph, a file that is cut off), or while the"
            " host waits past the last recorded work.",
            formula=f"timeline.unrecorded_ns / {_OF_STEP}",
            paths="timeline.unrecorded_ns, timeline.awaited_ns, timeline.window_ns, timeline.outside_ns",
        ),
        term(
            "decided by",
            "what the step's length depends on, by a replay: host time, device work, delays",
            "The step is timed again as a graph of host points and device events; along the path that ends last, host"
            " time is of its kind, device work of its class. `launch latency` and `queue` are delays of the device.",
            paths="replay.path, replay.step_ns",
        ),
        term(
            "replay",
            "how accurate a replay of the step is",
            "Its gains are used if it is off by less than 5 % with usual delays, less than 5 % of the step are"
            " unexplained delays, no work from before the trace delays it, and no work lacks its record.",
            paths="replay.error, replay.unexplained, replay.why_not, replay.host_factor, replay.least_ns",
        ),
        term(
            "what if",
            "how long a step takes after a change, by the replay",
            "`--what-if 'aten::mm x0.5'`, of a class, an operator, a kernel, `device`, `copies`, `host` or a kind of"
            " host time. Without an unprofiled step, a second value is for a host that recording does not slow down,"
            " at 2"
            " us per event.",
            paths="replay.answers",
        ),
        term(
            "host-bound | host bound",
            "idle, and the next work was launched after the device fell idle",
            "Idle time at the end, with nothing after it, counts too. The host is late: more work per launch, or fewer"
            " launches, help.",
            formula=f"timeline.host_idle_ns / {_OF_STEP}",
            paths="timeline.host_idle_ns, timeline.window_ns, timeline.outside_ns",
        ),
        term(
            "stream waits | stream wait",
            "idle, the next work was already launched, and another stream worked last",
            formula=f"timeline.stream_idle_ns / {_OF_STEP}",
            paths="timeline.stream_idle_ns, timeline.window_ns, timeline.outside_ns",
        ),
        term(
            "other",
            "idle between events of one stream, or before work without a launch record",
            formula=f"timeline.other_idle_ns / {_OF_STEP}",
            paths="timeline.other_idle_ns, timeline.window_ns, timeline.outside_ns",
        ),
        term(
            "other steps' work | busy with another step's work | outside",
            "the device did only work launched outside the window: neither busy nor idle",
            formula="timeline.outside_ns / step.count",
            paths="timeline.outside_ns, step.count",
        ),
        term(
            "launches | launching",
            "calls that launch kernels or graphs, and the host time in them",
            formula="timeline.launching.calls / step.count, timeline.launching.call_ns / step.count",
            paths="timeline.launching.calls, step.count, timeline.launching.call_ns",
        ),
        term(
            "mean delay",
            "mean time from the start of a launch to that of its first kernel",
            "Total delay divided by the window gives the mean queue length.",
            formula="timeline.launching.delay_ns / timeline.launching.delayed",
            paths="timeline.launching.delay_ns, timeline.launching.delayed",
        ),
        term(
            "tiny kernels | of the kernels below",
            "kernels shorter than 10 us: launching them costs as much as running them",
            formula="timeline.launching.tiny_kernels / .kernels, .tiny_kernel_ns / .kernel_ns",
            paths="timeline.launching.tiny_kernels, timeline.launching.kernels, timeline.launching.tiny_kernel_ns,"
            " timeline.launching.kernel_ns",
        ),
        term(
            "estimates",
            "Kineto's estimates of how full the device was, from launch dimensions",
            formula="device.sm_efficiency, device.occupancy, device.tensor_core_ns / timeline.launching.kernel_ns",
            paths="device.sm_efficiency, device.occupancy, device.tensor_core_ns, timeline.launching.kernel_ns",
        ),
        term(
            "SM efficiency",
            "mean share of multiprocessors that have a block, over the steps' time",
            "min(blocks per SM, 1), summed over the kernels that run at that moment and never above 1, so never"
            " above the utilization.",
            paths="device.sm_efficiency",
        ),
        term(
            "occupancy",
            "mean estimated occupancy of the kernels, weighted by duration",
            "Occupancy is the share of a multiprocessor's warps that a kernel's blocks can fill.",
            paths="device.occupancy",
        ),
        term(
            "utilization",
            "union of the kernels over the steps' time",
            "Copies and fills are left out.",
            paths="device.utilization",
        ),
        term(
            "tensor cores | tensor-core time",
            "kernels that use tensor cores, according to their names, over kernel time",
            'Matrix cores on AMD. The rules are in classification/kernels.py. "(12 % unknown)" are products whose'
            " names do not tell. Not shown for devices without tensor cores.",
            formula="device.tensor_core_ns / timeline.launching.kernel_ns",
            paths="device.tensor_core_ns, timeline.launching.kernel_ns",
        ),
        term(
            "peaks",
            "dense peaks by data type, the peak of other arithmetic, bandwidth, and their source",
            "In this order: --peak and --bandwidth; the measurements of `opanatomy peaks` on this device; the"
            " maker's data sheet. A device that none of them knows has none.",
            formula="device.peak_flops_per_second, .vector_flops_per_second, .bandwidth_bytes_per_second, .source",
            paths="device.peak_flops_per_second, device.vector_flops_per_second,"
            " device.bandwidth_bytes_per_second, device.source",
        ),
        term(
            "reached",
            "MFU and HFU: the share of the peak that contractions reach",
            "Above 100 %, with the explanation: the share under the causal mask, or a mask that is not recorded. With"
            " several data types, also the MFU of each against its own peak.",
            paths="device.mfu, device.hfu, device.causal_mfu, device.causal_hfu, device.own_peaks_mfu,"
            " device.unmasked_share",
        ),
        term(
            "attention | a window of {} tokens needs {} of the FLOPs",
            "the part of attention that a sliding window needs",
            "The kernel multiplies all queries and keys: FLOPs are those it computes.",
            formula="pairs of tokens within window and causal mask / all pairs, in layers with a window",
            paths="workload.within_windows, workload.windows",
        ),
        term(
            "MFU | model FLOPs utilization",
            "FLOPs of contractions, without recomputation, over the FLOPs that the peak allows in a step",
            "The peak is that of the data type with most of these FLOPs; the step is the unprofiled one if it was"
            " measured. ≥ is a lower bound, from the part of the contractions' time whose FLOPs are known; below half,"
            " no value is shown.",
            formula="(sum of operators[].flops of tensor_contraction, phase not recompute) / (step.count x"
            " step.unprofiled_wall_ns (else wall_ns) x device.peak_flops_per_second[device.mfu_dtype] x devices with"
            " kernels)",
            paths="operators[operator_class=tensor_contraction].flops, step.count, step.unprofiled_wall_ns,"
            " step.wall_ns, device.peak_flops_per_second, device.mfu_dtype",
        ),
        term(
            "HFU | hardware FLOPs utilization",
            "like MFU, but counting recomputation",
            formula="(sum of"
            " operators[].flops of tensor_contraction) / (step.count x step.unprofiled_wall_ns (else wall_ns) x"
            " device.peak_flops_per_second[device.mfu_dtype] x devices with kernels)",
            paths="operators[operator_class=tensor_contraction].flops, step.count, step.unprofiled_wall_ns,"
            " step.wall_ns, device.peak_flops_per_second, device.mfu_dtype",
        ),
    ),
)


# Words of the pages that are not lines or columns: those of sentences, headings and notes.


WORDS: Final = Chapter(
    title="Words of the pages",
    page=None,
    terms=(
        term(
            "like steps | like step | steps of a kind",
            "steps that made the same calls",
            "The same kernels (on the CPU operators) with the same arguments, as often. A run that alternates has"
            " several kinds of steps; `compare` takes the kinds that are most alike on both sides.",
        ),
        term(
            "set aside | disturbed",
            "step that is excluded from means",
            "Other steps' work fills more than 1 % of it; or it holds a pause; or it has less than a tenth of the"
            " work of the step with most (on the CPU if it makes other calls, too); or most steps make the same calls"
            " and it makes others (unless these have a phase that most lack, as when every fourth step updates the"
            " weights). The line `steps` and `step.steps[].set_aside` have the reason. If all steps hold other steps'"
            " work, all count. Of several ranks a step counts that counts on each. `compare` sets aside for the first"
            " two reasons alone.",
        ),
        term(
            "pause | holds a pause | a pause is in it",
            "step more than twice as long as its shortest like step, and idle for most of the difference",
            "Something else stopped it: waiting for input is not a pause.",
        ),
        term(
            "of another kind | steps of another kind | other kinds",
            "steps that made other calls than the compared steps",
            "The line of the steps has their means on both sides.",
        ),
        term(
            "mean step | mean like step",
            "mean over the steps that count: sums over them divided by their number",
            "Means add up, so that parts sum to their whole; medians do not.",
            formula="x / step.count",
            paths="step.count",
        ),
        term("before and after", "of two sides, the first is before, the second after"),
        term("wall time", "elapsed time, including waiting and idle time"),
        term(
            "self time | self times",
            "time of an operator, without the operators that it calls",
            "On the CPU self times sum to the time that operators explain.",
        ),
        term("device event | device events", "kernel, a copy or a fill of the device, as the trace has it"),
        term("launch", "call of the host that starts a kernel, or all kernels of a graph"),
        term("launch record", "host event that launched a device event"),
        term("stream", "queue of the device: its work runs in order; several streams may run at once"),
        term("graph | CUDA graph", "kernels that one launch starts together: it names the graph, not the operators"),
        term(
            "synchronization",
            "call in which the host waits for the device",
            formula="timeline.launching.synchronizing_calls / step.count,"
            " timeline.launching.synchronizing_ns / step.count",
            paths="timeline.launching.synchronizing_calls, step.count, timeline.launching.synchronizing_ns",
        ),
        term("exposed", "while no other work of the device runs: it makes the step longer"),
        term("hidden", "while other work of the device runs: it does not make the step longer"),
        term(
            "covered | known for",
            "part of the time whose FLOPs, bytes or bound are known",
            "A share of less than half of it is left out.",
        ),
        term(
            "significant",
            "difference that chance alone would produce in less than 1 % of cases (p < 0.01)",
            "By a Mann-Whitney test over at least five interleaved runs of each side; steps of one run are not"
            " independent.",
        ),
        term(
            "p | p value | Mann-Whitney",
            "probability of a difference this large by chance alone",
            "By a Mann-Whitney test over the runs of both sides.",
        ),
        term(
            "interleaved | took turns | in turn",
            "runs that alternate between the sides, so that machine drift affects both",
            "At each moment both sides have done about the same share of their runs: if both have as many runs, the"
            " numbers done differ by one at most. ABAB and ABBA are interleaved; AABB is not, nor is an order that"
            " ends with several runs of one side.",
        ),
        term("apart", "ranges of two sides have no value in common"),
        term("overlapping", "ranges of two sides have values in common"),
        term("range", "from the minimum to the maximum of several steps or runs"),
        term("run | runs", "one start of the program with one report; several runs of a side allow a claim"),
        term(
            "like ranks | group of ranks",
            "ranks whose times are all within 5 % of the median step of those of the most typical one",
        ),
        term(
            "charged",
            "all waiting in a collective counts for the rank that begins it last",
            paths="waiting.straggler.charged_ns",
        ),
        term(
            "lead | after the rank before it",
            "how much later the last rank begins a collective than the one before it",
            "Of a straggler the median, weighted by the waiting.",
            paths="waiting.straggler.lead_ns",
        ),
        term("world size", "number of ranks of the run", paths="ranks[].world_size"),
        term("process group | group", "the ranks that take part in a collective"),
        term(
            "recomputation | checkpointing",
            "activations are not kept but computed again in backward",
            formula='classes[] where phase is "recompute"',
            paths="classes[phase=recompute].time_ns, classes[phase=recompute].flops",
        ),
        term(
            "part of | parts of an operator",
            "operators run by another operator's call and counted with it",
            paths="operators[].part_of",
        ),
        term("kind of device", "cuda, cpu or another one by torch's name", paths="environment.device_kind"),
        term("peak rate | peak of the device", "the device's maximum FLOPs per second, by data type"),
        term("units of rounding", "of float32: 2^-23, the relative distance of two neighbouring numbers"),
        term("noise", "variation between repetitions of the same run"),
        term("prediction | predicted", "worked out from a run of the baseline, before the technique is run"),
        term(
            "causal mask",
            "attention to earlier tokens only: FLOPs are counted without it, causal FLOPs with it",
            paths="operators[].causal_flops",
        ),
    ),
)


#: In page order; terms used in many tables come first.
CHAPTERS: Final = (
    COLUMNS, RUN, STEP, WHOLE_RUN, GENERATION, TEXTS, CLASSES, PHASES, RATIOS, OPERATORS, ROOFLINE, COMMUNICATION,
    RANKS, WAITING, COMPONENTS, PEAK, SNAPSHOTS, ACTIVATIONS, FAILURE, LEDGER, CHECKS, ADVICE, HOST, ESTIMATES,
    TECHNIQUES, SAME, UNDERFLOW, COMPARISON, SNAPSHOT, WORDS,
)  # fmt: skip


def entries() -> Iterator[tuple[Chapter, Term]]:
    """Return every term with the chapter that it is in, in the order of the page."""
    return ((chapter, entry) for chapter in CHAPTERS for entry in chapter.terms)


def names() -> tuple[str, ...]:
    """Return every name of every term."""
    return tuple(dict.fromkeys(name for _, entry in entries() for name in entry.names))


def terms_named(name: str, section: str | None = None) -> tuple[tuple[Chapter, Term], ...]:
    """Return the terms with this name in the report, in any case, with their chapters; with `section` those there.

    There may be several, if a name occurs in several tables, or none.
    """
    return tuple(
        (chapter, entry)
        for chapter, entry in entries()
        if (section is None or not chapter.sections or section in chapter.sections) and is_named(entry, name)
    )


def is_named(entry: Term, name: str) -> bool:
    """Return whether the report calls a term so, in any case."""
    wanted = _plain(name)
    return any(_is(known, wanted) for known in entry.names)


def chapter_of(section: str) -> Chapter | None:
    """Return the chapter of a section, by the section's name or the chapter's title; `None` if unknown."""
    wanted = _plain(section)
    of_name = (chapter for chapter in CHAPTERS if wanted in map(_plain, chapter.sections))
    return next(of_name, None) or next((chapter for chapter in CHAPTERS if _plain(chapter.title) == wanted), None)


def note(section: str, *wanted: str) -> str:
    """Return the note below a table about some of its columns or marks; raise `KeyError` if its chapters lack one."""
    return "; ".join(_note(section, name) for name in wanted)


def _note(section: str, name: str) -> str:
    entry = term_in(section, name)
    if entry is None:
        raise KeyError(f"the glossary has no {name!r} of the section {section!r}")
    return entry.note or f"{name}: {entry.meaning}"


def term_in(section: str, name: str) -> Term | None:
    """Return the meaning of a name in a section: the section's own term takes precedence over general ones."""
    known = terms_named(name, section)
    entries_of_it = [entry for chapter, entry in known if chapter.sections] or [entry for _, entry in known]
    return entries_of_it[-1] if entries_of_it else None


def _is(known: str, wanted: str) -> bool:
    if "{}" not in known:
        return _plain(known) == wanted
    return re.fullmatch(".+".join(map(re.escape, _plain(known).split("{}"))), wanted) is not None


def _plain(name: str) -> str:
    """Return a name without differences of spelling: case, `_` and `-` for a space, spaces and colons around."""
    return " ".join(re.sub(r"[_-](?=\w)", " ", name).casefold().split()).strip(" :")


# The glossary as Markdown: a list for each chapter.


def term_lists(page: str) -> str:
    """Return the names and meanings of the lines and columns that a page of docs/ lists."""
    return "\n\n".join(_chapter(chapter) for chapter in CHAPTERS if chapter.page == page)


def _chapter(chapter: Chapter) -> str:
    rows = "\n".join(f"- **{term.title}**: {term.meaning}" for term in chapter.terms)
    return f"### {chapter.title}\n\n{rows}"
