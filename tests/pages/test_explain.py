"""`opanatomy explain`: every word that a report prints, operators, kernels, devices, names of a report."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest
from msgspec import defstruct
from msgspec import inspect as types
from msgspec.structs import replace

import opanatomy
import opanatomy.records
from opanatomy.__main__ import main
from opanatomy.devices.match import called, variants_called
from opanatomy.devices.sheets import SHEETS
from opanatomy.explanation import explain, values_at
from opanatomy.predict.estimate import sheet_limit
from opanatomy.predict.fit import limit_of
from opanatomy.records.anatomy import VIEWS, Anatomy
from opanatomy.records.comparison import Comparison
from opanatomy.records.experiment import Techniques
from opanatomy.records.taxonomy import CAUSE_LABELS, OperatorClass, Phase
from opanatomy.records.work import KernelRow, ModuleRow
from opanatomy.report import read_anatomy, terms
from opanatomy.report.formats import format_named
from opanatomy.report.metrics import definition_of, metrics_of
from opanatomy.report.names import cut
from opanatomy.report.section import LABEL, SHORT_LABEL, Page
from opanatomy.report.sections import SECTIONS, sections_of
from tests.support import anatomies
from tests.support.documented import current_and_renewed
from tests.support.paths import ROOT, TRACES

BERT = ROOT / "reports" / "bert-large-uncased.json"
EXPERIMENT = ROOT / "reports" / "techniques" / "bert-large-uncased.json"
RANKS = [TRACES / f"gpu_v100_dlrm_rank{rank}of8.json.gz" for rank in range(2)]
UNKNOWN = "torch::autograd::CppNode<MyLookUp_Op>"
LONG = "void at::native::(anonymous namespace)::my_odd_thing<float, 4>(int, float*)"


def text_of(name: str, anatomy: Anatomy | None = None) -> str:
    explanation = explain([name], anatomy)
    assert not explanation.unknown, name
    return " ".join(explanation.text.split())


@pytest.fixture(scope="module")
def with_unknown() -> Anatomy:
    """GPU steps with 47 ms of an operator that matched by no rule, its kernel, and modules."""
    anatomy = anatomies.llama_on_gpu()
    row = replace(
        anatomy.operators[0],
        operator=UNKNOWN,
        operator_class=OperatorClass.UNKNOWN,
        rule="no rule",
        calls=3,
        time_ns=47_000_000,
        flops=None,
        read_bytes=None,
        written_bytes=None,
        phase=Phase.BACKWARD,
        bound_ns=None,
        bound_by=None,
        uncosted_ns=47_000_000,
    )
    kernel = KernelRow(
        kernel=LONG,
        operator_class=OperatorClass.UNKNOWN,
        rule="no rule",
        count=3,
        time_ns=47_000_000,
        operators=(UNKNOWN,),
    )
    modules = tuple(
        ModuleRow(
            module=path,
            kind=kind,
            phase=Phase.FORWARD,
            operator_class=OperatorClass.TENSOR_CONTRACTION,
            time_ns=ns,
            flops=10**9,
            read_bytes=1,
            written_bytes=1,
        )
        for path, kind, ns in (("model.layers.0", "Layer", 2_000_000), ("model.layers.0.mlp", "MLP", 3_000_000))
    )
    return anatomies.with_tables(anatomy, operators=(*anatomy.operators, row), kernels=(kernel,), modules=modules)


# --------------------------------------------------------------------------------------------- every word of the pages


def literals() -> Iterator[str]:
    """Headers and labels as they stand in the code of the sections, also of those that no kept report has."""
    for path in sorted((ROOT / "opanatomy" / "report" / "sections").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            values = [word.value for word in node.keywords if word.arg in ("header", "label")]
            if node.func.id == "facts_of":
                values = [pair.elts[0] for pair in node.args if isinstance(pair, ast.Tuple)]
            if node.func.id in ("Column", "Fact", "facts_of"):
                yield from (value.value for value in values if isinstance(value, ast.Constant) and value.value)


def test_every_word_that_the_code_prints_is_explained() -> None:
    """Headers, labels, classes, phases, components, checks and sections; no entry is there twice."""
    from opanatomy.memory.components import COMPONENTS
    from opanatomy.memory.inferred import COMPONENTS as INFERRED

    quantities = set()
    for path in (ROOT / "opanatomy").rglob("*.py"):
        quantities |= set(re.findall(r'(?:quantity=|\.check\()"([^"]+)"', path.read_text()))
    written = list(literals())
    assert min(len(written) / 100, len(quantities) / 9) >= 1
    labels = (*LABEL.values(), *SHORT_LABEL.values(), *CAUSE_LABELS.values())
    known = (*written, *labels, *Phase, *COMPONENTS, *INFERRED, *quantities)
    assert not [name for name in known if not terms.terms_named(name)]
    assert not [name for name in SECTIONS if explain([name]).unknown]
    for chapter in terms.CHAPTERS:
        spelled = [name for term in chapter.terms for name in term.names]
        assert len(spelled) == len(set(spelled)), chapter.title


@pytest.mark.parametrize("name", ["bert_on_cpu", "llama_on_gpu", "two_ranks", "comparison", "techniques"])
def test_every_printed_term_is_explained(name: str) -> None:
    """The headers and labels of a report in its sections, and the values at each term's paths."""
    report = {
        "two_ranks": lambda: opanatomy.analyze(RANKS),
        "comparison": lambda: opanatomy.compare(*RANKS),
        "techniques": lambda: msgspec.json.decode(EXPERIMENT.read_bytes(), type=Techniques),
    }.get(name, lambda: getattr(anatomies, name)())()
    for section in sections_of(report):
        assert terms.chapter_of(section.name) is not None, section.name
        words = [*(column.header for column in section.columns), *(fact.label for fact in section.facts)]
        for word in words:
            assert not word or word.isdigit() or terms.terms_named(word, section.name) or definition_of(word), word
    plain = json.loads(format_named("json").write(report, Page()))
    for _, term in terms.entries():
        for path in term.paths:
            for line in values_at(report, path):
                number = re.search(r"= (-?[\d,]+) (?:ns|B|FLOP) \(", line)
                if number and "[" not in path:
                    value = plain
                    for key in path.split("."):
                        value = value[key]
                    assert int(number[1].replace(",", "")) == value, line


