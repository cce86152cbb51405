"""No secret in any byte that is written: every verb and format of the parser, files, stdout and stderr."""

from __future__ import annotations

import argparse
import json
import re
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest

from opanatomy.__main__ import main
from opanatomy.commands import ceilings
from opanatomy.commands.arguments import make_parser
from opanatomy.pipeline import analyze_trace
from opanatomy.report import REPORTERS
from opanatomy.report.json_report import json_report
from tests.handmade import HandMade, training_step
from tests.planted import FORMS, SPELLINGS, TOLD, TOLD_VALUES, VALUES, VARIABLES, leaks, leaks_in
from tests.test_ceilings import TINY as LITTLE

ALL = (*VALUES, *FORMS, *TOLD_VALUES)
#: A secret that can be part of a file's name.
NAMED = "plainsecretvalue77"
#: A value that only `--set auth_token=` tells.
SET = "only-on-the-command-line-8"
Commands: TypeAlias = "list[tuple[list[str], int]]"


def verbs() -> dict[str, argparse.ArgumentParser]:
    """The verbs of the parser."""
    actions = make_parser()._actions
    return dict(next(action for action in actions if isinstance(action, argparse._SubParsersAction)).choices)


def formats_of(verb: str) -> list[str]:
    """The formats that the help of a verb's `--format` names; the only one of a verb that has none is ``."""
    options = [action for action in verbs()[verb]._actions if "--format" in action.option_strings]
    return [word for word in re.findall(r"[a-z]+", options[0].help or "") if word != "or"] if options else [""]


EVERY = [(verb, name) for verb in verbs() for name in formats_of(verb)]


def test_the_formats_are_those_of_the_help() -> None:
    for verb in ("profile", "analyze"):
        assert formats_of(verb) == list(REPORTERS)
    assert formats_of("ceilings") == list(ceilings.FORMATS)


# ------------------------------------------------------------------------------------------------------- the plants


def spelled() -> list[str]:
    """Every secret in every spelling; those by form and those of the metadata are what they are."""
    known = [spell(value) for value in VALUES for spell in SPELLINGS.values()]
    return [*known, *FORMS, *(f"a {value} b" for value in (*FORMS, *TOLD_VALUES))]


def foreign_trace() -> HandMade:
    """A trace of someone else with secrets in everything that holds a text."""
    trace = training_step()
    trace.metadata |= {**TOLD, "host_name": NAMED, "traceName": f"/home/x/{NAMED}.json", "told": spelled()}
    matrix = {"shapes": [[8, 4], [4, 2], []], "types": ["float", "float", "Scalar"]}
    for place, text in enumerate(spelled()):
        start = 120.0 + place % 10 * 0.1
        operator = trace.host(f"aten::mm {text}", start, 0.01, **matrix, constants=["", "", text])
        trace.annotation(f"annotation of {text}", start, 0.05)
        trace.host(f"opanatomy.module/{text}", start + 0.02, 0.04)
        trace.host("aten::mm", start + 0.03, 0.01, **matrix)
        trace.launch(130, 1000 + place)
        trace.kernel(f"kernel_{text}", 300 + place * 0.1, 0.05, 1000 + place, external_id=operator)
        trace.events[-1]["args"] |= {"Collective name": text, "dtype": text, "note": {text: [text]}, "apiKey": text}
        trace.events.append({"ph": "M", "name": "thread_name", "tid": place, "args": {"name": f"thread 9 ({text})"}})
        frame = {"ph": "X", "cat": "python_function", "name": f"{text}.py(3): f", "ts": 5, "dur": 1, "args": {}}
        trace.events.append({**frame, "args": {"Call stack": text}, text: 1})
    trace.events.append({"ph": "X", "cat": NAMED, "name": "k", "ts": 300, "dur": 1, "args": {"stream": 1}})
    return trace


