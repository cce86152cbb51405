"""A step that is a generation: its phases, their FLOPs, the cache and what beams copy, by hand and by theory."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from opanatomy.analysis.build import generation_of
from opanatomy.analysis.checks import require_agreement
from opanatomy.api import profile
from opanatomy.capture.memory.measurement import Snapshots
from opanatomy.capture.memory.observer import observe_step
from opanatomy.capture.model.workload import Prepared, prepare, workload_of
from opanatomy.capture.run.profile import capture_model
from opanatomy.capture.run.progress import NullProgress
from opanatomy.capture.silence import quiet_libraries
from opanatomy.capture.step.generation import Generator, generator_of
from opanatomy.capture.step.shape import cache_shape_of
from opanatomy.capture.step.stepper import Stepper
from opanatomy.cli.parser import make_parser
from opanatomy.devices.overrides import parse_overrides
from opanatomy.errors import CaptureError, UsageError
from opanatomy.memory.theory import cache_theory, needed_bytes, savings_of
from opanatomy.options import RunOptions, as_flag, check_together
from opanatomy.pipeline import analyze_trace, with_ceilings
from opanatomy.records.anatomy import Anatomy, ClassRow
from opanatomy.records.memory import CacheShape, Memory, MemoryComponent, MemoryFailure
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.workload import Capture, Environment, Workload
from opanatomy.report import terminal_report
from opanatomy.report.formats.json import json_report, read_anatomy
from tests.handmade import HandMade
from tests.memory_steps import memory_of_observed
from tests.test_memory_trace import Recorded, memory_of
from tests.tiny import BERT, message_of, tiny_request

GPT2, LLAMA, T5 = "openai-community/gpt2", "meta-llama/Llama-3.1-8B", "google-t5/t5-base"
MISTRAL, BART, WHISPER = "mistralai/Mistral-7B-v0.1", "facebook/bart-base", "openai/whisper-small"
NEW = 5
#: The sizes of the tiny models: batch, prompt, hidden, heads, head size, key-value heads of Llama, vocabulary, layers.
B, S, H, A, D, K, V, L = 2, 16, 32, 2, 16, 1, 160, 2


@cache
def profiled(name: str, beams: int) -> Anatomy:
    """The anatomy of a tiny model's generation, as the verb makes it."""
    with TemporaryDirectory() as folder:
        trace = Path(folder) / "t.json.gz"
        options = tiny_request(name, generate=NEW, beams=beams, memory=True, warmup=1)
        capture_model(options, trace, NullProgress(), lambda text: None)
        return analyze_trace(trace)


def contraction_flops(anatomy: Anatomy, phase: Phase) -> int | None:
    rows = [row for row in anatomy.classes if row.operator_class is OperatorClass.TENSOR_CONTRACTION]
    return next(row.flops for row in rows if row.phase is phase)


# ------------------------------------------------------------------------------------------------------ FLOPs by hand


def gpt2(rows: int, new: int, seen: int) -> int:
    """Multiply-adds of one forward of `new` tokens that see so many; only the last one's logits are made."""
    layer = new * (3 * H * H + H * H + 2 * H * 4 * H) + 2 * new * seen * A * D
    return rows * (L * layer + H * V)


def llama(rows: int, new: int, seen: int) -> int:
    projections = H * A * D + 2 * H * K * D + A * D * H
    layer = new * (projections + 3 * H * 64) + 2 * new * seen * A * D
    return rows * (L * layer + H * V)


def t5_decoder(rows: int, seen: int) -> int:
    layer = 4 * H * A * D + 2 * H * A * D + 2 * H * 64 + 2 * (seen + S) * A * D
    return rows * (L * layer + H * V)


def t5_prefill(rows: int) -> int:
    """The encoder sees each sample once; its keys and values are made for every beam, next to the first new token."""
    encoder = B * L * (S * (4 * H * A * D + 2 * H * 64) + 2 * S * S * A * D)
    return encoder + rows * L * S * 2 * H * A * D + t5_decoder(rows, 1)


