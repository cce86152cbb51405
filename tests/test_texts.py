"""Real texts as inputs: how they are tokenized and padded, what of it is in the loss, what a run on them reports."""

from __future__ import annotations

import json
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedTokenizerFast
from transformers.trainer_pt_utils import get_length_grouped_indices

from opanatomy.analysis.checks import require_agreement
from opanatomy.capture.model import texts
from opanatomy.capture.model.texts import IGNORED, batches_of, sample
from opanatomy.capture.model.tokenizing import trained_tokenizer
from opanatomy.capture.model.workload import Prepared, plan_of, prepare
from opanatomy.capture.run import step_runner
from opanatomy.capture.run.profile import capture_model
from opanatomy.capture.run.progress import NullProgress
from opanatomy.capture.silence import quiet_libraries
from opanatomy.errors import UsageError
from opanatomy.options import RunOptions
from opanatomy.pipeline import analyze_traces
from opanatomy.records.anatomy import Anatomy
from opanatomy.report.sections import sections_of
from tests.tiny import BERT, TINY, message_of, tiny_request

GPT2, T5, LLAMA = "openai-community/gpt2", "google-t5/t5-base", "meta-llama/Llama-3.1-8B"
ROBERTA, BART = "FacebookAI/roberta-base", "facebook/bart-base"
#: Enough tokens for the words of the texts.
VOCABULARY = 400
#: What the Python tokenizer of BERT is called: it has another name since transformers 5.
PYTHON_TOKENIZER = "BertTokenizerLegacy" if hasattr(transformers, "BertTokenizerLegacy") else "BertTokenizer"


