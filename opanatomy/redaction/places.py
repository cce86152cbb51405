"""Who, where and which file: what a text says of people and machines, and what `--redact` leaves of names."""

from __future__ import annotations

import re
from typing import Final

from opanatomy.redaction.keys import words

ADDRESS: Final = "<address>"
PATH: Final = "<path>"
HOST: Final = "<host>"
USER: Final = "<user>"

_IPV4: Final = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_IPV6: Final = re.compile(r"(?<![\w:])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])")
_MAC: Final = re.compile(r"(?<![\w:])(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}(?![\w:])")
_MAILBOX: Final = re.compile(r"(?<![\w.+-])[A-Za-z][\w.+-]*@[A-Za-z][\w-]*(?:\.[\w-]+)*")
_HOME: Final = re.compile(r"((?:/home/|/Users/|[A-Za-z]:\\Users\\))[^/\\\s\"']+")
_DOMAIN: Final = re.compile(
    r"(?<![\w.])(?:[a-z0-9][a-z0-9-]{0,62}\.){1,8}(?:com|net|org|edu|gov|io|dev|local|internal|cluster|corp|lan|localdomain|"
    r"intra|cloud)(?!\w)"
)
_PART: Final = r"[^\s/\\\"'<>|:;,()\[\]{}]{1,255}"
_ENDINGS: Final = (
    "pyc?|pyx|so(?:\\.\\d+)*|cuh?|cpp|cc|cxx|hpp|json|ya?ml|toml|txt|sh|csv|pth?|safetensors|ckpt|ipynb|onnx|parquet|"
    "whl|zip|gz"
)
_PATHS: Final = re.compile(
    r"(?i:[a-z][a-z0-9+.-]{0,30})://[^\s\"'<>|)\]},]+"
    rf"|(?<![\w.)\]>])(?:~[\w.-]*|\.{{1,2}})?/(?:{_PART}/)*{_PART}/?"
    rf"|(?<!\w)[A-Za-z]:[\\/](?:{_PART}[\\/])*{_PART}"
    rf"|\\\\{_PART}\\(?:{_PART}\\)*{_PART}"
    r"|(?:[\w.@+~-]{1,255}[/\\]){2,}[\w.@+~-]*"
    rf"|(?:[\w.@+~-]{{1,255}}[/\\])*[\w@+~-][\w.@+~-]{{0,255}}\.(?:{_ENDINGS})(?![\w.])"
)
#: What is left of `/home/someone/x.py` once the name is left out.
_IN_HOME: Final = re.compile(rf"{PATH}/?{USER}(?:/?{PATH})?")
_OWN_RANGE: Final = re.compile(r"^opanatomy\.(?:phase|module)/[\w.\[\]-]*$")


def without_addresses(text: str) -> str:
    """The text without network addresses, mailboxes and the names of home folders."""
    text = _IPV4.sub(ADDRESS, text)
    text = _IPV6.sub(lambda match: ADDRESS if _is_ipv6(match[0]) else match[0], text)
    text = _MAC.sub(ADDRESS, text)
    text = _MAILBOX.sub(USER, text)
    return _HOME.sub(rf"\1{USER}", text)


def _is_ipv6(text: str) -> bool:
    import ipaddress

    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return sum(bool(group) for group in text.split(":")) >= 3


def without_paths(text: str) -> str:
    """The text without file names, URLs and the names of hosts; ranges of a capture are none of these."""
    if _OWN_RANGE.match(text):
        return text
    return _DOMAIN.sub(HOST, _IN_HOME.sub(PATH, _PATHS.sub(PATH, text)))


# ----------------------------------------------------------------------------------------------------- known shapes

_PYTHON_FRAME: Final = re.compile(r"^.*?\((\d+)\): ")
_PROCESS: Final = re.compile(r"^(?:python[\d.]*|CPU|[A-Z]{2,5}(?: \d+)?|Spans|Traces|opanatomy)$")
_THREAD: Final = re.compile(r"^((?:thread|stream) -?\w+)(?: .*)?$")
_SCALAR: Final = re.compile(r"^(?:None|True|False|[-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|\.\d+|inf|nan)j?)$")
_SEPARATORS: Final = re.compile(r"[\[\]\s,]+")
#: Constants of operators that decide their FLOPs or say where they ran.
_CONSTANT_WORDS: Final = words(
    "none tanh mean sum floor trunc constant reflect replicate circular linear cpu cuda meta cuda:0"
)


def frame_without_file(name: str) -> str:
    """`/home/a/train.py(12): step` -> `<path>(12): step`."""
    return _PYTHON_FRAME.sub(rf"{PATH}(\1): ", name)


def plain_label(label: str) -> str:
    """The label of a process or thread without what only a user could have chosen."""
    if _PROCESS.match(label):
        return label
    thread = _THREAD.match(label)
    return thread[1] if thread else ""


def is_plain_constant(text: str) -> bool:
    """Whether an argument of an operator, as text, is a number, a truth value, a list of these, or a known word."""
    if text in _CONSTANT_WORDS:
        return True
    return all(_SCALAR.match(word) for word in _SEPARATORS.split(text) if word)
