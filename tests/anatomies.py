"""Hand-made anatomies, built of made-up calls as those of traces are: a CPU step, GPU steps, and no work at all."""

from __future__ import annotations

from itertools import pairwise

from msgspec.structs import replace

from opanatomy.analysis.build import AnatomyInputs, build_anatomy, measured_steps
from opanatomy.analysis.roofline import with_roofline
from opanatomy.analysis.timeline import StepWindow
from opanatomy.records.anatomy import (
    Anatomy,
    Ceilings,
    Check,
    DeviceFigures,
    Difference,
    Ledger,
    Provenance,
    Step,
    Timeline,
)
from opanatomy.records.columns import GRAPH, NO_LAUNCH, OUTSIDE
from opanatomy.records.memory import Memory, MemoryComponent
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.workload import Capture, Environment, Workload
from tests.made_calls import (
    Call,
    Work,
    call_table,
    durations,
    kernel_table,
    launched_work,
    linked_time,
    operators,
)  # fmt: skip

CONTRACTION = OperatorClass.TENSOR_CONTRACTION
NORMALIZATION = OperatorClass.STATISTICAL_NORMALIZATION
ELEMENTWISE = OperatorClass.ELEMENTWISE
MOVEMENT = OperatorClass.DATA_MOVEMENT
COMMUNICATION = OperatorClass.COMMUNICATION
OTHER, UNKNOWN = OperatorClass.OTHER, OperatorClass.UNKNOWN
FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER = Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE, Phase.OPTIMIZER
_ATTENTION = "bert.encoder.layer.0.attention.self"
BERT_LARGE, LLAMA = 335_143_938, 1_235_814_400


def _bert_operators() -> tuple[Work, ...]:
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
            ("aten::addmm", CONTRACTION, 4 * layers - 3, 4_189_000, *narrow),
            signature=f"float32[{h}], float32[{tokens},{h}], float32[{h},{h}], 1, 1",
        ),
        *operators(
            FORWARD,
            ("aten::addmm", CONTRACTION, 3, 221_000, *narrow),
            signature=f"float32[{h}], float32[{tokens},{h}], float32[{h},{h}], 1, 1",
            module=_ATTENTION,
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
        *operators(OPTIMIZER, ("aten::_fused_adamw_", ELEMENTWISE, 1, 918_000, *adamw), module=""),
        *operators(OPTIMIZER, ("aten::_local_scalar_dense", OTHER, 2, 4, None, None, None)),
    )


def _component(name: str, measured: int, theory: int | None = None, formula: str | None = None) -> MemoryComponent:
    return MemoryComponent(component=name, measured_bytes=measured, theory_bytes=theory, formula=formula)


#: What the framework takes in each phase of the BERT step, next to the operators.
_FRAMEWORK_NS = {FORWARD: 156_000_000, BACKWARD: 159_600_000, OPTIMIZER: 2_800_000}
_RECORDING_NS = 118_400_000


def _bert_step() -> tuple[tuple[Call, ...], StepWindow]:
    """The calls one after the other, phase by phase, each phase as long as its calls and the framework around them."""
    calls, spans, now = [], [], 0
    for phase, framework_ns in _FRAMEWORK_NS.items():
        begin = now
        for work in (work for work in _bert_operators() if work.phase is phase):
            for duration_ns in durations(work, 0, 1):
                calls.append(Call(work=work, start_ns=now, duration_ns=duration_ns))
                now += duration_ns
        now += framework_ns
        spans.append((begin, now, phase))
    share = _RECORDING_NS / _PROFILED_MORE_NS
    window = StepWindow(window=(0, now), steps=((0, now),), spans=tuple(spans), numbers=(1,), recording_outside=share)
    return tuple(calls), window


_PROFILED_MORE_NS = 1_240_000_000

_CPU = Environment(
    device="cpu", device_kind="cpu", device_count=1, torch="2.13.0+cpu", transformers="5.23.0", python="3.11.9",
    host_threads=2, processor="AMD EPYC 7B13",
)  # fmt: skip
_BERT = Workload(
    model="google-bert/bert-large-uncased", architecture="BertForSequenceClassification", model_source="catalog",
    parameters=BERT_LARGE, trainable_parameters=BERT_LARGE, task="sequence-classification", batch=4,
    sequence_length=512, inputs=("input_ids int64[4,512]", "attention_mask int64[4,512]", "labels int64[4]"),
    dtype="float32", attention="sdpa", optimizer="adamw", steps=1, warmup=1, seed=0,
)  # fmt: skip
_BERT_COMMAND = "opanatomy profile google-bert/bert-large-uncased --batch 4 --optimizer adamw"
_BERT_MEMORY = Memory(
    peak_bytes=13_604_512_768,
    allocator_peak_bytes=13_604_512_768,
    process_peak_bytes=15_032_385_536,
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
)


