"""`opanatomy explain`: terms of the report, classes and formulas of operators, kernels, devices, names of a report."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from opanatomy.__main__ import main
from opanatomy.cli.explanation import Vocabulary, explain
from opanatomy.pipeline import analyze_trace
from opanatomy.records.anatomy import Anatomy, KernelRow, ModuleRow
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report import read_anatomy
from opanatomy.report.formats.json import json_report
from opanatomy.report.metrics import metrics_of as anatomy_metrics
from opanatomy.report.section import cut
from opanatomy.report.sections import SECTIONS
from opanatomy.report.sections.comparison import bare
from opanatomy.report.terms import CHAPTERS, names, terms_named
from tests import anatomies

ROOT = Path(__file__).parent.parent
BERT = ROOT / "reports" / "bert-large-uncased.json"
EXPERIMENT = ROOT / "reports" / "techniques" / "bert-large-uncased.json"
UNKNOWN = "torch::autograd::CppNode<MyLookUp_Op>"
LONG = "void at::native::(anonymous namespace)::my_odd_thing<float, 4>(int, float*)"


def text_of(name: str, anatomy: Anatomy | None = None) -> str:
    explanation = explain([name], anatomy)
    assert not explanation.unknown, name
    return " ".join(explanation.text.split())


@pytest.fixture(scope="module")
def with_unknown() -> Anatomy:
    """GPU steps with 47 ms of an operator that no rule knows, its kernel, and a module."""
    anatomy = anatomies.llama_on_gpu()
    row = replace(
        anatomy.operators[0], operator=UNKNOWN, operator_class=OperatorClass.UNKNOWN, rule="no rule", calls=3,
        time_ns=47_000_000, flops=None, read_bytes=None, written_bytes=None, phase=Phase.BACKWARD, bound_ns=None,
        bound_by=None, uncosted_ns=47_000_000,
    )  # fmt: skip
    kernel = KernelRow(
        kernel=LONG, operator_class=OperatorClass.UNKNOWN, rule="no rule", count=3, time_ns=47_000_000,
        operators=(UNKNOWN,),
    )  # fmt: skip
    modules = tuple(
        ModuleRow(
            module=path, kind=kind, phase=Phase.FORWARD, operator_class=OperatorClass.TENSOR_CONTRACTION, time_ns=ns,
            flops=10**9, read_bytes=1, written_bytes=1,
        )
        for path, kind, ns in (("model.layers.0", "Layer", 2_000_000), ("model.layers.0.mlp", "MLP", 3_000_000))
    )  # fmt: skip
    return replace(anatomy, operators=(*anatomy.operators, row), kernels=(kernel,), modules=modules)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("aten::addmm", ["tensor contraction", "rule operators/", "2 * b * m * n * k", "Source:"]),
        ("addmm", ["aten::addmm", "tensor contraction"]),
        ("ADDMM", ["aten::addmm", "tensor contraction"]),
        ("addmm forward", ["aten::addmm"]),
        ("aten::view", ["does no work of its own"]),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", ["kernel tensor contraction", "rule kernels/"]),
        ("flash_fwd_kernel", ["tensor contraction, containing statistical normalization"]),
        ("Memcpy HtoD (Pageable -> Device)", ["kernel data movement"]),
        ("AddmmBackward0", ["does no work of its own"]),
        ("mylib::fused_gemm", ["operators/words", "its FLOPs and bytes are not known"]),
        ("MFU", ["FLOPs of contractions without recompute", "device.peak_flops_per_second"]),
        ("mfu", ["FLOPs of contractions without recompute"]),
        ("own", ["the step less exposed communication"]),
        ("peak in forward", ["the most that is allocated"]),
        ("optimizer_state", ["as the optimizer keeps it"]),
        ("d.peak", ["relative to the baseline's"]),
        ("call counts", ["a check:"]),
        ("max", ["the most over the ranks", "aten::max"]),
        ("_flash_atte…n_backward", ["aten::_flash_attention_backward"]),
        ("_safe_soft… forward", ["aten::_safe_softmax", "4 per element"]),
        ("_SAFE_SOFT… forward", ["aten::_safe_softmax"]),
        ("_safe_soft... forward", ["aten::_safe_softmax"]),
        ("NVIDIA A100-SXM4-40GB", ["312 TFLOP/s of bfloat16", "1555 GB/s", "https://"]),
        ("Operator classes", ["tensor contraction: products that sum over an index"]),
        ("saved-activations", ["made by: operator whose output it is"]),
        ("class.tensor_contraction.time_ns", ["(metric)", "device work of the class"]),
        ("lora", ["low-rank adapters", "two thin matrices"]),
        ("gradient accumulation", ["accumulation (technique)"]),
        ("H100 SXM", ["989.4 TFLOP/s of float16", "https://"]),
    ],
)
def test_what_it_says(name: str, words: list[str]) -> None:
    text = text_of(name)
    for word in words:
        assert word in text


def test_an_autograd_node_is_no_kernel() -> None:
    assert "kernel" not in text_of("AddmmBackward0")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("headrom", "headroom"), ("MFUs", "MFU"), ("head", "headroom"),
        ("exposed comunication", "exposed communication"), ("aten::adm", "aten::addmm"),
        ("normalisation", "normalization"), ("xyzzy", None), ("my data loader", None),
        ("some copy of mine", None), ("CppNode<MyLookUp_Op>", None), ("torch::a…_Op", None), ("…", None), ("", None),
        (" ", None),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize("name", ["run unfused", "(run unfused)", "sdpa attention (run unfused)"])
def test_what_the_page_says_of_attention_is_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", name]) == 0
    out = capsys.readouterr().out
    assert "products and a softmax" in out
    assert "kernel    tensor contraction" not in out


def test_words_that_are_one_name_need_no_quotes() -> None:
    text = explain(["stream", "waits", "MFU", "NVIDIA", "A100-SXM4-40GB"]).text
    assert [line for line in text.splitlines() if line and line[0] != " "] == [
        "stream waits (One step)", "MFU (One step)", "A100 SXM4 40 GB (data sheet)",
    ]  # fmt: skip


def test_mfu_has_the_values_of_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    anatomy = read_anatomy(BERT.read_bytes())
    assert main(["explain", "mfu", "--report", str(BERT)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    rows = [row for row in anatomy.operators if row.operator_class is OperatorClass.TENSOR_CONTRACTION]
    assert f"{len(rows)} rows, sum {sum(row.flops or 0 for row in rows):,} FLOP" in text
    assert f"step.unprofiled_wall_ns = {anatomy.step.unprofiled_wall_ns:,} ns" in text


def test_metrics_have_the_value_of_the_report() -> None:
    anatomy = anatomies.llama_on_gpu()
    for name, metric in list(anatomy_metrics(anatomy).items())[::8]:
        assert f"report {metric.value:,} {metric.unit}" in text_of(name, anatomy) or terms_named(name)


def test_with_a_report_only_the_meanings_that_it_has_are_said() -> None:
    everywhere = explain(["idle"]).text
    assert everywhere.count("  means") > 1
    assert explain(["idle"], anatomies.llama_on_gpu()).text.count("  means") == 1
    assert "has no such figure" in text_of("straggler", anatomies.bert_on_cpu())


@pytest.mark.parametrize(
    "name", [UNKNOWN, UNKNOWN.upper(), "CppNode<MyLookUp_Op>", "CppNode<...>", "CppNode", "torch::a…kUp_Op>"]
)
def test_an_operator_that_no_rule_knows_is_known_by_its_report(name: str, with_unknown: Anatomy) -> None:
    text = text_of(name, with_unknown)
    for words in (
        UNKNOWN,
        "class unknown",
        "rule no rule",
        "backward: 3 calls, 47.0 ms in all",
        "kernels kernel void at",
    ):
        assert words in text


def test_the_time_of_an_operator_has_its_parts_in_it() -> None:
    """On the GPU all of the time of `aten::relu_` is in the kernels of the `aten::clamp_min_` that it calls."""
    anatomy = analyze_trace(ROOT / "tests" / "traces" / "gpu_a100_alexnet.json.gz")
    whole_ns = sum(row.time_ns for row in anatomy.operators if "aten::relu_" in (row.operator, row.part_of))
    assert round(whole_ns / 1000) == 683
    text = text_of("aten::relu_", anatomy)
    assert "forward: 14 calls, 683 us in all, 683 us of it in its parts part aten::clamp_min_: 683 us" in text
    assert "14 calls in forward, 0 ns in all, its parts apart" in text


@pytest.mark.parametrize("name", [LONG, cut(LONG, 30), "my_odd_thing", "my_odd_thing<float, 4>(int, float*)"])
def test_a_kernel_that_no_rule_knows_is_known_by_its_report(name: str, with_unknown: Anatomy) -> None:
    text = text_of(name, with_unknown)
    for words in ("in the report", "operator class unknown", "count 3", UNKNOWN):
        assert words in text


@pytest.mark.parametrize("name", ["model.layers.0", "layers.0", "model.layers.0-2"])
def test_a_module_has_its_submodules(name: str, with_unknown: Anatomy) -> None:
    text = text_of(name, with_unknown)
    assert "kind MLP" in text
    assert "5.00 ms in all 2 rows" in text


def test_every_name_on_the_page_is_known_as_it_is_printed() -> None:
    """Names of operators at widths at which they are cut."""
    anatomy = read_anatomy(BERT.read_bytes())
    vocabulary = Vocabulary(anatomy)
    for row in anatomy.operators:
        name = row.part_of or row.operator
        short = name.removeprefix("aten::")
        for text in (name, short, f"{short} {row.phase}"):
            for width in (12, 18, 30):
                shown = cut(text, width)
                names = vocabulary.operators(shown) or vocabulary.shortened(shown)
                assert name in names, shown


def test_a_name_of_several_is_said_to_be_of_several() -> None:
    anatomy = anatomies.llama_on_gpu()
    kernels = tuple(replace(anatomy.kernels[0], kernel=f"nvjet_tst_256x128_{place}_TNT") for place in range(9))
    text = explain(["nvjet_tst_256x128…"], replace(anatomy, kernels=kernels)).text
    assert all(kernel.kernel in text for kernel in kernels)
    assert text.count("(in the report)") == 4
    assert "may also be" in text


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compared") / "c.json"
    traces = [ROOT / "tests" / "traces" / f"gpu_v100_dlrm_rank{rank}of8.json.gz" for rank in range(2)]
    assert main(["compare", *map(str, traces), "-o", str(path)]) == 0
    return path


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", ["parts", "cause same_calls, before 2.15 ms, after 7.63 ms"]),
        ("step_time_ns", ["gpu_v100_dlrm_rank0of8.json.gz: 14,455,000", "rank1of8.json.gz: 19,901,000"]),
        ("gpu_v100_dlrm_rank0of8.json.gz", ["in the report", "V100"]),
        ("work of other steps", ["time in which the device did only another step's work"]),
    ],
)
def test_names_of_a_comparison(name: str, words: list[str], compared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["explain", name, "--report", str(compared)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for word in words:
        assert word in text


def test_kernels_of_anonymous_namespaces_have_names_in_a_comparison() -> None:
    assert bare("void at::native::(anonymous namespace)::copy_kernel<4>(int, float*)") == "at::native::copy_kernel<4>"
    assert bare("void (anonymous namespace)::softmax<int>(float*)") == "softmax<int>"


def test_no_place_of_a_word_is_printed_for_the_word() -> None:
    """A name in which a word differs is shown as it was asked for, or with `...` as the documentation has it."""
    asked = explain(["overlap of compute"]).text
    assert asked.startswith("overlap of compute (A comparison)")
    assert explain(["overlap of ..."]).text.startswith("overlap of ... (A comparison)")
    report = anatomies.llama_on_gpu()
    every = [*names(), *(chapter.title for chapter in CHAPTERS), *SECTIONS]
    for name in every:
        for text in dict.fromkeys((name.replace("{}", "forward"), name.replace("{}", "..."), name)):
            for explanation in (explain([text]), explain([text], report)):
                assert not explanation.unknown, text
                assert "{}" not in explanation.text, text
    for letter in "abcdefghijklmnopqrstuvwxyz":
        assert "{}" not in explain([f"{letter}…"]).text


def test_the_formula_of_own_has_its_brackets() -> None:
    assert "ranks[].wall_ns - (ranks[].exposed_communication_ns / ranks[].steps)" in text_of("own")


@pytest.mark.parametrize(
    "name",
    [
        "set aside", "like steps", "like step", "same calls", "the same calls", "host-bound", "exposed", "straggler",
        "stragglers", "mean step", "the mean step", "device work", "other steps' work", "work of other steps",
        "a pause", "steps of another kind", "significant", "p value", "interleaved", "like ranks",
        "self time", "wall time", "hidden", "lead", "charged", "launch record", "synchronizations", "streams",
        "CUDA graphs", "more call", "the fewer calls", "idle, stream wait", "process group", "units of rounding",
        "the noise", "a prediction", "the collectives", "an operator", "the baselines", "world size", "device events",
    ],
)  # fmt: skip
def test_words_of_the_pages_are_explained(name: str) -> None:
    assert text_of(name)
    assert "means" in text_of(name) or "section" in text_of(name)


@pytest.mark.parametrize(
    ("one", "other"), [("same calls", "the same calls"), ("headrooms", "headroom"), ("the MFU", "MFU"),
                       ("a like step", "like steps"), ("disagreement", "disagreements"), ("a phase", "phase")],
)  # fmt: skip
def test_articles_and_number_do_not_decide(one: str, other: str) -> None:
    assert explain([one]).text == explain([other]).text
    assert explain(one.split()).text == explain([other]).text


@pytest.mark.parametrize("name", ["the", "a", "an", "bu", "clas", "the the"])
def test_a_word_is_not_cut_to_another(name: str) -> None:
    assert explain([name]).unknown


def test_columns_of_an_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "d.peak", "lora", "--report", str(EXPERIMENT)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "rows[lora].measured.peak_bytes = 2,446,733,296 B" in text
    assert "option --lora 8" in text


def test_names_of_a_report_cannot_write_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    anatomy = anatomies.llama_on_gpu()
    evil = "evil\x1b[31m\n\u202eop"
    rows = (replace(anatomy.operators[0], operator=evil, signature=anatomy.operators[0].signature),)
    path = tmp_path / "report.json"
    path.write_text(json_report(replace(anatomy, operators=rows)))
    assert main(["explain", "evil…", "x\x1b[2J\n", "--report", str(path)]) == 1
    out, err = capsys.readouterr()
    assert "evil" in out
    for text in (out, err):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert err.count("\n") == 1
