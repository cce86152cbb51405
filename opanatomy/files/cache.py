"""The user's cache folder: what is in it can be made again."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def cache_folder(name: str) -> Path | None:
    """Where things of this name are kept; `None` for a user without a home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "opanatomy" / name
    with suppress(RuntimeError):
        return Path.home() / ".cache" / "opanatomy" / name
    return None
