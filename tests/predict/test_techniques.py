"""An experiment with techniques: which runs there are, what becomes of them, what the report says of it."""

from __future__ import annotations

import csv
import io
import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from opanatomy.analysis.statistics import mann_whitney, runs_needed
from opanatomy.cli.main import main
from opanatomy.errors import UsageError
from opanatomy.levers import Context, option_text
from opanatomy.options import RUN, RunOptions
from opanatomy.predict.experiment import advice_of, repetitions_for, timed
from opanatomy.predict.techniques import BASELINE, TECHNIQUE, listing_of, variants_of
from opanatomy.predict.workers import JobFailed, lever_context, run_job
from opanatomy.records.comparison import SIGNIFICANT, memory_agrees, time_agrees, time_error, within_noise
from opanatomy.records.experiment import Repetition, Sameness, StepFigures, TechniqueRow, Techniques
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import MachineLoad
from opanatomy.report.formats import format_named
from opanatomy.report.section import Page
from tests.support.command import run
from tests.support.experiments import experiment
from tests.support.tiny import BERT, TINY_SEQ, tiny_request


def context(**changes: Any) -> Context:
    values = {"batch": 8, "layers": 4, "attention": "sdpa", "on_cpu": True, **changes}
    return Context(run=RunOptions(model="m", optimizer="adamw", device="cpu"), **values)


# ------------------------------------------------------------------------------------------------------------ variants


def test_every_technique_switches_options_that_there_are() -> None:
    known = {option.name for option in RUN}
    for technique in TECHNIQUE.values():
        changes = technique.changes(context())
        assert changes, technique.name
        assert set(changes) <= known, technique.name
        assert option_text(changes).startswith("--")


@pytest.mark.parametrize(
    ("changes", "name", "why"),
    [
        ({"batch": 1}, "accumulation", "batch of 1"),
        ({}, "amp-fp16", "use --only to run it"),
        ({"on_cpu": False}, "amp-fp16", None),
        ({}, "sdpa", "the baseline already uses it"),
        ({"layers": 1}, "checkpointing-segments", "the model has only one layer, so no segment can hold several"),
        ({}, "checkpointing", None),
    ],
)
def test_a_technique_that_cannot_run_is_there_with_its_reason(
    changes: dict[str, Any], name: str, why: str | None
) -> None:
    variants = variants_of(context(**changes))
    assert variants[0].name == BASELINE
    assert "adamw" not in {variant.name for variant in variants}  # the optimizer of the baseline
    (variant,) = [variant for variant in variants if variant.name == name]
    assert (variant.blocked_because is None) == (why is None)
    assert (why or "") in (variant.blocked_because or "")


@pytest.mark.parametrize(
    ("model", "lowest"), [(BERT, 1), ("google-t5/t5-base", 3), ("openai/clip-vit-base-patch32", 1)]
)
def test_three_quarters_of_all_layers_are_frozen(model: str, lowest: int) -> None:
    """Of two layers, of two and two one after the other, and of two in each of two towers."""
    known = lever_context(tiny_request(model))
    here = replace(context(), layers=known.layers, freezable_layers=known.freezable_layers)
    assert TECHNIQUE["freeze-lower"].changes(here) == {"freeze": f"embeddings,layers:{lowest}"}


