"""Measure dense peak FLOP/s by data type and bandwidth, with torch on this device.

Disturbances only slow a burst down, so each figure is the best of many bursts spread over time, and measuring continues
while the best still improves. On the CPU a burst is short enough for a busy system to leave all cores to one process
meanwhile, and arrays are walked in chunks that take no longer.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from opanatomy.capture.device.state import watching
from opanatomy.records.anatomy import Machine, Measured, Rate, now
from opanatomy.records.taxonomy import PEAK_TYPES
from opanatomy.records.workload import MachineLoad, SystemUse

if TYPE_CHECKING:
    import torch

Call = Callable[[], object]

#: Ways to move bytes: a copy and a triad (a = b + s * c) read and write, a sum only reads.
MOVES: Final = ("copy", "triad", "read")


class Effort(Struct, frozen=True, kw_only=True):
    """Limits of a measurement: `min_s` to `max_s` per figure, `burst_s` per burst, `call_s` at most per call.

    Measuring ends early after `patience_s` without a better figure. Sizes take turns of `turn_s`.
    """

    min_s: float = 2.5
    max_s: float = 12.0
    patience_s: float = 1.5
    turn_s: float = 0.15
    burst_s: float = 0.0015
    call_s: float = 0.5
    #: Products of m x k and k x n matrices.
    shapes: tuple[tuple[int, int, int], ...]
    array_bytes: int
    #: Arrays are walked in chunks of this many bytes, one per call.
    chunk_bytes: int


class _Candidate(Struct, frozen=True):
    by: str
    operands: str
    work: int
    call: Call


_CPU_SHAPES: Final = (
    (256, 256, 256),
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (2048, 4096, 1024),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
)
_GPU_SHAPES: Final = (
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (8192, 16384, 8192),
    (16384, 16384, 16384),
)
#: Arrays are this many times larger than the last cache, within bounds.
_TIMES_CACHE: Final = 8
_MIN_ARRAY, _MAX_ARRAY = 128 << 20, 1 << 30
_GPU_ARRAY: Final = 2 << 30
#: Number of calls timed to choose how often a size runs in a burst.
_TRIALS: Final = 4
#: A figure is confirmed by this many bursts this near to it.
_CONFIRMED, _AGREE = 3, 0.97
_REST_S: Final = 0.025
_CHUNK_OF_A_THREAD, _MIN_CHUNK = 2 << 20, 16 << 20


def default_effort(device: str) -> Effort:
    """Return the sizes for the device: products from small to large, arrays far beyond the last cache."""
    import torch

    if device == "cpu":
        try:
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError, AttributeError):
            free = 4 << 30
        array = min(
            max(_TIMES_CACHE * (last_cache_bytes() or 32 << 20), _MIN_ARRAY), _MAX_ARRAY, max(free // 8, 1 << 20)
        )
        chunk = min(max(_CHUNK_OF_A_THREAD * torch.get_num_threads(), _MIN_CHUNK), array)
        return Effort(shapes=_CPU_SHAPES, array_bytes=array, chunk_bytes=chunk)
    array = min(_GPU_ARRAY, torch.cuda.mem_get_info(device)[0] // 8)
    return Effort(shapes=_GPU_SHAPES, array_bytes=array, chunk_bytes=array, burst_s=0.1, call_s=1.0)


def measure(
    machine: Machine,
    device: str,
    dtypes: Sequence[str] = PEAK_TYPES,
    *,
    moves: Sequence[str] = MOVES,
    effort: Effort | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> Measured:
    """Measure the peak of matrix products for each of `dtypes` supported on `device`, and the bandwidth of `moves`.

    `device` is `cpu` or `cuda:N`; `on_stage` is called with the next figure to measure. A hot GPU is waited for first.
    """
    effort = effort or default_effort(device)
    with watching(device) as watch:
        if watch is not None:
            watch.cooled(on_stage)
        measured = _measured(machine, device, dtypes, moves, effort, on_stage)
    return measured if watch is None else replace(measured, state=watch.over())


def _measured(
    machine: Machine,
    device: str,
    dtypes: Sequence[str],
    moves: Sequence[str],
    effort: Effort,
    on_stage: Callable[[str], None],
) -> Measured:
    before = load_of(device)
    peaks: dict[str, Rate] = {}
    for dtype in dtypes:
        if not _worth_trying(dtype, device):
            continue
        on_stage(f"multiplying {dtype} matrices")
        with _float32_products(device, tf32=dtype == "tf32"):
            rate = _best(_products(dtype, device, effort), device, effort)
        if rate is not None:
            peaks[dtype] = rate
    bandwidths: dict[str, Rate] = {}
    for name in moves:
        on_stage(f"measuring memory bandwidth ({name})")
        rate = _best(_moves(name, device, effort), device, effort)
        if rate is not None:
            bandwidths[name] = rate
    return Measured(
        machine=machine,
        peaks=peaks,
        bandwidths=bandwidths,
        tried=tuple(dtypes),
        cache_bytes=_cache_bytes(device),
        load=MachineLoad(before=before, after=load_of(device)),
    )


# ------------------------------------------------------------------------------------------------------------ timing


def _best(candidates: Iterator[_Candidate], device: str, effort: Effort) -> Rate | None:
    """Return the best burst of the candidates, ordered from small to large; `None` if none can run."""
    burst = _burst_on_cpu if device == "cpu" else _burst_on_cuda
    running: dict[str, _Candidate] = {}
    rates: dict[str, list[float]] = {}
    best = 0.0
    for candidate in candidates:
        if best and candidate.work / best > effort.call_s:
            break  # The next ones are larger still.
        try:
            first = [candidate.work / burst(candidate.call, 1, device) for _ in range(_TRIALS)]
        except (RuntimeError, NotImplementedError, TypeError, ValueError):
            break  # Not supported, or not enough memory.
        best = max(best, *first)
        running[candidate.by], rates[candidate.by] = candidate, [max(first)]
    if not running:
        return None
    _take_bursts(running, rates, burst, device, effort)
    by = max(rates, key=lambda name: max(rates[name]))
    highest = max(rates[by])
    spread = 1 - statistics.median(rates[by]) / highest
    return Rate(
        per_second=highest, by=by, operands=running[by].operands, spread=spread, bursts=len(rates[by]), measured=now()
    )


def _take_bursts(
    running: dict[str, _Candidate],
    rates: dict[str, list[float]],
    burst: Callable[[Call, int, str], float],
    device: str,
    effort: Effort,
) -> None:
    """Alternate bursts with equal time for each size, so that a disturbance affects all sizes alike.

    End when several bursts agree on the best and none was better for a while.
    """
    begun = improved = ended = time.perf_counter()
    best = 0.0
    while ended - begun < effort.max_s:
        for name, candidate in running.items():
            turn = time.perf_counter()
            while ended - turn < effort.turn_s:
                repeats = max(1, round(effort.burst_s * max(rates[name]) / candidate.work))
                rates[name].append(candidate.work / burst(candidate.call, repeats, device))
                ended = time.perf_counter()
                improved = ended if rates[name][-1] > 1.01 * best else improved
                best = max(best, rates[name][-1])
        agree = sum(rate > _AGREE * best for some in rates.values() for rate in some)
        if ended - begun >= effort.min_s and ended - improved >= effort.patience_s and agree >= _CONFIRMED:
            return


def _burst_on_cpu(call: Call, repeats: int, device: str) -> float:
    """Return the seconds per call, after a pause that lets all threads start together on a busy system."""
    time.sleep(_REST_S)
    call()
    return _burst_at_once(call, repeats, device)


def _burst_on_cuda(call: Call, repeats: int, device: str) -> float:
    """Return the seconds of a call on the device's clock; a call before the events keeps their launch out."""
    import torch

    with torch.cuda.device(device):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch
        call()
        begin.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        return max(float(begin.elapsed_time(end)) / 1e3, 1e-9) / repeats


