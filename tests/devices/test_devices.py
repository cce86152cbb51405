"""The devices of a run: the current one, those of a sharded module, weights that are made where they are used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import opanatomy
from opanatomy.capture.device.accelerators import current_device, devices_of
from opanatomy.capture.device.accelerators import synchronize_all as synchronize
from opanatomy.capture.model.building import build_module
from opanatomy.capture.run import profile, step_runner
from opanatomy.devices.ceilings import ceilings_for
from opanatomy.devices.sheets import GIB
from opanatomy.options import RunOptions
from opanatomy.records.workload import Environment
from tests.support.fake_cuda import FakeGpu, FakeMachine, install


class Watched(nn.Linear):
    """Notes each forward pass."""

    def __init__(self, order: list[str]) -> None:
        super().__init__(2, 2)
        self.order = order

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.order.append("step")
        return super().forward(x)


TWO = (FakeGpu(), FakeGpu(uuid="22222222-0000-0000-0000-000000000000"))

# ----------------------------------------------------------------------------------------------------- current device


def test_the_device_of_the_run_is_current_and_put_back_and_each_gpu_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = install(FakeMachine(gpus=TWO, cuda_order=(0, 1)), monkeypatch)
    with current_device("cuda:1"):
        assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 0
    with current_device("cpu"):
        pass
    synchronize(("cuda:0", "cuda:1"))
    synchronize(("cpu",))
    assert machine.calls == ["current cuda:1", "current cuda:0", "synchronize cuda:0", "synchronize cuda:1"]


def test_a_model_is_built_and_run_with_its_device_current(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = install(FakeMachine(gpus=TWO, cuda_order=(0, 1)), monkeypatch)
    current: list[int] = []
    prepared = SimpleNamespace(
        module=nn.Linear(1, 1),
        inputs=(),
        name="m",
        architecture="Linear",
        source="function",
        task="function",
        batch=1,
        sequence_length=None,
        dtype="float32",
        attention=None,
        seed=0,
        changes=(),
        texts=None,
    )

    def build(options: RunOptions) -> Any:
        current.append(torch.cuda.current_device())
        return None, prepared

    # There is no second GPU to build and to run on: these are where it has to be current.
    monkeypatch.setattr(profile, "_prepared", build)
    monkeypatch.setattr(profile, "record_step", lambda *arguments: current.append(torch.cuda.current_device()))
    profile.capture_model(
        RunOptions(model="m", device="cuda:1"),
        tmp_path / "t.json",
        opanatomy.capture.run.recorder.NullProgress(),
        print,
    )
    assert current == [1, 1]
    touched = [call for call in machine.calls if call.startswith(("touch", "current"))]
    # Nothing of cuda:0 is touched: a context on it would take its memory.
    assert touched == ["touch cuda:1", "touch cuda:1", "current cuda:1", "current cuda:0"]


def test_a_borrowed_module_leaves_the_current_device(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    @contextmanager
    def guard(device: str) -> Iterator[None]:
        order.append(f"enter {device}")
        yield
        order.append(f"leave {device}")

    # A guard that notes what runs inside of it.
    monkeypatch.setattr(step_runner, "current_device", guard)
    opanatomy.profile(Watched(order), torch.ones(1, 2), warmup=1)
    assert (order[0], order[-1]) == ("enter cpu", "leave cpu")
    assert set(order[1:-1]) == {"step"}


# ------------------------------------------------------------------------------------------------------------- shards


class OnDevices(nn.Module):
    """What `devices_of` asks a module; there are no tensors on a GPU here."""

    def __init__(self, *places: str, hf_device_map: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.places = places
        if hf_device_map is not None:
            self.hf_device_map = hf_device_map

    def parameters(self, recurse: bool = True) -> Any:
        return iter([SimpleNamespace(device=torch.device(place)) for place in self.places])


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (OnDevices("cuda:0", "cuda:0"), ("cuda:0",)),
        (OnDevices("cuda:0", "cuda:2", "cuda:1", "cpu"), ("cuda:0", "cuda:1", "cuda:2")),
        (OnDevices("cuda:0", hf_device_map={"a": 0, "b": 3, "c": "cpu", "d": "disk"}), ("cuda:0", "cuda:3")),
        (OnDevices("cuda:0", hf_device_map={"": torch.device("cuda:1")}), ("cuda:0", "cuda:1")),
        (OnDevices("cuda:0", hf_device_map={"": torch.device("cuda")}), ("cuda:0",)),
        (OnDevices("cuda:1", hf_device_map={"": "cuda"}), ("cuda:1",)),
        (OnDevices("xpu:0", hf_device_map={"a": 0, "b": 1}), ("xpu:0", "xpu:1")),
        (nn.Linear(1, 1), ("cpu",)),
    ],
)
def test_every_device_of_a_sharded_module(module: nn.Module, expected: tuple[str, ...]) -> None:
    assert devices_of(module, expected[0]) == expected


def test_all_devices_are_waited_for_around_each_reading_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last layers of a sharded model run on its last device: the first alone is done before them."""
    order: list[str] = []

    clock = step_runner.time.perf_counter_ns
    # Two devices that are not here, and a clock that notes when it is read.
    monkeypatch.setattr(step_runner, "devices_of", lambda module, device: ("cpu", "cuda:1"))
    monkeypatch.setattr(step_runner, "synchronize", lambda held: order.append(f"wait {' '.join(held)}"))
    monkeypatch.setattr(step_runner.time, "perf_counter_ns", lambda: (order.append("clock"), clock())[1])
    anatomy = opanatomy.profile(Watched(order), torch.ones(1, 2), warmup=1)
    text = " ".join(order)
    steps = order.count("step")
    assert steps > 3
    assert text.count("step wait cpu cuda:1 clock") == steps
    profiled = 1  # begins with its range's clock, after the wait at the end of the step before it
    assert text.count("wait cpu cuda:1 clock step wait cpu cuda:1 clock") == steps - profiled
    assert "the model is on cpu, cuda:1, but peak memory covers only cpu" in anatomy.warnings


