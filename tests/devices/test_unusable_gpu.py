"""What a first user of a GPU meets before a step has run: a GPU that is not used, cannot be used, or is taken."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pynvml
import pytest
import torch
from msgspec.structs import replace

from opanatomy.__main__ import main
from opanatomy.capture.device import environment, start
from opanatomy.capture.device.environment import choose_device, no_gpu_note, processor_name
from tests.support import fake_cuda
from tests.support.fake_cuda import GIB, FakeGpu, FakeMachine, FakeProcess, install

H100 = FakeGpu()
V100 = FakeGpu(name="Tesla V100-SXM2-16GB", capability=(7, 0), total_bytes=16 * GIB, multiprocessors=80)
BERT = ["profile", "google-bert/bert-base-uncased", "--layers", "1"]
VERSION = torch.__version__


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own, on a machine on which Linux shows no GPU and no test has been warned yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(environment, "_warning", None)
    monkeypatch.setattr(environment, "_PROC", tmp_path / "gpus")
    monkeypatch.setattr(environment, "_KFD", tmp_path / "kfd")


def line_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr that the command ends with; what else it prints are its stages."""
    assert main(arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith("opanatomy: ") and "building" not in line]
    assert len(lines) == 1, err
    assert "Traceback" not in err
    return lines[0].removeprefix("opanatomy: ")


# --------------------------------------------------------------------------------------------------- cannot be used

BUSY = replace(
    H100,
    compute_mode=3,
    used_bytes=12 * GIB,
    processes=(FakeProcess(pid=4242, name="/usr/bin/python3", used_bytes=11 * GIB),),
)
FULL = replace(
    H100,
    used_bytes=80 * GIB,
    processes=tuple(FakeProcess(pid=100 + at, name="python", used_bytes=(40 >> at) * GIB) for at in range(5)),
)
SAID = "(CUDA error: out of memory)"