# -------------------------------------------------------------------------------------------------- what else runs


#: Number and length of bursts of a small product that detect other load: a tenth of a second on an idle machine.
_LOAD_BURSTS, _LOAD_BURST_S = 20, 0.005
#: Its rows: on the CPU it fits into a core's cache, on a GPU it takes longer than its launch.
_LOAD_ON_CPU, _LOAD_ON_GPU = 256, 1024


def system_use() -> SystemUse:
    """Return the process's system usage so far; empty where the system does not report it."""
    try:
        import resource
    except ImportError:  # Windows
        return SystemUse()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return SystemUse(system_ns=round(usage.ru_stime * 1e9), page_faults=usage.ru_minflt)


def load_of(device: str) -> float | None:
    """Return the share of the device's time that other work takes now; `None` for a device that is not measured.

    It is the gap between the median and the best of some bursts. A constant load slows all bursts alike: on the CPU the
    result is at least the share of time that runnable threads waited for a processor, where the system reports it.
    Bursts run back to back like a step's operators: after a pause a busy system favours a process.
    """
    import torch

    if device != "cpu" and not device.startswith("cuda"):
        return None
    try:
        # No random values: these would be missing in the step.
        rows = _LOAD_ON_CPU if device == "cpu" else _LOAD_ON_GPU
        operand = torch.linspace(-1, 1, rows**2, dtype=torch.float32, device=device).view(rows, rows)
        out = torch.empty_like(operand)
        burst = _burst_at_once if device == "cpu" else _burst_on_cuda

        def call() -> object:
            return torch.mm(operand, operand, out=out)

        repeats = max(1, round(_LOAD_BURST_S / min(burst(call, 5, device) for _ in range(_TRIALS))))
        waited, computed = _waited_ns(), time.process_time_ns()
        times = [burst(call, repeats, device) for _ in range(_LOAD_BURSTS)]
        waited, computed = _waited_ns() - waited, time.process_time_ns() - computed
    except RuntimeError:  # not enough memory, or refused by a setting of the user's
        return None
    spread = 1 - min(times) / statistics.median(times)
    return max(spread, waited / (waited + computed)) if device == "cpu" and waited > 0 else spread


