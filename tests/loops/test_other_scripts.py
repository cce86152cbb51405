"""`opanatomy run` on scripts that do not train, or in which no optimizer of torch updates: as they are, by steps."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import opanatomy
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import Phase
from tests.support.command import UNDER, python

EXHAUSTIVE = pytest.mark.exhaustive
HEAD = """
import os, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
loader = DataLoader(TensorDataset(torch.randn(1600, 64)), batch_size=32)
"""
UPDATE = """
    for weight in model.parameters():
        weight.data.sub_(weight.grad, alpha=0.01)
        weight.grad = None
"""
INFERENCE = (
    HEAD
    + """
model.eval()
with torch.inference_mode():
    print(sum(float(model(x).sum()) for x, in loader))
"""
)
OWN_OPTIMIZER = (
    HEAD
    + """
for x, in loader:
    loss = (model(x) - x).square().mean()
    loss.backward()
"""
    + UPDATE
    + "print(float(loss.detach()))\n"
)
AUTOGRAD_GRAD = (
    HEAD
    + """
weights = list(model.parameters())
for x, in loader:
    loss = (model(x) - x).square().mean()
    for weight, gradient in zip(weights, torch.autograd.grad(loss, weights)):
        weight.data.sub_(gradient, alpha=0.01)
print(float(loss.detach()))
"""
)
IN_BACKWARD = (
    HEAD
    + """
optimizers = {weight: torch.optim.SGD([weight], lr=0.01) for weight in model.parameters()}
def update(weight):
    optimizers[weight].step()
    optimizers[weight].zero_grad()
for weight in optimizers:
    weight.register_post_accumulate_grad_hook(update)
for x, in loader:
    loss = (model(x) - x).square().mean()
    loss.backward()
print(float(loss.detach()))
"""
)
FUNCTIONAL = (
    HEAD
    + """
weights = dict(model.named_parameters())
def loss_of(weights, x):
    return (torch.func.functional_call(model, weights, x) - x).square().mean()
for x, in loader:
    gradients, loss = torch.func.grad_and_value(loss_of)(weights, x)
    weights = {name: (weight - 0.01 * gradients[name]).detach() for name, weight in weights.items()}
print(float(loss.detach()))
"""
)
TWO_MODELS = (
    HEAD
    + """
decoder = nn.Linear(64, 64)
with torch.no_grad():
    for x, in loader:
        y = decoder(model(x))
    print(float(y.sum()))
"""
)
TRACED = (
    HEAD
    + """
traced = torch.jit.trace(model.eval(), torch.ones(32, 64))
with torch.no_grad():
    for x, in loader:
        y = traced(x)
    print(float(y.sum()))
"""
)
COMPILED = (
    HEAD
    + """
compiled = torch.compile(model.eval(), backend="eager")
with torch.no_grad():
    for x, in loader:
        y = compiled(x)
    print(float(y.sum()))
"""
)
GENERATION = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=99)).eval()
for prompt in range(3):
    out = model.generate(torch.full((1, 4), prompt), max_new_tokens=16, do_sample=False, pad_token_id=0)
print(out.tolist())
"""
EVALUATION_FIRST = (
    HEAD
    + """
model.eval()
with torch.no_grad():
    for x, in loader:
        model(x)
model.train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, in loader:
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(float(loss.detach()))
"""
)
TAKES_OVER = (
    """
import os, sys
if "AGAIN" not in os.environ:
    os.environ["AGAIN"] = "1"
    os.execv(sys.executable, [sys.executable, *sys.argv])
assert "OPANATOMY_RUN" not in os.environ
"""
    + OWN_OPTIMIZER
)


def followed(code: str, folder: Path, *options: str) -> tuple[list[Anatomy], str]:
    """The anatomies of what is recorded of a script, and what is said; its output is that which it has alone."""
    for name in ("bare", "under"):
        (folder / name).mkdir()
        (folder / name / "train.py").write_text(code)
    bare = python("train.py", cwd=folder / "bare")
    done = python(*UNDER, *options, "train.py", cwd=folder / "under")
    assert (done.returncode, done.stdout) == (bare.returncode, bare.stdout), done.stderr
    assert bare.returncode == 0, bare.stderr
    assert not [line for line in done.stderr.splitlines() if "Traceback" in line or "Warning" in line]
    traces = sorted((folder / "under").glob("*.trace.json.gz"), key=lambda path: len(path.name))
    return [opanatomy.analyze(trace) for trace in traces], done.stderr


def ends(anatomy: Anatomy) -> str:
    """What ends a step, by the warning of the report."""
    said = [text for text in anatomy.warnings if text.startswith("no torch optimizer is used")]
    return said[0].removeprefix("no torch optimizer is used, so each step ends with ").partition(";")[0] if said else ""


