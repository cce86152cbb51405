"""AMD Instinct.

`partitions` are the compute modes: an MI300X (SPX) may be two devices (DPX), four (QPX) or eight (CPX), an MI300A three
(TPX) or six, each with its share of the compute units (AMD's GPU partitioning overviews,
https://instinct.docs.amd.com/projects/amdgpu-docs/en/latest/gpu-partitioning/index.html).
"""

from __future__ import annotations

from typing import Final

from opanatomy.device.sheets.sheet import Sheet, halves

_AMD = "https://www.amd.com/content/dam/amd/en/documents/instinct-"
_MI50 = f"{_AMD}business-docs/specs/radeon-instinct-mi50-data-sheet.pdf"
_MI60 = "https://rocm.docs.amd.com/en/latest/reference/gpu-arch-specs.html"
_MI100 = f"{_AMD}business-docs/product-briefs/instinct-mi100-brochure.pdf"
_MI210 = f"{_AMD}business-docs/product-briefs/instinct-mi210-brochure.pdf"
_MI250 = "https://www.amd.com/system/files/documents/amd-instinct-mi200-datasheet.pdf"
_MI300X = f"{_AMD}tech-docs/data-sheets/amd-instinct-mi300x-data-sheet.pdf"
_MI300A = f"{_AMD}tech-docs/data-sheets/amd-instinct-mi300a-data-sheet.pdf"
_MI325X = f"{_AMD}tech-docs/product-briefs/instinct-mi325x-datasheet.pdf"
_MI350X = f"{_AMD}tech-docs/product-briefs/amd-instinct-mi350x-gpu-brochure.pdf"
_MI355X = f"{_AMD}tech-docs/product-briefs/amd-instinct-mi355x-gpu-brochure.pdf"
_MI50_MATRIX = {"float64": 6.6, "float32": 13.3, "float16": 26.5, "int8": 53.0}
_MI50_NOTE = "the announcement had 26.8 TFLOP/s of halves; 60 x 1.725 GHz x 256 are 26.5; no matrix units"
_MI210_MATRIX = halves(181.0, float64=45.3, float32=45.3, int8=181.0)
_MI210_VECTOR = {"float64": 22.6, "float32": 22.6}
_MI300X_MATRIX = halves(1307.4, float64=163.4, float32=163.4, tf32=653.7, float8=2614.9, int8=2614.9)
_MI300X_VECTOR = {"float64": 81.7, "float32": 163.4}

AMD: Final = (
    Sheet(
        device="Instinct MI50 16 GB", names=(r"(Radeon Instinct )?MI50( 16GB)?", r"MI60 ?/ ?MI50"), source=_MI50,
        multiprocessors=(60,), memory_gib=16, bandwidth=1024, cache_mib=4,
        matrix=_MI50_MATRIX, vector={"float64": 6.6, "float32": 13.3}, note=_MI50_NOTE,
    ),
    Sheet(
        device="Instinct MI50 32 GB", names=(r"(Radeon Instinct )?MI50( 32GB)?", r"MI60 ?/ ?MI50"), source=_MI50,
        multiprocessors=(60,), memory_gib=32, bandwidth=1024, cache_mib=4,
        matrix=_MI50_MATRIX, vector={"float64": 6.6, "float32": 13.3}, note=_MI50_NOTE,
    ),
    Sheet(
        device="Instinct MI60", names=(r"(Radeon Instinct )?MI60", r"MI60 ?/ ?MI50"), source=_MI60,
        multiprocessors=(64,), memory_gib=32, bandwidth=1024, cache_mib=4,
        matrix={"float64": 7.4, "float32": 14.7, "float16": 29.5, "int8": 59.0},
        vector={"float64": 7.4, "float32": 14.7},
        note="units, memory and L2 by ROCm's table, the rates as announced; no matrix units",
    ),
    Sheet(
        device="Instinct MI100", names=(r"MI100",), source=_MI100,
        multiprocessors=(120,), memory_gib=32, bandwidth=1228.8, cache_mib=8,
        matrix={"float64": 11.5, "float32": 46.1, "float16": 184.6, "bfloat16": 92.3, "int8": 184.6},
        vector={"float64": 11.5, "float32": 23.1},
        note="bfloat16 at half of the float16 rate",
    ),
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
        device="Instinct MI300A", names=(r"MI300A",), source=_MI300A,
        multiprocessors=(228,), memory_gib=128, bandwidth=5300, cache_mib=256,
        matrix=halves(980.6, float64=122.6, float32=122.6, tf32=490.3, float8=1961.2, int8=1961.2),
        vector={"float64": 61.3, "float32": 122.6}, partitions=(3, 6),
    ),
    Sheet(
        device="Instinct MI300X", names=(r"MI300X( VF| OAM)?",), source=_MI300X,
        multiprocessors=(304,), memory_gib=192, bandwidth=5300, cache_mib=256,
        matrix=_MI300X_MATRIX, vector=_MI300X_VECTOR, partitions=(2, 4, 8),
    ),
    Sheet(
        device="Instinct MI325X", names=(r"MI325X( VF)?",), source=_MI325X,
        multiprocessors=(304,), memory_gib=256, bandwidth=6000, cache_mib=256,
        matrix=_MI300X_MATRIX, vector=_MI300X_VECTOR, partitions=(2, 4, 8),
        note="the sheet rounds the bandwidth: 8192 bit x 6 Gbit/s are 6.14 TB/s",
    ),
    Sheet(
        device="Instinct MI350X", names=(r"MI350X( VF)?",), source=_MI350X,
        multiprocessors=(256,), memory_gib=288, bandwidth=8000, cache_mib=256,
        matrix=halves(2309.6, float64=72.1, float32=144.2, float8=4614.0, int8=4614.0),
        vector={"float64": 72.1, "float32": 144.2}, partitions=(2, 4, 8),
        note="256 x 2.2 GHz x 4096 are 2306.9; the sheet rounds the bandwidth: 8192 bit x 8 Gbit/s are 8.19 TB/s",
    ),
    Sheet(
        device="Instinct MI355X", names=(r"MI355X( VF)?",), source=_MI355X,
        multiprocessors=(256,), memory_gib=288, bandwidth=8000, cache_mib=256,
        matrix=halves(2516.6, float64=78.6, float32=157.3, float8=5033.2, int8=5033.2),
        vector={"float64": 78.6, "float32": 157.3}, partitions=(2, 4, 8),
        note="the sheet rounds the bandwidth: 8192 bit x 8 Gbit/s are 8.19 TB/s",
    ),
)  # fmt: skip
