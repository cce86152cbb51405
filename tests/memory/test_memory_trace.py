"""Memory from a trace alone: pairing, order, components, and the allocator's own totals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

import opanatomy
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.memory import Memory
from opanatomy.records.taxonomy import Phase
from tests.support.made_trace import TraceBuilder
from tests.support.paths import TRACES

CUDA, CPU = (1, 0), (0, -1)


class Recorded(TraceBuilder):
    """A hand-made trace with memory events: `total` is the allocator's own."""

    def memory(
        self,
        at: float,
        address: int | None,
        size: int,
        *,
        total: int | None = None,
        thread: int = 1,
        device: tuple[int, int] = CUDA,
        reserved: int = 1 << 20,
    ) -> None:
        args: dict[str, Any] = {"Device Type": device[0], "Device Id": device[1], "Bytes": size}
        if address is not None:
            args |= {"Addr": address}
        if total is not None:
            args |= {"Total Allocated": total, "Total Reserved": reserved}
        self.events.append(
            {
                "ph": "i",
                "cat": "cpu_instant_event",
                "s": "t",
                "name": "[memory]",
                "pid": 7,
                "tid": thread,
                "ts": at,
                "args": args,
            }
        )


def recorded(*events: tuple[Any, ...], **options: Any) -> Recorded:
    """Two operators, and memory events: (time, address, bytes, total)."""
    trace = Recorded()
    trace.host("aten::add", 0, 100)
    trace.host("aten::add", 200, 100)
    for at, address, size, *total in events:
        trace.memory(at, address, size, total=total[0] if total else None, **options)
    return trace


def anatomy_of(trace: TraceBuilder, folder: Path) -> Anatomy:
    anatomy = opanatomy.analyze(trace.write(folder / "trace.json"))
    check_sums(anatomy.memory)
    return anatomy


def memory_of(trace: TraceBuilder, folder: Path) -> Memory:
    return anatomy_of(trace, folder).memory


def check_sums(memory: Memory) -> None:
    for row in memory.devices:
        assert sum(part.measured_bytes or 0 for part in row.components) == row.peak_bytes
        assert sum(part.bytes for part in row.inferences) == row.peak_bytes
    for point in memory.timeline:
        assert sum(point.components.values()) == point.allocated_bytes
        assert min(point.components.values(), default=0) >= 0
    assert max(point.allocated_bytes for point in memory.timeline) == memory.peak_bytes
    assert len(memory.timeline) <= 200
    listed = sum(block.bytes for block in memory.blocks) + memory.unlisted_bytes
    assert listed == memory.peak_bytes - (components(memory).get("before_window") or 0)


def components(memory: Memory) -> dict[str, int | None]:
    return {part.component: part.measured_bytes for part in memory.components}


# ------------------------------------------------------------------------------------------------------------ pairing


def test_blocks_are_paired_by_address_and_an_address_is_used_again(tmp_path: Path) -> None:
    anatomy = anatomy_of(
        recorded(
            (10, 1, 512, 1512),
            (20, 2, 1024, 2536),
            (30, 1, -512, 2024),
            (40, 1, 256, 2280),
            (50, 1, -256, 2024),
            (60, 2, -1024, 1000),
        ),
        tmp_path,
    )
    memory = anatomy.memory
    (row,) = memory.devices
    assert (memory.peak_bytes, row.before_window_bytes, row.blocks) == (2536, 1000, 3)
    assert (row.unmatched_frees, row.never_freed, row.unseen_frees, row.uneven_frees) == (0, 0, 0, 0)
    assert (row.equal_events, row.checked_events, row.largest_difference_bytes) == (6, 6, 0)
    assert row.reserved_peak_bytes == 1 << 20
    assert [point.allocated_bytes for point in memory.timeline] == [1000, 1512, 2536, 2024, 2280, 2024, 1000]
    assert not any("memory" in warning for warning in anatomy.warnings)


