"""Redact a text: leave out secrets, and on request paths, addresses and people."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from functools import cache, lru_cache
from typing import Final

import msgspec

from opanatomy.records.workload import METADATA_KEY

# Keys and names of environment variables whose value must not be written.


class Secrecy(Enum):
    """Why the value under a key is not written."""

    SECRET = auto()
    ENVIRONMENT = auto()
    #: Who ran it, where, with which command line.
    IDENTITY = auto()
    STACK = auto()


def words(text: str) -> frozenset[str]:
    """Return the words of a table."""
    return frozenset(text.split())


_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")
_SECRET: Final = words(
    "secret secrets password passwords passwd passphrase credential credentials creds apikey authorization bearer"
    " cookie cookies jwt dsn"
)
#: Written as one word: `PGPASSWORD`, `authtoken`, `secretkey`.
_GLUED: Final = re.compile(
    r"^\w+(?:password|passwd|passphrase|credentials?|secret)$"
    r"|^(?:access|auth|api|bearer|refresh|session|oauth|id|user|bot|gh|hf)token$"
    r"|^(?:api|access|secret|private|auth|signing|encryption|account|license)keys?$"
)
_LAST_OF_SECRET: Final = frozenset({"token", "auth", "pat"})
_LAST_AFTER_OTHERS: Final = frozenset({"pass", "pwd"})
_BEFORE_KEY: Final = words(
    "api access secret private ssh auth signing encryption session account license service wandb"
)
#: Tokens of a tokenizer or a model, and passes of a step, are not secrets.
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
_ENVIRONMENT: Final = words("env envs environ environment environments envvar envvars")
_IDENTITY: Final = words(
    "host hosts hostname hostnames fqdn node nodes nodename nodelist machine user users username login logname owner"
    " email mail account ip ips ipv4 ipv6 ipaddr addr address addresses cmd cmdline command commandline argv job jobs"
    " jobid slurm cwd pwd home homedir workdir submitter"
)
_STACK: Final = words("stack stacks frame frames traceback backtrace stackframes sf esf")
_AMOUNT: Final = words("num count rank size index threads token")
#: Only the two ends of a very long key are examined.
_KEY_END: Final = 100


def secrecy_of(key: str) -> Secrecy | None:
    """Return why a value under this key is sensitive; `None` if it is not."""
    return _secrecy_of(key if len(key) <= 2 * _KEY_END else f"{key[:_KEY_END]}_{key[-_KEY_END:]}")


@lru_cache(maxsize=4096)
def _secrecy_of(key: str) -> Secrecy | None:
    parts = _parts(key)
    if not parts:
        return None
    if is_variable(key) and is_secret_variable(key):
        return Secrecy.SECRET
    if _SECRET.intersection(parts) or any(map(_GLUED.match, parts)) or _ends_secret(parts):
        return Secrecy.SECRET
    if parts[-1] in ("key", "keys") and (len(parts) == 1 or parts[-2] in _BEFORE_KEY) and parts != ["keys"]:
        return Secrecy.SECRET
    if _ENVIRONMENT.intersection(parts):
        return Secrecy.ENVIRONMENT
    if _STACK.intersection(parts):
        return Secrecy.STACK
    return Secrecy.IDENTITY if _IDENTITY.intersection(parts) else None


def _ends_secret(parts: list[str]) -> bool:
    """Return whether the last word makes a key secret: `auth_token`, but not `pad_token` or `forward_pass`."""
    before = parts[-2] if len(parts) > 1 else ""
    if before in _NO_SECRET.get(parts[-1], ()):
        return False
    return parts[-1] in _LAST_OF_SECRET or (bool(before) and parts[-1] in _LAST_AFTER_OTHERS)


def is_secret_pair(key: str) -> bool:
    """Return whether `key=value` in a text reveals a secret; `key: float[8, 4]` of an attention does not."""
    return _parts(key) != ["key"] and secrecy_of(key) is Secrecy.SECRET


def is_amount(key: str, value: object) -> bool:
    """Return whether a value only counts or numbers: `num_nodes: 4`, `max_token: 512` identify nobody."""
    if not isinstance(value, int | float) and value is not None:
        return False
    return not _AMOUNT.isdisjoint(_parts(key))


def _parts(key: str) -> list[str]:
    """Return the words of a key in small letters: `apiKey` and `API_KEY` are `api` and `key`."""
    return [part.lower() for part in _CAMEL.split(key) if part]


# ------------------------------------------------------------------------------------------------------ environments

_VARIABLE: Final = re.compile(r"^[A-Z][A-Z0-9_]{2,}$")
#: Variables that every process has: a mapping with one of them as a key is an environment.
ALWAYS_SET: Final = frozenset({"PATH", "HOME", "USER", "PWD", "SHELL", "HOSTNAME", "LOGNAME", "LD_LIBRARY_PATH"})
_VARIABLE_SECRET: Final = words(
    "PASS PWD PW KEY KEYS SECRET SECRETS TOKEN TOKENS CREDENTIAL CREDENTIALS CREDS CRED PASSWORD PASSWORDS PASSWD"
    " PASSPHRASE APIKEY AUTH AUTHORIZATION COOKIE COOKIES DSN JWT PAT BEARER SIGNATURE SAS OAUTH PIN"
)
_VARIABLE_GLUED: Final = re.compile(r"(?:PASS(?:WOR)?D|PASSPHRASE|PASS|SECRET|TOKEN|CREDENTIALS?|APIKEY|\w{3}KEY)$")
#: Last words that make the value describe a secret, not contain it.
_ABOUT: Final = words(
    "FILE FILES PATH PATHS DIR FOLDER SOCK SOCKET TTL TIMEOUT EXPIRY EXPIRES TYPE ALGORITHM ALG LENGTH SIZE VERSION"
    " BACKEND STORE MODE HELPER PROMPT CMD COMMAND PROVIDER METHOD ENABLED DISABLED REQUIRED COUNT NAME ENDPOINT"
    " PARALLELISM LIMIT RETRIES REGION THROUGH"
)


def is_variable(key: str) -> bool:
    """Return whether a key is spelled like an environment variable."""
    return bool(_VARIABLE.match(key))


def is_secret_variable(name: str) -> bool:
    """Return whether a variable's name means a secret value: `DB_PASS`, `HF_TOKEN`, `PGPASSWORD`, `SENTRY_DSN`."""
    parts = [part.rstrip("0123456789") for part in re.split(r"[^A-Za-z0-9]+", name.upper())]
    parts = [part for part in parts if part]
    if not parts or parts[-1] in _ABOUT or parts in (["PWD"], ["KEY"], ["PASS"], ["PIN"]):
        return False
    if len(parts) > 1 and parts[-2].lower() in _NO_SECRET.get(parts[-1].lower(), ()):
        return False
    return not _VARIABLE_SECRET.isdisjoint(parts) or any(map(_VARIABLE_GLUED.search, parts))


