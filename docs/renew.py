"""Writes what pages have of the program's own tables anew: `python docs/renew.py`.

The formulas in counting.md come from the registry, the terms in report.md, techniques.md and comparing.md from the
glossary, metrics.md from the declared figures, the columns of the work in python.md from their declarations, the manual
page opanatomy.1 from the parser, report.schema.json from the records.
"""

from __future__ import annotations

import json
from pathlib import Path

import opanatomy.cost  # noqa: F401 - registers the formulas
from opanatomy.cost.documentation import formula_tables
from opanatomy.records.work import COLUMNS
from opanatomy.report.formats.json import json_schema
from opanatomy.report.metrics import metric_table
from opanatomy.report.terms import CHAPTERS, term_lists

OF_CHAPTERS = (chapter.page for chapter in CHAPTERS if chapter.page)
PAGES = tuple(dict.fromkeys(("counting.md", "metrics.md", "python.md", *OF_CHAPTERS)))


def column_table() -> str:
    """The columns of the work, as Markdown."""
    rows = (f"| `{column.name}` | {column.unit} | {column.meaning} |" for column in COLUMNS)
    return "\n".join(("| column | unit | is |", "|---|---|---|", *rows))


def schema() -> str:
    """The JSON Schema of the reports, as text."""
    return json.dumps(json_schema(), indent=1) + "\n"


def renewed(page: str, name: str) -> str:
    """The text of a page with today's tables between their marks."""
    makers = {
        "counting.md": ("formulas", formula_tables),
        "metrics.md": ("metrics", metric_table),
        "python.md": ("columns", column_table),
    }
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
    Path(__file__).with_name("report.schema.json").write_text(schema(), encoding="utf-8")
    print("renewed report.schema.json")
    manual.renew()
    print(f"renewed {manual.PAGE.name}")
