"""List the report formats, one file and one word of `FORMATS` each; a file declares its `FORMAT`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from opanatomy.report.section import Format

#: Values of `-f`: the names of the files.
FORMATS: Final = ("benchmark", "csv", "digest", "html", "json", "junit", "markdown", "terminal")
#: Further formats, which show one chart of the report.
PICTURES: Final = ("png", "svg")
#: Formats for other viewers, for one run.
VIEWERS: Final = ("folded", "speedscope")


def format_named(name: str) -> Format:
    """Import the format with this name."""
    declared: Format = import_module(f"{__name__}.{name}").FORMAT
    return declared
