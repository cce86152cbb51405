"""The formats of the report, one file each, called what `-f` calls it; each declares its `FORMAT`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opanatomy.report.section import Format


@cache
def format_names() -> tuple[str, ...]:
    """The names of the formats; none of them is imported for that."""
    return tuple(sorted(file.name for file in iter_modules(__path__)))


def format_named(name: str) -> Format:
    """The format of this name, one of `format_names`."""
    declared: Format = import_module(f"{__name__}.{name}").FORMAT
    return declared
