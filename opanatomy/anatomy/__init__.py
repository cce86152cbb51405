"""Stage 6: tables of calls and device work -> the records of the report."""

from opanatomy.anatomy.build import CONVENTIONS, AnatomyInputs, MeasuredSteps, build_anatomy, measured_steps
from opanatomy.anatomy.launched_work import LaunchedWork

__all__ = ["CONVENTIONS", "AnatomyInputs", "LaunchedWork", "MeasuredSteps", "build_anatomy", "measured_steps"]
