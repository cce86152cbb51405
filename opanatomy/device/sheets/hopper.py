"""NVIDIA cards for servers, Hopper and Blackwell."""

from __future__ import annotations

from typing import Final

from opanatomy.device.sheets.sheet import Mig, Sheet, halves

_HOPPER = "https://resources.nvidia.com/en-us-hopper-architecture/nvidia-h100-tensor-c"
_H100 = "https://resources.nvidia.com/en-us-gpu-resources/h100-datasheet-24306"
_H200 = "https://nvdam.widen.net/s/nb5zzzsjdf/hpc-datasheet-sc23-h200-datasheet-3002446"
_GH200 = "https://nvdam.widen.net/content/tf2prbffgy/original/grace-hopper-superchip-datasheet-nvidia-2705455.pdf"
_H20 = "https://semianalysis.com/2023/11/09/nvidias-new-china-ai-chips-circumvent/"
_BLACKWELL = "https://nvdam.widen.net/s/wwnsxrhm2w/blackwell-datasheet-3384703"
_BLACKWELL_BRIEF = "https://resources.nvidia.com/en-us-blackwell-architecture"
_BLACKWELL_ULTRA = "https://resources.nvidia.com/en-us-blackwell-architecture/blackwell-ultra-datasheet"
_SXM_MATRIX = halves(989.4, float64=66.9, float32=66.9, tf32=494.7, float8=1978.9, int8=1978.9)
_SXM_VECTOR = {"float64": 33.5, "float32": 66.9}
_NVL_MATRIX = halves(835.5, float64=60.0, float32=60.0, tf32=417.5, float8=1670.5, int8=1670.5)
_NVL_VECTOR = {"float64": 30.0, "float32": 60.0}
_PCIE_MATRIX = halves(756.4, float64=51.2, float32=51.2, tf32=378.0, float8=1513.0, int8=1513.0)
_H20_MATRIX = halves(148.0, float64=1.0, float32=44.0, tf32=74.0, float8=296.0, int8=296.0)
_H800 = "no sheet of its own: an H100 with 400 GB/s of NVLink, by the H100's, and float64 as reported"
_H20_NOTE = (
    "as reported, no document of the maker; 78 x 1.98 GHz x 256 are 39.5 TFLOP/s of float32, and its tensor"
    " width is not said"
)
#: No document has the multiprocessors of these: the trace has to say them.
_MIG = Mig(profiles=dict.fromkeys([(1, 1), (1, 2), (2, 2), (3, 4), (4, 4), (7, 8)]))

