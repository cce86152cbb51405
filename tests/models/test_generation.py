"""A step that is a generation: its phases, their FLOPs, the cache and what beams copy, by hand and by theory."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from transformers.cache_utils import DynamicCache
from transformers.utils import ModelOutput

import opanatomy
from opanatomy.analysis.build import generation_of
from opanatomy.capture.model.workload import prepare
from opanatomy.checks.counts import require_agreement
from opanatomy.devices.overrides import parse_overrides
from opanatomy.errors import UsageError
from opanatomy.memory.theory import needed_bytes, savings_of
from opanatomy.pipeline import with_ceilings
from opanatomy.records.memory import CacheShape, Memory, MemoryComponent, MemoryFailure
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.work import ClassRow
from opanatomy.records.workload import Capture, Environment, Workload
from opanatomy.report import terminal_report
from opanatomy.results import Anatomy
from tests.support.command import run
from tests.support.tiny import BERT, message_of, profiled, tiny, tiny_request

GPT2, LLAMA, T5 = "openai-community/gpt2", "meta-llama/Llama-3.1-8B", "google-t5/t5-base"
MISTRAL, BART, WHISPER = "mistralai/Mistral-7B-v0.1", "facebook/bart-base", "openai/whisper-small"
NEW = 5
#: The sizes of the tiny models: batch, prompt, hidden, heads, head size, key-value heads of Llama, vocabulary, layers.
B, S, H, A, D, K, V, L = 2, 16, 32, 2, 16, 1, 160, 2


@cache
def generated(name: str, beams: int = 1, *words: str, new: int = NEW) -> Anatomy:
    all_words = tiny(name, "--generate", str(new), "--beams", str(beams), "--memory", *words)
    if name == WHISPER:  # its prompt is its audio
        index = all_words.index("--seq")
        all_words = all_words[:index] + all_words[index + 2 :]
    return profiled(*all_words)


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


CASES = pytest.mark.parametrize(("name", "beams"), [(GPT2, 1), (GPT2, 4), (LLAMA, 4), (T5, 1), (T5, 4)])


@CASES
def test_the_flops_of_each_phase_are_those_by_hand(name: str, beams: int) -> None:
    anatomy = generated(name, beams)
    products = [row for row in anatomy.classes if row.operator_class is OperatorClass.TENSOR_CONTRACTION]
    prefill, decoding = expected(name, B * beams)
    assert {row.phase: row.flops for row in products} == {Phase.PREFILL: prefill, Phase.DECODING: decoding}
    assert {row.phase for row in anatomy.classes} <= {Phase.PREFILL, Phase.DECODING, Phase.OTHER}
    require_agreement(anatomy)
    compared = {check.quantity: check.compared for check in anatomy.checks}
    assert compared["call counts"] > 20
    assert compared["contraction FLOPs"] > 3
    assert (anatomy.warnings, anatomy.ratios) == ((), ())


def test_each_token_has_one_forward_that_reads_all_weights() -> None:
    anatomy = generated(GPT2)
    rows = [row for row in anatomy.operators if "scaled_dot_product" in row.operator]
    calls = {phase: sum(row.calls for row in rows if row.phase is phase) for phase in (Phase.PREFILL, Phase.DECODING)}
    assert calls == {Phase.PREFILL: L, Phase.DECODING: L * (NEW - 1)}
    assert anatomy.generation is not None
    # All but the table of positions, and of the embedding, which is the head's weight, all.
    weights = 4 * ((anatomy.workload.parameters or 0) - 64 * H)
    assert (anatomy.generation.token_read_bytes or 0) > weights


# --------------------------------------------------------------------------------------------------------------- times


def test_the_record_says_what_ran_and_what_a_token_takes() -> None:
    anatomy = generated(GPT2, 4)
    workload, made, step = anatomy.workload, anatomy.generation, anatomy.step
    assert (workload.generate, workload.beams, workload.inference) == (NEW, 4, True)
    assert made is not None
    assert (made.new_tokens, made.beams, made.decoded_tokens) == (NEW, 4, NEW - 1)
    assert (made.first_token_ns or 0) + (made.decoding_ns or 0) == pytest.approx(step.unprofiled_wall_ns, abs=2)
    decoding = [row for row in anatomy.classes if row.phase is Phase.DECODING]
    assert made.token_flops == sum(row.flops or 0 for row in decoding) / (NEW - 1)
    assert "forward" not in step.phase_ns
    assert 0 < step.phase_ns[Phase.PREFILL] + step.phase_ns[Phase.DECODING] <= (step.wall_ns or 0)
    page = terminal_report(anatomy, width=160, color=False)
    for text in (
        "generation 5 new tokens for each of 2 samples, beam search with 4 beams",
        "prefill    first token after",
        "causal-lm, batch 2, length 16, float32, sdpa attention, generation",
        "key value cache",
        "beam copies",
    ):
        assert text in page
    # 5 FLOPs a byte: a product of a row with a matrix of weights does not come near it, one of a prompt does.
    bounds = with_ceilings(generated(LLAMA, 4), parse_overrides("5G", "1G"))
    page = terminal_report(bounds, width=160, color=False, sections=("bounds",))
    lines = {line.split()[0]: line for line in page.splitlines() if line.startswith(("prefill", "decoding"))}
    assert set(lines) == {"prefill", "decoding"}
    assert "memory" in lines["decoding"]


DECODING = ClassRow(
    operator_class=OperatorClass.TENSOR_CONTRACTION,
    phase=Phase.DECODING,
    calls=8,
    kernels=0,
    time_ns=100,
    flops=800,
    read_bytes=1600,
    written_bytes=None,
    uncosted_ns=7,
)


@pytest.mark.parametrize(
    ("walls", "firsts", "new", "first", "decoding", "token"),
    [
        ((1000, 1200, 5000), (200, 300, 400), 5, 250, 850, 212.5),
        ((100,), (100,), 3, 100, None, None),
        ((1000,), (1000,), 1, 1000, None, None),
    ],
    ids=["without-a-pause", "no-time", "one-token"],
)
def test_the_time_of_a_token_is_that_behind_the_first(
    walls: tuple[int, ...], firsts: tuple[int, ...], new: int, first: int, decoding: int | None, token: float | None
) -> None:
    capture = Capture(
        version="0",
        command="",
        created="",
        environment=Environment(),
        unprofiled_step_ns=walls,
        unprofiled_first_token_ns=firsts,
        workload=Workload(generate=new, beams=2, batch=3),
    )
    made = generation_of(capture, (DECODING, replace(DECODING, phase=Phase.PREFILL)), 2)
    assert made is not None
    assert (made.first_token_ns, made.decoding_ns, made.token_ns) == (first, decoding, token)
    if token is not None:
        assert made.tokens_per_second == 3 * 4 * 1e9 / 850
        assert (made.token_flops, made.token_read_bytes, made.token_written_bytes) == (100, 200, None)


# -------------------------------------------------------------------------------------------------------------- memory


def component(memory: Memory, name: str) -> MemoryComponent | None:
    return next((row for row in memory.components if row.component == name), None)


@CASES
def test_the_cache_is_the_keys_and_values_of_all_tokens_but_the_last(name: str, beams: int) -> None:
    memory = generated(name, beams).memory
    heads = K if name == LLAMA else A
    tokens = NEW + S if name == T5 else S + NEW - 1
    row, copies = component(memory, "key_value_cache"), component(memory, "beam_copies")
    assert row is not None
    assert row.measured_bytes == row.theory_bytes == 2 * L * B * beams * heads * D * tokens * 4
    assert sum(part.at_peak_bytes or 0 for part in memory.components) == memory.peak_bytes
    for point in memory.timeline:
        assert sum(point.components.values()) == point.allocated_bytes
        assert point.components.get("key_value_cache", 0) <= row.theory_bytes
    if beams == 1:
        assert copies is None
        return
    # What a reordering copies at once, one tensor, and the repeated inputs: ids and positions, or what was encoded.
    inputs = S * H * 4 + 8 if name == T5 else S * 16
    tensor = heads * D * 4 * (S if name == T5 else S + NEW - 1)
    assert copies is not None
    assert copies.measured_bytes == copies.theory_bytes == B * beams * (tensor + inputs)


@pytest.mark.parametrize(
    ("name", "beams", "new", "words"),
    [
        (MISTRAL, 2, 4, ()),  # a prompt longer than its window of 8
        (MISTRAL, 1, 6, ("--seq", "6")),
        (GPT2, 2, 1, ()),
        (GPT2, 1, 3, ("--dtype", "bf16")),
        (BART, 2, 3, ()),
        (WHISPER, 2, 3, ()),
    ],
)
def test_theory_is_exact(name: str, beams: int, new: int, words: tuple[str, ...]) -> None:
    memory = generated(name, beams, *words, new=new).memory
    for part in ["key_value_cache", "beam_copies"][:beams]:
        row = component(memory, part)
        assert row is not None
        assert row.measured_bytes == row.theory_bytes


def test_a_cache_of_another_kind_has_no_theory() -> None:
    row = component(generated("state-spaces/mamba-130m-hf", new=2).memory, "key_value_cache")
    assert row is not None
    assert row.measured_bytes
    assert row.theory_bytes is None


def test_a_generation_that_does_not_fit_needs_its_cache_and_less_of_it_with_one_beam() -> None:
    shape = CacheShape(windows=(0, 0), key_value_heads=4, head_size=64, prompt=100)
    ran = Workload(
        generate=29, beams=4, batch=1, dtype="float32", inference=True, parameters=10, trainable_parameters=10
    )
    failure = MemoryFailure(phase=Phase.DECODING, message="", requested_bytes=1, allocated_bytes=1)
    cache, copies = 2 * 2 * 4 * 4 * 64 * 128 * 4, 4 * (4 * 64 * 128 * 4 + 100 * 8)
    assert needed_bytes(None, ran, shape) == 10 * 4 + cache + copies
    rows = {row.tries[0]: row.gain_bytes for row in savings_of(None, ran, Memory(failure=failure), shape)}
    assert rows["--beams 1"] == cache * 3 // 4 + copies


# --------------------------------------------------------------------------------------------------- one's own module


class Decoder(torch.nn.Module):
    """A model whose output calls its cache by this name: `past_key_values` to transformers 5.23, then `cache`."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.name, self.generation_config = name, None

    def can_generate(self) -> bool:
        return True

    def prepare_inputs_for_generation(self) -> None: ...

    def forward(self, x: torch.Tensor, cache: DynamicCache) -> ModelOutput:
        y = self.linear(x)
        cache.update(y[:, None, None], y[:, None, None], 0)
        return ModelOutput({"logits": y, self.name: cache})

    def generate(self, inputs: torch.Tensor, max_new_tokens: int, **_: Any) -> None:
        cache = DynamicCache()
        for _place in range(max_new_tokens):
            self.prepare_inputs_for_generation()
            self(inputs, cache)