def bert_on_cpu() -> Anatomy:
    """BERT-large, one step of forward, backward and AdamW on two CPU threads; every section is there."""
    calls, step_window = _bert_step()
    plain_ns = step_window.window[1] - _PROFILED_MORE_NS
    created = "2026-01-15T12:00:00Z"
    table = call_table(calls, kernels_per_call=0)
    anatomy = build_anatomy(
        AnatomyInputs(
            provenance=Provenance(
                opanatomy="0.1.0", command=_BERT_COMMAND, created=created, trace="bert.json.gz",
                trace_sha256="9f2c" + 60 * "0",
            ),
            environment=_CPU,
            capture=Capture(
                version="0.1.0", command=_BERT_COMMAND, created=created, environment=_CPU, workload=_BERT,
                unprofiled_step_ns=(plain_ns - 30_000_000, plain_ns - 20_000_000, plain_ns + 50_000_000),
                modules={"": "BertForSequenceClassification", _ATTENTION: "BertSelfAttention"},
            ),
            calls=table,
            kernels=None,
            steps=measured_steps(step_window, table, None, None),
            linked=linked_time(calls),
            warnings=(),
        )
    )  # fmt: skip
    return replace(anatomy, memory=_BERT_MEMORY)


_STEPS, _LAYERS = 3, 16


