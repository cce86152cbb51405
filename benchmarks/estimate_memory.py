"""Published memory of training steps on one GPU next to ours -> the second table of docs/estimate.md.

    python benchmarks/estimate_memory.py PUBLIC.tsv

PUBLIC.tsv is the table of estimate.py. Taken are the rows that a model of the catalog and options describe; of those
left out the model, the quantized weights or the optimizer is not expressed so. What rows do not say is assumed here:
adapters of rank 8, texts of 1304 tokens (the longest of Alpaca) or 64 (PEFT's script), batches of 2 and 8. Rows that
cannot be followed are named: 8-bit optimizers need their packages.
"""

from __future__ import annotations

import argparse
import csv
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from estimate import write_table

from opanatomy.options import RunOptions
from opanatomy.predict.estimate import sheet_limit
from opanatomy.predict.fit import gpu_of, occupied_of
from opanatomy.predict.workers import simulate_in_process
from opanatomy.records.estimate import Fits

EAGER, COMPILED, UNSAID = "eager, described", "compiled, taken as eager", "length not said, assumed"
OOM = "out of memory"
UNITS = {"GB": 1e9, "GiB": 2**30}
GPUS = {
    "A100 SXM4 40GB": "A100 SXM4 40 GB",
    "A100 80GB": "A100 SXM4 80 GB",
    "A100": "A100 SXM4 80 GB",
    "RTX 4070 Ti SUPER 16GB": "GeForce RTX 4070 Ti SUPER",
}
_LLAMA_2 = {"vocab_size": 32000, "max_position_embeddings": 4096}
LLAMA_2 = {
    "7": {"hidden_size": 4096, "intermediate_size": 11008, "num_key_value_heads": 32, **_LLAMA_2},
    "13": {
        "hidden_size": 5120,
        "intermediate_size": 13824,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "num_key_value_heads": 40,
        **_LLAMA_2,
    },
}
LLAMA_32_3B = {
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 28,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": "true",
}
VIT_H = {
    "hidden_size": 1280,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "intermediate_size": 5120,
    "patch_size": 14,
    "num_labels": 45,
}
_T5 = {"num_layers": 24, "num_decoder_layers": 24, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": "false"}
T5 = {
    "bigscience/T0_3B": {"d_model": 2048, "d_ff": 5120, "d_kv": 64, "num_heads": 32, **_T5},
    "bigscience/mt0-xxl": {"d_model": 4096, "d_ff": 10240, "d_kv": 64, "num_heads": 64, "vocab_size": 250112, **_T5},
}
#: How torchao's notes begin -> the optimizer.
OPTIMIZERS = {"AdamW": "adamw", "bnb 8-bit": "adamw8bit", "ao 8-bit": "adamw8bit-torchao"}
#: The steps of torchtune's table that options express, each with those before it.
TORCHTUNE = ("+ packed dataset", "+ compile", "+ chunked cross entropy", "+ activation checkpointing")


class Row(NamedTuple):
    """A row of the table: its kind, the step, and what the published figure is where the row does not say it."""

    kind: str
    fields: dict[str, str]
    options: RunOptions
    measure: str = "allocated"
    unit: str = "GB"


def step_of(model: str, settings: dict[str, Any], **more: Any) -> RunOptions:
    """Return the options of a step of a model of the catalog with these settings."""
    return RunOptions(model=model, settings=tuple((name, str(value)) for name, value in settings.items()), **more)


def llama(settings: dict[str, Any], **more: Any) -> RunOptions:
    """Return the options of a step of a Llama in bfloat16."""
    return step_of("meta-llama/Llama-3.1-8B", settings, dtype="bfloat16", **more)


def described(rows: list[dict[str, str]]) -> Iterator[Row]:
    """Yield the rows with memory on one GPU whose step is described, in the order of the table."""
    for row in rows:
        source, model, note = row["source"], row["model"], row["note"]
        if row["gpus"] != "1" or row["parallelism"] != "single" or not row["peak_memory_gb"]:
            continue
        again = "non-reentrant" if row["checkpointing"] == "full" else None
        optimizer = next((name for words, name in OPTIMIZERS.items() if note.startswith(words)), None)
        if "litgpt" in source:
            if not model.startswith("Llama 2 ") or row["precision"] != "bf16-true" or "with LoRA" not in note:
                continue
            # Their memory is torch's peak of allocated bytes / 1e9, and the first batch has the longest text.
            length = re.search(r"\d+", row["sequence"])
            assert length
            options = llama(
                LLAMA_2[model.split()[2]],
                batch=int(row["batch"]),
                seq=int(length[0]),
                lora=8,
                optimizer="adamw-foreach",
            )
            yield Row(OOM if row["peak_memory_gb"] == "OOM" else EAGER, row, options)
        elif "torchtune" in source:
            change = note.removeprefix("cumulative: ").partition(";")[0]
            if model != "Llama 3.2 3B" or change not in TORCHTUNE:
                continue
            length, fused = row["sequence"].split()[0], TORCHTUNE.index(change) >= 2
            options = llama(
                LLAMA_32_3B,
                batch=int(row["batch"]),
                seq=int(length),
                fused_loss=fused,
                checkpointing=again,
                optimizer="adamw",
            )
            yield Row(COMPILED if row["compile"] == "yes" else EAGER, row, options)
        elif "torchao/optim" in source and optimizer and model.startswith("ViT-H/14"):
            options = step_of(
                "google/vit-base-patch16-224", VIT_H, batch=int(row["batch"]), amp="bf16", optimizer=optimizer
            )
            yield Row(COMPILED, row, options)
        elif "torchao/optim" in source and optimizer and model == "Llama2 7B":
            # torchtune's recipe: batches of 2, checkpointing, and its unit.
            options = llama(LLAMA_2["7"], batch=2, seq=1304, checkpointing="non-reentrant", optimizer=optimizer)
            yield Row(UNSAID, row, options, unit="GiB")
        elif "peft" in source and model in T5:
            rank = 8 if note.startswith("LoRA") else None
            options = step_of("google-t5/t5-base", T5[model], batch=8, seq=64, lora=rank, optimizer="adamw-loop")
            yield Row(UNSAID, row, options)  # TorchTracemalloc reads the peak of allocated bytes


def published(row: Row) -> tuple[float | None, str]:
    """Return the published bytes, `None` if they were too many, and what they are."""
    text = row.fields["peak_memory_gb"]
    number = re.match(r"[\d.]+", text)
    measure = next((word for word in ("allocated", "active", "reserved") if word in text), row.measure)
    return (float(number[0]) * UNITS["GiB" if "GiB" in text else row.unit] if number else None), measure


def main(public: Path) -> None:
    """Estimate the memory of each row, print it, and write the table of the page."""
    with public.open(newline="") as file:
        rows = list(described(list(csv.DictReader(file, delimiter="\t"))))
    ratios: dict[str, list[float]] = {EAGER: [], COMPILED: [], UNSAID: []}
    measures: dict[str, Counter[str]] = {kind: Counter() for kind in ratios}
    refused: list[bool] = []
    for row in rows:
        limit = sheet_limit(GPUS[row.fields["gpu"]])
        step = next(simulate_in_process([row.options], "none", gpu=gpu_of(limit))).step
        name = f"{row.kind:26} {row.fields['model'].partition(' (')[0]:20} {row.fields['note'].partition(';')[0]:44.44}"
        if isinstance(step, str):
            print(f"{name} left out: {step}", file=sys.stderr)
            continue
        made, (bytes_, measure) = occupied_of(step, limit), published(row)
        ours = {"reserved": made.reserved_bytes}.get(measure, made.allocated_bytes)
        if bytes_ is None:
            refused.append(made.fits is Fits.DOES_NOT_FIT)
        else:
            ratios[row.kind].append(ours / bytes_)
            measures[row.kind][measure] += 1
        print(
            f"{name} {'OOM' if bytes_ is None else f'{bytes_ / 1e9:.2f} GB {measure}':20}"
            f" allocated {made.allocated_bytes / 1e9:6.2f} reserved {made.reserved_bytes / 1e9:6.2f}"
            f" takes {made.low_bytes / 1e9:.2f} to {made.high_bytes / 1e9:.2f}"
            f"  {'' if bytes_ is None else f'{ours / bytes_:.3f}'}  {made.fits.value}",
            flush=True,
        )
    lines = ["| kind of row | rows | within 5 % | median off | what is published |", "|---|--:|--:|--:|---|"]
    for kind, each in ratios.items():
        if each:
            offs = [abs(ratio - 1) for ratio in each]
            said = ", ".join(f"{count} {measure}" for measure, count in measures[kind].items())
            lines.append(
                f"| {kind} | {len(each)} | {sum(off <= 0.05 for off in offs)}"
                f" | {100 * statistics.median(offs):.1f} % | {said} |"
            )
    lines.append(f"| {OOM} | {len(refused)} | | | {sum(refused)} of {len(refused)} do not fit by ours |")
    table = "\n".join(lines)
    print(table)
    write_table("memory", table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("public", type=Path, metavar="PUBLIC.tsv")
    main(**vars(parser.parse_args()))
