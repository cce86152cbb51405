"""Run `opanatomy estimate MODEL --on DEVICE`: a step's time and memory on a device that is not here."""

from __future__ import annotations

import argparse
from typing import Final

from opanatomy.errors import UsageError
from opanatomy.options import ESTIMATE, RUN, RunOptions, as_flag, check_estimate, check_together

DESCRIPTION: Final = (
    "Predict a model's training step on a GPU that you don't have: its time, as a range, and its memory."
    " Nothing is run."
)
OPTIONS: Final = ESTIMATE
#: The options that help shows first, by name.
MOST_USED: Final = (
    *("on", "batch", "seq", "optimizer", "amp", "compile", "checkpointing", "devices", "parallel", "sweep"),
    "output",
)
EXAMPLES: Final = (
    (
        "how long a step of GPT-2 XL takes on an H100, and whether it fits",
        "opanatomy estimate gpt2-xl --amp bf16 --on H100",
    ),
    (
        "on eight H100s, sharded with FSDP2",
        "opanatomy estimate gpt2-xl --amp bf16 --parallel fsdp2 --devices 8 --on H100",
    ),
    (
        "which batch size pays off, on two GPUs side by side",
        "opanatomy estimate gpt2 --amp bf16 --sweep batch=1..64 --on H100,'RTX 4090'",
    ),
)


def run(arguments: argparse.Namespace) -> None:
    """Compute the step, show it."""
    from opanatomy.cli.output import destination, show, stem_of_model, typed_command
    from opanatomy.cli.progress import Display
    from opanatomy.cli.stdout import kept_for_the_report
    from opanatomy.io.files import check_no_address
    from opanatomy.predict.estimate import estimate_of

    check_together(arguments, as_flag)
    check_estimate(arguments, as_flag)
    names = [name.strip() for given in arguments.on for name in given.split(",") if name.strip()]
    if not names:
        raise UsageError("estimate: no device - use --on, for example --on H100")
    values = {option.name: getattr(arguments, option.name) for option in RUN if hasattr(arguments, option.name)}
    options = RunOptions(**{**values, "settings": tuple(arguments.settings)})
    check_no_address("MODEL", options.model)
    stem = stem_of_model(arguments.model)
    with kept_for_the_report() as stream, destination(arguments, stem=stem, stream=stream) as where:
        with Display() as display:
            report = estimate_of(
                options,
                names,
                ranks=arguments.devices,
                link=arguments.link,
                sweep=arguments.sweep,
                tf32=arguments.tf32,
                tokens_per_second=arguments.tokens_per_second,
                command=typed_command(),
                stage=display.stage,
            )
        show(report, where)
