"""A trace's own annotations of phases, such as `## forward ##` or `mlp(B)`: a check of what was inferred, and the
source where that does not agree and autograd does not contradict them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from opanatomy.attribution.inference import differentiated_operators, within
from opanatomy.attribution.names import NameKinds, own_ranges
from opanatomy.attribution.nesting import nearest_above
from opanatomy.attribution.phases import Placed, phases_at
from opanatomy.attribution.rows import HostRows, contains
from opanatomy.option_values import as_asked
from opanatomy.records.checks import Check, Difference
from opanatomy.records.columns import Bool, Int64, at, distinct, is_among, rows_by_value
from opanatomy.records.taxonomy import BACKWARD, FORWARD, FORWARDS, OPTIMIZER, PHASES, RECOMPUTE, Phase

_BEFORE = (
    r"(?:model|module|net|loss|self|trainer|accelerator|scaler|fabric|train(?:ing)?|step|\w*(?:engine|strategy|plugin))"
)
_BEHIND = (
    r"(?:[ _.-]?(?:pass|step|steps|propagation|prop|update|call|compute|(?:compute[ _-])?chunk|(?:inner_)?microstep))?"
    r"(?:\(\))?(?:[ _:#-]*\d{1,9})?"
)
#: The spellings of phases, decoration and case apart; `forward_head` and `forward_backward` are none.
_SPELLINGS = {
    FORWARD: re.compile(rf"(?:{_BEFORE}[ _./:-]{{1,2}})?(?:forward|fwd){_BEHIND}"),
    BACKWARD: re.compile(
        rf"(?:{_BEFORE}[ _./:-]{{1,2}})?(?:(?:backward|backwards|bwd|backprop){_BEHIND}|bwd_allreduce_microstep"
        r"|weight_chunk|[dw]grad|weight[ _-]?grad(?:s|ients?)?)"
    ),
    OPTIMIZER: re.compile(
        rf"(?:{_BEFORE}[ _./:-]{{1,2}})?(?:optimizer|optimiser|optim|opt){_BEHIND}|step_microstep|\w*engine\.step"
    ),
}
#: What Lightning puts before the name of a method, whose `training_step` ends with the loss.
_LIGHTNING = re.compile(r"\[pl\]\[profile\](?:\[\w+\]\w+\.)?")
#: Schedules of pipelines: `attn(F)`, `PP:0F3`, `F`, `B`, gradients of inputs (`I`) and of weights (`W`).
_LETTER = re.compile(r".*\(([FBW])\)(?:[ _#-]*\d{1,9})?|(?:PP:\d+)?([FBW])\d{0,9}|PP:\d+(I)\d{0,9}")
#: What a user annotates the phases as: recomputation lies inside of backward, and a generation goes forward.
_AS_ANNOTATED = np.array(
    [BACKWARD if code == RECOMPUTE else FORWARD if code in FORWARDS else code for code in range(len(PHASES))]
)
_DECORATION = "#*=-_<>[]|~ \t"
#: A phase agrees where no more of its annotated time than this lies elsewhere: a loss's `sum` in a range of backward.
_TOLERATED = 0.005
#: Ranges are taken where at least this share of the time of forward and backward lies in them, and autograd says
#: otherwise of no more than this share of a phase's: a loss in a range of backward.
_COVERED, _CONTRADICTED = 0.9, 0.1
DIFFERENTIATED = "autograd recorded these operators to differentiate them: forward, inside an annotation of backward"
#: This many operators are named as evidence, and ranges of a phase.
_NAMED = 3


class Timed(Struct, frozen=True):
    """What takes time: the host row of each (-1 none), its nanoseconds and its phase."""

    row: Int64
    duration_ns: Int64
    phase: Int64


def phase_of_annotation(name: str) -> int:
    """The phase, as a place in `PHASES`, that an annotation of this name says; -1 where it says none."""
    letter = _LETTER.fullmatch(name)
    if letter is not None:
        return FORWARD if "F" in letter.groups() else BACKWARD
    text = name.lower()
    method = _LIGHTNING.sub("", text)
    if method != text and method == "training_step":
        return FORWARD
    text = method.strip(_DECORATION)
    return next((phase for phase, spelling in _SPELLINGS.items() if spelling.fullmatch(text)), -1)


def annotated_phases(
    names: Sequence[str], rows: HostRows, kinds: NameKinds, placed: Placed, timed: Timed
) -> tuple[Check | None, Placed]:
    """The time in each annotated phase against the phase it was placed in, and the places with what is taken of them.

    `compared` counts phases. A difference has the annotated time of a phase (`other`) and what of it is in that phase
    (`ours`). The ranges are taken where nothing explains it and autograd does not contradict them, if they hold nearly
    all of a forward and a backward; `not_checked` says so then. The check is `None` where none says a phase.
    """
    ranges = _Ranges(names, rows, kinds, placed)
    if not ranges.there.any():
        return None, placed
    compared = _compared(rows, placed, timed, ranges)
    check = _check(names, rows, timed, compared, ranges)
    may_be_taken = placed.inference is not None and not (kinds.mapped >= 0).any()
    stated = ranges.inside(kinds.known[rows.name] >= 0)
    again = _run_again(rows, placed, stated)
    if not check.unexplained or not may_be_taken or not _states(placed, timed, compared, again):
        return check, placed
    # What autograd says is still distinguished in them: recomputation, a loss in a backward, a gradient in a forward.
    stays = (stated == BACKWARD) & ((placed.phase == RECOMPUTE) | compared.differentiated)
    stays |= (stated == FORWARD) & (placed.nodes.enclosing >= 0)
    phase = np.where(again, RECOMPUTE, np.where((stated >= 0) & ~stays, stated, placed.phase))
    said = "; ".join(f"{PHASES[code]} in {ranges.named(code)}" for code in compared.phases)
    elsewhere = sum((difference.other or 0) - (difference.ours or 0) for difference in check.differences)
    reason = f"the trace states them, and is taken at its word: {said} - inference places {elsewhere:,} ns elsewhere"
    taken = replace(check, compared=0, equal=0, differences=(), not_checked=reason)
    return taken, replace(placed, phase=phase, mapped=stated >= 0)


class _Ranges:
    """The ranges of a trace that say a phase."""

    def __init__(self, names: Sequence[str], rows: HostRows, kinds: NameKinds, placed: Placed) -> None:
        self._names, self._rows = names, rows
        says = np.array([phase_of_annotation(name) for name in names], dtype=np.int64)
        own = own_ranges(rows, kinds) & (says[rows.name] >= 0)
        letters = np.array([_LETTER.fullmatch(name) is not None for name in names], dtype=bool)
        schedule = distinct(says[rows.name[own & letters[rows.name]]]).values
        if not is_among(np.array([FORWARD, BACKWARD]), schedule).all():
            says[letters] = -1  # one letter alone names anything
        self.phase = says[rows.name]
        own &= self.phase >= 0
        whole = _enclose_both(rows, own & (self.phase != BACKWARD), placed)
        whole |= own & (self.phase == OPTIMIZER) & contains(rows, placed.nodes.is_node)
        for code in (FORWARD, BACKWARD):
            whole |= own & (self.phase == code) & contains(rows, own & (self.phase != code))
        self.there = own & ~is_among(rows.name, rows.name[whole])

    def inside(self, others: Bool) -> Int64:
        """The phase that the innermost range around each row on its thread says, -1 where it is one of the `others`."""
        innermost = nearest_above(self.there | others, self._rows.parent)
        return np.where((innermost >= 0) & self.there[innermost], at(self.phase, innermost), -1)

    def spans(self, ranges: Bool) -> list[tuple[int, int, Phase]]:
        """(start, end, phase) of some of the ranges."""
        rows = self._rows
        return [
            (int(rows.start_ns[row]), int(rows.end_ns[row]), PHASES[self.phase[row]])
            for row in np.flatnonzero(ranges).tolist()
        ]

    def _of(self, phase: int) -> list[str]:
        numbers = distinct(self._rows.name[self.there & (self.phase == phase)]).values
        return [self._names[number] for number in numbers.tolist()]

    def named(self, phase: int) -> str:
        """The names of the ranges of a phase, the first few."""
        some = self._of(phase)
        return ", ".join(some[:_NAMED]) + (f" and {len(some) - _NAMED} more" if len(some) > _NAMED else "")

    def option(self, phase: int) -> str:
        """What to give so that the ranges of a phase are taken at their word."""
        escaped = (re.sub(r"[][.^$*+?{}|()\\]", r"\\\g<0>", name) for name in self._of(phase))
        patterns = list(dict.fromkeys(re.sub(r"\d+", r"\\d+", name) for name in escaped))
        pattern = patterns[0] if len(patterns) == 1 else f"({'|'.join(patterns)})"
        return as_asked(
            "--phase " + shlex.quote(f"{PHASES[phase]}=^{pattern}$"),
            f"phases={ {str(PHASES[phase]): f'^{pattern}$'} }",
        )


def _enclose_both(rows: HostRows, ranges: Bool, placed: Placed) -> Bool:
    """Which ranges enclose operators on their thread and the nodes that differentiate these."""
    nodes = placed.nodes
    pairs = np.flatnonzero(nodes.is_node & (nodes.forward >= 0))
    both = np.zeros(len(rows.name), dtype=bool)
    for thread, places in rows_by_value(rows.thread[nodes.forward[pairs]]):
        operator, node = rows.start_ns[nodes.forward[pairs[places]]], rows.start_ns[pairs[places]]
        order = np.argsort(operator, kind="stable")
        first_node = np.append(np.minimum.accumulate(node[order][::-1])[::-1], np.iinfo(np.int64).max)
        here = np.flatnonzero(ranges & (rows.thread == thread))
        both[here] = first_node[np.searchsorted(operator[order], rows.start_ns[here])] < rows.end_ns[here]
    return both


class _Compared(Struct, frozen=True, kw_only=True):
    """What takes time inside annotations: its places in `Timed`, the phase annotated and the one it was placed in."""

    index: Int64
    expected: Int64
    placed: Int64
    #: Of each host row whether a node differentiates it, or what is around it: forward, whatever an annotation says.
    differentiated: Bool
    #: The annotated phases in which anything takes time.
    phases: list[int]


def _compared(rows: HostRows, placed: Placed, timed: Timed, ranges: _Ranges) -> _Compared:
    """What a range encloses on its thread; of what nodes run on threads without ranges, what goes on at that time.

    A forward of another thread may go on meanwhile.
    """
    known = np.flatnonzero(timed.row >= 0)
    row = timed.row[known]
    expected = np.full(len(row), -1, dtype=np.int64)
    for thread in distinct(rows.thread[ranges.there]).values.tolist():
        here = rows.thread[row] == thread
        spans = ranges.spans(ranges.there & (rows.thread == thread))
        expected[here] = phases_at(spans, rows.start_ns[row[here]])
    elsewhere = (placed.nodes.enclosing[row] >= 0) & ~is_among(rows.thread[row], rows.thread[ranges.there])
    for of_backward in (True, False):
        spans = ranges.spans(ranges.there & ((ranges.phase == BACKWARD) == of_backward))
        at_that_time = phases_at(spans, rows.start_ns[row])
        expected = np.where(elsewhere & (expected < 0), at_that_time, expected)
    known, row, expected = (column[expected >= 0] for column in (known, row, expected))
    return _Compared(
        index=known, expected=expected, placed=_AS_ANNOTATED[timed.phase[known]],
        differentiated=within(rows, differentiated_operators(placed.nodes)),
        phases=[
            phase for phase in (FORWARD, BACKWARD, OPTIMIZER) if timed.duration_ns[known[expected == phase]].sum() > 0
        ],
    )  # fmt: skip


def _states(placed: Placed, timed: Timed, compared: _Compared, again: Bool) -> bool:
    """Whether the ranges hold nearly all of a forward and a backward, and little that autograd says otherwise of."""
    if not {FORWARD, BACKWARD} <= set(compared.phases):
        return False
    passes = is_among(_AS_ANNOTATED[timed.phase], np.array([FORWARD, BACKWARD]))
    covered = timed.duration_ns[compared.index[passes[compared.index]]].sum()
    if covered < _COVERED * timed.duration_ns[passes].sum():
        return False
    row, duration = timed.row[compared.index], timed.duration_ns[compared.index]
    in_nodes, differentiated = placed.nodes.enclosing[row] >= 0, (compared.differentiated & ~again)[row]
    for phase in compared.phases:
        here = compared.expected == phase
        otherwise = here & (in_nodes if phase == FORWARD else differentiated)
        if duration[otherwise].sum() > _CONTRADICTED * duration[here].sum():
            return False
    return True


def _run_again(rows: HostRows, placed: Placed, stated: Int64) -> Bool:
    """Which rows run a forward again, to be differentiated, in a range of a backward.

    The forward is in a range as well, where nothing differentiates its operators: no fewer of that name.
    """
    differentiated = differentiated_operators(placed.nodes)
    operator = nearest_above(differentiated, rows.parent)
    width = int(rows.name.max(initial=0)) + 1
    once, again = (
        np.bincount(rows.name[there], minlength=width)
        for there in ((stated == FORWARD) & (operator < 0), (stated == BACKWARD) & differentiated)
    )
    run_again: Bool = (stated == BACKWARD) & (operator >= 0) & (once >= again)[at(rows.name, operator)]
    return run_again


def _check(names: Sequence[str], rows: HostRows, timed: Timed, compared: _Compared, ranges: _Ranges) -> Check:
    index, expected, places = compared.index, compared.expected, compared.placed
    duration = timed.duration_ns[index]
    differences = []
    for phase in compared.phases:
        annotated = int(duration[expected == phase].sum())
        wrong = (expected == phase) & (places != phase)
        missing = int(duration[wrong].sum())
        if missing > _TOLERATED * annotated:
            is_forward = phase == BACKWARD and _is_forward(rows, timed, compared, wrong, _TOLERATED * annotated)
            evidence = _evidence(names, rows.name[timed.row[index[wrong]]], places[wrong], duration[wrong])
            option = f"{ranges.option(phase)} takes the annotation"
            differences.append(
                Difference(
                    operator=f"annotated as {PHASES[phase]}",
                    phase=PHASES[phase],
                    ours=annotated - missing,
                    other=annotated,
                    cause=f"{DIFFERENTIATED} - {option}" if is_forward else None,
                    evidence=evidence if is_forward else f"{evidence} - {option}",
                    time_ns=missing,
                )
            )
    return Check(
        quantity="annotated phases", source="the trace's own annotations", unit="ns", compared=len(compared.phases),
        equal=len(compared.phases) - len(differences), differences=tuple(differences),
        not_checked=None if compared.phases else "no work was launched in the annotated ranges",
    )  # fmt: skip


def _is_forward(rows: HostRows, timed: Timed, compared: _Compared, wrong: Bool, tolerated: float) -> bool:
    """Whether all that is placed elsewhere was dispatched with numbers as a forward is, most of it differentiated."""
    row, duration = timed.row[compared.index[wrong]], timed.duration_ns[compared.index[wrong]]
    forward = (rows.sequence[row] >= 0) & (compared.placed[wrong] == FORWARD)
    differentiated = duration[forward & compared.differentiated[row]].sum()
    return bool(duration[~forward].sum() <= tolerated and 2 * differentiated > duration.sum())


def _evidence(names: Sequence[str], name: Int64, places: Int64, duration_ns: Int64) -> str:
    """The operators with most time in another phase, and which."""
    spent: dict[tuple[int, int], int] = {}
    for key in zip(name.tolist(), places.tolist(), duration_ns.tolist(), strict=True):
        spent[key[:2]] = spent.get(key[:2], 0) + key[2]
    longest = sorted(spent.items(), key=lambda item: (-item[1], item[0]))
    listed = [f"{names[number]} as {PHASES[place]} {time:,} ns" for (number, place), time in longest[:_NAMED]]
    return ", ".join(listed) + (f", {len(longest) - _NAMED} more" if len(longest) > _NAMED else "")