def is_environment(value: Mapping[str, object]) -> bool:
    """Return whether a mapping is a process environment, whatever its name."""
    variables = sum(map(is_variable, value))
    return not ALWAYS_SET.isdisjoint(value) or (variables >= 3 and 2 * variables > len(value))


# Secrets recognized by their form or the key before them: access tokens, passwords, credentials in URLs.


REDACTED: Final = "<redacted>"

#: No letter or digit before it except that of an escape: `\\n`, `%3D`, `\\x0a`, `\\u000a`.
_BEGINS: Final = (
    r"(?:(?<![A-Za-z0-9])|(?<=\\[bfnrt])|(?<=%[0-9A-Fa-f]{2})|(?<=\\x[0-9A-Fa-f]{2})|(?<=\\u[0-9A-Fa-f]{4}))"
)
_TOKENS: Final = re.compile(
    _BEGINS + r"(?:"
    r"hf_(?:[A-Za-z0-9]{16,}|(?=[A-Za-z]*[0-9A-Z])[A-Za-z0-9]{6,})"
    r"|gh[pousr]_[A-Za-z0-9]{6,}|github_pat_\w{6,}|gl(?:pat|dt|rt|cbt|ptt|soat)-[\w-]{6,}"
    r"|sk-[\w-]{8,}|[srp]k_(?:live|test)_\w{6,}|whsec_\w{8,}|(?:AKIA|ASIA)[A-Z0-9]{8,}"
    r"|xox[abeoprs]-[\w-]{6,}|xapp-[\w-]{8,}|AIza[\w-]{16,}|ya29\.[\w-]{8,}|GOCSPX-[\w-]{8,}|npm_[A-Za-z0-9]{16,}"
    r"|pypi-[\w-]{16,}|nvapi-[\w-]{8,}|do[opr]_v1_\w{8,}|gsk_[A-Za-z0-9]{16,}|r8_[A-Za-z0-9]{16,}|pplx-[A-Za-z0-9]{16,}"
    r"|dapi[0-9a-f]{32}|hvs\.[\w-]{16,}|SG\.[\w-]{16,}\.[\w-]{16,}|dckr_pat_[\w-]{16,}|shp(?:at|ca|pa|ss)_[0-9a-fA-F]{16,}"
    r"|lin_api_\w{16,}|AGE-SECRET-KEY-1[A-Z0-9]{16,}|eyJ[\w-]{8,4096}\.[\w-]+(?:\.[\w-]+)?"
    r")|-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|$)"
)
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/-]{8,}=*")
_HEADER: Final = re.compile(
    r"(?i)\b((?:set-)?cookie|(?:proxy-)?authorization|x-[\w-]{0,40}(?:key|token|auth))"
    r"(\"?:\s{0,8})(?!\s|(?:\w+ )?<redacted>)[^\r\n\"']+"
)
_LOGIN: Final = re.compile(r"(?i)([a-z][a-z0-9+.-]{0,30}:(?:\\?/){2})[^\s/@\"']{1,1024}@")
_HOOK: Final = re.compile(
    r"(?i)(hooks\.slack\.com/services/|discord(?:app)?\.com/api/webhooks/|api\.telegram\.org/bot)\S+"
)
_QUERY: Final = re.compile(
    r"(?i)([?&](?:sig|signature|x-amz-[\w-]{1,40}|[\w-]{0,40}(?:token|key|secret|passw(?:or)?d|auth))=)[^&\s\"'<]+"
)
#: Every key of a secret contains one of these.
_KEY_WORDS: Final = (
    "token", "secret", "pass", "pwd", "cred", "key", "auth", "cookie", "dsn", "jwt", "pat", "bearer", "sig", "pw",
    "sas",
)  # fmt: skip
_KEY: Final = (
    r"(?P<key>(?:(?:api|access|private|secret|auth|account) (?=key\b))?(?=[\w.-]{0,100}"
    rf"(?:{'|'.join(_KEY_WORDS)}))[A-Za-z][\w.-]{{0,100}})"
)
_VALUE: Final = (
    r"(?P<value>\"(?:[^\"\\]|\\.){1,4096}\"|'(?:[^'\\]|\\.){1,4096}'|(?P<quote>\\+[\"']).{1,4096}?(?P=quote)"
    r"|\\*[\"']?[^\s\"',;&)}\]<]*[^\s\"',;&)}\]<:.])"
)
_EQUALS: Final = r"\s{0,8}(?:=>?|:(?![:/]))\s{0,8}"
_KEY_AND_VALUE: Final = rf"(?<![\w-])(?:--?)?{_KEY}(?P<between>\\*[\"']?{_EQUALS}){_VALUE}"
#: `'key=a value in quotes'`, `key=value` and `"key": "value"`, `--key value`, and a setting's `key before -> after`,
#: each after what any text with such a pair contains.
_PAIRS: Final = (
    ("=", rf"(?<=(?P<open>[\"'])){_KEY}(?P<between>=)(?P<value>(?:(?!(?P=open)).){{1,4096}})(?=(?P=open))"),
    ("", _KEY_AND_VALUE),
    ("-", rf"(?<![\w-])--?{_KEY}(?P<between>\s+(?!-)){_VALUE}"),
    (" -> ", rf"(?<![\w-]){_KEY}(?P<between> \S.{{0,200}}? -> )(?P<value>\S.{{0,4096}})$"),
)


