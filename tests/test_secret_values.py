"""Secrets by value in other spellings, and values that only look like one: operators, modules, ranges."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler import record_function

import opanatomy
from opanatomy.capture.run.export import copy_redacted
from opanatomy.pipeline import analyze_traces
from opanatomy.records.workload import Capture, Environment, Workload
from opanatomy.report.formats.json import json_report
from opanatomy.trace import redact
from opanatomy.trace.redact import Texts
from opanatomy.trace.write import Annotated
from tests.handmade import HandMade, training_step
from tests.planted import leaks

CAPTURE = Capture(version="0", command="x", created="", environment=Environment(), workload=Workload())


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("AZURE_STORAGE_CONNECTION_STRING", "Name=me;AccountKey=Zm9vYmFyYmF6MTIz==;Suffix=x", "Zm9vYmFyYmF6MTIz=="),
        ("MSSQL_CONNECTION", "Server=tcp:h;User Id=u;Password=mssqlPw-99;", "mssqlPw-99"),
        ("ODBC", "Driver={x};Uid=u;Pwd=odbcPw-99;", "odbcPw-99"),
        ("JAVA_OPTS", "-Xmx1g -Djavax.net.ssl.trustStorePassword=change-it-77", "change-it-77"),
        ("PIP_EXTRA_INDEX_URL", "https://pypitokenuser1@host.x/simple", "pypitokenuser1"),
        ("npm_config__auth", "bnBtOmF1dGg9PT09", "bnBtOmF1dGg9PT09"),
        ("REDIS_URL", "redis://:redispw-22@host:6379/0", "redispw-22"),
    ],
)  # fmt: skip
def test_a_secret_inside_the_value_of_a_variable(
    name: str, value: str, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    told = Texts().text(f"read {secret} there")
    assert secret not in told
    assert "<redacted>" in told


@pytest.mark.parametrize(
    "value", ["wJalrXUtn/K7MDENG", "пароль-тайна-1", "ümlaut-tôken-9", "🔑🔑-key-emoji", "a passphrase of 5 words"]
)
@pytest.mark.parametrize(
    "spell",
    [
        str.upper, str.lower, ascii, lambda value: repr(value.encode()), lambda value: repr(repr(value.encode())),
        lambda value: json.dumps(value.upper()), lambda value: value.replace(" ", "\n"),
        lambda value: ascii(value).replace("\\", "/"),
    ],
)  # fmt: skip
def test_a_secret_in_other_letters(
    value: str, spell: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setenv("X_SECRET", value)
    told = Texts().text(f"x {spell(value)} y")
    assert re.fullmatch(r"""x ["'b]{0,4}<redacted>["']{0,3} y""", told), told


TOKEN = "hf_" + "AbCdEfGh1JkLmNoPqRsT"


@pytest.mark.parametrize(
    "text",
    [
        rf"a\n{TOKEN} b", f"https://h/?x%3D{TOKEN}", rf"a\x0a{TOKEN}", rf"a\u000a{TOKEN}", r"b'x\ntoken=abcd1234'",
        r"'x\napi_key=abcd1234'",
    ],
)  # fmt: skip
def test_a_secret_behind_an_escape(text: str) -> None:
    told = Texts().text(text)
    assert "<redacted>" in told
    assert leaks(told.encode(), (TOKEN, "abcd1234")) == []


def test_json_that_is_a_secret_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = '{"a": "json-thing-1"}'
    monkeypatch.setenv("X_SECRET", secret)
    trace = training_step()
    trace.host("aten::mm", 120, 0.1, shapes=[[2, 2]], types=["float"], constants=[secret])
    analyze_traces([trace.write(tmp_path / "a.json")], annotated=Annotated(path=tmp_path / "b.json"))
    assert leaks((tmp_path / "b.json").read_bytes(), (secret,)) == []


# ------------------------------------------------------------------------------------------------ no secrets at all

NO_SECRETS = {
    "CACHE_KEY": "aten::mm", "OP_KEY": "aten::addmm", "NODE_KEY": "AddmmBackward0", "SORT_KEY": "layer_norm",
    "PART_KEY": "self_attn", "STEP_TOKEN": "ProfilerStep", "OPT_KEY": "Optimizer.step", "A_KEY": "convolution",
    "PATH_KEY": "transformer.h.0.attn", "KIND_TOKEN": "LayerNorm",
}  # fmt: skip


def test_names_of_operators_and_modules_are_looked_for_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trace: HandMade = training_step()
    for place, value in enumerate(NO_SECRETS.values()):
        trace.host(value, 120 + place, 0.5, shapes=[[8, 4], [4, 2]], types=["float", "float"])
    path = trace.write(tmp_path / "a.json")
    before = json_report(opanatomy.analyze(path))
    for name, value in NO_SECRETS.items():
        monkeypatch.setenv(name, value)
    written = tmp_path / "b.json"
    assert json_report(analyze_traces([path], annotated=Annotated(path=written))) == before
    names = {event.get("name") for event in json.loads(written.read_text())["traceEvents"]}
    assert names >= set(NO_SECRETS.values())


@pytest.mark.parametrize(
    "value", ["key-value-1", "step-98765432", "layer_norm_8f3a9c2e", "aten-secret-7", "QwErTyZxCv"]
)
def test_a_secret_with_such_words_in_it_is_one(value: str) -> None:
    assert redact.is_worth(value)


# -------------------------------------------------------------------------------------------------- at profile time


class Reading(nn.Module):
    """Takes its secret out of the environment, and names ranges after it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        secret = os.environ.pop("POPPED_TOKEN", "popped-token-value-1")
        for name in (f"use {secret}", "use " + os.environ["QUOTED_SECRET"], 'say "hi", "pid": 3', '"traceEvents": ['):
            with record_function(name):
                x = self.layer(x)
        return x.sum()


def test_names_that_kineto_does_not_escape(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A quote in the name of a range is in Kineto's trace as it is, or an apostrophe: no range is lost."""
    secrets = {"POPPED_TOKEN": "popped-token-value-1", "QUOTED_SECRET": 'quo"ted\\back$lash`tick'}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "a.json"
    anatomy = opanatomy.profile(Reading(), torch.ones(2, 4), trace=path, warmup=0)
    spellings = (*secrets.values(), 'quo"ted/back$lash', "quo'ted/back$lash")
    assert leaks(path.read_bytes() + json_report(anatomy).encode(), spellings) == []
    names = [str(event.get("name")).replace("'", '"') for event in json.loads(path.read_text())["traceEvents"]]
    assert [names.count(name) for name in ("use <redacted>", 'say "hi", "pid": 3', '"traceEvents": [')] == [2, 1, 1]
    assert not [warning for warning in anatomy.warnings if "valid event" in warning]


@pytest.mark.parametrize(
    "line", ['"name": "%s",\n    "pid": 1', '"ph": "X", "cat": "cpu_op", "name": "%s", "pid": 1, "tid": 1']
)
@pytest.mark.parametrize(
    "raw",
    [
        'a quo"ted-secret-1 b',
        'quo"ted-secret-1',
        '", "pid": 3 quo"ted-secret-1',
        'tab\tquo"ted-secret-1',
        "quo'ted-secret-1",
    ],
)
def test_a_quote_in_a_name_of_either_form(line: str, raw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("X_SECRET", 'quo"ted-secret-1')
    text = '{"schemaVersion": 1, "traceEvents": [\n  {\n    ' + line % raw + '\n  },\n  {\n    "name": "b"\n  }\n  ]}'
    target = io.BytesIO()
    copy_redacted(io.BytesIO(text.encode()), target, CAPTURE)
    events = json.loads(target.getvalue())["traceEvents"]
    assert [event["name"] for event in events] == [re.sub("quo.ted-secret-1", "<redacted>", raw), "b"]
