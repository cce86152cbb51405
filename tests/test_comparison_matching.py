"""Work of two steps matched in a cascade, whole numbers that sum, and what can be claimed of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import combinations
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opanatomy.analysis.compare import (
    Item,
    Key,
    Match,
    Stepped,
    apportioned,
    decomposed,
    items_of,
    matched,
    unsigned_operators,
)
from opanatomy.analysis.statistics import interleaved, interval_of_median, mann_whitney
from opanatomy.records.anatomy import Breakdown, StepKind, WorkRow
from opanatomy.records.comparison import Cause
from opanatomy.records.signature import SignatureText
from opanatomy.records.taxonomy import OperatorClass, Phase

# -------------------------------------------------------------------------------------------------------- the matching


def key(operator: str = "aten::mul", signature: str = "f[2]", phase: str = "forward", kernel: str = "k") -> Key:
    return Key(operator, signature, "", phase, OperatorClass.ELEMENTWISE, kernel)


def item(calls: int, time_ns: int) -> Item:
    return Item(Fraction(calls), Fraction(time_ns))


@pytest.mark.parametrize(
    ("before", "after", "cause"),
    [
        (key(), key(), Cause.SAME_CALLS),
        (key(), key(operator="aten::mul_"), Cause.ANOTHER_OPERATOR),
        (key(operator="triton_poi_fused_3"), key(operator="triton_poi_fused_17"), Cause.SAME_CALLS),
        (key(), key(phase="backward"), Cause.MOVED),
        (key(), key(kernel="other"), Cause.ANOTHER_KERNEL),
        (key(), key(signature="f[4]"), Cause.ANOTHER_SIGNATURE),
        (key(), key(signature="f[4]", kernel="other"), Cause.ANOTHER_SIGNATURE),
    ],
)
def test_the_closest_match_is_taken(before: Key, after: Key, cause: Cause) -> None:
    (match,) = matched({before: item(2, 10)}, {after: item(2, 30)})
    assert (match.cause, *match.before, *match.after) == (cause, before, after)


@pytest.mark.parametrize(
    ("signature", "kernel", "cause"),
    [
        ("f[2]", "triton_poi_fused_add_mul_3", Cause.SAME_CALLS),
        ("f[2]", "triton_poi_fused_add_mul_17", Cause.SAME_CALLS),
        ("f[4]", "triton_poi_fused_add_mul_3", Cause.ANOTHER_SIGNATURE),
    ],
)
def test_the_number_of_a_compiled_kernel_says_nothing_its_signature_does(
    signature: str, kernel: str, cause: Cause
) -> None:
    """The compiler numbers kernels in its turn: equal names with other arguments are not the same kernel."""
    before, after = (
        Breakdown(
            operators=(name,), signatures=(SignatureText(arguments),), modules=(), kernels=(name,),
            kinds=(StepKind(steps=(), count=1, wall_ns=5, rows=(
                WorkRow(0, 0, -1, Phase.FORWARD, OperatorClass.ELEMENTWISE, 0, 1, 1, 5),
            )),),
        )
        for name, arguments in (("triton_poi_fused_add_mul_3", "f[2]"), (kernel, signature))
    )  # fmt: skip
    (match,) = matched(*(items_of(side, side.kinds[0]) for side in (before, after)))
    assert match.cause is cause


@pytest.mark.parametrize("change", [{"kernel": "other"}, {"kernel": "other", "phase": "backward"}])
def test_a_name_alone_is_no_match(change: dict[str, str]) -> None:
    """Without arguments and module much unlike work has one name: a copy to the host, a cast."""
    unknown = key("aten::_to_copy", "", kernel="Memcpy DtoH")
    matches = matched({unknown: item(1, 5)}, {unknown._replace(**change): item(1, 7)})
    assert {match.cause for match in matches} == {Cause.NEW, Cause.GONE}


def test_arguments_that_one_side_alone_knows_are_not_asked_for() -> None:
    """A trace with shapes and one without them: `aten::mul` is matched without, `aten::add` with them."""
    sides = [
        Breakdown(
            operators=("aten::mul", "aten::add", "aten::sub"), modules=(), kernels=("k",),
            signatures=tuple(SignatureText(text) for text in ("f[2]", "f[4]", signature)),
            kinds=(StepKind(steps=(), count=1, wall_ns=15, rows=(
                WorkRow(0, 2, -1, Phase.FORWARD, OperatorClass.ELEMENTWISE, 0, 1, 1, 5),
                WorkRow(1, place, -1, Phase.FORWARD, OperatorClass.ELEMENTWISE, 0, 1, 1, 5),
                WorkRow(2, -1, -1, Phase.FORWARD, OperatorClass.ELEMENTWISE, 0, 1, 1, 5),
            )),),
        )
        for signature, place in (("f[3]", 0), ("", 1))
    ]  # fmt: skip
    unsigned = unsigned_operators(*((side, side.kinds[0]) for side in sides))
    assert unsigned == {"aten::mul"}
    matches = matched(*(items_of(side, side.kinds[0], unsigned) for side in sides))
    assert {next(iter(match.before)).operator: match.cause for match in matches} == {
        "aten::mul": Cause.SAME_CALLS, "aten::add": Cause.ANOTHER_SIGNATURE, "aten::sub": Cause.SAME_CALLS,
    }  # fmt: skip


def test_work_of_unlike_classes_is_not_the_same_calls() -> None:
    """One kernel under two operators, `aten::neg` and `aten::clamp`: the time of each is counted in its class."""
    kernel = "elementwise_kernel"
    before = {Key("aten::neg", "", "", "backward", OperatorClass.STATISTICAL_NORMALIZATION, kernel): Item(Fraction(1))}
    after = {Key("aten::clamp", "", "", "backward", OperatorClass.ELEMENTWISE, kernel): Item(Fraction(1))}
    assert {match.cause for match in matched(before, after)} == {Cause.GONE, Cause.NEW}


def test_parts_of_another_class_than_the_work_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the parts are checked with are sums of rows, which know nothing of matching."""
    kind = StepKind(
        steps=(), count=2, wall_ns=300, outside_ns=100,
        rows=(WorkRow(0, -1, -1, Phase.FORWARD, OperatorClass.ELEMENTWISE, -1, 2, 0, 200),),
    )  # fmt: skip
    breakdown = Breakdown(operators=("aten::mul",), signatures=(), modules=(), kernels=(), kinds=(kind,))
    side = Stepped(breakdown=breakdown, kind=kind, costs={})
    parts = decomposed(side, side)
    assert [(part.before_ns, part.after_ns) for part in parts.parts] == [(100, 100), (50, 50)]

    def confused(before: dict[Key, Item], after: dict[Key, Item]) -> list[Match]:
        wrong = {name._replace(operator_class=OperatorClass.TENSOR_CONTRACTION): item for name, item in before.items()}
        return [Match(Cause.SAME_CALLS, wrong, after)]

    monkeypatch.setattr("opanatomy.analysis.compare.matched", confused)
    with pytest.raises(AssertionError, match="the parts of elementwise are 0 ns, its work 100 ns"):
        decomposed(side, side)


