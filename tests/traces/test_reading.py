"""Reading: every spelling of a trace gives the same report; damage is said, never a traceback."""

from __future__ import annotations

import gzip
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import opanatomy
from opanatomy.errors import TraceError
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.signature import NO_SIGNATURE, Argument, Signature, SignatureText, Stored, Tensor, text_of
from opanatomy.records.taxonomy import OperatorClass
from tests.support.made_trace import US, TraceBuilder, training_step

STEP = TraceBuilder(events=training_step().events).text()


def analyzed(folder: Path, content: str | bytes, name: str = "t.json") -> Anatomy:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return opanatomy.analyze(path)


def rows(anatomy: Anatomy) -> tuple[Any, ...]:
    """What a trace says, whatever file it is in."""
    return anatomy.operators, anatomy.kernels, anatomy.modules, anatomy.ledger, anatomy.step.wall_ns, anatomy.warnings


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    anatomy = analyzed(tmp_path_factory.mktemp("step"), STEP)
    assert (anatomy.ledger.linked_ns, anatomy.warnings, anatomy.caveats) == (35_000, (), ())
    return rows(anatomy)


def as_texts(text: str) -> str:
    """Numbers written as text."""
    document = json.loads(text)
    for event in document["traceEvents"]:
        event |= {"ts": str(event["ts"]), "dur": str(event["dur"])}
        event["args"] |= {
            key: str(event["args"][key]) for key in ("External id", "correlation") if key in event["args"]
        }
    return json.dumps(document)


def around(text: str) -> str:
    """Metadata before and after the events."""
    events = json.dumps(json.loads(text)["traceEvents"])
    return (
        f'{{"note": "the words \\"traceEvents\\": [ in a string", "traceEvents": {events},'
        ' "distributedInfo": {"pg_config": [{"a": 1},{"b": 2}]}, "traceName": "x"}'
    )


@pytest.mark.parametrize(
    "spelled",
    [
        lambda text: json.dumps(json.loads(text), indent=2),
        lambda text: json.dumps(json.loads(text), separators=(",", ":")),
        lambda text: json.dumps(json.loads(text)["traceEvents"]),
        lambda text: "\ufeff" + text,
        as_texts,
        around,
        lambda text: text.replace('"dur": 60', '"dur": 60, "x": -Infinity'),
        lambda text: text.replace('{"ph"', "\0" * 5000 + '{"ph"', 1),  # white space is no damage
    ],
    ids=["indented", "dense", "a bare array", "a byte order mark", "numbers as text", "metadata", "Infinity", "zeros"],
)
@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_spelling_and_compression_do_not_matter(
    name: str, spelled: Callable[[str], str], step: tuple[Any, ...], tmp_path: Path
) -> None:
    content = spelled(STEP).encode()
    assert rows(analyzed(tmp_path, gzip.compress(content) if name.endswith("gz") else content, name)) == step


def test_gzip_in_members_wherever_a_chunk_ends(step: tuple[Any, ...], tmp_path: Path) -> None:
    padding = {len(packed): packed for size in range(16340, 16384) if (packed := gzip.compress(b" " * size, 0))}
    for wanted in (16384 - 1, 16384 - 5, 16384):
        content = padding[wanted] + gzip.compress(STEP.encode()) + gzip.compress(b"") + b"junk"
        assert rows(analyzed(tmp_path, content, "t.json.gz")) == step


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
        "ts": 1623142623460100,
        "dur": 1,
        "args": {"stream": 7, "external id": 9},
    }
    anatomy = analyzed(tmp_path, json.dumps({"traceEvents": [event, kernel]}))
    assert [(row.operator, str(row.signature), row.time_ns) for row in anatomy.operators] == [
        ("aten::add", "float32[2], float32[2]", 1000)
    ]
    assert [stream.stream for stream in anatomy.timeline.streams] == [7]


