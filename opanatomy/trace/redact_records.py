"""Redact the records of a report, from which every format is made."""

from __future__ import annotations

import re
from enum import Enum
from functools import cache
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.records.columns import is_packed
from opanatomy.records.signature import SignatureText
from opanatomy.trace.redact import PATH, REDACTED, Texts, is_plain_constant, words

Record = TypeVar("Record")


#: Fields of our own words and figures; nothing in them comes from a trace, a model or a machine.
_OURS: Final = words(
    "Anatomy.conventions OperatorRow.rule KernelRow.rule MemoryTerm.component MemoryTerm.term MemoryTerm.formula"
    " MemoryComponent.component MemoryComponent.formula MemoryInference.component MemoryInference.rule"
    " MemoryBlocks.component MemoryBlocks.rule MemorySaving.technique MemorySaving.option PublishedFigure.figure"
    " PublishedFigure.unit PublishedFigure.published_device Memory.measured_by Check.quantity Check.source Check.unit"
    " Difference.cause Spread.figure DeviceFigures.source DeviceFigures.peak_flops_per_second"
    " ExceededCeiling.ceiling ExceededCeiling.option"
    " DeviceFigures.vector_flops_per_second DeviceFigures.mfu_dtype Provenance.opanatomy Provenance.created"
    " Provenance.trace_sha256 Rank.trace_sha256 Capture.created Capture.version Capture.list_arguments"
    " MemoryObservations.measured_by MemoryObservations.storage_bytes AllocatorObservation.name"
    " StorageColumns.components TextObservations.padding TextFigures.padding"
    " Waiting.no_straggler"
)


#: Fields that hold the path of a module, written like the ranges in the trace.
_MODULES: Final = words(
    "ModuleRow.module MemoryBlocks.module SavedActivations.module Capture.modules Capture.gradients"
    " ContextColumns.modules ModuleCommunication.module ExpectedCommunication.module SharedWeights.module"
    " Breakdown.modules"
)


#: Names of operators, kernels, data types and devices, as a trace writes them.
_NAMES: Final = words(
    "OperatorRow.operator OperatorRow.part_of KernelRow.kernel KernelRow.operators MemoryBlocks.operator"
    " SavedActivations.operator SavedActivations.saved_by Difference.operator Collective.collective"
    " ObservedCall.operator ObservedCount.operator Capture.profiler_times_ns Capture.lists ModuleRow.kind"
    " Environment.device Environment.device_kind Environment.torch Environment.cuda Environment.driver"
    " Environment.transformers Environment.python Environment.processor Rank.device MemoryDevice.device"
    " Collective.dtype SavedActivations.dtype MemorySnapshot.name ModelShape.kind ModelShape.head"
    " ModelShape.activation ContextColumns.operators TensorType.dtype StepObservations.device"
    " MemoryObservations.device MemoryObservations.other_devices ModuleCommunication.collective"
    " ExpectedCommunication.collective MatchedCollective.collective MatchedCollective.dtype Breakdown.operators"
    " Breakdown.kernels ExceededCeiling.operator IdleRow.name"
)


#: With `everything`, what remains of fields that say who ran what from where.
_PLACES: Final = {
    "Provenance.command": REDACTED, "Capture.command": REDACTED, "Rank.trace": PATH,
    "Spread.max_trace": PATH, "TextObservations.file": PATH, "TextFigures.file": PATH,
    "RankWaiting.trace": PATH, "Straggler.trace": PATH,
}  # fmt: skip


_RANKS: Final = re.compile(r"^(\d+ ranks): .*", re.DOTALL)


_ARGUMENTS: Final = words("OperatorRow.signature Breakdown.signatures")


_TENSOR: Final = re.compile(r"^(?:\?|[a-z][a-z0-9_]*)\[[\d,]*\](?: sparse \d+| without strides)?\]*$")


def redacted(record: Record, texts: Texts) -> Record:
    """Return the record, and all records in it, redacted; the same object if nothing is left out."""
    result: Record = _value(record, type(record).__name__, texts)
    return result


def _value(value: Any, place: str, texts: Texts) -> Any:
    if isinstance(value, str):
        return value if isinstance(value, Enum) or place in _OURS else _text(value, place, texts)
    if isinstance(value, bytes):
        return value if is_packed(value) else b""
    if isinstance(value, Struct):
        return _record(value, texts)
    if isinstance(value, (tuple, list)):
        items = [_value(item, place, texts) for item in value]
        return value if all(map(_same, items, value)) else type(value)(items)
    if isinstance(value, dict) and place not in _OURS:
        return _mapping(value, place, texts)
    return value


def _record(record: Any, texts: Texts) -> Any:
    kind: Any = type(record)
    changed = {}
    for name, place in _fields_of(kind):
        value = getattr(record, name)
        if value is None or isinstance(value, (int, float)):
            continue
        redacted = _value(value, place, texts)
        if not _same(redacted, value):
            changed[name] = redacted
    if texts.everything and kind.__name__ == "Workload" and record.model_source in ("folder", "function"):
        changed["model"] = PATH
    return replace(record, **changed) if changed else record


@cache
def _fields_of(kind: type[Any]) -> tuple[tuple[str, str], ...]:
    """Return the fields of a record, each with its name in the tables above."""
    return tuple((name, f"{kind.__name__}.{name}") for name in kind.__struct_fields__)


def _mapping(mapping: dict[Any, Any], place: str, texts: Texts) -> dict[Any, Any]:
    """Return the mapping redacted; add up the times of names that become equal."""
    result: dict[Any, Any] = {}
    for key, value in mapping.items():
        name, redacted = _value(key, place, texts), _value(value, place, texts)
        result[name] = result[name] + redacted if name in result and type(redacted) is int else redacted
    return mapping if result == mapping else result


def _text(text: str, place: str, texts: Texts) -> str:
    if place in _NAMES:
        return texts.text(text)
    if place in _MODULES:
        return texts.module(text)
    if place in _ARGUMENTS:
        return SignatureText(_arguments(text, texts))
    if texts.everything:
        if place in _PLACES:
            return _PLACES[place]
        if place == "Provenance.trace":
            ranks = _RANKS.match(text)
            return ranks[1] if ranks else PATH
    return texts.sentence(text)


def _arguments(signature: str, texts: Texts) -> str:
    """Return a signature; with `everything`, without texts among its arguments, as in the redacted trace."""
    if not texts.everything:
        return texts.text(signature)
    return ", ".join(map(_argument, signature.split(", ")))


def _argument(text: str) -> str:
    core = text.lstrip("[")
    if core.rstrip("]") == "-" or _TENSOR.match(core) or is_plain_constant(core.rstrip("]")):
        return text
    return text[: len(text) - len(core)] + "-" + core[len(core.rstrip("]")) :]


def _same(one: object, other: object) -> bool:
    return one is other or (isinstance(one, str) and one == other)
