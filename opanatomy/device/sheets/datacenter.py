"""NVIDIA cards for servers, Ampere and Ada."""

from __future__ import annotations

from typing import Final

from opanatomy.device.sheets.sheet import Mig, Sheet, halves

_A2 = "https://www.nvidia.com/content/dam/en-zz/solutions/data-center/a2/pdf/a2-datasheet.pdf"
_A10 = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a10/pdf/a10-datasheet.pdf"
_A10G = "https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf"
_A16 = "https://images.nvidia.com/content/Solutions/data-center/vgpu-a16-datasheet.pdf"
_A30 = "https://www.nvidia.com/content/dam/en-zz/Solutions/data-center/products/a30-gpu/pdf/a30-datasheet.pdf"
_A40 = "https://images.nvidia.com/content/Solutions/data-center/a40/nvidia-a40-datasheet.pdf"
_A100 = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
    "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
_L4 = "https://resources.nvidia.com/en-us-gpu-resources/l4-tensor-datasheet"
_L20 = "https://semianalysis.com/2023/11/09/nvidias-new-china-ai-chips-circumvent/"
_L40 = "https://images.nvidia.com/content/Solutions/data-center/vgpu-L40-datasheet.pdf"
_L40S = "https://resources.nvidia.com/en-us-l40s/l40s-datasheet-28413"
_A100_MATRIX = halves(312.0, float64=19.5, float32=19.5, tf32=156.0, int8=624.0)
_A100_VECTOR = {"float64": 9.7, "float32": 19.5}
#: As `nvidia-smi mig -lgip` lists them in the MIG user guide: 14 multiprocessors a slice.
_A100_MIG = Mig(profiles={(1, 1): 14, (1, 2): 14, (2, 2): 28, (3, 4): 42, (4, 4): 56, (7, 8): 98})
_A800 = "no sheet of its own: an A100 with 400 GB/s of NVLink, by the A100's"

