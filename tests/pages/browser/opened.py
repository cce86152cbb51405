"""A page that a browser has opened, and what it said and asked for."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from time import monotonic
from typing import Any, Final

import pytest

from opanatomy.report.formats.html import html_report
from opanatomy.report.section import Page
from tests.pages.browser.pages import report_of

pytest.importorskip("playwright.sync_api", reason="pages are not looked at: pip install '.[browser]'")

CHROMIUM: Final = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
#: The marks of a file that looks at pages.
SUGGESTED: Final = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="pages are not looked at: there is no chromium (apt install chromium)"),
    pytest.mark.xdist_group("browser"),
]


class Opened:
    """A page in the browser, and what it said and asked for."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("request", lambda request: self.said.append(f"request: {request.url}"))
        self.page.goto(path.as_uri())
        if options.get("java_script_enabled", True):
            self.until("document.documentElement.dataset.ready === '1'")

    def until(self, condition: str) -> None:
        """Wait for a condition; the policy of the page forbids the browser's own way to do so."""
        end = monotonic() + 60
        while not self.page.evaluate(condition):
            assert monotonic() < end, condition
            self.page.wait_for_timeout(20)

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def numbers(self, section: str) -> dict[str, list[float]]:
        """The exact numbers of each row of a table, by the text of its first cell; rows of one name are summed up."""
        rows: list[tuple[str, list[float]]] = self.page.evaluate(
            """section => [...document.querySelectorAll(`table[data-section="${section}"] > tbody > tr`)].map(row => [
                 row.dataset.key || row.cells[0].textContent.trim(),
                 [...row.cells].map(cell => cell.dataset.v === undefined ? NaN : Number(cell.dataset.v))])""",
            section,
        )
        return dict(rows)


def page_of(name: str, folder: Path) -> Path:
    path = folder / f"{name}.html"
    if not path.exists():
        path.write_text(html_report(report_of(name, folder), Page()), encoding="utf-8")
    return path
