"""No secret in any byte that is written: every verb and format of the parser, files, stdout and stderr."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from msgspec.structs import replace

import opanatomy
from opanatomy.__main__ import main
from opanatomy.capture.run.export import copy_redacted
from opanatomy.cli.parser import make_parser
from opanatomy.errors import OutputError
from opanatomy.pipeline import analyze_traces, summary_of_trace
from opanatomy.predict.workers import simulate_in_process
from opanatomy.records.workload import Capture, Environment, Workload
from opanatomy.report.formats import FORMATS
from opanatomy.report.formats.json import json_report
from opanatomy.trace.write import Annotated
from tests.support.made_trace import TraceBuilder, training_step
from tests.support.planted import FORMS, SPELLINGS, TOLD, TOLD_VALUES, VALUES, VARIABLES, leaks, leaks_in

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
    if not options:
        return [""]
    names = re.sub(r"^.*?: | \(.*$", "", options[0].help or "")
    return [word for word in re.findall(r"[a-z]+", names) if word != "or"]


#: Verbs whose reports are redacted before a format has them: one format of these.
ONCE = ("techniques", "compare", "run", "estimate")
EVERY = [(verb, name) for verb in verbs() if verb not in ONCE for name in formats_of(verb)]


def test_the_formats_are_those_of_the_help() -> None:
    for verb in ("profile", "analyze"):
        assert formats_of(verb) == list(FORMATS)
    assert formats_of("peaks") == ["terminal", "json"]


# ------------------------------------------------------------------------------------------------------- the plants


def spelled() -> list[str]:
    """Every secret in every spelling; those by form and those of the metadata are what they are."""
    known = [spell(value) for value in VALUES for spell in SPELLINGS.values()]
    return [*known, *FORMS, *(f"a {value} b" for value in (*FORMS, *TOLD_VALUES))]


def foreign_trace() -> TraceBuilder:
    """A trace of someone else with secrets in everything that holds a text."""
    trace = training_step()
    trace.metadata |= {**TOLD, "host_name": NAMED, "traceName": f"/home/x/{NAMED}.json", "told": spelled()}
    matrix = {"shapes": [[8, 4], [4, 2], []], "types": ["float", "float", "Scalar"]}
    for index, text in enumerate(spelled()):
        start = 120.0 + index % 10 * 0.1
        operator = trace.host(f"aten::mm {text}", start, 0.01, **matrix, constants=["", "", text])
        trace.annotation(f"annotation of {text}", start, 0.05)
        trace.host(f"opanatomy.module/{text}", start + 0.02, 0.04)
        trace.host("aten::mm", start + 0.03, 0.01, **matrix)
        trace.launch(130, 1000 + index)
        trace.kernel(f"kernel_{text}", 300 + index * 0.1, 0.05, 1000 + index, external_id=operator)
        trace.events[-1]["args"] |= {"Collective name": text, "dtype": text, "note": {text: [text]}, "apiKey": text}
        trace.events.append({"ph": "M", "name": "thread_name", "tid": index, "args": {"name": f"thread 9 ({text})"}})
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


def remembering(run: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """`run` once for the same arguments: an experiment that goes on follows its steps again, as slow as the first."""
    known: dict[str, list[Any]] = {}

    def remembered(*arguments: Any, **options: Any) -> list[Any]:
        key = repr((arguments, options))
        if key not in known:
            known[key] = list(run(*arguments, **options))
        return known[key]

    return lambda *arguments, **options: iter(remembered(*arguments, **options))


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_ceilings: None) -> Path:
    """A working folder with sources that have secrets, in a process whose environment has them."""
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache-{NAMED}"))
    # The same steps for each format: what is asserted is what is written.
    monkeypatch.setattr("opanatomy.predict.workers.simulate_in_process", remembering(simulate_in_process))
    sources = tmp_path / "sources"
    sources.mkdir()
    trace = foreign_trace().write(sources / f"trace-{NAMED}.json")
    with zipfile.ZipFile(sources / f"zip-{NAMED}.zip", "w") as archive:
        for rank in range(2):
            one = foreign_trace()
            one.metadata["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
            archive.writestr(f"{NAMED}-rank{rank}.json", one.text())
        archive.writestr(f"{NAMED}-rank2.json", "no trace")
    (sources / "old.json").write_text(json_report(summary_of_trace(trace).anatomy))
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
    options = ["--set", f"auth_token={SET}", "--batch", "1", "--seq", "8", "--suggest", "0", *cpu]
    return [
        ([folder, *options, "-f", name, "-o", f"report.{name}"], 0),
        (["leaking_model:leaking", *cpu, "-f", name, "--trace", "own.json"], 0),
        (["leaking_model:failing", *cpu, "-f", name], 1),
        (["leaking_model:cut", *cpu, "-f", name], 1),
        (["gpt2", "--set", f"auth_token={SET}", *cpu, "-f", name], 2),
        (["gpt2", "--set", VARIABLES["MAIL_PASS"], "-f", name], 2),
        ([f"https://me:{SET}@host.x/model", *cpu, "-f", name], 2),
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
    # What is redacted before a format has it, and what fails before, is the same in each of them.
    return commands if name == "json" else [commands[0], commands[3]]


def compare(sources: Path, name: str) -> Commands:
    """All formats of one comparison, too."""
    trace, archive = str(sources / f"trace-{NAMED}.json"), str(sources / f"zip-{NAMED}.zip")
    gate = ["--fail-if", f"memory.{NAMED} > 1GB"]
    return [
        *(([trace, archive, "-f", each], 0) for each in formats_of("compare") if each != "junit"),
        ([trace, trace, "-f", name, "-o", f"report.{name}", "--fail-if", "kernel_time > +0%"], 0),
        ([trace, archive, "-f", name, "--redact", *gate], 3),
        ([trace, str(sources / f"missing-{NAMED}.json"), "-f", name], 1),
        ([trace, archive, "-f", name, "--fail-if", f"{VARIABLES['MAIL_PASS']} > +5%"], 2),
        ([trace, archive, "-f", name, "--fail-if", f"time > +5{VARIABLES['MAIL_PASS']}"], 2),
    ]


def explain(sources: Path, name: str) -> Commands:
    old = str(sources / "old.json")
    return [
        ([f"aten::mm {NAMED}", f"kernel_{FORMS[0]}", VARIABLES["SHELL_SECRET"]], 1),
        (["aten::mm", f"aten::mm {NAMED}", "--report", old], 0),
        (["--unknown", old], 0),
        (["mm", "--report", str(sources / NAMED)], 1),
    ]


def catalog(sources: Path, name: str) -> Commands:
    return [(["bert", "-f", name], 0), ([NAMED, "-f", name], 1)]


def ceilings_(sources: Path, name: str) -> Commands:
    return [
        (["--device", "cpu", "--dtype", "float32", "-f", name], 0),
        (["--device", "cpu", "--dtype", VARIABLES["MAIL_PASS"], "-f", name], 2),
    ]


def techniques(sources: Path, name: str) -> Commands:
    """All formats of one experiment: what is written of it is redacted before a format has it."""
    folder, cpu = str(sources / NAMED), ["--device", "cpu"]
    options = ["--set", f"auth_token={SET}", "--batch", "1", "--seq", "8", "--only", "sgd", *cpu]
    ran = [*options, "--repetitions", "1", "--loss-steps", "1", "--folder", "one"]
    return [
        ([folder, *ran, "-f", name], 0),
        *(([folder, *ran, "-f", other, "--resume"], 0) for other in formats_of("techniques") if other != name),
        ([folder, *options, "--only", VARIABLES["MAIL_PASS"], "-f", name], 2),
        (["leaking_model:failing", "--only", "sgd", *cpu, "-f", name], 1),
        (["gpt2", "--set", f"auth_token={SET}", "--predict-only", *cpu, "-f", name], 1),
        ([f"https://me:{SET}@host.x/model", *cpu, "-f", name], 2),
    ]


def estimate(sources: Path, name: str) -> Commands:
    folder, small = str(sources / NAMED), ["--set", f"auth_token={SET}", "--batch", "1", "--seq", "8", "-f", name]
    return [
        ([folder, *small, "--on", "H100,A100"], 0),
        ([folder, *small, "--on", VARIABLES["MAIL_PASS"]], 2),
        (["leaking_model:leaking", "--on", "T4", "-f", name], 0),
        (["leaking_model:failing", "--on", "T4", "-f", name], 1),
    ]


def mcp_(sources: Path, name: str) -> Commands:
    """Its answers are tested in test_mcp.py."""
    return [([VARIABLES["MAIL_PASS"]], 2)]


def run_(sources: Path, name: str) -> Commands:
    """What it writes of a script is tested in test_run.py."""
    return [([str(sources / f"{NAMED}.py")], 2), (["--trace", f"{NAMED}.txt", str(sources / "old.json")], 2)]


#: A verb that is not here fails the test of it.
COMMANDS: dict[str, Callable[[Path, str], Commands]] = {
    "profile": profile, "analyze": analyze, "explain": explain, "peaks": ceilings_,
    "techniques": techniques, "compare": compare, "catalog": catalog, "mcp": mcp_, "run": run_,
    "estimate": estimate,
}  # fmt: skip


def run(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["opanatomy", *argv])
    try:
        return main(argv)
    except SystemExit as error:
        return int(str(error.code))


@pytest.mark.parametrize(("verb", "name"), [*EVERY, *((verb, "json") for verb in ONCE)])
def test_no_secret_is_written(
    verb: str, name: str, planted: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    sources, out = planted / "sources", planted / "out"
    commands = COMMANDS[verb](sources, name)
    if (verb, name) == ("analyze", "json"):  # traces are read by processes beside, as on any machine of two cores
        monkeypatch.setattr("opanatomy.parallel._cores", lambda: 2)
    for (arguments, code), (after, _) in zip(commands, [*commands[1:], ([], 0)], strict=True):
        assert run([verb, *arguments], monkeypatch) == code, (arguments, capfd.readouterr().err[-600:])
        said = capfd.readouterr()
        for stream in (said.out, said.err):
            assert leaks(stream.encode(), (*ALL, SET)) == [], arguments
        assert leaks_in(out, (*ALL, SET)) == {}, arguments
        for path in sorted(out.rglob("*"), reverse=True):
            assert NAMED not in path.name
            if "--resume" not in after:
                path.rmdir() if path.is_dir() else path.unlink()
    # The script of a page is kept too.
    kept = (path for path in planted.rglob("*") if path.is_file() and path.suffix != ".js")
    written = [path for path in kept if f"cache-{NAMED}" in str(path)]
    assert all(leaks(path.read_bytes(), (*ALL, SET)) == [] for path in written)
    assert bool(written) == (verb == "peaks")


def test_the_search_finds_what_is_planted(planted: Path) -> None:
    """Without the redaction each secret is in the sources, and in a report that is made without it."""
    assert leaks((planted / "sources" / f"trace-{NAMED}.json").read_bytes(), ALL) == sorted(ALL)
    assert leaks((planted / "sources" / "old.json").read_bytes(), ALL) == sorted(ALL)


def test_the_figures_stay(planted: Path) -> None:
    """Only texts change: all numbers of the report, row for row, are those of the trace."""
    trace = planted / "sources" / f"trace-{NAMED}.json"
    before, after = summary_of_trace(trace).anatomy, opanatomy.analyze(trace)
    timelines = [
        replace(
            side.timeline, gaps=tuple(replace(gap, name=None, before=None, after=None) for gap in side.timeline.gaps)
        )
        for side in (before, after)
    ]
    assert (before.ledger, timelines[0], before.step) == (after.ledger, timelines[1], after.step)
    assert [replace(row, kernel="", operators=()) for row in before.kernels] == [
        replace(row, kernel="", operators=()) for row in after.kernels
    ]
    figures = [(row.time_ns, row.calls, row.flops, row.operator_class) for row in before.operators]
    assert [(row.time_ns, row.calls, row.flops, row.operator_class) for row in after.operators] == figures


def test_the_python_entry_points(planted: Path) -> None:
    from leaking_model import leaking

    module, inputs = leaking()
    anatomy = opanatomy.profile(module, inputs, trace=planted / "out" / "own.json.gz", warmup=0)
    assert leaks(json_report(anatomy).encode(), ALL) == []
    assert leaks_in(planted / "out", ALL) == {}
    told = {check.quantity: check for check in anatomy.checks}["operator times"]
    assert (told.equal, told.unexplained) == (told.compared, ()), "names without secrets have their times"
    foreign = opanatomy.analyze(planted / "sources" / f"trace-{NAMED}.json")
    assert leaks(json_report(foreign).encode(), ALL) == []


def test_a_traceback_gives_nothing_away(planted: Path) -> None:
    command = [sys.executable, "-m", "opanatomy", "analyze", str(planted / f"missing-{NAMED}.json"), "--debug"]
    done = subprocess.run(
        command, capture_output=True, cwd=planted / "out", env={**os.environ, "CI_X": "1"}, check=False
    )
    assert (done.returncode, b"Traceback" in done.stderr, b"no such file" in done.stderr) == (1, True, True)
    assert leaks(done.stderr, ALL) == []


# --------------------------------------------------------------------------------------------------------- --redact

PEOPLE = (
    "alice-of-home",
    "secret_project",
    "gpu-node-17",
    "argument-string",
    "corp.internal",
    "bucket-name",
    "10.20.30.40",
)


@pytest.mark.parametrize("name", FORMATS)
def test_redact_holds_for_every_format(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    trace = training_step()
    trace.metadata |= {"host_name": "gpu-node-17", "user": "alice-of-home"}
    matrix = {"shapes": [[8, 4], [4, 2], []], "types": ["float", "float", "Scalar"]}
    for index, text in enumerate(
        ("/home/alice-of-home/x.py", "s3://bucket-name/x of node1.corp.internal (10.20.30.40)", "run on gpu-node-17")
    ):
        trace.host(f"custom::{text}", 150 + index, 0.5, **matrix, constants=["", "", "argument-string"])
        trace.launch(150.1 + index, 70 + index)
        trace.kernel(f"kernel of {text}", 700 + 10 * index, 5, 70 + index)
    trace.launch(130, 60)
    trace.kernel("triton_/opt/cache/secret_project/kernel_0", 660, 5, 60)
    folder = tmp_path / "alice-of-home" / "secret_project"
    folder.mkdir(parents=True)
    source = trace.write(folder / "gpu-node-17.json")
    assert run(["analyze", str(source), "-f", name, "--redact"], monkeypatch) == 0
    said = capfd.readouterr()
    assert leaks(said.out.encode(), PEOPLE) == []
    assert run(["compare", str(source), str(source), "-f", name, "--redact"], monkeypatch) == 0
    assert leaks(capfd.readouterr().out.encode(), PEOPLE) == []
    assert "opanatomy" in said.out or "operator" in said.out
    ranks = tmp_path / "ranks-of-alice-of-home"
    ranks.mkdir()
    for rank in range(2):
        trace.metadata["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
        trace.write(ranks / f"gpu-node-17-rank{rank}.json")
    assert run(["analyze", str(ranks), "-f", name, "--redact"], monkeypatch) == 0
    assert leaks(capfd.readouterr().out.encode(), PEOPLE) == []


WORKING = """
import torch
from torch.profiler import record_function

