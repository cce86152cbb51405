"""Join the ranks of a run in one process group by Accelerate, and exchange data between them outside of steps."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from datetime import timedelta
from io import StringIO
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.capture.device.environment import choose_device
from opanatomy.capture.distributed.launched import Launched, launched
from opanatomy.capture.silence import quiet_libraries
from opanatomy.errors import CaptureError, SaidByRank, UsageError
from opanatomy.options import CHECKPOINTED, COMPILE, DDP, FSDP2, HSDP, PARALLEL, TP, RunOptions, spelled

if TYPE_CHECKING:
    from accelerate import Accelerator


# Call Accelerate's own launcher: it runs the command again on each of several processes.


#: torch's launcher logs in many lines an error that the failed rank reports in one.
_LOGGER: Final = "torch.distributed.elastic"


def launch(command: Sequence[str], processes: int, device: str) -> None:
    """Run `opanatomy` with the words of `command` on that many processes, and wait for them.

    Raises `SaidByRank` with the exit code of a failed rank, which has reported its error.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        from accelerate.commands.launch import launch_command, launch_command_parser
    except ImportError as error:
        raise CaptureError(
            f"--processes {processes} needs accelerate, which is not installed - pip install accelerate"
        ) from error
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"--device {device} would apply to all processes - leave it out, so that each uses its own")
    on_host = choose_device(device) == "cpu"
    if not on_host:
        check_devices(processes)
    words = [
        "--multi_gpu", "--num_processes", str(processes), "--num_machines", "1", "--mixed_precision", "no",
        "--dynamo_backend", "no", "--main_process_port", "0", "--module", "opanatomy", *command,
    ]  # fmt: skip
    try:
        with environment(on_host), quiet():
            launch_command(launch_command_parser().parse_args(words))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode >= 0:
            raise SaidByRank("", failure.exitcode) from error
        # A rank ended by a signal could not report it.
        name = signal.Signals(-failure.exitcode).name
        raise SaidByRank(f"rank {rank} was killed by {name} - was there enough memory for all ranks?", 1) from error
    except SignalException as error:
        interrupted = int(error.sigval) == signal.SIGINT  # the first rank reports it
        said = "" if interrupted else f"killed by {signal.Signals(error.sigval).name}, along with its processes"
        raise SaidByRank(said, 128 + int(error.sigval)) from error


def check_devices(local_processes: int) -> None:
    """Raise `UsageError` for more processes on this machine than GPUs."""
    import torch

    count = torch.cuda.device_count()
    if local_processes > count:
        raise UsageError(
            f"{local_processes} processes on this machine need one GPU each, but it has {count} - start fewer, or add"
            " --device cpu"
        )


@contextmanager
def environment(on_host: bool) -> Iterator[None]:
    """Make Accelerate start several processes on the CPU: its own switch for that starts one (accelerate#2741)."""
    from accelerate.utils import patch_environment

    variables = {"accelerate_use_cpu": "true"} if on_host else {}
    if on_host and sys.platform == "linux" and "GLOO_SOCKET_IFNAME" not in os.environ:
        variables["gloo_socket_ifname"] = "lo"  # the machine's name may belong to no interface
    with patch_environment(**variables):
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the launcher from logging the failed rank's error again."""
    logger = logging.getLogger(_LOGGER)
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


# The options of `--parallel` as Accelerate's plugins and handlers.


#: A rank that waits longer than this in a collective waits for one that will not come.
TIMEOUT: Final = timedelta(minutes=10)
#: torch's own bucket, in MiB.
BUCKET_MB: Final = 25
#: Set by `accelerate launch` for engines that `--parallel` does not have.
_OTHER_ENGINES: Final = (("ACCELERATE_USE_DEEPSPEED", "DeepSpeed"), ("ACCELERATE_USE_MEGATRON_LM", "Megatron-LM"))


def parallel_of(options: RunOptions) -> str:
    """Return the requested kind of parallelism: by the option, else by `accelerate launch`, else data parallelism."""
    for variable, name in _OTHER_ENGINES:
        if _is_set(variable):
            raise UsageError(
                f"accelerate launch requests {name}, which is not supported here - use {spelled(PARALLEL, FSDP2)}"
            )
    if options.parallel is not None:
        return options.parallel
    if not _is_set("ACCELERATE_USE_FSDP"):
        return DDP
    if os.environ.get("FSDP_VERSION", "1") != "2":
        raise UsageError("accelerate launch requests FSDP version 1 - use --fsdp_version 2")
    return CHECKPOINTED if _is_set("FSDP_ACTIVATION_CHECKPOINTING") else FSDP2


