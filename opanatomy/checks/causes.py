"""Why the calls of a profiled step can differ from those that a dispatch mode saw: the causes that are known.

Each one holds for exactly the calls that it names; what it does not account for to the last call stays a difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from opanatomy.model import Phase

Key = tuple[str, Phase]

FIRST_STEP: Final = "the optimizer's state is made in its first step, which is the one that was watched"
KEPT_COPY: Final = "autograd keeps a copy of what an operator overwrites, inside of that operator's own event"
NO_IN_PLACE: Final = "autograd does not work in place where a mode watches: it makes zeros in another way"

#: What makes the state of an optimizer.
_MAKES_STATE = ("zeros", "ones", "full", "fill", "zero", "copy", "clone")
#: Ways to make zeros; `FunctionsManual.cpp` takes another one where a tensor may be of a subclass (or a mode watches).
_ZEROS = ("aten::zeros", "aten::zero", "aten::new_zeros", "aten::zeros_like")


def cause_of(key: Key, ours: Mapping[Key, int], seen: Mapping[Key, int], inner_copies: Mapping[Key, int]) -> str | None:
    """Why `ours` and `seen` differ in the calls of an operator in a phase; `None` where nothing known explains it."""
    name, phase = key
    mine, watched = ours.get(key, 0), seen.get(key, 0)
    if phase is Phase.OPTIMIZER and mine < watched and _base(name).startswith(_MAKES_STATE):
        return FIRST_STEP
    if mine < watched and watched - mine == inner_copies.get(key, 0):
        return KEPT_COPY
    if name in _ZEROS and phase is not Phase.FORWARD and _zeros(ours, phase) == _zeros(seen, phase):
        return NO_IN_PLACE
    return None


def _base(name: str) -> str:
    return name.partition("::")[2].removeprefix("_foreach_")


def _zeros(calls: Mapping[Key, int], phase: Phase) -> int:
    return sum(calls.get((name, phase), 0) for name in _ZEROS)
