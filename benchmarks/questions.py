"""Sixty questions in plain words about shared traces, each with its answer worked out from the JSON report.

They were written before the tools of `opanatomy mcp`: what an engineer asks of a step, not what a tool is called.
`benchmarks/agents.py` has a client answer them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

#: Of the JSON report.
Document = dict[str, Any]


class Question(NamedTuple):
    """A question about a trace, below shared/ or tests/, and its answer: a number in base units, or a name."""

    trace: str
    text: str
    answer: Callable[[Document], float | str | None]


def steps(document: Document) -> int:
    """The steps that sums are over."""
    return max(document["step"]["count"], 1)


def window_steps(document: Document) -> float:
    """The steps of the window, of several ranks the mean of theirs."""
    return steps(document) / max(len(document["ranks"]), 1)


def of_class(name: str, key: str = "time_ns", phase: str | None = None) -> Callable[[Document], float]:
    """A figure of a class of operators in a mean step."""
    return lambda document: (
        sum(
            row[key] or 0
            for row in document["classes"]
            if row["operator_class"] == name and phase in (None, row["phase"])
        )
        / steps(document)
    )


def share_of_class(name: str) -> Callable[[Document], float]:
    """The part of a class of all device work."""
    return lambda document: of_class(name)(document) * steps(document) / sum(r["time_ns"] for r in document["classes"])


def of_operator(name: str, key: str = "time_ns", phase: str | None = None) -> Callable[[Document], float]:
    """A figure of an operator in a mean step, its parts included."""
    return lambda document: (
        sum(
            row[key] or 0
            for row in document["operators"]
            if (row["part_of"] or row["operator"]) == name and phase in (None, row["phase"])
        )
        / steps(document)
    )


def of_timeline(key: str) -> Callable[[Document], float]:
    """A time of the window in a mean step."""
    return lambda document: document["timeline"][key] / window_steps(document)


def longest_kernel(document: Document) -> str:
    """The name of the kernel with most time."""
    return str(max(document["kernels"], key=lambda row: row["time_ns"])["kernel"])


def longest_operator(document: Document) -> str:
    """The operator with most time in one phase, its parts included."""
    times: dict[tuple[str, str], int] = {}
    for row in document["operators"]:
        key = row["part_of"] or row["operator"], row["phase"]
        times[key] = times.get(key, 0) + row["time_ns"]
    return max(times, key=lambda key: times[key])[0]


def top_cause(document: Document) -> str:
    """The cause of most idle time."""
    return str(document["timeline"]["causes"][0]["cause"])


def component(name: str) -> Callable[[Document], float | None]:
    """The measured bytes of a component of the memory."""
    return lambda document: next(
        (row["measured_bytes"] for row in document["memory"]["components"] if row["component"] == name), None
    )


def advice(index: int = 0) -> Callable[[Document], str]:
    """The id of a piece of advice."""
    return lambda document: str(document["advice"][index]["id"])


GPT: Final = "more_traces/compare/train_h100_compile_gpt_rank0of8_after.json.gz"
DLRM: Final = "more_traces/dlrm_v100"
VIT: Final = "traces/infer_h100_vit_base.json.gz"
QWEN: Final = "traces/infer_h100_qwen1.5_0.5b.json.gz"
RESNET_2021: Final = "traces/train_v100_resnet50_schema2021.json.gz"
MI300: Final = "traces/train_mi300_resnet18.json.gz"
DDP: Final = "traces/train_v100_ddp_rank1of2_memory.json.gz"
A100: Final = "traces/train_a100_rank3of8_shapes_nccl.json.gz"
ALEXNET: Final = "traces/infer_a100_alexnet_cudasync.json.gz"
VLLM: Final = "traces/infer_vllm_decode_graph.json.gz"
BERT_SMALL: Final = "traces/infer_h100_bert_small.json.gz"
TIMESFORMER: Final = "traces/infer_h100_timesformer_eager.json.gz"
NORMS: Final = "traces/train_mi300_normalization_layers.json.gz"
COMPILED: Final = "traces/infer_mi300_torch_compile.json.gz"
MI250: Final = "traces/train_mi250_mini.json.gz"
SAM: Final = "more_traces/infer_a100_compile_sam.json.gz"
NANOSECONDS: Final = "traces/train_v100_resnet_nanosecond_ts.json.gz"
COLD: Final = "more_traces/causes/cold_start_a100.json.gz"
QWEN_MI300: Final = "traces/infer_mi300_qwen1.5_0.5b.json.gz"
BERT_CPU: Final = "tests/traces/bert_cpu.json.gz"

QUESTIONS: Final = (
    Question(GPT, "How long does a step take?", lambda d: d["step"]["wall_ns"]),
    Question(GPT, "How much of the communication is exposed in a step?", of_timeline("exposed_communication_ns")),
    Question(GPT, "What is the MFU?", lambda d: d["device"]["mfu"]),
    Question(GPT, "How much time does `aten::mm` take in the backward of a step?",
             of_operator("aten::mm", phase="backward")),
    Question(GPT, "Which operator takes the most time?", longest_operator),
    Question(GPT, "What should I try first?", advice()),
    Question(DLRM, "How many ranks are there?", lambda d: len(d["ranks"])),
    Question(DLRM, "Which rank is the straggler?", lambda d: d["waiting"]["straggler"]["rank"]),
    Question(DLRM, "How long is the device idle in a step?", of_timeline("idle_ns")),
    Question(DLRM, "What is the main cause of idle time?", top_cause),
    Question(DLRM, "Which piece of advice saves most?", advice()),
    Question(VIT, "How many kernels does a step launch?", lambda d: d["timeline"]["launching"]["calls"] / steps(d)),
    Question(VIT, "How long is the device busy?", of_timeline("busy_ns")),
    Question(VIT, "Which kernel takes the most time?", longest_kernel),
    Question(VIT, "What is the main cause of idle time?", top_cause),
    Question(QWEN, "How much time goes to element-wise operators in a step?", of_class("elementwise")),
    Question(QWEN, "What share of the device work is tensor contraction?", share_of_class("tensor_contraction")),
    Question(QWEN, "How many FLOPs does a step have?", lambda d: sum(r["flops"] or 0 for r in d["classes"]) / steps(d)),
    Question(QWEN, "Which kernel takes the most time?", longest_kernel),
    Question(RESNET_2021, "How long does a step take?", lambda d: d["step"]["wall_ns"]),
    Question(RESNET_2021, "What is the main cause of idle time?", top_cause),
    Question(RESNET_2021, "How long does backward take?", lambda d: d["step"]["phase_ns"]["backward"]),
    Question(RESNET_2021, "What should I try first?", advice()),
    Question(MI300, "How long is the device idle in a step?", of_timeline("idle_ns")),
    Question(MI300, "What is the main cause of idle time?", top_cause),
    Question(MI300, "How much time goes to statistical normalization?", of_class("statistical_normalization")),
    Question(DDP, "How much communication is there in a step?", of_timeline("communication_ns")),
    Question(DDP, "How much of the communication is exposed in a step?", of_timeline("exposed_communication_ns")),
    Question(DDP, "What is the peak of the memory?", lambda d: d["memory"]["peak_bytes"]),
    Question(DDP, "How many bytes of gradients are there?", component("gradients")),
    Question(A100, "How much of the communication is exposed in a step?", of_timeline("exposed_communication_ns")),
    Question(A100, "How long does the optimizer take?", lambda d: d["step"]["phase_ns"]["optimizer"]),
    Question(A100, "How much time do copies take?", of_timeline("memcpy_ns")),
    Question(A100, "Which operator takes the most time?", longest_operator),
    Question(ALEXNET, "How long is the device busy?", of_timeline("busy_ns")),
    Question(ALEXNET, "Which operator takes the most time?", longest_operator),
    Question(ALEXNET, "How much time does the host spend waiting in synchronizing calls?",
             lambda d: d["timeline"]["launching"]["synchronizing_ns"] / steps(d)),
    Question(VLLM, "What share of the device work is launched by graphs?",
             lambda d: d["ledger"]["graph_launched_ns"] / d["ledger"]["device_work_ns"]),
    Question(VLLM, "Which kernel takes the most time?", longest_kernel),
    Question(VLLM, "What share of the device work is of unknown class?",
             lambda d: d["ledger"]["unknown_ns"] / (d["ledger"]["device_work_ns"] - d["ledger"]["outside_window_ns"])),
    Question(BERT_SMALL, "How long is the device idle in a step?", of_timeline("idle_ns")),
    Question(BERT_SMALL, "How many tiny kernels are there?",
             lambda d: d["timeline"]["launching"]["tiny_kernels"] / steps(d)),
    Question(TIMESFORMER, "Which kernel takes the most time?", longest_kernel),
    Question(TIMESFORMER, "How much time goes to data movement operators?", of_class("data_movement")),
    Question(NORMS, "How long does forward take?", lambda d: d["step"]["phase_ns"].get("forward")),
    Question(NORMS, "How much time goes to statistical normalization?", of_class("statistical_normalization")),
    Question(COMPILED, "How long is the device busy?", of_timeline("busy_ns")),
    Question(COMPILED, "Which kernel takes the most time?", longest_kernel),
    Question(MI250, "What is the main cause of idle time?", top_cause),
    Question(MI250, "How long does a step take?", lambda d: d["step"]["wall_ns"]),
    Question(SAM, "What is the MFU?", lambda d: d["device"]["mfu"]),
    Question(SAM, "How much time goes to element-wise operators in a step?", of_class("elementwise")),
    Question(NANOSECONDS, "How long does backward take?", lambda d: d["step"]["phase_ns"].get("backward")),
    Question(NANOSECONDS, "Which kernel takes the most time?", longest_kernel),
    Question(COLD, "What is the main cause of idle time?", top_cause),
    Question(COLD, "What should I try first?", advice()),
    Question(QWEN_MI300, "What share of the device work is tensor contraction?", share_of_class("tensor_contraction")),
    Question(QWEN_MI300, "How long is the device idle in a step?", of_timeline("idle_ns")),
    Question(BERT_CPU, "How long does the framework take in a step?", lambda d: d["step"]["framework_ns"]),
    Question(BERT_CPU, "How many calls of `aten::addmm` are there in a step?", of_operator("aten::addmm", "calls")),
)  # fmt: skip
