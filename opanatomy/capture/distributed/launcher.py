"""Accelerate's own launcher, called: the command again on each of several processes."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from opanatomy.capture.device.environment import choose_device
from opanatomy.errors import CaptureError, SaidByRank, UsageError

#: torch's launcher logs in many lines what the rank that failed has said in one.
_LOGGER: Final = "torch.distributed.elastic"


def launch(command: Sequence[str], processes: int, device: str) -> None:
    """Run `opanatomy` with the words of `command` on that many processes, and wait for them.

    `SaidByRank` where one failed, with its exit code: it has said why.
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
        raise UsageError(f"--device {device} is one for all processes: leave it out, each takes its own")
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
        raise _said(error) from error
    except SignalException as error:
        interrupted = int(error.sigval) == signal.SIGINT  # which the first rank says
        said = "" if interrupted else f"ended by {signal.Signals(error.sigval).name}, and its processes with it"
        raise SaidByRank(said, 128 + int(error.sigval)) from error


def check_devices(local_processes: int) -> None:
    """Refuse more processes on this machine than it has GPUs."""
    import torch

    count = torch.cuda.device_count()
    if local_processes > count:
        raise UsageError(
            f"{local_processes} processes on this machine take a GPU each, and it has {count} - start fewer, or add"
            " --device cpu"
        )


def _said(error: Any) -> SaidByRank:
    """The end of the rank that failed first; one that a signal ended could not say so."""
    rank, failure = error.get_first_failure()
    if failure.exitcode >= 0:
        return SaidByRank("", failure.exitcode)
    name = signal.Signals(-failure.exitcode).name
    return SaidByRank(f"rank {rank} was ended by {name} - was there memory for all ranks?", 1)


@contextmanager
def environment(on_host: bool) -> Iterator[None]:
    """What has Accelerate start several processes on the CPU: its own switch for that starts one (accelerate#2741)."""
    from accelerate.utils import patch_environment

    variables = {"accelerate_use_cpu": "true"} if on_host else {}
    if on_host and sys.platform == "linux" and "GLOO_SOCKET_IFNAME" not in os.environ:
        variables["gloo_socket_ifname"] = "lo"  # the machine's name may be that of no interface
    with patch_environment(**variables):
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the launcher from logging what the rank that failed says."""
    logger = logging.getLogger(_LOGGER)
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
