"""The whole path over the whole catalog: contractions against torch's own counter, every sum exact, nothing unknown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count, sdpa_backward_flop_count, sdpa_flop_count

from opanatomy.capture.model.workload import prepare
from opanatomy.capture.run.recorder import record_step
from opanatomy.capture.silence import quiet_libraries
from opanatomy.capture.subject import Subject
from opanatomy.options import RunOptions
from opanatomy.pipeline import analyze_trace
from opanatomy.records.anatomy import Anatomy, OperatorRow
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.workload import Workload
from tests.observer import BY_MASK, depends_on_values
from tests.tiny import DISTINCT, tiny_request

pytestmark = pytest.mark.usefixtures("one_timed_step")


def grouped_mm_flops(a: Any, b: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """2 m k n over all groups together; torch has no formula for it."""
    a, b, out = tuple(a), tuple(b), tuple(out_shape)
    if len(a) == len(b) == 2:
        return 2 * a[0] * a[1] * b[1]
    return 2 * prod(out) * a[-1] if len(a) == 2 else 2 * prod(a) * b[-1]


def grouped_convolution_backward(
    grad: Any, x: Any, weight: Any, _b: Any, _s: Any, _p: Any, _d: Any, transposed: bool, _o: Any, groups: int,
    mask: Any, out_shape: Any = None,
) -> int:  # fmt: skip
    """Each gradient asked for costs what the forward costs: torch's formula ignores `groups`."""
    forward = conv_flop_count(list(x), list(weight), list(grad), transposed=transposed)
    return (bool(mask[0]) + bool(mask[1])) * forward


#: What torch's counter is known to get wrong or to leave out.
MENDED = {
    torch.ops.aten._grouped_mm: grouped_mm_flops,
    torch.ops.aten.convolution_backward: grouped_convolution_backward,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu:
        lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward:
        lambda grad, q, k, v, *_, **__: sdpa_backward_flop_count(grad, q, k, v),
}  # fmt: skip


def counted(module: torch.nn.Module, inputs: dict[str, Any], amp: torch.dtype | None) -> tuple[int, int]:
    """FLOPs of forward and backward by torch's counter, with the formulas it lacks."""
    forward = FlopCounterMode(display=False, custom_mapping=MENDED)
    with quiet_libraries(), forward, torch.autocast("cpu", amp) if amp else nullcontext():
        output = module(**inputs)
    backward = FlopCounterMode(display=False, custom_mapping=MENDED)
    with backward:
        output["loss"].backward()
    return forward.get_total_flops(), backward.get_total_flops()


def profiled(module: torch.nn.Module, inputs: Any, folder: Path, **options: Any) -> Anatomy:
    path = folder / "step.json"
    record_step(Subject(module=module, inputs=inputs, workload=Workload()), RunOptions(warmup=0, **options), path)
    return analyze_trace(path)


def contractions(anatomy: Anatomy) -> dict[Phase, int]:
    found = dict.fromkeys(Phase, 0)
    for row in anatomy.classes:
        if row.operator_class is OperatorClass.TENSOR_CONTRACTION:
            found[row.phase] += row.flops or 0
    return found


def check_sums(anatomy: Anatomy) -> None:
    """Classes, operators, modules and phases each sum to the device work of the window, to the nanosecond."""
    ledger = anatomy.ledger
    inside = ledger.device_work_ns - ledger.outside_window_ns
    assert inside == ledger.linked_ns + ledger.graph_launched_ns + ledger.no_launch_record_ns
    assert inside == sum(row.time_ns for row in anatomy.classes)
    assert inside == sum(row.time_ns for row in anatomy.operators)
    assert inside == ledger.classed_ns + ledger.unknown_ns
    for name in ("flops", "read_bytes", "written_bytes"):
        by_class = sum(getattr(row, name) or 0 for row in anatomy.classes)
        assert by_class == sum(getattr(row, name) or 0 for row in anatomy.operators)


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _is_not_known(row: OperatorRow) -> bool:
    """Whether nobody can say what it costs: values decide, or an index is not observed (there is no warm-up here)."""
    return depends_on_values(row.operator, row.signature) or (row.operator in BY_MASK and ", -" in row.signature)


NO_SDPA = ("deberta", "mamba", "resnet")


#: Costs do not depend on the data type: bfloat16, and sdpa too, are in tests/test_cost_models.py for every model.
@pytest.mark.parametrize(("attention", "amp"), [("eager", None), ("sdpa", "bf16")])
@pytest.mark.parametrize("name", DISTINCT)
def test_contractions_equal_torchs_counter(name: str, attention: str, amp: str | None, tmp_path: Path) -> None:
    options = {} if any(word in name for word in NO_SDPA) else {"attention": attention}
    prepared = prepare(tiny_request(name, **options))
    with one_thread():
        expected = counted(prepared.module, prepared.inputs, torch.bfloat16 if amp else None)
        anatomy = profiled(prepared.module, prepared.inputs, tmp_path, amp=amp)
    found = contractions(anatomy)
    assert (found[Phase.FORWARD], found[Phase.BACKWARD]) == expected
    assert found[Phase.RECOMPUTE] == found[Phase.OPTIMIZER] == found[Phase.OTHER] == 0
    check_sums(anatomy)
    assert [row.operator for row in anatomy.operators if row.operator_class is OperatorClass.UNKNOWN] == []
    assert anatomy.ledger.unknown_ns == 0
    computing = [row for row in anatomy.operators if row.part_of is None and not _is_not_known(row)]
    assert [row.operator for row in computing if row.flops is None] == []


