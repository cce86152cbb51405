"""Texts of files in every form, and what is wrong with those that have none."""

from __future__ import annotations

import csv
import gzip
import json
import sys
from pathlib import Path

import pytest
from tokenizers.pre_tokenizers import BertPreTokenizer

from opanatomy.capture.model import texts
from opanatomy.capture.model.texts import COUNT, batches_of, read_texts, sample
from opanatomy.errors import UsageError

TEXTS = ("One text.", "Another, with a comma", 'a "quoted" one; and more', "zuletzt: größer als 日本")


def lines(path: Path) -> str:
    path.write_text("\n\n".join(TEXTS) + "\r\n   \n", encoding="utf-8")
    return str(path)


def compressed(path: Path) -> str:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write("\n".join(TEXTS))
    return str(path)


def json_lines(path: Path) -> str:
    rows = [{"id": str(number), "label": number, "body": text} for number, text in enumerate(TEXTS)]
    path.write_text("\n".join(map(json.dumps, [*rows, {"id": "9", "label": 1, "body": None}])))
    return str(path)


def table(path: Path, delimiter: str, header: str = "comment") -> str:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["stars", "title", header])
        writer.writerows([number, "short", text] for number, text in enumerate(TEXTS))
    return str(path)


def test_every_form_gives_the_same_texts(tmp_path: Path) -> None:
    asked = {
        lines(tmp_path / "t.txt"): None, compressed(tmp_path / "t.txt.gz"): None,
        json_lines(tmp_path / "t.jsonl"): "body", table(tmp_path / "t.csv", ","): "comment",
        table(tmp_path / "t.tsv", "\t"): "comment", table(tmp_path / "semicolons.csv", ";"): "comment",
        table(tmp_path / "named.csv", ",", "remark") + ":remark": "remark",
    }  # fmt: skip
    for name, column in asked.items():
        read = read_texts(name)
        assert (read.texts, read.column, read.more) == (TEXTS, column, False), name
        assert read.file == Path(name).name.removesuffix(":remark")


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"n": [1, 2, 3, 4], "words": list(TEXTS)}), tmp_path / "t.parquet")
    assert read_texts(str(tmp_path / "t.parquet")).texts == TEXTS
    (tmp_path / "no.parquet").write_text("words")
    with pytest.raises(UsageError, match="not Parquet"):
        read_texts(str(tmp_path / "no.parquet"))


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(UsageError, match=r"^--texts .*t\.parquet: Parquet needs pyarrow, .* - pip install pyarrow"):
        read_texts(str(tmp_path / "t.parquet"))


def test_no_more_are_read_than_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "MAX_TEXTS", 3)
    read = read_texts(lines(tmp_path / "t.txt"))
    assert (read.texts, read.more) == (TEXTS[:3], True)


WRONG = {
    "none.txt": (None, "no such file"),
    ".": (None, "it is a folder"),
    "empty.txt": (b"", "it has no text in it"),
    "blank.txt": (b"\n \n\t\n", "it has no text in it"),
    "binary.txt": (bytes(range(256)), "it is not UTF-8 text"),
    "zeros.txt": (b"abc\0\0def\n", "it is not text but binary"),
    "cut.txt.gz": (gzip.compress(b"some text here")[:20], "cannot be read"),
    "lines.txt:text": (b"a line\n", "a file of lines has no column 'text'"),
    "t.csv:comment": (b"text,label\na b,1\n", "it has no column 'comment' - it has text, label"),
    "t.csv:label": (b"text,label\na b,1\n", "its column 'label' holds no texts - it has text, label"),
    "two.csv": (b"first,second\na b,c d\n", "it has several columns of texts - give "),
    "numbers.csv": (b"first,second\n1,2\n", "it has no column of texts"),
    "header.csv": (b"text,label\n", "it has no text in it"),
    "bad.jsonl": (b'{"text": "a"}\n{"text": \n', "line 2 is not JSON"),
    "list.jsonl": (b"[1, 2]\n", "line 1 is not a JSON object"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_file_is_one_line(name: str, tmp_path: Path) -> None:
    content, said = WRONG[name]
    if content is not None:
        (tmp_path / name.partition(":")[0]).write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_texts(str(tmp_path / name))
    message = str(caught.value)
    assert message.startswith(f"--texts {tmp_path}")
    assert said in message
    assert " - " in message
    assert "\n" not in message


def test_an_address_is_no_file() -> None:
    with pytest.raises(UsageError, match="address"):
        read_texts("https://example.org/comments.csv")


@pytest.mark.parametrize(("padding", "percent"), [("max-length", 17), ("longest", 36), ("sorted", 98), ("grouped", 92)])
def test_the_sample_wastes_most_where_all_is_padded_to_the_longest(padding: str, percent: int) -> None:
    """As comments and sentences do at batch 8 x 128: 17 %, 36 % and 98 % of the tokens are useful."""
    texts = sample()
    assert len(texts) == COUNT
    words = BertPreTokenizer()
    lengths = [min(len(words.pre_tokenize_str(text)) + 2, 128) for text in texts]
    assert max(lengths) == 128
    batches = batches_of(lengths, 8, padding, 128, seed=0)
    assert round(100 * sum(lengths) / batches.tokens) == percent
