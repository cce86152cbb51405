"""The class of a device event by its name alone: compiled names first, then the ordered tables."""

from __future__ import annotations

import re
from functools import lru_cache

from opanatomy.classification.compiled import classify_compiled
from opanatomy.classification.kernel_tables import KERNEL_TABLES
from opanatomy.classification.rules import LONGEST, UNKNOWN, first_match
from opanatomy.records.signature import Classification

#: What C++ adds around a kernel's own name, and what Triton of 2023 adds after it: `_0d1d2de` for its arguments.
_NOISE = re.compile(r"\(anonymous namespace\)::|<unnamed>::|^(?:static |__global__ )?void | ?\(?\.kd\)?$|_0d1[\ddec]*$")


@lru_cache(maxsize=65536)
def classify_kernel(name: str) -> Classification:
    """What a kernel, memcpy or memset of this name does; the class is `UNKNOWN` where no rule knows it."""
    name = name[:LONGEST]
    return (
        classify_compiled(name)
        or first_match(KERNEL_TABLES, _NOISE.sub("", name))
        or Classification(operator_class=UNKNOWN, rule="no rule")
    )
