"""The stages in order: the only file that knows the order.

trace -> attribution -> classification -> cost -> anatomy. Classification and cost see distinct names and signatures
only and are joined back.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from opanatomy.anatomy import CALL_COLUMNS, WORK_COLUMNS, Findings, Queue, build_anatomy
from opanatomy.anatomy.collectives import collectives_of
from opanatomy.anatomy.ranks import with_rank, world_of
from opanatomy.anatomy.timeline import Clock
from opanatomy.attribution import Attribution, attribute, own
from opanatomy.attribution.linking import LINKS, OUTSIDE, last_of
from opanatomy.classification import classify_kernel, classify_operator
from opanatomy.cost import cost
from opanatomy.model import (
    MODULE_RANGE,
    PHASE_RANGE,
    Anatomy,
    Classification,
    Cost,
    Environment,
    OperatorClass,
    Provenance,
    Signature,
)
from opanatomy.pieces import overlay_of, talks_of
from opanatomy.tables import Int64
from opanatomy.trace import Trace, read_trace
from opanatomy.trace.writer import Annotated, write_trace
from opanatomy.version import __version__

#: An operator that no rule knows: unknown on the CPU; on an accelerator its kernels' names decide.
UNKNOWN_OPERATOR = Classification(operator_class=OperatorClass.UNKNOWN, rule="no rule", delegates=True)
DISPATCHING = Classification(operator_class=None, rule="no rule")
#: FLOPs, and bytes, of a whole trace at most: more than an hour of any device.
_MOST_COST = 2**62
_TOO_COSTLY = (
    "some argument shapes cannot be: they cost more than any device does in an hour; they count as without costs"
)
_NO_OPERATOR = (PHASE_RANGE, MODULE_RANGE, "autograd::engine::")


def analyze_trace(path: Path, *, name: str | None = None, annotated: Annotated | None = None) -> Anatomy:
    """The anatomy of the trace in `path`; `name` is what the report calls the file.

    With `annotated` the trace is also written back, with its classes, phases and rates in it.
    """
    trace = read_trace(path)
    attribution = attribute(trace.names, trace.host, trace.launches, trace.work)
    calls = _Calls(trace, attribution)
    provenance = Provenance(
        opanatomy=__version__,
        command=trace.capture.command if trace.capture else None,
        created=trace.capture.created if trace.capture else None,
        trace=name or path.name,
        trace_sha256=_sha256(path),
    )
    work = calls.work_table() if trace.on_device else None
    if annotated is not None:
        write_trace(path, annotated, overlay_of(calls), trace.metadata)
    anatomy = build_anatomy(
        Findings(
            provenance=provenance,
            environment=_environment(trace),
            capture=trace.capture,
            calls=calls.table(),
            work=work,
            queue=_queue(trace, attribution) if trace.on_device else None,
            clock=Clock(
                window=attribution.window,
                steps=tuple((step.start_ns, step.end_ns) for step in attribution.steps),
                numbers=tuple(step.number for step in attribution.steps),
                spans=attribution.spans,
            ),
            links=calls.links(),
            warnings=(
                *trace.warnings,
                *(trace.capture.warnings if trace.capture else ()),
                *_doubts(trace, attribution),
            ),
        )
    )
    collectives = collectives_of(talks_of(calls, work), world_of(trace.metadata))
    return with_rank(replace(anatomy, collectives=collectives), trace.metadata)


def _queue(trace: Trace, attribution: Attribution) -> Queue:
    """The device work beside its launches, in the order of the file, as the table of work in the window is."""
    return Queue(
        names=trace.names,
        work=trace.work,
        launches=trace.launches,
        launch=last_of(trace.launches.correlation, trace.work.correlation),
        inside=attribution.work.link != OUTSIDE,
    )


def _environment(trace: Trace) -> Environment:
    """What the trace says of its device; one without any accelerator's events is of the CPU."""
    if trace.on_device or trace.environment.device_kind:
        return trace.environment
    return replace(trace.environment, device_kind="cpu")


def _doubts(trace: Trace, attribution: Attribution) -> tuple[str, ...]:
    """What a reader should know before trusting the figures."""
    doubts = []
    launches = len(trace.launches.name)
    if launches and not len(trace.work.name):
        doubts.append(f"the trace has {launches:,} launches but no device work: its kernels were not recorded")
    wrong, annotated = attribution.disagreement_ns
    if wrong > 0.005 * annotated:
        doubts.append(
            f"{wrong / annotated:.1%} of the device time lies in another phase than the trace's own annotations say"
        )
    return tuple(doubts)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class _Columns:
    """Growing columns of the table of calls."""

    rows: dict[str, list[object]]

    def add(self, **values: object) -> None:
        for name, value in values.items():
            self.rows[name].append(value)


