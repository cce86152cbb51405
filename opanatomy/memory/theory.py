"""What a training step needs by theory: closed formulas, term by term, and what each technique takes from them.

s sequence length, b batch of one forward, h hidden size, a heads, i inner size of the feed-forward, V vocabulary, L
layers; e bytes of an activation, m bytes of a dropout-mask element (1 on CUDA, those of the activations on the CPU), c
bytes of an autocast copy. The formula of a layer, s*b*h*(16e + 2m) + a*s^2*b*(2e + m), is that of Korthikanti et al.
(arXiv 2205.05198) for any e and m: with e = 2 and m = 1 it is s*b*h*(34 + 5*a*s/h).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.memory.cache import cache_theory
from opanatomy.records.data_types import ITEM_SIZE
from opanatomy.records.memory import CacheShape, Memory, MemoryComponent, MemoryTerm, ModelShape
from opanatomy.records.optimizers import BY_NAME, FULL_STATE_BYTES, Optimizer
from opanatomy.records.workload import Workload

_ACTIVATIONS: Final = "forward_activations"
_CAST_BYTES: Final = 2
#: An element of float32: what halves are computed in, and statistics kept in; of float64 they stay float64.
_FULL_BYTES: Final = 4
_ID_BYTES: Final = 8
#: Copies of the feed-forward's inner activations that each activation function leaves: its input, what its pieces
#: save (the tanh form is written out in Python), its output.
_INNER_COPIES: Final = {"gelu_new": 5, "gelu_pytorch_tanh": 2, "silu": 2, "gelu": 2, "relu": 1}


class _Sizes(Struct, frozen=True, kw_only=True):
    """The numbers of one workload that the formulas take."""

    shape: ModelShape
    s: int
    b: int
    #: Bytes of an activation outside autocast's casts, and of one that autocast casts (the same without it).
    e: int
    c: int
    autocast: bool
    on_cpu: bool
    matrix: bool
    #: Whether attention is torch's fused operator written out (on the CPU with dropout, on CUDA in float64), which
    #: computes in float32 at least.
    written_out: bool

    def mask(self, element: int) -> int:
        """Bytes of a mask element over activations of that many bytes; 0 without dropout."""
        return 0 if not self.shape.dropout else (element if self.on_cpu else self.shape.mask_bytes or 1)


class ParameterBytes(Struct, frozen=True, kw_only=True):
    """The elements of a module's parameters, and of those that are trained, times their bytes.

    Of `shards` ranks each keeps an equal part of them. `buckets` is set where DDP reduces gradients, to whether it has
    buckets besides them.
    """

    all: int
    trained: int | None
    shards: int = 1
    buckets: bool | None = None


def with_theory(
    memory: Memory, workload: Workload, parameters: ParameterBytes | None = None, cache: CacheShape | None = None
) -> Memory:
    """The memory with the theory of each component next to what was measured, and the terms of the activations.

    `parameters` are those on the device of the memory, where a capture counted them; `cache` is that of a generation.
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
    """Weights, gradients and optimizer state by theory; what is not known of the workload is left out.

    Without `parameters` every one has the data type of the workload.
    """
    size = ITEM_SIZE.get(workload.dtype or "")
    if parameters is None:
        if size is None or workload.parameters is None:
            return ()
        trained = workload.trainable_parameters
        parameters = ParameterBytes(all=workload.parameters * size, trained=None if trained is None else trained * size)
    uniform = size is not None and parameters.all == (workload.parameters or 0) * size
    each = f"{size} B x " if uniform else "bytes an element x "
    shards = parameters.shards
    part = f" / {shards} ranks" if shards > 1 else ""
    rows = [_theory("weights", parameters.all // shards, f"{each}parameters{part}")]
    if workload.inference or parameters.trained is None:
        return tuple(rows)
    rows.append(_theory("gradients", parameters.trained // shards, f"{each}trainable parameters{part}"))
    if parameters.buckets is not None:
        size, text = (parameters.trained, "gradients") if parameters.buckets else (0, "gradients are views of them")
        rows.append(_theory("ddp_buckets", size, text))
    optimizer = BY_NAME.get(workload.optimizer or "")
    if optimizer is None or optimizer.factored:
        return tuple(rows)
    if optimizer.state_bytes_per_parameter is None:
        copies = optimizer.state_copies
        text = f"{copies * size} B x " if uniform and size else f"{copies} x bytes an element x "
        state = copies * parameters.trained // shards
        rows.append(_theory("optimizer_state", state, f"{text}trainable parameters{part}"))
    elif workload.trainable_parameters is not None:
        rows.append(_few_bits(optimizer, optimizer.state_bytes_per_parameter, workload.trainable_parameters, workload))
    return tuple(rows)


def _few_bits(optimizer: Optimizer, state: float, trained: int, workload: Workload) -> MemoryComponent:
    """The state of an optimizer that keeps it in few bits: in 32 for small tensors, and embeddings if it says so."""
    full = optimizer.full_parameters(workload.small_parameters or 0, workload.embedding_parameters or 0)
    text = f"{state:.3f} B x trainable parameters"
    if full:
        kept = "small tensors and embeddings" if optimizer.full_embeddings else "small tensors"
        text = f"{state:.3f} B x (trainable parameters - n) + {FULL_STATE_BYTES} B x n  [n {full:,} of {kept}]"
    return _theory("optimizer_state", round(state * (trained - full)) + FULL_STATE_BYTES * full, text)


def _theory(component: str, size: int, formula: str) -> MemoryComponent:
    return MemoryComponent(component=component, theory_bytes=size, formula=formula)


def _activations_theory(terms: tuple[MemoryTerm, ...]) -> tuple[MemoryComponent, ...]:
    if not terms:
        return ()
    return (_theory(_ACTIVATIONS, sum(term.bytes for term in terms), " + ".join(term.formula for term in terms)),)


def activation_terms(shape: ModelShape | None, workload: Workload) -> tuple[MemoryTerm, ...]:
    """The terms of the saved activations; empty where no closed formula is known for the workload."""
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
        shape=shape, s=s, b=b, e=e, c=_CAST_BYTES if autocast else e, autocast=autocast, on_cpu=on_cpu,
        matrix=not fused or written_out, written_out=written_out,
    )  # fmt: skip
    return _FORMULAS[shape.kind](sizes)


def _of_layers(term: str, formula: str, size: int) -> MemoryTerm:
    """A term of all layers; their number, L, stands first in its formula."""
    return MemoryTerm(component=_ACTIVATIONS, term=term, formula=formula, bytes=size, per_layer=True)


def _outside(term: str, formula: str, size: int) -> MemoryTerm:
    """A term of what lies outside the layers."""
    return MemoryTerm(component=_ACTIVATIONS, term=term, formula=formula, bytes=size, per_layer=False)


def _attention(z: _Sizes) -> list[MemoryTerm]:
    """What attention keeps between the projections and its output: the matrix, or one number a row of it."""
    shape, s, b = z.shape, z.s, z.b
    if not z.matrix:
        wide = max(_FULL_BYTES, z.c)
        size = shape.layers * shape.heads * s * b * wide
        return [_of_layers("logsumexp of attention", f"L*a*s*b*{wide}", size)]
    # Torch's fused attention computes halves in float32 where it is written out. Autocast's softmax does so on CUDA,
    # and everywhere in GPT-2, whose causal mask is float32.
    e = max(_FULL_BYTES, z.c) if z.written_out else z.c
    softmax = 4 if z.autocast and (not z.on_cpu or shape.kind == "gpt2") else e
    if not shape.attention_dropout:
        size = shape.layers * shape.heads * s * s * b * softmax
        return [_of_layers("attention probabilities", f"L*a*s^2*b*{softmax}", size)]
    m = e if z.on_cpu else shape.mask_bytes or 1
    each = softmax + e + m
    formula = f"L*a*s^2*b*({softmax} + {e} + m)  [softmax, after dropout, mask; m={m}]"
    return [_of_layers("attention probabilities", formula, shape.layers * shape.heads * s * s * b * each)]


def _projections(z: _Sizes) -> int:
    """Bytes an element of the query, key and value that attention saves."""
    return max(_FULL_BYTES, z.c) if z.written_out else z.c


def _bert(z: _Sizes) -> tuple[MemoryTerm, ...]:
    """BERT and RoBERTa: normalization after each half of a layer, as in Hugging Face's code."""
    shape, sb = z.shape, z.s * z.b
    h, i, layers, e, c, m = shape.hidden, shape.intermediate, shape.layers, z.e, z.c, z.mask(z.c)
    # Without autocast one output of a normalization serves all that read it; with it each linear keeps its own cast.
    inputs = 2 * e + (4 * c if z.autocast else 2 * e)
    each = inputs + 3 * _projections(z) + c + 2 * m
    copies = _INNER_COPIES.get(shape.activation, 2)
    first, statistic = z.mask(e) + (e if z.autocast else 2 * e), _statistic(z)
    terms = [
        _outside("embeddings", f"s*b*h*{first}", sb * h * first),
        _outside("embedding normalization and ids", f"s*b*2*{statistic} + s*8", 2 * sb * statistic + z.s * _ID_BYTES),
        _of_layers("attention, normalizations, residuals, masks", f"L*s*b*h*{each}", layers * sb * h * each),
        _of_layers("feed-forward", f"L*s*b*i*{copies}*{c}", layers * sb * i * copies * c),
        *_attention(z),
        _of_layers("statistics of normalization", f"L*s*b*4*{statistic}", layers * sb * 4 * statistic),
    ]
    if shape.head == "language_model":
        wide = (4 if z.autocast else 3) * c
        terms.append(
            _outside("transform of the head", f"s*b*(h*{wide} + 2*{statistic})", sb * (h * wide + 2 * statistic))
        )
        loss = 4 if z.autocast else e
        terms.append(_outside("log-softmax of the loss", f"s*b*V*{loss}", sb * shape.vocabulary * loss))
    elif shape.head == "classification":
        pooled = 2 * c + m
        terms.append(_outside("pooler", f"b*h*{pooled}", z.b * h * pooled))
    return tuple(terms)


def _gpt2(z: _Sizes) -> tuple[MemoryTerm, ...]:
    """GPT-2: normalization before each half of a layer, its tanh form of gelu written out in Python."""
    shape, sb = z.shape, z.s * z.b
    h, i, layers, e, c, m = shape.hidden, shape.intermediate, shape.layers, z.e, z.c, z.mask(z.c)
    each = 2 * e + 2 * c + 3 * _projections(z) + c + 2 * m
    copies = _INNER_COPIES.get(shape.activation, 2)
    first, statistic = e + z.mask(e), _statistic(z)
    terms = [
        _outside("embeddings and positions", f"s*b*h*{first} + s*8", sb * h * first + z.s * _ID_BYTES),
        _of_layers("attention, normalizations, residuals, masks", f"L*s*b*h*{each}", layers * sb * h * each),
        _of_layers("feed-forward", f"L*s*b*i*{copies}*{c}", layers * sb * i * copies * c),
        *_attention(z),
        _of_layers("statistics of normalization", f"L*s*b*4*{statistic}", layers * sb * 4 * statistic),
        _outside("final normalization", f"s*b*(h*{c} + 2*{statistic})", sb * (h * c + 2 * statistic)),
    ]
    if shape.head == "language_model":
        terms.append(_outside("log-softmax of the loss", "s*b*V*4", sb * shape.vocabulary * 4))
        terms.append(_outside("shifted labels", "s*b*8", sb * _ID_BYTES))
    return tuple(terms)


def _llama(z: _Sizes) -> tuple[MemoryTerm, ...]:
    """Llama with fused attention: root-mean-square normalization in float32, a gated feed-forward."""
    shape, sb = z.shape, z.s * z.b
    h, layers, e = shape.hidden, shape.layers, z.e
    # Each normalization keeps its input in float32 (the residual itself where that is float32), its normalized form
    # before the weight, and its output.
    norm = 4 + 2 * e
    wide = 2 * (shape.heads + shape.key_value_heads) * shape.head_size
    terms = [
        _of_layers("normalizations and residuals", f"L*2*s*b*(h*{norm} + 4)", layers * 2 * sb * (h * norm + 4)),
        _outside("final normalization", f"s*b*(h*{norm} + 4)", sb * (h * norm + 4)),
        _of_layers("query, key, value and output of attention", f"L*s*b*2(a + k)*d*{e}", layers * sb * wide * e),
        *_attention(z),
        _of_layers("gated feed-forward", f"L*s*b*i*4*{e}", layers * sb * shape.intermediate * 4 * e),
        _outside("rotary cosines and sines", f"2*s*d*{e}", 2 * z.s * shape.head_size * e),
    ]
    if shape.head == "language_model":
        terms.append(_outside("log-softmax of the loss", "s*b*V*4", sb * shape.vocabulary * 4))
        terms.append(_outside("shifted labels", "s*b*8", sb * _ID_BYTES))
    return tuple(terms)


def _statistic(z: _Sizes) -> int:
    """Bytes of a mean or a reciprocal deviation: on the CPU of the normalization's type, on CUDA float32 at least."""
    return z.e if z.on_cpu and not z.autocast else max(_FULL_BYTES, z.e)


_FORMULAS: Final[dict[str, Callable[[_Sizes], tuple[MemoryTerm, ...]]]] = {
    "bert": _bert, "gpt2": _gpt2, "llama": _llama,
}  # fmt: skip


def needed_bytes(shape: ModelShape | None, workload: Workload, cache: CacheShape | None = None) -> int | None:
    """What a step needs by theory, temporary buffers apart; `None` where a formula is missing."""
    state = state_theory(workload)
    activations = _kept_bytes(shape, workload)
    kept = cache_theory(cache, workload)
    if not state or activations is None or (workload.generate and not kept):
        return None
    return sum(component.theory_bytes or 0 for component in (*state, *kept)) + activations


def _kept_bytes(shape: ModelShape | None, workload: Workload) -> int | None:
    """The saved activations; under checkpointing each segment's input and one segment's own, of one layer or more."""
    if workload.inference:
        return 0
    if workload.checkpointing and shape is not None:
        plain = replace(workload, checkpointing=None)
        every = min(workload.checkpoint_every or 1, shape.layers)
        terms = activation_terms(shape, plain)
        inside = sum(term.bytes for term in terms if term.per_layer)
        s, b, e = workload.sequence_length, workload.micro_batch, ITEM_SIZE.get(workload.dtype or "")
        if not terms or s is None or b is None or e is None:
            return None
        outside = sum(term.bytes for term in terms) - inside
        segments = -(-shape.layers // every)
        return outside + segments * s * b * shape.hidden * e + every * inside // shape.layers
    terms = activation_terms(shape, workload)
    return sum(term.bytes for term in terms) if terms else None
