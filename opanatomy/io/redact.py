"""Mask the secrets of a text, a report, a trace, and on request its paths, addresses, hosts and users."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from operator import is_not
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.records.patterns import regex
from opanatomy.records.signature import SignatureText
from opanatomy.records.taxonomy import ITEM_SIZE, OperatorClass, Phase
from opanatomy.records.workload import METADATA_KEY, Capture

REDACTED: Final = "<redacted>"
ADDRESS: Final = "<address>"
PATH: Final = "<path>"
HOST: Final = "<host>"
USER: Final = "<user>"


def words(text: str) -> frozenset[str]:
    """Return a table's words."""
    return frozenset(text.split())


# --- names under which a secret stands ---

_PARTS: Final = regex(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z]+")
#: Searched for in a name's words joined together: `db_password`, `PGPASSWORD`, `authToken`, `secretkey`.
_SECRET: Final = regex(
    r"secret|passw(?:or)?d|passphrase|credential|authorization|bearer|cookie|oauth|(?:ssh|db|pg|mysql)pass"
    r"|(?:access|auth|api|refresh|session|user|bot|git(?:hub|lab))token"
    r"|(?:api|access|private|ssh|auth|signing|encryption|session|account|license|service|wandb)key"
)
#: A name ending in one of these denotes a secret.
_SECRET_ENDINGS: Final = words("token auth pat creds cred jwt dsn")
#: In uppercase variable names these denote secrets at any position: `SIGN_KEY`, `TOKENS_2`.
_OF_VARIABLE: Final = words("pass pwd pw key keys token tokens auth pat signature sas pin")
#: Tokens of a tokenizer or a model, and passes of a step.
_NO_SECRET: Final = {
    "token": words(
        "pad bos eos unk sep cls mask special image video audio start end begin class dist distillation next last first"
        " new max min num per prompt vision register stop padding unknown separator context memory query decoder sot"
        " eot boi eoi fim prefix suffix middle time latent learnable target source each single n"
    ),
    "pass": words(
        "forward backward first second third last single multi one two three each per by num all warmup warm up post"
        " pre through low high band n max min is of grad gradient optimizer lowering fusion compiler this every"
    ),
}
#: Last words of a name whose value describes a secret.
_DESCRIBING_ENDINGS: Final = words(
    "file files path paths dir folder sock socket ttl timeout expiry expires type algorithm alg length size version"
    " backend store mode helper prompt cmd command provider method enabled disabled required count name endpoint"
    " parallelism limit retries region through"
)


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return whether a key, an option or a variable of this name holds a secret: `apiKey`, `DB_PASS`, `HF_TOKEN`.

    `pad_token`, `forward_pass`, `num_key_value_heads` and `TOKEN_FILE` do not.
    """
    parts = [part.lower() for part in _PARTS.split(name[-200:]) if part]
    if not parts or parts[-1] in _DESCRIBING_ENDINGS:
        return False
    if _SECRET.search("".join(parts)):
        return True
    before, last = parts[-2] if len(parts) > 1 else "", parts[-1]
    if before in _NO_SECRET.get(last, ()):
        return False
    if name.isupper() and not _OF_VARIABLE.isdisjoint(parts):
        return bool(before) or last not in ("key", "pass", "pin", "pwd")
    return last in _SECRET_ENDINGS or (bool(before) and last in ("pass", "pwd"))


# --- secrets by their form, or by the name before them ---

#: Every name of a secret contains one of these; a text with none of them, in lowercase, has no such secret.
_NAME_WORDS: Final = (
    "token",
    "secret",
    "pass",
    "pwd",
    "cred",
    "key",
    "auth",
    "cookie",
    "dsn",
    "jwt",
    "pat",
    "bearer",
    "signature",
)
_TRIGGERS: Final = (
    *_NAME_WORDS, "basic ", "://", ":\\/", "sig=", "webhooks/", "hooks.slack", "telegram", "environ", "private",
    "hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "at-", "dt-", "rt-", "bt-", "tt-", "sk-", "k_live_", "k_test_",
    "whsec_", "akia", "asia", "xox", "xapp-", "aiza", "ya29", "gocspx-", "npm_", "pypi-", "nvapi-", "_v1_", "gsk_",
    "r8_", "pplx-", "dapi", "hvs.", "sg.", "shp", "eyj", "lin_api_",
)  # fmt: skip
_NAME: Final = (
    r"(?:(?<![\w\\-])|(?<=\\[bfnrt]))(?P<dash>--?)?"
    rf"(?P<key>(?=[\w.-]{{0,100}}(?:{'|'.join(_NAME_WORDS)}))[A-Za-z][\w.-]{{0,100}})"
)
_VALUE: Final = (
    r"(?P<value>\"(?:[^\"\\]|\\.){1,4096}\"|'(?:[^'\\]|\\.){1,4096}'|(?P<quote>\\+[\"']).{1,4096}?(?P=quote)"
    r"|\\*[\"']?[^\s\"',;&)}\]<]*[^\s\"',;&)}\]<:.])"
)
#: `key=value`, `"key": "value"`, `--key value`.
_PAIR: Final = regex(rf"(?is){_NAME}(?:\\*[\"']?\s{{0,8}}(?:=>?|:(?![:/]))\s{{0,8}}|(?(dash)\s+(?!-)|(?!))){_VALUE}")
_PAIRS: Final = (
    # `'key=a value in quotes'`, and a setting's `key before -> after`
    regex(rf"(?is)(?<=(?P<open>[\"'])){_NAME}=(?P<value>(?:(?!(?P=open)).){{1,4096}})(?=(?P=open))"),
    regex(rf"(?is){_NAME} (?P<value>\S.{{0,200}}? -> [^\n]*)"),
    _PAIR,
)
_FORMS: Final = (
    # Access tokens with no letter or digit before them, except of an escape (`\n`, `%3D`, `\x0a`); private keys.
    regex(
        r"(?:(?<![A-Za-z0-9])|(?<=\\[bfnrt])|(?<=%[0-9A-Fa-f]{2})|(?<=\\x[0-9a-f]{2})|(?<=\\u[0-9a-f]{4}))(?P<value>"
        r"(?:hf_|gh[pousr]_|npm_|gsk_|r8_|pplx-|lin_api_|dapi|do[opr]_v1_|shp(?:at|ca|pa|ss)_|AKIA|ASIA)"
        r"(?=[a-z]*[0-9A-Z])[A-Za-z0-9]{6,}"
        r"|(?:github_pat_|dckr_pat_|gl(?:pat|dt|rt|cbt|ptt|soat)-|sk-|[srp]k_(?:live|test)_|whsec_|xox[abeoprs]-|xapp-"
        r"|AIza|ya29\.|GOCSPX-|pypi-|nvapi-|hvs\.|eyJ|SG\.(?=[\w-]{16})|AGE-SECRET-KEY-1)"
        r"(?=[a-z._-]*[0-9A-Z])[\w.-]{5,}[\w-])"
        r"|(?P<block>-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----[\s\S]*?"
        r"(?:-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|$))"
    ),
    regex(r"\b(?i:bearer|basic)\s+(?P<value>(?=\S*[0-9A-Z=])[\w.~+/-]{8,}=*)"),
    regex(
        r"(?i)\b(?:(?:set-)?cookie|(?:proxy-)?authorization|x-[\w-]{0,40}(?:key|token|auth))\"?:\s{0,8}"
        r"(?!\s|(?:\w+ )?<redacted>)(?P<value>[^\r\n\"']+)"
    ),
    # The login in a URL; what Azure's stores have before the host is a container.
    regex(
        r"(?i)(?<![a-z0-9+.-])(?!(?:abfs|wasb)s?:[^\s:@]*@)[a-z][a-z0-9+.-]{0,30}:(?:\\?/){2}(?P<value>[^\s/@\"']{1,1024})(?=@)"
    ),
    regex(r"(?i)(?:hooks\.slack\.com/services/|/api/webhooks/|api\.telegram\.org/bot)(?P<value>\S+)"),
    regex(r"(?i)[?&](?:sig|signature|x-amz-[\w-]{1,40})=(?P<value>[^&\s\"'<]+)"),
)
#: First words of why a file of ours is not read: `secret.json: no such file`.
_BEGINNINGS: Final = words("no not it this the a cannot")
_PLAIN_VALUE: Final = regex(
    r"(?i)(?:[-+]?[\d.]+(?:e[-+]?\d+)?|none|null|true|false|bearer|basic|<redacted>.*|)", re.DOTALL
)


def _masked(match: re.Match[str]) -> str:
    """Return a match with its value replaced by `REDACTED`."""
    value = match["value"]
    if value is None:  # a private key is nothing but its value
        return REDACTED
    start, end = (index - match.start() for index in match.span("value"))
    before, after = match[0][:start], match[0][end:]
    if "key" not in match.re.groupindex:
        return before + REDACTED + after
    if not is_secret_name(match["key"]):
        return before + _PAIR.sub(_masked, value) + after
    if match["key"].endswith((".json", ".gz", ".pickle")) and value in _BEGINNINGS:
        return match[0]
    inner = _unquoted(value)
    return match[0] if _PLAIN_VALUE.fullmatch(inner) else before + value.replace(inner, REDACTED) + after


def _unquoted(value: str) -> str:
    """Return the text inside quotes, escaped ones too."""
    bare = value.lstrip("\\")
    if bare[:1] not in ("'", '"'):
        return value
    return bare[1:-1].rstrip("\\") if bare[-1:] == bare[:1] and len(bare) > 1 else bare[1:]


# --- secrets by their value, wherever it appears ---

_MIN_LENGTH: Final = 8
#: A message may end within a secret; this much of its begin is recognized.
_CUT_LENGTH: Final = 12
#: The number of values to look for, the longest first.
_MAX_VALUES: Final = 500
_MAX_DEPTH: Final = 32
#: Words of operators, modules, ranges and settings: `CACHE_KEY=aten::mm` and `SORT_KEY=layer_norm` are not secrets, and
#: masking them in a trace would change its figures.
_WORDS: Final = words(
    "aten prims torch nn functional autograd engine evaluate function functions profiler profile cpu cuda op module"
    " modules model models language transformer transformers encoder decoder block blocks layer layers stage stages"
    " features base backbone head heads self cross multi attn attention mha sdpa flash mlp ffn feed forward backward"
    " fwd bwd recompute optimizer step train training eval inference loss proj projection qkv query up down gate dense"
    " fc lin linear in out input inputs output outputs intermediate hidden embed embeddings embedding bag wte wpe word"
    " position positional lm cls pooler classifier classification norm norms ln layernorm rms batch group instance"
    " native add addmm addmv addcmul addcdiv mm bmm baddbmm mv matmul einsum mul div sub neg sum mean var std max min"
    " amax argmax pow exp log sqrt rsqrt softmax logsoftmax nll entropy dropout gelu silu relu tanh sigmoid act"
    " activation activations conv convolution overrideable miopen cudnn mkldnn pool pooling avg adaptive copy cat stack"
    " split view reshape transpose permute expand squeeze unsqueeze slice select index gather scatter fill zero zeros"
    " ones empty clone contiguous detach where masked scaled dot product efficient fused foreach mem memory memcpy"
    " memset kernel kernels elementwise vectorized unrolled reduce all rotary sgd adam adamw accumulate grad gradient"
    " gradients clip unscale item local scalar record data loader dataloader datasets next iter like as strided alias"
    " resize set unbind chunk narrow tril triu arange cumsum sort topk t to h c f a b d e g i j k l m n o p q r s u v w"
    " x y z operator operators parameter parameters pretrained tokenizer tokenizers checkpoint checkpointing reentrant"
    " non weights accelerate opanatomy pytorch tensorflow huggingface password passwords changeme disabled disable"
    " enabled required optional anonymous username development production undefined unlimited keychain keyring kerberos"
    " negotiate external automatic interactive standard container kubernetes secretkey"
    " root user users admin ubuntu nobody localhost localdomain host hostname python default none true false null"
    " worker main node rank linux"
)
_KNOWN_NAME: Final = regex(
    r"(?:aten|prims?|c10d|_c10d_functional|torch|torchvision|inductor|quantized)::[A-Za-z]\w*|[A-Z]\w*Backward\d"
)
_TERMS: Final = frozenset({*ITEM_SIZE, *map(str, OperatorClass), *map(str, Phase)})
_WORD_NAME: Final = regex(r"[A-Za-z_-]+(?:(?:\.|::|#|_)(?:[A-Za-z_]+|\d{1,4}))*")
_WORD_PART: Final = regex(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_WORD: Final = regex(r"[A-Z]?[a-z]+|[A-Z]+")
_NO_VALUE: Final = regex(
    r"[-+]?[\d.,_]+(?:[eE][-+]?\d+)?|0[xX][0-9a-fA-F]{1,16}"
    r"|(?:~[\w.-]*|\.{1,2})?/(?:home|root|tmp|var|etc|usr|opt|run|mnt|data|srv|dev|proc|workspace|Users)(?:/.*)?"
    r"|(?:~[\w.-]*|\.{1,2})?/[^\s:]*\.[A-Za-z]\w{0,7}|~/.*|[A-Za-z]:[\\/].*",
    re.DOTALL,
)
#: The password of a URL, a token in the place of its user, the `Pwd=` of a connection string.
_LOGINS: Final = regex(
    r"://[^\s/@:\"']{0,256}:([^\s/@\"']{1,1024})@|https?://(?=[^\s/@:]*[0-9])(?=[^\s/@:]*[a-z])([^\s/@:\"']{12,1024})@"
    r"|;\s*pwd\s*=\s*([^;]{1,1024})",
    re.IGNORECASE,
)
#: What may occur between a value's letters and digits: any other character, or its escape in JSON (Kineto writes a
#: slash for a backslash), Python, a URL, HTML. A backslash and the next letter may have become one character.
_BETWEEN: Final = (
    r"(?:[^A-Za-z0-9]|[\\/](?:[bfnrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})|%[0-9a-f]{2}|&#?\w{2,5};){1,64}[bfnrt]?"
)
_SPLIT: Final = regex(r"(?:\\[bfnrt]|[^A-Za-z0-9])+")

#: Secrets of the process at any time remain secret: code that reads its token may remove it from the environment.
_seen: Final[set[str]] = set()


def remember_environment_secrets() -> set[str]:
    """Return the secrets of this process: on its command line and in its environment, now and at earlier calls."""
    for name, value in list(os.environ.items()):
        _seen.update(_secrets_in_variable(name, value))
    return _seen.union(*(_secrets_of("", text) for text in (shlex.join(sys.argv), *sys.argv)))


def know_secrets(secrets: Iterable[str]) -> None:
    """Treat these as secrets of this process, on behalf of a process for which it writes."""
    _seen.update(secrets)


@lru_cache(maxsize=4096)
def _secrets_in_variable(name: str, value: str) -> frozenset[str]:
    return frozenset(secret for key, text in _leaves(name, value) for secret in _secrets_of(key, text))


def _leaves(name: str, value: object, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the texts in a value with their keys, also inside JSON texts."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(str(key), item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(name, item, depth + 1)
    elif isinstance(value, str):
        yield name, value
        if value[:1] in ("{", "["):
            try:
                inner = msgspec.json.decode(value)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return
            yield from _leaves(name, inner, depth + 1)


def _secrets_of(name: str, text: str) -> set[str]:
    """Return the secrets in a text with this key: the whole text, its items or lines, and those in logins and pairs."""
    values = []
    for pattern in _PAIRS if not text.isalnum() else ():
        for match in pattern.finditer(text):
            # `abc` for `--set auth_token=abc`
            if is_secret_name(match["key"]) and not _PLAIN_VALUE.fullmatch(inner := _unquoted(match["value"])):
                values.append(inner)
    values += [form for found in _LOGINS.findall(text) for login in found for form in (login, unquote(login))]
    variable, _, rest = text.partition("=")
    for key, value in ((name, text), (variable, rest)):
        if is_secret_name(key) and (key is name or key.isidentifier()):
            is_document = value[:1] in ("{", "[")
            parts = [] if is_document else re.split(r"[\r\n]+" if "\n" in value else r"[\s,;]+", value)
            values += [value, *(part for part in parts if "-----" not in part and not _WORD.fullmatch(part))]
    return {value for value in (value.strip().strip("\"'") for value in values) if is_worth(value)}


def is_worth(value: str) -> bool:
    """Return whether a secret is distinctive enough to search for: not a word, number, path or asterisks."""
    if len(value) < _MIN_LENGTH or len(set(value)) < 4 or _NO_VALUE.fullmatch(value) or _KNOWN_NAME.fullmatch(value):
        return False
    parts = _WORD_PART.findall(value) if _WORD_NAME.fullmatch(value) else [value]
    return value not in _TERMS and not all(part.lower() in _WORDS for part in parts)


def _spelled(value: str) -> str:
    """Return a case-insensitive expression for a value in any escaping; a single word only matches literally."""
    if _WORD.fullmatch(value):
        return rf"(?<![A-Za-z0-9])(?-i:{value})(?![A-Za-z0-9])"
    runs = [run for run in _SPLIT.split(value) if run]
    plain = "".join(runs)
    if 2 * len(plain) >= max(len(value), _CUT_LENGTH) and not plain.isdigit():
        return _BETWEEN.join(runs)
    cases = dict.fromkeys((value, value.upper(), value.lower()))
    forms = (form for one in cases for form in (one, ascii(one)[1:-1], repr(one.encode())[2:-1], quote(one, safe="")))
    return "|".join(re.escape(form).replace(r"\\", r"[\\/]{1,8}") for form in dict.fromkeys(forms))


@lru_cache(maxsize=16)
def _search(secrets: frozenset[str]) -> tuple[re.Pattern[str] | None, tuple[str, ...]]:
    """Return the pattern for these secrets, and the lowercase letters and digits that any text with one contains."""
    longest = sorted(secrets, key=lambda value: (-len(value), value))[:_MAX_VALUES]
    begins = [value[:_CUT_LENGTH] for value in longest if len(value) > _CUT_LENGTH and "://" not in value]
    begins = [begin for begin in dict.fromkeys(begins) if is_worth(begin) and not _WORD.fullmatch(begin)]
    spelled = [*map(_spelled, longest), *(rf"(?:{_spelled(begin)})[^\s\"')\]]*" for begin in begins)]
    triggers = {max(_SPLIT.split(value), key=len).lower() for value in (*longest, *begins)}
    return re.compile("(?i)" + "|".join(spelled)) if spelled else None, tuple(sorted(triggers))


# --- people, hosts and files ---

_ADDRESSES: Final = regex(
    r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])|(?<![\w:])(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}(?![\w:])"
    r"|(?<![\w:])(?:(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}|(?:[0-9A-Fa-f]{1,4}:){2,6}(?::[0-9A-Fa-f]{1,4}){1,5}"
    r"|(?:[0-9A-Fa-f]{1,4}:){1,6}(?::[0-9A-Fa-f]{1,4}){2,5})(?![\w:])"
)
_MAILBOX: Final = regex(r"(?<![\w.+/-])[A-Za-z][\w.+-]*@[A-Za-z][\w-]*(?:\.[\w-]+)*")
_HOME: Final = regex(r"((?:/home/|/Users/|[A-Za-z]:\\Users\\))[^/\\\s\"']+")
_DOMAIN: Final = regex(
    r"(?<![\w.])(?:[a-z0-9][a-z0-9-]{0,62}\.){1,8}(?:com|net|org|edu|gov|io|dev|local|internal|cluster|corp|lan|localdomain|"
    r"intra|cloud)(?!\w)"
)
_PART: Final = r"[^\s/\\\"'<>|:;,()\[\]{}]{1,255}"
_ENDINGS: Final = (
    "pyc?|pyx|so(?:\\.\\d+)*|cuh?|cpp|cc|cxx|hpp|json|ya?ml|toml|txt|sh|csv|pth?|safetensors|ckpt|ipynb|onnx|parquet|"
    "whl|zip|gz"
)
_PATHS: Final = regex(
    r"(?i:[a-z][a-z0-9+.-]{0,30})://[^\s\"'<>|)\]},]+"
    rf"|(?<![\w.)\]>])(?:~[\w.-]*|\.{{1,2}})?/(?:{_PART}/)*{_PART}/?"
    rf"|(?<!\w)[A-Za-z]:[\\/](?:{_PART}[\\/])*{_PART}"
    rf"|\\\\{_PART}\\(?:{_PART}\\)*{_PART}"
    r"|(?:[\w.@+~-]{1,255}[/\\]){2,}[\w.@+~-]*"
    rf"|(?:[\w.@+~-]{{1,255}}[/\\])*[\w@+~-][\w.@+~-]{{0,255}}\.(?:{_ENDINGS})(?![\w.])"
)
_WHO: Final = words("user username logname login host hostname nodename fqdn")
_MODULE: Final = "opanatomy.module/"
_OWN_RANGE: Final = regex(r"opanatomy\.(?:phase|module)/[\w.\[\]-]*")
_SCALARS: Final = regex(
    r"(?:[\[\]\s,]|\b(?:None|True|False)\b|(?<![\w.])[-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|\.\d+|inf|nan)j?(?![\w.]))*"
)
#: Constants of operators that decide their FLOPs or say where they ran.
_CONSTANTS: Final = words(
    "none tanh mean sum floor trunc constant reflect replicate circular linear cpu cuda meta cuda:0"
)


def is_plain_constant(text: str) -> bool:
    """Return whether an argument's text is a number, a truth value, a list of these, or a known word."""
    return text in _CONSTANTS or bool(_SCALARS.fullmatch(text))


