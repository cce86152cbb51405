"""What makers' data sheets say of their devices: dense peaks, never those with structured sparsity.

One entry is what a trace calls one device: half an MI250X, one GPU of a GB200. Where a sheet quotes sparse figures only
(Ada, Hopper, Blackwell) they are halved. Tensor-core figures of half-precision and 8-bit floats are those with float32
accumulation, which torch uses: GeForce cards, A10G, L20 and L40 do half as much of it. Figures follow from
multiprocessors x clock x operations a clock, bandwidths from bits of the bus x their rate; tests/test_ceilings.py and
tests/test_desktop_sheets.py work them out again. Where the sheet disagrees with that, where two sources disagree, or
where there is no document of the maker, `note` says so. A real clock may be above the sheet's boost clock, so a
GeForce card can pass its sheet by a few percent.
"""

from __future__ import annotations

from typing import Final

from opanatomy.device.sheets.amd import AMD
from opanatomy.device.sheets.datacenter import DATACENTER
from opanatomy.device.sheets.geforce import GEFORCE
from opanatomy.device.sheets.geforce_older import GEFORCE_OLDER
from opanatomy.device.sheets.hopper import HOPPER
from opanatomy.device.sheets.sheet import GIB, Mig, Sheet
from opanatomy.device.sheets.tesla import TESLA
from opanatomy.device.sheets.workstation import WORKSTATION

__all__ = ["GIB", "SHEETS", "Mig", "Sheet"]

SHEETS: Final = (*TESLA, *DATACENTER, *HOPPER, *GEFORCE_OLDER, *GEFORCE, *WORKSTATION, *AMD)
