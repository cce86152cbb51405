"""Models of other libraries through `opanatomy.profile`, contractions against a second count, a process each.

    python benchmarks/libraries.py [--amp bf16] [--inference] [--seconds N] [--details] [--list] [WORD ...]

prints a line for each model of benchmarks/zoo whose name contains one of the words (default: all): whether the FLOPs
of its contractions are those of the second count in every phase, or a check of the report or a warning says what is
not; what is unknown or without a cost; the error where it does not run. `--details` adds, where they differ, the
operators of both counts. Wants torchvision, timm, diffusers, peft, torch_geometric, x-transformers, vit-pytorch,
segmentation-models-pytorch, monai, open-clip-torch, sentence-transformers and pytest; what is missing is said.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct, field

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("KINETO_LOG_LEVEL", "6")

import torch  # noqa: E402

import opanatomy  # noqa: E402
from benchmarks.second_count import SecondCount  # noqa: E402
from benchmarks.zoo import BY_HAND, KINDS, Built  # noqa: E402
from opanatomy.capture.silence import one_line, quiet_libraries  # noqa: E402
from opanatomy.capture.step.stepper import Stepper  # noqa: E402
from opanatomy.records.anatomy import Anatomy  # noqa: E402
from opanatomy.records.taxonomy import OperatorClass, Phase  # noqa: E402

#: What `opanatomy.profile` takes besides the model.
Options: TypeAlias = "dict[str, Any]"
#: How a model ended: not compared where the second count fails on it; the last one must not be.
ENDINGS = ("equal", "warned", "not compared", "not run", "silent")


class Result(Struct, frozen=True, kw_only=True):
    """One model: FLOPs of its contractions by phase, ours and those of the second count; what the report says."""

    name: str
    ending: str
    error: str | None = None
    ours: dict[Phase, int] = field(default_factory=dict)
    second: dict[Phase, int] = field(default_factory=dict)
    #: What the checks of the report say differs, and was not explained.
    differences: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    #: Operators of class unknown, and those without a cost.
    unknown: tuple[str, ...] = ()
    uncosted: tuple[str, ...] = ()
    details: tuple[str, ...] = ()


# ------------------------------------------------------------------------------------------------------- one model


def contractions(anatomy: Anatomy) -> Counter[tuple[Phase, str]]:
    """FLOPs of the contractions of a report by phase and operator."""
    flops: Counter[tuple[Phase, str]] = Counter()
    for row in anatomy.operators:
        if row.operator_class is OperatorClass.TENSOR_CONTRACTION:
            flops[row.phase, row.operator] += row.flops or 0
    return flops


def by_phase(flops: Counter[tuple[Phase, str]]) -> dict[Phase, int]:
    """The sums of the phases that have any."""
    totals: Counter[Phase] = Counter()
    for (phase, _), amount in flops.items():
        totals[phase] += amount
    return {phase: totals[phase] for phase in Phase if totals[phase]}


def second_count(name: str, module: torch.nn.Module, inputs: Any, options: Options) -> Counter[tuple[Phase, str]]:
    """The same by torch's counter, of one more step; by hand where that does not see it."""
    if name in BY_HAND:
        return Counter({(phase, "by hand"): flops for phase, flops in BY_HAND[name].items()})
    arguments = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
    stepper = Stepper(
        module=module,
        parameters=tuple(module.parameters()),
        inputs=arguments,
        device="cpu",
        amp=options.get("amp"),
        inference=options.get("inference", False),
    )
    with SecondCount(stepper) as counter:
        stepper.run()
    return counter.flops


def same_every_step(module: torch.nn.Module) -> None:
    """Random numbers begin anew with each forward: what is drawn (boxes, dropped layers, experts) decides FLOPs."""

    def seed(*_: Any) -> None:
        torch.manual_seed(0)
        random.seed(0)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(0)

    module.register_forward_pre_hook(seed)


def measured(name: str, build: Callable[[], Built], options: Options) -> Result:
    """The model's line; raises whatever building or profiling it does."""
    torch.manual_seed(0)
    module, inputs = build()
    module.train(not options.get("inference"))
    same_every_step(module)
    anatomy = opanatomy.profile(module, inputs, **options)
    ours = contractions(anatomy)
    second, error = Counter(ours), None
    try:
        with quiet_libraries():
            second = second_count(name, module, inputs, options)
    except Exception as failure:
        # torch's counter does not know every kind of tensor
        error = f"the second count: {type(failure).__name__}: {one_line(failure)}"
    details = tuple(
        f"{phase:<10} {operator:<56} {ours[phase, operator]:>15,} {second[phase, operator]:>15,}"
        for phase, operator in sorted({*ours, *second})
    )
    return Result(
        name=name,
        ending="not compared" if error else ending(anatomy, ours, second),
        error=error,
        ours=by_phase(ours),
        second=by_phase(second),
        differences=tuple(
            f"{one.phase} {one.operator} {one.ours} against {one.other} {check.unit} of {check.quantity}"
            for check in anatomy.checks
            for one in check.unexplained
        ),
        warnings=anatomy.warnings,
        unknown=names(row.operator for row in anatomy.operators if row.operator_class is OperatorClass.UNKNOWN),
        uncosted=names(row.operator for row in anatomy.operators if row.flops is None and row.part_of is None),
        details=details,
    )


