"""What a device could do at most: measured on it where that was possible, else from its maker's data sheet."""

from __future__ import annotations

from opanatomy.device.known import HOW_TO_GET_THEM, KnownCeilings, ceilings_for
from opanatomy.device.overrides import Overrides, parse_bandwidth, parse_overrides, parse_peaks

__all__ = [
    "HOW_TO_GET_THEM",
    "KnownCeilings",
    "Overrides",
    "ceilings_for",
    "parse_bandwidth",
    "parse_overrides",
    "parse_peaks",
]
