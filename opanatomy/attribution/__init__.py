"""Stage 3: device work -> operator call -> phase -> module, the step window and the ledger."""

from opanatomy.attribution.attribute import Attribution, attribute
from opanatomy.attribution.ownership import own

__all__ = ["Attribution", "attribute", "own"]