@pytest.mark.parametrize(
    "times", ['"ts":1712195495519698.827,"dur":0.001', '"ts":"1712195495519698.827","dur":"0.001"']
)
def test_nanoseconds_since_1970_are_exact(times: str, tmp_path: Path) -> None:
    """Times that are none cost their event."""
    other = '{"ph":"X","cat":"cpu_op","name":"aten::add","pid":1,"tid":1,"ts":1712195495519699.128,"dur":0.004}'
    broken = ['"ts":1E+99999999,"dur":1', '"ts":"NaN","dur":1']
    events = [f'{{"ph":"X","cat":"cpu_op","name":"aten::mul","pid":1,"tid":1,{time}}}' for time in (times, *broken)]
    anatomy = analyzed(tmp_path, f"[{','.join([*events, other])}]")
    assert (anatomy.step.wall_ns, sum(row.time_ns for row in anatomy.classes)) == (305, 5)
    assert anatomy.warnings == ("2 events without a readable name or time were left out",)


@pytest.mark.parametrize(
    ("bad", "name"),
    [
        (r'"C:\Users\x"', r"C:\Users\x"),
        ('"half \\ud83d pair"', "half \ufffd pair"),
        ('"pair \\ud83d\\ude00"', "pair \U0001f600"),
        ('"tab\there"', "tab here"),
        ('"a\x01\nb"', "a  b"),
        ('"load("x.bin") of C:\\data"', 'load("x.bin") of C:\\data'),
        (b'"\xff\xfe"', "\ufffd\ufffd"),
        ('"inf or NaN, nan ]"', "inf or NaN, nan ]"),
        ('"a \\" NaN , b"', 'a " NaN , b'),
    ],
)
def test_what_other_writers_break_is_mended(bad: str | bytes, name: str, tmp_path: Path) -> None:
    """Also of what Kineto does not escape; bare words are mended, those in strings are not."""
    text = STEP.replace('"ts": 430', '"ts": 430, "more": [inf,-nan, -Infinity ], "x": NaN').encode()
    content = text.replace(b'"ampere_sgemm_128x64_nn"', bad if isinstance(bad, bytes) else bad.encode())
    anatomy = analyzed(tmp_path, content)
    assert name in [row.kernel for row in anatomy.kernels]
    assert (anatomy.ledger.linked_ns, anatomy.warnings) == (35_000, ())


# --------------------------------------------------------------------------------------------------------------- damage


@settings(max_examples=40, deadline=None)
@given(st.floats(0.4, 0.999))
def test_a_cut_off_file_is_read_up_to_the_cut(tmp_path_factory: pytest.TempPathFactory, share: float) -> None:
    anatomy = analyzed(tmp_path_factory.mktemp("cut"), STEP[: int(len(STEP) * share)])
    assert any("truncated" in caveat for caveat in anatomy.caveats)
    assert anatomy.ledger.device_work_ns in (10_000, 30_000, 35_000, 0, 50_000, 100_000, 150_000)


