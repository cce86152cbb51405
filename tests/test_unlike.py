"""Traces that cannot be the ranks of one run are refused in one line; other devices and models are warned of."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from opanatomy.errors import UsageError
from opanatomy.pipeline import analyze_traces
from opanatomy.records.workload import METADATA_KEY, Capture, Environment, Workload
from opanatomy.report import terminal_report
from tests.command import run
from tests.handmade import HandMade
from tests.test_ranks import rank_trace

MORE = Path(__file__).parent.parent.parent / "shared" / "more_traces"
#: 15 November 2025, in ns.
BASE = 1_763_224_346_000_000_000
S = 1_000_000


def at(seconds: float, rank: int | None, *, world: int = 2, base: bool = True, waits: float = 50) -> HandMade:
    """A trace of 900 us that begins so long after the base of its clock."""
    trace = rank_trace(rank, world=world, waits=waits + (rank or 0))
    if base:
        trace.metadata["baseTimeNanoseconds"] = BASE
    for event in trace.events:
        event["ts"] += seconds * S
    return trace


def written(folder: Path, *traces: HandMade) -> list[Path]:
    return [trace.write(folder / f"{name}.json") for name, trace in zip("abcdef", traces, strict=False)]


def refused(*paths: Path) -> str:
    with pytest.raises(UsageError) as error:
        analyze_traces(list(paths))
    text = str(error.value)
    assert "\n" not in text
    assert "to compare them use opanatomy.compare" in text
    return text.split(" - ")[0] + " - " + text.split(" - ")[1]


# ---------------------------------------------------------------------------------------------------------- refused


def test_a_rank_twice(tmp_path: Path) -> None:
    """Two runs of one rank were summed up, under a warning."""
    a, b, c = written(tmp_path, at(0, 0), at(0, 1), at(0, 0, waits=60))
    assert refused(a, b, c) == "a.json and c.json are not ranks of one run - both are rank 0 of 2"


def test_a_rank_twice_by_the_names_of_the_files(tmp_path: Path) -> None:
    for name, waits in (("run1", 50), ("run2", 60)):
        (tmp_path / name).mkdir()
        at(0, None, waits=waits).write(tmp_path / name / "rank3.json")
    told = refused(tmp_path)
    assert told == (
        "run1/rank3.json and run2/rank3.json are not ranks of one run - both are rank 3, by the names of their files"
    )
    first, second = (tmp_path / name / "rank3.json" for name in ("run1", "run2"))
    assert refused(first, second).startswith(f"{first} and {second} are not")


def test_a_file_twice(tmp_path: Path) -> None:
    (a,) = written(tmp_path, at(0, None))
    shutil.copy(a, tmp_path / "copy.json")
    assert "a.json and copy.json are not ranks of one run - they are the same file, sha256 " in refused(tmp_path)
    assert f"{a} and {a} are not" in refused(a, a)


def test_a_file_twice_packed_in_another_way(tmp_path: Path) -> None:
    (a,) = written(tmp_path, at(0, None))
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(a.read_bytes()))
    assert refused(tmp_path) == (
        "a.json and b.json.gz are not ranks of one run - they are the same trace: every event of one is in the other"
    )


def test_another_world(tmp_path: Path) -> None:
    a, b, c = written(tmp_path, at(0, 0, world=8), at(0, 1, world=8), at(0, 2, world=4))
    assert refused(a, b, c) == (
        "a.json and c.json are not ranks of one run - the first is of a world of 8, the second of 4"
    )


@pytest.mark.parametrize(
    ("seconds", "ranks", "base", "gap"),
    [
        (946.0, (0, 1), True, "946.0"),
        (946.0, (0, 1), False, "946.0"),
        (62.0, (0, 1), True, "62.0"),
        (1.5, (None, None), True, "1.5"),
        (1.5, (0, None), True, "1.5"),
        (3600.0, (None, 1), True, "3,600.0"),
    ],
)
def test_other_times(
    seconds: float, ranks: tuple[int | None, int | None], base: bool, gap: str, tmp_path: Path
) -> None:
    first, second = at(0, ranks[0], base=base), at(seconds, ranks[1], base=base, waits=70)
    expected = (
        f"a.json and b.json are not ranks of one run - the second begins {gap} s after the first ended,"
        " none lasts 0.002 s"
    )
    a, b = written(tmp_path, first, second)
    assert refused(a, b) == refused(b, a) == expected


def test_the_base_of_the_clock_counts(tmp_path: Path) -> None:
    """Times within the files are alike: the runs are a day apart by what they count from."""
    first, second = at(0, 0), at(0, 1)
    second.metadata["baseTimeNanoseconds"] = BASE + 86_400 * 10**9
    assert "the second begins 86,400.0 s after" in refused(*written(tmp_path, first, second))
    moved = at(-86_400, 1)
    moved.metadata["baseTimeNanoseconds"] = BASE + 86_400 * 10**9
    assert len(analyze_traces(written(tmp_path, first, moved)).ranks) == 2


def test_the_command_refuses_in_one_line(tmp_path: Path) -> None:
    written(tmp_path, at(0, 0), at(0, 0, waits=60))
    done = run("analyze", "a.json", "b.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr.strip().splitlines()[-1].startswith("opanatomy: a.json and b.json are not ranks of one run - both")
    )


# --------------------------------------------------------------------------------------------------------- accepted


@pytest.mark.parametrize(
    ("starts", "ranks"),
    [
        ((0.0, 0.000_5), (0, 1)),  # overlap in part
        ((0.0, 0.002), (0, 1)),  # one behind the other, clocks a little off
        ((0.0, 59.0), (0, 1)),  # clocks of two hosts
        ((0.0, 0.9), (None, None)),
    ],
)
def test_clocks_that_differ_are_no_other_run(
    starts: tuple[float, float], ranks: tuple[int | None, int | None], tmp_path: Path
) -> None:
    paths = written(tmp_path, *(at(start, rank, waits=50 + start) for start, rank in zip(starts, ranks, strict=True)))
    assert len(analyze_traces(paths).ranks) == 2


def test_long_windows_may_lie_further_apart(tmp_path: Path) -> None:
    first, second = at(0, None), at(150, None, waits=60)
    first.annotation("ProfilerStep#9", 1, 80 * S)
    assert len(analyze_traces(written(tmp_path, first, second)).ranks) == 2


@pytest.mark.skipif(not MORE.is_dir(), reason="the folder of shared traces is not next to the checkout")
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
    together = analyze_traces([MORE.parent / name])
    assert [rank.rank for rank in together.ranks] == list(range(count))
    assert not [text for text in together.warnings if "unlike" in text or "same shapes" in text]


@pytest.mark.skipif(not MORE.is_dir(), reason="the folder of shared traces is not next to the checkout")
def test_real_runs_are_no_ranks() -> None:
    compare = MORE / "compare"
    before, after = (compare / f"train_h100_compile_gpt_rank0of8_{name}.json.gz" for name in ("before", "after"))
    assert refused(before, after).endswith("- both are rank 0 of 8")
    mixed = refused(
        compare / "train_v100_a2a_plain" / "rank-0.json.gz", compare / "train_v100_a2a_quantized" / "rank-1.json.gz"
    )
    assert "the second begins 945.5 s after the first ended" in mixed


# ----------------------------------------------------------------------------------------------------------- warned


def test_other_devices_are_warned_of(tmp_path: Path) -> None:
    first, second = at(0, 0), at(0, 1)
    second.metadata["deviceProperties"] = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]
    together = analyze_traces(written(tmp_path, first, second))
    told = "the traces are of unlike devices, sums mix them"
    assert f"{told}: NVIDIA H100 80GB HBM3 (a.json), NVIDIA A100-SXM4-80GB (b.json)" in together.warnings
    assert "unlike devices" in terminal_report(together, width=80)


def of_model(trace: HandMade, name: str, **options: Any) -> HandMade:
    told = Capture(
        version="0", command="", created="", environment=Environment(device="x", device_kind="cuda"),
        workload=Workload(model=name, inputs=("ids",), **options),
    )  # fmt: skip
    trace.metadata[METADATA_KEY] = to_builtins(told)
    return trace


def test_other_models_are_warned_of(tmp_path: Path) -> None:
    first, second = of_model(at(0, 0), "bert", batch=8), of_model(at(0, 1), "gpt2", batch=8)
    together = analyze_traces(written(tmp_path, first, second))
    assert "the traces are of unlike models, sums mix them: bert (a.json), gpt2 (b.json)" in together.warnings
    # the report was headed with the first one's name
    assert (together.workload.model, together.workload.batch, together.workload.inputs) == (None, 8, ("ids",))
    same = analyze_traces(written(tmp_path, of_model(at(0, 0), "bert"), of_model(at(0, 1), "bert")))
    assert (same.workload.model, [text for text in same.warnings if "unlike" in text]) == ("bert", [])


def test_products_of_no_common_shape_are_warned_of(tmp_path: Path) -> None:
    first, second = at(0, 0), at(0, 1)
    told = "a.json and b.json have no product of the same shapes: other models or inputs?"
    assert told not in analyze_traces(written(tmp_path, first, second)).warnings
    second.events = json.loads(json.dumps(second.events).replace("[8, 4]", "[9, 4]").replace("[4, 8]", "[4, 9]"))
    assert told in analyze_traces(written(tmp_path, first, second)).warnings