class _Calls:
    """The calls of a trace: classified and costed by distinct name and signature."""

    def __init__(self, trace: Trace, attribution: Attribution) -> None:
        self.trace = trace
        self.host = attribution.host
        self.work = attribution.work
        otherwise = DISPATCHING if trace.on_device else UNKNOWN_OPERATOR
        operators = [classify_operator(name) or otherwise for name in trace.names]
        self.operators = _Lookup(operators)
        self.kernels = [classify_kernel(name) for name in trace.names] if trace.on_device else []
        self.time_ns, self.pieces = self._device_time()
        works = (self.pieces > 0).tolist() if trace.on_device else None
        computes = self.operators.computes[self.host.name]
        delegates = self.operators.delegates[self.host.name]
        self.owner = own(self.host.name, self.host.parent, computes.tolist(), delegates.tolist(), works)
        self._costs: dict[tuple[int, int], Cost | None] = {}
        self._spent = 0
        #: How many host rows have each signature.
        self._alike = np.bincount(self.host.signature[self.host.signature >= 0])
        self._texts: dict[int, str] = {}

    def _device_time(self) -> tuple[Int64, Int64]:
        """Device time and pieces of work of each host row: what it launched, on the CPU its self time."""
        rows = len(self.host.name)
        if not self.trace.on_device:
            return np.where(self.host.in_window, self.host.self_ns, 0), np.zeros(rows, dtype=np.int64)
        inside = (self.work.host >= 0) & (self.work.link != OUTSIDE)
        launched = self.work.host[inside]
        time = np.zeros(rows, dtype=np.int64)
        np.add.at(time, launched, self.work.duration_ns[inside])
        return time, np.bincount(launched, minlength=rows).astype(np.int64)

    def links(self) -> dict[str, int]:
        """Device work by how it was traced back."""
        if not self.trace.on_device:
            mine = self._cpu_rows(within=False)
            all_time, inside = self.host.self_ns[mine].sum(), self.time_ns[mine].sum()
            return dict.fromkeys(LINKS, 0) | {"linked": int(inside), "outside_window": int(all_time - inside)}
        return {name: int(self.work.duration_ns[self.work.link == number].sum()) for number, name in enumerate(LINKS)}

    def _cpu_rows(self, *, within: bool) -> Int64:
        """Rows whose self time is device work on the CPU: operators that compute and are, or are part of, a call."""
        mine = (self.owner >= 0) & self.operators.computes[self.host.name]
        return np.flatnonzero(mine & self.host.in_window if within else mine)

    def table(self) -> pl.DataFrame:
        """One row a call, in the layout of `CALL_COLUMNS`."""
        columns = _Columns({name: [] for name in CALL_COLUMNS})
        rows = self._device_rows() if self.trace.on_device else self._cpu_rows(within=True).tolist()
        for row in rows:
            owner = int(self.owner[row])
            if owner >= 0:
                self._add_call(columns, row, owner)
        if self.trace.on_device:
            self._add_work_without_call(columns)
        return pl.DataFrame(columns.rows, schema=CALL_COLUMNS)

    def _device_rows(self) -> list[int]:
        """Host rows that launched work, and the owners of such rows."""
        launched = np.flatnonzero(self.pieces > 0)
        owners = self.owner[launched]
        rows: list[int] = np.unique(np.concatenate((launched[owners >= 0], owners[owners >= 0]))).tolist()
        return rows

    def _add_call(self, columns: _Columns, row: int, owner: int) -> None:
        name = int(self.host.name[row])
        known = self.cost_of(owner)
        inner = row != owner
        spent = None if inner or known is None else known
        found = self.operators.found[int(self.host.name[owner])]
        columns.add(
            operator=self.trace.names[name], signature=self._text(row), phase=str(self.host.phase[row]),
            module=self.host.module[row], operator_class=str(found.operator_class),
            rule=found.rule, part_of=self.trace.names[int(self.host.name[owner])] if inner else None,
            time_ns=int(self.time_ns[row]), kernels=int(self.pieces[row]), costed=known is not None, inner=inner,
            flops=spent.flops if spent else (0 if inner and known else None),
            read_bytes=spent.read_bytes if spent else (0 if inner and known else None),
            written_bytes=spent.written_bytes if spent else (0 if inner and known else None),
            causal_flops=spent.causal_flops if spent else None,
            normalization_flops=spent.normalization_flops or None if spent else None,
        )  # fmt: skip

    def _add_work_without_call(self, columns: _Columns) -> None:
        """Device work whose launching operator is not known, or only dispatches: the kernel's name decides."""
        for index in np.flatnonzero(self.work.link != OUTSIDE).tolist():
            host = int(self.work.host[index])
            if host >= 0 and self._named(host):
                continue
            kernel = self.kernels[int(self.work.name[index])]
            operator = self.operator_of(host)
            columns.add(
                operator=operator, signature=self._text(host) if operator else "",
                phase=str(self.work.phase[index]), module=self.work.module[index],
                operator_class=str(kernel.operator_class or OperatorClass.UNKNOWN), rule=kernel.rule,
                time_ns=int(self.work.duration_ns[index]), kernels=1, costed=False, inner=False, flops=None,
                read_bytes=None, written_bytes=None, causal_flops=None, normalization_flops=None, part_of=None,
            )  # fmt: skip

    def _named(self, row: int) -> bool:
        return bool(self.owner[row] >= 0)

    def operator_of(self, row: int) -> str | None:
        """The innermost operator around a launch; a range or annotation is none."""
        while row >= 0:
            name = self.trace.names[int(self.host.name[row])]
            if not self.host.annotation[row] and not name.startswith(_NO_OPERATOR):
                return name
            row = int(self.host.parent[row])
        return None

    def class_of(self, index: int) -> OperatorClass:
        """The class of a piece of device work: that of its call, else what the kernel's name says."""
        host = int(self.work.host[index])
        found = self.call_class(host) if host >= 0 and self._named(host) else self.kernels[int(self.work.name[index])]
        return found.operator_class or OperatorClass.UNKNOWN

    def call_class(self, row: int) -> Classification:
        """How the call that a host row is part of is classed."""
        return self.operators.found[int(self.host.name[self.owner[row]])]

    def work_table(self) -> pl.DataFrame:
        """One row a piece of device work in the window, in the layout of `WORK_COLUMNS`."""
        columns = _Columns({name: [] for name in WORK_COLUMNS})
        for index in np.flatnonzero(self.work.link != OUTSIDE).tolist():
            name, host = int(self.work.name[index]), int(self.work.host[index])
            kernel = self.kernels[name]
            owner = int(self.owner[host]) if host >= 0 else -1
            found = self.operators.found[int(self.host.name[owner])] if owner >= 0 else kernel
            columns.add(
                kernel=self.trace.names[name], start_ns=int(self.work.start_ns[index]),
                duration_ns=int(self.work.duration_ns[index]), operator=self.operator_of(host),
                phase=str(self.work.phase[index]), operator_class=str(found.operator_class),
                kernel_class=str(kernel.operator_class or OperatorClass.UNKNOWN), kernel_rule=kernel.rule,
                kind=int(self.trace.work.kind[index]),
            )  # fmt: skip
        return pl.DataFrame(columns.rows, schema=WORK_COLUMNS)

    def cost_of(self, row: int) -> Cost | None:
        key = (int(self.host.name[row]), int(self.host.signature[row]))
        if key not in self._costs:
            signature = self._signature(key[1])
            found = None if signature is None else cost(self.trace.names[key[0]], signature)
            self._costs[key] = self._counted(found, int(self._alike[key[1]])) if found else None
        return self._costs[key]

    def _counted(self, found: Cost, calls: int) -> Cost | None:
        """The cost, unless so many calls of it bring the sums beyond what the columns hold and any device does."""
        most = max(found.flops, found.normalization_flops, found.read_bytes, found.written_bytes)
        if self._spent + calls * most > _MOST_COST:
            if _TOO_COSTLY not in self.trace.warnings:
                self.trace.warnings.append(_TOO_COSTLY)
            return None
        self._spent += calls * most
        return found

    def _signature(self, number: int) -> Signature | None:
        return self.trace.signatures[number] if number >= 0 else None

    def _text(self, row: int) -> str:
        number = int(self.host.signature[row])
        if number not in self._texts:
            self._texts[number] = str(self._signature(number) or "")
        return self._texts[number]


class _Lookup:
    """Classifications by name number, as columns."""

    def __init__(self, found: list[Classification]) -> None:
        self.found = found
        self.computes = np.array([one.operator_class is not None for one in found], dtype=bool)
        self.delegates = np.array([one.delegates for one in found], dtype=bool)
