"""Report what ran: the title, the model, the workload, the device and the software; the trace's warnings."""

from __future__ import annotations

from typing import Final

from opanatomy.analysis.costs import are_by_updates, costs_of, is_whole_trace, nothing_recorded, steps_of_window
from opanatomy.analysis.evidence import SOFTMAX_OF_SDPA
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.workload import TextBatchRow, TokenizerRow
from opanatomy.report.section import (
    Bytes,
    Column,
    ColumnKind,
    Columns,
    Count,
    Fact,
    Flops,
    Name,
    Note,
    NoteKind,
    Page,
    Phrase,
    Rate,
    Row,
    Section,
    Share,
    Time,
    cells_of,
    facts_of,
    joined,
    phrase,
)
from opanatomy.report.sections.checks import alarm_texts, exceeded_texts
from opanatomy.report.sections.step import rate_of_run
from opanatomy.report.units import noun

#: Vendors by torch's names for kinds of devices.
_MAKERS: Final = {"cuda": "NVIDIA", "rocm": "AMD", "xpu": "Intel"}


def title(anatomy: Anatomy) -> Section:
    """Return the title: the model or trace of the report."""
    workload, provenance = anatomy.workload, anatomy.provenance
    traces = [rank.trace for rank in anatomy.ranks if rank.trace]
    together = f"{len(anatomy.ranks):,} ranks, {traces[0]} to {traces[-1]}" if len(traces) > 1 else None
    name = workload.model or workload.architecture or together or provenance.trace or "a training step"
    where = f", estimated for {anatomy.environment.device}" if anatomy.estimated is not None else ""
    note = Note(text=f"The anatomy of {name}{where}", kind=NoteKind.TITLE)
    return Section(title="The anatomy", notes=(note,))


def in_short(anatomy: Anatomy) -> Section | None:
    """Return one line: step time, number of steps, device, busy share and samples per second."""
    costs, step, ranks = costs_of(anatomy), anatomy.step, len(anatomy.ranks)
    if not costs.whole_ns or step.wall_ns is None:
        return None
    recorded, on_cpu = not anatomy.environment.host_only, anatomy.environment.device_kind == "cpu"
    steps = round(steps_of_window(anatomy))
    ends = " by Optimizer.step" if are_by_updates(anatomy) else ""
    busy: tuple[tuple[str, float], ...] = ()
    if not recorded or nothing_recorded(anatomy):
        device: Name | str = "GPU not recorded"
    elif on_cpu:
        device = "CPU"
        busy = (("operators", sum(costs.classes.values())), ("framework", costs.framework_ns + costs.input_ns))
    else:
        device = Name((anatomy.environment.device or "unnamed GPU").removeprefix("NVIDIA ").removeprefix("Tesla "))
        busy = (("busy", anatomy.timeline.busy_ns),)
    where = (phrase("{}", device), phrase("{}", Count(ranks, "rank")) if ranks > 1 else _rank(anatomy))
    shares = tuple(phrase("{} {}", name, Share(ns, costs.whole_ns)) for name, ns in busy if ns)
    over = rate_of_run(anatomy)
    rate, of_run = (step.samples_per_second, "") if over is None else (over, " over the run")
    number = phrase("{}{}", Count(steps, "step"), ends) if steps > 1 or ends else None
    samples = None if rate is None else phrase("{}{}", Rate(rate, "samples"), of_run)
    if step.unprofiled_wall_ns and not is_whole_trace(anatomy):
        # The shares are those of the profiled step: they stand beside its time.
        profiled = joined((phrase("profiled {}", Time(step.wall_ns)), number, *shares))
        parts = (phrase("{} a step", Time(step.unprofiled_wall_ns)), profiled, joined((*where, samples)))
        text = joined(parts, by="; ")
    else:
        long = phrase("{} a step", Time(step.wall_ns))
        if is_whole_trace(anatomy):
            long = phrase("{} of trace, no steps annotated", Time(costs.whole_ns if recorded else step.wall_ns))
        text = joined((long, number, *((*shares, *where) if on_cpu and recorded else (*where, *shares)), samples))
    return Section(title="In short", notes=(Note(text=text or "", kind=NoteKind.PLAIN, most_lines=1),))


