"""Traces as nobody writes them: seeded, structure-aware damage to a trace. The same `Random` gives the same bytes.

`mutated(random, seeds)` is the way in: some events of a seed, changed as JSON, written in one of many layouts, changed
as text, maybe compressed, changed as bytes.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

Json: TypeAlias = Any
Events: TypeAlias = "list[dict[str, Any]]"

#: Text that JSON cannot say (`1e400`) stands in a string behind this mark until the document is written.
_RAW = "\ue000raw:"
_RAW_STRING = re.compile(r'"\\ue000raw:([^"]*)"|"\ue000raw:([^"]*)"')

NUMBERS: tuple[Json, ...] = (
    0,
    -0.0,
    -1,
    1,
    2,
    3.5,
    7,
    31,
    255,
    1e-9,
    1e9,
    1e15,
    1e16,
    1712195495519698.827,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**63,
    -(2**63),
    -(2**63) - 1,
    2**64 - 1,
    2**64,
    10**25,
    -(10**25),
    1e300,
    -1e300,
    True,
    False,
    f"{_RAW}1e400",
    f"{_RAW}NaN",
    f"{_RAW}-Infinity",
    f"{_RAW}1E+99999999",
    f"{_RAW}{'9' * 5000}",
    f"{_RAW}01",
    f"{_RAW}-",
    f"{_RAW}1.",
)
TEXTS: tuple[str, ...] = (
    "",
    " ",
    "0",
    "-1",
    "12",
    "1.5",
    "1e400",
    "nan",
    "inf",
    "1e999999999",
    "9" * 5000,
    "²",
    "٣",
    "1_000",
    "stream 7",
    "stream ²",
    "\x00",
    "\x1b[31mred\x1b[0m",
    "a\nb\r\tc",
    "\u202eltr\u202c",
    "\ud800",
    "\udc00\ud800",
    "😀" * 50,
    "\ufeff",
    "null",
    "True",
    "[]",
    "[1, 2]",
    "[[1], [2]]",
    "[" * 5000,
    "(" * 3000,
    "<" * 3000,
    "void " + "a<" * 2000,
    "{}",
    '"',
    "\\",
    "},{",
    "}, {",
    "]}",
    '"traceEvents": [',
    "{{ x }}",
    "[bold]",
    "[/]",
    "C:\\Users\\x",
    "=1+1",
    "a" * 100_000,
    "ProfilerStep#",
    "ProfilerStep#1",
    "ProfilerStep#" + "9" * 30,
    "ProfilerStep#²",
    "Optimizer.step#x",
    "opanatomy.phase/",
    "opanatomy.phase/forward",
    "opanatomy.phase/backward",
    "opanatomy.module/",
    "opanatomy.module/a.b",
    "## forward ##",
    "autograd::engine::evaluate_function: X",
    "MmBackward0",
    "aten::mm",
    "aten::",
    "cudaGraphLaunch",
    "nccl:all_reduce",
    "record_param_comms",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)",
    "Memcpy HtoD (Pageable -> Device)",
)
SIZES: tuple[Json, ...] = (
    0,
    1,
    2,
    3,
    7,
    64,
    2**20,
    2**31,
    2**40,
    2**62,
    2**63,
    2**70,
    -1,
    -5,
    1.5,
    True,
    None,
    "4",
    [],
    [2],
)
TYPES = (
    "float",
    "double",
    "c10::Half",
    "c10::BFloat16",
    "long int",
    "int",
    "bool",
    "Scalar",
    "ScalarList",
    "TensorList",
    "GenericList",
    "",
    "x",
    "c10::complex<float>",
    "unsigned char",
    "Device",
    "float8",
)
CONSTANTS = (
    "",
    "0",
    "1",
    "2",
    "-1",
    "True",
    "False",
    "None",
    "[1, 1]",
    "[0, 0]",
    "[]",
    "[True, True, False]",
    "[2, -1]",
    "0.5",
    "1e-05",
    "inf",
    "nan",
    "1e400",
    "9" * 5000,
    "9" * 18,
    "[9999999999, 9999999999]",
    "[-5]",
    "[0]",
    "mean",
    "[[1], [2]]",
    "[" * 3000,
    "[" * 3000 + "]" * 3000,
    "6",
    "15",
    "99",
    "causal",
)
CATEGORIES = (
    "cpu_op",
    "Operator",
    "user_annotation",
    "cuda_runtime",
    "Runtime",
    "cuda_driver",
    "kernel",
    "Kernel",
    "gpu_memcpy",
    "Memcpy",
    "gpu_memset",
    "gpu_user_annotation",
    "python_function",
    "npu_kernel",
    "",
    "KERNEL",
    "cuda_sync",
    "hpu_op",
    "ac2g",
    "Trace",
    "x" * 1000,
)
SPELLINGS_OF_2021 = {
    "External id": "external id",
    "Input Dims": "Input dims",
    "Sequence number": "Seq number",
    "cpu_op": "Operator",
    "kernel": "Kernel",
    "cuda_runtime": "Runtime",
    "gpu_memcpy": "Memcpy",
    "gpu_memset": "Memset",
}
TOKENS = (
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b"\\",
    b",",
    b":",
    b"},{",
    b"}, {",
    b"]}",
    b'"',
    b'\\"',
    b"NaN",
    b"1e400",
    b"\x00",
    b"\xff",
    b"\xed\xa0\x80",
    b"\n",
    b" " * 3000,
    b"null",
    b"true",
    b"-",
    b'"traceEvents": [',
    b"[" * 3000,
    b'{"a":' * 3000,
    b"'",
    b"\xef\xbb\xbf",
    b"/* */",
    b'"\\ud800"',
    b"0" * 400,
    b"{}," * 500,
    b"1," * 500,
)


def read_seed(path: Path) -> dict[str, Any]:
    """The document of a trace file, a bare array as one too."""
    raw = path.read_bytes()
    text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    document = json.loads(text.decode(errors="replace"), strict=False)
    return document if isinstance(document, dict) else {"traceEvents": document}


def mutated(random: Random, seeds: Sequence[dict[str, Any]], most_events: int = 120) -> bytes:
    """One input."""
    document = excerpt(random, random.choice(seeds), most_events)
    for _ in range(_few(random, 0.25, 5)):
        random.choice(JSON_MUTATIONS)(random, document)
    data = written(random, document)
    for _ in range(_few(random, 0.6, 4)):
        data = random.choice(TEXT_MUTATIONS)(random, data)
    if random.random() < 0.25:
        data = gzip.compress(data, random.choice((0, 1, 6)), mtime=0)
        for _ in range(_few(random, 0.6, 3)):
            data = random.choice(TEXT_MUTATIONS)(random, data)
    return data


def text_size(data: bytes) -> int:
    """The bytes of the text in an input, as far as it can be unpacked."""
    if data[:2] != b"\x1f\x8b":
        return len(data)
    unpacked, total = zlib.decompressobj(31), 0
    try:
        text = unpacked.decompress(data, 1 << 24)
        while text:
            total += len(text)
            text = unpacked.decompress(unpacked.unconsumed_tail, 1 << 24)
    except zlib.error:
        pass
    return max(total, len(data))


def excerpt(random: Random, seed: dict[str, Any], most_events: int) -> dict[str, Any]:
    """The metadata and some events in a row, with the device work that those launch; a copy that may be changed."""
    events = seed["traceEvents"]
    if len(events) > most_events:
        count = random.randint(1, most_events)
        start = random.randrange(len(events) - count + 1)
        picked = events[start : start + count]
        launched = {_correlation(event) for event in picked} - {None}
        others = events[: 40 * most_events] if len(events) > 40 * most_events else events
        events = picked + [event for event in others if _correlation(event) in launched and event not in picked][:count]
    copied: dict[str, Any] = json.loads(json.dumps({**seed, "traceEvents": events}))
    return copied


def _correlation(event: Json) -> Json:
    args = event.get("args") if isinstance(event, dict) else None
    found = args.get("correlation") if isinstance(args, dict) else None
    return found if isinstance(found, int) else None


# -------------------------------------------------------------------------------------------------------------- as JSON


def odd_value(random: Random) -> Json:
    """A value that does not belong where it will be."""
    kind = random.random()
    if kind < 0.4:
        return random.choice(NUMBERS)
    if kind < 0.75:
        return random.choice(TEXTS)
    if kind < 0.8:
        return None
    if kind < 0.95:
        return [odd_value(random) for _ in range(random.randrange(4))]
    return {random.choice(("name", "id", "x", "")): odd_value(random) for _ in range(random.randrange(3))}


def change_field(random: Random, document: Json) -> None:
    for event in _some(random, _events(document)):
        place = event
        if random.random() < 0.5 and isinstance(event.get("args"), dict):
            place = event["args"]
        keys = [*place, "ts", "dur", "tid"] if place is event else [*place, "External id", "correlation", "stream"]
        place[random.choice(keys)] = odd_value(random)


def drop_field(random: Random, document: Json) -> None:
    for event in _some(random, _events(document)):
        place = event["args"] if random.random() < 0.5 and isinstance(event.get("args"), dict) else event
        if place:
            del place[random.choice(list(place))]


def change_anywhere(random: Random, document: Json) -> None:
    """A value at any depth of the metadata (`opanatomy`, `deviceProperties`, ...) is replaced or dropped."""
    places: list[tuple[Json, Json]] = []
    _collect({key: value for key, value in document.items() if key != "traceEvents"}, places)
    if places:
        container, key = random.choice(places)
        if container is None:
            container, key = document, random.choice([*document, "deviceProperties", "opanatomy", "distributedInfo"])
        if random.random() < 0.2 and isinstance(container, dict):
            container.pop(key, None)
        else:
            container[key] = odd_value(random)


def _collect(value: Json, places: list[tuple[Json, Json]]) -> None:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        places.append((value, key))
        _collect(child, places)


def add_metadata(random: Random, document: Json) -> None:
    key = random.choice(
        (
            "deviceProperties",
            "opanatomy",
            "distributedInfo",
            "schemaVersion",
            "cuda_runtime_version",
            "traceName",
            "hip_runtime_version",
            "displayTimeUnit",
            "baseTimeNanoseconds",
            "record_shapes",
            "traceEvents",
            "",
        )
    )
    property_ = {random.choice(("name", "totalGlobalMem", "numSms", "id", "warpSize")): odd_value(random)}
    document[key] = random.choice((odd_value(random), [property_], [odd_value(random)], {"rank": odd_value(random)}))


def reorder(random: Random, document: Json) -> None:
    events = _events(document)
    random.choice((random.shuffle, list.reverse, lambda some: some.sort(key=str), list.clear))(events)


def repeat(random: Random, document: Json) -> None:
    """Thousands of equal events at equal times."""
    events = _events(document)
    if events:
        events.extend([random.choice(events)] * random.choice((1, 3, 30, 3000)))


def drop_events(random: Random, document: Json) -> None:
    document["traceEvents"] = [event for event in _events(document) if random.random() < 0.7]


def same_ids(random: Random, document: Json) -> None:
    key, value = random.choice(("External id", "correlation", "Sequence number", "stream")), random.choice(NUMBERS)
    for event in _events(document):
        if isinstance(event.get("args"), dict) and random.random() < 0.8:
            event["args"][key] = value


def overlap(random: Random, document: Json) -> None:
    """Staircases, and events in and out of each other on one thread."""
    events = _events(document)
    numbers = [event["ts"] for event in events if isinstance(event.get("ts"), int | float)]
    low, high = (min(numbers), max(numbers)) if numbers else (0, 1000)
    style = random.randrange(3)
    for index, event in enumerate(events):
        if event.get("ph") == "X":
            begin = low + index if style else random.uniform(low, high)
            event |= {
                "ts": begin,
                "dur": (0, len(events), 2 * (len(events) - index))[style] or (high - begin) * random.random(),
            }
            event["tid"] = event["tid"] if random.random() < 0.3 and "tid" in event else 1


def shift_times(random: Random, document: Json) -> None:
    scale, offset = (
        random.choice((1, 1e-3, 1e3, 0, -1)),
        random.choice((0, 1.7e15, 1712195495519698.827, -1e12, 4e15, 9e12)),
    )
    as_text = random.random() < 0.3
    for event in _events(document):
        if isinstance(event.get("ts"), int | float):
            time = event["ts"] * scale + offset
            event["ts"] = repr(time) if as_text else time


def spell_as_in_2021(random: Random, document: Json) -> None:
    for event in _events(document):
        event["cat"] = SPELLINGS_OF_2021.get(str(event.get("cat")), event.get("cat"))
        args = event.get("args")
        if isinstance(args, dict):
            event["args"] = {SPELLINGS_OF_2021.get(key, key): value for key, value in args.items()}
            if random.random() < 0.5:
                event["args"].pop("Input type", None)


def rename(random: Random, document: Json) -> None:
    for event in _some(random, _events(document)):
        name = random.choice(TEXTS)
        event["name"] = random.choice((name, str(event.get("name", "")) + name, name * 3))


def recategorize(random: Random, document: Json) -> None:
    for event in _some(random, _events(document)):
        event["cat"] = random.choice(CATEGORIES)


def change_operator(random: Random, document: Json) -> None:
    """Operators that have formulas, with arguments that mostly are not theirs."""
    from opanatomy.cost.registry import operators

    for event in _some(random, _events(document)):
        if event.get("cat") in ("cpu_op", "Operator"):
            if random.random() < 0.8:
                event["name"] = random.choice(operators())
            event["args"] = {**(event.get("args") if isinstance(event.get("args"), dict) else {}), **_arguments(random)}


def _arguments(random: Random) -> dict[str, Json]:
    count = random.choice((0, 1, 2, 3, 4, 6, 9, 15))
    shapes = [_shape(random) for _ in range(count)]
    found = {
        "Input Dims": shapes,
        "Input type": [random.choice(TYPES[:7] if random.random() < 0.6 else TYPES) for _ in range(count)],
        "Concrete Inputs": [random.choice(CONSTANTS) for _ in range(count)],
        "Input Strides": [random.choice((shape, [], [0], [1, 0])) for shape in shapes],
    }
    for key in ("Input Dims", "Input type", "Concrete Inputs", "Input Strides"):
        if random.random() < 0.05:
            found[key] = random.choice((odd_value(random), found[key][:-1], [found[key]], found[key] * 3))
    return found


def _shape(random: Random) -> Json:
    plain = [random.choice((1, 2, 3, 4, 8, 16)) for _ in range(random.choice((0, 1, 2, 2, 3, 4)))]
    kind = random.random()
    if kind < 0.7:
        return plain
    if kind < 0.85:
        return [random.choice(SIZES) for _ in range(random.choice((1, 2, 3, 4, 70)))]
    return [plain, plain] if kind < 0.95 else odd_value(random)


def nest(random: Random, document: Json) -> None:
    depth = random.choice((10, 500, 5000))
    value = _RAW + random.choice(
        ("[" * depth + "]" * depth, "[" * depth, "{'a':" * depth, "{'a':" * depth + "1" + "}" * depth)
    )
    for event in _some(random, _events(document)):
        if isinstance(event.get("args"), dict):
            event["args"][random.choice(("Input Dims", "Input Strides", "x"))] = value


JSON_MUTATIONS: tuple[Callable[[Random, Json], None], ...] = (
    change_field,
    change_field,
    change_field,
    drop_field,
    change_anywhere,
    change_anywhere,
    add_metadata,
    reorder,
    repeat,
    drop_events,
    same_ids,
    overlap,
    overlap,
    shift_times,
    spell_as_in_2021,
    rename,
    rename,
    recategorize,
    change_operator,
    change_operator,
    change_operator,
    nest,
)


def _events(document: Json) -> Events:
    events = document.get("traceEvents")
    return [event for event in events if isinstance(event, dict)] if isinstance(events, list) else []


def _some(random: Random, events: Events) -> Events:
    if not events:
        return []
    if random.random() < 0.1:
        return events
    return random.sample(events, min(len(events), random.choice((1, 1, 2, 5, 20))))


def _few(random: Random, none: float, most: int) -> int:
    return 0 if random.random() < none else random.randint(1, most)


# -------------------------------------------------------------------------------------------------------------- as text


def written(random: Random, document: Json) -> bytes:
    """The document as JSON in one of many layouts."""
    layout: dict[str, Any] = random.choice(({}, {"indent": 2}, {"separators": (",", ":")}, {"indent": 0}))
    ascii_only = random.random() < 0.6
    if random.random() < 0.15:
        document = document.get("traceEvents", [])
    elif random.random() < 0.3:
        document = {"traceEvents": document.get("traceEvents", []), **document}
    text = json.dumps(document, ensure_ascii=ascii_only, **layout)
    text = _RAW_STRING.sub(lambda found: (found[1] or found[2] or "").replace("'", '"'), text)
    return text.encode("utf-8", "surrogatepass" if random.random() < 0.5 else "replace")


def _flip(random: Random, data: bytes) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 10, 100))):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _cut(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _behead(random: Random, data: bytes) -> bytes:
    return data[random.randrange(len(data) + 1) :] if random.random() < 0.3 else data[random.randrange(4) :]


def _delete(random: Random, data: bytes) -> bytes:
    start, end = _slice(random, data)
    return data[:start] + data[end:]


def _double(random: Random, data: bytes) -> bytes:
    start, end = _slice(random, data)
    return data[:end] + data[start:end] * random.choice((1, 2, 20)) + data[end:]


def _swap(random: Random, data: bytes) -> bytes:
    start, end = _slice(random, data)
    place = random.randrange(len(data) + 1)
    return data[:place] + data[start:end] + data[place:]


def _insert(random: Random, data: bytes) -> bytes:
    place = random.randrange(len(data) + 1)
    return data[:place] + random.choice(TOKENS) + data[place:]


def _replace_number(random: Random, data: bytes) -> bytes:
    found = list(re.finditer(rb"-?\d+(?:\.\d+)?", data[: 1 << 20]))
    if not found:
        return data
    one = random.choice(found)
    return (
        data[: one.start()]
        + random.choice((b"1e400", b"-1", b"9" * 30, b"NaN", b"", b'"7"', b"[]"))
        + data[one.end() :]
    )


TEXT_MUTATIONS: tuple[Callable[[Random, bytes], bytes], ...] = (
    _flip,
    _flip,
    _cut,
    _cut,
    _behead,
    _delete,
    _double,
    _swap,
    _insert,
    _insert,
    _replace_number,
)


def _slice(random: Random, data: bytes) -> tuple[int, int]:
    start = random.randrange(len(data) + 1)
    return start, min(len(data), start + random.choice((1, 2, 10, 100, 1000)))
