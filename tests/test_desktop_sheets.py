"""Data sheets of cards for desktops and workstations: worked out again, next to the maker's figures, and by name."""

from __future__ import annotations

import pytest

from opanatomy.devices.ceilings import ceilings_for
from opanatomy.devices.match import ceilings_of, match
from opanatomy.devices.sheets import GEFORCE, GEFORCE_OLDER, GIB, SHEETS, WORKSTATION, Sheet
from opanatomy.records.taxonomy import PEAK_TYPES
from opanatomy.records.workload import Environment

MIB = 1 << 20
DESKTOP = {sheet.device: sheet for sheet in (*GEFORCE_OLDER, *GEFORCE, *WORKSTATION)}

#: Operations a clock and multiprocessor by data type, accumulating in float32: CUDA C++ programming guide, "Arithmetic
#: Instructions", and the white papers' tables of dense tensor-core figures.
Widths = dict[str, int]
PASCAL: Widths = {"float64": 8, "float32": 256, "float16": 256}
VOLTA: Widths = {"float64": 64, "float32": 128, "float16": 1024}
TURING_GTX: Widths = {"float64": 4, "float32": 128, "float16": 256}
TURING_GEFORCE: Widths = {"float64": 4, "float32": 128, "float16": 512, "int8": 2048}
TURING: Widths = {**TURING_GEFORCE, "float16": 1024}
SLOWED: Widths = {"float64": 4, "float32": 256}
AMPERE_GEFORCE: Widths = {**SLOWED, "tf32": 256, "bfloat16": 512, "float16": 512, "int8": 2048}
AMPERE: Widths = {**SLOWED, "tf32": 512, "bfloat16": 1024, "float16": 1024, "int8": 2048}
ADA_GEFORCE: Widths = {**AMPERE_GEFORCE, "float8": 1024}
ADA: Widths = {**AMPERE, "float8": 2048}

