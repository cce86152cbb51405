"""Lines of code: scripts whose cost by line is known by their shapes, the sums, and what tracing leaves behind."""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from math import prod
from pathlib import Path
from textwrap import dedent
from types import FrameType, MappingProxyType
from typing import Any, Final, TypeAlias

import pytest
import torch
from msgspec import Struct, field
from msgspec.structs import replace
from torch import nn

import opanatomy
from opanatomy import results
from opanatomy.analysis.ranks import merge_steps
from opanatomy.capture.lines import line_ranges
from opanatomy.capture.run import profiled
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.work import LineRow, OperatorRow
from opanatomy.records.workload import LINE_RANGE, LINES_STEP
from opanatomy.report.section import Bytes, Flops, Time
from opanatomy.report.sections import sections_of
from opanatomy.trace.read import Functions
from tests.support.command import UNDER, python
from tests.support.made_trace import MATRICES, US, TraceBuilder

CONTRACTION: Final = OperatorClass.TENSOR_CONTRACTION
FORWARD, BACKWARD, RECOMPUTE = Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE
#: How many products of its size each phase makes of one product in forward.
TRAINED: Final = {FORWARD: 1, BACKWARD: 2}
RECOMPUTED: Final = {FORWARD: 1, RECOMPUTE: 1, BACKWARD: 2}
#: A cold iteration, a watched one and one on the clock; two profiled ones, one by line, one followed, one watched.
WARMUP, STEPS, ITERATIONS = 3, 2, 8
#: The times of a trace are rounded to nanoseconds.
ROUNDED_US: Final = 0.002
MARK: Final = re.compile(r"# @ (\S+)")
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
        output = step()  # @ step
        (output * output).sum().backward()  # @ backward
        recorder.step()
"""
Event: TypeAlias = "dict[str, Any]"


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """No recording leaves a tracer."""
    yield
    assert sys.gettrace() is None


def loaded(name: str, file: Path) -> Any:
    """The module that a file is."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Script:
    """A file of Python, with a mark on each line that a test asks for, others beside it, and its recordings."""

    def __init__(
        self, folder: Path, source: str, *, beside: Mapping[str, str] = MappingProxyType({}), loop: str = LOOP
    ) -> None:
        self.folder, self.file, self.trace = folder, folder / "train.py", folder / "step.json.gz"
        self._texts = {
            "train.py": HEAD + dedent(source) + loop,
            **{name: dedent(text) for name, text in beside.items()},
        }
        for name, text in self._texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)

    def run(self) -> Any:
        """Run the file as a module, and return it."""
        return loaded("made_script", self.file)

    def record(self, **options: Any) -> results.Anatomy:
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
    assert bool(ranges) <= len(steps) <= 1
    for thread in {event["tid"] for event in ranges}:
        begin, end = steps[0]["ts"], steps[0]["ts"] + steps[0]["dur"]
        opened: list[float] = []
        for event in sorted((event for event in ranges if event["tid"] == thread), key=lambda event: event["ts"]):
            opened = [other for other in opened if other > event["ts"]]
            assert begin <= event["ts"]
            assert event["ts"] + event["dur"] <= min([end, *opened]) + ROUNDED_US
            opened.append(event["ts"] + event["dur"])


# ------------------------------------------------------------------------------------ scripts with a known cost by line


