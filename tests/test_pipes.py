"""Traces that are no files: stdin, pipes, addresses; and members of a zip that are no traces."""

from __future__ import annotations

import errno
import gzip
import json
import os
import pty
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

import opanatomy
from opanatomy.__main__ import main
from opanatomy.errors import UsageError
from opanatomy.trace.redact import mask_secrets
from tests.handmade import training_step

ROOT = Path(__file__).parent.parent


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


@pytest.mark.parametrize("packing", ["plain", "gzip", "zip"])
def test_a_trace_on_stdin(
    packing: str, here: Path, trace: Path, plain: bytes, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    content = {"plain": plain, "gzip": trace.read_bytes(), "zip": zipped({"rank0.json": plain})}[packing]
    pipe = Piped(content)
    pipe.as_stdin(monkeypatch)
    assert main(["analyze", "-", "-f", "json", "--trace", "a.json"]) == 0
    pipe.finish()
    report = json.loads(capsys.readouterr().out)
    expected = opanatomy.analyze(trace)
    assert report["provenance"]["trace"] == {"zip": "rank0.json"}.get(packing, "stdin")
    assert [row["time_ns"] for row in report["operators"]] == [row.time_ns for row in expected.operators]
    assert [path.name for path in here.iterdir()] == ["a.json"]


@pytest.mark.parametrize("what", ["report", "packed report", "trace"])
@pytest.mark.parametrize("first", [True, False])
def test_a_side_of_a_comparison_on_stdin(
    what: str, first: bool, here: Path, trace: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    text = opanatomy.analyze(trace).to_json(here / "r.json").encode()
    pipe = Piped({"report": text, "packed report": gzip.compress(text), "trace": trace.read_bytes()}[what])
    pipe.as_stdin(monkeypatch)
    sides = ["-", "r.json"] if first else ["r.json", "-"]
    assert main(["compare", *sides, "-f", "json", "--fail-if", "time > +0%"]) == 0
    pipe.finish()
    comparison = json.loads(capsys.readouterr().out)
    assert [side["name"] for side in comparison["sides"]] == ["stdin" if side == "-" else side for side in sides]
    assert all(len(set(row["values"])) == 1 for row in comparison["figures"])


@pytest.mark.parametrize("verb", ["analyze", "compare"])
def test_a_report_on_stdin_that_cannot_be_read_is_called_stdin(
    verb: str, here: Path, trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    anatomy = opanatomy.analyze(trace)
    anatomy.to_json(here / "r.json")
    whole = anatomy.to_json().encode()
    saved = opanatomy.compare(anatomy, anatomy).to_json().encode()
    others = ["r.json"] if verb == "compare" else []
    for content, says in (
        (whole[: len(whole) // 2], "cannot read the report stdin: it is cut off or damaged"),
        (saved, "stdin: a saved comparison, which is of several runs"),
    ):
        if content is saved and verb == "analyze":
            continue
        pipe = Piped(content)
        pipe.as_stdin(monkeypatch)
        assert main([verb, "-", *others]) == 1
        pipe.finish()
        error = capsys.readouterr().err
        assert says in error
        assert "opanatomy-" not in error
        assert content is not saved or error.rstrip().endswith("opanatomy analyze -")


def test_two_sides_on_stdin_are_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "-", "-"]) == 2
    assert "compare - -: stdin can be read once" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot read a trace from stdin: it is empty - pipe one into it: zcat trace.json.gz | opanatomy"),
        (b"curl: (22) The requested URL returned error: 404\n", "stdin is not a trace: it starts with b'curl: (2'"),
        (b'{"a": 1}', 'it has no "traceEvents" - give a torch.profiler trace'),
    ],
)
def test_what_is_no_trace_on_stdin(
    content: bytes, words: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = Piped(content)
    pipe.as_stdin(monkeypatch)
    assert main(["analyze", "-"]) == 1
    pipe.finish()
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_stdin_that_is_a_terminal_or_nothing_or_read_twice(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    owner, terminal = pty.openpty()
    with os.fdopen(terminal, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main(["analyze", "-"]) == 1
    os.close(owner)
    assert "cannot read a trace from stdin: it is a terminal - pipe one into it" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["analyze", "-"]) == 1
    assert "cannot read a trace from stdin: it is empty" in capsys.readouterr().err
    sys.stdin.close()
    assert main(["analyze", "-", "-"]) == 2
    assert "stdin can be read once" in capsys.readouterr().err
    assert main(["analyze", "/dev/zero"]) == 1
    assert "cannot read a trace from /dev/zero: it is a device" in capsys.readouterr().err


def test_an_endless_pipe_is_left(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: os.terminal_size((0, 0)) and type("U", (), {"free": 4 << 20}))
    pipe = Piped(b"{" * (4 << 20))
    pipe.as_stdin(monkeypatch)
    assert main(["analyze", "-"]) == 1
    pipe.finish()
    assert "cannot keep stdin: more than 2 MB came through, half of what is free" in capsys.readouterr().err


def test_named_pipes_and_process_substitution(here: Path, trace: Path, tmp_path: Path) -> None:
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
        "curl -fL -o 'a b.json.gz' 'https://example.org/runs/a%20b.json.gz?sig=1&x=2' && opanatomy analyze 'a b",
    ),
    ("http://example.org/", "curl -fL -o trace.json.gz http://example.org/ && opanatomy analyze trace.json.gz"),
    ("s3://bucket/a/t.json", "aws s3 cp s3://bucket/a/t.json t.json && opanatomy analyze t.json"),
    ("gs://bucket/t.zip", "gcloud storage cp gs://bucket/t.zip t.zip && opanatomy analyze t.zip"),
    (
        "abfss://box@account.dfs.core.windows.net/a/t.json",
        "az storage blob download --account-name account -c box -n a/t.json -f t.json && opanatomy analyze t.json",
    ),
    ("az://box/a/t.json", "az storage blob download -c box -n a/t.json -f t.json"),
    ("dbfs:/runs/t.json", "copy dbfs:/runs/t.json to t.json with the tool of its store"),
    ("file://other-host/x/t.json", "copy file://other-host/x/t.json to t.json"),
]


#: Packages that no test needs: the stores that they read cannot be.
PACKAGES = {"https": "aiohttp", "http": "aiohttp", "s3": "s3fs", "gs": "gcsfs", "abfss": "adlfs", "az": "adlfs"}


@pytest.mark.parametrize(("address", "words"), ADDRESSES, ids=[row[0] for row in ADDRESSES])
def test_an_address_gets_the_command_that_downloads_it(
    address: str,
    words: str,
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for package in set(PACKAGES.values()):
        monkeypatch.setitem(sys.modules, package, None)
    assert main(["analyze", address]) == 2
    err = capsys.readouterr().err
    package = PACKAGES.get(address.split(":")[0])
    install = f"pip install {package}, or " if package else ""
    line = f"cannot read {address}: it is an address, not a file - {install}download it first: {words}"
    assert mask_secrets(line) in err
    assert err.count("\n") == 1
    with pytest.raises(UsageError, match="it is an address, not a file"):
        opanatomy.analyze(address)


def test_what_a_store_says_comes_with_the_command_that_downloads(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: object, **__: object) -> None:
        raise ConnectionError("offline")

    monkeypatch.setattr("huggingface_hub.HfFileSystem._ls_tree", offline)
    monkeypatch.setattr("huggingface_hub.HfFileSystem.resolve_path", offline)
    assert main(["analyze", "hf://datasets/owner/name@main/runs/t.json.gz"]) == 1
    err = capsys.readouterr().err
    assert "cannot read hf://datasets/owner/name@main/runs/t.json.gz: offline - try to download it: " in err
    assert (
        "hf download owner/name runs/t.json.gz --repo-type dataset --revision main --local-dir . && opanatomy analyze"
    ) in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("analyze", "TRACE", "-o", "s3://b/r.json"),
            "-o s3://b/r.json: it is an address, not a file - write",
        ),
        (("analyze", "TRACE", "-o", "s3://b/r.json"), "-o r.json ... && aws s3 cp r.json s3://b/r.json"),
        (("analyze", "TRACE", "--trace", "gs://b/t.json"), "gcloud storage cp t.json gs://b/t.json"),
        (("profile", "x", "--trace", "s3://b/t.json"), "--trace t.json ... && aws s3 cp t.json s3://b/t.json"),
        (("profile", "https://huggingface.co/owner/name"), "give its Hub id: opanatomy profile owner/name"),
        (("profile", "s3://bucket/model/"), "download its folder first and give that"),
        (("profile", "file:///models/x"), "give its path: /models/x"),
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


def test_a_folder_that_is_called_like_a_scheme(here: Path, trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "s3:").mkdir()
    assert main(["analyze", str(trace), "-o", "s3:/r.json", "--trace", "s3:/t.json"]) == 0
    assert sorted(path.name for path in (here / "s3:").iterdir()) == ["r.json", "t.json"]
    assert main(["analyze", str(trace), "-o", "s3://bucket/r.json"]) == 2
    assert "it is an address, not a file" in capsys.readouterr().err


def test_a_name_with_a_zero_byte_is_a_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "file:///a%00b.json"]) == 2
    assert "file:///a%00b.json: the path of this address has a zero byte (%00)" in capsys.readouterr().err
    with pytest.raises(UsageError, match="has a zero byte"):
        opanatomy.analyze("a\0b.json")


