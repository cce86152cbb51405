"""The folder of an experiment: of each run its trace, its report and its times, whole or not at all."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from opanatomy.errors import OutputError, UsageError
from opanatomy.records.anatomy import Anatomy
from opanatomy.run_options import RunOptions

Result = TypeVar("Result")

#: Says which options the files of each run are of.
_INDEX: Final = "runs.json"


class Kept(Struct, frozen=True, kw_only=True):
    """The files of one run."""

    name: str
    trace: Path
    report: Path
    #: What else was found out about it: the times of its repetitions, what it leaves the same.
    results: Path


class Store:
    """The folder; with `resume` what is there of runs with the same options is used."""

    def __init__(self, folder: Path, *, resume: bool) -> None:
        self.folder, self.resume = folder, resume
        self._runs: dict[str, str] = self._opened()

    def _opened(self) -> dict[str, str]:
        """A digest of the options of each run that the folder has, which is made where it is not there."""
        try:
            self.folder.mkdir(parents=True, exist_ok=self.resume)
        except FileExistsError:
            raise UsageError(
                f"--folder {self.folder}: it is there already - give --resume to go on with it, or another name"
            ) from None
        except OSError as error:
            raise OutputError(f"cannot make the folder {self.folder}: {error.strerror or error}") from error
        try:
            return msgspec.json.decode((self.folder / _INDEX).read_bytes(), type=dict[str, str])
        except FileNotFoundError:
            return {}
        except (msgspec.MsgspecError, OSError) as error:
            raise UsageError(f"--folder {self.folder}: its {_INDEX} cannot be read: {error}") from error

    @contextmanager
    def open(self) -> Iterator[None]:
        """A block that leaves no folder behind in which nothing was run."""
        try:
            yield
        finally:
            with suppress(OSError):
                if all(path.name == _INDEX for path in self.folder.iterdir()):
                    (self.folder / _INDEX).unlink(missing_ok=True)
                    self.folder.rmdir()

    def kept(self, name: str, options: RunOptions) -> Kept:
        """The files of a run; what is there of one with other options is gone afterwards."""
        kept = Kept(
            name=name, trace=self.folder / f"{name}.trace.json.gz", report=self.folder / f"{name}.report.json",
            results=self.folder / f"{name}.results.json",
        )  # fmt: skip
        # Options may name a secret: what is kept of them only tells whether they are the same.
        digest = hashlib.sha256(msgspec.json.encode(options)).hexdigest()
        if self._runs.get(name) != digest:
            for path in (kept.trace, kept.report, kept.results):
                path.unlink(missing_ok=True)
            self._runs[name] = digest
            _write(self.folder / _INDEX, msgspec.json.format(msgspec.json.encode(self._runs), indent=2))
        return kept

    @contextmanager
    def new_trace(self, kept: Kept) -> Iterator[Path]:
        """Where a trace is written to, which is the run's when the block ends well."""
        partial = kept.trace.with_name(f".partial.{kept.trace.name}")
        try:
            yield partial
            os.replace(partial, kept.trace)
        finally:
            with suppress(OSError):
                partial.unlink()

    def write_report(self, kept: Kept, anatomy: Anatomy) -> None:
        """Keep the JSON report of a run."""
        from opanatomy.report import format_named
        from opanatomy.report.format import Page

        if not kept.report.exists():
            _write(kept.report, format_named("json").write(anatomy, Page()).encode())

    def remembered(self, kept: Kept, key: str, kind: type[Result], make: Callable[[], Result]) -> Result:
        """What `make` gives, from the folder where it was kept before under this key."""
        known = self._remembered(kept)
        if key in known:
            with suppress(msgspec.MsgspecError):
                return msgspec.json.decode(known[key], type=kind)
        result = make()
        known[key] = msgspec.Raw(msgspec.json.encode(result))
        _write(kept.results, msgspec.json.encode(known))
        return result

    def _remembered(self, kept: Kept) -> dict[str, msgspec.Raw]:
        try:
            return msgspec.json.decode(kept.results.read_bytes(), type=dict[str, msgspec.Raw])
        except (OSError, msgspec.MsgspecError):
            return {}

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder inside for what is gone when the block ends."""
        with TemporaryDirectory(prefix=".scratch.", dir=self.folder) as name:
            yield Path(name)


def folder_for(name: str | None, stem: str, *, resume: bool) -> Path:
    """The folder that is named, else one from the model that is not taken yet; to be gone on with, the last one."""
    if name is not None:
        if not name:
            raise UsageError("--folder: the name is empty - give the name of a folder")
        return Path(name)
    folder, number = Path(f"{stem}.techniques"), 1
    last = folder
    while os.path.lexists(folder):
        last, number = folder, number + 1
        folder = Path(f"{stem}-{number}.techniques")
    return last if resume else folder


def _write(path: Path, content: bytes) -> None:
    """The file, whole or not at all; `OutputError` where it cannot be written."""
    partial = path.with_name(f".partial.{path.name}")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            partial.unlink()
