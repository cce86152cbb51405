"""The handler of a profiler of the user's own: digests, figures, what is kept, beside a training that goes on."""

from __future__ import annotations

import gzip
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.profiler import tensorboard_trace_handler

import opanatomy
from tests.support.command import ENVIRONMENT
from tests.support.profiled_loop import train

#: What torch says of a schedule with several cycles, and of one without a warm-up.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning"),
    pytest.mark.filterwarnings("ignore:Profiler won't be using warmup:UserWarning"),
]


def test_each_cycle_has_a_trace_a_digest_and_its_figures(tmp_path: Path) -> None:
    """Figures are those of `analyze` of the kept file; a second handler gets the same trace."""
    told: list[str] = []
    figures: list[tuple[dict[str, Any], int]] = []
    handler = opanatomy.trace_handler(tmp_path / "runs", log=told.append, metrics=lambda *one: figures.append(one))
    board = tensorboard_trace_handler(str(tmp_path / "board"))

    def both(profiler: Any) -> None:
        handler(profiler)
        board(profiler)

    train(both, 12, wait=1, warmup=1, active=2, repeat=3)
    handler.close()
    traces = sorted((tmp_path / "runs").iterdir(), key=lambda path: int(path.name[4:].split(".")[0]))
    assert [path.name for path in traces] == [f"step{step}.trace.json.gz" for step in (4, 8, 12)]
    assert [step for _, step in figures] == [4, 8, 12]
    for path, text, (known, step) in zip(traces, told, figures, strict=True):
        anatomy = opanatomy.analyze(path)
        assert known == anatomy.metrics()
        lines = text.splitlines()
        assert len(lines) == 6
        assert lines[0].startswith(f"step {step}: ")
        assert " a step" in lines[1]
        assert known["steps"] == 1 or f"{known['steps']} steps" in lines[1]  # a pause sets one aside
        assert lines[2].startswith("  operator time: forward ")
        assert f"{path}; training was paused for" in lines[-1]
    copies = list((tmp_path / "board").iterdir())
    assert len(copies) == 3
    events = [len(json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]) for path in traces]
    assert sorted(len(json.loads(path.read_bytes())["traceEvents"]) for path in copies) == sorted(events)


def test_of_many_cycles_the_slow_one_is_kept(tmp_path: Path) -> None:
    """One of twelve; the first ones go when there are enough to compare them with."""
    told: list[str] = []
    handler = opanatomy.trace_handler(tmp_path, log=told.append, keep="slow", slower=8)
    train(handler, 12, slow=8, usual_s=0.05, wait=0, warmup=0, active=1, repeat=12)
    handler.close()
    kept = {path.name for path in tmp_path.iterdir()}
    assert "step9.trace.json.gz" in kept
    others = len(kept) - 1  # a busy machine may make another step slow
    assert others <= 2
    assert 9 - others <= sum("not kept (less than 8 times the median step time)" in text for text in told) <= 9


def test_a_trace_that_cannot_be_written_or_read_is_a_line_and_the_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    plan = {"wait": 0, "warmup": 0, "active": 1, "repeat": 1}
    with caplog.at_level(logging.INFO, logger="opanatomy"):
        train(opanatomy.trace_handler(tmp_path / "file" / "runs"), 2, **plan)
        handler = opanatomy.trace_handler(tmp_path / "runs", metrics=lambda figures, step: figures["nothing"])
        train(handler, 2, **plan)
        handler.close()
        late = opanatomy.trace_handler(tmp_path / "late")
        train(lambda one: (one.export_chrome_trace(str(tmp_path / "mine.json")), late(one)), 2, **plan)
    said = [record.message for record in caplog.records]
    assert "the trace of step 1 was not written" in said[0]
    assert said[1].startswith("step 1: ")  # to the logger
    assert said[2] == "the trace of step 1 was not reported: KeyError: 'nothing'"
    assert said[3].endswith("put this handler before others, which then get a copy")


@pytest.mark.parametrize(("arguments", "said"), [({"keep": "few"}, "keep='few'"), ({"slower": 1}, "slower=1")])
def test_what_is_no_argument(arguments: Any, said: str) -> None:
    with pytest.raises(opanatomy.UsageError, match=said):
        opanatomy.trace_handler(**arguments)


def test_the_end_of_a_program_waits_for_its_digests(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import opanatomy\nfrom tests.support.profiled_loop import train\n"
        "handler = opanatomy.trace_handler('runs', log=lambda text: print(text, flush=True))\n"
        "train(handler, 3, wait=0, warmup=1, active=1, repeat=1)\nprint('trained', flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "trained"
    assert lines[1].startswith("step 2: ")
    assert len(lines) == 7
