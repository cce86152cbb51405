"""A report given where a trace may stand: known by its content, whatever it is called and however it is written."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path

import msgspec
import pytest

import opanatomy
from opanatomy.__main__ import main as command
from opanatomy.cli.main import main
from opanatomy.records.anatomy import Machine, Measured
from opanatomy.report import terminal_report
from opanatomy.report.formats import FORMATS, format_named
from opanatomy.report.formats.json import json_report, read_report
from opanatomy.report.section import Page
from opanatomy.results import as_public
from tests.support import anatomies
from tests.support.experiments import experiment
from tests.support.made_trace import GEMM, H100, MAP, TraceBuilder
from tests.support.paths import ROOT, SNAPSHOTS, TRACES

ALEXNET = TRACES / "gpu_a100_alexnet.json.gz"
MEASURED = Measured(machine=Machine(device="x", kind="cpu"))
TEXT = json_report(anatomies.bert_on_cpu())
OTHERS = {key: value for key, value in json.loads(TEXT).items() if key != "warnings"}


def _file(tmp_path: Path, content: bytes | str, name: str = "given.json") -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(TEXT.encode(), id="as written"),
        pytest.param(gzip.compress(TEXT.encode()), id="gzip"),
        pytest.param(b"\xef\xbb\xbf" + TEXT.encode(), id="byte order mark"),
        pytest.param(TEXT.encode("utf-16"), id="utf-16"),
        pytest.param(b"\r\n\t  " + json.dumps(json.loads(TEXT), indent=8).encode(), id="indented"),
        pytest.param(json.dumps(dict(reversed(json.loads(TEXT).items()))).encode(), id="another order"),
        pytest.param(json.dumps({"warnings": ["x" * 200_000], **OTHERS}).encode(), id="a long first key"),
    ],
)
def test_a_report_is_known_by_its_content(tmp_path: Path, content: bytes) -> None:
    report = json.loads(opanatomy.read(_file(tmp_path, content, "trace.bin")).to_json())
    assert {key: value for key, value in report.items() if key != "warnings"} == OTHERS


RANKS = [ALEXNET.with_name(f"gpu_v100_dlrm_rank{rank}of8.json.gz") for rank in range(2)]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison that the command line saved."""
    path = tmp_path_factory.mktemp("compared") / "c.json"
    assert main(["compare", *map(str, RANKS), "-o", str(path), "--fail-if", "time > +50%"]) == 0
    return path


