"""Stage 3: device work -> operator call -> phase -> module, the step window and the ledger."""

from opanatomy.attribution.attribute import Attribution, attribute
from opanatomy.attribution.ownership import Candidates, own

__all__ = ["Attribution", "Candidates", "attribute", "own"]
