"""Several ranks: one report whose sums hold, a row for each, the slowest by name; collectives with their sizes."""

from __future__ import annotations

import gzip
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from opanatomy.analysis.communication import bus_factor, message_bytes
from opanatomy.attribution.collectives import both_sides, dtype_of, named
from opanatomy.errors import TraceError
from opanatomy.pipeline import analyze_trace, analyze_traces, summary_of_trace
from opanatomy.records.anatomy import Anatomy, CollectiveCalls
from opanatomy.records.columns import CollectiveArguments
from opanatomy.records.communication import Collective
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.report import read_anatomy, terminal_report
from opanatomy.report.formats.json import json_report
from opanatomy.trace.sources import sources_of
from tests.command import run
from tests.handmade import HandMade, training_step
from tests.test_cli import left_in

REAL = Path(__file__).parent.parent.parent / "shared" / "traces" / "multirank"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def collective(
    trace: HandMade, start: float, duration: float, correlation: int, *, kernel: str = ALL_REDUCE, stream: int = 20,
    shape: list[int] | None = None, message: dict[str, Any] | None = None, on_kernel: bool = True,
) -> None:  # fmt: skip
    """A collective as c10d and NCCL leave it: an operator, `record_param_comms`, an annotation, a launch, a kernel."""
    trace.host("c10d::allreduce_", start - 20, 15)
    trace.host("record_param_comms", start - 19, 13)
    trace.events[-1]["args"] |= message or {}
    shapes = {} if shape is None else {"shapes": [shape], "types": ["float"]}
    trace.host("nccl:all_reduce", start - 18, 11, category="user_annotation", **shapes)
    trace.launch(start - 17, correlation)
    trace.kernel(kernel, start, duration, correlation, stream=stream)
    trace.events[-1]["args"] |= (message or {}) if on_kernel else {}


def message(
    name: str = "allreduce", sent: int = 1000, got: int = 1000, group: int = 4, dtype: str = "Float"
) -> dict[str, Any]:
    return {
        "Collective name": name, "In msg nelems": sent, "Out msg nelems": got, "Group size": group, "dtype": dtype,
        "In split size": "[]", "Process Group Name": "0",
    }  # fmt: skip


