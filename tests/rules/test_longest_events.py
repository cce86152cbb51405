"""Single events: the longest of the steps in the report and the digest, and those of an interval over MCP."""

from __future__ import annotations

from pathlib import Path

import pytest

import opanatomy
from opanatomy.__main__ import main
from tests.support.made_trace import GEMM, MATRICES, NCCL, US, TraceBuilder, on_gpu


def steps() -> TraceBuilder:
    """Two steps of 1 ms: a product, 40 us and 60 us; a copy of 4 KB in 2 us; Python's loader and a wait at the end."""
    trace = on_gpu()
    for number, product in enumerate((40, 60)):
        begin = 1000 * number
        trace.step(begin, 1000, number)
        trace.annotation("load", begin + 10, 200)
        trace.host(
            "aten::copy_",
            begin + 220,
            20,
            shapes=[[1000], [1000], []],
            types=["float", "float", "Scalar"],
            constants=["", "", "False"],
        )
        trace.run(
            "Memcpy HtoD (Pinned -> Device)", begin + 225, begin + 230, 2, category="gpu_memcpy", call="cudaMemcpyAsync"
        )
        trace.host("aten::mm", begin + 300, 50, **MATRICES)
        trace.run(GEMM, begin + 310, begin + 320, product, stream=9)
        trace.host("aten::item", begin + 400, 100)
        trace.launch(begin + 410, 900 + number, name="cudaStreamSynchronize", duration=80)
    return trace


def test_the_longest_event_of_each_name(tmp_path: Path) -> None:
    """When it began in its step, where it ran, on what; how often there is such a one, and how long it takes mostly."""
    spans = {span.name: span for span in steps().analyze(tmp_path).spans}
    product = spans[GEMM]
    assert (product.what, product.operator, product.signature) == ("kernel", "aten::mm", "float32[8,4], float32[4,2]")
    assert (product.step, product.begin_ns, product.duration_ns, product.stream) == (1, 320 * US, 60 * US, 9)
    assert (product.count, product.median_ns) == (2, 40 * US)
    copy = spans["Memcpy HtoD (Pinned -> Device)"]
    assert (copy.what, copy.bytes, copy.bytes_per_second) == ("copy", 4000, 2e9)
    assert (spans["load"].what, spans["load"].own_ns, spans["load"].thread) == ("range", 200 * US, "1")
    wait = spans["cudaStreamSynchronize"]
    assert (wait.what, wait.operator, wait.duration_ns) == ("runtime", "aten::item", 80 * US)
    assert spans["aten::mm"].own_ns == 48 * US  # without the launch


def test_a_message_and_its_rate_on_the_links(tmp_path: Path) -> None:
    """Of 4 ranks 2 x 3 / 4 of the 8,000 bytes in 6 us; a range that only waits for another thread is none."""
    trace = on_gpu()
    trace.step(0, 1000, 1)
    trace.annotation("outer", 10, 700)
    trace.host("aten::mm", 100, 500, thread=2, **MATRICES)
    trace.run(GEMM, 110, 120, 30, thread=2)
    trace.run(
        NCCL,
        710,
        720,
        6,
        stream=20,
        **{
            "Collective name": "allreduce",
            "In msg nelems": 2000,
            "Out msg nelems": 2000,
            "Group size": 4,
            "dtype": "Float",
        },
    )
    spans = {span.name: span for span in trace.analyze(tmp_path).spans}
    message = spans[NCCL]
    assert (message.what, message.signature, message.bytes, message.group_size) == (
        "collective",
        "float32[2000]",
        8000,
        4,
    )
    assert message.bytes_per_second == pytest.approx(1.5 * 8000 / 6e-6)
    assert "outer" not in spans


def test_work_that_a_range_of_a_collective_launches_is_the_collectives(tmp_path: Path) -> None:
    """It is no operator, and has none around it; here it is the first event of the trace."""
    trace = on_gpu()
    trace.annotation("nccl:all_reduce", 0, 20)
    trace.run(NCCL, 5, 30, 50, stream=20)
    (work,) = [span for span in trace.analyze(tmp_path).spans if span.what == "collective"]
    assert (work.name, work.operator) == (NCCL, "nccl:all_reduce")


def test_several_ranks_have_the_longest_of_all(tmp_path: Path) -> None:
    for rank, product in enumerate((30, 50)):
        trace = on_gpu()
        trace.metadata["distributedInfo"] = {"rank": rank, "world_size": 2}
        trace.step(0, 1000, 1)
        trace.host("aten::mm", 100, 50, **MATRICES)
        trace.run(GEMM, 110, 120, product)
        trace.write(tmp_path / f"rank{rank}.json")
    (product,) = [span for span in opanatomy.analyze(tmp_path).spans if span.what == "kernel"]
    assert (product.rank, product.duration_ns) == (1, 50 * US)


def digest_of(trace: TraceBuilder, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["analyze", str(trace.write(folder / "trace.json")), "-f", "digest"]) == 0
    return capsys.readouterr().out


def test_the_digest_says_them_and_what_its_figures_are_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = steps()
    trace.metadata["distributedInfo"] = {"rank": 0, "world_size": 8}
    lines = digest_of(trace, tmp_path, capsys).splitlines()
    assert "- all numbers: for one step, averaged over 2" in lines
    assert "- rank: 0 of 8" in lines  # it communicates nothing that waits
    assert "- copies between host and device: 1 copy, 2.00 us (3.8 %), 4.00 kB, 2.00 GB/s" in lines
    index = lines.index("## Longest gaps and events")
    assert lines[index + 1].startswith("- gap: ")
    assert "- single range: `load`: 200 us, forward, median 200 us (1 per step), step 0 at 10.0 us" in lines
    assert (
        f"- single kernel: `{GEMM}`: 60.0 us, inside `aten::mm`, forward, `float32[8,4], float32[4,2]`,"
        " median 40.0 us (1 per step), step 1 at 320 us"
    ) in lines


def test_a_rank_whose_collectives_may_wait(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = steps()
    trace.metadata["distributedInfo"] = {"rank": 0, "world_size": 8}
    trace.run(NCCL, 510, 520, 6, stream=20)
    assert "- rank: 0 of 8: communication includes waiting for other ranks\n" in digest_of(trace, tmp_path, capsys)


def test_no_text_of_a_digest_is_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """However many operators, arguments and warnings there are: lines go, and it says how many and where they are."""
    trace = on_gpu()
    trace.step(0, 120_000, 1)
    for number in range(60):
        name, begin = f"custom::operator_with_a_long_name_{number}", 2000 * number
        shapes = [[[number + 1, 4]] * 300]
        trace.host(name, begin, 1900, shapes=[*shapes, [2, 2]], types=["TensorList", "float"])
        trace.run(f"kernel_with_a_long_name_{number}", begin + 10, begin + 20, 1500 + number)
    digest = digest_of(trace, tmp_path, capsys)
    assert len(digest.encode()) <= 4096
    assert "…" not in digest
    assert " … " not in digest
    assert "too long" not in digest
    assert "300 x ?[" in digest
    (line,) = [line for line in digest.splitlines() if line.startswith("- operator: and ")]
    named = sum(line.startswith("- operator: `custom::") for line in digest.splitlines())
    assert f"and {60 - named} more" in line
    assert line.endswith("(table operators, or --section operators)")
