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
            "total time of kernels, copies and fills; on the CPU, self time of operators that compute",
            "Per step: the sum over the counted steps on all ranks, divided by the number of these steps.",
            formula="sum of classes[].time_ns, operators[].time_ns, kernels[].time_ns, modules[].time_ns",
            paths="classes[].time_ns, operators[].time_ns, kernels[].time_ns, modules[].time_ns",
        ),
        term(
            "share",
            "fraction of all classes' time",
            formula="time_ns / (sum of classes[].time_ns)",
            paths="classes[].time_ns",
        ),
        term(
            "FLOP share",
            "fraction of all classes' FLOPs",
            "Shown if FLOPs are known for at least half of the time.",
            formula="flops / (sum of classes[].flops)",
            paths="classes[].flops",
        ),
        term(
            "calls",
            "calls of an operator or collective, excluding nested calls",
            formula="classes[].calls, operators[].calls where part_of is null",
            paths="classes[].calls, operators[].calls",
        ),
        term(
            "FLOP | FLOPs | flops",
            "floating-point operations by formula; a multiply-add counts as 2, masked elements are included",
            "`opanatomy explain OPERATOR` shows each formula.",
            formula="sum of classes[].flops",
            paths="classes[].flops",
        ),
        term(
            "bytes",
            "minimum data movement, with each distinct input read and each output written once",
            "For a collective, the size of its messages; for memory, the allocated bytes.",
            formula="read_bytes + written_bytes",
            paths="classes[].read_bytes, classes[].written_bytes",
        ),
        term(
            "FLOP/B | intensity | arithmetic intensity",
            "FLOPs divided by bytes",
            "Left out if FLOPs are known for less than half of the time.",
            formula="flops / (read_bytes + written_bytes)",
            paths="classes[].flops, classes[].read_bytes, classes[].written_bytes",
        ),
        term(
            "FLOP/s",
            "FLOPs divided by time, for work with known FLOPs",
            "Omitted for an operator if its FLOPs are known for less than half of its time.",
            formula="10^9 x flops / (time_ns - uncosted_ns)",
            paths="classes[].flops, classes[].time_ns, classes[].uncosted_ns",
        ),
        term(
            "B/s",
            "bytes divided by time, for work with known bytes",
            "A lower bound on the traffic, since bytes are the minimum. Omitted for an operator if its bytes are"
            " known for less than half of its time.",
            formula="10^9 x (read_bytes + written_bytes) / (time_ns - uncosted_ns)",
            paths="classes[].read_bytes, classes[].written_bytes, classes[].time_ns, classes[].uncosted_ns",
        ),
        term("phase", "part of the step; see Phases"),
        term(
            "class | operator class",
            "kind of arithmetic; see Operator classes",
            "The first three classes are those of Ivanov et al., arXiv 2007.00072. A rule that matches the name of the"
            " operator or kernel assigns the class; `opanatomy explain OPERATOR` shows the rule.",
        ),
        term("total", "sum of the rows above"),
        term("type", "data type of the elements"),
        term(
            "ranks",
            "number of ranks in the group; ~ if the trace names no group",
            "Such a group is assumed to contain all ranks.",
        ),
        term(
            "formula",
            "how theory computes the size",
            "In the literature's notation: b batch, s sequence length, h hidden size, a heads, L layers, V vocabulary.",
        ),
        term("and {} more", "sum of the unlisted rows; `--top` lists more, `-f json` all"),
        term(
            "≥",
            "lower bound, since some work has no cost formula",
            "The value is left out if most of the work, by time, has no formula. If the trace lacks device work,"
            " calls, FLOPs, bytes and MFU are lower bounds too.",
            note="≥ lower bound, since some work has no cost formula",
        ),
        term("-", "unknown, or nothing to compare with"),
        term(
            "(n %)",
            "the bound is known for n % of the time",
            "`61.2 % (84 %)`: 61.2 % of peak, known for 84 % of the time. Left out if the bound is known for less than"
            " half of the time.",
            formula="(sum of classes[].bounded_ns) / (sum of classes[].time_ns)",
            paths="classes[].bounded_ns, classes[].time_ns",
        ),
        term(
            "per step, mean of {} | per step of a rank, mean of {} | per step",
            "mean over the counted steps on all ranks",
            "Sums are divided by the number of these steps, so parts add up to the total.",
            formula="x / step.count",
            paths="step.count",
        ),
        term("all {} steps together | all steps", "sums over all profiled steps", paths="step.count"),
        term("columns hidden at this width", "columns that need a wider terminal"),
    ),
)

_OF_CLASS: Final = {
    OperatorClass.TENSOR_CONTRACTION: (
        "tensor contraction | contraction",
        "products summed over an index (matrix multiplications, convolutions, attention)",
    ),
    OperatorClass.STATISTICAL_NORMALIZATION: (
        "statistical normalization | normalization",
        "reductions and divisions by their results (softmax, norms, losses, sums, pooling)",
    ),
    OperatorClass.ELEMENTWISE: (
        "element-wise | elementwise",
        "element-by-element arithmetic (activations, dropout, residuals, biases, optimizer updates)",
    ),
    OperatorClass.DATA_MOVEMENT: (
        "data movement",
        "moving bytes without arithmetic (copies, fills, transposes, lookups)",
    ),
    OperatorClass.COMMUNICATION: ("communication", "collectives and messages between ranks"),
    OperatorClass.OTHER: (
        "other",
        "known operators that fit no other class (sorting, sampling, scans, decompositions)",
    ),
    OperatorClass.UNKNOWN: (
        "unknown",
        "work that no rule matches; `explain --unknown REPORT` lists it",
    ),
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
    Phase.FORWARD: "the model's forward pass and the loss",
    Phase.BACKWARD: "gradients of weights and activations, computed by autograd",
    Phase.RECOMPUTE: "forward work that checkpointing repeats inside backward",
    Phase.OPTIMIZER: "the weight update, including gradient clipping and unscaling",
    Phase.PREFILL: "everything up to the first new token of a generation",
    Phase.DECODING: "everything after the first new token of a generation",
    Phase.OTHER: "everything else, such as data loading, metrics, evaluation under no_grad",
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
            "a class's backward values, including recompute, divided by its forward values",
            "The ratio of FLOPs or bytes is omitted if any call in either phase has no cost formula, and every ratio"
            " if its forward value is below 1 % of its backward value. Classes that take less than 1 % of the time of"
            " all classes are left out, as a note under the table says.",
            formula="(sum over phases backward and recompute) / (sum over phase forward), of classes[].time_ns,"
            " flops, read_bytes + written_bytes",
            paths="classes[].time_ns, classes[].flops, classes[].read_bytes, classes[].written_bytes",
        ),
        term(
            "FLOP theory | bytes theory | theory",
            "ratio that theory predicts for this step",
            "FLOPs of contractions: 2 if all weights and inputs need gradients (3 with checkpointing), since each"
            " forward matmul then has two backward matmuls, one for the weight's gradient and one for the input's."
            " Bytes of element-wise operators and norms: 1.5.",
            paths="ratios[].theory_flops, ratios[].theory_bytes",
        ),
        term("-", "some work has no cost formula, or forward is less than 1 % of backward"),
        term(
            "the paper's classes",
            "shares of the first three classes, next to the paper's",
            "Each share is relative to the three classes together, excluding the optimizer.",
            formula="(the class's sum of flops, or of time_ns) / (sum over the three classes), in all phases but"
            " optimizer",
            paths="classes[].flops, classes[].time_ns",
        ),
        term(
            "FLOP paper | time paper | paper",
            "share in arXiv 2007.00072 (BERT-large encoder layer, V100)",
            "FLOPs: contractions 99.80 %, normalizations 0.17 %, element-wise 0.03 %. Time: 61.0 %, 25.5 %, 13.5 %.",
        ),
    ),
)

OPERATORS: Final = Chapter(
    title="Operators, kernels, modules, lines",
    sections=("operators", "kernels", "modules", "lines"),
    terms=(
        term(
            "operator | operators",
            "operators that take the most time, by phase",
            "A row sums all signatures in a phase. Where operators that compute"
            " are nested, the outermost one is the call, and its class and cost cover everything that runs inside it:"
            " a copy inside `aten::addmm` is part of the addmm. `aten::` is dropped where space is short.",
            formula="operators[] grouped by phase and by part_of, else by operator",
            paths="operators[].operator",
        ),
        term(
            "kernel | kernels",
            "device work by kernel name; the name alone determines the class",
            formula="kernels[].time_ns, .count, .operators",
            paths="kernels[].time_ns, kernels[].count, kernels[].operators",
        ),
        term(
            "module | modules",
            "work of a module, including its submodules",
            "In the JSON report, each module excludes its submodules.",
            formula="modules[].time_ns, .flops by module, phase and class",
            paths="modules[].time_ns, modules[].flops",
        ),
        term(
            "line | lines",
            "line of your code that caused the work",
            "Backward work is assigned to the line of its forward operator, library work to the line that calls the"
            " library. With `--lines`, one extra step is measured line by line; a trace with Python stacks has only the"
            " lines on which functions start.",
            formula="lines[].time_ns grouped by the last line of stack",
            paths="lines[].stack, lines[].time_ns",
        ),
        term("function", "function that contains the line", paths="lines[].stack"),
        term(
            "with calls",
            "time of the line and everything it calls",
            formula="lines[].time_ns summed over all stacks that contain the line",
            paths="lines[].stack, lines[].time_ns",
        ),
        term(
            "no line known",
            "work not assigned to any line",
            formula='lines[] where stack is ""',
            paths="lines[].time_ns",
        ),
        term(
            "count",
            "number of times the kernel runs per step",
            formula="kernels[].count / step.count",
            paths="kernels[].count, step.count",
        ),
        term(
            "launched by",
            "operator that launched the kernel; empty if a graph did",
            paths="kernels[].operators",
        ),
        term(
            "launched by graphs",
            "device work that graphs launched rather than operators",
            formula="(the lesser of ledger.graph_launched_ns and ((sum of classes[].time_ns) - (sum of"
            " operators[].time_ns) - ledger.no_launch_record_ns)) / step.count",
            paths="ledger.graph_launched_ns, classes[].time_ns, operators[].time_ns, ledger.no_launch_record_ns,"
            " step.count",
        ),
        term(
            "without an operator",
            "device work that no operator call launched",
            formula="((sum of classes[].time_ns) - (sum of operators[].time_ns) - (launched by graphs)) / step.count",
            paths="classes[].time_ns, operators[].time_ns, step.count",
        ),
        term(
            "without a kernel",
            "work without a device event, such as collectives on host threads",
            formula="((sum of classes[].time_ns) - (sum of kernels[].time_ns)) / step.count",
            paths="classes[].time_ns, kernels[].time_ns, step.count",
        ),
        term(
            "outside modules",
            "work outside every module's range (loss, optimizer, anything between steps)",
            formula="((sum of classes[].time_ns) - (sum of modules[].time_ns)) / step.count",
            paths="classes[].time_ns, modules[].time_ns, step.count",
        ),
        term(
            "fwd FLOP | bwd FLOP | prefill FLOP | decode FLOP",
            "FLOPs of the module and its submodules in that phase; backward includes recompute",
            formula="(sum of modules[].flops by phase) / step.count",
            paths="modules[].flops, step.count",
        ),
        term("signature", "shapes and data types of the arguments", paths="operators[].signature"),
        term("rule", "rule that classified the operator or kernel", paths="operators[].rule, kernels[].rule"),
    ),
)