def _llama_operators() -> tuple[Work, ...]:
    h, m, vocabulary, tokens = 2048, 8192, 128_256, 8192
    hidden, inner, steps, calls = tokens * h, tokens * m, _STEPS, _LAYERS * _STEPS
    gate = (2 * tokens * h * m, 2 * (hidden + h * m), 2 * inner)
    attention = 4 * 4 * 32 * 2048 * 2048 * 64
    norm, scores = (5 * hidden, 2 * hidden, 2 * hidden), 4 * tokens * vocabulary
    mul = (hidden, 4 * hidden, 2 * hidden)
    adamw = (14 * LLAMA, 12 * LLAMA, 10 * LLAMA)
    gather = "nccl:_all_gather_base_ncclDevKernel_AllGather_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
    of_matrices = f"bfloat16[{tokens},{h}], bfloat16[{h},{m}]"
    of_hidden = f"bfloat16[{tokens},{h}]"
    flash_backward = (attention * 5 // 2, 12 * hidden, 6 * hidden)
    return (
        *operators(FORWARD, ("aten::mm", CONTRACTION, 3 * calls, 62_300, *gate), signature=of_matrices),
        *operators(
            FORWARD,
            ("aten::_flash_attention_forward", CONTRACTION, calls, 11_100, attention, 6 * hidden, 2 * hidden),
            ("aten::mean", NORMALIZATION, 2 * calls + steps, 4_350, *norm),
            ("aten::_log_softmax", NORMALIZATION, steps, 9_720, scores, scores, scores),
            ("aten::mul", ELEMENTWISE, 6 * calls, 14_900, *mul),
            ("aten::silu", ELEMENTWISE, calls, 4_010, 4 * inner, 2 * inner, 2 * inner),
            ("aten::copy_", MOVEMENT, 9 * calls, 8_730, 0, 2 * hidden, 2 * hidden),
            ("rotary[bold]::forward", UNKNOWN, calls, 1_880, None, None, None),
            signature=of_hidden,
        ),
        *operators(FORWARD, (None, MOVEMENT, steps, 31, None, None, None), link=NO_LAUNCH),
        *operators(RECOMPUTE, ("aten::mm", CONTRACTION, 3 * calls, 62_410, *gate), signature=of_matrices),
        *operators(RECOMPUTE, ("aten::mul", ELEMENTWISE, 6 * calls, 14_920, *mul), signature=of_hidden),
        *operators(BACKWARD, ("aten::mm", CONTRACTION, 6 * calls, 126_800, *gate), signature=of_matrices),
        *operators(
            BACKWARD,
            ("aten::_flash_attention_backward", CONTRACTION, calls, 29_400, *flash_backward),
            ("aten::sum", NORMALIZATION, 2 * calls + steps, 5_120, *norm),
            ("aten::mul", ELEMENTWISE, 11 * calls, 27_700, *mul),
            ("aten::embedding_dense_backward", MOVEMENT, steps, 1_450, hidden, 2 * hidden, 4 * vocabulary * h),
            ("rotary[bold]::backward", UNKNOWN, calls, 2_160, None, None, None),
            signature=of_hidden,
        ),
        *operators(BACKWARD, (gather, COMMUNICATION, calls, 9_900, 0, 2 * h * m, 16 * h * m), link=GRAPH),
        *operators(
            OPTIMIZER,
            ("aten::_fused_adamw_", ELEMENTWISE, steps, 21_300, *adamw),
            ("aten::_foreach_norm", NORMALIZATION, steps, 2_210, None, None, None),
            signature=f"[float32[{h},{m}]]",
        ),
    )


#: Before each step's first kernel the device waits for the host, which loads data and then launches one call every 20
#: microseconds.
_WAITS_NS = (21_000_000, 22_900_000, 25_200_000)
_LAUNCH_NS = 20_000
#: So many of a step's collectives run next to a product of its backward; the others run alone at its end.
_HIDDEN = 13


def _llama_step(step: int, begin_ns: int) -> tuple[list[Call], int]:
    """The kernels one after the other, collectives on a stream of their own, and the step's end."""
    works = _llama_operators()
    calls, hiding = [], []
    now = begin_ns + _WAITS_NS[step]
    launch_ns = now - 2 * _LAUNCH_NS
    for work in sorted(works, key=lambda work: work.operator_class is COMMUNICATION):
        for index, duration_ns in enumerate(durations(work, step, _STEPS)):
            launch_ns += _LAUNCH_NS
            collective = work.operator_class is COMMUNICATION
            hidden = collective and index < _HIDDEN
            start_ns = hiding[index] if hidden else now
            stream = 20 if collective else 7
            calls.append(
                Call(work=work, start_ns=start_ns, duration_ns=duration_ns, stream=stream, launch_ns=launch_ns)
            )
            now = now if hidden else start_ns + duration_ns
            if work.phase is BACKWARD and work.operator == "aten::mm":
                hiding.append(start_ns)
    return calls, now


#: A copy that the window does not hold.
_BEFORE = Call(
    work=operators(Phase.OTHER, (None, MOVEMENT, 1, 1_204, None, None, None), link=OUTSIDE)[0],
    start_ns=-2_000_000, duration_ns=1_204_000, launch_ns=-3_000_000,
)  # fmt: skip


def _llama_steps() -> tuple[tuple[Call, ...], StepWindow]:
    calls: list[Call] = []
    edges = [0]
    for step in range(_STEPS):
        of_step, end_ns = _llama_step(step, edges[-1])
        calls += of_step
        edges.append(end_ns)
    steps = tuple(pairwise(edges))
    return tuple(calls), StepWindow(
        window=(0, edges[-1]), steps=steps, spans=(), numbers=(3, 4, 5), recording_outside=1.0
    )


_H200 = Ceilings(
    device="NVIDIA H200", source="data sheet, dense: NVIDIA H200 SXM",
    matrix_flops_per_second={"tf32": 494.7e12, "bfloat16": 989.5e12}, vector_flops_per_second={"float32": 66.9e12},
    bandwidth_bytes_per_second=4.8e12,
)  # fmt: skip
_GPU = Environment(
    device="NVIDIA H200", device_kind="cuda", device_count=8, device_memory_bytes=150_754_820_096,
    torch="2.13.0+cu128", cuda="12.8", driver="570.86.15", host_threads=96,
)  # fmt: skip
_LLAMA = Workload(
    model="meta-llama/Llama-3.2-1B", architecture="LlamaForCausalLM", parameters=LLAMA,
    trainable_parameters=LLAMA - 262_668_288, task="causal-lm", batch=4, sequence_length=2048, dtype="bfloat16",
    attention="flash_attention_2", checkpointing="use_reentrant=False", compiled=False,
    optimizer="adamw_torch_fused", steps=_STEPS, changes=("rope_theta=10000", "model.layers.[3].self_attn kept"),
)  # fmt: skip


def llama_on_gpu() -> Anatomy:
    """Llama 3.2 1B, three steps in bf16 with checkpointing on an H200, ceilings, unknown kernels and strange names."""
    calls, step_window = _llama_steps()
    command = "opanatomy analyze llama.pt.trace.json"
    table, kernels = call_table(calls, kernels_per_call=1), kernel_table((_BEFORE, *calls))
    loading = [
        (begin, begin + wait - _LAUNCH_NS) for (begin, _), wait in zip(step_window.steps, _WAITS_NS, strict=True)
    ]
    launched = launched_work((_BEFORE, *calls), loading)
    anatomy = build_anatomy(
        AnatomyInputs(
            provenance=Provenance(opanatomy="0.1.0", command=command, trace="llama.pt.trace.json"),
            environment=_GPU,
            capture=Capture(
                version="0.1.0", command=command, created="", environment=_GPU, workload=_LLAMA,
                unprofiled_step_ns=(160_700_000,),
            ),
            calls=table,
            kernels=kernels,
            steps=measured_steps(step_window, table, kernels, launched),
            linked=linked_time((_BEFORE, *calls)),
            warnings=(
                "2 of 1,204 kernels have no launch record: their operator is not known [no markup here]",
                "the trace has no module ranges: time by module is not known",
            ),
        )
    )  # fmt: skip
    memory = Memory(
        peak_bytes=21_400_000_000,
        allocator_peak_bytes=21_400_000_000,
        peak_at="optimizer",
        measured_by="CUDA caching allocator",
    )
    return with_roofline(replace(anatomy, memory=memory, checks=_disagreeing()), _H200)


def _disagreeing() -> tuple[Check, ...]:
    """One check with differences of both kinds, one that agrees, one that could not be made."""
    return (
        Check(
            quantity="call counts", source="a dispatch mode", unit="calls", compared=41, equal=39,
            differences=(
                Difference(operator="aten::zeros_like", phase=OPTIMIZER, ours=0, other=291, cause="first step"),
                Difference(operator="aten::mm", phase=BACKWARD, ours=1_289, other=1_290, evidence="in layers.3",
                           time_ns=30_000_000),
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
