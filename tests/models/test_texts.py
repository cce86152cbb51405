"""Real texts as inputs: how they are read, tokenized and padded, their loss, the report of a run on them."""

from __future__ import annotations

import csv
import gzip
import json
from fractions import Fraction
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode
from transformers.trainer_pt_utils import get_length_grouped_indices

import opanatomy
from opanatomy.attribution.attribute import attribute
from opanatomy.attribution.calls import trace_calls_of
from opanatomy.attribution.table import call_table, padding_flops
from opanatomy.capture.model.texts import IGNORED, batches_of, read_texts, sample
from opanatomy.capture.model.workload import Prepared, prepare
from opanatomy.capture.silence import quiet_libraries
from opanatomy.checks.counts import require_agreement
from opanatomy.errors import UsageError
from opanatomy.options import RunOptions
from opanatomy.records.workload import TextBatch
from opanatomy.report import terminal_report
from opanatomy.results import Anatomy
from opanatomy.trace.read import read_trace
from tests.support.made_trace import TraceBuilder
from tests.support.tiny import BERT, TINY, message_of, profiled, tiny, tiny_request

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
def prepared(name: str, texts: str, padding: str | None = None, **others: Any) -> Any:
    return prepare(request(name, texts, padding=padding, **others))


# -------------------------------------------------------------------------------------------------------------- reading

TEXTS = ("One text.", "Another, with a comma", 'a "quoted" one; and more', "zuletzt: größer als 日本")


def table(path: Path, delimiter: str, header: str = "comment") -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["stars", "title", header])
        writer.writerows([number, "short", text] for number, text in enumerate(TEXTS))


def test_every_form_gives_the_same_texts(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("\n\n".join(TEXTS) + "\r\n   \n", encoding="utf-8")
    (tmp_path / "t.txt.gz").write_bytes(gzip.compress("\n".join(TEXTS).encode()))
    rows = [{"id": str(number), "label": number, "body": text} for number, text in enumerate(TEXTS)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, [*rows, {"id": "9", "label": 1, "body": None}])))
    for name, delimiter, header in (
        ("t.csv", ",", "comment"),
        ("t.tsv", "\t", "comment"),
        ("s.csv", ";", "comment"),
        ("named.csv", ",", "remark"),
    ):
        table(tmp_path / name, delimiter, header)
    asked: dict[str, str | None] = {
        "t.txt": None,
        "t.txt.gz": None,
        "t.jsonl": "body",
        "t.csv": "comment",
        "t.tsv": "comment",
        "s.csv": "comment",
        "named.csv:remark": "remark",
    }
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"n": [1, 2, 3, 4], "words": list(TEXTS)}), tmp_path / "t.parquet")
    for name, column in {**asked, "t.parquet": "words"}.items():
        read = read_texts(str(tmp_path / name))
        assert (read.texts, read.column, read.more) == (TEXTS, column, False), name
        assert read.file == name.removesuffix(":remark")


