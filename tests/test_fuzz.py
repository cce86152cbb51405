"""Damaged traces: each ends in a report or in one clear line, in time and memory that grow with the text.

`benchmarks/fuzz.py` tries a hundred thousand of the same inputs.
"""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opanatomy.__main__ import main
from opanatomy.errors import TraceError
from opanatomy.pipeline import analyze_trace
from opanatomy.records.anatomy import Anatomy
from opanatomy.report import terminal_report
from opanatomy.report.formats.json import json_report
from tests.handmade import training_step
from tests.mutations import TOKENS, mutated, read_seed

MEGABYTE = 1 << 20
HEAD = b'{"traceEvents":['
#: Of such pieces whole texts are made: what a reader may look at again and again.
PIECES = (
    b"[", b"{", b"}", b'"', b'\\"', b"\\", b"1,", b"[],", b"{},", b"},{", b"}{", b"}, ", b'{"a":', b'{"a":1 ',
    b'{"a":[},{', b'{"a":"},{', b'{"a":"b"c"},', b'{"ph":"X" "cat"},', b'{"args":{},{', b'[{"a":{},{},',
    b'{"x" [{},{},{"a":[{},{}]},', b'{"a":"\\"},{', b"} " + b" " * 1000,
)  # fmt: skip
#: An operator up to its argument list.
ARGUMENTS = HEAD + b'{"ph":"X","cat":"cpu_op","name":"aten::mm","ts":1,"dur":2,"pid":1,"tid":1,"args":{"Input Dims":'
DEPTH = 10**6


def fuzzing(examples: int) -> settings:
    return settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def outcome(path: Path) -> str:
    """The report, or the one line of the error; whatever else is raised is a bug."""
    try:
        anatomy = analyze_trace(path)
    except TraceError as error:
        line = str(error)
        assert line
        assert line.isprintable()
        return line
    json_report(anatomy)
    return terminal_report(anatomy)


def outcome_of(folder: Path, data: bytes) -> str:
    path = folder / "input.json"
    path.write_bytes(data)
    return outcome(path)


def seeds() -> list[dict[str, Any]]:
    made = training_step()
    captured = Path(__file__).parent / "traces" / "bert_cpu.json.gz"
    return [{**made.metadata, "traceEvents": made.events}] * 2 + [read_seed(captured)]


SEEDS = seeds()

# -------------------------------------------------------------------------------------------------------------- damage


@fuzzing(50)
@given(st.integers(0, 2**32))
def test_a_mutated_trace_is_a_report_or_one_line(tmp_path: Path, number: int) -> None:
    outcome_of(tmp_path, mutated(Random(number), SEEDS, 30))


@fuzzing(50)
@given(
    st.lists(
        st.tuples(st.integers(0, 5000), st.integers(0, 80), st.sampled_from((b"", *TOKENS)) | st.binary(max_size=8)),
        min_size=1,
        max_size=6,
    )
)
def test_a_trace_with_holes_and_patches_is_a_report_or_one_line(
    tmp_path: Path, changes: list[tuple[int, int, bytes]]
) -> None:
    data = training_step().text().encode()
    for place, length, patch in changes:
        data = data[:place] + patch + data[place + length :]
    outcome_of(tmp_path, data)


@fuzzing(25)
@given(st.integers(0, 2**32), st.integers(0, 400))
def test_a_damaged_gzip_is_a_report_or_one_line(tmp_path: Path, number: int, cut: int) -> None:
    random = Random(number)
    packed = bytearray(gzip.compress(training_step().text().encode(), mtime=0))
    packed[random.randrange(len(packed))] ^= 1 << random.randrange(8)
    outcome_of(tmp_path, bytes(packed[: len(packed) - cut]))


def totals(anatomy: Anatomy) -> tuple[Any, ...]:
    rows = sorted((row.operator_class, row.time_ns, row.calls) for row in anatomy.classes)
    return (anatomy.step, anatomy.timeline, anatomy.ledger, rows)


