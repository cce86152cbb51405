"""Find the traces that a user names: files, folders of ranks, zips of ranks, here or at an address."""

from __future__ import annotations

import os
import shutil
import stat
import struct
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.errors import OpanatomyError, TraceError
from opanatomy.io.files import Address, fetch, files_at, is_folder, is_full, temporary
from opanatomy.records.patterns import regex

if TYPE_CHECKING:
    import zipfile

_ENDINGS: Final = (".json", ".json.gz")
#: Memory snapshots of ranks, of a folder without traces.
_SNAPSHOT_ENDINGS: Final = (".pickle", ".pickle.gz", ".pkl", ".pkl.gz")
_ZIP_MAGIC: Final = (b"PK\x03\x04", b"PK\x05\x06")
#: Maximum factor by which a zip can shrink a compressed trace; a file that shrinks more is not one.
_MAX_REPACKED: Final = 20
_GZIP_HEAD: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_LOCAL_HEAD: Final = struct.Struct("<4s5H3L2H")
#: How many skipped members to name; files that an operating system adds are not named.
_MAX_NAMED_MEMBERS: Final = 5
_OF_SYSTEMS: Final = {"__MACOSX", ".DS_Store", "Thumbs.db", "desktop.ini"}
_DIGITS: Final = regex(r"(\d+)")


class Source(Struct, frozen=True):
    """One trace: its file, or the zip that contains it, and its name in the report."""

    path: Path | Address
    name: str
    member: str | None = None

    @contextmanager
    def opened(self) -> Iterator[Path]:
        """Yield a file to read the trace from; a copy (of a member, or from an address) is removed afterwards."""
        if isinstance(self.path, Address):
            ending = ".json.gz" if self.path.suffix == ".gz" else ".json"
            with temporary(f"trace{ending}", f"the download of {self.path}") as file:
                fetch(self.path, file)
                yield file
            return
        if self.member is None:
            yield self.path
            return
        with temporary("trace.json", f"the unpacked contents of {self.path}") as file:
            unzipped = _unzipped(self.path, self.member, file.parent)
            try:
                yield unzipped
            except TraceError as error:
                raise TraceError(str(error).replace(str(unzipped), f"{self.member} in {self.path}")) from error


def sources_of(paths: Sequence[Path | Address]) -> list[Source]:
    """Return the traces in files, folders and zips, here or at addresses, in the order given, a folder's by name.

    Raises `TraceError` for a folder or zip without traces.
    """
    sources: list[Source] = []
    for path in paths:
        if isinstance(path, Address):
            sources += _at_address(path)
        elif os.path.isdir(path):
            sources += _in_folder(path)
        elif (other := other_tool(path)) is not None:
            raise TraceError(f"cannot read {path}: it is {other}")
        elif _is_zip(path):
            members = [name for name in _members(path) if _is_trace(PurePosixPath(name).parts)]
            if not members:
                raise TraceError(
                    f"no trace in the zip {path}: none of its files ends in .json or .json.gz - choose another one"
                )
            sources += [Source(path, name, name) for name in sorted(members, key=_natural)]
        else:
            sources.append(Source(path, path.name))

    # Equal names (`run1/rank0.json`, `run2/rank0.json`) become whole paths.
    names = Counter(source.name for source in sources)
    for index, source in enumerate(sources):
        if names[source.name] > 1:
            path = source.path
            file = path.text if isinstance(path, Address) else (path / (source.member or "")).as_posix()
            sources[index] = replace(source, name=file)
    return sources


