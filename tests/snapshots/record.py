"""Renews the snapshots of a device: `python -m tests.snapshots.record FOLDER [NAME ...]` writes `NAME.pickle.gz`.

Beside each, `NAME.json` holds what torch itself says of the same run: the allocator's totals, the bytes of weights,
gradients and optimizer state, those that autograd kept at the end of the forward pass. Folders are left out.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from tests.snapshots.decoder import MEDIUM, SMALL, AdamW, decoder

Facts = dict[str, Any]
STATS = frozenset({
    "requested_bytes.all.peak", "requested_bytes.all.current", "allocated_bytes.all.peak",
    "allocated_bytes.all.current", "active_bytes.all.current", "reserved_bytes.all.peak",
    "reserved_bytes.all.current", "inactive_split_bytes.all.current",
})  # fmt: skip


def now_us() -> int:
    """As the allocator's clock: microseconds since 1970."""
    return time.time_ns() // 1000


def start(**options: Any) -> None:
    """Begin to record; the peaks that torch tells are counted from here."""
    torch.cuda.init()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history(max_entries=options.pop("max_entries", 1_000_000), **options)


def finish(
    facts: Facts, module: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None
) -> Facts:
    """The snapshot and what torch says beside it."""
    torch.cuda.synchronize()
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    facts |= {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "stats": {key: value for key, value in torch.cuda.memory_stats().items() if key in STATS},
    }
    if module is not None:
        facts["weights"] = {one.data_ptr(): one.nbytes for one in module.parameters()}
        facts["buffers"] = {one.data_ptr(): one.nbytes for one in module.buffers()}
        facts["gradients"] = {
            one.grad.data_ptr(): one.grad.nbytes for one in module.parameters() if one.grad is not None
        }
    if optimizer is not None:
        facts["optimizer"] = {
            value.data_ptr(): value.nbytes
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor) and value.is_cuda
        }
    facts["snapshot"] = snapshot
    return facts


class Saved:
    """What autograd keeps: storages by their address, told by torch's own hooks."""

    def __init__(self) -> None:
        self.storages: dict[int, int] = {}

    def hooks(self) -> AbstractContextManager[None]:
        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.is_cuda:
                storage = tensor.untyped_storage()
                self.storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)


def training(
    shape: tuple[int, int, int, int] = SMALL,
    batch: int = 2,
    length: int = 128,
    steps: int = 2,
    warm: int = 0,
    amp: torch.dtype | None = None,
    own: bool = True,
    set_to_none: bool = True,
    **options: Any,
) -> Facts:
    """Steps of AdamW; the recording begins after `warm` of them (before the model is built where there are none)."""
    facts: Facts = {"began": now_us()}
    if not warm:
        start(**options)
    module, inputs = decoder(shape, batch, length)
    module, inputs = module.cuda(), tuple(one.cuda() for one in inputs)
    optimizer = AdamW(module.parameters()) if own else torch.optim.AdamW(module.parameters())
    saved = Saved()
    for step in range(warm + steps):
        if warm and step == warm:
            torch.cuda.synchronize()
            facts["allocated_before"] = torch.cuda.memory_allocated()
            start(**options)
        last = step == warm + steps - 1
        optimizer.zero_grad(set_to_none=set_to_none)
        casts = torch.autocast("cuda", amp) if amp else nullcontext()
        with casts, saved.hooks() if last else nullcontext():
            loss = module(*inputs)
        if last:
            torch.cuda.synchronize()
            facts |= {"forward_ended": now_us(), "forward_allocated": torch.cuda.memory_allocated()}
            facts["saved"] = saved.storages
        loss.backward()
        if last:
            torch.cuda.synchronize()
            facts |= {"backward_ended": now_us(), "backward_allocated": torch.cuda.memory_allocated()}
        optimizer.step()
    return finish(facts, module, optimizer)


def inference(**options: Any) -> Facts:
    facts: Facts = {"began": now_us()}
    module, (tokens, _) = decoder(SMALL, 2, 128)
    module, tokens = module.cuda(), tokens.cuda()
    start(**options)
    with torch.inference_mode():
        for _ in range(3):
            module(tokens)
    return finish(facts, module)


