"""Made traces next to the data sheets of their devices: every bound worked out again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from opanatomy.pipeline import analyze_trace, with_ceilings
from opanatomy.records.taxonomy import OperatorClass
from tests.made_events import H100, MI300X, V100, Accelerator
from tests.made_trace import Options, capture, made

BERT = "bert_cpu.json.gz"
#: FLOP/s of float32 products and of all other arithmetic, and bytes a second, by the data sheets.
SHEETS = {V100: (15.7e12, 900e9), H100: (66.9e12, 3350e9), MI300X: (163.4e12, 5300e9)}


@pytest.mark.parametrize("device", SHEETS, ids=lambda device: device.name)
def test_the_roofline_of_the_named_device(device: Accelerator, tmp_path: Path) -> None:
    """Float32 products of an MI300X were held against 653.7 TFLOP/s of tf32, which torch does not use there."""
    peak, bandwidth = SHEETS[device]
    trace = made(capture(BERT), Options(accelerator=device))
    anatomy = with_ceilings(analyze_trace(trace.write(tmp_path / "trace.json.gz")))
    bounds, found = Counter[OperatorClass](), Counter[OperatorClass]()
    for row in anatomy.operators:
        if row.crosses_host_link or row.part_of is not None or row.flops is None:
            continue
        moved = (row.read_bytes or 0) + (row.written_bytes or 0)
        expected = round(1e9 * max(row.flops / peak, moved / bandwidth))
        assert row.bound_ns == expected
        bounds[row.operator_class] += expected
    for one in anatomy.classes:
        found[one.operator_class] += one.bound_ns or 0
    assert +bounds == +found
    done = sum(row.flops or 0 for row in anatomy.operators if row.operator_class is OperatorClass.TENSOR_CONTRACTION)
    assert anatomy.step.wall_ns is not None
    assert anatomy.device.mfu == pytest.approx(done / (peak * 2 * anatomy.step.wall_ns / 1e9), rel=1e-12)
    assert (anatomy.device.mfu_dtype, anatomy.device.unsure_ns) == ("float32", 0)


def test_calls_of_one_operator_in_float32_and_in_tf32(tmp_path: Path) -> None:
    """One kernel in tf32 made tf32 of all products of its operator: an A100 takes 8 times the time for the others."""
    trace = made(capture(BERT), Options(accelerator=replace(H100, name="NVIDIA A100-SXM4-80GB", units=108)))
    products = [event for event in trace.events if event["name"].startswith("ampere_sgemm_128x64")]
    for event in products[1::2]:
        event["name"] = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x64_32x6_nt_align1>(Params)"
    anatomy = with_ceilings(analyze_trace(trace.write(tmp_path / "trace.json.gz")))
    calls = Counter[str | None]()
    for row in anatomy.operators:
        if row.operator != "aten::mm" or row.flops is None:
            continue
        calls[row.compute_type] += row.calls
        moved = (row.read_bytes or 0) + (row.written_bytes or 0)
        peak = {"float32": 19.5e12, "tf32": 156e12}[row.compute_type or ""]
        assert row.bound_ns == round(1e9 * max(row.flops / peak, moved / 2039e9))
    assert calls == {"float32": (len(products) + 1) // 2, "tf32": len(products) // 2}
