"""Memory that runs out: known by its words, in each phase and stage left with a report, and with advice that fits."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import opanatomy
from opanatomy.capture.memory.failure import StepOutOfMemory, observations_of_failure
from opanatomy.capture.memory.measurement import Snapshots
from opanatomy.capture.memory.storages import optimizer_tensors
from opanatomy.capture.run import advice
from opanatomy.capture.run.advice import less_memory
from opanatomy.capture.run.profile import capture_model
from opanatomy.capture.run.recorder import record_step
from opanatomy.capture.step.stepper import Stepper, make_optimizer
from opanatomy.capture.subject import Subject
from opanatomy.errors import OutOfMemory
from opanatomy.memory.observed import memory_of_observations
from opanatomy.options import RunOptions
from opanatomy.records.memory import is_out_of_memory, requested_bytes
from opanatomy.records.taxonomy import Phase
from opanatomy.records.workload import Workload
from tests.command import run_code

GIB = 1 << 30
#: As `c10/cuda/CUDACachingAllocator.cpp` writes it.
CUDA = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.77 GiB of which 1.12 GiB is free."
    " Of the allocated memory 13.90 GiB is allocated by PyTorch, and 121.09 MiB is reserved by PyTorch but unallocated."
)


def full() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError(CUDA)


# ---------------------------------------------------------------------------------------------------- by their words


@pytest.mark.parametrize(
    "message",
    [
        CUDA,
        "CUDA out of memory. Tried to allocate more than 1EB memory.",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
        "CUDA driver error: out of memory",
        "HIP out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 287.98 GiB",
        "HIP error: out of memory",
        "XPU out of memory. Tried to allocate 4.66 GiB. GPU 0 has a total capacity of 5.65 GiB",
        "level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
        "NPU out of memory. Tried to allocate 138.00 MiB (NPU 0; 32.00 GiB total; 28.00 GiB already allocated)",
        "MPS backend out of memory (MPS allocated: 6.04 GB, other allocations: 1.04 GB, max allowed: 6.77 GB)."
        " Tried to allocate 459.07 MB on private pool.",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasLtMatmul( ltHandle, ...)`",
        "CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
        "CUDA error: rocblas_status_memory_error when calling `rocblas_create_handle(handle)`",
        "CUDA error: resource allocation failed when calling `cusparseCreate(handle)`",
        "CUDA error: CUSPARSE_STATUS_ALLOC_FAILED when calling `cusparseSpMM(...)`",
        "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "cuFFT error: CUFFT_ALLOC_FAILED",
        "miopenStatusAllocFailed",
        "MIOpen Error: /MIOpen/src/hip/handlehip.cpp:70: Memory not available to allocate buffer: 655360000",
        "NCCL error in: ProcessGroupNCCL.cpp:1331, unhandled cuda error\nncclUnhandledCudaError: Call to CUDA function"
        " failed.\nLast error:\nCuda failure 2 'out of memory'",
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc async 2432 bytes",
        "Triton Error [CUDA]: out of memory",
        "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"
        " allocate 4194304 bytes. Error code 12 (Cannot allocate memory)",
        "[enforce fail at alloc_cpu.cpp:82] data. DefaultCPUAllocator: not enough memory: you tried to allocate 8 B.",
        "std::bad_alloc",
    ],
)
def test_an_allocation_that_failed_is_known_by_its_words(message: str) -> None:
    assert is_out_of_memory(RuntimeError(message))


@pytest.mark.parametrize(
    "error",
    [MemoryError(), torch.OutOfMemoryError(""), OSError(12, "Cannot allocate memory")],
)
def test_an_allocation_that_failed_is_known_by_its_class(error: Exception) -> None:
    assert is_out_of_memory(error)


def test_an_allocation_that_failed_below_is_known() -> None:
    error = RuntimeError("layer 3 failed")
    assert not is_out_of_memory(error)
    error.__cause__ = full()
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("required rank 4 tensor to use channels_last format: unsupported memory format option Contiguous"),
        RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned (pinned memory)"),
        RuntimeError("CUDA error: no kernel image is available for execution on the device"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        RuntimeError("CUDA error: too many resources requested for launch"),
        RuntimeError("out of resource: shared memory, Required: 131072, Hardware limit: 101376. Reducing block sizes"),
        RuntimeError("Cuda failure 1 'invalid argument'"),
        ImportError("libgomp.so.1: cannot allocate memory in static TLS block"),
        ValueError("chunk_size=None may run out of memory - give a number"),
        NotImplementedError("offload: out of memory optimizers are not supported"),
        KeyError("out of memory"),
    ],
)
def test_what_only_speaks_of_memory_is_another_error(error: Exception) -> None:
    assert not is_out_of_memory(error)


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (CUDA, 2 * GIB),
        ("MPS backend out of memory (MPS allocated: 6.04 GB). Tried to allocate 459.07 MB on private pool.", 481369784),
        ("Tried to allocate 6.25 MB on private pool", 6_553_600),
        ("CUDA out of memory. Tried to allocate more than 1EB memory.", None),
        ("Memory not available to allocate buffer: 655360000", 655_360_000),
        ("Last error:\nFailed to CUDA calloc async 2432 bytes", 2432),
        ("Failed to CUDA calloc 6291456 bytes", 6_291_456),
        ("Unable to allocate 7.50 GiB for an array with shape (1000, 1000, 1000) and data type float64", 7.5 * GIB),
        ("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes.", 8),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", None),
    ],
)
def test_the_request_is_read_in_every_spelling(message: str, size: float | None) -> None:
    assert requested_bytes(message) == size


# ------------------------------------------------------------------------------------------- a half-made state, again


class FailsAt(TorchDispatchMode):
    """Lets `number` operators run, then memory is full."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.left = number

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.left:
            raise full()
        self.left -= 1
        return func(*args, **(kwargs or {}))