WRONG = {
    "none.txt": (None, "no such file"),
    ".": (None, "it is a folder"),
    "blank.txt": (b"\n \n\t\n", "it contains no text"),
    "binary.txt": (bytes(range(256)), "it is not UTF-8 text"),
    "zeros.txt": (b"abc\0\0def\n", "it is binary, not text"),
    "cut.txt.gz": (gzip.compress(b"some text here")[:20], "cannot be read"),
    "no.parquet": (b"words", "not Parquet"),
    "lines.txt:text": (b"a line\n", "a plain text file has no column 'text'"),
    "t.csv:comment": (b"text,label\na b,1\n", "it has no column 'comment' - its columns are text, label"),
    "t.csv:label": (b"text,label\na b,1\n", "its column 'label' contains no text - its columns are text, label"),
    "two.csv": (b"first,second\na b,c d\n", "it has several text columns - use "),
    "numbers.csv": (b"first,second\n1,2\n", "it has no text column"),
    "bad.jsonl": (b'{"text": "a"}\n{"text": \n', "line 2 is not JSON"),
    "list.jsonl": (b"[1, 2]\n", "line 1 is not a JSON object"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_has_no_texts_is_one_line(name: str, tmp_path: Path) -> None:
    content, said = WRONG[name]
    if content is not None:
        (tmp_path / name.partition(":")[0]).write_bytes(content)
    message = message_of(request(BERT, str(tmp_path / name)), UsageError)
    assert message.startswith(f"--texts {tmp_path}")
    assert said in message


# -------------------------------------------------------------------------------------------------------------- padding

LENGTHS = (3, 9, 2, 9, 5, 4, 2, 7, 6, 1)


@pytest.mark.parametrize(
    ("padding", "sizes"), [("max-length", [10] * 5), ("sorted", [2, 3, 5, 7, 9]), ("longest", None), ("grouped", None)]
)
def test_tokens_with_padding_counted_by_hand(padding: str, sizes: list[int] | None) -> None:
    batches = batches_of(LENGTHS, 2, padding, 10, seed=1)
    longest = [max(LENGTHS[text] for text in texts) for texts in batches.texts]
    assert list(batches.lengths) == (sizes or longest)
    assert batches.tokens == 2 * sum(batches.lengths)
    assert sorted(chain.from_iterable(batches.texts)) == list(range(10))


def test_groups_are_those_of_the_trainer() -> None:
    lengths = [1 + (number * 7919) % 53 for number in range(90)]
    theirs = get_length_grouped_indices(lengths, 4, generator=torch.Generator().manual_seed(3))
    texts = batches_of(lengths, 4, "grouped", 64, seed=3).texts
    assert list(chain.from_iterable(texts)) == theirs[: 4 * 22]


# --------------------------------------------------------------------------------------------------------------- inputs


@pytest.mark.parametrize("padding", ["max-length", "longest", "sorted", "grouped"])
@pytest.mark.parametrize("name", [BERT, GPT2, T5])
def test_padding_has_no_attention_and_no_loss(name: str, padding: str, comments: str) -> None:
    made = prepared(name, comments, padding)
    for batch, observed in zip(made.texts.batches, made.texts.observed.batches, strict=True):
        ids, mask, labels = batch["input_ids"], batch["attention_mask"], batch["labels"]
        assert ids.shape == mask.shape == labels.shape == (4, observed.length)
        assert int(ids.max()) < VOCABULARY
        assert mask.sum(dim=1).tolist() == list(observed.lengths)
        assert (labels[mask == 0] == IGNORED).all()
        assert ((labels != IGNORED).sum(dim=1) > 0).all()
        assert name == BERT or torch.equal(labels[mask == 1], ids[mask == 1])
    lengths = [batch.length for batch in made.texts.observed.batches]
    assert (lengths == [24] * 8) is (padding == "max-length")
    assert made.inputs["input_ids"].shape == (4, sorted(lengths)[3]) == (made.batch, made.sequence_length)


@pytest.mark.parametrize("name", [BERT, GPT2, T5])
def test_the_loss_of_a_padded_batch_is_that_of_its_texts_alone(name: str, comments: str) -> None:
    made = prepared(name, comments, "max-length", attention="eager")
    made.module.eval()
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
        texts = prepared(BERT, comments, padding).texts
        return {
            tuple(ids[mask == 1].tolist()): tuple(labels[mask == 1].tolist())
            for batch in (*texts.batches, texts.longest)
            for ids, mask, labels in zip(batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True)
        }

    one, other = rows("max-length"), rows("sorted")
    common = one.keys() & other.keys()
    assert len(common) > 10
    assert {ids: one[ids] for ids in common} == {ids: other[ids] for ids in common}


@pytest.mark.parametrize("name", [BERT, GPT2])
@pytest.mark.parametrize(
    ("others", "shape"),
    [
        ({"task": "sequence-classification"}, (4,)),
        ({"task": "token-classification"}, (4, 24)),
        ({"task": "base"}, None),
        ({"inference": True}, None),
    ],
    ids=["sequence", "token", "base", "inference"],
)
def test_labels_of_other_tasks(name: str, others: dict[str, Any], shape: tuple[int, ...] | None, comments: str) -> None:
    made = prepared(name, comments, **others)
    with quiet_libraries():
        output = made.module(**made.inputs)
    if shape is None:
        assert set(made.inputs) == {"input_ids", "attention_mask"}
    else:
        assert made.inputs["labels"].shape == shape
        assert torch.isfinite(output.loss)


# ----------------------------------------------------------------------------------------------------------- tokenizers


def test_a_slow_tokenizer_is_the_one_written_in_python(comments: str) -> None:
    """`use_fast=False` gives a fast one without a word: the class decides. The ids are the same."""
    slow, fast = prepared(BERT, comments, tokenizer="slow"), prepared(BERT, comments, tokenizer="fast")
    used, unused = slow.texts.observed.tokenizers
    assert (used.name, used.slow, used.used, used.same_ids) == (PYTHON_TOKENIZER, True, True, True)
    assert (unused.name, unused.slow, unused.used, unused.same_ids) == (
        transformers.PreTrainedTokenizerFast.__name__,
        False,
        False,
        True,
    )
    assert used.tokens == unused.tokens == fast.texts.observed.tokenizers[0].tokens
    assert torch.equal(slow.texts.profiled["input_ids"], fast.texts.profiled["input_ids"])


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [(ROBERTA, None, 2), (BART, 0, 2), (T5, None, 1), (GPT2, None, None), (LLAMA, None, None)],
)
def test_special_tokens_have_the_ids_of_the_configuration(
    name: str, first: int | None, last: int | None, comments: str
) -> None:
    made = prepared(name, comments, "max-length")
    config: Any = made.module.config
    ids, mask = made.inputs["input_ids"], made.inputs["attention_mask"]
    rows = [row[:length].tolist() for row, length in zip(ids, mask.sum(dim=1), strict=True)]
    assert first is None or {row[0] for row in rows} == {first} == {config.bos_token_id}
    if last is not None:
        assert {row[-1] for row in rows} == {last} == {config.eos_token_id}
    else:
        assert config.eos_token_id not in set(chain.from_iterable(rows))
    if config.pad_token_id is not None:
        assert config.pad_token_id not in set(chain.from_iterable(rows))
        assert set(ids[mask == 0].tolist()) == {config.pad_token_id}


@pytest.fixture
def folder(tmp_path: Path, comments: str) -> Path:
    """The folder of a tiny BERT with a tokenizer of its own, of words it knows and 250 it does not need."""
    prepared(BERT, comments).module.config.save_pretrained(tmp_path)
    words = sorted({word.strip(".,!?").lower() for text in sample() for word in text.split()})
    vocabulary = ["[PAD]", *[f"[unused{number}]" for number in range(99)], "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
    return tmp_path


@pytest.mark.parametrize(
    ("files", "vocabulary", "because"),
    [
        ({}, "1000", None),
        ({}, "200", "the model's tokenizer uses ids up to "),
        ({"tokenizer.json": "{"}, "400", "the model's tokenizer cannot be loaded ("),
        ({"vocab.txt": None}, "400", "the model comes without a tokenizer"),
    ],
    ids=["used", "too-many-ids", "unreadable", "none"],
)
def test_the_tokenizer_of_a_folder(
    files: dict[str, str | None], vocabulary: str, because: str | None, folder: Path, comments: str
) -> None:
    if files:
        (folder / "vocab.txt").unlink()
    for name, content in files.items():
        if content is not None:
            (folder / name).write_text(content)
    made: Any = prepare(
        request(BERT, comments, model=str(folder), settings=(("vocab_size", vocabulary),), tokenizer="slow")
    )
    slow, fast = made.texts.observed.tokenizers
    if because is None:
        assert (slow.name, slow.trained_because, slow.same_ids, fast.same_ids) == (PYTHON_TOKENIZER, None, True, True)
        assert (made.inputs["input_ids"][:, 0] == 101).all()
    else:
        assert str(slow.trained_because).startswith(because)
        assert len(set(made.inputs["input_ids"].flatten().tolist())) > 10


# -------------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("name", "others", "said"),
    [
        ("google/vit-base-patch16-224", {"seq": None}, "takes inputs other than text - leave it out"),
        ("openai/whisper-small", {"seq": None}, "takes inputs other than text - leave it out"),
        (BERT, {"batch": 64}, "too few texts (50) for a batch of 64 - use --batch 50 or less"),
        (GPT2, {"settings": (*TINY[GPT2], ("vocab_size", "20"))}, "a vocabulary of 20 is too small for a tokenizer of"),
        (GPT2, {"tokenizer": "slow"}, "--tokenizer slow: transformers "),
    ],
)
def test_texts_that_fit_no_model_are_refused(name: str, others: dict[str, Any], said: str, comments: str) -> None:
    options = tiny_request if name.startswith(("google/vit", "openai/")) else request
    assert said in message_of(options(name, **{"texts": comments, **others}), UsageError)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"padding": "sorted"}, "padding='sorted' needs texts - add texts='sample'"),
        ({"tokenizer": "slow"}, "tokenizer='slow' needs texts - add texts='sample'"),
        ({"generate": 2, "texts": "sample"}, "generate=2 needs prompts of equal length - leave out texts='sample'"),
    ],
)
def test_options_that_make_no_sense_together(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        RunOptions(**options)
    assert str(caught.value) == said


# ---------------------------------------------------------------------------------------------------------------- a run

#: A model, and what the step on it is changed by.
STEPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "bert": (BERT, ("--memory", "--batch", "4")),
    "gpt2": (GPT2, ()),
    "t5": (T5, ()),
    "in micro-batches": (BERT, ("--accumulate", "2", "--batch", "4")),
    "frozen": (BERT, ("--freeze", "layers:1")),
}


