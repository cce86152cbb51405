"""A profile on an accelerator: Kineto's complaints, a trace without device events, the profiler's own warm-up."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import opanatomy
from opanatomy.__main__ import main
from opanatomy.capture.device import accelerators, kineto
from opanatomy.errors import CaptureError

#: kineto's `CUPTI_CALL` and `libkineto_init`, in the lines that users post.
CALL = "function cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) failed with error {}"
FAILED = "CUPTI initialization failed - CUDA profiler activities will be missing"
PRIVILEGES = CALL.format("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)")


def kineto_line(text: str, level: str = "WARNING") -> str:
    return f"{level}:2026-11-22 10:00:00 77:77 CuptiActivityApi.cpp:231] {text}\n"


@pytest.fixture(autouse=True)
def _nothing_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto, "_heard", [])
    monkeypatch.setattr(kineto, "_text", lambda path: "Linux version 6.1.0")
    monkeypatch.setattr(kineto, "_can_trace", lambda: True)
    for name in ("LD_LIBRARY_PATH", "NSYS_PROFILING_SESSION_ID", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def accelerated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU taken for an accelerator: its profiler records no device event."""
    monkeypatch.setattr(accelerators, "kineto_records", lambda device: True)


@pytest.fixture
def recorded(accelerated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, and its operators taken for device events."""
    monkeypatch.setattr(kineto, "device_event_count", lambda profiler: 1)


def says(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Have Kineto print `lines` where it prints: on file descriptor 2, when a profiler starts."""
    start = torch.profiler.profile.start

    def talking(self: Any) -> None:
        os.write(2, "".join(lines).encode())
        start(self)

    monkeypatch.setattr(torch.profiler.profile, "start", talking)


class Counted(nn.Module):
    """A model that counts its steps and the numbers that its dropout draws."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        self.drawn: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        self.drawn.append(float(out.detach().sum()))
        return out


X = torch.ones(3, 4)

# ---------------------------------------------------------------------------------------------- no device events


CAUSES = {
    "privileges": (
        (PRIVILEGES,),
        "the driver lets only administrators trace - load the driver with NVreg_RestrictProfilingToAdminUsers=0 (a file"
        " in /etc/modprobe.d, then restart), or run as an administrator; a container needs --cap-add=SYS_ADMIN",
    ),
    "another profiler": (
        (CALL.format("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)"), FAILED),
        "another profiler is attached to this process - run without nsys, ncu or a second profiler",
    ),
    "virtual": (
        (CALL.format("CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES (40)"),),
        "the hypervisor does not let this virtual GPU be traced - have profiling enabled for the virtual machine",
    ),
    "confidential": (
        (CALL.format("CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED (41)"),),
        "confidential computing forbids it - run where that mode of the GPU is off",
    ),
    "WSL": (
        (CALL.format("CUPTI_ERROR_WSL_DEVICE_NOT_SUPPORTED (45)"),),
        f"CUPTI does not support the device under WSL - {kineto._WSL}",
    ),
    "MIG": (
        (CALL.format("CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED (43)"),),
        "CUPTI does not support this MIG instance - run on a whole GPU",
    ),
    "too long": (
        ("Exceeded max GPU buffer count (33 >= 33) - terminating tracing",),
        "the step launches more than the profiler has buffers for - profile fewer steps, or a smaller model",
    ),
    "not started": (
        ("function cbapi->getCuptiStatus() failed with error CUPTI_ERROR_NOT_INITIALIZED (15)", FAILED),
        "CUPTI could not be started - update the driver; if that does not help, load the driver with"
        " NVreg_RestrictProfilingToAdminUsers=0 (a file in /etc/modprobe.d, then restart), or run as an administrator;"
        " a container needs --cap-add=SYS_ADMIN",
    ),
}


@pytest.mark.parametrize("case", CAUSES)
def test_a_trace_without_device_events_is_an_error_with_its_cause(
    case: str, accelerated: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lines, line = CAUSES[case]
    says(monkeypatch, *map(kineto_line, lines))
    with pytest.raises(CaptureError) as caught:
        opanatomy.profile(nn.Linear(2, 2), torch.ones(1, 2), warmup=1)
    assert str(caught.value) == f"the profiler recorded nothing of what cpu ran: {line} (Kineto: {lines[0]})"
    assert "CUPTI" not in capfd.readouterr().err


def test_the_command_ends_with_that_line_and_leaves_no_trace(
    accelerated: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny_of_events.py").write_text(
        "import torch\ndef tiny():\n    return torch.nn.Linear(4, 4), torch.ones(2, 4)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    says(monkeypatch, kineto_line(PRIVILEGES), kineto_line("Completed Stage: Warm Up", "STAGE"), "a user's own line\n")
    assert main(["profile", "tiny_of_events:tiny", "--device", "cpu", "--warmup", "1"]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == (
        f"opanatomy: the profiler recorded nothing of what cpu ran: {CAUSES['privileges'][1]} (Kineto: {PRIVILEGES})"
    )
    assert "a user's own line" in err.splitlines()
    assert "Completed Stage" not in err
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["tiny_of_events.py"]


def test_kineto_is_heard_in_the_memory_step_too(
    accelerated: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It speaks once a process, when the first profiler starts, which is that of the memory step."""
    start, starts = torch.profiler.profile.start, []

    def talking_once(self: Any) -> None:
        starts.append(1)
        if len(starts) == 1:
            os.write(2, kineto_line(PRIVILEGES).encode())
        start(self)

    monkeypatch.setattr(torch.profiler.profile, "start", talking_once)
    with pytest.raises(CaptureError, match="the driver lets only administrators trace"):
        opanatomy.profile(nn.Linear(2, 2), torch.ones(1, 2), warmup=1, memory=True)
    assert len(starts) == 2
    assert PRIVILEGES not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("surroundings", "line"),
    [
        ({}, "it gave no reason - run a small torch.profiler example with KINETO_LOG_LEVEL=0 and read what it"
             " prints of the device"),
        ({"NSYS_PROFILING_SESSION_ID": "7"}, "another profiler is attached to this process (NSYS_PROFILING_SESSION_ID)"
                                              " - run without it"),
        ({"LD_LIBRARY_PATH": "{folder}"}, "CUPTI failed, and LD_LIBRARY_PATH has another one than torch's ({folder}) -"
                                          " take that folder out of it"),
    ],
    ids=["nothing", "nsys", "LD_LIBRARY_PATH"],
)  # fmt: skip
def test_without_a_word_of_kineto_the_surroundings_are_looked_at(
    surroundings: dict[str, str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libcupti.so.12").touch()
    for name, value in surroundings.items():
        monkeypatch.setenv(name, value.format(folder=tmp_path))
    with pytest.raises(CaptureError) as caught:
        kineto.require_device_events(profiled(), "cuda:0")
    told = line.format(folder=tmp_path)
    assert str(caught.value) == f"the profiler recorded nothing of what cuda:0 ran: {told}"


def test_wsl_and_a_build_without_cupti_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto, "_text", lambda path: "Linux version 5.15.90.1-microsoft-standard-WSL2")
    kineto._heard.append(FAILED)
    with pytest.raises(CaptureError, match="CUPTI does not work under WSL here - on Windows allow access"):
        kineto.require_device_events(profiled(), "cuda:0")
    monkeypatch.undo()
    with pytest.raises(CaptureError, match="this build of torch has a profiler without CUPTI"):
        kineto.require_device_events(profiled(), "cuda:0")


def profiled() -> Any:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        torch.ones(3).add_(1)
    return profiler


def test_only_kernels_copies_and_fills_count() -> None:
    """Neither operators, nor memory events, nor the ranges that Kineto repeats on the device's rows."""
    from torch._C._autograd import DeviceType

    profiler = profiled()
    assert len(profiler.profiler.function_events) > 2
    assert kineto.device_event_count(profiler) == 0
    event = profiler.profiler.function_events[0]
    event.device_type = DeviceType.CUDA
    assert kineto.device_event_count(profiler) == 1
    event.is_user_annotation = True
    assert kineto.device_event_count(profiler) == 0


# --------------------------------------------------------------------------------------------------- Kineto's log


@pytest.mark.parametrize(("before", "inside"), [(None, "2"), ("6", "2"), ("0", "0"), ("x", "2")])
def test_kineto_is_let_speak_while_we_listen(
    before: str | None, inside: str, accelerated: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    if before is not None:
        monkeypatch.setenv("KINETO_LOG_LEVEL", before)
    with kineto.listening("cuda:0"):
        assert os.environ["KINETO_LOG_LEVEL"] == inside
    assert os.environ.get("KINETO_LOG_LEVEL") == before


def test_what_others_write_meanwhile_is_passed_on(accelerated: None, capfd: pytest.CaptureFixture[str]) -> None:
    def write_and_fail() -> None:
        with kineto.listening("cuda:0"):
            os.write(2, f"before\n{kineto_line(FAILED)}after".encode())
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        write_and_fail()
    assert capfd.readouterr().err == "before\nafter"
    assert kineto.heard() == (FAILED,)


def test_a_closed_stderr_is_no_obstacle(accelerated: None) -> None:
    kept = os.dup(2)
    os.close(2)
    try:
        with kineto.listening("cuda:0"):
            pass
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def test_a_full_temporary_folder_is_no_obstacle(
    accelerated: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What Kineto writes is not heard then, and goes where it went."""

    def no_folder() -> Any:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(kineto.tempfile, "TemporaryFile", no_folder)
    with kineto.listening("cuda:0"):
        os.write(2, b"inside")
    assert capfd.readouterr().err == "inside"


def test_on_the_cpu_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", "6")
    with kineto.listening("cpu"):
        assert os.environ["KINETO_LOG_LEVEL"] == "6"
        os.write(2, kineto_line(FAILED).encode())
    assert capfd.readouterr().err == kineto_line(FAILED)
    assert kineto.heard() == ()


# ------------------------------------------------------------------------------------------- the profiler's warm-up


@pytest.mark.parametrize("steps", [1, 3])
def test_the_profiler_warms_up_in_one_more_step(steps: int, recorded: None, tmp_path: Path) -> None:
    model = Counted()
    trace = tmp_path / "trace.json"
    anatomy = opanatomy.profile(model, X, steps=steps, warmup=2, trace=trace)
    assert len(anatomy.step.steps) == steps
    events = json.loads(trace.read_text())["traceEvents"]
    names = [event["name"] for event in events if str(event.get("name")).startswith("ProfilerStep#")]
    assert sorted(names) == [f"ProfilerStep#{number}" for number in range(steps)]
    linear = sum(event["name"] == "aten::linear" for event in events if "dur" in event)
    assert linear == 2 * steps
    # Two steps to warm up, five unprofiled ones, the profiler's own and the profiled ones.
    assert len(model.drawn) == 2 + 5 + 1 + steps
    assert len(set(model.drawn[-1 - steps :])) == 1  # the same dropout in each
    assert anatomy.checks
    assert [one for check in anatomy.checks for one in check.unexplained] == []
    assert next(check for check in anatomy.checks if check.quantity == "call counts").compared > 0


def test_a_step_that_fails_in_the_profilers_warm_up_stops_the_profiler(recorded: None) -> None:
    """Else the next profile of the process would find one running."""

    class Failing(Counted):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(self.drawn) == 2:
                raise ValueError("not now")
            return super().forward(x)

    from opanatomy.capture.run.profiled import profile_steps

    model = Failing()
    started: list[int | None] = []
    with pytest.raises(ValueError, match="not now"):
        profile_steps(lambda: model(X), steps=3, device="cpu", begin=started.append, warm=True)
    assert started == [None, 0, 1]
    assert not torch.autograd._profiler_enabled()
    assert opanatomy.profile(Counted(), X, warmup=1).step.count == 1


def test_on_the_cpu_there_is_no_such_step() -> None:
    model = Counted()
    opanatomy.profile(model, X, steps=2, warmup=2)
    assert len(model.drawn) == 2 + 5 + 2
