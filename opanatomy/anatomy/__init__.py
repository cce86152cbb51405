"""Stage 6: tables of calls and device work -> the records of the report."""

from opanatomy.anatomy.build import CONVENTIONS, AnatomyInputs, build_anatomy
from opanatomy.anatomy.launched_work import LaunchedWork

__all__ = ["CONVENTIONS", "AnatomyInputs", "LaunchedWork", "build_anatomy"]
