"""Outputs are published at the end: whole or not there, and never over another's."""

from __future__ import annotations

import errno
import json
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import opanatomy
from opanatomy.__main__ import main
from opanatomy.errors import OutputError
from opanatomy.trace.files import OutputFile, numbered_name, output_file, temporary
from tests.handmade import training_step


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return str(training_step().write(tmp_path / "step.json.gz"))


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def make(path: Path, text: str = "new", **options: Any) -> Path:
    output = output_file(path, **options)
    with output.written() as partial:
        partial.write_text(text)
    return output.path


# -------------------------------------------------------------------------------------------------------------- claims


def test_three_at_once_that_want_one_name_get_three(here: Path) -> None:
    outputs = [output_file(Path("t.json.gz"), numbered=True) for _ in range(3)]
    with outputs[0].written() as first, outputs[1].written() as second, outputs[2].written() as third:
        for number, partial in enumerate((first, second, third)):
            partial.write_text(str(number))
    assert {name: Path(name).read_text() for name in left_in(here)} == {
        "t-2.json.gz": "1", "t-3.json.gz": "0", "t.json.gz": "2",
    }  # fmt: skip
    assert [str(output.path) for output in outputs] == ["t-3.json.gz", "t-2.json.gz", "t.json.gz"]


def test_only_force_overwrites_and_the_old_file_is_whole_until_then(here: Path) -> None:
    make(Path("t.json"), "old")
    with pytest.raises(OutputError, match="it exists already - add --force or choose another name"):
        make(Path("t.json"))
    assert make(Path("t.json"), numbered=True) == Path("t-2.json")
    with output_file(Path("t.json"), force=True).written() as partial:
        partial.write_text("half")
        assert Path("t.json").read_text() == "old"
    assert Path("t.json").read_text() == "half"
    with pytest.raises(FileNotFoundError), output_file(Path("t.json"), force=True).written() as partial:
        os.unlink(partial.write_text("less") and "nowhere")
    assert Path("t.json").read_text() == "half"
    assert left_in(here) == ["t-2.json", "t.json"]


def test_a_name_that_something_else_took_meanwhile(here: Path) -> None:
    Path("t-2.json").write_text("another's")
    said = r"cannot write t\.json: it was made by something else .* is in /.*/here/t-3\.json$"
    with pytest.raises(OutputError, match=said):
        _write_while_another_does(output_file(Path("t.json")), Path("t.json"))
    assert [Path(name).read_text() for name in ("t.json", "t-2.json", "t-3.json")] == ["another's", "another's", "mine"]


def test_what_a_killed_run_left_is_removed_a_day_later(here: Path) -> None:
    with output_file(Path("t.json")).written() as partial:
        for name in ("left", "new"):
            partial.parent.with_name(f".opanatomy-{name}.partial").mkdir()
        os.utime(here / ".opanatomy-left.partial", (1, 1))
        assert make(Path("other.json")) == Path("other.json")
        partial.write_text("x")
    assert left_in(here) == [".opanatomy-new.partial", "other.json", "t.json"]


def test_a_folder_changed_meanwhile_moves_nothing(here: Path, tmp_path: Path) -> None:
    output = output_file(Path("t.json"))
    with output.written() as partial:
        os.chdir(tmp_path)
        partial.write_text("x")
    assert output.target == here / "t.json"
    assert left_in(here) == ["t.json"]
    assert left_in(tmp_path) == ["here"]


def test_a_folder_that_is_gone(here: Path) -> None:
    here.rmdir()
    with pytest.raises(OutputError, match=r"cannot write t\.json: "):
        make(Path("t.json"))


def test_a_forked_child_publishes_and_removes_nothing(here: Path) -> None:
    """Workers of a data loader outlive a run that is killed."""
    with output_file(Path("t.json")).written() as partial:
        partial.write_text("parent's")
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            assert left_in(here) == [partial.parent.name]
            assert partial.read_text() == "parent's"
    if not child:
        os._exit(0)
    assert left_in(here) == ["t.json"]


def test_a_file_system_without_hard_links(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    assert make(Path("t.json"), "first") == Path("t.json")
    with output_file(Path("d.json"), numbered=True).written() as partial:
        partial.write_text("mine")
        Path("d.json").write_text("another's")
    assert {name: Path(name).read_text() for name in left_in(here)} == {
        "t.json": "first", "d.json": "another's", "d-2.json": "mine",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "second"),
    [
        ("gpt2.trace.json.gz", "gpt2-2.trace.json.gz"),
        ("Llama-3.1-8B.trace.json.gz", "Llama-3.1-8B-2.trace.json.gz"),
        ("a/b.c/step.report.json", "a/b.c/step-2.report.json"),
        ("x.html", "x-2.html"),
        ("x", "x-2"),
    ],
)
def test_numbers_go_before_the_ending(name: str, second: str) -> None:
    assert str(numbered_name(Path(name), 2)) == second