@pytest.mark.parametrize("name", ["past_key_values", "cache_params", "cache"])
def test_a_cache_is_known_whatever_an_output_calls_it(name: str) -> None:
    anatomy = opanatomy.profile(Decoder(name), torch.ones(2, 4), generate=3, memory=True)
    row = component(anatomy.memory, "key_value_cache")
    assert row is not None
    assert row.measured_bytes == 2 * (2 * 3 * 4 * 4)  # keys and values of two samples and three tokens


def test_no_token_ends_a_generation_and_none_is_drawn() -> None:
    prepared = prepare(tiny_request(GPT2, inference=True))
    module: Any = prepared.module
    own = module.generation_config
    own.eos_token_id, own.do_sample, own.temperature = list(range(V)), True, 3.0
    before = torch.get_rng_state()
    anatomy = opanatomy.profile(module, prepared.inputs["input_ids"], generate=4, beams=2)  # type: ignore[call-overload]
    assert anatomy.generation is not None
    assert anatomy.generation.decoded_tokens == 3
    assert torch.equal(before, torch.get_rng_state())
    assert module.generation_config is own
    assert own.do_sample
    assert "prepare_inputs_for_generation" not in vars(module)


def test_a_module_that_does_not_generate_so_is_refused() -> None:
    prepared = prepare(tiny_request(GPT2, inference=True))
    module: Any = prepared.module
    ids, plain = prepared.inputs["input_ids"], module.generate  # type: ignore[call-overload]
    with pytest.raises(UsageError, match=r"generate=2: the inputs have no names \(2 given\) - pass a dictionary"):
        opanatomy.profile(module, (ids, ids), generate=2)
    with pytest.raises(UsageError, match=r"^generate=2: Linear cannot generate - leave it out, or use a model"):
        opanatomy.profile(torch.nn.Linear(2, 2), torch.ones(2, 2), generate=2)
    module.generate = lambda **settings: plain(**{**settings, "max_new_tokens": 3})
    with pytest.raises(opanatomy.CaptureError, match="ran 3 forward passes for 4 new tokens"):
        opanatomy.profile(module, ids, generate=4)