def test_frees_of_blocks_from_before_count_into_it(tmp_path: Path) -> None:
    memory = memory_of(recorded((10, 9, -4096), (20, 1, 512), (30, 8, -100)), tmp_path)
    (row,) = memory.devices
    assert (row.unmatched_frees, row.unmatched_free_bytes, row.before_window_bytes) == (2, 4196, 4196)
    assert (row.never_freed, row.never_freed_bytes) == (1, 512)
    assert components(memory) == {"before_window": 4196}
    assert "excluding blocks allocated before the trace" in (memory.measured_by or "")
    (row,) = memory_of(recorded((20, 1, 512)), tmp_path).devices
    assert row.before_window_bytes is None  # nothing says it


def test_each_device_is_taken_apart(tmp_path: Path) -> None:
    trace = recorded((11, 1, 1000, 1000), (14, 1, -1000, 0))
    trace.memory(12, 1, 3000, total=5000, device=(1, 1))
    for at, size, total in ((10, 100, 100), (13, -100, 0)):
        trace.memory(at, 1, size, total=total, device=CPU, reserved=0)
    memory = memory_of(trace, tmp_path)
    assert [(row.device, row.peak_bytes, row.before_window_bytes) for row in memory.devices] == [
        ("cuda:1", 5000, 2000),
        ("cuda:0", 1000, 0),
        ("cpu", 100, None),
    ]
    assert memory.peak_bytes == 5000
    assert all(row.equal_events == row.checked_events == row.events for row in memory.devices)


@pytest.mark.parametrize(
    ("events", "counts", "warning"),
    [
        (((10, 1, 512), (20, 1, 256), (30, 1, -256)), (1, 512, 0), "allocated again"),
        (((10, 1, 512), (20, 1, -256)), (0, 0, 1), "a different size than was allocated"),
    ],
    ids=["given-again", "other-size"],
)
def test_events_that_do_not_fit_are_a_warning(
    events: Any, counts: tuple[int, int, int], warning: str, tmp_path: Path
) -> None:
    anatomy = anatomy_of(recorded(*events), tmp_path)
    (row,) = anatomy.memory.devices
    assert (row.unseen_frees, row.unseen_free_bytes, row.uneven_frees) == counts
    assert anatomy.memory.peak_bytes == 512
    assert any(warning in text for text in anatomy.warnings)


@pytest.mark.parametrize(
    ("events", "ours", "total"),
    [
        (((60, 4, 7, 1_307), (70, 4, -7, 1_300)), 1_007, 1_307),
        (((40, 3, 300, 1_300), (60, 4, 7, 1_007), (70, 4, -7, 1_000)), 1_307, 1_007),
    ],
    ids=["allocation", "free"],
)
@pytest.mark.parametrize("device", [CUDA, (6, 0)], ids=["cuda", "hip"])
def test_a_lost_event_is_a_warning_and_a_row_of_the_checks(
    events: Any, ours: int, total: int, device: tuple[int, int], tmp_path: Path
) -> None:
    kept = ((10, 1, 1_000, 1_000), (20, 2, 200, 1_200), (30, 2, -200, 1_000))
    anatomy = anatomy_of(recorded(*kept, *events, device=device), tmp_path)
    assert any("in 2 of" in warning and "by up to 300 B" in warning for warning in anatomy.warnings)
    (check,) = [check for check in anatomy.checks if check.quantity == "allocated bytes"]
    (difference,) = check.unexplained
    assert check.compared - check.equal == 2
    assert (difference.ours, difference.other) == (ours, total)


def test_a_free_that_no_event_tells_is_where_the_total_fell(tmp_path: Path) -> None:
    """What autograd's threads free on a device: the peak is 1,768 B, not the 2,168 B of all that has no free yet."""
    events = (10, 1, 1_000, 1_000), (20, 2, 512, 1_512), (30, 3, 256, 1_768), (40, 4, 400, 1_656), (50, 2, 100, 1_756)
    anatomy = anatomy_of(recorded(*events), tmp_path)
    (row,) = anatomy.memory.devices
    assert (row.unseen_frees, row.equal_events, anatomy.memory.peak_bytes) == (0, 5, 1_768)
    assert not any("allocated again" in warning or "differs" in warning for warning in anatomy.warnings)


