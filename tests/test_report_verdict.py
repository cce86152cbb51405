"""The headline: what costs most of the step comes first, whatever kind it is, with a command that says more."""

from __future__ import annotations

import shlex

import pytest
from msgspec.structs import replace

from opanatomy.cli.parser import make_parser
from opanatomy.records.anatomy import Anatomy, ClassRow, IdleRow, OperatorRow, Step, StepRow, Timeline
from opanatomy.records.communication import ClockSetting, Rank, RankWaiting, StepParts, Straggler, Waiting
from opanatomy.records.memory import Memory, MemoryFailure, MemorySaving
from opanatomy.records.signature import SignatureText
from opanatomy.records.taxonomy import IdleCause, OperatorClass, Phase
from opanatomy.records.workload import Environment, Workload
from opanatomy.report.formats.terminal import sentence
from opanatomy.report.sections.verdict import Next, findings, headline, pattern_of
from tests import anatomies

CONTRACTION, ELEMENTWISE = OperatorClass.TENSOR_CONTRACTION, OperatorClass.ELEMENTWISE
NORMALIZATION, COMMUNICATION = OperatorClass.STATISTICAL_NORMALIZATION, OperatorClass.COMMUNICATION
GPU = Environment(device_kind="cuda", device_memory_bytes=1000)


def row(
    operator_class: OperatorClass,
    time_ns: int,
    flops: int | None = None,
    phase: Phase = Phase.FORWARD,
    bound: int | None = None,
) -> ClassRow:
    return ClassRow(
        operator_class=operator_class, phase=phase, calls=1, kernels=1, time_ns=time_ns, flops=flops, read_bytes=1,
        written_bytes=1, uncosted_ns=time_ns if flops is None else 0, bound_ns=bound,
        bounded_ns=0 if bound is None else time_ns,
    )  # fmt: skip


def operator(name: str, operator_class: OperatorClass, time_ns: int, phase: Phase = Phase.FORWARD) -> OperatorRow:
    return OperatorRow(
        operator=name, signature=SignatureText(""), phase=phase, operator_class=operator_class, rule="", calls=1,
        time_ns=time_ns, flops=None, read_bytes=None, written_bytes=None,
    )  # fmt: skip


def anatomy(
    *rows: ClassRow,
    operators: int = 0,
    stream: int = 0,
    unknown: int = 0,
    around: int | None = None,
    exposed: int = 0,
    number: int | None = 1,
) -> Anatomy:
    """One step on a GPU whose work runs one after the other, with so much idle time of each cause."""
    empty = anatomies.nothing()
    busy, idle = sum(item.time_ns for item in rows), operators + stream + unknown
    causes = {IdleCause.OPERATORS: operators, IdleCause.STREAM: stream, IdleCause.UNKNOWN: unknown}
    longest = sorted(causes.items(), key=lambda part: -part[1])
    timeline = Timeline(
        window_ns=busy + idle, busy_ns=busy, idle_ns=idle, host_idle_ns=operators + unknown, stream_idle_ns=stream,
        other_idle_ns=0, outside_ns=0, unrecorded_ns=0, around_ns=around, exposed_communication_ns=exposed,
        communication_ns=exposed, causes=tuple(IdleRow(cause=cause, time_ns=ns) for cause, ns in longest if ns),
    )  # fmt: skip
    step = Step(wall_ns=busy + idle, steps=(StepRow(number=number, wall_ns=busy + idle),))
    provenance = replace(empty.provenance, trace="a trace.json.gz")
    return replace(
        empty, provenance=provenance, classes=rows, environment=GPU, timeline=timeline, step=step, workload=Workload()
    )


def on_cpu(framework: int, *rows: ClassRow) -> Anatomy:
    busy = sum(item.time_ns for item in rows)
    whole = busy + framework
    return replace(
        anatomy(*rows), environment=Environment(device_kind="cpu"),
        step=Step(wall_ns=whole, framework_ns=framework, steps=(StepRow(number=1, wall_ns=whole),)),
        timeline=Timeline(window_ns=whole, busy_ns=busy, idle_ns=framework),
    )  # fmt: skip


