"""What the second count of a capture costs: a step under the dispatch mode that counts, against the plain step.

    python benchmarks/observing.py [--repeats N] [MODEL ...]

Each repeat runs the step plain, under a dispatch mode that does nothing, and under ours, in turns. Printed are the
processor times of the fastest of each, the cost of a call, and what working the FLOPs out afterwards takes. It is paid
in the warm-up alone: nothing of it is in the timed and profiled steps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from opanatomy.capture.model.workload import prepare
from opanatomy.capture.run.observer import Observation, observing
from opanatomy.options import RunOptions
from opanatomy.records.taxonomy import Phase

#: Small in all but the number of calls: what a call costs does not depend on its size.
MODELS = {
    "google-bert/bert-base-uncased": {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2},
    "openai-community/gpt2": {"n_embd": 64, "n_head": 2},
}


class Bare(TorchDispatchMode):
    """Calls the operator, which is what a dispatch mode costs at least."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=40)
    arguments = parser.parse_args()
    for name in arguments.models:
        report(name, arguments.repeats)


def report(name: str, repeats: int) -> None:
    settings = (("vocab_size", "512"), *((key, str(value)) for key, value in MODELS.get(name, {}).items()))
    prepared = prepare(RunOptions(device="cpu", model=name, batch=2, seq=32, layers=4, settings=settings))

    def step() -> None:
        prepared.module.zero_grad()
        prepared.module(**prepared.inputs).loss.backward()

    seen: list[Observation] = []

    @contextmanager
    def ours() -> Iterator[None]:
        with observing(lambda: Phase.FORWARD) as observation:
            yield
        seen.append(observation)

    ways: dict[str, Callable[[], AbstractContextManager[Any]]] = {"plain": nullcontext, "bare": Bare, "counting": ours}
    times = {way: min(taken(step, around) for _ in range(repeats)) for way, around in ways.items()}
    begin = time.process_time()
    counts = seen[-1].counts()
    summing = time.process_time() - begin
    calls = sum(count.calls for count in counts)
    each = {way: (times[way] - times["plain"]) / calls * 1e6 for way in ("bare", "counting")}
    print(
        f"{name}: {calls} calls a step, {times['plain'] * 1e3:.1f} ms plain, {times['counting'] * 1e3:.1f} ms counted"
        f" ({times['counting'] / times['plain']:.2f} x): {each['counting']:.1f} us a call, of them"
        f" {each['bare']:.1f} us for any dispatch mode; FLOPs afterwards {summing * 1e3:.1f} ms"
    )


def taken(step: Callable[[], None], around: Callable[[], AbstractContextManager[Any]]) -> float:
    begin = time.process_time()
    with around():
        step()
    return time.process_time() - begin


if __name__ == "__main__":
    main()
