"""Reading: every spelling of a trace gives the same columns; damage is said, never a traceback."""

from __future__ import annotations

import gzip
import json
import re
from contextlib import nullcontext
from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import opanatomy
from opanatomy.errors import TraceError
from opanatomy.records.signature import Signature, Tensor
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.records.workload import MemoryObservations
from opanatomy.trace.read import Trace, read_trace
from opanatomy.trace.salvage import mend
from opanatomy.trace.signatures import parse_constant, parse_signature, parse_signatures
from opanatomy.trace.stream import check_density
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


def test_quotes_that_kineto_did_not_escape_are_part_of_the_name(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(training_step().text().replace('"aten::linear"', '"load("x.bin") of C:\\data"'))
    trace = read_trace(path)
    assert 'load("x.bin") of C:\\data' in trace.names
    assert len(trace.host.name) == 12
    assert trace.warnings == []


@settings(max_examples=60, deadline=None)
@given(st.floats(0.3, 0.999))
def test_a_cut_off_file_is_read_up_to_the_cut(share: float) -> None:
    import tempfile

    text = training_step().text()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cut.json"
        path.write_text(text[: int(len(text) * share)])
        trace = read_trace(path)
    assert any("cut off" in caveat for caveat in trace.caveats)
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
    assert any("cut off" in caveat for caveat in read.caveats)


def test_a_cut_off_trace_says_how_much_was_read(tmp_path: Path) -> None:
    made = HandMade()
    for number, call in enumerate(("cudaStreamIsCapturing", "cudaEventQuery"), 7):
        made.launch(number, number, name=call)
    made.events += training_step().events
    text = made.text()
    path = tmp_path / "cut.json"
    path.write_text(text[: text.index("ampere_sgemm_128x64_nt")])
    assert read_trace(path).caveats == [
        "the file is cut off inside an event; it is read up to the cut: 14 events in 0.00 MB of text",
        "1 of 2 launches have their device work before the cut",
    ]


def test_gzip_in_members_wherever_a_chunk_ends(tmp_path: Path) -> None:
    text = training_step().text().encode()
    padding = {size: gzip.compress(b" " * size, 0) for size in range(16340, 16384)}
    wanted = {16384 - 1, 16384 - 5, 16384}
    for size, packed in padding.items():
        if len(packed) in wanted:
            path = tmp_path / f"{size}.json.gz"
            path.write_bytes(packed + gzip.compress(text) + gzip.compress(b"") + b"junk")
            trace = read_trace(path)
            assert len(trace.host.name) == 12
            assert trace.warnings == []
            wanted.remove(len(packed))
    assert not wanted


def test_a_wrong_checksum_is_said(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(training_step().text().encode()))
    packed[-6] ^= 1
    path = tmp_path / "t.json.gz"
    path.write_bytes(packed)
    with pytest.raises(TraceError, match="damaged"):  # the whole text is in the piece that is damaged
        read_trace(path)


@pytest.mark.parametrize("piece", [b"\0", b" ", b"a", b"{},", b'{"ph":"X","cat":"Kernel","name":"k","ts":1},', b"["])
@pytest.mark.parametrize("head", [b"", b'{"traceEvents":[', b'{"traceEvents":[{"name":"'])
def test_a_gzip_bomb_gets_one_line(tmp_path: Path, head: bytes, piece: bytes) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(head + piece * ((20 << 20) // len(piece)), 1))
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", 'no "traceEvents"'),
        (b"hello", "starts with b'h'"),
        (b'{"a": 1}', 'no "traceEvents"'),
        (b"\x1f\x8b\x08bad", "damaged or cut off before"),
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


def test_one_odd_value_costs_itself_and_not_its_event(tmp_path: Path) -> None:
    made = training_step()
    made.events[3]["args"]["External id"] = "twelve"
    made.events[4]["args"] |= {"Sequence number": 2**70, "Input Dims": {"a": 1}}
    made.events[5]["args"] = [1]
    made.events[6]["pid"] = {"name": "python"}
    trace = read_trace(made.write(tmp_path / "t.json"))
    assert (len(trace.host.name), len(trace.launches.name), len(trace.work.name)) == (12, 3, 3)
    assert trace.host.external_id.tolist()[:5] == [1, 2, 3, -1, 5]
    assert trace.launches.correlation.tolist() == [-1, 2, 3]
    assert trace.warnings == []


@pytest.mark.parametrize("value", [1e16, -1e16, "1e999999999", "nan", "soon", [], {}, True])
@pytest.mark.parametrize("key", ["ts", "dur"])
def test_a_time_that_cannot_be_costs_its_event(tmp_path: Path, key: str, value: object) -> None:
    made = training_step()
    made.events[3][key] = value
    trace = read_trace(made.write(tmp_path / "t.json"))
    assert len(trace.host.name) == 11
    assert trace.warnings == ["1 event without a readable name or time was left out"]


def test_numbers_written_as_text_are_numbers(tmp_path: Path) -> None:
    made = training_step()
    plain = read_trace(made.write(tmp_path / "plain.json"))
    for event in made.events:
        event |= {"ts": str(event["ts"]), "dur": str(event["dur"])}
        event["args"] |= {
            key: str(event["args"][key]) for key in ("External id", "correlation") if key in event["args"]
        }
    trace = read_trace(made.write(tmp_path / "t.json"))
    assert names_and_times(trace) == names_and_times(plain)
    assert trace.host.external_id.tolist() == plain.host.external_id.tolist()
    assert trace.work.correlation.tolist() == plain.work.correlation.tolist()


def test_fine_times_written_as_text_are_exact(tmp_path: Path) -> None:
    path = tmp_path / "fine.json"
    path.write_text(
        '[{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":"1712195495519698.827","dur":"0.001"},'
        '{"ph":"X","cat":"cpu_op","name":"b","pid":1,"tid":1,"ts":1E+99999999,"dur":1},'
        '{"ph":"X","cat":"cpu_op","name":"c","pid":1,"tid":1,"ts":"NaN","dur":1}]'
    )
    trace = read_trace(path)
    assert names_and_times(trace) == [("a", 1712195495519698827, 1)]
    assert trace.warnings == ["2 events without a readable name or time were left out"]


def test_negative_durations_are_read_as_nothing_and_said(tmp_path: Path) -> None:
    made = training_step()
    made.events[6]["dur"] = -1
    trace = read_trace(made.write(tmp_path / "t.json"))
    assert trace.work.duration_ns.tolist() == [0, 20_000, 5_000]
    assert trace.warnings == ["1 event has a negative duration, which is read as 0"]


def test_durations_beyond_every_clock_are_no_trace(tmp_path: Path) -> None:
    made = HandMade()
    for number in range(1000):
        made.host("aten::mm", number, 9e12)
    with pytest.raises(TraceError, match="146 years"):
        read_trace(made.write(tmp_path / "t.json"))


@pytest.mark.parametrize(
    ("good", "bad", "name"),
    [
        ('"aten::linear"', r'"C:\Users\x"', r"C:\Users\x"),
        ('"aten::linear"', '"half \\ud83d pair"', "half \ufffd pair"),
        ('"aten::linear"', '"pair \\ud83d\\ude00"', "pair \U0001f600"),
        ('"aten::linear"', '"tab\there"', "tab here"),
        ('"dur": 60', '"dur": 60, "x": -Infinity', "aten::linear"),
    ],
)
def test_what_other_writers_break_is_mended(tmp_path: Path, good: str, bad: str, name: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(training_step().text().replace(good, bad))
    trace = read_trace(path)
    assert name in trace.names
    assert len(trace.host.name) == 12
    assert trace.warnings == []


def test_bytes_that_are_no_utf8_are_mended(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(training_step().text().encode().replace(b"aten::linear", b"aten::\xff\xfe"))
    assert "aten::\ufffd\ufffd" in read_trace(path).names


DAMAGE = {
    **{f"without {lost}": lambda text, lost=lost: _without(text, lost) for lost in ('"name": ', '"', "}", "{", '": {')},
    "a number": lambda text: _before(text, "1, "),
    "null": lambda text: _before(text, "null, "),
    "a text": lambda text: _before(text, '"x", '),
    "a list": lambda text: _before(text, "[{}], "),
    "a word": lambda text: _before(text, "oops, "),
    "a nest": lambda text: _before(text, '{"a":' * 100_000 + "1" + "}" * 100_000 + ", "),
    "zeros": lambda text: _before(text, "\0" * 5000),
}


def _place(text: str) -> int:
    return text.rindex("{", 0, text.index('"aten::linear"'))


def _without(text: str, lost: str) -> str:
    place = text.index(lost, text.index('"aten::linear"') if lost != "{" else _place(text))
    return text[:place] + text[place + len(lost) :]


def _before(text: str, more: str) -> str:
    return text[: _place(text)] + more + text[_place(text) :]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_in_the_middle_is_one_line_with_the_place(tmp_path: Path, damage: str) -> None:
    text = training_step().text()
    path = tmp_path / "t.json"
    path.write_text(DAMAGE[damage](text))
    if damage == "zeros":  # white space is no damage
        assert len(read_trace(path).host.name) == 12
        return
    with pytest.raises(TraceError, match=r"the entry near byte (\d+) of its text is no event, it is no ") as caught:
        read_trace(path)
    assert str(caught.value).isprintable()
    place = int(re.search(r"byte ([\d,]+)", str(caught.value))[1].replace(",", ""))  # type: ignore[index]
    assert abs(place - _place(text)) < 200


def test_a_byte_order_mark_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b"\xef\xbb\xbf" + training_step().text().encode())
    assert len(read_trace(path).host.name) == 12


def test_work_of_an_unknown_accelerator_is_read(tmp_path: Path) -> None:
    made = training_step()
    for event in made.events:
        if event["cat"] == "kernel":
            event["cat"] = "npu_kernel"
    trace = read_trace(made.write(tmp_path / "t.json"))
    assert trace.work.duration_ns.tolist() == [10_000, 20_000, 5_000]
    assert trace.warnings == ["3 events of the unknown category npu_kernel were read as kernels"]


@pytest.mark.parametrize("category", ["gpu_user_annotation", "cuda_sync", "python_function", "Trace", "overhead"])
def test_what_is_no_work_is_not_read_as_work(tmp_path: Path, category: str) -> None:
    made = training_step()
    made.kernel("x", 1, 1, 9, category=category)
    trace = read_trace(made.write(tmp_path / "t.json"))
    assert len(trace.work.name) == 3
    assert trace.warnings == []


def test_nodes_of_a_graph_that_are_no_device_work(tmp_path: Path) -> None:
    """Rows of torch 2.15's Cuspy: a host callback and the record of an event have a stream and are no kernels."""
    made = HandMade()
    made.annotation("ProfilerStep#1", 100, 1000)
    made.launch(110, 1, name="cudaGraphLaunch")
    made.kernel("ampere_sgemm_128x64_nn", 120, 100, 1)
    made.kernel("HostNode: callback(void*)", 220, 400, 1, category="graph_host_node")
    made.kernel("EventRecord", 620, 0, 1, category="graph_event_node")
    made.kernel("ampere_sgemm_128x64_nn", 620, 100, 1)
    for event in made.events[2:]:
        event["args"] |= {"graph id": 4, "graph node id": 17, "original_stream": 20, "module_fqn": "layers.0"}
    made.events.append(
        {"ph": "C", "cat": "hardware_counters", "name": "GPU 0 Counters", "pid": 0, "ts": 130, "args": {"SM": 0.5}}
    )
    path = made.write(tmp_path / "t.json")
    assert read_trace(path).graph_host_ns.tolist() == [[220_000, 400_000]]
    anatomy = opanatomy.analyze(path)
    assert [(row.kernel, row.count, row.time_ns) for row in anatomy.kernels] == [("ampere_sgemm_128x64_nn", 2, 200_000)]
    assert (anatomy.timeline.busy_ns, anatomy.ledger.unknown_ns) == (200_000, 0)
    assert anatomy.warnings == (
        "1 graph host node (0.400 ms): callbacks on the host that a graph waited for, no device work",
    )


def test_a_copy_whose_arguments_say_what_it_is_between(tmp_path: Path) -> None:
    """torch 2.15's Cuspy names every copy `Memcpy`."""
    made = HandMade()
    for number, kind in enumerate(("HtoD", "DtoD", "PtoP"), 1):
        made.launch(10 * number, number, name="cudaMemcpyAsync")
        made.kernel("Memcpy", 10 * number + 5, number, number, category="gpu_memcpy")
        made.events[-1]["args"]["copy kind"] = kind
    rows = opanatomy.analyze(made.write(tmp_path / "t.json")).kernels
    assert {(row.kernel, row.operator_class, row.time_ns) for row in rows} == {
        ("Memcpy HtoD", OperatorClass.DATA_MOVEMENT, 1_000),
        ("Memcpy DtoD", OperatorClass.DATA_MOVEMENT, 2_000),
        ("Memcpy PtoP", OperatorClass.COMMUNICATION, 3_000),
    }


def test_several_devices_and_odd_numbers_of_them(tmp_path: Path) -> None:
    made = training_step()
    for device, stream in ((1, 7), ("GPU 2", "stream 20"), ("²", "9" * 40), (None, None)):
        made.kernel("k", 500, 1, 9)
        made.events[-1]["args"] |= {"device": device, "stream": stream}
    trace = read_trace(made.write(tmp_path / "t.json"))
    assert trace.work.device.tolist()[3:5] == [1, 2]
    assert trace.work.stream.tolist()[3:5] == [7, 20]
    assert all(number < -1 for number in (trace.work.device[5], trace.work.stream[5]))
    assert (trace.work.device[6], trace.work.stream[6]) == (0, 7)


@pytest.mark.parametrize(
    "text",
    [
        '{"traceEvents":[]}', "[", "[" * (1 << 20), '{"traceEvents":[{"ph":"X"}]}',
        '[{"ph":"X","cat":"python_function","name":"f","ts":1,"dur":1}]',
        '[{"ph":"i","cat":"cpu_instant_event","name":"[memory]","ts":1,"args":{"Bytes":512}}]',
        '[{"ph":"X","cat":"user_annotation","name":"step","ts":1,"dur":1}]',
    ],
)  # fmt: skip
def test_a_trace_of_nothing_gets_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(TraceError, match="no operator and no device work that opanatomy knows") as caught:
        read_trace(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("kept", ["cpu_op", "cuda_runtime", "kernel"])
def test_events_of_one_kind_are_a_trace(tmp_path: Path, kept: str) -> None:
    made = training_step()
    made.events = [event for event in made.events if event["cat"] == kept]
    trace = read_trace(made.write(tmp_path / "t.json"))
    assert len(trace.host.name) + len(trace.launches.name) + len(trace.work.name) == len(made.events) > 0


def test_metadata_that_cannot_be_are_left_out_and_said(tmp_path: Path) -> None:
    made = training_step()
    made.metadata["opanatomy"] = {
        "version": "1", "command": "", "created": "",
        "environment": {"device_memory_bytes": -1, "device_count": 2},
        "workload": {"parameters": -5, "batch": 10**17, "seed": -3},
        "memory": {"peak_bytes": -1, "storage_bytes": {"weights": -2}},
        "unprofiled_step_ns": [-7, 0, 9], "profiled_step_ns": [10],
    }  # fmt: skip
    trace = read_trace(made.write(tmp_path / "t.json"))
    assert trace.capture
    assert (trace.capture.environment.device_memory_bytes, trace.capture.environment.device_count) == (None, 2)
    assert (trace.capture.workload.parameters, trace.capture.workload.batch, trace.capture.workload.seed) == (
        None, None, -3
    )  # fmt: skip
    assert (trace.capture.memory.peak_bytes, trace.capture.memory.storage_bytes) == (None, {})
    assert (trace.capture.unprofiled_step_ns, trace.capture.profiled_step_ns) == ((9,), (10,))
    assert trace.warnings == [
        "the trace's own metadata (opanatomy) have numbers that cannot be, which are left out: device_memory_bytes,"
        " parameters, batch, memory.storage_bytes, peak_bytes, unprofiled_step_ns"
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None), ("False", False), ("True", True), ("[1024]", (1024,)), ("[]", ()), ("[True, False]", (True, False)),
        ("3", 3), ("1.0000000000000001e-05", 1e-05), ("-0.5", -0.5), ("tanh", "tanh"), ("None", None), ("0.", 0.0),
        ("[[1], [2]]", "[[1], [2]]"), ("[" * 3000 + "]" * 3000, "[" * 3000 + "]" * 3000), ("-inf", -inf),
        ("9" * 400, inf), ("9" * 5000, inf), ("9" * 19, 1e19),
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


def test_without_types_what_has_a_shape_is_a_tensor() -> None:
    found = parse_signature((b"[[2,3],[],[[4],[5,6]],[7]]", b"", b"", b"", ""))
    assert found is not None
    assert found.arguments == (Tensor((2, 3)), None, (Tensor((4,)), Tensor((5, 6))), Tensor((7,)))


@pytest.mark.parametrize(
    ("dims", "types"),
    [
        (b"[[2,-1]]", b'["float"]'), (b'[["a"]]', b'["float"]'), (b"[[1.5]]", b'["float"]'),
        (b"[[true]]", b'["float"]'),
        (b"[[9223372036854775808]]", b'["float"]'), (b"[[4294967296,4294967296]]", b'["float"]'),
        (b"[[2]]", b'["float","float"]'), (b"[[2]]", b'"float"'), (b"{}", b'["float"]'), (b"[[2]", b'["float"]'),
        (b"[[[2,-1]]]", b'["TensorList"]'), (b"[" * 100_000, b'["float"]'), (b"[[-1]]", b""),
        (b"[[" + b",".join([b"1"] * 65) + b"]]", b'["float"]'),
    ],
)  # fmt: skip
def test_shapes_that_cannot_be_are_no_signature(dims: bytes, types: bytes) -> None:
    assert parse_signature((dims, types, b"", b"", "")) is None


def test_strides_that_cannot_be_are_left_out() -> None:
    for strides in (b'[["a"]]', b"[[1,2]]", b"[5]", b"{}", b"[[1.5]]"):
        assert parse_signature((b"[[2]]", b'["float"]', strides, b"", "")) == Signature((Tensor((2,), "float32"),))


def test_more_argument_lists_than_fit_are_without_costs_and_said() -> None:
    large = b"[" + b",".join([b"[1]"] * 300_000) + b"]"
    types = b"[" + b",".join([b'"float"'] * 300_000) + b"]"
    warnings: list[str] = []
    found = parse_signatures([(b"[[2]]", b'["float"]', b"", b"", ""), (large, types, b"", b"", "")], warnings)
    assert [signature is None for signature in found] == [False, True]
    assert warnings == ["1 of 2 distinct argument lists are more than can be kept: without costs"]


def test_zero_dimensional_tensors_and_absent_ones_differ() -> None:
    found = parse_signature((b"[[],[]]", b'["float",""]', b"[[],[]]", b'["",""]', ""))
    assert found is not None
    assert found.arguments == (Tensor((), "float32", ()), None)


def test_memory_of_a_capture_that_cannot_be_is_left_out(tmp_path: Path) -> None:
    memory = {
        "snapshots": [{"name": "weights", "rss_bytes": 5}, {"name": "peak", "rss_bytes": -5}],
        "failure": {"phase": "forward", "message": "m", "requested_bytes": 2**60},
        "shape": {
            "kind": "bert", "layers": 0, "hidden": 8, "heads": 2, "intermediate": 8, "vocabulary": 8,
            "key_value_heads": 2, "head_size": 4,
        },
    }  # fmt: skip
    capture = {
        "version": "0", "command": "c", "created": "now", "environment": {}, "workload": {"batch": 1}, "memory": memory,
    }  # fmt: skip
    made = training_step()
    made.metadata["opanatomy"] = capture
    trace = read_trace(made.write(tmp_path / "t.json"))
    assert trace.capture is not None
    memory_ = trace.capture.memory
    assert ([snapshot.rss_bytes for snapshot in memory_.snapshots], memory_.failure, memory_.shape) == ([5], None, None)
    assert any("memory.snapshots, memory.failure, memory.shape" in warning for warning in trace.warnings)


def test_memory_in_an_older_form_is_left_out_and_said(tmp_path: Path) -> None:
    made = training_step()
    made.metadata["opanatomy"] = {
        "version": "0", "command": "c", "created": "now", "environment": {}, "workload": {"batch": 1},
        "memory": {"peak_bytes": 5, "components": [{"component": "weights", "measured_bytes": 2}]},
    }  # fmt: skip
    trace = read_trace(made.write(tmp_path / "t.json"))
    assert trace.capture is not None
    assert trace.capture.memory == MemoryObservations()
    assert trace.warnings == [
        "the memory in the trace's own metadata (opanatomy) is in an older form, which is not read - profile the model"
        " again"
    ]


@pytest.mark.parametrize(
    ("broken", "mended"),
    [
        (b'{"a": NaN, "b": [inf,-nan, -Infinity ]}', b'{"a": null, "b": [null,null, null ]}'),
        (b'{"dur": NaN, "name": "inf or NaN, nan ]"}', b'{"dur": null, "name": "inf or NaN, nan ]"}'),
        (b'{"name": "a \\" NaN , b", "dur": nan}', b'{"name": "a \\" NaN , b", "dur": null}'),
    ],
)  # fmt: skip
def test_bare_words_are_mended_and_words_in_strings_are_not(broken: bytes, mended: bytes) -> None:
    assert mend(broken) == mended


@pytest.mark.parametrize(
    ("events", "text_bytes", "refused"),
    [(150_000, 0, False), (150_001, 64 * 150_001, False), (150_001, 64 * 150_001 - 1, True)],
)
def test_more_events_than_fit_the_text_are_refused(events: int, text_bytes: int, refused: bool) -> None:
    """An event takes 64 bytes at least; so few that memory does not matter may be shorter."""
    with pytest.raises(TraceError, match="is this a trace") if refused else nullcontext():
        check_density(Path("t.json"), events, text_bytes)
