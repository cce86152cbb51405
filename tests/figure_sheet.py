"""A page of the report as its figures are checked: where each stands, and which were recomputed.

By docs/report.md alone: nothing of opanatomy is imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias

from tests.printed_figures import FIGURE, Figure, places_in

Report: TypeAlias = "dict[str, Any]"
#: Exact figures in the order of the page; `None` where none is printed.
Numbers: TypeAlias = "list[float | None]"
_HEADING: Final = re.compile(r"(\S[^─]*?)(?: \(.*\))? ─+")
#: Words of a cell end before two blanks.
_CELL: Final = re.compile(r"\S+(?: \S+)*")
#: A cell that is a figure, with how much of the time a share is known for, or one that counts what is not listed.
_FIGURES: Final = re.compile(r"(?:- )?[≥~<>+(-]*\d[\d.,]*(?: [A-Za-z%/]+)?\)?(?: \([<>]?\d+ %\))?")
_MORE: Final = re.compile(r"(?:.* )?and (?=[\d,]+ more$)")
#: What no namespace is needed for: torch's own kernels are printed without.
_NAMESPACES: Final = re.compile(r"^void |\b(?:at::native::|\(anonymous namespace\)::|at_cuda_detail::)")


class Text(NamedTuple):
    """A part of a line, and where on the page it begins."""

    text: str
    start: int


class Place(NamedTuple):
    """A figure, and where on the page it begins."""

    figure: Figure
    start: int


class Sheet:
    """A page, its JSON report, and the spans of the page that were checked."""

    def __init__(self, page: str, report: Report) -> None:
        self.page, self.report = page, report
        self.checked: list[tuple[int, int]] = []
        self.sections = _sections(page)

    def rows(self, heading: str, header: str) -> list[list[Place]]:
        """The figures of each row of the table with this header, a count of what is not listed in front included."""
        lines = self.sections[heading]
        place = next(place for place, line in enumerate(lines) if line.text.startswith(header))
        rows = []
        for line in lines[place + 1 :]:
            cells = cells_of(line)
            if len(cells) < 2:
                break
            rows.append([figure for cell in cells for figure in _of_cell(cell)])
        return rows

    def has_table(self, heading: str, header: str) -> bool:
        return any(line.text.startswith(header) for line in self.sections.get(heading, []))

    def facts(self, heading: str) -> dict[str, list[Text]]:
        """The texts of each label, a line each; lines that begin with none go on."""
        facts: dict[str, list[Text]] = {}
        label = ""
        windows = [re.match(r"window +", line.text) for line in self.sections[heading]]
        # A label ends before the eleventh cell; where one is longer, before that in which all texts begin.
        end = max((match.end() for match in windows if match), default=11)
        for line in self.sections[heading]:
            if line.text[:end].strip() and line.text[end - 1 : end] == " ":
                label = line.text[:end].strip()
            if label and (line.text[:end].strip() in ("", label)):
                facts.setdefault(label, []).append(Text(line.text[end:], line.start + end))
        return facts

    def places(self, texts: list[Text]) -> list[Place]:
        return [Place(figure, text.start + at) for text in texts for figure, at in places_in(text.text)]

    def same(self, places: list[Place], numbers: Numbers) -> None:
        """Each figure is how its number may be printed; with that it is checked."""
        exact = [number for number in numbers if number is not None]
        assert len(places) == len(exact), ([place.figure.text for place in places], exact)
        for (figure, start), number in zip(places, exact, strict=True):
            assert figure.admits(number), (figure.text, number)
            self.checked.append((start, start + len(figure.text)))

    def said(self, words: str, *numbers: float | None, within: list[Text] | None = None) -> None:
        """The page, or the texts of a label, say these words wherever lines end, with the numbers for `{}`."""
        parts = [re.sub(r"(?:\\ )+", lambda _: r"\s+", re.escape(part)) for part in words.split("{}")]
        begin, end = (0, len(self.page)) if not within else (within[0].start, within[-1].start + len(within[-1].text))
        found = list(re.finditer(rf"(?<![\w.]){f'({FIGURE})'.join(parts)}", self.page[begin:end]))
        assert found, words
        for match in found:
            spans = [(match[number], begin + match.start(number)) for number in range(1, len(numbers) + 1)]
            self.same([Place(places_in(text)[0][0], start) for text, start in spans], [*numbers])

    def name(self, text: Text) -> None:
        """That this is a name, whatever digits are in it."""
        self.checked.append((text.start, text.start + len(text.text)))

    def unchecked(self, constants: tuple[str, ...]) -> list[str]:
        """The lines with a digit that is in no figure that was checked, in no name of the report and no constant."""
        covered = {cell for begin, end in (*self.checked, *self._names(constants)) for cell in range(begin, end)}
        left = [match.start() for match in re.finditer(r"\d", self.page) if match.start() not in covered]
        return list(dict.fromkeys(_line_at(self.page, place) for place in left))

    def _names(self, constants: tuple[str, ...]) -> Iterator[tuple[int, int]]:
        """Where texts of the report stand that have a digit: names, versions, files; cut ones as far as they go."""
        texts = {text for text in strings_of(self.report) if re.search(r"\d", text) and is_name(text)}
        # The address of a data sheet stands in the JSON report alone.
        texts |= {text.partition(", https://")[0] for text in texts}
        shortened = {_NAMESPACES.sub("", text) for text in texts}
        for text in texts | shortened | {*constants}:
            pattern = r"\s+".join(map(re.escape, text.split()))
            for match in re.finditer(rf"(?<![\w.]){pattern}(?![\w])", self.page):
                yield match.span()
        for match in re.finditer(r"(?<=\n)(\S[^\n]*?)…([^\n]*?)(?=  )", self.page):
            if any(text.startswith(match[1]) and text.endswith(match[2]) for text in shortened):
                yield match.span()


def cells_of(line: Text) -> list[Text]:
    return [Text(match.group(), line.start + match.start()) for match in _CELL.finditer(line.text)]


def strings_of(value: object) -> Iterator[str]:
    """Every text in the values of a JSON document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings_of(item)


def is_name(text: str) -> bool:
    """Whether a text cannot be a figure: a word or a version."""
    return bool(re.search(r"[A-Za-z]{2}", text)) or text.count(".") > 1


def _of_cell(cell: Text) -> list[Place]:
    if more := _MORE.match(cell.text):
        cell = Text(cell.text[more.end() :], cell.start + more.end())
    elif not _FIGURES.fullmatch(cell.text):
        return []
    return [Place(figure, cell.start + at) for figure, at in places_in(cell.text)]


def _sections(page: str) -> dict[str, list[Text]]:
    """The lines below each heading, those of the first one under "first"; of a heading what it is of is left out."""
    found: dict[str, list[Text]] = {"first": []}
    heading, start = "first", 0
    for number, line in enumerate(page.splitlines(keepends=True)):
        text = Text(line.rstrip("\n"), start)
        start += len(line)
        if not number:
            continue
        if begins := _HEADING.fullmatch(text.text):
            heading = begins[1]
            found[heading] = []
        elif not re.fullmatch("─+", text.text):
            found[heading].append(text)
    return found


def _line_at(page: str, place: int) -> str:
    begin, end = page.rfind("\n", 0, place) + 1, page.find("\n", place)
    return page[begin : end if end >= 0 else len(page)]
