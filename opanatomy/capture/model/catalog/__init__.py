"""Read the embedded configurations: one `config.json` of the Hub per model, `<owner>--<model>.json`.

Values are as published; label names are replaced by their number (`num_labels`) and text generation settings are
omitted, since neither changes a training step. The key `catalog` has the class, task and size of the model built from
the file, which `opanatomy catalog` lists. To add a model, add its file.
"""

from __future__ import annotations

import json
from difflib import get_close_matches
from importlib.resources import files
from typing import Any, Final

import msgspec
from msgspec import Struct

from opanatomy.records.patterns import regex

#: The key that is not part of the published configuration.
_OWN_KEY: Final = "catalog"
#: A word of a name, without its numbers.
_LETTERS: Final = regex(r"[a-z]{3,}")


class Entry(Struct, frozen=True, kw_only=True):
    """A built-in model in its default form; `layers` and `hidden` per stack."""

    name: str
    kind: str
    architecture: str
    task: str
    parameters: int
    #: `None` without layers of one kind, one after another.
    layers: tuple[int, ...] | None = None
    hidden: tuple[int, ...] | None = None


def catalog_names() -> tuple[str, ...]:
    """Return the Hub ids of the embedded models, sorted."""
    names = (entry.name for entry in files(__name__).iterdir() if entry.name.endswith(".json"))
    return tuple(sorted((name[: -len(".json")].replace("--", "/", 1) for name in names), key=str.lower))


def find_name(model: str) -> str | None:
    """Return the Hub id of the embedded model that `model` means, `None` if there is no match.

    Accepts the full id and the part after its slash (`bert-large-uncased`, `gpt2`), case-insensitively.
    """
    wanted = model.lower()
    for name in catalog_names():
        if wanted in (name.lower(), name.lower().split("/")[-1]):
            return name
    return None


def read_configuration(name: str) -> dict[str, Any]:
    """Return the content of the `config.json` of the embedded model `name` (its full Hub id)."""
    content = _content(name)
    content.pop(_OWN_KEY)
    return content


def catalog_entries() -> tuple[Entry, ...]:
    """Return the embedded models by name."""
    return tuple(map(_entry, catalog_names()))


def _entry(name: str) -> Entry:
    content = _content(name)
    return msgspec.convert({**content[_OWN_KEY], "name": name, "kind": content["model_type"]}, Entry)


def _content(name: str) -> dict[str, Any]:
    text = files(__name__).joinpath(name.replace("/", "--", 1) + ".json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def near_names(model: str, count: int = 3) -> tuple[str, ...]:
    """Return Hub ids of embedded models with this prefix, then similar ones, then the same family; nearest first.

    The family of `Llama-2-7b` is `llama`: models of any organisation with a word beginning so.
    """
    full = {key: name for name in catalog_names() for key in (name.lower(), name.lower().split("/")[-1])}
    wanted = model.lower()
    short = wanted.split("/")[-1]
    matches = [
        *(key for key in full if short and key.startswith(short)),
        *get_close_matches(wanted, full, n=count, cutoff=0.6),
        *get_close_matches(short, full, n=count, cutoff=0.6),
    ]
    family = _LETTERS.search(short)
    words = {name: _LETTERS.findall(name.lower()) for name in catalog_names()}
    alike = [name for name in words if family and any(word.startswith(family[0]) for word in words[name])]
    return tuple(dict.fromkeys((*(full[match] for match in matches), *alike)))[:count]