def test_a_comparison_is_shown_again_in_every_format(
    compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(compared, "kept.json")
    for rank in range(2):
        shutil.copy(RANKS[rank], RANKS[rank].name)
    sides = [path.name for path in RANKS]
    capsys.readouterr()
    for name in FORMATS:
        assert main(["compare", *sides, "-f", name, "--fail-if", "time > +50%"]) == 0
        # What the sides were called when they were typed is not kept: of a command its options are left.
        first = re.sub(r"- command: `opanatomy analyze \S+ ", "- options: `", capsys.readouterr().out)
        assert main(["analyze", "kept.json", "-f", name]) == 0
        again = capsys.readouterr()
        assert again.out == first, name
        assert again.err == "kept.json: a saved comparison, shown as saved; nothing was compared\n"


def test_gates_hold_for_a_saved_comparison_as_they_do_for_its_sides(
    compared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = []
    for words in (["compare", *map(str, RANKS)], ["analyze", str(compared)]):
        capsys.readouterr()
        assert main([*words, "--fail-if", "time > +5%", "-f", "junit"]) == 3
        errors.append([line for line in capsys.readouterr().err.splitlines() if "FAILED" in line])
    assert errors[0] == errors[1] != []
    assert main(["analyze", str(compared), "--fail-if", "speed > +5%"]) == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(TEXT[: len(TEXT) // 2], "truncated or damaged", id="cut off"),
        pytest.param(gzip.compress(TEXT.encode())[:-2000], "truncated or damaged", id="gzip cut off"),
        pytest.param(gzip.compress(TEXT.encode())[:-8] + b"\0" * 8, "truncated or damaged", id="gzip damaged"),
        pytest.param(
            TEXT.replace('"schema": 3', '"schema": 7', 1),
            "but this version of opanatomy reads",
            id="schema",
        ),
        pytest.param(TEXT.replace('"work": {', '"work": 3, "x": {', 1), "not an opanatomy report", id="type"),
        pytest.param(
            '{"schema": 1, "device": "x", "peaks": {}, "bandwidth": {}, "data_sheet": null}',
            "measured peaks",
            id="peaks",
        ),
        pytest.param(msgspec.json.encode(MEASURED), "measured peaks", id="kept ceilings"),
        pytest.param(
            gzip.compress(b'{"schema": 1, "provenance": {}, "step":' + b" " * (17 << 20)), "gzip bomb", id="bomb"
        ),
        pytest.param(
            json_report(experiment()).replace('"schema": ', '"schema": 7', 1), "opanatomy reads only", id="old"
        ),
        pytest.param('{"comparison_schema": 2, "sides": []}', "not an opanatomy report", id="comparison"),
        pytest.param('{"comparison_schema": 1, "sides": 3}', "not an opanatomy report", id="type of comparison"),
        pytest.param('{"schema": 1, "provenance": {}, "traceEvents": []}', "has no operator", id="trace"),
        pytest.param('{"model_type": "bert", "schema": 1}', 'no "traceEvents"', id="configuration"),
        pytest.param("not JSON", "not a trace", id="no JSON"),
    ],
)
def test_a_report_that_cannot_be_shown_says_why(
    tmp_path: Path, content: bytes | str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _file(tmp_path, content)
    assert main(["analyze", str(path)]) == 1
    err = capsys.readouterr().err
    assert said in err
    assert str(path) in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("advice", 0, "why"), "it is {gone}", "names {gone}, which is not in `figures` - at `$.advice[0]`"),
        (("advice", 0, "id"), "a<b", "- at `$.advice[0].id`"),
        (("memory", "components", 0, "component"), "", "length >= 1 - at `$.memory.components[0].component`"),
        (("work", "rows"), 10**12, "a table claims 1000000000000 rows, but no column has that many - at `$.work`"),
        (("work", "uncosted_ns"), None, "row 0 has calls but no uncosted_ns - at `$.work`"),
        (("work", "phase", "codes"), -1, "row 0 has calls but no phase - at `$.work`"),
        (("step_kinds", 0, "wall_ns"), 7, "the report is damaged: `step_kinds[0].wall_ns` is 7, but its parts sum to"),
        (("estimated",), {"devices": []}, "length >= 1 - at `$.estimated.devices`"),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_what_does_not_fit_together_is_named_at_reading(
    tmp_path: Path, place: tuple[str | int, ...], value: object, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = below = json.loads(TEXT)
    for key in place[:-1]:
        below = below[key]
    below[place[-1]] = value
    assert main(["analyze", str(_file(tmp_path, json.dumps(report)))]) == 1
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_figures_of_a_comparison_are_of_each_side(compared: Path, tmp_path: Path) -> None:
    report = json.loads(compared.read_text())
    path = _file(tmp_path, json.dumps({**report, "sides": report["sides"][:1]}))
    with pytest.raises(opanatomy.OpanatomyError, match=r"`values` of .* has 2 values for 1 sides"):
        opanatomy.read(path)
    rows = [{**row, "values": [1, 1, 1], "lower_bounds": [], "at_most": [], "spreads": []} for row in report["figures"]]
    with pytest.raises(opanatomy.OpanatomyError, match="`decomposition` requires two sides, but there are 3"):
        opanatomy.read(
            _file(
                tmp_path,
                json.dumps({**report, "sides": 2 * report["sides"][:1] + report["sides"][:1], "figures": rows}),
            )
        )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["analyze", "C", "--redact"],
            "--redact: C is a saved comparison, but the option needs the report of a single run",
        ),
        (["analyze", "C", "--section", "idle"], "the option needs the report of a single run"),
        (["analyze", "C", "--jobs", "2"], "--jobs 2: C is a saved comparison, but the option needs the trace of a run"),
        (["analyze", "C", "C"], "C is a saved comparison, which can only be shown by itself"),
        (["compare", "C", "C"], "C: this is a saved comparison and covers several runs - pass the report or trace"),
        (["explain", "--unknown", "C"], "C: this is a saved comparison and covers several runs"),
    ],
)
def test_what_needs_a_run_is_refused_of_a_comparison(
    compared: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main([str(compared) if word == "C" else word for word in words]) in (1, 2)
    captured = capsys.readouterr()
    assert re.sub(r"\bC\b", str(compared), said) in captured.err
    assert captured.err.splitlines()[-1].startswith("opanatomy: ")
    assert captured.out == ""


# ------------------------------------------------------------------------------------------------------------ analyze


def test_losses_without_those_of_the_baseline_are_refused() -> None:
    document = json.loads(json_report(experiment()))
    for row in document["rows"]:
        if row["losses"] is not None:
            row["losses"]["baseline"].pop()
    with pytest.raises(opanatomy.OpanatomyError, match="`losses` and `baseline` have different lengths"):
        read_report(json.dumps(document))


def test_a_span_of_no_known_kind_is_refused() -> None:
    document = json.loads(json_report(anatomies.llama_on_gpu()))
    document["lanes"]["spans"]["kind"]["values"][0] = "-1"
    with pytest.raises(opanatomy.OpanatomyError, match=r"'-1' is not a kind of span - at `\$\.lanes\.spans`"):
        read_report(json.dumps(document))


def test_braces_in_names_and_reasons_are_words() -> None:
    document = json.loads(json_report(anatomies.llama_on_gpu()))
    document["advice"][0] |= {"why": "{} and {0"}
    assert "{} and {0." in terminal_report(read_report(json.dumps(document)), width=200)
    document = json.loads(json_report(experiment()))
    for row in document["rows"]:
        row["name"] = f"{{}} {row['name']}"
    assert "{} " in terminal_report(read_report(json.dumps(document)), width=200)


def test_a_number_that_no_chart_can_hold_is_named() -> None:
    pytest.importorskip("vl_convert")
    document = json.loads(json_report(anatomies.llama_on_gpu()))
    document["step"]["steps"][1]["unrecorded_ns"] = 2**70
    report = read_report(json.dumps(document))
    with pytest.raises(opanatomy.OpanatomyError, match=r"chart cannot be drawn: .*`1180591620717411303424`.* - use -f"):
        format_named("html").write(report, Page())


def test_an_experiment_is_shown_again_as_it_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also as the object that a user holds, whose picture a notebook shows."""
    monkeypatch.chdir(tmp_path)
    text = json_report(experiment())
    Path("kept.json").write_text(text)
    assert main(["analyze", "kept.json", "-f", "json"]) == 0
    assert capsys.readouterr().out == text
    assert main(["analyze", "kept.json", "-o", "kept.html", "--tables", "tables"]) == 0
    assert "Peak memory and step time of each technique" in Path("kept.html").read_text()
    read = opanatomy.read("kept.json")
    assert isinstance(read, opanatomy.Techniques)
    assert read == as_public(experiment())
    assert read.to_json() == text
    assert "<svg" in read._repr_html_()
    assert list(read.to_pandas()["name"]) == [row.name for row in read.rows]
    assert Path("tables/rows.csv").read_text().count("\n") > len(read.rows)
    assert f"{len(read.rows) - 1} techniques" in repr(read)
    with pytest.raises(opanatomy.UsageError, match="techniques"):
        read.to_pandas("operators")
    for words in (["--redact"], ["--fail-if", "time > 1s"], ["--jobs", "2"]):
        assert main(["analyze", "kept.json", *words]) == 2
        assert "kept.json is a report of techniques, but the option needs" in capsys.readouterr().err
    assert main(["compare", "kept.json", "kept.json"]) == 1
    assert "NAME.report.json" in capsys.readouterr().err


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
    for name in FORMATS:
        assert main(["analyze", "trace.json.gz", "-f", name]) == 0
        first = capsys.readouterr()
        assert main(["analyze", same_length, "-f", name]) == 0
        again = capsys.readouterr()
        assert again.out.replace(same_length, "trace.json.gz") == first.out, name
        assert again.err == f"{same_length}: a report by opanatomy 0.1.0, shown as saved; no trace was read\n"
    assert main(["analyze", "kept", "-f", "json"]) == 0
    assert capsys.readouterr().out == (folder / "kept").read_text()
    _file(folder, json_report(anatomies.llama_on_gpu()), "disagreeing.json")
    for name, code in (("bert.json", 0), ("disagreeing.json", 3)):  # a gate is held against what the report says
        assert main(["analyze", name, "--check"]) == code


def test_a_page_in_a_file_comes_with_its_conclusion_and_first_advice(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    shown = terminal_report(opanatomy.read("bert.json"), width=1000)
    assert main(["analyze", "bert.json", "-o", "page.html"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    *said, written, _ = captured.err.splitlines()
    assert written == "report: page.html"
    assert said
    assert all(" ".join(line.split()).rstrip(".") in " ".join(shown.split()) for line in said)


@pytest.mark.parametrize("top", [1, 3])
def test_tables_of_memory_have_as_many_rows_as_asked_for(top: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(ROOT / "reports" / "bert-memory.json"), "--section", "memory", "--top", str(top)]) == 0
    blocks = capsys.readouterr().out.split("\n\n")
    for heading in ("live at the peak", "saved for backward"):
        (table,) = [block for block in blocks if block.startswith(heading)]
        rows = table.split("\n")[2:]
        assert rows[top].startswith("and ")
        assert not any(row.startswith("and ") for row in rows[:top])


def test_ceilings_and_redaction_hold_for_a_report_as_for_its_trace(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    for words in (["--peak", "312T", "--bandwidth", "2T"], ["--redact"]):
        shown = []
        for name in ("trace.json.gz", "kept"):
            assert main(["analyze", name, "-f", "json", *words]) == 0
            shown.append(json.loads(capsys.readouterr().out))
        if "--peak" in words:  # the gains of a report that is read again are bounds, and not replayed
            of_trace, of_report = (each.pop("advice") for each in shown)
            assert {each["id"] for each in of_trace} <= {each["id"] for each in of_report}
            assert all(each.pop("replay") for each in shown)
        assert shown[0] == shown[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["kept", "--trace", "x.json"],
            "--trace x.json: kept is a report, but the option needs its trace - pass the trace",
        ),
        (["kept", "--phase", "forward=a", "--phase", "other=b"], "--phase forward=a --phase other=b: kept is a report"),
        (["kept", "--jobs", "2"], "--jobs 2: kept is a report"),
        (
            ["kept", "--at", "peak"],
            "--at peak: kept is a report, but the option needs a memory snapshot - pass the snapshot instead",
        ),
        (["kept", "-o", "kept", "--force", "-f", "json"], "-o kept: this is the report to show"),
        (
            ["kept", "bert.json"],
            "2 reports were passed, but only one can be shown - to see what changed, run opanatomy compare kept",
        ),
        (["trace.json.gz", "kept"], "kept is a report, but the others are not"),
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
        text for text in json.loads(capsys.readouterr().out)["caveats"] if "trace.report.json is left out" in text
    )
    assert "is an opanatomy report, not a trace" in warning


# -------------------------------------------------------------------------------------------------------- unlike things


def test_a_snapshot_and_a_trace_are_not_compared_and_one_beside_traces_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = TraceBuilder(metadata={"schemaVersion": 1, "deviceProperties": [H100]})
    trace.step(0, 1_000)
    trace.run(GEMM, 10, 20, 500)
    snapshot = tmp_path / "oom.pickle.gz"
    snapshot.write_bytes((SNAPSHOTS / "out_of_memory.pickle.gz").read_bytes())
    path = trace.write(tmp_path / "rank0.json")
    assert command(["compare", str(path), str(snapshot)]) == 2
    said = "a memory snapshot (oom.pickle.gz) cannot be compared with a step (rank0.json)"
    assert said in capsys.readouterr().err
    assert command(["analyze", str(tmp_path), "--section", "warnings"]) == 0
    assert "memory snapshots are left out: oom.pickle.gz" in " ".join(capsys.readouterr().out.split())


def test_what_may_be_wrong_is_among_the_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two kernels have each other's ids: `--check` fails, and the warnings say why."""
    trace = TraceBuilder(metadata={"schemaVersion": 1, "deviceProperties": [H100]})
    trace.step(0, 1_000)
    for call, (name, kernel) in enumerate((("aten::mm", MAP), ("aten::relu", GEMM))):
        trace.host(name, 100 * call, 50)
        trace.run(kernel, 100 * call + 10, 400 * call + 100, 300)
    path = trace.write(tmp_path / "swapped.json")
    assert command(["analyze", str(path), "--check", "--section", "warnings"]) == 3
    assert "The operator class of relu in forward may be wrong" in " ".join(capsys.readouterr().out.split())
    trace.events = trace.events[:-3]
    assert command(["analyze", str(trace.write(tmp_path / "good.json")), "--check", "--section", "warnings"]) == 0
    assert "no warnings" in capsys.readouterr().out
