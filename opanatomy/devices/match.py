"""Find the data sheet of a device by name, memory and multiprocessors in a trace, or say why there is none.

A part of a device (a MIG slice, a partition of an AMD device) gets its share of the sheet, if vendor documents state
it. A virtual GPU, or a device that is divided in another way, gets none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from string import ascii_letters, digits
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.devices.sheets import GIB, SHEETS, Sheet
from opanatomy.records.anatomy import Ceilings
from opanatomy.records.patterns import regex

# --- parts of a device: MIG slices, and partitions in AMD's compute modes, with their share of the sheet ---
#
# NVIDIA's MIG user guide (https://docs.nvidia.com/datacenter/tesla/mig-user-guide/, "MIG Device Names" and "Supported
# MIG Profiles") names a slice `1c.3g.20gb`: one compute slice's multiprocessors in a GPU instance of three, with 20 GB.
# The GPU instance has its memory slices' share of capacity, bandwidth and L2; multiprocessors do not divide evenly, so
# the trace's count takes precedence over the profile's.


_PROFILE: Final = regex(
    r"(?P<whole>.+?)\s+MIG\s+(?:(?P<instance>\d)c\.)?(?P<compute>\d)g\.(?P<memory>\d+)gb(?:[+-][a-z.]+)*\s*",
    re.IGNORECASE,
)
#: Tolerance of a profile's name against whole memory slices (`1g.18gb` of 141 GB), and of the count of multiprocessors
#: against an even share (26 of an H100's 132 in `1g.20gb`, 98 of an A100's 108 in `7g.40gb`).
_SLICE_ERROR: Final = 0.15
_MIN_SHARE, _MAX_SHARE = 0.8, 1.45
#: Two memory slices for one compute slice: the guide's table gives it an eighth of L2, its text a quarter.
_DOUBLE_MEMORY: Final = (1, 2)


class Profile(Struct, frozen=True, kw_only=True):
    """The parts of a MIG device's name: device, compute slices, compute slices of the instance, memory in GB."""

    whole: str
    label: str
    compute: int
    instance: int
    memory_gb: int


