"""Define operator classes, phases, causes of idle time, data types and optimizers."""

from __future__ import annotations

import sys
from enum import auto
from typing import Any, Final

from msgspec import Struct, field

if sys.version_info >= (3, 11):
    from enum import StrEnum as StrEnum
else:
    from enum import Enum

    class StrEnum(str, Enum):
        """`enum.StrEnum` of Python 3.11: members are their lower-case names."""

        @staticmethod
        def _generate_next_value_(name: str, start: int, count: int, last_values: list[str]) -> str:
            return name.lower()

        __str__ = str.__str__


class OperatorClass(StrEnum):
    """The kind of arithmetic of an operator; the first three are those of Ivanov et al., arXiv 2007.00072."""

    TENSOR_CONTRACTION = auto()
    STATISTICAL_NORMALIZATION = auto()
    ELEMENTWISE = auto()
    DATA_MOVEMENT = auto()
    COMMUNICATION = auto()
    OTHER = auto()
    UNKNOWN = auto()


class Phase(StrEnum):
    """The part of a training step or of a generation in which an operator ran."""

    FORWARD = auto()
    BACKWARD = auto()
    RECOMPUTE = auto()
    OPTIMIZER = auto()
    #: Phases of a generation: up to the first new token of each sample, and all after it.
    PREFILL = auto()
    DECODING = auto()
    OTHER = auto()


class ExcessCause(StrEnum):
    """Why work can be faster than the bound of its FLOPs and bytes."""

    CAUSAL_MASK = auto()
    #: The mask of flex attention is not among the arguments of its kernel.
    UNRECORDED_MASK = auto()
    #: A fused kernel touches a part of its tensors only.
    FUSED = auto()
    LOOK_UPS = auto()
    WINOGRAD = auto()
    CACHE = auto()
    SEVERAL = auto()


class IdleCause(StrEnum):
    """The cause of idle time on a device: the host's activity during the gap, or the device's own wait."""

    #: Events of the profiler itself, or Python while its stack is recorded.
    PROFILER = auto()
    COMPILATION = auto()
    #: Loading of data, and copies from the host that block the host.
    INPUT = auto()
    #: Calls that allocate or free device memory, or pinned host memory.
    ALLOCATOR = auto()
    #: A launch that takes many times as long as others, loading of modules.
    SLOW_LAUNCH = auto()
    #: Calls that wait for the device.
    SYNCHRONIZATION = auto()
    #: A collective's call on the host.
    COLLECTIVE = auto()
    #: Operators and launches of ordinary length.
    OPERATORS = auto()
    #: The host between operators.
    PYTHON = auto()
    #: The next work was already launched; another stream worked last.
    STREAM = auto()
    #: The next work was already launched, on the stream that worked last.
    DEVICE = auto()
    #: Nothing recorded shows the cause.
    UNKNOWN = auto()


#: The name of each cause on a page.
CAUSE_LABELS: Final = {
    IdleCause.PROFILER: "profiler's records", IdleCause.COMPILATION: "compiling", IdleCause.INPUT: "input wait",
    IdleCause.ALLOCATOR: "allocator calls", IdleCause.SLOW_LAUNCH: "slow launches",
    IdleCause.SYNCHRONIZATION: "synchronizations", IdleCause.COLLECTIVE: "collective calls",
    IdleCause.OPERATORS: "operator calls", IdleCause.PYTHON: "Python", IdleCause.STREAM: "another stream",
    IdleCause.DEVICE: "between kernels", IdleCause.UNKNOWN: "unknown cause",
}  # fmt: skip


#: Columns store a class or phase as its index here; -1 means none.
CLASSES: Final = tuple(OperatorClass)
PHASES: Final = tuple(Phase)
#: The phases that divide a step.
STEP_PHASES: Final = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.PREFILL, Phase.DECODING)
CLASS_CODE: Final = {name: code for code, name in enumerate(CLASSES)}
PHASE_CODE: Final = {phase: code for code, phase in enumerate(PHASES)}

FLOAT32, TF32 = "float32", "tf32"
#: Three tf32 products for each float32 one: CUTLASS' OpMultiplyAddFastF32, used by memory-efficient attention.
THREE_TF32: Final = "3 x tf32"
#: Types in which float32 operands are computed; a column has the index.
COMPUTE_TYPES: Final = (FLOAT32, TF32, THREE_TF32)
#: The peak that applies to each of them.
PEAK_OF_COMPUTE_TYPE: Final = {FLOAT32: FLOAT32, TF32: TF32, THREE_TF32: TF32}
#: Codes of the phases in a column.
FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, OTHER = (
    PHASE_CODE[phase] for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE, Phase.OPTIMIZER, Phase.OTHER)
)
#: Phases with a forward pass, in a training step or a generation.
FORWARDS: Final = tuple(PHASE_CODE[phase] for phase in (Phase.FORWARD, Phase.PREFILL, Phase.DECODING))
#: Phases with different bounds: many tokens at once, and one by one.
OF_GENERATION: Final = (Phase.PREFILL, Phase.DECODING)


