"""The server for agents, asked by the SDK's own client: every tool, every error, two clients at once, over stdio."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

import opanatomy
from opanatomy.mcp import server_of
from opanatomy.report.metrics import metrics_of
from tests.support.made_steps import read_back, two_streams
from tests.support.made_trace import GEMM, MATRICES, on_gpu, training_step
from tests.support.paths import TRACES

mcp = pytest.importorskip("mcp")

DLRM: Final = "gpu_v100_dlrm_rank0of8.json.gz"
TOOLS: Final = ["open", "findings", "explain", "table", "spans", "what_if", "compare", "predict", "catalog"]
pytestmark = pytest.mark.filterwarnings("ignore")


def asked(act: Callable[[Any], Awaitable[None]], folder: Path = TRACES, *, allow_run: bool = False) -> None:
    """Let a client act on a server of its own."""

    async def run() -> None:
        async with mcp.Client(server_of([folder], allow_run=allow_run)) as client:
            await act(client)

    anyio.run(run)


async def called(client: Any, tool: str, **arguments: Any) -> str:
    """The text of an answer that is no error."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return "".join(part.text for part in result.content)


async def refused(client: Any, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    text = "".join(part.text for part in result.content)
    assert "Traceback" not in text
    assert "\n" not in text
    return text


def id_in(answer: str) -> str:
    first = answer.splitlines()[0]
    assert first.startswith("id: ")
    return first.removeprefix("id: ")


def test_every_tool_is_listed_and_answers() -> None:
    """Each within 4 kB; the id is the same for the same trace, and a report opened again is the same report."""

    async def act(client: Any) -> None:
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == TOOLS
        assert all(tool.description for tool in listed)
        first = await called(client, "open", path=DLRM)
        assert await called(client, "open", path=str(TRACES / DLRM)) == first
        name, other = id_in(first), id_in(await called(client, "open", path="gpu_v100_dlrm_rank1of8.json.gz"))
        answers = [
            first,
            await called(client, "findings", id=name),
            await called(client, "explain", id=name, name="MFU"),
            await called(client, "explain", id=name, name="aten::mm"),
            await called(client, "table", id=name),
            await called(client, "compare", a=name, b=other),
            await called(client, "catalog"),
        ]
        assert max(len(answer.encode()) for answer in answers) <= 4000
        assert "kind: comparison" in answers[5]

    asked(act)


def test_a_table_has_the_figures_of_the_report() -> None:
    """Metrics with their meanings, rows by their words, sorted, and page by page all of them."""
    anatomy = opanatomy.analyze(TRACES / DLRM)

    async def act(client: Any) -> None:
        name = id_in(await called(client, "open", path=DLRM))
        rows: list[dict[str, Any]] = []
        cursor: str | None = ""
        while cursor is not None:
            page = json.loads(await called(client, "table", id=name, limit=7, cursor=cursor))
            assert len(page["rows"]) <= 7
            rows += page["rows"]
            cursor = page["next"]
        assert {row["metric"]: row["value"] for row in rows} == anatomy.metrics()
        assert all(row["meaning"] for row in rows)
        found = json.loads(await called(client, "table", id=name, filter="exposed communication"))
        assert "exposed" in found["rows"][0]["metric"]
        operators = json.loads(await called(client, "table", id=name, name="operators", sort="-time_ns", limit=3))
        assert [row["time_ns"] for row in operators["rows"]] == [row.time_ns for row in anatomy.operators[:3]]
        assert (operators["per"], operators["steps"]) == ("step", 1)

    asked(act)


def test_figures_are_of_one_step_and_say_so(tmp_path: Path) -> None:
    """The digest's and the tables' alike: of two steps with 10 and 20 us of one operator 15."""
    trace = on_gpu()
    for number, product in enumerate((10, 20)):
        trace.step(1000 * number, 1000, number)
        trace.host("aten::mm", 1000 * number + 100, 50, **MATRICES)
        trace.run(GEMM, 1000 * number + 110, 1000 * number + 120, product)
    trace.write(tmp_path / "trace.json")

    async def act(client: Any) -> None:
        opened = await called(client, "open", path="trace.json")
        assert "- all numbers: for one step, averaged over 2" in opened
        assert "- operator: `aten::mm` forward: 15.0 us" in opened
        for table in ("operators", "kernels", "classes"):
            answer = json.loads(await called(client, "table", id=id_in(opened), name=table))
            assert (answer["per"], answer["steps"], answer["rows"][0]["time_ns"]) == ("step", 2, 15_000)
        steps = json.loads(await called(client, "table", id=id_in(opened), name="steps"))
        assert (steps["per"], [row["kernel_time_ns"] for row in steps["rows"]]) == (None, [10_000, 20_000])

    asked(act, tmp_path)


def test_the_events_of_an_interval(tmp_path: Path) -> None:
    """What ran when, where and on what, the longest of them in the order of time; the others are counted."""
    trace = training_step()
    for number in range(500):
        trace.host(f"aten::part_{number}", 600 + number / 2, 0.4)
    trace.write(tmp_path / "trace.json")

    async def act(client: Any) -> None:
        name = id_in(await called(client, "open", path="trace.json"))

        async def events(**arguments: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
            text = await called(client, "spans", id=name, **arguments)
            answer = json.loads(text)
            assert len(text.encode()) <= 6000
            assert answer["events"] == len(answer["rows"]) + answer["left_out"]
            return answer, [dict(zip(answer["columns"], row, strict=False)) for row in answer["rows"]]

        answer, rows = await events(**{"from": 0.14, "to": 0.16})
        assert (answer["step"], answer["from_ms"], answer["to_ms"], answer["left_out"]) == (3, 0.14, 0.16, 0)
        (kernel,) = [row for row in rows if row["what"] == "kernel"]
        assert (kernel["at_ms"], kernel["ms"], kernel["on"], kernel["below"]) == (
            0.15,
            0.02,
            "device 0 stream 7",
            "aten::mm",
        )
        assert {row["on"] for row in rows if row["what"] == "operator"} == {"thread 2"}
        answer, rows = await events(filter="sgemm")
        assert [row["ms"] for row in rows] == [0.01, 0.02]
        assert answer["names"][0][1:] == [1, 0.02]
        answer, rows = await events(filter="PART*450|aten::part_460", step=3)
        assert [row["name"] for row in rows] == ["aten::part_450", "aten::part_460"]
        answer, rows = await events(filter=r"(\w+\s?)*!$")  # as a regular expression it would end with the universe
        assert rows == []
        answer, rows = await events()
        assert answer["left_out"] > 400
        assert [row["at_ms"] for row in rows] == sorted(row["at_ms"] for row in rows)
        assert "3" in await refused(client, "spans", id=name, step=7)
        assert "no such rank" in await refused(client, "spans", id=name, rank=1)
        with (tmp_path / "trace.json").open("a") as file:
            file.write(" ")
        assert "changed since it was opened" in await refused(client, "spans", id=name)
        (tmp_path / "trace.json").unlink()
        assert "the file is gone" in await refused(client, "spans", id=name)

    asked(act, tmp_path)


def test_the_steps_after_changes(tmp_path: Path) -> None:
    """A host that waits for a product of 500 us and then works for 300 us: side by side they take the longer one."""
    read_back().write(tmp_path / "trace.json")

    async def act(client: Any) -> None:
        name = id_in(await called(client, "open", path="trace.json"))
        changes = ["synchronization 0", "aten::mm x0.5"]
        answer = json.loads(await called(client, "what_if", id=name, changes=changes))
        assert (answer["step_ns"], answer["why_not"]) == (2_784_000, None)
        assert [each["changes"] for each in answer["answers"]] == [
            ["synchronization x0"],
            ["aten::mm x0.5"],
            ["synchronization x0", "aten::mm x0.5"],
        ]
        assert [answer["step_ns"] - each["step_ns"] for each in answer["answers"][:2]] == [969_000, 750_000]
        assert sum(answer["path"].values()) == answer["step_ns"]
        assert "no such part of the step" in await refused(client, "what_if", id=name, changes=["aten::nn 0"])
        assert "not a change" in await refused(client, "what_if", id=name, changes=["faster"])
        with (tmp_path / "trace.json").open("a") as file:
            file.write(" ")
        # The events of the trace asked about last are kept; those of another one are not there any more.
        assert json.loads(await called(client, "what_if", id=name, changes=changes)) == answer
        two_streams().write(tmp_path / "other.json")
        other = id_in(await called(client, "open", path="other.json"))
        await called(client, "what_if", id=other, changes=["communication 0"])
        assert "changed since it was opened" in await refused(client, "what_if", id=name, changes=changes)

    asked(act, tmp_path)


def test_a_report_keeps_no_events(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(training_step().analyze(tmp_path).to_json())

    async def act(client: Any) -> None:
        name = id_in(await called(client, "open", path="report.json"))
        assert "open the trace" in await refused(client, "spans", id=name)
        assert "open the trace" in await refused(client, "what_if", id=name, changes=["host 0"])

    asked(act, tmp_path)


def test_findings_are_those_of_the_report() -> None:
    anatomy = opanatomy.analyze(TRACES / DLRM)

    async def act(client: Any) -> None:
        said = json.loads(await called(client, "findings", id=id_in(await called(client, "open", path=DLRM))))
        assert [(each["id"], each["gain_at_most_ns"]) for each in said["advice"]] == [
            (each.id, each.gain_ns) for each in anatomy.advice
        ]
        assert said["findings"]

    asked(act)


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("open", {"path": "../../pyproject.toml"}, "outside the folders that this server reads"),
        ("open", {"path": "/etc/passwd"}, "outside the folders"),
        ("open", {"path": "nothing.json"}, "no such file or folder"),
        ("open", {"path": "README.md"}, "README.md"),
        ("open", {"path": ""}, "not a file name"),
        ("open", {"path": "a\0b"}, "not a file name"),
        ("open", {"path": "profile 'gpt2"}, "No closing quotation"),
        (
            "open",
            {"path": "profile gpt2"},
            "profile gpt2: this server does not run models - start it with",
        ),
        ("findings", {"id": "0123"}, "no open report has this id"),
        ("explain", {"id": None, "name": "a word of nobody"}, "neither a term of the report"),
        ("table", {"id": None, "name": "operator"}, "no such table - did you mean operators"),
        ("table", {"id": None, "limit": 10**9}, "limit 1000000000: must be from 1 to 500"),
        ("table", {"id": None, "cursor": "x"}, "cursor 'x': not a cursor of this table"),
        ("table", {"id": None, "sort": "-tim"}, "sort '-tim': no such column"),
        (
            "predict",
            {"id": None, "technique": "amp"},
            "cannot be predicted, because no command",
        ),
        ("compare", {"a": None, "b": "7"}, "no open report has this id"),
    ],
)
def test_an_error_is_one_clear_line(tool: str, arguments: dict[str, Any], words: str) -> None:
    async def act(client: Any) -> None:
        name = id_in(await called(client, "open", path=DLRM))
        given = {key: name if value is None else value for key, value in arguments.items()}
        assert words in await refused(client, tool, **given)

    asked(act)


def test_a_link_leads_not_out_of_the_folders(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    shutil.copy(TRACES / DLRM, tmp_path / "outside.json.gz")
    (tmp_path / "inside" / "ranks").mkdir()
    for link in ("link.json.gz", "ranks/rank0.json.gz"):
        (tmp_path / "inside" / link).symlink_to(tmp_path / "outside.json.gz")

    async def act(client: Any) -> None:
        assert "outside the folders" in await refused(client, "open", path="link.json.gz")
        assert "it contains rank0.json.gz, which leads outside" in await refused(client, "open", path="ranks")

    asked(act, tmp_path / "inside")


def test_a_trace_that_is_deleted_meanwhile(tmp_path: Path) -> None:
    """What was opened is known still; to open it again is an error of one line."""
    shutil.copy(TRACES / DLRM, tmp_path / DLRM)

    async def act(client: Any) -> None:
        name = id_in(await called(client, "open", path=DLRM))
        (tmp_path / DLRM).unlink()
        assert "step_time_ns" in await called(client, "table", id=name, filter="step_time_ns")
        assert "no such file" in await refused(client, "open", path=DLRM)

    asked(act, tmp_path)


def test_secrets_are_in_no_answer(tmp_path: Path) -> None:
    trace = training_step()
    trace.metadata["API_TOKEN"] = "hf_ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefgh"
    trace.host("range with hf_ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefgh", 300, 10)
    trace.write(tmp_path / "trace.json")

    async def act(client: Any) -> None:
        name = id_in(await called(client, "open", path="trace.json"))
        for table in ("operators", "kernels", "host", "metrics"):
            answer = await called(client, "table", id=name, name=table, limit=500)
            assert "hf_ABC" not in answer
        assert "hf_ABC" not in await refused(client, "open", path="hf_ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefgh.json")

    asked(act, tmp_path)


def test_damaged_questions_are_answered_in_one_line() -> None:
    async def act(client: Any) -> None:
        name = id_in(await called(client, "open", path=DLRM))
        said = await refused(client, "table", id=name, limit="x", name=None)
        assert (
            said == "table: name: Input should be a valid string; limit: Input should be a valid integer, unable to"
            " parse string as an integer"
        )
        assert "path: Field required" in await refused(client, "open")
        assert "no such file" in await refused(client, "open", path="a\nb")
        assert len(await refused(client, "findings", id="1" * 5000)) < 1_100
        assert "from: Input should be greater than" in await refused(client, "spans", id=name, **{"from": -1e308})
        assert "Unknown tool: op" in await refused(client, "op\nen")
        with pytest.raises(mcp.MCPError, match=f"id 'gone': no open report has this id .{name}. - open"):
            await client.read_resource("ui://opanatomy/report/gone")

    asked(act)


def test_the_page_is_a_resource() -> None:
    async def act(client: Any) -> None:
        name = id_in(await called(client, "open", path=DLRM))
        for uri in ("ui://opanatomy/report", f"ui://opanatomy/report/{name}"):
            (content,) = (await client.read_resource(uri)).contents
            assert content.text.startswith("<!doctype html>")
            assert content.mime_type == "text/html;profile=mcp-app"
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["open"].meta["ui"]["resourceUri"] == "ui://opanatomy/report"

    asked(act)


@pytest.mark.slow
def test_over_stdio_by_two_clients_at_once() -> None:
    """Each has a server of its own; nothing but the protocol is on its stdout."""
    server = mcp.StdioServerParameters(command=sys.executable, args=["-m", "opanatomy", "mcp", str(TRACES)])
    ids: list[str] = []

    async def one() -> None:
        async with mcp.Client(mcp.stdio_client(server)) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == TOOLS
            name = id_in(await called(client, "open", path=DLRM))
            answer = json.loads(await called(client, "table", id=name, filter="step_profiled_ns"))
            figures = metrics_of(opanatomy.analyze(TRACES / DLRM))
            assert answer["rows"][0]["value"] == figures["step_profiled_ns"].value
            ids.append(name)

    async def both() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(one)
            group.start_soon(one)

    anyio.run(both)
    assert len(ids) == 2
    assert len(set(ids)) == 1


@pytest.mark.slow
def test_a_model_is_run_where_that_is_allowed(tmp_path: Path) -> None:
    small = "--layers 1 --seq 16 --batch 2 --device cpu --set n_embd=32 --set n_head=2 --set vocab_size=200"

    async def act(client: Any) -> None:
        opened = await called(client, "open", path=f"profile openai-community/gpt2 {small}")
        assert "kind: report" in opened
        assert "- model: `openai-community/gpt2`" in opened
        assert "no-such-model" in await refused(client, "open", path="profile no-such-model")

    asked(act, tmp_path, allow_run=True)
