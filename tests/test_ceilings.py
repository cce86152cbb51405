"""Ceilings: data sheets, what they are matched on, what users give, what is measured and kept."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from opanatomy.__main__ import main
from opanatomy.capture.ceilings import Effort, measure
from opanatomy.cli.verbs.ceilings import as_json, as_text
from opanatomy.devices.ceilings import age, cache_file, cache_folder, ceilings_for, load, measured_ceilings, store
from opanatomy.devices.match import Match, ceilings_of, match
from opanatomy.devices.overrides import Overrides, parse_bandwidth, parse_overrides, parse_peaks
from opanatomy.devices.sheets import FAMILIES, GIB, SHEETS, Sheet
from opanatomy.errors import UsageError
from opanatomy.records.anatomy import Ceilings, Machine, Measured, Rate, now
from opanatomy.records.taxonomy import PEAK_TYPES
from opanatomy.records.workload import Environment

BY_DEVICE = {sheet.device: sheet for sheet in SHEETS}
SERVERS = tuple(sheet for one in FAMILIES if re.match("NVIDIA servers|AMD", one.family) for sheet in one.sheets)

# ------------------------------------------------------------------------------------------------------ data sheets

#: multiprocessors, clock in MHz of vector and of matrix units, and operations a clock and multiprocessor:
#: of float32 without matrix units, of half-precision products, of 8-bit products.
CLOCKS = {
    "P100 SXM2 16 GB": (56, 1480, 1480, 128, 128, None),
    "P100 PCIe 16 GB": (56, 1303, 1303, 128, 128, None),
    "P100 PCIe 12 GB": (56, 1303, 1303, 128, 128, None),
    "P40": (30, 1531, 1531, 256, 256, 1024),
    "P4": (20, 1063, 1063, 256, 256, 1024),
    "V100 SXM2 16 GB": (80, 1530, 1530, 128, 1024, None),
    "V100 SXM2 32 GB": (80, 1530, 1530, 128, 1024, None),
    "V100 SXM3 32 GB": (80, 1530, 1530, 128, 1024, None),
    "V100 DGXS 16 GB": (80, 1530, 1530, 128, 1024, None),
    "V100 DGXS 32 GB": (80, 1530, 1530, 128, 1024, None),
    "V100 PCIe 16 GB": (80, 1370, 1370, 128, 1024, None),
    "V100 PCIe 32 GB": (80, 1370, 1370, 128, 1024, None),
    "V100S PCIe 32 GB": (80, 1597, 1597, 128, 1024, None),
    "T4": (40, 1590, 1590, 128, 1024, 2048),
    "T4G": (40, 1590, 1590, 128, 1024, 2048),
    "A2": (10, 1770, 1770, 256, 1024, 2048),
    "A10": (72, 1695, 1695, 256, 1024, 2048),
    "A10G": (80, 1710, 1710, 256, 512, 1024),
    "A16 (one of four GPUs)": (10, 1755, 1755, 256, 1024, 2048),
    "A30": (56, 1440, 1440, 128, 2048, 4096),
    "A40": (84, 1740, 1740, 256, 1024, 2048),
    "A100 SXM4 40 GB": (108, 1410, 1410, 128, 2048, 4096),
    "A100 PCIe 40 GB": (108, 1410, 1410, 128, 2048, 4096),
    "A100 SXM4 80 GB": (108, 1410, 1410, 128, 2048, 4096),
    "A100 PCIe 80 GB": (108, 1410, 1410, 128, 2048, 4096),
    "A800 SXM4 40 GB": (108, 1410, 1410, 128, 2048, 4096),
    "A800 PCIe 40 GB": (108, 1410, 1410, 128, 2048, 4096),
    "A800 SXM4 80 GB": (108, 1410, 1410, 128, 2048, 4096),
    "A800 PCIe 80 GB": (108, 1410, 1410, 128, 2048, 4096),
    "L4": (58, 2040, 2040, 256, 1024, 2048),
    "L20": (92, 2520, 2520, 256, 512, 1024),
    "L40": (142, 2490, 2490, 256, 512, 1024),
    "L40S": (142, 2520, 2520, 256, 1024, 2048),
    "H100 PCIe": (114, 1755, 1620, 256, 4096, 8192),
    "H100 SXM": (132, 1980, 1830, 256, 4096, 8192),
    "H100 NVL": (132, 1785, 1545, 256, 4096, 8192),
    "H800 PCIe": (114, 1755, 1620, 256, 4096, 8192),
    "H800 SXM": (132, 1980, 1830, 256, 4096, 8192),
    "H200 SXM": (132, 1980, 1830, 256, 4096, 8192),
    "H200 NVL": (132, 1785, 1545, 256, 4096, 8192),
    "GH200 96 GB": (132, 1980, 1830, 256, 4096, 8192),
    "GH200 144 GB": (132, 1980, 1830, 256, 4096, 8192),
    "B200": (148, 1980, 1860, 256, 8192, 16384),
    "GB200": (148, 2110, 2060, 256, 8192, 16384),
    "B300": (148, 1980, 1860, 256, 8192, None),
    "GB300": (152, 2070, 2010, 256, 8192, None),
    "Instinct MI50 16 GB": (60, 1725, 1725, 128, 256, 512),
    "Instinct MI50 32 GB": (60, 1725, 1725, 128, 256, 512),
    "Instinct MI60": (64, 1800, 1800, 128, 256, 512),
    "Instinct MI100": (120, 1502, 1502, 128, 1024, 1024),
    "Instinct MI210": (104, 1700, 1700, 128, 1024, 1024),
    "Instinct MI250 (one of two dies)": (104, 1700, 1700, 128, 1024, 1024),
    "Instinct MI250X (one of two dies)": (110, 1700, 1700, 128, 1024, 1024),
    "Instinct MI300A": (228, 2100, 2100, 256, 2048, 4096),
    "Instinct MI300X": (304, 2100, 2100, 256, 2048, 4096),
    "Instinct MI325X": (304, 2100, 2100, 256, 2048, 4096),
    "Instinct MI350X": (256, 2200, 2200, 256, 4096, 8192),
    "Instinct MI355X": (256, 2400, 2400, 256, 4096, 8192),
}
#: Of these no document has the clock or the width; their `note` says so.
WITHOUT_CLOCKS = {"B100", "H20 96 GB", "H20 141 GB"}

#: Bits of the memory bus, and Gbit/s of each.
BUSES = {
    "P100 SXM2 16 GB": (4096, 1.43),
    "P100 PCIe 16 GB": (4096, 1.43),
    "P100 PCIe 12 GB": (3072, 1.43),
    "P40": (384, 7.2),
    "P4": (256, 6.0),
    "V100 SXM2 16 GB": (4096, 1.754),
    "V100 SXM2 32 GB": (4096, 1.754),
    "V100 DGXS 16 GB": (4096, 1.754),
    "V100 DGXS 32 GB": (4096, 1.754),
    "V100 PCIe 16 GB": (4096, 1.754),
    "V100 PCIe 32 GB": (4096, 1.754),
    "V100S PCIe 32 GB": (4096, 2.214),
    "T4": (256, 10.0),
    "T4G": (256, 10.0),
    "A2": (128, 12.5),
    "A10": (384, 12.5),
    "A10G": (384, 12.5),
    "A16 (one of four GPUs)": (128, 12.5),
    "A30": (3072, 2.43),
    "A40": (384, 14.5),
    "A100 SXM4 40 GB": (5120, 2.43),
    "A100 PCIe 40 GB": (5120, 2.43),
    "A100 SXM4 80 GB": (5120, 3.186),
    "A100 PCIe 80 GB": (5120, 3.024),
    "A800 SXM4 40 GB": (5120, 2.43),
    "A800 PCIe 40 GB": (5120, 2.43),
    "A800 SXM4 80 GB": (5120, 3.186),
    "A800 PCIe 80 GB": (5120, 3.024),
    "L4": (192, 12.5),
    "L20": (384, 18.0),
    "L40": (384, 18.0),
    "L40S": (384, 18.0),
    "H100 PCIe": (5120, 3.186),
    "H100 SXM": (5120, 5.234),
    "H100 NVL": (6144, 5.1),
    "H800 PCIe": (5120, 3.186),
    "H800 SXM": (5120, 5.234),
    "H20 96 GB": (6144, 5.2),
    "H20 141 GB": (6144, 6.25),
    "H200 SXM": (6144, 6.25),
    "H200 NVL": (6144, 6.25),
    "GH200 96 GB": (6144, 5.2),
    "GH200 144 GB": (6144, 6.4),
    "Instinct MI50 16 GB": (4096, 2.0),
    "Instinct MI50 32 GB": (4096, 2.0),
    "Instinct MI60": (4096, 2.0),
    "Instinct MI100": (4096, 2.4),
    "Instinct MI210": (4096, 3.2),
    "Instinct MI250 (one of two dies)": (4096, 3.2),
    "Instinct MI250X (one of two dies)": (4096, 3.2),
    "Instinct MI300A": (8192, 5.2),
    "Instinct MI300X": (8192, 5.2),
    "Instinct MI325X": (8192, 6.0),
    "Instinct MI350X": (8192, 8.0),
    "Instinct MI355X": (8192, 8.0),
}
#: AMD's sheets round these down to whole TB/s, and NVIDIA's Blackwell is not run at its memory's full rate.
ROUNDED = {"Instinct MI325X": 6000, "Instinct MI350X": 8000, "Instinct MI355X": 8000}
WITHOUT_BUSES = {"V100 SXM3 32 GB", "B100", "B200", "GB200", "B300", "GB300"}

#: These have no units for products: what they reach in float32 they reach in halves.
WITHOUT_MATRIX_UNITS = {"P100 SXM2 16 GB", "P100 PCIe 16 GB", "P100 PCIe 12 GB", "P40", "P4"}


def test_every_sheet_is_worked_out_below() -> None:
    devices = {sheet.device for sheet in SERVERS}
    assert set(CLOCKS) | WITHOUT_CLOCKS == devices
    assert set(BUSES) | WITHOUT_BUSES == devices
    assert len(CLOCKS) + len(WITHOUT_CLOCKS) == len(BUSES) + len(WITHOUT_BUSES) == len(devices) == len(SERVERS)
    assert len(BY_DEVICE) == len(SHEETS)


@pytest.mark.parametrize("sheet", [BY_DEVICE[device] for device in CLOCKS], ids=lambda sheet: sheet.device)
def test_peaks_follow_from_clocks(sheet: Sheet) -> None:
    units, vector_clock, matrix_clock, single, half, byte = CLOCKS[sheet.device]
    assert units in sheet.multiprocessors
    assert sheet.vector["float32"] == pytest.approx(units * vector_clock * single / 1e6, rel=0.015)
    assert sheet.matrix["float16"] == pytest.approx(units * matrix_clock * half / 1e6, rel=0.015)
    if byte is None:
        assert "int8" not in sheet.matrix
    else:
        assert sheet.matrix["int8"] == pytest.approx(units * matrix_clock * byte / 1e6, rel=0.015)


@pytest.mark.parametrize("device", BUSES)
def test_bandwidths_follow_from_buses(device: str) -> None:
    bits, gigabits = BUSES[device]
    sheet = BY_DEVICE[device]
    if device in ROUNDED:
        assert sheet.bandwidth == ROUNDED[device] < bits * gigabits / 8 < ROUNDED[device] + 200
        assert "rounds the bandwidth" in sheet.note
    else:
        assert sheet.bandwidth == pytest.approx(bits * gigabits / 8, rel=0.006)


@pytest.mark.parametrize("sheet", SERVERS, ids=lambda sheet: sheet.device)
def test_peaks_are_plausible(sheet: Sheet) -> None:
    matrix, vector = sheet.matrix, sheet.vector
    assert sheet.bandwidth is not None
    assert sheet.memory_gib is not None
    assert set(matrix) <= set(PEAK_TYPES)
    assert set(vector) <= {"float32", "float64"}
    assert all(value > 0 for value in (*matrix.values(), *vector.values(), sheet.bandwidth, sheet.memory_gib))
    if sheet.device in WITHOUT_MATRIX_UNITS:
        assert matrix["float16"] == matrix["float32"] == vector["float32"]
    else:
        assert matrix["float16"] >= 1.9 * matrix["float32"] >= 1.9 * vector["float32"]
    brain = matrix["float16"] / (2 if sheet.device == "Instinct MI100" else 1)
    assert matrix.get("bfloat16", brain) == brain
    assert matrix.get("float64", 0) >= vector.get("float64", 0)
    tf32 = matrix.get("tf32")
    assert tf32 is None or matrix["float32"] <= tf32 <= matrix["float16"] / 1.9
    assert matrix.get("float8", matrix["float16"]) in (
        matrix["float16"],
        pytest.approx(2 * matrix["float16"], rel=0.01),
    )
    assert 7 < 1000 * vector["float32"] / sheet.bandwidth < 120  # operations a byte
    assert sheet.source.startswith("https://")
    assert not sheet.scaled


# --------------------------------------------------------------------------------------------------------- matching

NAMES = [
    # Names of the shared traces, with their memory and multiprocessors.
    ("NVIDIA A100-PG509-200", 42_505_273_344, 108, "A100 SXM4 40 GB"),
    ("NVIDIA A100-PG509-200", 42_297_524_224, 108, "A100 SXM4 40 GB"),
    ("AMD Instinct MI210", 68_702_699_520, 104, "Instinct MI210"),
    ("NVIDIA H100 80GB HBM3", 85_018_279_936, 132, "H100 SXM"),
    ("AMD Instinct MI300X VF", 205_571_227_648, 304, "Instinct MI300X"),
    ("AMD Instinct MI300X", 206_141_652_992, 304, "Instinct MI300X"),
    ("", 206_141_652_992, 304, "Instinct MI300X"),
    ("AMD Radeon Graphics", 68_702_699_520, 104, "Instinct MI210"),
    ("Tesla V100-SXM2-32GB", 34_089_730_048, 80, "V100 SXM2 32 GB"),
    # Names that drivers give.
    ("Tesla V100-SXM2-16GB", 16_945_512_448, 80, "V100 SXM2 16 GB"),
    ("Tesla V100-PCIE-16GB", None, 80, "V100 PCIe 16 GB"),
    ("Tesla V100-PCIE-32GB", None, None, "V100 PCIe 32 GB"),
    ("Tesla V100S-PCIE-32GB", None, 80, "V100S PCIe 32 GB"),
    ("Tesla T4", 15_655_829_504, 40, "T4"),
    ("NVIDIA T4", None, None, "T4"),
    ("Tesla T4G", None, 40, "T4G"),
    ("NVIDIA T4G", None, None, "T4G"),
    ("Tesla V100-DGXS-32GB", 34_084_028_416, 80, "V100 DGXS 32 GB"),
    ("Tesla V100-DGXS-16GB", None, 80, "V100 DGXS 16 GB"),
    ("Tesla V100-SXM3-32GB", None, 80, "V100 SXM3 32 GB"),
    ("Tesla P100-PCIE-16GB", 17_071_734_784, 56, "P100 PCIe 16 GB"),
    ("Tesla P100-PCIE-12GB", None, None, "P100 PCIe 12 GB"),
    ("Tesla P100-SXM2-16GB", None, 56, "P100 SXM2 16 GB"),
    ("Tesla P40", None, 30, "P40"),
    ("Tesla P4", None, 20, "P4"),
    ("NVIDIA A10", 23_599_120_384, 72, "A10"),
    ("NVIDIA A10G", 22_587 << 20, 80, "A10G"),
    ("NVIDIA A2", None, 10, "A2"),
    ("NVIDIA A16", None, 10, "A16 (one of four GPUs)"),
    ("NVIDIA A30", None, 56, "A30"),
    ("NVIDIA A40", 46_068 << 20, 84, "A40"),
    ("NVIDIA A800-SXM4-40GB", None, 108, "A800 SXM4 40 GB"),
    ("NVIDIA A800-SXM4-80GB", None, 108, "A800 SXM4 80 GB"),
    ("NVIDIA A800 80GB PCIe", None, 108, "A800 PCIe 80 GB"),
    ("A100-SXM4-40GB", 42_505_273_344, 108, "A100 SXM4 40 GB"),
    ("NVIDIA A100-SXM4-40GB", None, None, "A100 SXM4 40 GB"),
    ("NVIDIA A100-SXM4-80GB", 84_974_239_744, 108, "A100 SXM4 80 GB"),
    ("A100-SXM-80GB", None, 108, "A100 SXM4 80 GB"),
    ("NVIDIA A100-PCIE-40GB", 42_298_834_944, 108, "A100 PCIe 40 GB"),
    ("NVIDIA A100 80GB PCIe", 85_049_802_752, 108, "A100 PCIe 80 GB"),
    ("NVIDIA L4", 23_583_784_960, 58, "L4"),
    ("NVIDIA L20", None, 92, "L20"),
    ("NVIDIA L40", None, 142, "L40"),
    ("NVIDIA L40S", 47_810_936_832, 142, "L40S"),
    ("NVIDIA L40S", 45_589 << 20, 142, "L40S"),
    ("NVIDIA H100 PCIe", 85_021_163_520, 114, "H100 PCIe"),
    ("NVIDIA H100 NVL", 99_949_740_032, 132, "H100 NVL"),
    ("NVIDIA H100", 85_018_279_936, 132, "H100 SXM"),
    ("NVIDIA H100", None, 114, "H100 PCIe"),
    ("NVIDIA H200", 150_109_880_320, 132, "H200 SXM"),
    ("NVIDIA H200 NVL", None, 132, "H200 NVL"),
    ("NVIDIA H800", None, 132, "H800 SXM"),
    ("NVIDIA H800 PCIe", None, 114, "H800 PCIe"),
    ("NVIDIA H20", 97_285 << 20, 78, "H20 96 GB"),
    ("NVIDIA H20-3e", 143_771 << 20, 78, "H20 141 GB"),
    ("NVIDIA GH200 480GB", 97_871 << 20, 132, "GH200 96 GB"),
    ("NVIDIA GH200 120GB", None, 132, "GH200 96 GB"),
    ("NVIDIA GH200 144G HBM3e", 153_008_209_920, 132, "GH200 144 GB"),
    ("NVIDIA B100", None, None, "B100"),
    ("NVIDIA B300 SXM6 AC", 275_040 << 20, 148, "B300"),
    ("NVIDIA GB300", None, 152, "GB300"),
    ("NVIDIA B200", 191_502_647_296, 148, "B200"),
    ("NVIDIA GB200", 198_000_000_000, 152, "GB200"),
    ("AMD Instinct MI250X / MI250", 68_702_699_520, 104, "Instinct MI250 (one of two dies)"),
    ("AMD Instinct MI250X/MI250", 68_702_699_520, 110, "Instinct MI250X (one of two dies)"),
    ("AMD Instinct MI250X", 68_702_699_520, 110, "Instinct MI250X (one of two dies)"),
    ("AMD Instinct MI60 / MI50", 34_342_961_152, 64, "Instinct MI60"),
    ("AMD Instinct MI60 / MI50", 17_163_091_968, 60, "Instinct MI50 16 GB"),
    ("AMD Radeon Instinct MI60", None, None, "Instinct MI60"),
    ("AMD Instinct MI50", 34_342_961_152, 60, "Instinct MI50 32 GB"),
    ("AMD Instinct MI100", 34_342_961_152, 120, "Instinct MI100"),
    ("gfx908:sramecc+:xnack-", 34_342_961_152, 120, "Instinct MI100"),
    ("AMD Instinct MI300A", 137_438_953_472, 228, "Instinct MI300A"),
    ("gfx942:sramecc+:xnack-", 137_438_953_472, 228, "Instinct MI300A"),
    ("AMD Instinct MI350X", 309_220_868_096, 256, "Instinct MI350X"),
    ("AMD Instinct MI325X", 274_877_906_944, 304, "Instinct MI325X"),
    ("AMD Instinct MI355X", 309_220_868_096, 256, "Instinct MI355X"),
    ("gfx90a:sramecc+:xnack-", 68_702_699_520, 110, "Instinct MI250X (one of two dies)"),
    ("gfx942:sramecc+:xnack-", 274_877_906_944, 304, "Instinct MI325X"),
]


@pytest.mark.parametrize(("name", "memory", "multiprocessors", "device"), NAMES)
def test_devices_with_a_sheet(name: str, memory: int | None, multiprocessors: int | None, device: str) -> None:
    found = match(name, memory, multiprocessors)
    assert found.sheet is BY_DEVICE[device], found.why


@pytest.mark.parametrize(
    ("name", "memory", "multiprocessors", "why"),
    [
        (None, None, None, "does not name"),
        ("NVIDIA A100-SXM4-40GB", 20_000_000_000, 42, "18.6 GiB here and 40 GiB"),
        ("NVIDIA A100-SXM4-80GB", 84_974_239_744, 98, "98 multiprocessors here and 108"),
        ("NVIDIA H100", None, None, "may be H100 PCIe or H100 SXM"),
        ("NVIDIA H100", 68_000_000_000, 132, "63.3 GiB here and 80 GiB"),
        ("NVIDIA H100", 100_000_000_000, 132, "93.1 GiB here and 80 GiB"),
        ("NVIDIA H20", 143_771 << 20, 78, "140.4 GiB here and 96 GiB"),
        ("gfx950", 309_220_868_096, 256, "may be Instinct MI350X or Instinct MI355X"),
        ("Tesla V100-SXM3-32GB-H", None, None, "no data sheet"),
        ("Tesla V100-FHHL-16GB", None, None, "no data sheet"),
        ("AMD Instinct MI250X/MI250", None, None, "may be"),
        ("AMD Radeon Graphics", None, 104, "may be any of several"),
        ("AMD Radeon Graphics", 25_753_026_560, 96, "not in the table"),
        ("", None, None, "a device without a name"),
        ("gfx90a", None, None, "may be any of several"),
        ("gfx1100", 25_753_026_560, 48, "no data sheet"),
        ("NVIDIA A100-SXM-64GB", None, None, "no data sheet"),
        ("NVIDIA A10-24Q", None, None, "virtual GPU"),
        ("GRID A100D-80C", None, None, "virtual GPU"),
        ("GRID A100-1-5C", None, None, "virtual GPU"),
        ("NVIDIA A40-8Q", 8_589_934_592, 84, "virtual GPU"),
        ("NVIDIA H100 80GB HBM2e", None, None, "no data sheet"),
        ("AMD Instinct MI308X", None, None, "no data sheet"),
        ("Intel(R) Data Center GPU Max 1550", None, None, "no data sheet"),
        ("x" * 1_000_000, None, None, "no data sheet"),
    ],
)
def test_devices_without_one(name: str | None, memory: int | None, multiprocessors: int | None, why: str) -> None:
    found = match(name, memory, multiprocessors)
    assert found.sheet is None
    assert found.why is not None
    assert why in found.why
    assert len(found.why) < 250


def test_a_sheet_in_base_units() -> None:
    ceilings = ceilings_of(BY_DEVICE["A100 SXM4 80 GB"])
    assert ceilings.matrix_peak("bfloat16") == 312e12
    assert ceilings.matrix_peak("float32") == 19.5e12
    assert ceilings.matrix_peak("float32", tf32=True) == 156e12
    assert ceilings.matrix_peak("float8_e4m3fn") is None
    assert ceilings.matrix_peak(None) is None
    assert ceilings.vector_peak("bfloat16") == 19.5e12
    assert ceilings.vector_peak("float64") == 9.7e12
    assert ceilings.bandwidth_bytes_per_second == 2039e9
    assert ceilings.memory_bytes == 80 * GIB
    assert "https://" in ceilings.source
    assert ceilings_of(BY_DEVICE["H100 SXM"]).matrix_peak("float8_e5m2") == 1978.9e12
    assert ceilings_of(BY_DEVICE["T4"]).matrix_peak("float32", tf32=True) == 8.1e12


# ---------------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("text", "peaks"),
    [
        ("989T", {"any": 989e12}),
        ("312e12", {"any": 312e12}),
        ("2.25P", {"any": 2.25e15}),
        ("bf16=989e12,fp32=67e12", {"bfloat16": 989e12, "float32": 67e12}),
        (" bf16 = 989 TFLOP/s , tf32=494.7T ", {"bfloat16": 989e12, "tf32": 494.7e12}),
        ("int8=624TOPS,fp8=.5P", {"int8": 624e12, "float8": 0.5e15}),
        ("150GFLOPS", {"any": 150e9}),
        ("fp16=312T,100T", {"float16": 312e12, "any": 100e12}),
    ],
)
def test_peaks(text: str, peaks: dict[str, float]) -> None:
    assert parse_peaks(text) == pytest.approx(peaks)


@pytest.mark.parametrize(
    "text",
    ["", "T", "989", "989Q", "-1T", "nan", "inf", "1e400", "bf16=", "bf17=1T", "bf16=1T,bf16=2T", "1T,2T", "=1T",
     "1 T B/s", "9" * 500, "989E", "989T,", "bf16=1T;fp32=1T"],
)  # fmt: skip
def test_peaks_that_make_no_sense(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--peak") as error:
        parse_peaks(text)
    assert "\n" not in str(error.value)
    assert " - " in str(error.value)


def test_bandwidths() -> None:
    assert parse_bandwidth("3.35T") == 3.35e12
    assert parse_bandwidth("900 GB/s") == 900e9
    for text in ("", "3.35", "fast", "1TFLOP/s", "0G"):
        with pytest.raises(UsageError, match=r"^--bandwidth"):
            parse_bandwidth(text)


def test_what_is_given_goes_before_what_is_known() -> None:
    sheet = ceilings_of(BY_DEVICE["A100 SXM4 40 GB"])
    over = parse_overrides("bf16=250T", "1.4T").over(sheet, "x")
    assert over.matrix_peak("bfloat16") == 250e12
    assert over.matrix_peak("float16") == 312e12
    assert over.bandwidth_bytes_per_second == 1.4e12
    assert over.source == f"--peak bf16=250T and --bandwidth 1.4T; else {sheet.source}"
    assert [(one.name, one.option, one.known_per_second) for one in over.given] == [
        ("bfloat16", "--peak bf16=250T", 312e12), ("bandwidth", "--bandwidth 1.4T", sheet.bandwidth_bytes_per_second),
    ]  # fmt: skip
    alone = parse_overrides("1T,fp32=2T", None).over(None, "my card")
    assert (alone.device, alone.source) == ("my card", "--peak 1T,fp32=2T")
    assert alone.matrix_flops_per_second == {**dict.fromkeys(PEAK_TYPES, 1e12), "float32": 2e12}
    assert {one.option for one in alone.given} == {"--peak 1T", "--peak fp32=2T"}
    # Without the words that gave it, the option alone.
    assert Overrides(peaks={"any": 1e12}).over(None, "my card").source == "--peak"
    assert not Overrides()


def test_the_higher_of_what_is_given_and_what_is_known() -> None:
    """A given ceiling that was measured on a busy device is no longer that measurement."""
    known = Ceilings(
        device="x", source="measured", matrix_flops_per_second={"bfloat16": 300e12, "float32": 20e12},
        bandwidth_bytes_per_second=1e12, disturbed=("bfloat16", "float32", "bandwidth"),
    )  # fmt: skip
    over = parse_overrides("bf16=100T,fp32=30T,fp16=50T", "2T").over(known, "x")
    assert over.disturbed == ("bfloat16",)
    assert over.matrix_flops_per_second == {"bfloat16": 100e12, "float32": 30e12, "float16": 50e12}
    assert over.reference.matrix_flops_per_second == {"bfloat16": 300e12, "float32": 30e12, "float16": 50e12}
    assert over.reference.bandwidth_bytes_per_second == 2e12
    assert [one.name for one in over.reference.given] == ["float32", "float16", "bandwidth"]
    slow = parse_overrides(None, "0.5T").over(known, "x")
    assert (slow.bandwidth_bytes_per_second, slow.reference.bandwidth_bytes_per_second) == (5e11, 1e12)
    assert parse_overrides("fp32=30T", None).over(known, "x").reference.given[0].name == "float32"


# ------------------------------------------------------------------------------------------------------- what is kept

CPU = Machine(device="AMD EPYC 7R13 / x", kind="cpu", torch="2.13.0", threads=2)


def rate(per_second: float, by: str = "1 x 1 by 1 x 1") -> Rate:
    return Rate(per_second=per_second, by=by, spread=0.1, bursts=3, measured=now())


MEASURED = Measured(
    machine=CPU,
    peaks={"float32": rate(150e9), "float64": rate(75e9)},
    bandwidths={"copy": rate(20e9), "triad": rate(21e9)},
)


def test_what_was_measured_on_a_busy_machine_is_said() -> None:
    """By the spread of the bursts of what is used: of several ways to move bytes the fastest."""
    assert measured_ceilings(MEASURED).disturbed == ()
    busy = replace(rate(22e9), spread=0.51)
    slower = replace(MEASURED, bandwidths={**MEASURED.bandwidths, "read": replace(busy, per_second=1e9)})
    assert measured_ceilings(slower).disturbed == ()
    both = replace(MEASURED, peaks={"float32": busy}, bandwidths={"read": busy})
    assert measured_ceilings(both).disturbed == ("float32", "bandwidth", "vector float32")
    assert "float32 and bandwidth while something else was busy there" in measured_ceilings(both).source


def test_kept_and_found_again(tmp_path: Path) -> None:
    path = store(MEASURED, tmp_path / "deep" / "folder")
    assert load(CPU, path.parent) == MEASURED
    assert path.name.startswith("amd-epyc-7r13-x-")
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    for other in (
        replace(CPU, threads=3),
        replace(CPU, torch="2.12"),
        replace(CPU, driver="1"),
        replace(CPU, device="y"),
    ):
        assert load(other, path.parent) is None


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store(MEASURED, tmp_path)

    def fail(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        store(replace(MEASURED, peaks={}), tmp_path)
    monkeypatch.undo()
    assert load(CPU, tmp_path) == MEASURED
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff\xfe", b'{"schema": 1}', b"[" * 100_000, b"0" * (2 << 20)],
    ids=["empty", "cut", "list", "binary", "fields", "deep", "large"],
)
def test_a_damaged_file_is_as_none(tmp_path: Path, content: bytes) -> None:
    path = store(MEASURED, tmp_path)
    path.write_bytes(content)
    assert load(CPU, tmp_path) is None
    store(MEASURED, tmp_path)
    assert load(CPU, tmp_path) == MEASURED


def test_a_file_of_another_machine_schema_or_with_nonsense_is_as_none(tmp_path: Path) -> None:
    path = store(MEASURED, tmp_path)
    text = path.read_text()
    for old, new in (('"threads": 2', '"threads": 4'), ('"schema": 1', '"schema": 2'), ("150000000000.0", "-1.0")):
        assert old in text
        path.write_text(text.replace(old, new))
        assert load(CPU, tmp_path) is None
    path.unlink()
    path.mkdir()
    assert load(CPU, tmp_path) is None


def test_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "opanatomy" / "ceilings"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "opanatomy" / "ceilings"


def test_newer_figures_keep_the_older_others() -> None:
    newer = Measured(machine=CPU, peaks={"float32": rate(160e9)})
    both = newer.over(MEASURED)
    assert both.peaks["float32"].per_second == 160e9
    assert both.peaks["float64"].per_second == 75e9
    assert both.bandwidths == MEASURED.bandwidths
    assert newer.over(None) is newer


def test_ages() -> None:
    assert age(now()) == "today"
    assert age("2020-01-01T00:00:00+00:00").endswith(" days")
    assert age("yesterday") == "of an unknown date"
    assert age("2020-01-01T00:00:00") == "of an unknown date"


# ------------------------------------------------------------------------------------------------- ceilings of a report

ON_CPU = Environment(device=CPU.device, device_kind="cpu", torch="2.13.0", host_threads=2, processor=CPU.device)
H100 = Environment(device="NVIDIA H100 80GB HBM3", device_kind="cuda", device_memory_bytes=85_018_279_936)


def test_of_a_processor_only_what_was_measured_there(tmp_path: Path) -> None:
    nothing = ceilings_for(ON_CPU, folder=tmp_path)
    assert nothing.ceilings is None
    assert nothing.why_not is not None
    assert "`opanatomy ceilings`" in nothing.why_not
    assert "--peak" in nothing.why_not
    store(MEASURED, tmp_path)
    found = ceilings_for(ON_CPU, folder=tmp_path).ceilings
    assert found is not None
    assert found.matrix_peak("float32") == 150e9
    assert found.vector_peak("bfloat16") == 150e9
    assert found.bandwidth_bytes_per_second == 21e9
    assert found.source == f"measured {now()[:10]}, torch 2.13.0, 2 threads"
    assert ceilings_for(replace(ON_CPU, host_threads=8), folder=tmp_path).ceilings is None
    assert ceilings_for(Environment(), on_cpu=True, folder=tmp_path).ceilings is None


def test_of_an_accelerator_the_sheet_unless_measured(tmp_path: Path) -> None:
    found = ceilings_for(H100, multiprocessors=132, folder=tmp_path).ceilings
    assert found is not None
    assert found.matrix_peak("bfloat16") == 989.4e12
    assert found.source.startswith("data sheet of H100 SXM, https://")
    machine = Machine(
        device="NVIDIA H100 80GB HBM3", kind="cuda", memory_bytes=85_018_279_936, torch="2.13", driver="5"
    )
    store(replace(MEASURED, machine=machine, peaks={"bfloat16": rate(700e12)}), tmp_path)
    assert ceilings_for(H100, multiprocessors=132, folder=tmp_path).ceilings == found
    measured = ceilings_for(replace(H100, torch="2.13", driver="5"), multiprocessors=132, folder=tmp_path).ceilings
    assert measured is not None
    assert measured.matrix_peak("bfloat16") == 700e12
    assert measured.vector_peak("float32") == 66.9e12
    assert measured.matrix_peak("float64") == 66.9e12
    assert measured.source.startswith(f"measured {now()[:10]}, torch 2.13, driver 5; else data sheet of H100 SXM, ")


def test_of_an_unknown_device_a_line_or_what_is_given(tmp_path: Path) -> None:
    environment = Environment(device="Frobnicator 9000", device_kind="cuda")
    unknown = ceilings_for(environment, folder=tmp_path)
    assert unknown.ceilings is None
    assert unknown.why_not == (
        "no ceilings: no data sheet of Frobnicator 9000 is in the table - run `opanatomy ceilings` on the device, or"
        " give --peak and --bandwidth"
    )
    given = ceilings_for(environment, overrides=parse_overrides("1P", "1T"), folder=tmp_path)
    assert given.why_not is None
    assert given.ceilings is not None
    assert given.ceilings.matrix_peak("float16") == 1e15
    assert given.ceilings.source == "--peak 1P and --bandwidth 1T"


def test_a_part_of_a_device_gets_no_sheet(tmp_path: Path) -> None:
    assert ceilings_for(H100, multiprocessors=60, folder=tmp_path).ceilings is None


# -------------------------------------------------------------------------------------------------------- measuring

TINY = Effort(
    min_s=0.02,
    max_s=0.05,
    patience_s=0.01,
    turn_s=0.001,
    shapes=((32, 32, 32), (64, 64, 64)),
    array_bytes=1 << 20,
    chunk_bytes=1 << 18,
)


def test_a_real_measurement() -> None:
    stages: list[str] = []
    measured = measure(
        CPU, "cpu", ["float64", "float32", "tf32", "bfloat16", "int8"], effort=TINY, on_stage=stages.append
    )
    assert {"float64", "float32", "bfloat16"} <= set(measured.peaks)
    assert "tf32" not in measured.peaks
    assert set(measured.bandwidths) == {"copy", "triad", "read"}
    for one in (*measured.peaks.values(), *measured.bandwidths.values()):
        assert one.per_second > 0
        assert 0 <= one.spread < 1
        assert one.bursts >= 1
    assert measured.bandwidths["copy"].by == "copy of 1 MiB arrays"
    assert stages[0] == "multiplying float64"


def test_what_torch_cannot_multiply_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("addmm_impl_cpu_ not implemented")

    monkeypatch.setattr(torch, "mm", refuse)
    measured = measure(CPU, "cpu", ["float32"], moves=(), effort=TINY)
    assert measured.peaks == {}


# ----------------------------------------------------------------------------------------------------------- command


def test_the_command_measures_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("opanatomy.capture.ceilings.default_effort", lambda device: TINY)
    assert main(["ceilings", "--device", "cpu", "--dtype", "fp32,float64", "-f", "json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert set(first["peaks"]) == {"float32", "float64"}
    assert first["bandwidth"]["source"] == "measured"
    assert main(["ceilings", "--device", "cpu", "--dtype", "fp32,float64", "-f", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert main(["ceilings", "--device", "cpu", "--dtype", "fp32", "--refresh", "-f", "json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["peaks"]["float32"]["flops_per_second"] != first["peaks"]["float32"]["flops_per_second"]
    assert main(["ceilings", "--device", "cpu", "--dtype", "tf32"]) == 0
    assert "tf32: cpu has no units for it" in capsys.readouterr().err
    assert main(["ceilings", "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    assert "bfloat16" in text  # was not tried before
    assert "float64" in text
    assert "today" in text
    assert len(list((tmp_path / "opanatomy" / "ceilings").iterdir())) == 1


def test_the_command_takes_what_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["ceilings", "--device", "cpu", "--peak", "1T", "--bandwidth", "100G", "-f", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["peaks"]["float32"] == {
        "flops_per_second": 1e12, "source": "given", "data_sheet_flops_per_second": None,
    }  # fmt: skip
    assert document["bandwidth"]["bytes_per_second"] == 100e9
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dtype", "fp33"], "no data type 'fp33'"),
        (["--peak", "fast"], "--peak fast: 'fast' is not a number"),
        (["--bandwidth", "12"], "--bandwidth 12"),
        (["-f", "xml"], "--format xml: not known - one of terminal, json"),
        (["--device", "tpu"], "--device tpu"),
    ],
)
def test_wrong_usage(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ceilings", *options]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("width", [40, 80, 120])
def test_beside_the_sheet(width: int) -> None:
    machine = Machine(
        device="NVIDIA H100 80GB HBM3", kind="cuda", memory_bytes=85_018_279_936, torch="2.13", driver="575"
    )
    measured = Measured(
        machine=machine,
        peaks={"bfloat16": rate(700e12, "8192 x 8192 by 8192 x 8192")},
        bandwidths={"copy": rate(3e12, "copy of 2048 MiB arrays")},
    )
    found = match(machine.device, machine.memory_bytes, 132)
    text = as_text(measured, Overrides(), ["bfloat16"], found, width)
    assert all(len(line) <= max(width, 40) for line in text.splitlines() if "https://" not in line)
    if width >= 80:
        assert "989 T" in text
        assert "70.7 %" in text
        assert "89.6 %" in text
    document = json.loads(as_json(measured, Overrides(), ["bfloat16"], found))
    assert document["peaks"]["bfloat16"]["data_sheet_flops_per_second"] == 989.4e12
    assert document["data_sheet"]["device"] == "H100 SXM"
    unknown = as_text(measured, Overrides(), ["bfloat16"], Match(why="no data sheet of X is in the table"), width)
    assert "no data sheet of X" in " ".join(unknown.split())


def test_cache_names_are_plain(tmp_path: Path) -> None:
    assert cache_file(tmp_path, replace(CPU, device="../../etc")).parent == tmp_path
    assert cache_file(tmp_path, replace(CPU, device="///")).name.startswith("device-")


# --------------------------------------------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    machine = Machine(device=torch.cuda.get_device_name(), kind="cuda")
    before = torch.get_float32_matmul_precision()
    measured = measure(machine, "cuda:0")
    assert measured.peaks["tf32"].per_second > measured.peaks["float32"].per_second
    assert measured.bandwidths["copy"].per_second > 1e11
    assert torch.get_float32_matmul_precision() == before
