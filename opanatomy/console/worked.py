"""What an explanation takes from files: a report, and the source of a formula."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from opanatomy.errors import OpanatomyError
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.compared import Comparison
from opanatomy.records.techniques import Techniques
from opanatomy.redaction.records import redacted
from opanatomy.redaction.texts import Texts
from opanatomy.report.formats.json import read_anatomy
from opanatomy.report.given import document_in, report_in
from opanatomy.report.section import Fact

_LONGEST = 24


def read_report(path: Path) -> Anatomy | Techniques | Comparison:
    """What a JSON report holds: the anatomy of a run, an experiment, a comparison; `OpanatomyError` for all else."""
    text = _read(path)
    try:
        return redacted(msgspec.json.decode(text, type=Techniques), Texts())
    except (msgspec.DecodeError, UnicodeDecodeError):
        document = document_in(path)
        return _anatomy(path, text) if document is None else document


def read_anatomy_of(path: Path) -> Anatomy:
    """The anatomy in a JSON report; `OpanatomyError` where it cannot be read, or is of several runs."""
    text = _read(path)
    anatomy = report_in(path)
    return _anatomy(path, text) if anatomy is None else anatomy


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise OpanatomyError(
            f"cannot read the report {path}: {error.strerror} - give one that -f json wrote"
        ) from error


def _anatomy(path: Path, text: bytes) -> Anatomy:
    try:
        return redacted(read_anatomy(text), Texts())
    except OpanatomyError as error:
        raise OpanatomyError(f"{path}: {error}") from error


def as_written(function: Callable[..., Any]) -> list[Fact]:
    """The body of a formula as it is in its file, without its docstring; nothing where the file is missing."""
    try:
        written, first = inspect.getsourcelines(function)
        source = textwrap.dedent("".join(written))
        tree = ast.parse(source).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return []
    if not isinstance(tree, ast.FunctionDef):
        return []
    code = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
    if not code:
        return []
    lines = textwrap.dedent("\n".join(source.splitlines()[code[0].lineno - 1 : code[-1].end_lineno])).splitlines()
    where = f"{Path(inspect.getfile(function)).name}:{first + code[0].lineno - 1}"
    shown = lines[:_LONGEST] + ([f"... {len(lines) - _LONGEST} more lines"] if len(lines) > _LONGEST else [])
    return [Fact(label="as written", text=f"in {where}"), *(Fact(label="", text=line) for line in shown)]
