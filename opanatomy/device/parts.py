"""A part of a device: a MIG slice, one of the devices that AMD's compute modes make of one -> its share of the sheet.

NVIDIA's MIG user guide (https://docs.nvidia.com/datacenter/tesla/mig-user-guide/, "MIG Device Names" and "Supported MIG
Profiles") names a slice `1c.3g.20gb`: one compute slice's multiprocessors in a GPU instance of three, with 20 GB. The
GPU instance has its memory slices' share of capacity, bandwidth and L2; multiprocessors do not divide evenly, so the
trace's count goes before the profile's.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.device.sheets import Mig, Sheet

_PROFILE: Final = re.compile(
    r"(?P<whole>.+?)\s+MIG\s+(?:(?P<instance>\d)c\.)?(?P<compute>\d)g\.(?P<memory>\d+)gb(?:[+-][a-z.]+)*\s*",
    re.IGNORECASE,
)
#: How far a profile's name may be from whole memory slices (`1g.18gb` of 141 GB), and the count of multiprocessors from
#: an even share (26 of an H100's 132 in `1g.20gb`, 98 of an A100's 108 in `7g.40gb`).
_SLICE_ERROR: Final = 0.15
_MIN_SHARE, _MAX_SHARE = 0.8, 1.45
#: Two memory slices for one compute slice: the guide's table has an eighth of L2 for it, its text a quarter.
_DOUBLE_MEMORY: Final = (1, 2)


class Profile(Struct, frozen=True, kw_only=True):
    """What the name of a MIG device says: its device, compute slices, those of the compute instance, memory in GB."""

    whole: str
    label: str
    compute: int
    instance: int
    memory_gb: int


def profile_of(name: str) -> Profile | None:
    """The MIG profile in a device's name, `None` where there is none."""
    profile = _PROFILE.fullmatch(name)
    if profile is None:
        return None
    compute = int(profile["compute"])
    return Profile(
        whole=profile["whole"],
        label=name[profile.end("whole") :].split()[-1],
        compute=compute,
        instance=int(profile["instance"] or compute),
        memory_gb=int(profile["memory"]),
    )


def slice_of(sheet: Sheet, profile: Profile, multiprocessors: int | None) -> Sheet | str:
    """The sheet's share that a MIG slice has, or why it cannot be said; `multiprocessors` are the trace's."""
    mig, memory = sheet.mig, sheet.memory_gib
    if mig is None or memory is None:
        return f"no known document says that {sheet.device} has MIG"
    slices = _memory_slices(mig, profile, memory)
    if slices is None:
        return f"{sheet.device} has no profile {profile.label}"
    count = _multiprocessors(sheet, mig, profile, slices, multiprocessors)
    if isinstance(count, str):
        return count
    whole, share = sheet.multiprocessors[0], slices / mig.memory
    known_cache = sheet.cache_mib is not None and (profile.compute, slices) != _DOUBLE_MEMORY
    return replace(
        _scaled(sheet, count / whole),
        device=f"{sheet.device} MIG {profile.label}",
        multiprocessors=(count,),
        memory_gib=memory * share,
        bandwidth=None if sheet.bandwidth is None else sheet.bandwidth * share,
        cache_mib=(sheet.cache_mib or 0) * share if known_cache else None,
        scaled=f"{count} of {whole} multiprocessors and {slices} of {mig.memory} memory slices",
    )


def partition_of(sheet: Sheet, multiprocessors: int | None) -> Sheet | None:
    """The share of an AMD device that is one of several in a compute mode (DPX, QPX, CPX), `None` if it is not.

    Which share of the memory it has, and how fast that is, depends on the memory mode (NPS1, NPS4). That is not in a
    trace: the driver may show each of eight parts an eighth of the memory in both.
    """
    whole = sheet.multiprocessors[0] if len(sheet.multiprocessors) == 1 else 0
    for parts in sheet.partitions:
        if multiprocessors is not None and multiprocessors * parts == whole:
            units = f"{multiprocessors} of {whole} compute units"
            return replace(
                _scaled(sheet, 1 / parts),
                device=f"{sheet.device} (one of {parts} partitions)",
                multiprocessors=(multiprocessors,),
                memory_gib=None,
                bandwidth=None,
                cache_mib=None,
                scaled=f"{units} (the memory mode, which no trace has, decides the rest)",
            )
    return None


def _scaled(sheet: Sheet, share: float) -> Sheet:
    return replace(
        sheet,
        matrix={name: peak * share for name, peak in sheet.matrix.items()},
        vector={name: peak * share for name, peak in sheet.vector.items()},
    )


def _memory_slices(mig: Mig, profile: Profile, memory_gib: float) -> int | None:
    """How many memory slices the profile's GB are, `None` if the device has no such profile."""
    exact = profile.memory_gb / memory_gib * mig.memory
    slices = round(exact)
    if abs(exact - slices) > _SLICE_ERROR or (profile.compute, slices) not in mig.profiles:
        return None
    return slices if 0 < profile.instance <= profile.compute else None


def _multiprocessors(sheet: Sheet, mig: Mig, profile: Profile, slices: int, given: int | None) -> int | str:
    """The trace's count if such a slice can have it, else the documented one, else why there is none."""
    if len(sheet.multiprocessors) != 1:
        return f"no document says how many multiprocessors {sheet.device} has"
    whole = sheet.multiprocessors[0]
    if given is not None:
        even = whole * profile.instance / mig.compute
        if given <= whole and _MIN_SHARE * even <= given <= _MAX_SHARE * even:
            return given
        return f"no {profile.label} of {sheet.device} has {given} of its {whole} multiprocessors"
    documented = mig.profiles[profile.compute, slices]
    if documented is None or profile.instance != profile.compute:
        return f"no document says how many multiprocessors a {profile.label} of {sheet.device} has"
    return documented
