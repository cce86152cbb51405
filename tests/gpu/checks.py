"""What is run on a device, in order, and the figures that must hold of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from opanatomy.capture.model.catalog import catalog_names
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import Phase
from tests.gpu import figures
from tests.gpu.figures import Figure
from tests.gpu.runs import Run, profile
from tests.support.tiny import TINY, TINY_BATCH, TINY_SEQ

BERT = "google-bert/bert-base-uncased"
#: Without dropout attention is one operator on the CPU too, with five products backward.
_SMALL = (
    BERT,
    "--layers",
    "2",
    "--batch",
    "4",
    "--seq",
    "128",
    "--seed",
    "1",
    "--set",
    "attention_probs_dropout_prob=0",
)
_MODELS = "tests.gpu.models"
#: So many of the catalog's models are profiled at once: what is counted does not depend on the time.
_AT_ONCE = 8


def all_figures(folder: Path, device: str) -> Iterator[tuple[str, Figure]]:
    """Each check with the command that it is of; traces and reports go to `folder`."""
    for check in (_main_job, _peaks, _checkpointing, _mixed_precision, _no_room, _catalog):
        yield from check(folder, device)


def _held(run: Run, *checks: Callable[[Anatomy], Figure]) -> Iterator[tuple[str, Figure]]:
    """The figures of a run that ended well; else one figure that says how it ended."""
    if run.anatomy is None or run.code:
        yield run.command, Figure("ends well", f"exit {run.code}: {run.last_line}", "0", False)
        return
    for check in checks:
        yield run.command, check(run.anatomy)


def _main_job(folder: Path, device: str) -> Iterator[tuple[str, Figure]]:
    run = profile(
        "bert-large",
        folder,
        "google-bert/bert-large-uncased",
        "--batch",
        "4",
        "--optimizer",
        "adamw",
        "--memory",
        "--steps",
        "3",
    )
    yield from _held(
        run,
        lambda anatomy: figures.device_is_named(anatomy, device),
        figures.kernels_recorded,
        figures.kernels_launched,
        figures.work_is_classed,
        figures.second_sources_agree,
        figures.context_is_plausible,
        figures.peak_is_the_allocators,
        figures.contractions_within_peak,
        lambda anatomy: figures.product_type(anatomy, "float32"),
    )


def _peaks(folder: Path, device: str) -> Iterator[tuple[str, Figure]]:
    for dtype in ("float32", "tf32"):
        run = profile(f"{dtype}-products", folder, f"{_MODELS}:{dtype}_products")
        yield from _held(run, partial(figures.product_type, dtype=dtype), figures.contractions_within_peak)


def _checkpointing(folder: Path, device: str) -> Iterator[tuple[str, Figure]]:
    plain = profile("plain", folder, *_SMALL)
    host = profile("host", folder, *_SMALL, "--device", "cpu")
    yield from _held(plain, figures.second_sources_agree, figures.kernels_recorded)
    if plain.anatomy is None or host.anatomy is None:
        return
    yield plain.command, figures.same_flops_by_module(plain.anatomy, host.anatomy, "as on the CPU")
    for kind in ("non-reentrant", "reentrant"):
        other = profile(kind, folder, *_SMALL, "--checkpointing", kind)
        same = partial(figures.same_backward_modules, plain.anatomy, what=kind)
        yield from _held(other, figures.second_sources_agree, same)


def _mixed_precision(folder: Path, device: str) -> Iterator[tuple[str, Figure]]:
    for amp, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        run = profile(f"amp-{amp}", folder, *_SMALL, "--amp", amp, "--optimizer", "adamw", "--steps", "3", "--memory")
        yield from _held(
            run,
            figures.second_sources_agree,
            figures.work_is_classed,
            figures.every_step_updates,
            figures.peak_is_the_allocators,
            partial(figures.product_type, dtype=dtype),
        )


def _no_room(folder: Path, device: str) -> Iterator[tuple[str, Figure]]:
    run = profile("too-large", folder, f"{_MODELS}:too_large")
    if run.anatomy is None:
        yield run.command, Figure("out of memory", f"exit {run.code}: {run.last_line}", "a report", False)
        return
    yield run.command, figures.failure_is_reported(run.anatomy, Phase.FORWARD)


def _catalog(folder: Path, device: str) -> Iterator[tuple[str, Figure]]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for run in pool.map(lambda name: _tiny(name, folder), catalog_names()):
            yield from _held(run, figures.kernels_recorded, figures.work_is_classed, figures.second_sources_agree)


def _tiny(name: str, folder: Path) -> Run:
    words = [name, "--batch", str(TINY_BATCH)]
    if name in TINY_SEQ:
        words += ["--seq", str(TINY_SEQ[name])]
    words += [word for key, value in TINY[name] for word in ("--set", f"{key}={value}")]
    return profile(name.replace("/", "-"), folder, *words)
