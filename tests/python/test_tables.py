"""Tables: chosen rows, parts and sums against sums made one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from opanatomy.records.columns import Categorical
from opanatomy.records.table import NOT_KNOWN, Table, concatenated, figure, table_of


def made(count: int, seed: int, sizes: Sequence[int]) -> Table:
    """Rows with random keys, some without a value, and figures of which some are unknown."""
    draw = np.random.default_rng(seed)
    keys: dict[str, Categorical[Any]] = {
        f"key{index}": Categorical(draw.integers(-1, size, count), tuple(f"{index}.{code}" for code in range(size)))
        for index, size in enumerate(sizes)
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
    indices = [rows for _, rows in table.parts(*names)] if names else []
    assert sorted(np.concatenate(indices).tolist() if indices else []) == list(range(count if names else 0))


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


@pytest.mark.parametrize("count", [0, 1, 200])
def test_a_table_comes_back_from_its_plain_values(count: int) -> None:
    """Through JSON; values that no row has are left out, and a column that is the same in all rows is one value."""
    table = made(count, seed=5, sizes=(3, 60)).with_columns({}, {"events": np.full(count, 7)})
    plain = msgspec.json.decode(msgspec.json.encode(table.plain()))
    again = table_of(plain, {})
    assert again == table
    assert (again != table.with_columns({}, {"events": np.full(count, 8)})) is (count > 0)
    assert plain["events"] == (7 if count > 1 else [7] * count)
    assert set(plain["key1"]["values"]) == {row["key1"] for row in table.rows()} - {None}


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ([1], "a table claims 2 rows, but no column has that many"),
        ([1, 2.5], "not an integer"),
        ([1, True], "not an integer"),
        ("ab", "not an integer"),
        ({"values": ["a"], "codes": [0, 1]}, "a code without a value"),
        ({"values": ["a"], "codes": -2}, "a code without"),
        ([1, 2**63], "too large"),
    ],
)
def test_plain_values_that_are_no_table(column: Any, said: str) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError), match=said):
        table_of({"rows": 2, "time_ns": column}, {})


def test_tables_together_have_the_rows_of_each_and_none_where_one_lacks_a_column() -> None:
    first, second = made(20, seed=1, sizes=(3,)), made(30, seed=2, sizes=(4, 2))
    both = concatenated((first, second))
    rows = [{**row, "key1": None} for row in first.rows()] + list(second.rows())
    assert list(both.rows()) == [{name: row[name] for name in ("key0", "key1", "time_ns", "flops")} for row in rows]
    spent = sum(int(table.figures["time_ns"].sum()) for table in (first, second))
    assert int(both.by("key0").figures["time_ns"].sum()) == spent
