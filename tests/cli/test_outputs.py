"""Outputs are published at the end: whole or not there, and never over another's."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import opanatomy
from opanatomy.__main__ import main
from opanatomy.capture.run import export
from opanatomy.capture.run.export import TraceWriter, export_trace
from opanatomy.errors import OutputError
from opanatomy.io.files import OutputFile, output_file
from opanatomy.io.redact import remember_environment_secrets
from opanatomy.records.workload import Capture, Environment, Workload
from tests.support.command import left_in
from tests.support.made_trace import training_step


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return str(training_step().write(tmp_path / "step.json.gz"))


def fill(output: OutputFile, meanwhile: Callable[[], object], text: str = "mine") -> Path:
    with output.written() as partial:
        partial.write_text(text)
        meanwhile()
    return output.path


def make(path: Path, text: str = "new", **options: Any) -> Path:
    return fill(output_file(path, **options), lambda: None, text)


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
def test_nothing_is_written_over_and_what_is_there_is_whole(
    links: bool, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    make(Path("t.json"), "old")
    with pytest.raises(OutputError, match="it already exists - add --force or choose another name"):
        make(Path("t.json"))
    with output_file(Path("t.json"), force=True).written() as partial:
        partial.write_text("half")
        assert Path("t.json").read_text() == "old"
    with pytest.raises(FileNotFoundError):
        fill(output_file(Path("t.json"), force=True), Path("nowhere").unlink)
    assert make(Path("t.json"), numbered=True) == Path("t-2.json")
    # Something else makes the file meanwhile: its own stays, and ours has a number.
    fill(output_file(Path("d.json"), numbered=True), lambda: Path("d.json").write_text("another's"))
    said = r"cannot write e\.json: another process created it .*/here/e-2\.json$"
    with pytest.raises(OutputError, match=said):
        fill(output_file(Path("e.json")), lambda: Path("e.json").write_text("another's"))
    assert {name: Path(name).read_text() for name in left_in(here)} == {
        "t.json": "half",
        "t-2.json": "new",
        "d.json": "another's",
        "d-2.json": "mine",
        "e.json": "another's",
        "e-2.json": "mine",
    }


def test_what_a_killed_run_left_goes_a_day_later_and_a_forked_child_removes_nothing(here: Path) -> None:
    """Workers of a data loader outlive a run that is killed."""
    with output_file(Path("t.json")).written() as partial:
        partial.write_text("parent's")
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            assert left_in(here) == [partial.parent.name]
            for name in ("left", "new"):
                partial.parent.with_name(f".opanatomy-{name}.partial").mkdir()
            os.utime(here / ".opanatomy-left.partial", (1, 1))
            make(Path("other.json"))
    if not child:
        os._exit(0)
    assert left_in(here) == [".opanatomy-new.partial", "other.json", "t.json"]
    assert Path("t.json").read_text() == "parent's"


# ------------------------------------------------------------------------------------------------------------- commands

MODELS = """
import os, torch
from torch import nn

