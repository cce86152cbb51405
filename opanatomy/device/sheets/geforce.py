"""GeForce cards, Ampere to Blackwell.

Their tensor cores multiply halves and 8-bit floats at half the rate where they accumulate in float32, and tf32 at the
rate of float32 vectors: the white papers' tables, "with FP32 Accumulate", the first of each pair (dense). Cards that
no white paper has follow from the page's clock and the architecture's width, and agree with the page's AI TOPS. Clocks,
memory and L2 agree with TechPowerUp's database, the only source of L2 outside the white papers.
"""

from __future__ import annotations

from typing import Final

from opanatomy.device.sheets.sheet import Sheet, halves

_COMPARED = "https://www.nvidia.com/en-us/geforce/graphics-cards/compare/"
_GA102 = "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.1.pdf"
_ADA = "https://images.nvidia.com/aem-dam/Solutions/Data-Center/l4/nvidia-ada-gpu-architecture-whitepaper-v2.1.pdf"
_GB202 = "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"
_5090_D = "https://www.nvidia.cn/geforce/news/rtx-50-series-graphics-cards-gpu-laptop-announcements/"
_5090_D_V2 = "https://www.nvidia.cn/geforce/graphics-cards/50-series/rtx-5090-d-v2/"
_SLOWED = "2375 AI TOPS against an RTX 5090's 3352: no document says which products are slowed, which are left out"

