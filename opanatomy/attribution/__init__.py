"""Attribute device work: device event -> launch -> operator call -> phase -> module, and the joined tables."""
