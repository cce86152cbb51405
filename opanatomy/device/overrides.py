"""`--peak` and `--bandwidth`: figures that the user knows better."""

from __future__ import annotations

import math
import re
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from opanatomy.errors import UsageError
from opanatomy.records.data_types import PEAK_TYPES, peak_type_of
from opanatomy.records.device import Ceilings

_QUANTITY: Final = re.compile(
    r"(?P<number>\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?)\s*(?P<prefix>[kMGTPE]?)(?P<unit>[A-Za-z/]*)", re.ASCII
)
_PREFIXES: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_FLOPS_UNITS: Final = ("", "flop/s", "flops", "flop", "op/s", "ops")
_BYTES_UNITS: Final = ("", "b/s", "b")
#: No device is slower than this, and none faster: a prefix is missing or twice there.
_MIN_RATE, _MAX_RATE = 1e8, 1e18


class Overrides(Struct, frozen=True, kw_only=True):
    """What the user gave: peaks of matrix multiplication by data type (`any` is all of them), bytes a second."""

    peaks: dict[str, float] = field(default_factory=dict)
    bandwidth: float | None = None

    def __bool__(self) -> bool:
        return bool(self.peaks) or self.bandwidth is not None

    def over(self, known: Ceilings | None, device: str) -> Ceilings:
        """`known` with these figures in place of its own."""
        given = [] if not self.peaks else ["--peak"]
        given += [] if self.bandwidth is None else ["--bandwidth"]
        source = " and ".join(given)
        named = {name: peak for name, peak in self.peaks.items() if name != "any"}
        every = dict.fromkeys(PEAK_TYPES, self.peaks["any"]) if "any" in self.peaks else {}
        if known is None:
            return Ceilings(
                device=device,
                source=source,
                matrix_flops_per_second={**every, **named},
                bandwidth_bytes_per_second=self.bandwidth,
            )
        return replace(
            known,
            source=f"{source}; else {known.source}",
            matrix_flops_per_second={**known.matrix_flops_per_second, **every, **named},
            bandwidth_bytes_per_second=known.bandwidth_bytes_per_second if self.bandwidth is None else self.bandwidth,
        )


def parse_overrides(peak: str | None, bandwidth: str | None) -> Overrides:
    """The texts of `--peak` and `--bandwidth`; `UsageError` where one makes no sense."""
    return Overrides(
        peaks={} if peak is None else parse_peaks(peak),
        bandwidth=None if bandwidth is None else parse_bandwidth(bandwidth),
    )


def parse_peaks(text: str) -> dict[str, float]:
    """`989T` -> {"any": 989e12}; `bf16=989e12,fp32=67T` -> {"bfloat16": 989e12, "float32": 67e12}."""
    peaks: dict[str, float] = {}
    for part in text.split(","):
        name, equals, quantity = (word.strip() for word in part.rpartition("="))
        dtype = data_type(name, f"--peak {text}") if equals else "any"
        if dtype in peaks:
            raise UsageError(f"--peak {text}: {name or 'a peak of all types'} is given twice - give it once")
        peaks[dtype] = _quantity(quantity, "--peak", text, _FLOPS_UNITS, "989T, or bf16=989T,fp32=67T")
    return peaks


def parse_bandwidth(text: str) -> float:
    """`3.35T`, `3.35e12`, `900 GB/s` -> bytes a second."""
    return _quantity(text.strip(), "--bandwidth", text, _BYTES_UNITS, "3.35T or 900G")


def data_type(name: str, option: str) -> str:
    """The data type of a peak by its name or a short one; `UsageError` naming `option` where it is none."""
    peak_type = peak_type_of(name)
    if peak_type is None:
        raise UsageError(f"{option}: no data type {name!r} has a peak - one of {', '.join(PEAK_TYPES)}")
    return peak_type


def _quantity(text: str, option: str, whole: str, units: tuple[str, ...], example: str) -> float:
    quantity = _QUANTITY.fullmatch(text)
    if quantity is None or quantity["unit"].lower() not in units:
        raise UsageError(f"{option} {whole}: {text!r} is not a number with k, M, G, T or P - write {example}")
    value = float(quantity["number"]) * _PREFIXES[quantity["prefix"]]
    if not (math.isfinite(value) and _MIN_RATE <= value <= _MAX_RATE):
        raise UsageError(f"{option} {whole}: {value:g} a second is not what a device does - write {example}")
    return value
