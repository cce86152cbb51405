"""`opanatomy.TrainerCallback` in trainings by transformers' Trainer: what is recorded, and that nothing changes."""

from __future__ import annotations

import contextlib
import io
import json
import re
import time
from collections.abc import Callable, Iterator
from itertools import count
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import torch
import transformers
from msgspec import Struct
from transformers import Trainer, TrainingArguments

import opanatomy
from opanatomy.errors import CaptureError, GateError, OpanatomyError, OutputError
from opanatomy.records.anatomy import Anatomy
from opanatomy.records.taxonomy import OperatorClass
from opanatomy.trace.read import read_trace
from opanatomy.trainer import Guard
from tests.support.distributed_runs import start_ranks
from tests.support.paths import ROOT
from tests.support.process_state import process, without_clock
from tests.support.trainings import BATCH, LENGTH, MAX_STEPS, Texts, bert, figures, losses, trainer

PAGE: Final = ROOT / "docs" / "trainer.md"
STEPS: Final = range(3, 6)


def weights(training: Trainer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in training.model.parameters()]


def warned(anatomy: Anatomy) -> list[str]:
    """What the report warns of; how long the loading of a batch takes depends on what else the machine does."""
    return [warning for warning in anatomy.warnings if not warning.startswith("batches are loaded")]


def left_in(folder: Path) -> list[str]:
    """The files in a folder, hidden ones too, without the Trainer's own."""
    return sorted(path.name for path in folder.iterdir() if path.name != "training")


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    """Put back what the Trainer's arguments set for the whole process."""
    from accelerate.state import AcceleratorState

    yield
    AcceleratorState._reset_state(True)


# ------------------------------------------------------------------------------------------------- what is recorded


