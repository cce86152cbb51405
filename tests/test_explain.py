"""`opanatomy explain`: terms of the report, classes and formulas of operators, kernels, devices, names of a report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from opanatomy.__main__ import main
from opanatomy.cli.explanation import Vocabulary, explain
from opanatomy.records.anatomy import Anatomy, KernelRow, Launching, ModuleRow
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report import read_anatomy
from opanatomy.report.formats.json import json_report
from opanatomy.report.metrics import metrics_of as anatomy_metrics
from opanatomy.report.sections import SECTIONS, sections_of
from opanatomy.report.sections.comparison import bare
from opanatomy.report.table import cut
from opanatomy.report.terms import CHAPTERS, names, terms_named
from tests import anatomies
from tests.printed_names import printed_names
from tests.test_glossary import report_of

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
        ("optimizer_state", ["what the optimizer keeps"]),
        ("d.peak", ["relative to the baseline's"]),
        ("call counts", ["a check:"]),
        ("max", ["the most over the ranks", "aten::max"]),
        ("_flash_atte…n_backward", ["aten::_flash_attention_backward"]),
        ("_safe_soft… forward", ["aten::_safe_softmax", "4 per element"]),
        ("_SAFE_SOFT… forward", ["aten::_safe_softmax"]),
        ("_safe_soft... forward", ["aten::_safe_softmax"]),
        ("NVIDIA A100-SXM4-40GB", ["312 TFLOP/s of bfloat16", "1555 GB/s", "https://"]),
        ("Operator classes", ["tensor contraction: products that sum over an index"]),
        ("saved-activations", ["made by: the operator whose output it is"]),
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


def test_mfu_is_worked_with_the_figures_of_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    anatomy = read_anatomy(BERT.read_bytes())
    assert main(["explain", "mfu", "--report", str(BERT)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    flops = sum(
        row.flops or 0 for row in anatomy.operators if row.operator_class is OperatorClass.TENSOR_CONTRACTION
    )  # nothing is run again there
    share = flops / (anatomy.step.unprofiled_wall_ns * anatomy.device.peak_flops_per_second["float32"] / 1e9)  # type: ignore[operator]
    assert (
        f"{flops:,} FLOP of contractions without recompute / (1 step x {anatomy.step.unprofiled_wall_ns:,} ns" in text
    )
    assert f"= {share:.1%}".replace("%", " %") in text
    assert "printed reached: MFU 22.9 %" in text


def test_metrics_have_the_value_of_the_report() -> None:
    anatomy = anatomies.llama_on_gpu()
    for name, metric in list(anatomy_metrics(anatomy).items())[::8]:
        assert f"report {metric.value:,} {metric.unit}" in text_of(name, anatomy) or terms_named(name)


def test_with_a_report_only_the_meanings_that_it_has_are_said() -> None:
    everywhere = explain(["idle"]).text
    assert everywhere.count("  means") > 1
    assert explain(["idle"], anatomies.llama_on_gpu()).text.count("  means") == 1
    assert "has no such figure" in text_of("straggler", anatomies.bert_on_cpu())


def test_ceilings_have_the_address_of_their_sheet() -> None:
    anatomy = anatomies.llama_on_gpu()
    assert anatomy.device.source is not None
    text = text_of("ceilings", anatomy)
    assert anatomy.device.source in text
    for peak in anatomy.device.peak_flops_per_second.values():
        assert f"{peak:,.0f} FLOP/s" in text


@pytest.mark.parametrize(
    "name", [UNKNOWN, UNKNOWN.upper(), "CppNode<MyLookUp_Op>", "CppNode<...>", "CppNode", "torch::a…kUp_Op>"]
)
def test_an_operator_that_no_rule_knows_is_known_by_its_report(name: str, with_unknown: Anatomy) -> None:
    text = text_of(name, with_unknown)
    for words in (UNKNOWN, "class unknown", "rule none: no rule knows", "47.0 ms in all 3", "in 3 calls",
                  "backward: 15.7 ms", "kernels void at::native"):  # fmt: skip
        assert words in text


@pytest.mark.parametrize("name", [LONG, cut(LONG, 30), "my_odd_thing", "my_odd_thing<float, 4>(int, float*)"])
def test_a_kernel_that_no_rule_knows_is_known_by_its_report(name: str, with_unknown: Anatomy) -> None:
    text = text_of(name, with_unknown)
    for words in ("kernel of the report", "class unknown", "in 3 launches", UNKNOWN):
        assert words in text


def test_a_module_has_its_submodules(with_unknown: Anatomy) -> None:
    assert "report 1.67 ms a step, 5.00 ms in all 3" in text_of("model.layers.0", with_unknown)
    assert "667 us of it outside its submodules" in text_of("model.layers.0", with_unknown)
    assert "MLP" in text_of("model.layers.0.mlp", with_unknown)
    assert "5.00 ms" in text_of("model", with_unknown)


def test_modules_that_are_alike_are_one_as_on_the_page(with_unknown: Anatomy) -> None:
    layers = tuple(
        replace(row, module=row.module.replace(".0", f".{number}"))
        for number in range(3)
        for row in with_unknown.modules
    )
    anatomy = replace(with_unknown, modules=layers)
    for name in ("model.layers.0-2", "layers.0-2", "0-2"):
        text = text_of(name, anatomy)
        assert "module Layer, 3 of them report 5.00 ms a step, 15.0 ms in all 3" in text
        assert "tensor contraction: 5.00 ms" in text
    assert text_of("mlp", anatomy).startswith("model.layers.0-2.mlp (modules of the report) module MLP, 3 of them")


def test_the_time_of_an_operator_is_that_of_the_page() -> None:
    """Parts of its calls included, as in the table of operators."""
    anatomy = read_anatomy(BERT.read_bytes())
    (section,) = (section for section in sections_of(anatomy) if section.name == "operators")
    assert any("_safe_softmax" in str(row.cells[0]) for row in section.rows)
    assert "4.30 s, 4.9 % of the time, in 24 calls forward: 4.30 s in 24 calls, 4.29 s of it in its parts" in text_of(
        "_safe_softmax", anatomy
    )


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


#: Headings of names of one table each; what a row of it takes is said of the name.
OF_ROWS = {"operator", "kernel", "module", "collective"}
#: Rows that sum up, by terms.
SUMS = re.compile(r"and .* more|outside modules|(without|launched by|and) .*")
PAGES = [
    "bert_cpu", "gpu_a100_alexnet", "gpu_h100_bert_inference_memory", "gpu_mi300_graph", "gpu_v100_dlrm_rank0of8",
    "gpu_v100_resnet_2021", "bert-large", "llama_on_gpu", "two_ranks", "comparison", "comparison_of_three",
    "experiment-bert-large-uncased", "experiment-bert-texts",
]  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_every_printed_name_has_the_figures_of_its_row(name: str) -> None:
    """At any width: names cut in the middle or where they differ, without their namespaces, with how many others."""
    report = report_of(name)
    cells = dict.fromkeys(cell for width in (60, 80, 100, 140, 200) for cell in printed_names(report, width))
    assert cells
    for section, header, text, time in cells:
        if section == "steps" and header == "step":
            continue  # a number
        explanation = explain([text], report)
        assert not explanation.unknown, (section, header, text)
        if header in OF_ROWS and time and not SUMS.fullmatch(text):
            assert time in " ".join(explanation.text.split()), (section, header, text)


def test_a_name_of_several_is_said_to_be_of_several() -> None:
    anatomy = anatomies.llama_on_gpu()
    kernels = tuple(replace(anatomy.kernels[0], kernel=f"nvjet_tst_256x128_{place}_TNT") for place in range(9))
    text = explain(["nvjet_tst_256x128…"], replace(anatomy, kernels=kernels)).text
    assert all(kernel.kernel in text for kernel in kernels)
    assert text.count("(kernel of the report)") == 4
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
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", ["kernel of the report", "before", "after, +5.51 ms"]),
        ("communication, the same calls", ["cause of the report", "+5.54 ms"]),
        ("step_time_ns", ["gpu_v100_dlrm_rank0of8.json.gz: 14,455,000", "rank1of8.json.gz: 19,901,000"]),
        ("gpu_v100_dlrm_rank0of8.json.gz", ["side of the report", "V100"]),
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


def test_launches_are_worked_out() -> None:
    anatomy = anatomies.llama_on_gpu()
    launching = Launching(
        calls=2220, graph_calls=0, call_ns=90_000_000, synchronizing_calls=3, synchronizing_ns=6_000_000, delayed=2220,
        delay_ns=2_220_000, median_delay_ns=1000, longest_queue=4, kernels=2220, kernel_ns=400_000_000,
        tiny_kernels=222, tiny_kernel_ns=4_000_000, tiny_below_ns=10_000,
    )  # fmt: skip
    anatomy = replace(anatomy, timeline=replace(anatomy.timeline, launching=launching))
    text = text_of("launches", anatomy)
    assert "launches: 2,220 / 3 steps = 740" in text
    assert "on the host: 90,000,000 ns / 3 steps = 30.0 ms" in text
    assert "launches: 740 in 30.0 ms on the host" in text
    text = text_of("synchronization", anatomy)
    assert "synchronizing calls 3 / steps 3 = 1" in text
    assert "synchronizing 6,000,000 ns / steps 3 = 2.00 ms" in text


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
    assert "lora: 2,446,733,296 B against 5,612,845,520 B = -56.4 %" in text
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