def _without_people(text: str) -> str:
    """Mask network addresses, mailboxes and the names of home folders."""
    return _HOME.sub(rf"\1{USER}", _MAILBOX.sub(USER, _ADDRESSES.sub(ADDRESS, text)))


# --- masking ---

#: A longer text is not a name; with `everything` it is dropped unread.
_MAX_NAME_LENGTH: Final = 1 << 16
_CACHED_LENGTH: Final = 1000


def _mask(text: str, secrets: frozenset[str], names: frozenset[str], everything: bool) -> str:
    if everything and len(text) > _MAX_NAME_LENGTH:
        return REDACTED
    lower, (by_value, triggers) = text.lower(), _search(secrets)
    if by_value is not None and any(map(lower.__contains__, triggers)):
        text = by_value.sub(REDACTED, text)
    if any(map(lower.__contains__, _TRIGGERS)):
        for pattern in (*_FORMS, *_PAIRS):
            text = pattern.sub(_masked, text)
    if not everything:
        return text
    if not _OWN_RANGE.fullmatch(text):
        text = _without_people(_DOMAIN.sub(HOST, _PATHS.sub(PATH, _MAILBOX.sub(USER, text))))
    for name in sorted(names, key=len, reverse=True)[:_MAX_VALUES]:
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", USER, text)
    return text