#: Multiprocessors, boost clock in MHz, widths (Blackwell's are Ada's), GiB, bits of the bus, Gbit/s of each, MiB of L2.
CARDS: dict[str, tuple[int, int, Widths, float, int, float | None, float | None]] = {
    "TITAN X (Pascal)": (28, 1531, PASCAL, 12, 384, 10.0, 3),
    "TITAN Xp": (30, 1582, PASCAL, 12, 384, 11.4, 3),
    "GeForce GTX 1070": (15, 1683, PASCAL, 8, 256, 8.0, 2),
    "GeForce GTX 1070 Ti": (19, 1683, PASCAL, 8, 256, 8.0, 2),
    "GeForce GTX 1080": (20, 1733, PASCAL, 8, 256, 10.0, 2),
    "GeForce GTX 1080 Ti": (28, 1582, PASCAL, 11, 352, 11.0, 2.75),
    "TITAN V": (80, 1455, VOLTA, 12, 3072, 1.7, 4.5),
    "GeForce GTX 1650 GDDR5": (14, 1665, TURING_GTX, 4, 128, 8.0, 1),
    "GeForce GTX 1650 GDDR6": (14, 1590, TURING_GTX, 4, 128, 12.0, 1),
    "GeForce GTX 1650 SUPER": (20, 1725, TURING_GTX, 4, 128, 12.0, 1),
    "GeForce GTX 1660": (22, 1785, TURING_GTX, 6, 192, 8.0, 1.5),
    "GeForce GTX 1660 SUPER": (22, 1785, TURING_GTX, 6, 192, 14.0, 1.5),
    "GeForce GTX 1660 Ti": (24, 1770, TURING_GTX, 6, 192, 12.0, 1.5),
    "GeForce RTX 2060 6 GB": (30, 1680, TURING_GEFORCE, 6, 192, 14.0, 3),
    "GeForce RTX 2060 12 GB": (34, 1650, TURING_GEFORCE, 12, 192, 14.0, 3),
    "GeForce RTX 2060 SUPER": (34, 1650, TURING_GEFORCE, 8, 256, 14.0, 4),
    "GeForce RTX 2070": (36, 1620, TURING_GEFORCE, 8, 256, 14.0, 4),
    "GeForce RTX 2070 SUPER": (40, 1770, TURING_GEFORCE, 8, 256, 14.0, 4),
    "GeForce RTX 2080": (46, 1710, TURING_GEFORCE, 8, 256, 14.0, 4),
    "GeForce RTX 2080 SUPER": (48, 1815, TURING_GEFORCE, 8, 256, 15.5, 4),
    "GeForce RTX 2080 Ti": (68, 1545, TURING_GEFORCE, 11, 352, 14.0, 5.5),
    "TITAN RTX": (72, 1770, TURING, 24, 384, 14.0, 6),
    "GeForce RTX 3050 6 GB": (18, 1470, AMPERE_GEFORCE, 6, 96, 14.0, 2),
    "GeForce RTX 3050 8 GB": (20, 1777, AMPERE_GEFORCE, 8, 128, 14.0, 2),
    "GeForce RTX 3060 8 GB": (28, 1777, AMPERE_GEFORCE, 8, 128, 15.0, 3),
    "GeForce RTX 3060 12 GB": (28, 1777, AMPERE_GEFORCE, 12, 192, 15.0, 3),
    "GeForce RTX 3060 Ti GDDR6": (38, 1665, AMPERE_GEFORCE, 8, 256, 14.0, 4),
    "GeForce RTX 3060 Ti GDDR6X": (38, 1665, AMPERE_GEFORCE, 8, 256, 19.0, 4),
    "GeForce RTX 3070": (46, 1725, AMPERE_GEFORCE, 8, 256, 14.0, 4),
    "GeForce RTX 3070 Ti": (48, 1770, AMPERE_GEFORCE, 8, 256, 19.0, 4),
    "GeForce RTX 3080 10 GB": (68, 1710, AMPERE_GEFORCE, 10, 320, 19.0, 5),
    "GeForce RTX 3080 12 GB": (70, 1710, AMPERE_GEFORCE, 12, 384, 19.0, 6),
    "GeForce RTX 3080 Ti": (80, 1665, AMPERE_GEFORCE, 12, 384, 19.0, 6),
    "GeForce RTX 3090": (82, 1695, AMPERE_GEFORCE, 24, 384, 19.5, 6),
    "GeForce RTX 3090 Ti": (84, 1860, AMPERE_GEFORCE, 24, 384, 21.0, 6),
    "GeForce RTX 4060": (24, 2460, ADA_GEFORCE, 8, 128, 17.0, 24),
    "GeForce RTX 4060 Ti 8 GB": (34, 2535, ADA_GEFORCE, 8, 128, 18.0, 32),
    "GeForce RTX 4060 Ti 16 GB": (34, 2535, ADA_GEFORCE, 16, 128, 18.0, 32),
    "GeForce RTX 4070": (46, 2475, ADA_GEFORCE, 12, 192, 21.0, 36),
    "GeForce RTX 4070 SUPER": (56, 2475, ADA_GEFORCE, 12, 192, 21.0, 48),
    "GeForce RTX 4070 Ti": (60, 2610, ADA_GEFORCE, 12, 192, 21.0, 48),
    "GeForce RTX 4070 Ti SUPER": (66, 2610, ADA_GEFORCE, 16, 256, 21.0, 48),
    "GeForce RTX 4080": (76, 2505, ADA_GEFORCE, 16, 256, 22.4, 64),
    "GeForce RTX 4080 SUPER": (80, 2550, ADA_GEFORCE, 16, 256, 23.0, 64),
    "GeForce RTX 4090": (128, 2520, ADA_GEFORCE, 24, 384, 21.0, 72),
    "GeForce RTX 4090 D": (114, 2520, ADA_GEFORCE, 24, 384, 21.0, 72),
    "GeForce RTX 5050": (20, 2572, ADA_GEFORCE, 8, 128, 20.0, 24),
    "GeForce RTX 5060": (30, 2497, ADA_GEFORCE, 8, 128, 28.0, 32),
    "GeForce RTX 5060 Ti 8 GB": (36, 2572, ADA_GEFORCE, 8, 128, 28.0, 32),
    "GeForce RTX 5060 Ti 16 GB": (36, 2572, ADA_GEFORCE, 16, 128, 28.0, 32),
    "GeForce RTX 5070": (48, 2512, ADA_GEFORCE, 12, 192, 28.0, 48),
    "GeForce RTX 5070 Ti": (70, 2452, ADA_GEFORCE, 16, 256, 28.0, None),
    "GeForce RTX 5080": (84, 2617, ADA_GEFORCE, 16, 256, 30.0, 64),
    "GeForce RTX 5090": (170, 2407, ADA_GEFORCE, 32, 512, 28.0, 96),
    "GeForce RTX 5090 D": (170, 2407, SLOWED, 32, 512, 28.0, 96),
    "GeForce RTX 5090 D v2": (170, 2407, SLOWED, 24, 384, 28.0, 96),
    "Quadro GV100": (80, 1447, VOLTA, 32, 4096, 1.7, 6),
    "Quadro RTX 4000": (36, 1545, TURING, 8, 256, 13.0, 4),
    "Quadro RTX 5000": (48, 1815, TURING, 16, 256, 14.0, 4),
    "Quadro RTX 6000": (72, 1770, TURING, 24, 384, 14.0, 6),
    "Quadro RTX 8000": (72, 1770, TURING, 48, 384, 14.0, 6),
    "RTX A2000 6 GB": (26, 1200, AMPERE, 6, 192, 12.0, 3),
    "RTX A2000 12 GB": (26, 1200, AMPERE, 12, 192, 12.0, 3),
    "RTX A4000": (48, 1560, AMPERE, 16, 256, 14.0, 4),
    "RTX A4500": (56, 1650, AMPERE, 20, 320, 16.0, 6),
    "RTX A5000": (64, 1695, AMPERE, 24, 384, 16.0, 6),
    "RTX A5500": (80, 1665, AMPERE, 24, 384, 16.0, 6),
    "RTX A6000": (84, 1800, AMPERE, 48, 384, 16.0, 6),
    "RTX 2000 Ada Generation": (22, 2130, ADA, 16, 128, 14.0, 12),
    "RTX 4000 SFF Ada Generation": (48, 1560, ADA, 20, 160, 14.0, 48),
    "RTX 4000 Ada Generation": (48, 2175, ADA, 20, 160, 18.0, 48),
    "RTX 4500 Ada Generation": (60, 2580, ADA, 24, 192, 18.0, 48),
    "RTX 5000 Ada Generation": (100, 2550, ADA, 32, 256, 18.0, 72),
    "RTX 5880 Ada Generation": (110, 2460, ADA, 48, 384, None, 72),
    "RTX 6000 Ada Generation": (142, 2505, ADA, 48, 384, 20.0, 96),
    "RTX PRO 2000 Blackwell": (34, 1957, ADA, 16, 128, 18.0, 32),
    "RTX PRO 4000 Blackwell": (70, 2232, ADA, 24, 192, 28.0, 48),
    "RTX PRO 4500 Blackwell": (82, 2407, ADA, 32, 256, 28.0, 64),
    "RTX PRO 5000 Blackwell 48 GB": (110, 2290, ADA, 48, 384, 28.0, 96),
    "RTX PRO 5000 Blackwell 72 GB": (110, 2290, ADA, 72, 384, 28.0, 96),
    "RTX PRO 6000 Blackwell Workstation Edition": (188, 2617, ADA, 96, 512, 28.0, 128),
    "RTX PRO 6000 Blackwell Max-Q": (188, 2280, ADA, 96, 512, 28.0, 128),
    "RTX PRO 6000 Blackwell Server Edition": (188, 2493, ADA, 96, 512, 24.95, 128),}  # fmt: skip