@pytest.mark.parametrize("told", [True, False])
def test_totals_order_the_events_of_one_time(tmp_path: Path, told: bool) -> None:
    trace = recorded()
    for at, address, size, total, thread in (
        (5, 1, 512, 1512, 1),
        (10, 1, 100, 1100, 1),
        (10, 2, -50, 1100, 1),
        (10, 1, -512, 1000, 2),
        (10, 2, 50, 1150, 2),
    ):
        trace.memory(at, address, size, total=total if told else None, thread=thread)
    (row,) = memory_of(trace, tmp_path).devices
    assert (row.unseen_frees, row.unmatched_frees, row.uneven_frees) == ((0, 0, 0) if told else (1, 1, 1))
    assert row.equal_events == (5 if told else 0)


def test_without_addresses_the_last_block_of_a_size_is_freed(tmp_path: Path) -> None:
    trace = recorded(
        (5, None, -100), (10, None, 100), (20, None, 100), (30, None, 300), (40, None, -100), (50, None, -100)
    )
    anatomy = anatomy_of(trace, tmp_path)
    memory = anatomy.memory
    assert (memory.peak_bytes, memory.devices[0].matched_by, memory.devices[0].unmatched_frees) == (500, "size", 1)
    assert any("no addresses" in warning for warning in anatomy.warnings)


# ---------------------------------------------------------------------------------------------------------- components


def training_step(*, ranges: bool = True) -> Recorded:
    """Forward 100-200, backward 200-300 on thread 2, optimizer 300-400, and the next forward from 500."""
    trace = Recorded()
    trace.annotation("ProfilerStep#1", 90, 360)
    if ranges:
        for name, start in (("forward", 100), ("backward", 200), ("optimizer", 300), ("forward", 500)):
            trace.host(f"opanatomy.phase/{name}", start, 95)
        trace.host("opanatomy.module/head", 105, 80)
    trace.host("aten::linear", 110, 20, sequence=5)
    trace.host("aten::addmm", 112, 15, sequence=5)
    trace.host("aten::dropout", 140, 20, sequence=6)
    trace.host("aten::native_dropout", 141, 18, sequence=6)
    trace.host("aten::empty_like", 142, 10)
    trace.host("aten::empty_strided", 143, 8)
    trace.host("autograd::engine::evaluate_function: AddmmBackward0", 210, 80, thread=2, sequence=5, forward_thread=1)
    trace.host("AddmmBackward0", 211, 70, thread=2, sequence=5, forward_thread=1)
    trace.host("aten::mm", 220, 20, thread=2)
    trace.host("aten::sum", 250, 20, thread=2)
    trace.annotation("Optimizer.step#AdamW.step", 305, 80)
    trace.host("aten::zeros_like", 310, 20)
    trace.host("aten::sqrt", 340, 20)
    trace.host("aten::linear", 510, 20)
    return trace


#: Time, address, bytes and thread of each event of the step.
BLOCKS = (
    (50, 1, 7, 1),  # of the loader
    (115, 2, 100, 1),  # activation of addmm
    (116, 3, 1, 1), (118, 3, -1, 1),  # within addmm
    (145, 4, 200, 1),  # mask: native_dropout
    (150, 5, 30, 1), (170, 5, -30, 1),  # forward only
    (155, 6, 40, 1),  # output, kept
    (225, 7, 1000, 2),  # weight gradient
    (230, 8, 500, 2),  # gradient of the activation
    (255, 2, -100, 2), (260, 4, -200, 2), (275, 8, -500, 2),
    (315, 9, 2000, 1),  # state
    (345, 10, 60, 1), (350, 10, -60, 1),  # within sqrt
    (355, 11, 70, 1), (370, 11, -70, 1),  # optimizer, to its end
    (505, 7, -1000, 1),  # set_to_none
    (515, 6, -40, 1),
)  # fmt: skip