def leads_somewhere(kind: types.Type, path: str) -> bool:
    def known(kind: types.Type) -> types.Type:
        union = isinstance(kind, types.UnionType)
        return next(each for each in kind.types if not isinstance(each, types.NoneType)) if union else kind

    for part in path.split("."):
        name, is_rows = part.removesuffix("[]"), part.endswith("[]")
        if not isinstance(kind, types.StructType):
            return isinstance(kind, types.DictType)
        field = next((field for field in kind.fields if field.name == name), None)
        if field is None:
            return False
        kind = known(field.type)
        if is_rows:
            if not isinstance(kind, types.VarTupleType):
                return False
            kind = known(kind.item_type)
    return True


def clauses_of(formula: str) -> Iterator[str]:
    """What stands between brackets of a formula and outside of them, brackets replaced by `#`, clause by clause."""
    text, inner = re.sub(r'"[^"]*"', "q", re.sub(r"\[[^\]]*\]", "", formula)), re.compile(r"\(([^()]*)\)")
    while match := inner.search(text):
        yield from re.split(r"[,;:] | = ", match[1])
        text = f"{text[: match.start()]}#{text[match.end() :]}"
    yield from re.split(r"[,;:] | = ", text)


def test_paths_and_formulas_are_of_keys_that_the_json_report_has() -> None:
    """Brackets where a formula may be read in two ways: no sum beside a product, nothing after a quotient."""
    fields: set[str] = {*OperatorClass, *Phase, "tensor_contraction", "device_work", "multiply_add"}
    for module in pkgutil.iter_modules(opanatomy.records.__path__):
        for item in vars(importlib.import_module(f"opanatomy.records.{module.name}")).values():
            if isinstance(item, type) and issubclass(item, msgspec.Struct):
                fields.update(item.__struct_fields__)
    fields |= {name.removesuffix("_ns") for name in fields}
    tables = [(name, get_type_hints(getattr(Anatomy, name).func)["return"]) for name in VIEWS]
    kinds = [types.type_info(kind) for kind in (Anatomy, Techniques, Comparison, defstruct("Tables", tables))]
    for _, term in terms.entries():
        for key in re.findall(r"(?<!\")\b[a-z]+(?:_[a-z0-9]+)+\b", re.sub(r'"[^"]*"', "", term.formula)):
            assert key in fields, f"{term.names[0]}: no key {key}"
        for path in term.paths:
            assert any(leads_somewhere(kind, re.sub(r"\[[^]]*\]", "[]", path)) for kind in kinds), (term.title, path)
        for clause in clauses_of(term.formula):
            signs = set(re.findall(r" ([-+/x]) ", clause))
            assert not (signs & {"+", "-"} and signs & {"/", "x"}), f"{term.names[0]}: {clause}"
            assert not re.search(r" / .* [/x] |sum of .* [-+/x] ", clause), f"{term.names[0]}: {clause}"