def rank_trace(rank: int | None, *, waits: float = 50, world: int = 4, **collective_options: Any) -> HandMade:
    """A step of 900 us with an all-reduce that takes `waits` us and that nothing hides."""
    trace = training_step()
    if rank is not None:
        trace.metadata["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world}
    collective(trace, 600, waits, 90, **collective_options)
    return trace


def folder_of(tmp_path: Path, *traces: HandMade, pattern: str = "rank{}.json.gz") -> Path:
    folder = tmp_path / "ranks"
    folder.mkdir()
    for place, trace in enumerate(traces):
        trace.write(folder / pattern.format(place))
    return folder


@pytest.fixture
def four(tmp_path: Path) -> Anatomy:
    waits = (50, 60, 10, 70)
    return analyze_traces([folder_of(tmp_path, *(rank_trace(place, waits=time) for place, time in enumerate(waits)))])


# ----------------------------------------------------------------------------------------------------------- ranks


def test_sums_are_those_of_the_ranks(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, rank_trace(0), rank_trace(1, waits=77), rank_trace(2, message=message()))
    each = [analyze_trace(path) for path in sorted(folder.iterdir())]
    together = analyze_traces([folder])
    assert together.ledger.device_work_ns == sum(one.ledger.device_work_ns for one in each)
    for name in OperatorClass:
        for field in ("time_ns", "calls", "kernels"):
            mine = sum(getattr(row, field) for row in together.classes if row.operator_class is name)
            assert mine == sum(getattr(row, field) for one in each for row in one.classes if row.operator_class is name)
    assert sum(row.flops or 0 for row in together.classes) == sum(row.flops or 0 for one in each for row in one.classes)
    for field in ("operators", "kernels", "modules"):
        rows = [row for one in each for row in getattr(one, field)]
        assert sum(row.time_ns for row in getattr(together, field)) == sum(row.time_ns for row in rows)
    assert len(together.classes) == len(each[0].classes)
    assert [row.operator for row in together.operators].count("aten::mm") == 2
    talk = sum(row.time_ns for row in together.classes if row.operator_class is OperatorClass.COMMUNICATION)
    assert talk == sum(row.time_ns for row in together.collectives) == 177_000


def test_each_rank_has_a_row(four: Anatomy) -> None:
    assert [(rank.rank, rank.world_size, rank.trace, rank.steps) for rank in four.ranks] == [
        (place, 4, f"rank{place}.json.gz", 1) for place in range(4)
    ]
    assert [rank.communication_ns for rank in four.ranks] == [50_000, 60_000, 10_000, 70_000]
    assert [rank.exposed_communication_ns for rank in four.ranks] == [50_000, 60_000, 10_000, 70_000]
    assert {rank.kernel_time_ns - (rank.communication_ns or 0) for rank in four.ranks} == {35_000}
    for rank in four.ranks:
        assert rank.busy_ns + rank.idle_ns == rank.window_ns == 900_000


def test_the_spread_names_the_slowest_and_the_one_the_others_wait_for(four: Anatomy) -> None:
    spread = {row.figure: row for row in four.spread}
    talk = spread["communication"]
    assert (talk.min_ns, talk.median_ns, talk.max_ns, talk.max_rank) == (10_000, 55_000, 70_000, 3)
    assert (spread["own"].max_ns, spread["own"].max_rank) == (890_000, 2)
    assert (spread["step"].max_ns, spread["step"].max_rank) == (900_000, 0)
    text = terminal_report(four, width=100)
    assert "The longest step is that of rank 0: 900 us" in text
    assert four.waiting is not None
    assert "no straggler is named: the ranks hardly wait for each other" in " ".join(text.split())


def test_the_timeline_is_the_mean_and_its_parts_add_up(four: Anatomy) -> None:
    timeline = four.timeline
    assert timeline.communication_ns == 47_500
    assert timeline.window_ns == timeline.busy_ns + (timeline.outside_ns or 0) + timeline.idle_ns
    parts = (timeline.host_idle_ns, timeline.stream_idle_ns, timeline.other_idle_ns)
    assert timeline.idle_ns == sum(part or 0 for part in parts)


def test_json_has_the_ranks_and_reads_back(four: Anatomy) -> None:
    text = json_report(four)
    assert read_anatomy(text) == read_anatomy(json_report(read_anatomy(text)))
    told = json.loads(text)
    assert [row["rank"] for row in told["ranks"]] == [0, 1, 2, 3]
    assert next(row["figure"] for row in told["spread"]) == "step"
    assert told["collectives"][0]["collective"] == "all_reduce"


@pytest.mark.parametrize("pattern", ["rank{}.json", "trainer_rank-{}.123.pt.trace.json", "worker{}.pt.trace.json.gz"])
def test_the_name_of_the_file_says_the_rank_where_the_trace_does_not(tmp_path: Path, pattern: str) -> None:
    together = analyze_traces(
        [folder_of(tmp_path, *(rank_trace(None, waits=50 + place) for place in range(11)), pattern=pattern)]
    )
    assert [rank.rank for rank in together.ranks] == list(range(11))


def test_ranks_without_any_number_go_by_the_names_of_their_files(tmp_path: Path) -> None:
    paths = [rank_trace(None, waits=time).write(tmp_path / name) for name, time in (("b.json", 9), ("a.json", 20))]
    together = analyze_traces(paths)
    assert [(rank.rank, rank.trace) for rank in together.ranks] == [(None, "a.json"), (None, "b.json")]
    without = replace(together, waiting=None)
    assert "Of all ranks b.json waits least" in terminal_report(without, width=100)


def test_one_trace_says_its_rank_and_has_no_table(tmp_path: Path) -> None:
    anatomy = analyze_traces([rank_trace(3).write(tmp_path / "one.json")])
    assert [(rank.rank, rank.world_size) for rank in anatomy.ranks] == [(3, 4)]
    text = terminal_report(anatomy)
    assert "3 of 4" in text
    assert "a step of rank" not in text
    assert analyze_traces([training_step().write(tmp_path / "none.json")]).ranks == ()


def test_many_ranks_are_shown_in_groups_of_like_ones(tmp_path: Path) -> None:
    together = analyze_traces([folder_of(tmp_path, *(rank_trace(place, waits=place + 1) for place in range(20)))])
    text = terminal_report(together, width=80)
    assert "A: 20 ranks" in text
    assert "A: ranks 0-19" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_step_that_one_rank_alone_has_counts_on_none(tmp_path: Path) -> None:
    longer = rank_trace(1)
    longer.annotation("ProfilerStep#4", 1000, 500)
    longer.events += [{**event, "ts": event["ts"] + 900} for event in longer.events if event["cat"] == "cpu_op"]
    together = analyze_traces([folder_of(tmp_path, rank_trace(0), longer)])
    assert [(rank.rank, rank.steps) for rank in together.ranks] == [(0, 1), (1, 1)]
    assert not [text for text in together.warnings if "steps" in text]


def test_uneven_steps_are_told(tmp_path: Path) -> None:
    """One rank has step 3, the other steps 8 and 9, which do the same: there is none in common."""
    longer = rank_trace(1)
    second = [
        {**event, "ts": event["ts"] + 900, "args": {**event["args"], "correlation": event["args"]["correlation"] + 100}}
        for event in longer.events
        if "correlation" in event["args"]
    ]
    longer.events[0]["name"] = "ProfilerStep#8"
    longer.annotation("ProfilerStep#9", 1000, 900)
    longer.events += second
    together = analyze_traces([folder_of(tmp_path, rank_trace(0), longer)])
    assert [(rank.rank, rank.steps) for rank in together.ranks] == [(0, 1), (1, 2)]
    assert any("1 to 2 steps" in text for text in together.warnings)


def test_the_gpus_of_two_nodes_may_have_one_number(tmp_path: Path) -> None:
    for node in (0, 1):
        (tmp_path / f"node{node}").mkdir()
        rank_trace(None, waits=50 + node).write(tmp_path / f"node{node}" / "gpu0.json")
    together = analyze_traces([tmp_path])
    assert any("rank 0 is in 2 files" in text for text in together.warnings)


def test_caveats_say_whose_they_are(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, *(rank_trace(place) for place in range(3)))
    path = folder / "rank1.json.gz"
    text = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(text[:-40]))
    assert any(text.startswith("rank ") and "cut off" in text for text in analyze_traces([folder]).caveats)