def graphed() -> Facts:
    """A training step replayed as a CUDA graph: its memory is in a pool of its own."""
    facts: Facts = {"began": now_us()}
    start()
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1_024, dropout=0.0, batch_first=True)
    module, values = torch.nn.TransformerEncoder(layer, 3).cuda(), torch.randn(4, 128, 256, device="cuda")
    optimizer = torch.optim.AdamW(module.parameters(), capturable=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            optimizer.zero_grad(set_to_none=True)
            module(values).mean().backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module(values).mean().backward()
        optimizer.step()
    for _ in range(3):
        graph.replay()
    facts["pool"] = str(graph.pool())
    return finish(facts, module, optimizer)


def out_of_memory(fraction: float = 0.004) -> Facts:
    """Longer and longer steps until the device (a part of it) does not hold one: its observer's dump, torch's words."""
    facts: Facts = {"began": now_us()}
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(fraction)
    facts["limit"] = int(total * fraction)
    start()
    kept: list[Any] = []

    def observer(device: int, requested: int, total: int, free: int) -> None:
        kept.append(((device, requested, total, free), torch.cuda.memory._snapshot()))

    torch._C._cuda_attach_out_of_memory_observer(observer)
    module, (tokens, targets) = decoder(SMALL, 4, 1_024)
    module, tokens, targets = module.cuda(), tokens.cuda(), targets.cuda()
    optimizer = torch.optim.AdamW(module.parameters())
    try:
        for length in range(64, 1_025, 64):
            facts["length"] = length
            optimizer.zero_grad()
            module(tokens[:, :length], targets[:, :length]).backward()
            optimizer.step()
    except torch.OutOfMemoryError as error:
        facts["error"] = str(error)
    facts["observed"] = kept[0][0] if kept else None
    found = finish(facts, module, optimizer)
    if kept:
        found["snapshot"] = kept[0][1]
    return found


def streams() -> Facts:
    """Work on two streams; a tensor of one is used on the other."""
    facts: Facts = {"began": now_us()}
    start()
    module, (tokens, targets) = decoder(SMALL, 2, 128)
    module, tokens, targets = module.cuda(), tokens.cuda(), targets.cuda()
    optimizer = torch.optim.AdamW(module.parameters())
    side = torch.cuda.Stream()
    for _ in range(2):
        optimizer.zero_grad()
        with torch.cuda.stream(side):
            ahead = torch.randn(1 << 22, device="cuda").half()
        torch.cuda.current_stream().wait_stream(side)
        ahead.record_stream(torch.cuda.current_stream())
        loss = module(tokens, targets) + 0 * ahead.float().sum()
        del ahead
        loss.backward()
        optimizer.step()
    return finish(facts, module, optimizer)


def pending_free() -> Facts:
    """Tensors let go on their own stream while another has yet to read them: `active_pending_free` at the end."""
    facts: Facts = {"began": now_us()}
    start(stacks="python")
    module, (tokens, targets) = decoder(SMALL, 2, 128)
    module, tokens, targets = module.cuda(), tokens.cuda(), targets.cuda()
    optimizer = torch.optim.AdamW(module.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        module(tokens, targets).backward()
        optimizer.step()
    side = torch.cuda.Stream()
    read = torch.zeros((), device="cuda")
    sent = [torch.randn(size, device="cuda") for size in (1_000, 300_000, 5_000_000)]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(1_000_000_000)
        for one in sent:
            read.add_(one[0])
            one.record_stream(side)
    facts["sent"] = sum(one.nbytes for one in sent)
    del sent, one
    facts = finish(facts, module, optimizer)
    blocks = (block for segment in facts["snapshot"]["segments"] for block in segment["blocks"])
    facts["pending"] = sum(block["size"] for block in blocks if block["state"] == "active_pending_free")
    return facts


def _llama(**settings: Any) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=8_000,
        **settings,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config)


def llama(checkpointing: bool = False, scaler: bool = False) -> Facts:
    """A step of transformers' Llama under autocast, as the library runs it."""
    facts: Facts = {"began": now_us()}
    start()
    module = _llama().cuda()
    if checkpointing:
        module.gradient_checkpointing_enable()
    module.train()
    tokens = torch.randint(0, 8_000, (4, 256), device="cuda")
    optimizer = torch.optim.AdamW(module.parameters())
    scale = torch.amp.GradScaler("cuda", enabled=scaler)
    saved = Saved()
    for step in range(3):
        optimizer.zero_grad()
        dtype = torch.float16 if scaler else torch.bfloat16
        with torch.autocast("cuda", dtype), saved.hooks() if step == 2 and not checkpointing else nullcontext():
            loss = module(tokens, labels=tokens).loss
        torch.cuda.synchronize()
        facts |= {"forward_ended": now_us(), "forward_allocated": torch.cuda.memory_allocated()}
        scale.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        scale.step(optimizer)
        scale.update()
    facts["saved"] = saved.storages
    return finish(facts, module, optimizer)


def generate() -> Facts:
    """Greedy generation with a cache of keys and values."""
    facts: Facts = {"began": now_us()}
    module = _llama().cuda().to(torch.bfloat16).eval()
    tokens = torch.randint(0, 8_000, (2, 32), device="cuda")
    start()
    with torch.inference_mode():
        module.generate(tokens, max_new_tokens=24, do_sample=False, pad_token_id=0)
    return finish(facts, module)


def compiled() -> Facts:
    """torch.compile over the small decoder."""
    facts: Facts = {"began": now_us()}
    start()
    module, inputs = decoder(SMALL, 2, 128)
    module, inputs = module.cuda(), tuple(one.cuda() for one in inputs)
    optimizer = torch.optim.AdamW(module.parameters())
    fast = torch.compile(module)
    for _ in range(3):
        optimizer.zero_grad()
        fast(*inputs).backward()
        optimizer.step()
    return finish(facts, module, optimizer)


EXPANDABLE = "expandable_segments:True"
#: Name -> the setting of the allocator, and what is run.
RECORDINGS: dict[str, tuple[str, Callable[[], Facts]]] = {
    "training": ("", training),
    "training_amp": ("", lambda: training(amp=torch.bfloat16, own=False)),
    "training_warm": ("", lambda: training(warm=3, steps=1)),
    "training_accumulating": ("", lambda: training(warm=2, steps=2, own=False, set_to_none=False)),
    "python_stacks": ("", lambda: training(own=False, stacks="python")),
    "no_stacks": ("", lambda: training(own=False, context=None)),
    "state_context": ("", lambda: training(own=False, context="state")),
    "no_history": ("", lambda: training(own=False, enabled=None)),
    "odd_sizes": ("", lambda: training((2, 252, 999, 3), 3, 101, own=False, stacks="python")),
    "pending_free": ("", pending_free),
    "cut_off": ("", lambda: training(own=False, steps=4, max_entries=1_500)),
    "expandable": (EXPANDABLE, lambda: training(own=False)),
    "inference": ("", inference),
    "graphed": ("", graphed),
    "out_of_memory": ("", out_of_memory),
    "out_of_memory_expandable": (EXPANDABLE, out_of_memory),
    "streams": ("", streams),
    "llama_amp": ("", llama),
    "llama_fp16_scaler": ("", lambda: llama(scaler=True)),
    "llama_checkpointing": ("", lambda: llama(checkpointing=True)),
    "generate": ("", generate),
    "compiled": ("", compiled),
    "medium_512": ("", lambda: training(MEDIUM, 4, 512, warm=3, steps=1)),
    "medium_512_amp": ("", lambda: training(MEDIUM, 4, 512, warm=3, steps=1, amp=torch.bfloat16)),
    "medium_128": ("", lambda: training(MEDIUM, 4, 128, warm=3, steps=1)),
}  # fmt: skip


def record(name: str, folder: Path) -> None:
    """One recording, in this process."""
    facts = RECORDINGS[name][1]()
    snapshot = facts.pop("snapshot")
    without_folders(snapshot)
    with gzip.GzipFile(folder / f"{name}.pickle.gz", "wb", 9, mtime=0) as file:
        pickle.dump(snapshot, file)
    (folder / f"{name}.json").write_text(json.dumps(summed(facts), indent=1) + "\n")


def without_folders(snapshot: dict[str, Any]) -> None:
    """Leave out where torch and this checkout are."""
    folders = {str(Path(torch.__file__).parents[4]): "/env", str(Path(__file__).parent): "/home/user"}
    seen = set()
    with_frames = [*(event for trace in snapshot["device_traces"] for event in trace), *snapshot["segments"]]
    with_frames += [block for segment in snapshot["segments"] for block in segment["blocks"]]
    for frame in (frame for one in with_frames for frame in one.get("frames") or []):
        if id(frame) not in seen:
            seen.add(id(frame))
            for folder, name in folders.items():
                frame["filename"] = frame["filename"].replace(folder, name)


def summed(facts: Facts) -> Facts:
    """Return sums in place of addresses: of what autograd kept without weights and buffers."""
    own = {*facts.get("weights", ()), *facts.get("buffers", ())}
    made = dict(facts)
    if "saved" in facts:
        made["saved"] = sum(size for address, size in facts["saved"].items() if address not in own)
    for name in ("weights", "buffers", "gradients", "optimizer"):
        if name in facts:
            made[name] = sum(facts[name].values())
    return made


def main(folder: Path, names: list[str]) -> None:
    """Each recording in a process of its own: the allocator's settings are read when torch starts."""
    folder.mkdir(parents=True, exist_ok=True)
    if len(names) == 1:
        record(names[0], folder)
        return
    running = []
    for name in names or RECORDINGS:
        settings = RECORDINGS[name][0]
        environment = {**os.environ, "PYTORCH_ALLOC_CONF": settings, "PYTORCH_CUDA_ALLOC_CONF": settings}
        command = [sys.executable, "-m", "tests.snapshots.record", str(folder), name]
        running.append((name, subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)))
        if len(running) >= 8:
            _ended(*running.pop(0), folder)
    for one in running:
        _ended(*one, folder)


def _ended(name: str, process: subprocess.Popen[str], folder: Path) -> None:
    words = process.communicate()[1].strip().splitlines()
    made = folder / f"{name}.pickle.gz"
    size = f"{made.stat().st_size:,} B" if made.exists() else "nothing"
    print(
        f"{name}: exit {process.returncode}, {size}" + (f"; {words[-1]}" if process.returncode and words else ""),
        flush=True,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
