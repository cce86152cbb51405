"""Reports of hand-made traces: a CPU step of BERT-large, GPU steps of a Llama with strange names, and of nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from msgspec import to_builtins
from msgspec.structs import replace

import opanatomy
from opanatomy.records.anatomy import Anatomy, Check, DeviceFigures, Difference, Ledger, Provenance, Step, Timeline
from opanatomy.records.memory import Memory, MemoryComponent
from opanatomy.records.taxonomy import Phase
from opanatomy.records.work import NO_WORK, work_of_tables
from opanatomy.records.workload import Capture, Environment, Workload
from opanatomy.report import read_anatomy
from tests.support.made_trace import NCCL, TraceBuilder

BERT_LARGE, LLAMA = 335_143_938, 1_235_814_400
LAYERS = 4
ATTENTION = "bert.encoder.layer.0.attention.self"
#: Names that a trace may have and a page must show as text.
HOSTILE: Final = (
    "</script><script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "\u202egnp.exe",
    "javascript:alert(1)",
    "x" * 10_000,
    "=cmd()",
    "<!--",
    "]]>",
    "{{7*7}}",
    "' + alert(1) + '",
    "datum['constructor']",
    "\u2028",
)
#: Phase, operator, sizes of its tensors, calls of a step, microseconds of each.
Row = tuple[str, str, list[Any], int, float]


def report(trace: TraceBuilder, capture: Capture) -> Anatomy:
    """The report of the trace of such a capture, which has nothing of this machine in it."""
    trace.metadata["opanatomy"] = to_builtins(capture)
    with TemporaryDirectory() as folder:
        path = trace.write(Path(folder) / f"{(capture.workload.model or '').rpartition('/')[2]}.json")
        anatomy = read_anatomy(opanatomy.analyze(path).to_json())
    provenance = Provenance(
        opanatomy="0.1.0",
        command=capture.command,
        created=capture.created,
        trace=path.name,
        trace_sha256="9f2c" + 60 * "0",
    )
    return replace(anatomy, provenance=provenance)


def bert_operators() -> Iterator[Row]:
    h, m, tokens = 1024, 4096, 2048
    hidden, inner, heads = [tokens, h], [tokens, m], [4, 16, 512, 64]
    flash = "aten::_scaled_dot_product_flash_attention_for_cpu"
    yield "forward", "aten::embedding", [[30522, h], [4, 512]], 3, 2_000
    yield "forward", "aten::addmm", [[m], hidden, [h, m]], 2 * LAYERS, 170_000
    yield "forward", "aten::addmm", [[h], hidden, [h, h]], 4 * LAYERS, 44_000
    yield "forward", flash, [heads] * 3, LAYERS, 80_000
    yield "forward", "aten::native_layer_norm", [hidden, [], [h], [h]], 2 * LAYERS, 4_300
    yield "forward", "aten::_log_softmax", [[4, 2]], 1, 18
    yield "forward", "aten::gelu", [inner], LAYERS, 33_000
    yield "forward", "aten::native_dropout", [hidden], 2 * LAYERS, 14_000
    yield "forward", "aten::add", [hidden, hidden], 2 * LAYERS, 3_700
    yield "backward", "aten::mm", [hidden, [h, m]], 4 * LAYERS, 187_000
    yield "backward", "aten::mm", [hidden, [h, h]], 8 * LAYERS, 48_000
    yield "backward", f"{flash}_backward", [heads] * 5 + [[4, 16, 512]], LAYERS, 188_000
    yield (
        "backward",
        "aten::native_layer_norm_backward",
        [hidden, hidden, [], [tokens, 1], [tokens, 1], [h], [h]],
        2 * LAYERS,
        6_500,
    )
    yield "backward", "aten::sum", [hidden], 6 * LAYERS, 1_700
    yield "backward", "aten::gelu_backward", [inner, inner], LAYERS, 46_000
    yield "backward", "aten::native_dropout_backward", [hidden, hidden], 2 * LAYERS, 8_200
    yield "backward", "aten::embedding_dense_backward", [[4, 512, h], [4, 512]], 3, 32_000
    yield "optimizer", "aten::_fused_adamw_", [[[BERT_LARGE]] * 5], 1, 918_000
    yield "optimizer", "aten::_local_scalar_dense", [[]], 2, 2


def typed(shapes: list[Any], dtype: str) -> list[str]:
    return ["TensorList" if shape and isinstance(shape[0], list) else dtype if shape else "" for shape in shapes]


@cache
def bert_on_cpu() -> Anatomy:
    """BERT-large, one step of forward, backward and AdamW on two CPU threads; every section is there."""
    trace, now = TraceBuilder(), 0.0
    rows = list(bert_operators())
    for phase, framework in (("forward", 56_000), ("backward", 59_600), ("optimizer", 2_800)):
        begin = now
        for index, (_, name, shapes, calls, each) in enumerate(row for row in rows if row[0] == phase):
            for call in range(calls):
                if (name, call, index) == ("aten::addmm", 0, 2):
                    trace.host(f"opanatomy.module/{ATTENTION}", now, 3 * each)
                trace.host(name, now, each, shapes=shapes, types=typed(shapes, "float"))
                now += each
        now += framework
        trace.host(f"opanatomy.phase/{phase}", begin, now - begin)
    trace.step(0, now, 1)
    environment = Environment(
        device="cpu",
        device_kind="cpu",
        device_count=1,
        torch="2.13.0+cpu",
        transformers="5.23.0",
        python="3.11.9",
        host_threads=2,
        processor="AMD EPYC 7B13",
    )
    workload = Workload(
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
    )
    plain = round(1000 * now) - 100_000_000
    anatomy = report(
        trace,
        Capture(
            version="0.1.0",
            command="opanatomy profile google-bert/bert-large-uncased --batch 4 --optimizer adamw",
            created="2026-01-15T12:00:00Z",
            environment=environment,
            workload=workload,
            unprofiled_step_ns=(plain - 30_000_000, plain - 20_000_000, plain + 50_000_000),
            modules={"": "BertForSequenceClassification", ATTENTION: "BertSelfAttention"},
        ),
    )

    def component(name: str, measured: int, theory: int | None = None, formula: str | None = None) -> MemoryComponent:
        return MemoryComponent(component=name, measured_bytes=measured, theory_bytes=theory, formula=formula)

    return replace(
        anatomy,
        memory=Memory(
            peak_bytes=13_604_512_768,
            allocator_peak_bytes=13_604_512_768,
            process_peak_bytes=15_032_385_536,
            peak_at="backward",
            measured_by="resident set of the process",
            components=(
                component("weights", 4 * BERT_LARGE, 4 * BERT_LARGE, "4 P"),
                component("gradients", 4 * BERT_LARGE, 4 * BERT_LARGE, "4 P"),
                component("optimizer_state", 8 * BERT_LARGE + 1564, 8 * BERT_LARGE, "8 P"),
                component(
                    "forward_activations",
                    8_461_824_000,
                    24 * (512 * 4 * 1024 * 72 + 16 * 512 * 512 * 4 * 12),
                    "L (s b h (16 e + 2 m) + a s^2 b (2 e + m)), e = 4, m = 4",
                ),
                component("temporary buffers", 320_112_128),
            ),
        ),
    )


def llama_operators() -> Iterator[Row]:
    h, m, tokens = 2048, 8192, 8192
    hidden, inner, heads = [tokens, h], [tokens, m], [4, 2048, 32, 64]
    flash = "aten::_flash_attention_forward"
    yield "forward", "aten::mm", [hidden, [h, m]], 3 * LAYERS, 430
    yield "forward", flash, [heads] * 3, LAYERS, 230
    yield "forward", "aten::mean", [hidden], 2 * LAYERS, 44
    yield "forward", "aten::_log_softmax", [[tokens, 128_256]], 1, 3_240
    yield "forward", "aten::mul", [hidden, hidden], 6 * LAYERS, 52
    yield "forward", "aten::silu", [inner], LAYERS, 84
    yield "forward", "aten::copy_", [hidden, hidden], 9 * LAYERS, 20
    yield "forward", "mine[bold]::forward", [hidden], LAYERS, 39
    yield "recompute", "aten::mm", [hidden, [h, m]], 3 * LAYERS, 430
    yield "recompute", "aten::mul", [hidden, hidden], 6 * LAYERS, 52
    yield "backward", "aten::mm", [hidden, [h, m]], 6 * LAYERS, 440
    yield "backward", "aten::_flash_attention_backward", [heads] * 5 + [[4, 32, 2048]], LAYERS, 610
    yield "backward", "aten::sum", [hidden], 2 * LAYERS, 52
    yield "backward", "aten::mul", [hidden, hidden], 11 * LAYERS, 52
    yield "backward", "aten::embedding_dense_backward", [[4, 2048, h], [4, 2048]], 1, 480
    yield "backward", "mine[bold]::backward", [hidden], LAYERS, 45
    yield "optimizer", "aten::_fused_adamw_", [[[LLAMA // 4]] * 5], 1, 1_775
    yield "optimizer", "aten::_foreach_norm", [[[h, m]]], 1, 740


def kernel_of(operator: str) -> str:
    """What runs for a call."""
    if operator.startswith("mine"):
        return "void my_odd_thing<__nv_bfloat16, [link=https://example.org]>(int)"
    if operator == "aten::mm":
        return "nvjet_tst_192x192_64x4_2x1_v_bz_coopA_NNT"
    return f"void {operator.rpartition(':')[2]}_kernel(int)"


@cache
def llama_on_gpu() -> Anatomy:
    """A Llama, three steps in bf16 with checkpointing on an H200, unknown kernels and strange names.

    Before each step's first kernel the device waits for the host, which loads data and then launches a call every 20
    us; kernels run one after the other, some collectives next to a product of the backward.
    """
    trace = TraceBuilder(
        metadata={"deviceProperties": [{"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150_754_820_096}]}
    )
    trace.run("Memcpy HtoD", -3_000, -2_000, 1_204, category="gpu_memcpy", call="cudaMemcpyAsync")
    now, correlation = 0.0, 1_000_000
    for number, waits in enumerate((1_000, 1_900, 2_200), 3):
        begin, device, host = now, now + waits, now + waits - 40
        trace.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", begin, waits - 60)
        hiding: list[float] = []
        for phase in ("forward", "recompute", "backward", "optimizer"):
            first = host
            for _, name, shapes, calls, each in (row for row in llama_operators() if row[0] == phase):
                for _ in range(calls):
                    host += 20
                    trace.host(name, host, 15, shapes=shapes, types=typed(shapes, "c10::BFloat16"))
                    trace.run(kernel_of(name), host + 2, max(device, host + 10), each)
                    device = max(device, host + 10) + each
                    hiding += [device - each] if (phase, name) == ("backward", "aten::mm") else []
            if phase == "recompute":
                trace.kernel("Memset (Device)", device, 10, correlation + 1, category="gpu_memset")
                device += 10
            if phase == "backward":
                host, correlation = host + 20, correlation + 2
                trace.launch(host, correlation, name="cudaGraphLaunch")
                for start in (*hiding[-2 * LAYERS :], device):
                    trace.kernel(NCCL, start, 206, correlation, stream=20)
                device += 206
            trace.host(f"opanatomy.phase/{phase}", first + 18, host - first + 1)
        trace.step(begin, host + 20 - begin, number)
        now = device
    capture = Capture(
        version="0.1.0",
        command="opanatomy analyze llama.pt.trace.json",
        created="",
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
            steps=3,
            changes=("rope_theta=10000", "model.layers.[3].self_attn kept"),
        ),
        unprofiled_step_ns=(round(320 * now),),
    )
    memory = Memory(
        peak_bytes=21_400_000_000,
        allocator_peak_bytes=21_400_000_000,
        peak_at="optimizer",
        measured_by="CUDA caching allocator",
    )
    anatomy = report(trace, capture)
    return replace(anatomy, memory=memory, checks=disagreeing(), warnings=(*anatomy.warnings, "[no markup here]"))


def disagreeing() -> tuple[Check, ...]:
    """One check with differences of both kinds, one that agrees, one that could not be made."""
    return (
        Check(
            quantity="call counts",
            source="a dispatch mode",
            unit="calls",
            compared=41,
            equal=39,
            differences=(
                Difference(operator="aten::zeros_like", phase=Phase.OPTIMIZER, ours=0, other=291, cause="first step"),
                Difference(
                    operator="aten::mm",
                    phase=Phase.BACKWARD,
                    ours=1_289,
                    other=1_290,
                    evidence="in layers.3",
                    time_ns=30_000_000,
                ),
            ),
        ),
        Check(quantity="operator times", source="key_averages", unit="ns", compared=57, equal=57),
        Check(
            quantity="contraction FLOPs", source="a registry", unit="FLOPs", not_checked="no second formula for my::mm"
        ),
    )


def nothing() -> Anatomy:
    """A trace without any device work, of which nothing is known."""
    names = (
        "device_work",
        "linked",
        "graph_launched",
        "no_launch_record",
        "outside_window",
        "classed",
        "costed",
        "unknown",
    )
    return Anatomy(
        provenance=Provenance(opanatomy="0.1.0"),
        environment=Environment(),
        workload=Workload(),
        step=Step(),
        work=NO_WORK,
        memory=Memory(),
        timeline=Timeline(window_ns=0, busy_ns=0, idle_ns=0),
        device=DeviceFigures(),
        ledger=Ledger(**dict.fromkeys((f"{name}_ns" for name in names), 0)),
    )


def with_tables(anatomy: Anatomy, **tables: Any) -> Anatomy:
    """The anatomy with other rows in some of its tables, each of which is of rows of its own."""
    names = ("classes", "operators", "kernels", "modules", "breakdown")
    known = {name: getattr(anatomy, name) for name in names} | tables
    kinds = None if known["breakdown"] is None else tuple(one.kind for one in known["breakdown"].kinds)
    return replace(anatomy, work=work_of_tables(**known), step_kinds=kinds)


def named(names: Sequence[str]) -> Anatomy:
    """A step whose kernels, operators, modules, model, trace and warnings have these names, in turns."""
    anatomy, turns = llama_on_gpu(), cycle(names)
    renamed = with_tables(
        anatomy,
        operators=tuple(replace(row, operator=next(turns)) for row in anatomy.operators),
        modules=tuple(
            replace(row, module=next(turns).replace(".", ""), kind=next(turns)) for row in bert_on_cpu().modules
        ),
        kernels=tuple(replace(row, kernel=next(turns)) for row in anatomy.kernels),
    )
    return replace(
        renamed,
        workload=replace(anatomy.workload, model=next(turns)),
        provenance=replace(anatomy.provenance, trace=next(turns)),
        warnings=tuple(names),
        caveats=tuple(names),
    )
