"""A report given where a trace may stand: known by its content, whatever it is called and however it is written."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import msgspec
import pytest

from opanatomy.errors import OpanatomyError
from opanatomy.records.device import Machine, Measured
from opanatomy.report.formats.json import json_report
from opanatomy.report.given import report_in
from tests import anatomies
from tests.test_techniques import experiment_of

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
        gzip.compress(b'{"traceEvents": []}'),
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


def test_a_report_of_techniques_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(OpanatomyError, match=r"a report of techniques.*NAME\.report\.json"):
        report_in(_file(tmp_path, json_report(experiment_of())))
