"""Stage 4: operator and kernel names -> classes, by ordered rule tables; UNKNOWN is an answer."""

from opanatomy.classification.kernels import classify_kernel
from opanatomy.classification.operators import classify_operator

__all__ = ["classify_kernel", "classify_operator"]
