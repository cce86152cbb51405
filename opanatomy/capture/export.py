"""The profiler's trace as a file, with our metadata as its first key and without the name of the host."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from opanatomy.errors import CaptureError, OutputError
from opanatomy.model import METADATA_KEY, Capture

#: Kineto writes its own keys before the events; they are all within this much text.
HEAD_BYTES = 1 << 20
_END_BYTES = 256
_HOST_NAME = re.compile(rb'\s*"host_name":\s*"[^"]*",')


def export_trace(profiler: Any, capture: Capture, path: Path) -> None:
    """Write the trace of `profiler` and what `capture` knows to `path`; gzip where the name ends in `.gz`.

    `add_metadata_json` would do for the metadata, but it is heard only while the profiler runs, and part of what is
    to be told is known only after.
    """
    with tempfile.TemporaryDirectory(prefix=".opanatomy-", dir=path.absolute().parent) as folder:
        plain = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(plain))
        if not plain.exists():  # Kineto fails in silence
            free = shutil.disk_usage(folder).free
            raise OutputError(
                f"the profiler could not write its trace of this step: {free / 1e6:.1f} MB are free - free some space"
                " or choose another folder, with --trace or TMPDIR"
            )
        _check_end(plain)
        with plain.open("rb") as source, _opened(path) as target:
            head = source.read(HEAD_BYTES).lstrip()
            if not head.startswith(b"{"):
                raise CaptureError(f"the profiler wrote a trace that starts with {head[:20]!r}, not with '{{'")
            told = json.dumps({METADATA_KEY: msgspec.to_builtins(capture)}).encode()
            target.write(told[:-1] + b"," + _HOST_NAME.sub(b"", head[1:], count=1))
            shutil.copyfileobj(source, target)


def _check_end(plain: Path) -> None:
    """Raise where the device filled up in the last piece that was written, which nothing else says."""
    with plain.open("rb") as file:
        file.seek(-min(_END_BYTES, plain.stat().st_size), 2)
        if not file.read().rstrip().endswith(b"}"):
            raise OutputError("the profiler could not write its trace of this step to the end - free some space")


def _opened(path: Path) -> BinaryIO:
    if not path.name.endswith(".gz"):
        return path.open("wb")
    from isal import igzip

    return cast("BinaryIO", igzip.open(path, "wb", compresslevel=2))