def what_ran(anatomy: Anatomy, page: Page) -> Section:
    """Return model, workload, device and software, as far as recorded, and whether there are warnings.

    A first screen omits the device if nothing is known beyond its line.
    """
    environment, workload = anatomy.environment, anatomy.workload
    parameters, trainable = None, workload.trainable_parameters
    if workload.parameters is not None:
        parameters = phrase("{}", Count(workload.parameters, "parameter"))
        if trainable not in (None, workload.parameters):
            parameters = phrase("{} ({} trained)", parameters, Count(trainable))
    batch, length = workload.batch, workload.sequence_length
    sizes = (
        None if batch is None else phrase("batch {}", Count(batch)),
        None if length is None else phrase("length {}", Count(length)),
    )

    # How ranks train together, and how many samples a step of all of them has.
    ranks = None
    if workload.world_size is not None:
        together, bucket = workload.samples_together, workload.bucket_mb
        ranks = joined(
            (
                phrase("{} over {}", workload.parallel or "distributed", Count(workload.world_size, "rank")),
                None if batch is None else phrase("{} per rank", Count(batch, "sample")),
                None if together is None else phrase("{} in total", Count(together)),
                f"buckets of {bucket:g} MiB" if bucket else None,
                "gradients are views of the buckets" if workload.bucket_view else None,
            )
        )
    libraries = (
        ("torch", environment.torch),
        ("CUDA", environment.cuda),
        ("driver", environment.driver),
        ("transformers", environment.transformers),
    )
    warnings = len([text for text in anatomy.warnings if text])
    more = environment.device_memory_bytes is not None or (environment.device_count or 1) > 1
    said = page.brief and not (more or environment.host_only or environment.device_kind == "cpu")
    facts = facts_of(
        ("model", joined((workload.architecture, parameters))),
        ("workload", joined((workload.task, *sizes, *_options(anatomy)))),
        ("training", ranks),
        ("changed", joined(workload.changes)),
        ("device", None if said else joined((_device(anatomy), _rank(anatomy)))),
        ("software", joined(f"{name} {version}" for name, version in libraries if version)),
    )
    if warnings:
        where = phrase("{} listed at the end (--section warnings)", Count(warnings))
        facts = (*facts, Fact(label="warnings", text=where, warning=True))
    return Section(title="What ran", facts=facts)


def source(anatomy: Anatomy) -> Section:
    """Return the source of the figures: the trace, the command, what backward started from."""
    workload, provenance = anatomy.workload, anatomy.provenance
    facts = facts_of(
        ("trace", provenance.trace),
        ("command", provenance.command),
        ("opanatomy", provenance.opanatomy),
        ("backward", workload.backward_from and f"from {workload.backward_from}"),
    )
    return Section(title="Source", facts=facts)


def warnings(anatomy: Anatomy, page: Page) -> Section:
    """Return the warnings about the trace or its recording; if requested by name also what comes first on a whole page:
    caveats that affect every figure, and possibly wrong figures."""
    texts: list[str | Phrase] = list(anatomy.warnings)
    if page.sections:
        texts[:0] = [*anatomy.caveats, *exceeded_texts(anatomy), *alarm_texts(anatomy)]
    facts = tuple(Fact(label="warning", text=text, warning=True) for text in texts if text)
    return Section(title="Warnings", facts=facts)


