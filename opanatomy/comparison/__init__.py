"""Anatomies side by side: where the difference between two steps comes from, and what of it can be claimed."""

from opanatomy.comparison.build import compared
from opanatomy.comparison.sides import RunInput, SideInput

__all__ = ["RunInput", "SideInput", "compared"]
