"""Published training runs next to their estimates -> the table of docs/estimate.md, and errors.json of the package.

    python benchmarks/estimate.py PUBLIC.tsv FOUNDRY.tsv

The tables have a row for each run of other projects (source, model, gpu, batch, sequence, precision, attention,
compile, checkpointing, tokens a second and GPU, peak memory, step); FOUNDRY.tsv is that of mosaicml/llm-foundry, on
which the efficiencies were fitted. Of runs on several GPUs it is one GPU's part of the step: data parallel, sharded
over at most 16. Beside our estimate stand two rules of thumb: 6 FLOPs a parameter and token at the sheet's peak of the
data type, and at half of it. Run it again when the model of a call's time changes.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from opanatomy.devices.match import ceilings_of
from opanatomy.devices.sheets import SHEETS
from opanatomy.options import RunOptions
from opanatomy.predict.estimate import estimated_on, link_of, sheet_limit
from opanatomy.predict.fit import gpu_of
from opanatomy.predict.workers import simulate_in_process
from opanatomy.records.estimate import DeviceEstimate, Fits
from opanatomy.records.workload import Workload

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "estimate.md"
ERRORS = ROOT / "opanatomy" / "predict" / "errors.json"
#: The kinds of the table -> those of errors.json; the runs of the fit are in none.
JUDGED = {
    "dense decoder, 8 and 16 GPUs": "dense decoder",
    "dense decoder, own fused kernels": "dense decoder",
    "dense decoder, sharded and compiled": "dense decoder",
    "dense encoder, 1 GPU": "dense encoder",
    "convolutional network, 1 GPU": "convolutional network",
}
#: Width, layers and heads of MPT decoders, by the names of the table.
MPT = {
    "125m": (768, 12, 12),
    "350m": (1024, 24, 16),
    "760m": (1536, 24, 12),
    "1b": (2048, 24, 16),
    "3b": (2560, 32, 20),
    "7b": (4096, 32, 32),
}
GPT3 = {
    "125M": (768, 12, 12),
    "355M": (1024, 24, 16),
    "760M": (1536, 24, 16),
    "1.3B": (2048, 24, 16),
    "2.7B": (2560, 32, 32),
}
GPUS = {
    "Quadro RTX 8000": "Quadro RTX 8000", "1x V100 16GB": "V100 SXM2 16 GB", "RTX 3090": "GeForce RTX 3090",
    "1x A10": "A10", "1x A100 40GB PCIe": "A100 PCIe 40 GB", "A100 80GB PCIe": "A100 PCIe 80 GB",
    "A100 80GB SXM4": "A100 SXM4 80 GB", "RTX 6000 Ada": "RTX 6000 Ada Generation", "RTX A6000": "RTX A6000",
    "RTX 4090": "GeForce RTX 4090", "1x H100 80GB PCIe": "H100 PCIe", "1x H100 80GB SXM5": "H100 SXM",
    "1x GH200 96GB": "GH200 96 GB", "1x B200 192GB SXM5": "B200", "A100 80GB": "A100 SXM4 80 GB",
    "V100 32GB (DGX-1)": "V100 SXM2 32 GB", "A100 SXM4 80GB": "A100 SXM4 80 GB", "A100 40GB": "A100 SXM4 40 GB",
    "A100 SXM4 80GB 400W": "A100 SXM4 80 GB", "A100 SXM4 80GB, 4 x 100 Gb RoCE": "A100 SXM4 80 GB",
    "a100_80gb": "A100 SXM4 80 GB", "a100_40gb": "A100 SXM4 40 GB", "h100_80gb": "H100 SXM",
}  # fmt: skip


class Run(NamedTuple):
    """A published run: its kind, the step to estimate, the device, the time of the step, whether it must fit.

    Of `ranks` devices that train together over a `link`, where their collectives are estimated too.
    """

    kind: str
    options: RunOptions
    device: str
    step_ns: float
    fits: bool = False
    ranks: int = 1
    link: str | None = None


class Result(NamedTuple):
    """An estimate next to the run: shares of the published time, whether range and memory (if checked) held."""

    ratio: float
    inside: bool
    fits: bool | None
    #: By 6 FLOPs a parameter and token at the sheet's peak; `None` without tokens.
    at_peak: float | None


def decoder(
    width: int, layers: int, heads: int, *, batch: int, length: int, vocabulary: int, **more: object
) -> RunOptions:
    """Return a decoder of GPT-2's kind without dropout."""
    settings = {
        "n_layer": layers, "n_embd": width, "n_head": heads, "n_positions": length, "vocab_size": vocabulary,
        "activation_function": "gelu", "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
    }  # fmt: skip
    pairs = tuple((name, str(value)) for name, value in settings.items())
    return RunOptions(
        model="openai-community/gpt2",
        batch=batch,
        seq=length,
        settings=pairs,
        optimizer="adamw",
        **more,  # type: ignore[arg-type]
    )


