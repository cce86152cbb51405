"""The work as one table: rows of calls and kernels, the tables that are sums of it, and the work of many ranks."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import opanatomy
from opanatomy.analysis.work import WorkSums
from opanatomy.records.table import NOT_KNOWN
from opanatomy.records.work import breakdown_of, kernel_rows
from tests.support.made_trace import MATRICES, on_gpu
from tests.support.paths import TRACES

US = 1_000
GEMM, REDUCE = "ampere_sgemm_128x64_tn", "splitKreduce_kernel"


def split(folder: Path) -> opanatomy.Anatomy:
    """Two products of one signature: by a kernel, and by two; then a copy that no operator launched."""
    trace = on_gpu()
    trace.step(0, 1_000)
    for start, kernels in ((10, ((GEMM, 20, 2.0),)), (100, ((GEMM, 60, 3.0), (REDUCE, 30, 0.5)))):
        trace.host("aten::mm", start, 50, **MATRICES)
        for index, (name, duration, blocks) in enumerate(kernels):
            trace.run(name, start + 5 * index + 1, start + 100 * index + 20, duration, **{"blocks per SM": blocks})
    trace.run("Memcpy DtoD (Device -> Device)", 400, 410, 7, category="gpu_memcpy", call="cudaMemcpyAsync")
    return trace.analyze(folder)


def test_a_call_stands_in_the_row_of_its_first_kernel(tmp_path: Path) -> None:
    """It has the call, its FLOPs and bytes; the others of its kernels have their events and times."""
    rows = {row["kernel"]: row for row in split(tmp_path).work.rows()}
    gemm, reduce, copy = rows[GEMM], rows[REDUCE], rows["Memcpy DtoD (Device -> Device)"]
    assert (gemm["calls"], gemm["events"], gemm["time_ns"]) == (2, 2, 80 * US)
    assert (gemm["flops"], gemm["read_bytes"] + gemm["written_bytes"]) == (2 * 128, 2 * 224)
    assert (reduce["calls"], reduce["events"], reduce["time_ns"]) == (0, 1, 30 * US)
    assert (reduce["flops"], reduce["read_bytes"], reduce["operator"]) == (None, None, "aten::mm")
    assert (copy["operator"], copy["calls"], copy["events"], copy["uncosted_ns"]) == (None, 1, 1, 7 * US)
    assert all((row["like_events"], row["like_ns"]) == (row["events"], row["time_ns"]) for row in rows.values())


def test_tables_are_sums_of_the_work(tmp_path: Path) -> None:
    anatomy = split(tmp_path)
    (product,) = anatomy.operators
    assert (product.calls, product.time_ns, product.flops) == (2, 110 * US, 2 * 128)
    assert [(row.operator_class, row.calls, row.kernels, row.time_ns) for row in anatomy.classes] == [
        ("tensor_contraction", 2, 3, 110 * US),
        ("data_movement", 1, 1, 7 * US),
    ]
    # Blocks for each multiprocessor are the mean over the time: (2 x 20 + 3 x 60) / 80.
    assert [(row.kernel, row.count, row.operators, row.blocks_per_sm) for row in anatomy.kernels[:2]] == [
        (GEMM, 2, ("aten::mm",), 2.75),
        (REDUCE, 1, ("aten::mm",), 0.5),
    ]
    assert anatomy.kernels[2].blocks_per_sm is None


@pytest.mark.parametrize("blocks", [1e20, 1e306, -1.0, "many"])
def test_blocks_that_cannot_be_are_not_known(blocks: object, tmp_path: Path) -> None:
    trace = on_gpu()
    trace.step(0, 1_000)
    trace.host("aten::mm", 10, 50, **MATRICES)
    trace.run(GEMM, 11, 20, 30, **{"blocks per SM": blocks})
    (kernel,) = trace.analyze(tmp_path).kernels
    assert (kernel.time_ns, kernel.blocks_per_sm) == (30 * US, None)


def test_the_bound_of_an_operator_is_in_parts_by_its_calls(tmp_path: Path) -> None:
    """One product by one kernel, three by another, each of three matrices of 512 x 512 in bfloat16."""
    trace = on_gpu()
    trace.step(0, 9_000)
    for index in range(4):
        trace.host("aten::mm", 10 + 50 * index, 40, shapes=[[512, 512]] * 2, types=["c10::BFloat16"] * 2)
        trace.run(GEMM if index else REDUCE, 11 + 50 * index, 1_000 + 100 * index, 90)
    anatomy = trace.analyze(tmp_path)
    (product,) = anatomy.operators
    bounds = {row["kernel"]: row["bound_ns"] for row in anatomy.work.rows()}
    assert product.bound_ns is not None
    assert bounds == {REDUCE: product.bound_ns // 4, GEMM: product.bound_ns - product.bound_ns // 4}
    assert product.bound_ns == pytest.approx(4 * 3 * 512**2 * 2 / 3.35e12 * 1e9, abs=1)


@pytest.mark.parametrize("name", ["bert_cpu", "gpu_v100_resnet_2021", "gpu_h200_window_flex", "gpu_mi300_compiled"])
def test_every_table_has_the_time_of_the_work(name: str) -> None:
    """To the nanosecond: by class, by operator and without one, by module and outside, by kernel, as the ledger."""
    anatomy = opanatomy.analyze(TRACES / f"{name}.json.gz")
    work = anatomy.work.where(anatomy.work.figures["calls"] != NOT_KNOWN)
    whole = int(work.figures["time_ns"].sum())
    assert whole == anatomy.ledger.device_work_ns - anatomy.ledger.outside_window_ns

    def without(key: str) -> int:
        return int(work.figures["time_ns"][work.keys[key].codes < 0].sum())

    assert sum(row.time_ns for row in anatomy.classes) == whole
    assert sum(row.time_ns for row in anatomy.operators) + without("operator") == whole
    assert sum(row.time_ns for row in anatomy.modules) + without("module") == whole
    assert sum(row.time_ns for row in anatomy.kernels) + without("kernel") == whole
    assert sum(row.flops or 0 for row in anatomy.operators) == sum(row.flops or 0 for row in anatomy.classes) > 0


def test_ranks_together_have_the_sums_of_each_in_any_order() -> None:
    ranks = [opanatomy.analyze(TRACES / f"gpu_v100_dlrm_rank{rank}of8.json.gz") for rank in (0, 1)] * 20
    made: list[Any] = []
    for seed in (1, 2):
        sums, order = WorkSums(), list(range(len(ranks)))
        random.Random(seed).shuffle(order)
        for index in order:
            sums.add(ranks[index].work, ranks[index].step_kinds, (False, index, "", index), rank=index)
        made.append(sums.sums())
    (work, kinds), again = made
    assert (work, kinds) == again
    spent: dict[str, int] = {}
    for rank in ranks:
        for row in rank.kernels:
            spent[row.kernel] = spent.get(row.kernel, 0) + row.time_ns
    assert {row.kernel: row.time_ns for row in kernel_rows(work)} == spent
    each = [rank.breakdown for rank in ranks[:2]]
    (kind,) = breakdown_of(work, kinds).kinds
    walls = [one.wall_ns for breakdown in each if breakdown is not None for one in breakdown.kinds]
    assert (kind.count, kind.wall_ns) == (len(ranks), 20 * sum(walls))