class Product(Struct, frozen=True, kw_only=True):
    """Products (m x k) (k x n) of the line with the last of these marks, called from those before it.

    `all` of this size are its own, unless other lines have some too.
    """

    at: tuple[str, ...]
    shape: tuple[int, int, int]
    times: int = 1
    phases: dict[Phase, int] = field(default_factory=lambda: dict(TRAINED))
    all: bool = True

    @property
    def flops(self) -> dict[Phase, int]:
        m, k, n = self.shape
        return {phase: factor * self.times * 2 * m * k * n for phase, factor in self.phases.items()}

    def has(self, dimensions: list[list[int]]) -> bool:
        """Whether operands of these dimensions are those of such a product, or of its backward."""
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
                h = torch.tanh(h)  # @ tanh
                h = h @ w  # @ product
            return h
    """, products=(Product(at=("step", "product"), shape=(16, 24, 24), times=30),)),
    Case(name="helper", source="""
        v, w, x = weight(24, 40), weight(40, 56), weight(16, 24)
        def helper(left, right):
            left = left * 2
            return left @ right  # @ product
        def step():
            h = helper(x, v)  # @ first
            return helper(h, w)  # @ second
    """, products=(
        Product(at=("step", "first", "product"), shape=(16, 24, 40)),
        Product(at=("step", "second", "product"), shape=(16, 40, 56)),
    )),
    Case(name="lambda", source="""
        v, w, x = weight(24, 40), weight(40, 56), weight(16, 24)
        apply = lambda h: h @ w  # @ product
        def step():
            return apply(
                x @ v  # @ argument
            )
    """, products=(
        Product(at=("step", "argument"), shape=(16, 24, 40)),
        Product(at=("product",), shape=(16, 40, 56)),
    )),
    Case(name="decorator", source="""
        import functools
        v, w, x = weight(24, 40), weight(40, 56), weight(16, 24)
        def followed(function):
            @functools.wraps(function)
            def inner(*arguments):
                h = function(*arguments)  # @ call
                return h @ w  # @ after
            return inner
        @followed
        @torch.enable_grad()
        def decorated(h):
            return h @ v  # @ inside
        def step():
            return decorated(x)
    """, products=(
        Product(at=("call", "inside"), shape=(16, 24, 40)),
        Product(at=("after",), shape=(16, 40, 56)),
    )),
    Case(name="checkpointing", source="""
        from torch.utils.checkpoint import checkpoint
        u, v, w, x = weight(24, 40), weight(40, 56), weight(56, 72), weight(16, 24)
        def block(h):
            h = torch.tanh(h @ u)  # @ first
            h = h @ v  # @ second
            return torch.tanh(h)
        def step():
            h = checkpoint(block, x, use_reentrant=False)  # @ block
            return h @ w  # @ head
    """, products=(
        Product(at=("first",), shape=(16, 24, 40), phases=RECOMPUTED),
        Product(at=("second",), shape=(16, 40, 56), phases=RECOMPUTED),
        Product(at=("step", "block", "first"), shape=(16, 24, 40), all=False),
        Product(at=("backward", "first"), shape=(16, 24, 40), phases={RECOMPUTE: 1}, all=False),
        Product(at=("step", "head"), shape=(16, 56, 72)),
    )),
    Case(name="compiled", source="""
        v, w, x = weight(24, 40), weight(40, 56), weight(16, 24)
        @torch.compile(backend="aot_eager")  # @ compiled
        def compiled(h):
            h = h * 2
            return torch.tanh(h @ v)
        def step():
            h = compiled(x)  # @ call
            return h @ w  # @ product
    """, products=(
        Product(at=("step", "call", "compiled"), shape=(16, 24, 40)),
        Product(at=("step", "product"), shape=(16, 40, 56)),
    )),
    Case(name="files of one name", source="""
        u, v, w, x = weight(24, 40), weight(40, 56), weight(56, 72), weight(16, 24)
        one, two = (beside(f"{name}/layer.py")["layer"] for name in ("one", "two"))
        def step():
            h = one(x, u)  # @ first
            h = two(h, v)
            return h @ w  # @ product
    """, beside={
        "one/layer.py": """
        def layer(h, w):
            return h @ w  # @ one
        """,
        "two/layer.py": """
        def layer(h, w):
            h = torch.tanh(h)
            return h @ w  # @ two
        """,
    }, products=(
        Product(at=("step", "first", "one"), shape=(16, 24, 40)),
        Product(at=("two",), shape=(16, 40, 56)),
        Product(at=("product",), shape=(16, 56, 72)),
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
            return typed(h, w)  # @ call
    """, beside={
        "123.py": """
        def cell(h, w):
            return h @ w  # @ cell
        """,
        "<ipython-input-3-0a1b>": """
        def typed(h, w):
            h = torch.tanh(h)
            return h @ w  # @ typed
        """,
    }, products=(
        Product(at=("cell",), shape=(16, 24, 40)),
        Product(at=("call", "typed"), shape=(16, 40, 56)),
    )),
    Case(name="comprehension", source="""
        w, x = weight(40, 56), weight(16, 24)
        parts = [weight(24, 40) for _ in range(3)]
        def step():
            made = [
                x @ part  # @ product
                for part in parts
            ]
            return sum(h @ w for h in made)  # @ generator
    """, products=(
        Product(at=("product",), shape=(16, 24, 40), times=3),
        Product(at=("generator",), shape=(16, 40, 56), times=3),
    )),
    Case(name="library", source="""
        class Mine(nn.Linear):
            def forward(self, h):
                h = torch.tanh(h)
                return super().forward(h)  # @ linear
        layers = nn.Sequential(nn.Linear(24, 40, bias=False), nn.ReLU(), Mine(40, 56, bias=False))
        x = weight(16, 24)
        def step():
            return layers(x)  # @ layers
    """, products=(
        Product(at=("step", "layers"), shape=(16, 24, 40)),
        Product(at=("step", "layers", "linear"), shape=(16, 40, 56)),
    )),
    Case(name="generators and coroutines", source="""
        import asyncio
        t, u, v, w, x = weight(24, 40), weight(24, 56), weight(56, 72), weight(72, 88), weight(16, 24)
        def sent():
            h = yield
            try:
                yield h @ t  # @ sent
            except ValueError:
                yield h @ u  # @ thrown
        async def awaited(h):
            await asyncio.sleep(0)
            return h @ v  # @ awaited
        def step():
            parts = sent()
            next(parts)
            first = parts.send(x)  # @ send
            second = parts.throw(ValueError)  # @ throw
            third = asyncio.run(awaited(second))  # @ run
            return third * (first * first).sum() @ w  # @ last
    """, products=(
        Product(at=("step", "send", "sent"), shape=(16, 24, 40)),
        Product(at=("step", "throw", "thrown"), shape=(16, 24, 56)),
        Product(at=("step", "run", "awaited"), shape=(16, 56, 72)),
        Product(at=("step", "last"), shape=(16, 72, 88)),
    )),
    Case(name="errors", source="""
        u, v, w, x = weight(24, 40), weight(24, 56), weight(56, 72), weight(16, 24)
        def fails(h):
            h = h @ u  # @ lost
            raise KeyError
        def step():
            try:
                fails(x)  # @ call
            except KeyError:
                h = x @ v  # @ caught
            finally:
                torch.ones(3).sum()
            return h @ w  # @ last
    """, products=(
        Product(at=("step", "call", "lost"), shape=(16, 24, 40), phases={FORWARD: 1}),
        Product(at=("step", "caught"), shape=(16, 24, 56)),
        Product(at=("step", "last"), shape=(16, 56, 72)),
    )),
    Case(name="recursion", source="""
        w, x = weight(24, 24), weight(16, 24)
        def again(h, times):
            h = h @ w  # @ product
            return again(h, times - 1) if times else h  # @ again
        def step():
            return again(x, 4)  # @ first
    """, products=(
        Product(at=("product",), shape=(16, 24, 24), times=5),
        Product(at=("step", "first", "product"), shape=(16, 24, 24), all=False),
        Product(at=("step", "first", *(["again"] * 4), "product"), shape=(16, 24, 24), all=False),
    )),
    Case(name="thread", source="""
        import threading
        v, w, x = weight(24, 40), weight(40, 56), weight(16, 24)
        def step():
            made = []
            thread = threading.Thread(target=lambda: made.append(x @ v))
            thread.start()
            thread.join()
            return made[0] @ w  # @ product
    """, products=(
        # The profiler records no other thread: of that product the backward alone, and where it is called.
        Product(at=("backward",), shape=(16, 24, 40), phases={BACKWARD: 2}),
        Product(at=("step", "product"), shape=(16, 40, 56)),
    )),
    Case(name="own backward", source="""
        w, x = weight(24, 40), weight(16, 24)
        class Own(torch.autograd.Function):
            @staticmethod
            def forward(context, h, w):
                context.save_for_backward(h, w)
                return h @ w  # @ forward
            @staticmethod
            def backward(context, gradient):
                h, w = context.saved_tensors
                of_h = gradient @ w.T  # @ of_h
                return of_h, h.T @ gradient  # @ of_w
        def step():
            return Own.apply(x, w)  # @ apply
    """, products=(
        Product(at=("step", "apply", "forward"), shape=(16, 24, 40), phases={FORWARD: 1}, all=False),
        Product(at=("of_h",), shape=(16, 24, 40), phases={BACKWARD: 1}, all=False),
        Product(at=("of_w",), shape=(16, 24, 40), phases={BACKWARD: 1}, all=False),
    )),
)  # fmt: skip
DIMENSIONS: Final = re.compile(r"\[([\d,]+)\]")


