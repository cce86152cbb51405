"""Runs training steps of twelve configurations and writes their memory and time, to hold predictions to.

    python benchmarks/estimate_runs.py OUT.json [NAME ...] [--device cpu]

Each configuration runs in a process of its own, so that allocator and context are fresh; the processes import and
build their models ahead and use the device one after the other. OUT.json is written after each. Memory is that of
three steps after three others: allocated and reserved by the allocator, and occupied, what NVML counts as used on the
whole device less what was used before the process touched it. Times are of single steps, each followed by a
synchronization. `--device cpu` runs tiny sizes without memory, to try the script.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import select
import statistics
import subprocess
import sys
import time
import traceback
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

WARM_STEPS, MEMORY_STEPS, TIMED_STEPS = 3, 3, 5
#: Seconds until a process has built its model, and from then on until it has ended.
PREPARE_SECONDS, RUN_SECONDS = 60, 15
#: Name -> the model, and what the run changes: `amp` is autocast, `weights` a data type for all parameters.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert_large_float32": ("bert_large", {}),
    "bert_large_amp": ("bert_large", {"amp": True}),
    "bert_large_amp_checkpointing": ("bert_large", {"amp": True, "checkpointing": True}),
    "gpt2_medium_float32": ("gpt2_medium", {}),
    "gpt2_medium_amp": ("gpt2_medium", {"amp": True}),
    "gpt2_medium_amp_checkpointing": ("gpt2_medium", {"amp": True, "checkpointing": True}),
    "llama_1b_bfloat16": ("llama_1b", {"weights": "bfloat16"}),
    "llama_1b_amp": ("llama_1b", {"amp": True}),
    "llama_1b_bfloat16_checkpointing": ("llama_1b", {"weights": "bfloat16", "checkpointing": True}),
    "resnet50_float32": ("resnet50", {}),
    "resnet50_amp": ("resnet50", {"amp": True}),
    "resnet50_amp_channels_last": ("resnet50", {"amp": True, "channels_last": True}),
}


def build(model: str, tiny: bool) -> tuple[Any, dict[str, Any]]:
    """Return a module with random weights and its inputs, on the CPU."""
    import torch
    import transformers

    torch.manual_seed(0)
    if model == "resnet50":
        # The defaults are ResNet-50's.
        small = {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]} if tiny else {}
        module = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000, **small))
        batch, side = (2, 64) if tiny else (64, 224)
        labels = torch.randint(0, 1000, (batch,))
        return module, {"pixel_values": torch.randn(batch, 3, side, side), "labels": labels}
    if model == "bert_large":
        sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
        small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        module = transformers.BertForMaskedLM(transformers.BertConfig(**(small if tiny else sizes)))
        batch, length = 8, 512
    elif model == "gpt2_medium":
        sizes = {"n_embd": 1024, "n_layer": 24, "n_head": 16}
        small = {"n_embd": 32, "n_layer": 2, "n_head": 2}
        module = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False, **(small if tiny else sizes)))
        batch, length = 8, 1024
    else:
        sizes = {
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 22,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "vocab_size": 32_000,
        }
        small = {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "vocab_size": 1_000,
        }
        settings = transformers.LlamaConfig(use_cache=False, **(small if tiny else sizes))
        module = transformers.LlamaForCausalLM(settings)
        batch, length = 2, 2048
    if tiny:
        batch, length = 2, 16
    tokens = torch.randint(0, module.config.vocab_size, (batch, length))
    return module, {"input_ids": tokens, "labels": tokens.clone()}


def used_bytes() -> dict[str, Any]:
    """Return the memory in use on the whole device and by this process, by NVML; `None` where it does not say."""
    used: dict[str, Any] = {"device": None, "process": None}
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        used["device"] = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
        for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if one.pid == os.getpid() and one.usedGpuMemory is not None:
                used["process"] = int(one.usedGpuMemory)
    except Exception:  # no NVML, or a machine that does not let it answer
        return used
    return used


def run(name: str, device: str) -> dict[str, Any]:
    """Build the model, wait for a line on standard input, run the steps; return the figures."""
    import torch
    import transformers

    model, settings = RUNS[name]
    cuda = device == "cuda"
    torch.set_num_threads(1)  # several processes build their models at once
    module, inputs = build(model, tiny=not cuda)
    sizes = {key: list(value.shape) for key, value in inputs.items()}
    facts: dict[str, Any] = {
        "model": type(module).__name__, "config": module.config.to_diff_dict(), "settings": settings, "inputs": sizes,
        "parameters": sum(one.numel() for one in module.parameters()),
        "buffer_bytes": sum(one.nbytes for one in module.buffers()),
        "attention": getattr(module.config, "_attn_implementation", None), "optimizer": "AdamW(fused=True)",
        "mode": "train", "zero_grad_set_to_none": True, "steps_before": WARM_STEPS, "steps": MEMORY_STEPS,
        "torch": torch.__version__, "transformers": transformers.__version__, "python": platform.python_version(),
        "cuda": torch.version.cuda, "matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_tf32": torch.backends.cudnn.allow_tf32, "allocator": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
    }  # fmt: skip
    if settings.get("checkpointing"):
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if "weights" in settings:
        module.to(getattr(torch, settings["weights"]))
    module.train()
    print("ready", flush=True)
    if not sys.stdin.readline():
        raise SystemExit("nobody asked for the run")

    before = used_bytes()
    if settings.get("channels_last"):
        module.to(memory_format=torch.channels_last)
        inputs["pixel_values"] = inputs["pixel_values"].to(memory_format=torch.channels_last)
    module.to(device)
    inputs = {key: value.to(device) for key, value in inputs.items()}
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        cast: AbstractContextManager[object] = (
            torch.autocast(device, torch.bfloat16) if settings.get("amp") else nullcontext()
        )
        with cast:
            loss = module(**inputs).loss
        loss.backward()
        optimizer.step()

    for _ in range(WARM_STEPS):
        step()
    if cuda:
        torch.cuda.synchronize()
        facts["device"] = torch.cuda.get_device_name()
        facts["from_start"] = {
            "max_allocated_bytes": torch.cuda.max_memory_allocated(),
            "max_reserved_bytes": torch.cuda.max_memory_reserved(),
        }
        torch.cuda.reset_peak_memory_stats()
    for _ in range(MEMORY_STEPS):
        step()
    if cuda:
        torch.cuda.synchronize()
        after = used_bytes()
        free, total = torch.cuda.mem_get_info()
        stats = torch.cuda.memory_stats()
        facts |= {
            "max_allocated_bytes": torch.cuda.max_memory_allocated(),
            "max_reserved_bytes": torch.cuda.max_memory_reserved(),
            "max_requested_bytes": stats["requested_bytes.all.peak"],
            "allocated_bytes": torch.cuda.memory_allocated(),
            "reserved_bytes": torch.cuda.memory_reserved(),
            "alloc_retries": stats["num_alloc_retries"],
            "nvml_used_before_bytes": before["device"],
            "nvml_used_bytes": after["device"],
            "nvml_process_bytes": after["process"],
            "driver_used_bytes": total - free,
            "device_bytes": total,
        }
        known = before["device"] is not None and after["device"] is not None
        facts["occupied_bytes"] = after["device"] - before["device"] if known else None
    times = []
    for _ in range(TIMED_STEPS):
        begun = time.perf_counter_ns()
        step()
        if cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter_ns() - begun)
    return facts | {"step_ns": statistics.median(times), "steps_ns": times}


def start(name: str, device: str) -> subprocess.Popen[str]:
    """Start the process of one configuration; it waits when its model is built."""
    command = [sys.executable, __file__, "--one", name, "--device", device]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Let the process run, and return its figures or its error."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], PREPARE_SECONDS)[0]:
        process.kill()
        return {"error": f"not ready after {PREPARE_SECONDS} s", "said": process.communicate()[1][-2000:]}
    ready = process.stdout.readline().strip() == "ready"
    try:
        said, errors = process.communicate("go\n" if ready else None, timeout=RUN_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return {"error": f"not done after {RUN_SECONDS} s", "said": process.communicate()[1][-2000:]}
    if process.returncode or not said.strip():
        return {"error": f"exit {process.returncode}", "said": errors[-2000:]}
    facts: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    return facts


def main() -> None:
    """Run the configurations in turn; with `--one`, this process is one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", metavar="OUT.json")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(RUNS)}")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument(
        "--ahead", type=int, default=os.cpu_count(), metavar="N", help="processes that build their models ahead"
    )
    arguments = parser.parse_intermixed_args()
    if arguments.one:
        print(json.dumps(run(arguments.one, arguments.device), default=str))
        return
    if arguments.out is None:
        parser.error("name the file to write")
    names = arguments.names or list(RUNS)
    waiting = {name: start(name, arguments.device) for name in names[: arguments.ahead]}
    results: dict[str, Any] = {}
    for index, name in enumerate(names):
        begun = time.perf_counter()
        try:
            results[name] = result(waiting.pop(name))
        except Exception:
            results[name] = {"error": traceback.format_exc()}
        for upcoming in names[index + 1 : index + 1 + arguments.ahead]:
            if upcoming not in waiting:
                waiting[upcoming] = start(upcoming, arguments.device)
        written = arguments.out.with_suffix(".tmp")
        written.write_text(json.dumps(results, indent=1) + "\n")
        written.replace(arguments.out)
        row = results[name]
        words = (
            f"FAILED: {row['error']}: {(row.get('said') or '').strip().splitlines()[-1:]}"
            if "error" in row
            else f"{row['step_ns'] / 1e6:.1f} ms, allocated {row.get('max_allocated_bytes')},"
            f" reserved {row.get('max_reserved_bytes')}, occupied {row.get('occupied_bytes')}"
        )
        print(f"{name}: {words} ({time.perf_counter() - begun:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
