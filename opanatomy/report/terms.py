"""List every line and column that the report prints: its meaning and its formula.

It is the one source of `opanatomy explain`'s texts on a term, of the tables of terms in docs/report.md, and of the
notes below the report's tables. Anything new on the page is one entry in the chapter of its section.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from opanatomy.records.taxonomy import OperatorClass, Phase

# An entry of the glossary: the names of a line or column of the report, its meaning, its formula.


class Term(Struct, frozen=True, kw_only=True):
    """One line or column of the report.

    `names` are the report's words for it, the usual one first, then others; `{}` stands for a word that differs.
    `meaning` is its text in the note below a table, without a full stop; `note` the whole note if that is not "name:
    meaning". `more` is further text, `formula` its derivation from the keys of the JSON report.
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
    """The terms of some sections of the report, named in `sections`; those without sections stand anywhere."""

    title: str
    sections: tuple[str, ...] = ()
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
        names=tuple(names.split(" | ")), meaning=meaning, more=more, formula=formula or paths,
        paths=tuple(paths.split(", ")) if paths else (), note=note,
    )  # fmt: skip


# Time, FLOPs and bytes: columns of many tables, classes and phases, operators, backward over forward, the roofline.


COLUMNS: Final = Chapter(
    title="Columns of many tables",
    terms=(
        term("time", "device work: the sum of kernels, copies and fills, on the CPU the self time of operators that"
             " compute", "Of one step: the sum over all profiled steps, of all ranks, divided by their number.",
             formula="sum of classes[].time_ns, operators[].time_ns, kernels[].time_ns, modules[].time_ns",
             paths="classes[].time_ns, operators[].time_ns, kernels[].time_ns, modules[].time_ns"),
        term("share", "the part of the time of all classes",
             formula="time_ns / (sum of classes[].time_ns)", paths="classes[].time_ns"),
        term("FLOP share", "the part of the FLOPs of all classes, where these are known of half of the time at least",
             formula="flops / (sum of classes[].flops)", paths="classes[].flops"),
        term("calls", "how often: of an operator, of a collective; calls that are part of another one are not counted",
             formula="classes[].calls, operators[].calls where part_of is null",
             paths="classes[].calls, operators[].calls"),
        term("FLOP | FLOPs | flops", "floating-point operations by formula: a multiply-add is two, no mask is taken"
             " off",
             "`opanatomy explain OPERATOR` has the formula of each.", formula="sum of classes[].flops",
             paths="classes[].flops"),
        term("bytes", "the least that must move: each distinct input read once, each output written once",
             "Of a collective the size of its messages, of memory what is allocated.",
             formula="read_bytes + written_bytes", paths="classes[].read_bytes, classes[].written_bytes"),
        term("FLOP/B | intensity | arithmetic intensity", "FLOPs over bytes: the arithmetic intensity",
             "Nothing where FLOPs are known of less than half of the time.",
             formula="flops / (read_bytes + written_bytes)",
             paths="classes[].flops, classes[].read_bytes, classes[].written_bytes"),
        term("FLOP/s", "FLOPs a second, over the time whose FLOPs are known",
             "Of operators nothing where that is less than half of their time.",
             formula="10^9 x flops / (time_ns - uncosted_ns)",
             paths="classes[].flops, classes[].time_ns, classes[].uncosted_ns"),
        term("B/s", "bytes a second, over the time whose bytes are known", "With the least bytes, so a lower bound of"
             " the traffic. Of operators nothing where that is less than half of their time.",
             formula="10^9 x (read_bytes + written_bytes) / (time_ns - uncosted_ns)",
             paths="classes[].read_bytes, classes[].written_bytes, classes[].time_ns, classes[].uncosted_ns"),
        term("phase", "the part of the step: forward, backward, recompute, optimizer, other; of a generation prefill"
             " and"
             " decoding"),
        term("class | operator class", "what kind of arithmetic: tensor contraction, statistical normalization,"
             " element-wise, data movement, communication, other, unknown",
             "The first three are those of Ivanov et al., arXiv 2007.00072. A rule by name decides;"
             " `opanatomy explain OPERATOR` names it."),
        term("total", "the sum of the rows above"),
        term("type", "the data type of the elements"),
        term("ranks", "how many ranks take part; ~ where the trace names no group: all ranks are taken"),
        term("formula", "how the figure follows from the model's and the batch's sizes, in the letters of the"
             " literature:"
             " b batch, s length, h hidden, a heads, L layers, V vocabulary"),
        term("and {} more", "the rows that are not listed, together; --top lists more, -f json all"),
        term("≥", "some of the time has no formula", "The figure is a lower bound: what has none adds to it."
             " Where most of the time has none, the figure is left out.",
             note="≥ some of the time has no formula"),
        term("-", "not known, or nothing to compare with"),
        term("(n %)", "reached in n % of the time, whose bound is known; none where that is less than half",
             "`61.2 % (84 %)`: 61.2 % of the ceiling is reached in the 84 % of the time whose bound is known.",
             formula="(sum of classes[].bounded_ns) / (sum of classes[].time_ns)",
             paths="classes[].bounded_ns, classes[].time_ns"),
        term("per step, mean of {} | per step of a rank, mean of {} | per step", "sums over all profiled steps, of all"
             " ranks, divided by their number, so that parts sum to their whole", formula="x / step.count",
             paths="step.count"),
        term("all {} steps together | all steps", "the figures are sums over all profiled steps", paths="step.count"),
        term("left out at this width", "the columns that the terminal is too narrow for"),
    ),
)  # fmt: skip

_OF_CLASS: Final = {
    OperatorClass.TENSOR_CONTRACTION: ("tensor contraction | contraction", "products that sum over an index: matrix"
        " products, convolutions, attention"),
    OperatorClass.STATISTICAL_NORMALIZATION: ("statistical normalization | normalization", "reductions and what is"
        " divided by them: softmax, layer norm, losses, sums, pooling"),
    OperatorClass.ELEMENTWISE: ("element-wise | elementwise", "maps: each element by itself - activations, dropout,"
        " residuals, biases, the optimizer's update"),
    OperatorClass.DATA_MOVEMENT: ("data movement", "copies, fills, transposes, look-ups: no arithmetic, bytes alone"),
    OperatorClass.COMMUNICATION: ("communication", "collectives and messages between ranks"),
    OperatorClass.OTHER: ("other", "what is known and none of these: sorting, sampling, scans, decompositions"),
    OperatorClass.UNKNOWN: ("unknown", "what no rule knows; `explain --unknown REPORT` lists it"),
}  # fmt: skip


def _class_terms() -> tuple[Term, ...]:
    return tuple(
        term(names, meaning, formula=f'classes[] where operator_class is "{item}"',
             paths=f"classes[operator_class={item}].time_ns, classes[operator_class={item}].flops")
        for item, (names, meaning) in _OF_CLASS.items()
    )  # fmt: skip


CLASSES: Final = Chapter(
    title="Operator classes",
    sections=("classes", "ratios", "paper", "operators", "bounds", "kernels", "modules"),
    terms=(
        *_class_terms(),
    ),
)  # fmt: skip

_OF_PHASE: Final = {
    Phase.FORWARD: "the model's forward and the loss",
    Phase.BACKWARD: "autograd: gradients of weights and activations",
    Phase.RECOMPUTE: "the forward run again inside backward by checkpointing",
    Phase.OPTIMIZER: "the update of the weights, with clipping and unscaling before it",
    Phase.PREFILL: "of a generation: what it takes to the first new token of each sample",
    Phase.DECODING: "of a generation: all after the first new token",
    Phase.OTHER: "what is in none of them: loading, metrics, evaluation under no_grad",
}

PHASES: Final = Chapter(
    title="Phases",
    sections=("classes", "operators", "bounds", "communication-phases", "communication-modules", "memory-peak", "step",
              "idle", "modules"),
    terms=tuple(
        term(str(phase), meaning, formula=f'classes[] where phase is "{phase}"',
             paths=f"classes[phase={phase}].time_ns, classes[phase={phase}].flops")
        for phase, meaning in _OF_PHASE.items()
    ),
)  # fmt: skip

RATIOS: Final = Chapter(
    title="Backward over forward",
    sections=("ratios", "paper"),
    terms=(
        term("backward / forward | backward over forward", "backward, recompute included, over forward of one class,"
             " for"
             " time, FLOPs and bytes", "Of all the work of a class: no ratio of FLOPs or bytes where a call of either"
             " side has no cost, and none where the forward is less than 1 % of the backward. Classes of"
             " less than 1 % of the time are left out, which a line below says.",
             formula="(sum over phases backward and recompute) / (sum over phase forward), of classes[].time_ns,"
             " flops, read_bytes + written_bytes",
             paths="classes[].time_ns, classes[].flops, classes[].read_bytes, classes[].written_bytes"),
        term("FLOP theory | bytes theory | theory", "what theory says of this step: 2 for contractions where all"
             " weights and inputs need gradients"
             " (3 with checkpointing), 1.5 in bytes for maps and norms", "Each forward product counts its backward's,"
             " one for the weight and one for the input where these need a gradient.",
             paths="ratios[].theory_flops, ratios[].theory_bytes"),
        term("-", "a part without formula, or a forward of less than 1 % of the backward"),
        term("the paper's classes", "the shares of the first three classes among themselves, optimizer left out, next"
             " to those of the paper",
             formula="(sum of flops, of time_ns, of the class) / (sum over the three classes), phase"
             " not optimizer", paths="classes[].flops, classes[].time_ns"),
        term("FLOP paper | time paper | paper", "arXiv 2007.00072, BERT-large encoder layer, V100",
             "Of the FLOPs contractions have 99.80 %, normalizations 0.17 %, element-wise maps 0.03 %; of the time"
             " 61.0 %, 25.5 %, 13.5 %."),
    ),
)  # fmt: skip

