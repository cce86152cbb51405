"""Memory from a trace alone: pairing, order, components, and the allocator's own totals on real traces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from opanatomy.analysis.checks import check_memory
from opanatomy.attribution.attribute import attribute, enclosing_rows
from opanatomy.errors import TraceError
from opanatomy.memory.allocations import blocks_of, by_device, of_rows, possible
from opanatomy.memory.inferred import memory_of_trace
from opanatomy.memory.observed import warnings_of, with_trace
from opanatomy.records.columns import Categorical, HostCalls, MemoryEvents, MemoryTable
from opanatomy.records.memory import Memory, MemoryComponent, MemoryDevice, MemoryPoint
from opanatomy.records.taxonomy import Phase
from opanatomy.trace.read import Collector
from opanatomy.trace.stream import EventStream
from tests.handmade import HandMade

SHARED = Path(__file__).parents[2] / "shared" / "traces"
CUDA = (1, 0)


class Recorded(HandMade):
    """A hand-made trace with memory events; the totals are those of the allocator unless told otherwise."""

    def give(self, at: float, address: int, size: int, **options: Any) -> None:
        self.memory(at, address, size, **options)

    def take(self, at: float, address: int, size: int, **options: Any) -> None:
        self.memory(at, address, -size, **options)

    def memory(
        self,
        at: float,
        address: int | None,
        size: int,
        *,
        total: int | None = None,
        device: tuple[int, int] = CUDA,
        thread: int | str = 1,
        reserved: int = 1 << 20,
    ) -> None:
        args: dict[str, Any] = {"Device Type": device[0], "Device Id": device[1], "Bytes": size}
        if address is not None:
            args |= {"Addr": address}
        if total is not None:
            args |= {"Total Allocated": total, "Total Reserved": reserved}
        self.events.append(
            {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 7, "tid": thread, "ts": at}
            | {"args": args}
        )


def _events_of(path: Path) -> tuple[Collector, MemoryEvents]:
    found = Collector()
    for events in EventStream(path):
        found.add(events)
    return found, found.memory()


def memory_in(path: Path, **options: Any) -> Memory | None:
    found, events = _events_of(path)
    names = list(found.names)
    attribution = attribute(names, found.host(), found.launches(), found.work())
    host = attribution.host
    end = host.start_ns + host.duration_ns
    call = enclosing_rows(host.thread, host.start_ns, end, host.parent, (events.thread, events.time_ns))
    calls = HostCalls(
        name=Categorical(host.name, names), module=host.module, parent=host.parent, thread=host.thread,
        start_ns=host.start_ns, end_ns=end, annotation=host.annotation, phase=host.phase,
    )  # fmt: skip
    table = MemoryTable(events=events, call=call, calls=calls, spans=tuple(attribution.spans))
    return memory_of_trace(table, attribution.window, **options)


def memory_of(trace: HandMade, folder: Path, **options: Any) -> Memory:
    memory = memory_in(trace.write(folder / "trace.json"), **options)
    assert memory is not None
    _check_sums(memory)
    return memory


def _check_sums(memory: Memory) -> None:
    for row in memory.devices:
        assert sum(part.measured_bytes or 0 for part in row.components) == row.peak_bytes
        assert sum(part.bytes for part in row.inferences) == row.peak_bytes
    for point in memory.timeline:
        assert sum(point.components.values()) == point.allocated_bytes
        assert min(point.components.values(), default=0) >= 0
    if memory.peak_bytes is None:
        return
    assert max(point.allocated_bytes for point in memory.timeline) == memory.peak_bytes
    assert len(memory.timeline) <= 200
    listed = sum(block.bytes for block in memory.blocks) + memory.unlisted_bytes
    assert listed == memory.peak_bytes - _bytes(memory.components).get("before_window", 0)


def _bytes(components: tuple[MemoryComponent, ...]) -> dict[str, int | None]:
    return {part.component: part.measured_bytes for part in components}


def _components(memory: Memory) -> dict[str, int | None]:
    return _bytes(memory.components)


def _window() -> Recorded:
    trace = Recorded()
    trace.host("aten::add", 0, 100)
    trace.host("aten::add", 200, 100)
    return trace


def _by_operator(memory: Memory) -> dict[str | None, str]:
    return {block.operator: block.component for block in memory.blocks}


# ------------------------------------------------------------------------------------------------------------ pairing


def test_trace_without_memory_events_has_none(tmp_path: Path) -> None:
    trace = HandMade()
    trace.host("aten::add", 0, 10)
    assert memory_in(trace.write(tmp_path / "trace.json")) is None


def test_blocks_are_paired_by_address_and_an_address_is_used_again(tmp_path: Path) -> None:
    trace = _window()
    trace.give(10, 1, 512, total=1512)
    trace.give(20, 2, 1024, total=2536)
    trace.take(30, 1, 512, total=2024)
    trace.give(40, 1, 256, total=2280)
    trace.take(50, 1, 256, total=2024)
    trace.take(60, 2, 1024, total=1000)
    memory = memory_of(trace, tmp_path)
    (row,) = memory.devices
    assert (memory.peak_bytes, row.before_window_bytes, row.blocks) == (2536, 1000, 3)
    assert (row.unmatched_frees, row.never_freed, row.unseen_frees, row.uneven_frees) == (0, 0, 0, 0)
    assert (row.equal_events, row.checked_events, row.largest_difference_bytes) == (6, 6, 0)
    assert row.peak_ns == 20_000
    assert row.reserved_peak_bytes == 1 << 20
    assert [point.allocated_bytes for point in memory.timeline] == [1000, 1512, 2536, 2024, 2280, 2024, 1000]
    assert not warnings_of(memory)


def test_frees_of_what_was_there_before_count_into_it(tmp_path: Path) -> None:
    trace = _window()
    trace.take(10, 9, 4096)
    trace.give(20, 1, 512)
    trace.take(30, 8, 100)
    memory = memory_of(trace, tmp_path)
    (row,) = memory.devices
    assert (row.unmatched_frees, row.unmatched_free_bytes, row.before_window_bytes) == (2, 4196, 4196)
    assert (row.never_freed, row.never_freed_bytes) == (1, 512)
    assert memory.peak_bytes == 4196
    assert _components(memory) == {"before_window": 4196}
    assert "without what was allocated before it" in (memory.measured_by or "")


def test_before_is_not_known_where_nothing_says_it(tmp_path: Path) -> None:
    trace = _window()
    trace.give(20, 1, 512)
    (row,) = memory_of(trace, tmp_path).devices
    assert row.before_window_bytes is None
    assert row.checked_events == 0


def test_each_device_is_taken_apart(tmp_path: Path) -> None:
    trace = _window()
    trace.give(10, 1, 100, total=100, device=(0, -1), reserved=0)
    trace.give(11, 1, 1000, total=1000, device=(1, 0))
    trace.give(12, 1, 3000, total=5000, device=(1, 1))
    trace.take(13, 1, 100, total=0, device=(0, -1), reserved=0)
    trace.take(14, 1, 1000, total=0, device=(1, 0))
    memory = memory_of(trace, tmp_path)
    assert [(row.device, row.peak_bytes, row.before_window_bytes) for row in memory.devices] == [
        ("cuda:1", 5000, 2000), ("cuda:0", 1000, 0), ("cpu", 100, None),
    ]  # fmt: skip
    assert memory.peak_bytes == 5000
    assert all(row.equal_events == row.checked_events == row.events for row in memory.devices)
    assert memory.devices[2].reserved_peak_bytes is None


def test_the_cpu_of_an_accelerator_that_recorded_nothing_is_not_the_step(tmp_path: Path) -> None:
    trace = _window()
    trace.give(10, 1, 8, total=8, device=(0, -1), reserved=0)
    memory = memory_of(trace, tmp_path, on_device=True)
    assert memory.peak_bytes is None
    assert not memory.components
    assert [row.device for row in memory.devices] == ["cpu"]
    assert memory_of(trace, tmp_path).peak_bytes == 8


def test_an_address_given_twice_was_freed_unseen(tmp_path: Path) -> None:
    trace = _window()
    trace.give(10, 1, 512)
    trace.give(20, 1, 256)
    trace.take(30, 1, 256)
    memory = memory_of(trace, tmp_path)
    (row,) = memory.devices
    assert (row.unseen_frees, row.unseen_free_bytes, row.blocks, memory.peak_bytes) == (1, 512, 2, 512)
    assert "given again" in warnings_of(memory)[0]


def test_a_free_of_another_size_is_told(tmp_path: Path) -> None:
    trace = _window()
    trace.give(10, 1, 512)
    trace.take(20, 1, 256)
    memory = memory_of(trace, tmp_path)
    assert memory.devices[0].uneven_frees == 1
    assert "other than what was allocated" in warnings_of(memory)[0]


def test_missing_events_are_found_by_the_totals(tmp_path: Path) -> None:
    trace = _window()
    trace.give(10, 1, 100, total=1100)
    trace.give(20, 2, 100, total=1200)
    trace.give(30, 3, 100, total=1300)
    trace.give(40, 4, 100, total=8400)
    memory = memory_of(trace, tmp_path)
    (row,) = memory.devices
    assert (row.equal_events, row.checked_events, row.largest_difference_bytes) == (3, 4, 7000)
    assert "in 1 of 4 events" in warnings_of(memory)[0]


@pytest.mark.parametrize(("lost", "ours", "total"), [("allocation", 1_000, 1_300), ("free", 1_300, 1_000)])
@pytest.mark.parametrize("device", [CUDA, (6, 0)])
def test_a_lost_event_is_a_warning_and_a_row_of_the_checks(
    lost: str, ours: int, total: int, device: tuple[int, int], tmp_path: Path
) -> None:
    trace = _window()
    trace.give(10, 1, 1_000, total=1_000, device=device)
    trace.give(20, 2, 200, total=1_200, device=device)
    trace.take(30, 2, 200, total=1_000, device=device)
    if lost == "free":
        trace.give(40, 3, 300, total=1_300, device=device)
        trace.give(60, 4, 7, total=1_007, device=device)
        trace.take(70, 4, 7, total=1_000, device=device)
    else:
        trace.give(60, 4, 7, total=1_307, device=device)
        trace.take(70, 4, 7, total=1_300, device=device)
    memory = memory_of(trace, tmp_path)
    assert "in 2 of" in warnings_of(memory)[0]
    assert "by up to 300 B" in warnings_of(memory)[0]
    (check,) = check_memory(memory)
    (difference,) = check.unexplained
    assert (check.quantity, check.compared - check.equal) == ("allocated bytes", 2)
    assert (difference.operator, difference.ours, difference.other) == (memory.devices[0].device, ours + 7, total + 7)


# -------------------------------------------------------------------------------------------------------------- order


def test_equal_times_keep_the_order_of_the_file(tmp_path: Path) -> None:
    trace = _window()
    trace.give(10, 1, 512)
    trace.take(10, 1, 512)
    trace.give(10, 1, 512)
    trace.take(20, 1, 512)
    memory = memory_of(trace, tmp_path)
    assert (memory.peak_bytes, memory.devices[0].unmatched_frees, memory.devices[0].unseen_frees) == (512, 0, 0)


@pytest.mark.parametrize("told", [True, False])
def test_totals_order_what_several_threads_did_at_one_time(tmp_path: Path, told: bool) -> None:
    trace = _window()
    trace.give(5, 1, 512, total=1512 if told else None)
    trace.give(10, 1, 100, total=1100 if told else None, thread=1)
    trace.take(10, 2, 50, total=1100 if told else None, thread=1)
    trace.take(10, 1, 512, total=1000 if told else None, thread=2)
    trace.give(10, 2, 50, total=1150 if told else None, thread=2)
    (row,) = memory_of(trace, tmp_path).devices
    if told:
        assert (row.unseen_frees, row.unmatched_frees, row.uneven_frees) == (0, 0, 0)
        assert (row.equal_events, row.events, row.never_freed_bytes) == (5, 5, 100)
    else:
        assert (row.unseen_frees, row.unmatched_frees, row.uneven_frees) == (1, 1, 1)


def test_events_of_two_threads_lie_apart_in_the_file(tmp_path: Path) -> None:
    trace = _window()
    trace.take(20, 1, 512, thread=2)
    trace.give(10, 1, 512, thread=1)
    (row,) = memory_of(trace, tmp_path).devices
    assert (row.unmatched_frees, row.never_freed) == (0, 0)


# ----------------------------------------------------------------------------------------------------- other schemas


def test_without_addresses_the_last_block_of_a_size_is_freed(tmp_path: Path) -> None:
    trace = _window()
    trace.memory(5, None, -100)
    trace.memory(10, None, 100)
    trace.memory(20, None, 100)
    trace.memory(30, None, 300)
    trace.memory(40, None, -100)
    trace.memory(50, None, -100)
    path = trace.write(tmp_path / "trace.json")
    _, events = _events_of(path)
    blocks = blocks_of(events)
    assert not blocks.by_address
    assert blocks.alloc.tolist() == [1, 2, 3]
    assert blocks.free.tolist() == [5, 4, 6]
    assert blocks.unmatched.tolist() == [0]
    memory = memory_of(trace, tmp_path)
    assert (memory.peak_bytes, memory.devices[0].matched_by) == (500, "size")
    assert "no addresses" in warnings_of(memory)[0]


def test_threads_of_2021_are_text_in_operators_only(tmp_path: Path) -> None:
    trace = Recorded()
    trace.host("aten::relu", 0, 100, thread="25", category="Operator")
    trace.memory(10, None, 100, thread=25)
    assert memory_of(trace, tmp_path).blocks[0].operator == "aten::relu"


def test_numbers_that_cannot_be_are_left_out(tmp_path: Path) -> None:
    trace = _window()
    trace.give(10, 1, 512, total=-5)
    trace.give(20, 2, 2**60, total=2**62)
    trace.give(30, 3, 0)
    trace.events[-1]["args"]["Bytes"] = 2**70
    trace.events.append({"ph": "i", "name": "[memory]", "pid": 7, "tid": 1, "ts": 40})
    trace.events.append({"ph": "i", "name": "[memory]", "pid": 7, "tid": 1, "args": {"Bytes": 5}})
    memory = memory_of(trace, tmp_path)
    assert (memory.peak_bytes, memory.devices[0].checked_events) == (512, 0)


def test_more_than_any_device_has_is_no_trace() -> None:
    count = 1 << 13
    column = np.zeros(count, dtype=np.int64)
    events = MemoryEvents(
        time_ns=column, thread=column, bytes=column + 2**50, address=column, total_allocated=column,
        total_reserved=column, device_type=column, device=column,
    )  # fmt: skip
    with pytest.raises(TraceError, match="add up to more"):
        possible(events)


# ---------------------------------------------------------------------------------------------------------- inference


def _training_step(*, ranges: bool = True) -> Recorded:
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


def _step_blocks(trace: Recorded) -> None:
    trace.give(50, 1, 7)  # of the loader
    trace.give(115, 2, 100)  # activation of addmm
    trace.give(116, 3, 1)  # within addmm
    trace.take(118, 3, 1)
    trace.give(145, 4, 200)  # mask: native_dropout
    trace.give(150, 5, 30)  # forward only
    trace.take(170, 5, 30)
    trace.give(155, 6, 40)  # output, kept
    trace.give(225, 7, 1000, thread=2)  # weight gradient
    trace.give(230, 8, 500, thread=2)  # gradient of the activation
    trace.take(255, 2, 100, thread=2)
    trace.take(260, 4, 200, thread=2)
    trace.take(275, 8, 500, thread=2)
    trace.give(315, 9, 2000)  # state
    trace.give(345, 10, 60)  # within sqrt
    trace.take(350, 10, 60)
    trace.give(355, 11, 70)  # optimizer, to its end
    trace.take(370, 11, 70)
    trace.take(505, 7, 1000)  # set_to_none
    trace.take(515, 6, 40)


@pytest.mark.parametrize("ranges", [True, False])
def test_components_by_when_a_block_lives(tmp_path: Path, ranges: bool) -> None:
    trace = _training_step(ranges=ranges)
    _step_blocks(trace)
    memory = memory_of(trace, tmp_path)
    # At the peak the state, the gradient and the output are there, the activations are gone.
    assert memory.peak_bytes == 7 + 40 + 1000 + 2000 + 70
    assert memory.peak_at == Phase.OPTIMIZER
    expected = {"optimizer_state": 2000, "gradients": 1000, "temporary_buffers": 70, "other": 47}
    assert _components(memory) == expected
    assert _by_operator(memory)["aten::zeros_like"] == "optimizer_state"
    assert _by_operator(memory)["aten::mm"] == "gradients"
    highest = max(memory.timeline, key=lambda point: point.components.get("forward_activations", 0))
    assert highest.components["forward_activations"] == 300
    rules = {row.rule for row in memory.inferences}
    assert "allocated in backward, alive after it" in rules
    assert "allocated in the optimizer, never freed" in rules


def test_blocks_at_the_peak_name_operator_module_and_phase(tmp_path: Path) -> None:
    trace = _training_step()
    _step_blocks(trace)
    trace.events = [one for one in trace.events if one["ts"] < 240 or one["ph"] == "X"]
    trace.take(255, 2, 100, thread=2)
    trace.take(260, 4, 200, thread=2)
    memory = memory_of(trace, tmp_path)
    assert memory.peak_at == Phase.BACKWARD
    found = {(one.operator, one.module, one.phase, one.component, one.blocks, one.bytes) for one in memory.blocks}
    assert ("aten::addmm", "head", Phase.FORWARD, "forward_activations", 1, 100) in found
    # `aten::empty_strided` in `aten::empty_like` did not want the memory, `aten::native_dropout` did.
    assert ("aten::native_dropout", "head", Phase.FORWARD, "forward_activations", 1, 200) in found
    assert ("aten::native_dropout", "head", Phase.FORWARD, "other", 1, 40) in found
    assert ("aten::mm", "head", Phase.BACKWARD, "gradients", 2, 1500) in found
    assert (None, None, Phase.OTHER, "other", 1, 7) in found


def test_within_one_operator_call(tmp_path: Path) -> None:
    trace = Recorded()
    trace.host("aten::softmax", 100, 50)
    trace.host("aten::_softmax", 110, 30)
    trace.give(115, 1, 100)
    trace.take(145, 1, 100)
    memory = memory_of(trace, tmp_path)
    assert [row.rule for row in memory.inferences] == ["allocated and freed within one operator call"]
    assert _components(memory) == {"temporary_buffers": 100}


def test_a_function_that_holds_a_whole_pass_is_no_operator_call(tmp_path: Path) -> None:
    trace = Recorded()
    trace.host("CompiledFunction", 100, 100)
    trace.host("aten::mm", 110, 10)
    trace.give(112, 1, 100)
    trace.take(180, 1, 100)
    assert [row.rule for row in memory_of(trace, tmp_path).inferences] == ["allocated and freed in the same forward"]


def test_recomputed_activations(tmp_path: Path) -> None:
    trace = Recorded()
    trace.host("aten::linear", 50, 20, sequence=1)
    node = {"thread": 2, "sequence": 1, "forward_thread": 1}
    trace.host("autograd::engine::evaluate_function: CheckpointFunctionBackward", 100, 200, **node)
    trace.host("aten::mm", 110, 10, thread=2, sequence=2)
    trace.host("aten::gelu", 130, 10, thread=2, sequence=3)
    trace.host("aten::mm_backward", 200, 20, thread=2)
    trace.give(112, 1, 100, thread=2)  # freed by the backward part
    trace.give(114, 2, 10, thread=2)
    trace.take(125, 2, 10, thread=2)  # freed in recomputation
    trace.take(210, 1, 100, thread=2)
    memory = memory_of(trace, tmp_path)
    assert _components(memory) == {"forward_activations": 100, "temporary_buffers": 10}
    assert memory.blocks[0].phase == Phase.RECOMPUTE


def test_a_loader_beside_it_does_not_end_a_backward(tmp_path: Path) -> None:
    trace = _training_step(ranges=False)
    trace.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 243, 6, thread=3)
    trace.host("aten::to", 244, 4, thread=3)
    trace.give(225, 8, 500, thread=2)
    trace.give(245, 9, 1, thread=3)
    trace.take(275, 8, 500, thread=2)
    memory = memory_of(trace, tmp_path)
    assert _by_operator(memory)["aten::mm"] == "temporary_buffers"


# ------------------------------------------------------------------------------------------------------------- window


def test_the_peak_is_that_of_the_window_and_what_lives_before_counts(tmp_path: Path) -> None:
    trace = Recorded()
    trace.annotation("ProfilerStep#1", 100, 100)
    trace.host("aten::mm", 10, 20)
    trace.host("aten::mm", 110, 20)
    trace.give(12, 1, 1000)
    trace.give(13, 2, 50)
    trace.take(14, 1, 1000)
    trace.give(112, 3, 10)
    trace.take(115, 3, 10)
    trace.take(116, 2, 50)
    trace.give(300, 4, 9000)
    memory = memory_of(trace, tmp_path)
    assert memory.peak_bytes == 60
    assert [point.time_ns for point in memory.timeline] == [0, 12_000, 15_000, 16_000]
    assert [point.allocated_bytes for point in memory.timeline] == [50, 60, 50, 0]


def test_nothing_happens_in_the_window(tmp_path: Path) -> None:
    trace = Recorded()
    trace.annotation("ProfilerStep#1", 100, 100)
    trace.host("aten::mm", 10, 20)
    trace.give(12, 1, 1000)
    memory = memory_of(trace, tmp_path)
    assert memory.peak_bytes == 1000
    assert memory.timeline == (
        MemoryPoint(time_ns=0, phase=Phase.FORWARD, allocated_bytes=1000, components={"other": 1000}),
    )


def test_many_events_are_few_points_with_the_peak_among_them(tmp_path: Path) -> None:
    trace = Recorded()
    trace.host("aten::mm", 0, 10_000)
    for number in range(3000):
        size = 7 if number != 1234 else 5000
        trace.give(3 * number, number, size)
        trace.take(3 * number + 1, number, size)
    memory = memory_of(trace, tmp_path)
    assert memory.peak_bytes == 5000
    assert 150 < len(memory.timeline) <= 200
    assert {point.allocated_bytes for point in memory.timeline} == {0, 7, 5000}


def test_a_capture_keeps_what_it_measured(tmp_path: Path) -> None:
    trace = _window()
    trace.give(10, 1, 512)
    found = memory_of(trace, tmp_path)
    measured = Memory(peak_bytes=9, components=(MemoryComponent(component="weights", measured_bytes=9),))
    both = with_trace(measured, found)
    assert (both.peak_bytes, both.components) == (9, measured.components)
    assert (both.timeline, both.blocks, both.devices) == (found.timeline, found.blocks, found.devices)
    assert not both.inferences
    assert with_trace(Memory(), found) == found
    assert with_trace(measured, None) == measured


# --------------------------------------------------------------------------------------------------------------- laws


@st.composite
def _streams(draw: st.DrawFn) -> tuple[list[tuple[int, int, int]], int]:
    """(time, address, bytes) of an allocator that never gives an address twice, and bytes that were there before."""
    live: dict[int, int] = {-number: 10 * number for number in range(1, draw(st.integers(0, 3)) + 1)}
    before = sum(live.values()) + draw(st.integers(0, 1000))
    time, events = 0, []
    for _ in range(draw(st.integers(1, 60))):
        time += draw(st.integers(0, 2))
        address = draw(st.integers(1, 8))
        frees = sorted(live)
        if live and draw(st.booleans()):
            gone = draw(st.sampled_from(frees))
            events.append((time, gone, -live.pop(gone)))
        elif address not in live:
            live[address] = draw(st.integers(1, 1000))
            events.append((time, address, live[address]))
    return events, before


@settings(max_examples=60, deadline=None)
@given(stream=_streams(), rules=st.booleans())
def test_components_sum_to_the_curve_and_the_curve_is_the_allocators(
    stream: tuple[list[tuple[int, int, int]], int], rules: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    events, before = stream
    trace = _training_step(ranges=rules)
    level, levels = before, []
    for time, address, size in events:
        level += size
        levels.append(level)
        trace.memory(100 + 3 * time, address + 100, size, total=level)
    if not events:
        return
    memory = memory_of(trace, tmp_path_factory.mktemp("law"))
    (row,) = memory.devices
    assert row.equal_events == row.checked_events == len(events)
    assert row.before_window_bytes == before
    inside = [level for (time, _, _), level in zip(events, levels, strict=True) if 100 + 3 * time <= 450]
    assert memory.peak_bytes == max([before, *inside])


# ------------------------------------------------------------------------------------------------------- real traces

#: (trace, device, events, bytes before, peak in the window)
REAL = (
    ("train_v100_ddp_rank1of2_memory", "cuda:1", 26770, 4096614400, 6629508096),
    ("infer_h100_bert_small", "cuda:0", 218, 91360768, 101305344),
    ("infer_h100_vit_base", "cuda:0", 572, 214877184, 231332864),
    ("infer_h100_qwen1.5_0.5b", "cuda:0", 2250, 984742400, 2088508416),
    ("infer_h100_timesformer_eager", "cuda:0", 1206, 287697408, 4490752000),
    ("infer_mi300_qwen1.5_0.5b", "hip:0", 2588, 1085405696, 2219047936),
    ("train_mi300_normalization_layers", "hip:0", 415, 665600, 8154624),
)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared traces are not here")
@pytest.mark.parametrize(("name", "device", "events", "before", "peak"), REAL)
def test_curve_of_a_real_trace_is_the_allocators(
    name: str, device: str, events: int, before: int, peak: int
) -> None:  # fmt: skip
    memory = memory_in(SHARED / f"{name}.json.gz", on_device=True)
    assert memory is not None
    _check_sums(memory)
    row = memory.devices[0]
    assert (row.device, row.events, row.before_window_bytes, row.peak_bytes) == (device, events, before, peak)
    for one in memory.devices:
        assert one.equal_events == one.checked_events == one.events
        assert (one.unmatched_frees, one.unseen_frees, one.uneven_frees) == (0, 0, 0)
    assert not warnings_of(memory)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared traces are not here")
def test_training_on_a_v100_peaks_in_backward_with_its_activations() -> None:
    memory = memory_in(SHARED / "train_v100_ddp_rank1of2_memory.json.gz", on_device=True)
    assert memory is not None
    assert memory.peak_at == Phase.BACKWARD
    assert _components(memory) == {
        "before_window": 4096614400, "forward_activations": 1329586176, "temporary_buffers": 1199112704,
        "other": 4194816,
    }  # fmt: skip
    assert all(block.operator for block in memory.blocks)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared traces are not here")
def test_resnet50_of_2021_has_bytes_only() -> None:
    memory = memory_in(SHARED / "train_v100_resnet50_schema2021.json.gz", on_device=True)
    assert memory is not None
    _check_sums(memory)
    row = memory.devices[0]
    assert (row.device, row.events, row.peak_bytes, row.matched_by) == ("cuda:0", 8220, 2791636480, "size")
    assert row.before_window_bytes is None
    assert (memory.peak_at, memory.blocks[0].operator) == (Phase.BACKWARD, "aten::cudnn_convolution")
    # Gradients that autograd's thread adds up between nodes are of its backward: no activation ends in a forward.
    assert _components(memory) == {"forward_activations": 2721447424, "temporary_buffers": 70189056}


# ---------------------------------------------------------------------------------------------------------- live runs


def test_a_live_capture_on_the_cpu(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.randn(32, 64)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for _ in range(2):
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    path = tmp_path / "live.json"
    profiler.export_chrome_trace(str(path))
    memory = memory_in(path)
    assert memory is not None
    _check_sums(memory)
    (row,) = memory.devices
    assert (row.device, row.matched_by) == ("cpu", "address")
    assert row.equal_events == row.checked_events == row.events > 50
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    # The two moments of each parameter, and its step as one float.
    states = sum(block.bytes for block in memory.blocks if block.component == "optimizer_state")
    assert states == 2 * parameters + 4 * 4
    gradients = [one.components.get("gradients", 0) for one in memory.timeline]
    assert parameters <= max(gradients) < parameters + 100
    activations = max(one.components.get("forward_activations", 0) for one in memory.timeline)
    # Saved for backward: GELU's input and output (32 x 128), the square's input (32 x 8).
    assert activations >= 2 * 32 * 128 * 4 + 32 * 8 * 4


def test_components_are_those_of_torchs_own_memory_profile(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.LayerNorm(64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 16)
    )
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=True
    ) as profiler:  # fmt: skip
        for _ in range(2):
            model(torch.randn(16, 32)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    path = tmp_path / "live.json"
    profiler.export_chrome_trace(str(path))
    memory = memory_in(path)
    assert memory is not None
    _check_sums(memory)
    ours = {
        component: max(point.components.get(component, 0) for point in memory.timeline)
        for component in ("gradients", "optimizer_state")
    }
    torchs = _torchs_highest(profiler, {"GRADIENT": "gradients", "OPTIMIZER_STATE": "optimizer_state"})
    assert ours["optimizer_state"] == torchs["optimizer_state"]
    # A scalar of the backward may live until the optimizer runs: by its times alone it is taken for a gradient.
    assert 0 <= ours["gradients"] - torchs["gradients"] <= 16


def _torchs_highest(profiler: profile, wanted: dict[str, str]) -> dict[str, int]:
    """The most bytes that torch's profile has of each category at any time, called as in `wanted`."""
    found = profiler._memory_profile()

    def name_of(key: Any, version: int) -> str:
        category = found._categories.get(key, version)
        return category.name if category else "UNKNOWN"

    now: dict[str, int] = {}
    highest: dict[str, int] = {}
    for _, action, (key, version), size in found.timeline:
        if action.name in ("DESTROY", "INCREMENT_VERSION"):
            now[name_of(key, version)] = now.get(name_of(key, version), 0) - size
        if action.name != "DESTROY":
            name = name_of(key, version + (action.name == "INCREMENT_VERSION"))
            now[name] = now.get(name, 0) + size
            highest[name] = max(highest.get(name, 0), now[name])
    return {ours: highest[theirs] for theirs, ours in wanted.items()}


