"""Time, FLOPs and bytes: columns of many tables, classes and phases, operators, backward over forward, the roofline."""

from __future__ import annotations

from functools import partial
from typing import Final

from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report.glossary import figures_arithmetic as figures
from opanatomy.report.glossary.term import Chapter, Term, term

COLUMNS: Final = Chapter(
    title="Columns of many tables",
    terms=(
        term("time", "device work: the sum of kernels, copies and fills, on the CPU the self time of operators that"
             " compute", "Of one step: the sum over all profiled steps, of all ranks, divided by their number.",
             formula="sum of classes[].time_ns, operators[].time_ns, kernels[].time_ns, modules[].time_ns",
             worked=figures.time),
        term("share", "the part of the time of all classes",
             formula="time_ns / (sum of classes[].time_ns)",
             worked=figures.share),
        term("FLOP share", "the part of the FLOPs of all classes, where these are known of half of the time at least",
             formula="flops / (sum of classes[].flops)", worked=figures.share_of_flops),
        term("calls", "how often: of an operator, of a collective; calls that are part of another one are not counted",
             formula="classes[].calls, operators[].calls where part_of is null", worked=figures.calls),
        term("FLOP | FLOPs | flops", "floating-point operations by formula: a multiply-add is two, no mask is taken"
             " off",
             "`opanatomy explain OPERATOR` has the formula of each.", formula="sum of classes[].flops",
             worked=figures.flops),
        term("bytes", "the least that must move: each distinct input read once, each output written once",
             "Of a collective the size of its messages, of memory what is allocated.",
             formula="read_bytes + written_bytes", worked=figures.moved_bytes),
        term("FLOP/B | intensity | arithmetic intensity", "FLOPs over bytes: the arithmetic intensity",
             "Nothing where FLOPs are known of less than half of the time.",
             formula="flops / (read_bytes + written_bytes)", worked=figures.intensity),
        term("FLOP/s", "FLOPs a second, over the time whose FLOPs are known",
             "Of operators nothing where that is less than half of their time.",
             formula="10^9 x flops / (time_ns - uncosted_ns)", worked=figures.flop_rate),
        term("B/s", "bytes a second, over the time whose bytes are known", "With the least bytes, so a lower bound of"
             " the traffic. Of operators nothing where that is less than half of their time.",
             formula="10^9 x (read_bytes + written_bytes) / (time_ns - uncosted_ns)",
             worked=figures.byte_rate),
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
             formula="(sum of classes[].bounded_ns) / (sum of classes[].time_ns)"),
        term("per step, mean of {} | per step of a rank, mean of {} | per step", "sums over all profiled steps, of all"
             " ranks, divided by their number, so that parts sum to their whole", formula="x / step.count"),
        term("all {} steps together | all steps", "the figures are sums over all profiled steps", formula="step.count"),
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
             worked=partial(figures.of_class, item=item))
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
             worked=partial(figures.of_phase, item=phase))
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
             " flops, read_bytes + written_bytes", worked=figures.ratios),
        term("FLOP theory | bytes theory | theory", "what theory says of this step: 2 for contractions where all"
             " weights and inputs need gradients"
             " (3 with checkpointing), 1.5 in bytes for maps and norms", "Each forward product counts its backward's,"
             " one for the weight and one for the input where these need a gradient.",
             formula="ratios[].theory_flops, ratios[].theory_bytes"),
        term("-", "a part without formula, or a forward of less than 1 % of the backward"),
        term("the paper's classes", "the shares of the first three classes among themselves, optimizer left out, next"
             " to those of the paper",
             formula="(sum of flops, of time_ns, of the class) / (sum over the three classes), phase"
             " not optimizer", worked=figures.of_paper),
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
             " short.", formula="operators[] by part_of or operator, phase"),
        term("kernel | kernels", "device work by the name of the kernel, copy or fill, classed by that name alone",
             formula="kernels[].time_ns, .count, .operators"),
        term("module | modules", "the work of a module of the model", "The JSON report has each module without its"
             " submodules.", formula="modules[].time_ns, .flops by module, phase and class"),
        term("count", "how often the kernel ran in a step", formula="kernels[].count / step.count"),
        term("launched by", "the operator that launched the kernel; none where a graph did",
             formula="kernels[].operators"),
        term("launched by graphs", "device work of graphs, which no operator launched by itself",
             formula="the lesser of ledger.graph_launched_ns and ((sum of classes[].time_ns) - (sum of"
             " operators[].time_ns) - ledger.no_launch_record_ns), / step.count", worked=figures.by_graphs),
        term("without an operator", "device work that no operator call launched by itself",
             formula="((sum of classes[].time_ns) - (sum of operators[].time_ns) - what is launched by graphs) /"
             " step.count", worked=figures.without_operator),
        term("without a kernel", "work that is no device event: collectives on the host's threads",
             formula="((sum of classes[].time_ns) - (sum of kernels[].time_ns)) / step.count"),
        term("outside modules", "work that no module's range has: the loss, the optimizer, what lies between steps",
             formula="((sum of classes[].time_ns) - (sum of modules[].time_ns)) / step.count"),
        term("fwd FLOP | bwd FLOP | prefill FLOP | decode FLOP", "FLOPs of the module with all that lies in it, in that"
             " phase; backward with recompute",
             formula="(sum of modules[].flops by phase) / step.count", worked=figures.of_modules),
        term("signature", "shapes and data types of an operator's arguments", formula="operators[].signature"),
        term("rule", "the line of the tables of names that classed an operator or kernel", formula="operators[].rule,"
             " kernels[].rule"),
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
             " written_bytes) / device.bandwidth_bytes_per_second)", worked=figures.bound),
        term("bound by", "what sets the bound: compute, memory, or the share of it that memory sets",
             formula="(sum of classes[].memory_bound_ns) / (sum of classes[].bound_ns)", worked=figures.bound_by),
        term("memory", "bound by memory: bytes / bandwidth is the longer",
             formula='operators[].bound_by is "memory"', worked=figures.bound_by),
        term("compute", "bound by compute: FLOP / peak is the longer", formula='operators[].bound_by is "compute"',
             worked=figures.bound_by),
        term("ceiling", "bound / time - where memory bounds, the paper's MUE, whose factors (needless traffic, reached"
             " bandwidth) only hardware counters can separate", "Of the calls whose bound is known. Above 100 % where"
             " caches give what memory could not: such operators are in `checks`, quantity ceiling.",
             formula="(sum of bound_ns) / (sum of bounded_ns; of operators time_ns - uncosted_ns)",
             worked=figures.reached),
        term("headroom", "time - bound", "Operator by operator and phase, never below 0: what fusion or a better kernel"
             " could win.", formula="sum of classes[].headroom_ns", worked=figures.headroom),
        term("MUE", "the paper's memory usage efficiency: (least bytes / bytes moved) x (bandwidth reached / peak)",
             "The bytes really moved cancel: it is the column `ceiling` of what memory bounds.",
             formula="least bytes / (time x peak bandwidth)", worked=figures.reached),
    ),
)  # fmt: skip
