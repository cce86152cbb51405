"""Writes what pages have of the program's own tables anew: `python docs/renew.py`.

The formulas in counting.md come from the registry, the terms in report.md from the glossary, the manual page
opanatomy.1 from the parser.
"""

from __future__ import annotations

from pathlib import Path

import opanatomy.cost  # noqa: F401 - registers the formulas
from opanatomy.cost.documentation import formula_tables
from opanatomy.report.terms import term_tables

PAGE, TERMS_PAGE = (Path(__file__).parent / name for name in ("counting.md", "report.md"))
BEGIN, END = "<!-- formulas: made by docs/renew.py -->\n", "<!-- end of formulas -->\n"
TERMS_BEGIN, TERMS_END = "<!-- terms: made by docs/renew.py -->\n", "<!-- end of terms -->\n"


def renewed(page: str) -> str:
    """The page with today's tables between the marks of the formulas."""
    return _between(page, BEGIN, formula_tables(), END)


def with_terms(page: str) -> str:
    """The page with today's glossary between the marks of the terms."""
    return _between(page, TERMS_BEGIN, term_tables(), TERMS_END)


def _between(page: str, begin: str, text: str, end: str) -> str:
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{text}\n{end}{after}"


if __name__ == "__main__":
    import manual  # next to this file

    for path, renew in ((PAGE, renewed), (TERMS_PAGE, with_terms)):
        path.write_text(renew(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"renewed {path.name}")
    manual.renew()
    print(f"renewed {manual.PAGE.name}")
