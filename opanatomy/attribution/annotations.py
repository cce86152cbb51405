"""A trace's own annotations of phases, such as `## forward ##`: a check of what was inferred, never its source."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from opanatomy.attribution.phases import HostRows, phase_by_time
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
    spans = sorted(
        (rows.start_ns[row], rows.end_ns[row], said[name])
        for row, name in enumerate(rows.name)
        if name in said and rows.annotation[row]
    )
    if not spans:
        return 0, 0
    phase_at = phase_by_time(spans)
    wrong = annotated = 0
    for index in np.flatnonzero(host >= 0).tolist():
        expected = phase_at(rows.start_ns[int(host[index])])
        if expected is None:
            continue
        spent = int(duration_ns[index])
        annotated += spent
        if _SAME.get(phases[index], phases[index]) is not expected:
            wrong += spent
    return wrong, annotated