OPERATORS: Final = Chapter(
    title="Operators, kernels, modules",
    sections=("operators", "kernels", "modules"),
    terms=(
        term("operator | operators", "the operators that take most time, all signatures in one phase together, parts"
             " included", "A copy inside aten::addmm is part of the addmm. Of nested operators that compute the"
             " outermost"
             " is the call: its class and cost hold for all that runs below it. `aten::` is left out where room is"
             " short.", formula="operators[] by part_of or operator, phase", paths="operators[].operator"),
        term("kernel | kernels", "device work by the name of the kernel, copy or fill, classed by that name alone",
             formula="kernels[].time_ns, .count, .operators",
             paths="kernels[].time_ns, kernels[].count, kernels[].operators"),
        term("module | modules", "the work of a module of the model", "The JSON report has each module without its"
             " submodules.", formula="modules[].time_ns, .flops by module, phase and class",
             paths="modules[].time_ns, modules[].flops"),
        term("count", "how often the kernel ran in a step", formula="kernels[].count / step.count",
             paths="kernels[].count, step.count"),
        term("launched by", "the operator that launched the kernel; none where a graph did",
             paths="kernels[].operators"),
        term("launched by graphs", "device work of graphs, which no operator launched by itself",
             formula="the lesser of ledger.graph_launched_ns and ((sum of classes[].time_ns) - (sum of"
             " operators[].time_ns) - ledger.no_launch_record_ns), / step.count",
             paths="ledger.graph_launched_ns, classes[].time_ns, operators[].time_ns, ledger.no_launch_record_ns,"
              " step.count"),
        term("without an operator", "device work that no operator call launched by itself",
             formula="((sum of classes[].time_ns) - (sum of operators[].time_ns) - what is launched by graphs) /"
             " step.count", paths="classes[].time_ns, operators[].time_ns, step.count"),
        term("without a kernel", "work that is no device event: collectives on the host's threads",
             formula="((sum of classes[].time_ns) - (sum of kernels[].time_ns)) / step.count",
             paths="classes[].time_ns, kernels[].time_ns, step.count"),
        term("outside modules", "work that no module's range has: the loss, the optimizer, what lies between steps",
             formula="((sum of classes[].time_ns) - (sum of modules[].time_ns)) / step.count",
             paths="classes[].time_ns, modules[].time_ns, step.count"),
        term("fwd FLOP | bwd FLOP | prefill FLOP | decode FLOP", "FLOPs of the module with all that lies in it, in that"
             " phase; backward with recompute",
             formula="(sum of modules[].flops by phase) / step.count", paths="modules[].flops, step.count"),
        term("signature", "shapes and data types of an operator's arguments", paths="operators[].signature"),
        term("rule", "the line of the tables of names that classed an operator or kernel",
             paths="operators[].rule, kernels[].rule"),
    ),
)  # fmt: skip

ROOFLINE: Final = Chapter(
    title="Roofline",
    sections=("bounds", "classes"),
    terms=(
        term("roofline", "each class, then the operators with most to win, against the ceilings of the device",
             "Williams, Waterman and Patterson, 2009. Contractions are compared with the matrix units in the data"
             " type of"
             " their operands, all else with the vector units; communication and copies across the host's link have"
             " no bound."),
        term("bound", "the longer of FLOP / peak and bytes / bandwidth", "The least time that a call needs on this"
             " device, by the least bytes.", formula="max(flops / device.peak_flops_per_second[type], (read_bytes +"
             " written_bytes) / device.bandwidth_bytes_per_second)",
             paths="classes[].flops, device.peak_flops_per_second, classes[].read_bytes,"
              " classes[].written_bytes, device.bandwidth_bytes_per_second"),
        term("bound by", "what sets the bound: compute, memory, or the share of it that memory sets",
             formula="(sum of classes[].memory_bound_ns) / (sum of classes[].bound_ns)",
             paths="classes[].memory_bound_ns, classes[].bound_ns"),
        term("memory", "bound by memory: bytes / bandwidth is the longer",
             formula='operators[].bound_by is "memory"', paths="operators[].bound_by"),
        term("compute", "bound by compute: FLOP / peak is the longer", formula='operators[].bound_by is "compute"',
             paths="operators[].bound_by"),
        term("ceiling", "bound / time - where memory bounds, the paper's MUE, whose factors (needless traffic, reached"
             " bandwidth) only hardware counters can separate", "Of the calls whose bound is known. Above 100 % where"
             " caches give what memory could not: such operators are in `checks`, quantity ceiling.",
             formula="(sum of bound_ns) / (sum of bounded_ns; of operators time_ns - uncosted_ns)",
             paths="classes[].bound_ns, classes[].bounded_ns, classes[].time_ns, classes[].uncosted_ns"),
        term("headroom", "time - bound", "Operator by operator and phase, never below 0: what fusion or a better kernel"
             " could win.", formula="sum of classes[].headroom_ns", paths="classes[].headroom_ns"),
        term("MUE", "the paper's memory usage efficiency: (least bytes / bytes moved) x (bandwidth reached / peak)",
             "The bytes really moved cancel: it is the column `ceiling` of what memory bounds.",
             formula="least bytes / (time x peak bandwidth)", paths="communication.phases[].bytes"),
    ),
)  # fmt: skip


# Collectives, communication by phase and module, ranks, waiting.


COMMUNICATION: Final = Chapter(
    title="Communication",
    sections=("collectives", "communication-phases", "communication-modules"),
    terms=(
        term("collective", "what the ranks did together: all reduce, all gather, reduce scatter, all to all, ...",
             "By collective, data type and number of ranks. Their times sum to the class communication exactly.",
             formula="collectives[]", paths="collectives[].collective"),
        term("time", "the time of the collective's kernels, waiting for the slowest rank included; by phase the union",
             formula="collectives[].time_ns; communication.phases[].running_ns",
             paths="collectives[].time_ns, communication.phases[].running_ns",
             note="waiting for the slowest rank included"),
        term("bytes", "the size of the messages as nccl-tests counts it: what a rank sends in an all-reduce, ends up"
             " with in an all-gather, starts from in a reduce-scatter", paths="collectives[].bytes"),
        term("bus | bus bandwidth", "what the messages put on the links a second", "The bus carries 2 (n - 1) / n of"
             " the"
             " size in an all-reduce, (n - 1) / n in an all-gather, reduce-scatter and all-to-all, all of it in a"
             " broadcast. Waiting is in the time, so this is what was reached, not what the links can do.",
             formula="10^9 x factor x bytes / collectives[].sized_ns",
             paths="communication.phases[].bytes, collectives[].sized_ns"),
        term("~", "the trace names no group: all ranks are taken", note="~ the trace names no group: all ranks are"
             " taken"),
        term("communication", "the collectives of each phase: the union of the times in which any of them ran",
             paths="communication.phases[].running_ns"),
        term("hidden", "the share of the communication during which the rank did other work",
             formula="(running_ns - exposed_ns) / running_ns",
             paths="communication.phases[].running_ns, communication.phases[].exposed_ns"),
        term("exposed", "nothing else ran meanwhile", "Communication that no work of the rank hides; waiting for other"
             " ranks is in it.", paths="communication.phases[].exposed_ns, communication.exposed_ns"),
        term("together", "all phases: where they overlap the time counts once",
             paths="communication.running_ns, communication.exposed_ns"),
        term("communicated for", "the module that the collective serves: whose weights are gathered, whose gradients"
             " are"
             " reduced", paths="communication.modules[].module"),
        term("(the model)", "what is outside of the model's parts, and what no range names a module of"),
        term("host time of launching | the host took {} to launch them",
             "host time in the calls that launched collectives",
             formula="sum of communication.phases[].launching_ns", paths="communication.phases[].launching_ns"),
        term("messages by theory | messages of a step of a rank by theory", "what a step must communicate by what the"
             " ranks share, next to what it did", formula="communication.expected[].expected_bytes, .measured_bytes,"
             " .wire_bytes",
             paths="communication.expected[].expected_bytes, communication.expected[].measured_bytes,"
              " communication.expected[].wire_bytes"),
    ),
)  # fmt: skip

RANKS: Final = Chapter(
    title="Several ranks",
    sections=("ranks",),
    terms=(
        term("a step of rank", "the mean step of each rank, of more than 16 a row a group of like ones",
             "Like ranks: no figure is more than 5 % of the median step away from that of the most typical of them.",
             formula="ranks[].wall_ns; the other times are sums / ranks[].steps",
             paths="ranks[].wall_ns, ranks[].steps"),
        term("step", "the mean step of the rank", paths="ranks[].wall_ns"),
        term("own", "the step less exposed communication", "What the rank does of its own while others may be waiting"
             " for it.", formula="ranks[].wall_ns - (ranks[].exposed_communication_ns / ranks[].steps)",
             paths="ranks[].wall_ns, ranks[].exposed_communication_ns, ranks[].steps"),
        term("busy", "the union of the rank's device work, a step", formula="ranks[].busy_ns / ranks[].steps",
             paths="ranks[].busy_ns, ranks[].steps"),
        term("kernels", "the sum of the rank's device work, a step", formula="ranks[].kernel_time_ns / ranks[].steps",
             paths="ranks[].kernel_time_ns, ranks[].steps"),
        term("comm", "the union of the rank's communication, a step", formula="ranks[].communication_ns /"
             " ranks[].steps", paths="ranks[].communication_ns, ranks[].steps"),
        term("exposed", "communication that nothing hides, a step", formula="ranks[].exposed_communication_ns /"
             " ranks[].steps", paths="ranks[].exposed_communication_ns, ranks[].steps"),
        term("idle", "the rank's time without device work, a step", formula="ranks[].idle_ns / ranks[].steps",
             paths="ranks[].idle_ns, ranks[].steps"),
        term("min", "the least over the ranks", paths="spread[].min_ns"),
        term("median", "the middle over the ranks", paths="spread[].median_ns"),
        term("max", "the most over the ranks", paths="spread[].max_ns"),
        term("longest step | slowest", "the rank with the longest step", formula="spread[figure = step].max_rank"),
    ),
)  # fmt: skip

