"""The first screen: 24 lines of 80 cells have the step, what costs most and what to change, in shares of the step."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from rich.cells import cell_len

import opanatomy
from opanatomy.records.anatomy import Advice, Anatomy, Evidence, HostRow
from opanatomy.records.estimate import Fits
from opanatomy.records.experiment import Techniques
from opanatomy.records.reports import Report
from opanatomy.records.run import RunClock
from opanatomy.report import terminal_report
from opanatomy.report.formats import format_named
from opanatomy.report.formats.terminal import sentence
from opanatomy.report.section import Page
from opanatomy.report.sections.step import busy
from tests.support.made_trace import US, TraceBuilder, on_gpu
from tests.support.paths import ROOT, SNAPSHOTS, TRACES

EVERY = sorted([*TRACES.glob("*.json.gz"), *SNAPSHOTS.glob("*.pickle.gz")])
RANKS = [TRACES / f"gpu_v100_dlrm_rank{rank}of8.json.gz" for rank in (0, 1)]
#: Lines of a terminal of 24 above the next prompt.
HEIGHT = 23


def screen(report: Report, **options: Any) -> list[str]:
    page = Page(**{"width": 80, "height": HEIGHT, "brief": True, "more": True, "source": "a.json.gz"} | options)
    return str(format_named("terminal").write(report, page)).splitlines()


def three_kernels() -> TraceBuilder:
    """A step of 1,000 us: kernels of 400 and 100 us, of which 300 and 50 are a product and its copy, and no others."""
    trace = on_gpu()
    trace.step(0, 1000)
    for start, duration, name, kernel in (
        (0, 400, "aten::mm", "ampere_sgemm_128x64_nn"),
        (500, 100, "aten::add", "void vectorized_elementwise_kernel"),
    ):
        trace.host(name, start, 50)
        trace.run(kernel, start + 5, start + 10, duration)
    return trace


def with_advice(anatomy: Anatomy, *advice: Advice) -> Anatomy:
    return replace(anatomy, advice=advice)


def timed_without(anatomy: Anatomy, step_us: int) -> Anatomy:
    """The anatomy of a run whose step without the profiler took so long."""
    return replace(anatomy, step=replace(anatomy.step, unprofiled_wall_ns=step_us * US))


def busy_line(anatomy: Anatomy) -> str:
    return sentence(busy(anatomy) or "")


def piece(gain_us: int | None, why: str = "it is slow", *tries: str, **fields: Any) -> Advice:
    gain = None if gain_us is None else gain_us * US
    return Advice(id="launches", gain_ns=gain, step_ns=1000 * US, why=why, tries=tries, **fields)


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name.partition(".")[0])
def test_80_cells_and_24_lines_have_all_of_it(path: Path) -> None:
    """No line is cut or too wide; each piece of advice has three lines at most, and shares of work are the tables'."""
    anatomy = opanatomy.analyze(path)
    lines = screen(anatomy)
    assert len(lines) <= HEIGHT
    assert max(map(cell_len, lines)) <= 80
    assert lines[-1].startswith("more: --full")
    named = lines[-1].partition("--section ")[2].removesuffix(",...")
    for name in filter(None, named.split(",")):
        assert "not available: " not in terminal_report(anatomy, sections=(name,))
    text = "\n".join(lines)
    if not anatomy.caveats and anatomy.classes:
        assert re.match(r"[\d.]+ [num]?s (a step|of trace, no steps annotated)[,;] ", lines[1])
    assert all(
        line.startswith(("advice", "classes", "operators", "kernels")) for line in lines if "shares of the" in line
    )
    for words in ("device work", "operator time"):
        assert all("shares of the" in line for line in lines if f"% of the {words}" in line and "unknown" not in line)
    advice = text.partition("\nadvice ")[2].partition("\nnext:")[0].splitlines()[1:]
    begins = [index for index, line in enumerate(advice) if not line.startswith(" ")]
    assert all(after - before <= 3 for before, after in pairwise(begins))
    assert not any(re.search(r"\d$", line) for line in advice[:-1] if line.startswith("   "))


def test_a_real_terminal_of_24_lines() -> None:
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    words = [sys.executable, "-m", "opanatomy", "analyze", str(RANKS[0])]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    subprocess.run(
        words,
        stdin=terminal,
        stdout=terminal,
        stderr=subprocess.DEVNULL,
        check=True,
        cwd=ROOT,
        timeout=600,
        env=environment | {"NO_COLOR": "1", "TERM": "xterm"},
    )
    os.close(terminal)
    lines = os.read(master, 1 << 16).decode().splitlines()
    os.close(master)
    assert len(lines) <= HEIGHT
    assert lines[1] == "14.5 ms a step, V100-SXM2-32GB, rank 0 of 8, busy 45.6 %"
    assert lines[-1].startswith("more: --full")


