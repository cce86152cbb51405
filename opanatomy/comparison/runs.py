"""Whether runs are what a comparison takes them for: independent, of one side runs of the same, timed in one way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import Final, TypeAlias

from msgspec.structs import replace

from opanatomy.comparison.sides import RunInput, SideInput
from opanatomy.records.anatomy import Anatomy

#: A run as what it was made from says it; equal of copies of a report, whatever they are called.
Identity: TypeAlias = "tuple[str | Anatomy, int | None]"
#: What runs are compared by: texts and counts are equal or not, floats vary.
Value: TypeAlias = str | int | float
#: FLOPs that vary by less are of the same program: texts of other lengths, tokens sent to other experts.
_SAME_FLOPS: Final = 0.01
_TIME: Final = "step_time_ns"
_PLAIN: Final = "step_unprofiled_ns"
#: So many runs are named.
_NAMED: Final = 3


def counted_once(sides: Sequence[SideInput]) -> tuple[list[SideInput], list[str]]:
    """The sides without copies of a run among their own, and a warning for each run that is there several times."""
    kept, warnings = [], []
    for side in sides:
        copies: dict[Identity, list[RunInput]] = {}
        for run in side.runs:
            copies.setdefault(_identity(run), []).append(run)
        for first, *others in copies.values():
            if others:
                names, verb = _named([run.name for run in others]), "is" if len(others) == 1 else "are"
                warnings.append(f"{side.name}: {names} {verb} the same run as {first.name}, counted once")
        kept.append(replace(side, runs=tuple(runs[0] for runs in copies.values())))
    return kept, warnings


def on_two_sides(sides: Sequence[SideInput]) -> list[str]:
    """A warning for each two sides that have a run in common."""
    identities = [{_identity(run): run for run in side.runs} for side in sides]
    warnings = []
    for (one, ones), (other, others) in combinations(zip(sides, identities, strict=True), 2):
        both = [(run, others[identity]) for identity, run in ones.items() if identity in others]
        if both:
            first, second = both[0]
            more = f", and so are {len(both) - 1} more" if both[1:] else ""
            warnings.append(f"{one.called(first)} and {other.called(second)} are the same run{more}")
    return warnings


def _identity(run: RunInput) -> Identity:
    """The digest of its trace and when that began; of ranks, whose report has no digest, all that it says."""
    provenance = run.anatomy.provenance
    if provenance.trace_sha256 is not None:
        return provenance.trace_sha256, provenance.begin_unix_ns
    return replace(run.anatomy, provenance=replace(provenance, trace=None)), provenance.begin_unix_ns


# --------------------------------------------------------------------------------------------------- runs of one side


def unlike_runs(side: SideInput) -> Iterable[str]:
    """What sets some runs of a side apart from its others, so that they are hardly runs of the same."""
    differences: dict[tuple[str, ...], list[str]] = {}
    for what, value_of in _SAME_ON_A_SIDE:
        known = [(run, value) for run in side.runs if (value := value_of(run)) is not None]
        if known:
            usual = max((value for _, value in known), key=lambda each: sum(_alike(each, value) for _, value in known))
            apart = [(run, value) for run, value in known if not _alike(value, usual)]
            values = ", ".join(dict.fromkeys(_text(value) for _, value in apart))
            differences.setdefault(tuple(run.name for run, _ in apart), []).append(
                f"{what} ({values}, not {_text(usual)})"
            )
    for names, texts in differences.items():
        if names:
            verb = "differs" if len(names) == 1 else "differ"
            yield f"{side.name}: {_named(names)} {verb} from the other runs in {_all_of(texts)}"


def timed_otherwise(sides: Sequence[SideInput]) -> Iterable[str]:
    """That the step of some runs was timed without the profiler, that of others under it alone, and which those are."""
    under = [[run for run in side.runs if _TIME in run.metrics and _PLAIN not in run.metrics] for side in sides]
    without = [[run for run in side.runs if _PLAIN in run.metrics] for side in sides]
    if any(under) and any(without):
        yield (
            f"timed under the profiler alone: {_sides_of(sides, under)}; without it: {_sides_of(sides, without)}; so"
            " the step times cannot be compared - use the figure profiled"
        )


def _sides_of(sides: Sequence[SideInput], runs: Sequence[Sequence[RunInput]]) -> str:
    """The sides that these runs are of; where it is not all of a side's runs how many."""
    return _all_of([
        side.name if len(each) == len(side.runs) else f"{len(each)} of {len(side.runs)} runs of {side.name}"
        for side, each in zip(sides, runs, strict=True) if each
    ])  # fmt: skip


def _alike(one: Value, other: Value) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= _SAME_FLOPS * max(one, other)
    return one == other


def _text(value: Value) -> str:
    return value if isinstance(value, str) else f"{value:,.0f}"


def _named(names: Sequence[str]) -> str:
    return _all_of(names if len(names) <= _NAMED else [names[0], f"{len(names) - 1} more"])


def _all_of(texts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def _flops(run: RunInput) -> float | None:
    return float(run.metrics["flops"].value) if "flops" in run.metrics else None


#: What the runs of a side have in common, and where a run says it; `None` where it does not.
_SAME_ON_A_SIDE: Final[tuple[tuple[str, Callable[[RunInput], Value | None]], ...]] = (
    ("the model", lambda run: run.anatomy.workload.model),
    ("the batch", lambda run: run.anatomy.workload.batch),
    ("the sequence length", lambda run: run.anatomy.workload.sequence_length),
    ("the FLOPs of a step", _flops),
    ("the device", lambda run: run.anatomy.environment.device),
)
