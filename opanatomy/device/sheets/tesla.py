"""NVIDIA cards for servers, Pascal to Turing.

Pascal has no matrix units: products of halves accumulate in float32, and reach the float32 rate.
"""

from __future__ import annotations

from typing import Final

from opanatomy.device.sheets.sheet import Sheet

_P100 = "https://images.nvidia.com/content/pdf/tesla/whitepaper/pascal-architecture-whitepaper.pdf"
_P100_PCIE = "https://images.nvidia.com/content/tesla/pdf/nvidia-tesla-p100-PCIe-datasheet.pdf"
_P40 = "https://images.nvidia.com/content/pdf/tesla/184427-Tesla-P40-Datasheet-NV-Final-Letter-Web.pdf"
_P4 = "https://images.nvidia.com/content/pdf/tesla/184457-Tesla-P4-Datasheet-NV-Final-Letter-Web.pdf"
_V100 = "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
_DGX_2 = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/dgx-2/dgx-2-print-datasheet-738070-nvidia-a4-web-uk.pdf"
_DGX_STATION = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/dgx-station/nvidia-dgx-station-datasheet.pdf"
)
_T4 = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf"
_NO_MATRIX_UNITS = "products of halves at the float32 rate; the sheet's {} TFLOP/s of halves accumulate in float16"
_QUARTER = "a quarter of the DGX Station's 500 TFLOP/s; the bandwidth is the V100 sheet's"
_V100_SXM2 = {"float64": 7.8, "float32": 15.7, "float16": 125.0}
_V100_PCIE = {"float64": 7.0, "float32": 14.0, "float16": 112.0}

TESLA: Final = (
    Sheet(
        device="P100 SXM2 16 GB", names=(r"P100-SXM2-16GB",), source=_P100,
        multiprocessors=(56,), memory_gib=16, bandwidth=732, cache_mib=4,
        matrix={"float64": 5.3, "float32": 10.6, "float16": 10.6}, vector={"float64": 5.3, "float32": 10.6},
        note=_NO_MATRIX_UNITS.format(21.2),
    ),
    Sheet(
        device="P100 PCIe 16 GB", names=(r"P100-PCIE-16GB",), source=_P100_PCIE,
        multiprocessors=(56,), memory_gib=16, bandwidth=732, cache_mib=4,
        matrix={"float64": 4.7, "float32": 9.3, "float16": 9.3}, vector={"float64": 4.7, "float32": 9.3},
        note=_NO_MATRIX_UNITS.format(18.7),
    ),
    Sheet(
        device="P100 PCIe 12 GB", names=(r"P100-PCIE-12GB",), source=_P100_PCIE,
        multiprocessors=(56,), memory_gib=12, bandwidth=549,
        matrix={"float64": 4.7, "float32": 9.3, "float16": 9.3}, vector={"float64": 4.7, "float32": 9.3},
        note=_NO_MATRIX_UNITS.format(18.7),
    ),
    Sheet(
        device="P40", names=(r"P40",), source=_P40,
        multiprocessors=(30,), memory_gib=24, bandwidth=346,
        matrix={"float32": 11.8, "float16": 11.8, "int8": 47.0}, vector={"float32": 11.8},
        note="the sheet rounds to 12 TFLOP/s: 30 x 1.531 GHz x 256 are 11.8; products of halves at the float32 rate",
    ),
    Sheet(
        device="P4", names=(r"P4",), source=_P4,
        multiprocessors=(20,), memory_gib=8, bandwidth=192,
        matrix={"float32": 5.5, "float16": 5.5, "int8": 22.0}, vector={"float32": 5.5},
        note="products of halves at the float32 rate",
    ),
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
        device="V100 SXM3 32 GB", names=(r"V100-SXM3-32GB",), source=_DGX_2,
        multiprocessors=(80,), memory_gib=32, bandwidth=900, cache_mib=6,
        matrix=_V100_SXM2, vector={"float64": 7.8, "float32": 15.7},
        note="a sixteenth of the DGX-2's 2 PFLOP/s; no sheet of its own: listings disagree about its memory, 897 or 981"
        " GB/s, and about its clock, 1.53 or 1.597 GHz (131 TFLOP/s)",
    ),
    Sheet(
        device="V100 DGXS 16 GB", names=(r"V100-DGXS-16GB",), source=_DGX_STATION,
        multiprocessors=(80,), memory_gib=16, bandwidth=900, cache_mib=6,
        matrix=_V100_SXM2, vector={"float64": 7.8, "float32": 15.7}, note=_QUARTER,
    ),
    Sheet(
        device="V100 DGXS 32 GB", names=(r"V100-DGXS-32GB",), source=_DGX_STATION,
        multiprocessors=(80,), memory_gib=32, bandwidth=900, cache_mib=6,
        matrix=_V100_SXM2, vector={"float64": 7.8, "float32": 15.7}, note=_QUARTER,
    ),
    Sheet(
        device="V100 PCIe 16 GB", names=(r"V100-PCIE-16GB",), source=_V100,
        multiprocessors=(80,), memory_gib=16, bandwidth=900, cache_mib=6,
        matrix=_V100_PCIE, vector={"float64": 7.0, "float32": 14.0},
    ),
    Sheet(
        device="V100 PCIe 32 GB", names=(r"V100-PCIE-32GB",), source=_V100,
        multiprocessors=(80,), memory_gib=32, bandwidth=900, cache_mib=6,
        matrix=_V100_PCIE, vector={"float64": 7.0, "float32": 14.0},
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
        device="T4G", names=(r"T4G",), source=_T4,
        multiprocessors=(40,), memory_gib=16, bandwidth=320, cache_mib=4,
        matrix={"float32": 8.1, "float16": 65.0, "int8": 130.0}, vector={"float32": 8.1},
        note="no sheet of its own: the T4 of AWS's G5g instances, by the T4's",
    ),
)  # fmt: skip