def with_blocks(trace: Recorded, blocks: Any = BLOCKS) -> Recorded:
    for at, address, size, thread in blocks:
        trace.memory(at, address, size, thread=thread)
    return trace


@pytest.mark.parametrize("ranges", [True, False])
def test_components_by_when_a_block_lives(tmp_path: Path, ranges: bool) -> None:
    memory = memory_of(with_blocks(training_step(ranges=ranges)), tmp_path)
    # At the peak the state, the gradient and the output are there, the activations are gone.
    assert memory.peak_bytes == 7 + 40 + 1000 + 2000 + 70
    assert memory.peak_at == Phase.OPTIMIZER
    assert components(memory) == {"optimizer_state": 2000, "gradients": 1000, "temporary_buffers": 70, "other": 47}
    by_operator = {block.operator: block.component for block in memory.blocks}
    assert (by_operator["aten::zeros_like"], by_operator["aten::mm"]) == ("optimizer_state", "gradients")
    assert max(point.components.get("forward_activations", 0) for point in memory.timeline) == 300
    rules = {row.rule for row in memory.inferences}
    assert rules >= {"allocated in backward, alive after backward", "allocated in the optimizer, never freed"}


def test_blocks_at_the_peak_name_operator_module_and_phase(tmp_path: Path) -> None:
    early = [row for row in BLOCKS if row[0] < 240 or row[0] in (255, 260)]
    memory = memory_of(with_blocks(training_step(), early), tmp_path)
    assert memory.peak_at == Phase.BACKWARD
    blocks = {(one.operator, one.module, one.phase, one.component, one.blocks, one.bytes) for one in memory.blocks}
    assert blocks >= {
        ("aten::addmm", "head", Phase.FORWARD, "forward_activations", 1, 100),
        # `aten::empty_strided` in `aten::empty_like` did not want the memory, `aten::native_dropout` did.
        ("aten::native_dropout", "head", Phase.FORWARD, "forward_activations", 1, 200),
        ("aten::native_dropout", "head", Phase.FORWARD, "other", 1, 40),
        ("aten::mm", "head", Phase.BACKWARD, "gradients", 2, 1500),
        (None, None, Phase.OTHER, "other", 1, 7),
    }


def test_recomputed_activations(tmp_path: Path) -> None:
    trace = Recorded()
    trace.host("aten::linear", 50, 20, sequence=1)
    node = {"thread": 2, "sequence": 1, "forward_thread": 1}
    trace.host("autograd::engine::evaluate_function: CheckpointFunctionBackward", 100, 200, **node)
    trace.host("aten::mm", 110, 10, thread=2, sequence=2)
    trace.host("aten::gelu", 130, 10, thread=2, sequence=3)
    trace.host("aten::mm_backward", 200, 20, thread=2)
    # The first is freed by the backward part, the second in recomputation.
    blocks = ((112, 1, 100, 2), (114, 2, 10, 2), (125, 2, -10, 2), (210, 1, -100, 2))
    memory = memory_of(with_blocks(trace, blocks), tmp_path)
    assert components(memory) == {"forward_activations": 100, "temporary_buffers": 10}
    assert memory.blocks[0].phase == Phase.RECOMPUTE


# ------------------------------------------------------------------------------------------------------------- window


def test_the_peak_is_that_of_the_window_and_older_blocks_count(tmp_path: Path) -> None:
    trace = Recorded()
    trace.annotation("ProfilerStep#1", 100, 100)
    trace.host("aten::mm", 10, 20)
    trace.host("aten::mm", 110, 20)
    for at, address, size in (
        (12, 1, 1000),
        (13, 2, 50),
        (14, 1, -1000),
        (112, 3, 10),
        (115, 3, -10),
        (116, 2, -50),
        (300, 4, 9000),
    ):
        trace.memory(at, address, size)
    memory = memory_of(trace, tmp_path)
    assert [(point.time_ns, point.allocated_bytes) for point in memory.timeline] == [
        (0, 50),
        (12_000, 60),
        (15_000, 50),
        (16_000, 0),
    ]


