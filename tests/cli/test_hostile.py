"""What careless and unlucky users do to the command line: one clear line, the right exit code, nothing left behind."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from opanatomy.__main__ import main
from opanatomy.capture.run import profile
from opanatomy.capture.run.progress import NullProgress
from opanatomy.errors import ModelError, OutOfMemory
from opanatomy.options import RunOptions
from tests.support.command import left_in
from tests.support.made_trace import training_step
from tests.support.tiny import message_of, on_cpu

MODELS = """
import sys, torch
from torch import nn

class Prints(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def forward(self, x):
        print("hello from forward")
        return self.layer(x)

class Loss(Prints):
    def forward(self, x):
        return {"loss": self.layer(x)}

class Detached(Prints):
    def forward(self, x):
        return {"loss": self.layer(x).sum().detach()}

class Exits(Prints):
    def forward(self, x):
        sys.exit(7)

X = torch.ones(2, 4)
def prints():
    print("hello from the function")
    return Prints(), X
def vector_loss(): return Loss(), X
def detached(): return Detached(), X
def leaves(): sys.exit(7)
def leaves_later(): return Exits(), X
def on_meta(): return nn.Linear(4, 4, device="meta"), X
def lazy(): return nn.LazyLinear(4), X
def huge(): raise MemoryError
"""


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return str(training_step().write(tmp_path / "step.json.gz"))


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith(("  ", "no GPU in use"))]


TINY = ("profile", "bert-base-uncased", "--device", "cpu", "--layers", "1")


def test_the_report_never_takes_the_place_of_the_trace(
    here: Path, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("copy.json").write_bytes(Path(trace).read_bytes())
    before = Path("copy.json").read_bytes()
    assert main(["analyze", "copy.json", "-o", "copy.json", "--force"]) == 2
    assert "this is the trace" in capsys.readouterr().err
    assert Path("copy.json").read_bytes() == before


# ----------------------------------------------------------------------------------------------------------- functions

MADE: list[tuple[str, int, str]] = [
    ("leaves", 1, "raised SystemExit"),
    ("leaves_later", 1, "the model's code ended the program (SystemExit 7)"),
    ("on_meta", 1, "weight is on the meta device"),
    ("lazy", 1, "weight has no shape yet"),
    ("detached", 1, "loss does not require a gradient"),
    ("huge", 1, "have it return a smaller module or smaller inputs"),
    ("vector_loss", 0, ""),
]


@pytest.mark.parametrize(("name", "code", "words"), MADE, ids=[row[0] for row in MADE])
def test_functions_of_all_kinds(
    name: str, code: int, words: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "hostile_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(str(here))
    assert main(["profile", f"hostile_models:{name}", "--device", "cpu", "--trace", "t.json"]) == code
    out, err = capsys.readouterr()
    assert words in err
    if code:
        assert len(lines_of(err)) == 1, err
        assert out == ""
        assert not Path("t.json").exists()
    assert main(["profile", f"hostile_models:{name}", "--device", "cpu", "--batch", "8"]) == 2
    assert f"--batch does not apply to hostile_models:{name}" in capsys.readouterr().err


# -------------------------------------------------------------------------------------------------------------- models

BERT_TINY = {
    "model_type": "bert",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "vocab_size": 200,
    "architectures": ["BertForMaskedLM"],
}
CONFIGURATIONS: list[tuple[str, str, str]] = [
    ("numbers for architectures", json.dumps({**BERT_TINY, "architectures": [5]}), "not a list of names"),
    ("deep", '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "too deeply nested"),
    ("layers in a list", json.dumps({**BERT_TINY, "num_hidden_layers": [5]}), "cannot build"),
]


@pytest.mark.parametrize(("text", "words"), [row[1:] for row in CONFIGURATIONS], ids=[row[0] for row in CONFIGURATIONS])
def test_a_damaged_configuration(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    assert words in message_of(on_cpu(model=str(tmp_path), batch=1, seq=4), ModelError)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", b"\x80\x01\x00\x00\x00\x00\x00\x00{"),
        ("pytorch_model.bin", b"PK\x03\x04 cut off"),
    ],
)
def test_damaged_weights(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BERT_TINY))
    (tmp_path / name).write_bytes(content)
    message = message_of(on_cpu(model=str(tmp_path), batch=1, seq=4, weights="pretrained"), ModelError)
    assert f"cannot load the weights of {tmp_path} from the folder" in message


# -------------------------------------------------------------------------------------------------------------- memory


def test_too_little_memory_to_build_names_what_to_lower(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, inside = resource.getrlimit(resource.RLIMIT_DATA), []

    def fail(*_: object) -> None:
        inside.append(resource.getrlimit(resource.RLIMIT_DATA)[0])
        raise MemoryError

    # Where the limit holds; when memory ends cannot be said to the byte.
    monkeypatch.setattr("opanatomy.capture.model.workload.make_batch", fail)
    assert main(TINY) == 1
    err = capsys.readouterr().err
    assert "out of memory while building bert-base-uncased and its inputs" in err
    assert all(option in err for option in ("--batch", "--seq", "--layers"))
    assert inside != [resource.RLIM_INFINITY], "a limit stops a build that would take all memory"
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({}, "0.876 GB (weights and gradients)"),
        ({"inference": True}, "0.438 GB (weights)"),
        ({"optimizer": "adamw"}, "1.75 GB (weights, gradients and optimizer state)"),
    ],
)
def test_what_cannot_fit_says_what_takes_the_memory(
    options: dict[str, Any], parts: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A machine with so little memory.
    monkeypatch.setattr(profile, "available_bytes", lambda: 10**8)
    wanted = RunOptions(model="bert-base-uncased", device="cpu", **options)
    with pytest.raises(OutOfMemory) as caught:
        profile.capture_model(wanted, Path("t.json"), NullProgress(), lambda text: None)
    assert parts in str(caught.value)
    assert "--dtype bfloat16" in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("lib.so: failed to map segment from shared object"),
    ],
)
def test_an_analysis_without_memory(
    error: BaseException, here: Path, trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("opanatomy.pipeline.summary_of_trace", fail)
    assert main(["analyze", trace]) == 1
    assert capsys.readouterr().err.startswith("opanatomy: not enough memory - ")


# --------------------------------------------------------------------------------------------------------------- files


def test_names_that_are_no_text(here: Path, trace: str, capfd: pytest.CaptureFixture[str]) -> None:
    name = os.fsdecode(b"b\xff.json.gz")
    Path(name).write_bytes(Path(trace).read_bytes())
    assert main(["analyze", name]) == 0
    assert "The anatomy of b\ufffd.json.gz" in capfd.readouterr().out
    assert main(["analyze", name, "-f", "json"]) == 0
    assert json.loads(capfd.readouterr().out)["provenance"]["trace"] == "b\ufffd.json.gz"
    assert main(["analyze", name, "-o", os.fsdecode(b"r\xff.json")]) == 0
    assert capfd.readouterr().err == "report: r\ufffd.json\n"


def test_a_name_that_is_too_long(here: Path, trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", trace, "-o", "x" * 300 + ".json"]) == 1
    assert "File name too long - choose another name" in capsys.readouterr().err
    assert main(["analyze", trace, "-o", "x" * 250 + ".json"]) == 0


def test_a_link_stays_a_link_and_leads_somewhere(here: Path, trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("real.json").write_text("old")
    Path("link.json").symlink_to("real.json")
    Path("nowhere.json").symlink_to("gone/x.json")
    assert main(["analyze", trace, "-o", "link.json", "--force"]) == 0
    assert Path("link.json").is_symlink()
    assert json.loads(Path("real.json").read_text())["schema"] == 3
    assert main(["analyze", trace, "-o", "nowhere.json"]) == 1
    assert "does not exist - create it first" in capsys.readouterr().err
    assert left_in(here) == ["link.json", "nowhere.json", "real.json"]


def test_a_pipe_is_written_and_stays_one(here: Path, trace: str) -> None:
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDWR | os.O_NONBLOCK)
    try:
        assert main(["analyze", trace, "-o", "pipe", "-f", "csv"]) == 0
        assert os.read(reader, 1 << 16).startswith(b"operator,")
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(os.stat("pipe").st_mode)
    assert left_in(here) == ["pipe"]


# -------------------------------------------------------------------------------------------------------------- streams


@pytest.mark.parametrize("encoding", ["ascii"])
def test_a_terminal_without_the_marks_of_the_report(
    encoding: str, here: Path, trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path("trä中.json.gz")
    copy.write_bytes(Path(trace).read_bytes())
    for option, needle in (("terminal", b"-----"), ("json", '"trä中.json.gz"'.encode()), ("csv", b"operator,")):
        raw = io.BytesIO()
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
            assert main(["analyze", str(copy), "-f", option]) == 0
            out = raw.getvalue()
        assert needle in out
        if option == "terminal":
            assert max(map(len, out.decode(encoding).splitlines())) <= 80


@pytest.mark.parametrize("gone", [("stdin", "stdout", "stderr"), ("stdout",), ("stderr",)], ids=" ".join)
def test_streams_that_are_closed(
    gone: tuple[str, ...], here: Path, trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in gone:
        monkeypatch.setattr(sys, name, None)
    assert main(["analyze", trace, "-o", "x.json"]) == 0
    assert main(["analyze", "nowhere.json"]) == 1
    if gone == ("stdout",):  # which is told before the work
        for words in (["analyze", trace], ["explain", "aten::mm"], TINY):
            capsys.readouterr()
            assert main(words) == 1
            assert "cannot write the report to stdout: it is closed" in capsys.readouterr().err
    assert left_in(here) == ["x.json"]
    for name in gone:
        getattr(sys, name).close()


def test_a_stderr_that_takes_nothing_stops_nothing(here: Path, trace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    assert main(["analyze", trace, "-o", "x.json"]) == 0
    assert main(["analyze", "nowhere.json"]) == 1


# -------------------------------------------------------------------------------------------------------------- signals


def stopped_by(number: int) -> Any:
    """A capture in whose midst a signal comes; a real one would take seconds, and the signal come anywhere."""

    def stop(*_: object, **__: object) -> None:
        os.kill(os.getpid(), number)

    return stop


@contextmanager
def handled(number: int, handler: Any = signal.default_int_handler) -> Iterator[Any]:
    """With this handler, whatever the tests were started under."""
    before = signal.signal(number, handler)
    try:
        yield handler
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize(
    ("number", "code", "word"), [(2, 130, "interrupted"), (15, 143, "terminated"), (1, 129, "hung")]
)
def test_signals_leave_nothing(
    number: int, code: int, word: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(profile, "capture_model", stopped_by(number))
    with handled(number) as handler:
        assert main(TINY) == code
        assert signal.getsignal(number) is handler
    err = capsys.readouterr().err
    assert word in err
    assert err.endswith("; nothing was written\n")
    assert left_in(here) == []


def test_a_signal_that_is_ignored_stays_so(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under `nohup`."""
    monkeypatch.setattr(profile, "capture_model", stopped_by(signal.SIGHUP))
    with handled(signal.SIGHUP, signal.SIG_IGN):
        assert main(TINY) != 129
    assert "hung up" not in capsys.readouterr().err


def test_an_interrupt_that_a_library_makes_an_error_of(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def convert(*_: object, **__: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt as error:
            raise ImportError("are the requirements of this object defined correctly?") from error

    monkeypatch.setattr(profile, "capture_model", convert)
    assert main(TINY) == 130
    assert capsys.readouterr().err == "opanatomy: interrupted\n"


def test_an_interrupt_after_the_trace_names_it(
    here: Path, trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(options: object, path: Path, *_: object, **__: object) -> None:
        path.write_bytes(Path(trace).read_bytes())

    monkeypatch.setattr(profile, "capture_model", write)
    monkeypatch.setattr("opanatomy.pipeline.analyze_traces", stopped_by(signal.SIGINT))
    assert main(TINY) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert "trace: bert-base-uncased.trace.json.gz" in err
    assert err.endswith("opanatomy: interrupted; the trace was written, but the report was not\n")
    assert left_in(here) == ["bert-base-uncased.trace.json.gz"]


# ----------------------------------------------------------------------------------------------------------------- bugs


def test_a_bug_is_one_line_and_a_traceback_only_on_demand(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("two\nlines\x1b[31m")

    monkeypatch.setattr(profile, "capture_model", fail)
    assert main(TINY) == 1
    err = capsys.readouterr().err
    assert err.startswith("opanatomy: this is a bug: ValueError: two lines [31m (cli/verbs/profile.py:")
    assert err.endswith("- run again with --debug and report it\n")
    assert err.count("\n") == 1
    with pytest.raises(ValueError, match="two"):
        main([*TINY, "--debug"])
    assert left_in(here) == []