def _options(anatomy: Anatomy) -> tuple[str | Phrase | None, ...]:
    """Return how the step was run, if that is unusual."""
    workload = anatomy.workload
    # SDPA may run decomposed (matmul + softmax), as torch runs it on the CPU with dropout.
    names = {row.part_of or row.operator for row in anatomy.operators}
    fused = any("scaled_dot_product" in name and "math" not in name for name in names)
    unfused = workload.attention == "sdpa" and names & SOFTMAX_OF_SDPA and not fused

    checkpointing = None
    if workload.checkpointing:
        checkpointing, every = f"{workload.checkpointing} checkpointing", workload.checkpoint_every
        if every and every > 1:
            checkpointing += f" in segments of {every} layers"
        if workload.checkpoint_layers is not None:
            checkpointing += f" in the first {noun(workload.checkpoint_layers, 'layer')}"

    accumulated, parts, size = None, workload.accumulate or 1, workload.micro_batch
    if parts != 1 and size is not None:
        accumulated = phrase("accumulated over {} of {}", Count(parts, "micro-batch"), Count(size))
    return (
        workload.dtype,
        workload.amp and f"autocast {workload.amp}",
        f"loss scale {workload.loss_scale:,g}" if workload.loss_scale else None,
        workload.attention and f"{workload.attention} attention{' (run unfused)' if unfused else ''}",
        checkpointing,
        "compiled" if workload.compiled else None,
        "inference" if workload.inference and not workload.generate else None,
        "generation" if workload.generate else None,
        accumulated,
        f"clipped to {workload.clip:g}" if workload.clip else None,
        "fused loss" if workload.fused_loss else None,
        f"LoRA adapters of rank {workload.lora}" if workload.lora else None,
        workload.frozen and f"frozen {workload.frozen.replace(',', ' and ')}",
        workload.optimizer and f"optimizer {workload.optimizer}",
    )


def _rank(anatomy: Anatomy) -> str | None:
    """Return a trace's rank; several ranks have a table."""
    if len(anatomy.ranks) != 1 or anatomy.ranks[0].rank is None:
        return None
    rank, world = anatomy.ranks[0].rank, anatomy.ranks[0].world_size
    if world == 1:
        return None
    return f"rank {rank} of {world}" if world else f"rank {rank}"


def _device(anatomy: Anatomy) -> str | Phrase | None:
    environment = anatomy.environment
    if environment.host_only:
        if environment.device is not None:
            return phrase("{}, but its events are not supported: host times only", Name(environment.device))
        return "a GPU without recorded work: host times only"
    if environment.device_kind == "cpu":
        threads = environment.host_threads
        processor = joined((environment.processor, None if threads is None else phrase("{}", Count(threads, "thread"))))
        return phrase("CPU ({}); no GPU used", processor) if processor else "CPU; no GPU used"
    memory, devices = environment.device_memory_bytes, environment.device_count or 1
    kind = environment.device_kind or ""
    unnamed = f"an {_MAKERS[kind]} GPU that the trace does not name" if kind in _MAKERS else kind
    return joined(
        (
            environment.device or unnamed or "not named in the trace",
            None if memory is None else phrase("{}", Bytes(memory)),
            f"{devices} in the machine" if devices > 1 else None,
        )
    )


# Real inputs: the texts, how much of the batches is padding, the time of a step on each, the tokenizers.


_PADDED: dict[str, str] = {
    "max-length": "all padded to one length",
    "longest": "each batch padded to its longest text",
    "sorted": "each batch padded to its longest text, with texts sorted by length",
    "grouped": "each batch padded to its longest text, with texts grouped by length",
}