WAITING: Final = Chapter(
    title="Waiting",
    sections=("waiting-steps", "matched"),
    terms=(
        term("a step of rank", "the mean step of each rank in its parts, which sum to it",
             formula="step = other work + transfer + waiting + unmatched + idle: waiting.each[].steps[]",
             paths="waiting.each[].steps[]"),
        term("step", "the mean of the rank's steps, without what only other steps' work fills",
             paths="waiting.each[].steps[].wall_ns"),
        term("other work", "the union of all work of the window that is no communication", formula="other_work_ns",
             paths="waiting.each[].steps[].other_work_ns"),
        term("transfer", "what no other work hides, from the start of the last rank of a collective on: data could"
             " flow",
             formula="transfer_ns", paths="waiting.each[].steps[].transfer_ns"),
        term("waiting", "what no other work hides, up to the start of the last rank of a collective",
             formula="waiting_ns", paths="waiting.each[].steps[].waiting_ns"),
        term("transfer and waiting", "what no other work hides"),
        term("unmatched", "communication that is not matched with that of the other ranks", formula="unmatched_ns",
             paths="waiting.each[].steps[].unmatched_ns"),
        term("idle", "what the union of all work leaves of the step; on the CPU the framework's time too",
             formula="idle_ns", paths="waiting.each[].steps[].idle_ns"),
        term("waited for", "by the others, summed", "All waiting of a collective is charged to the rank that came"
             " last.",
             formula="waiting.each[].charged_ns / number of steps",
             paths="waiting.each[].charged_ns, waiting.each[].steps[].number"),
        term("straggler", "the rank that the others wait for", "Named where it has a quarter of all waiting at least"
             " and"
             " twice as much as the next rank, where waiting is 1 % of the steps or more, and where its lead exceeds"
             " what the clocks are known to.", formula="waiting.straggler.charged_ns / .waiting_ns",
             paths="waiting.straggler.charged_ns, waiting.straggler.waiting_ns"),
        term("lower bound", "some of the ranks were not given, and one of them may have come later still",
             paths="waiting.is_lower_bound"),
        term("collectives matched", "which calls of the ranks are one collective: by number in the group, by order, by"
             " time", formula="waiting.by_number, .by_order, .by_time",
             paths="waiting.by_number, waiting.by_order, waiting.by_time"),
        term("clocks", "whether the ranks' clocks agree as they are or were set by the ends of collectives; to within:"
             " how far nine in ten ends of short collectives are from their middle", formula="waiting.clocks"),
        term("matched", "the collectives that were matched over the ranks", formula="waiting.collectives[]",
             paths="waiting.collectives[].collective"),
        term("number", "how many collectives", paths="waiting.collectives[].collectives"),
        term("time", "of all ranks together: transferring and waiting", formula="waiting.collectives[].duration_ns ="
             " waiting.collectives[].transferring_ns + .waiting_ns",
             paths="waiting.collectives[].duration_ns, waiting.collectives[].transferring_ns,"
              " waiting.collectives[].waiting_ns"),
        term("time and waiting", "of all ranks together", note="time, waiting and bytes of all ranks together"),
        term("bytes", "the size of the messages of all ranks together, as in the table of one rank's collectives",
             paths="waiting.collectives[].bytes"),
        term("bus", "the bus bandwidth over the whole duration", paths="waiting.collectives[].bus_bytes_per_second"),
        term("bus in transfer", "from the start of the last rank on", "The bus bandwidth while data could flow.",
             paths="waiting.collectives[].transfer_bus_bytes_per_second"),
    ),
)  # fmt: skip


# Suggestions of a run, and the report of an experiment with techniques.


SUGGESTIONS: Final = Chapter(
    title="What would save most",
    sections=("suggestions",),
    terms=(
        term("suggestions | what would save most", "up to three techniques that would save the most memory or time"
             " of this"
             " very run, by prediction", "Only techniques whose predictions were compared with measurements, and only"
             " what saves 3 % of the peak, or of the time for sure.", formula="suggestions.best[]",
             paths="suggestions.best[].technique",
             note="predicted, not run: `opanatomy techniques` measures them"),
        term("add to the command", "the option to add to `opanatomy profile`", paths="suggestions.best[].option"),
        term("technique", "what the option does", paths="suggestions.best[].technique"),
        term("peak then", "the predicted peak of all allocations", paths="suggestions.best[].peak_bytes"),
        term("d.peak", "the predicted peak relative to that of the step as it is, predicted the same way",
             formula="(peak_bytes - now_bytes) / now_bytes",
             paths="suggestions.best[].peak_bytes, suggestions.best[].now_bytes"),
        term("d.step", "the predicted step relative to the step as it is", formula="suggestions.best[].time_ratio - 1",
             paths="suggestions.best[].time_ratio"),
        term("from", "the shortest step of the prediction's range, relative to the step as it is",
             formula="suggestions.best[].low_ratio - 1", paths="suggestions.best[].low_ratio"),
        term("to", "the longest step of the prediction's range, relative to the step as it is",
             formula="suggestions.best[].high_ratio - 1", paths="suggestions.best[].high_ratio"),
    ),
)  # fmt: skip

TECHNIQUES: Final = Chapter(
    title="Techniques",
    sections=("experiment", "techniques", "predictions", "technique-memory", "not-run", "offenders", "advice"),
    terms=(
        term("technique", "its name for `opanatomy techniques --only`; the first row is the baseline",
             paths="rows[].name"),
        term("baseline", "the run as given, which all others are compared with", formula="rows[0]",
             paths="rows[0].name"),
        term("peak", "the most that is allocated in the step, of all allocations", formula="rows[].measured.peak_bytes,"
             " of what was not run predicted.peak_bytes", paths="rows[].measured.peak_bytes"),
        term("d.peak", "the peak relative to the baseline's", formula="(peak_bytes - baseline's) / baseline's",
             paths="rows[].measured.peak_bytes"),
        term("step", "the median step without the profiler", paths="rows[].measured.step_ns"),
        term("d.step", "the step relative to the baseline's; ~ where the ranges of the repetitions overlap",
             formula="(step_ns - baseline's) / baseline's", paths="rows[].measured.step_ns"),
        term("step of the baseline", "the median step of the baseline without the profiler",
             paths="rows[0].measured.step_ns"),
        term("peak of the baseline", "the most that is allocated in a step of the baseline",
             paths="rows[0].measured.peak_bytes"),
        term("samples", "samples of the baseline's batch a second",
             formula="10^9 x rows[0].measured.samples / rows[0].measured.step_ns",
             paths="rows[0].measured.samples, rows[0].measured.step_ns"),
        term("techniques", "how many were tried besides the baseline", formula="rows[1:]", paths="rows[].name"),
        term("figures", "whether the figures are measured, or predicted and not run", paths="predicted_only"),
        term("repetitions", "how often each was timed, in an order by chance", paths="repetitions, order"),
        term("seed", "what the order and the weights were drawn with", paths="seed"),
        term("d.", "relative to the baseline"),
        term("samples/s", "samples of the batch over the step",
             formula="10^9 x rows[].measured.samples / rows[].measured.step_ns",
             paths="rows[].measured.samples, rows[].measured.step_ns"),
        term("B/F FLOPs", "FLOPs of contractions in backward, recomputation included, over those of forward",
             formula="(flops.backward + flops.recompute) / flops.forward", paths="rows[].measured.flops"),
        term("B/F", "backward with recomputation over forward"),
        term("FLOPs", "FLOPs of contractions of the whole step, over the baseline's",
             formula="(sum of flops) / (the baseline's)", paths="rows[].measured.flops"),
        term("~", "no difference beyond that of the repetitions"),
        term("!", "the prediction does not agree, see the table of predictions",
             "Of memory where it is off by more than 2 %, of time where the measured change is out of its range."),
        term("prediction of", "what was predicted before the technique was run", formula="rows[].predicted",
             paths="rows[].predicted.step_ns, rows[].predicted.peak_bytes"),
        term("off by", "predicted over measured change", "Of memory predicted over measured peak, less one; of time the"
             " change from the baseline, which leaves out the machine's drift.",
             formula="(predicted.peak_bytes / measured.peak_bytes) - 1; ((predicted step / baseline's predicted) /"
             " (measured step / baseline's measured)) - 1",
             paths="rows[].predicted.peak_bytes, rows[].measured.peak_bytes, rows[].predicted.step_ns,"
              " rows[].measured.step_ns"),
        term("step of a prediction", "at the rates that the calls of the baseline reached",
             note="step: at the rates that the calls of the baseline reached"),
        term("from", "the shortest predicted step", paths="rows[].predicted.low_ns"),
        term("to", "the longest predicted step", paths="rows[].predicted.high_ns"),
        term("memory of", "each component at its fullest in the step", formula="rows[].measured.components",
             paths="rows[].measured.components",
             note="each component at its fullest in the step"),
        term("why not", "why it did not run, or could not be predicted", formula="rows[].failed, .not_predicted",
             paths="rows[].failed, rows[].not_predicted"),
        term("offenders | what made predictions wrong", "the operators whose predicted and measured times are far"
             " apart",
             formula="rows[].offenders[]: measured_ns for predicted_ns",
             paths="rows[].offenders[].operator, rows[].offenders[].measured_ns, rows[].offenders[].predicted_ns"),
        term("advice", "what the experiment comes to, each with the option to add", paths="advice"),
    ),
)  # fmt: skip

