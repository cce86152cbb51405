"""Parse and apply `--peak` and `--bandwidth`, the ceilings that the user gives."""

from __future__ import annotations

import math
import re
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from opanatomy.errors import UsageError
from opanatomy.records.anatomy import BANDWIDTH, Ceilings, GivenCeiling
from opanatomy.records.patterns import regex
from opanatomy.records.taxonomy import PEAK_TYPES, peak_type_of

_QUANTITY: Final = regex(
    r"(?P<number>\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?)\s*(?P<prefix>[kMGTPE]?)(?P<unit>[A-Za-z/]*)", re.ASCII
)
_PREFIXES: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_FLOPS_UNITS: Final = ("", "flop/s", "flops", "flop", "op/s", "ops")
_BYTES_UNITS: Final = ("", "b/s", "b")
#: No device is slower or faster than this: a value outside lacks a prefix, or has it twice.
_MIN_RATE, _MAX_RATE = 1e8, 1e18


class Overrides(Struct, frozen=True, kw_only=True):
    """User-given ceilings: peaks of matrix products by data type (`any` for all), bytes per second.

    `typed` has the option text of each, by the same names and `BANDWIDTH`.
    """

    peaks: dict[str, float] = field(default_factory=dict)
    bandwidth: float | None = None
    typed: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.peaks) or self.bandwidth is not None

    def over(self, known: Ceilings | None, device: str) -> Ceilings:
        """Return `known` with these figures replacing its own."""
        before = Ceilings(device=device, source="") if known is None else known
        given = []
        for name in PEAK_TYPES:
            by = name if name in self.peaks else "any"
            if by in self.peaks:
                given.append(
                    GivenCeiling(
                        name=name,
                        option=self._option("--peak", by),
                        per_second=self.peaks[by],
                        known_per_second=before.matrix_flops_per_second.get(name),
                    )
                )
        if self.bandwidth is not None:
            given.append(
                GivenCeiling(
                    name=BANDWIDTH,
                    option=self._option("--bandwidth", BANDWIDTH),
                    per_second=self.bandwidth,
                    known_per_second=before.bandwidth_bytes_per_second,
                )
            )
        options = [self._option("--peak", *self.peaks)] if self.peaks else []
        options += [] if self.bandwidth is None else [self._option("--bandwidth", BANDWIDTH)]
        peaks = {one.name: one.per_second for one in given if one.name != BANDWIDTH}
        own = {one.name for one in given if one.per_second >= (one.known_per_second or 0)}
        return replace(
            before,
            source="; otherwise ".join(filter(None, (" and ".join(options), before.source))),
            matrix_flops_per_second={**before.matrix_flops_per_second, **peaks},
            attained_share={name: share for name, share in before.attained_share.items() if name not in peaks},
            bandwidth_bytes_per_second=before.bandwidth_bytes_per_second if self.bandwidth is None else self.bandwidth,
            disturbed=tuple(name for name in before.disturbed if name not in own),
            given=tuple(given),
        )

    def _option(self, flag: str, *names: str) -> str:
        """Return the flag with the words that gave these ceilings."""
        words = ",".join(self.typed[name] for name in names if name in self.typed)
        return f"{flag} {words}" if words else flag


def parse_overrides(peak: str | None, bandwidth: str | None) -> Overrides:
    """Parse the texts of `--peak` and `--bandwidth`; raise `UsageError` if one is not valid."""
    peaks = {} if peak is None else parse_peaks(peak)
    # The parts are in the order of the peaks, one for each.
    typed = dict(zip(peaks, ("".join(part.split()) for part in (peak or "").split(",")), strict=peak is not None))
    if bandwidth is not None:
        typed[BANDWIDTH] = "".join(bandwidth.split())
    return Overrides(peaks=peaks, bandwidth=None if bandwidth is None else parse_bandwidth(bandwidth), typed=typed)


def parse_peaks(text: str) -> dict[str, float]:
    """Parse `989T` into {"any": 989e12}, and `bf16=989e12,fp32=67T` into {"bfloat16": 989e12, "float32": 67e12}."""
    peaks: dict[str, float] = {}
    for part in text.split(","):
        name, equals, quantity = (word.strip() for word in part.rpartition("="))
        dtype = data_type(name, f"--peak {text}") if equals else "any"
        if dtype in peaks:
            raise UsageError(f"--peak {text}: {name or 'a peak without a data type'} appears twice - leave one out")
        peaks[dtype] = _quantity(quantity, "--peak", text, _FLOPS_UNITS, "989T, or bf16=989T,fp32=67T")
    return peaks


def parse_bandwidth(text: str, option: str = "--bandwidth") -> float:
    """Parse `3.35T`, `3.35e12` or `900 GB/s` into bytes a second."""
    return _quantity(text.strip(), option, text, _BYTES_UNITS, "3.35T or 900G")


def data_type(name: str, option: str) -> str:
    """Return the data type of a peak by its full or short name; raise `UsageError` naming `option` if there is none."""
    peak_type = peak_type_of(name)
    if peak_type is None:
        raise UsageError(f"{option}: there is no peak for data type {name!r} - use one of {', '.join(PEAK_TYPES)}")
    return peak_type


def _quantity(text: str, option: str, whole: str, units: tuple[str, ...], example: str) -> float:
    quantity = _QUANTITY.fullmatch(text)
    if quantity is None or quantity["unit"].lower() not in units:
        raise UsageError(f"{option} {whole}: {text!r} is not a number with k, M, G, T or P - write {example}")
    value = float(quantity["number"]) * _PREFIXES[quantity["prefix"]]
    if not (math.isfinite(value) and _MIN_RATE <= value <= _MAX_RATE):
        raise UsageError(f"{option} {whole}: {value:g} per second is not plausible for any device - write {example}")
    return value
