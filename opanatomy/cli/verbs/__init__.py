"""The verbs, one file each, so that a new file is a new verb: `SUMMARY` and `EXAMPLES` for the help, `add_arguments()`
and `run()`.
"""

from __future__ import annotations

import os


def verbs() -> tuple[str, ...]:
    """The names of the verbs: those of the files of this package."""
    files = (name for folder in __path__ for name in os.listdir(folder))
    return tuple(sorted(name.removesuffix(".py") for name in files if name.endswith(".py") and name[0] != "_"))
