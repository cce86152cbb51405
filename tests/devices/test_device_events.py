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
    """A process whose Kineto has said nothing yet, on Linux with CUPTI and no other profiler."""
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
    monkeypatch.setattr(kineto, "has_device_events", lambda profiler: True)


def says(monkeypatch: pytest.MonkeyPatch, *lines: str, times: int = 9) -> list[int]:
    """Have Kineto print `lines` where it prints: on file descriptor 2, when a profiler starts; the starts."""
    start, starts = torch.profiler.profile.start, list[int]()

    def talking(self: Any) -> None:
        starts.append(1)
        if len(starts) <= times:
            os.write(2, "".join(lines).encode())
        start(self)

    monkeypatch.setattr(torch.profiler.profile, "start", talking)
    return starts


class Counted(nn.Module):
    """A model that counts its steps and the numbers that its dropout draws."""

    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        self.drawn: list[float] = []
        self.fails_at = fails_at

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.drawn) == self.fails_at:
            raise ValueError("not now")
        out: torch.Tensor = self.layers(x)
        self.drawn.append(float(out.detach().sum()))
        return out


X = torch.ones(3, 4)
NO_PRIVILEGES = (
    "the driver allows only administrators to trace - load the driver with NVreg_RestrictProfilingToAdminUsers=0 (in a"
    " file in /etc/modprobe.d, then reboot), or run as an administrator; a container needs --cap-add=SYS_ADMIN"
)
#: What Kineto says, the environment, and the cause.
CAUSES: dict[str, tuple[tuple[str, ...], dict[str, str], str]] = {
    "privileges": ((PRIVILEGES,), {}, NO_PRIVILEGES),
    "another profiler": ((CALL.format("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)"), FAILED), {},
                         "another profiler is attached to this process - run without nsys, ncu or a second profiler"),
    "virtual": ((CALL.format("CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES (40)"),), {},
    "the hypervisor does not allow tracing this virtual GPU -"
                                                  " enable profiling for the virtual machine"),
    "confidential": ((CALL.format("CUPTI_ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED (41)"),), {},
                     "confidential computing forbids tracing - turn that GPU mode off"),
    "WSL": ((CALL.format("CUPTI_ERROR_WSL_DEVICE_NOT_SUPPORTED (45)"),), {},
            "CUPTI does not support the device under WSL - on Windows, allow all users"),
    "MIG": ((CALL.format("CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED (43)"),), {},
            "CUPTI does not support this MIG instance - run on a full GPU"),
    "too long": (("Exceeded max GPU buffer count (33 >= 33) - terminating tracing",), {},
     "the step launches more work than the profiler's buffers can hold - profile fewer steps, or a smaller model"),
    "not started": (("function cbapi->getCuptiStatus() failed with error CUPTI_ERROR_NOT_INITIALIZED (15)", FAILED), {},
                    "CUPTI could not be started - update the driver; if that does not help, load the driver with"),
    # Without a word of Kineto the surroundings are looked at.
    "nothing": ((), {},
     "the cause is unknown - run a small torch.profiler example with KINETO_LOG_LEVEL=0 and read what it prints"
     " about the device"),
    "nsys": ((), {"NSYS_PROFILING_SESSION_ID": "7"},
             "another profiler is attached to this process (NSYS_PROFILING_SESSION_ID) - run without it"),
    "LD_LIBRARY_PATH": ((), {"LD_LIBRARY_PATH": "{folder}"},
     "CUPTI failed, and LD_LIBRARY_PATH contains a CUPTI other than torch's ({folder}) - remove that folder"),
}  # fmt: skip


