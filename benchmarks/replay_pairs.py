"""Records programs before and after one change: the step of each without a profiler, and a trace of each.

    python benchmarks/replay_pairs.py FOLDER [PAIR ...] [--device cpu]
    python benchmarks/replay_pairs.py --predict FOLDER

The second line predicts the gain of each change from the trace of the side before it, by a replay (`opanatomy analyze
--what-if`), and compares it with the measured one; benchmarks/pairs has what one H200 recorded. These thresholds were
set before anything was measured: the sign of the gain is right in all pairs, and the median error of the gain is below
25 %; where it is not, the rule that predicts it says less. What a pair asks of the replay (`ASKED`) was written when
the pairs had been measured.

Each pair changes one thing. Both sides warm up, then run in turns, five blocks of steps each; the device is
synchronized at the ends of a block only. Traces follow when all pairs are timed, since CUPTI may slow down what runs
after it: three steps of `torch.profiler`, with shapes and without stacks. FOLDER gets `pairs.json` and `traces.tar`,
both written after each result. `--device cpu` runs tiny sizes, to try the script.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import platform
import statistics
import tarfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile, schedule

THRESHOLDS = {
    "sign": "the sign of the gain is right in all pairs",
    "error": "the median error of the replayed gain is below 25 %, else the rule says less",
}
BLOCKS = 5
#: A block has at least so many steps and takes about so long.
BLOCK_STEPS, MAX_BLOCK_STEPS, BLOCK_SECONDS = 10, 50, 0.2
#: The tar stays within this; a trace that does not fit is left out and named.
MAX_TAR_BYTES = 15_000_000
#: Of each transformer; few keep the traces small. With `--twice` programs have twice the layers and the batch.
LAYERS, TIMES = 3, 1

#: What each change is to a replay: waits gone, four workers instead of none, an optimizer in a few calls instead of a
#: loop, the sheet's ratio of peaks (66.9 of 989 TFLOP/s), copies at 55 GB/s of pinned instead of 10.7 of pageable
#: memory, a host that launches one graph, twice the device's work.
ASKED: dict[str, tuple[str, ...]] = {
    "item_host_bound": ("synchronization 0",), "item_device_bound": ("synchronization 0",),
    "adamw_foreach_to_fused": ("optimizer x0.1",), "adamw_loop_to_foreach": ("optimizer x0.2",),
    "float32_to_bf16": ("contraction x0.068",), "batch_device_bound": ("device x2",), "loader_bound": ("input x0.25",),
    "loader_hidden": ("input x0.25",), "pinned": ("blocking copies 0", "copies x0.195"), "compiled": ("host 0",),
}  # fmt: skip

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def attend_eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention written out: scores, softmax, weighted sum."""
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    weighted: Tensor = scores.softmax(dim=-1) @ v
    return weighted


def attend_by(backend: SDPBackend) -> Attend:
    """Return `scaled_dot_product_attention` held to one backend."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return nn.functional.scaled_dot_product_attention(q, k, v)

    return attend


class Block(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, width: int, heads: int, attend: Attend) -> None:
        super().__init__()
        self.heads, self.attend = heads, attend
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        b, s, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.project(self.attend(q, k, v).transpose(1, 2).reshape(b, s, d))
        x = x + self.mlp(self.norm2(x))
        return x


def transformer(layers: int, width: int, attend: Attend = nn.functional.scaled_dot_product_attention) -> nn.Module:
    """A stack of layers with heads of 64."""
    torch.manual_seed(0)
    return nn.Sequential(*(Block(width, max(1, width // 64), attend) for _ in range(layers)))


def small_linears(layers: int, width: int) -> nn.Module:
    """Many small parameters."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width)) for _ in range(layers)))


