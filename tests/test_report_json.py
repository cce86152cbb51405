"""The JSON report: schema 1 as documented, the same bytes, and back again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from opanatomy.errors import OpanatomyError
from opanatomy.records.anatomy import Anatomy, Ratio
from opanatomy.records.taxonomy import STEP_PHASES, OperatorClass
from opanatomy.report import read_anatomy
from opanatomy.report.formats.json import json_report
from tests import anatomies

EVERY = pytest.mark.parametrize("anatomy", [anatomies.bert_on_cpu(), anatomies.llama_on_gpu(), anatomies.nothing()])

#: The keys of schema 2; keys are added, never renamed.
SCHEMA_2 = {
    "provenance": "opanatomy command created trace trace_sha256",
    "environment": "device device_kind device_count torch cuda driver transformers host_threads",
    "workload": "model architecture parameters task batch sequence_length dtype amp attention optimizer steps",
    "conventions": "multiply_add causal",
    "step": "wall_ns unprofiled_wall_ns phase_ns busy_ns kernel_time_ns framework_ns samples_per_second",
    "classes": "operator_class phase calls kernels time_ns flops read_bytes written_bytes bound_ns",
    "ratios": "operator_class time flops bytes theory_flops theory_bytes",
    "operators": "operator signature phase operator_class rule calls time_ns flops read_bytes written_bytes bound_ns "
    "bound_by",
    "kernels": "kernel operator_class rule count time_ns operators",
    "modules": "module kind phase operator_class time_ns flops read_bytes written_bytes",
    "memory": "peak_bytes peak_at components timeline",
    "timeline": "window_ns busy_ns idle_ns communication_ns exposed_communication_ns exposed_memcpy_ns streams",
    "device": "peak_flops_per_second bandwidth_bytes_per_second source sm_efficiency occupancy tensor_core_ns mfu hfu",
    "ledger": "device_work_ns linked_ns graph_launched_ns no_launch_record_ns outside_window_ns classed_ns costed_ns "
    "unknown_ns",
}


def test_every_key_of_schema_2_is_there() -> None:
    for report in (json.loads(json_report(anatomy)) for anatomy in (anatomies.bert_on_cpu(), anatomies.llama_on_gpu())):
        rest = (
            "collectives", "communication", "ranks", "spread", "waiting", "generation", "breakdown", "checks", "texts",
            "suggestions", "warnings",
        )  # fmt: skip
        assert tuple(report) == ("schema", "caveats", *SCHEMA_2, *rest)
        assert report["schema"] == 2
        for section, keys in SCHEMA_2.items():
            value = report[section]
            for row in value if isinstance(value, list) else [value]:
                assert set(keys.split()) <= set(row), section
    memory = json.loads(json_report(anatomies.bert_on_cpu()))["memory"]
    assert {"component", "measured_bytes", "theory_bytes", "formula"} <= set(memory["components"][0])


@EVERY
def test_a_report_of_schema_1_is_read(anatomy: Anatomy) -> None:
    """A step had a field for each phase, `null` for one it lacks."""

    def older(value: Any) -> Any:
        if isinstance(value, list):
            return list(map(older, value))
        if not isinstance(value, dict):
            return value
        made = {key: older(item) for key, item in value.items()}
        times = made.pop("phase_ns", None)
        return made if times is None else {**made, **{f"{phase}_ns": times.get(phase) for phase in STEP_PHASES}}

    assert read_anatomy(json.dumps({**older(json.loads(json_report(anatomy))), "schema": 1})) == anatomy


@EVERY
def test_it_reads_back_as_the_same_anatomy_and_writes_the_same_bytes(anatomy: Anatomy) -> None:
    text = json_report(anatomy)
    assert read_anatomy(text) == anatomy
    assert read_anatomy(text.encode()) == anatomy
    assert json_report(read_anatomy(text)) == text


def test_the_order_of_mappings_does_not_matter() -> None:
    anatomy = anatomies.llama_on_gpu()
    peaks = dict(reversed(anatomy.device.peak_flops_per_second.items()))
    turned = replace(
        anatomy,
        conventions=dict(reversed(anatomy.conventions.items())),
        device=replace(anatomy.device, peak_flops_per_second=peaks),
    )
    assert json_report(turned) == json_report(anatomy)


def test_whole_numbers_in_fields_of_fractions_do_not_change_the_bytes() -> None:
    ratio = Ratio(operator_class=OperatorClass.TENSOR_CONTRACTION, time=2, flops=2.0, bytes=None)
    text = json_report(replace(anatomies.nothing(), ratios=(ratio,)))
    assert '"time": 2.0, "flops": 2.0, "bytes": null' in text
    assert json_report(read_anatomy(text)) == text


def test_a_row_is_a_line() -> None:
    anatomy = anatomies.bert_on_cpu()
    lines = json_report(anatomy).splitlines()
    assert sum('"signature":' in line for line in lines) == len(anatomy.operators)
    assert sum('"component":' in line for line in lines) == len(anatomy.memory.components)


def test_any_integer_and_any_name_survive() -> None:
    anatomy = anatomies.bert_on_cpu()
    row = replace(anatomy.operators[0], operator='a "quoted"\n</script> \x1b 模型', flops=10**25)
    read = read_anatomy(json_report(replace(anatomy, operators=(row,))))
    assert read.operators == (row,)


def test_keys_that_a_later_version_added_are_passed_over() -> None:
    report = json.loads(json_report(anatomies.bert_on_cpu()))
    report["later"] = 1
    report["step"]["later"] = 1
    assert read_anatomy(json.dumps(report)) == anatomies.bert_on_cpu()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not an opanatomy report"),
        ("no json", "not an opanatomy report"),
        (b"\xff\xfe", "not an opanatomy report"),
        ("[]", "not an opanatomy report"),
        ('{"traceEvents": []}', "missing required field `schema`"),
        ('{"schema": 1}', "missing required field `provenance`"),
        ('{"schema": 3}', "the report has schema 3, this opanatomy reads schema 2"),
    ],
)
def test_what_is_no_report_says_so(text: str | bytes, reason: str) -> None:
    with pytest.raises(OpanatomyError, match=reason) as caught:
        read_anatomy(text)
    assert "\n" not in str(caught.value)


def test_a_wrong_value_is_named() -> None:
    text = json_report(anatomies.bert_on_cpu()).replace("tensor_contraction", "tensor_contradiction", 1)
    with pytest.raises(OpanatomyError, match=r"tensor_contradiction.*classes"):
        read_anatomy(text)


@pytest.mark.parametrize("name", ["bert_on_cpu", "llama_on_gpu", "nothing"])
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"{name}.json", json_report(getattr(anatomies, name)()))