_mask_once: Final = lru_cache(maxsize=1 << 15)(_mask)


class Redactor:
    """Mask the texts of one report, trace or message; collect further secrets from trace metadata.

    The secrets of the process itself, in its environment and on its command line, are always known. `everything` also
    masks paths, addresses, hosts and users.
    """

    def __init__(self, metadata: Mapping[str, object] | None = None, *, everything: bool = False) -> None:
        self.everything = everything
        #: The number of texts changed.
        self.changes = 0
        #: From the metadata of traces: secrets, hosts and users.
        self.trace_secrets: set[str] = set()
        self.trace_names: set[str] = set()
        self._secrets, self._names = frozenset(remember_environment_secrets()), frozenset[str]()
        if metadata:
            self.add_secrets(metadata)

    def add_secrets(self, metadata: Mapping[str, object]) -> None:
        """Add the secrets, hosts and users in a trace's metadata."""
        own = metadata.get(METADATA_KEY)
        command = own.get("command") if isinstance(own, dict) else None
        leaves = [*_leaves("", {**metadata, METADATA_KEY: command})]
        secrets = {secret for key, text in leaves for secret in _secrets_of(key, text)}
        people = {text for key, text in leaves if not _WHO.isdisjoint(re.split(r"[^a-z]+", key.lower()))}
        self.know(
            secrets, {name for name in people if len(name) >= 4 and " " not in name and name.lower() not in _WORDS}
        )

    def know(self, secrets: Iterable[str], names: Iterable[str]) -> None:
        """Add secrets, hosts and users from the metadata of a trace."""
        self.trace_secrets |= set(secrets)
        self.trace_names |= set(names)
        self._secrets |= self.trace_secrets
        self._names |= self.trace_names

    @property
    def triggers(self) -> tuple[str, ...]:
        """Return substrings; a text with none of them, in lowercase, has no secret."""
        return _TRIGGERS + _search(self._secrets)[1]

    def text(self, text: str) -> str:
        """Return a name or a message masked."""
        mask = _mask_once if len(text) <= _CACHED_LENGTH else _mask
        masked = mask(str(text), self._secrets, self._names, self.everything)  # a signature's text carries a record
        self.changes += masked != text
        return masked

    def sentence(self, text: str) -> str:
        """Return a text of a report masked; it names no homes and no addresses either."""
        return _without_people(self.text(text))

    def module(self, path: str) -> str:
        """Return the path of a module masked the way its range in the trace is."""
        return self.text(f"{_MODULE}{path}").removeprefix(_MODULE)

    def is_clean(self, text: str) -> bool:
        """Return whether a text, a value or a name, needs no masking."""
        changes, masked = self.changes, self.text(text)
        self.changes = changes
        return masked == text and not is_secret_name(text)


