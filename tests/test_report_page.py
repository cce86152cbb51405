"""The page: tables that sum to all of the time, nothing that vanishes unsaid, headings that `--section` takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from msgspec.structs import replace

from opanatomy.__main__ import main
from opanatomy.cli.output import wanted_page
from opanatomy.cli.parser import make_parser
from opanatomy.errors import UsageError
from opanatomy.records.anatomy import Anatomy, DeviceFigures, KernelRow, ModuleRow, StepRow
from opanatomy.records.memory import Memory, MemoryPoint, MemorySnapshot
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report import read_anatomy, terminal_report
from opanatomy.report.formats.terminal import section_text
from opanatomy.report.formats.terminal import terminal_report as page_text_of
from opanatomy.report.section import Cell, Page, Section, Share, Time, per_step
from opanatomy.report.sections import HEADINGS, ORDERS, SECTIONS, first_screen, named_sections, sections_of
from opanatomy.report.sections.modules import Node, module_tree
from opanatomy.report.sections.step import costs_of
from tests import anatomies
from tests.test_golden_traces import EVERY, FOLDER, anatomy_of

CONTRACTION = OperatorClass.TENSOR_CONTRACTION
ROOT = Path(__file__).parent.parent
MADE = (anatomies.bert_on_cpu(), anatomies.llama_on_gpu())


def section_of(anatomy: Anatomy, name: str, top: int = 8) -> Section:
    return next(section for section in named_sections(anatomy, (name,), top=top) if section.name == name)


def column(section: Section, header: str) -> list[Cell]:
    place = [column.header for column in section.columns].index(header)
    return [row.cells[place] for row in section.rows]


def shares(section: Section) -> list[float]:
    return [
        cell.part / cell.whole
        for cell in column(section, "share")
        if isinstance(cell, Share) and cell.part and cell.whole
    ]


# ---------------------------------------------------------------------------------------------------- all of the time


@EVERY
@pytest.mark.parametrize("top", [1, 8])
def test_tables_sum_to_all_of_the_time(path: Path, top: int) -> None:
    anatomy = anatomy_of(path)
    for name in ("operators", "kernels"):
        if getattr(anatomy, name):
            assert sum(shares(section_of(anatomy, name, top))) == pytest.approx(1, abs=1e-12), name


@EVERY
def test_the_class_table_sums_by_class_and_by_phase(path: Path) -> None:
    section = section_of(anatomy_of(path), "classes")
    phases = [column.header for column in section.columns if column.header in set(Phase)]
    for header in ("time", *phases):
        *times, whole = (cell.ns or 0 for cell in column(section, header) if isinstance(cell, Time))
        assert sum(times) == pytest.approx(whole)
    assert sum(shares(section)[:-1]) == pytest.approx(1)


@EVERY
def test_the_parts_of_the_step_are_the_step(path: Path) -> None:
    """What the headline ranks: each nanosecond in one part."""
    anatomy = anatomy_of(path)
    costs = costs_of(anatomy)
    parts = costs.idle_ns + costs.unrecorded_ns + costs.exposed_ns + sum(costs.classes.values())
    if anatomy.environment.device_kind != "cpu":
        assert parts == pytest.approx(costs.whole_ns)
        assert sum(row.time_ns for row in costs.causes) == costs.idle_ns


def test_work_of_graphs_and_without_an_operator_has_rows() -> None:
    graph = anatomy_of(FOLDER / "gpu_mi300_graph.json.gz")
    cells = section_of(graph, "operators").rows[-1].cells
    assert cells[0] == "launched by graphs"
    assert shares(section_of(graph, "operators"))[-1] == pytest.approx(0.969, abs=0.001)
    assert "kernels" in [section.name for section in first_screen(graph)]
    lost = anatomies.bert_on_cpu()
    lost = replace(lost, operators=lost.operators[1:])
    last = section_of(lost, "operators").rows[-1].cells
    assert last[0] == "without an operator"
    assert Time(anatomies.bert_on_cpu().operators[0].time_ns) in last


def test_device_work_without_any_operator_has_its_kernels() -> None:
    assert section_of(anatomy_of(FOLDER / "gpu_mi210_device_only.json.gz"), "kernels").rows


# ----------------------------------------------------------------------------------------------------------- one rule


def test_figures_are_of_one_step_and_headings_say_so() -> None:
    """Three equal steps are the page of one of them, but for the words."""
    one = anatomies.bert_on_cpu()
    rows = tuple(
        replace(row, calls=3 * row.calls, time_ns=3 * row.time_ns, uncosted_ns=3 * row.uncosted_ns,
                flops=3 * (row.flops or 0), read_bytes=3 * (row.read_bytes or 0),
                written_bytes=3 * (row.written_bytes or 0))
        for row in one.classes
    )  # fmt: skip
    three = replace(one, step=replace(one.step, count=3), classes=rows)
    known = replace(one, classes=tuple(
        replace(row, flops=row.flops or 0, read_bytes=row.read_bytes or 0, written_bytes=row.written_bytes or 0)
        for row in one.classes
    ))  # fmt: skip
    alone, mean = (section_text(section_of(item, "classes"), 120) for item in (known, three))
    assert alone == mean
    assert (per_step(one), per_step(three)) == ("", "per step, mean of 3")
    headed = terminal_report(three, sections=("classes",)).splitlines()[1]
    assert headed.startswith("classes (per step, mean of 3; shares of the operators' time) ──")


def test_a_whole_trace_taken_for_one_step_is_said() -> None:
    anatomy = anatomies.llama_on_gpu()
    step = replace(anatomy.step, count=1, unprofiled_wall_ns=None, steps=(StepRow(number=None, wall_ns=160_000_000),))
    said = "no step is annotated, the whole trace is taken for one"
    assert said in " ".join(terminal_report(replace(anatomy, step=step)).split())
    assert said not in " ".join(terminal_report(anatomy).split())


def test_classes_of_next_to_nothing_have_no_ratios() -> None:
    anatomy = anatomies.llama_on_gpu()
    assert OperatorClass.UNKNOWN not in column(section_of(anatomy, "ratios"), "backward / forward")
    assert "classes of less than 1 % of the time are left out" in " ".join(terminal_report(anatomy).split())


# ------------------------------------------------------------------------------------------------------------ modules


def module(path: str, time_ns: int, phase: Phase = Phase.FORWARD, kind: str = "Linear", flops: int = 10) -> ModuleRow:
    return ModuleRow(
        module=path, kind=kind, phase=phase, operator_class=CONTRACTION, time_ns=time_ns, flops=flops, read_bytes=1,
        written_bytes=1,
    )  # fmt: skip


def names(node: Node, depth: int = 0) -> list[str]:
    return ["  " * depth + node.name, *(name for child in node.children for name in names(child, depth + 1))]


def test_modules_that_are_alike_are_one() -> None:
    layers = [module(f"encoder.layer.{number}.{part}", 10) for number in (0, 1, 2, 4) for part in ("attention", "norm")]
    other = module("encoder.layer.3.attention", 7, kind="Sparse")
    root = module_tree([*layers, other, module("head", 50), module("", 3)])
    assert names(root) == [
        "", "  encoder.layer", "    0-2, 4", "      attention", "      norm", "    3.attention", "  head",
    ]  # fmt: skip
    assert (root.whole.time_ns, root.whole.flops) == (140, 110)
    assert root.children[0].children[0].members == 4


def test_the_tree_has_forward_and_backward_and_what_is_outside() -> None:
    rows = (module("a.0", 10), module("a.1", 10), module("a.0", 25, Phase.BACKWARD), module("a.1", 15, Phase.BACKWARD))
    anatomy = anatomies.nothing()
    classes = tuple(
        replace(anatomies.bert_on_cpu().classes[0], phase=phase, time_ns=ns)
        for phase, ns in ((Phase.FORWARD, 30), (Phase.BACKWARD, 40))
    )
    section = section_of(replace(anatomy, modules=rows, classes=classes), "modules")
    assert [column.header for column in section.columns] == [
        "module", "time", "share", "forward", "backward", "fwd FLOP", "bwd FLOP",
    ]  # fmt: skip
    assert [row.cells[:5] for row in section.rows] == [
        ("the model", Time(60), Share(60, 70), Time(20), Time(40)),
        ("  a.0, 1", Time(60), Share(60, 70), Time(20), Time(40)),
        ("outside modules", Time(10), Share(10, 70), None, None),
    ]


def test_the_tree_goes_as_deep_as_rows_allow() -> None:
    anatomy = read_anatomy((ROOT / "reports" / "bert-large-uncased.json").read_bytes())
    few, more = (len(section_of(anatomy, "modules", top).rows) for top in (3, 12))
    assert few <= 2 * 3 + 1 < more <= 2 * 12 + 1
    assert "    encoder.layer.0-23" in column(section_of(anatomy, "modules"), "module")


# ------------------------------------------------------------------------------------------------------ what is shown


@pytest.mark.parametrize("anatomy", MADE)
@pytest.mark.parametrize("width", [40, 50, 60, 80])
def test_a_column_never_vanishes_without_a_word(anatomy: Anatomy, width: int) -> None:
    """Every header of every table is on the page: above its column or among those there is left out at this width."""
    for section in sections_of(anatomy):
        text = section_text(section, width)
        shown = text.splitlines()[0] if section.rows else ""
        missing = " ".join(text.split()).partition("left out at this width: ")[2]
        for place in section.shown_columns[1:]:
            header = section.columns[place].header
            assert header in shown or header in missing, (section.name, header)
        assert bool(missing) is any(section.columns[place].header not in shown for place in section.shown_columns[1:])


def test_a_curve_never_vanishes_without_a_word() -> None:
    points = tuple(MemoryPoint(time_ns=at, allocated_bytes=at, phase=Phase.FORWARD, components={}) for at in range(9))
    anatomy = replace(anatomies.nothing(), memory=Memory(timeline=points))
    assert "no room for the curve" in terminal_report(anatomy, width=30)
    assert "no room for the curve" not in terminal_report(anatomy, width=40)


def test_letters_of_the_curve_are_not_those_of_phases() -> None:
    point = MemoryPoint(time_ns=0, allocated_bytes=9, phase=Phase.BACKWARD, components={"buffers": 9})
    points = tuple(replace(point, time_ns=at) for at in range(5))
    lines = terminal_report(replace(anatomies.nothing(), memory=Memory(timeline=points)), width=40).splitlines()
    curve = [line for line in lines if set(line[11:].strip()) == {"b"}]
    (phases,) = [line for line in lines if line.lstrip().startswith("phase ")]
    assert curve
    assert set(phases[11:]) == {"B"}


def test_the_cpu_has_no_rows_of_a_device() -> None:
    snapshots = tuple(MemorySnapshot(name=name, rss_bytes=9) for name in ("before_the_device", "context", "weights"))
    made = anatomies.bert_on_cpu()
    anatomy = replace(made, memory=Memory(snapshots=snapshots), environment=replace(made.environment, host_threads=1))
    page = terminal_report(anatomy)
    assert column(section_of(anatomy, "snapshots"), "memory at each stage") == ["at the start", "weights"]
    assert ", 1 thread)" in page
    assert section_of(replace(anatomy, environment=anatomies.llama_on_gpu().environment), "snapshots").rows[1]
    assert "idle" not in [section.name for section in sections_of(anatomy)]


def test_addresses_of_data_sheets_are_not_on_the_page() -> None:
    source = "measured 2026-01-01; else data sheet of H100 SXM, https://example.com/sheet.pdf; else this"
    device = DeviceFigures(peak_flops_per_second={"bfloat16": 1e15}, source=source, mfu_dtype="bfloat16")
    page = " ".join(terminal_report(replace(anatomies.llama_on_gpu(), device=device)).split())
    assert "measured 2026-01-01; else data sheet of H100 SXM; else this" in page
    assert "://" not in page


def test_the_paper_stands_beside_an_encoder_only_unless_it_is_asked_for() -> None:
    encoder, decoder = MADE
    assert "paper" in [section.name for section in sections_of(encoder)]
    assert "paper" not in [section.name for section in sections_of(decoder)]
    assert section_of(decoder, "paper").rows


def test_kernels_are_told_apart_by_what_is_not_cut() -> None:
    row = KernelRow(
        kernel="void at::native::(anonymous namespace)::softmax_warp_forward<float>", operator_class=CONTRACTION,
        rule="", count=1, time_ns=10, operators=("aten::_softmax", "aten::softmax"),
    )  # fmt: skip
    page = terminal_report(replace(anatomies.llama_on_gpu(), kernels=(row,)), width=120, sections=("kernels",))
    assert "softmax_warp_forward<float>  contraction" in page
    assert "aten::_softmax and 1 more" in page


# ------------------------------------------------------------------------------------------------------------ screens


def test_the_first_screen_of_bert_large_fits() -> None:
    """80 x 24 has the headline, what ran, the step and the classes; 80 x 50 the operators too."""
    text = (ROOT / "reports" / "bert-large-uncased.txt").read_text().splitlines()
    total = next(place for place, line in enumerate(text) if line.startswith("total"))
    assert total < 24
    first = terminal_report(read_anatomy((ROOT / "reports" / "bert-large-uncased.json").read_bytes()), brief=True)
    assert first.splitlines() == text[: len(first.splitlines())]
    assert len(first.splitlines()) < 50


@pytest.mark.parametrize("anatomy", [*MADE, anatomies.nothing()])
def test_every_heading_is_taken_by_section(anatomy: Anatomy) -> None:
    printed = re.findall(r"^([a-z][a-z-]*)(?: \(.*\))? ─+$", terminal_report(anatomy), re.MULTILINE)
    assert printed
    for name in printed:
        lines = terminal_report(anatomy, sections=(name,)).splitlines()
        assert lines[1].startswith(name)
        assert len(lines) > 2
    assert set(printed) <= set(HEADINGS)


@pytest.mark.parametrize("name", SECTIONS)
def test_every_section_can_be_asked_for(name: str) -> None:
    page = terminal_report(anatomies.nothing(), sections=(name,))
    assert len(page.splitlines()) > 1


def test_sections_are_called_as_they_are_asked_for() -> None:
    """The ledger has more where it is asked for: each difference of the checks, and its cause."""
    for anatomy in MADE:
        for section in sections_of(anatomy)[1:]:
            assert section.name in SECTIONS
            asked = named_sections(anatomy, (section.name,))
            if section.name == "ledger":
                [more] = [one for one in asked if one.name == "ledger"]
                assert {fact.label for fact in more.facts if fact not in section.facts} <= {"explained", "uncertain"}
            else:
                assert section in asked


def page_of(*words: str) -> object:
    arguments = make_parser().parse_args(["analyze", "a.json", *words])
    return wanted_page(arguments, "terminal" if "json" not in words else "json", [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--section", "idel"), "--section idel: not known - did you mean idle? It is one of caveats, given-ceilings,"),
        (("--section", "idle,nonsense"), "--section nonsense: not known - one of caveats, given-ceilings,"),
        (("--section", ","), "--section: the name is empty - give one of "),
        (("--section", "idle", "--brief"), "--brief and --section: each says how much of the report is shown"),
        (("--full", "--brief"), "--brief and --full: each says how much of the report is shown - leave one out"),
        (("--brief", "-f", "json"), "--brief: -f json is for machines and always whole"),
    ],
)
def test_what_cannot_be_shown_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        page_of(*words)


def test_orders_that_there_are_none_of_are_refused() -> None:
    with pytest.raises(UsageError, match="--sort flop: not known - did you mean flops"):
        make_parser().parse_args(["analyze", "a.json", "--sort", "flop"])
    assert set(ORDERS) == {"time", "flops", "bytes", "calls", "headroom", "name"}


@pytest.mark.parametrize("order", ORDERS)
def test_operators_in_the_order_of_a_figure(order: str) -> None:
    """The first row is the operator with most of it, and the table is all of the time still."""
    anatomy = anatomies.llama_on_gpu()
    sections = named_sections(anatomy, ("operators",), top=3, sort=order)
    section = next(item for item in sections if item.name == "operators")
    assert sum(shares(section)) == pytest.approx(1)
    amounts = {
        "time": lambda row: row.time_ns, "flops": lambda row: row.flops or 0, "calls": lambda row: row.calls,
        "bytes": lambda row: (row.read_bytes or 0) + (row.written_bytes or 0),
        "headroom": lambda row: row.bounded_ns - (row.bound_ns or 0),
    }  # fmt: skip
    if order == "name":
        listed = [str(cell) for cell in column(section, "operator")[:3]]
        assert listed == sorted(listed)
        return
    groups: dict[tuple[str, Phase], int] = {}
    for row in anatomy.operators:
        key = (row.operator, row.phase)
        groups[key] = groups.get(key, 0) + amounts[order](row)
    first = section.rows[0].cells
    largest = max(groups, key=lambda key: groups[key])
    assert (getattr(first[0], "name", None), first[2]) == (largest[0], largest[1].value)


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(FOLDER / "gpu_mi250_training.json.gz")
    assert main(["analyze", trace, "--brief"]) == 0
    brief = capsys.readouterr().out
    assert shlex.split(brief.partition("next: ")[2].partition("\n\n")[0].replace("\\\n", "")) == [
        "opanatomy", "analyze", trace, "--section", "idle"
    ]  # fmt: skip
    assert "operators" in brief
    assert "ledger" not in brief
    assert main(["analyze", trace, "--section", "idle,ledger", "--top", "2"]) == 0
    asked = capsys.readouterr().out
    assert re.findall(r"^(\w+).* ─+$", asked, re.MULTILINE)[1:] == ["idle", "ledger"]
    assert main(["analyze", trace, "--section", "nonsense"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("height", [21, 23, 30, 49])
def test_a_first_screen_gives_way_to_the_height_of_the_terminal(height: int) -> None:
    """The headline, the step and the classes stay; what is left out is named with the option that shows it."""
    anatomy = read_anatomy((ROOT / "reports" / "bert-large-uncased.json").read_bytes())
    whole = terminal_report(anatomy, brief=True).splitlines()
    lines = page_text_of(anatomy, Page(brief=True, height=height)).splitlines()
    assert len(lines) <= height
    assert lines[:5] == whole[:5]
    assert any(line.startswith("total") for line in lines)
    named = [line.partition("--section ")[2].split(",") for line in lines if line.startswith("left out of this screen")]
    assert named == {21: [["operators", "run", "step"]], 23: [["operators", "run", "step"]]}.get(height, [])
    if height == 49:  # rows fill what is left; with a number of rows asked for they do not
        rows = [len([line for line in each if line.endswith((" M", " G", " T"))]) for each in (lines, whole)]
        assert rows[0] > rows[1]
        asked = page_text_of(anatomy, Page(brief=True, height=height, top=5)).splitlines()
        assert asked == terminal_report(anatomy, brief=True, top=5).splitlines()
