"""Operators that hand over to Python: tensors of a subclass (nested, distributed, quantized) and dispatch modes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opanatomy.tables import Bool, Int64

#: What torch's dispatcher records around the Python code that an operator runs instead of its kernel.
_PYTHON = frozenset({"PythonSubclass", "PythonDispatchMode"})


def handed_to_python(names: Sequence[str], name: Int64, parent: Int64) -> Bool:
    """Whether each host row ran Python code in place of its kernel: what computes is below, with its own arguments."""
    found = np.zeros(len(name), dtype=bool)
    numbers = [number for number, text in enumerate(names) if text in _PYTHON]
    if numbers:
        parents = parent[np.isin(name, np.array(numbers, dtype=np.int64))]
        found[parents[parents >= 0]] = True
    return found