@pytest.mark.parametrize(
    ("code", "end", "forwards"),
    [
        pytest.param(INFERENCE, "a call of Sequential", 1, id="inference"),
        pytest.param(TWO_MODELS, "a call of Sequential and of Linear", 2, id="two models", marks=EXHAUSTIVE),
        pytest.param(TRACED, "a call of TopLevelTracedModule", 1, id="traced", marks=EXHAUSTIVE),
        pytest.param(COMPILED, "a call of OptimizedModule", 1, id="compiled", marks=EXHAUSTIVE),
        pytest.param(GENERATION, "a call of GPT2LMHeadModel", 1, id="generation", marks=EXHAUSTIVE),
    ],
)
def test_calls_of_the_model_are_the_steps(code: str, end: str, forwards: int, tmp_path: Path) -> None:
    (anatomy,), said = followed(code, tmp_path)
    assert ends(anatomy) == end
    assert len(anatomy.step.steps) == 3
    assert set(anatomy.step.phase_ns) == {Phase.FORWARD}
    lines = said.splitlines()  # without a terminal the first screen, and where the whole is
    assert len(lines) < 60
    assert lines[-1] == "opanatomy: full report: opanatomy analyze train.trace.json.gz"
    assert anatomy.workload.inference
    products = [row for row in anatomy.operators if row.operator in ("aten::addmm", "aten::mm", "aten::linear")]
    assert products
    if forwards == 2:
        assert sum(row.calls for row in products) == 3 * anatomy.step.count


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(OWN_OPTIMIZER, id="own optimizer", marks=EXHAUSTIVE),  # which the one that takes over is
        pytest.param(AUTOGRAD_GRAD, id="autograd.grad", marks=EXHAUSTIVE),
        pytest.param(IN_BACKWARD, id="inside of backward"),
        pytest.param(FUNCTIONAL, id="torch.func", marks=EXHAUSTIVE),
    ],
)
def test_backwards_are_the_steps(code: str, tmp_path: Path) -> None:
    """Products and their FLOPs are those of a forward and a backward of the model on a batch of 32."""
    (anatomy,), _ = followed(code, tmp_path)
    assert ends(anatomy) == "a backward pass"
    assert len(anatomy.step.steps) == 3
    assert {Phase.FORWARD, Phase.BACKWARD} <= set(anatomy.step.phase_ns)
    assert not anatomy.workload.inference
    assert anatomy.workload.batch == 32
    flops = sum(row.flops or 0 for row in anatomy.operators if row.operator in ("aten::addmm", "aten::mm"))
    one = 2 * 32 * 64 * 256
    assert flops == pytest.approx(anatomy.step.count * (2 * one + 3 * one), rel=0.02)


def test_an_evaluation_before_the_training_is_not_the_training(tmp_path: Path) -> None:
    """Both are recorded; the report is of the last, and the clock of the training alone."""
    (before, after), said = followed(EVALUATION_FIRST, tmp_path)
    assert (set(before.step.phase_ns), ends(before)) == ({Phase.FORWARD}, "a call of Sequential")
    assert {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER} == set(after.step.phase_ns)
    assert ends(after) == ""
    assert "the script's steps have changed, so they are recorded again" in said
    assert len(re.findall("The anatomy of", said)) == 1
    run = after.run
    assert run is not None
    assert run.steps < 50


ALTERNATING = (
    HEAD
    + """
critic = nn.Linear(64, 1)
optimizers = torch.optim.Adam(model.parameters(), lr=1e-3), torch.optim.RMSprop(critic.parameters(), lr=1e-3)
for turn in range(4):
    for number in range(40):
        optimizer = optimizers[turn % 2]
        optimizer.zero_grad()
        (critic(model(torch.randn(32, 64)).detach()) if turn % 2 else model(torch.randn(32, 64))).mean().backward()
        optimizer.step()
        time.sleep(0.002)
"""
)


def test_networks_in_long_turns_are_recorded_each(tmp_path: Path) -> None:
    """Each report says how much of the run the other's steps take; a file for the second has its number."""
    anatomies, said = followed(ALTERNATING, tmp_path, "-o", "report.json")
    assert [anatomy.workload.optimizer for anatomy in anatomies] == ["adam", "RMSprop"]
    reports = [opanatomy.read(tmp_path / "under" / name) for name in ("report-2.json", "report.json")]
    for report, other in zip(reports, ("RMSprop (2 tensors)", "Adam (4 tensors)"), strict=True):
        assert isinstance(report, Anatomy)
        (caveat,) = [text for text in report.caveats if "each of which ends" in text]
        assert f"each of which ends with an update by {other}, take" in caveat
    assert said.count("report: ") == 2


def test_a_script_that_takes_over_its_process_is_followed_once(tmp_path: Path) -> None:
    (anatomy,), _ = followed(TAKES_OVER, tmp_path)
    assert ends(anatomy) == "a backward pass"


def test_a_process_that_is_taken_over_by_something_else_is_said(tmp_path: Path) -> None:
    code = "import os\nos.execv('/bin/echo', ['echo', 'other'])\n"
    anatomies, said = followed(code, tmp_path)
    assert not anatomies
    assert "nothing is recorded: the script replaced itself with /bin/echo, which opanatomy does not follow" in said


def test_a_recorder_needs_no_block(tmp_path: Path) -> None:
    """`start()` gives the recorder, and the end of the program ends it."""
    code = (
        HEAD
        + """
import opanatomy
recorder = opanatomy.record("step.json.gz", module=model).start()
for x, in loader:
    model(x).square().mean().backward()
    recorder.step()
"""
    )
    (tmp_path / "train.py").write_text(code)
    done = python("train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    anatomy = opanatomy.analyze(tmp_path / "step.json.gz")
    assert anatomy.run is not None
    assert anatomy.run.steps > 40
    short = code.replace("for x, in loader", "for x, in list(loader)[:2]").replace("step.json.gz", "short.json.gz")
    (tmp_path / "short.py").write_text(short)
    done = python("short.py", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr.startswith("opanatomy: record: the loop ended after iteration 2")
    assert len(done.stderr.splitlines()) == 1
    assert sys.executable
