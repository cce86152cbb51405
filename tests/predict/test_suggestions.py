"""What would save most of a run: which techniques are looked at, for how long, and whether they do what is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opanatomy.__main__ import main
from opanatomy.errors import EstimateError
from opanatomy.predict import fake, suggestions, workers
from opanatomy.records.experiment import SimulatedStep
from tests.support.tiny import BERT

#: Wide and long enough for activations to be most of the peak.
SIZES = (
    "--layers", "2", "--batch", "4", "--seq", "64", "--set", "hidden_size=64", "--set", "num_attention_heads=2",
    "--set", "intermediate_size=256", "--set", "vocab_size=256",
)  # fmt: skip
COMMAND = ("profile", BERT, "--device", "cpu", "--optimizer", "adamw", "--no-trace", *SIZES)


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The options of each step that is followed."""
    steps: list[Any] = []
    simulate = fake.simulate

    def noted(options: Any, *more: Any) -> SimulatedStep:
        steps.append(options)
        return simulate(options, *more)

    monkeypatch.setattr(fake, "simulate", noted)
    return steps


def report(capfd: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*COMMAND, "-f", "json", *words]) == 0
    read: dict[str, Any] = json.loads(capfd.readouterr().out)
    return read


def predicted(read: dict[str, Any]) -> list[dict[str, Any]]:
    return [advice for advice in read["advice"] if advice["id"] == "technique"]


def test_what_is_suggested_saves_what_is_said(
    here: Path, one_timed_step: None, capfd: pytest.CaptureFixture[str]
) -> None:
    """The option as it is printed, pasted after the command: the peak falls by what was predicted, within 2 %."""
    before = report(capfd, "--memory", "--suggest", "10000")
    best = [advice for advice in predicted(before) if advice["gain_bytes"] is not None]
    assert 1 <= len(best) <= 3
    most = max(best, key=lambda advice: advice["gain_bytes"])
    after = report(capfd, "--memory", "--suggest", "0", *most["option"].split())
    assert predicted(after) == []
    saved = before["memory"]["peak_bytes"] - after["memory"]["peak_bytes"]
    assert saved == pytest.approx(most["gain_bytes"], abs=0.02 * before["memory"]["peak_bytes"])
    assert saved > 0.03 * before["memory"]["peak_bytes"]
    options = [word for advice in best for word in advice["option"].split() if word.startswith("--")]
    assert len(set(options)) == len(options)  # all can be given at once


def test_without_time_only_the_first_is_looked_at(
    here: Path, one_timed_step: None, followed: list[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """The clock says that each takes a thousand seconds."""
    seconds = iter(range(0, 10**9, 1000))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suggestions.suggestions_for, "__defaults__", (lambda: next(seconds),))
        assert main([*COMMAND]) == 0
    assert "no time" not in capfd.readouterr().out
    assert [options.fused_loss for options in followed] == [False, True]


def test_calls_on_a_device_are_made_in_another_process(
    here: Path, one_timed_step: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A kernel of a device reads where it is told to: what that ends is not the run."""
    apart: list[Any] = []

    def noted(runs: Any, *, deadline: float) -> list[workers.Followed]:
        apart.extend(runs)
        return [workers.Followed(step="its process ended")] * len(runs)

    monkeypatch.setattr(suggestions, "choose_device", lambda _: "cuda")
    monkeypatch.setattr(workers, "simulate_in_process", noted)
    assert main([*COMMAND]) == 0
    assert "cannot tell what would save most: its process ended" in capfd.readouterr().err
    assert len(apart) > 2


@pytest.mark.parametrize("words", ["--suggest 0", "--inference"])
def test_nothing_is_followed_where_nothing_is_asked_or_trained(
    words: str, here: Path, one_timed_step: None, followed: list[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", BERT, "--device", "cpu", "--no-trace", *SIZES, *words.split()]) == 0
    assert followed == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            KeyboardInterrupt(),
            "interrupted while predicting what would save most: the report does not include these predictions",
        ),
        (EstimateError("the step reads values"), "cannot tell what would save most: the step reads values"),
    ],
    ids=["interrupt", "refused"],
)
def test_a_step_that_cannot_be_followed_costs_the_suggestions_alone(
    error: BaseException,
    said: str,
    here: Path,
    one_timed_step: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def refused(options: Any, *more: Any) -> SimulatedStep:
        raise error

    monkeypatch.setattr(fake, "simulate", refused)
    assert main([*COMMAND, "-f", "json"]) == 0
    out, err = capfd.readouterr()
    assert predicted(json.loads(out)) == []
    assert said in err