def test_the_line_and_the_headline_are_of_the_step(tmp_path: Path) -> None:
    """Of 1,000 us 400 are the product and 100 the addition: 80 % and 20 % of the device work, 40 % and 10 % of it."""
    lines = screen(three_kernels().analyze(tmp_path))
    assert lines[1] == "1.00 ms a step, H100 80GB HBM3, busy 50.0 %"
    assert " ".join(lines[2:5]).startswith("The device is idle for 50.0 % of the step")
    assert "Tensor contractions (all mm) take 40.0 % of the step." in " ".join(lines)


def test_the_busy_time_is_of_the_profiled_step_and_its_work_of_the_unprofiled_one(tmp_path: Path) -> None:
    """500 us of kernels are half of 1,000 us, and 62.5 % of 800; in 400 us they do not fit."""
    anatomy = three_kernels().analyze(tmp_path)
    assert busy_line(anatomy).startswith("50.0 % of the step")
    assert "unprofiled" not in busy_line(anatomy)
    unprofiled = timed_without(anatomy, 800)
    assert busy_line(unprofiled).startswith("50.0 % of the profiled step")
    assert "the same work takes 62.5 % of the unprofiled step" in busy_line(unprofiled)
    assert "unprofiled" not in busy_line(timed_without(anatomy, 400))


def test_shares_of_advice_are_named_where_all_are_of_the_profiled_step(tmp_path: Path) -> None:
    anatomy = timed_without(three_kernels().analyze(tmp_path), 800)
    of_it, of_another = piece(100), replace(piece(100), step_ns=800 * US)
    for advice, named in (((of_it,), True), ((of_it, of_another), False), ((of_another,), False)):
        (heading,) = [line for line in screen(with_advice(anatomy, *advice)) if line.startswith("advice ")]
        assert ("shares of the profiled step" in heading) is named


def test_together_is_the_sum_and_never_more_than_the_step(tmp_path: Path) -> None:
    anatomy = three_kernels().analyze(tmp_path)

    def together(*gains: int | None) -> list[str]:
        lines = screen(with_advice(anatomy, *map(piece, gains)))
        return [line.partition("together   ")[2] for line in lines if line.startswith("together")]

    assert together(300, 150, 50, 400) == ["at most 500 us (50.0 %)"]  # the fourth is not on the screen
    assert together(700, 600) == ["at most 1.00 ms (100.0 %)"]
    assert together(300) == together(300, None) == []


def test_a_reason_ends_at_a_clause_and_keeps_its_figures(tmp_path: Path) -> None:
    """Remarks in brackets go first, then clauses from the last one on; the whole page has all of it, and all cures."""
    why = (
        "{calls} of {name} (one by one, in each of the layers of the model, which are many) take 300 us, each on what"
        " the one before wrote, all of them on one stream; the last clause is long as well"
    )
    figures = {
        "calls": Evidence(value=1234, unit="call"),
        "name": Evidence(value=0, unit="", text="aten::add(int, long)"),
    }
    cures = ("torch.compile(model, mode='reduce-overhead'), which launches a graph of all kernels at once", "less work")
    anatomy = with_advice(three_kernels().analyze(tmp_path), piece(300, why, *cures, figures=figures))
    lines = screen(anatomy)
    begin = next(index for index, line in enumerate(lines) if line.startswith("launches"))
    assert lines[begin : begin + 3] == [
        "launches   up to 300 us (30.0 %): 1,234 calls of add(int, long) take 300 us,",
        "           each on what the one before wrote, all of them on one stream.",
        "           Try torch.compile(model, mode='reduce-overhead').",
    ]
    whole = " ".join(terminal_report(anatomy, width=80).split())
    assert "which are many) take 300 us" in whole
    assert "on one stream; the last clause is long as well. Try torch.compile" in whole
    assert "graph of all kernels at once. less work" in whole