def test_what_nothing_matches_is_new_or_gone() -> None:
    other = key("aten::add", "f[3]", "optimizer", "a")
    assert {match.cause for match in matched({key(): item(1, 5)}, {other: item(1, 7)})} == {Cause.NEW, Cause.GONE}


def test_a_part_of_the_calls_moves_with_its_time() -> None:
    moved = key(phase="backward")
    matches = matched({key(): item(36, 360)}, {key(): item(24, 250), moved: item(12, 120)})
    assert [(match.cause, sum(item.time_ns for item in match.before.values())) for match in matches] == [
        (Cause.SAME_CALLS, 240), (Cause.MOVED, 120),
    ]  # fmt: skip


names = st.sampled_from(["a", "b"])
keys = st.builds(
    lambda operator, signature, phase, kernel: key(f"aten::{operator}", signature, phase, kernel), names, names,
    st.sampled_from(["forward", "backward"]), names,
)  # fmt: skip
works = st.dictionaries(keys, st.builds(item, st.integers(0, 5), st.integers(0, 1000)), max_size=6)


@settings(suppress_health_check=[HealthCheck.too_slow])  # of a first run, which looks for constants in all modules
@given(works, works)
def test_all_work_is_matched_once_whatever_comes_first(before: dict[Key, Item], after: dict[Key, Item]) -> None:
    there, back = matched(before, after), matched(after, before)
    for matches, sides in ((there, (before, after)), (back, (after, before))):
        for place, side in enumerate(sides):
            for name in ("calls", "time_ns"):
                spent = sum(
                    getattr(item, name) for match in matches for item in (match.before, match.after)[place].values()
                )
                assert spent == sum(getattr(item, name) for item in side.values())

    def times(items: dict[Key, Item]) -> list[tuple[Key, Fraction]]:
        return sorted((name, item.time_ns) for name, item in items.items())

    forth = sorted((times(match.before), times(match.after)) for match in there)
    assert forth == sorted((times(match.after), times(match.before)) for match in back)


@given(st.lists(st.fractions(min_value=-50, max_value=50), max_size=20))
def test_parts_in_whole_numbers_sum_to_the_whole(values: list[Fraction]) -> None:
    whole = apportioned(values)
    assert sum(whole) == (sum(values, Fraction(0)) + Fraction(1, 2)).__floor__()
    assert all(abs(number - value) < 1 for number, value in zip(whole, values, strict=True))


# ---------------------------------------------------------------------------------------------------------- statistics