#: Files of other tools: extension, first bytes, what they are and what to do.
_OTHERS: Final = (
    (".pftrace", b"", "a Perfetto trace in binary form - export the profiler's trace as JSON:"
     " profiler.export_chrome_trace('trace.json.gz')"),
    (".perfetto-trace", b"", "a Perfetto trace in binary form - export the profiler's trace as JSON:"
     " profiler.export_chrome_trace('trace.json.gz')"),
    (".nsys-rep", b"", "an Nsight Systems report - record the step with torch.profiler, or `opanatomy profile`"),
    (".qdrep", b"", "an Nsight Systems report - record the step with torch.profiler, or `opanatomy profile`"),
    (".ncu-rep", b"", "an Nsight Compute report on single kernels - record the step with torch.profiler"),
    (".xplane.pb", b"", "a JAX or TensorFlow profile - pass a torch.profiler trace"),
    (".sqlite", b"SQLite format 3", "an SQLite database, such as Nsight Systems exports - record the step with"
     " torch.profiler"),
    ("", b"SQLite format 3", "an SQLite database - pass a torch.profiler trace"),
)  # fmt: skip


def other_tool(path: Path) -> str | None:
    """Return what a file is that another tool wrote, and what to do instead; `None` for others."""
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError:
        return None
    if head.startswith(_ZIP_MAGIC) and any(name.endswith("/data.pkl") for name in _members(path)):
        return "a torch.save file, with weights or tensors - pass a trace, or a file that _dump_snapshot wrote"
    name = path.name.lower()
    return next((what for ending, begin, what in _OTHERS if name.endswith(ending) and head.startswith(begin)), None)


def _at_address(address: Address) -> list[Source]:
    """Return the traces at an address: one, or those in a folder, its subfolders or a zip, or matching a pattern."""
    whole = address.as_zip() if address.suffix == ".zip" else address
    if whole is address and not is_folder(address):
        return [Source(address, address.name)]
    files = {file.text.split("::")[0]: file for file in files_at(whole)}
    base = PurePosixPath(os.path.commonpath([name.rpartition("/")[0] for name in files])) if files else PurePosixPath()
    names = {text: PurePosixPath(text.rstrip("/")).relative_to(base) for text in files}
    traces = [text for text in files if _is_trace(names[text].parts)]
    if not traces:
        raise TraceError(f"no trace at {address}: none of its files ends in .json or .json.gz - choose another one")
    level = min(len(names[text].parts) for text in traces)
    return [
        Source(files[text], names[text].as_posix())
        for text in sorted(traces, key=_natural)
        if len(names[text].parts) == level or whole is not address
    ]


def _in_folder(folder: Path) -> list[Source]:
    """Return the traces in a folder; if it has none, those one folder below (`rank0/trace.json`)."""
    try:
        os.listdir(folder)
    except OSError as error:
        raise TraceError(f"cannot read the folder {folder}: {error.strerror or error} - choose another one") from error
    for endings in (_ENDINGS, _SNAPSHOT_ENDINGS):
        for pattern in ("*", "*/*"):
            paths = (path for path in folder.glob(pattern) if _is_trace(path.relative_to(folder).parts, endings))
            files = [path for path in paths if os.path.isfile(path)]
            if files:
                return [Source(path, path.relative_to(folder).as_posix()) for path in sorted(files, key=_natural)]
    other = next((what for path in sorted(folder.iterdir()) if (what := other_tool(path)) is not None), None)
    raise TraceError(
        f"no trace in the folder {folder}: none of its files ends in .json or .json.gz -"
        f" {'choose another one' if other is None else f'it contains {other}'}"
    )


def left_out_of(paths: Sequence[Path | Address]) -> list[str]:
    """Return a line per folder whose memory snapshots are skipped beside traces, and per zip with members skipped for
    their names; system files do not count."""
    lines = []
    for path in paths:
        if isinstance(path, Address):
            continue
        if os.path.isdir(path):
            found = (one.relative_to(path) for pattern in ("*", "*/*") for one in path.glob(pattern))
            names = [one.as_posix() for one in found if _is_trace(one.parts, _SNAPSHOT_ENDINGS)]
            if names:
                more = f" and {len(names) - _MAX_NAMED_MEMBERS} more" if len(names) > _MAX_NAMED_MEMBERS else ""
                said = ", ".join(_readable(name) for name in sorted(names, key=_natural)[:_MAX_NAMED_MEMBERS])
                lines.append(f"the folder's memory snapshots are left out: {said}{more} - analyze these separately")
            continue
        if not _is_zip(path):
            continue
        parts = {name: PurePosixPath(name).parts for name in _members(path)}
        names = [name for name in parts if not _is_trace(parts[name]) and not set(parts[name]) & _OF_SYSTEMS]
        if names:
            more = f" and {len(names) - _MAX_NAMED_MEMBERS} more" if len(names) > _MAX_NAMED_MEMBERS else ""
            said = ", ".join(_readable(name) for name in sorted(names, key=_natural)[:_MAX_NAMED_MEMBERS])
            files = "1 file of the zip is" if len(names) == 1 else f"{len(names):,} files of the zip are"
            lines.append(f"{files} left out (hidden, or the name does not end in .json or .json.gz): {said}{more}")
    return lines


