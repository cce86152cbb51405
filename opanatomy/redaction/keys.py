"""Which keys and which names of environment variables say that their value is not to be written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum, auto
from functools import lru_cache
from typing import Final


class Secrecy(Enum):
    """Why the value under a key is not written."""

    SECRET = auto()
    ENVIRONMENT = auto()
    #: Who ran it, where, with which command line.
    IDENTITY = auto()
    STACK = auto()


def words(text: str) -> frozenset[str]:
    """The words of a table."""
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
#: Tokens of a tokenizer or a model, and passes of a step: no secrets of anyone.
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
#: Of a very long key its two ends are looked at.
_KEY_END: Final = 100


def secrecy_of(key: str) -> Secrecy | None:
    """Why a value under this key is sensitive; `None` where the key does not say."""
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
    """Whether the last word makes it one: `auth_token`, but not `pad_token` nor `forward_pass`."""
    before = parts[-2] if len(parts) > 1 else ""
    if before in _NO_SECRET.get(parts[-1], ()):
        return False
    return parts[-1] in _LAST_OF_SECRET or (bool(before) and parts[-1] in _LAST_AFTER_OTHERS)


def is_secret_pair(key: str) -> bool:
    """Whether `key=value` in a text gives a secret away; `key: float[8, 4]` of an attention does not."""
    return _parts(key) != ["key"] and secrecy_of(key) is Secrecy.SECRET


def is_amount(key: str, value: object) -> bool:
    """Whether the value only counts or numbers: `num_nodes: 4`, `max_token: 512` tell nothing of anyone."""
    if not isinstance(value, int | float) and value is not None:
        return False
    return not _AMOUNT.isdisjoint(_parts(key))


def _parts(key: str) -> list[str]:
    """The words of a key, in small letters: `apiKey` and `API_KEY` are `api` and `key`."""
    return [part.lower() for part in _CAMEL.split(key) if part]


# ------------------------------------------------------------------------------------------------------ environments

_VARIABLE: Final = re.compile(r"^[A-Z][A-Z0-9_]{2,}$")
#: Variables that every process has: where one is a key, the mapping is an environment.
ALWAYS_SET: Final = frozenset({"PATH", "HOME", "USER", "PWD", "SHELL", "HOSTNAME", "LOGNAME", "LD_LIBRARY_PATH"})
_VARIABLE_SECRET: Final = words(
    "PASS PWD PW KEY KEYS SECRET SECRETS TOKEN TOKENS CREDENTIAL CREDENTIALS CREDS CRED PASSWORD PASSWORDS PASSWD"
    " PASSPHRASE APIKEY AUTH AUTHORIZATION COOKIE COOKIES DSN JWT PAT BEARER SIGNATURE SAS OAUTH PIN"
)
_VARIABLE_GLUED: Final = re.compile(r"(?:PASS(?:WOR)?D|PASSPHRASE|PASS|SECRET|TOKEN|CREDENTIALS?|APIKEY|\w{3}KEY)$")
#: The last word says that the value is about the secret, and not the secret.
_ABOUT: Final = words(
    "FILE FILES PATH PATHS DIR FOLDER SOCK SOCKET TTL TIMEOUT EXPIRY EXPIRES TYPE ALGORITHM ALG LENGTH SIZE VERSION"
    " BACKEND STORE MODE HELPER PROMPT CMD COMMAND PROVIDER METHOD ENABLED DISABLED REQUIRED COUNT NAME ENDPOINT"
    " PARALLELISM LIMIT RETRIES REGION THROUGH"
)


def is_variable(key: str) -> bool:
    """Whether a key is spelled like an environment variable."""
    return bool(_VARIABLE.match(key))


def is_secret_variable(name: str) -> bool:
    """Whether a variable's name says that its value is a secret: `DB_PASS`, `HF_TOKEN`, `PGPASSWORD`, `SENTRY_DSN`."""
    parts = [part.rstrip("0123456789") for part in re.split(r"[^A-Za-z0-9]+", name.upper())]
    parts = [part for part in parts if part]
    if not parts or parts[-1] in _ABOUT or parts in (["PWD"], ["KEY"], ["PASS"], ["PIN"]):
        return False
    if len(parts) > 1 and parts[-2].lower() in _NO_SECRET.get(parts[-1].lower(), ()):
        return False
    return not _VARIABLE_SECRET.isdisjoint(parts) or any(map(_VARIABLE_GLUED.search, parts))


def is_environment(value: Mapping[str, object]) -> bool:
    """Whether a mapping is a process environment, whatever it is called."""
    variables = sum(map(is_variable, value))
    return not ALWAYS_SET.isdisjoint(value) or (variables >= 3 and 2 * variables > len(value))
