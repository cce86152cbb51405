"""One step: wall time, phases, busy and idle time, launches, and what of the ceilings it reached."""

from __future__ import annotations

from functools import partial
from typing import Final

from opanatomy.report.glossary import figures_step as figures
from opanatomy.report.glossary.term import Chapter, term

#: What shares of the step's time are of.
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
            worked=figures.step,
        ),
        term("plain", "the step without the profiler, the mean of all but those twice as long as the shortest",
             formula="step.unprofiled_wall_ns, of step.unprofiled_count steps", worked=figures.step),
        term("profiled", "the step that the profiler recorded, the mean of those that count",
             formula="step.wall_ns, of step.count steps", worked=figures.step),
        term("samples/s", "samples of the batch a second, by the plain step where there is one",
             formula="step.samples_per_second", worked=figures.step),
        term("steps", "how many there are, plain and profiled, the shortest and the longest",
             "All figures are means over the steps that count, so that parts sum to their whole. A step does not count"
             " where other steps' work runs in it, where it holds a pause, where it does hardly any work, and where"
             " most make the same calls and it makes others: the line names it with its time and the reason.",
             formula="step.count, step.wall_min_ns, step.wall_max_ns, step.unprofiled_wall_min_ns, ..."),
        term("phases", "on the CPU the wall time of forward, backward and optimizer (of a generation: prefill and"
             " decoding); on an accelerator the busy time of their device work",
             formula="step.forward_ns, .backward_ns, .optimizer_ns, .prefill_ns, .decoding_ns / step.wall_ns",
             worked=figures.phases),
        term(
            "framework",
            "on the CPU: wall time that no operator explains - dispatch, autograd bookkeeping, Python",
            "step = operators + framework + profiler, exactly; where the profiler's part cannot be separated from noise"
            ", framework includes it.",
            formula="step.framework_ns = step.wall_ns - step.busy_ns - step.profiler_ns",
            worked=figures.framework,
        ),
        term(
            "profiler",
            "on the CPU: an estimate of what of the framework's time is the profiler's own",
            "Profiled less plain step, times the part of events' ends that lie outside operators.",
            formula="step.profiler_ns / step.wall_ns",
            worked=figures.profiler,
        ),
        term("samples of a step", "the batch of all ranks that have data of their own", formula="workload.batch"),
        term("window", "from the first step's start to the last one's end; a trace without annotations is one step,"
             " the whole of it", "With several devices its times are means over those that ran kernels.",
             formula="timeline.window_ns / step.count (of several ranks / the steps of one); window = busy + outside +"
             " idle, idle = host-bound + stream waits + other, exactly", worked=figures.window),
        term("the step without other steps' work | without it", "the window without the time in which the device did"
             " only work of other steps: shares of the step's time are of this", formula=_OF_STEP,
             worked=figures.own_time),
        term("from the first to the last device work", "what stands for the step where none is annotated: the time"
             " before and after all device work (timeline.around_ns) is left out",
             formula="timeline.window_ns - .outside_ns", worked=figures.own_time),
        term("device", "busy and idle time of the device, as shares of the step without other steps' work",
             formula=f"timeline.busy_ns, .idle_ns / {_OF_STEP}", worked=figures.busy),
        term("busy", "the union of the device work launched in the steps: some kernel, copy or fill runs",
             formula=f"timeline.busy_ns / {_OF_STEP}", worked=figures.busy),
        term("compute and copies", "the device computes or copies, whatever communication it hides",
             formula=f"(timeline.busy_ns - .exposed_communication_ns) / {_OF_STEP}", worked=figures.computing),
        term("in it waiting for other ranks", "the part of exposed communication in which a rank waits for others that"
             " have not begun the same collective, where that is known", formula=
             "(sum of waiting.each[].steps[].waiting_ns) / (sum of waiting.each[].steps[].wall_ns), at most what is"
             " exposed", worked=figures.waiting_of_step),
        term("kernel time", "the sum of the step's device work over all streams, so that it may exceed the step",
             formula="step.kernel_time_ns", worked=figures.kernel_time),
        term("overlap", "communication and copies, and what of them nothing hides",
             formula=f"timeline.communication_ns, .exposed_communication_ns, .exposed_memcpy_ns / {_OF_STEP}",
             worked=figures.exposed),
        term("communication", "the union of the times in which a collective runs",
             formula=f"timeline.communication_ns / {_OF_STEP}", worked=figures.communication),
        term("of it exposed | exposed communication", "communication while no other work of the device runs",
             "timeline.computation_ns is the union of what is neither communication nor copy, so busy - computation -"
             " exposed memcpy is the communication that no computation hides, copies or not.",
             formula=f"timeline.exposed_communication_ns / {_OF_STEP}", worked=figures.exposed),
        term("exposed memcpy", "copies while no other work of the device runs",
             formula=f"timeline.exposed_memcpy_ns / {_OF_STEP}", worked=figures.exposed_memcpy),
        term("idle", "nothing runs on the device; the line says why, as shares of the step",
             formula=f"timeline.idle_ns / {_OF_STEP}; idle_ns = host_idle_ns + stream_idle_ns + other_idle_ns",
             worked=figures.idle),
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
             " nothing was queued", formula="timeline.drained_ns / timeline.idle_ns"),
        term("not recorded", "time from a launch whose work is not in the trace to the next work that is:"
             " it is neither busy nor idle", formula=f"timeline.unrecorded_ns / {_OF_STEP}"),
        term("host-bound | host bound", "idle, and what comes next was launched after the device fell idle",
             "So is the time before the end in which nothing follows. The host is late: more work a launch, or fewer"
             " launches, help.", formula=f"timeline.host_idle_ns / {_OF_STEP}", worked=figures.host_bound),
        term("stream waits | stream wait", "idle, what comes next was already launched, and another stream worked last",
             formula=f"timeline.stream_idle_ns / {_OF_STEP}", worked=figures.stream_waits),
        term("other", "idle between two device events of one stream, or before work without a launch record",
             formula=f"timeline.other_idle_ns / {_OF_STEP}", worked=figures.other_idle),
        term("other steps' work | busy with another step's work | outside", "the device did only work that"
             " was launched before the window"
             " (the step before it, most often) or after; not counted as busy or idle",
             formula="timeline.outside_ns / step.count", worked=figures.outside),
        term("launches | launching", "calls of the host that launch kernels or graphs, and the host time inside them",
             formula="timeline.launching.calls / step.count, timeline.launching.call_ns / step.count",
             worked=figures.launches),
        term("mean delay", "from the start of a launch on the host to the start of its first kernel, the mean",
             "Summed delay over the window is the mean length of the queue.",
             formula="timeline.launching.delay_ns / timeline.launching.delayed", worked=figures.launches),
        term("tiny kernels | of the kernels below", "kernels shorter than 10 us: launching costs as much as they do",
             formula="timeline.launching.tiny_kernels / .kernels, .tiny_kernel_ns / .kernel_ns",
             worked=figures.launches),
        term("estimates", "how full the device was, by Kineto's estimates from launch dimensions",
             "AMD traces and some old ones lack them.", formula="device.sm_efficiency, device.occupancy,"
             " device.tensor_core_ns / timeline.launching.kernel_ns", worked=figures.tensor_cores),
        term("SM efficiency", "the mean over the time of all steps of the share of multiprocessors with a block",
             "min(blocks per SM, 1), summed over the kernels that run at that moment and never above 1, so never above"
             " the utilization.", formula="device.sm_efficiency", worked=partial(figures.estimates,
             name="sm_efficiency")),
        term("occupancy", "the mean of the kernels' estimated occupancy, weighted by duration",
             "Occupancy is the share of a multiprocessor's warps that a kernel's blocks can fill.",
             formula="device.occupancy", worked=partial(figures.estimates, name="occupancy")),
        term("utilization", "the union of the kernels, copies and fills left out, over the time of all steps",
             formula="device.utilization", worked=partial(figures.estimates, name="utilization")),
        term("tensor cores | tensor-core time", "kernels whose name says that they multiply on tensor cores (matrix"
             " cores on AMD), over the time of kernels", "Which names do is a table in"
             " classification/tensor_cores.py. \"(12 % not known)\" are products whose names do not tell. A device"
             " without such cores has no figure.", formula="device.tensor_core_ns / timeline.launching.kernel_ns",
             worked=figures.tensor_cores),
        term("ceilings", "the most that the device can do: dense peaks of products by data type, of all other"
             " arithmetic, and bandwidth, with their source",
             "In this order: --peak and --bandwidth; what `opanatomy ceilings` measured on this device; the maker's"
             " data"
             " sheet. A device that none knows has none.", formula="device.peak_flops_per_second,"
             " .vector_flops_per_second, .bandwidth_bytes_per_second, .source", worked=figures.ceilings),
        term("reached", "the shares of the peak that contractions reach over the step: MFU and HFU",
             formula="device.mfu, device.hfu", worked=figures.mfu),
        term("MFU | model FLOPs utilization", "FLOPs of contractions without recompute over what the peak could do in"
             " the step", "The peak is that of the data type most of these FLOPs are in, the step the plain one"
             " where it"
             " was measured. With ≥ a lower bound, over the part of the contractions' time whose FLOPs are known;"
             " below half of it there is none.",
             formula="(sum of operators[].flops of tensor_contraction, phase not recompute) / (step.count x"
             " step.unprofiled_wall_ns (else wall_ns) x device.peak_flops_per_second[device.mfu_dtype] x devices with"
             " kernels)", worked=figures.mfu),
        term("HFU | hardware FLOPs utilization", "as MFU, with the FLOPs of recompute", formula="(sum of"
             " operators[].flops of tensor_contraction) / (step.count x step.unprofiled_wall_ns (else wall_ns) x"
             " device.peak_flops_per_second[device.mfu_dtype] x devices with kernels)", worked=figures.hfu),
    ),
)  # fmt: skip
