"""NVIDIA cards for workstations, Volta to Blackwell.

Their tensor cores accumulate in float32 at the whole rate. Sheets quote sparse figures: of halves (Ampere), of 8-bit
floats (Ada), of 4-bit floats ("AI TOPS", Blackwell), which are 2, 4 and 8 times those of dense halves. Clocks, memory
and L2 agree with TechPowerUp's database where `note` does not say otherwise; it is the only source of L2 outside the
white papers.
"""

from __future__ import annotations

from typing import Final

from opanatomy.device.sheets.sheet import Mig, Sheet, halves

_LITERATURE = "https://www.nvidia.com/content/dam/en-zz/Solutions/design-visualization/quadro-product-literature/"
_PRODUCTS = "https://www.nvidia.com/content/dam/en-zz/Solutions/products/workstations/"
_DESKTOPS = "https://www.nvidia.com/en-us/products/workstations/professional-desktop-gpus/"
_GV100 = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/design-visualization/productspage/quadro/quadro-desktop/"
    "quadro-volta-gv100-data-sheet-us-nvidia-704619-r3-web.pdf"
)
_TURING = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/design-visualization/technologies/turing-architecture/"
    "NVIDIA-Turing-Architecture-Whitepaper.pdf"
)
_RTX_4000 = _LITERATURE + "quadro-rtx-4000-datasheet.pdf"
_RTX_5000 = _LITERATURE + "quadro-rtx-5000-data-sheet-us-nvidia-704120-r4-web.pdf"
_RTX_6000 = _LITERATURE + "quadro-rtx-6000-us-nvidia-704093-r4-web.pdf"
_A2000 = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/design-visualization/rtx-a2000/nvidia-rtx-a2000-datasheet.pdf"
)
_A4000 = "https://www.nvidia.com/content/dam/en-zz/Solutions/gtcs21/rtx-a4000/nvidia-rtx-a4000-datasheet.pdf"
_A5000 = _PRODUCTS + "nvidia-rtx-a5000-datasheet.pdf"
_A6000 = _PRODUCTS + "nvidia-rtx-a6000-datasheet.pdf"
_AMPERE = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/gtcs22/design-visualization/quadro-product-literature/"
    "rtx-6000-l40-linecard-nvidia-us-2653097-r7-web.pdf"
)
_6000_ADA = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/design-visualization/rtx-6000/"
    "proviz-print-rtx6000-datasheet-web-2504660.pdf"
)
_PRO = _LITERATURE + "pdf/NVIDIA-RTX-Blackwell-PRO-GPU-Architecture-v1_1.pdf"
_PRO_SERVER = "https://www.nvidia.com/en-us/data-center/rtx-pro-6000-blackwell-server-edition/"
_PRO_2000 = (
    _PRODUCTS
    + "professional-desktop-gpus/rtx-pro-2000/workstation-datasheet-blackwell-rtx-pro-2000-nvidia-us-4016661.pdf"
)
_PRO_4000 = _DESKTOPS + "rtx-pro-4000/"
_PRO_4500 = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/data-center/rtx-pro-4500-blackwell/"
    "workstation-datasheet-blackwell-rtx-pro-4500-we-nvidia-us-5108623-web.pdf"
)
_PRO_5000 = (
    _PRODUCTS
    + "professional-desktop-gpus/rtx-pro-5000-blackwell/workstation-datasheet-blackwell-rtx-pro-5000-5488550-nvidia.pdf"
)
_LAPTOP = "a laptop's of the same name is slower"
_PASSIVE = "the passive one has 119.4 TFLOP/s of halves and 624 GB/s"
_FIRST_5000 = "2.29 GHz by the sheet's 2064 AI TOPS, which rounds float32 to 65; listings have 2.377 GHz (66.9)"
#: Numbers of instances as the MIG user guide has them; no document has the multiprocessors: the trace has to say them.
_MIG_4 = Mig(compute=4, memory=4, profiles={(1, 1): None, (2, 2): None, (4, 4): None})
_MIG_2 = Mig(compute=2, memory=2, profiles={(1, 1): None, (2, 2): None})

