"""What `--parallel` asks for, as Accelerate's plugins and handlers have it."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, Final

from msgspec.structs import replace

from opanatomy.errors import UsageError
from opanatomy.option_values import spelled
from opanatomy.options import CHECKPOINTED, COMPILE, DDP, FSDP2, HSDP, PARALLEL, TP
from opanatomy.run_options import RunOptions

#: A rank that waits longer than this in a collective waits for one that will not come.
TIMEOUT: Final = timedelta(minutes=10)
#: torch's own bucket, in MiB.
_BUCKET_MB: Final = 25
#: What `accelerate launch` sets for engines that are none of `--parallel`.
_OTHER_ENGINES: Final = (("ACCELERATE_USE_DEEPSPEED", "DeepSpeed"), ("ACCELERATE_USE_MEGATRON_LM", "Megatron-LM"))


def parallel_of(options: RunOptions) -> str:
    """The requested kind of parallelism: by the option, else by `accelerate launch`, else data parallelism."""
    for variable, name in _OTHER_ENGINES:
        if _is_set(variable):
            raise UsageError(
                f"accelerate launch asks for {name}, which is not run here - give {spelled(PARALLEL, FSDP2)}"
            )
    if options.parallel is not None:
        return options.parallel
    if not _is_set("ACCELERATE_USE_FSDP"):
        return DDP
    if os.environ.get("FSDP_VERSION", "1") != "2":
        raise UsageError("accelerate launch asks for FSDP version 1 - give --fsdp_version 2")
    return CHECKPOINTED if _is_set("FSDP_ACTIVATION_CHECKPOINTING") else FSDP2


def asked_of_launcher(options: RunOptions) -> RunOptions:
    """The options with mixed precision and accumulation as `accelerate launch` has them, where they do not set them.

    `UsageError` for what is not run here.
    """
    compiler = os.environ.get("ACCELERATE_DYNAMO_BACKEND", "no").lower()
    if compiler != "no":
        raise UsageError(f"accelerate launch asks for the compiler {compiler} - give {spelled(COMPILE, True)} instead")
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    if precision != "no" and options.amp is None:
        options = replace(options, amp=precision)
    steps = os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")
    if steps.isdecimal() and int(steps) > 1 and options.accumulate == 1 and not options.inference:
        options = replace(options, accumulate=int(steps))
    return options


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "yes")


def is_sharded(parallel: str) -> bool:
    """Whether each rank holds a part of the weights by FSDP2."""
    return parallel in (FSDP2, CHECKPOINTED, HSDP)


def handlers_of(options: RunOptions, parallel: str) -> list[Any]:
    """The timeout of the process group, and the buckets of DDP."""
    from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs

    handlers: list[Any] = [InitProcessGroupKwargs(timeout=TIMEOUT)]
    if parallel == DDP:
        buckets = DistributedDataParallelKwargs(
            bucket_cap_mb=options.bucket_mb or _BUCKET_MB, gradient_as_bucket_view=options.bucket_view
        )
        handlers.append(buckets)
    return handlers


def sharding_of(options: RunOptions, parallel: str) -> Any:
    """Accelerate's plugin for FSDP2; `None` where the weights are not sharded by it."""
    if not is_sharded(parallel):
        return None
    from accelerate.utils import FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=False,
        activation_checkpointing=parallel == CHECKPOINTED,
    )  # fmt: skip
    if options.amp is not None:
        plugin.set_mixed_precision(options.amp)
    return plugin


def mesh_of(parallel: str, world_size: int) -> Any:
    """Accelerate's configuration of a mesh of the ranks; `None` where they are one group."""
    if parallel not in (HSDP, TP):
        return None
    try:
        from accelerate import ParallelismConfig
    except ImportError:
        raise UsageError(f"{spelled(PARALLEL, parallel)} needs accelerate 1.10 or later - update it") from None
    if parallel == TP:
        return ParallelismConfig(tp_size=world_size)
    return ParallelismConfig(dp_replicate_size=2, dp_shard_size=world_size // 2)