def expected(name: str, rows: int) -> tuple[int, int]:
    """FLOPs of the contractions in prefill and in decoding."""
    if name == T5:
        decoding = sum(t5_decoder(rows, seen) for seen in range(2, NEW + 1))
        return 2 * t5_prefill(rows), 2 * decoding
    forward: Callable[[int, int, int], int] = gpt2 if name == GPT2 else llama
    return 2 * forward(rows, S, S), 2 * sum(forward(rows, 1, S + token) for token in range(1, NEW))


CASES = ((GPT2, 1), (GPT2, 4), (LLAMA, 4), (T5, 1), (T5, 4))


@pytest.mark.parametrize(("name", "beams"), CASES)
def test_the_flops_of_each_phase_are_those_by_hand(name: str, beams: int) -> None:
    anatomy = profiled(name, beams)
    prefill, decoding = expected(name, B * beams)
    assert contraction_flops(anatomy, Phase.PREFILL) == prefill
    assert contraction_flops(anatomy, Phase.DECODING) == decoding
    assert {row.phase for row in anatomy.classes} <= {Phase.PREFILL, Phase.DECODING, Phase.OTHER}
    assert anatomy.ratios == ()


def test_each_token_has_one_forward() -> None:
    rows = [row for row in profiled(GPT2, 1).operators if "scaled_dot_product" in row.operator]
    calls = {phase: sum(row.calls for row in rows if row.phase is phase) for phase in (Phase.PREFILL, Phase.DECODING)}
    assert calls == {Phase.PREFILL: L, Phase.DECODING: L * (NEW - 1)}


@pytest.mark.parametrize(("name", "beams"), CASES)
def test_second_sources_agree(name: str, beams: int) -> None:
    anatomy = profiled(name, beams)
    require_agreement(anatomy)
    compared = {check.quantity: check.compared for check in anatomy.checks}
    assert compared["call counts"] > 20
    assert compared["contraction FLOPs"] > 3
    assert anatomy.warnings == ()


@pytest.mark.parametrize(
    ("new", "first", "decoding", "token"),
    [(3, 10, 90, 45.0), (3, 100, None, None), (1, 100, None, None), (1, 10, None, None)],
)
def test_without_time_behind_the_first_token_there_is_none_of_one(
    new: int, first: int, decoding: int | None, token: float | None
) -> None:
    """Without a token behind the first, or time behind it, there is none."""
    capture = Capture(
        version="0", command="", created="", environment=Environment(device_kind="cpu"),
        workload=Workload(batch=2, generate=new), unprofiled_step_ns=(100,), unprofiled_first_token_ns=(first,),
    )  # fmt: skip
    generation = generation_of(capture, (), 1)
    assert generation is not None
    assert (generation.beams, generation.decoded_tokens, generation.first_token_ns) == (1, new - 1, first)
    assert (generation.decoding_ns, generation.token_ns) == (decoding, token)


def test_the_record_says_what_ran_and_what_a_token_takes() -> None:
    anatomy = profiled(GPT2, 4)
    workload, made = anatomy.workload, anatomy.generation
    assert (workload.generate, workload.beams, workload.inference) == (NEW, 4, True)
    assert made is not None
    assert (made.new_tokens, made.beams, made.decoded_tokens) == (NEW, 4, NEW - 1)
    assert made.first_token_ns
    assert made.decoding_ns
    assert made.tokens_per_second
    assert made.first_token_ns + made.decoding_ns == pytest.approx(anatomy.step.unprofiled_wall_ns, rel=0.5)
    decoding = [row for row in anatomy.classes if row.phase is Phase.DECODING]
    assert made.token_flops == sum(row.flops or 0 for row in decoding) / (NEW - 1)
    assert made.token_read_bytes == sum(row.read_bytes or 0 for row in decoding) / (NEW - 1)
    step = anatomy.step
    assert step.phase_ns.get("prefill")
    assert step.phase_ns.get("decoding")
    assert step.wall_ns
    assert step.phase_ns.get("forward") is None
    assert step.phase_ns.get("prefill") + step.phase_ns.get("decoding") <= step.wall_ns
    assert read_anatomy(json_report(anatomy)) == anatomy


def test_greedy_reads_all_weights_for_each_token() -> None:
    made, workload = profiled(GPT2, 1).generation, profiled(GPT2, 1).workload
    assert made is not None
    assert made.token_read_bytes is not None
    assert workload.parameters is not None
    # All but the table of positions, and of the embedding, which is the head's weight, all.
    assert made.token_read_bytes > 4 * (workload.parameters - 64 * H)


