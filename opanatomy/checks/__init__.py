"""What the report says, held against second sources: what ran as a dispatch mode saw it, torch's own sums."""

from opanatomy.checks.gate import require_agreement
from opanatomy.checks.second_count import check_counts
from opanatomy.checks.times import check_times

__all__ = ["check_counts", "check_times", "require_agreement"]
