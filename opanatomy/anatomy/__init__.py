"""Stage 6: tables of calls and device work -> the records of the report."""

from opanatomy.anatomy.build import Findings, build_anatomy
from opanatomy.anatomy.queue import Queue
from opanatomy.anatomy.rows import CALL_COLUMNS, COSTS, WORK_COLUMNS

__all__ = ["CALL_COLUMNS", "COSTS", "WORK_COLUMNS", "Findings", "Queue", "build_anatomy"]