def of_ranks(waiting_ns: int, transfer_ns: int, computing_ns: int, straggler: Straggler | None = None) -> Anatomy:
    """Two ranks whose steps are waiting, transfer and work of their own."""
    exposed, wall = waiting_ns + transfer_ns, waiting_ns + transfer_ns + computing_ns
    step = StepParts(
        number=1, wall_ns=wall, other_work_ns=computing_ns, transfer_ns=transfer_ns, waiting_ns=waiting_ns,
        unmatched_ns=0, idle_ns=0,
    )  # fmt: skip
    each = tuple(
        RankWaiting(
            rank=rank, trace=f"rank-{rank}.json", clock_offset_ns=0, calls=1, matched=1, transferring_ns=transfer_ns,
            waiting_ns=waiting_ns, charged_ns=0, steps=(step,),
        )
        for rank in (0, 1)
    )  # fmt: skip
    clocks = ClockSetting(was_set=False, collectives=1, within_ns=1, ended_too_early_before=0, ended_too_early=0)
    waiting = Waiting(
        ranks=2, world_size=2, is_lower_bound=False, by_number=1, by_order=0, by_time=0, clocks=clocks, each=each,
        collectives=(), straggler=straggler,
    )  # fmt: skip
    made = anatomy(row(CONTRACTION, computing_ns), row(COMMUNICATION, exposed), exposed=exposed)
    ranks = tuple(
        Rank(
            rank=rank, world_size=2, trace=f"rank-{rank}.json", trace_sha256=None, device=None, steps=1, wall_ns=wall,
            window_ns=wall, busy_ns=wall, idle_ns=0, kernel_time_ns=wall, communication_ns=exposed,
            exposed_communication_ns=exposed, exposed_memcpy_ns=0,
        )
        for rank in (0, 1)
    )  # fmt: skip
    return replace(made, waiting=waiting, ranks=ranks)


LATE = Straggler(
    rank=1, trace="rank-1.json", charged_ns=80, waiting_ns=100, last=3, lead_ns=5, computing_longer_ns=7,
    idle_longer_ns=2,
)  # fmt: skip


@pytest.mark.parametrize(
    ("made", "name", "words", "section"),
    [
        (
            anatomy(row(CONTRACTION, 37), operators=63), "idle",
            "The device is idle 63.0 % of the step, while the host ran operators and launched kernels.", "idle",
        ),
        (
            anatomy(row(CONTRACTION, 40), operators=20, stream=40), "idle",
            "The device is idle 60.0 % of the step, mostly while another stream was waited for.", "idle",
        ),
        (
            anatomy(row(CONTRACTION, 40), operators=24, stream=16, unknown=20), "idle",
            "The device is idle 60.0 % of the step, 40 % of that while the host ran operators and launched kernels,"
            " 33 % of that while nothing is recorded of the host.", "idle",
        ),
        (
            anatomy(row(CONTRACTION, 40), unknown=60), "idle",
            "The device is idle 60.0 % of the step, while nothing is recorded of the host.", "idle",
        ),
        (
            anatomy(row(CONTRACTION, 45), row(COMMUNICATION, 55), exposed=55), "communication",
            "Communication that no other work hides takes 55.0 % of the step.", "communication",
        ),
        (
            of_ranks(50, 10, 40, LATE), "waiting",
            "Waiting for other ranks, in collectives that keep the device busy, takes 50.0 % of the step on average;"
            " 80.0 % of all waiting is for rank 1.", "waiting",
        ),
        (
            of_ranks(10, 50, 40), "communication",
            "Communication that no other work hides takes 60.0 % of the step, 16.7 % of it waiting for other ranks.",
            "communication",
        ),
        (
            anatomy(row(CONTRACTION, 60, 9, bound=30), row(NORMALIZATION, 5)), "tensor_contraction",
            "Tensor contraction takes 92.3 % of the device work, at 50.0 % of its ceiling.", "roofline",
        ),
        (
            replace(anatomy(row(ELEMENTWISE, 90), row(CONTRACTION, 10)),
                    operators=(operator("aten::bernoulli_", ELEMENTWISE, 80), operator("aten::mul", ELEMENTWISE, 10))),
            "elementwise", "Element-wise work (most of it bernoulli_) takes 90.0 % of the device work.", "operators",
        ),
        (
            anatomy(row(OperatorClass.UNKNOWN, 70), row(CONTRACTION, 30)), "unknown",
            "Work that no rule knows takes 70.0 % of the device work.", "ledger",
        ),
        (
            on_cpu(60, row(CONTRACTION, 40)), "framework",
            "The framework and the profiler's own time, which is not known apart, take 60.0 % of the step.",
            "operators",
        ),
    ],
)  # fmt: skip
def test_the_largest_cost_is_the_headline(made: Anatomy, name: str, words: str, section: str) -> None:
    first, *others = findings(made, source="'a trace.json.gz'")
    assert (first.name, sentence(first.text)) == (name, words)
    assert all((other.share or 0) <= (first.share or 0) for other in others)
    assert sentence(headline(made)[0]).startswith(words)
    assert first.next is not None
    assert first.next.whole
    parsed = make_parser().parse_args(shlex.split(first.next.text)[1:])
    assert (parsed.trace, parsed.section) == (["a trace.json.gz"], [section])
    # Nothing to call the trace by: the same options, and no name that is made up.
    (alone, *_) = findings(made)
    assert alone.next == Next(text=first.next.text.removeprefix("opanatomy analyze 'a trace.json.gz' "), whole=False)