def test_the_last_piece_of_advice_gives_way_to_long_caveats(tmp_path: Path) -> None:
    anatomy = with_advice(three_kernels().analyze(tmp_path), *(piece(gain) for gain in (300, 200, 100)))
    caveat = "the trace lacks something that matters for the reading of every figure on this page, and it says so, "
    long = replace(anatomy, caveats=(caveat * 10 + "at length",))
    kept = [sum(line.startswith("launches") for line in screen(each)) for each in (anatomy, long)]
    assert kept[0] == 3
    assert 0 < kept[1] < 3
    assert screen(long)[1].startswith("the trace lacks something")


def test_advice_is_not_taken_for_a_line_that_is_dropped() -> None:
    """It has the label of a line of the step, `framework`."""
    anatomy = opanatomy.analyze(TRACES / "bert_cpu.json.gz")
    assert anatomy.advice[0].id == "framework"
    assert any(line.startswith("framework  up to") for line in screen(anatomy))


@pytest.mark.parametrize(("steps", "said"), [(3, False), (20, True)])
def test_a_headline_does_not_rest_on_the_first_steps_of_a_run(steps: int, said: bool, tmp_path: Path) -> None:
    """All other steps wait for input 80 % of their time, the recorded one 1 %: few of them are the cold ones."""
    trace = TraceBuilder()
    trace.step(0, 1000)
    trace.host("aten::mm", 100, 800, shapes=[[8, 4], [4, 2]], types=["float", "float"])
    anatomy = trace.analyze(tmp_path)
    loader = HostRow(
        kind="range",
        name="enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        calls=1,
        total_ns=10 * US,
        self_ns=10 * US,
    )
    run = RunClock(
        steps=steps,
        wall_ns=steps * 1000 * US,
        median_ns=1000 * US,
        input_ns=steps * 800 * US,
        collections=0,
        collecting_ns=0,
        compiling_ns=0,
    )
    text = " ".join(
        terminal_report(replace(anatomy, run=run, host=(loader,)), width=200, sections=("headline",)).split()
    )
    assert ("Waiting for input takes 80.0 % of the step, averaged over the entire run." in text) is said
    assert "Waiting for input takes 1.0 %" not in text  # too little to say


def test_a_comparison_has_its_answer_and_its_causes_in_24_lines() -> None:
    comparison = opanatomy.compare(*RANKS)
    lines = screen(comparison)
    assert len(lines) <= HEIGHT
    assert lines[1].startswith("The step is 5.45 ms longer (+37.7 %): 14.5 ms before, 19.9 ms after")
    assert [line for line in lines if line.startswith(("Communication, the same calls", "Idle, "))]
    assert any(line.startswith("Not tested for significance: ") for line in lines)
    assert any(line.startswith("step  ") and line.endswith("+5.45 ms") for line in lines)
    assert lines[-1] == "more: --full"
    whole = screen(comparison, height=None, brief=False)
    assert len(whole) > 60
    assert "classes ──" in "\n".join(whole)


def test_whether_it_fits_is_said_first_and_then_what_would() -> None:
    """What is kept fits; with less memory it does not, and advice follows the answer."""
    data = (ROOT / "reports" / "techniques" / "bert-large-fit.json").read_bytes()
    report = msgspec.json.decode(data, type=Techniques)
    assert report.limit is not None
    lines = screen(report)
    assert len(lines) <= HEIGHT
    assert lines[1].startswith("fits           8.98 GB to 9.48 GB of 24.0 GB, 14.5 GB left")
    advice = tuple(
        Advice(
            id="technique",
            technique=name,
            gain_bytes=10**10,
            peak_bytes=2 * 10**10,
            fits=True,
            why="predicted",
            option=f"--{name}",
        )
        for name in ("checkpointing", "accumulate", "lora", "fused-loss", "amp")
    )
    base = report.rows[0]
    assert base.predicted is not None
    assert base.predicted.occupied is not None
    occupied = replace(base.predicted.occupied, fits=Fits.DOES_NOT_FIT)
    rows = (replace(base, predicted=replace(base.predicted, occupied=occupied)), *report.rows[1:])
    less = replace(report, limit=replace(report.limit, bytes=9 * 10**9), advice=advice, rows=rows)
    lines = screen(less)
    assert len(lines) <= HEIGHT
    assert lines[1].startswith("does not fit   8.98 GB to 9.48 GB of 9.00 GB, 479 MB too much")
    first = next(index for index, line in enumerate(lines) if line.startswith("technique"))
    assert lines[first : first + 2] == [
        "technique  checkpointing: 10.0 GB less memory (50.0 %), then it fits: predicted.",
        "           Try `--checkpointing`.",
    ]
