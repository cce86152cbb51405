"""The headline: what costs most of the step comes first, whatever kind it is, with a command that says more."""

from __future__ import annotations

import shlex

import pytest
from msgspec.structs import replace

from opanatomy.cli.parser import make_parser
from opanatomy.records.anatomy import Anatomy, Step, StepRow, Timeline
from opanatomy.records.communication import Straggler
from opanatomy.records.memory import Memory, MemoryFailure
from opanatomy.records.signature import SignatureText
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.work import OperatorRow
from opanatomy.records.workload import Environment
from opanatomy.report.formats import format_named
from opanatomy.report.section import Page
from tests.support import anatomies
from tests.support.made_reports import COMMUNICATION, CONTRACTION, ELEMENTWISE, NORMALIZATION, Row, made, of_ranks

SOURCE = "'a trace.json.gz'"


def operator(name: str, item: OperatorClass, time_ns: int) -> OperatorRow:
    return OperatorRow(
        operator=name,
        signature=SignatureText(""),
        phase=Phase.FORWARD,
        operator_class=item,
        rule="",
        calls=1,
        time_ns=time_ns,
        flops=None,
        read_bytes=None,
        written_bytes=None,
    )


def on_cpu(framework: int, *rows: Row, **step: int | None) -> Anatomy:
    anatomy = made(*rows)
    busy = anatomy.timeline.busy_ns
    whole = busy + framework
    return replace(
        anatomy,
        environment=Environment(device_kind="cpu"),
        step=Step(wall_ns=whole, framework_ns=framework, steps=(StepRow(number=1, wall_ns=whole),), **step),
        timeline=Timeline(window_ns=whole, busy_ns=busy, idle_ns=framework),
    )


def headline(anatomy: Anatomy, source: str | None = SOURCE) -> tuple[str, list[str]]:
    """The first sentences of the page and the commands below them."""
    text = format_named("terminal").write(anatomy, Page(width=200, source=source, sections=("headline",)))
    text = text.split("\n", 1)[1]
    sentences, _, commands = text.partition("next:")
    return " ".join(sentences.split()), [
        line.strip() for line in commands.replace("next:", "\n").split("\n") if line.strip()
    ]


LATE = Straggler(
    rank=1,
    trace="rank-1.json",
    charged_ns=80,
    waiting_ns=100,
    last=3,
    lead_ns=5,
    computing_longer_ns=7,
    idle_longer_ns=2,
)
IDLE, LAUNCHING = "The device is idle for", "while the host runs operators and launches kernels"
NOT_KNOWN = "Framework and profiler overhead (not separable) takes 60.0 % of the step."
BOTH = ((CONTRACTION, 90), (ELEMENTWISE, 10))
HEADLINES: list[tuple[Anatomy, str, str]] = [
    (made((CONTRACTION, 37), operators=63), f"{IDLE} 63.0 % of the step, {LAUNCHING}.", "idle"),
    (made((CONTRACTION, 40), operators=20, stream=40),
     f"{IDLE} 60.0 % of the step, mostly while work waits for another stream.", "idle"),
    (made((CONTRACTION, 40), operators=24, stream=16, unknown=20),
     f"{IDLE} 60.0 % of the step, 24.0 % {LAUNCHING},"
     " 20.0 % at times that the trace does not explain.", "idle"),
    (made((CONTRACTION, 40), unknown=60),
     f"{IDLE} 60.0 % of the step, at times that the trace does not explain.",
     "idle"),
    (made((CONTRACTION, 45), (COMMUNICATION, 55), exposed=55),
     "Exposed communication takes 55.0 % of the step.", "communication"),
    (of_ranks(50, 10, 40, LATE),
     "Waiting for other ranks takes 50.0 % of the step on average; rank 1 causes 80.0 % of the waiting.", "waiting"),
    (of_ranks(10, 50, 40),
     "Exposed communication takes 60.0 % of the step (10.0 % waiting for other ranks).", "communication"),
    (anatomies.with_tables(made((CONTRACTION, 60, 9), (NORMALIZATION, 5)),
             operators=(replace(operator("aten::mm", CONTRACTION, 60), bound_ns=30, bound_by="compute"),)),
     "Tensor contractions (all mm) take 92.3 % of the step and run at 50.0 % of peak.", "roofline"),
    (anatomies.with_tables(made((ELEMENTWISE, 90), (CONTRACTION, 10)),
             operators=(operator("aten::bernoulli_", ELEMENTWISE, 80), operator("aten::mul", ELEMENTWISE, 10))),
     "Element-wise operators (mostly bernoulli_) take 90.0 % of the step.", "operators"),
    (made((OperatorClass.UNKNOWN, 70), (CONTRACTION, 30)), "Unclassified work takes 70.0 % of the step.",
     "ledger"),
    (on_cpu(60, (CONTRACTION, 40)), NOT_KNOWN, "operators"),
    (on_cpu(60, (CONTRACTION, 40), unprofiled_wall_ns=70, profiler_ns=10),
     "Framework overhead (dispatch, autograd, Python) takes 60.0 %", "operators"),
    # It leaves more than the whole step without the profiler takes.
    (on_cpu(60, (CONTRACTION, 40), unprofiled_wall_ns=50, profiler_ns=10), NOT_KNOWN, "operators"),
    # Hidden communication costs nothing; what is small is not said.
    (made((CONTRACTION, 50), (COMMUNICATION, 50)), "Tensor contractions take 100.0 % of the step.", "kernels"),
    (made((CONTRACTION, 86), (ELEMENTWISE, 14)), "Tensor contractions take 86.0 % of the step.", "kernels"),
    # Phases beside forward and backward are named where they are much.
    (made((CONTRACTION, 55), (ELEMENTWISE, 20, None, Phase.OPTIMIZER), (CONTRACTION, 25, None, Phase.RECOMPUTE)),
     "Tensor contractions take 80.0 % of the step. Recomputing activations (checkpointing) takes 25.0 % of"
     " the step.", "kernels"),
    (replace(made(*BOTH), memory=Memory(peak_bytes=950)),
     "Tensor contractions take 90.0 % of the step. Memory is nearly full:"
     " 950 B of the device's 1.00 kB.", "kernels"),
    (replace(made(*BOTH), memory=Memory(peak_bytes=890)), "Tensor contractions take 90.0 % of the step.",
     "kernels"),
    # Without steps it is of what lies between the first and the last work; other steps' work is no cost.
    (made((CONTRACTION, 50), operators=10, around=40, number=None),
     f"Tensor contractions take 83.3 % of the trace. {IDLE} 16.7 % of the trace", "kernels"),
    (made((CONTRACTION, 60), operators=20, outside=20),
     f"Tensor contractions take 75.0 % of the step. {IDLE} 25.0 % of the step", "kernels"),
]  # fmt: skip


