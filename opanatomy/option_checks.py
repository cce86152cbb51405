"""Which options go together: what one leaves without effect, and what needs another."""

from __future__ import annotations

from typing import Any

from opanatomy.errors import UsageError
from opanatomy.option_values import Spelling
from opanatomy.options import (
    BEAMS,
    BUCKET_MB,
    BUCKET_VIEW,
    CHECKPOINTED,
    CHECKPOINTING,
    CLIP,
    COMPILE,
    DDP,
    FREEZE,
    GENERATE,
    HSDP,
    INFERENCE,
    LORA,
    NO_TRACE,
    OF_BACKWARD,
    OF_RANKS,
    OF_TEXTS,
    OPTIMIZER,
    PARALLEL,
    PROCESSES,
    SAMPLE,
    TEXTS,
    TRACE,
)
from opanatomy.records.optimizers import OPTIMIZERS


def check_together(options: Any, spelled: Spelling) -> None:
    """Raise `UsageError` where one option leaves another without effect."""
    if options.inference or options.generate is not None:
        forward_only = spelled(INFERENCE, True) if options.generate is None else spelled(GENERATE, options.generate)
        for option in OF_BACKWARD:
            value = getattr(options, option.name)
            if value != option.default:
                raise UsageError(f"{forward_only} has no backward: leave out {spelled(option, value)}")
    _check_texts(options, spelled)
    _check_generation(options, spelled)
    _check_ranks(options, spelled)
    if options.lora is not None and options.freeze is not None:
        raise UsageError(
            f"{spelled(LORA, options.lora)} freezes all but its adapters: leave out {spelled(FREEZE, options.freeze)}"
        )
    if options.clip is not None and options.optimizer is None:
        raise UsageError(
            f"{spelled(CLIP, options.clip)} is a part of the update, and there is none - add"
            f" {spelled(OPTIMIZER, OPTIMIZERS[0].name)}"
        )
    if getattr(options, NO_TRACE.name, False) and options.trace is not None:
        raise UsageError(
            f"{spelled(NO_TRACE, True)} keeps no trace, {spelled(TRACE, options.trace)} does - leave one out"
        )


def _check_ranks(options: Any, spelled: Spelling) -> None:
    parallel = getattr(options, PARALLEL.name, None)
    if parallel in (None, DDP):
        return
    for option in (BUCKET_MB, BUCKET_VIEW):
        if getattr(options, option.name) != option.default:
            raise UsageError(
                f"{spelled(option, getattr(options, option.name))} is for DDP: leave out {spelled(PARALLEL, parallel)}"
            )
    if options.generate is not None:
        raise UsageError(
            f"{spelled(GENERATE, options.generate)} runs on each rank by itself: leave out"
            f" {spelled(PARALLEL, parallel)}"
        )
    if parallel == CHECKPOINTED and options.checkpointing is not None:
        raise UsageError(
            f"{spelled(PARALLEL, parallel)} recomputes activations already: leave out"
            f" {spelled(CHECKPOINTING, options.checkpointing)}"
        )


def check_several(options: Any, processes: int, spelled: Spelling) -> None:
    """Refuse for one process what only several can do."""
    for option in OF_RANKS:
        value = getattr(options, option.name)
        if value != option.default and processes == 1:
            raise UsageError(
                f"{spelled(option, value)} needs several processes: add {spelled(PROCESSES, 2)}, or start them with"
                " torchrun or accelerate launch"
            )
    if options.parallel == HSDP and (processes < 4 or processes % 2):
        raise UsageError(
            f"{spelled(PARALLEL, HSDP)} shards in two groups, each with a copy of the weights: {processes} processes"
            " make no two groups of several - start 4, 6, 8, ..."
        )


def _check_texts(options: Any, spelled: Spelling) -> None:
    texts = getattr(options, TEXTS.name, None)
    if texts is not None and options.generate is not None:
        raise UsageError(
            f"{spelled(GENERATE, options.generate)} needs prompts of one length: leave out {spelled(TEXTS, texts)}"
        )
    for option in OF_TEXTS:
        value = getattr(options, option.name, None)
        if texts is None and value is not None:
            raise UsageError(f"{spelled(option, value)} needs texts: give {spelled(TEXTS, SAMPLE)} too")


def _check_generation(options: Any, spelled: Spelling) -> None:
    if options.generate is None:
        if options.beams is not None:
            needed = spelled(GENERATE, 32)
            raise UsageError(f"{spelled(BEAMS, options.beams)} needs a generation: give {needed} too")
        return
    if options.compile:
        raise UsageError(
            f"{spelled(GENERATE, options.generate)} runs the model's own forward, not a compiled one: leave out"
            f" {spelled(COMPILE, True)}"
        )
