"""Collectives, communication by phase and module, ranks, waiting."""

from __future__ import annotations

from typing import Final

from opanatomy.report.glossary import figures_communication as figures
from opanatomy.report.glossary.term import Chapter, term

COMMUNICATION: Final = Chapter(
    title="Communication",
    sections=("collectives", "communication-phases", "communication-modules"),
    terms=(
        term("collective", "what the ranks did together: all reduce, all gather, reduce scatter, all to all, ...",
             "By collective, data type and number of ranks. Their times sum to the class communication exactly.",
             formula="collectives[]"),
        term("time", "the time of the collective's kernels, waiting for the slowest rank included; by phase the union",
             formula="collectives[].time_ns; communication.phases[].running_ns",
             note="waiting for the slowest rank included"),
        term("bytes", "the size of the messages as nccl-tests counts it: what a rank sends in an all-reduce, ends up"
             " with in an all-gather, starts from in a reduce-scatter", formula="collectives[].bytes"),
        term("bus | bus bandwidth", "what the messages put on the links a second", "The bus carries 2 (n - 1) / n of"
             " the"
             " size in an all-reduce, (n - 1) / n in an all-gather, reduce-scatter and all-to-all, all of it in a"
             " broadcast. Waiting is in the time, so this is what was reached, not what the links can do.",
             formula="10^9 x factor x bytes / collectives[].sized_ns", worked=figures.bus),
        term("~", "the trace names no group: all ranks are taken", note="~ the trace names no group: all ranks are"
             " taken"),
        term("communication", "the collectives of each phase: the union of the times in which any of them ran",
             formula="communication.phases[].running_ns", worked=figures.exposed),
        term("hidden", "the share of the communication during which the rank did other work",
             formula="(running_ns - exposed_ns) / running_ns", worked=figures.hidden),
        term("exposed", "nothing else ran meanwhile", "Communication that no work of the rank hides; waiting for other"
             " ranks is in it.", formula="communication.phases[].exposed_ns, communication.exposed_ns",
             worked=figures.exposed),
        term("together", "all phases: where they overlap the time counts once", formula="communication.running_ns,"
             " communication.exposed_ns", worked=figures.hidden),
        term("communicated for", "the module that the collective serves: whose weights are gathered, whose gradients"
             " are"
             " reduced", formula="communication.modules[].module"),
        term("(the model)", "what is outside of the model's parts, and what no range names a module of"),
        term("host time of launching | the host took {} to launch them",
             "host time in the calls that launched collectives",
             formula="sum of communication.phases[].launching_ns"),
        term("messages by theory | messages of a step of a rank by theory", "what a step must communicate by what the"
             " ranks share, next to what it did", formula="communication.expected[].expected_bytes, .measured_bytes,"
             " .wire_bytes"),
    ),
)  # fmt: skip

RANKS: Final = Chapter(
    title="Several ranks",
    sections=("ranks",),
    terms=(
        term("a step of rank", "the mean step of each rank, of more than 16 a row a group of like ones",
             "Like ranks: no figure is more than 5 % of the median step away from that of the most typical of them.",
             formula="ranks[].wall_ns; the other times are sums / ranks[].steps"),
        term("step", "the mean step of the rank", formula="ranks[].wall_ns"),
        term("own", "the step less exposed communication", "What the rank does of its own while others may be waiting"
             " for it.", formula="ranks[].wall_ns - (ranks[].exposed_communication_ns / ranks[].steps)",
             worked=figures.own),
        term("busy", "the union of the rank's device work, a step", formula="ranks[].busy_ns / ranks[].steps"),
        term("kernels", "the sum of the rank's device work, a step", formula="ranks[].kernel_time_ns / ranks[].steps"),
        term("comm", "the union of the rank's communication, a step", formula="ranks[].communication_ns /"
             " ranks[].steps"),
        term("exposed", "communication that nothing hides, a step", formula="ranks[].exposed_communication_ns /"
             " ranks[].steps"),
        term("idle", "the rank's time without device work, a step", formula="ranks[].idle_ns / ranks[].steps"),
        term("min", "the least over the ranks", formula="spread[].min_ns"),
        term("median", "the middle over the ranks", formula="spread[].median_ns"),
        term("max", "the most over the ranks", formula="spread[].max_ns"),
        term("longest step | slowest", "the rank with the longest step", formula="spread[figure = step].max_rank"),
    ),
)  # fmt: skip

WAITING: Final = Chapter(
    title="Waiting",
    sections=("waiting-steps", "matched"),
    terms=(
        term("a step of rank", "the mean step of each rank in its parts, which sum to it",
             formula="step = other work + transfer + waiting + unmatched + idle: waiting.each[].steps[]",
             worked=figures.waiting),
        term("step", "the mean of the rank's steps, without what only other steps' work fills",
             formula="waiting.each[].steps[].wall_ns", worked=figures.waiting),
        term("other work", "the union of all work of the window that is no communication", formula="other_work_ns",
             worked=figures.waiting),
        term("transfer", "what no other work hides, from the start of the last rank of a collective on: data could"
             " flow",
             formula="transfer_ns", worked=figures.waiting),
        term("waiting", "what no other work hides, up to the start of the last rank of a collective",
             formula="waiting_ns", worked=figures.waiting),
        term("transfer and waiting", "what no other work hides"),
        term("unmatched", "communication that is not matched with that of the other ranks", formula="unmatched_ns",
             worked=figures.waiting),
        term("idle", "what the union of all work leaves of the step; on the CPU the framework's time too",
             formula="idle_ns", worked=figures.waiting),
        term("waited for", "by the others, summed", "All waiting of a collective is charged to the rank that came"
             " last.",
             formula="waiting.each[].charged_ns / number of steps", worked=figures.straggler),
        term("straggler", "the rank that the others wait for", "Named where it has a quarter of all waiting at least"
             " and"
             " twice as much as the next rank, where waiting is 1 % of the steps or more, and where its lead exceeds"
             " what the clocks are known to.", formula="waiting.straggler.charged_ns / .waiting_ns",
             worked=figures.straggler),
        term("lower bound", "some of the ranks were not given, and one of them may have come later still",
             formula="waiting.is_lower_bound"),
        term("collectives matched", "which calls of the ranks are one collective: by number in the group, by order, by"
             " time", formula="waiting.by_number, .by_order, .by_time"),
        term("clocks", "whether the ranks' clocks agree as they are or were set by the ends of collectives; to within:"
             " how far nine in ten ends of short collectives are from their middle", formula="waiting.clocks"),
        term("matched", "the collectives that were matched over the ranks", formula="waiting.collectives[]"),
        term("number", "how many collectives", formula="waiting.collectives[].collectives"),
        term("time", "of all ranks together: transferring and waiting", formula="waiting.collectives[].duration_ns ="
             " waiting.collectives[].transferring_ns + .waiting_ns"),
        term("time and waiting", "of all ranks together", note="time, waiting and bytes of all ranks together"),
        term("bytes", "the size of the messages of all ranks together, as in the table of one rank's collectives",
             formula="waiting.collectives[].bytes"),
        term("bus", "the bus bandwidth over the whole duration", formula="waiting.collectives[].bus_bytes_per_second"),
        term("bus in transfer", "from the start of the last rank on", "The bus bandwidth while data could flow.",
             formula="waiting.collectives[].transfer_bus_bytes_per_second"),
    ),
)  # fmt: skip