def mask_secrets(text: str) -> str:
    """Mask a line for stderr: this process's secrets, and anything that looks like a secret."""
    return Redactor().text(text)


# ----- the records of a report, from which every format is made
#
# Numbers, terms of an enumeration and packed columns are written as they are; every text is masked.


Record = TypeVar("Record")

#: Fields with our own text, written unchanged.
OWN: Final = words("source formula rule term quantity unit conventions created")
#: Fields with names of operators, kernels, data types, devices and versions, which are masked as in the trace; all
#: other texts are sentences.
NAMES: Final = words(
    "operator operators part_of first_operator kernel kernels saved_by collective dtype kind head activation device"
    " other_devices device_kind torch cuda driver transformers python processor lists list_arguments profiler_times_ns"
)
#: Fields with module paths, masked like their ranges in the trace.
MODULES: Final = words("module modules gradients")
#: What `everything` leaves of fields with who ran what from where; for several ranks the number stays.
PLACES: Final = {"command": REDACTED, "trace": PATH, "max_trace": PATH, "file": PATH}
#: Fields with a call's arguments.
ARGUMENTS: Final = words("signature signatures")

_RANKS: Final = regex(r"(\d+ ranks): .*", re.DOTALL)
_TENSOR: Final = regex(r"(?:\?|[a-z][a-z0-9_]*)\[[\d,]*\](?: sparse \d+| without strides)?\]*")