SAME: Final = Chapter(
    title="The same training?",
    sections=("same-training", "losses"),
    terms=(
        term("the same training?", "differences in units of rounding of float32, of one step without dropout from"
             " the same"
             " weights and data", "same, or DIFFERS with the first operator whose output is not the baseline's.",
             formula="rows[].sameness",
             paths="rows[].sameness.loss_units, rows[].sameness.gradient_units, rows[].sameness.weight_units",
             note="differences in units of rounding of float32, of one step without dropout from the same weights and"
             " data"),
        term("loss", "how far the losses are apart, in units of rounding", paths="rows[].sameness.loss_units"),
        term("gradients", "how far the gradients are apart, in units of rounding",
             paths="rows[].sameness.gradient_units"),
        term("weights", "how far the updated weights are apart, in units of rounding",
             paths="rows[].sameness.weight_units"),
        term("worst gradient", "the weight whose gradient is farthest apart",
             paths="rows[].sameness.worst_gradient.name"),
        term("losses of", "the losses of techniques that change the result, on one batch, without dropout",
             formula="rows[].losses"),
        term("first", "the loss of the first step", paths="rows[].losses.losses[0]"),
        term("last", "the loss of the last step", formula="rows[].losses.losses[-1]", paths="rows[].losses.losses"),
        term("baseline's", "the baseline's loss of the last step", formula="rows[].losses.baseline[-1]",
             paths="rows[].losses.baseline"),
        term("apart at most", "the largest difference of the two losses of a step, of the baseline's",
             formula="the largest of (|losses - baseline|) / (|baseline|), of rows[].losses"),
    ),
)  # fmt: skip

UNDERFLOW: Final = Chapter(
    title="Gradients in float16",
    sections=("underflow",),
    terms=(
        term("gradients of", "the gradient elements of a technique that computes in float16 at each scale of the loss"),
        term("loss scale", "what the loss is multiplied with; 1 is without scaling",
             paths="rows[].underflow.scaled.scale"),
        term("zero", "exactly, of the elements that are not zero in the same step without autocast; without dropout",
             formula="rows[].underflow.scaled.zeros / rows[].underflow.nonzero",
             paths="rows[].underflow.scaled.zeros, rows[].underflow.nonzero"),
        term("elements", "how many elements become zero", paths="rows[].underflow.scaled.zeros"),
        term("inf or NaN", "how many elements overflow: the update is skipped",
             paths="rows[].underflow.scaled.not_finite"),
    ),
)  # fmt: skip

COMPARISON: Final = Chapter(
    title="A comparison",
    sections=("changed", "sides", "causes", "changes", "kernels-changed", "steps", "figures", "gates",
              "classes"),
    terms=(
        term("before", "the first of the two: a figure of its mean step"),
        term("after", "the second of the two: a figure of its mean step"),
        term("change", "after less before; the changes of all parts sum to that of the step, to the nanosecond"),
        term("steps", "which like steps the means are of; steps of another kind, or disturbed, are set aside"),
        term("where the difference is from", "the parts of the difference by cause and class"),
        term("and {} smaller", "parts that change by less than a thousandth of what the largest does"),
        term("without a difference", "the parts that take as long on both sides"),
        term("step", "the mean like step: what the parts sum to"),
        term("work", "the operator, kernel or collective that changed"),
        term("what changed", "the same calls, more or fewer calls, moved, other arguments, another kernel or"
             " operator, new, gone"),
        term("another kernel", "a contraction for which the library chose another kernel"),
        term("side", "which of the runs"),
        term("time", "the time of the like step"),
        term("figure", "a figure of one step, by its name in `Anatomy.metrics()`"),
        term("ranges", "whether the ranges of the like steps are apart or overlap; of four runs a side or more, the p"
             " value of a test"),
        term("the same calls | {}, the same calls", "as many calls of the same work that take longer or shorter"),
        term("more calls | {}, more calls", "what the calls take that the other side has not"),
        term("fewer calls | {}, fewer calls", "what the calls took that are no more there"),
        term("moved | moved from {} | {}, moved from {} to {}", "the same work in another phase"),
        term("other arguments | {}, other arguments | {} x the FLOPs | {} x the bytes", "the same operator with other"
             " shapes or types"),
        term("{}, another kernel", "the same operator, done by another kernel"),
        term("another operator | {}, another operator", "the same kernel, launched by an operator of another name;"
             " times in whole microseconds can leave it open which operator was the innermost"),
        term("new | {}, new", "work that the first side has none of"),
        term("gone | {}, gone", "work that the second side has none of"),
        term("idle, host-bound", "idle time in which the host had not launched the next work yet"),
        term("idle, stream waits", "idle time in which the next work waited for another stream"),
        term("idle, other", "idle time of neither cause"),
        term("work of other steps", "time in which the device did only another step's work"),
        term("framework", "on the CPU: wall time that no operator explains; without the profiler where both know it"),
        term("profiler", "what the profiler adds to the step, where both sides know it"),
        term("of all steps", "a figure that a like step does not have: that of the report, with steps of other kinds"),
        term("signature", "the shapes and types of the arguments"),
        term("samples", "samples a second"),
        term("peak", "the peak of the step's memory"),
        term("last to first", "the last run less the first, of the first"),
        term("~", "no difference beyond chance (p >= 0.05)"),
        term("overlap of {}", "time in which two kinds of work run at once: it is taken off once"),
        term("gate", "whether a figure stayed within what --fail-if asks: passed, FAILED or UNKNOWN",
             formula="gates[].met, .unknown, .measured", paths="gates[].met, gates[].unknown, gates[].measured"),
        term("Not comparable", "the sides are not of the same work: there are no changes, causes and claims",
             paths="not_comparable"),
        term("warning", "what a reader has to know of the traces"),
    ),
)  # fmt: skip


# The ledger of device work, and what second sources say of the figures.


LEDGER: Final = Chapter(
    title="The ledger",
    sections=("ledger",),
    terms=(
        term("ledger | work", "where each nanosecond of device work went: the terms sum to it exactly",
             formula="device_work = linked + graph_launched + no_launch_record + outside_window: ledger.*_ns",
             paths="ledger.device_work_ns, ledger.linked_ns, ledger.graph_launched_ns, ledger.no_launch_record_ns,"
              " ledger.outside_window_ns"),
        term("device work", "the sum of all kernels, copies and fills of the trace; on the CPU the self times of"
             " operators"
             " that compute", paths="ledger.device_work_ns"),
        term("linked to operators | linked", "device work whose launch lies inside an operator's call",
             paths="ledger.linked_ns"),
        term("launched by graphs", "device work of a CUDA graph: its launch names the graph, not the operators",
             paths="ledger.graph_launched_ns"),
        term("without launch record", "device work whose launch the trace does not have",
             paths="ledger.no_launch_record_ns"),
        term("outside the window", "device work that was launched before the first step or after the last",
             paths="ledger.outside_window_ns"),
        term("classed", "the share of the work inside the window whose class a rule knows",
             formula="ledger.classed_ns / (device_work_ns - outside_window_ns)",
             paths="ledger.classed_ns, ledger.device_work_ns, ledger.outside_window_ns"),
        term("costed", "the share of the work inside the window whose FLOPs and bytes a formula knows",
             formula="ledger.costed_ns / (device_work_ns - outside_window_ns)",
             paths="ledger.costed_ns, ledger.device_work_ns, ledger.outside_window_ns"),
        term("unknown", "the share of the work inside the window that no rule knows, and its names",
             "`explain --unknown REPORT` lists all of them.",
             formula="ledger.unknown_ns / (device_work_ns - outside_window_ns)",
             paths="ledger.unknown_ns, ledger.device_work_ns, ledger.outside_window_ns"),
        term("no formula", "what has a class and no cost: operators, work of graphs by the names of kernels, and work"
             " without an operator, with their shares of the time",
             formula="operators[] where flops is null, kernels[] where operators is empty, and what is left of"
             " device_work - outside_window - costed - unknown",
             paths="ledger.unknown_ns, ledger.costed_ns, ledger.device_work_ns, ledger.outside_window_ns"),
        term("counting | conventions", "how the figures are counted", paths="conventions"),
        term("multiply-add", "a multiplication and an addition count as 2 FLOPs", paths="conventions.multiply_add"),
        term("causal", "full: FLOPs of attention are those of the whole matrix, whatever a mask leaves out",
             formula="conventions.causal; operators[].causal_flops has those under the mask",
             paths="conventions.causal, operators[].causal_flops"),
    ),
)  # fmt: skip

#: The two figures that each check compares.
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
             paths=f"checks[quantity={name}].compared, checks[quantity={name}].equal")
        for name, meaning in _OF_CHECK.items()
    )  # fmt: skip


