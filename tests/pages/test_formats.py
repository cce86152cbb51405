"""Reports in every format: what a page says, that it fits and takes names as text, and what JSON and CSV hold."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Callable
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

import opanatomy
from opanatomy.__main__ import main
from opanatomy.errors import OpanatomyError, UsageError
from opanatomy.records.anatomy import VIEWS, Anatomy, DeviceFigures, StepRow
from opanatomy.records.experiment import Techniques
from opanatomy.records.memory import (
    Memory,
    MemoryBlocks,
    MemoryComponent,
    MemoryInference,
    MemoryPoint,
    MemorySnapshot,
    SavedActivations,
)
from opanatomy.records.reports import Report
from opanatomy.records.signature import SignatureText
from opanatomy.records.taxonomy import STEP_PHASES, OperatorClass, Phase
from opanatomy.records.work import KEYS, KernelRow, ModuleRow
from opanatomy.report import format_of, read_anatomy, terminal_report, units
from opanatomy.report.formats import FORMATS, format_named
from opanatomy.report.formats.json import json_schema
from opanatomy.report.names import cut, printable
from opanatomy.report.section import Page
from opanatomy.report.sections import HEADINGS, SECTIONS
from opanatomy.report.sections.operators import ORDERS
from tests.support import anatomies
from tests.support.experiments import experiment
from tests.support.made_trace import page as page_of
from tests.support.made_trace import training_step
from tests.support.paths import ROOT, TRACES

RANKS = [TRACES / f"gpu_v100_dlrm_rank{rank}of8.json.gz" for rank in (0, 1)]
CONTRACTION = OperatorClass.TENSOR_CONTRACTION
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@cache
def report_of(name: str) -> Any:
    """A report of the tests, or one that is kept."""
    if name.endswith(".json"):
        data = (ROOT / "reports" / name).read_bytes()
        return msgspec.json.decode(data, type=Techniques) if "/" in name else read_anatomy(data)
    if name == "two_ranks":
        return read_anatomy(opanatomy.analyze(RANKS).to_json())
    if name == "comparison":
        return opanatomy.compare(*RANKS)
    if name == "techniques":
        return experiment()
    made = getattr(anatomies, name, None)
    return made() if made else opanatomy.analyze(TRACES / f"{name}.json.gz")


MADE = ("bert_on_cpu", "llama_on_gpu", "nothing")
KEPT = ("bert-large-uncased.json", "bert-memory.json", "techniques/bert-large-uncased.json")
EVERY = (*MADE, "two_ranks", "comparison", "techniques", "gpu_mi300_graph", *KEPT)


def written(name: str | Report, format_name: str = "terminal", **options: Any) -> str:
    report = report_of(name) if isinstance(name, str) else name
    text: str = format_named(format_name).write(report, Page(**options))
    return text


def section(report: Any, name: str, **options: Any) -> list[str]:
    """The lines of a section, below its heading."""
    return terminal_report(report, width=200, sections=(name,), **options).splitlines()[2:]


# ------------------------------------------------------------------------------------------------------------- formats

GOLDEN = [
    *(("llama_on_gpu", f"{width}.txt", "terminal", {"width": width}) for width in (60, 80, 200)),
    ("llama_on_gpu", "80.ansi", "terminal", {"width": 80, "color": True}), ("bert_on_cpu", "80.txt", "terminal", {}),
    ("nothing", "80.txt", "terminal", {}), ("llama_on_gpu", "json", "json", {}), ("llama_on_gpu", "csv", "csv", {}),
    ("llama_on_gpu", "digest.md", "digest", {}), ("bert_on_cpu", "digest.md", "digest", {}),
    ("llama_on_gpu", "md", "markdown", {}), ("techniques", "digest.md", "digest", {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "ending", "format_name", "options"), GOLDEN, ids=[f"{row[0]}.{row[1]}" for row in GOLDEN]
)
def test_golden(
    name: str, ending: str, format_name: str, options: dict[str, Any], golden: Callable[[str, str], None]
) -> None:
    golden(f"{name}.{ending}", written(name, format_name, **options))


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("name", MADE)
def test_a_format_is_a_function_that_prints_nothing(
    format_name: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = written(name, format_name)
    assert text.endswith("\n")
    assert "\x1b" not in text
    for variable, value in (("FORCE_COLOR", "1"), ("COLUMNS", "40"), ("NO_COLOR", "1"), ("TERM", "dumb")):
        monkeypatch.setenv(variable, value)
        assert written(name, format_name) == text
    assert capsys.readouterr() == ("", "")


def test_the_format_of_a_file() -> None:
    names = ("a/report.json", "operators.CSV", "report.txt", "report.md", "report.digest.md")
    assert [format_of(name) for name in names] == ["json", "csv", "terminal", "markdown", "digest"]
    assert all(format_of(f"x{format_named(name).ending}") == name for name in FORMATS)
    for path in ("report", "report.docx", "json", ".json"):
        known = r".*\.csv, \.html, \.json, .*\.svg, \.folded"
        with pytest.raises(UsageError, match=rf"{path}: no report format has this file extension - use one of {known}"):
            format_of(path)


@pytest.mark.parametrize(
    ("options", "name", "begins"),
    [
        (["-f", "digest"], None, "# opanatomy digest\n"),
        (["-f", "markdown"], None, "## The anatomy of "),
        (["-o", "x.md"], "x.md", "## The anatomy of "),
        (["-f", "markdown", "--section", "idle"], None, "## The anatomy of "),
        (["-o", "x.Digest.MD"], "x.Digest.MD", "# opanatomy digest\n"),
        (["-o", "x.md", "-f", "digest"], "x.md", "# opanatomy digest\n"),
        (["-o", "made/", "-f", "digest"], "made/step.report.digest.md", "# opanatomy digest\n"),
        (["-o", "made/", "-f", "markdown"], "made/step.report.md", "## The anatomy of "),
    ],
)
def test_formats_are_written_where_they_are_asked_for(
    options: list[str], name: str | None, begins: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(training_step().write(here / "step.json.gz"))
    assert main(["analyze", trace, *options]) == 0
    text = capsys.readouterr().out if name is None else Path(name).read_text(encoding="utf-8")
    assert text.startswith(begins)


# ------------------------------------------------------------------------------------------------------------- numbers

NUMBERS: dict[Callable[..., str], list[tuple[Any, str]]] = {
    units.duration: [
        (0, "0 ns"), (999, "999 ns"), (12.5, "12.5 ns"), (0.001, "<0.01 ns"), (1000, "1.00 us"), (999_499, "999 us"),
        (999_500, "1.00 ms"), (41_200_000, "41.2 ms"), (999_700_000, "1.00 s"), (59_970_000_000, "60.0 s"),
        (599_400_000_000, "599 s"), (599_600_000_000, "10.0 min"), (3_599_000_000_000, "1.00 h"),
        (9_000_000_000_000_000, "2,500 h"), (-1_500_000, "-1.50 ms"), (None, "-"),
    ],
    units.size: [(1_343_000_000, "1.34 GB"), (1000, "1.00 kB")], units.flops: [(335_007_449_088, "335 GFLOP")],
    units.flop_rate: [(989.5e12, "990 TFLOP/s")], units.byte_rate: [(900e9, "900 GB/s")],
    units.prefixed: [(335_007_449_088, "335 G"), (0, "0")],
    units.share: [
        ((0, 100), "0.0 %"), ((38, 100), "38.0 %"), ((100, 100), "100.0 %"), ((99_970, 100_000), ">99.9 %"),
        ((1, 10**18), "<0.1 %"), ((1413, 1000), "141.3 %"), ((-5, 100), "-5.0 %"), ((5, 0), "-"), ((None, 100), "-"),
        ((5, None), "-"),
    ],
    units.ratio: [(2, "2.00"), (0.436, "0.44"), (27.34, "27.3"), (9.996, "10.0"), (1234.5, "1,234"), (0.001, "<0.01"),
                  (None, "-")],
    units.change: [((103.5, 100), "+3.5 %"), ((88, 100), "-12.0 %"), ((100, 100), "0.0 %"), ((100_001, 100_000),
        "<+0.1 %"),
                   ((99_999, 100_000), ">-0.1 %"), ((None, 1), "-"), ((1, None), "-"), ((1, 0), "-")],
    units.rate: [((0.07887, "samples"), "0.0789 samples/s"), ((8.864, "samples"), "8.86 samples/s"),
                 ((1e-6, "samples"), "<0.0001 samples/s"), ((None, "samples"), "-")],
    units.count: [(335_143_938, "335,143,938"), (None, "-")],
    units.plain: [(95_665_245_112.4, "95665200000"), (0.000012345678, "0.0000123457"), (None, "")],
}  # fmt: skip


@pytest.mark.parametrize("text_of", NUMBERS, ids=lambda text_of: text_of.__name__)
def test_numbers_in_words(text_of: Callable[..., str]) -> None:
    for value, text in NUMBERS[text_of]:
        assert text_of(*(value if isinstance(value, tuple) else (value,))) == text


@given(part=st.integers(0, 10**15), rest=st.integers(0, 10**15), more=st.integers(0, 10**6))
def test_what_is_printed_is_within_rounding_and_never_claims_more(part: int, rest: int, more: int) -> None:
    scale = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
    low, high = (
        float((text := units.duration(ns)).split()[0].replace(",", "")) * scale[text.split()[1]]
        for ns in (part, part + more)
    )
    assert low == pytest.approx(part, rel=0.00501)
    assert low <= high
    if part + rest:
        text = units.share(part, part + rest)
        assert ((text == "0.0 %"), (text == "100.0 %")) == (part == 0, rest == 0)


# ---------------------------------------------------------------------------------------------------------------- width

#: A command calls the trace by more than a narrow terminal has room for.
SOURCE = "/a/folder/of/traces/that/is/wider/than/a/terminal/of/forty/cells/trace.json.gz"


@pytest.mark.parametrize("name", EVERY)
def test_no_line_is_wider_than_the_terminal(name: str) -> None:
    """But for a command that is pasted whole, each word of which may be; lines end where their text ends."""
    for width in (*range(40, 105, 3), 120, 200):
        for color in (False, True) if width % 2 else (False,):
            text = _ANSI.sub("", written(name, width=width, color=color, source=SOURCE))
            assert all(line == line.rstrip() for line in text.splitlines())
            assert "\n\n\n" not in text
            wide = [line for line in text.splitlines() if cell_len(line) > width]
            assert all(len(shlex.split(line.removesuffix(" \\"))) <= 2 for line in wide), (width, wide)
            assert text.endswith("\n")


@pytest.mark.parametrize("name", ["bert_on_cpu", "llama_on_gpu"])
def test_a_column_never_vanishes_without_a_word(name: str) -> None:
    """Every header of every table at 200 columns is on a narrower page: above its column or among those left out."""
    for heading in HEADINGS:
        wide = section(report_of(name), heading)
        ruled = [at for at, line in enumerate(wide) if line and set(line) == {"─"}]
        headers = re.split(r"  +", wide[ruled[0] - 1].strip()) if ruled else []
        for width in (40, 60, 80):
            text = " ".join(terminal_report(report_of(name), width=width, sections=(heading,)).split())
            assert all(header in text for header in headers), (heading, width)


@pytest.mark.parametrize("height", [21, 23, 30, 49])
def test_a_first_screen_gives_way_to_the_height_of_the_terminal(height: int) -> None:
    """The headline and the advice stay, then the classes; what is left out is named with the option that shows it."""
    anatomy = report_of(KEPT[0])
    whole = written(anatomy, brief=True).splitlines()
    lines = written(anatomy, brief=True, height=height).splitlines()
    assert len(lines) <= height
    assert lines[:5] == whole[:5]
    assert any(line.startswith("advice") for line in lines)
    assert any(line.startswith("total") for line in lines) is (height >= 30)
    left = [line.partition("--section ")[2] for line in lines if line.startswith("left out of this screen")]
    gone = {21: ["operators,run,step,classes"], 23: ["operators,run,step,classes"], 30: ["operators,run,step"], 49: []}
    assert left == gone[height]
    assert next(index for index, line in enumerate(whole) if line.startswith("total")) < 37


@given(name=st.text(max_size=80), width=st.integers(1, 40))
def test_a_cut_name_fits_and_keeps_both_ends(name: str, width: int) -> None:
    name = printable(name)
    short = cut(name, width)
    assert cell_len(short) <= width
    if short != name and "…" not in name:
        head, tail = short.rsplit("…", 1)
        assert name.startswith(head)
        assert name.endswith(tail)
    assert (cut("模型の名前", 6), printable("a\x1bb\u202ec")) == ("模…前", "a�b�c")


# ------------------------------------------------------------------------------------------------------------ JSON, CSV

#: The keys of schema 3; keys are added, never renamed.
SCHEMA_3 = {
    "provenance": "opanatomy command created trace trace_sha256",
    "environment": "device device_kind device_count torch cuda driver transformers host_threads",
    "workload": "model architecture parameters task batch sequence_length dtype amp attention optimizer steps",
    "conventions": "multiply_add causal",
    "step": "wall_ns unprofiled_wall_ns phase_ns busy_ns kernel_time_ns framework_ns samples_per_second",
    "device_state": "",
    "step_kinds": "steps count wall_ns overlaps outside_ns unrecorded_ns host_idle_ns stream_idle_ns other_idle_ns "
    "framework_ns",
    "work": "rows operator signature phase operator_class rule module kernel step_kind calls events time_ns flops "
    "read_bytes written_bytes bound_ns bound_by like_ns",
    "theory": "operator_class flops bytes",
    "memory": "peak_bytes peak_at components timeline",
    "timeline": "window_ns busy_ns idle_ns communication_ns exposed_communication_ns exposed_memcpy_ns streams",
    "device": "peak_flops_per_second bandwidth_bytes_per_second source sm_efficiency occupancy tensor_core_ns mfu hfu",
    "ledger": "device_work_ns linked_ns graph_launched_ns no_launch_record_ns outside_window_ns classed_ns costed_ns "
    "unknown_ns",
}
REST = [
    "collectives",
    "communication",
    "ranks",
    "spread",
    "waiting",
    "generation",
    "run",
    "trends",
    "compilation",
    "replay",
    "situation",
    "host",
    "chains",
    "lanes",
    "spans",
    "checks",
    "texts",
    "warnings",
]


@pytest.mark.parametrize("name", MADE)
def test_json_reads_back_as_the_same_anatomy(name: str) -> None:
    """A column of the work is a line."""
    anatomy, text = report_of(name), written(name, "json")
    report = json.loads(text)
    assert tuple(report) == ("kind", "schema", "caveats", "estimated", "advice", *SCHEMA_3, *REST)
    for part, keys in SCHEMA_3.items():
        for row in report[part] if isinstance(report[part], list) else [report[part] or {}]:
            assert set(keys.split()) <= set(row) or not row, part
    assert [line.split(":")[0].strip() for line in text.splitlines() if '"values":' in line] == [
        f'"{name}"' for name in (*KEYS, *(anatomy.lanes.spans.keys if anatomy.lanes is not None else ()))
    ]
    assert (read_anatomy(text), written(read_anatomy(text), "json")) == (anatomy, text)
    turned = replace(anatomy, conventions=dict(reversed(anatomy.conventions.items())))
    assert written(turned, "json") == text

    # Keys and columns that a later version added, and one that an earlier one lacked.
    report["later"] = report["step"]["later"] = report["work"]["later"] = 1
    report["work"]["written"] = {"values": ["x"], "codes": -1}
    if all(code == -1 for code in anatomy.work.keys["only"].codes):
        del report["work"]["only"]
    assert read_anatomy(json.dumps(report)) == anatomy


@pytest.mark.parametrize("name", [*MADE, "comparison", "techniques/bert-large-uncased.json"])
def test_json_is_valid_by_the_published_schema(name: str) -> None:
    text = (ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8")
    assert json.loads(text) == json.loads(json.dumps(json_schema())), "run python docs/renew.py"
    validator = jsonschema.Draft202012Validator(json.loads(text))
    document = json.loads(written(name, "json"))
    validator.validate(document)
    assert not validator.is_valid(document | {"kind": "trace"})


@pytest.mark.parametrize("name", MADE)
def test_older_json_shows_the_same_tables_and_pages(name: str) -> None:
    """Of schema 2, which kept each table, and 1, in which a step had a field for each phase, `null` if it lacks one."""
    anatomy = report_of(name)
    assert isinstance(anatomy, Anatomy)

    def older(value: Any) -> Any:
        if isinstance(value, list):
            return list(map(older, value))
        if not isinstance(value, dict):
            return value
        made = {key: older(item) for key, item in value.items()}
        times = made.pop("phase_ns", None)
        return made if times is None else {**made, **{f"{phase}_ns": times.get(phase) for phase in STEP_PHASES}}

    report = json.loads(written(name, "json"))
    tables = (*VIEWS, "breakdown")
    of_2 = {key: item for key, item in report.items() if key not in ("kind", "work", "theory", "step_kinds")}
    of_2 |= {table: msgspec.to_builtins(getattr(anatomy, table), enc_hook=str) for table in tables} | {"schema": 2}
    for made in (of_2, older(of_2) | {"schema": 1}):
        again = read_anatomy(json.dumps(made))
        assert [getattr(again, table) for table in VIEWS] == [getattr(anatomy, table) for table in VIEWS]
        assert [written(again, page) for page in ("terminal", "html")] == [
            written(anatomy, page) for page in ("terminal", "html")
        ]
        assert read_anatomy(written(again, "json")) == again


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not an opanatomy report: the file is empty - "),
        *((text, "not an opanatomy report - ") for text in ("no json", b"\xff\xfe", "[]", b"\x1f\x8b\x08")),
        ('{"traceEvents": []}', "not an opanatomy report"),
        ('{"schema": 2}', "missing required field `classes`"),
        ('{"schema": 3, "kind": "anatomy"}', "missing required field `provenance`"),
        ('{"schema": 3, "kind": "trace"}', "Invalid value 'trace'"),
        ('{"schema": 4, "kind": "anatomy"}', "has schema 4, but this version of opanatomy reads only schema 3"),
        (
            written("llama_on_gpu", "json").replace("tensor_contraction", "tensor_contradiction", 1),
            r"tensor_contradiction.*class_ns",
        ),
        (
            json.dumps(json.loads(written("nothing", "json")) | {"work": {}}),
            "a table's `rows` is None, not a non-negative integer",
        ),
        (
            written("llama_on_gpu", "json").replace('"rows": ', '"rows": 1', 1),
            r"a table claims \d+ rows, but no column has that many",
        ),
    ],
)
def test_what_is_no_report_says_so(text: str | bytes, reason: str) -> None:
    with pytest.raises(OpanatomyError, match=reason) as caught:
        read_anatomy(text)
    assert "\n" not in str(caught.value)


def test_csv_has_a_row_for_each_operator_in_base_units() -> None:
    """What its columns give together is there; what is unknown is empty."""
    anatomy = report_of("bert_on_cpu")
    rows = list(csv.DictReader(StringIO(written(anatomy, "csv"))))
    assert [(row["operator"], row["signature"]) for row in rows] == [
        (row.operator, row.signature) for row in anatomy.operators
    ]
    assert sum(int(row["time_ns"]) for row in rows) == anatomy.ledger.device_work_ns
    index = next(index for index, row in enumerate(anatomy.operators) if row.operator == "aten::addmm")
    known, text = anatomy.operators[index], rows[index]
    moved = known.read_bytes + known.written_bytes
    for column, value in (
        ("flops_per_second", known.flops / known.time_ns * 1e9),
        ("bytes_per_second", moved / known.time_ns * 1e9),
        ("flops_per_byte", known.flops / moved),
    ):
        assert float(text[column]) == pytest.approx(value, rel=1e-5)
    assert [rows[-1][name] for name in ("flops", "read_bytes", "flops_per_second", "bound_by")] == [""] * 4
    for signature, cell in (("-, float32[2,3]", "-, float32[2,3]"), ("-", "-"), ("-1, 2", "'-1, 2"), ("=A1", "'=A1")):
        one = anatomies.with_tables(
            anatomy, operators=(replace(known, signature=SignatureText(signature), flops=10**18),)
        )
        (row,) = csv.DictReader(StringIO(written(one, "csv")))
        assert (row["signature"], row["flops"]) == (cell, str(10**18))


@pytest.mark.parametrize(
    "name", [*MADE, "two_ranks", *sorted(path.name.removesuffix(".json.gz") for path in TRACES.glob("*.gz"))]
)
def test_the_digest_fits_and_is_that_of_the_json_report(name: str) -> None:
    digest = written(name, "digest")
    assert len(digest.encode()) <= 4096
    assert [line for line in digest.splitlines() if line.startswith(("# ", "## "))] == [
        "# opanatomy digest",
        "## What ran",
        "## The step",
        "## Where the time went",
        "## Longest gaps and events",
        "## Memory",
        "## Largest findings",
        *(["## What to try"] if "## What to try" in digest else []),
        "## Warnings",
    ]
    assert digest == written(read_anatomy(written(name, "json")), "digest")
    kernels = [line.partition("`: ")[0] for line in digest.splitlines() if line.startswith("- kernel: `")]
    assert len(kernels) == len(set(kernels))


# ------------------------------------------------------------------------------------------------------------- the page


@pytest.mark.parametrize("name", [*MADE, "two_ranks"])
def test_every_section_can_be_asked_for_by_its_heading(name: str) -> None:
    printed = re.findall(r"^([a-z][a-z-]*)(?: \(.*\))? ─+$", written(name), re.MULTILINE)
    assert printed
    assert set(printed) <= set(HEADINGS)
    for heading in SECTIONS:
        lines = terminal_report(report_of(name), sections=(heading,)).splitlines()
        assert len(lines) > 1
        assert heading not in printed or any(line.startswith(heading) for line in lines[1:3])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--section idel", "--section idel: no such section - did you mean idle? Use one of caveats, given-peaks,"),
        ("--section idle,nonsense", "--section nonsense: no such section - use one of caveats, given-peaks,"),
        ("--section ,", "--section: the name is empty - use one of "),
        ("--section idle --brief", "--brief and --section both set how much of the report is shown"),
        ("--full --brief", "--brief and --full both set how much of the report is shown - leave one out"),
        ("--brief -f json", "--brief: -f json always writes the entire report"),
        ("--sort flop", "--sort flop: unknown - did you mean flops"),
    ],
)
def test_what_cannot_be_shown_is_refused(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(TRACES / "gpu_mi250_training.json.gz"), *words.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"opanatomy: {message}")


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(TRACES / "gpu_mi250_training.json.gz")
    assert main(["analyze", trace, "--brief"]) == 0
    brief = capsys.readouterr().out
    following = shlex.split(brief.partition("next: ")[2].partition("\n\n")[0].replace("\\\n", ""))
    assert following == ["opanatomy", "analyze", trace, "--section", "idle,host"]
    assert "operators" in brief
    assert "ledger" not in brief
    assert main(["analyze", trace, "--section", "idle,ledger", "--top", "2"]) == 0
    assert re.findall(r"^(\w+).* ─+$", capsys.readouterr().out, re.MULTILINE)[1:] == ["idle", "ledger"]


def shares(lines: list[str]) -> list[float]:
    """The shares of a table of operators or kernels."""
    return [float(match[1]) for line in lines if (match := re.search(r" (\d+\.\d) %", line))]


@pytest.mark.parametrize(
    "name", ["bert_on_cpu", "llama_on_gpu", "gpu_mi300_graph", "gpu_mi210_device_only", "bert_cpu"]
)
def test_tables_sum_to_all_of_the_time(name: str) -> None:
    anatomy = report_of(name)
    for top in (1, 8):
        for table in ("operators", "kernels"):
            if getattr(anatomy, table):
                assert sum(shares(section(anatomy, table, top=top))) == pytest.approx(100, abs=0.5), table


@pytest.mark.parametrize("order", ORDERS)
def test_operators_in_the_order_of_a_figure(order: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first row is the operator with most of it, and the table is all of the time still."""
    (tmp_path / "llama.json").write_text(written("llama_on_gpu", "json"))
    assert main(["analyze", str(tmp_path / "llama.json"), "--section", "operators", "--top", "3", "--sort", order]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = next(line for line in lines[lines.index("") if "" in lines else 3 :] if " % " in line).split()
    expected = {"time": "mm", "flops": "mm", "bytes": "mm", "calls": "mul", "headroom": "mm", "name": "_flash_att"}
    assert first[0].startswith(expected[order])
    assert sum(shares(lines)) == pytest.approx(100, abs=0.5)


def changed_step(anatomy: Anatomy, **fields: Any) -> Anatomy:
    return replace(anatomy, step=replace(anatomy.step, **fields))


def test_what_a_page_says_of_what_is_not_known() -> None:
    bert, llama = report_of("bert_on_cpu"), report_of("llama_on_gpu")
    text = page_of(llama)
    for words in (
        "unknown mine[bold]::backward 0.5 %, mine[bold]::forward 0.4 %",
        "[no markup here]",
        "model.layers.[3].self_attn kept",
        "classes below 1 % of the time are omitted",
    ):
        assert words in text
    assert "no GPU used" in page_of(bert)
    assert "no GPU" not in text
    unknown = next(row for row in llama.operators if row.operator_class is OperatorClass.UNKNOWN)
    many = tuple(replace(unknown, operator=f"op{index}", time_ns=10**6 * (9 - index)) for index in range(9))
    assert re.search(
        r"op0 [\d.]+ %, op1 [\d.]+ %, op2 .*, op4 [\d.]+ %, 4 more",
        page_of(anatomies.with_tables(llama, operators=many)),
    )
    lost = page_of(anatomies.with_tables(bert, operators=bert.operators[1:]), "operators")
    assert "without an operator" in lost
    whole = changed_step(llama, count=1, unprofiled_wall_ns=None, steps=(StepRow(number=None, wall_ns=160_000_000),))
    assert "no step is annotated, so the entire trace counts as one" in page_of(whole)
    assert " plain" not in page_of(changed_step(llama, wall_ns=None, unprofiled_wall_ns=None))


def test_flops_of_less_than_half_of_the_time_have_no_shares() -> None:
    """A ResNet of whose convolutions 0.1 % had FLOPs: "contraction 7.27 %" stood beside the paper's 99.80 %."""
    anatomy = report_of("bert_on_cpu")
    known = tuple(replace(row, flops=row.flops or 0, uncosted_ns=0) for row in anatomy.classes)

    def lost(part: float) -> str:
        rows = tuple(
            replace(row, uncosted_ns=round(part * row.time_ns)) if row.operator_class is CONTRACTION else row
            for row in known
        )
        return page_of(anatomies.with_tables(anatomy, classes=rows), "classes", "paper")

    for part, shown in ((0.5, True), (0.51, False), (0.9, False)):
        assert ("arXiv 2007.00072" in lost(part)) is shown
        assert (re.search(r"tensor contraction [^≥]{0,60} ≥\d+ G", lost(part)) is not None) is (part <= 0.5)
    other = tuple(row for row in known if row.operator_class is not OperatorClass.ELEMENTWISE)
    assert "arXiv" not in page_of(anatomies.with_tables(anatomy, classes=other), "classes")
    assert "arXiv" not in page_of(report_of("llama_on_gpu"))  # a decoder
    assert "arXiv" in page_of(report_of("llama_on_gpu"), "paper")


def test_figures_are_of_one_step_and_headings_say_so() -> None:
    """Three equal steps are the page of one of them, but for the words."""
    one = report_of("bert_on_cpu")
    names = ("calls", "time_ns", "uncosted_ns", "flops", "read_bytes", "written_bytes")
    alone, three = (
        tuple(replace(row, **{name: factor * (getattr(row, name) or 0) for name in names}) for row in one.classes)
        for factor in (1, 3)
    )
    reports = (
        anatomies.with_tables(changed_step(one, count=count), classes=rows) for count, rows in ((1, alone), (3, three))
    )
    pages = [terminal_report(report, sections=("classes",)).splitlines() for report in reports]
    assert pages[0][2:] == pages[1][2:]
    assert pages[1][1].startswith("classes (per step, mean of 3; shares of the operator time) ────")


def module(path: str, time_ns: int, phase: Phase = Phase.FORWARD, kind: str = "Linear") -> ModuleRow:
    return ModuleRow(
        module=path,
        kind=kind,
        phase=phase,
        operator_class=CONTRACTION,
        time_ns=time_ns,
        flops=10,
        read_bytes=1,
        written_bytes=1,
    )


def test_modules_that_are_alike_are_one_and_what_is_outside_has_a_row() -> None:
    layers = [module(f"encoder.layer.{number}.{part}", 10) for number in (0, 1, 2, 4) for part in ("attention", "norm")]
    rows = (
        *layers,
        module("encoder.layer.3.attention", 7, kind="Sparse"),
        module("head", 50),
        module("head", 90, Phase.BACKWARD),
    )
    bert = report_of("bert_on_cpu")
    classes = tuple(
        replace(bert.classes[0], phase=phase, time_ns=ns) for phase, ns in ((Phase.FORWARD, 140), (Phase.BACKWARD, 98))
    )
    lines = section(anatomies.with_tables(anatomies.nothing(), modules=rows, classes=classes), "modules")
    table = [re.split(r"  +", line.strip())[:5] for line in lines if " ns" in line]
    assert table == [
        ["the model", "227 ns", "95.4 %", "137 ns", "90 ns"],
        ["head", "140 ns", "58.8 %", "50 ns", "90 ns"],
        ["encoder.layer", "87 ns", "36.6 %", "87 ns", "-"],
        ["0-2, 4", "80 ns", "33.6 %", "80 ns", "-"],
        ["attention", "40 ns", "16.8 %", "40 ns", "-"],
        ["norm", "40 ns", "16.8 %", "40 ns", "-"],
        ["3.attention", "7 ns", "2.9 %", "7 ns", "-"],
        ["outside modules", "11 ns", "4.6 %"],
    ]
    assert "    encoder.layer.0-23" in written(KEPT[0])


def test_kernels_are_told_apart_by_what_is_not_cut() -> None:
    row = KernelRow(
        kernel="void at::native::(anonymous namespace)::softmax_warp_forward<float>",
        operator_class=CONTRACTION,
        rule="",
        count=1,
        time_ns=10,
        operators=("aten::_softmax", "aten::softmax"),
    )
    text = terminal_report(
        anatomies.with_tables(report_of("llama_on_gpu"), kernels=(row,)), width=120, sections=("kernels",)
    )
    assert "softmax_warp_forward<float>  contraction" in text
    assert "aten::_softmax and 1 more" in text
    source = "measured 2026-01-01; else data sheet of H100 SXM, https://example.com/sheet.pdf; else this"
    device = DeviceFigures(peak_flops_per_second={"bfloat16": 1e15}, source=source, mfu_dtype="bfloat16")
    text = page_of(replace(report_of("llama_on_gpu"), device=device))
    assert "measured 2026-01-01; else data sheet of H100 SXM; else this" in text
    assert "://" not in text


# --------------------------------------------------------------------------------------------------------------- memory


def point(time_ns: int, phase: Phase, **components: int) -> MemoryPoint:
    return MemoryPoint(time_ns=time_ns, phase=phase, allocated_bytes=sum(components.values()), components=components)


MEMORY = Memory(
    peak_bytes=14_000_000,
    peak_at="backward",
    measured_by="a test",
    components=(
        MemoryComponent(component="weights", measured_bytes=4_000_000, theory_bytes=4_000_000, at_peak_bytes=4_000_000),
        MemoryComponent(component="forward_activations", measured_bytes=8_000_000, at_peak_bytes=6_000_000),
        MemoryComponent(component="temporary_buffers", measured_bytes=4_000_000, at_peak_bytes=4_000_000),
    ),
    inferences=(MemoryInference(component="gradients", rule="by its times", bytes=1, blocks=1),),
    timeline=(
        point(0, Phase.FORWARD, weights=4_000_000),
        point(50, Phase.FORWARD, weights=4_000_000, forward_activations=8_000_000),
        point(60, Phase.BACKWARD, weights=4_000_000, forward_activations=6_000_000, temporary_buffers=4_000_000),
        point(100, Phase.BACKWARD, weights=4_000_000, strange=2_000_000),
    ),
    blocks=(
        MemoryBlocks(
            operator="aten::mm",
            module="encoder.layer.0",
            phase=Phase.FORWARD,
            component="forward_activations",
            blocks=3,
            bytes=6_000_000,
            largest_bytes=2_000_000,
        ),
    ),
    unlisted_bytes=8_000_000,
    activations=(
        SavedActivations(
            module="encoder.layer.*",
            operator="aten::_softmax",
            shape=(2, 4, 8, 8),
            dtype="float32",
            blocks=24,
            bytes=24 * 67_000_000,
        ),
    ),
    snapshots=(MemorySnapshot(name="after_weights", allocated_bytes=4_000_000, nvml_used_bytes=1_343_000_000),),
    notes=("NVML is not there: the device's own figure is unknown.",),
)


def test_memory_has_its_parts_and_a_curve_to_scale() -> None:
    lines = terminal_report(replace(anatomies.nothing(), memory=MEMORY), width=100).splitlines()
    found = {line.split("  ")[0]: line.split() for line in lines if line}
    assert found["weights"][1:] == ["4.00", "MB", "4.00", "MB", "4.00", "MB", "0.0", "%"]
    assert (found["peak in backward"][-2:], found["after weights"][2:]) == (
        ["14.0", "MB"],
        ["4.00", "MB", "1.34", "GB"],
    )
    text = " ".join(lines)
    for words in ("24 x 67.0 MB", "gradients (inferred): by its times", "NVML is not there"):
        assert words in text
    lines = terminal_report(replace(anatomies.nothing(), memory=MEMORY), width=60).splitlines()
    top = next(index for index, line in enumerate(lines) if line.lstrip().startswith("14.0 MB"))
    rows = [line[11:].ljust(48) for line in lines[top : top + 7]]
    columns = ["".join(row[index] for row in reversed(rows)) for index in range(48)]
    # Of 14 MB in seven cells 4 MB are two, 8 MB four, 6 MB three; phases have capital letters.
    assert (columns[0], columns[47]) == ("ww     ", "ww?    ")
    assert {"wwaaaa ", "wwaaatt"} <= set(columns)
    assert lines[top + 7][11:].startswith("F")
    assert lines[top + 7].endswith("B")
    few = terminal_report(replace(anatomies.nothing(), memory=replace(MEMORY, timeline=MEMORY.timeline[:2])))
    assert "allocated over" not in few
    assert "too narrow for the curve" in page_of(replace(anatomies.nothing(), memory=MEMORY), width=30)


def test_the_cpu_has_no_rows_of_a_device() -> None:
    snapshots = tuple(MemorySnapshot(name=name, rss_bytes=9) for name in ("before_the_device", "context", "weights"))
    bert = report_of("bert_on_cpu")
    anatomy = replace(bert, memory=Memory(snapshots=snapshots), environment=replace(bert.environment, host_threads=1))
    rows = [line.split("  ")[0] for line in section(anatomy, "snapshots") if " B" in line]
    assert rows == ["at the start", "weights"]
    text = written(anatomy)
    assert ", 1 thread)" in text
    assert not re.search(r"^idle ", text, re.MULTILINE)