def own_times(events: list[Event], counted: set[str]) -> list[tuple[list[list[int]], float]]:
    """The dimensions and the own time (ns) of each product in these steps, by the file alone."""
    steps = [event for event in events if event.get("name") in counted]
    within = [
        event
        for event in events
        if event.get("cat") == "cpu_op" and any(step["ts"] <= event["ts"] < step["ts"] + step["dur"] for step in steps)
    ]
    made: list[tuple[list[list[int]], list[float]]] = []
    opened: list[tuple[int, float, list[float]]] = []
    for event in sorted(within, key=lambda event: (event["tid"], event["ts"], -event["dur"])):
        end = event["ts"] + event["dur"]
        opened = [other for other in opened if other[0] == event["tid"] and other[1] + ROUNDED_US >= end]
        if opened:
            opened[-1][2][0] -= event["dur"]
        opened.append((event["tid"], end, own := [event["dur"]]))
        if event["name"] in ("aten::mm", "aten::addmm"):
            made.append((event["args"]["Input Dims"], own))
    return [(dimensions, 1000 * own[0]) for dimensions, own in made]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cost_by_line(case: Case, tmp_path: Path) -> None:
    """FLOPs are those of the shapes; the time is that of the operators with these shapes to the nanosecond, and about
    that of the products in the file."""
    script = Script(tmp_path, case.source, beside=case.beside)
    anatomy = script.record()
    counted = {f"ProfilerStep#{row.number}" for row in anatomy.step.steps if row.set_aside is None}
    in_file = own_times(script.events(), counted)
    for one in case.products:
        rows = rows_of(anatomy, *map(script.line, one.at))
        assert flops_of(rows, anatomy) == one.flops
        if one.all:
            operators = [
                row
                for row in anatomy.operators
                if row.operator_class is CONTRACTION
                and one.has([list(map(int, sizes.split(","))) for sizes in DIMENSIONS.findall(str(row.signature))])
            ]
            assert times_of(rows) == times_of(operators)
            whole = sum(time for dimensions, time in in_file if one.has(dimensions))
            assert sum(times_of(rows).values()) == pytest.approx(whole, rel=0.05)