def _burst_at_once(call: Call, repeats: int, device: str) -> float:
    """Return the seconds of a call on the CPU, with no pause before."""
    begun = time.perf_counter_ns()
    for _ in range(repeats):
        call()
    return max(time.perf_counter_ns() - begun, 1) / 1e9 / repeats


def _waited_ns() -> int:
    """Return the total time that threads of this process waited for a processor; 0 if the system does not report it."""
    waited = 0
    for file in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):  # a thread that has ended
            waited += int(file.read_text().split()[1])
    return waited


# -------------------------------------------------------------------------------------------------------------- work


def _products(dtype: str, device: str, effort: Effort) -> Iterator[_Candidate]:
    for m, n, k in effort.shapes:
        operands = f"{m} x {k} by {k} x {n}"
        yield _Candidate(operands, operands, 2 * m * n * k, _product(dtype, device, m, n, k))


def _product(dtype: str, device: str, m: int, n: int, k: int) -> Call:
    """Return a matrix product whose operands are created at the first call.

    Values are random: zeros draw less power than real data.
    """
    operands: list[Any] = []

    def call() -> object:
        import torch

        if not operands:
            operands.extend(_operands(dtype, device, m, n, k))
        if dtype == "int8":
            return torch._int_mm(*operands)
        if dtype == "float8":
            left, right, scale = operands
            fast: dict[str, Any] = {} if device == "cpu" or torch.version.hip else {"use_fast_accum": True}
            return torch._scaled_mm(left, right, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, **fast)
        left, right, out = operands
        return torch.mm(left, right, out=out)

    return call