FAILURES = {
    "no kernel image": (
        FakeMachine(gpus=(V100,), kernel_error=fake_cuda.NO_KERNEL_IMAGE),
        f"cuda:0 cannot run this torch's kernels: Tesla V100-SXM2-16GB is sm_70, and torch {VERSION} (CUDA 13.0)"
        " has kernels for sm_75, sm_80, sm_86, sm_90, sm_100, sm_120 - install its build for CUDA 12.6, which has"
        " kernels for sm_70, or use --device cpu",
    ),
    "HIP without kernels": (
        FakeMachine(
            gpus=(replace(H100, name="AMD Radeon RX 6600", gcn="gfx1032:sramecc+:xnack-"),),
            cuda=None,
            hip="6.4",
            arch_list=("gfx90a", "gfx942"),
            kernel_error="HIP error: invalid device function",
        ),
        f"cuda:0 cannot run this torch's kernels: AMD Radeon RX 6600 is gfx1032, and torch {VERSION} has kernels for"
        f" gfx90a, gfx942 - install a torch build with kernels for gfx1032, or use --device cpu",
    ),
    "busy": (
        FakeMachine(gpus=(BUSY,), context_error=fake_cuda.BUSY),
        "cuda:0 is busy: NVIDIA H100 80GB HBM3 (sm_90), 12.9 of 85.9 GB used, 11.8 GB by /usr/bin/python3"
        " (process 4242); its compute mode is exclusive process, which allows one process - wait for that one to end,"
        " choose another GPU with --device, or set the mode to default (nvidia-smi -c 0) (CUDA"
        " error: CUDA-capable device(s) is/are busy or unavailable)",
    ),
    "full": (
        FakeMachine(gpus=(FULL,), context_error=fake_cuda.CONTEXT_OUT_OF_MEMORY),
        "cuda:0 was already full: NVIDIA H100 80GB HBM3 (sm_90), 85.9 of 85.9 GB used, 42.9 GB by python"
        f" (process 100), 21.5 GB by python (process 101), 10.7 GB by python (process 102), 2 more - free some of its"
        f" memory, or choose another with --device {SAID}",
    ),
    "broken": (
        FakeMachine(context_error=fake_cuda.UNCORRECTABLE),
        "cuda:0 cannot be used: NVIDIA H100 80GB HBM3 (sm_90), 0.0 of 85.9 GB used - check nvidia-smi, or use"
        " --device cpu (AcceleratorError: CUDA error: uncorrectable ECC error encountered)",
    ),
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_gpu_that_cannot_be_used_is_one_line(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    machine, line = FAILURES[case]
    install(dataclasses.replace(machine, calls=[]), monkeypatch)
    assert line_of(BERT, capsys) == line
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert line_of(["peaks"], capsys) == line  # else it would have no units for any data type
    assert list(tmp_path.iterdir()) == []


def test_weights_that_do_not_fit_say_what_else_is_on_the_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from opanatomy.capture.model import building

    def no_room(*arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    held = replace(H100, used_bytes=70 * GIB, processes=(FakeProcess(pid=7, name="vllm", used_bytes=69 * GIB),))
    install(FakeMachine(gpus=(held,)), monkeypatch)
    # The build comes as far as the weights, whose memory is taken.
    monkeypatch.setattr(building, "_from_config", no_room)
    monkeypatch.setattr("opanatomy.capture.model.workload.build_on_meta", lambda *arguments: torch.nn.Linear(1, 1))
    monkeypatch.setattr("opanatomy.capture.model.workload.choose_shape", lambda *arguments: None)
    assert line_of(BERT, capsys) == (
        "out of memory: the float32 weights do not fit in the memory of cuda:0 (NVIDIA H100 80GB HBM3 (sm_90),"
        " 75.2 of 85.9 GB used, 74.1 GB by vllm (process 7)) - use fewer --layers or use --dtype bfloat16"
    )


# ----------------------------------------------------------------------------------------------------- is not used

TWO = (H100, replace(H100, name="NVIDIA T400", uuid="22222222-0000-0000-0000-000000000000"))

UNUSED = {
    "CPU build": (
        FakeMachine(cuda=None, cuda_order=()),
        None,
        f"this torch ({VERSION}) is a CPU build and cannot use the GPU (NVIDIA H100 80GB HBM3)",
        "install a CUDA build of torch",
    ),
    "driver too old": (
        FakeMachine(cuda_order=(), driver="550.54.15", driver_cuda=12040, warning=fake_cuda.TOO_OLD),
        None,
        "driver 550.54.15 (CUDA 12.4) is too old for this torch (CUDA 13.0) to use the GPU (NVIDIA H100 80GB HBM3)",
        "update the driver, or install a torch build for an older CUDA",
    ),
    "hidden by a wrong number": (
        FakeMachine(gpus=TWO, cuda_order=()),
        "2,0",
        "the first entry of CUDA_VISIBLE_DEVICES=2,0 is no existing GPU, which hides the 2 GPUs (NVIDIA H100 80GB HBM3,"
        " NVIDIA T400)",
        "unset it, or number the GPUs from 0",
    ),
    "hidden by nothing": (
        FakeMachine(gpus=TWO, cuda_order=()),
        "",
        "CUDA_VISIBLE_DEVICES is empty and hides the 2 GPUs (NVIDIA H100 80GB HBM3, NVIDIA T400)",
        "unset it, or number the GPUs from 0",
    ),
    "fabric manager": (
        FakeMachine(gpus=(H100,) * 8, cuda_order=(), warning=fake_cuda.NOT_READY),
        None,
        "CUDA fails to initialize on the 8 GPUs (NVIDIA H100 80GB HBM3): error 802, system not yet initialized",
        "start nvidia-fabricmanager, which GPUs behind an NVSwitch need",
    ),
    "MIG without an instance": (
        FakeMachine(gpus=(replace(H100, mig=True),), cuda_order=()),
        None,
        "MIG is on, but the GPU (NVIDIA H100 80GB HBM3) has no instance",
        "create one (nvidia-smi mig -C -cgi ...)",
    ),
}


@pytest.mark.parametrize("case", UNUSED)
def test_a_gpu_that_is_not_used_says_why(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine, visible, why, do = UNUSED[case]
    install(machine, monkeypatch)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert choose_device("auto") == "cpu"
    assert no_gpu_note("auto") == f"no GPU in use because {why}: running on the CPU ({processor_name()}) - {do}"
    assert no_gpu_note("cpu") == f"no GPU in use: running on the CPU ({processor_name()})"
    assert line_of([*BERT, "--device", "cuda"], capsys) == f"--device cuda: {why} - {do}, or use --device cpu"


def test_a_gpu_is_named_where_nvml_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(FakeMachine(cuda_order=(), nvml_error=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH), monkeypatch)
    folder = tmp_path / "gpus" / "0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text("Model: \t\t NVIDIA RTX A6000\nIRQ:   \t\t 183\n")
    assert no_gpu_note("auto") == (
        "no GPU in use because the driver for the GPU (NVIDIA RTX A6000) does not work: NVML does not answer (RM has"
        f" detected an NVML/RM version mismatch): running on the CPU ({processor_name()}) - reboot after a driver"
        f" update"
    )


def test_an_amd_gpu_that_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(FakeMachine(gpus=(), cuda_order=(), cuda=None, hip="6.4"), monkeypatch)
    assert no_gpu_note("auto") == f"no GPU in use: running on the CPU ({processor_name()})"
    (tmp_path / "kfd").touch()
    assert "HIP finds no device behind /dev/kfd" in no_gpu_note("auto")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "")
    assert "HIP_VISIBLE_DEVICES= hides all AMD GPUs" in no_gpu_note("auto")
    install(FakeMachine(gpus=(), cuda_order=(), cuda=None), monkeypatch)
    assert "is a CPU build and cannot use an AMD GPU" in no_gpu_note("auto")


def test_a_number_that_is_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    install(FakeMachine(gpus=TWO, cuda_order=(0, 1)), monkeypatch)
    for wanted in ("cuda:2", "cuda:x"):
        line = f"--device {wanted}: there are 2 GPUs - numbering starts at cuda:0"
        assert line_of([*BERT, "--device", wanted], capsys) == line
    install(FakeMachine(gpus=TWO, cuda_order=(1,)), monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    line = "--device cuda:1: there is 1 GPU (CUDA_VISIBLE_DEVICES=1) - numbering starts at cuda:0"
    assert line_of([*BERT, "--device", "cuda:1"], capsys) == line


@pytest.mark.parametrize(("wanted", "device"), [("cuda", "cuda:0"), ("cuda:01", "cuda:1"), ("cuda:1", "cuda:1")])
def test_a_number_is_as_torch_takes_it(wanted: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch refuses leading zeros."""
    install(FakeMachine(gpus=TWO, cuda_order=(0, 1)), monkeypatch)
    assert str(torch.device(choose_device(wanted))) == device


TINY = """
import torch

def tiny():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), torch.ones(2, 4)
"""


def test_the_command_notes_why_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine, _, why, do = UNUSED["CPU build"]
    install(machine, monkeypatch)
    (tmp_path / "tiny_of_start.py").write_text(TINY)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["profile", "tiny_of_start:tiny", "--warmup", "1"]) == 0
    note = f"no GPU in use because {why}: running on the CPU ({processor_name()}) - {do}"
    assert note in capsys.readouterr().err.splitlines()


# ---------------------------------------------------------------------------------------------------- architectures


@pytest.mark.parametrize(
    ("architecture", "code", "runs"),
    [
        ("sm_89", "sm_86", True),
        ("sm_86", "sm_89", False),
        ("sm_120", "compute_90", True),
        ("sm_70", "compute_75", False),
        ("sm_100", "sm_90a", False),
        ("sm_90", "sm_90a", True),
        ("sm_103", "sm_100f", True),
        ("sm_101", "sm_110", True),
        ("sm_120", "sm_100f", False),
        ("gfx942", "gfx942", True),
        ("gfx942", "gfx90a", False),
    ],
)
def test_what_was_compiled_for_one_architecture_runs_on_another(architecture: str, code: str, runs: bool) -> None:
    assert start.runs_on(architecture, code) is runs


def test_torch_agrees_on_the_architectures_that_it_is_built_for() -> None:
    requirements = getattr(torch.cuda, "DEVICE_REQUIREMENT", None)
    if requirements is None:
        pytest.skip("this torch has no table of what runs where")
    for code, runs in requirements.items():
        ours = {device for device in requirements if start.runs_on(f"sm_{device}", f"sm_{code}")}
        # 101 was renamed to 110: before 2.14 torch had it one way only.
        renamed = {101} if code == 110 else set()
        assert ours - renamed == {device for device in requirements if device in runs} - renamed, code


def test_a_kernel_of_an_extension_is_not_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    install(FakeMachine(gpus=(replace(H100, name="NVIDIA GeForce RTX 5090", capability=(12, 0)),)), monkeypatch)
    line = start.missing_kernels(RuntimeError(fake_cuda.NO_KERNEL_IMAGE), "cuda:0")
    assert line == (
        "cuda:0 cannot run a kernel from an extension (a package with its own GPU code): NVIDIA GeForce RTX"
        f" 5090 is sm_120, which torch {VERSION} has kernels for but the extension does not - install or build"
        " it for sm_120, or leave it out"
    )
    assert start.missing_kernels(RuntimeError("CUDA error: misaligned address"), "cuda:0") is None
