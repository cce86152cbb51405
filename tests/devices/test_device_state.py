"""The clocks, power and temperature of a device while steps run, by a stand-in of NVML, and what is said of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pynvml
import pytest
import torch
from msgspec.structs import replace

import opanatomy
from opanatomy.__main__ import main
from opanatomy.analysis.advice import with_advice
from opanatomy.capture import ceilings
from opanatomy.capture.device import state as states
from opanatomy.capture.device.state import watching
from opanatomy.records.anatomy import Anatomy, Machine
from opanatomy.records.run import DeviceState
from opanatomy.report.metrics import metrics_of
from tests.support.fake_cuda import GIB, FakeGpu, FakeInstance, FakeMachine, install
from tests.support.paths import ROOT

H100 = FakeGpu(uuid="bbbbbbbb-0000-0000-0000-000000000000")
POWER_CAP, HEAT, IDLE, SET, BRAKE = 0x4, 0x20, 0x1, 0x2, 0x80
KEPT = ROOT / "reports" / "bert-large-uncased-h100.json"


def watched(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.0) -> DeviceState:
    """What a watch says of `cuda:0` over so many seconds."""
    install(machine, monkeypatch)
    with watching("cuda:0") as watch:
        assert watch is not None
        with watch.around(reads=True):
            time.sleep(seconds)
        return watch.over(watch.spans, steps=4, energy=watch.spans[0])


@pytest.mark.parametrize(
    ("gpu", "clock", "reasons", "held"),
    [
        (H100, 1755, [], None),
        (replace(H100, reasons=POWER_CAP), 1755, ["power cap"], None),
        (replace(H100, reasons=HEAT, sm_clock=1200, temperature=91), 1200, ["heat"], "heat"),
        (replace(H100, reasons=SET, sm_clock=990), 990, ["set clocks"], "set clocks"),
        (replace(H100, reasons=BRAKE | POWER_CAP), 1755, ["power brake", "power cap"], "power brake"),
        (replace(H100, reasons=IDLE, sm_clock=345), 345, [], None),
    ],
    ids=["free", "power cap", "hot", "locked", "brake", "idle"],
)
def test_what_holds_the_clock_down(
    gpu: FakeGpu, clock: int, reasons: list[str], held: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = watched(FakeMachine(gpus=(gpu,)), monkeypatch)
    assert (state.clock_mhz, state.clock_limit_mhz, sorted(state.reasons)) == (clock, 1980, reasons)
    assert (state.power_w, state.power_limit_w, state.memory_clock_mhz) == (610.0, 700.0, 2619)
    assert (state.temperature_c, state.slowdown_c, state.held_by) == (gpu.temperature, 87, held)


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        (FakeMachine(nvml_error=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND), "NVML does not answer (NVML Shared Library Not"),
        (FakeMachine(nvml_error="package"), "NVML is unavailable: pynvml is not installed"),
        (FakeMachine(nvml_error=pynvml.NVML_ERROR_NO_PERMISSION), "NVML does not answer (Insufficient Permissions)"),
    ],
    ids=["no library", "no package", "no permission"],
)
def test_without_an_answer_there_is_a_reason(machine: FakeMachine, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state = watched(machine, monkeypatch)
    assert state.why_not is not None
    assert state.why_not.startswith(why)
    assert state.clock_mhz is None


def test_a_figure_that_a_device_does_not_report_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = replace(H100, power=None, power_limit=None, temperature=None)
    state = watched(FakeMachine(gpus=(gpu,)), monkeypatch)
    assert (state.clock_mhz, state.power_w, state.temperature_c, state.energy_j) == (1755, None, None, None)


def test_of_a_mig_instance_the_power_is_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = FakeInstance(uuid="dddddddd-0000-0000-0000-000000000000", total_bytes=40 * GIB)
    gpu = replace(H100, mig=True, instances=(instance,))
    state = watched(FakeMachine(gpus=(gpu,)), monkeypatch, 1.1)
    assert (state.clock_mhz, state.power_w, state.power_limit_w, state.energy_j) == (1755, None, None, None)


def test_of_two_devices_the_one_that_cuda_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    other = FakeGpu(name="NVIDIA T400", uuid="aaaaaaaa-0000-0000-0000-000000000000", sm_clock=420)
    state = watched(FakeMachine(gpus=(other, H100), cuda_order=(1, 0)), monkeypatch)
    assert state.clock_mhz == 1755


def test_amd_is_asked_through_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    install(FakeMachine(hip="6.4", cuda=None), monkeypatch)
    for name, value in (("clock_rate", 2100), ("power_draw", 560), ("temperature", 61)):
        monkeypatch.setattr(torch.cuda, name, lambda index, value=value: value)
    with watching("cuda:0") as watch:
        assert watch is not None
        state = watch.over()
    assert (state.clock_mhz, state.clock_limit_mhz, state.power_w, state.temperature_c) == (2100, None, 560.0, 61)


def test_amd_without_amdsmi_says_so_and_a_missing_figure_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    install(FakeMachine(hip="6.4", cuda=None), monkeypatch)

    def missing(_: int) -> int:
        raise ModuleNotFoundError("amdsmi does not seem to be installed")

    for name in ("clock_rate", "power_draw", "temperature"):
        monkeypatch.setattr(torch.cuda, name, missing)
    with watching("cuda:0") as watch:
        assert watch is not None
        assert watch.over().why_not == "amdsmi does not answer (amdsmi does not seem to be installed)"
    monkeypatch.setattr(torch.cuda, "clock_rate", lambda index: 2100)
    with watching("cuda:0") as watch:
        assert watch is not None
        state = watch.over()
    assert (state.clock_mhz, state.power_w, state.temperature_c, state.why_not) == (2100, None, None, None)


def test_the_energy_is_that_of_the_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in counts 610 W; of less than a second nothing is said."""
    state = watched(FakeMachine(gpus=(H100,)), monkeypatch, 1.1)
    assert state.energy_j == pytest.approx(610 * state.seconds, rel=0.05)
    assert state.joules_per_step == pytest.approx(610 * state.seconds / 4, rel=0.05)
    assert watched(FakeMachine(gpus=(H100,)), monkeypatch, 0.3).energy_j is None


