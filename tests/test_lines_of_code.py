"""Lines of code: scripts whose cost by line is known by their shapes, the sums, and what tracing leaves behind."""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from textwrap import dedent
from types import FrameType
from typing import Any, Final, TypeAlias

import pytest
import torch
from msgspec import Struct
from torch import nn

import opanatomy
from opanatomy.capture.lines import line_ranges
from opanatomy.capture.run import profiled
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.work import LineRow, OperatorRow
from opanatomy.records.workload import LINE_RANGE, LINES_STEP
from opanatomy.report.section import Time
from opanatomy.report.sections import sections_of
from opanatomy.trace.read import Functions
from tests.made_trace import MATRICES, TraceBuilder
from tests.test_run import UNDER, python

CONTRACTION: Final = OperatorClass.TENSOR_CONTRACTION
FORWARD, BACKWARD, RECOMPUTE = Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE
#: How many products of its size each phase makes of one product in forward.
TRAINED: Final = {FORWARD: 1, BACKWARD: 2}
RECOMPUTED: Final = {FORWARD: 1, RECOMPUTE: 1, BACKWARD: 2}
#: A cold iteration, a watched one and one on the clock; two profiled ones, one by line, one followed, one watched.
WARMUP, STEPS, ITERATIONS = 3, 2, 8
MARK: Final = re.compile(r"#@ (\S+)")
HEAD: Final = '''
import os
import sys
import torch
from torch import nn

def weight(*shape):
    return torch.randn(*shape, requires_grad=True)

def beside(name, file=None):
    """What a file beside this one defines, read as that of another name."""
    path = os.path.join(os.path.dirname(__file__), name)
    made = {"torch": torch}
    with open(path) as source:
        exec(compile(source.read(), file or path, "exec"), made)
    return made

'''
#: What follows the function `step` of a script.
LOOP: Final = """
def main(recorder, iterations):
    for _ in range(iterations):
        output = step()  #@ step
        (output * output).sum().backward()  #@ backward
        recorder.step()
"""
Event: TypeAlias = "dict[str, Any]"


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """No recording leaves a tracer."""
    yield
    assert sys.gettrace() is None