def _operands(dtype: str, device: str, m: int, n: int, k: int) -> tuple[torch.Tensor, ...]:
    import torch

    if dtype == "int8":
        left = torch.randint(-127, 128, (m, k), dtype=torch.int8, device=device)
        return left, torch.randint(-127, 128, (n, k), dtype=torch.int8, device=device).t()
    left, right = torch.randn(m, k, device=device), torch.randn(n, k, device=device)
    if dtype == "float8":
        kind = torch.float8_e4m3fn
        if device != "cpu" and torch.version.hip:
            architecture = str(torch.cuda.get_device_properties(device).gcnArchName)
            if architecture.startswith("gfx94"):  # it has a float of its own
                kind = torch.float8_e4m3fnuz
        return left.to(kind), right.to(kind).t(), torch.ones((), device=device)
    kind = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    return left.to(kind), right.t().contiguous().to(kind), torch.empty(m, n, dtype=kind, device=device)


def _moves(name: str, device: str, effort: Effort) -> Iterator[_Candidate]:
    """Return one of `MOVES` on arrays too large for any cache."""
    import torch

    chunk = max(min(effort.chunk_bytes, effort.array_bytes) // 4, 1024)
    chunks = max(effort.array_bytes // 4 // chunk, 1)
    arrays = {"copy": 2, "triad": 3, "read": 1}[name]
    # `fill_` runs on all threads, so that each first touches the pages it will use.
    walked = [
        torch.empty(chunks, chunk, dtype=torch.float32, device=device).fill_(number).unbind()
        for number in range(arrays)
    ]
    turns = itertools.cycle(zip(*walked, strict=True))
    calls: dict[str, Callable[..., object]] = {
        "copy": lambda a, b: a.copy_(b),
        "triad": lambda a, b, c: torch.add(b, c, alpha=0.5, out=a),
        "read": torch.sum,
    }
    operands = f"{chunk * chunks * 4 / 2**20:.0f} MiB arrays"
    yield _Candidate(f"{name} of {operands}", operands, arrays * chunk * 4, lambda: calls[name](*next(turns)))


# -------------------------------------------------------------------------------------------- hardware and settings


def _worth_trying(dtype: str, device: str) -> bool:
    """Return whether the device has units for the type; the CPU has no tf32, an accelerator without units emulates."""
    if device == "cpu":
        return dtype != "tf32"
    import torch

    if torch.version.hip:
        # Matrix cores round float32 to tf32 only if the user asks the library for it.
        return dtype != "tf32" or os.environ.get("HIPBLASLT_ALLOW_TF32") == "1"
    minimum = {"tf32": (8, 0), "bfloat16": (8, 0), "float8": (8, 9)}.get(dtype, (0, 0))
    return torch.cuda.get_device_capability(device) >= minimum


@contextmanager
def _float32_products(device: str, *, tf32: bool) -> Iterator[None]:
    """Set whether float32 products on the accelerator run in tf32 inside the block."""
    if device == "cpu":
        yield
        return
    import torch

    settings: Any = torch.backends.cuda.matmul
    name, wanted = ("fp32_precision", "tf32" if tf32 else "ieee")
    if not hasattr(settings, name):  # before torch 2.9
        name, wanted = "allow_tf32", tf32  # type: ignore[assignment]  # a switch there, a word here
    before = getattr(settings, name)
    setattr(settings, name, wanted)
    try:
        yield
    finally:
        setattr(settings, name, before)


def last_cache_bytes() -> int | None:
    """Return the size of the last cache of the first processor; `None` if the system does not report it."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text[:-1].isdigit() and text[-1] in "KM":
            sizes.append(int(text[:-1]) << (10 if text[-1] == "K" else 20))
    return max(sizes, default=None)


def _cache_bytes(device: str) -> int | None:
    import torch

    if device == "cpu":
        return last_cache_bytes()
    size = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", None)
    return size if isinstance(size, int) and size > 0 else None