def test_an_address_of_a_name_that_is_no_text(here: Path, trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = here / "caf\udce9.json.gz"
    raw.write_bytes(trace.read_bytes())
    assert main(["analyze", f"file://{here}/caf%e9.json.gz"]) == 0


@pytest.mark.parametrize(
    "content",
    [b"{}", gzip.compress(b""), gzip.compress(b"{}" * 50)[:12], b"PK\x03\x04 cut"],
    ids=["no events", "nothing packed", "cut gzip", "cut zip"],
)
def test_errors_name_the_pipe_and_not_the_file_of_it(
    content: bytes, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    piped = Piped(content)
    piped.as_stdin(monkeypatch)
    assert main(["analyze", "-"]) == 1
    piped.finish()
    err = capsys.readouterr().err
    assert "stdin" in err
    assert "opanatomy-" not in err


def test_what_may_not_be_read_is_a_line(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = os.stat

    def refuse(path: Any, *words: Any, **options: Any) -> os.stat_result:
        if "shut" in str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *words, **options)

    (here / "shut").mkdir()
    monkeypatch.setattr(os, "stat", refuse)
    assert main(["analyze", "shut/t.json"]) == 1
    assert capsys.readouterr().err == "opanatomy: cannot read the trace shut/t.json: Permission denied\n"
    monkeypatch.setattr(os, "stat", real)

    listed = os.listdir

    def unlisted(path: Any = ".") -> list[str]:
        if "shut" in str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "listdir", unlisted)
    assert main(["analyze", "shut"]) == 1
    assert "cannot read the folder shut: Permission denied" in capsys.readouterr().err


def test_an_address_of_a_file_is_its_path(here: Path, trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spaced = here / "a b.json.gz"
    spaced.write_bytes(trace.read_bytes())
    for address in (spaced.as_uri(), f"file:{str(spaced).replace(' ', '%20')}"):
        assert main(["analyze", address]) == 0
        assert "The anatomy of a b.json.gz" in capsys.readouterr().out
        assert opanatomy.analyze(address).provenance.trace == "a b.json.gz"


# ----------------------------------------------------------------------------------------------------------------- zips


def test_members_left_out_for_their_names_are_said(here: Path, plain: bytes) -> None:
    others = {f"rank{number}.json.zst": b"x" for number in (1, 2, 10)}
    members = {
        "rank0.json": plain, **others, "notes.txt": b"x", ".rank3.json": plain, "log": b"x",
        "__MACOSX/._rank0.json": b"x", "a/.DS_Store": b"x",
    }  # fmt: skip
    Path("ranks.zip").write_bytes(zipped(members))
    assert opanatomy.analyze("ranks.zip").warnings[-1] == (
        "6 files of the zip are left out for the name, which does not end in .json or .json.gz or is hidden:"
        " .rank3.json, log, notes.txt, rank1.json.zst, rank2.json.zst and 1 more"
    )
    ranks = {}
    for number in range(2):
        rank = training_step()
        rank.metadata["distributedInfo"] = {"rank": number, "world_size": 2}
        ranks[f"rank{number}.json"] = rank.write(here / "rank.json").read_bytes()
    Path("two.zip").write_bytes(zipped({**ranks, "rank2.json.zst": b"x"}))
    together = opanatomy.analyze("two.zip")
    assert len(together.ranks) == 2
    assert (
        "1 file of the zip is left out for the name, which does not end in .json or .json.gz or is hidden:"
        " rank2.json.zst"
    ) in together.warnings
    Path("whole.zip").write_bytes(zipped({"rank0.json": plain}))
    assert not any("left out" in line for line in opanatomy.analyze("whole.zip").warnings)