def profile_of(name: str) -> Profile | None:
    """Return the MIG profile in a device's name, `None` if it has none."""
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
    """Return a MIG slice's share of the sheet, or why it is unknown; `multiprocessors` are the trace's."""
    mig, memory = sheet.mig, sheet.memory_gib
    if mig is None or memory is None:
        return f"opanatomy has no {'MIG profiles' if mig is None else 'memory size'} for {sheet.device}"
    exact = profile.memory_gb / memory * mig.memory
    slices = round(exact)
    documented = {(compute, memory): number for compute, memory, number in mig.profiles}
    if (
        abs(exact - slices) > _SLICE_ERROR
        or (profile.compute, slices) not in documented
        or not 0 < profile.instance <= profile.compute
    ):
        return f"{sheet.device} has no MIG profile {profile.label}"

    # The trace's count if a slice can have it, else the documented one.
    if len(sheet.multiprocessors) != 1:
        return f"the number of multiprocessors of {sheet.device} is unknown"
    whole, count = sheet.multiprocessors[0], multiprocessors
    if count is not None:
        even = whole * profile.instance / mig.compute
        if count > whole or not _MIN_SHARE * even <= count <= _MAX_SHARE * even:
            return f"no {profile.label} slice of {sheet.device} has {count} of its {whole} multiprocessors"
    else:
        count = documented[profile.compute, slices]
        if count is None or profile.instance != profile.compute:
            return f"the number of multiprocessors of a {profile.label} slice of {sheet.device} is unknown"

    share = slices / mig.memory
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
    """Return the share of an AMD device that a compute mode (DPX, QPX, CPX) divides, `None` if it is not one.

    The share of the memory, and its speed, depend on the memory mode (NPS1, NPS4). The mode is not in a trace: the
    driver may show each of eight parts an eighth of the memory in both modes.
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
                scaled=f"{units} (the memory mode, which traces do not record, determines the rest)",
            )
    return None


def _scaled(sheet: Sheet, share: float) -> Sheet:
    return replace(
        sheet,
        matrix={name: peak * share for name, peak in sheet.matrix.items()},
        vector={name: peak * share for name, peak in sheet.vector.items()},
        attained={name: peak * share for name, peak in sheet.attained.items()},
    )


_BRANDS: Final = regex(r"(?:(?:NVIDIA|AMD|Tesla|GeForce|Instinct)\s+)+", re.IGNORECASE)
#: Laptop GPUs' clocks depend on the power limit set by the laptop's maker, so they have no sheet. Up to the RTX 20
#: series `Super` denotes a laptop GPU, and `SUPER` a desktop GPU.
_LAPTOP: Final = regex(r".*(Laptop GPU|with Max-Q Design|Embedded GPU|RTX 20\d0 Super)")
_PART: Final = regex(r"\bMIG\b|\d+g\.\d+gb", re.IGNORECASE)
#: Names of virtual GPUs: `GRID A100D-80C`, `NVIDIA A40-8Q`, and of MIG slices `GRID A100-1-5C`.
_VIRTUAL: Final = regex(r".*\S-\d+(-\d+)?[ABCQ]", re.IGNORECASE)
#: ROCm's names for a device without a marketing name.
_NAMELESS: Final = regex(r"(?:Radeon Graphics|gfx(?P<architecture>908|90a|942|950)\S*)?", re.IGNORECASE)
#: Devices that are identified by multiprocessors and memory alone, as no other device shares them.
_BY_SIZE: Final = {
    "908": ("Instinct MI100",),
    "90a": ("Instinct MI210", "Instinct MI250 (one of two dies)", "Instinct MI250X (one of two dies)"),
    "942": ("Instinct MI300A", "Instinct MI300X", "Instinct MI325X"),
    "950": ("Instinct MI350X", "Instinct MI355X"),
}
#: Range of the recorded memory over that on the sheet: ECC takes a sixteenth, the driver itself a little more.
_MIN_MEMORY, _MAX_MEMORY = 0.88, 1.03
#: Characters without a special meaning in a regular expression.
_PLAIN: Final = frozenset(ascii_letters + digits + " -")
#: No device has a longer name, but a damaged trace may.
_MAX_NAME_LENGTH: Final = 96


class Match(Struct, frozen=True):
    """A device's sheet, or a sentence that says why there is none; `by` says what was matched."""

    sheet: Sheet | None = None
    why: str | None = None
    by: str = "name"


def match(name: str | None, memory_bytes: int | None = None, multiprocessors: int | None = None) -> Match:
    """Return the data sheet of the device that a trace calls `name`; arguments that are `None` are not compared."""
    if name is None:
        return Match(why="the trace does not name its device")
    name = name[:_MAX_NAME_LENGTH]
    plain = _BRANDS.sub("", " ".join(name.split()), count=1) if _BRANDS.match(name.strip()) else name.strip()
    if nameless := _NAMELESS.fullmatch(plain):
        return _by_size(name, nameless["architecture"], memory_bytes, multiprocessors)
    if _VIRTUAL.fullmatch(plain):
        return Match(why=f"{name} is a virtual GPU, and its share of the physical GPU is unknown")
    if profile := profile_of(plain):
        return _slice(name, profile, memory_bytes, multiprocessors)
    if _PART.search(name):
        return Match(why=f"{name} is part of a device, and its name does not say which part")
    if _LAPTOP.fullmatch(plain):
        return Match(why=f"{name} is a laptop GPU, whose speed depends on its power limit")
    named = _named(plain)
    if not named:
        return Match(why=f"opanatomy has no data sheet for {name}")
    fitting = [sheet for sheet in named if _fits(sheet, memory_bytes, multiprocessors)]
    fitting = fitting or [part for sheet in named if (part := _partition(sheet, memory_bytes, multiprocessors))]
    if not fitting:
        return Match(why=_misfit(name, named, memory_bytes, multiprocessors))
    return _only(name, fitting, "name")