def of_foundry(rows: list[dict[str, str]]) -> Iterator[Run]:
    """Yield the runs on one machine of 8 GPUs, in bfloat16, of three lengths: those of the fit."""
    for row in rows:
        length, batch = int(row["SeqLen (T)"]), int(row["MicroBatchSize"])
        if (
            row["# GPUs"] != "8"
            or row["Model"] not in MPT
            or "fp8" in row["Precision"]
            or length not in (512, 2048, 8192)
        ):
            continue
        again = "non-reentrant" if row["Activation Checkpointing"] == "True" else None
        options = decoder(
            *MPT[row["Model"]], batch=batch, length=length, vocabulary=50368, dtype="bfloat16", checkpointing=again
        )
        yield Run(
            "fitted: MPT decoders, 8 GPUs",
            options,
            GPUS[row["GPU"]],
            batch * length * 1e9 / float(row["Throughput (T/s/GPU)"]),
        )


def of_public(rows: list[dict[str, str]]) -> Iterator[Run]:
    """Yield the runs whose step is described, by source."""
    for row in rows:
        source, few = row["source"], int(row["gpus"] or 0) <= 16
        step = float(row["step_s"] or 0) * 1e9
        if "lambdal" in source or ("DeepLearningExamples" in source and "SQuAD" in row["model"] and row["gpus"] == "1"):
            if "TF32" in row["precision"]:
                continue
            batch, alone = int(row["batch"]), "lambdal" in source
            if "ResNet" in row["model"]:
                options = RunOptions(model="microsoft/resnet-50", batch=batch, amp="fp16", optimizer="adamw")
                yield Run("convolutional network, 1 GPU", options, GPUS[row["gpu"]], step, fits=True)
                continue
            size = "large" if "large" in row["model"] else "base"
            options = RunOptions(
                model=f"google-bert/bert-{size}-uncased",
                batch=batch,
                seq=384,
                task="token-classification",
                attention="eager",
                dtype="float32" if row["precision"] == "FP32" else "float16",
                optimizer="adamw",
            )
            yield Run("dense encoder, 1 GPU", options, GPUS[row["gpu"]], step, fits=alone)
        elif "InternEvo" in source and few and row["parallelism"] in ("tp1 zero1=8", "(tp=1, zero1=8)"):
            batch = 8 if row["checkpointing"] == "full" else 2
            settings = {
                "num_key_value_heads": 32,
                "intermediate_size": 11008,
                "vocab_size": 103168,
                "max_position_embeddings": 2048,
            }
            options = RunOptions(
                model="meta-llama/Llama-3.1-8B",
                batch=batch,
                seq=2048,
                dtype="bfloat16",
                optimizer="adamw",
                settings=tuple((name, str(value)) for name, value in settings.items()),
                checkpointing="non-reentrant" if row["checkpointing"] == "full" else None,
            )
            yield Run(
                "dense decoder, 8 and 16 GPUs",
                options,
                GPUS[row["gpu"]],
                batch * 2048 * 1e9 / float(row["tokens_per_s_per_gpu"]),
            )
        elif "flash-attention" in source:
            sizes = GPT3[row["model"].removeprefix("GPT3-")]
            options = decoder(*sizes, batch=8, length=2048, vocabulary=50304, dtype="bfloat16")
            yield Run(
                "dense decoder, own fused kernels",
                options,
                GPUS[row["gpu"]],
                8 * 2048 * 1e9 / float(row["tokens_per_s_per_gpu"]),
            )
        elif "nanoGPT" in source and row["compile"] == "no":  # which attention it had is not said
            options = decoder(768, 12, 12, batch=12, length=1024, vocabulary=50304, amp="bf16")
            yield Run("dense decoder, 8 and 16 GPUs", options, GPUS[row["gpu"]], step)


