"""What the report says, checked against second sources.

A capture was watched by a dispatch mode and summed up by the profiler. Any trace says some things twice: autograd has
a product three times, forward and once for each gradient; composite operators record it with their own arguments and
with those of the operator that computes. Of ranks that train together theory says what they must exchange.
"""

from opanatomy.checks.causality import check_causality
from opanatomy.checks.communication import check_communication, check_parts
from opanatomy.checks.gate import below_alarm, require_agreement
from opanatomy.checks.memory import check_memory
from opanatomy.checks.run import self_checks
from opanatomy.checks.second_count import check_counts
from opanatomy.checks.times import check_times

__all__ = [
    "below_alarm", "check_causality", "check_communication", "check_counts", "check_memory", "check_parts",
    "check_times", "require_agreement", "self_checks",
]  # fmt: skip
