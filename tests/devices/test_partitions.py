"""Parts of devices: MIG slices by their share, AMD's partitions without a bandwidth, all else refused with a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from opanatomy.devices.ceilings import ceilings_for
from opanatomy.devices.match import ceilings_of, match
from opanatomy.devices.sheets import GIB, SHEETS, Sheet
from opanatomy.records.workload import Environment

MIB = 1 << 20

#: Name (without the maker), memory and multiprocessors as the driver gives them; multiprocessors of the part and of the
#: whole, memory slices of how many; TFLOP/s of bfloat16 products and of float32 vectors, GB/s and MiB of L2.
SLICES = [
    ("A100-SXM4-40GB MIG 1g.5gb", 4864 * MIB, 14, (14, 108, 1, 8), 40.444444, 2.527778, 194.375, 5.0),
    ("A100-SXM4-40GB MIG 1g.10gb", None, 14, (14, 108, 2, 8), 40.444444, 2.527778, 388.75, None),
    ("A100-SXM4-40GB MIG 3g.20gb", 20_224 * MIB, 42, (42, 108, 4, 8), 121.333333, 7.583333, 777.5, 20.0),
    ("A100-SXM4-40GB MIG 7g.40gb", None, None, (98, 108, 8, 8), 283.111111, 17.694444, 1555.0, 40.0),
    ("A100-SXM4-40GB MIG 1c.3g.20gb", None, 14, (14, 108, 4, 8), 40.444444, 2.527778, 777.5, 20.0),
    ("A100 80GB PCIe MIG 1g.10gb", 9728 * MIB, 14, (14, 108, 1, 8), 40.444444, 2.527778, 241.875, 5.0),
    ("A30 MIG 2g.12gb", None, None, (28, 56, 2, 4), 82.5, 5.15, 466.5, None),
    ("H100 80GB HBM3 MIG 1g.10gb", 9984 * MIB, 16, (16, 132, 1, 8), 119.927273, 8.109091, 418.75, 6.25),
    ("H100 80GB HBM3 MIG 3g.40gb", None, 60, (60, 132, 4, 8), 449.727273, 30.409091, 1675.0, 25.0),
    ("H100 PCIe MIG 3g.40gb", None, 46, (46, 114, 4, 8), 305.214035, 20.659649, 1019.5, 25.0),
    ("H200 MIG 1g.18gb", 16 * GIB, 16, (16, 132, 1, 8), 119.927273, 8.109091, 600.0, 7.5),
    ("B200 MIG 1g.23gb", None, 18, (18, 148, 1, 8), 273.648649, 9.121622, 962.5, 15.75),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "memory", "given", "shares", "matrix", "vector", "bandwidth", "cache"), SLICES, ids=lambda v: str(v)[:40]
)
def test_a_mig_slice_has_its_share(
    name: str,
    memory: int | None,
    given: int | None,
    shares: tuple[int, int, int, int],
    matrix: float,
    vector: float,
    bandwidth: float,
    cache: float | None,
) -> None:
    matched = match(f"NVIDIA {name}", memory, given)
    assert matched.sheet is not None, matched.why
    count, whole, slices, of = shares
    assert matched.sheet.scaled == f"{count} of {whole} multiprocessors and {slices} of {of} memory slices"
    ceilings = ceilings_of(matched.sheet)
    assert ceilings.matrix_peak("bfloat16") == pytest.approx(matrix * 1e12, rel=1e-6)
    assert ceilings.vector_peak("float32") == pytest.approx(vector * 1e12, rel=1e-6)
    assert ceilings.bandwidth_bytes_per_second == pytest.approx(bandwidth * 1e9, rel=1e-9)
    assert ceilings.cache_bytes == (None if cache is None else cache * MIB)
    assert f"scaled to {matched.sheet.scaled}, https://" in ceilings.source


@pytest.mark.parametrize("sheet", [sheet for sheet in SHEETS if sheet.mig], ids=lambda sheet: sheet.device)
def test_documented_profiles_fit_their_device(sheet: Sheet) -> None:
    mig, whole = sheet.mig, max(sheet.multiprocessors)
    assert mig is not None
    assert max(mig.profiles)[:2] == (mig.compute, mig.memory)
    for compute, memory, count in mig.profiles:
        assert 1 <= compute <= mig.compute
        assert memory in (1, 2, 4, 8)
        assert count is None or 0.8 * compute / mig.compute <= count / whole <= 1.45 * compute / mig.compute


@pytest.mark.parametrize(
    ("name", "memory", "multiprocessors", "why"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None, 108, "no 1g.5gb slice of A100 SXM4 40 GB has 108 of its 108"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None, 28, "no 1g.5gb slice of A100 SXM4 40 GB has 28 of its 108"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 40 * GIB, 14, "40.0 GiB here but 5 GiB"),
        ("NVIDIA A100-SXM4-40GB MIG 3g.40gb", None, 42, "A100 SXM4 40 GB has no MIG profile 3g.40gb"),
        ("NVIDIA A100-SXM4-40GB MIG 5g.25gb", None, 70, "A100 SXM4 40 GB has no MIG profile 5g.25gb"),
        ("NVIDIA A100-SXM4-40GB MIG 4c.3g.20gb", None, 42, "A100 SXM4 40 GB has no MIG profile 4c.3g.20gb"),
        (
            "NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb",
            None,
            None,
            "the number of multiprocessors of a 1c.3g.20gb slice",
        ),
        (
            "NVIDIA H100 PCIe MIG 1g.10gb",
            None,
            None,
            "the number of multiprocessors of a 1g.10gb slice of H100 PCIe",
        ),
        ("NVIDIA H100 MIG 1g.10gb", None, 16, "could be H100 PCIe MIG 1g.10gb or H100 SXM MIG 1g.10gb"),
        ("NVIDIA GB200 MIG 1g.23gb", None, 18, "the number of multiprocessors of GB200 is unknown"),
        ("NVIDIA L40 MIG 1g.6gb", None, None, "opanatomy has no MIG profiles for L40"),
        ("NVIDIA Frobnicator MIG 1g.6gb", None, 9, "opanatomy has no data sheet for Frobnicator, which NVIDIA"),
        ("NVIDIA A100-SXM4-40GB MIG", None, 14, "does not say which part"),
        ("AMD Instinct MI300X", 206_141_652_992, 40, "40 multiprocessors here but 304"),
        ("AMD Instinct MI300X", 500 * GIB, 38, "500.0 GiB here but 192 GiB"),
        ("AMD Instinct MI300X", None, 0, "0 multiprocessors here but 304"),
    ],
)
def test_parts_of_which_the_share_is_not_known(
    name: str, memory: int | None, multiprocessors: int | None, why: str
) -> None:
    matched = match(name, memory, multiprocessors)
    assert matched.sheet is None
    assert matched.why is not None
    assert why in matched.why
    assert "\n" not in matched.why


@pytest.mark.parametrize(
    ("name", "memory", "count", "parts", "half", "single"),
    [
        ("AMD Instinct MI300X", 206_141_652_992, 38, 8, 163.425, 20.425),  # CPX, NPS1
        ("AMD Instinct MI300X", 25_769_803_776, 38, 8, 163.425, 20.425),  # CPX, NPS1 or NPS4 of newer drivers
        ("AMD Instinct MI300X VF", None, 152, 2, 653.7, 81.7),
        ("AMD Instinct MI325X", None, 76, 4, 326.85, 40.85),
        ("AMD Instinct MI300A", None, 76, 3, 326.866667, 40.866667),
        ("AMD Instinct MI355X", None, 32, 8, 314.575, 19.6625),
    ],
)
def test_a_partition_has_its_share_of_the_peaks_alone(
    name: str, memory: int | None, count: int, parts: int, half: float, single: float
) -> None:
    matched = match(name, memory, count)
    assert matched.sheet is not None, matched.why
    ceilings = ceilings_of(matched.sheet)
    assert ceilings.device.endswith(f" (one of {parts} partitions)")
    assert ceilings.matrix_peak("bfloat16") == pytest.approx(half * 1e12, rel=1e-6)
    assert ceilings.vector_peak("float32") == pytest.approx(single * 1e12, rel=1e-6)
    assert (ceilings.bandwidth_bytes_per_second, ceilings.memory_bytes, ceilings.cache_bytes) == (None, None, None)
    assert f"scaled to {count} of {count * parts} compute units (the memory mode" in ceilings.source


def test_a_report_of_a_slice_says_so(tmp_path: Path) -> None:
    environment = Environment(
        device="NVIDIA A100-SXM4-40GB MIG 1g.5gb", device_kind="cuda", device_memory_bytes=4864 * MIB
    )
    found = ceilings_for(environment, multiprocessors=14, folder=tmp_path)
    assert found.why_not is None
    assert found.ceilings is not None
    assert found.ceilings.source.startswith(
        "data sheet of A100 SXM4 40 GB MIG 1g.5gb, scaled to 14 of 108 multiprocessors and 1 of 8 memory slices, https://"
    )
    virtual = ceilings_for(Environment(device="GRID A100D-80C", device_kind="cuda"), folder=tmp_path)
    assert virtual.why_not == (
        "GRID A100D-80C is a virtual GPU, and its share of the physical GPU is unknown - use --peak and --bandwidth"
    )