def _members(path: Path) -> list[str]:
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            return [info.filename for info in archive.infolist() if not info.is_dir()]
    except (zipfile.BadZipFile, OSError, NotImplementedError) as error:
        raise TraceError(f"cannot read the zip {path}: {error} - is it complete?") from error


def _readable(name: str) -> str:
    return "".join(character if character.isprintable() else " " for character in name)[:100]


def _is_trace(parts: tuple[str, ...], endings: tuple[str, ...] = _ENDINGS) -> bool:
    return parts[-1].lower().endswith(endings) and not any(part.startswith((".", "__MACOSX")) for part in parts)


def _natural(path: Path | str) -> list[tuple[bool, int, str]]:
    """Return a sort key that puts `rank2` before `rank10`."""
    parts = _DIGITS.split(str(path))
    return [(part.isdecimal(), int(part[:18]) if part.isdecimal() else 0, part) for part in parts]


def _is_zip(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) in _ZIP_MAGIC
    except OSError:
        return False


def _unzipped(path: Path, member: str, folder: Path) -> Path:
    """Write the member to a file, still packed, so that no bomb can fill the disk."""
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as raw:
            info = archive.getinfo(member)
            if info.flag_bits & 1:
                raise TraceError(f"cannot read {member} in {path}: it is encrypted - unpack it first")
            if info.compress_type == zipfile.ZIP_DEFLATED and not member.lower().endswith(".gz"):
                target = folder / "trace.json.gz"
                with target.open("wb") as file:
                    _as_gzip(raw, info, file)
                return target
            # It is stored, or was packed before it was put into the zip.
            if info.file_size > _MAX_REPACKED * max(info.compress_size, 1 << 20):
                raise TraceError(
                    f"cannot read {info.filename}: it unpacks to {info.file_size / 1e6:.0f} MB - is this a zip bomb?"
                )
            if info.file_size > shutil.disk_usage(folder).free // 2:
                raise TraceError(
                    f"cannot unpack {info.filename}: its {info.file_size / 1e6:.0f} MB would fill over half of the free"
                    f" space in {folder.parent} - free some space, or set TMPDIR to another folder"
                )
            target = folder / ("trace.json.gz" if info.filename.lower().endswith(".gz") else "trace.json")
            with archive.open(info) as packed, target.open("wb") as file:
                shutil.copyfileobj(packed, file, 1 << 20)
            return target
    except (zipfile.BadZipFile, OSError, NotImplementedError, KeyError, struct.error, EOFError) as error:
        if is_full(error):
            raise
        raise TraceError(f"cannot read {member} in {path}: {error} - is the zip complete?") from error


def _as_gzip(raw: BinaryIO, info: zipfile.ZipInfo, target: BinaryIO) -> None:
    """Convert a zip member to gzip: both pack the same way, only header and trailer differ."""
    raw.seek(info.header_offset)
    head = _LOCAL_HEAD.unpack(raw.read(_LOCAL_HEAD.size))
    raw.seek(head[-2] + head[-1], 1)
    target.write(_GZIP_HEAD)
    left = info.compress_size
    while left > 0:
        chunk = raw.read(min(left, 1 << 20))
        if not chunk:
            raise EOFError("it ends early")
        target.write(chunk)
        left -= len(chunk)
    target.write(struct.pack("<2L", info.CRC, info.file_size & 0xFFFFFFFF))