def redacted(record: Record, redactor: Redactor) -> Record:
    """Return the record redacted, including nested records; the same object if nothing is masked."""
    result: Record = _value(record, "", redactor)
    return result


def _value(value: Any, field: str, redactor: Redactor) -> Any:
    if value is None or field in OWN or isinstance(value, (int, float, Enum)):
        return value
    if isinstance(value, str):
        masked = _text(value, field, redactor)
        return value if masked == value else masked
    if isinstance(value, bytes):
        from opanatomy.records.columns import is_packed  # and with it numpy, which `--help` does without

        return value if is_packed(value) else b""
    if isinstance(value, Struct):
        values = {name: getattr(value, name) for name in value.__struct_fields__}
        changed = {name: new for name, old in values.items() if (new := _value(old, name, redactor)) is not old}
        if redactor.everything and values.get("model_source") in ("folder", "function"):
            changed["model"] = PATH
        return replace(value, **changed) if changed else value
    if isinstance(value, (tuple, list)):
        items = [_value(item, field, redactor) for item in value]
        return type(value)(items) if any(map(is_not, items, value)) else value
    if not isinstance(value, dict):
        return _table(value, redactor)
    result: dict[Any, Any] = {}
    for key, item in value.items():
        name, masked = _value(key, field, redactor), _value(item, field, redactor)
        # The times of names that become equal add up.
        result[name] = result[name] + masked if name in result and type(masked) is int else masked
    return value if result == value else result