#: The maker's figure is lower than its clock makes it.
MATRIX_CLOCKS = {"TITAN V": 1343}

#: What the maker prints, and how many times the sheet's figure of a data type that is: AI TOPS and tensor TFLOP/s are
#: of the narrowest type, with sparsity, and of half-precision products that accumulate in halves.
PRINTED = {
    "GeForce RTX 2070": (59.7, 2, "float16"),
    "GeForce RTX 2080": (80.5, 2, "float16"),
    "GeForce RTX 2080 Ti": (107.6, 2, "float16"),
    "TITAN V": (110, 1, "float16"),
    "TITAN RTX": (130.5, 1, "float16"),
    "GeForce RTX 3060 12 GB": (101, 4, "float16"),
    "GeForce RTX 3060 Ti GDDR6": (130, 4, "float16"),
    "GeForce RTX 3070": (163, 4, "float16"),
    "GeForce RTX 3070 Ti": (174, 4, "float16"),
    "GeForce RTX 3080 10 GB": (238, 4, "float16"),
    "GeForce RTX 3080 Ti": (273, 4, "float16"),
    "GeForce RTX 3090": (285, 4, "float16"),
    "GeForce RTX 3090 Ti": (320, 4, "float16"),
    "GeForce RTX 4060": (242, 2, "int8"),
    "GeForce RTX 4060 Ti 8 GB": (353, 2, "int8"),
    "GeForce RTX 4060 Ti 16 GB": (353, 2, "int8"),
    "GeForce RTX 4070": (466, 2, "int8"),
    "GeForce RTX 4070 SUPER": (568, 2, "int8"),
    "GeForce RTX 4070 Ti": (641, 2, "int8"),
    "GeForce RTX 4070 Ti SUPER": (706, 2, "int8"),
    "GeForce RTX 4080": (780, 2, "int8"),
    "GeForce RTX 4080 SUPER": (836, 2, "int8"),
    "GeForce RTX 4090": (1321, 2, "int8"),
    "GeForce RTX 4090 D": (1177, 2, "int8"),
    "GeForce RTX 5050": (421, 4, "int8"),
    "GeForce RTX 5060": (614, 4, "int8"),
    "GeForce RTX 5060 Ti 8 GB": (759, 4, "int8"),
    "GeForce RTX 5060 Ti 16 GB": (759, 4, "int8"),
    "GeForce RTX 5070": (988, 4, "int8"),
    "GeForce RTX 5070 Ti": (1406, 4, "int8"),
    "GeForce RTX 5080": (1801, 4, "int8"),
    "GeForce RTX 5090": (3352, 4, "int8"),
    "Quadro GV100": (118.5, 1, "float16"),
    "Quadro RTX 4000": (57.0, 1, "float16"),
    "Quadro RTX 5000": (89.2, 1, "float16"),
    "Quadro RTX 6000": (130.5, 1, "float16"),
    "Quadro RTX 8000": (130.5, 1, "float16"),
    "RTX A2000 6 GB": (63.9, 2, "float16"),
    "RTX A2000 12 GB": (63.9, 2, "float16"),
    "RTX A4000": (153.4, 2, "float16"),
    "RTX A4500": (189.2, 2, "float16"),
    "RTX A5000": (222.2, 2, "float16"),
    "RTX A6000": (309.7, 2, "float16"),
    "RTX 2000 Ada Generation": (191.9, 2, "float8"),
    "RTX 4000 SFF Ada Generation": (306.8, 2, "float8"),
    "RTX 4000 Ada Generation": (427.6, 2, "float8"),
    "RTX 4500 Ada Generation": (634.0, 2, "float8"),
    "RTX 5000 Ada Generation": (1044.4, 2, "float8"),
    "RTX 6000 Ada Generation": (1457.0, 2, "float8"),
    "RTX PRO 2000 Blackwell": (545, 8, "float16"),
    "RTX PRO 4000 Blackwell": (40, 1, "float32"),
    "RTX PRO 4500 Blackwell": (51, 1, "float32"),
    "RTX PRO 5000 Blackwell 48 GB": (2064, 8, "float16"),
    "RTX PRO 5000 Blackwell 72 GB": (2064, 8, "float16"),
    "RTX PRO 6000 Blackwell Workstation Edition": (4000, 8, "float16"),
    "RTX PRO 6000 Blackwell Max-Q": (3511, 8, "float16"),
    "RTX PRO 6000 Blackwell Server Edition": (120, 1, "float32"),
}


