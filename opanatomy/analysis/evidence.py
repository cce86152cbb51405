"""Determine from a trace how a step is run; advice chooses its remedies by this alone."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from math import prod
from typing import Any, Final

from msgspec.structs import fields

from opanatomy.records.anatomy import Anatomy, Situation
from opanatomy.records.memory import MATH_ATTENTION
from opanatomy.records.patterns import regex
from opanatomy.records.taxonomy import OperatorClass, Phase
from opanatomy.records.work import OperatorRow

_DDP: Final = regex(r"DistributedDataParallel|distributed[.:]+ddp|\bReducer\b|\breducer::")
_FSDP: Final = regex(r"\bFSDP|FullyShardedDataParallel|\bfsdp::|fully_shard")
_TENSOR_PARALLEL: Final = regex(
    r"[Tt]ensor[_ ]?[Pp]arallel|(?:Row|Column)ParallelLinear|(?:Row|Col)wiseParallel|\bDTensor\b"
)
_COMPILED: Final = regex(r"Torch-Compiled Region|^CompiledFunction|TorchDynamo|CompiledFxGraph|^triton_\w+_fused_")
_INDUCTOR: Final = regex(r"^triton_|CompiledFxGraph|^graph_\d+_cpp_fused|^cpp_fused")
_WORKERS: Final = regex(r"_?MultiProcessing\w*Iter")
_ALONE: Final = regex(r"_?SingleProcess\w*Iter")
_SERVING: Final = regex(r"\b(vllm|sglang|sgl_kernel|tensorrt_llm|trtllm|lmdeploy|flashinfer)\b", re.IGNORECASE)
_AUTOCAST: Final = regex(r"autocast|_amp_")
_HALVES: Final = ("float16", "bfloat16")
#: Operators that change the data type of a tensor, among other things.
CASTS: Final = ("aten::copy_", "aten::_to_copy", "aten::to")
_FUSED_UPDATE: Final = regex(
    r"_fused_(?:adam|sgd|adagrad|lamb)|optimizer_update|FusedAdam|fused_adam|multi_tensor_adam", re.IGNORECASE
)
#: Operators with a flag `training` at the index, and kernels that only run in training mode.
_TRAINING_FLAG: Final = {
    "aten::batch_norm": 5,
    "aten::native_batch_norm": 5,
    "aten::cudnn_batch_norm": 5,
    "aten::miopen_batch_norm": 5,
    "aten::native_dropout": 2,
    "aten::dropout": 2,
}
_TRAINING_KERNELS: Final = regex(r"bn_fw_tr_|batch_norm_collect_statistics|BatchNormFwdTrain|fused_dropout_kernel")
_TRAINS: Final = {Phase.BACKWARD, Phase.OPTIMIZER}
_MASKS: Final = regex(r"masked_fill|::where$|::add_?$|::tril$|::triu$|::baddbmm$")


def situation_of(anatomy: Anatomy, names: Collection[str] | None = None) -> Situation:
    """Return what the trace shows; `names` are the names of all host events, by default the report's own rows."""
    operators = anatomy.operators
    if names is None:
        names = {row.name for row in anatomy.host} | {row.caller for row in anatomy.host if row.caller}
    every = [*names, *(row.operator for row in operators), *(row.kernel for row in anatomy.kernels)]
    workload, launching = anatomy.workload, anatomy.timeline.launching
    copies = [row for row in anatomy.kernels if "HtoD" in row.kernel]
    phases = {row.phase for row in anatomy.classes}
    backward = Phase.BACKWARD in phases

    def has(pattern: re.Pattern[str]) -> bool:
        return any(map(pattern.search, every))

    engines = {engine[1].lower() for name in every if (engine := _SERVING.search(name))}
    return Situation(
        ddp=has(_DDP) or workload.parallel == "ddp",
        fsdp=has(_FSDP) or (workload.parallel or "").startswith("fsdp"),
        tensor_parallel=has(_TENSOR_PARALLEL) or workload.parallel == "tp",
        backward=backward,
        score_mask=bool(masked_scores(operators)),
        compiled=bool(workload.compiled) or has(_COMPILED),
        inductor=has(_INDUCTOR),
        cuda_graphs=launching is not None and launching.graph_calls > 0,
        loader="workers" if has(_WORKERS) else "single process" if has(_ALONE) else None,
        autocast=bool(workload.amp) or has(_AUTOCAST) or bool(casts(operators)),
        optimizer=_optimizer(operators, anatomy),
        pinned_copies=sum(row.count for row in copies if "Pinned" in row.kernel),
        pageable_copies=sum(row.count for row in copies if "Pageable" in row.kernel),
        serving=min(engines, default=None),
        training_mode=Phase.FORWARD in phases and not phases & _TRAINS and _trains(anatomy),
        ranks=max(len(anatomy.ranks), 1),
        world_size=max((rank.world_size or 0 for rank in anatomy.ranks), default=0) or workload.world_size,
    )


