"""Ceilings: data sheets, what they are matched on, what users give, what is measured and kept."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from msgspec.structs import replace

import opanatomy
from opanatomy.__main__ import main
from opanatomy.capture.ceilings import load_of, measure
from opanatomy.capture.device.environment import environment_of
from opanatomy.devices.ceilings import ceilings_for, load, machine_of, measured_ceilings, store
from opanatomy.devices.match import match
from opanatomy.devices.overrides import parse_bandwidth, parse_overrides, parse_peaks
from opanatomy.devices.sheets import SHEETS, Sheet
from opanatomy.errors import UsageError
from opanatomy.records.anatomy import Ceilings, Machine, Measured, Rate, now
from opanatomy.records.taxonomy import PEAK_TYPES
from opanatomy.records.workload import BUSY, Environment, MachineLoad
from opanatomy.report.formats import format_named
from opanatomy.report.section import Page
from tests.support.command import run_code
from tests.support.paths import TRACES

# ------------------------------------------------------------------------------------------------------ data sheets


@pytest.mark.parametrize("sheet", [one for one in SHEETS if "float16" in one.matrix], ids=lambda one: one.device)
def test_peaks_are_plausible(sheet: Sheet) -> None:
    matrix, vector = sheet.matrix, sheet.vector
    assert set(matrix) <= set(PEAK_TYPES)
    assert set(vector) <= {"float32", "float64"}
    assert all(value > 0 for value in (*matrix.values(), *vector.values()))
    brain = matrix["float16"] / (2 if sheet.device == "Instinct MI100" else 1)
    assert matrix.get("bfloat16", brain) == brain
    assert matrix["float16"] >= matrix.get("tf32", 0)
    assert matrix.get("float8", matrix["float16"]) in (
        matrix["float16"],
        pytest.approx(2 * matrix["float16"], rel=0.01),
    )
    assert sheet.bandwidth is None or 7 < 1000 * vector["float32"] / sheet.bandwidth < 160  # operations a byte
    assert sheet.source.startswith("https://")


@pytest.mark.parametrize(
    ("name", "memory", "multiprocessors", "device"),
    [
        ("NVIDIA A100-PG509-200", 42_505_273_344, 108, "A100 SXM4 40 GB"),
        ("NVIDIA H100 80GB HBM3", 85_018_279_936, 132, "H100 SXM"),
        ("NVIDIA H100", None, 114, "H100 PCIe"),
        ("NVIDIA H20-3e", 143_771 << 20, 78, "H20 141 GB"),
        ("NVIDIA GH200 480GB", 97_871 << 20, 132, "GH200 96 GB"),
        ("NVIDIA B200", 191_502_647_296, 148, "B200"),
        ("NVIDIA A40", 46_068 << 20, 84, "A40"),
        ("NVIDIA A16", None, 10, "A16 (one of four GPUs)"),
        ("Tesla V100-SXM2-32GB", 34_089_730_048, 80, "V100 SXM2 32 GB"),
        ("Tesla T4", 15_655_829_504, 40, "T4"),
        ("Tesla P100-PCIE-12GB", None, None, "P100 PCIe 12 GB"),
        ("", 206_141_652_992, 304, "Instinct MI300X"),
        ("AMD Instinct MI300X VF", 205_571_227_648, 304, "Instinct MI300X"),
        ("AMD Radeon Graphics", 68_702_699_520, 104, "Instinct MI210"),
        ("AMD Instinct MI250X/MI250", 68_702_699_520, 110, "Instinct MI250X (one of two dies)"),
        ("AMD Instinct MI60 / MI50", 17_163_091_968, 60, "Instinct MI50 16 GB"),
        ("gfx942:sramecc+:xnack-", 137_438_953_472, 228, "Instinct MI300A"),
        ("gfx942:sramecc+:xnack-", 274_877_906_944, 304, "Instinct MI325X"),
    ],
)
def test_devices_with_a_sheet(name: str, memory: int | None, multiprocessors: int | None, device: str) -> None:
    sheet = match(name, memory, multiprocessors).sheet
    assert sheet is not None
    assert sheet.device == device


@pytest.mark.parametrize(
    ("name", "memory", "multiprocessors", "why"),
    [
        (None, None, None, "does not name"),
        ("", None, None, "an unnamed device"),
        ("NVIDIA A100-SXM4-40GB", 20_000_000_000, 42, "18.6 GiB here but 40 GiB"),
        ("NVIDIA A100-SXM4-80GB", 84_974_239_744, 98, "98 multiprocessors here but 108"),
        ("NVIDIA H100", None, None, "could be H100 PCIe or H100 SXM"),
        ("NVIDIA H100", 100_000_000_000, 132, "93.1 GiB here but 80 GiB"),
        ("AMD Radeon Graphics", None, 104, "could be any of several"),
        ("AMD Radeon Graphics", 25_753_026_560, 96, "no data sheet fits"),
        ("GRID A100D-80C", None, None, "virtual GPU"),
        ("NVIDIA H100 80GB HBM2e", None, None, "no data sheet"),
        ("Intel(R) Data Center GPU Max 1550", None, None, "no data sheet"),
        ("x" * 1_000_000, None, None, "no data sheet"),
    ],
)
def test_devices_without_one(name: str | None, memory: int | None, multiprocessors: int | None, why: str) -> None:
    matched = match(name, memory, multiprocessors)
    assert matched.sheet is None
    assert why in (matched.why or "")
    assert len(matched.why or "") < 250


# ---------------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("text", "peaks"),
    [
        ("312e12", {"any": 312e12}),
        ("2.25P", {"any": 2.25e15}),
        (" bf16 = 989 TFLOP/s , tf32=494.7T ", {"bfloat16": 989e12, "tf32": 494.7e12}),
        ("int8=624TOPS,fp8=.5P", {"int8": 624e12, "float8": 0.5e15}),
        ("fp16=312T,100T", {"float16": 312e12, "any": 100e12}),
    ],
)
def test_peaks(text: str, peaks: dict[str, float]) -> None:
    assert parse_peaks(text) == pytest.approx(peaks)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "T",
        "989",
        "989Q",
        "-1T",
        "nan",
        "inf",
        "1e400",
        "bf16=",
        "bf17=1T",
        "bf16=1T,bf16=2T",
        "1T,2T",
        "=1T",
        "1 T B/s",
        "9" * 500,
        "989E",
        "989T,",
        "bf16=1T;fp32=1T",
    ],
)
def test_peaks_that_make_no_sense(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--peak") as error:
        parse_peaks(text)
    assert "\n" not in str(error.value)
    assert " - " in str(error.value)


def test_bandwidths() -> None:
    assert parse_bandwidth("3.35T") == 3.35e12
    assert parse_bandwidth("900 GB/s") == 900e9
    for text in ("", "3.35", "fast", "1TFLOP/s", "0G"):
        with pytest.raises(UsageError, match=r"^--bandwidth"):
            parse_bandwidth(text)


def test_a_given_ceiling_goes_before_a_known_one() -> None:
    """The higher of the two is the reference, and one that was measured on a busy device is that no more."""
    known = Ceilings(
        device="x",
        source="measured",
        matrix_flops_per_second={"bfloat16": 300e12, "float32": 20e12},
        bandwidth_bytes_per_second=1e12,
        disturbed=("bfloat16", "float32", "bandwidth"),
    )
    over = parse_overrides("bf16=100T,fp32=30T,fp16=50T", "2T").over(known, "x")
    assert over.source == "--peak bf16=100T,fp32=30T,fp16=50T and --bandwidth 2T; otherwise measured"
    assert over.matrix_flops_per_second == {"bfloat16": 100e12, "float32": 30e12, "float16": 50e12}
    assert over.disturbed == ("bfloat16",)
    assert over.reference.matrix_flops_per_second == {"bfloat16": 300e12, "float32": 30e12, "float16": 50e12}
    assert over.reference.bandwidth_bytes_per_second == 2e12
    assert [(one.option, one.known_per_second) for one in over.given] == [
        ("--peak fp32=30T", 20e12),
        ("--peak bf16=100T", 300e12),
        ("--peak fp16=50T", None),
        ("--bandwidth 2T", 1e12),
    ]
    alone = parse_overrides("1T,fp32=2T", None).over(None, "my card")
    assert alone.matrix_flops_per_second == {**dict.fromkeys(PEAK_TYPES, 1e12), "float32": 2e12}


# ----------------------------------------------------------------------------------- what was measured, and is kept

CPU = Machine(device="AMD EPYC 7R13 / x", kind="cpu", torch="2.13.0", threads=2)


def rate(per_second: float, by: str = "1 x 1 by 1 x 1") -> Rate:
    return Rate(per_second=per_second, by=by, spread=0.1, bursts=3, measured=now())


MEASURED = Measured(
    machine=CPU,
    peaks={"float32": rate(150e9), "float64": rate(75e9)},
    bandwidths={"copy": rate(20e9), "triad": rate(21e9)},
)


def test_a_measurement_on_a_busy_machine_is_named() -> None:
    """By the spread of the bursts of the figures in use: of several ways to move bytes the fastest."""
    busy = replace(rate(22e9), spread=0.51)
    slower = replace(MEASURED, bandwidths={**MEASURED.bandwidths, "read": replace(busy, per_second=1e9)})
    assert measured_ceilings(slower).disturbed == ()
    both = measured_ceilings(replace(MEASURED, peaks={"float32": busy}, bandwidths={"read": busy}))
    assert both.disturbed == ("float32", "bandwidth", "vector float32")
    assert "float32 and bandwidth while other work was running" in both.source


def test_kept_for_one_machine(tmp_path: Path) -> None:
    path = store(MEASURED, tmp_path / "deep" / "folder")
    assert load(CPU, path.parent) == MEASURED
    assert path.name.startswith("amd-epyc-7r13-x-")
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    for other in ({"threads": 3}, {"torch": "2.12"}, {"driver": "1"}, {"device": "../../etc"}):
        assert load(replace(CPU, **other), path.parent) is None
    newer = Measured(machine=CPU, peaks={"float32": rate(160e9)}).over(MEASURED)
    assert {name: one.per_second for name, one in newer.peaks.items()} == {"float32": 160e9, "float64": 75e9}
    assert newer.bandwidths == MEASURED.bandwidths


@pytest.mark.parametrize(
    "change",
    [
        lambda _: b"",
        lambda text: text[:50],
        lambda _: b"[]",
        lambda _: b"\xff\xfe",
        lambda _: b"[" * 100_000,
        lambda _: b"0" * (2 << 20),
        lambda text: text.replace(b'"threads": 2', b'"threads": 4'),
        lambda text: text.replace(b'"schema": 1', b'"schema": 2'),
        lambda text: text.replace(b"150000000000", b"-1"),
    ],
    ids=["empty", "cut", "list", "binary", "deep", "large", "other-machine", "other-schema", "negative"],
)
def test_a_damaged_file_is_as_none(tmp_path: Path, change: Any) -> None:
    path = store(MEASURED, tmp_path)
    whole = path.read_bytes()
    path.write_bytes(change(whole))
    assert path.read_bytes() != whole
    assert load(CPU, tmp_path) is None


# ------------------------------------------------------------------------------------------------- ceilings of a report

ON_CPU = Environment(device=CPU.device, device_kind="cpu", torch="2.13.0", host_threads=2, processor=CPU.device)
H100 = Environment(device="NVIDIA H100 80GB HBM3", device_kind="cuda", device_memory_bytes=85_018_279_936)


def test_a_processor_has_the_ceilings_that_were_measured_there(tmp_path: Path) -> None:
    nothing = ceilings_for(ON_CPU, folder=tmp_path)
    assert nothing.ceilings is None
    assert nothing.why_not == (
        f"{CPU.device} with 2 threads and torch 2.13.0 has not been measured - run `OMP_NUM_THREADS=2 opanatomy peaks`"
        " on the device and analyze the trace there, or use --peak and --bandwidth"
    )
    assert ceilings_for(Environment(device_kind="cpu"), folder=tmp_path).why_not == (
        "the trace does not record the processor, the torch version or the number of threads - use --peak and"
        " --bandwidth"
    )
    store(MEASURED, tmp_path)
    known = ceilings_for(ON_CPU, folder=tmp_path).ceilings
    assert known is not None
    assert (known.matrix_peak("float32"), known.vector_peak("bfloat16")) == (150e9, 150e9)
    assert known.bandwidth_bytes_per_second == 21e9
    assert known.source == f"measured {now()[:10]}, torch 2.13.0, 2 threads"
    assert ceilings_for(replace(ON_CPU, host_threads=8), folder=tmp_path).ceilings is None


def test_an_accelerator_has_those_of_its_sheet_unless_measured(tmp_path: Path) -> None:
    sheet = ceilings_for(H100, multiprocessors=132, folder=tmp_path).ceilings
    assert sheet is not None
    assert (sheet.matrix_peak("bfloat16"), sheet.matrix_peak("float8_e5m2")) == (989.4e12, 1978.9e12)
    assert sheet.matrix_peak("float32") != sheet.matrix_peak("float32", tf32=True) == 494.7e12
    assert sheet.source.startswith("data sheet of H100 SXM, https://")
    assert ceilings_for(H100, multiprocessors=60, folder=tmp_path).ceilings is None  # a part of the device
    machine = Machine(
        device="NVIDIA H100 80GB HBM3", kind="cuda", memory_bytes=85_018_279_936, torch="2.13", driver="5"
    )
    store(replace(MEASURED, machine=machine, peaks={"bfloat16": rate(700e12)}), tmp_path)
    assert ceilings_for(H100, multiprocessors=132, folder=tmp_path).ceilings == sheet
    measured = ceilings_for(replace(H100, torch="2.13", driver="5"), multiprocessors=132, folder=tmp_path).ceilings
    assert measured is not None
    assert (measured.matrix_peak("bfloat16"), measured.matrix_peak("float64")) == (700e12, 66.9e12)
    assert measured.source.startswith(
        f"measured {now()[:10]}, torch 2.13, driver 5; otherwise data sheet of H100 SXM, "
    )


def test_an_unknown_device_has_a_line_or_the_given_ones(tmp_path: Path) -> None:
    environment = Environment(device="Frobnicator 9000", device_kind="cuda")
    unknown = "opanatomy has no data sheet for Frobnicator 9000"
    assert ceilings_for(environment, folder=tmp_path).why_not == f"{unknown} - use --peak and --bandwidth"
    assert ceilings_for(replace(environment, torch="2.13.0"), folder=tmp_path).why_not == (
        f"{unknown} - run `opanatomy peaks` on the device and analyze the trace there, or use --peak and --bandwidth"
    )
    given = ceilings_for(environment, overrides=parse_overrides("1P", "1T"), folder=tmp_path).ceilings
    assert given is not None
    assert (given.matrix_peak("float16"), given.source) == (1e15, "--peak 1P and --bandwidth 1T")


# ----------------------------------------------------------------------------------------------------------- command


@pytest.mark.usefixtures("quick_ceilings")
def test_the_command_measures_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def ceilings(*words: str) -> Any:
        assert main(["peaks", "--device", "cpu", *words, "-f", "json"]) == 0
        return json.loads(capsys.readouterr().out)

    first = ceilings("--dtype", "fp32,float64")
    assert set(first["peaks"]) == {"float32", "float64"}
    assert set(first["bandwidth"]["ways"]) == {"copy", "triad", "read"}
    assert first["bandwidth"]["ways"]["copy"]["by"] == "copy of 1 MiB arrays"
    for one in (*first["peaks"].values(), *first["bandwidth"]["ways"].values()):
        assert one["source"] == "measured"
        assert 0 <= one["spread"] < 1 <= one["bursts"]
    assert ceilings("--dtype", "fp32,float64") == first
    again = ceilings("--dtype", "fp32", "--refresh")
    assert again["peaks"]["float32"]["flops_per_second"] != first["peaks"]["float32"]["flops_per_second"]
    assert main(["peaks", "--device", "cpu", "--dtype", "tf32"]) == 0
    assert "tf32: not supported by cpu" in capsys.readouterr().err
    assert main(["peaks", "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    assert "bfloat16" in text  # was not tried before
    assert "today" in text
    assert len(list((tmp_path / "opanatomy" / "ceilings").iterdir())) == 1


#: Measures what else runs on the one core that it and two other processes have.
SHARED_CORE: Final = """
import os, subprocess, sys
from opanatomy.capture.ceilings import load_of
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
try:
    print(load_of("cpu"))
