"""`opanatomy run`: scripts as they are, with and without it, and beside `record` set by hand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec import Struct

import opanatomy
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import Phase
from tests.command import ENVIRONMENT

SCRIPTS: Final = Path(__file__).parent / "scripts"
UNDER: Final = ("-m", "opanatomy", "run")
ON_TWO_RANKS: Final = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")


PASSES: Final = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
OF_THE_MODEL: Final = ("weights", "buffers", "gradients", "forward_activations", "autocast_weight_casts")


class Script(Struct, frozen=True, kw_only=True):
    """A script, and which of its lines are the loop's head and the end of a step, for a recorder set by hand."""

    name: str
    loop: str = r"for step\b.*:"
    end: str = r"optimizer\.step\(.*\)"
    arguments: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    stdin: str = ""
    code: int = 0


ROWS: Final = "".join(f"{place / 10} {place % 3} {place % 5} 1\n" for place in range(40))
IN_CI: Final = (
    Script(name="plain_loop"),
    Script(name="accumulation", loop=r"for number\b.*:", end=r"scaler\.step\(optimizer\)"),
    Script(name="transformers_trainer", loop=r"^trainer\.train", end=""),
    Script(name="gan", end=r"of_generator\.step\(\)"),
    Script(name="lbfgs", end=r"loss = optimizer\.step\(closure\)"),
    Script(name="compiled"),
    Script(name="ddp", launcher=ON_TWO_RANKS, loop=r"for epoch\b.*:"),
    Script(name="workers"),
    Script(name="raises", code=1),
    Script(
        name="reads_stdin", arguments=("--lr", "0.1", "--", "-m", "b", "--"), stdin=ROWS, code=3, loop=r"for line\b.*:"
    ),
)  # fmt: skip


def python(*words: str | Path, cwd: Path, stdin: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    """What a Python of its own did with these words."""
    return subprocess.run(
        [sys.executable, *map(str, words)], cwd=cwd, env={**os.environ, **ENVIRONMENT}, input=stdin,
        capture_output=True, text=True, timeout=240, check=False, **options,
    )  # fmt: skip


def under(script: Script, cwd: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """What the script did under `opanatomy run`, as its launcher starts it."""
    words = (*script.launcher, *UNDER, "--trace", "step.json.gz", "-o", "report.json", *options)
    return python(*words, SCRIPTS / f"{script.name}.py", *script.arguments, cwd=cwd, stdin=script.stdin)


def by_hand(script: Script, warmup: int, cwd: Path) -> list[Anatomy]:
    """The anatomy of the same steps, by a recorder whose calls stand in a copy of the script."""
    text = (SCRIPTS / f"{script.name}.py").read_text()
    if script.end:
        record = f"recorder = __import__('opanatomy').record(trace='hand.json.gz', steps=3, warmup={warmup})"
        made = re.sub(rf"^( *)({script.loop})$", rf"\1{record}\n\1recorder.start()\n\1\2", text, count=1, flags=re.M)
        made, ends = re.subn(rf"^( *)({script.end})$", r"\1\2\n\1recorder.step()", made, flags=re.M)
        assert ends == 1
    else:
        steps = f"steps=range({warmup + 1}, {warmup + 4})"
        made = text.replace(
            "callbacks=[Print()",
            f"callbacks=[Print(), __import__('opanatomy').TrainerCallback({steps}, check=True, output='hand.txt')",
        )
    assert made != text
    (cwd / "hand.py").write_text(made)
    done = python(*script.launcher, "hand.py", *script.arguments, cwd=cwd, stdin=script.stdin)
    traces = sorted(cwd.glob("hand*.json.gz"))
    assert traces, done.stderr
    return [opanatomy.analyze(trace) for trace in traces]


def counted(anatomy: Anatomy) -> Mapping[str, Any]:
    """What of an anatomy is exact: its steps, phases, calls, FLOPs, bytes, modules, memory, workload."""
    steps = sum(step.set_aside is None for step in anatomy.step.steps)  # a pause of the machine may be in one
    classes: dict[Any, tuple[float, float]] = {}
    for row in anatomy.operators:
        if row.phase not in PASSES:  # what lies between the steps is no step's to the callback
            continue
        key = (row.operator, row.signature, row.phase)
        calls, flops = classes.get(key, (0, 0))
        classes[key] = (calls + row.calls / steps, flops + (row.flops or 0) / steps)
    workload = anatomy.workload
    return {
        "steps": len(anatomy.step.steps),
        "phases": sorted(anatomy.step.phase_ns),
        "operators": classes,
        "modules": {
            (row.module, row.phase, row.operator_class): (row.flops or 0) / steps
            for row in anatomy.modules if row.phase in PASSES
        },
        "workload": (
            workload.model, workload.batch, workload.dtype, workload.amp, workload.optimizer, workload.accumulate,
            workload.parameters, workload.compiled,
        ),
        "memory": {
            row.component: row.measured_bytes for row in anatomy.memory.components if row.component in OF_THE_MODEL
        },
    }  # fmt: skip


@pytest.mark.parametrize("script", IN_CI, ids=lambda script: script.name)
def test_a_script_is_what_it_is(script: Script, tmp_path: Path) -> None:
    """Its output to the bit, exit code and traceback are those without; its steps are those of a recorder by hand."""
    folders = [tmp_path / name for name in ("bare", "under", "hand")]
    for folder in folders:
        folder.mkdir()
    bare = python(
        *script.launcher, SCRIPTS / f"{script.name}.py", *script.arguments, cwd=folders[0], stdin=script.stdin
    )
    followed = under(script, folders[1])
    assert bare.returncode == script.code, bare.stderr
    assert (followed.returncode, followed.stdout) == (bare.returncode, bare.stdout), followed.stderr
    mine = [line for line in followed.stderr.splitlines() if line.startswith(("opanatomy: ", "report: "))]
    recorded = re.search(r"steps (\d+) to (\d+) of the script recorded", followed.stderr)
    assert recorded, followed.stderr
    assert len(mine) == 2, mine
    if not script.launcher:  # whose own lines have times
        rest = [line for line in followed.stderr.splitlines() if line not in mine]
        assert rest == bare.stderr.splitlines()
    names = {path.name for path in folders[1].rglob("*.*")} - {path.name for path in folders[0].rglob("*.*")}
    traces = sorted(folders[1].glob("step*.json.gz"))
    assert names == {"report.json", *(trace.name for trace in traces)}
    anatomies = [opanatomy.analyze(trace) for trace in traces]
    hand = by_hand(script, int(recorded[1]) - 1, folders[2])
    assert len(anatomies) == len(hand) == (2 if script.launcher else 1)
    for found, expected in zip(anatomies, hand, strict=True):
        assert counted(found) == counted(expected)
        assert len(found.step.steps) == 3
        assert set(PASSES) <= set(found.step.phase_ns)
        assert sum(check.compared for check in found.checks)
        assert not [row for check in found.checks for row in check.differences if row.cause is None]
