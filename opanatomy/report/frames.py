"""Make data frames from the tables of a report: every tuple of records in it, a column a field, in base units.

A table is called by its place in the JSON report (`operators`, `memory.components`), some by a short name too
(`memory`, `steps`). Unknown values are null.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final, get_type_hints

from msgspec import Struct, defstruct
from msgspec import inspect as types

from opanatomy.errors import OpanatomyError, UsageError
from opanatomy.options import instead_of
from opanatomy.records.anatomy import VIEWS, Anatomy, Metric
from opanatomy.records.comparison import Comparison, FigureRow, Part
from opanatomy.records.experiment import Techniques
from opanatomy.records.reports import Report
from opanatomy.records.table import NOT_KNOWN, Table, empty
from opanatomy.records.work import COLUMNS_OF
from opanatomy.report.formats.csv import cell_of
from opanatomy.report.metrics import metrics_of, metrics_of_comparison

#: The table of `metrics()`, with units.
METRICS: Final = "metrics"
#: The table from which others are summed.
WORK: Final = "work"
#: Short names of nested tables; the others have their names in the JSON report.
_SHORT_NAMES: Final = {
    "steps": "step.steps",
    "memory": "memory.components",
    "curve": "memory.timeline",
    "blocks": "memory.blocks",
    "activations": "memory.activations",
    "snapshots": "memory.snapshots",
    "devices": "timeline.devices",
    "streams": "timeline.streams",
    "communication": "communication.phases",
    "waiting": "waiting.each",
    "lanes": "lanes.spans",
    "batches": "texts.batches",
    "tokenizers": "texts.tokenizers",
}
_SHORT_OF_COMPARISON: Final = {"parts": "decomposition.parts", "kinds": "other_kinds"}
_SHORT_OF_TECHNIQUES: Final = {"techniques": "rows"}
#: Columns of a row besides its fields.
_DERIVED: Final[dict[type, tuple[tuple[str, str], ...]]] = {
    Part: (("change_ns", "int"),),
    FigureRow: (("change", "float"),),
}
_SCALARS: Final[dict[type, str]] = {
    types.IntType: "int",
    types.FloatType: "float",
    types.BoolType: "bool",
    types.StrType: "str",
    types.EnumType: "str",
    types.CustomType: "str",
}
_INT64: Final = range(-(2**63), 2**63)


class Column(Struct, frozen=True, kw_only=True):
    """One column: the type of its values ("int", "float", "bool", "str"; with `listed` tuples of these), or `None`."""

    name: str
    kind: str
    listed: bool = False
    values: list[Any]


def table_names(report: type[Report] = Anatomy) -> tuple[str, ...]:
    """Return the names of all tables of a report type, short where possible; an experiment has no metrics."""
    short = {path: name for name, path in _short(report).items()}
    metrics = () if issubclass(report, Techniques) else (METRICS,)
    return (*(short.get(path, path) for path in _tables(report)), *metrics)


def columns_of(report: Report, table: str | None, function: str) -> list[Column]:
    """Return a table's columns; raise `UsageError`, which begins with `function` and lists all tables, for another.

    `None` is the main table: operators, techniques, of a comparison the parts of the difference, else the figures.
    """
    kind = type(report)
    if table is None and isinstance(report, Comparison):
        table = "figures" if report.decomposition is None else "parts"
    elif table is None:
        table = "operators" if isinstance(report, Anatomy) else "techniques"
    names = {_word(name): name for name in (*_tables(kind), *table_names(kind))}
    names |= {_word(name): path for name, path in _short(kind).items()}
    path = names.get(_word(table))
    if path is None:
        raise UsageError(f"{function}: unknown table {table!r} - {instead_of(table, table_names(kind))}")
    if path == METRICS and not isinstance(report, Techniques):
        metrics = metrics_of_comparison(report) if isinstance(report, Comparison) else metrics_of(report)
        name = Column(name="metric", kind="str", values=list(metrics))
        return [name, *_columns(Metric, list(metrics.values()))]
    return _columns_at(report, path)


def _columns_at(report: Report, path: str) -> list[Column]:
    """Return the columns of the table in this place of a report."""
    kind = _tables(type(report))[path]
    if issubclass(kind, Table):
        table = _at(report, path)
        return list(_table_columns(empty(kind, COLUMNS_OF[kind]) if table is None else table))
    columns = _columns(kind, list(_at(report, path) or ()))
    return list(_by_side(columns, report)) if isinstance(report, Comparison) and path == "figures" else columns


def _table_columns(table: Table) -> Iterator[Column]:
    """Yield the columns of a table, without columns that are empty in all rows."""
    kinds: dict[object, str] = {bool: "bool", int: "int"}
    values_of = {column.name: column.values for column in COLUMNS_OF[type(table)]}
    for name, key in table.keys.items():
        if key.values or not len(table):
            kind = kinds.get(values_of[name], "str")
            values = [str(value) if kind == "str" and value is not None else value for value in key.decoded()]
            yield Column(name=name, kind=kind, values=values)
    for name, figure in table.figures.items():
        values = [None if value == NOT_KNOWN else value for value in figure.tolist()]
        if any(value is not None for value in values) or not values:
            yield Column(name=name, kind="int", values=values)


def _short(report: type[Report]) -> dict[str, str]:
    if issubclass(report, Techniques):
        return _SHORT_OF_TECHNIQUES
    return _SHORT_NAMES if issubclass(report, Anatomy) else _SHORT_OF_COMPARISON


def _by_side(columns: Iterable[Column], comparison: Comparison) -> Iterator[Column]:
    """Yield the columns, with one per side in place of the column of values; a change requires two sides."""
    for column in columns:
        if column.name != "values":
            if column.name != "change" or len(comparison.sides) == 2:
                yield column
            continue
        for index, side in enumerate(comparison.sides):
            values = [row.values[index] for row in comparison.figures]
            yield Column(name=f"values.{side.name}", kind="float", values=values)


def _word(name: str) -> str:
    """Return a name without regard to case, dots, blanks, `-` and `_`."""
    return re.sub(r"[\W_]+", "", str(name).lower())


def pandas_frame(report: Report, table: str | None) -> Any:
    """Return the table as a `pandas.DataFrame` of nullable types; integers beyond 64 bits are floats."""
    pandas = _library("pandas")
    kinds = {"int": "Int64", "float": "Float64", "bool": "boolean", "str": "string"}

    def column(part: Column) -> Any:
        values = part.values
        return pandas.Series(values, dtype=object) if part.listed else pandas.array(values, dtype=kinds[part.kind])

    return _frame(report, table, pandas, column)


def polars_frame(report: Report, table: str | None) -> Any:
    """Return the table as a `polars.DataFrame`; integers beyond 64 bits are floats."""
    polars = _library("polars")
    kinds = {"int": polars.Int64, "float": polars.Float64, "bool": polars.Boolean, "str": polars.String}

    def column(part: Column) -> Any:
        kind = polars.List(kinds[part.kind]) if part.listed else kinds[part.kind]
        return polars.Series(part.name, part.values, dtype=kind)

    return _frame(report, table, polars, column)


def _frame(report: Report, table: str | None, library: Any, column: Callable[[Column], Any]) -> Any:
    columns = columns_of(report, table, f"to_{library.__name__}")
    return library.DataFrame({part.name: column(part) for part in map(_fitting, columns)})


def _fitting(column: Column) -> Column:
    """Return the column, with floats if an integer is too large for 64 bits."""
    if column.kind != "int" or column.listed or all(value is None or value in _INT64 for value in column.values):
        return column
    values = [None if value is None else float(value) for value in column.values]
    return Column(name=column.name, kind="float", values=values)


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        why = "is not installed" if isinstance(error, ModuleNotFoundError) else f"cannot be imported ({error})"
        raise OpanatomyError(
            f"to_{name} needs {name}, which {why} - pip install {name}, or pip install 'opanatomy[data]' for pandas"
            " and polars"
        ) from error


# ---------------------------------------------------------------------------------------------------- tables as files


def write_tables(report: Report, folder: Path) -> tuple[str, ...]:
    """Write each table that has rows into the folder: as CSV, and as Parquet where pyarrow is installed.

    Return the names of the files.
    """
    written = []
    for path in _tables(type(report)):
        columns = list(map(_fitting, _columns_at(report, path)))
        if not columns or not columns[0].values:
            continue
        name = f"{path}.csv"
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([column.name for column in columns])
            writer.writerows(zip(*([_in_a_cell(value) for value in column.values] for column in columns), strict=True))
        written.append(name)
        with suppress(ImportError):
            written.append(_parquet(columns, folder / f"{path}.parquet"))
    return tuple(written)


def _in_a_cell(value: Any) -> object:
    """Return a value as a CSV cell: empty if unknown, a list by its parts."""
    if isinstance(value, list):
        value = "; ".join("" if one is None else str(one) for one in value)
    return "" if value is None else cell_of(value)


def _parquet(columns: Iterable[Column], path: Path) -> str:
    import pyarrow
    from pyarrow import parquet

    kinds = {"int": pyarrow.int64(), "float": pyarrow.float64(), "bool": pyarrow.bool_(), "str": pyarrow.string()}
    arrays = {}
    for column in columns:
        kind = kinds[column.kind]
        arrays[column.name] = pyarrow.array(column.values, pyarrow.list_(kind) if column.listed else kind)
    parquet.write_table(pyarrow.table(arrays), path)
    return path.name


# --------------------------------------------------------------------------------------------------------- the tables


@cache
def _tables(report: type[Report]) -> dict[str, type]:
    """Return the record of each table by its place in the report, in the order of the report."""
    tables = dict(_tables_of(types.type_info(report), ""))
    return {**tables, WORK: Table} if issubclass(report, Anatomy) else tables


def _tables_of(kind: types.Type, prefix: str) -> Iterator[tuple[str, type]]:
    for field in _fields(kind):
        place, inner = prefix + field.name, _known(field.type)
        if isinstance(inner, types.VarTupleType) and isinstance(inner.item_type, types.StructType):
            yield place, inner.item_type.cls
        elif isinstance(inner, types.CustomType) and issubclass(inner.cls, Table):
            yield place, inner.cls
        elif isinstance(inner, types.StructType):
            yield from _tables_of(inner, f"{place}.")


#: Tables that replace the fields of an `Anatomy` from which they derive.
_MADE: Final = {"work": VIEWS, "theory": (), "step_kinds": ("breakdown",)}


def _fields(kind: types.Type) -> Iterator[types.Field]:
    """Yield the fields of a record; for an `Anatomy` including the tables derived from its work."""
    is_anatomy = isinstance(kind, types.StructType) and issubclass(kind.cls, Anatomy)
    for field in kind.fields if isinstance(kind, types.StructType) else ():
        if is_anatomy and field.name in _MADE:
            hints = [(name, get_type_hints(getattr(Anatomy, name).func)["return"]) for name in _MADE[field.name]]
            yield from _fields(types.type_info(defstruct("Made", hints)))
        else:
            yield field


def _known(kind: types.Type) -> types.Type:
    """Return a type without `None`; of integers and floats it is floats."""
    if not isinstance(kind, types.UnionType):
        return kind
    kinds = [one for one in kind.types if not isinstance(one, types.NoneType)]
    return next((one for one in kinds if isinstance(one, types.FloatType)), kinds[0])


def _at(report: Report, path: str) -> Any:
    value: Any = report
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def _columns(record: type, rows: list[Any]) -> list[Column]:
    """Return the columns of records, without fields that are tables of their own."""
    columns = [
        column
        for field in _fields(types.type_info(record))
        for column in _field_columns(field.name, _known(field.type), [getattr(row, field.name) for row in rows])
    ]
    derived = _DERIVED.get(record, ())
    return columns + [
        Column(name=name, kind=kind, values=[getattr(row, name) for row in rows]) for name, kind in derived
    ]


def _field_columns(name: str, kind: types.Type, values: list[Any]) -> Iterator[Column]:
    """Yield the columns of a field: one, for a mapping one per key, for a record one per field."""
    if isinstance(kind, types.DictType):
        keys = dict.fromkeys(str(key) for value in values for key in value or ())
        plain = [{str(key): item for key, item in (value or {}).items()} for value in values]
        for key in keys:
            yield from _field_columns(f"{name}.{key}", _known(kind.value_type), [value.get(key) for value in plain])
    elif isinstance(kind, types.StructType):
        for field in kind.fields:
            inner = [None if value is None else getattr(value, field.name) for value in values]
            yield from _field_columns(f"{name}.{field.name}", _known(field.type), inner)
    elif isinstance(kind, (types.VarTupleType, types.TupleType)):
        item = _known(kind.item_type if isinstance(kind, types.VarTupleType) else kind.item_types[0])
        if type(item) in _SCALARS:
            listed = [
                None if value is None else [_plain(one, as_text=isinstance(one, str)) for one in value]
                for value in values
            ]
            yield Column(name=name, kind=_SCALARS[type(item)], listed=True, values=listed)
    else:
        known = _SCALARS.get(type(kind), "str")
        yield Column(name=name, kind=known, values=[_plain(value, as_text=known == "str") for value in values])


def _plain(value: Any, *, as_text: bool) -> Any:
    """Return a value in a form the libraries support: enumerations and signatures as texts."""
    return str(value) if as_text and value is not None else value
