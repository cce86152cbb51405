"""Architectures that are not in the catalog, drawn with a fixed seed: the code and the checks of the benchmark."""

from __future__ import annotations

import pytest
from transformers import BertConfig, CLIPConfig

from benchmarks.architectures import IN_CATALOG, Result, Unfit, check, drawn, run, shrunken
from tests.test_catalog_anatomy import one_thread

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


def test_what_cannot_be_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.architectures.MOST_PARAMETERS", 10)
    with pytest.raises(Unfit, match="parameters"):
        check("xglm")
    said: list[str] = []
    assert run(iter(["xglm"]), 1, said.append) == []
    assert said[0].startswith("xglm")
    assert "not run: " in said[0]


def test_a_configuration_is_shrunken_where_its_names_are_sizes() -> None:
    small, default = shrunken(BertConfig), BertConfig()
    assert (small.vocab_size, small.hidden_size, small.num_hidden_layers, small.num_attention_heads) == (160, 32, 2, 2)
    assert (small.intermediate_size, small.max_position_embeddings, small.type_vocab_size) == (64, 64, 2)
    kept = ("hidden_dropout_prob", "layer_norm_eps", "pad_token_id", "hidden_act", "chunk_size_feed_forward")
    assert {name: getattr(small, name) for name in kept} == {name: getattr(default, name) for name in kept}


def test_the_parts_of_a_configuration_are_shrunken_too() -> None:
    small = shrunken(CLIPConfig)
    assert (small.projection_dim, small.text_config.hidden_size, small.vision_config.image_size) == (32, 32, 32)
    assert shrunken(CLIPConfig, projection_dim=48).projection_dim == 48
