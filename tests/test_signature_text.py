"""A signature's text and what is read back of it."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opanatomy.records.signature import NO_SIGNATURE, Argument, Signature, SignatureText, Stored, Tensor, text_of

TENSORS = st.builds(
    Tensor,
    st.lists(st.integers(0, 9), max_size=4).map(tuple),
    st.sampled_from([None, "float32", "bfloat16", "int64", "uint8", "float8_e4m3fn"]),
    sparse=st.sampled_from([None, Stored(), Stored(elements=7)]),
)
VALUES: st.SearchStrategy[Argument] = st.one_of(
    TENSORS, st.none(), st.booleans(), st.integers(-9, 99), st.sampled_from([1e-05, 0.5]), st.sampled_from(["sum", ""])
)
SIGNATURES = st.lists(VALUES | st.lists(VALUES.filter(bool), max_size=3).map(tuple), max_size=5)


@given(SIGNATURES)
def test_what_is_read_back_has_its_arguments(values: list[Argument]) -> None:
    record = Signature(tuple(values))
    read = SignatureText(str(record)).record
    assert str(read) == str(record)
    assert read.tensors() == record.tensors()
    assert read.compute_dtype == record.compute_dtype


@given(st.text("[], -?1ae.\u00e9", max_size=40))
def test_any_text_is_written_as_it_was_read(text: str) -> None:
    assert str(SignatureText(text).record) == text


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("", ()),
        ("float32[2,3], -, [1, 2], True, 1e-05, sum", (Tensor((2, 3), "float32"), None, (1, 2), True, 1e-05, "sum")),
        ("[float32[2], ?[]], 8", ((Tensor((2,), "float32"), Tensor(())), 8)),
        ("float32[4] sparse 3", (Tensor((4,), "float32", sparse=Stored(3)),)),
        ("float32[4] without strides", (Tensor((4,), "float32", sparse=Stored()),)),
        ("007, 1.50, [sum, ]", ("007", "1.50", ("sum", ""))),
    ],
)
def test_the_arguments_of_a_text(text: str, arguments: tuple[Argument, ...]) -> None:
    assert SignatureText(text).record == Signature(arguments)


def test_brackets_without_an_end_are_a_text() -> None:
    assert str(SignatureText("[" * 5000 + "]" * 5000).record) == "[" * 5000 + "]" * 5000


def test_a_trace_keeps_its_record() -> None:
    record = Signature((Tensor((2, 3), "float32", strides=(1, 2)), "float32[9]"))
    text = text_of(record)
    assert text == "float32[2,3], float32[9]"
    assert text.record is record
    assert text_of(None) is NO_SIGNATURE
    assert pickle.loads(pickle.dumps(text)).record == record
