"""Why the calls of a profiled step can differ from those that a dispatch mode saw: the causes that are known.

What they do not account for stays a difference. A contraction is explained by torch's own other path, only if all
contractions of the phase together are equal, and by a forward outside of all modules, only if none is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct, field

from opanatomy.checks.dispatched import Dispatched
from opanatomy.records.taxonomy import Phase

Key = tuple[str, Phase]

FIRST_STEP: Final = "made once, in the first step, which is the one that was watched"
KEPT_COPY: Final = "autograd keeps a copy of what an operator overwrites, inside of that operator's own event"
ENCLOSED: Final = "copies and fills inside of another operator's event, where the mode does not see"
NO_IN_PLACE: Final = "autograd does not work in place where a mode watches: it makes zeros in another way"
COPIED_GRADIENT: Final = "autograd keeps a gradient without copying it where nothing else holds it, which a mode does"
FAST_PATH: Final = "torch.nn does not take its fast path where a mode watches: the same products, fused otherwise"
OUTSIDE_MODULES: Final = (
    "ran before the first module was called: forward by autograd's nodes, which a mode does not see"
)
FORWARD_AD: Final = "forward-mode differentiation, which a mode makes run otherwise"

#: What makes tensors that a first step keeps for later ones: masks, tables, the weights of lazy modules; an
#: optimizer's state is also copied.
_MAKES = ("zeros", "ones", "full", "fill", "zero", "arange", "new_zeros", "new_ones", "new_full", "eye", "tril", "triu")
_RANDOM = ("uniform", "normal")
_COPIES = ("copy", "clone")
#: Ways to make zeros; `FunctionsManual.cpp` takes another one where a tensor may be of a subclass (or a mode watches).
_ZEROS = ("aten::zeros", "aten::zero", "aten::new_zeros", "aten::zeros_like")
#: How a gradient is copied when it is first kept, and what that takes besides: of a sparse one, of a dense one.
_GRADIENT_COPIES = ("aten::clone", "aten::copy")
_ACCUMULATED = frozenset({"aten::_indices", "aten::new_empty_strided"})
_FAST_PATHS = frozenset({"aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention"})
#: What only forward-mode differentiation runs.
_DUAL = ("aten::_make_dual", "aten::_efficientzerotensor", "prims::")


class Observed(Struct):
    """What the steps made of an operator in a phase. `flops` is `None` where a call has no second formula."""

    calls: int = 0
    flops: int | None = 0
    sources: tuple[str, ...] = ()


class Counts(Struct, frozen=True, kw_only=True):
    """Both counts of a run; `traced` and `watched` are the names of all operators in the trace and in the observation.

    `inner_copies` are copies and fills that are part of another call.
    """

    ours: Mapping[Key, Dispatched]
    observed: Mapping[Key, Observed]
    inner_copies: Mapping[Key, int] = field(default_factory=dict)
    #: Whether the step that was watched was the first one.
    of_first_step: bool = False
    traced: frozenset[str] = frozenset()
    watched: frozenset[str] = frozenset()

    def calls(self, key: Key) -> tuple[int, int]:
        """The calls of an operator in a phase here and as they were observed."""
        return (
            self.ours[key].calls if key in self.ours else 0,
            self.observed[key].calls if key in self.observed else 0,
        )

    def flops(self, key: Key) -> tuple[int | None, int | None]:
        """The FLOPs of the contractions of an operator in a phase here and as they were observed."""
        return (
            self.ours[key].contraction_flops if key in self.ours else 0,
            self.observed[key].flops if key in self.observed else 0,
        )

    def time_of_calls(self, key: Key) -> int | None:
        """The time of as many calls of an operator in a phase as are missing or too many here."""
        ours, observed = self.calls(key)
        alike = [count for other, count in self.ours.items() if other == key or (not ours and other[0] == key[0])]
        calls = sum(count.calls for count in alike)
        return abs(ours - observed) * sum(count.time_ns for count in alike) // calls if calls else None

    def time_of_flops(self, key: Key) -> int | None:
        """The time of an operator in a phase: which of its calls have other FLOPs is not known."""
        return self.ours[key].time_ns if key in self.ours else self.time_of_calls(key)

    @property
    def differentiates_forward(self) -> bool:
        """Whether forward-mode differentiation ran."""
        return any(name.startswith(_DUAL) for name in self.watched | self.traced)

    def took_fast_path(self, phase: Phase) -> bool:
        """Whether the trace has a fast path that was not watched, and all products of the phase cost the same."""
        if not (_FAST_PATHS & self.traced) - self.watched:
            return False
        ours = [counted.contraction_flops for (_, at), counted in self.ours.items() if at is phase]
        observed = [count.flops for (_, at), count in self.observed.items() if at is phase and count.sources]
        return None not in ours and None not in observed and sum(filter(None, ours)) == sum(filter(None, observed))


def cause_of_calls(key: Key, counts: Counts) -> str | None:
    """Why the calls of an operator in a phase differ; `None` where nothing known explains it."""
    name, phase = key
    ours, watched = counts.calls(key)
    if counts.took_fast_path(phase):
        return FAST_PATH
    if _is_outside_modules(key, counts.calls):
        return OUTSIDE_MODULES
    if name in _ZEROS and phase is not Phase.FORWARD and _zeros_are_equal(counts, phase):
        return NO_IN_PLACE
    if (
        counts.of_first_step
        and ours < watched
        and _base(name).startswith((*_MAKES, *_RANDOM, *(_COPIES if phase is Phase.OPTIMIZER else ())))
    ):
        return FIRST_STEP
    if 0 < watched - ours <= counts.inner_copies.get(key, 0):
        return KEPT_COPY
    if name in _GRADIENT_COPIES and phase is Phase.BACKWARD and ours < watched and _ACCUMULATED & counts.watched:
        return COPIED_GRADIENT
    if 0 < ours - watched <= counts.ours[key].enclosed_copies:
        return ENCLOSED
    return None


def cause_of_flops(key: Key, counts: Counts) -> str | None:
    """Why the FLOPs of the contractions of an operator in a phase differ; `None` where nothing known explains it."""
    if _is_outside_modules(key, counts.flops):
        return OUTSIDE_MODULES
    return FAST_PATH if counts.took_fast_path(key[1]) else None


def _is_outside_modules(key: Key, figures: Callable[[Key], tuple[int | None, int | None]]) -> bool:
    """Whether forward here has what the mode counted as of no pass, and nothing besides."""
    (forward, seen_forward), (other, seen_other) = (figures((key[0], phase)) for phase in (Phase.FORWARD, Phase.OTHER))
    if key[1] not in (Phase.FORWARD, Phase.OTHER) or None in (forward, seen_forward, other, seen_other):
        return False
    moved = (forward or 0) - (seen_forward or 0)
    return moved > 0 and moved == (seen_other or 0) - (other or 0)


def _base(name: str) -> str:
    return name.partition("::")[2].removeprefix("_foreach_")


def _zeros_are_equal(counts: Counts, phase: Phase) -> bool:
    pairs = [counts.calls((name, phase)) for name in _ZEROS]
    return sum(counted for counted, _ in pairs) == sum(observed for _, observed in pairs)