# ----------------------------------------------------------------------------------------------- folders and zips


def test_a_folder_of_folders(tmp_path: Path) -> None:
    for place in range(2):
        (tmp_path / f"rank{place}").mkdir()
        rank_trace(None, waits=50 + place).write(tmp_path / f"rank{place}" / "trace.json")
    assert [source.name for source in sources_of([tmp_path])] == ["rank0/trace.json", "rank1/trace.json"]
    assert [rank.rank for rank in analyze_traces([tmp_path]).ranks] == [0, 1]


def test_names_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("rank10.json", "rank2.json", ".hidden.json", "notes.txt", "rank1.pt.trace.json.gz"):
        (tmp_path / name).touch()
    assert [source.name for source in sources_of([tmp_path])] == ["rank1.pt.trace.json.gz", "rank2.json", "rank10.json"]


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_a_zip_of_ranks(tmp_path: Path, method: int, ending: str) -> None:
    folder = folder_of(tmp_path, *(rank_trace(place) for place in range(3)), pattern="rank{}" + ending)
    with zipfile.ZipFile(tmp_path / "ranks.zip", "w", method) as archive:
        for path in folder.iterdir():
            archive.write(path, f"run/{path.name}")
        archive.writestr("run/readme.txt", "no trace")
    zipped, plain = analyze_traces([tmp_path / "ranks.zip"]), analyze_traces([folder])
    assert zipped.classes == plain.classes
    assert [rank.trace for rank in zipped.ranks] == [f"run/rank{place}{ending}" for place in range(3)]


