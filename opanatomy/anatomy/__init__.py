"""Stage 6: tables of calls and device work -> the records of the report."""

from opanatomy.anatomy.build import CONVENTIONS, Findings, build_anatomy
from opanatomy.anatomy.queue import Queue

__all__ = ["CONVENTIONS", "Findings", "Queue", "build_anatomy"]