def test_a_trace_without_operators(tmp_path: Path) -> None:
    trace = Recorded()
    trace.kernel("gemm", 5, 100, 1)
    trace.give(10, 1, 512, total=612)
    memory = memory_of(trace, tmp_path)
    assert (memory.peak_bytes, memory.blocks[0].operator, memory.blocks[0].component) == (612, None, "other")


def test_reading_is_the_same_for_text_and_gzip(tmp_path: Path) -> None:
    trace = _window()
    trace.give(10, 1, 512, total=512)
    plain = tmp_path / "plain.json"
    plain.write_text(json.dumps({"traceEvents": trace.events}))
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert memory_in(plain) == memory_in(packed)


def test_device_names(tmp_path: Path) -> None:
    trace = _window()
    for number, device in enumerate(((1, 0), (6, 2), (12, -1), (99, 0))):
        trace.give(10 + number, 1, 512, device=device)
    _, events = _events_of(trace.write(tmp_path / "trace.json"))
    found = [(label, of_rows(events, rows).bytes.tolist()) for label, rows in by_device(events, possible(events))]
    assert found == [(name, [512]) for name in ("cuda:0", "hip:2", "xpu", "device type 99:0")]
    assert isinstance(memory_of(trace, tmp_path).devices[0], MemoryDevice)
