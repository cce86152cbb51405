"""Every headline figure as a flat dictionary: declared, documented, of one step, and left out where it is not known."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from opanatomy.errors import UsageError
from opanatomy.pipeline import analyze_traces
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.memory import Memory, MemoryComponent
from opanatomy.report import read_anatomy
from opanatomy.report.formats.json import json_report
from opanatomy.report.metrics import ALIASES, definition_of, metric_named, metrics_of
from tests import anatomies
from tests.documented import current_and_renewed

ROOT = Path(__file__).parent.parent
TRACES = Path(__file__).parent / "traces"
#: What the window is made of.
PARTS = ("busy", "outside", "unrecorded", "host_idle", "stream_idle", "other_idle")


@pytest.fixture(scope="module")
def ranks() -> Anatomy:
    return analyze_traces([TRACES / f"gpu_v100_dlrm_rank{rank}of8.json.gz" for rank in range(2)])


def every_anatomy(ranks: Anatomy) -> Iterator[Anatomy]:
    yield from (anatomies.bert_on_cpu(), anatomies.llama_on_gpu(), ranks)
    yield read_anatomy((ROOT / "reports" / "bert-large-uncased.json").read_text())


def values(anatomy: Anatomy) -> dict[str, float]:
    return {name: metric.value for name, metric in metrics_of(anatomy).items()}


# ------------------------------------------------------------------------------------------------------------ the names


def test_the_page_has_every_figure_and_its_short_names() -> None:
    page, renewed = current_and_renewed("metrics.md")
    assert renewed == page, "run python docs/renew.py"
    assert "| `peak_memory_bytes` | `memory`, `peak` | bytes | lower |" in page
    assert "| `class.CLASS.time_ns` |  | ns | lower |" in page


def test_every_figure_is_declared_known_and_finite(ranks: Anatomy) -> None:
    for anatomy in every_anatomy(ranks):
        for name, metric in metrics_of(anatomy).items():
            definition = definition_of(name)
            assert definition is not None
            assert (metric.unit, metric.better) == (definition.unit, definition.better)
            assert math.isfinite(metric.value), name


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("time", "step_time_ns"),
        ("memory", "peak_memory_bytes"),
        ("Exposed Communication", "exposed_communication_ns"),
        ("step-time", "step_time_ns"),
        ("forward", "forward_time_ns"),
        ("idle", "idle_ns"),
        ("flops", "flops"),
        ("bytes", "bytes"),
        ("mfu", "mfu"),
        ("class.contraction.time", "class.tensor_contraction.time_ns"),
        ("class.element-wise", "class.elementwise.time_ns"),
        ("memory.forward_activations", "memory.forward_activations_bytes"),
        ("memory.at_peak.weights", "memory.at_peak.weights_bytes"),
        ("ranks.step_max", "ranks.step_max_ns"),
        ("unknown", "ledger.unknown_share"),
    ],
)
def test_a_name_is_taken_in_short(name: str, metric: str) -> None:
    assert metric_named(name) == metric


def test_every_alias_and_every_declared_name_is_a_metric(ranks: Anatomy) -> None:
    assert {metric_named(name) for name in ALIASES} == set(ALIASES.values())
    for anatomy in every_anatomy(ranks):
        assert all(metric_named(name) == name for name in metrics_of(anatomy))


@pytest.mark.parametrize(
    ("name", "near"), [("exposd_communication", "exposed_communication_ns"), ("mff", "mfu"), ("class.copies.time", "")]
)
def test_what_is_no_metric_is_refused_with_near_ones(name: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"metric '{name}': not known - ") as caught:
        metric_named(name)
    assert near in str(caught.value)


# ----------------------------------------------------------------------------------------------------------- the values


def test_parts_are_of_one_step_and_sum_to_their_whole(ranks: Anatomy) -> None:
    for anatomy in (anatomies.llama_on_gpu(), ranks):
        figures = values(anatomy)
        for kind in ("class", "phase"):
            parts = [value for name, value in figures.items() if re.fullmatch(rf"{kind}\.\w+\.time_ns", name)]
            assert sum(parts) == pytest.approx(figures["kernel_time_ns"], rel=1e-12)
        parts = [figures[f"{name}_ns"] for name in PARTS]
        assert sum(parts) == pytest.approx(figures["window_ns"], rel=1e-12)


def test_sums_over_the_steps_are_divided_by_their_number() -> None:
    anatomy = anatomies.llama_on_gpu()
    assert anatomy.step.count == 3
    figures, ledger = values(anatomy), anatomy.ledger
    assert figures["kernel_time_ns"] == (ledger.device_work_ns - ledger.outside_window_ns) / 3
    assert figures["window_ns"] == anatomy.timeline.window_ns / 3
    assert figures["flops"] == sum(row.flops or 0 for row in anatomy.classes) // 3
    twice = values(replace(anatomy, step=replace(anatomy.step, count=6)))
    halved = {name for name in figures if twice[name] * 2 == figures[name] != 0}
    assert {"flops", "bytes", "kernels", "idle_ns", "class.elementwise.bytes", "tensor_core_ns"} <= halved
    assert not {"step_time_ns", "forward_time_ns", "mfu", "idle_share", "peak_memory_bytes", "occupancy"} & halved


def test_over_ranks_a_step_is_that_of_the_mean_rank(ranks: Anatomy) -> None:
    figures = values(ranks)
    steps = sum(rank.steps for rank in ranks.ranks)
    assert figures["busy_ns"] == pytest.approx(sum(rank.busy_ns for rank in ranks.ranks) / steps, rel=1e-6)
    assert figures["kernel_time_ns"] == pytest.approx(sum(rank.kernel_time_ns for rank in ranks.ranks) / steps)
    assert figures["ranks"] == 2
    spread = {row.figure: row.max_ns for row in ranks.spread}
    assert figures["ranks.own_max_ns"] == spread["own"]
    assert ranks.waiting is not None
    rows = [step for rank in ranks.waiting.each for step in rank.steps]
    assert figures["waiting_ns"] == sum(row.waiting_ns for row in rows) / len(rows)


def test_the_plain_step_is_the_step_where_it_was_measured() -> None:
    anatomy = anatomies.bert_on_cpu()
    figures = values(anatomy)
    assert figures["step_time_ns"] == figures["step_unprofiled_ns"] == anatomy.step.unprofiled_wall_ns
    bare = values(replace(anatomy, step=replace(anatomy.step, unprofiled_wall_ns=None)))
    assert bare["step_time_ns"] == bare["step_profiled_ns"] == anatomy.step.wall_ns
    assert "step_unprofiled_ns" not in bare


def test_a_device_on_the_cpu_is_not_idle() -> None:
    figures = values(anatomies.bert_on_cpu())
    assert not {"idle_ns", "window_ns", "outside_ns"} & set(figures)
    parts = figures["busy_ns"] + figures["framework_ns"] + figures["profiler_ns"]
    assert parts == figures["step_profiled_ns"]


def test_what_is_not_known_is_left_out() -> None:
    assert values(anatomies.nothing()) == {"steps": 1}


def test_figures_of_a_report_that_is_read_back_are_the_same(ranks: Anatomy) -> None:
    for anatomy in every_anatomy(ranks):
        assert metrics_of(read_anatomy(json_report(anatomy))) == metrics_of(anatomy)


def test_strange_components_are_names_still() -> None:
    strange = MemoryComponent(component='<b "x">', measured_bytes=5)
    anatomy = replace(anatomies.nothing(), memory=Memory(components=(strange,)))
    assert values(anatomy) == {"steps": 1, "memory._b_x__bytes": 5}
    assert json.dumps(values(anatomy))