@cache
def _pair(expression: str) -> re.Pattern[str]:
    """Compile the pattern of a pair when a text may have one."""
    return re.compile(rf"(?is){expression}")


def _pairs_in(text: str) -> list[re.Pattern[str]]:
    """Return the patterns of pairs that a text may have."""
    return [_pair(expression) for part, expression in _PAIRS if part in text] if _may_have_pair(text) else []


def _may_have_pair(text: str) -> bool:
    lower = text.lower()
    return not text.isascii() or any(word in lower for word in _KEY_WORDS)


_PLAIN_VALUE: Final = re.compile(r"^(?:[-+]?[\d.]+(?:[eE][-+]?\d+)?|None|null|true|false|True|False)$")

#: Words between `Authorization:` and the secret.
_SCHEMES: Final = ("bearer", "basic")

#: A text without any of these, in small letters, is clean.
TRIGGERS: Final = (
    "token", "secret", "pass", "pwd", "cred", "bearer", "basic ", "key", "auth", "cookie", "dsn", "jwt", "_pat", "sig",
    "hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat", "glpat-", "gldt-", "glrt-", "glcbt-", "glptt-",
    "glsoat-", "sk-", "k_live_", "k_test_", "whsec_", "akia", "asia", "xox", "xapp-", "aiza", "ya29", "gocspx-", "npm_",
    "pypi-", "nvapi", "_v1_", "gsk_", "r8_", "pplx-", "dapi", "hvs.", "sg.", "shpat_", "shpca_", "shppa_", "shpss_",
    "lin_api_", "eyj", "private", "://", ":\\/", "hooks.slack", "webhooks/", "telegram", "environ",
    *(f"pat{end}" for end in ("=", ":", " ", "'", '"', "\\")),
)  # fmt: skip