# ------------------------------------------------------------------------------------------------------------ weights


@pytest.mark.parametrize(
    ("device", "accelerate", "placement"),
    [("cuda:1", True, {"": "cuda:1"}), ("cuda:1", False, None), ("cpu", True, None)],
)
def test_saved_weights_are_read_onto_the_device(
    device: str, accelerate: bool, placement: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host must not have to hold a model that only the GPU has room for."""
    asked: list[dict[str, Any]] = []

    class Loaded(nn.Linear):
        def to(self, *arguments: Any, **options: Any) -> Any:
            return self

    def from_pretrained(location: str, **options: Any) -> nn.Module:
        asked.append(options)
        return Loaded(1, 1)

    monkeypatch.setattr("transformers.utils.is_accelerate_available", lambda *arguments: accelerate)
    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", from_pretrained)
    config = transformers.BertConfig()
    build_module(
        config, "AutoModel", dtype="float32", device=device, attention=None, pretrained="/", trust_remote_code=False
    )
    assert [options.get("device_map") for options in asked] == [placement]


def test_random_weights_are_made_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """`meta` stands for a device with no room on the host: nothing is made elsewhere and moved."""
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, vocab_size=99
    )
    made: list[str] = []
    register = nn.Module.register_parameter

    def watched(self: nn.Module, name: str, parameter: Any) -> None:
        if parameter is not None:
            made.append(parameter.device.type)
        register(self, name, parameter)

    monkeypatch.setattr(nn.Module, "register_parameter", watched)
    build_module(
        config, "AutoModel", dtype="float32", device="meta", attention=None, pretrained=None, trust_remote_code=False
    )
    assert made
    assert set(made) == {"meta"}


# ----------------------------------------------------------------------------------------------------------- ceilings


A100, GFX = "NVIDIA A100-SXM4-80GB", "AMD Radeon Graphics"


@pytest.mark.parametrize(
    ("name", "kind", "gib", "multiprocessors", "device", "why_not"),
    [
        # ROCm's traces have no numSms, and some of its devices no name: our own record tells
        (GFX, "rocm", 192, 304, "Instinct MI300X", ""),
        (GFX, "rocm", 192, None, None, ""),
        (A100, "cuda", 80, 108, "A100 SXM4 80 GB", ""),
        (A100, "cuda", 80, 42, None, f"{A100} has 42 multiprocessors here but 108 on its"),
    ],
)
def test_ceilings_are_matched_on_our_own_record(
    name: str, kind: str, gib: int, multiprocessors: int | None, device: str | None, why_not: str
) -> None:
    found = ceilings_for(
        Environment(device=name, device_kind=kind, device_memory_bytes=gib * GIB, multiprocessors=multiprocessors)
    )
    assert (found.ceilings and found.ceilings.device) == device
    assert (found.why_not or "").startswith(why_not)
