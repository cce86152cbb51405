"""What makers' data sheets say of their devices: dense peaks, never those with structured sparsity.

One entry is what a trace calls one device: half an MI250X, one GPU of a GB200. Where a sheet quotes sparse figures only
(Ada, Hopper, Blackwell) they are halved. Tensor-core figures of half-precision and 8-bit floats are those with float32
accumulation, which torch uses: GeForce cards, A10G, L20 and L40 do half as much of it. Figures follow from
multiprocessors x clock x operations a clock, bandwidths from bits of the bus x their rate; tests/test_ceilings.py and
tests/test_desktop_sheets.py work them out again. Where the sheet disagrees with that, where two sources disagree, or
where there is no document of the maker, `note` says so. A real clock may be above the sheet's boost clock, so a
GeForce card can pass its sheet by a few percent.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

# One row of the data sheets.


GIB: Final = 1 << 30


class Mig(Struct, frozen=True, kw_only=True):
    """How NVIDIA's Multi-Instance GPU cuts a device: into how many slices of compute and of memory.

    `profiles` has the multiprocessors of each profile by its slices of (compute, memory), `None` where no document says
    how many. A memory slice has its share of the capacity, of the bandwidth and of L2 (MIG user guide, "Concepts").
    """

    compute: int = 7
    memory: int = 8
    profiles: dict[tuple[int, int], int | None]


class Sheet(Struct, frozen=True, kw_only=True):
    """A device by its data sheet: peaks in TFLOP/s (`TOP/s` of int8), bandwidth in GB/s, memory in GiB, the last cache
    before the memory in MiB (L2, on MI300 and later the Infinity Cache), `None` where no known document says it.

    `names` are the names drivers give it, without maker and brand, as regular expressions of the whole name.
    `multiprocessors` are all counts that exist, none where no document says it.
    """

    device: str
    names: tuple[str, ...]
    source: str
    multiprocessors: tuple[int, ...]
    memory_gib: float | None
    bandwidth: float | None
    #: Peaks of matrix multiplication by data type, and those of all other arithmetic.
    matrix: dict[str, float] = field(default_factory=dict)
    vector: dict[str, float] = field(default_factory=dict)
    note: str = ""
    #: What else drivers give the same name, multiprocessors and memory, so that no trace distinguishes the two.
    also: str = ""
    cache_mib: float | None = None
    #: The slices that a device may be cut into, and into how many equal devices AMD's compute modes make it.
    mig: Mig | None = None
    partitions: tuple[int, ...] = ()
    #: Of a part of a device: which share of the sheet's figures these are.
    scaled: str = ""


def halves(peak: float, **others: float) -> dict[str, float]:
    """The peaks by data type of a device whose float16 and bfloat16 rates are one: `peak` TFLOP/s."""
    return {"float16": peak, "bfloat16": peak, **others}


# AMD Instinct.
#
# `partitions` are the compute modes: an MI300X (SPX) may be two devices (DPX), four (QPX) or eight (CPX), an MI300A
# three (TPX) or six, each with its share of the compute units (AMD's GPU partitioning overviews,
# https://instinct.docs.amd.com/projects/amdgpu-docs/en/latest/gpu-partitioning/index.html).


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


# NVIDIA cards for servers, Ampere and Ada.


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


# GeForce cards, Ampere to Blackwell.
#
# Their tensor cores multiply halves and 8-bit floats at half the rate where they accumulate in float32, and tf32 at the
# rate of float32 vectors: the white papers' tables, "with FP32 Accumulate", the first of each pair (dense). Cards that
# no white paper has follow from the page's clock and the architecture's width, and agree with the page's AI TOPS.
# Clocks, memory and L2 agree with TechPowerUp's database, the only source of L2 outside the white papers.


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


# GeForce and TITAN cards, Pascal to Turing.
#
# Turing's tensor cores multiply halves at half their rate where they accumulate in float32, those of TITAN RTX and of
# Quadro cards at the whole. Laptops' cards up to the RTX 20 series may have the names of desktop cards ("RTX 2070";
# "Super" is a laptop's, "SUPER" a desktop's), as the list of names of NVIDIA's open kernel modules shows: `also` says
# so. Clocks, memory and L2 agree with TechPowerUp's database, the only source of L2 outside the white papers.


_GEFORCE_OLDER_COMPARED = "https://www.nvidia.com/en-us/geforce/graphics-cards/compare/"
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
        device="TITAN X (Pascal)", names=(r"TITAN X \(Pascal\)",), source=_GEFORCE_OLDER_COMPARED,
        multiprocessors=(28,), memory_gib=12, bandwidth=480, cache_mib=3,
        matrix={"float64": 0.343, "float32": 11.0, "float16": 11.0}, vector={"float64": 0.343, "float32": 11.0},
    ),
    Sheet(
        device="TITAN Xp", names=(r"TITAN Xp( COLLECTORS EDITION)?",), source=_TITAN_XP,
        multiprocessors=(30,), memory_gib=12, bandwidth=547, cache_mib=3,
        matrix={"float64": 0.38, "float32": 12.1, "float16": 12.1}, vector={"float64": 0.38, "float32": 12.1},
    ),
    Sheet(
        device="GeForce GTX 1070", names=(r"GTX 1070",), source=_GEFORCE_OLDER_COMPARED,
        multiprocessors=(15,), memory_gib=8, bandwidth=256, cache_mib=2,
        matrix={"float64": 0.202, "float32": 6.46, "float16": 6.46}, vector={"float64": 0.202, "float32": 6.46},
    ),
    Sheet(
        device="GeForce GTX 1070 Ti", names=(r"GTX 1070 Ti",), source=_GEFORCE_OLDER_COMPARED,
        multiprocessors=(19,), memory_gib=8, bandwidth=256, cache_mib=2,
        matrix={"float64": 0.256, "float32": 8.19, "float16": 8.19}, vector={"float64": 0.256, "float32": 8.19},
    ),
    Sheet(
        device="GeForce GTX 1080", names=(r"GTX 1080",), source=_GEFORCE_OLDER_COMPARED,
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
        device="GeForce GTX 1650 GDDR5", names=(r"GTX 1650",), source=_GEFORCE_OLDER_COMPARED,
        multiprocessors=(14,), memory_gib=4, bandwidth=128, cache_mib=1,
        matrix={"float64": 0.093, "float32": 2.98, "float16": 5.97}, vector={"float64": 0.093, "float32": 2.98},
        note=_NO_MATRIX_UNITS,
    ),
    Sheet(
        device="GeForce GTX 1650 GDDR6", names=(r"GTX 1650",), source=_GEFORCE_OLDER_COMPARED,
        multiprocessors=(14,), memory_gib=4, bandwidth=192, cache_mib=1,
        matrix={"float64": 0.089, "float32": 2.85, "float16": 5.7}, vector={"float64": 0.089, "float32": 2.85},
        note=_NO_MATRIX_UNITS,
    ),
    Sheet(
        device="GeForce GTX 1650 SUPER", names=(r"GTX 1650 (?-i:SUPER)",), source=_GEFORCE_OLDER_COMPARED,
        multiprocessors=(20,), memory_gib=4, bandwidth=192, cache_mib=1,
        matrix={"float64": 0.138, "float32": 4.42, "float16": 8.83}, vector={"float64": 0.138, "float32": 4.42},
        note=_NO_MATRIX_UNITS,
    ),
    Sheet(
        device="GeForce GTX 1660", names=(r"GTX 1660",), source=_GEFORCE_OLDER_COMPARED,
        multiprocessors=(22,), memory_gib=6, bandwidth=192, cache_mib=1.5,
        matrix={"float64": 0.157, "float32": 5.03, "float16": 10.1}, vector={"float64": 0.157, "float32": 5.03},
        note=_NO_MATRIX_UNITS,
    ),
    Sheet(
        device="GeForce GTX 1660 SUPER", names=(r"GTX 1660 (?-i:SUPER)",), source=_GEFORCE_OLDER_COMPARED,
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
        device="GeForce RTX 2060 6 GB", names=(r"RTX 2060",), source=_GEFORCE_OLDER_COMPARED,
        multiprocessors=(30,), memory_gib=6, bandwidth=336, cache_mib=3,
        matrix={"float64": 0.202, "float32": 6.45, "float16": 25.8, "int8": 103.2},
        vector={"float64": 0.202, "float32": 6.45},
        also=_LAPTOP,
    ),
    Sheet(
        device="GeForce RTX 2060 12 GB", names=(r"RTX 2060",), source=_GEFORCE_OLDER_COMPARED,
        multiprocessors=(34,), memory_gib=12, bandwidth=336, cache_mib=3,
        matrix={"float64": 0.224, "float32": 7.18, "float16": 28.7, "int8": 114.9},
        vector={"float64": 0.224, "float32": 7.18},
    ),
    Sheet(
        device="GeForce RTX 2060 SUPER", names=(r"RTX 2060 (?-i:SUPER)",), source=_GEFORCE_OLDER_COMPARED,
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
        device="GeForce RTX 2070 SUPER", names=(r"RTX 2070 (?-i:SUPER)",), source=_GEFORCE_OLDER_COMPARED,
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
        device="GeForce RTX 2080 SUPER", names=(r"RTX 2080 (?-i:SUPER)",), source=_GEFORCE_OLDER_COMPARED,
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


# NVIDIA cards for servers, Hopper and Blackwell.


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


# NVIDIA cards for servers, Pascal to Turing.
#
# Pascal has no matrix units: products of halves accumulate in float32, and reach the float32 rate.


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
_TESLA_NO_MATRIX_UNITS = (
    "products of halves at the float32 rate; the sheet's {} TFLOP/s of halves accumulate in float16"
)
_QUARTER = "a quarter of the DGX Station's 500 TFLOP/s; the bandwidth is the V100 sheet's"
_V100_SXM2 = {"float64": 7.8, "float32": 15.7, "float16": 125.0}
_V100_PCIE = {"float64": 7.0, "float32": 14.0, "float16": 112.0}

TESLA: Final = (
    Sheet(
        device="P100 SXM2 16 GB", names=(r"P100-SXM2-16GB",), source=_P100,
        multiprocessors=(56,), memory_gib=16, bandwidth=732, cache_mib=4,
        matrix={"float64": 5.3, "float32": 10.6, "float16": 10.6}, vector={"float64": 5.3, "float32": 10.6},
        note=_TESLA_NO_MATRIX_UNITS.format(21.2),
    ),
    Sheet(
        device="P100 PCIe 16 GB", names=(r"P100-PCIE-16GB",), source=_P100_PCIE,
        multiprocessors=(56,), memory_gib=16, bandwidth=732, cache_mib=4,
        matrix={"float64": 4.7, "float32": 9.3, "float16": 9.3}, vector={"float64": 4.7, "float32": 9.3},
        note=_TESLA_NO_MATRIX_UNITS.format(18.7),
    ),
    Sheet(
        device="P100 PCIe 12 GB", names=(r"P100-PCIE-12GB",), source=_P100_PCIE,
        multiprocessors=(56,), memory_gib=12, bandwidth=549,
        matrix={"float64": 4.7, "float32": 9.3, "float16": 9.3}, vector={"float64": 4.7, "float32": 9.3},
        note=_TESLA_NO_MATRIX_UNITS.format(18.7),
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


# NVIDIA cards for workstations, Volta to Blackwell.
#
# Their tensor cores accumulate in float32 at the whole rate. Sheets quote sparse figures: of halves (Ampere), of 8-bit
# floats (Ada), of 4-bit floats ("AI TOPS", Blackwell), which are 2, 4 and 8 times those of dense halves. Clocks, memory
# and L2 agree with TechPowerUp's database where `note` does not say otherwise; it is the only source of L2 outside the
# white papers.


_LITERATURE = "https://www.nvidia.com/content/dam/en-zz/Solutions/design-visualization/quadro-product-literature/"
_PRODUCTS = "https://www.nvidia.com/content/dam/en-zz/Solutions/products/workstations/"
_DESKTOPS = "https://www.nvidia.com/en-us/products/workstations/professional-desktop-gpus/"
_GV100 = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/design-visualization/productspage/quadro/quadro-desktop/"
    "quadro-volta-gv100-data-sheet-us-nvidia-704619-r3-web.pdf"
)
_WORKSTATION_TURING = (
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
_WORKSTATION_LAPTOP = "a laptop's of the same name is slower"
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
        also=_WORKSTATION_LAPTOP,
    ),
    Sheet(
        device="Quadro RTX 6000", names=(r"Quadro RTX 6000",), source=_RTX_6000,
        multiprocessors=(72,), memory_gib=24, bandwidth=672, cache_mib=6,
        matrix={"float64": 0.51, "float32": 16.3, "float16": 130.5, "int8": 261.0},
        vector={"float64": 0.51, "float32": 16.3},
        also=_PASSIVE,
    ),
    Sheet(
        device="Quadro RTX 8000", names=(r"Quadro RTX 8000",), source=_WORKSTATION_TURING,
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


SHEETS: Final = (*TESLA, *DATACENTER, *HOPPER, *GEFORCE_OLDER, *GEFORCE, *WORKSTATION, *AMD)