@pytest.mark.parametrize("inside", [8.3, 34.7])
def test_segments_are_of_as_many_layers_as_need_least(inside: float) -> None:
    """Of models whose layers keep so many times what a segment does: those of the benchmark lie between."""
    for layers in range(4, 49, 5):
        needed = {every: layers // every + inside * every for every in range(2, layers + 1)}
        segments = variants_of(context(layers=layers), only=["checkpointing-segments"])[1]
        assert needed[segments.options.checkpoint_every or 0] == min(needed.values())


def test_without_a_model_all_techniques_are_listed_and_none_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("opanatomy.predict.techniques.lever_context", None)
    assert main(["techniques", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line[0] != " "] == list(TECHNIQUE)
    text = " ".join(" ".join(lines).split())
    for name, option in (("amp", "--amp bf16"), ("accumulation", "--accumulate"), ("freeze-lower", "layers:N")):
        assert option in next(line for line in lines if line.startswith(f"{name} "))
        assert TECHNIQUE[name].what in text
    assert listing_of(None, 80, only=["lora,amp"], skip=["amp"]).startswith("lora")
    assert main(["techniques"]) == 2
    assert "pass MODEL, or use --list" in capsys.readouterr().err


def test_techniques_are_named_skipped_and_combined() -> None:
    names = [variant.name for variant in variants_of(context(), only=["sgd, amp", "eager"], skip=["amp,lora"])]
    assert names == [BASELINE, "sgd", "eager"]
    named = variants_of(context(), only=["amp-fp16"])
    assert [variant.blocked_because for variant in named] == [None, None]
    both = variants_of(context(), only=["sgd"], combine=["amp+checkpointing"])[2]
    assert (both.name, both.option, both.keeps_result) == ("amp+checkpointing", "--amp bf16 --checkpointing", False)
    assert (both.options.amp, both.options.checkpointing) == ("bf16", "non-reentrant")
    with pytest.raises(UsageError, match="--optimizer sgd and --optimizer adafactor are mutually"):
        variants_of(context(), combine=["sgd+adafactor"])
    for skipped in ("sgd, amp", "AMP,SGD"):
        with pytest.raises(UsageError, match=r"^--skip leaves out every technique"):
            variants_of(context(), only=["amp", "sgd"], skip=[skipped])
    for where in ("only", "skip", "combine"):
        with pytest.raises(UsageError, match=f"--{where} checkpoint: .*did you mean checkpointing"):
            variants_of(context(), **{where: ["checkpoint"]})


# --------------------------------------------------------------------------------------------------- a whole experiment

#: Wide enough that no single small buffer is 2 % of the peak.
WIDE = {
    BERT: "hidden_size=64 num_attention_heads=2 intermediate_size=256 num_hidden_layers=2 vocab_size=300"
    " max_position_embeddings=64",
    "openai-community/gpt2": "n_layer=2 n_embd=64 n_head=2 vocab_size=300 n_positions=64 bos_token_id=1 eos_token_id=1",
    "google-t5/t5-base": "num_layers=2 d_model=64 d_kv=32 d_ff=256 num_heads=2 vocab_size=300",
    "google/vit-base-patch16-224": "hidden_size=64 num_attention_heads=2 intermediate_size=256 num_hidden_layers=2"
    " image_size=32 patch_size=8 num_labels=10",
}
#: Of T5 and ViT those whose path the model changes: two stacks of layers, layers that hand values on, no biases,
#: weights kept in float32, a convolution, a head without words.
CHOSEN = {
    BERT: ("--only", "accumulation,checkpointing,checkpointing-segments,amp,freeze-lower,lora,sgd"),
    "openai-community/gpt2": (
        "--only",
        "checkpointing-reentrant,checkpointing-segments,eager,fused-loss,freeze-all-but-head,adamw-loop,adafactor",
    ),
    "google-t5/t5-base": (
        "--only",
        "checkpointing,checkpointing-segments,amp,fused-loss,freeze-lower,freeze-all-but-biases,lora",
    ),
    "google/vit-base-patch16-224": ("--only", "checkpointing,amp,fused-loss,freeze-embeddings"),
}
#: Why a technique cannot be on a model, by the prediction and by the run.
CANNOT = {
    ("openai-community/gpt2", "freeze-all-but-head"): "GPT2LMHeadModel has no weights outside its base model",
    ("google-t5/t5-base", "freeze-all-but-biases"): "T5ForConditionalGeneration has no biases",
    ("google-t5/t5-base", "checkpointing-segments"): "T5Block in encoder.block returns values besides the hidden"
    " states",
    ("google/vit-base-patch16-224", "fused-loss"): "ViTForImageClassification has no linear head that predicts tokens",
}
#: Forward and backward take the FLOPs of the baseline, whatever runs a second time.
SAME_FLOPS = frozenset({
    "accumulation", "checkpointing", "checkpointing-reentrant", "checkpointing-segments", "amp", "adamw-loop", "sgd",
    "adafactor",
})  # fmt: skip
#: One model is enough of a measurement for each change.
EXHAUSTIVE = pytest.mark.exhaustive


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "model",
    [pytest.param(model, marks=() if model == "openai-community/gpt2" else EXHAUSTIVE) for model in CHOSEN],
)
def test_techniques_do_to_a_model_what_is_predicted(model: str, tmp_path: Path) -> None:
    sizes = [word for setting in WIDE[model].split() for word in ("--set", setting)]
    length = ("--seq", "16") if model in TINY_SEQ else ()
    words = (
        "techniques",
        model,
        *sizes,
        *length,
        "--batch",
        "4",
        "--device",
        "cpu",
        "--optimizer",
        "adamw",
        "--repetitions",
        "1",
        "--loss-steps",
        "2",
        "--folder",
        "e",
        "-f",
        "json",
        *CHOSEN[model],
    )
    done = run(*words, cwd=tmp_path, timeout=500)
    assert done.returncode == 0, done.stderr
    report = msgspec.json.decode(done.stdout, type=Techniques)
    rows = {row.name: row for row in report.rows}
    for name, row in rows.items():
        if (why := CANNOT.get((model, name))) is not None:
            assert why in (row.not_predicted or "")
            assert row.failed == row.not_predicted
        elif row.measured is not None:
            check_row(model, row, rows[BASELINE])
    tried = {name for name, row in rows.items() if row.measured is not None}
    assert len(tried) >= len(CHOSEN[model][1].split(",")) - 2
    assert any(text.startswith("with only 1 repetition, times may differ by chance") for text in report.warnings)
    assert all(row.measured.load is not None for row in rows.values() if row.repetitions_ns and row.measured)
    if model == BERT:
        check_files_and_resume(report, words, tmp_path)


def check_row(model: str, row: TechniqueRow, base: TechniqueRow) -> None:
    """Memory, FLOPs and state: predicted, measured, and next to the baseline."""
    predicted, measured, plain = row.predicted, row.measured, base.measured
    assert predicted is not None, row.name
    assert measured is not None
    assert plain is not None
    # Of bfloat16 operands oneDNN's convolution keeps copies inside, which is much of the memory of a tiny ViT.
    if (model, row.name) == ("google/vit-base-patch16-224", "amp"):
        assert (predicted.peak_bytes or 0) < (measured.peak_bytes or 0)
    else:
        assert predicted.peak_bytes == pytest.approx(measured.peak_bytes, rel=0.02), row.name
    for component in ("weights", "gradients", "optimizer_state", "buffers", "inputs", "held_by_model"):
        assert predicted.components.get(component) == measured.components.get(component), (row.name, component)
    kept = measured.components["forward_activations"]
    assert predicted.components["forward_activations"] == pytest.approx(kept, rel=0.02), row.name
    assert predicted.flops == measured.flops, row.name
    forward, backward = (measured.flops.get(phase, 0) for phase in (Phase.FORWARD, Phase.BACKWARD))
    whole = (plain.flops[Phase.FORWARD], plain.flops[Phase.BACKWARD])
    assert 0 <= measured.flops.get(Phase.RECOMPUTE, 0) <= forward
    assert (measured.flops.get(Phase.RECOMPUTE, 0) > 0) == ("checkpointing" in row.name)
    assert row.name not in SAME_FLOPS or (forward, backward) == whole
    if row.name.startswith("freeze"):
        assert (forward, backward < whole[1]) == (whole[0], True)
    if row.name.startswith(("accumulation", "checkpointing")):
        assert kept < 0.6 * plain.components["forward_activations"]
    state = measured.components["optimizer_state"]
    if row.name == "adafactor":
        assert state < 0.1 * plain.components["optimizer_state"]
    else:
        assert state == (4 if row.name == "sgd" else 8) * (measured.trainable_parameters or 0)
    assert (row.sameness is not None) == (row.keeps_result and row.name != BASELINE)
    assert row.sameness is None or row.sameness.same, row.name
    assert (row.losses is not None) == (not row.keeps_result)


def check_files_and_resume(report: Techniques, words: tuple[str, ...], folder: Path) -> None:
    """The baseline is timed more often, each run leaves its files, and none of them is run again."""
    others = sum(row.measured is not None for row in report.rows) - 1
    assert report.order[0].count(BASELINE) == round(others**0.5)
    assert sorted(path.name for path in (folder / "e").iterdir() if path.name.startswith("sgd")) == [
        "sgd.report.json",
        "sgd.results.json",
        "sgd.trace.json.gz",
    ]
    refused = run(*words, cwd=folder)
    assert refused.returncode == 2
    assert "--resume" in refused.stderr
    again = run(*words, "--resume", cwd=folder, timeout=200)
    assert again.returncode == 0
    assert "capture" not in again.stderr
    rows = msgspec.json.decode(again.stdout, type=Techniques).rows
    assert [row.repetitions_ns for row in rows] == [row.repetitions_ns for row in report.rows]


def end(code: int) -> int:
    os._exit(code)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("job", "arguments", "message"),
    [(end, (3,), "exit code 3"), (kill, (), "SIGKILL: the system kills"), (len, (5,), "TypeError: object of type")],
)
def test_a_job_that_breaks_says_how(job: Any, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(JobFailed, match=message):
        run_job(job, *arguments)


# ---------------------------------------------------------------------------------------------------------- comparison


def figures(step_ns: float, peak: int = 1_000_000, spread: float = 0.02) -> StepFigures:
    return StepFigures(
        peak_bytes=peak, step_ns=step_ns, low_ns=step_ns * (1 - spread), high_ns=step_ns * (1 + spread), samples=8
    )


def row(name: str, **fields: Any) -> TechniqueRow:
    return TechniqueRow(name=name, title=name, option=f"--{name}", keeps_result=True, **fields)


def test_a_prediction_is_held_against_the_change_not_the_drift() -> None:
    baseline = row(BASELINE, predicted=figures(100e6), measured=figures(120e6))  # the machine is slower now
    faster = row("x", predicted=figures(50e6, spread=0.1), measured=figures(60e6))
    assert time_error(faster, baseline) == pytest.approx(0.0)
    assert time_agrees(faster, baseline)
    slower = row("y", predicted=figures(50e6, spread=0.1), measured=figures(72e6))
    assert time_error(slower, baseline) == pytest.approx(-1 / 6)
    assert time_agrees(slower, baseline) is False
    assert within_noise(figures(100e6), figures(103e6))
    assert not within_noise(figures(100e6), figures(110e6))


def test_memory_agrees_within_two_percent() -> None:
    assert memory_agrees(row("x", predicted=figures(1, 1_019_000), measured=figures(1)))
    assert memory_agrees(row("x", predicted=figures(1, 1_021_000), measured=figures(1))) is False
    assert memory_agrees(row("x", measured=figures(1))) is None


@pytest.mark.parametrize(
    "changes",
    [{"gradient_units": 1e6}, {"weight_units": 4_000.0}, {"loss_units": 1e3}, {"not_compared": ("head.weight",)}],
    ids=str,
)
def test_the_training_is_the_same_only_where_all_of_it_is(changes: dict[str, Any]) -> None:
    same = Sameness(loss_units=1.0, gradient_units=3.0, weight_units=0.5)
    assert same.same
    assert replace(same, loss_units=64.0, gradient_units=4096.0, weight_units=64.0).same
    assert not replace(same, **changes).same


def test_the_report_says_what_changed_what_disagrees_and_what_did_not_run() -> None:
    report = experiment()
    text = format_named("terminal").write(report, Page(width=110))
    for said in (
        "-50.0 %",
        "+30.0 %",
        "not run: out of memory",
        "aten::mm (forward) took 9.00 ms instead of the predicted 1.00 ms",
        "DIFFERS, first in aten.mm",
    ):
        assert said in text
    assert any("~" in line for line in text.splitlines() if line.startswith("slim"))
    assert any(line.rstrip().endswith("!") for line in text.splitlines() if line.startswith("wrong"))
    for width in (40, 80):
        assert max(map(len, format_named("terminal").write(report, Page(width=width)).splitlines())) <= width
    assert msgspec.json.decode(format_named("json").write(report, Page()), type=Techniques) == report
    rows = list(csv.DictReader(io.StringIO(format_named("csv").write(report, Page()))))
    assert [one["name"] for one in rows] == [known.name for known in report.rows]
    assert (rows[1]["measured_peak_bytes"], rows[5]["measured_step_ns"]) == ("500000", "")


def test_a_busy_machine_and_an_idle_one() -> None:
    """Times of a busy machine are no differences, and no advice; memory is."""
    report = experiment()
    busy = MachineLoad(before=0.02, after=0.4)
    repetition = Repetition(times_ns=(40_000_000, 44_000_000, 42_000_000), load=busy)
    idle = replace(repetition, load=MachineLoad(before=0.02, after=0.03))

    def of(*repetitions: Repetition) -> Techniques:
        rows = [timed(row, repetitions) if row.name == "fast" else row for row in report.rows]
        return replace(report, rows=tuple(rows))

    def table_of(report: Techniques) -> str:
        lines = format_named("terminal").write(report, Page(width=110)).splitlines()
        return next(line for line in lines if line.startswith("fast"))

    for quiet in (of(idle), of(idle, idle, repetition)):
        assert "-58.0 %" in table_of(quiet)
        assert [each.gain_ns for each in advice_of(quiet) if each.subject == "fast"] == [58_000_000]
    for loud in (of(repetition), of(idle, repetition, repetition)):
        measured = next(row.measured for row in loud.rows if row.name == "fast")
        assert measured is not None
        assert measured.busy
        assert "~" in table_of(loud)
        assert "58" not in table_of(loud)
        assert not [each for each in advice_of(loud) if each.subject == "fast"]
        (less,) = (each for each in advice_of(loud) if each.subject == "less")
        assert (less.gain_bytes, less.figures["more"].value) == (500_000, pytest.approx(0.3))
    slow = [replace(row, measured=replace(row.measured, load=busy)) if row.measured else row for row in report.rows]
    advice = advice_of(replace(report, rows=tuple(slow)))
    assert [each.subject for each in advice] == ["less", "slim"]
    assert not [each for each in advice if each.gain_ns is not None or "more" in each.figures]


@pytest.mark.parametrize(
    ("step_ns", "times"),
    [(None, 3), (5e9, 3), (1e9, 3), (2.9e8, 3), (2.5e8, 4), (1.5e8, 7), (1e8, 10), (1e6, 10)],
)
def test_short_steps_are_timed_more_often(step_ns: float | None, times: int) -> None:
    assert repetitions_for(step_ns) == times


@pytest.mark.parametrize(("control", "runs"), [(1, 5), (2, 4), (3, 3)])
def test_as_many_runs_as_a_claim_needs(control: int, runs: int) -> None:
    """All above all others: so the test calls that, and not with one run fewer."""
    enough, few = (
        mann_whitney([float(low) for low in range(count * control)], [100.0 + high for high in range(count)])
        for count in (runs, runs - 1)
    )
    assert enough < SIGNIFICANT <= few
    assert runs_needed(control) == runs


def test_advice_comes_from_the_numbers() -> None:
    advice = {each.subject: each for each in advice_of(experiment())}
    assert list(advice) == ["less", "slim", "fast"]
    less = advice["less"]
    assert (less.gain_bytes, less.peak_bytes, less.gain_ns, less.option) == (500_000, 1_000_000, None, "--less")
    text = format_named("terminal").write(replace(experiment(), advice=tuple(advice.values())), Page(width=200))
    text = " ".join(text.split())
    assert (
        "500 kB less memory (50.0 %): the measured peak is 500 kB; the step takes 30.0 % more time. Try `--less`."
        in text
    )
    assert "up to 60.0 ms (60.0 %): measured. Try `--fast`." in text