def test_a_damaged_member_is_left_out(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "ranks.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for place in range(2):
            archive.writestr(f"rank{place}.json", rank_trace(place).text())
        archive.writestr("rank2.json", "no trace")
    together = analyze_traces([tmp_path / "ranks.zip"])
    assert len(together.ranks) == 2
    (warning,) = [text for text in together.caveats if "left out" in text]
    assert warning.startswith(f"rank2.json is left out: rank2.json in {tmp_path / 'ranks.zip'} is not a trace")


def test_a_bomb_in_a_zip_is_left_out(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.json.gz", b"\0" * (100 << 20))
    with pytest.raises(TraceError, match="bomb"):
        analyze_traces([tmp_path / "bomb.zip"])


def test_what_cannot_be_read_is_a_caveat_among_others(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, rank_trace(0), rank_trace(1))
    (folder / "rank2.json").write_text("no trace")
    (folder / "rank3.json").write_text('{"model_type": "bert"}')
    together = analyze_traces([folder])
    assert len(together.ranks) == 2
    lost = [text for text in together.caveats if "left out" in text]
    assert [text.split(" ")[0] for text in lost] == ["rank2.json", "rank3.json"]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["empty"], "no trace in the folder"),
        (["bad"], "none of the 2 traces can be read"),
        (["not.zip"], "no trace in the zip"),
        (["gone.json", "gone2.json"], "none of the 2 traces"),
        (["gone"], "no such file"),
    ],
)
def test_nothing_to_read_is_one_line(tmp_path: Path, names: list[str], words: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    for name in ("a.json", "b.json"):
        (tmp_path / "bad" / name).write_text("no trace")
    with zipfile.ZipFile(tmp_path / "not.zip", "w") as archive:
        archive.writestr("x.txt", "")
    done = run("analyze", *names, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr.strip().splitlines()[-1]
    assert len([line for line in done.stderr.splitlines() if line.startswith("opanatomy:")]) == 1


def test_the_command_over_a_folder(tmp_path: Path) -> None:
    folder_of(tmp_path, rank_trace(0), rank_trace(1))
    done = run("analyze", "ranks", "-f", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row["rank"] for row in json.loads(done.stdout)["ranks"]] == [0, 1]
    assert left_in(tmp_path) == ["ranks"]


# ------------------------------------------------------------------------------------------------------ collectives


def only(tmp_path: Path, **options: Any) -> Collective:
    (found,) = analyze_trace(rank_trace(0, waits=100, **options).write(tmp_path / "one.json")).collectives
    return found


def test_bus_bandwidth_from_the_arguments_of_the_kernel(tmp_path: Path) -> None:
    found = only(tmp_path, message=message(sent=25_000_000, got=25_000_000, group=8))
    assert (found.collective, found.dtype, found.group_size, found.group_assumed) == ("all_reduce", "float32", 8, False)
    assert (found.calls, found.kernels, found.time_ns, found.bytes) == (1, 1, 100_000, 100_000_000)
    # 100 MB in 100 us are 1 TB/s; an all-reduce of 8 puts 2 * 7 / 8 of it on the bus.
    assert found.bus_bytes_per_second == pytest.approx(1.75e12)


def test_bus_bandwidth_from_record_param_comms(tmp_path: Path) -> None:
    found = only(tmp_path, message=message("_allgather_base", sent=1000, got=4000), on_kernel=False)
    assert (found.collective, found.bytes, found.group_size) == ("all_gather", 16_000, 4)
    assert found.bus_bytes_per_second == pytest.approx(16_000 / 100e-6 * 3 / 4)


def test_bus_bandwidth_from_the_shape_of_the_annotation(tmp_path: Path) -> None:
    found = only(tmp_path, shape=[10, 100])
    assert (found.collective, found.dtype, found.bytes) == ("all_reduce", "float32", 4000)
    assert (found.group_size, found.group_assumed) == (4, True)
    assert found.bus_bytes_per_second == pytest.approx(4000 / 100e-6 * 2 * 3 / 4)


def test_without_sizes_there_is_no_bandwidth(tmp_path: Path) -> None:
    found = only(tmp_path)
    assert (found.collective, found.time_ns, found.sized_ns) == ("all_reduce", 100_000, 0)
    assert (found.bytes, found.bus_bytes_per_second) == (None, None)


def test_several_kernels_of_one_call_move_its_bytes_once(tmp_path: Path) -> None:
    trace = rank_trace(0, waits=100, message=message())
    trace.launch(584, 91)
    trace.kernel(ALL_REDUCE, 720, 30, 91, stream=20)
    trace.events[-1]["args"] |= message()
    (found,) = analyze_trace(trace.write(tmp_path / "one.json")).collectives
    assert (found.calls, found.kernels, found.time_ns, found.bytes) == (1, 2, 130_000, 4000)


def test_a_collective_at_the_first_event_moves_its_bytes_once(tmp_path: Path) -> None:
    trace = HandMade()
    trace.host("record_param_comms", 0, 20)
    trace.events[-1]["args"] |= message()
    for correlation in (1, 2):
        trace.launch(4 * correlation, correlation)
        trace.kernel(ALL_REDUCE, 50 * correlation, 30, correlation, stream=20)
    (found,) = analyze_trace(trace.write(tmp_path / "one.json")).collectives
    assert (found.calls, found.kernels, found.time_ns, found.bytes) == (1, 2, 60_000, 4000)


def test_ranks_sum_their_collectives(tmp_path: Path) -> None:
    told = message(sent=1000, got=1000)
    folder = folder_of(tmp_path, rank_trace(0, waits=100, message=told), rank_trace(1, waits=300, message=told))
    (found,) = analyze_traces([folder]).collectives
    assert (found.calls, found.time_ns, found.bytes) == (2, 400_000, 8000)
    assert found.bus_bytes_per_second == pytest.approx(8000 / 400e-6 * 1.5)


@pytest.mark.parametrize("odd", [{"In msg nelems": "many"}, {"Group size": None}, {"dtype": 7}, {"Collective name": 3}])
def test_odd_arguments_cost_the_size_and_nothing_else(tmp_path: Path, odd: dict[str, Any]) -> None:
    found = only(tmp_path, message={**message(), "Out msg nelems": -1, **odd})
    assert (found.collective, found.time_ns) == ("all_reduce", 100_000)


def test_gloo_leaves_annotations(tmp_path: Path) -> None:
    trace = HandMade()
    trace.metadata["distributedInfo"] = {"backend": "gloo", "rank": 0, "world_size": 2, "pg_count": 1}
    trace.host("c10d::allreduce_", 100, 20)
    trace.host("gloo:all_reduce", 110, 400, thread=9, category="user_annotation", shapes=[[50]], types=["float"])
    (found,) = analyze_trace(trace.write(tmp_path / "gloo.json")).collectives
    assert (found.collective, found.time_ns, found.bytes, found.group_size) == ("all_reduce", 400_000, 200, 2)
    assert not found.group_assumed


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("_allgather_base", "all_gather"), ("allgather_into_tensor_coalesced", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"), ("all_to_allv", "all_to_all"),
        ("allreduce_coalesced", "all_reduce"),
        ("all_reduce_barrier", "barrier"), ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "send_recv"),
        ("ncclDevKernel_Broadcast_RING_LL", "broadcast"), ("send 0->1", "send"), ("ncclDevKernel_Generic", None),
    ],
)  # fmt: skip
def test_names_of_collectives(text: str, name: str | None) -> None:
    assert named(text) == name