def test_a_module_of_torch_is_the_line_that_calls_it(tmp_path: Path) -> None:
    """Attention has the three projections of its input and that of its output, the scores and what they weigh."""
    batch, length, width = 3, 8, 24
    script = Script(
        tmp_path,
        """
        class Mine(nn.MultiheadAttention):
            def forward(self, h):
                h = torch.tanh(h)
                return super().forward(h, h, h)[0]  # @ attention
        attention, x = Mine(24, 2, batch_first=True), weight(3, 8, 24)
        def step():
            return attention(x)  # @ call
        """,
    )
    anatomy = script.record()
    rows = rows_of(anatomy, *map(script.line, ("step", "call", "attention")))
    forward = 4 * 2 * batch * length * width * width + 2 * 2 * batch * length * length * width
    assert flops_of(rows, anatomy) == {FORWARD: forward, BACKWARD: 2 * forward}
    classes = [row for row in anatomy.classes if row.operator_class is CONTRACTION]
    assert times_of(rows) == {row.phase: row.time_ns for row in classes}


# ------------------------------------------------------------------------------------------------------------- the sums

MODEL: Final = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(24, 40), nn.Linear(40, 24)
    def forward(self, h):
        h = torch.relu(self.up(h))
        return self.down(h)
net, batch = Net(), torch.randn(16, 24)
optimizer = torch.optim.AdamW(net.parameters())
rare = weight(16, 88), weight(88, 104)
seen = []
def step():
    seen.append(sys.gettrace() is not None)
    if seen[-1]:
        torch.mm(*rare)
    return net(batch)
"""
TRAINING: Final = """
def main(recorder, iterations):
    for _ in range(iterations):
        output = step()  # @ step
        loss = (output * output).mean()
        loss.backward()  # @ backward
        optimizer.step()  # @ optimizer
        optimizer.zero_grad()
        recorder.step()