CHECKS: Final = Chapter(
    title="Second sources",
    sections=("ledger", "caveats", "disagreements", "given-ceilings"),
    terms=(
        term("caveats", "what changes the reading of every figure: a file that is cut off, records or ranks that are"
             " missing, devices of several kinds", paths="caveats"),
        term("given-ceilings", "ceilings of --peak and --bandwidth that the trace is above",
             "The option is most likely too low. It is no second source: what is known of the device otherwise is what"
             " the check `ceiling` compares with.", paths="device.exceeded"),
        term("may be wrong | disagreements", "figures that a second source does not confirm, and no known cause"
             " explains: of each check the one that touches most, where all of them together touch 1 % of the work or"
             " more", "The share is that of the device work (on the CPU of the operators' time) of the calls that a"
             " difference touches, without a time the part by which the figures differ.",
             formula="checks[].differences where cause is null",
             paths="checks[].differences[].operator, checks[].differences[].ours, checks[].differences[].other"),
        term("below 1 %", "the same of checks whose differences together touch less: the first screen does not say it,"
             " and --check does not fail", formula="checks[].differences where cause is null",
             paths="checks[].differences[].operator, checks[].differences[].ours, checks[].differences[].other"),
        term("uncertain", "each difference of a check that touches 1 % or more, and what can be looked up of it",
             formula="checks[].differences[].time_ns, .evidence",
             paths="checks[].differences[].time_ns, checks[].differences[].evidence"),
        term("confirmed", "how many figures second sources confirm; of a check that does not confirm all, how many",
             formula="sum of checks[].equal", paths="checks[].equal"),
        term("explained", "differences of a known cause: the operators and the cause; where the ledger is asked for",
             formula="checks[].differences where cause is not null",
             paths="checks[].differences[].operator, checks[].differences[].cause"),
        term("unchecked", "what no second source covers, and why", paths="checks[].not_checked"),
        *_check_terms(),
    ),
)  # fmt: skip


# The memory of a step: components, peak, snapshots, activations by theory, what does not fit.


#: The meaning of each component, by its key in the JSON report.
_OF_COMPONENT: Final = {
    "weights": "the parameters of the model",
    "buffers": "the module's buffers: running statistics, position ids, masks",
    "inputs": "the batch",
    "gradients": "the gradients of the weights, alive after backward",
    "ddp_buckets": "the flat buffers in which DDP reduces gradients, where these are not views of them",
    "optimizer_state": "what the optimizer keeps for each weight: moments",
    "optimizer_step_counters": "the optimizer's count of steps, one number a tensor",
    "forward_activations": "what forward saved for backward",
    "autocast_weight_casts": "copies of the weights in the lower type of autocast",
    "rng_states": "the random states that checkpointing keeps to draw the same again",
    "checkpoint_arguments": "the inputs of checkpointed layers",
    "recomputed_activations": "activations that backward makes again, freed in the same backward",
    "key_value_cache": "of a generation: keys and values of all tokens so far",
    "beam_copies": "of a generation: copies of the cache and the inputs for each beam",
    "outputs": "what forward returned",
    "held_by_model": "what the module or the loop itself holds through backward",
    "blas_workspace": "the work space of cuBLAS",
    "held_before": "what was allocated before the step and is none of the others",
    "allocator_rounding": "what the allocator gives beyond the request",
    "temporary_buffers": "what lives within one operator or one phase",
    "device_context": "what the driver and its kernels take of the device; the allocator does not count it",
    "allocator_cache": "what the allocator holds of the device and nobody uses",
    "before_window": "of a trace: allocated before it, weights, states and all else together",
    "other": "of a trace: blocks that no rule places",
}


def _component_terms() -> tuple[Term, ...]:
    return tuple(
        term(
            name.replace("_", " ") + (" | activations" if name == "forward_activations" else ""), meaning,
            formula=f'memory.components[component = "{name}"]',
            paths=", ".join(
                f"memory.components[component={name}].{key}_bytes" for key in ("at_peak", "measured", "theory")
            ),
        )
        for name, meaning in _OF_COMPONENT.items()
    )  # fmt: skip


COMPONENTS: Final = Chapter(
    title="Memory by component",
    sections=("components", "memory-curve", "memory-peak", "technique-memory", "memory-notes"),
    terms=(
        term("memory", "components measured in the unprofiled step, next to theory; from a trace alone they are"
             " inferred",
             "Inferred from the times of the blocks, and each inference is named.", formula="memory.components[]",
             paths="memory.components[].component, memory.components[].at_peak_bytes"),
        term("measured", "each component at its fullest in the step, activations when forward is done, temporary"
             " buffers at the peak",
             "From a trace alone there is no such column: what is inferred is inferred at the peak.",
             paths="memory.components[].measured_bytes"),
        term("at peak", "what of it lives at the peak; these sum to the peak",
             paths="memory.components[].at_peak_bytes"),
        term("theory", "what the formula in its row gives", paths="memory.components[].theory_bytes"),
        term("off", "measured less theory, of theory", formula="(measured_bytes - theory_bytes) / theory_bytes",
             paths="memory.components[].measured_bytes, memory.components[].theory_bytes"),
        term("peak | peak in {} | memory peak", "the most that is allocated in the step, and in which phase",
             "The note below names what measured it: an allocator, or the events of a trace.",
             paths="memory.allocator_peak_bytes, memory.peak_at, memory.measured_by"),
        term("peak of the process", "the most that the process had resident in the step, with all of Python in it",
             "On the CPU, where the allocations were not followed (--memory).", paths="memory.process_peak_bytes"),
        term("inferred | inferred {}", "of a trace: how blocks were placed, by when they were allocated and freed",
             paths="memory.inferences[].rule"),
        *_component_terms(),
    ),
)  # fmt: skip

PEAK: Final = Chapter(
    title="What lives at the peak, what is saved for backward",
    sections=("memory-peak", "saved-activations"),
    terms=(
        term("live at the peak", "what lives at the peak, by the operator and module that allocated it",
             formula="memory.blocks[]", paths="memory.blocks[].bytes"),
        term("operator", "the operator that allocated it"),
        term("module", "the module whose work allocated it"),
        term("blocks", "how many blocks of the allocator", paths="memory.blocks[].blocks"),
        term("of peak", "the share of the peak", formula="memory.blocks[].bytes / memory.peak_bytes",
             paths="memory.blocks[].bytes, memory.peak_bytes"),
        term("and more", "what is not listed", formula="memory.unlisted_bytes + the rows that are not shown",
             paths="memory.unlisted_bytes"),
        term("saved for backward", "what forward saved for backward, by like modules, operator and shape",
             "`*` stands for a number in the path of a module.", formula="memory.activations[]",
             paths="memory.activations[].bytes"),
        term("made by", "the operator whose output it is"),
        term("shape", "data type and sizes of one block"),
        term("each", "how many blocks, and the bytes of one"),
        term("the model", "what is outside of its parts"),
    ),
)  # fmt: skip

SNAPSHOTS: Final = Chapter(
    title="Memory at each stage",
    sections=("snapshots",),
    terms=(
        term("memory at each stage", "what was in use at each stage of the run", formula="memory.snapshots[]",
             paths="memory.snapshots[].allocated_bytes"),
        term("at the start", "before anything of the model was there: Python and its libraries"),
        term("allocated", "what the allocator has handed out", paths="memory.snapshots[].allocated_bytes"),
        term("reserved", "what the allocator holds of the device, blocks free for use again included",
             paths="memory.snapshots[].reserved_bytes"),
        term("GPU occupied", "what is used of the whole device, by everyone, as NVML says",
             paths="memory.snapshots[].nvml_used_bytes"),
        term("process", "the resident set of the process on the host", paths="memory.snapshots[].rss_bytes"),
        term("before the device", "before anything was put on the device"),
        term("context", "the device's context is there, nothing else"),
        term("weights", "the model is on the device"),
        term("after forward", "forward is done"),
        term("after backward", "backward is done"),
        term("after optimizer", "the weights are updated"),
        term("peak", "the most in the step"),
    ),
)  # fmt: skip

ACTIVATIONS: Final = Chapter(
    title="Memory by theory",
    sections=("activation-terms", "published"),
    terms=(
        term("activations by theory", "the closed formula of the saved activations, term by term",
             paths="memory.terms[].formula"),
        term("sum", "all terms", formula="sum of memory.terms[].bytes", paths="memory.terms[].bytes"),
        term("the classic run", "BERT-large, batch 4 x 512, float32, AdamW, one V100, as Hugging Face published it,"
             " next to this run", formula="memory.published[]",
             paths="memory.published[].figure, memory.published[].published"),
        term("ours", "the figure of this report", paths="memory.published[].measured"),
        term("difference", "ours less the published figure", formula="memory.published[].measured - .published",
             paths="memory.published[].measured, memory.published[].published"),
        term("Tesla V100 16 GB", "the figure as published"),
    ),
)  # fmt: skip

FAILURE: Final = Chapter(
    title="What does not fit",
    sections=("out-of-memory", "savings"),
    terms=(
        term("out of memory in {} | out of memory", "where the step ran out of memory", formula="memory.failure",
             paths="memory.failure.phase, memory.failure.requested_bytes, memory.failure.allocated_bytes"),
        term("the request that failed", "what was requested when it broke", paths="memory.failure.requested_bytes"),
        term("allocated when it broke", "what was allocated then", paths="memory.failure.allocated_bytes"),
        term("needed by theory, buffers apart", "what the step needs by theory, temporary buffers apart",
             paths="memory.needed_bytes"),
        term("would save", "a technique and what it takes from the need", paths="memory.savings[].technique"),
        term("option", "what to add to the command", paths="memory.savings[].option"),
        term("then needed", "what the step then needs by theory", paths="memory.savings[].needed_bytes"),
        term("fits", "whether that fits: yes, no, perhaps", paths="memory.savings[].fits"),
    ),
)  # fmt: skip