# --- data types: sizes, and names in torch, C++, NCCL and user input ---


class DataType(Struct, frozen=True):
    """A data type by torch's name, without `torch.`.

    `size` is in bytes, `None` below a byte. `code` is its number in `c10::ScalarType` (torch/headeronly, ScalarType.h),
    which Kineto records for a `dtype` argument. `short` are user-facing short names, `cpp` the names in template
    arguments and in Kineto's "Input type", `c10d` those in the arguments of collectives.
    """

    name: str
    size: int | None
    code: int | None = None
    short: tuple[str, ...] = ()
    cpp: tuple[str, ...] = ()
    c10d: tuple[str, ...] = ()


DATA_TYPES: Final = (
    DataType("float64", 8, 7, ("fp64", "f64", "double"), ("double",), ("double",)),
    DataType("float32", 4, 6, ("fp32", "f32", "float", "single"), ("float",), ("float",)),
    DataType("bfloat16", 2, 15, ("bf16",), ("c10::BFloat16", "__nv_bfloat16"), ("bfloat16",)),
    DataType("float16", 2, 5, ("fp16", "f16", "half"), ("c10::Half", "__half"), ("half",)),
    DataType("float8_e4m3fn", 1, 24, (), ("c10::Float8_e4m3fn",)),
    DataType("float8_e5m2", 1, 23, (), ("c10::Float8_e5m2",)),
    DataType("float8_e4m3fnuz", 1, 26, (), ("c10::Float8_e4m3fnuz",)),
    DataType("float8_e5m2fnuz", 1, 25, (), ("c10::Float8_e5m2fnuz",)),
    DataType("float8_e8m0fnu", 1, 44, (), ("c10::Float8_e8m0fnu",)),
    DataType("int64", 8, 4, ("i64", "long"), ("long int", "long", "int64_t", "long long"), ("long",)),
    DataType("int32", 4, 3, ("i32", "int"), ("int",), ("int",)),
    DataType("int16", 2, 2, ("i16", "short"), ("short", "short int"), ("short",)),
    DataType("int8", 1, 1, ("i8", "char"), ("signed char", "char"), ("char",)),
    DataType("uint64", 8, 29, (), ("unsigned long",)),
    DataType("uint32", 4, 28, (), ("unsigned int",)),
    DataType("uint16", 2, 27, (), ("unsigned short",)),
    DataType("uint8", 1, 0, ("u8", "byte"), ("unsigned char",), ("byte",)),
    DataType("bool", 1, 11, (), ("bool",), ("bool",)),
    DataType("complex32", 4, 8, ("chalf",), ("c10::complex<c10::Half>",)),
    DataType("complex64", 8, 9, ("cfloat",), ("c10::complex<float>",), ("complexfloat",)),
    DataType("complex128", 16, 10, ("cdouble",), ("c10::complex<double>",), ("complexdouble",)),
    DataType("qint8", 1, 12, (), ("c10::qint8",)),
    DataType("quint8", 1, 13, (), ("c10::quint8",)),
    DataType("qint32", 4, 14, (), ("c10::qint32",)),
    DataType("quint4x2", None, 16),
    DataType("quint2x4", None, 17),
    DataType("bits1x8", None, 18),
    DataType("bits2x4", None, 19),
    DataType("bits4x2", None, 20),
    DataType("bits8", None, 21),
    DataType("bits16", None, 22),
)

#: Bytes of one element by torch's name; a data type below a byte has no entry.
ITEM_SIZE: Final = {kind.name: kind.size for kind in DATA_TYPES if kind.size is not None}
#: Torch's name by the name in C++ template arguments and Kineto's "Input type".
BY_CPP_NAME: Final = {name: kind.name for kind in DATA_TYPES for name in kind.cpp}
#: Torch's name by c10d's, in lower case.
BY_C10D_NAME: Final = {name: kind.name for kind in DATA_TYPES for name in kind.c10d}
#: Torch's name by the number in `c10::ScalarType`.
BY_CODE: Final = {kind.code: kind.name for kind in DATA_TYPES if kind.code is not None}
_BY_NAME: Final = {name: kind.name for kind in DATA_TYPES for name in (kind.name, *kind.short)}

#: Data types with a peak of matrix products, in display order; "tf32" is float32 rounded by the matrix units, "float8"
#: any float of 8 bits.
PEAK_TYPES: Final = ("float64", "float32", "tf32", "bfloat16", "float16", "float8", "int8")
_PEAK_NAMES: Final = {"tf32": "tf32", "tfloat32": "tf32", "float8": "float8", "fp8": "float8", "f8": "float8"}


def is_floating(dtype: str | None) -> bool:
    """Return True if the data type (torch's name) is floating-point."""
    return dtype is not None and dtype.startswith(("float", "bfloat", "complex"))


def is_integer(dtype: str | None) -> bool:
    """Return True if the data type (torch's name) is an integer type; quantized types and `bool` are not."""
    return dtype is not None and dtype.startswith(("int", "uint"))