@pytest.mark.parametrize(
    ("name", "sent", "got", "size", "factor"),
    [
        ("all_reduce", 100, 100, 400, 1.5), ("all_gather", 25, 100, 400, 0.75), ("all_gather", 25, None, 400, 0.75),
        ("reduce_scatter", 100, 25, 400, 0.75), ("reduce_scatter", None, 25, 400, 0.75),
        ("all_to_all", 100, 90, 400, 0.75),
        ("broadcast", 100, 100, 400, 1.0), ("barrier", 0, 0, 0, None), ("send", 100, None, 400, 1.0),
        ("all_reduce", None, None, None, 1.5),
    ],
)  # fmt: skip
def test_sizes_and_factors_are_those_of_nccl_tests(
    name: str, sent: int | None, got: int | None, size: int | None, factor: float | None
) -> None:
    assert message_bytes(name, CollectiveArguments("", sent, got), "float32", 4) == size
    assert bus_factor(name, 4) == factor


def test_data_types_of_c10() -> None:
    told = {
        name: dtype_of(name) for name in ("Float", "BFloat16", "Half", "Float8_e4m3fn", "int64", "Byte", "Odd", None)
    }
    assert list(told.values()) == ["float32", "bfloat16", "float16", "float8_e4m3fn", "int64", "uint8", None, None]


