"""Records small traces of torch.profiler on a device: `python -m tests.traces.record FOLDER [NAME ...]`.

Each is an input that is easily misread: work left on the CPU beside an idle GPU, attention under a window that its
shapes do not show, kernels inside a CUDA graph, copies over the link. `NAME.json.gz` is the trace, `recordings.json`
says what each run was; it is written after each. `--device cpu` tries the script with tiny sizes and without what needs
CUDA.
"""

from __future__ import annotations

import argparse
import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, schedule

#: What a step runs, and what the trace alone does not say of it.
Recording = tuple[Callable[[], object], dict[str, Any]]
STEPS = 2


def on_cpu(module: nn.Module, inputs: Tensor) -> Recording:
    """A training step that was never moved to the GPU."""
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        module(inputs).square().mean().backward()
        optimizer.step()

    return step, {"device": "cpu", "inputs": list(inputs.shape)}


def convolutions() -> Recording:
    """A small convolutional net."""
    layers = [nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()]
    return on_cpu(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), torch.randn(32, 3, 128, 128))


def perceptron() -> Recording:
    """Three linear layers."""
    layers = [nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)]
    return on_cpu(nn.Sequential(*layers), torch.randn(128, 1024))


class Attention(nn.Module):
    """Projections around a given attention over queries, keys and values (b, h, s, d)."""

    def __init__(self, heads: int, width: int, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.heads, self.attend = heads, attend
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, s, d = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.project(self.attend(q, k, v).transpose(1, 2).reshape(b, s, d))
        return x


def attention(device: str, kind: str) -> Recording:
    """A training step of one attention layer in bf16: causal, or causal within a window."""
    b, h, s, d, window = (2, 16, 4096, 128, 512) if device == "cuda" else (1, 2, 256, 16, 32)
    at = torch.arange(s, device=device)
    distance = at[:, None] - at[None, :]
    inside = (distance >= 0) & (distance < window)
    sdpa = nn.functional.scaled_dot_product_attention
    attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    if kind == "causal":
        inside = distance >= 0

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return sdpa(q, k, v, is_causal=True)
    elif kind == "boolean":

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return sdpa(q, k, v, attn_mask=inside)
    elif kind == "additive":
        added = torch.zeros(s, s, device=device, dtype=torch.bfloat16).masked_fill(~inside, float("-inf"))

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return sdpa(q, k, v, attn_mask=added)
    else:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        def in_window(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
            return (q >= kv) & (q - kv < window)

        mask, compiled = create_block_mask(in_window, None, None, s, s, device=device), torch.compile(flex_attention)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return compiled(q, k, v, block_mask=mask)

    module = Attention(h, h * d, attend).to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)
    x = torch.randn(b, s, h * d, device=device, dtype=torch.bfloat16)

    def step() -> None:
        optimizer.zero_grad()
        module(x).float().square().mean().backward()
        optimizer.step()

    pairs = int(inside.sum())
    window_facts = {} if kind == "causal" else {"window": window}
    return step, {"b": b, "h": h, "s": s, "d": d, "pairs_of_a_head": pairs, "mask": kind, **window_facts}


def mistral(device: str, implementation: str) -> Recording:
    """A training step of a tiny Mistral with a sliding window of 128 over 1,024 tokens."""
    import transformers

    sizes = {
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 4_000,
        "sliding_window": 128,
    }
    settings = transformers.MistralConfig(use_cache=False, attn_implementation=implementation, **sizes)
    module = transformers.MistralForCausalLM(settings).to(device, torch.bfloat16).train()
    batch, length = (2, 1024) if device == "cuda" else (1, 256)
    tokens = torch.randint(0, 4_000, (batch, length), device=device)
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        module(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()

    return step, {
        "config": sizes,
        "attention": module.config._attn_implementation,
        "inputs": [batch, length],
        "transformers": transformers.__version__,
    }


def graphed() -> Recording:
    """A training step whose device work is one CUDA graph; the input is copied into it."""
    module = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(4))).cuda()
    optimizer = torch.optim.AdamW(module.parameters(), capturable=True)
    given, x = torch.randn(256, 512).pin_memory(), torch.randn(256, 512, device="cuda")

    def work() -> None:
        module(x).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            optimizer.zero_grad(set_to_none=True)
            work()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()

    def step() -> None:
        x.copy_(given, non_blocking=True)
        graph.replay()
        torch.cuda.synchronize()

    return step, {"device_work": "one graph: forward, backward, AdamW"}


