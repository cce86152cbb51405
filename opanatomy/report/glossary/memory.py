"""The memory of a step: components, peak, snapshots, activations by theory, what does not fit."""

from __future__ import annotations

from functools import partial
from typing import Final

from opanatomy.report.glossary import figures_memory as figures
from opanatomy.report.glossary.term import Chapter, Term, term

#: What each component is, by its key in the JSON report.
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
            formula=f'memory.components[component = "{name}"]', worked=partial(figures.component, name=name),
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
             worked=figures.peak),
        term("measured", "each component at its fullest in the step, activations when forward is done, temporary"
             " buffers at the peak",
             "From a trace alone there is no such column: what is inferred is inferred at the peak.",
             formula="memory.components[].measured_bytes", worked=figures.peak),
        term("at peak", "what of it lives at the peak; these sum to the peak",
             formula="memory.components[].at_peak_bytes",
             worked=figures.peak),
        term("theory", "what the formula in its row gives", formula="memory.components[].theory_bytes",
             worked=figures.theory),
        term("off", "measured less theory, of theory", formula="(measured_bytes - theory_bytes) / theory_bytes",
             worked=figures.off),
        term("peak | peak in {} | memory peak", "the most that is allocated in the step, and in which phase",
             "The note below names what measured it: an allocator, or the events of a trace.",
             formula="memory.allocator_peak_bytes, memory.peak_at, memory.measured_by", worked=figures.peak),
        term("peak of the process", "the most that the process had resident in the step, with all of Python in it",
             "On the CPU, where the allocations were not followed (--memory).", formula="memory.process_peak_bytes",
             worked=figures.peak),
        term("inferred | inferred {}", "of a trace: how blocks were placed, by when they were allocated and freed",
             formula="memory.inferences[].rule"),
        *_component_terms(),
    ),
)  # fmt: skip

PEAK: Final = Chapter(
    title="What lives at the peak, what is saved for backward",
    sections=("memory-peak", "saved-activations"),
    terms=(
        term("live at the peak", "what lives at the peak, by the operator and module that allocated it",
             formula="memory.blocks[]"),
        term("operator", "the operator that allocated it"),
        term("module", "the module whose work allocated it"),
        term("blocks", "how many blocks of the allocator", formula="memory.blocks[].blocks"),
        term("of peak", "the share of the peak", formula="memory.blocks[].bytes / memory.peak_bytes"),
        term("and more", "what is not listed", formula="memory.unlisted_bytes + the rows that are not shown"),
        term("saved for backward", "what forward saved for backward, by like modules, operator and shape",
             "`*` stands for a number in the path of a module.", formula="memory.activations[]"),
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
        term("memory at each stage", "what was in use at each stage of the run", formula="memory.snapshots[]"),
        term("at the start", "before anything of the model was there: Python and its libraries"),
        term("allocated", "what the allocator has handed out", formula="memory.snapshots[].allocated_bytes"),
        term("reserved", "what the allocator holds of the device, blocks free for use again included",
             formula="memory.snapshots[].reserved_bytes"),
        term("GPU occupied", "what is used of the whole device, by everyone, as NVML says",
             formula="memory.snapshots[].nvml_used_bytes"),
        term("process", "the resident set of the process on the host", formula="memory.snapshots[].rss_bytes"),
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
             formula="memory.terms[].formula", worked=figures.terms),
        term("sum", "all terms", formula="sum of memory.terms[].bytes", worked=figures.terms),
        term("the classic run", "BERT-large, batch 4 x 512, float32, AdamW, one V100, as Hugging Face published it,"
             " next to this run", formula="memory.published[]"),
        term("ours", "the figure of this report", formula="memory.published[].measured"),
        term("difference", "ours less the published figure", formula="memory.published[].measured - .published"),
        term("Tesla V100 16 GB", "the figure as published"),
    ),
)  # fmt: skip

FAILURE: Final = Chapter(
    title="What does not fit",
    sections=("out-of-memory", "savings"),
    terms=(
        term("out of memory in {} | out of memory", "where the step ran out of memory", formula="memory.failure"),
        term("the request that failed", "what was requested when it broke", formula="memory.failure.requested_bytes"),
        term("allocated when it broke", "what was allocated then", formula="memory.failure.allocated_bytes"),
        term("needed by theory, buffers apart", "what the step needs by theory, temporary buffers apart",
             formula="memory.needed_bytes"),
        term("would save", "a technique and what it takes from the need", formula="memory.savings[].technique"),
        term("option", "what to add to the command", formula="memory.savings[].option"),
        term("then needed", "what the step then needs by theory", formula="memory.savings[].needed_bytes"),
        term("fits", "whether that fits: yes, no, perhaps", formula="memory.savings[].fits"),
    ),
)  # fmt: skip