ROOFLINE: Final = Chapter(
    title="Roofline",
    sections=("bounds", "classes"),
    terms=(
        term(
            "roofline",
            "each class, then the operators with the most headroom, compared with the device's peaks",
            "Williams, Waterman and Patterson, 2009. Contractions are compared with the peak of the matrix units for"
            " their operands' data type, everything else with the peak of the vector units; communication and copies"
            " between host and device have no bound.",
        ),
        term(
            "bound",
            "the longer of FLOP / peak and bytes / bandwidth",
            "The minimum time of a call on this device, given its FLOPs and minimum bytes.",
            formula="max(flops / device.peak_flops_per_second[type], (read_bytes +"
            " written_bytes) / device.bandwidth_bytes_per_second)",
            paths="classes[].flops, device.peak_flops_per_second, classes[].read_bytes,"
            " classes[].written_bytes, device.bandwidth_bytes_per_second",
        ),
        term(
            "bound by",
            "compute, memory, or the share of the bound that memory sets",
            formula="(sum of classes[].memory_bound_ns) / (sum of classes[].bound_ns)",
            paths="classes[].memory_bound_ns, classes[].bound_ns",
        ),
        term(
            "memory",
            "bytes / bandwidth exceeds FLOP / peak",
            formula='operators[].bound_by is "memory"',
            paths="operators[].bound_by",
        ),
        term(
            "compute",
            "FLOP / peak exceeds bytes / bandwidth",
            formula='operators[].bound_by is "compute"',
            paths="operators[].bound_by",
        ),
        term(
            "of peak",
            "bound / time (MUE for memory-bound work)",
            "Covers only calls whose bound is known. Only hardware counters could distinguish unnecessary traffic"
            " from unused bandwidth. If the value exceeds 100 %, a note gives the reason, such as a causal mask or"
            " tensors that the last-level cache may serve. The JSON report also lists such operators in `checks`,"
            " quantity `ceiling`.",
            formula="(sum of bound_ns) / (sum of bounded_ns; for operators time_ns - uncosted_ns)",
            paths="classes[].bound_ns, classes[].bounded_ns, classes[].time_ns, classes[].uncosted_ns, device.above",
            note="of peak: bound / time (for memory-bound work, the paper's memory usage efficiency, MUE)",
        ),
        term(
            "headroom",
            "time - bound",
            "Computed per operator and phase, and never below 0; fusion or a better kernel could save this time.",
            formula="sum of classes[].headroom_ns",
            paths="classes[].headroom_ns",
        ),
        term(
            "MUE",
            "the paper's memory usage efficiency",
            "For memory-bound work, the `of peak` column shows it. MUE is (minimum bytes / bytes moved) x (bandwidth"
            " reached / peak bandwidth); the bytes actually moved cancel out.",
            formula="minimum bytes / (time x peak bandwidth)",
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
            "each kind of collective, by data type and number of ranks",
            "The times of all collectives sum exactly to the time of the communication class. Name, size and group"
            " come from `record_param_comms` and NCCL's kernels (torch 2.2 and later); older traces have shapes but"
            " no group. On the CPU, each gloo annotation is matched to its c10d operator by order, kind and size;"
            " gloo runs a reduce-scatter as an all-reduce.",
            formula="collectives[]",
            paths="collectives[].collective",
        ),
        term(
            "time",
            "time of the collective's kernels; by phase, their union",
            formula="collectives[].time_ns; communication.phases[].running_ns",
            paths="collectives[].time_ns, communication.phases[].running_ns",
            note="time includes waiting for other ranks",
        ),
        term(
            "bytes",
            "message sizes as nccl-tests counts them",
            "In an all-reduce, the bytes that a rank sends; in an all-gather, those it ends up with; in a"
            " reduce-scatter, those it starts with.",
            paths="collectives[].bytes",
        ),
        term(
            "bus | bus bandwidth",
            "bytes per second on the links",
            "The bus carries 2 (n - 1) / n of the size in an all-reduce, (n - 1) / n in an all-gather, reduce-scatter"
            " and all-to-all, and all of it in a broadcast. The time includes waiting for other ranks, so the links"
            " may be faster than this.",
            formula="10^9 x factor x bytes / collectives[].sized_ns",
            paths="collectives[].bytes, collectives[].sized_ns",
        ),
        term(
            "~",
            "the trace does not name the group, so all ranks are assumed",
            note="~ the trace does not name the group, so all ranks are assumed",
        ),
        term(
            "communication",
            "phase in which the collectives run",
            "Only the steps' own collectives count.",
            paths="communication.phases[].running_ns",
        ),
        term(
            "hidden",
            "share of the communication time that overlaps other work",
            formula="(running_ns - exposed_ns) / running_ns",
            paths="communication.phases[].running_ns, communication.phases[].exposed_ns",
        ),
        term(
            "exposed",
            "communication time without other work on the rank",
            "Includes waiting for other ranks.",
            paths="communication.phases[].exposed_ns, communication.exposed_ns",
        ),
        term(
            "together",
            "all phases; overlapping time counts once",
            paths="communication.running_ns, communication.exposed_ns",
        ),
        term(
            "communicated for",
            "module whose weights are gathered or whose gradients are reduced",
            paths="communication.modules[].module",
        ),
        term("(the model)", "work outside the model's submodules, or outside every module's range"),
        term(
            "host time of launching | the host took {} to launch them",
            "time the host spends launching collectives",
            formula="sum of communication.phases[].launching_ns",
            paths="communication.phases[].launching_ns",
        ),
        term(
            "messages by theory | messages of a step of a rank by theory",
            "bytes that a rank must exchange per step, next to those measured",
            "DDP must reduce each gradient once, in the last micro-step. FSDP2 must gather each module's weights for"
            " forward and, unless it keeps them, for backward, and reduce-scatter their gradients, padded to equal"
            " parts. The links carry 2 (n - 1) / n of DDP's bytes and (n - 1) / n of FSDP2's. The check `communicated"
            " bytes` compares every message with the one expected.",
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
            "mean step of each rank, or of groups of similar ranks",
            "Ranks are grouped if there are more than 16. A group consists of the most typical rank, whose times are"
            " closest to the medians, and of all ranks whose times differ from its times by at most 5 % of the median"
            " step; the next group is formed in the same way from the remaining ranks. A group's times are medians.",
            formula="ranks[].wall_ns; the other times are sums / ranks[].steps",
            paths="ranks[].wall_ns, ranks[].steps",
        ),
        term("step", "mean step time of the rank", paths="ranks[].wall_ns"),
        term(
            "own",
            "step time minus exposed communication",
            "Other ranks may be waiting during this time.",
            formula="ranks[].wall_ns - (ranks[].exposed_communication_ns / ranks[].steps)",
            paths="ranks[].wall_ns, ranks[].exposed_communication_ns, ranks[].steps",
        ),
        term(
            "busy",
            "time in which the rank's device does any work",
            formula="ranks[].busy_ns / ranks[].steps",
            paths="ranks[].busy_ns, ranks[].steps",
        ),
        term(
            "kernels",
            "total time of the rank's device work",
            "Overlapping work counts more than once.",
            formula="ranks[].kernel_time_ns / ranks[].steps",
            paths="ranks[].kernel_time_ns, ranks[].steps",
        ),
        term(
            "comm",
            "time in which the rank communicates",
            formula="ranks[].communication_ns / ranks[].steps",
            paths="ranks[].communication_ns, ranks[].steps",
        ),
        term(
            "exposed",
            "communication time without other work on the rank",
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
            "Ranks that wait for each other in collectives have equally long steps. The section `waiting` then"
            " shows which rank is slow; if no collective can be matched, the column `own` does.",
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
        term("step", "mean step time of the rank, excluding other steps' work", paths="waiting.each[].steps[].wall_ns"),
        term(
            "other work",
            "time in which any work except communication runs",
            formula="other_work_ns",
            paths="waiting.each[].steps[].other_work_ns",
        ),
        term(
            "transfer",
            "exposed communication after all ranks have entered the collective",
            "Only then can data flow. If several collectives run at once, time counts as waiting only if data can flow"
            " in none of them. Large uneven all-to-alls end at different times, so each rank has its own transfer"
            " time.",
            formula="transfer_ns",
            paths="waiting.each[].steps[].transfer_ns",
        ),
        term(
            "waiting",
            "exposed communication before all ranks have entered the collective",
            formula="waiting_ns",
            paths="waiting.each[].steps[].waiting_ns",
        ),
        term("transfer and waiting", "time that no other work hides"),
        term(
            "unmatched",
            "communication not matched across ranks",
            "Collectives that some of the given ranks lack, and all point-to-point messages.",
            formula="unmatched_ns",
            paths="waiting.each[].steps[].unmatched_ns",
        ),
        term(
            "idle",
            "time without any work (on the CPU, including framework time)",
            formula="idle_ns",
            paths="waiting.each[].steps[].idle_ns",
        ),
        term(
            "waited for",
            "total time that other ranks wait for this one",
            "All waiting in a collective is charged to the rank that enters it last.",
            formula="waiting.each[].charged_ns / number of steps",
            paths="waiting.each[].charged_ns, waiting.each[].steps[].number",
        ),
        term(
            "straggler",
            "rank that the other ranks wait for",
            "Named if it causes at least a quarter of all waiting and twice as much as the next rank, if waiting takes"
            " 1 % of the steps or more, if it enters collectives later than the next-to-last rank by more than the"
            " clock error, and if all ranks' traces were given. The waiting that it causes is split in two: what had"
            " accrued before its step began (the waiting minus the extra time that the rank took, compared with the"
            " others, from the start of its step to launching the collective), and the rest, which accrued within the"
            " step. If the rest is a tenth of this waiting or more, the line gives the reason: the rank computes"
            " longer (a slow device or more work) or is idle longer (a slow host), by more than 1 % and more than the"
            " clock error.",
            formula="waiting.straggler.charged_ns / .waiting_ns",
            paths="waiting.straggler.charged_ns, waiting.straggler.waiting_ns",
        ),
        term(
            "lower bound",
            "some ranks are missing and may be even later",
            paths="waiting.is_lower_bound",
        ),
        term(
            "collectives matched",
            "how calls were matched (by sequence number, order or time)",
            "By process group and sequence number if the trace has both (`Seq`, NCCL in torch 2.13). Otherwise by"
            " order in the group, at the offset at which all names and all message sizes that must be equal agree."
            " Kernels launched before the recording started are matched by collective, group, size and overlap in"
            " time.",
            formula="waiting.by_number, .by_order, .by_time",
            paths="waiting.by_number, waiting.by_order, waiting.by_time",
        ),
        term(
            "clocks",
            "whether the ranks' clocks agree, or were aligned by the ends of collectives",
            "Clocks stay unchanged if the ends of short collectives are already as close together as aligning would"
            " put them. `to within` gives the accuracy: nine in ten ends of short collectives lie at most"
            " this far from the midpoint of the collective's ends on all ranks.",
            formula="waiting.clocks",
        ),
        term(
            "matched",
            "collectives that were matched across ranks",
            formula="waiting.collectives[]",
            paths="waiting.collectives[].collective",
        ),
        term("number", "number of matched collectives", paths="waiting.collectives[].collectives"),
        term(
            "time",
            "transfer and waiting time, summed over all ranks",
            formula="waiting.collectives[].duration_ns = waiting.collectives[].transferring_ns + .waiting_ns",
            paths="waiting.collectives[].duration_ns, waiting.collectives[].transferring_ns,"
            " waiting.collectives[].waiting_ns",
        ),
        term(
            "time and waiting",
            "total over all ranks, and waiting as its share",
            note="time and bytes are summed over all ranks; waiting: share of the time",
        ),
        term(
            "bytes",
            "message sizes, summed over all ranks",
            "Counted as in the table of a single rank's collectives.",
            paths="waiting.collectives[].bytes",
        ),
        term("bus", "bus bandwidth over transfer and waiting time", paths="waiting.collectives[].bus_bytes_per_second"),
        term(
            "bus in transfer",
            "bus bandwidth after all ranks have entered the collective",
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
        f"Looks for {rule.looks_for}. Upper bound on the gain: {rule.bound}. Stays silent {rule.silent}. Gains in time"
        " below 2 % of the step are left out.",
        paths="advice[].id, advice[].gain_ns",
    )


ADVICE: Final = Chapter(
    title="What to try",
    sections=("advice", "more-advice"),
    terms=(
        term(
            "advice | what to try | try",
            "suggested changes, the largest gain first",
            "Each piece of advice follows from the report's numbers and gives the most that it could save, the reason"
            " and what to try. `up to` is the most that a change could save per step, counting only time that no"
            " other rule covers. `replayed` is what a replay of the trace predicts; if there are two values, one is"
            " for the host as recorded, the other for a host that recording does not slow down. The first screen"
            " shows three pieces, each with its first remedy; the full report shows all reasons and remedies.",
            formula="advice[]",
            paths="advice[].id, advice[].gain_ns, advice[].replayed_ns, advice[].step_ns",
        ),
        term(
            "situation",
            "how the step is run",
            "What the trace shows about DDP, FSDP, tensor parallelism, backward, attention masks, compiled code, CUDA"
            " graphs, the data loader, autocast, the optimizer, copies, a serving engine and the ranks. The suggested"
            " remedies depend on it.",
            paths="situation.ddp, situation.fsdp, situation.tensor_parallel, situation.backward, situation.score_mask,"
            " situation.compiled, situation.cuda_graphs, situation.loader, situation.autocast, situation.optimizer,"
            " situation.pinned_copies, situation.pageable_copies, situation.serving, situation.training_mode,"
            " situation.ranks, situation.world_size",
        ),
        *map(_rule, RULES),
        term(
            "together",
            "combined gain of the first three pieces of advice",
            "If a replay covers all three, its prediction, but no more than the sum of their gains. Otherwise, this"
            " sum, but no more than the step time.",
            paths="replay.together, advice[].gain_ns, advice[].step_ns",
        ),
        term(
            "out of memory",
            "changes that reduce a step's memory need",
            "Shown if a step ran out of memory or fills nine tenths of the device's memory. Computed from closed-form"
            " formulas for weights, gradients, optimizer state and activations.",
            paths="advice[].gain_bytes, advice[].peak_bytes, advice[].fits",
        ),
        term(
            "technique",
            "change, such as checkpointing, that a prediction recommends",
            "Covers techniques that leave the training unchanged, or nearly so. The peak includes all allocations; the"
            " time gain is the one at the fast end of the predicted range. The option `--suggest SECONDS` limits the"
            " time spent on predictions (default: a tenth of the run's time, at least 10 s).",
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
            "events on the launching threads",
            "Operators, ranges and runtime calls; on the CPU, those on the threads that run operators. A call that"
            " waits for the device is shown with the outermost operator around it.",
            paths="host[].name, host[].caller",
        ),
        term(
            "what",
            "kind of event",
            "Operator, range, runtime call, Python, or `others` (all names with less than 0.1 % of the time).",
            paths="host[].kind",
        ),
        term("events", "number of events per step", paths="host[].calls"),
        term(
            "self time",
            "time excluding nested events",
            paths="host[].self_ns",
            note="self time: excludes nested events",
        ),
        term("with parts", "time including nested events", paths="host[].total_ns"),
        term(
            "share",
            "fraction of the launching threads' time",
            formula="self_ns / (sum of host[].self_ns)",
            paths="host[].self_ns",
        ),
        term(
            "between recorded events",
            "time in Python, outside all events",
            paths="host[].self_ns",
            note="between recorded events: time in Python",
        ),
    ),
)

ESTIMATES: Final = Chapter(
    title="Estimates",
    sections=("estimate",),
    page="estimate.md",
    terms=(
        term("estimate | estimated", "a step on a device that is not present, computed rather than run"),
        term(
            "time",
            "range in which the step time is expected to fall in eager mode",
            "Each call takes 3 us plus the longer of two times: its FLOPs at the typical share of the peak, and its"
            " bytes at the typical share of the bandwidth; the host needs 18 to 150 us per launch. The larger of the"
            " device's and the host's sum is \"as is\"; the range extends a factor of 1.26 to either side, but not"
            ' below "attained".',
            formula="max(as_is_ns / 1.26, attained_ns) to as_is_ns x 1.26",
            paths="estimated.devices[].low_ns, estimated.devices[].high_ns, estimated.devices[].as_is_ns",
            note="time assumes typical shares of peak, fitted to published runs of dense decoders (docs/estimate.md)",
        ),
        term(
            "attained",
            "step time at the fastest rates anyone has measured on the device, if launches cost nothing",
            paths="estimated.devices[].attained_ns",
        ),
        term("host", "time the host needs to launch all work of a step", paths="estimated.devices[].host_ns"),
        term(
            "throughput",
            "tokens or samples per second, at both ends of the step time's range",
            paths="estimated.devices[].tokens, estimated.devices[].samples",
        ),
        term(
            "share of peak",
            "MFU at both ends of the step time's range (contraction FLOPs, without recomputation, over the peak)",
            paths="estimated.devices[].mfu",
        ),
        term(
            "fits | does not fit | at the edge",
            "whether the process fits into the device memory that is available to it",
            paths="estimated.devices[].occupied.fits",
        ),
        term("step", "batch, length, kind and precision of the estimated step", paths="workload.batch"),
        term("assumed", "defaults used for values that you did not specify", paths="estimated.assumed"),
        term(
            "formula",
            "training FLOPs per token, by a project's formula or counted by opanatomy",
            "Forward and backward without recomputation. `counted` sums the matmuls of the step's calls, with"
            " attention in full or only the part that a causal mask leaves; the backward of fused attention computes"
            " its scores again. The other formulas are those of nanoGPT, PaLM (appendix B), llm-foundry, torchtitan,"
            " Megatron-LM, and the Trainer's `total_flos`.",
            paths="estimated.conventions[].name, estimated.conventions[].mfu",
            note="compare MFUs from two projects only if both use the same formula",
        ),
        term(
            "at",
            "the throughput (tokens/s) from which FLOP/s and MFU are computed",
            "The middle of the estimate, or the value of `--tokens-per-second`.",
            paths="estimated.tokens_per_second",
        ),
        term("FLOP/token", "training FLOPs per token according to the formula", paths="estimated.conventions[].flops"),
        term(
            "FLOP/s",
            "FLOPs per second of one device, at the throughput in the line `at`",
            paths="estimated.conventions[].flops_per_second",
        ),
        term("counts", "work that the formula includes", paths="estimated.conventions[].counts"),
        term("leaves out", "work that the formula excludes", paths="estimated.conventions[].leaves_out"),
        term(
            "together",
            "training on several identical devices, with the time of their collectives",
            "At the lower end of the range, other work hides all of that time; at the upper end, none. Tensor-parallel"
            " layers wait for each collective.",
            paths="estimated.devices[].ranks, estimated.devices[].transfer_ns",
        ),
        term(
            "checked on",
            "how estimates for this kind of step compare with published runs",
            "The kinds are dense decoders and encoders, mixtures of experts, adapters, and convolutional networks."
            " Runs used to fit the efficiencies are not included.",
            paths="estimated.tried.kind, estimated.tried.runs, estimated.tried.inside, estimated.tried.median_off",
        ),
        term("on", "the device for which the step is estimated", paths="estimated.devices[].device"),
        term("from", "lower end of the step time's range", paths="estimated.devices[].low_ns"),
        term("to", "upper end of the step time's range", paths="estimated.devices[].high_ns"),
        term(
            "takes",
            "upper estimate of the device memory that the process needs",
            paths="estimated.devices[].occupied.high_bytes",
        ),
    ),
)
TECHNIQUES: Final = Chapter(
    title="Techniques",
    sections=("experiment", "fits", "techniques", "predictions", "technique-memory", "not-run", "offenders", "advice"),
    page="techniques.md",
    terms=(
        term(
            "fits | does not fit | at the edge",
            "whether the process fits into the memory available to it on the named device",
            "The step is simulated on a stand-in for that device, with tensors that have no values, so nothing is"
            " computed or allocated. `at the edge` means that the step fits only with the smallest context, or if the"
            " allocator returns unused memory. On the CPU, only the peak counts.",
            formula="rows[].predicted.occupied.high_bytes <= limit.usable_bytes",
            paths="limit.usable_bytes, rows[].predicted.occupied.high_bytes, rows[].predicted.occupied.fits",
        ),
        term(
            "memory",
            "bytes of the tensors in entire blocks, and bytes that the allocator reserves for them",
            "The allocation requests of the first two steps go through a model of torch's caching allocator (blocks"
            " of 512 bytes, segments of 2 and 20 MiB), including cuBLAS workspaces. With"
            " `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, the model uses expandable segments.",
            paths="rows[].predicted.occupied.allocated_bytes, rows[].predicted.occupied.reserved_bytes",
        ),
        term(
            "takes",
            "upper estimate of the device memory that the process needs",
            paths="rows[].predicted.occupied.high_bytes",
        ),
        term("assumed", "defaults used for values that you did not specify", paths="limit.assumed"),
        term(
            "at the peak",
            "the components that are live at the predicted peak, largest first",
            paths="rows[0].predicted.at_peak",
        ),
        term(
            "largest batch",
            "the largest batch size that fits even at the upper end of the predicted memory",
            "For this model and these options; `--find batch` computes it. A function receives the batch size in its"
            " argument `batch`; if it has no such argument, the first dimension of its inputs is changed.",
            paths="limit.found.value, limit.found.peak_bytes",
        ),
        term(
            "longest",
            "the longest sequence length, in tokens, that fits even at the upper end of the predicted memory",
            "Found in steps of 64 tokens; `--find seq` computes it.",
            paths="limit.found.value, limit.found.peak_bytes",
        ),
        term(
            "recompute",
            "the fewest layers to recompute so that the step fits",
            "With `--find checkpointing`, the step is simulated with the first 1, 2, 3, ... layers of each stack"
            " recomputed, then with all layers in segments, until it fits. Every number is tried, since the peak may"
            " rise from one to the next.",
            paths="limit.found.option, limit.found.recomputed, limit.found.tried",
        ),
        term(
            "the device's context",
            "device memory in use besides tensors",
            "The driver and loaded kernels hold it; on an H100 we measured 0.54 GB at the start and 0.78 GB after a"
            " step.",
            note="the size of the device's context is assumed, and convolution workspaces are not included",
        ),
        term(
            "technique",
            "name to pass to `opanatomy techniques --only`; the first row is the baseline",
            paths="rows[].name",
        ),
        term(
            "baseline",
            "the run as given, with which all techniques are compared",
            formula="rows[0]",
            paths="rows[0].name",
        ),
        term(
            "peak",
            "most memory allocated at one time in the step, counting all allocations",
            formula="rows[].measured.peak_bytes; predicted.peak_bytes if the technique was not run",
            paths="rows[].measured.peak_bytes",
        ),
        term(
            "d.peak",
            "change in peak from the baseline, in percent",
            formula="(peak_bytes - baseline's) / baseline's",
            paths="rows[].measured.peak_bytes",
        ),
        term("step", "median unprofiled step time", paths="rows[].measured.step_ns"),
        term(
            "d.step",
            "change in step time from the baseline, in percent; ~ if the repetitions' ranges overlap or the machine"
            " was busy",
            formula="(step_ns - baseline's) / baseline's",
            paths="rows[].measured.step_ns",
        ),
        term("step of the baseline", "median unprofiled step time of the baseline", paths="rows[0].measured.step_ns"),
        term(
            "peak of the baseline",
            "most memory allocated at one time in a step of the baseline",
            paths="rows[0].measured.peak_bytes",
        ),
        term(
            "samples",
            "samples per second in the baseline",
            formula="10^9 x rows[0].measured.samples / rows[0].measured.step_ns",
            paths="rows[0].measured.samples, rows[0].measured.step_ns",
        ),
        term("techniques", "number of techniques tried besides the baseline", formula="rows[1:]", paths="rows[].name"),
        term("figures", "whether the numbers were measured, or predicted without a run", paths="predicted_only"),
        term("repetitions", "how often each technique was timed, in random order", paths="repetitions, order"),
        term("seed", "random seed of the order and the weights", paths="seed"),
        term("d.", "change from the baseline"),
        term(
            "samples/s",
            "samples in the batch, divided by the step time",
            formula="10^9 x rows[].measured.samples / rows[].measured.step_ns",
            paths="rows[].measured.samples, rows[].measured.step_ns",
        ),
        term(
            "B/F FLOPs",
            "contraction FLOPs in backward, including recompute, divided by those in forward",
            formula="(flops.backward + flops.recompute) / flops.forward",
            paths="rows[].measured.flops",
        ),
        term("B/F", "backward, including recompute, divided by forward"),
        term(
            "FLOPs",
            "contraction FLOPs of the entire step, divided by the baseline's",
            formula="(sum of flops) / (the baseline's)",
            paths="rows[].measured.flops",
        ),
        term("~", "no difference beyond the repetitions' variation, or a busy machine"),
        term(
            "!",
            "the prediction disagrees with the measurement (see the table of predictions)",
            "A memory prediction disagrees if it is off by more than 2 %, a time prediction if the measured change is"
            " outside its range.",
        ),
        term(
            "prediction of",
            "prediction made before the technique was run",
            formula="rows[].predicted",
            paths="rows[].predicted.step_ns, rows[].predicted.peak_bytes",
        ),
        term(
            "off by",
            "relative error of the prediction",
            "For memory, that of the peak. For time, that of the ratio to the baseline's step, in which the machine's"
            " drift cancels out.",
            formula="(predicted.peak_bytes / measured.peak_bytes) - 1; ((predicted step / baseline's predicted) /"
            " (measured step / baseline's measured)) - 1",
            paths="rows[].predicted.peak_bytes, rows[].measured.peak_bytes, rows[].predicted.step_ns,"
            " rows[].measured.step_ns",
            note="off by: relative error of the prediction (for the step, of its ratio to the baseline's step)",
        ),
        term(
            "step of a prediction",
            "predicted at the rates that the baseline's calls reached",
            note="step: predicted at the rates that the baseline's calls reached",
        ),
        term("from", "the shortest predicted step", paths="rows[].predicted.low_ns"),
        term("to", "the longest predicted step", paths="rows[].predicted.high_ns"),
        term(
            "memory of",
            "each component's largest size in the step",
            formula="rows[].measured.components",
            paths="rows[].measured.components",
            note="each component's largest size in the step",
        ),
        term(
            "why not",
            "why the technique did not run, or could not be predicted",
            formula="rows[].failed, .not_predicted",
            paths="rows[].failed, rows[].not_predicted",
        ),
        term(
            "offenders | what made predictions wrong",
            "operators whose predicted and measured times differ the most",
            formula="rows[].offenders[]: measured_ns next to predicted_ns",
            paths="rows[].offenders[].operator, rows[].offenders[].measured_ns, rows[].offenders[].predicted_ns",
        ),
        term("advice", "conclusions of the experiment, each with the option to use", paths="advice"),
    ),
)

SAME: Final = Chapter(
    title="The same training?",
    sections=("same-training", "losses"),
    page="techniques.md",
    terms=(
        term(
            "the same training?",
            "differences in float32 epsilons, after one step without dropout from the same weights and data",
            "Shows `same`, or `DIFFERS` with the first operator whose output differs from the baseline's.",
            formula="rows[].sameness",
            paths="rows[].sameness.loss_units, rows[].sameness.gradient_units, rows[].sameness.weight_units",
            note="differences in float32 epsilons, after one step without dropout from the same weights and data",
        ),
        term("loss", "relative difference between the losses, in epsilons", paths="rows[].sameness.loss_units"),
        term(
            "gradients",
            "relative difference between the gradients, in epsilons",
            paths="rows[].sameness.gradient_units",
        ),
        term(
            "weights",
            "relative difference between the updated weights, in epsilons",
            paths="rows[].sameness.weight_units",
        ),
        term("worst gradient", "weight whose gradient differs the most", paths="rows[].sameness.worst_gradient.name"),
        term(
            "losses of",
            "losses of techniques that change the result, trained on one batch without dropout",
            formula="rows[].losses",
        ),
        term("first", "loss of the first step", paths="rows[].losses.losses[0]"),
        term("last", "loss of the last step", formula="rows[].losses.losses[-1]", paths="rows[].losses.losses"),
        term(
            "baseline's",
            "loss of the baseline in the last step",
            formula="rows[].losses.baseline[-1]",
            paths="rows[].losses.baseline",
        ),
        term(
            "apart at most",
            "largest relative difference from the baseline's loss of the same step",
            formula="the largest of (|losses - baseline|) / (|baseline|), over the steps of rows[].losses",
        ),
    ),
)

UNDERFLOW: Final = Chapter(
    title="Gradients in float16",
    sections=("underflow",),
    page="techniques.md",
    terms=(
        term("gradients of", "technique that computes in float16 (one row per loss scale)"),
        term(
            "loss scale",
            "factor by which the loss is multiplied; 1 means no scaling",
            paths="rows[].underflow.scaled.scale",
        ),
        term(
            "zero",
            "share of elements that become exactly zero, among those that are nonzero without autocast (neither step"
            " uses dropout)",
            formula="rows[].underflow.scaled.zeros / rows[].underflow.nonzero",
            paths="rows[].underflow.scaled.zeros, rows[].underflow.nonzero",
        ),
        term("elements", "number of elements that become zero", paths="rows[].underflow.scaled.zeros"),
        term(
            "inf or NaN",
            "number of elements that overflow; the update is then skipped",
            paths="rows[].underflow.scaled.not_finite",
        ),
    ),
)

COMPARISON: Final = Chapter(
    title="A comparison",
    sections=("changed", "sides", "causes", "changes", "kernels-changed", "steps", "figures", "gates", "classes"),
    page="comparing.md",
    terms=(
        term("before", "the first side's value, averaged over its similar steps"),
        term("after", "the second side's value, averaged over its similar steps"),
        term(
            "change",
            "after minus before; all parts sum to the step's change, to the nanosecond",
            "Swapping the sides negates each part.",
        ),
        term(
            "steps",
            "numbers of the similar steps that the means cover, and how many steps are set aside",
            "`opanatomy explain 'set aside'` lists the rules.",
        ),
        term(
            "where the difference is from",
            "the difference in step time, split by cause and class",
            "On an accelerator, step = other steps' work + idle time by cause + time not recorded + the time of all"
            " device events in the step - overlaps; on the CPU, step = self times + framework + profiler.",
        ),
        term("and {} smaller", "parts that change by less than a thousandth of the largest change"),
        term("without a difference", "parts that take equally long on both sides"),
        term("step", "mean time of the similar steps, to which the parts sum"),
        term(
            "work",
            "operator, kernel or collective that changed",
            "Matched by operator, signature, module, phase and kernel name (not for aten contractions; for Triton"
            " kernels, without the compiler's number), then by fewer and fewer of these. Work of different classes is"
            " never matched. If only one side records an operator's arguments, matching ignores them, and a warning"
            " says so.",
        ),
        term("what changed", "kind of change (more calls, moved, another kernel, new, gone, ...)"),
        term("another kernel", "contraction for which the library chose another kernel"),
        term("side", "one of the runs, or groups of runs, that are compared"),
        term("time", "mean time of the side's similar steps"),
        term(
            "figure",
            "value per step, under its name in `Anatomy.metrics()`",
            "≥ marks a lower bound (`lower_bounds`). Counts of FLOPs and bytes are `exact`, so no test of"
            " significance applies to them.",
        ),
        term(
            "ranges",
            "whether the two sides' ranges of step times are apart or overlap; with five or more runs per side,"
            " the p value",
            "For a p value, the runs must be interleaved. Numbers are then medians, with a 95 % interval from order"
            " statistics if there are at least six runs.",
        ),
        term(
            "the same calls | {}, the same calls", "the same work with the same number of calls, now slower or faster"
        ),
        term("more calls | {}, more calls", "time of the additional calls"),
        term("fewer calls | {}, fewer calls", "time of the calls that are gone"),
        term("moved | moved from {} | {}, moved from {} to {}", "the same work in another phase"),
        term(
            "other arguments | {}, other arguments | {} x the FLOPs | {} x the bytes",
            "the same operator with different shapes or data types",
        ),
        term("{}, another kernel", "the same operator, now using another kernel"),
        term(
            "another operator | {}, another operator",
            "the same kernel, launched by a different operator",
            "If a trace's times are whole microseconds, it can be unclear which operator was the innermost.",
        ),
        term("new | {}, new", "work that the first side lacks"),
        term("gone | {}, gone", "work that the second side lacks"),
        term("idle, host-bound", "idle time before work launched after the device became idle"),
        term("idle, stream waits", "idle time in which the next work, already launched, waits for another stream"),
        term("idle, other", "idle time between events of one stream, or before work without a launch record"),
        term("work of other steps", "time in which the device does only another step's work"),
        term(
            "framework",
            "wall time on the CPU that no operator accounts for",
            "Excludes the profiler's part if it is known on both sides.",
        ),
        term("profiler", "the profiler's part of the step, if known on both sides"),
        term(
            "of all steps",
            "value for the entire report, including other kinds of steps",
            "No value is known for the similar steps alone.",
        ),
        term("signature", "shapes and types of the arguments"),
        term("samples", "samples per second"),
        term("peak", "peak memory of the step"),
        term("~", "no difference beyond chance (p >= 0.01)"),
        term(
            "overlap of {}",
            "time in which two kinds of work run at once, which is subtracted once",
            "The kinds are compute, communication and copies; n events that run at once have n - 1 overlaps.",
        ),
        term(
            "gate",
            "result of a `--fail-if` condition: passed, FAILED or UNKNOWN",
            formula="gates[].met, .unknown, .measured",
            paths="gates[].met, gates[].unknown, gates[].measured",
        ),
        term(
            "Not comparable",
            "the sides did different work, so no changes, causes or conclusions are given",
            "Reasons: one side lacks kernel records, in full or in part; one side ran on the CPU, the other on an"
            " accelerator; one side is an entire trace taken as one step, and its number of calls differs from that of"
            " the other side's steps by a factor of 1.5 or more (weighted median); a step of one side makes 90 % of"
            " all calls exactly 2 (or exactly 3, ...) times as often as a step of the other; or the models differ."
            " They differ if less than half of one side's work is also on the other side, unless the models' names"
            " match, or the contractions' FLOPs (to 1 %), or half of the contractions where these are at least a fifth"
            " of the work.",
            paths="not_comparable",
        ),
        term("warning", "remarks about the traces"),
    ),
)


# The ledger of device work, and what second sources say of the figures.


LEDGER: Final = Chapter(
    title="The ledger",
    sections=("ledger",),
    terms=(
        term(
            "ledger | work",
            "account of all device work; entries sum exactly to the total",
            formula="device_work = linked + graph_launched + no_launch_record + outside_window: ledger.*_ns",
            paths="ledger.device_work_ns, ledger.linked_ns, ledger.graph_launched_ns, ledger.no_launch_record_ns,"
            " ledger.outside_window_ns",
        ),
        term(
            "device work",
            "all kernels, copies and fills; on the CPU, the self times of operators that compute",
            paths="ledger.device_work_ns",
        ),
        term("linked to operators | linked", "work launched inside an operator's call", paths="ledger.linked_ns"),
        term(
            "launched by graphs",
            "work of a CUDA graph, whose launch does not name operators",
            paths="ledger.graph_launched_ns",
        ),
        term(
            "without launch record", "work whose launch is missing from the trace", paths="ledger.no_launch_record_ns"
        ),
        term(
            "outside the window",
            "work launched outside the counted steps",
            paths="ledger.outside_window_ns",
        ),
        term(
            "classified",
            "share of the window's work that a rule classifies",
            formula="ledger.classed_ns / (device_work_ns - outside_window_ns)",
            paths="ledger.classed_ns, ledger.device_work_ns, ledger.outside_window_ns",
        ),
        term(
            "costed",
            "share of the window's work with a cost formula",
            formula="ledger.costed_ns / (device_work_ns - outside_window_ns)",
            paths="ledger.costed_ns, ledger.device_work_ns, ledger.outside_window_ns",
        ),
        term(
            "unknown",
            "share of the window's work that no rule matches",
            "`explain --unknown REPORT` lists all names.",
            formula="ledger.unknown_ns / (device_work_ns - outside_window_ns)",
            paths="ledger.unknown_ns, ledger.device_work_ns, ledger.outside_window_ns",
        ),
        term(
            "no formula",
            "classified work without a cost formula",
            "Lists operators, graph work by kernel name, and work without an operator, with their shares of the time.",
            formula="operators[] where read_bytes is null, kernels[] where operators is empty, and the rest of"
            " device_work - outside_window - costed - unknown",
            paths="ledger.unknown_ns, ledger.costed_ns, ledger.device_work_ns, ledger.outside_window_ns",
        ),
        term("counting | conventions", "how FLOPs, bytes and steps are counted", paths="conventions"),
        term("multiply-add", "a multiplication and an addition count as 2 FLOPs", paths="conventions.multiply_add"),
        term(
            "causal",
            "masked positions count toward attention FLOPs, except with a sliding window",
            "If the call's arguments record a sliding window, only the FLOPs within window and mask count.",
            formula="conventions.causal; operators[].causal_flops has the FLOPs under the mask",
            paths="conventions.causal, operators[].causal_flops",
        ),
    ),
)

#: The two figures compared by each check, and how.
_OF_CHECK: Final = {
    "call counts": (
        "calls per operator and phase against a TorchDispatchMode's counts in a warm-up step",
        "The mode watches the second warm-up step if there is one, with the random numbers of the profiled steps.",
    ),
    "contraction FLOPs": (
        "contraction FLOPs against torch.utils.flop_counter in a watched step",
        "Where torch's registry has no formula or a wrong one, the second count is derived from the outputs:"
        " convolution backward, CPU flash attention, mkldnn_rnn_layer, _grouped_mm, _int_mm, mv, dot,"
        " _euclidean_dist, sparse. In a trace recorded elsewhere, an operator's FLOPs are checked against those of"
        " the operator that it calls.",
    ),
    "operator times": (
        "operator times against those in the profiler's own event tree",
        "Compares self time on the CPU and device time on an accelerator, to the nanosecond.",
    ),
    "annotated phases": (
        "phases against the trace's own annotations",
        "Annotations are names such as `## forward ##`, `loss.backward()`, `optimizer.step`. The option `--phase`"
        " assigns a range to a phase.",
    ),
    "classes of kernels": (
        "a kernel's class, from its name, against its operator's class",
        "Finds, for example, an NCCL kernel in an operator that computes.",
    ),
    "order on streams": ("the order of work on a stream against the order of its launches", ""),
    "clocks of host and device": (
        "times of device work against those of its launches and waits",
        "Differences of up to 0.1 ms are attributed to the clocks.",
    ),
    "device work of launches": ("launches against the device work that they start", ""),
    "device events": ("for device work that overlaps other work on its stream", ""),
    "ceiling": (
        "times against the minimum time at the device's peaks",
        "Work that is faster than this needs an explanation.",
    ),
    "memory peak": (
        "the peak against the allocator's own peak",
        "The allocator's peak is torch.cuda.max_memory_allocated in that step; the CPU allocator records none.",
    ),
    "allocated before the step": ("the bytes allocated before the step against the allocator's number", ""),
    "allocated bytes": ("the sum of the blocks at each event against the allocator's total", ""),
    "communicated bytes": ("the messages of a step against those that the ranks must exchange", ""),
    "parts of steps": ("the parts of a rank's step against the union of its work", ""),
}  # fmt: skip


def _check_terms() -> tuple[Term, ...]:
    return tuple(
        term(
            name,
            f"checks {meaning}",
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
            "problems that affect every number",
            "For example, a truncated file, missing records or ranks, several kinds of devices, or a busy machine.",
            paths="caveats",
        ),
        term(
            "given-peaks",
            "`--peak` or `--bandwidth` values that the trace exceeds",
            "The option's value is most likely too low. It is your claim, not a second source, so the check `ceiling`"
            " uses the higher of the option and the peak known otherwise (measured, or from the data sheet), and"
            " `--check` fails only if the trace exceeds both. If nothing else is known about the device, the option"
            " counts as the cause of a difference. To gate on the option, use `--fail-if 'mfu > 100%'`.",
            paths="device.exceeded",
        ),
        term(
            "may be wrong | disagreements",
            "numbers that a second source does not confirm, without a known cause",
            "For each check, shows the difference that affects the most work, if the check's differences together"
            " affect 1 % of the work or more; `--check` then fails with exit code 3. The share is the fraction of"
            " device work (on the CPU, of operator time) in calls that a difference affects; for a difference without"
            " a time, it is the relative difference between the two numbers.",
            formula="checks[].differences where cause is null",
            paths="checks[].differences[].operator, checks[].differences[].ours, checks[].differences[].other",
        ),
        term(
            "below 1 %",
            "differences that affect less than 1 % of the work; `--check` does not fail",
            formula="checks[].differences where cause is null",
            paths="checks[].differences[].operator, checks[].differences[].ours, checks[].differences[].other",
        ),
        term(
            "uncertain",
            "unexplained differences behind `may be wrong`, with evidence",
            formula="checks[].differences[].time_ns, .evidence",
            paths="checks[].differences[].time_ns, checks[].differences[].evidence",
        ),
        term(
            "confirmed",
            "numbers that agree with a second source",
            formula="sum of checks[].equal",
            paths="checks[].equal",
        ),
        term(
            "explained",
            "differences with a known cause, and the operators concerned",
            "Shown with `--section ledger`.",
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
    "inputs": "the input batch",
    "gradients": "gradients of the weights, live after backward",
    "ddp_buckets": "DDP's flat reduction buffers, unless gradients are views of them",
    "optimizer_state": "moments and other state that the optimizer keeps for each weight",
    "optimizer_step_counters": "the optimizer's step counts, one per tensor",
    "forward_activations": "tensors that forward saved for backward",
    "autocast_weight_casts": "autocast's half-precision copies of the weights",
    "rng_states": "random generator states that checkpointing saves",
    "checkpoint_arguments": "inputs of checkpointed layers",
    "recomputed_activations": "activations recomputed, then freed in the same backward",
    "key_value_cache": "keys and values of all tokens so far, in a generation",
    "beam_copies": "copies of the cache and inputs for each beam, in a generation",
    "outputs": "results of forward",
    "held_by_model": "tensors that the module or the loop keeps alive through backward",
    "blas_workspace": "cuBLAS workspaces",
    "communication_buffers": "buffers of torch.distributed",
    "held_before": "memory that was allocated before the step and belongs to no other component",
    "allocator_rounding": "bytes added by rounding requests up",
    "pending_free": "freed blocks that another stream may still use",
    "temporary_buffers": "tensors that live within one operator or one phase",
    "device_context": "memory of the driver and loaded kernels, outside the allocator",
    "allocator_cache": "reserved device memory that nothing uses",
    "before_window": "everything that was allocated before recording started",
    "other": "blocks of a trace that no rule assigns to a component",
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
            "component sizes in the unprofiled step, next to theory",
            "A trace alone has only [memory] events (`profile_memory=True`), so components are inferred from when"
            " their blocks were allocated and freed, and each inference is stated.",
            formula="memory.components[]",
            paths="memory.components[].component, memory.components[].at_peak_bytes",
        ),
        term(
            "measured",
            "each component's largest size in the step",
            "Activations are measured at the end of forward, temporary buffers at the peak. A report of a trace alone"
            " lacks this column, since its components are inferred at the peak.",
            paths="memory.components[].measured_bytes",
        ),
        term(
            "at peak",
            "bytes of the component that are live at the peak",
            "All components sum to the peak.",
            paths="memory.components[].at_peak_bytes",
        ),
        term("theory", "size according to the row's formula", paths="memory.components[].theory_bytes"),
        term(
            "off",
            "measured minus theory, in percent of theory",
            formula="(measured_bytes - theory_bytes) / theory_bytes",
            paths="memory.components[].measured_bytes, memory.components[].theory_bytes",
        ),
        term(
            "peak | peak in {} | memory peak",
            "most memory allocated at one time, and in which phase",
            "The note under the table names the source, an allocator or a trace's events.",
            paths="memory.allocator_peak_bytes, memory.peak_at, memory.measured_by",
        ),
        term(
            "peak of the process",
            "largest resident set size (RSS) of the process, including Python",
            "Used on the CPU if allocations were not tracked; `--memory` tracks them.",
            paths="memory.process_peak_bytes",
        ),
        term(
            "inferred | {} (inferred)",
            "rules that assigned blocks to components by their allocation and free times",
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
            "blocks allocated at the peak, by operator and module",
            formula="memory.blocks[]",
            paths="memory.blocks[].bytes",
        ),
        term("operator", "operator that allocated the blocks"),
        term("module", "module whose work allocated the blocks"),
        term("blocks", "number of allocator blocks", paths="memory.blocks[].blocks"),
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
            "tensors that forward saved, grouped by similar modules, operator and shape",
            "In a module's path, `*` stands for a number.",
            formula="memory.activations[]",
            paths="memory.activations[].bytes",
        ),
        term("made by", "operator that produced the tensors"),
        term("shape", "data type and shape of one block"),
        term("each", "number of blocks, and the size of each"),
        term("the model", "memory outside the model's submodules"),
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
        term("at the start", "Python and its libraries, before the model is created"),
        term("allocated", "memory handed out by the allocator", paths="memory.snapshots[].allocated_bytes"),
        term(
            "reserved", "memory held by the allocator, including free blocks", paths="memory.snapshots[].reserved_bytes"
        ),
        term(
            "GPU occupied",
            "device memory in use by all processes, according to NVML",
            paths="memory.snapshots[].nvml_used_bytes",
        ),
        term("process", "resident set size (RSS) on the host", paths="memory.snapshots[].rss_bytes"),
        term("before the device", "nothing is on the device yet"),
        term("context", "only the device's context exists"),
        term("weights", "the model is on the device"),
        term("after forward", "forward is done"),
        term("after backward", "backward is done"),
        term("after optimizer", "the weights are updated"),
        term("peak", "most memory in use during the step"),
    ),
)

ACTIVATIONS: Final = Chapter(
    title="Memory by theory",
    sections=("activation-terms", "published"),
    terms=(
        term(
            "activations by theory",
            "closed-form formula for the saved activations, term by term",
            paths="memory.terms[].formula",
        ),
        term("sum", "total of all terms", formula="sum of memory.terms[].bytes", paths="memory.terms[].bytes"),
        term(
            "the classic run",
            "a published run of BERT-large, next to this one",
            "Published by Hugging Face: batch 4 x 512, float32, AdamW, one V100.",
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
        term("Tesla V100 16 GB", "the published number, measured on this GPU"),
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
        term("failed request", "size of the allocation request that failed", paths="memory.failure.requested_bytes"),
        term("allocated then", "bytes allocated when memory ran out", paths="memory.failure.allocated_bytes"),
        term(
            "needed by theory, without buffers",
            "bytes that the step needs, excluding temporary buffers",
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
            "memory allocated by the innermost line of your own code inside a module",
            "If there is none, the innermost line of a library's model, or else of any code. For two snapshots, the"
            " table compares both peaks.",
            formula="memory.parts[]",
            paths="memory.parts[].name, memory.parts[].component",
        ),
        term(
            "module, by the lines that call it",
            "memory allocated by modules, identified by the lines that call them",
            "With `opanatomy.snapshot(module=...)`, modules are identified by their paths.",
            paths="memory.parts[].name",
        ),
        term("operator class", "memory allocated by operators of the class", paths="memory.parts[].name"),
        term("compiled region", "compiled code that allocated the memory", paths="memory.parts[].name"),
        term("allocated in", "phase in which the memory was allocated", paths="memory.parts[].name"),
        term("component", "what the blocks hold; `inferred` gives the reason", paths="memory.parts[].component"),
        term(
            "of it",
            "share of the memory allocated at the moment shown",
            formula="memory.parts[].bytes / memory.shown_bytes",
            paths="memory.parts[].bytes, memory.shown_bytes",
        ),
        term(
            "at the end | when memory ran out | at {} ms",
            "memory allocated at the moment shown (`--at`)",
            "The peak has its own column.",
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
            "blocks that are live at the moment shown",
            formula="memory.blocks[]",
            paths="memory.blocks[].bytes",
        ),
        term(
            "requested at one time",
            "largest sum of requested sizes at one time; the peak counts entire blocks",
            "Like torch's `requested_bytes`, but blocks count until they are freed, not until other streams are done"
            " with them.",
            paths="memory.requested_peak_bytes",
        ),
        term("no stack recorded", "memory allocated before recording started, or by an autograd thread"),
        term(
            "held at the end",
            "memory held by the allocator's small and large pools, and by those of CUDA graphs",
            "Rows name expandable segments and streams.",
            paths="memory.pools[].pool",
        ),
        term("segments", "number of segments that the allocator got from the device", paths="memory.pools[].segments"),
        term("reserved", "total size of the segments", paths="memory.pools[].reserved_bytes"),
        term("in use", "bytes requested and not yet freed", paths="memory.pools[].requested_bytes"),
        term(
            "rounding",
            "bytes added by rounding requests up",
            paths="memory.pools[].rounding_bytes",
        ),
        term("free", "bytes that the pool holds but that are not in use", paths="memory.pools[].free_bytes"),
        term("largest free", "size of the largest request that still fits", paths="memory.pools[].largest_free_bytes"),
        term("reserved then", "bytes reserved when memory ran out", paths="memory.failure.reserved_bytes"),
        term(
            "of it unused",
            "upper bound on the reserved bytes that are in no block in use",
            paths="memory.failure.unused_bytes",
        ),
        term(
            "free on the device then",
            "device memory that no process used when memory ran out",
            paths="memory.failure.device_free_bytes",
        ),
        term(
            "the peak | all that is allocated then",
            "the sum of all changes",
            "Compares two snapshots at their peaks, or at the end if there is no history.",
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
            "the model's class and number of parameters",
            "The number of trainable parameters is in parentheses if some are frozen.",
            paths="workload.architecture, workload.parameters, workload.trainable_parameters",
        ),
        term(
            "workload",
            "task, batch, length, data type, attention, options",
            "The batch size is per update; with gradient accumulation, each forward processes part of it.",
            formula="workload.*",
            paths="workload.architecture, workload.batch, workload.sequence_length, workload.dtype",
        ),
        term(
            "run unfused | (run unfused) | {} attention (run unfused) | unfused attention",
            "torch ran scaled_dot_product_attention as matrix multiplications and a softmax",
            "No fused kernel ran, so the attention probabilities are stored. On the CPU, the usual reason is dropout,"
            " which no fused CPU kernel supports; turn it off with `--set attention_probs_dropout_prob=0` (the name"
            " differs between models).",
            paths="workload.attention, operators[].operator",
        ),
        term(
            "training",
            "how ranks train together; samples per rank and in total",
            formula="workload.parallel, workload.world_size, workload.batch x ranks that have their own data",
            paths="workload.parallel, workload.world_size, workload.batch",
        ),
        term(
            "backward",
            "output from which backward starts",
            "The loss; otherwise the only scalar output; otherwise all outputs, with gradients of one.",
            paths="workload.backward_from",
        ),
        term("changed", "settings changed by `--layers` and `--set`", paths="workload.changes"),
        term(
            "device",
            "hardware that ran the step",
            "If a trace has several kinds of devices, the one that ran the most kernels.",
            paths="environment.device, environment.device_memory_bytes, environment.device_count",
        ),
        term(
            "software",
            "versions of torch, CUDA, the driver, transformers and opanatomy",
            formula="environment.*",
            paths="environment.torch, environment.transformers, environment.python",
        ),
        term("trace", "file from which all numbers come", paths="provenance.trace"),
        term("command", "command that made the report", paths="provenance.command"),
        term("opanatomy", "version that made the report", paths="provenance.opanatomy"),
        term(
            "rank",
            "rank that recorded the trace, and number of ranks",
            formula="ranks[0].rank, .world_size",
            paths="ranks[0].rank, ranks[0].world_size",
        ),
        term("warning | warnings", "remarks about the trace and how it was recorded", paths="warnings"),
        term(
            "in-short",
            "a step's time, number of steps, device, busy share",
            "The shares are those of the profiled step; on the CPU, those of operators and framework. Samples per"
            " second are left out where there is no room.",
            paths="step.wall_ns, step.unprofiled_wall_ns, step.count, timeline.busy_ns, step.samples_per_second",
        ),
        term(
            "headline | what costs most",
            "largest part of the step, and the next one if it takes 15 % or more",
            "The parts do not overlap: idle time with its cause, exposed communication (waiting for another rank is"
            " separate), on the CPU the framework, and classes, which share the rest in proportion to their kernel"
            " time. Optimizer, recompute and decoding are taken from the same time, by phase. Parts are ranked by"
            " their share of the counted steps' wall time, excluding other steps' work; all shares in the sentence"
            " are relative to that time. `of peak` in the sentence is bound / time, as in the roofline. The largest"
            " idle cause is named if it takes half of the idle time; otherwise, each of the two largest is named if it"
            " takes 30 % or more. Parts below 2 % are left out; device memory that is 90 % full is named second.",
        ),
    ),
)

GENERATION: Final = Chapter(
    title="Generations",
    sections=("generation",),
    terms=(
        term(
            "generation",
            "new tokens per sample, from greedy or beam search",
            paths="generation.new_tokens, generation.beams",
        ),
        term(
            "prefill",
            "time to the first new token",
            "The entire prompt is processed at once. Measured on unprofiled generations.",
            paths="generation.first_token_ns",
        ),
        term(
            "decoding",
            "time from one new token to the next, and tokens per second over all samples",
            formula="generation.token_ns = generation.decoding_ns / generation.decoded_tokens",
            paths="generation.token_ns, generation.decoding_ns, generation.decoded_tokens",
        ),
        term(
            "a token",
            "bytes and FLOPs of one forward pass during decoding",
            "The pass produces a token for every sample and beam.",
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
            "how texts are padded, and the share of tokens that are text",
            formula="texts.all_useful_tokens / texts.all_tokens",
            paths="texts.all_useful_tokens, texts.all_tokens",
        ),
        term(
            "wasted",
            "contraction FLOPs spent on padding, in the profiled batch",
            "Derived from shapes: in a matmul over all tokens, each token has an equal share; in a matmul of two"
            " sequences (attention scores, and the sum over values), each pair of tokens has one. Contractions whose"
            " shapes do not show padding (experts, convolutions) are listed as unknown.",
            formula="texts.padding_flops.padding_flops / texts.padding_flops.flops",
            paths="texts.padding_flops.padding_flops, texts.padding_flops.flops",
        ),
        term(
            "tokenizer",
            "tokenizer speed, and whether steps would wait for it",
            "Each tokenizer is timed on the same texts, in a single call.",
            formula="texts.tokenizers: tokens_per_second against texts.tokens_per_second",
            paths="texts.tokenizers[].tokens_per_second, texts.tokens_per_second",
        ),
        term(
            "steps",
            "mean step time over the batches; samples and tokens per second",
            "The range covers the steps of all batches.",
            formula="texts.mean_step_ns, .samples_per_second, .useful_tokens_per_second",
            paths="texts.mean_step_ns, texts.samples_per_second, texts.useful_tokens_per_second",
        ),
        term("memory", "memory of a step on the longest batch", paths="texts.memory_length"),
        term("batch", "number of the batch"),
        term("length", "padded length of the texts, in tokens", paths="texts.batches[].length"),
        term("tokens", "texts x length, including padding", paths="texts.batches[].tokens"),
        term(
            "useful",
            "share of the tokens that are text",
            formula="texts.batches[].useful_tokens / .tokens",
            paths="texts.batches[].useful_tokens, texts.batches[].tokens",
        ),
        term(
            "step",
            "mean unprofiled step time, excluding steps with a pause",
            paths="texts.batches[].step_ns",
        ),
        term(
            "useful tokens",
            "tokens per second, excluding padding",
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
            "whole run | unrecorded step | unrecorded steps",
            "steps of the loop that were not recorded",
            "The first step is excluded too. The wait for input is the time in which the loop waits for a DataLoader"
            " outside evaluations; with several ranks, that of the rank that waits most.",
            formula="run.wall_ns / run.steps, run.median_ns, run.input_ns / run.wall_ns",
            paths="run.wall_ns, run.steps, run.median_ns, run.input_ns",
        ),
        term(
            "evaluation",
            "time from a module's `eval()` until it trains again, or while batches load with gradients disabled",
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
            "samples per second over the entire run, including evaluations and checkpoints",
            "Shown next to the throughput of the recorded steps if steps unlike these take a tenth of the run or more.",
            paths="trends.samples_per_second",
        ),
        term(
            "host's time",
            "breakdown of the host's time in the timed steps; the remainder is not split further",
            "On an accelerator, backward and optimizer are host time, not device time. In a loop under `record`, the"
            " optimizer is part of `forward, loss and everything else`.",
            paths="run.series, run.input_ns, run.evaluating_ns, run.checkpointing_ns, run.compiling_ns",
        ),
        term(
            "first step",
            "time from the import of torch, or the recorder's start, to the end of the first step",
            formula="run.start.wall_ns, including .input_ns, .compiling_ns, ...",
            paths="run.start.wall_ns",
        ),
        term("at the end", "time after the last step", paths="run.end.wall_ns"),
        term(
            "drift",
            "typical step time in the last tenth of the run compared with the first tenth",
            "Reported if the change is at least 5 % and the run has at least 100 steps, if the tenths lie on a line"
            " (t of 5) or on two levels (t of 7), and if the first three are all above or all below the last three."
            " Evaluations, checkpoints and compiling are excluded.",
            formula="trends.drift.last_ns / .first_ns; trends.drift.parts",
            paths="trends.drift.last_ns, trends.drift.first_ns, trends.drift.parts",
        ),
        term(
            "memory",
            "memory that grows steadily over the run, or a peak that rises while retained memory does not",
            "Memory grows if the minimum in each tenth rises from the second to the last tenth by 512 MiB or more,"
            " and at least a quarter of that in the second half; growth below 1 GiB is marked `only a trend so far`. If"
            " the peak rises by a tenth but the memory kept after a step does not, the peak varies with the batches.",
            formula="trends.growth[].last_bytes - .first_bytes over .steps; trends.peak",
            paths="trends.growth[].last_bytes, trends.growth[].first_bytes, trends.growth[].steps, trends.peak",
        ),
        term(
            "host memory", "private memory of the process, after the last step and at its maximum", paths="run.series"
        ),
        term(
            "device", "what the driver reported about the device over the entire run, as in `clock`", paths="run.device"
        ),
        term(
            "slow step | slow steps",
            "step more than twice as long as the 75th percentile of all steps",
            "Evaluations and checkpoints are excluded. The five longest steps are shown with their time in waiting"
            " for input, compiling and garbage collection.",
            formula="run.slow_steps, run.slow",
            paths="run.slow_steps",
        ),
        term("graph break | graph breaks", "where torch.compile broke the graph, and why", paths="run.graph_breaks"),
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
            "mean wall time of a step, unprofiled and profiled",
            "Short unprofiled steps are repeated up to five times. The difference is shown only if every profiled"
            " step was slower than each of at least two unprofiled steps. On an accelerator, a step lasts from its"
            " annotation (`ProfilerStep#N`), or from the end of the previous step if that is later, to the end of the"
            " last device work launched in it. Time in which the device does only other steps' work is not counted.",
            formula="step.unprofiled_wall_ns, step.wall_ns; samples/s = samples of a step / (unprofiled step, else"
            " profiled step)",
            paths="step.unprofiled_wall_ns, step.wall_ns, step.samples_per_second",
        ),
        term(
            "unprofiled",
            "mean step time without the profiler",
            "Steps more than twice as long as the shortest one are excluded.",
            formula="step.unprofiled_wall_ns, mean of step.unprofiled_count steps",
            paths="step.unprofiled_wall_ns, step.unprofiled_count",
        ),
        term(
            "profiled",
            "mean step time under the profiler, over the counted steps",
            formula="step.wall_ns, mean of step.count steps",
            paths="step.wall_ns, step.count",
        ),
        term("samples/s", "samples per second, from the unprofiled step if known", paths="step.samples_per_second"),
        term(
            "steps",
            "number of steps, shortest, longest; excluded steps, with the reason",
            "Numbers are means over the counted steps, so that parts sum to the total. `opanatomy explain 'set"
            " aside'` lists the rules.",
            formula="step.count, step.wall_min_ns, step.wall_max_ns, step.unprofiled_wall_min_ns, ...",
            paths="step.count, step.wall_min_ns, step.wall_max_ns, step.unprofiled_wall_min_ns",
        ),
        term(
            "torch.compile",
            "compile time, and step times with and without torch.compile",
            "The compile time comes from torch's own record; compiled and uncompiled steps alternate. Compiling"
            " pays off once the time saved in the steps exceeds the compile time; the difference is clear if every"
            " uncompiled step is longer than every compiled one.",
            formula="compilation.compiling_ns / (median of .uncompiled_step_ns - median of .compiled_step_ns)",
            paths="compilation.compiling_ns, compilation.uncompiled_step_ns, compilation.compiled_step_ns",
        ),
        term(
            "clock",
            "the device's SM clock during recorded steps, next to its maximum",
            "Read through NVML: the median, and the readings in which the driver named a reason for a lower clock"
            " (power cap, heat, hardware slowdown, power brake, set clocks, sync boost). Power is a mean; energy"
            " comes from the device's counter.",
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
            "wall time on the CPU that no operator accounts for (dispatch, autograd, Python)",
            "step = operators + framework + profiler, exactly. Framework includes the profiler's part if that cannot"
            " be separated from noise. CPU time that an unprofiled step spent in the OS kernel (providing memory and"
            " so on) is in `step.system_ns`, the memory pages that it provided in `step.page_faults`.",
            formula="step.framework_ns = step.wall_ns - step.busy_ns - step.profiler_ns",
            paths="step.framework_ns, step.wall_ns, step.busy_ns, step.profiler_ns, step.system_ns, step.page_faults",
        ),
        term(
            "profiler",
            "estimated time that the profiler itself takes on the CPU",
            "The profiled minus the unprofiled step, multiplied by the fraction of event ends that lie outside"
            " operators.",
            formula="step.profiler_ns / step.wall_ns",
            paths="step.profiler_ns, step.wall_ns",
        ),
        term("samples of a step", "total batch of all ranks that have their own data", paths="workload.batch"),
        term(
            "window",
            "from the start of the first step to the end of the last",
            "Without annotations, each step ends with an optimizer update; if several optimizers alternate, with the"
            " update of the last one. The first step starts with the trace; what follows the last update belongs to"
            " no step. If updates follow no regular order, the entire trace is one step. With several devices, times"
            " are means over those that ran kernels.",
            formula="timeline.window_ns / step.count (for several ranks, divided by the steps of one); window = busy +"
            " outside + unrecorded + idle, idle = host-bound + stream waits + other, exactly",
            paths="timeline.window_ns, step.count",
        ),
        term(
            "the step without other steps' work | without it",
            "the window minus other steps' work; all shares refer to it",
            formula=_OF_STEP,
            paths="timeline.window_ns, timeline.outside_ns",
        ),
        term(
            "from the first to the last device work",
            "used as the step if the trace has no steps",
            "`timeline.around_ns` is the time before and after all device work.",
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
            "time in which the steps' kernels, copies or fills run",
            "The union of the device work launched in the steps.",
            formula=f"timeline.busy_ns / {_OF_STEP}",
            paths="timeline.busy_ns, timeline.window_ns, timeline.outside_ns",
        ),
        term(
            "compute and copies",
            "time in which the device computes or copies",
            "Communication may overlap this time.",
            formula=f"(timeline.busy_ns - .exposed_communication_ns) / {_OF_STEP}",
            paths="timeline.busy_ns, timeline.exposed_communication_ns, timeline.window_ns, timeline.outside_ns",
        ),
        term(
            "in it waiting for other ranks",
            "exposed communication before all ranks have entered the collective",
            formula="(sum of waiting.each[].steps[].waiting_ns) / (sum of waiting.each[].steps[].wall_ns), at most"
            " the exposed share",
            paths="waiting.each[].steps[].waiting_ns, waiting.each[].steps[].wall_ns",
        ),
        term(
            "kernel time",
            "total time of device work on all streams",
            "Can exceed the step time.",
            paths="step.kernel_time_ns",
        ),
        term(
            "overlap",
            "communication and copy time, and the exposed part of each",
            formula=f"timeline.communication_ns, .exposed_communication_ns, .exposed_memcpy_ns / {_OF_STEP}",
            paths="timeline.communication_ns, timeline.exposed_communication_ns, timeline.exposed_memcpy_ns,"
            " timeline.window_ns, timeline.outside_ns",
        ),
        term(
            "communication",
            "time in which any collective runs",
            formula=f"timeline.communication_ns / {_OF_STEP}",
            paths="timeline.communication_ns, timeline.window_ns, timeline.outside_ns",
        ),
        term(
            "of it exposed | exposed communication",
            "communication time without other work on the device",
            "`timeline.computation_ns` is the union of all work except communication and copies, so busy -"
            " computation - exposed memcpy is the communication that no computation hides.",
            formula=f"timeline.exposed_communication_ns / {_OF_STEP}",
            paths="timeline.exposed_communication_ns, timeline.window_ns, timeline.outside_ns",
        ),
        term(
            "exposed memcpy",
            "copy time without other work on the device",
            formula=f"timeline.exposed_memcpy_ns / {_OF_STEP}",
            paths="timeline.exposed_memcpy_ns, timeline.window_ns, timeline.outside_ns",
        ),
        term(
            "idle",
            "time without device work, and its causes",
            "A gap ends with device work. If that work was launched after the device became idle, the cause is what"
            " the launching thread does in the gap or, if it records nothing, what other launching threads do. If"
            " several causes coincide, the first of these counts: profiler's records, compiling, input wait,"
            " allocator calls, slow launches, synchronizations, collective calls, operator calls, Python. If the work"
            " was launched earlier, the cause is `another stream` or `between kernels`; the rest is `unknown cause`."
            " Each cause names the call, operator or range that fills most of its idle time.",
            formula=f"timeline.idle_ns / {_OF_STEP}; idle_ns = host_idle_ns + stream_idle_ns + other_idle_ns",
            paths="timeline.idle_ns, timeline.host_idle_ns, timeline.stream_idle_ns, timeline.other_idle_ns,"
            " timeline.window_ns, timeline.outside_ns",
        ),
        term(
            "profiler's records | recorded Python",
            "idle time while the profiler writes records",
            "Also while the profiler records Python stacks.",
        ),
        term("compiling", "idle time while Dynamo, Inductor or Triton compiles"),
        term(
            "input wait",
            "idle time while the host loads or copies input",
            "Covers ranges that load data, and copies whose calls block the host.",
        ),
        term("allocator calls", "idle time while device or pinned memory is allocated or freed"),
        term(
            "slow launches",
            "idle time during unusually long launches and calls that load kernels",
            "A slow launch takes at least 0.2 ms and 20 times as long as the median launch.",
        ),
        term("synchronizations", "idle time during calls that wait for the device"),
        term("collective calls", "idle time while the host calls collectives"),
        term("operator calls", "idle time while the host runs operators and ordinary launches"),
        term(
            "Python",
            "idle time while the host is between operators",
            "The host is in user ranges, or records nothing for up to 1 ms.",
        ),
        term("another stream", "stream waits after the launch has returned"),
        term("between kernels", "idle time before work already launched on the stream that worked last"),
        term("unknown cause", "idle time that no record explains"),
        term(
            "drained",
            "idle time in gaps that begin while the host waits for the device",
            "Nothing is queued then.",
            formula="timeline.drained_ns / timeline.idle_ns",
            paths="timeline.drained_ns, timeline.idle_ns",
        ),
        term(
            "not recorded",
            "time for which the trace lacks device work",
            "Neither busy nor idle. It lasts from a launch whose work is missing to the next recorded work (graph"
            " nodes, a truncated file), or while the host waits beyond the last recorded work.",
            formula=f"timeline.unrecorded_ns / {_OF_STEP}",
            paths="timeline.unrecorded_ns, timeline.awaited_ns, timeline.window_ns, timeline.outside_ns",
        ),
        term(
            "decided by",
            "what determines the step time, according to a replay",
            "The step is timed again as a graph of host points and device events. On the path that ends last, host"
            " time is shown by kind and device work by class. `launch latency` and `queue` are delays of the device.",
            paths="replay.path, replay.step_ns",
        ),
        term(
            "replay",
            "how accurate a replay of the step is",
            "Its predicted gains are used if its error with typical delays, the unexplained delays and the work that"
            " was launched before the trace are each below 5 % of the step time, and if less than 1 % of it lacks"
            " device work.",
            paths="replay.error, replay.unexplained, replay.why_not, replay.host_factor, replay.least_ns",
        ),
        term(
            "what if",
            "replayed step time after a change",
            "The option `--what-if 'aten::mm x0.5'` scales the time of a class, an operator, a kernel, `device`,"
            " `copies`, `host` or a kind of host time. Without an unprofiled step, a second value"
            " is for a host that recording does not slow down (assuming 2 us per recorded event).",
            paths="replay.answers",
        ),
        term(
            "host-bound | host bound",
            "idle time before work launched after the device became idle",
            "Idle time at the end, with no work after it, counts too. The host is late, so more work per launch or"
            " fewer launches help.",
            formula=f"timeline.host_idle_ns / {_OF_STEP}",
            paths="timeline.host_idle_ns, timeline.window_ns, timeline.outside_ns",
        ),
        term(
            "stream waits | stream wait",
            "idle time in which the next work, already launched, waits for another stream",
            formula=f"timeline.stream_idle_ns / {_OF_STEP}",
            paths="timeline.stream_idle_ns, timeline.window_ns, timeline.outside_ns",
        ),
        term(
            "other",
            "idle time between events of one stream, or before work without a launch record",
            formula=f"timeline.other_idle_ns / {_OF_STEP}",
            paths="timeline.other_idle_ns, timeline.window_ns, timeline.outside_ns",
        ),
        term(
            "other steps' work | busy with another step's work | outside",
            "time in which the device does only work launched outside the window",
            "Neither busy nor idle.",
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
            "mean time from the start of a launch to the start of its first kernel",
            "Total delay divided by the window gives the mean queue length.",
            formula="timeline.launching.delay_ns / timeline.launching.delayed",
            paths="timeline.launching.delay_ns, timeline.launching.delayed",
        ),
        term(
            "tiny kernels | of the kernels below",
            "kernels shorter than 10 us",
            "They take about as long to launch as to run.",
            formula="timeline.launching.tiny_kernels / .kernels, .tiny_kernel_ns / .kernel_ns",
            paths="timeline.launching.tiny_kernels, timeline.launching.kernels, timeline.launching.tiny_kernel_ns,"
            " timeline.launching.kernel_ns",
        ),
        term(
            "estimates",
            "Kineto's estimates of how full the device is, from launch dimensions",
            formula="device.sm_efficiency, device.occupancy, device.tensor_core_ns / timeline.launching.kernel_ns",
            paths="device.sm_efficiency, device.occupancy, device.tensor_core_ns, timeline.launching.kernel_ns",
        ),
        term(
            "SM efficiency",
            "mean share of multiprocessors that hold a block, over the steps' time",
            "At each moment, min(blocks per SM, 1) summed over the running kernels and capped at 1, so it never"
            " exceeds the utilization.",
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
            "share of the steps' time in which any kernel runs",
            "Copies and fills are left out.",
            paths="device.utilization",
        ),
        term(
            "tensor cores | tensor-core time",
            "share of kernel time on tensor cores, according to kernel names",
            'On AMD, matrix cores. The rules are in `classification/kernels.py`. "(12 % unknown)" is the share of'
            " kernel time in matmuls and unclassified kernels whose names do not show this. Not shown for devices"
            " without tensor cores.",
            formula="device.tensor_core_ns / timeline.launching.kernel_ns",
            paths="device.tensor_core_ns, timeline.launching.kernel_ns",
        ),
        term(
            "peaks",
            "dense peaks by data type, the peak of other arithmetic, bandwidth, and their source",
            "Sources in order of precedence: `--peak` and `--bandwidth`; the measurements of `opanatomy peaks` on this"
            " device; the vendor's data sheet. A device that none of them covers has no peaks.",
            formula="device.peak_flops_per_second, .vector_flops_per_second, .bandwidth_bytes_per_second, .source",
            paths="device.peak_flops_per_second, device.vector_flops_per_second,"
            " device.bandwidth_bytes_per_second, device.source",
        ),
        term(
            "reached",
            "MFU and HFU, the shares of peak that contractions reach",
            "Values above 100 % come with an explanation: the share under the causal mask, or that the mask was not"
            " recorded. With several data types, it also shows the MFU of each against its own peak.",
            paths="device.mfu, device.hfu, device.causal_mfu, device.causal_hfu, device.own_peaks_mfu,"
            " device.unmasked_share",
        ),
        term(
            "attention | a window of {} tokens needs {} of the FLOPs",
            "part of attention's FLOPs that a sliding window needs",
            "The kernel multiplies all queries by all keys, and FLOPs count what it computes.",
            formula="(pairs of tokens within window and causal mask) / (all pairs), in layers with a window",
            paths="workload.within_windows, workload.windows",
        ),
        term(
            "MFU | model FLOPs utilization",
            "contraction FLOPs per step, excluding recomputation, divided by those that the peak allows",
            "The peak is that of the data type with most of these FLOPs; the step is the unprofiled one if it was"
            " measured. ≥ marks a lower bound, from the part of the contractions' time whose FLOPs are known; if that"
            " is below half, no value is shown.",
            formula="(sum of operators[].flops of tensor_contraction, phase not recompute) / (step.count x"
            " step.unprofiled_wall_ns (else wall_ns) x device.peak_flops_per_second[device.mfu_dtype] x devices with"
            " kernels)",
            paths="operators[operator_class=tensor_contraction].flops, step.count, step.unprofiled_wall_ns,"
            " step.wall_ns, device.peak_flops_per_second, device.mfu_dtype",
        ),
        term(
            "HFU | hardware FLOPs utilization",
            "like MFU, but including recomputation",
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
            "like steps | like step | steps of a kind | similar steps | similar step",
            "steps that make the same calls",
            "They run the same kernels (on the CPU, operators) with the same arguments, equally often. A run whose"
            " steps alternate has several kinds of steps; `compare` compares the kinds that are most alike.",
        ),
        term(
            "set aside | disturbed",
            "step excluded from the means",
            "A step is set aside if other steps' work fills more than 1 % of it; if it contains a pause; if it does"
            " less than a tenth of the work of the step with the most work (on the CPU, only if it also makes"
            " different calls); or if most steps make the same calls and it makes different ones (unless such steps"
            " have a phase that most lack, as when every fourth step updates the weights). The line `steps` and"
            " `step.steps[].set_aside` give the reason. If all steps contain other steps' work, all count. With"
            " several ranks, a step counts only if it counts on every rank. `compare` sets steps aside only for the"
            " first two reasons.",
        ),
        term(
            "pause | holds a pause | a pause is in it",
            "interruption that makes a step more than twice as long as the shortest similar step",
            "The step is idle for most of the difference. Waiting for input is not a pause.",
        ),
        term(
            "of another kind | steps of another kind | other kinds",
            "steps whose calls differ from those of the compared steps",
            "The line `steps` shows their means on both sides.",
        ),
        term(
            "mean step | mean like step",
            "sums over the counted steps, divided by the number of these steps",
            "Means add up, so that parts sum to the total; medians do not.",
            formula="x / step.count",
            paths="step.count",
        ),
        term("before and after", "of two sides, before is the first and after the second"),
        term("wall time", "elapsed time, including waiting and idle time"),
        term(
            "self time | self times",
            "time of an operator, excluding the operators that it calls",
            "On the CPU, self times sum to the time that operators account for.",
        ),
        term("device event | device events", "kernel, copy or fill on the device, as the trace records it"),
        term("launch", "host call that starts a kernel, or all kernels of a graph"),
        term("launch record", "host event that launched a device event"),
        term("stream", "device queue whose work runs in order; several streams may run at once"),
        term(
            "graph | CUDA graph",
            "kernels that a single launch starts together; the launch names the graph, not the operators",
        ),
        term(
            "synchronization",
            "call in which the host waits for the device",
            formula="timeline.launching.synchronizing_calls / step.count,"
            " timeline.launching.synchronizing_ns / step.count",
            paths="timeline.launching.synchronizing_calls, step.count, timeline.launching.synchronizing_ns",
        ),
        term("exposed", "running while the device does no other work, which makes the step longer"),
        term("hidden", "running while the device does other work, which does not make the step longer"),
        term(
            "covered | known for",
            "share of the time for which FLOPs, bytes or a bound are known",
            "Values known for less than half of the time are left out.",
        ),
        term(
            "significant",
            "difference that chance alone would produce in less than 1 % of cases (p < 0.01)",
            "Decided by a Mann-Whitney test over at least five interleaved runs of each side, since steps of one run"
            " are not independent.",
        ),
        term(
            "p | p value | Mann-Whitney",
            "probability that chance alone produces a difference at least this large",
            "From a Mann-Whitney test over the runs of both sides.",
        ),
        term(
            "interleaved | took turns | in turn",
            "runs that alternate between the sides, so that machine drift affects both",
            "At any moment, both sides have done about the same share of their runs; if both have equally many runs,"
            " the numbers of finished runs differ by at most one. ABAB and ABBA are interleaved; AABB is not, nor is"
            " an order that ends with several runs of one side.",
        ),
        term("apart", "the ranges of the two sides have no value in common"),
        term("overlapping", "the ranges of the two sides have values in common"),
        term("range", "from the minimum to the maximum of several steps or runs"),
        term("run | runs", "one execution of the program, with one report; several runs per side allow a claim"),
        term(
            "like ranks | group of ranks",
            "ranks whose times differ from those of the most typical rank by at most 5 % of the median step",
        ),
        term(
            "charged",
            "attributed to a rank; the rank that enters a collective last is charged with all waiting in that"
            " collective",
            paths="waiting.straggler.charged_ns",
        ),
        term(
            "lead | after the rank before it",
            "how much later the last rank enters a collective than the next-to-last rank",
            "For a straggler, the median weighted by the waiting.",
            paths="waiting.straggler.lead_ns",
        ),
        term("world size", "number of ranks in the run", paths="ranks[].world_size"),
        term("process group | group", "the ranks that take part in a collective"),
        term(
            "recomputation | checkpointing",
            "discarding activations in forward and computing them again in backward",
            formula='classes[] where phase is "recompute"',
            paths="classes[phase=recompute].time_ns, classes[phase=recompute].flops",
        ),
        term(
            "part of | parts of an operator",
            "operators called by another operator and counted with it",
            paths="operators[].part_of",
        ),
        term("kind of device", "cuda, cpu or another of torch's device types", paths="environment.device_kind"),
        term("peak rate | peak of the device", "the device's maximum FLOPs per second, by data type"),
        term("epsilons", "2^-23 for float32, the relative distance between neighboring numbers"),
        term("noise", "variation between repetitions of the same run"),
        term("prediction | predicted", "value computed from a run of the baseline, before the technique is run"),
        term(
            "causal mask",
            "mask that limits attention to earlier tokens; FLOPs ignore it, causal FLOPs respect it",
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
        raise KeyError(f"the glossary has no {name!r} in section {section!r}")
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