"""


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Script:
    """A training whose step by line alone multiplies `rare`."""
    return Script(tmp_path_factory.mktemp("training"), MODEL, loop=TRAINING)


@pytest.fixture(scope="module")
def by_line(training: Script) -> results.Anatomy:
    return training.record()


def test_each_call_of_a_plain_training_has_a_line(training: Script, by_line: results.Anatomy) -> None:
    assert by_line.lines
    assert [row for row in by_line.lines if not row.stack] == []
    assert all(places(row.stack)[-1].startswith("train.py:") for row in by_line.lines)
    updates = [row for row in by_line.lines if row.phase is Phase.OPTIMIZER]
    assert {places(row.stack)[-1] for row in updates} == {training.line("optimizer")}
    assert {row.phase for row in by_line.lines} >= {FORWARD, BACKWARD}


def test_the_section_shows_the_whole(by_line: results.Anatomy, tmp_path: Path) -> None:
    """Its rows, the rest in their last, sum to the work of a step; the report that is read again has the same lines."""
    (section,) = [section for section in sections_of(by_line) if section.name == "lines"]
    times = [row.cells["time"] for row in section.rows]
    shown = sum(cell.ns or 0 for cell in times if isinstance(cell, Time))
    assert shown == pytest.approx(sum(row.time_ns for row in by_line.classes) / by_line.step.count)
    by_line.to_json(tmp_path / "report.json")
    again = opanatomy.read(tmp_path / "report.json")
    assert isinstance(again, Anatomy)
    assert again.lines == by_line.lines
    assert "train.py" in json.dumps(by_line.chart("lines").to_dict())


def test_no_figure_comes_from_the_step_by_line(training: Script, by_line: results.Anatomy) -> None:
    """What it alone ran is nowhere; a recording without it has the same calls, and neither lines nor their section."""
    plain = training.record(lines=False)
    assert plain.lines == ()
    assert plain.step.by_line_ns is None
    assert "lines" not in {section.name for section in sections_of(plain)}
    assert not [event for event in training.events() if event.get("name", "").startswith((LINES_STEP, LINE_RANGE))]
    with pytest.raises(opanatomy.OpanatomyError, match="lines"):
        plain.chart("lines")

    def calls(anatomy: Anatomy) -> Counter[tuple[Any, ...]]:
        made: Counter[tuple[Any, ...]] = Counter()
        for row in anatomy.operators:
            # An update has the number of the step among its arguments.
            arguments = "" if row.phase is Phase.OPTIMIZER else str(row.signature)
            key = row.operator, arguments, row.phase, row.part_of
            made[(*key, "calls")] += row.calls
            made[(*key, "flops")] += row.flops or 0
        return Counter({key: count / anatomy.step.count for key, count in made.items()})

    assert by_line.step.by_line_ns is not None
    assert by_line.step.by_line_ns > 0
    assert len(by_line.step.steps) == len(plain.step.steps) == STEPS
    assert calls(by_line) == calls(plain)
    assert not [row for row in by_line.operators if "88,104" in str(row.signature)]


# ------------------------------------------------------------------ recorded stacks, and a number of calls that changes


def test_a_recorded_stack_has_functions(tmp_path: Path) -> None:
    """Of a trace with `with_stack=True` each function of the user has a row, with the line where it begins; torch's and
    those of what is installed are in the one that calls them."""
    script = Script(
        tmp_path,
        """
        v, w, x = weight(24, 40), weight(40, 56), weight(16, 24)
        linear = beside("site-packages/made/linear.py")["linear"]
        def helper(h):  # @ helper
            h = h * 2
            return linear(h, v)
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(56, 72)
            @torch.enable_grad()
            def forward(self, h):
                return self.layer(torch.tanh(h))
        net = Net()
        def step():  # @ function
            return net(helper(x) @ w)
        """,
        beside={
            "site-packages/made/linear.py": """
            def linear(h, w):
                return h @ w
            """
        },
    )
    module = script.run()
    module.step()
    with torch.profiler.profile(record_shapes=True, with_stack=True) as profiler:
        for number in range(STEPS):
            with torch.profiler.record_function(f"ProfilerStep#{number}"):
                output = module.step()
                (output * output).sum().backward()
    profiler.export_chrome_trace(str(script.trace))
    anatomy = opanatomy.analyze(script.trace)
    check_sums(anatomy)
    assert anatomy.step.by_line_ns is None
    flops: Counter[tuple[str, Phase]] = Counter()
    for row in anatomy.lines:
        if row.operator_class is CONTRACTION:
            flops[row.stack.rpartition(";")[2].partition(" ")[2], row.phase] += (row.flops or 0) // anatomy.step.count
    of = {"helper": 2 * 16 * 24 * 40, "step": 2 * 16 * 40 * 56, "forward": 2 * 16 * 56 * 72}
    assert flops == {(name, phase): TRAINED[phase] * of[name] for name in of for phase in TRAINED}
    assert rows_of(anatomy, script.line("function"), script.line("helper"))
    assert "torch" not in "".join(row.stack for row in anatomy.lines).replace("test_lines", "")


@pytest.mark.parametrize(
    ("name", "text", "of_library"),
    [
        ("train.py(12): main", "train.py:12 main", False),
        ("/home/me/project/model.py(40): forward", "model.py:40 forward", False),
        ("C:\\work\\model.py(40): forward", "model.py:40 forward", False),
        ("<ipython-input-3-0a1b>(2): cell", "<ipython-input-3-0a1b>:2 cell", False),
        ("/tmp/ipykernel_1/123.py(4): <module>", "123.py:4 <module>", False),
        ("transformers/models/bert/modeling_bert.py(9): forward", "modeling_bert.py:9 forward", True),
        ("/venv/lib/python3.11/site-packages/made/layer.py(3): call", "layer.py:3 call", True),
        ("/usr/lib/python3/dist-packages/made/layer.py(3): call", "layer.py:3 call", True),
        ("torch/nn/modules/linear.py(134): forward", None, False),
        ("/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py(134): forward", None, False),
        ("/usr/lib/python3.11/threading.py(982): run", None, False),
        ("threading.py(982): run", None, False),
        ("contextlib.py(78): inner", None, False),
        ("nn.Module: Linear_0", None, False),
        ("<built-in method linear of type object at 0x7f>", None, False),
        ("<frozen importlib._bootstrap>(1165): _find_and_load", None, False),
    ],
)
def test_functions_of_recorded_stacks(name: str, text: str | None, of_library: bool) -> None:
    """Torch's functions and Python's own have no number; those of what is installed are told from the user's."""
    functions = Functions()
    number = functions[name]
    assert functions[name] == number
    assert (functions.texts, functions.of_library) == (([text], [of_library]) if text else ([], []))
    assert number == (-1 if text is None else 0)


@pytest.mark.parametrize("with_users", [True, False])
def test_functions_of_libraries_count_where_no_others_are(with_users: bool, tmp_path: Path) -> None:
    trace = TraceBuilder()
    trace.step(0, 100)
    if with_users:
        trace.event("python_function", "train.py(12): main", 2, 96, {})
    trace.event("python_function", "transformers/models/bert/modeling_bert.py(9): forward", 5, 80, {})
    trace.event("python_function", "torch/nn/modules/linear.py(134): forward", 8, 60, {})
    trace.host("aten::mm", 10, 20, **MATRICES)
    anatomy = trace.analyze(tmp_path)
    assert [row.stack for row in anatomy.lines] == ["train.py:12 main" if with_users else "modeling_bert.py:9 forward"]