# ------------------------------------------------------------------------------------------------------------- commands

MODELS = """
import os, signal, torch
from torch import nn

class Moves(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def forward(self, x):
        os.chdir("/")
        return self.layer(x)

class Killed(Moves):
    def forward(self, x):
        os.kill(os.getpid(), signal.SIGKILL)

X = torch.ones(2, 4)
def moves(): return Moves(), X
def killed(): return Killed(), X
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


def test_an_interrupt_between_the_two_outputs_says_which_is_there(
    here: Path, trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("opanatomy.cli.output.show", stop)
    assert main(["analyze", trace, "--trace", "a.json", "-o", "r.json"]) == 130
    assert capsys.readouterr().err == "opanatomy: interrupted; the trace is written, the report is not\n"
    assert left_in(here) == ["a.json"]


def test_no_trace_keeps_none_and_names_none(here: Path, models: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAIN, "--no-trace", "-f", "json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["provenance"]["trace"] is None
    assert "\ntrace:" not in err
    assert "next:" not in err
    assert left_in(here) == []
    assert main([*PLAIN, "--no-trace", "--trace", "t.json"]) == 2
    assert "--no-trace keeps no trace, --trace t.json does - leave one out" in capfd.readouterr().err


def test_folders_get_the_default_names(here: Path, models: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path("there").mkdir()
    for _ in range(2):
        assert main([*PLAIN, "-o", "there", "-f", "json", "--trace", "made/new/"]) == 0
    assert left_in(here / "there") == ["output_models-plain-2.report.json", "output_models-plain.report.json"]
    assert left_in(here / "made" / "new") == [
        "output_models-plain-2.trace.json.gz",
        "output_models-plain.trace.json.gz",
    ]
    err = capfd.readouterr().err
    assert "report: there/output_models-plain-2.report.json" in err
    assert "trace: made/new/output_models-plain-2.trace.json.gz" in err


def test_reports_and_annotated_traces_in_folders(here: Path, trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", trace, "-o", "out/", "--trace", "out/"]) == 0
    assert left_in(here / "out") == ["step.annotated.json.gz", "step.report.txt"]
    assert main(["analyze", "nowhere.json", "-o", "none/"]) == 1
    assert left_in(here) == ["out"], "a folder that was made for nothing goes"


def test_python_keeps_to_the_same_rules(here: Path) -> None:
    layer, x = nn.Linear(4, 4), torch.ones(2, 4)
    assert opanatomy.profile(layer, x).provenance.trace is None
    assert opanatomy.profile(layer, x, trace="t.json").provenance.trace == "t.json"
    before = Path("t.json").read_bytes()
    with pytest.raises(OutputError, match=r"cannot write t\.json: it exists already - give force=True or choose"):
        opanatomy.profile(layer, x, trace="t.json")
    assert Path("t.json").read_bytes() == before
    opanatomy.profile(layer, x, trace="t.json", force=True)
    assert Path("t.json").read_bytes() != before
    assert left_in(here) == ["t.json"]


def test_a_module_that_changes_the_folder_moves_nothing_from_python(here: Path) -> None:
    class Moves(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            os.chdir("/")
            return super().forward(x)

    opanatomy.profile(Moves(4, 4), torch.ones(2, 4), trace="t.json")
    assert left_in(here) == ["t.json"]
    assert not Path("/t.json").exists()


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
    (0, (*PLAIN,), "the profiler could not write its trace"),
    (5_000, (*PLAIN,), "the profiler could not write its trace"),
    (5_000, (*PLAIN, "--no-trace"), "the profiler could not write its trace"),
    (1_000, ("analyze", "TRACE", "-o", "r.json"), "cannot write r.json: File too large - free some space"),
    (1_000, ("analyze", "TRACE", "--trace", "a.json"), "cannot write a.json: File too large - free some space"),
    (500, ("analyze", "TRACE", "--trace", "a.json.gz"), "cannot write a.json.gz: File too large - free some space"),
    (500, ("analyze", "ZIP"), "cannot write what is unpacked of ZIP into the temporary folder"),
    (500, ("analyze", "-"), "cannot write the trace that comes through a pipe into the temporary folder"),
]


@pytest.mark.parametrize(("size", "words", "said"), FULL, ids=[f"{row[0]} {' '.join(row[1])}" for row in FULL])
def test_a_device_that_fills_up_is_one_line(
    size: int, words: tuple[str, ...], said: str, here: Path, models: str, trace: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    import zipfile

    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.write(trace, "rank0.json.gz")
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    given = {"TRACE": trace, "ZIP": str(tmp_path / "z.zip")}
    with open(trace) as stdin, files_up_to(size):
        monkeypatch.setattr(sys, "stdin", stdin)
        code = main([given.get(word, word) for word in words])
    out, err = capsys.readouterr()
    assert code == 1, err
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith(("  ", "no GPU in use"))]
    assert len(lines) == 1, err
    assert said.replace("ZIP", given["ZIP"]) in lines[0]
    assert left_in(here) == []
    assert left_in(folder) == []


def test_a_trace_whose_packed_form_finds_no_room(
    here: Path, models: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The profiler's own file fits, the trace made of it does not."""
    from opanatomy.capture.run import export

    def opened(path: Path) -> Any:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, resource.RLIM_INFINITY))
        return open_before(path)

    open_before = export._opened
    monkeypatch.setattr(export, "_opened", opened)
    with files_up_to(resource.RLIM_INFINITY):
        assert main(PLAIN) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == (
        "opanatomy: cannot write output_models-plain.trace.json.gz: File too large - free some space or choose another"
        " folder"
    )
    assert left_in(here) == []


