"""Hand-made anatomies, whose sums hold as those of real ones do: a CPU step, GPU steps, and no work at all."""

from __future__ import annotations

from itertools import groupby

from msgspec.structs import replace

from opanatomy.records.anatomy import Anatomy, ClassRow, KernelRow, ModuleRow, OperatorRow, Provenance, Ratio, Step
from opanatomy.records.checks import Check, Difference
from opanatomy.records.device import DeviceFigures
from opanatomy.records.memory import Memory, MemoryComponent
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.timeline import Ledger, Timeline
from opanatomy.records.workload import Environment, Workload

CONTRACTION = OperatorClass.TENSOR_CONTRACTION
NORMALIZATION = OperatorClass.STATISTICAL_NORMALIZATION
ELEMENTWISE = OperatorClass.ELEMENTWISE
MOVEMENT = OperatorClass.DATA_MOVEMENT
COMMUNICATION = OperatorClass.COMMUNICATION
OTHER, UNKNOWN = OperatorClass.OTHER, OperatorClass.UNKNOWN
FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER = Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE, Phase.OPTIMIZER
BERT_LARGE, LLAMA = 335_143_938, 1_235_814_400
CONVENTIONS: dict[str, str | int] = {"multiply_add": 2, "causal": "full"}


Spec = tuple[str, OperatorClass, int, int, int | None, int | None, int | None]


def operators(phase: Phase, *specs: Spec, signature: str = "") -> tuple[OperatorRow, ...]:
    """A row for each name, class, calls, microseconds in all, and FLOPs, bytes read and bytes written of one call."""
    return tuple(
        OperatorRow(
            operator=name,
            signature=signature,
            phase=phase,
            operator_class=operator_class,
            rule=f"operator:{name}" if operator_class is not UNKNOWN else "no rule",
            calls=calls,
            time_ns=time_us * 1000,
            flops=None if flops is None else flops * calls,
            read_bytes=None if read is None else read * calls,
            written_bytes=None if written is None else written * calls,
            uncosted_ns=time_us * 1000 if flops is None else 0,
        )
        for name, operator_class, calls, time_us, flops, read, written in specs
    )


def class_rows(operators: tuple[OperatorRow, ...], kernels_per_call: int = 0) -> tuple[ClassRow, ...]:
    """The operators summed by class and phase, as stage 6 sums them."""

    def key(row: OperatorRow) -> tuple[int, int]:
        return list(OperatorClass).index(row.operator_class), list(Phase).index(row.phase)

    def known(figures: list[int | None]) -> int | None:
        present = [figure for figure in figures if figure is not None]
        return sum(present) if present else None

    rows = []
    for _, group in groupby(sorted(operators, key=key), key=key):
        members = tuple(group)
        calls = sum(row.calls for row in members)
        rows.append(
            ClassRow(
                operator_class=members[0].operator_class,
                phase=members[0].phase,
                calls=calls,
                kernels=calls * kernels_per_call,
                time_ns=sum(row.time_ns for row in members),
                flops=known([row.flops for row in members]),
                read_bytes=known([row.read_bytes for row in members]),
                written_bytes=known([row.written_bytes for row in members]),
                uncosted_ns=sum(row.time_ns for row in members if row.flops is None),
                bound_ns=known([row.bound_ns for row in members]),
                bounded_ns=sum(row.time_ns for row in members if row.bound_ns is not None),
                headroom_ns=known(
                    [None if row.bound_ns is None else max(row.time_ns - row.bound_ns, 0) for row in members]
                ),
                memory_bound_ns=known([row.bound_ns if row.bound_by == "memory" else None for row in members]),
            )
        )
    return tuple(rows)


def ratios(
    classes: tuple[ClassRow, ...], theory: dict[OperatorClass, tuple[float | None, float | None]]
) -> tuple[Ratio, ...]:
    """Backward over forward of each class that has a forward."""
    rows = []
    for operator_class in dict.fromkeys(row.operator_class for row in classes):
        members = [row for row in classes if row.operator_class is operator_class]
        forward = [row for row in members if row.phase is FORWARD]
        backward = [row for row in members if row.phase in (BACKWARD, RECOMPUTE)]
        if not forward:
            continue
        theory_flops, theory_bytes = theory.get(operator_class, (None, None))
        rows.append(
            Ratio(
                operator_class=operator_class,
                time=_over([row.time_ns for row in backward], [row.time_ns for row in forward]),
                flops=_over([row.flops for row in backward], [row.flops for row in forward]),
                bytes=_over([_moved(row) for row in backward], [_moved(row) for row in forward]),
                theory_flops=theory_flops,
                theory_bytes=theory_bytes,
            )
        )
    return tuple(rows)


