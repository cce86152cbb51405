"""Suggestions of a run, and the report of an experiment with techniques."""

from __future__ import annotations

from typing import Final

from opanatomy.report.glossary import figures_experiments as figures
from opanatomy.report.glossary.term import Chapter, term

SUGGESTIONS: Final = Chapter(
    title="What would save most",
    sections=("suggestions",),
    terms=(
        term("suggestions | what would save most", "up to three techniques that would save the most memory or time"
             " of this"
             " very run, by prediction", "Only techniques whose predictions were compared with measurements, and only"
             " what saves 3 % of the peak, or of the time for sure.", formula="suggestions.best[]",
             note="predicted, not run: `opanatomy techniques` measures them"),
        term("add to the command", "the option to add to `opanatomy profile`", formula="suggestions.best[].option"),
        term("technique", "what the option does", formula="suggestions.best[].technique"),
        term("peak then", "the predicted peak of all allocations", formula="suggestions.best[].peak_bytes"),
        term("d.peak", "the predicted peak relative to that of the step as it is, predicted the same way",
             formula="(peak_bytes - now_bytes) / now_bytes", worked=figures.suggested),
        term("d.step", "the predicted step relative to the step as it is", formula="suggestions.best[].time_ratio - 1",
             worked=figures.suggested),
        term("from", "the shortest step of the prediction's range, relative to the step as it is",
             formula="suggestions.best[].low_ratio - 1"),
        term("to", "the longest step of the prediction's range, relative to the step as it is",
             formula="suggestions.best[].high_ratio - 1"),
    ),
)  # fmt: skip

TECHNIQUES: Final = Chapter(
    title="Techniques",
    sections=("experiment", "techniques", "predictions", "technique-memory", "not-run", "offenders", "advice"),
    terms=(
        term("technique", "its name for `opanatomy techniques --only`; the first row is the baseline",
             formula="rows[].name"),
        term("baseline", "the run as given, which all others are compared with", formula="rows[0]"),
        term("peak", "the most that is allocated in the step, of all allocations", formula="rows[].measured.peak_bytes,"
             " of what was not run predicted.peak_bytes", worked_techniques=figures.peak),
        term("d.peak", "the peak relative to the baseline's", formula="(peak_bytes - baseline's) / baseline's",
             worked_techniques=figures.peak),
        term("step", "the median step without the profiler", formula="rows[].measured.step_ns",
             worked_techniques=figures.step),
        term("d.step", "the step relative to the baseline's; ~ where the ranges of the repetitions overlap",
             formula="(step_ns - baseline's) / baseline's", worked_techniques=figures.step),
        term("step of the baseline", "the median step of the baseline without the profiler",
             formula="rows[0].measured.step_ns"),
        term("peak of the baseline", "the most that is allocated in a step of the baseline",
             formula="rows[0].measured.peak_bytes"),
        term("samples", "samples of the baseline's batch a second",
             formula="10^9 x rows[0].measured.samples / rows[0].measured.step_ns"),
        term("techniques", "how many were tried besides the baseline", formula="rows[1:]"),
        term("figures", "whether the figures are measured, or predicted and not run", formula="predicted_only"),
        term("repetitions", "how often each was timed, in an order by chance", formula="repetitions, order"),
        term("seed", "what the order and the weights were drawn with", formula="seed"),
        term("d.", "relative to the baseline"),
        term("samples/s", "samples of the batch over the step",
             formula="10^9 x rows[].measured.samples / rows[].measured.step_ns"),
        term("B/F FLOPs", "FLOPs of contractions in backward, recomputation included, over those of forward",
             formula="(flops.backward + flops.recompute) / flops.forward", worked_techniques=figures.backward_ratio),
        term("B/F", "backward with recomputation over forward"),
        term("FLOPs", "FLOPs of contractions of the whole step, over the baseline's",
             formula="(sum of flops) / (the baseline's)", worked_techniques=figures.flops),
        term("~", "no difference beyond that of the repetitions"),
        term("!", "the prediction does not agree, see the table of predictions",
             "Of memory where it is off by more than 2 %, of time where the measured change is out of its range."),
        term("prediction of", "what was predicted before the technique was run", formula="rows[].predicted"),
        term("off by", "predicted over measured change", "Of memory predicted over measured peak, less one; of time the"
             " change from the baseline, which leaves out the machine's drift.",
             formula="(predicted.peak_bytes / measured.peak_bytes) - 1; ((predicted step / baseline's predicted) /"
             " (measured step / baseline's measured)) - 1", worked_techniques=figures.off_by),
        term("step of a prediction", "at the rates that the calls of the baseline reached",
             note="step: at the rates that the calls of the baseline reached"),
        term("from", "the shortest predicted step", formula="rows[].predicted.low_ns"),
        term("to", "the longest predicted step", formula="rows[].predicted.high_ns"),
        term("memory of", "each component at its fullest in the step", formula="rows[].measured.components",
             note="each component at its fullest in the step"),
        term("why not", "why it did not run, or could not be predicted", formula="rows[].failed, .not_predicted"),
        term("offenders | what made predictions wrong", "the operators whose predicted and measured times are far"
             " apart",
             formula="rows[].offenders[]: measured_ns for predicted_ns"),
        term("advice", "what the experiment comes to, each with the option to add", formula="advice"),
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
             note="differences in units of rounding of float32, of one step without dropout from the same weights and"
             " data"),
        term("loss", "how far the losses are apart, in units of rounding", formula="rows[].sameness.loss_units"),
        term("gradients", "how far the gradients are apart, in units of rounding",
             formula="rows[].sameness.gradient_units"),
        term("weights", "how far the updated weights are apart, in units of rounding",
             formula="rows[].sameness.weight_units"),
        term("worst gradient", "the weight whose gradient is farthest apart",
             formula="rows[].sameness.worst_gradient.name"),
        term("losses of", "the losses of techniques that change the result, on one batch, without dropout",
             formula="rows[].losses"),
        term("first", "the loss of the first step", formula="rows[].losses.losses[0]"),
        term("last", "the loss of the last step", formula="rows[].losses.losses[-1]"),
        term("baseline's", "the baseline's loss of the last step", formula="rows[].losses.baseline[-1]"),
        term("apart at most", "the largest difference of the two losses of a step, of the baseline's",
             formula="the largest of (|losses - baseline|) / (|baseline|), of rows[].losses",
             worked_techniques=figures.losses_apart),
    ),
)  # fmt: skip

