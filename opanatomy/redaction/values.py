"""Secrets known by their value: learned from an environment, a command line or a trace's metadata, found anywhere."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import Final

from opanatomy.redaction.forms import values_by_key
from opanatomy.redaction.keys import Secrecy, is_secret_variable, secrecy_of, words
from opanatomy.redaction.vocabulary import is_vocabulary

#: A value is looked for elsewhere from this length on.
MIN_LENGTH: Final = 8
_MIN_NAME: Final = 4
#: Deeper than this nothing is looked at.
DEEPEST: Final = 32
#: How many values are learned, the longest first.
MAX_VALUES: Final = 500
#: A message may end within a value; this much of it is known for a part of it.
_MIN_CUT: Final = 12

_NAMES: Final = words(
    "root user users admin ubuntu nobody localhost local localdomain host hostname python default none true false null"
    " train training worker main node rank cuda linux"
)
#: What a variable of a secret's name may be set to, or what reports are made of: looked for, it would spoil them.
_COMMON: Final = words(
    "password passwords changeme disabled disable enabled required optional anonymous username development"
    " production undefined unlimited keychain keyring kerberos negotiate external automatic transformers"
    " transformer attention embedding embeddings embedding_bag layernorm optimizer_step gradient gradients training"
    " inference operator operators opanatomy profiler profile accelerate datasets pytorch tensorflow huggingface"
    " function functions module modules parameter parameters pretrained tokenizer tokenizers checkpoint"
    " checkpointing interactive standard container kubernetes localhost redacted <redacted> secretkey"
    " reentrant non-reentrant flash_attention_2 classification language_model weights activations"
)
_NUMBER: Final = re.compile(r"^[-+]?[\d.,_]+(?:[eE][-+]?\d+)?$|^0[xX][0-9a-fA-F]{1,16}$")
_PATH: Final = re.compile(
    r"^(?:~[\w.-]*|\.{1,2})?/(?:home|root|tmp|var|etc|usr|opt|run|mnt|data|srv|dev|proc|workspace|Users)(?:/|$)"
    r"|^(?:~[\w.-]*|\.{1,2})?/[^\s:]*\.[A-Za-z]\w{0,7}$|^~/|^[A-Za-z]:[\\/]"
)
_LOGIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/@:\"']{0,256}:([^\s/@\"']{1,1024})@")
#: A token in the place of the user, with no password after it: `https://TOKEN@host/simple`.
_USER: Final = re.compile(r"https?://(?=[^\s/@:]*[0-9])(?=[^\s/@:]*[A-Za-z])([^\s/@:\"']{12,1024})@", re.IGNORECASE)
#: `Uid=me;Pwd=...` of a connection string; elsewhere `PWD` is a folder.
_PWD: Final = re.compile(r";\s*pwd\s*=\s*([^;]{1,1024})", re.IGNORECASE)
_WORD: Final = re.compile(r"^[A-Z]?[a-z]+$|^[A-Z]+$")
_WHO: Final = frozenset({"user", "username", "logname", "login", "host", "hostname", "nodename", "fqdn"})


#: What a process once knew stays a secret: code that reads its token may take it out of the environment.
_seen: Final[set[str]] = set()


def of_process() -> set[str]:
    """The secrets of this process: on its command line and in its environment, now or when this was asked before."""
    for name, value in list(os.environ.items()):
        _seen.update(_of_variable(name, value))
    secrets = set(_seen)
    for value in values_by_key(shlex.join(sys.argv)):
        _add(value, secrets)
    for argument in sys.argv:
        key, equals, value = argument.partition("=")
        if equals and secrecy_of(key.lstrip("-")) is Secrecy.SECRET:
            _add(value, secrets)
        _add_logins(argument, secrets)
    return secrets


def of_metadata(metadata: Mapping[str, object]) -> tuple[set[str], set[str]]:
    """(secrets, names of hosts and users) that the metadata of a trace tell."""
    secrets: set[str] = set()
    names: set[str] = set()

    def look(key: str, value: object, depth: int) -> None:
        if depth > DEEPEST:
            return
        if isinstance(value, dict):
            for inner, item in value.items():
                look(str(inner), item, depth + 1)
        elif isinstance(value, list):
            for item in value:
                look(key, item, depth + 1)
        elif isinstance(value, str):
            _learn_text(key, value.strip(), secrets, names)
            if value[:1] in ("{", "["):
                look(key, _decoded(value), depth + 1)

    for key, value in metadata.items():
        look(key, value, 0)
    return secrets, names


def _learn_text(key: str, value: str, secrets: set[str], names: set[str]) -> None:
    if secrecy_of(key) is Secrecy.SECRET:
        _add(value, secrets)
    _learn_variable(key, value, secrets)
    name, equals, rest = value.partition("=")
    if equals and name.isidentifier():
        _learn_variable(name, rest, secrets)
    elif "=" in value or ":" in value:
        for one in values_by_key(value):
            _add(one, secrets)
    words_of_key = set(re.split(r"[^a-z]+", key.lower()))
    if words_of_key & _WHO and len(value) >= _MIN_NAME and value.lower() not in _NAMES and " " not in value:
        names.add(value)


@lru_cache(maxsize=4096)
def _of_variable(name: str, value: str) -> frozenset[str]:
    secrets: set[str] = set()
    _learn_variable(name, value, secrets)
    return frozenset(secrets)


def _learn_variable(name: str, value: str, secrets: set[str]) -> None:
    """A secret variable's value, its items and lines; of any variable the passwords in URLs and connection strings."""
    _add_logins(value, secrets)
    if "=" in value:
        for one in (*values_by_key(value), *_PWD.findall(value)):
            _add(one, secrets)
    if not is_secret_variable(name):
        return
    _add(value, secrets)
    if value[:1] in ("{", "["):
        _add_all(_decoded(value), "", secrets, 0)
        return
    for part in re.split(r"[\r\n]+" if "\n" in value else r"[\s,;]+", value):
        if "-----" not in part and not _WORD.match(part):
            _add(part, secrets)


