"""Split a file of merged traces into one file per rank."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
from msgspec import Struct, field

from opanatomy.io.files import temporary
from opanatomy.io.sources import Source
from opanatomy.records.columns import Int64, rows_by_value, rows_named, starts_work, unique
from opanatomy.records.patterns import regex
from opanatomy.records.workload import METADATA_KEY
from opanatomy.trace.read import Trace
from opanatomy.trace.salvage import NOT_DECODABLE
from opanatomy.trace.schema import KERNEL, LAUNCH, MEMCPY, MEMSET, OPERATOR, Kinds
from opanatomy.trace.write import raw_events

Process: TypeAlias = "int | str | None"

#: A rank in a process name (`Rank 3 - GPU`), and the prefix that a merging tool adds to process ids (`[TP03] 7`).
_NAMED_RANK: Final = regex(r"\brank[ _:#-]*(\d{1,9})\b", re.IGNORECASE)
_LABELLED: Final = regex(r"^(\[[^\]]+\]) ")
#: The prefix that another merging tool adds to every event's name.
_NAME_LABEL: Final = regex(rb'(?<="name")(\s*:\s*")\[R\d+\] ')
_STEP: Final = regex(r"^ProfilerStep#\d")
#: Maximum number of ranks to split: each is an open file.
_MAX_PROCESSES: Final = 500
#: Device work belongs to the host that can have launched at least this fraction of it, if every other host can have
#: launched less than this fraction of that. Work from before the recording has no launch.
_LAUNCHED: Final = 0.5
_MAX_OTHERS_SHARE: Final = 0.9


def merged_ranks(trace: Trace) -> int:
    """Return the number of ranks in one file: processes that launch work, or compute on the CPU; failing these,
    processes with work on the same device. Ranks with the same process id each have a step with the same number."""
    process = {pid: number for number, pid in enumerate(dict.fromkeys(pid for pid, _ in trace.threads))}
    processes = np.array([process[pid] for pid, _ in trace.threads], dtype=np.int64)
    computing = _distinct(processes, trace.host.thread[trace.host.is_operator])
    launching = _distinct(processes, trace.launches.thread[starts_work(trace.names, trace.launches)])
    hosts = computing & launching if computing and launching else computing | launching

    # The steps of one number that a process has at once; its profiler marks them one after the other.
    host = trace.host
    rows = np.flatnonzero(rows_named(_STEP, trace.names, host.name))
    most = 1
    for _, same in rows_by_value(host.name[rows] * (len(processes) + 1) + processes[host.thread[rows]]):
        starts, first = np.unique(host.start_ns[rows[same]], return_index=True)
        ends = starts + host.duration_ns[rows[same]][first]
        at_once = np.arange(1, len(starts) + 1) - np.searchsorted(np.sort(ends), starts, side="right")
        most = max(most, int(at_once.max()))
    return max(len(hosts) or trace.work_processes, most)


def _distinct(processes: Int64, threads: Int64) -> set[int]:
    return set(processes[unique(threads).values].tolist())


class _Args(Struct, gc=False):
    rank: int | str | None = None
    correlation: int | None = None
    name: msgspec.Raw = field(default=msgspec.Raw())


class _Event(Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: int | str | None = None
    ts: float | str | None = None
    args: _Args | None = None


class _Seen(Struct):
    """What the events of one process show: the places of its first and last interval, its ranks and its name, and when
    its launches and its device work began, by correlation id."""

    first: int = -1
    last: int = -1
    host: bool = False
    ranks: set[int] = field(default_factory=set)
    name: str = ""
    launches: dict[int, float] = field(default_factory=dict)
    work: dict[int, float] = field(default_factory=dict)

    def launched(self, work: Mapping[int, float]) -> int:
        """Return how much of that device work began after a launch of this process with its correlation id."""
        return sum(self.launches.get(correlation, inf) <= start for correlation, start in work.items())


class TakenApart(Struct, frozen=True):
    """A source per rank of a file, and a line on the origin of the rank numbers."""

    sources: tuple[Source, ...]
    warning: str


@contextmanager
def taken_apart(path: Path, metadata: Mapping[str, Any], name: str) -> Iterator[TakenApart | None]:
    """Yield the ranks in the file, each in a file that is removed afterwards; `None` if events cannot be assigned to
    ranks."""
    ranks, by = _ranks(_seen(path))
    if ranks is None:
        yield None
        return
    with temporary("rank", f"the ranks of {name}") as base:
        numbers = sorted(set(ranks.values()))
        files = {number: base.with_name(f"rank-{number}.json") for number in numbers}
        head = {key: value for key, value in metadata.items() if key != METADATA_KEY}
        distributed = head.get("distributedInfo")
        properties = head.get("deviceProperties")
        if isinstance(properties, list):  # each rank's list, one after the other
            head["deviceProperties"] = list({repr(entry): entry for entry in properties}.values())
        with ExitStack() as stack:
            targets = {number: stack.enter_context(file.open("wb")) for number, file in files.items()}
            for number, target in targets.items():
                head["distributedInfo"] = {**(distributed if isinstance(distributed, dict) else {}), "rank": number}
                target.write(msgspec.json.encode(head)[:-1] + b',"traceEvents":[{}')
            for text, event in _identities(path):
                if (rank := ranks.get(event.pid)) is not None:
                    labelled = event.name is not None and event.name.startswith(f"[R{rank}] ")
                    targets[rank].write(b",\n" + (_NAME_LABEL.sub(rb"\1", bytes(text), count=1) if labelled else text))
            for target in targets.values():
                target.write(b"\n]}\n")
        sources = tuple(Source(files[number], f"{name}, rank {number}") for number in numbers)
        yield TakenApart(sources, f"this file merges {len(sources)} ranks, which are separated and numbered {by}")


def _identities(path: Path) -> Iterator[tuple[msgspec.Raw, _Event]]:
    decoder = msgspec.json.Decoder(_Event)
    for texts in raw_events(path):
        for text in texts:
            try:
                yield text, decoder.decode(text)
            except NOT_DECODABLE:  # an odd value: no rank needs this event
                continue


def _seen(path: Path) -> dict[Process, _Seen]:
    """Return the facts about each process with readable intervals."""
    kinds = Kinds()
    seen: dict[Process, _Seen] = {}
    for index, (_, event) in enumerate(_identities(path)):
        args = event.args or _Args()
        if event.ph == "M" and event.name == "process_name":
            seen.setdefault(event.pid, _Seen()).name += f" {bytes(args.name).decode(errors='replace')}"
        kind = kinds[event.cat]
        if event.ph != "X" or kind not in (OPERATOR, LAUNCH, KERNEL, MEMCPY, MEMSET):
            continue
        process = seen.setdefault(event.pid, _Seen())
        process.first, process.last = index if process.first < 0 else process.first, index
        process.host = process.host or kind in (OPERATOR, LAUNCH)
        if isinstance(args.rank, int):
            process.ranks.add(args.rank)
        if args.correlation is not None and kind != OPERATOR and event.ts is not None:
            with suppress(ValueError):  # a text that is not a time
                (process.launches if kind == LAUNCH else process.work)[args.correlation] = float(event.ts)
    return {pid: process for pid, process in seen.items() if process.first >= 0}


def _ranks(seen: Mapping[Process, _Seen]) -> tuple[dict[Process, int] | None, str]:
    """Return each process's rank, and its source: its events, or its name; else the file order, in which ranks follow
    one another; else the host that launched its work. `None` if undetermined."""
    stated = {pid: next(iter(process.ranks)) for pid, process in seen.items() if len(process.ranks) == 1}
    named = {pid: int(match[1]) for pid, process in seen.items() if (match := _NAMED_RANK.search(process.name))}
    labels: dict[Process, str] = {
        pid: match[1] for pid in seen if isinstance(pid, str) and (match := _LABELLED.match(pid))
    }
    order = {label: number for number, label in enumerate(dict.fromkeys(labels.values()))}
    for ranks, by in ((stated, "by the rank in their events"), (named, "by the names of their processes")):
        if _several(ranks, seen):
            return ranks, by
    labelled, by_place = {pid: order[label] for pid, label in labels.items()}, _by_place(seen)
    for ranks, sure in ((labelled, True), (by_place, _all_work(by_place, seen))):
        if sure and _several(ranks, seen):
            return ranks, "in file order"
    if len(seen) <= _MAX_PROCESSES and _several(ranks := _by_launches(seen), seen) and _all_work(ranks, seen):
        return ranks, "in the order of their processes"
    return None, ""


def _several(ranks: Mapping[Process, int], seen: Mapping[Process, _Seen]) -> bool:
    """Return whether there are several ranks, each process has one, and each rank has a host (if any is one)."""
    hosts = {ranks[pid] for pid, process in seen.items() if process.host and pid in ranks}
    every = set(ranks.values())
    return len(ranks) == len(seen) and 1 < len(every) <= _MAX_PROCESSES and hosts in (set(), every)


def _all_work(ranks: Mapping[Process, int], seen: Mapping[Process, _Seen]) -> bool:
    """Return whether each launching rank has device work, if any has: otherwise one process has the work of several."""
    launching = {rank for pid, rank in ranks.items() if seen[pid].launches}
    working = {rank for pid, rank in ranks.items() if seen[pid].work}
    return not working or launching <= working


def _by_place(seen: Mapping[Process, _Seen]) -> dict[Process, int]:
    """Number the processes by file position; processes with interleaved events get the same number."""
    ranks: dict[Process, int] = {}
    reached, number = -1, -1
    for pid, process in sorted(seen.items(), key=lambda item: item[1].first):
        number += process.first > reached
        reached = max(reached, process.last)
        ranks[pid] = number
    return ranks


def _by_launches(seen: Mapping[Process, _Seen]) -> dict[Process, int]:
    """Number the hosts, and give each process with device work the number of the only possible launching host."""
    hosts = sorted(
        (pid for pid, process in seen.items() if process.host), key=lambda pid: (pid is None, isinstance(pid, str), pid)
    )
    ranks: dict[Process, int] = {pid: number for number, pid in enumerate(hosts)}
    for pid, process in seen.items():
        launched = [seen[host].launched(process.work) for host in hosts]
        most = max(launched, default=0)
        alone = sum(count > _MAX_OTHERS_SHARE * most for count in launched) == 1
        if pid not in ranks and alone and most > _LAUNCHED * len(process.work):
            ranks[pid] = launched.index(most)
    return ranks
