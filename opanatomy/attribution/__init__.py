"""Stage 3: device work -> operator call -> phase -> module, the step window and the ledger."""

from opanatomy.attribution.attribute import Attribution, attribute
from opanatomy.attribution.ownership import Candidates, own
from opanatomy.attribution.phase_rules import PhaseRule, phase_rules, phase_rules_of

__all__ = ["Attribution", "Candidates", "PhaseRule", "attribute", "own", "phase_rules", "phase_rules_of"]
