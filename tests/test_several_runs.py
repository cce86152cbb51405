"""`profile --runs N`: fresh processes, a report each, the median one shown; what was finished is kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from opanatomy.api import comparison_of
from opanatomy.capture.run.progress import NullProgress
from opanatomy.cli.repeat import Repetition, Run, median_run, repeated
from opanatomy.devices.overrides import Overrides
from opanatomy.errors import CaptureError
from opanatomy.options import RunOptions
from opanatomy.pipeline import analyze_trace
from opanatomy.predict.workers import JobFailed
from opanatomy.report.gates import gates_of, judged
from tests.command import run, run_code

TRACES = Path(__file__).parent / "traces"

TINY = {
    "architectures": ["BertForSequenceClassification"], "model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 200, "max_position_embeddings": 64,
}  # fmt: skip


#: The command, whose fresh processes are forks of one that has imported torch already.
FORKED = """
import multiprocessing, sys
from opanatomy.predict import workers
workers._context = lambda: multiprocessing.get_context("fork")
from opanatomy.__main__ import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def several_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, str, str]:
    """The folder in which three runs were made, and what the command said."""
    folder = tmp_path_factory.mktemp("several")
    (folder / "config.json").write_text(json.dumps(TINY))
    command = run_code(
        FORKED, "profile", "config.json", "--batch", "1", "--seq", "8", "--runs", "3", "-o", "runs", "-f", "json",
        cwd=folder,
    )  # fmt: skip
    return folder, command.returncode, command.stdout, command.stderr


def test_runs_are_reports_in_a_folder_and_the_median_is_shown(several_runs: tuple[Path, int, str, str]) -> None:
    folder, code, out, err = several_runs
    assert code == 0, err
    names = [f"run-{number}.report.json" for number in (1, 2, 3)]
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "runs"]
    assert sorted(file.name for file in (folder / "runs").iterdir()) == names
    texts = {name: (folder / "runs" / name).read_text() for name in names}
    times = {name: json.loads(text)["step"]["unprofiled_wall_ns"] for name, text in texts.items()}
    middle = sorted(times, key=lambda name: times[name])[1]
    assert out == texts[middle]
    assert f"shown is {middle}" in err
    assert err.count("run-1.report.json to run-3.report.json") == 1
    assert len({json.loads(text)["provenance"]["begin_unix_ns"] for text in texts.values()}) == 3


def test_runs_are_one_side_of_a_comparison(several_runs: tuple[Path, int, str, str], tmp_path: Path) -> None:
    folder = several_runs[0]
    shutil.copytree(folder / "runs", tmp_path / "same")
    comparison = comparison_of([folder / "runs", tmp_path / "same"])
    assert [side.runs for side in comparison.sides] == [3, 3]
    assert judged(comparison, gates_of(["time > +0%"])).gates[0].met


def test_a_run_that_fails_keeps_those_before_it(
    several_runs: tuple[Path, int, str, str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = TRACES / "bert_cpu.json.gz"
    begun: list[str] = []

    def captured(job: object, options: RunOptions, path: str, command: str) -> None:
        begun.append(path)
        if len(begun) == 3:
            raise JobFailed("its process was ended by SIGKILL")
        shutil.copy(trace, path)

    monkeypatch.setattr("opanatomy.cli.repeat.run_job", captured)
    (here / "runs").mkdir()
    (here / "runs" / "run-2.report.json").write_text("another's")
    kept: list[Run] = []
    repetition = Repetition(
        options=RunOptions(model="m"), runs=4, folder=here / "runs", traces=here, command="c", ceilings=Overrides()
    )
    with pytest.raises(CaptureError, match=r"^run 3 of 4: its process was ended by SIGKILL$"):
        repeated(repetition, NullProgress(), kept.append)
    assert [run.report.name for run in kept] == ["run-1.report.json", "run-3.report.json"]
    assert (here / "runs" / "run-2.report.json").read_text() == "another's"
    assert sorted(file.name for file in here.glob("*.gz")) == ["run-1.trace.json.gz", "run-3.trace.json.gz"]
    assert not (here / "runs" / "run-4.report.json").exists()


@pytest.mark.parametrize(("times", "shown"), [((5, 9), 9), ((4, 1, 3, 2), 3), ((3, 1, 2), 2), ((1,), 1)])
def test_of_an_even_number_of_runs_the_slower_middle_one_is_shown_and_judged(
    times: tuple[int, ...], shown: int
) -> None:
    """By the faster of two runs a gate on the time would judge the better one, always."""
    anatomy = analyze_trace(TRACES / "bert_cpu.json.gz")
    steps = [replace(anatomy.step, unprofiled_wall_ns=ns) for ns in times]
    runs = [Run(report=Path("a.json"), anatomy=replace(anatomy, step=step)) for step in steps]
    assert median_run(runs).step_ns == shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--runs", "2"], "--runs 2 keeps a report of each run: give a folder for them, -o runs/"),
        (["--runs", "2", "-o", "report.json"], "-o report.json: --runs 2 needs a folder"),
        (["--runs", "2", "-o", "runs/", "--trace", "a.json.gz"], "--trace a.json.gz: --runs 2 needs a folder"),
        (["--runs", "2", "-o", "runs/", "--processes", "2"], "--runs 2 starts each run itself"),
        (["--runs", "0", "-o", "runs/"], "--runs 0: must be at least 1"),
    ],
)
def test_runs_that_have_no_place_are_refused(words: list[str], says: str, here: Path) -> None:
    command = run("profile", "gpt2", *words, cwd=here)
    assert command.returncode == 2
    assert says in command.stderr
    assert list(here.iterdir()) == []