# -------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--beams 4", "--beams 4 works only with generation - add --generate 32"),
        ("--generate 8 --optimizer sgd", "--generate 8 runs no backward - leave out --optimizer sgd"),
        (
            "--generate 8 --compile",
            "--generate 8 runs the uncompiled model - leave out --compile",
        ),
    ],
)
def test_options_that_make_no_sense_together(words: str, said: str, tmp_path: Any) -> None:
    done = run("profile", "gpt2", *words.split(), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, f"opanatomy: {said}\n")


@pytest.mark.parametrize(
    ("name", "request_", "said"),
    [
        (BERT, {"generate": 4}, "--generate 4: BertForMaskedLM cannot generate - leave it out, or use a model with"),
        (GPT2, {"generate": 70}, "--generate 70: gpt2 has room for only 64 new tokens - use a smaller --generate"),
        (GPT2, {"generate": 8, "seq": 58}, "--seq 58: gpt2 takes at most 57 tokens (64 positions, 7 of them reserved"),
        (BART, {"generate": 64}, "--generate 64: bart has room for only 63 new tokens - use a smaller --generate"),
        (
            WHISPER,
            {"generate": 3, "seq": 8},
            "--seq 8: the prompt of whisper is audio of fixed length - leave --seq out",
        ),
    ],
)
def test_models_that_cannot(name: str, request_: dict[str, Any], said: str) -> None:
    assert message_of(tiny_request(name, **request_), UsageError).startswith(said)