def texts(anatomy: Anatomy) -> Section | None:
    """Describe the texts of the run, and the cost of padding and tokenizing."""
    figures = anatomy.texts
    if figures is None:
        return None
    # How many texts of which lengths there are, and their source.
    source = "opanatomy's sample texts" if figures.file is None else figures.file
    column = f" (column {figures.column})" if figures.column else ""
    count = phrase(
        f"{'the first ' if figures.more else ''}{{}} of {{}} tokens or more, median {{}}",
        Count(figures.count, "text"),
        Count(figures.shortest),
        Count(figures.median),
    )
    cut = phrase("{} cut to {} tokens", Count(figures.cut), Count(figures.maximum)) if figures.cut else None

    useful = phrase(
        "{}: {} of the tokens are text, in {}",
        _PADDED.get(figures.padding, figures.padding),
        Share(figures.all_useful_tokens, figures.all_tokens),
        Count(figures.all_batches, "batch"),
    )
    wasted, padding = None, figures.padding_flops
    if padding is not None and padding.flops:
        unassigned = Flops(padding.flops - padding.assigned_flops)
        unknown = phrase("; unknown for {} whose shapes do not show padding", unassigned)
        wasted = phrase(
            "{} ({} of the contraction FLOPs) are spent on padding in the profiled batch{}",
            Flops(padding.padding_flops),
            Share(padding.padding_flops, padding.flops),
            unknown if padding.assigned_flops < padding.flops else "",
        )

    # The mean step of the run batches, from the shortest to the longest, and its throughput.
    steps, times = None, [row.step_ns for row in figures.batches if row.step_ns is not None]
    samples, tokens = figures.samples_per_second, figures.useful_tokens_per_second
    if times and samples is not None and tokens is not None:
        spread = phrase("{} to {} over {}", Time(min(times)), Time(max(times)), Count(len(times), "batch"))
        steps = joined(
            (
                phrase("mean {} ({})", Time(figures.mean_step_ns), spread),
                phrase("{}", Rate(samples, "samples")),
                phrase("{} of text", Rate(tokens, "tokens")),
            )
        )
    facts = facts_of(
        ("texts", joined((f"{source}{column}", count, cut))),
        ("padding", useful),
        ("wasted", wasted),
        ("steps", steps),
        ("memory", phrase("for the longest batch, {}", Count(figures.memory_length, "token"))),
    )
    tokenizers = tuple(
        Fact(label="tokenizer", text=_tokenizer(row), warning=bool(row.used and row.holds_back))
        for row in figures.tokenizers
    )
    return Section(title="Real inputs", facts=(*facts, *tokenizers))


def batches(anatomy: Anatomy) -> Section | None:
    """Return the batches that were run, in their order."""
    figures = anatomy.texts
    if figures is None:
        return None
    columns: Columns[TextBatchRow] = {
        Column(header="texts", drop_order=3): lambda row: Count(row.texts),
        Column(header="length"): lambda row: Count(row.length),
        Column(header="tokens", drop_order=2): lambda row: Count(row.tokens),
        Column(header="useful"): lambda row: Share(row.useful_tokens, row.tokens),
        Column(header="step"): lambda row: Time(row.step_ns) if row.step_ns else None,
        Column(header="useful tokens", drop_order=1): lambda row: (
            Rate(row.useful_tokens * 1e9 / row.step_ns, "tokens") if row.step_ns else None
        ),
    }
    rows = tuple(
        Row(cells={"batch": f"{number}, profiled" if row.profiled else str(number)} | cells_of(columns, row))
        for number, row in enumerate(figures.batches, start=1)
    )
    return Section(
        title="Steps by batch", columns=(Column(header="batch", holds=ColumnKind.NAMES), *columns), rows=rows
    )


def _tokenizer(row: TokenizerRow) -> Phrase | str:
    """Return how fast a tokenizer is, and whether the steps would wait for it."""
    kind = f"{'slow, in Python' if row.slow else 'fast'} ({row.name})" + (", used" if row.used else "")
    trained = f"trained on the texts: {row.trained_because}" if row.trained_because and row.used else None
    rate = None if row.tokens_per_second is None else phrase("{}", Rate(row.tokens_per_second, "tokens"))
    held = {True: "the device would wait for it", False: "faster than the steps", None: None}[row.holds_back]
    other = None if row.same_ids else "its token ids differ from those of the one used"
    return joined((kind, rate, held, other, trained)) or kind
