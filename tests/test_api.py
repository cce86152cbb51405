"""`opanatomy.profile` and `opanatomy.analyze` as a user of Python calls them, rightly and wrongly."""

from __future__ import annotations

from collections import UserDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import opanatomy
from opanatomy.errors import CaptureError, ModelError, OpanatomyError, OutputError, UsageError
from tests.handmade import training_step

X = torch.ones(3, 4)


def refused(kind: type[OpanatomyError], module: Any, inputs: Any, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        opanatomy.profile(module, inputs, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"inputs": None}, "the inputs are None"),
        ({"inputs": 5}, "the inputs are of type int"),
        ({"inputs": "text"}, "the inputs are of type str"),
        ({"module": len}, "the module is of type builtin_function_or_method"),
        ({"module": None}, "the module is None"),
        ({"module": nn.Linear}, "the class Linear - call it first"),
        ({"steps": 0}, "steps=0: must be at least 1"),
        ({"steps": 1.5}, "steps=1.5: must be a whole number"),
        ({"steps": None}, "steps=None: must be a whole number"),
        ({"warmup": -1}, "warmup=-1: must be at least 0"),
        ({"memory": "yes"}, "memory='yes': must be True or False"),
        ({"amp": "fp8"}, "amp='fp8': not known - one of bf16, fp16"),
        ({"optimizer": "lion"}, "optimizer='lion': not known - one of adamw"),
        ({"optimizer": "adamv"}, "optimizer='adamv': not known - did you mean adam? It is one of adamw, "),
        ({"optimizer": "adamw", "inference": True}, "inference=True has no backward: leave out optimizer='adamw'"),
        ({"trace": "t.txt"}, "must end in .json or .json.gz"),
        ({"trace": ""}, "the name is empty"),
        ({"trace": 3}, "a path is text, not of type int"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module, inputs = options.pop("module", nn.Linear(4, 4)), options.pop("inputs", X)
    assert said in refused(UsageError, module, inputs, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_trace_that_cannot_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "folder.json"
    folder.mkdir()
    assert "it is a folder" in refused(OutputError, nn.Linear(4, 4), X, trace=folder)
    assert "create it first" in refused(OutputError, nn.Linear(4, 4), X, trace=tmp_path / "none" / "t.json")
    assert "cannot write /proc/t.json" in refused(OutputError, nn.Linear(4, 4), X, trace="/proc/t.json")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_modules_that_cannot_be_watched() -> None:
    assert "weight has no shape yet" in refused(ModelError, nn.LazyLinear(4), X)
    assert "meta device" in refused(ModelError, nn.Linear(4, 4, device="meta"), X)
    assert "a scripted module takes no hooks" in refused(ModelError, torch.jit.script(nn.Linear(4, 4)), X)


def test_a_running_profiler_is_left_alone() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as running:
        said = refused(CaptureError, nn.Linear(4, 4), X)
        torch.ones(3) + 1
    assert "a torch profiler is running already" in said
    assert any(event.name == "aten::add" for event in running.events())


def test_what_was_run_is_told_and_the_trace_kept(tmp_path: Path) -> None:
    target = tmp_path / "t.json.gz"
    anatomy = opanatomy.profile(nn.Linear(4, 4), UserDict(input=X), trace=target)
    workload = anatomy.workload
    assert workload is not None
    assert (workload.batch, workload.inputs) == (3, ("input float32[3,4]",))
    assert anatomy.provenance.trace == "t.json.gz"
    assert [path.name for path in tmp_path.iterdir()] == ["t.json.gz"]
    assert opanatomy.analyze(target) == anatomy


# -------------------------------------------------------------------------------------------------------------- analyze


def test_analyze_takes_files_and_folders(tmp_path: Path) -> None:
    paths = []
    for number in range(2):
        trace = training_step()
        trace.metadata["distributedInfo"] = {"rank": number, "world_size": 2}
        paths.append(trace.write(tmp_path / f"rank{number}.json.gz"))
    assert opanatomy.analyze(str(paths[0])).provenance.trace == "rank0.json.gz"
    together = opanatomy.analyze(tmp_path)
    assert len(together.ranks) == 2
    assert len(opanatomy.analyze(paths).ranks) == 2


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        ("", "the name is empty"),
        (None, "a trace is a path, not None"),
        (5, "not of type int"),
        (b"x.json", "a path is text, not of type bytes"),
        ([], "no trace is given"),
        (["x.json", ""], "the name is empty"),
    ],
)
def test_analyze_of_no_path(trace: Any, said: str) -> None:
    with pytest.raises(UsageError, match=r"^analyze: ") as caught:
        opanatomy.analyze(trace)
    assert said in str(caught.value)


def test_analyze_of_a_folder_without_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OpanatomyError, match=r"no trace in the folder \."):
        opanatomy.analyze(".")
