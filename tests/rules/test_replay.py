"""The replay: made steps whose time after each change is known by construction, real ones to their recorded time."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import opanatomy
from opanatomy.__main__ import main
from opanatomy.devices.overrides import parse_overrides
from opanatomy.errors import TraceError, UsageError
from opanatomy.pipeline import with_ceilings
from opanatomy.records.anatomy import Replay
from tests.support.made_steps import one_step, read_back, two_streams
from tests.support.made_trace import GEMM, H100, MAP, NCCL, TraceBuilder
from tests.support.paths import TRACES

US = 1_000


def serial() -> TraceBuilder:
    """The host takes 100 us for each of ten kernels of 20 us, which begin 8 us after their launch."""
    trace = one_step(1_000)
    for call in range(10):
        trace.host("aten::mm", 100 * call + 10, 60)
        trace.run(GEMM, 100 * call + 60, 100 * call + 68, 20)
    return trace


def queued() -> TraceBuilder:
    """Ten kernels of 100 us, 1 us apart, that the host launches in the first 100 us."""
    trace = one_step(200)
    for call in range(10):
        trace.host("aten::mm" if call % 2 else "aten::relu", 10 * call, 8)
        trace.run(GEMM if call % 2 else MAP, 10 * call + 2, 10 + 101 * call, 100)
    return trace


def across(late: float) -> TraceBuilder:
    """A collective of 600 us, and a map of 98 that waits for it and begins `late` us after its end."""
    trace = one_step(40)
    trace.host("c10d::allreduce_", 0, 8)
    trace.run(NCCL, 2, 10, 600, stream=20)
    trace.host("aten::relu", 20, 10)
    trace.run(MAP, 22, 610 + late, 98)
    return trace


def first_launch() -> TraceBuilder:
    """Nine maps of 20 us; the launch of the first takes 5,000 us, and its work begins as it returns."""
    trace = one_step(5_500)
    trace.host("aten::relu", 0, 5_010)
    trace.launch(2, 900, duration=5_000)
    trace.kernel(MAP, 5_002, 20, 900)
    for begin in range(5_100, 5_500, 50):
        trace.host("aten::relu", begin, 10)
        trace.run(MAP, begin + 2, begin + 10, 20)
    return trace


def ranged() -> TraceBuilder:
    """300 us of a range before the launch of the only kernel, of 50."""
    trace = one_step(410)
    trace.host("augment", 100, 300, category="user_annotation")
    trace.host("aten::relu", 400, 10)
    trace.run(MAP, 402, 410, 50)
    return trace


def two_threads() -> TraceBuilder:
    """The main thread launches a product of 100 us, then waits, and autograd's launches another after 200 us."""
    trace = one_step(410)
    trace.host("aten::mm", 0, 20)
    trace.run(GEMM, 2, 10, 100)
    trace.host("MmBackward0", 200, 200, thread=2)
    trace.run(GEMM, 380, 388, 30, thread=2)
    return trace


def blocking_copy() -> TraceBuilder:
    """A copy of 500 us whose call lasts until it is done, and a map of 20 us that the host launches 50 us later."""
    trace = one_step(600)
    trace.host("aten::copy_", 0, 520)
    trace.launch(2, 900, name="cudaMemcpyAsync", duration=510)
    trace.kernel("Memcpy DtoH (Device -> Pageable)", 10, 500, 900, category="gpu_memcpy")
    trace.host("aten::relu", 562, 10)
    trace.run(MAP, 564, 572, 20)
    return trace