# The run: model, workload, device; generations; real texts.


RUN: Final = Chapter(
    title="What ran",
    sections=("title", "headline", "run", "source", "warnings", "memory-notes"),
    terms=(
        term("model", "the class of the model and how many parameters it has", "Those that are trained stand in"
             " brackets"
             " where not all are.", paths="workload.architecture, workload.parameters, workload.trainable_parameters"),
        term("workload", "what a step is: task, batch, length, data type, attention, options",
             "The batch is what one update takes; accumulated over micro-batches each forward has a part of it.",
             formula="workload.*",
             paths="workload.architecture, workload.batch, workload.sequence_length, workload.dtype"),
        term("run unfused | (run unfused) | {} attention (run unfused) | unfused attention", "torch ran"
             " scaled_dot_product_attention as products and a softmax: the matrix of probabilities is kept",
             "No fused kernel took this case: on the CPU there is none with dropout. --set"
             " attention_probs_dropout_prob=0 (the name is the model's own) has one.",
             paths="workload.attention, operators[].operator"),
        term("training", "of several ranks: how they train together, the samples of each and of all",
             formula="workload.parallel, workload.world_size, workload.batch x ranks that have data of their own",
             paths="workload.parallel, workload.world_size, workload.batch"),
        term("backward", "the output that backward started from: its loss, else its only single number, else all of"
             " them"
             " with ones", paths="workload.backward_from"),
        term("changed", "what --layers and --set altered of the model's configuration", paths="workload.changes"),
        term("device", "what the step ran on", "Of several kinds in one trace the one most kernels ran on.",
             paths="environment.device, environment.device_memory_bytes, environment.device_count"),
        term("software", "the versions of torch, CUDA, the driver, transformers and opanatomy",
             formula="environment.*", paths="environment.torch, environment.transformers, environment.python"),
        term("trace", "the file that everything comes from", paths="provenance.trace"),
        term("command", "the command that made the report", paths="provenance.command"),
        term("opanatomy", "the version that made the report", paths="provenance.opanatomy"),
        term("rank", "which rank of how many the trace is of, where it says so", formula="ranks[0].rank, .world_size",
             paths="ranks[0].rank, ranks[0].world_size"),
        term("warning | warnings", "what in the trace, or in how it was taken, a reader has to know of",
             paths="warnings"),
        term("headline | what costs most", "the largest share of the step in a sentence, the next one where it is 15"
             " % of"
             " the step or more, and the command that says more", "The step is divided into parts that do not overlap:"
             " idle time by cause, communication that nothing hides, and the classes and phases of what computes."),
    ),
)  # fmt: skip

GENERATION: Final = Chapter(
    title="Generations",
    sections=("generation",),
    terms=(
        term("generation", "how many new tokens for each sample, greedy or by beam search",
             paths="generation.new_tokens, generation.beams"),
        term("prefill", "the time to the first new token: the prompt at once", "Of generations without the profiler.",
             paths="generation.first_token_ns"),
        term("decoding", "the time from one new token to the next, and those of all samples a second",
             formula="generation.token_ns = generation.decoding_ns / generation.decoded_tokens",
             paths="generation.token_ns, generation.decoding_ns, generation.decoded_tokens"),
        term("a token", "what one forward for one token of every sample and beam reads, writes and computes",
             formula="generation.token_read_bytes, .token_written_bytes, .token_flops",
             paths="generation.token_read_bytes, generation.token_written_bytes, generation.token_flops"),
    ),
)  # fmt: skip

TEXTS: Final = Chapter(
    title="Real texts",
    sections=("texts", "batches"),
    terms=(
        term("texts", "where the texts are from, how many there are and how long they are",
             formula="texts.count, .shortest, .median, .cut",
             paths="texts.count, texts.shortest, texts.median, texts.cut"),
        term("padding", "how texts are padded to batches, and the share of the tokens that is of texts",
             formula="texts.all_useful_tokens / texts.all_tokens", paths="texts.all_useful_tokens, texts.all_tokens"),
        term("wasted", "FLOPs of contractions on padding, in the profiled batch",
             formula="texts.padding_flops.padding_flops / texts.padding_flops.flops",
             paths="texts.padding_flops.padding_flops, texts.padding_flops.flops"),
        term("tokenizer", "how fast it is, and whether the steps would wait for it",
             formula="texts.tokenizers: tokens_per_second against texts.tokens_per_second",
             paths="texts.tokenizers[].tokens_per_second, texts.tokens_per_second"),
        term("steps", "the mean step over the batches, from the shortest to the longest, samples and tokens a second",
             formula="texts.mean_step_ns, .samples_per_second, .useful_tokens_per_second",
             paths="texts.mean_step_ns, texts.samples_per_second, texts.useful_tokens_per_second"),
        term("memory", "the memory is that of the longest batch", paths="texts.memory_length"),
        term("batch", "a batch that was run, in the order of the run"),
        term("length", "the tokens that each text of the batch is padded to", paths="texts.batches[].length"),
        term("tokens", "texts x length: with padding", paths="texts.batches[].tokens"),
        term("useful", "the share of the tokens that is of texts", formula="texts.batches[].useful_tokens / .tokens",
             paths="texts.batches[].useful_tokens, texts.batches[].tokens"),
        term("step", "the mean of the batch's steps without the profiler and without a pause",
             paths="texts.batches[].step_ns"),
        term("useful tokens", "tokens of texts a second", formula="10^9 x texts.batches[].useful_tokens / .step_ns",
             paths="texts.batches[].useful_tokens, texts.batches[].step_ns"),
    ),
)  # fmt: skip


# One step: wall time, phases, busy and idle time, launches, and what of the ceilings it reached.


#: The whole of shares of the step's time.
_OF_STEP: Final = "(timeline.window_ns - .outside_ns)"

