"""Writes anew what is made from the code: the tables of formulas in counting.md, the manual page opanatomy.1.

`python docs/renew.py` does both.
"""

from __future__ import annotations

from pathlib import Path

import opanatomy.cost  # noqa: F401 - registers the formulas
from opanatomy.cost.documentation import formula_tables

PAGE = Path(__file__).parent / "counting.md"
BEGIN, END = "<!-- formulas: made by docs/renew.py -->\n", "<!-- end of formulas -->\n"


def renewed(page: str) -> str:
    """The page with today's tables between the marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{formula_tables()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    import manual  # beside this file

    manual.renew()
    print(f"renewed {PAGE.name} and {manual.PAGE.name}")