@pytest.mark.parametrize("case", CAUSES)
def test_a_trace_without_device_events_is_an_error_with_its_cause(
    case: str, accelerated: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lines, surroundings, cause = CAUSES[case]
    (tmp_path / "libcupti.so.12").touch()
    for name, value in surroundings.items():
        monkeypatch.setenv(name, value.format(folder=tmp_path))
    says(monkeypatch, *map(kineto_line, lines))
    with pytest.raises(CaptureError) as caught:
        opanatomy.profile(nn.Linear(2, 2), torch.ones(1, 2), warmup=1)
    said = str(caught.value)
    assert said.startswith(f"the profiler recorded no work on cpu: {cause.format(folder=tmp_path)}")
    assert not lines or said.endswith(f" (Kineto: {lines[0]})")
    assert "CUPTI" not in capfd.readouterr().err


def test_the_command_ends_with_that_line_and_leaves_no_trace(
    accelerated: None, here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Kineto speaks once a process, when the first profiler starts, which is that of the memory step; what others write
    meanwhile is passed on."""
    (here / "tiny_of_events.py").write_text(
        "import torch\ndef tiny():\n    return torch.nn.Linear(4, 4), torch.ones(2, 4)\n"
    )
    monkeypatch.syspath_prepend(here)
    lines = (kineto_line(PRIVILEGES), kineto_line("Completed Stage: Warm Up", "STAGE"), "a user's own line\n")
    starts = says(monkeypatch, *lines, times=1)
    assert main(["profile", "tiny_of_events:tiny", "--device", "cpu", "--warmup", "1", "--memory"]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == (
        f"opanatomy: the profiler recorded no work on cpu: {NO_PRIVILEGES} (Kineto: {PRIVILEGES})"
    )
    assert ("a user's own line" in err.splitlines(), "Completed Stage" in err, len(starts)) == (True, False, 2)
    assert [path.name for path in here.iterdir() if path.name != "__pycache__"] == ["tiny_of_events.py"]


@pytest.mark.parametrize(
    ("device", "before", "inside"),
    [("cuda:0", None, "2"), ("cuda:0", "6", "2"), ("cuda:0", "0", "0"), ("cuda:0", "x", "2"), ("cpu", "6", "6")],
)
def test_kineto_is_let_speak_while_we_listen(
    device: str, before: str | None, inside: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """On the CPU nothing is kept."""
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    monkeypatch.setattr(accelerators, "kineto_records", lambda device: device != "cpu")
    if before is not None:
        monkeypatch.setenv("KINETO_LOG_LEVEL", before)
    with kineto.listening(device):
        assert os.environ["KINETO_LOG_LEVEL"] == inside
        os.write(2, f"before\n{kineto_line(FAILED)}after".encode())
    assert os.environ.get("KINETO_LOG_LEVEL") == before
    listens = device != "cpu"
    assert capfd.readouterr().err == ("before\nafter" if listens else f"before\n{kineto_line(FAILED)}after")
    assert kineto.heard() == (FAILED,) * listens


@pytest.mark.parametrize("steps", [1, 3])
def test_the_profiler_warms_up_in_one_more_step(steps: int, recorded: None, tmp_path: Path) -> None:
    """Two steps to warm up, five unprofiled ones, the profiler's own and the profiled ones, with the same dropout."""
    model = Counted()
    anatomy = opanatomy.profile(model, X, steps=steps, warmup=2, trace=tmp_path / "trace.json")
    assert len(anatomy.step.steps) == steps
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = [event["name"] for event in events if str(event.get("name")).startswith("ProfilerStep#")]
    assert sorted(names) == [f"ProfilerStep#{number}" for number in range(steps)]
    assert sum(event["name"] == "aten::linear" for event in events if "dur" in event) == 2 * steps
    assert len(model.drawn) == 2 + 5 + 1 + steps
    assert len(set(model.drawn[-1 - steps :])) == 1
    assert [one for check in anatomy.checks for one in check.unexplained] == []
    assert next(check for check in anatomy.checks if check.quantity == "call counts").compared > 0


def test_on_the_cpu_there_is_no_such_step() -> None:
    model = Counted()
    opanatomy.profile(model, X, steps=2, warmup=2)
    assert len(model.drawn) == 2 + 5 + 2


def test_a_step_that_fails_in_the_profilers_warm_up_stops_the_profiler(recorded: None) -> None:
    """Else the next profile of the process would find one running."""
    with pytest.raises(opanatomy.OpanatomyError, match="not now"):
        opanatomy.profile(Counted(fails_at=1 + 5), X, warmup=1)
    assert not torch.autograd._profiler_enabled()
    assert opanatomy.profile(Counted(), X, warmup=1).step.count == 1
