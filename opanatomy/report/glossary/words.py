"""Words of the pages that are no line or column of theirs: what sentences, headings and notes speak of."""

from __future__ import annotations

from typing import Final

from opanatomy.report.glossary.term import Chapter, term

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
             "Means add up, so that parts sum to their whole; medians do not.", formula="x / step.count"),
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
             " timeline.launching.synchronizing_ns / step.count"),
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
             " last", formula="waiting.straggler.charged_ns"),
        term("lead | after the rank before it", "how much later the last rank begins a collective than the one before"
             " it", formula="waiting.straggler.lead_ns"),
        term("world size", "how many ranks the run has", formula="ranks[].world_size"),
        term("process group | group", "the ranks that take part in a collective"),
        term("recomputation | checkpointing", "activations are not kept but computed again in backward",
             formula='classes[] where phase is "recompute"'),
        term("part of | parts of an operator", "operators that an operator's call ran and that are counted with it",
             formula="operators[].part_of"),
        term("kind of device", "cuda, cpu or another one by torch's name", formula="environment.device_kind"),
        term("peak rate | peak of the device", "the most FLOPs a second that the device can do, by data type"),
        term("units of rounding", "of float32: 2^-23, the relative distance of two neighbouring numbers"),
        term("noise", "what differs from repetition to repetition of the same run"),
        term("prediction | predicted", "worked out from a run of the baseline, before the technique is run"),
        term("causal mask", "attention to earlier tokens alone: FLOPs are counted without it, causal FLOPs with it",
             formula="operators[].causal_flops"),
    ),
)  # fmt: skip