def _without_login(match: re.Match[str]) -> str:
    """Remove the credentials of a URL; without a password, Azure's stores have a container before the host."""
    scheme, login = match[1].lower(), match[0][len(match[1]) :]
    is_container = scheme.rstrip("/\\:").endswith(("abfs", "abfss", "wasb", "wasbs")) and ":" not in login
    return match[0] if is_container else f"{match[1]}{REDACTED}@"


def without_tokens(text: str) -> str:
    """Remove access tokens, passwords and the credentials of URLs from a text."""
    text = _TOKENS.sub(REDACTED, text)
    text = _BEARER.sub(rf"\1 {REDACTED}", text)
    text = _HEADER.sub(rf"\1\2{REDACTED}", text)
    text = _LOGIN.sub(_without_login, text)
    text = _HOOK.sub(rf"\1{REDACTED}", text)
    text = _QUERY.sub(rf"\1{REDACTED}", text)
    for pattern in _pairs_in(text):
        text = pattern.sub(_without_value, text)
    return text


def values_by_key(text: str) -> list[str]:
    """Return the values under secret keys in a text: `abc` for `--set auth_token=abc`."""
    pairs = (match for pattern in _pairs_in(text) for match in pattern.finditer(text) if _names_secret(match))
    return [inner for match in pairs if not _PLAIN_VALUE.match(inner := _unquoted(match["value"]))]


def _names_secret(match: re.Match[str]) -> bool:
    """Return whether the key is a secret's; its first letter may be that of an escape: `\\ntoken=`."""
    key = match["key"]
    before = match.string[max(match.start("key") - 1, 0) : match.start("key")]
    return is_secret_pair(key) or (before == "\\" and key[0] in "bfnrt" and is_secret_pair(key[1:]))


def _without_value(match: re.Match[str]) -> str:
    value, before = match["value"], match[0][: match.start("value") - match.start()]
    if not _names_secret(match):
        return before + _pair(_KEY_AND_VALUE).sub(_without_value, value)
    inner = _unquoted(value)
    if not inner or _PLAIN_VALUE.match(inner) or inner.startswith(REDACTED) or inner.lower() in _SCHEMES:
        return match[0]
    if match["between"].endswith(" -> "):
        before = f"{match['key']} {REDACTED} -> "
    return before + value.replace(inner, REDACTED)


def _unquoted(value: str) -> str:
    """Return the text inside quotes, escaped ones too."""
    bare = value.lstrip("\\")
    if bare[:1] not in ("'", '"'):
        return value
    return bare[1:-1].rstrip("\\") if bare[-1:] == bare[:1] and len(bare) > 1 else bare[1:]


