"""Where the files are that tests read: in the checkout, and in the folder of real data that may stand beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
TRACES: Final = ROOT / "tests" / "traces"
SNAPSHOTS: Final = ROOT / "tests" / "snapshots"
SCRIPTS: Final = ROOT / "tests" / "scripts"
KEPT: Final = sorted(TRACES.glob("*.json.gz"))
GOLDEN: Final = ROOT / "tests" / "golden"
#: Real traces and snapshots of others, beside the checkout; tests that read them are left out where it is not there.
SHARED: Final = ROOT.parent / "shared"
