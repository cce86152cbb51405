"""What is above its ceiling is explained by a number, or is a difference without a cause."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from opanatomy.__main__ import main
from opanatomy.analysis.checks import require_agreement
from opanatomy.analysis.roofline import with_roofline
from opanatomy.devices.overrides import parse_overrides
from opanatomy.devices.sheets import SHEETS
from opanatomy.errors import GateError
from opanatomy.pipeline import analyze_traces
from opanatomy.records.anatomy import Anatomy, Ceilings, Check, Difference, OperatorRow
from opanatomy.records.signature import SignatureText
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.report import terminal_report
from opanatomy.report.formats import format_named
from opanatomy.report.section import Page
from tests.test_roofline import ADD, CEILINGS, MM, anatomy_of, operator

SHARED = Path(__file__).parent.parent.parent / "shared"
MOVE = OperatorClass.DATA_MOVEMENT
#: 2 bytes a ns as in `CEILINGS`, and a last cache of 600 bytes.
CACHED = replace(CEILINGS, cache_bytes=600)


def checked(*rows: OperatorRow, cached: bool = True) -> Check:
    (check,) = with_roofline(anatomy_of(*rows), CACHED if cached else CEILINGS).checks
    assert (check.quantity, check.unit) == ("ceiling", "ns")
    assert check.compared == check.equal + len(check.differences)
    return check


def of(check: Check, name: str) -> Difference | None:
    found = [one for one in check.differences if one.operator == name]
    assert len(found) < 2
    return found[0] if found else None


def cause(check: Check, name: str) -> str | None:
    found = of(check, name)
    assert found is not None
    return found.cause


def test_what_is_below_its_ceiling_is_equal() -> None:
    check = checked(operator("aten::add", ADD, 500, 10, 1000), operator("aten::mul", ADD, 477, 10, 1000))
    # 500 ns each by memory: 100.0 %, 104.8 %, and the class
    assert (check.compared, check.equal, check.differences) == (3, 3, ())


def test_a_ceiling_that_was_measured_on_a_busy_device() -> None:
    """What sets the bound must have been disturbed: another ceiling explains nothing."""
    row = operator("aten::add", ADD, 100, 10, 1000)
    for disturbed, explained in ((("bandwidth",), True), (("float32",), False), ((), False)):
        anatomy = with_roofline(anatomy_of(row), replace(CACHED, cache_bytes=1, disturbed=disturbed))
        assert (cause(anatomy.checks[0], "aten::add") is not None) is explained
    # Arithmetic that only the vector units bound: what products reach says nothing of them.
    computing = operator("aten::add", ADD, 1, 100_000, 1)
    for disturbed, explained in ((("vector float32",), True), (("float32", "bfloat16"), False)):
        anatomy = with_roofline(anatomy_of(computing), replace(CACHED, cache_bytes=1, disturbed=disturbed))
        assert (cause(anatomy.checks[0], "aten::add") is not None) is explained
    busy = with_roofline(anatomy_of(row), replace(CACHED, cache_bytes=1, disturbed=("bandwidth",))).checks[0]
    assert (cause(busy, "aten::add") or "").startswith("the bandwidth was measured while something else was busy")


def test_a_call_that_the_cache_holds() -> None:
    check = checked(operator("aten::add", ADD, 100, 10, 500))
    found = of(check, "aten::add")
    assert found is not None
    assert (found.phase, found.ours, found.other) == (Phase.FORWARD, 100, 250)
    assert found.cause == "a cache of 600 bytes can serve 500 of the bytes: 2 ns at least"
    assert found.evidence == "2.50 x what made up can do; 500 bytes a call, last cache of 0.000572205 MiB"
    assert cause(check, "class elementwise") == found.cause


@pytest.mark.parametrize(
    ("time_ns", "explained"),
    [(199, True), (191, True), (189, False), (100, False)],  # 400 of 1,000 bytes at least are 200 ns
)
def test_a_cache_serves_no_more_than_it_holds(time_ns: int, explained: bool) -> None:
    check = checked(operator("aten::add", ADD, time_ns, 10, 1000))
    assert (cause(check, "aten::add") is not None) is explained
    assert len(check.unexplained) == (0 if explained else 2)


def test_calls_have_the_cache_each() -> None:
    ten = replace(operator("aten::add", ADD, 2500, 10, 10_000), calls=10)
    assert cause(checked(ten), "aten::add") == "a cache of 600 bytes can serve 6,000 of the bytes: 2,000 ns at least"


def test_a_cache_of_unknown_size_may_serve_all_bytes_and_no_products() -> None:
    """500 bytes in 1 ns where memory moves 2 a ns: no alarm while nobody knows what the cache holds."""
    found = of(checked(operator("aten::add", ADD, 1, 10, 500), cached=False), "aten::add")
    assert found is not None
    assert found.cause == "a cache of unknown size can serve 500 of the bytes: 2 ns at least"
    assert str(found.evidence).endswith("last cache of unknown size")
    products = checked(operator("aten::mm", MM, 4, 1000, 10), cached=False)
    assert [one.operator for one in products.unexplained] == ["class tensor_contraction", "aten::mm"]


@pytest.mark.parametrize(
    ("places", "time_ns", "explained"), [("3,3", 30, True), ("3,3", 20, False), ("1,1", 30, False)]
)
def test_winograds_algorithm_needs_a_quarter_of_the_products(places: str, time_ns: int, explained: bool) -> None:
    """10,000 FLOPs are 100 ns at the peak, a quarter of them 25 ns; windows of one place have no such algorithm."""
    row = replace(operator("aten::cudnn_convolution", MM, time_ns, 10_000, 10),
                  signature=SignatureText(f"bfloat16[1,8,9,9], bfloat16[8,8,{places}]"))  # fmt: skip
    said = cause(checked(row), "aten::cudnn_convolution")
    assert said == ("Winograd's algorithm may leave 7,500 FLOPs of convolutions out: 25 ns at least" if explained
                    else None)  # fmt: skip


def test_no_cache_makes_products_faster() -> None:
    """1,000 FLOPs at 100 a ns in 4 ns: the peak, the FLOPs or the time is wrong."""
    check = checked(operator("aten::mm", MM, 4, 1000, 10))
    assert [one.operator for one in check.unexplained] == ["class tensor_contraction", "aten::mm"]


def test_a_causal_mask() -> None:
    row = replace(operator("aten::_flash", MM, 60, 10_000, 10), causal_flops=5000)
    assert cause(checked(row), "aten::_flash") == "a causal mask leaves 5,000 FLOPs out: 50 ns at least"
    assert cause(checked(replace(row, time_ns=46)), "aten::_flash") is None


def fused(name: str, signature: str, time_ns: int, moved: int) -> OperatorRow:
    return replace(operator(name, ADD, time_ns, 0, moved), signature=SignatureText(signature))


def test_a_fused_kernel_that_touches_a_slice() -> None:
    """It reads one of three slices; `251,658,496 bytes a call` were counted of which 150,995,200 are sure."""
    name = "triton_poi_fused__unsafe_view_add_mul_select_slice_split_view_27"
    row = fused(name, "float32[64], bfloat16[32768,2304], bfloat16[32768,768], bfloat16[1,32768,6,128], 25165824",
                80_000_000, 251_658_496)  # fmt: skip
    assert cause(checked(row), name) == (
        "fused kernels need 150,995,200 of 251,658,496 bytes at least: 75,497,600 ns at least"
    )
    assert cause(checked(replace(row, time_ns=70_000_000)), name) is None


def test_the_loop_of_a_reduction_has_two_sizes() -> None:
    name = "triton_red_fused__log_softmax_nll_loss_forward_32"
    row = fused(name, "int64[32], bfloat16[1,32,50304], float32[4], 4, 8", 400, 3_219_728)
    assert cause(checked(row, cached=False), name) == (
        "fused kernels need 336 of 3,219,728 bytes at least: 168 ns at least"
    )


def test_a_loop_that_is_not_told_explains_nothing() -> None:
    name = "triton_poi_fused_add_0"
    assert cause(checked(fused(name, "float32[100], 7", 10, 800)), name) is None


@pytest.mark.parametrize("name", ["aten::embedding", "aten::index_select", "aten::gather", "aten::index"])
def test_a_look_up_of_rows_that_repeat(name: str) -> None:
    row = replace(operator(name, MOVE, 60, 0, 200), written_bytes=100)
    assert cause(checked(row, cached=False), name) == "look-ups need 100 of 300 bytes at least: 50 ns at least"


def test_a_fused_look_up() -> None:
    name = "triton_poi_fused_embedding_0"
    row = fused(name, "int32[8], bfloat16[1000,16], bfloat16[8,16], 128", 150, 32 + 256 + 256)
    assert cause(checked(row, cached=False), name) == "look-ups need 288 of 544 bytes at least: 144 ns at least"


def test_a_part_counts_with_its_call() -> None:
    check = checked(operator("aten::addmm", MM, 0, 1000, 10), operator("aten::mm", MM, 12, 0, 0, part_of="aten::addmm"))
    assert (check.compared, check.equal) == (2, 2)


def test_each_phase_for_itself() -> None:
    check = checked(operator("aten::mm", MM, 4, 1000, 10), operator("aten::mm", MM, 30, 1000, 10, phase=Phase.BACKWARD))
    assert [(one.operator, one.phase) for one in check.unexplained] == [
        ("class tensor_contraction", Phase.FORWARD), ("aten::mm", Phase.FORWARD),
    ]  # fmt: skip


def test_other_ceilings_check_again() -> None:
    before = with_roofline(anatomy_of(operator("aten::mm", MM, 4, 1000, 10)), CACHED)
    slower = replace(CACHED, matrix_flops_per_second={"bfloat16": 1e12})
    (check,) = with_roofline(before, slower).checks
    assert (check.equal, check.differences) == (2, ())


def test_where_nothing_has_a_bound_that_is_said() -> None:
    check = checked(operator("aten::mm", MM, 4, None, None))
    assert (check.compared, check.not_checked) == (0, "no bound is known")


# ------------------------------------------------------------------------------------------- ceilings of the user's own


def given(peak: str | None, bandwidth: str | None, *rows: OperatorRow, known: Ceilings | None = CACHED) -> Anatomy:
    return with_roofline(anatomy_of(*rows), parse_overrides(peak, bandwidth).over(known, "made up"))


def exceeded(anatomy: Anatomy) -> list[tuple[str, str, float, float | None, str]]:
    return [
        (one.ceiling, one.option, one.reached_per_second, one.known_per_second, one.operator)
        for one in anatomy.device.exceeded
    ]


#: 1,000,000 FLOPs at 100 a ns take 10,000 ns at least, 80,000 bytes at 2 a ns 40,000: both take a fourth longer here.
PRODUCT = operator("aten::mm", MM, 12_500, 1_000_000, 10)
COPY = operator("aten::copy_", MOVE, 50_000, 0, 80_000)


@pytest.mark.parametrize(
    ("peak", "bandwidth", "above"),
    [
        (None, None, []),
        ("100G", "2G", []),  # the ceilings that are known
        ("90G", "1.7G", []),  # still above what was reached, 80 and 1.6
        ("200G", "20G", []),
        ("20G", None, [("bfloat16", "--peak 20G", 80e9, 100e9, "aten::mm")]),
        ("bf16=20G,fp32=1G", None, [("bfloat16", "--peak bf16=20G", 80e9, 100e9, "aten::mm")]),
        ("fp32=1G", None, []),
        # Of 80,000 bytes a cache of 600 may hold 600.
        (None, "1 GB/s", [("bandwidth", "--bandwidth 1GB/s", 79_400 / 50_000 * 1e9, 2e9, "aten::copy_")]),
        (
            "20G", "1G",
            [("bfloat16", "--peak 20G", 80e9, 100e9, "aten::mm"),
             ("bandwidth", "--bandwidth 1G", 79_400 / 50_000 * 1e9, 2e9, "aten::copy_")],
        ),
    ],
)  # fmt: skip
def test_a_ceiling_of_the_users_own_that_the_trace_is_above(
    peak: str | None, bandwidth: str | None, above: list[tuple[str, str, float, float, str]]
) -> None:
    """It is said of the option, and changes nothing in the checks: the option is no second source."""
    anatomy = given(peak, bandwidth, PRODUCT, COPY)
    assert exceeded(anatomy) == above
    assert anatomy.checks == with_roofline(anatomy_of(PRODUCT, COPY), CACHED).checks
    assert anatomy.checks[0].differences == ()
    require_agreement(anatomy)
    page = terminal_report(anatomy, width=200)
    first = page.split("\n\n")[0]
    for _, option, _, _, operator_name in above:
        assert page.count(f"{option} is below what was measured in this trace: ") == 1
        assert f"{option} is below what was measured in this trace: {operator_name.removeprefix('aten::')}" in first
        assert f"warning: {option} is below what was measured" in format_named("digest").write(anatomy, Page())
    assert ("is below what was measured" in page) == bool(above)
    assert "may be wrong" not in page


def test_what_is_above_the_device_too_is_a_disagreement_whatever_is_given() -> None:
    """In 5,000 ns: neither 20 nor 100 FLOPs a ns are enough. Said of the device, and not of the option."""
    fast = replace(PRODUCT, time_ns=5000)
    for peak in (None, "20G", "150G"):
        anatomy = given(peak, None, fast)
        assert anatomy.device.exceeded == ()
        assert [one.operator for one in anatomy.checks[0].unexplained] == ["class tensor_contraction", "aten::mm"]
        with pytest.raises(GateError, match="2 figures are not confirmed"):
            require_agreement(anatomy)
        limit = "--peak 150G allows" if peak == "150G" else "made up can do"
        assert f"what {limit}; 10 bytes a call" in (anatomy.checks[0].differences[0].evidence or "")
    # A higher one that it is not above is believed.
    assert given("250G", None, fast).checks[0].differences == ()


def test_where_nothing_else_is_known_the_option_is_the_cause() -> None:
    anatomy = given("20G", "1T", PRODUCT, known=None)
    assert [row[:2] for row in exceeded(anatomy)] == [("bfloat16", "--peak 20G")]
    (check,) = anatomy.checks
    assert check.unexplained == ()
    assert cause(check, "aten::mm") == (
        "--peak 20G is below what was measured, and nothing else is known of the device"
    )


def test_what_a_number_explains_is_not_above_the_option() -> None:
    """A causal mask leaves half of the products: 500 FLOPs in 30 ns are below 20 a ns."""
    row = replace(operator("aten::_flash", MM, 30, 1000, 10), causal_flops=500)
    assert given("20G", None, row).device.exceeded == ()
    assert exceeded(given("10G", None, row)) == [("bfloat16", "--peak 10G", pytest.approx(500 / 30 * 1e9), 100e9,
                                                  "aten::_flash")]  # fmt: skip


def test_the_peak_of_what_a_product_was_computed_in() -> None:
    """A product of float32 in tf32 goes by the peak of tf32, given or disturbed."""
    row = replace(operator("aten::mm", MM, 1000, 40_000, 10, dtype="float32"), compute_type="tf32")
    assert [one[0] for one in exceeded(given("tf32=10G", None, row))] == ["tf32"]
    assert exceeded(given("fp32=1G", None, row)) == []
    fast = replace(row, time_ns=100)
    for disturbed, explained in ((("tf32",), True), (("float32",), False)):
        anatomy = with_roofline(anatomy_of(fast), replace(CEILINGS, disturbed=disturbed))
        assert (cause(anatomy.checks[0], "aten::mm") is not None) is explained


@pytest.mark.skipif(not SHARED.is_dir(), reason="the folder of shared traces is not next to the checkout")
def test_a_low_peak_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The first words of the page name the option; --check is met, and says on stderr that it was exceeded."""
    trace = str(SHARED / "more_traces/compare/train_h100_compile_gpt_rank0of8_before.json.gz")
    assert main(["analyze", trace, "--peak", "100T", "--check"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1].startswith("--peak 100T is below what was measured in this trace: _scaled_mm in")
    assert "may be wrong" not in out
    assert "H100 SXM can do" not in out
    assert "--peak 100T; else data sheet of H100 SXM" in out
    assert err.count("check: --peak 100T is below what was measured in the trace") == 1
    assert main(["analyze", trace, "--peak", "100T", "--fail-if", "mfu > 100%", "--brief"]) == 3


def test_last_caches_of_data_sheets() -> None:
    """Of the generations; a device without a document at hand has none, and that is said."""
    caches = {sheet.device: sheet.cache_mib for sheet in SHEETS}
    for start, mib in (("V100", 6), ("A100", 40), ("H100 SXM", 50), ("H100 PCIe", 50), ("Instinct MI3", 256)):
        assert {mib} == {cache for device, cache in caches.items() if device.startswith(start)}
    assert caches["H200 SXM"] == 60
    assert caches["H100 NVL"] is None


@pytest.mark.skipif(not SHARED.is_dir(), reason="the folder of shared traces is not next to the checkout")
@pytest.mark.parametrize(
    ("name", "above"),
    [
        ("more_traces/compare/train_h100_compile_gpt_rank0of8_before.json.gz", 1),
        ("more_traces/compare/train_h100_compile_gpt_rank0of8_after.json.gz", 1),
        ("more_traces/infer_a100_compile_sam.json.gz", 0),
        ("traces/train_a100_rank3of8_shapes_nccl.json.gz", 0),
        ("traces/infer_h100_qwen1.5_0.5b.json.gz", 0),
    ],
)
def test_nothing_real_is_above_its_ceiling_without_its_number(name: str, above: int) -> None:
    (check,) = [one for one in analyze_traces([SHARED / name]).checks if one.quantity == "ceiling"]
    assert len(check.differences) == above
    assert check.unexplained == ()
    assert all(one.cause and any(character.isdigit() for character in one.cause) for one in check.differences)