def failing(optimizer: torch.optim.Optimizer, number: int) -> torch.optim.Optimizer:
    """The optimizer, whose every step has memory for so many operators."""
    step: Callable[[], Any] = optimizer.step

    def limited(*args: Any, **options: Any) -> Any:
        with FailsAt(number):
            return step(*args, **options)

    optimizer.step = limited  # type: ignore[method-assign]
    return optimizer


def layers() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16))


def half_made(name: str, number: int) -> int:
    """The bytes of state that one step leaves, which ends after so many operators."""
    module = layers()
    optimizer = failing(make_optimizer(name, module), number)
    module(torch.ones(4, 64)).sum().backward()
    with pytest.raises(torch.OutOfMemoryError):
        optimizer.step()
    return sum(tensor.untyped_storage().nbytes() for tensor in optimizer_tensors(optimizer)[0])


def broken(stepper: Stepper) -> Exception:
    try:
        stepper.run()
    except Exception as error:
        return error
    raise AssertionError("the step ran through")


def stepper_of(module: torch.nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> Stepper:
    return Stepper(
        module=module, parameters=tuple(module.parameters()), inputs=(torch.ones(4, 64),), device="cpu",
        optimizer=optimizer, **options,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["adamw", "adamw-foreach", "adamw-loop", "adam", "sgd", "adafactor"])
def test_the_second_try_begins_without_the_state_that_the_first_began(name: str) -> None:
    counts = {}
    for number in (1, 5):
        module = layers()
        stepper = stepper_of(module, failing(make_optimizer(name, module), number))
        memory = memory_of_observations(observations_of_failure(broken(stepper), stepper, module, Snapshots("cpu")))
        failure = memory.failure
        assert failure is not None
        assert (failure.phase, failure.seen) == (Phase.OPTIMIZER, True)
        assert (failure.message, failure.requested_bytes) == (CUDA, 2 * GIB)
        assert sum(part.at_peak_bytes or 0 for part in memory.components) == memory.peak_bytes
        counts[number] = next((one.at_peak_bytes for one in memory.components if one.component == "optimizer_state"), 0)
        assert dict(stepper.optimizer.state) == {}  # type: ignore[union-attr]
    assert counts == {number: half_made(name, number) for number in counts}
    # SGD keeps its momenta aside until all are made.
    assert (max(counts.values()) > 0) == (name != "sgd")


def test_a_later_step_that_breaks_counts_its_update_back() -> None:
    module = layers()
    stepper = stepper_of(module, make_optimizer("adamw-loop", module))
    stepper.run()
    assert stepper.optimizer is not None
    first = [*stepper.optimizer.state.values()]
    failing(stepper.optimizer, 3)
    with pytest.raises(torch.OutOfMemoryError):
        stepper.run()
    assert [float(state["step"]) for state in first] == [2, 1, 1, 1]
    stepper.start_again(fresh=False)
    assert [float(state["step"]) for state in stepper.optimizer.state.values()] == [1, 1, 1, 1]
    assert {tuple(state) for state in stepper.optimizer.state.values()} == {("step", "exp_avg", "exp_avg_sq")}


def test_what_had_no_state_before_the_step_that_broke_has_none_again() -> None:
    module = layers()
    stepper = stepper_of(module, make_optimizer("adamw-loop", module))
    late = [*module.parameters()][2]
    late.requires_grad_(False)
    stepper.run()
    late.requires_grad_(True)
    assert stepper.optimizer is not None
    failing(stepper.optimizer, 28)
    with pytest.raises(torch.OutOfMemoryError):
        stepper.run()
    assert len(stepper.optimizer.state) == 4
    stepper.start_again(fresh=False)
    assert len(stepper.optimizer.state) == 3


@pytest.mark.parametrize("name", ["adamw", "adamw-loop"])
def test_the_scaler_of_a_broken_step_scales_once_in_the_second_try(name: str) -> None:
    """A fused optimizer keeps `grad_scale`, another is left as unscaled: the second try must not see either."""
    module = layers()
    optimizer, seen = make_optimizer(name, module), []

    def step() -> None:
        scale = float(getattr(optimizer, "grad_scale", torch.tensor(1.0)))
        seen.append(float(next(module.parameters()).grad.abs().max()) / scale)
        raise full()

    optimizer.step = step  # type: ignore[method-assign,assignment]
    stepper = stepper_of(module, optimizer, amp="fp16")
    assert stepper.loss_scale is not None
    stepper.loss_scale.start(2.0**8)
    memory = memory_of_observations(observations_of_failure(broken(stepper), stepper, module, Snapshots("cpu")))
    assert memory.failure is not None
    assert memory.failure.seen
    assert len(seen) == 2
    assert seen[0] == seen[1] > 0
    assert not hasattr(optimizer, "grad_scale")


def test_another_error_in_the_second_try_is_not_taken_for_the_first() -> None:
    module, errors = layers(), [full(), KeyError("exp_avg_sq")]
    optimizer = make_optimizer("adamw", module)

    def step() -> None:
        raise errors.pop(0)

    optimizer.step = step  # type: ignore[method-assign,assignment]
    stepper = stepper_of(module, optimizer)
    memory = memory_of_observations(observations_of_failure(broken(stepper), stepper, module, Snapshots("cpu")))
    assert memory.failure is not None
    assert (memory.failure.message, memory.failure.requested_bytes, memory.failure.seen) == (CUDA, 2 * GIB, False)


# ---------------------------------------------------------------------------------------------- in every phase, stage


class Stages:
    """A progress display that knows where the run is."""

    def __init__(self) -> None:
        self.text = ""

    def stage(self, text: str, *, steps_after: int = 0, expected_ns: int | None = None) -> None:
        self.text = text

    def advance(self, fraction: float) -> None:
        pass


class InBackward(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: torch.Tensor, check: Callable[[], None]) -> torch.Tensor:
        context.check = check
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        context.check()
        return gradient, None


class Breaks(torch.nn.Module):
    """Memory is full in one phase of every step of one stage."""

    def __init__(self, stages: Stages, stage: str, phase: Phase) -> None:
        super().__init__()
        self.stages, self.stage, self.phase = stages, stage, phase
        self.layers = layers()

    def check(self, phase: Phase) -> None:
        if self.stages.text.startswith(self.stage) and phase is self.phase:
            raise full()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values = self.layers(values)
        self.check(Phase.FORWARD)
        result: torch.Tensor = InBackward.apply(values, lambda: self.check(Phase.BACKWARD))
        return result.sum()


def broken_run(stage: str, phase: Phase, monkeypatch: pytest.MonkeyPatch, **options: Any) -> StepOutOfMemory:
    stages = Stages()
    module = Breaks(stages, stage, phase)

    def make(name: str, given: torch.nn.Module) -> torch.optim.Optimizer:
        optimizer = make_optimizer(name, given)
        step = optimizer.step

        def checked(*args: Any) -> Any:
            module.check(Phase.OPTIMIZER)
            return step(*args)

        optimizer.step = checked  # type: ignore[method-assign]
        return optimizer

    monkeypatch.setattr("opanatomy.capture.run.step_runner.make_optimizer", make)
    workload = Workload(model="m", batch=4, sequence_length=64, dtype="float32")
    subject = Subject(module=module, inputs=(torch.ones(4, 64),), workload=workload)
    chosen = RunOptions(optimizer="adamw", memory=True, **options)
    with pytest.raises(StepOutOfMemory) as caught:
        record_step(subject, chosen, Path("never.json"), stages)
    assert stages.text.startswith(stage)
    return caught.value


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER])
@pytest.mark.parametrize("stage", ["warm-up step 1", "timed step", "memory step", "profiled step"])
def test_memory_that_runs_out_leaves_a_report(stage: str, phase: Phase, monkeypatch: pytest.MonkeyPatch) -> None:
    error = broken_run(stage, phase, monkeypatch)
    assert error.memory is not None
    memory = memory_of_observations(error.memory)
    assert memory.failure is not None
    assert str(error).startswith(f"out of memory in the {phase} phase; ")
    assert (memory.failure.phase, memory.failure.requested_bytes, memory.failure.seen) == (phase, 2 * GIB, True)
    assert memory.failure.allocated_bytes == memory.peak_bytes
    parts = {part.component: part.at_peak_bytes for part in memory.components if part.at_peak_bytes is not None}
    assert sum(parts.values()) == memory.peak_bytes
    weights = 4 * (64 * 32 + 32 + 32 * 16 + 16)
    assert parts["weights"] == weights
    assert parts.get("optimizer_state", 0) == (0 if stage == "warm-up step 1" else 2 * weights)
    assert parts.get("gradients", 0) == (weights if phase is Phase.OPTIMIZER else 0)


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.BACKWARD])
def test_memory_that_runs_out_before_the_warm_up_leaves_a_report(phase: Phase, monkeypatch: pytest.MonkeyPatch) -> None:
    error = broken_run("finding the loss scale", phase, monkeypatch, amp="fp16")
    assert error.memory is not None
    assert error.memory.failure is not None
    assert (error.memory.failure.phase, error.memory.failure.seen) == (phase, True)


