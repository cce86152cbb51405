"""Options are declared once: the record, the signatures, the parser and the workload are made of the declaration."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import opanatomy
from opanatomy import options
from opanatomy.capture.model.configuration import TASKS
from opanatomy.capture.run.profile import capture_model
from opanatomy.capture.run.progress import NullProgress
from opanatomy.capture.run.unprofiled import step_times
from opanatomy.capture.step.stepper import make_optimizer
from opanatomy.cli import main as command_line
from opanatomy.cli import parser, verbs
from opanatomy.cli.main import main
from opanatomy.cli.parser import make_parser
from opanatomy.cli.verbs.profile import run_options
from opanatomy.errors import EstimateError, UsageError
from opanatomy.options import ANALYZE, PROFILE, RUN, Kind, Option, RunOptions
from opanatomy.predict.fake import simulate
from opanatomy.records.taxonomy import BY_NAME, ITEM_SIZE
from tests.support.tiny import BERT, tiny_request

TYPES: dict[Kind, tuple[object, ...]] = {
    Kind.TEXT: (str, str | None),
    Kind.NUMBER: (int, int | None),
    Kind.SWITCH: (bool,),
    Kind.AMOUNT: (float, float | None),
    Kind.PAIRS: (tuple[tuple[str, str], ...],),
}


@pytest.mark.parametrize("words", ["estimate gpt2 --on H100", "techniques gpt2", "profile gpt2", "analyze a.json"])
def test_every_report_can_be_shown_in_full(words: str) -> None:
    assert make_parser().parse_args([*words.split(), "--full"]).full


def test_the_record_has_the_declared_fields_and_defaults() -> None:
    fields = msgspec.structs.fields(RunOptions)
    assert [(field.name, field.default) for field in fields] == [(option.name, option.default) for option in RUN]
    for field, option in zip(fields, RUN, strict=True):
        assert field.type == TYPES[option.kind][option.default is None], field.name


@pytest.mark.parametrize(
    ("function", "declared"),
    [
        (opanatomy.profile, PROFILE),
        (opanatomy.analyze, ANALYZE),
        (opanatomy.record, PROFILE),
        (opanatomy.TrainerCallback, PROFILE),
    ],
)
def test_the_keywords_of_python_are_the_declared_ones(function: Any, declared: tuple[Option, ...]) -> None:
    keywords = [one for one in inspect.signature(function).parameters.values() if one.default is not one.empty]
    # What is run is no option, and the callback's steps and files are not those of a run.
    own = {"module", "steps", "output"} if isinstance(function, type) else {"module"}
    keywords = [one for one in keywords if one.name not in own]
    expected = {option.name: option.default for option in declared if function.__name__ in option.python}
    assert {keyword.name: keyword.default for keyword in keywords} == expected
    hints = inspect.get_annotations(function.__init__ if isinstance(function, type) else function)
    for option in declared:
        if option.name not in expected or option.kind not in (Kind.NUMBER, Kind.SWITCH):
            continue
        hint = str(TYPES[option.kind][option.default is None]).removeprefix("<class '").removesuffix("'>")
        assert hint == hints[option.name].removesuffix(" | str") if option.name == "oom" else hints[option.name]


class ReadOptions(RunOptions, frozen=True, kw_only=True):
    """Options that note, in `READ`, which of them the capture asks for."""

    def __getattribute__(self, name: str) -> Any:
        """Note a question that is not one of the declaration's own."""
        if sys._getframe(1).f_code.co_filename != options.__file__:
            READ.add(name)
        return super().__getattribute__(name)


READ: set[str] = set()
#: Options of a run that are without effect for a step that is only timed, or only followed: when there is no such step.
NOT_TIMED: frozenset[str] = frozenset(
    {"memory", "lines", "check", "steps", "redact", "parallel", "bucket_mb", "bucket_view"}
)
READ_BY_THE_CALLER = frozenset({"check", "bucket_mb", "bucket_view"})