# People, hosts and files in a text, and what `--redact` leaves of names.


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
#: What remains of `/home/someone/x.py` without the name.
_IN_HOME: Final = re.compile(rf"{PATH}/?{USER}(?:/?{PATH})?")
_OWN_RANGE: Final = re.compile(r"^opanatomy\.(?:phase|module)/[\w.\[\]-]*$")


def without_addresses(text: str) -> str:
    """Remove network addresses, mailboxes and the names of home folders from a text."""
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
    """Remove file names, URLs and host names from a text; ranges of a capture stay."""
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
    """Replace the file of a Python frame: `/home/a/train.py(12): step` -> `<path>(12): step`."""
    return _PYTHON_FRAME.sub(rf"{PATH}(\1): ", name)


def plain_label(label: str) -> str:
    """Return the label of a process or thread without anything that a user chose."""
    if _PROCESS.match(label):
        return label
    thread = _THREAD.match(label)
    return thread[1] if thread else ""


def is_plain_constant(text: str) -> bool:
    """Return whether an argument's text is a number, a truth value, a list of these, or a known word."""
    if text in _CONSTANT_WORDS:
        return True
    return all(_SCALAR.match(word) for word in _SEPARATORS.split(text) if word)


# The words of names of operators, modules and ranges: a value of only these words is not searched for.
#
# A variable with a secret's name may hold one (`CACHE_KEY=aten::mm`, `SORT_KEY=layer_norm`). Removing it from a trace
# would also remove operators, steps and modules, and change the figures.


_WORDS: Final = words(
    "aten prims torch nn functional autograd engine evaluate function profiler cpu cuda op module modules model"
    " models transformer transformers encoder decoder block blocks layer layers stage stages features base backbone"
    " head heads self cross multi attn attention mha sdpa mlp ffn feed forward backward fwd bwd recompute optimizer"
    " step train training eval inference loss proj projection qkv query up down gate dense fc lin linear in out"
    " input inputs output outputs intermediate hidden embed embeddings embedding wte wpe word position positional lm"
    " cls pooler classifier norm norms ln layernorm rms batch group instance native add addmm addmv addcmul addcdiv"
    " mm bmm baddbmm mv matmul einsum mul div sub neg sum mean var std max min amax argmax pow exp log sqrt rsqrt"
    " softmax logsoftmax nll entropy dropout gelu silu relu tanh sigmoid act activation activations conv convolution"
    " overrideable miopen cudnn mkldnn pool pooling pool2d avg adaptive copy cat stack split view reshape transpose"
    " permute expand squeeze unsqueeze slice select index gather scatter fill zero zeros ones empty clone contiguous"
    " detach where masked scaled dot product flash efficient fused foreach mem memory memcpy memset kernel kernels"
    " elementwise vectorized unrolled reduce all rotary sgd adam adamw accumulate grad gradient gradients clip"
    " unscale item local scalar record data loader dataloader next iter like as strided alias resize set unbind"
    " chunk narrow tril triu arange cumsum sort topk t to h c f a b d e g i j k l m n o p q r s u v w x y z"
)
_OPERATOR: Final = re.compile(
    r"(?:aten|prims?|c10d|_c10d_functional|torch|torchvision|inductor|quantized)::[A-Za-z]\w*$"
)
_NODE: Final = re.compile(r"[A-Z]\w*Backward\d$")
_NAME: Final = re.compile(r"[A-Za-z_]+(?:(?:\.|::|#)(?:[A-Za-z_]+|\d{1,4}))*$")
_WORD_PART: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def is_vocabulary(value: str) -> bool:
    """Return whether a text is an operator or the path of a module, by its words."""
    if _OPERATOR.match(value) or _NODE.match(value):
        return True
    return bool(_NAME.match(value)) and all(part.lower() in _WORDS for part in _WORD_PART.findall(value))


# Secrets known by their value, from an environment, a command line or a trace's metadata, and found anywhere.


#: Only values of at least this length are searched for.
MIN_LENGTH: Final = 8
_MIN_NAME: Final = 4
#: Nothing deeper than this is examined.
DEEPEST: Final = 32
#: The number of values to learn, the longest first.
MAX_VALUES: Final = 500
#: A message may be cut within a value; a part of at least this length is recognized.
_MIN_CUT: Final = 12

