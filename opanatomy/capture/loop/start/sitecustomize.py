"""Start following a script: Python imports this before the script that `opanatomy run` has started.

The script runs in an ordinary Python process, whose path starts with this folder until now: arguments, `__main__`,
signals and tracebacks are unchanged. Child processes do not inherit it.
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress


def _start() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != here]
    text = os.environ.pop("OPANATOMY_RUN", None)
    own = sys.modules.pop("sitecustomize")
    with suppress(ImportError):
        importlib.import_module("sitecustomize")  # the environment's own, which this one stood before
    sys.modules.setdefault("sitecustomize", own)  # its importer looks for it there
    if text is None:
        return
    import json

    settings = json.loads(text)
    if settings["path"] is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = settings["path"]
    if settings["process"] != os.getpid():
        return
    path = list(sys.path)
    sys.path.append(os.path.abspath(os.path.join(here, *[os.pardir] * 4)))
    from opanatomy.script import follow

    sys.path[:] = path
    follow(settings)


_start()
