"""NVIDIA cards for desktops and workstations."""

from __future__ import annotations

from typing import Final

from opanatomy.device.sheets.sheet import Sheet, halves

_GA102 = "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.1.pdf"
_ADA = "https://images.nvidia.com/aem-dam/Solutions/Data-Center/l4/nvidia-ada-gpu-architecture-whitepaper-v2.1.pdf"
_GB202 = "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"

DESKTOP: Final = (
    Sheet(
        device="GeForce RTX 3090", names=(r"RTX 3090",), source=_GA102,
        multiprocessors=(82,), memory_gib=24, bandwidth=936, cache_mib=6,
        matrix=halves(71.0, float32=35.6, tf32=35.6, int8=284.0), vector={"float32": 35.6},
    ),
    Sheet(
        device="GeForce RTX 4090", names=(r"RTX 4090",), source=_ADA,
        multiprocessors=(128,), memory_gib=24, bandwidth=1008, cache_mib=72,
        matrix=halves(165.2, float32=82.6, tf32=82.6, float8=330.3, int8=660.6), vector={"float32": 82.6},
    ),
    Sheet(
        device="GeForce RTX 5090", names=(r"RTX 5090",), source=_GB202,
        multiprocessors=(170,), memory_gib=32, bandwidth=1792, cache_mib=96,
        matrix=halves(209.5, float32=104.8, tf32=104.8, float8=419.0, int8=838.0), vector={"float32": 104.8},
    ),
)  # fmt: skip