def test_a_cut_off_trace_says_how_much_was_read(tmp_path: Path) -> None:
    made = TraceBuilder()
    for number, call in enumerate(("cudaStreamIsCapturing", "cudaEventQuery"), 7):
        made.launch(number, number, name=call)
    made.events += training_step().events
    text = made.text()
    assert analyzed(tmp_path, text[: text.index("ampere_sgemm_128x64_nt")]).caveats == (
        "the file is truncated inside an event; it was read up to that point: 14 events in 0.00 MB of text",
        "the truncated trace contains the device work of 1 of its 2 launches",
    )
    made = TraceBuilder()
    for number in range(20000):
        made.host(f"aten::op{number}", number, 1)
    packed = gzip.compress(made.text().encode())
    cut = analyzed(tmp_path, packed[: len(packed) // 2], "cut.json.gz")
    assert any("truncated" in caveat for caveat in cut.caveats)
    assert 1000 < len(cut.operators) < 20000


def test_an_event_that_does_not_end_in_8_mebibytes_is_damage(tmp_path: Path) -> None:
    """What is cut off inside a shorter one is read up to the cut."""
    longer = '{"ph": "X", "name": "'.ljust((8 << 20) + 1, "x")
    with pytest.raises(TraceError, match="of its text is not an event"):
        analyzed(tmp_path, f"{STEP[: STEP.rindex(']')]}, {longer}")


def wrong_checksum() -> bytes:
    packed = bytearray(gzip.compress(STEP.encode()))
    packed[-6] ^= 1
    return bytes(packed)


NOTHING = "no operator and no device work that opanatomy recognizes"
HEADS = (b"", b'{"traceEvents":[', b'{"traceEvents":[{"name":"')
PIECES = (b"\0", b" ", b"a", b"{},", b'{"ph":"X","cat":"Kernel","name":"k","ts":1},', b"[")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"hello", "starts with 'h'"),
        (b'{"a": 1}', 'no "traceEvents"'),
        (b"\x1f\x8b\x08bad", "damaged or truncated before"),
        (wrong_checksum(), "damaged"),
        (None, "no such file"),
        *(
            (text, NOTHING)
            for text in (
                b'{"traceEvents":[]}',
                b"[",
                b"[" * (1 << 20),
                b'{"traceEvents":[{"ph":"X"}]}',
                b'[{"ph":"X","cat":"python_function","name":"f","ts":1,"dur":1}]',
                b'[{"ph":"i","cat":"cpu_instant_event","name":"[memory]","ts":1,"args":{"Bytes":512}}]',
                b'[{"ph":"X","cat":"user_annotation","name":"step","ts":1,"dur":1}]',
            )
        ),
        # Bombs.
        *((gzip.compress(head + piece * ((20 << 20) // len(piece)), 1), "") for head in HEADS for piece in PIECES),
    ],
)
def test_what_is_no_trace_gets_one_line(content: bytes | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TraceError, match=re.escape(words) if words else None) as caught:
        opanatomy.analyze(path)
    assert str(caught.value).isprintable()


PLACE = STEP.rindex("{", 0, STEP.index('"aten::linear"'))
DAMAGE = {
    **{f"without {lost}": (lost, "") for lost in ('"name": ', '"', "}", "{", '": {')},
    **{f"with {more[:10]}": ("", more) for more in ("1, ", "null, ", '"x", ', "[{}], ", "oops, ")},
    "with a nest": ("", '{"a":' * 100_000 + "1" + "}" * 100_000 + ", "),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_in_the_middle_is_one_line_with_the_place(damage: str, tmp_path: Path) -> None:
    lost, more = DAMAGE[damage]
    at = STEP.index(lost, STEP.index('"aten::linear"') if lost not in ("{", "") else PLACE)
    with pytest.raises(
        TraceError, match=r"the entry near byte [\d,]+ of its text is not an event \(it is not "
    ) as caught:
        analyzed(tmp_path, STEP[:at] + more + STEP[at + len(lost) :])
    assert str(caught.value).isprintable()
    place = re.search(r"byte ([\d,]+)", str(caught.value))
    assert place is not None
    assert abs(int(place[1].replace(",", "")) - PLACE) < 200


# ----------------------------------------------------------------------------------------------------------- odd values


def test_one_odd_value_costs_itself_and_not_its_event(step: tuple[Any, ...], tmp_path: Path) -> None:
    made = training_step()
    made.events[3]["args"]["External id"] = "twelve"
    made.events[3]["args"] |= {"Sequence number": 2**70, "Input Dims": {"a": 1}}
    made.named("phase/forward")["pid"] = {"name": "python"}
    anatomy = made.analyze(tmp_path)
    assert (anatomy.ledger.device_work_ns, anatomy.kernels, anatomy.warnings) == (35_000, step[1], ())


@pytest.mark.parametrize("value", [1e16, -1e16, "1e999999999", "nan", "soon", [], {}, True])
@pytest.mark.parametrize("key", ["ts", "dur"])
def test_a_time_that_cannot_be_costs_its_event(tmp_path: Path, key: str, value: object) -> None:
    made = training_step()
    made.events[3][key] = value
    assert made.analyze(tmp_path).warnings == ("1 event without a readable name or time was left out",)


def test_durations_that_cannot_be(tmp_path: Path) -> None:
    """A negative one is read as nothing; more than every clock is no trace."""
    made = training_step()
    made.named("ampere_sgemm_128x64_nn")["dur"] = -1
    anatomy = made.analyze(tmp_path)
    assert (anatomy.ledger.device_work_ns, anatomy.warnings) == (
        25_000,
        ("1 event has a negative duration, which is treated as 0",),
    )
    made = TraceBuilder()
    for number in range(1000):
        made.host("aten::mm", number, 9e12)
    with pytest.raises(TraceError, match="146 years"):
        made.analyze(tmp_path)


def test_more_events_than_fit_the_text_are_refused(tmp_path: Path) -> None:
    """An event takes 64 bytes at least; so few that memory does not matter may be shorter."""
    event = b'{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":1},'
    assert analyzed(tmp_path, b"[" + event * 150_000 + b"{}]").ledger.device_work_ns == 150_000 * US
    with pytest.raises(TraceError, match="is this a trace"):
        analyzed(tmp_path, b"[" + event * 150_001 + b"{}]")


def test_work_of_categories_that_are_not_known(step: tuple[Any, ...], tmp_path: Path) -> None:
    made = training_step()
    for event in made.events:
        event["cat"] = "npu_kernel" if event["cat"] == "kernel" else event["cat"]
    anatomy = made.analyze(tmp_path)
    assert anatomy.ledger.device_work_ns == 35_000
    assert anatomy.warnings == ("read as kernels: 3 events of the unknown category npu_kernel",)
    for category in ("gpu_user_annotation", "cuda_sync", "python_function", "Trace", "overhead"):
        made = TraceBuilder(events=training_step().events)
        made.kernel("x", 1, 1, 9, category=category)
        assert rows(made.analyze(tmp_path)) == step
    for kept in ("cpu_op", "kernel"):
        made = training_step()
        made.events = [event for event in made.events if event["cat"] == kept]
        assert made.analyze(tmp_path).ledger.device_work_ns > 0


def test_nodes_of_a_graph_that_are_no_device_work(tmp_path: Path) -> None:
    """Rows of torch 2.15's Cuspy: a host callback and the record of an event have a stream and are no kernels."""
    made = TraceBuilder()
    made.step(100, 1000)
    made.launch(110, 1, name="cudaGraphLaunch")
    for name, start, duration, category in (
        ("ampere_sgemm_128x64_nn", 120, 100, "kernel"),
        ("HostNode: callback(void*)", 220, 400, "graph_host_node"),
        ("EventRecord", 620, 0, "graph_event_node"),
        ("ampere_sgemm_128x64_nn", 620, 100, "kernel"),
    ):
        made.kernel(
            name, start, duration, 1, category=category, **{"graph id": 4, "graph node id": 17, "original_stream": 20}
        )
    made.events.append(
        {"ph": "C", "cat": "hardware_counters", "name": "GPU 0 Counters", "pid": 0, "ts": 130, "args": {"SM": 0.5}}
    )
    anatomy = made.analyze(tmp_path)
    assert [(row.kernel, row.count, row.time_ns) for row in anatomy.kernels] == [("ampere_sgemm_128x64_nn", 2, 200_000)]
    assert (anatomy.timeline.busy_ns, anatomy.ledger.unknown_ns) == (200_000, 0)
    assert anatomy.warnings == (
        "device work excludes 1 graph host node (0.400 ms): callbacks on the host that a graph waited for",
    )


@pytest.mark.parametrize(
    ("name", "kind", "across", "item"),
    [
        ("Memcpy", "HtoD", True, OperatorClass.DATA_MOVEMENT),
        ("Memcpy", "DtoD", False, OperatorClass.DATA_MOVEMENT),
        ("Memcpy", "PtoP", None, OperatorClass.COMMUNICATION),
        *(
            (f"Memcpy {kind} (Memory -> Device)", None, kind != "D2D", OperatorClass.DATA_MOVEMENT)
            for kind in ("M2D", "D2M", "H2D", "D2H", "D2D")
        ),
    ],
)
def test_what_a_copy_is_between(
    name: str, kind: str | None, across: bool | None, item: OperatorClass, tmp_path: Path
) -> None:
    """torch 2.15's Cuspy names every copy `Memcpy`; those of an Intel device were held against its bandwidth: PTI calls
    them M2D, not HtoD."""
    made = TraceBuilder()
    made.host("aten::copy_", 0, 50, shapes=[[8], [8], []], types=["float", "float", "Scalar"])
    made.run(
        name,
        10,
        20,
        5,
        call="urEnqueueUSMMemcpy" if kind is None else "cudaMemcpyAsync",
        category="gpu_memcpy",
        **({"copy kind": kind} if kind else {}),
    )
    anatomy = made.analyze(tmp_path)
    (kernel,), (row,) = anatomy.kernels, anatomy.operators
    assert (kernel.kernel, kernel.operator_class) == (f"{name} {kind}" if kind else name, item)
    assert across is None or row.crosses_host_link is across


def test_odd_numbers_of_devices_and_streams(tmp_path: Path) -> None:
    made = training_step()
    for device, stream in ((1, 7), ("GPU 2", "stream 20"), ("²", "9" * 19), (None, None)):
        made.kernel("k", 500, 1, 9, device=0)
        made.events[-1]["args"] |= {"device": device, "stream": stream}
    pairs = [(row.device, row.stream) for row in made.analyze(tmp_path).timeline.streams]
    assert {(0, 7), (1, 7), (2, 20)} < set(pairs)
    assert len(pairs) == 4


def test_metadata_that_cannot_be_are_left_out_and_said(tmp_path: Path) -> None:
    made = training_step()
    record: dict[str, Any] = {
        "version": "1", "command": "", "created": "",
        "environment": {"device_memory_bytes": -1, "device_count": 2},
        "workload": {"parameters": -5, "batch": 10**17, "seed": -3},
        "memory": {"peak_bytes": -1, "storage_bytes": {"weights": -2}, "failure": {
            "phase": "forward", "message": "m", "requested_bytes": 2**60}},
        "unprofiled_step_ns": [-7, 0, 9], "profiled_step_ns": [10],
    }  # fmt: skip
    made.metadata["opanatomy"] = record
    anatomy = made.analyze(tmp_path)
    assert (anatomy.environment.device_count, anatomy.workload.parameters, anatomy.workload.batch) == (2, None, None)
    assert (anatomy.workload.seed, anatomy.memory.peak_bytes, anatomy.step.unprofiled_wall_ns) == (-3, None, 9)
    assert anatomy.warnings[0] == (
        "opanatomy's metadata in the trace (opanatomy) contains impossible numbers, which are left out:"
        " device_memory_bytes, parameters, batch, memory.storage_bytes, memory.failure, peak_bytes, unprofiled_step_ns"
    )
    record["memory"] = {"peak_bytes": 5, "components": [{"component": "weights", "measured_bytes": 2}]}
    assert any(
        "use an older format, which opanatomy no longer reads" in text for text in made.analyze(tmp_path).warnings
    )


@pytest.mark.parametrize(("compiled", "uncompiled", "possible"), [(1, 1, True), (0, 1, False), (1, 0, False)])
def test_every_step_took_time(compiled: int, uncompiled: int, possible: bool, tmp_path: Path) -> None:
    made = training_step()
    times = {"compiling_ns": 5, "compiled_step_ns": [compiled], "uncompiled_step_ns": [uncompiled]}
    made.metadata["opanatomy"] = {
        "version": "1", "command": "", "created": "", "environment": {}, "workload": {}, "compilation": times,
        "unprofiled_step_ns": [9], "profiled_step_ns": [10],
    }  # fmt: skip
    assert (made.analyze(tmp_path).compilation is not None) is possible


# ----------------------------------------------------------------------------------------------------------- signatures

F = '["float"]'
#: Sizes, types and constants as Kineto writes them, and the signature of the report.
SIGNATURES = [
    ([[2], []], ["float", ""], ["", "False"], "float32[2], False"),
    ([[], []], ["float", ""], ["", ""], "float32[], -"),
    ([[], [], []], ["", "", ""], ["[1024]", "[]", "[True, False]"], "[1024], [], [True, False]"),
    ([[], [], []], ["", "", ""], ["3", "1.0000000000000001e-05", "tanh"], "3, 1e-05, tanh"),
    ([[], [], []], ["", "", ""], ["[[1], [2]]", "-inf", "9" * 400], "[[1], [2]], -inf, inf"),
    ([[[2, 3], [4]], []], ["TensorList", "TensorList"], ["", ""], "[?[2,3], ?[4]], -"),
    *(
        (dims, types, [""] * len(dims), "")
        for dims, types in (
            ([[2, -1]], ["float"]),
            ([["a"]], ["float"]),
            ([[1.5]], ["float"]),
            ([[True]], ["float"]),
            ([[2**63]], ["float"]),
            ([[2**32, 2**32]], ["float"]),
            ([[2]], ["float", "float"]),
            ([[2]], "float"),
            ([[[2, -1]]], ["TensorList"]),
            ([[1] * 65], ["float"]),
        )
    ),
]


@pytest.mark.parametrize(("dims", "types", "constants", "signature"), SIGNATURES)
def test_signatures_of_calls(
    dims: list[Any], types: list[str], constants: list[str], signature: str, tmp_path: Path
) -> None:
    """Sizes that cannot be are no signature."""
    made = TraceBuilder()
    made.host("aten::mul", 0, 10, shapes=dims, types=types, constants=constants)
    assert [str(row.signature) for row in made.analyze(tmp_path).operators] == [signature]


def test_what_a_capture_tells_of_lists_of_tensors(tmp_path: Path) -> None:
    """Kineto drops their data types, and the shapes of long ones; without types what has a shape is a tensor."""
    made = TraceBuilder()
    lists: dict[str, Any] = {"shapes": [[[2, 3], [4]], [], []], "types": ["TensorList", "TensorList", "Scalar"]}
    for start in (0, 20, 40):
        made.host("aten::_foreach_mul_", start, 10, constants=["", "", "1"], **lists)
    made.metadata["opanatomy"] = {
        "version": "0",
        "command": "",
        "created": "",
        "environment": {"device_kind": "cpu"},
        "workload": {},
        "lists": ["bfloat16[2,3];bfloat16[4]", "int64[5];float32[]"],
        "list_arguments": {"1": [0, 1], "2": [0, 1]},
    }
    made.host("aten::mul", 60, 10, shapes=[[2, 3], [], [[4], [5, 6]], [7]], types=[])
    del made.events[-1]["args"]["Input type"]
    assert {str(row.signature): row.calls for row in made.analyze(tmp_path).operators} == {
        "[bfloat16[2,3], bfloat16[4]], [int64[5], float32[]], 1": 2,
        "[?[2,3], ?[4]], -, 1": 1,
        "?[2,3], -, [?[4], ?[5,6]], ?[7]": 1,
    }


TENSORS = st.builds(
    Tensor,
    st.lists(st.integers(0, 9), max_size=4).map(tuple),
    st.sampled_from([None, "float32", "bfloat16", "int64", "uint8", "float8_e4m3fn"]),
    sparse=st.sampled_from([None, Stored(), Stored(elements=7)]),
)
VALUES: st.SearchStrategy[Argument] = st.one_of(
    TENSORS, st.none(), st.booleans(), st.integers(-9, 99), st.sampled_from([1e-05, 0.5]), st.sampled_from(["sum", ""])
)


@given(st.lists(VALUES | st.lists(VALUES.filter(bool), max_size=3).map(tuple), max_size=5))
def test_what_is_read_back_has_its_arguments(values: list[Argument]) -> None:
    record = Signature(tuple(values))
    read = SignatureText(str(record)).record
    assert (str(read), read.tensors(), read.compute_dtype) == (str(record), record.tensors(), record.compute_dtype)


@given(st.text("[], -?1ae.\u00e9", max_size=40))
def test_any_text_is_written_as_it_was_read(text: str) -> None:
    deep = "[" * 5000 + "]" * 5000
    assert (str(SignatureText(text).record), str(SignatureText(deep).record)) == (text, deep)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("", ()),
        ("[float32[2], ?[]], 8", ((Tensor((2,), "float32"), Tensor(())), 8)),
        ("float32[2,3], -, [1, 2], True, 1e-05, sum", (Tensor((2, 3), "float32"), None, (1, 2), True, 1e-05, "sum")),
        ("float32[4] sparse 3", (Tensor((4,), "float32", sparse=Stored(3)),)),
        ("float32[4] without strides", (Tensor((4,), "float32", sparse=Stored()),)),
        ("007, 1.50, [sum, ]", ("007", "1.50", ("sum", ""))),
    ],
)
def test_the_arguments_of_a_text(text: str, arguments: tuple[Argument, ...]) -> None:
    assert SignatureText(text).record == Signature(arguments)
    told = text_of(Signature(arguments))
    assert pickle.loads(pickle.dumps(told)).record == told.record
    assert text_of(None) is NO_SIGNATURE