class Moves(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def forward(self, x):
        os.chdir("/")
        return self.layer(x)

X = torch.ones(2, 4)
def moves(): return Moves(), X
def plain(): return nn.Linear(4, 4), X
"""
PLAIN = ("profile", "output_models:plain", "--device", "cpu")


@pytest.fixture
def models(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "output_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(str(folder))
    return str(folder)


def test_a_model_that_changes_the_folder_moves_no_output(
    here: Path, models: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "output_models:moves", "--device", "cpu", "-o", "r.json"]) == 0
    assert "trace: output_models-moves.trace.json.gz" in capfd.readouterr().err
    os.chdir(here)
    assert left_in(here) == ["output_models-moves.trace.json.gz", "r.json"]
    assert json.loads(Path("r.json").read_text())["provenance"]["trace"] == "output_models-moves.trace.json.gz"


def test_without_a_trace_nothing_is_left_and_nothing_names_one(
    here: Path, models: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*PLAIN, "--no-trace", "-f", "json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["provenance"]["trace"] is None
    assert not re.search("^(?:trace|next):", err, re.MULTILINE)
    assert left_in(here) == []
    assert main([*PLAIN, "--no-trace", "--trace", "t.json"]) == 2
    assert "--no-trace contradicts --trace t.json - leave one of them out" in capfd.readouterr().err


def test_folders_get_the_default_names_with_a_number_before_the_ending(here: Path, models: str, trace: str) -> None:
    Path("there").mkdir()
    for _ in range(2):
        assert main([*PLAIN, "-o", "there", "-f", "json", "--trace", "made/new/"]) == 0
    assert left_in(here / "there") == ["output_models-plain-2.report.json", "output_models-plain.report.json"]
    traces = ["output_models-plain-2.trace.json.gz", "output_models-plain.trace.json.gz"]
    assert left_in(here / "made" / "new") == traces
    assert main(["analyze", trace, "-o", "out/", "--trace", "out/"]) == 0
    assert left_in(here / "out") == ["step.annotated.json.gz", "step.report.txt"]
    assert main(["analyze", "nowhere.json", "-o", "none/"]) == 1
    assert left_in(here) == ["made", "out", "there"], "a folder that was made for nothing goes"


def test_python_keeps_to_the_same_rules(here: Path) -> None:
    layer, x = nn.Linear(4, 4), torch.ones(2, 4)
    assert opanatomy.profile(layer, x).provenance.trace is None
    assert opanatomy.profile(layer, x, trace="t.json").provenance.trace == "t.json"
    before = Path("t.json").read_bytes()
    with pytest.raises(OutputError, match=r"cannot write t\.json: it already exists - pass force=True or choose"):
        opanatomy.profile(layer, x, trace="t.json")
    assert Path("t.json").read_bytes() == before
    opanatomy.profile(layer, x, trace="t.json", force=True)
    assert Path("t.json").read_bytes() != before
    assert left_in(here) == ["t.json"]


def test_an_error_of_the_model_is_not_called_one_of_the_trace(here: Path) -> None:
    class Reads(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * len(Path("weights.bin").read_bytes())

    for trace in (None, "t.json"):
        with pytest.raises(opanatomy.OpanatomyError, match=r"weights\.bin") as caught:
            opanatomy.profile(Reads(), torch.ones(2, requires_grad=True), trace=trace)
        assert "cannot write" not in str(caught.value)


# --------------------------------------------------------------------------------------------------------- full devices


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file grows beyond `size`: a write fails as it does on a full device, half done."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


FULL: list[tuple[int, tuple[str, ...], str]] = [
    (5_000, (*PLAIN, "--no-trace"), "the profiler could not write its trace"),
    (5_000, (*PLAIN,), "the profiler could not write its trace"),
    (1_000, ("analyze", "TRACE", "-o", "r.json"), "cannot write r.json: File too large - free some space"),
    (500, ("analyze", "TRACE", "--trace", "a.json.gz"), "cannot write a.json.gz: File too large - free some space"),
    (500, ("analyze", "ZIP"), "into the temporary folder"),
    (500, ("analyze", "-"), "cannot write the trace from a pipe into the temporary folder"),
]


@pytest.mark.parametrize(("size", "words", "said"), FULL, ids=[" ".join(row[1]) for row in FULL])
def test_a_device_that_fills_up_is_one_line(
    size: int,
    words: tuple[str, ...],
    said: str,
    here: Path,
    models: str,
    trace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.write(trace, "rank0.json.gz")
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with open(trace) as stdin, files_up_to(size):
        monkeypatch.setattr(sys, "stdin", stdin)
        code = main([{"TRACE": trace, "ZIP": str(tmp_path / "z.zip")}.get(word, word) for word in words])
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if not line.startswith(("  ", "no GPU in use"))]
    assert (code, out, len(lines)) == (1, "", 1), err
    assert said in lines[0]
    assert (left_in(here), left_in(folder)) == ([], [])


def test_a_profilers_file_that_stops_in_the_middle_is_noticed(here: Path) -> None:
    class Full:
        def export_chrome_trace(self, path: str) -> None:
            Path(path).write_bytes(b'{"traceEvents": [{"ph": "X"}, {"na')

    capture = Capture(version="0", command="", created="", environment=Environment(), workload=Workload())
    with pytest.raises(OutputError, match="the profiler could not finish writing its trace of this step - free"):
        export_trace(Full(), capture, here / "t.json")
    assert left_in(here) == []


class Exporting:
    """A profiler whose trace has a secret of the process, which is no more in its environment, and a path."""

    secret = "sW0rdfish-4711-xyz"

    def export_chrome_trace(self, path: str) -> None:
        event = '{\n    "ph": "X", "name": "%s %s /home/me/x.py", "ts": 1, "dur": 1\n  }'
        events = ",\n  ".join(event % (name, self.secret) for name in "ab")
        Path(path).write_text(f'{{"schemaVersion": 1, "traceEvents": [\n  {events}\n]}}\n')


@pytest.mark.parametrize("executable", [sys.executable, "/bin/false", "/nowhere"])
@pytest.mark.parametrize("everything", [False, True])
def test_a_large_trace_is_written_by_another_process_as_by_this_one(
    executable: str, everything: bool, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So small a trace would be written by this process.
    monkeypatch.setattr(export, "HANDED_OVER_BYTES", 0)
    monkeypatch.setenv("MY_API_KEY", Exporting.secret)
    remember_environment_secrets()
    monkeypatch.delenv("MY_API_KEY")
    capture = Capture(version="0", command="", created="", environment=Environment(), workload=Workload())
    export_trace(Exporting(), capture, here / "expected.json", everything=everything)
    monkeypatch.setattr(sys, "executable", executable)
    output = output_file(Path("t.json"), numbered=True)
    Path("t.json").write_text("made meanwhile")
    writer = TraceWriter(Exporting(), capture, output, everything=everything)
    writer.wait()
    assert output.path == Path("t-2.json")
    assert output.path.read_text() == Path("expected.json").read_text()
    assert Exporting.secret not in output.path.read_text()
    assert left_in(here) == ["expected.json", "t-2.json", "t.json"]


def test_what_the_other_process_cannot_write_is_said_here(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # So small a trace would be written by this process.
    monkeypatch.setattr(export, "HANDED_OVER_BYTES", 0)
    capture = Capture(version="0", command="", created="", environment=Environment(), workload=Workload())
    output = output_file(Path("t.json"))
    Path("t.json").write_text("made meanwhile")
    writer = TraceWriter(Exporting(), capture, output, everything=False)
    for _ in range(2):
        with pytest.raises(OutputError, match="another process created it during this run"):
            writer.wait()


def test_a_current_folder_that_is_gone_is_a_line(here: Path, trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    here.rmdir()
    for words in (("-o", "r.json"), ("-o", "out/"), ("--trace", "t.json")):
        assert main(["analyze", trace, *words]) == 1
        err = capsys.readouterr().err
        assert err.startswith("opanatomy: cannot ")
        assert err.count("\n") == 1