#: Layers, width, heads, heads of keys, and inner width of Llamas, by their names in the table.
LLAMAS = {
    "Llama2 7b": (32, 4096, 32, 32, 11008),
    "Llama2 13b": (40, 5120, 40, 40, 13824),
    "Llama2 34b": (48, 8192, 64, 8, 22016),
    "Llama2 70b": (80, 8192, 64, 8, 28672),
    "TinyLlama": (22, 2048, 32, 4, 5632),
}


def of_llamas(rows: list[dict[str, str]]) -> Iterator[Run]:
    """Yield compiled and sharded Llamas.

    How many layers they recompute follows from the published HFU over MFU. Hybrid sharding is taken as sharding inside
    a machine of 8, other sharding as over all GPUs and a machine's links.
    """
    for row in rows:
        name = "TinyLlama" if "TinyLlama" in row["source"] else row["model"]
        if name not in LLAMAS or "litgpt" in row["source"]:
            continue
        layers, width, heads, keys, inner = LLAMAS[name]
        ranks = 8 if row["parallelism"] == "HSDP" else int(row["gpus"])
        link = re.search(r"(\d+) Gb/s", row["gpu"])
        batch, length = 16 if name == "TinyLlama" else int(row["batch"]), int(row["sequence"])
        shares = [float(share) for share in re.findall(r"\.\d+", row["mfu"])]
        again = round(3 * layers * (shares[1] / shares[0] - 1)) if len(shares) > 1 else 0
        settings = {
            "num_hidden_layers": layers,
            "hidden_size": width,
            "num_attention_heads": heads,
            "head_dim": width // heads,
            "num_key_value_heads": keys,
            "intermediate_size": inner,
            "vocab_size": 32000,
        }
        options = RunOptions(
            model="meta-llama/Llama-3.1-8B",
            batch=batch,
            seq=length,
            dtype="bfloat16",
            optimizer="adamw",
            compile=True,
            settings=tuple((key, str(value)) for key, value in settings.items()),
            parallel="fsdp2",
            checkpoint_layers=min(again, layers) or None,
        )
        yield Run(
            "dense decoder, sharded and compiled",
            options,
            "H100 SXM" if row["gpu"].startswith("H100") else GPUS[row["gpu"].partition(",")[0]],
            batch * length * 1e9 / float(row["tokens_per_s_per_gpu"]),
            ranks=ranks,
            link=None if ranks <= 8 else f"{int(link[1]) // 8}G" if link else "25G",
        )


def rule_ns(made: DeviceEstimate, workload: Workload) -> float | None:
    """Return the time of 6 FLOPs a parameter and token at the sheet's peak of the data type; `None` without tokens."""
    sheet = next(sheet for sheet in SHEETS if sheet.device == made.device)
    peak = ceilings_of(sheet).matrix_peak(made.mfu_dtype)
    if not peak or not workload.parameters or not workload.sequence_length:
        return None
    return 6e9 * workload.parameters * (workload.batch or 1) * workload.sequence_length / peak


def median_off(ratios: list[float]) -> float:
    """Return the median distance of ratios from 1."""
    return statistics.median(abs(ratio - 1) for ratio in ratios)