def sheets_named(name: str) -> tuple[Sheet, ...]:
    """Return the data sheets of all devices of this name, by drivers or by the sheet; empty if there are none."""
    name = " ".join(name[:_MAX_NAME_LENGTH].split())
    plain = (_BRANDS.sub("", name, count=1) if _BRANDS.match(name) else name).casefold()
    if not plain:
        return ()
    known = _named(plain)
    return tuple(sheet for sheet in SHEETS if sheet in known or sheet.device.casefold() in (plain, name.casefold()))


# --- devices as people call them: `4090`, `h100`, `A100 80GB` ---

_SEPARATORS: Final = regex(r"[\s_-]+")
_JOINED_BRAND: Final = regex(r"^(?:nvidia|amd)?(?:geforce|tesla|instinct)?")
#: The memory in the name of a device, `A100 80GB`.
_SIZE_IN_NAME: Final = regex(r"(\d)gi?b\b")
_MEMORY: Final = regex(r" \d+ GB$| \(.*")
_NEAR, _MAX_NEAR = 0.7, 3


def variants_called(name: str) -> tuple[Sheet, ...]:
    """Return the data sheets of all variants of the device that people call so, in the table's order."""
    named, plain, words = sheets_named(name), _joined(name), _words_of(name)
    loose = any(map(str.isdigit, plain))
    return tuple(
        sheet
        for sheet in SHEETS
        if sheet in named
        or (loose and any(_begins(end, plain) for end in _ends(sheet.device)))
        or (
            loose
            and words <= _words_of(sheet.device) | _memory_words(sheet)
            and any(word[:1].isalpha() or len(word) > 3 for word in words - _memory_words(sheet))
        )
    )


def called(name: str) -> tuple[Sheet, ...]:
    """Return the variants that this name means most exactly: a 4090 is no 4090 D; several if it does not tell them."""
    variants, plain = variants_called(name), _joined(name)
    exact = tuple(sheet for sheet in variants if plain in _ends(sheet.device))
    return exact or sheets_named(name) or variants


def fastest(sheets: Iterable[Sheet]) -> Sheet | None:
    """Return the sheet with the highest peak, and of equal ones the most memory; `None` without a complete one."""
    known = [sheet for sheet in sheets if sheet.memory_gib and sheet.bandwidth and sheet.matrix]
    return max(
        known, key=lambda sheet: (max(sheet.matrix.values()), sheet.memory_gib, -len(sheet.device)), default=None
    )


def smallest(sheets: Iterable[Sheet]) -> Sheet | None:
    """Return the sheet with the least usable memory; `None` if their memories differ, or none is known."""
    known = [sheet for sheet in sheets if sheet.memory_gib]
    if len({sheet.memory_gib for sheet in known}) != 1:
        return None
    return min(known, key=lambda sheet: sheet.usable_bytes or 0)


def near_devices(name: str) -> tuple[str, ...]:
    """Return the devices, as people call them, whose names are most similar to an unknown one."""
    from difflib import get_close_matches

    known = {_joined(short): short for short in short_names()}
    return tuple(known[each] for each in get_close_matches(_joined(name), known, n=_MAX_NEAR, cutoff=_NEAR))


def short_names() -> tuple[str, ...]:
    """Return what people call the devices: without brand and memory, `RTX 4090`; and by the number, `4090`."""
    shorts: dict[str, None] = {}
    for sheet in SHEETS:
        short = _BRANDS.sub("", _MEMORY.sub("", sheet.device), count=1)
        shorts |= dict.fromkeys((short, *(word for word in short.split() if any(map(str.isdigit, word)))))
    return tuple(shorts)