@cache
def run(step: str, comments: str) -> tuple[Anatomy, Prepared]:
    """A run on dynamically padded texts, and its inputs."""
    name, words = STEPS[step]
    common = ("--texts", comments, "--padding", "longest", "--attention", "eager", "--seq", "60")
    size = ("--set", f"vocab_size={VOCABULARY}", "--batch", "3")
    batch = 4 if "4" in words else 3
    made = prepared(
        name,
        comments,
        "longest",
        attention="eager",
        seq=60,
        batch=batch,
        freeze="layers:1" if step == "frozen" else None,
    )
    return profiled(*tiny(name, *common, *size, *words)), made


def contraction_flops(made: Prepared, inputs: dict[str, Any]) -> int:
    with FlopCounterMode(display=False) as counter, quiet_libraries():
        made.module(**inputs).loss.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("step", STEPS)
def test_flops_on_padding_are_what_the_texts_alone_do_not_need(step: str, comments: str) -> None:
    anatomy, made = run(step, comments)
    require_agreement(anatomy)
    assert anatomy.texts is not None
    assert anatomy.texts.padding_flops is not None
    assert isinstance(made.inputs, dict)
    alone = sum(
        contraction_flops(made, {key: value[row : row + 1, :length] for key, value in made.inputs.items()})
        for row, length in enumerate(made.inputs["attention_mask"].sum(dim=1).tolist())
    )
    flops = anatomy.texts.padding_flops
    assert flops.flops == flops.assigned_flops == contraction_flops(made, made.inputs)
    assert flops.padding_flops == flops.flops - alone > 0


