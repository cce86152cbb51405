"""The memory of a step as a terminal shows it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from opanatomy.records.memory import (
    Memory,
    MemoryBlocks,
    MemoryComponent,
    MemoryInference,
    MemoryPoint,
    MemorySnapshot,
    SavedActivations,
)
from opanatomy.records.taxonomy import Phase
from opanatomy.report import terminal_report
from tests import anatomies


def point(time_ns: int, phase: Phase, **components: int) -> MemoryPoint:
    return MemoryPoint(
        time_ns=time_ns, phase=phase, allocated_bytes=sum(components.values()), components=components
    )  # fmt: skip


MEMORY = Memory(
    peak_bytes=14_000_000, peak_at="backward", measured_by="a test",
    components=(
        MemoryComponent(component="weights", measured_bytes=4_000_000, theory_bytes=4_000_000, at_peak_bytes=4_000_000),
        MemoryComponent(component="forward_activations", measured_bytes=8_000_000, at_peak_bytes=6_000_000),
        MemoryComponent(component="temporary_buffers", measured_bytes=4_000_000, at_peak_bytes=4_000_000),
    ),
    inferences=(MemoryInference(component="gradients", rule="by its times", bytes=1, blocks=1),),
    timeline=(
        point(0, Phase.FORWARD, weights=4_000_000),
        point(50, Phase.FORWARD, weights=4_000_000, forward_activations=8_000_000),
        point(60, Phase.BACKWARD, weights=4_000_000, forward_activations=6_000_000, temporary_buffers=4_000_000),
        point(100, Phase.BACKWARD, weights=4_000_000, strange=2_000_000),
    ),
    blocks=(
        MemoryBlocks(
            operator="aten::mm", module="encoder.layer.0", phase=Phase.FORWARD, component="forward_activations",
            blocks=3, bytes=6_000_000, largest_bytes=2_000_000,
        ),
    ),
    unlisted_bytes=8_000_000,
    activations=(
        SavedActivations(
            module="encoder.layer.*", operator="aten::_softmax", shape=(2, 4, 8, 8), dtype="float32", blocks=24,
            bytes=24 * 67_000_000,
        ),
    ),
    snapshots=(MemorySnapshot(name="after_weights", allocated_bytes=4_000_000, nvml_used_bytes=1_343_000_000),),
    notes=("NVML is not there: the device's own figure is not known.",),
)  # fmt: skip


def lines_of(memory: Memory, width: int = 100) -> list[str]:
    return terminal_report(replace(anatomies.nothing(), memory=memory), width=width).splitlines()


def test_each_part_is_told() -> None:
    lines = lines_of(MEMORY)
    found = {line.split("  ")[0]: line.split() for line in lines if line}
    assert found["weights"][1:] == ["4.00", "MB", "4.00", "MB", "4.00", "MB", "0.0", "%"]
    assert found["peak in backward"][-2:] == ["14.0", "MB"]
    assert "24 x 67.0 MB" in next(line for line in lines if line.startswith("encoder.layer.*"))
    assert found["after weights"][2:] == ["4.00", "MB", "1.34", "GB"]
    assert any("inferred gradients: by its times" in line for line in lines)
    assert any("NVML is not there" in line for line in lines)


def test_the_curve_is_stacked_to_scale() -> None:
    lines = lines_of(MEMORY, width=60)
    top = next(index for index, line in enumerate(lines) if line.lstrip().startswith("14.0 MB"))
    rows = [line[11:].ljust(48) for line in lines[top : top + 7]]
    columns = ["".join(row[place] for row in reversed(rows)) for place in range(48)]
    # of 14 MB in seven cells: 4 MB are two, 8 MB four, 6 MB three
    assert columns[0] == "ww     "
    assert "wwaaaa " in columns
    assert "wwaaatt" in columns
    assert columns[47] == "ww?    "
    assert lines[top + 7][11:].startswith("F")
    assert lines[top + 7].endswith("B")


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_it_fits(width: int) -> None:
    assert all(cell_len(line) <= width for line in lines_of(MEMORY, width))


def test_few_points_are_no_curve() -> None:
    assert not any("allocated over" in line for line in lines_of(replace(MEMORY, timeline=MEMORY.timeline[:2])))