@pytest.mark.parametrize(("known", "unknown"), [(20, 0), (20, 10), (10, 20)])
def test_an_amount_that_is_known_of_a_part_is_a_lower_bound(known: int, unknown: int, tmp_path: Path) -> None:
    """Of two products, one without its shapes, of lines and of modules: below half of the time nothing is said."""
    trace = TraceBuilder()
    trace.step(0, 100)
    trace.event("python_function", "train.py(12): main", 2, 96, {})
    trace.annotation("opanatomy.module/layer", 4, 90)
    trace.host("aten::mm", 10, known, **MATRICES)
    if unknown:
        trace.host("aten::mm", 50, unknown)
    anatomy = trace.analyze(tmp_path)
    (line,), (module,) = anatomy.lines, anatomy.modules
    uncosted = sum(row.uncosted_ns for row in anatomy.operators)
    assert line.uncosted_ns == module.uncosted_ns == uncosted == unknown * US
    told = {section.name: section for section in sections_of(anatomy)}
    flops, moved = told["lines"].rows[0].cells["FLOP"], told["lines"].rows[0].cells["bytes"]
    assert isinstance(flops, Flops)
    assert isinstance(moved, Bytes)
    assert (flops.flops, moved.bytes) == (
        (2 * 8 * 4 * 2, 4 * (8 * 4 + 4 * 2 + 8 * 2)) if known > unknown else (None, None)
    )
    assert flops.at_least == moved.at_least == (0 < unknown < known)


VARYING: Final = """
u, v, w, x = weight(24, 40), weight(24, 40), weight(40, 56), weight(16, 24)
def step():
    times = 3 if sys.gettrace() else 2
    parts = [x @ v]  # @ once
    for _ in range(times):
        h = x @ u  # @ varies
        parts.append(h)
    made = torch.stack(parts).sum(0)
    for _ in range(times):
        made = made + h
        made = made @ w @ w.T  # @ one
    return made
"""


def test_calls_of_another_number_have_no_line_unless_all_have_the_same(tmp_path: Path) -> None:
    """Three calls from two lines are four in the step by line: which is whose is unknown; those alike of one line
    are known however many there are."""
    script = Script(tmp_path, VARYING)
    anatomy = script.record()
    m, k, n = 16, 24, 40
    assert flops_of(rows_of(anatomy, ""), anatomy) == {FORWARD: 3 * 2 * m * k * n, BACKWARD: 2 * 3 * 2 * m * k * n}
    known = flops_of(rows_of(anatomy, script.line("one")), anatomy)
    assert known == {phase: factor * 2 * 2 * 2 * 16 * 40 * 56 for phase, factor in TRAINED.items()}
    assert not rows_of(anatomy, script.line("once")) + rows_of(anatomy, script.line("varies"))


def test_a_number_that_another_shape_makes_up_for_gives_no_wrong_line(tmp_path: Path) -> None:
    """One call less of a shape and one more of another: as many products in all, yet none takes another's line."""
    script = Script(
        tmp_path,
        """
        t, u, v, x = weight(24, 24), weight(24, 24), weight(24, 40), weight(16, 24)
        def step():
            times = 2 if sys.gettrace() else 3
            h = x
            for _ in range(times):
                h = h @ t  # @ first
            h = h @ u  # @ second
            parts = []
            for _ in range(5 - times):
                part = h @ v  # @ third
                parts.append(part)
            return torch.stack(parts)
        """,
    )
    anatomy = script.record()
    forward = {
        mark: flops_of(rows_of(anatomy, script.line(mark)), anatomy).get(FORWARD, 0) for mark in ("first", "second")
    }
    assert forward["first"] in (0, 3 * 2 * 16 * 24 * 24)
    assert forward["second"] in (0, 2 * 16 * 24 * 24)
    assert flops_of(rows_of(anatomy, script.line("third")), anatomy)[FORWARD] == 2 * 2 * 16 * 24 * 40


# --------------------------------------------------------------------------------------------------------------- memory


def test_memory_by_line_sums_to_the_peak(tmp_path: Path) -> None:
    """The line that fills the peak is the one whose result is the largest, kept for backward."""
    script = Script(
        tmp_path,
        """
        v, w, x = weight(24, 400), weight(400, 8), weight(64, 24)
        def step():
            h = x @ v  # @ product
            h = torch.exp(h)  # @ kept
            return h @ w
        """,
    )
    anatomy = script.record(memory=True)
    parts = [part for part in anatomy.memory.parts if part.of == "line"]
    assert sum(part.bytes for part in parts) == anatomy.memory.peak_bytes
    assert {part.of for part in anatomy.memory.parts} == {"line"}
    kept = max((part for part in parts if part.component == "forward_activations"), key=lambda part: part.bytes)
    assert (kept.name, kept.function) == (script.line("kept"), "step")
    assert (kept.blocks, kept.bytes) == (1, 64 * 400 * 4)
    assert rows_of(anatomy, script.line("product"))


# ---------------------------------------------------------------------------------------------- what is left of tracing

SMALL: Final = """
w, x = weight(24, 40), weight(16, 24)
def step():
    if sys.gettrace() and BREAKS:
        raise KeyError("inside")
    h = torch.tanh(x)
    return h @ w  # @ product
BREAKS = False
"""