def _moved(row: ClassRow) -> int | None:
    return None if row.read_bytes is None or row.written_bytes is None else row.read_bytes + row.written_bytes


def _over(backward: list[int | None], forward: list[int | None]) -> float | None:
    if None in backward or None in forward or not sum(filter(None, forward)):
        return None
    return sum(filter(None, backward)) / sum(filter(None, forward))


def ledger(
    operators: tuple[OperatorRow, ...], graph_us: int = 0, unlaunched_us: int = 0, outside_us: int = 0
) -> Ledger:
    """The ledger of these operators' time, part of it without a launch record, and of the work outside the window."""
    time_ns = sum(row.time_ns for row in operators)
    unknown_ns = sum(row.time_ns for row in operators if row.operator_class is UNKNOWN)
    return Ledger(
        device_work_ns=time_ns + outside_us * 1000,
        linked_ns=time_ns - (graph_us + unlaunched_us) * 1000,
        graph_launched_ns=graph_us * 1000,
        no_launch_record_ns=unlaunched_us * 1000,
        outside_window_ns=outside_us * 1000,
        classed_ns=time_ns - unknown_ns,
        costed_ns=sum(row.time_ns for row in operators if row.flops is not None),
        unknown_ns=unknown_ns,
    )


def _bounded(row: OperatorRow, peak: float, bandwidth: float) -> OperatorRow:
    moved = None if row.read_bytes is None or row.written_bytes is None else row.read_bytes + row.written_bytes
    if row.flops is None or moved is None:
        return row
    compute, memory = row.flops / peak, moved / bandwidth
    return replace(
        row, bound_ns=round(max(compute, memory) * 1e9), bound_by="compute" if compute > memory else "memory"
    )


