"""Steps that several gloo ranks share, under each of the launchers."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import opanatomy
from opanatomy.__main__ import main
from opanatomy.capture.distributed.launched import Launched, launched
from opanatomy.capture.distributed.ranks import options_from_launcher, parallel_of
from opanatomy.errors import UsageError
from opanatomy.options import RunOptions
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import Phase
from opanatomy.report import read_anatomy
from tests.support import command
from tests.support.distributed_runs import (
    GPT2,
    UNLIKE_RANKS,
    Runs,
    contents,
    environment_of,
    free_port,
    profile_ranks,
    start_ranks,
)
from tests.support.paths import ROOT
from tests.support.tiny import BERT, tiny, tiny_words

PAGE = ROOT / "docs" / "distributed.md"


def documented(beginning: str) -> list[str]:
    """The words of the commands in the documentation that begin so."""
    lines = [line.strip() for line in PAGE.read_text().splitlines() if line.startswith("    ")]
    return [line for line in lines if line.startswith(beginning)]


def launch(beginning: str, model: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """What the documented command with a launcher did, of a tiny model and over a free port."""
    (line,) = documented(beginning)
    variables, words = [], shlex.split(line)
    while "=" in words[0]:
        variables.append(words.pop(0).partition("="))
    port = "--main_process_port" if words[0] == "accelerate" else "--master-port"
    words[words.index("-m") : words.index("-m")] = [port, str(free_port())]
    return started([*words, *tiny_words(model), "-f", "json"], cwd, {name: value for name, _, value in variables})


def started(words: list[str], cwd: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What a program next to this Python did."""
    (cwd / "unlike.py").write_text(UNLIKE_RANKS)
    return subprocess.run(
        [str(Path(sys.executable).parent / words[0]), *words[1:]],
        cwd=cwd,
        env={**os.environ, **command.ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


# ------------------------------------------------------------------------------------------------------ the launchers


def check_two_ranks(anatomy: Anatomy, folder: Path, parallel: str) -> None:
    """Two ranks trained together, and each left its own trace."""
    workload = anatomy.workload
    assert (workload.parallel, workload.world_size) == (parallel, 2)
    assert [(rank.rank, rank.world_size) for rank in anatomy.ranks] == [(0, 2), (1, 2)]
    for rank in anatomy.ranks:
        alone = opanatomy.analyze(folder / str(rank.trace))
        assert alone.ranks[0].rank == rank.rank
        assert alone.step.wall_ns == rank.wall_ns


@pytest.mark.slow
def test_torchrun(here: Path) -> None:
    done = launch("torchrun", BERT, here)
    assert done.returncode == 0, done.stderr
    check_two_ranks(read_anatomy(done.stdout), here, "ddp")
    assert sorted(path.name for path in here.glob("*.json.gz")) == [
        "bert-base-uncased.rank0.trace.json.gz",
        "bert-base-uncased.rank1.trace.json.gz",
    ]
    assert done.stderr.count("building google-bert/bert-base-uncased") == 1


@pytest.mark.slow
def test_accelerate_launch(here: Path) -> None:
    done = launch("ACCELERATE_USE_CPU=true accelerate", GPT2, here)
    assert done.returncode == 0, done.stderr
    check_two_ranks(read_anatomy(done.stdout), here, "fsdp2")


@pytest.mark.slow
def test_accelerate_launch_of_one_process_is_noticed(here: Path) -> None:
    words = "accelerate launch --cpu --num_processes 2 -m opanatomy profile unlike:slow -f json"
    done = started(words.split(), here, {"RANK": "0"})
    assert done.returncode == 0, done.stderr
    (warning,) = (text for text in read_anatomy(done.stdout).warnings if "accelerate" in text)
    assert warning.startswith("accelerate launch started 1 process instead of the requested 2")
    assert warning.endswith(
        "ACCELERATE_USE_CPU=true accelerate launch --multi_gpu --num_processes 2 --module opanatomy profile unlike:slow"
        " -f json"
    )


@pytest.mark.slow
def test_processes(here: Path) -> None:
    line = documented("opanatomy profile")[0]
    words = [*shlex.split(line)[1:], *tiny_words(BERT), "-f", "json", "--no-trace"]
    done = command.run(*words, cwd=here, timeout=280)
    assert done.returncode == 0, done.stderr
    anatomy = read_anatomy(done.stdout)
    assert (anatomy.workload.world_size, len(anatomy.ranks)) == (2, 2)
    assert "--processes 2" in str(anatomy.provenance.command)
    assert not list(here.iterdir())


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_rank_that_fails_ends_all_with_its_error(here: Path) -> None:
    (here / "unlike.py").write_text(UNLIKE_RANKS)
    done = command.run("profile", "unlike.py:broken", "--device", "cpu", "--processes", "2", cwd=here, timeout=280)
    assert done.returncode == 1
    assert done.stdout == ""
    said = [line for line in done.stderr.splitlines() if line.startswith("opanatomy:")]
    (line,) = (number for number, text in enumerate(UNLIKE_RANKS.splitlines(), 1) if "this rank is broken" in text)
    assert said == [
        "opanatomy: rank 1: the model failed in the forward phase: ValueError: this rank is broken"
        f" (unlike.py:{line}) - use --debug for the traceback"
    ]
    assert not list(here.glob("*.json.gz"))


NOTEBOOK = """
import json, torch, opanatomy, opanatomy.errors
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
before = [weight.clone() for weight in model.parameters()]
batch = torch.randn(4, 16)
model(batch).sum().backward()  # torch has computed in this process already
anatomy = opanatomy.profile(model, batch, processes=2, optimizer="adamw", trace="step.json.gz")
assert all(map(torch.equal, before, model.parameters()))
try:
    opanatomy.profile(model, torch.randn(4, 3), processes=2)
except opanatomy.errors.CaptureError as error:
    failure = str(error)
print(json.dumps([anatomy.workload.samples_together, [rank.trace for rank in anatomy.ranks], failure]))
"""


def test_processes_of_a_notebook(here: Path) -> None:
    done = command.run_code(NOTEBOOK, cwd=here, timeout=200)
    assert done.returncode == 0, done.stderr
    samples, traces, failure = json.loads(done.stdout)
    assert samples == 8
    assert traces == ["step.rank0.json.gz", "step.rank1.json.gz"] == sorted(path.name for path in here.iterdir())
    assert re.match(r"rank \d: the model failed in the forward phase: RuntimeError: (addmm: )?mat1 and mat2", failure)


# ---------------------------------------------------------------------------------------------------- what ranks share


@pytest.mark.parametrize(
    ("name", "parallel", "ranks"),
    [("ddp", "ddp", 2), ("ddp4", "ddp", 4), ("fsdp2", "fsdp2", 2), ("accumulate", "ddp", 2)],
)
def test_every_rank_is_in_the_report(distributed_runs: Runs, name: str, parallel: str, ranks: int) -> None:
    run = distributed_runs[name]
    workload = run.anatomy.workload
    assert [rank.rank for rank in run.anatomy.ranks] == list(range(ranks))
    assert (workload.parallel, workload.world_size, workload.batch) == (parallel, ranks, 2)
    assert workload.samples_together == 2 * ranks
    assert [contents(trace)["distributedInfo"]["rank"] for trace in run.traces] == list(range(ranks))
    assert all(rank.stdout == "" for rank in run.ranks)
    assert all(rank.stderr == "" for rank in run.ranks[1:])
    # Samples differ, and the number of steps does not.
    assert len({rank.trace_sha256 for rank in run.anatomy.ranks}) == ranks
    captures = [run.metadata(rank) for rank in range(ranks)]
    assert len({len(capture["unprofiled_step_ns"]) for capture in captures}) == 1
    # Every operator that computes is counted a second time, and every byte that is communicated.
    assert captures[1]["not_observed"] is None
    checks = {check.quantity: check for check in run.anatomy.checks}
    assert checks["call counts"].compared > 60
    assert checks["communicated bytes"].compared >= 2
    assert not [check for check in run.anatomy.checks if check.unexplained or check.not_checked]
    assert not run.anatomy.warnings
    # No path and no class of a wrapper.
    paths = {row.module for row in run.anatomy.modules}
    layer = "transformer.h.0" if name == "ddp4" else "bert.encoder.layer.0"
    assert any(path.startswith(layer) for path in paths)
    assert not [path for path in paths if "module" in path or "_wrapped" in path]
    modules = captures[0]["modules"]
    assert modules[layer] == ("GPT2Block" if name == "ddp4" else "BertLayer")
    assert not [kind for kind in modules.values() if kind.startswith(("FSDP", "Distributed"))]
    share = 2 if parallel == "fsdp2" else 1
    for trace in run.traces:
        components = {row.component: row.measured_bytes for row in opanatomy.analyze(trace).memory.components}
        assert components["weights"] == 4 * (workload.parameters or 0) // share


def of_several_kinds(line: str) -> Any:
    """A parameter: groups of shards, and layers that are cut, take seconds more than the rest."""
    costly = "hsdp" in line or " tp " in line
    return pytest.param(line, marks=pytest.mark.exhaustive if costly else ())


@pytest.mark.parametrize("line", [of_several_kinds(line) for line in documented("opanatomy profile")[1:]])
def test_documented_commands_of_ranks(line: str, tmp_path: Path) -> None:
    """As on each rank of their processes."""
    _, _, model, *words = shlex.split(line)
    ranks = int(words[words.index("--processes") + 1])
    heads = ("--set", "num_key_value_heads=2") if "tp" in words else ()
    run = profile_ranks(ranks, model, *words, *tiny_words(model), *heads, folder=tmp_path / "ranks")
    workload = run.anatomy.workload
    parallel = words[words.index("--parallel") + 1] if "--parallel" in words else "ddp"
    assert (workload.parallel, workload.world_size, len(run.anatomy.ranks)) == (parallel, ranks, ranks)
    assert workload.samples_together == (2 if parallel == "tp" else 2 * ranks)
    assert run.metadata(ranks - 1)["not_observed"] is None
    assert not run.anatomy.warnings
    assert not [check for check in run.anatomy.checks if check.unexplained]
    messages = [check.compared for check in run.anatomy.checks if check.quantity == "communicated bytes"]
    assert (sum(messages) > 0) is (parallel != "tp")
    assert {"forward", "backward"} <= {row.phase for row in run.anatomy.classes}
    assert ("recompute" in {row.phase for row in run.anatomy.classes}) is ("checkpointing" in parallel)
    assert opanatomy.analyze(run.folder).workload == workload


#: Of a part of the report alone tests/cli/test_docs_run.py holds what is printed.
@pytest.mark.parametrize("line", [line for line in documented("opanatomy analyze") if "--section" not in line])
def test_documented_commands_of_clusters(
    line: str, distributed_runs: Runs, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = distributed_runs["ddp4"]
    shutil.copytree(
        run.folder, here / "ranks", ignore=lambda _, names: {name for name in names if ".trace." not in name}
    )
    assert main([*shlex.split(line)[1:], "-f", "json"]) == 0
    anatomy = read_anatomy(capsys.readouterr().out)
    assert [rank.rank for rank in anatomy.ranks] == [0, 1, 2, 3]
    assert (anatomy.waiting, anatomy.communication) == (run.anatomy.waiting, run.anatomy.communication)


# --------------------------------------------------------------------------------------------------------- own loops

LOOP = """
import json, torch, opanatomy
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer = accelerator.prepare(model, optimizer)
with opanatomy.record("step.json.gz") as recorder:
    for _ in range(8):
        loss = model(torch.randn(4, 16)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        recorder.step()
anatomy = recorder.anatomy
rank = anatomy.ranks[0]
print(json.dumps([
    rank.rank, rank.world_size, rank.trace, anatomy.workload.parallel, anatomy.workload.architecture,
    sorted({row.module for row in anatomy.modules}), sorted({row.phase for row in anatomy.classes} - {"other"}),
    [difference.operator for check in anatomy.checks for difference in check.differences], anatomy.warnings,
    [check.compared for check in anatomy.checks if check.quantity == "communicated bytes"],
]))
shared = opanatomy.profile(model, torch.randn(4, 16), trace="shared.json.gz")
print(json.dumps([shared.ranks[0].rank, shared.ranks[0].trace, shared.workload.parallel, len(shared.warnings)]))
torch.distributed.destroy_process_group()
"""


def test_a_loop_records_itself_on_every_rank(tmp_path: Path) -> None:
    """And a profile of its module is that of a rank too."""
    ended = [fork.wait() for fork in start_ranks(2, code=LOOP, cwd=tmp_path)]
    assert [rank.returncode for rank in ended] == [0, 0], [rank.stderr for rank in ended]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{name}.rank{rank}.json.gz" for name in ("shared", "step") for rank in range(2)
    ]
    for number, rank in enumerate(ended):
        loop, shared = (json.loads(line) for line in rank.stdout.splitlines())
        assert loop == [
            number,
            2,
            f"step.rank{number}.json.gz",
            "ddp",
            "Sequential",
            ["0", "1", "2"],
            [Phase.BACKWARD, Phase.FORWARD, Phase.OPTIMIZER],
            [],
            [],
            [1],
        ]
        assert shared == [number, f"shared.rank{number}.json.gz", "ddp", 0]


# ------------------------------------------------------------------------------------------------- launch environments


def test_places_among_the_processes_of_a_launcher() -> None:
    place = Launched(rank=1, world_size=4, local_rank=1, local_world_size=4)
    assert launched(environment_of(1, 4, 1)) == place
    assert launched({"PMI_RANK": "1", "PMI_SIZE": "4"}) == place
    assert launched({}) is None
    assert launched({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}) is None
    assert launched({"WORLD_SIZE": "4"}) is None


def test_what_accelerate_was_told_beside_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    options = options_from_launcher(RunOptions(model="m"))
    assert (options.amp, options.accumulate) == ("bf16", 4)
    options = options_from_launcher(RunOptions(model="m", amp="fp16", accumulate=2))
    assert (options.amp, options.accumulate) == ("fp16", 2)
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR")
    with pytest.raises(UsageError, match="use compile=True instead"):
        options_from_launcher(RunOptions(model="m"))


def test_how_accelerate_was_told_to_share(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parallel_of(RunOptions(model="m")) == "ddp"
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(UsageError, match="--fsdp_version 2"):
        parallel_of(RunOptions(model="m"))
    monkeypatch.setenv("FSDP_VERSION", "2")
    assert parallel_of(RunOptions(model="m")) == "fsdp2"
    assert parallel_of(RunOptions(model="m", parallel="ddp")) == "ddp"
    monkeypatch.setenv("FSDP_ACTIVATION_CHECKPOINTING", "true")
    assert parallel_of(RunOptions(model="m")) == "fsdp2+checkpointing"
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(UsageError, match="DeepSpeed"):
        parallel_of(RunOptions(model="m"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--parallel fsdp2", "--parallel fsdp2 needs several processes - add --processes 2, or start them with"),
        ("--bucket-view", "--bucket-view needs several processes"),
        ("--processes 2 --parallel hsdp", "not possible with 2 processes"),
        ("--processes 2 --parallel fsdp2 --bucket-mb 1", "works only with DDP - leave out --parallel fsdp2"),
        ("--processes 2 --device cuda:0", "--device cuda:0 would apply to all processes"),
        ("--processes 3 --device cpu", "--processes 3: a launcher has already started 2 processes - leave it out"),
    ],
)
def test_steps_that_cannot_be_shared_are_refused(here: Path, words: str, message: str) -> None:
    environment = environment_of(0, 2, 1) if "3" in words else None
    done = command.run("profile", *tiny(BERT)[:-2], *words.split(), cwd=here, environment=environment)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_model_without_a_plan_cannot_be_cut(here: Path) -> None:
    forks = start_ranks(2, "profile", *tiny(BERT, "--parallel", "tp", "--no-trace"), cwd=here)
    first, second = (fork.wait() for fork in forks)
    assert (first.returncode, second.returncode) == (2, 2)
    assert "--parallel tp: BertForMaskedLM has no tensor-parallel plan - use --parallel ddp or" in first.stderr
    assert "opanatomy: rank 1: --parallel tp: BertForMaskedLM has no tensor-parallel plan" in second.stderr
