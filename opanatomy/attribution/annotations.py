"""A trace's own annotations of phases, such as `## forward ##`: a check of what was inferred, never its source."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from opanatomy.attribution.phases import PHASES, HostRows, phases_at
from opanatomy.model import Phase
from opanatomy.tables import Int64

_SAYS = re.compile(r"^(?:## ?)?(forward|backward|optimizer)(?: ?##)?$")
#: Recomputation happens inside what a user annotates as backward.
_SAME = {Phase.RECOMPUTE: Phase.BACKWARD}


def disagreement(
    names: Sequence[str], rows: HostRows, host: Int64, duration_ns: Int64, phases: Sequence[Phase]
) -> tuple[int, int]:
    """(device time in another phase than the annotation around its launch says, device time so annotated) in ns.

    `host`, `duration_ns` and `phases` are of the device work; rows of `host` below 0 have no launch to look at.
    """
    said = {number: Phase(match[1]) for number, name in enumerate(names) if (match := _SAYS.match(name))}
    marked = np.isin(rows.name, np.array(list(said), dtype=np.int64)) & (rows.annotation != 0)
    spans = sorted(
        (int(rows.start_ns[row]), int(rows.end_ns[row]), said[int(rows.name[row])])
        for row in np.flatnonzero(marked).tolist()
    )
    if not spans:
        return 0, 0
    launched = np.flatnonzero(host >= 0)
    expected = phases_at(spans, rows.start_ns[host[launched]])
    known = expected >= 0
    found = np.array([PHASES.index(_SAME.get(phases[index], phases[index])) for index in launched[known].tolist()])
    spent = duration_ns[launched[known]]
    return int(spent[found != expected[known]].sum()), int(spent.sum())
