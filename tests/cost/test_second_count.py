"""Every capture is counted twice: what disagrees is the first thing on the report, and `--check` exits 3."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

import opanatomy
from opanatomy.__main__ import main
from opanatomy.records.anatomy import Anatomy
from opanatomy.report import terminal_report
from tests.support.damage import Event, doubled, dropped, moved, off_by_one, planted
from tests.support.tiny import BERT, tiny

Damage = Callable[[list[Event]], None]


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(x).view(*x.shape[:2], 2, 24).transpose(1, 2).chunk(3, -1)
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)


class Recurrent(torch.nn.LSTM):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)[0]


#: Family -> (module, input, operator of its forward, operator of its backward).
FAMILIES: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...], str, str]] = {
    "mm": (lambda: torch.nn.Linear(12, 20), (6, 12), "aten::addmm", "aten::mm"),
    "transposed convolution": (
        lambda: torch.nn.ConvTranspose2d(4, 6, 3, stride=2),
        (2, 4, 7, 7),
        "aten::convolution",
        "aten::convolution_backward",
    ),
    "grouped convolution": (
        lambda: torch.nn.Conv2d(8, 8, 3, groups=4),
        (2, 8, 9, 9),
        "aten::convolution",
        "aten::convolution_backward",
    ),
    "attention": (
        Attention,
        (2, 10, 16),
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    ),
    "recurrent": (
        lambda: Recurrent(6, 5),
        (7, 3, 6),
        "aten::mkldnn_rnn_layer",
        "aten::mkldnn_rnn_layer_backward",
    ),
}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A capture of each family in which no other process took the time of the operators to damage."""
    folder = tmp_path_factory.mktemp("traces")
    found = {}
    for name, (make, shape, *operators) in FAMILIES.items():
        found[name] = folder / f"{name.replace(' ', '-')}.json"
        for _ in range(20):
            torch.manual_seed(0)
            opanatomy.profile(make(), torch.randn(shape, requires_grad=True), trace=found[name], force=True)
            if least_share(found[name], operators) > 0.02:
                break
    return found


def least_share(trace: Path, operators: Sequence[str]) -> float:
    """The least part of the operators' time that the first call of one of these takes."""
    calls = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("cat") == "cpu_op"]
    whole_us = sum(row.time_ns for row in opanatomy.analyze(trace).classes) / 1e3
    return min(next(call["dur"] for call in calls if call["name"] == name) / whole_us for name in operators)


def unexplained(anatomy: Anatomy) -> set[tuple[str, str]]:
    return {(check.quantity, one.operator) for check in anatomy.checks for one in check.unexplained}


@pytest.mark.parametrize("family", FAMILIES)
def test_an_undamaged_capture_agrees(family: str, traces: dict[str, Path]) -> None:
    anatomy = opanatomy.analyze(traces[family])
    assert unexplained(anatomy) == set()
    by_quantity = {check.quantity: check for check in anatomy.checks}
    flops = by_quantity["contraction FLOPs"]
    assert flops.not_checked is None
    assert flops.compared == flops.equal >= 2
    for quantity in ("call counts", "operator times"):
        assert by_quantity[quantity].compared == by_quantity[quantity].equal > 2
    assert "may be wrong" not in terminal_report(anatomy)


COUNTED = ("call counts", "contraction FLOPs")
#: Kind -> the damage to the forward and to the backward operator of a family.
PLANTS: dict[str, Callable[[str, str], Damage]] = {
    "dropped": lambda operator, other: dropped(operator),
    "doubled": lambda operator, other: doubled(operator),
    "phase swapped": moved,
    "off by one": lambda operator, other: off_by_one(operator),
}


@pytest.mark.parametrize("kind", PLANTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_plants_are_found(
    family: str, kind: str, traces: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, forward, backward = FAMILIES[family]
    for operator, other_phase in ((forward, "backward"), (backward, "forward")):
        damaged = planted(traces[family], tmp_path / f"{other_phase}.json", PLANTS[kind](operator, other_phase))
        found = {one for quantity, one in unexplained(opanatomy.analyze(damaged)) if quantity in COUNTED}
        assert operator in found
        code = main(["analyze", str(damaged), "--check"])
        out, err = capsys.readouterr()
        assert code == 3
        first = " ".join(" ".join(out.splitlines()[1:9]).split())
        if first.startswith("the machine was busy"):  # while the trace was captured: that comes before
            first = first.partition("when the machine is idle ")[2]
        assert first.startswith(("FLOPs of ", "The number of calls of ", "The time of "))
        assert " may be wrong: " in first
        assert err.startswith("opanatomy: check: ")
        assert err.count("\n") == 1


def test_an_operator_that_the_trace_lost_altogether_is_missed_by_its_time(
    traces: dict[str, Path], tmp_path: Path
) -> None:
    """Without a step that was watched, too: the profiler's own sums have it."""

    def lose(events: list[Event]) -> None:
        events[:] = [event for event in events if event.get("name") != "aten::addmm"]

    anatomy = opanatomy.analyze(planted(traces["mm"], tmp_path / "lost.json", lose))
    assert ("operator times", "aten::addmm") in unexplained(anatomy)


def test_profile_checks_itself(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", *tiny(BERT, "--check", "--suggest", "0")]) == 0
    out, err = capsys.readouterr()
    assert "confirmed  " in out
    assert "may be wrong" not in out
    assert "next: opanatomy analyze" in err