def test_the_parts_of_the_time_are_all_of_it() -> None:
    """No time is counted twice, none is left out."""
    for made in (
        anatomy(
            row(CONTRACTION, 30), row(ELEMENTWISE, 20), row(COMMUNICATION, 20), operators=25, unknown=5, exposed=20
        ),
        of_ranks(20, 30, 50),
        on_cpu(20, row(CONTRACTION, 40), row(NORMALIZATION, 40)),
    ):
        assert sum(finding.share or 0 for finding in findings(made)) == pytest.approx(1)


def test_hidden_communication_costs_nothing() -> None:
    hidden = anatomy(row(CONTRACTION, 50), row(COMMUNICATION, 50), exposed=0)
    assert [finding.name for finding in findings(hidden)] == ["tensor_contraction"]


def test_phases_beside_forward_and_backward_are_named_where_they_are_much() -> None:
    made = anatomy(
        row(CONTRACTION, 55), row(ELEMENTWISE, 20, phase=Phase.OPTIMIZER), row(CONTRACTION, 25, phase=Phase.RECOMPUTE)
    )
    assert [(finding.name, finding.share) for finding in findings(made)] == [
        ("tensor_contraction", 0.8), ("recompute", 0.25), ("elementwise", 0.2), ("optimizer", 0.2),
    ]  # fmt: skip
    assert sentence(headline(made)[0]) == (
        "Tensor contraction takes 80.0 % of the device work."
        " Computing activations again (checkpointing) takes 25.0 % of the device work."
    )


def test_memory_near_the_limit_is_in_the_headline() -> None:
    made = anatomy(row(CONTRACTION, 90), row(ELEMENTWISE, 10))
    full = replace(made, memory=Memory(peak_bytes=950))
    assert sentence(headline(full)[0]).endswith("Memory is nearly full: 950 B of the device's 1.00 kB.")
    assert findings(full, source="a.json")[1].next == Next(text="opanatomy analyze a.json --section memory")
    assert "memory" not in [finding.name for finding in findings(replace(made, memory=Memory(peak_bytes=890)))]


def test_what_is_small_is_not_in_the_headline() -> None:
    made = anatomy(row(CONTRACTION, 86), row(ELEMENTWISE, 14))
    assert sentence(headline(made)[0]) == "Tensor contraction takes 86.0 % of the device work."


def test_a_trace_without_steps_is_what_lies_between_its_first_and_last_work() -> None:
    """A graph's decode: 44 % of the trace is before the graph, none of it between kernels."""
    made = anatomy(row(CONTRACTION, 50), operators=10, around=40, number=None)
    first, second = findings(made)
    assert sentence(first.text) == "Tensor contraction takes 100.0 % of the device work."
    assert (second.name, second.share) == ("idle", pytest.approx(1 / 6))


def test_other_steps_work_is_not_a_cost_of_the_step() -> None:
    made = anatomy(row(CONTRACTION, 60), operators=20)
    timeline = replace(made.timeline, window_ns=100, outside_ns=20)
    assert [finding.share for finding in findings(replace(made, timeline=timeline))] == [0.75, 0.25]


