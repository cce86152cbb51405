"""What `opanatomy run` costs a step that it does not record: steps with and without it, in pairs.

    python benchmarks/script_cost.py [PAIRS [BATCH [WIDTH]]]

A batch of 256 is a step of some 20 ms on one core, one of 32 a step of some 5 ms.

Both steps of a pair are of the same model on a batch of a DataLoader, one after the other, in an order drawn for each
pair. One is followed as in a script whose recorded steps are over: its optimizer's step is wrapped, the loader and the
garbage collector are on the clock. Prints the median of the paired ratios with the 95 % interval that the binomial
distribution gives for it.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import time
from contextlib import ExitStack
from math import sqrt
from statistics import median

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, dataloader

from opanatomy.capture.loop.calls import Calls
from opanatomy.capture.loop.clock import Clock
from opanatomy.capture.loop.updates import Updates
from opanatomy.script import RunSettings, Script

LAYERS: int = 4


class Plain(torch.optim.AdamW):
    """An optimizer made before anything is followed."""


def made(kind: type[torch.optim.Optimizer], model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of a class, whose step torch wraps as its first one is made."""
    return kind(model.parameters(), lr=1e-4)  # type: ignore[call-arg]


def main(pairs: int, batch: int = 256, width: int = 512) -> None:
    """Measure the pairs and print the ratio."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(width, width), nn.ReLU())))
    plain = made(Plain, model)
    settings = RunSettings(
        process=os.getpid(),
        path=None,
        folder=os.curdir,
        trace="",
        numbered=False,
        command="",
        words=(),
        steps=3,
        after=None,
        stop=False,
        memory=False,
        lines=False,
        check=False,
        redact=False,
        force=False,
    )
    script, always = Script(settings), ExitStack()
    calls = script._calls = Calls(script._step_ended, script._steps_changed)
    updates = Updates(script._update_ended, made=calls.stop)
    clock = Clock(lambda: updates.update_ns)
    clock.on_backward = script._backward_ended
    script._reason, script._clock, script._updates = "its recorded steps are over", clock, updates
    updates.install(always)
    followed = made(type("Followed", (torch.optim.AdamW,), {}), model)
    loader = iter(DataLoader(TensorDataset(torch.randn((2 * pairs + 20) * batch, width)), batch_size=batch))

    places = [
        (dataloader._BaseDataLoaderIter, "__next__"),
        (DataLoader, "__iter__"),
        (nn.Module, "train"),
        (torch.autograd, "_engine_run_backward"),
    ]
    alone = [vars(owner)[name] for owner, name in places]
    clock.install(always)
    wrapped = [vars(owner)[name] for owner, name in places]
    collects = gc.callbacks[-1]

    def step(is_followed: bool) -> int:
        # Set in both, so that what comes before a step is the same; the wrappers are those of all steps, as in a run.
        for (owner, name), function in zip(places, wrapped if is_followed else alone, strict=True):
            setattr(owner, name, function)
        gc.callbacks[:] = [collects] if is_followed else []
        optimizer = followed if is_followed else plain
        begun = time.perf_counter_ns()
        (inputs,) = next(loader)
        loss = nn.functional.mse_loss(model(inputs), inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return time.perf_counter_ns() - begun

    for _ in range(10):
        step(False), step(True)
    ratios = []
    for _ in range(pairs):
        order = [True, False]
        random.shuffle(order)
        took = {is_followed: step(is_followed) for is_followed in order}
        ratios.append(took[True] / took[False])
    ratios.sort()
    half = 0.98 * sqrt(pairs)  # 1.96 standard deviations of the number of pairs below the median
    low, high = ratios[int(pairs / 2 - half)], ratios[min(int(pairs / 2 + half) + 1, pairs - 1)]
    run = clock.read()
    assert run is not None
    followed_ns = f"{updates.count} steps followed, the median of {run.median_ns / 1e6:.1f} ms between their ends"
    print(f"{pairs} pairs: {median(ratios):.4f} of a step without, 95 % of {low:.4f} to {high:.4f}; {followed_ns}")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:] or ["200"]))
