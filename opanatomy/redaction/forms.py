"""Secrets that their form or the key before them gives away: access tokens, passwords, credentials in URLs."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from opanatomy.redaction.keys import is_secret_pair

REDACTED: Final = "<redacted>"

#: No letter or digit before it, but for that of an escape: `\\n`, `%3D`, `\\x0a`, `\\u000a`.
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
#: One of these is in each key of a secret.
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


@cache
def _pairs() -> tuple[re.Pattern[str], ...]:
    """`'key=a value in quotes'`, `key=value` and `"key": "value"`, `--key value`, and a setting's
    `key before -> after`; compiled where a text may have one."""
    return tuple(
        re.compile(rf"(?is){pattern}")
        for pattern in (
            rf"(?<=(?P<open>[\"'])){_KEY}(?P<between>=)(?P<value>(?:(?!(?P=open)).){{1,4096}})(?=(?P=open))",
            rf"(?<![\w-])(?:--?)?{_KEY}(?P<between>\\*[\"']?{_EQUALS}){_VALUE}",
            rf"(?<![\w-])--?{_KEY}(?P<between>\s+(?!-)){_VALUE}",
            rf"(?<![\w-]){_KEY}(?P<between> \S.{{0,200}}? -> )(?P<value>\S.{{0,4096}})$",
        )
    )


def _may_have_pair(text: str) -> bool:
    lower = text.lower()
    return not text.isascii() or any(word in lower for word in _KEY_WORDS)


_PLAIN_VALUE: Final = re.compile(r"^(?:[-+]?[\d.]+(?:[eE][-+]?\d+)?|None|null|true|false|True|False)$")

#: What stands between `Authorization:` and the secret.
_SCHEMES: Final = ("bearer", "basic")

#: A text without any of these, in small letters, needs no closer look.
TRIGGERS: Final = (
    "token", "secret", "pass", "pwd", "cred", "bearer", "basic ", "key", "auth", "cookie", "dsn", "jwt", "_pat", "sig",
    "hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat", "glpat-", "gldt-", "glrt-", "glcbt-", "glptt-",
    "glsoat-", "sk-", "k_live_", "k_test_", "whsec_", "akia", "asia", "xox", "xapp-", "aiza", "ya29", "gocspx-", "npm_",
    "pypi-", "nvapi", "_v1_", "gsk_", "r8_", "pplx-", "dapi", "hvs.", "sg.", "shpat_", "shpca_", "shppa_", "shpss_",
    "lin_api_", "eyj", "private", "://", ":\\/", "hooks.slack", "webhooks/", "telegram", "environ",
    *(f"pat{end}" for end in ("=", ":", " ", "'", '"', "\\")),
)  # fmt: skip


def _without_login(match: re.Match[str]) -> str:
    """In addresses of Azure's stores what stands before the host is a container, where no password follows it."""
    scheme, login = match[1].lower(), match[0][len(match[1]) :]
    is_container = scheme.rstrip("/\\:").endswith(("abfs", "abfss", "wasb", "wasbs")) and ":" not in login
    return match[0] if is_container else f"{match[1]}{REDACTED}@"


def without_tokens(text: str) -> str:
    """The text with access tokens, passwords and the credentials of URLs left out."""
    text = _TOKENS.sub(REDACTED, text)
    text = _BEARER.sub(rf"\1 {REDACTED}", text)
    text = _HEADER.sub(rf"\1\2{REDACTED}", text)
    text = _LOGIN.sub(_without_login, text)
    text = _HOOK.sub(rf"\1{REDACTED}", text)
    text = _QUERY.sub(rf"\1{REDACTED}", text)
    if _may_have_pair(text):
        for pattern in _pairs():
            text = pattern.sub(_without_value, text)
    return text


def values_by_key(text: str) -> list[str]:
    """The values that stand under a secret key in a text: of `--set auth_token=abc` it is `abc`."""
    if not _may_have_pair(text):
        return []
    pairs = (match for pattern in _pairs() for match in pattern.finditer(text) if _names_secret(match))
    return [inner for match in pairs if not _PLAIN_VALUE.match(inner := _unquoted(match["value"]))]


def _names_secret(match: re.Match[str]) -> bool:
    """Whether the key is a secret's; its first letter may be that of an escape: `\\ntoken=`."""
    key = match["key"]
    before = match.string[max(match.start("key") - 1, 0) : match.start("key")]
    return is_secret_pair(key) or (before == "\\" and key[0] in "bfnrt" and is_secret_pair(key[1:]))


def _without_value(match: re.Match[str]) -> str:
    value, before = match["value"], match[0][: match.start("value") - match.start()]
    if not _names_secret(match):
        return before + _pairs()[1].sub(_without_value, value)
    inner = _unquoted(value)
    if not inner or _PLAIN_VALUE.match(inner) or inner.startswith(REDACTED) or inner.lower() in _SCHEMES:
        return match[0]
    if match["between"].endswith(" -> "):
        before = f"{match['key']} {REDACTED} -> "
    return before + value.replace(inner, REDACTED)


def _unquoted(value: str) -> str:
    """What is inside the quotes, escaped ones too."""
    bare = value.lstrip("\\")
    if bare[:1] not in ("'", '"'):
        return value
    return bare[1:-1].rstrip("\\") if bare[-1:] == bare[:1] and len(bare) > 1 else bare[1:]
