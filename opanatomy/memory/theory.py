"""Compute the theoretical need of a training step: closed formulas by term, and the saving of each technique.

s sequence length, b batch of one forward, h hidden size, a heads, i inner size of the feed-forward, V vocabulary, L
layers; e bytes of an activation, m bytes of a dropout-mask element (1 on CUDA, those of the activations on the CPU), c
bytes of an autocast copy. The formula of a layer, s*b*h*(16e + 2m) + a*s^2*b*(2e + m), is that of Korthikanti et al.
(arXiv 2205.05198) for any e and m: with e = 2 and m = 1 it is s*b*h*(34 + 5*a*s/h).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.levers import Context, Relief, reliefs
from opanatomy.memory import components
from opanatomy.records.anatomy import OUT_OF_MEMORY, Advice, Evidence
from opanatomy.records.memory import (
    CacheShape,
    Memory,
    MemoryComponent,
    MemoryTerm,
    ModelShape,
    PublishedFigure,
)
from opanatomy.records.taxonomy import BY_NAME, FULL_STATE_BYTES, ITEM_SIZE, OPTIMIZERS, Optimizer, Phase
from opanatomy.records.workload import Environment, Workload

# --- generation: the keys and values of its tokens, and the copies of its beams ---
#
# b batch, n beams, k key-value heads, d head size, L layers, s tokens of the prompt, N new tokens, w the tokens that
# attention slides over, S tokens of an encoder's output and H its hidden size. The last new token has no keys and
# values.


def cache_theory(shape: CacheShape | None, workload: Workload) -> tuple[MemoryComponent, ...]:
    """Return the cache and its beam copies at their maximum; empty without a closed formula."""
    element = ITEM_SIZE.get(workload.dtype or "")
    if shape is None or not workload.generate or workload.batch is None or element is None or workload.amp:
        return ()
    rows = workload.batch * (workload.beams or 1)
    numbers = rows * shape.key_value_heads * shape.head_size * element
    tokens = shape.prompt + workload.generate - 1
    kept = _kept_tokens(shape, tokens) + len(shape.windows) * shape.cross_length
    cache = MemoryComponent(
        component=components.KEY_VALUE_CACHE, theory_bytes=2 * numbers * kept, formula=_cache_formula(shape, element)
    )
    if rows == workload.batch or shape.prompt_copies is None:
        return (cache,)
    copied = max(*(_in_window(tokens, window) for window in shape.windows), shape.cross_length)
    repeated = shape.prompt * shape.prompt_copies * _ID_BYTES + shape.cross_length * shape.encoder_hidden * element
    copies = MemoryComponent(
        component=components.BEAM_COPIES,
        theory_bytes=numbers * copied + rows * repeated,
        formula=_copies_formula(shape, element),
    )
    return cache, copies


def _kept_tokens(shape: CacheShape, tokens: int) -> int:
    """Return the maximum of tokens kept in all layers: after the prompt, or at the end.

    A layer with a window keeps w - 1 tokens, in a storage that holds one more; the prompt's storage holds all of the
    prompt.
    """
    at_end = sum(min(tokens, window) if window and tokens > shape.prompt else tokens for window in shape.windows)
    return max(at_end, len(shape.windows) * shape.prompt)


def _in_window(tokens: int, window: int) -> int:
    """Return the tokens of a layer that a reordering copies."""
    return min(tokens, window - 1) if window else tokens


def _cache_formula(shape: CacheShape, element: int) -> str:
    tokens = "N" if shape.cross_length else "(s + N - 1)"
    if any(shape.windows):
        everywhere = all(shape.windows)
        tokens = f"max(s, min{tokens[:-1]}, w))" if everywhere else f"{tokens} [at most w in sliding-window layers]"
    cross = f" + 2*L*b*n*k*d*S*{element}" if shape.cross_length else ""
    return f"2*L*b*n*k*d*{tokens}*{element}{cross}"


def _copies_formula(shape: CacheShape, element: int) -> str:
    if shape.cross_length:
        return f"b*n*(k*d*max(N, S)*{element} + S*H*{element} + {_ID_BYTES})"
    tokens = "min(s + N - 1, w - 1)" if all(shape.windows) else "(s + N - 1)"
    return f"b*n*(k*d*{tokens}*{element} + s*{(shape.prompt_copies or 0) * _ID_BYTES})"


_ACTIVATIONS: Final = "forward_activations"
_CAST_BYTES: Final = 2
#: Bytes of a float32 element: half precision is computed in float32 with float32 statistics; float64 stays float64.
_FULL_BYTES: Final = 4
_ID_BYTES: Final = 8
#: Copies of the feed-forward's inner activations that each activation function leaves: its input, the tensors saved by
#: its pieces (the tanh form is written out in Python), its output.
_INNER_COPIES: Final = {"gelu_new": 5, "gelu_pytorch_tanh": 2, "silu": 2, "gelu": 2, "relu": 1}


class _Sizes(Struct, frozen=True, kw_only=True):
    """The sizes of one workload, named as in the formulas."""

    shape: ModelShape
    s: int
    b: int
    #: Bytes of an activation outside autocast's casts, and of one that autocast casts (the same without it).
    e: int
    c: int
    autocast: bool
    on_cpu: bool
    matrix: bool
    #: True if attention is torch's decomposed form of the fused operator (on the CPU with dropout, on CUDA in float64),
    #: which computes in float32 at least.
    written_out: bool

    def mask(self, element: int) -> int:
        """Return the bytes of a mask element over activations of `element` bytes; 0 without dropout."""
        return 0 if not self.shape.dropout else (element if self.on_cpu else self.shape.mask_bytes or 1)


class ParameterBytes(Struct, frozen=True, kw_only=True):
    """The bytes of a module's parameters, and of the trained ones.

    With `shards` each rank keeps one equal part of them. `buckets` is set if DDP reduces gradients: whether its buckets
    take additional memory.
    """

    all: int
    trained: int | None
    shards: int = 1
    buckets: bool | None = None


def with_theory(
    memory: Memory, workload: Workload, parameters: ParameterBytes | None = None, cache: CacheShape | None = None
) -> Memory:
    """Return the memory with the theory of each component next to the measurement, and the terms of the activations.

    `parameters` are on the memory's device, if a capture counted them; `cache` is a generation's.
    """
    terms = activation_terms(memory.shape, workload)
    rows = (*state_theory(workload, parameters), *_activations_theory(terms), *cache_theory(cache, workload))
    theories = {row.component: row for row in rows}
    components = []
    for component in memory.components:
        theory = theories.get(component.component)
        if theory is not None:
            component = replace(component, theory_bytes=theory.theory_bytes, formula=theory.formula)
        components.append(component)
    return replace(memory, components=tuple(components), terms=terms)


def state_theory(workload: Workload, parameters: ParameterBytes | None = None) -> tuple[MemoryComponent, ...]:
    """Return the theory of weights, gradients and optimizer state; components with unknown inputs are omitted.

    Without `parameters` every parameter has the workload's data type.
    """
    size = ITEM_SIZE.get(workload.dtype or "")
    if parameters is None:
        if size is None or workload.parameters is None:
            return ()
        trained = workload.trainable_parameters
        parameters = ParameterBytes(all=workload.parameters * size, trained=None if trained is None else trained * size)
    uniform = size is not None and parameters.all == (workload.parameters or 0) * size
    each = f"{size} B x " if uniform else "bytes per element x "
    shards = parameters.shards
    part = f" / {shards} ranks" if shards > 1 else ""
    rows = [_theory("weights", parameters.all // shards, f"{each}parameters{part}")]
    if workload.inference or parameters.trained is None:
        return tuple(rows)
    rows.append(_theory("gradients", parameters.trained // shards, f"{each}trainable parameters{part}"))
    if parameters.buckets is not None:
        size, text = (
            (parameters.trained, "gradients") if parameters.buckets else (0, "gradients are views of the buckets")
        )
        rows.append(_theory("ddp_buckets", size, text))
    optimizer = BY_NAME.get(workload.optimizer or "")
    if optimizer is None or optimizer.factored:
        return tuple(rows)
    if optimizer.state_bytes_per_parameter is None:
        copies = optimizer.state_copies
        text = f"{copies * size} B x " if uniform and size else f"{copies} x bytes per element x "
        state = copies * parameters.trained // shards
        rows.append(_theory("optimizer_state", state, f"{text}trainable parameters{part}"))
    elif workload.trainable_parameters is not None:
        rows.append(_few_bits(optimizer, optimizer.state_bytes_per_parameter, workload.trainable_parameters, workload))
    return tuple(rows)


def _few_bits(optimizer: Optimizer, state: float, trained: int, workload: Workload) -> MemoryComponent:
    """Return the low-bit state of an optimizer: 32 bits for small tensors, and for embeddings if it keeps them so."""
    full = optimizer.full_parameters(workload.small_parameters or 0, workload.embedding_parameters or 0)
    text = f"{state:.3f} B x trainable parameters"
    if full:
        kept = "small tensors and embeddings" if optimizer.full_embeddings else "small tensors"
        text = f"{state:.3f} B x (trainable parameters - n) + {FULL_STATE_BYTES} B x n  [n = {full:,}, in {kept}]"
    return _theory("optimizer_state", round(state * (trained - full)) + FULL_STATE_BYTES * full, text)


def _theory(component: str, size: int, formula: str) -> MemoryComponent:
    return MemoryComponent(component=component, theory_bytes=size, formula=formula)


def _activations_theory(terms: tuple[MemoryTerm, ...]) -> tuple[MemoryComponent, ...]:
    if not terms:
        return ()
    return (_theory(_ACTIVATIONS, sum(term.bytes for term in terms), " + ".join(term.formula for term in terms)),)


def activation_terms(shape: ModelShape | None, workload: Workload) -> tuple[MemoryTerm, ...]:
    """Return the terms of the saved activations; empty without a closed formula for the workload."""
    s, b, e = workload.sequence_length, workload.micro_batch, ITEM_SIZE.get(workload.dtype or "")
    if shape is None or s is None or b is None or e is None:
        return ()
    frozen = workload.trainable_parameters != workload.parameters
    if workload.inference or workload.checkpointing or workload.compiled or workload.fused_loss or frozen:
        return ()
    on_cpu = shape.mask_bytes is None
    fused = workload.attention == "sdpa"
    # No fused kernel of CUDA takes float64.
    written_out = fused and (shape.attention_dropout > 0 if on_cpu else e > _FULL_BYTES and not workload.amp)
    if workload.attention not in ("eager", "sdpa") or (shape.kind == "llama" and (not fused or workload.amp)):
        return ()
    autocast = workload.amp is not None
    sizes = _Sizes(
        shape=shape,
        s=s,
        b=b,
        e=e,
        c=_CAST_BYTES if autocast else e,
        autocast=autocast,
        on_cpu=on_cpu,
        matrix=not fused or written_out,
        written_out=written_out,
    )
    return _FORMULAS[shape.kind](sizes)


def _layer_term(term: str, formula: str, size: int) -> MemoryTerm:
    """Return a term over all layers, whose formula begins with their number L."""
    return MemoryTerm(component=_ACTIVATIONS, term=term, formula=formula, bytes=size, per_layer=True)


def _outside(term: str, formula: str, size: int) -> MemoryTerm:
    """Return a term outside the layers."""
    return MemoryTerm(component=_ACTIVATIONS, term=term, formula=formula, bytes=size, per_layer=False)


def _attention(z: _Sizes) -> list[MemoryTerm]:
    """Return what attention saves between projections and output: the matrix, or one number per row of it."""
    shape, s, b = z.shape, z.s, z.b
    if not z.matrix:
        wide = max(_FULL_BYTES, z.c)
        size = shape.layers * shape.heads * s * b * wide
        return [_layer_term("attention logsumexp", f"L*a*s*b*{wide}", size)]
    # Torch's fused attention, if decomposed, computes halves in float32. Autocast's softmax does so on CUDA, and
    # everywhere in GPT-2, whose causal mask is float32.
    e = max(_FULL_BYTES, z.c) if z.written_out else z.c
    softmax = 4 if z.autocast and (not z.on_cpu or shape.kind == "gpt2") else e
    if not shape.attention_dropout:
        size = shape.layers * shape.heads * s * s * b * softmax
        return [_layer_term("attention probabilities", f"L*a*s^2*b*{softmax}", size)]
    m = e if z.on_cpu else shape.mask_bytes or 1
    each = softmax + e + m
    formula = f"L*a*s^2*b*({softmax} + {e} + m)  [softmax, after dropout, mask; m={m}]"
    return [_layer_term("attention probabilities", formula, shape.layers * shape.heads * s * s * b * each)]


def _projections(z: _Sizes) -> int:
    """Return the bytes for each element of the query, key and value that attention saves."""
    return max(_FULL_BYTES, z.c) if z.written_out else z.c


def _bert(z: _Sizes) -> tuple[MemoryTerm, ...]:
    """Return the terms of BERT and RoBERTa: normalization after each half of a layer, as in Hugging Face's code."""
    shape, sb = z.shape, z.s * z.b
    h, i, layers, e, c, m = shape.hidden, shape.intermediate, shape.layers, z.e, z.c, z.mask(z.c)
    # Without autocast one output of a normalization serves all its readers; with it each linear keeps its own cast.
    inputs = 2 * e + (4 * c if z.autocast else 2 * e)
    each = inputs + 3 * _projections(z) + c + 2 * m
    copies = _INNER_COPIES.get(shape.activation, 2)
    first, statistic = z.mask(e) + (e if z.autocast else 2 * e), _statistic(z)
    terms = [
        _outside("embeddings", f"s*b*h*{first}", sb * h * first),
        _outside("embedding normalization and ids", f"s*b*2*{statistic} + s*8", 2 * sb * statistic + z.s * _ID_BYTES),
        _layer_term("attention, normalizations, residuals, masks", f"L*s*b*h*{each}", layers * sb * h * each),
        _layer_term("feed-forward", f"L*s*b*i*{copies}*{c}", layers * sb * i * copies * c),
        *_attention(z),
        _layer_term("normalization statistics", f"L*s*b*4*{statistic}", layers * sb * 4 * statistic),
    ]
    if shape.head == "language_model":
        wide = (4 if z.autocast else 3) * c
        terms.append(_outside("head transform", f"s*b*(h*{wide} + 2*{statistic})", sb * (h * wide + 2 * statistic)))
        loss = 4 if z.autocast else e
        terms.append(_outside("loss log-softmax", f"s*b*V*{loss}", sb * shape.vocabulary * loss))
    elif shape.head == "classification":
        pooled = 2 * c + m
        terms.append(_outside("pooler", f"b*h*{pooled}", z.b * h * pooled))
    return tuple(terms)


