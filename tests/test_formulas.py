"""What holds of all formulas and rules together: documented as they are, and about operators that exist."""

from __future__ import annotations

import pytest
import torch

from opanatomy.classification.operators import families_by_name
from opanatomy.cost import registry
from opanatomy.cost.compiled import SAMPLES, flops_per_element
from opanatomy.cost.registry import cost, formula, operators
from opanatomy.records.signature import Cost, Signature
from opanatomy.records.taxonomy import BY_CODE, BY_CPP_NAME, DATA_TYPES, OPTIMIZERS, data_type_of, peak_type_of
from tests.documented import current_and_renewed

#: Names that torch no longer has, by the release that dropped them: traces are from 2021 on.
GONE = {
    "1.8": "_amp_non_finite_check_and_unscale _fft_with_size _std _th_bmm _th_mm _th_sum _var",
    # one convolution_backward for all of them
    "1.11": """
        _baddbmm_mkl _bmm _convolution_nogroup _cumprod _cumsum _index_copy
        _conv_depthwise2d_backward conv_depthwise3d_backward cudnn_convolution_backward
        cudnn_convolution_backward_input cudnn_convolution_backward_weight cudnn_convolution_transpose_backward
        cudnn_convolution_transpose_backward_input cudnn_convolution_transpose_backward_weight
        miopen_convolution_backward miopen_convolution_backward_input miopen_convolution_backward_weight
        miopen_convolution_transpose_backward miopen_convolution_transpose_backward_input
        miopen_convolution_transpose_backward_weight miopen_depthwise_convolution_backward
        miopen_depthwise_convolution_backward_input miopen_depthwise_convolution_backward_weight
        mkldnn_convolution_backward mkldnn_convolution_backward_input mkldnn_convolution_backward_weights
        slow_conv3d_backward slow_conv_dilated2d_backward slow_conv_dilated3d_backward
        slow_conv_transpose2d_backward slow_conv_transpose3d_backward thnn_conv2d_backward thnn_conv2d_forward
        thnn_conv3d thnn_conv3d_backward thnn_conv3d_forward thnn_conv_depthwise2d thnn_conv_depthwise2d_backward
        thnn_conv_depthwise2d_forward
        """,
    "1.13": "_cat _inverse_helper _s_where col2im_backward im2col_backward",
    "2.0": "eig lstsq solve symeig _scaled_dot_product_attention _scaled_dot_product_attention_forward",
    "2.14": "cholesky qr",
}
#: Names that the operator library never had, and why they are listed.
NEVER = {
    "maximum_": "one tensor of `_foreach_maximum_`", "minimum_": "one tensor of `_foreach_minimum_`",
    "T": "the attribute, as function transforms record it", "rename": "the method on named tensors",
    "double": "the method of a tensor", "float": "the method of a tensor", "half": "the method of a tensor",
    "wrapped_quantized_linear": "listed next to `_wrapped_quantized_linear_prepacked`, under its name without a mark",
}  # fmt: skip


def test_the_table_of_formulas_is_current() -> None:
    page, renewed = current_and_renewed("counting.md")
    assert renewed == page, "run python docs/renew.py"
    assert page.count("| `") > 400


def test_a_formula_that_changes_makes_the_table_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_FORMULAS", dict(registry._FORMULAS))

    @formula("aten::mm", replace=True)
    def mm(signature: Signature) -> Cost:
        """Three."""
        return Cost(flops=3, read_bytes=0, written_bytes=0)

    page, renewed = current_and_renewed("counting.md")
    assert renewed != page


def _exists(name: str) -> bool:
    return name in _KNOWN or f"{name}_" in _KNOWN or hasattr(torch.ops.aten, name)


_KNOWN = {
    schema.name.removeprefix("aten::") for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("aten::")
}


def _named() -> set[str]:
    """The ATen names in formulas and in the tables of rules."""
    formulas = {name.removeprefix("aten::") for name in operators() if name.startswith("aten::")}
    return formulas | set(families_by_name())


def test_every_aten_name_is_an_operator_of_torch_or_one_that_it_had() -> None:
    gone = {name for release, names in GONE.items() if torch.__version__ >= release for name in names.split()}
    missing = {name for name in _named() if not _exists(name)}
    assert missing == (gone | set(NEVER)) & _named(), "name the release that dropped it, or mend the name"
    assert gone <= _named()
    assert not {name for name in gone if _exists(name)}


def test_a_name_with_a_slip_is_seen() -> None:
    assert not _exists("_sofmax")
    assert _exists("fill_diagonal")


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_fused_operator_counts_what_its_formula_says(name: str) -> None:
    arguments, places = SAMPLES[name]
    of_formula = cost(f"aten::{name}", Signature(arguments))
    assert of_formula is not None
    assert flops_per_element()[name] * places == of_formula.flops


def test_the_codes_of_data_types_are_those_of_torch() -> None:
    for kind in DATA_TYPES:
        dtype = getattr(torch, kind.name, None)
        assert isinstance(dtype, torch.dtype), kind.name
        if kind.size is not None:
            assert dtype.itemsize == kind.size
        assert BY_CODE[kind.code] == kind.name
    assert BY_CPP_NAME["c10::Half"] == "float16"


@pytest.mark.parametrize(
    ("name", "data_type", "peak"),
    [
        ("bf16", "bfloat16", "bfloat16"), ("torch.bfloat16", "bfloat16", "bfloat16"), ("Half", "float16", "float16"),
        ("FP32", "float32", "float32"), ("tf32", None, "tf32"), ("fp8", None, "float8"),
        ("float8_e5m2", "float8_e5m2", "float8"), ("int64", "int64", None), ("bfloat", None, None),
    ],
)  # fmt: skip
def test_data_types_by_the_names_that_people_give_them(name: str, data_type: str | None, peak: str | None) -> None:
    assert (data_type_of(name), peak_type_of(name)) == (data_type, peak)


def test_the_state_of_the_optimizers_is_what_torch_keeps() -> None:
    parameter = torch.nn.Parameter(torch.ones(16, 8))
    for optimizer in OPTIMIZERS:
        if optimizer.package is not None or optimizer.factored:
            continue
        made = getattr(torch.optim, optimizer.torch_class)([parameter], **optimizer.arguments)
        parameter.grad = torch.ones_like(parameter)
        made.step()
        kept = sum(value.numel() * value.element_size() for value in made.state[parameter].values() if value.dim() > 0)
        assert kept == optimizer.state_bytes(4) * parameter.numel(), optimizer.name