@pytest.mark.parametrize("page", ["report.md", "techniques.md", "comparing.md", "python.md"])
def test_the_lists_of_a_page_are_current(page: str) -> None:
    text, renewed = current_and_renewed(page)
    assert renewed == text, "run python docs/renew.py"
    every = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    assert every.count("- **headroom**: ") == 1
    assert page != "report.md" or len(text.split()) <= 4_000  # read in ten minutes


# --------------------------------------------------------------------------------------------------------- what it says


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("aten::addmm", ["tensor contraction", "rule operators/", "2 * b * m * n * k", "Source:"]),
        *((name, ["aten::addmm", "tensor contraction"]) for name in ("addmm", "ADDMM", "addmm forward")),
        ("aten::view", ["does no work itself"]),
        ("AddmmBackward0", ["does no work itself"]),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", ["kernel tensor contraction", "rule kernels/"]),
        ("flash_fwd_kernel", ["tensor contraction, containing statistical normalization"]),
        ("Memcpy HtoD (Pageable -> Device)", ["kernel data movement"]),
        ("mylib::fused_gemm", ["operators/words", "its FLOPs and bytes are unknown"]),
        ("MFU", ["contraction FLOPs per step, excluding recomputation", "device.peak_flops_per_second"]),
        ("mfu", ["contraction FLOPs per step, excluding recomputation"]),
        (
            "own",
            [
                "step time minus exposed communication",
                "ranks[].wall_ns - (ranks[].exposed_communication_ns / ranks[].steps)",
            ],
        ),
        ("peak in forward", ["most memory allocated at one time"]),
        ("optimizer_state", ["that the optimizer keeps"]),
        ("d.peak", ["change in peak from the baseline"]),
        ("call counts", ["checks calls per operator"]),
        ("max", ["maximum over the ranks", "aten::max"]),
        ("_flash_atte…n_backward", ["aten::_flash_attention_backward"]),
        *(
            (name, ["aten::_safe_softmax"])
            for name in ("_safe_soft… forward", "_SAFE_SOFT… forward", "_safe_soft... forward")
        ),
        ("NVIDIA A100-SXM4-40GB", ["312 TFLOP/s in bfloat16", "1555 GB/s", "https://"]),
        ("H100 SXM", ["989.4 TFLOP/s in float16", "https://"]),
        ("Operator classes", ["tensor contraction: products summed over an index"]),
        ("saved-activations", ["made by: operator that produced the tensor"]),
        ("class.tensor_contraction.time_ns", ["(metric)", "the class's device work"]),
        ("lora", ["low-rank adapters", "two low-rank matrices"]),
        ("gradient accumulation", ["accumulation (technique)"]),
        *(
            (name, ["matrix multiplications and a softmax"])
            for name in ("run unfused", "(run unfused)", "sdpa attention (run unfused)")
        ),
    ],
)
def test_what_it_says(name: str, words: list[str]) -> None:
    text = text_of(name)
    for word in words:
        assert word in text


WORDS = """
    set aside|like steps|like step|the same calls|host-bound|exposed|straggler|mean step|device work
    other steps' work|work of other steps|steps of another kind|significant|p value|interleaved|like ranks
    self time|wall time|hidden|lead|charged|launch record|synchronizations|process group|epsilons
    world size|device events|overlap of compute|overlap of ...
"""


def test_words_of_the_pages_are_explained() -> None:
    """No place of a word is printed for the word."""
    for name in (
        *re.split(r"[|\n] *", WORDS.strip()),
        *terms.names(),
        *(chapter.title for chapter in terms.CHAPTERS),
        *SECTIONS,
    ):
        for text in dict.fromkeys((name.replace("{}", "forward"), name.replace("{}", "...") or name)):
            explanation = explain([text])
            assert not explanation.unknown, text
            assert "{}" not in explanation.text, text
    text = explain(["stream", "waits", "MFU", "NVIDIA", "A100-SXM4-40GB"]).text
    assert [line for line in text.splitlines() if line and line[0] != " "] == [
        "stream waits (One step)",
        "MFU (One step)",
        "A100 SXM4 40 GB (data sheet)",
    ]