@pytest.mark.parametrize(
    ("before", "after", "p"),
    [
        # scipy.stats.mannwhitneyu(..., method="exact") of samples without ties
        ([1, 2, 3, 4], [5, 6, 7, 8], 0.02857142857142857),
        ([1, 3, 5, 7], [2, 4, 6, 8], 0.6857142857142857),
        ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], 0.007936507936507936),
        ([1, 1, 1, 1], [1, 1, 1, 1], 1.0),
        # scipy.stats.mannwhitneyu(..., method=PermutationMethod()), which counts all divisions with their ties
        ([1, 3, 4], [5, 5, 5, 5, 4], 0.07142857142857142),
    ],
)
def test_the_test_of_two_samples(before: list[float], after: list[float], p: float) -> None:
    assert mann_whitney(before, after) == pytest.approx(p)
    assert mann_whitney(after, before) == pytest.approx(p)


def test_many_samples_are_tested_by_the_normal_distribution() -> None:
    """scipy.stats.mannwhitneyu(range(40), range(10, 50), method="asymptotic")."""
    assert mann_whitney(list(range(40)), list(range(10, 50))) == pytest.approx(0.0007691714821234269)


def test_the_median_has_an_interval_from_six_samples_on() -> None:
    """1 - 2 / 2^n: 93.75 % of five, 96.9 % of six."""
    assert interval_of_median([5, 1, 4, 2, 3]) is None
    assert interval_of_median([6, 5, 1, 4, 2, 3]) == (1, 6)
    assert interval_of_median(range(1, 11)) == (2, 9)


def began(order: str) -> tuple[list[int | None], list[int | None]]:
    """When the runs of either side began that ran in this order."""
    return [place for place, side in enumerate(order) if side == "A"], [
        place for place, side in enumerate(order) if side == "B"
    ]


@pytest.mark.parametrize(
    ("order", "taking_turns"),
    [
        ("ABABABAB", True),
        ("BABABABA", True),
        ("ABBAABBA", True),
        ("ABABABABABABABABABAB", True),
        ("ABABABABA", True),
        ("ABABAABAB", True),
        ("ABBABBABBABB", True),
        ("AAAABBBB", False),
        ("AABBAABB", False),
        ("AABBBBAA", False),
        ("ABBABAAB", True),
        ("ABAABBAB", False),
        ("ABABABABBBBBBBBB", False),
        ("BBBBBBBBABABABAB", False),
        ("ABABABABBB", False),
    ],
)
def test_runs_take_turns_or_do_not(order: str, taking_turns: bool) -> None:
    assert interleaved(*began(order)) is taking_turns


def test_runs_whose_beginning_is_not_known_took_no_turns() -> None:
    assert not interleaved([1, 3, 5, None], [2, 4, 6, 8])


def orders(before: int, after: int) -> Iterator[str]:
    """Every order of the runs of two sides."""
    count = before + after
    for places in combinations(range(count), before):
        yield "".join("A" if place in places else "B" for place in range(count))


def p_of_drift(order: str, drift: Callable[[float], float]) -> float:
    """The p of sides that differ in nothing but a drift, by the place of each run from -1 to 1."""
    sides: dict[str, list[float]] = {"A": [], "B": []}
    for place, side in enumerate(order):
        sides[side].append(drift(2 * place / (len(order) - 1) - 1))
    return mann_whitney(sides["A"], sides["B"])


@pytest.mark.parametrize(("before", "after"), [(4, 4), (4, 5), (5, 4), (4, 6), (4, 8), (5, 5), (6, 6), (5, 7)])
def test_no_drift_is_significant_in_any_order_that_takes_turns(before: int, after: int) -> None:
    """Nothing but drift, however large: steady, and there and back; of other orders some are significant."""
    drifts: tuple[Callable[[float], float], ...] = (lambda place: place, abs)
    for drift in drifts:
        p = {taking: [p_of_drift(order, drift) for order in orders(before, after)
                      if interleaved(*began(order)) is taking] for taking in (True, False)}  # fmt: skip
        assert min(p[True]) > 0.09
        assert min(p[False]) < 0.05


@pytest.mark.parametrize("drift", [0.0, 0.1, 0.3, 1.0, 5.0])
def test_equal_sides_under_drift_and_noise_are_significant_in_5_percent_at_most(drift: float) -> None:
    """Noise of deviation 1 and a drift a run of `drift`: over every order of four runs a side that takes turns."""
    chance = Random(0)
    ranked = {places: mann_whitney(places, sorted({*range(8)} - {*places})) for places in combinations(range(8), 4)}

    def share_of(order: str) -> float:
        found = 0
        for _ in range(1500):
            values = [chance.gauss(0, 1) + drift * place for place in range(8)]
            ranks = sorted(range(8), key=lambda place: values[place])
            found += ranked[tuple(rank for rank, place in enumerate(ranks) if order[place] == "A")] < 0.05
        return found / 1500

    accepted = [order for order in orders(4, 4) if interleaved(*began(order))]
    assert len(accepted) == 2**4
    assert max(share_of(order) for order in accepted) < 0.05
    if drift >= 1:
        assert share_of("AAAABBBB") > 0.5