CHECKPOINTED = [
    "google-bert/bert-base-uncased", "meta-llama/Llama-3.1-8B", "openai-community/gpt2", "google/vit-base-patch16-224",
    "google-t5/t5-base",
]  # fmt: skip


@cache
def counted_without_checkpointing(name: str) -> tuple[int, int]:
    plain = prepare(tiny_request(name))
    return counted(plain.module, plain.inputs, None)


#: Only without reentry recomputation can stop early.
@pytest.mark.parametrize(
    ("kind", "stops"),
    [
        ("non-reentrant", True), ("reentrant", True),
        pytest.param("non-reentrant", False, marks=pytest.mark.exhaustive),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", CHECKPOINTED)
def test_recomputation_equals_torchs_counter(name: str, kind: str, stops: bool, tmp_path: Path) -> None:
    """The counter is a dispatch mode: where recomputation stops before a kernel it does not see the operator."""
    with one_thread(), set_checkpoint_early_stop(stops):
        prepared = prepare(tiny_request(name, checkpointing=kind))
        expected = counted(prepared.module, prepared.inputs, None)
        found = contractions(profiled(prepared.module, prepared.inputs, tmp_path))
    assert (found[Phase.FORWARD], found[Phase.BACKWARD]) == counted_without_checkpointing(name)
    assert found[Phase.BACKWARD] + found[Phase.RECOMPUTE] == expected[1]


@pytest.mark.parametrize("kind", ["non-reentrant", "reentrant"])
def test_checkpointing_makes_the_ratio_3(kind: str, tmp_path: Path) -> None:
    name = "google-bert/bert-base-uncased"
    prepared = prepare(tiny_request(name, checkpointing=kind, task="base"))
    anatomy = profiled(prepared.module, prepared.inputs, tmp_path)
    found = contractions(anatomy)
    per_layer = 2 * (4 * 32 * 32 + 2 * 32 * 64 + 2 * 16 * 32) * 2 * 16
    pooler = 2 * 2 * 32 * 32
    assert found[Phase.FORWARD] == 2 * per_layer + pooler
    assert found[Phase.BACKWARD] == 2 * found[Phase.FORWARD]
    # A layer ends in a norm, whose statistics are the last that is saved: recomputation stops after every product.
    assert found[Phase.RECOMPUTE] == 2 * per_layer


def test_the_optimizer_is_a_phase(tmp_path: Path) -> None:
    prepared = prepare(tiny_request("openai-community/gpt2"))
    anatomy = profiled(prepared.module, prepared.inputs, tmp_path, optimizer="adamw")
    check_sums(anatomy)
    update = [row for row in anatomy.operators if row.operator == "aten::_fused_adamw_"]
    assert [(row.phase, row.operator_class) for row in update] == [(Phase.OPTIMIZER, OperatorClass.ELEMENTWISE)]
    parameters = sum(parameter.numel() for parameter in prepared.module.parameters())
    assert update[0].flops is not None
    assert update[0].flops > 8 * parameters
    assert update[0].written_bytes is not None
    assert update[0].written_bytes >= 3 * 4 * parameters


def test_twice_the_batch_is_twice_the_contractions_and_so_are_two_steps(tmp_path: Path) -> None:
    prepared = prepare(tiny_request("google-bert/bert-base-uncased"))
    one, three = (profiled(prepared.module, prepared.inputs, tmp_path, steps=steps) for steps in (1, 3))
    half = prepare(tiny_request("google-bert/bert-base-uncased", batch=1))
    flops = sum(contractions(one).values())
    assert flops == 2 * sum(contractions(profiled(half.module, half.inputs, tmp_path)).values())
    assert len(three.step.steps) == 3
    assert sum(contractions(three).values()) == three.step.count * flops
    assert three.step.wall_min_ns <= three.step.wall_ns <= three.step.wall_max_ns
    check_sums(three)


def test_modules_of_forward_and_backward(tmp_path: Path) -> None:
    """The products of a linear layer: one in its forward, two in its backward, on its own path."""
    prepared = prepare(tiny_request("google-bert/bert-base-uncased"))
    anatomy = profiled(prepared.module, prepared.inputs, tmp_path)
    path = "bert.encoder.layer.1.intermediate.dense"
    rows = [row for row in anatomy.modules if (row.module, row.operator_class) == (path, "tensor_contraction")]
    forward = 2 * 2 * 16 * 32 * 64
    assert {(row.phase, row.flops, row.kind) for row in rows} == {
        (Phase.FORWARD, forward, "Linear"), (Phase.BACKWARD, 2 * forward, "Linear"),
    }  # fmt: skip
