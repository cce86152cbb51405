"""Files at addresses of stores (`s3://`, `gs://`, `hf://`, `zip://`, `memory://`), by fsspec."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import Any, Final

from msgspec import Struct

from opanatomy.errors import TraceError, UsageError
from opanatomy.files.addresses import download_of, scheme_of

#: What a store says of an object that only another content changes, and what says when it was last changed.
_BY_CONTENT: Final = (
    "ETag", "etag", "md5Hash", "crc32c", "generation", "VersionId", "blob_id", "content_md5", "checksum", "sha256",
)  # fmt: skip
_TIMES: Final = ("LastModified", "last_modified", "updated", "modified", "mtime", "created", "date_time")
_SIZES: Final = ("size", "Size", "file_size", "CRC")
#: What fsspec reads a scheme with.
_PACKAGES: Final = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs",
    "http": "aiohttp", "https": "aiohttp", "hf": "huggingface_hub", "github": "requests", "sftp": "paramiko",
}  # fmt: skip
_IN_ZIP: Final = "zip://::"
_GLOB: Final = re.compile(r"[*?\[]")


class Address(Struct, frozen=True):
    """The address of a file or folder in a store."""

    text: str

    @staticmethod
    def of(name: str, what: str) -> Address | None:
        """The address that a name is; `None` for that of a file, `UsageError` that begins with `what` for one that is
        of no store: `file://HOST/...` of another host, `dbfs:/...`."""
        scheme = scheme_of(name)
        if scheme is None:
            return None
        if "://" not in name or scheme == "file":
            raise _refusal(name, what)
        return Address(name)

    @property
    def name(self) -> str:
        """The last part of the address."""
        return PurePosixPath(self.text.split("::")[0].rstrip("/")).name

    @property
    def suffix(self) -> str:
        """The ending of its name."""
        return PurePosixPath(self.name).suffix

    def __truediv__(self, name: str) -> Address:
        """The address of a file in this folder; of a chained address the first part is the path."""
        first, *others = self.text.split("::")
        return Address("::".join([f"{first.rstrip('/')}/{name}", *others]))

    def __str__(self) -> str:
        return self.text.removeprefix(_IN_ZIP)

    def as_zip(self) -> Address:
        """What is in the zip at this address."""
        return Address(_IN_ZIP + self.text)


class Identity(Struct, frozen=True):
    """What a store says of an object's content; `by_content` where it distinguishes contents, not times alone."""

    text: str
    by_content: bool
    changed_ns: int | None


def files_at(address: Address) -> list[Address]:
    """The files that an address is of: itself, those that its pattern fits, or those in its folder and the folders in
    that; `TraceError` where there is none, `UsageError` where the store cannot be asked."""
    with _errors_of(address):
        system, path = _opened(address)
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
    """A path of a file system as an address of the scheme that the user gave."""
    scheme = address.text.split("://", 1)[0]
    plain: str = system._strip_protocol(name)
    if "://" in plain:
        return plain
    return f"{scheme}://{plain.lstrip('/') if scheme in ('zip', 'memory') else plain}"


def is_folder(address: Address) -> bool:
    """Whether the address is of a folder or a pattern."""
    with _errors_of(address):
        system, path = _opened(address)
        return bool(_GLOB.search(path) or system.isdir(path))


def fetch(address: Address, target: Path) -> None:
    """Copy what is at an address into a file."""
    with _errors_of(address):
        system, path = _opened(address)
        system.get_file(path, str(target))


def read_bytes(file: Path | Address) -> bytes | None:
    """What is in a file; `None` where there is none."""
    try:
        if isinstance(file, Path):
            return file.read_bytes()
        system, path = _opened(file)
        data: bytes = system.cat_file(path)
        return data
    except FileNotFoundError:
        return None


def write_bytes(address: Address, data: bytes) -> None:
    """Put a file at an address; stores take a file whole or not at all."""
    system, path = _opened(address)
    with_folders = system._parent(path)
    if with_folders:
        system.makedirs(with_folders, exist_ok=True)
    system.pipe_file(path, data)


def identity_of(address: Address) -> Identity | None:
    """What the store says of the object, and of each archive that it is in; `None` where that says nothing."""
    parts = address.text.split("::")
    properties: list[tuple[str, Any]] = []
    by_content, changed = True, None
    for place in range(len(parts)):
        try:
            system, path = _opened(Address("::".join(parts[place:])))
            known = system.info(path)
        except Exception:  # of any store: nothing is known of the object
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


def _opened(address: Address) -> tuple[Any, str]:
    """(the file system, the path in it)."""
    import fsspec

    system, path = fsspec.core.url_to_fs(address.text)
    return system, str(path)


@contextmanager
def _errors_of(address: Address) -> Iterator[None]:
    """What a store fails with as one line: what is missing and how to get it, or what it said."""
    try:
        yield
    except (TraceError, UsageError):
        raise
    except FileNotFoundError as error:
        raise TraceError(f"cannot read {address}: there is no such file or folder - give another one") from error
    except (ImportError, ValueError) as error:
        raise _refusal(str(address), f"cannot read {address}", _package_of(address, error)) from error
    except Exception as error:  # each store has errors of its own
        message = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TraceError(
            f"cannot read {address}: {message} - try to download it: {download_of(str(address))}"
        ) from error


def _refusal(name: str, what: str, package: str | None = None) -> UsageError:
    """That an address is not read, and what to do about it."""
    install = f"pip install {shlex.quote(package)}, or " if package else ""
    return UsageError(f"{what}: it is an address, not a file - {install}download it first: {download_of(name)}")


def _package_of(address: Address, error: Exception) -> str | None:
    """The package that a store needs and that is not there."""
    if isinstance(error, ModuleNotFoundError) and error.name == "fsspec":
        return "opanatomy[cluster]"
    return _PACKAGES.get(scheme_of(address.text.split("::")[-1]) or "")
