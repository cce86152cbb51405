"""What crosses the link between host and device: no bandwidth of the device bounds it."""

from __future__ import annotations

import numpy as np

from opanatomy.records.columns import Bool, Int64


def rows_with_events(events: Bool, row: Int64, count: int) -> Bool:
    """Which of `count` host rows have one of these device events; `row` is that of each event, -1 none."""
    rows = np.zeros(count, dtype=bool)
    rows[row[events & (row >= 0)]] = True
    return rows