# ----------------------------------------------------------------------------------------------------- laws, live runs


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[tuple[int, int, int]], int]:
    """(time, address, bytes) of an allocator that never gives an address twice, and bytes that were there before."""
    live: dict[int, int] = {-number: 10 * number for number in range(1, draw(st.integers(0, 3)) + 1)}
    before = sum(live.values()) + draw(st.integers(0, 1000))
    time, events = 0, []
    for _ in range(draw(st.integers(1, 60))):
        time += draw(st.integers(0, 2))
        address = draw(st.integers(1, 8))
        if live and draw(st.booleans()):
            gone = draw(st.sampled_from(sorted(live)))
            events.append((time, gone, -live.pop(gone)))
        elif address not in live:
            live[address] = draw(st.integers(1, 1000))
            events.append((time, address, live[address]))
    return events, before


@settings(max_examples=30, deadline=None)
@given(stream=streams(), ranges=st.booleans())
def test_components_sum_to_the_curve_and_the_curve_is_the_allocators(
    stream: tuple[list[tuple[int, int, int]], int], ranges: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    events, before = stream
    if not events:
        return
    trace, levels = training_step(ranges=ranges), [before]
    for time, address, size in events:
        levels.append(levels[-1] + size)
        trace.memory(100 + 3 * time, address + 100, size, total=levels[-1])
    memory = memory_of(trace, tmp_path_factory.mktemp("law"))
    (row,) = memory.devices
    assert row.equal_events == row.checked_events == len(events)
    assert row.before_window_bytes == before
    inside = [level for (time, _, _), level in zip(events, levels[1:], strict=True) if 100 + 3 * time <= 450]
    assert memory.peak_bytes == max([before, *inside])


def test_the_curve_of_a_real_device_is_its_allocators() -> None:
    anatomy = opanatomy.analyze(TRACES / "gpu_h100_bert_inference_memory.json.gz")
    check_sums(anatomy.memory)
    row = anatomy.memory.devices[0]
    assert row.device == "cuda:0"
    assert row.equal_events == row.checked_events == row.events > 100


def test_components_are_those_of_torchs_own_memory_profile(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.LayerNorm(64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 16)
    )
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    activities = [ProfilerActivity.CPU]
    with profile(activities=activities, profile_memory=True, record_shapes=True, with_stack=True) as profiler:
        for _ in range(2):
            model(torch.randn(16, 32)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    profiler.export_chrome_trace(str(tmp_path / "live.json"))
    memory = opanatomy.analyze(tmp_path / "live.json").memory
    check_sums(memory)
    (row,) = memory.devices
    assert (row.device, row.matched_by) == ("cpu", "address")
    assert row.equal_events == row.checked_events == row.events > 50
    highest = torchs_highest(profiler)
    ours = {name: max(point.components.get(name, 0) for point in memory.timeline) for name in highest}
    assert ours["optimizer_state"] == highest["optimizer_state"]
    # A scalar of the backward may live until the optimizer runs: by its times alone it is taken for a gradient.
    assert 0 <= ours["gradients"] - highest["gradients"] <= 16


def torchs_highest(profiler: profile) -> dict[str, int]:
    """The most bytes that torch's profile has of gradients and of optimizer state at any time."""
    own: Any = profiler._memory_profile()

    def name_of(key: Any, version: int) -> str:
        category = own._categories.get(key, version)
        return category.name if category else "UNKNOWN"

    now: dict[str, int] = {}
    highest: dict[str, int] = {}
    for _, action, (key, version), size in own.timeline:
        if action.name in ("DESTROY", "INCREMENT_VERSION"):
            now[name_of(key, version)] = now.get(name_of(key, version), 0) - size
        if action.name != "DESTROY":
            name = name_of(key, version + (action.name == "INCREMENT_VERSION"))
            now[name] = now.get(name, 0) + size
            highest[name] = max(highest.get(name, 0), now[name])
    return {"gradients": highest["GRADIENT"], "optimizer_state": highest["OPTIMIZER_STATE"]}