def _profiled(request: RunOptions, folder: Path) -> None:
    capture_model(request, folder / "t.json", NullProgress(), lambda text: None)


@pytest.mark.parametrize(
    ("run", "without"),
    [
        pytest.param(_profiled, READ_BY_THE_CALLER, id="profile"),
        pytest.param(lambda request, folder: step_times(request), NOT_TIMED, id="techniques"),
        pytest.param(lambda request, folder: simulate(request), NOT_TIMED | {"warmup", "beams"}, id="prediction"),
    ],
)
def test_every_option_is_read_by_every_kind_of_run(
    run: Callable[[RunOptions, Path], object], without: frozenset[str], tmp_path: Path, one_timed_step: None
) -> None:
    """An option that is declared and used in one kind of run alone would be dropped in silence by the others."""
    READ.clear()
    for request in (
        tiny_request(BERT, checkpoint_every=1),
        tiny_request(BERT, texts="sample"),
        tiny_request("openai-community/gpt2", generate=2),
    ):
        with suppress(EstimateError):  # a generation is not predicted
            run(ReadOptions(**{field: getattr(request, field) for field in request.__struct_fields__}), tmp_path)
    assert {option.name for option in RUN} - READ == without


def test_the_command_line_gives_the_record() -> None:
    assert run_options(make_parser().parse_args(["profile", "m"])) == RunOptions(model="m")
    words = (
        "profile m --batch 2 --seq 16 --task fill-mask --seed 3 --layers 1 --set a=1 --set b=x=y --dtype BF16"
        " --attention SDPA --weights Pretrained --hub --trust-remote-code --device cpu --amp Float16"
        " --checkpointing non_reentrant --compile --optimizer AdamW --memory --check --steps 4 --warmup 0 --redact"
        " --texts a.csv:text --padding Group-By-Length --tokenizer Slow"
        " --accumulate 2 --clip 1 --freeze Layers:1 --checkpoint-every 2"
    )
    assert run_options(make_parser().parse_args(words.split())) == RunOptions(
        model="m",
        batch=2,
        seq=16,
        task="masked-lm",
        seed=3,
        layers=1,
        settings=(("a", "1"), ("b", "x=y")),
        dtype="bfloat16",
        attention="sdpa",
        weights="pretrained",
        hub=True,
        trust_remote_code=True,
        device="cpu",
        texts="a.csv:text",
        padding="grouped",
        tokenizer="slow",
        amp="fp16",
        checkpointing="non-reentrant",
        compile=True,
        optimizer="adamw",
        memory=True,
        check=True,
        steps=4,
        warmup=0,
        redact=True,
        accumulate=2,
        clip=1.0,
        freeze="layers:1",
        checkpoint_every=2,
    )


# ------------------------------------------------------------------------------------------------------------- choices


def test_choices_are_what_the_capture_can_do() -> None:
    assert {choice.name for choice in options.TASK.choices} == set(TASKS)
    assert {choice.name for choice in options.DTYPE.choices} <= set(ITEM_SIZE)
    for choice in options.OPTIMIZER.choices:
        if BY_NAME[choice.name].package is None:
            assert make_optimizer(choice.name, torch.nn.Linear(2, 2)).param_groups


@pytest.mark.parametrize(
    ("name", "spelled", "meant"),
    [
        ("amp", "BF16", "bf16"),
        ("amp", "half", "fp16"),
        ("amp", torch.float16, "fp16"),
        ("dtype", "Half", "float16"),
        ("dtype", "torch.float64", "float64"),
        ("dtype", torch.bfloat16, "bfloat16"),
        ("optimizer", "AdamW8bit", "adamw8bit"),
        ("optimizer", "adamw_bnb_8bit", "adamw8bit"),
        ("checkpointing", "non_reentrant", "non-reentrant"),
        ("task", "text-classification", "sequence-classification"),
        ("task", "automatic-speech-recognition", "speech"),
        ("attention", "Flash-Attention-2", "flash_attention_2"),
        ("attention", "owner/Kernel-x", "owner/Kernel-x"),
        ("weights", "PRETRAINED", "pretrained"),
    ],
)
def test_spellings(name: str, spelled: Any, meant: str) -> None:
    assert getattr(RunOptions(**{name: spelled}), name) == meant
    parsed = make_parser().parse_args(["profile", "m", f"--{name}", str(spelled)])
    assert getattr(parsed, name) == meant


