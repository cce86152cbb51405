"""Write the formulas as a page: one line for each, from the registry, grouped by file."""

from __future__ import annotations

import sys
from collections import defaultdict
from inspect import getdoc
from typing import Final

from opanatomy.cost.registry import device_formulas, function_of, operators, patterns

#: Files in reading order; others follow by name.
_ORDER: Final = (
    "contraction", "convolution", "attention", "recurrent", "normalization", "reduction", "loss", "elementwise",
    "movement", "indexing", "pooling", "optimizer", "linalg", "sparse", "quantized",
)  # fmt: skip


def formula_tables() -> str:
    """Return all formulas as Markdown: a heading and a table for each family, operators next to what is counted."""
    families: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for operator in operators():
        function = function_of(operator)
        families[str(getattr(function, "__module__", ""))][_counted(function)].append(f"`{operator}`")
    for operator, device, function in device_formulas():
        families[function.__module__][_counted(function)].append(f"`{operator}` on {device}")
    for expression, function in patterns():
        families[function.__module__][_counted(function)].append(f"`{expression}`")
    lines = []
    for module, rows in sorted(families.items(), key=_place):
        title = (sys.modules[module].__doc__ or module).splitlines()[0].rstrip(".")
        lines += [f"#### {title}", "", "| operators | what is counted |", "|---|---|"]
        lines += [f"| {_cell(', '.join(names))} | {_cell(text)} |" for text, names in rows.items()]
        lines.append("")
    return "\n".join(lines)


def _place(family: tuple[str, object]) -> tuple[int, str]:
    name = family[0].rpartition(".")[2]
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)


def _counted(function: object) -> str:
    """Return the docstring of a formula on one line: what it counts, its arguments, its source."""
    return " ".join((getdoc(function) or "").split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
