"""What the names of a trace mean, as columns: each distinct name is looked at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.classification import classify_operator, read_kernel_name
from opanatomy.cost import has_formula
from opanatomy.records.columns import Bool, Categorical, Int64, categorical_of, distinct
from opanatomy.records.data_types import ITEM_SIZE
from opanatomy.records.signature import Classification
from opanatomy.records.taxonomy import CLASS_CODE, COMPUTE_TYPES, OperatorClass

UNKNOWN: Final = CLASS_CODE[OperatorClass.UNKNOWN]
#: The element types of tensor lists, from kernel names; a column has the place here, -1 is none.
ELEMENT_TYPES: Final = tuple(ITEM_SIZE)
#: An operator that no rule knows: unknown on the CPU; on an accelerator its kernels' names decide.
UNKNOWN_OPERATOR: Final = Classification(operator_class=OperatorClass.UNKNOWN, rule="no rule", delegates=True)
DISPATCHING: Final = Classification(operator_class=None, rule="no rule")


class OperatorNames(Struct, frozen=True, kw_only=True):
    """The classes of operators: one entry a name of the trace."""

    #: A place in `CLASSES`, -1 where the operator does no work of its own.
    operator_class: Int64
    rule: Categorical[str]
    delegates: Bool
    composite: Bool

    @property
    def computes(self) -> Bool:
        """Which names are of operators that do work of their own."""
        names: Bool = self.operator_class >= 0
        return names


class KernelNames(Struct, frozen=True, kw_only=True):
    """What the names of device events say (`KernelName`): one entry a name of the trace."""

    operator_class: Int64
    rule: Categorical[str]
    #: 1 of those that use tensor cores, 0 of those that do not, -1 where the name does not tell.
    tensor_cores: Int64
    #: Places in `COMPUTE_TYPES` and `ELEMENT_TYPES`.
    compute_type: Int64
    element_type: Int64
    crosses_host_link: Bool


def operator_names(names: Sequence[str], column: Int64, *, on_device: bool) -> OperatorNames:
    """The classes of the names that are in the column, which is of host events."""
    otherwise = DISPATCHING if on_device else UNKNOWN_OPERATOR
    classifications = [DISPATCHING] * len(names)
    for number in distinct(column).values.tolist():
        name = names[number]
        classifications[number] = _with_formula(name, classify_operator(name)) or otherwise
    return OperatorNames(
        operator_class=_codes(classifications),
        rule=_rules(classifications),
        delegates=np.array([known.delegates for known in classifications], dtype=bool),
        composite=np.array([known.composite for known in classifications], dtype=bool),
    )


def kernel_names(names: Sequence[str], column: Int64) -> KernelNames:
    """What the names in the column, which is of device events, say."""
    classifications = [DISPATCHING] * len(names)
    crosses = np.zeros(len(names), dtype=bool)
    compute_type, element_type, tensor_cores = np.full((3, len(names)), -1, dtype=np.int64)
    for number in distinct(column).values.tolist():
        known = read_kernel_name(names[number])
        classifications[number] = known.classification
        crosses[number] = known.crosses_host_link
        tensor_cores[number] = -1 if known.tensor_cores is None else known.tensor_cores
        compute_type[number] = -1 if known.compute_type is None else COMPUTE_TYPES.index(known.compute_type)
        element_type[number] = -1 if known.element_type is None else ELEMENT_TYPES.index(known.element_type)
    return KernelNames(
        operator_class=_codes(classifications), rule=_rules(classifications), tensor_cores=tensor_cores,
        compute_type=compute_type, element_type=element_type, crosses_host_link=crosses,
    )  # fmt: skip


def with_classes_of_kernels(
    operators: OperatorNames, kernels: KernelNames, called: Int64, kernel: Int64, duration_ns: Int64
) -> OperatorNames:
    """The operators, those of unknown class with that of the kernels which take most of their time.

    `called` has for each device event the name of its call, -1 none; `kernel` its own name.
    """
    events = np.flatnonzero(at_class(operators, called) == UNKNOWN)
    pairs = distinct(called[events] * len(operators.operator_class) + kernel[events])
    spent = np.zeros(len(pairs.values), dtype=np.int64)
    np.add.at(spent, pairs.inverse, duration_ns[events])
    operator_class, rule = operators.operator_class.copy(), operators.rule.decoded()
    for pair in np.lexsort((pairs.first, spent)).tolist():
        event = events[pairs.first[pair]]
        operator, name = int(called[event]), int(kernel[event])
        operator_class[operator] = kernels.operator_class[name]
        rule[operator] = f"its kernels: {kernels.rule.at(name)}"
    texts = [text or "" for text in rule]
    return replace(operators, operator_class=operator_class, rule=categorical_of(texts, np.arange(len(texts))))


def at_class(operators: OperatorNames, names: Int64) -> Int64:
    """The class of each of these names, -1 for name -1."""
    return np.where(names >= 0, operators.operator_class[names], -1) if len(operators.operator_class) else names


def _with_formula(name: str, known: Classification | None) -> Classification | None:
    """An operator that no rule knows but that has a formula is a call; its kernels' names decide its class."""
    unknown = known is None or (known.operator_class is None and name.startswith("torch::autograd::CppNode<"))
    return UNKNOWN_OPERATOR if unknown and has_formula(name) else known


def _codes(classifications: Sequence[Classification]) -> Int64:
    return np.array(
        [-1 if known.operator_class is None else CLASS_CODE[known.operator_class] for known in classifications],
        dtype=np.int64,
    )


def _rules(classifications: Sequence[Classification]) -> Categorical[str]:
    return categorical_of([known.rule for known in classifications], np.arange(len(classifications)))