_ORDINARY: Final = words(
    "root user users admin ubuntu nobody localhost local localdomain host hostname python default none true false null"
    " train training worker main node rank cuda linux"
)
#: Common values of variables with a secret's name, and words of reports: removing them would spoil a report.
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
_URL_PASSWORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/@:\"']{0,256}:([^\s/@\"']{1,1024})@")
#: A token in the place of the user, without a password: `https://TOKEN@host/simple`.
_USER: Final = re.compile(r"https?://(?=[^\s/@:]*[0-9])(?=[^\s/@:]*[A-Za-z])([^\s/@:\"']{12,1024})@", re.IGNORECASE)
#: `Uid=me;Pwd=...` of a connection string; elsewhere `PWD` is a folder.
_PWD: Final = re.compile(r";\s*pwd\s*=\s*([^;]{1,1024})", re.IGNORECASE)
_WORD: Final = re.compile(r"^[A-Z]?[a-z]+$|^[A-Z]+$")
_WHO: Final = frozenset({"user", "username", "logname", "login", "host", "hostname", "nodename", "fqdn"})


#: What was once a secret of the process stays one: code that reads its token may remove it from the environment.
_seen: Final[set[str]] = set()


def of_process() -> set[str]:
    """Return the secrets of this process: on its command line and in its environment, now and at earlier calls."""
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
    """Return the secrets, and the names of hosts and users, in the metadata of a trace."""
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
    if words_of_key & _WHO and len(value) >= _MIN_NAME and value.lower() not in _ORDINARY and " " not in value:
        names.add(value)


@lru_cache(maxsize=4096)
def _of_variable(name: str, value: str) -> frozenset[str]:
    secrets: set[str] = set()
    _learn_variable(name, value, secrets)
    return frozenset(secrets)


def _learn_variable(name: str, value: str, secrets: set[str]) -> None:
    """Add a secret variable's value, its items and lines; of any variable, passwords in URLs and connection strings."""
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
    """Add the secrets in a JSON document; a service account's file also names its project."""
    if isinstance(value, dict) and depth < DEEPEST:
        for inner, item in value.items():
            _add_all(item, str(inner), secrets, depth + 1)
    elif isinstance(value, list) and depth < DEEPEST:
        for item in value:
            _add_all(item, key, secrets, depth + 1)
    elif isinstance(value, str) and (not key or secrecy_of(key) is Secrecy.SECRET or key.endswith(("key", "key_id"))):
        _learn_variable("SECRET", value, secrets)


def _add_logins(text: str, secrets: set[str]) -> None:
    for password in _URL_PASSWORD.findall(text) if "://" in text else ():
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
    """Return whether a secret is distinct from other text: no word, number, path or row of asterisks."""
    if len(value) < MIN_LENGTH or value.lower() in _common() or _NUMBER.match(value) or len(set(value)) < 4:
        return False
    if is_vocabulary(value):
        return False
    return not (_PATH.match(value) or (value.startswith("/") and _exists(value)))


@cache
def _common() -> frozenset[str]:
    """Return common words, and the words in the columns of a report."""
    from opanatomy.records.taxonomy import ITEM_SIZE, OperatorClass, Phase

    return _COMMON | set(ITEM_SIZE) | {str(one) for one in (*OperatorClass, *Phase)}


def _exists(path: str) -> bool:
    try:
        return os.path.exists(path)
    except (OSError, ValueError):
        return False


def _decoded(text: str) -> object:

    try:
        document: object = msgspec.json.decode(text)
        return document
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


# ---------------------------------------------------------------------------------------------------------- patterns

