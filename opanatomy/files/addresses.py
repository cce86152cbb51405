"""Web and bucket addresses, which are not files: what to do with one that was given for a file."""

from __future__ import annotations

import os
import re
import shlex
from typing import Final
from urllib.parse import unquote, urlsplit

from opanatomy.errors import UsageError

#: A scheme has two letters at least (`C:/` is a drive); of what was a path already one slash is left.
_ADDRESS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/{1,3}(?=[^/])(.*)", re.DOTALL)
_HUB: Final = re.compile(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/(?:models/)?([^/?#]+/[^/?#]+)/?$")
_FILE: Final = re.compile(r"(?i:file):(?://([^/]*))?(/.*)", re.DOTALL)
#: The command that copies from and to the store of a scheme.
_COPY: Final = {
    "s3": "aws s3 cp {source} {target}",
    "s3a": "aws s3 cp {source} {target}",
    "gs": "gcloud storage cp {source} {target}",
    "gcs": "gcloud storage cp {source} {target}",
}


def local_name(name: str) -> str:
    """The path of a `file:` address of this host; any other name as it is."""
    match = None if scheme_of(name) is None else _FILE.fullmatch(name)
    if match is None or (match[1] or "localhost") != "localhost":
        return name
    path = unquote(match[2], errors="surrogateescape")
    if "\0" in path:
        raise UsageError(f"{name}: the path of this address has a zero byte (%00), which no file has - give its path")
    return path


def download_of(name: str) -> str:
    """The command that downloads the trace at an address, or the archive that it is in, and analyzes it."""
    name = name.split("::")[-1]
    file = _file_name(name)
    return f"{_download(scheme_of(name) or '', name, file)} && opanatomy analyze {shlex.quote(file)}"


def check_no_address(option: str, name: str) -> None:
    """Raise `UsageError` with what to do where a file to write, or the model, is an address."""
    scheme = scheme_of(name)
    if scheme is None:
        return
    if (path := local_name(name)) != name:
        todo = f"give its path: {shlex.quote(path)}"
    elif option == "MODEL":
        hub = _HUB.match(name)
        todo = f"give its Hub id: opanatomy profile {hub[1]}" if hub else "download its folder first and give that"
    else:
        file = shlex.quote(_file_name(name))
        target = shlex.quote(name)
        copy = _COPY.get(scheme, "").format(source=file, target=target)
        steps = [f"{option} {file} ..."] if option.startswith("-") else []  # of a command; Python has arguments
        steps += [copy] if copy else []
        todo = "write to a file and copy that" + (f": {' && '.join(steps)}" if steps else "")
    raise UsageError(f"{option} {name}: it is an address, not a file - {todo}")


def scheme_of(name: str) -> str | None:
    """The scheme of an address; `None` for the name of a file, for one that exists, and for one in a folder `s3:`."""
    match = _ADDRESS.fullmatch(name)
    if match is None or os.path.lexists(name):
        return None
    return None if "://" not in name and os.path.isdir(f"{match[1]}:") else match[1].lower()


def _file_name(name: str) -> str:
    """What a download of the address is called."""
    last = unquote(urlsplit(name).path).rstrip("/").rsplit("/", 1)[-1]
    return last if last.lower().endswith((".json", ".gz", ".zip")) else "trace.json.gz"


def _download(scheme: str, name: str, file: str) -> str:
    source, target = shlex.quote(name), shlex.quote(file)
    if scheme in ("http", "https", "ftp"):
        return f"curl -fL -o {target} {source}"
    if scheme in ("az", "abfs", "abfss", "wasb", "wasbs"):
        return _from_azure(name, target)
    if scheme == "hf":
        return _from_hub(name)
    if scheme in _COPY:
        return _COPY[scheme].format(source=source, target=target)
    return f"copy {source} to {target} with the tool of its store"


def _from_azure(name: str, target: str) -> str:
    parts = urlsplit(name)
    container, account = parts.username or parts.netloc, parts.hostname if parts.username else None
    of_account = f" --account-name {shlex.quote(account.split('.')[0])}" if account else ""
    blob = shlex.quote(parts.path.lstrip("/"))
    return f"az storage blob download{of_account} -c {shlex.quote(container)} -n {blob} -f {target}"


def _from_hub(name: str) -> str:
    """`hf download` of `hf://[datasets/|spaces/]OWNER/NAME[@REVISION]/PATH`, into the current folder."""
    words = name.split("://", 1)[-1].split("/")
    kind = words.pop(0) if words[0] in ("datasets", "spaces") else None
    repository, _, revision = "/".join(words[:2]).partition("@")
    options = [f"--repo-type {kind.removesuffix('s')}"] if kind else []
    options += [f"--revision {shlex.quote(revision)}"] if revision else []
    wanted = " ".join(map(shlex.quote, (repository, "/".join(words[2:]))))
    return " ".join(["hf download", wanted, *options, "--local-dir ."])