def test_under_a_debugger_nothing_is_traced(tmp_path: Path) -> None:
    """The tracer of a debugger stays, and traces; all other figures are there."""
    script = Script(tmp_path, SMALL)
    called: Counter[str] = Counter()

    def tracer(frame: FrameType, _event: str, _: Any) -> None:
        if frame.f_code.co_filename == str(script.file):
            called[frame.f_code.co_name] += 1

    sys.settrace(tracer)
    try:
        anatomy = script.record(memory=True)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(None)
    assert called["step"] == ITERATIONS
    assert anatomy.lines == ()
    assert not [part for part in anatomy.memory.parts if part.of == "line"]
    assert anatomy.memory.peak_bytes
    assert anatomy.operators
    assert not [event for event in script.events() if event.get("name", "").startswith(LINE_RANGE)]


def test_an_error_in_the_step_by_line_goes_its_way(tmp_path: Path) -> None:
    script = Script(tmp_path, SMALL.replace("BREAKS = False", "BREAKS = True"))
    with pytest.raises(KeyError, match="inside"):
        script.record()
    assert sys.gettrace() is None
    assert not torch._C._autograd._profiler_enabled()
    assert not script.trace.exists()


def test_a_loop_that_ends_before_its_step_by_line_says_so(tmp_path: Path) -> None:
    script = Script(tmp_path, SMALL)
    main = script.run().main
    with opanatomy.record(script.trace, lines=True, steps=STEPS, warmup=WARMUP) as recorder:
        main(recorder, WARMUP + STEPS)
    assert recorder.anatomy.lines == ()
    assert recorder.anatomy.operators
    assert [warning for warning in recorder.anatomy.warnings if "line" in warning]


def test_a_loop_in_another_thread_has_lines(tmp_path: Path) -> None:
    script = Script(tmp_path, SMALL)
    made: list[Any] = []

    def work() -> None:
        made.append(script.record())
        made.append(sys.gettrace())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    anatomy, tracer = made
    assert tracer is None
    assert set(flops_of(rows_of(anatomy, script.line("step"), script.line("product")), anatomy)) == set(TRAINED)


def test_of_a_function_that_runs_very_often_lines_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many events its work is told by the function, after twice as many calls by its caller's line; none of
    the work is lost."""
    # The limit of a run is so high that the function would have to run for a while.
    monkeypatch.setattr(profiled, "line_ranges", partial(line_ranges, most=50))
    script = Script(
        tmp_path,
        """
        v, w, x = weight(24, 24), weight(24, 40), weight(16, 24)
        def often(h):
            return h @ v  # @ often
        def step():
            h = calls(x)
            for _ in range(40):
                y = h @ w  # @ loop
            return y
        def calls(h):
            for _ in range(200): h = often(h)  # @ calls
            return h
        """,
    )
    anatomy = script.record()

    def told(shape: tuple[int, int, int], *functions: str) -> dict[str, int]:
        """How many products in forward each place in these functions has."""
        made: Counter[str] = Counter()
        for row in anatomy.lines:
            place = row.stack.rpartition(";")[2]
            if (row.operator_class, row.phase) == (CONTRACTION, FORWARD) and place.split()[-1] in functions:
                made[place] += flops_of([row], anatomy)[FORWARD] // (2 * prod(shape))
        return dict(made)

    in_step = told((16, 24, 40), "step")
    assert set(in_step) == {f"{script.line('loop')} step", "train.py step"}
    assert sum(in_step.values()) == 40
    assert 0 < in_step[f"{script.line('loop')} step"] <= 25
    in_calls = told((16, 24, 24), "often", "calls")
    assert set(in_calls) == {f"{script.line('often')} often", "train.py often", f"{script.line('calls')} calls"}
    assert sum(in_calls.values()) == 200
    assert 0 < in_calls[f"{script.line('often')} often"] <= 50


# --------------------------------------------------------------------------------------------- profile, run and Trainer


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(24, 40, bias=False)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(h)
        made: torch.Tensor = self.layer(h)  # @ profiled
        return made


def here(mark: str) -> str:
    """The line of this file that has this mark."""
    texts = Path(__file__).read_text().splitlines()
    (number,) = [number for number, text in enumerate(texts, 1) if MARK.findall(text) == [mark]]
    return f"{Path(__file__).name}:{number}"


@pytest.mark.usefixtures("one_timed_step")
def test_profile(tmp_path: Path) -> None:
    anatomy = opanatomy.profile(Net(), torch.randn(16, 24), lines=True, memory=True, warmup=1)
    check_sums(anatomy)
    rows = rows_of(anatomy, here("profiled"))
    assert flops_of(rows, anatomy) == {FORWARD: 2 * 16 * 24 * 40, BACKWARD: 2 * 16 * 24 * 40}  # of the weight alone
    assert sum(part.bytes for part in anatomy.memory.parts if part.of == "line") == anatomy.memory.peak_bytes


@pytest.mark.usefixtures("one_timed_step")
def test_profile_has_the_lines_of_an_installed_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
        from torch import nn
        class Installed(nn.Linear):
            def forward(self, h):
                return super().forward(h)  # @ installed
    """
    script = Script(tmp_path, "", beside={"site-packages/made_installed.py": source}, loop="")
    module = loaded("made_installed", tmp_path / "site-packages" / "made_installed.py")
    monkeypatch.setitem(sys.modules, "made_installed", module)
    net = module.Installed(24, 40)
    anatomy = opanatomy.profile(net, torch.randn(16, 24), lines=True, warmup=1)
    place = script.line("installed").rpartition("/")[2]
    assert flops_of(rows_of(anatomy, place), anatomy) == {FORWARD: 2 * 16 * 24 * 40, BACKWARD: 2 * 16 * 24 * 40}