GEFORCE: Final = (
    Sheet(
        device="GeForce RTX 3050 6 GB", names=(r"RTX 3050",), source=_COMPARED,
        multiprocessors=(18,), memory_gib=6, bandwidth=168, cache_mib=2,
        matrix=halves(13.5, float64=0.106, float32=6.77, tf32=6.77, int8=54.2),
        vector={"float64": 0.106, "float32": 6.77},
    ),
    Sheet(
        device="GeForce RTX 3050 8 GB", names=(r"RTX 3050",), source=_COMPARED,
        multiprocessors=(20,), memory_gib=8, bandwidth=224, cache_mib=2,
        matrix=halves(18.2, float64=0.142, float32=9.1, tf32=9.1, int8=72.8), vector={"float64": 0.142, "float32": 9.1},
    ),
    Sheet(
        device="GeForce RTX 3060 8 GB", names=(r"RTX 3060",), source=_COMPARED,
        multiprocessors=(28,), memory_gib=8, bandwidth=240, cache_mib=3,
        matrix=halves(25.5, float64=0.199, float32=12.7, tf32=12.7, int8=101.9),
        vector={"float64": 0.199, "float32": 12.7},
    ),
    Sheet(
        device="GeForce RTX 3060 12 GB", names=(r"RTX 3060",), source=_COMPARED,
        multiprocessors=(28,), memory_gib=12, bandwidth=360, cache_mib=3,
        matrix=halves(25.5, float64=0.199, float32=12.7, tf32=12.7, int8=101.9),
        vector={"float64": 0.199, "float32": 12.7},
    ),
    Sheet(
        device="GeForce RTX 3060 Ti GDDR6", names=(r"RTX 3060 Ti",), source=_COMPARED,
        multiprocessors=(38,), memory_gib=8, bandwidth=448, cache_mib=4,
        matrix=halves(32.4, float64=0.253, float32=16.2, tf32=16.2, int8=129.6),
        vector={"float64": 0.253, "float32": 16.2},
    ),
    Sheet(
        device="GeForce RTX 3060 Ti GDDR6X", names=(r"RTX 3060 Ti",), source=_COMPARED,
        multiprocessors=(38,), memory_gib=8, bandwidth=608, cache_mib=4,
        matrix=halves(32.4, float64=0.253, float32=16.2, tf32=16.2, int8=129.6),
        vector={"float64": 0.253, "float32": 16.2},
    ),
    Sheet(
        device="GeForce RTX 3070", names=(r"RTX 3070",), source=_GA102,
        multiprocessors=(46,), memory_gib=8, bandwidth=448, cache_mib=4,
        matrix=halves(40.6, float64=0.317, float32=20.3, tf32=20.3, int8=162.6),
        vector={"float64": 0.317, "float32": 20.3},
    ),
    Sheet(
        device="GeForce RTX 3070 Ti", names=(r"RTX 3070 Ti",), source=_COMPARED,
        multiprocessors=(48,), memory_gib=8, bandwidth=608, cache_mib=4,
        matrix=halves(43.5, float64=0.34, float32=21.7, tf32=21.7, int8=174.0),
        vector={"float64": 0.34, "float32": 21.7},
    ),
    Sheet(
        device="GeForce RTX 3080 10 GB", names=(r"RTX 3080",), source=_GA102,
        multiprocessors=(68,), memory_gib=10, bandwidth=760, cache_mib=5,
        matrix=halves(59.5, float64=0.465, float32=29.8, tf32=29.8, int8=238.0),
        vector={"float64": 0.465, "float32": 29.8},
    ),
    Sheet(
        device="GeForce RTX 3080 12 GB", names=(r"RTX 3080",), source=_COMPARED,
        multiprocessors=(70,), memory_gib=12, bandwidth=912, cache_mib=6,
        matrix=halves(61.3, float64=0.479, float32=30.6, tf32=30.6, int8=245.1),
        vector={"float64": 0.479, "float32": 30.6},
    ),
    Sheet(
        device="GeForce RTX 3080 Ti", names=(r"RTX 3080 Ti",), source=_COMPARED,
        multiprocessors=(80,), memory_gib=12, bandwidth=912, cache_mib=6,
        matrix=halves(68.2, float64=0.533, float32=34.1, tf32=34.1, int8=272.8),
        vector={"float64": 0.533, "float32": 34.1},
    ),
    Sheet(
        device="GeForce RTX 3090", names=(r"RTX 3090",), source=_GA102,
        multiprocessors=(82,), memory_gib=24, bandwidth=936, cache_mib=6,
        matrix=halves(71.0, float64=0.556, float32=35.6, tf32=35.6, int8=284.0),
        vector={"float64": 0.556, "float32": 35.6},
    ),
    Sheet(
        device="GeForce RTX 3090 Ti", names=(r"RTX 3090 Ti",), source=_ADA,
        multiprocessors=(84,), memory_gib=24, bandwidth=1008, cache_mib=6,
        matrix=halves(80.0, float64=0.625, float32=40.0, tf32=40.0, int8=320.0),
        vector={"float64": 0.625, "float32": 40.0},
    ),
    Sheet(
        device="GeForce RTX 4060", names=(r"RTX 4060",), source=_COMPARED,
        multiprocessors=(24,), memory_gib=8, bandwidth=272, cache_mib=24,
        matrix=halves(30.2, float64=0.236, float32=15.1, tf32=15.1, float8=60.5, int8=120.9),
        vector={"float64": 0.236, "float32": 15.1},
    ),
    Sheet(
        device="GeForce RTX 4060 Ti 8 GB", names=(r"RTX 4060 Ti",), source=_COMPARED,
        multiprocessors=(34,), memory_gib=8, bandwidth=288, cache_mib=32,
        matrix=halves(44.1, float64=0.345, float32=22.1, tf32=22.1, float8=88.3, int8=176.5),
        vector={"float64": 0.345, "float32": 22.1},
    ),
    Sheet(
        device="GeForce RTX 4060 Ti 16 GB", names=(r"RTX 4060 Ti",), source=_COMPARED,
        multiprocessors=(34,), memory_gib=16, bandwidth=288, cache_mib=32,
        matrix=halves(44.1, float64=0.345, float32=22.1, tf32=22.1, float8=88.3, int8=176.5),
        vector={"float64": 0.345, "float32": 22.1},
    ),
    Sheet(
        device="GeForce RTX 4070", names=(r"RTX 4070",), source=_COMPARED,
        multiprocessors=(46,), memory_gib=12, bandwidth=504, cache_mib=36,
        matrix=halves(58.3, float64=0.455, float32=29.1, tf32=29.1, float8=116.6, int8=233.2),
        vector={"float64": 0.455, "float32": 29.1},
        also="later ones, with GDDR6, have 480 GB/s",
    ),
    Sheet(
        device="GeForce RTX 4070 SUPER", names=(r"RTX 4070 (?-i:SUPER)",), source=_COMPARED,
        multiprocessors=(56,), memory_gib=12, bandwidth=504, cache_mib=48,
        matrix=halves(71.0, float64=0.554, float32=35.5, tf32=35.5, float8=141.9, int8=283.9),
        vector={"float64": 0.554, "float32": 35.5},
    ),
    Sheet(
        device="GeForce RTX 4070 Ti", names=(r"RTX 4070 Ti",), source=_ADA,
        multiprocessors=(60,), memory_gib=12, bandwidth=504, cache_mib=48,
        matrix=halves(80.2, float64=0.626, float32=40.1, tf32=40.1, float8=160.4, int8=320.7),
        vector={"float64": 0.626, "float32": 40.1},
    ),
    Sheet(
        device="GeForce RTX 4070 Ti SUPER", names=(r"RTX 4070 Ti (?-i:SUPER)",), source=_COMPARED,
        multiprocessors=(66,), memory_gib=16, bandwidth=672, cache_mib=48,
        matrix=halves(88.2, float64=0.689, float32=44.1, tf32=44.1, float8=176.4, int8=352.8),
        vector={"float64": 0.689, "float32": 44.1},
    ),
    Sheet(
        device="GeForce RTX 4080", names=(r"RTX 4080",), source=_ADA,
        multiprocessors=(76,), memory_gib=16, bandwidth=717, cache_mib=64,
        matrix=halves(97.5, float64=0.762, float32=48.7, tf32=48.7, float8=194.9, int8=389.9),
        vector={"float64": 0.762, "float32": 48.7},
    ),
    Sheet(
        device="GeForce RTX 4080 SUPER", names=(r"RTX 4080 (?-i:SUPER)",), source=_COMPARED,
        multiprocessors=(80,), memory_gib=16, bandwidth=736, cache_mib=64,
        matrix=halves(104.4, float64=0.816, float32=52.2, tf32=52.2, float8=208.9, int8=417.8),
        vector={"float64": 0.816, "float32": 52.2},
    ),
    Sheet(
        device="GeForce RTX 4090", names=(r"RTX 4090",), source=_ADA,
        multiprocessors=(128,), memory_gib=24, bandwidth=1008, cache_mib=72,
        matrix=halves(165.2, float64=1.29, float32=82.6, tf32=82.6, float8=330.3, int8=660.6),
        vector={"float64": 1.29, "float32": 82.6},
    ),
    Sheet(
        device="GeForce RTX 4090 D", names=(r"RTX 4090 D",), source=_COMPARED,
        multiprocessors=(114,), memory_gib=24, bandwidth=1008, cache_mib=72,
        matrix=halves(147.1, float64=1.15, float32=73.5, tf32=73.5, float8=294.2, int8=588.3),
        vector={"float64": 1.15, "float32": 73.5},
    ),
    Sheet(
        device="GeForce RTX 5050", names=(r"RTX 5050",), source=_COMPARED,
        multiprocessors=(20,), memory_gib=8, bandwidth=320, cache_mib=24,
        matrix=halves(26.3, float64=0.206, float32=13.2, tf32=13.2, float8=52.7, int8=105.3),
        vector={"float64": 0.206, "float32": 13.2},
    ),
    Sheet(
        device="GeForce RTX 5060", names=(r"RTX 5060",), source=_COMPARED,
        multiprocessors=(30,), memory_gib=8, bandwidth=448, cache_mib=32,
        matrix=halves(38.4, float64=0.3, float32=19.2, tf32=19.2, float8=76.7, int8=153.4),
        vector={"float64": 0.3, "float32": 19.2},
    ),
    Sheet(
        device="GeForce RTX 5060 Ti 8 GB", names=(r"RTX 5060 Ti",), source=_COMPARED,
        multiprocessors=(36,), memory_gib=8, bandwidth=448, cache_mib=32,
        matrix=halves(47.4, float64=0.37, float32=23.7, tf32=23.7, float8=94.8, int8=189.6),
        vector={"float64": 0.37, "float32": 23.7},
    ),
    Sheet(
        device="GeForce RTX 5060 Ti 16 GB", names=(r"RTX 5060 Ti",), source=_COMPARED,
        multiprocessors=(36,), memory_gib=16, bandwidth=448, cache_mib=32,
        matrix=halves(47.4, float64=0.37, float32=23.7, tf32=23.7, float8=94.8, int8=189.6),
        vector={"float64": 0.37, "float32": 23.7},
    ),
    Sheet(
        device="GeForce RTX 5070", names=(r"RTX 5070",), source=_GB202,
        multiprocessors=(48,), memory_gib=12, bandwidth=672, cache_mib=48,
        matrix=halves(61.7, float64=0.482, float32=30.9, tf32=30.9, float8=123.5, int8=246.9),
        vector={"float64": 0.482, "float32": 30.9},
    ),
    Sheet(
        device="GeForce RTX 5070 Ti", names=(r"RTX 5070 Ti",), source=_GB202,
        multiprocessors=(70,), memory_gib=16, bandwidth=896,
        matrix=halves(87.9, float64=0.687, float32=43.9, tf32=43.9, float8=175.8, int8=351.5),
        vector={"float64": 0.687, "float32": 43.9},
        note="sources disagree about L2, 48 or 64 MiB, which is left out",
    ),
    Sheet(
        device="GeForce RTX 5080", names=(r"RTX 5080",), source=_GB202,
        multiprocessors=(84,), memory_gib=16, bandwidth=960, cache_mib=64,
        matrix=halves(112.6, float64=0.879, float32=56.3, tf32=56.3, float8=225.1, int8=450.2),
        vector={"float64": 0.879, "float32": 56.3},
    ),
    Sheet(
        device="GeForce RTX 5090", names=(r"RTX 5090",), source=_GB202,
        multiprocessors=(170,), memory_gib=32, bandwidth=1792, cache_mib=96,
        matrix=halves(209.5, float64=1.64, float32=104.8, tf32=104.8, float8=419.0, int8=838.0),
        vector={"float64": 1.64, "float32": 104.8},
    ),
    Sheet(
        device="GeForce RTX 5090 D", names=(r"RTX 5090 D",), source=_5090_D,
        multiprocessors=(170,), memory_gib=32, bandwidth=1792, cache_mib=96,
        matrix={"float64": 1.64, "float32": 104.8}, vector={"float64": 1.64, "float32": 104.8},
        note=_SLOWED,
    ),
    Sheet(
        device="GeForce RTX 5090 D v2", names=(r"RTX 5090 D v2",), source=_5090_D_V2,
        multiprocessors=(170,), memory_gib=24, bandwidth=1344, cache_mib=96,
        matrix={"float64": 1.64, "float32": 104.8}, vector={"float64": 1.64, "float32": 104.8},
        note=_SLOWED,
    ),
)  # fmt: skip
