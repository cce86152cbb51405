"""A step followed on fake tensors, and the time that is predicted of it from that of the baseline's calls."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

import opanatomy
from opanatomy.__main__ import main
from opanatomy.errors import EstimateError
from opanatomy.options import RunOptions
from opanatomy.predict.fake import simulate
from opanatomy.predict.price import (
    FACTOR,
    CallTimes,
    Timed,
    call_times,
    key_of,
    phase_times,
    predicted_time,
    rates_of,
    work_of,
)
from opanatomy.records.experiment import Basis, SimulatedCall, SimulatedStep
from opanatomy.records.signature import Signature, Tensor
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.workload import MemoryObservations, Workload
from tests.support.made_trace import TraceBuilder
from tests.support.tiny import BERT, tiny, tiny_request

OPTIONS = tiny_request(BERT, optimizer="adamw", memory=True)


def test_following_a_step_leaves_the_process_as_it_was() -> None:
    torch.manual_seed(7)
    before, get_rng_state = torch.get_rng_state(), torch.get_rng_state
    simulate(replace(OPTIONS, checkpointing="non-reentrant"))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_rng_state is get_rng_state
    assert type(torch.ones(1)) is torch.Tensor


def test_what_cannot_run_without_values_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "needs_values.py").write_text(
        "import torch\n"
        "class Needs(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.weight = torch.nn.Parameter(torch.ones(2))\n"
        "    def forward(self, x):\n"
        "        return (x.numpy() * 1.0).sum() + self.weight.sum()\n"
        "def make():\n"
        "    return Needs(), {'x': torch.ones(2)}\n"
    )
    with pytest.raises(EstimateError, match="cannot run on fake tensors"):
        simulate(RunOptions(model="needs_values:make", device="cpu"))
    with pytest.raises(EstimateError, match="known only after compilation"):
        simulate(replace(OPTIONS, compile=True))


# ------------------------------------------------------------------------------------------------------------- times


def call(operator: str, *tensors: Tensor, calls: int = 1, phase: Phase = Phase.FORWARD) -> SimulatedCall:
    return SimulatedCall(operator=operator, signature=Signature(tensors), phase=phase, calls=calls)


def step(*calls: SimulatedCall) -> SimulatedStep:
    return SimulatedStep(workload=Workload(), device="cpu", calls=calls, memory=MemoryObservations())


def times(*known: tuple[SimulatedCall, float]) -> CallTimes:
    exact = {
        key_of(one.operator, one.signature): Timed(ns, one.calls, work_of(one.operator, one.signature))
        for one, ns in known
    }
    by_operator: dict[str, list[Timed]] = {}
    for (name, *_), timed in exact.items():
        by_operator.setdefault(name, []).append(timed)
    return CallTimes(
        exact=exact,
        by_operator={name: tuple(sorted(r, key=lambda t: t.work.amount)) for name, r in by_operator.items()},
    )


def matrix(rows: int, columns: int, dtype: str = "float32") -> Tensor:
    return Tensor((rows, columns), dtype, (columns, 1))


SMALL, LARGE = call("aten::mm", matrix(64, 64), matrix(64, 64)), call("aten::mm", matrix(64, 64), matrix(64, 256))


def test_the_baseline_itself_takes_what_it_took() -> None:
    baseline = step(replace(SMALL, calls=3), LARGE)
    rates = rates_of(times((SMALL, 10_000.0), (LARGE, 40_000.0)), baseline, 100_000.0)
    predicted = predicted_time(baseline, rates)
    assert predicted.time_ns == pytest.approx(100_000.0)
    assert predicted.framework_ns == pytest.approx(30_000.0)
    assert {row.basis for row in predicted.rows} == {Basis.SAME_CALL}
    assert predicted.high_ns / predicted.low_ns <= 1.8


def test_a_profiler_that_costs_more_than_the_step_is_taken_out_of_each_call() -> None:
    baseline = step(SMALL, LARGE)
    rates = rates_of(times((SMALL, 10_000.0), (LARGE, 40_000.0)), baseline, 25_000.0)
    assert predicted_time(baseline, rates).time_ns == pytest.approx(25_000.0)


def test_a_profiled_step_that_was_quicker_ran_on_a_quicker_machine() -> None:
    """Calls of 70 us in 80: in a step of 100 all of it takes a quarter more, what is between the calls as well."""
    baseline = step(replace(SMALL, calls=3), LARGE)
    known = times((SMALL, 10_000.0), (LARGE, 40_000.0))
    predicted = predicted_time(baseline, rates_of(known, baseline, 100_000.0, profiled_ns=80_000.0))
    assert predicted.time_ns == pytest.approx(100_000.0)
    assert predicted.framework_ns == pytest.approx(12_500.0)
    slower = predicted_time(baseline, rates_of(known, baseline, 100_000.0, profiled_ns=140_000.0))
    assert slower.framework_ns == pytest.approx(30_000.0)


def test_what_is_between_calls_goes_with_their_number_or_does_not() -> None:
    baseline = step(SMALL, SMALL)
    rates = rates_of(times((SMALL, 10_000.0)), baseline, 25_000.0)
    twice = predicted_time(step(*[SMALL] * 4), rates)
    assert twice.framework_ns == pytest.approx((5_000.0 + 10_000.0) / 2)
    spread = FACTOR[Basis.SAME_CALL]
    assert twice.low_ns == pytest.approx((40_000 + 5_000) / spread)
    assert twice.high_ns == pytest.approx((40_000 + 10_000) * spread)
    many = predicted_time(step(*[SMALL] * 40), rates)
    assert many.high_ns / many.low_ns <= 1.8 + 1e-9


def test_another_size_goes_by_its_work_between_the_nearest() -> None:
    baseline = step(SMALL, LARGE)
    rates = rates_of(times((SMALL, 10_000.0), (LARGE, 40_000.0)), baseline, 50_000.0)
    between = predicted_time(step(call("aten::mm", matrix(64, 64), matrix(64, 128))), rates)
    assert between.rows[0].basis is Basis.SAME_OPERATOR
    assert between.time_ns == pytest.approx(20_000.0)
    beyond = predicted_time(step(call("aten::mm", matrix(64, 64), matrix(64, 512))), rates)
    assert beyond.time_ns == pytest.approx(80_000.0)


def test_a_call_that_did_not_run_takes_what_it_took_by_itself() -> None:
    """By itself the known product took four fifths of its time in the step: so does the other."""
    half = call("aten::mm", matrix(64, 64, "bfloat16"), matrix(64, 64, "bfloat16"))
    alone = {key_of(each.operator, each.signature): ns for each, ns in ((SMALL, 8_000.0), (half, 2_000.0))}
    predicted = predicted_time(step(half), rates_of(times((SMALL, 10_000.0)), step(SMALL), 10_000.0, alone))
    assert predicted.rows[0].basis is Basis.SAMPLED
    assert predicted.time_ns == pytest.approx(2_500.0)
    assert predicted.is_known


def test_products_of_a_type_that_was_not_measured_have_no_time() -> None:
    half = call("aten::mm", matrix(64, 64, "bfloat16"), matrix(64, 64, "bfloat16"))
    rates = rates_of(times((SMALL, 10_000.0)), step(SMALL), 10_000.0)
    assert not predicted_time(step(half), rates).is_known
    assert predicted_time(step(SMALL), rates).is_known


def test_the_range_is_wider_by_what_other_work_took() -> None:
    known = times((SMALL, 10_000.0))
    quiet, busy = (
        predicted_time(step(SMALL), rates_of(known, step(SMALL), 10_000.0, load=load)) for load in (0.0, 0.5)
    )
    assert quiet.time_ns == busy.time_ns == pytest.approx(10_000.0)
    assert busy.high_ns == pytest.approx(2 * quiet.high_ns)
    assert busy.low_ns == pytest.approx(quiet.low_ns / 2)


def test_an_operator_that_did_not_run_takes_what_its_class_does() -> None:
    add = call("aten::add", matrix(512, 512), matrix(512, 512))
    rates = rates_of(times((add, 300_000.0)), step(add), 300_000.0)
    predicted = predicted_time(step(call("aten::mul", matrix(1024, 512), matrix(1024, 512))), rates)
    assert predicted.rows[0].basis is Basis.SAME_CLASS
    assert predicted.rows[0].operator_class is OperatorClass.ELEMENTWISE
    assert predicted.time_ns == pytest.approx(600_000.0, rel=0.01)
    assert predicted.rows[0].high_ns / predicted.time_ns == pytest.approx(FACTOR[Basis.SAME_CLASS])


def test_times_of_a_phase_are_those_of_its_calls_with_all_that_they_call(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for number, begin in enumerate((0, 1000)):
        trace.annotation(f"ProfilerStep#{number}", begin, 500)
        trace.host("opanatomy.phase/forward", begin, 200)
        matrix = {"shapes": [[8, 4]], "types": ["float"]}
        trace.host("aten::_to_copy", begin + 10, 100, **matrix)
        trace.host("aten::copy_", begin + 20, 60, **matrix)
        trace.host("opanatomy.phase/backward", begin + 200, 200)
        trace.host("aten::copy_", begin + 210, 10, **matrix)
    known = phase_times(trace.write(tmp_path / "trace.json"))
    assert known == {
        ("aten::_to_copy", Phase.FORWARD): pytest.approx(100_000),
        ("aten::copy_", Phase.FORWARD): pytest.approx(60_000),
        ("aten::copy_", Phase.BACKWARD): pytest.approx(10_000),
    }


def test_times_of_a_trace_are_those_of_its_operators(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = tiny(
        BERT, "--optimizer", "adamw", "--memory", "--suggest", "0", "--trace", "step.json", "-o", "report.json"
    )
    assert main(["profile", *words]) == 0
    anatomy = opanatomy.read("report.json")
    known = call_times(here / "step.json")
    followed = simulate(OPTIONS)
    seen = sum(one.calls for one in followed.calls if key_of(one.operator, one.signature) in known.exact)
    assert seen >= 0.95 * sum(one.calls for one in followed.calls)
    assert isinstance(anatomy, opanatomy.Anatomy)
    step_ns = anatomy.step.unprofiled_wall_ns or 0
    rates = rates_of(known, followed, step_ns)
    assert predicted_time(followed, rates).time_ns == pytest.approx(step_ns, rel=0.01)
