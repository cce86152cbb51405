"""Traces that are no files: stdin, pipes, addresses; and members of a zip that are no traces."""

from __future__ import annotations

import gzip
import json
import os
import pty
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import opanatomy
from opanatomy.__main__ import main
from opanatomy.errors import UsageError
from opanatomy.io.redact import mask_secrets
from tests.support.made_trace import training_step
from tests.support.paths import ROOT


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return training_step().write(tmp_path / "step.json.gz")


@pytest.fixture
def plain(trace: Path) -> bytes:
    return gzip.decompress(trace.read_bytes())


class Piped:
    """A pipe that gives `content`, as its file descriptor and as `sys.stdin`."""

    def __init__(self, content: bytes) -> None:
        self.read, self._write = os.pipe()
        self._content = content
        self._thread = threading.Thread(target=self._feed)
        self._thread.start()

    def _feed(self) -> None:
        try:
            with os.fdopen(self._write, "wb") as file:
                file.write(self._content)
        except BrokenPipeError:
            pass

    def as_stdin(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdin", os.fdopen(self.read, "r"))

    def finish(self) -> None:
        sys.stdin.close()
        self._thread.join()


def zipped(members: dict[str, bytes]) -> bytes:
    import io

    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return raw.getvalue()


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The exit code of a command that gets this content through a pipe."""

    def run(content: bytes, *words: str) -> int:
        pipe = Piped(content)
        pipe.as_stdin(monkeypatch)
        code = main(list(words))
        pipe.finish()
        return code

    return run


@pytest.mark.parametrize("packing", ["plain", "gzip", "zip"])
def test_a_trace_on_stdin(
    packing: str, here: Path, trace: Path, plain: bytes, piped: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    content = {"plain": plain, "gzip": trace.read_bytes(), "zip": zipped({"rank0.json": plain})}[packing]
    assert piped(content, "analyze", "-", "-f", "json", "--trace", "a.json") == 0
    report = json.loads(capsys.readouterr().out)
    expected = opanatomy.analyze(trace)
    assert report["provenance"]["trace"] == {"zip": "rank0.json"}.get(packing, "stdin")
    assert report["work"] == expected.to_dict()["work"]
    assert [path.name for path in here.iterdir()] == ["a.json"]


@pytest.mark.parametrize("what", ["report", "packed report", "trace"])
def test_a_side_of_a_comparison_on_stdin(
    what: str, here: Path, trace: Path, piped: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    text = opanatomy.analyze(trace).to_json(here / "r.json").encode()
    content = {"report": text, "packed report": gzip.compress(text), "trace": trace.read_bytes()}[what]
    for sides in (["-", "r.json"], ["r.json", "-"]):
        assert piped(content, "compare", *sides, "-f", "json", "--fail-if", "time > +0%") == 0
        comparison = json.loads(capsys.readouterr().out)
        assert [side["name"] for side in comparison["sides"]] == [side.replace("-", "stdin") for side in sides]
        assert all(len(set(row["values"])) == 1 for row in comparison["figures"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot read a trace from stdin: it is empty - pipe a trace into opanatomy: zcat trace.json.gz"),
        (b"curl: (22) The requested URL returned error: 404\n", "stdin is not a trace: it starts with 'curl: (2'"),
        (b'{"a": 1}', 'it has no "traceEvents" - pass a torch.profiler trace'),
        (gzip.compress(b"{}" * 50)[:12], "stdin"),
        (b"PK\x03\x04 cut", "stdin"),
        (b'{"schema": 1, "provenance": {', "cannot read the report stdin: it is truncated or damaged"),
        (b'{"comparison_schema": 1, "sides": [', "stdin"),
    ],
    ids=["empty", "message", "JSON", "cut gzip", "cut zip", "cut report", "cut comparison"],
)
def test_what_cannot_be_read_from_stdin_is_called_stdin(
    content: bytes, said: str, here: Path, piped: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert piped(content, "analyze", "-") == 1
    err = capsys.readouterr().err
    assert said in err
    assert "opanatomy-" not in err, "the file in which it is kept"
    assert err.count("\n") == 1


def test_stdin_that_is_a_terminal_or_nothing_or_read_twice(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    owner, terminal = pty.openpty()
    with os.fdopen(terminal, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main(["analyze", "-"]) == 1
    os.close(owner)
    assert "cannot read a trace from stdin: it is a terminal - pipe a trace into opanatomy" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", None)
    for words, code, said in (
        (["analyze", "-"], 1, "cannot read a trace from stdin: it is empty"),
        (["analyze", "-", "-"], 2, "stdin can be read only once"),
        (["compare", "-", "-"], 2, "compare - -: stdin can be read only once"),
        (["analyze", "/dev/zero"], 1, "cannot read a trace from /dev/zero: it is a device"),
    ):
        assert main(words) == code
        assert said in capsys.readouterr().err
    sys.stdin.close()


def test_an_endless_pipe_is_left(
    here: Path, piped: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=4 << 20))
    assert piped(b"{" * (4 << 20), "analyze", "-") == 1
    assert "cannot store stdin: more than 2 MB arrived, which is half of the free" in capsys.readouterr().err


def test_named_pipes_and_process_substitution(here: Path, trace: Path) -> None:
    os.mkfifo("rank.json")
    writer = threading.Thread(target=lambda: Path("rank.json").write_bytes(trace.read_bytes()))
    writer.start()
    assert opanatomy.analyze("rank.json").provenance.trace == "rank.json"
    writer.join()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = f"{sys.executable} -m opanatomy analyze <(zcat {trace}) -f json"
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["provenance"]["trace"] == "pipe 1"


# ------------------------------------------------------------------------------------------------------------ addresses

ADDRESSES: list[tuple[str, str]] = [
    (
        "https://example.org/runs/a%20b.json.gz?sig=1&x=2",
        "pip install aiohttp, or download it first:"
        " curl -fL -o 'a b.json.gz' 'https://example.org/runs/a%20b.json.gz?sig=1&x=2' && opanatomy analyze 'a b",
    ),
    (
        "s3://bucket/a/t.json",
        "pip install s3fs, or download it first: aws s3 cp s3://bucket/a/t.json t.json && opanatomy analyze t.json",
    ),
    (
        "abfss://box@account.dfs.core.windows.net/a/t.json",
        "pip install adlfs, or download it first:"
        " az storage blob download --account-name account -c box -n a/t.json -f t.json && opanatomy analyze t.json",
    ),
    ("dbfs:/runs/t.json", "download it first: copy dbfs:/runs/t.json to t.json with its store's own tool"),
]


@pytest.mark.parametrize(("address", "words"), ADDRESSES, ids=[row[0] for row in ADDRESSES])
def test_an_address_gets_the_command_that_downloads_it(
    address: str, words: str, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("aiohttp", "s3fs", "gcsfs", "adlfs"):  # the stores that they read cannot be
        monkeypatch.setitem(sys.modules, package, None)
    assert main(["analyze", address]) == 2
    err = capsys.readouterr().err
    assert mask_secrets(f"cannot read {address}: this is a URL, not a file - {words}") in err
    assert err.count("\n") == 1
    with pytest.raises(UsageError, match="this is a URL, not a file"):
        opanatomy.analyze(address)


def test_what_a_store_says_comes_with_the_command_that_downloads(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: object, **__: object) -> None:
        raise ConnectionError("offline")

    monkeypatch.setattr("huggingface_hub.HfFileSystem._ls_tree", offline)
    monkeypatch.setattr("huggingface_hub.HfFileSystem.resolve_path", offline)
    assert main(["analyze", "hf://datasets/owner/name@main/runs/t.json.gz"]) == 1
    assert (
        "cannot read hf://datasets/owner/name@main/runs/t.json.gz: offline - try to download it: hf download owner/name"
        " runs/t.json.gz --repo-type dataset --revision main --local-dir . && opanatomy analyze"
    ) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("analyze", "TRACE", "-o", "s3://b/r.json"), "-o s3://b/r.json: this is a URL, not a file - write"),
        (("analyze", "TRACE", "--trace", "gs://b/t.json"), "gcloud storage cp t.json gs://b/t.json"),
        (("profile", "https://huggingface.co/owner/name"), "use its Hub id: opanatomy profile owner/name"),
        (("profile", "s3://bucket/model/"), "download its folder and pass that folder"),
        (("profile", "file:///models/x"), "pass its path: /models/x"),
        (("analyze", "file:///a%00b.json"), "file:///a%00b.json: its path contains a null byte (%00)"),
    ],
)
def test_addresses_elsewhere(
    words: tuple[str, ...], said: str, here: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(trace) if word == "TRACE" else word for word in words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert list(here.iterdir()) == []


def test_an_address_of_a_file_is_its_path(here: Path, trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, address in (("a b", "a%20b"), ("caf\udce9", "caf%e9")):
        (here / f"{name}.json.gz").write_bytes(trace.read_bytes())
        assert main(["analyze", f"file://{here}/{address}.json.gz"]) == 0
        assert f"The anatomy of {name}.json.gz".replace("\udce9", "\ufffd") in capsys.readouterr().out


# ----------------------------------------------------------------------------------------------------------------- zips


def test_members_left_out_for_their_names_are_said(here: Path, plain: bytes) -> None:
    others = {f"rank{number}.json.zst": b"x" for number in (1, 2, 10)}
    members = {
        "rank0.json": plain,
        **others,
        "notes.txt": b"x",
        ".rank3.json": plain,
        "log": b"x",
        "__MACOSX/._rank0.json": b"x",
        "a/.DS_Store": b"x",
    }
    Path("ranks.zip").write_bytes(zipped(members))
    assert opanatomy.analyze("ranks.zip").warnings[-1] == (
        "6 files of the zip are left out (hidden, or the name does not end in .json or .json.gz):"
        " .rank3.json, log, notes.txt, rank1.json.zst, rank2.json.zst and 1 more"
    )
    Path("whole.zip").write_bytes(zipped({"rank0.json": plain}))
    assert not any("left out" in line for line in opanatomy.analyze("whole.zip").warnings)
