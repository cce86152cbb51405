"""An experiment with techniques: which runs there are, what becomes of them, what the report says of it."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from opanatomy.capture.run.unprofiled import compare_outcome, first_difference, keep_outcome
from opanatomy.errors import UsageError
from opanatomy.options import RUN, RunOptions
from opanatomy.predict.experiment import Experiment, Settings, Store, advice_of, folder_for
from opanatomy.predict.techniques import BASELINE, TECHNIQUE, TECHNIQUES, Situation, option_text, variants_of
from opanatomy.predict.workers import JobFailed, planned, run_job, run_jobs
from opanatomy.records.comparison import memory_agrees, time_agrees, time_error, within_noise
from opanatomy.records.experiment import LossCurve, OperatorError, Sameness, StepFigures, TechniqueRow, Techniques
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import Environment, Workload
from opanatomy.report.formats import format_named
from opanatomy.report.section import Page
from tests.tiny import BERT, TINY, tiny_request


def situation(**changes: Any) -> Situation:
    return Situation(
        options=RunOptions(model="m", optimizer="adamw", device="cpu"), batch=changes.pop("batch", 8), layers=4,
        attention="sdpa", on_cpu=True,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ variants


def test_every_technique_switches_options_that_there_are() -> None:
    known = {option.name for option in RUN}
    here = situation()
    for technique in TECHNIQUES:
        changes = technique.switch(here)
        assert changes, technique.name
        assert set(changes) <= known, technique.name
        assert option_text(changes).startswith("--")


def test_the_baseline_comes_first_and_what_it_has_is_left_out() -> None:
    names = [variant.name for variant in variants_of(situation())]
    assert names[0] == BASELINE
    assert "adamw" not in names  # the optimizer of the baseline
    assert "checkpointing" in names


def test_a_technique_that_cannot_run_is_there_with_its_reason() -> None:
    by_name = {variant.name: variant for variant in variants_of(situation(batch=1))}
    assert "batch of 1" in (by_name["accumulation"].impossible or "")
    assert "GPU" in (by_name["amp-fp16"].impossible or "")
    assert by_name["sdpa"].impossible == "the baseline has it"


@pytest.mark.parametrize(
    ("model", "lowest"),
    [(BERT, 1), ("google-t5/t5-base", 3), ("facebook/bart-base", 3), ("openai/clip-vit-base-patch32", 1)],
)
def test_three_quarters_of_all_layers_are_frozen(model: str, lowest: int) -> None:
    """Of two layers, of two and two one after the other, and of two in each of two towers."""
    known = planned(tiny_request(model))
    here = replace(situation(), layers=known.layers, freezable_layers=known.freezable_layers)
    assert TECHNIQUE["freeze-lower"].switch(here) == {"freeze": f"embeddings,layers:{lowest}"}


def test_one_layer_has_no_segments() -> None:
    assert TECHNIQUE["checkpointing-segments"].impossible(replace(situation(), layers=1)) is not None
    assert TECHNIQUE["checkpointing-segments"].impossible(replace(situation(), layers=2)) is None


def test_techniques_are_named_one_by_one_or_with_commas() -> None:
    names = [variant.name for variant in variants_of(situation(), only=["sgd, amp", "eager"], skip=["amp,lora"])]
    assert names == [BASELINE, "sgd", "eager"]


def test_a_combination_has_all_its_options() -> None:
    variants = variants_of(situation(), only=["sgd"], combine=["amp+checkpointing"])
    assert [variant.name for variant in variants] == [BASELINE, "sgd", "amp+checkpointing"]
    options = variants[2].options
    assert (options.amp, options.checkpointing) == ("bf16", "non-reentrant")
    assert variants[2].option == "--amp bf16 --checkpointing"
    assert not variants[2].keeps_result


def test_techniques_that_exclude_each_other_are_not_combined() -> None:
    with pytest.raises(UsageError, match="--optimizer sgd and --optimizer adafactor exclude"):
        variants_of(situation(), combine=["sgd+adafactor"])


@pytest.mark.parametrize("where", ["only", "skip", "combine"])
def test_a_name_that_is_none_names_the_nearest(where: str) -> None:
    with pytest.raises(UsageError, match=f"--{where} checkpoint: .*did you mean checkpointing"):
        variants_of(situation(), **{where: ["checkpoint"]})


# ------------------------------------------------------------------------------------------------------------- workers


def _ends(code: int) -> int:
    os._exit(code)


def _killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _some() -> Iterator[int]:
    yield 1
    yield 2
    raise UsageError("no third")


def _marked(name: str) -> str | None:
    before = os.environ.get(name)
    os.environ[name] = "set"
    return before


def test_a_job_gives_what_it_makes_and_leaves_nothing_behind() -> None:
    assert [run_job(_marked, "OPANATOMY_MARK") for _ in range(2)] == [None, None]


def test_a_job_has_the_environment_of_whoever_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the one in which the server of the processes was begun: secrets are known by the environment's values."""
    run_job(os.getpid)
    monkeypatch.setenv("OPANATOMY_LATER", "set")
    assert run_job(os.getenv, "OPANATOMY_LATER") == "set"
    monkeypatch.delenv("OPANATOMY_LATER")
    assert run_job(os.getenv, "OPANATOMY_LATER") is None