def test_a_report_that_breaks_too_leaves_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory ran out, whatever happens while it is looked at."""

    def observed(*_: Any) -> Any:
        raise full()

    monkeypatch.setattr("opanatomy.capture.memory.failure._of_step", observed)
    error = broken_run("timed step", Phase.BACKWARD, monkeypatch)
    assert error.memory is None
    assert str(error).startswith("out of memory in the backward phase; ")
    assert "; what held it could not be read: OutOfMemoryError: CUDA out of memory." in str(error)


def test_a_handle_that_gets_no_memory_leaves_a_report() -> None:
    class Handle(torch.nn.Linear):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")

    with pytest.raises(StepOutOfMemory, match="out of memory in the forward phase") as caught:
        opanatomy.profile(Handle(8, 4), torch.ones(2, 8))
    assert caught.value.memory is not None
    assert caught.value.memory.failure is not None
    assert caught.value.memory.failure.requested_bytes is None


LIMITED = """
import pathlib, resource, sys
import torch
import torch._dynamo, transformers  # what a run loads on its way would count
from opanatomy.capture.memory.measurement import held_bytes
from opanatomy.capture.run.recorder import Subject, record_step
from opanatomy.errors import OutOfMemory
from opanatomy.options import RunOptions
from opanatomy.memory.observed import memory_of_observations
from opanatomy.records.workload import Workload
module = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(16)))
inputs = (torch.ones(2, 1024),)
module(*inputs).sum().backward()
small = Subject(module=torch.nn.Linear(4, 4), inputs=(torch.ones(2, 4),), workload=Workload(dtype="float32"))
record_step(small, RunOptions(optimizer=sys.argv[1]), pathlib.Path(sys.argv[2] + ".small.json"))  # loads the rest
limit = held_bytes() + 110_000_000
module.zero_grad()
resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
try:
    subject = Subject(module=module, inputs=inputs, workload=Workload(dtype="float32"))
    record_step(subject, RunOptions(optimizer=sys.argv[1]), pathlib.Path(sys.argv[2]))