# ------------------------------------------------------------------------------------------------------------- real


@pytest.mark.skipif(not REAL.is_dir(), reason="the real traces are not here")
def test_the_real_pair_of_ranks() -> None:
    together = analyze_traces([REAL])
    each = [analyze_trace(path) for path in sorted(REAL.iterdir())]
    assert [(rank.rank, rank.world_size) for rank in together.ranks] == [(0, 128), (1, 128)]
    assert together.ledger.device_work_ns == sum(one.ledger.device_work_ns for one in each)
    assert sum(row.time_ns for row in together.classes) == sum(row.time_ns for one in each for row in one.classes)
    talk = sum(row.time_ns for row in together.classes if row.operator_class is OperatorClass.COMMUNICATION)
    assert talk == sum(row.time_ns for row in together.collectives)
    assert {row.collective for row in together.collectives} == {"all_reduce", "all_gather", "all_to_all"}
    assert all(row.bus_bytes_per_second for row in together.collectives)


def test_names_that_are_no_text_do_not_stop_the_report(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"ranks-\xff")
    folder.mkdir()
    for rank in (0, 1):
        rank_trace(rank).write(folder / f"rank{rank}.json")
    done = run("analyze", str(folder), "-f", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ranks-\ufffd" in json.loads(done.stdout)["provenance"]["trace"]


@pytest.mark.parametrize(
    ("message", "sides"),
    [
        (CollectiveArguments("all_reduce", in_elements=8), (8, 8)),
        (CollectiveArguments("_allgather_base", in_elements=8, group_size=4), (8, 32)),
        (CollectiveArguments("_allgather_base", out_elements=32, group_size=4), (8, 32)),
        (CollectiveArguments("reduce_scatter", in_elements=32, group_size=4), (32, 8)),
        (CollectiveArguments("all_gather", in_elements=8), None),
        (CollectiveArguments("all_to_all", in_elements=8, group_size=4), None),
        (CollectiveArguments("all_to_all", in_elements=8, out_elements=6), (8, 6)),
        (CollectiveArguments("all_reduce"), None),
    ],
)
def test_no_side_of_a_collective_is_guessed(message: CollectiveArguments, sides: tuple[int, int] | None) -> None:
    assert both_sides(message) == sides


def test_an_all_to_all_of_which_one_side_is_said_has_its_bytes_in_every_table(tmp_path: Path) -> None:
    """1000 elements of 4 bytes from each of two ranks; how much each gets is not said, and is not guessed."""
    said = message(name="all_to_all", sent=1000, group=2)
    del said["Out msg nelems"]
    kernel = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    traces = [rank_trace(rank, world=2, message=said, kernel=kernel) for rank in range(2)]
    anatomy = analyze_traces([folder_of(tmp_path, *traces)])
    (row,) = anatomy.collectives
    assert anatomy.communication is not None
    assert anatomy.waiting is not None
    (matched,) = anatomy.waiting.collectives
    assert (row.collective, row.bytes, matched.bytes) == ("all_to_all", 8000, 8000)
    assert sum(phase.bytes for phase in anatomy.communication.phases) == 8000
    of_class = [row for row in anatomy.operators if row.operator_class is OperatorClass.COMMUNICATION]
    assert {row.written_bytes for row in of_class} == {None}
    page = run("analyze", str(tmp_path / "ranks"), "--section", "waiting", cwd=tmp_path).stdout
    (line,) = [line for line in page.splitlines() if line.startswith("all to all")]
    assert "8.00 kB" in line


def test_checks_of_the_ranks_are_together(four: Anatomy, tmp_path: Path) -> None:
    """What is compared on each rank is summed; a rank that disagrees is found among those that do not."""
    one = analyze_traces([rank_trace(0).write(tmp_path / "one.json")])
    alone = {check.quantity: (check.compared, check.equal) for check in one.checks if check.quantity != "ceiling"}
    together = {check.quantity: (check.compared, check.equal) for check in four.checks if check.quantity != "ceiling"}
    of_each = {name: (4 * compared, 4 * equal) for name, (compared, equal) in alone.items()}
    assert together == {**of_each, "parts of steps": (4, 4)}  # which one rank has none of
    assert alone
    wrong = rank_trace(1)
    wrong.annotation("## optimizer ##", 105, 98)
    (tmp_path / "second").mkdir()
    mixed = analyze_traces([folder_of(tmp_path / "second", rank_trace(0), wrong)])
    assert [check.quantity for check in mixed.checks if check.unexplained] == ["annotated phases"]


# ----------------------------------------------------------------------------------------- what one collective says


def calls_of(tmp_path: Path, name: str, *, kernel: str = ALL_REDUCE, **arguments: Any) -> CollectiveCalls:
    """The table of a rank whose step has one collective: the operator of c10d alone says something of it."""
    trace = training_step()
    trace.host(name, 580, 15, **arguments)
    trace.launch(583, 90)
    trace.kernel(kernel, 600, 50, 90, stream=20)
    calls = summary_of_trace(trace.write(tmp_path / "trace.json.gz")).calls
    assert len(calls.start_ns) == 1
    return calls


@pytest.mark.parametrize(
    ("name", "shapes", "types", "collective", "sides"),
    [
        ("c10d::allreduce_", [[[4, 8], [2]], [], []], ["TensorList", "", ""], "all_reduce", (-1, -1)),
        ("c10d::alltoall_base_", [[6], [10], [], []], ["float", "float", "", ""], "all_to_all", (40, 24)),
        ("c10d::_allgather_base_", [[32], [8], []], ["float", "float", ""], "all_gather", (32, 128)),
        ("c10d::_reduce_scatter_base_", [[8], [32], []], ["float", "float", ""], "reduce_scatter", (128, 32)),
        ("c10d::broadcast_", [[16], []], ["double", ""], "broadcast", (128, 128)),
        ("symm_mem::multimem_all_reduce_", [[16], [], []], ["float", "", ""], "all_reduce", (64, 64)),
        ("symm_mem::multimem_all_gather_out", [[16], [], [64]], ["float", "", "float"], "all_gather", (-1, -1)),
    ],
)
def test_the_operator_says_both_sides(
    tmp_path: Path, name: str, shapes: list[Any], types: list[str], collective: str, sides: tuple[int, int]
) -> None:
    """Of lists the trace has no data type, of a gather by symmetric memory not how many ranks have a part."""
    calls = calls_of(tmp_path, name, shapes=shapes, types=types)
    assert calls.collective.at(0) == collective
    assert calls.named[0]
    assert (calls.sent_bytes[0], calls.received_bytes[0]) == sides


def test_group_and_number_are_read(tmp_path: Path) -> None:
    trace = training_step()
    more = {"Process Group Name": "1", "Process Group Ranks": "[0, 1, 2, 3]", "Seq": 17}
    collective(trace, 600, 50, 90, message={**message(), **more})
    calls = summary_of_trace(trace.write(tmp_path / "trace.json.gz")).calls
    assert (calls.group.at(0), calls.group_size[0], calls.sequence[0]) == ("1 [0, 1, 2, 3]", 4, 17)
    assert (calls.sent_bytes[0], calls.received_bytes[0], calls.dtype.at(0)) == (4_000, 4_000, "float32")
    assert (calls.launched_ns[0], calls.launching_ns[0]) == (583_000, 13_000)


def test_a_kernel_without_a_record_is_named_by_itself(tmp_path: Path) -> None:
    trace = training_step()
    trace.kernel(ALL_REDUCE, 600, 50, 12345, stream=20)
    calls = summary_of_trace(trace.write(tmp_path / "trace.json.gz")).calls
    assert (calls.collective.at(0), bool(calls.named[0]), calls.sent_bytes[0]) == ("all_reduce", False, -1)