def test_every_card_is_worked_out_below() -> None:
    assert set(CARDS) == set(DESKTOP)
    assert len(CARDS) == len(GEFORCE_OLDER) + len(GEFORCE) + len(WORKSTATION)
    assert set(PRINTED) <= set(DESKTOP)


@pytest.mark.parametrize("sheet", DESKTOP.values(), ids=lambda sheet: sheet.device)
def test_peaks_follow_from_clocks(sheet: Sheet) -> None:
    units, clock, widths, *_ = CARDS[sheet.device]
    assert sheet.multiprocessors == (units,)
    assert set(sheet.matrix) == set(widths) <= set(PEAK_TYPES)
    for name, width in widths.items():
        matrix_clock = MATRIX_CLOCKS.get(sheet.device, clock) if name == "float16" else clock
        assert sheet.matrix[name] == pytest.approx(units * matrix_clock * width / 1e6, rel=0.005)
    assert sheet.vector == {name: sheet.matrix[name] for name in ("float64", "float32")}
    assert sheet.matrix.get("bfloat16") in (None, sheet.matrix.get("float16"))


@pytest.mark.parametrize("device", PRINTED)
def test_peaks_are_those_that_the_maker_prints(device: str) -> None:
    printed, times, name = PRINTED[device]
    assert times * DESKTOP[device].matrix[name] == pytest.approx(printed, rel=0.011)


@pytest.mark.parametrize("sheet", DESKTOP.values(), ids=lambda sheet: sheet.device)
def test_memories_follow_from_buses(sheet: Sheet) -> None:
    *_, gib, bits, gigabits, cache = CARDS[sheet.device]
    assert (sheet.memory_gib, sheet.cache_mib) == (gib, cache)
    if gigabits is None:
        assert sheet.bandwidth is None
        assert "GB/s, which is left out" in sheet.note
    else:
        assert sheet.bandwidth == pytest.approx(bits * gigabits / 8, rel=0.003)
        assert 7 < 1000 * sheet.vector["float32"] / sheet.bandwidth < 120  # operations a byte
    assert cache is not None or "L2" in sheet.note
    assert sheet.source.startswith("https://")
    assert not sheet.scaled


# -------------------------------------------------------------------------------------------------------------- names