HEADS, PAIRS = [3, 2, 6, 8], Fraction(36 + 16 + 4, 3 * 36)


@pytest.mark.parametrize(
    ("shapes", "useful"),
    [
        ([HEADS, HEADS, HEADS], PAIRS),
        ([HEADS, HEADS, HEADS, [1, 1, 6, 6]], PAIRS),
        # Other sequences than the texts', other rows, a head as wide as the texts are long.
        ([HEADS, [3, 2, 5, 8], [3, 2, 5, 8]], None),
        ([[3, 2, 5, 8], HEADS, HEADS], None),
        ([[2, 2, 6, 8]] * 3, None),
        ([[3, 2, 5, 6]] * 3, None),
        ([[3, 6, 5, 8]] * 3, PAIRS),
    ],
)
def test_fused_attention_on_padding_by_hand(shapes: list[list[int]], useful: Fraction | None, tmp_path: Path) -> None:
    """Three texts of 6, 4 and 2 tokens as 3 x 6: of each text the pairs of its own tokens are of use."""
    made = TraceBuilder()
    given = [*shapes, []] if len(shapes) == 3 else shapes
    made.host(
        "aten::_scaled_dot_product_efficient_attention",
        10,
        50,
        shapes=[*given, [], [], []],
        types=[*("float" if shape else "" for shape in given), "Scalar", "Scalar", "Scalar"],
        constants=["", "", "", "", "True", "0.", "False"],
    )
    trace = read_trace(made.write(tmp_path / "trace.json"))
    calls, _ = trace_calls_of(trace, attribute(trace.names, trace.host, trace.launches, trace.work))
    figures = padding_flops(calls, call_table(trace, calls, None), TextBatch(lengths=(6, 4, 2), length=6), steps=1)
    assert figures.flops > 0
    assert figures.assigned_flops == (0 if useful is None else figures.flops)
    assert figures.padding_flops == (0 if useful is None else round(figures.flops * (1 - useful)))