MODEL = f'''
import os
import torch
from torch.profiler import record_function

class Leaking(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleDict({{"{NAMED}": torch.nn.Linear(4, 4)}})
    def forward(self, x):
        for name in ("APP_SECRET", "MAIL_PASS", "SESSION_COOKIE", "SENTRY_DSN", "SHELL_SECRET"):
            with record_function("load " + os.environ[name]):
                x = torch.einsum("ij,jk->ik", x, self.layers["{NAMED}"].weight)
        torch.autograd._add_metadata_json("environ", __import__("json").dumps(dict(os.environ)))
        torch.autograd._add_metadata_json("plain", '"' + os.environ["MAIL_PASS"] + '"')
        return x.sum()

def leaking():
    return Leaking(), {{"x": torch.ones(4, 4)}}

def failing():
    raise RuntimeError("cannot log in with " + os.environ["DEPLOY_KEY"] + os.environ["MAIL_PASS"])

def cut():
    raise RuntimeError("x" * 205 + " " + os.environ["SENTRY_DSN"][-24:] + os.environ["SIGN_KEY"])
'''


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with sources that have secrets, in a process whose environment has them."""
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache-{NAMED}"))
    monkeypatch.setattr("opanatomy.device.measure.default_effort", lambda device: LITTLE)
    sources = tmp_path / "sources"
    sources.mkdir()
    trace = foreign_trace().write(sources / f"trace-{NAMED}.json")
    with zipfile.ZipFile(sources / f"zip-{NAMED}.zip", "w") as archive:
        for rank in range(2):
            one = foreign_trace()
            one.metadata["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
            archive.writestr(f"{NAMED}-rank{rank}.json", one.text())
        archive.writestr(f"{NAMED}-rank2.json", "no trace")
    (sources / "old.json").write_text(json_report(analyze_trace(trace)))
    (sources / NAMED).mkdir()
    configuration = {
        "model_type": "bert", "auth_token": None, "num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2,
        "intermediate_size": 16, "vocab_size": 40, "max_position_embeddings": 32, "architectures": ["BertForMaskedLM"],
    }  # fmt: skip
    (sources / NAMED / "config.json").write_text(json.dumps(configuration))
    (tmp_path / "leaking_model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "leaking_model", raising=False)
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    return tmp_path


# ----------------------------------------------------------------------------------------------------- the commands


def profile(sources: Path, name: str) -> Commands:
    folder, cpu = str(sources / NAMED), ["--device", "cpu"]
    options = ["--set", f"auth_token={SET}", "--batch", "1", "--seq", "8", *cpu]
    return [
        ([folder, *options, "-f", name, "-o", f"report.{name}"], 0),
        (["leaking_model:leaking", *cpu, "-f", name, "--trace", "own.json"], 0),
        (["leaking_model:failing", *cpu, "-f", name], 1),
        (["leaking_model:cut", *cpu, "-f", name], 1),
        (["gpt2", "--set", f"auth_token={SET}", *cpu, "-f", name], 2),
        (["gpt2", "--set", VARIABLES["MAIL_PASS"], "-f", name], 2),
        ([f"https://me:{SET}@host.x/model", *cpu, "-f", name], 1),
        (["gpt2", f"--{NAMED}", "-f", name], 2),
    ]


def analyze(sources: Path, name: str) -> Commands:
    trace, archive = str(sources / f"trace-{NAMED}.json"), str(sources / f"zip-{NAMED}.zip")
    commands: Commands = [
        ([trace, "-f", name], 0),
        ([trace, "-f", name, "-o", f"report.{name}", "--trace", "annotated.json.gz"], 0),
        ([trace, "-f", name, "--redact", "--trace", "redacted.json"], 0),
        ([archive, "-f", name], 0),
        ([archive, "-f", name, "--redact", "-o", f"ranks.{name}"], 0),
        ([str(sources / f"missing-{NAMED}.json"), "-f", name], 1),
        ([trace, "-f", VARIABLES["MAIL_PASS"]], 2),
        ([trace, "-f", name, "--phase", f"forward=({VARIABLES['MAIL_PASS']}"], 2),
    ]
    return commands


def explain(sources: Path, name: str) -> Commands:
    old = str(sources / "old.json")
    return [
        ([f"aten::mm {NAMED}", f"kernel_{FORMS[0]}", VARIABLES["SHELL_SECRET"]], 0),
        (["aten::mm", f"aten::mm {NAMED}", "--report", old], 0),
        (["--unknown", old], 0),
        (["mm", "--report", str(sources / NAMED)], 1),
    ]


def ceilings_(sources: Path, name: str) -> Commands:
    return [
        (["--device", "cpu", "--dtype", "float32", "-f", name], 0),
        (["--device", "cpu", "--dtype", VARIABLES["MAIL_PASS"], "-f", name], 2),
    ]


#: A verb that is not here fails the test of it.
COMMANDS: dict[str, Callable[[Path, str], Commands]] = {
    "profile": profile, "analyze": analyze, "explain": explain, "ceilings": ceilings_,
}  # fmt: skip


def run(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["opanatomy", *argv])
    try:
        return main(argv)
    except SystemExit as error:
        assert isinstance(error.code, int)
        return error.code


@pytest.mark.parametrize(("verb", "name"), EVERY)
def test_no_secret_is_written(
    verb: str, name: str, planted: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    sources, out = planted / "sources", planted / "out"
    for arguments, code in COMMANDS[verb](sources, name):
        assert run([verb, *arguments], monkeypatch) == code, (arguments, capfd.readouterr().err[-600:])
        said = capfd.readouterr()
        for stream in (said.out, said.err):
            assert leaks(stream.encode(), (*ALL, SET)) == [], arguments
        assert leaks_in(out, (*ALL, SET)) == {}, arguments
        for path in out.rglob("*"):
            assert NAMED not in path.name
            path.unlink()
    written = [path for path in planted.rglob("*") if path.is_file() and f"cache-{NAMED}" in str(path)]
    assert all(leaks(path.read_bytes(), (*ALL, SET)) == [] for path in written)
    assert bool(written) == (verb == "ceilings")
