"""The whole path over the whole catalog: contractions against torch's own counter, every sum exact, nothing unknown."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import opanatomy
from opanatomy.capture.model.workload import prepare
from opanatomy.capture.silence import quiet_libraries
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.work import OperatorRow
from tests.support.made_trace import page
from tests.support.observer import BY_MASK, depends_on_values
from tests.support.tiny import DISTINCT, NO_SDPA, one_thread, tiny, tiny_request
from tests.support.tiny import profiled as profiled_words
from tests.support.torch_counter import MENDED

pytestmark = pytest.mark.usefixtures("one_timed_step")


def counted(module: torch.nn.Module, inputs: dict[str, Any], amp: torch.dtype | None) -> tuple[int, int]:
    """FLOPs of forward and backward by torch's counter, with the formulas it lacks."""
    forward = FlopCounterMode(display=False, custom_mapping=MENDED)
    with quiet_libraries(), forward, torch.autocast("cpu", amp) if amp else nullcontext():
        output = module(**inputs)
    backward = FlopCounterMode(display=False, custom_mapping=MENDED)
    with backward:
        output["loss"].backward()
    return forward.get_total_flops(), backward.get_total_flops()


def profiled(module: torch.nn.Module, inputs: Any, **options: Any) -> Anatomy:
    return opanatomy.profile(module, inputs, **{"warmup": 0, **options})


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


def _is_not_known(row: OperatorRow) -> bool:
    """Whether nobody can say what it costs: values decide, or an index is not observed (there is no warm-up here)."""
    return depends_on_values(row.operator, row.signature) or (row.operator in BY_MASK and ", -" in row.signature)


#: Costs do not depend on the data type: bfloat16, and sdpa too, are in tests/cost/test_cost_models.py for every model.
VARIANTS = [
    pytest.param("eager", None, id="eager"),
    pytest.param("sdpa", "bf16", id="sdpa-amp"),
]


@pytest.mark.parametrize(("attention", "amp"), VARIANTS)
@pytest.mark.parametrize("name", DISTINCT)
def test_contractions_equal_torchs_counter(name: str, attention: str, amp: str | None) -> None:
    options = {} if any(word in name for word in NO_SDPA) else {"attention": attention}
    with one_thread():
        prepared = prepare(tiny_request(name, **options))
        expected = counted(prepared.module, prepared.inputs, torch.bfloat16 if amp else None)
        anatomy = profiled(prepared.module, prepared.inputs, amp=amp)
    found = contractions(anatomy)
    assert (found[Phase.FORWARD], found[Phase.BACKWARD]) == expected
    assert found[Phase.RECOMPUTE] == found[Phase.OPTIMIZER] == found[Phase.OTHER] == 0
    check_sums(anatomy)
    unknown = [row.operator for row in anatomy.operators if row.operator_class is OperatorClass.UNKNOWN]
    assert unknown == []
    assert anatomy.ledger.unknown_ns == 0
    without_cost = [
        row for row in anatomy.operators if row.flops is None and row.part_of is None and not _is_not_known(row)
    ]
    assert without_cost == []


@pytest.mark.parametrize("kind", ["non-reentrant", "reentrant"])
@pytest.mark.parametrize("name", ["google-bert/bert-base-uncased", "meta-llama/Llama-3.1-8B", "google-t5/t5-base"])
def test_recomputation_equals_torchs_counter(name: str, kind: str) -> None:
    """The counter is a dispatch mode: where recomputation stops before a kernel it does not see the operator."""
    with one_thread():
        plain, again = prepare(tiny_request(name)), prepare(tiny_request(name, checkpointing=kind))
        without, expected = (counted(one.module, one.inputs, None) for one in (plain, again))  # type: ignore[arg-type]
        found = contractions(profiled(again.module, again.inputs))
    assert (found[Phase.FORWARD], found[Phase.BACKWARD]) == without
    assert found[Phase.BACKWARD] + found[Phase.RECOMPUTE] == expected[1]


def test_the_optimizer_is_a_phase() -> None:
    prepared = prepare(tiny_request("openai-community/gpt2"))
    anatomy = profiled(prepared.module, prepared.inputs, optimizer="adamw")
    check_sums(anatomy)
    update = [row for row in anatomy.operators if row.operator == "aten::_fused_adamw_"]
    assert [(row.phase, row.operator_class) for row in update] == [(Phase.OPTIMIZER, OperatorClass.ELEMENTWISE)]
    parameters = sum(parameter.numel() for parameter in prepared.module.parameters())
    assert update[0].flops is not None
    assert update[0].flops > 8 * parameters
    assert update[0].written_bytes is not None
    assert update[0].written_bytes >= 3 * 4 * parameters


def test_the_steps_that_count_are_all_in_the_classes() -> None:
    prepared = prepare(tiny_request("google-bert/bert-base-uncased"))
    one = profiled(prepared.module, prepared.inputs)
    three = profiled(prepared.module, prepared.inputs, steps=3)
    assert len(three.step.steps) == 3
    assert sum(contractions(three).values()) == three.step.count * sum(contractions(one).values())
    assert three.step.wall_min_ns <= three.step.wall_ns <= three.step.wall_max_ns
    check_sums(three)


@pytest.mark.slow
def test_the_encoder_layer_of_the_paper() -> None:
    """Ivanov et al., arXiv 2007.00072: B=8, L=512, I=1024, H=16, U=4096; 104 + 208 Gi FLOPs of contraction.

    One of its eight sequences is run: each costs the same, and all of them half a minute.
    """
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True)
    x = torch.randn(1, 512, 1024, requires_grad=True)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        anatomy = profiled(layer, (x,))
    found = contractions(anatomy)
    assert 8 * found[Phase.FORWARD] == 104 * 2**30
    assert 8 * found[Phase.BACKWARD] == 208 * 2**30
    assert 8 * sum(found.values()) == 335_007_449_088
    check_sums(anatomy)


def test_a_window_shorter_than_the_input_says_what_it_leaves() -> None:
    """Of 16 tokens each sees itself and 7 before it: 1 + 2 + ... + 8 and 8 times 8 of 256 pairs; of 8 tokens all."""
    model = "mistralai/Mistral-7B-v0.1"
    anatomy = profiled_words(*tiny(model))
    assert (anatomy.workload.windows, anatomy.workload.within_windows) == ((8, 8), (36 + 8 * 8) / 256)
    text = "a window of 8 tokens needs 39.1 % of the FLOPs in 2 layers; sdpa computes all of them"
    assert text in page(anatomy, brief=True)
    assert profiled_words(*tiny(model, "--seq", "8")).workload.within_windows is None