def _add_all(value: object, key: str, secrets: set[str], depth: int) -> None:
    """The secrets in a JSON document: a service account's file names its project too."""
    if isinstance(value, dict) and depth < DEEPEST:
        for inner, item in value.items():
            _add_all(item, str(inner), secrets, depth + 1)
    elif isinstance(value, list) and depth < DEEPEST:
        for item in value:
            _add_all(item, key, secrets, depth + 1)
    elif isinstance(value, str) and (not key or secrecy_of(key) is Secrecy.SECRET or key.endswith(("key", "key_id"))):
        _learn_variable("SECRET", value, secrets)


def _add_logins(text: str, secrets: set[str]) -> None:
    for password in _LOGIN.findall(text) if "://" in text else ():
        from urllib.parse import unquote

        _add(password, secrets)
        _add(unquote(password), secrets)
    for token in _USER.findall(text) if "://" in text else ():
        _add(token, secrets)


def _add(value: str, secrets: set[str]) -> None:
    value = value.strip().strip("\"'")
    if is_worth(value):
        secrets.add(value)


def is_worth(value: str) -> bool:
    """Whether a secret of this value is distinct from other text: no word, number, path or row of asterisks."""
    if len(value) < MIN_LENGTH or value.lower() in _common() or _NUMBER.match(value) or len(set(value)) < 4:
        return False
    if is_vocabulary(value):
        return False
    return not (_PATH.match(value) or (value.startswith("/") and _exists(value)))


@cache
def _common() -> frozenset[str]:
    """Common words, and what the columns of a report are made of."""
    from opanatomy.records.data_types import ITEM_SIZE
    from opanatomy.records.taxonomy import OperatorClass, Phase

    return _COMMON | set(ITEM_SIZE) | {str(one) for one in (*OperatorClass, *Phase)}


def _exists(path: str) -> bool:
    try:
        return os.path.exists(path)
    except (OSError, ValueError):
        return False


def _decoded(text: str) -> object:
    import msgspec

    try:
        document: object = msgspec.json.decode(text)
        return document
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


# ---------------------------------------------------------------------------------------------------------- patterns

