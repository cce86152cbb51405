"""The ranks of a whole cluster: by processes and Dask, from summaries that are kept, put together in any order."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
from isal import isal_zlib
from msgspec.structs import replace

import opanatomy
from opanatomy import parallel
from opanatomy.__main__ import main
from opanatomy.analysis.ranks import RankMerger
from opanatomy.attribution.phases import PhaseRule, phase_rules
from opanatomy.errors import UsageError
from opanatomy.io.files import Address
from opanatomy.io.sources import Source, sources_of
from opanatomy.parallel import (
    ClusterSettings,
    Reduced,
    Task,
    outcomes,
    pooled,
)
from opanatomy.pipeline import analyze_traces, reduced, summary_of_trace
from opanatomy.records.anatomy import Anatomy
from opanatomy.report import terminal_report
from opanatomy.report.formats.json import json_report
from tests.support.made_steps import message, rank_trace

NOT_KEPT = ClusterSettings(keep=False)


class NotExpected(AssertionError):
    """Something was done that must not be."""


def never(*_: object, **__: object) -> NoReturn:
    raise NotExpected


WAITS = (50, 60, 10, 70, 33, 80)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six ranks of one run that differ: in waiting, in what they warn of, two in a kernel of their own."""
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    for index, wait in enumerate(WAITS):
        trace = rank_trace(index, waits=wait, world=6, message=message(group=6))
        trace.host("aten::other" if index == 1 else "own::operator", 850, 20) if index in (0, 1, 5) else None
        if index in (1, 3):
            trace.launch(801, 55)
            trace.kernel("a_kernel_of_its_own", 810, 5, 55)
        trace.write(ranks / f"rank{index}.json.gz")
    return ranks


def report_of(folder: Path | Address, settings: ClusterSettings = NOT_KEPT, **options: Any) -> str:
    return json_report(analyze_traces([folder], cluster=settings, **options))


# ------------------------------------------------------------------------------------------------------ put together


def test_the_order_in_which_ranks_come_changes_nothing(folder: Path) -> None:
    each = [summary_of_trace(path).anatomy for path in sorted(folder.iterdir())]
    reports = set()
    for seed in range(5):
        indices = list(range(len(each)))
        random.Random(seed).shuffle(indices)
        together = RankMerger()
        for index in indices:
            together.add(each[index], index)
        anatomy = together.anatomy(name="ranks")
        assert [row.kernel for row in anatomy.kernels].count("a_kernel_of_its_own") == 1
        reports.add(json_report(anatomy))
    assert len(reports) == 1


def test_missing_ranks_are_named(folder: Path) -> None:
    assert not any("missing" in text for text in analyze_traces([folder]).caveats)
    for index in (1, 2, 3, 5):
        (folder / f"rank{index}.json.gz").unlink()
    assert "2 of 6 ranks are present: ranks 1-3, 5 are missing" in analyze_traces([folder]).caveats


# ---------------------------------------------------------------------------------------------------------- processes


def test_processes_give_the_same_bytes(folder: Path) -> None:
    (folder / "rank6.json").write_text("no trace")
    told: list[float] = []
    report = report_of(folder, replace(NOT_KEPT, jobs=2), advance=told.append)
    assert report == report_of(folder)
    assert "rank6.json is left out: " in report
    assert told == pytest.approx([(index + 1) / 7 for index in range(7)])


def _deadly(
    marks: Path, once: bool, source: Source, phases: Sequence[PhaseRule] = (), only: frozenset[int] | None = None
) -> Reduced:
    """Reduce a trace; rank 1 takes its process with it, the first time or always."""
    mark = marks / f"{source.name}.{time.monotonic_ns()}"
    first = not list(marks.glob(f"{source.name}.*"))
    mark.touch()
    if source.name.startswith("rank1") and (first or not once):
        os.kill(os.getpid(), signal.SIGKILL)
    return reduced(source, phases, only)


def tasks_of(folder: Path, reduce: Callable[[Source], Reduced]) -> list[Task]:
    return [Task(index=index, source=source, reduce=reduce) for index, source in enumerate(sources_of([folder]))]


