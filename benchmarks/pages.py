"""The pages of reports: how large they are, how long each takes beside the text report, when a browser first paints it.

    python benchmarks/pages.py [NAME ...]

The reports are those of tests/pages/browser, a step of 20,000 signatures and one of 512 ranks. The script that draws
is kept already: the first page of a machine takes a second more. Seconds are those of one process after the imports of
the text report, so that they hold altair's.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from opanatomy.records.reports import Report
from opanatomy.report import terminal_report
from opanatomy.report.formats.html import html_report
from opanatomy.report.section import Page
from tests.pages.browser.pages import OTHERS, OWN, SHARED
from tests.support.made_trace import GEMM, NCCL, on_gpu


def signatures(folder: Path) -> Report:
    """A step of 20,000 operators of different sizes."""
    trace = on_gpu()
    trace.step(0, 60_000)
    for index in range(20_000):
        trace.host("aten::mm", 3 * index, 2, shapes=[[8, 4 + index], [4 + index, 2]], types=["float", "float"])
        trace.run(GEMM, 3 * index + 0.5, 3 * index + 1, 1)
    return trace.analyze(folder)


def ranks(folder: Path) -> Report:
    """512 ranks of ten steps, of which one is late."""
    import opanatomy

    for rank in range(512):
        trace = on_gpu()
        trace.metadata["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 512}
        for number in range(10):
            begin, late = 1000 * number, 100 if rank == 77 else 0
            trace.step(begin, 900, number)
            trace.host("aten::mm", begin + 5, 6, shapes=[[8, 4], [4, 2]], types=["float", "float"])
            trace.run(GEMM, begin + 7, begin + 10, 400 + late)
            trace.host("c10d::allreduce_", begin + 20, 6)
            trace.run(NCCL, begin + 22, begin + 420 + late, 300 - late, stream=20)
        trace.write(folder / f"rank{rank}.json.gz")
    return opanatomy.analyze(folder)


MADE: dict[str, Callable[[Path], Report]] = {"20,000 signatures": signatures, "512 ranks": ranks}


def measured(name: str, folder: Path) -> None:
    """Print a line for one report, in a process of its own."""
    report = {**OWN, **OTHERS, **MADE}[name](folder)
    begun = perf_counter()
    terminal_report(report, width=100)
    text = perf_counter()
    page = html_report(report, Page())
    took, path = perf_counter() - text, folder / "page.html"
    path.write_text(page)
    print(
        f"{name:<18} {len(page.encode()) / 1e6:5.2f} MB  text {text - begun:5.2f} s  page {took:5.2f} s{painted(path)}"
    )


def painted(path: Path) -> str:
    """When Chromium first paints the page, and when its pictures are live; nothing without it."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return ""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as running:
        browser: Any = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        begun = perf_counter()
        page.goto(path.as_uri())
        while not page.evaluate("document.documentElement.dataset.ready === '1'"):
            page.wait_for_timeout(10)
        live = perf_counter() - begun
        while not page.evaluate("performance.getEntriesByName('first-contentful-paint').length"):
            page.wait_for_timeout(10)
        first = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime") / 1000
        browser.close()
    return f"  first paint {first:4.2f} s, live {live:4.2f} s"


def main(words: Sequence[str]) -> None:
    """Measure each report in a process of its own."""
    if len(words) == 2 and words[0] == "--one":
        with tempfile.TemporaryDirectory() as folder:
            measured(words[1], Path(folder))
        return
    for name in words or [*OWN, *(OTHERS if SHARED.is_dir() else ()), *MADE]:
        subprocess.run([sys.executable, __file__, "--one", name], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