@pytest.mark.parametrize(
    ("build", "change", "gain_us"),
    [
        (lambda: across(9), "communication x0.5", 300),  # by a delay longer than usual, which stays
        (lambda: across(-2), "communication x0.5", 300),  # by clocks that differ
        (lambda: across(9), "host 0", 2),
        (first_launch, "slow_launch 0", 5_000),
        (first_launch, "aten::relu x0.5", 0),  # the host ends the step
        (ranged, "augment x0.5", 150),
        (ranged, "aten::relu 0", 50),
        (two_threads, "host x0.5", 190),  # launched at 190, not at 380
        (two_threads, "contraction 0", 8),  # the host ends it then
        (blocking_copy, "copies x0.1", 450),
        (blocking_copy, "copies 0", 500),
        (serial, "aten::mm x0.5", 0),  # the host decides
        (serial, "device 0", 0),
        (serial, "host x0.5", 492),  # the tenth is launched at 480, begins 8 us later and takes 20
        (queued, "aten::mm x0.5", 250),  # each of five is half as long
        (queued, "elementwise 0", 491),  # the first product waits 9 us for its launch then
        (queued, "host 0", 2),  # the first is launched 2 us after the begin
        (queued, "device x2", -1_000),
        (read_back, "Synchronizations 0", 969),
        (queued, "Elementwise 0", 491),
        (queued, "DEVICE x2", -1_000),
        (serial, "Host x0.5", 492),
        (first_launch, "Slow launches 0", 5_000),
        (blocking_copy, "Copies x0.1", 450),
        (blocking_copy, "Blocking copies 0", 69),  # the map stands behind the copy, which ends at 510
        (two_streams, "Tensor contraction 0", 0),
        (ranged, "HOST augment x0.5", 150),
        (read_back, "synchronization 0", 969),  # side by side: 10 us, six kernels and 1 us between two of them
        (read_back, "aten::relu 0", 0),
        (read_back, "aten::mm x0.5", 750),
        (two_streams, "communication 0", 211),  # up to 1 us after the end of the product
        (two_streams, "aten::mm 0", 0),
        (two_streams, "communication x0.5", 211),
    ],
)
def test_a_made_step_after_a_change(
    build: Callable[[], TraceBuilder], change: str, gain_us: int, tmp_path: Path
) -> None:
    anatomy = opanatomy.analyze(build().write(tmp_path / "trace.json"), what_if=[change])
    replay = anatomy.replay
    assert isinstance(replay, Replay)
    assert replay.why_not is None
    assert replay.step_ns == anatomy.step.wall_ns
    (answer,) = replay.answers
    assert answer.changes == (" x".join(change.replace(" x", " ").rsplit(" ", 1)),)
    assert replay.step_ns - answer.step_ns == pytest.approx(gain_us * US, abs=US)
    assert sum(part.time_ns for part in replay.path) == pytest.approx(replay.step_ns, abs=len(replay.path))


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("cudaMemcpy", 3),
        ("cuMemcpyDtoH_v2", 3),
        ("cuMemcpyDtoHAsync_v2", 0),
        ("urQueueFinish", 3),
        ("zeCommandQueueSynchronize", 3),
        ("aclrtSynchronizeStream", 3),
    ],
)
def test_calls_that_wait_are_the_same_everywhere(name: str, waits: int, tmp_path: Path) -> None:
    """Counted, as the cause of idle time, and replayed."""
    trace = read_back()
    for event in trace.events:
        event["name"] = event["name"].replace("cudaStreamSynchronize", name)
    anatomy = opanatomy.analyze(trace.write(tmp_path / "trace.json"), what_if=["synchronization 0"])
    assert anatomy.timeline.launching is not None
    assert anatomy.timeline.launching.synchronizing_calls == waits
    assert ("synchronization" in {row.cause for row in anatomy.timeline.causes}) == bool(waits)
    replay = anatomy.replay
    assert replay is not None
    assert replay.step_ns - replay.answers[0].step_ns == pytest.approx(969 * US if waits else 0, abs=US)


