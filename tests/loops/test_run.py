"""`opanatomy run`: scripts as they are, with and without it, and beside `record` set by hand."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec import Struct

import opanatomy
from opanatomy.capture.loop.updates import Cycle
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import Phase
from tests.support.command import ENVIRONMENT, UNDER, python, run_code
from tests.support.paths import SCRIPTS

ON_TWO_RANKS: Final = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")


PASSES: Final = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
OF_THE_MODEL: Final = ("weights", "buffers", "gradients", "forward_activations", "autocast_weight_casts")


class Script(Struct, frozen=True, kw_only=True):
    """A script, and for a recorder set by hand the lines that are the loop's head and the end of a step.

    Where a framework has the loop, `edits` are patterns and what takes their place: `{record}` is the recorder.
    """

    name: str
    loop: str = r"for step\b.*:"
    end: str = r"optimizer\.step\(\)"
    edits: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    stdin: str = ""
    code: int = 0
    #: Nothing is recorded, for this reason.
    refused: str | None = None
    #: Whether torch's own optimizer makes the updates: those of another have no phase.
    has_optimizer: bool = True
    file: str = "{}.py"


#: A factor of an optimizer's, which is another one in each step.
FACTOR: Final = re.compile(r"-?\d+(?:\.\d+(?:e-?\d+)?|e-?\d+)")
#: The time and process of a line of torch's log.
TIMED: Final = re.compile(r"[-\d]+ \d\d:\d\d:\d\d(?:\.\d+)? [:\d]+")
ROWS: Final = "".join(f"{index / 10} {index % 3} {index % 5} 1\n" for index in range(40))
OF_TRAINER: Final = ((r"callbacks=\[Print\(\)", "callbacks=[Print(), {callback}"),)
IN_CI: Final = (
    Script(name="plain_loop"),
    Script(name="transformers_trainer", edits=OF_TRAINER),
    Script(name="gan", end=r"of_generator\.step\(\)"),
    Script(name="compiled"),
    Script(name="ddp", launcher=ON_TWO_RANKS, loop=r"for epoch\b.*:"),
    Script(name="raises", code=1),
    Script(
        name="reads_stdin", arguments=("--lr", "0.1", "--", "-m", "b", "--"), stdin=ROWS, code=3, loop=r"for line\b.*:"
    ),
)  # fmt: skip
#: Those of make test-scripts, which installs what most of them import.
OTHERS: Final = (
    Script(name="accumulation", loop=r"for number\b.*:", end=r"scaler\.step\(optimizer\)"),
    Script(name="lbfgs", end=r"loss = optimizer\.step\(closure\)"),
    Script(name="workers"),
    Script(name="with_accelerate", loop=r"for inputs\b.*:", edits=(
        (r"^( *)(for inputs\b.*:)$", r"\1recorder = {record}\n\1recorder.start()\n\1\2"),
        (r"^( *)(scheduler\.step\(\))$", r"\1\2\n\1accelerator.sync_gradients and recorder.step()"),
    )),
    Script(name="fsdp2", launcher=ON_TWO_RANKS),
    Script(name="with_lightning", edits=(
        (r"^(trainer = lightning\.Trainer\()$", "recorder = {record}\n\\1callbacks=[type('Hand', "
         "(lightning.Callback,), {{'on_train_start': lambda *_: recorder.start(), 'on_train_batch_end': lambda *_:"
         " recorder.step()}})()],"),
    )),
    Script(name="with_fastai", has_optimizer=False, edits=(  # its steps end with their backward
        (r"cbs=\[Print\(\)\]", "cbs=[Print(), type('Hand', (Callback,), {{'recorder': {record}, 'before_fit': lambda"
         " self: self.recorder.start(), 'after_backward': lambda self: self.recorder.step()}})()]"),
    )),
    Script(name="with_fastai", arguments=("torch",), edits=(
        (r"cbs=\[Print\(\)\]", "cbs=[Print(), type('Hand', (Callback,), {{'recorder': {record}, 'before_fit': lambda"
         " self: self.recorder.start(), 'after_step': lambda self: self.recorder.step()}})()]"),
    )),
    Script(name="timm_like", loop=r"for update\b.*:"),
    Script(name="trl_like", edits=OF_TRAINER),
    Script(name="with_peft"),
    Script(name="rl", loop=r"for iteration\b.*:"),
    Script(name="killed", code=-signal.SIGTERM),
    Script(name="forks", edits=(
        (r"^( *)(for step\b.*:)$", r"\1recorder = {record}\n\1recorder.start()\n\1\2"),
        (r"^    (optimizer\.step\(\))$", r"    \1\n    recorder.step()"),
    )),
    Script(name="profiles_itself", refused="the script profiles itself"),
    Script(name="package", arguments=("0.1",), file="-m", edits=()),
    Script(name="thread"),
    Script(name="notebook"),
)  # fmt: skip


def words_of(script: Script) -> tuple[str | Path, ...]:
    """The script as Python takes it, with its arguments."""
    named = ("-m", script.name) if script.file == "-m" else (SCRIPTS / f"{script.name}.py",)
    return *named, *script.arguments


def under(script: Script, cwd: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """What the script did under `opanatomy run`, as its launcher starts it."""
    words = (*script.launcher, *UNDER, "--force", "--trace", "step.json.gz", "-o", "report.json", *options)
    return python(*words, *words_of(script), cwd=cwd, stdin=script.stdin)


def by_hand(script: Script, warmup: int, cwd: Path) -> list[Anatomy]:
    """The anatomy of the same steps, by a recorder whose calls stand in a copy of the script."""
    record = f"__import__('opanatomy').record(trace='hand.json.gz', force=True, steps=3, warmup={warmup})"
    steps = f"steps=range({warmup + 1}, {warmup + 4})"
    callback = f"__import__('opanatomy').TrainerCallback({steps}, check=True, output='hand.txt')"
    edits = script.edits or (
        (rf"^( *)({script.loop})$", r"\1recorder = {record}\n\1recorder.start()\n\1\2"),
        (rf"^( *)({script.end})$", r"\1\2\n\1recorder.step()"),
    )
    file = SCRIPTS / ("package/training.py" if script.file == "-m" else f"{script.name}.py")
    text = file.read_text()
    for pattern, instead in edits:
        text, made = re.subn(pattern, instead.format(record=record, callback=callback), text, flags=re.M)
        assert made == 1, pattern
    if script.file == "-m":
        (cwd / script.name / file.name).write_text(text)
        done = python(*words_of(script), cwd=cwd)
    else:
        (cwd / "hand.py").write_text(text)
        done = python(*script.launcher, "hand.py", *script.arguments, cwd=cwd, stdin=script.stdin)
    traces = sorted(cwd.glob("hand*.json.gz"))
    assert traces, done.stderr
    return [opanatomy.analyze(trace) for trace in traces]


def counted(anatomy: Anatomy) -> Mapping[str, Any]:
    """What of an anatomy is exact: its steps, phases, calls, FLOPs, bytes, modules, memory, workload."""
    steps = sum(step.set_aside is None for step in anatomy.step.steps)  # a pause of the machine may be in one
    classes: dict[Any, tuple[int, int]] = {}
    for row in anatomy.operators:
        if row.phase not in PASSES:  # what lies between the steps is no step's to the callback
            continue
        key = (row.operator, FACTOR.sub("x", row.signature), row.phase)
        calls, flops = classes.get(key, (0, 0))
        classes[key] = (calls + row.calls, flops + (row.flops or 0))
    workload = anatomy.workload
    return {
        "steps": len(anatomy.step.steps),
        "phases": sorted(anatomy.step.phase_ns),
        "operators": {key: (calls / steps, flops / steps) for key, (calls, flops) in classes.items()},
        "modules": {
            (row.module, row.phase, row.operator_class): (row.flops or 0) / steps
            for row in anatomy.modules
            if row.phase in PASSES
        },
        "workload": (
            workload.model,
            workload.batch,
            workload.dtype,
            workload.amp,
            workload.optimizer,
            workload.accumulate,
            workload.parameters,
            workload.compiled,
        ),
        "memory": {
            row.component: row.measured_bytes for row in anatomy.memory.components if row.component in OF_THE_MODEL
        },
    }


@pytest.mark.parametrize(
    "script",
    [*IN_CI, *(pytest.param(script, marks=pytest.mark.exhaustive) for script in OTHERS)],
    ids=lambda script: script.name,
)
def test_a_script_is_what_it_is(script: Script, tmp_path: Path) -> None:
    """Its output to the bit, exit code and traceback are those without; its steps are those of a recorder by hand."""
    folders = [tmp_path / name for name in ("bare", "under", "hand")]
    for folder in folders:
        folder.mkdir()
        if script.file == "-m":
            shutil.copytree(SCRIPTS / script.name, folder / script.name)
    bare = python(*script.launcher, *words_of(script), cwd=folders[0], stdin=script.stdin)
    followed = under(script, folders[1])
    assert bare.returncode == script.code, bare.stderr
    assert (followed.returncode, followed.stdout) == (bare.returncode, bare.stdout), followed.stderr
    mine = [line for line in followed.stderr.splitlines() if line.startswith(("opanatomy: ", "report: "))]
    if not script.launcher:  # whose own lines have times
        # The last is torch's own, of a profiler that does not begin in the main thread.
        other = ("opanatomy: ", "report: ", "ERROR: External init callback")
        rest = [line for line in followed.stderr.splitlines() if not line.startswith(other)]
        assert [TIMED.sub("", line) for line in rest] == [TIMED.sub("", line) for line in bare.stderr.splitlines()]
    traces = sorted(folders[1].glob("step*.json.gz"))
    if script.refused:
        assert script.refused in mine[-1]
        assert not traces
        return
    recorded = re.search(r"steps (\d+) to (\d+) of the script recorded", followed.stderr)
    assert recorded, followed.stderr
    ends = script.code >= 0  # a signal leaves the trace alone
    assert len(mine) == 1 + ends, mine
    own = {path.name for path in folders[1].rglob("*.*") if path.suffix != ".pyc"}
    expected = {path.name for path in folders[0].rglob("*.*") if path.suffix != ".pyc"}
    assert own - expected == {*["report.json"] * ends, *(trace.name for trace in traces)}
    anatomies = [opanatomy.analyze(trace) for trace in traces]
    hand = by_hand(script, int(recorded[1]) - 1, folders[2])
    assert len(anatomies) == len(hand) == (2 if script.launcher else 1)
    for found, by in zip(anatomies, hand, strict=True):
        assert counted(found) == counted(by)
        assert len(found.step.steps) == 3
        known = set(PASSES) if script.has_optimizer else set(PASSES) - {Phase.OPTIMIZER}
        assert known <= set(found.step.phase_ns)
        assert sum(check.compared for check in found.checks)
        assert not [row for check in found.checks for row in check.differences if row.cause is None]


def test_nothing_is_left_in_the_process_of_a_script(tmp_path: Path) -> None:
    """After its end the script's process has what torch and Python put there, and nothing of ours."""
    code = """
import random, sys
from pathlib import Path
from tests.support.process_state import process
before = process()
from opanatomy.script import RunSettings, Script
import torch
settings = RunSettings(
    process=0, path=None, folder=".", trace=str(Path("step.json").absolute()), numbered=False, command="opanatomy run",
    steps=1, after=6, stop=False, memory=False, lines=False, check=True, redact=False, force=False, words=("--brief",),
)
script = Script(settings)
script.torch_is_there()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
while_it_runs = process()
script.end()
after = process()
same = [name for name in before if name not in ("variables",) and before[name] != after[name]]
print([name for name in same], before.keys() == after.keys(), bool(while_it_runs["steps"]), Path("step.json").exists())
"""
    done = run_code(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[] True True True"


@pytest.mark.parametrize(
    ("keys", "known", "steps"),
    [
        ("aaaa", 1, [0, 1, 2, 3]),
        ("abababab", 2, [3, 5, 7]),  # a GAN: known once its order came twice
        ("aaaaabaaaaabaaaaab", 2, [11, 17]),  # a critic that trains five times as often
        ("aaabaaabaaab", 2, [7, 11]),
        ("xy" + "ab" * 6, 4, [11, 13]),  # two that stepped once are not waited for any longer after eight
        ("a" * 12, 2, [8, 9, 10, 11]),  # and one that never steps for eight updates
        # One that steps rarely is no part of the steps until it comes; a cycle of up to 64 is found with it.
        ("a" * 10 + "b" + "a" * 10 + "b" + "a" * 10 + "b", 2, [8, 9, 21, 32]),
        ("a" * 100 + "b" + "a" * 10, 2, [*range(8, 100), 109, 110]),
        ("a" * 20 + "ab" * 4, 2, [*range(8, 21), 23, 25, 27]),  # after a warm-up
        ("x" * 12 + "a" * 5, 2, [8, 9, 10, 11]),  # before it
    ],
)
def test_steps_are_cycles_of_updates(keys: str, known: int, steps: list[int]) -> None:
    cycle = Cycle()
    assert [index for index, key in enumerate(keys) if cycle.ends_with(ord(key), known)] == steps


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "run: no script - write opanatomy run [options] train.py"),
        (("none.py",), "run: no script none.py - pass the path of a script"),
        (("--trace", "step.txt", "train.py"), "the name must end in .json or .json.gz"),
        (("-o", "taken.json", "train.py"), "cannot write taken.json: it already exists"),
        (("--steps", "0", "train.py"), "--steps"),
    ],
)
def test_what_cannot_be_run_is_one_line(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    """And nothing of the script has run."""
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    (tmp_path / "taken.json").touch()
    done = python(*UNDER, *words, cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert said in " ".join(done.stderr.split())
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "ran").exists()


LOOP: Final = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range({steps}):
    model(torch.ones(2, 4)).sum().backward()
    {update}
print("done")
"""


@pytest.mark.parametrize(
    ("steps", "update", "said"),
    [
        (3, "optimizer.step()", "the script ended after step 3, but steps were not steady yet - use --after 1"),
        (1, "optimizer.step()", "the script ran 1 optimizer step, too few to record step by step - wrap the part"),
        (30, "pass", "no torch optimizer step ran in the script's own process - use opanatomy.record() in the loop"),
    ],
)
def test_why_nothing_is_recorded_is_said(steps: int, update: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP.format(steps=steps, update=update))
    done = python(*UNDER, "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert said in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


PROFILES: Final = """
import torch
with {profiler} as profiler:
    torch.ones(2) + 1
"""


@pytest.mark.parametrize(
    ("profiler", "said"),
    [
        ("torch.profiler.profile()", "pass on_trace_ready=opanatomy.trace_handler('runs/') to its profile(...), or"),
        (
            "torch.profiler.profile(on_trace_ready=print)",
            "run opanatomy analyze on the traces that its on_trace_ready=",
        ),
        ("torch.autograd.profiler.profile()", "torch.autograd.profiler.profile call export_chrome_trace('trace.json')"),
        ("torch.autograd.profiler.profile(enabled=False)", "no torch optimizer step ran"),
    ],
)
def test_a_profiler_of_the_script_is_advised_what_it_has(profiler: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROFILES.format(profiler=profiler))
    done = python(*UNDER, "train.py", cwd=tmp_path)
    assert done.returncode == 0
    assert said in done.stderr


RARE: Final = """
import torch
model, other = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rare = torch.optim.SGD(other.parameters(), lr=0.1)
for step in range(40):
    optimizer.zero_grad()
    other(model(torch.randn(64, 32))).square().mean().backward()
    optimizer.step()
    if {when}:
        rare.step()
"""


@pytest.mark.parametrize("when", ["False", "step == 2", "step == 14", "step % 20 == 19"])
def test_an_optimizer_that_steps_rarely_blocks_nothing(when: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RARE.format(when=when))
    done = python(*UNDER, "--steps", "2", "--after", "10", "--no-check", "train.py", cwd=tmp_path)
    assert done.returncode == 0
    anatomy = opanatomy.analyze(tmp_path / "train.trace.json.gz")
    assert len(anatomy.step.steps) == 2


#: Warnings that point at a caller, through all that is wrapped in a script's process, in recorded and other steps.
WARNS: Final = r"""
import sys, warnings, torch
from torch.utils.data import DataLoader, IterableDataset
from torch.profiler import ProfilerActivity

def warn(*levels):
    for level in levels:
        warnings.warn(f"level {level}", DeprecationWarning, stacklevel=level + 1)

class Data(IterableDataset):
    def __len__(self):
        return 1

    def __iter__(self):
        warn(1, 3, 4, 5, 6)
        return iter([torch.ones(4)] * 3)

class Own(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, dict(lr=0.1))

    def step(self, closure=None):
        warn(1, 2, 3, 4, 5)
        for parameter in self.param_groups[0]["params"]:
            parameter.data.add_(parameter.grad, alpha=-0.1)

    def zero_grad(self, set_to_none=True):
        warn(1, 2)
        super().zero_grad(set_to_none)

class Model(torch.nn.Linear):
    def forward(self, x):
        warn(1, 3, 4)
        return super().forward(x)

class Function(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        warn(1, 2, 3)
        return x * 1

    @staticmethod
    def backward(context, gradient):
        warn(1)
        return gradient

if sys.argv[1] == "all":
    warnings.simplefilter("always")
else:
    warnings.simplefilter("error")
    for module in (r"torch\..*", "__main__"):
        warnings.filterwarnings("ignore", module=module)
model = Model(4, 4)
optimizer = Own([model.weight, model.weight])
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
scaler = torch.amp.GradScaler("cuda")
for step in range(10):
    print(step, file=sys.stderr)
    schedule.step(step)
    for x in DataLoader(Data()):
        loss = Function.apply(model(x)).sum()
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        scaler.scale(loss).backward(create_graph=True)
    torch.autograd.grad(model(x).sum(), [model.weight])
    scaler.step(optimizer)
    scaler.update()
activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
with torch.autograd.profiler.profile(use_device="cuda"):
    torch.ones(2) + 1
with torch.profiler.profile(activities=activities):
    torch.ones(2) + 1
"""


@pytest.mark.parametrize("shown", ["all", "errors"])
def test_a_warning_points_where_it_does_without_us(shown: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WARNS)
    alone = python("train.py", shown, cwd=tmp_path)
    under = python(*UNDER, "--after", "2", "-o", "step.json", "train.py", shown, cwd=tmp_path)
    ours = re.compile(r"opanatomy: |USDT:|report: |ERROR:.*DeviceProperties")
    said, expected = ([line for line in done.stderr.splitlines() if not ours.match(line)] for done in (under, alone))
    if alone.returncode:  # as a torch warns from elsewhere that the script's filters do not know: nothing is recorded
        said = [line for line in said if not line.startswith("opanatomy: ")]
    assert (under.returncode, said) == (alone.returncode, expected)
    assert (tmp_path / "step.json").exists() == (alone.returncode == 0)


def test_the_steps_that_are_asked_for_and_the_end_after_them(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP.format(steps=40, update="optimizer.step()"))
    done = python(*UNDER, "--steps", "2", "--after", "8", "--stop", "-f", "json", "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "steps 9 to 10 of the script recorded" in done.stderr
    anatomy = opanatomy.analyze(tmp_path / "train.trace.json.gz")
    assert len(anatomy.step.steps) == 2
    assert 1 <= (anatomy.step.unprofiled_count or 0) <= 3  # where the machine pauses in one it does not count


def test_no_secret_of_a_script_is_written(tmp_path: Path) -> None:
    """One in its arguments, and in a reason that torch.compile notes; its own output is the script's."""
    secret = "hunter2-of-the-database"
    lines = LOOP.format(steps=30, update="optimizer.step()").splitlines()
    lines[3:4] = [
        "import os",
        "class Model(torch.nn.Linear):",
        "    def forward(self, x):",
        f"        torch._dynamo.graph_break('{secret}')",
        "        return super().forward(x)",
        "model = torch.compile(Model(4, 4), backend='eager')",
    ]
    (tmp_path / "train.py").write_text("\n".join(lines))
    words = (*UNDER, "--trace", "step.json", "train.py", f"--password={secret}")
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env={**os.environ, **ENVIRONMENT, "DATABASE_PASSWORD": secret},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert secret not in done.stderr
    assert secret not in (tmp_path / "step.json").read_text()
    (broken,) = opanatomy.analyze(tmp_path / "step.json").run.graph_breaks  # type: ignore[union-attr]
    assert "train.py:" in broken.place
