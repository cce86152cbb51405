"""Write reports as JSON, schema 3: lossless, deterministic, one row or column per line."""

from __future__ import annotations

import inspect
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from opanatomy.errors import OpanatomyError
from opanatomy.records.anatomy import VIEWS, Anatomy
from opanatomy.records.codec import SCHEMA
from opanatomy.records.comparison import Comparison
from opanatomy.records.experiment import Techniques
from opanatomy.records.reports import Report
from opanatomy.records.table import Table
from opanatomy.records.taxonomy import STEP_PHASES
from opanatomy.records.work import (
    COLUMNS_OF,
    NO_WORK,
    Breakdown,
    ClassRow,
    KernelRow,
    ModuleRow,
    OperatorRow,
    Ratio,
    TheoryRow,
    check_steps,
    plain,
    typed,
    work_of_tables,
)
from opanatomy.report.section import Format

#: Keys of a one-run report in file order, after its kind.
_SECTIONS: Final = (
    "schema", "caveats", "estimated", "advice", "provenance", "environment", "workload", "conventions", "step",
    "device_state",
    "step_kinds", "work", "theory", "memory", "timeline", "device", "ledger", "collectives", "communication",
    "ranks", "spread", "waiting", "generation", "run", "trends", "compilation", "replay", "situation", "host", "chains",
    "lanes", "spans", "checks", "texts", "warnings",
)  # fmt: skip


Kind = TypeVar("Kind")


def json_report(report: Report) -> str:
    """Return the report as JSON text, as `read_report` takes it back."""
    # An integer in a field of floats is written as the float it is read back as: hence the typed round trip.
    again = _decoded(msgspec.json.encode(report, enc_hook=plain), type(report))
    keys = {"kind": _line(type(report).__struct_config__.tag)}
    if isinstance(again, Anatomy):
        again = replace(again, conventions=dict(sorted(again.conventions.items())))
        keys |= {name: _section(getattr(again, name)) for name in _SECTIONS}
    else:
        keys |= {name: _rows(value, depth=1) for name, value in _keys(again).items()}
    return _block("{", [f"{_line(name)}: {text}" for name, text in keys.items()], "}", depth=0) + "\n"


