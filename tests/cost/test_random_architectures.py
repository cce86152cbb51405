"""Architectures that are not in the catalog, drawn with a fixed seed: the code and the checks of the benchmark."""

from __future__ import annotations

import pytest

from benchmarks.architectures import IN_CATALOG, Result, check, drawn, run
from tests.support.tiny import one_thread

SEED = 1
#: The state-space, mixture-of-experts and sparse models that a draw of three may miss; one each.
ALWAYS = ("falcon_mamba", "granitemoehybrid", "mobilenet_v2")


def assert_as_torch_has_it(result: Result) -> None:
    assert result.ours == result.theirs > 0, result.name
    assert not {**result.tally.other, **result.tally.without}, result.tally.samples


def test_a_seed_draws_the_same_architectures_and_none_of_the_catalog() -> None:
    names = list(drawn(SEED))
    assert names == list(drawn(SEED))
    assert names != list(drawn(SEED + 1))
    assert len(names) > 100
    assert not IN_CATALOG & set(names)


def test_three_drawn_ones_cost_what_torch_counts() -> None:
    with one_thread():
        results = run(drawn(SEED), 3, say=lambda _: None)
    assert len(results) == 3
    for result in results:
        assert_as_torch_has_it(result)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALWAYS)
def test_other_kinds_of_architecture_do_too(name: str) -> None:
    with one_thread():
        assert_as_torch_has_it(check(name))