@pytest.mark.parametrize(("anatomy", "words", "section"), HEADLINES, ids=range(len(HEADLINES)))
def test_the_largest_cost_is_the_headline(anatomy: Anatomy, words: str, section: str) -> None:
    sentences, commands = headline(anatomy)
    assert sentences.startswith(words)
    assert sentences == words or section != "kernels" or not words.endswith(".")
    parsed = make_parser().parse_args(shlex.split(commands[0])[1:])
    assert parsed.trace == ["a trace.json.gz"]
    assert section in parsed.section[0].split(",")
    # Nothing to call the trace by: the same options, and no name that is made up.
    assert SOURCE not in " ".join(headline(anatomy, None)[1])


def test_nothing_to_explain() -> None:
    assert headline(made())[0] == "There is no device work in this trace: nothing to explain."
    failure = MemoryFailure(phase=Phase.BACKWARD, message="", requested_bytes=8_000_000_000)
    failed = replace(made(), memory=Memory(failure=failure))
    assert headline(failed)[0].startswith("The step does not fit into memory.")


def test_the_commands() -> None:
    """One for both findings where both are sections of the report; a model that a command can name is tried with
    techniques as it was run, one that was changed by more than a command is not; without a trace there is nothing to
    look at again."""
    bert = replace(anatomies.bert_on_cpu(), advice=())  # which has commands of its own
    techniques = "opanatomy techniques google-bert/bert-large-uncased --batch 4"
    assert headline(bert)[1] == [f"{techniques} --optimizer adamw"]
    line = "opanatomy profile google-bert/bert-large-uncased --layers=2 --lora --memory --steps 3 -o x.json --amp bf16"
    other = replace(bert, provenance=replace(bert.provenance, command=line))
    tried = "opanatomy techniques google-bert/bert-large-uncased --layers=2 --lora --amp bf16"
    assert headline(other)[1] == [tried]
    work = replace(bert.workload, changes=("num_hidden_layers=2",))
    changed = replace(bert, workload=work, provenance=replace(bert.provenance, command="python train.py"))
    assert "--section" in headline(changed)[1][0]
    waits = made((CONTRACTION, 40), operators=60)
    assert headline(waits, "'my traces/a.json'")[1] == [
        "opanatomy analyze 'my traces/a.json' --section idle,kernels --top 30"
    ]
    assert headline(replace(waits, workload=bert.workload), "a.json")[1] == [
        "opanatomy analyze a.json --section idle",
        techniques,
    ]
    assert headline(of_ranks(60, 10, 30), "rank-*.json")[1] == [
        "opanatomy analyze rank-*.json --section waiting,kernels --top 30"
    ]
    assert headline(replace(waits, provenance=replace(waits.provenance, trace=None)), None)[1] == []
