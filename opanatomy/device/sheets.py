"""What makers' data sheets say of their devices: dense peaks, never those with structured sparsity.

One entry is what a trace calls one device: half an MI250X, one GPU of a GB200. Where a sheet quotes sparse figures only
(Ada, Hopper, Blackwell) they are halved. Tensor-core figures of half-precision and 8-bit floats are those with float32
accumulation, which torch uses: GeForce cards do half as much of it. Figures follow from multiprocessors x clock x
operations a clock, and tests/test_ceilings.py works them out again; where the sheet disagrees with that, `note` says
so. A real clock may be above the sheet's boost clock, so a GeForce card can pass its sheet by a few percent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A device by its data sheet: peaks in TFLOP/s (`TOP/s` of int8), bandwidth in GB/s, memory in GiB, the last cache
    before the memory in MiB (L2, on MI300 and later the Infinity Cache), `None` where no document at hand says it.

    `names` are the names drivers give it, without maker and brand, as regular expressions of the whole name.
    """

    device: str
    names: tuple[str, ...]
    source: str
    multiprocessors: tuple[int, ...]
    memory_gib: int
    bandwidth: float
    #: Peaks of matrix multiplication by data type, and those of all other arithmetic.
    matrix: dict[str, float] = field(default_factory=dict)
    vector: dict[str, float] = field(default_factory=dict)
    note: str = ""
    cache_mib: int | None = None


def _halves(peak: float, **others: float) -> dict[str, float]:
    return {"float16": peak, "bfloat16": peak, **others}


_V100 = "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
_T4 = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf"
_A10 = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a10/pdf/a10-datasheet.pdf"
_A100 = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
    "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
_L4 = "https://resources.nvidia.com/en-us-gpu-resources/l4-tensor-datasheet"
_L40S = "https://resources.nvidia.com/en-us-l40s/l40s-datasheet-28413"
_GA102 = "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.1.pdf"
_ADA = "https://images.nvidia.com/aem-dam/Solutions/Data-Center/l4/nvidia-ada-gpu-architecture-whitepaper-v2.1.pdf"
_GB202 = "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"
_HOPPER = "https://resources.nvidia.com/en-us-hopper-architecture/nvidia-h100-tensor-c"
_H100 = "https://resources.nvidia.com/en-us-gpu-resources/h100-datasheet-24306"
_H200 = "https://nvdam.widen.net/s/nb5zzzsjdf/hpc-datasheet-sc23-h200-datasheet-3002446"
_BLACKWELL = "https://nvdam.widen.net/s/wwnsxrhm2w/blackwell-datasheet-3384703"
_AMD = "https://www.amd.com/content/dam/amd/en/documents/instinct-"
_MI210 = f"{_AMD}business-docs/product-briefs/instinct-mi210-brochure.pdf"
_MI250 = "https://www.amd.com/system/files/documents/amd-instinct-mi200-datasheet.pdf"
_MI300X = f"{_AMD}tech-docs/data-sheets/amd-instinct-mi300x-data-sheet.pdf"
_MI325X = f"{_AMD}tech-docs/product-briefs/instinct-mi325x-datasheet.pdf"
_MI355X = f"{_AMD}tech-docs/product-briefs/amd-instinct-mi355x-gpu-brochure.pdf"

_V100_SXM2 = {"float64": 7.8, "float32": 15.7, "float16": 125.0}
_A100_MATRIX = _halves(312.0, float64=19.5, float32=19.5, tf32=156.0, int8=624.0)
_A100_VECTOR = {"float64": 9.7, "float32": 19.5}
_H100_SXM_MATRIX = _halves(989.4, float64=66.9, float32=66.9, tf32=494.7, float8=1978.9, int8=1978.9)
_H100_SXM_VECTOR = {"float64": 33.5, "float32": 66.9}
_H100_NVL_MATRIX = _halves(835.5, float64=60.0, float32=60.0, tf32=417.5, float8=1670.5, int8=1670.5)
_H100_NVL_VECTOR = {"float64": 30.0, "float32": 60.0}
_MI210_MATRIX = _halves(181.0, float64=45.3, float32=45.3, int8=181.0)
_MI210_VECTOR = {"float64": 22.6, "float32": 22.6}
_MI300X_MATRIX = _halves(1307.4, float64=163.4, float32=163.4, tf32=653.7, float8=2614.9, int8=2614.9)
_MI300X_VECTOR = {"float64": 81.7, "float32": 163.4}