def _joined(name: str) -> str:
    """Return a name without its maker and brand, blanks and case."""
    return _JOINED_BRAND.sub("", _SEPARATORS.sub("", name[:_MAX_NAME_LENGTH].casefold()))


def _words_of(name: str) -> frozenset[str]:
    words = _SEPARATORS.split(_SIZE_IN_NAME.sub(r"\1 gb", name[:_MAX_NAME_LENGTH].casefold()))
    return frozenset(words) - {"", "nvidia", "amd", "tesla"}


def _memory_words(sheet: Sheet) -> frozenset[str]:
    return frozenset() if sheet.memory_gib is None else frozenset((f"{sheet.memory_gib:g}", "gb"))


@cache
def _ends(device: str) -> frozenset[str]:
    """Return a device's name, also without its memory, and what is left of it without the first words."""
    without = _MEMORY.sub("", device).split()
    memory = device.split()[len(without) :]
    return frozenset(
        _joined(" ".join(without[index:] + more)) for index in range(len(without)) for more in ([], memory)
    )


def _begins(whole: str, plain: str) -> bool:
    """Return whether a name begins with another and no number goes on there: an A100 is no A10."""
    return whole.startswith(plain) and not (plain[-1:].isdigit() and whole[len(plain) : len(plain) + 1].isdigit())


#: The part of a sheet's peak that dense products attain where nobody measured it: the least of the measured NVIDIA
#: devices of the last three generations reach 0.73 to 0.87.
_USUALLY_ATTAINED: Final = 0.78


def ceilings_of(sheet: Sheet, *, by: str = "name") -> Ceilings:
    """Return the figures of the sheet in base units."""
    note = "" if by == "name" else f", matched on {by}"
    note += f", scaled to {sheet.scaled}" if sheet.scaled else ""
    note += f" ({sheet.also})" if sheet.also else ""
    attained = {}
    for name, peak in sheet.matrix.items():
        measured = sheet.attained.get("bfloat16" if name == "float16" else name)
        attained[name] = _USUALLY_ATTAINED if measured is None else measured / peak
    return Ceilings(
        device=sheet.device,
        source=f"data sheet of {sheet.device}{note}, {sheet.source}",
        matrix_flops_per_second={name: _base(peak) for name, peak in sheet.matrix.items()},
        vector_flops_per_second={name: _base(peak) for name, peak in sheet.vector.items()},
        attained_share=attained,
        bandwidth_bytes_per_second=None if sheet.bandwidth is None else _base(sheet.bandwidth / 1e3),
        memory_bytes=None if sheet.memory_gib is None else int(sheet.memory_gib * GIB),
        cache_bytes=None if sheet.cache_mib is None else int(sheet.cache_mib * (1 << 20)),
    )


def _named(plain: str) -> list[Sheet]:
    return [sheet for sheet in SHEETS if any(_is_name(name, plain) for name in sheet.names)]


def _is_name(name: str, plain: str) -> bool:
    """Return True if `name` is a name of the device; most names are plain text, which need not be compiled."""
    if _PLAIN.issuperset(name) and plain.isascii():
        return name.lower() == plain.lower()
    return re.fullmatch(name, plain, re.IGNORECASE) is not None


def _slice(name: str, profile: Profile, memory_bytes: int | None, multiprocessors: int | None) -> Match:
    """Return a MIG slice's share of the sheet."""
    named = _named(profile.whole)
    if not named:
        return Match(why=f"opanatomy has no data sheet for {profile.whole}, which {name} is a part of")
    parts = [slice_of(sheet, profile, multiprocessors) for sheet in named]
    slices = [part for part in parts if isinstance(part, Sheet)]
    if not slices:
        return Match(why=f"{name}: {next(part for part in parts if isinstance(part, str))}")
    fitting = [part for part in slices if _fits_memory(part, memory_bytes)]
    return _only(name, fitting, "name") if fitting else Match(why=_misfit(name, slices, memory_bytes, None))


