"""A hand-made experiment with techniques."""

from __future__ import annotations

from typing import Any

from opanatomy.records.anatomy import TECHNIQUE, Advice
from opanatomy.records.experiment import LossCurve, OperatorError, Sameness, StepFigures, TechniqueRow, Techniques
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import Environment, Workload


def experiment() -> Techniques:
    """A baseline, and techniques that save memory, time, neither, that broke or change the losses."""

    def figures(step_ns: float, peak_bytes: int) -> StepFigures:
        return StepFigures(
            peak_bytes=peak_bytes,
            step_ns=step_ns,
            low_ns=0.99 * step_ns,
            high_ns=1.01 * step_ns,
            samples=8,
            components={"weights": peak_bytes},
            phase_ns={"forward": step_ns},
            class_ns={"elementwise": step_ns},
        )

    def row(name: str, **fields: Any) -> TechniqueRow:
        return TechniqueRow(name=name, title=f"title of {name}", option=f"--{name}", keeps_result=True, **fields)

    wrong = OperatorError(operator="aten::mm", phase=Phase.FORWARD, predicted_ns=1e6, measured_ns=9e6)
    return Techniques(
        opanatomy="0.1.0",
        command="opanatomy techniques m",
        created="now",
        seed=0,
        repetitions=3,
        environment=Environment(device="a CPU", device_kind="cpu"),
        workload=Workload(model="a model", batch=8),
        rows=(
            row("baseline", predicted=figures(1e8, 10**6), measured=figures(1e8, 10**6), warnings=("a warning",)),
            row(
                "less",
                predicted=figures(1.3e8, 505_000),
                measured=figures(1.3e8, 500_000),
                sameness=Sameness(loss_units=9e9, gradient_units=9e9, weight_units=0.0, first_operator="aten.mm"),
            ),
            row("slim", measured=figures(1e8, 900_000)),
            row("fast", measured=figures(4e7, 10**6)),
            row("wrong", predicted=figures(1e8, 10**6), measured=figures(2e8, 10**6), offenders=(wrong,)),
            row("broken", failed="out of memory", not_predicted="needs a library"),
            row("changing", measured=figures(1e8, 10**6), losses=LossCurve(losses=(2.0, 1.5), baseline=(2.0, 1.6))),
        ),
        advice=(Advice(id=TECHNIQUE, subject="less", gain_bytes=1, why="some advice", option="--less"),),
        warnings=("of all",),
    )