def ending(anatomy: Anatomy, ours: Counter[tuple[Phase, str]], second: Counter[tuple[Phase, str]]) -> str:
    """Equal by the second count and by the report's own checks, said to be different or unknown, or neither."""
    unknown = {row.operator for row in anatomy.operators if row.flops is None}
    costed = Counter({key: flops for key, flops in second.items() if key[1] not in unknown})
    equal, without_unknown = by_phase(ours) == by_phase(second), by_phase(ours) == by_phase(costed)
    if equal and not any(check.unexplained for check in anatomy.checks) and not _uncosted_contraction(anatomy):
        return "equal"
    differs = any(check.differences for check in anatomy.checks)
    said = differs or anatomy.warnings or _uncosted_contraction(anatomy)
    return "warned" if equal or without_unknown or said else "silent"


def _uncosted_contraction(anatomy: Anatomy) -> bool:
    return any(
        row.flops is None and row.part_of is None and row.operator_class is OperatorClass.TENSOR_CONTRACTION
        for row in anatomy.operators
    )


def names(operators: Iterable[str]) -> tuple[str, ...]:
    """Each once, in order."""
    return tuple(dict.fromkeys(operators))


# ------------------------------------------------------------------------------------------------- a process each


def run(name: str, build: Callable[[], Built], options: Options, seconds: int) -> Result:
    """The model in a process of its own, which is ended after `seconds`."""
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)
    process = fork.Process(target=_child, args=(there, name, build, options))
    process.start()
    there.close()
    try:
        if here.poll(seconds):
            result: Result = here.recv()
            return result
        return Result(name=name, ending="not run", error=f"more than {seconds} s")
    except EOFError:
        process.join()
        return Result(name=name, ending="not run", error=f"the process ended with {process.exitcode}")
    finally:
        process.kill()
        process.join()


def _child(pipe: Connection, name: str, build: Callable[[], Built], options: Options) -> None:
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = measured(name, build, options)
    except Exception as error:
        # whatever the code of a stranger raises
        if "--debug" in sys.argv:
            raise
        result = Result(name=name, ending="not run", error=f"{type(error).__name__}: {one_line(error)}")
    pipe.send(result)


def chosen(words: list[str]) -> Iterator[tuple[str, Callable[[], Built]]]:
    """The models whose name contains one of the words, with what makes them."""
    for kind in KINDS:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                models = importlib.import_module(f"benchmarks.zoo.{kind}").MODELS
        except ImportError as error:
            print(f"{kind}: not run: {error}")
            continue
        for name, build in models.items():
            if not words or any(word.lower() in name.lower() for word in words):
                yield name, build


# -------------------------------------------------------------------------------------------------------- the table


def line(result: Result, seconds: float) -> str:
    """One row of the table."""
    if result.ending == "not run":
        return f"{result.name:<48} {result.ending:<12} {result.error}"
    amounts = []  # both sums by phase; one where they are equal
    for phase in Phase:
        ours, second = result.ours.get(phase, 0), result.second.get(phase, 0)
        if ours or second:
            amounts.append(f"{phase} {ours:,}" + ("" if ours == second else f" against {second:,}"))
    said = [", ".join(amounts) or "no contraction", *([result.error] if result.error else [])]
    said += [f"unknown: {', '.join(result.unknown)}"] * bool(result.unknown)
    said += [f"no cost: {', '.join(result.uncosted)}"] * bool(result.uncosted)
    said += [f"checks: {'; '.join(result.differences)}"] * bool(result.differences)
    said += [f"warnings: {'; '.join(result.warnings)}"] * bool(result.warnings)
    return f"{result.name:<48} {result.ending:<12} {seconds:5.1f} s  {'  '.join(said)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD", help="models whose name contains it")
    parser.add_argument("--seconds", type=int, default=120, help="for each model (default: %(default)s)")
    parser.add_argument("--amp", choices=("bf16", "fp16"), help="as opanatomy.profile takes it")
    parser.add_argument("--inference", action="store_true", help="forward alone, in eval mode")
    parser.add_argument("--details", action="store_true", help="operators of both counts, where they differ")
    parser.add_argument("--list", action="store_true", help="only the names")
    parser.add_argument("--debug", action="store_true", help="tracebacks")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    options: Options = {"amp": arguments.amp, "inference": arguments.inference}
    results: list[Result] = []
    for name, build in chosen(arguments.words):
        if arguments.list:
            print(name)
            continue
        begin = time.perf_counter()
        results.append(run(name, build, options, arguments.seconds))
        print(line(results[-1], time.perf_counter() - begin), flush=True)
        if arguments.details and results[-1].ours != results[-1].second:
            print("\n".join(f"    {detail}" for detail in results[-1].details))
    if results:
        ended = Counter(result.ending for result in results)
        print(f"{len(results)} models: " + ", ".join(f"{ended[name]} {name}" for name in ENDINGS))


if __name__ == "__main__":
    main()