# --------------------------------------------------------------------------------------------------------------- times


def capture(walls: tuple[int, ...], firsts: tuple[int, ...], **workload: Any) -> Capture:
    return Capture(
        version="0", command="", created="", environment=Environment(), workload=Workload(**workload),
        unprofiled_step_ns=walls, unprofiled_first_token_ns=firsts,
    )  # fmt: skip


def test_the_time_of_a_token_is_that_behind_the_first() -> None:
    decoding = ClassRow(
        operator_class=OperatorClass.TENSOR_CONTRACTION, phase=Phase.DECODING, calls=8, kernels=0, time_ns=100,
        flops=800, read_bytes=1600, written_bytes=None, uncosted_ns=7,
    )  # fmt: skip
    rows = (decoding, replace(decoding, phase=Phase.PREFILL))
    made = generation_of(capture((1000, 1200, 5000), (200, 300, 400), generate=5, beams=2, batch=3), rows, 2)
    assert made is not None
    assert (made.first_token_ns, made.decoding_ns, made.token_ns) == (300, 900, 225)
    assert made.tokens_per_second == 3 * 4 * 1e9 / 900
    assert (made.token_flops, made.token_read_bytes, made.token_written_bytes) == (100, 200, None)
    assert made.uncosted_ns == 7


def test_one_token_has_no_decoding() -> None:
    made = generation_of(capture((1000,), (1000,), generate=1, beams=1, batch=3), (), 1)
    assert made is not None
    assert (made.first_token_ns, made.decoding_ns, made.token_ns, made.token_flops) == (1000, None, None, None)
    assert generation_of(capture((1000,), (), batch=3), (), 1) is None


# -------------------------------------------------------------------------------------------------------------- memory


def component(memory: Memory, name: str) -> MemoryComponent | None:
    return next((row for row in memory.components if row.component == name), None)


@pytest.mark.parametrize(("name", "beams"), CASES)
def test_the_cache_is_the_keys_and_values_of_all_tokens_but_the_last(name: str, beams: int) -> None:
    memory = profiled(name, beams).memory
    heads = K if name == LLAMA else A
    tokens = NEW + S if name == T5 else S + NEW - 1
    row = component(memory, "key_value_cache")
    assert row is not None
    assert row.measured_bytes == row.theory_bytes == 2 * L * B * beams * heads * D * tokens * 4
    assert sum(part.at_peak_bytes or 0 for part in memory.components) == memory.peak_bytes
    for point in memory.timeline:
        assert sum(point.components.values()) == point.allocated_bytes
        assert point.components.get("key_value_cache", 0) <= row.theory_bytes
    copies = component(memory, "beam_copies")
    if beams == 1:
        assert copies is None
        return
    # What a reordering copies at once, one tensor, and the repeated inputs: ids and positions, or what was encoded.
    inputs = S * H * 4 + 8 if name == T5 else S * 16
    tensor = heads * D * 4 * (S if name == T5 else S + NEW - 1)
    assert copies is not None
    assert copies.measured_bytes == copies.theory_bytes == B * beams * (tensor + inputs)


def observed(name: str, **request: Any) -> tuple[Memory, Prepared, RunOptions]:
    options = tiny_request(name, **request)
    prepared = prepare(options)
    with quiet_libraries():
        step = observe_step(stepper_of(prepared, options), prepared.module, Snapshots("cpu"))
    return memory_of_observed(step), prepared, options


def shape_of(prepared: Prepared, options: RunOptions) -> CacheShape | None:
    generator = stepper_of(prepared, options).generator
    assert generator is not None
    return cache_shape_of(generator)


