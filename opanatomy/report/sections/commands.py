"""The commands that say more of a finding: a section of the report, or an experiment with the model."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from msgspec import Struct

from opanatomy.records.anatomy import Anatomy

#: What a model is called by, so that a command can name it.
_NAMED_MODELS: Final = ("catalog", "hub")


class Further(Struct, frozen=True, kw_only=True):
    """Where more of a finding is: a section of the report, with `options` for it; or techniques tried on the model,
    where a command can name it."""

    section: str
    options: str = ""
    experiment: bool = False


def commands_of(wanted: Sequence[Further], anatomy: Anatomy, source: str | None) -> tuple[str, ...]:
    """The commands to type, the sections of the report by one; `source` is what a command calls the trace by."""
    experiment = _experiment(anatomy)
    tried = [experiment for further in wanted if further.experiment and experiment is not None]
    looked = [further for further in wanted if not further.experiment or experiment is None]
    traces = source or _traces(anatomy)
    if looked and traces is not None:
        names = ",".join(dict.fromkeys(further.section for further in looked))
        options = "".join(f" {text}" for text in dict.fromkeys(further.options for further in looked) if text)
        command = f"opanatomy analyze {traces} --section {names}{options}"
        tried.insert(0 if looked[0] is wanted[0] else len(tried), command)
    return tuple(dict.fromkeys(tried))


def _experiment(anatomy: Anatomy) -> str | None:
    """The command that tries techniques on the model; `None` where no command can name it as it was run."""
    work = anatomy.workload
    named = work.model is not None and work.model_source in _NAMED_MODELS and not work.changes
    if not named or work.inference or work.world_size is not None or anatomy.texts is not None:
        return None
    batch = "" if work.batch is None else f" --batch {work.batch}"
    length = "" if work.sequence_length in (None, 512) else f" --seq {work.sequence_length}"
    return f"opanatomy techniques {shlex.quote(work.model or '')}{batch}{length}"


def _traces(anatomy: Anatomy) -> str | None:
    """The files of the report: of several ranks a pattern that fits their names."""
    names = [rank.trace for rank in anatomy.ranks if rank.trace]
    if len(names) < 2:
        return None if anatomy.provenance.trace is None else shlex.quote(anatomy.provenance.trace)
    return pattern_of(names)


def pattern_of(names: Sequence[str]) -> str:
    """A pattern for the shell that all names fit."""
    begin = _shared(names)
    end = _shared([name[len(begin) :][::-1] for name in names])[::-1]
    return f"{shlex.quote(begin) if begin else ''}*{shlex.quote(end) if end else ''}"


def _shared(names: Sequence[str]) -> str:
    """What all names begin with."""
    return "".join(
        letters[0] for letters in takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    )
