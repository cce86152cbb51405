"""NVIDIA cards for servers, Volta to Blackwell."""

from __future__ import annotations

from typing import Final

from opanatomy.device.sheets.sheet import Sheet, halves

_V100 = "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
_T4 = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf"
_A10 = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a10/pdf/a10-datasheet.pdf"
_A100 = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
    "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
_L4 = "https://resources.nvidia.com/en-us-gpu-resources/l4-tensor-datasheet"
_L40S = "https://resources.nvidia.com/en-us-l40s/l40s-datasheet-28413"
_HOPPER = "https://resources.nvidia.com/en-us-hopper-architecture/nvidia-h100-tensor-c"
_H100 = "https://resources.nvidia.com/en-us-gpu-resources/h100-datasheet-24306"
_H200 = "https://nvdam.widen.net/s/nb5zzzsjdf/hpc-datasheet-sc23-h200-datasheet-3002446"
_BLACKWELL = "https://nvdam.widen.net/s/wwnsxrhm2w/blackwell-datasheet-3384703"
_V100_SXM2 = {"float64": 7.8, "float32": 15.7, "float16": 125.0}
_A100_MATRIX = halves(312.0, float64=19.5, float32=19.5, tf32=156.0, int8=624.0)
_A100_VECTOR = {"float64": 9.7, "float32": 19.5}
_H100_SXM_MATRIX = halves(989.4, float64=66.9, float32=66.9, tf32=494.7, float8=1978.9, int8=1978.9)
_H100_SXM_VECTOR = {"float64": 33.5, "float32": 66.9}
_H100_NVL_MATRIX = halves(835.5, float64=60.0, float32=60.0, tf32=417.5, float8=1670.5, int8=1670.5)
_H100_NVL_VECTOR = {"float64": 30.0, "float32": 60.0}

DATACENTER: Final = (
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
    Sheet(
        device="A10", names=(r"A10",), source=_A10,
        multiprocessors=(72,), memory_gib=24, bandwidth=600, cache_mib=6,
        matrix=halves(125.0, float32=31.2, tf32=62.5, int8=250.0), vector={"float32": 31.2},
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
        device="L4", names=(r"L4",), source=_L4,
        multiprocessors=(58,), memory_gib=24, bandwidth=300, cache_mib=48,
        matrix=halves(121.0, float32=30.3, tf32=60.0, float8=242.5, int8=242.5), vector={"float32": 30.3},
    ),
    Sheet(
        device="L40S", names=(r"L40S",), source=_L40S,
        multiprocessors=(142,), memory_gib=48, bandwidth=864,
        matrix=halves(366.0, float32=91.6, tf32=183.0, float8=733.0, int8=733.0), vector={"float32": 91.6},
        note="the sheet has 362.05 dense beside 733 sparse for halves; 142 x 2.52 GHz x 1024 are 366",
    ),
    Sheet(
        device="H100 PCIe", names=(r"H100 PCIe", r"H100"), source=_HOPPER,
        multiprocessors=(114,), memory_gib=80, bandwidth=2039, cache_mib=50,
        matrix=halves(756.4, float64=51.2, float32=51.2, tf32=378.0, float8=1513.0, int8=1513.0),
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
    Sheet(
        device="B200", names=(r"B200",), source=_BLACKWELL,
        multiprocessors=(148,), memory_gib=180, bandwidth=7700, cache_mib=126,
        matrix=halves(2250.0, float64=37.0, float32=75.0, tf32=1125.0, float8=4500.0, int8=4500.0),
        vector={"float64": 37.0, "float32": 75.0},
        note="as in HGX B200; the sheet rounds the 2.25 sparse PFLOP/s of tf32 to 2.2; first sheets said 8 TB/s",
    ),
    Sheet(
        device="GB200", names=(r"GB200",), source=_BLACKWELL,
        multiprocessors=(148, 152), memory_gib=186, bandwidth=8000,
        matrix=halves(2500.0, float64=40.0, float32=80.0, tf32=1250.0, float8=5000.0, int8=5000.0),
        vector={"float64": 40.0, "float32": 80.0},
        note="one of the superchip's two GPUs",
    ),
)  # fmt: skip
