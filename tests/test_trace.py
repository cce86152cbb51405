"""Reading: every spelling of a trace gives the same columns; damage is said, never a traceback."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opanatomy.errors import TraceError
from opanatomy.model import Tensor
from opanatomy.trace import Trace, read_trace
from opanatomy.trace.signatures import parse_constant, parse_signature
from tests.handmade import HandMade, training_step


def names_and_times(trace: Trace) -> list[tuple[str, int, int]]:
    return [
        (trace.names[name], start, duration)
        for name, start, duration in zip(
            trace.host.name.tolist(), trace.host.start_ns.tolist(), trace.host.duration_ns.tolist(), strict=True
        )
    ]


def test_columns_of_a_step(tmp_path: Path) -> None:
    trace = read_trace(training_step().write(tmp_path / "t.json"))
    assert len(trace.host.name) == 12
    assert len(trace.launches.name) == len(trace.work.name) == 3
    assert trace.work.duration_ns.tolist() == [10_000, 20_000, 5_000]
    assert trace.environment.device == "NVIDIA H100 80GB HBM3"
    assert trace.environment.device_kind == "cuda"
    assert trace.signatures[int(trace.host.signature[4])].arguments == (
        Tensor((8, 4), "float32"),
        Tensor((4, 2), "float32"),
    )


@pytest.mark.parametrize("options", [{}, {"indent": 2}, {"separators": (",", ":")}])
@pytest.mark.parametrize("ending", ["t.json", "t.json.gz"])
def test_layout_and_compression_do_not_matter(tmp_path: Path, options: dict, ending: str) -> None:
    expected = names_and_times(read_trace(training_step().write(tmp_path / "plain.json")))
    assert names_and_times(read_trace(training_step().write(tmp_path / ending, **options))) == expected


def test_a_bare_array_is_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "array.json"
    path.write_text(json.dumps(training_step().events))
    assert len(read_trace(path).host.name) == 12


def test_the_schema_of_2021(tmp_path: Path) -> None:
    event = {
        "ph": "X", "cat": "Operator", "name": "aten::add", "pid": 1, "tid": "2", "ts": 1623142623460072, "dur": 85,
        "args": {"external id": 9, "Input dims": [[2], [2]], "Input type": ["float", "float"]},
    }  # fmt: skip
    kernel = {
        "ph": "X",
        "cat": "Kernel",
        "name": "k",
        "pid": 0,
        "tid": "stream 7",
        "ts": 5,
        "dur": 1,
        "args": {"stream": 7},
    }
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"traceEvents": [event, kernel]}))
    trace = read_trace(path)
    assert trace.host.external_id.tolist() == [9]
    assert trace.host.start_ns.tolist() == [1623142623460072000]
    assert trace.signatures[0] is not None
    assert trace.work.stream.tolist() == [7]


def test_nanoseconds_since_1970_are_exact(tmp_path: Path) -> None:
    path = tmp_path / "fine.json"
    event = '{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1712195495519698.827,"dur":0.001}'
    path.write_text('{"traceEvents":[' + event + "]}")
    trace = read_trace(path)
    assert trace.host.start_ns.tolist() == [1712195495519698827]
    assert trace.host.duration_ns.tolist() == [1]


def test_metadata_before_and_after_the_events(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    events = json.dumps(training_step().events)
    path.write_text(
        '{"note": "the words \\"traceEvents\\": [ in a string", "traceEvents": '
        + events
        + ', "distributedInfo": {"pg_config": [{"a": 1},{"b": 2}]}, "traceName": "x"}'
    )
    trace = read_trace(path)
    assert trace.metadata["traceName"] == "x"
    assert trace.metadata["distributedInfo"] == {"pg_config": [{"a": 1}, {"b": 2}]}
    assert len(trace.host.name) == 12
    assert trace.warnings == []


def test_events_spread_over_many_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opanatomy.trace.stream.CHUNK", 97)
    expected = names_and_times(read_trace(training_step().write(tmp_path / "a.json")))
    assert len(expected) == 12
    path = training_step().write(tmp_path / "b.json.gz", indent=1)
    assert names_and_times(read_trace(path)) == expected


def test_text_that_is_not_quite_json(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    good = training_step().text()
    path.write_text(good.replace('"aten::linear"', '"aten::linear\x01\n"').replace('"dur": 60', '"dur": NaN'))
    trace = read_trace(path)
    assert len(trace.host.name) == 12
    assert trace.warnings == []


def test_an_event_that_is_no_json_is_left_out_and_said(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(training_step().text().replace('"aten::linear"', '"aten::linear" oops'))
    trace = read_trace(path)
    assert len(trace.host.name) == 11
    assert trace.warnings == ["1 entry is no valid event and left out"]


@settings(max_examples=60, deadline=None)
@given(st.floats(0.05, 0.999))
def test_a_cut_off_file_is_read_up_to_the_cut(share: float) -> None:
    import tempfile

    text = training_step().text()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cut.json"
        path.write_text(text[: int(len(text) * share)])
        trace = read_trace(path)
    assert any("cut off" in warning for warning in trace.warnings)
    whole = json.loads(text)["traceEvents"]
    read = len(trace.host.name) + len(trace.launches.name) + len(trace.work.name)
    assert read <= len(whole)
    assert read >= int(share * len(whole)) - 3


def test_a_cut_off_gzip_is_said(tmp_path: Path) -> None:
    path = tmp_path / "cut.json.gz"
    trace = HandMade()
    for number in range(20000):
        trace.host(f"aten::op{number}", number, 1)
    packed = gzip.compress(trace.text().encode())
    path.write_bytes(packed[: len(packed) // 2])
    read = read_trace(path)
    assert 1000 < len(read.host.name) < 20000
    assert any("cut off" in warning for warning in read.warnings)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", 'no "traceEvents"'),
        (b"hello", "starts with b'h'"),
        (b'{"a": 1}', 'no "traceEvents"'),
        (b"\x1f\x8b\x08bad", 'no "trace'),
    ],
)
def test_what_is_no_trace_gets_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=words.replace("(", r"\(")) as caught:
        read_trace(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_gets_one_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        read_trace(tmp_path / "nothing.json")


def test_deep_nesting_does_not_overflow(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text('{"traceEvents":[' + '{"a":' * 100_000 + "1" + "}" * 100_000 + "]}")
    trace = read_trace(path)
    assert len(trace.host.name) == 0
    assert trace.warnings == ["1 entry is no valid event and left out"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None), ("False", False), ("True", True), ("[1024]", (1024,)), ("[]", ()), ("[True, False]", (True, False)),
        ("3", 3), ("1.0000000000000001e-05", 1e-05), ("-0.5", -0.5), ("tanh", "tanh"), ("None", None), ("0.", 0.0),
    ],
)  # fmt: skip
def test_constants(text: str, value: object) -> None:
    assert parse_constant(text) == value
    assert type(parse_constant(text)) is type(value)


def test_tensor_lists_are_what_a_capture_tells() -> None:
    raw = (
        b"[[[2,3],[4]],[],[]]",
        b'["TensorList","TensorList","Scalar"]',
        b"[[[3,1],[1]],[],[]]",
        b'["","","1"]',
    )
    told = parse_signature((*raw, "bfloat16[2,3];bfloat16[4]|int64[5];float32[]"))
    assert told is not None
    first, second, last = told.arguments
    assert first == (Tensor((2, 3), "bfloat16"), Tensor((4,), "bfloat16"))
    assert second == (Tensor((5,), "int64"), Tensor((), "float32"))
    assert last == 1


def test_tensor_lists_without_a_capture_have_no_types_and_long_ones_are_unknown() -> None:
    raw = (b"[[[2,3],[4]],[]]", b'["TensorList","TensorList"]', b"[[[3,1],[1]],[]]", b'["",""]', "")
    untold = parse_signature(raw)
    assert untold is not None
    assert untold.arguments == ((Tensor((2, 3), None, (3, 1)), Tensor((4,), None, (1,))), None)


def test_zero_dimensional_tensors_and_absent_ones_differ() -> None:
    found = parse_signature((b"[[],[]]", b'["float",""]', b"[[],[]]", b'["",""]', ""))
    assert found is not None
    assert found.arguments == (Tensor((), "float32", ()), None)
