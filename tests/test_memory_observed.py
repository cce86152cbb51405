"""What a capture observed of memory, in its trace: the same figures at every reading, and nothing that breaks one."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import opanatomy
from opanatomy.capture.memory.measurement import Snapshots
from opanatomy.capture.memory.observer import observe_step
from opanatomy.capture.model.workload import prepare
from opanatomy.capture.silence import quiet_libraries
from opanatomy.capture.step.stepper import Stepper, make_optimizer
from opanatomy.errors import TraceError
from opanatomy.memory.allocations import blocks_of
from opanatomy.memory.observed import memory_of_observations, table_of
from opanatomy.records.columns import NO_MEMORY_EVENTS, MemoryEvents, is_packed, packed, unpacked
from opanatomy.records.workload import MemoryObservations, StepObservations
from opanatomy.report.formats.json import json_report
from opanatomy.trace.redact import Texts
from opanatomy.trace.redact_records import redacted
from tests.tiny import tiny_request

BERT = "google-bert/bert-base-uncased"


@pytest.fixture(scope="module")
def step() -> StepObservations:
    prepared = prepare(tiny_request(BERT))
    stepper = Stepper(
        module=prepared.module, parameters=tuple(prepared.module.parameters()), inputs=prepared.inputs, device="cpu",
        optimizer=make_optimizer("adamw", prepared.module),
    )  # fmt: skip
    with quiet_libraries():
        stepper.run()
        return observe_step(stepper, prepared.module, Snapshots("cpu")).observations


# ----------------------------------------------------------------------------------------------------- profile, analyze


@pytest.mark.parametrize("memory", [True, False])
def test_profile_and_analyze_of_its_trace_say_the_same_of_memory(memory: bool, tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16))
    path = tmp_path / "step.json.gz"
    profiled = opanatomy.profile(module, torch.ones(4, 64), optimizer="adamw", memory=memory, trace=path)
    sections = [json.loads(json_report(one)) for one in (profiled, opanatomy.analyze(path))]
    assert sections[0]["memory"] == sections[1]["memory"]
    assert sections[0]["checks"] == sections[1]["checks"]
    components = {row["component"]: row["measured_bytes"] for row in sections[0]["memory"]["components"]}
    weights = 4 * (64 * 32 + 32 + 32 * 16 + 16)
    assert (components["weights"], components["gradients"], components["optimizer_state"]) == (
        weights, weights, 2 * weights
    )  # fmt: skip
    assert bool(sections[0]["memory"]["timeline"]) == memory


def test_the_trace_has_what_was_observed_and_no_result(tmp_path: Path) -> None:
    path = tmp_path / "step.json.gz"
    opanatomy.profile(torch.nn.Linear(8, 8), torch.ones(2, 8), memory=True, trace=path)
    memory = json.loads(gzip.decompress(path.read_bytes()))["opanatomy"]["memory"]
    assert not {"components", "timeline", "blocks", "activations", "terms", "allocator"} & set(memory)
    observations = msgspec.convert(memory, type=MemoryObservations)
    assert observations.step is not None
    table = table_of(observations.step)
    assert (table.events.bytes > 0).sum() > 3
    assert set(table.calls.name.values) >= {"aten::linear", "aten::addmm"}


def test_a_memory_step_that_cannot_be_read_is_a_warning_and_the_storages_stay(tmp_path: Path) -> None:
    path = tmp_path / "step.json.gz"
    opanatomy.profile(torch.nn.Linear(8, 8), torch.ones(2, 8), memory=True, trace=path)
    trace = json.loads(gzip.decompress(path.read_bytes()))
    trace["opanatomy"]["memory"]["step"]["events"]["bytes"] = ""
    (tmp_path / "damaged.json").write_text(json.dumps(trace))
    anatomy = opanatomy.analyze(tmp_path / "damaged.json")
    assert any(warning.startswith("the trace's own record of the memory step cannot") for warning in anatomy.warnings)
    assert {row.component: row.measured_bytes for row in anatomy.memory.components}["weights"] == 4 * 72
    assert anatomy.memory.timeline == ()


def test_a_memory_step_that_is_too_large_for_the_metadata_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opanatomy.capture.memory.observer._MAX_PACKED_BYTES", 100)
    anatomy = opanatomy.profile(torch.nn.Linear(8, 8), torch.ones(2, 8), memory=True)
    assert anatomy.memory.timeline == ()
    assert anatomy.memory.measured_by == "resident set of the process"
    assert any("more allocations than the metadata of a trace hold" in note for note in anatomy.memory.notes)


# -------------------------------------------------------------------------------------------------------------- columns


@settings(deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50))
def test_a_column_is_unpacked_as_it_was_packed(values: list[int]) -> None:
    assert unpacked(packed(values)).tolist() == values


@pytest.mark.parametrize("data", [b"", b"abc", packed([1, 2])[:-3], packed([1, 2]) + b"x", zlib.compress(b"seven b")])
def test_what_is_no_column_is_refused(data: bytes) -> None:
    assert not is_packed(data)
    with pytest.raises(ValueError, match="no packed column"):
        unpacked(data)


def test_a_column_that_fills_memory_is_refused() -> None:
    bomb = zlib.compress(bytes(1 << 28), 1)
    with pytest.raises(ValueError, match="too long"):
        unpacked(bomb)


BROKEN: dict[str, Any] = {
    "a context that is none": lambda step: replace(
        step, events=replace(step.events, context=_with(step.events.context, 3, 10**6))
    ),
    "a mark behind the events": lambda step: replace(
        step, marks=replace(step.marks, event=_with(step.marks.event, 0, 10**6))
    ),
    "a kind that is none": lambda step: replace(step, marks=replace(step.marks, kind=_with(step.marks.kind, 0, 99))),
    "a caller behind its call": lambda step: replace(
        step, contexts=replace(step.contexts, caller=_with(step.contexts.caller, 0, 5))
    ),
    "an operator that is none": lambda step: replace(
        step, contexts=replace(step.contexts, operator=_with(step.contexts.operator, 1, 10**6))
    ),
    "columns of unequal lengths": lambda step: replace(step, events=replace(step.events, address=packed([1, 2]))),
    "time that runs back": lambda step: replace(
        step, events=replace(step.events, time_ns=_with(step.events.time_ns, 5, 1))
    ),
    "storages of unequal lengths": lambda step: replace(step, storages=replace(step.storages, bytes=packed([1]))),
    "a component that is none": lambda step: replace(
        step, storages=replace(step.storages, components=("what", *step.storages.components[1:]))
    ),
}  # fmt: skip


def _with(column: bytes, place: int, value: int) -> bytes:
    values = unpacked(column)
    values[place] = value
    return packed(values)


@pytest.mark.parametrize("name", BROKEN)
def test_columns_that_do_not_fit_each_other_are_one_line(name: str, step: StepObservations) -> None:
    with pytest.raises(TraceError, match="own record of the memory step cannot be used"):
        memory_of_observations(MemoryObservations(step=BROKEN[name](step)))


# ------------------------------------------------------------------------------------------------------------ redaction


def test_names_and_modules_of_the_memory_step_are_redacted(step: StepObservations) -> None:
    secret = "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH"
    contexts = replace(step.contexts, operators=(secret, *step.contexts.operators[1:]), modules=(f"layer.{secret}",))
    columns = replace(step.events, time_ns=b"a text that is no column " + secret.encode())
    told = replace(step, contexts=contexts, events=columns, device=secret)
    observations = MemoryObservations(step=told, notes=(f"token={secret}",), other_devices=(secret,))
    text = msgspec.json.encode(redacted(observations, Texts())).decode()
    assert secret not in text
    assert base64.b64encode(secret.encode()).decode()[:20] not in text
    assert redacted(MemoryObservations(step=step), Texts()) == MemoryObservations(step=step)


# -------------------------------------------------------------------------------------------------------------- pairing


def _events(rows: list[tuple[int, int]]) -> MemoryEvents:
    nothing = np.zeros(len(rows), dtype=np.int64)
    columns = dict.fromkeys(NO_MEMORY_EVENTS.__struct_fields__, nothing)
    columns["address"] = np.array([address for address, _ in rows], dtype=np.int64)
    columns["bytes"] = np.array([size for _, size in rows], dtype=np.int64)
    columns["time_ns"] = np.arange(len(rows))
    return MemoryEvents(**columns)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([-64, -8, 0, 8, 64])), max_size=25),
    st.lists(st.integers(1, 4), unique=True, max_size=3),
)
def test_blocks_are_paired_as_one_would_by_hand(rows: list[tuple[int, int]], held: list[int]) -> None:
    """Event by event: an event at the address of a live block ends it, a free of none is unmatched."""
    live = {address: number for number, address in enumerate(held)}
    ends: list[int] = [len(rows)] * len(held)
    unmatched = []
    for place, (address, size) in enumerate(rows):
        if not size:
            continue
        block = live.pop(address, None)
        if block is not None:
            ends[block] = place
        elif size < 0:
            unmatched.append(place)
        if size > 0:
            live[address] = len(ends)
            ends.append(len(rows))
    blocks = blocks_of(_events(rows), np.array(held, dtype=np.int64), np.full(len(held), 8, dtype=np.int64))
    assert blocks.events == len(rows)
    assert blocks.free.tolist() == ends
    assert blocks.unmatched.tolist() == unmatched
    at = np.repeat(np.arange(len(rows)), 4)
    addresses = np.tile(np.arange(1, 5), len(rows))
    wanted = [
        next(
            (
                block
                for block, (begin, end) in enumerate(zip(blocks.alloc.tolist(), ends, strict=True))
                if 0 <= begin < event < end and blocks.address[block] == address
            ),
            -1,
        )
        for event, address in zip(at.tolist(), addresses.tolist(), strict=True)
    ]
    assert blocks.live_at(at, addresses).tolist() == wanted