def test_at_most_twenty_readings_a_second_and_none_under_the_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = install(FakeMachine(gpus=(H100,)), monkeypatch)
    with watching("cuda:0") as watch:
        assert watch is not None
        time.sleep(0.5)
        assert 2 <= machine.readings <= 12
        with states.undisturbed("cuda:0"):
            before = machine.readings
            time.sleep(0.3)
            assert machine.readings == before
        assert machine.readings == before + 1
    done = machine.readings
    time.sleep(0.15)
    assert machine.readings == done
    assert not states._watches


def test_the_clock_of_a_loop_and_its_recorder_read_one_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop on the CPU beside a stand-in of a GPU in use: the run has its state, and the trace keeps it."""
    machine = install(FakeMachine(gpus=(replace(H100, reasons=POWER_CAP),)), monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", dict)
    monkeypatch.setattr(
        "opanatomy.capture.loop.stages.watching", lambda device: watching("cuda:0" if device == "cpu" else device)
    )
    model = torch.nn.Linear(8, 8)
    with opanatomy.record() as recorder:
        for _ in range(40):
            model(torch.ones(4, 8)).sum().backward()
            time.sleep(0.03)
            recorder.step()
    anatomy = recorder.anatomy
    run, state = anatomy.run, anatomy.device_state
    assert run is not None
    assert run.device is not None
    assert state is not None
    assert (run.device.clock_mhz, run.device.reasons) == (1755, {"power cap": run.device.readings})
    assert run.device.steps == 39
    assert run.device.energy_j == pytest.approx(610 * run.device.seconds, rel=0.05)
    assert (state.clock_mhz, state.reasons) == (1755, {"power cap": state.readings})
    assert metrics_of(anatomy)["joules_per_step"].value == pytest.approx(run.device.energy_j / 39)
    assert metrics_of(anatomy)["clock_mhz"].value == 1755
    assert machine.readings < 20 * 3
    assert not states._watches


# ------------------------------------------------------------------------------------------------ what is said of it


def kept(**changes: Any) -> Anatomy:
    """The kept report of a GPU with a state of its device."""
    state = DeviceState(
        readings=50,
        seconds=2.0,
        steps=20,
        clock_mhz=1755,
        lowest_clock_mhz=1700,
        clock_limit_mhz=1980,
        power_w=612.3,
        power_limit_w=700.0,
        temperature_c=64,
        energy_j=1224.6,
        reasons={"power cap": 19},
    )
    anatomy = opanatomy.read(KEPT)
    assert isinstance(anatomy, Anatomy)
    return with_advice(replace(anatomy, device_state=replace(state, **changes)))


def shown(anatomy: Anatomy, capsys: pytest.CaptureFixture[str], folder: Path, *options: str) -> str:
    anatomy.to_json(folder / "report.json", force=True)
    assert main(["analyze", str(folder / "report.json"), *options]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_the_state_is_in_text_page_metrics_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    anatomy = kept()
    line = (
        "clock 1,755 of 1,980 MHz, power cap in 38 % of the readings, 612 of 700 W, 64 degrees C at most,"
        " 61.2 J per step"
    )
    assert line in shown(anatomy, capsys, tmp_path)
    anatomy.to_html(tmp_path / "page.html")
    assert "power cap in 38 % of the readings" in " ".join((tmp_path / "page.html").read_text().split())
    assert opanatomy.read(tmp_path / "report.json").device_state == anatomy.device_state
    figures = metrics_of(anatomy)
    assert figures["joules_per_step"].value == pytest.approx(61.23)
    assert figures["joules_per_sample"].value == pytest.approx(61.23 / anatomy.workload.batch)
    assert figures["clock_share"].value == pytest.approx(1755 / 1980)


def test_a_power_cap_is_no_advice_and_heat_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The gain by a second way: what the operators that FLOPs bound would save at the full clock."""
    assert "clock" not in {each.id for each in kept().advice}
    hot = kept(clock_mhz=1188, reasons={"heat": 40})
    advice = next(each for each in hot.advice if each.id == "clock")
    steps = hot.step.count
    bounded = sum(row.bounded_ns for row in hot.operators if row.bound_by == "compute") / steps
    assert advice.figures["time"].value == pytest.approx(bounded, rel=0.001)
    assert 0 < (advice.gain_ns or 0) <= 0.4 * bounded  # other advice may have a part of that time
    text = shown(hot, capsys, tmp_path, "--section", "advice")
    assert "the clock is held at 1,188 MHz (maximum: 1,980 MHz) by heat in 80.0 % of the driver's readings" in text