@pytest.fixture(scope="module")
def comments(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of the first 50 texts of the sample."""
    path = tmp_path_factory.mktemp("texts") / "comments.txt"
    path.write_text("\n".join(sample()[:50]))
    return str(path)


def request(name: str, texts: str, **others: Any) -> RunOptions:
    """A tiny model on texts, four in a batch, cut at 24 tokens."""
    settings = (*(pair for pair in TINY[name] if pair[0] != "vocab_size"), ("vocab_size", str(VOCABULARY)))
    return tiny_request(name, **{"settings": settings, "batch": 4, "seq": 24, "texts": texts, **others})


@cache
def prepared(name: str, texts: str, padding: str | None = None, **others: Any) -> Prepared:
    return prepare(request(name, texts, padding=padding, **others))


# -------------------------------------------------------------------------------------------------------------- padding

LENGTHS = (3, 9, 2, 9, 5, 4, 2, 7, 6, 1)


@pytest.mark.parametrize(
    ("padding", "sizes", "tokens"),
    [
        ("max-length", [10] * 5, 100),
        ("sorted", [2, 3, 5, 7, 9], 2 * (2 + 3 + 5 + 7 + 9)),
    ],
)
def test_tokens_with_padding_counted_by_hand(padding: str, sizes: list[int], tokens: int) -> None:
    batches = batches_of(LENGTHS, 2, padding, 10, seed=1)
    assert (list(batches.lengths), batches.tokens) == (sizes, tokens)
    assert sorted(chain.from_iterable(batches.texts)) == list(range(10))


@pytest.mark.parametrize("padding", ["longest", "grouped"])
def test_each_batch_is_as_long_as_its_longest_text(padding: str) -> None:
    batches = batches_of(LENGTHS, 2, padding, 10, seed=1)
    longest = [max(LENGTHS[text] for text in texts) for texts in batches.texts]
    assert (list(batches.lengths), batches.tokens) == (longest, 2 * sum(longest))
    assert batches_of(LENGTHS, 2, padding, 10, seed=2).texts != batches.texts


def test_groups_are_those_of_the_trainer() -> None:
    lengths = [1 + (number * 7919) % 53 for number in range(90)]
    theirs = get_length_grouped_indices(lengths, 4, generator=torch.Generator().manual_seed(3))
    texts = batches_of(lengths, 4, "grouped", 64, seed=3).texts
    assert list(chain.from_iterable(texts)) == theirs[: 4 * 22]


def test_groups_by_the_description_of_the_sampler() -> None:
    lengths = [1 + (number * 7919) % 53 for number in range(90)]
    order = texts._in_megabatches(lengths, 4, seed=3)
    assert sorted(order) == list(range(90))
    groups = [[lengths[text] for text in order[start : start + 20]] for start in range(0, 90, 20)]
    assert groups[0][0] == max(lengths)
    assert all(group[1:] == sorted(group[1:], reverse=True) for group in groups)


def test_what_is_left_over_when_sorted_are_the_shortest() -> None:
    batches = batches_of(LENGTHS, 4, "sorted", 10, seed=0)
    assert [[LENGTHS[text] for text in texts] for texts in batches.texts] == [[2, 3, 4, 5], [6, 7, 9, 9]]
    assert batches.lengths == (5, 9)


def test_the_run_batches_are_spread_over_all_by_length() -> None:
    lengths = [8 * [number] for number in range(1, 81)]
    batches = batches_of(list(chain.from_iterable(lengths)), 8, "sorted", 100, seed=0)
    assert [batches.lengths[number] for number in batches.run] == [6, 16, 26, 36, 46, 56, 66, 76]
    assert batches.lengths[batches.profiled] == 36
    assert batches.lengths[batches.longest] == 80


# --------------------------------------------------------------------------------------------------------------- inputs


@pytest.mark.parametrize("padding", ["max-length", "longest", "sorted", "grouped"])
@pytest.mark.parametrize("name", [BERT, GPT2, T5])
def test_padding_has_no_attention_and_no_loss(name: str, padding: str, comments: str) -> None:
    made = prepared(name, comments, padding)
    assert made.texts is not None
    for batch, observed in zip(made.texts.batches, made.texts.observed.batches, strict=True):
        ids, mask, labels = batch["input_ids"], batch["attention_mask"], batch["labels"]
        assert ids.shape == mask.shape == labels.shape == (4, observed.length)
        assert int(ids.max()) < VOCABULARY
        assert mask.sum(dim=1).tolist() == list(observed.lengths)
        assert (labels[mask == 0] == IGNORED).all()
        assert ((labels != IGNORED).sum(dim=1) > 0).all()
        if name != BERT:
            assert torch.equal(labels[mask == 1], ids[mask == 1])
    lengths = [batch.length for batch in made.texts.observed.batches]
    assert (lengths == [24] * 8) is (padding == "max-length")
    assert (lengths == sorted(lengths)) is (padding in ("max-length", "sorted"))
    assert isinstance(made.inputs, dict)
    assert made.inputs["input_ids"].shape == (4, sorted(lengths)[3]) == (made.batch, made.sequence_length)


@pytest.mark.parametrize("name", [BERT, GPT2, T5])
def test_the_loss_of_a_padded_batch_is_that_of_its_texts_alone(name: str, comments: str) -> None:
    made = prepared(name, comments, "max-length", attention="eager")
    made.module.eval()
    assert isinstance(made.inputs, dict)
    inputs, lengths = made.inputs, made.inputs["attention_mask"].sum(dim=1).tolist()
    shift = name == GPT2  # the first token is not guessed
    total = guessed = 0.0
    with torch.no_grad(), quiet_libraries():
        padded = made.module(**inputs).loss
        for row, length in enumerate(lengths):
            alone = {key: value[row : row + 1, :length] for key, value in inputs.items()}
            count = int((alone["labels"][:, shift:] != IGNORED).sum())
            total += float(made.module(**alone).loss) * count
            guessed += count
    assert float(padded) == pytest.approx(total / guessed, rel=1e-5)


def test_a_masked_text_is_the_same_in_whatever_batch(comments: str) -> None:
    def rows(padding: str) -> dict[tuple[int, ...], tuple[int, ...]]:
        made = prepared(BERT, comments, padding)
        assert made.texts is not None
        pairs: dict[tuple[int, ...], tuple[int, ...]] = {}
        for batch in (*made.texts.batches, made.texts.longest):
            for ids, mask, labels in zip(batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True):
                pairs[tuple(ids[mask == 1].tolist())] = tuple(labels[mask == 1].tolist())
        return pairs

    one, other = rows("max-length"), rows("sorted")
    common = one.keys() & other.keys()
    assert len(common) > 10
    assert {ids: one[ids] for ids in common} == {ids: other[ids] for ids in common}


@pytest.mark.parametrize("task", ["sequence-classification", "token-classification", "base"])
@pytest.mark.parametrize("name", [BERT, GPT2])
def test_other_tasks(name: str, task: str, comments: str) -> None:
    made = prepared(name, comments, task=task)
    with quiet_libraries():
        output = made.module(**made.inputs)
    assert isinstance(made.inputs, dict)
    if task == "base":
        assert set(made.inputs) == {"input_ids", "attention_mask"}
        return
    assert torch.isfinite(output.loss)
    shape = (4,) if task.startswith("sequence") else (4, 24)
    assert made.inputs["labels"].shape == shape


def test_inference_has_no_labels(comments: str) -> None:
    assert set(prepared(T5, comments, inference=True).inputs) == {"input_ids", "attention_mask", "decoder_input_ids"}
    assert set(prepared(BERT, comments, inference=True).inputs) == {"input_ids", "attention_mask"}


def test_batches_are_made_of_real_tensors_where_tensors_are_fake(comments: str) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True), quiet_libraries():
        plan = plan_of(request(GPT2, comments, padding="grouped"))
        assert plan is not None
        assert plan.texts is not None
        made = plan.texts.inputs()
    real = prepared(GPT2, comments, "grouped")
    assert real.texts is not None
    assert len(made.batches) == len(real.texts.batches) == 8
    assert all(
        torch.equal(batch[key], other[key])
        for batch, other in zip(made.batches, real.texts.batches, strict=True)
        for key in ("input_ids", "attention_mask", "labels")
    )


# ----------------------------------------------------------------------------------------------------------- tokenizers


def test_a_slow_tokenizer_is_the_one_written_in_python(comments: str) -> None:
    """`use_fast=False` gives a fast one without a word: the class decides. The ids are the same."""
    slow, fast = prepared(BERT, comments, tokenizer="slow"), prepared(BERT, comments, tokenizer="fast")
    assert slow.texts is not None
    assert fast.texts is not None
    used, unused = slow.texts.observed.tokenizers
    assert (used.name, used.slow, used.used) == (PYTHON_TOKENIZER, True, True)
    assert (unused.name, unused.slow, unused.used) == (PreTrainedTokenizerFast.__name__, False, False)
    assert used.same_ids
    assert unused.same_ids
    assert used.tokens == unused.tokens == fast.texts.observed.tokenizers[0].tokens
    assert torch.equal(slow.texts.profiled["input_ids"], fast.texts.profiled["input_ids"])
    assert fast.texts.observed.tokenizers[0].name == PreTrainedTokenizerFast.__name__


@pytest.mark.parametrize("name", [BERT, GPT2])
def test_a_trained_tokenizer_is_the_same_each_time(name: str) -> None:
    config: Any = prepared(name, "sample").module.config
    vocabularies = [trained_tokenizer(config, sample()[:200], VOCABULARY).get_vocab() for _ in range(3)]
    assert vocabularies[0] == vocabularies[1] == vocabularies[2]


def test_letters_beyond_the_alphabet_are_unknown() -> None:
    config: Any = prepared(BERT, "sample").module.config
    texts = ["".join(chr(0x4E00 + number) for number in range(300)), "aa ab ba bb " * 20]
    tokenizer = trained_tokenizer(config, texts, 60)
    assert len(tokenizer) <= 60
    ids = tokenizer("ab " + chr(0x4E00 + 299))["input_ids"]
    assert tokenizer.unk_token_id in ids
    assert len(set(ids) - set(tokenizer.all_special_ids)) >= 1


def test_there_is_no_slow_tokenizer_of_gpt2(comments: str) -> None:
    message = message_of(request(GPT2, comments, tokenizer="slow"), UsageError)
    assert message.startswith("--tokenizer slow: no Python tokenizer of transformers ")
    assert "is known that does what that of gpt2 does" in message


@pytest.mark.parametrize(
    ("name", "first", "last"), [(ROBERTA, 0, 2), (BART, 0, 2), (T5, None, 1), (GPT2, None, None), (LLAMA, None, None)]
)
def test_special_tokens_have_the_ids_of_the_configuration(
    name: str, first: int | None, last: int | None, comments: str
) -> None:
    made = prepared(name, comments, "max-length")
    assert isinstance(made.inputs, dict)
    config: Any = made.module.config
    ids, lengths = made.inputs["input_ids"], made.inputs["attention_mask"].sum(dim=1)
    rows = [row[:length].tolist() for row, length in zip(ids, lengths, strict=True)]
    if first is not None and made.task != "masked-lm":
        assert {row[0] for row in rows} == {first} == {config.bos_token_id}
    if last is not None:
        assert {row[-1] for row in rows} == {last} == {config.eos_token_id}
    else:
        assert config.eos_token_id not in set(chain.from_iterable(rows))
    if config.pad_token_id is not None:
        assert config.pad_token_id not in set(chain.from_iterable(rows))
        assert set(ids[made.inputs["attention_mask"] == 0].tolist()) == {config.pad_token_id}


@pytest.fixture
def folder(tmp_path: Path, comments: str) -> Path:
    """The folder of a tiny BERT with a tokenizer of its own, of words it knows and 250 it does not need."""
    made = prepared(BERT, comments)
    made.module.config.save_pretrained(tmp_path)
    words = sorted({word.strip(".,!?").lower() for text in sample() for word in text.split()})
    vocabulary = ["[PAD]", *[f"[unused{number}]" for number in range(99)], "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
    return tmp_path


def test_the_own_tokenizer_of_a_folder_is_used(folder: Path, comments: str) -> None:
    options = request(BERT, comments, settings=(("vocab_size", "1000"),), tokenizer="slow")
    made = prepare(RunOptions(**{**_options(options), "model": str(folder)}))
    assert made.texts is not None
    slow, fast = made.texts.observed.tokenizers
    assert (slow.name, slow.trained_because, slow.same_ids, fast.same_ids) == (PYTHON_TOKENIZER, None, True, True)
    assert isinstance(made.inputs, dict)
    assert (made.inputs["input_ids"][:, 0] == 101).all()


def test_an_own_tokenizer_with_ids_beyond_the_vocabulary_is_not(folder: Path, comments: str) -> None:
    options = request(BERT, comments, settings=(("vocab_size", "200"),))
    made = prepare(RunOptions(**{**_options(options), "model": str(folder)}))
    assert made.texts is not None
    because = made.texts.observed.tokenizers[0].trained_because
    assert because is not None
    assert because.startswith("its own has ids up to ")
    assert because.endswith(", the model 200 tokens")


def test_an_own_tokenizer_that_cannot_be_read_is_named(folder: Path, comments: str) -> None:
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer.json").write_text("{")
    made = prepare(RunOptions(**{**_options(request(BERT, comments, settings=())), "model": str(folder)}))
    assert made.texts is not None
    assert str(made.texts.observed.tokenizers[0].trained_because).startswith("its own cannot be read (")


def test_a_folder_without_a_tokenizer_has_none(folder: Path, comments: str) -> None:
    """Of such a folder transformers makes a tokenizer of five special tokens, without a word."""
    (folder / "vocab.txt").unlink()
    made = prepare(RunOptions(**{**_options(request(BERT, comments, settings=())), "model": str(folder)}))
    assert made.texts is not None
    assert {tokenizer.trained_because for tokenizer in made.texts.observed.tokenizers} == {"none is available"}
    assert isinstance(made.inputs, dict)
    assert len(set(made.inputs["input_ids"].flatten().tolist())) > 10


def _options(options: RunOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in RunOptions.__struct_fields__}


# -------------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    "name",
    [
        "google/vit-base-patch16-224", "facebook/wav2vec2-base-960h", "openai/whisper-small",
        "openai/clip-vit-base-patch32",
    ],
)  # fmt: skip
def test_what_takes_no_text_is_refused(name: str) -> None:
    message = message_of(tiny_request(name, texts="sample"), UsageError)
    assert message.startswith("--texts sample: ")
    assert "takes more than text, or no text - leave it out" in message


def test_too_few_texts_or_tokens_are_refused(comments: str) -> None:
    assert "50 texts make no batch of 64 - give --batch 50 or less" in message_of(
        request(BERT, comments, batch=64), UsageError
    )
    small = (*TINY[GPT2], ("vocab_size", "20"))
    message = message_of(request(GPT2, comments, settings=small), UsageError)
    assert message.startswith("--texts: a vocabulary of 20 is too small for a tokenizer of these texts")


@pytest.mark.parametrize("option", ["padding", "tokenizer"])
def test_what_is_of_texts_needs_them(option: str) -> None:
    value = {"padding": "sorted", "tokenizer": "slow"}[option]
    with pytest.raises(UsageError, match=rf"^{option}='{value}' needs texts: give texts='sample' too$"):
        RunOptions(**{option: value})


def test_a_generation_has_no_texts() -> None:
    with pytest.raises(UsageError, match=r"^generate=2 needs prompts of one length: leave out texts='sample'$"):
        RunOptions(generate=2, texts="sample")


# ---------------------------------------------------------------------------------------------------------------- a run


@pytest.fixture(scope="module")
def run(comments: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Anatomy, Prepared, Path]:
    """A run of a tiny BERT on dynamically padded texts, its inputs, and its trace."""
    options = request(BERT, comments, padding="longest", attention="eager", memory=True, seq=60)
    trace = tmp_path_factory.mktemp("run") / "t.json"
    capture_model(options, trace, NullProgress(), lambda text: None)
    return analyze_traces([trace]), prepare(options), trace


def _contractions(made: Prepared, inputs: dict[str, Any]) -> int:
    with FlopCounterMode(display=False) as counter, quiet_libraries():
        made.module(**inputs).loss.backward()
    return counter.get_total_flops()


#: A model, and what the step on it is changed by.
STEPS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": (BERT, {}), "gpt2": (GPT2, {}), "t5": (T5, {}),
    "in micro-batches": (BERT, {"accumulate": 2, "batch": 4}), "frozen": (BERT, {"freeze": "layers:1"}),
}  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_flops_on_padding_are_what_the_texts_alone_do_not_need(
    step: str,
    run: tuple[Anatomy, Prepared, Path],
    comments: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    anatomy, made, _ = run
    name, changes = STEPS[step]
    if step != "bert":
        monkeypatch.setattr(step_runner, "_ROUNDS", 1)
        common = {"padding": "longest", "attention": "eager", "seq": 60, "batch": 3}
        options = request(name, comments, **{**common, **changes})
        capture_model(options, tmp_path / "t.json", NullProgress(), lambda text: None)
        anatomy, made = analyze_traces([tmp_path / "t.json"]), prepare(options)
        require_agreement(anatomy)
    assert anatomy.texts is not None
    assert anatomy.texts.padding_flops is not None
    assert isinstance(made.inputs, dict)
    lengths = made.inputs["attention_mask"].sum(dim=1).tolist()
    alone = sum(
        _contractions(made, {key: value[row : row + 1, :length] for key, value in made.inputs.items()})
        for row, length in enumerate(lengths)
    )
    flops = anatomy.texts.padding_flops
    assert flops.flops == flops.assigned_flops == _contractions(made, made.inputs)
    assert flops.padding_flops == flops.flops - alone > 0


def test_a_report_has_what_texts_padding_and_tokenizers_cost(run: tuple[Anatomy, Prepared, Path]) -> None:
    anatomy, made, _ = run
    figures = anatomy.texts
    assert figures is not None
    assert made.texts is not None
    observed = made.texts.observed
    assert (figures.file, figures.padding, figures.count, figures.maximum) == ("comments.txt", "longest", 50, 60)
    assert [row.length for row in figures.batches] == [batch.length for batch in observed.batches]
    assert [row.useful_tokens for row in figures.batches] == [sum(batch.lengths) for batch in observed.batches]
    assert [row.tokens for row in figures.batches] == [4 * batch.length for batch in observed.batches]
    lengths = sorted(row.length for row in figures.batches)
    profiled = [row for row in figures.batches if row.profiled]
    assert [row.length for row in profiled] == [lengths[3]] == [anatomy.workload.sequence_length]
    assert profiled[0].step_ns is not None
    assert anatomy.step.unprofiled_wall_min_ns is not None
    assert anatomy.step.unprofiled_wall_max_ns is not None
    assert anatomy.step.unprofiled_wall_min_ns <= profiled[0].step_ns <= anatomy.step.unprofiled_wall_max_ns
    total_ns = sum(row.step_ns or 0 for row in figures.batches)
    assert figures.mean_step_ns == pytest.approx(total_ns / 8, abs=1)
    assert figures.samples_per_second == pytest.approx(4 * 8e9 / total_ns)
    assert figures.tokens_per_second == pytest.approx(sum(row.tokens for row in figures.batches) * 1e9 / total_ns)
    for tokenizer in figures.tokenizers:
        assert tokenizer.holds_back == (tokenizer.tokens_per_second < figures.useful_tokens_per_second)
    require_agreement(anatomy)


def test_the_memory_is_that_of_the_longest_batch(run: tuple[Anatomy, Prepared, Path]) -> None:
    anatomy, made, _ = run
    assert made.texts is not None
    assert anatomy.texts is not None
    length = made.texts.longest["input_ids"].shape[1]
    assert anatomy.texts.memory_length == length > (anatomy.workload.sequence_length or 0)
    sizes = {row.component: row.measured_bytes for row in anatomy.memory.components}
    assert sizes["inputs"] == 3 * 4 * length * 8
    activations = next(row for row in anatomy.memory.components if row.component == "forward_activations")
    assert activations.theory_bytes is not None
    assert activations.measured_bytes == pytest.approx(activations.theory_bytes, rel=0.02)


def test_the_sections_of_texts(run: tuple[Anatomy, Prepared, Path]) -> None:
    sections = {section.name: section for section in sections_of(run[0])}
    assert [fact.label for fact in sections["texts"].facts] == [
        "texts", "padding", "wasted", "steps", "memory", "tokenizer", "tokenizer",
    ]  # fmt: skip
    assert len(sections["batches"].rows) == 8


def test_a_redacted_report_does_not_name_the_file(run: tuple[Anatomy, Prepared, Path]) -> None:
    redacted = analyze_traces([run[2]], redact=True)
    assert redacted.texts is not None
    assert redacted.texts.file == "<path>"
    written = json.loads(run[2].read_text())["opanatomy"]["texts"]
    assert (written["file"], written["padding"]) == ("comments.txt", "longest")