STEP: Final = Chapter(
    title="One step",
    sections=("step", "idle", "ceilings"),
    terms=(
        term(
            "step",
            "wall time of one step, without the profiler (plain) and with it, each the mean",
            "Short plain steps are repeated up to five times. The difference is given only where every profiled step"
            " was slower than every one of at least two plain ones. On an accelerator a step lasts from its annotation,"
            " or where the step before it ended if that is later, until the last device work launched in it ends; time"
            " in which the device did only other steps' work is not counted.",
            formula="step.unprofiled_wall_ns, step.wall_ns; samples/s = samples of a step / plain step, else profiled",
            paths="step.unprofiled_wall_ns, step.wall_ns, step.samples_per_second",
        ),
        term("plain", "the step without the profiler, the mean of all but those twice as long as the shortest",
             formula="step.unprofiled_wall_ns, of step.unprofiled_count steps",
             paths="step.unprofiled_wall_ns, step.unprofiled_count"),
        term("profiled", "the step that the profiler recorded, the mean of those that count",
             formula="step.wall_ns, of step.count steps", paths="step.wall_ns, step.count"),
        term("samples/s", "samples of the batch a second, by the plain step where there is one",
             paths="step.samples_per_second"),
        term("steps", "how many there are, plain and profiled, the shortest and the longest",
             "All figures are means over the steps that count, so that parts sum to their whole. A step does not count"
             " where other steps' work runs in it, where it holds a pause, where it does hardly any work, and where"
             " most make the same calls and it makes others: the line names it with its time and the reason.",
             formula="step.count, step.wall_min_ns, step.wall_max_ns, step.unprofiled_wall_min_ns, ...",
             paths="step.count, step.wall_min_ns, step.wall_max_ns, step.unprofiled_wall_min_ns"),
        term("phases", "on the CPU the wall time of forward, backward and optimizer (of a generation: prefill and"
             " decoding); on an accelerator the busy time of their device work",
             formula="step.phase_ns.forward, .backward, .optimizer, .prefill, .decoding / step.wall_ns",
             paths="step.phase_ns, step.wall_ns"),
        term(
            "framework",
            "on the CPU: wall time that no operator explains - dispatch, autograd bookkeeping, Python",
            "step = operators + framework + profiler, exactly; where the profiler's part cannot be separated from noise"
            ", framework includes it.",
            formula="step.framework_ns = step.wall_ns - step.busy_ns - step.profiler_ns",
            paths="step.framework_ns, step.wall_ns, step.busy_ns, step.profiler_ns",
        ),
        term(
            "profiler",
            "on the CPU: an estimate of what of the framework's time is the profiler's own",
            "Profiled less plain step, times the part of events' ends that lie outside operators.",
            formula="step.profiler_ns / step.wall_ns", paths="step.profiler_ns, step.wall_ns",
        ),
        term("samples of a step", "the batch of all ranks that have data of their own", paths="workload.batch"),
        term("window", "from the first step's start to the last one's end; a trace without annotations is one step,"
             " the whole of it", "With several devices its times are means over those that ran kernels.",
             formula="timeline.window_ns / step.count (of several ranks / the steps of one); window = busy + outside +"
             " idle, idle = host-bound + stream waits + other, exactly", paths="timeline.window_ns, step.count"),
        term("the step without other steps' work | without it", "the window without the time in which the device did"
             " only work of other steps: shares of the step's time are of this", formula=_OF_STEP,
             paths="timeline.window_ns, timeline.outside_ns"),
        term("from the first to the last device work", "what stands for the step where none is annotated: the time"
             " before and after all device work (timeline.around_ns) is left out",
             formula="timeline.window_ns - .outside_ns", paths="timeline.window_ns, timeline.outside_ns"),
        term("device", "busy and idle time of the device, as shares of the step without other steps' work",
             formula=f"timeline.busy_ns, .idle_ns / {_OF_STEP}",
             paths="timeline.busy_ns, timeline.idle_ns, timeline.window_ns, timeline.outside_ns"),
        term("busy", "the union of the device work launched in the steps: some kernel, copy or fill runs",
             formula=f"timeline.busy_ns / {_OF_STEP}",
             paths="timeline.busy_ns, timeline.window_ns, timeline.outside_ns"),
        term("compute and copies", "the device computes or copies, whatever communication it hides",
             formula=f"(timeline.busy_ns - .exposed_communication_ns) / {_OF_STEP}",
             paths="timeline.busy_ns, timeline.exposed_communication_ns, timeline.window_ns, timeline.outside_ns"),
        term("in it waiting for other ranks", "the part of exposed communication in which a rank waits for others that"
             " have not begun the same collective, where that is known", formula=
             "(sum of waiting.each[].steps[].waiting_ns) / (sum of waiting.each[].steps[].wall_ns), at most what is"
             " exposed", paths="waiting.each[].steps[].waiting_ns, waiting.each[].steps[].wall_ns"),
        term("kernel time", "the sum of the step's device work over all streams, so that it may exceed the step",
             paths="step.kernel_time_ns"),
        term("overlap", "communication and copies, and what of them nothing hides",
             formula=f"timeline.communication_ns, .exposed_communication_ns, .exposed_memcpy_ns / {_OF_STEP}",
             paths="timeline.communication_ns, timeline.exposed_communication_ns, timeline.exposed_memcpy_ns,"
              " timeline.window_ns, timeline.outside_ns"),
        term("communication", "the union of the times in which a collective runs",
             formula=f"timeline.communication_ns / {_OF_STEP}",
             paths="timeline.communication_ns, timeline.window_ns, timeline.outside_ns"),
        term("of it exposed | exposed communication", "communication while no other work of the device runs",
             "timeline.computation_ns is the union of what is neither communication nor copy, so busy - computation -"
             " exposed memcpy is the communication that no computation hides, copies or not.",
             formula=f"timeline.exposed_communication_ns / {_OF_STEP}",
             paths="timeline.exposed_communication_ns, timeline.window_ns, timeline.outside_ns"),
        term("exposed memcpy", "copies while no other work of the device runs",
             formula=f"timeline.exposed_memcpy_ns / {_OF_STEP}",
             paths="timeline.exposed_memcpy_ns, timeline.window_ns, timeline.outside_ns"),
        term("idle", "nothing runs on the device; the line says why, as shares of the step",
             formula=f"timeline.idle_ns / {_OF_STEP}; idle_ns = host_idle_ns + stream_idle_ns + other_idle_ns",
             paths="timeline.idle_ns, timeline.host_idle_ns, timeline.stream_idle_ns, timeline.other_idle_ns,"
              " timeline.window_ns, timeline.outside_ns"),
        term("profiler's records | recorded Python", "idle time while the profiler wrote its own records, or Python ran"
             " under its recording of the stack"),
        term("compiling", "idle time while code was compiled: ranges of dynamo, inductor, Triton"),
        term("input wait", "idle time in ranges that load data, and in copies from the host whose calls hold the host"
             " up"),
        term("allocator calls", "idle time in calls that allocate or free memory of the device, or pinned memory"),
        term("slow launches", "idle time in launches at least 0.2 ms long and 20 times as long as the median launch,"
             " and in calls that load modules"),
        term("synchronizations", "idle time in calls that wait for the device"),
        term("collective calls", "idle time while the host called collectives"),
        term("operator calls", "idle time while the host ran operators and launches of ordinary length"),
        term("Python", "idle time while the host was between operators, in silences of up to 1 ms or in ranges of the"
             " user's"),
        term("another stream", "as stream waits"),
        term("between kernels", "idle time before work that was launched already, on the stream that worked last"),
        term("unknown cause", "idle time in which nothing that is recorded says what the host did"),
        term("drained", "the part of the idle time in gaps that began while the host waited for the device, so that"
             " nothing was queued", formula="timeline.drained_ns / timeline.idle_ns",
             paths="timeline.drained_ns, timeline.idle_ns"),
        term("not recorded", "time from a launch whose work is not in the trace to the next work that is:"
             " it is neither busy nor idle", formula=f"timeline.unrecorded_ns / {_OF_STEP}",
             paths="timeline.unrecorded_ns, timeline.window_ns, timeline.outside_ns"),
        term("host-bound | host bound", "idle, and what comes next was launched after the device fell idle",
             "So is the time before the end in which nothing follows. The host is late: more work a launch, or fewer"
             " launches, help.", formula=f"timeline.host_idle_ns / {_OF_STEP}",
             paths="timeline.host_idle_ns, timeline.window_ns, timeline.outside_ns"),
        term("stream waits | stream wait", "idle, what comes next was already launched, and another stream worked last",
             formula=f"timeline.stream_idle_ns / {_OF_STEP}",
             paths="timeline.stream_idle_ns, timeline.window_ns, timeline.outside_ns"),
        term("other", "idle between two device events of one stream, or before work without a launch record",
             formula=f"timeline.other_idle_ns / {_OF_STEP}",
             paths="timeline.other_idle_ns, timeline.window_ns, timeline.outside_ns"),
        term("other steps' work | busy with another step's work | outside", "the device did only work that"
             " was launched before the window"
             " (the step before it, most often) or after; not counted as busy or idle",
             formula="timeline.outside_ns / step.count", paths="timeline.outside_ns, step.count"),
        term("launches | launching", "calls of the host that launch kernels or graphs, and the host time inside them",
             formula="timeline.launching.calls / step.count, timeline.launching.call_ns / step.count",
             paths="timeline.launching.calls, step.count, timeline.launching.call_ns"),
        term("mean delay", "from the start of a launch on the host to the start of its first kernel, the mean",
             "Summed delay over the window is the mean length of the queue.",
             formula="timeline.launching.delay_ns / timeline.launching.delayed",
             paths="timeline.launching.delay_ns, timeline.launching.delayed"),
        term("tiny kernels | of the kernels below", "kernels shorter than 10 us: launching costs as much as they do",
             formula="timeline.launching.tiny_kernels / .kernels, .tiny_kernel_ns / .kernel_ns",
             paths="timeline.launching.tiny_kernels, timeline.launching.kernels, timeline.launching.tiny_kernel_ns,"
              " timeline.launching.kernel_ns"),
        term("estimates", "how full the device was, by Kineto's estimates from launch dimensions",
             "AMD traces and some old ones lack them.", formula="device.sm_efficiency, device.occupancy,"
             " device.tensor_core_ns / timeline.launching.kernel_ns",
             paths="device.sm_efficiency, device.occupancy, device.tensor_core_ns, timeline.launching.kernel_ns"),
        term("SM efficiency", "the mean over the time of all steps of the share of multiprocessors with a block",
             "min(blocks per SM, 1), summed over the kernels that run at that moment and never above 1, so never above"
             " the utilization.", paths="device.sm_efficiency"),
        term("occupancy", "the mean of the kernels' estimated occupancy, weighted by duration",
             "Occupancy is the share of a multiprocessor's warps that a kernel's blocks can fill.",
             paths="device.occupancy"),
        term("utilization", "the union of the kernels, copies and fills left out, over the time of all steps",
             paths="device.utilization"),
        term("tensor cores | tensor-core time", "kernels whose name says that they multiply on tensor cores (matrix"
             " cores on AMD), over the time of kernels", "Which names do is a table in"
             " classification/tensor_cores.py. \"(12 % not known)\" are products whose names do not tell. A device"
             " without such cores has no figure.", formula="device.tensor_core_ns / timeline.launching.kernel_ns",
             paths="device.tensor_core_ns, timeline.launching.kernel_ns"),
        term("ceilings", "the most that the device can do: dense peaks of products by data type, of all other"
             " arithmetic, and bandwidth, with their source",
             "In this order: --peak and --bandwidth; what `opanatomy ceilings` measured on this device; the maker's"
             " data"
             " sheet. A device that none knows has none.", formula="device.peak_flops_per_second,"
             " .vector_flops_per_second, .bandwidth_bytes_per_second, .source",
             paths="device.peak_flops_per_second, device.vector_flops_per_second,"
              " device.bandwidth_bytes_per_second, device.source"),
        term("reached", "the shares of the peak that contractions reach over the step: MFU and HFU",
             paths="device.mfu, device.hfu"),
        term("MFU | model FLOPs utilization", "FLOPs of contractions without recompute over what the peak could do in"
             " the step", "The peak is that of the data type most of these FLOPs are in, the step the plain one"
             " where it"
             " was measured. With ≥ a lower bound, over the part of the contractions' time whose FLOPs are known;"
             " below half of it there is none.",
             formula="(sum of operators[].flops of tensor_contraction, phase not recompute) / (step.count x"
             " step.unprofiled_wall_ns (else wall_ns) x device.peak_flops_per_second[device.mfu_dtype] x devices with"
             " kernels)",
             paths="operators[operator_class=tensor_contraction].flops, step.count, step.unprofiled_wall_ns,"
              " step.wall_ns, device.peak_flops_per_second, device.mfu_dtype"),
        term("HFU | hardware FLOPs utilization", "as MFU, with the FLOPs of recompute", formula="(sum of"
             " operators[].flops of tensor_contraction) / (step.count x step.unprofiled_wall_ns (else wall_ns) x"
             " device.peak_flops_per_second[device.mfu_dtype] x devices with kernels)",
             paths="operators[operator_class=tensor_contraction].flops, step.count, step.unprofiled_wall_ns,"
              " step.wall_ns, device.peak_flops_per_second, device.mfu_dtype"),
    ),
)  # fmt: skip