SHEETS: Final = (
    # ------------------------------------------------------------------------------------------------ Volta, Turing
    Sheet(
        device="V100 SXM2 16 GB", names=(r"V100-SXM2-16GB",), source=_V100,
        multiprocessors=(80,), memory_gib=16, bandwidth=900, cache_mib=6,
        matrix=_V100_SXM2, vector={"float64": 7.8, "float32": 15.7},
    ),
    Sheet(
        device="V100 SXM2 32 GB", names=(r"V100-SXM2-32GB",), source=_V100,
        multiprocessors=(80,), memory_gib=32, bandwidth=900, cache_mib=6,
        matrix=_V100_SXM2, vector={"float64": 7.8, "float32": 15.7},
    ),
    Sheet(
        device="V100 PCIe 16 GB", names=(r"V100-PCIE-16GB",), source=_V100,
        multiprocessors=(80,), memory_gib=16, bandwidth=900, cache_mib=6,
        matrix={"float64": 7.0, "float32": 14.0, "float16": 112.0}, vector={"float64": 7.0, "float32": 14.0},
    ),
    Sheet(
        device="V100 PCIe 32 GB", names=(r"V100-PCIE-32GB",), source=_V100,
        multiprocessors=(80,), memory_gib=32, bandwidth=900, cache_mib=6,
        matrix={"float64": 7.0, "float32": 14.0, "float16": 112.0}, vector={"float64": 7.0, "float32": 14.0},
    ),
    Sheet(
        device="V100S PCIe 32 GB", names=(r"V100S-PCIE-32GB",), source=_V100,
        multiprocessors=(80,), memory_gib=32, bandwidth=1134, cache_mib=6,
        matrix={"float64": 8.2, "float32": 16.4, "float16": 130.0}, vector={"float64": 8.2, "float32": 16.4},
    ),
    Sheet(
        device="T4", names=(r"T4",), source=_T4,
        multiprocessors=(40,), memory_gib=16, bandwidth=320, cache_mib=4,
        matrix={"float32": 8.1, "float16": 65.0, "int8": 130.0}, vector={"float32": 8.1},
        note="the first sheet says 300 GB/s; 256 bit x 10 Gbit/s of the product brief are 320",
    ),
    # ------------------------------------------------------------------------------------------------------- Ampere
    Sheet(
        device="A10", names=(r"A10",), source=_A10,
        multiprocessors=(72,), memory_gib=24, bandwidth=600, cache_mib=6,
        matrix=_halves(125.0, float32=31.2, tf32=62.5, int8=250.0), vector={"float32": 31.2},
    ),
    Sheet(
        device="A100 SXM4 40 GB", names=(r"A100-SXM4?-40GB", r"A100-PG509-200"), source=_A100,
        multiprocessors=(108,), memory_gib=40, bandwidth=1555, cache_mib=40,
        matrix=_A100_MATRIX, vector=_A100_VECTOR,
        note="PG509-200 has the PCI device of the SXM4 40 GB (20B0) in the driver's list",
    ),
    Sheet(
        device="A100 PCIe 40 GB", names=(r"A100-PCIE-40GB",), source=_A100,
        multiprocessors=(108,), memory_gib=40, bandwidth=1555, cache_mib=40,
        matrix=_A100_MATRIX, vector=_A100_VECTOR,
    ),
    Sheet(
        device="A100 SXM4 80 GB", names=(r"A100-SXM4?-80GB",), source=_A100,
        multiprocessors=(108,), memory_gib=80, bandwidth=2039, cache_mib=40,
        matrix=_A100_MATRIX, vector=_A100_VECTOR,
    ),
    Sheet(
        device="A100 PCIe 80 GB", names=(r"A100 80GB PCIe", r"A100-PCIE-80GB"), source=_A100,
        multiprocessors=(108,), memory_gib=80, bandwidth=1935, cache_mib=40,
        matrix=_A100_MATRIX, vector=_A100_VECTOR,
    ),
    Sheet(
        device="GeForce RTX 3090", names=(r"RTX 3090",), source=_GA102,
        multiprocessors=(82,), memory_gib=24, bandwidth=936, cache_mib=6,
        matrix=_halves(71.0, float32=35.6, tf32=35.6, int8=284.0), vector={"float32": 35.6},
    ),
    # ---------------------------------------------------------------------------------------------------------- Ada
    Sheet(
        device="L4", names=(r"L4",), source=_L4,
        multiprocessors=(58,), memory_gib=24, bandwidth=300, cache_mib=48,
        matrix=_halves(121.0, float32=30.3, tf32=60.0, float8=242.5, int8=242.5), vector={"float32": 30.3},
    ),
    Sheet(
        device="L40S", names=(r"L40S",), source=_L40S,
        multiprocessors=(142,), memory_gib=48, bandwidth=864,
        matrix=_halves(366.0, float32=91.6, tf32=183.0, float8=733.0, int8=733.0), vector={"float32": 91.6},
        note="the sheet has 362.05 dense beside 733 sparse for halves; 142 x 2.52 GHz x 1024 are 366",
    ),
    Sheet(
        device="GeForce RTX 4090", names=(r"RTX 4090",), source=_ADA,
        multiprocessors=(128,), memory_gib=24, bandwidth=1008, cache_mib=72,
        matrix=_halves(165.2, float32=82.6, tf32=82.6, float8=330.3, int8=660.6), vector={"float32": 82.6},
    ),
    # ------------------------------------------------------------------------------------------------------- Hopper
    Sheet(
        device="H100 PCIe", names=(r"H100 PCIe", r"H100"), source=_HOPPER,
        multiprocessors=(114,), memory_gib=80, bandwidth=2039, cache_mib=50,
        matrix=_halves(756.4, float64=51.2, float32=51.2, tf32=378.0, float8=1513.0, int8=1513.0),
        vector={"float64": 25.6, "float32": 51.2},
        note="the sheet rounds the bandwidth to 2 TB/s",
    ),
    Sheet(
        device="H100 SXM", names=(r"H100 80GB HBM3", r"H100 SXM5( 80GB)?", r"H100"), source=_H100,
        multiprocessors=(132,), memory_gib=80, bandwidth=3350, cache_mib=50,
        matrix=_H100_SXM_MATRIX, vector=_H100_SXM_VECTOR,
    ),
    Sheet(
        device="H100 NVL", names=(r"H100 NVL",), source=_H100,
        multiprocessors=(132,), memory_gib=94, bandwidth=3900,
        matrix=_H100_NVL_MATRIX, vector=_H100_NVL_VECTOR,
        note="one card of a pair",
    ),
    Sheet(
        device="H200 SXM", names=(r"H200", r"H200 SXM"), source=_H200,
        multiprocessors=(132,), memory_gib=141, bandwidth=4800,
        matrix=_H100_SXM_MATRIX, vector=_H100_SXM_VECTOR,
    ),
    # ---------------------------------------------------------------------------------------------------- Blackwell
    Sheet(
        device="B200", names=(r"B200",), source=_BLACKWELL,
        multiprocessors=(148,), memory_gib=180, bandwidth=7700, cache_mib=126,
        matrix=_halves(2250.0, float64=37.0, float32=75.0, tf32=1125.0, float8=4500.0, int8=4500.0),
        vector={"float64": 37.0, "float32": 75.0},
        note="as in HGX B200; the sheet rounds the 2.25 sparse PFLOP/s of tf32 to 2.2; first sheets said 8 TB/s",
    ),
    Sheet(
        device="GB200", names=(r"GB200",), source=_BLACKWELL,
        multiprocessors=(148, 152), memory_gib=186, bandwidth=8000,
        matrix=_halves(2500.0, float64=40.0, float32=80.0, tf32=1250.0, float8=5000.0, int8=5000.0),
        vector={"float64": 40.0, "float32": 80.0},
        note="one of the superchip's two GPUs",
    ),
    Sheet(
        device="GeForce RTX 5090", names=(r"RTX 5090",), source=_GB202,
        multiprocessors=(170,), memory_gib=32, bandwidth=1792, cache_mib=96,
        matrix=_halves(209.5, float32=104.8, tf32=104.8, float8=419.0, int8=838.0), vector={"float32": 104.8},
    ),
    # ---------------------------------------------------------------------------------------------------- AMD CDNA
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
        matrix=_halves(191.5, float64=47.85, float32=47.85, int8=191.5), vector={"float64": 23.95, "float32": 23.95},
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
        matrix=_halves(2516.6, float64=78.6, float32=157.3, float8=5033.2, int8=5033.2),
        vector={"float64": 78.6, "float32": 157.3},
    ),
)  # fmt: skip