def test_what_is_attainable_is_that_at_this_clock() -> None:
    """Half the clock leaves products half as far from what they attain."""

    def beyond(anatomy: Anatomy) -> dict[str, int]:
        return {f"{each.subject}": each.gain_ns or 0 for each in anatomy.advice if each.id == "far_from_bound"}

    free, slow = kept(), kept(clock_mhz=1400, reasons={"set clocks": 50})
    said = [each for each in slow.advice if each.id == "far_from_bound"]
    assert all("attainable at this clock" in each.why for each in said)
    for subject, gain in beyond(slow).items():
        assert gain <= beyond(free).get(subject, gain)


def test_a_comparison_at_other_clocks_claims_no_difference_of_kernels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = kept(clock_mhz=1580)
    work = slow.work
    comparison = opanatomy.compare(kept(), slow)
    assert comparison.clock_change == pytest.approx(1580 / 1755 - 1)
    assert comparison.no_claim is not None
    assert "5 interleaved runs" in comparison.no_claim or "clocks" in comparison.no_claim
    assert any("the device clocks differ by 11.1 % (1,755 MHz, 1,580 MHz)" in line for line in comparison.warnings)
    assert len(work)
    assert opanatomy.compare(kept(), kept(clock_mhz=1745)).clock_change is None
    assert opanatomy.compare(kept(), replace(kept(), device_state=None)).clock_change is None


def test_the_sentence_of_the_same_calls_says_that_the_clock_differs() -> None:
    from opanatomy.records.comparison import Cause, Comparison, Part
    from opanatomy.records.taxonomy import OperatorClass
    from opanatomy.report.formats.terminal import sentence
    from opanatomy.report.sections.comparison import groups_of, said_of

    part = Part(cause=Cause.SAME_CALLS, operator_class=OperatorClass.TENSOR_CONTRACTION, before_ns=100, after_ns=120)
    comparison = Comparison(sides=(), figures=(), clock_change=-0.1)
    (group,) = groups_of([part])
    assert "clocks differ by" in sentence(said_of(group, comparison))
    assert "clock" not in sentence(said_of(group, replace(comparison, clock_change=None)))


# ----------------------------------------------------------------------------------------------------------- ceilings


def test_ceilings_wait_until_the_card_is_cool_and_say_their_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = install(FakeMachine(gpus=(replace(H100, temperature=80, reasons=POWER_CAP, cools=4),)), monkeypatch)
    # Readings without a second between them.
    monkeypatch.setattr(states, "_SECOND", 0.0)
    # The measurement itself is in `test_ceilings.py`.
    measured = ceilings.Measured(machine=Machine(device="NVIDIA H100", kind="cuda"))
    monkeypatch.setattr(ceilings, "_measured", lambda *_: measured)
    stages: list[str] = []
    result = ceilings.measure(
        measured.machine,
        "cuda:0",
        effort=ceilings.Effort(shapes=(), array_bytes=0, chunk_bytes=0),
        on_stage=stages.append,
    )
    assert stages[0].startswith("waiting for the device to cool (7")
    assert result.state is not None
    assert result.state.clock_mhz == 1755
    assert machine.readings >= 7
    from opanatomy.devices.ceilings import measured_ceilings

    assert "at 1,755 MHz" in (measured_ceilings(result).source or "")


def test_a_device_that_stays_hot_is_waited_for_a_minute_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    install(FakeMachine(gpus=(replace(H100, temperature=90, reasons=HEAT),)), monkeypatch)
    # Readings without a second between them.
    monkeypatch.setattr(states, "_SECOND", 0.0)
    stages: list[str] = []
    with watching("cuda:0") as watch:
        assert watch is not None
        watch.cooled(stages.append)
    assert len(stages) == states._MOST_SECONDS


def test_the_script_for_a_device_runs_on_the_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m tests.gpu.clock`, which sets the readings beside nvidia-smi and the counter of energy."""
    from tests.gpu import clock

    install(FakeMachine(gpus=(replace(H100, reasons=POWER_CAP),)), monkeypatch)
    monkeypatch.setattr(clock.shutil, "which", lambda name: None)
    found = clock.beside_nvidia_smi(lambda: time.sleep(0.01), 1.2)
    assert found["state"]["reasons"] == {"power cap": found["state"]["readings"]}
    assert found["state"]["energy_j"] == pytest.approx(found["counter_joules"], rel=0.1)
    assert clock.with_and_without(lambda: time.sleep(0.01), 3) == pytest.approx(1, abs=0.5)
