"""GeForce and TITAN cards, Pascal to Turing.

Turing's tensor cores multiply halves at half their rate where they accumulate in float32, those of TITAN RTX and of
Quadro cards at the whole. Laptops' cards up to the RTX 20 series may have the names of desktop cards ("RTX 2070";
"Super" is a laptop's, "SUPER" a desktop's), as the list of names of NVIDIA's open kernel modules shows: `also` says so.
Clocks, memory and L2 agree with TechPowerUp's database, the only source of L2 outside the white papers.
"""

from __future__ import annotations

from typing import Final

from opanatomy.device.sheets.sheet import Sheet

_COMPARED = "https://www.nvidia.com/en-us/geforce/graphics-cards/compare/"
_TITAN_RTX = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/titan/documents/"
    "titan-rtx-for-creators-us-nvidia-1011126-r6-web.pdf"
)
_TU116 = "https://www.nvidia.com/en-us/geforce/news/geforce-gtx-1660-ti-advanced-shaders-streaming-multiprocessor/"
_TITAN_V = "https://www.nvidia.com/en-us/titan/titan-v/"
_TITAN_XP = "https://www.nvidia.com/en-us/titan/titan-xp/"
_TURING = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/design-visualization/technologies/turing-architecture/"
    "NVIDIA-Turing-Architecture-Whitepaper.pdf"
)
_TURING_POST = "https://developer.nvidia.com/blog/nvidia-turing-architecture-in-depth/"
_FOUNDERS = "the reference card; the Founders Edition has {} MHz"
_LAPTOP = "a laptop's of the same name is slower"
_NO_MATRIX_UNITS = "no matrix units: halves at twice the float32 rate, at most, where they accumulate in float32"