def stepper_of(prepared: Prepared, options: RunOptions) -> Stepper:
    module = prepared.module
    return Stepper(
        module=module, parameters=(*module.parameters(),), inputs=prepared.inputs, device="cpu", inference=True,
        generator=generator_of(module, prepared.inputs, options, option="--generate"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        (MISTRAL, {"generate": 4, "beams": 2}),  # a prompt longer than its window of 8
        (MISTRAL, {"generate": 6, "seq": 6}),
        (GPT2, {"generate": 1, "beams": 2}),
        (GPT2, {"generate": 3, "dtype": "bfloat16"}),
        (BART, {"generate": 3, "beams": 2}),
        (WHISPER, {"generate": 3, "beams": 2, "seq": None}),
    ],
)
def test_theory_is_exact(name: str, request_: dict[str, Any]) -> None:
    memory, prepared, options = observed(name, **request_)
    theories = cache_theory(shape_of(prepared, options), workload_of(prepared, options))
    assert [row.component for row in theories] == ["key_value_cache", "beam_copies"][: options.beams]
    for theory in theories:
        row = component(memory, theory.component)
        assert row is not None
        assert row.measured_bytes == theory.theory_bytes


def test_a_cache_of_another_kind_has_no_theory() -> None:
    memory, prepared, options = observed("state-spaces/mamba-130m-hf", generate=2)
    row = component(memory, "key_value_cache")
    assert row is not None
    assert row.measured_bytes
    assert shape_of(prepared, options) is None
    shape = CacheShape(windows=(0,), key_value_heads=1, head_size=8, prompt=4)
    workload = Workload(generate=3, beams=1, batch=2, dtype="float32")
    assert cache_theory(shape, workload)[0].theory_bytes == 2 * 2 * 8 * 6 * 4
    assert cache_theory(shape, replace(workload, amp="bf16")) == ()
    assert cache_theory(shape, replace(workload, generate=None)) == ()


def test_what_does_not_fit_needs_its_cache_and_less_of_it_with_one_beam() -> None:
    shape = CacheShape(windows=(0, 0), key_value_heads=4, head_size=64, prompt=100)
    ran = Workload(
        generate=29, beams=4, batch=1, dtype="float32", inference=True, parameters=10, trainable_parameters=10
    )
    failure = MemoryFailure(phase=Phase.DECODING, message="", requested_bytes=1, allocated_bytes=1)
    cache, copies = 2 * 2 * 4 * 4 * 64 * 128 * 4, 4 * (4 * 64 * 128 * 4 + 100 * 8)
    assert needed_bytes(None, ran, shape) == 10 * 4 + cache + copies
    assert needed_bytes(None, ran) is None
    rows = {row.option: row.saved_bytes for row in savings_of(None, ran, Memory(failure=failure), shape)}
    assert rows["--beams 1"] == cache * 3 // 4 + copies


def test_what_a_forward_of_a_generation_frees_again_is_temporary(tmp_path: Path) -> None:
    trace = Recorded()
    trace.host("opanatomy.phase/prefill", 100, 100)
    trace.host("opanatomy.phase/decoding", 200, 100)
    for begin, address in ((110, 1), (210, 2)):
        trace.host("aten::mm", begin, 10)
        trace.give(begin + 2, address, 100)
        trace.take(begin + 50, address, 100)
    trace.host("aten::mm", 270, 10)
    trace.give(272, 3, 40)
    rules = {row.rule for row in memory_of(trace, tmp_path).inferences}
    assert rules == {"allocated and freed in the same forward"}


def test_a_forward_that_is_annotated_inside_a_generation_is_one(tmp_path: Path) -> None:
    trace = HandMade()
    trace.host("opanatomy.phase/prefill", 100, 100)
    trace.host("opanatomy.phase/decoding", 200, 100)
    for begin in (110, 210):
        trace.host("## forward ##", begin, 80, category="user_annotation")
        trace.host("aten::mm", begin + 10, 50)
    trace.write(tmp_path / "t.json")
    (check,) = [row for row in analyze_trace(tmp_path / "t.json").checks if row.quantity == "annotated phases"]
    assert (check.compared, check.equal) == (1, 1)


# ----------------------------------------------------------------------------------------------------------- the step


def test_no_token_ends_a_generation_and_none_is_drawn() -> None:
    options = tiny_request(GPT2, generate=4, beams=2)
    prepared = prepare(options)
    module: Any = prepared.module
    own = module.generation_config
    own.eos_token_id, own.do_sample, own.temperature = list(range(V)), True, 3.0
    stepper = stepper_of(prepared, options)
    assert isinstance(stepper.generator, Generator)
    before = torch.get_rng_state()
    for _ in range(2):
        with quiet_libraries():
            stepper.run()
        assert stepper.generator.forwards == 4
    assert torch.equal(before, torch.get_rng_state())
    assert module.generation_config is own
    assert own.do_sample
    assert "prepare_inputs_for_generation" not in vars(module)