def _gpt2(z: _Sizes) -> tuple[MemoryTerm, ...]:
    """Return the terms of GPT-2: normalization before each half of a layer, tanh gelu written out in Python."""
    shape, sb = z.shape, z.s * z.b
    h, i, layers, e, c, m = shape.hidden, shape.intermediate, shape.layers, z.e, z.c, z.mask(z.c)
    each = 2 * e + 2 * c + 3 * _projections(z) + c + 2 * m
    copies = _INNER_COPIES.get(shape.activation, 2)
    first, statistic = e + z.mask(e), _statistic(z)
    terms = [
        _outside("embeddings and positions", f"s*b*h*{first} + s*8", sb * h * first + z.s * _ID_BYTES),
        _layer_term("attention, normalizations, residuals, masks", f"L*s*b*h*{each}", layers * sb * h * each),
        _layer_term("feed-forward", f"L*s*b*i*{copies}*{c}", layers * sb * i * copies * c),
        *_attention(z),
        _layer_term("normalization statistics", f"L*s*b*4*{statistic}", layers * sb * 4 * statistic),
        _outside("final normalization", f"s*b*(h*{c} + 2*{statistic})", sb * (h * c + 2 * statistic)),
    ]
    if shape.head == "language_model":
        terms.append(_outside("loss log-softmax", "s*b*V*4", sb * shape.vocabulary * 4))
        terms.append(_outside("shifted labels", "s*b*8", sb * _ID_BYTES))
    return tuple(terms)