def convolutions(width: int) -> nn.Module:
    """Three strided convolutions over images."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, width, 7, 2, 3),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(2 * width, 4 * width, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


class Decoded(torch.utils.data.Dataset[Tensor]):
    """Images that cost the processor a few milliseconds each: inflate, convert, normalize, halve."""

    def __init__(self, side: int) -> None:
        self.side = side
        torch.manual_seed(0)
        noise = (torch.randint(0, 64, (3, side, side), dtype=torch.uint8) for _ in range(8))
        self.packed = [zlib.compress(one.numpy().tobytes()) for one in noise]

    def __len__(self) -> int:
        """More than are used, so that the workers never restart."""
        return 1_000_000

    def __getitem__(self, index: int) -> Tensor:
        pixels = bytearray(zlib.decompress(self.packed[index % len(self.packed)]))
        image = torch.frombuffer(pixels, dtype=torch.uint8).view(3, self.side, self.side).float()
        return nn.functional.avg_pool2d((image / 255 - 0.45) / 0.225, 2)


@dataclass
class Side:
    """One program of a pair."""

    says: str
    step: Callable[[], None]
    batch: int


@dataclass
class Pair:
    """Two programs that differ by `changed`."""

    changed: str
    before: Side
    after: Side
    #: Steps before each block and each trace that are not counted: they use up what workers prepared meanwhile.
    lead: int = 1


def training(
    says: str,
    module: nn.Module,
    batches: Iterable[Tensor],
    batch: int,
    device: torch.device,
    *,
    item: bool = False,
    amp: bool = False,
    non_blocking: bool = False,
    optimizer: dict[str, Any] | None = None,
) -> Side:
    """A training step with AdamW (fused unless told otherwise) on the mean square of the output."""
    module = module.to(device)
    adamw = torch.optim.AdamW(module.parameters(), lr=1e-4, **(optimizer or {"fused": True}))
    source = iter(batches)
    total = 0.0

    def step() -> None:
        nonlocal total
        x = next(source).to(device, non_blocking=non_blocking)
        adamw.zero_grad()
        cast: AbstractContextManager[object] = torch.autocast(device.type, torch.bfloat16) if amp else nullcontext()
        with cast:
            loss = module(x).float().square().mean()
        loss.backward()
        adamw.step()
        if item:
            total += loss.item()

    return Side(says, step, batch)


def resident(*shape: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Iterable[Tensor]:
    """Yield the same batch on the device for ever."""
    return itertools.repeat(torch.randn(shape, device=device, dtype=dtype))


def loader_pair(device: torch.device, batch: int, side: int, width: int) -> Pair:
    """Workers of a DataLoader whose samples are decoded."""

    def program(workers: int) -> Side:
        loader = torch.utils.data.DataLoader(Decoded(side), batch_size=batch * TIMES, num_workers=workers)
        return training(f"num_workers={workers}", convolutions(width), loader, batch * TIMES, device)

    return Pair("DataLoader num_workers 0 -> 4", program(0), program(4), lead=12)


def item_pair(device: torch.device, width: int, batch: int, length: int, amp: bool) -> Pair:
    """A loss that is read each step."""

    def program(item: bool) -> Side:
        batches = resident(batch * TIMES, length, width, device=device)
        return training(
            f"item={item}", transformer(LAYERS * TIMES, width), batches, batch * TIMES, device, item=item, amp=amp
        )

    return Pair("loss.item() each step -> never", program(True), program(False))


def optimizer_pair(device: torch.device, before: dict[str, bool], after: dict[str, bool]) -> Pair:
    """Implementations of AdamW."""
    layers, width = (24 * TIMES, 256) if device.type == "cuda" else (6, 32)

    def program(options: dict[str, bool]) -> Side:
        batches = resident(64, width, device=device)
        return training(f"AdamW({options})", small_linears(layers, width), batches, 64, device, optimizer=options)

    return Pair(f"AdamW {before} -> {after}", program(before), program(after))


def precision_pair(device: torch.device) -> Pair:
    """float32 without TF32, and bfloat16 by autocast."""
    width, batch, length = (1024, 32, 512) if device.type == "cuda" else (64, 2, 32)

    def program(amp: bool) -> Side:
        batches = resident(batch * TIMES, length, width, device=device)
        says = "bf16 autocast" if amp else "float32"
        return training(says, transformer(LAYERS * TIMES, width), batches, batch * TIMES, device, amp=amp)

    return Pair("float32 (TF32 off) -> bf16 autocast", program(False), program(True))


def batch_pair(device: torch.device, width: int, length: int) -> Pair:
    """Twice the batch."""

    def program(batch: int) -> Side:
        batches = resident(batch * TIMES, length, width, device=device)
        return training(f"batch {batch}", transformer(LAYERS * TIMES, width), batches, batch * TIMES, device, amp=True)

    return Pair("batch 8 -> 16", program(8), program(16))


def pinned_pair(device: torch.device) -> Pair:
    """Copies of inputs from pageable and from pinned memory."""

    def program(pinned: bool) -> Side:
        images = [torch.randn(64 * TIMES, 3, 224, 224) for _ in range(4)]
        batches = itertools.cycle([one.pin_memory() for one in images] if pinned else images)
        says = "pinned, non_blocking" if pinned else "pageable"
        return training(says, convolutions(64), batches, 64 * TIMES, device, non_blocking=pinned)

    return Pair("inputs pageable -> pinned and non_blocking", program(False), program(True))


def attention_pair(device: torch.device, says: str, before: Attend) -> Pair:
    """Attention that writes its scores, and flash attention."""
    width, batch, length = (1024, 4, 2048) if device.type == "cuda" else (64, 2, 32)

    def program(words: str, attend: Attend) -> Side:
        module = transformer(LAYERS * TIMES, width, attend).to(torch.bfloat16)
        batches = resident(batch * TIMES, length, width, device=device, dtype=torch.bfloat16)
        return training(words, module, batches, batch * TIMES, device)

    flash = attend_by(SDPBackend.FLASH_ATTENTION)
    return Pair(f"{says} -> flash attention", program(says, before), program("flash attention", flash))


def compiled_pair(device: torch.device) -> Pair:
    """A small model, eager and compiled to CUDA graphs; the optimizer is the same."""
    width, batch, length = (256, 8, 64) if device.type == "cuda" else (32, 2, 16)

    def program(compiled: bool) -> Side:
        module = transformer(LAYERS * TIMES, width)
        if compiled:
            module.compile(mode="reduce-overhead")
        batches = resident(batch * TIMES, length, width, device=device)
        return training("compiled" if compiled else "eager", module, batches, batch * TIMES, device)

    return Pair('eager -> torch.compile(mode="reduce-overhead")', program(False), program(True), lead=3)


def pairs(device: torch.device) -> dict[str, Callable[[], Pair]]:
    """Return the pairs of this device, by name; what compiles comes last."""
    cuda = device.type == "cuda"
    small, large = ((256, 8, 64), (1024, 32, 512)) if cuda else ((32, 8, 16), (64, 4, 32))
    light, heavy = ((224, 768), (448, 64)) if cuda else ((64, 16), (128, 8))
    made: dict[str, Callable[[], Pair]] = {
        "item_host_bound": lambda: item_pair(device, *small, amp=False),
        "item_device_bound": lambda: item_pair(device, *large, amp=True),
        "adamw_foreach_to_fused": lambda: optimizer_pair(device, {"foreach": True}, {"fused": True}),
        "adamw_loop_to_foreach": lambda: optimizer_pair(device, {"foreach": False}, {"foreach": True}),
        "float32_to_bf16": lambda: precision_pair(device),
        "batch_host_bound": lambda: batch_pair(device, small[0], small[2]),
        "batch_device_bound": lambda: batch_pair(device, 1024 if cuda else 64, 2048 if cuda else 64),
        "attention_eager": lambda: attention_pair(device, "attention written out", attend_eager),
        "attention_math": lambda: attention_pair(device, "sdpa's math kernel", attend_by(SDPBackend.MATH)),
        "pinned": lambda: pinned_pair(device),
        "loader_hidden": lambda: loader_pair(device, 8, *light),
        "loader_bound": lambda: loader_pair(device, 8, *heavy),
        "compiled": lambda: compiled_pair(device),
    }
    if not cuda:
        del made["pinned"]
    return made


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def timed_block(side: Side, lead: int, steps: int, device: torch.device) -> tuple[int, int]:
    """Return the nanoseconds of a block of steps, and those until the host had issued all of it."""
    for _ in range(lead):
        side.step()
    synchronize(device)
    begun = time.perf_counter_ns()
    for _ in range(steps):
        side.step()
    issued = time.perf_counter_ns() - begun
    synchronize(device)
    return time.perf_counter_ns() - begun, issued


def measure(pair: Pair, device: torch.device) -> dict[str, Any]:
    """Time both sides in turns."""
    sides = {"before": pair.before, "after": pair.after}
    results: dict[str, Any] = {"changed": pair.changed, "lead_steps": pair.lead}
    for name, side in sides.items():
        timed_block(side, 3, 3, device)
        once = timed_block(side, pair.lead, 3, device)[0] / 3e9
        steps = min(MAX_BLOCK_STEPS, max(BLOCK_STEPS, round(BLOCK_SECONDS / once)))
        results[name] = {
            "says": side.says,
            "batch": side.batch,
            "steps_of_block": steps,
            "block_ns": [],
            "issued_ns": [],
        }
    for _ in range(BLOCKS):
        for name, side in sides.items():
            block, issued = timed_block(side, pair.lead, results[name]["steps_of_block"], device)
            results[name]["block_ns"].append(block)
            results[name]["issued_ns"].append(issued)
    for name in sides:
        times = [block / results[name]["steps_of_block"] for block in results[name]["block_ns"]]
        results[name] |= {"step_ns": statistics.median(times), "least_ns": min(times), "most_ns": max(times)}
    return results


def record(side: Side, lead: int, path: Path, device: torch.device) -> None:
    """Write the trace of three steps."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(
        activities=activities,
        schedule=schedule(wait=1, warmup=lead, active=3),
        record_shapes=True,
        on_trace_ready=lambda made: made.export_chrome_trace(str(path)),
    ) as profiler:
        for _ in range(1 + lead + 3):
            side.step()
            profiler.step()


