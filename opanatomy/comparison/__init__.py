"""Anatomies side by side: where the difference between two steps comes from, and what of it can be claimed."""

from opanatomy.comparison.build import RunInput, SideInput, compared

__all__ = ["RunInput", "SideInput", "compared"]