#: Kineto makes a slash of each backslash.
_ESCAPES: Final[dict[str, str]] = {
    "'": r"""(?:[\\/]*'|'"'"'|%27|&#(?:39|x27);|[\\/]+u0027)""",
    '"': r'(?:[\\/]*"|%22|&quot;|&#34;|[\\/]+u0022)',
    "\\": r"(?:[\\/]+|%5[Cc]|[\\/]+u005[Cc])",
    "/": r"(?:[\\/]*/|%2[Ff]|[\\/]+u002[Ff])",
    "&": r"(?:&amp;|&|%26|[\\/]+u0026)",
    "<": r"(?:&lt;|<|%3[Cc]|[\\/]+u003[Cc])",
    ">": r"(?:&gt;|>|%3[Ee]|[\\/]+u003[Ee])",
    " ": r"(?:\s|\+|%20|[\\/]+u0020|[\\/]+[nrt])",
}
#: A backslash of a value and the letter after it, where the backslash is not escaped, are one character of JSON.
_CONTROLS: Final = {"b": "\\x08", "f": "\\x0c", "n": "\\n", "r": "\\r", "t": "\\t"}
_ESCAPED: Final = re.compile(r"\\[bfnrt]")
_CHARACTERS: Final = re.compile(r"\\[bfnrt]|.", re.DOTALL)
_BREAK: Final = "(?:\\s|\\\\+[nrt]|%0[AaDd]|\\\\+u000[aAdD9]|�)+"


def pattern_of(values: Iterable[str]) -> re.Pattern[str] | None:
    """An expression that finds these values: plain, escaped as in JSON, Python or HTML, quoted as in a URL or a shell.

    In capital and small letters too; a value that is a single word is found as a word of its own only, and as it is.
    """
    longest_first = sorted(set(values), key=lambda value: (-len(value), value))[:MAX_VALUES]
    return re.compile("|".join(map(_spellings, longest_first))) if longest_first else None


def names_pattern(names: Iterable[str]) -> re.Pattern[str] | None:
    """An expression that finds names of users and hosts as words of their own."""
    longest_first = sorted(set(names), key=lambda name: (-len(name), name))[:MAX_VALUES]
    if not longest_first:
        return None
    return re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, longest_first))})(?![A-Za-z0-9])")


def _spellings(value: str) -> str:
    body = "".join(
        _BREAK if part.isspace() and part != " " else "".join(map(_spelling, _CHARACTERS.findall(part)))
        for part in re.split(r"(\s*[\r\n\t]+\s*)", value)
    )
    return rf"(?<![A-Za-z0-9])(?:{body})(?![A-Za-z0-9])" if _WORD.match(value) else f"(?i:{body})"


def _spelling(character: str) -> str:
    """One character, or one that a backslash stands before, as it is or escaped."""
    if len(character) == 2:
        return rf"(?:{_ESCAPES[character[0]]}{character[1]}|{_CONTROLS[character[1]]})"
    if character.isalnum() and character.isascii():
        return character
    if character in _ESCAPES:
        return _ESCAPES[character]
    cases = {one for one in (character, character.lower(), character.upper()) if len(one) == 1}
    escapes = "|".join(escape for one in sorted(cases) for escape in _escapes_of(one))
    return rf"(?:[\\/]*{re.escape(character)}|(?i:{escapes}))"


def _escapes_of(character: str) -> tuple[str, ...]:
    """The escapes of a character in URLs, JSON and Python, of text and of bytes."""
    octets = character.encode(errors="surrogatepass")
    units = character.encode("utf-16-be", errors="surrogatepass")
    code = ord(character)
    return (
        "".join(f"%{byte:02X}" for byte in octets),
        "".join(rf"[\\/]+x{byte:02x}" for byte in octets),
        "".join(rf"[\\/]+u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2)),
        rf"[\\/]+x{code:02x}" if code < 256 else rf"[\\/]+U{code:08x}",
    )


def trigger_of(value: str) -> str:
    """The longest part of a value that no escape changes, in small letters: where it is not, the value is not.

    Of a value without letters and digits it is empty: it may be anywhere.
    """
    return max(re.findall(r"[a-z0-9]+", _ESCAPED.sub(" ", value).lower()), key=len, default="")


def cut_pattern(values: Iterable[str]) -> re.Pattern[str] | None:
    """An expression that finds the beginnings of long values: what a message that was cut off still has of them."""
    long = [value for value in values if len(value) > _MIN_CUT and "://" not in value[:_MIN_CUT]]
    starts = sorted({value[:_MIN_CUT]: value for value in long if is_worth(value[:_MIN_CUT])}.values())
    bodies = ["".join(map(_spelling, value[:_MIN_CUT])) + "[^\\s\"')\\]]*" for value in starts[:MAX_VALUES]]
    return re.compile("|".join(bodies)) if bodies else None
