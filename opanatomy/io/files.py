"""Write files atomically and never over another file; read store addresses; find the cache folder.

A file is created in a hidden folder next to its target and renamed when complete. A later run removes leftovers of a
killed one.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from opanatomy.errors import OutputError, TraceError, UsageError
from opanatomy.records.patterns import regex

#: Far more than the trace of one step takes.
NEEDED_BYTES: Final = 64 << 20
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: The errors of `link` on a file system without hard links.
_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EACCES, errno.EXDEV)
#: The ending of a name, before which a number is inserted.
_ENDING: Final = regex(r"((?:\.rank\d+)?(?:\.(?:trace|report|annotated))?(?:\.(?:json|csv|txt))?(?:\.gz)?|\.[^.]+)$")
#: Environment variable with the folder into which a script's recorders write, regardless of their arguments.
TRACES_FOLDER: Final = "OPANATOMY_TRACES_FOLDER"
#: The hidden folder for incomplete files, and the age from which they count as left by a killed run.
_HIDDEN, _PARTIAL, _LEFT_SECONDS = ".opanatomy-", ".partial", 86_400


class OutputFile(Struct, kw_only=True):
    """A file to write: `path` is its name as the user knows it, `target` the absolute one with links resolved.

    `numbered` names count up if they are taken. A device or a pipe (`is_stream`) is written directly.
    """

    path: Path
    target: Path
    force: bool
    numbered: bool
    is_stream: bool

    @contextmanager
    def written(self) -> Iterator[Path]:
        """Yield the name to write to; publish that file as `path` if the block succeeds."""
        if self.is_stream:
            folder, partial = None, Path(os.path.abspath(self.path))
        else:
            try:
                folder = Path(tempfile.mkdtemp(prefix=_HIDDEN, suffix=_PARTIAL, dir=self.target.parent))
            except OSError as error:
                raise _cannot_write(self.path, error) from error
            partial = folder / self.target.name
        process = os.getpid()
        try:
            yield partial
            if folder is not None and os.getpid() == process:
                self._publish(partial)
        except OSError as error:
            if not self._is_about(error, partial if folder is None else folder):
                raise
            raise _cannot_write(self.path, error) from error
        finally:
            if folder is not None and os.getpid() == process:  # a forked child leaves it to its parent
                shutil.rmtree(folder, ignore_errors=True)

    def _publish(self, partial: Path) -> None:
        # A network file system or a quota may report only now that there is no room.
        file = os.open(partial, os.O_RDWR)
        try:
            os.fsync(file)
        finally:
            os.close(file)
        if self.force:
            os.replace(partial, self.target)
            return
        wanted, number = self.path, 1
        while True:
            try:
                _move_exclusively(partial, self.target)
                break
            except FileExistsError:
                number += 1
                self.path = numbered_name(wanted, number)
                self.target = self.target.with_name(self.path.name)
        if number > 1 and not self.numbered:
            raise OutputError(
                f"cannot write {wanted}: another process created it during this run - the contents are in {self.target}"
            )

    def _is_about(self, error: OSError, own: Path) -> bool:
        """Return whether an error comes from writing the file, not from anything else in the block."""
        if error.filename is None:
            return error.errno in (*_FULL, errno.EIO, errno.EROFS)
        name = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else ""
        return name.startswith((str(own), str(self.target))) or error.errno in _FULL


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the name of a file beside `path`; if the block succeeds, that atomically replaces `path`.

    The name has the ending of `path`. Not for the user's files, which are written by `output_file`.
    """
    partial = path.with_name(f".partial-{secrets.token_hex(4)}.{path.name}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        with suppress(OSError):
            partial.unlink()


def output_file(
    path: Path,
    *,
    force: bool = False,
    numbered: bool = False,
    needed_bytes: int = NEEDED_BYTES,
    forced_by: str = "add --force",
    instead: str = "choose another folder",
) -> OutputFile:
    """Return the file of this name; raise `OutputError` if it already exists or cannot be written.

    `force` allows an existing name (`forced_by` is the option to mention); a `numbered` name counts up to the next free
    one. `instead` says what to do if the folder cannot be written.
    """
    try:
        if os.path.isdir(path):
            raise OutputError(f"cannot write {path}: it is a folder - pass a file name")
        if _is_stream(path):
            target = Path(os.path.realpath(path))
            return OutputFile(path=path, target=target, force=force, numbered=False, is_stream=True)
        named, number = path, 1
        while True:
            with suppress(FileNotFoundError):
                os.lstat(named)  # fails if no file can have this name
            target = Path(os.path.realpath(named))
            if force or not os.path.lexists(target):
                break
            if not numbered:
                raise OutputError(f"cannot write {named}: it already exists - {forced_by} or choose another name")
            number += 1
            named = numbered_name(path, number)
        folder = target.parent
        if not folder.is_dir():
            raise OutputError(f"cannot write {named}: the folder {folder} does not exist - create it first")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise OutputError(f"cannot write {named}: no permission to write in {folder} - {instead}")
        free = shutil.disk_usage(folder).free
        if free < needed_bytes:
            raise OutputError(
                f"cannot write {named}: only {free / 1e6:.1f} MB are free in {folder}, but up to"
                f" {needed_bytes / 1e6:.0f} MB are needed - free some space or choose another folder"
            )
        for left in folder.glob(f"{_HIDDEN}*{_PARTIAL}"):
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > _LEFT_SECONDS:
                    shutil.rmtree(left, ignore_errors=True)
    except OSError as error:
        other = "name" if error.errno == errno.ENAMETOOLONG else "folder"
        raise OutputError(f"cannot write {path}: {error.strerror or error} - choose another {other}") from error
    return OutputFile(path=named, target=target, force=force, numbered=numbered, is_stream=False)


def numbered_name(path: Path, number: int) -> Path:
    """Return the `number`-th name like `path`: `gpt2.trace.json.gz`, `gpt2-2.trace.json.gz`."""
    if number == 1:
        return path
    ending = _ENDING.search(path.name)
    at = ending.start() if ending else len(path.name)
    return path.with_name(f"{path.name[:at]}-{number}{path.name[at:]}")


def name_of_rank(path: Path, rank: int) -> Path:
    """Return the name of a rank's own file: `step.rank3.json.gz` for `step.json.gz`."""
    ending = _ENDING.search(path.name)
    at = ending.start() if ending else len(path.name)
    rest = re.sub(r"^\.rank\d+", "", path.name[at:])
    return path.with_name(f"{path.name[:at]}.rank{rank}{rest}")


def same_file(first: Path, second: Path) -> bool:
    """Return whether two names, existing or not, denote the same regular file; `False` without a working directory."""
    try:
        return os.path.realpath(first) == os.path.realpath(second) and not _is_stream(first)
    except OSError:
        return False


def folder_of_traces() -> Path | None:
    """Return a new folder for one recording if another process collects its traces; else `None`."""
    folder = os.environ.get(TRACES_FOLDER)
    return None if not folder else Path(tempfile.mkdtemp(dir=folder))


@contextmanager
def temporary(name: str, what: str) -> Iterator[Path]:
    """Yield a name in a temporary folder that is removed afterwards; `what` describes the file in messages."""
    process = os.getpid()
    try:
        folder = tempfile.mkdtemp(prefix="opanatomy-")
    except OSError as error:
        raise OutputError(
            f"cannot create a temporary folder for {what}: {error.strerror or error} - set TMPDIR to a writable folder"
        ) from error
    try:
        yield Path(folder) / name
    except OSError as error:
        inside = isinstance(error.filename, str) and error.filename.startswith(folder)
        if not inside and not (error.filename is None and is_full(error)):
            raise
        raise OutputError(
            f"cannot write {what} into the temporary folder {Path(folder).parent}: {error.strerror or error} -"
            " free some space or set TMPDIR to another folder"
        ) from error
    finally:
        if os.getpid() == process:  # a forked child that ends leaves it to its parent
            shutil.rmtree(folder, ignore_errors=True)


def is_full(error: BaseException) -> bool:
    """Return whether an error means no room: on the device, within a quota, or within a limit on files."""
    return isinstance(error, OSError) and error.errno in _FULL


def _cannot_write(path: Path, error: OSError) -> OutputError:
    todo = "free some space or choose another folder" if error.errno in _FULL else "choose another folder"
    return OutputError(f"cannot write {path}: {error.strerror or error} - {todo}")


def _move_exclusively(source: Path, target: Path) -> None:
    """Rename `source` to `target` atomically; raise `FileExistsError` if that name is taken."""
    try:
        os.link(source, target)
        with suppress(OSError):
            os.unlink(source)
        return
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        os.replace(source, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(target)
        raise


def _is_stream(path: Path) -> bool:
    """Return whether the path is a device, pipe or socket, like /dev/null or /dev/stdout."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


# The user's cache folder; its content can be made again.


def cache_folder(name: str) -> Path | None:
    """Return the cache folder of this name; `None` for a user without a home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "opanatomy" / name
    with suppress(RuntimeError):
        return Path.home() / ".cache" / "opanatomy" / name
    return None


# Web and bucket addresses: what to do if one is given instead of a file.


#: A scheme has at least two letters (`C:/` is a drive); a normalized path keeps only one slash.
_ADDRESS: Final = regex(r"([A-Za-z][A-Za-z0-9+.-]+):/{1,3}(?=[^/])(.*)", re.DOTALL)
_HUB: Final = regex(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/(?:models/)?([^/?#]+/[^/?#]+)/?$")
_FILE: Final = regex(r"(?i:file):(?://([^/]*))?(/.*)", re.DOTALL)
#: The command that copies from and to each store.
_COPY: Final = {
    "s3": "aws s3 cp {source} {target}",
    "s3a": "aws s3 cp {source} {target}",
    "gs": "gcloud storage cp {source} {target}",
    "gcs": "gcloud storage cp {source} {target}",
}


def local_name(name: str) -> str:
    """Return the path of a `file:` address of this host, or any other name unchanged."""
    match = None if scheme_of(name) is None else _FILE.fullmatch(name)
    if match is None or (match[1] or "localhost") != "localhost":
        return name
    path = unquote(match[2], errors="surrogateescape")
    if "\0" in path:
        raise UsageError(
            f"{name}: its path contains a null byte (%00), which no file name can have - pass the file's path"
        )
    return path


def download_of(name: str) -> str:
    """Return the commands that download the trace or archive at an address and analyze it."""
    name = name.split("::")[-1]
    file = _file_name(name)
    return f"{_download(scheme_of(name) or '', name, file)} && opanatomy analyze {shlex.quote(file)}"


def check_no_address(option: str, name: str) -> None:
    """Raise `UsageError` with what to do if an output file or the model is an address."""
    scheme = scheme_of(name)
    if scheme is None:
        return
    if (path := local_name(name)) != name:
        todo = f"pass its path: {shlex.quote(path)}"
    elif option == "MODEL":
        hub = _HUB.match(name)
        todo = f"use its Hub id: opanatomy profile {hub[1]}" if hub else "download its folder and pass that folder"
    else:
        file = shlex.quote(_file_name(name))
        target = shlex.quote(name)
        copy = _COPY.get(scheme, "").format(source=file, target=target)
        steps = [f"{option} {file} ..."] if option.startswith("-") else []  # of a command; Python has arguments
        steps += [copy] if copy else []
        todo = "write to a local file and copy it there" + (f": {' && '.join(steps)}" if steps else "")
    raise UsageError(f"{option} {name}: this is a URL, not a file - {todo}")


def scheme_of(name: str) -> str | None:
    """Return the scheme of an address; `None` for a file's name, an existing path, and a path in a folder `s3:`."""
    match = _ADDRESS.fullmatch(name)
    if match is None or os.path.lexists(name):
        return None
    return None if "://" not in name and os.path.isdir(f"{match[1]}:") else match[1].lower()


def _file_name(name: str) -> str:
    """Return the file name of a download."""
    last = unquote(urlsplit(name).path).rstrip("/").rsplit("/", 1)[-1]
    return last if last.lower().endswith((".json", ".gz", ".zip")) else "trace.json.gz"


def _download(scheme: str, name: str, file: str) -> str:
    source, target = shlex.quote(name), shlex.quote(file)
    if scheme in ("http", "https", "ftp"):
        return f"curl -fL -o {target} {source}"
    if scheme in ("az", "abfs", "abfss", "wasb", "wasbs"):
        parts = urlsplit(name)
        container, account = parts.username or parts.netloc, parts.hostname if parts.username else None
        of_account = f" --account-name {shlex.quote(account.split('.')[0])}" if account else ""
        blob = shlex.quote(parts.path.lstrip("/"))
        return f"az storage blob download{of_account} -c {shlex.quote(container)} -n {blob} -f {target}"
    if scheme == "hf":
        # `hf://[datasets/|spaces/]OWNER/NAME[@REVISION]/PATH`, into the current folder
        words = name.split("://", 1)[-1].split("/")
        kind = words.pop(0) if words[0] in ("datasets", "spaces") else None
        repository, _, revision = "/".join(words[:2]).partition("@")
        options = [f"--repo-type {kind.removesuffix('s')}"] if kind else []
        options += [f"--revision {shlex.quote(revision)}"] if revision else []
        wanted = " ".join(map(shlex.quote, (repository, "/".join(words[2:]))))
        return " ".join(["hf download", wanted, *options, "--local-dir ."])
    if scheme in _COPY:
        return _COPY[scheme].format(source=source, target=target)
    return f"copy {source} to {target} with its store's own tool"


# Files at store addresses (`s3://`, `gs://`, `hf://`, `zip://`, `memory://`), by fsspec.


#: Fields of a store's object that change only with its content, and fields with its modification time.
_BY_CONTENT: Final = (
    "ETag",
    "etag",
    "md5Hash",
    "crc32c",
    "generation",
    "VersionId",
    "blob_id",
    "content_md5",
    "checksum",
    "sha256",
)
_TIMES: Final = ("LastModified", "last_modified", "updated", "modified", "mtime", "created", "date_time")
_SIZES: Final = ("size", "Size", "file_size", "CRC")
#: The package with which fsspec reads each scheme.
_PACKAGES: Final = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs",
    "http": "aiohttp", "https": "aiohttp", "hf": "huggingface_hub", "github": "requests", "sftp": "paramiko",
}  # fmt: skip
_IN_ZIP: Final = "zip://::"
_GLOB: Final = regex(r"[*?\[]")


class Address(Struct, frozen=True):
    """The address of a file or folder in a store."""

    text: str

    @staticmethod
    def of(name: str, what: str) -> Address | None:
        """Parse an address; return `None` for a file's name.

        Raise `UsageError`, its text beginning with `what`, for an address of no store: `file://HOST/...` of another
        host, `dbfs:/...`.
        """
        scheme = scheme_of(name)
        if scheme is None:
            return None
        if "://" not in name or scheme == "file":
            raise _refusal(name, what)
        return Address(name)

    @property
    def name(self) -> str:
        """Return the last part of the address."""
        return PurePosixPath(self.text.split("::")[0].rstrip("/")).name

    @property
    def suffix(self) -> str:
        """Return the ending of its name."""
        return PurePosixPath(self.name).suffix

    def __truediv__(self, name: str) -> Address:
        """Return the address of a file in this folder; the path is the first part of a chained address."""
        first, *others = self.text.split("::")
        return Address("::".join([f"{first.rstrip('/')}/{name}", *others]))

    def __str__(self) -> str:
        return self.text.removeprefix(_IN_ZIP)

    def as_zip(self) -> Address:
        """Return the address of the content of the zip at this address."""
        return Address(_IN_ZIP + self.text)


class Identity(Struct, frozen=True):
    """A store's identification of an object's content; `by_content` if it depends on content, not only on times."""

    text: str
    by_content: bool
    changed_ns: int | None


def files_at(address: Address) -> list[Address]:
    """Return the files at an address: itself, those matching its pattern, or those in its folder and subfolders.

    Raise `TraceError` if there are none, `UsageError` if the store cannot be asked.
    """
    with _errors_of(address):
        system, path = _file_system(address)
        if _GLOB.search(path):
            files = [name for name in system.glob(path) if system.isfile(name)]
        elif system.isdir(path):
            files = system.find(path, maxdepth=2)
        elif system.exists(path):
            return [address]
        else:
            raise FileNotFoundError
    tail = "".join(f"::{part}" for part in address.text.split("::")[1:])
    return [Address(_with_scheme(system, name, address) + tail) for name in files]


def _with_scheme(system: Any, name: str, address: Address) -> str:
    """Return a path of a file system as an address of the scheme that the user gave."""
    scheme = address.text.split("://", 1)[0]
    plain: str = system._strip_protocol(name)
    if "://" in plain:
        return plain
    return f"{scheme}://{plain.lstrip('/') if scheme in ('zip', 'memory') else plain}"


def is_folder(address: Address) -> bool:
    """Return whether the address is a folder or a pattern."""
    with _errors_of(address):
        system, path = _file_system(address)
        return bool(_GLOB.search(path) or system.isdir(path))


def fetch(address: Address, target: Path) -> None:
    """Copy the object at an address into a file."""
    with _errors_of(address):
        system, path = _file_system(address)
        system.get_file(path, str(target))


def read_bytes(file: Path | Address) -> bytes | None:
    """Return the content of a file; `None` if it does not exist."""
    try:
        if isinstance(file, Path):
            return file.read_bytes()
        system, path = _file_system(file)
        data: bytes = system.cat_file(path)
        return data
    except FileNotFoundError:
        return None


def write_bytes(address: Address, data: bytes) -> None:
    """Write a file at an address; stores write a file whole or not at all."""
    system, path = _file_system(address)
    with_folders = system._parent(path)
    if with_folders:
        system.makedirs(with_folders, exist_ok=True)
    system.pipe_file(path, data)


def identity_of(address: Address) -> Identity | None:
    """Return the store's identity of the object and of each enclosing archive; `None` if there is none."""
    parts = address.text.split("::")
    properties: list[tuple[str, Any]] = []
    by_content, changed = True, None
    for index in range(len(parts)):
        try:
            system, path = _file_system(Address("::".join(parts[index:])))
            known = system.info(path)
        except Exception:  # any error of any store: the object stays unknown
            return None
        contents = [(key, known[key]) for key in _BY_CONTENT if known.get(key)]
        times = [(key, known[key]) for key in _TIMES if known.get(key)]
        if not contents and not times:
            return None
        by_content = by_content and bool(contents)
        changed = max(filter(None, (changed, *(_nanoseconds(value) for _, value in times))), default=None)
        properties += [*contents, *times, *((key, known[key]) for key in _SIZES if key in known)]
    return Identity(repr(properties), by_content, changed)


def _nanoseconds(value: object) -> int | None:
    if isinstance(value, datetime):
        return int((value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp() * 1e9)
    if isinstance(value, (int, float)):
        return int(value * 1e9)
    try:
        return _nanoseconds(datetime.fromisoformat(str(value).replace("Z", "+00:00")))
    except ValueError:
        return None


def _file_system(address: Address) -> tuple[Any, str]:
    """Return the file system and the path in it."""
    import fsspec

    system, path = fsspec.core.url_to_fs(address.text)
    return system, str(path)


@contextmanager
def _errors_of(address: Address) -> Iterator[None]:
    """Turn a store's failure into one line: what is missing and how to get it, or the store's own message."""
    try:
        yield
    except (TraceError, UsageError):
        raise
    except FileNotFoundError as error:
        raise TraceError(f"cannot read {address}: no such file or folder - check the address") from error
    except (ImportError, ValueError) as error:
        package = _PACKAGES.get(scheme_of(address.text.split("::")[-1]) or "")
        if isinstance(error, ModuleNotFoundError) and error.name == "fsspec":
            package = "opanatomy[cluster]"
        raise _refusal(str(address), f"cannot read {address}", package) from error
    except Exception as error:  # each store has its own errors
        message = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TraceError(
            f"cannot read {address}: {message} - try to download it: {download_of(str(address))}"
        ) from error


def _refusal(name: str, what: str, package: str | None = None) -> UsageError:
    """Return the error for an address that is not read, with what to do about it."""
    install = f"pip install {shlex.quote(package)}, or " if package else ""
    return UsageError(f"{what}: this is a URL, not a file - {install}download it first: {download_of(name)}")