def test_a_report_has_what_texts_padding_and_tokenizers_cost(comments: str) -> None:
    anatomy, made = run("bert", comments)
    figures = anatomy.texts
    assert figures is not None
    assert made.texts is not None
    observed = made.texts.observed
    assert (figures.file, figures.padding, figures.count, figures.maximum) == ("comments.txt", "longest", 50, 60)
    assert [(row.length, row.useful_tokens, row.tokens) for row in figures.batches] == [
        (batch.length, sum(batch.lengths), 4 * batch.length) for batch in observed.batches
    ]
    (profiled_row,) = [row for row in figures.batches if row.profiled]
    lengths = sorted(row.length for row in figures.batches)
    assert profiled_row.length == lengths[3] == anatomy.workload.sequence_length
    step = anatomy.step
    assert (step.unprofiled_wall_min_ns or 0) <= (profiled_row.step_ns or 0) <= (step.unprofiled_wall_max_ns or 0)
    total_ns = sum(row.step_ns or 0 for row in figures.batches)
    assert figures.mean_step_ns == pytest.approx(total_ns / 8, abs=1)
    assert figures.samples_per_second == pytest.approx(4 * 8e9 / total_ns)
    assert figures.tokens_per_second == pytest.approx(sum(row.tokens for row in figures.batches) * 1e9 / total_ns)
    for tokenizer in figures.tokenizers:
        assert tokenizer.holds_back == (tokenizer.tokens_per_second < (figures.useful_tokens_per_second or 0))
    page = terminal_report(anatomy, width=120, color=False, sections=("texts", "batches"))
    assert "wasted" in page
    assert all(f"{row.length}" in page for row in figures.batches)


def test_the_memory_is_that_of_the_longest_batch(comments: str) -> None:
    anatomy, made = run("bert", comments)
    assert made.texts is not None
    assert anatomy.texts is not None
    length = made.texts.longest["input_ids"].shape[1]
    assert anatomy.texts.memory_length == length > (anatomy.workload.sequence_length or 0)
    rows = {row.component: row for row in anatomy.memory.components}
    assert rows["inputs"].measured_bytes == 3 * 4 * length * 8
    activations = rows["forward_activations"]
    assert activations.measured_bytes == pytest.approx(activations.theory_bytes, rel=0.02)


def test_a_redacted_report_does_not_name_the_file(comments: str) -> None:
    words = tiny(BERT, "--texts", comments, "--set", f"vocab_size={VOCABULARY}", "--redact")
    anatomy = profiled(*words)
    assert anatomy.texts is not None
    assert anatomy.texts.file == "<path>"
    assert comments not in opanatomy.report.formats.json.json_report(anatomy)