class Working(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
    def forward(self, x):
        with record_function("read s3://bucket-name/x of node1.corp.internal (10.20.30.40)"):
            return self.layer(x).sum()

def working():
    return Working(), {"x": torch.ones(4, 4)}
"""


def test_redact_holds_for_a_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "alice-of-home" / "secret_project"
    folder.mkdir(parents=True)
    (folder / "working_model.py").write_text(WORKING)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(folder)
    words = ["profile", "working_model:working", "--device", "cpu", "-f", "json", "--trace", "t.json"]
    assert run([*words, "-o", str(folder / "plain.json")], monkeypatch) == 0
    assert set(leaks((folder / "plain.json").read_bytes(), PEOPLE)) != set()
    assert leaks((folder / "t.json").read_bytes(), PEOPLE) != []
    assert run([*words, "--force", "--redact", "-o", str(folder / "report.json")], monkeypatch) == 0
    assert leaks((folder / "report.json").read_bytes(), PEOPLE) == []
    assert leaks((folder / "t.json").read_bytes(), PEOPLE) == []
    plain, redacted = (json.loads((folder / name).read_text()) for name in ("plain.json", "report.json"))
    assert plain["work"]["calls"] == redacted["work"]["calls"]


def test_the_report_of_the_redacted_trace_is_the_redacted_report(tmp_path: Path) -> None:
    trace = training_step()
    matrix = {"shapes": [[8, 4], [4, 2], []], "types": ["float", "float", "Scalar"]}
    trace.host("custom::named", 520, 5, **matrix, constants=["", "", "argument-string"])
    trace.host("custom::/home/alice-of-home/x.py", 530, 5, **matrix, constants=["", "", "3"])
    for index, start in enumerate((521, 531)):
        trace.launch(start, 80 + index)
        trace.kernel("ampere_sgemm_128x64_nn", 700 + 10 * index, 5, 80 + index)
    source = trace.write(tmp_path / "in.json")
    wanted = Annotated(path=tmp_path / "out.json", redact=True)
    redacted = analyze_traces([source], annotated=wanted, redact=True)
    again = analyze_traces([tmp_path / "out.json"], redact=True)
    assert redacted.operators == again.operators
    told = {row.operator: row.signature for row in again.operators if row.operator.startswith("custom")}
    assert told == {"custom::named": "float32[8,4], float32[4,2], -", "custom::<path>": "float32[8,4], float32[4,2], 3"}


# ------------------------------------------------------------------------------------------- as Kineto writes a trace

CAPTURE = Capture(version="0", command="x", created="", environment=Environment(), workload=Workload())


def copied(text: str) -> str:
    target = io.BytesIO()
    copy_redacted(io.BytesIO(text.encode()), target, CAPTURE)
    return target.getvalue().decode()


def test_a_trace_without_secrets_keeps_the_text_of_its_events() -> None:
    events = ",".join(
        f'\n  {{\n    "ph": "X", "name": "aten::mm", "ts": {number}.125,\n    "args": {{\n    }}\n  }}'
        for number in range(60_000)
    )
    head = '{\n  "schemaVersion": 1,\n  "host_name": "me",\n  "traceEvents": ['
    text = f'{head}{events}\n  ],"traceName": "/home/me/x.json" }}'
    told = copied(text)
    assert len(text) > 3 << 20, "several chunks"
    assert told[told.index('"traceEvents":[') + 15 : told.rindex("\n]")] == events
    assert list(json.loads(told)) == ["opanatomy", "schemaVersion", "traceEvents"]


def test_a_key_that_is_no_json_is_left_out_and_no_event_lost() -> None:
    """`add_metadata` writes a quote as it is; a key of the profiler is behind 2 MB of other keys."""
    metadata = f'"long": "{"x" * (2 << 20)}",\n"plain": "va/"lue",\n"host_name": "me",\n"with_stack": 1,'
    told = json.loads(copied(f'{{\n{metadata}\n"traceEvents": [\n  {{\n    "name": "a"\n  }}\n  ],"traceName": "x"}}'))
    assert (sorted(told), told["traceEvents"]) == (["opanatomy", "traceEvents", "with_stack"], [{"name": "a"}])


def test_a_trace_that_ends_early_is_an_error() -> None:
    with pytest.raises(OutputError, match="is truncated - free some space"):
        copied('{"schemaVersion": 1, "traceEvents": [\n  {\n    "name": "a')
