"""What ran: model, workload, device; generations; real texts."""

from __future__ import annotations

from typing import Final

from opanatomy.report.glossary.term import Chapter, term

RUN: Final = Chapter(
    title="What ran",
    sections=("title", "headline", "run", "source", "warnings", "memory-notes"),
    terms=(
        term("model", "the class of the model and how many parameters it has", "Those that are trained stand in"
             " brackets"
             " where not all are.", formula="workload.architecture, workload.parameters,"
             " workload.trainable_parameters"),
        term("workload", "what a step is: task, batch, length, data type, attention, options",
             "The batch is what one update takes; accumulated over micro-batches each forward has a part of it.",
             formula="workload.*"),
        term("run unfused | (run unfused) | {} attention (run unfused) | unfused attention", "torch ran"
             " scaled_dot_product_attention as products and a softmax: the matrix of probabilities is kept",
             "No fused kernel took this case: on the CPU there is none with dropout. --set"
             " attention_probs_dropout_prob=0 (the name is the model's own) has one.",
             formula="workload.attention, operators[].operator"),
        term("training", "of several ranks: how they train together, the samples of each and of all",
             formula="workload.parallel, workload.world_size, workload.batch x ranks that have data of their own"),
        term("backward", "the output that backward started from: its loss, else its only single number, else all of"
             " them"
             " with ones", formula="workload.backward_from"),
        term("changed", "what --layers and --set altered of the model's configuration", formula="workload.changes"),
        term("device", "what the step ran on", "Of several kinds in one trace the one most kernels ran on.",
             formula="environment.device, environment.device_memory_bytes, environment.device_count"),
        term("software", "the versions of torch, CUDA, the driver, transformers and opanatomy",
             formula="environment.*"),
        term("trace", "the file that everything comes from", formula="provenance.trace"),
        term("command", "the command that made the report", formula="provenance.command"),
        term("opanatomy", "the version that made the report", formula="provenance.opanatomy"),
        term("rank", "which rank of how many the trace is of, where it says so", formula="ranks[0].rank, .world_size"),
        term("warning | warnings", "what in the trace, or in how it was taken, a reader has to know of",
             formula="warnings"),
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
             formula="generation.new_tokens, generation.beams"),
        term("prefill", "the time to the first new token: the prompt at once", "Of generations without the profiler.",
             formula="generation.first_token_ns"),
        term("decoding", "the time from one new token to the next, and those of all samples a second",
             formula="generation.token_ns = generation.decoding_ns / generation.decoded_tokens"),
        term("a token", "what one forward for one token of every sample and beam reads, writes and computes",
             formula="generation.token_read_bytes, .token_written_bytes, .token_flops"),
    ),
)  # fmt: skip

TEXTS: Final = Chapter(
    title="Real texts",
    sections=("texts", "batches"),
    terms=(
        term("texts", "where the texts are from, how many there are and how long they are",
             formula="texts.count, .shortest, .median, .cut"),
        term("padding", "how texts are padded to batches, and the share of the tokens that is of texts",
             formula="texts.all_useful_tokens / texts.all_tokens"),
        term("wasted", "FLOPs of contractions on padding, in the profiled batch",
             formula="texts.padding_flops.padding_flops / texts.padding_flops.flops"),
        term("tokenizer", "how fast it is, and whether the steps would wait for it",
             formula="texts.tokenizers: tokens_per_second against texts.tokens_per_second"),
        term("steps", "the mean step over the batches, from the shortest to the longest, samples and tokens a second",
             formula="texts.mean_step_ns, .samples_per_second, .useful_tokens_per_second"),
        term("memory", "the memory is that of the longest batch", formula="texts.memory_length"),
        term("batch", "a batch that was run, in the order of the run"),
        term("length", "the tokens that each text of the batch is padded to", formula="texts.batches[].length"),
        term("tokens", "texts x length: with padding", formula="texts.batches[].tokens"),
        term("useful", "the share of the tokens that is of texts", formula="texts.batches[].useful_tokens / .tokens"),
        term("step", "the mean of the batch's steps without the profiler and without a pause",
             formula="texts.batches[].step_ns"),
        term("useful tokens", "tokens of texts a second", formula="10^9 x texts.batches[].useful_tokens / .step_ns"),
    ),
)  # fmt: skip
