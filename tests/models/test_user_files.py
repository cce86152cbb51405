"""`file.py:function` as the model: imported with what is next to it, and errors that say where in it they are."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from opanatomy.capture.model.workload import plan_of, prepare
from opanatomy.errors import ModelError
from opanatomy.predict.workers import followed, lever_context, run_job, run_jobs
from opanatomy.records.experiment import SimulatedStep
from tests.support.command import run
from tests.support.tiny import message_of, on_cpu

LAYERS = """
import torch
class Net(torch.nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layer = torch.nn.Linear(3, width)
    def forward(self, x):
        return self.layer(x).sum()
"""
NET = """
import torch
from layers import Net

def make():
    return Net(), torch.zeros(5, 3)

class Zoo:
    @staticmethod
    def make():
        import late
        return late.made()

def one():
    return Net()

def broken():
    return torch.zeros(2) @ torch.zeros(3, 3)

class Bad(Net):
    def forward(self, x):
        y = self.layer(x)
        return y @ y

def bad():
    return Bad(), torch.zeros(5, 3)

def needs(argument):
    return argument
"""
LATE = """
import torch
from layers import Net
def made():
    return Net(7), torch.zeros(6, 3)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with spaces in its name and files of the user's in it; the working directory is the one above."""
    folder = tmp_path / "my models"
    (folder / "zoo" / "inner").mkdir(parents=True)
    for name, text in {
        "layers.py": LAYERS,
        "net.py": NET,
        "late.py": LATE,
        "zoo/__init__.py": "",
        "zoo/inner/__init__.py": "",
        "zoo/inner/net.py": NET.replace("from layers", "from ..layers"),
        "zoo/layers.py": LAYERS.replace("=4", "=9"),
        "types.py": NET,
        "script.py": "import sys\n\nsys.exit(3)\n",
        "syntax.py": "import torch\n\ndef make(:\n",
        "missing.py": "import torch\nimport not_there_at_all\n",
        "raises.py": "x = 1\nx / 0\n",
    }.items():
        (folder / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    before, path = dict(sys.modules), list(sys.path)
    yield folder
    assert sys.path == path
    for name in set(sys.modules) - set(before):
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("model", "width", "batch"),
    [
        ("my models/net.py:make", 4, 5),
        ("{}/net.py:make", 4, 5),
        ("~/net.py:make", 4, 5),
        ("my models/../my models/net.py:Zoo.make", 7, 6),
        ("my models/types.py:make", 4, 5),
        ("my models/zoo/inner/net.py:make", 9, 5),
    ],
)
def test_a_function_of_a_file(
    folder: Path, model: str, width: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    model = model.format(folder)
    assert plan_of(on_cpu(model=model)) is None
    prepared = prepare(on_cpu(model=model))
    assert (prepared.source, prepared.name, prepared.architecture) == ("function", model, "Net")
    assert (prepared.module.layer.out_features, prepared.batch) == (width, batch)  # type: ignore[union-attr]
    assert sys.modules["types"].__file__ == os.path.join(os.path.dirname(os.__file__), "types.py")


def test_files_of_the_same_name_keep_apart(folder: Path) -> None:
    prepare(on_cpu(model="my models/net.py:make"))
    other = folder.parent / "other"
    other.mkdir()
    (other / "net.py").write_text(NET.replace("Net()", "Net(11)"))
    (other / "layers.py").write_text(LAYERS)
    module = prepare(on_cpu(model="other/net.py:make")).module
    assert module.layer.out_features == 11  # type: ignore[union-attr]
    # torch.compile and pickle look the module of a class up by its name.
    assert sys.modules[type(module).__module__].__file__ == str(other / "layers.py")
    assert prepare(on_cpu(model="my models/net.py:make")).module.layer.out_features == 4  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("net.py:make", "no file net.py - check the path"),
        ("my models/nett.py:make", "no file my models/nett.py - did you mean my models/net.py"),
        (
            "my models/net.py",
            "it names no function - pass the one that returns (module, inputs), such as my models/net.py:make",
        ),
        ("my models/net.py:make()", "'make()' does not name a function"),
        ("my models/syntax.py", "it names no function, and the file cannot be read ("),
        ("my models/net.py:mak", "no 'mak' in my models/net.py - did you mean make?"),
        ("my models/net.py:one", "my models/net.py:one (my models/net.py:14) returned Net"),
        ("my models/net.py:needs", "raised TypeError: needs() missing 1 required positional argument"),
        (
            "my models/net.py:broken",
            "cannot be multiplied (1x2 and 3x3) (my models/net.py:18) - try calling it on its own",
        ),
        (
            "my models/script.py:x",
            "cannot import my models/script.py: SystemExit 3 (my models/script.py:3) - put the code",
        ),
        ("my models/syntax.py:x", "SyntaxError: invalid syntax (my models/syntax.py:3) - fix it"),
        ("my models/missing.py:x", "No module named 'not_there_at_all' (my models/missing.py:2) - install it, or put"),
        ("my models/raises.py:x", "ZeroDivisionError: division by zero (my models/raises.py:2)"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_an_error_says_where_in_the_file_it_is(model: str, said: str) -> None:
    message = message_of(on_cpu(model=model), ModelError)
    assert said in message
    assert "\n" not in message


def test_a_package_of_a_name_that_is_taken(folder: Path) -> None:
    package = folder / "torch"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "net.py").write_text("import torch\n")
    message = message_of(on_cpu(model="my models/torch/net.py:x"), ModelError)
    assert f"its package torch has the same name as one already in use ({torch.__file__})" in message


def test_the_jobs_of_an_experiment_find_the_file(folder: Path) -> None:
    options = on_cpu(model="my models/net.py:make", optimizer="adamw")
    assert run_job(lever_context, options).on_cpu
    (step,) = (each.step for each in run_jobs(followed, [options]))
    assert isinstance(step, SimulatedStep)
    assert step.calls


def test_a_run_of_a_file_is_recorded_as_given(folder: Path) -> None:
    words = ("--device", "cpu", "--suggest", "0", "-f", "json")
    done = run("profile", "my models/net.py:make", *words, cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["workload"]["model"] == "my models/net.py:make"
    assert [path.name for path in folder.parent.glob("*.json.gz")] == ["net-make.trace.json.gz"]
    done = run("profile", "my models/net.py:make", *words, "--redact", "--no-trace", cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    assert "net.py" not in done.stdout
    assert "my models" not in done.stdout
    done = run("profile", "my models/net.py:bad", "--device", "cpu", cwd=folder.parent)
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert "the model failed in the forward phase: RuntimeError: " in said
    assert said.endswith("(my models/net.py:23) - use --debug for the traceback")