# Words of the pages that are not lines or columns: those of sentences, headings and notes.


WORDS: Final = Chapter(
    title="Words of the pages",
    terms=(
        term("like steps | like step | steps of a kind", "steps that made the same calls: the same kernels (on the CPU"
             " operators) with the same arguments, as often", "A run that alternates has several kinds of steps;"
             " `compare` takes the kinds that are most alike on both sides."),
        term("set aside | disturbed", "a like step that does not count in means",
             "The work of other steps fills more than 1 % of it, or it holds a pause: it is more than twice as long as"
             " the shortest step like it, and idle for most of the difference."),
        term("pause | holds a pause | a pause is in it", "a step more than twice as long as the shortest like it, and"
             " idle for most of the difference: something else stopped it"),
        term("of another kind | steps of another kind | other kinds", "steps that made other calls"
             " than those that are compared; of both sides"
             " their means are on the line of the steps"),
        term("mean step | mean like step", "the mean over the steps that count: sums over them divided by their number",
             "Means add up, so that parts sum to their whole; medians do not.", formula="x / step.count",
             paths="step.count"),
        term("before and after", "of two sides the first is before, the second after"),
        term("wall time", "time as a clock on the wall has it, waiting and idle time included"),
        term("self time | self times", "the time of an operator without that of the operators that it calls: on the CPU"
             " these sum to the time that operators explain"),
        term("device event | device events", "a kernel, a copy or a fill of the device, as the trace has it"),
        term("launch", "a call of the host that starts a kernel, or all kernels of a graph"),
        term("launch record", "the event of the host that a device event names as what launched it"),
        term("stream", "a queue of the device: its work runs in order, that of several streams may run at once"),
        term("graph | CUDA graph", "kernels that one launch starts together: it names the graph, not the operators"),
        term("synchronization", "a call in which the host waits for the device",
             formula="timeline.launching.synchronizing_calls / step.count,"
             " timeline.launching.synchronizing_ns / step.count",
             paths="timeline.launching.synchronizing_calls, step.count, timeline.launching.synchronizing_ns"),
        term("exposed", "while no other work of the device runs: what is exposed makes the step longer"),
        term("hidden", "while other work of the device runs: it does not make the step longer"),
        term("covered | known for", "the part of the time whose FLOPs, bytes or bound are known; a share of less than"
             " half of it is left out"),
        term("significant", "a difference that chance alone would make in less than 5 % of all cases (p < 0.05)",
             "By a Mann-Whitney test over four runs a side or more that took turns; steps of one run are not"
             " independent."),
        term("p | p value | Mann-Whitney", "how likely a difference as large is by chance alone, by a Mann-Whitney test"
             " over the runs of both sides"),
        term("took turns | interleaved | in turn", "runs of the sides one after the other and again, so that what"
             " drifts in the machine falls on both",
             "Of the runs up to any moment no side is ahead of the other by a run of each: of equal sides by one run"
             " at most. ABAB and ABBA take turns; AABB does not, nor do turns after which one side goes on alone."),
        term("apart", "the ranges of two sides have no value in common"),
        term("overlapping", "the ranges of two sides have values in common"),
        term("range", "from the least to the most of several steps or runs"),
        term("run | runs", "one start of the program with one report; several runs of a side allow a claim"),
        term("like ranks | group of ranks", "ranks no figure of which is more than 5 % of the median step away from"
             " that of the most typical of them"),
        term("charged", "of waiting: all that the ranks wait in a collective is counted for the one that begins it"
             " last", paths="waiting.straggler.charged_ns"),
        term("lead | after the rank before it", "how much later the last rank begins a collective than the one before"
             " it", paths="waiting.straggler.lead_ns"),
        term("world size", "how many ranks the run has", paths="ranks[].world_size"),
        term("process group | group", "the ranks that take part in a collective"),
        term("recomputation | checkpointing", "activations are not kept but computed again in backward",
             formula='classes[] where phase is "recompute"',
             paths="classes[phase=recompute].time_ns, classes[phase=recompute].flops"),
        term("part of | parts of an operator", "operators that an operator's call ran and that are counted with it",
             paths="operators[].part_of"),
        term("kind of device", "cuda, cpu or another one by torch's name", paths="environment.device_kind"),
        term("peak rate | peak of the device", "the most FLOPs a second that the device can do, by data type"),
        term("units of rounding", "of float32: 2^-23, the relative distance of two neighbouring numbers"),
        term("noise", "what differs from repetition to repetition of the same run"),
        term("prediction | predicted", "worked out from a run of the baseline, before the technique is run"),
        term("causal mask", "attention to earlier tokens alone: FLOPs are counted without it, causal FLOPs with it",
             paths="operators[].causal_flops"),
    ),
)  # fmt: skip


#: In the order of the page; terms of many tables come first.
CHAPTERS: Final = (
    COLUMNS, RUN, STEP, GENERATION, TEXTS, CLASSES, PHASES, RATIOS, OPERATORS, ROOFLINE, COMMUNICATION, RANKS, WAITING,
    COMPONENTS, PEAK, SNAPSHOTS, ACTIVATIONS, FAILURE, LEDGER, CHECKS, SUGGESTIONS, TECHNIQUES, SAME, UNDERFLOW,
    COMPARISON, WORDS,
)  # fmt: skip
_ARTICLES: Final = ("the", "a", "an")


def entries() -> Iterator[tuple[Chapter, Term]]:
    """Return every term with the chapter that it is in, in the order of the page."""
    return ((chapter, entry) for chapter in CHAPTERS for entry in chapter.terms)


def names() -> tuple[str, ...]:
    """Return every name of every term."""
    return tuple(dict.fromkeys(name for _, entry in entries() for name in entry.names))


def terms_named(name: str, section: str | None = None) -> tuple[tuple[Chapter, Term], ...]:
    """Return the terms with this name in the report, in any case, with their chapters; with `section` those there.

    Several if one word stands in several tables; none if no line or column has the name.
    """
    return tuple(
        (chapter, entry)
        for chapter, entry in entries()
        if (section is None or not chapter.sections or section in chapter.sections) and is_named(entry, name)
    )


def loosely_named(name: str) -> tuple[tuple[Chapter, Term], ...]:
    """Return the terms of this name without regard to articles and the number of a word: `same calls`, `a like step`.

    For a name that no term has exactly; terms that differ from the name in articles alone come before all others.
    """
    for alike in (_without_articles, _in_the_singular):
        wanted = alike(name)
        known = [pair for pair in entries() if wanted and any(_is(alike(text), wanted) for text in pair[1].names)]
        if known:
            return tuple(known)
    return ()


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
    """Return the note below a table on some of its columns or marks; raise `KeyError` if its chapters lack one."""
    return "; ".join(_note(section, name) for name in wanted)


def _note(section: str, name: str) -> str:
    known = terms_named(name, section)
    # The table's own before those that stand anywhere.
    entries_of_it = [entry for chapter, entry in known if chapter.sections] or [entry for _, entry in known]
    if not entries_of_it:
        raise KeyError(f"the glossary has no {name!r} of the section {section!r}")
    return entries_of_it[-1].note or f"{name}: {entries_of_it[-1].meaning}"


def _without_articles(name: str) -> str:
    return " ".join(word for word in _plain(name).split() if word not in _ARTICLES)


def _in_the_singular(name: str) -> str:
    return " ".join(map(_singular, _without_articles(name).split()))


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    if re.search(r"(?:ss|x|ch|sh)es$", word):
        return word[:-2]
    return word[:-1] if re.search(r"[^su]s$", word) and len(word) > 3 else word


def _is(known: str, wanted: str) -> bool:
    if "{}" not in known:
        return _plain(known) == wanted
    return re.fullmatch(".+".join(map(re.escape, _plain(known).split("{}"))), wanted) is not None


def _plain(name: str) -> str:
    """Return a name without differences of spelling: case, `_` and `-` for a space, spaces and colons around."""
    return " ".join(re.sub(r"[_-](?=\w)", " ", name).casefold().split()).strip(" :")


# The glossary as Markdown: a table for each chapter.


def term_tables() -> str:
    """Return every line and column of the report as tables for the page docs/report.md."""
    return "\n\n".join(map(_chapter, CHAPTERS))


def _chapter(chapter: Chapter) -> str:
    rows = "\n".join(map(_row, chapter.terms))
    return f"### {chapter.title}\n\n| printed | what it is | from the JSON report |\n|---|---|---|\n{rows}"


def _row(term: Term) -> str:
    names = ", ".join(name.replace("{}", "...") for name in term.names)
    meaning = f"{term.meaning}. {term.more}" if term.more else term.meaning
    formula = f"`{term.formula}`" if term.formula else ""
    return "| " + " | ".join(text.replace("|", r"\|") for text in (names, meaning, formula)) + " |"