def predict(folder: Path) -> None:
    """Print what a replay says of each change beside what was measured."""
    from opanatomy.analysis.replay import StepGraph, change_of, replay_of
    from opanatomy.pipeline import summary_of_trace

    recorded = json.loads(next(folder.glob("*.json")).read_text())["pairs"]
    errors = []
    print("pair                     plain ms  predicted  measured  gain  measured  error  why not trusted")
    for name, questions in ASKED.items():
        before, after = (recorded[name][side]["step_ns"] for side in ("before", "after"))
        graphs: list[StepGraph] = []
        summary_of_trace(folder / f"{name}.before.json.gz", graphs=graphs)
        made = replay_of(graphs[0], before, [change_of(text) for text in questions])
        predicted = made.answers[-1].step_ns
        gain, measured = before - predicted * before / made.step_ns, before - after
        error = abs(gain - measured) / max(abs(measured), 0.01 * before)
        errors.append(error)
        print(
            f"{name:24} {before / 1e6:8.3f} {predicted / 1e6:10.3f} {after / 1e6:9.3f} {gain / before:5.1%}"
            f" {measured / before:9.1%} {error:6.0%}  {made.why_not or ''}"
        )
    print(f"median error of the gain: {statistics.median(errors):.0%}")


def main() -> None:
    """Time all pairs, then trace them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="PAIR", help="only these")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--predict", action="store_true", help="compare replays with what FOLDER has")
    parser.add_argument("--twice", action="store_true", help="twice the layers and the batch")
    arguments = parser.parse_intermixed_args()
    if arguments.twice:
        global TIMES
        TIMES = 2
    if arguments.predict:
        predict(arguments.folder)
        return
    device, folder = torch.device(arguments.device), arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("highest")
    results: dict[str, Any] = {
        "thresholds": THRESHOLDS,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or "cpu",
        "cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__,
        "cuda": torch.version.cuda, "cudnn_tf32": torch.backends.cudnn.allow_tf32, "matmul_tf32": False, "times": TIMES,
        "pairs": {},
    }  # fmt: skip

    def save() -> None:
        written = folder / "pairs.json.tmp"
        written.write_text(json.dumps(results, indent=1) + "\n")
        written.replace(folder / "pairs.json")

    made: dict[str, Pair] = {}
    known = pairs(device)
    for name in arguments.names or known:
        begun = time.perf_counter()
        try:
            made[name] = known[name]()
            row = results["pairs"][name] = measure(made[name], device)
            words = f"{row['before']['step_ns'] / 1e6:.3f} -> {row['after']['step_ns'] / 1e6:.3f} ms"
        except Exception:
            made.pop(name, None)
            results["pairs"][name] = {"error": traceback.format_exc()}
            words = f"FAILED: {traceback.format_exc().strip().splitlines()[-1]}"
        print(f"{name}: {words} ({time.perf_counter() - begun:.1f} s)", flush=True)
        save()
    archive = folder / "traces.tar"
    archive.unlink(missing_ok=True)
    for name, pair in made.items():
        for which, side in (("before", pair.before), ("after", pair.after)):
            row, path = results["pairs"][name][which], folder / f"{name}.{which}.json.gz"
            try:
                record(side, pair.lead, path, device)
                size = path.stat().st_size
                fits = size + (archive.stat().st_size if archive.exists() else 0) < MAX_TAR_BYTES
                if fits:
                    with tarfile.open(archive, "a") as tar:
                        tar.add(path, f"traces/{path.name}")
                row["trace"] = path.name if fits else f"left out: {size:,} B"
                words = f"{size:,} B"
            except Exception:
                row["trace_error"] = traceback.format_exc()
                words = f"FAILED: {traceback.format_exc().strip().splitlines()[-1]}"
            path.unlink(missing_ok=True)
            print(f"{name}.{which}: {words}", flush=True)
            save()
    made.clear()
    gc.collect()


if __name__ == "__main__":
    main()