DATACENTER: Final = (
    Sheet(
        device="A2", names=(r"A2",), source=_A2,
        multiprocessors=(10,), memory_gib=16, bandwidth=200,
        matrix=halves(18.0, float32=4.5, tf32=9.0, int8=36.0), vector={"float32": 4.5},
    ),
    Sheet(
        device="A10", names=(r"A10",), source=_A10,
        multiprocessors=(72,), memory_gib=24, bandwidth=600, cache_mib=6,
        matrix=halves(125.0, float32=31.2, tf32=62.5, int8=250.0), vector={"float32": 31.2},
    ),
    Sheet(
        device="A10G", names=(r"A10G",), source=_A10G,
        multiprocessors=(80,), memory_gib=24, bandwidth=600, cache_mib=6,
        matrix=halves(70.0, float32=35.0, tf32=35.0, int8=140.0), vector={"float32": 35.0},
        note="more multiprocessors than an A10, and half of its tensor width",
    ),
    Sheet(
        device="A16 (one of four GPUs)", names=(r"A16",), source=_A16,
        multiprocessors=(10,), memory_gib=16, bandwidth=200,
        matrix=halves(17.9, float32=4.5, tf32=9.0, int8=35.9), vector={"float32": 4.5},
        note="a quarter of the board: each GPU is a device",
    ),
    Sheet(
        device="A30", names=(r"A30",), source=_A30,
        multiprocessors=(56,), memory_gib=24, bandwidth=933,
        matrix=halves(165.0, float64=10.3, float32=10.3, tf32=82.0, int8=330.0),
        vector={"float64": 5.2, "float32": 10.3},
        mig=Mig(compute=4, memory=4, profiles={(1, 1): 14, (2, 2): 28, (4, 4): 56}),
    ),
    Sheet(
        device="A40", names=(r"A40",), source=_A40,
        multiprocessors=(84,), memory_gib=48, bandwidth=696, cache_mib=6,
        matrix=halves(149.7, float32=37.4, tf32=74.8, int8=299.3), vector={"float32": 37.4},
    ),
    Sheet(
        device="A100 SXM4 40 GB", names=(r"A100-SXM4?-40GB", r"A100-PG509-200"), source=_A100,
        multiprocessors=(108,), memory_gib=40, bandwidth=1555, cache_mib=40,
        matrix=_A100_MATRIX, vector=_A100_VECTOR, mig=_A100_MIG,
        note="PG509-200 has the PCI device of the SXM4 40 GB (20B0) in the driver's list",
    ),
    Sheet(
        device="A100 PCIe 40 GB", names=(r"A100-PCIE-40GB",), source=_A100,
        multiprocessors=(108,), memory_gib=40, bandwidth=1555, cache_mib=40,
        matrix=_A100_MATRIX, vector=_A100_VECTOR, mig=_A100_MIG,
    ),
    Sheet(
        device="A100 SXM4 80 GB", names=(r"A100-SXM4?-80GB",), source=_A100,
        multiprocessors=(108,), memory_gib=80, bandwidth=2039, cache_mib=40,
        matrix=_A100_MATRIX, vector=_A100_VECTOR, mig=_A100_MIG,
    ),
    Sheet(
        device="A100 PCIe 80 GB", names=(r"A100 80GB PCIe", r"A100-PCIE-80GB"), source=_A100,
        multiprocessors=(108,), memory_gib=80, bandwidth=1935, cache_mib=40,
        matrix=_A100_MATRIX, vector=_A100_VECTOR, mig=_A100_MIG,
    ),
    Sheet(
        device="A800 SXM4 40 GB", names=(r"A800-SXM4?-40GB",), source=_A100,
        multiprocessors=(108,), memory_gib=40, bandwidth=1555, cache_mib=40,
        matrix=_A100_MATRIX, vector=_A100_VECTOR, mig=_A100_MIG, note=_A800,
    ),
    Sheet(
        device="A800 PCIe 40 GB", names=(r"A800-PCIE-40GB", r"A800 40GB PCIe"), source=_A100,
        multiprocessors=(108,), memory_gib=40, bandwidth=1555, cache_mib=40,
        matrix=_A100_MATRIX, vector=_A100_VECTOR, mig=_A100_MIG, note=_A800,
    ),
    Sheet(
        device="A800 SXM4 80 GB", names=(r"A800-SXM4?-80GB",), source=_A100,
        multiprocessors=(108,), memory_gib=80, bandwidth=2039, cache_mib=40,
        matrix=_A100_MATRIX, vector=_A100_VECTOR, mig=_A100_MIG, note=_A800,
    ),
    Sheet(
        device="A800 PCIe 80 GB", names=(r"A800 80GB PCIe", r"A800-PCIE-80GB"), source=_A100,
        multiprocessors=(108,), memory_gib=80, bandwidth=1935, cache_mib=40,
        matrix=_A100_MATRIX, vector=_A100_VECTOR, mig=_A100_MIG, note=_A800,
    ),
    Sheet(
        device="L4", names=(r"L4",), source=_L4,
        multiprocessors=(58,), memory_gib=24, bandwidth=300, cache_mib=48,
        matrix=halves(121.0, float32=30.3, tf32=60.0, float8=242.5, int8=242.5), vector={"float32": 30.3},
    ),
    Sheet(
        device="L20", names=(r"L20",), source=_L20,
        multiprocessors=(92,), memory_gib=48, bandwidth=864,
        matrix=halves(119.5, float32=59.8, tf32=59.8, float8=239.0, int8=239.0), vector={"float32": 59.8},
        note="as reported, no document of the maker; 92 x 2.52 GHz x 512 are 118.7",
    ),
    Sheet(
        device="L40", names=(r"L40",), source=_L40,
        multiprocessors=(142,), memory_gib=48, bandwidth=864, cache_mib=96,
        matrix=halves(181.0, float32=90.5, tf32=90.5, float8=362.0, int8=362.0), vector={"float32": 90.5},
        note="half of the L40S's tensor width; L2 by the white paper of the architecture",
    ),
    Sheet(
        device="L40S", names=(r"L40S",), source=_L40S,
        multiprocessors=(142,), memory_gib=48, bandwidth=864,
        matrix=halves(366.0, float32=91.6, tf32=183.0, float8=733.0, int8=733.0), vector={"float32": 91.6},
        note="the sheet has 362.05 dense and 733 sparse for halves; 142 x 2.52 GHz x 1024 are 366",
    ),
)  # fmt: skip