@pytest.mark.parametrize(
    ("job", "arguments", "message"),
    [(_ends, (3,), "exit code 3"), (_killed, (), "SIGKILL: the system ends"), (len, (5,), "TypeError: object of type")],
)
def test_a_job_that_breaks_says_how(job: Any, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(JobFailed, match=message):
        run_job(job, *arguments)


def test_what_was_made_before_a_job_breaks_is_there() -> None:
    made = []
    with pytest.raises(JobFailed, match="no third"):
        made.extend(run_jobs(_some))
    jobs = run_jobs(_some)
    assert [next(jobs), next(jobs)] == [1, 2]


# ---------------------------------------------------------------------------------------------------------- comparison


def figures(step_ns: float, peak: int = 1_000_000, spread: float = 0.02, **others: Any) -> StepFigures:
    return StepFigures(
        peak_bytes=peak, step_ns=step_ns, low_ns=step_ns * (1 - spread), high_ns=step_ns * (1 + spread), samples=8,
        at_peak={"forward_activations": peak // 2, "weights": peak - peak // 2},
        components={"forward_activations": peak // 2, "weights": peak - peak // 2},
        flops={"forward": 100, "backward": 200}, **others,
    )  # fmt: skip


def row(name: str, **fields: Any) -> TechniqueRow:
    return TechniqueRow(name=name, title=name, option=f"--{name}", keeps_result=True, **fields)


def experiment_of(*rows: TechniqueRow) -> Techniques:
    baseline = row(BASELINE, predicted=figures(100e6), measured=figures(100e6))
    return Techniques(
        opanatomy="0", command="c", created="now", environment=Environment(device="cpu", device_kind="cpu"),
        workload=Workload(model="m", batch=8), rows=(replace(baseline, option=""), *rows), seed=0, repetitions=3,
    )  # fmt: skip


def test_a_prediction_is_held_against_the_change_not_the_drift() -> None:
    baseline = row(BASELINE, predicted=figures(100e6), measured=figures(120e6))  # the machine is slower now
    faster = row("x", predicted=figures(50e6, spread=0.1), measured=figures(60e6))
    assert time_error(faster, baseline) == pytest.approx(0.0)
    assert time_agrees(faster, baseline)
    slower = row("y", predicted=figures(50e6, spread=0.1), measured=figures(72e6))
    assert time_error(slower, baseline) == pytest.approx(-1 / 6)
    assert time_agrees(slower, baseline) is False


def test_memory_agrees_within_two_percent() -> None:
    assert memory_agrees(row("x", predicted=figures(1, 1_019_000), measured=figures(1)))
    assert memory_agrees(row("x", predicted=figures(1, 1_021_000), measured=figures(1))) is False
    assert memory_agrees(row("x", measured=figures(1))) is None


@pytest.mark.parametrize(
    "changes",
    [{"gradient_units": 1e6}, {"weight_units": 4_000.0}, {"loss_units": 1e3}, {"not_compared": ("head.weight",)}],
)
def test_the_training_is_the_same_only_where_all_of_it_is(changes: dict[str, Any]) -> None:
    same = Sameness(loss_units=1.0, gradient_units=3.0, weight_units=0.5)
    assert same.same
    assert not replace(same, **changes).same


def test_a_step_of_other_parameters_or_without_its_update_is_not_the_same(tmp_path: Path) -> None:
    options = tiny_request(BERT, optimizer="adamw")
    loss = keep_outcome(options, tmp_path / "kept")
    assert compare_outcome(options, tmp_path / "kept", loss).same
    assert not compare_outcome(replace(options, optimizer=None), tmp_path / "kept", loss).same
    frozen = compare_outcome(replace(options, freeze="embeddings"), tmp_path / "kept", loss)
    assert frozen.not_compared
    assert not frozen.same


def test_the_first_operator_that_differs_is_named() -> None:
    options = tiny_request(BERT)
    assert first_difference(options, options) is None
    assert first_difference(replace(options, amp="bf16"), options) is not None


def test_ranges_that_overlap_are_noise() -> None:
    assert within_noise(figures(100e6), figures(103e6))
    assert not within_noise(figures(100e6), figures(110e6))


REPORT = experiment_of(
    row("less", predicted=figures(130e6, 505_000), measured=figures(131e6, 500_000),
        sameness=Sameness(loss_units=0.0, gradient_units=3.0, weight_units=1.0)),
    row("same-time", predicted=figures(100e6, 1_000_000), measured=figures(101e6, 1_000_000)),
    row("wrong", predicted=figures(100e6, 1_300_000), measured=figures(200e6, 1_000_000),
        offenders=(OperatorError(operator="aten::mm", phase=Phase.FORWARD, predicted_ns=1e6, measured_ns=9e6),),
        sameness=Sameness(loss_units=9e9, gradient_units=9e9, weight_units=0.0, first_operator="aten.mm.default")),
    row("broken", failed="out of memory in the forward phase", not_predicted="needs bitsandbytes"),
    row("changing", measured=figures(100e6), losses=LossCurve(losses=(2.0, 1.5), baseline=(2.0, 1.6))),
)  # fmt: skip


def test_the_report_says_what_changed_what_disagrees_and_what_did_not_run() -> None:
    text = format_named("terminal").write(REPORT, Page(width=110))
    lines = {line.split()[0]: line for line in text.splitlines() if line and line.split()}
    assert "less" in text
    assert "-50.0 %" in text
    assert "+31.0 %" in text
    assert "not run: out of memory in the forward phase" in text
    assert "aten::mm (forward) 9.00 ms for 1.00 ms" in text
    assert "DIFFERS, first in aten.mm.default" in text
    assert any("~" in line for line in text.splitlines() if line.startswith("same-time"))
    assert any(line.rstrip().endswith("!") for line in text.splitlines() if line.startswith("wrong"))
    assert lines


@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_line_of_the_report_fits(width: int) -> None:
    text = format_named("terminal").write(REPORT, Page(width=width))
    assert max(map(len, text.splitlines())) <= width


def test_the_json_report_is_the_experiment() -> None:
    text = format_named("json").write(REPORT, Page())
    assert msgspec.json.decode(text, type=Techniques) == REPORT
    assert json.loads(text)["rows"][1]["name"] == "less"


def test_the_csv_report_has_a_row_each() -> None:
    rows = list(csv.DictReader(io.StringIO(format_named("csv").write(REPORT, Page()))))
    assert [one["name"] for one in rows] == [known.name for known in REPORT.rows]
    assert rows[1]["measured_peak_bytes"] == "500000"
    assert rows[4]["measured_step_ns"] == ""


def test_advice_comes_from_the_numbers() -> None:
    text = "\n".join(advice_of(REPORT))
    assert "--less saves 0 MB" in text or "--less saves" in text
    assert "the step takes 31% longer" in text
    assert "--wrong saves" not in text


# --------------------------------------------------------------------------------------------------- a whole experiment


class Quiet:
    def __init__(self) -> None:
        self.stages: list[str] = []

    def stage(self, text: str, *, steps_after: int = 0, expected_ns: int | None = None) -> None:
        self.stages.append(text)


def experiment(folder: Path, stages: Quiet, *, resume: bool = False, **settings: Any) -> Experiment:
    one_layer = (*TINY[BERT], ("num_hidden_layers", "1"))
    options = tiny_request(BERT, optimizer="adamw", warmup=1, settings=one_layer)
    chosen = {"only": ("checkpointing", "sgd", "amp-fp16"), "repetitions": 1, "loss_steps": 2, **settings}
    return Experiment(options, Settings(**chosen), Store(folder, resume=resume), stages)


def test_an_experiment_from_end_to_end_and_on_from_where_it_was(tmp_path: Path) -> None:
    stages = Quiet()
    first = experiment(tmp_path / "e", stages)
    first.predict()
    first.measure()
    report = first.result()
    rows = {one.name: one for one in report.rows}
    assert list(rows) == [BASELINE, "checkpointing", "sgd", "amp-fp16"]
    for one in rows.values():
        assert one.failed is None
        # A product of float16 on a processor takes 66 kB for itself, which fake tensors do not show: much of this peak.
        assert memory_agrees(one) is not False or one.name == "amp-fp16", one.name
        assert one.measured is not None
        assert one.predicted is not None
        assert one.predicted.flops == one.measured.flops
        assert len(one.repetitions_ns) == (2 if one.name == BASELINE else 1)
    assert report.order[0].count(BASELINE) == 2  # of three others
    base = rows[BASELINE].measured
    assert base is not None
    checkpointed, sgd = rows["checkpointing"].measured, rows["sgd"].measured
    assert checkpointed is not None
    assert sgd is not None
    assert checkpointed.components["forward_activations"] < base.components["forward_activations"]
    assert checkpointed.backward_ratio is not None
    assert checkpointed.backward_ratio > 2.5  # all but the head runs again
    assert 2 * sgd.components["optimizer_state"] == base.components["optimizer_state"]
    assert rows["checkpointing"].sameness is not None
    assert rows["checkpointing"].sameness.same
    assert rows["sgd"].losses is not None
    underflow = rows["amp-fp16"].underflow
    assert underflow is not None
    assert underflow.elements == base.parameters
    assert [name for name, one in rows.items() if one.underflow is not None] == ["amp-fp16"]
    assert sorted(path.name for path in (tmp_path / "e").iterdir() if "sgd" in path.name) == [
        "sgd.report.json", "sgd.results.json", "sgd.trace.json.gz",
    ]  # fmt: skip
    again = Quiet()
    second = experiment(tmp_path / "e", again, resume=True)
    second.predict()
    second.measure()
    assert not [stage for stage in again.stages if "capture" in stage]
    assert [one.repetitions_ns for one in second.result().rows] == [one.repetitions_ns for one in report.rows]


def test_inference_without_loss_and_gradients_is_not_called_the_same(tmp_path: Path) -> None:
    options = tiny_request(BERT, inference=True)
    inference = Experiment(options, Settings(), Store(tmp_path / "e", resume=False), Quiet())
    inference.variants = variants_of(replace(situation(), options=options), only=["eager", "amp"])
    inference.rows = {variant.name: row(variant.name) for variant in inference.variants}
    inference._compare()
    assert all(one.sameness is None and one.losses is None for one in inference.rows.values())
    assert "is not compared" in inference.warnings[0]


def test_a_folder_that_is_there_is_not_written_into(tmp_path: Path) -> None:
    Store(tmp_path / "e", resume=False)
    with pytest.raises(UsageError, match="--resume"):
        Store(tmp_path / "e", resume=False)


def test_a_folder_in_which_nothing_ran_is_gone(tmp_path: Path) -> None:
    store = Store(tmp_path / "e", resume=False)
    with store.open():
        store.kept(BASELINE, RunOptions(model="m"))
    assert not (tmp_path / "e").exists()
    store = Store(tmp_path / "e", resume=False)
    with store.open():
        store.kept(BASELINE, RunOptions(model="m")).trace.write_text("{}")
    assert (tmp_path / "e").exists()


def test_a_folder_for_each_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert folder_for(None, "bert", resume=False) == Path("bert.techniques")
    Path("bert.techniques").mkdir()
    assert folder_for(None, "bert", resume=False) == Path("bert-2.techniques")
    assert folder_for(None, "bert", resume=True) == Path("bert.techniques")
    assert folder_for("mine", "bert", resume=True) == Path("mine")