def data_type_of(name: str) -> str | None:
    """Return torch's name of a data type from user input (`bf16`, `torch.bfloat16`, `Half`), else `None`."""
    return _BY_NAME.get(name.strip().lower().removeprefix("torch."))


def peak_type_of(name: str) -> str | None:
    """Return the data type of a peak (`PEAK_TYPES`) from user input; `None` if it has no peak."""
    lower = name.strip().lower().removeprefix("torch.")
    full = data_type_of(lower) or lower
    full = "float8" if full.startswith("float8") else _PEAK_NAMES.get(lower, full)
    return full if full in PEAK_TYPES else None


# --- optimizers: names, state and requirements ---


class Optimizer(Struct, frozen=True, kw_only=True):
    """An optimizer, identified by the option's name.

    It keeps `state_copies` of each parameter, in the parameter's size and data type, or `state_bytes_per_parameter` if
    its state has another type. `update_copies` live only during an update (the intermediates of the foreach form:
    torch's documentation of `foreach`). `factored` state (Adafactor) is a row and a column of each matrix.
    """

    name: str
    label: str
    #: The class in `torch.optim`, or in `package`.
    torch_class: str
    arguments: dict[str, Any] = field(default_factory=dict)
    state_copies: int = 0
    state_bytes_per_parameter: float | None = None
    update_copies: int = 0
    factored: bool = False
    #: The state of embedding weights is kept in 32 bits, two copies of it, as for small tensors.
    full_embeddings: bool = False
    #: The update is compiled by `torch.compile`, in the first step.
    compiled: bool = False
    #: The package with the class if it is not torch, and our extra that installs it.
    package: str | None = None
    #: Aliases from transformers' `OptimizerNames`.
    aliases: tuple[str, ...] = ()

    def state_bytes(self, item_bytes: int) -> float:
        """Return bytes of state for each trained parameter of that many bytes, without factored rows and columns."""
        if self.state_bytes_per_parameter is not None:
            return self.state_bytes_per_parameter
        return self.state_copies * item_bytes

    def full_parameters(self, small: int, embeddings: int) -> int:
        """Return the number of parameters with 32-bit state while the others have 8-bit state."""
        if self.state_bytes_per_parameter is None:
            return 0
        return small + (embeddings if self.full_embeddings else 0)

    def update_bytes(self, item_bytes: int) -> float:
        """Return the peak bytes of an update per trained parameter: state and temporaries."""
        return self.state_bytes(item_bytes) + self.update_copies * item_bytes


#: Bytes of a parameter's AdamW state in 32 bits; optimizers with 8-bit state keep it for tensors of fewer elements than
#: `SMALL` (bitsandbytes' `min_8bit_size`, torchao's `_new_buffer`).
FULL_STATE_BYTES: Final = 8
SMALL: Final = 4096

#: Block-wise 8-bit states: two bytes, and two scales of four bytes for each block of 256 (Dettmers et al., arXiv
#: 2110.02861; bitsandbytes, torchao).
_EIGHT_BITS: Final = 2 + 2 * 4 / 256

#: The first is the default of transformers' Trainer.
OPTIMIZERS: Final = (
    Optimizer(
        name="adamw", label="AdamW", torch_class="AdamW", arguments={"lr": 1e-5, "fused": True}, state_copies=2,
        aliases=("adamw_torch_fused",),
    ),
    Optimizer(
        name="adamw-foreach", label="AdamW, foreach", torch_class="AdamW", arguments={"lr": 1e-5, "foreach": True},
        state_copies=2, update_copies=1,
    ),
    Optimizer(
        name="adamw-loop", label="AdamW, for-loop", torch_class="AdamW", arguments={"lr": 1e-5, "foreach": False},
        state_copies=2,
    ),
    Optimizer(
        name="adamw8bit", label="8-bit AdamW", torch_class="AdamW8bit", arguments={"lr": 1e-5},
        state_bytes_per_parameter=_EIGHT_BITS, package="bitsandbytes", aliases=("adamw_bnb_8bit",),
    ),
    Optimizer(
        name="adamw8bit-embeddings32", label="8-bit AdamW, 32-bit embeddings", torch_class="AdamW8bit",
        arguments={"lr": 1e-5}, state_bytes_per_parameter=_EIGHT_BITS, full_embeddings=True, package="bitsandbytes",
    ),
    Optimizer(
        name="adamw8bit-torchao", label="8-bit AdamW (torchao)", torch_class="AdamW8bit", arguments={"lr": 1e-5},
        state_bytes_per_parameter=_EIGHT_BITS, package="torchao", compiled=True,
    ),
    Optimizer(name="adam", label="Adam", torch_class="Adam", arguments={"lr": 1e-5, "fused": True}, state_copies=2),
    Optimizer(
        name="sgd", label="SGD with momentum", torch_class="SGD", arguments={"lr": 1e-3, "momentum": 0.9},
        state_copies=1,
    ),
    Optimizer(name="adafactor", label="Adafactor", torch_class="Adafactor", factored=True),
)  # fmt: skip

#: Optimizers by the name of the option.
BY_NAME: Final = {optimizer.name: optimizer for optimizer in OPTIMIZERS}