except OutOfMemory as error:
    memory = memory_of_observations(error.memory)
    failure = memory.failure
    parts = {part.component: part.at_peak_bytes for part in memory.components}
    print(failure.phase, failure.requested_bytes, failure.seen, parts["weights"], parts["gradients"], sep="|")
    print(parts["optimizer_state"], sum(parts.values()) == memory.peak_bytes)
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts private pages on Linux only")
def test_a_state_that_does_not_fit_the_host_leaves_a_report(tmp_path: Path) -> None:
    done = run_code(LIMITED, "adamw-loop", str(tmp_path / "step.json"))
    assert done.returncode == 0, done.stderr[-500:]
    first, second, line = done.stdout.splitlines()
    one, weights = 4 * 1024 * 1024, 16 * 4 * 1024 * 1024
    assert first == f"optimizer|{one}|True|{weights}|{weights}"
    state, summed = second.split()
    assert int(state) % one == 0
    assert 0 < int(state) < 2 * weights
    assert summed == "True"
    assert "--batch" not in line


# -------------------------------------------------------------------------------------------------------------- advice


def text_model(**options: Any) -> Any:
    module: Any = layers()
    module.supports_gradient_checkpointing = True
    return Subject(
        module=module,
        inputs=(torch.ones(4, 64),),
        workload=Workload(**{"batch": 8, "sequence_length": 512, "dtype": "float32", **options}),
    )


