"""What a report adds to an explanation: formulas worked on its shapes, and what of it nobody could class or count."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from opanatomy.errors import OpanatomyError
from opanatomy.records.anatomy import Anatomy, KernelRow, OperatorRow
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.redaction.records import redacted
from opanatomy.redaction.texts import Texts
from opanatomy.report import units
from opanatomy.report.json_report import read_anatomy

_EXAMPLES = 2
_LONGEST = 24


def read_report(path: Path) -> Anatomy:
    """The anatomy in a JSON report; `OpanatomyError` where it cannot be read."""
    try:
        return redacted(read_anatomy(path.read_bytes()), Texts())
    except OSError as error:
        raise OpanatomyError(
            f"cannot read the report {path}: {error.strerror} - give one that -f json wrote"
        ) from error
    except OpanatomyError as error:
        raise OpanatomyError(f"{path}: {error}") from error


def example(name: str, anatomy: Anatomy) -> list[str]:
    """The calls of an operator that take most of a report's time: arguments, FLOPs and bytes of one, rates reached."""
    rows = [row for row in anatomy.operators if row.operator == name]
    if not rows:
        return [f"  in the report it does not appear: {anatomy.provenance.trace or 'it names no trace'}"]
    lines = []
    for row in rows[:_EXAMPLES]:
        lines += _worked(row)
    if len(rows) > _EXAMPLES:
        rest = sum(row.time_ns for row in rows[_EXAMPLES:])
        lines.append(f"            and {len(rows) - _EXAMPLES} more signatures, {units.duration(rest)} in all")
    return lines


def _worked(row: OperatorRow) -> list[str]:
    lines = [
        f"  example   {row.operator}({row.signature})",
        f"            {units.count(row.calls)} calls in {row.phase.value}, {units.duration(row.time_ns)} in all",
    ]
    if row.part_of is not None:
        return [*lines, f"            a part of {row.part_of}: its FLOPs and bytes are counted there"]
    if row.flops is None or row.read_bytes is None or row.written_bytes is None:
        return [*lines, "            not counted: these arguments do not say what its formula needs"]
    flops, read, written = (value // row.calls for value in (row.flops, row.read_bytes, row.written_bytes))
    lines.append(f"            one call: {flops:,} FLOP, {read:,} bytes read, {written:,} bytes written")
    if row.causal_flops is not None:
        lines.append(f"            {row.causal_flops // row.calls:,} FLOP of them under the causal mask")
    if row.normalization_flops:
        inside = row.normalization_flops // row.calls
        lines.append(f"            {inside:,} FLOP more of the normalization inside, not part of these")
    if row.bound_ns is not None and row.bound_by is not None and row.time_ns:
        share = units.share(row.bound_ns, row.time_ns)
        lines.append(f"            bound by {row.bound_by}: {units.duration(row.bound_ns)} at least, {share} reached")
    return lines


def as_written(function: Callable[..., Any]) -> list[str]:
    """The body of a formula as it is in its file, without its docstring; nothing where the file is not at hand."""
    try:
        lines_of_code, first = inspect.getsourcelines(function)
        source = textwrap.dedent("".join(lines_of_code))
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
    shown = [f"            {line}" for line in lines[:_LONGEST]]
    more = [f"            ... {len(lines) - _LONGEST} more lines"] if len(lines) > _LONGEST else []
    return [f"  as written in {where}", *shown, *more]


def not_explained(anatomy: Anatomy) -> list[str]:
    """The names of a report that no rule knows, and those that no formula counts, each with its share of the time."""
    whole = anatomy.ledger.device_work_ns - anatomy.ledger.outside_window_ns
    operators, kernels = anatomy.operators, [row for row in anatomy.kernels if not row.operators]
    unknown = _times((*operators, *kernels), lambda row: row.operator_class is OperatorClass.UNKNOWN)
    uncosted = _times(
        (*operators, *kernels),
        lambda row: row.operator_class is not OperatorClass.UNKNOWN and getattr(row, "flops", None) is None,
    )
    return [
        *_listed("no rule knows", unknown, whole),
        *_listed("no formula counts, or its arguments are not in the trace", uncosted, whole),
    ]


def _times(rows: Iterable[OperatorRow | KernelRow], wanted: Callable[[OperatorRow | KernelRow], bool]) -> Counter[str]:
    times: Counter[str] = Counter()
    for row in rows:
        if wanted(row):
            times[row.operator if isinstance(row, OperatorRow) else row.kernel] += row.time_ns
    return times


def _listed(what: str, times: Counter[str], whole_ns: int) -> list[str]:
    if not times:
        return [f"{what}: nothing"]
    head = f"{what}: {len(times)} names, {units.share(sum(times.values()), whole_ns)} of the time"
    return [head, *(f"  {units.share(ns, whole_ns):>8}  {name}" for name, ns in times.most_common())]
