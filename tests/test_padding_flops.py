"""What part of a contraction is of texts, not of padding: by its shapes."""

from __future__ import annotations

from fractions import Fraction

import pytest

from opanatomy.attribution.table import _sizes_of, _useful
from opanatomy.records.signature import Signature, Tensor
from opanatomy.records.workload import TextBatch

#: Three texts of 2, 5 and 3 tokens padded to 5: of 15 tokens 10 are useful, of 75 pairs 4 + 25 + 9.
BATCH = TextBatch(lengths=(2, 5, 3), length=5)
TOKENS, PAIRS, ALL = Fraction(10, 15), Fraction(38, 75), Fraction(1)
HIDDEN, HEADS, SIZE = 8, 2, 4


@pytest.mark.parametrize(
    ("what", "shapes", "useful"),
    [
        ("a layer: bias, input, weight", [(16,), (15, HIDDEN), (HIDDEN, 16)], TOKENS),
        ("a layer without bias", [(15, HIDDEN), (HIDDEN, 16)], TOKENS),
        ("a layer over three dimensions", [(3, 5, HIDDEN), (16, HIDDEN), (16,)], TOKENS),
        ("its input's gradient", [(15, 16), (16, HIDDEN)], TOKENS),
        ("its weight's gradient", [(16, 15), (15, HIDDEN)], TOKENS),
        ("added to a matrix", [(15, 16), (15, HIDDEN), (HIDDEN, 16)], TOKENS),
        ("written to a matrix", [(15, HIDDEN), (HIDDEN, 16), (15, 16)], TOKENS),
        ("added and written", [(15, 16), (15, HIDDEN), (HIDDEN, 16), (15, 16)], TOKENS),
        ("a pooled token, written", [(3, HIDDEN), (HIDDEN, 15), (3, 15)], ALL),
        ("a pooled token", [(3, HIDDEN), (HIDDEN, HIDDEN)], ALL),
        ("its weight's gradient", [(HIDDEN, 3), (3, HIDDEN)], ALL),
        ("that with as many features as tokens", [(15, 3), (3, 15)], ALL),
        ("a head of as many classes as texts", [(15, 3), (3, HIDDEN)], TOKENS),
        ("scores", [(6, 5, SIZE), (6, SIZE, 5)], PAIRS),
        ("scores written to a tensor", [(6, 5, SIZE), (6, SIZE, 5), (6, 5, 5)], PAIRS),
        ("values", [(6, 5, 5), (6, 5, SIZE)], PAIRS),
        ("scores added to a bias", [(6, 5, 5), (6, 5, SIZE), (6, SIZE, 5)], PAIRS),
        ("heads as large as the length", [(6, 5, 5), (6, 5, 5)], PAIRS),
        ("angles of positions, the same for all texts", [(1, SIZE, 1), (1, 1, 5)], None),
        ("fused attention", [(3, HEADS, 5, SIZE)] * 3, PAIRS),
        ("with a mask", [*[(3, HEADS, 5, SIZE)] * 3, (3, 1, 5, 5)], PAIRS),
        ("its backward", [*[(3, HEADS, 5, SIZE)] * 5, (3, HEADS, 5)], PAIRS),
        ("attention, heads behind tokens", [(3, 5, HEADS, SIZE)] * 3, PAIRS),
        ("of other lengths", [(3, HEADS, 7, SIZE)] * 3, None),
        ("experts", [(11, HIDDEN), (4, HIDDEN, 16), (4,)], None),
        ("a convolution", [(3, HIDDEN, 8), (HIDDEN, 1, 4), (HIDDEN,)], None),
        ("one vector", [(15,), (15,)], None),
    ],
)
def test_the_useful_part(what: str, shapes: list[tuple[int, ...]], useful: Fraction | None) -> None:
    signature = Signature(tuple(Tensor(shape, "float32") for shape in shapes))
    assert _useful(signature, _sizes_of(BATCH, 1)) == useful, what


def test_micro_batches_have_fewer_texts_in_a_product() -> None:
    batch = TextBatch(lengths=(2, 5, 3, 5), length=5)
    signature = Signature((Tensor((10, HIDDEN), "float32"), Tensor((HIDDEN, 16), "float32")))
    assert _useful(signature, _sizes_of(batch, 2)) == Fraction(15, 20)
    assert _useful(signature, _sizes_of(batch, 1)) is None
