"""A report given where a trace may stand: known by its content, whatever it is called and however it is written."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from pathlib import Path

import msgspec
import pytest

from opanatomy.console.dispatch import main
from opanatomy.errors import OpanatomyError
from opanatomy.records.device import Machine, Measured
from opanatomy.report import format_names
from opanatomy.report.formats.json import json_report
from opanatomy.report.given import report_in
from tests import anatomies
from tests.test_techniques import experiment_of

ALEXNET = Path(__file__).parent / "traces" / "gpu_a100_alexnet.json.gz"
TRACES = sorted((Path(__file__).parent / "traces").glob("*.json.gz"))
MEASURED = Measured(machine=Machine(device="x", kind="cpu"))
TEXT = json_report(anatomies.bert_on_cpu())


def _file(tmp_path: Path, content: bytes | str, name: str = "given.json") -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def _shuffled(seed: int) -> str:
    items = list(json.loads(TEXT).items())
    random.Random(seed).shuffle(items)
    return json.dumps(dict(items))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(TEXT.encode(), id="as written"),
        pytest.param(gzip.compress(TEXT.encode()), id="gzip"),
        pytest.param(b"\xef\xbb\xbf" + TEXT.encode(), id="byte order mark"),
        pytest.param(TEXT.encode("utf-16"), id="utf-16"),
        pytest.param(b"\r\n\t  " + json.dumps(json.loads(TEXT), indent=8).encode(), id="indented"),
        pytest.param(json.dumps(json.loads(TEXT), separators=(",", ":")).encode(), id="compact"),
        *(pytest.param(_shuffled(seed).encode(), id=f"order {seed}") for seed in range(6)),
    ],
)
def test_a_report_is_known_by_its_content(tmp_path: Path, content: bytes) -> None:
    assert report_in(_file(tmp_path, content, "trace.bin")) == anatomies.bert_on_cpu()


def test_a_first_key_larger_than_what_is_looked_at_does_not_hide_a_report(tmp_path: Path) -> None:
    report = json.loads(TEXT)
    report["warnings"] = ["x" * 200_000]
    first = {"warnings": report.pop("warnings")}
    anatomy = report_in(_file(tmp_path, json.dumps(first | report)))
    assert anatomy is not None
    assert anatomy.operators == anatomies.bert_on_cpu().operators


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_a_trace_is_no_report(path: Path) -> None:
    assert report_in(path) is None


@pytest.mark.parametrize(
    "content",
    [
        '{"schema": 1, "provenance": {}, "traceEvents": []}',
        '{"traceEvents": [], "schema": 1, "provenance": {}}',
        '{"schema": 1, "device": "' + "x" * 100_000 + '", "provenance": {}, "traceEvents": []}',
        "[]",
        "",
        "{}",
        '{"device": "cpu"}',
        '{"model_type": "bert", "schema": 1}',
        "not JSON",
        gzip.compress(b'{"traceEvents": []}', mtime=0),
        b"\x1f\x8b and nothing that unpacks",
        b"\xff\xfe\x00",
    ],
)
def test_anything_else_is_no_report(tmp_path: Path, content: bytes | str) -> None:
    assert report_in(_file(tmp_path, content)) is None


def test_what_cannot_be_opened_is_left_to_the_reader_of_traces(tmp_path: Path) -> None:
    assert report_in(tmp_path) is None
    assert report_in(tmp_path / "missing.json") is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(TEXT[: len(TEXT) // 2], "cut off or damaged", id="cut off"),
        pytest.param(gzip.compress(TEXT.encode())[:-2000], "cut off or damaged", id="gzip cut off"),
        pytest.param(gzip.compress(TEXT.encode())[:-8] + b"\0" * 8, "cut off or damaged", id="gzip damaged"),
        pytest.param(TEXT.replace('"schema": 1', '"schema": 7', 1), "has schema 7, this opanatomy reads", id="schema"),
        pytest.param(TEXT.replace('"classes": [', '"classes": 3, "x": [', 1), "not an opanatomy report", id="type"),
        pytest.param(
            '{"schema": 1, "device": "x", "peaks": {}, "bandwidth": {}, "data_sheet": null}', "ceilings", id="ceilings"
        ),
        pytest.param(msgspec.json.encode(MEASURED), "measured ceilings", id="kept ceilings"),
        pytest.param(
            gzip.compress(b'{"schema": 1, "provenance": {}, "step":' + b" " * (17 << 20)), "gzip bomb", id="bomb"
        ),
    ],
)
def test_a_report_that_cannot_be_shown_says_why(tmp_path: Path, content: bytes | str, said: str) -> None:
    path = _file(tmp_path, content)
    with pytest.raises(OpanatomyError, match=said) as raised:
        report_in(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_comparison_is_told_apart(tmp_path: Path) -> None:
    _file(tmp_path, TEXT)
    path = tmp_path / "c.json"
    assert main(["compare", *[str(tmp_path / "given.json")] * 2, "-o", str(path)]) == 0
    with pytest.raises(OpanatomyError, match=r"c\.json: a comparison, which is of several runs"):
        report_in(path)


def test_a_report_of_techniques_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(OpanatomyError, match=r"a report of techniques.*NAME\.report\.json"):
        report_in(_file(tmp_path, json_report(experiment_of())))


# ------------------------------------------------------------------------------------------------------------ analyze


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trace, the report of it, and another report; commands run there."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(ALEXNET, tmp_path / "trace.json.gz")
    assert main(["analyze", "trace.json.gz", "-f", "json", "-o", "kept"]) == 0
    _file(tmp_path, TEXT, "bert.json")
    return tmp_path


def test_a_report_is_shown_again_in_every_format(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    same_length = "kept-report-1"  # as the trace's: the commands that a report advises name it
    shutil.copy("kept", same_length)
    for name in format_names():
        assert main(["analyze", "trace.json.gz", "-f", name]) == 0
        first = capsys.readouterr()
        assert main(["analyze", same_length, "-f", name]) == 0
        again = capsys.readouterr()
        assert again.out.replace(same_length, "trace.json.gz") == first.out, name
        assert again.err == f"{same_length}: a report by opanatomy 0.1.0, shown again; no trace was read\n"
    assert main(["analyze", "kept", "-f", "json"]) == 0
    assert capsys.readouterr().out == (folder / "kept").read_text()


def test_ceilings_and_redaction_hold_for_a_report_as_for_its_trace(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    for words in (["--peak", "312T", "--bandwidth", "2T"], ["--redact"]):
        shown = []
        for name in ("trace.json.gz", "kept"):
            assert main(["analyze", name, "-f", "json", *words]) == 0
            shown.append(json.loads(capsys.readouterr().out))
        assert shown[0] == shown[1]


def test_a_gate_of_a_report_is_held_against_what_it_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _file(folder, json_report(anatomies.llama_on_gpu()), "disagreeing.json")
    assert main(["analyze", "bert.json", "--check"]) == 0
    assert main(["analyze", "disagreeing.json", "--check"]) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["kept", "--trace", "x.json"], "--trace x.json: kept is a report, and this needs its trace - give the trace"),
        (["kept", "--phase", "forward=a", "--phase", "other=b"], "--phase forward=a --phase other=b: kept is a report"),
        (["kept", "--jobs", "2"], "--jobs 2: kept is a report"),
        (["kept", "--summaries", "x"], "--summaries x: kept is a report"),
        (["kept", "--dask", "local"], "--dask local: kept is a report"),
        (["kept", "-o", "kept", "--force", "-f", "json"], "-o kept: that is the report to show"),
        (
            ["kept", "bert.json"],
            "2 reports are given, it shows one again - to see what changed: opanatomy compare kept",
        ),
        (["trace.json.gz", "kept"], "kept is a report, the others are not"),
        (["kept", "trace.json.gz", "trace.json.gz"], "compare kept trace.json.gz trace.json.gz"),
    ],
)
def test_what_needs_a_trace_is_refused(
    words: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.iterdir())
    capsys.readouterr()
    assert main(["analyze", *words]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert sorted(folder.iterdir()) == before


def test_a_report_in_a_folder_of_ranks_is_left_out_in_words(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = folder / "ranks"
    ranks.mkdir()
    shutil.move("trace.json.gz", ranks)
    shutil.copy("kept", ranks / "trace.report.json")
    capsys.readouterr()
    assert main(["analyze", "ranks", "-f", "json"]) == 0
    (warning,) = (
        text for text in json.loads(capsys.readouterr().out)["warnings"] if "trace.report.json is left out" in text
    )
    assert "not a trace but a report of opanatomy" in warning
