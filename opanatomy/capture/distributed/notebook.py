"""Run the processes of a notebook: forks by Accelerate's `notebook_launcher`; each writes its result to a file."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any, Final, TextIO

import msgspec

from opanatomy import errors
from opanatomy.capture.distributed.launched import launched
from opanatomy.capture.distributed.ranks import environment, quiet
from opanatomy.capture.silence import one_line
from opanatomy.errors import CaptureError, OpanatomyError

_MADE, _FAILED = "made", "failed"
#: Each fork would import these again, which takes seconds.
_IMPORTED: Final = ("accelerate", "transformers", "torch._dynamo", "torch.distributed.tensor")
#: torch's message about a GPU in a fork of a process that has used one.
_IN_USE: Final = (
    "CUDA is already in use in this process, and forked processes cannot use it - call opanatomy.profile before"
    " anything uses CUDA"
)


class _Failure(msgspec.Struct):
    kind: str
    text: str


def on_processes(make: Callable[[], bytes], processes: int, *, on_host: bool) -> list[bytes]:
    """Return the results of `make` in that many forks of this process, in the order of their ranks.

    Raises the error of the first that failed; a fork's changes to modules and tensors stay in it.
    """
    import torch

    try:
        import accelerate  # noqa: F401
    except ImportError as error:
        raise CaptureError(
            "starting processes needs accelerate, which is not installed - pip install accelerate"
        ) from error
    if not hasattr(os, "fork"):
        raise CaptureError(
            "notebook processes are started by fork, which this system does not support - use the command line"
        )
    cuda: Any = torch.cuda
    if not on_host and cuda.is_initialized():
        raise CaptureError(_IN_USE)
    for module in _IMPORTED:
        import_module(module)
    stdout = sys.stdout
    with tempfile.TemporaryDirectory(prefix="opanatomy-") as name:
        folder = Path(name)
        try:
            with environment(on_host), quiet(), redirect_stdout(StringIO()):  # it prints that it launches
                from accelerate import notebook_launcher

                with socket.socket() as free:
                    free.bind(("127.0.0.1", 0))
                    port = str(free.getsockname()[1])
                notebook_launcher(_rank(make, folder, stdout), num_processes=processes, use_port=port)
        except Exception as error:
            raise _failure(folder) or CaptureError(
                f"cannot start {processes} processes: {type(error).__name__}: {one_line(error)}"
            ) from error
        made = [folder / f"{_MADE}{rank}" for rank in range(processes)]
        if not all(path.exists() for path in made):
            raise CaptureError(f"this notebook's launcher did not start {processes} processes - use the command line")
        return [path.read_bytes() for path in made]


def _rank(make: Callable[[], bytes], folder: Path, stdout: TextIO) -> Callable[[], None]:
    """Return the function that a fork runs: it writes a file; prints of the model go to `stdout`."""

    def run() -> None:
        import torch

        place = launched()
        if place is None:
            return
        torch.set_num_threads(1)  # the threads of the parent process are missing in a fork
        try:
            with redirect_stdout(stdout):
                made = make()
            (folder / f"{_MADE}{place.rank}").write_bytes(made)
        except BaseException as error:
            kind = type(error).__name__ if isinstance(error, OpanatomyError) else CaptureError.__name__
            text = str(error) if isinstance(error, OpanatomyError) else f"{type(error).__name__}: {one_line(error)}"
            part = folder / f"part{place.rank}"
            part.write_bytes(msgspec.json.encode(_Failure(kind, f"rank {place.rank}: {text}")))
            part.rename(folder / f"{_FAILED}{place.rank}")
            os._exit(1)

    return run


def _failure(folder: Path) -> OpanatomyError | None:
    """Return the first failure reported by a rank."""
    first = min(folder.glob(f"{_FAILED}*"), key=lambda path: path.stat().st_mtime_ns, default=None)
    if first is None:
        return None
    failure = msgspec.json.decode(first.read_bytes(), type=_Failure)
    kind = getattr(errors, failure.kind, CaptureError)
    try:
        error: OpanatomyError = kind(failure.text)
    except TypeError:
        return CaptureError(failure.text)
    return error
