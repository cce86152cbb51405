"""What a user of Python has: the forms of an `Anatomy`, reports read back, errors that speak of arguments, help."""

from __future__ import annotations

import copy
import json
import pickle
import pydoc
import re
import subprocess
import sys
from collections import UserDict
from collections.abc import Callable, Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import nn

import opanatomy
from opanatomy.checks.counts import require_agreement
from opanatomy.records.anatomy import Provenance, StepRow, StreamRow
from opanatomy.records.workload import Workload
from opanatomy.report.formats.json import json_report
from opanatomy.report.frames import columns_of, table_names
from opanatomy.results import Anatomy, Comparison, as_public
from tests.support import anatomies
from tests.support.paths import ROOT, TRACES

REPORT = ROOT / "reports" / "bert-large-uncased.json"
MADE = [as_public(anatomies.bert_on_cpu()), as_public(anatomies.llama_on_gpu()), as_public(anatomies.nothing())]
EVERY = pytest.mark.parametrize("anatomy", MADE, ids=["cpu", "gpu", "nothing"])
X = torch.ones(3, 4)


@pytest.fixture(scope="module")
def ranks() -> Anatomy:
    return opanatomy.analyze([TRACES / f"gpu_v100_dlrm_rank{rank}of8.json.gz" for rank in range(2)])


# ------------------------------------------------------------------------------------------------------------- records


def test_every_record_in_an_anatomy_is_hashable_and_has_a_short_repr(ranks: Anatomy) -> None:
    seen: set[type] = set()
    for anatomy in (*MADE, ranks, opanatomy.read(REPORT)):
        for record in records_in(anatomy):
            hash(record)
            text = repr(record)
            assert len(text) < 900
            assert "\n" not in text
            seen.add(type(record))
        for other in (pickle.loads(pickle.dumps(anatomy)), copy.deepcopy(anatomy)):
            assert other == anatomy
            assert hash(other) == hash(anatomy)
    assert {StreamRow, Workload, StepRow} <= seen


def records_in(value: Any) -> Iterator[Struct]:
    if isinstance(value, tuple):
        for item in value:
            yield from records_in(item)
    elif isinstance(value, Struct) and type(value).__module__.startswith(("opanatomy.records.", "opanatomy.results")):
        yield value
        for name in value.__struct_fields__:
            yield from records_in(getattr(value, name))


# ------------------------------------------------------------------------------------------------------------- the line


def test_the_repr_says_what_ran_its_step_and_what_takes_most() -> None:
    bert, llama, nothing = map(repr, MADE)
    assert bert == ("<Anatomy of google-bert/bert-large-uncased: step 9.35 s, tensor contraction 82.1 %, peak 13.6 GB>")
    assert llama.startswith("<Anatomy of meta-llama/Llama-3.2-1B: step ")
    assert nothing == "<Anatomy: no device work>"
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


HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp;\x1b[31m‮</td>"


def hostile_anatomy() -> Anatomy:
    anatomy = as_public(anatomies.llama_on_gpu())
    operators = tuple(replace(row, operator=HOSTILE) for row in anatomy.operators)
    return replace(
        anatomies.with_tables(anatomy, operators=operators),
        warnings=(HOSTILE,),
        provenance=Provenance(opanatomy=HOSTILE, trace=HOSTILE),
        workload=replace(anatomy.workload, model=HOSTILE, architecture=HOSTILE, changes=(HOSTILE,)),
        environment=replace(anatomy.environment, device=HOSTILE, torch=HOSTILE),
    )


def test_a_notebook_shows_the_first_screen_as_tables_of_text(ranks: Anatomy) -> None:
    for anatomy in (*MADE, ranks, hostile_anatomy()):
        page = elements(anatomy)
        assert not [name for name in page.attributes if name.startswith("on") or name in ("src", "href")]
        assert not {"script", "img", "a"} & set(page.tags)
        assert not set(page.text) & {"\x1b", "‮"}
    assert "<script>alert(1)</script>" in page.text
    page = elements(as_public(anatomies.bert_on_cpu()))
    assert page.tags.count("table") >= 3
    for text in ("google-bert/bert-large-uncased", "9.35 s", "tensor contraction", "aten::addmm", "82.1 %"):
        assert text in page.text


# ------------------------------------------------------------------------------------------------------- dict and JSON


def test_a_report_is_written_whole_and_read_back(tmp_path: Path) -> None:
    class Named:
        def __fspath__(self) -> str:
            return str(tmp_path / "report.json")

    anatomy = as_public(anatomies.bert_on_cpu())
    text = anatomy.to_json(Named())
    assert (tmp_path / "report.json").read_text() == text == json_report(anatomy)
    assert {name: anatomy.to_dict()[name] for name in json.loads(text)} == json.loads(text)
    for name in (Named(), tmp_path / "report.json", str(tmp_path / "report.json")):
        assert opanatomy.read(name) == anatomy
    with pytest.raises(opanatomy.OutputError, match="it already exists - pass force=True"):
        anatomy.to_json(tmp_path / "report.json")
    as_public(anatomies.nothing()).to_json(tmp_path / "report.json", force=True)
    assert opanatomy.read(tmp_path / "report.json") == as_public(anatomies.nothing())
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_what_is_no_report_is_refused(tmp_path: Path) -> None:
    trace = TRACES / "bert_cpu.json.gz"
    for name, said in (
        (trace, "is not an opanatomy report"),
        (tmp_path, "it is a folder"),
        (tmp_path / "x.json", "No such file"),
        (ROOT / "README.md", "is not an opanatomy report"),
        ("s3://bucket/r.json", "this is a URL"),
        (None, "this is None"),
        (b"r.json", "this is of type bytes"),
        ("", "the name is empty"),
    ):
        with pytest.raises(opanatomy.OpanatomyError, match=r"^read: ") as caught:
            opanatomy.read(name)  # type: ignore[arg-type]
        assert said in str(caught.value)
    cut = tmp_path / "cut.json"
    cut.write_text(REPORT.read_text()[:-500])
    with pytest.raises(opanatomy.OpanatomyError, match="truncated or damaged"):
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
    "nothing": lambda: opanatomy.compare(as_public(anatomies.nothing()), as_public(anatomies.nothing())),
    "huge": lambda: opanatomy.compare(
        anatomies.with_tables(
            as_public(anatomies.llama_on_gpu()),
            operators=(replace(as_public(anatomies.llama_on_gpu()).operators[0], flops=2**60 + 1),),
        ),
        as_public(anatomies.llama_on_gpu()),
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
        repr(comparison),
        comparison._repr_html_(),
        comparison.metrics(),
    )
    assert pickle.loads(pickle.dumps(comparison)) == comparison
    with pytest.raises(opanatomy.OutputError, match="it already exists - pass force=True"):
        comparison.to_json(path)


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
    for index, side in enumerate(comparison.sides):
        cells = [None if cell is pandas.NA else cell for cell in figures[f"values.{side.name}"]]
        assert cells == [row.values[index] for row in comparison.figures]
    assert "change" in figures.columns
    for to_frame in (comparison.to_pandas, comparison.to_polars):
        for table in table_names(Comparison):
            assert len(to_frame(table)) == len(columns_of(comparison, table, "x")[0].values)
        with pytest.raises(opanatomy.UsageError, match=r"unknown table 'operators'.*parts"):
            to_frame("operators")
    metrics = comparison.metrics()
    for row in comparison.figures:
        assert [metrics.get(f"{row.name}.{side}") for side in ("before", "after")] == list(row.values)
        assert metrics.get(f"{row.name}.change") == row.change


# ---------------------------------------------------------------------------------------------------------- data frames


def test_every_table_of_the_report_is_one(ranks: Anatomy) -> None:
    """A tuple of records in the report, wherever it is but in a row, is a table with a row for each."""
    seen: set[str] = set()
    for anatomy in (*MADE, ranks):
        plain = {name: item for name, item in anatomy.to_dict().items() if name not in ("work", "theory", "step_kinds")}
        tables = dict(tables_in(plain, ""))
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


def test_the_table_of_metrics_has_units() -> None:
    anatomy = as_public(anatomies.bert_on_cpu())
    name, value, unit, better, lower_bound, at_most, exact = columns_of(anatomy, "metrics", "x")
    assert dict(zip(name.values, value.values, strict=True)) == anatomy.metrics()
    assert (unit.values[0], better.values[0]) == ("ns", "lower")
    assert not any((*lower_bound.values, *at_most.values))
    assert exact.values[list(name.values).index("flops")] is True


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_hold_what_the_records_do(library: str, ranks: Anatomy) -> None:
    pandas = pytest.importorskip("pandas")
    llama, to_frame = as_public(anatomies.llama_on_gpu()), f"to_{library}"
    frame = getattr(llama, to_frame)()
    assert list(frame.columns) == list(type(llama.operators[0]).__struct_fields__)
    assert list(frame["time_ns"]) == [row.time_ns for row in llama.operators]
    assert [None if cell is pandas.NA else cell for cell in frame["flops"]] == [row.flops for row in llama.operators]
    assert str(frame["flops"].dtype) == "Int64"
    work = getattr(llama, to_frame)("work")
    for row in llama.classes:
        sums = work["time_ns"].to_numpy()[(work["operator_class"] == row.operator_class) & (work["phase"] == row.phase)]
        assert sum(time for time in sums if time is not pandas.NA and time == time) == row.time_ns
    for name in table_names():
        assert len(getattr(ranks, to_frame)(name)) == len(columns_of(ranks, name, "x")[0].values)
    with pytest.raises(opanatomy.UsageError, match=rf"^to_{library}: unknown table 'operater' - did") as caught:
        getattr(llama, to_frame)("operater")
    assert all(name in str(caught.value) for name in table_names())


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_library_that_is_missing_is_named_with_the_extra(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(opanatomy.OpanatomyError, match=rf"to_{library} needs {library}, which is not") as caught:
        getattr(as_public(anatomies.nothing()), f"to_{library}")()
    assert "'opanatomy[data]'" in str(caught.value)


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
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "no inputs": (lambda: opanatomy.profile(LINEAR, None), "the inputs are None"),
    "inputs": (lambda: opanatomy.profile(LINEAR, "text"), "the inputs are of type str"),
    "module": (lambda: opanatomy.profile(len, X), "the module is of type builtin_function_or_method"),  # type: ignore[arg-type]
    "class": (lambda: opanatomy.profile(nn.Linear, X), "the class Linear - create an instance first"),  # type: ignore[arg-type]
    "meta": (lambda: opanatomy.profile(nn.Linear(4, 4, device="meta"), X), "meta device"),
    "no gradient": (lambda: opanatomy.profile(Loses(lambda f, x: x), X), "cannot run backward"),
    "out of memory": (lambda: opanatomy.profile(Loses(full), X), "out of memory in the forward phase"),
    "broken": (lambda: opanatomy.profile(Loses(broken), X), "failed in the forward phase: RuntimeError: shapes do not"),
    "amp": (lambda: opanatomy.profile(LINEAR, X, amp="fp8"), "amp='fp8': unknown - use one of bf16, fp16"),
    "optimizer": (lambda: opanatomy.profile(LINEAR, X, optimizer="adamv"), "unknown - did you mean adam? Use one"),
    "generate": (lambda: opanatomy.profile(LINEAR, X, generate=4), "generate"),
    "beams": (lambda: opanatomy.profile(LINEAR, X, beams=4), "beams"),
    "accumulate": (lambda: opanatomy.profile(LINEAR, X, accumulate=2), "accumulate"),
    "clip": (lambda: opanatomy.profile(LINEAR, X, clip=-1), "clip"),
    "inference": (
        lambda: opanatomy.profile(LINEAR, X, inference=True, optimizer="adamw"),
        "inference=True runs no backward - leave out optimizer='adamw'",
    ),
    "parallel": (lambda: opanatomy.profile(LINEAR, X, parallel="tp"), "parallel"),
    "hsdp": (lambda: opanatomy.profile(LINEAR, X, processes=2, parallel="hsdp"), "hsdp"),
    "steps": (lambda: opanatomy.profile(LINEAR, X, steps=1.5), "steps=1.5: must be a whole number"),  # type: ignore[arg-type]
    "warmup": (lambda: opanatomy.profile(LINEAR, X, warmup=-1), "warmup=-1: must be at least 0"),
    "memory": (lambda: opanatomy.profile(LINEAR, X, memory="yes"), "memory='yes': must be True or False"),  # type: ignore[arg-type]
    "trace ending": (lambda: opanatomy.profile(LINEAR, X, trace="t.txt"), "must end in .json or .json.gz"),
    "trace address": (lambda: opanatomy.profile(LINEAR, X, trace="s3://bucket/t.json"), "s3://"),
    "trace there": (lambda: opanatomy.profile(LINEAR, X, trace=BERT), "it already exists - pass force=True"),
    "trace folder": (lambda: opanatomy.profile(LINEAR, X, trace="no/such/t.json"), "create it first"),
    "no trace": (lambda: opanatomy.analyze("no such trace.json"), "no such trace.json"),
    "no path": (lambda: opanatomy.analyze(None), "a trace is a path, not None"),  # type: ignore[arg-type]
    "no paths": (lambda: opanatomy.analyze([]), "the list of traces is empty"),
    "empty folder": (lambda: opanatomy.analyze("."), "no trace in the folder ."),
    "no json": (lambda: opanatomy.analyze(ROOT / "README.md"), "README.md"),
    "report": (lambda: opanatomy.analyze(REPORT), "read it with opanatomy.read"),
    "phase": (lambda: opanatomy.analyze(BERT, phases={"fwd": "x"}), "fwd"),
    "expression": (lambda: opanatomy.analyze(BERT, phases={"forward": "("}), "("),
    "redact": (lambda: opanatomy.analyze(BERT, redact="yes"), "redact='yes'"),  # type: ignore[arg-type]
    "jobs": (lambda: opanatomy.analyze(BERT, jobs=0), "jobs=0"),
    "summaries": (lambda: opanatomy.analyze(DLRM, summaries=5), "summaries"),  # type: ignore[arg-type]
    "dask": (lambda: opanatomy.analyze(DLRM, dask=5), "dask=5"),  # type: ignore[arg-type]
    "twice": (lambda: opanatomy.analyze([BERT, BERT]), "bert_cpu.json.gz"),
    "comparison": (lambda: opanatomy.compare(compared("two"), REPORT), "compare"),  # type: ignore[arg-type]
    "write address": (lambda: MADE[2].to_json("gs://bucket/r.json"), "gs://"),
    "check": (lambda: require_agreement(as_public(anatomies.llama_on_gpu())), "leave out check"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_messages_speak_of_arguments(wrong: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    call, said = WRONG[wrong]
    with pytest.raises(opanatomy.OpanatomyError) as caught:
        call()
    message = str(caught.value)
    assert said in message
    assert "\n" not in message
    assert not re.search(r"(?<![\w-])--?[a-zA-Z]", message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_modules_that_cannot_be_watched() -> None:
    for module, said in (
        (nn.LazyLinear(4), "weight has no shape yet"),
        (torch.jit.script(LINEAR), "a scripted module does not support hooks"),
    ):
        with pytest.raises(opanatomy.ModelError, match=said):
            opanatomy.profile(module, X)


def test_a_running_profiler_is_left_alone() -> None:
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as running,
        pytest.raises(opanatomy.CaptureError, match="a torch profiler is already running"),
    ):
        opanatomy.profile(LINEAR, X)
    assert running.events() is not None


def test_the_trace_of_a_profile_is_kept_and_read_again(tmp_path: Path) -> None:
    target = tmp_path / "t.json.gz"
    anatomy = opanatomy.profile(nn.Linear(4, 4), UserDict(input=X), trace=target)
    assert (anatomy.workload.batch, anatomy.workload.inputs) == (3, ("input float32[3,4]",))
    assert anatomy.provenance.trace == "t.json.gz"
    assert [path.name for path in tmp_path.iterdir()] == ["t.json.gz"]
    assert opanatomy.analyze(target) == anatomy
    for name in (str(DLRM[0]), DLRM[0]):
        assert opanatomy.analyze(name).provenance.trace == "gpu_v100_dlrm_rank0of8.json.gz"


# ------------------------------------------------------------------------------------------------------- names and help


def test_importing_opanatomy_loads_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, opanatomy; names = [getattr(opanatomy, name) for name in opanatomy.__all__ if 'Error' in name];"
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'rich', 'pandas', 'polars')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def help_of(thing: object) -> str:
    return pydoc.plain(pydoc.render_doc(thing))


def test_help_says_how_to_use_each_name() -> None:
    text = help_of(opanatomy)
    for name in set(opanatomy.__all__) - {"__version__"}:
        assert re.search(rf"\b{name}\b", text), name
    for name in ("analyze", "profile", "record", "read"):
        function = getattr(opanatomy, name)
        parameters = set(function.__annotations__) - {"return"}
        missing = [one for one in parameters if not re.search(rf"\b{one}\b", (function.__doc__ or ""))]
        assert not missing, f"{name}: {missing}"
        assert "Raises" in (function.__doc__ or "")


@pytest.mark.parametrize("kind", [Anatomy, Comparison])
def test_help_of_a_report_documents_every_field_table_and_method(kind: Any) -> None:
    text = help_of(kind)
    for name in kind.__struct_fields__:
        assert re.search(rf"^ \|  {name}: \w.*$", text, re.MULTILINE), name
    methods = {name for name in dir(kind) if not name.startswith("_")} - set(kind.__struct_fields__)
    assert methods >= {"metrics", "to_dict", "to_json", "to_pandas", "to_polars"}
    assert all(getattr(kind, name).__doc__ for name in methods)
    tables = " ".join((kind.to_pandas.__doc__ or "").split())
    assert all(re.search(rf"\b{name}\b", tables) for name in table_names(kind) if "." not in name)


def test_a_notebook_fetches_nothing_and_keeps_its_own_headings() -> None:
    """A picture is shown as it is, not by a script from elsewhere; altair still knows it as its own."""
    import altair

    anatomy = as_public(anatomies.llama_on_gpu())
    for name in ("step", "classes"):
        chart = anatomy.chart(name)
        assert isinstance(chart, altair.TopLevelMixin)
        shown = chart._repr_mimebundle_()
        assert shown["text/html"].startswith("<svg")
        assert "<script" not in shown["text/html"]
        assert "$schema" in json.loads(chart.to_json(validate=False))
    assert "h1" not in elements(anatomy).tags
