"""Writes what pages have of the program's own tables anew: `python docs/renew.py`.

The formulas in counting.md come from the registry, the terms in report.md, techniques.md and comparing.md from the
glossary, metrics.md from the declared figures, the manual page opanatomy.1 from the parser.
"""

from __future__ import annotations

from pathlib import Path

import opanatomy.cost  # noqa: F401 - registers the formulas
from opanatomy.cost.documentation import formula_tables
from opanatomy.report.metrics import metric_table
from opanatomy.report.terms import CHAPTERS, term_lists

PAGES = tuple(dict.fromkeys(("counting.md", "metrics.md", *(chapter.page for chapter in CHAPTERS if chapter.page))))


def renewed(page: str, name: str) -> str:
    """The text of a page with today's tables between their marks."""
    makers = {"counting.md": ("formulas", formula_tables), "metrics.md": ("metrics", metric_table)}
    kind, make = makers.get(name, ("terms", lambda: term_lists(name)))
    begin, end = f"<!-- {kind}: made by docs/renew.py -->\n", f"<!-- end of {kind} -->\n"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{make()}\n{end}{after}"


if __name__ == "__main__":
    import manual  # next to this file

    for name in PAGES:
        path = Path(__file__).with_name(name)
        path.write_text(renewed(path.read_text(encoding="utf-8"), name), encoding="utf-8")
        print(f"renewed {name}")
    manual.renew()
    print(f"renewed {manual.PAGE.name}")
