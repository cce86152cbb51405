"""Report too low limits that the caller set on the process (`ulimit -v`, `ulimit -d`) before they are hit.

If the native libraries of an analysis get no memory they end the process, without an error.
"""

from __future__ import annotations

import os
import sys

from opanatomy.errors import OutOfMemory

if sys.platform != "win32":
    import resource

#: The need of the smallest analysis, by the option of `ulimit`.
_MIN_BYTES = {"-v": 512 << 20, "-d": 160 << 20}


def keep_to_limits() -> None:
    """Raise `OutOfMemory` if no analysis can fit; take few threads if there is a limit at all."""
    if sys.platform == "win32":
        return
    limited = False
    for option, kind in (("-v", resource.RLIMIT_AS), ("-d", resource.RLIMIT_DATA)):
        limit = resource.getrlimit(kind)[0]
        if limit == resource.RLIM_INFINITY:
            continue
        limited = True
        if limit < _MIN_BYTES[option]:
            raise OutOfMemory(
                f"not enough memory: ulimit {option} allows {limit / 1e6:.0f} MB, but an analysis needs at least"
                f" {_MIN_BYTES[option] / 1e6:.0f} MB - raise the limit"
            )
    if limited:
        # Threads take memory each, and are started before any work is seen.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
