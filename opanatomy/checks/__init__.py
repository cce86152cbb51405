"""Stage 6: what a trace says of itself twice, held against each other.

Autograd records a product three times: forward, and once for each gradient. Composite operators record it twice: with
their own arguments and with those of the operator that computes. None of these comparisons uses the phases.
"""

from opanatomy.checks.run import self_checks

__all__ = ["self_checks"]