def test_a_host_that_was_ahead_when_recording_began_is_said_to_be_slowed(tmp_path: Path) -> None:
    """3,000 us of work are queued before the first launch that is recorded; the step of 10,000 us then idles 5,000."""
    for queued, since in ((3_000, 0), (3_000, 1_700_000_000_000_000), (0, 0)):  # times from 1970 on too
        trace = TraceBuilder(metadata={"schemaVersion": 1, "deviceProperties": [H100]})
        trace.host("aten::relu", 0, 20)
        if queued:
            trace.kernel(MAP, 1, queued, 9_001)
        trace.step(0, 10_000)
        trace.run(MAP, 5, queued + 10, 990)
        trace.host("aten::normal_", queued + 1_100, 5_000)
        trace.host("aten::relu", queued + 6_110, 10)
        trace.run(MAP, queued + 6_112, queued + 6_120, 3_880 - queued)
        for event in trace.events:
            event["ts"] += since
        anatomy = trace.analyze(tmp_path)
        assert anatomy.replay is not None
        assert anatomy.replay.ahead_ns == queued * US
        (gap,) = [advice for advice in anatomy.advice if advice.id == "gap"]
        assert ("ahead of the device when recording began" in gap.why) == bool(queued)
        assert (gap.tries[0] == "Time the step without the profiler first.") == bool(queued)


def test_a_wait_for_unrecorded_work_is_not_trusted(tmp_path: Path) -> None:
    trace = one_step(6_000)
    trace.host("aten::mm", 0, 10)
    trace.run(GEMM, 2, 10, 500)
    trace.launch(20, 0, name="cudaDeviceSynchronize", duration=5_900)
    replay = trace.analyze(tmp_path).replay
    assert replay is not None
    assert replay.why_not == "device work is missing from the trace for 90% of the step time"


def test_a_delay_that_nothing_explains_is_not_trusted(tmp_path: Path) -> None:
    """Of nine maps on an idle device one begins 608 us after its launch, the others 8; the host goes on, for 10 ms."""
    trace = one_step(10_000)
    for call in range(9):
        trace.host("aten::relu", 1_000 * call, 10)
        trace.run(MAP, 1_000 * call + 2, 1_000 * call + (610 if call == 5 else 10), 100)
    replay = trace.analyze(tmp_path).replay
    assert replay is not None
    assert replay.unexplained == pytest.approx(0.06)
    assert replay.why_not == "delays that nothing in the trace explains take 6% of the step time"


def test_a_host_that_waits_for_the_queue_of_earlier_steps_is_not_busy(tmp_path: Path) -> None:
    """A launch stands 4 ms behind the kernels of before: its host is free when the device gets faster."""
    trace = TraceBuilder(metadata={"schemaVersion": 1, "deviceProperties": [H100]})
    for call in range(700):
        trace.run(MAP, call, 10 + 10 * call, 10)
    for step, (begin, stands) in enumerate(((720, 50), (1_100, 4_000), (5_500, 50))):
        trace.step(begin, stands + 300, number=step)
        trace.host("aten::mm", begin + 5, stands + 100)
        trace.launch(begin + 10, 9_000 + step, duration=stands)
        trace.kernel(GEMM, 7_011 + 1_001 * step, 1_000, 9_000 + step)
    path = str(trace.write(tmp_path / "trace.json"))
    anatomy = opanatomy.analyze(path, what_if=["aten::mm x0.1"])
    assert (anatomy.step.count, anatomy.step.aside_count) == (2, 1)
    replay = anatomy.replay
    assert replay is not None
    # 300, 100 and 350 us of the host in two steps, and 8 us of a wait that returns at once.
    assert (replay.step_ns, replay.answers[0].step_ns) == (1_001 * US, 379 * US)


@pytest.mark.parametrize("path", sorted(TRACES.glob("gpu_*.json.gz")), ids=lambda path: path.name.split(".")[0])
def test_a_replay_without_a_change_is_the_recorded_time(path: Path) -> None:
    """To 0.1 % and what lies between two steps: the clocks of host and device differ by microseconds."""
    anatomy = opanatomy.analyze(path)
    if anatomy.environment.device_kind == "cpu":
        assert anatomy.replay is None
        return
    assert anatomy.replay is not None
    assert anatomy.timeline.outside_ns is not None
    own = (anatomy.timeline.window_ns - anatomy.timeline.outside_ns) / anatomy.step.count
    assert anatomy.replay.step_ns == pytest.approx(own, rel=1e-3, abs=20 * US)
    assert sum(part.time_ns for part in anatomy.replay.path) == pytest.approx(anatomy.replay.step_ns, rel=5e-3)


