"""A name of a report, how the page may spell it, and what is known of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from msgspec import Struct

from opanatomy.report.section import Count, Fact, Phrase, joined, phrase
from opanatomy.report.sections.causes import bare
from opanatomy.report.sections.kernels import short_name

_NAMESPACES: Final = re.compile(r"^(?:void )?(?:(?!aten::)\w+::|\(anonymous namespace\)::)*")
_ARGUMENTS: Final = re.compile(r"[<(].*", re.DOTALL)
#: What has a name of C++, which tables shorten.
_OF_CODE: Final = ("operator", "kernel", "work")
#: Names that are listed of one thing.
_NAMES: Final = 3


class Known(Struct, frozen=True):
    """A name of a report as it stands there, what it is the name of, and what the report knows of it."""

    name: str
    kind: str
    facts: Callable[[], tuple[Fact, ...]]
    #: What the page calls it, where that is less.
    short: str = ""
    #: What the page calls it together with others.
    together: tuple[str, ...] = ()

    @property
    def spellings(self) -> tuple[str, ...]:
        """The name, without C++'s namespaces and return type, and without template arguments and parameters too."""
        plain = _NAMESPACES.sub("", self.name)
        own = _ARGUMENTS.sub("", plain)
        printed = (bare(self.name), short_name(self.name)) if self.kind in _OF_CODE else ()
        every = (self.name, self.short, *printed, plain, own, *self.together)
        return tuple(dict.fromkeys(text for text in every if text))


def listed(label: str, texts: Iterable[Phrase]) -> Iterator[Fact]:
    """A line with the first of some texts and how many more there are; none where there are none."""
    every = list(texts)
    more = phrase("{} more", Count(len(every) - _NAMES)) if len(every) > _NAMES else None
    if text := joined((*every[:_NAMES], more), by="; "):
        yield Fact(label=label, text=text)
