"""Whether runs are what a comparison takes them for: of the same work, independent, timed in one way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import combinations
from typing import Final, TypeAlias

from msgspec.structs import replace

from opanatomy.comparison.kinds import calls_of, paired
from opanatomy.comparison.sides import RunInput, SideInput
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.breakdown import Breakdown
from opanatomy.records.compared import Cause, Decomposition, Part
from opanatomy.records.taxonomy import OperatorClass

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
#: A whole trace with this many times the calls of a step is no step of the same.
_NO_STEP: Final = Fraction(3, 2)
#: Where this part of all that is called is called as many times as often, it is that many iterations.
_ITERATIONS: Final = 0.9
#: With less of a side's work on the other side too the two are hardly the same model.
_IN_COMMON: Final = 0.5
#: With contractions of this part of the work on both sides, these tell models apart, whatever became of the rest.
_MOSTLY: Final = 0.2


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


# -------------------------------------------------------------------------------------------------- of the same work


def not_comparable(sides: Sequence[SideInput], breakdowns: Sequence[Breakdown | None]) -> Iterable[str]:
    """Why the times of the sides are not of the same: no kernels, other kinds of times, other numbers of iterations."""
    missing: dict[str, list[str]] = {}
    for side in sides:
        for run in side.runs:
            if (why := _without_kernels(run.anatomy)) is not None:
                missing.setdefault(why, []).append(side.called(run))
    for why, runs in missing.items():
        yield f"{_named(runs)} {'has' if len(runs) == 1 else 'have'} {why}"
    on_cpu = [side.runs[0].anatomy.environment.device_kind == "cpu" for side in sides]
    if len(set(on_cpu)) > 1 and not missing:
        names = [_all_of([side.name for side, cpu in zip(sides, on_cpu, strict=True) if cpu is here]) for here in
                 (True, False)]  # fmt: skip
        yield f"{names[0]} ran on the CPU, {names[1]} did not: times of operators are no times of kernels"
    if missing or len(set(on_cpu)) > 1:
        return
    for side, breakdown in zip(sides[1:], breakdowns[1:], strict=True):
        if breakdowns[0] is not None and breakdown is not None:
            yield from _iterations((sides[0].name, breakdowns[0]), (side.name, breakdown))


def _without_kernels(anatomy: Anatomy) -> str | None:
    """That a run has no record of what its GPU did, if that is so."""
    environment = anatomy.environment
    if environment.device_kind not in ("cpu", None):
        return None if anatomy.ledger.device_work_ns else "no kernels: what the device did was not recorded"
    if environment.host_only:
        return "times of the host alone, of work that a GPU did: they are launch times"
    return None


def _iterations(first: tuple[str, Breakdown], second: tuple[str, Breakdown]) -> Iterable[str]:
    """That a step of one side is several of the other's, by how often it calls what both call."""
    pairs = paired(first[1], second[1])
    if not pairs:
        return
    calls = [calls_of(breakdown, kind) for (_, breakdown), kind in zip((first, second), pairs[0], strict=True)]
    names = [name for name in calls[0] if name in calls[1]]
    if not names:
        return
    whole = [not kind.numbers for kind in pairs[0]]
    ratios = sorted((calls[1][name] / calls[0][name], calls[0][name] + calls[1][name]) for name in names)
    if whole[0] != whole[1]:
        middle = _weighted_middle(ratios)
        times = middle if whole[1] else 1 / middle
        one, other = (second[0], first[0]) if whole[1] else (first[0], second[0])
        if max(times, 1 / times) >= _NO_STEP:
            yield f"{one} is a whole trace, taken for one step: it has {float(times):.3g} times the calls of {other}'s"
        return
    (most, count) = Counter(ratio for ratio, _ in ratios).most_common(1)[0]
    times = max(most, 1 / most)
    if times > 1 and times.denominator == 1 and count >= _ITERATIONS * len({**calls[0], **calls[1]}):
        more, less = (second[0], first[0]) if most > 1 else (first[0], second[0])
        yield f"a step of {more} makes every call {times} times as often as one of {less}: it is {times} iterations"


def _weighted_middle(values: Sequence[tuple[Fraction, Fraction]]) -> Fraction:
    """The middle of ordered values, each with its weight."""
    half, upto = sum((weight for _, weight in values), Fraction(0)) / 2, Fraction(0)
    for value, weight in values:
        upto += weight
        if upto >= half:
            return value
    return values[-1][0]


def unlike_work(sides: Sequence[SideInput], parts: Decomposition) -> tuple[str | None, bool]:
    """How little of two sides' work is in common, `None` where that is most of it, and whether they are other models.

    They are not where they have one name, contractions of the same FLOPs, or most of these in common: what is compiled
    has other names for the rest.
    """
    shares = _in_common(sides, parts.parts, parts.parts)
    if not shares or min(shares)[0] >= _IN_COMMON:
        return None, False
    share, name = min(shares)
    text = f"{share:.1%} of the work of {name} is on the other side too".replace("%", " %")
    contractions = [part for part in parts.parts if part.operator_class is OperatorClass.TENSOR_CONTRACTION]
    mostly = all(
        sum(getattr(part, side) for part in contractions)
        >= _MOSTLY * sum(getattr(part, side) for part in parts.parts if part.cause.is_work)
        for side in ("before_ns", "after_ns")
    )
    alike = [part for part in contractions if part.cause is not Cause.ANOTHER_SIGNATURE]
    if mostly and min(_in_common(sides, contractions, alike))[0] >= _IN_COMMON:
        return text, False
    models = [side.runs[0].anatomy.workload.model for side in sides]
    metrics = [side.runs[0].metrics.get("class.tensor_contraction.flops") for side in sides]
    known = [metric.value for metric in metrics if metric is not None]
    same_flops = len(known) == 2 and max(known) - min(known) <= _SAME_FLOPS * max(known)
    return text, not same_flops and (None in models or models[0] != models[1])


def _in_common(sides: Sequence[SideInput], parts: Sequence[Part], alike: Sequence[Part]) -> list[tuple[float, str]]:
    """Which share of the work of each side's parts is in those alike on the other too; none of a side without work."""
    shares = []
    for side, name in zip(sides, ("before_ns", "after_ns"), strict=True):
        work = sum(getattr(part, name) for part in parts if part.cause.is_work)
        both = sum(getattr(part, name) for part in alike if part.before is not None and part.after is not None)
        if work:
            shares.append((both / work, side.name))
    return shares


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