UNDERFLOW: Final = Chapter(
    title="Gradients in float16",
    sections=("underflow",),
    terms=(
        term("gradients of", "the gradient elements of a technique that computes in float16 at each scale of the loss"),
        term("loss scale", "what the loss is multiplied with; 1 is without scaling",
             formula="rows[].underflow.scaled.scale"),
        term("zero", "exactly, of the elements that are not zero in the same step without autocast; without dropout",
             formula="rows[].underflow.scaled.zeros / rows[].underflow.nonzero"),
        term("elements", "how many elements become zero", formula="rows[].underflow.scaled.zeros"),
        term("inf or NaN", "how many elements overflow: the update is skipped",
             formula="rows[].underflow.scaled.not_finite"),
    ),
)  # fmt: skip

GUIDES: Final = Chapter(
    title="What the guides say",
    sections=("guides",),
    terms=(
        term("claim", "what a guide to training says", formula="guides[].claim.claim"),
        term("guide", "the guide's figure", formula="guides[].claim.figure, .figure_to"),
        term("measured", "what the experiment measured of it", formula="guides[].measurement.measured"),
        term("B", "bytes a parameter, each component at its fullest"),
        term("at the peak", "what of them lives then", formula="guides[].measurement.at_peak"),
        term("of", "the technique that the figure is of", formula="guides[].measurement.technique"),
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
             formula="gates[].met, .unknown, .measured"),
        term("Not comparable", "the sides are not of the same work: there are no changes, causes and claims",
             formula="not_comparable"),
        term("warning", "what a reader has to know of the traces"),
    ),
)  # fmt: skip
