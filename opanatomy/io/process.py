"""Run a part of opanatomy in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any


def started(module: str, *arguments: str, **options: Any) -> subprocess.Popen[Any]:
    """Start `main` of a module with these arguments and this process's module path; its output is piped.

    numpy uses one thread there. `options` are passed to `Popen`.
    """
    words = [sys.executable, "-c", f"from {module} import main; main()", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, **options)