finally:
    for other in others:
        other.kill()
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="a process cannot be kept on one core")
def test_a_processor_that_others_take_too_is_busy() -> None:
    command = run_code(SHARED_CORE)
    assert command.returncode == 0, command.stderr
    assert BUSY < float(command.stdout) < 1


def test_what_cannot_be_measured_is_not_known() -> None:
    assert load_of("meta") is None
    assert not MachineLoad().busy


@pytest.mark.parametrize(
    ("load", "busy", "text"),
    [
        (MachineLoad(before=0.02, after=0.1), False, "2 % before and 10 % after"),
        (MachineLoad(before=0.11), True, "11 % before"),
        (MachineLoad(before=0.01, after=0.5), True, "1 % before and 50 % after"),
    ],
)
def test_a_machine_is_busy_before_or_after(load: MachineLoad, busy: bool, text: str) -> None:
    assert (load.busy, load.text) == (busy, text)


@pytest.mark.parametrize(
    ("load", "says"),
    [
        (None, ()),
        ({"before": 0.04, "after": 0.02}, ()),
        (
            {"before": 0.04, "after": 0.48},
            (
                "the machine was busy: utilization by other work was 4 % before and 48 % after the steps. All"
                " times are longer than on an idle machine, by an unknown amount - run again when the machine is idle",
            ),
        ),
    ],
)
def test_a_report_of_a_busy_machine_begins_with_that(
    load: dict[str, float] | None, says: tuple[str, ...], tmp_path: Path
) -> None:
    """A trace of before this was measured says nothing."""
    document = json.loads(gzip.decompress((TRACES / "bert_cpu.json.gz").read_bytes()))
    assert "load" not in document["opanatomy"]["environment"]
    if load is not None:
        document["opanatomy"]["environment"]["load"] = load
    (tmp_path / "a.json").write_text(json.dumps(document))
    anatomy = opanatomy.analyze(tmp_path / "a.json")
    assert anatomy.caveats == says
    first = format_named("terminal").write(anatomy, Page()).splitlines()[1]  # below the title
    assert first.startswith("the machine was busy: ") is bool(says)