@pytest.mark.parametrize("once", [True, False])
def test_a_killed_process_costs_the_rank_that_killed_it_alone(folder: Path, tmp_path: Path, once: bool) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    with closing(pooled(tasks_of(folder, partial(_deadly, marks, once)), 2)) as made:
        found = sorted(made, key=lambda outcome: outcome.index)
    assert [outcome.index for outcome in found] == list(range(6))
    lost = [outcome for outcome in found if outcome.lost]
    if once:
        assert lost == []
        return
    assert [outcome.index for outcome in lost] == [1]
    assert lost[0].lost == "the process that analyzed it was killed: not enough memory?"


def _sleeping(pids: Path, source: Source) -> Reduced:
    (pids / str(os.getpid())).touch()
    if "rank0" in source.name:
        return reduced(source)
    time.sleep(600)
    raise AssertionError


def test_processes_are_gone_when_the_run_is_interrupted(folder: Path, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    made = pooled(tasks_of(folder, partial(_sleeping, pids)), 2)
    next(made)
    begun = time.monotonic()
    made.close()
    assert time.monotonic() - begun < 10
    numbers = [int(path.name) for path in pids.iterdir()]
    assert numbers
    for number in numbers:
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


def _failing(error: BaseException, source: Source) -> Reduced:
    raise error


def test_a_fault_of_this_program_costs_the_rank_and_what_a_user_can_mend_ends_the_run(folder: Path) -> None:
    found = list(outcomes(sources_of([folder]), partial(_failing, KeyError("x")), "", NOT_KEPT))
    assert {outcome.lost for outcome in found} == {
        "opanatomy failed on it (KeyError) - analyze it by itself to see where"
    }
    with pytest.raises(UsageError, match="told the user"):
        list(outcomes(sources_of([folder]), partial(_failing, UsageError("told the user")), "", NOT_KEPT))


# ------------------------------------------------------------------------------------------------------------ summaries


@pytest.fixture
def reductions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the traces that are read."""
    read: list[str] = []

    def noted(source: Source, phases: Any = (), only: frozenset[int] | None = None) -> Reduced:
        read.append(source.name)
        return reduced(source, phases, only)

    monkeypatch.setattr("opanatomy.pipeline.reduced", noted)
    return read


@pytest.fixture
def settings(tmp_path: Path) -> ClusterSettings:
    return ClusterSettings(summaries=str(tmp_path / "kept"))


def test_traces_that_have_not_changed_are_not_read_again_and_damaged_summaries_are_made_again(
    folder: Path, settings: ClusterSettings, reductions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = report_of(folder, settings)
    # A time only tells of a file that was not touched just before: these were, and their content decides.
    monkeypatch.setattr("opanatomy.parallel._MOMENT_NS", 0)
    report_of(folder, settings)
    with monkeypatch.context() as patch:
        patch.setattr("opanatomy.parallel.digest_of", never)
        assert report_of(folder, settings) == first
    for path in folder.iterdir():  # touched
        os.utime(path, ns=(1, 1))
    assert report_of(folder, settings) == first
    assert len(reductions) == 6
    reductions.clear()
    files = sorted(Path(str(settings.summaries)).iterdir())
    for index, content in enumerate((b"", files[1].read_bytes()[:-100], b"\0" * 5000, files[4].read_bytes())):
        files[index].write_bytes(content)  # the last is another trace's
    assert report_of(folder, settings) == first
    assert sorted(reductions) == [f"rank{index}.json.gz" for index in range(4)]
    assert report_of(folder) == first


@pytest.mark.parametrize("changed", ["trace", "code", "phases"])
def test_summaries_of_another_trace_program_or_rule_are_not_used(
    folder: Path, settings: ClusterSettings, reductions: list[str], monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    # As above: the files were touched just before.
    monkeypatch.setattr("opanatomy.parallel._MOMENT_NS", 0)
    path = folder / "rank2.json.gz"
    path.write_bytes(gzip.decompress(path.read_bytes()))  # unpacked, for its size to stay
    first = report_of(folder, settings)
    reductions.clear()
    phases = phase_rules(["forward=own"]) if changed == "phases" else ()
    if changed == "code":
        # Another version of the program is not here.
        monkeypatch.setattr(parallel, "code_digest", lambda: "another")
    if changed == "trace":  # of the same size and with the time of before
        status = path.stat()
        time.sleep(0.02)
        path.write_text(path.read_text().replace('"dur": 10,', '"dur": 20,'))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    second = report_of(folder, settings, phases=phases)
    assert len(reductions) == (1 if changed == "trace" else 6)
    assert second == report_of(folder, phases=phases)
    assert (second != first) == (changed != "code")


def test_secrets_are_not_kept_and_a_redacted_report_is_the_same_from_summaries(
    folder: Path, settings: ClusterSettings, reductions: list[str]
) -> None:
    secret = "zq8Fh3kLw92mXy7T"
    for index, key, value in ((1, "hostname", "gpu-node-alpha"), (2, "API_TOKEN", secret)):
        trace = rank_trace(index, waits=WAITS[index], world=6, message=message(group=6))
        trace.metadata[key] = value
        trace.launch(861, 77)
        trace.kernel(f"call {value}", 865, 5, 77)
        trace.write(folder / f"rank{index}.json.gz")
    expected = report_of(folder, redact=True)
    assert "alpha" not in expected
    first = report_of(folder, settings)
    assert "call <redacted>" in first
    assert "alpha" in first
    assert secret not in first
    assert not any(secret.encode() in data for data in contents(settings))
    assert not any(path.name.startswith("rank2") for path in Path(str(settings.summaries)).iterdir())
    reductions.clear()
    assert report_of(folder, settings) == first
    assert report_of(folder, settings, redact=True) == expected
    assert reductions == ["rank2.json.gz"] * 2


def contents(settings: ClusterSettings) -> Iterator[bytes]:
    """What is in the kept files, unpacked."""
    for path in Path(str(settings.summaries)).iterdir():
        data = path.read_bytes()
        yield data
        yield isal_zlib.decompress(msgspec.msgpack.decode(data[4:])["summary"])


def test_a_folder_that_cannot_be_written_is_said_once_and_costs_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "opanatomy").write_text("a file in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    notes: list[str] = []
    assert report_of(folder, ClusterSettings(), note=notes.append) == report_of(folder)
    assert len(notes) == 1
    assert notes[0].startswith("summaries are not kept: Not a directory (")
    with pytest.raises(UsageError, match=r"summaries=.*: File exists - pass a folder"):
        report_of(folder, ClusterSettings(summaries=str(tmp_path / "opanatomy")))


def test_without_the_extra_and_with_what_was_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = report_of(folder)
    for name in ("dask", "distributed"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["analyze", str(folder), "--dask", "local"]) == 2
    assert "pip install 'opanatomy[cluster]'" in capsys.readouterr().err
    assert main(["analyze", str(folder), "-f", "json", "--jobs", "2"]) == 0
    assert capsys.readouterr().out == expected
    kept = Path(os.environ["XDG_CACHE_HOME"], "opanatomy", "summaries")
    assert kept.is_dir()
    # No trace is read again.
    monkeypatch.setattr("opanatomy.pipeline.reduced", never)
    assert main(["analyze", str(folder), "-f", "json"]) == 0
    assert capsys.readouterr().out == json_report(opanatomy.analyze(folder)) == expected


# --------------------------------------------------------------------------------------------------------------- Dask


@pytest.mark.slow
def test_dask_gives_the_same_bytes_though_a_worker_dies(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    (folder / "rank6.json").write_text("no trace")
    expected = report_of(folder)
    monkeypatch.setattr("opanatomy.pipeline.reduced", partial(_deadly, marks, True))
    assert report_of(folder, ClusterSettings(dask="local", jobs=2, keep=False)) == expected
    assert len(list(marks.glob("rank1*"))) == 2


def test_no_scheduler_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not the twenty seconds that a user waits.
    monkeypatch.setattr("opanatomy.parallel._CONNECT_SECONDS", 0.2)
    with pytest.raises(UsageError, match=r"dask='tcp://127.0.0.1:1': no scheduler responds there"):
        report_of(folder, ClusterSettings(dask="tcp://127.0.0.1:1", keep=False))


# ------------------------------------------------------------------------------------------------------------ addresses


@pytest.fixture
def store(folder: Path) -> Iterator[Path]:
    """The ranks at memory://cluster/ranks, and zipped at memory://cluster/ranks.zip; the same names in a folder."""
    import fsspec

    system = fsspec.filesystem("memory")
    with zipfile.ZipFile(folder.parent / "ranks.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in folder.iterdir():
            system.pipe_file(f"/cluster/ranks/{path.name}", path.read_bytes())
            archive.write(path, f"run/{path.name}")
    system.pipe_file("/cluster/ranks/readme.txt", b"no trace")
    system.pipe_file("/cluster/ranks.zip", (folder.parent / "ranks.zip").read_bytes())
    yield folder
    system.rm("/cluster", recursive=True)


@pytest.mark.parametrize(
    "address",
    [
        "memory://cluster/ranks",
        "memory://cluster/ranks/*.json.gz",
        "zip://run/*.gz::memory://cluster/ranks.zip",
    ],
)
def test_ranks_at_an_address(store: Path, address: str) -> None:
    def plain(report: str) -> Any:
        document = json.loads(report.replace("run/", ""))
        document["provenance"].pop("trace")
        for rank in document["ranks"]:  # a zip's member is packed in another way
            rank.pop("trace_sha256")
        return document

    assert plain(report_of(Address(address))) == plain(report_of(store))


def test_a_trace_at_an_address_is_written_back(store: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "memory://cluster/ranks/rank1.json.gz", "--trace", "back.json.gz", "-o", "r.json"]) == 0
    assert sorted(path.name for path in here.iterdir()) == ["back.json.gz", "r.json"]
    for address, code, words in (
        ("memory://cluster/none", 1, "no such file or folder"),
        ("memory://cluster/ranks/readme.txt", 1, "not a trace"),
        ("nothing://a/b.json", 2, "this is a URL, not a file - download it first: copy nothing://a/b.json"),
    ):
        capsys.readouterr()
        assert main(["analyze", address]) == code
        err = capsys.readouterr().err
        assert words in err
        assert err.count("\n") == 1


def test_summaries_at_an_address(store: Path, reductions: list[str]) -> None:
    import fsspec

    settings = ClusterSettings(summaries="memory://cluster/kept/deep")
    first = report_of(Address("memory://cluster/ranks"), settings)
    assert len(reductions) == 6
    assert report_of(Address("memory://cluster/ranks"), settings) == first
    assert len(reductions) == 6
    changed = rank_trace(0, waits=90, world=6, message=message(group=6))
    changed.write(store / "rank0.json.gz")
    fsspec.filesystem("memory").pipe_file("/cluster/ranks/rank0.json.gz", (store / "rank0.json.gz").read_bytes())
    assert report_of(Address("memory://cluster/ranks"), settings) != first
    assert reductions[6:] == ["rank0.json.gz"]


# ---------------------------------------------------------------------------------------------------------- the report


def test_a_report_of_hundreds_of_ranks_can_be_read(folder: Path) -> None:
    """512 ranks made of six: a line a group, one for the rank that differs, all of them in JSON."""
    each = [summary_of_trace(path).anatomy for path in sorted(folder.iterdir())]
    together = RankMerger()
    for index in range(512):
        together.add(_as_rank(each[index % 2], index, 512, slow=index == 300), index)
    anatomy = together.anatomy(name="512 ranks")
    text = terminal_report(anatomy, width=80)
    lines = [line for line in text.splitlines() if " ranks " in line or line.startswith("300 ")]
    assert any(line.startswith("A: 511 ranks ") for line in lines), text
    assert any(line.startswith("300 ") for line in lines)
    assert "A: ranks 0-299, 301-511" in text
    assert "The longest step is on rank 300" in text
    assert len(text.splitlines()) < 150
    assert len(json.loads(json_report(anatomy))["ranks"]) == 512
    assert sum(row.time_ns for row in anatomy.operators) == 256 * sum(
        row.time_ns for one in each[:2] for row in one.operators
    )


def _as_rank(anatomy: Anatomy, number: int, world: int, *, slow: bool) -> Anatomy:
    wall = 5 * (anatomy.step.wall_ns or 0) if slow else anatomy.step.wall_ns
    row = replace(
        anatomy.ranks[0], rank=number, world_size=world, trace=f"{number}.json", trace_sha256=None, wall_ns=wall
    )
    provenance = replace(anatomy.provenance, trace=row.trace, trace_sha256=None, begin_unix_ns=number)
    return msgspec.structs.replace(anatomy, ranks=(row,), provenance=provenance)