def test_another_number_of_forwards_is_refused() -> None:
    options = tiny_request(GPT2, generate=4)
    prepared = prepare(options)
    module: Any = prepared.module
    plain = module.generate
    module.generate = lambda **settings: plain(**{**settings, "max_new_tokens": 3})
    with quiet_libraries(), pytest.raises(CaptureError, match="ran 3 forwards for 4 new tokens"):
        stepper_of(prepared, options).run()


def test_a_module_of_ones_own() -> None:
    prepared = prepare(tiny_request(GPT2, inference=True))
    module, ids = prepared.module, prepared.inputs["input_ids"]  # type: ignore[call-overload]
    anatomy = profile(module, ids, generate=2, beams=2, warmup=0)
    assert anatomy.workload.generate == 2
    assert anatomy.generation is not None
    with pytest.raises(UsageError, match=r"generate=2: 2 inputs without names - give a dictionary"):
        profile(module, (ids, ids), generate=2)
    with pytest.raises(UsageError, match=r"^generate=2: Linear does not generate - leave it out, or take a model"):
        profile(torch.nn.Linear(2, 2), torch.ones(2, 2), generate=2)


# -------------------------------------------------------------------------------------------------------------- report


def test_the_report_says_what_a_token_takes() -> None:
    anatomy = profiled(GPT2, 4)
    page = terminal_report(anatomy, width=160, color=False)
    assert "generation 5 new tokens for each of 2 samples, beam search with 4 beams" in page
    assert "prefill    first token after" in page
    assert "causal-lm, batch 2, length 16, float32, sdpa attention, generation" in page
    assert "key value cache" in page
    assert "beam copies" in page


def test_the_roofline_has_prefill_and_decoding_by_themselves() -> None:
    # 5 FLOPs a byte: a product of a row with a matrix of weights does not come near it, one of a prompt does.
    anatomy = with_ceilings(profiled(LLAMA, 4), parse_overrides("5G", "1G"))
    page = terminal_report(anatomy, width=160, color=False, sections=("bounds",))
    lines = {line.split()[0]: line for line in page.splitlines() if line.startswith(("prefill", "decoding"))}
    assert set(lines) == {"prefill", "decoding"}
    assert "memory" in lines["decoding"]


# -------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--beams 4", "--beams 4 needs a generation: give --generate 32 too"),
        ("--generate 8 --optimizer sgd", "--generate 8 has no backward: leave out --optimizer sgd"),
        ("--generate 8 --checkpointing", "--generate 8 has no backward: leave out --checkpointing non-reentrant"),
        (
            "--generate 8 --compile",
            "--generate 8 runs the model's own forward, not a compiled one: leave out --compile",
        ),
    ],
)
def test_what_makes_no_sense_together(words: str, said: str) -> None:
    arguments = make_parser().parse_args(["profile", "m", *words.split()])
    with pytest.raises(UsageError) as caught:
        check_together(arguments, as_flag)
    assert str(caught.value) == said


def test_a_generation_is_inference_and_greedy_unless_told() -> None:
    options = RunOptions(generate=3)
    assert (options.inference, options.beams) == (True, 1)
    assert RunOptions().beams is None


def test_models_that_cannot() -> None:
    assert message_of(tiny_request(BERT, generate=4), UsageError).startswith(
        "--generate 4: BertForMaskedLM does not generate - leave it out, or take a model with the head of a language"
    )
    assert message_of(tiny_request(GPT2, generate=70), UsageError) == (
        "--generate 70: gpt2 has room for 64 new tokens - give less"
    )
    assert message_of(tiny_request(GPT2, generate=8, seq=58), UsageError) == (
        "--seq 58: gpt2 takes at most 57 tokens (64 positions, 7 of them reserved or of new tokens) - give less, or"
        " --set max_position_embeddings=65"
    )
    assert message_of(tiny_request(BART, generate=64), UsageError) == (
        "--generate 64: bart has room for 63 new tokens - give less"
    )
    assert message_of(tiny_request(WHISPER, generate=3, seq=8), UsageError) == (
        "--seq 8: the prompt of whisper is its audio - leave it out"
    )
