"""Where a model comes from: local files, the Hub, a function of the user's own."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from opanatomy.capture.model import configuration
from opanatomy.capture.model.workload import plan_of, prepare
from opanatomy.errors import ModelError, UsageError
from tests.tiny import BERT, loss_of, message_of, on_cpu, planned, tiny_request


def test_local_folder_and_file(tmp_path: Path) -> None:
    made = prepare(tiny_request(BERT))
    made.module.save_pretrained(tmp_path)
    for model in (str(tmp_path), str(tmp_path / "config.json")):
        prepared = prepare(on_cpu(model=model, batch=1, seq=8))
        assert (prepared.source, prepared.architecture, prepared.name) == ("folder", "BertForMaskedLM", model)


def test_pretrained_weights_of_a_folder(tmp_path: Path) -> None:
    made = prepare(tiny_request(BERT, seed=5))
    made.module.save_pretrained(tmp_path)
    random = prepare(on_cpu(model=str(tmp_path), batch=1, seq=8))
    loaded = prepare(
        on_cpu(model=str(tmp_path), batch=1, seq=8, weights="pretrained", dtype="bfloat16", attention="eager")
    )
    assert loaded.attention == "eager"
    for key, value in made.module.state_dict().items():
        assert torch.equal(loaded.module.state_dict()[key], value.to(torch.bfloat16))
    assert any(not torch.equal(random.module.state_dict()[key], v) for key, v in made.module.state_dict().items())
    assert loaded.module.training


def test_pretrained_weights_that_are_not_there(tmp_path: Path) -> None:
    prepare(tiny_request(BERT)).module.config.save_pretrained(tmp_path)
    message = message_of(on_cpu(model=str(tmp_path), weights="pretrained"), ModelError)
    assert "cannot load weights" in message
    assert "leave --weights out" in message


def test_pretrained_weights_of_another_shape(tmp_path: Path) -> None:
    prepare(tiny_request(BERT)).module.save_pretrained(tmp_path)
    request = on_cpu(model=str(tmp_path), weights="pretrained", settings=(("intermediate_size", "32"),))
    assert "cannot load weights" in message_of(request, ModelError)


CODE = """
from transformers import BertConfig, BertForMaskedLM
class OwnConfig(BertConfig):
    model_type = "very-own"
class OwnModel(BertForMaskedLM):
    config_class = OwnConfig
