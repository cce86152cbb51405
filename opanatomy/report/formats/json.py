"""Write the anatomy as JSON, schema 2: faithful, the same bytes for the same anatomy, one table row a line."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from opanatomy.errors import OpanatomyError
from opanatomy.records.anatomy import SCHEMA, Anatomy
from opanatomy.records.comparison import COMPARISON_SCHEMA, Comparison
from opanatomy.records.experiment import TECHNIQUES_SCHEMA, Techniques
from opanatomy.records.reports import Report
from opanatomy.records.signature import SignatureText
from opanatomy.records.taxonomy import STEP_PHASES
from opanatomy.report.section import Format

#: The keys of schema 2 in the order of the file.
_SECTIONS: Final = (
    "schema", "caveats", "advice", "provenance", "environment", "workload", "conventions", "step", "classes", "ratios",
    "operators", "kernels", "modules", "memory", "timeline", "device", "ledger", "collectives", "communication",
    "ranks", "spread", "waiting", "generation", "run", "compilation", "replay", "breakdown", "situation", "host",
    "chains", "lanes", "spans", "checks", "texts", "warnings",
)  # fmt: skip


Read = TypeVar("Read", Anatomy, Comparison, Techniques)


class _Head(msgspec.Struct):
    schema: int


class _HeadOfComparison(msgspec.Struct):
    comparison_schema: int


def json_report(report: Report) -> str:
    """Return the report as JSON text, as `read_anatomy` and `read_comparison` take it back."""
    if isinstance(report, Techniques | Comparison):
        typed_report = msgspec.json.decode(msgspec.json.encode(report, enc_hook=_plain), type=type(report))
        return _block("{", [f"{_line(name)}: {_rows(value, depth=1)}" for name, value in _keys(typed_report).items()],
                      "}", depth=0) + "\n"  # fmt: skip
    return _anatomy_report(report)


def _anatomy_report(anatomy: Anatomy) -> str:
    # An integer in a field of floats is written as the float it is read back as: hence the typed round trip.
    typed = _decoded(msgspec.json.encode(anatomy, enc_hook=_plain), Anatomy)
    sections = {name: getattr(typed, name, ()) for name in _SECTIONS}
    sections["conventions"] = dict(sorted(typed.conventions.items()))
    return _block("{", [f"{_line(name)}: {_section(value)}" for name, value in sections.items()], "}", depth=0) + "\n"


def read_anatomy(text: str | bytes) -> Anatomy:
    """Return the anatomy in a JSON report of schema 2 or 1; raise `OpanatomyError` for any other text."""
    try:
        schema = msgspec.json.decode(text, type=_Head).schema
        if schema == SCHEMA:
            return _decoded(text, Anatomy)
        if schema == 1:
            older = msgspec.json.encode(_of_schema_1(msgspec.json.decode(text)))
            return replace(_decoded(older, Anatomy), schema=SCHEMA)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise OpanatomyError(
            f"not an opanatomy report - {error} - give a file that `opanatomy ... -f json` wrote"
        ) from error
    raise OpanatomyError(
        f"the report has schema {schema}, this opanatomy reads schema {SCHEMA} - "
        "use the opanatomy that wrote it, or write it again from its trace"
    )


def _of_schema_1(value: Any) -> Any:
    """Return a value of schema 1, in which a step had a field for each phase, as schema 2 has it."""
    if isinstance(value, list):
        return [_of_schema_1(item) for item in value]
    if not isinstance(value, dict):
        return value
    made = {key: _of_schema_1(item) for key, item in value.items()}
    if "wall_ns" in made:  # a step
        times = {phase: made.pop(f"{phase}_ns", None) for phase in STEP_PHASES}
        made["phase_ns"] = {phase: time for phase, time in times.items() if time is not None}
    return made


def read_comparison(text: str | bytes) -> Comparison:
    """Return the comparison in its JSON report; raise `OpanatomyError` for any other text than this schema."""
    try:
        schema = msgspec.json.decode(text, type=_HeadOfComparison).comparison_schema
        if schema == COMPARISON_SCHEMA:
            return _decoded(text, Comparison)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise OpanatomyError(
            f"not a comparison of opanatomy - {error} - give a file that `opanatomy compare ... -f json` wrote"
        ) from error
    raise OpanatomyError(
        f"the comparison has schema {schema}, this opanatomy reads schema {COMPARISON_SCHEMA} - "
        "use the opanatomy that wrote it, or compare the reports again"
    )


def read_techniques(text: str | bytes) -> Techniques:
    """Return the experiment in its JSON report; raise `OpanatomyError` for any other text than this schema."""
    try:
        schema = msgspec.json.decode(text, type=_Head).schema
        if schema == TECHNIQUES_SCHEMA:
            return _decoded(text, Techniques)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise OpanatomyError(
            f"not a report of techniques - {error} - give a file that `opanatomy techniques ... -f json` wrote"
        ) from error
    raise OpanatomyError(
        f"the report has schema {schema}, this opanatomy reads schema {TECHNIQUES_SCHEMA} - "
        "use the opanatomy that wrote it"
    )


def _section(value: object) -> str:
    """Return a table with one row a line, a record or a mapping with one key a line; a missing record is null."""
    if value is None or isinstance(value, int | tuple):
        return _rows(value, depth=1) if isinstance(value, tuple) else _line(value)
    keys = value if isinstance(value, dict) else _keys(value)
    return _block("{", [f"{_line(name)}: {_rows(item, depth=2)}" for name, item in keys.items()], "}", depth=1)


def _rows(value: object, *, depth: int) -> str:
    """Return a table of records or a list of sentences with one a line; anything else on one line."""
    if not isinstance(value, tuple) or (depth > 1 and all(isinstance(item, str) for item in value)):
        return _line(value)
    return _block("[", [_line(row) for row in value], "]", depth=depth)


def _block(opening: str, items: list[str], closing: str, *, depth: int) -> str:
    if not items:
        return opening + closing
    inner, outer = "\n" + " " * (depth + 1), "\n" + " " * depth
    return f"{opening}{inner}{f',{inner}'.join(items)}{outer}{closing}"


def _line(value: object) -> str:
    text = msgspec.json.encode(value, order="deterministic", enc_hook=_plain)
    return msgspec.json.format(text, indent=0).decode()


def _decoded(text: str | bytes, kind: type[Read]) -> Read:
    return msgspec.json.decode(text, type=kind, dec_hook=lambda kind, value: kind(value))


def _plain(value: SignatureText) -> str:
    """Return the JSON form of the one type that it does not know."""
    return str(value)


def _keys(record: Any) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


FORMAT: Final = Format(ending=".json", write=lambda anatomy, page: json_report(anatomy), machine_readable=True)