def report_as_dict(report: Report) -> dict[str, Any]:
    """Return the JSON report as plain values; for one run including the rows of each derived table."""
    made: dict[str, Any] = msgspec.json.decode(json_report(report))
    if isinstance(report, Anatomy):
        tables = {name: getattr(report, name) for name in (*VIEWS, "breakdown")}
        made |= msgspec.json.decode(msgspec.json.encode(tables, enc_hook=plain))
    return made


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of reports of all kinds, with what each key means."""
    schema = {"title": "opanatomy reports", **msgspec.json.schema(Report, schema_hook=_schema_of)}
    for definition in schema["$defs"].values():
        definition["description"] = inspect.cleandoc(definition["description"])  # as Python 3.13 does by itself
    return schema


def _schema_of(kind: type) -> dict[str, Any]:
    if kind not in COLUMNS_OF:
        return {"type": "string"}
    number = {"type": ["integer", "null"]}
    once_or_each = {"anyOf": [number, {"type": "array", "items": number}]}
    key = {"type": "object", "properties": {"values": {"type": "array"}, "codes": once_or_each}}
    columns = {
        column.name: {"description": column.meaning, **(once_or_each if column.unit else key)}
        for column in COLUMNS_OF[kind]
    }
    return {"type": "object", "properties": {"rows": {"type": "integer"}, **columns}, "required": ["rows", *columns]}


# ----- reading, older schemas too


class _Head(msgspec.Struct):
    kind: str | None = None
    schema: int | None = None
    comparison_schema: int | None = None
    rows: msgspec.Raw = msgspec.Raw()


def read_report(text: str | bytes) -> Report:
    """Return the report in a JSON text, of schema 3 or older; raise `OpanatomyError` for any other text."""
    report = _decoded_report(text)
    if isinstance(report, Anatomy) and report.step_kinds is not None:
        try:
            check_steps(report.work, report.step_kinds)
        except ValueError as error:
            raise OpanatomyError(f"the report is damaged: {error} - create it again from its trace") from error
    return report


def _decoded_report(text: str | bytes) -> Report:
    try:
        head = msgspec.json.decode(text, type=_Head)
        schema = head.schema if head.comparison_schema is None else head.comparison_schema
        if head.kind is not None and schema == SCHEMA:
            return _decoded(text, Report)  # type: ignore[arg-type] # a union is a type to msgspec
        if head.kind is None and head.comparison_schema == 1:
            older = msgspec.json.decode(text)
            del older["comparison_schema"]
            return _typed(older, Comparison)
        if head.kind is None and head.rows and schema == 2:
            return _typed(msgspec.json.decode(text) | {"schema": SCHEMA}, Techniques)
        if head.kind is None and not head.rows and schema in (1, 2):
            older = msgspec.json.decode(text)
            return _from_schema_2(_from_schema_1(older) if schema == 1 else older)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        begin = text[:100].lstrip()[:1]
        why = f" ({error})" if begin in ("{", b"{") else "" if begin else ": the file is empty"
        raise OpanatomyError(
            f"not an opanatomy report{why} - pass a file written by `opanatomy ... -f json`"
        ) from error
    if schema is None:
        raise OpanatomyError("not an opanatomy report - pass a file written by `opanatomy ... -f json`")
    raise OpanatomyError(
        f"the report has schema {schema}, but this version of opanatomy reads only schema {SCHEMA} and older -"
        " use the version that wrote it, or create it again from its trace"
    )


def read_anatomy(text: str | bytes) -> Anatomy:
    """Return the report of one run in a JSON text; raise `OpanatomyError` for any other text."""
    report = read_report(text)
    if not isinstance(report, Anatomy):
        raise OpanatomyError("not a report of one run - pass a file written by `opanatomy analyze ... -f json`")
    return report


def _from_schema_1(value: Any) -> Any:
    """Convert a value of schema 1, in which a step had a field per phase, to schema 2."""
    if isinstance(value, list):
        return [_from_schema_1(item) for item in value]
    if not isinstance(value, dict):
        return value
    made = {key: _from_schema_1(item) for key, item in value.items()}
    if "wall_ns" in made:  # a step
        times = {phase: made.pop(f"{phase}_ns", None) for phase in STEP_PHASES}
        made["phase_ns"] = {phase: time for phase, time in times.items() if time is not None}
    return made


class _Tables(msgspec.Struct):
    """The tables of schema 2, which kept the work five times."""

    classes: tuple[ClassRow, ...]
    ratios: tuple[Ratio, ...]
    operators: tuple[OperatorRow, ...]
    kernels: tuple[KernelRow, ...]
    modules: tuple[ModuleRow, ...]
    breakdown: Breakdown | None = None


def _from_schema_2(report: dict[str, Any]) -> Anatomy:
    """Convert the anatomy of a schema 2 report: the work gets separate rows for each of its tables."""
    tables = _typed(report, _Tables)
    others = {name: value for name, value in report.items() if name not in _Tables.__struct_fields__}
    anatomy = _typed(others | {"work": NO_WORK.plain(), "schema": SCHEMA}, Anatomy)
    kinds = None if tables.breakdown is None else tuple(one.kind for one in tables.breakdown.kinds)
    theory = (
        TheoryRow(operator_class=row.operator_class, flops=row.theory_flops, bytes=row.theory_bytes)
        for row in tables.ratios
    )
    return replace(
        anatomy,
        work=work_of_tables(
            classes=tables.classes,
            operators=tables.operators,
            kernels=tables.kernels,
            modules=tables.modules,
            breakdown=tables.breakdown,
        ),
        theory=tuple(theory),
        step_kinds=kinds,
    )


def _typed(value: Any, kind: type[Kind]) -> Kind:
    return _decoded(msgspec.json.encode(value), kind)


def _decoded(text: str | bytes, kind: type[Kind]) -> Kind:
    return msgspec.json.decode(text, type=kind, dec_hook=typed)


# ----- the layout


def _section(value: object) -> str:
    """Format a table with one row per line, a record or mapping with one key per line; a missing record is null."""
    if value is None or isinstance(value, int | tuple):
        return _rows(value, depth=1) if isinstance(value, tuple) else _line(value)
    if isinstance(value, Table):
        return _columns(value, depth=1)
    keys = value if isinstance(value, dict) else _keys(value)
    return _block("{", [f"{_line(name)}: {_rows(item, depth=2)}" for name, item in keys.items()], "}", depth=1)


def _rows(value: object, *, depth: int) -> str:
    """Format a table with one row or column per line, a list of sentences one per line; all else on one line."""
    if isinstance(value, Table):
        return _columns(value, depth=depth)
    if not isinstance(value, tuple) or (depth > 1 and all(isinstance(item, str) for item in value)):
        return _line(value)
    return _block("[", [_line(row) for row in value], "]", depth=depth)


def _columns(table: Table, *, depth: int) -> str:
    return _block("{", [f"{_line(name)}: {_line(item)}" for name, item in table.plain().items()], "}", depth=depth)


def _block(opening: str, items: list[str], closing: str, *, depth: int) -> str:
    if not items:
        return opening + closing
    inner, outer = "\n" + " " * (depth + 1), "\n" + " " * depth
    return f"{opening}{inner}{f',{inner}'.join(items)}{outer}{closing}"


def _line(value: object) -> str:
    text = msgspec.json.encode(value, order="deterministic", enc_hook=plain)
    return msgspec.json.format(text, indent=0).decode()


def _keys(record: Any) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


FORMAT: Final = Format(ending=".json", write=lambda anatomy, page: json_report(anatomy), machine_readable=True)