@pytest.mark.parametrize(
    ("phase", "workload", "options", "expected"),
    [
        (Phase.FORWARD, {}, {},
         "lower --batch or --seq, add --accumulate 2, add --checkpointing, add --amp bf16, keep fewer --layers or use"
         " --dtype bfloat16"),
        (Phase.BACKWARD, {"sequence_length": None}, {"checkpointing": "reentrant", "amp": "bf16"},
         "lower --batch, add --accumulate 2, keep fewer --layers or use --dtype bfloat16"),
        (Phase.FORWARD, {"batch": 1, "dtype": "bfloat16"}, {"inference": True}, "lower --seq or keep fewer --layers"),
        (Phase.OPTIMIZER, {}, {"optimizer": "adamw"},
         "use --optimizer sgd or adafactor, keep fewer --layers or use --dtype bfloat16"),
        (Phase.OPTIMIZER, {}, {"optimizer": "adamw-foreach"},
         "use --optimizer adamw, sgd or adafactor, keep fewer --layers or use --dtype bfloat16"),
        (Phase.OPTIMIZER, {"dtype": "bfloat16"}, {"optimizer": "sgd"},
         "use --optimizer adafactor or keep fewer --layers"),
        (Phase.OPTIMIZER, {}, {"optimizer": "adafactor"}, "keep fewer --layers or use --dtype bfloat16"),
        (Phase.OTHER, {}, {}, "keep fewer --layers or use --dtype bfloat16"),
        (Phase.FORWARD, {"model_source": "function", "dtype": "bfloat16"}, {},
         "add --accumulate 2, add --checkpointing or have it return a smaller module or smaller inputs"),
        (Phase.OPTIMIZER, {"model_source": "function"}, {"optimizer": "adam"},
         "use --optimizer sgd or adafactor, have it return a smaller module or use --dtype bfloat16"),
        (Phase.PREFILL, {"dtype": "bfloat16"}, {"generate": 8, "beams": 4},
         "lower --batch or --seq, search with fewer than --beams 4 or keep fewer --layers"),
        (Phase.DECODING, {"dtype": "bfloat16"}, {"generate": 8},
         "lower --batch or --seq, make fewer tokens than --generate 8 or keep fewer --layers"),
    ],
)  # fmt: skip
def test_the_advice_fits_the_phase_and_what_is_used(
    phase: Phase, workload: dict[str, Any], options: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "find_spec", lambda name: None)
    assert less_memory(phase, text_model(**workload), RunOptions(**options)) == expected


