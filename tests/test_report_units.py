"""Number formatting: what is printed is within rounding of what is meant, and never claims more."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opanatomy.report import units

TIME = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
PREFIXES = ("", "k", "M", "G", "T", "P", "E")
SIZE = {f"{prefix}B": 1000**power for power, prefix in enumerate(PREFIXES)}
FLOPS = {f"{prefix}FLOP": 1000**power for power, prefix in enumerate(PREFIXES)}
FORMATS: list[tuple[Callable[[float | None], str], dict[str, int]]] = [
    (units.duration, TIME),
    (units.size, SIZE),
    (units.flops, FLOPS),
]
by_unit = pytest.mark.parametrize(("text_of", "scale"), FORMATS, ids=["duration", "size", "flops"])
integers = st.one_of(st.integers(0, 10**4), st.integers(0, 10**12), st.integers(0, 10**20))


def value_of(text: str, scale: dict[str, int]) -> float:
    number, unit = text.split(" ")
    return float(number.replace(",", "")) * scale[unit]


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (1, "1 ns"),
        (999, "999 ns"),
        (12.5, "12.5 ns"),
        (0.001, "<0.01 ns"),
        (1000, "1.00 us"),
        (999_499, "999 us"),
        (999_500, "1.00 ms"),
        (4_120_000, "4.12 ms"),
        (41_200_000, "41.2 ms"),
        (999_700_000, "1.00 s"),
        (59_940_000_000, "59.9 s"),
        (59_970_000_000, "60.0 s"),
        (90_000_000_000, "90.0 s"),
        (599_400_000_000, "599 s"),
        (599_600_000_000, "10.0 min"),
        (3_599_000_000_000, "1.00 h"),
        (9_000_000_000_000_000, "2,500 h"),
        (-1_500_000, "-1.50 ms"),
        (None, "-"),
    ],
)
def test_durations(ns: float | None, text: str) -> None:
    assert units.duration(ns) == text


def test_the_unit_printed_is_the_unit_meant() -> None:
    assert units.size(1_343_000_000) == "1.34 GB"
    assert units.size(1000) == "1.00 kB"
    assert units.flops(335_007_449_088) == "335 GFLOP"
    assert units.flop_rate(989.5e12) == "990 TFLOP/s"
    assert units.byte_rate(900e9) == "900 GB/s"
    assert units.prefixed(335_007_449_088) == "335 G"
    assert units.prefixed(0) == "0"


@by_unit
@given(value=integers)
def test_a_value_reads_back_within_its_rounding(
    text_of: Callable[[float | None], str], scale: dict[str, int], value: int
) -> None:
    assert value_of(text_of(value), scale) == pytest.approx(value, rel=0.00501)


@by_unit
@given(values=st.tuples(integers, integers))
def test_more_never_reads_as_less(
    text_of: Callable[[float | None], str], scale: dict[str, int], values: tuple[int, int]
) -> None:
    low, high = (value_of(text_of(value), scale) for value in sorted(values))
    assert low <= high


@by_unit
@given(value=st.integers(0, 10**18))
def test_no_number_reaches_the_next_unit(
    text_of: Callable[[float | None], str], scale: dict[str, int], value: int
) -> None:
    number, unit = text_of(value).split(" ")
    # Seconds go on to ten minutes.
    begins = {name: 10 * factor if name == "min" else factor for name, factor in scale.items()}
    later = [begin for begin in begins.values() if begin > begins[unit]]
    assert value_of(f"{number} {unit}", scale) < min(later, default=math.inf)


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 100, "0.0 %"),
        (38, 100, "38.0 %"),
        (100, 100, "100.0 %"),
        (99_970, 100_000, ">99.9 %"),
        (10**18 - 1, 10**18, ">99.9 %"),
        (1, 10**18, "<0.1 %"),
        (1413, 1000, "141.3 %"),
        (-5, 100, "-5.0 %"),
        (5, 0, "-"),
        (None, 100, "-"),
        (5, None, "-"),
    ],
)
def test_shares(part: int | None, whole: int | None, text: str) -> None:
    assert units.share(part, whole) == text


def test_shares_with_two_decimals() -> None:
    assert units.share(9980, 10_000, decimals=2) == "99.80 %"
    assert units.share(1, 10**6, decimals=2) == "<0.01 %"
    assert units.share(999_999, 10**6, decimals=2) == ">99.99 %"


@given(part=st.integers(0, 10**15), rest=st.integers(0, 10**15))
def test_only_nothing_is_0_and_only_the_whole_is_100_percent(part: int, rest: int) -> None:
    if part + rest:
        text = units.share(part, part + rest)
        assert (text == "0.0 %") == (part == 0)
        assert (text == "100.0 %") == (rest == 0)


@pytest.mark.parametrize(
    ("value", "text"),
    [(2, "2.00"), (0.436, "0.44"), (27.34, "27.3"), (9.996, "10.0"), (99.96, "100"), (1234.5, "1,234"), (0, "0.00"),
     (0.001, "<0.01"), (None, "-")],
)  # fmt: skip
def test_ratios(value: float | None, text: str) -> None:
    assert units.ratio(value) == text


@pytest.mark.parametrize(
    ("new", "old", "text"),
    [(103.5, 100, "+3.5 %"), (88, 100, "-12.0 %"), (100, 100, "0.0 %"), (100_001, 100_000, "<+0.1 %"),
     (99_999, 100_000, ">-0.1 %"), (None, 1, "-"), (1, None, "-"), (1, 0, "-")],
)  # fmt: skip
def test_changes(new: float | None, old: float | None, text: str) -> None:
    assert units.change(new, old) == text


def test_rates_keep_three_digits_below_one() -> None:
    assert units.rate(0.07887, "samples") == "0.0789 samples/s"
    assert units.rate(0.9999, "samples") == "1.00 samples/s"
    assert units.rate(8.864, "samples") == "8.86 samples/s"
    assert units.rate(1e-6, "samples") == "<0.0001 samples/s"
    assert units.rate(None, "samples") == "-"


def test_counts_are_in_full() -> None:
    assert units.count(335_143_938) == "335,143,938"
    assert units.count(None) == "-"


def test_numbers_for_machines_have_no_exponent() -> None:
    assert units.plain(95_665_245_112.4) == "95665200000"
    assert units.plain(0.000012345678) == "0.0000123457"
    assert units.plain(None) == ""


def test_nothing_is_done_in_no_time() -> None:
    assert units.per_second(10, 0) is None
    assert units.per_second(None, 10) is None
    assert units.per_second(10, 2_000_000_000) == 5.0
