"""What a trace must not give away: the rules, as tables and pure functions over keys and texts."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from enum import Enum, auto
from functools import lru_cache
from typing import Final

REDACTED: Final = "<redacted>"
ADDRESS: Final = "<address>"
PATH: Final = "<path>"
HOST: Final = "<host>"
USER: Final = "<user>"


class Secrecy(Enum):
    """Why the value under a key is not written."""

    SECRET = auto()
    ENVIRONMENT = auto()
    #: Who ran it, where, with which command line.
    IDENTITY = auto()
    STACK = auto()


# ------------------------------------------------------------------------------------------------------------- keys


def words(text: str) -> frozenset[str]:
    """The words of a table."""
    return frozenset(text.split())


_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")
_SECRET: Final = words(
    "secret secrets password passwords passwd passphrase credential credentials apikey authorization bearer cookie"
    " cookies jwt"
)
_LAST_OF_SECRET: Final = frozenset({"token", "auth", "pat"})
_BEFORE_KEY: Final = words(
    "api access secret private ssh auth signing encryption session account license service wandb"
)
_ENVIRONMENT: Final = words("env envs environ environment environments envvar envvars")
_IDENTITY: Final = words(
    "host hosts hostname hostnames fqdn node nodes nodename nodelist machine user users username login logname owner"
    " email mail account ip ips ipv4 ipv6 ipaddr addr address addresses cmd cmdline command commandline argv job jobs"
    " jobid slurm cwd pwd home homedir workdir submitter"
)
_STACK: Final = words("stack stacks frame frames traceback backtrace stackframes sf esf")
_AMOUNT: Final = words("num count rank size index threads token")


def secrecy_of(key: str) -> Secrecy | None:
    """Why a value under this key is sensitive; `None` where the key does not say."""
    return _secrecy_of(key if len(key) <= 2 * _KEY_END else f"{key[:_KEY_END]}_{key[-_KEY_END:]}")


@lru_cache(maxsize=4096)
def _secrecy_of(key: str) -> Secrecy | None:
    parts = _parts(key)
    if not parts:
        return None
    if _SECRET.intersection(parts) or parts[-1] in _LAST_OF_SECRET:
        return Secrecy.SECRET
    if parts[-1] == "key" and (len(parts) == 1 or parts[-2] in _BEFORE_KEY):
        return Secrecy.SECRET
    if _ENVIRONMENT.intersection(parts):
        return Secrecy.ENVIRONMENT
    if _STACK.intersection(parts):
        return Secrecy.STACK
    return Secrecy.IDENTITY if _IDENTITY.intersection(parts) else None


def is_amount(key: str, value: object) -> bool:
    """Whether the value only counts or numbers: `num_nodes: 4`, `max_token: 512` tell nothing of anyone."""
    if not isinstance(value, int | float) and value is not None:
        return False
    return not _AMOUNT.isdisjoint(_parts(key))


def _parts(key: str) -> list[str]:
    """The words of a key, in small letters: `apiKey` and `API_KEY` are `api` and `key`."""
    return [part.lower() for part in _CAMEL.split(key) if part]


#: Of a very long key its two ends are looked at.
_KEY_END: Final = 100
_VARIABLE: Final = re.compile(r"^[A-Z][A-Z0-9_]{2,}$")
_ALWAYS_SET: Final = frozenset({"PATH", "HOME", "USER", "PWD", "SHELL", "HOSTNAME", "LOGNAME", "LD_LIBRARY_PATH"})


def is_variable(key: str) -> bool:
    """Whether a key is spelled like an environment variable."""
    return bool(_VARIABLE.match(key))


def is_environment(value: Mapping[str, object]) -> bool:
    """Whether a mapping is a process environment, whatever it is called."""
    variables = sum(map(is_variable, value))
    return not _ALWAYS_SET.isdisjoint(value) or (variables >= 3 and 2 * variables > len(value))


# ------------------------------------------------------------------------------------------------------------ tokens

_TOKENS: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_(?:[A-Za-z0-9]{16,}|(?=[A-Za-z]*[0-9A-Z])[A-Za-z0-9]{6,})"
    r"|gh[pousr]_[A-Za-z0-9]{6,}|github_pat_\w{6,}|glpat-[\w-]{6,}"
    r"|sk-[\w-]{8,}|[srp]k_(?:live|test)_\w{6,}|(?:AKIA|ASIA)[A-Z0-9]{8,}"
    r"|xox[abeoprs]-[\w-]{6,}|AIza[\w-]{16,}|ya29\.[\w-]{8,}|npm_[A-Za-z0-9]{16,}|pypi-[\w-]{16,}"
    r"|nvapi-[\w-]{8,}|dop_v1_\w{8,}|eyJ[\w-]{8,4096}\.[\w-]+(?:\.[\w-]+)?"
    r")|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)"
)
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/-]{8,}=*")
_LOGIN: Final = re.compile(r"(?i)([a-z][a-z0-9+.-]{0,30}://)[^\s/@\"']{1,1024}@")
_QUERY: Final = re.compile(r"(?i)([?&](?:sig|signature|x-amz-[\w-]{1,40}|[\w-]{0,40}(?:token|key|secret))=)[^&\s\"']+")
_ASSIGNED: Final = re.compile(
    r"(?i)((?:(?<![a-z])token|secret|passw(?:or)?d|passphrase|credentials?"
    r"|(?:api|access|private|secret|auth|account)[_-]?key)[\"']?(?:\s*[=:]\s*|(?<=-token)\s+|(?<=-key)\s+"
    r"|(?<=-password)\s+|(?<=-secret)\s+)[\"']?)([^\s\"',;&)}\]<]+)"
)
_NUMBER: Final = re.compile(r"^[-+]?[\d.]+(?:[eE][-+]?\d+)?$")

#: A text without any of these, in any case, needs no closer look.
TRIGGERS: Final = (
    "token", "secret", "passw", "passphrase", "credential", "bearer", "basic ", 'key"', "_key", "-key", "apikey",
    "private", "hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat", "glpat", "sk-", "k_live_", "k_test_",
    "akia", "asia", "xox", "aiza", "ya29", "eyj", "nvapi", "npm_", "pypi-", "dop_v1", "://", ":\\/", "environ",
    '"env', "\\u00", "signature", "cookie", "jwt", '_auth"', '"auth"', '_pat"',
)  # fmt: skip


def without_tokens(text: str) -> str:
    """The text with access tokens, passwords and the credentials of URLs left out."""
    text = _TOKENS.sub(REDACTED, text)
    text = _BEARER.sub(rf"\1 {REDACTED}", text)
    text = _LOGIN.sub(rf"\1{REDACTED}@", text)
    text = _QUERY.sub(rf"\1{REDACTED}", text)
    return _ASSIGNED.sub(_unassigned, text)


def _unassigned(match: re.Match[str]) -> str:
    return match[0] if _NUMBER.match(match[2]) else match[1] + REDACTED


# ------------------------------------------------------------------------------------------------------------ places

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
_OWN_RANGE: Final = re.compile(r"^opanatomy\.(?:phase|module)/[\w.\[\]-]*$")


def without_addresses(text: str) -> str:
    """The text without network addresses, mailboxes and the names of home folders."""
    text = _IPV4.sub(ADDRESS, text)
    text = _IPV6.sub(lambda match: ADDRESS if _is_ipv6(match[0]) else match[0], text)
    text = _MAC.sub(ADDRESS, text)
    text = _MAILBOX.sub(USER, text)
    return _HOME.sub(rf"\1{USER}", text)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return sum(bool(group) for group in text.split(":")) >= 3


def without_paths(text: str) -> str:
    """The text without file names, URLs and the names of hosts; ranges of a capture are none of these."""
    if _OWN_RANGE.match(text):
        return text
    return _DOMAIN.sub(HOST, _PATHS.sub(PATH, text))


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
