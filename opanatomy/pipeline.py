"""The stages in order: the only file that knows the order.

trace -> attribution -> classification -> cost -> anatomy. Classification and cost see distinct names and signatures
only and are joined back.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from opanatomy.anatomy import CALL_COLUMNS, COSTS, WORK_COLUMNS, Findings, Queue, build_anatomy
from opanatomy.anatomy.collectives import collectives_of
from opanatomy.anatomy.ranks import with_rank, world_of
from opanatomy.anatomy.timeline import Clock
from opanatomy.attribution import Attribution, attribute, own
from opanatomy.attribution.linking import LINKS, OUTSIDE, last_of
from opanatomy.attribution.nesting import nearest_above
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
from opanatomy.tables import Bool, Int64
from opanatomy.trace import Trace, read_trace
from opanatomy.version import __version__

if TYPE_CHECKING:
    from opanatomy.trace.writer import Annotated

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
        trace=os.fsencode(name or path.name).decode(errors="replace"),
        trace_sha256=_sha256(path),
    )
    work = calls.work_table() if trace.on_device else None
    if annotated is not None:
        from opanatomy.trace.writer import write_trace

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


class _Calls:
    """The calls of a trace: classified and costed by distinct name and signature."""

    def __init__(self, trace: Trace, attribution: Attribution) -> None:
        self.trace = trace
        self.host = attribution.host
        self.work = attribution.work
        otherwise = DISPATCHING if trace.on_device else UNKNOWN_OPERATOR
        operators = [classify_operator(name) or otherwise for name in trace.names]
        self.operators = _Lookup(operators)
        self.kernels = _Lookup([classify_kernel(name) for name in trace.names] if trace.on_device else [])
        self.time_ns, self.pieces = self._device_time()
        works = (self.pieces > 0).tolist() if trace.on_device else None
        computes = self.operators.computes[self.host.name]
        delegates = self.operators.delegates[self.host.name]
        self.owner = own(self.host.name, self.host.parent, computes.tolist(), delegates.tolist(), works)
        self._costs: dict[tuple[int, int], Cost | None] = {}
        self._spent = 0
        #: How many host rows have each signature.
        self._alike = np.bincount(self.host.signature[self.host.signature >= 0])
        self.around = self._innermost_operators()

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
        if not self.trace.on_device:
            return self._calls(self._cpu_rows(within=True))
        return pl.concat((self._calls(self._device_rows()), self._work_without_call()))

    def _device_rows(self) -> Int64:
        """Host rows that launched work, and the owners of such rows."""
        launched = np.flatnonzero(self.pieces > 0)
        owners = self.owner[launched]
        return np.unique(np.concatenate((launched[owners >= 0], owners[owners >= 0])))

    def _calls(self, rows: Int64) -> pl.DataFrame:
        """The calls at host rows that have an owner."""
        owner = self.owner[rows]
        name, owner_name, inner = self.host.name[rows], self.host.name[owner], rows != owner
        columns = {
            "operator": _text(self.trace.names, name),
            "signature": self._signatures(rows),
            "phase": _picked(self.host.phase, rows),
            "module": _picked(self.host.module, rows),
            "operator_class": _text(self.operators.classes, owner_name),
            "rule": _text(self.operators.rules, owner_name),
            "time_ns": self.time_ns[rows],
            "kernels": self.pieces[rows],
            "inner": inner,
            "part_of": _text(self.trace.names, np.where(inner, owner_name, -1)),
            **self._costs_of(owner, inner).to_dict(),
        }
        return pl.DataFrame(columns).select(list(CALL_COLUMNS))

    def _costs_of(self, owner: Int64, inner: Bool) -> pl.DataFrame:
        """What each call costs, looked at once for each name and signature; 0 for what is inside a costed one."""
        width = int(self.host.signature.max(initial=0)) + 2
        pairs = self.host.name[owner] * width + self.host.signature[owner] + 1
        _, first, place = np.unique(pairs, return_index=True, return_inverse=True)
        rows: list[tuple[object, ...]] = []
        for call in owner[first].tolist():
            found = self.cost_of(call)
            if found is None:
                rows += [(False, None, None, None, None, None)] * 2
            else:
                moved = (found.read_bytes, found.written_bytes, found.causal_flops, found.normalization_flops or None)
                rows += [(True, found.flops, *moved), (True, 0, 0, 0, None, None)]
        schema = {name: CALL_COLUMNS[name] for name in ("costed", *COSTS)}
        distinct = pl.DataFrame(rows, schema=schema, orient="row")
        costs: pl.DataFrame = distinct[2 * place + inner]
        return costs

    def _work_without_call(self) -> pl.DataFrame:
        """Device work whose launching operator is not known, or only dispatches: the kernel's name decides."""
        index = np.flatnonzero((self.work.link != OUTSIDE) & (self._of_work(self.owner) < 0))
        name, around = self.work.name[index], self._of_work(self.around)[index]
        count = len(index)
        columns = {
            "operator": _text(self.trace.names, self._host_names(around)),
            "signature": self._signatures(np.where(around >= 0, self.work.host[index], -1)),
            "phase": _picked(self.work.phase, index),
            "module": _picked(self.work.module, index),
            "operator_class": _text(self.kernels.classes, name),
            "rule": _text(self.kernels.rules, name),
            "time_ns": self.work.duration_ns[index],
            "kernels": np.ones(count, dtype=np.int64),
            "costed": np.zeros(count, dtype=bool),
            "inner": np.zeros(count, dtype=bool),
        }
        nothing = {column: pl.Series([None] * count, dtype=CALL_COLUMNS[column]) for column in (*COSTS, "part_of")}
        return pl.DataFrame({**columns, **nothing}).select(list(CALL_COLUMNS))

    def _of_work(self, column: Int64) -> Int64:
        """A column of the host rows for the launch of each piece of device work, -1 where there is none."""
        return _at(column, self.work.host)

    def _host_names(self, rows: Int64) -> Int64:
        """The name number of each host row, -1 for row -1."""
        return _at(self.host.name, rows)

    def _innermost_operators(self) -> Int64:
        """The innermost operator around each host row; a range or annotation is none."""
        named = np.array([not name.startswith(_NO_OPERATOR) for name in self.trace.names], dtype=bool)
        return nearest_above((self.host.annotation == 0) & named[self.host.name], self.host.parent)

    def operator_of(self, row: int) -> str | None:
        """The innermost operator around a launch; a range or annotation is none."""
        around = int(self.around[row]) if row >= 0 else -1
        return self.trace.names[int(self.host.name[around])] if around >= 0 else None

    def class_of(self, index: int) -> OperatorClass:
        """The class of a piece of device work: that of its call, else what the kernel's name says."""
        host = int(self.work.host[index])
        called = host >= 0 and bool(self.owner[host] >= 0)
        found = self.call_class(host) if called else self.kernels.found[int(self.work.name[index])]
        return found.operator_class or OperatorClass.UNKNOWN

    def call_class(self, row: int) -> Classification:
        """How the call that a host row is part of is classed."""
        return self.operators.found[int(self.host.name[self.owner[row]])]

    def work_table(self) -> pl.DataFrame:
        """One row a piece of device work in the window, in the layout of `WORK_COLUMNS`."""
        index = np.flatnonzero(self.work.link != OUTSIDE)
        name, owner = self.work.name[index], self._host_names(self._of_work(self.owner)[index])
        by_call = np.where(owner >= 0, owner, len(self.trace.names) + name)
        columns = {
            "kernel": _text(self.trace.names, name),
            "start_ns": self.work.start_ns[index],
            "duration_ns": self.work.duration_ns[index],
            "operator": _text(self.trace.names, self._host_names(self._of_work(self.around)[index])),
            "phase": _picked(self.work.phase, index),
            "operator_class": _text(self.operators.classes + self.kernels.classes, by_call),
            "kernel_class": _text(self.kernels.classes, name),
            "kernel_rule": _text(self.kernels.rules, name),
            "kind": self.trace.work.kind[index],
        }
        return pl.DataFrame(columns).select(list(WORK_COLUMNS))

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

    def _signatures(self, rows: Int64) -> pl.Series:
        """The text of the signature at each host row, none for row -1."""
        distinct, place = np.unique(_at(self.host.signature, rows), return_inverse=True)
        return _text([str(self._signature(number) or "") for number in distinct.tolist()], place)


class _Lookup:
    """Classifications by name number, as columns."""

    def __init__(self, found: list[Classification]) -> None:
        self.found = found
        self.computes = np.array([one.operator_class is not None for one in found], dtype=bool)
        self.delegates = np.array([one.delegates for one in found], dtype=bool)
        self.classes = [str(one.operator_class or OperatorClass.UNKNOWN) for one in found]
        self.rules = [one.rule for one in found]


def _at(column: Int64, rows: Int64) -> Int64:
    """The value at each row, -1 for row -1."""
    return np.where(rows >= 0, column[rows], -1) if len(column) else np.full(len(rows), -1, dtype=np.int64)


def _text(texts: Sequence[str], places: Int64) -> pl.Series:
    """The text at each place, null at place -1."""
    return pl.Series([*texts, None], dtype=pl.String).gather(np.where(places < 0, len(texts), places))


def _picked(values: Sequence[str | None], rows: Int64) -> pl.Series:
    return pl.Series([values[row] for row in rows.tolist()], dtype=pl.String)
