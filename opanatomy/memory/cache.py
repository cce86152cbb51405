"""What a generation keeps by theory: the keys and values of its tokens, and what its beams copy.

b batch, n beams, k key-value heads, d head size, L layers, s tokens of the prompt, N new tokens, w the tokens that
attention slides over, S tokens of an encoder's output and H its hidden size. Of the last new token nothing is kept.
"""

from __future__ import annotations

from typing import Final

from opanatomy.memory import components as named
from opanatomy.records.data_types import ITEM_SIZE
from opanatomy.records.memory import CacheShape, MemoryComponent
from opanatomy.records.workload import Workload

_ID_BYTES: Final = 8


def cache_theory(shape: CacheShape | None, workload: Workload) -> tuple[MemoryComponent, ...]:
    """The cache and the copies of its beams at their fullest; nothing where no closed formula is known."""
    element = ITEM_SIZE.get(workload.dtype or "")
    if shape is None or not workload.generate or workload.batch is None or element is None or workload.amp:
        return ()
    rows = workload.batch * (workload.beams or 1)
    numbers = rows * shape.key_value_heads * shape.head_size * element
    tokens = shape.prompt + workload.generate - 1
    kept = _kept_tokens(shape, tokens) + len(shape.windows) * shape.cross_length
    cache = MemoryComponent(
        component=named.KEY_VALUE_CACHE, theory_bytes=2 * numbers * kept, formula=_cache_formula(shape, element)
    )
    if rows == workload.batch or shape.prompt_copies is None:
        return (cache,)
    copied = max(*(_in_window(tokens, window) for window in shape.windows), shape.cross_length)
    repeated = shape.prompt * shape.prompt_copies * _ID_BYTES + shape.cross_length * shape.encoder_hidden * element
    copies = MemoryComponent(
        component=named.BEAM_COPIES, theory_bytes=numbers * copied + rows * repeated,
        formula=_copies_formula(shape, element),
    )  # fmt: skip
    return cache, copies


def _kept_tokens(shape: CacheShape, tokens: int) -> int:
    """The tokens kept in all layers when that is most: after the prompt, or at the end.

    Of a window a layer keeps w - 1 tokens, in a storage with the last one more: the prompt's holds all of it.
    """
    at_end = sum(min(tokens, window) if window and tokens > shape.prompt else tokens for window in shape.windows)
    return max(at_end, len(shape.windows) * shape.prompt)


def _in_window(tokens: int, window: int) -> int:
    """What a reordering copies of a layer."""
    return min(tokens, window - 1) if window else tokens


def _cache_formula(shape: CacheShape, element: int) -> str:
    tokens = "N" if shape.cross_length else "(s + N - 1)"
    if any(shape.windows):
        tokens = f"max(s, min{tokens[:-1]}, w))" if all(shape.windows) else f"{tokens} [at most w in layers that slide]"
    cross = f" + 2*L*b*n*k*d*S*{element}" if shape.cross_length else ""
    return f"2*L*b*n*k*d*{tokens}*{element}{cross}"


def _copies_formula(shape: CacheShape, element: int) -> str:
    if shape.cross_length:
        return f"b*n*(k*d*max(N, S)*{element} + S*H*{element} + {_ID_BYTES})"
    tokens = "min(s + N - 1, w - 1)" if all(shape.windows) else "(s + N - 1)"
    return f"b*n*(k*d*{tokens}*{element} + s*{(shape.prompt_copies or 0) * _ID_BYTES})"