HOPPER: Final = (
    Sheet(
        device="H100 PCIe", names=(r"H100 PCIe", r"H100"), source=_HOPPER,
        multiprocessors=(114,), memory_gib=80, bandwidth=2039, cache_mib=50,
        matrix=_PCIE_MATRIX, vector={"float64": 25.6, "float32": 51.2}, mig=_MIG,
        note="the sheet rounds the bandwidth to 2 TB/s",
    ),
    Sheet(
        device="H100 SXM", names=(r"H100 80GB HBM3", r"H100 SXM5( 80GB)?", r"H100"), source=_H100,
        multiprocessors=(132,), memory_gib=80, bandwidth=3350, cache_mib=50,
        matrix=_SXM_MATRIX, vector=_SXM_VECTOR,
        #: As `nvidia-smi mig -lgip` lists them.
        mig=Mig(profiles={(1, 1): 16, (1, 2): 26, (2, 2): 32, (3, 4): 60, (4, 4): 64, (7, 8): 132}),
    ),
    Sheet(
        device="H100 NVL", names=(r"H100 NVL",), source=_H100,
        multiprocessors=(132,), memory_gib=94, bandwidth=3900,
        matrix=_NVL_MATRIX, vector=_NVL_VECTOR, mig=_MIG,
        note="one card of a pair",
    ),
    Sheet(
        device="H800 PCIe", names=(r"H800 PCIe",), source=_HOPPER,
        multiprocessors=(114,), memory_gib=80, bandwidth=2039, cache_mib=50,
        matrix={**_PCIE_MATRIX, "float64": 0.8}, vector={"float64": 0.8, "float32": 51.2}, mig=_MIG, note=_H800,
    ),
    Sheet(
        device="H800 SXM", names=(r"H800",), source=_H100,
        multiprocessors=(132,), memory_gib=80, bandwidth=3350, cache_mib=50,
        matrix={**_SXM_MATRIX, "float64": 1.0}, vector={"float64": 1.0, "float32": 66.9}, mig=_MIG, note=_H800,
    ),
    Sheet(
        device="H20 96 GB", names=(r"H20",), source=_H20,
        multiprocessors=(78,), memory_gib=96, bandwidth=4000, cache_mib=60,
        matrix=_H20_MATRIX, vector={"float64": 1.0, "float32": 44.0}, mig=_MIG, note=_H20_NOTE,
    ),
    Sheet(
        device="H20 141 GB", names=(r"H20-3e",), source=_H20,
        multiprocessors=(78,), memory_gib=141, bandwidth=4800, cache_mib=60,
        matrix=_H20_MATRIX, vector={"float64": 1.0, "float32": 44.0}, mig=_MIG, note=_H20_NOTE,
    ),
    Sheet(
        device="H200 SXM", names=(r"H200", r"H200 SXM"), source=_H200,
        multiprocessors=(132,), memory_gib=141, bandwidth=4800, cache_mib=60,
        matrix=_SXM_MATRIX, vector=_SXM_VECTOR, mig=_MIG,
        note="L2 as torch reports it",
    ),
    Sheet(
        device="H200 NVL", names=(r"H200 NVL",), source=_H200,
        multiprocessors=(132,), memory_gib=141, bandwidth=4800,
        matrix=_NVL_MATRIX, vector=_NVL_VECTOR, mig=_MIG,
    ),
    Sheet(
        device="GH200 96 GB", names=(r"GH200 (120|480)GB",), source=_GH200,
        multiprocessors=(132,), memory_gib=96, bandwidth=4000,
        matrix=_SXM_MATRIX, vector=_SXM_VECTOR, mig=_MIG,
        note="the name has the processor's memory, not the GPU's",
    ),
    Sheet(
        device="GH200 144 GB", names=(r"GH200 144G HBM3e",), source=_GH200,
        multiprocessors=(132,), memory_gib=144, bandwidth=4900,
        matrix=_SXM_MATRIX, vector=_SXM_VECTOR, mig=_MIG,
    ),
    Sheet(
        device="B100", names=(r"B100",), source=_BLACKWELL_BRIEF,
        multiprocessors=(), memory_gib=192, bandwidth=8000,
        matrix=halves(1750.0, float64=30.0, float32=60.0, tf32=875.0, float8=3500.0, int8=3500.0),
        vector={"float64": 30.0, "float32": 60.0},
        note="an eighth of HGX B100, of the first brief; no document says its multiprocessors or clock",
    ),
    Sheet(
        device="B200", names=(r"B200",), source=_BLACKWELL,
        multiprocessors=(148,), memory_gib=180, bandwidth=7700, cache_mib=126,
        matrix=halves(2250.0, float64=37.0, float32=75.0, tf32=1125.0, float8=4500.0, int8=4500.0),
        vector={"float64": 37.0, "float32": 75.0}, mig=_MIG,
        note="as in HGX B200; the sheet rounds the 2.25 sparse PFLOP/s of tf32 to 2.2; first sheets said 8 TB/s",
    ),
    Sheet(
        device="GB200", names=(r"GB200",), source=_BLACKWELL,
        multiprocessors=(148, 152), memory_gib=186, bandwidth=8000, cache_mib=126,
        matrix=halves(2500.0, float64=40.0, float32=80.0, tf32=1250.0, float8=5000.0, int8=5000.0),
        vector={"float64": 40.0, "float32": 80.0}, mig=_MIG,
        note="one of the superchip's two GPUs",
    ),
    Sheet(
        device="B300", names=(r"B300 SXM6 AC", r"B300"), source=_BLACKWELL_ULTRA,
        multiprocessors=(148,), memory_gib=270, bandwidth=7700,
        matrix=halves(2250.0, float64=1.25, float32=75.0, tf32=1125.0, float8=4500.0),
        vector={"float64": 1.25, "float32": 75.0}, mig=_MIG,
        note="as in HGX B300; float64 is 1.2 in some documents, int8 0.15, 0.3 or 4.5 POP/s, which is left out",
    ),
    Sheet(
        device="GB300", names=(r"GB300",), source=_BLACKWELL_ULTRA,
        multiprocessors=(152,), memory_gib=279, bandwidth=8000,
        matrix=halves(2500.0, float64=1.3, float32=80.0, tf32=1250.0, float8=5000.0),
        vector={"float64": 1.3, "float32": 80.0}, mig=_MIG,
        note="one of the superchip's GPUs; sources disagree about int8, which is left out",
    ),
)  # fmt: skip
