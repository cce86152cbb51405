"""`opanatomy explain`: the class, the rule and the formula of a name."""

from __future__ import annotations

import pytest

from opanatomy.__main__ import main
from opanatomy.console.explanation import explain


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("aten::addmm", ["tensor contraction", "rule      operators/", "2 * b * m * n * k", "Source:"]),
        ("addmm", ["aten::addmm", "tensor contraction"]),
        ("aten::view", ["does no work of its own"]),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", ["kernel    tensor contraction", "rule      kernels/"]),
        ("flash_fwd_kernel", ["tensor contraction, containing statistical normalization"]),
        ("aten::adm", ["unknown", "near: ", "aten::addmm"]),
        ("AddmmBackward0", ["does no work of its own"]),
        ("my data loader", ["rule      operators/ranges: range", "kernel    unknown"]),
    ],
)
def test_what_it_says(name: str, words: list[str]) -> None:
    text = explain(name)
    for word in words:
        assert word in text


def test_an_autograd_node_is_no_kernel() -> None:
    assert "kernel" not in explain("AddmmBackward0")


def test_several_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "aten::mm", "aten::add"]) == 0
    out = capsys.readouterr().out
    assert out.index("aten::mm") < out.index("aten::add\n")
    assert "elementwise" in out
