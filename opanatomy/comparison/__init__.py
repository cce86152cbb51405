"""Anatomies side by side: where the difference between two steps comes from, and what of it can be claimed."""

from opanatomy.comparison.build import Measure, RunInput, SideInput, compared

__all__ = ["Measure", "RunInput", "SideInput", "compared"]
