"""What a user of Python has: the forms of an `Anatomy`, reports read back, errors that speak of arguments, help."""

from __future__ import annotations

import ast
import copy
import inspect
import json
import pickle
import pydoc
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import nn

import opanatomy
from opanatomy import errors
from opanatomy.analysis.checks import require_agreement
from opanatomy.api import Anatomy, Comparison, held
from opanatomy.options import on_command_line
from opanatomy.records.anatomy import DeviceFigures, Provenance, StepRow, StreamRow
from opanatomy.records.memory import Memory, MemoryPoint
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import Workload
from opanatomy.report.formats.json import json_report
from opanatomy.report.frames import columns_of, table_names
from opanatomy.report.metrics import metrics_of
from tests import anatomies

ROOT = Path(__file__).parent.parent
TRACES = Path(__file__).parent / "traces"
REPORT = ROOT / "reports" / "bert-large-uncased.json"
MADE = [held(anatomies.bert_on_cpu()), held(anatomies.llama_on_gpu()), held(anatomies.nothing())]
EVERY = pytest.mark.parametrize("anatomy", MADE, ids=["cpu", "gpu", "nothing"])
X = torch.ones(3, 4)


@pytest.fixture(scope="module")
def ranks() -> Anatomy:
    return opanatomy.analyze([TRACES / f"gpu_v100_dlrm_rank{rank}of8.json.gz" for rank in range(2)])


# ------------------------------------------------------------------------------------------------------------- records


@EVERY
def test_an_anatomy_is_hashed_compared_copied_and_pickled_by_what_it_holds(anatomy: Anatomy) -> None:
    for other in (pickle.loads(pickle.dumps(anatomy)), copy.copy(anatomy), copy.deepcopy(anatomy)):
        assert other == anatomy
        assert hash(other) == hash(anatomy)
    assert len({anatomy, held(opanatomy.report.read_anatomy(json_report(anatomy)))}) == 1
    assert replace(anatomy, warnings=(*anatomy.warnings, "one more")) != anatomy


def test_the_order_of_a_mapping_is_not_part_of_a_record() -> None:
    figures = DeviceFigures(peak_flops_per_second={"float32": 1.0, "tf32": 2.0})
    turned = DeviceFigures(peak_flops_per_second={"tf32": 2.0, "float32": 1.0})
    assert figures == turned
    assert hash(figures) == hash(turned)
    assert figures != DeviceFigures(peak_flops_per_second={"float32": 1.0})


def test_every_record_in_an_anatomy_is_hashable_and_has_a_short_repr(ranks: Anatomy) -> None:
    seen: set[type] = set()
    for anatomy in (*MADE, ranks, opanatomy.read(REPORT)):
        for record in records_in(anatomy):
            hash(record)
            text = repr(record)
            assert len(text) < 900
            assert "\n" not in text
            seen.add(type(record))
    assert {StreamRow, Workload, StepRow} <= seen


def records_in(value: Any) -> Iterator[Struct]:
    if isinstance(value, tuple):
        for item in value:
            yield from records_in(item)
    elif isinstance(value, Struct) and type(value).__module__.startswith(("opanatomy.records.", "opanatomy.api")):
        yield value
        for name in value.__struct_fields__:
            yield from records_in(getattr(value, name))


def test_the_repr_of_a_row_leaves_out_what_is_not_known_and_the_middle_of_what_is_long() -> None:
    row = replace(held(anatomies.llama_on_gpu()).operators[0], operator="a" * 5000 + "\x1b[31m")
    text = repr(row)
    assert "part_of" not in text
    assert "phase=backward" in text
    assert "\x1b" not in text
    assert "aaa…aaa" in text


# ------------------------------------------------------------------------------------------------------------- the line


def test_the_repr_says_what_ran_its_step_and_what_takes_most() -> None:
    bert, llama, nothing = map(repr, MADE)
    assert bert == ("<Anatomy of google-bert/bert-large-uncased: step 9.35 s, tensor contraction 82.1 %, peak 13.6 GB>")
    assert llama.startswith("<Anatomy of meta-llama/Llama-3.2-1B: step ")
    assert nothing == "<Anatomy: no device work>"