#: Kineto replaces each backslash by a slash, and (in torch 2.15, not in 2.13) each quote by an apostrophe.
_ESCAPES: Final[dict[str, str]] = {
    "'": r"""(?:[\\/]*'|'"'"'|%27|&#(?:39|x27);|[\\/]+u0027)""",
    '"': r"""(?:[\\/]*["']|%22|&quot;|&#34;|[\\/]+u0022)""",
    "\\": r"(?:[\\/]+|%5[Cc]|[\\/]+u005[Cc])",
    "/": r"(?:[\\/]*/|%2[Ff]|[\\/]+u002[Ff])",
    "&": r"(?:&amp;|&|%26|[\\/]+u0026)",
    "<": r"(?:&lt;|<|%3[Cc]|[\\/]+u003[Cc])",
    ">": r"(?:&gt;|>|%3[Ee]|[\\/]+u003[Ee])",
    " ": r"(?:\s|\+|%20|[\\/]+u0020|[\\/]+[nrt])",
}
#: In JSON, an unescaped backslash and the letter after it are one character.
_CONTROLS: Final = {"b": "\\x08", "f": "\\x0c", "n": "\\n", "r": "\\r", "t": "\\t"}
_ESCAPED: Final = re.compile(r"\\[bfnrt]")
_CHARACTERS: Final = re.compile(r"\\[bfnrt]|.", re.DOTALL)
_BREAK: Final = "(?:\\s|\\\\+[nrt]|%0[AaDd]|\\\\+u000[aAdD9]|�)+"


def pattern_of(values: Iterable[str]) -> re.Pattern[str] | None:
    """Return an expression that finds values: plain, escaped as in JSON, Python or HTML, quoted as in a URL or shell.

    Case is ignored, but a value that is a single word is found only as a whole word and as it is.
    """
    longest_first = sorted(set(values), key=lambda value: (-len(value), value))[:MAX_VALUES]
    return re.compile("|".join(map(_spellings, longest_first))) if longest_first else None


def names_pattern(names: Iterable[str]) -> re.Pattern[str] | None:
    """Return an expression that finds names of users and hosts as whole words."""
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
    """Return an expression for one character, or one after a backslash, plain or escaped."""
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
    """Return the escapes of a character in URLs, JSON and Python, of text and of bytes."""
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
    """Return the longest part of a value that no escape changes, in small letters: a text without it lacks the value.

    It is empty for a value without letters and digits, which may be anywhere.
    """
    return max(re.findall(r"[a-z0-9]+", _ESCAPED.sub(" ", value).lower()), key=len, default="")


def cut_pattern(values: Iterable[str]) -> re.Pattern[str] | None:
    """Return an expression that finds the beginnings of long values, as a message that was cut off has them."""
    long = [value for value in values if len(value) > _MIN_CUT and "://" not in value[:_MIN_CUT]]
    starts = sorted({value[:_MIN_CUT]: value for value in long if is_worth(value[:_MIN_CUT])}.values())
    bodies = ["".join(map(_spelling, value[:_MIN_CUT])) + "[^\\s\"')\\]]*" for value in starts[:MAX_VALUES]]
    return re.compile("|".join(bodies)) if bodies else None


_CACHED, _CACHED_LENGTH = 20_000, 1000
#: A longer text is no name; `everything` removes it unread.
_LONGEST: Final = 1 << 16
_MODULE: Final = "opanatomy.module/"
_ASSIGNMENTS: Final = re.compile(r"(?:^|[\s,;{(\"'])([A-Z][A-Z0-9_]{2,128})[\"']?\s{0,8}[=:]")