def _table(table: Any, redactor: Redactor) -> Any:
    from opanatomy.records.table import Table  # and with it numpy
    from opanatomy.records.work import COLUMNS_OF

    if not isinstance(table, Table):
        return table
    masks = {"name": redactor.text, "module": redactor.module, "arguments": lambda text: _arguments(text, redactor)}
    text_of = {column.name: column.text for column in COLUMNS_OF[type(table)]}
    changed = {}
    for name, key in table.keys.items():
        mask = masks.get(text_of[name])
        masked = key.values if mask is None else map(mask, key.values)
        values = tuple(old if new == old else new for old, new in zip(key.values, masked, strict=True))
        if values != key.values:
            changed[name] = replace(key, values=values)
    return table.with_columns(changed, {}) if changed else table


def _text(text: str, field: str, redactor: Redactor) -> str:
    if field in ARGUMENTS:
        return _arguments(text, redactor)
    if field in MODULES:
        return redactor.module(text)
    if field in NAMES:
        return redactor.text(text)
    if field in PLACES and redactor.everything:
        ranks = _RANKS.fullmatch(text)
        return ranks[1] if ranks else PLACES[field]
    return redactor.sentence(text)


def _arguments(text: str, redactor: Redactor) -> SignatureText:
    return SignatureText(", ".join(map(_argument, text.split(", "))) if redactor.everything else redactor.text(text))


