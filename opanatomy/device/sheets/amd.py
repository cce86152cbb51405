"""AMD Instinct."""

from __future__ import annotations

from typing import Final

from opanatomy.device.sheets.sheet import Sheet, halves

_AMD = "https://www.amd.com/content/dam/amd/en/documents/instinct-"
_MI210 = f"{_AMD}business-docs/product-briefs/instinct-mi210-brochure.pdf"
_MI250 = "https://www.amd.com/system/files/documents/amd-instinct-mi200-datasheet.pdf"
_MI300X = f"{_AMD}tech-docs/data-sheets/amd-instinct-mi300x-data-sheet.pdf"
_MI325X = f"{_AMD}tech-docs/product-briefs/instinct-mi325x-datasheet.pdf"
_MI355X = f"{_AMD}tech-docs/product-briefs/amd-instinct-mi355x-gpu-brochure.pdf"
_MI210_MATRIX = halves(181.0, float64=45.3, float32=45.3, int8=181.0)
_MI210_VECTOR = {"float64": 22.6, "float32": 22.6}
_MI300X_MATRIX = halves(1307.4, float64=163.4, float32=163.4, tf32=653.7, float8=2614.9, int8=2614.9)
_MI300X_VECTOR = {"float64": 81.7, "float32": 163.4}

AMD: Final = (
    Sheet(
        device="Instinct MI210", names=(r"MI210",), source=_MI210,
        multiprocessors=(104,), memory_gib=64, bandwidth=1638.4, cache_mib=8,
        matrix=_MI210_MATRIX, vector=_MI210_VECTOR,
    ),
    Sheet(
        device="Instinct MI250 (one of two dies)", names=(r"MI250", r"MI250X ?/ ?MI250"), source=_MI250,
        multiprocessors=(104,), memory_gib=64, bandwidth=1638.4, cache_mib=8,
        matrix=_MI210_MATRIX, vector=_MI210_VECTOR,
        note="half of the sheet's 362.1 TFLOP/s and 3276.8 GB/s: each die is a device",
    ),
    Sheet(
        device="Instinct MI250X (one of two dies)", names=(r"MI250X", r"MI250X ?/ ?MI250"), source=_MI250,
        multiprocessors=(110,), memory_gib=64, bandwidth=1638.4, cache_mib=8,
        matrix=halves(191.5, float64=47.85, float32=47.85, int8=191.5), vector={"float64": 23.95, "float32": 23.95},
        note="half of the sheet's 383.0 TFLOP/s and 3276.8 GB/s: each die is a device",
    ),
    Sheet(
        device="Instinct MI300X", names=(r"MI300X( VF)?",), source=_MI300X,
        multiprocessors=(304,), memory_gib=192, bandwidth=5300, cache_mib=256,
        matrix=_MI300X_MATRIX, vector=_MI300X_VECTOR,
    ),
    Sheet(
        device="Instinct MI325X", names=(r"MI325X( VF)?",), source=_MI325X,
        multiprocessors=(304,), memory_gib=256, bandwidth=6000, cache_mib=256,
        matrix=_MI300X_MATRIX, vector=_MI300X_VECTOR,
    ),
    Sheet(
        device="Instinct MI355X", names=(r"MI355X( VF)?",), source=_MI355X,
        multiprocessors=(256,), memory_gib=288, bandwidth=8000, cache_mib=256,
        matrix=halves(2516.6, float64=78.6, float32=157.3, float8=5033.2, int8=5033.2),
        vector={"float64": 78.6, "float32": 157.3},
    ),
)  # fmt: skip
