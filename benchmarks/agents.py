"""How many questions of questions.py a simple client answers with the tools of `opanatomy mcp`, and what it reads.

    python benchmarks/agents.py [WORD ...]

The client has one strategy for all questions, and no model of language: a name between backticks means the rows of that
name; `which X` the first row of the table X by time; a cause the first row of a table of causes; what to try the first
piece of advice; anything else the metric, in the unit that is asked for, with most of the question's words. An answer
counts if it is the JSON report's, numbers to 0.1 %. With WORDs only questions that have one of them are asked.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import anyio
from mcp import Client
from questions import QUESTIONS, Question

from opanatomy.mcp import server_of
from opanatomy.pipeline import analyze_traces
from opanatomy.report.formats.json import report_as_dict

ROOT: Final = Path(__file__).parent.parent
SHARED: Final = ROOT.parent / "shared"
#: Words that say nothing of what is asked.
_EMPTY: Final = frozenset(
    re.findall(
        r"\w+",
        """
    how much many long is are was the a an of in to it there what which does do take takes goes go most i should me at
    spend spends has have total for and by time
""",
    )
)
#: The unit that a question asks for.
_UNITS: Final = {"how long": "ns", "how much time": "ns", "share": "fraction", "bytes": "bytes", "flops": "flop"}
#: Columns that a word asks for.
_COLUMNS: Final = {"calls": "calls", "flops": "flops", "bytes": "read_bytes"}


class Asked:
    """A client, and how many bytes it read."""

    def __init__(self, client: Client) -> None:
        self._client, self.read = client, 0

    async def call(self, tool: str, **arguments: Any) -> str:
        result = await self._client.call_tool(tool, arguments)
        text = "".join(getattr(part, "text", "") for part in result.content)
        self.read += len(text.encode())
        return "" if result.is_error else text

    async def rows(self, **arguments: Any) -> list[dict[str, Any]]:
        """All rows of a table that fit, page by page."""
        rows: list[dict[str, Any]] = []
        cursor: str | None = ""
        while cursor is not None and (text := await self.call("table", cursor=cursor, **arguments)):
            page = json.loads(text)
            rows += page["rows"]
            cursor = page["next"] if "limit" not in arguments else None
        return rows


async def answered(asked: Asked, path: str, text: str) -> float | str | None:
    """The answer to a question about the trace at this path; `None` if the client finds none."""
    opened = await asked.call("open", path=path)
    name = opened.splitlines()[0].removeprefix("id: ") if opened else ""
    tables = re.findall(r"([\w.]+) \d+", opened.split("tables (rows): ")[-1].splitlines()[0]) if opened else []
    words = [word for word in re.findall(r"[a-z-]+", re.sub(r"`[^`]*`", "", text.lower())) if word not in _EMPTY]
    if quoted := re.findall(r"`([^`]*)`", text):
        return await of_name(asked, name, quoted[0], words)
    if {"try", "advice"} & set(words):
        said = json.loads(await asked.call("findings", id=name) or '{"advice": []}')
        return next((each["id"] for each in said["advice"]), None)
    if text.lower().startswith("which"):
        plural = next((table for table in tables if table.rstrip("s") == words[0]), None)
        if plural is not None and set(words) <= {words[0]}:
            return await longest(asked, name, plural)
    if "cause" in words:
        causes = next((table for table in tables if table.endswith("causes")), "")
        first = await asked.rows(id=name, name=causes, limit=1)
        return str(first[0]["cause"]) if first else None
    found = json.loads(await asked.call("table", id=name, filter=" ".join(words)) or '{"rows": []}')
    unit = next((unit for said, unit in _UNITS.items() if said in text.lower()), "")
    rows = [row for row in found["rows"] if unit in ("", row["unit"])]
    return rows[0]["value"] if rows and not found.get("words_in_no_row") else None


async def of_name(asked: Asked, name: str, quoted: str, words: Sequence[str]) -> float:
    """The sum of the rows with this name, and in the phase that is asked for, in a mean step."""
    rows = await asked.rows(id=name, name="operators", filter=quoted)
    rows = [row for row in rows if quoted in (row["part_of"] or row["operator"], row["operator"])]
    if phases := {row["phase"] for row in rows} & set(words):
        rows = [row for row in rows if row["phase"] in phases]
    column = next((_COLUMNS[word] for word in words if word in _COLUMNS), "time_ns")
    return sum(float(row[column] or 0) for row in rows)


async def longest(asked: Asked, name: str, table: str) -> str | None:
    """The name with most time in a table, rows of one name in one phase together."""
    times: dict[tuple[str, str], float] = {}
    for row in await asked.rows(id=name, name=table, sort="-time_ns"):
        key = (
            str(row.get("part_of") or next(value for value in row.values() if isinstance(value, str))),
            str(row.get("phase")),
        )
        times[key] = times.get(key, 0) + row["time_ns"]
    return max(times, key=lambda key: times[key])[0] if times else None


def agrees(found: float | str | None, expected: float | str | None) -> bool:
    """Whether an answer is the expected one."""
    if isinstance(found, int | float) and isinstance(expected, int | float):
        return abs(found - expected) <= 1e-3 * abs(expected)
    return found == expected


def path_of(question: Question) -> Path:
    """Where the trace of a question lies."""
    return ROOT / question.trace if question.trace.startswith("tests/") else SHARED / question.trace


async def ask(questions: Sequence[Question]) -> None:
    """Ask each question with a client of its own reading; print what is wrong, and the counts."""
    right = read = 0
    documents: dict[str, Any] = {}
    async with Client(server_of([ROOT, SHARED])) as client:
        for question in questions:
            path = path_of(question)
            if question.trace not in documents:
                documents[question.trace] = report_as_dict(analyze_traces([path]))
            expected = question.answer(documents[question.trace])
            asked = Asked(client)
            found = await answered(asked, str(path), question.text)
            right, read = right + agrees(found, expected), read + asked.read
            if not agrees(found, expected):
                print(f"{question.trace}: {question.text}\n  {found!r}, the report has {expected!r}")
    print(f"{right} of {len(questions)} answered, {read / max(len(questions), 1):,.0f} bytes read for each")


if __name__ == "__main__":
    wanted = [word.lower() for word in sys.argv[1:]]
    anyio.run(ask, [each for each in QUESTIONS if not wanted or any(word in each.text.lower() for word in wanted)])