WRONG: list[tuple[str, Any, str]] = [
    ("batch", 0, "must be at least 1"),
    ("batch", "many", "must be a whole number"),
    ("warmup", -1, "must be at least 0"),
    ("clip", 0.0, "must be positive and finite"),
    ("clip", "hard", "must be a number"),
    ("seed", 2**32, f"must be at most {2**32 - 1}"),
    ("amp", "bf61", "unknown - did you mean bf16? Use one of bf16, fp16"),
    ("dtype", "flaot32", "unknown - did you mean float32? Use one of float32, bfloat16, float16, float64"),
    ("task", "seq-classification", "unknown - did you mean sequence-classification?"),
    ("checkpointing", "some", "unknown - use one of non-reentrant, reentrant"),
    ("weights", "none", "unknown - use one of random, pretrained"),
]


@pytest.mark.parametrize(("name", "value", "said"), WRONG, ids=[f"{row[0]} {row[1]}" for row in WRONG])
def test_a_flag_and_an_argument_are_refused_in_one_wording(name: str, value: Any, said: str) -> None:
    with pytest.raises(UsageError) as flag:
        make_parser().parse_args(["profile", "m", f"--{name}={value}"])
    with pytest.raises(UsageError) as argument:
        RunOptions(**{name: value})
    assert str(flag.value).startswith(f"--{name} {value}: {said}")
    assert str(argument.value).startswith(f"{name}={value!r}: {said}")


@pytest.mark.parametrize(
    "other",
    [
        {"optimizer": "sgd"},
        {"checkpointing": "reentrant"},
        {"accumulate": 2},
        {"freeze": "embeddings"},
        {"lora": 4},
        {"clip": 1.0},
        {"checkpoint_every": 2},
        {"fused_loss": True},
    ],
)
def test_inference_has_no_backward(other: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"^inference=True runs no backward - leave out \w+='?[\w.]+'?$"):
        RunOptions(inference=True, **other)


# --------------------------------------------------------------------------------------------------------------- verbs

GREET = """
from opanatomy.options import Kind, Option
DESCRIPTION = "Say a name back."
OPTIONS = (Option(name="name", positional="1", metavar="NAME", kind=Kind.TEXT, help="whom to greet"),)
EXAMPLES = ()

def run(arguments):
    print("hello", arguments.name)
"""


def test_a_file_and_a_line_are_a_new_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file beside them that is no verb breaks nothing."""
    (tmp_path / "greet.py").write_text(GREET)
    (tmp_path / "stray.py").write_text("this is no Python")
    monkeypatch.setattr(verbs, "__path__", [*verbs.__path__, str(tmp_path)])
    # Each module has imported the table by its name.
    for module in (verbs, parser, command_line):
        monkeypatch.setattr(module, "VERBS", {**verbs.VERBS, "greet": "say a name back"})
    monkeypatch.delitem(sys.modules, "opanatomy.cli.verbs.greet", raising=False)
    with pytest.raises(SystemExit):
        main(["--help"])
    assert re.search(r"^    greet +say a name back$", capsys.readouterr().out, re.MULTILINE)
    assert main(["greet", "you"]) == 0
    assert capsys.readouterr().out == "hello you\n"
    with pytest.raises(SystemExit):
        main(["grete", "you"])
    assert "did you mean 'greet'?" in capsys.readouterr().err