def _argument(text: str) -> str:
    """Return an argument of a call; without its text, as in the redacted trace."""
    core = text.lstrip("[")
    if core.rstrip("]") == "-" or _TENSOR.fullmatch(core) or is_plain_constant(core.rstrip("]")):
        return text
    return text[: len(text) - len(core)] + "-" + core[len(core.rstrip("]")) :]


# ----- the metadata and events of a trace: of the metadata what is listed stays, in events every text is masked


#: The errors of msgspec on text that is not JSON, is not UTF-8 or nests too deep.
NOT_DECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])

#: Metadata written by profilers; all other metadata, including the user's, is dropped.
_METADATA: Final = words(
    "schemaVersion deviceProperties distributedInfo displayTimeUnit baseTimeNanoseconds trace_id record_shapes"
    " profile_memory with_stack with_flops with_modules"
)
#: Event arguments that are or contain texts and that `everything` keeps; numbers always stay.
_ARGUMENTS: Final = frozenset((
    "name", "labels", "Input Dims", "Input dims", "Input type", "Input Strides", "Concrete Inputs", "Collective name",
    "dtype", "Process Group Name", "Process Group Description", "Process Group Ranks", "In split size",
    "Out split size", "Module Hierarchy", "Trace name", "device", "stream", "kernel", "kernel_name", "kernel_backend",
    "kernel_hash", "kernel_kwargs", "kernel_file", "grid", "block", "blocks per SM", "est. achieved occupancy %",
    "kind", "copy kind", "scope", "cuda_sync_kind", "size", "bytes", "src", "dst", "ptr",
))  # fmt: skip
#: Event keys whose texts `everything` keeps.
_EVENT: Final = words("ph cat name pid tid ts dur id bp s cname args")
_ENVIRONMENT: Final = words("env environ environment")
_PYTHON_FRAME: Final = regex(r"^.*?\((\d+)\): ")
_PROCESS: Final = regex(r"python[\d.]*|CPU|[A-Z]{2,5}(?: \d+)?|Spans|Traces|opanatomy")
_THREAD: Final = regex(r"((?:thread|stream) -?\w+)(?: .*)?")

