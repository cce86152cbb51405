"""Formulas of users: five lines in their own code, with one clear error where they are wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import opanatomy
from opanatomy.cost import registry
from opanatomy.cost.registry import cost, describe, formula, has_formula, operators, pattern
from opanatomy.errors import UsageError
from opanatomy.records.signature import Cost, Signature, Stored, Tensor
from tests.support.made_trace import TraceBuilder

X = Tensor((8, 4), "float32", (4, 1))
THREE = Cost(flops=1, read_bytes=2, written_bytes=3)


@pytest.fixture(autouse=True)
def _registry_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it: there is no way to take a formula back."""
    for name in ("_FORMULAS", "_BY_DEVICE", "_SPARSE", "_PATTERNS"):
        monkeypatch.setattr(registry, name, getattr(registry, name).copy())


def test_the_five_lines_of_the_docstring_work() -> None:
    assert registry.__doc__ is not None
    code = registry.__doc__.split("code:\n\n")[1].split("\n\n`signature`")[0]
    lines = [line.removeprefix("    ") for line in code.splitlines()]
    exec("\n".join(lines), {})
    assert cost("mylib::fused_add_norm", Signature((X, 1e-5))) == Cost(
        flops=8 * 32, read_bytes=2 * 128, written_bytes=128
    )


def test_importing_it_imports_no_torch() -> None:
    code = "import sys; from opanatomy import formula; assert callable(formula); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert "formula" in dir(opanatomy)


def of(flops: int) -> Callable[[Signature], Cost]:
    def mine(signature: Signature) -> Cost:
        return Cost(flops=flops, read_bytes=0, written_bytes=0)

    return mine


def flops(operator: str, device: str | None = None) -> int | None:
    found = cost(operator, Signature((X,)), device)
    return None if found is None else found.flops


def test_a_formula_gets_the_arguments_in_their_order() -> None:
    seen: list[Signature] = []

    @formula("mylib::a", "mylib::b")
    def f(signature: Signature) -> Cost:
        """What it is."""
        seen.append(signature)
        return THREE

    given = Signature((X, (X, X), 3, 0.5, True, None, Tensor((8, 4), "float32", None, Stored(3, 48))))
    assert cost("mylib::a", given) == cost("mylib::b", given) == f(given) == THREE
    assert seen == [given] * 3
    assert (describe("mylib::a"), describe("mylib::c")) == ("What it is.", None)
    assert {"mylib::a", "mylib::b"} <= set(operators())
    assert (has_formula("mylib::a"), has_formula("mylib::c")) == (True, False)


@pytest.mark.parametrize("where", [{}, {"device": "cpu"}, {"sparse": True}])
def test_a_formula_takes_the_place_of_another_only_where_it_says_so(where: dict[str, Any]) -> None:
    formula("mylib::twice", **where)(of(1))
    formula("mylib::twice", **where)(of(2))  # a cell of a notebook that runs again
    with pytest.raises(UsageError, match=r"mylib::twice already has a formula, \S+ \(.*\.py:\d+\) - pass replace=True"):
        formula("mylib::twice", **where)(lambda signature: THREE)
    with pytest.raises(UsageError, match=r"aten::mm already has a formula, \w+ \(.*contraction\.py:\d+\)"):
        formula("aten::mm")(of(3))
    product = Signature((X, Tensor((4, 5), "float32")))
    assert cost("aten::mm", product) == Cost(flops=2 * 8 * 5 * 4, read_bytes=128 + 80, written_bytes=160), "as before"
    formula("aten::mm", replace=True)(of(3))
    assert flops("aten::mm") == 3


def test_a_formula_for_one_kind_of_device() -> None:
    formula("mylib::a")(of(1))
    formula("mylib::a", device="cpu")(of(9))
    assert [flops("mylib::a", device) for device in (None, "cuda", "cpu")] == [1, 1, 9]


def test_a_pattern_is_for_names_without_a_formula_of_their_own() -> None:
    @pattern(r"mylib::kernel_\d+")
    def f(name: str, signature: Signature) -> Cost:
        return of(int(name.split("_")[1]))(signature)

    formula("mylib::kernel_3")(of(1))
    assert [flops(f"mylib::kernel_{number}") for number in ("2", "3", "2x")] == [2, 1, None]
    assert has_formula("mylib::kernel_44")


@pytest.mark.parametrize("error", [LookupError, TypeError, ValueError, ZeroDivisionError, IndexError])
def test_what_a_signature_does_not_say_is_no_cost(error: type[Exception]) -> None:
    @formula("mylib::a")
    def f(signature: Signature) -> Cost:
        raise error("no such argument")

    assert flops("mylib::a") is None


def made(**figures: Any) -> Cost:
    return Cost(**{"flops": 1, "read_bytes": 2, "written_bytes": 3} | figures)


@pytest.mark.parametrize("returned", [None, made(read_bytes=None), made(flops=-1)])
def test_an_unknown_figure_is_no_cost(returned: Any) -> None:
    formula("mylib::a")(lambda signature: returned)
    assert flops("mylib::a") is None


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (128, "returned 128, not a Cost"),
        ((1, 2, 3), "not a Cost"),
        (made(flops=1.5), "returned flops=1.5, not an integer"),
        (made(read_bytes=True), "returned read_bytes=True, not an integer"),
        (made(written_bytes="3"), "returned written_bytes='3', not an integer"),
        (made(causal_flops=0.5), "causal_flops=0.5"),
        (AttributeError("no_such_thing"), "raised an error for mylib::a (AttributeError"),
    ],
)
def test_a_wrong_result_is_one_line_with_function_and_file(returned: Any, said: str) -> None:
    @formula("mylib::a")
    def my_formula(signature: Signature) -> Any:
        if isinstance(returned, Exception):
            raise returned
        return returned

    with pytest.raises(UsageError, match=r"my_formula \(.*test_cost_registry\.py:\d+\)") as caught:
        flops("mylib::a")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("decorator", [formula, pattern])
@pytest.mark.parametrize("arguments", [(), (of,), ("",), (3,)])
def test_a_decorator_without_a_name_says_how_to_write_it(decorator: Callable[..., Any], arguments: Any) -> None:
    with pytest.raises(UsageError, match=r"\A.*write @(formula|pattern)\(.*\Z"):
        decorator(*arguments)(of(1))


@pytest.mark.parametrize("on_device", [False, True])
def test_an_analysis_uses_it(on_device: bool, tmp_path: Path) -> None:
    @formula("mylib::fused_add_norm")
    def fused_add_norm(signature: Signature) -> Cost:
        x = signature.tensor(0)
        return Cost(flops=8 * x.numel, read_bytes=2 * x.bytes, written_bytes=x.bytes)

    made = TraceBuilder()
    made.host("mylib::fused_add_norm", 100, 50, shapes=[[8, 4], []], types=["float", "Scalar"])
    if on_device:
        made.launch(110, 1)
        made.kernel("my_kernel", 200, 10, 1)
    found = opanatomy.analyze(made.write(tmp_path / "t.json"))
    (row,) = [row for row in found.operators if row.operator == "mylib::fused_add_norm"]
    assert (row.flops, row.read_bytes, row.written_bytes) == (256, 256, 128)