class Watch(transformers.TrainerCallback):
    """What is hung into the process when a training step begins and ends, and in the middle of its backward."""

    def __init__(self) -> None:
        self.clean = process()
        self.seen: dict[tuple[str, int], bool] = {}
        self.logs: list[dict[str, Any]] = []
        self.hooks: dict[tuple[str, int], int] = {}

    def _look(self, event: str, step: int, model: Any) -> None:
        self.seen[event, step] = without_clock(process()) == without_clock(self.clean)
        own = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        self.hooks[event, step] = sum(len(getattr(part, name)) for part in model.modules() for name in own)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._look("begin", state.global_step + 1, kwargs["model"])

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._look("inside", state.global_step + 1, kwargs["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._look("end", state.global_step, kwargs["model"])

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.logs.append(dict(logs))


class Recorded(Struct, frozen=True, kw_only=True):
    """A training with the callback between two others that watch it, and the same without."""

    plain: Trainer
    training: Trainer
    callback: opanatomy.TrainerCallback
    before: Watch
    behind: Watch
    folder: Path
    said: str
    is_clean: bool


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("trainer")
    plain = trainer(folder=folder)
    plain.train()
    with torch.profiler.profile():
        pass  # what torch itself sets when it is first profiled stays
    before, behind = Watch(), Watch()
    callback = opanatomy.TrainerCallback(STEPS, folder / "step.json")
    training = trainer(before, callback, behind, folder=folder)
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        training.train()
    return Recorded(
        plain=plain,
        training=training,
        callback=callback,
        before=before,
        behind=behind,
        folder=folder,
        said=stderr.getvalue().rstrip(),
        is_clean=process() == before.clean,
    )


def test_the_steps_asked_for_are_profiled(recorded: Recorded) -> None:
    anatomy = recorded.callback.anatomy
    assert len(anatomy.step.steps) == len(STEPS)
    assert anatomy.step.unprofiled_count == 1  # step 2: step 1 is cold
    workload = anatomy.workload
    assert (workload.model, workload.batch, workload.sequence_length) == ("BertForMaskedLM", BATCH, LENGTH)
    assert (workload.optimizer, workload.steps, workload.accumulate) == ("adamw", len(STEPS), None)
    assert warned(anatomy) == []
    modules = {row.module for row in anatomy.modules}
    assert {"bert.embeddings", "bert.encoder.layer.1.attention.self", "cls.predictions.decoder"} <= modules
    phases = [anatomy.step.phase_ns[name] for name in ("forward", "backward", "optimizer")]
    assert min(phases) > 0


def test_flops_are_those_of_profile(recorded: Recorded) -> None:
    words = torch.stack([Texts()[index]["input_ids"] for index in range(BATCH)])
    alone = opanatomy.profile(bert(), {"input_ids": words, "labels": words})

    def contractions(anatomy: Anatomy) -> dict[str, int]:
        return {
            str(row.phase): row.flops // anatomy.step.count
            for row in anatomy.classes
            if row.operator_class is OperatorClass.TENSOR_CONTRACTION
        }

    assert contractions(recorded.callback.anatomy) == contractions(alone)


def test_losses_are_the_same_to_the_bit(recorded: Recorded) -> None:
    assert len(losses(recorded.plain)) == MAX_STEPS
    assert losses(recorded.training) == losses(recorded.plain)
    assert all(map(torch.equal, weights(recorded.training), weights(recorded.plain)))


@pytest.mark.parametrize("place", ["before", "behind"])
def test_outside_of_the_steps_nothing_is_hung(recorded: Recorded, place: str) -> None:
    watch: Watch = getattr(recorded, place)
    outside = [number for number in range(1, MAX_STEPS + 1) if number not in STEPS]
    assert all(watch.seen[event, number] for event in ("begin", "inside", "end") for number in outside)
    assert not any(watch.seen["inside", number] for number in STEPS)  # the watch sees what is hung
    assert set(watch.hooks.values()) == {0}
    assert recorded.is_clean
    own = vars(recorded.training).keys() - vars(recorded.plain).keys()
    assert own == set(), "methods of the Trainer that were not put back"


def test_figures_go_through_the_trainers_log_once(recorded: Recorded) -> None:
    (entry,) = figures(recorded.training)
    assert entry["step"] == STEPS[-1]
    metrics = {name.removeprefix("opanatomy/"): value for name, value in entry.items() if "/" in name}
    anatomy = recorded.callback.anatomy
    assert metrics["step_time_ns"] == anatomy.step.unprofiled_wall_ns
    assert metrics["step_profiled_ns"] == anatomy.step.wall_ns
    assert metrics["flops"] * anatomy.step.count == sum(row.flops for row in anatomy.classes)
    assert metrics["peak_memory_bytes"] == anatomy.memory.peak_bytes
    for watch in (recorded.before, recorded.behind):
        assert [logs for logs in watch.logs if "opanatomy/flops" in logs] == [
            {name: value for name, value in entry.items() if name != "step"}
        ]
    others = [entry for entry in recorded.training.state.log_history if entry not in figures(recorded.training)]
    assert [entry.keys() for entry in others] == [entry.keys() for entry in recorded.plain.state.log_history]


def test_files_and_the_line_that_names_them(recorded: Recorded) -> None:
    assert left_in(recorded.folder) == ["step.json", "step.trace.json.gz"]
    folder, anatomy = recorded.folder, recorded.callback.anatomy
    assert recorded.said == (
        f"opanatomy: steps 3 to 5 of the training run: {folder / 'step.json'}, trace {folder / 'step.trace.json.gz'}"
    )
    assert recorded.callback.trace == folder / "step.trace.json.gz"
    assert opanatomy.read(folder / "step.json") == anatomy
    assert opanatomy.analyze(folder / "step.trace.json.gz").classes == anatomy.classes
    assert repr(recorded.callback) == "<opanatomy.TrainerCallback, steps 3 to 5, recorded>"


# -------------------------------------------------------------------------------------------------- kinds of training

#: Transformers before 5.21 call it by its old name.
_NAME = next(name for name in ("activation", "gradient") if hasattr(TrainingArguments, f"{name}_checkpointing"))
_CHECKPOINTING = {f"{_NAME}_checkpointing": True, f"{_NAME}_checkpointing_kwargs": {"use_reentrant": False}}
#: Name -> the Trainer's settings, what is recorded beside, and what the workload is said to be.
KINDS: Final[dict[str, tuple[dict[str, Any], dict[str, bool], tuple[Any, ...]]]] = {
    "accumulation, evaluations": (
        {"gradient_accumulation_steps": 2, "eval_strategy": "steps", "eval_steps": 2},
        {"check": True},
        (2 * BATCH, 2, None, None),
    ),
    "bf16, checkpointing, saves": (
        {"bf16": True, "save_strategy": "steps", "save_steps": 4, "save_only_model": True, **_CHECKPOINTING},
        {"check": True, "memory": True},
        (BATCH, None, "bf16", "non-reentrant"),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_training(kind: str, tmp_path: Path) -> None:
    """Evaluations and checkpoints lie between the profiled steps, and are in no count of them."""
    settings, options, expected = KINDS[kind]
    plain = trainer(folder=tmp_path, **settings)
    plain.train()
    callback = opanatomy.TrainerCallback(STEPS, tmp_path / "step.json", **options)
    training = trainer(callback, folder=tmp_path, **settings)
    training.train()
    assert losses(training) == losses(plain)
    assert all(map(torch.equal, weights(training), weights(plain)))
    anatomy = callback.anatomy
    assert len(anatomy.step.steps) == len(STEPS)
    assert "call counts" in {check.quantity for check in anatomy.checks if check.compared}
    assert not [difference for check in anatomy.checks for difference in check.unexplained]
    assert bool(anatomy.memory.blocks) == ("memory" in options)
    workload = anatomy.workload
    assert (workload.batch, workload.accumulate, workload.amp, workload.checkpointing) == expected
    assert len(figures(training)) == 1


def test_the_whole_training_is_on_the_clock(tmp_path: Path) -> None:
    """Evaluations, checkpoints and all other steps, in the trace and in the report that was written before."""
    settings = {"max_steps": 12, "eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps", "save_steps": 6}
    callback = opanatomy.TrainerCallback(STEPS, tmp_path / "step.json")
    trainer(callback, folder=tmp_path, **settings).train()
    run = callback.anatomy.run
    assert run is not None
    # Twelve steps, of which the first, step 2 on the clock of the recorder and three profiled ones are not counted.
    assert run.steps == 12 - 1 - 1 - len(STEPS)
    assert run.evaluations == 2 - 1  # that after step 4 falls into a recorded one
    assert run.evaluating_ns > 0
    assert run.checkpoints == 1
    assert 0 < run.checkpointing_ns < run.wall_ns
    assert run.end is not None
    assert run.end.evaluating_ns > 0
    assert opanatomy.read(tmp_path / "step.json").run == run


class SlowTexts(Texts):
    """Texts that take their time, each much longer than a step."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(0.1)
        return super().__getitem__(index)


def test_loading_is_told_apart_from_the_steps(tmp_path: Path) -> None:
    callback = opanatomy.TrainerCallback((2, 3), tmp_path / "step.json")
    training = trainer(callback, folder=tmp_path, max_steps=3)
    training.train_dataset = SlowTexts()
    training.train()
    (warning,) = callback.anatomy.warnings
    took = re.fullmatch(
        r"batches are loaded between the steps \(([\d.]+) ms each time\); no number in the report includes that time",
        warning,
    )
    assert took is not None
    sleep_ns = BATCH * 100_000_000
    assert float(took[1]) * 1e6 >= 0.99 * sleep_ns
    assert callback.anatomy.step.wall_max_ns < callback.anatomy.step.wall_ns + sleep_ns


# --------------------------------------------------------------------------------------------------------- its ends


class At(transformers.TrainerCallback):
    """Does something in the middle of a step, between backward and the update."""

    def __init__(self, step: int, action: Callable[[Any], None]) -> None:
        self.step, self.action = step, action

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step + 1 == self.step:
            self.action(control)


def fail(kind: type[BaseException]) -> Callable[[Any], None]:
    def action(_control: Any) -> None:
        raise kind("the training")

    return action


def test_a_training_that_is_interrupted_leaves_the_steps_that_are_whole(tmp_path: Path) -> None:
    before = process()
    callback = opanatomy.TrainerCallback(STEPS, tmp_path / "step.json")
    training = trainer(At(5, fail(KeyboardInterrupt)), callback, folder=tmp_path)
    with pytest.raises(KeyboardInterrupt, match="the training"):
        training.train()
    assert process() == before
    assert "_run_epoch" not in vars(training)
    assert left_in(tmp_path) == ["step.json", "step.trace.json.gz"]
    anatomy = opanatomy.read(tmp_path / "step.json")
    assert anatomy == callback.anatomy
    assert len(anatomy.step.steps) == 2
    assert warned(anatomy) == ["only 2 of 3 steps were profiled, because the recording ended early"]


@pytest.mark.parametrize("where", ["training_step", "callback_handler.call_event", "optimizer.step"])
def test_each_part_of_a_step_is_watched_where_no_method_runs_an_epoch(where: str) -> None:
    """As in transformers 4: what fails there is reported, and the methods are put back."""

    def raises() -> None:
        raise ValueError(where)

    def parts() -> SimpleNamespace:
        return SimpleNamespace(call_event=raises, step=raises)

    training = SimpleNamespace(training_step=raises, callback_handler=parts(), optimizer=parts())
    failed: list[str] = []
    guard = Guard(training, lambda error: failed.append(str(error)))
    guard.step_begins()
    with pytest.raises(ValueError, match=where):
        attrgetter(where)(training)()
    assert failed == [where]
    guard.release()
    assert attrgetter(where)(training) is raises


def test_a_training_that_fails_before_a_step_is_whole_leaves_nothing(tmp_path: Path) -> None:
    """And the callback can be used again."""
    before = process()
    callback = opanatomy.TrainerCallback(range(3, 4), tmp_path / "step.json")
    with pytest.raises(ValueError, match="the training"):
        trainer(At(3, fail(ValueError)), callback, folder=tmp_path).train()
    assert process() == before
    assert left_in(tmp_path) == []
    with pytest.raises(CaptureError, match="step 3 not recorded yet"):
        _ = callback.anatomy
    trainer(callback, folder=tmp_path, max_steps=3).train()
    assert callback.anatomy.step.count == 1


def test_steps_that_do_not_come_leave_no_file(tmp_path: Path) -> None:
    callback = opanatomy.TrainerCallback(range(20, 23), tmp_path / "profiles" / "step.json")
    training = trainer(callback, folder=tmp_path, max_steps=2)
    with pytest.warns(
        UserWarning, match="with step 2, so steps 20 to 22 will not be recorded - pass steps from 1 to 2"
    ):
        training.train()
    assert left_in(tmp_path) == []
    assert figures(training) == []


def test_a_training_that_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    settings = {"max_steps": 7, "save_strategy": "steps", "save_steps": 3}
    plain = trainer(folder=tmp_path, **settings)
    plain.train()
    callback = opanatomy.TrainerCallback(range(2, 6), tmp_path / "step.json")
    training = trainer(callback, folder=tmp_path, **settings)
    with pytest.warns(UserWarning, match="after step 3, so steps 2 to 3 will not be recorded - pass steps from 4 to 7"):
        training.train(resume_from_checkpoint=str(tmp_path / "training" / "checkpoint-3"))
    assert losses(training) == losses(plain)
    capture = read_trace(tmp_path / "step.trace.json.gz").capture
    assert capture is not None
    assert (len(callback.anatomy.step.steps), len(capture.unprofiled_step_ns)) == (
        2,
        2,
    )  # steps 4, 5; 6, 7 on the clock


def test_another_profiler_ends_the_recording_not_the_training(tmp_path: Path) -> None:
    callback = opanatomy.TrainerCallback(range(2, 3), tmp_path / "step.json")
    training = trainer(callback, folder=tmp_path, max_steps=3)
    with torch.profiler.profile(), pytest.warns(UserWarning, match="profiler is already running.*training continues"):
        training.train()
    assert training.state.global_step == 3
    assert left_in(tmp_path) == []


def test_a_second_count_that_does_not_agree_fails_when_the_training_is_done(
    tmp_path: Path,
) -> None:
    """The step in which calls are counted runs an operator that the profiled ones do not."""
    callback = opanatomy.TrainerCallback(range(3, 4), tmp_path / "step.json", check=True)
    more = [At(step, lambda _: torch.ones(3).cumsum(0)) for step in (4, 5)]
    training = trainer(*more, callback, folder=tmp_path, max_steps=5)
    with pytest.raises(GateError, match="cumsum"):
        training.train()
    assert training.state.global_step == 5


# ------------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 5}, "steps is of type int - pass a range such as range"),
        ({"steps": ()}, r"steps=\(\) contains no step"),
        ({"steps": range(3)}, "steps contains 0, but training begins with step 1"),
        ({"steps": [3.0]}, r"steps contains 3\.0, which is not an integer"),
        ({"steps": [3, 5]}, "step 5 does not follow step 3"),
        ({"steps": count(1)}, "steps has more than 1000 steps"),
        ({"output": 3}, "output: a path must be a string, but this is of type int"),
        ({"output": "step.xyz"}, "output step.xyz: unknown report format - end the name in one of .*json"),
        ({"output": "s3://bucket/step.json"}, "s3://"),
    ],
    ids=str,
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(OpanatomyError, match=message):
        opanatomy.TrainerCallback(**arguments)


def test_nothing_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "step.trace.json.gz").write_text("mine")
    callback = opanatomy.TrainerCallback(range(2, 3), "step.txt")
    training = trainer(callback, folder=tmp_path, max_steps=2)
    with pytest.raises(OutputError, match=r"step.trace.json.gz: it already exists - pass force=True"):
        training.train()
    assert (training.state.global_step, left_in(tmp_path)) == (0, ["step.trace.json.gz"])
    trainer(opanatomy.TrainerCallback(range(2, 3), "step.txt", force=True), folder=tmp_path, max_steps=2).train()
    assert opanatomy.analyze("step.trace.json.gz").step.count == 1
    assert "BertForMaskedLM" in (tmp_path / "step.txt").read_text()


def test_names_in_a_folder_count_up(tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    for _ in range(2):
        trainer(opanatomy.TrainerCallback(range(2, 3), f"{folder}/"), folder=tmp_path, max_steps=2).train()
    assert left_in(folder) == [
        "BertForMaskedLM-2.report.txt",
        "BertForMaskedLM-2.trace.json.gz",
        "BertForMaskedLM.report.txt",
        "BertForMaskedLM.trace.json.gz",
    ]


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its snippet does what the page says."""
    monkeypatch.chdir(tmp_path)
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    example = trainer(folder=tmp_path)
    exec(snippet, {"model": example.model, "arguments": example.args, "dataset": example.train_dataset})
    printed = capsys.readouterr()
    assert "tensor_contraction forward" in printed.out
    assert "opanatomy: steps 3 to 5 of the training run: step.txt, trace step.trace.json.gz" in printed.err
    assert left_in(tmp_path) == ["step.trace.json.gz", "step.txt"]


# ---------------------------------------------------------------------------------------------------- several ranks

RANK: Final = """
import json, sys
from pathlib import Path
import opanatomy
from tests.support.trainings import figures, losses, trainer

here = Path()
plain = trainer(folder=here, max_steps=5, gradient_accumulation_steps=2)
plain.train()
callback = opanatomy.TrainerCallback(range(3, 5), "step.json")
training = trainer(callback, folder=here, max_steps=5, gradient_accumulation_steps=2)
training.train()
workload = callback.anatomy.workload
rank = training.args.process_index
Path(f"rank{rank}.json").write_text(json.dumps({
    "plain": losses(plain), "recorded": losses(training), "entries": len(figures(training)),
    "rank": callback.anatomy.ranks[0].rank, "parallel": workload.parallel, "accumulate": workload.accumulate,
}))
"""


def test_two_ranks(tmp_path: Path) -> None:
    ended = [fork.wait() for fork in start_ranks(2, code=RANK, cwd=tmp_path)]
    assert [rank.returncode for rank in ended] == [0, 0], [rank.stderr for rank in ended]
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    for number, rank in enumerate(ranks):
        assert len(rank["plain"]) == 5
        assert rank["recorded"] == rank["plain"]
        assert (rank["rank"], rank["parallel"], rank["accumulate"]) == (number, "ddp", 2)
        assert rank["entries"] == (number == 0)
    assert left_in(tmp_path) == [
        "rank0.json",
        "rank1.json",
        "step.json",
        "step.rank0.trace.json.gz",
        "step.rank1.trace.json.gz",
    ]
    assert [rank.stderr.count("opanatomy: steps 3 to 4 of the training run: step.json") for rank in ended] == [1, 0]
    together = opanatomy.analyze([tmp_path / f"step.rank{rank}.trace.json.gz" for rank in range(2)])
    assert [rank.rank for rank in together.ranks] == [0, 1]
    assert together.communication