def merge_situations(ranks: Sequence[Situation]) -> Situation:
    """Merge the evidence of several ranks: what any of them shows, with copies summed."""
    values: dict[str, Any] = {}
    for field in fields(Situation):
        each = [getattr(situation, field.name) for situation in ranks]
        known = [value for value in each if value is not None]
        values[field.name] = sum(each) if field.name.endswith("_copies") else max(known, default=None)
    return Situation(**{**values, "ranks": len(ranks)})


#: Operators that `scaled_dot_product_attention` calls where no fused kernel runs.
SOFTMAX_OF_SDPA: Final = frozenset({"aten::_safe_softmax", f"aten::{MATH_ATTENTION}"})


def score_shapes(operators: Collection[OperatorRow]) -> set[tuple[int, ...]]:
    """Return the shapes of attention scores: softmax inputs over keys whose matrices are multiplied.

    Scores are (batch, heads, queries, keys), or three-dimensional with batch and heads merged; the softmax is over the
    last dimension.
    """
    shapes = {
        largest_shape(row)
        for row in operators
        if "softmax" in row.operator and "log_softmax" not in row.operator and not row.operator.startswith("triton")
    }
    shapes = {shape for shape in shapes if len(shape) in (3, 4) and shape[-2] > 1 and shape[-1] > 1}
    multiplied = {
        (tensor.shape[-2], tensor.shape[-1])
        for row in operators
        if row.operator in ("aten::bmm", "aten::baddbmm")
        for tensor in row.signature.record.tensors()
        if len(tensor.shape) == 3
    }
    return {shape for shape in shapes if shape[-2:] in multiplied}


def masked_scores(operators: Collection[OperatorRow]) -> list[OperatorRow]:
    """Return the operators that apply a mask to attention scores: they take another tensor of shape queries x keys."""
    shapes, rows = score_shapes(operators), []
    for row in operators:
        if not _MASKS.search(row.operator) or largest_shape(row) not in shapes:
            continue
        keys = largest_shape(row)[-2:]
        tensors = [tensor for tensor in row.signature.record.tensors() if tuple(tensor.shape[-2:]) == keys]
        if "masked_fill" in row.operator or len(tensors) > 1:
            rows.append(row)
    return rows


def largest_shape(row: OperatorRow) -> tuple[int, ...]:
    """Return the shape of the largest tensor among an operator's arguments."""
    tensors = [tensor for tensor in row.signature.record.tensors() if tensor.numel is not None]
    return max((tensor.shape for tensor in tensors), key=prod, default=())


def casts(operators: Collection[OperatorRow]) -> list[OperatorRow]:
    """Return the casts of float32 matrices to half precision that a product of the step multiplies."""
    multiplied = {
        shape
        for row in operators
        if row.operator_class is OperatorClass.TENSOR_CONTRACTION
        for tensor in row.signature.record.tensors()
        if tensor.dtype in _HALVES and len(tensor.shape) in (2, 4)
        for shape in (tuple(tensor.shape), tuple(reversed(tensor.shape)))
    }
    rows = []
    for row in operators:
        tensors = row.signature.record.tensors() if row.operator in CASTS else ()
        kinds = {tensor.dtype for tensor in tensors}
        if "float32" in kinds and kinds & {*_HALVES} and tuple(tensors[0].shape) in multiplied:
            rows.append(row)
    return rows


def _optimizer(operators: Collection[OperatorRow], anatomy: Anatomy) -> str | None:
    rows = [
        row
        for row in operators
        if row.phase is Phase.OPTIMIZER and row.operator_class is not OperatorClass.COMMUNICATION
    ]
    if not rows:
        return None
    if any(_FUSED_UPDATE.search(row.operator) for row in rows) or any(
        _FUSED_UPDATE.search(row.kernel) for row in anatomy.kernels
    ):
        return "fused"
    if any(row.operator.startswith("triton") for row in rows):
        return "compiled"
    return "foreach" if any("_foreach_" in row.operator for row in rows) else "loop"


def _trains(anatomy: Anatomy) -> bool:
    flagged = (
        row.signature.record.get(index)
        for row in anatomy.operators
        if (index := _TRAINING_FLAG.get(row.operator)) is not None
    )
    return any(flag is True for flag in flagged) or any(_TRAINING_KERNELS.search(row.kernel) for row in anatomy.kernels)