@pytest.mark.parametrize(
    ("name", "variants", "on", "fits", "peak"),
    [
        ("A100", 4, "A100 SXM4 80 GB", None, "312 TFLOP/s in bfloat16"),
        ("4090", 2, "GeForce RTX 4090", "GeForce RTX 4090", "165.2 TFLOP/s in bfloat16"),
        ("RTX 4090", 2, "GeForce RTX 4090", "GeForce RTX 4090", "24 GiB"),
        ("h100", 3, "H100 SXM", "H100 PCIe", "989.4 TFLOP/s in bfloat16"),
        ("NVIDIA A100 80GB", 2, "A100 SXM4 80 GB", "A100 SXM4 80 GB", "2039 GB/s"),
    ],
)
def test_a_device_is_known_as_people_call_it(name: str, variants: int, on: str, fits: str | None, peak: str) -> None:
    """Its variants with peaks and memory, and the one that an option takes."""
    text = " ".join(explain(name.split()).text.split())
    assert len(variants_called(name)) == variants
    assert all(f"{sheet.device}:" in text for sheet in variants_called(name))
    assert f"--on selects {on} --for {f'selects {fits}' if fits else 'needs one of these'}" in text
    assert f"{on} (data sheet) matmuls" in text
    assert peak in text
    assert "all peaks are dense" in text
    assert sheet_limit(name).device == on
    if fits is not None:
        assert limit_of(name).bytes == limit_of(fits).bytes


def test_a_data_sheet_is_found_by_the_name_of_its_device() -> None:
    assert [sheet.device for sheet in SHEETS if called(sheet.device) != (sheet,)] == []
    assert not any(map(called, ("80", "80GB", "24 GB", "rtx", "Quadro", "GeForce", "", "float32", "conv2d")))


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("A101", "A100"),
        ("RTX4091", "RTX 4090"),
        ("headrom", "headroom"),
        ("MFUs", "MFU"),
        ("stragglers", "straggler"),
        ("the mean step", "mean step"),
        ("CUDA graphs", "CUDA graph"),
        ("an operator", "operator"),
        ("head", "headroom"),
        ("normalisation", "normalization"),
        ("exposed comunication", "exposed communication"),
        ("aten::adm", "aten::addmm"),
        *(
            (name, None)
            for name in (
                "xyzzy",
                "my data loader",
                "some copy of mine",
                "CppNode<MyLookUp_Op>",
                "torch::a…_Op",
                "…",
                "",
                " ",
                "the",
                "a",
                "an",
                "bu",
                "clas",
                "the the",
            )
        ),
    ],
)
def test_what_means_nothing_is_not_guessed(name: str, near: str | None) -> None:
    explanation = explain([name])
    assert not explanation.text
    ((unknown, close),) = explanation.unknown
    assert unknown == name
    assert near in close if near else len(close) <= 3


def test_the_known_names_are_explained_and_the_unknown_one_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "aten::mm", "headrom", "xyzzy", "aten::add"]) == 1
    out, err = capsys.readouterr()
    assert out.index("aten::mm") < out.index("aten::add\n")
    assert "headroom" not in out
    assert err.count("\n") == 1
    assert "'headrom' (near: headroom" in err
    assert "'xyzzy'" in err
    assert main(["explain", "aten::mm", "aten::add"]) == 0


# ----------------------------------------------------------------------------------------------------- of a report