#: Names as NVIDIA's open kernel modules list them (those before 2021 had no "NVIDIA" before "GeForce" and "TITAN").
NAMES = [
    ("NVIDIA TITAN X (Pascal)", 12_288 * MIB, 28, "TITAN X (Pascal)"),
    ("TITAN X (Pascal)", None, None, "TITAN X (Pascal)"),
    ("NVIDIA TITAN Xp", 12_288 * MIB, 30, "TITAN Xp"),
    ("NVIDIA TITAN Xp COLLECTORS EDITION", None, 30, "TITAN Xp"),
    ("TITAN Xp", 12_196 * MIB, 30, "TITAN Xp"),
    ("GeForce GTX 1070", 8_119 * MIB, 15, "GeForce GTX 1070"),
    ("NVIDIA GeForce GTX 1070 Ti", None, 19, "GeForce GTX 1070 Ti"),
    ("NVIDIA GeForce GTX 1080", 8_192 * MIB, 20, "GeForce GTX 1080"),
    ("NVIDIA GeForce GTX 1080 Ti", 11_264 * MIB, 28, "GeForce GTX 1080 Ti"),
    ("GeForce GTX 1080 Ti", 11_178 * MIB, 28, "GeForce GTX 1080 Ti"),
    ("TITAN V", 12_066 * MIB, 80, "TITAN V"),
    ("NVIDIA TITAN V", None, 80, "TITAN V"),
    ("NVIDIA GeForce GTX 1650 SUPER", 4_096 * MIB, 20, "GeForce GTX 1650 SUPER"),
    ("NVIDIA GeForce GTX 1660", 6_144 * MIB, 22, "GeForce GTX 1660"),
    ("NVIDIA GeForce GTX 1660 SUPER", 6_144 * MIB, 22, "GeForce GTX 1660 SUPER"),
    ("NVIDIA GeForce GTX 1660 Ti", 6_144 * MIB, 24, "GeForce GTX 1660 Ti"),
    ("GeForce RTX 2060", 5_934 * MIB, 30, "GeForce RTX 2060 6 GB"),
    ("NVIDIA GeForce RTX 2060", 12_288 * MIB, 34, "GeForce RTX 2060 12 GB"),
    ("NVIDIA GeForce RTX 2060", 12_288 * MIB, None, "GeForce RTX 2060 12 GB"),
    ("NVIDIA GeForce RTX 2060 SUPER", 8_192 * MIB, 34, "GeForce RTX 2060 SUPER"),
    ("NVIDIA GeForce RTX 2070", 8_192 * MIB, 36, "GeForce RTX 2070"),
    ("NVIDIA GeForce RTX 2070 SUPER", 8_192 * MIB, 40, "GeForce RTX 2070 SUPER"),
    ("NVIDIA GeForce RTX 2080", 8_192 * MIB, 46, "GeForce RTX 2080"),
    ("NVIDIA GeForce RTX 2080 SUPER", 8_192 * MIB, 48, "GeForce RTX 2080 SUPER"),
    ("GeForce RTX 2080 Ti", 11_554_717_696, 68, "GeForce RTX 2080 Ti"),
    ("NVIDIA TITAN RTX", 24_220 * MIB, 72, "TITAN RTX"),
    ("TITAN RTX", None, None, "TITAN RTX"),
    ("NVIDIA GeForce RTX 3050", 6_144 * MIB, 18, "GeForce RTX 3050 6 GB"),
    ("NVIDIA GeForce RTX 3050", 8_192 * MIB, 20, "GeForce RTX 3050 8 GB"),
    ("NVIDIA GeForce RTX 3060", 8_192 * MIB, 28, "GeForce RTX 3060 8 GB"),
    ("NVIDIA GeForce RTX 3060", 12_288 * MIB, 28, "GeForce RTX 3060 12 GB"),
    ("NVIDIA GeForce RTX 3070", 8_192 * MIB, 46, "GeForce RTX 3070"),
    ("NVIDIA GeForce RTX 3070 Ti", 8_192 * MIB, 48, "GeForce RTX 3070 Ti"),
    ("NVIDIA GeForce RTX 3080", 10_240 * MIB, 68, "GeForce RTX 3080 10 GB"),
    ("NVIDIA GeForce RTX 3080", 12_288 * MIB, 70, "GeForce RTX 3080 12 GB"),
    ("GeForce RTX 3080", None, 68, "GeForce RTX 3080 10 GB"),
    ("NVIDIA GeForce RTX 3080 Ti", 12_288 * MIB, 80, "GeForce RTX 3080 Ti"),
    ("GeForce RTX 3090", 25_438_126_080, 82, "GeForce RTX 3090"),
    ("NVIDIA GeForce RTX 3090", None, None, "GeForce RTX 3090"),
    ("NVIDIA GeForce RTX 3090 Ti", 24_564 * MIB, 84, "GeForce RTX 3090 Ti"),
    ("NVIDIA GeForce RTX 4060", 8_188 * MIB, 24, "GeForce RTX 4060"),
    ("NVIDIA GeForce RTX 4060 Ti", 8_188 * MIB, 34, "GeForce RTX 4060 Ti 8 GB"),
    ("NVIDIA GeForce RTX 4060 Ti", 16_380 * MIB, 34, "GeForce RTX 4060 Ti 16 GB"),
    ("NVIDIA GeForce RTX 4070", 12_282 * MIB, 46, "GeForce RTX 4070"),
    ("NVIDIA GeForce RTX 4070 SUPER", 12_282 * MIB, 56, "GeForce RTX 4070 SUPER"),
    ("NVIDIA GeForce RTX 4070 Ti", 12_282 * MIB, 60, "GeForce RTX 4070 Ti"),
    ("NVIDIA GeForce RTX 4070 Ti SUPER", 16_376 * MIB, 66, "GeForce RTX 4070 Ti SUPER"),
    ("NVIDIA GeForce RTX 4080", 16_376 * MIB, 76, "GeForce RTX 4080"),
    ("NVIDIA GeForce RTX 4080 SUPER", 16_376 * MIB, 80, "GeForce RTX 4080 SUPER"),
    ("NVIDIA GeForce RTX 4090", 25_386_352_640, 128, "GeForce RTX 4090"),
    ("NVIDIA GeForce RTX 4090 D", 24_564 * MIB, 114, "GeForce RTX 4090 D"),
    ("NVIDIA GeForce RTX 5050", None, 20, "GeForce RTX 5050"),
    ("NVIDIA GeForce RTX 5060", 8_151 * MIB, 30, "GeForce RTX 5060"),
    ("NVIDIA GeForce RTX 5060 Ti", 8_151 * MIB, 36, "GeForce RTX 5060 Ti 8 GB"),
    ("NVIDIA GeForce RTX 5060 Ti", 16_311 * MIB, 36, "GeForce RTX 5060 Ti 16 GB"),
    ("NVIDIA GeForce RTX 5070", 12_227 * MIB, 48, "GeForce RTX 5070"),
    ("NVIDIA GeForce RTX 5070 Ti", 16_303 * MIB, 70, "GeForce RTX 5070 Ti"),
    ("NVIDIA GeForce RTX 5080", 16_303 * MIB, 84, "GeForce RTX 5080"),
    ("NVIDIA GeForce RTX 5090", 33_661_648_896, 170, "GeForce RTX 5090"),
    ("NVIDIA GeForce RTX 5090 D", None, 170, "GeForce RTX 5090 D"),
    ("NVIDIA GeForce RTX 5090 D v2", None, 170, "GeForce RTX 5090 D v2"),
    ("Quadro GV100", 32_508 * MIB, 80, "Quadro GV100"),
    ("Quadro RTX 4000", 8_192 * MIB, 36, "Quadro RTX 4000"),
    ("Quadro RTX 5000", 16_384 * MIB, 48, "Quadro RTX 5000"),
    ("Quadro RTX 6000", 24_220 * MIB, 72, "Quadro RTX 6000"),
    ("NVIDIA Quadro RTX 6000", None, None, "Quadro RTX 6000"),
    ("Quadro RTX 8000", 48_601 * MIB, 72, "Quadro RTX 8000"),
    ("NVIDIA RTX A2000", 6_138 * MIB, 26, "RTX A2000 6 GB"),
    ("NVIDIA RTX A2000 12GB", 12_282 * MIB, 26, "RTX A2000 12 GB"),
    ("NVIDIA RTX A4000", 16_376 * MIB, 48, "RTX A4000"),
    ("NVIDIA RTX A4500", 20_470 * MIB, 56, "RTX A4500"),
    ("NVIDIA RTX A5000", 24_564 * MIB, 64, "RTX A5000"),
    ("NVIDIA RTX A5500", None, 80, "RTX A5500"),
    ("NVIDIA RTX A6000", 49_140 * MIB, 84, "RTX A6000"),
    ("RTX A6000", 45_555 * MIB, 84, "RTX A6000"),
    ("NVIDIA RTX 2000 Ada Generation", 16_380 * MIB, 22, "RTX 2000 Ada Generation"),
    ("NVIDIA RTX 4000 SFF Ada Generation", 20_475 * MIB, 48, "RTX 4000 SFF Ada Generation"),
    ("NVIDIA RTX 4000 Ada Generation", 20_475 * MIB, 48, "RTX 4000 Ada Generation"),
    ("NVIDIA RTX 4500 Ada Generation", None, 60, "RTX 4500 Ada Generation"),
    ("NVIDIA RTX 5000 Ada Generation", None, 100, "RTX 5000 Ada Generation"),
    ("NVIDIA RTX 5880 Ada Generation", None, 110, "RTX 5880 Ada Generation"),
    ("NVIDIA RTX 6000 Ada Generation", 49_140 * MIB, 142, "RTX 6000 Ada Generation"),
    ("NVIDIA RTX PRO 2000 Blackwell", None, 34, "RTX PRO 2000 Blackwell"),
    ("NVIDIA RTX PRO 4000 Blackwell", None, 70, "RTX PRO 4000 Blackwell"),
    ("NVIDIA RTX PRO 4500 Blackwell", None, 82, "RTX PRO 4500 Blackwell"),
    ("NVIDIA RTX PRO 5000 Blackwell", None, 110, "RTX PRO 5000 Blackwell 48 GB"),
    ("NVIDIA RTX PRO 5000 72GB Blackwell", None, 110, "RTX PRO 5000 Blackwell 72 GB"),
    (
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        97_887 * MIB,
        188,
        "RTX PRO 6000 Blackwell Workstation Edition",
    ),
    (
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        101_973_491_712,
        188,
        "RTX PRO 6000 Blackwell Max-Q",
    ),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", None, 188, "RTX PRO 6000 Blackwell Server Edition"),
]
#: A name has two kinds of memory, and nothing in a trace tells them apart.
UNNAMED = {
    "GeForce GTX 1650 GDDR5",
    "GeForce GTX 1650 GDDR6",
    "GeForce RTX 3060 Ti GDDR6",
    "GeForce RTX 3060 Ti GDDR6X",
}