def test_nothing_to_explain() -> None:
    assert sentence(headline(anatomy())[0]) == "There is no device work in this trace: nothing to explain."
    failure = MemoryFailure(phase=Phase.BACKWARD, message="", requested_bytes=8_000_000_000)
    saving = MemorySaving(technique="checkpointing", option="--checkpointing", saved_bytes=1, needed_bytes=1, fits=True)
    failed = replace(anatomy(), memory=Memory(failure=failure, savings=(saving,)))
    (only,) = findings(failed)
    assert sentence(only.text) == "The step does not fit: try --checkpointing."
    assert only.evidence is not None
    assert sentence(only.evidence) == "8.00 GB more were requested in backward"


def test_a_model_that_a_command_can_name_is_tried_with_techniques() -> None:
    made = anatomies.bert_on_cpu()
    assert headline(made)[1] == (Next(text="opanatomy techniques google-bert/bert-large-uncased --batch 4"),)
    changed = replace(made, workload=replace(made.workload, changes=("num_hidden_layers=2",)))
    assert ["--section" in following.text for following in headline(changed)[1]] == [True]


def test_the_command_calls_the_trace_as_it_was_typed() -> None:
    made = anatomy(row(CONTRACTION, 40), operators=60)
    assert headline(made, source="'my traces/a.json'")[1] == (
        Next(text="opanatomy analyze 'my traces/a.json' --section idle,kernels --top 30"),
    )
    assert headline(of_ranks(60, 10, 30), source="rank-*.json")[1] == (
        Next(text="opanatomy analyze rank-*.json --section waiting,kernels --top 30"),
    )


def test_a_command_for_each_finding_of_the_headline() -> None:
    """One for both where both are sections of the report; a model that a command can name is tried with techniques."""
    made = replace(anatomy(row(CONTRACTION, 40), operators=60), workload=anatomies.bert_on_cpu().workload)
    assert headline(made, source="a.json")[1] == (
        Next(text="opanatomy analyze a.json --section idle"),
        Next(text="opanatomy techniques google-bert/bert-large-uncased --batch 4"),
    )
    one = anatomy(row(CONTRACTION, 80, 9, bound=30), row(ELEMENTWISE, 20, 9, bound=10))
    assert headline(one, source="a.json")[1] == (Next(text="opanatomy analyze a.json --section roofline"),)


def test_a_report_without_a_trace_names_no_section_of_it() -> None:
    """The trace was not kept: nothing to look at again."""
    made = anatomy(row(CONTRACTION, 40), operators=60)
    gone = replace(made, provenance=replace(made.provenance, trace=None))
    assert headline(gone)[1] == ()


@pytest.mark.parametrize(
    ("names", "pattern"),
    [(["rank-0.json", "rank-1.json"], "rank-*.json"), (["a1.json", "a11.json"], "a1*.json"), (["1", "11"], "1*"),
     (["a b/0", "a b/1"], "'a b/'*"), (["x", "y"], "*")],
)  # fmt: skip
def test_patterns_of_names(names: list[str], pattern: str) -> None:
    assert pattern_of(names) == pattern


def test_the_hand_made_anatomies() -> None:
    bert, llama = (sentence(headline(made)[0]) for made in (anatomies.bert_on_cpu(), anatomies.llama_on_gpu()))
    assert bert.startswith("Tensor contraction (most of it mm in backward) takes ")
    assert llama.startswith("Tensor contraction (43 % of it mm in backward) takes ")


@pytest.mark.parametrize(
    ("plain", "profiler", "begins"),
    [
        (70, 10, "The framework (dispatch, autograd, Python) takes 60.0 %"),
        (70, None, "The framework and the profiler's own time, which is not known apart, take 60.0 %"),
        (50, 10, "The framework and the profiler's own time, which is not known apart, take 60.0 %"),
    ],
)
def test_the_framework_is_named_alone_where_the_profiler_is_known(
    plain: int, profiler: int | None, begins: str
) -> None:
    """Where it leaves more than the whole step without the profiler takes, what it adds is not known either."""
    anatomy = on_cpu(60, row(CONTRACTION, 40))
    step = replace(anatomy.step, unprofiled_wall_ns=plain, profiler_ns=profiler)
    (found, *_) = findings(replace(anatomy, step=step))
    assert sentence(found.text).startswith(begins)