def test_bitsandbytes_is_advised_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "find_spec", lambda name: object())
    assert advice.smaller_optimizers("adamw") == ["sgd", "adamw8bit", "adafactor"]
    assert advice.smaller_optimizers("sgd") == ["adamw8bit", "adafactor"]
    assert advice.smaller_optimizers("adamw8bit") == ["adafactor"]


def test_the_python_entry_speaks_of_its_own_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "find_spec", lambda name: None)
    module = layers()
    monkeypatch.setattr(torch.optim.SGD, "step", lambda optimizer: (_ for _ in ()).throw(full()))
    with pytest.raises(OutOfMemory) as caught:
        opanatomy.profile(module, torch.ones(4, 64), optimizer="sgd")
    assert (
        ' - use optimizer="adafactor", give a smaller module or make it .to(torch.bfloat16) (CUDA out of memory.'
        in str(caught.value)
    )
    assert "--" not in str(caught.value)


def test_a_trace_that_does_not_fit_is_no_fault_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("opanatomy.capture.run.step_runner.export_trace", fail)
    with pytest.raises(OutOfMemory) as caught:
        record_step(text_model(), RunOptions(steps=2, inference=True), Path("never.json"))
    assert str(caught.value).startswith("out of memory outside of a step; ")
    assert " - record fewer --steps, keep fewer --layers or use --dtype bfloat16 (memory error)" in str(caught.value)


@pytest.mark.parametrize(
    ("place", "options", "expected"),
    [
        ("opanatomy.capture.model.workload.build_on_meta", {},
         "out of memory while gpt2 was being built - keep fewer --layers or use --dtype bfloat16"),
        ("opanatomy.capture.model.building._from_config", {"dtype": "fp16"},
         "out of memory: the weights in float16 do not fit the memory of cpu - keep fewer --layers"),
        ("opanatomy.capture.model.workload.make_batch", {"batch": 1},
         "out of memory while gpt2 and its inputs were being built - lower --seq, keep fewer --layers or use --dtype"
         " bfloat16"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_are_no_fault_of_the_batch(
    place: str, options: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, _, name = place.rpartition(".")
    build = getattr(sys.modules[where], name)

    def full_host(*args: Any, **given: Any) -> Any:
        if name == "_from_config" and "float16" not in args:  # on the meta device, before
            return build(*args, **given)
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(place, full_host)
    wanted = RunOptions(model="gpt2", device="cpu", layers=1, **options)
    with pytest.raises(OutOfMemory) as caught:
        capture_model(wanted, Path("never.json"), Stages(), lambda text: None)
    assert str(caught.value) == expected