def test_own_questions_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(queued().write(tmp_path / "trace.json"))
    asked = ["analyze", path, "--section", "replay", "--what-if"]
    assert main([*asked, "aten::mm x0.5", "--what-if", "elementwise 0"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "what if aten::mm x0.5: 769 us (-24.5 %)" in text
    assert "what if aten::mm x0.5, elementwise x0: 278 us" in text
    for wrong, says in (
        ("aten::nn 0", "did you mean aten::mm"),
        ("half", "not a change - write PART xFACTOR"),
        ("Aten::mm 0", "did you mean aten::mm"),
        ("blocking copie 0", "did you mean blocking copies"),
        ("synchronizations x0.5", "only removed - write 'synchronization 0'"),
        ("blocking copies x1", "only removed - write 'blocking copies 0'"),
    ):
        assert main([*asked, wrong]) == 2
        assert says in capsys.readouterr().err
    assert main(["analyze", str(TRACES / "bert_cpu.json.gz"), "--what-if", "host 0"]) == 2
    assert "a single trace with GPU work" in capsys.readouterr().err


def test_own_questions_from_python(tmp_path: Path) -> None:
    """Asked later it answers as `analyze(what_if=...)` does; the file is read for the first question alone."""
    path, asked = queued().write(tmp_path / "trace.json"), ("aten::mm x0.5", "elementwise 0")
    anatomy, whole = opanatomy.analyze(path), opanatomy.analyze(path, what_if=asked)
    replay = anatomy.what_if(*asked)
    assert [answer.step_ns for answer in replay.answers] == [769 * US, 528 * US, 278 * US]
    assert replay == whole.replay
    assert anatomy == opanatomy.analyze(path)
    assert "trace.json" not in repr(replay)
    path.unlink()
    assert anatomy.what_if("host 0").answers[0].step_ns == 1_017 * US
    other = opanatomy.analyze(serial().write(tmp_path / "other.json"))
    assert other.what_if("host x0.5").step_ns == other.step.wall_ns
    with pytest.raises(TraceError, match=r"trace\.json"):
        anatomy.what_if("host 0")
    queued().write(path).write_text(path.read_text() + " ")
    with pytest.raises(UsageError, match="changed since it was opened"):
        anatomy.what_if("host 0")


def test_what_cannot_be_asked_from_python(tmp_path: Path) -> None:
    path = queued().write(tmp_path / "trace.json")
    anatomy = opanatomy.analyze(path)
    anatomy.to_json(tmp_path / "report.json")
    changed: Any = ["host 0"]
    for wrong, says in (
        ("aten::nn 0", "did you mean aten::mm"),
        ("half", "not a change"),
        (changed, "not all changes are strings"),
    ):
        with pytest.raises(UsageError, match=says):
            anatomy.what_if(wrong)
    report = opanatomy.read(tmp_path / "report.json")
    assert isinstance(report, opanatomy.Anatomy)
    for without in (report, replace(anatomy), pickle.loads(pickle.dumps(anatomy))):
        with pytest.raises(UsageError, match=r"has no events - pass the trace to opanatomy\.analyze"):
            without.what_if("host 0")
    ranks = sorted(TRACES.glob("gpu_v100_dlrm_rank*.json.gz"))
    for none in (opanatomy.analyze(TRACES / "bert_cpu.json.gz"), opanatomy.analyze(ranks)):
        with pytest.raises(UsageError, match="a single trace with GPU work"):
            none.what_if("host 0")


def test_a_report_that_is_read_again_has_no_gains_by_a_replay(tmp_path: Path) -> None:
    """Other peaks give other advice, of which no replay has the gains, nor what it gains together."""
    anatomy = opanatomy.analyze(TRACES / "gpu_v100_resnet_2021.json.gz")
    assert anatomy.replay is not None
    assert anatomy.replay.together is not None
    again = with_ceilings(anatomy, parse_overrides("float16=1P", None))
    assert again.replay is not None
    assert again.replay.together is None
    assert {each.replayed_ns for each in again.advice} == {None}