@pytest.mark.parametrize("end", [b'"ph": "X"}, {"na', b'"dur": 1.5', b""])
def test_a_profilers_file_that_stops_in_the_middle_is_noticed(end: bytes, here: Path) -> None:
    from opanatomy.capture.run.export import export_trace
    from opanatomy.records.workload import Capture, Environment, Workload

    class Full:
        def export_chrome_trace(self, path: str) -> None:
            Path(path).write_bytes(b'{"traceEvents": [' + b'{"name": "x"},' * 100 + end if end else b"")

    capture = Capture(version="0", command="", created="", environment=Environment(), workload=Workload())
    with pytest.raises(OutputError, match="the profiler could not write its trace of this step to the end - free"):
        export_trace(Full(), capture, here / "t.json")
    assert left_in(here) == []


def test_ceilings_that_cannot_be_kept_are_said(here: Path) -> None:
    from opanatomy.devices.ceilings import store
    from opanatomy.records.anatomy import Machine, Measured

    with files_up_to(10), pytest.raises(OSError, match="File too large"):
        store(Measured(machine=Machine(device="x", kind="cpu")), here)
    assert left_in(here) == []


def test_a_folder_that_may_not_be_written_says_so_at_the_start(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(OutputError, match=r"cannot write t\.json: no permission to write in .*here - choose another"):
        output_file(Path("t.json"))


def test_a_number_that_makes_a_name_too_long_is_refused_at_the_start(here: Path) -> None:
    name = "n" * 250 + ".json"
    Path(name).write_text("taken")
    with pytest.raises(OutputError, match="File name too long - choose another name"):
        output_file(Path(name), numbered=True)
    assert left_in(here) == [name]


def _write_while_another_does(output: OutputFile, other: Path) -> None:
    with output.written() as partial:
        partial.write_text("mine")
        other.write_text("another's")


def test_a_taken_name_behind_a_link_says_where_the_file_is(here: Path) -> None:
    Path("elsewhere").mkdir()
    Path("t.json").symlink_to("elsewhere/real.json")
    with pytest.raises(OutputError, match=r"is in /.*/elsewhere/t-2\.json$"):
        _write_while_another_does(output_file(Path("t.json")), Path("elsewhere/real.json"))
    assert Path("elsewhere/t-2.json").read_text() == "mine"


def test_a_forked_child_that_unwinds_leaves_the_temporary_folder(here: Path) -> None:
    parent = os.getpid()
    with ExitStack() as stack:
        stack.callback(lambda: None if os.getpid() == parent else os._exit(0))
        file = stack.enter_context(temporary("t.json", "the trace"))
        file.write_text("the parent's")
        child = os.fork()
        if child == 0:
            raise SystemExit
        os.waitpid(child, 0)
        assert file.read_text() == "the parent's"
    assert not file.parent.exists()


@pytest.mark.parametrize("words", [("-o", "r.json"), ("-o", "out/"), ("--trace", "t.json")])
def test_a_current_folder_that_is_gone_is_a_line(
    words: tuple[str, str], here: Path, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    here.rmdir()
    assert main(["analyze", trace, *words]) == 1
    err = capsys.readouterr().err
    assert err.startswith("opanatomy: cannot ")
    assert "bug" not in err
    assert err.count("\n") == 1


def test_no_temporary_folder_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere/at-all")
    said = r"no temporary folder for the trace: .* - set TMPDIR"
    with pytest.raises(OutputError, match=said), temporary("x", "the trace"):
        pass