def test_figures_have_the_values_of_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    anatomy, llama = read_anatomy(BERT.read_bytes()), anatomies.llama_on_gpu()
    assert main(["explain", "mfu", "--report", str(BERT)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    rows = [row for row in anatomy.operators if row.operator_class is OperatorClass.TENSOR_CONTRACTION]
    assert f"{len(rows)} rows, sum {sum(row.flops or 0 for row in rows):,} FLOP" in text
    assert f"step.unprofiled_wall_ns = {anatomy.step.unprofiled_wall_ns:,} ns" in text
    for name, metric in list(metrics_of(llama).items())[::8]:
        assert f"report {metric.value:,} {metric.unit}" in text_of(name, llama) or terms.terms_named(name)
    # Only the meanings that it has are said.
    assert explain(["idle"]).text.count("  means") > 1
    assert explain(["idle"], llama).text.count("  means") == 1
    assert "this number is not in the report" in text_of("straggler", anatomies.bert_on_cpu())
    assert main(["explain", "d.peak", "lora", "--report", str(EXPERIMENT)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "rows[lora].measured.peak_bytes = 2,446,733,296 B" in text
    assert "option --lora 8" in text


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (
            (UNKNOWN, UNKNOWN.upper(), "CppNode<MyLookUp_Op>", "CppNode<...>", "CppNode", "torch::a…kUp_Op>"),
            (UNKNOWN, "class unknown", "rule no rule", "backward: 3 calls, 47.0 ms in total", "kernels kernel void at"),
        ),
        (
            (LONG, cut(LONG, 30), "my_odd_thing", "my_odd_thing<float, 4>(int, float*)"),
            ("in the report", "operator class unknown", "count 3", UNKNOWN),
        ),
        (("model.layers.0", "layers.0", "model.layers.0-2"), ("kind MLP", "5.00 ms in total, 2 rows")),
    ],
)
def test_names_of_a_report(names: tuple[str, ...], words: tuple[str, ...], with_unknown: Anatomy) -> None:
    for name in names:
        for word in words:
            assert word in text_of(name, with_unknown)


def test_every_name_on_the_page_is_known_as_it_is_printed() -> None:
    """Names of operators at widths at which they are cut."""
    anatomy = read_anatomy(BERT.read_bytes())
    rows = {(row.part_of or row.operator, row.phase) for row in anatomy.operators}
    short = {(name, f"{name.removeprefix('aten::')} {phase}", name.removeprefix("aten::")) for name, phase in rows}
    for text in sorted({cut(text, width) for texts in short for text in texts for width in (12, 18, 30)}):
        assert not explain([text], anatomy).unknown, text


def test_the_time_of_an_operator_has_its_parts_in_it() -> None:
    """On the GPU all of the time of `aten::relu_` is in the kernels of the `aten::clamp_min_` that it calls."""
    anatomy = opanatomy.analyze(TRACES / "gpu_a100_alexnet.json.gz")
    text = text_of("aten::relu_", anatomy)
    assert "forward: 14 calls, 683 us in total, including 683 us in its parts part aten::clamp_min_: 683 us" in text
    assert "14 calls in forward, 0 ns in total, excluding its parts" in text


def test_a_name_of_several_is_said_to_be_of_several() -> None:
    anatomy = anatomies.llama_on_gpu()
    kernels = tuple(replace(anatomy.kernels[0], kernel=f"nvjet_tst_256x128_{index}_TNT") for index in range(9))
    text = explain(["nvjet_tst_256x128…"], anatomies.with_tables(anatomy, kernels=kernels)).text
    assert all(kernel.kernel in text for kernel in kernels)
    assert text.count("(in the report)") == 4
    assert "may also be" in text


def test_names_of_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opanatomy.compare(*RANKS).to_json(tmp_path / "c.json")
    for name, words in (
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", ["parts", "cause same_calls, before 2.15 ms, after 7.63 ms"]),
        ("step_time_ns", ["gpu_v100_dlrm_rank0of8.json.gz: 14,455,000", "rank1of8.json.gz: 19,901,000"]),
        ("gpu_v100_dlrm_rank0of8.json.gz", ["in the report", "V100"]),
    ):
        assert main(["explain", name, "--report", str(tmp_path / "c.json")]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert all(word in text for word in words), name


def test_names_of_a_report_cannot_write_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    anatomy = anatomies.llama_on_gpu()
    rows = (replace(anatomy.operators[0], operator="evil\x1b[31m\n\u202eop"),)
    (tmp_path / "report.json").write_text(
        format_named("json").write(anatomies.with_tables(anatomy, operators=rows), Page())
    )
    assert main(["explain", "evil…", "x\x1b[2J\n", "--report", str(tmp_path / "report.json")]) == 1
    out, err = capsys.readouterr()
    assert "evil" in out
    assert not {"\x1b", "\u202e"} & {*out, *err}
    assert err.count("\n") == 1
