"""Tables: chosen rows, parts and sums against sums made one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from opanatomy.records.columns import Categorical
from opanatomy.records.table import NOT_KNOWN, Table, figure


def made(count: int, seed: int, sizes: Sequence[int]) -> Table:
    """Rows with random keys, some without a value, and figures of which some are not known."""
    draw = np.random.default_rng(seed)
    keys: dict[str, Categorical[Any]] = {
        f"key{place}": Categorical(draw.integers(-1, size, count), tuple(f"{place}.{code}" for code in range(size)))
        for place, size in enumerate(sizes)
    }
    time, flops = draw.integers(0, 1_000, count), draw.integers(-1, 3, count)
    return Table(keys, {"time_ns": time, "flops": figure(flops, flops >= 0)})


@pytest.mark.parametrize("names", [(), ("key0",), ("key1", "key0"), ("key0", "key1", "key2")])
@pytest.mark.parametrize("count", [0, 1, 500])
def test_sums_by_keys_are_those_of_the_rows(names: tuple[str, ...], count: int) -> None:
    table = made(count, seed=count, sizes=(3, 2, 40))
    sums: dict[tuple[Any, ...], list[int | None]] = {}
    for row in table.rows():
        kept = sums.setdefault(tuple(row[name] for name in names), [0, None])
        kept[0] = (kept[0] or 0) + row["time_ns"]
        if row["flops"] is not None:
            kept[1] = (kept[1] or 0) + row["flops"]
    grouped = list(table.by(*names).rows())
    assert {tuple(row[name] for name in names): [row["time_ns"], row["flops"]] for row in grouped} == sums
    assert len(grouped) == len(sums) == len(table.by(*names))
    places = [rows for _, rows in table.parts(*names)] if names else []
    assert sorted(np.concatenate(places).tolist() if places else []) == list(range(count if names else 0))


def test_a_table_of_a_table_has_the_same_sums() -> None:
    """What is summed over more keys first has the same sums: each view is a question to one table."""
    table = made(2_000, seed=7, sizes=(5, 4, 30))
    for names in (("key0",), ("key2", "key0")):
        assert list(table.by(*table.keys).by(*names).rows()) == list(table.by(*names).rows())


def test_keys_that_do_not_fit_one_number() -> None:
    """Ten keys of 400 values are 400 to the tenth combinations."""
    table = made(300, seed=3, sizes=(400,) * 10)
    assert sum(row["time_ns"] for row in table.by(*table.keys).rows()) == int(table.figures["time_ns"].sum())
    assert len(table.by(*table.keys)) == 300


def test_chosen_rows() -> None:
    table = made(50, seed=1, sizes=(3,))
    rows = list(table.rows())
    assert list(table.where(np.array([4, 2])).rows()) == [rows[4], rows[2]]
    mask = table.keys["key0"].equals("0.1")
    assert list(table.where(mask).rows()) == [row for row in rows if row["key0"] == "0.1"]


def test_what_is_not_known_survives_a_sum_as_such() -> None:
    key = Categorical(np.array([0, 0, 1]), ("a", "b"))
    table = Table({"key": key}, {"flops": np.array([NOT_KNOWN, 3, NOT_KNOWN])})
    assert list(table.by("key").rows()) == [{"key": "a", "flops": 3}, {"key": "b", "flops": None}]
