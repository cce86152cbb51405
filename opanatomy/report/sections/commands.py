"""What says more of a finding: a command for a section of the report, or an experiment with the model.

Where nothing says what a command may call the trace by (it came through a pipe, its path is left out, it is gone), the
options of the section stand alone: a name that is made up is no file.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Final

from msgspec import Struct

from opanatomy.records.anatomy import Anatomy
from opanatomy.report.section import Note, Tone

#: What a model is called by, so that a command can name it.
_NAMED_MODELS: Final = ("catalog", "hub")


class Further(Struct, frozen=True, kw_only=True):
    """Where more of a finding is: a section of the report, with `options` for it; or techniques tried on the model,
    where a command can name it."""

    section: str
    options: str = ""
    experiment: bool = False


class Next(Struct, frozen=True, kw_only=True):
    """What to type next: `text` is a `whole` command, or only the options that the report is to be made with."""

    text: str
    whole: bool = True

    @property
    def note(self) -> Note:
        """It as a line of the page."""
        return Note(text=self.text, tone=Tone.COMMAND if self.whole else Tone.OPTIONS)


def next_of(wanted: Sequence[Further], anatomy: Anatomy, source: str | None) -> tuple[Next, ...]:
    """What to type, the sections of the report by one; `source` is what a command calls the trace by, if anything."""
    experiment = _experiment(anatomy)
    tried = [Next(text=experiment) for further in wanted if further.experiment and experiment is not None]
    looked = [further for further in wanted if not further.experiment or experiment is None]
    if looked and (source is not None or anatomy.provenance.trace is not None):
        tried.insert(0 if looked[0] is wanted[0] else len(tried), looked_at(looked, source))
    return tuple(dict.fromkeys(tried))


def looked_at(looked: Iterable[Further], source: str | None) -> Next:
    """What shows the sections of the report on the trace that a command calls `source`."""
    looked = tuple(looked)
    names = ",".join(dict.fromkeys(further.section for further in looked))
    options = "".join(f" {text}" for text in dict.fromkeys(further.options for further in looked) if text)
    shown = f"--section {names}{options}"
    return Next(text=shown, whole=False) if source is None else Next(text=f"opanatomy analyze {source} {shown}")


def _experiment(anatomy: Anatomy) -> str | None:
    """The command that tries techniques on the model; `None` where no command can name it as it was run."""
    work = anatomy.workload
    named = work.model is not None and work.model_source in _NAMED_MODELS and not work.changes
    if not named or work.inference or work.world_size is not None or anatomy.texts is not None:
        return None
    batch = "" if work.batch is None else f" --batch {work.batch}"
    length = "" if work.sequence_length in (None, 512) else f" --seq {work.sequence_length}"
    return f"opanatomy techniques {shlex.quote(work.model or '')}{batch}{length}"


def pattern_of(names: Sequence[str]) -> str:
    """A pattern for the shell that all names fit."""
    begin, end = ends_of(names)
    return f"{shlex.quote(begin) if begin else ''}*{shlex.quote(end) if end else ''}"


def ends_of(names: Sequence[str]) -> tuple[str, str]:
    """What all names begin with, and what the rest of each ends with."""
    begin = _shared(names)
    return begin, _shared([name[len(begin) :][::-1] for name in names])[::-1]


def _shared(names: Sequence[str]) -> str:
    """What all names begin with."""
    return "".join(
        letters[0] for letters in takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    )