# Save a trace from a pipe as a file: a pipe can be read only once, an analysis reads twice.


STDIN: Final = "-"
_CHUNK: Final = 1 << 20
_EXAMPLE: Final = "pipe one into it: zcat trace.json.gz | opanatomy analyze -"
#: The first bytes of a trace: an object, an array, gzip, zip; white space and a byte order mark may precede them.
_BEGINNINGS: Final = (b"{", b"[", b"\x1f\x8b", b"PK")


@contextmanager
def spooled(paths: Sequence[Path | Address]) -> Iterator[list[Path | Address]]:
    """Yield the paths, with pipes and `-` (stdin) saved as files that are removed afterwards.

    Raises `TraceError` for empty input, for input that is not a trace, or for a device.
    """
    with ExitStack() as stack:
        files: list[Path | Address] = []
        for number, path in enumerate(paths, 1):
            if isinstance(path, Address) or not is_stream(path):
                files.append(path)
            else:
                files.append(stack.enter_context(_spooled(path, number)))
        yield files


@contextmanager
def _spooled(path: Path, number: int) -> Iterator[Path]:
    name = "stdin" if str(path) in (STDIN, "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0") else str(path)
    called = "stdin" if name == "stdin" else path.name if path.suffix else f"pipe {number}"
    with temporary(called, "the trace from a pipe") as file, _opened(path, name) as source:
        if source.isatty():
            raise TraceError(f"cannot read a trace from {name}: it is a terminal - {_EXAMPLE}")
        status = os.fstat(source.fileno())
        nothing = os.path.samestat(status, os.stat(os.devnull))
        if stat.S_ISBLK(status.st_mode) or (stat.S_ISCHR(status.st_mode) and not nothing):
            raise TraceError(f"cannot read a trace from {name}: it is a device - {_EXAMPLE}")
        _copy(source, file, name)
        try:
            yield file
        except OpanatomyError as error:  # the user does not know this file
            text = str(error).replace(f"opanatomy analyze {file}", f"opanatomy analyze {path}").replace(str(file), name)
            if text == str(error):
                raise
            raise type(error)(text) from error


def _opened(path: Path, name: str) -> nullcontext[BinaryIO] | BinaryIO:
    if str(path) == STDIN:
        buffer = getattr(sys.stdin, "buffer", None)
        if buffer is None:
            raise TraceError(f"cannot read {name}: it is closed - pass a trace, or {_EXAMPLE}")
        return nullcontext(buffer)
    try:
        return path.open("rb")
    except OSError as error:
        raise TraceError(f"cannot read {name}: {error.strerror or error} - {_EXAMPLE}") from error


def _copy(source: BinaryIO, file: Path, name: str) -> None:
    limit = shutil.disk_usage(file.parent).free // 2
    size = 0
    with file.open("wb") as target:
        while chunk := _read(source, name):
            if not size and not chunk.removeprefix(b"\xef\xbb\xbf").lstrip()[:2].startswith(_BEGINNINGS):
                start = chunk[:8].decode(errors="replace")
                raise TraceError(f"{name} is not a trace: it starts with {start!r}, not with '{{' or '['")
            size += len(chunk)
            if size > limit:
                raise TraceError(
                    f"cannot store {name}: more than {limit / 1e6:.0f} MB arrived, which is half of the free space in"
                    f" {file.parent.parent} - free some space, set TMPDIR or pass a file"
                )
            target.write(chunk)
    if not size:
        raise TraceError(f"cannot read a trace from {name}: it is empty - {_EXAMPLE}")


def _read(source: BinaryIO, name: str) -> bytes:
    try:
        return source.read(_CHUNK)
    except OSError as error:
        raise TraceError(f"cannot read {name}: {error.strerror or error}") from error


def is_stream(path: Path) -> bool:
    """Return whether the path is stdin, or a pipe, socket or device."""
    if str(path) == STDIN:
        return not os.path.exists(path)
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
