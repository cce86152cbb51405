"""Attribution: one hand-made trace a rule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from opanatomy.attribution.attribute import Attribution, _threads_by_device, attribute
from opanatomy.attribution.calls import Candidates, assign_owners
from opanatomy.records.columns import GRAPH, LINKED, NO_LAUNCH, OUTSIDE, Int64, at
from opanatomy.records.taxonomy import PHASES, Phase
from opanatomy.trace.read import Trace, read_trace
from tests.handmade import HandMade, training_step


def attributed(made: HandMade, folder: Path) -> tuple[Trace, Attribution]:
    trace = read_trace(made.write(folder / "t.json"))
    return trace, attribute(trace.names, trace.host, trace.launches, trace.work)


def launchers(trace: Trace, found: Attribution) -> list[str | None]:
    return [trace.names[int(found.host.name[row])] if row >= 0 else None for row in found.work.host.tolist()]


def phase_of(trace: Trace, found: Attribution, name: str) -> list[Phase]:
    wanted = trace.names.index(name)
    return [PHASES[found.host.phase[row]] for row in np.flatnonzero(found.host.name == wanted).tolist()]


def test_work_goes_to_the_innermost_operator_phase_and_module(tmp_path: Path) -> None:
    trace, found = attributed(training_step(), tmp_path)
    assert launchers(trace, found) == ["aten::mm", "aten::mm", "aten::_foreach_add_"]
    assert [PHASES[code] for code in found.work.phase.tolist()] == [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    assert found.work.module.decoded() == ["head", "head", None]
    assert found.work.link.tolist() == [LINKED] * 3
    assert [step.number for step in found.steps] == [3]


def test_phases_are_inferred_where_no_range_says_them(tmp_path: Path) -> None:
    made = training_step()
    made.events = [event for event in made.events if not event["name"].startswith("opanatomy.phase")]
    _, found = attributed(made, tmp_path)
    assert [PHASES[code] for code in found.work.phase.tolist()] == [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]


def test_a_gradient_of_ones_is_what_a_backward_begins_with(tmp_path: Path) -> None:
    """Ones are made in forward too, for a mask: other operators of the thread stand between them and the backward."""
    made = HandMade()
    made.host("aten::linear", 100, 40, sequence=5)
    for correlation, begin in enumerate((150, 195), 1):
        made.host("aten::ones_like", begin, 10)
        made.launch(begin + 2, correlation)
        made.kernel("fill", begin + 4, 2, correlation)
    made.host("aten::mul", 170, 20, sequence=6)
    for name, begin, sequence in (("MulBackward0", 210, 6), ("AddmmBackward0", 240, 5)):
        made.host(name, begin, 20, thread=2, sequence=sequence, forward_thread=1)
    trace, found = attributed(made, tmp_path)
    assert phase_of(trace, found, "aten::ones_like") == [Phase.FORWARD, Phase.BACKWARD]


def test_the_threads_of_a_device_are_those_of_all_sure_launches() -> None:
    """The first launch of a trace is one as well."""
    threads = _threads_by_device(np.array([0, 1, 1]), np.array([9, 8]), np.array([0, 1, -1]))
    assert {device: known.tolist() for device, known in threads.items()} == {0: [9], 1: [8]}


def test_the_first_sequence_number_of_a_thread_pairs_too(tmp_path: Path) -> None:
    made = training_step()
    for event in made.events:
        if "Sequence number" in event["args"]:
            event["args"]["Sequence number"] = 0
    _, found = attributed(made, tmp_path)
    assert found.work.module.decoded() == ["head", "head", None]


def test_without_numbers_of_threads_operators_of_every_thread_pair(tmp_path: Path) -> None:
    made = HandMade()
    for thread, sequence, module in ((1, 5, "first"), (1, 6, "first"), (3, 9, "second")):
        made.host(f"opanatomy.module/{module}", 100 * sequence, 80, thread=thread)
        made.host("aten::mm", 100 * sequence + 10, 50, thread=thread, sequence=sequence)
    for place, sequence in enumerate((9, 6, 5)):
        made.host("MmBackward0", 2000 + 100 * place, 90, thread=2, sequence=sequence, forward_thread=0)
        made.host("aten::mm", 2010 + 100 * place, 50, thread=2)
    _, found = attributed(made, tmp_path)
    on_autograd = [found.host.module.at(row) for row in np.flatnonzero(found.host.start_ns >= 2_000_000).tolist()]
    assert on_autograd == ["second", "second", "first", "first", "first", "first"]


def test_the_order_of_events_does_not_matter(tmp_path: Path) -> None:
    made = training_step()
    made.events.reverse()
    trace, found = attributed(made, tmp_path)
    assert sorted(map(str, launchers(trace, found))) == ["aten::_foreach_add_", "aten::mm", "aten::mm"]
    assert sorted(map(str, found.work.module.decoded())) == ["None", "head", "head"]


def test_graph_launches_share_one_correlation(tmp_path: Path) -> None:
    made = HandMade()
    made.host("aten::mm", 0, 100)
    made.launch(10, 5, name="cudaGraphLaunch")
    for number in range(3):
        made.kernel(f"k{number}", 20 + 10 * number, 5, 5)
    _, found = attributed(made, tmp_path)
    assert found.work.link.tolist() == [GRAPH] * 3
    assert found.work.host.tolist() == [-1] * 3
    assert [PHASES[code] for code in found.work.phase.tolist()] == [Phase.FORWARD] * 3


def test_work_without_launch_record(tmp_path: Path) -> None:
    made = HandMade()
    external = made.host("aten::mm", 100, 100)
    made.kernel("by external id", 120, 5, 77, external_id=external)
    made.kernel("nothing known", 130, 5, 78)
    trace, found = attributed(made, tmp_path)
    assert found.work.link.tolist() == [LINKED, NO_LAUNCH]
    assert launchers(trace, found) == ["aten::mm", None]


def test_work_of_the_step_before_the_window(tmp_path: Path) -> None:
    made = HandMade()
    made.annotation("ProfilerStep#1", 100, 50)
    made.launch(90, 1)
    made.kernel("launched before", 110, 5, 1)
    made.kernel("ran before", 95, 2, 2)
    made.launch(120, 3)
    made.kernel("mine", 140, 5, 3)
    _, found = attributed(made, tmp_path)
    assert found.work.link.tolist() == [OUTSIDE, OUTSIDE, LINKED]


def test_every_step_is_kept(tmp_path: Path) -> None:
    made = HandMade()
    for number in range(4):
        made.annotation(f"ProfilerStep#{number}", 100 * number, 100)
        made.launch(100 * number + 50, number + 1)
        made.kernel("k", 100 * number + 60, 30, number + 1)
    _, found = attributed(made, tmp_path)
    assert [step.number for step in found.steps] == [0, 1, 2, 3]
    assert found.work.link.tolist() == [LINKED] * 4


def test_work_between_the_calls_of_a_loop(tmp_path: Path) -> None:
    """A loss and a clipping whose kernels are launched outside of any operator; what follows the update is no pass."""
    made = HandMade()
    made.annotation("ProfilerStep#0", 0, 1000)
    made.host("opanatomy.phase/loop/forward", 100, 100)
    made.host("opanatomy.phase/loop/backward", 300, 100)
    made.host("opanatomy.phase/loop/optimizer", 500, 100)
    for number, time in enumerate((50, 150, 250, 350, 450, 550, 650), 1):
        made.launch(time, number)
        made.kernel("k", time + 10, 5, number)
    for number, (name, time) in enumerate((("aten::mse_loss", 220), ("aten::norm", 420), ("aten::mean", 620)), 11):
        made.host(name, time, 20)
        made.launch(time + 5, number)
        made.kernel("k", time + 8, 1, number)
    trace, found = attributed(made, tmp_path)
    order = np.argsort(found.work.start_ns)
    assert [str(PHASES[phase]) for phase in found.work.phase[order]] == [
        "other", "forward", "forward", "forward", "backward", "optimizer", "optimizer", "optimizer", "other", "other",
    ]  # fmt: skip
    for name, phase in (
        ("aten::mse_loss", Phase.FORWARD),
        ("aten::norm", Phase.OPTIMIZER),
        ("aten::mean", Phase.OTHER),
    ):
        assert phase_of(trace, found, name) == [phase]
    assert [(begin // 1000, end // 1000, str(phase)) for begin, end, phase in found.spans] == [
        (100, 200, "forward"), (200, 300, "forward"), (300, 400, "backward"), (400, 500, "optimizer"),
        (500, 600, "optimizer"),
    ]  # fmt: skip


def test_recompute_inside_a_node(tmp_path: Path) -> None:
    """Non-reentrant checkpointing: the forward runs again inside a backward node, with gradient mode on."""
    made = HandMade()
    made.host("opanatomy.phase/backward", 0, 1000)
    made.host("autograd::engine::evaluate_function: AddBackward0", 10, 500, sequence=3, forward_thread=1)
    made.host("AddBackward0", 11, 498, sequence=3, forward_thread=1)
    made.host("aten::mm", 20, 50, sequence=9)
    made.host("aten::cos", 80, 10)  # in torch.no_grad() of the forward: no number
    made.host("aten::add", 100, 50, sequence=10)
    made.host("aten::mul", 300, 50)
    trace, found = attributed(made, tmp_path)
    for name in ("aten::mm", "aten::cos", "aten::add"):
        assert phase_of(trace, found, name) == [Phase.RECOMPUTE], name
    assert phase_of(trace, found, "aten::mul") == [Phase.BACKWARD]


def test_recompute_before_a_nested_backward(tmp_path: Path) -> None:
    """Reentrant checkpointing: module ranges, then whole nodes, inside one node."""
    made = HandMade()
    made.host("opanatomy.phase/backward", 0, 1000)
    made.host("autograd::engine::evaluate_function: CheckpointFunctionBackward", 10, 900, sequence=3, forward_thread=1)
    made.host("opanatomy.module/layer", 20, 100)
    made.host("aten::mm", 30, 50, sequence=9)
    made.host("autograd::engine::evaluate_function: MmBackward0", 200, 100, sequence=9, forward_thread=1)
    made.host("aten::bmm", 210, 50)
    trace, found = attributed(made, tmp_path)
    assert phase_of(trace, found, "aten::mm") == [Phase.RECOMPUTE]
    assert phase_of(trace, found, "aten::bmm") == [Phase.BACKWARD]
    row = int(np.flatnonzero(found.host.name == trace.names.index("aten::bmm"))[0])
    assert found.host.module.at(row) == "layer"


def test_the_last_operator_with_a_number_gives_the_module(tmp_path: Path) -> None:
    """A view of the module before can carry the number that the product of the next one consumes."""
    made = HandMade()
    made.host("opanatomy.phase/forward", 0, 300)
    made.host("opanatomy.module/first", 10, 40)
    made.host("aten::t", 20, 5, sequence=4)
    made.host("opanatomy.module/second", 60, 100)
    made.host("aten::mm", 70, 50, sequence=4)
    made.host("opanatomy.phase/backward", 400, 300)
    made.host("autograd::engine::evaluate_function: MmBackward0", 410, 100, sequence=4, forward_thread=1)
    made.host("aten::bmm", 420, 50)
    made.host("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 520, 20)
    made.host("aten::add_", 525, 10)
    trace, found = attributed(made, tmp_path)
    for name in ("aten::bmm", "aten::add_"):
        row = int(np.flatnonzero(found.host.name == trace.names.index(name))[0])
        assert found.host.module.at(row) == "second", name


def test_self_time_excludes_children_and_forgives_rounding(tmp_path: Path) -> None:
    made = HandMade()
    made.host("outer", 0, 100)
    made.host("inner", 10, 30)
    made.host("sticks out", 90, 10.5)
    trace, found = attributed(made, tmp_path)
    times = dict(
        zip([trace.names[name] for name in found.host.name.tolist()], found.host.self_ns.tolist(), strict=True)
    )
    assert times == {"outer": 60_000, "inner": 30_000, "sticks out": 10_500}


def test_threads_with_names_do_not_mix(tmp_path: Path) -> None:
    made = HandMade()
    made.host("a", 0, 100, thread="main")
    made.host("b", 10, 20, thread="worker")
    trace, found = attributed(made, tmp_path)
    assert found.host.parent.tolist() == [-1, -1]
    assert len(trace.threads) == 2


def candidates(
    names: Int64, parents: Int64, kinds: list[int], delegates: list[int], works: list[int] | None = None
) -> Candidates:
    """Rows of which nothing is known but their class (a place in `OperatorClass`, -1: none) and what is given."""
    nothing = np.zeros(len(names), dtype=bool)
    return Candidates(
        name=names, parent=parents, kind=np.array(kinds), delegates=np.array(delegates, dtype=bool), composite=nothing,
        passes=nothing, works=None if works is None else np.array(works, dtype=bool),
    )  # fmt: skip


PARENTS = np.array([-1, 0, 1, 0, 3])
NAMES = np.arange(5)


@pytest.mark.parametrize(
    ("computes", "delegates", "works", "owner"),
    [
        # linear (dispatches) -> addmm -> copy_: the copy is part of the product
        ([0, 1, 1, 0, 1], [0, 0, 0, 0, 0], None, [-1, 1, 1, -1, 4]),
        # an operator that delegates owns nothing where something below computes
        ([1, 1, 0, 0, 0], [1, 0, 0, 0, 0], None, [-1, 1, 1, -1, -1]),
        # and everything where nothing does
        ([1, 0, 0, 0, 0], [1, 0, 0, 0, 0], None, [0, 0, 0, 0, 0]),
        # on a device it owns what it launched itself
        ([1, 1, 0, 0, 0], [1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]),
        ([1, 1, 0, 0, 0], [1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [-1, 1, 1, -1, -1]),
    ],
)
def test_ownership(computes: list[int], delegates: list[int], works: list[int] | None, owner: list[int]) -> None:
    rows = candidates(NAMES, PARENTS, [0 if one else -1 for one in computes], delegates, works)
    assert assign_owners(rows).tolist() == owner


def test_an_operator_hands_over_to_another_overload_of_its_name() -> None:
    """Autocast: `aten::mm` of float32 > casts, `aten::mm` of bfloat16 > copy."""
    names = np.array([7, 3, 7, 3])
    parents = np.array([-1, 0, 0, 2])
    assert assign_owners(candidates(names, parents, [0, 3, 0, 3], [0] * 4)).tolist() == [-1, 1, 2, 2]


def test_work_left_over_from_before_the_trace(tmp_path: Path) -> None:
    """The device lags behind the host: work launched before the trace began runs inside the window."""
    made = HandMade()
    made.annotation("ProfilerStep#1", 100, 500)
    made.kernel("of the step before", 150, 20, 901)
    made.launch(120, 3)
    made.kernel("mine", 200, 5, 3)
    made.kernel("no record", 300, 5, 902)
    made.kernel("other stream", 180, 5, 903, stream=8)
    made.kernel("other stream, later", 210, 5, 904, stream=8)
    _, found = attributed(made, tmp_path)
    assert found.work.link.tolist() == [OUTSIDE, LINKED, NO_LAUNCH, OUTSIDE, NO_LAUNCH]


@pytest.mark.parametrize(("end", "phases"), [(205, ["forward"] * 2), (145, ["forward", "backward"])])
def test_annotations_of_the_trace_are_a_check(tmp_path: Path, end: int, phases: list[str]) -> None:
    """Without autograd all is forward by inference; what ranges state of it is taken."""
    made = HandMade()
    made.annotation("## forward ##", 100, end - 100)
    made.annotation("## backward ##", end, 500)
    for number in range(2):
        made.host("aten::mm", 110 + 40 * number, 30)
        made.launch(115 + 40 * number, number + 1)
        made.kernel("k", 300 + number * 10, 5, number + 1)
    _, found = attributed(made, tmp_path)
    check = found.annotated
    assert check is not None
    assert (check.quantity, check.unit, check.compared) == ("annotated phases", "ns", 1 if end == 205 else 0)
    assert check.differences == ()
    assert [PHASES[code] for code in found.work.phase.tolist()] == phases


def test_the_value_at_the_first_row_is_a_value() -> None:
    column, rows = np.array([5, 7], dtype=np.int64), np.array([0, 1, -1], dtype=np.int64)
    assert at(column, rows).tolist() == [5, 7, -1]
    assert at(column[:0], rows[2:]).tolist() == [-1]
