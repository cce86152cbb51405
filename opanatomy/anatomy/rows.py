"""Calls and device work, grouped into the rows of the report; every sum is exact."""

from __future__ import annotations

import polars as pl

from opanatomy.model import ClassRow, KernelRow, ModuleRow, OperatorClass, OperatorRow, Phase

#: One row a call: an operator call with work of its own, or device work without an operator (`operator` null).
CALL_COLUMNS = {
    "operator": pl.String, "signature": pl.String, "phase": pl.String, "module": pl.String,
    "operator_class": pl.String, "rule": pl.String, "time_ns": pl.Int64, "kernels": pl.Int64, "costed": pl.Boolean,
    "flops": pl.Int64, "read_bytes": pl.Int64, "written_bytes": pl.Int64, "causal_flops": pl.Int64,
    "normalization_flops": pl.Int64, "inner": pl.Boolean, "part_of": pl.String,
}  # fmt: skip

#: One row a piece of device work in the window; `operator_class` is that of its call, `kernel_class` by name alone.
WORK_COLUMNS = {
    "kernel": pl.String, "start_ns": pl.Int64, "duration_ns": pl.Int64, "operator": pl.String, "phase": pl.String,
    "operator_class": pl.String, "kernel_class": pl.String, "kernel_rule": pl.String, "kind": pl.Int64,
}  # fmt: skip

COSTS = ("flops", "read_bytes", "written_bytes", "causal_flops", "normalization_flops")
_CLASS_ORDER = {str(name): index for index, name in enumerate(OperatorClass)}
_PHASE_ORDER = {str(name): index for index, name in enumerate(Phase)}


def _known_sum(column: str) -> pl.Expr:
    """The sum of the known values; null where none is known."""
    return pl.when(pl.col(column).is_not_null().any()).then(pl.col(column).sum()).alias(column)


def _sums(calls: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    return calls.group_by(keys, maintain_order=True).agg(
        pl.len().alias("rows"),
        pl.col("kernels").sum(),
        pl.col("time_ns").sum(),
        (~pl.col("inner")).sum().alias("calls"),
        pl.col("time_ns").filter(~pl.col("costed")).sum().alias("uncosted_ns"),
        *[_known_sum(name) for name in COSTS],
    )


def class_rows(calls: pl.DataFrame) -> tuple[ClassRow, ...]:
    """One row a class and phase, in the order of the enumerations."""
    found = [
        ClassRow(
            operator_class=OperatorClass(row["operator_class"]), phase=Phase(row["phase"]), calls=row["calls"],
            kernels=row["kernels"], time_ns=row["time_ns"], flops=row["flops"], read_bytes=row["read_bytes"],
            written_bytes=row["written_bytes"], uncosted_ns=row["uncosted_ns"],
        )
        for row in _sums(calls, ["operator_class", "phase"]).iter_rows(named=True)
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda row: (_CLASS_ORDER[row.operator_class], _PHASE_ORDER[row.phase])))


def operator_rows(calls: pl.DataFrame) -> tuple[OperatorRow, ...]:
    """One row an operator, signature and phase, the longest first; work without an operator has none."""
    keys = ["operator", "signature", "phase", "operator_class", "rule", "part_of"]
    sums = _sums(calls.filter(pl.col("operator").is_not_null()), keys)
    found = [
        OperatorRow(
            operator=row["operator"], signature=row["signature"], phase=Phase(row["phase"]),
            operator_class=OperatorClass(row["operator_class"]), rule=row["rule"], calls=row["rows"],
            time_ns=row["time_ns"], flops=row["flops"], read_bytes=row["read_bytes"],
            written_bytes=row["written_bytes"], causal_flops=row["causal_flops"],
            normalization_flops=row["normalization_flops"], part_of=row["part_of"],
        )
        for row in sums.iter_rows(named=True)
    ]  # fmt: skip
    return tuple(
        sorted(
            found, key=lambda row: (-row.time_ns, row.operator, row.signature, row.phase, row.rule, row.part_of or "")
        )
    )


def module_rows(calls: pl.DataFrame, kinds: dict[str, str]) -> tuple[ModuleRow, ...]:
    """One row a module, phase and class, in the order of the model; work outside every known module is left out."""
    order = {path: index for index, path in enumerate(kinds)}
    sums = _sums(calls.filter(pl.col("module").is_not_null()), ["module", "phase", "operator_class"])
    found = [
        ModuleRow(
            module=row["module"], kind=kinds.get(row["module"]), phase=Phase(row["phase"]),
            operator_class=OperatorClass(row["operator_class"]), time_ns=row["time_ns"], flops=row["flops"],
            read_bytes=row["read_bytes"], written_bytes=row["written_bytes"],
        )
        for row in sums.iter_rows(named=True)
    ]  # fmt: skip
    return tuple(
        sorted(
            found,
            key=lambda row: (
                order.get(row.module, len(order)),
                row.module,
                _PHASE_ORDER[row.phase],
                _CLASS_ORDER[row.operator_class],
            ),
        )
    )


def kernel_rows(work: pl.DataFrame) -> tuple[KernelRow, ...]:
    """One row a kernel name, the longest first, with its class by name alone."""
    sums = work.group_by("kernel", "kernel_class", "kernel_rule").agg(
        pl.len().alias("count"),
        pl.col("duration_ns").sum().alias("time_ns"),
        pl.col("operator").drop_nulls().unique().sort().alias("operators"),
    )
    found = [
        KernelRow(
            kernel=row["kernel"], operator_class=OperatorClass(row["kernel_class"]), rule=row["kernel_rule"],
            count=row["count"], time_ns=row["time_ns"], operators=tuple(row["operators"]),
        )
        for row in sums.iter_rows(named=True)
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda row: (-row.time_ns, row.kernel)))