class Script:
    """A file of Python, with a mark on each line that a test asks for, others beside it, and its recordings."""

    def __init__(
        self, folder: Path, source: str, *, beside: Mapping[str, str] | None = None, loop: str = LOOP
    ) -> None:  # fmt: skip
        self.folder, self.file, self.trace = folder, folder / "train.py", folder / "step.json.gz"
        self._texts = {
            "train.py": HEAD + dedent(source) + loop,
            **{name: dedent(beside[name]) for name in beside or ()},
        }
        for name, text in self._texts.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)

    def run(self) -> Any:
        """Run the file as a module, and return it."""
        spec = importlib.util.spec_from_file_location("made_script", self.file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def record(self, **options: Any) -> Anatomy:
        """The anatomy of a recording of the script's loop, line by line."""
        main = self.run().main
        settings = {"lines": True, "steps": STEPS, "warmup": WARMUP, "force": True, **options}
        with opanatomy.record(self.trace, **settings) as recorder:
            main(recorder, ITERATIONS)
        check_sums(recorder.anatomy)
        check_ranges(self.events())
        return recorder.anatomy

    def events(self) -> list[Event]:
        events: list[Event] = json.loads(gzip.decompress(self.trace.read_bytes()))["traceEvents"]
        return events

    def line(self, mark: str) -> str:
        """The line that has this mark: `train.py:12`."""
        (line,) = (
            f"{name}:{number}"
            for name, text in self._texts.items()
            for number, words in enumerate(text.splitlines(), 1)
            if MARK.findall(words) == [mark]
        )
        return line


def places(stack: str) -> list[str]:
    """The lines of a stack, the outermost first, without their functions."""
    return [frame.partition(" ")[0] for frame in stack.split(";")]


def rows_of(anatomy: Anatomy, *lines: str, of: OperatorClass = CONTRACTION) -> list[LineRow]:
    """The rows of a class whose stacks end with these lines."""
    return [
        row for row in anatomy.lines if places(row.stack)[-len(lines) :] == list(lines) and row.operator_class is of
    ]


def times_of(rows: list[LineRow] | list[OperatorRow]) -> dict[Phase, int]:
    """The time of each phase."""
    sums: Counter[Phase] = Counter()
    for row in rows:
        sums[row.phase] += row.time_ns
    return dict(sums)


def flops_of(rows: list[LineRow], anatomy: Anatomy) -> dict[Phase, int]:
    """The FLOPs of each phase in a step."""
    sums: Counter[Phase] = Counter()
    for row in rows:
        assert (row.flops or 0) % anatomy.step.count == 0
        sums[row.phase] += (row.flops or 0) // anatomy.step.count
    return dict(sums)


def check_sums(anatomy: Anatomy) -> None:
    """Lines have the time and FLOPs of the classes in each phase, and the calls of the operators."""

    def sums(rows: Any) -> dict[Any, tuple[int, int]]:
        made: dict[Any, tuple[int, int]] = {}
        for row in rows:
            time, flops = made.get((row.phase, row.operator_class), (0, 0))
            made[row.phase, row.operator_class] = time + row.time_ns, flops + (row.flops or 0)
        return made

    if anatomy.lines:
        assert sums(anatomy.lines) == sums(anatomy.classes)
        assert sum(row.calls for row in anatomy.lines) == sum(row.calls for row in anatomy.operators)


def check_ranges(events: list[Event]) -> None:
    """The ranges of lines are in the step that has them, and each in the one that is open when it begins."""
    steps = [event for event in events if event.get("name") == LINES_STEP]
    ranges = [event for event in events if event.get("name", "").startswith(LINE_RANGE)]
    assert len(steps) == bool(ranges)
    for thread in {event["tid"] for event in ranges}:
        (begin, end), opened = (steps[0]["ts"], steps[0]["ts"] + steps[0]["dur"]), []
        for event in sorted((event for event in ranges if event["tid"] == thread), key=lambda event: event["ts"]):
            opened = [other for other in opened if other > event["ts"]]
            assert begin <= event["ts"]
            assert event["ts"] + event["dur"] <= min([end, *opened]) + 0.002  # times are rounded to ns
            opened.append(event["ts"] + event["dur"])


# ------------------------------------------------------------------------------------ scripts with a known cost by line


class Product(Struct, frozen=True, kw_only=True):
    """Products (m x k) (k x n) of the line with the last of these marks, called from those before it."""

    at: tuple[str, ...]
    shape: tuple[int, int, int]
    times: int = 1
    phases: dict[Phase, int]

    @property
    def flops(self) -> dict[Phase, int]:
        m, k, n = self.shape
        return {phase: factor * self.times * 2 * m * k * n for phase, factor in self.phases.items()}

    def has(self, dimensions: list[list[int]]) -> bool:
        """Whether operands of these dimensions are its own, or those of its backward."""
        return {size for matrix in dimensions if len(matrix) == 2 for size in matrix} == set(self.shape)


class Case(Struct, frozen=True, kw_only=True):
    """A script, and what its lines cost."""

    name: str
    source: str
    beside: dict[str, str] = {}
    products: tuple[Product, ...]


CASES: Final = (
    Case(name="slow loop", source="""
        w, x = weight(24, 24), weight(16, 24)
        def step():
            h = x
            for _ in range(30):
                h = torch.tanh(h)  #@ tanh
                h = h @ w  #@ product
            return h
    """, products=(Product(at=("step", "product"), shape=(16, 24, 24), times=30, phases=TRAINED),)),
    Case(name="helper", source="""
        v, w, x = weight(24, 40), weight(40, 56), weight(16, 24)
        def helper(left, right):
            left = left * 2
            return left @ right  #@ product
        def step():
            h = helper(x, v)  #@ first
            return helper(h, w)  #@ second
    """, products=(
        Product(at=("step", "first", "product"), shape=(16, 24, 40), phases=TRAINED),
        Product(at=("step", "second", "product"), shape=(16, 40, 56), phases=TRAINED),
    )),
    Case(name="lambda", source="""
        v, w, x = weight(24, 40), weight(40, 56), weight(16, 24)
        apply = lambda h: h @ w  #@ product
        def step():
            return apply(
                x @ v  #@ argument
            )
    """, products=(
        Product(at=("step", "argument"), shape=(16, 24, 40), phases=TRAINED),
        Product(at=("product",), shape=(16, 40, 56), phases=TRAINED),
    )),
    Case(name="decorator", source="""
        import functools
        v, w, x = weight(24, 40), weight(40, 56), weight(16, 24)
        def followed(function):
            @functools.wraps(function)
            def inner(*arguments):
                h = function(*arguments)  #@ call
                return h @ w  #@ after
            return inner
        @followed
        @torch.enable_grad()
        def decorated(h):
            return h @ v  #@ inside
        def step():
            return decorated(x)
    """, products=(
        Product(at=("call", "inside"), shape=(16, 24, 40), phases=TRAINED),
        Product(at=("after",), shape=(16, 40, 56), phases=TRAINED),
    )),
    Case(name="checkpointing", source="""
        from torch.utils.checkpoint import checkpoint
        u, v, w, x = weight(24, 40), weight(40, 56), weight(56, 72), weight(16, 24)
        def block(h):
            h = torch.tanh(h @ u)  #@ first
            h = h @ v  #@ second
            return torch.tanh(h)
        def step():
            h = checkpoint(block, x, use_reentrant=False)  #@ block
            return h @ w  #@ head
    """, products=(
        Product(at=("first",), shape=(16, 24, 40), phases=RECOMPUTED),
        Product(at=("second",), shape=(16, 40, 56), phases=RECOMPUTED),
        Product(at=("step", "block", "first"), shape=(16, 24, 40), phases=TRAINED),
        Product(at=("backward", "first"), shape=(16, 24, 40), phases={RECOMPUTE: 1}),
        Product(at=("step", "head"), shape=(16, 56, 72), phases=TRAINED),
    )),
    Case(name="compiled", source="""
        v, w, x = weight(24, 40), weight(40, 56), weight(16, 24)
        @torch.compile(backend="aot_eager")  #@ compiled
        def compiled(h):
            h = h * 2
            return torch.tanh(h @ v)
        def step():
            h = compiled(x)  #@ call
            return h @ w  #@ product
    """, products=(
        Product(at=("step", "call", "compiled"), shape=(16, 24, 40), phases=TRAINED),
        Product(at=("step", "product"), shape=(16, 40, 56), phases=TRAINED),
    )),
    Case(name="files of one name", source="""
        u, v, w, x = weight(24, 40), weight(40, 56), weight(56, 72), weight(16, 24)
        one, two = (beside(f"{name}/layer.py")["layer"] for name in ("one", "two"))
        def step():
            h = one(x, u)  #@ first
            h = two(h, v)
            return h @ w  #@ product
    """, beside={
        "one/layer.py": """
        def layer(h, w):
            return h @ w  #@ one
        """,
        "two/layer.py": """
        def layer(h, w):
            h = torch.tanh(h)
            return h @ w  #@ two
        """,
    }, products=(
        Product(at=("step", "first", "one"), shape=(16, 24, 40), phases=TRAINED),
        Product(at=("two",), shape=(16, 40, 56), phases=TRAINED),
        Product(at=("product",), shape=(16, 56, 72), phases=TRAINED),
    )),
    Case(name="notebook", source="""
        v, w, x = weight(24, 40), weight(40, 56), weight(16, 24)
        cell = beside("123.py", "/tmp/ipykernel_1/123.py")["cell"]
        typed = beside("<ipython-input-3-0a1b>", "<ipython-input-3-0a1b>")["typed"]
        generated = {}
        exec("def generated(h): return h * 2", generated)
        def step():
            h = cell(x, v)
            h = generated["generated"](h)
            return typed(h, w)  #@ call
    """, beside={
        "123.py": """
        def cell(h, w):
            return h @ w  #@ cell
        """,
        "<ipython-input-3-0a1b>": """
        def typed(h, w):
            h = torch.tanh(h)
            return h @ w  #@ typed
        """,
    }, products=(
        Product(at=("cell",), shape=(16, 24, 40), phases=TRAINED),
        Product(at=("call", "typed"), shape=(16, 40, 56), phases=TRAINED),
    )),
    Case(name="comprehension", source="""
        w, x = weight(40, 56), weight(16, 24)
        parts = [weight(24, 40) for _ in range(3)]
        def step():
            made = [
                x @ part  #@ product
                for part in parts
            ]
            return sum(h @ w for h in made)  #@ generator
    """, products=(
        Product(at=("product",), shape=(16, 24, 40), times=3, phases=TRAINED),
        Product(at=("generator",), shape=(16, 40, 56), times=3, phases=TRAINED),
    )),
    Case(name="library", source="""
        class Mine(nn.Linear):
            def forward(self, h):
                h = torch.tanh(h)
                return super().forward(h)  #@ linear
        layers = nn.Sequential(nn.Linear(24, 40, bias=False), nn.ReLU(), Mine(40, 56, bias=False))
        x = weight(16, 24)
        def step():
            return layers(x)  #@ layers
    """, products=(
        Product(at=("step", "layers"), shape=(16, 24, 40), phases=TRAINED),
        Product(at=("step", "layers", "linear"), shape=(16, 40, 56), phases=TRAINED),
    )),
    Case(name="attention of torch", source="""
        class Mine(nn.MultiheadAttention):
            def forward(self, h):
                return super().forward(h, h, h)[0]  #@ attention
        attention = Mine(24, 2, bias=False, batch_first=True)
        w, x = weight(24, 40), weight(3, 8, 24)
        def step():
            return attention(x) @ w  #@ after
    """, products=(
        Product(at=("step", "after", "attention"), shape=(24, 24, 24), times=4, more=4 * 3 * 8 * 8 * 24, phases=TRAINED),
        Product(at=("step", "after"), shape=(24, 24, 40), phases=TRAINED),
    )),
    Case(name="generators and coroutines", source="""
        import asyncio
        t, u, v, w = weight(24, 40), weight(40, 56), weight(56, 72), weight(72, 88)
        x = weight(16, 24)
        def sent():
            h = yield
            try:
                h = yield h @ t  #@ first
            except ValueError:
                yield h @ u  #@ thrown
        async def awaited(h):
            await asyncio.sleep(0)
            return h @ v  #@ awaited
        def step():
            parts = sent()
            next(parts)
            h = parts.send(x)  #@ send
            del parts
            parts = sent()
            next(parts)
            parts.send(torch.zeros(1, 24))
            return asyncio.run(awaited(h @ u)) @ w  #@ last
    """, products=(
        Product(at=("send", "first"), shape=(16, 24, 40), phases=TRAINED),
        Product(at=("last", "awaited"), shape=(16, 56, 72), phases=TRAINED),
    )),
)  # fmt: skip
DIMENSIONS: Final = re.compile(r"\[([\d,]+)\]")


def own_times(events: list[Event], counted: set[str]) -> list[tuple[list[list[int]], float]]:
    """The dimensions and the own time (ns) of each product in these steps, by the file alone."""
    steps = [event for event in events if event.get("name") in counted]
    within = [
        event for event in events
        if event.get("cat") == "cpu_op" and any(step["ts"] <= event["ts"] < step["ts"] + step["dur"] for step in steps)
    ]  # fmt: skip
    made, opened = [], []
    for event in sorted(within, key=lambda event: (event["tid"], event["ts"], -event["dur"])):
        end = event["ts"] + event["dur"]
        opened = [other for other in opened if other[0] == event["tid"] and other[1] >= end]
        if opened:
            opened[-1][2][0] -= event["dur"]
        opened.append((event["tid"], end, own := [event["dur"]]))
        if event["name"] in ("aten::mm", "aten::addmm"):
            made.append((event["args"]["Input Dims"], own))
    return [(dimensions, 1000 * own[0]) for dimensions, own in made]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cost_by_line(case: Case, tmp_path: Path) -> None:
    """FLOPs are those of the shapes; the time is that of the operators with these shapes, to the nanosecond, and that
    of the products in the file, which lasts a little longer where it has other operators inside."""
    script = Script(tmp_path, case.source, beside=case.beside)
    anatomy = script.record()
    counted = {f"ProfilerStep#{row.number}" for row in anatomy.step.steps if row.set_aside is None}
    in_file = own_times(script.events(), counted)
    for one in case.products:
        rows = rows_of(anatomy, *map(script.line, one.at))
        assert flops_of(rows, anatomy) == one.flops
        operators = [
            row for row in anatomy.operators
            if row.phase in one.phases and row.operator_class is CONTRACTION
            and one.has([list(map(int, sizes.split(","))) for sizes in DIMENSIONS.findall(str(row.signature))])
        ]  # fmt: skip
        if set(one.phases) >= {row.phase for row in operators}:
            assert times_of(rows) == times_of(operators)
        if sum(one.phases.values()) == sum(RECOMPUTED.values()) or RECOMPUTE not in {
            row.phase for row in anatomy.lines
        }:
            whole = sum(time for dimensions, time in in_file if one.has(dimensions))
            assert sum(times_of(rows).values()) == pytest.approx(whole, rel=0.05)
