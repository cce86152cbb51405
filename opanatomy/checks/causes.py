"""Why the calls of a profiled step can differ from those that a dispatch mode saw: the causes that are known.

What they do not account for stays a difference; none of them explains a contraction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from opanatomy.model import Phase

Key = tuple[str, Phase]

FIRST_STEP: Final = "made once, in the first step, which is the one that was watched"
KEPT_COPY: Final = "autograd keeps a copy of what an operator overwrites, inside of that operator's own event"
ENCLOSED: Final = "copies and fills inside of another operator's event, where the mode does not see"
NO_IN_PLACE: Final = "autograd does not work in place where a mode watches: it makes zeros in another way"

#: What makes tensors that a first step keeps for later ones (masks, tables); an optimizer's state is also copied.
_MAKES = ("zeros", "ones", "full", "fill", "zero", "arange", "new_zeros", "new_ones", "new_full", "eye", "tril", "triu")
_COPIES = ("copy", "clone")
#: Ways to make zeros; `FunctionsManual.cpp` takes another one where a tensor may be of a subclass (or a mode watches).
_ZEROS = ("aten::zeros", "aten::zero", "aten::new_zeros", "aten::zeros_like")


def cause_of(
    key: Key,
    ours: Mapping[Key, int],
    seen: Mapping[Key, int],
    inner_copies: Mapping[Key, int],
    enclosed_copies: Mapping[Key, int],
) -> str | None:
    """Why `ours` and `seen` differ in the calls of an operator in a phase; `None` where nothing known explains it.

    `inner_copies` are part of another call, `enclosed_copies` calls of their own inside of another operator's event.
    """
    name, phase = key
    mine, watched = ours.get(key, 0), seen.get(key, 0)
    if name in _ZEROS and phase is not Phase.FORWARD and _zeros(ours, phase) == _zeros(seen, phase):
        return NO_IN_PLACE
    if mine < watched and _base(name).startswith((*_MAKES, *(_COPIES if phase is Phase.OPTIMIZER else ()))):
        return FIRST_STEP
    if mine < watched and watched - mine == inner_copies.get(key, 0):
        return KEPT_COPY
    if 0 < mine - watched <= enclosed_copies.get(key, 0):
        return ENCLOSED
    return None


def _base(name: str) -> str:
    return name.partition("::")[2].removeprefix("_foreach_")


def _zeros(calls: Mapping[Key, int], phase: Phase) -> int:
    return sum(calls.get((name, phase), 0) for name in _ZEROS)
