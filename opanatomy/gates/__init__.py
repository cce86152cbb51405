"""Gates (`--fail-if`): figures of a report that must not be, or of a comparison that must not change so."""

from opanatomy.gates.grammar import Gate, Of, gates_of, gates_of_one
from opanatomy.gates.judging import judged, judged_report, require_met

__all__ = ["Gate", "Of", "gates_of", "gates_of_one", "judged", "judged_report", "require_met"]
