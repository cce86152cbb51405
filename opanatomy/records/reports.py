"""Report = Anatomy or Techniques or Comparison."""

from __future__ import annotations

from typing import TypeAlias

from opanatomy.records.anatomy import Anatomy
from opanatomy.records.comparison import Comparison
from opanatomy.records.experiment import Techniques

Report: TypeAlias = Anatomy | Techniques | Comparison