class Texts:
    """Redacts the texts of one report, trace or message; learns more secrets from the metadata of traces.

    The secrets of the process itself, in its environment and on its command line, are always known. `everything` also
    leaves out paths, addresses, hosts and users.
    """

    def __init__(self, metadata: Mapping[str, object] | None = None, *, everything: bool = False) -> None:
        self.everything = everything
        #: The number of entries and values left out or changed.
        self.changes = 0
        self._secrets = of_process()
        self._names: set[str] = set()
        #: From the metadata of traces: secrets, hosts and users.
        self.trace_secrets: set[str] = set()
        self.trace_names: set[str] = set()
        self._learned()
        if metadata:
            self.add_secrets(metadata)

    def add_secrets(self, metadata: Mapping[str, object]) -> None:
        """Add the secrets in the metadata of a trace, and the hosts and users that they name."""

        secrets, names = of_metadata({key: value for key, value in metadata.items() if key != METADATA_KEY})
        own = metadata.get(METADATA_KEY)
        if isinstance(own, dict):
            secrets |= {value for value in values_by_key(str(own.get("command"))) if is_worth(value)}
        self.know(secrets, names)

    def know(self, secrets: Iterable[str], names: Iterable[str]) -> None:
        """Add secrets, hosts and users from the metadata of a trace."""
        self.trace_secrets |= set(secrets)
        self.trace_names |= set(names)
        if not (self.trace_secrets <= self._secrets and self.trace_names <= self._names):
            self._secrets |= self.trace_secrets
            self._names |= self.trace_names
            self._learned()

    def _learned(self) -> None:
        left_out = (frozenset(self._secrets), frozenset(self._names), self.everything)
        self._known, self._harmless = _remembered(*left_out), _harmless(*left_out)
        self._by_value = pattern_of(self._secrets)
        self._cut_off = cut_pattern(self._secrets)
        self._by_name = names_pattern(self._names) if self.everything else None
        own_words = sorted({trigger_of(secret) for secret in self._secrets})
        #: A text without any of these, in small letters, has no secret.
        self.triggers: tuple[str, ...] = (*TRIGGERS, *own_words)

    def text(self, text: str) -> str:
        """Return the text redacted."""
        known = self.without_secrets(text)
        self.changes += known != text
        return known

    def without_secrets(self, text: str) -> str:
        """Return the text redacted, without counting the change."""
        known = self._known.get(text)
        if known is None:
            text = str(text)  # a text that carries a record is not plain text
            known = self._text(text)
            if len(self._known) >= _CACHED:
                self._known.clear()
            if len(text) <= _CACHED_LENGTH:
                self._known[text] = known
        return known

    def sentence(self, text: str) -> str:
        """Redact a message or a setting: it may end within a secret, and name homes and addresses."""
        if text in self._harmless:
            return text
        redacted = without_addresses(self._line(text))
        if redacted == text and len(text) <= _CACHED_LENGTH and len(self._harmless) < _CACHED:
            self._harmless.add(str(text))
        return redacted

    def line(self, text: str) -> str:
        """Redact a message for the user's own eyes: it may name files, but no secrets."""
        redacted = self._line(text)
        self.changes += redacted != text
        return redacted

    def _line(self, text: str) -> str:
        redacted = text
        if self._cut_off is not None:
            redacted = self._by_value.sub(REDACTED, redacted) if self._by_value else redacted
            redacted = self._cut_off.sub(REDACTED, redacted)
        for value in values_by_key(redacted):
            if is_worth(value):
                redacted = redacted.replace(value, REDACTED)
        return self.text(redacted)

    def module(self, path: str) -> str:
        """Redact the path of a module the way its range in the trace is."""
        return self.text(f"{_MODULE}{path}").removeprefix(_MODULE)

    def is_clean(self, text: str) -> bool:
        """Return whether a text, a value or a key, needs no redaction."""
        return self.without_secrets(text) == text and secrecy_of(text) not in (Secrecy.SECRET, Secrecy.ENVIRONMENT)

    def _text(self, text: str) -> str:
        if self.everything and len(text) > _LONGEST:
            return REDACTED
        lower, redacted = text.lower(), text
        if any(map(lower.__contains__, self.triggers)):
            if self._by_value is not None:
                redacted = self._by_value.sub(REDACTED, redacted)
            redacted = without_tokens(redacted)
        if self.everything:
            redacted = without_paths(without_addresses(redacted))
            if self._by_name is not None:
                redacted = self._by_name.sub(USER, redacted)
        return redacted


@lru_cache(maxsize=8)
def _remembered(_secrets: frozenset[str], _names: frozenset[str], _everything: bool) -> dict[str, str]:
    """Return a cache of redacted texts, shared if the same is left out: ranks of a run share most texts."""
    return {}


@lru_cache(maxsize=8)
def _harmless(_secrets: frozenset[str], _names: frozenset[str], _everything: bool) -> set[str]:
    """Return the sentences known to need no redaction."""
    return set()


def looks_like_environment(text: str) -> bool:
    """Return whether a text is a list of variables: `environ({...})`, `HOME=/root PATH=/bin ...`."""
    return "environ(" in text or len(_ASSIGNMENTS.findall(text)) >= 2 or bool(re.match(r"^[A-Z][A-Z0-9_]{2,}=", text))


def mask_secrets(text: str) -> str:
    """Redact a line for stderr: the secrets of this process, and anything in the form of a secret."""
    return Texts().line(text)