"""


def test_code_of_a_configuration_is_refused_unless_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "own_model"
    folder.mkdir()
    (folder / "own.py").write_text(CODE)
    content = {
        "model_type": "very-own", "architectures": ["OwnModel"], "vocab_size": 160, "hidden_size": 32,
        "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForMaskedLM": "own.OwnModel"},
        "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(content))
    message = message_of(on_cpu(model=str(folder)), ModelError)
    assert "code of its own" in message
    assert "--trust-remote-code" in message
    assert not (tmp_path / "modules").exists()
    prepared = prepare(on_cpu(model=str(folder), batch=1, seq=8, layers=1, trust_remote_code=True))
    assert (prepared.architecture, prepared.task, prepared.changes) == ("OwnModel", "masked-lm", ("layers 2 -> 1",))
    assert torch.isfinite(loss_of(prepared))


def test_known_models_run_without_the_code_they_bring(tmp_path: Path) -> None:
    content = {"model_type": "bert", "auto_map": {"AutoModelForMaskedLM": "nowhere.Model"}, "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert planned(model=str(tmp_path)).architecture == "BertForSequenceClassification"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{not json", "not JSON"),
        ("[1]", "not a JSON object but a list"),
        ("{}", "no model_type"),
        ('{"model_type": "brt"}', "did you mean bert"),
        ('{"model_type": "qqqqqqqqq"}', "a newer transformers may know it"),
        ('{"model_type": "bert", "hidden_size": "wide"}', "cannot build"),
        ('{"model_type": "bert", "hidden_size": 30}', "not a multiple"),
        ('{"model_type": "bert", "architectures": ["BertForQuestionAnswering"]}', "give --task; it has"),
        ('{"model_type": "videomae", "num_hidden_layers": 1}', "package.module:function"),
        ('{"model_type": "speech_to_text"}', "package.module:function"),
    ],
)
def test_a_configuration_that_cannot_be_used(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert said in message_of(on_cpu(model=str(tmp_path)), ModelError)


@pytest.mark.parametrize("model", ["./nowhere", "nowhere.json", "/nowhere/at/all"])
def test_a_path_that_is_not_there(model: str) -> None:
    assert "no such file or folder" in message_of(on_cpu(model=model), ModelError)


# -------------------------------------------------------------------------------------------------------------- the hub


@pytest.fixture
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network in tests")

    monkeypatch.setattr("socket.create_connection", refuse)


@pytest.mark.usefixtures("_no_network")
@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("bert-lage-uncased", "did you mean google-bert/bert-large-uncased"),
        ("llama", "did you mean meta-llama/Llama-3.1-8B?"),
        ("nobody/zzzzzzzz", "name a local folder"),
        ("no/such/model", "not a catalog name"),
        ("", "not a catalog name"),
    ],
)
def test_an_unknown_name_without_network(model: str, said: str) -> None:
    assert said in message_of(on_cpu(model=model), ModelError)


@pytest.mark.usefixtures("_no_network")
def test_the_hub_is_asked_for_a_catalog_name_only_when_told_to() -> None:
    assert "leave --hub out" in message_of(on_cpu(model="gpt2", hub=True), ModelError)


def test_a_switched_off_hub_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in message_of(on_cpu(model="nobody/zzzzzzzz"), ModelError)


def test_a_host_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "TIMEOUT_SECONDS", 0.05)
    release = threading.Event()
    waited_for: list[object] = []

    def hang(*_: object, **__: object) -> None:
        release.wait(60)
        waited_for.append("the connection")
        raise OSError("no answer")

    monkeypatch.setattr("socket.create_connection", hang)
    assert not configuration.hub_answers()
    assert waited_for == []
    release.set()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("RepositoryNotFoundError", "did you mean google-bert/bert-base-uncased"),
        ("GatedRepoError", "hf auth login"),
        ("EntryNotFoundError", "no config.json"),
        ("HfHubHTTPError", "try again"),
    ],
)
def test_what_the_hub_answers(monkeypatch: pytest.MonkeyPatch, error: str, said: str) -> None:
    import huggingface_hub.errors

    kind = getattr(huggingface_hub.errors, error)

    def fail(*_: object, **__: object) -> str:
        raise kind.__new__(kind, "what the hub says")

    monkeypatch.setattr(configuration, "hub_answers", lambda: True)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", fail)
    assert said in message_of(on_cpu(model="someone/bert-base-uncasd"), ModelError)


def test_a_model_of_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2}))
    asked = []

    def download(name: str, *_: object, **__: object) -> str:
        asked.append(name)
        return str(path)

    monkeypatch.setattr(configuration, "hub_answers", lambda: True)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    plan = planned(model="someone/bert-mini")  # an old configuration: the type is in the name
    assert (plan.source, plan.architecture) == ("hub", "BertForSequenceClassification")
    assert asked == ["someone/bert-mini"]


# ------------------------------------------------------------------------------------------------------- the user's own

FUNCTIONS = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 4)
    def forward(self, x, scale=None):
        return self.layer(x).sum()
def keywords():
    return Net(), {"x": torch.zeros(5, 3), "scale": None}
def positional():
    return Net(), (torch.zeros(5, 3),)
def listed():
    return [Net(), [torch.zeros(5, 3)]]
def tensor():
    return Net(), torch.zeros(5, 3)
def tokens():
    return Net(), {"input_ids": torch.zeros(2, 7, dtype=torch.long)}
def one():
    return Net()
def text():
    return Net(), "x"
def fails():
    raise ValueError("first line\\nsecond line")
class Holder:
    make = staticmethod(keywords)
number = 3
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an importable module of functions in the working directory."""
    (tmp_path / "own_functions.py").write_text(FUNCTIONS)
    (tmp_path / "broken_functions.py").write_text("import not_there_at_all")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_functions", raising=False)
    return "own_functions"


@pytest.mark.parametrize("function", ["keywords", "positional", "listed", "tensor", "Holder.make"])
def test_function(own_module: str, function: str) -> None:
    prepared = prepare(on_cpu(model=f"{own_module}:{function}"))
    assert (prepared.source, prepared.architecture, prepared.batch, prepared.attention) == ("function", "Net", 5, None)
    inputs = prepared.inputs
    out = prepared.module(**inputs) if isinstance(inputs, dict) else prepared.module(*inputs)
    out.backward()
    assert plan_of(on_cpu(model=f"{own_module}:{function}")) is None


def test_function_with_token_ids_has_a_length(own_module: str) -> None:
    prepared = prepare(on_cpu(model=f"{own_module}:tokens"))
    assert (prepared.batch, prepared.sequence_length) == (2, 7)


def test_function_in_another_data_type(own_module: str) -> None:
    prepared = prepare(on_cpu(model=f"{own_module}:keywords", dtype="bf16", inference=True))
    assert isinstance(prepared.inputs, dict)
    assert prepared.inputs["x"].dtype == next(prepared.module.parameters()).dtype == torch.bfloat16
    assert not prepared.module.training


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("own_functions:one", "returned Net"),
        ("own_functions:text", "inputs of type str"),
        ("own_functions:fails", "raised ValueError: first line second line"),
        ("own_functions:keyword", "did you mean keywords?"),
        ("own_functions:number", "not a function"),
        ("not_there:f", "No module named 'not_there'"),
        ("broken_functions:f", "No module named 'not_there_at_all'"),
    ],
)
@pytest.mark.usefixtures("own_module")
def test_a_function_that_cannot_be_used(function: str, said: str) -> None:
    assert said in message_of(on_cpu(model=function), ModelError)


@pytest.mark.parametrize(
    "others", [{"layers": 2}, {"settings": (("a", "1"),)}, {"task": "base"}, {"attention": "eager"}, {"seq": 4}]
)
def test_options_that_do_not_apply_to_a_function(own_module: str, others: dict[str, Any]) -> None:
    message = message_of(on_cpu(model=f"{own_module}:keywords", **others), UsageError)
    assert "leave it out" in message
