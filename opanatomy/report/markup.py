"""Render sections as HTML elements: tables, facts and notes, styled by a page or notebook.

The templates in `page` escape every text, including names from a trace. A numeric cell has its exact value in base
units in `data-v`.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from opanatomy.records.patterns import regex
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report import units
from opanatomy.report.names import cut, printable
from opanatomy.report.section import COLOUR, LABEL, WITH, Cell, Change, Name, Phrase, Section, Share, is_known, value_of

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

#: Maximum width of a name; a longer one is cut in the middle, with a full tooltip.
_NAME_WIDTH: Final = 100
#: Nobody reads a tooltip of more characters.
_TITLE_MOST: Final = 2000

#: Text between backticks is code.
_CODE: Final = regex("`([^`]+)`")


@cache
def templates() -> Environment:
    """Return the page templates, with autoescaping."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("opanatomy.report", "page"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    made.filters.update(
        {
            "shown": printable,
            "cell": text_of,
            "number": number_of,
            "depth": _depth,
            "colour": COLOUR.__getitem__,
            "sha256": _sha256,
        }
    )
    made.globals.update(with_options=WITH, title=None)
    return made


def elements(section: Section) -> str:
    """Return a section's table, facts and notes; a title is set in bold."""
    module: Any = templates().get_template("elements.html").module
    return str(module.elements(section, lambda *_: "", None))


def _sha256(script: str) -> str:
    """Return a script's digest as used in the page's security policy."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _depth(cell: Cell) -> float:
    """Return the indent of a name in a tree, whose depth is its leading blanks; 0 for any other cell."""
    name = cell.name if isinstance(cell, Name) else cell
    depth = len(name) - len(name.lstrip(" ")) if isinstance(name, str) else 0
    return depth / 2 + 0.5 if depth else 0


def number_of(cell: Cell) -> float | None:
    """Return the number in a cell in base units; `None` if it has none or an unknown one."""
    if cell is None or isinstance(cell, (str, OperatorClass, Name, Phrase)) or not is_known(cell):
        return None
    if isinstance(cell, Share):
        return (cell.part or 0) / (cell.whole or 1)
    if isinstance(cell, Change):
        return (cell.new or 0) / (cell.old or 1) - 1
    return value_of(cell)


def text_of(cell: Cell, unit: str = "") -> Markup:
    """Return a cell or a part of a phrase, escaped; nothing for an empty cell."""
    from markupsafe import Markup, escape

    if cell is None:
        return Markup()
    if isinstance(cell, OperatorClass):
        return escape(LABEL[cell])
    if isinstance(cell, Phrase):
        return Markup().join(text_of(part) for part in cell.parts)
    if isinstance(cell, Name):
        shown = cut(printable(cell.name), _NAME_WIDTH)
        whole = Markup('<span title="{}">{}</span>').format(printable(cell.name[:_TITLE_MOST]), shown)
        return escape(shown) if len(cell.name) <= _NAME_WIDTH else whole
    if isinstance(cell, str):
        return Markup(_CODE.sub(r"<code>\1</code>", str(escape(printable(cell)))))
    return escape(units.text_of(cell, unit))