def table_of(found: dict[str, list[Result]]) -> str:
    """Return the table of the page."""
    lines = [
        "| kind of run | runs | inside | median off | as is / published | fit where they ran | 6N over the peak"
        " | 6N over half of the peak |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for kind, each in found.items():
        ratios = sorted(result.ratio for result in each)
        ruled = [result.at_peak for result in each if result.at_peak is not None]
        fits = [result.fits for result in each if result.fits is not None]
        rules = [f"{100 * median_off([times * ratio for ratio in ruled]):.0f} %" if ruled else "" for times in (1, 2)]
        lines.append(
            f"| {kind} | {len(each)} | {sum(result.inside for result in each)} | {100 * median_off(ratios):.0f} %"
            f" | {ratios[0]:.2f} to {ratios[-1]:.2f} | {f'{sum(fits)} of {len(fits)}' if fits else ''}"
            f" | {rules[0]} | {rules[1]} |"
        )
    return "\n".join(lines)


def errors_of(found: dict[str, list[Result]]) -> list[dict[str, str | int | float]]:
    """Return the errors of the judged runs by kind."""
    judged: dict[str, list[Result]] = {}
    for kind, each in found.items():
        if kind in JUDGED:
            judged.setdefault(JUDGED[kind], []).extend(each)
    return [
        {
            "kind": kind,
            "runs": len(each),
            "inside": sum(result.inside for result in each),
            "median_off": round(median_off([result.ratio for result in each]), 3),
        }
        for kind, each in sorted(judged.items())
    ]


def write_table(name: str, table: str) -> None:
    """Write the table between the page's markers of this name."""
    before, after = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    text, count = re.subn(f"(?s){before}.*?{after}", lambda _: f"{before}{table}\n{after}", PAGE.read_text())
    if not count:
        print(f"{PAGE.name} has no {before.strip()}: nothing is written", file=sys.stderr)
        return
    PAGE.write_text(text)


def main(public: Path, foundry: Path) -> None:
    """Estimate each run, print it, and write the table of the page and the errors of the package."""
    runs: list[Run] = []
    for path, made_of in ((foundry, of_foundry), (public, of_public), (public, of_llamas)):
        with path.open(newline="") as file:
            runs += made_of(list(csv.DictReader(file, delimiter="\t")))
    found: dict[str, list[Result]] = {}
    for run in runs:
        limit = sheet_limit(run.device)
        gpu = replace(gpu_of(limit), ranks=run.ranks)
        step = next(simulate_in_process([replace(run.options, compile=False)], gpu=gpu)).step
        if isinstance(step, str):
            print(f"{run.kind}: {step}", file=sys.stderr)
            continue
        link = link_of(run.link, limit) if run.ranks > 1 else None
        made = estimated_on(step, limit, link=link, compiled=run.options.compile)
        ruled = rule_ns(made, step.workload)
        result = Result(
            made.as_is_ns / run.step_ns,
            made.low_ns <= run.step_ns <= made.high_ns,
            made.occupied.fits is not Fits.DOES_NOT_FIT if run.fits else None,
            None if ruled is None else ruled / run.step_ns,
        )
        found.setdefault(run.kind, []).append(result)
        print(
            f"{run.kind:34} {run.device:20} {run.options.model:34} {run.step_ns / 1e6:8.0f} ms"
            f"  {made.low_ns / 1e6:8.0f} to {made.high_ns / 1e6:8.0f}  {'in' if result.inside else 'OUT'}"
            f"  {made.occupied.fits.value}{'' if ruled is None else f'  6N at the peak {ruled / 1e6:.0f}'}",
            flush=True,
        )
    table = table_of(found)
    print(table)
    write_table("errors", table)
    ERRORS.write_text(json.dumps(errors_of(found), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("public", type=Path, metavar="PUBLIC.tsv")
    parser.add_argument("foundry", type=Path, metavar="FOUNDRY.tsv")
    main(**vars(parser.parse_args()))