def test_the_repr_of_ranks_says_how_many(ranks: Anatomy) -> None:
    assert ", ".join(repr(ranks).split(", ")[:1]).endswith(": 2 ranks")
    assert str(ranks) == repr(ranks) == f"{ranks}"


def test_a_strange_name_stays_on_the_line() -> None:
    strange = replace(MADE[2], workload=Workload(model="a\nb\x1b[2J‮" + 500 * "c"))
    assert len(repr(strange)) < 120
    assert repr(strange).isprintable()


# ------------------------------------------------------------------------------------------------------------- notebook


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def elements(anatomy: Anatomy) -> Elements:
    parser = Elements()
    parser.feed(anatomy._repr_html_())
    parser.close()
    assert parser.open == []
    return parser


def test_a_notebook_shows_the_first_screen_as_tables(ranks: Anatomy) -> None:
    for anatomy in (*MADE, ranks):
        assert set(elements(anatomy).attributes) <= {"class", "style", "title"}
    page = elements(held(anatomies.bert_on_cpu()))
    assert page.tags.count("table") >= 3
    for text in ("google-bert/bert-large-uncased", "9.35 s", "tensor contraction", "aten::addmm", "82.1 %"):
        assert text in page.text


def test_a_notebook_decides_the_colours_of_text_and_ground() -> None:
    html = held(anatomies.llama_on_gpu())._repr_html_()
    assert set(re.findall(r"background:([^;\"]+)", html)) == {"transparent"}
    coloured = re.findall(r'<span style="color:#\w+">(.*?)</span>', html)
    assert set(coloured) == {"&#9632;"}
    assert set(re.findall(r"[\"; ]color:(?!#)([^;\"]+)", html)) == {"inherit"}


HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp;\x1b[31m‮</td>"


def hostile_anatomy() -> Anatomy:
    anatomy = held(anatomies.llama_on_gpu())
    operators = tuple(replace(row, operator=HOSTILE) for row in anatomy.operators)
    return replace(
        anatomy, operators=operators, warnings=(HOSTILE,), provenance=Provenance(opanatomy=HOSTILE, trace=HOSTILE),
        workload=replace(anatomy.workload, model=HOSTILE, architecture=HOSTILE, changes=(HOSTILE,)),
        environment=replace(anatomy.environment, device=HOSTILE, torch=HOSTILE),
    )  # fmt: skip


def test_hostile_names_are_text_in_a_notebook() -> None:
    page = elements(hostile_anatomy())
    assert set(page.tags) <= {
        "code",
        "div",
        "p",
        "strong",
        "small",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "span",
    }
    assert set(page.attributes) <= {"class", "style", "title"}
    assert "<script>alert(1)</script>" in page.text
    assert not set(page.text) & {"\x1b", "‮"}


# ------------------------------------------------------------------------------------------------------- dict and JSON


@EVERY
def test_the_dictionary_is_the_json_report(anatomy: Anatomy) -> None:
    assert anatomy.to_dict() == json.loads(json_report(anatomy))
    assert anatomy.to_json() == json_report(anatomy)
    plain(anatomy.to_dict())


def plain(value: Any) -> None:
    assert type(value) in (dict, list, str, int, float, bool, type(None))
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        plain(item)


def test_a_report_is_written_whole_and_read_back(tmp_path: Path) -> None:
    class Named:
        def __fspath__(self) -> str:
            return str(tmp_path / "report.json")

    anatomy = held(anatomies.bert_on_cpu())
    text = anatomy.to_json(Named())
    assert (tmp_path / "report.json").read_text() == text
    for name in (Named(), tmp_path / "report.json", str(tmp_path / "report.json")):
        assert opanatomy.read(name) == anatomy
    with pytest.raises(opanatomy.OutputError, match="it exists already - give force=True"):
        anatomy.to_json(tmp_path / "report.json")
    held(anatomies.nothing()).to_json(tmp_path / "report.json", force=True)
    assert opanatomy.read(tmp_path / "report.json") == held(anatomies.nothing())
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_what_is_no_report_is_refused(tmp_path: Path) -> None:
    trace = TRACES / "bert_cpu.json.gz"
    for name, said in (
        (trace, "is not a report of opanatomy"), (tmp_path, "it is a folder"), (tmp_path / "x.json", "No such file"),
        (ROOT / "README.md", "is not a report"), ("s3://bucket/r.json", "it is an address"), (None, "not None"),
        (b"r.json", "not of type bytes"), ("", "the name is empty"),
    ):  # fmt: skip
        with pytest.raises(opanatomy.OpanatomyError, match=r"^read: ") as caught:
            opanatomy.read(name)  # type: ignore[arg-type]
        assert said in str(caught.value)
    cut = tmp_path / "cut.json"
    cut.write_text(REPORT.read_text()[:-500])
    with pytest.raises(opanatomy.OpanatomyError, match="cut off or damaged"):
        opanatomy.read(cut)


# ---------------------------------------------------------------------------------------------------------- comparisons

RANK_FILES = [TRACES / f"gpu_v100_dlrm_rank{rank}of8.json.gz" for rank in range(2)]
#: Comparisons of two sides, of three, of several runs a side, with gates, redacted, and of sides without work.
COMPARED: dict[str, Callable[[], Comparison]] = {
    "two": lambda: opanatomy.compare(*RANK_FILES),
    "three": lambda: opanatomy.compare(*RANK_FILES, TRACES / "bert_cpu.json.gz"),
    "runs": lambda: opanatomy.compare([RANK_FILES[0]] * 2, [RANK_FILES[1]] * 3),
    "gates": lambda: opanatomy.compare(*RANK_FILES, fail_if=["time > +50%", "flops > +10%"]),
    "redacted": lambda: opanatomy.compare(*RANK_FILES, redact=True),
    "cpu": lambda: opanatomy.compare(TRACES / "bert_cpu.json.gz", TRACES / "bert_checkpointing_amp_cpu.json.gz"),
    "nothing": lambda: opanatomy.compare(held(anatomies.nothing()), held(anatomies.nothing())),
    "huge": lambda: opanatomy.compare(
        replace(
            held(anatomies.llama_on_gpu()),
            operators=(replace(held(anatomies.llama_on_gpu()).operators[0], flops=2**60 + 1),),
        ),
        held(anatomies.llama_on_gpu()),
    ),
}
OF_EACH = pytest.mark.parametrize("name", COMPARED)


@cache
def compared(name: str) -> Comparison:
    return COMPARED[name]()


@OF_EACH
def test_a_comparison_is_written_whole_and_read_back(name: str, tmp_path: Path) -> None:
    comparison, path = compared(name), tmp_path / "c.json"
    text = comparison.to_json(path)
    read = opanatomy.read(path)
    assert read == comparison
    assert hash(read) == hash(comparison)
    assert read.to_json() == text == path.read_text()
    assert (repr(read), read._repr_html_(), read.metrics()) == (
        repr(comparison), comparison._repr_html_(), comparison.metrics()
    )  # fmt: skip
    assert pickle.loads(pickle.dumps(comparison)) == comparison
    with pytest.raises(opanatomy.OutputError, match="it exists already - give force=True"):
        comparison.to_json(path)


@OF_EACH
def test_metrics_of_a_comparison_are_plain_numbers_of_every_side(name: str) -> None:
    comparison = compared(name)
    metrics = comparison.metrics()
    assert {type(value) for value in metrics.values()} <= {int, float}
    sides = ("before", "after") if len(comparison.sides) == 2 else ("1", "2", "3")
    for row in comparison.figures:
        assert [metrics.get(f"{row.name}.{side}") for side in sides] == list(row.values)
        known = len(sides) == 2 and row.change is not None
        assert metrics.get(f"{row.name}.change") == (row.change if known else None)
    causes = sum(value for key, value in metrics.items() if key.startswith("like_step_ns.change."))
    assert causes == metrics.get("like_step_ns.change", 0)


def test_frames_of_a_comparison_are_its_parts_to_the_nanosecond() -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    comparison = compared("two")
    assert comparison.decomposition is not None
    parts = comparison.decomposition.parts
    for frame in (comparison.to_pandas(), comparison.to_polars("decomposition.parts")):
        assert list(frame["before_ns"]) == [part.before_ns for part in parts]
        assert list(frame["change_ns"]) == [part.after_ns - part.before_ns for part in parts]
        assert int(frame["change_ns"].sum()) == comparison.decomposition.change_ns
        assert list(frame["cause"]) == [str(part.cause) for part in parts]
        operators = [None if part.after is None else list(part.after.operators) for part in parts]
        assert [None if cell is None else list(cell) for cell in frame["after.operators"]] == operators
    assert str(comparison.to_pandas()["change_ns"].dtype) == "Int64"
    assert comparison.to_polars()["after_ns"].dtype == polars.Int64
    figures = comparison.to_pandas("figures")
    for place, side in enumerate(comparison.sides):
        cells = [None if cell is pandas.NA else cell for cell in figures[f"values.{side.name}"]]
        assert cells == [row.values[place] for row in comparison.figures]
    assert "change" in figures.columns


@OF_EACH
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_every_table_of_a_comparison_is_one(name: str, library: str) -> None:
    pytest.importorskip(library)
    comparison = compared(name)
    to_frame = getattr(comparison, f"to_{library}")
    first = "figures" if comparison.decomposition is None else "parts"
    assert list(to_frame().columns) == list(to_frame(first).columns)
    assert set(table_names(Comparison)) == {"parts", "figures", "sides", "kinds", "gates", "metrics"}
    for table in table_names(Comparison):
        assert len(to_frame(table)) == len(columns_of(comparison, table, "x")[0].values)
    if len(comparison.sides) > 2:
        assert "change" not in to_frame("figures").columns
    with pytest.raises(opanatomy.UsageError, match=rf"^to_{library}: table='operators': not known.*parts") as caught:
        to_frame("operators")
    assert all(table in str(caught.value) for table in table_names(Comparison))


def test_help_of_a_comparison_documents_every_field_and_method() -> None:
    text = help_of(Comparison)
    for name in Comparison.__struct_fields__:
        assert re.search(rf"^ \|  {name}: \w.*$", text, re.MULTILINE), name
    methods = [name for name, value in vars(Comparison).items() if callable(value) and not name.startswith("_")]
    assert methods == [name for name, value in vars(Anatomy).items() if callable(value) and not name.startswith("_")]
    for method in methods:
        own, of_anatomy = (inspect.signature(getattr(kind, method)) for kind in (Comparison, Anatomy))
        assert list(own.parameters) == list(of_anatomy.parameters)
        assert getattr(Comparison, method).__doc__
    assert all(name in (Comparison.to_pandas.__doc__ or "") for name in table_names(Comparison))


# ---------------------------------------------------------------------------------------------------------- data frames


def test_every_table_of_the_report_is_one(ranks: Anatomy) -> None:
    """A tuple of records in the JSON report, wherever it is but in a row, is a table with a row for each."""
    seen: set[str] = set()
    for anatomy in (*MADE, ranks):
        tables = dict(tables_in(anatomy.to_dict(), ""))
        seen |= set(tables)
        for path, rows in tables.items():
            columns = columns_of(anatomy, path, "x")
            assert {len(column.values) for column in columns} == {len(rows)}, path
            for column in columns:
                values = [row.get(column.name, None) for row in rows] if "." not in column.name else column.values
                assert column.values == values, f"{path}: {column.name}"
    assert {"operators", "step.steps", "waiting.each", "timeline.streams", "ranks"} <= seen


def tables_in(value: dict[str, Any], prefix: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for name, item in value.items():
        if isinstance(item, dict):
            yield from tables_in(item, f"{prefix}{name}.")
        elif isinstance(item, list) and item and all(isinstance(row, dict) for row in item):
            yield prefix + name, item


def test_mappings_and_records_in_rows_are_columns_of_their_own() -> None:
    point = MemoryPoint(time_ns=1, phase=Phase.FORWARD, allocated_bytes=7, components={"weights": 3, "other": 4})
    later = replace(point, time_ns=2, components={"gradients": 9})
    anatomy = replace(held(anatomies.nothing()), memory=Memory(timeline=(point, later)))
    columns = {column.name: column.values for column in columns_of(anatomy, "curve", "x")}
    assert columns["components.weights"] == [3, None]
    assert columns["components.gradients"] == [None, 9]
    assert columns["phase"] == ["forward", "forward"]
    assert type(columns["phase"][0]) is str


def test_short_names_lead_to_their_tables() -> None:
    anatomy = held(anatomies.bert_on_cpu())
    for short, path in (("memory", "memory.components"), ("Steps", "step.steps"), ("memory components", "memory")):
        assert columns_of(anatomy, short, "x") == columns_of(anatomy, path, "x")
    assert [name for name in table_names() if not columns_of(anatomy, name, "x")] == []


def test_the_table_of_metrics_has_units() -> None:
    anatomy = held(anatomies.bert_on_cpu())
    name, value, unit, better, lower_bound, exact = columns_of(anatomy, "metrics", "x")
    assert dict(zip(name.values, value.values, strict=True)) == anatomy.metrics()
    assert (unit.values[0], better.values[0]) == ("ns", "lower")
    assert not any(lower_bound.values)
    assert exact.values[list(name.values).index("flops")] is True


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_table_that_is_none_is_refused_with_all_names(library: str) -> None:
    pytest.importorskip(library)
    with pytest.raises(opanatomy.UsageError, match=rf"^to_{library}: table='operater': not known - did") as caught:
        getattr(held(anatomies.nothing()), f"to_{library}")("operater")
    assert all(name in str(caught.value) for name in table_names())


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_library_that_is_missing_is_named_with_the_extra(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(opanatomy.OpanatomyError, match=rf"to_{library} needs {library}, which is not") as caught:
        getattr(held(anatomies.nothing()), f"to_{library}")()
    assert "'opanatomy[data]'" in str(caught.value)


def test_pandas_frames_hold_what_the_records_do(ranks: Anatomy) -> None:
    pandas = pytest.importorskip("pandas")
    llama = held(anatomies.llama_on_gpu())
    frame = llama.to_pandas()
    assert list(frame.columns) == list(type(llama.operators[0]).__struct_fields__)
    assert frame.time_ns.tolist() == [row.time_ns for row in llama.operators]
    assert [None if cell is pandas.NA else cell for cell in frame.flops] == [row.flops for row in llama.operators]
    assert frame.groupby("phase").time_ns.sum()["recompute"] == 2 * (12 * 430_000 + 24 * 52_000)
    assert str(frame.flops.dtype) == "Int64"
    for name in table_names():
        assert len(ranks.to_pandas(name)) == len(columns_of(ranks, name, "x")[0].values)


def test_polars_frames_hold_what_the_records_do(ranks: Anatomy) -> None:
    polars = pytest.importorskip("polars")
    llama = held(anatomies.llama_on_gpu())
    frame = llama.to_polars("kernels")
    assert frame["operators"].to_list() == [list(row.operators) for row in llama.kernels]
    assert frame["time_ns"].dtype == polars.Int64
    assert llama.to_polars()["flops"].to_list() == [row.flops for row in llama.operators]
    for name in table_names():
        assert ranks.to_polars(name).height == len(columns_of(ranks, name, "x")[0].values)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_integers_beyond_64_bits_are_floats(library: str) -> None:
    pytest.importorskip(library)
    anatomy = held(anatomies.llama_on_gpu())
    row = replace(anatomy.operators[0], flops=10**25)
    frame = getattr(replace(anatomy, operators=(row, *anatomy.operators[1:])), f"to_{library}")("operators")
    assert frame["flops"][0] == 1e25
    assert frame["time_ns"][0] == row.time_ns


def test_metrics_are_plain_numbers() -> None:
    anatomy = held(anatomies.llama_on_gpu())
    assert anatomy.metrics() == {name: metric.value for name, metric in metrics_of(anatomy).items()}
    assert {type(value) for value in anatomy.metrics().values()} <= {int, float}


# --------------------------------------------------------------------------------------------------------------- errors


class Loses(nn.Module):
    """A module whose forward is the function that it was given."""

    def __init__(self, forward: Callable[[nn.Linear, torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(4, 4), forward

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.linear, x)


def full(_linear: nn.Linear, _x: torch.Tensor) -> torch.Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


def broken(_linear: nn.Linear, _x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("shapes do not fit")


LINEAR = nn.Linear(4, 4)
DLRM = [TRACES / f"gpu_v100_dlrm_rank{rank}of8.json.gz" for rank in range(2)]
BERT = TRACES / "bert_cpu.json.gz"
WRONG: dict[str, Callable[[], Any]] = {
    "loss without gradient": lambda: opanatomy.profile(Loses(lambda f, x: {"loss": f(x).sum().detach()}), X),
    "output without gradient": lambda: opanatomy.profile(Loses(lambda f, x: x), X),
    "out of memory": lambda: opanatomy.profile(Loses(full), X),
    "a model that fails": lambda: opanatomy.profile(Loses(broken), X),
    "inputs that do not fit": lambda: opanatomy.profile(LINEAR, torch.ones(3, 5)),
    "amp": lambda: opanatomy.profile(LINEAR, X, amp="fp8"),
    "optimizer": lambda: opanatomy.profile(LINEAR, X, optimizer="sgdd"),
    "generate": lambda: opanatomy.profile(LINEAR, X, generate=4),
    "beams": lambda: opanatomy.profile(LINEAR, X, beams=4),
    "generate and compile": lambda: opanatomy.profile(LINEAR, X, generate=4, compile=True),
    "accumulate": lambda: opanatomy.profile(LINEAR, X, accumulate=2),
    "clip": lambda: opanatomy.profile(LINEAR, X, clip=-1),
    "inference and clip": lambda: opanatomy.profile(LINEAR, X, inference=True, clip=1.0),
    "inference and optimizer": lambda: opanatomy.profile(LINEAR, X, inference=True, optimizer="adamw"),
    "parallel alone": lambda: opanatomy.profile(LINEAR, X, parallel="tp"),
    "two for hsdp": lambda: opanatomy.profile(LINEAR, X, processes=2, parallel="hsdp"),
    "buckets alone": lambda: opanatomy.profile(LINEAR, X, bucket_mb=2),
    "steps": lambda: opanatomy.profile(LINEAR, X, steps=10**12),
    "force": lambda: opanatomy.profile(LINEAR, X, force="yes"),  # type: ignore[arg-type]
    "trace at an address": lambda: opanatomy.profile(LINEAR, X, trace="s3://bucket/t.json"),
    "trace that is there": lambda: opanatomy.profile(LINEAR, X, trace=BERT),
    "trace in no folder": lambda: opanatomy.profile(LINEAR, X, trace="no/such/folder/t.json"),
    "no trace": lambda: opanatomy.analyze("no such trace.json"),
    "something else": lambda: opanatomy.analyze(ROOT / "README.md"),
    "a report": lambda: opanatomy.analyze(REPORT),
    "an address": lambda: opanatomy.analyze("s3://bucket/x.json"),
    "no phase": lambda: opanatomy.analyze(BERT, phases={"fwd": "x"}),
    "no expression": lambda: opanatomy.analyze(BERT, phases={"forward": "("}),
    "phases": lambda: opanatomy.analyze(BERT, phases="forward"),  # type: ignore[arg-type]
    "redact": lambda: opanatomy.analyze(BERT, redact="yes"),  # type: ignore[arg-type]
    "jobs": lambda: opanatomy.analyze(BERT, jobs=0),
    "no folder of summaries": lambda: opanatomy.analyze(DLRM, summaries=ROOT / "README.md"),
    "summaries": lambda: opanatomy.analyze(DLRM, summaries=5),  # type: ignore[arg-type]
    "no scheduler": lambda: opanatomy.analyze(DLRM, dask="nonsense", summaries="none"),
    "dask": lambda: opanatomy.analyze(DLRM, dask=5),  # type: ignore[arg-type]
    "the same twice": lambda: opanatomy.analyze([BERT, BERT]),
    "record steps": lambda: opanatomy.record(steps=0),
    "record warmup": lambda: opanatomy.record(warmup=-1),
    "record memory": lambda: opanatomy.record(memory="all"),  # type: ignore[arg-type]
    "record force": lambda: opanatomy.record(force=2),  # type: ignore[arg-type]
    "record no module": lambda: opanatomy.record(module=[]),
    "record trace": lambda: opanatomy.record("t.txt"),
    "nothing recorded": lambda: opanatomy.record().anatomy,
    "not started": lambda: opanatomy.record().step(),
    "read a trace": lambda: opanatomy.read(BERT),
    "compare a comparison": lambda: opanatomy.compare(compared("two"), REPORT),  # type: ignore[arg-type]
    "write a comparison at an address": lambda: compared("two").to_json("gs://bucket/r.json"),
    "write at an address": lambda: MADE[2].to_json("gs://bucket/r.json"),
    "a check": lambda: require_agreement(held(anatomies.llama_on_gpu())),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_messages_speak_of_arguments(wrong: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(opanatomy.OpanatomyError) as caught:
        WRONG[wrong]()
    message = str(caught.value)
    assert "\n" not in message
    assert "--" not in message
    assert not re.search(r"(?<![\w-])-[a-zA-Z]\b", message)
    assert type(caught.value).__mro__[0].__name__ in opanatomy.__all__ or type(caught.value).__base__ in {
        getattr(opanatomy, name) for name in opanatomy.__all__ if name.endswith(("Error", "OutOfMemory"))
    }


def test_the_same_messages_speak_of_flags_on_the_command_line() -> None:
    with on_command_line(), pytest.raises(opanatomy.GateError, match="see the top of the report"):
        require_agreement(held(anatomies.llama_on_gpu()))
    with pytest.raises(opanatomy.GateError, match="leave check out"):
        require_agreement(held(anatomies.llama_on_gpu()))


#: Where flags are named because no Python function leads there, and why.
OF_THE_COMMAND_LINE = {
    "cli": "verbs and their arguments", "options.py": "where flags are declared", "predict": "a verb",
    "capture/model": "models that are built by name, and their texts",
    "capture/distributed/ranks.py": "processes of a verb, and flags of accelerate",
    "capture/run/profile.py": "the verb", "capture/device/environment.py": "a device that was named, a flag of docker",
    "capture/device/kineto.py": "a flag of docker",
    "capture/run/advice.py": "told by whose module it is", "capture/batches.py": "batches of such a model",
    "attribution/phases.py": "phases of the verb",
    "devices": "peaks that are given to the verb, and what the report says of them", "report": "the report",
    "memory/theory.py": "the report: which option saves memory",
    "trace/files.py": "flags of download tools, and the default of `forced_by`",
    "pipeline.py": "the annotated trace of the verb",
}  # fmt: skip


def test_no_other_message_names_a_flag() -> None:
    """A message that Python can meet has both wordings, by `as_asked`; nothing on the list above is idle there."""
    used = set()
    for path in sorted((ROOT / "opanatomy").rglob("*.py")):
        place = path.relative_to(ROOT / "opanatomy").as_posix()
        flags = list(flags_in(ast.parse(path.read_text())))
        excused = [prefix for prefix in OF_THE_COMMAND_LINE if place == prefix or place.startswith(f"{prefix}/")]
        assert excused or not flags, f"{place}: {flags}"
        used |= set(excused) if flags else set()
    assert used == set(OF_THE_COMMAND_LINE)


def flags_in(tree: ast.AST) -> Iterator[str]:
    """The texts with a flag in them, but docstrings and what `as_asked` chooses from."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "as_asked":
            continue
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and re.search(r"(?<![\w-])--[a-z]", node.value)
        ):
            yield node.value
        yield from flags_in(node)


# ------------------------------------------------------------------------------------------------------- names and help


def test_every_error_of_a_caller_is_exported() -> None:
    internal = {"EstimateError", "SaidByRank"}
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert kinds - internal <= set(opanatomy.__all__)
    assert all(getattr(opanatomy, name) is getattr(errors, name) for name in kinds - internal)


def test_importing_opanatomy_loads_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, opanatomy; names = [getattr(opanatomy, name) for name in opanatomy.__all__ if 'Error' in name];"
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'rich', 'pandas', 'polars')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_forms_of_an_anatomy_load_no_torch() -> None:
    code = (
        "import sys, opanatomy; anatomy = opanatomy.read(sys.argv[1]);"
        "anatomy._repr_html_(), anatomy.metrics(), anatomy.to_dict(), repr(anatomy), hash(anatomy);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(REPORT)], check=False).returncode == 0


def help_of(thing: object) -> str:
    return pydoc.plain(pydoc.render_doc(thing))


def test_help_of_the_package_says_how_to_use_it() -> None:
    text = help_of(opanatomy)
    for name in set(opanatomy.__all__) - {"__version__"}:
        assert re.search(rf"\b{name}\b", text), name
    for call in ("opanatomy.profile(model", "opanatomy.analyze(", "opanatomy.record(", "opanatomy.read("):
        assert call in text


def test_help_of_an_anatomy_documents_every_field_and_method() -> None:
    text = help_of(Anatomy)
    for name in Anatomy.__struct_fields__:
        assert re.search(rf"^ \|  {name}: \w.*$", text, re.MULTILINE), name
    of_records = set(dir(held(anatomies.nothing()).step))
    methods = [name for name in dir(Anatomy) if callable(getattr(Anatomy, name)) and not name.startswith("_")]
    assert set(methods) - of_records == {"metrics", "to_dict", "to_json", "to_pandas", "to_polars"}
    assert all(getattr(Anatomy, name).__doc__ for name in methods)


def test_help_names_every_table() -> None:
    text = " ".join((Anatomy.to_pandas.__doc__ or "").split())
    assert all(re.search(rf"\b{name}\b", text) for name in table_names() if "." not in name)


def test_every_option_of_a_call_is_in_its_help() -> None:
    module: ModuleType = opanatomy
    for name in ("analyze", "profile", "record", "read"):
        function = getattr(module, name)
        parameters = set(function.__annotations__) - {"return"}
        missing = [one for one in parameters if not re.search(rf"\b{one}\b", (function.__doc__ or ""))]
        assert not missing, f"{name}: {missing}"
        assert "Raises" in (function.__doc__ or "")


DOCUMENTED = [
    kind
    for module in ("anatomy", "communication", "workload", "memory")
    for kind in vars(import_module(f"opanatomy.records.{module}")).values()
    if isinstance(kind, type) and kind.__module__ == f"opanatomy.records.{module}"
    and kind.__name__ in ("Anatomy", "Provenance", "Environment", "Workload", "Step", "StepRow", "ClassRow", "Ratio",
                          "OperatorRow", "KernelRow", "ModuleRow", "Memory", "MemoryComponent", "Ledger", "Collective",
                          "Rank", "Spread")
]  # fmt: skip


@pytest.mark.parametrize("kind", DOCUMENTED, ids=lambda kind: kind.__name__)
def test_help_of_a_row_says_what_its_fields_are(kind: type[Struct]) -> None:
    assert len(DOCUMENTED) == 17
    for name in kind.__struct_fields__:
        short = re.sub(r"_(ns|bytes)$", "", name)
        assert re.search(rf"\b{short}(_ns|_bytes)?\b", kind.__doc__ or ""), name