def copies(pinned: bool) -> Recording:
    """64 MB to the device, a map over it, and 64 MB back."""
    there = torch.randn(16_000_000)
    back = torch.empty_like(there)
    if pinned:
        there, back = there.pin_memory(), back.pin_memory()

    def step() -> None:
        x = there.to("cuda", non_blocking=pinned)
        back.copy_(x * 2, non_blocking=pinned)
        torch.cuda.synchronize()

    return step, {"bytes_each_way": there.nbytes, "pinned": pinned}


def cached(device: str) -> Recording:
    """Maps and normalizations over tensors that stay in the cache of the device."""
    x = torch.randn(1024, 1024, device=device)
    norm = nn.LayerNorm(1024, device=device)

    def step() -> None:
        for _ in range(20):
            norm(x + 1).softmax(-1)

    return step, {"bytes_of_tensor": x.nbytes}


def mixed_types(device: str) -> Recording:
    """Products in float32 and in bf16 in one step."""
    size = 4096 if device == "cuda" else 64
    x = torch.randn(size, size, device=device)
    y = x.bfloat16()

    def step() -> None:
        x @ x
        for _ in range(8):
            y @ y

    return step, {"size": size, "float32_products": 1, "bf16_products": 8, "matmul_tf32": False}


def recordings(device: str) -> dict[str, Callable[[], Recording]]:
    """Return what this device can record, by name; what compiles comes last."""
    made: dict[str, Callable[[], Recording]] = {
        "cpu_convolutions": convolutions,
        "cpu_perceptron": perceptron,
        "copies_pageable": lambda: copies(False),
        "copies_pinned": lambda: copies(True),
        "graphed": graphed,
        "attention_causal": lambda: attention(device, "causal"),
        "window_boolean": lambda: attention(device, "boolean"),
        "window_additive": lambda: attention(device, "additive"),
        "cached": lambda: cached(device),
        "mixed_types": lambda: mixed_types(device),
        "mistral_sdpa": lambda: mistral(device, "sdpa"),
        "mistral_eager": lambda: mistral(device, "eager"),
        "window_flex": lambda: attention(device, "flex"),
    }
    if device == "cpu":
        for name in ("copies_pageable", "copies_pinned", "graphed"):
            del made[name]
    return made


def record(step: Callable[[], object], path: Path, device: str) -> None:
    """Write the trace of two steps, after three that are not recorded."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    step()
    with profile(
        activities=activities,
        schedule=schedule(wait=1, warmup=1, active=STEPS),
        record_shapes=True,
        on_trace_ready=lambda made: made.export_chrome_trace(str(path)),
    ) as profiler:
        for _ in range(2 + STEPS):
            step()
            profiler.step()


def main() -> None:
    """Record each in turn; one that fails is named, and the next follows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    arguments = parser.parse_intermixed_args()
    device, folder = arguments.device, arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    known = recordings(device)
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "steps": STEPS,
        "recordings": {},
    }
    for name in arguments.names or known:
        torch.manual_seed(0)
        path = folder / f"{name}.json.gz"
        try:
            step, row = known[name]()
            record(step, path, device)
            print(f"{name}: {path.stat().st_size:,} B", flush=True)
        except Exception:
            row = {"error": traceback.format_exc()}
            print(f"{name}: FAILED: {row['error'].strip().splitlines()[-1]}", flush=True)
        facts["recordings"][name] = row
        (folder / "recordings.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
