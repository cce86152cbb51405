"""Secrets to plant, all made up, and the search for them in whatever was written."""

from __future__ import annotations

import gzip
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, quote_plus, unquote

PEM_LINES: Final = ("MIIEvQIBADANBgkqhkiG9w0BAQEFAASC", "bV9zZWNyZXRfa2V5X2xpbmVfdHdvXzAw", "Y2hvcHBlZC1lbmQ9PQ==")
PEM: Final = "\n".join(("-----BEGIN PRIVATE KEY-----", *PEM_LINES, "-----END PRIVATE KEY-----", ""))

#: Variables of the environment, what their names and values can look like.
VARIABLES: Final = {
    "MAIL_PASS": "p@ss/w0rd+with=more&than?that", "DB_PWD": 'quo"ted\\back$lash`tick',
    "SIGN_KEY": "a.*reg[0-9]+(ex)?^|x", "CI_TOKEN": "ümläut-tôken-9981", "APP_SECRET": "plainsecretvalue77",
    "DEPLOY_KEY": PEM,
    "SVC_CREDENTIALS": json.dumps({"type": "service_account", "private_key": PEM.replace("bV9z", "aW5u")}),
    "SENTRY_DSN": "https://0f1e2d3c4b5a69788796a5b4@errors.example/42", "PGPASSWORD": "pg-passw0rd-x",
    "SESSION_COOKIE": "sid-9f8e7d6c5b4a", "SHELL_SECRET": "it's a 'quoted' secret", "my_api_key": "lower-case-name-1",
    "DATABASE_URL": "postgres://svc:urlpassw0rd-1@db.example/app", "TOKENS_2": "first-of-two-1,second-of-two-2",
}  # fmt: skip
#: Of these the items, lines or parts are secrets.
_IN_PARTS: Final = ("SVC_CREDENTIALS", "DEPLOY_KEY", "DATABASE_URL", "TOKENS_2")
#: What of them must not be found.
VALUES: Final = (
    *(value for name, value in VARIABLES.items() if name not in _IN_PARTS),
    *PEM_LINES,
    PEM_LINES[1].replace("bV9z", "aW5u"),
    "urlpassw0rd-1",
    "first-of-two-1",
    "second-of-two-2",
)
#: Secrets by their form, in no environment.
FORMS: Final = (
    "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz012345", "ghp_" + "0123456789abcdefghijABCDEFGHIJ012345",
    "glpat-" + "abcDEF123456_-xyz", "sk-" + "proj-abcdefghijklmnopqrstuvwx0123456789", "AKIA" + "IOSFODNN7EXAMPLE",
    "xoxb-" + "123456789012-abcdefghijklmnop", "AIza" + "SyA-0123456789abcdefghijklmnopqrstu",
    "npm_" + "abcdefghijklmnopqrstuvwxyz0123456789", "pypi-" + "AgEIcHlwaS5vcmcCJDAwMDAwMDAw",
    "sk_live_" + "4eC39HqLyjWDarj",
    "eyJ" + "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlc2ln", "gsk_" + "abcdefghijklmnop0123456789",
)  # fmt: skip
#: Secrets that only a trace's own metadata tell, by the key they stand under.
TOLD: Final = {
    "environ": {
        "HOME": "/home/someone",
        "FOREIGN_PASS": "foreign-p@ss-1",
        "WANDB_API_KEY": "0123456789abcdef0123456789abcdef",
    },
    "config": {"apiKey": "camel-case-key-2", "nested": [{"db": {"dbPassword": "deep-passw0rd-3"}}]},
    "variables": ["OTHER_SECRET=listed-secret-4", "PATH=/bin", "LANG=C"],
    "as_text": json.dumps({"auth_token": "nested-json-t0ken-5", "HOME": "/root"}),
}
TOLD_VALUES: Final = (
    "foreign-p@ss-1",
    "0123456789abcdef0123456789abcdef",
    "camel-case-key-2",
    "deep-passw0rd-3",
    "listed-secret-4",
    "nested-json-t0ken-5",
)

SPELLINGS: Final[dict[str, Callable[[str], str]]] = {
    "plain": str,
    "inside a word": lambda value: f"run{value}end",
    "key=value": lambda value: f"--x token={value} y",
    "JSON": lambda value: json.dumps(value)[1:-1],
    "JSON, as it is": lambda value: json.dumps(value, ensure_ascii=False)[1:-1],
    "JSON twice": lambda value: json.dumps(json.dumps({"note": value})),
    "URL": lambda value: f"https://host.x/?q={quote(value, safe='')}",
    "URL, slashes kept": quote,
    "form": quote_plus,
    "Python": repr,
}


def leaks(data: bytes, secrets: tuple[str, ...]) -> list[str]:
    """The secrets in the bytes of a file: as they stand, unpacked, with JSON and URL escapes taken back."""
    texts = list(_texts(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data))
    return sorted({secret for secret in secrets for text in texts if secret in text})


def _texts(data: bytes) -> Iterator[str]:
    text = data.decode(errors="replace")
    yield text
    for part in (text, *text.splitlines()) if len(text) < 1 << 20 else (text,):
        try:
            decoded = json.loads(part, strict=False)
        except ValueError:
            continue
        yield "\n".join(_strings(decoded))
    yield unquote(text.replace("+", " "))
    yield unquote(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a script has escapes of its own
        yield text.encode("latin-1", "backslashreplace").decode("unicode_escape", "replace")


def _strings(value: Any) -> Iterator[str]:
    """All texts of a JSON document, keys too; those that are JSON themselves decoded as well."""
    if isinstance(value, str):
        yield value
        yield unquote(value)
        if value[:1] in ('"', "{", "["):
            try:
                yield from _strings(json.loads(value))
            except ValueError:
                return
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)


def leaks_in(folder: Path, secrets: tuple[str, ...], but: tuple[Path, ...] = ()) -> dict[str, list[str]]:
    """The files below a folder that have secrets, and which; hidden and temporary ones too."""
    files = [path for path in folder.rglob("*") if path.is_file() and path not in but]
    found = {str(path.relative_to(folder)): leaks(path.read_bytes(), secrets) for path in files}
    return {name: secrets for name, secrets in found.items() if secrets}