@pytest.mark.parametrize(("name", "memory", "multiprocessors", "device"), NAMES)
def test_cards_by_name(name: str, memory: int | None, multiprocessors: int | None, device: str) -> None:
    found = match(name, memory, multiprocessors)
    assert found.sheet is DESKTOP[device], found.why


def test_every_card_has_a_name() -> None:
    assert {device for *_, device in NAMES} | UNNAMED == set(DESKTOP)


@pytest.mark.parametrize(
    ("name", "memory", "multiprocessors", "why"),
    [
        ("NVIDIA GeForce RTX 2080 with Max-Q Design", None, 46, "is a laptop's"),
        ("NVIDIA GeForce RTX 2070 Super", 8_192 * MIB, 40, "is a laptop's"),
        ("NVIDIA GeForce RTX 2080 Super", 8_192 * MIB, 48, "is a laptop's"),
        ("NVIDIA GeForce GTX 1660 Ti with Max-Q Design", None, None, "is a laptop's"),
        ("NVIDIA GeForce RTX 3050 Ti Laptop GPU", None, None, "is a laptop's"),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", 6_144 * MIB, 30, "is a laptop's"),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", 16_384 * MIB, 48, "is a laptop's"),
        ("NVIDIA GeForce RTX 3080 Ti Laptop GPU", None, None, "is a laptop's"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16_376 * MIB, 76, "is a laptop's"),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", 24_463 * MIB, 82, "is a laptop's"),
        ("Quadro RTX 5000 with Max-Q Design", None, None, "is a laptop's"),
        ("NVIDIA RTX A5000 Laptop GPU", None, None, "is a laptop's"),
        ("NVIDIA RTX A2000 Embedded GPU", None, None, "is a laptop's"),
        ("NVIDIA RTX 5000 Ada Generation Laptop GPU", None, None, "is a laptop's"),
        ("NVIDIA RTX PRO 5000 Blackwell Generation Laptop GPU", None, None, "is a laptop's"),
        ("Quadro RTX 4000", 8_192 * MIB, 40, "40 multiprocessors here and 36"),
        ("NVIDIA GeForce GTX 1070", 8_192 * MIB, 16, "16 multiprocessors here and 15"),
        ("NVIDIA GeForce GTX 1650", 4_096 * MIB, 16, "16 multiprocessors here and 14 on"),
        ("NVIDIA GeForce GTX 1650", 4_096 * MIB, 14, "may be GeForce GTX 1650 GDDR5 or GeForce GTX 1650 GDDR6"),
        ("NVIDIA GeForce RTX 3080", None, None, "may be GeForce RTX 3080 10 GB or GeForce RTX 3080 12 GB"),
        ("NVIDIA GeForce RTX 3080", 20_480 * MIB, 68, "20.0 GiB here and 10 or 12 GiB"),
        ("NVIDIA GeForce RTX 2080 Ti", 22_528 * MIB, 68, "22.0 GiB here and 11 GiB"),
        ("NVIDIA GeForce RTX 4090", 48_000 * MIB, 128, "46.9 GiB here and 24 GiB"),
        ("NVIDIA TITAN V", 32_508 * MIB, 80, "31.7 GiB here and 12 GiB"),
        ("NVIDIA GeForce RTX 3050 OEM", None, 18, "no data sheet"),
        ("NVIDIA GeForce RTX 2050", None, None, "no data sheet"),
        ("NVIDIA GeForce GTX 1060 6GB", None, None, "no data sheet"),
        ("Quadro RTX 3000", None, None, "no data sheet"),
        ("Quadro P6000", None, None, "no data sheet"),
        ("NVIDIA RTX A4000H", None, None, "no data sheet"),
        ("NVIDIA RTX 2000E Ada Generation", None, None, "no data sheet"),
        ("NVIDIA RTX PRO 4000 Blackwell SFF Edition", None, None, "no data sheet"),
        ("NVIDIA RTX PRO 4500 Blackwell Server Edition", None, None, "no data sheet"),
        ("NVIDIA RTX 6000D", None, None, "no data sheet"),
        ("NVIDIA RTX 6000", None, None, "no data sheet"),
        ("NVIDIA RTX A5000-12Q", None, None, "virtual GPU"),
        ("GRID RTX6000-8Q", None, None, "virtual GPU"),
    ],
)
def test_cards_without_a_sheet(name: str, memory: int | None, multiprocessors: int | None, why: str) -> None:
    found = match(name, memory, multiprocessors)
    assert found.sheet is None
    assert found.why is not None
    assert why in found.why
    assert "\n" not in found.why


