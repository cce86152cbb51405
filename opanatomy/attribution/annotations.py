"""A trace's own annotations of phases, such as `## forward ##`: a check of what was inferred, never its source."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from opanatomy.attribution.phases import Placed, phases_at
from opanatomy.attribution.rows import HostRows, contains
from opanatomy.records.checks import Check, Difference
from opanatomy.records.columns import Bool, Int64, is_among
from opanatomy.records.taxonomy import BACKWARD, FORWARD, FORWARDS, OPTIMIZER, PHASES, RECOMPUTE

_BEFORE = r"(?:model|module|net|loss|self|trainer|engine|accelerator|scaler|fabric|train(?:ing)?|step)"
_BEHIND = r"(?:[ _.-]?(?:pass|step|steps|propagation|prop|update|call))?(?:\(\))?(?:[ _:#-]*\d{1,9})?"
#: The spellings of phases, decoration and case apart; `forward_head` and `forward_backward` are none.
_SPELLINGS = {
    FORWARD: re.compile(rf"(?:{_BEFORE}[ _./:-]{{1,2}})?(?:forward|fwd){_BEHIND}"),
    BACKWARD: re.compile(rf"(?:{_BEFORE}[ _./:-]{{1,2}})?(?:backward|backwards|bwd|backprop){_BEHIND}"),
    OPTIMIZER: re.compile(rf"(?:{_BEFORE}[ _./:-]{{1,2}})?(?:optimizer|optimiser|optim|opt){_BEHIND}"),
}
#: What a user annotates the phases as: recomputation lies inside of backward, and a generation goes forward.
_AS_ANNOTATED = np.array(
    [BACKWARD if code == RECOMPUTE else FORWARD if code in FORWARDS else code for code in range(len(PHASES))]
)
_DECORATION = "#*=-_<>[]|~ \t"
#: A phase agrees where no more of its annotated time than this lies elsewhere: a loss's `sum` in a range of backward.
_TOLERATED = 0.005
DIFFERENTIATED = "autograd recorded these operators to differentiate them: forward, inside an annotation of backward"
#: This many operators are named as evidence.
_NAMED = 3


class Timed(Struct, frozen=True):
    """What takes time: the host row of each (-1 none), its nanoseconds and its phase."""

    row: Int64
    duration_ns: Int64
    phase: Int64


def phase_of_annotation(name: str) -> int:
    """The phase, as a place in `PHASES`, that an annotation of this name says; -1 where it says none."""
    text = name.strip(_DECORATION).lower()
    return next((phase for phase, spelling in _SPELLINGS.items() if spelling.fullmatch(text)), -1)


def annotated_phases(names: Sequence[str], rows: HostRows, placed: Placed, timed: Timed) -> Check | None:
    """The time in each annotated phase against the phase it was placed in; `None` where a trace annotates none.

    `compared` counts phases. A difference has the annotated time of a phase (`other`) and what of it is in that phase
    (`ours`). An annotation of the optimizer in which forward and backward run is left out: it runs a closure.
    """
    said = np.array([phase_of_annotation(name) for name in names], dtype=np.int64)[rows.name]
    ranges = (said >= 0) & (rows.annotation != 0)
    ranges &= ~((said == OPTIMIZER) & contains(rows, placed.nodes.is_node))
    if not ranges.any():
        return None
    spans = [
        (int(rows.start_ns[row]), int(rows.end_ns[row]), PHASES[said[row]]) for row in np.flatnonzero(ranges).tolist()
    ]
    here = is_among(rows.thread, rows.thread[ranges]) | (placed.nodes.enclosing >= 0)
    known = np.flatnonzero((timed.row >= 0) & here[timed.row])
    expected = phases_at(spans, rows.start_ns[timed.row[known]])
    known, expected = known[expected >= 0], expected[expected >= 0]
    compared = _Compared(
        index=known, expected=expected, placed=_AS_ANNOTATED[timed.phase[known]],
        differentiated=((rows.sequence >= 0) & (placed.nodes.enclosing < 0))[timed.row[known]],
    )  # fmt: skip
    return _check(names, rows, timed, compared)


class _Compared(Struct, frozen=True, kw_only=True):
    """What takes time inside annotations: its places in `Timed`, the phase annotated and the one it was placed in."""

    index: Int64
    expected: Int64
    placed: Int64
    #: Whether autograd recorded the operator, below no node of its own: forward, whatever an annotation says.
    differentiated: Bool


def _check(names: Sequence[str], rows: HostRows, timed: Timed, compared: _Compared) -> Check:
    index, expected, places = compared.index, compared.expected, compared.placed
    duration = timed.duration_ns[index]
    differences = []
    phases = [phase for phase in (FORWARD, BACKWARD, OPTIMIZER) if duration[expected == phase].sum() > 0]
    for phase in phases:
        annotated = int(duration[expected == phase].sum())
        wrong = (expected == phase) & (places != phase)
        missing = int(duration[wrong].sum())
        if missing > _TOLERATED * annotated:
            forward = compared.differentiated[wrong] & (places[wrong] == FORWARD)
            is_forward = phase == BACKWARD and int(duration[wrong][~forward].sum()) <= _TOLERATED * annotated
            evidence = _evidence(names, rows.name[timed.row[index[wrong]]], places[wrong], duration[wrong])
            differences.append(
                Difference(
                    operator=f"annotated as {PHASES[phase]}",
                    phase=PHASES[phase],
                    ours=annotated - missing,
                    other=annotated,
                    cause=DIFFERENTIATED if is_forward else None,
                    evidence=evidence,
                )
            )
    return Check(
        quantity="annotated phases", source="the trace's own annotations", unit="ns", compared=len(phases),
        equal=len(phases) - len(differences), differences=tuple(differences),
        not_checked=None if phases else "no work was launched in the annotated ranges",
    )  # fmt: skip


def _evidence(names: Sequence[str], name: Int64, places: Int64, duration_ns: Int64) -> str:
    """The operators with most time in another phase, and which."""
    spent: dict[tuple[int, int], int] = {}
    for key in zip(name.tolist(), places.tolist(), duration_ns.tolist(), strict=True):
        spent[key[:2]] = spent.get(key[:2], 0) + key[2]
    longest = sorted(spent.items(), key=lambda item: (-item[1], item[0]))
    listed = [f"{names[number]} as {PHASES[place]} {time:,} ns" for (number, place), time in longest[:_NAMED]]
    return ", ".join(listed) + (f", {len(longest) - _NAMED} more" if len(longest) > _NAMED else "")