def _llama(z: _Sizes) -> tuple[MemoryTerm, ...]:
    """Return the terms of Llama with fused attention: RMS normalization in float32, a gated feed-forward."""
    shape, sb = z.shape, z.s * z.b
    h, layers, e = shape.hidden, shape.layers, z.e
    # Each normalization keeps its input in float32 (the residual itself if that is float32), its normalized form before
    # the weight, and its output.
    norm = 4 + 2 * e
    wide = 2 * (shape.heads + shape.key_value_heads) * shape.head_size
    terms = [
        _layer_term("normalizations and residuals", f"L*2*s*b*(h*{norm} + 4)", layers * 2 * sb * (h * norm + 4)),
        _outside("final normalization", f"s*b*(h*{norm} + 4)", sb * (h * norm + 4)),
        _layer_term("attention query, key, value and output", f"L*s*b*2(a + k)*d*{e}", layers * sb * wide * e),
        *_attention(z),
        _layer_term("gated feed-forward", f"L*s*b*i*4*{e}", layers * sb * shape.intermediate * 4 * e),
        _outside("rotary cosines and sines", f"2*s*d*{e}", 2 * z.s * shape.head_size * e),
    ]
    if shape.head == "language_model":
        terms.append(_outside("loss log-softmax", "s*b*V*4", sb * shape.vocabulary * 4))
        terms.append(_outside("shifted labels", "s*b*8", sb * _ID_BYTES))
    return tuple(terms)


