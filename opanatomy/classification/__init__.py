"""Stage 4: operator and kernel names -> classes, by ordered rule tables; UNKNOWN is an answer."""

from opanatomy.classification.aten_tables import FAMILIES
from opanatomy.classification.kernel_names import KernelName, read_kernel_name
from opanatomy.classification.kernel_tables import KERNEL_TABLES
from opanatomy.classification.kernels import classify_kernel
from opanatomy.classification.libraries import LIBRARIES, RANGES, WORDS
from opanatomy.classification.operators import classify_operator
from opanatomy.classification.rules import Family, Pattern, RuleBook, RuleTable

__all__ = [
    "Family", "KernelName", "Pattern", "RuleBook", "RuleTable", "classify_kernel", "classify_operator",
    "read_kernel_name", "rules",
]  # fmt: skip


def rules() -> RuleBook:
    """Every rule in the order it is asked: ATen's families, then expressions for other operators, and for kernels."""
    return RuleBook(operators=(*FAMILIES, *LIBRARIES, RANGES, WORDS), kernels=KERNEL_TABLES)
