"""Several ranks: one report whose sums hold, a row for each, what cannot be ranks refused; collectives."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

import opanatomy
from opanatomy.errors import TraceError, UsageError
from opanatomy.records.communication import Collective
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.records.workload import METADATA_KEY, Capture, Environment, Workload
from tests.support.command import run
from tests.support.made_steps import message, rank_trace
from tests.support.made_trace import GEMM, MAP, NCCL, US, TraceBuilder, on_gpu, page, training_step
from tests.support.paths import SHARED

#: 15 November 2025, in ns.
BASE = 1_763_224_346_000_000_000
S = 1_000_000


def folder_of(tmp_path: Path, *traces: TraceBuilder, pattern: str = "rank{}.json.gz") -> Path:
    folder = tmp_path / "ranks"
    folder.mkdir()
    for index, trace in enumerate(traces):
        trace.write(folder / pattern.format(index))
    return folder


@pytest.fixture
def four(tmp_path: Path) -> opanatomy.Anatomy:
    traces = (rank_trace(index, waits=waits) for index, waits in enumerate((50, 60, 10, 70)))
    return opanatomy.analyze(folder_of(tmp_path, *traces))


# ----------------------------------------------------------------------------------------------------------- ranks


@pytest.mark.parametrize(
    ("parallel", "batches", "together", "rate"),
    [
        ("ddp", (8, 32), 40, 40 / 900e-6),
        ("ddp", (8, 8), 16, 16 / 900e-6),
        ("tp", (8, 8), None, 8 / 900e-6),
        ("ddp", (8, None), None, None),
        (None, (8, 32), None, None),
    ],
)
def test_samples_are_those_of_all_ranks(
    parallel: str | None, batches: tuple[int | None, ...], together: int | None, rate: float | None, tmp_path: Path
) -> None:
    """Each rank of a data-parallel training has its own; what the others share is unknown."""
    traces = []
    for rank, batch in enumerate(batches):
        trace = rank_trace(rank, world=2)
        workload = Workload(parallel=parallel, world_size=2, batch=batch)
        capture = Capture(version="0", command="", created="", environment=Environment(), workload=workload)
        trace.metadata[METADATA_KEY] = msgspec.to_builtins(capture)
        traces.append(trace)
    anatomy = opanatomy.analyze(folder_of(tmp_path, *traces))
    assert anatomy.workload.samples_together == together
    assert anatomy.step.samples_per_second == (None if rate is None else pytest.approx(rate))
    said = "batch sizes differ between ranks: 8 to 32 samples" in anatomy.warnings
    assert said == (batches == (8, 32))


def test_sums_are_those_of_the_ranks(four: opanatomy.Anatomy) -> None:
    """Four times products of 10 and 20 us and an update of 5 us, and 190 us of collectives."""
    assert four.ledger.device_work_ns == 4 * 35_000 + 190_000
    assert {(row.operator_class, row.phase): (row.time_ns, row.kernels, row.flops) for row in four.classes} == {
        ("tensor_contraction", "forward"): (40_000, 4, 4 * 128),
        ("tensor_contraction", "backward"): (80_000, 4, 4 * 128),
        ("elementwise", "optimizer"): (20_000, 4, None),
        ("communication", "other"): (190_000, 4, 0),
    }
    for rows in (four.operators, four.kernels):
        assert sum(row.time_ns for row in rows) == 4 * 35_000 + 190_000
    assert [(row.module, row.time_ns) for row in four.modules] == [("head", 40_000), ("head", 80_000)]
    assert [row.time_ns for row in four.collectives] == [190_000]


def test_one_rank_that_is_missing_is_one(tmp_path: Path) -> None:
    anatomy = opanatomy.analyze(folder_of(tmp_path, rank_trace(0, world=3), rank_trace(2, world=3)))
    assert "2 of 3 ranks are present: rank 1 is missing" in anatomy.caveats


def test_each_rank_has_a_row(four: opanatomy.Anatomy) -> None:
    assert [(rank.rank, rank.world_size, rank.trace, rank.steps) for rank in four.ranks] == [
        (index, 4, f"rank{index}.json.gz", 1) for index in range(4)
    ]
    for rank, waits in zip(four.ranks, (50, 60, 10, 70), strict=True):
        assert rank.communication_ns == rank.exposed_communication_ns == waits * US
        assert (rank.kernel_time_ns, rank.busy_ns) == ((35 + waits) * US,) * 2
        assert rank.busy_ns + rank.idle_ns == rank.window_ns == 900_000
    assert (four.timeline.communication_ns, four.timeline.window_ns) == (47_500, 900_000)
    assert four.timeline.busy_ns + four.timeline.idle_ns == 900_000


def of_rank(trace: TraceBuilder, rank: int, world: int) -> TraceBuilder:
    trace.metadata["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world}
    return trace


def test_kinds_of_idle_time_add_up_on_several_ranks(tmp_path: Path) -> None:
    """Of steps of 100 us: 70 us of the host on the first, 5 of another stream on the second, 2 otherwise on the third.

    The means are rounded down; what is left of the idle time is the other.
    """
    late, across, close = (of_rank(on_gpu(), rank, 3) for rank in range(3))
    for trace in (late, across, close):
        trace.step(0, 100)
    late.run(GEMM, 10, 20, 10)
    late.run(GEMM, 40, 50, 20)
    across.run(GEMM, 0, 0, 40)
    across.run(MAP, 10, 45, 55, stream=20)
    close.run(GEMM, 0, 0, 40)
    close.run(MAP, 10, 42, 58)
    timeline = opanatomy.analyze(folder_of(tmp_path, late, across, close)).timeline
    assert (timeline.busy_ns, timeline.idle_ns) == (74_333, 25_667)
    assert (timeline.host_idle_ns, timeline.stream_idle_ns, timeline.other_idle_ns) == (23_333, 1_666, 668)


def test_operators_and_framework_add_up_on_several_ranks_without_a_device(tmp_path: Path) -> None:
    """Steps of 1,000 and 1,100 us, operators for 300 and 500 of them, each but one a nanosecond longer."""
    traces = [of_rank(TraceBuilder(), rank, 2) for rank in range(2)]
    for trace, wall, operator in zip(traces, (1_000.001, 1_100.001), (300, 500.001), strict=True):
        trace.step(0, wall)
        trace.host("aten::mm", 10, operator)
    step = opanatomy.analyze(folder_of(tmp_path, *traces)).step
    assert (step.wall_ns, step.busy_ns, step.framework_ns) == (1_050_001, 400_000, 650_001)


def test_a_row_is_what_the_trace_says_alone(tmp_path: Path) -> None:
    """Also of a graph whose work was not recorded, and of work of the step before."""
    trace = rank_trace(0)
    trace.launch(700, 95, name="cudaGraphLaunch")
    trace.run(GEMM, 50, 90, 40)
    folder = folder_of(tmp_path, trace, rank_trace(1))
    alone, row = opanatomy.analyze(folder / "rank0.json.gz").timeline, opanatomy.analyze(folder).ranks[0]
    assert alone.unrecorded_ns == 300_000
    assert alone.outside_ns == 30_000
    assert (row.busy_ns, row.idle_ns, row.window_ns) == (alone.busy_ns, alone.idle_ns, alone.window_ns)


def test_the_spread_names_the_slowest_and_the_one_the_others_wait_for(four: opanatomy.Anatomy) -> None:
    spread = {row.figure: row for row in four.spread}
    talk = spread["communication"]
    assert (talk.min_ns, talk.median_ns, talk.max_ns, talk.max_rank) == (10_000, 55_000, 70_000, 3)
    assert (spread["own"].max_ns, spread["own"].max_rank) == (890_000, 2)
    assert (spread["step"].max_ns, spread["step"].max_rank) == (900_000, 0)
    text = page(four)
    assert "The longest step is on rank 0: 900 us" in text
    assert "no straggler is named: the ranks hardly wait for each other" in text
    told = json.loads(four.to_json())
    assert [row["rank"] for row in told["ranks"]] == [0, 1, 2, 3]
    assert (told["spread"][0]["figure"], told["collectives"][0]["collective"]) == ("step", "all_reduce")


def test_checks_of_the_ranks_are_together(four: opanatomy.Anatomy, tmp_path: Path) -> None:
    """What is compared on each rank is summed; a rank that disagrees is found among those that do not."""
    one = rank_trace(0).analyze(tmp_path)
    alone, together = (
        {check.quantity: (check.compared, check.equal) for check in each.checks if check.quantity != "ceiling"}
        for each in (one, four)
    )
    assert {name: (4 * pair[0], 4 * pair[1]) for name, pair in alone.items()} | {"parts of steps": (4, 4)} == together
    assert alone
    wrong = rank_trace(1)
    wrong.annotation("## optimizer ##", 105, 98)
    (tmp_path / "second").mkdir()
    mixed = opanatomy.analyze(folder_of(tmp_path / "second", rank_trace(0), wrong))
    assert [check.quantity for check in mixed.checks if check.unexplained] == ["annotated phases"]


@pytest.mark.parametrize("pattern", ["rank{}.json", "trainer_rank-{}.123.pt.trace.json", "worker{}.pt.trace.json.gz"])
def test_the_name_of_the_file_says_the_rank_where_the_trace_does_not(tmp_path: Path, pattern: str) -> None:
    """Of twenty, in the order of the numbers, and shown in groups of like ones; hidden files and others are none."""
    folder = folder_of(tmp_path, *(rank_trace(None, waits=50 + index) for index in range(20)), pattern=pattern)
    for name in (".hidden.json", "notes.txt"):
        (folder / name).touch()
    together = opanatomy.analyze(folder)
    assert [rank.rank for rank in together.ranks] == list(range(20))
    assert "A: ranks 0-19" in page(together, width=80)


def test_ranks_without_any_number_go_by_the_names_of_their_files(tmp_path: Path) -> None:
    paths = [rank_trace(None, waits=time).write(tmp_path / name) for name, time in (("b.json", 9), ("a.json", 20))]
    together = opanatomy.analyze(paths)
    assert [(rank.rank, rank.trace) for rank in together.ranks] == [(None, "a.json"), (None, "b.json")]


def test_one_trace_says_its_rank_and_has_no_table(tmp_path: Path) -> None:
    anatomy = rank_trace(3).analyze(tmp_path)
    assert [(rank.rank, rank.world_size) for rank in anatomy.ranks] == [(3, 4)]
    assert "3 of 4" in page(anatomy)
    assert "a step of rank" not in page(anatomy)
    assert training_step().analyze(tmp_path).ranks == ()


@pytest.mark.parametrize(("number", "counted", "warned"), [(4, [1, 1], False), (8, [1, 2], True)])
def test_a_step_that_one_rank_alone_has_counts_on_none(
    number: int, counted: list[int], warned: bool, tmp_path: Path
) -> None:
    """Steps 3 and 3 to 4; or 3 and 8 to 9, which do the same: none is in common, all count."""
    longer = rank_trace(1)
    again = [
        {**event, "ts": event["ts"] + 900, "args": {**event["args"], "correlation": event["args"]["correlation"] + 100}}
        for event in longer.events
        if "correlation" in event["args"]
    ]
    longer.events[0]["name"] = f"ProfilerStep#{3 if number == 4 else number}"
    longer.step(1000, 900, number if number == 4 else number + 1)
    longer.events += again
    together = opanatomy.analyze(folder_of(tmp_path, rank_trace(0), longer))
    assert [rank.steps for rank in together.ranks] == counted
    assert any("1 to 2 steps" in text for text in together.warnings) is warned


# --------------------------------------------------------------------------------------------------- folders and zips


def test_a_folder_of_folders(tmp_path: Path) -> None:
    for index in range(2):
        (tmp_path / f"rank{index}").mkdir()
        rank_trace(None, waits=50 + index).write(tmp_path / f"rank{index}" / "trace.json")
        (tmp_path / f"node{index}").mkdir()
    assert [(rank.rank, rank.trace) for rank in opanatomy.analyze(tmp_path).ranks] == [
        (0, "rank0/trace.json"),
        (1, "rank1/trace.json"),
    ]
    for index in range(2):
        (tmp_path / f"rank{index}" / "trace.json").rename(tmp_path / f"node{index}" / "gpu0.json")
    assert any("rank 0 has 2 files" in text for text in opanatomy.analyze(tmp_path).warnings)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_of_ranks_of_which_one_is_damaged(tmp_path: Path, method: int) -> None:
    folder = folder_of(tmp_path, *(rank_trace(index) for index in range(3)))
    with zipfile.ZipFile(tmp_path / "ranks.zip", "w", method) as archive:
        for path in folder.iterdir():
            archive.write(path, f"run/{path.name}")
        archive.writestr("run/readme.txt", "no trace")
        archive.writestr("run/rank3.json", "no trace")
    zipped, plain = opanatomy.analyze(tmp_path / "ranks.zip"), opanatomy.analyze(folder)
    assert zipped.classes == plain.classes
    assert [rank.trace for rank in zipped.ranks] == [f"run/rank{index}.json.gz" for index in range(3)]
    (caveat,) = [text for text in zipped.caveats if "is left out" in text]
    assert caveat.startswith("run/rank3.json is left out: run/rank3.json in ")


def test_a_bomb_in_a_zip_is_left_out(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.json.gz", b"\0" * (100 << 20))
    with pytest.raises(TraceError, match="bomb"):
        opanatomy.analyze(tmp_path / "bomb.zip")


def test_what_cannot_be_read_is_a_caveat_among_others(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, *(rank_trace(rank) for rank in range(3)))
    (folder / "rank3.json").write_text('{"model_type": "bert"}')
    path = folder / "rank1.json.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-40]))
    together = opanatomy.analyze(folder)
    assert len(together.ranks) == 3
    assert [text.split()[0] for text in together.caveats if "is left out" in text] == ["rank3.json"]
    assert any(text.startswith("rank ") and "truncated" in text for text in together.caveats)


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


def test_names_that_are_no_text_do_not_stop_the_report(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"ranks-\xff")
    folder.mkdir()
    for rank in (0, 1):
        rank_trace(rank).write(folder / f"rank{rank}.json")
    done = run("analyze", str(folder), "-f", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ranks-\ufffd" in json.loads(done.stdout)["provenance"]["trace"]


# ------------------------------------------------------------------------------------------------ what is not one run


def at(seconds: float, rank: int | None, *, world: int = 2, base: bool = True, waits: float = 50) -> TraceBuilder:
    """A trace of 900 us that begins so long after the base of its clock."""
    trace = rank_trace(rank, world=world, waits=waits + (rank or 0))
    if base:
        trace.metadata["baseTimeNanoseconds"] = BASE
    for event in trace.events:
        event["ts"] += seconds * S
    return trace


def written(folder: Path, *traces: TraceBuilder) -> list[Path]:
    return [trace.write(folder / f"{name}.json") for name, trace in zip("abcdef", traces, strict=False)]


def refused(*paths: Path) -> str:
    """Why these are not ranks of one run."""
    with pytest.raises(UsageError) as error:
        opanatomy.analyze(list(paths))
    names, why, _ = str(error.value).split(" - ", 2)
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(("to compare them, use opanatomy.compare", "leave one of them out"))
    assert names.endswith(" are not ranks of one run")
    return f"{names.removesuffix(' are not ranks of one run')}: {why}"


@pytest.mark.parametrize(
    ("traces", "why"),
    [
        ((at(0, 0), at(0, 1), at(0, 0, waits=60)), "a.json and c.json: both are rank 0 of 2"),
        (
            (at(0, 0, world=8), at(0, 1, world=8), at(0, 2, world=4)),
            "a.json and c.json: the world size is 8 in the first, 4 in the second",
        ),
        *(
            (
                (at(0, ranks[0], base=base), at(seconds, ranks[1], base=base, waits=70)),
                f"a.json and b.json: the second started {gap} s after the first ended, but no trace lasts longer than"
                " 0.002 s",
            )
            for seconds, ranks, base, gap in [
                (946.0, (0, 1), True, "946.0"),
                (946.0, (0, 1), False, "946.0"),
                (62.0, (0, 1), True, "62.0"),
                (1.5, (None, None), True, "1.5"),
                (1.5, (0, None), True, "1.5"),
                (3600.0, (None, 1), True, "3,600.0"),
            ]
        ),
    ],
)
def test_other_runs(traces: tuple[TraceBuilder, ...], why: str, tmp_path: Path) -> None:
    """Two runs of one rank were summed up, under a warning."""
    paths = written(tmp_path, *traces)
    assert refused(*paths) == why
    if len(paths) == 2:
        assert refused(*paths[::-1]) == why


def test_a_rank_or_a_file_twice(tmp_path: Path) -> None:
    for name, waits in (("run1", 50), ("run2", 60)):
        (tmp_path / name).mkdir()
        at(0, None, waits=waits).write(tmp_path / name / "rank3.json")
    why = "both are rank 3, judging by their file names"
    assert refused(tmp_path) == f"run1/rank3.json and run2/rank3.json: {why}"
    copies = tmp_path / "copies"
    copies.mkdir()
    (a,) = written(copies, at(0, None))
    assert refused(a, a).startswith(f"{a} and {a}: ")
    shutil.copy(a, copies / "copy.json")
    assert refused(copies).startswith("a.json and copy.json: they are the same file, sha256 ")
    (copies / "copy.json").unlink()
    (copies / "b.json.gz").write_bytes(gzip.compress(a.read_bytes()))
    assert refused(copies) == "a.json and b.json.gz: they are the same trace: every event of one is in the other"
    done = run("analyze", "a.json", "b.json.gz", cwd=copies)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("opanatomy: a.json and b.json.gz are not ranks of one run")


def test_the_base_of_the_clock_counts(tmp_path: Path) -> None:
    """Times within the files are alike: the runs are a day apart by what they count from."""
    first, second = at(0, 0), at(0, 1)
    second.metadata["baseTimeNanoseconds"] = BASE + 86_400 * 10**9
    assert "the second started 86,400.0 s after" in refused(*written(tmp_path, first, second))
    moved = at(-86_400, 1)
    moved.metadata["baseTimeNanoseconds"] = BASE + 86_400 * 10**9
    assert len(opanatomy.analyze(written(tmp_path, first, moved)).ranks) == 2


@pytest.mark.parametrize(
    ("starts", "ranks", "long"),
    [
        ((0.0, 0.000_5), (0, 1), False),  # overlap in part
        ((0.0, 0.002), (0, 1), False),  # one behind the other, clocks a little off
        ((0.0, 59.0), (0, 1), False),  # clocks of two hosts
        ((0.0, 0.9), (None, None), False),
        ((0.0, 150.0), (None, None), True),  # windows of 80 s may lie further apart
    ],
)
def test_clocks_that_differ_are_no_other_run(
    starts: tuple[float, float], ranks: tuple[int | None, int | None], long: bool, tmp_path: Path
) -> None:
    traces = [at(start, rank, waits=50 + start) for start, rank in zip(starts, ranks, strict=True)]
    if long:
        traces[0].step(1, 80 * S, 9)
    assert len(opanatomy.analyze(written(tmp_path, *traces)).ranks) == 2


def test_unlike_devices_models_and_shapes_are_warned_of(tmp_path: Path) -> None:
    def warnings(first: TraceBuilder, second: TraceBuilder) -> tuple[str, ...]:
        together = opanatomy.analyze(written(tmp_path, first, second))
        assert all(" ".join(text.split()) in page(together) for text in together.warnings)
        return together.warnings

    def of_model(rank: int, name: str) -> TraceBuilder:
        trace = at(0, rank)
        trace.metadata["opanatomy"] = {
            "version": "0",
            "command": "",
            "created": "",
            "environment": {"device": "x", "device_kind": "cuda"},
            "workload": {"model": name, "batch": 8, "inputs": ["ids"]},
        }
        return trace

    first, second = at(0, 0), at(0, 1)
    assert warnings(first, second) == ()
    second.metadata["deviceProperties"] = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]
    assert warnings(first, second) == (
        "the traces differ in devices, so the sums mix NVIDIA H100 80GB HBM3 (a.json), NVIDIA A100-SXM4-80GB (b.json)",
    )
    other = "the traces differ in models, so the sums mix bert (a.json), gpt2 (b.json)"
    assert other in warnings(of_model(0, "bert"), of_model(1, "gpt2"))
    workload = opanatomy.analyze(tmp_path).workload
    assert (workload.model, workload.batch, workload.inputs) == (None, 8, ("ids",))
    assert not [text for text in warnings(of_model(0, "bert"), of_model(1, "bert")) if "unlike" in text]
    second = at(0, 1)
    second.events = json.loads(json.dumps(second.events).replace("[8, 4]", "[9, 4]").replace("[4, 8]", "[4, 9]"))
    told = "a.json and b.json share no matmul of the same shapes: different models or inputs?"
    assert told in warnings(first, second)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the folder of shared traces is not next to the checkout")
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("more_traces/dlrm_v100", 8),
        ("more_traces/compare/train_v100_a2a_plain", 4),
        ("more_traces/compare/train_v100_a2a_quantized", 4),
        ("traces/multirank", 2),
    ],
)
def test_real_ranks_stay_ranks(name: str, count: int) -> None:
    together = opanatomy.analyze(SHARED / name)
    assert [rank.rank for rank in together.ranks] == list(range(count))
    assert not [text for text in together.warnings if "unlike" in text or "same shapes" in text]
    talk = sum(row.time_ns for row in together.classes if row.operator_class is OperatorClass.COMMUNICATION)
    assert talk == sum(row.time_ns for row in together.collectives)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the folder of shared traces is not next to the checkout")
def test_real_runs_are_no_ranks() -> None:
    compare = SHARED / "more_traces" / "compare"
    before, after = (compare / f"train_h100_compile_gpt_rank0of8_{name}.json.gz" for name in ("before", "after"))
    assert refused(before, after).endswith(": both are rank 0 of 8")
    plain, quantized = compare / "train_v100_a2a_plain", compare / "train_v100_a2a_quantized"
    mixed = refused(plain / "rank-0.json.gz", quantized / "rank-1.json.gz")
    assert "the second started 945.5 s after the first ended" in mixed


# ------------------------------------------------------------------------------------------------------ collectives


def only(tmp_path: Path, **options: Any) -> Collective:
    (row,) = rank_trace(0, waits=100, **options).analyze(tmp_path).collectives
    return row


SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
#: What c10d says, and by nccl-tests the size of the message and the share of the bus (of four ranks).
MESSAGES = [
    (message("allreduce"), "all_reduce", 4000, 1.5),
    (message("allreduce", sent=25_000_000, got=25_000_000, group=8), "all_reduce", 100_000_000, 1.75),
    (message("_allgather_base", sent=1000, got=4000), "all_gather", 16_000, 0.75),
    (message("allgather_into_tensor_coalesced", sent=1000, got=-1), "all_gather", 16_000, 0.75),
    (message("_reduce_scatter_base", sent=4000, got=1000), "reduce_scatter", 16_000, 0.75),
    (message("_reduce_scatter_base", sent=-1, got=1000), "reduce_scatter", 16_000, 0.75),
    (message("all_to_allv", sent=1000, got=900), "all_to_all", 4000, 0.75),
    (message("broadcast", dtype="BFloat16"), "broadcast", 2000, 1.0),
    (message("broadcast", dtype="Float8_e4m3fn"), "broadcast", 1000, 1.0),
    (message("allreduce_coalesced", dtype="int64"), "all_reduce", 8000, 1.5),
    (message("all_reduce_barrier", sent=0, got=0), "barrier", 0, None),
    (message("send 0->1"), "send", 4000, 1.0),
    (message("allreduce", dtype="Odd"), "all_reduce", None, None),
]


@pytest.mark.parametrize(
    ("said", "name", "size", "factor"), MESSAGES, ids=[str(row[0]["Collective name"]) for row in MESSAGES]
)
@pytest.mark.parametrize("on_kernel", [True, False])
def test_sizes_and_bandwidths_are_those_of_nccl_tests(
    said: dict[str, Any], name: str, size: int | None, factor: float | None, on_kernel: bool, tmp_path: Path
) -> None:
    """By the arguments of the kernel, or of `record_param_comms` alone; it takes 100 us."""
    row = only(tmp_path, message=said, on_kernel=on_kernel)
    assert (row.collective, row.calls, row.kernels, row.time_ns, row.bytes) == (name, 1, 1, 100_000, size)
    rate = None if size is None or factor is None else pytest.approx(factor * size / 100e-6)
    assert row.bus_bytes_per_second == rate


def test_without_a_message_the_shape_of_the_annotation_or_the_name_alone_tells(tmp_path: Path) -> None:
    row = only(tmp_path, shape=[10, 100])
    assert (row.collective, row.dtype, row.bytes, row.group_size, row.group_assumed) == (
        "all_reduce",
        "float32",
        4000,
        4,
        True,
    )
    assert row.bus_bytes_per_second == pytest.approx(4000 / 100e-6 * 1.5)
    row = only(tmp_path)
    assert (row.collective, row.time_ns, row.sized_ns, row.bytes) == ("all_reduce", 100_000, 0, None)
    for kernel, name in (
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "send_recv"),
        ("ncclDevKernel_Broadcast_RING_LL", "broadcast"),
    ):
        trace = training_step()
        trace.kernel(kernel, 600, 50, 12345, stream=20)
        assert [row.collective for row in trace.analyze(tmp_path).collectives] == [name]


@pytest.mark.parametrize("odd", [{"In msg nelems": "many"}, {"Group size": None}, {"dtype": 7}, {"Collective name": 3}])
def test_odd_arguments_cost_the_size_and_nothing_else(tmp_path: Path, odd: dict[str, Any]) -> None:
    row = only(tmp_path, message={**message(), "Out msg nelems": -1, **odd})
    assert (row.collective, row.time_ns) == ("all_reduce", 100_000)


@pytest.mark.parametrize("first", [False, True])
def test_several_kernels_of_one_call_move_its_bytes_once(first: bool, tmp_path: Path) -> None:
    trace = TraceBuilder() if first else rank_trace(0, waits=100, message=message())
    if first:  # at the first event of a trace
        trace.host("record_param_comms", 0, 20)
        trace.events[-1]["args"] |= message()
        trace.run(NCCL, 4, 50, 100, stream=20)
    trace.run(NCCL, 8 if first else 584, 720, 30, stream=20, **({} if first else message()))
    (row,) = trace.analyze(tmp_path).collectives
    assert (row.calls, row.kernels, row.time_ns, row.bytes) == (1, 2, 130_000, 4000)


def test_ranks_sum_their_collectives(tmp_path: Path) -> None:
    """Of an all-to-all how much each gets is not said, and is not guessed; its bytes are in every table."""
    said = message(name="all_to_all", sent=1000, group=2)
    del said["Out msg nelems"]
    traces = [rank_trace(rank, world=2, waits=100 + 200 * rank, message=said, kernel=SEND) for rank in range(2)]
    anatomy = opanatomy.analyze(folder_of(tmp_path, *traces))
    (row,) = anatomy.collectives
    assert anatomy.communication is not None
    assert anatomy.waiting is not None
    (matched,) = anatomy.waiting.collectives
    assert (row.collective, row.calls, row.time_ns, row.bytes, matched.bytes) == ("all_to_all", 2, 400_000, 8000, 8000)
    assert row.bus_bytes_per_second == pytest.approx(8000 / 400e-6 / 2)
    assert sum(phase.bytes for phase in anatomy.communication.phases) == 8000
    of_class = [row for row in anatomy.operators if row.operator_class is OperatorClass.COMMUNICATION]
    assert {row.written_bytes for row in of_class} == {None}
    assert "8.00 kB" in page(anatomy, "waiting").partition("all to all")[2]


@pytest.mark.parametrize(
    ("name", "shapes", "types", "collective", "size", "sides"),
    [
        ("c10d::allreduce_", [[[4, 8], [2]], [], []], ["TensorList", "", ""], "all_reduce", None, (None, None)),
        ("c10d::alltoall_base_", [[6], [10], [], []], ["float", "float", "", ""], "all_to_all", 40, (40, 24)),
        ("c10d::_allgather_base_", [[32], [8], []], ["float", "float", ""], "all_gather", 128, (32, 128)),
        ("c10d::_reduce_scatter_base_", [[8], [32], []], ["float", "float", ""], "reduce_scatter", 128, (128, 32)),
        ("c10d::broadcast_", [[16], []], ["double", ""], "broadcast", 128, (128, 128)),
        ("symm_mem::multimem_all_reduce_", [[16], [], []], ["float", "", ""], "all_reduce", 64, (64, 64)),
        (
            "symm_mem::multimem_all_gather_out",
            [[16], [], [64]],
            ["float", "", "float"],
            "all_gather",
            None,
            (None, None),
        ),
    ],
)
def test_the_operator_says_both_sides(
    name: str,
    shapes: list[Any],
    types: list[str],
    collective: str,
    size: int | None,
    sides: tuple[int | None, int | None],
    tmp_path: Path,
) -> None:
    """Of lists the trace has no data type, of a gather by symmetric memory not how many ranks have a part."""
    trace = training_step()
    trace.host(name, 580, 15, shapes=shapes, types=types)
    trace.run(NCCL, 583, 600, 50, stream=20)
    anatomy = trace.analyze(tmp_path)
    assert [(row.collective, row.bytes) for row in anatomy.collectives] == [(collective, size)]
    of_class = [row for row in anatomy.operators if row.operator_class is OperatorClass.COMMUNICATION]
    assert [(row.read_bytes, row.written_bytes) for row in of_class] == [sides]


def test_gloo_leaves_annotations(tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.metadata["distributedInfo"] = {"backend": "gloo", "rank": 0, "world_size": 2, "pg_count": 1}
    trace.host("c10d::allreduce_", 100, 20)
    trace.host("gloo:all_reduce", 110, 400, thread=9, category="user_annotation", shapes=[[50]], types=["float"])
    (row,) = trace.analyze(tmp_path).collectives
    assert (row.collective, row.time_ns, row.bytes, row.group_size) == ("all_reduce", 400_000, 200, 2)
    assert not row.group_assumed