GEFORCE_OLDER: Final = (
    Sheet(
        device="TITAN X (Pascal)", names=(r"TITAN X \(Pascal\)",), source=_COMPARED,
        multiprocessors=(28,), memory_gib=12, bandwidth=480, cache_mib=3,
        matrix={"float64": 0.343, "float32": 11.0, "float16": 11.0}, vector={"float64": 0.343, "float32": 11.0},
    ),
    Sheet(
        device="TITAN Xp", names=(r"TITAN Xp( COLLECTORS EDITION)?",), source=_TITAN_XP,
        multiprocessors=(30,), memory_gib=12, bandwidth=547, cache_mib=3,
        matrix={"float64": 0.38, "float32": 12.1, "float16": 12.1}, vector={"float64": 0.38, "float32": 12.1},
    ),
    Sheet(
        device="GeForce GTX 1070", names=(r"GTX 1070",), source=_COMPARED,
        multiprocessors=(15,), memory_gib=8, bandwidth=256, cache_mib=2,
        matrix={"float64": 0.202, "float32": 6.46, "float16": 6.46}, vector={"float64": 0.202, "float32": 6.46},
    ),
    Sheet(
        device="GeForce GTX 1070 Ti", names=(r"GTX 1070 Ti",), source=_COMPARED,
        multiprocessors=(19,), memory_gib=8, bandwidth=256, cache_mib=2,
        matrix={"float64": 0.256, "float32": 8.19, "float16": 8.19}, vector={"float64": 0.256, "float32": 8.19},
    ),
    Sheet(
        device="GeForce GTX 1080", names=(r"GTX 1080",), source=_COMPARED,
        multiprocessors=(20,), memory_gib=8, bandwidth=320, cache_mib=2,
        matrix={"float64": 0.277, "float32": 8.87, "float16": 8.87}, vector={"float64": 0.277, "float32": 8.87},
        also="later ones have 352 GB/s",
    ),
    Sheet(
        device="GeForce GTX 1080 Ti", names=(r"GTX 1080 Ti",), source=_TURING_POST,
        multiprocessors=(28,), memory_gib=11, bandwidth=484, cache_mib=2.75,
        matrix={"float64": 0.354, "float32": 11.3, "float16": 11.3}, vector={"float64": 0.354, "float32": 11.3},
    ),
    Sheet(
        device="TITAN V", names=(r"TITAN V",), source=_TITAN_V,
        multiprocessors=(80,), memory_gib=12, bandwidth=653, cache_mib=4.5,
        matrix={"float64": 7.45, "float32": 14.9, "float16": 110.0}, vector={"float64": 7.45, "float32": 14.9},
        note="the page's 110 TFLOP/s of halves; 80 x 1.455 GHz x 1024 are 119",
    ),
    Sheet(
        device="GeForce GTX 1650 GDDR5", names=(r"GTX 1650",), source=_COMPARED,
        multiprocessors=(14,), memory_gib=4, bandwidth=128, cache_mib=1,
        matrix={"float64": 0.093, "float32": 2.98, "float16": 5.97}, vector={"float64": 0.093, "float32": 2.98},
        note=_NO_MATRIX_UNITS,
    ),
    Sheet(
        device="GeForce GTX 1650 GDDR6", names=(r"GTX 1650",), source=_COMPARED,
        multiprocessors=(14,), memory_gib=4, bandwidth=192, cache_mib=1,
        matrix={"float64": 0.089, "float32": 2.85, "float16": 5.7}, vector={"float64": 0.089, "float32": 2.85},
        note=_NO_MATRIX_UNITS,
    ),
    Sheet(
        device="GeForce GTX 1650 SUPER", names=(r"GTX 1650 (?-i:SUPER)",), source=_COMPARED,
        multiprocessors=(20,), memory_gib=4, bandwidth=192, cache_mib=1,
        matrix={"float64": 0.138, "float32": 4.42, "float16": 8.83}, vector={"float64": 0.138, "float32": 4.42},
        note=_NO_MATRIX_UNITS,
    ),
    Sheet(
        device="GeForce GTX 1660", names=(r"GTX 1660",), source=_COMPARED,
        multiprocessors=(22,), memory_gib=6, bandwidth=192, cache_mib=1.5,
        matrix={"float64": 0.157, "float32": 5.03, "float16": 10.1}, vector={"float64": 0.157, "float32": 5.03},
        note=_NO_MATRIX_UNITS,
    ),
    Sheet(
        device="GeForce GTX 1660 SUPER", names=(r"GTX 1660 (?-i:SUPER)",), source=_COMPARED,
        multiprocessors=(22,), memory_gib=6, bandwidth=336, cache_mib=1.5,
        matrix={"float64": 0.157, "float32": 5.03, "float16": 10.1}, vector={"float64": 0.157, "float32": 5.03},
        note=_NO_MATRIX_UNITS,
    ),
    Sheet(
        device="GeForce GTX 1660 Ti", names=(r"GTX 1660 Ti",), source=_TU116,
        multiprocessors=(24,), memory_gib=6, bandwidth=288, cache_mib=1.5,
        matrix={"float64": 0.17, "float32": 5.44, "float16": 10.9}, vector={"float64": 0.17, "float32": 5.44},
        note=_NO_MATRIX_UNITS, also=_LAPTOP,
    ),
    Sheet(
        device="GeForce RTX 2060 6 GB", names=(r"RTX 2060",), source=_COMPARED,
        multiprocessors=(30,), memory_gib=6, bandwidth=336, cache_mib=3,
        matrix={"float64": 0.202, "float32": 6.45, "float16": 25.8, "int8": 103.2},
        vector={"float64": 0.202, "float32": 6.45},
        also=_LAPTOP,
    ),
    Sheet(
        device="GeForce RTX 2060 12 GB", names=(r"RTX 2060",), source=_COMPARED,
        multiprocessors=(34,), memory_gib=12, bandwidth=336, cache_mib=3,
        matrix={"float64": 0.224, "float32": 7.18, "float16": 28.7, "int8": 114.9},
        vector={"float64": 0.224, "float32": 7.18},
    ),
    Sheet(
        device="GeForce RTX 2060 SUPER", names=(r"RTX 2060 (?-i:SUPER)",), source=_COMPARED,
        multiprocessors=(34,), memory_gib=8, bandwidth=448, cache_mib=4,
        matrix={"float64": 0.224, "float32": 7.18, "float16": 28.7, "int8": 114.9},
        vector={"float64": 0.224, "float32": 7.18},
    ),
    Sheet(
        device="GeForce RTX 2070", names=(r"RTX 2070",), source=_TURING,
        multiprocessors=(36,), memory_gib=8, bandwidth=448, cache_mib=4,
        matrix={"float64": 0.233, "float32": 7.46, "float16": 29.9, "int8": 119.4},
        vector={"float64": 0.233, "float32": 7.46},
        note=_FOUNDERS.format(1710), also=_LAPTOP,
    ),
    Sheet(
        device="GeForce RTX 2070 SUPER", names=(r"RTX 2070 (?-i:SUPER)",), source=_COMPARED,
        multiprocessors=(40,), memory_gib=8, bandwidth=448, cache_mib=4,
        matrix={"float64": 0.283, "float32": 9.06, "float16": 36.2, "int8": 145.0},
        vector={"float64": 0.283, "float32": 9.06},
    ),
    Sheet(
        device="GeForce RTX 2080", names=(r"RTX 2080",), source=_TURING,
        multiprocessors=(46,), memory_gib=8, bandwidth=448, cache_mib=4,
        matrix={"float64": 0.315, "float32": 10.1, "float16": 40.3, "int8": 161.1},
        vector={"float64": 0.315, "float32": 10.1},
        note=_FOUNDERS.format(1800), also=_LAPTOP,
    ),
    Sheet(
        device="GeForce RTX 2080 SUPER", names=(r"RTX 2080 (?-i:SUPER)",), source=_COMPARED,
        multiprocessors=(48,), memory_gib=8, bandwidth=496, cache_mib=4,
        matrix={"float64": 0.348, "float32": 11.2, "float16": 44.6, "int8": 178.4},
        vector={"float64": 0.348, "float32": 11.2},
    ),
    Sheet(
        device="GeForce RTX 2080 Ti", names=(r"RTX 2080 Ti",), source=_TURING_POST,
        multiprocessors=(68,), memory_gib=11, bandwidth=616, cache_mib=5.5,
        matrix={"float64": 0.42, "float32": 13.4, "float16": 53.8, "int8": 215.2},
        vector={"float64": 0.42, "float32": 13.4},
        note=_FOUNDERS.format(1635),
    ),
    Sheet(
        device="TITAN RTX", names=(r"TITAN RTX",), source=_TITAN_RTX,
        multiprocessors=(72,), memory_gib=24, bandwidth=672, cache_mib=6,
        matrix={"float64": 0.51, "float32": 16.3, "float16": 130.5, "int8": 261.0},
        vector={"float64": 0.51, "float32": 16.3},
    ),
)  # fmt: skip