def _partition(sheet: Sheet, memory_bytes: int | None, multiprocessors: int | None) -> Sheet | None:
    """Return the share of an AMD device in one of its compute modes, in any memory mode."""
    largest = None if sheet.memory_gib is None else _MAX_MEMORY * sheet.memory_gib * GIB
    return None if memory_bytes and largest and memory_bytes > largest else partition_of(sheet, multiprocessors)


def _by_size(name: str, architecture: str | None, memory_bytes: int | None, multiprocessors: int | None) -> Match:
    said = name.strip() or "an unnamed device"
    if memory_bytes is None or multiprocessors is None:
        return Match(why=f"{said} could be any of several devices")
    devices = _BY_SIZE[architecture] if architecture else sum(_BY_SIZE.values(), ())
    fitting = [s for s in SHEETS if s.device in devices and _fits(s, memory_bytes, multiprocessors)]
    if not fitting:
        return Match(why=f"no data sheet fits {said} with {multiprocessors} multiprocessors and {_gib(memory_bytes)}")
    return _only(said, fitting, f"{multiprocessors} multiprocessors and {_gib(memory_bytes)}")


def _only(name: str, sheets: list[Sheet], by: str) -> Match:
    """Return the only sheet, or the common part of several with the same peaks."""
    first = sheets[0]
    if any((sheet.matrix, sheet.vector) != (first.matrix, first.vector) for sheet in sheets):
        return Match(why=f"{name} could be {' or '.join(sheet.device for sheet in sheets)}")
    memories = {sheet.memory_gib for sheet in sheets}
    bandwidths = {sheet.bandwidth for sheet in sheets}
    caches = {sheet.cache_mib for sheet in sheets}
    if len(memories) == len(bandwidths) == len(caches) == 1:
        return Match(sheet=first, by=by)
    # What differs is unknown: a GeForce RTX 3060 Ti has one of two kinds of memory.
    speeds = " or ".join(f"{bandwidth:g}" for bandwidth in sorted(filter(None, bandwidths)))
    common = replace(
        first,
        device=" or ".join(sheet.device for sheet in sheets),
        memory_gib=first.memory_gib if len(memories) == 1 else None,
        bandwidth=first.bandwidth if len(bandwidths) == 1 else None,
        cache_mib=first.cache_mib if len(caches) == 1 else None,
        also=first.also if len(bandwidths) == 1 else f"{speeds} GB/s, which traces do not record",
    )
    return Match(sheet=common, by=by)


def _fits(sheet: Sheet, memory_bytes: int | None, multiprocessors: int | None) -> bool:
    known = multiprocessors is not None and bool(sheet.multiprocessors)
    return _fits_memory(sheet, memory_bytes) and (not known or multiprocessors in sheet.multiprocessors)


def _fits_memory(sheet: Sheet, memory_bytes: int | None) -> bool:
    if memory_bytes is None or sheet.memory_gib is None:
        return True
    nominal = sheet.memory_gib * GIB
    return _MIN_MEMORY * nominal <= memory_bytes <= _MAX_MEMORY * nominal


def _misfit(name: str, sheets: list[Sheet], memory_bytes: int | None, multiprocessors: int | None) -> str:
    if memory_bytes is not None and not any(_fits_memory(sheet, memory_bytes) for sheet in sheets):
        memories = " or ".join(f"{gib:g}" for gib in sorted({sheet.memory_gib or 0 for sheet in sheets}))
        return f"{name} has {_gib(memory_bytes)} here but {memories} GiB on its data sheet: it may be part of a device"
    counts = " or ".join(str(count) for count in dict.fromkeys(n for sheet in sheets for n in sheet.multiprocessors))
    return (
        f"{name} has {multiprocessors} multiprocessors here but {counts} on its data sheet: it may be part of a device"
    )


def _base(tera: float) -> float:
    """Return base units without the error of binary fractions: 66.9 T is 66,900,000,000,000."""
    return float(round(tera * 1e6) * 10**6)


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