def test_of_two_kinds_of_memory_the_bandwidth_is_not_known() -> None:
    found = ceilings_for(
        Environment(device="NVIDIA GeForce RTX 3060 Ti", device_kind="cuda", device_memory_bytes=8_192 * MIB),
        multiprocessors=38,
    ).ceilings
    assert found is not None
    assert found.matrix_peak("bfloat16") == 32.4e12
    assert found.vector_peak("float32") == 16.2e12
    assert found.bandwidth_bytes_per_second is None
    assert found.memory_bytes == 8 * GIB
    assert found.device == "GeForce RTX 3060 Ti GDDR6 or GeForce RTX 3060 Ti GDDR6X"
    assert " (448 or 608 GB/s: which, no trace says), https://" in found.source


def test_of_two_sizes_of_memory_the_size_is_not_known() -> None:
    found = match("NVIDIA GeForce RTX 4060 Ti").sheet
    assert found is not None
    assert (found.memory_gib, found.bandwidth, found.cache_mib) == (None, 288, 32)
    assert ceilings_of(found).memory_bytes is None
    assert match("NVIDIA GeForce RTX 3060", None, 28).sheet is not None
    assert match("AMD Instinct MI50", None, 60).sheet is not None


@pytest.mark.parametrize(
    ("name", "also"),
    [
        ("GeForce RTX 2070", "a laptop's of the same name is slower"),
        ("GeForce RTX 4070", "later ones, with GDDR6, have 480 GB/s"),
        ("Quadro RTX 6000", "the passive one has 119.4 TFLOP/s of halves and 624 GB/s"),
    ],
)
def test_what_shares_a_name_is_said_beside_the_source(name: str, also: str) -> None:
    found = match(name).sheet
    assert found is not None
    assert ceilings_of(found).source == f"data sheet of {found.device} ({also}), {found.source}"