def _bert_operators() -> tuple[OperatorRow, ...]:
    layers, h, m, b, heads, length = 24, 1024, 4096, 4, 16, 512
    tokens, hidden, inner = b * length, b * length * h, b * length * m
    narrow = (2 * tokens * h * h, 4 * (hidden + h * h), 4 * hidden)
    wide = (2 * tokens * h * m, 4 * (hidden + h * m), 4 * inner)
    attention = 4 * b * heads * length * length * (h // heads)
    norm = (7 * hidden, 4 * hidden, 4 * hidden)
    norm_backward = (13 * hidden, 8 * hidden, 4 * hidden)
    drop, drop_backward = (hidden, 4 * hidden, 5 * hidden), (hidden, 5 * hidden, 4 * hidden)
    flash = "aten::_scaled_dot_product_flash_attention_for_cpu"
    adamw = (14 * BERT_LARGE, 16 * BERT_LARGE, 12 * BERT_LARGE)
    return (
        *operators(
            FORWARD,
            ("aten::addmm", CONTRACTION, 2 * layers, 8_620_000, *wide),
            signature=f"float32[{m}], float32[{tokens},{h}], float32[{h},{m}], 1, 1",
        ),
        *operators(
            FORWARD,
            ("aten::addmm", CONTRACTION, 4 * layers, 4_410_000, *narrow),
            signature=f"float32[{h}], float32[{tokens},{h}], float32[{h},{h}], 1, 1",
        ),
        *operators(
            FORWARD,
            (flash, CONTRACTION, layers, 1_933_100, attention, 12 * hidden, 4 * hidden),
            ("aten::native_layer_norm", NORMALIZATION, 2 * layers + 1, 211_400, *norm),
            ("aten::_log_softmax", NORMALIZATION, 1, 18, 4 * 8, 32, 32),
            ("aten::gelu", ELEMENTWISE, layers, 803_700, 10 * inner, 4 * inner, 4 * inner),
            ("aten::native_dropout", ELEMENTWISE, 2 * layers + 1, 702_000, *drop),
            ("aten::add", ELEMENTWISE, 2 * layers + 2, 188_500, hidden, 8 * hidden, 4 * hidden),
            ("aten::embedding", MOVEMENT, 3, 6_412, 0, 4 * hidden, 4 * hidden),
        ),
        *operators(
            BACKWARD,
            ("aten::mm", CONTRACTION, 4 * layers, 17_930_000, *wide),
            ("aten::mm", CONTRACTION, 8 * layers, 9_204_000, *narrow),
            (f"{flash}_backward", CONTRACTION, layers, 4_511_600, attention * 5 // 2, 24 * hidden, 12 * hidden),
            ("aten::native_layer_norm_backward", NORMALIZATION, 2 * layers + 1, 318_200, *norm_backward),
            ("aten::sum", NORMALIZATION, 6 * layers, 254_900, hidden, 4 * hidden, 4 * h),
            ("aten::gelu_backward", ELEMENTWISE, layers, 1_106_000, 15 * inner, 8 * inner, 4 * inner),
            ("aten::native_dropout_backward", ELEMENTWISE, 2 * layers + 1, 401_300, *drop_backward),
            ("aten::embedding_dense_backward", MOVEMENT, 3, 97_220, hidden, 4 * hidden, 4 * hidden),
        ),
        *operators(
            OPTIMIZER,
            ("aten::_fused_adamw_", ELEMENTWISE, 1, 918_000, *adamw),
            ("aten::_local_scalar_dense", OTHER, 2, 4, None, None, None),
        ),
    )


def _component(name: str, measured: int, theory: int | None = None, formula: str | None = None) -> MemoryComponent:
    return MemoryComponent(component=name, measured_bytes=measured, theory_bytes=theory, formula=formula)


def bert_on_cpu() -> Anatomy:
    """BERT-large, one step of forward, backward and AdamW on two CPU threads; every section is there."""
    rows = _bert_operators()
    classes = class_rows(rows)
    work_ns = sum(row.time_ns for row in rows)
    framework_ns = 318_400_000
    wall_ns = work_ns + framework_ns
    return Anatomy(
        provenance=Provenance(
            opanatomy="0.1.0",
            command="opanatomy profile google-bert/bert-large-uncased --batch 4 --optimizer adamw",
            created="2026-01-15T12:00:00Z",
            trace="bert.json.gz",
            trace_sha256="9f2c" + 60 * "0",
        ),
        environment=Environment(
            device="cpu",
            device_kind="cpu",
            device_count=1,
            torch="2.13.0+cpu",
            transformers="5.23.0",
            python="3.11.9",
            host_threads=2,
            processor="AMD EPYC 7B13",
        ),
        workload=Workload(
            model="google-bert/bert-large-uncased",
            architecture="BertForSequenceClassification",
            model_source="catalog",
            parameters=BERT_LARGE,
            trainable_parameters=BERT_LARGE,
            task="sequence-classification",
            batch=4,
            sequence_length=512,
            inputs=("input_ids int64[4,512]", "attention_mask int64[4,512]", "labels int64[4]"),
            dtype="float32",
            attention="sdpa",
            optimizer="adamw",
            steps=1,
            warmup=1,
            seed=0,
        ),
        step=Step(
            wall_ns=wall_ns,
            unprofiled_wall_ns=wall_ns - 1_240_000_000,
            unprofiled_wall_min_ns=wall_ns - 1_270_000_000,
            unprofiled_wall_max_ns=wall_ns - 1_190_000_000,
            unprofiled_count=3,
            forward_ns=17_031_000_000,
            backward_ns=33_988_000_000,
            optimizer_ns=921_000_000,
            busy_ns=work_ns,
            kernel_time_ns=work_ns,
            framework_ns=framework_ns - 118_400_000,
            profiler_ns=118_400_000,
            samples_per_second=4 * 1e9 / (wall_ns - 1_240_000_000),
        ),
        classes=classes,
        ratios=ratios(classes, {CONTRACTION: (2.0, None), ELEMENTWISE: (None, 1.5)}),
        operators=rows,
        kernels=(),
        modules=(
            ModuleRow(
                module="bert.encoder.layer.0.attention.self",
                kind="BertSelfAttention",
                phase=FORWARD,
                operator_class=CONTRACTION,
                time_ns=221_000_000,
                flops=3 * 2 * 2048 * 1024 * 1024,
                read_bytes=50_331_648,
                written_bytes=33_554_432,
            ),
            ModuleRow(
                module="",
                kind=None,
                phase=OPTIMIZER,
                operator_class=ELEMENTWISE,
                time_ns=918_000_000,
                flops=None,
                read_bytes=None,
                written_bytes=None,
            ),
        ),
        memory=Memory(
            peak_bytes=13_604_512_768,
            peak_at="backward",
            measured_by="resident set of the process",
            components=(
                _component("weights", 4 * BERT_LARGE, 4 * BERT_LARGE, "4 P"),
                _component("gradients", 4 * BERT_LARGE, 4 * BERT_LARGE, "4 P"),
                _component("optimizer_state", 8 * BERT_LARGE + 1564, 8 * BERT_LARGE, "8 P"),
                _component(
                    "forward_activations",
                    8_461_824_000,
                    24 * (512 * 4 * 1024 * 72 + 16 * 512 * 512 * 4 * 12),
                    "L (s b h (16 e + 2 m) + a s^2 b (2 e + m)), e = 4, m = 4",
                ),
                _component("temporary buffers", 320_112_128),
            ),
        ),
        timeline=Timeline(window_ns=wall_ns, busy_ns=work_ns, idle_ns=framework_ns),
        device=DeviceFigures(),
        ledger=ledger(rows),
        conventions=CONVENTIONS,
    )


def _llama_operators(steps: int) -> tuple[OperatorRow, ...]:
    h, m, vocabulary, tokens = 2048, 8192, 128_256, 8192
    hidden, inner, calls = tokens * h, tokens * m, 16 * steps
    gate = (2 * tokens * h * m, 2 * (hidden + h * m), 2 * inner)
    attention = 4 * 4 * 32 * 2048 * 2048 * 64
    norm, scores = (5 * hidden, 2 * hidden, 2 * hidden), 4 * tokens * vocabulary
    mul = (inner, 4 * inner, 2 * inner)
    adamw = (14 * LLAMA, 16 * LLAMA, 12 * LLAMA)
    gather = "nccl:_all_gather_base_ncclDevKernel_AllGather_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
    return (
        *operators(
            FORWARD,
            ("aten::mm", CONTRACTION, 3 * calls, 62_300, *gate),
            ("aten::_flash_attention_forward", CONTRACTION, calls, 11_100, attention, 6 * hidden, 2 * hidden),
            ("aten::mean", NORMALIZATION, 2 * calls + steps, 4_350, *norm),
            ("aten::_log_softmax", NORMALIZATION, steps, 9_720, scores, scores, scores),
            ("aten::mul", ELEMENTWISE, 6 * calls, 14_900, *mul),
            ("aten::silu", ELEMENTWISE, calls, 4_010, 4 * inner, 2 * inner, 2 * inner),
            ("aten::copy_", MOVEMENT, 9 * calls, 8_730, 0, 2 * hidden, 2 * hidden),
            ("rotary[bold]::forward", UNKNOWN, calls, 1_880, None, None, None),
        ),
        *operators(
            RECOMPUTE,
            ("aten::mm", CONTRACTION, 3 * calls, 62_410, *gate),
            ("aten::mul", ELEMENTWISE, 6 * calls, 14_920, *mul),
        ),
        *operators(
            BACKWARD,
            ("aten::mm", CONTRACTION, 6 * calls, 126_800, *gate),
            (
                "aten::_flash_attention_backward",
                CONTRACTION,
                calls,
                29_400,
                attention * 5 // 2,
                12 * hidden,
                6 * hidden,
            ),
            ("aten::sum", NORMALIZATION, 2 * calls + steps, 5_120, *norm),
            ("aten::mul", ELEMENTWISE, 11 * calls, 27_700, *mul),
            ("aten::embedding_dense_backward", MOVEMENT, steps, 1_450, hidden, 2 * hidden, 4 * vocabulary * h),
            ("rotary[bold]::backward", UNKNOWN, calls, 2_160, None, None, None),
            (gather, COMMUNICATION, calls, 9_900, 0, 2 * h * m, 16 * h * m),
        ),
        *operators(
            OPTIMIZER,
            ("aten::_fused_adamw_", ELEMENTWISE, steps, 21_300, *adamw),
            ("aten::_foreach_norm", NORMALIZATION, steps, 2_210, None, None, None),
        ),
    )


def llama_on_gpu() -> Anatomy:
    """Llama 3.2 1B, three steps in bf16 with checkpointing on an H200, ceilings, unknown kernels and strange names."""
    steps, layers, peak, bandwidth = 3, 16, 989.5e12, 4.8e12
    rows = tuple(_bounded(row, peak, bandwidth) for row in _llama_operators(steps))
    classes = class_rows(rows, kernels_per_call=1)
    work_ns = sum(row.time_ns for row in rows)
    busy_ns, window_ns = work_ns - 7_700_000, work_ns + 61_400_000
    return Anatomy(
        provenance=Provenance(
            opanatomy="0.1.0", command="opanatomy analyze llama.pt.trace.json", trace="llama.pt.trace.json"
        ),
        environment=Environment(
            device="NVIDIA H200",
            device_kind="cuda",
            device_count=8,
            device_memory_bytes=150_754_820_096,
            torch="2.13.0+cu128",
            cuda="12.8",
            driver="570.86.15",
            host_threads=96,
        ),
        workload=Workload(
            model="meta-llama/Llama-3.2-1B",
            architecture="LlamaForCausalLM",
            parameters=LLAMA,
            trainable_parameters=LLAMA - 262_668_288,
            task="causal-lm",
            batch=4,
            sequence_length=2048,
            dtype="bfloat16",
            attention="flash_attention_2",
            checkpointing="use_reentrant=False",
            compiled=False,
            optimizer="adamw_torch_fused",
            steps=steps,
            changes=("rope_theta=10000", "model.layers.[3].self_attn kept"),
        ),
        step=Step(
            count=steps,
            wall_ns=window_ns // steps,
            wall_min_ns=window_ns // steps - 1_900_000,
            wall_max_ns=window_ns // steps + 3_200_000,
            unprofiled_wall_ns=window_ns // steps + 40_000,
            forward_ns=38_900_000,
            backward_ns=91_200_000,
            optimizer_ns=7_800_000,
            busy_ns=busy_ns // steps,
            kernel_time_ns=work_ns // steps,
            samples_per_second=4 * steps * 1e9 / window_ns,
        ),
        classes=classes,
        ratios=ratios(classes, {CONTRACTION: (3.0, None), ELEMENTWISE: (None, 2.5)}),
        operators=rows,
        kernels=(
            KernelRow(
                kernel="nvjet_tst_192x192_64x4_2x1_v_bz_coopA_NNT",
                operator_class=CONTRACTION,
                rule="kernel:nvjet",
                count=12 * layers * steps,
                time_ns=251_510_000,
                operators=("aten::mm",),
            ),
            KernelRow(
                kernel="void my_rotary_kernel<__nv_bfloat16, [link=https://example.org]>(int)",
                operator_class=UNKNOWN,
                rule="no rule",
                count=2 * layers * steps,
                time_ns=4_040_000,
                operators=("rotary[bold]::backward", "rotary[bold]::forward"),
            ),
        ),
        modules=(),
        memory=Memory(peak_bytes=21_400_000_000, peak_at="optimizer", measured_by="CUDA caching allocator"),
        timeline=Timeline(
            window_ns=window_ns,
            busy_ns=busy_ns,
            idle_ns=window_ns - busy_ns,
            communication_ns=9_900_000,
            exposed_communication_ns=2_200_000,
            exposed_memcpy_ns=0,
        ),
        device=DeviceFigures(
            peak_flops_per_second={"tf32": 494.7e12, "bfloat16": peak},
            bandwidth_bytes_per_second=bandwidth,
            source="data sheet, dense: NVIDIA H200 SXM",
            mfu=0.38214,
            mfu_dtype="bfloat16",
            hfu=0.50871,
        ),
        ledger=ledger(rows, graph_us=9_900, unlaunched_us=31, outside_us=1_204),
        conventions=CONVENTIONS,
        checks=_disagreeing(),
        warnings=(
            "2 of 1,204 kernels have no launch record: their operator is not known [no markup here]",
            "the trace has no module ranges: time by module is not known",
        ),
    )


def _disagreeing() -> tuple[Check, ...]:
    """One check with differences of both kinds, one that agrees, one that could not be made."""
    return (
        Check(
            quantity="call counts", source="a dispatch mode", unit="calls", compared=41, equal=39,
            differences=(
                Difference(operator="aten::zeros_like", phase=OPTIMIZER, ours=0, other=291, cause="first step"),
                Difference(operator="aten::mm", phase=BACKWARD, ours=1_289, other=1_290, evidence="in layers.3"),
            ),
        ),
        Check(quantity="operator times", source="key_averages", unit="ns", compared=57, equal=57),
        Check(quantity="contraction FLOPs", source="a registry", unit="FLOPs", not_checked="no second formula: my::mm"),
    )  # fmt: skip


def nothing() -> Anatomy:
    """A trace without any device work, of which nothing is known."""
    return Anatomy(
        provenance=Provenance(opanatomy="0.1.0"),
        environment=Environment(),
        workload=Workload(),
        step=Step(),
        classes=(),
        ratios=(),
        operators=(),
        kernels=(),
        modules=(),
        memory=Memory(),
        timeline=Timeline(window_ns=0, busy_ns=0, idle_ns=0),
        device=DeviceFigures(),
        ledger=Ledger(
            device_work_ns=0,
            linked_ns=0,
            graph_launched_ns=0,
            no_launch_record_ns=0,
            outside_window_ns=0,
            classed_ns=0,
            costed_ns=0,
            unknown_ns=0,
        ),
    )