def options_from_launcher(options: RunOptions) -> RunOptions:
    """Fill in mixed precision and accumulation from `accelerate launch` for options that do not set them.

    Raises `UsageError` for unsupported settings.
    """
    compiler = os.environ.get("ACCELERATE_DYNAMO_BACKEND", "no").lower()
    if compiler != "no":
        raise UsageError(f"accelerate launch requests the compiler {compiler} - use {spelled(COMPILE, True)} instead")
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
    """Return whether FSDP2 shards the weights over the ranks."""
    return parallel in (FSDP2, CHECKPOINTED, HSDP)


def sharding_of(options: RunOptions, parallel: str) -> Any:
    """Return Accelerate's plugin for FSDP2; `None` if it does not shard the weights."""
    if not is_sharded(parallel):
        return None
    from accelerate.utils import FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        cpu_ram_efficient_loading=False,
        activation_checkpointing=parallel == CHECKPOINTED,
    )
    if options.amp is not None:
        plugin.set_mixed_precision(options.amp)
    return plugin


def mesh_of(parallel: str, world_size: int) -> Any:
    """Return Accelerate's device mesh configuration; `None` if the ranks form one group."""
    if parallel not in (HSDP, TP):
        return None
    try:
        from accelerate import ParallelismConfig
    except ImportError:
        raise UsageError(f"{spelled(PARALLEL, parallel)} needs accelerate 1.15 or later - update it") from None
    if parallel == TP:
        return ParallelismConfig(tp_size=world_size)
    return ParallelismConfig(dp_replicate_size=2, dp_shard_size=world_size // 2)


#: A rank whose step failed waits this long for the others to report failure too; then it raises its own error.
_FAILED_TOO_SECONDS: Final = 20.0
_FAILED, _DONE = b"failed", b"done"


class Ranks(Struct, kw_only=True):
    """This process among the ranks of its process group."""

    rank: int
    world_size: int
    #: This rank's device.
    device: str
    #: How many steps were tried together.
    tries: int = 0

    def longest(self, number: int) -> int:
        """Return the largest of the ranks' numbers."""
        import torch
        from torch import distributed

        largest = torch.tensor(number, dtype=torch.int64, device=self.device)
        distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
        return int(largest.item())

    def gathered(self, part: bytes) -> Sequence[bytes]:
        """Return the parts of all ranks, in their order, on the first rank; nothing on the others."""
        from torch import distributed

        parts: list[Any] | None = [None] * self.world_size if self.rank == 0 else None
        distributed.gather_object(part, parts)
        return parts or ()

    def all_gathered(self, part: Any) -> list[Any]:
        """Return the parts of all ranks, in their order."""
        from torch import distributed

        parts: list[Any] = [None] * self.world_size
        distributed.all_gather_object(parts, part)
        return parts

    def all_failed(self, *, failed: bool) -> bool:
        """Return whether a try failed on every rank; raises `CaptureError` if it failed only on others.

        It bypasses collectives, in which successful ranks may still wait for this one.
        """
        from torch.distributed.distributed_c10d import _get_default_store

        self.tries += 1
        names = [f"opanatomy/try-{self.tries}/{rank}" for rank in range(self.world_size)]
        store: Any = _get_default_store()  # works while collectives wait
        store.set(names[self.rank], _FAILED if failed else _DONE)
        if failed:
            try:
                store.wait(names, timedelta(seconds=_FAILED_TOO_SECONDS))
            except Exception:
                return False
        failures = [rank for rank, name in enumerate(names) if store.get(name) == _FAILED]
        if failed:
            return len(failures) == self.world_size
        if failures:
            which = f"rank {failures[0]}" if len(failures) == 1 else f"ranks {', '.join(map(str, failures))}"
            raise CaptureError(
                f"the step failed only on {which}, which cannot rerun it without the other ranks - see the output of"
                f" {which}"
            )
        return False


class RankGroup(Struct, frozen=True, kw_only=True):
    """This process among the ranks of a launch, and the Accelerate objects that train on them."""

    ranks: Ranks
    accelerator: Accelerator
    #: A value of `--parallel`.
    parallel: str


def ranks_of_group(device: str) -> Ranks:
    """Return the ranks of the existing process group."""
    from torch import distributed

    return Ranks(rank=distributed.get_rank(), world_size=distributed.get_world_size(), device=device)


@contextmanager
def rank_group(options: RunOptions, place: Launched) -> Iterator[RankGroup]:
    """Yield the ranks of this launch, in a process group that is left at the end."""
    from torch import distributed

    with quiet_libraries():
        group = _join(options, place)
    yield group
    # After an error the others stay connected until this rank has reported it.
    distributed.barrier()
    with suppress(Exception):
        distributed.destroy_process_group()


def _join(options: RunOptions, place: Launched) -> RankGroup:
    """Join the ranks of this launch once all are present; raise `UsageError` for an unsupported run."""
    try:
        from accelerate import Accelerator
        from accelerate.utils import (
            DistributedDataParallelKwargs,
            DistributedType,
            GradientAccumulationPlugin,
            InitProcessGroupKwargs,
        )
    except ImportError as error:
        raise CaptureError(
            f"training in {place.world_size} processes needs accelerate, which is not installed - pip install"
            " accelerate"
        ) from error
    if options.device not in ("auto", "cpu", "cuda"):
        raise UsageError(
            f"--device {options.device} would apply to all ranks - leave it out, so that each uses its own"
        )
    parallel = parallel_of(options)
    on_host = choose_device(options.device) == "cpu"
    if not on_host:
        check_devices(place.local_world_size)
    if options.texts is not None:
        raise UsageError("--texts works only with a single process - leave it out, or run one process")
    mesh, sharding = mesh_of(parallel, place.world_size), sharding_of(options, parallel)
    os.environ.pop("ACCELERATE_USE_FSDP", None)  # set by the launcher: the requested plugins are passed instead
    accumulation = GradientAccumulationPlugin(num_steps=options.accumulate, sync_with_dataloader=False)
    handlers: list[Any] = [InitProcessGroupKwargs(timeout=TIMEOUT)]
    if parallel == DDP:
        buckets = DistributedDataParallelKwargs(
            bucket_cap_mb=options.bucket_mb or BUCKET_MB, gradient_as_bucket_view=options.bucket_view
        )
        handlers.append(buckets)
    accelerator = Accelerator(
        cpu=on_host,
        mixed_precision="no",
        dynamo_backend="no",
        gradient_accumulation_plugin=accumulation,
        kwargs_handlers=handlers,
    )
    # Accelerate's constructor silently ignores the plugins on the CPU.
    state: Any = accelerator.state
    if mesh is not None:
        state.parallelism_config = mesh
        state.device_mesh = mesh.get_device_mesh(accelerator.device.type)
    if sharding is not None:
        state.distributed_type = DistributedType.FSDP
        state.fsdp_plugin = sharding
    device = "cpu" if accelerator.device.type == "cpu" else str(accelerator.device)
    return RankGroup(ranks=ranks_of_group(device), accelerator=accelerator, parallel=parallel)


# A process that was meant to be one of several: `accelerate launch --cpu --num_processes 2` silently starts one.


class Meant(Struct, frozen=True, kw_only=True):
    """The number of processes and the command given to `accelerate launch`."""

    processes: int
    command: tuple[str, ...]


def single_process_warnings() -> tuple[str, ...]:
    """Return a warning for a single process whose launcher was configured for several; empty otherwise."""
    if launched() is not None or not any(name.startswith("ACCELERATE_") for name in os.environ):
        return ()
    try:
        import psutil  # Accelerate needs it too

        parent = psutil.Process().parent()
        command = [] if parent is None else parent.cmdline()
    except Exception:
        return ()
    meant = meant_by(command)
    if meant is None or meant.processes < 2:
        return ()
    several = ["accelerate", "launch", "--multi_gpu", "--num_processes", str(meant.processes), *meant.command]
    return (
        f"accelerate launch started 1 process instead of the requested {meant.processes}, as it does without several"
        f" GPUs (accelerate#2741) - to start them all, run ACCELERATE_USE_CPU=true {shlex.join(several)}",
    )


def meant_by(command: Sequence[str]) -> Meant | None:
    """Parse a command line of `accelerate launch` and its configuration file; `None` for another command."""
    words = _words_after_launch(command)
    if words is None:
        return None
    try:
        from accelerate.commands.launch import _validate_launch_command, launch_command_parser

        with _silence():
            arguments: Any = launch_command_parser().parse_args(words)
            arguments = _validate_launch_command(arguments)[0]
    except (Exception, SystemExit):
        return None
    script = (*(("--module",) if arguments.module else ()), arguments.training_script, *arguments.training_script_args)
    return Meant(processes=arguments.num_processes or 1, command=tuple(script))


def _words_after_launch(command: Sequence[str]) -> list[str] | None:
    """Return the words after `accelerate launch`, however it was invoked."""
    for index, word in enumerate(command[:4]):
        name = PurePath(word).name
        if name in ("accelerate-launch", "accelerate.commands.launch") or word.endswith("commands/launch.py"):
            return list(command[index + 1 :])
        if name in ("accelerate", "accelerate_cli.py", "accelerate.commands.accelerate_cli"):
            return list(command[index + 2 :]) if command[index + 1 : index + 2] == ["launch"] else None
    return None


@contextmanager
def _silence() -> Iterator[None]:
    """Keep Accelerate from warning again about settings left out."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        logging.disable(before)