def test_run(tmp_path: Path) -> None:
    """A script's lines, from outermost to innermost, without those of what runs it."""
    text = """
        from torch import nn
        import torch
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(24, 40)
            def forward(self, h):
                return self.layer(h)  # @ layer
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(24):
            loss = net(torch.randn(16, 24)).square().mean()  # @ forward
            loss.backward()
            optimizer.step()
    """
    script = Script(tmp_path, text, loop="")
    done = python(*UNDER, "--lines", "--trace", "step.json.gz", "-o", "report.json", script.file, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.json").exists(), done.stderr
    anatomy = opanatomy.read(tmp_path / "report.json")
    assert isinstance(anatomy, Anatomy)
    check_sums(anatomy)
    check_ranges(script.events())
    layer = f"{script.line('forward')} <module>;{script.line('layer')}"
    rows = [row for row in anatomy.lines if row.stack.startswith(layer) and row.operator_class is CONTRACTION]
    assert flops_of(rows, anatomy) == {FORWARD: 2 * 16 * 24 * 40, BACKWARD: 2 * 16 * 24 * 40}
    assert all(row.stack.startswith("train.py") for row in anatomy.lines if row.stack)


def test_trainer(tmp_path: Path) -> None:
    """A model of transformers is in the line of the user's that calls it."""
    from accelerate.state import AcceleratorState
    from transformers import Trainer

    from tests.support.trainings import trainer

    class Own(Trainer):  # type: ignore[misc]
        def compute_loss(self, *arguments: Any, **options: Any) -> Any:
            made = super().compute_loss(*arguments, **options)  # @ trained
            return made

    callback = opanatomy.TrainerCallback(range(3, 5), tmp_path / "step.json", lines=True)
    try:
        trainer(callback, folder=tmp_path, kind=Own).train()
    finally:
        AcceleratorState._reset_state(True)
    anatomy = callback.anatomy
    check_sums(anatomy)
    assert anatomy.step.by_line_ns is not None
    rows = rows_of(anatomy, here("trained"))
    products = {row.phase: row.flops for row in anatomy.classes if row.operator_class is CONTRACTION}
    assert {phase: flops * anatomy.step.count for phase, flops in flops_of(rows, anatomy).items()} == products
    assert not [row for row in anatomy.lines if "modeling_bert" in row.stack or "site-packages" in row.stack]


# ------------------------------------------------------------------------------------------------ lines that are missed


def loop(iterations: int, folder: Path, *, warmup: int | None = None, steps: bool = True) -> opanatomy.Anatomy:
    """A recorded loop of so many iterations, each with one product."""
    x, w = torch.randn(16, 24), torch.randn(24, 24, requires_grad=True)
    with opanatomy.record(folder / "t.json.gz", lines=True, warmup=warmup, force=True) as recorder:
        for _ in range(iterations):
            (x @ w).sum().backward()
            if steps:
                recorder.step()
    return recorder.anatomy


def test_lines_that_could_not_be_told_are_missed_aloud(tmp_path: Path) -> None:
    """A loop that ends too early, a block without step(), another tracer: no line, and the reason."""
    assert loop(14, tmp_path).lines
    assert loop(3, tmp_path, warmup=0).lines
    early = loop(6, tmp_path)
    assert (early.lines, early.step.by_line_ns) == ((), None)
    assert [warning for warning in early.warnings if "step that is traced line by line" in warning]
    block = loop(1, tmp_path, steps=False)
    assert block.lines == ()
    assert [warning for warning in block.warnings if "a block without step()" in warning]

    def tracer(*_: object) -> None: ...

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        traced = loop(14, tmp_path)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
    assert traced.lines == ()
    assert [warning for warning in traced.warnings if "is tracing Python in this process" in warning]


def test_a_step_without_a_line_of_the_users_says_so(tmp_path: Path) -> None:
    """A compiled model under `profile`: all its own code is compiled, the rest is the tool's."""
    anatomy = loop(14, tmp_path)
    assert anatomy.step.by_line_ns is not None
    over = merge_steps([anatomy.step, replace(anatomy.step, by_line_ns=3 * anatomy.step.by_line_ns)])
    assert over.by_line_ns == 3 * anatomy.step.by_line_ns
    script = """
        import torch
        from functools import partial
        from opanatomy.capture.run.profiled import profile_steps
        made = profile_steps(
            partial(torch.mm, torch.ones(4, 4), torch.ones(4, 4)), steps=1, device="cpu", begin=int, lines=True
        )
        print(made.why_no_lines)
    """
    said = subprocess.run([sys.executable, "-c", dedent(script)], capture_output=True, text=True, check=True).stdout
    assert "the step runs no line of your code" in said