#: The strings of JSON. With escapes in the text, quotes alone do not show where one ends.
_STRINGS: Final = regex(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
#: The number of clean strings to remember, and their greatest length.
_REMEMBERED, _REMEMBERED_LENGTH = 200_000, 1000
#: With more strings than this, decoding every event is as fast as searching.
_MAX_DIRTY: Final = 20


class Redaction:
    """Redact one trace; takes the metadata first."""

    def __init__(self, metadata: Mapping[str, object], *, everything: bool = False) -> None:
        self.everything = everything
        self.redactor = Redactor(metadata, everything=everything)
        self._triggers = [word.encode() for word in self.redactor.triggers]
        self._clean: set[bytes] = set()
        self._metadata = metadata
        self._left_out = 0

    @property
    def changes(self) -> int:
        """Return the number of entries and values left out or changed."""
        return self._left_out + self.redactor.changes

    def metadata(self, metadata: Mapping[str, object] | None = None) -> dict[str, object]:
        """Return the trace's or the given metadata, redacted."""
        kept: dict[str, object] = {}
        for key, value in (self._metadata if metadata is None else metadata).items():
            if key == METADATA_KEY and (capture := _as_capture(value)) is not None:
                kept[key] = msgspec.to_builtins(redacted(capture, self.redactor))
            elif key in _METADATA or (key.endswith("_version") and not isinstance(value, list | dict)):
                kept[key] = self._value(key, value, self.redactor.sentence)
            else:
                self._left_out += 1
        return kept

    def touches(self, text: bytes) -> bool:
        """Return whether anything in the text of whole events must not be written."""
        return self.everything or bool(self._dirty_in(text))

    def events(self, events: Sequence[msgspec.Raw | bytes]) -> bytes:
        """Return events redacted, separated by commas; an event keeps its text if nothing is left out."""
        text = b",\n".join(events)
        dirty = [b'"' + one + b'"' for one in self._dirty_in(text)] if not self.everything else []
        if not dirty and not self.everything:
            return text
        every = self.everything or len(dirty) > _MAX_DIRTY
        kept = (self._event(raw) if every or any(one in raw for one in dirty) else raw for raw in map(bytes, events))
        return b",\n".join(filter(None, kept))

    def _dirty_in(self, text: bytes) -> list[bytes]:
        """Return the strings in a text of events, as written there, that must not be written unchanged."""
        if b"\\" in text:
            distinct = set(_STRINGS.findall(text))
        else:
            parts = text.split(b'"')
            distinct = set(parts[1::2] if len(parts) % 2 else parts)
        fresh = distinct - self._clean
        joined = b"\n".join(fresh).lower()
        triggers = [word for word in self._triggers if word in joined]
        dirty = [one for one in fresh if one == b"opanatomy" or self._is_dirty(one, triggers)]
        if len(self._clean) > _REMEMBERED:
            self._clean.clear()
        self._clean |= {one for one in fresh.difference(dirty) if len(one) <= _REMEMBERED_LENGTH}
        return dirty

    def _is_dirty(self, one: bytes, triggers: list[bytes]) -> bool:
        if b"\\" not in one and one.isascii():
            lower = one.lower()
            if not any(word in lower for word in triggers):
                return False
        try:
            text: str = msgspec.json.decode(b'"' + one + b'"')
        except NOT_DECODABLE:
            return True
        return text in _ENVIRONMENT or not self.redactor.is_clean(text)

    def _event(self, raw: bytes) -> bytes | None:
        """Redact one event. Return `None` for our own events and for invalid JSON."""
        try:
            # A number keeps its text: times have more digits than a float.
            event: dict[str, Any] = {
                key: msgspec.json.decode(value) if memoryview(value)[0] in b'"{[' else value
                for key, value in _decoder.decode(raw).items()
            }
        except NOT_DECODABLE:
            self._left_out += 1
            return None
        if event.get("cat") == "opanatomy":
            return None
        if self.everything:
            event = self._listed(event, _EVENT)
            arguments = event.get("args")
            if isinstance(arguments, dict):
                arguments = event["args"] = self._listed(arguments, _ARGUMENTS)
                if event.get("ph") == "M":
                    event["args"] = {key: _label(value) for key, value in arguments.items()}
                elif "Concrete Inputs" in arguments:
                    arguments["Concrete Inputs"] = self._constants(arguments["Concrete Inputs"])
            if event.get("cat") == "python_function" and isinstance(event.get("name"), str):
                event["name"] = _PYTHON_FRAME.sub(rf"{PATH}(\1): ", event["name"])
        return msgspec.json.encode(self._value("", event, self.redactor.text))

    def _listed(self, values: dict[str, Any], keys: frozenset[str]) -> dict[str, Any]:
        """Return the values under known keys, and all numbers."""
        kept = {key: value for key, value in values.items() if key in keys or not isinstance(value, str | list | dict)}
        self._left_out += len(values) - len(kept)
        return kept

    def _constants(self, value: object) -> object:
        if isinstance(value, list):
            return [self._constants(item) for item in value]
        if isinstance(value, str) and not is_plain_constant(value):
            self._left_out += 1
            return ""
        return value

    def _value(self, key: str, value: Any, mask: Callable[[str], str], depth: int = 0) -> Any:
        """Return a value with every text in it masked, and without values of secret keys."""
        if depth > _MAX_DEPTH or (value and (is_secret_name(key) or key in _ENVIRONMENT)):
            self._left_out += 1
            return REDACTED
        if isinstance(value, str):
            return mask(value)
        if isinstance(value, list):
            return [self._value("", item, mask, depth + 1) for item in value]
        if isinstance(value, dict):
            return {mask(name): self._value(name, item, mask, depth + 1) for name, item in value.items()}
        return value


def _label(value: object) -> object:
    """Return the label of a process or a thread without anything that a user chose."""
    if not isinstance(value, str) or _PROCESS.fullmatch(value):
        return value
    thread = _THREAD.fullmatch(value)
    return thread[1] if thread else ""


def _as_capture(value: object) -> Capture | None:
    """Return what our capture recorded, without unknown keys; `None` if the value is something else."""
    try:
        return msgspec.convert(value, type=Capture)
    except (msgspec.ValidationError, RecursionError):
        return None
