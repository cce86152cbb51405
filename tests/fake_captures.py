"""Captures on the fake accelerator, in a process of their own: `python -m tests.fake_captures FOLDER CASE ...`.

Each case is `MODEL/VARIANT` with the model's name without its owner; `FOLDER/MODEL-VARIANT.json` is its trace, without
what the stand-in itself runs to make a result; `FOLDER/thread-VARIANT.json` are of the first steps of the process, and
`FOLDER/facts.json` says what was seen of the device.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct, field
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.checkpoint import set_checkpoint_early_stop
from transformers import masking_utils

import opanatomy.capture.run.export
import opanatomy.capture.run.step_runner
from opanatomy.capture.model.workload import Prepared, prepare
from opanatomy.capture.run.recorder import record_step
from opanatomy.capture.silence import quiet_libraries
from opanatomy.capture.step.ranges import module_ranges
from opanatomy.capture.subject import Subject
from opanatomy.options import RunOptions
from opanatomy.records.workload import Workload
from tests.fake_device import DEVICE, fake_device
from tests.tiny import TINY, tiny_request

NAMES = {name.split("/")[1]: name for name in TINY}
_NO_ATTENTION = ("deberta", "mamba", "resnet")


class Variant(Struct, frozen=True):
    """What of a request and of the options makes a variant."""

    request: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


VARIANTS = {
    "eager": Variant(),
    "sdpa": Variant({"attention": "sdpa"}),
    "bf16": Variant({"dtype": "bfloat16"}),
    "amp-bf16": Variant({}, {"amp": "bf16"}),
    "amp-fp16": Variant({}, {"amp": "fp16"}),
    "non-reentrant": Variant({"checkpointing": "non-reentrant"}),
    "reentrant": Variant({"checkpointing": "reentrant"}),
    "adamw": Variant({}, {"optimizer": "adamw"}),
    "inference": Variant({"inference": True}, {"inference": True}),
}


def prepared(name: str, variant: str, device: str) -> Prepared:
    """The tiny model `name` as a variant wants it."""
    request = {"attention": "eager", **VARIANTS[variant].request}
    if any(word in name for word in _NO_ATTENTION):
        request.pop("attention")
    one = prepare(tiny_request(NAMES[name], device=device, **request))
    if variant == "sdpa":
        _without_dropout(one.module)
    return one


def _without_dropout(module: torch.nn.Module) -> None:
    """Inside of torch's attention dropout is the device's own, whatever `like_the_device` does."""
    for one in module.modules():
        if isinstance(one, torch.nn.Dropout):
            one.p = 0.0
        for name in ("attention_dropout", "dropout", "dropout_prob"):
            if isinstance(getattr(one, name, None), float):
                setattr(one, name, 0.0)


def capture(case: str, device: str, path: Path) -> None:
    """The trace of a case, as `record_step` writes it."""
    name, _, variant = case.partition("/")
    with one_timed_step(), fake_device() if device == DEVICE else like_the_device():
        one = prepared(name, variant, device)
        checkpointing = VARIANTS[variant].request.get("checkpointing")
        options = RunOptions(device=device, warmup=0, checkpointing=checkpointing, **VARIANTS[variant].options)
        # Whether the operator at which recomputation stops ran is not in a trace without kernels.
        with set_checkpoint_early_stop(False):
            record_step(Subject(module=one.module, inputs=one.inputs, workload=Workload()), options, path)
    if device == DEVICE:
        without_fake_kernels(path)


@contextmanager
def one_timed_step() -> Iterator[None]:
    """Times of a fake device tell nothing: one unprofiled step is enough, and torch need not sum them up."""
    run: Any = opanatomy.capture.run.step_runner
    export: Any = opanatomy.capture.run.export
    before = run._TIMED_STEPS, export.profiler_times_ns
    run._TIMED_STEPS, export.profiler_times_ns = 1, lambda profiler, *, on_device: {}
    try:
        yield
    finally:
        run._TIMED_STEPS, export.profiler_times_ns = before


@contextmanager
def like_the_device() -> Iterator[None]:
    """Dropout and attention by the operators that the fake device has: on the CPU dropout has none of its own, and
    attention without a mask is fused. Masks are made whatever is in them, as of fake values."""
    before = torch.nn.functional.dropout

    def dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        return torch.native_dropout(x, p, True)[0] if training and 0 < p < 1 else before(x, p, training, inplace)

    torch.nn.functional.dropout = dropout
    is_tracing = masking_utils.is_tracing
    masking_utils.is_tracing = lambda _=None: True
    try:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            yield
    finally:
        torch.nn.functional.dropout = before
        masking_utils.is_tracing = is_tracing


# ------------------------------------------------------------------------------------------ what is the stand-in's own


def without_fake_kernels(path: Path) -> None:
    """Take out of a trace what runs to make a fake result: all below an operator that the mode answers. A kernel of a
    device is no event of the host either."""
    document = json.loads(path.read_text())
    threads: dict[Any, list[dict[str, Any]]] = {}
    for event in document["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in ("cpu_op", "user_annotation"):
            threads.setdefault(event["tid"], []).append(event)
    gone = {id(event) for events in threads.values() for event in _of_the_mode(events)}
    document["traceEvents"] = [event for event in document["traceEvents"] if id(event) not in gone]
    path.write_text(json.dumps(document))


def _of_the_mode(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    events.sort(key=lambda event: (event["ts"], -event["dur"]))
    parents: list[int] = []
    open_rows: list[int] = []
    for row, event in enumerate(events):
        while open_rows and events[open_rows[-1]]["ts"] + events[open_rows[-1]]["dur"] <= event["ts"]:
            open_rows.pop()
        parents.append(open_rows[-1] if open_rows else -1)
        open_rows.append(row)
    is_mode = [event["name"] == "PythonDispatchMode" for event in events]
    answered = {parents[row] for row in range(len(events)) if is_mode[row] and not _is_range(events[parents[row]])}
    gone: set[int] = set()
    for row, event in enumerate(events):
        # A range is opened by an operator, which the mode answers too: what is in it is not the mode's.
        if not _is_range(event) and (is_mode[row] or parents[row] in answered or parents[row] in gone):
            gone.add(row)
            yield event


def _is_range(event: dict[str, Any]) -> bool:
    return event["cat"] == "user_annotation" or str(event["name"]).startswith("opanatomy.")


# --------------------------------------------------------------------------------------------- first steps of a process


def foreign_step(one: Prepared, path: Path, backward: Callable[[torch.Tensor], None], whole: bool = False) -> None:
    """The trace of one step without ranges of phases; with `whole` the whole model is one checkpoint."""
    config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    activities = [ProfilerActivity.CPU]
    with (
        profile(activities=activities, record_shapes=True, experimental_config=config) as profiler,
        module_ranges(one.module),
        record_function("ProfilerStep#0"),
    ):
        if whole:
            loss = torch.utils.checkpoint.checkpoint(
                lambda: one.module(**one.inputs)["loss"], use_reentrant=False, preserve_rng_state=False
            )
        else:
            loss = one.module(**one.inputs)["loss"]
        backward(loss)
        del loss
    profiler.export_chrome_trace(str(path))


def in_new_thread(run: Callable[[], None], numbers: int = 0) -> None:
    """Run it in a thread whose sequence numbers begin with `numbers`: each thread counts its own from 0."""
    failed: list[BaseException] = []

    def body() -> None:
        try:
            x = torch.zeros((), requires_grad=True)
            for _ in range(numbers):
                torch.neg(x)
            run()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def numbers_of(path: Path) -> tuple[set[int], set[int]]:
    """The sequence numbers of operators: on the threads that run nodes, and on the others."""
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("cat") == "cpu_op"]
    of_nodes = {event["tid"] for event in events if event["name"].startswith("autograd::engine::")}
    found: tuple[set[int], set[int]] = (set(), set())
    for event in events:
        if event["args"].get("Fwd thread id") == 0 and "Sequence number" in event["args"]:
            found[event["tid"] not in of_nodes].add(event["args"]["Sequence number"])
    return found


def _first_steps(folder: Path) -> None:
    """Traces in which the numbers of the device thread's recomputation are those of the forward again."""
    device_next = 0
    for kind in ("reentrant", "eager", "non-reentrant", "whole"):
        path = folder / f"thread-{kind}.json"

        def step(kind: str = kind, path: Path = path) -> None:
            with fake_device():
                one = prepared("bert-base-uncased", "eager" if kind == "whole" else kind, DEVICE)
                foreign_step(one, path, torch.Tensor.backward, whole=kind == "whole")

        in_new_thread(step, device_next)
        without_fake_kernels(path)
        device_next = max({device_next - 1} | numbers_of(path)[0]) + 1


# ------------------------------------------------------------------------------------------------------ what was seen


def _facts() -> dict[str, Any]:
    """What the device does that no real one may do otherwise."""
    facts: dict[str, Any] = {}
    with fake_device():
        x = torch.zeros(3, 4, device=DEVICE, requires_grad=True)
        try:
            x + torch.zeros(3, 4)
        except RuntimeError as error:
            facts["mismatch"] = str(error)
        threads: list[int] = []
        x.register_hook(lambda _: threads.append(threading.get_ident()))
        (x * 2).sum().backward()
        facts["own_thread"] = threads != [threading.get_ident()]
        facts["gradient_on"] = str(x.grad.device if x.grad is not None else None)
    return facts


def main(folder: Path, cases: list[str]) -> None:
    """Write the traces of the cases and the facts into the folder."""
    with quiet_libraries():
        _first_steps(folder)
        (folder / "facts.json").write_text(json.dumps(_facts()))
        for case in cases:
            capture(case, DEVICE, folder / f"{case.replace('/', '-')}.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