WORKSTATION: Final = (
    Sheet(
        device="Quadro GV100", names=(r"Quadro GV100",), source=_GV100,
        multiprocessors=(80,), memory_gib=32, bandwidth=870, cache_mib=6,
        matrix={"float64": 7.4, "float32": 14.8, "float16": 118.5}, vector={"float64": 7.4, "float32": 14.8},
        note="by the sheet's figures; listings have a clock of 1.627 GHz (133 TFLOP/s of halves)",
    ),
    Sheet(
        device="Quadro RTX 4000", names=(r"Quadro RTX 4000",), source=_RTX_4000,
        multiprocessors=(36,), memory_gib=8, bandwidth=416, cache_mib=4,
        matrix={"float64": 0.222, "float32": 7.12, "float16": 57.0, "int8": 113.9},
        vector={"float64": 0.222, "float32": 7.12},
    ),
    Sheet(
        device="Quadro RTX 5000", names=(r"Quadro RTX 5000",), source=_RTX_5000,
        multiprocessors=(48,), memory_gib=16, bandwidth=448, cache_mib=4,
        matrix={"float64": 0.348, "float32": 11.2, "float16": 89.2, "int8": 178.4},
        vector={"float64": 0.348, "float32": 11.2},
        also=_LAPTOP,
    ),
    Sheet(
        device="Quadro RTX 6000", names=(r"Quadro RTX 6000",), source=_RTX_6000,
        multiprocessors=(72,), memory_gib=24, bandwidth=672, cache_mib=6,
        matrix={"float64": 0.51, "float32": 16.3, "float16": 130.5, "int8": 261.0},
        vector={"float64": 0.51, "float32": 16.3},
        also=_PASSIVE,
    ),
    Sheet(
        device="Quadro RTX 8000", names=(r"Quadro RTX 8000",), source=_TURING,
        multiprocessors=(72,), memory_gib=48, bandwidth=672, cache_mib=6,
        matrix={"float64": 0.51, "float32": 16.3, "float16": 130.5, "int8": 261.0},
        vector={"float64": 0.51, "float32": 16.3},
        also=_PASSIVE,
    ),
    Sheet(
        device="RTX A2000 6 GB", names=(r"RTX A2000",), source=_A2000,
        multiprocessors=(26,), memory_gib=6, bandwidth=288, cache_mib=3,
        matrix=halves(31.9, float64=0.125, float32=7.99, tf32=16.0, int8=63.9),
        vector={"float64": 0.125, "float32": 7.99},
    ),
    Sheet(
        device="RTX A2000 12 GB", names=(r"RTX A2000 12GB",), source=_A2000,
        multiprocessors=(26,), memory_gib=12, bandwidth=288, cache_mib=3,
        matrix=halves(31.9, float64=0.125, float32=7.99, tf32=16.0, int8=63.9),
        vector={"float64": 0.125, "float32": 7.99},
    ),
    Sheet(
        device="RTX A4000", names=(r"RTX A4000",), source=_A4000,
        multiprocessors=(48,), memory_gib=16, bandwidth=448, cache_mib=4,
        matrix=halves(76.7, float64=0.3, float32=19.2, tf32=38.3, int8=153.4), vector={"float64": 0.3, "float32": 19.2},
    ),
    Sheet(
        device="RTX A4500", names=(r"RTX A4500",), source=_AMPERE,
        multiprocessors=(56,), memory_gib=20, bandwidth=640, cache_mib=6,
        matrix=halves(94.6, float64=0.37, float32=23.7, tf32=47.3, int8=189.2),
        vector={"float64": 0.37, "float32": 23.7},
    ),
    Sheet(
        device="RTX A5000", names=(r"RTX A5000",), source=_A5000,
        multiprocessors=(64,), memory_gib=24, bandwidth=768, cache_mib=6,
        matrix=halves(111.1, float64=0.434, float32=27.8, tf32=55.5, int8=222.2),
        vector={"float64": 0.434, "float32": 27.8},
    ),
    Sheet(
        device="RTX A5500", names=(r"RTX A5500",), source=_AMPERE,
        multiprocessors=(80,), memory_gib=24, bandwidth=768, cache_mib=6,
        matrix=halves(136.4, float64=0.533, float32=34.1, tf32=68.2, int8=272.8),
        vector={"float64": 0.533, "float32": 34.1},
        note="by TechPowerUp's clock; another listing has 1.695 GHz (34.7 TFLOP/s)",
    ),
    Sheet(
        device="RTX A6000", names=(r"RTX A6000",), source=_A6000,
        multiprocessors=(84,), memory_gib=48, bandwidth=768, cache_mib=6,
        matrix=halves(154.8, float64=0.605, float32=38.7, tf32=77.4, int8=309.7),
        vector={"float64": 0.605, "float32": 38.7},
    ),
    Sheet(
        device="RTX 2000 Ada Generation", names=(r"RTX 2000 Ada Generation",), source=_DESKTOPS,
        multiprocessors=(22,), memory_gib=16, bandwidth=224, cache_mib=12,
        matrix=halves(48.0, float64=0.187, float32=12.0, tf32=24.0, float8=96.0, int8=96.0),
        vector={"float64": 0.187, "float32": 12.0},
        note="listings have 256 GB/s",
    ),
    Sheet(
        device="RTX 4000 SFF Ada Generation", names=(r"RTX 4000 SFF Ada Generation",), source=_DESKTOPS,
        multiprocessors=(48,), memory_gib=20, bandwidth=280, cache_mib=48,
        matrix=halves(76.7, float64=0.3, float32=19.2, tf32=38.3, float8=153.4, int8=153.4),
        vector={"float64": 0.3, "float32": 19.2},
    ),
    Sheet(
        device="RTX 4000 Ada Generation", names=(r"RTX 4000 Ada Generation",), source=_DESKTOPS,
        multiprocessors=(48,), memory_gib=20, bandwidth=360, cache_mib=48,
        matrix=halves(106.9, float64=0.418, float32=26.7, tf32=53.5, float8=213.8, int8=213.8),
        vector={"float64": 0.418, "float32": 26.7},
    ),
    Sheet(
        device="RTX 4500 Ada Generation", names=(r"RTX 4500 Ada Generation",), source=_DESKTOPS,
        multiprocessors=(60,), memory_gib=24, bandwidth=432, cache_mib=48,
        matrix=halves(158.5, float64=0.619, float32=39.6, tf32=79.3, float8=317.0, int8=317.0),
        vector={"float64": 0.619, "float32": 39.6},
    ),
    Sheet(
        device="RTX 5000 Ada Generation", names=(r"RTX 5000 Ada Generation",), source=_DESKTOPS,
        multiprocessors=(100,), memory_gib=32, bandwidth=576, cache_mib=72,
        matrix=halves(261.1, float64=1.02, float32=65.3, tf32=130.6, float8=522.2, int8=522.2),
        vector={"float64": 1.02, "float32": 65.3},
    ),
    Sheet(
        device="RTX 5880 Ada Generation", names=(r"RTX 5880 Ada Generation",), source=_DESKTOPS,
        multiprocessors=(110,), memory_gib=48, bandwidth=None, cache_mib=72,
        matrix=halves(277.1, float64=1.08, float32=69.3, tf32=138.5, float8=554.2, int8=554.2),
        vector={"float64": 1.08, "float32": 69.3},
        note="by TechPowerUp's clock; listings have 864 or 960 GB/s, which is left out",
    ),
    Sheet(
        device="RTX 6000 Ada Generation", names=(r"RTX 6000 Ada Generation",), source=_6000_ADA,
        multiprocessors=(142,), memory_gib=48, bandwidth=960, cache_mib=96,
        matrix=halves(364.2, float64=1.42, float32=91.1, tf32=182.1, float8=728.5, int8=728.5),
        vector={"float64": 1.42, "float32": 91.1},
    ),
    Sheet(
        device="RTX PRO 2000 Blackwell", names=(r"RTX PRO 2000 Blackwell",), source=_PRO_2000,
        multiprocessors=(34,), memory_gib=16, bandwidth=288, cache_mib=32,
        matrix=halves(68.1, float64=0.266, float32=17.0, tf32=34.1, float8=136.3, int8=136.3),
        vector={"float64": 0.266, "float32": 17.0},
    ),
    Sheet(
        device="RTX PRO 4000 Blackwell", names=(r"RTX PRO 4000 Blackwell",), source=_PRO_4000,
        multiprocessors=(70,), memory_gib=24, bandwidth=672, cache_mib=48,
        matrix=halves(160.0, float64=0.625, float32=40.0, tf32=80.0, float8=320.0, int8=320.0),
        vector={"float64": 0.625, "float32": 40.0},
        note="from the product page's 40 TFLOP/s of float32; listings have 2.055 GHz (36.8) and 2.617 GHz (46.9)",
    ),
    Sheet(
        device="RTX PRO 4500 Blackwell", names=(r"RTX PRO 4500 Blackwell",), source=_PRO_4500,
        multiprocessors=(82,), memory_gib=32, bandwidth=896, cache_mib=64,
        matrix=halves(202.1, float64=0.789, float32=50.5, tf32=101.1, float8=404.2, int8=404.2),
        vector={"float64": 0.789, "float32": 50.5}, mig=_MIG_2,
        note="the sheet rounds to 51 TFLOP/s of float32; listings of its first one have 52.7 and 54.9",
    ),
    Sheet(
        device="RTX PRO 5000 Blackwell 48 GB", names=(r"RTX PRO 5000 Blackwell",), source=_PRO_5000,
        multiprocessors=(110,), memory_gib=48, bandwidth=1344, cache_mib=96,
        matrix=halves(257.9, float64=1.01, float32=64.5, tf32=129.0, float8=515.9, int8=515.9),
        vector={"float64": 1.01, "float32": 64.5}, mig=_MIG_2,
        note=_FIRST_5000,
    ),
    Sheet(
        device="RTX PRO 5000 Blackwell 72 GB", names=(r"RTX PRO 5000 72GB Blackwell",), source=_PRO_5000,
        multiprocessors=(110,), memory_gib=72, bandwidth=1344, cache_mib=96,
        matrix=halves(257.9, float64=1.01, float32=64.5, tf32=129.0, float8=515.9, int8=515.9),
        vector={"float64": 1.01, "float32": 64.5}, mig=_MIG_2,
        note=_FIRST_5000,
    ),
    Sheet(
        device="RTX PRO 6000 Blackwell Workstation Edition",
        names=(r"RTX PRO 6000 Blackwell Workstation Edition",), source=_PRO,
        multiprocessors=(188,), memory_gib=96, bandwidth=1792, cache_mib=128,
        matrix=halves(503.8, float64=1.97, float32=126.0, tf32=251.9, float8=1007.6, int8=1007.6),
        vector={"float64": 1.97, "float32": 126.0}, mig=_MIG_4,
    ),
    Sheet(
        device="RTX PRO 6000 Blackwell Max-Q",
        names=(r"RTX PRO 6000 Blackwell Max-Q Workstation Edition",), source=_PRO,
        multiprocessors=(188,), memory_gib=96, bandwidth=1792, cache_mib=128,
        matrix=halves(438.9, float64=1.71, float32=109.7, tf32=219.5, float8=877.9, int8=877.9),
        vector={"float64": 1.71, "float32": 109.7}, mig=_MIG_4,
    ),
    Sheet(
        device="RTX PRO 6000 Blackwell Server Edition",
        names=(r"RTX PRO 6000 Blackwell Server Edition",), source=_PRO_SERVER,
        multiprocessors=(188,), memory_gib=96, bandwidth=1597, cache_mib=128,
        matrix=halves(479.9, float64=1.87, float32=120.0, tf32=240.0, float8=959.9, int8=959.9),
        vector={"float64": 1.87, "float32": 120.0}, mig=_MIG_4,
        note="from the sheet's 120 TFLOP/s of float32; it rounds the others to 1, 2 and 4 sparse PFLOP/s",
    ),
)  # fmt: skip