def _statistic(z: _Sizes) -> int:
    """Return bytes of a mean or reciprocal deviation: in the normalization's type, on CUDA at least float32."""
    return z.e if z.on_cpu and not z.autocast else max(_FULL_BYTES, z.e)


_FORMULAS: Final[dict[str, Callable[[_Sizes], tuple[MemoryTerm, ...]]]] = {
    "bert": _bert,
    "gpt2": _gpt2,
    "llama": _llama,
}


def needed_bytes(shape: ModelShape | None, workload: Workload, cache: CacheShape | None = None) -> int | None:
    """Return the need of a step by theory, without temporary buffers; `None` if a formula is missing."""
    state = state_theory(workload)
    activations = _kept_bytes(shape, workload)
    kept = cache_theory(cache, workload)
    if not state or activations is None or (workload.generate and not kept):
        return None
    return sum(component.theory_bytes or 0 for component in (*state, *kept)) + activations


def _kept_bytes(shape: ModelShape | None, workload: Workload) -> int | None:
    """Return the saved activations; of checkpointed layers the input of each segment and all of one."""
    if workload.inference:
        return 0
    if workload.checkpointing and shape is not None:
        plain = replace(workload, checkpointing=None)
        again = min(workload.checkpoint_layers or shape.layers, shape.layers)
        every = min(workload.checkpoint_every or 1, again)
        terms = activation_terms(shape, plain)
        inside = sum(term.bytes for term in terms if term.per_layer)
        s, b, e = workload.sequence_length, workload.micro_batch, ITEM_SIZE.get(workload.dtype or "")
        if not terms or s is None or b is None or e is None:
            return None
        outside = sum(term.bytes for term in terms) - inside
        whole = shape.layers - again + every
        return outside + -(-again // every) * s * b * shape.hidden * e + whole * inside // shape.layers
    terms = activation_terms(shape, workload)
    return sum(term.bytes for term in terms) if terms else None


# --- techniques for a step that does not fit: what each saves, and whether it fits then ---


#: A step that takes this part of a device's memory is near its limit.
_NEARLY_FULL: Final = 0.9


def nearly_full(memory: Memory, environment: Environment) -> bool:
    """Return whether the step's peak of allocated or reserved memory is near the accelerator's capacity."""
    limit = environment.device_memory_bytes
    reserved = max((device.reserved_peak_bytes or 0 for device in memory.devices), default=0)
    peak = max(memory.peak_bytes or 0, reserved)
    return bool(limit) and environment.device_kind != "cpu" and peak >= _NEARLY_FULL * (limit or 0)


def savings_of(
    shape: ModelShape | None, workload: Workload, memory: Memory, cache: CacheShape | None = None
) -> tuple[Advice, ...]:
    """Return the techniques that lower the need, most first, and whether the step then fits.

    The failure shows the capacity: at least what was allocated, less than that and the failed request. In the optimizer
    phase the activations are freed, so only techniques that lower weights, gradients and state help there.
    """
    in_optimizer = memory.failure is not None and memory.failure.phase is Phase.OPTIMIZER
    need = _state_bytes if in_optimizer else partial(needed_bytes, shape, cache=cache)
    needed = need(workload)
    if needed is None:
        return ()
    context = Context(run=workload, batch=workload.batch or 1)
    rows = []
    for lever in reliefs(context, *Relief):
        after = need(replace(workload, **lever.changes(context)))
        if after is None or after >= needed:
            continue
        if workload.model_source == "loop" and lever.loop is not None:
            called = lever.loop(context)
        elif workload.model_source in ("loop", "object"):
            called = lever.as_keyword(context)
        else:
            called = lever.option(context)
        row = Advice(
            id=OUT_OF_MEMORY,
            subject=lever.title,
            gain_bytes=needed - after,
            peak_bytes=needed,
            fits=_fits(after, memory),
            why="in theory, the step then needs {after}",
            figures={"after": Evidence(value=after, unit="bytes")},
            tries=(called,),
            section="memory",
        )
        rows.append(row)
    return tuple(sorted(rows, key=lambda row: -(row.gain_bytes or 0)))


def _state_bytes(workload: Workload) -> int | None:
    """Return bytes of weights, gradients and optimizer state; `None` if the parameters or their type are unknown."""
    state = state_theory(workload)
    return sum(component.theory_bytes or 0 for component in state) if state else None


def _fits(needed: int, memory: Memory) -> bool | None:
    failure = memory.failure
    if failure is None or failure.allocated_bytes is None:
        return None
    if needed <= failure.allocated_bytes:
        return True
    return False if needed > failure.allocated_bytes + (failure.requested_bytes or 0) else None


# --- the widely cited published run, next to ours: BERT-large, batch 4 x 512, fp32, AdamW, one V100 ---


#: huggingface.co/docs/transformers, "Model training anatomy": figures of NVML in MB (10^6), and samples a second.
_CONTEXT: Final = 1343
_WITH_WEIGHTS: Final = 2631
_TRAINING: Final = 14949
_SAMPLES_PER_SECOND: Final = 8.86
_DEVICE: Final = "Tesla V100 16 GB"
_MB: Final = 1e6
#: AdamW with full state, in any implementation.
_ADAMW_OPTIMIZERS: Final = frozenset(optimizer.name for optimizer in OPTIMIZERS if optimizer.torch_class == "AdamW")


def is_published(workload: Workload) -> bool:
    """Return True if the workload is exactly that of the published figures."""
    return (
        (workload.model or "").rsplit("/", 1)[-1] == "bert-large-uncased"
        and not workload.changes
        and workload.micro_batch == workload.batch
        and (workload.batch, workload.sequence_length) == (4, 512)
        and (workload.dtype, workload.amp) == ("float32", None)
        and workload.optimizer in _ADAMW_OPTIMIZERS
        and not (workload.frozen or workload.lora or workload.fused_loss)
        and not (workload.checkpointing or workload.compiled or workload.inference)
    )


def published_run(
    memory: Memory, workload: Workload, samples_per_second: float | None, *, on_cpu: bool
) -> tuple[PublishedFigure, ...]:
    """Return the published figures next to ours, empty for any other workload; `None` for unknown figures.

    The published ones are NVML's of the whole device, so their differences are compared with our components.
    """
    if not is_published(workload):
        return ()
    measured = {component.component: component.measured_bytes for component in memory.components}
    context, weights = measured.get("device_context"), measured.get("weights")
    # The allocator's cache is the device's: the CPU has none, and sums with an unknown cache are unknown.
    cache = measured.get("allocator_cache", 0 if on_cpu else None)
    held = _sum(memory.peak_bytes, cache)
    rest = None if held is None or weights is None else held - weights
    whole = _sum(held, context)
    return (
        _row("device context and kernels", _CONTEXT, _mb(context)),
        _row("weights", _WITH_WEIGHTS - _CONTEXT, _mb(weights)),
        _row("gradients, optimizer state, activations, buffers, cache", _TRAINING - _WITH_WEIGHTS, _mb(rest)),
        _row("training, entire device", _TRAINING, _mb(whole)),
        _row("samples per second", _SAMPLES_PER_SECOND, samples_per_second, unit="1/s"),
    )


def _sum(*sizes: int | None) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _mb(size: int | None) -> float | None:
    return None if size is None else size / _MB


def _row(figure: str, published: float, measured: float | None, unit: str = "MB") -> PublishedFigure:
    return PublishedFigure(figure=figure, published=published, measured=measured, unit=unit, published_device=_DEVICE)