def test_no_name_is_that_of_two_cards_with_other_peaks_and_the_same_size() -> None:
    for sheet in DESKTOP.values():
        for other in SHEETS:
            same = (sheet.multiprocessors, sheet.memory_gib) == (other.multiprocessors, other.memory_gib)
            if sheet is not other and same and set(sheet.names) & set(other.names):
                assert {sheet.device, other.device} <= UNNAMED


@pytest.mark.parametrize(
    ("name", "count", "halves", "bandwidth", "cache"),
    [
        ("RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb", 46, 479.9 * 46 / 188, 1597 / 4, 32),
        ("RTX PRO 6000 Blackwell Workstation Edition MIG 2g.48gb", 94, 503.8 / 2, 896, 64),
        ("RTX PRO 6000 Blackwell Max-Q Workstation Edition MIG 4g.96gb+gfx", 188, 438.9, 1792, 128),
        ("RTX PRO 5000 Blackwell MIG 1g.24gb", 54, 257.9 * 54 / 110, 672, 48),
        ("RTX PRO 4500 Blackwell MIG 2g.32gb", 82, 202.1, 896, 64),
    ],
)
def test_a_slice_of_a_workstation_card(name: str, count: int, halves: float, bandwidth: float, cache: float) -> None:
    found = match(f"NVIDIA {name}", None, count).sheet
    assert found is not None
    assert found.matrix["bfloat16"] == pytest.approx(halves)
    assert (found.bandwidth, found.cache_mib) == (bandwidth, cache)
