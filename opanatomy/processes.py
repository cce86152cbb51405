"""`opanatomy.profile` on several processes: each records its own trace, all of them make one anatomy."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from opanatomy.errors import UsageError
from opanatomy.files.outputs import claimed, name_of_rank, temporary
from opanatomy.launched import launched
from opanatomy.pipeline import anatomy_of_ranks, packed_summary_of
from opanatomy.records.anatomy import Anatomy
from opanatomy.run_options import RunOptions

if TYPE_CHECKING:
    from opanatomy.capture.step.subject import Subject


def profiled_on(
    processes: int, subject: Subject, options: RunOptions, target: Path | None, *, force: bool
) -> Anatomy:  # fmt: skip
    """The anatomy over that many ranks that train the subject's module together, each on the inputs that it has.

    The traces are those of `target`, each with its rank in its name; without it they are gone afterwards.
    """
    from opanatomy.capture.device.devices import device_of
    from opanatomy.capture.distributed.notebook import on_processes

    if launched() is not None:
        raise UsageError(
            f"profile: processes={processes}, and this process is one of several already - leave it out, and call this"
            " on each"
        )
    on_host = device_of(subject.module, subject.inputs) == "cpu"
    files: list[tuple[Path, str | None]]
    with ExitStack() as stack:
        if target is None:
            name = stack.enter_context(temporary("step.trace.json.gz", "the traces"))
            files = [(name_of_rank(name, rank), None) for rank in range(processes)]
        else:
            claims = [
                stack.enter_context(claimed(name_of_rank(target, rank), force=force, forced_by="give force=True"))
                for rank in range(processes)
            ]
            files = [(stack.enter_context(claim.written()), claim.path.name) for claim in claims]
        summaries = on_processes(
            lambda: _summary(subject, options, files), processes, on_host=on_host
        )  # fmt: skip
    return anatomy_of_ranks(summaries, redact=options.redact)


def _summary(subject: Subject, options: RunOptions, files: Sequence[tuple[Path, str | None]]) -> bytes:
    """What this rank's trace comes to."""
    from opanatomy.capture.distributed.ranks import joined
    from opanatomy.capture.distributed.sharing import shared
    from opanatomy.capture.step.recorder import record_step

    place = launched()
    assert place is not None
    path, name = files[place.rank]
    with joined(options, place) as group:
        record_step(shared(subject, None, options, group), options, path)
        return packed_summary_of(path, name=name, redact=options.redact)