@fuzzing(12)
@given(st.permutations(range(len(training_step().events))))
def test_the_order_of_the_events_does_not_matter(tmp_path: Path, order: list[int]) -> None:
    made = training_step()
    ordered = totals(analyze_trace(made.write(tmp_path / "ordered.json")))
    made.events = [made.events[place] for place in order]
    assert totals(analyze_trace(made.write(tmp_path / "shuffled.json"))) == ordered


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (training_step().text().encode(), 0),
        (training_step().text().encode()[:2000], 0),
        (json.dumps(training_step().events[::-1]).encode(), 0),
        (training_step().text().replace('"ts": 120', '"ts": "soon"').encode(), 0),
        (b"[1,2,3]", 1), (b'{"traceEvents":[]}', 1), (b"[" * MEGABYTE, 1), (b"", 1), (b"\x1f\x8b", 1), (b"PK", 1),
    ],
)  # fmt: skip
def test_the_exit_code_and_what_stderr_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes, code: int
) -> None:
    path = tmp_path / "input.json"
    path.write_bytes(data)
    assert main(["analyze", str(path)]) == code
    told = capsys.readouterr()
    if code:
        assert told.out == ""
        assert told.err.count("\n") == 1
    assert "Traceback" not in told.err


# ------------------------------------------------------------------------------------------------------ time and memory


@pytest.mark.parametrize("piece", PIECES)
def test_a_megabyte_of_one_piece_is_one_line(tmp_path: Path, piece: bytes) -> None:
    """How long each takes next to a plain trace is in benchmarks/damaged.py."""
    assert "\n" not in outcome_of(tmp_path, HEAD + piece * (MEGABYTE // len(piece))).strip()


@pytest.mark.parametrize(
    ("head", "opening", "closing", "tail"),
    [
        (b"", b"[", b"]", b""),
        (b"", b'{"a":', b"}", b""),
        (HEAD, b"[", b"]", b"]}"),
        (HEAD, b'{"args":', b"}", b"]}"),
        (HEAD, b'{"args":', b"", b""),
        (ARGUMENTS, b"[", b"]", b"}}]}"),
        (ARGUMENTS, b'{"a":', b"}", b"}}]}"),
        (b'{"opanatomy":', b'{"a":', b"}", b',"traceEvents":[]}'),
        (b'{"traceEvents":[],"x":', b"[", b"]", b"}"),
    ],
)
def test_a_million_brackets_deep(tmp_path: Path, head: bytes, opening: bytes, closing: bytes, tail: bytes) -> None:
    """Whatever follows or surrounds the nest."""
    outcome_of(tmp_path, head + opening * DEPTH + b"1" + closing * DEPTH + tail)


def test_a_nest_in_the_arguments_costs_the_arguments_only(tmp_path: Path) -> None:
    made = training_step()
    text = made.text().replace("[[8, 4], [4, 2]]", "[" * DEPTH + "]" * DEPTH, 1)
    path = tmp_path / "nest.json"
    path.write_text(text)
    assert analyze_trace(path).timeline.busy_ns == analyze_trace(made.write(tmp_path / "t.json")).timeline.busy_ns


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) * 1024


@pytest.mark.parametrize("piece", [b" ", b"{},", b"[", b'{"ph":"X","cat":"Kernel","name":"k","ts":1},'])
@pytest.mark.parametrize("head", [HEAD, HEAD + b'{"name":"'], ids=["array", "name"])
def test_a_gzip_bomb_is_one_line_and_little_memory(tmp_path: Path, head: bytes, piece: bytes) -> None:
    path = tmp_path / "bomb.json.gz"
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    block = piece * (MEGABYTE // len(piece))
    path.write_bytes(packer.compress(head) + b"".join(packer.compress(block) for _ in range(40)) + packer.flush())
    refs = Path("/proc/self/clear_refs")
    if refs.exists():
        refs.write_text("5")
        before = peak_bytes()
    with pytest.raises(TraceError) as caught:
        analyze_trace(path)
    assert str(caught.value).isprintable()
    if refs.exists():
        assert peak_bytes() - before < 100 * MEGABYTE