def test_every_capture_has_the_load_of_the_machine() -> None:
    """And draws no random number for it, which the step would miss."""
    layer, inputs = torch.nn.Linear(4, 4), torch.ones(2, 4)
    with opanatomy.record(warmup=0) as recorder:
        layer(inputs).sum().backward()
        recorder.step()
    state = torch.get_rng_state()
    for anatomy in (opanatomy.profile(layer, inputs), recorder.anatomy):
        load = anatomy.environment.load
        assert load is not None
        assert all(share is not None and 0 <= share < 1 for share in (load.before, load.after))
    load_of("cpu")
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(("before", "says"), [(0.01, False), (0.6, True)])
def test_ceilings_measured_beside_other_work_are_remarked_on(
    before: float, says: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    machine = machine_of(environment_of("cpu"))
    assert machine is not None
    rate = Rate(per_second=1e12, by="a product", spread=0.0, bursts=9, measured=now())
    store(
        Measured(
            machine=machine,
            peaks={"float32": rate},
            bandwidths={"copy": rate},
            tried=PEAK_TYPES,
            load=MachineLoad(before=before, after=0.0),
        )
    )
    assert main(["peaks", "--device", "cpu"]) == 0
    assert ("other work was running" in " ".join(capsys.readouterr().out.split())) is says
    assert main(["peaks", "--device", "cpu", "-f", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["load"] == {"before": before, "after": 0.0}


def test_the_command_takes_given_ceilings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["peaks", "--device", "cpu", "--peak", "1T", "--bandwidth", "100G", "-f", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["peaks"]["float32"] == {
        "flops_per_second": 1e12,
        "source": "given",
        "data_sheet_flops_per_second": None,
    }
    assert document["bandwidth"]["bytes_per_second"] == 100e9
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dtype", "fp33"], "no peak for data type 'fp33'"),
        (["--peak", "fast"], "--peak fast: 'fast' is not a number"),
        (["--bandwidth", "12"], "--bandwidth 12"),
        (["-f", "xml"], "--format xml: unknown - use one of terminal, json"),
        (["--device", "tpu"], "--device tpu"),
    ],
)
def test_wrong_usage(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["peaks", *options]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    import torch

    machine = Machine(device=torch.cuda.get_device_name(), kind="cuda")
    before = torch.get_float32_matmul_precision()
    measured = measure(machine, "cuda:0")
    assert measured.peaks["tf32"].per_second > measured.peaks["float32"].per_second
    assert measured.bandwidths["copy"].per_second > 1e11
    assert torch.get_float32_matmul_precision() == before
