"""Where a model comes from: local files, the Hub, a function of the user's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from opanatomy.capture.model import configuration
from opanatomy.capture.model.workload import prepare
from opanatomy.errors import ModelError, UsageError
from tests.support.tiny import BERT, loss_of, message_of, on_cpu, planned, tiny_request


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
    assert "its own code" in message
    assert "--trust-remote-code" in message
    assert not (tmp_path / "modules").exists()
    prepared = prepare(on_cpu(model=str(folder), batch=1, seq=8, layers=1, trust_remote_code=True))
    assert (prepared.architecture, prepared.task, prepared.changes) == ("OwnModel", "masked-lm", ("layers 2 -> 1",))
    assert torch.isfinite(loss_of(prepared))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{not json", "not JSON"),
        ("[1]", "a JSON list, not an object"),
        ("{}", "no model_type"),
        ('{"model_type": "brt"}', "did you mean bert"),
        ('{"model_type": "qqqqqqqqq"}', "a newer transformers may support it"),
        ('{"model_type": "bert", "hidden_size": "wide"}', "cannot build"),
        ('{"model_type": "bert", "hidden_size": 30}', "not a multiple"),
        ('{"model_type": "bert", "architectures": ["BertForQuestionAnswering"]}', "use --task; choose from"),
        ('{"model_type": "speech_to_text"}', "package.module:function"),
    ],
)
def test_a_configuration_that_cannot_be_used(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert said in message_of(on_cpu(model=str(tmp_path)), ModelError)


@pytest.mark.parametrize("others", [{}, {"settings": (("intermediate_size", "32"),)}], ids=["none", "another-shape"])
def test_pretrained_weights_that_cannot_be_loaded(tmp_path: Path, others: dict[str, Any]) -> None:
    module = prepare(tiny_request(BERT)).module
    (module if others else module.config).save_pretrained(tmp_path)
    message = message_of(on_cpu(model=str(tmp_path), weights="pretrained", **others), ModelError)
    assert "cannot load the weights" in message
    assert "leave --weights out" in message


# -------------------------------------------------------------------------------------------------------------- the hub


@pytest.fixture
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network in tests")

    monkeypatch.setattr("socket.create_connection", refuse)


@pytest.mark.usefixtures("_no_network")
@pytest.mark.parametrize(
    ("model", "others", "said"),
    [
        ("bert-lage-uncased", {}, "did you mean google-bert/bert-large-uncased"),
        ("nobody/zzzzzzzz", {}, "use a local folder"),
        ("no/such/model", {}, "not a catalog name"),
        ("", {}, "MODEL is empty"),
        ("./nowhere", {}, "no such file or folder"),
        ("nowhere.json", {}, "no such file or folder"),
        ("gpt2", {"hub": True}, "leave out --hub"),
    ],
)
def test_a_name_without_a_network(model: str, others: dict[str, Any], said: str) -> None:
    assert said in message_of(on_cpu(model=model, **others), ModelError)


def test_a_switched_off_hub_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in message_of(on_cpu(model="nobody/zzzzzzzz"), ModelError)


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

    # As if the Hub could be reached.
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

    # As if the Hub could be reached.
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
def still():
    net = Net()
    net.layer.eval()
    return net, {"input_ids": torch.zeros(2, 7, dtype=torch.long)}
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


def test_the_model_of_a_function_keeps_its_modes_and_takes_a_type(own_module: str) -> None:
    prepared = prepare(on_cpu(model=f"{own_module}:still"))
    assert [module.training for module in prepared.module.modules()] == [True, False]
    assert prepared.changes == ("1 of 2 modules are in evaluation mode, as the function left them",)
    assert (prepared.batch, prepared.sequence_length) == (2, 7)
    other = prepare(on_cpu(model=f"{own_module}:keywords", dtype="bf16", inference=True))
    assert isinstance(other.inputs, dict)
    assert other.inputs["x"].dtype == next(other.module.parameters()).dtype == torch.bfloat16
    assert not any(module.training for module in other.module.modules())


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    ("function", "others", "said"),
    [
        ("own_functions:one", {}, "returned Net"),
        ("own_functions:text", {}, "inputs of type str"),
        ("own_functions:fails", {}, "raised ValueError: first line second line"),
        ("own_functions:keyword", {}, "did you mean keywords?"),
        ("own_functions:number", {}, "not a function"),
        ("not_there:f", {}, "No module named 'not_there'"),
        ("broken_functions:f", {}, "No module named 'not_there_at_all'"),
        ("own_functions:keywords", {"layers": 2}, "leave it out"),
        ("own_functions:keywords", {"settings": (("a", "1"),)}, "leave it out"),
        ("own_functions:keywords", {"attention": "eager"}, "leave it out"),
        ("own_functions:keywords", {"seq": 4}, "leave it out"),
    ],
)
def test_a_function_that_cannot_be_used(function: str, others: dict[str, Any], said: str) -> None:
    assert said in message_of(on_cpu(model=function, **others), UsageError if others else ModelError)
