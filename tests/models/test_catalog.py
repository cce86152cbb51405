"""The embedded configurations: their names, and that they are the published models."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from opanatomy.capture.model import configuration
from opanatomy.capture.model.catalog import (
    Entry,
    catalog_entries,
    catalog_names,
    find_name,
    near_names,
    read_configuration,
)
from opanatomy.capture.model.workload import prepare
from opanatomy.cli.main import main
from tests.support.tiny import SISTERS, TINY, planned, tiny_request

#: Catalog name -> class, task and the exact parameter count published for the weights of the Hub. BERT's checkpoints
#: hold pre-training heads too: 110,106,428 and 336,226,108 less the pooler (h * h + h) and the classifier of the next
#: sentence (2 * h + 2). Qwen3-0.6B's file stores its tied output matrix again: 751,632,384 less 151,936 * 1,024.
#: DeBERTa is the 183,831,552 of the encoder, the pooler of 768 * 769 and two labels of 769.
PUBLISHED = {
    "distilbert/distilbert-base-uncased": ("DistilBertForMaskedLM", "masked-lm", 66_985_530),
    "facebook/bart-base": ("BartForConditionalGeneration", "seq2seq-lm", 139_420_416),
    "facebook/wav2vec2-base-960h": ("Wav2Vec2ForCTC", "speech", 94_396_320),
    "FacebookAI/roberta-base": ("RobertaForMaskedLM", "masked-lm", 124_697_433),
    "google-bert/bert-base-uncased": ("BertForMaskedLM", "masked-lm", 110_106_428 - 768 * 769 - 2 * 769),
    "google-bert/bert-large-uncased": ("BertForMaskedLM", "masked-lm", 336_226_108 - 1024 * 1025 - 2 * 1025),
    "google-t5/t5-base": ("T5ForConditionalGeneration", "seq2seq-lm", 222_903_552),
    "google/vit-base-patch16-224": ("ViTForImageClassification", "image-classification", 86_567_656),
    "meta-llama/Llama-3.1-8B": ("LlamaForCausalLM", "causal-lm", 8_030_261_248),
    "microsoft/deberta-v3-base":
        ("DebertaV2ForSequenceClassification", "sequence-classification", 183_831_552 + 768 * 769 + 2 * 769),
    "microsoft/resnet-50": ("ResNetForImageClassification", "image-classification", 25_557_032),
    "mistralai/Mistral-7B-v0.1": ("MistralForCausalLM", "causal-lm", 7_241_732_096),
    "mistralai/Mixtral-8x7B-v0.1": ("MixtralForCausalLM", "causal-lm", 46_702_792_704),
    "openai-community/gpt2": ("GPT2LMHeadModel", "causal-lm", 124_439_808),
    "openai-community/gpt2-xl": ("GPT2LMHeadModel", "causal-lm", 1_557_611_200),
    "openai/clip-vit-base-patch32": ("CLIPModel", "contrastive", 151_277_313),
    "openai/whisper-small": ("WhisperForConditionalGeneration", "speech", 241_734_912),
    "Qwen/Qwen3-0.6B": ("Qwen3ForCausalLM", "causal-lm", 751_632_384 - 151_936 * 1_024),
    "Qwen/Qwen3-30B-A3B": ("Qwen3MoeForCausalLM", "causal-lm", 30_532_122_624),
    "state-spaces/mamba-130m-hf": ("MambaForCausalLM", "causal-lm", 129_135_360),
}  # fmt: skip

LENGTHS = {
    "facebook/wav2vec2-base-960h": 160_000,
    "google/vit-base-patch16-224": None,
    "microsoft/resnet-50": None,
    "openai/clip-vit-base-patch32": 77,
    "openai/whisper-small": 448,
}


def test_every_embedded_model_is_checked_here() -> None:
    assert set(catalog_names()) == set(PUBLISHED) == set(TINY)


@pytest.mark.parametrize("entry", catalog_entries(), ids=lambda entry: entry.name)
def test_a_model_is_the_published_one_and_what_the_catalog_says_of_it_is_so(entry: Entry) -> None:
    plan, content = planned(model=entry.name), read_configuration(entry.name)
    assert (plan.name, plan.source) == (entry.name, "catalog")
    assert (plan.architecture, plan.task, plan.parameters) == PUBLISHED[entry.name]
    assert (entry.architecture, entry.task, entry.parameters) == PUBLISHED[entry.name]
    assert plan.shape.sequence_length == LENGTHS.get(entry.name, 512)
    assert entry.kind == plan.config.model_type == content["model_type"]
    assert "auto_map" not in content, "it runs no code"
    parts = [plan.config, *(getattr(plan.config, name, None) for name in ("text_config", "vision_config"))]
    hidden = tuple(size for part in parts if (size := getattr(part, "hidden_size", None)) is not None)
    assert entry.hidden == (hidden or None)
    assert entry.layers == (plan.stacks if hidden else None)  # the stages of ResNet are no layers of one kind


NAMES = {
    "google-bert/bert-large-uncased": "google-bert/bert-large-uncased", "gpt2": "openai-community/gpt2",
    "BERT-Large-Uncased": "google-bert/bert-large-uncased", "gpt2-xl": "openai-community/gpt2-xl",
    "facebookai/ROBERTA-base": "FacebookAI/roberta-base", "t5-base": "google-t5/t5-base",
    "someone/bert-large-uncased": None, "bert": None, "": None,
}  # fmt: skip


def test_names() -> None:
    assert {asked: find_name(asked) for asked in NAMES} == NAMES


LLAMA = ("meta-llama/Llama-3.1-8B",)
NEAR = {
    "bert": ("google-bert/bert-base-uncased", "google-bert/bert-large-uncased"), "llama": LLAMA,
    "someone/gpt2": ("openai-community/gpt2", "openai-community/gpt2-xl"),
    "Qwen2": ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-30B-A3B"),
    "huggyllama/llama-7b": LLAMA, "meta-llama/Llama-3-8B": LLAMA, "meta/Llama-3.1-8B": LLAMA, "zzzzzz": (),
}  # fmt: skip


def test_near_names() -> None:
    assert {asked: near_names(asked) for asked in NEAR} == NEAR
    assert near_names("bert-lage-uncased")[0] == "google-bert/bert-large-uncased"
    assert near_names("bert-bas")[0] == "google-bert/bert-base-uncased"


def test_a_catalog_name_touches_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr("socket.create_connection", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    # Nor is it asked by a library that has a connection already.
    monkeypatch.setattr(configuration, "download_configuration", refuse)
    assert planned(model="gpt2").source == "catalog"


@pytest.mark.parametrize(("larger", "smaller"), SISTERS.items())
def test_cut_down_a_larger_model_is_its_smaller_sister(larger: str, smaller: str) -> None:
    """What is tested of the one for its computation is tested of the other."""
    large, small = (prepare(tiny_request(name)).module for name in (larger, smaller))
    assert repr(large) == repr(small)
    ours, others = large.config.to_dict(), small.config.to_dict()
    different = {name for name in ours.keys() | others.keys() if ours.get(name) != others.get(name)}
    assert different <= {"_name_or_path", "output_past"}  # which no model reads


# ----------------------------------------------------------------------------------------------------- the verb catalog


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["catalog", *words]) == 0
    return capsys.readouterr().out


def test_the_catalog_as_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for width in ("30", "60", "80", "200"):
        monkeypatch.setenv("COLUMNS", width)
        text = listed(capsys)
        header, _, *rows = text.splitlines()
        names = [row.split()[0] for row in rows if "/" in row.split()[0]]
        assert names == list(catalog_names()), "whole names at every width"
        said = " ".join(text.split()).partition("columns hidden at this width: ")[2].replace(",", " ").split()
        for column in ("layers", "hidden", "kind"):
            assert (column in header.split()) is not (column in said), (column, width)
    (row,) = (row for row in rows if row.startswith("google-bert/bert-large-uncased"))
    assert row.split() == ["google-bert/bert-large-uncased", "335", "M", "24", "1024", "masked-lm", "bert"]
    assert " 8.03 B " in text


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("BERT", "large"), ["google-bert/bert-large-uncased"]),
        (("speech",), ["facebook/wav2vec2-base-960h", "openai/whisper-small"]),
        (("mixtral",), ["mistralai/Mixtral-8x7B-v0.1"]),
        ((), list(catalog_names())),
    ],
)
def test_the_catalog_as_json(words: tuple[str, ...], names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(listed(capsys, *words, "-f", "json"))
    assert document["schema"] == 1
    assert [model["name"] for model in document["models"]] == names
    assert set(document["models"][0]) == {"name", "kind", "architecture", "task", "parameters", "layers", "hidden"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("brt",), "did you mean bert or bart?"),
        (("causal-ln", "x"), "did you mean causal-lm"),
        (("xyzzy",), "lists all"),
    ],
)
def test_a_word_that_no_model_has(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalog", *words]) == 1
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def test_neither_the_catalog_nor_a_plan_imports_torch() -> None:
    code = (
        "import sys, opanatomy.capture.model.workload; from opanatomy.__main__ import main; main(['catalog']);"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'huggingface_hub')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
